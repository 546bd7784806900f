//! One host's part in the cluster.
//!
//! So far: who lives ([`introductions`]), what runs there ([`table`]), and both together ([`directory`]). They speak
//! version 2 of the wire, which nothing sends yet.
//!
//! ```text
//! frame ─► Window (seen before?) ─► Directory ─► Introductions   hello, introduction
//!                                            ├─► Replica         change, rows, version of a heartbeat ─► events
//!                                            └─► Owner           pull ─► rows
//! ```

pub mod directory;
pub mod introductions;
pub mod table;
pub mod tables;
pub mod window;

pub use directory::Directory;
pub use tables::Tables;
