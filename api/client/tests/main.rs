//! The client library against an agent that answers from a script.

#![allow(missing_docs)]

mod fake_agent;

mod conversation;
mod hostile;
