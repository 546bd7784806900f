//! Members, their memories and links, in any order that FIFO allows.

use super::super::*;
use crate::consensus::memory;
use crate::group::{Body, Value};

pub fn id(number: u16) -> MemberId {
    MemberId(number)
}

pub fn entry(proposer: u16, number: u64) -> Entry {
    let bytes = [proposer as u8, number as u8];
    Entry { id: EntryId { proposer: id(proposer), number }, body: Body::Value(bytes.as_slice().into()) }
}

/// What a host's memory holds; it may outlive the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    pub words: BTreeMap<u64, u64>,
    pub regions: BTreeMap<u64, Value>,
    pub gone: bool,
}

impl Memory {
    pub fn apply(&mut self, request: &Request) -> (RequestId, memory::Answer) {
        match request {
            Request::Read { id, word } => (*id, Answer::Word(self.words.get(word).copied().unwrap_or(0))),
            Request::Cas { id, word, expected, new } => {
                let held = self.words.entry(*word).or_default();
                let before = *held;
                if before == *expected {
                    *held = *new;
                }
                (*id, Answer::Word(before))
            }
            Request::Write { id, region, bytes } => {
                self.regions.insert(*region, bytes.clone());
                (*id, Answer::Written)
            }
            Request::Fetch { id, region } => (*id, Answer::Bytes(self.regions.get(region).cloned())),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Packet {
    Message(Message),
    Request(Request),
    Answer(RequestId, Answer),
}

type Link = (u16, u16, u8);

pub struct World {
    pub now_ns: u64,
    pub engines: BTreeMap<u16, Paxos>,
    pub dead: BTreeSet<u16>,
    pub memories: BTreeMap<u16, Memory>,
    /// FIFO per direction and per kind: messages, and operations with their answers, overtake each other.
    pub links: BTreeMap<Link, VecDeque<Packet>>,
    pub decisions: BTreeMap<Instance, Batch>,
    pub decided_by: BTreeMap<u16, Vec<Batch>>,
    pub proposed: BTreeSet<EntryId>,
    random: u64,
    pub steps: u64,
}

impl World {
    pub fn new(n: u16, seed: u64, configure: impl Fn(&mut Config)) -> Self {
        let members = MemberSet::first(n);
        let mut world = Self {
            now_ns: 0,
            engines: BTreeMap::new(),
            dead: BTreeSet::new(),
            memories: (1..=n).map(|i| (i, Memory::default())).collect(),
            links: BTreeMap::new(),
            decisions: BTreeMap::new(),
            decided_by: BTreeMap::new(),
            proposed: BTreeSet::new(),
            random: seed,
            steps: 0,
        };
        for i in 1..=n {
            let mut config = Config::new(id(i), seed ^ u64::from(i));
            configure(&mut config);
            world.engines.insert(i, Paxos::new(config, members.clone(), 0));
        }
        for i in 1..=n {
            world.drain(i);
        }
        world
    }

    pub fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below.max(1)
    }

    pub fn engine(&self, i: u16) -> &Paxos {
        &self.engines[&i]
    }

    /// Something happens at a member that is alive.
    pub fn at<T>(&mut self, i: u16, input: impl FnOnce(&mut Paxos, u64) -> T) -> T {
        let now_ns = self.now_ns;
        let engine = self.engines.get_mut(&i).unwrap();
        let before = engine.clone();
        let refused = engine.refusals().total();
        let result = input(engine, now_ns);
        engine.invariants();
        if engine.refusals().total() > refused {
            let mut now = engine.clone();
            now.refusals = before.refusals;
            assert_eq!(now, before, "a refusal leaves the state as it was");
        }
        self.drain(i);
        result
    }

    fn drain(&mut self, i: u16) {
        while let Some(action) = self.engines.get_mut(&i).unwrap().poll_action() {
            match action {
                Action::Send { to, message } => {
                    assert_ne!(to, id(i), "never to oneself");
                    self.links.entry((i, to.0, 0)).or_default().push_back(Packet::Message(message));
                }
                Action::Memory { to, request } => {
                    self.links.entry((i, to.0, 1)).or_default().push_back(Packet::Request(request));
                }
                Action::Decide { instance, batch } => self.decide(i, instance, batch),
                Action::Halt(_) => {}
                Action::Copies { .. } | Action::State { .. } => panic!("nothing is broadcast in copies, and nobody is given up"),
            }
        }
    }

    fn decide(&mut self, i: u16, instance: Instance, batch: Batch) {
        assert!(!batch.is_empty());
        let decided = self.decided_by.entry(i).or_default();
        decided.push(batch.clone());
        let agreed = self.decisions.entry(instance).or_insert_with(|| batch.clone());
        assert_eq!(*agreed, batch, "agreement, in instance {instance} at p{i}");
        assert!(batch.iter().all(|entry| self.proposed.contains(&entry.id)), "validity");
    }

    pub fn propose(&mut self, i: u16, entry: Entry) {
        self.proposed.insert(entry.id);
        self.at(i, |engine, now_ns| engine.propose(now_ns, entry)).unwrap();
    }

    /// The process dies; its memory lives on, if `memory` says so.
    pub fn kill(&mut self, i: u16, memory: bool) {
        self.dead.insert(i);
        self.memories.get_mut(&i).unwrap().gone |= !memory;
    }

    /// Everyone alive gets the (true or false) hint.
    pub fn suspect(&mut self, i: u16) {
        for other in self.alive() {
            if other != i {
                let _ = self.at(other, |engine, now_ns| engine.handle_crash(now_ns, id(i)));
            }
        }
    }

    pub fn alive(&self) -> Vec<u16> {
        self.engines.keys().copied().filter(|i| !self.dead.contains(i)).collect()
    }

    /// The next of this link arrives.
    pub fn deliver(&mut self, link: Link) {
        let (from, to, _) = link;
        let Some(packet) = self.links.get_mut(&link).and_then(VecDeque::pop_front) else { return };
        match packet {
            Packet::Request(request) => {
                let memory = self.memories.get_mut(&to).unwrap();
                if !memory.gone {
                    let (request, answer) = memory.apply(&request);
                    self.links.entry((to, from, 2)).or_default().push_back(Packet::Answer(request, answer));
                }
            }
            Packet::Message(message) => {
                if !self.dead.contains(&to) {
                    let _ = self.at(to, |engine, now_ns| engine.handle_message(now_ns, id(from), message));
                }
            }
            Packet::Answer(request, answer) => {
                if !self.dead.contains(&to) {
                    let _ = self.at(to, |engine, now_ns| engine.handle_memory(now_ns, id(from), request, answer));
                }
            }
        }
    }

    pub fn busy_links(&self) -> Vec<Link> {
        self.links.iter().filter(|(_, packets)| !packets.is_empty()).map(|(link, _)| *link).collect()
    }

    /// One thing happens, whichever.
    pub fn step(&mut self) -> bool {
        self.steps += 1;
        self.now_ns += 100;
        let links = self.busy_links();
        let due = self.alive().into_iter().filter(|i| self.engine(*i).poll_timeout().is_some_and(|at| at <= self.now_ns));
        let due: Vec<u16> = due.collect();
        if !due.is_empty() && (links.is_empty() || self.draw(8) == 0) {
            let i = due[self.draw(due.len() as u64) as usize];
            self.at(i, |engine, now_ns| engine.handle_timeout(now_ns));
            return true;
        }
        if links.is_empty() {
            let next = self.alive().into_iter().filter_map(|i| self.engine(i).poll_timeout()).min();
            let Some(next) = next else { return false };
            self.now_ns = self.now_ns.max(next);
            return true;
        }
        let link = links[self.draw(links.len() as u64) as usize];
        self.deliver(link);
        true
    }

    /// One message delay: everything under way arrives, and what it causes leaves. A memory operation and its answer take two.
    pub fn delay(&mut self) {
        let under_way: Vec<(Link, usize)> = self.links.iter().map(|(link, packets)| (*link, packets.len())).collect();
        self.now_ns += 1_000;
        for (link, count) in under_way {
            for _ in 0..count {
                self.deliver(link);
            }
        }
    }

    /// Message delays until `i` has decided through `instance`.
    pub fn delays_until(&mut self, i: u16, instance: Instance) -> u32 {
        for delays in 0..100 {
            if self.engine(i).decided_through() >= instance {
                return delays;
            }
            self.delay();
        }
        panic!("p{i} did not decide {instance}: {:#?}", self.engine(i));
    }

    pub fn quiet(&mut self) {
        for _ in 0..50 {
            self.delay();
        }
    }

    /// Faults are over, and the hints have become true: everyone alive decides everything that anyone alive proposed.
    pub fn heal(&mut self, limit: u64) {
        let dead = self.dead.clone();
        for i in self.alive() {
            for j in 1..=self.engines.len() as u16 {
                if dead.contains(&j) {
                    let _ = self.at(i, |engine, now_ns| engine.handle_crash(now_ns, id(j)));
                } else {
                    self.at(i, |engine, now_ns| engine.handle_alive(now_ns, id(j)));
                }
            }
        }
        let start = self.steps;
        while self.step() {
            if self.steps.is_multiple_of(16) && self.is_done() {
                return;
            }
            assert!(self.steps - start < limit, "not live: {:#?}", self.engines.values().collect::<Vec<_>>());
        }
        assert!(self.is_done(), "stuck: {:#?}", self.engines.values().collect::<Vec<_>>());
    }

    fn is_done(&self) -> bool {
        let alive = self.alive();
        let through = self.decisions.keys().next_back().copied().unwrap_or(0);
        let decided: BTreeSet<EntryId> = self.decisions.values().flat_map(|batch| batch.iter().map(|entry| entry.id)).collect();
        alive.iter().all(|i| self.engine(*i).decided_through() == through)
            && self.proposed.iter().all(|entry| self.dead.contains(&entry.proposer.0) || decided.contains(entry))
    }
}
