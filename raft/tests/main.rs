//! Raft behind the engine's interface.

#![allow(missing_docs)]

mod group;
#[path = "hostile/main.rs"]
mod hostile;
mod lag;
