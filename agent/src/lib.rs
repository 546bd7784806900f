//! fided, the agent: drain xdp, step proto, feed lane, publish.

pub mod config;
pub mod select;
pub mod access;
