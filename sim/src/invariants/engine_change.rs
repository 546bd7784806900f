//! Everybody changes to the same engine, at the same position, with the same members.

use std::collections::HashMap;

use fide_proto::consensus::Kind;
use fide_proto::consensus::log::{Epoch, Position};
use fide_proto::group::{MemberId, MemberSet};

use super::{Checked, broken};

/// How the group stands behind each control entry.
#[derive(Debug, Default)]
pub struct EngineChange {
    behind: HashMap<Position, (Epoch, Kind, MemberSet)>,
}

impl EngineChange {
    /// A member has applied the control entry at this position, and stands so behind it.
    ///
    /// # Errors
    /// If another one stands otherwise there.
    pub fn behind(&mut self, member: MemberId, position: Position, epoch: Epoch, kind: Kind, members: &MemberSet) -> Checked {
        let (of, with, among) = self.behind.entry(position).or_insert_with(|| (epoch, kind, members.clone()));
        if (*of, *with) == (epoch, kind) && among == members {
            return Ok(());
        }
        let what =
            format!("behind {position} {member} has {kind} (epoch {epoch}) of {members}, another {with} (epoch {of}) of {among}");
        broken("engine-change", what)
    }
}
