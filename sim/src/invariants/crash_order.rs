//! Crashes that are handed to a log are true, and nothing of the crashed comes behind them.

use fide_proto::group::{MemberId, MemberSet};

use super::{Checked, broken};

/// Which crashes one member was told.
#[derive(Clone, Debug, Default)]
pub struct CrashOrder {
    told: MemberSet,
}

impl CrashOrder {
    /// It is told that `crashed` has crashed. `gone`: it has, or was cut off.
    ///
    /// # Errors
    /// If that is not true.
    pub fn told(&mut self, member: MemberId, crashed: MemberId, gone: bool) -> Checked {
        self.told.insert(crashed);
        if gone {
            return Ok(());
        }
        broken("accuracy", format!("{member} is told that {crashed} has crashed, and it lives"))
    }

    /// It is handed something that `from` piggybacked.
    ///
    /// # Errors
    /// If it was told before that `from` has crashed.
    pub fn piggyback(&self, member: MemberId, from: MemberId) -> Checked {
        if !self.told.contains(from) {
            return Ok(());
        }
        broken("fail-consistency", format!("{member} is handed a piggyback of {from} after its crash"))
    }
}
