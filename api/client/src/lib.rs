//! Rust client of the agent.
//!
//! [`Connection`] is the low level, one request and its reply at a time; what operators' tools need.

mod connection;
mod error;
mod sys;

pub use connection::{ANSWER_TIMEOUT, Agent, Connection, Response, parse_reply, socket_path};
pub use error::Error;
pub use fide_wire as wire;
