//! The program as it is run: what it prints, on which stream, and its exit code.
//!
//! [`agent`] runs it against an agent that answers from a script ([`fake`]), [`lab`] in real labs (root).

mod agent;
mod fake;
mod lab;
