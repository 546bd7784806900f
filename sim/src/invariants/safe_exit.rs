//! Nobody stops who need not.

use fide_proto::consensus::{Halted, Kind};
use fide_proto::group::MemberId;

use super::{Checked, broken};

/// Judges why members stop.
#[derive(Clone, Copy, Debug, Default)]
pub struct SafeExit {
    /// Whether anything happens in this world for which one may stop.
    pub may_halt: bool,
    /// Whether every heartbeat comes by one path at least.
    pub contract: bool,
}

/// What happened to one member.
#[derive(Clone, Copy, Debug)]
pub struct Reasons {
    /// It asked to leave.
    pub left: bool,
    /// Others had reason to go on without it.
    pub expelled: bool,
    /// A copy or a heartbeat of anybody did not get where it was sent, or too late.
    pub missed: bool,
    /// It joined a LOWI group after the last round, and none has come since.
    pub unsettled: bool,
    /// Its engine.
    pub kind: Kind,
}

impl SafeExit {
    /// This member stops.
    ///
    /// # Errors
    /// If it has no reason to.
    pub fn halted(&self, member: MemberId, why: Halted, reasons: Reasons) -> Checked {
        let Reasons { left, expelled, missed, unsettled, kind } = reasons;
        let reason = match why {
            Halted::Left => left || expelled,
            Halted::Expelled => expelled,
            Halted::Contradiction => false,
            // It cannot tell when the last round was, so it must not speak in its turn.
            Halted::MissingBroadcast if unsettled && kind == Kind::Lowi => true,
            // LOWI stops for one lost copy, HUC for what rode on a heartbeat and is behind what it decided; the others broadcast nothing.
            Halted::NetworkFault | Halted::MissingBroadcast => {
                self.may_halt && ((kind == Kind::Huc && !self.contract) || (kind == Kind::Lowi && missed))
            }
            Halted::Unconfirmed(_) => self.may_halt && kind.needs_accuracy(),
        };
        if reason {
            return Ok(());
        }
        broken("safe-exit", format!("{member} stops without need: {why:?}"))
    }
}
