//! A replicated log over any engine: entries in one order everywhere, each applied once (B7).
//!
//! An engine agrees on batches; the log makes of them what an application wants: its own proposals are numbered, kept and handed in again until they
//! are applied; what was decided twice is applied once; members join with the state and leave in order; and the group changes its engine without its
//! applications noticing.
//!
//! # Control entries
//! *Join*, *leave* and *switch* are entries like others, so everybody applies them at the same place of the log. An engine begins nothing behind
//! one before the log has answered it with [`Engine::set_members`] ("barrier"), so no instance is ever decided by two different memberships or engines.
//!
//! # Changing the engine
//! The batch with the switch is the last of its engine. Its successor begins with the next instance, under the next *epoch*; every message carries its
//! epoch. What the old engine decides behind the switch is void everywhere (the barrier allows nothing, but a void rule needs no trust in engines),
//! and its proposers hand the entries in again, to the new engine. So no entry is lost (its proposer keeps it until it is applied) and none is
//! repeated (its id is applied once). The old engine lives on beside the new one, for those who have not decided the switch yet, until
//! everyone alive has said [`Message::Reached`].
//!
//! # Joining
//! The joiner listens before it asks, and keeps what it hears. Once its join is applied, whoever leads sends it the [`Transfer`]: snapshot, the
//! entries since, and where the next instance begins. If that member dies, its successor sends another one; if none comes for a while, the joiner asks those
//! who have applied its join, one after the other. It takes the first. The others go on meanwhile, as far as their engine lets them.
//!
//! # Leaving
//! Whoever has left stays until the others have applied that, and gives its state to who needs it meanwhile: as it was when the leave was applied, with
//! what its engine said then, for the engine may go on without the log. Of an engine that needs a majority it goes in the end whoever has not said so: where
//! somebody was not reached for that long, those who stay are a majority without it, or wait for somebody who is not there.
//!
//! # Crashes
//! [`Log::handle_crash`] is for what is *true* (certain, fenced or witnessed: `policy` decides); the leader then proposes that the crashed member
//! leaves, so that later joiners do not inherit it. [`Log::handle_suspect`] is a hint, for engines that take hints, and evicts nobody.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::marker::PhantomData;

use super::{Action, Engine, Halted, Instance, Kind, batch, memory};
use crate::group::{Batch, Body, Entry, EntryId, MAX_MEMBERS, MemberId, MemberSet, Refusals, Refused, VALUE_MAX, Value};

/// How many times the group changed its engine before.
pub type Epoch = u32;

/// How many entries were applied, this one included: the log's index for applications.
pub type Position = u64;

/// Declares [`EngineMessage`]: a variant for each engine, and the ways in and out.
macro_rules! engine_messages {
    ($($(#[doc = $doc:literal])* $variant:ident($(#[$how:meta])? $message:ty),)+) => {
        /// A message of one engine.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum EngineMessage {
            $($(#[doc = $doc])* $variant($(#[$how])? $message),)+
        }
        $(
            impl From<$message> for EngineMessage {
                fn from(message: $message) -> Self {
                    EngineMessage::$variant(message)
                }
            }
            impl TryFrom<EngineMessage> for $message {
                type Error = EngineMessage;
                fn try_from(message: EngineMessage) -> Result<Self, EngineMessage> {
                    match message {
                        EngineMessage::$variant(message) => Ok(message),
                        #[allow(unreachable_patterns)]
                        other => Err(other),
                    }
                }
            }
        )+
    };
}

engine_messages! {
    /// Of an engine outside this crate, as that one encodes it.
    Opaque(#[serde(with = "crate::group::value")] Value),
    /// Of HSUC.
    Hsuc(super::hsuc::Message),
    /// Of HUC.
    Huc(super::huc::Message),
    /// Of LOWI.
    Lowi(super::lowi::Message),
    /// Of one-sided Paxos.
    Paxos(super::paxos::Message),
}

/// Between the logs of two members.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Message {
    /// For the engine of this epoch.
    Engine {
        /// Which.
        epoch: Epoch,
        /// What.
        body: EngineMessage,
    },
    /// The sender applied the control entry of this instance, and stands in this epoch.
    Reached {
        /// The sender's epoch, behind the entry.
        epoch: Epoch,
        /// Which instance.
        instance: Instance,
    },
    /// The sender, who is in an older epoch, wants to know how things stand.
    Ask,
    /// How things stand.
    Transfer(Box<Transfer>),
}

/// All that a member needs to go on from some instance: snapshot, then log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Transfer {
    /// The engine's epoch.
    pub epoch: Epoch,
    /// The engine.
    pub kind: Kind,
    /// Everything through this instance is in here.
    pub through: Instance,
    /// The members from the next instance on.
    pub members: MemberSet,
    /// Those of them that are known to have crashed.
    pub crashed: MemberSet,
    /// The highest id that ever joined.
    pub highest: MemberId,
    /// Which entries of whom were applied.
    pub applied: BTreeMap<MemberId, Numbers>,
    /// How many entries the snapshot stands for.
    pub snapshot_position: Position,
    /// The application's state then; nothing if it was empty.
    pub snapshot: Option<Value>,
    /// The entries applied since.
    pub entries: Vec<Entry>,
    /// What else the engine needs to begin there: [`Engine::start_point`].
    pub start: Option<Value>,
}

/// A set of numbers from 1 that is nearly without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Numbers {
    through: u64,
    above: BTreeSet<u64>,
}

impl Numbers {
    /// Puts it in; false if it was in.
    pub fn insert(&mut self, number: u64) -> bool {
        if number <= self.through || !self.above.insert(number) {
            return false;
        }
        while self.above.remove(&(self.through + 1)) {
            self.through += 1;
        }
        true
    }

    /// Whether it is in.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        number <= self.through || self.above.contains(&number)
    }

    /// Every number through this one is in.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.through
    }

    /// The highest one that is in; 0 if none is.
    #[must_use]
    pub fn highest(&self) -> u64 {
        self.above.last().copied().unwrap_or(self.through)
    }
}

/// What the log asks of its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Over the reliable link.
    Send {
        /// To whom.
        to: MemberId,
        /// What.
        message: Message,
    },
    /// A copy on each path, now.
    Copies {
        /// What.
        message: Message,
    },
    /// A one-sided operation; every epoch has a memory of its own.
    Memory {
        /// Whose memory.
        to: MemberId,
        /// Which of its memories.
        epoch: Epoch,
        /// What.
        request: memory::Request,
    },
    /// The application's state is this, before anything else is applied (joiners only).
    Install {
        /// How many entries it stands for.
        position: Position,
        /// The state.
        snapshot: Option<Value>,
    },
    /// The next entry of the log.
    Apply {
        /// Its place.
        position: Position,
        /// What to apply: a value, or a control entry for information.
        entry: Entry,
    },
    /// It is over; see [`Log::halted`].
    Halt(Halted),
}

/// What an engine is built from.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Who we are.
    pub me: MemberId,
    /// Which engine.
    pub kind: Kind,
    /// The first instance that it decides.
    pub first: Instance,
    /// The members then.
    pub members: MemberSet,
    /// Those of them that are known to have crashed, and of whom nothing came early: the others are told by [`Engine::handle_crash`] soon after.
    pub crashed: MemberSet,
    /// The time.
    pub now_ns: u64,
    /// This member comes into a group that is running, or starts it together with the others.
    pub joins: bool,
    /// For one that comes: what [`Engine::start_point`] said to whoever sent it the state.
    pub start: Option<Value>,
}

/// Makes an engine; nothing if this group has not got that kind.
pub type Build = Box<dyn FnMut(&Setup) -> Option<Box<dyn Engine<EngineMessage> + Send>> + Send>;

/// Limits of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Own entries that may wait to be applied.
    pub pending_max: usize,
    /// Messages kept for an epoch that is not ours yet, or before the transfer came.
    pub early_max: usize,
    /// How long the same member is not asked again how things stand: each answer is the whole state.
    pub ask_interval_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { pending_max: 1024, early_max: 4096, ask_interval_ns: 1_000_000 }
    }
}

/// Changes of the engine that another one can be ahead.
const EPOCHS_AHEAD_MAX: Epoch = 1024;

/// A joiner asks for its state once in so many intervals at least.
const PATIENCE_MAX: u64 = 64;

/// A member waits so many intervals for the answer before it asks another one.
const ANSWER_PATIENCE: u64 = 32;

/// One that leaves an engine which needs a majority goes after so many intervals, whatever it waits for.
const LEAVE_PATIENCE: u64 = 32;

/// Members and newcomers of whom it is kept how far they are.
const REACHED_MAX: usize = 2 * MAX_MEMBERS;

enum Stage {
    /// Waits for its transfer; keeps what it hears.
    Joining,
    Running,
    /// Applied its own leave in this instance; stays until these others have applied it too.
    Leaving {
        instance: Instance,
        waits_for: MemberSet,
        given: Given,
    },
    Halted(Halted),
}

/// What one who leaves gives to those who need a state: that of its leave, since its engine may go on without the log.
enum Given {
    /// Its leave is being applied.
    NotYet,
    /// Its own, with [`Engine::start_point`] as it was then.
    Own(Option<Value>),
    /// It learnt of its leave by this.
    Taken(Box<Transfer>),
}

/// What came too early.
enum Early {
    Message(MemberId, EngineMessage),
    /// With the time of its arrival, by which engines judge it.
    Copy(MemberId, usize, EngineMessage, u64),
    Piggyback(MemberId, EngineMessage),
}

/// One member's replica of the log.
pub struct Log {
    me: MemberId,
    config: Config,
    build: Build,
    stage: Stage,
    epoch: Epoch,
    kind: Kind,
    engine: Option<Box<dyn Engine<EngineMessage> + Send>>,
    /// The engine before, its epoch, and who has not said yet that it is done with it.
    previous: Option<(Epoch, Box<dyn Engine<EngineMessage> + Send>, MemberSet)>,
    members: MemberSet,
    crashed: MemberSet,
    /// May have; nothing that engines rely on.
    suspected: MemberSet,
    highest: MemberId,
    /// To whom the state goes next.
    owed: MemberSet,
    /// Joined, but have not shown yet that they got their transfer.
    arriving: MemberSet,
    through: Instance,
    position: Position,
    applied: BTreeMap<MemberId, Numbers>,
    /// Own entries that were not applied yet, and how many of them the engine has.
    pending: VecDeque<Entry>,
    offered: usize,
    next_number: u64,
    /// Whose own leave was just applied.
    leaver: Option<MemberId>,
    /// The furthest that each member said it reached: it may be further than we are, and does not say so again.
    reached: BTreeMap<MemberId, (Epoch, Instance)>,
    /// Whose leave we proposed since we lead.
    evicting: MemberSet,
    snapshot: (Position, Option<Value>),
    tail: VecDeque<Entry>,
    early: VecDeque<(Epoch, Early)>,
    /// Copies were dropped of which the state on its way knows nothing.
    dropped: bool,
    /// Whom we asked how things stand.
    asked: Option<MemberId>,
    /// Who was asked lately, and when; and when we look again, because somebody would have been asked too soon.
    asked_at: BTreeMap<MemberId, u64>,
    /// The last one that was asked and did not answer in time.
    unanswered_by: Option<MemberId>,
    ask_again_ns: Option<u64>,
    /// How long a joiner waits for its state before it asks the next one.
    patience_ns: u64,
    /// When one that leaves waits no longer; and whether that was.
    goes_at_ns: Option<u64>,
    has_waited: bool,
    /// Who left behind our own leave, as far as our engine went on.
    left_later: BTreeSet<MemberId>,
    /// Who joined then.
    joined_later: BTreeSet<MemberId>,
    /// Who left, before us or behind us, and has not said yet that it applied that: by which instance it is to be.
    on_leave: BTreeMap<MemberId, Instance>,
    /// Who left before us and may still be there: they wait for us, where nobody stays.
    left_before: BTreeSet<MemberId>,
    /// Whether it was ours to welcome who arrives when we last looked.
    welcomes: bool,
    /// Which epoch's engine rode on the last heartbeat.
    rode: Epoch,
    outputs: VecDeque<Output>,
    refusals: Refusals,
}

impl Log {
    /// A member that starts the group together with all others in `members`, with instance 1.
    ///
    /// # Errors
    /// [`Refused::NotMember`] for members without `me`, [`Refused::TooLarge`] for more than [`MAX_MEMBERS`], [`Refused::Malformed`] if `build` has
    /// not got that engine, or not for these members.
    pub fn new(
        now_ns: u64,
        me: MemberId,
        kind: Kind,
        members: MemberSet,
        config: Config,
        mut build: Build,
    ) -> Result<Self, Refused> {
        if !members.contains(me) {
            return Err(Refused::NotMember);
        }
        if members.len() > MAX_MEMBERS {
            return Err(Refused::TooLarge);
        }
        let setup =
            Setup { me, kind, first: 1, members: members.clone(), crashed: MemberSet::new(), now_ns, joins: false, start: None };
        let engine = build(&setup).ok_or(Refused::Malformed)?;
        let mut log = Self::empty(me, config, build);
        log.highest = members.iter().next_back().unwrap_or(me);
        log.kind = kind;
        log.members = members;
        log.engine = Some(engine);
        log.stage = Stage::Running;
        log.drain(now_ns);
        Ok(log)
    }

    /// Begins behind these entries instead of an empty log: to be called right after [`Log::new`],
    /// by all members alike. They come out as those of a [`Transfer`] do, first.
    pub fn go_on_from(&mut self, snapshot_position: Position, snapshot: Option<Value>, entries: Vec<Entry>) {
        debug_assert_eq!((self.position, self.pending.len()), (0, 0), "nothing was applied yet");
        let outputs = std::mem::take(&mut self.outputs);
        self.install(0, snapshot_position, snapshot, entries);
        self.outputs.extend(outputs);
    }

    /// A member that joins: hand it everything that it hears from now on, have some member [`Log::admit`] it, and wait for the transfer.
    #[must_use]
    pub fn join(me: MemberId, config: Config, build: Build) -> Self {
        Self::empty(me, config, build)
    }

    fn empty(me: MemberId, config: Config, build: Build) -> Self {
        Self {
            me,
            config,
            build,
            stage: Stage::Joining,
            epoch: 0,
            kind: Kind::Hsuc,
            engine: None,
            previous: None,
            members: MemberSet::new(),
            crashed: MemberSet::new(),
            suspected: MemberSet::new(),
            highest: me,
            owed: MemberSet::new(),
            arriving: MemberSet::new(),
            through: 0,
            position: 0,
            applied: BTreeMap::new(),
            pending: VecDeque::new(),
            offered: 0,
            next_number: 1,
            leaver: None,
            reached: BTreeMap::new(),
            evicting: MemberSet::new(),
            snapshot: (0, None),
            tail: VecDeque::new(),
            early: VecDeque::new(),
            dropped: false,
            asked: None,
            asked_at: BTreeMap::new(),
            unanswered_by: None,
            ask_again_ns: None,
            patience_ns: config.ask_interval_ns,
            goes_at_ns: None,
            has_waited: false,
            left_later: BTreeSet::new(),
            joined_later: BTreeSet::new(),
            on_leave: BTreeMap::new(),
            left_before: BTreeSet::new(),
            welcomes: false,
            rode: 0,
            outputs: VecDeque::new(),
            refusals: Refusals::default(),
        }
    }

    // What the application does.

    /// Proposes a value. It is applied once, everywhere, unless this member crashes or halts before.
    ///
    /// # Errors
    /// [`Refused::TooLarge`] over [`VALUE_MAX`]; [`Refused::Busy`] when as many entries wait as may wait; [`Refused::Halted`].
    pub fn propose(&mut self, now_ns: u64, value: Value) -> Result<EntryId, Refused> {
        if value.len() > VALUE_MAX {
            return Err(self.refusals.count(Refused::TooLarge));
        }
        self.put(now_ns, Body::Value(value))
    }

    /// Proposes that `member` joins. It is void if a member of that id or a higher one has joined before.
    ///
    /// # Errors
    /// As [`Log::propose`]; [`Refused::Duplicate`] for an id that was used; [`Refused::TooLarge`] for a group that is full.
    pub fn admit(&mut self, now_ns: u64, member: MemberId) -> Result<EntryId, Refused> {
        if member <= self.highest {
            return Err(self.refusals.count(Refused::Duplicate));
        }
        if self.members.len() >= MAX_MEMBERS {
            return Err(self.refusals.count(Refused::TooLarge));
        }
        self.put(now_ns, Body::Join(member))
    }

    /// Proposes that this member leaves. It halts with [`Halted::Left`] when everybody knows.
    ///
    /// # Errors
    /// As [`Log::propose`].
    pub fn leave(&mut self, now_ns: u64) -> Result<EntryId, Refused> {
        self.put(now_ns, Body::Leave(self.me))
    }

    /// Proposes another engine. Void where [`Build`] makes none of that kind, at all members alike: it must not, when the group's policy does not suit it
    /// ([`Policy::suits`](super::policy::Policy::suits)), since the log knows of no policy.
    ///
    /// # Errors
    /// As [`Log::propose`].
    pub fn switch(&mut self, now_ns: u64, kind: Kind) -> Result<EntryId, Refused> {
        self.put(now_ns, Body::Switch(kind))
    }

    /// The application's state after `position` entries: what was applied before need not be kept any more.
    ///
    /// # Errors
    /// [`Refused::Malformed`] for a position that was not applied yet, [`Refused::Duplicate`] for one before the last snapshot.
    pub fn keep_snapshot(&mut self, position: Position, state: Value) -> Result<(), Refused> {
        if position > self.position {
            return Err(self.refusals.count(Refused::Malformed));
        }
        if position < self.snapshot.0 {
            return Err(self.refusals.count(Refused::Duplicate));
        }
        self.tail.drain(..(position - self.snapshot.0) as usize);
        self.snapshot = (position, Some(state));
        Ok(())
    }

    fn put(&mut self, now_ns: u64, body: Body) -> Result<EntryId, Refused> {
        match self.stage {
            Stage::Running => {}
            Stage::Joining => return Err(self.refusals.count(Refused::NotMember)),
            Stage::Leaving { .. } | Stage::Halted(_) => return Err(self.refusals.count(Refused::Halted)),
        }
        if self.pending.len() >= self.config.pending_max {
            return Err(self.refusals.count(Refused::Busy));
        }
        let id = self.next_id();
        self.pending.push_back(Entry { id, body });
        self.offer(now_ns);
        self.drain(now_ns);
        Ok(id)
    }

    /// A number that no entry of ours has, nor one that somebody made in our name: ours would be void behind that.
    fn next_id(&mut self) -> EntryId {
        while self.applied.get(&self.me).is_some_and(|numbers| numbers.contains(self.next_number)) {
            self.next_number += 1;
        }
        let id = EntryId { proposer: self.me, number: self.next_number };
        self.next_number += 1;
        id
    }

    // What arrives.

    /// Over the reliable link.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn handle_message(&mut self, now_ns: u64, from: MemberId, message: Message) -> Result<(), Refused> {
        self.known(from)?;
        let result = match message {
            Message::Engine { epoch, body } => self.route(now_ns, epoch, Early::Message(from, body)),
            Message::Reached { epoch, instance } => self.reached(now_ns, from, epoch, instance),
            Message::Ask => {
                // Also to one who does not know that it left.
                if from > self.highest || !self.has_state() {
                    Err(self.refusals.count(Refused::NotMember))
                } else {
                    self.transfer(from);
                    Ok(())
                }
            }
            Message::Transfer(transfer) => {
                let taken = self.take_transfer(now_ns, from, *transfer);
                // What it was too old for is asked of others.
                if taken.is_ok() {
                    if self.asked_at.get(&from).is_none_or(|at| *at < now_ns) {
                        self.asked.take_if(|asked| *asked == from);
                    }
                    self.ask_another(now_ns);
                }
                taken
            }
        };
        self.drain(now_ns);
        result
    }

    /// A copy of a broadcast. The time is that of its arrival, which may be before that of the last call.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn handle_copy(&mut self, now_ns: u64, from: MemberId, path: usize, message: Message) -> Result<(), Refused> {
        self.known(from)?;
        let Message::Engine { epoch, body } = message else { return Err(self.refusals.count(Refused::Malformed)) };
        let result = self.route(now_ns, epoch, Early::Copy(from, path, body, now_ns));
        self.drain(now_ns);
        result
    }

    /// The copies of this epoch's last broadcast have left, on all paths.
    pub fn handle_copies_sent(&mut self, now_ns: u64, epoch: Epoch) {
        if self.halted().is_some() {
            return;
        }
        if let Some(engine) = self.engine_of(epoch) {
            engine.handle_copies_sent(now_ns);
        }
        self.drain(now_ns);
    }

    /// On some path they could not leave to anybody.
    pub fn handle_copies_void(&mut self, now_ns: u64, epoch: Epoch) {
        if self.halted().is_some() {
            return;
        }
        if let Some(engine) = self.engine_of(epoch) {
            engine.handle_copies_void(now_ns);
        }
        self.drain(now_ns);
    }

    /// The first copy of a piggyback.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn handle_piggyback(&mut self, now_ns: u64, from: MemberId, message: Message) -> Result<(), Refused> {
        self.known(from)?;
        let Message::Engine { epoch, body } = message else { return Err(self.refusals.count(Refused::Malformed)) };
        let result = self.route(now_ns, epoch, Early::Piggyback(from, body));
        self.drain(now_ns);
        result
    }

    /// What rides on the heartbeat that is about to leave.
    pub fn poll_piggyback(&mut self, now_ns: u64) -> Option<Message> {
        if let Stage::Halted(_) = self.stage {
            return None;
        }
        let mut found = None;
        if let Some((epoch, engine, _)) = &mut self.previous {
            found = engine.poll_piggyback(now_ns).map(|body| (*epoch, body));
        }
        if found.is_none() {
            found = self.engine.as_mut()?.poll_piggyback(now_ns).map(|body| (self.epoch, body));
        }
        self.drain(now_ns);
        let (epoch, body) = found?;
        self.rode = epoch;
        Some(Message::Engine { epoch, body })
    }

    /// The heartbeat with the last piggyback has left on all paths.
    pub fn handle_piggyback_sent(&mut self, now_ns: u64) {
        if self.halted().is_some() {
            return;
        }
        let rode = self.rode;
        if let Some(engine) = self.engine_of(rode) {
            engine.handle_piggyback_sent(now_ns);
        }
        self.drain(now_ns);
    }

    /// The answer of `from`'s memory of `epoch`.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn handle_memory(
        &mut self,
        now_ns: u64,
        from: MemberId,
        epoch: Epoch,
        id: memory::RequestId,
        answer: memory::Answer,
    ) -> Result<(), Refused> {
        if self.halted().is_some() {
            return Err(self.refusals.count(Refused::Halted));
        }
        let result = match self.engine_of(epoch) {
            Some(engine) => engine.handle_memory(now_ns, from, id, answer),
            None => Err(Refused::OldInstance),
        };
        self.drain(now_ns);
        result.map_err(|why| self.refusals.count(why))
    }

    /// `member` has crashed: this is true.
    ///
    /// # Errors
    /// [`Refused::Duplicate`] if it was known; [`Refused::Halted`].
    pub fn handle_crash(&mut self, now_ns: u64, member: MemberId) -> Result<(), Refused> {
        if self.halted().is_some() {
            return Err(self.refusals.count(Refused::Halted));
        }
        if member == self.me {
            self.halt(Halted::Expelled);
            return Ok(());
        }
        if !self.crashed.insert(member) {
            return Err(self.refusals.count(Refused::Duplicate));
        }
        self.arriving.remove(member);
        if self.members.contains(member)
            && let Some(engine) = &mut self.engine
        {
            let _ = engine.handle_crash(now_ns, member);
        }
        self.asked.take_if(|asked| *asked == member);
        self.ask_another(now_ns);
        if let Some((_, engine, waits_for)) = &mut self.previous {
            let _ = engine.handle_crash(now_ns, member);
            waits_for.remove(member);
        }
        if let Stage::Leaving { waits_for, .. } = &mut self.stage {
            waits_for.remove(member);
        }
        self.on_leave.remove(&member);
        self.left_before.remove(&member);
        self.drain(now_ns);
        Ok(())
    }

    /// `member` may have crashed. Engines that need accuracy are not told.
    pub fn handle_suspect(&mut self, now_ns: u64, member: MemberId) {
        if self.halted().is_some() {
            return;
        }
        self.suspected.insert(member);
        self.asked.take_if(|asked| *asked == member);
        self.ask_another(now_ns);
        for engine in self.previous.iter_mut().map(|(_, engine, _)| engine).chain(&mut self.engine) {
            if !engine.kind().needs_accuracy() {
                let _ = engine.handle_crash(now_ns, member);
            }
        }
        self.drain(now_ns);
    }

    /// A new engine, or one with new members, has not heard of crashes and hints.
    fn repeat_crashes(&mut self, now_ns: u64) {
        if let Some(engine) = &mut self.engine {
            for member in self.crashed.iter().filter(|member| self.members.contains(*member)) {
                let _ = engine.handle_crash(now_ns, member);
            }
        }
        let Some(engine) = self.engine.as_mut().filter(|engine| !engine.kind().needs_accuracy()) else { return };
        for member in self.suspected.iter().filter(|member| self.members.contains(*member) && !self.crashed.contains(*member)) {
            let _ = engine.handle_crash(now_ns, member);
        }
    }

    /// A suspected member is back in sight.
    pub fn handle_alive(&mut self, now_ns: u64, member: MemberId) {
        if self.halted().is_some() {
            return;
        }
        self.suspected.remove(member);
        if !self.crashed.contains(member) {
            self.ask_another(now_ns); // it may be the one that knows more
            for engine in self.previous.iter_mut().map(|(_, engine, _)| engine).chain(&mut self.engine) {
                engine.handle_alive(now_ns, member);
            }
            self.drain(now_ns);
        }
    }

    /// Copies are missing, or the contract is broken.
    pub fn handle_network_fault(&mut self, now_ns: u64) {
        if self.halted().is_some() {
            return;
        }
        for engine in self.previous.iter_mut().map(|(_, engine, _)| engine).chain(&mut self.engine) {
            engine.handle_network_fault(now_ns);
        }
        self.drain(now_ns);
    }

    /// The group's policy stops this member.
    pub fn stop(&mut self, why: Halted) {
        self.halt(why);
    }

    /// When [`Log::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        if let Stage::Halted(_) = self.stage {
            return None;
        }
        let of_previous = self.previous.as_ref().and_then(|(_, engine, _)| engine.poll_timeout());
        let of_engine = self.engine.as_ref().and_then(|engine| engine.poll_timeout());
        of_previous.into_iter().chain(of_engine).chain(self.ask_again_ns).chain(self.answer_due_ns()).chain(self.goes_at_ns).min()
    }

    /// The time has come.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.halted().is_some() {
            return;
        }
        for engine in self.previous.iter_mut().map(|(_, engine, _)| engine).chain(&mut self.engine) {
            if engine.poll_timeout().is_some_and(|at| at <= now_ns) {
                engine.handle_timeout(now_ns);
            }
        }
        self.has_waited |= self.goes_at_ns.take_if(|at| *at <= now_ns).is_some();
        let is_unanswered = self.answer_due_ns().is_some_and(|due_ns| due_ns <= now_ns);
        if self.ask_again_ns.take_if(|at| *at <= now_ns).is_some() || is_unanswered {
            if matches!(self.stage, Stage::Joining) {
                self.ask_for_our_state(now_ns);
            }
            self.ask_another(now_ns);
        }
        self.drain(now_ns);
    }

    /// Whether something is to be done.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    // What can be asked.

    /// Who we are.
    #[must_use]
    pub fn me(&self) -> MemberId {
        self.me
    }

    /// The members as agreed through [`Log::decided_through`]; crashed ones are in it until their leave is applied.
    #[must_use]
    pub fn members(&self) -> &MemberSet {
        &self.members
    }

    /// See [`Engine::quorums`].
    #[must_use]
    pub fn quorums(&self) -> Vec<MemberSet> {
        self.engine.as_ref().map(|engine| engine.quorums()).unwrap_or_default()
    }

    /// The highest id that ever joined, as far as is known here.
    #[must_use]
    pub fn highest(&self) -> MemberId {
        self.highest
    }

    /// Those who are known here to have crashed.
    #[must_use]
    pub fn crashed(&self) -> &MemberSet {
        &self.crashed
    }

    /// The engine in use.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How many times the engine was changed.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The last instance that was decided here.
    #[must_use]
    pub fn decided_through(&self) -> Instance {
        self.through
    }

    /// How many entries were applied here.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// Every member alive has decided this and all before.
    #[must_use]
    pub fn stable_through(&self) -> Instance {
        self.engine.as_ref().map_or(0, |engine| engine.stable_through())
    }

    /// Own entries that were not applied yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether it has its state and takes part.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running)
    }

    /// Whether it has left and stays until the others have applied that. It waits for them, newcomers too, so it must be told who of
    /// [`Log::concerned`] crashed, as while it was running.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. })
    }

    /// Of whose crash it must be told: that of every member; and if it leaves an engine that needs a majority, that of those who left or joined about then.
    #[must_use]
    pub fn concerned(&self) -> MemberSet {
        let about_then = self.on_leave.keys().chain(&self.joined_later).copied();
        self.members.iter().chain(about_then.filter(|_| self.is_leaving() && !self.kind.needs_accuracy())).collect()
    }

    /// Whom this member believes to lead.
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        self.engine.as_ref().and_then(|engine| engine.leader())
    }

    /// Why it stopped, if it did.
    #[must_use]
    pub fn halted(&self) -> Option<Halted> {
        match self.stage {
            Stage::Halted(why) => Some(why),
            _ => None,
        }
    }

    /// What was refused here, by the log or by its engine.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Panics if the state is one that it must never be in.
    pub fn invariants(&self) {
        assert_eq!(self.snapshot.0 + self.tail.len() as u64, self.position, "snapshot and tail are all that was applied");
        assert!(self.offered <= self.pending.len(), "no more is with the engine than waits");
        assert!(self.pending.len() <= self.config.pending_max + 2 * MAX_MEMBERS, "what waits is bounded");
        assert!(self.early.len() <= self.config.early_max, "what came early is bounded");
        assert!(self.members.iter().all(|member| member <= self.highest), "the highest id is the highest");
        assert!(
            self.pending.iter().all(|entry| entry.id.proposer == self.me && entry.id.number < self.next_number),
            "only what we proposed waits here"
        );
        assert!(
            self.pending.iter().all(|entry| !self.applied.get(&self.me).is_some_and(|numbers| numbers.contains(entry.id.number))),
            "what was applied waits no more"
        );
        if let Some(engine) = &self.engine {
            engine.invariants();
            assert!(engine.decided_through() >= self.through || self.previous.is_some() || self.halted().is_some());
        }
    }

    // Between the parts.

    fn known(&mut self, from: MemberId) -> Result<(), Refused> {
        if let Stage::Halted(_) = self.stage {
            return Err(self.refusals.count(Refused::Halted));
        }
        if from == self.me {
            return Err(self.refusals.count(Refused::Malformed));
        }
        // A newcomer may be heard of before its join is applied here; ids grow, and no more than a group of them can be on their way.
        let may_be = matches!(self.stage, Stage::Joining) || from <= self.highest;
        if from.0 == 0 || !may_be && from.0 - self.highest.0 > MAX_MEMBERS as u16 {
            return Err(self.refusals.count(Refused::UnknownMember));
        }
        Ok(())
    }

    /// Nobody is so many changes of the engine ahead of a member.
    fn is_too_far(&self, epoch: Epoch) -> bool {
        !matches!(self.stage, Stage::Joining) && epoch.saturating_sub(self.epoch) > EPOCHS_AHEAD_MAX
    }

    fn engine_of(&mut self, epoch: Epoch) -> Option<&mut Box<dyn Engine<EngineMessage> + Send>> {
        if epoch == self.epoch {
            return self.engine.as_mut();
        }
        self.previous.as_mut().filter(|(of, ..)| *of == epoch).map(|(_, engine, _)| engine)
    }

    /// To the engine of its epoch; what is early waits, what is late is void.
    fn route(&mut self, now_ns: u64, epoch: Epoch, early: Early) -> Result<(), Refused> {
        if matches!(self.stage, Stage::Joining) || epoch > self.epoch {
            let is_full = self.early.len() >= self.config.early_max;
            if self.is_too_far(epoch) || (is_full && !self.drop_copies()) {
                return Err(self.refusals.count(Refused::TooFarAhead));
            }
            self.early.push_back((epoch, early));
            self.catch_up(now_ns);
            return Ok(());
        }
        let from = early.from();
        // One who has left may wait for some of us in the engine before, and others have that no more: it must know how far we all are.
        let takes_hints = self.previous.as_ref().is_some_and(|(of, engine, _)| *of == epoch && !engine.kind().needs_accuracy());
        let answered = takes_hints && self.answer_leaver(from, 0);
        if let Some(engine) = self.engine_of(epoch) {
            return match hand(engine.as_mut(), now_ns, early) {
                Err(_) if answered => Ok(()),
                taken => taken.map_err(|why| self.refusals.count(why)),
            };
        }
        // One who has left may wait for what its engine will never be told.
        if self.answer_leaver(from, 0) { Ok(()) } else { Err(self.refusals.count(Refused::OldInstance)) }
    }

    /// A joiner whose state takes long makes room: its copies are too old by the next state, which it then asks for.
    fn drop_copies(&mut self) -> bool {
        let before = self.early.len();
        if matches!(self.stage, Stage::Joining) {
            self.early.retain(|(_, early)| matches!(early, Early::Message(..)));
        }
        self.dropped |= self.early.len() < before;
        self.early.len() < before
    }

    /// Asks the first of those `who` know more how things stand, unless an answer is on its way; of whom was asked lately only later
    /// ([`Config::ask_interval_ns`]). Needed by few only, because the engine before a switch lives on until everyone is through: by one who leaves,
    /// whom the engines of the others have forgotten when its leave was decided, and by those of [`Log::catch_up`].
    fn ask(&mut self, now_ns: u64, who: &[MemberId]) {
        let interval_ns = self.config.ask_interval_ns;
        if let Some(asked) = self.asked {
            // It may have left, or be dead, and nobody says that of who is no member.
            if matches!(self.stage, Stage::Joining) || self.answer_due_ns().is_some_and(|due_ns| now_ns < due_ns) {
                return;
            }
            self.asked = None;
            self.unanswered_by = Some(asked);
        }
        self.asked_at.retain(|_, at| now_ns < at.saturating_add(interval_ns));
        // Whoever left us waiting is the last one to be asked again.
        let mut in_turn = who.to_vec();
        if let Some(last) = self.unanswered_by {
            in_turn.sort_unstable_by_key(|who| (*who <= last, *who));
        }
        if let Some(who) = in_turn.into_iter().find(|who| !self.asked_at.contains_key(who)) {
            self.asked = Some(who);
            self.asked_at.insert(who, now_ns);
            self.outputs.push_back(Output::Send { to: who, message: Message::Ask });
        } else if let Some(at) = who.iter().filter_map(|who| self.asked_at.get(who)).min() {
            self.ask_again_ns = Some(at.saturating_add(interval_ns));
        }
    }

    /// When whoever was asked will not answer any more. Who joins has a patience of its own.
    fn answer_due_ns(&self) -> Option<u64> {
        let asked = self.asked.filter(|_| !matches!(self.stage, Stage::Joining))?;
        let patience_ns = self.config.ask_interval_ns.saturating_mul(ANSWER_PATIENCE);
        Some(self.asked_at.get(&asked)?.saturating_add(patience_ns))
    }

    /// Whoever was asked has answered, or will not.
    fn ask_another(&mut self, now_ns: u64) {
        self.catch_up(now_ns);
        self.ask_of_our_leave(now_ns);
    }

    /// Our leave waits, and others are further: it may have been decided without us.
    fn ask_of_our_leave(&mut self, now_ns: u64) {
        let leaves = self.pending.iter().any(|entry| entry.body == Body::Leave(self.me));
        if leaves && matches!(self.stage, Stage::Running) {
            let is_gone = |member: &MemberId| self.crashed.contains(*member) || self.suspected.contains(*member);
            let further = self.reached.iter().filter(|(from, (_, instance))| *instance > self.through && !is_gone(from));
            let further: Vec<_> = further.map(|(from, _)| *from).collect();
            self.ask(now_ns, &further);
        }
    }

    /// A joiner whose state did not come asks for it, one after the other of those who have applied its join: whoever led then may be dead, and who leads now
    /// may have come by a state itself and know of no newcomer.
    fn ask_for_our_state(&mut self, now_ns: u64) {
        let is_gone = |member: &MemberId| self.crashed.contains(*member) || self.suspected.contains(*member);
        let last = self.asked.take();
        self.asked_at.clear();
        let (behind, before): (Vec<_>, Vec<_>) =
            self.reached.keys().filter(|member| !is_gone(member)).partition(|member| Some(**member) > last);
        self.ask(now_ns, &[behind, before].concat());
        // A large state takes its time, and each answer is another one.
        self.patience_ns = self.patience_ns.saturating_mul(2).min(self.config.ask_interval_ns.saturating_mul(PATIENCE_MAX));
        self.ask_again_ns = Some(now_ns.saturating_add(self.patience_ns));
    }

    /// Asks somebody in a later epoch, if our engine may never decide the switch: its last source may be dead, and those who are through are told of
    /// crashes as their new engine wants it, not as the old one did; or they changed twice, and have the engine of our epoch no more; or a majority is
    /// through, and who of them got there by a transfer never had the old engine behind the switch.
    fn catch_up(&mut self, now_ns: u64) {
        if matches!(self.stage, Stage::Joining) {
            return;
        }
        let is_gone = |member: MemberId| self.crashed.contains(member) || self.suspected.contains(member);
        // Raft counts on those who have left, too, until it is done without them.
        let voters = self.quorums();
        let has_left = |voter| !self.members.contains(voter);
        let source_is_gone = self.members.iter().any(is_gone)
            || voters.iter().flat_map(MemberSet::iter).any(|voter| is_gone(voter) || has_left(voter));
        let heard = self.early.iter().map(|(epoch, early)| (early.from(), *epoch));
        let ahead = heard.chain(self.reached.iter().map(|(from, (epoch, _))| (*from, *epoch)));
        let is_through = |member: &MemberId| self.reached.get(member).is_some_and(|(epoch, _)| *epoch > self.epoch);
        let on_our_own = self.members.iter().filter(is_through).count() >= self.members.majority();
        let needed = |epoch: Epoch| epoch > self.epoch + 1 || (epoch > self.epoch && (source_is_gone || on_our_own));
        // Whoever is not known here may be nobody, and is not waited for.
        let is_known = |member: MemberId| self.members.contains(member);
        let ahead = ahead.filter(|(from, epoch)| needed(*epoch) && is_known(*from) && !is_gone(*from)).map(|(from, _)| from);
        // One-sided Paxos decides without those who lag, and who told them may be dead: then a newcomer that they never heard of may be the only one who knows more.
        let lags = !self.kind.needs_accuracy() && source_is_gone;
        let further = |(epoch, instance): (Epoch, Instance)| {
            epoch > self.epoch || (epoch == self.epoch && instance > self.through && self.kind == Kind::Paxos)
        };
        let newcomers =
            self.reached.iter().filter(|(from, reached)| **from > self.highest && further(**reached) && !is_gone(**from));
        let ahead: Vec<_> = ahead.chain(newcomers.filter(|_| lags).map(|(from, _)| *from)).collect();
        self.ask(now_ns, &ahead);
    }

    fn reached(&mut self, now_ns: u64, from: MemberId, epoch: Epoch, instance: Instance) -> Result<(), Refused> {
        if self.is_too_far(epoch) || instance >= Instance::MAX / 2 {
            return Err(self.refusals.count(Refused::TooFarAhead));
        }
        if self.reached.len() < REACHED_MAX || self.reached.contains_key(&from) {
            let known = self.reached.entry(from).or_default();
            *known = (*known).max((epoch, instance));
        }
        if matches!(self.stage, Stage::Joining) {
            // Our join is applied there. Whoever is to send the state does so now, if it lives.
            self.ask_again_ns.get_or_insert(now_ns.saturating_add(self.config.ask_interval_ns));
            return Ok(());
        }
        self.answer_leaver(from, instance);
        self.catch_up(now_ns);
        self.arriving.remove(from);
        self.ask_of_our_leave(now_ns);
        if let Some((of, _, waits_for)) = &mut self.previous
            && epoch > *of
        {
            waits_for.remove(from);
        }
        if let Stage::Leaving { instance: ours, waits_for, .. } = &mut self.stage
            && instance >= *ours
        {
            waits_for.remove(from);
        }
        if self.on_leave.get(&from).is_some_and(|of_leave| instance >= *of_leave) {
            self.on_leave.remove(&from);
        }
        Ok(())
    }

    /// One who left waits for all who were members then. A newcomer whose state was taken behind that leave does not know it, so it says how far it
    /// is when it hears of it.
    fn answer_leaver(&mut self, from: MemberId, instance: Instance) -> bool {
        let left = from <= self.highest && !self.members.contains(from);
        let answers = left && self.through >= instance && matches!(self.stage, Stage::Running);
        if answers {
            let message = Message::Reached { epoch: self.epoch, instance: self.through };
            self.outputs.push_back(Output::Send { to: from, message });
        }
        answers
    }

    /// Everything that the engines want, until they want nothing: then the log's own duties.
    fn drain(&mut self, now_ns: u64) {
        if let Stage::Halted(_) = self.stage {
            return;
        }
        self.drain_engines(now_ns);
        if let Stage::Halted(_) = self.stage {
            return;
        }
        self.pay_transfers();
        if self.previous.as_ref().is_some_and(|(_, _, waits_for)| waits_for.is_empty()) {
            self.previous = None;
        }
        if self.may_go() {
            self.halt(Halted::Left);
            return;
        }
        if matches!(self.stage, Stage::Running) {
            self.duties_of_a_leader();
            self.pay_transfers();
            if self.offered < self.pending.len() && self.offer(now_ns) {
                self.drain(now_ns);
            }
        }
    }

    /// Whether it has left, and nobody needs it any more. Hints make nobody go: whoever is only suspected may live, and may be unable to learn of our leave without
    /// us. So engines that take hints have a last moment ([`LEAVE_PATIENCE`]); the others are told in the end who is dead.
    fn may_go(&self) -> bool {
        let Stage::Leaving { waits_for, .. } = &self.stage else { return false };
        // Who leaves, too, may have to learn that with our vote.
        let is_known = waits_for.is_empty() && (self.kind.needs_accuracy() || self.on_leave.is_empty());
        let is_released = || self.engine.as_ref().is_none_or(|engine| engine.may_leave()) || self.is_forgotten();
        self.has_waited || (is_known && is_released())
    }

    /// All who live are behind a change of the engine, or leave, too: nobody needs ours any more.
    fn is_forgotten(&self) -> bool {
        let is_through = |member| self.reached.get(&member).is_some_and(|(epoch, _)| *epoch > self.epoch);
        let is_gone = |member| self.crashed.contains(member) || self.left_later.contains(&member);
        self.others_behind_us().all(|member| is_gone(member) || is_through(member))
    }

    /// The members when we left (whoever learnt of its own leave by a later epoch's state is still among them), and who joined since as far as our engine went on.
    fn others_behind_us(&self) -> impl Iterator<Item = MemberId> {
        self.members.iter().filter(|member| *member != self.me).chain(self.joined_later.iter().copied())
    }

    fn stays_behind_us(&self, member: MemberId) -> bool {
        self.others_behind_us().any(|other| other == member) && !self.left_later.contains(&member)
    }

    fn bound_the_wait(&mut self, now_ns: u64) {
        if !self.kind.needs_accuracy() {
            self.goes_at_ns = Some(now_ns.saturating_add(self.config.ask_interval_ns.saturating_mul(LEAVE_PATIENCE)));
        }
    }

    /// `member` left by its own will: others that leave may have to wait until it has applied that.
    fn note_leave(&mut self, member: MemberId, instance: Instance) {
        let has_applied = self.reached.get(&member).is_some_and(|(_, reached)| *reached >= instance);
        if has_applied || self.crashed.contains(member) {
            return;
        }
        self.on_leave.insert(member, instance);
        if self.on_leave.len() > REACHED_MAX {
            self.on_leave.pop_first(); // ids grow: long ago
        }
    }

    /// What the engines want, until they want nothing.
    fn drain_engines(&mut self, now_ns: u64) {
        loop {
            let mut next = None;
            if let Some((epoch, engine, _)) = &mut self.previous {
                next = engine.poll_action().map(|action| (*epoch, action));
            }
            if next.is_none() {
                let epoch = self.epoch;
                next = self.engine.as_mut().and_then(|engine| engine.poll_action()).map(|action| (epoch, action));
            }
            let Some((epoch, action)) = next else { break };
            match action {
                Action::Send { to, message } => {
                    self.outputs.push_back(Output::Send { to, message: Message::Engine { epoch, body: message } });
                }
                Action::Copies { message } => {
                    self.outputs.push_back(Output::Copies { message: Message::Engine { epoch, body: message } });
                }
                Action::Memory { to, request } => self.outputs.push_back(Output::Memory { to, epoch, request }),
                // Behind the switch nothing of the old engine counts.
                Action::Decide { instance, batch } if epoch == self.epoch => self.decided(now_ns, instance, &batch),
                Action::State { to } if self.has_state() => self.transfer(to),
                // The others may not have applied it yet: that the leaver is gone must not reach
                // them before its leave does.
                Action::Halt(Halted::Left) if self.is_leaving() => {}
                Action::Halt(why) if epoch == self.epoch => self.halt(why),
                Action::Decide { .. } | Action::State { .. } | Action::Halt(_) => {}
            }
            if let Stage::Halted(_) = self.stage {
                return;
            }
        }
    }

    /// Gives the engine what waits, in order, as much as it takes; whether it took any.
    fn offer(&mut self, now_ns: u64) -> bool {
        let before = self.offered;
        let Some(engine) = &mut self.engine else { return false };
        while let Some(entry) = self.pending.get(self.offered) {
            if engine.propose(now_ns, entry.clone()).is_err() {
                break;
            }
            self.offered += 1;
        }
        self.offered > before
    }

    /// Whoever leads has the crashed leave, and gives those who arrive their state.
    fn duties_of_a_leader(&mut self) {
        let welcomes = self.is_to_welcome();
        let welcomed = std::mem::replace(&mut self.welcomes, welcomes);
        if welcomes && !welcomed {
            self.welcome();
        }
        if self.leader() != Some(self.me) {
            self.evicting.clear();
            return;
        }
        let gone: Vec<_> =
            self.crashed.iter().filter(|member| self.members.contains(*member) && !self.evicting.contains(*member)).collect();
        for member in gone {
            self.evicting.insert(member);
            let id = self.next_id();
            self.pending.push_back(Entry { id, body: Body::Leave(member) });
        }
    }

    fn decided(&mut self, now_ns: u64, instance: Instance, batch: &Batch) {
        if !matches!(self.stage, Stage::Running) {
            // Behind our own leave: not applied, but whoever leaves then is waited for no more either, but for its own leave. What somebody proposed
            // who is not there any more is void, and entries may be decided twice.
            for entry in batch.iter() {
                match entry.body {
                    _ if !self.stays_behind_us(entry.id.proposer) => {}
                    Body::Leave(member) if self.stays_behind_us(member) => {
                        self.left_later.insert(member);
                        if entry.id.proposer == member {
                            self.note_leave(member, instance);
                        }
                    }
                    Body::Join(member)
                        if self.joined_later.last().is_none_or(|last| member > *last)
                            && member > self.highest
                            && self.joined_later.len() < MAX_MEMBERS =>
                    {
                        self.joined_later.insert(member);
                    }
                    _ => {}
                }
            }
            return;
        }
        assert_eq!(instance, self.through + 1, "engines decide in order");
        self.through = instance;
        let (mut control, before) = (false, self.epoch);
        for entry in batch.iter() {
            if !matches!(entry.body, Body::Value(_)) {
                control = true;
            }
            self.apply(now_ns, entry);
            if !matches!(self.stage, Stage::Running) {
                break;
            }
        }
        if control {
            self.behind_a_barrier(now_ns, self.epoch > before);
        }
    }

    fn apply(&mut self, now_ns: u64, entry: &Entry) {
        let EntryId { proposer, number } = entry.id;
        // Void: of someone who is not in the group any more, or applied before.
        if !self.members.contains(proposer) || !self.applied.entry(proposer).or_default().insert(number) {
            return;
        }
        if proposer == self.me
            && let Some(at) = self.pending.iter().position(|waiting| waiting.id == entry.id)
        {
            self.pending.remove(at);
            if at < self.offered {
                self.offered -= 1;
            }
        }
        self.position += 1;
        self.tail.push_back(entry.clone());
        self.outputs.push_back(Output::Apply { position: self.position, entry: entry.clone() });
        match &entry.body {
            Body::Value(_) => {}
            Body::Join(member) => self.applied_join(*member),
            Body::Leave(member) => self.applied_leave(proposer, *member),
            Body::Switch(kind) => self.applied_switch(now_ns, *kind),
        }
    }

    fn applied_join(&mut self, member: MemberId) {
        // Void if the id is not new, or the group full: the same everywhere.
        if member > self.highest && self.members.len() < MAX_MEMBERS {
            self.highest = member;
            self.members.insert(member);
            if !self.crashed.contains(member) {
                self.arriving.insert(member);
            }
        }
    }

    fn applied_leave(&mut self, proposer: MemberId, member: MemberId) {
        if !self.members.remove(member) {
            return;
        }
        self.applied.remove(&member);
        self.arriving.remove(member);
        self.evicting.remove(member);
        self.leaver = (member == proposer && member != self.me).then_some(member);
        if self.leaver.is_some() {
            self.note_leave(member, self.through);
            self.left_before.insert(member);
            if self.left_before.len() > REACHED_MAX {
                self.left_before.pop_first(); // as there
            }
        }
        if member == self.me && proposer != self.me {
            self.halt(Halted::Expelled);
        } else if member == self.me {
            let is_through = |other: &MemberId| self.reached.get(other).is_some_and(|(_, instance)| *instance >= self.through);
            let others = self.members.iter();
            let others = others.filter(|other| !self.crashed.contains(*other) && !is_through(other)).collect();
            self.stage = Stage::Leaving { instance: self.through, waits_for: others, given: Given::NotYet };
        }
    }

    fn applied_switch(&mut self, now_ns: u64, kind: Kind) {
        // Behind the last epoch no engine follows: the entry is void, for all alike.
        let Some(epoch) = self.epoch.checked_add(1) else { return };
        let setup = self.setup(now_ns, kind, false, None);
        // A kind that this build has not got is void; all members of a group run the same build.
        let Some(engine) = (self.build)(&setup) else { return };
        let is_through = |other: MemberId| self.reached.get(&other).is_some_and(|(epoch, _)| *epoch > self.epoch);
        let others = self.members.iter().filter(|other| *other != self.me && !self.crashed.contains(*other));
        let others: MemberSet = others.filter(|other| !is_through(*other)).collect();
        if let Some(old) = self.engine.replace(engine) {
            self.previous = Some((self.epoch, old, others));
        }
        self.epoch = epoch;
        self.kind = kind;
        self.offered = 0;
    }

    fn setup(&self, now_ns: u64, kind: Kind, joins: bool, start: Option<Value>) -> Setup {
        // What came early came before those crashes, so it is handed in before them: [`Log::repeat_crashes`].
        let crashed = MemberSet::new();
        Setup { me: self.me, kind, first: self.through + 1, members: self.members.clone(), crashed, now_ns, joins, start }
    }

    /// The batch with a control entry is applied: the engine may go on, unless it is a `new` one, and the others hear of it.
    fn behind_a_barrier(&mut self, now_ns: u64, new: bool) {
        let reached = Message::Reached { epoch: self.epoch, instance: self.through };
        // Who leaves waits for this, and is not among the members any more.
        let mut told: Vec<_> = self.members.iter().chain(self.leaver.take()).collect();
        if matches!(self.stage, Stage::Leaving { .. }) && !self.kind.needs_accuracy() {
            told.extend(&self.left_before);
        }
        for to in told.into_iter().filter(|to| *to != self.me && !self.crashed.contains(*to)) {
            self.outputs.push_back(Output::Send { to, message: reached.clone() });
        }
        // Who is not one yet may be ahead of us.
        let highest = self.highest;
        self.reached.retain(|member, _| self.members.contains(*member) || *member > highest);
        let (from, members) = (self.through + 1, self.members.clone());
        if let (Stage::Leaving { given, .. }, Some(engine)) = (&mut self.stage, &mut self.engine) {
            // The last moment at which what is said of the engine goes with what is said of the log.
            *given = Given::Own(engine.start_point());
            engine.set_leaving(now_ns, from, members);
            self.bound_the_wait(now_ns);
            return;
        }
        if !matches!(self.stage, Stage::Running) {
            return;
        }
        if let Some(engine) = self.engine.as_mut().filter(|_| !new)
            && let Err(why) = engine.set_members(now_ns, from, members)
            && why != Refused::Halted
        {
            // It would wait for ever.
            self.refusals.count(why);
            return self.halt(Halted::Contradiction);
        }
        self.take_early(now_ns);
        self.repeat_crashes(now_ns);
        if self.is_to_welcome() {
            self.welcome();
        }
    }

    /// Whoever leads; while nobody does, the lowest who is there: those who arrive may be needed to elect anybody.
    fn is_to_welcome(&self) -> bool {
        let is_gone = |member: MemberId| self.crashed.contains(member) || self.suspected.contains(member);
        match self.leader().filter(|leader| !is_gone(*leader)) {
            Some(leader) => leader == self.me,
            None => self.members.iter().find(|member| !is_gone(*member) && !self.arriving.contains(*member)) == Some(self.me),
        }
    }

    fn welcome(&mut self) {
        for member in self.arriving.clone().iter() {
            self.transfer(member);
        }
    }

    /// One after the other: what a barrier decides is answered before the engine is handed what came behind it.
    fn take_early(&mut self, now_ns: u64) {
        while let Some(at) = self.early.iter().position(|(epoch, _)| *epoch <= self.epoch)
            && let Some((epoch, early)) = self.early.remove(at)
        {
            let _ = self.route(now_ns, epoch, early);
            self.drain_engines(now_ns);
            if let Stage::Halted(_) = self.stage {
                return;
            }
        }
        if !self.early.is_empty() {
            self.catch_up(now_ns);
        }
    }

    /// Whether what it knows is a state to go on from.
    #[must_use]
    pub fn has_state(&self) -> bool {
        match &self.stage {
            Stage::Running => true,
            Stage::Leaving { given, .. } => !matches!(given, Given::NotYet),
            Stage::Joining | Stage::Halted(_) => false,
        }
    }

    /// The state goes to this member as soon as everything that the engine decided is applied: [`Engine::start_point`] speaks of that moment, and
    /// within [`Engine::set_members`] an engine may decide more.
    fn transfer(&mut self, to: MemberId) {
        self.owed.insert(to);
    }

    fn pay_transfers(&mut self) {
        let owed = std::mem::take(&mut self.owed);
        if self.has_state() {
            owed.iter().for_each(|to| self.send_transfer(to));
        }
    }

    fn send_transfer(&mut self, to: MemberId) {
        let start = match &self.stage {
            Stage::Leaving { given: Given::Own(start), .. } => start.clone(),
            Stage::Leaving { given: Given::Taken(taken), .. } => {
                self.outputs.push_back(Output::Send { to, message: Message::Transfer(taken.clone()) });
                return;
            }
            _ => self.engine.as_ref().and_then(|engine| engine.start_point()),
        };
        let transfer = Transfer {
            epoch: self.epoch,
            kind: self.kind,
            through: self.through,
            members: self.members.clone(),
            crashed: self.crashed.iter().filter(|member| self.members.contains(*member)).collect(),
            highest: self.highest,
            applied: self.applied.clone(),
            snapshot_position: self.snapshot.0,
            snapshot: self.snapshot.1.clone(),
            entries: self.tail.iter().cloned().collect(),
            start,
        };
        self.outputs.push_back(Output::Send { to, message: Message::Transfer(Box::new(transfer)) });
    }

    /// Whether a correct member can have sent this to us.
    fn check_transfer(&self, from: MemberId, transfer: &Transfer) -> Result<(), Refused> {
        let position = transfer.snapshot_position.checked_add(transfer.entries.len() as u64);
        // Nobody else gives our numbers to entries.
        let ours = transfer.applied.get(&self.me).map_or(0, Numbers::highest);
        // Who was asked while it leaves knows how things stand behind its own leave, and so does who has left when a joiner asks it, or still leads.
        let may_know = self.members.contains(from) || self.asked == Some(from) || self.leader() == Some(from);
        if !(may_know || transfer.members.contains(from))
            || transfer.members.len() > MAX_MEMBERS
            || !transfer.members.covers(&transfer.crashed)
            || transfer.members.iter().any(|member| member > transfer.highest)
            || transfer.applied.keys().any(|member| !transfer.members.contains(*member))
            || transfer.snapshot_position > 0 && transfer.snapshot.is_none()
            || position.is_none_or(|position| position < self.position)
            || !(self.through..Instance::MAX / 2).contains(&transfer.through)
            || transfer.epoch < self.epoch
            || transfer.epoch >= Epoch::MAX / 2
            || self.is_too_far(transfer.epoch)
            || transfer.snapshot_position >= Position::MAX / 2
            || ours >= self.next_number
        {
            return Err(Refused::Malformed);
        }
        transfer.entries.iter().try_for_each(batch::check_entry)
    }

    fn take_transfer(&mut self, now_ns: u64, from: MemberId, mut transfer: Transfer) -> Result<(), Refused> {
        let joining = matches!(self.stage, Stage::Joining);
        if joining && std::mem::take(&mut self.dropped) {
            (self.asked, self.asked_at) = (None, BTreeMap::new());
            self.ask(now_ns, &[from]);
            return Ok(());
        }
        // A running member takes one only to leave an epoch that the others have left, to learn that it is not one any more, or because its engine lags.
        let is_member = transfer.members.contains(self.me);
        let same = transfer.epoch == self.epoch && is_member && matches!(self.stage, Stage::Running);
        if transfer.epoch == self.epoch && matches!(self.stage, Stage::Leaving { .. }) {
            return self.take_transfer_leaving(now_ns, from, transfer);
        }
        if !is_member && matches!(self.stage, Stage::Leaving { .. }) {
            // It knows, and others may need it as it is.
            return Err(self.refusals.count(Refused::Duplicate));
        }
        // An engine may lag behind what are no instances.
        let behind = transfer.through < self.through || (transfer.through == self.through && !same);
        let late = !joining && (behind || (transfer.epoch <= self.epoch && is_member && !same));
        let wanted = (late || same) && self.asked == Some(from);
        let refused = match late {
            true => Err(Refused::Duplicate),
            false => self.check_transfer(from, &transfer),
        };
        let refused = refused.and_then(|()| if same { self.go_on_behind(now_ns, from, &transfer) } else { Ok(()) });
        let wanted = wanted && refused != Err(Refused::Malformed);
        if wanted {
            self.asked = None;
        }
        if let Err(why) = refused {
            // What we asked for came by other ways.
            return if wanted { Ok(()) } else { Err(self.refusals.count(why)) };
        }
        if !transfer.members.contains(self.me) {
            // Our leave was applied without us.
            if joining {
                return Err(self.refusals.count(Refused::NotMember));
            }
            self.leave_by(now_ns, from, transfer);
            return Ok(());
        }
        if !same {
            let setup = Setup {
                me: self.me,
                kind: transfer.kind,
                first: transfer.through + 1,
                members: transfer.members.clone(),
                crashed: MemberSet::new(),
                now_ns,
                joins: true,
                start: transfer.start.take(),
            };
            // What is said of the engine must go with what is said of the log.
            let engine = (self.build)(&setup).filter(|engine| engine.decided_through() == transfer.through);
            let Some(engine) = engine else { return Err(self.refusals.count(Refused::Malformed)) };
            self.engine = Some(engine);
            self.previous = None;
        }
        self.adopt(now_ns, transfer, joining);
        Ok(())
    }

    /// Of the epoch that this member is leaving.
    fn take_transfer_leaving(&mut self, now_ns: u64, from: MemberId, transfer: Transfer) -> Result<(), Refused> {
        // Its engine may be needed until the others have done without it, and lags; also behind what one knows that has not applied our leave.
        let taken = self.check_transfer(from, &transfer).and_then(|()| self.go_on_behind(now_ns, from, &transfer));
        if let (Ok(()), Some(engine), true) = (taken, &mut self.engine, transfer.members.contains(self.me)) {
            let others = transfer.members.iter().filter(|member| *member != self.me).collect();
            engine.set_leaving(now_ns, transfer.through + 1, others);
        }
        // What lies before it the engine has no more, for whom it may still lead.
        if let (Ok(()), Stage::Leaving { given, .. }) = (taken, &mut self.stage)
            && transfer.through > if let Given::Taken(taken) = given { taken.through } else { self.through }
        {
            *given = Given::Taken(Box::new(transfer));
        }
        taken.map_err(|why| self.refusals.count(why))
    }

    /// The others have applied this member's leave, as their transfer shows.
    fn leave_by(&mut self, now_ns: u64, from: MemberId, transfer: Transfer) {
        // They are through, but their engine may need this member until it has done without it, as after a leave of our own applying.
        self.asked = None;
        if transfer.epoch == self.epoch {
            // Refused by an engine that does not lag.
            let _ = self.go_on_behind(now_ns, from, &transfer);
        }
        // Those who leave, too, may wait for this, where nobody stays.
        let reached = Message::Reached { epoch: self.epoch, instance: transfer.through };
        let told = self.members.iter().chain(transfer.members.iter()).chain([from]).chain(self.left_before.iter().copied());
        let told: MemberSet = told.collect();
        let is_told = |to: &MemberId| !self.kind.needs_accuracy() && *to != self.me && !self.crashed.contains(*to);
        for to in told.iter().filter(is_told) {
            self.outputs.push_back(Output::Send { to, message: reached.clone() });
        }
        let (from, members) = (transfer.through + 1, transfer.members.clone());
        let given = Given::Taken(Box::new(transfer));
        self.stage = Stage::Leaving { instance: from - 1, waits_for: MemberSet::new(), given };
        self.bound_the_wait(now_ns);
        if let Some(engine) = &mut self.engine {
            engine.set_leaving(now_ns, from, members);
        }
    }

    /// Goes on with what a transfer says, whose engine is in place.
    fn adopt(&mut self, now_ns: u64, transfer: Transfer, joins: bool) {
        self.asked = None;
        let was = self.position;
        self.epoch = transfer.epoch;
        self.kind = transfer.kind;
        self.through = transfer.through;
        self.members = transfer.members;
        self.highest = transfer.highest;
        self.applied = transfer.applied;
        for member in transfer.crashed.iter() {
            self.crashed.insert(member);
        }
        self.stage = Stage::Running;
        if joins {
            self.ask_again_ns = None;
        }
        self.install(was, transfer.snapshot_position, transfer.snapshot, transfer.entries);
        let applied = self.applied.get(&self.me).cloned().unwrap_or_default();
        self.pending.retain(|entry| !applied.contains(entry.id.number));
        self.offered = 0;
        let reached = Message::Reached { epoch: self.epoch, instance: self.through };
        for to in self.members.iter().filter(|to| *to != self.me && !self.crashed.contains(*to)) {
            self.outputs.push_back(Output::Send { to, message: reached.clone() });
        }
        for (from, (_, instance)) in self.reached.clone() {
            let _ = self.answer_leaver(from, instance);
        }
        self.take_early(now_ns);
        self.repeat_crashes(now_ns);
    }

    /// Our engine lags behind what the others' have kept.
    fn go_on_behind(&mut self, now_ns: u64, from: MemberId, transfer: &Transfer) -> Result<(), Refused> {
        let engine = self.engine.as_mut().filter(|_| transfer.kind == self.kind);
        let engine = engine.ok_or(Refused::Malformed)?;
        engine.handle_state(now_ns, from, transfer.through, &transfer.members, transfer.start.as_deref())
    }

    /// Tells the application what it has not got yet.
    fn install(&mut self, was: Position, snapshot_position: Position, snapshot: Option<Value>, entries: Vec<Entry>) {
        if snapshot_position > was || was == 0 {
            self.outputs.push_back(Output::Install { position: snapshot_position, snapshot: snapshot.clone() });
        }
        self.position = snapshot_position;
        self.snapshot = (snapshot_position, snapshot);
        self.tail.clear();
        for entry in entries {
            self.position += 1;
            self.tail.push_back(entry.clone());
            if self.position > was {
                self.outputs.push_back(Output::Apply { position: self.position, entry });
            }
        }
    }

    fn halt(&mut self, why: Halted) {
        if !matches!(self.stage, Stage::Halted(_)) {
            self.stage = Stage::Halted(why);
            self.outputs.push_back(Output::Halt(why));
        }
    }
}

impl Early {
    fn from(&self) -> MemberId {
        match self {
            Early::Message(from, _) | Early::Copy(from, ..) | Early::Piggyback(from, _) => *from,
        }
    }
}

fn hand(engine: &mut dyn Engine<EngineMessage>, now_ns: u64, what: Early) -> Result<(), Refused> {
    match what {
        Early::Message(from, body) => engine.handle_message(now_ns, from, body),
        Early::Copy(from, path, body, arrival_ns) => engine.handle_copy(arrival_ns, from, path, body),
        Early::Piggyback(from, body) => engine.handle_piggyback(now_ns, from, body),
    }
}

/// An engine whose own messages are carried as [`EngineMessage`].
pub struct Carried<E, M> {
    engine: E,
    message: PhantomData<fn() -> M>,
}

impl<E, M> Carried<E, M> {
    /// Wraps it.
    pub fn new(engine: E) -> Self {
        Self { engine, message: PhantomData }
    }

    /// The engine itself.
    pub fn engine(&self) -> &E {
        &self.engine
    }
}

impl<E, M> Engine<EngineMessage> for Carried<E, M>
where
    E: Engine<M>,
    M: Into<EngineMessage> + TryFrom<EngineMessage>,
{
    fn kind(&self) -> Kind {
        self.engine.kind()
    }
    fn propose(&mut self, now_ns: u64, entry: Entry) -> Result<(), Refused> {
        self.engine.propose(now_ns, entry)
    }
    fn handle_message(&mut self, now_ns: u64, from: MemberId, message: EngineMessage) -> Result<(), Refused> {
        let message = M::try_from(message).map_err(|_| self.engine.refuse(Refused::Malformed))?;
        self.engine.handle_message(now_ns, from, message)
    }
    fn handle_copy(&mut self, now_ns: u64, from: MemberId, path: usize, message: EngineMessage) -> Result<(), Refused> {
        let message = M::try_from(message).map_err(|_| self.engine.refuse(Refused::Malformed))?;
        self.engine.handle_copy(now_ns, from, path, message)
    }
    fn handle_copies_sent(&mut self, now_ns: u64) {
        self.engine.handle_copies_sent(now_ns);
    }
    fn handle_copies_void(&mut self, now_ns: u64) {
        self.engine.handle_copies_void(now_ns);
    }
    fn poll_piggyback(&mut self, now_ns: u64) -> Option<EngineMessage> {
        self.engine.poll_piggyback(now_ns).map(Into::into)
    }
    fn handle_piggyback_sent(&mut self, now_ns: u64) {
        self.engine.handle_piggyback_sent(now_ns);
    }
    fn handle_piggyback(&mut self, now_ns: u64, from: MemberId, message: EngineMessage) -> Result<(), Refused> {
        let message = M::try_from(message).map_err(|_| self.engine.refuse(Refused::Malformed))?;
        self.engine.handle_piggyback(now_ns, from, message)
    }
    fn handle_memory(
        &mut self,
        now_ns: u64,
        from: MemberId,
        id: memory::RequestId,
        answer: memory::Answer,
    ) -> Result<(), Refused> {
        self.engine.handle_memory(now_ns, from, id, answer)
    }
    fn handle_crash(&mut self, now_ns: u64, member: MemberId) -> Result<(), Refused> {
        self.engine.handle_crash(now_ns, member)
    }
    fn handle_alive(&mut self, now_ns: u64, member: MemberId) {
        self.engine.handle_alive(now_ns, member);
    }
    fn handle_network_fault(&mut self, now_ns: u64) {
        self.engine.handle_network_fault(now_ns);
    }
    fn poll_timeout(&self) -> Option<u64> {
        self.engine.poll_timeout()
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        self.engine.handle_timeout(now_ns);
    }
    fn set_members(&mut self, now_ns: u64, from: Instance, members: MemberSet) -> Result<(), Refused> {
        self.engine.set_members(now_ns, from, members)
    }
    fn handle_state(
        &mut self,
        now_ns: u64,
        from: MemberId,
        through: Instance,
        members: &MemberSet,
        start: Option<&[u8]>,
    ) -> Result<(), Refused> {
        self.engine.handle_state(now_ns, from, through, members, start)
    }
    fn set_leaving(&mut self, now_ns: u64, from: Instance, members: MemberSet) {
        self.engine.set_leaving(now_ns, from, members);
    }
    fn may_leave(&self) -> bool {
        self.engine.may_leave()
    }
    fn quorums(&self) -> Vec<MemberSet> {
        self.engine.quorums()
    }

    fn start_point(&self) -> Option<Value> {
        self.engine.start_point()
    }
    fn poll_action(&mut self) -> Option<Action<EngineMessage>> {
        Some(match self.engine.poll_action()? {
            Action::Send { to, message } => Action::Send { to, message: message.into() },
            Action::Copies { message } => Action::Copies { message: message.into() },
            Action::Memory { to, request } => Action::Memory { to, request },
            Action::Decide { instance, batch } => Action::Decide { instance, batch },
            Action::State { to } => Action::State { to },
            Action::Halt(why) => Action::Halt(why),
        })
    }
    fn decided_through(&self) -> Instance {
        self.engine.decided_through()
    }
    fn stable_through(&self) -> Instance {
        self.engine.stable_through()
    }
    fn leader(&self) -> Option<MemberId> {
        self.engine.leader()
    }
    fn halted(&self) -> Option<Halted> {
        self.engine.halted()
    }
    fn refusals(&self) -> &Refusals {
        self.engine.refusals()
    }
    fn refuse(&mut self, why: Refused) -> Refused {
        self.engine.refuse(why)
    }
    fn invariants(&self) {
        self.engine.invariants();
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
