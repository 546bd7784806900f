//! Sending policy: paths, probes, profiles.
//!
//! Everything here is driven by one thread of the agent. In the order of a heartbeat's life:
//! * [`send`] puts it on every path, [`frame`] being the bytes around it;
//! * [`drops`] knows what this host lost itself;
//! * [`probe`] asks a silent host's kernel whether it is there;
//! * [`profile`] keeps the thread undisturbed, and says what disturbs it all the same; [`measure`] how much.

pub mod drops;
pub mod frame;
mod host;
pub mod measure;
pub mod probe;
pub mod profile;
pub mod send;
mod sys;
mod thread;

pub use drops::DropCounters;
pub use measure::{Distribution, Disturbance, JitterReport, measure_jitter};
pub use probe::{AnswerFilter, AnswerKind, ProbeAnswer, Prober, is_local, random};
pub use profile::{Applied, Profile, State, Step, apply, apply_to_this_thread, inspect};
pub use send::{
    Completion, Errno, Lane, LaneError, Options, PathMode, PathSpec, Received, Seen, SendError, SendMode, SendOutcome, look,
};
pub use sys::monotonic_ns;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
