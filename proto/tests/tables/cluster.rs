//! A cluster of directories over a lossy network, with agents that stop, restart and lose their tables, and with
//! processes that end whenever they like. Frames are real bytes.

use fide_proto::node::directory::{Directory, Event, Numbers};
use fide_proto::node::table::owner::To;
use fide_proto::node::table::{self, Owner};
use fide_wire::frame::table::{Change, Content, HOST_ROW, Host, Instance, Process, State};
use fide_wire::frame::{FRAME_MAX, Header, Kind, decode, encode};
use fide_wire::mac::Keyring;
use fide_wire::verdict::{Cause, Contract, Grade};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
/// HB of every host.
pub const PERIOD_NS: u64 = MS;

/// splitmix64: the same seed, the same run.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What the network does to frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Lost, of a thousand.
    pub lost: u64,
    /// Doubled, of a thousand.
    pub doubled: u64,
    /// Recorded and sent again any time later, of a thousand.
    pub replayed: u64,
    /// The longest way; the shortest takes 10 µs.
    pub delay_ns: u64,
}

/// A process as it truly is.
#[derive(Clone, Debug)]
pub struct Truth {
    pub host: usize,
    pub row: u32,
    pub state: State,
    /// Its host's table was lost, or its host rebooted, since it ended: nobody can say how it ended.
    pub is_unseen: bool,
}

/// What an application knows of one instance. It outlives its agent, as an application does.
#[derive(Clone, Debug)]
pub struct Known {
    pub state: State,
    /// How often its end was reported.
    pub ends: u32,
}

/// One host.
pub struct SimHost {
    pub name: String,
    pub node: u32,
    pub directory: Option<Directory>,
    /// Changes with every restart: timers of former agents mean nothing.
    life: u64,
    incarnation: u32,
    numbers: Numbers,
    /// What outlives the agent: the kernel's counter of versions, changes that it saw while no agent ran, the
    /// table as it was kept.
    version: u64,
    unread: Vec<Change>,
    kept: Option<Owner>,
    next_row: u32,
    epoch: u64,
    boot: u128,
    pub app: BTreeMap<Instance, (u32, Known)>,
    /// Frames received, by kind.
    pub received: BTreeMap<u8, u64>,
    pub sent: BTreeMap<u8, u64>,
    /// Interfaces without a carrier, by path.
    pub cut: [bool; 2],
    timer_ns: u64,
}

enum Happening {
    Deliver { to: usize, path: u8, frame: Rc<[u8]> },
    Beat { host: usize, life: u64 },
    Wake { host: usize, life: u64 },
}

/// What a restart of an agent keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Table and incarnation: an upgrade.
    HandOver,
    /// The table, in a new incarnation.
    Kept,
    /// Nothing; processes run on.
    Lost,
    /// Nothing, and every process ended.
    Reboot,
}

pub struct Cluster {
    pub now_ns: u64,
    pub random: Random,
    pub faults: Faults,
    pub hosts: Vec<SimHost>,
    pub truths: BTreeMap<Instance, Truth>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: BTreeMap<(u64, u64), Happening>,
    order: u64,
    next_pid: u32,
    recorded: Vec<(usize, u8, Rc<[u8]>)>,
    period_ns: u64,
}

impl Cluster {
    pub fn new(hosts: usize, seed: u64, faults: Faults) -> Self {
        let host = |i: usize| {
            let name = format!("h{i}");
            SimHost {
                node: fide_wire::name_id(&name),
                name,
                directory: None,
                life: 0,
                incarnation: 1,
                numbers: Numbers::default(),
                version: 0,
                unread: Vec::new(),
                kept: None,
                next_row: 1,
                epoch: 0,
                boot: 1 + i as u128,
                app: BTreeMap::new(),
                received: BTreeMap::new(),
                sent: BTreeMap::new(),
                cut: [false; 2],
                timer_ns: u64::MAX,
            }
        };
        Self {
            now_ns: 0,
            random: Random(seed),
            faults,
            hosts: (0..hosts).map(host).collect(),
            truths: BTreeMap::new(),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            order: 0,
            next_pid: 1,
            recorded: Vec::new(),
            period_ns: PERIOD_NS,
        }
    }

    /// Heartbeats come so many times more seldom.
    pub fn quiet(&mut self, times: u64) {
        self.period_ns = PERIOD_NS * times;
    }

    fn plan(&mut self, at_ns: u64, happening: Happening) {
        self.order += 1;
        self.queue.push(Reverse((at_ns, self.order)));
        self.happenings.insert((at_ns, self.order), happening);
    }

    // ---- agents ---------------------------------------------------------------------------------------------

    /// Starts an agent that goes on with what was kept.
    pub fn start(&mut self, host: usize, restart: Restart) {
        let now_ns = self.now_ns;
        if matches!(restart, Restart::Lost | Restart::Reboot) {
            self.lose_table(host, restart);
        }
        let random = self.random.next() | 1;
        let h = &mut self.hosts[host];
        h.life += 1;
        if restart != Restart::HandOver {
            h.incarnation += 1;
            h.numbers = Numbers::default();
        }
        let is_new = h.kept.is_none();
        let owner = match h.kept.take() {
            Some(kept) => {
                let marks = (kept.complete(), kept.floor(), false);
                Owner::restore(h.node, kept.epoch(), marks, kept.rows().cloned(), now_ns).expect("what was kept")
            }
            None => {
                (h.epoch, h.version) = (random, 1);
                let mut owner = Owner::new(h.node, random);
                owner.put(HOST_ROW, 1, Content::Host(h.facts()), now_ns).expect("the first row");
                owner
            }
        };
        let contract = Contract { period_ns: PERIOD_NS, ..Contract::default() };
        let directory = Directory::new(owner, contract, h.incarnation, 256, now_ns).expect("a host row");
        h.directory = Some(directory);
        if is_new {
            // What runs is found again, under new numbers.
            let running: Vec<Instance> =
                self.truths.iter().filter(|(_, t)| t.host == host && !t.state.is_final()).map(|(i, _)| *i).collect();
            for instance in running {
                self.enlist(host, instance);
            }
        } else {
            // The kernel went on: what it saw meanwhile is pushed now.
            for change in std::mem::take(&mut self.hosts[host].unread) {
                self.push(host, &change);
            }
        }
        let life = self.hosts[host].life;
        let phase_ns = self.random.below(self.period_ns);
        self.plan(now_ns + phase_ns, Happening::Beat { host, life });
        self.wake(host);
    }

    fn lose_table(&mut self, host: usize, restart: Restart) {
        let h = &mut self.hosts[host];
        (h.kept, h.unread, h.next_row) = (None, Vec::new(), 1);
        for truth in self.truths.values_mut().filter(|t| t.host == host) {
            if restart == Restart::Reboot && !truth.state.is_final() {
                truth.state = State { cause: Cause::Killed, code: 9, ..truth.state };
            }
            truth.is_unseen |= truth.state.is_final();
        }
        if restart == Restart::Reboot {
            h.boot += 1 << 64;
        }
    }

    pub fn stop(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        if let Some(directory) = h.directory.take() {
            h.kept = Some(directory.owner().clone());
            h.life += 1;
        }
    }

    // ---- processes ------------------------------------------------------------------------------------------

    pub fn spawn(&mut self, host: usize) -> Option<Instance> {
        self.hosts[host].directory.as_ref()?;
        let instance = Instance { pid: self.next_pid, start_ticks: 7 };
        self.next_pid += 1;
        let state = State::running(self.now_ns);
        self.truths.insert(instance, Truth { host, row: 0, state, is_unseen: false });
        self.enlist(host, instance);
        self.wake(host);
        Some(instance)
    }

    fn enlist(&mut self, host: usize, instance: Instance) {
        let h = &mut self.hosts[host];
        let row = h.next_row;
        h.next_row += 1;
        h.version += 1;
        let truth = self.truths.get_mut(&instance).expect("spawned");
        truth.row = row;
        let name = format!("p{}", instance.pid).into();
        let process = Process { state: truth.state, instance, uid: 0, pbsize: 0, name };
        let directory = h.directory.as_mut().expect("an agent");
        directory.put(row, h.version, Content::Process(process), self.now_ns).expect("a new row");
    }

    /// The kernel of `host` sees a process doomed or gone.
    pub fn end(&mut self, instance: Instance, cause: Cause, code: i32) {
        let truth = self.truths.get_mut(&instance).expect("a process");
        if truth.state.is_final() || truth.state.cause == cause {
            return;
        }
        let flags = if truth.state.cause == Cause::Doomed { State::CONFIRMS } else { 0 };
        truth.state = State { cause, grade: Grade::Certain, flags, code, event_ns: self.now_ns };
        let (host, row, state) = (truth.host, truth.row, truth.state);
        let h = &mut self.hosts[host];
        h.version += 1;
        let change = Change { origin: h.node, row, version: h.version, state };
        if h.directory.is_none() {
            h.unread.push(change);
            return;
        }
        self.push(host, &change);
        self.wake(host);
    }

    fn push(&mut self, host: usize, change: &Change) {
        self.send(host, To::Everybody, Kind::Change, &change.bytes());
        let now_ns = self.now_ns;
        if let Some(directory) = self.hosts[host].directory.as_mut() {
            directory.change(change, now_ns).expect("a process of this table");
        }
    }

    // ---- frames ---------------------------------------------------------------------------------------------

    fn send(&mut self, from: usize, to: To, kind: Kind, body: &[u8]) {
        let h = &mut self.hosts[from];
        let number = match kind {
            Kind::Heartbeat => &mut h.numbers.heartbeats,
            _ => &mut h.numbers.others,
        };
        *number += 1;
        let header = Header {
            kind: kind as u8,
            sender: h.node,
            incarnation: h.incarnation,
            number: *number,
            sent_ns: self.now_ns,
            period_ns: PERIOD_NS as u32,
            table_version: h.directory.as_ref().map_or(0, |d| d.owner().complete()) as u32,
            ..Header::default()
        };
        *h.sent.entry(kind as u8).or_default() += 1;
        for path in 0..2u8 {
            let mut out = [0; FRAME_MAX];
            let header = Header { path, ..header };
            let n = encode(&mut out, &header, body, &Keyring::default()).expect("fits");
            let frame: Rc<[u8]> = out[..n].into();
            for other in 0..self.hosts.len() {
                let is_meant = match to {
                    To::Everybody => other != from,
                    To::Node(node) => self.hosts[other].node == node,
                };
                if is_meant {
                    self.carry(from, other, path, &frame);
                }
            }
        }
    }

    fn carry(&mut self, from: usize, to: usize, path: u8, frame: &Rc<[u8]>) {
        let faults = self.faults;
        let is_cut = self.hosts[from].cut[usize::from(path)] || self.hosts[to].cut[usize::from(path)];
        if faults.replayed > 0 && self.random.below(1000) < faults.replayed {
            self.recorded.push((to, path, frame.clone()));
        }
        if is_cut || self.random.below(1000) < faults.lost {
            return;
        }
        let copies = 1 + u64::from(self.random.below(1000) < faults.doubled);
        for _ in 0..copies {
            let at_ns = self.now_ns + 10 * US + self.random.below(faults.delay_ns);
            self.plan(at_ns, Happening::Deliver { to, path, frame: frame.clone() });
        }
    }

    /// Somebody sends a recorded frame again, to whom it was for or to anybody.
    pub fn replay(&mut self) {
        if self.recorded.is_empty() {
            return;
        }
        let which = self.random.below(self.recorded.len() as u64) as usize;
        let (to, path, frame) = self.recorded[which].clone();
        let to = if self.random.one_in(3) { self.random.below(self.hosts.len() as u64) as usize } else { to };
        self.plan(self.now_ns, Happening::Deliver { to, path, frame });
    }

    fn deliver(&mut self, to: usize, frame: &[u8]) {
        let now_ns = self.now_ns;
        let h = &mut self.hosts[to];
        let Some(directory) = h.directory.as_mut() else { return };
        let frame = decode(frame, 0, &Keyring::default()).expect("what was sent");
        *h.received.entry(frame.header.kind).or_default() += 1;
        match frame.kind {
            Kind::Heartbeat => directory.handle_heartbeat(&frame.header, now_ns),
            kind => _ = directory.handle_frame(&frame.header, kind, frame.body, now_ns),
        }
        self.wake(to);
    }

    /// Drains a directory, and wakes it again when it wants.
    fn wake(&mut self, host: usize) {
        let now_ns = self.now_ns;
        let mut body = Vec::new();
        loop {
            let random = self.random.next();
            let h = &mut self.hosts[host];
            let Some(directory) = h.directory.as_mut() else { return };
            directory.handle_timeout(now_ns);
            let Some(transmit) = directory.poll_transmit(now_ns, h.numbers, || random, &mut body) else { break };
            self.send(host, transmit.to, transmit.kind, &body);
        }
        self.publish(host);
        let h = &mut self.hosts[host];
        let Some(at_ns) = h.directory.as_ref().and_then(Directory::poll_timeout) else { return };
        let (at_ns, life) = (at_ns.max(now_ns + 1), h.life);
        if at_ns < h.timer_ns || h.timer_ns <= now_ns {
            h.timer_ns = at_ns;
            self.plan(at_ns, Happening::Wake { host, life });
        }
    }

    // ---- applications ---------------------------------------------------------------------------------------

    fn publish(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        let Some(directory) = h.directory.as_mut() else { return };
        let (mut touched, mut complete) = (Vec::new(), Vec::new());
        while let Some(event) = directory.poll_event() {
            match event {
                Event::Row { node, event: table::Event::Lost { content: Content::Process(p), .. } } => {
                    touched.push((node, p.instance, p.state));
                }
                Event::Row { node, event: table::Event::Complete } => complete.push(node),
                Event::Row { node, event } => {
                    let (table::Event::Appeared { row, .. }
                    | table::Event::Changed { row, .. }
                    | table::Event::Updated { row }
                    | table::Event::Renumbered { row, .. }) = event
                    else {
                        continue;
                    };
                    let after = match event {
                        table::Event::Changed { after, .. } => Some(after),
                        _ => None,
                    };
                    if let Some(Content::Process(p)) = directory.replica(node).and_then(|r| r.get(row)) {
                        touched.push((node, p.instance, after.unwrap_or(p.state)));
                    }
                }
                Event::Host { .. } | Event::Announced { .. } => {}
                Event::NameClash { .. } => panic!("no two hosts have one name here"),
            }
        }
        // What an application knew of a host and the complete table does not list has ended.
        for node in complete {
            let replica = directory.replica(node).expect("a complete one");
            let listed: BTreeSet<Instance> =
                replica.rows().filter_map(|(_, c)| if let Content::Process(p) = c { Some(p.instance) } else { None }).collect();
            let gone = h.app.iter().filter(|(i, (of, k))| *of == node && k.ends == 0 && !listed.contains(i));
            touched.extend(
                gone.map(|(i, (of, k))| {
                    (*of, *i, State { cause: Cause::Exited, flags: State::CAUSE_UNKNOWN, code: -1, ..k.state })
                }),
            );
        }
        for (node, instance, state) in touched {
            self.learn(host, node, instance, state);
        }
    }

    fn learn(&mut self, host: usize, node: u32, instance: Instance, state: State) {
        let ends = u32::from(state.cause.ends_process());
        let truth = &self.truths[&instance];
        assert_eq!(self.hosts[truth.host].node, node);
        if ends == 1 {
            assert!(truth.state.cause.ends_process(), "h{host} was told that {instance:?} ended, and it runs: {state:?}");
        }
        let app = &mut self.hosts[host].app;
        match app.get_mut(&instance) {
            None => _ = app.insert(instance, (node, Known { state, ends })),
            Some((_, known)) if known.ends == 0 => {
                known.ends = ends;
                known.state = state;
            }
            Some((_, known)) => {
                let confirms = known.state.cause == Cause::Doomed && state.is_final();
                assert!(ends == 1, "h{host}: {instance:?} lives again: {:?}, {state:?}", known.state);
                if confirms {
                    known.state = state;
                } else if known.state != state {
                    // A restarted agent sees the end again; it says the same, or knows less.
                    let is_vaguer = state.flags & State::CAUSE_UNKNOWN != 0 || state.cause == Cause::Doomed;
                    let was_vaguer = known.state.flags & State::CAUSE_UNKNOWN != 0;
                    assert!(is_vaguer || was_vaguer, "h{host}: {instance:?} ended twice: {:?}, {state:?}", known.state);
                }
            }
        }
    }

    // ---- time -----------------------------------------------------------------------------------------------

    pub fn run_until(&mut self, end_ns: u64) {
        while let Some(Reverse(key)) = self.queue.peek().copied().filter(|Reverse((at_ns, _))| *at_ns <= end_ns) {
            self.queue.pop();
            self.now_ns = key.0;
            match self.happenings.remove(&key).expect("planned") {
                Happening::Deliver { to, path, frame } => {
                    if !self.hosts[to].cut[usize::from(path)] {
                        self.deliver(to, &frame);
                    }
                }
                Happening::Beat { host, life } if self.hosts[host].life == life => {
                    self.send(host, To::Everybody, Kind::Heartbeat, &[]);
                    self.plan(self.now_ns + self.period_ns, Happening::Beat { host, life });
                }
                Happening::Wake { host, life } if self.hosts[host].life == life => {
                    self.hosts[host].timer_ns = u64::MAX;
                    self.wake(host);
                }
                Happening::Beat { .. } | Happening::Wake { .. } => {}
            }
        }
        self.now_ns = end_ns;
    }

    /// After all faults ended: everybody knows everything, and was told of each end once.
    pub fn judge(&self) {
        for (i, h) in self.hosts.iter().enumerate() {
            let directory = h.directory.as_ref().expect("all agents run");
            assert!(directory.owner().is_consistent());
            assert_eq!(directory.unconfirmed().count(), 0, "h{i}");
            for other in self.hosts.iter().filter(|o| o.node != h.node) {
                let replica = directory.replica(other.node).unwrap_or_else(|| panic!("h{i} does not know {}", other.name));
                let owner = other.directory.as_ref().expect("runs").owner();
                assert!(replica.is_complete(), "h{i} lacks changes of {}", other.name);
                assert_eq!((replica.epoch(), replica.complete()), (owner.epoch(), owner.complete()), "h{i} of {}", other.name);
                let rows: Vec<_> = replica.rows().map(|(row, c)| (row, c.clone())).collect();
                let theirs: Vec<_> = owner.rows().map(|row| (row.row, row.content.clone())).collect();
                assert_eq!(rows, theirs, "h{i} of {}", other.name);
            }
            for (instance, truth) in self.truths.iter().filter(|(_, t)| t.host != i) {
                let Some((_, known)) = h.app.get(instance) else {
                    assert!(truth.is_unseen, "h{i} never heard of {instance:?} {truth:?}");
                    continue;
                };
                assert_eq!(known.ends > 0, truth.state.cause.ends_process(), "h{i}: {instance:?} {known:?} {truth:?}");
                let is_told = known.state == truth.state;
                let is_excused = truth.is_unseen && known.state.flags & State::CAUSE_UNKNOWN != 0;
                let is_doomed = truth.is_unseen && known.state.cause == Cause::Doomed;
                assert!(is_told || is_excused || is_doomed, "h{i}: {instance:?} {known:?} {truth:?}");
            }
        }
    }

    /// Frames of this kind that hosts received, the most by any of them.
    pub fn received_most(&self, kind: Kind) -> u64 {
        self.hosts.iter().map(|h| h.received.get(&(kind as u8)).copied().unwrap_or(0)).max().unwrap_or(0)
    }

    pub fn forget_counts(&mut self) {
        self.hosts.iter_mut().for_each(|h| {
            h.received.clear();
            h.sent.clear();
        });
    }
}

impl SimHost {
    fn facts(&self) -> Host {
        Host {
            state: State::running(1),
            boot: self.boot,
            size_max: 1418,
            renewed_from: None,
            fence: None,
            starting: None,
            addresses: [Some([10, 0, (self.node >> 8) as u8, self.node as u8].into()), None],
            name: self.name.clone().into(),
        }
    }
}
