//! Traffic engineering: what a network can promise, without a switch, a clock or a socket.

#![forbid(unsafe_code)]

pub mod ccf;
pub mod fabric;
pub mod file;
pub mod generate;
pub mod independent;
pub mod plan;
pub mod search;
pub mod survey;
pub mod svg;
pub mod topology;
pub mod tree;
pub mod units;
