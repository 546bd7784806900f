//! Rust client of the agent: know within microseconds that a process on another host has crashed.
//!
//! ```no_run
//! use fide_client::{Client, Event, Resources};
//! let client = Client::open(None)?;
//! client.monitor("db@a", Resources::default())?;
//! while let Some(event) = client.poll(None)? {
//!     if let Event::Failure(failure) = event {
//!         println!("{} {} ({})", failure.subject, failure.cause, failure.grade);
//!     }
//! }
//! # Ok::<(), fide_client::Error>(())
//! ```
//!
//! * [`Client`]: the calls and upcalls of FiDe's Listing 1. Where the kernel can, it writes events straight into this
//!   process's memory, so that none waits for the agent to be scheduled.
//! * [`Connection`]: the low level, one request and its reply at a time; what operators' tools need.
//!
//! `unsafe` is confined to two private modules: `sys` (system calls that std has no words for) and `shm` (shared memory).

mod beats;
mod bridge;
mod callbacks;
mod client;
mod connection;
mod error;
mod event;
mod flat;
mod progress;
mod ring;
mod shm;
mod sys;

pub mod group;

pub use beats::sent;
pub use callbacks::Callbacks;
pub use client::{Client, Monitored, Options, Resources, Resumed};
pub use connection::{ANSWER_TIMEOUT, Agent, Connection, Response, parse_reply, socket_path};
pub use error::Error;
pub use event::{Event, Piggyback, Subject, Verdict, monotonic_ns};
pub use fide_wire as wire;
pub use fide_wire::control::{CheckOutcome, Checked, CheckedPeer, TargetState};
pub use flat::Flat;
pub use progress::Progress;
