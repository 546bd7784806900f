//! The agent: its parts (`side`), and real ones in labs (root).

#![allow(missing_docs)]

mod common;

#[path = "e2e_failover/main.rs"]
mod e2e_failover;
#[path = "e2e_kubernetes/main.rs"]
mod e2e_kubernetes;
#[path = "e2e_lab/main.rs"]
mod e2e_lab;
#[path = "side/main.rs"]
mod side;

/// Not a test: the way into this program's other roles (see `common::actor`).
#[test]
#[ignore = "started by other tests"]
fn actor_role() {
    common::actor::act();
}
