//! `fide lead`: a command runs on the host that leads, and nowhere else.
//!
//! ```text
//! verdicts (fided) ──────┐
//! entries (group) ───────┼─► judge ─► proposals ─► group
//! what became of COMMAND ┘      └───► payload: start, clear
//! ```
//!
//! | file | |
//! |---|---|
//! | `course.rs` | what entries of the group mean: terms, hosts, pauses; pure |
//! | `judge.rs` | what one host does about entries, verdicts and its COMMAND; pure |
//! | `run.rs` | `fide lead run`: agent, group and COMMAND around the judge |
//! | `operator.rs` | what operators ask and say |
//! | `payload.rs` | the thread that starts and ends COMMAND, and its address |
//! | `cgroup.rs` | the cgroup in which it runs |
//! | `address.rs` | an address that moves with it |

/// A line for whoever runs `fide lead run`: its journal, or a terminal.
macro_rules! say {
    ($kind:literal, $($text:tt)*) => {{
        use std::io::Write as _;
        // Nobody who reads it holds anything up.
        _ = writeln!(std::io::stderr(), concat!($kind, "{}"), format_args!($($text)*));
    }};
}

pub mod address;
pub mod cgroup;
pub mod course;
pub mod judge;
pub mod operator;
pub mod payload;
pub mod run;

#[cfg(test)]
mod judge_tests;
