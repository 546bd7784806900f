//! Nobody stops who need not.

use fide_proto::consensus::Halted;
use fide_proto::group::MemberId;

use super::{Checked, broken};

/// Judges why members stop.
#[derive(Clone, Copy, Debug, Default)]
pub struct SafeExit {
    /// Whether anything happens in this world for which one may stop.
    pub may_halt: bool,
}

impl SafeExit {
    /// This member stops. `left`: it asked to leave. `expelled`: others had reason to go on without it.
    ///
    /// # Errors
    /// If it has no reason to.
    pub fn halted(&self, member: MemberId, why: Halted, left: bool, expelled: bool) -> Checked {
        let reason = match why {
            Halted::Left => left || expelled,
            Halted::Expelled => expelled || self.may_halt,
            Halted::Contradiction => false,
            Halted::NetworkFault | Halted::MissingBroadcast | Halted::Unconfirmed(_) => self.may_halt,
        };
        if reason {
            return Ok(());
        }
        broken("safe-exit", format!("{member} stops without need: {why:?}"))
    }
}
