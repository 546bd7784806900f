//! Consensus cores and what they have in common: [`Engine`], one interface over all of them (B7).
//!
//! An engine decides a sequence of *instances*, numbered from 1, each on one [`Batch`] of entries. It is fed messages, crashes and the time; what it
//! wants done comes out of [`Engine::poll_action`]. It never reads a clock, sends, or waits.
//!
//! | engine | decides in | stays safe with | needs |
//! |---|---|---|---|
//! | HSUC | 3 message delays | N−1 crashes | that nobody alive is reported crashed; reliable links |
//! | HUC | 2 | N−1 crashes | the same, and that nothing of a crashed member arrives after its crash (FCURB) |
//! | LOWI | 1 | N−1 crashes | that every copy arrives within Δ; stops on a network fault |
//! | one-sided Paxos | 1 round trip | a minority of crashes | memory that answers compare-and-swap; no timing at all |
//! | Raft | 2 | a minority of crashes | reliable storage; no timing at all |

pub mod batch;
#[cfg(test)]
mod harness;
pub mod hsuc;
pub mod huc;
pub mod log;
pub mod lowi;
pub mod owi;
pub mod paxos;
pub mod policy;
pub mod trace;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::group::{Batch, Entry, MemberId, MemberSet, Refusals, Refused, Value};

/// The number of an instance, from 1.
pub type Instance = u64;

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Hierarchical stabilizing uniform consensus (FiDe Alg. 3).
    Hsuc,
    /// Heartbeat uniform consensus (FiDe Alg. 4).
    Huc,
    /// Looped one-way imposition (Nano-consensus Alg. 3).
    Lowi,
    /// One-sided Paxos (uKharon Alg. 5).
    Paxos,
    /// Raft, by a library.
    Raft,
}

impl Kind {
    /// Every engine.
    pub const ALL: [Kind; 5] = [Kind::Hsuc, Kind::Huc, Kind::Lowi, Kind::Paxos, Kind::Raft];

    /// The name used on command lines, in metrics and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Hsuc => "hsuc",
            Kind::Huc => "huc",
            Kind::Lowi => "lowi",
            Kind::Paxos => "paxos",
            Kind::Raft => "raft",
        }
    }

    /// Whether it is safe only if whoever is reported crashed has crashed. The others take reports as hints.
    #[must_use]
    pub const fn needs_accuracy(self) -> bool {
        matches!(self, Kind::Hsuc | Kind::Huc | Kind::Lowi)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why an engine stopped for good. It decides nothing any more and refuses everything with [`Refused::Halted`]; what it decided stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Halted {
    /// A copy was missing, on a path of this number if that is known (N4: safe exit).
    NetworkFault,
    /// A broadcast of a member that is alive never came: uniformity cannot be relied on.
    MissingBroadcast,
    /// The group's policy does not allow to act on what was inferred.
    Unconfirmed(MemberId),
    /// This member was reported crashed by others, or fenced: it is not in the group any more.
    Expelled,
    /// It left, as agreed.
    Left,
    /// What members said contradicts what is known for certain: one of them is not correct.
    Contradiction,
}

/// What an engine asks of its shell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action<M> {
    /// Over the reliable link to `to`: nothing is lost, doubled or overtaken as long as both live; may be late. Never to oneself.
    Send {
        /// To whom.
        to: MemberId,
        /// What.
        message: M,
    },
    /// One copy on each path, now (RSBCAST, Nano-consensus Alg. 1). The sender does not get its own copy.
    Copies {
        /// What.
        message: M,
    },
    /// A one-sided operation on the memory of `to` (one's own too), whose process takes no part. Operations of one member on one memory
    /// are carried out in order; their answer comes by [`Engine::handle_memory`], or never if that host is gone.
    Memory {
        /// Whose memory.
        to: MemberId,
        /// What.
        request: memory::Request,
    },
    /// This instance is decided. Instances come in order, each once.
    Decide {
        /// Which.
        instance: Instance,
        /// On what; never empty.
        batch: Batch,
    },
    /// `to` lags behind all that the engine has kept: it needs the state that everything through [`Engine::decided_through`] makes, and
    /// its engine is then told by [`Engine::handle_state`]. Repeated, now and then, while it lags.
    State {
        /// Who.
        to: MemberId,
    },
    /// The engine stopped safely.
    Halt(Halted),
}

/// One-sided operations: what X-verbs, RDMA or a test's memory can do (U2).
pub mod memory {
    use crate::group::Value;

    /// Which answer belongs to which request: growing, chosen by the engine.
    pub type RequestId = u64;

    /// An operation on one member's memory: 8-byte words by number, all 0 at first, and regions of bytes.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum Request {
        /// The word's value.
        Read {
            /// Which request.
            id: RequestId,
            /// Which word.
            word: u64,
        },
        /// If the word is `expected`, it becomes `new`; the answer is what it was.
        Cas {
            /// Which request.
            id: RequestId,
            /// Which word.
            word: u64,
            /// What it is believed to be.
            expected: u64,
            /// What it is to be.
            new: u64,
        },
        /// Puts bytes into a region that nobody else writes.
        Write {
            /// Which request.
            id: RequestId,
            /// Which region.
            region: u64,
            /// What.
            bytes: Value,
        },
        /// The bytes of a region.
        Fetch {
            /// Which request.
            id: RequestId,
            /// Which region.
            region: u64,
        },
    }

    /// What came back.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum Answer {
        /// To `Read` and `Cas`: the word before.
        Word(u64),
        /// To `Write`.
        Written,
        /// To `Fetch`; nothing if it was never written.
        Bytes(Option<Value>),
    }
}

/// One interface over every engine. `M` is its message.
///
/// What is refused leaves the state as it was, and is counted. After every call, drain [`Engine::poll_action`].
pub trait Engine<M> {
    /// Which engine this is.
    fn kind(&self) -> Kind;

    /// Hands in an entry of this member (or forwarded to it) for some instance to come. It may be decided more than once if it is handed in
    /// more than once, also at several members: [`Entry::id`] tells. Entries handed in at one member are decided in that order, and those that
    /// wait are decided together. An entry that is not [`crate::group::Body::Value`] is a *barrier*: alone in its batch, and no later instance
    /// is begun before it was decided and [`Engine::set_members`] was called.
    ///
    /// # Errors
    /// [`Refused::Busy`] when as much waits as may wait, [`Refused::TooLarge`], [`Refused::Halted`].
    fn propose(&mut self, now_ns: u64, entry: Entry) -> Result<(), Refused>;

    /// Over the reliable link from `from`.
    ///
    /// # Errors
    /// See [`Refused`].
    fn handle_message(&mut self, now_ns: u64, from: MemberId, message: M) -> Result<(), Refused>;

    /// A copy of a broadcast that came by `path`.
    ///
    /// # Errors
    /// See [`Refused`]; [`Refused::Malformed`] for engines that do not broadcast copies.
    fn handle_copy(&mut self, _now_ns: u64, _from: MemberId, _path: usize, _message: M) -> Result<(), Refused> {
        Err(self.refuse(Refused::Malformed))
    }

    /// All copies of the broadcast that was taken last have left, on all paths. Only for engines
    /// that are set to be told.
    fn handle_copies_sent(&mut self, _now_ns: u64) {}

    /// On some path it could not leave to anybody, so that nobody has it whole.
    fn handle_copies_void(&mut self, now_ns: u64) {
        self.handle_network_fault(now_ns);
    }

    /// What rides on the heartbeat that is about to leave on all paths, and is delivered to all others or to nobody. Called once a period.
    fn poll_piggyback(&mut self, _now_ns: u64) -> Option<M> {
        None
    }

    /// The heartbeat with the last piggyback has left on all paths: only now may its sender rely on it.
    fn handle_piggyback_sent(&mut self, _now_ns: u64) {}

    /// The first copy of a piggyback of `from`.
    ///
    /// # Errors
    /// See [`Refused`]; [`Refused::Malformed`] for engines that do not use piggybacks.
    fn handle_piggyback(&mut self, _now_ns: u64, _from: MemberId, _message: M) -> Result<(), Refused> {
        Err(self.refuse(Refused::Malformed))
    }

    /// The answer of `from`'s memory.
    ///
    /// # Errors
    /// See [`Refused`]; [`Refused::Malformed`] for an answer to nothing, or for engines that do not use memory.
    fn handle_memory(
        &mut self,
        _now_ns: u64,
        _from: MemberId,
        _id: memory::RequestId,
        _answer: memory::Answer,
    ) -> Result<(), Refused> {
        Err(self.refuse(Refused::Malformed))
    }

    /// `member` has crashed. For engines that [need accuracy](Kind::needs_accuracy) this must be true, and for HUC everything that `member`
    /// piggybacked must have been handed in before; for the others it is a hint.
    ///
    /// # Errors
    /// [`Refused::UnknownMember`], [`Refused::Duplicate`], [`Refused::Halted`].
    fn handle_crash(&mut self, now_ns: u64, member: MemberId) -> Result<(), Refused>;

    /// A member that was reported crashed is back in sight: a hint was wrong. Only for engines that take hints.
    fn handle_alive(&mut self, _now_ns: u64, _member: MemberId) {}

    /// Copies are missing, or the contract is broken (N4, B4).
    fn handle_network_fault(&mut self, _now_ns: u64) {}

    /// When [`Engine::handle_timeout`] wants to be called.
    fn poll_timeout(&self) -> Option<u64> {
        None
    }

    /// The time has come.
    fn handle_timeout(&mut self, _now_ns: u64) {}

    /// From the instance `from` on, these are the members. Called when the instance before was decided, before its successor can be.
    ///
    /// # Errors
    /// [`Refused::Malformed`] where nothing waits for that, or for members that cannot be; [`Refused::Halted`].
    fn set_members(&mut self, now_ns: u64, from: Instance, members: MemberSet) -> Result<(), Refused>;

    /// This member has from `from` the state behind the instance `through`, with the members then and what [`Engine::start_point`] said there: it
    /// goes on from it, and what it was handed in before is handed in again. Only where engines ask for it by [`Action::State`], or decide without those who lag.
    ///
    /// # Errors
    /// [`Refused::Duplicate`] if it does not need that; [`Refused::NotMember`], [`Refused::NotLeader`], [`Refused::Malformed`], [`Refused::Halted`].
    fn handle_state(
        &mut self,
        _now_ns: u64,
        _from: MemberId,
        _through: Instance,
        _members: &MemberSet,
        _start: Option<&[u8]>,
    ) -> Result<(), Refused> {
        Err(self.refuse(Refused::Duplicate))
    }

    /// As [`Engine::set_members`], but for a member that is not among them any more: whatever it still owes to the others, it pays.
    fn set_leaving(&mut self, _now_ns: u64, _from: Instance, _members: MemberSet) {}

    /// Whether the others can do without this member, once they all know that it left.
    fn may_leave(&self) -> bool {
        true
    }

    /// Where voters follow the members at some distance: the sets of which a majority each must live now. None where the members themselves are meant.
    fn quorums(&self) -> Vec<MemberSet> {
        Vec::new()
    }

    /// What an engine of a member that begins behind [`Engine::decided_through`] must know, if that and the members are not enough.
    fn start_point(&self) -> Option<Value> {
        None
    }

    /// What is to be done next.
    fn poll_action(&mut self) -> Option<Action<M>>;

    /// The last instance that was decided here.
    fn decided_through(&self) -> Instance;

    /// Every member alive has decided this instance and all before: nobody will ask for them again.
    fn stable_through(&self) -> Instance;

    /// Whom this member believes to lead.
    fn leader(&self) -> Option<MemberId>;

    /// Why it stopped, if it did.
    fn halted(&self) -> Option<Halted>;

    /// What it refused.
    fn refusals(&self) -> &Refusals;

    /// Counts what was refused in its name, before it saw it, and hands it back.
    fn refuse(&mut self, why: Refused) -> Refused {
        why
    }

    /// Panics if its state is one that it must never be in. Called by tests and simulators after every step.
    fn invariants(&self);
}
