//! Rust client of the agent: monitor, on_failure, piggyback.
