//! Simulations by the thousand: each module is a kind of them.

#![allow(missing_docs)]

mod common;

mod delays;
mod detection;
mod documents;
mod gaps;
mod groups;
mod hsuc;
mod hsuc_memory;
mod huc;
mod judged;
mod large;
mod lowi;
mod must_fail;
mod paxos;
mod raft;
mod scenarios;
mod shrink;
