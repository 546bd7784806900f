//! One-sided Paxos: acceptors are words of memory, phases are compare-and-swaps (uKharon §5, App. A, Alg. 3–5).
//!
//! # In one head
//! Each member's memory holds one [`Word`] per slot, and takes no part: who wants to prepare or accept *predicts* the word and swaps it for what Paxos
//! would have made of it. A right prediction is an executed Paxos RPC (Lemma A.1); a wrong one changes nothing and says how the word really is. The
//! values are elsewhere in the same memories, written before the swap that names them. A stable leader holds one slot prepared
//! ahead, so a decision is one swap at a majority.
//!
//! # What it rests on
//! * A majority of *memories* answers, for liveness. Processes may be dead meanwhile, and memories may outlive them: who is suspected is asked all the same.
//! * Operations of one member on one memory are carried out in order. (Safety needs it for WRITE before CAS; optimistic predictions only for speed.)
//! * Words are 0 at first, and a member id is one life: no proposal number is used by two.
//! * No timing, and no detector: crashes are hints, and choose who proposes. False ones cost aborts.
//!
//! # Where the paper's pseudo-code is wrong or silent
//! * **The bytes of an adopted value** (§5.3.1: "a coordinator cannot have accepted an identifier without knowing its associated membership").
//!   Not if it was *adopted*: C1 writes its bytes to A1 only and crashes, C2 prepares A1 and A2, adopts the identifier C1, and accepts it at
//!   A2 and A3, where C1's bytes never came; A1 crashes; a majority is alive and what was decided is lost. Here who adopts
//!   fetches the bytes first, writes them into its **own** region everywhere, and names that one. So a word's value always belongs to the owner of its
//!   accepted proposal, equal numbers mean equal bytes, and who accepted has them. Values of one proposer in one slot lie in different regions,
//!   or else a reader of an older acceptance would find the bytes of a younger one.
//! * **Alg. 4 lines 16–17, 22–23 and `abort` in 35, 48.** "Wait for a majority to return": a failed CAS does not return, it aborts, and does not say
//!   what. If only that call ends, A1 says yes, A2's CAS failed, A3 has crashed: the proposer waits for ever. Waiting
//!   until a majority has *refused* hangs the same way. Here a majority of *answers*, of which one is a refusal, ends the attempt.
//! * **Alg. 5 line 26 aborts on any failed CAS.** If the word was merely not as predicted and its `min_proposal` is below ours, the same number is tried
//!   again with what was read, as Alg. 4 would after `fetch_state`: that number has not been used at this acceptor. A wrong prediction costs one round trip
//!   and no back-off. And where line 26 does not abort because the failed answer comes late, lines 31–33 must not swap a word with a *higher*
//!   `min_proposal` for ours: the comparison of Alg. 4 line 39 is missing in Alg. 5 and is made here.
//! * **Alg. 5 lines 22 and 37: `reads[p] ∈ {predicted[p], ⊥}`** takes what has not been answered for done. That is safe for the *next expected state* (it is
//!   compared), but line 27 then adopts from predictions of acceptors that never promised, and late answers are lost: a slow acceptor's
//!   prediction stays wrong, until an abort corrects it (one of the "at most n runs" of App. A.5). Here only acceptors whose CAS succeeded count for the choice of the value, and late
//!   answers correct the prediction.
//! * **Alg. 5 lines 9–12 and pre-preparation.** `propose` assigns `proposed_value` *before* `prepare` may overwrite it. Whoever prepares ahead and then
//!   runs lines 10 and 12 proposes its own value over an adopted one: C1 decided v1; C2 pre-prepares and adopts v1; then it is handed v2, and line 10
//!   drops v1. Here what phase 1 found goes before what we want, whenever it was found.
//! * **App. A.6** forgets compare-and-swaps on their way: see `two_sided.rs`, where the word is frozen.
//! * **Alg. 3** has `n` for `proposal` (lines 30, 31, 35).
//!
//! # Leaders
//! The lowest member that is not suspected. It proposes what is handed in there or forwarded; others forward to it, and again to its successor. Entries
//! forwarded carry places in a run, so that one refused for want of room keeps those behind it out until all are sent again: the order of a member's entries
//! holds. Two leaders contend, abort, and wait for a random time that doubles.
//!
//! # Who learns what
//! The leader tells decisions with their bytes. A member that hears of later ones, or that somebody is further, reads the words of the slot (a majority with one accepted
//! proposal decided) and asks the others after [`Config::learn_ns`]. A new leader asks at once, and says how far it is when it has caught up.
//!
//! # Regions
//! A region is used again `window` slots later, and no slot is begun that is further ahead of [`Engine::stable_through`] than that. *Stable* counts all
//! members, suspected ones too: hints may be false. So a crashed member that nobody removes stops the group after `window` instances at the latest.
//! Regions carry their slot, so that even a wrong claim of stability gives a reader no wrong bytes, only none.
//!
//! # Barriers
//! Behind a join, leave or switch nothing is begun before [`Engine::set_members`]. A slot prepared ahead when *another's* barrier is decided is dropped:
//! proposal numbers belong to other owners under another membership. Its promises stay in the words and cost a misprediction.

use super::memory::{Answer, Request, RequestId};
use super::{Action, Engine, Halted, Instance, Kind, batch};
use crate::group::{Batch, Entry, EntryId, MAX_MEMBERS, MemberId, MemberSet, Refusals, Refused};
use slot::{Lane, Prior, Slot, Stage, Vote};
use std::collections::btree_map::Entry::Vacant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use two_sided::{Rpc, TwoSided};

mod alike;
mod bytes;
mod message;
mod slot;
mod two_sided;
mod word;

#[cfg(test)]
mod tests;

#[doc(hidden)]
pub use alike::Apart;
pub use bytes::{BATCH_MAX, decode, encode};
pub use message::{Ballot, Message};
pub use word::{FROZEN, ValueId, Word};

/// Decisions told at once to a member that asks.
const TOLD_AT_ONCE: usize = 64;

/// Questions by message that wait for the own word to be frozen, per member.
const QUEUED_PER_MEMBER: usize = 4;

/// No proposer counts that far.
const BALLOT_MAX: Ballot = 1 << 48;

/// Waiting times double this many times at most.
const DOUBLINGS_MAX: u32 = 10;

/// Settings of a [`Paxos`]. `two_sided_from` and `window` must be the same at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// This member.
    pub me: MemberId,
    /// Where its random numbers begin. Members should have different ones.
    pub seed: u64,
    /// Proposals from this number on go by message (App. A.6); as late as possible (2^16 − |Π|) if nothing is said.
    pub two_sided_from: Option<u16>,
    /// Most that the first back-off takes (ns); it doubles with every abort in a row.
    pub back_off_ns: u64,
    /// How long bytes or answers by message are awaited before another attempt (ns); doubles.
    pub patience_ns: u64,
    /// How long a member that knows itself behind reads words before it asks others; how long an idle leader keeps it for itself that everybody
    /// is through (ns).
    pub learn_ns: u64,
    /// How long entries handed to the leader may show no progress before they are handed to it again (ns).
    pub resend_ns: u64,
    /// A region is used again for the slot that is so much later, so none is begun that is further ahead of what is stable.
    pub window: u64,
    /// Decisions kept that came too early.
    pub ahead_max: u64,
    /// Entries of this member that may wait; of the others together, too.
    pub waiting_max: usize,
    /// Entries decided together.
    pub batch_entries: usize,
    /// Bytes of values decided together (one larger value alone is allowed).
    pub batch_bytes: usize,
    /// Operations on one memory that may be without an answer: a crashed host costs no more than that.
    pub in_flight_max: usize,
}

impl Config {
    /// Defaults.
    #[must_use]
    pub const fn new(me: MemberId, seed: u64) -> Self {
        Self {
            me,
            seed,
            two_sided_from: None,
            back_off_ns: 20_000,
            patience_ns: 200_000,
            learn_ns: 200_000,
            resend_ns: 10_000_000,
            window: 1 << 16,
            ahead_max: 1024,
            waiting_max: 4096,
            batch_entries: 256,
            batch_bytes: 1 << 20,
            in_flight_max: 256,
        }
    }
}

/// Running totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stats {
    /// Phase 1, begun.
    pub prepares: u64,
    /// Phase 2, begun.
    pub accepts: u64,
    /// Attempts that a higher proposal ended.
    pub aborts: u64,
    /// Words that were not as predicted, and asked again with the same number.
    pub mispredictions: u64,
    /// Attempts by message.
    pub two_sided: u64,
    /// Decisions of our own attempts.
    pub decided: u64,
    /// Decisions learnt from memory.
    pub read: u64,
}

/// An entry that is to be decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    entry: Entry,
    /// Handed in here.
    mine: bool,
    /// The leader has it, as far as one can know.
    told: bool,
}

/// What an operation on memory was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Prepare { ballot: Ballot, expected: Word, new: Word },
    Accept { ballot: Ballot, expected: Word, new: Word },
    Write,
    Fetch { ballot: Ballot, id: ValueId },
    Read,
    LearnFetch { id: ValueId },
    Freeze { expected: Word },
    OwnFetch { accepted: u16, id: ValueId },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Operation {
    to: MemberId,
    slot: Instance,
    what: What,
}

/// Reading a slot that others may have decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Learning {
    slot: Instance,
    words: BTreeMap<MemberId, Word>,
    fetching: bool,
}

/// The machine of one member: proposer, two-sided acceptor and learner. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Paxos {
    config: Config,
    random: u64,
    members: MemberSet,
    suspected: MemberSet,
    /// A barrier was decided: nothing more before [`Engine::set_members`].
    barrier: bool,
    next_members: Option<(Instance, MemberSet)>,
    /// Whoever led before, for the prediction of what it prepared.
    led_before: Option<MemberId>,

    waiting: VecDeque<Waiting>,
    waiting_mine: usize,
    waiting_ids: BTreeSet<EntryId>,
    run: u64,
    place: u64,
    resend_due_ns: Option<u64>,
    /// Run and next place of every member's forwarded entries.
    runs: BTreeMap<MemberId, (u64, u64)>,

    /// The slot to be decided next, and the one prepared ahead.
    slots: BTreeMap<Instance, Slot>,
    two_sided: BTreeMap<Instance, TwoSided>,
    pending: BTreeMap<RequestId, Operation>,
    in_flight: BTreeMap<MemberId, usize>,
    next_request: RequestId,
    /// Messages to ourselves.
    local: VecDeque<Message>,

    /// Where this engine began; it cannot know who else had come that far.
    base: Instance,
    decided: Instance,
    /// A state stood for some instances through this one, which are not in `history`.
    given: Instance,
    /// Decided, but the slots before are not.
    learned: BTreeMap<Instance, Batch>,
    /// Decided, and not stable.
    history: BTreeMap<Instance, Batch>,
    recent_ids: BTreeSet<EntryId>,
    stable: Instance,
    told_stable: Instance,
    tell_due_ns: Option<u64>,
    /// How far the others are.
    reached: BTreeMap<MemberId, Instance>,
    /// Behind which instance they asked for what this member has not got, and how often.
    in_vain: BTreeMap<MemberId, (Instance, u32)>,

    learning: Option<Learning>,
    /// Somebody decided through this one.
    behind: Instance,
    learn_due_ns: Option<u64>,
    learn_tries: u32,

    halted: Option<Halted>,
    refusals: Refusals,
    stats: Stats,
    actions: VecDeque<Action<Message>>,
}

impl Paxos {
    /// A member that has (or was given) everything through the instance `decided`. `members` are those from the next one on.
    #[must_use]
    pub fn new(config: Config, members: MemberSet, decided: Instance) -> Self {
        let mut paxos = Self {
            config: Config { window: config.window.max(2), in_flight_max: config.in_flight_max.max(8), ..config },
            random: config.seed ^ u64::from(config.me.0) << 48,
            members,
            suspected: MemberSet::new(),
            barrier: false,
            next_members: None,
            led_before: None,
            waiting: VecDeque::new(),
            waiting_mine: 0,
            waiting_ids: BTreeSet::new(),
            run: 1,
            place: 0,
            resend_due_ns: None,
            runs: BTreeMap::new(),
            slots: BTreeMap::new(),
            two_sided: BTreeMap::new(),
            pending: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_request: 1,
            local: VecDeque::new(),
            base: decided,
            decided,
            given: 0,
            learned: BTreeMap::new(),
            history: BTreeMap::new(),
            recent_ids: BTreeSet::new(),
            stable: decided,
            told_stable: decided,
            tell_due_ns: None,
            reached: BTreeMap::new(),
            in_vain: BTreeMap::new(),
            learning: None,
            behind: decided,
            learn_due_ns: None,
            learn_tries: 0,
            halted: None,
            refusals: Refusals::default(),
            stats: Stats::default(),
            actions: VecDeque::new(),
        };
        paxos.reached = paxos.others().map(|other| (other, decided)).collect();
        if !paxos.members.contains(config.me) {
            paxos.halt(Halted::Left);
        } else if decided > 0 {
            paxos.tell(&Message::Progress { decided, stable: 0, ask: true });
        }
        paxos.settle(0);
        paxos
    }

    /// The first proposal number that goes by message.
    #[must_use]
    pub fn two_sided_from(&self) -> Ballot {
        let latest = (1 << 16) - self.members.len().max(1) as u64;
        self.config.two_sided_from.map_or(latest, |from| u64::from(from).clamp(1, latest))
    }

    /// What it did.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The members, as far as it knows.
    #[must_use]
    pub fn members(&self) -> &MemberSet {
        &self.members
    }

    // Who is who.

    fn others(&self) -> impl Iterator<Item = MemberId> + '_ {
        let me = self.config.me;
        self.members.iter().filter(move |member| *member != me)
    }

    fn lane_of(&self, member: MemberId) -> Option<usize> {
        self.members.iter().position(|other| other == member)
    }

    fn owner(&self, ballot: Ballot) -> Option<MemberId> {
        let place = ballot.checked_sub(1)? % self.members.len().max(1) as u64;
        self.members.iter().nth(place as usize)
    }

    /// The lowest number of ours above `floor`.
    fn number_above(&self, floor: Ballot) -> Ballot {
        let first = self.lane_of(self.config.me).map_or(0, |lane| lane as u64) + 1;
        let step = self.members.len().max(1) as u64;
        if floor < first { first } else { first + ((floor - first) / step + 1) * step }
    }

    fn leads(&self) -> bool {
        self.halted.is_none() && !self.barrier && self.leader() == Some(self.config.me)
    }

    /// splitmix64.
    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below.max(1)
    }

    fn doubled(base_ns: u64, times: u32) -> u64 {
        base_ns.max(1).saturating_mul(1 << times.min(DOUBLINGS_MAX))
    }

    // What goes out.

    fn send(&mut self, to: MemberId, message: Message) {
        if to == self.config.me {
            self.local.push_back(message);
        } else {
            self.actions.push_back(Action::Send { to, message });
        }
    }

    fn tell(&mut self, message: &Message) {
        for to in self.others().collect::<Vec<_>>() {
            self.send(to, message.clone());
        }
    }

    fn has_room(&self, to: MemberId, operations: usize) -> bool {
        self.in_flight.get(&to).copied().unwrap_or(0) + operations <= self.config.in_flight_max
    }

    fn operate(&mut self, to: MemberId, slot: Instance, what: What, request: impl FnOnce(RequestId) -> Request) -> RequestId {
        let id = self.next_request;
        self.next_request += 1;
        self.pending.insert(id, Operation { to, slot, what });
        *self.in_flight.entry(to).or_default() += 1;
        self.actions.push_back(Action::Memory { to, request: request(id) });
        id
    }

    fn halt(&mut self, why: Halted) {
        if self.halted.is_none() {
            self.halted = Some(why);
            self.actions.push_back(Action::Halt(why));
        }
    }

    // The proposer.

    /// Whatever can be begun now.
    fn pump(&mut self, now_ns: u64) {
        if self.halted.is_some() || self.barrier {
            return;
        }
        let next = self.decided + 1;
        if self.leads() && next <= self.stable + self.config.window {
            self.work_on(now_ns, next);
            let ahead = self.slots.get(&next).is_some_and(|slot| {
                slot.stage == Stage::Accepting && slot.value.as_ref().is_some_and(|value| !bytes::is_barrier(&value[0]))
            });
            // "The leader uses the time spent waiting for the Accept phase to complete on a slot to run the Prepare phase for the next one."
            if ahead && next < self.stable + self.config.window {
                self.prepare_ahead(now_ns, next + 1);
            }
        }
        for instance in self.slots.keys().copied().collect::<Vec<_>>() {
            self.ask_lanes(instance);
            // A word known to be too high is a No without a question.
            self.evaluate(now_ns, instance);
        }
    }

    fn work_on(&mut self, now_ns: u64, instance: Instance) {
        let mut slot = match self.slots.remove(&instance) {
            Some(slot) => slot,
            None => Slot::new(self.members.len(), self.prediction()),
        };
        self.led_before = None;
        if slot.stage == Stage::Idle {
            self.begin_prepare(now_ns, &mut slot);
        }
        if slot.stage == Stage::Prepared {
            if slot.value.is_none() && slot.mine.is_none() && !self.waiting.is_empty() {
                slot.mine = Some(self.next_batch());
            }
            // What phase 1 found goes before what we want, whenever it was found: see the module on lines 9–11.
            if let Some(value) = slot.value.clone().or_else(|| slot.mine.clone()) {
                slot.value = Some(value);
                self.begin_accept(now_ns, &mut slot);
            }
        }
        self.slots.insert(instance, slot);
    }

    fn prepare_ahead(&mut self, now_ns: u64, instance: Instance) {
        let mut slot = self.slots.remove(&instance).unwrap_or_else(|| Slot::new(self.members.len(), Word::default()));
        if slot.stage == Stage::Idle && self.next_ballot(&slot) < self.two_sided_from() {
            self.begin_prepare(now_ns, &mut slot);
        }
        self.slots.insert(instance, slot);
    }

    /// "The new leader predicts that the last slot had been prepared by the previous leader": with its first number.
    fn prediction(&self) -> Word {
        let lane = self.led_before.filter(|before| *before != self.config.me).and_then(|before| self.lane_of(before));
        match lane {
            Some(lane) if lane as u64 + 1 < self.two_sided_from() => Word::prepared(lane as u16 + 1),
            _ => Word::default(),
        }
    }

    /// Entries that are decided together.
    fn next_batch(&self) -> Batch {
        let (mut batch, mut room) = (Vec::new(), self.config.batch_bytes);
        for Waiting { entry, .. } in &self.waiting {
            let size = match &entry.body {
                crate::group::Body::Value(value) => value.len(),
                _ => 0,
            };
            let full = batch.len() >= self.config.batch_entries.clamp(1, BATCH_MAX) || size > room;
            if !batch.is_empty() && (full || bytes::is_barrier(entry)) {
                break;
            }
            batch.push(entry.clone());
            room = room.saturating_sub(size);
            if bytes::is_barrier(entry) {
                break;
            }
        }
        batch.into()
    }

    /// "The `proposal` variable can be increased upfront to [a] value higher than any predicted remote `min_proposal`" (App. A.5).
    fn next_ballot(&self, slot: &Slot) -> Ballot {
        let two_sided_from = self.two_sided_from();
        let known = |lane: &Lane| {
            let by_word = if lane.predicted.is_frozen() { two_sided_from - 1 } else { u64::from(lane.predicted.min_proposal) };
            by_word.max(lane.promised)
        };
        self.number_above(slot.lanes.iter().map(known).max().unwrap_or(0).max(slot.ballot))
    }

    fn begin_prepare(&mut self, now_ns: u64, slot: &mut Slot) {
        slot.ballot = self.next_ballot(slot);
        slot.value = None;
        slot.due_ns = None;
        for lane in &mut slot.lanes {
            lane.prior = Prior::Nothing;
        }
        slot.enter(Stage::Preparing);
        self.stats.prepares += 1;
        if slot.ballot >= self.two_sided_from() {
            self.stats.two_sided += 1;
            slot.due_ns = Some(now_ns.saturating_add(Self::doubled(self.config.patience_ns, slot.aborts)));
        }
    }

    fn begin_accept(&mut self, now_ns: u64, slot: &mut Slot) {
        slot.enter(Stage::Accepting);
        slot.due_ns = (slot.ballot >= self.two_sided_from())
            .then(|| now_ns.saturating_add(Self::doubled(self.config.patience_ns, slot.aborts)));
        if let Some(value) = &slot.value
            && slot.ballot < self.two_sided_from()
            && !slot.variants.contains(value)
        {
            slot.variants.push(value.clone());
        }
        self.stats.accepts += 1;
    }

    /// Asks every acceptor that was not asked in this stage.
    fn ask_lanes(&mut self, instance: Instance) {
        let Some(mut slot) = self.slots.remove(&instance) else { return };
        let two_sided = slot.ballot >= self.two_sided_from();
        if matches!(slot.stage, Stage::Preparing | Stage::Accepting) {
            for (lane, member) in self.members.clone().iter().enumerate() {
                if slot.lanes[lane].vote != Vote::Unasked {
                    continue;
                }
                match (slot.stage, two_sided) {
                    (Stage::Preparing, false) => self.cas_prepare(instance, &mut slot, lane, member),
                    (_, false) => self.cas_accept(instance, &mut slot, lane, member),
                    (Stage::Preparing, true) => {
                        slot.lanes[lane].vote = Vote::Asked;
                        self.send(member, Message::Prepare { instance, ballot: slot.ballot });
                    }
                    (_, true) => {
                        if let Some(batch) = slot.value.clone() {
                            slot.lanes[lane].vote = Vote::Asked;
                            self.send(member, Message::Accept { instance, ballot: slot.ballot, batch });
                        }
                    }
                }
            }
        }
        self.slots.insert(instance, slot);
    }

    /// Alg. 5 lines 17–19.
    fn cas_prepare(&mut self, instance: Instance, slot: &mut Slot, lane: usize, member: MemberId) {
        let expected = slot.lanes[lane].predicted;
        if u64::from(expected.min_proposal) >= slot.ballot {
            slot.lanes[lane].vote = Vote::No;
        } else if self.has_room(member, 1) {
            let new = Word { min_proposal: slot.ballot as u16, ..expected };
            let what = What::Prepare { ballot: slot.ballot, expected, new };
            self.cas(instance, slot, lane, member, what, expected, new);
        }
    }

    /// Alg. 5 lines 31–33, with the comparison of Alg. 4 line 39, and the bytes before.
    fn cas_accept(&mut self, instance: Instance, slot: &mut Slot, lane: usize, member: MemberId) {
        let expected = slot.lanes[lane].predicted;
        let Some(variant) = slot.value.as_ref().and_then(|value| slot.variants.iter().position(|other| other == value)) else {
            return;
        };
        if u64::from(expected.min_proposal) > slot.ballot {
            slot.lanes[lane].vote = Vote::No;
        } else if self.has_room(member, 2) {
            let id = ValueId { proposer: self.config.me, variant: variant as u16 };
            if slot.lanes[lane].written & 1 << variant == 0 {
                slot.lanes[lane].written |= 1 << variant;
                let region = id.region(instance, self.config.window);
                let bytes = encode(instance, id, &slot.variants[variant]);
                self.operate(member, instance, What::Write, |id| Request::Write { id, region, bytes });
            }
            let number = slot.ballot as u16;
            let new = Word { min_proposal: number, accepted_proposal: number, accepted_value: id.to_bits() };
            let what = What::Accept { ballot: slot.ballot, expected, new };
            self.cas(instance, slot, lane, member, what, expected, new);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn cas(&mut self, instance: Instance, slot: &mut Slot, lane: usize, to: MemberId, what: What, expected: Word, new: Word) {
        let id = self.operate(to, instance, what, |id| Request::Cas {
            id,
            word: instance,
            expected: expected.to_bits(),
            new: new.to_bits(),
        });
        let lane = &mut slot.lanes[lane];
        (lane.last, lane.vote) = (Some(id), Vote::Asked);
        // Optimistic, as in Alg. 5 lines 22 and 38: operations of one member on one memory do not overtake each other.
        lane.predicted = new;
    }

    /// Whether a majority said yes; or a majority answered, and not all of them yes.
    fn evaluate(&mut self, now_ns: u64, instance: Instance) {
        let Some(mut slot) = self.slots.remove(&instance) else { return };
        let majority = self.members.majority();
        let (yes, no) = (slot.votes(Vote::Yes), slot.votes(Vote::No));
        let mut decision = None;
        match slot.stage {
            Stage::Preparing if yes >= majority => self.choose(now_ns, instance, &mut slot),
            Stage::Accepting if yes >= majority => decision = slot.value.clone(),
            // Others may have crashed: to wait until a majority said no would be to wait for ever.
            Stage::Preparing | Stage::Accepting if no > 0 && yes + no >= majority => {
                self.stats.aborts += 1;
                let limit_ns = Self::doubled(self.config.back_off_ns, slot.aborts);
                slot.aborts += 1;
                slot.due_ns = Some(now_ns.saturating_add(1 + self.draw(limit_ns)));
                slot.enter(Stage::BackOff);
            }
            _ => {}
        }
        self.slots.insert(instance, slot);
        if let Some(batch) = decision {
            self.stats.decided += 1;
            self.told_stable = self.stable;
            self.tell(&Message::Decided { instance, batch: batch.clone(), stable: self.claim() });
            self.learned.insert(instance, batch);
            self.drain(now_ns);
        }
    }

    /// Phase 1 is done: the value of the highest proposal among those who promised.
    fn choose(&mut self, now_ns: u64, instance: Instance, slot: &mut Slot) {
        slot.due_ns = None;
        let promised = || slot.lanes.iter().filter(|lane| lane.vote == Vote::Yes);
        let highest = promised().map(|lane| lane.prior.ballot()).max().unwrap_or(0);
        let prior = promised().map(|lane| &lane.prior).find(|prior| prior.ballot() == highest).cloned();
        match prior {
            None | Some(Prior::Nothing) => {
                slot.stage = Stage::Prepared;
                return;
            }
            Some(Prior::Is(_, batch)) => slot.value = Some(batch),
            Some(Prior::At(_, id)) if id.proposer == self.config.me => {
                slot.value = slot.variants.get(usize::from(id.variant)).cloned();
            }
            Some(Prior::At(_, id)) => {
                // Its proposer wrote the bytes there before it was accepted there; nobody else needs to have them.
                slot.stage = Stage::Fetching;
                slot.due_ns = Some(now_ns.saturating_add(Self::doubled(self.config.patience_ns, slot.aborts)));
                let region = id.region(instance, self.config.window);
                let what = What::Fetch { ballot: slot.ballot, id };
                let lanes: Vec<bool> =
                    slot.lanes.iter().map(|lane| lane.vote == Vote::Yes && lane.prior.ballot() == highest).collect();
                for (member, has) in self.members.clone().iter().zip(lanes) {
                    if has {
                        self.operate(member, instance, what, |id| Request::Fetch { id, region });
                    }
                }
                return;
            }
        }
        slot.stage = Stage::Prepared;
    }

    // Decisions.

    /// Hands out what is decided, in order.
    fn drain(&mut self, now_ns: u64) {
        let before = self.decided;
        while !self.barrier && self.halted.is_none() {
            let Some(batch) = self.learned.remove(&(self.decided + 1)) else { break };
            self.decided += 1;
            self.slots.remove(&self.decided);
            self.two_sided.remove(&self.decided);
            let decided: BTreeSet<EntryId> = batch.iter().map(|entry| entry.id).collect();
            self.waiting.retain(|waiting| !decided.contains(&waiting.entry.id));
            for id in decided {
                self.waiting_ids.remove(&id);
                self.recent_ids.insert(id);
            }
            self.barrier = bytes::is_barrier(&batch[0]);
            self.history.insert(self.decided, batch.clone());
            self.actions.push_back(Action::Decide { instance: self.decided, batch });
            if self.barrier {
                self.slots.clear();
                self.two_sided.clear();
                self.take_members(now_ns);
            }
        }
        if self.decided > before {
            self.waiting_mine = self.waiting.iter().filter(|waiting| waiting.mine).count();
            self.resend_due_ns = None;
            self.learn_tries = 0;
            if self.learning.as_ref().is_some_and(|learning| learning.slot <= self.decided) {
                self.learning = None;
            }
            self.settle_stable(now_ns, 0);
        }
        if self.behind.max(self.learned.keys().next_back().copied().unwrap_or(0)) <= self.decided {
            self.learn_due_ns = None;
        } else {
            self.learn(now_ns);
        }
    }

    /// A decision that was another's. Who decided it may have died before it told everybody, so a leader that catches up says how far it is: whoever
    /// is behind then reads on.
    fn learn_decision(&mut self, now_ns: u64, instance: Instance, batch: Batch) {
        let before = self.decided;
        self.learned.insert(instance, batch);
        self.drain(now_ns);
        if self.decided > before && self.leader() == Some(self.config.me) {
            self.tell(&Message::Progress { decided: self.decided, stable: self.claim(), ask: false });
        }
    }

    /// What may be told to others about what is stable.
    fn claim(&self) -> Instance {
        if self.stable > self.base { self.stable } else { 0 }
    }

    fn settle_stable(&mut self, now_ns: u64, claimed: Instance) {
        let everyone = self.others().map(|other| self.reached.get(&other).copied().unwrap_or(0)).min().unwrap_or(self.decided);
        let stable = everyone.max(claimed).min(self.decided);
        if stable <= self.stable {
            return;
        }
        self.stable = stable;
        let kept = self.history.split_off(&(stable + 1));
        for batch in std::mem::replace(&mut self.history, kept).into_values() {
            for entry in batch.iter() {
                self.recent_ids.remove(&entry.id);
            }
        }
        if self.tell_due_ns.is_none() && self.leader() == Some(self.config.me) && self.members.len() > 1 {
            self.tell_due_ns = Some(now_ns.saturating_add(self.config.learn_ns));
        }
    }

    // The learner.

    /// Reads the words of the next slot: others may have decided it.
    fn learn(&mut self, now_ns: u64) {
        if self.barrier || self.halted.is_some() {
            return;
        }
        let slot = self.decided + 1;
        if self.learning.as_ref().is_none_or(|learning| learning.slot != slot) {
            self.learning = Some(Learning { slot, words: BTreeMap::new(), fetching: false });
            for member in self.members.clone().iter() {
                if self.has_room(member, 1) {
                    self.operate(member, slot, What::Read, |id| Request::Read { id, word: slot });
                }
            }
        }
        if self.learn_due_ns.is_none() && self.behind.max(self.learned.keys().next_back().copied().unwrap_or(0)) > self.decided {
            self.learn_due_ns = Some(now_ns.saturating_add(Self::doubled(self.config.learn_ns, self.learn_tries)));
        }
    }

    /// A majority that accepted the same proposal decided.
    fn learn_from_words(&mut self, now_ns: u64) {
        let majority = self.members.majority();
        let Some(learning) = &mut self.learning else { return };
        let accepted = |number: u16| learning.words.values().filter(|word| word.accepted_proposal == number).count();
        let found =
            learning.words.values().find(|word| word.accepted_proposal != 0 && accepted(word.accepted_proposal) >= majority);
        let Some(word) = found.copied().filter(|_| !learning.fetching) else { return };
        learning.fetching = true;
        let slot = learning.slot;
        self.behind = self.behind.max(slot);
        let holders: Vec<MemberId> = learning
            .words
            .iter()
            .filter(|(_, other)| other.accepted_proposal == word.accepted_proposal)
            .map(|(member, _)| *member)
            .collect();
        let id = ValueId::from_bits(word.accepted_value);
        let region = id.region(slot, self.config.window);
        for member in holders {
            self.operate(member, slot, What::LearnFetch { id }, |id| Request::Fetch { id, region });
        }
        self.learn(now_ns);
    }

    // Leaders.

    fn leader_changed(&mut self, now_ns: u64, before: Option<MemberId>) {
        let leader = self.leader();
        if leader == before || self.halted.is_some() {
            return;
        }
        self.led_before = before;
        self.run += 1;
        self.place = 0;
        for waiting in &mut self.waiting {
            waiting.told = false;
        }
        if leader == Some(self.config.me) {
            self.tell(&Message::Progress { decided: self.decided, stable: self.claim(), ask: true });
        } else {
            self.learn(now_ns);
        }
    }

    fn forward(&mut self, now_ns: u64) {
        let Some(leader) = self.leader().filter(|leader| *leader != self.config.me) else {
            self.resend_due_ns = None;
            return;
        };
        if self.halted.is_some() || self.waiting_mine == 0 {
            self.resend_due_ns = None;
            return;
        }
        let mut messages = Vec::new();
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.mine && !waiting.told) {
            waiting.told = true;
            messages.push(Message::Forward { run: self.run, place: self.place, entry: waiting.entry.clone() });
            self.place += 1;
        }
        for message in messages {
            self.send(leader, message);
        }
        if self.resend_due_ns.is_none() {
            self.resend_due_ns = Some(now_ns.saturating_add(self.config.resend_ns));
        }
    }

    fn take_members(&mut self, now_ns: u64) {
        let Some((from, members)) = self.next_members.take_if(|(from, _)| *from <= self.decided + 1) else { return };
        let before = self.leader();
        self.barrier = false;
        self.slots.clear();
        self.two_sided.clear();
        self.learning = None;
        self.members = members;
        self.suspected = self.suspected.iter().filter(|member| self.members.contains(*member)).collect();
        if !self.members.contains(self.config.me) {
            self.halt(Halted::Left);
            return;
        }
        let members = self.members.clone();
        self.reached = self
            .others()
            .map(|other| (other, self.reached.get(&other).copied().unwrap_or(0).max(from.saturating_sub(1).min(self.stable))))
            .collect();
        self.pending.retain(|_, operation| members.contains(operation.to));
        self.in_flight.retain(|member, _| members.contains(*member));
        self.runs.retain(|member, _| members.contains(*member));
        self.in_vain.retain(|member, _| members.contains(*member));
        self.leader_changed(now_ns, before);
        self.led_before = None;
        // What came from newcomers before we knew them was refused.
        self.tell(&Message::Progress { decided: self.decided, stable: self.claim(), ask: true });
        self.settle_stable(now_ns, 0);
    }

    /// After every input.
    fn settle(&mut self, now_ns: u64) {
        loop {
            self.pump(now_ns);
            let Some(message) = self.local.pop_front() else { break };
            let _ = self.take_message(now_ns, self.config.me, message);
        }
        self.forward(now_ns);
    }

    // What comes in.

    /// Whether a correct acceptor's word can be this.
    fn judge(&self, word: Word) -> Result<(), Refused> {
        let two_sided_from = self.two_sided_from();
        if word.accepted_proposal > word.min_proposal
            || !word.is_frozen() && u64::from(word.min_proposal) >= two_sided_from
            || u64::from(word.accepted_proposal) >= two_sided_from
        {
            return Err(Refused::ImpossibleBallot);
        }
        let id = ValueId::from_bits(word.accepted_value);
        match word.accepted_proposal {
            0 if word.accepted_value != 0 => Err(Refused::Malformed),
            0 => Ok(()),
            number if self.owner(u64::from(number)) != Some(id.proposer) => Err(Refused::ImpossibleBallot),
            _ if usize::from(id.variant) >= MAX_MEMBERS => Err(Refused::Malformed),
            _ => Ok(()),
        }
    }

    /// The same, with what we know of this acceptor in this slot.
    fn judge_lane(&self, slot: &Slot, lane: &Lane, word: Word) -> Result<(), Refused> {
        self.judge(word)?;
        let seen = lane.seen;
        let back = word.min_proposal < seen.min_proposal || word.accepted_proposal < seen.accepted_proposal;
        let other = word.accepted_proposal == seen.accepted_proposal && word.accepted_value != seen.accepted_value;
        let id = ValueId::from_bits(word.accepted_value);
        let not_ours = word.accepted_proposal != 0
            && id.proposer == self.config.me
            && (u64::from(word.accepted_proposal) > slot.ballot || usize::from(id.variant) >= slot.variants.len());
        if back || other || not_ours { Err(Refused::ImpossibleBallot) } else { Ok(()) }
    }

    fn answered(&mut self, id: RequestId, to: MemberId) {
        self.pending.remove(&id);
        if let Some(count) = self.in_flight.get_mut(&to) {
            *count -= 1;
        }
    }

    fn take_answer(&mut self, now_ns: u64, from: MemberId, id: RequestId, answer: Answer) -> Result<(), Refused> {
        if self.halted.is_some() {
            return Err(Refused::Halted);
        }
        let lane = self.lane_of(from).ok_or(Refused::UnknownMember)?;
        let Operation { to, slot: instance, what } = *self.pending.get(&id).ok_or(Refused::Malformed)?;
        if to != from {
            return Err(Refused::Malformed);
        }
        match (what, answer) {
            (What::Prepare { ballot, expected, new }, Answer::Word(bits)) => {
                let word = Word::from_bits(bits);
                self.take_word(instance, lane, id, (ballot, expected, new), Stage::Preparing, word)?;
                self.answered(id, from);
                self.evaluate(now_ns, instance);
            }
            (What::Accept { ballot, expected, new }, Answer::Word(bits)) => {
                let word = Word::from_bits(bits);
                self.take_word(instance, lane, id, (ballot, expected, new), Stage::Accepting, word)?;
                self.answered(id, from);
                self.evaluate(now_ns, instance);
            }
            (What::Write, Answer::Written) => self.answered(id, from),
            (What::Fetch { ballot, id: value }, Answer::Bytes(bytes)) => {
                let waits = |slot: &&mut Slot| slot.stage == Stage::Fetching && slot.ballot == ballot;
                if let Some(slot) = self.slots.get_mut(&instance).filter(waits) {
                    let batch = decode(instance, value, &bytes.ok_or(Refused::Malformed)?)?;
                    slot.value = Some(batch);
                    slot.due_ns = None;
                    slot.stage = Stage::Prepared;
                }
                self.answered(id, from);
            }
            (What::Read, Answer::Word(bits)) => {
                let word = Word::from_bits(bits);
                if self.learning.as_ref().is_some_and(|learning| learning.slot == instance) {
                    self.judge(word)?;
                    if let Some(learning) = &mut self.learning {
                        learning.words.insert(from, word);
                    }
                    self.answered(id, from);
                    self.learn_from_words(now_ns);
                } else {
                    self.answered(id, from);
                }
            }
            (What::LearnFetch { id: value }, Answer::Bytes(bytes)) => {
                if instance > self.decided && !self.learned.contains_key(&instance) {
                    let batch = decode(instance, value, &bytes.ok_or(Refused::Malformed)?)?;
                    self.answered(id, from);
                    self.stats.read += 1;
                    self.learn_decision(now_ns, instance, batch);
                } else {
                    self.answered(id, from);
                }
            }
            (What::Freeze { expected }, Answer::Word(bits)) => self.take_freeze(id, instance, expected, Word::from_bits(bits))?,
            (What::OwnFetch { accepted, id: value }, Answer::Bytes(bytes)) => {
                if let Some(acceptor) = self.two_sided.get_mut(&instance) {
                    let batch = decode(instance, value, &bytes.ok_or(Refused::Malformed)?)?;
                    acceptor.accepted = Some((u64::from(accepted), batch));
                    acceptor.stage = two_sided::Stage::Ready;
                }
                self.answered(id, from);
                self.serve(instance);
            }
            _ => return Err(Refused::Malformed),
        }
        Ok(())
    }

    /// The answer to a CAS of ours.
    fn take_word(
        &mut self,
        instance: Instance,
        lane: usize,
        id: RequestId,
        (ballot, expected, new): (Ballot, Word, Word),
        phase: Stage,
        word: Word,
    ) -> Result<(), Refused> {
        let Some(slot) = self.slots.get(&instance) else { return Ok(()) };
        self.judge_lane(slot, &slot.lanes[lane], word)?;
        let Some(slot) = self.slots.get_mut(&instance) else { return Ok(()) };
        let success = word == expected;
        let asked = &mut slot.lanes[lane];
        asked.seen = if success { new } else { word };
        if asked.last == Some(id) {
            asked.predicted = asked.seen;
        }
        if ballot != slot.ballot {
            return Ok(());
        }
        match (phase, slot.stage) {
            (Stage::Preparing, Stage::Preparing | Stage::Fetching | Stage::Prepared) if success => {
                asked.vote = Vote::Yes;
                if word.accepted_proposal != 0 {
                    asked.prior = Prior::At(u64::from(word.accepted_proposal), ValueId::from_bits(word.accepted_value));
                }
            }
            (Stage::Accepting, Stage::Accepting) if success => asked.vote = Vote::Yes,
            // Alg. 5 would abort. The same number has not been used there, so asking again is what Alg. 4 does after `fetch_state`.
            (Stage::Preparing, Stage::Preparing) | (Stage::Accepting, Stage::Accepting) => {
                self.stats.mispredictions += 1;
                let least = u64::from(word.min_proposal) + u64::from(phase == Stage::Preparing);
                asked.vote = if least <= ballot { Vote::Unasked } else { Vote::No };
            }
            _ => {}
        }
        Ok(())
    }

    fn take_freeze(&mut self, id: RequestId, instance: Instance, expected: Word, word: Word) -> Result<(), Refused> {
        let me = self.config.me;
        if !self.two_sided.contains_key(&instance) {
            self.answered(id, me);
            return Ok(());
        }
        self.judge(word)?;
        if word.is_frozen() {
            // Only this process freezes it, and it has not.
            return Err(Refused::ImpossibleBallot);
        }
        self.answered(id, me);
        if word != expected {
            self.freeze(instance, word);
            return Ok(());
        }
        let Some(acceptor) = self.two_sided.get_mut(&instance) else { return Ok(()) };
        acceptor.promised = u64::from(word.min_proposal);
        if word.accepted_proposal == 0 {
            acceptor.stage = two_sided::Stage::Ready;
            self.serve(instance);
        } else {
            acceptor.stage = two_sided::Stage::Fetching;
            let value = ValueId::from_bits(word.accepted_value);
            let region = value.region(instance, self.config.window);
            let what = What::OwnFetch { accepted: word.accepted_proposal, id: value };
            self.operate(me, instance, what, |id| Request::Fetch { id, region });
        }
        Ok(())
    }

    fn freeze(&mut self, instance: Instance, expected: Word) {
        let new = TwoSided::frozen(expected);
        self.operate(self.config.me, instance, What::Freeze { expected }, |id| Request::Cas {
            id,
            word: instance,
            expected: expected.to_bits(),
            new: new.to_bits(),
        });
    }

    /// A question to this process as an acceptor.
    fn take_rpc(&mut self, from: MemberId, instance: Instance, rpc: Rpc) -> Result<(), Refused> {
        if instance <= self.decided {
            let Some(batch) = self.history.get(&instance).cloned() else {
                let given = instance.checked_sub(1).is_some_and(|before| self.give_state(from, before));
                return if given { Ok(()) } else { Err(Refused::OldInstance) };
            };
            self.send(from, Message::Decided { instance, batch, stable: self.claim().min(instance - 1) });
            return Ok(());
        }
        // Who the members of later slots are, one cannot know.
        if instance > self.decided + 1 || self.barrier {
            return Err(Refused::TooFarAhead);
        }
        let (Rpc::Prepare(ballot) | Rpc::Accept(ballot, _)) = &rpc;
        if *ballot < self.two_sided_from() || *ballot > BALLOT_MAX || self.owner(*ballot) != Some(from) {
            return Err(Refused::ImpossibleBallot);
        }
        if let Rpc::Accept(_, batch) = &rpc {
            bytes::judge(batch)?;
        }
        if let Vacant(place) = self.two_sided.entry(instance) {
            place.insert(TwoSided::new());
            let guess = self.lane_of(self.config.me).and_then(|lane| Some(self.slots.get(&instance)?.lanes[lane].predicted));
            self.freeze(instance, guess.filter(|word| !word.is_frozen()).unwrap_or_default());
        }
        if let Some(acceptor) = self.two_sided.get_mut(&instance) {
            if acceptor.queue.iter().filter(|(who, _)| *who == from).count() >= QUEUED_PER_MEMBER {
                return Err(Refused::Busy);
            }
            acceptor.queue.push_back((from, rpc));
        }
        self.serve(instance);
        Ok(())
    }

    fn serve(&mut self, instance: Instance) {
        let Some(mut acceptor) = self.two_sided.remove(&instance) else { return };
        if acceptor.stage == two_sided::Stage::Ready {
            while let Some((to, rpc)) = acceptor.queue.pop_front() {
                let answer = match rpc {
                    Rpc::Prepare(ballot) => {
                        acceptor.prepare(ballot);
                        let accepted = acceptor.accepted.clone();
                        Message::Prepared { instance, ballot, promised: acceptor.promised, accepted }
                    }
                    Rpc::Accept(ballot, batch) => {
                        acceptor.accept(ballot, batch);
                        Message::Accepted { instance, ballot, promised: acceptor.promised }
                    }
                };
                self.send(to, answer);
            }
        }
        self.two_sided.insert(instance, acceptor);
    }

    /// An answer to a question by message.
    fn take_reply(
        &mut self,
        now_ns: u64,
        from: MemberId,
        instance: Instance,
        phase: Stage,
        (ballot, promised): (Ballot, Ballot),
        accepted: Option<(Ballot, Batch)>,
    ) -> Result<(), Refused> {
        if instance <= self.decided {
            return Err(Refused::OldInstance);
        }
        let lane = self.lane_of(from).ok_or(Refused::UnknownMember)?;
        let two_sided_from = self.two_sided_from();
        let slot = self.slots.get_mut(&instance).ok_or(Refused::Malformed)?;
        if promised < ballot || ballot < two_sided_from || ballot > slot.ballot || promised > BALLOT_MAX {
            return Err(Refused::ImpossibleBallot);
        }
        if let Some((number, batch)) = &accepted {
            if *number == 0 || *number > promised || *number == ballot && phase == Stage::Preparing {
                return Err(Refused::ImpossibleBallot);
            }
            bytes::judge(batch)?;
        }
        let lane = &mut slot.lanes[lane];
        if ballot < slot.ballot || slot.stage != phase || lane.vote != Vote::Asked {
            // Late: of an attempt before, or a majority was faster.
            lane.promised = lane.promised.max(promised);
            return Ok(());
        }
        lane.promised = promised;
        lane.vote = if promised == ballot { Vote::Yes } else { Vote::No };
        lane.prior = match accepted {
            Some((number, batch)) if promised == ballot => Prior::Is(number, batch),
            _ => Prior::Nothing,
        };
        self.evaluate(now_ns, instance);
        Ok(())
    }

    fn take_forward(&mut self, from: MemberId, run: u64, place: u64, entry: Entry) -> Result<(), Refused> {
        let (last_run, next) = self.runs.get(&from).copied().unwrap_or((0, 0));
        let next = if run == last_run { next } else { 0 };
        if run < last_run || place < next {
            return Err(Refused::Duplicate);
        }
        bytes::judge(&[entry.clone()].into())?;
        // A gap: what belongs there was refused when this member had no room. It will all be sent again.
        if place > next || self.waiting.len() - self.waiting_mine >= self.config.waiting_max {
            return Err(Refused::Busy);
        }
        self.runs.insert(from, (run, place + 1));
        if !self.recent_ids.contains(&entry.id) && self.waiting_ids.insert(entry.id) {
            self.waiting.push_back(Waiting { entry, mine: false, told: false });
        }
        Ok(())
    }

    fn take_decided(
        &mut self,
        now_ns: u64,
        from: MemberId,
        instance: Instance,
        batch: Batch,
        stable: Instance,
    ) -> Result<(), Refused> {
        bytes::judge(&batch)?;
        if stable >= instance {
            return Err(Refused::Malformed);
        }
        if instance <= self.stable {
            return Err(Refused::OldInstance);
        }
        if instance > self.decided + self.config.ahead_max {
            return Err(Refused::TooFarAhead);
        }
        if self.learned.contains_key(&instance) {
            return Err(Refused::Duplicate);
        }
        if let Some(reached) = self.reached.get_mut(&from) {
            *reached = (*reached).max(instance);
        }
        if instance > self.decided {
            self.learn_decision(now_ns, instance, batch);
        }
        self.settle_stable(now_ns, stable);
        self.send(from, Message::Progress { decided: self.decided, stable: self.claim(), ask: false });
        Ok(())
    }

    fn take_progress(
        &mut self,
        now_ns: u64,
        from: MemberId,
        decided: Instance,
        stable: Instance,
        ask: bool,
    ) -> Result<(), Refused> {
        if stable > decided {
            return Err(Refused::Malformed);
        }
        if let Some(reached) = self.reached.get_mut(&from) {
            *reached = (*reached).max(decided);
        }
        self.settle_stable(now_ns, stable);
        if decided > self.decided {
            self.behind = self.behind.max(decided);
            self.learn(now_ns);
        }
        if ask {
            if !self.give_state(from, decided) {
                self.in_vain.remove(&from);
            }
            let beyond: Vec<_> =
                self.history.range(decided.saturating_add(1)..).take(TOLD_AT_ONCE).map(|(i, b)| (*i, b.clone())).collect();
            for (instance, batch) in beyond {
                self.send(from, Message::Decided { instance, batch, stable: self.claim().min(instance - 1) });
            }
        }
        Ok(())
    }

    /// Who began by a state, or went on by one, has not got what lies before it. If somebody who lags asks for that again and again, nobody has: it is given the state.
    /// Returns whether that is what it asks for.
    fn give_state(&mut self, to: MemberId, decided: Instance) -> bool {
        // What is stable it has by now.
        if decided >= self.decided || decided < self.claim() || self.history.contains_key(&(decided + 1)) {
            return false;
        }
        let (of, times) = self.in_vain.entry(to).or_insert((decided, 0));
        *times = if *of == decided { times.saturating_add(1) } else { 1 };
        *of = decided;
        // Others answer the first time; each state is a whole one. Who does not know that it is behind would not ask again.
        if *times >= 2 && times.is_power_of_two() {
            self.actions.push_back(Action::State { to });
        } else {
            self.send(to, Message::Progress { decided: self.decided, stable: self.claim(), ask: false });
        }
        true
    }

    fn take_message(&mut self, now_ns: u64, from: MemberId, message: Message) -> Result<(), Refused> {
        if self.halted.is_some() {
            return Err(Refused::Halted);
        }
        if !self.members.contains(from) {
            return Err(Refused::UnknownMember);
        }
        match message {
            Message::Forward { run, place, entry } => self.take_forward(from, run, place, entry),
            Message::Decided { instance, batch, stable } => self.take_decided(now_ns, from, instance, batch, stable),
            Message::Progress { decided, stable, ask } => self.take_progress(now_ns, from, decided, stable, ask),
            Message::Prepare { instance, ballot } => self.take_rpc(from, instance, Rpc::Prepare(ballot)),
            Message::Accept { instance, ballot, batch } => self.take_rpc(from, instance, Rpc::Accept(ballot, batch)),
            Message::Prepared { instance, ballot, promised, accepted } => {
                self.take_reply(now_ns, from, instance, Stage::Preparing, (ballot, promised), accepted)
            }
            Message::Accepted { instance, ballot, promised } => {
                self.take_reply(now_ns, from, instance, Stage::Accepting, (ballot, promised), None)
            }
        }
    }
}

impl Engine<Message> for Paxos {
    fn kind(&self) -> Kind {
        Kind::Paxos
    }

    fn propose(&mut self, now_ns: u64, entry: Entry) -> Result<(), Refused> {
        if self.halted.is_some() {
            return Err(self.refusals.count(Refused::Halted));
        }
        batch::check_entry(&entry).map_err(|why| self.refusals.count(why))?;
        if self.waiting_ids.contains(&entry.id) {
            // Known already, perhaps from another member: it is on its way.
            return Ok(());
        }
        if self.waiting_mine >= self.config.waiting_max {
            return Err(self.refusals.count(Refused::Busy));
        }
        self.waiting_ids.insert(entry.id);
        self.waiting.push_back(Waiting { entry, mine: true, told: false });
        self.waiting_mine += 1;
        self.settle(now_ns);
        Ok(())
    }

    fn handle_message(&mut self, now_ns: u64, from: MemberId, message: Message) -> Result<(), Refused> {
        let result = if from == self.config.me { Err(Refused::Malformed) } else { self.take_message(now_ns, from, message) };
        match result {
            Ok(()) => self.settle(now_ns),
            Err(why) => {
                self.refusals.count(why);
            }
        }
        result
    }

    fn handle_memory(&mut self, now_ns: u64, from: MemberId, id: RequestId, answer: Answer) -> Result<(), Refused> {
        let result = self.take_answer(now_ns, from, id, answer);
        match result {
            Ok(()) => self.settle(now_ns),
            Err(why) => {
                self.refusals.count(why);
            }
        }
        result
    }

    fn handle_crash(&mut self, now_ns: u64, member: MemberId) -> Result<(), Refused> {
        let why = if self.halted.is_some() {
            Some(Refused::Halted)
        } else if !self.members.contains(member) {
            Some(Refused::UnknownMember)
        } else if member == self.config.me {
            Some(Refused::Malformed)
        } else if self.suspected.contains(member) {
            Some(Refused::Duplicate)
        } else {
            None
        };
        if let Some(why) = why {
            return Err(self.refusals.count(why));
        }
        let before = self.leader();
        self.suspected.insert(member);
        self.leader_changed(now_ns, before);
        self.settle(now_ns);
        Ok(())
    }

    fn handle_alive(&mut self, now_ns: u64, member: MemberId) {
        let before = self.leader();
        if self.suspected.remove(member) {
            self.leader_changed(now_ns, before);
            self.settle(now_ns);
        }
    }

    fn poll_timeout(&self) -> Option<u64> {
        if self.halted.is_some() {
            return None;
        }
        let slots = self.slots.values().filter_map(|slot| slot.due_ns);
        slots.chain(self.resend_due_ns).chain(self.tell_due_ns).chain(self.learn_due_ns).min()
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        if self.halted.is_some() {
            return;
        }
        let due = |at: Option<u64>| at.is_some_and(|at| at <= now_ns);
        for slot in self.slots.values_mut().filter(|slot| due(slot.due_ns)) {
            slot.aborts += u32::from(slot.stage != Stage::BackOff);
            slot.due_ns = None;
            slot.enter(Stage::Idle);
        }
        if due(self.resend_due_ns) {
            self.resend_due_ns = None;
            self.run += 1;
            self.place = 0;
            for waiting in &mut self.waiting {
                waiting.told = false;
            }
        }
        if due(self.tell_due_ns) {
            self.tell_due_ns = None;
            if self.told_stable < self.stable && self.leader() == Some(self.config.me) {
                self.told_stable = self.stable;
                self.tell(&Message::Progress { decided: self.decided, stable: self.claim(), ask: false });
            }
        }
        if due(self.learn_due_ns) {
            self.learn_due_ns = None;
            self.learn_tries += 1;
            self.learning = None;
            self.tell(&Message::Progress { decided: self.decided, stable: self.claim(), ask: true });
            self.learn(now_ns);
        }
        self.settle(now_ns);
    }

    fn set_members(&mut self, now_ns: u64, from: Instance, members: MemberSet) -> Result<(), Refused> {
        if self.halted.is_some() {
            return Err(self.refusals.count(Refused::Halted));
        }
        self.next_members = Some((from, members));
        self.take_members(now_ns);
        self.drain(now_ns);
        self.settle(now_ns);
        Ok(())
    }

    /// As if all through that instance had been decided here. What was, and this member has not got, it cannot tell others.
    fn handle_state(
        &mut self,
        now_ns: u64,
        _from: MemberId,
        through: Instance,
        members: &MemberSet,
        _start: Option<&[u8]>,
    ) -> Result<(), Refused> {
        let why = if self.halted.is_some() {
            Some(Refused::Halted)
        } else if through <= self.decided {
            Some(Refused::Duplicate)
        } else if members.len() > MAX_MEMBERS || through >= Instance::MAX / 2 {
            Some(Refused::Malformed)
        } else if !members.contains(self.config.me) {
            Some(Refused::NotMember) // a correct one, of those who applied its leave
        } else {
            None
        };
        if let Some(why) = why {
            return Err(self.refusals.count(why));
        }
        (self.decided, self.given) = (through, through);
        self.barrier = false;
        self.learning = None;
        self.slots.retain(|instance, _| *instance > through);
        self.two_sided.retain(|instance, _| *instance > through);
        self.learned.retain(|instance, _| *instance > through);
        // Its own are proposed again by the log, those that were not applied.
        self.waiting.retain(|waiting| !waiting.mine);
        self.waiting_mine = 0;
        self.waiting_ids = self.waiting.iter().map(|waiting| waiting.entry.id).collect();
        if self.members != *members {
            self.next_members = Some((through + 1, members.clone()));
            self.take_members(now_ns);
        } else if self.leader() == Some(self.config.me) {
            self.tell(&Message::Progress { decided: self.decided, stable: self.claim(), ask: false });
        }
        self.drain(now_ns);
        self.settle(now_ns);
        Ok(())
    }

    fn poll_action(&mut self) -> Option<Action<Message>> {
        self.actions.pop_front()
    }

    fn decided_through(&self) -> Instance {
        self.decided
    }

    fn stable_through(&self) -> Instance {
        self.claim()
    }

    fn leader(&self) -> Option<MemberId> {
        self.members.iter().find(|member| !self.suspected.contains(*member))
    }

    fn halted(&self) -> Option<Halted> {
        self.halted
    }

    fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    fn refuse(&mut self, why: Refused) -> Refused {
        self.refusals.count(why)
    }

    fn invariants(&self) {
        assert!(self.stable <= self.decided, "stable is decided");
        assert!(self.history.keys().all(|i| (self.stable + 1..=self.decided).contains(i)), "kept: decided and not stable");
        let kept = self.history.range(self.given + 1..).count() as u64;
        assert_eq!(kept, self.decided - self.stable.max(self.given), "without a gap, but for what a state stood for");
        assert!(self.learned.keys().all(|i| *i > self.decided), "early ones only");
        assert!(self.slots.keys().all(|i| *i == self.decided + 1 || *i == self.decided + 2), "one slot and the next");
        assert!(!self.barrier || self.slots.is_empty(), "nothing is begun behind a barrier");
        assert!(self.two_sided.keys().all(|i| *i == self.decided + 1), "only the next slot is asked for by message");
        assert_eq!(self.waiting.len(), self.waiting_ids.len(), "each waits once");
        assert_eq!(self.waiting_mine, self.waiting.iter().filter(|waiting| waiting.mine).count());
        assert_eq!(self.pending.len(), self.in_flight.values().sum::<usize>(), "operations are counted");
        assert!(self.local.is_empty(), "nothing is left to say to oneself");
        for slot in self.slots.values() {
            assert_eq!(slot.lanes.len(), self.members.len());
            assert!(slot.ballot == 0 || self.owner(slot.ballot) == Some(self.config.me), "only our own numbers");
            assert!(slot.variants.len() <= MAX_MEMBERS, "a slot sees at most a value of each proposer");
            assert!(slot.stage != Stage::Accepting || slot.value.is_some(), "something is proposed");
            for lane in &slot.lanes {
                assert!(lane.predicted.accepted_proposal <= lane.predicted.min_proposal);
                let number = u64::from(lane.predicted.min_proposal);
                assert!(lane.predicted.is_frozen() || number < self.two_sided_from(), "words hold small numbers only");
            }
        }
    }
}
