//! One host's part in the cluster: [`Node`]. Agents and hosts of the simulator run the same.
//!
//! ```text
//! frame ─► Window (seen before?) ─► Directory ─┬─► Introductions   hello, introduction
//!                                              ├─► Replica   change, rows ─► events of processes
//!                                              └─► Owner     pull ─► rows
//! Directory (who lives, what runs) ─┬─► Detector ─► verdicts, each end once
//! arrivals, answers, time ──────────┘      │
//!                                          └─► HostFence ─► gates
//! heartbeats that left, reports of others ─────────┘
//! jitter, round trips ─► Calibration ─► contract of each path ─► Detector
//! Pacer ─► when a heartbeat is due
//! doubts of the Detector ─► Probing ─► questions ─► answers, barriers ─► Detector
//! ```

pub mod calibration;
pub mod directory;
pub mod fence;
pub mod introductions;
pub mod losses;
pub mod machine;
pub mod pacer;
pub mod probing;
pub mod sizes;
pub mod table;
pub mod tables;
pub mod window;

pub use calibration::Calibration;
pub use directory::Directory;
pub use machine::Node;
pub use pacer::Pacer;
pub use tables::Tables;

/// How fast heartbeats are, and with them everything that waits for a frame. The times in this module are those for a period of a
/// millisecond or more; with a shorter period they are shorter in proportion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    period_ns: u64,
}

/// The period at which times are as they are written.
const PACE_NS: u64 = 1_000_000;

impl Pace {
    /// Of heartbeats with this period.
    #[must_use]
    pub const fn new(period_ns: u64) -> Self {
        let period_ns = if period_ns == 0 || period_ns > PACE_NS { PACE_NS } else { period_ns };
        Self { period_ns }
    }

    /// A time, at this pace.
    #[must_use]
    pub const fn of(self, ns: u64) -> u64 {
        // No time here is longer than a minute, so this does not overflow.
        ns * self.period_ns / PACE_NS
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self { period_ns: PACE_NS }
    }
}
