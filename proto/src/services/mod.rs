//! What plugs into a node: services, each with a channel of its own ([`fide_wire::frame::Channel`]).
//!
//! ```text
//! frame, verdict, life of a host, heartbeat slot, heartbeat sent, request, timeout ─► service
//! service ─► frame, piggyback, event
//! ```
//! * [`links`]: messages between two nodes, reliable and in order.
//! * [`groups`]: replicated logs over any engine.

pub mod groups;
pub mod links;
