//! The real gate between verdicts and engines, as this world's times want it.

use fide_proto::consensus::Kind;
use fide_proto::group::{MemberId, MemberSet};

use crate::time::PERIOD_NS;

pub use fide_proto::consensus::policy::{Action, Answer, Ask, Config, Gate, Policy};
pub use fide_wire::verdict::Grade;

/// The gate of a member for this engine; nothing if the engine cannot keep that policy.
#[must_use]
pub fn gate(me: MemberId, engine: Kind, policy: Policy, members: MemberSet) -> Option<Gate> {
    let config = Config {
        fence_repeat_ns: 10 * PERIOD_NS,
        witness_timeout_ns: 20 * PERIOD_NS,
        distrust_ns: 50 * PERIOD_NS,
        ..Config::new(engine, policy)
    };
    Gate::new(me, config, members).ok()
}
