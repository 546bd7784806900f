//! A group of engines on links that a test, or a seed, plays with.
//!
//! Links are as [`Action::Send`] promises; when a member crashes, the end of what each of its links holds is lost. Piggybacks reach everybody
//! or nobody, and before the notice of their sender's crash. Notices of a crash come to each member at its own time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;

use super::{Action, Engine, Halted, Instance};
use crate::group::{Batch, Body, Entry, EntryId, MemberId, MemberSet, Refused};

pub fn id(proposer: u16, number: u64) -> EntryId {
    EntryId { proposer: MemberId(proposer), number }
}

pub fn entry(proposer: u16, number: u64) -> Entry {
    sized(proposer, number, 1)
}

pub fn sized(proposer: u16, number: u64, bytes: usize) -> Entry {
    Entry { id: id(proposer, number), body: Body::Value(vec![number as u8; bytes].into()) }
}

pub fn set(members: &[u16]) -> MemberSet {
    members.iter().copied().map(MemberId).collect()
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.roll() % n as u64) as usize
    }
}

type Build<E> = fn(MemberId, MemberSet, Instance) -> E;

/// A member: its engine, and what the layer above it has seen.
pub struct Member<E> {
    pub engine: E,
    /// From the first instance on.
    pub log: Vec<Batch>,
    pub members: MemberSet,
    /// The barrier of this instance was decided, and the engine was not told yet.
    pub untold: Option<Instance>,
    pub alive: bool,
    /// Longest chain of messages that led here.
    pub depth: u32,
    /// Of the last decision.
    pub decided_depth: u32,
    pub next_number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Link(MemberId, MemberId),
    Beat(MemberId, MemberId),
    Notice(MemberId, MemberId),
    Tick(MemberId),
    Members(MemberId),
}

pub struct Group<M, E> {
    build: Build<E>,
    pub all: BTreeMap<MemberId, Member<E>>,
    pub links: BTreeMap<(MemberId, MemberId), VecDeque<(u32, M)>>,
    beats: BTreeMap<(MemberId, MemberId), VecDeque<(u32, M)>>,
    notices: BTreeSet<(MemberId, MemberId)>,
    /// Actions that the next member to act gets done before it crashes.
    pub crash_after: Option<usize>,
    pub proposed: BTreeSet<EntryId>,
    pub halts: Vec<(MemberId, Halted)>,
    pub refused: BTreeMap<Refused, u64>,
    pub sent: u64,
}

impl<M: Clone + Debug, E: Engine<M> + Clone + Debug> Group<M, E> {
    pub fn new(n: u16, build: Build<E>) -> Self {
        let members = MemberSet::first(n);
        let mut group = Self {
            build,
            all: BTreeMap::new(),
            links: BTreeMap::new(),
            beats: BTreeMap::new(),
            notices: BTreeSet::new(),
            crash_after: None,
            proposed: BTreeSet::new(),
            halts: Vec::new(),
            refused: BTreeMap::new(),
            sent: 0,
        };
        for me in members.iter() {
            group.add(me, members.clone(), Vec::new());
        }
        for me in members.iter() {
            group.act(me);
        }
        group
    }

    fn add(&mut self, me: MemberId, members: MemberSet, log: Vec<Batch>) {
        let engine = (self.build)(me, members.clone(), log.len() as Instance + 1);
        let member = Member { engine, log, members, untold: None, alive: true, depth: 0, decided_depth: 0, next_number: 1 };
        self.all.insert(me, member);
    }

    pub fn of(&self, member: u16) -> &Member<E> {
        &self.all[&MemberId(member)]
    }

    pub fn engine(&mut self, member: u16) -> &mut E {
        &mut self.all.get_mut(&MemberId(member)).unwrap().engine
    }

    pub fn log(&self, member: u16) -> Vec<Vec<(u16, u64)>> {
        self.of(member).log.iter().map(|b| b.iter().map(|e| (e.id.proposer.0, e.id.number)).collect()).collect()
    }

    pub fn reset_depth(&mut self) {
        self.all.values_mut().for_each(|m| (m.depth, m.decided_depth) = (0, 0));
    }

    fn count(&mut self, result: Result<(), Refused>) {
        if let Err(why) = result {
            *self.refused.entry(why).or_default() += 1;
        }
    }

    /// Proposes the next entry of `member`.
    pub fn propose(&mut self, member: u16) {
        let next = self.all.get(&MemberId(member)).unwrap().next_number;
        self.propose_entry(member, entry(member, next));
    }

    pub fn propose_entry(&mut self, member: u16, entry: Entry) {
        let m = self.all.get_mut(&MemberId(member)).unwrap();
        let id = entry.id;
        match m.engine.propose(0, entry) {
            Ok(()) => {
                m.next_number = m.next_number.max(id.number + 1);
                self.proposed.insert(id);
            }
            Err(why) => self.count(Err(why)),
        }
        self.act(MemberId(member));
    }

    /// Does what the engine asks for; crashes on the way if that was wanted.
    pub fn act(&mut self, me: MemberId) {
        let cut = self.crash_after.take();
        let mut done = 0;
        loop {
            if cut == Some(done) {
                self.crash(me, &mut Dice(done as u64));
                return;
            }
            let Some(m) = self.all.get_mut(&me).filter(|m| m.alive) else { return };
            m.engine.invariants();
            let Some(action) = m.engine.poll_action() else { break };
            done += 1;
            match action {
                Action::Send { to, message } => {
                    assert_ne!(to, me, "never to oneself");
                    self.sent += 1;
                    self.links.entry((me, to)).or_default().push_back((m.depth + 1, message));
                }
                Action::Decide { instance, batch } => {
                    m.log.push(batch.clone());
                    m.decided_depth = m.depth;
                    assert_eq!(instance, m.log.len() as Instance, "{me}: in order, each once");
                    assert!(!batch.is_empty(), "⊥ is never decided");
                    self.check_validity(&batch);
                    if let [Entry { body: Body::Join(_) | Body::Leave(_) | Body::Switch(_), .. }] = *batch {
                        self.all.get_mut(&me).unwrap().untold = Some(instance + 1);
                    }
                }
                Action::Halt(why) => self.halts.push((me, why)),
                Action::Copies { .. } | Action::Memory { .. } | Action::State { .. } => panic!("not of these engines"),
            }
        }
        if cut.is_some() {
            self.crash(me, &mut Dice(done as u64));
        }
        self.check_agreement();
    }

    /// The member sees nothing and says nothing any more. Its links lose their ends.
    pub fn crash(&mut self, member: MemberId, dice: &mut Dice) {
        self.all.get_mut(&member).unwrap().alive = false;
        for ((from, _), link) in &mut self.links {
            if *from == member && !link.is_empty() {
                link.truncate(dice.below(link.len() + 1));
            }
        }
        self.links.retain(|(_, to), _| *to != member);
        self.beats.retain(|(_, to), _| *to != member);
        let others: Vec<_> = self.alive().into_iter().map(|observer| (observer, member)).collect();
        self.notices.extend(others);
        self.notices.retain(|(observer, _)| *observer != member);
    }

    pub fn alive(&self) -> Vec<MemberId> {
        self.all.iter().filter(|(_, m)| m.alive).map(|(&id, _)| id).collect()
    }

    /// Takes part: alive, and in the group as far as it knows.
    pub fn active(&self) -> Vec<MemberId> {
        self.all.iter().filter(|(_, m)| m.alive && m.engine.halted().is_none()).map(|(&id, _)| id).collect()
    }

    /// What can happen now.
    pub fn events(&self) -> Vec<Event> {
        let links = self
            .links
            .iter()
            .filter(|((_, to), link)| !link.is_empty() && self.is_there(*to))
            .map(|(&(f, t), _)| Event::Link(f, t));
        let beats = self.beats.iter().filter(|(_, beat)| !beat.is_empty()).map(|(&(f, t), _)| Event::Beat(f, t));
        let notices = self.notices.iter().filter(|(observer, crashed)| {
            self.beats.get(&(*crashed, *observer)).is_none_or(VecDeque::is_empty) && self.all[observer].members.contains(*crashed)
        });
        let notices = notices.map(|&(observer, crashed)| Event::Notice(observer, crashed));
        let untold = self.all.iter().filter(|(_, m)| m.alive && m.untold.is_some()).map(|(&id, _)| Event::Members(id));
        links.chain(beats).chain(notices).chain(untold).collect()
    }

    fn is_there(&self, member: MemberId) -> bool {
        self.all.get(&member).is_some_and(|m| m.alive)
    }

    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Link(from, to) => {
                let Some((depth, message)) = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
                let Some(m) = self.all.get_mut(&to).filter(|m| m.alive) else { return };
                m.depth = m.depth.max(depth);
                let result = m.engine.handle_message(0, from, message);
                self.count(result);
                self.act(to);
            }
            Event::Beat(from, to) => {
                let Some((depth, message)) = self.beats.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
                let Some(m) = self.all.get_mut(&to).filter(|m| m.alive) else { return };
                m.depth = m.depth.max(depth);
                let result = m.engine.handle_piggyback(0, from, message);
                self.count(result);
                self.act(to);
            }
            Event::Notice(observer, crashed) => {
                self.notices.remove(&(observer, crashed));
                let Some(m) = self.all.get_mut(&observer).filter(|m| m.alive) else { return };
                let result = m.engine.handle_crash(0, crashed);
                self.count(result);
                self.act(observer);
            }
            Event::Tick(from) => self.tick(from, None),
            Event::Members(member) => self.tell_members(member),
        }
    }

    /// A heartbeat leaves; or its sender crashes before (`Some(false)`) or after it left, but before it knows (`Some(true)`).
    pub fn tick(&mut self, from: MemberId, crash: Option<bool>) {
        let Some(m) = self.all.get_mut(&from).filter(|m| m.alive) else { return };
        let Some(message) = m.engine.poll_piggyback(0) else {
            self.act(from);
            return;
        };
        let depth = m.depth + 1;
        if crash != Some(false) {
            for to in self.alive() {
                if to != from {
                    self.beats.entry((from, to)).or_default().push_back((depth, message.clone()));
                }
            }
        }
        if crash.is_some() {
            self.crash(from, &mut Dice(1));
            return;
        }
        let m = self.all.get_mut(&from).unwrap();
        m.depth = depth;
        m.engine.handle_piggyback_sent(0);
        self.act(from);
    }

    fn tell_members(&mut self, member: MemberId) {
        let m = self.all.get_mut(&member).unwrap();
        let Some(from) = m.untold.take() else { return };
        match m.log.last().unwrap()[0].body {
            Body::Join(new) => m.members.insert(new),
            Body::Leave(old) => m.members.remove(old),
            _ => false,
        };
        let (members, log) = (m.members.clone(), m.log.clone());
        m.engine.set_members(0, from, members.clone()).unwrap();
        let newcomers: Vec<_> = members.iter().filter(|new| !self.all.contains_key(new)).collect();
        for new in newcomers {
            self.add(new, members.clone(), log.clone());
            let crashed: Vec<_> = self.all.iter().filter(|(_, m)| !m.alive).map(|(&id, _)| (new, id)).collect();
            self.notices.extend(crashed);
            self.act(new);
        }
        self.act(member);
    }

    /// In the order of time, links first, until nothing happens any more.
    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if let Some(event) = self.events().first().copied() {
                self.happen(event);
                continue;
            }
            let before = self.total_decided();
            for member in self.alive() {
                self.tick(member, None);
            }
            if self.events().is_empty() && self.total_decided() == before {
                return;
            }
        }
        panic!("it never ends");
    }

    fn total_decided(&self) -> usize {
        self.all.values().map(|m| m.log.len()).sum()
    }

    /// Something that can happen happens.
    pub fn step(&mut self, dice: &mut Dice) -> bool {
        let mut events = self.events();
        events.extend(self.alive().into_iter().map(Event::Tick));
        let event = events[dice.below(events.len())];
        self.happen(event);
        true
    }

    fn check_validity(&self, batch: &[Entry]) {
        for entry in batch {
            assert!(self.proposed.contains(&entry.id), "validity: {} was never proposed", entry.id);
        }
    }

    /// Uniform: also those who crashed since.
    pub fn check_agreement(&self) {
        let longest = self.all.values().max_by_key(|m| m.log.len()).unwrap();
        let mut shortest = usize::MAX;
        for (member, m) in &self.all {
            assert!(longest.log.starts_with(&m.log), "uniform agreement: {member} decided {:?}, not {:?}", m.log, longest.log);
            // One that crashed may have decided without having said so.
            assert!(!m.alive || m.engine.decided_through() == m.log.len() as Instance);
            // Who left, and has not heard it yet, is not asked.
            if m.alive && m.engine.halted().is_none() && longest.members.contains(*member) {
                shortest = shortest.min(m.log.len());
            }
        }
        for m in self.all.values().filter(|m| m.alive) {
            assert!(m.engine.stable_through() as usize <= shortest, "stable is what everybody has decided");
        }
    }

    /// After [`Group::settle`]: everybody alive decided the same, among it everything that one of them proposed.
    pub fn check_termination(&self) {
        let active = self.active();
        let Some(first) = active.first().map(|id| &self.all[id].log) else { return };
        let decided: BTreeSet<_> = first.iter().flat_map(|b| b.iter().map(|e| e.id)).collect();
        for id in &active {
            let m = &self.all[id];
            assert_eq!(&m.log, first, "{id} is behind");
            assert_eq!(m.engine.leader(), active.first().copied());
        }
        for id in self.proposed.iter().filter(|id| active.contains(&id.proposer)) {
            assert!(decided.contains(id), "termination: {id} was never decided, by {active:?}");
        }
        assert!(self.halts.iter().all(|(_, why)| *why == Halted::Left), "{:?}", self.halts);
    }

    /// Entries of one member come in their order, counting the first time each.
    pub fn check_order(&self) {
        for m in self.all.values() {
            let mut last = BTreeMap::new();
            let mut seen = BTreeSet::new();
            for entry in m.log.iter().flat_map(|b| b.iter()).filter(|e| seen.insert(e.id)) {
                let before = last.insert(entry.id.proposer, entry.id.number).unwrap_or(0);
                assert!(entry.id.number > before, "{} after number {before}", entry.id);
            }
        }
    }
}

/// What a seed may do.
#[derive(Clone, Copy, Debug)]
pub struct World {
    pub hosts: u16,
    pub crashes: usize,
    pub changes: usize,
    pub entries: usize,
    /// Most bytes of an entry.
    pub bytes: usize,
}

/// One schedule of many.
pub fn run_seed<M: Clone + Debug, E: Engine<M> + Clone + Debug>(seed: u64, world: World, build: Build<E>) -> Group<M, E> {
    let mut dice = Dice(seed);
    let mut group = Group::new(world.hosts, build);
    let (mut crashes, mut changes, mut entries) = (world.crashes, world.changes, world.entries);
    let mut newest = world.hosts;
    let mut steps = 20 * world.entries + 20;
    while steps > 0 {
        steps -= 1;
        let active = group.active();
        if active.is_empty() {
            break;
        }
        let who = active[dice.below(active.len())];
        match dice.below(12) {
            0 | 1 if entries > 0 => {
                entries -= 1;
                let number = group.all[&who].next_number;
                let bytes = if dice.below(4) == 0 { world.bytes } else { 1 };
                group.propose_entry(who.0, sized(who.0, number, 1 + dice.below(bytes)));
            }
            2 if changes > 0 && dice.below(4) == 0 => {
                changes -= 1;
                let number = group.all[&who].next_number;
                let members = &group.all[&who].members;
                let body = match dice.below(3) {
                    0 if active.len() > 2 => Body::Leave(members.iter().nth(dice.below(members.len())).unwrap()),
                    1 => Body::Switch(super::Kind::Raft),
                    _ => {
                        newest += 1;
                        Body::Join(MemberId(newest))
                    }
                };
                group.propose_entry(who.0, Entry { id: EntryId { proposer: who, number }, body });
            }
            3 if crashes > 0 && active.len() > 1 && dice.below(3) == 0 => {
                crashes -= 1;
                match dice.below(4) {
                    0 => group.crash(who, &mut dice),
                    1 => group.tick(who, Some(dice.below(2) == 0)),
                    _ => group.crash_after = Some(dice.below(6)),
                }
            }
            _ => {
                group.step(&mut dice);
            }
        }
    }
    group.crash_after = None;
    group.settle();
    group.check_termination();
    group.check_order();
    group
}
