//! `fide-kubernetes` between real agents and an API server: what happens to hosts and processes is found at nodes and pods, once, and no more than that.

#[path = "../common/mod.rs"]
mod common;

mod adapter;
mod cluster;
mod manifests;
mod real;

/// Not a test: the way into this program's other roles (see `common::actor`).
#[test]
#[ignore = "started by other tests"]
fn actor_role() {
    common::actor::act();
}
