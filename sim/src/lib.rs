//! Seeded worlds in which the real detector feeds the real consensus cores.

#![forbid(unsafe_code)]

pub mod delays;
pub mod detection;
pub mod engines;
pub mod gaps;
pub mod gates;
pub mod groups;
pub mod host;
pub mod invariants;
pub mod options;
pub mod plan;
pub mod queue;
pub mod rng;
pub mod run;
pub mod scenario;
pub mod shrink;
pub mod time;
pub mod timeline;
pub mod world;

pub use options::{Menu, Options, Policy};
pub use plan::Plan;
pub use world::{Outcome, World};
