//! The bytes of FiDe, defined once.
//!
//! Three things cross a boundary and are described here and nowhere else:
//! * [`packet`]: what hosts send each other (UDP payloads), with [`mac`] over it; [`frame`] is its successor,
//!   version 2, which nothing sends yet;
//! * [`event`]: the records that reach a ring, written by the kernel program or by the agent;
//! * [`control`]: the messages on the agent's Unix socket.
//!
//! [`verdict`] holds the vocabulary (cause, grade, evidence) that all three share, [`level`] how much an event matters, [`names`] what hosts and processes may be called.
//! [`c_header`] prints the same definitions for C; `xtask gen` writes them to `wire/include/fide_wire.h`
//! and a test refuses a header that is out of date. [`sv_package`] does the same for hardware (`rtl/lib/fide_wire_pkg.sv`).

pub mod c_header;
pub mod control;
pub mod event;
pub mod frame;
pub mod jitter;
pub mod level;
pub mod mac;
pub mod maintenance;
pub mod marks;
pub mod names;
pub mod packet;
pub mod session;
pub mod sv_package;
pub mod verdict;

/// The UDP port of the lane, on both paths.
pub const DEFAULT_PORT: u16 = 3433;

/// The largest piggyback, in bytes (FiDe §3.1: what is left of a 1500-byte frame).
pub const PIGGYBACK_MAX: usize = 1418;

/// Number of disjoint paths (multicast trees) that every heartbeat takes (FiDe §3.3).
pub const PATHS: usize = 2;

/// Most hosts one agent tracks: slots in the receive table.
pub const SLOTS: usize = 256;

/// The wire identity of a node or of an application's name: 32-bit FNV-1a, never 0.
///
/// Names are what people type; ids are what packets carry. Two names that collide are refused by
/// the agent when it first hears the second one.
#[must_use]
pub const fn name_id(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let mut hash: u32 = 0x811c_9dc5;
    let mut i = 0;
    while i < bytes.len() {
        hash ^= bytes[i] as u32;
        hash = hash.wrapping_mul(0x0100_0193);
        i += 1;
    }
    if hash == 0 { 1 } else { hash }
}
