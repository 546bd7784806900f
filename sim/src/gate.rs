//! What stands between a verdict and a crash that an engine may rely on: its grade, and the group's policy.

use fide_proto::consensus::Kind;
use fide_proto::group::{MemberId, MemberSet};

use crate::options::Policy;

pub use fide_wire::verdict::Grade;

/// What is to be done about a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It has crashed, as far as this group is concerned.
    Crash,
    /// It may have: engines that take hints are told, and it is to be cut off; [`Gate::confirmed`] follows.
    Fence,
    /// The same, and the witness is to be asked.
    Ask,
    /// It may have: engines that take hints are told, and nothing else is done.
    Suspect,
    /// Nothing new.
    Nothing,
}

/// The policy of one member.
#[derive(Clone, Debug)]
pub struct Gate {
    policy: Policy,
    asked: MemberSet,
}

impl Gate {
    /// With nothing asked.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, asked: MemberSet::new() }
    }

    /// A verdict about a member.
    pub fn verdict(&mut self, member: MemberId, grade: Grade, kind: Kind) -> Decision {
        match (grade, self.policy) {
            (Grade::Certain, _) => Decision::Crash,
            (_, Policy::TrustContract) if kind.needs_accuracy() => Decision::Crash,
            (_, Policy::TrustContract) if !self.asked.insert(member) => Decision::Nothing,
            (_, Policy::TrustContract) => Decision::Suspect,
            _ if !self.asked.insert(member) => Decision::Nothing,
            (_, Policy::Fence) => Decision::Fence,
            (_, Policy::Witness) => Decision::Ask,
        }
    }

    /// The member is back in sight.
    pub fn alive(&mut self, member: MemberId) {
        self.asked.remove(member);
    }
}
