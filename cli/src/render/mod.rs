//! Answers as text. Nothing here asks anything, so all of it is tested with fixed values.

pub mod agents;
pub mod fence;
pub mod foreign;
pub mod group;
pub mod lab;
pub mod maintenance;
pub mod matrix;
pub mod plan;
pub mod status;

use crate::style::Paint;
pub use fide_explain::{event, explain};

/// The colour of a state's name, of hosts and processes alike.
pub fn state_paint(state: &str) -> Paint {
    match state {
        "alive" | "up" => Paint::Green,
        "left" | "exited" => Paint::Dim,
        "late" | "unreachable" | "agent-lost" | "hung" | "pending" => Paint::Yellow,
        _ => Paint::Red,
    }
}
