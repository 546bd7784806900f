//! Hierarchical stabilizing uniform consensus (FiDe Alg. 3, App. A.3): three message delays, N−1 crashes.
//!
//! The member with the lowest id that is alive leads. It sends its proposal to everybody (①), who adopt it and acknowledge (②); when all who are
//! alive have, it broadcasts the decision by [OSRB](crate::broadcast::osrb) (③). When it crashes, the next one proposes what it adopted.
//!
//! # Why it is safe
//! Let p be the first to have all acknowledgements of an instance. Then everybody alive has adopted p's batch, and whoever leads later was
//! alive then, so it proposes that batch. A decision of an instance is thus one that everybody alive has adopted, from its origin or from a later
//! leader; and each of them had decided the instance before, because earlier proposals are held back until then. From this follow the bounds:
//! * nobody gets a proposal more than one instance ahead, so one place is enough to hold it back;
//! * a decision never comes ahead of its instance, nor for a batch that was not adopted. One that does says that the others believe this member
//!   crashed: it stops ([`Halted::Expelled`]);
//! * when an instance is decided, the one before is decided by everybody alive: it is stable, and OSRB keeps at most 2 messages.
//!
//! # What Alg. 3 leaves open, and what is done here
//! * **Acknowledgements carry no instance, and `acks` is emptied only by the own BROADCAST (line 22).** p1 decides k, its decision reaches only p4,
//!   and it crashes. p2 proposes k again and gets p3's ACK; then p4's copy of the decision makes it deliver. `acks` is still {2, 3}. In k+1 p2
//!   proposes w; p4's ACK comes first: `acks` ⊇ {2, 3, 4}, and p2 decides w although p3 never saw it. p2 crashes before anything leaves, p3
//!   proposes x, p4 follows the higher proposer: x ≠ w is decided. *Uniform agreement* is broken. Here an ACK names its instance, and a round
//!   ends with it. It need not name the leader: it goes to the one who proposed, who proposes once in an instance.
//! * **`proposer` is never reset across instances.** As ids are never given out again and leaders only follow one another upwards, this does no
//!   harm in a fixed group; it belongs to a proposal, so here it lives as long as `adopted`, one instance. `j ≥ proposer` within an instance
//!   is what keeps a late proposal of p1 from replacing what p2 proposed after p1's crash.
//! * **`proposer` of the leader itself** is set only by its message to itself. A shortcut that counts its own ACK without setting it breaks:
//!   p2 leads and proposes v; p1's late proposal u finds `proposer` = ⊥ and replaces `proposal`; line 21 broadcasts u, which p3 never
//!   adopted. Here to propose is to adopt.
//! * **`acks` ⊇ `correct` when `correct` shrinks.** p3 crashes after p2's ACK came: no message will ever come any more. The guard is looked at after
//!   crashes too.
//! * **Proposals of a leader known to have crashed** are refused: its decision would have needed our ACK, so nothing can depend on it. (Its
//!   *decisions* are taken, whenever they come.)
//! * **PROPOSE at a follower** is lost by line 8 if something was adopted, and hangs if the leader never proposes. Here entries wait in a queue, and
//!   go to the leader ([`Message::Forward`]), again whenever the leader changes. The leader proposes what waits, of every member in turn.
//! * **A leader elected after it delivered** has `proposal` = ⊥ and does not propose that instance again; who did not deliver gets it by OSRB.
//!   That needs OSRB to send on what comes *after* the crash notice too (see there): else it waits for ever for an ACK of one who has decided.
//! * **Two broadcasts of one decision** (p1's late one and p2's own) have two ids, and literally *Stability* (every correct process has received
//!   *this* message) fails. What counts is the instance: the sequence of a broadcast is its instance, and what is decided is not handed to OSRB
//!   again. So each member keeps one message of an instance.
//! * **Which end of the hierarchy leads first**: §4.1 says the highest id, Alg. 3 `MIN(correct)`. The lowest: newcomers have higher ids, and must not
//!   take over.
//!
//! # Membership
//! After a *barrier* (join, leave, switch) was decided nothing is begun until [`Engine::set_members`]. A newcomer is built with
//! [`Hsuc::new`] from that instance on. It may speak to a leader that has not got so far and is refused; so a leader asks newcomers
//! for what they have ([`Message::Ask`]) when it has, or when it comes to lead, and takes nothing of them that comes before the answer, to keep their order. Crashes of those who are not members yet are refused: the caller repeats them after
//! `set_members`. A member that leaves hands on its last decision before it stops.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::batch::{self, Queue};
use super::{Action, Engine, Halted, Instance, Kind};
use crate::broadcast::osrb::{self, Osrb, Stable};
use crate::group::{Batch, Entry, MemberId, MemberSet, Refusals, Refused};

/// What members say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// ① The leader's proposal.
    Propose {
        /// For which instance.
        instance: Instance,
        /// What.
        batch: Batch,
    },
    /// ② The receiver's proposal for this instance was adopted.
    Ack {
        /// Which instance.
        instance: Instance,
    },
    /// ③ The decision of the instance that is its sequence, from its origin or sent again.
    Decided(osrb::Message<Batch>),
    /// Entries that wait at the sender, for the leader to propose.
    Forward {
        /// Whether the sender begins anew with all that waits: what the receiver has of it is to be forgotten.
        anew: bool,
        /// Which, in their order.
        entries: Batch,
    },
    /// The leader knows the receiver now: forward what waits.
    Ask,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Proposal {
    proposer: MemberId,
    batch: Batch,
}

/// The machine of one member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hsuc {
    me: MemberId,
    members: MemberSet,
    correct: MemberSet,
    decided: Instance,
    /// A barrier was decided: the next instance begins with `set_members`.
    awaiting_members: bool,
    /// Of the instance that is open.
    adopted: Option<Proposal>,
    /// Who adopted it, if it is ours.
    acks: Option<MemberSet>,
    /// For the next instance to be begun.
    early: Option<Proposal>,
    osrb: Osrb<Batch>,
    last: Option<osrb::Id>,
    /// The leader that has, or was told, all of ours that wait.
    forwarded_to: Option<MemberId>,
    /// Who began to forward to us, so that we miss nothing of it.
    heard: MemberSet,
    /// Newcomers that were not asked: another one led when they came.
    unasked: MemberSet,
    /// By the member that handed them in: ours, and what was forwarded.
    waiting: BTreeMap<MemberId, Queue>,
    actions: VecDeque<Action<Message>>,
    halted: Option<Halted>,
    refusals: Refusals,
}

impl Hsuc {
    /// A member that takes part from `first_instance` on, as one of `members`.
    #[must_use]
    pub fn new(me: MemberId, members: MemberSet, first_instance: Instance) -> Self {
        Self {
            me,
            correct: members.clone(),
            osrb: Osrb::new(me, members.clone()),
            decided: first_instance.max(1) - 1,
            awaiting_members: false,
            adopted: None,
            acks: None,
            early: None,
            last: None,
            forwarded_to: None,
            heard: MemberSet::new(),
            unasked: MemberSet::new(),
            waiting: BTreeMap::new(),
            actions: VecDeque::new(),
            halted: (!members.contains(me)).then_some(Halted::Left),
            members,
            refusals: Refusals::default(),
        }
    }

    /// Entries that wait here to be decided: ours, and those forwarded.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.values().map(Queue::len).sum()
    }

    /// Decisions kept to be sent again: at most 2 (App. A.3), and 1 between calls.
    #[must_use]
    pub fn unstable(&self) -> usize {
        self.osrb.unstable()
    }

    fn open(&self) -> Instance {
        self.decided + 1
    }

    fn leads(&self) -> bool {
        self.correct.min() == Some(self.me)
    }

    fn send(&mut self, to: MemberId, message: Message) {
        self.actions.push_back(Action::Send { to, message });
    }

    fn halt(&mut self, why: Halted) {
        self.halted = Some(why);
        self.actions.push_back(Action::Halt(why));
    }

    fn check_sender(&self, from: MemberId) -> Result<(), Refused> {
        match self.halted {
            Some(Halted::Left) => Err(Refused::NotMember),
            Some(_) => Err(Refused::Halted),
            None if !self.members.contains(from) => Err(Refused::UnknownMember),
            None if from == self.me => Err(Refused::Malformed),
            None => Ok(()),
        }
    }

    fn check_alive(&self, from: MemberId) -> Result<(), Refused> {
        if self.correct.contains(from) { Ok(()) } else { Err(Refused::Crashed) }
    }

    /// Alg. 3 line 13.
    fn handle_propose(&mut self, from: MemberId, instance: Instance, batch: Batch) -> Result<(), Refused> {
        if instance < self.open() {
            return Err(Refused::OldInstance);
        }
        self.check_alive(from)?;
        batch::check(&batch)?;
        let begun = if self.awaiting_members { self.decided } else { self.open() };
        if instance > begun + 1 {
            return Err(Refused::TooFarAhead);
        }
        if from > self.me {
            // It leads only if everyone below has crashed, and this member is below.
            self.halt(Halted::Expelled);
            return Ok(());
        }
        let known = if instance > begun { &self.early } else { &self.adopted };
        match known.as_ref().map(|known| known.proposer.cmp(&from)) {
            Some(std::cmp::Ordering::Equal) => return Err(Refused::Duplicate),
            Some(std::cmp::Ordering::Greater) => return Err(Refused::NotLeader),
            _ => {}
        }
        let proposal = Proposal { proposer: from, batch };
        if instance > begun {
            self.early = Some(proposal);
        } else {
            self.adopt(proposal);
        }
        Ok(())
    }

    fn adopt(&mut self, proposal: Proposal) {
        let instance = self.open();
        self.send(proposal.proposer, Message::Ack { instance });
        self.adopted = Some(proposal);
    }

    /// Alg. 3 line 18.
    fn handle_ack(&mut self, from: MemberId, instance: Instance) -> Result<(), Refused> {
        if instance < self.open() {
            return Err(Refused::OldInstance);
        }
        self.check_alive(from)?;
        match &mut self.acks {
            Some(acks) if instance == self.decided + 1 => {
                if !acks.insert(from) {
                    return Err(Refused::Duplicate);
                }
                self.progress();
                Ok(())
            }
            _ => Err(Refused::Malformed),
        }
    }

    /// The second half of line 21 and what comes of it, from another member.
    fn handle_decided(&mut self, from: MemberId, message: osrb::Message<Batch>) -> Result<(), Refused> {
        if message.id.sequence <= self.decided {
            return Err(Refused::OldInstance);
        }
        if !self.members.contains(message.id.origin) {
            return Err(Refused::UnknownMember);
        }
        if message.id.origin == self.me {
            return Err(Refused::ImpossibleBallot);
        }
        batch::check(&message.body)?;
        let was_adopted = |known: &Proposal| known.proposer >= message.id.origin && known.batch == message.body;
        if message.id.sequence > self.open() || self.awaiting_members || !self.adopted.as_ref().is_some_and(was_adopted) {
            // Decided without our ACK: the others do not count on us any more.
            self.halt(Halted::Expelled);
            return Ok(());
        }
        self.osrb.handle_message(from, message)?;
        self.drain_osrb();
        self.progress();
        Ok(())
    }

    fn handle_forward(&mut self, from: MemberId, anew: bool, entries: &[Entry]) -> Result<(), Refused> {
        self.check_alive(from)?;
        batch::check(entries)?;
        if !anew && !self.heard.contains(from) {
            // A newcomer whose first entries came before we knew it: these must not overtake them.
            return Err(Refused::NotMember);
        }
        let queue = self.waiting.get(&from).filter(|_| !anew);
        let fresh: Vec<_> = entries.iter().filter(|entry| queue.is_none_or(|queue| !queue.contains(entry.id))).collect();
        // Its sender may have decided one instance more than we, and have filled the room that this made.
        if queue.is_some_and(|queue| !queue.has_room(fresh.iter().copied(), 2)) {
            return Err(Refused::Busy);
        }
        if anew {
            self.heard.insert(from);
            self.waiting.remove(&from);
        }
        if !fresh.is_empty() {
            let queue = self.waiting.entry(from).or_default();
            fresh.into_iter().for_each(|entry| queue.push(entry.clone()));
        }
        self.progress();
        Ok(())
    }

    fn handle_ask(&mut self, from: MemberId) -> Result<(), Refused> {
        self.check_alive(from)?;
        if from > self.me {
            return Err(Refused::NotLeader);
        }
        self.forward_to(from);
        Ok(())
    }

    /// Of those that spoke to us before we knew them nothing was taken, and they do not know it.
    fn ask_newcomers(&mut self) {
        if self.leads() {
            for to in std::mem::take(&mut self.unasked).iter().filter(|to| self.correct.contains(*to)).collect::<Vec<_>>() {
                self.send(to, Message::Ask);
            }
        }
    }

    fn forward_to(&mut self, leader: MemberId) {
        let pieces = self.waiting.get(&self.me).map(Queue::pieces).unwrap_or_default();
        self.forwarded_to = (!pieces.is_empty()).then_some(leader);
        for (i, entries) in pieces.into_iter().enumerate() {
            self.send(leader, Message::Forward { anew: i == 0, entries });
        }
    }

    /// The leader proposes (lines 11 and 27) and decides (line 20) as far as it can.
    fn progress(&mut self) {
        while self.halted.is_none() && !self.awaiting_members && self.leads() {
            if self.acks.is_none() {
                let adopted = self.adopted.take().map(|known| known.batch);
                let Some(batch) = adopted.or_else(|| batch::next(&self.waiting, self.decided)) else { return };
                let instance = self.open();
                let others = self.correct.iter().filter(|&to| to != self.me);
                let propose = |to| Action::Send { to, message: Message::Propose { instance, batch: batch.clone() } };
                self.actions.extend(others.map(propose));
                self.adopted = Some(Proposal { proposer: self.me, batch });
                self.acks = Some([self.me].into_iter().collect());
            }
            if !self.acks.as_ref().is_some_and(|acks| acks.covers(&self.correct)) {
                return;
            }
            let Some(batch) = self.adopted.as_ref().map(|known| known.batch.clone()) else { return };
            let broadcast = self.osrb.broadcast(self.open(), batch);
            debug_assert!(broadcast.is_ok(), "instances grow, and two at most are unstable: {broadcast:?}");
            self.drain_osrb();
        }
    }

    fn drain_osrb(&mut self) {
        debug_assert!(self.osrb.unstable() <= 2, "App. A.3: limiting the number of messages to be relayed to 2");
        while let Some((to, message)) = self.osrb.poll_send() {
            self.send(to, Message::Decided(message));
        }
        while let Some(message) = self.osrb.poll_deliver() {
            self.decide(message);
        }
    }

    /// Alg. 3 line 30.
    fn decide(&mut self, message: osrb::Message<Batch>) {
        if let Some(last) = self.last.replace(message.id) {
            // Everybody correct acknowledged this instance, so has decided the one before, from this message or one like it; and its origin
            // broadcast nothing but decisions of still earlier instances before.
            let stable = self.osrb.stabilize(Stable::received_by_everybody(last));
            debug_assert!(stable.is_ok(), "{last:?} was delivered here");
        }
        self.decided = message.id.sequence;
        self.adopted = None;
        self.acks = None;
        let batch = message.body;
        let ids: BTreeSet<_> = batch.iter().map(|entry| entry.id).collect();
        for queue in self.waiting.values_mut() {
            queue.remove(|entry| ids.contains(&entry.id));
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        self.awaiting_members = batch.iter().any(batch::is_barrier);
        self.actions.push_back(Action::Decide { instance: self.decided, batch });
        if !self.awaiting_members {
            self.take_early();
        }
    }

    fn take_early(&mut self) {
        // What a leader proposed that has crashed since may be forgotten, like one that comes late.
        if let Some(early) = self.early.take().filter(|early| self.correct.contains(early.proposer)) {
            self.adopt(early);
        }
    }

    fn invariants(&self) {
        assert!(self.osrb.unstable() <= 2, "App. A.3: limiting the number of messages to be relayed to 2");
        assert!(self.members.covers(&self.correct));
        assert!(self.acks.is_none() || self.adopted.as_ref().is_some_and(|known| known.proposer == self.me));
        assert!(self.acks.as_ref().is_none_or(|acks| acks.contains(self.me)));
        assert!(self.adopted.is_none() || !self.awaiting_members, "an instance that is not open has no proposal");
        assert!(self.early.as_ref().is_none_or(|early| early.proposer < self.me));
        assert!(self.waiting.keys().all(|source| self.members.contains(*source)) || self.halted.is_some());
        assert!(self.waiting.values().all(|queue| queue.len() <= 2 * batch::WAITING_ENTRIES));
        if self.halted.is_none() && !self.awaiting_members && self.leads() {
            assert!(self.acks.is_some() || self.waiting.is_empty(), "a leader proposes what waits");
            assert!(
                self.acks.as_ref().is_none_or(|acks| !acks.covers(&self.correct)),
                "a leader decides what all have acknowledged"
            );
        }
    }
}

impl Engine<Message> for Hsuc {
    fn kind(&self) -> Kind {
        Kind::Hsuc
    }

    fn propose(&mut self, _now_ns: u64, entry: Entry) -> Result<(), Refused> {
        let queue = self.waiting.get(&self.me);
        let waits = queue.is_some_and(|queue| queue.contains(entry.id));
        let room = waits || queue.is_none_or(|queue| queue.has_room([&entry], 1));
        let refused = match self.halted {
            Some(Halted::Left) => Err(Refused::NotMember),
            Some(_) => Err(Refused::Halted),
            None if room => batch::check_entry(&entry),
            None => batch::check_entry(&entry).and(Err(Refused::Busy)),
        };
        refused.map_err(|why| self.refusals.count(why))?;
        if waits {
            return Ok(());
        }
        self.waiting.entry(self.me).or_default().push(entry.clone());
        match self.correct.min() {
            Some(leader) if leader == self.me => self.progress(),
            Some(leader) if self.forwarded_to == Some(leader) => {
                self.send(leader, Message::Forward { anew: false, entries: [entry].into() });
            }
            Some(leader) => self.forward_to(leader),
            None => {}
        }
        self.invariants();
        Ok(())
    }

    fn handle_message(&mut self, _now_ns: u64, from: MemberId, message: Message) -> Result<(), Refused> {
        let result = self.check_sender(from).and_then(|()| match message {
            Message::Propose { instance, batch } => self.handle_propose(from, instance, batch),
            Message::Ack { instance } => self.handle_ack(from, instance),
            Message::Decided(message) => self.handle_decided(from, message),
            Message::Forward { anew, entries } => self.handle_forward(from, anew, &entries),
            Message::Ask => self.handle_ask(from),
        });
        self.invariants();
        result.map_err(|why| self.refusals.count(why))
    }

    /// Alg. 3 line 23. Of those who are not members yet it is refused: say it again after `set_members`.
    fn handle_crash(&mut self, _now_ns: u64, member: MemberId) -> Result<(), Refused> {
        let refused = match self.halted {
            Some(Halted::Left) => Err(Refused::NotMember),
            Some(_) => Err(Refused::Halted),
            None if !self.members.contains(member) => Err(Refused::UnknownMember),
            None if !self.correct.contains(member) => Err(Refused::Duplicate),
            None => Ok(()),
        };
        refused.map_err(|why| self.refusals.count(why))?;
        if member == self.me {
            self.halt(Halted::Expelled);
            return Ok(());
        }
        let led = self.correct.min() == Some(member);
        self.correct.remove(member);
        let known = self.osrb.handle_crash(member);
        debug_assert!(known.is_ok(), "it has the same members");
        self.drain_osrb();
        match self.correct.min() {
            Some(leader) if led && leader != self.me => self.forward_to(leader),
            _ => {
                self.ask_newcomers();
                self.progress();
            }
        }
        self.invariants();
        Ok(())
    }

    /// Ignored, and counted as [`Refused::Malformed`], when no barrier was decided just before `from`.
    fn set_members(&mut self, _now_ns: u64, from: Instance, members: MemberSet) -> Result<(), Refused> {
        if self.halted.is_some() {
            return Err(self.refusals.count(Refused::Halted));
        }
        if !self.awaiting_members || from != self.open() {
            return Err(self.refusals.count(Refused::Malformed));
        }
        self.osrb.set_members(&members);
        self.drain_osrb();
        let leader = self.correct.min();
        let crashed: MemberSet = self.members.iter().filter(|&member| !self.correct.contains(member)).collect();
        let added = members.iter().filter(|&member| !self.members.contains(member));
        self.unasked = self.unasked.iter().filter(|&member| members.contains(member)).chain(added).collect();
        self.correct = members.iter().filter(|&member| !crashed.contains(member)).collect();
        self.members = members;
        self.waiting.retain(|&source, _| self.members.contains(source));
        self.heard = self.heard.iter().filter(|&member| self.members.contains(member)).collect();
        self.awaiting_members = false;
        if !self.members.contains(self.me) {
            self.early = None;
            self.halt(Halted::Left);
            return Ok(());
        }
        self.take_early();
        if self.leads() {
            self.ask_newcomers();
            self.progress();
        } else if self.correct.min() != leader
            && let Some(leader) = self.correct.min()
        {
            self.forward_to(leader);
        }
        self.invariants();
        Ok(())
    }

    fn set_leaving(&mut self, now_ns: u64, from: Instance, members: MemberSet) {
        let _ = self.set_members(now_ns, from, members);
    }

    fn poll_action(&mut self) -> Option<Action<Message>> {
        self.actions.pop_front()
    }

    fn decided_through(&self) -> Instance {
        self.decided
    }

    fn stable_through(&self) -> Instance {
        self.decided.saturating_sub(1)
    }

    fn leader(&self) -> Option<MemberId> {
        self.correct.min().filter(|_| self.halted.is_none())
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
        Hsuc::invariants(self);
    }
}

#[cfg(test)]
mod tests;
