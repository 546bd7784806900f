//! What is called stable is decided, and is called so for ever. (How much an engine keeps for retransmission is asserted by its own `invariants()`,
//! which the world calls after every step: for HSUC two messages, FiDe Alg. 2.)

use fide_proto::consensus::Instance;
use fide_proto::consensus::log::{Epoch, Log};

use super::{Checked, broken};

/// What one member called stable.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stability {
    epoch: Epoch,
    stable: Instance,
}

impl Stability {
    /// After a step of this member.
    ///
    /// # Errors
    /// If it calls stable what it has not decided, or takes back what it called so.
    pub fn stepped(&mut self, log: &Log) -> Checked {
        let (epoch, stable) = (log.epoch(), log.stable_through());
        if epoch != self.epoch {
            *self = Self { epoch, stable };
        }
        if stable < self.stable {
            return broken("stability", format!("{} called {} stable, now only {stable}", log.me(), self.stable));
        }
        if stable > log.decided_through() && log.is_running() {
            return broken("stability", format!("{} calls {stable} stable and decided {}", log.me(), log.decided_through()));
        }
        self.stable = stable;
        Ok(())
    }
}
