//! Groups of several nodes in a small world: frames that are late, lost and doubled, heartbeats, crashes that are noticed later.

use super::*;
use crate::services::links;
use fide_wire::frame::{BODY_MAX, items};
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;
const US: u64 = 1_000;
/// A silent node is given up after so long.
const TIMEOUT_NS: u64 = 4 * MS;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn any_engine(seed: u64) -> Kind {
    [Kind::Huc, Kind::Hsuc, Kind::Lowi][(seed % 3) as usize]
}

enum Way {
    Segment(Vec<u8>),
    Copy { path: usize, sent_ns: u64, at_ns: u64, body: Vec<u8> },
    Rides(u64, Vec<Vec<u8>>),
}

struct Node {
    groups: Groups,
    incarnation: u32,
    up: bool,
    beat_ns: u64,
    /// The number of its last heartbeat, and when that left.
    beats: (u64, u64),
    /// It stands still until then.
    paused_until: u64,
    /// The last heartbeat behind which it noticed its silence.
    woke_behind_ns: u64,
    /// What its application has read.
    read: Vec<(u64, u64, Vec<u8>)>,
}

impl Node {
    fn new(node: usize, incarnation: u32, beat_ns: u64) -> Self {
        let groups = Groups::new(config(node, incarnation));
        Self { groups, incarnation, up: true, beat_ns, beats: (0, 0), paused_until: 0, woke_behind_ns: 0, read: Vec::new() }
    }
}

struct World {
    now_ns: u64,
    random: Random,
    nodes: Vec<Node>,
    queue: BTreeMap<(u64, u64), (usize, usize, u32, Way)>,
    verdicts: BTreeMap<(u64, u64), (usize, usize, u32)>,
    /// Who has given up whom: observer, node, its life.
    condemned: BTreeSet<(usize, usize, u32)>,
    counter: u64,
    /// Per mille of link frames that are lost.
    loss: u64,
    /// Copies from one node to another by these paths are lost.
    lost_copies: BTreeSet<(usize, usize, usize)>,
    /// Copies of this node leave on one path only.
    no_path_from: Option<usize>,
    /// The one order that everybody's entries must follow.
    order: Vec<(u64, u64, Vec<u8>)>,
    /// What the configuration of all nodes says: a group of these.
    expected: Vec<usize>,
    begun: usize,
    /// Groups of this world are durable.
    durable: bool,
    /// What disks have, by node and name; and what is on its way there.
    disks: BTreeMap<(usize, String), Saved>,
    writes: VecDeque<(u64, usize, Write)>,
    /// Large states on their way: when they come, to which node and life of it, for which group,
    /// which, and from whom.
    fetches: Vec<(u64, usize, u32, u64, LargeRef, u32)>,
    /// How long each takes, at most.
    fetch_ns: u64,
    /// Questions to the witness: who asks, about whom, in which incarnation.
    asked: Vec<(usize, usize, u32)>,
    /// What nodes found missing behind a return.
    differences: Vec<(usize, Difference)>,
    /// Its application reads nothing now.
    reads_nothing: Option<usize>,
}

fn config(node: usize, incarnation: u32) -> Config {
    Config {
        node: node as u32 + 1,
        incarnation,
        links: links::Config { resend_ns: 3 * MS, ack_wait_ns: MS },
        log: log::Config::default(),
        fence_repeat_ns: 10 * MS,
        witness_ns: Some(50 * MS),
        distrust_ns: 50 * MS,
        inline_max: 100,
        make: Arc::new(make),
    }
}

impl World {
    fn new(seed: u64, nodes: usize) -> Self {
        let mut world = Self {
            now_ns: 1_000 * MS,
            random: Random(seed),
            nodes: Vec::new(),
            queue: BTreeMap::new(),
            verdicts: BTreeMap::new(),
            condemned: BTreeSet::new(),
            counter: 0,
            loss: 0,
            lost_copies: BTreeSet::new(),
            no_path_from: None,
            order: Vec::new(),
            expected: Vec::new(),
            begun: 0,
            durable: false,
            disks: BTreeMap::new(),
            writes: VecDeque::new(),
            fetches: Vec::new(),
            fetch_ns: 4 * MS,
            asked: Vec::new(),
            differences: Vec::new(),
            reads_nothing: None,
        };
        for node in 0..nodes {
            let beat_ns = world.now_ns + world.random.below(MS);
            world.nodes.push(Node::new(node, 1, beat_ns));
        }
        for node in 0..nodes {
            world.meet(node);
        }
        world
    }

    /// Everybody learns that this node lives, and it that they do.
    fn meet(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            if !self.nodes[other].up {
                continue;
            }
            let (incarnation, theirs) = (self.nodes[node].incarnation, self.nodes[other].incarnation);
            self.nodes[other].groups.handle_life(self.now_ns, node as u32 + 1, incarnation, incarnation);
            self.nodes[node].groups.handle_life(self.now_ns, other as u32 + 1, theirs, theirs);
        }
    }

    fn plan(&self, name: &str, engine: Kind, nodes: &[usize]) -> Plan {
        let members = nodes.iter().enumerate().map(|(n, node)| Binding {
            member: MemberId(n as u16 + 1),
            node: *node as u32 + 1,
            incarnation: self.nodes[*node].incarnation,
        });
        Plan {
            name: name.into(),
            generation: self.now_ns,
            engine,
            policy: Policy::TrustContract,
            members: members.collect(),
            durable: self.durable,
            lineage: 0,
            timing: Timing::of_contract(MS, 4 * MS),
        }
    }

    fn send(&mut self, from: usize, to: usize, way: Way, at_ns: u64) {
        self.counter += 1;
        self.queue.insert((at_ns, self.counter), (from, to, self.nodes[from].incarnation, way));
    }

    fn flush(&mut self, node: usize) {
        let mut body = Vec::new();
        while let Some(frame) = self.nodes[node].groups.poll_frame(self.now_ns, &mut body) {
            let receivers = match frame {
                Frame::Segment { node: to, .. } => to as usize - 1..to as usize,
                Frame::Shared { .. } => 0..self.nodes.len(),
                Frame::Copies { sent_ns } => {
                    self.send_copies(node, sent_ns, &body);
                    continue;
                }
            };
            for to in receivers.filter(|to| *to != node) {
                // It does not overtake the heartbeat before it.
                let at_ns = (self.now_ns + 20 * US + self.random.below(100 * US)).max(self.nodes[node].beats.1 + 61 * US);
                if self.random.below(1000) >= self.loss {
                    self.send(node, to, Way::Segment(body.clone()), at_ns);
                }
                if self.random.below(1000) < self.loss {
                    self.send(node, to, Way::Segment(body.clone()), at_ns + self.random.0 % (5 * MS));
                }
            }
        }
        while let Some(event) = self.nodes[node].groups.poll_event() {
            assert!(!matches!(event, Event::AskFence { .. }), "no group here asks for a fence");
            if let Event::AskWitness { node: about, incarnation } = event {
                self.asked.push((node, about as usize - 1, incarnation));
            } else if let Event::Begin { name } = event {
                let plan = self.plan(&name, Kind::Huc, &self.expected);
                self.nodes[node].groups.create(self.now_ns, plan, false).unwrap();
                self.begun += 1;
            } else if let Event::Resume { name, nodes } = event {
                let nodes: Vec<usize> = nodes.iter().map(|node| *node as usize - 1).collect();
                self.resume(node, &name, &nodes, false).unwrap();
            } else if let Event::Differs { what, .. } = event {
                self.differences.push((node, what));
            } else if let Event::Write(write) = event {
                // One behind the other, what waits together.
                let before = self.writes.iter().filter(|(_, of, _)| *of == node).map(|(at_ns, ..)| *at_ns).max();
                let at_ns = before.unwrap_or(0).max(self.now_ns + 100 * US + self.random.below(4 * MS));
                self.writes.push_back((at_ns, node, *write));
            } else if let Event::Fetch { generation, what, from } = event {
                let at_ns = self.now_ns + 100 * US + self.random.below(self.fetch_ns);
                self.fetches.push((at_ns, node, self.nodes[node].incarnation, generation, what, from));
            }
        }
        self.nodes[node].groups.invariants();
    }

    fn send_copies(&mut self, node: usize, sent_ns: u64, body: &[u8]) {
        let leaves = self.no_path_from != Some(node);
        for to in (0..self.nodes.len()).filter(|to| *to != node) {
            for path in (0..fide_wire::PATHS).filter(|path| leaves || *path == 0) {
                let at_ns = self.now_ns + 20 * US + self.random.below(100 * US);
                if self.lost_copies.contains(&(node, to, path)) {
                    continue;
                }
                self.send(node, to, Way::Copy { path, sent_ns, at_ns, body: body.to_vec() }, at_ns);
            }
        }
        let departure = if leaves { Departure::Whole } else { Departure::Void };
        self.nodes[node].groups.handle_copies_sent(self.now_ns, departure);
    }

    fn beat(&mut self, node: usize) {
        let (mut body, now_ns) = (Vec::new(), self.now_ns);
        self.wake(node);
        self.nodes[node].groups.poll_rides(now_ns, BODY_MAX, &mut body);
        assert!(body.len() <= BODY_MAX, "a body of {} bytes", body.len());
        let rides: Vec<Vec<u8>> = items::read(&body).map(|item| item.unwrap().bytes.to_vec()).collect();
        // A heartbeat reaches everybody, and nothing of one sender overtakes another.
        for to in (0..self.nodes.len()).filter(|to| *to != node) {
            self.send(node, to, Way::Rides(self.nodes[node].beats.0 + 1, rides.clone()), now_ns + 60 * US);
        }
        let Node { groups, beats, .. } = &mut self.nodes[node];
        *beats = (beats.0 + 1, now_ns);
        groups.handle_sent(now_ns);
        self.nodes[node].beat_ns = now_ns + MS;
    }

    /// Until this time, or until that holds.
    fn run(&mut self, until_ns: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        loop {
            for node in 0..self.nodes.len() {
                if self.runs_now(node) {
                    self.flush(node);
                }
            }
            self.look();
            if done(self) {
                return true;
            }
            let up = self.nodes.iter().filter(|node| node.up);
            let timers = up.flat_map(|node| {
                let timers = node.groups.poll_timeout().into_iter().chain([node.beat_ns]);
                timers.map(|at_ns| at_ns.max(node.paused_until))
            });
            let queues = self.queue.keys().chain(self.verdicts.keys()).map(|(at_ns, _)| *at_ns);
            let queues = queues.chain(self.writes.iter().map(|(at_ns, ..)| *at_ns));
            let queues = queues.chain(self.fetches.iter().map(|(at_ns, ..)| *at_ns));
            let Some(next) = timers.chain(queues).min() else { return false };
            if next > until_ns {
                return false;
            }
            self.now_ns = self.now_ns.max(next);
            self.happen();
        }
    }

    /// What has reached the disks.
    fn write(&mut self) {
        for (at_ns, node, write) in std::mem::take(&mut self.writes) {
            if at_ns > self.now_ns {
                self.writes.push_back((at_ns, node, write));
                continue;
            }
            let Write { name, generation, index, what } = write;
            let disk = self.disks.entry((node, name.clone())).or_default();
            disk.write(what);
            self.nodes[node].groups.handle_written(&name, generation, index);
        }
    }

    /// What has been fetched.
    fn fetch(&mut self) {
        for (at_ns, node, incarnation, generation, what, from) in std::mem::take(&mut self.fetches) {
            if at_ns > self.now_ns || self.nodes[node].up && !self.runs_now(node) {
                self.fetches.push((at_ns.max(self.nodes[node].paused_until), node, incarnation, generation, what, from));
                continue;
            }
            let maker = &self.nodes[from as usize - 1];
            let fetched = match maker.groups.large(what.id) {
                _ if !maker.up => Fetched::Failed,
                None => Fetched::Missing,
                Some(large) => Fetched::Whole(large.clone()),
            };
            if self.nodes[node].up && self.nodes[node].incarnation == incarnation {
                self.wake(node);
                self.nodes[node].groups.handle_fetched(self.now_ns, generation, what.id, fetched);
            }
        }
    }

    fn happen(&mut self) {
        self.write();
        self.fetch();
        while let Some(first) = self.queue.first_entry().filter(|first| first.key().0 <= self.now_ns) {
            let (from, to, incarnation, way) = first.remove();
            // Frames of a life that is over are refused by the receive program; who sent them hears of it. What came to a node that stands still came
            // before that.
            let is_deferred = self.nodes[to].paused_until == self.now_ns;
            if !self.nodes[to].up || self.nodes[from].incarnation != incarnation && !is_deferred {
                continue;
            }
            if self.condemned.contains(&(to, from, incarnation)) {
                if self.runs_now(from) {
                    self.begin_anew(from);
                }
                continue;
            }
            if !self.runs_now(to) {
                let at_ns = self.nodes[to].paused_until;
                self.counter += 1;
                self.queue.insert((at_ns, self.counter), (from, to, incarnation, way));
                continue;
            }
            self.wake(to);
            let groups = &mut self.nodes[to].groups;
            match way {
                Way::Copy { path, sent_ns, at_ns, body } => groups.handle_copy(at_ns, from as u32 + 1, path, sent_ns, &body),
                Way::Segment(body) => _ = groups.handle_segment(self.now_ns, from as u32 + 1, incarnation, &body),
                Way::Rides(number, rides) => {
                    rides.iter().for_each(|ride| groups.handle_ride(self.now_ns, from as u32 + 1, ride));
                    if !rides.is_empty() {
                        groups.handle_heartbeat(self.now_ns, from as u32 + 1, number);
                    }
                }
            }
        }
        while let Some(first) = self.verdicts.first_entry().filter(|first| first.key().0 <= self.now_ns) {
            let (observer, about, incarnation) = first.remove();
            if self.nodes[observer].up && !self.runs_now(observer) {
                // What it missed is not held against others.
                self.counter += 1;
                let at_ns = self.nodes[observer].paused_until + TIMEOUT_NS;
                self.verdicts.insert((at_ns, self.counter), (observer, about, incarnation));
                continue;
            }
            let is_silent = !self.runs_now(about) || self.nodes[about].incarnation > incarnation;
            if self.nodes[observer].up && is_silent {
                self.wake(observer);
                self.condemned.insert((observer, about, incarnation));
                let about = about as u32 + 1;
                let groups = &mut self.nodes[observer].groups;
                groups.handle_verdict(self.now_ns, about, incarnation, Cause::SilentHost, Grade::Inferred);
            }
        }
        for node in 0..self.nodes.len() {
            if !self.runs_now(node) {
                continue;
            }
            self.wake(node);
            if self.nodes[node].beat_ns <= self.now_ns {
                self.beat(node);
            }
            let lives: Vec<_> = self.nodes.iter().map(|node| (node.up, node.incarnation)).collect();
            self.nodes[node].groups.handle_timeout(self.now_ns, |of| match lives[of as usize - 1] {
                (true, life) => Standing::Alive(life),
                (false, life) => Standing::Late(life),
            });
        }
    }

    /// Before anything else, a node notices that it was silent.
    fn wake(&mut self, node: usize) {
        let Node { groups, beats, woke_behind_ns, .. } = &mut self.nodes[node];
        if beats.1 != 0 && self.now_ns - beats.1 > TIMEOUT_NS / 2 && *woke_behind_ns != beats.1 {
            *woke_behind_ns = beats.1;
            groups.hold(self.now_ns, 0);
        }
    }

    fn runs_now(&self, node: usize) -> bool {
        self.nodes[node].up && self.nodes[node].paused_until <= self.now_ns
    }

    /// It stands still; if it does so for long, the others give it up.
    fn pause(&mut self, node: usize, for_ns: u64) {
        self.nodes[node].paused_until = self.now_ns + for_ns;
        self.judge_silent(node);
    }

    /// It was given up, and learns it.
    fn begin_anew(&mut self, node: usize) {
        self.nodes[node].incarnation += 1;
        let incarnation = self.nodes[node].incarnation;
        self.nodes[node].groups.begin_incarnation(self.now_ns, incarnation);
        self.meet(node);
    }

    fn crash(&mut self, node: usize) {
        self.nodes[node].up = false;
        // What an agent that ends has not written, nobody writes.
        self.writes.retain(|(_, of, _)| *of != node);
        self.judge_silent(node);
    }

    /// All observers judge at one time: that they agree is the contract's to keep.
    fn judge_silent(&mut self, node: usize) {
        let at_ns = self.now_ns + TIMEOUT_NS + self.random.below(MS);
        for observer in (0..self.nodes.len()).filter(|observer| *observer != node) {
            self.counter += 1;
            self.verdicts.insert((at_ns, self.counter), (observer, node, self.nodes[node].incarnation));
        }
    }

    fn start(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation + 1;
        self.nodes[node] = Node::new(node, incarnation, self.now_ns);
        for ((_, name), saved) in self.disks.iter().filter(|((of, _), _)| *of == node) {
            self.nodes[node].groups.handle_saved(name, saved.clone());
        }
        self.meet(node);
    }

    /// They are to be in a durable group by themselves.
    fn expect_durable(&mut self, nodes: &[usize]) {
        (self.durable, self.expected) = (true, nodes.to_vec());
        for node in nodes {
            let of = Expected { name: "g".into(), durable: true, ..expected(nodes) };
            self.nodes[*node].groups.expect(self.now_ns, [of].into_iter());
        }
    }

    /// All are back at about one time.
    fn start_all(&mut self, nodes: &[usize]) {
        for node in nodes {
            let at_ns = self.now_ns + self.random.below(30 * MS);
            self.run(at_ns, |_| false);
            self.start(*node);
            let of = Expected { name: "g".into(), durable: true, ..expected(&self.expected) };
            self.nodes[*node].groups.expect(self.now_ns, [of].into_iter());
        }
        assert!(self.within(20_000, |world| nodes.iter().all(|node| world.runs(*node))), "the group runs again");
    }

    /// What applications read is one order, for all of them.
    fn look(&mut self) {
        let reads_nothing = self.reads_nothing;
        for (_, node) in self.nodes.iter_mut().enumerate().filter(|(of, node)| node.up && reads_nothing != Some(*of)) {
            // What a snapshot stands for, an application need not read.
            let kept_from = node.groups.state("g").map_or(0, |state| state.snapshot().0) as usize;
            if kept_from > node.read.len() && kept_from <= self.order.len() && self.durable {
                node.read = self.order[..kept_from].to_vec();
            }
            let Some(entries) = node.groups.entries_behind("g", node.read.len() as u64) else { continue };
            for applied in entries {
                let (client, number, bytes) = applied.value();
                assert_eq!(applied.index, node.read.len() as u64 + 1, "without gaps");
                node.read.push((client, number, bytes.to_vec()));
            }
            for (at, entry) in node.read.iter().enumerate().skip(self.order.len().min(node.read.len())) {
                assert_eq!(at, self.order.len());
                self.order.push(entry.clone());
            }
            assert!(self.order.starts_with(&node.read), "one order");
        }
    }

    fn status(&self, node: usize) -> Option<Status> {
        self.nodes[node].groups.status_named("g")
    }

    fn runs(&self, node: usize) -> bool {
        self.nodes[node].up && self.status(node).is_some_and(|status| status.stage == Stage::Running)
    }

    /// A node goes on with the log that it keeps, with these.
    fn resume(&mut self, node: usize, name: &str, nodes: &[usize], anyway: bool) -> Result<(), Error> {
        let Plan { generation, members, timing, .. } = self.plan(name, Kind::Huc, nodes);
        self.nodes[node].groups.resume(self.now_ns, name, Resume { generation, members, timing, anyway })
    }

    /// Every node runs the group, and has read all.
    fn all_run(&self) -> bool {
        (0..self.nodes.len()).all(|node| self.runs(node) && self.nodes[node].read.len() == self.order.len())
    }

    fn created(seed: u64, nodes: usize, engine: Kind) -> Self {
        let mut world = Self::new(seed, nodes);
        let plan = world.plan("g", engine, &(0..nodes).collect::<Vec<_>>());
        world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
        let until_ns = world.now_ns + 100 * MS;
        assert!(world.run(until_ns, |world| (0..nodes).all(|node| world.runs(node))), "everybody runs it");
        world
    }

    /// Values of all kinds: with others on one heartbeat, on several, and sent ahead.
    fn propose(&mut self, node: usize, client: u64, number: u64) -> Result<(), Error> {
        let mut bytes = vec![client as u8, number as u8];
        bytes.resize([2, 2, 900, 3_000, 2, 7_000, 10_000][((client + 3 * number) % 7) as usize], number as u8);
        self.nodes[node].groups.propose(self.now_ns, "g", client, number, &bytes)
    }

    fn within(&mut self, ms: u64, done: impl FnMut(&Self) -> bool) -> bool {
        self.run(self.now_ns + ms * MS, done)
    }
}

#[test]
fn what_is_proposed_anywhere_is_applied_everywhere_in_one_order() {
    for engine in [Kind::Huc, Kind::Hsuc, Kind::Lowi] {
        for nodes in [1, 2, 3, 5] {
            let mut world = World::created(7, nodes, engine);
            for number in 1..=20 {
                for node in 0..nodes {
                    world.propose(node, node as u64 + 1, number).unwrap();
                }
            }
            let all = 20 * nodes;
            assert!(world.within(500, |world| world.nodes.iter().all(|node| node.read.len() == all)), "{engine}, {nodes} nodes");
        }
    }
}

#[test]
fn the_leader_crashes_and_the_others_go_on() {
    for seed in 0..50 {
        let mut world = World::created(seed, 3, any_engine(seed));
        assert_eq!(world.status(2).unwrap().leader, Some(MemberId(1)));
        for number in 1..=5 {
            world.propose(1, 2, number).unwrap();
        }
        let instant = world.now_ns + world.random.below(3 * MS);
        world.run(instant, |_| false);
        world.crash(0);
        assert!(world.within(100, |world| (1..3).all(|node| world.nodes[node].read.len() == 5)), "seed {seed}");
        assert!(world.within(100, |world| world.status(1).unwrap().members.len() == 2), "it was evicted");
        assert!(world.within(100, |world| world.status(2).unwrap().leader == Some(MemberId(2))));
        world.propose(2, 3, 1).unwrap();
        assert!(world.within(100, |world| (1..3).all(|node| world.nodes[node].read.len() == 6)));
    }
}

/// Who misses a copy is out, alone, and comes back with what it missed.
#[test]
fn a_copy_that_is_lost_costs_one_member_its_place_until_it_is_back() {
    for (lost, why) in [(&[1][..], Halted::NetworkFault), (&[0, 1], Halted::MissingBroadcast)] {
        let mut world = World::created(3, 3, Kind::Lowi);
        world.propose(1, 1, 1).unwrap();
        assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 1)));
        world.lost_copies = lost.iter().map(|path| (0, 2, *path)).collect();
        world.propose(0, 2, 1).unwrap();
        assert!(world.within(5, |world| (0..2).all(|node| world.nodes[node].read.len() == 2)), "the others have it");
        world.lost_copies.clear();
        world.propose(0, 2, 2).unwrap();
        assert!(world.within(100, |world| world.status(2).unwrap().halted == Some(why)), "{why:?}");
        assert!(world.within(1_000, |world| world.runs(2) && world.nodes[2].read.len() == 3), "it is back");
        assert!((0..2).all(|node| world.status(node).unwrap().halted.is_none()), "nobody else was stopped");
        world.propose(2, 3, 1).unwrap();
        assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 4)));
    }
}

/// A path that takes nothing stops who sends before it decides, and nobody else, although the
/// others have got what left by the other path; the next one leads, and it comes back.
#[test]
fn a_leader_of_lowi_that_cannot_send_on_all_paths_decides_nothing() {
    for (seed, len) in [(4, 2), (5, 2), (6, 5_000), (7, 60_000)] {
        let mut world = World::created(seed, 3, Kind::Lowi);
        world.propose(0, 1, 1).unwrap();
        assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 1)));
        world.no_path_from = Some(0);
        let (now_ns, value) = (world.now_ns, vec![7; len]);
        world.nodes[0].groups.propose(now_ns, "g", 1, 2, &value).unwrap();
        assert!(world.within(20, |world| world.status(0).unwrap().halted == Some(Halted::NetworkFault)));
        assert_eq!(world.nodes[0].read.len(), 1, "it was not decided");
        world.propose(1, 2, 1).unwrap();
        assert!(world.within(100, |world| (1..3).all(|node| world.nodes[node].read.len() == 2)), "the others go on");
        assert!((1..3).all(|node| world.status(node).unwrap().halted.is_none()), "nobody else was stopped");
        world.no_path_from = None;
        assert!(world.within(1_000, |world| world.runs(0) && world.status(0).unwrap().leader == Some(MemberId(2))));
        let now_ns = world.now_ns;
        world.nodes[0].groups.propose(now_ns, "g", 1, 2, &value).unwrap();
        assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 3)));
    }
}

/// A thread that was held up behind the stamp of a round sends nothing of it: the others would take
/// it for late, and stop.
#[test]
fn a_round_that_was_held_up_before_it_left_stops_its_sender_alone() {
    let mut world = World::created(8, 3, Kind::Lowi);
    world.propose(0, 1, 1).unwrap();
    assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 1)));
    let (now_ns, mut body) = (world.now_ns, Vec::new());
    let timing = world.plan("g", Kind::Lowi, &[0]).timing;
    let standing = |_: u32| Standing::Alive(1);
    let groups = &mut world.nodes[0].groups;
    groups.propose(now_ns, "g", 1, 2, b"late").unwrap();
    groups.handle_timeout(now_ns, standing);
    let held_up_ns = now_ns + timing.delta_i_ns / 2 + 1;
    while let Some(frame) = groups.poll_frame(held_up_ns, &mut body) {
        assert!(!matches!(frame, Frame::Copies { .. }), "it leaves late");
    }
    assert_eq!(world.status(0).unwrap().halted, Some(Halted::NetworkFault));
    assert!(world.within(1_000, |world| world.runs(0)));
    assert!((1..3).all(|node| world.status(node).unwrap().halted.is_none()), "nobody else was stopped");
}

#[test]
fn a_group_that_has_ended_can_be_left_and_its_name_taken_again() {
    let mut world = World::created(2, 2, Kind::Huc);
    let now_ns = world.now_ns;
    (0..2).for_each(|node| world.nodes[node].groups.stop(now_ns));
    assert!((0..2).all(|node| !world.runs(node)), "nobody is left");
    (0..2).for_each(|node| world.nodes[node].groups.leave(now_ns, "g").unwrap());
    assert!(!world.within(1_000, |world| world.runs(0) || world.runs(1)), "what was left does not go on");
    let now_ns = world.now_ns;
    assert!(
        (0..2).all(|node| world.status(node).unwrap().stage == Stage::Left && world.nodes[node].groups.kept().next().is_none())
    );
    let plan = world.plan("g", Kind::Huc, &[0, 1]);
    world.nodes[0].groups.create(now_ns, plan, false).unwrap();
    assert!(world.within(1_000, |world| world.runs(0) && world.runs(1)));
}

/// Nothing of a group that was left stays for ever, nor of a name that nobody has heard of, and the configuration's groups find room.
#[test]
fn a_group_that_was_left_gives_its_place_back_and_those_of_the_configuration_have_theirs() {
    let mut world = World::created(2, 2, Kind::Huc);
    let now_ns = world.now_ns;
    world.nodes[1].groups.leave(now_ns, "g").unwrap();
    assert!(world.within(1_000, |world| world.status(1).is_some_and(|status| status.stage == Stage::Left)));
    assert!(!world.within(LEFT_NS / MS - 1_000, |world| world.nodes[1].groups.is_empty()), "applications may read the rest");
    assert!(world.within(2_000, |world| world.nodes[1].groups.is_empty()) && world.runs(0));
    let now_ns = world.now_ns;
    world.nodes[1].groups.join(now_ns, "g").unwrap();
    assert!(world.within(2_000, |world| world.runs(1)), "its name is free again");
    let now_ns = world.now_ns;
    let groups = &mut world.nodes[1].groups;
    groups.expect(now_ns, [expected(&[0, 1])].into_iter());
    let invented = |at: usize| format!("invented {at}");
    let joined = (0..GROUPS_MAX).filter(|at| groups.join(now_ns, &invented(*at)).is_ok()).count();
    assert_eq!(joined, GROUPS_MAX - 2, "one runs, and one is the configuration's");
    assert!(groups.kept().all(|name| name == "g"), "they are not joined again behind a restart");
    assert!(!world.within(FAILED_NS / MS + 5_000, |_| false));
    assert!(world.nodes[1].groups.status().all(|status| !status.name.starts_with("invented")));
}

/// A path that stays out does not have a member come and go for ever.
#[test]
fn a_member_of_lowi_that_misses_copies_again_and_again_comes_back_ever_more_seldom() {
    let mut world = World::created(9, 3, Kind::Lowi);
    world.lost_copies = [(0, 2, 1)].into();
    world.within(20_000, |_| false);
    let highest = world.nodes[0].groups.state("g").unwrap().bindings().keys().max().copied();
    assert!((MemberId(4)..MemberId(15)).contains(&highest.unwrap()), "{highest:?}");
    world.lost_copies.clear();
    assert!(world.within(15_000, |world| world.runs(2)));
}

/// Nor does one of any other engine that stops soon again, whatever the reason; and where packets of a host were lost meanwhile, it is
/// back soon after that has ended.
#[test]
fn a_member_that_stops_again_and_again_comes_back_ever_more_seldom_and_at_once_when_the_trouble_ends() {
    for engine in [Kind::Huc, Kind::Hsuc, Kind::Lowi] {
        let mut world = World::created(9, 3, engine);
        let mut stops = 0;
        for _ in 0..120 {
            world.within(1_000, |world| world.runs(2));
            if world.runs(2) {
                stops += 1;
                world.begin_anew(2);
            }
            let now_ns = world.now_ns;
            world.nodes[2].groups.handle_second(now_ns, |_| false);
        }
        assert!((8..20).contains(&stops), "{engine}: {stops}");
        assert!(!world.within(2_000, |world| world.runs(2)), "{engine}: it waits");
        let now_ns = world.now_ns;
        world.nodes[2].groups.handle_second(now_ns, |_| true);
        assert!(!world.within(500, |world| world.runs(2)), "{engine}: a calm second may be one between two others");
        let now_ns = world.now_ns;
        world.nodes[2].groups.handle_second(now_ns, |_| true);
        assert!(world.within(1_000, |world| world.runs(2)), "{engine}: the trouble is over");
    }
}

#[test]
fn times_of_a_plan_that_cannot_be_are_refused() {
    let good = Timing::of_contract(MS, 3 * MS);
    assert_eq!(good.check(), Ok(()));
    assert_eq!([(0, 0), (1, 1), (1_000 * MS, MS)].map(|(period, delay)| Timing::of_contract(period, delay).check()), [Ok(()); 3]);
    for n in [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
        for m in [0, 1, u64::MAX - 1] {
            let _ = Timing { period_ns: n, delta_i_ns: m, delta_w_ns: u64::MAX - 1 }.check();
            let _ = Timing { period_ns: m, delta_i_ns: n, delta_w_ns: n }.check();
        }
        let timings =
            [Timing { period_ns: 0, ..good }, Timing { delta_i_ns: u64::MAX - 1, ..good }, Timing { delta_w_ns: 1, ..good }];
        assert!(timings.iter().all(|timing| timing.check().is_err()));
    }
    let mut world = World::new(1, 2);
    let plan =
        Plan { timing: Timing { period_ns: 1, delta_i_ns: 1, delta_w_ns: u64::MAX - 1 }, ..world.plan("g", Kind::Lowi, &[0, 1]) };
    let now_ns = world.now_ns;
    assert!(matches!(world.nodes[0].groups.create(now_ns, plan, false), Err(Error::Invalid(_))));
}

#[test]
fn a_decision_on_several_heartbeats_is_one_that_all_have_or_none() {
    for seed in 0..60 {
        let mut world = World::created(seed, 3, Kind::Huc);
        let value = |number: u64| vec![number as u8; 6_000];
        let now_ns = world.now_ns;
        world.nodes[0].groups.propose(now_ns, "g", 1, 1, &value(1)).unwrap();
        assert!(world.within(20, |world| world.nodes[0].groups.midway() > 0), "it takes more than one heartbeat");
        assert!(world.nodes.iter().all(|node| node.read.is_empty()), "nothing is decided in between");
        if seed % 3 == 0 {
            // The leader ends midway: nobody has it, and the others go on without it.
            let instant = world.now_ns + world.random.below(6 * MS);
            world.run(instant, |_| false);
            world.crash(0);
            let now_ns = world.now_ns;
            world.nodes[1].groups.propose(now_ns, "g", 2, 1, &value(2)).unwrap();
            let count = world.nodes[0].read.len();
            assert!(world.within(200, |world| (1..3).all(|node| world.nodes[node].read.len() == count + 1)), "seed {seed}");
        } else if seed % 3 == 1 {
            // It stands still midway, is not given up, and goes on behind that.
            world.pause(0, 2 * MS);
            assert!(world.within(200, |world| world.nodes.iter().all(|node| node.read.len() == 1)), "seed {seed}");
        } else {
            assert!(world.within(200, |world| world.nodes.iter().all(|node| node.read.len() == 1)), "seed {seed}");
        }
    }
}

const CUTS: [(Policy, bool); 5] = [
    (Policy::Fence, true),
    (Policy::Fence, false),
    (Policy::Witness, true),
    (Policy::Witness, false),
    (Policy::TrustContract, true),
];

#[test]
fn under_the_policy_fence_a_leader_tells_of_what_the_others_have_and_of_nothing_else() {
    for (policy, is_cut) in CUTS {
        let mut world = World::new(1, 3);
        let plan = Plan { policy, ..world.plan("g", Kind::Huc, &[0, 1, 2]) };
        world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
        assert!(world.within(100, |world| (0..3).all(|node| world.runs(node))));
        world.propose(0, 1, 1).unwrap();
        assert!(world.within(20, |world| world.nodes.iter().all(|node| node.read.len() == 1)));
        if is_cut {
            // Nothing of this node reaches the others any more, or of them this one.
            world.nodes[1].up = false;
            world.nodes[2].up = false;
        }
        world.propose(0, 1, 2).unwrap();
        assert!(world.within(20, |world| world.nodes[0].groups.state("g").unwrap().index() == 2), "it has decided");
        world.within(20, |_| false);
        let told = if is_cut && policy != Policy::TrustContract { 1 } else { 2 };
        assert_eq!(world.nodes[0].read.len(), told, "{policy:?}, cut: {is_cut}");
        assert_eq!(world.nodes[0].groups.answer("g", told as u64, &mut Question::new(1, 2)).is_some(), told == 2);
    }
}

/// A partition with the leader and a follower on one side: its fences close, and the others go on.
#[test]
fn under_the_policy_fence_a_follower_tells_of_what_all_have_and_of_nothing_else() {
    for (policy, is_cut) in CUTS {
        let mut world = World::new(1, 3);
        let plan = Plan { policy, ..world.plan("g", Kind::Huc, &[0, 1, 2]) };
        world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
        assert!(world.within(100, |world| (0..3).all(|node| world.runs(node))));
        world.propose(0, 1, 1).unwrap();
        assert!(world.within(20, |world| world.nodes.iter().all(|node| node.read.len() == 1)), "also the last one");
        world.nodes[2].up = !is_cut;
        world.propose(0, 1, 2).unwrap();
        assert!(world.within(20, |world| world.nodes[1].groups.state("g").unwrap().index() == 2), "it has decided");
        world.within(20, |_| false);
        let told = if is_cut && policy != Policy::TrustContract { 1 } else { 2 };
        assert_eq!([0, 1].map(|node: usize| world.nodes[node].read.len()), [told; 2], "{policy:?}, cut: {is_cut}");
    }
}

/// A group under the policy *witness* on three nodes.
fn witnessed(seed: u64, engine: Kind) -> World {
    let mut world = World::new(seed, 3);
    let plan = Plan { policy: Policy::Witness, ..world.plan("g", engine, &[0, 1, 2]) };
    world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
    assert!(world.within(100, |world| (0..3).all(|node| world.runs(node))));
    world
}

/// One that asked about a dead node, and what became of a proposal there until then.
fn asks(world: &mut World, about: usize) {
    world.crash(about);
    let observers: Vec<usize> = (0..3).filter(|node| *node != about).collect();
    let all = |world: &World| observers.iter().all(|node| world.asked.contains(&(*node, about, 1)));
    assert!(world.within(20, all), "{:?}", world.asked);
    world.propose(observers[1], 1, 1).unwrap();
    world.within(20, |_| false);
    assert!(world.nodes.iter().all(|node| node.read.is_empty()), "nothing is decided while it is asked");
}

#[test]
fn members_go_on_when_their_witness_has_granted_it() {
    for (seed, engine) in (0..10).flat_map(|seed| [(seed, Kind::Huc), (seed, Kind::Hsuc)]) {
        let mut world = witnessed(seed, engine);
        let about = (seed % 3) as usize;
        asks(&mut world, about);
        assert_eq!(world.asked.len(), 2, "each once: {:?}", world.asked);
        // Who has not asked, and groups of other policies, take no answer.
        for (observer, of, incarnation) in std::mem::take(&mut world.asked) {
            world.nodes[observer].groups.handle_witness(world.now_ns, of as u32 + 1, incarnation, Answer::Granted);
        }
        let all = |world: &World| (0..3).all(|node| node == about || world.nodes[node].read.len() == 1);
        assert!(world.within(100, all), "seed {seed}, {engine}");
        // A later answer changes nothing.
        let observer = (about + 1) % 3;
        world.nodes[observer].groups.handle_witness(world.now_ns, about as u32 + 1, 1, Answer::Refused);
        world.within(20, |_| false);
        assert!(world.runs(observer));
    }
}

#[test]
fn members_stop_when_their_witness_refuses_or_does_not_answer() {
    for (engine, is_answered) in [(Kind::Huc, true), (Kind::Hsuc, true), (Kind::Huc, false), (Kind::Hsuc, false)] {
        let mut world = witnessed(1, engine);
        asks(&mut world, 0);
        assert!((1..3).all(|node| world.runs(node)), "it is asked still");
        if is_answered {
            for (observer, of, incarnation) in std::mem::take(&mut world.asked) {
                world.nodes[observer].groups.handle_witness(world.now_ns, of as u32 + 1, incarnation, Answer::Refused);
            }
        }
        let within = if is_answered { 1 } else { 40 };
        assert!(world.within(within, |world| (1..3).all(|node| !world.runs(node))));
        for node in 1..3 {
            assert_eq!(world.status(node).unwrap().halted, Some(Halted::Unconfirmed(MemberId(1))));
            assert!(world.nodes[node].read.is_empty());
        }
        // What comes too late, comes to nobody.
        world.nodes[1].groups.handle_witness(world.now_ns, 1, 1, Answer::Granted);
        world.within(500, |_| false);
        assert!((1..3).all(|node| !world.runs(node) && world.nodes[node].read.is_empty()));
    }
}

#[test]
fn a_witness_may_be_given_more_time_while_a_group_runs() {
    let mut world = witnessed(1, Kind::Huc);
    world.nodes[1].groups.set_witness(Some(500 * MS));
    asks(&mut world, 0);
    assert!(world.within(100, |world| !world.runs(2)));
    world.within(200, |_| false);
    assert!(world.runs(1), "it waits still");
    assert!(world.within(300, |world| !world.runs(1)));
}

#[test]
fn a_witness_is_not_asked_about_what_is_certain_and_nothing_it_says_matters_then() {
    let mut world = witnessed(1, Kind::Huc);
    world.crash(0);
    world.verdicts.clear();
    for node in 1..3 {
        world.nodes[node].groups.handle_verdict(world.now_ns, 1, 1, Cause::Killed, Grade::Certain);
    }
    world.propose(2, 1, 1).unwrap();
    assert!(world.within(50, |world| (1..3).all(|node| world.nodes[node].read.len() == 1)));
    assert_eq!(world.asked, []);
    // One that is back in a new incarnation while it is asked about.
    let mut world = witnessed(2, Kind::Huc);
    asks(&mut world, 0);
    world.start(0);
    assert!(world.within(50, |world| (1..3).all(|node| world.nodes[node].read.len() == 1)));
    world.nodes[1].groups.handle_witness(world.now_ns, 1, 1, Answer::Refused);
    assert!(world.runs(1));
}

/// It would wait for the one that is dead, and for nothing else.
#[test]
fn a_member_that_is_held_behind_its_own_silence_asks_the_witness() {
    let mut world = witnessed(1, Kind::Huc);
    world.crash(0);
    world.verdicts.clear();
    for node in 1..3 {
        world.nodes[node].groups.hold(world.now_ns, 0);
        world.nodes[node].groups.handle_verdict(world.now_ns, 1, 1, Cause::SilentHost, Grade::Inferred);
    }
    world.propose(2, 1, 1).unwrap();
    assert!(world.within(20, |world| world.asked.len() == 2));
    for (observer, of, incarnation) in std::mem::take(&mut world.asked) {
        world.nodes[observer].groups.handle_witness(world.now_ns, of as u32 + 1, incarnation, Answer::Granted);
    }
    assert!(world.within(100, |world| (1..3).all(|node| world.nodes[node].read.len() == 1)));
}

#[test]
fn a_node_without_a_witness_is_in_no_group_that_relies_on_one() {
    let mut world = World::new(1, 3);
    let plan = |world: &World, nodes: &[usize]| Plan { policy: Policy::Witness, ..world.plan("g", Kind::Huc, nodes) };
    world.nodes[2].groups.set_witness(None);
    let own = plan(&world, &[2, 0]);
    let refused = world.nodes[2].groups.create(world.now_ns, own, false);
    assert!(matches!(refused, Err(Error::Invalid(why)) if why.contains("node 00000003 has no witness")));
    let all = plan(&world, &[0, 1, 2]);
    world.nodes[0].groups.create(world.now_ns, all, false).unwrap();
    world.within(100, |_| false);
    let Stage::Failed(why) = world.status(0).unwrap().stage else { panic!("it begins") };
    assert!(why.contains("node 00000003 has no witness"), "{why}");
    // Nor is it let in.
    let two = plan(&world, &[0, 1]);
    world.nodes[0].groups.create(world.now_ns, two, false).unwrap();
    assert!(world.within(100, |world| (0..2).all(|node| world.runs(node))));
    world.nodes[2].groups.join(world.now_ns, "g").unwrap();
    world.within(1_000, |_| false);
    let Stage::Failed(why) = world.status(2).unwrap().stage else { panic!("it joins") };
    assert!(why.contains("has no witness"), "{why}");
    world.nodes[2].groups.set_witness(Some(50 * MS));
    world.nodes[2].groups.join(world.now_ns, "g").unwrap();
    assert!(world.within(1_000, |world| world.runs(2)));
    // Nor does a group that runs go on with an engine that would ask one that is gone.
    world.nodes[1].groups.set_witness(None);
    let refused = world.nodes[1].groups.switch(world.now_ns, "g", Kind::Hsuc);
    assert!(matches!(refused, Err(Error::Invalid(why)) if why.contains("has no witness")));
}

/// An engine that is told of silence as a suspicion, as Raft is.
struct Suspecting(log::Carried<crate::consensus::hsuc::Hsuc, crate::consensus::hsuc::Message>);

impl Engine<EngineMessage> for Suspecting {
    fn kind(&self) -> Kind {
        Kind::Raft
    }
    fn propose(&mut self, now_ns: u64, entry: crate::group::Entry) -> Result<(), Refused> {
        self.0.propose(now_ns, entry)
    }
    fn handle_message(&mut self, now_ns: u64, from: MemberId, message: EngineMessage) -> Result<(), Refused> {
        self.0.handle_message(now_ns, from, message)
    }
    fn handle_crash(&mut self, now_ns: u64, member: MemberId) -> Result<(), Refused> {
        self.0.handle_crash(now_ns, member)
    }
    fn set_members(&mut self, now_ns: u64, from: Instance, members: crate::group::MemberSet) -> Result<(), Refused> {
        self.0.set_members(now_ns, from, members)
    }
    fn poll_action(&mut self) -> Option<crate::consensus::Action<EngineMessage>> {
        self.0.poll_action()
    }
    fn decided_through(&self) -> Instance {
        self.0.decided_through()
    }
    fn stable_through(&self) -> Instance {
        self.0.stable_through()
    }
    fn leader(&self) -> Option<MemberId> {
        self.0.leader()
    }
    fn halted(&self) -> Option<Halted> {
        self.0.halted()
    }
    fn refusals(&self) -> &crate::group::Refusals {
        self.0.refusals()
    }
    fn invariants(&self) {
        self.0.invariants();
    }
}

/// It has left, and is not relied on before the others have said that they got it: a heartbeat behind it does not say that.
#[test]
fn a_decision_that_left_behind_a_silence_counts_when_the_others_have_said_that_it_came() {
    let mut world = World::created(1, 3, Kind::Huc);
    // Nothing else leaves meanwhile.
    (world.nodes[0].beat_ns, world.nodes[0].woke_behind_ns) = (u64::MAX, world.nodes[0].beats.1);
    world.propose(0, 1, 1).unwrap();
    world.within(1, |_| false);
    let (mut body, now_ns, number) = (Vec::new(), world.now_ns, world.nodes[0].beats.0 + 1);
    world.nodes[0].groups.poll_rides(now_ns, BODY_MAX, &mut body);
    let rides: Vec<Vec<u8>> = items::read(&body).map(|item| item.unwrap().bytes.to_vec()).collect();
    assert_eq!(rides.len(), 1);
    for to in 1..3 {
        world.send(0, to, Way::Rides(number, rides.clone()), now_ns + 60 * US);
    }
    world.nodes[0].beats = (number, now_ns);
    world.nodes[0].groups.hold(now_ns, number);
    let decided = |world: &World| {
        let group = world.nodes[0].groups.groups.values().next().unwrap();
        group.member.as_ref().unwrap().log().decided_through()
    };
    let before = decided(&world);
    for _ in 0..2 {
        world.beat(0);
        assert_eq!(decided(&world), before);
        // Another silence, with nothing aboard, changes nothing about that.
        let number = world.nodes[0].beats.0;
        world.nodes[0].groups.hold(now_ns, number);
    }
    assert!(world.within(50, |world| world.nodes.iter().all(|node| node.read.len() == 1)));
    assert!((0..3).all(|node| world.status(node).unwrap().halted.is_none()));
}

/// Under Raft a dead member is a member, and nothing answers for it.
#[test]
fn behind_a_silence_a_member_of_raft_does_not_wait_for_one_that_is_only_suspected() {
    for kind in [Kind::Raft, Kind::Hsuc] {
        let mut world = World::new(1, 3);
        for (node, of) in world.nodes.iter_mut().enumerate() {
            let suspecting: Make = Arc::new(|setup, _, _| {
                let hsuc = crate::consensus::hsuc::Hsuc::new(setup.me, setup.members.clone(), setup.first);
                Some(Box::new(Suspecting(log::Carried::new(hsuc))) as _)
            });
            let make = if kind == Kind::Raft { suspecting } else { Arc::new(make) };
            of.groups = Groups::new(Config { make, ..config(node, 1) });
        }
        (0..3).for_each(|node| world.meet(node));
        let plan = world.plan("g", kind, &[0, 1, 2]);
        world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
        assert!(world.within(100, |world| (0..3).all(|node| world.runs(node))));
        world.nodes[2].up = false;
        let now_ns = world.now_ns;
        world.nodes[0].groups.hold(now_ns, 0);
        world.within(20, |_| false);
        let is_held = world.nodes[0].groups.groups.values().any(|group| group.held.is_some());
        assert_eq!(is_held, kind == Kind::Hsuc, "{kind}");
    }
}

#[test]
fn what_became_of_a_proposal_is_not_told_by_a_member_that_is_behind_whoever_asks() {
    let mut world = World::created(1, 3, Kind::Huc);
    world.propose(0, 1, 1).unwrap();
    assert!(world.within(20, |world| world.nodes.iter().all(|node| node.read.len() == 1)));
    let now_ns = world.now_ns;
    world.nodes[2].groups.leave(now_ns, "g").unwrap();
    assert!(world.within(50, |world| world.nodes[2].groups.status_named("g").unwrap().stage == Stage::Left));
    world.propose(0, 1, 2).unwrap();
    assert!(world.within(20, |world| world.nodes[0].read.len() == 2));
    let fate = |node: usize, read| world.nodes[node].groups.answer("g", read, &mut Question::new(1, 2));
    assert_eq!((fate(0, 1), fate(0, 2)), (None, Some(Fate::Decided)));
    assert_eq!((fate(2, 1), fate(2, 2)), (Some(Fate::Open), None), "it has read that entry on another host");
}

#[test]
fn an_answer_does_not_wait_for_entries_that_came_later() {
    let mut world = World::created(1, 2, Kind::Huc);
    for number in 1..=3 {
        world.propose(0, 1, number).unwrap();
    }
    assert!(world.within(50, |world| world.nodes[0].read.len() == 3));
    let (mut decided, mut open) = (Question::new(1, 2), Question::new(1, 4));
    let mut both = |world: &World, read| {
        let groups = &world.nodes[0].groups;
        (groups.answer("g", read, &mut decided), groups.answer("g", read, &mut open))
    };
    assert_eq!(both(&world, 2), (None, None), "one entry is not read yet");
    world.propose(0, 1, 4).unwrap();
    world.propose(1, 2, 1).unwrap();
    assert!(world.within(50, |world| world.nodes[0].read.len() == 5));
    // That it is open would not be true any more.
    assert_eq!(both(&world, 3), (Some(Fate::Decided), None));
    assert_eq!(both(&world, 5), (Some(Fate::Decided), Some(Fate::Decided)));
}

#[test]
fn a_member_that_missed_a_decision_comes_back_with_it() {
    let mut world = World::created(1, 3, Kind::Huc);
    world.propose(0, 1, 1).unwrap();
    assert!(world.within(20, |world| world.nodes.iter().all(|node| node.read.len() == 1)));
    world.propose(0, 1, 2).unwrap();
    assert!(world.within(20, |world| world.nodes[0].groups.state("g").unwrap().index() == 2));
    let carries = |way: &Way| matches!(way, Way::Rides(_, rides) if !rides.is_empty());
    world.queue.retain(|_, (from, to, _, way)| (*from, *to) != (0, 2) || !carries(way));
    assert!(world.within(1_000, |world| world.nodes.iter().all(|node| node.read.len() == 2)));
    assert_eq!(world.nodes[2].groups.status_named("g").unwrap().halted, Some(Halted::MissingBroadcast));
}

/// The decision that it missed was the last one of its epoch.
#[test]
fn a_member_that_missed_the_change_of_the_engine_comes_back_with_it() {
    for to in [Kind::Huc, Kind::Hsuc] {
        let mut world = World::created(1, 3, Kind::Huc);
        let epoch =
            |world: &World, node: usize| world.nodes[node].groups.named("g").and_then(|g| Some(g.member.as_ref()?.log().epoch()));
        world.nodes[0].groups.switch(world.now_ns, "g", to).unwrap();
        assert!(world.within(20, |world| epoch(world, 0) == Some(1)), "{to}");
        let carries = |way: &Way| matches!(way, Way::Rides(_, rides) if !rides.is_empty());
        world.queue.retain(|_, (from, to, _, way)| (*from, *to) != (0, 2) || !carries(way));
        assert!(world.within(2_000, |world| (0..3).all(|node| epoch(world, node) == Some(1) && world.runs(node))), "{to}");
        world.propose(2, 1, 1).unwrap();
        assert!(world.within(1_000, |world| world.nodes.iter().all(|node| node.read.len() == 1)), "{to}");
    }
}

#[test]
fn what_is_for_a_member_whose_node_is_met_later_is_sent_then() {
    let mut world = World::new(1, 3);
    let now_ns = world.now_ns;
    world.nodes[2].groups = Groups::new(config(2, 1));
    world.nodes[2].groups.handle_life(now_ns, 1, 1, 1);
    let plan = world.plan("g", Kind::Huc, &[0, 1, 2]);
    world.nodes[0].groups.create(now_ns, plan, false).unwrap();
    assert!(world.within(100, |world| (0..3).all(|node| world.runs(node))));
    // More than a decision holds, so that all must have it before.
    let now_ns = world.now_ns;
    world.nodes[2].groups.propose(now_ns, "g", 1, 1, &[7; 10_000]).unwrap();
    assert!(!world.within(50, |world| world.nodes[2].read.len() == 1));
    let now_ns = world.now_ns;
    world.nodes[2].groups.handle_life(now_ns, 2, 1, 1);
    assert!(world.within(50, |world| world.nodes.iter().all(|node| node.read.len() == 1)));
}

#[test]
fn who_comes_back_joins_with_the_whole_state() {
    for seed in 0..50 {
        let mut world = World::created(seed, 3, any_engine(seed));
        world.propose(0, 1, 1).unwrap();
        assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 1)));
        let victim = (seed % 3) as usize;
        world.crash(victim);
        // Sometimes it is back before the others gave it up.
        let pause = world.random.below(8 * MS);
        world.run(world.now_ns + pause, |_| false);
        world.start(victim);
        world.nodes[victim].groups.join(world.now_ns, "g").unwrap();
        assert!(world.within(3000, |world| world.runs(victim)), "seed {seed}");
        world.propose(victim, 9, 1).unwrap();
        assert!(world.within(500, |world| world.nodes.iter().all(|node| node.read.len() == 2)), "seed {seed}");
        assert_eq!(world.status(victim).unwrap().me, Some(MemberId(4)));
    }
}

#[test]
fn a_snapshot_is_all_that_a_newcomer_gets_of_what_it_stands_for() {
    let mut world = World::created(3, 3, Kind::Huc);
    for number in 1..=10 {
        world.propose(0, 1, number).unwrap();
    }
    assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 10)));
    for node in 0..3 {
        world.nodes[node].groups.keep_snapshot("g", 8, b"eight".to_vec()).unwrap();
        assert!(world.nodes[node].groups.keep_snapshot("g", 3, vec![]).is_err());
    }
    world.crash(2);
    world.start(2);
    // Its application takes the snapshot first.
    world.nodes[2].read = world.order[..8].to_vec();
    world.nodes[2].groups.join(world.now_ns, "g").unwrap();
    assert!(world.within(3000, |world| world.runs(2) && world.nodes[2].read.len() == 10));
    assert_eq!(world.nodes[2].groups.state("g").unwrap().snapshot(), (8, Some(&AppState::Bytes(b"eight".to_vec()))));
    assert!(world.nodes[2].groups.entries_behind("g", 7).is_none());
    world.propose(2, 1, 10).unwrap();
    world.propose(2, 1, 11).unwrap();
    assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 11)), "number 10 was applied before");
}

/// Ten entries, of which the first eight are in a large state that node 0 handed in.
fn with_large_state(seed: u64) -> World {
    let mut world = World::created(seed, 3, any_engine(seed));
    for number in 1..=10 {
        world.propose(0, 1, number).unwrap();
    }
    assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 10)));
    world.nodes[0].groups.keep_snapshot("g", 8, vec![8; 200]).unwrap();
    world
}

fn has_state(world: &World, node: usize) -> bool {
    let whole = world.nodes[node].groups.snapshot("g");
    whole.is_some_and(|(index, whole)| index == 8 && whole.len() == 200 && whole.bytes_from(199) == [8])
}

#[test]
fn a_large_state_is_fetched_by_each_host_and_outlives_who_made_it() {
    for seed in 1..60 {
        let mut world = with_large_state(seed);
        assert!(world.nodes[1].groups.entries_behind("g", 0).is_some(), "kept until the state is there");
        assert!(world.within(500, |world| (0..3).all(|node| has_state(world, node))));
        assert!((0..3).all(|node| world.nodes[node].groups.entries_behind("g", 0).is_none()));
        world.crash(0);
        world.propose(1, 2, 1).unwrap();
        assert!(world.within(500, |world| world.nodes[2].read.len() == 11), "seed {seed}");
        world.start(0);
        world.nodes[0].read = world.order[..8].to_vec();
        world.nodes[0].groups.join(world.now_ns, "g").unwrap();
        assert!(world.within(3000, |world| has_state(world, 0) && world.nodes[0].read.len() == 11), "seed {seed}");
    }
}

#[test]
fn who_dies_before_others_have_its_state_costs_nobody_an_entry() {
    for seed in 1..60 {
        let mut world = with_large_state(seed);
        world.fetch_ns = 60 * MS;
        world.run(world.now_ns + 500 * US, |_| false);
        world.crash(0);
        world.propose(1, 2, 1).unwrap();
        assert!(world.within(3000, |world| (1..3).all(|node| world.nodes[node].read.len() == 11)), "seed {seed}");
        // It comes back without its entries, and gets what the others have: those, or the state.
        world.start(0);
        let at = if has_state(&world, 1) || has_state(&world, 2) { 8 } else { 0 };
        world.nodes[0].read = world.order[..at].to_vec();
        world.nodes[0].groups.join(world.now_ns, "g").unwrap();
        let has_all = |world: &World| {
            let is_there = world.nodes[0].groups.state("g").is_some_and(|state| state.index() == 11);
            is_there && world.runs(0) && (has_state(world, 0) || world.nodes[0].groups.entries_behind("g", 0).is_some())
        };
        assert!(world.within(8000, has_all), "seed {seed}: {:?}", world.status(0));
        let before = (1..3).map(|node| world.nodes[node].groups.entries_behind("g", 0).is_some()).collect::<Vec<_>>();
        world.nodes[1].groups.keep_snapshot("g", 11, vec![11; 300]).unwrap();
        let all_fetched = |world: &World| {
            (0..3).all(|node| {
                world.nodes[node].groups.snapshot("g").is_some_and(|(index, whole)| (index, whole.len()) == (11, 300))
            })
        };
        assert!(world.within(1000, all_fetched), "seed {seed}: {before:?}");
    }
}

/// Node 2 is let in, and the others end before it has the state of the applications.
fn with_lost_state(seed: u64) -> World {
    let mut world = with_large_state(seed);
    assert!(world.within(500, |world| (0..3).all(|node| has_state(world, node))));
    world.crash(2);
    world.run(world.now_ns + 50 * MS, |_| false);
    world.start(2);
    world.fetch_ns = 1;
    // All states stay under way.
    world.nodes[2].groups.join(world.now_ns, "g").unwrap();
    let asked = |world: &World| world.fetches.iter().any(|(_, node, ..)| *node == 2);
    assert!(world.within(3000, asked));
    let fetch = world.fetches.pop().unwrap();
    let status = world.status(2).unwrap();
    assert_eq!(status.stage, Stage::Joining);
    assert!(status.trouble.contains("200 bytes"), "{status:?}");
    assert!(world.propose(2, 2, 1).is_err());
    world.run(world.now_ns + 5_000 * MS, |_| false);
    assert_eq!(world.status(2).unwrap().me, status.me, "it waits for as long as it takes");
    // Who is asked dies: the other one is.
    world.crash(fetch.5 as usize - 1);
    assert!(world.within(500, asked));
    let other = world.fetches.pop().unwrap();
    assert_ne!(other.5, fetch.5);
    world.crash(other.5 as usize - 1);
    let lost = |world: &World| matches!(world.status(2).unwrap().stage, Stage::Failed(_));
    assert!(world.within(500, lost), "{:?}", world.status(2));
    world
}

/// A group that can run no more here does not stay for ever.
#[test]
fn a_group_that_cannot_run_here_gives_its_place_back() {
    let mut world = with_lost_state(5);
    assert!(!world.within(LEFT_NS / MS - 1_000, |world| world.nodes[2].groups.is_empty()), "it is seen why");
    assert!(world.within(2_000, |world| world.nodes[2].groups.is_empty()));
}

#[test]
fn a_member_without_its_applications_state_does_not_run_and_says_when_that_is_lost() {
    let mut world = with_lost_state(5);
    // That name can be used again.
    let plan = world.plan("g", Kind::Huc, &[2]);
    world.order.clear();
    world.nodes[2].groups.create(world.now_ns, plan, false).unwrap();
    assert!(world.runs(2));
}

#[test]
fn a_state_that_was_superseded_while_it_was_fetched_is_left() {
    let mut world = with_large_state(7);
    assert!(world.within(500, |world| (0..3).all(|node| has_state(world, node))));
    world.crash(2);
    world.run(world.now_ns + 50 * MS, |_| false);
    world.start(2);
    world.nodes[2].read = world.order[..9].to_vec();
    world.nodes[2].groups.join(world.now_ns, "g").unwrap();
    let asked = |world: &World| world.fetches.iter().any(|(_, node, ..)| *node == 2);
    assert!(world.within(3000, asked));
    // Two later ones, so that nobody has the first any more; and the newcomer hears of none.
    for index in [9, 10] {
        let state = vec![index as u8; 300];
        (0..2).for_each(|node| world.nodes[node].groups.keep_snapshot("g", index, state.clone()).unwrap());
    }
    world.nodes[2].read = world.order[..10].to_vec();
    let has_last = |world: &World| world.nodes[2].groups.snapshot("g").is_some_and(|(index, _)| index == 10);
    assert!(world.within(10_000, |world| world.runs(2) && has_last(world)), "{:?}", world.status(2));
}

#[test]
fn a_group_leaves_begins_anew_and_changes_its_engine() {
    let mut world = World::created(5, 3, Kind::Huc);
    world.nodes[1].groups.switch(world.now_ns, "g", Kind::Hsuc).unwrap();
    assert!(world.within(200, |world| (0..3).all(|node| world.status(node).unwrap().engine == Kind::Hsuc)));
    world.nodes[2].groups.switch(world.now_ns, "g", Kind::Lowi).unwrap();
    assert!(world.within(200, |world| (0..3).all(|node| world.status(node).unwrap().engine == Kind::Lowi)));
    assert!(matches!(world.nodes[1].groups.switch(world.now_ns, "g", Kind::Paxos), Err(Error::Invalid(_))));
    world.nodes[0].groups.leave(world.now_ns, "g").unwrap();
    assert!(world.within(500, |world| world.status(0).unwrap().stage == Stage::Left));
    world.propose(1, 1, 1).unwrap();
    assert!(world.within(100, |world| (1..3).all(|node| world.nodes[node].read.len() == 1)));
    assert!(matches!(world.propose(0, 1, 1), Err(Error::Busy(_))));
    world.nodes[0].groups.join(world.now_ns, "g").unwrap();
    assert!(world.within(3000, |world| world.runs(0) && world.nodes[0].read.len() == 1));
}

/// A client of the same host that filled every place at once as it became free kept all others out.
#[test]
fn a_client_that_has_nothing_in_the_queue_and_finds_it_full_is_next() {
    let mut world = World::created(5, 3, Kind::Huc);
    let (mut flood, mut own) = (0, 0);
    let fill = |world: &mut World, flood: &mut u64| {
        while world.nodes[1].groups.propose(world.now_ns, "g", 1, *flood + 1, b"").is_ok() {
            *flood += 1;
        }
    };
    for n in 1..=10 {
        // Some 250 are before it each time.
        let is_taken = (0..50).any(|_| {
            fill(&mut world, &mut flood);
            let taken = world.nodes[1].groups.propose(world.now_ns, "g", 2, n, b"");
            world.within(1, |_| false);
            taken.is_ok()
        });
        assert!(is_taken, "{n} behind {flood}");
        own = n;
    }
    assert!(flood > 1_000, "it is not kept out either: {flood}");
    // Whoever does not come again is waited for no longer than that.
    while world.nodes[1].groups.propose(world.now_ns, "g", 2, own + 1, b"").is_ok() {
        own += 1;
    }
    assert!(world.nodes[1].groups.propose(world.now_ns, "g", 3, 1, b"").is_err());
    world.within(1, |_| false);
    assert!(world.nodes[1].groups.propose(world.now_ns, "g", 2, own + 1, b"").is_err(), "the third one is next");
    world.within(TURN_NS / MS, |_| false);
    world.nodes[1].groups.propose(world.now_ns, "g", 2, own + 1, b"").unwrap();
}

#[test]
fn a_client_that_gave_some_of_its_proposals_up_is_next_too() {
    let mut world = World::created(5, 3, Kind::Huc);
    let (mut flood, mut own) = (0, 0);
    for n in 1..=10 {
        // Those before it ran out of time, and were never taken.
        own += 7;
        let is_taken = (0..50).any(|_| {
            while world.nodes[1].groups.propose(world.now_ns, "g", 1, flood + 1, b"").is_ok() {
                flood += 1;
            }
            let taken = world.nodes[1].groups.propose(world.now_ns, "g", 2, own, b"");
            world.within(1, |_| false);
            taken.is_ok()
        });
        assert!(is_taken, "{n} behind {flood}");
    }
    // As many clients as they like: those that have nothing under way are forgotten.
    world.within(100, |_| false);
    for client in 0..3 * TAKEN_CLIENTS as u64 {
        world.nodes[1].groups.propose(world.now_ns, "g", 10 + client, 1, b"").unwrap();
        if client % 64 == 63 {
            world.within(10, |_| false);
        }
    }
    assert!(world.nodes[1].groups.running("g").unwrap().taken.last.len() <= TAKEN_CLIENTS);
}

#[test]
fn two_groups_whose_names_have_one_hash_are_not_on_one_node() {
    let mut known = BTreeMap::new();
    let names = (0..).map(|n| format!("group {n}"));
    let (one, other) =
        names.into_iter().find_map(|name| Some((known.insert(fide_wire::name_id(&name), name.clone())?, name))).unwrap();
    let mut world = World::new(1, 3);
    let plan = world.plan(&one, Kind::Huc, &[0, 1]);
    world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
    world.within(100, |world| {
        [0, 1].iter().all(|at: &usize| world.nodes[*at].groups.status_named(&one).is_some_and(|s| s.stage == Stage::Running))
    });
    // The coordinator has none of the first one's members' groups; another node refuses.
    let plan = world.plan(&other, Kind::Huc, &[2, 1]);
    world.nodes[2].groups.create(world.now_ns, plan.clone(), false).unwrap();
    world.within(100, |_| false);
    let stage = world.nodes[2].groups.status_named(&other).unwrap().stage;
    assert!(matches!(&stage, Stage::Failed(why) if why.contains("the same hash")), "{stage:?}");
    let plan = world.plan(&other, Kind::Huc, &[0, 2]);
    assert!(matches!(world.nodes[0].groups.create(world.now_ns, plan, false), Err(Error::Invalid(why)) if why.contains(&one)));
    assert!(matches!(world.nodes[1].groups.join(world.now_ns, &other), Err(Error::Invalid(_))));
}

#[test]
fn a_group_that_cannot_begin_begins_nowhere() {
    let mut world = World::new(1, 3);
    let plan = world.plan("g", Kind::Huc, &[0, 1, 2]);
    assert!(matches!(
        world.nodes[0].groups.create(world.now_ns, Plan { name: String::new(), ..plan.clone() }, false),
        Err(Error::Invalid(_))
    ));
    let forged = Plan { name: "e\nrunning \x1b[31m".into(), ..plan.clone() };
    assert!(matches!(world.nodes[0].groups.create(world.now_ns, forged, false), Err(Error::Invalid(_))));
    assert!(matches!(world.nodes[1].groups.join(world.now_ns, "e\n"), Err(Error::Invalid(_))));
    let elsewhere = Plan { members: plan.members[1..].to_vec(), ..plan.clone() };
    assert!(matches!(world.nodes[0].groups.create(world.now_ns, elsewhere, false), Err(Error::Invalid(_))));
    // The third one is dead, and nobody knows.
    world.crash(2);
    world.verdicts.clear();
    world.nodes[0].groups.create(world.now_ns, plan.clone(), false).unwrap();
    assert!(matches!(world.nodes[0].groups.create(world.now_ns, plan.clone(), false), Err(Error::Exists(_))));
    assert!(world.within(3000, |world| matches!(world.status(0).unwrap().stage, Stage::Failed(_)) && world.status(1).is_none()));
    // Two at once: one of them, or none, and never two.
    let (first, second) = (world.plan("g", Kind::Huc, &[0, 1]), Plan { generation: 7, ..world.plan("g", Kind::Huc, &[0, 1]) });
    world.nodes[0].groups.create(world.now_ns, first, false).unwrap();
    world.nodes[1].groups.create(world.now_ns, second, false).unwrap();
    world.within(3000, |_| false);
    assert!((0..2).all(|node| !world.runs(node)), "each refuses the other's");
    assert!(matches!(world.nodes[0].groups.join(world.now_ns, "nobody-has-it"), Ok(())));
    world.within(3000, |_| false);
    let status = world.nodes[0].groups.status_named("nobody-has-it").unwrap();
    assert!(matches!(status.stage, Stage::Failed(_)), "{status:?}");
}

#[test]
fn others_gave_this_node_up_so_its_member_does_nothing_more_and_joins_again() {
    let mut world = World::created(11, 3, Kind::Huc);
    world.propose(0, 1, 1).unwrap();
    assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 1)));
    world.begin_anew(0);
    assert!(world.within(3000, |world| world.runs(0) && world.status(0).unwrap().me == Some(MemberId(4))));
    assert_eq!(world.status(0).unwrap().halted, Some(Halted::Expelled));
    assert_eq!(world.status(1).unwrap().leader, Some(MemberId(2)));
    world.propose(0, 1, 2).unwrap();
    assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 2)));
}

/// A leader stands still with a decision under way, the others go on without it: it must not decide that alone.
#[test]
fn a_leader_that_was_given_up_decides_nothing_alone() {
    for seed in 0..40 {
        let mut world = World::created(seed, 3, Kind::Huc);
        for number in 1..=3 {
            world.propose(0, 1, number).unwrap();
        }
        let instant = world.now_ns + world.random.below(2 * MS);
        world.run(instant, |_| false);
        world.pause(0, 3 * TIMEOUT_NS);
        world.run(world.now_ns + 2 * TIMEOUT_NS, |_| false);
        world.propose(1, 2, 1).unwrap();
        assert!(world.within(3000, |world| world.runs(0) && world.status(0).unwrap().me == Some(MemberId(4))), "seed {seed}");
        // Its client hands in again what it has not seen.
        for number in 1..=3 {
            let _ = world.propose(0, 1, number);
        }
        assert!(world.within(500, |world| world.nodes.iter().all(|node| node.read.len() == 4)), "seed {seed}");
    }
}

/// A leader stands still for less than that: it goes on as the same member.
#[test]
fn a_leader_that_was_silent_and_not_given_up_goes_on() {
    for seed in 0..40 {
        let mut world = World::created(seed, 3, Kind::Huc);
        world.propose(0, 1, 1).unwrap();
        let instant = world.now_ns + world.random.below(2 * MS);
        world.run(instant, |_| false);
        world.pause(0, TIMEOUT_NS * 3 / 4);
        world.propose(1, 2, 1).unwrap();
        assert!(world.within(100, |world| world.nodes.iter().all(|node| node.read.len() == 2)), "seed {seed}");
        assert_eq!((world.status(0).unwrap().me, world.status(0).unwrap().halted), (Some(MemberId(1)), None), "seed {seed}");
    }
}

/// Frames of links are lost and doubled, nodes crash and come back, clients hand in again what they have not seen applied: nothing that was
/// acknowledged is lost, nothing is applied twice, and there is one order.
#[test]
fn acknowledged_is_never_lost_and_nothing_is_applied_twice() {
    let seeds = std::env::var("FIDE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let first = std::env::var("FIDE_FIRST").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        let engine = any_engine(seed);
        let mut world = World::created(seed, 3 + (seed % 3) as usize, engine);
        let nodes = world.nodes.len();
        world.loss = [0, 20, 200][(seed % 3) as usize];
        let mut next = vec![1u64; nodes];
        let mut acknowledged = vec![0u64; nodes];
        for step in 0..120 {
            let pause = world.random.below(if step % 12 == 11 { 300 * MS } else { 3 * MS });
            world.run(world.now_ns + pause, |_| false);
            let up = (0..nodes).filter(|node| world.runs(*node)).count();
            match world.random.below(12) {
                0 if up > 2 => {
                    let victim = world.random.below(nodes as u64) as usize;
                    if world.runs(victim) {
                        world.crash(victim);
                    }
                }
                1 => {
                    // Sometimes for long enough to be given up.
                    let victim = world.random.below(nodes as u64) as usize;
                    let for_ns = world.random.below(3 * TIMEOUT_NS);
                    let now_ns = world.now_ns;
                    let is_over = |node: &Node| now_ns > node.paused_until + 2 * TIMEOUT_NS;
                    if up > 2 && world.runs(victim) && world.nodes.iter().all(is_over) {
                        world.pause(victim, for_ns);
                    }
                }
                2 | 3 => {
                    if let Some(down) = (0..nodes).find(|node| !world.nodes[*node].up) {
                        world.start(down);
                        let _ = world.nodes[down].groups.join(world.now_ns, "g");
                    }
                }
                _ => {
                    // The client of a node hands in at its node all that it has not seen.
                    let node = world.random.below(nodes as u64) as usize;
                    let client = node as u64 + 1;
                    let at = (node + step % 2) % nodes;
                    if world.runs(at) {
                        for number in acknowledged[node] + 1..=next[node] {
                            let _ = world.propose(at, client, number);
                        }
                        next[node] += u64::from(next[node] == acknowledged[node]);
                    }
                }
            }
            for client in 0..nodes {
                let seen = world.order.iter().filter(|(of, ..)| *of == client as u64 + 1).map(|(_, number, _)| *number);
                acknowledged[client] = seen.max().unwrap_or(0);
                next[client] = next[client].max(acknowledged[client] + 1);
            }
        }
        world.loss = 0;
        for node in 0..nodes {
            if !world.nodes[node].up {
                world.start(node);
                let _ = world.nodes[node].groups.join(world.now_ns, "g");
            }
        }
        let length = world.order.len();
        assert!(length > 0, "seed {seed}: {length} entries");
        let whole = world
            .within(20_000, |world| (0..nodes).all(|node| world.runs(node) && world.nodes[node].read.len() == world.order.len()));
        assert!(whole, "seed {seed} {engine}: {:?}", (0..nodes).map(|node| world.status(node)).collect::<Vec<_>>());
        let mut once: Vec<_> = world.order.iter().map(|(client, number, _)| (*client, *number)).collect();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), world.order.len(), "seed {seed}: applied once");
    }
}

/// What cannot be read was a message: who needs every one of them stops, and joins again.
#[test]
fn a_message_that_makes_no_sense_ends_members_that_need_every_one() {
    for engine in [Kind::Huc, Kind::Hsuc, Kind::Lowi] {
        let mut world = World::created(3, 3, engine);
        world.nodes[1].groups.links.send(1, &[FORMAT, 255, 255]).unwrap();
        let halted = |world: &World| world.status(0).is_some_and(|status| status.halted == Some(Halted::NetworkFault));
        assert!(world.within(1_000, halted), "{engine}: {:?}", world.status(0));
        assert!(world.nodes[0].groups.closed.contains(&2));
        world.propose(2, 7, 1).unwrap();
        let is_decided = |world: &World, node: usize| world.nodes[node].read.iter().any(|(client, ..)| *client == 7);
        assert!(world.within(5_000, |world| is_decided(world, 2)), "{engine}: the others go on");
        assert!(!world.within(2_000, |world| world.runs(0)), "{engine}: it would wait for what it does not take");
        // Its agent is another one, or ours is.
        let who = world.random.below(2) as usize;
        world.begin_anew(who);
        assert!(world.within(8_000, |world| world.runs(0) && is_decided(world, 0)), "{engine}: {:?}", world.status(0));
    }
}

/// Whatever a member with the key says, and however it is cut or changed: nobody panics, and what is decided stays one order or a member stops.
#[test]
fn hostile_messages_end_nothing() {
    let plan = |world: &World| world.plan("g", Kind::Huc, &[0, 1, 2]);
    for seed in 0..200 {
        let mut world = World::created(seed, 3, any_engine(seed));
        world.propose(0, 1, 1).unwrap();
        let generation = world.status(0).unwrap().generation;
        let (me, other) = (MemberId(1), MemberId(2));
        let samples = [
            Message::Prepare { plan: Box::new(plan(&world)), begun: Box::new(From::Nothing) },
            Message::Prepare {
                plan: Box::new(Plan { name: "x".into(), generation: 7, ..plan(&world) }),
                begun: Box::new(From::Log(None, Some(Saved::default()))),
            },
            Message::Prepared { generation },
            Message::Declined { generation, why: "no".into() },
            Message::Begin { generation },
            Message::Abort { generation },
            Message::Join { name: "g".into() },
            Message::NoGroup { name: "g".into(), mark: None, kept: Box::default() },
            Message::Invite { plan: Box::new(plan(&world)), member: MemberId(9), nodes: Vec::new() },
            Message::Listening { generation, member: MemberId(4) },
            Message::Void { generation, member: me },
            Message::Log { generation, from: other, to: me, message: log::Message::Ask },
            Message::Log { generation, from: other, to: me, message: log::Message::Reached { epoch: 0, instance: 3 } },
            Message::AmI { generation, member: other, number: 3, question: 1 },
            Message::YouAre { generation, member: me, question: 1 },
            Message::Over { generation, member: other },
        ];
        for _ in 0..40 {
            let mut bytes = postcard::to_stdvec(&samples[world.random.below(samples.len() as u64) as usize]).unwrap();
            for _ in 0..world.random.below(4) {
                let at = world.random.below(bytes.len() as u64) as usize;
                bytes[at] = world.random.next() as u8;
            }
            if let Ok(message) = postcard::from_bytes::<Message>(&bytes) {
                let now_ns = world.now_ns;
                world.nodes[0].groups.handle_message(now_ns, 2, message);
                world.nodes[0].groups.settle(now_ns);
            }
            let mut ride: Vec<u8> = (0..world.random.below(60)).map(|_| world.random.next() as u8).collect();
            world.nodes[0].groups.handle_ride(world.now_ns, 2, &ride);
            let head = Ride { generation, from: other, message: log::Message::Ask };
            ride.splice(0..0, postcard::to_stdvec(&head).unwrap());
            let kind = world.random.below(3) as u8;
            let piece = |number: u64, total: u32, at: u32| {
                let head = [&generation.to_be_bytes()[..], &other.0.to_be_bytes(), &number.to_be_bytes(), &total.to_be_bytes()];
                [head.concat(), at.to_be_bytes().to_vec()].concat()
            };
            let (number, total) = (world.random.below(4), world.random.below(80) as u32);
            let at = world.random.below(40) as u32;
            let item = [vec![kind], if kind == 1 { piece(number, total, at) } else { Vec::new() }, ride.clone()].concat();
            world.nodes[0].groups.handle_ride(world.now_ns, 2, &item);
            let copy = [b"hostile".to_vec(), ride].concat();
            world.nodes[0].groups.handle_copy(world.now_ns, 2, 1, world.now_ns, &copy);
            world.nodes[0].groups.invariants();
        }
        world.within(20, |_| false);
    }
}

fn expected(nodes: &[usize]) -> Expected {
    let nodes = nodes.iter().map(|node| *node as u32 + 1).collect();
    Expected { name: "orders".into(), engine: Some(Kind::Huc), policy: Some(Policy::TrustContract), nodes, durable: false }
}

#[test]
fn a_group_that_is_expected_begins_once_and_is_joined_by_who_comes_later() {
    for seed in 0..20 {
        let mut world = World::new(seed, 4);
        world.expected = vec![0, 1, 2];
        for node in 0..3 {
            world.nodes[node].groups.expect(world.now_ns, [expected(&[0, 1, 2])].into_iter());
        }
        let runs = |world: &World, node: usize| {
            world.nodes[node].groups.status_named("orders").is_some_and(|s| s.stage == Stage::Running)
        };
        assert!(world.run(world.now_ns + 5_000 * MS, |world| (0..3).all(|node| runs(world, node))), "seed {seed}");
        assert_eq!(world.begun, 1);
        let generation = world.nodes[0].groups.generation("orders");
        assert!(world.nodes.iter().take(3).all(|node| node.groups.generation("orders") == generation));
        // The first one comes back in a new life: it joins what runs, and begins nothing.
        world.crash(0);
        world.run(world.now_ns + 50 * MS, |_| false);
        world.start(0);
        world.nodes[0].groups.expect(world.now_ns, [expected(&[0, 1, 2])].into_iter());
        assert!(world.run(world.now_ns + 5_000 * MS, |world| runs(world, 0)), "seed {seed}");
        assert_eq!((world.begun, world.nodes[0].groups.generation("orders")), (1, generation));
        // All in new lives: it is begun anew.
        (0..3).for_each(|node| world.crash(node));
        world.run(world.now_ns + 50 * MS, |_| false);
        for node in 0..3 {
            world.start(node);
            world.nodes[node].groups.expect(world.now_ns, [expected(&[0, 1, 2])].into_iter());
        }
        assert!(world.run(world.now_ns + 5_000 * MS, |world| (0..3).all(|node| runs(world, node))), "seed {seed}");
        assert_eq!(world.begun, 2);
        let anew = world.nodes[1].groups.status_named("orders").unwrap();
        assert!(anew.is_begun && Some(anew.generation) > generation, "{anew:?}");
    }
}

#[test]
fn a_node_without_a_group_is_not_idle_before_it_has_answered_one_that_looks() {
    let mut world = World::new(1, 2);
    let (mut asked, mut body) = (false, Vec::new());
    world.nodes[0].groups.rejoin(world.now_ns, "orders").unwrap();
    world.nodes[0].groups.handle_timeout(world.now_ns, |_| Standing::Alive(1));
    while world.nodes[0].groups.poll_frame(world.now_ns, &mut body).is_some() {
        let _ = world.nodes[1].groups.handle_segment(world.now_ns, 1, 1, &body);
        asked = true;
    }
    let stranger = &mut world.nodes[1].groups;
    assert!(asked && stranger.is_empty() && !stranger.is_idle() && stranger.poll_timeout().is_some());
    while stranger.poll_frame(world.now_ns, &mut body).is_some() {}
    // What it has answered is acknowledged.
    assert!(world.run(world.now_ns + 2_000 * MS, |world| world.nodes[1].groups.is_idle()));
}

#[test]
fn a_node_that_is_to_be_in_no_group_wants_no_wake_up() {
    let mut world = World::new(1, 2);
    let groups = &mut world.nodes[0].groups;
    groups.expect(world.now_ns, std::iter::empty());
    assert!(groups.is_idle() && groups.poll_timeout().is_none());
    // Nor does one whose state was an old one.
    let set = last_set::LastSet {
        mark: Mark { generation: 5, position: 1 },
        nodes: vec![1, 2],
        engine: Kind::Huc,
        policy: Policy::TrustContract,
        durable: false,
    };
    groups.remember("orders", set);
    assert!(!groups.is_idle() && groups.poll_timeout().is_some());
    groups.forget_remembered();
    assert!(groups.is_idle() && groups.poll_timeout().is_none());
}

#[test]
fn who_asks_nobody_that_runs_a_group_asks_now_and_then() {
    let mut world = World::new(1, 3);
    for node in 0..3 {
        world.nodes[node].groups.rejoin(world.now_ns, "orders").unwrap();
    }
    let before = world.counter;
    world.run(world.now_ns + 2_000 * MS, |_| false);
    // Heartbeats are three a millisecond to two others each.
    let beats = 2_000 * 3 * 2;
    assert!(world.counter - before < beats + 400, "{} frames", world.counter - before - beats);
}

#[test]
fn what_the_configuration_says_otherwise_is_not_begun() {
    let mut world = World::new(3, 2);
    world.nodes[1].groups.expect(world.now_ns, [Expected { engine: Some(Kind::Hsuc), ..expected(&[0, 1]) }].into_iter());
    let plan = world.plan("orders", Kind::Huc, &[0, 1]);
    world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
    world.run(world.now_ns + 100 * MS, |_| false);
    let Stage::Failed(why) = world.nodes[0].groups.status_named("orders").unwrap().stage else { panic!("it begins") };
    assert!(why.contains("engine hsuc") && why.contains("[[group]] must be the same"), "{why}");
    let other = world.nodes[1].groups.status_named("orders");
    assert!(other.is_none_or(|status| status.trouble.contains("would begin it")), "both say so");
    // Nor by its own word.
    let plan = world.plan("orders", Kind::Huc, &[1]);
    assert!(matches!(world.nodes[1].groups.create(world.now_ns, plan, false), Err(Error::Invalid(_))));
}

#[test]
fn a_node_of_another_build_is_named() {
    let mut world = World::new(5, 2);
    let plan = world.plan("orders", Kind::Huc, &[0, 1]);
    world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
    let mut theirs = Links::new(config(1, 1).links, 2, 1);
    theirs.handle_life(1, 1);
    let now_ns = world.now_ns;
    let mut body = Vec::new();
    let mut asked = Vec::new();
    while world.nodes[0].groups.poll_frame(now_ns, &mut body).is_some() {
        theirs.handle_segment(now_ns, 1, 1, &body).unwrap();
        asked.extend(theirs.poll_message());
    }
    assert_eq!(asked[0].1[0], FORMAT, "each message says how it is written");
    theirs.send(1, &[FORMAT + 1]).unwrap();
    theirs.poll_segment(now_ns, &mut body).unwrap();
    world.nodes[0].groups.handle_segment(now_ns, 2, 1, &body).unwrap();
    let Stage::Failed(why) = world.nodes[0].groups.status_named("orders").unwrap().stage else { panic!("it waits") };
    assert!(why.contains("another build") && why.contains("install the same release"), "{why}");
}

/// What is decided behind a disk that hangs waits in the log, and not once more in a queue.
#[test]
fn a_disk_that_hangs_is_handed_a_bounded_part_of_the_log() {
    let mut world = World::new(3, 3);
    world.expect_durable(&[0, 1, 2]);
    assert!(world.within(5_000, |world| (0..3).all(|node| world.runs(node))));
    assert!(world.within(100, |world| world.disks.len() == 3 && world.writes.is_empty()));
    let of_2 = |world: &World| world.writes.iter().filter(|(_, node, _)| *node == 2).count();
    world.propose(0, 1, 1).unwrap();
    assert!(world.within(100, |world| of_2(world) > 0));
    let hang = |world: &mut World, until_ns| {
        world.writes.iter_mut().filter(|(_, node, _)| *node == 2).for_each(|(at_ns, ..)| *at_ns = until_ns);
    };
    hang(&mut world, u64::MAX);
    for number in 2..=20 {
        world.propose(0, 1, number).unwrap();
        world.within(20, |_| false);
    }
    assert_eq!((of_2(&world), world.status(0).unwrap().written), (WRITES_AHEAD, Some(20)));
    assert!(world.status(2).unwrap().written < Some(20), "its applications are not told");
    let now_ns = world.now_ns;
    hang(&mut world, now_ns);
    assert!(world.within(100, |world| world.status(2).unwrap().written == Some(20)));
}

#[test]
fn a_durable_group_goes_on_where_it_was_when_all_its_agents_ended() {
    let seeds = std::env::var("FIDE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    for seed in 0..seeds {
        let mut world = World::new(seed, 3);
        world.expect_durable(&[0, 1, 2]);
        assert!(world.within(5_000, |world| (0..3).all(|node| world.runs(node))), "seed {seed}");
        assert!(world.within(100, |world| world.disks.len() == 3), "an empty log is on disk, too");
        let lineage = world.status(0).unwrap().lineage;
        let mut numbers = [0; 3];
        for round in 0..4 {
            for _ in 0..world.random.below(30) {
                let node = world.random.below(3) as usize;
                if world.runs(node) && world.propose(node, node as u64 + 1, numbers[node] + 1).is_ok() {
                    numbers[node] += 1;
                }
                let instant = world.now_ns + world.random.below(2 * MS);
                world.run(instant, |_| false);
                if world.random.below(8) == 0 {
                    let (node, index) = (world.random.below(3) as usize, world.order.len() as u64);
                    let bytes = if world.random.below(2) == 0 { 100 } else { 101 };
                    let _ = world.nodes[node].groups.keep_snapshot("g", index, vec![7; bytes]);
                }
                if world.random.below(10) == 0 && (0..3).all(|node| world.runs(node)) {
                    // One ends, and comes back with an old disk, or an empty one.
                    let node = world.random.below(3) as usize;
                    world.crash(node);
                    if world.random.below(2) == 0 {
                        world.disks.remove(&(node, "g".into()));
                    }
                    world.start_all(&[node]);
                    // What it had proposed it proposes again, as clients do.
                    numbers[node] = world.nodes[node].groups.state("g").unwrap().last_of(node as u64 + 1);
                }
            }
            // All end at once: whatever any application was told is there again.
            (0..3).for_each(|node| world.crash(node));
            world.verdicts.clear();
            let told = world.order.len();
            // What was told of is known by its place alone where a snapshot stands for it.
            world.start_all(&[0, 1, 2]);
            for (node, number) in numbers.iter_mut().enumerate() {
                let status = world.status(node).unwrap();
                assert!(status.index >= told as u64, "seed {seed}, round {round}: {} of {told}", status.index);
                assert_eq!(status.lineage, lineage, "it is the same log");
                *number = world.nodes[node].groups.state("g").unwrap().last_of(node as u64 + 1);
            }
        }
        for (node, number) in numbers.iter().enumerate() {
            world.propose(node, node as u64 + 1, number + 1).unwrap();
        }
        let most = (0..3).map(|node| world.status(node).unwrap().index).max().unwrap();
        let written = |world: &World, node: usize| world.status(node).unwrap().written.unwrap();
        assert!(world.within(500, |world| (0..3).all(|node| written(world, node) >= most + 3)), "seed {seed}: all is written");
    }
}

#[test]
fn a_disk_with_a_later_log_is_not_passed_over() {
    let mut world = World::new(9, 2);
    world.expect_durable(&[0, 1]);
    assert!(world.within(5_000, |world| (0..2).all(|node| world.runs(node))));
    for number in 1..=5 {
        world.propose(0, 1, number).unwrap();
    }
    assert!(world.within(100, |world| world.nodes[1].read.len() == 5 && world.nodes[0].read.len() == 5));
    (0..2).for_each(|node| world.crash(node));
    world.verdicts.clear();
    // The first host's disk is lost: the second one begins the group.
    world.disks.remove(&(0, "g".into()));
    world.start_all(&[0, 1]);
    assert_eq!(world.status(0).unwrap().index, 5);
    assert_eq!(world.status(0).unwrap().leader, world.status(1).unwrap().leader);
    // Whoever wants to begin it elsewhere is told, unless it is to be an empty one.
    (0..2).for_each(|node| world.crash(node));
    world.verdicts.clear();
    world.disks.remove(&(0, "g".into()));
    (0..2).for_each(|node| world.start(node));
    let plan = world.plan("g", Kind::Huc, &[0, 1]);
    world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
    world.within(100, |_| false);
    let Stage::Failed(why) = world.status(0).unwrap().stage else { panic!("it begins") };
    assert!(why.contains("its disk has a later log of g, of "), "{why}");
    world.order.clear();
    let plan = world.plan("g", Kind::Huc, &[0, 1]);
    world.nodes[0].groups.create(world.now_ns, plan, true).unwrap();
    assert!(world.within(100, |world| (0..2).all(|node| world.runs(node))));
    assert_eq!(world.status(1).unwrap().index, 0);
}

#[test]
fn a_disk_that_cannot_be_read_keeps_its_group_from_beginning_without_it() {
    let mut world = World::new(4, 3);
    world.expect_durable(&[0, 1, 2]);
    assert!(world.within(5_000, |world| (0..3).all(|node| world.runs(node)) && world.disks.len() == 3));
    (0..3).for_each(|node| world.crash(node));
    world.verdicts.clear();
    let lost = world.disks.remove(&(2, "g".into())).unwrap();
    (0..3).for_each(|node| world.start(node));
    world.nodes[2].groups.handle_unreadable("it is broken".into());
    world.expect_durable(&[0, 1, 2]);
    assert!(!world.within(5_000, |world| (0..3).any(|node| world.runs(node))), "it begins without what that disk has");
    assert!(world.nodes[2].groups.join(world.now_ns, "g").is_ok(), "it says why where it is asked");
    assert_eq!(world.status(2).unwrap().trouble, "it is broken");
    let plan = world.plan("g", Kind::Huc, &[2]);
    assert!(world.nodes[2].groups.create(world.now_ns, plan, false).is_err());
    // The file is back.
    world.crash(2);
    world.verdicts.clear();
    world.disks.insert((2, "g".into()), lost);
    world.start_all(&[2]);
    assert!(world.within(20_000, |world| (0..3).all(|node| world.runs(node))));
}

#[test]
fn who_was_invited_by_one_that_ends_asks_another_one_soon() {
    let mut slowest_ns = 0;
    for seed in 0..200 {
        let mut world = World::created(seed, 4, any_engine(seed));
        world.crash(3);
        world.within(50, |_| false);
        world.start(3);
        world.nodes[3].groups.join(world.now_ns, "g").unwrap();
        let is_invited = |world: &World| world.status(3).is_some_and(|status| status.me.is_some());
        assert!(world.within(1_000, is_invited), "seed {seed}");
        let instant = world.now_ns + world.random.below(2 * MS);
        world.run(instant, |_| false);
        // The one that it asked, before or behind its word.
        let node = world.nodes[3].groups.named("g").unwrap().coordinator as usize - 1;
        match seed % 3 {
            0 => world.crash(node),
            1 => {
                world.crash(node);
                world.start(node);
            }
            _ => world.nodes[node].groups.stop(world.now_ns),
        }
        let since_ns = world.now_ns;
        assert!(world.within(2_500, |world| world.runs(3)), "seed {seed}: {:?}", world.status(3));
        slowest_ns = slowest_ns.max(world.now_ns - since_ns);
    }
    assert!(slowest_ns > 50 * MS, "some of these waited");
}

/// Hosts that are not to be its members are asked, too: no two groups of one name.
#[test]
fn a_group_whose_name_runs_on_other_hosts_is_not_begun() {
    let mut world = World::new(11, 5);
    let plan = world.plan("g", Kind::Huc, &[2, 3]);
    world.nodes[2].groups.create(world.now_ns, plan, false).unwrap();
    assert!(world.within(100, |world| world.runs(2) && world.runs(3)));
    let plan = world.plan("g", Kind::Huc, &[0, 1]);
    world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
    assert!(world.within(100, |world| matches!(&world.status(0).unwrap().stage, Stage::Failed(why) if why.contains("already"))));
    assert!(world.within(100, |world| world.status(1).is_none()), "nor does the other one wait for it");
    // One host of its own is as many.
    let plan = world.plan("g", Kind::Huc, &[4]);
    world.nodes[4].groups.create(world.now_ns, plan, false).unwrap();
    assert!(world.within(100, |world| matches!(world.status(4).unwrap().stage, Stage::Failed(_))));
    for node in [2, 3] {
        world.nodes[node].groups.give_up(world.now_ns, "g").unwrap();
    }
    let plan = world.plan("g", Kind::Huc, &[0, 1]);
    world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
    assert!(world.within(100, |world| world.runs(0) && world.runs(1)), "it is free again");
}

#[test]
fn a_host_that_ends_before_it_answers_does_not_keep_a_group_of_others_from_beginning() {
    let mut world = World::new(12, 4);
    let plan = world.plan("g", Kind::Huc, &[0, 1]);
    world.crash(2);
    world.pause(3, 5 * MS);
    world.verdicts.retain(|_, (_, about, _)| *about == 2);
    world.nodes[0].groups.create(world.now_ns, plan.clone(), false).unwrap();
    assert!(world.within(200, |world| world.runs(0) && world.runs(1)), "{:?}", world.status(0));
    // Without a verdict it is waited for, and named.
    let mut world = World::new(13, 3);
    world.crash(2);
    world.verdicts.clear();
    world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
    assert!(
        world.within(3_000, |world| matches!(&world.status(0).unwrap().stage, Stage::Failed(why) if why.contains("00000003")))
    );
}

/// A log that another host's disk has goes on there, or is dropped by force.
#[test]
fn a_durable_group_does_not_begin_while_a_host_beside_it_has_more_of_its_log() {
    let mut world = World::new(14, 3);
    let mark = |world: &World, node: usize| world.nodes[node].groups.saved.get("g").map(Saved::mark);
    let plan = Plan { durable: true, ..world.plan("g", Kind::Huc, &[2]) };
    world.durable = true;
    world.nodes[2].groups.create(world.now_ns, plan, false).unwrap();
    assert!(world.within(100, |world| world.runs(2)));
    world.propose(2, 1, 1).unwrap();
    assert!(world.within(500, |world| world.nodes[2].read.len() == 1));
    world.nodes[2].groups.give_up(world.now_ns, "g").unwrap();
    assert!(mark(&world, 2).is_some());
    let plan = Plan { durable: true, ..world.plan("g", Kind::Huc, &[0, 1]) };
    world.nodes[0].groups.create(world.now_ns, plan.clone(), false).unwrap();
    assert!(
        world.within(100, |world| matches!(&world.status(0).unwrap().stage, Stage::Failed(why) if why.contains("later log")))
    );
    world.nodes[0].groups.create(world.now_ns, Plan { generation: plan.generation + 1, ..plan }, true).unwrap();
    assert!(world.within(100, |world| world.runs(0) && world.runs(1)), "{:?}", world.status(0));
}

#[test]
fn a_log_that_has_no_id_left_lets_nobody_in() {
    let mut world = World::new(14, 2);
    let mut plan = world.plan("g", Kind::Huc, &[0]);
    plan.members[0].member = MemberId(u16::MAX);
    world.nodes[0].groups.create(world.now_ns, plan, false).unwrap();
    assert!(world.within(100, |world| world.runs(0)));
    world.nodes[1].groups.join(world.now_ns, "g").unwrap();
    assert!(!world.within(500, |world| world.runs(1)));
    assert!(world.runs(0), "the one that is in goes on");
}

/// Its log was begun in a boot with a clock of 2099.
#[test]
fn a_durable_group_goes_on_with_a_later_generation_than_its_log_whatever_the_clock_says() {
    let mut world = World::new(14, 1);
    world.durable = true;
    let mark = |world: &World| world.nodes[0].groups.saved.get("g").map(Saved::mark).unwrap();
    let ahead = Plan { generation: 1 << 62, ..world.plan("g", Kind::Huc, &[0]) };
    world.nodes[0].groups.create(world.now_ns, ahead, false).unwrap();
    assert!(world.within(100, |world| world.runs(0)));
    world.nodes[0].groups.give_up(world.now_ns, "g").unwrap();
    let mut before = mark(&world);
    assert_eq!(before.generation, 1 << 62);
    for fresh in [false, true] {
        let right = world.plan("g", Kind::Huc, &[0]);
        world.nodes[0].groups.create(world.now_ns, right, fresh).unwrap();
        assert!(world.within(100, |world| world.runs(0)));
        world.nodes[0].groups.give_up(world.now_ns, "g").unwrap();
        assert!(mark(&world) > before, "{fresh}: {before:?} {:?}", mark(&world));
        before = mark(&world);
    }
    // Behind the last one there is none.
    let last = Saved { generation: GENERATION_MAX, ..Saved::default() };
    world.nodes[0].groups.handle_saved("g", last);
    let right = world.plan("g", Kind::Huc, &[0]);
    assert!(matches!(world.nodes[0].groups.create(world.now_ns, right, false), Err(Error::Invalid(why)) if why.contains("last")));
}

/// Its engine is known, then, and what it was is forgotten with it.
#[test]
fn a_member_is_given_up_without_the_others_who_go_on() {
    let mut world = World::created(15, 3, Kind::Huc);
    world.nodes[1].groups.switch(world.now_ns, "g", Kind::Hsuc).unwrap();
    assert!(world.within(100, |world| (0..3).all(|node| world.status(node).unwrap().engine == Kind::Hsuc)));
    world.nodes[0].groups.give_up(world.now_ns, "g").unwrap();
    let status = world.status(0).unwrap();
    assert_eq!((status.stage, status.engine, status.halted), (Stage::Left, Kind::Hsuc, Some(Halted::Left)));
    world.propose(1, 1, 1).unwrap();
    assert!(world.within(100, |world| (1..3).all(|node| world.nodes[node].read.len() == 1)));
    assert!(matches!(world.nodes[0].groups.give_up(world.now_ns, "g"), Err(Error::Busy(_))));
    assert!(matches!(world.nodes[0].groups.give_up(world.now_ns, "x"), Err(Error::NotFound(_))));
    assert!(!world.within(1_000, |world| world.runs(0)), "it does not come back by itself");
}

#[test]
fn a_group_that_was_not_found_is_forgotten_after_a_while() {
    let mut world = World::new(16, 2);
    world.nodes[0].groups.join(world.now_ns, "g").unwrap();
    assert!(world.within(3_000, |world| matches!(world.status(0).unwrap().stage, Stage::Failed(_))));
    assert!(!world.within(5_000, |world| world.status(0).is_none()), "who asked can read why");
    assert!(world.within(10_000, |world| world.status(0).is_none()));
}

/// Hosts that stand still together find that each may have been given up by all others. Proposals
/// are under way, and each host finds it at another time.
#[test]
fn a_group_whose_members_have_all_stopped_goes_on_by_itself_with_all_that_was_told() {
    for seed in 0..120 {
        let engine = any_engine(seed);
        let nodes = 2 + (seed % 4) as usize;
        let mut world = World::created(seed, nodes, engine);
        world.loss = [0, 20][(seed % 2) as usize];
        let lineage = world.status(0).unwrap().lineage;
        for round in 0..3u64 {
            for number in 5 * round + 1..=5 * round + 5 {
                for node in 0..nodes {
                    let _ = world.propose(node, node as u64 + 1, number);
                }
            }
            let until_ns = world.now_ns + world.random.below(4 * MS);
            world.run(until_ns, |_| false);
            let told = world.order.len();
            let spread_ns = [0, MS, 20 * MS][(seed / 3 % 3) as usize];
            for node in 0..nodes {
                let until_ns = world.now_ns + world.random.below(spread_ns + 1);
                world.run(until_ns, |_| false);
                world.nodes[node].groups.stop(world.now_ns);
            }
            // What they had sent has come before they begin anew.
            for node in 0..nodes {
                let until_ns = world.now_ns + 200 * US + world.random.below(spread_ns + 1);
                world.run(until_ns, |_| false);
                world.begin_anew(node);
            }
            let goes_on = world.within(10_000, World::all_run);
            let stand: Vec<_> = (0..nodes).map(|node| world.status(node)).collect();
            assert!(goes_on, "seed {seed} {engine}, round {round}: {stand:#?}");
            assert!(world.order.len() >= told, "seed {seed}");
            assert_eq!(world.status(0).unwrap().lineage, lineage, "seed {seed}: the same log");
        }
        world.propose(0, 1, 100).unwrap();
        let length = world.order.len() + 1;
        assert!(world.within(2_000, |world| world.nodes.iter().all(|node| node.read.len() == length)), "seed {seed} {engine}");
        assert_eq!(world.differences, [], "seed {seed} {engine}");
        let new = (0..nodes).map(|node| world.status(node).unwrap().me.unwrap());
        assert!(new.min() > Some(MemberId(nodes as u16)), "seed {seed}: nobody takes itself for a former member");
    }
}

#[test]
fn a_group_waits_for_a_member_that_may_know_more_until_somebody_decides() {
    let mut world = World::created(3, 3, Kind::Huc);
    world.propose(0, 1, 1).unwrap();
    assert!(world.within(100, |world| world.order.len() == 1 && world.all_run()));
    // Its memory is gone, and nobody had gone on without it.
    world.crash(2);
    [0, 1].into_iter().for_each(|node| world.begin_anew(node));
    world.start(2);
    let _ = world.nodes[2].groups.rejoin(world.now_ns, "g");
    assert!(!world.within(5_000, |world| (0..3).any(|node| world.runs(node))));
    for node in [0, 1] {
        let Status { stage, trouble, index, .. } = world.status(node).unwrap();
        assert_eq!((stage, index), (Stage::Joining, 1));
        assert!(trouble.contains("node 00000003 may have more") && trouble.contains("of 1 entries"), "{trouble}");
    }
    let plan = world.plan("g", Kind::Huc, &[0, 1, 2]);
    let refused = world.nodes[0].groups.create(world.now_ns, plan, false);
    assert!(matches!(&refused, Err(Error::Exists(why)) if why.contains("fide group resume")), "{refused:?}");
    // Nor does whoever is in haste drop a log that may be the only one.
    let refused = world.nodes[0].groups.leave(world.now_ns, "g");
    assert!(matches!(&refused, Err(Error::Busy(why)) if why.contains("of 1 entries") && why.contains("--force")), "{refused:?}");
    assert_eq!(world.status(0).unwrap().index, 1);
    world.resume(1, "g", &[0, 1], true).unwrap();
    assert!(world.within(5_000, |world| world.all_run() && world.nodes[2].read.len() == 1), "the third one joins");
    assert_eq!(world.differences, []);
}

/// The one with the log begins the group, and ends before it has begun.
#[test]
fn who_was_to_go_on_with_its_log_ends_before_it_does() {
    for seed in 0..40 {
        let mut world = World::created(seed, 3, Kind::Hsuc);
        world.propose(0, 1, 1).unwrap();
        assert!(world.within(100, |world| world.order.len() == 1 && world.all_run()));
        (0..3).for_each(|node| world.begin_anew(node));
        let is_asked = |world: &World| (0..3).any(|node| matches!(world.status(node).unwrap().stage, Stage::Preparing(_)));
        assert!(world.within(5_000, is_asked), "seed {seed}");
        let first = (0..3).find(|node| matches!(world.status(*node).unwrap().stage, Stage::Preparing(_))).unwrap();
        let until_ns = world.now_ns + world.random.below(MS);
        world.run(until_ns, |_| false);
        // It begins yet another incarnation, and keeps its log.
        world.begin_anew(first);
        assert!(world.within(30_000, |world| world.all_run() && world.order.len() == 1), "seed {seed}: {:#?}", world.status(0));
        assert_eq!(world.differences, [], "seed {seed}");
    }
}

/// Two sides go on without each other under *trust-contract*, both decide, and meet again.
#[test]
fn what_another_side_decided_is_told_when_they_meet() {
    let mut world = World::created(5, 3, Kind::Huc);
    world.propose(0, 1, 1).unwrap();
    assert!(world.within(100, |world| world.order.len() == 1 && world.all_run()));
    // Node 0 goes on alone, and the others without it.
    for (observer, about) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
        world.nodes[observer].groups.handle_verdict(world.now_ns, about + 1, 1, Cause::Exited, Grade::Certain);
        world.condemned.insert((observer, about as usize, 1));
    }
    world.nodes[0].groups.propose(world.now_ns, "g", 1, 2, b"alone").unwrap();
    // What it decides is not the order of the others.
    let node = &mut world.nodes[0];
    (0..6).for_each(|beat| {
        let mut body = Vec::new();
        node.groups.poll_rides(world.now_ns + beat * MS, BODY_MAX, &mut body);
        node.groups.handle_sent(world.now_ns + beat * MS);
        node.groups.handle_timeout(world.now_ns + beat * MS, |_| Standing::Silent(1));
    });
    assert_eq!(node.groups.status_named("g").unwrap().index, 2);
    world.reads_nothing = Some(0);
    world.nodes[0].up = false;
    world.propose(1, 2, 1).unwrap();
    world.propose(1, 2, 2).unwrap();
    assert!(world.within(1_000, |world| world.order.len() == 3));
    world.nodes[0].up = true;
    world.condemned.clear();
    world.begin_anew(0);
    assert!(world.within(5_000, |world| world.runs(0) && !world.differences.is_empty()));
    let (node, Difference { index, count, entries, .. }) = &world.differences[0];
    assert_eq!((*node, *index, *count), (0, 2, 1));
    assert_eq!(entries.iter().map(Applied::value).collect::<Vec<_>>(), [(1, 2, &b"alone"[..])]);
}
