//! Raft as one of FiDe's engines: the baseline, and the engine that needs no timing at all (X10, B7).
//!
//! The protocol is the `raft` crate's `RawNode` (the port of etcd's, as TiKV runs it), which is sans-IO like our own cores: it is fed ticks and
//! messages. What is added here is only what the interface asks for:
//!
//! * *Instances*: the committed entries that carry a batch, numbered from the first; Raft's own empty and membership entries are not instances.
//! * *Proposals are kept* until they are decided. One batch of a member is on its way at a time, so that its entries keep their order; it is proposed
//!   again when the leader changes or nothing was heard of it for an election timeout.
//! * *Barriers*: behind a control entry nothing is handed out before [`Engine::set_members`] answered it; the leader then brings Raft's own
//!   membership to what the log says, by joint consensus.
//! * *A leader that leaves* hands the leadership over and is removed by its successor (Raft dissertation §4.2.2). It does not remove itself: the
//!   library's leader is lost behind its own removal, and panics on the next answer that would let it commit. Where its predecessor had begun that, it steps down.
//! * *Who is removed* may still be needed: the library goes by the configuration that a member has *applied*, so those who have not heard that the removal is committed
//!   count its vote. It is done when all those who vote without it have said so (`Votes`). Most of them would not do: one of those may die, and the one that
//!   does not know may have the longest log. The log above bounds how long it waits for one that says nothing.
//! * *Panics* of the library end this member ([`Halted::Contradiction`]), and not its process: every call into it is guarded.
//! * *Hints*: when the leader is reported crashed, the lowest member alive does not wait for its election timeout. A wrong hint costs an election.
//! * *Members that lag* behind all of the log that is kept: the library would send them a snapshot. The state is the log's above, so that is asked for
//!   it ([`Action::State`]); at the member the library is handed its snapshot, without the state, by [`Engine::handle_state`]. Term, vote and the entries
//!   that it promised to keep are the library's all the while.
//! * *A word of what is committed* costs a message to each member and its answer. Nobody waits for it but the proposer, so that a leader that has committed
//!   only what it proposed itself keeps the word for the next entries, which say the same, if they follow within [`Config::word_wait_ns`].
//! * *Determinism*: the library draws its election timeouts from the thread's random numbers; here they follow from seed, member and term, so that a
//!   run can be repeated.
//!
//! Storage is memory. A member that restarts is a new member, so Raft's promise rests on a majority that stays up, as for the other engines.

#![forbid(unsafe_code)]

mod storage;

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fide_proto::consensus::batch::{check_entry, is_barrier};
use fide_proto::consensus::log::EngineMessage;
use fide_proto::consensus::{Action, Engine, Halted, Instance, Kind};
use fide_proto::group::{Batch, Body, Entry, MAX_MEMBERS, MemberId, MemberSet, Refusals, Refused, VALUE_MAX, Value};
use protobuf::Message as _;
use raft::prelude::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, EntryType, Message, MessageType,
};
use raft::{RawNode, StateRole};
use storage::Memory;

/// How it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Who we are.
    pub me: MemberId,
    /// Raft's time step; a leader sends its heartbeat each of them.
    pub tick_ns: u64,
    /// Ticks without a leader until an election, at least.
    pub election_ticks: usize,
    /// What tells election timeouts of different runs apart.
    pub seed: u64,
    /// Own entries that may wait.
    pub pending_max: usize,
    /// Entries of Raft's log that are kept for members that lag. Who lags by more gets the whole state.
    pub kept_max: usize,
    /// The same in bytes of their values: a log of large values is as much in memory as one of small ones.
    pub kept_bytes_max: usize,
    /// Bytes of one batch.
    pub batch_max: usize,
    /// What a leader has committed of its own it tells the others with the next entries, or so much later (ns); 0: at once.
    pub word_wait_ns: u64,
}

impl Config {
    /// Usual values: a tick of 1 ms, elections after 10 to 20 of them.
    #[must_use]
    pub fn new(me: MemberId) -> Self {
        Self {
            me,
            tick_ns: 1_000_000,
            election_ticks: 10,
            seed: 0,
            pending_max: 1024,
            kept_max: 1 << 16,
            kept_bytes_max: 8 << 20,
            batch_max: VALUE_MAX,
            word_wait_ns: 0,
        }
    }
}

/// [`Config::word_wait_ns`] of an agent's groups: others' applications hear so much later of what the leader proposed, its own sooner, as nothing is
/// sent first.
pub const WORD_WAIT_NS: u64 = 100_000;

/// Largest message that is taken from the wire.
const MESSAGE_MAX: usize = 4 * VALUE_MAX;

/// A member that lags gets another state after so many election timeouts: who takes one has answered by then.
const STATE_AGAIN: usize = 4;

/// Nobody counts that far.
const TERM_MAX: u64 = 1 << 48;
/// Nor that far.
const INDEX_MAX: u64 = 1 << 62;

/// Where a newcomer's Raft log begins: behind which instance, index and term of the entry before, and who votes.
type StartPoint = (Instance, u64, u64, Vec<u64>, Vec<u64>);

/// What a member says to one that does not vote any more: what it has applied last; who votes, on either side of a joint configuration; and whether
/// this holds for good: a leader's word behind all that leaders before it may have begun, and which itself will not have that one vote again.
type Votes = (u64, Vec<u64>, bool);

// Our own messages begin with one of these; the library's begin with a tag of protobuf, which is 8 at least.
/// "Am I out?"
const WHO_VOTES: u8 = 1;
/// [`Votes`] follow: "you are".
const VOTES: u8 = 2;

/// The engine.
pub struct Raft {
    config: Config,
    node: RawNode<Memory>,
    next_tick_ns: u64,
    members: MemberSet,
    suspected: MemberSet,
    through: Instance,
    stable: Instance,
    /// Raft's index and term of the last committed entry that was looked at.
    applied: (u64, u64),
    /// The same when our leave was applied: whoever gets our state as it was then gets what is behind from the log.
    left_at: Option<u64>,
    /// What others said of a configuration in which we do not vote.
    without_us: BTreeMap<MemberId, Votes>,
    /// Whom we have removed, and not told so.
    removed: MemberSet,
    /// Committed, behind a barrier that has not been answered yet; with index and term of the entry before.
    held: VecDeque<(Batch, (u64, u64))>,
    barrier: bool,
    /// … which changes the engine and not the members: who was let in just before still has to be told of it.
    switch: bool,
    /// The change of voters proposed last: under which term, from which voters, to whom. Not again if it changed nothing.
    tried: Option<(u64, ConfState, MemberSet)>,
    /// Ticks so far; and in which one we asked that these members that lag get the state.
    ticks: u64,
    told: BTreeMap<MemberId, u64>,
    pending: VecDeque<Entry>,
    /// How many of the pending ones, from the front, are on their way; since which tick, under which leader and term.
    sent: usize,
    sent_for_ticks: usize,
    sent_under: (u64, u64),
    /// By receiver, what only says what is committed; when it leaves, unless entries do before.
    words: BTreeMap<MemberId, Message>,
    words_leave_ns: u64,
    /// Indices of what other members proposed while we lead and is not committed.
    foreign: VecDeque<u64>,
    now_ns: u64,
    actions: VecDeque<Action<EngineMessage>>,
    refusals: Refusals,
    halted: Option<Halted>,
}

impl Raft {
    /// A member that begins with the instance `first`. One that joins gets the `start` that [`Engine::start_point`] said behind `first - 1`.
    ///
    /// # Errors
    /// [`Refused::Malformed`] for a `start` that is none, [`Refused::NotMember`] for a group without `config.me`.
    pub fn new(config: Config, now_ns: u64, first: Instance, members: &MemberSet, start: Option<&[u8]>) -> Result<Self, Refused> {
        if !members.contains(config.me) || first == 0 {
            return Err(Refused::NotMember);
        }
        let (through, index, term, voters, voters_outgoing): StartPoint = match start {
            Some(bytes) => postcard::from_bytes(bytes).map_err(|_| Refused::Malformed)?,
            None => (first - 1, 0, 0, members.iter().map(|member| u64::from(member.0)).collect(), Vec::new()),
        };
        // Another instance would be handed out under a wrong number, or never.
        let too_many = voters.len().max(voters_outgoing.len()) > MAX_MEMBERS + 1;
        if through != first - 1 || voters.is_empty() || too_many || index > INDEX_MAX || term > TERM_MAX {
            return Err(Refused::Malformed);
        }
        let conf = ConfState { voters, voters_outgoing, ..ConfState::default() };
        let election_tick = config.election_ticks.max(4);
        let settings = raft::Config {
            id: u64::from(config.me.0),
            election_tick,
            heartbeat_tick: 1,
            applied: index,
            pre_vote: true,
            check_quorum: true,
            max_size_per_msg: VALUE_MAX as u64,
            max_inflight_msgs: 256,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let make = || RawNode::new(&settings, Memory::new((index, term), conf), &logger);
        let made = catch_unwind(AssertUnwindSafe(make)).map_err(|_| Refused::Malformed)?;
        let node = made.map_err(|_| Refused::Malformed)?;
        let next_tick_ns = now_ns.saturating_add(config.tick_ns);
        Ok(Self {
            config,
            node,
            next_tick_ns,
            members: members.clone(),
            suspected: MemberSet::new(),
            through: first - 1,
            stable: first - 1,
            applied: (index, term),
            left_at: None,
            without_us: BTreeMap::new(),
            removed: MemberSet::new(),
            held: VecDeque::new(),
            barrier: false,
            switch: false,
            tried: None,
            ticks: 0,
            told: BTreeMap::new(),
            pending: VecDeque::new(),
            sent: 0,
            sent_for_ticks: 0,
            sent_under: (0, 0),
            words: BTreeMap::new(),
            words_leave_ns: u64::MAX,
            foreign: VecDeque::new(),
            now_ns,
            actions: VecDeque::new(),
            refusals: Refusals::default(),
            halted: None,
        })
    }

    /// Entries of Raft's own log that are kept.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.node.store().len()
    }

    /// Asks for an election now, as the member that starts a group may.
    pub fn campaign(&mut self) {
        let _ = self.guarded(|raft| {
            // A leader's or a removed member's campaign is none.
            let _ = raft.node.campaign();
            raft.advance();
        });
    }

    /// Of what no correct member says, the library can be kept from all that shows by itself (`check`); what contradicts its own state only once
    /// it is believed makes it panic, and so would its own errors. Then this member stops, and not its process.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T, Refused> {
        catch_unwind(AssertUnwindSafe(|| work(self))).map_err(|_| {
            self.halted = Some(Halted::Contradiction);
            self.actions.push_back(Action::Halt(Halted::Contradiction));
            self.refusals.count(Refused::ImpossibleBallot)
        })
    }

    /// Carries out what Raft wants, until it wants nothing.
    fn advance(&mut self) {
        loop {
            self.reconfigure();
            self.submit();
            if !self.node.has_ready() {
                self.note_stable();
                self.tell_who_lags();
                // A leader's word counts for more once nothing of it is under way.
                if !(self.leads() && self.node.raft.has_pending_conf()) {
                    std::mem::take(&mut self.removed).iter().for_each(|removed| self.say_who_votes(removed));
                }
                return;
            }
            let mut ready = self.node.ready();
            let messages = ready.take_messages();
            self.send(messages);
            // Only of `handle_state`: `Memory::snapshot` never gives one.
            if !ready.snapshot().is_empty() {
                self.node.mut_store().restore(ready.snapshot());
            }
            let committed = ready.take_committed_entries();
            self.committed(committed);
            self.node.mut_store().append(ready.entries());
            if let Some(hard) = ready.hs() {
                self.node.mut_store().set_hard(hard.clone());
            }
            let messages = ready.take_persisted_messages();
            self.send(messages);
            let mut light = self.node.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.node.mut_store().set_commit(commit);
            }
            let messages = light.take_messages();
            self.send(messages);
            let committed = light.take_committed_entries();
            self.committed(committed);
            self.node.advance_apply();
            self.compact();
            let committed = self.node.raft.raft_log.committed;
            while self.foreign.front().is_some_and(|index| *index <= committed) {
                self.foreign.pop_front();
            }
        }
    }

    /// What all have is known to the leader alone; who led once does not forget it.
    fn note_stable(&mut self) {
        let slowest = self.node.raft.prs().iter().map(|(_, progress)| progress.matched).min();
        if self.leads() && self.held.is_empty() && slowest >= Some(self.applied.0) {
            self.stable = self.through;
        }
    }

    fn tell_who_lags(&mut self) {
        let lagging = self.node.store().take_lagging();
        let again = (STATE_AGAIN * self.config.election_ticks) as u64;
        let (now, leads) = (self.ticks, self.leads());
        self.told.retain(|_, at| now < *at + again);
        for to in member_set(&lagging).iter() {
            if leads && !self.told.contains_key(&to) {
                self.told.insert(to, now);
                self.actions.push_back(Action::State { to });
            }
        }
    }

    fn send(&mut self, messages: Vec<Message>) {
        for mut message in messages {
            // Whoever carries it names the receiver, too: what is the same for several is the same bytes, and leaves once.
            let Ok(to) = u16::try_from(std::mem::take(&mut message.to)).map(MemberId) else { continue };
            if message.get_msg_type() == MessageType::MsgAppend {
                let is_own = self.foreign.front().is_none_or(|index| message.commit < *index);
                if message.entries.is_empty() && is_own && self.config.word_wait_ns > 0 {
                    // The first of them says when all leave: those that follow put nothing off.
                    if self.words.is_empty() {
                        self.words_leave_ns = self.now_ns.saturating_add(self.config.word_wait_ns);
                    }
                    self.words.insert(to, message);
                    continue;
                }
                self.words.remove(&to); // this one says it, too
            }
            self.push(to, &message);
        }
    }

    fn push(&mut self, to: MemberId, message: &Message) {
        if let Ok(bytes) = message.write_to_bytes() {
            self.actions.push_back(Action::Send { to, message: EngineMessage::Opaque(bytes.into()) });
        }
    }

    /// What is committed, to those that no entries went to meanwhile.
    fn send_words(&mut self) {
        for (to, message) in std::mem::take(&mut self.words) {
            if self.leads() {
                self.push(to, &message);
            }
        }
    }

    fn committed(&mut self, entries: Vec<raft::prelude::Entry>) {
        for entry in entries {
            let before = std::mem::replace(&mut self.applied, (entry.index, entry.term));
            match entry.get_entry_type() {
                EntryType::EntryNormal => {
                    // Every entry with data was encoded by a member's `submit`; others are skipped by everyone alike.
                    if let Some(batch) = decode(&entry.data) {
                        self.held.push_back((batch, before));
                    }
                }
                EntryType::EntryConfChangeV2 => {
                    let voted = self.voters();
                    let mut change = ConfChangeV2::default();
                    if change.merge_from_bytes(&entry.data).is_ok()
                        && let Ok(conf) = self.node.apply_conf_change(&change)
                    {
                        self.node.mut_store().set_conf(conf);
                        self.step_down_when_removed();
                        let votes = self.voters();
                        for removed in voted.iter().filter(|member| !votes.contains(*member)) {
                            self.removed.insert(removed);
                        }
                    }
                }
                // Members propose the other kind only.
                EntryType::EntryConfChange => {}
            }
        }
        self.hand_out();
    }

    fn hand_out(&mut self) {
        while !self.barrier {
            let Some((batch, _)) = self.held.pop_front() else { return };
            self.through += 1;
            // Who has left is not told any more how things stand behind the barriers of the others, and must not wait for it.
            self.barrier = batch.iter().any(is_barrier) && self.members.contains(self.config.me);
            self.switch = batch.iter().any(|entry| matches!(entry.body, Body::Switch(_)));
            let before = self.pending.len();
            self.pending.retain(|entry| !batch.iter().any(|decided| decided.id == entry.id));
            self.sent = self.sent.saturating_sub(before - self.pending.len());
            self.actions.push_back(Action::Decide { instance: self.through, batch });
        }
    }

    /// The next batch of ours, if none is on its way: what waits, in order; a control entry alone.
    fn submit(&mut self) {
        let under = (self.node.raft.leader_id, self.node.raft.term);
        if self.sent > 0 && self.sent_under != under {
            self.sent = 0;
        }
        if self.sent > 0 || self.pending.is_empty() || under.0 == raft::INVALID_ID {
            return;
        }
        let mut bytes = 0;
        let n = self
            .pending
            .iter()
            .enumerate()
            .take_while(|(at, entry)| {
                let Body::Value(value) = &entry.body else { return *at == 0 };
                bytes += value.len() + 32;
                *at == 0 || (bytes <= self.config.batch_max && matches!(self.pending[0].body, Body::Value(_)))
            })
            .count();
        let batch: Vec<&Entry> = self.pending.iter().take(n).collect();
        let Ok(data) = postcard::to_stdvec(&batch) else { return };
        if self.node.propose(Vec::new(), data).is_ok() {
            (self.sent, self.sent_for_ticks, self.sent_under) = (n, 0, under);
        }
    }

    /// Raft's membership towards the log's: all that differs in one change, decided by majorities of both (joint consensus), and then out of it. One
    /// after the other would pass through groups that nobody decided on, of which too few may live. The library refuses a second one
    /// while one is on its way.
    fn reconfigure(&mut self) {
        if !self.leads() || (self.barrier && !self.switch) {
            return;
        }
        // Also while a change is under way: it may hang on one that needs the state, which nobody has from one that left.
        let left = !self.members.contains(self.config.me);
        if left {
            let voters = self.voters();
            if self.members.is_empty() || self.members.iter().any(|member| voters.contains(member)) {
                return self.hand_over();
            }
        }
        if self.node.raft.has_pending_conf() {
            return;
        }
        let conf = self.node.raft.prs().conf().to_conf_state();
        let mut change = ConfChangeV2::default();
        if conf.voters_outgoing.is_empty() {
            let voters = member_set(&conf.voters);
            let single = |kind: ConfChangeType, member: MemberId| {
                let mut one = ConfChangeSingle::default();
                one.set_change_type(kind);
                one.node_id = u64::from(member.0);
                one
            };
            let missing = self.members.iter().filter(|member| !voters.contains(*member));
            // Who has left and is the last that votes lets newcomers vote, so that there is an heir; that one does the rest.
            let gone = voters.iter().filter(|member| !left && !self.members.contains(*member));
            let changes: Vec<_> = missing
                .map(|member| single(ConfChangeType::AddNode, member))
                .chain(gone.map(|member| single(ConfChangeType::RemoveNode, member)))
                .collect();
            if changes.is_empty() {
                return;
            }
            if changes.len() > 1 {
                // The library's own leaving is lost with a leader that steps down first.
                change.set_transition(ConfChangeTransition::Explicit);
            }
            change.set_changes(changes.into());
        }
        // The library commits changes that it does not carry out, of id 0 for one; alone in the group it would do so for ever.
        let tried = (self.node.raft.term, conf, self.members.clone());
        if self.tried.as_ref() == Some(&tried) {
            return;
        }
        if self.node.propose_conf_change(Vec::new(), change).is_ok() {
            self.tried = Some(tried);
        }
    }

    /// Its predecessor had begun to remove it, and its own first entry committed that.
    fn step_down_when_removed(&mut self) {
        if self.leads() && !self.voters().contains(self.config.me) {
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, raft::INVALID_ID);
        }
    }

    /// Whoever is removed is told so by those who vote without it.
    fn say_who_votes(&mut self, to: MemberId) {
        let voters = self.voters();
        if to == self.config.me || voters.contains(to) || !voters.contains(self.config.me) {
            return;
        }
        let for_good = self.leads() && !self.node.raft.has_pending_conf() && !self.members.contains(to);
        let votes: Votes = (self.node.raft.raft_log.applied, voters.iter().map(|voter| u64::from(voter.0)).collect(), for_good);
        let Ok(said) = postcard::to_extend(&votes, vec![VOTES]) else { return };
        self.actions.push_back(Action::Send { to, message: EngineMessage::Opaque(said.into()) });
    }

    /// Who leaves asks those who may vote without it.
    fn ask_who_votes(&mut self) {
        let said = self.without_us.values().flat_map(|(_, voters, _)| voters);
        let asked: MemberSet = self.members.iter().chain(member_set(said).iter()).collect();
        for to in asked.iter().filter(|to| *to != self.config.me) {
            self.actions.push_back(Action::Send { to, message: EngineMessage::Opaque([WHO_VOTES].as_slice().into()) });
        }
    }

    /// Whether all those who vote without us do so knowingly, so that they can elect one of them without us, and we will not vote again.
    fn is_released(&self) -> bool {
        let for_good = self.without_us.values().filter(|(.., for_good)| *for_good);
        let knows = |member| self.without_us.contains_key(&member);
        for_good.max_by_key(|(index, ..)| *index).is_some_and(|(_, voters, _)| member_set(voters).iter().all(knows))
    }

    /// What is no message of the library's; `None` if it is one.
    fn handle_own(&mut self, from: MemberId, message: &EngineMessage) -> Option<Result<(), Refused>> {
        let EngineMessage::Opaque(bytes) = message else { return None };
        let (kind, rest) = bytes.split_first()?;
        if !matches!(*kind, WHO_VOTES | VOTES) {
            return None;
        }
        Some(self.check_own(from, *kind, rest).map(|votes| match votes {
            None => self.say_who_votes(from),
            // Who does not know yet that it left asks for it when it does.
            Some(_) if self.left_at.is_none() => {}
            Some(votes) => {
                let known = self.without_us.entry(from).or_default();
                let for_good = known.2 || votes.2;
                if votes.0 >= known.0 {
                    *known = votes;
                }
                known.2 = for_good;
            }
        }))
    }

    fn check_own(&self, from: MemberId, kind: u8, rest: &[u8]) -> Result<Option<Votes>, Refused> {
        if from == self.config.me {
            return Err(Refused::Malformed);
        }
        if rest.len() > MESSAGE_MAX {
            return Err(Refused::TooLarge);
        }
        if kind == WHO_VOTES {
            return if rest.is_empty() { Ok(None) } else { Err(Refused::Malformed) };
        }
        let (votes, rest): (Votes, &[u8]) = postcard::take_from_bytes(rest).map_err(|_| Refused::Malformed)?;
        let (index, voters, _) = &votes;
        let (me, sender) = (u64::from(self.config.me.0), u64::from(from.0));
        if !rest.is_empty()
            || *index > INDEX_MAX
            || voters.len() > 2 * MAX_MEMBERS + 1
            || voters.contains(&me)
            || !voters.contains(&sender)
        {
            return Err(Refused::Malformed);
        }
        // Who has left, and newcomers, are no more than a group of each.
        let room = self.without_us.len() < 2 * MAX_MEMBERS || self.without_us.contains_key(&from);
        if room { Ok(Some(votes)) } else { Err(Refused::TooFarAhead) }
    }

    /// To the member that has most of the log and is not suspected; the library gives up after an election timeout, and is asked again.
    fn hand_over(&mut self) {
        if self.node.raft.lead_transferee.is_some() {
            return;
        }
        let matched = |member: MemberId| self.node.raft.prs().get(u64::from(member.0)).map_or(0, |progress| progress.matched);
        let voters = self.voters();
        let heirs = self.members.iter().filter(|member| voters.contains(*member));
        let heir = heirs.max_by_key(|heir| (!self.suspected.contains(*heir), matched(*heir), std::cmp::Reverse(*heir)));
        if let Some(heir) = heir {
            self.node.transfer_leader(u64::from(heir.0));
        }
    }

    /// Ticks without a leader until this member stands for election. Another one in every term: two that were equal and split the votes are not
    /// equal again. Nothing but ticks asks for it, so what the library draws in between has no effect.
    fn election_timeout(&self) -> usize {
        let ticks = self.node.raft.election_timeout();
        ticks + (mix(self.config.seed ^ self.node.raft.term << 32, self.config.me) % ticks as u64) as usize
    }

    /// Whose votes count, in a joint configuration those of either side.
    fn voters(&self) -> MemberSet {
        let conf = self.node.raft.prs().conf().to_conf_state();
        member_set(conf.voters.iter().chain(&conf.voters_outgoing))
    }

    /// Bounds the log. A member that lags by more gets the state from whoever leads.
    fn compact(&mut self) {
        let Config { kept_max, kept_bytes_max, .. } = self.config;
        let Some(surplus) = self.node.store().surplus(kept_max, kept_bytes_max) else { return };
        // What is committed and was not handed out is not in the state that somebody may be given now ([`Engine::start_point`]).
        let handed_out = self.held.front().map_or(self.applied, |(_, before)| *before).0;
        let index = handed_out.min(surplus);
        self.node.mut_store().compact(self.left_at.map_or(index, |left_at| index.min(left_at)));
    }

    fn running(&mut self) -> Result<(), Refused> {
        if self.halted.is_some() { Err(self.refusals.count(Refused::Halted)) } else { Ok(()) }
    }

    fn leads(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    fn check(&mut self, from: MemberId, message: &EngineMessage) -> Result<Message, Refused> {
        let EngineMessage::Opaque(bytes) = message else { return Err(Refused::Malformed) };
        if bytes.len() > MESSAGE_MAX {
            return Err(Refused::TooLarge);
        }
        let mut message = Message::parse_from_bytes(bytes).map_err(|_| Refused::Malformed)?;
        if from == self.config.me {
            return Err(Refused::Malformed);
        }
        if message.from != u64::from(from.0) || message.to != 0 {
            return Err(Refused::ImpossibleBallot);
        }
        message.to = u64::from(self.config.me.0);
        let kind = message.get_msg_type();
        let spoken = matches!(
            kind,
            MessageType::MsgAppend
                | MessageType::MsgAppendResponse
                | MessageType::MsgRequestVote
                | MessageType::MsgRequestVoteResponse
                | MessageType::MsgRequestPreVote
                | MessageType::MsgRequestPreVoteResponse
                | MessageType::MsgHeartbeat
                | MessageType::MsgHeartbeatResponse
                | MessageType::MsgPropose
                | MessageType::MsgTimeoutNow
        );
        if !spoken || message.has_snapshot() {
            return Err(Refused::Malformed);
        }
        if (kind == MessageType::MsgPropose) != (message.term == 0) || message.term > TERM_MAX {
            return Err(Refused::ImpossibleBallot);
        }
        // Only the leader hands over, and only its own term.
        let (leader, term) = (self.node.raft.leader_id, self.node.raft.term);
        if kind == MessageType::MsgTimeoutNow && (message.from != leader || message.term != term) {
            return Err(Refused::NotLeader);
        }
        // The library panics on what no correct member sends: a commit beyond the log, entries with gaps, a rewritten commit.
        let last = self.node.raft.raft_log.last_index();
        match kind {
            MessageType::MsgAppend => self.check_append(&message)?,
            MessageType::MsgHeartbeat if message.commit > last => return Err(Refused::ImpossibleBallot),
            MessageType::MsgAppendResponse if message.index > last && !message.reject => return Err(Refused::ImpossibleBallot),
            MessageType::MsgPropose if message.entries.is_empty() => return Err(Refused::Malformed),
            MessageType::MsgPropose
                if message.entries.iter().any(|e| e.get_entry_type() != EntryType::EntryNormal || decode(&e.data).is_none()) =>
            {
                return Err(Refused::Malformed);
            }
            _ => {}
        }
        Ok(message)
    }

    /// The library's snapshot message for that state, and where it stands then.
    fn check_state(
        &self,
        from: MemberId,
        through: Instance,
        members: &MemberSet,
        start: Option<&[u8]>,
    ) -> Result<(Message, (u64, u64)), Refused> {
        let point: Option<StartPoint> = start.and_then(|bytes| postcard::from_bytes(bytes).ok());
        let (instance, index, term, voters, voters_outgoing) = point.ok_or(Refused::Malformed)?;
        let me = u64::from(self.config.me.0);
        // A newcomer may be given a state from before it could vote; the library takes none in which it is nothing at all.
        let is_voter = voters.contains(&me) || voters_outgoing.contains(&me);
        let learners = if is_voter { Vec::new() } else { vec![me] };
        let too_many = voters.len().max(voters_outgoing.len()).max(members.len()) > MAX_MEMBERS + 1;
        let too_far = index > INDEX_MAX || term > self.node.raft.term;
        if instance != through || voters.is_empty() || too_many || too_far {
            return Err(Refused::Malformed);
        }
        if self.node.raft.state != StateRole::Follower || self.node.raft.leader_id != u64::from(from.0) {
            return Err(Refused::NotLeader);
        }
        let log = &self.node.raft.raft_log;
        // What it has it gets as committed entries, one by one.
        if through < self.through || index <= log.committed || log.match_term(index, term) {
            return Err(Refused::Duplicate);
        }
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgSnapshot);
        message.from = u64::from(from.0);
        message.to = me;
        message.term = self.node.raft.term;
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (index, term);
        metadata.set_conf_state(ConfState { voters, voters_outgoing, learners, ..ConfState::default() });
        Ok((message, (index, term)))
    }

    fn check_append(&self, message: &Message) -> Result<(), Refused> {
        let follows = |(n, entry): (usize, &raft::prelude::Entry)| message.index.checked_add(n as u64 + 1) == Some(entry.index);
        let contiguous = message.entries.iter().enumerate().all(follows);
        let terms =
            message.entries.iter().all(|entry| entry.term <= message.term) && message.entries.is_sorted_by_key(|e| e.term);
        if !contiguous || !terms || message.log_term > message.term || (message.log_term == 0) != (message.index == 0) {
            return Err(Refused::ImpossibleBallot);
        }
        let log = &self.node.raft.raft_log;
        // Of what lies before a newcomer's start the library says term 0: that is no contradiction, and the answer is how its leader learns where it stands.
        let known = self.node.store().first().saturating_sub(1)..=log.committed;
        let rewrites = message
            .entries
            .iter()
            .any(|entry| known.contains(&entry.index) && log.term(entry.index).is_ok_and(|term| term != entry.term));
        if rewrites {
            return Err(Refused::ImpossibleBallot);
        }
        Ok(())
    }
}

impl Engine<EngineMessage> for Raft {
    fn kind(&self) -> Kind {
        Kind::Raft
    }

    fn propose(&mut self, now_ns: u64, entry: Entry) -> Result<(), Refused> {
        self.now_ns = now_ns;
        self.running()?;
        if self.pending.len() >= self.config.pending_max {
            return Err(self.refusals.count(Refused::Busy));
        }
        check_entry(&entry).map_err(|why| self.refusals.count(why))?;
        self.pending.push_back(entry);
        self.guarded(Self::advance)
    }

    fn handle_message(&mut self, now_ns: u64, from: MemberId, message: EngineMessage) -> Result<(), Refused> {
        self.now_ns = now_ns;
        self.running()?;
        if let Some(handled) = self.handle_own(from, &message) {
            return handled.map_err(|why| self.refusals.count(why));
        }
        let message = self.check(from, &message).map_err(|why| self.refusals.count(why))?;
        let stepped = self.guarded(|raft| {
            let is_proposal = message.get_msg_type() == MessageType::MsgPropose;
            let result = raft.node.step(message);
            if is_proposal && result.is_ok() && raft.leads() {
                raft.foreign.push_back(raft.node.raft.raft_log.last_index());
            }
            raft.advance();
            result
        });
        match stepped? {
            Ok(()) | Err(raft::Error::ProposalDropped) => Ok(()),
            Err(raft::Error::StepPeerNotFound) => Err(self.refusals.count(Refused::UnknownMember)),
            Err(_) => Err(self.refusals.count(Refused::Malformed)),
        }
    }

    fn handle_crash(&mut self, now_ns: u64, member: MemberId) -> Result<(), Refused> {
        self.now_ns = now_ns;
        self.running()?;
        if !self.members.contains(member) {
            return Err(self.refusals.count(Refused::UnknownMember));
        }
        if !self.suspected.insert(member) {
            return Err(self.refusals.count(Refused::Duplicate));
        }
        let lowest = self.members.iter().find(|m| !self.suspected.contains(*m));
        if self.node.raft.leader_id == u64::from(member.0) && lowest == Some(self.config.me) {
            // An election that the lease of the one that is gone does not stop; as after a leader's own hand-over.
            let mut now = Message::default();
            now.set_msg_type(MessageType::MsgTimeoutNow);
            now.from = u64::from(member.0);
            now.to = u64::from(self.config.me.0);
            now.term = self.node.raft.term;
            self.guarded(|raft| {
                let _ = raft.node.step(now);
            })?;
        }
        self.guarded(Self::advance)
    }

    fn handle_alive(&mut self, _now_ns: u64, member: MemberId) {
        self.suspected.remove(member);
    }

    fn poll_timeout(&self) -> Option<u64> {
        let words_leave_ns = if self.words.is_empty() { u64::MAX } else { self.words_leave_ns };
        self.halted.is_none().then_some(self.next_tick_ns.min(words_leave_ns))
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if self.halted.is_none() && now_ns >= self.words_leave_ns {
            self.send_words();
        }
        if now_ns < self.next_tick_ns || self.halted.is_some() {
            return;
        }
        // Ticks that were missed while this process stood still are not made up for: they would be an election for nothing.
        let late_ns = now_ns.saturating_add(self.config.tick_ns / 2);
        self.next_tick_ns = self.next_tick_ns.saturating_add(self.config.tick_ns).max(late_ns);
        if self.sent > 0 {
            self.sent_for_ticks += 1;
            if self.sent_for_ticks >= 2 * self.config.election_ticks {
                self.sent = 0;
            }
        }
        self.ticks += 1;
        if self.left_at.is_some() && self.ticks.is_multiple_of(self.config.election_ticks.div_ceil(2) as u64) {
            self.ask_who_votes();
        }
        let _ = self.guarded(|raft| {
            let timeout = raft.election_timeout();
            raft.node.raft.set_randomized_election_timeout(timeout);
            raft.node.tick();
            raft.advance();
        });
    }

    fn set_members(&mut self, now_ns: u64, from: Instance, members: MemberSet) -> Result<(), Refused> {
        self.now_ns = now_ns;
        self.running()?;
        if from != self.through + 1 || members.len() > MAX_MEMBERS {
            return Err(self.refusals.count(Refused::Malformed));
        }
        self.suspected = self.suspected.iter().filter(|member| members.contains(*member)).collect();
        self.members = members;
        self.barrier = false;
        self.hand_out();
        self.guarded(Self::advance)
    }

    fn handle_state(
        &mut self,
        _now_ns: u64,
        from: MemberId,
        through: Instance,
        members: &MemberSet,
        start: Option<&[u8]>,
    ) -> Result<(), Refused> {
        self.running()?;
        let (message, applied) = self.check_state(from, through, members, start).map_err(|why| self.refusals.count(why))?;
        self.through = through;
        self.applied = applied;
        self.held.clear();
        (self.barrier, self.switch) = (false, false);
        self.suspected = self.suspected.iter().filter(|member| members.contains(*member)).collect();
        self.members = members.clone();
        self.pending.clear();
        (self.sent, self.tried) = (0, None);
        self.guarded(|raft| {
            // Refused are messages about this member itself and answers of strangers only.
            let _ = raft.node.step(message);
            raft.advance();
        })
    }

    /// It votes until it is removed: the leader (not itself, see the head) needs a majority of those before.
    fn set_leaving(&mut self, _now_ns: u64, _from: Instance, members: MemberSet) {
        if self.halted.is_some() {
            return;
        }
        self.members = members;
        self.barrier = false;
        self.left_at = self.left_at.or_else(|| Some(self.held.front().map_or(self.applied, |(_, before)| *before).0));
        self.pending.clear();
        self.sent = 0;
        let _ = self.guarded(Self::advance);
    }

    /// Once those who vote without it know it.
    fn may_leave(&self) -> bool {
        self.members.is_empty() || self.is_released()
    }

    fn quorums(&self) -> Vec<MemberSet> {
        let conf = self.node.raft.prs().conf().to_conf_state();
        [member_set(&conf.voters), member_set(&conf.voters_outgoing)].into_iter().filter(|voters| !voters.is_empty()).collect()
    }

    fn start_point(&self) -> Option<Value> {
        let conf = self.node.raft.prs().conf().to_conf_state();
        // Before what is committed and was not handed out: the newcomer has not got it by other ways.
        let (index, term) = self.held.front().map_or(self.applied, |(_, before)| *before);
        let point: StartPoint = (self.through, index, term, conf.voters, conf.voters_outgoing);
        postcard::to_stdvec(&point).ok().map(Into::into)
    }

    fn poll_action(&mut self) -> Option<Action<EngineMessage>> {
        self.actions.pop_front()
    }

    fn decided_through(&self) -> Instance {
        self.through
    }

    /// Known to a leader only that has no one behind; else 0.
    fn stable_through(&self) -> Instance {
        self.stable
    }

    fn leader(&self) -> Option<MemberId> {
        u16::try_from(self.node.raft.leader_id).ok().filter(|id| *id != 0).map(MemberId)
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
        if self.halted.is_some() {
            return;
        }
        assert!(self.sent <= self.pending.len(), "what is on its way waits");
        assert!(self.applied.0 <= self.node.raft.raft_log.committed, "only what is committed is looked at");
        assert!(self.pending.len() <= self.config.pending_max, "what waits is bounded");
    }
}

fn member_set<'a>(ids: impl IntoIterator<Item = &'a u64>) -> MemberSet {
    ids.into_iter().filter_map(|id| u16::try_from(*id).ok()).map(MemberId).collect()
}

/// The batch that a correct member can have encoded so.
fn decode(data: &[u8]) -> Option<Batch> {
    let batch: Vec<Entry> = postcard::from_bytes(data).ok()?;
    let alone = batch.len() == 1 || !batch.iter().any(is_barrier);
    (!batch.is_empty() && alone && batch.iter().all(|entry| check_entry(entry).is_ok())).then(|| batch.into())
}

fn mix(seed: u64, me: MemberId) -> u64 {
    let mut z = seed.wrapping_add(u64::from(me.0).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_library_ends_this_member_and_not_its_process() {
        let me = MemberId(1);
        let mut raft = Raft::new(Config::new(me), 0, 1, &MemberSet::first(1), None).unwrap();
        assert_eq!(raft.guarded(|_| panic!("as the library does")), Err::<(), _>(Refused::ImpossibleBallot));
        assert_eq!((raft.halted(), raft.poll_timeout()), (Some(Halted::Contradiction), None));
        assert_eq!(raft.poll_action(), Some(Action::Halt(Halted::Contradiction)));
        // Nothing reaches the library any more.
        assert_eq!(raft.set_members(0, 1, MemberSet::first(2)), Err(Refused::Halted));
        raft.set_leaving(0, 1, MemberSet::first(2));
        assert_eq!(raft.handle_crash(0, me), Err(Refused::Halted));
        assert_eq!(raft.poll_action(), None);
    }
}
