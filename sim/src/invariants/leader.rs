//! Two members never lead one LOWI group at once: for every round, at most one of them speaks.

use std::collections::HashMap;

use fide_proto::consensus::log::{EngineMessage, Epoch, Message};
use fide_proto::consensus::lowi;
use fide_proto::group::MemberId;

use super::{Checked, broken};

/// Who spoke in which round.
#[derive(Debug, Default)]
pub struct OneLeader {
    spoke: HashMap<(Epoch, u64), MemberId>,
}

impl OneLeader {
    /// Copies of this leave a member.
    ///
    /// # Errors
    /// If another one spoke in that round.
    pub fn speaks(&mut self, member: MemberId, message: &Message) -> Checked {
        let Message::Engine { epoch, body: EngineMessage::Lowi(lowi::Message::Round(round)) } = message else { return Ok(()) };
        match self.spoke.insert((*epoch, round.round), member) {
            Some(other) if other != member => {
                broken("one-leader", format!("{member} speaks in round {}, in which {other} spoke", round.round))
            }
            _ => Ok(()),
        }
    }
}
