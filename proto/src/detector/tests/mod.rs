//! Scenarios, named after the section of the paper (or the issue) and the property.

mod diversion;
mod harness;
mod notices;
mod progress;
mod silence;
mod speed;
mod states;
mod unreachable;
mod watching;
