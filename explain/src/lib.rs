//! Events of the history as text: one line of each (`event`), and what it rests on (`explain`).
//!
//! The command line and the agent's web page say the same of one event because both take it from here. Nothing here asks
//! anything, so all of it is tested with fixed values.

pub mod event;
pub mod explain;
pub mod samples;
pub mod style;
pub mod table;
pub mod units;
