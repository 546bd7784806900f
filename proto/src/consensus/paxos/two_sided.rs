//! The acceptor that answers by message, for slots whose proposals do not fit into words any more (uKharon App. A.6).
//!
//! The paper: "Acceptors check `state` and, if it is above the threshold, initiate the standard RPC version of Paxos with the […] variables
//! initialized to match `state`." It does not say what happens to a compare-and-swap that is on its way meanwhile. A proposer that prepared
//! the word with a number just above the threshold may still accept by CAS *after* the process copied the word: the copy does not know what was
//! accepted, and promises and accepts something else. Here the process first **freezes** its word: a CAS on its own memory that puts [`FROZEN`] into
//! `min_proposal` and leaves the rest. What that CAS found is what it begins with; every later CAS of anybody fails, because nobody
//! ever expects a frozen word; and whoever reads it knows whom to ask. Numbers below the threshold go by CAS only, others by message only.

use super::message::Ballot;
use super::word::{FROZEN, Word};
use crate::group::{Batch, MemberId};
use std::collections::VecDeque;

/// What a proposer asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rpc {
    Prepare(Ballot),
    Accept(Ballot, Batch),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// A CAS on the own word is out.
    Freezing,
    /// The word was frozen; what it had accepted is being read from the own region.
    Fetching,
    /// Answers.
    Ready,
}

/// One slot of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TwoSided {
    pub stage: Stage,
    pub promised: Ballot,
    pub accepted: Option<(Ballot, Batch)>,
    /// Who waits for it to be ready.
    pub queue: VecDeque<(MemberId, Rpc)>,
}

impl TwoSided {
    pub fn new() -> Self {
        Self { stage: Stage::Freezing, promised: 0, accepted: None, queue: VecDeque::new() }
    }

    /// The word that is to take the place of `word`.
    pub fn frozen(word: Word) -> Word {
        Word { min_proposal: FROZEN, ..word }
    }

    /// Alg. 3 lines 29–31, with `n` read as `proposal`.
    pub fn prepare(&mut self, ballot: Ballot) {
        self.promised = self.promised.max(ballot);
    }

    /// Alg. 3 lines 33–37.
    pub fn accept(&mut self, ballot: Ballot, batch: Batch) {
        if ballot >= self.promised {
            self.promised = ballot;
            self.accepted = Some((ballot, batch));
        }
    }
}
