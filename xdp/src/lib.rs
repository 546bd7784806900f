//! The mechanism: kernel programs that see heartbeats, notices and exits, beside the Rust that loads them.
//!
//! Nothing here decides anything. The receive program (`src/bpf/receive.h`) keeps the arrival table and hands notices to the rings of
//! their subscribers; the exit watch (`src/bpf/exit.h`) reports doomed and dead processes, the start watch (`src/bpf/start.h`) those that may be watched next; [`Mechanism`] loads, attaches, fills the maps
//! and reads the rings. Apart from them, [`ends`] keeps how processes ended while no agent ran, and [`fence`] keeps a late sender's packets from leaving. Judging is `fide_proto`'s, sending is `fide_lane`'s; they meet in the agent.

mod egress;
pub mod ends;
pub mod fence;
pub mod layout;
pub mod lost;
mod mechanism;
mod memory;
mod ring;
mod starts;

pub use ends::KeptEnds;
pub use fence::{Apart, Fence, FenceError, Gate, GateCounts, GateState, Process, Refused};
pub use mechanism::{
    Attach, Mechanism, ProgramFigures, Questions, RingMaker, Setup, Subscriber, Used, WatchEnd, XdpError, delegate,
};
pub use ring::Ring;
pub use starts::{Start, StartWatch, Wanted};
