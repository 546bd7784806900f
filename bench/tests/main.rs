//! Benchmarks, run small (root).

#![allow(missing_docs)]

mod end_to_end;
mod raft_tcp;
mod safetimer;
