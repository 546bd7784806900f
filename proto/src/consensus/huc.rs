//! Heartbeat uniform consensus (FiDe Alg. 1 and 4, App. A.4): one message delay for what the leader
//! proposes, two for others; N−1 crashes.
//!
//! Everybody proposes to the leader, the member with the lowest id that is alive (①); when it has a proposal of everybody alive it puts the decision
//! on its heartbeat (②, [FCURB](crate::broadcast::fcurb)). No acknowledgement is needed: who proposes to a new leader was told of the crash
//! of the old one, and by fail-consistency will never deliver anything of it; by uniformity then nobody will.
//!
//! Everybody proposes in every instance as soon as it decided the one before, ⊥ if it has nothing; a later proposal replaces the one before.
//! So a leader's own entry waits for one heartbeat only, and a proposal for an instance says that its sender decided the one before.
//!
//! # DET
//! One item of each proposal in turn, from the lowest id to the highest, beginning with another
//! member in each instance; each entry once; a barrier alone; until the decision is full
//! ([`DECISION_MAX`]) or the batch ([`batch`]). It is computed when the heartbeat is about to
//! leave, so that what came until then rides along. *What it sees after a crash*: the proposals
//! that those alive sent **to this leader** for this instance, and its own. Those of the crashed
//! are forgotten (line 17), and nobody sends what it heard from another.
//!
//! # Larger values
//! What does not fit a decision ([`is_large`]) is sent ahead to everybody ([`Message::Body`]), and
//! only its id rides. Each proposal says which bodies its sender holds, and DET takes an id only if
//! everybody alive has said so in this instance. It is not enough that the leader holds it: p3's
//! body reaches p1 and not p2, p3 crashes, p1 decides the id and crashes; p1 has decided what p2
//! can never know. Bodies of a crashed member are kept until the open instance is decided, because
//! a leader that was not told of the crash yet may still decide their ids; proposals for the next
//! one do not name them. So who delivers an id holds its body.
//!
//! # What Alg. 4 leaves open, and what is done here
//! * **Nothing is reset between instances.** `proposals[i]` of k survives into k+1: p1 decides k and
//!   crashes; p2, told of it, sends `proposals[2]` to the new leader (lines 20–21), its value of k,
//!   as if it had proposed for k+1: it is decided twice (*Integrity*). `acks` that only line 13
//!   empties would do no harm (docs/papers.md). Here a proposal names its instance, and a new
//!   instance begins with none.
//! * **`if proposals[i] ≠ ⊥` (line 20).** A member without a proposal sends none, and the new leader waits until it has one; the paper's
//!   *Termination* needs everybody to propose. Here ⊥ is sent too.
//! * **Line 11 does not ask `i = leader`.** A member may have proposals of the others before it is told of the crash; what keeps it from deciding is only that
//!   `correct` has the old leader, who never proposes to it. Here they are kept, and it decides when it leads.
//! * **⊥ of everybody.** A decision of ⊥ would say nothing and cost a heartbeat: the leader holds until there is something.
//! * **Proposals for k+1 before k is decided**: heartbeats of one sender reach its receivers one after another. One place for each member is enough, as
//!   nobody decides k+1 without this member's proposal for it.
//! * **A decision of one who is not the leader** was made without our proposal: the others believe this member crashed. It stops
//!   ([`Halted::Expelled`]). A decision of an instance ahead says that one is missing ([`Halted::MissingBroadcast`]).
//!
//! # Membership
//! As in [HSUC](super::hsuc): nothing is begun between a barrier and [`Engine::set_members`], a newcomer is built with [`Huc::new`] from there
//! on, and crashes of those who are not members yet must be repeated. Everybody asks newcomers for what they have ([`Message::Ask`]),
//! because they may have spoken too soon.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::batch::{self, Queue};
use super::{Action, Engine, Halted, Instance, Kind};
use crate::broadcast::fcurb::{self, Event, Fcurb};
use crate::group::{Batch, Entry, EntryId, MAX_MEMBERS, MemberId, MemberSet, Refusals, Refused};

/// Most bytes of the items of a decision. It leaves on as many heartbeats as it takes, one behind
/// the other, and counts when the last one has left and come ([`crate::services::groups::rides`]):
/// that costs nobody a message, while a body that is sent ahead must be confirmed by all first.
pub const DECISION_MAX: usize = 24 << 10;

/// Most bytes of an entry that is in a decision itself: a longer one is sent ahead once, and does
/// not hold up what is behind it on the heartbeats.
pub const DIRECT_MAX: usize = 8 << 10;
const _: () = assert!(DIRECT_MAX <= DECISION_MAX);

/// Most bytes of the items of a proposal, but for a first one that alone has more: it is sent again
/// whenever something is added to it.
pub const PROPOSAL_MAX: usize = 1354;

/// Bytes of an id instead of an entry, at most.
pub const ID_LEN: usize = 24;

/// Whether only its id is in a decision.
#[must_use]
pub fn is_large(entry: &Entry) -> bool {
    batch::encoded_len(entry) > DIRECT_MAX
}

/// Which body: the same entry handed in at two members is sent ahead by both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BodyId {
    /// Who sent it ahead.
    pub source: MemberId,
    /// Which entry.
    pub id: EntryId,
}

/// A part of a proposal or a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Item {
    /// An entry as it is.
    Direct(Entry),
    /// An entry that was sent ahead.
    Ahead(BodyId),
}

impl Item {
    fn id(&self) -> EntryId {
        match self {
            Item::Direct(entry) => entry.id,
            Item::Ahead(body) => body.id,
        }
    }

    fn len(&self) -> usize {
        match self {
            Item::Direct(entry) => batch::encoded_len(entry),
            Item::Ahead(_) => ID_LEN,
        }
    }

    fn is_barrier(&self) -> bool {
        matches!(self, Item::Direct(entry) if batch::is_barrier(entry))
    }
}

/// What one member proposes for an instance, replacing what it proposed before.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Proposal {
    /// In the order in which they were handed in; none is ⊥.
    pub items: Arc<[Item]>,
    /// The bodies of others that it holds, in growing order.
    pub holds: Arc<[BodyId]>,
}

/// What rides on the leader's heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Decision {
    /// Of which instance.
    pub instance: Instance,
    /// What; never empty.
    pub items: Arc<[Item]>,
}

/// What members say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// ① To the leader.
    Propose {
        /// For which instance.
        instance: Instance,
        /// What.
        proposal: Proposal,
    },
    /// ② On the heartbeat.
    Decision(fcurb::Message<Decision>),
    /// To everybody, before its id is proposed: an entry that is too large for a decision.
    Body(Entry),
    /// The sender knows the receiver now: send the bodies and the proposal again.
    Ask,
    /// To one who asked: here they begin. What came before was refused.
    Answer,
}

/// The machine of one member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Huc {
    me: MemberId,
    members: MemberSet,
    correct: MemberSet,
    decided: Instance,
    /// A barrier was decided: the next instance begins with `set_members`.
    awaiting_members: bool,
    /// Who decided more than this member: either it left, and will hear so, or something is missing.
    left_behind: Option<MemberId>,
    /// Newcomers that did not answer yet.
    asked: MemberSet,
    /// Handed in here.
    own: Queue,
    /// Sent ahead by others.
    held: BTreeMap<MemberId, Queue>,
    /// For the instance that is open, of the others.
    proposals: BTreeMap<MemberId, Proposal>,
    /// For the one after.
    early: BTreeMap<MemberId, Proposal>,
    /// What was proposed last, in this instance, and to whom.
    told: Option<(MemberId, Proposal)>,
    fcurb: Fcurb<Decision>,
    actions: VecDeque<Action<Message>>,
    halted: Option<Halted>,
    refusals: Refusals,
}

impl Huc {
    /// A member that takes part from `first_instance` on, as one of `members`.
    #[must_use]
    pub fn new(me: MemberId, members: MemberSet, first_instance: Instance) -> Self {
        let fcurb = if first_instance <= 1 { Fcurb::new(me, &members) } else { Fcurb::joining(me, &members) };
        let mut huc = Self {
            me,
            correct: members.clone(),
            decided: first_instance.max(1) - 1,
            awaiting_members: false,
            left_behind: None,
            asked: MemberSet::new(),
            own: Queue::default(),
            held: BTreeMap::new(),
            proposals: BTreeMap::new(),
            early: BTreeMap::new(),
            told: None,
            fcurb,
            actions: VecDeque::new(),
            halted: (!members.contains(me)).then_some(Halted::Left),
            members,
            refusals: Refusals::default(),
        };
        huc.tell();
        huc
    }

    /// As [`Engine::handle_crash`], when it is known how many piggybacks `member` has sent: the
    /// crash is held back until all of them were handed in, or a network fault says that they will
    /// not come. For a detector whose notices name the last heartbeat; agents report members by
    /// their silence.
    ///
    /// # Errors
    /// See there; [`Refused::ImpossibleBallot`] if more were handed in.
    pub fn handle_crash_after(&mut self, member: MemberId, last: Option<u64>) -> Result<(), Refused> {
        let result = self.check_running().and_then(|()| {
            if member == self.me {
                self.halt(Halted::Expelled);
                return Ok(());
            }
            self.fcurb.handle_crash(member, last)
        });
        self.drain_fcurb();
        self.invariants();
        result.map_err(|why| self.refusals.count(why))
    }

    /// Entries that wait here to be decided.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.own.len()
    }

    /// Bodies of others that are held.
    #[must_use]
    pub fn holding(&self) -> usize {
        self.held.values().map(Queue::len).sum()
    }

    fn open(&self) -> Instance {
        self.decided + 1
    }

    fn leads(&self) -> bool {
        self.correct.min() == Some(self.me)
    }

    /// Alg. 4 line 11.
    fn everybody_proposed(&self) -> bool {
        self.leads()
            && !self.awaiting_members
            && self.correct.iter().all(|member| member == self.me || self.proposals.contains_key(&member))
    }

    fn send(&mut self, to: MemberId, message: Message) {
        self.actions.push_back(Action::Send { to, message });
    }

    fn halt(&mut self, why: Halted) {
        if self.halted.is_none() {
            self.halted = Some(why);
            self.actions.push_back(Action::Halt(why));
        }
    }

    fn check_running(&self) -> Result<(), Refused> {
        match self.halted {
            Some(Halted::Left) => Err(Refused::NotMember),
            Some(_) => Err(Refused::Halted),
            None => Ok(()),
        }
    }

    fn check_sender(&self, from: MemberId) -> Result<(), Refused> {
        self.check_running()?;
        if !self.members.contains(from) {
            Err(Refused::UnknownMember)
        } else if from == self.me {
            Err(Refused::Malformed)
        } else if !self.correct.contains(from) {
            Err(Refused::Crashed)
        } else {
            Ok(())
        }
    }

    /// Whether these can stand in one proposal or decision.
    fn check_items(items: &[Item]) -> Result<(), Refused> {
        for item in items {
            match item {
                Item::Direct(entry) if is_large(entry) => return Err(Refused::TooLarge),
                Item::Direct(entry) => batch::check_entry(entry)?,
                Item::Ahead(body) if body.id.number == 0 => return Err(Refused::Malformed),
                Item::Ahead(_) => {}
            }
        }
        if items.iter().map(Item::len).sum::<usize>() > DECISION_MAX {
            return Err(Refused::TooLarge);
        }
        let ids: BTreeSet<_> = items.iter().map(Item::id).collect();
        if ids.len() < items.len() || items.len() > 1 && items.iter().any(Item::is_barrier) {
            return Err(Refused::Malformed);
        }
        Ok(())
    }

    /// Alg. 4 line 8.
    fn handle_propose(&mut self, from: MemberId, instance: Instance, proposal: Proposal) -> Result<(), Refused> {
        if instance < self.open() {
            return Err(Refused::OldInstance);
        }
        if instance > self.open() + u64::from(!self.awaiting_members) {
            return Err(Refused::TooFarAhead);
        }
        Self::check_items(&proposal.items)?;
        if proposal.holds.len() > MAX_MEMBERS * 2 * batch::WAITING_ENTRIES {
            return Err(Refused::TooLarge);
        }
        let of_another = |item: &Item| matches!(item, Item::Ahead(body) if body.source != from);
        // Who lives below this member does not take it for the leader.
        if from < self.me || proposal.items.iter().any(of_another) || !proposal.holds.is_sorted_by(|a, b| a < b) {
            return Err(Refused::Malformed);
        }
        let proposals = if instance == self.open() { &mut self.proposals } else { &mut self.early };
        proposals.insert(from, proposal);
        self.check_behind_as_leader();
        Ok(())
    }

    /// Whoever proposes the next instance to its leader has decided this one, by a heartbeat of one who has crashed since: everything of that one was
    /// handed in here before its crash, but for what never came. Or by this leader's own heartbeat, which has left, and is not relied on here yet.
    fn check_behind_as_leader(&mut self) {
        if self.leads() && !self.awaiting_members && !self.early.is_empty() && !self.fcurb.is_sending() {
            self.halt(Halted::MissingBroadcast);
        }
    }

    fn handle_body(&mut self, from: MemberId, entry: Entry) -> Result<(), Refused> {
        batch::check_entry(&entry)?;
        if self.asked.contains(from) {
            // It will come again. If both were taken, the second could come after its decision, and would stay for ever.
            return Err(Refused::NotMember);
        }
        if !is_large(&entry) {
            return Err(Refused::Malformed);
        }
        if let Some(queue) = self.held.get(&from) {
            if queue.contains(entry.id) {
                return Err(Refused::Duplicate);
            }
            // Its sender may have decided one instance more than we, and have filled the room that this made.
            if !queue.has_room([&entry], 2) {
                return Err(Refused::Busy);
            }
        }
        self.held.entry(from).or_default().push(entry);
        self.tell();
        Ok(())
    }

    fn handle_ask(&mut self, from: MemberId) {
        self.send(from, Message::Answer);
        self.send_bodies(from);
        if self.correct.min() == Some(from) {
            self.told = None;
            self.tell();
        }
    }

    fn send_bodies(&mut self, to: MemberId) {
        let large = self.own.iter().filter(|entry| is_large(entry));
        self.actions.extend(large.map(|entry| Action::Send { to, message: Message::Body(entry.clone()) }));
    }

    /// What this member proposes now, in so many bytes.
    fn proposal(&self, room: usize) -> Proposal {
        let (mut items, mut room) = (Vec::new(), room);
        for entry in self.own.iter() {
            let large = is_large(entry);
            let len = if large { ID_LEN } else { batch::encoded_len(entry) };
            if items.is_empty() {
                room = room.max(len);
            }
            if len > room || batch::is_barrier(entry) && !items.is_empty() {
                break;
            }
            room -= len;
            items.push(if large { Item::Ahead(BodyId { source: self.me, id: entry.id }) } else { Item::Direct(entry.clone()) });
            if batch::is_barrier(entry) {
                break;
            }
        }
        let mut holds: Vec<_> = self
            .held
            .iter()
            .flat_map(|(&source, queue)| queue.iter().map(move |entry| BodyId { source, id: entry.id }))
            .collect();
        holds.sort_unstable();
        Proposal { items: items.into(), holds: holds.into() }
    }

    /// Alg. 4 lines 7 and 21: whenever the leader, or what it should know, is another than before.
    fn tell(&mut self) {
        let Some(leader) = self.correct.min() else { return };
        if leader == self.me || self.awaiting_members || self.halted.is_some() {
            return;
        }
        let now = (leader, self.proposal(PROPOSAL_MAX));
        if self.told.as_ref() != Some(&now) {
            self.send(leader, Message::Propose { instance: self.open(), proposal: now.1.clone() });
            self.told = Some(now);
        }
    }

    /// The entry that was sent ahead, if it is here.
    fn body(&self, body: &BodyId) -> Option<&Entry> {
        let queue = if body.source == self.me { &self.own } else { self.held.get(&body.source)? };
        queue.iter().find(|entry| entry.id == body.id)
    }

    fn everybody_holds(&self, body: &BodyId) -> bool {
        let holds = |member: MemberId| {
            member == self.me
                || member == body.source
                || self.proposals.get(&member).is_some_and(|proposal| proposal.holds.binary_search(body).is_ok())
        };
        self.correct.iter().all(holds)
    }

    /// See the head of this file.
    fn det(&self) -> Arc<[Item]> {
        let own = self.proposal(DECISION_MAX);
        let proposed = |member| if member == self.me { Some(&own) } else { self.proposals.get(&member) };
        let mut sources: Vec<_> =
            self.correct.iter().filter_map(proposed).map(|proposal| proposal.items.iter().peekable()).collect();
        let first = (self.decided % sources.len().max(1) as u64) as usize;
        sources.rotate_left(first);
        let (mut items, mut taken): (Vec<Item>, _) = (Vec::new(), BTreeSet::new());
        let (mut room, mut batch_room) = (DECISION_MAX, batch::BATCH_BYTES);
        while !sources.is_empty() {
            sources.retain_mut(|source| {
                let next = source.next_if(|item| {
                    let entry_len = match item {
                        Item::Direct(entry) => Some(batch::encoded_len(entry)),
                        Item::Ahead(body) if self.everybody_holds(body) => self.body(body).map(batch::encoded_len),
                        Item::Ahead(_) => None,
                    };
                    let Some(entry_len) = entry_len else { return false };
                    taken.contains(&item.id())
                        || items.is_empty()
                        || item.len() <= room
                            && entry_len <= batch_room
                            && items.len() < batch::BATCH_ENTRIES
                            && !item.is_barrier()
                            && !items[0].is_barrier()
                });
                let Some(item) = next else { return false };
                if taken.insert(item.id()) {
                    let entry_len =
                        if let Item::Ahead(body) = item { self.body(body).map_or(0, batch::encoded_len) } else { item.len() };
                    room -= item.len();
                    batch_room = batch_room.saturating_sub(entry_len);
                    items.push(item.clone());
                }
                true
            });
        }
        items.into()
    }

    fn drain_fcurb(&mut self) {
        while let Some(event) = self.fcurb.poll_event() {
            match event {
                _ if self.halted.is_some() => {}
                Event::Halt(why) => self.halt(why),
                Event::Crash(member) => self.crash(member),
                Event::Deliver { from, body } => self.deliver(from, &body),
            }
        }
    }

    /// Alg. 4 line 15.
    fn crash(&mut self, member: MemberId) {
        self.correct.remove(member);
        self.proposals.remove(&member);
        self.early.remove(&member);
        self.asked.remove(member);
        if !self.awaiting_members {
            self.check_left_behind();
        }
        self.check_behind_as_leader();
        self.tell();
    }

    /// Alg. 4 line 22.
    fn deliver(&mut self, from: MemberId, decision: &Decision) {
        if decision.instance < self.open() {
            // A newcomer hears what was decided before it joined.
            return;
        }
        if self.awaiting_members {
            // Heartbeats reach those too who left by the barrier, and do not know it yet.
            self.left_behind = Some(from);
            return;
        }
        if decision.instance > self.open() {
            // The barrier by which it left may still be on its way from a leader that crashed meanwhile, but not after its crash.
            self.left_behind = Some(from);
            return self.check_left_behind();
        }
        if Some(from) != self.correct.min() {
            return self.halt(Halted::Expelled);
        }
        let entries: Option<Batch> = decision
            .items
            .iter()
            .map(|item| match item {
                Item::Direct(entry) => Some(entry.clone()),
                Item::Ahead(body) => self.body(body).cloned(),
            })
            .collect();
        match entries {
            Some(batch) if batch::check(&batch).is_ok() => self.decide(&decision.items, batch),
            _ => self.halt(Halted::MissingBroadcast),
        }
    }

    fn check_left_behind(&mut self) {
        if self.left_behind.is_some_and(|from| self.correct.min().is_none_or(|leader| leader >= from)) {
            self.halt(Halted::MissingBroadcast);
        }
    }

    fn decide(&mut self, items: &[Item], batch: Batch) {
        self.decided += 1;
        self.proposals = std::mem::take(&mut self.early);
        self.told = None;
        let direct: BTreeSet<_> = items.iter().filter(|item| matches!(item, Item::Direct(_))).map(Item::id).collect();
        self.own.remove(|entry| direct.contains(&entry.id));
        for item in items {
            if let Item::Ahead(body) = item {
                let queue = if body.source == self.me { Some(&mut self.own) } else { self.held.get_mut(&body.source) };
                queue.into_iter().for_each(|queue| queue.remove(|entry| entry.id == body.id));
            }
        }
        // No proposal of this member names these any more, so that nobody can decide them.
        self.held.retain(|&source, queue| self.correct.contains(source) && !queue.is_empty());
        self.awaiting_members = batch.iter().any(batch::is_barrier);
        self.actions.push_back(Action::Decide { instance: self.decided, batch });
        if self.left_behind.is_some() && !self.awaiting_members {
            return self.halt(Halted::MissingBroadcast);
        }
        self.tell();
    }

    fn invariants(&self) {
        assert!(self.members.covers(&self.correct));
        assert!(self.halted.is_some() || self.correct.contains(self.me));
        assert!(self.own.len() <= batch::WAITING_ENTRIES);
        assert!(self.held.values().all(|queue| queue.len() <= 2 * batch::WAITING_ENTRIES && queue.iter().all(is_large)));
        if self.halted.is_some() {
            return;
        }
        assert!(self.held.keys().all(|&source| source != self.me && self.members.contains(source)));
        let others =
            |proposals: &BTreeMap<MemberId, Proposal>| proposals.keys().all(|&m| m != self.me && self.correct.contains(m));
        assert!(others(&self.proposals) && others(&self.early));
        assert!(self.early.is_empty() || !self.awaiting_members);
        assert!(!self.fcurb.is_sending() || self.leads(), "only the leader decides");
        if let Some(leader) = self.correct.min().filter(|&leader| leader != self.me && !self.awaiting_members) {
            assert!(self.told.as_ref().is_some_and(|(to, _)| *to == leader), "everybody proposes");
        }
    }
}

impl Engine<Message> for Huc {
    fn kind(&self) -> Kind {
        Kind::Huc
    }

    fn propose(&mut self, _now_ns: u64, entry: Entry) -> Result<(), Refused> {
        let waits = self.own.contains(entry.id);
        let refused = self
            .check_running()
            .and_then(|()| batch::check_entry(&entry))
            .and_then(|()| if waits || self.own.has_room([&entry], 1) { Ok(()) } else { Err(Refused::Busy) });
        refused.map_err(|why| self.refusals.count(why))?;
        if waits {
            return Ok(());
        }
        if is_large(&entry) {
            let others = self.correct.iter().filter(|&to| to != self.me);
            self.actions.extend(others.map(|to| Action::Send { to, message: Message::Body(entry.clone()) }));
        }
        self.own.push(entry);
        self.tell();
        self.invariants();
        Ok(())
    }

    fn handle_message(&mut self, _now_ns: u64, from: MemberId, message: Message) -> Result<(), Refused> {
        let result = self.check_sender(from).and_then(|()| match message {
            Message::Propose { instance, proposal } => self.handle_propose(from, instance, proposal),
            Message::Body(entry) => self.handle_body(from, entry),
            Message::Ask => {
                self.handle_ask(from);
                Ok(())
            }
            Message::Answer if self.asked.remove(from) => Ok(()),
            Message::Answer | Message::Decision(_) => Err(Refused::Malformed),
        });
        self.invariants();
        result.map_err(|why| self.refusals.count(why))
    }

    /// Alg. 4 line 11: what is decided now leaves with this heartbeat.
    fn poll_piggyback(&mut self, _now_ns: u64) -> Option<Message> {
        if self.halted.is_some() {
            return None;
        }
        if !self.fcurb.is_sending() && self.everybody_proposed() {
            let items = self.det();
            if !items.is_empty() {
                let waits = self.fcurb.broadcast(Decision { instance: self.open(), items });
                debug_assert!(waits.is_ok(), "nothing else waits");
            }
        }
        self.fcurb.poll_piggyback().map(Message::Decision)
    }

    fn handle_piggyback_sent(&mut self, _now_ns: u64) {
        if self.halted.is_none() {
            self.fcurb.handle_sent();
            self.drain_fcurb();
            self.invariants();
        }
    }

    fn handle_piggyback(&mut self, _now_ns: u64, from: MemberId, message: Message) -> Result<(), Refused> {
        let result = self.check_running().and_then(|()| {
            let Message::Decision(message) = message else { return Err(Refused::Malformed) };
            self.fcurb.check_piggyback(from, message.number)?;
            Self::check_items(&message.body.items)?;
            if message.body.items.is_empty() || message.body.instance == 0 {
                return Err(Refused::Malformed);
            }
            self.fcurb.handle_piggyback(from, message)
        });
        self.drain_fcurb();
        self.invariants();
        result.map_err(|why| self.refusals.count(why))
    }

    /// Alg. 4 line 15. Everything that `member` piggybacked was handed in. Of those who are not members yet it is refused: say it again after
    /// `set_members`.
    fn handle_crash(&mut self, _now_ns: u64, member: MemberId) -> Result<(), Refused> {
        self.handle_crash_after(member, None)
    }

    /// Copies that are missing are noticed by their numbers; but what a held crash waits for will not come.
    fn handle_network_fault(&mut self, _now_ns: u64) {
        self.fcurb.handle_network_fault();
        self.drain_fcurb();
    }

    /// Ignored, and counted as [`Refused::Malformed`], when no barrier was decided just before `from`.
    fn set_members(&mut self, _now_ns: u64, from: Instance, members: MemberSet) -> Result<(), Refused> {
        if self.halted.is_some() {
            return Err(self.refusals.count(Refused::Halted));
        }
        if !self.awaiting_members || from != self.open() {
            return Err(self.refusals.count(Refused::Malformed));
        }
        let crashed: MemberSet = self.members.iter().filter(|&member| !self.correct.contains(member)).collect();
        let added: Vec<_> = members.iter().filter(|&member| !self.members.contains(member)).collect();
        self.correct = members.iter().filter(|&member| !crashed.contains(member)).collect();
        self.members = members;
        self.fcurb.set_members(&self.members);
        self.awaiting_members = false;
        if !self.members.contains(self.me) {
            self.halt(Halted::Left);
            return Ok(());
        }
        if self.left_behind.is_some() {
            self.halt(Halted::Expelled);
            return Ok(());
        }
        self.held.retain(|&source, _| self.members.contains(source));
        self.proposals.retain(|&member, _| self.correct.contains(member));
        self.asked = self.asked.iter().filter(|&member| self.members.contains(member)).collect();
        for to in added {
            self.asked.insert(to);
            self.send(to, Message::Ask);
            self.send_bodies(to);
        }
        self.tell();
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
        // Who proposes for an instance has decided the one before.
        if self.everybody_proposed() { self.decided } else { self.decided.saturating_sub(1) }
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
        Huc::invariants(self);
    }
}

#[cfg(test)]
mod tests;
