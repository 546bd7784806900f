//! What a proposer knows of one slot.

use super::message::Ballot;
use super::word::{ValueId, Word};
use crate::consensus::memory::RequestId;
use crate::group::Batch;

/// Where an attempt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Nothing is under way.
    Idle,
    /// Phase 1.
    Preparing,
    /// Phase 1 found a value; its bytes are awaited.
    Fetching,
    /// Phase 1 is done: the value may be accepted at any time.
    Prepared,
    /// Phase 2.
    Accepting,
    /// Aborted; again later.
    BackOff,
}

/// How one acceptor answered in this stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Vote {
    /// Not asked (yet, or again with a better prediction).
    Unasked,
    /// Asked.
    Asked,
    /// It did.
    Yes,
    /// It promised a higher one.
    No,
}

/// What an acceptor had accepted when it promised.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Prior {
    Nothing,
    /// One-sided: only its place is known.
    At(Ballot, ValueId),
    /// Two-sided.
    Is(Ballot, Batch),
}

impl Prior {
    pub fn ballot(&self) -> Ballot {
        match self {
            Prior::Nothing => 0,
            Prior::At(ballot, _) | Prior::Is(ballot, _) => *ballot,
        }
    }
}

/// One acceptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    /// What its word is believed to be when the next operation of ours gets there (`predicted` of Alg. 5).
    pub predicted: Word,
    /// What its word certainly was once; it never goes back behind that.
    pub seen: Word,
    /// Our last CAS on it: only the answer to that one says what to predict.
    pub last: Option<RequestId>,
    /// The highest number that it promised by message.
    pub promised: Ballot,
    pub vote: Vote,
    pub prior: Prior,
    /// Which of our values were written there; one bit each.
    pub written: u64,
}

/// One slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    /// Our proposal; 0 before the first.
    pub ballot: Ballot,
    pub stage: Stage,
    /// In the order of the members.
    pub lanes: Vec<Lane>,
    /// Our own value here: chosen once.
    pub mine: Option<Batch>,
    /// What we wrote into our regions for this slot.
    pub variants: Vec<Batch>,
    /// What must be proposed, once phase 1 found something; what is proposed, in phase 2.
    pub value: Option<Batch>,
    /// Since the last success.
    pub aborts: u32,
    /// When to give up waiting, or to try again.
    pub due_ns: Option<u64>,
}

impl Slot {
    /// Nothing is known but that all words are believed to be `predicted`.
    pub fn new(acceptors: usize, predicted: Word) -> Self {
        let lane = Lane {
            predicted,
            seen: Word::default(),
            last: None,
            promised: 0,
            vote: Vote::Unasked,
            prior: Prior::Nothing,
            written: 0,
        };
        Self {
            ballot: 0,
            stage: Stage::Idle,
            lanes: vec![lane; acceptors],
            mine: None,
            variants: Vec::new(),
            value: None,
            aborts: 0,
            due_ns: None,
        }
    }

    pub fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        for lane in &mut self.lanes {
            lane.vote = Vote::Unasked;
        }
    }

    pub fn votes(&self, vote: Vote) -> usize {
        self.lanes.iter().filter(|lane| lane.vote == vote).count()
    }
}
