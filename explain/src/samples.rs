//! Events with fixed values, for tests and screenshots.

use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{Cause, Contract, Grade, VerdictId};

/// HB 1 ms, λmin 12 µs, δmax 300 µs.
pub const CONTRACT: Contract = Contract { period_ns: 1_000_000, size_max: 1418, lambda_min_ns: 12_000, delta_max_ns: 300_000 };

/// A killed redis on h2, seen by h1.
pub fn killed() -> HistoryEvent {
    HistoryEvent {
        seq: 7,
        wall_ns: 1_794_000_000_123_456_789,
        at_ns: 5_000_030_000,
        observer: "h1".into(),
        observer_incarnation: 1,
        id: Some(VerdictId::new(0x00ab_cdef, 17)),
        cause: Cause::Killed,
        grade: Grade::Certain,
        node: "h2".into(),
        incarnation: 3,
        app: Some("redis".into()),
        code: 9,
        confirms: false,
        text: "redis@h2 was ended by SIGKILL".into(),
        maintenance: None,
        evidence: None,
    }
}
