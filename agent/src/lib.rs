//! fided, the agent: drain xdp, step proto, feed lane, publish.

pub mod access;
pub mod bridge;
pub mod command;
pub mod config;
pub mod control;
pub mod core;
pub mod example;
pub mod fence;
pub mod history;
pub mod hooks;
pub mod links;
pub mod metrics;
pub mod peers;
pub mod probes;
pub mod receive;
pub mod rt;
pub mod select;
pub mod seqpacket;
pub mod side;
pub mod soft;
pub mod start;
pub mod state;
pub mod status;
pub mod subscribers;
pub mod watchlist;
pub mod words;
