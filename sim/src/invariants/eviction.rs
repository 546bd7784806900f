//! Only who crashed, was cut off or asked for it leaves; only who asked joins.

use fide_proto::consensus::Kind;
use fide_proto::group::{Body, Entry, MemberId};

use super::{Checked, broken};

/// What was asked for.
#[derive(Debug, Default)]
pub struct Eviction {
    joiners: Vec<MemberId>,
    kinds: Vec<Kind>,
}

impl Eviction {
    /// This member wants to join.
    pub fn joins(&mut self, member: MemberId) {
        self.joiners.push(member);
    }

    /// Somebody wants this engine.
    pub fn switches(&mut self, kind: Kind) {
        self.kinds.push(kind);
    }

    /// Somebody applies this for the first time; `gone` says whether a member has crashed or was cut off.
    ///
    /// # Errors
    /// If nobody asked for it, or a member that lives is made to leave.
    pub fn applied(&self, entry: &Entry, gone: impl Fn(MemberId) -> bool) -> Checked {
        match &entry.body {
            Body::Value(_) => Ok(()),
            Body::Join(member) if self.joiners.contains(member) => Ok(()),
            Body::Switch(kind) if self.kinds.contains(kind) => Ok(()),
            Body::Leave(member) if *member == entry.id.proposer || gone(*member) => Ok(()),
            Body::Leave(member) => broken("eviction", format!("{} has {member} leave, which lives", entry.id.proposer)),
            Body::Join(member) => broken("eviction", format!("{member} joins without wanting to")),
            Body::Switch(kind) => broken("eviction", format!("nobody wants {kind}")),
        }
    }
}
