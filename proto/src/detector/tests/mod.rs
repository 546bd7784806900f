//! Scenarios, named after the section of the paper (or the issue) and the property.

mod diversion;
mod harness;
mod inbox_outbox;
mod notices;
mod progress;
mod silence;
mod speed;
mod states;
mod watching;
