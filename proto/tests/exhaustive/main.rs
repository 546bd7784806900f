//! The same cores that run, in every state that a small world can reach.
//!
//! `docs/checking.md` has the table: what was seen, how much of it, and what was not. `cargo test -p fide-proto --test proto -- exhaustive:: --nocapture`
//! prints states, depth and time of each model, and the shortest way into those that must fail.

mod explore;
mod hsuc;
mod huc;
mod leases;
mod lowi;
mod messages;
mod owi;
mod paxos;
mod timed;
