//! fided, the agent: drain xdp, step proto, feed lane, publish.

pub mod config;
pub mod select;
pub mod access;
pub mod core;
pub mod bridge;
pub mod peers;
pub mod receive;
pub mod soft;
pub mod subscribers;
pub mod watchlist;
pub mod words;
pub mod history;
