//! `fide-kubernetes` between real agents and an API server: what happens to hosts and processes is found at nodes and pods, once, and no more than that.

mod adapter;
mod cluster;
mod manifests;
mod real;
