//! Pure protocol cores: no clock, socket, thread or unsafe.
//!
//! Each core is a machine that is fed facts and the time, and asked what to do. The same machine runs in the agent, in the
//! simulated worlds of its tests and (later) in a model checker.
//!
//! * [`detector`]: arrivals, notices, probe results and `now` in; verdicts out.

#![forbid(unsafe_code)]

pub mod detector;
