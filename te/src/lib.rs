//! Traffic engineering: what a network can promise, without a switch, a clock or a socket.
//!
//! In the order a plan is made:
//!
//! * [`topology`]: hosts, switches and links, with what is known of each; [`file`](mod@file) reads
//!   one, [`generate`] makes one, [`units`] are its quantities.
//! * [`fabric`]: what a planner sees of it, and what tunnels send over it.
//! * [`search`]: K trees of one sender that share no switch (FiDe App. B; X-OPT, X-Lane Alg. 2, is
//!   K = 1). [`independent`]: two trees whose paths to any one host share none, where the first do
//!   not exist.
//! * [`tree`]: X-ADJ, what a tree promises beside all others (X-Lane Alg. 1).
//! * [`plan`]: the trees and contracts of all senders; joins and leaves.
//! * [`survey`], [`ccf`]: what single failures take, and how often several do (FiDe App. C).
//! * [`svg`]: the picture.
//!
//! A controller that moves trees on switches would keep a [`plan::Plan`], feed it joins and leaves,
//! and hand its trees to drivers. Nothing here does.

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
