//! What members say to each other beside reading and writing memory.

use crate::consensus::Instance;
use crate::group::{Batch, Entry};
use serde::{Deserialize, Serialize};

/// A proposal number. Member `i` of `n` (in their order, from 1) has `i`, `i + n`, `i + 2n` …; those below
/// [`super::Paxos::two_sided_from`] fit into words.
pub type Ballot = u64;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// To whom the sender takes for the leader: decide this. The `place`-th of a run, from 0; a new `run` begins with all that are undecided.
    Forward {
        /// Growing.
        run: u64,
        /// Without a gap, so that what was refused keeps its successors out.
        place: u64,
        /// What.
        entry: Entry,
    },
    /// This was decided.
    Decided {
        /// Which.
        instance: Instance,
        /// On what.
        batch: Batch,
        /// Every member has decided through this one.
        stable: Instance,
    },
    /// How far the sender is.
    Progress {
        /// It decided through this one.
        decided: Instance,
        /// Every member has decided through this one.
        stable: Instance,
        /// It wants to be told what the receiver decided beyond.
        ask: bool,
    },
    /// Two-sided, phase 1 (App. A.6): from now on nothing below `ballot`.
    Prepare {
        /// Which slot.
        instance: Instance,
        /// The proposal.
        ballot: Ballot,
    },
    /// Answer to [`Message::Prepare`].
    Prepared {
        /// Which slot.
        instance: Instance,
        /// The proposal that was to be prepared.
        ballot: Ballot,
        /// What is promised now: the same, or a higher one.
        promised: Ballot,
        /// What was accepted last.
        accepted: Option<(Ballot, Batch)>,
    },
    /// Two-sided, phase 2.
    Accept {
        /// Which slot.
        instance: Instance,
        /// The proposal.
        ballot: Ballot,
        /// Its value.
        batch: Batch,
    },
    /// Answer to [`Message::Accept`].
    Accepted {
        /// Which slot.
        instance: Instance,
        /// The proposal that was to be accepted.
        ballot: Ballot,
        /// What is promised now: the same if it was accepted, or a higher one.
        promised: Ballot,
    },
}
