//! Crashes that fall into gaps: what an application is told of each process that it monitors, whatever happens to the agents, hosts and cables between.
//!
//! # What is real, what is modelled
//! Real is the node ([`fide_proto::node::Node`]): introductions, tables, pulls, the detector, path reports, the fence's rule. Modelled are the kernel (the version
//! of a table, exits that were seen and not read, the receive table, answers to probes, gates), the file in which a table is kept between two agents, the network, and an
//! application on each host that monitors every process of all others and outlives its agent.
//!
//! # What is judged
//! | property | says |
//! |---|---|
//! | `told-once` | no end of a process is told twice in one life of an observer's agent, but to confirm what was doomed or silent |
//! | `right-cause` | the cause and code are those of its end; *exited*, code −1, where no agent watched; *left* where its table was lost |
//! | `accuracy` | nobody is told that a process ended (other than by *silent host*) that runs; nobody that ended runs again |
//! | `completeness` | when all faults are over, every application knows every process that runs, and was told of each end of those that it knew |
//! | `introduced-once` | no incarnation of a host is believed twice in one life of an observer's agent, and no verdict is about a host that is not known |
//! | `fence-kept` | nobody on whose confirmation a host counts calls it silent while anything may leave it (worlds in which hosts have fences that all others confirm) |
//! | `restarts-quietly` | whoever heard of a host that its agent is started again says nothing of its silence before that one's time is over |

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fide_proto::detector::{Action, ProbeResult, State as HostState, Verdict};
use fide_proto::fence::{self, Paths};
use fide_proto::node::Node;
use fide_proto::node::directory::Numbers;
use fide_proto::node::fence::{HostFence, Step};
use fide_proto::node::machine::reports::Heard as Arrived;
use fide_proto::node::machine::{Came, Event as NodeEvent};
use fide_proto::node::probing::{self, Answer};
use fide_proto::node::table::Owner;
use fide_proto::node::table::owner::To;
use fide_wire::PATHS;
use fide_wire::frame::table::{Change, Content, HOST_ROW, Instance, Process, Row, State};
use fide_wire::frame::{Header, Kind};
use fide_wire::packet::ReportEntry;
use fide_wire::verdict::{Cause, Confirmers, FenceMode, FencePromise, FencedWhy, Grade};

use crate::gates::Gates;
use crate::host::{self, NoBarriers, Slot};
use crate::invariants::{Violation, broken};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::time::{CONTRACT, JITTER_NS, LAMBDA_MIN_NS, PERIOD_NS, SENDER_LATE_NS, US};

/// Gaps of one world.
pub const GAPS: u64 = 4;
/// Processes of a host that boots.
const PROCESSES: u32 = 2;
/// When the first gap begins.
const FIRST_NS: u64 = 10 * PERIOD_NS;
/// How often an agent reports what arrives of all others.
const REPORT_NS: u64 = 8 * PERIOD_NS;
/// What hosts with fences promise: longer than it takes to call an agent lost, so that a stopped one does not shut all others.
const FENCE_NS: u64 = 60 * PERIOD_NS;
/// In the worlds of these seeds hosts have fences.
const FENCES_EVERY: u64 = 2;
/// How long everything may take to heal: pulls and hellos of who was away for long come every hundred and every five hundred periods.
const HEAL_NS: u64 = 3_000 * PERIOD_NS;

/// What a gap is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The agent stands still; its kernel does not.
    AgentStopped,
    /// The agent is killed, and started again.
    AgentKilled,
    /// The agent leaves, and is started again.
    AgentRestarted,
    /// The agent is replaced by another one at once.
    AgentUpgraded,
    /// The agent is killed, and the next one does not find the table that it kept.
    TableLost,
    /// The host loses its power, and boots.
    HostRebooted,
    /// The cable of one path is cut.
    PathCut,
    /// Both cables are cut.
    HostCut,
    /// Nothing passes between two parts of the hosts.
    Split,
    /// Packets are lost on both paths, everywhere.
    Lost,
    /// Packets come twice.
    Doubled,
    /// Packets come late, behind those that were sent after them.
    Late,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Fault; 12] = [
        Fault::AgentStopped,
        Fault::AgentKilled,
        Fault::AgentRestarted,
        Fault::AgentUpgraded,
        Fault::TableLost,
        Fault::HostRebooted,
        Fault::PathCut,
        Fault::HostCut,
        Fault::Split,
        Fault::Lost,
        Fault::Doubled,
        Fault::Late,
    ];
}

/// A shell that does not do what it must: only to see that the checks can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neglect {
    /// Exits that the kernel saw while the agent stood still are not read.
    Exits,
    /// A new agent does not look which processes of the kept table still run.
    Kept,
    /// The versions that heartbeats name are not looked at.
    Versions,
    /// A new agent does not know what was told before, nor says what became of a process.
    Reconnects,
    /// An agent that was given up goes on as before.
    Condemned,
    /// Gates that were opened once let everything pass.
    Gates,
}

impl Neglect {
    /// Every one.
    pub const ALL: [Neglect; 6] =
        [Neglect::Exits, Neglect::Kept, Neglect::Versions, Neglect::Reconnects, Neglect::Condemned, Neglect::Gates];
}

/// What many worlds came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Worlds.
    pub seeds: u64,
    /// Crashes that fell before, into or behind a gap.
    pub gaps: u64,
    /// Ends that an application was told of.
    pub told: u64,
    /// … of which the cause was unknown, as nobody watched.
    pub unseen: u64,
    /// Ends of processes of which an application had never heard.
    pub unheard: u64,
    /// Fences that shut.
    pub fenced: u64,
    /// Hosts that were called silent by somebody on whose confirmations they had counted.
    pub relied: u64,
    /// What was handed to nodes.
    pub steps: u64,
}

impl Totals {
    /// Both together.
    pub const fn add(&mut self, other: &Totals) {
        self.seeds += other.seeds;
        self.gaps += other.gaps;
        self.told += other.told;
        self.unseen += other.unseen;
        self.unheard += other.unheard;
        self.fenced += other.fenced;
        self.relied += other.relied;
        self.steps += other.steps;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgentState {
    None,
    Runs,
    Stopped,
}

/// What waits for an agent that stands still.
enum Waiting {
    Frame(usize, Rc<Frame>, u64),
    Named { from: usize, incarnation: u32, version: u32, received_ns: u64 },
}

struct Frame {
    from: usize,
    header: Header,
    kind: Kind,
    body: Vec<u8>,
}

/// What an application knows of a process of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Runs,
    Doomed,
    Silent,
    Ended { cause: Cause, code: i32, life: u32 },
}

struct Host {
    id: u32,
    up: bool,
    boot: u32,
    incarnation: u32,
    /// Of its agent: what was planned for an earlier one is void.
    life: u32,
    agent: AgentState,
    node: Option<Node>,
    /// Incarnations of others that its agent believed.
    believed: BTreeSet<(u32, u32)>,
    table: Vec<Slot>,
    numbers: Numbers,
    version: u64,
    unread: Vec<Change>,
    kept: Option<(Owner, bool)>,
    seen: BTreeMap<u32, (u64, u64)>,
    epoch: u64,
    next_row: u32,
    waiting: Vec<Waiting>,
    turn_ns: u64,
    cut_until: [u64; PATHS],
    /// Frames that came, but for heartbeats: each copy.
    received: u64,
    gates: Gates,
    /// Agents (host and life) that have confirmed a heartbeat of this one's agent.
    confirmed_by: BTreeSet<(usize, u32)>,
    /// Those of them that were neither silent nor lost when its gates were opened last.
    relied_on: BTreeSet<(usize, u32)>,
    /// What its application knows, by pid.
    app: BTreeMap<u32, Heard>,
    /// What it asks the new agent.
    asks: BTreeSet<u32>,
    /// When the next life of a host is due, whose former one said so.
    back_by_ns: BTreeMap<(u32, u32), u64>,
}

impl Host {
    /// Nothing of its agent leaves.
    /// What others confirm leaves past its closed gates.
    fn passes_gates(&self, now: u64) -> bool {
        self.node.as_ref().and_then(Node::fence).is_some_and(|fence| fence.passes(now))
    }

    fn is_fenced(&self) -> bool {
        self.node.as_ref().and_then(Node::fence).is_some_and(|fence| fence.closed().is_some())
    }
}

/// A process as it truly is.
struct Truth {
    host: usize,
    row: u32,
    is_doomed: bool,
    ended: Option<(Cause, i32)>,
    /// Nobody watched when it ended, or what was seen got lost.
    is_unseen: bool,
}

enum Event {
    Beat { host: usize, life: u32 },
    Arrive { to: usize, path: usize, from: usize, incarnation: u32, number: u64, version: u32 },
    Frame { to: usize, path: usize, frame: Rc<Frame> },
    Turn { host: usize, life: u32 },
    Question { from: usize, to: usize, path: usize, asked_ns: u64, life: u32, knock: bool },
    Reply { to: usize, from: usize, path: usize, asked_ns: u64, life: u32, result: ProbeResult },
    Report { host: usize, life: u32 },
    Recover { host: usize, boot: u32 },
    Begins { host: usize, fault: Fault, ns: u64 },
    Crash { host: usize },
    Ends { pid: u32 },
    Spawn { host: usize, boot: u32 },
    StartAgent { host: usize, life: u32 },
    Resume { host: usize, life: u32 },
    Boot { host: usize, boot: u32 },
    Look,
}

/// A world of crashes and gaps.
pub struct World {
    now: u64,
    rng: Rng,
    queue: Queue<Event>,
    hosts: Vec<Host>,
    /// Of hosts, by their ids.
    ids: BTreeMap<u32, usize>,
    truths: BTreeMap<u32, Truth>,
    next_pid: u32,
    /// (percent, until) of packets that are lost, doubled, late.
    troubles: [(u64, u64); 3],
    neglect: Option<Neglect>,
    /// Hosts have fences.
    promises: bool,
    /// Who is apart from all others, and until when.
    apart: (BTreeSet<usize>, u64),
    /// In how many ms the next life of a host comes, as this one said; by its id.
    back_ms: BTreeMap<(u32, u32), u32>,
    over_ns: u64,
    totals: Totals,
    violation: Option<Violation>,
    body: Vec<u8>,
    story: Option<Vec<(u64, String)>>,
}

/// One world of this seed.
///
/// # Errors
/// What did not hold.
pub fn run(seed: u64, neglect: Option<Neglect>) -> Result<Totals, Violation> {
    World::new(seed, neglect, false).run()
}

/// The same, and what happened.
pub fn story(seed: u64, neglect: Option<Neglect>) -> (String, Result<Totals, Violation>) {
    let mut world = World::new(seed, neglect, true);
    let ended = world.run();
    let lines = world.story.take().unwrap_or_default();
    let text = lines.iter().map(|(at, line)| format!("{:>7}.{} µs  {line}\n", at / US, at % US / 100)).collect();
    (text, ended)
}

const fn instance(pid: u32) -> Instance {
    Instance { pid, start_ticks: 7 }
}

impl World {
    fn new(seed: u64, neglect: Option<Neglect>, told: bool) -> Self {
        let mut rng = Rng::new(seed ^ 0x6761_7073);
        let n = 2 + rng.below(3) as usize;
        let mut world = Self::of(n, rng, neglect, told);
        world.promises = seed.is_multiple_of(FENCES_EVERY);
        (0..n).for_each(|h| world.boot(h));
        world.plan();
        world
    }

    /// So many hosts, all of them off, and no plan: for what is counted.
    #[must_use]
    pub fn large(n: usize, seed: u64) -> Self {
        let mut world = Self::of(n, Rng::new(seed), None, false);
        world.hosts.iter_mut().for_each(|host| host.up = false);
        world.over_ns = u64::MAX - HEAL_NS;
        world
    }

    fn of(n: usize, rng: Rng, neglect: Option<Neglect>, told: bool) -> Self {
        let new = |at: usize| Host {
            id: fide_wire::name_id(&host::name(at)),
            up: true,
            boot: 0,
            incarnation: 0,
            life: 0,
            agent: AgentState::None,
            node: None,
            believed: BTreeSet::new(),
            table: vec![Slot::default(); n],
            numbers: Numbers::default(),
            version: 0,
            unread: Vec::new(),
            kept: None,
            seen: BTreeMap::new(),
            epoch: 0,
            next_row: 1,
            waiting: Vec::new(),
            turn_ns: u64::MAX,
            cut_until: [0; PATHS],
            received: 0,
            gates: Gates::default(),
            confirmed_by: BTreeSet::new(),
            relied_on: BTreeSet::new(),
            app: BTreeMap::new(),
            asks: BTreeSet::new(),
            back_by_ns: BTreeMap::new(),
        };
        Self {
            now: PERIOD_NS,
            rng,
            queue: Queue::new(),
            hosts: (0..n).map(new).collect(),
            ids: (0..n).map(|at| (fide_wire::name_id(&host::name(at)), at)).collect(),
            truths: BTreeMap::new(),
            next_pid: 1,
            troubles: [(0, 0); 3],
            neglect,
            promises: false,
            apart: (BTreeSet::new(), 0),
            back_ms: BTreeMap::new(),
            over_ns: 0,
            totals: Totals { seeds: 1, ..Totals::default() },
            violation: None,
            body: Vec::new(),
            story: told.then(Vec::new),
        }
    }

    // ------------------------------------------------------------------ worlds without a plan

    /// These hosts get power, each at a moment within `ns`.
    pub fn power_on(&mut self, hosts: impl IntoIterator<Item = usize>, ns: u64) {
        for host in hosts {
            let (at, boot) = (self.now + self.rng.below(ns), self.hosts[host].boot);
            self.queue.push(at, Event::Boot { host, boot });
        }
    }

    /// These hosts lose their power at once.
    pub fn lose_power(&mut self, hosts: impl IntoIterator<Item = usize>) {
        for host in hosts {
            self.power_off(host, u64::MAX / 2);
        }
    }

    /// Nothing passes these hosts' cables on these paths for so long.
    pub fn cut(&mut self, hosts: impl IntoIterator<Item = usize>, paths: &[usize], ns: u64) {
        let until = self.now + ns;
        for host in hosts {
            paths.iter().for_each(|path| self.hosts[host].cut_until[*path] = until);
        }
    }

    /// Nothing passes between these hosts and all others for so long.
    pub fn split(&mut self, hosts: impl IntoIterator<Item = usize>, ns: u64) {
        self.apart = (hosts.into_iter().collect(), self.now + ns);
    }

    /// A process of this host crashes.
    pub fn crash_on(&mut self, host: usize) {
        let first = self.running(host).next();
        if let Some(pid) = first {
            self.ends(pid, Cause::Killed, 9);
        }
    }

    /// Lets so much time go by.
    ///
    /// # Errors
    /// What did not hold.
    pub fn pass(&mut self, ns: u64) -> Result<(), Violation> {
        let end = self.now + ns;
        while self.queue.next_ns().is_some_and(|at| at <= end) {
            let Some((at, event)) = self.queue.pop() else { break };
            self.now = at;
            self.handle(event);
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
        }
        self.now = end;
        Ok(())
    }

    /// How many frames this host received since it was asked last, both copies of each counted, heartbeats not.
    pub fn received(&mut self, host: usize) -> u64 {
        std::mem::take(&mut self.hosts[host].received)
    }

    /// What one of the hosts that have power does not know of another one that has, or still believes of one that has none.
    #[must_use]
    pub fn unknown(&self) -> Option<String> {
        if let Some(missing) = self.missing() {
            return Some(missing);
        }
        let dead = || self.hosts.iter().enumerate().filter(|(_, host)| !host.up);
        for (h, host) in self.hosts.iter().enumerate().filter(|(_, host)| host.up) {
            let Some(node) = &host.node else { continue };
            for (o, other) in dead() {
                if node.detector().state(other.id).is_some_and(|state| state != HostState::Silent) {
                    return Some(format!("host {} does not know that host {} is silent", h + 1, o + 1));
                }
            }
        }
        None
    }

    /// Gaps, and crashes before, in and behind them.
    fn plan(&mut self) {
        let n = self.hosts.len() as u64;
        let mut at = FIRST_NS;
        let mut over = 0;
        for _ in 0..GAPS {
            let host = self.rng.below(n) as usize;
            let fault = *self.rng.pick(&Fault::ALL);
            let longest = if self.rng.chance(25) { 60 } else { 12 };
            // Fences want more time.
            let longest = if self.promises && self.rng.chance(50) { 3 * FENCE_NS / PERIOD_NS } else { longest };
            let ns = self.rng.below(longest * PERIOD_NS);
            self.queue.push(at, Event::Begins { host, fault, ns });
            // Of this host, or of one that it observes.
            let victim = self.rng.below(n) as usize;
            let crash = match self.rng.below(4) {
                0 => at - self.rng.below(3 * PERIOD_NS),
                1 | 2 => at + self.rng.below(ns),
                _ => at + ns + self.rng.below(5 * PERIOD_NS),
            };
            self.queue.push(crash, Event::Crash { host: victim });
            over = over.max(at + ns).max(crash);
            at +=
                if self.rng.chance(50) { self.rng.below(8 * PERIOD_NS) } else { 10 * PERIOD_NS + self.rng.below(60 * PERIOD_NS) };
        }
        self.over_ns = over + 12 * PERIOD_NS;
        self.queue.push(self.over_ns, Event::Look);
    }

    fn run(&mut self) -> Result<Totals, Violation> {
        while let Some((at, event)) = self.queue.pop() {
            self.now = at;
            if self.handle(event) {
                break;
            }
            if let Some(violation) = self.violation.take() {
                self.note(|| format!("✗ {violation}"));
                return Err(violation);
            }
        }
        Ok(self.totals.clone())
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        let at = self.now;
        if let Some(story) = &mut self.story {
            story.push((at, text()));
        }
    }

    fn breaks(&mut self, property: &'static str, what: impl Into<String>) {
        if let (Err(violation), None) = (broken(property, what), &self.violation) {
            self.violation = Some(violation);
        }
    }

    fn index(&self, id: u32) -> usize {
        self.ids.get(&id).copied().unwrap_or(usize::MAX)
    }

    // ------------------------------------------------------------------ what happens

    /// Whether the world is over.
    fn handle(&mut self, event: Event) -> bool {
        match event {
            Event::Beat { host, life } => self.beat(host, life),
            Event::Arrive { to, path, from, incarnation, number, version } => {
                self.arrive(to, path, from, incarnation, number, version);
            }
            Event::Frame { to, path, frame } => {
                if self.passes_in(to, path) {
                    self.frame(to, path, frame, self.now);
                }
            }
            Event::Turn { host, life } => self.turn(host, life),
            Event::Question { from, to, path, asked_ns, life, knock } => {
                // An agent that is there answers nothing to a knock.
                let answers = !knock || self.hosts[to].agent == AgentState::None;
                if self.hosts[to].up && answers && self.passes(to, from, path) {
                    let result = if knock { ProbeResult::AgentAbsent } else { ProbeResult::KernelAnswered };
                    let at = self.delay();
                    self.queue.push(at, Event::Reply { to: from, from: to, path, asked_ns, life, result });
                }
            }
            Event::Reply { to, from, path, asked_ns, life, result } => {
                if self.hosts[to].life == life && self.hosts[to].agent == AgentState::Runs {
                    let (id, now) = (self.hosts[from].id, self.now);
                    let Some(node) = &mut self.hosts[to].node else { return false };
                    let answer = Answer { node: id, path, result, asked_ns, queue: None };
                    node.take_answer(&answer, || false, &NoBarriers, now);
                    self.plan_turn(to);
                }
            }
            Event::Report { host, life } => self.report(host, life),
            Event::Recover { host, boot } => self.recover(host, boot),
            Event::Begins { host, fault, ns } => self.begins(host, fault, ns),
            Event::Crash { host } => self.crash(host),
            Event::Ends { pid } => self.ends(pid, Cause::Killed, 9),
            Event::Spawn { host, boot } => {
                if self.hosts[host].boot == boot && self.hosts[host].up {
                    self.spawn(host);
                }
            }
            Event::StartAgent { host, life } => {
                if self.hosts[host].life == life && self.hosts[host].up {
                    self.start_agent(host);
                }
            }
            Event::Resume { host, life } => {
                if self.hosts[host].life == life && self.hosts[host].agent == AgentState::Stopped {
                    self.resume(host);
                }
            }
            Event::Boot { host, boot } => {
                if self.hosts[host].boot == boot && !self.hosts[host].up {
                    self.boot(host);
                }
            }
            Event::Look => return self.look(),
        }
        false
    }

    fn begins(&mut self, host: usize, fault: Fault, ns: u64) {
        self.note(|| format!("─── host {} {fault:?} for {} µs", host + 1, ns / US));
        let (now, life) = (self.now, self.hosts[host].life);
        let runs = self.hosts[host].agent == AgentState::Runs;
        match fault {
            Fault::AgentStopped if runs => {
                self.hosts[host].agent = AgentState::Stopped;
                self.queue.push(now + ns, Event::Resume { host, life });
            }
            Fault::AgentKilled | Fault::TableLost if self.hosts[host].agent != AgentState::None => {
                let is_exact = self.rng.chance(70);
                self.end_agent(host, is_exact);
                if fault == Fault::TableLost {
                    self.lose_table(host);
                }
                let life = self.hosts[host].life;
                self.queue.push(now + ns, Event::StartAgent { host, life });
            }
            Fault::AgentRestarted | Fault::AgentUpgraded if runs => {
                if fault == Fault::AgentRestarted {
                    let version = self.next_version(host);
                    // For good, to be back after all of this, or before.
                    let back_ms = [0, ns / 1_000_000 * 2 + 20, ns / 2_000_000][self.rng.below(3) as usize] as u32;
                    let h = &mut self.hosts[host];
                    if back_ms > 0 {
                        self.back_ms.insert((h.id, h.incarnation), back_ms);
                    }
                    if let Some(node) = &mut h.node {
                        node.leave(version, back_ms, now);
                    }
                    self.after_node(host);
                }
                // Its promise ends with it: nobody extends its time any more.
                let h = &mut self.hosts[host];
                if h.node.as_ref().is_some_and(|node| node.fence().is_some_and(|fence| fence.closed().is_none())) {
                    h.gates = Gates::NotArmed;
                }
                self.end_agent(host, true);
                let (life, pause) = (self.hosts[host].life, if fault == Fault::AgentUpgraded { 2 * PERIOD_NS } else { ns });
                self.queue.push(now + pause, Event::StartAgent { host, life });
            }
            Fault::HostRebooted if self.hosts[host].up => self.power_off(host, ns),
            Fault::PathCut => {
                let path = self.rng.below(PATHS as u64) as usize;
                let until = &mut self.hosts[host].cut_until[path];
                *until = (*until).max(now + ns);
            }
            Fault::HostCut => self.hosts[host].cut_until.iter_mut().for_each(|until| *until = (*until).max(now + ns)),
            Fault::Split => {
                let n = self.hosts.len() as u64;
                let part = 1 + self.rng.below((1 << n) - 2);
                self.split((0..n as usize).filter(|at| part >> at & 1 == 1).collect::<Vec<_>>(), ns);
            }
            Fault::Lost => self.troubles[0] = (20 + self.rng.below(70), now + ns),
            Fault::Doubled => self.troubles[1] = (60, now + ns),
            Fault::Late => self.troubles[2] = (60, now + ns),
            _ => {}
        }
    }

    // ------------------------------------------------------------------ hosts and agents

    fn boot(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        h.up = true;
        h.boot += 1;
        h.app.clear();
        h.seen.clear();
        (h.kept, h.next_row) = (None, 1);
        h.unread.clear();
        h.gates = Gates::default();
        self.start_agent(host);
        for _ in 0..PROCESSES {
            self.spawn(host);
        }
    }

    fn power_off(&mut self, host: usize, ns: u64) {
        self.end_agent(host, true);
        self.lose_table(host);
        let h = &mut self.hosts[host];
        h.up = false;
        let boot = h.boot;
        for truth in self.truths.values_mut().filter(|truth| truth.host == host) {
            truth.ended.get_or_insert((Cause::Killed, 9));
            truth.is_unseen = true;
        }
        self.queue.push(self.now + ns, Event::Boot { host, boot });
    }

    /// What was seen of ends on this host is in no table any more.
    fn lose_table(&mut self, host: usize) {
        (self.hosts[host].kept, self.hosts[host].next_row) = (None, 1);
        for truth in self.truths.values_mut().filter(|truth| truth.host == host && truth.ended.is_some()) {
            truth.is_unseen = true;
        }
    }

    /// Its table is in the file, but for the last end if it is not `exact`.
    fn end_agent(&mut self, host: usize, exact: bool) {
        let h = &mut self.hosts[host];
        let Some(node) = h.node.take() else { return };
        h.life += 1;
        h.agent = AgentState::None;
        h.waiting.clear();
        h.back_by_ns.clear();
        let lost: Vec<u32> = std::mem::take(&mut h.unread).iter().map(|change| change.row).collect();
        let seen = self.hosts.iter().filter_map(|other| Some((other.id, node.seen(other.id)?))).collect();
        let h = &mut self.hosts[host];
        h.seen = seen;
        let owner = node.directory().owner();
        let newest = owner.rows().filter(|row| row.content.is_over()).max_by_key(|row| row.version).map(|row| row.row);
        let newest = newest.filter(|_| !exact);
        let rows: Vec<Row> = owner.rows().cloned().map(|row| if Some(row.row) == newest { running(row) } else { row }).collect();
        let marks = (owner.complete(), owner.floor(), false);
        let kept = Owner::restore(h.id, owner.epoch(), marks, rows, self.now);
        h.kept = kept.ok().map(|owner| (owner, exact));
        let is_lost = |row: u32| lost.contains(&row) || newest == Some(row);
        for truth in self.truths.values_mut().filter(|truth| truth.host == host && is_lost(truth.row)) {
            truth.is_unseen = true;
        }
    }

    fn start_agent(&mut self, host: usize) {
        let (now, random) = (self.now, self.rng.bits() | 1);
        let h = &mut self.hosts[host];
        if h.node.is_some() {
            return;
        }
        h.incarnation += 1;
        h.numbers = Numbers::default();
        let (id, incarnation) = (h.id, h.incarnation);
        let kept = h.kept.take();
        let is_new = kept.is_none();
        let owner = match kept {
            // What is not in the file is no loss to who knows of it: so the whole of it is listed, once.
            Some((kept, exact)) => Owner::restore(id, kept.epoch(), (h.version, h.version, !exact), kept.rows().cloned(), now)
                .expect("what was kept"),
            None => {
                (h.epoch, h.version) = (random, 0);
                Owner::new(id, random)
            }
        };
        let mut owner = owner;
        h.version += 1;
        owner.put(HOST_ROW, h.version, host::facts(host, u128::from(h.boot), now), now).expect("a new version");
        let former = std::mem::take(&mut h.seen);
        let node = Node::new(host::config(id, incarnation), owner, CONTRACT, former, now).expect("a host row");
        h.node = Some(node);
        h.agent = AgentState::Runs;
        h.life += 1;
        h.believed.clear();
        (h.confirmed_by, h.relied_on) = Default::default();
        h.table.fill(Slot::default());
        h.turn_ns = u64::MAX;
        if self.neglect != Some(Neglect::Reconnects) {
            h.asks = h.app.iter().filter(|(_, heard)| !matches!(heard, Heard::Ended { .. })).map(|(pid, _)| *pid).collect();
        }
        self.note(|| format!("host {} starts its agent, incarnation {incarnation}", host + 1));
        if is_new {
            let runs: Vec<u32> = self.running(host).collect();
            runs.into_iter().for_each(|pid| self.enlist(host, pid));
        } else if self.neglect != Some(Neglect::Kept) {
            self.look_who_runs(host);
        }
        let life = self.hosts[host].life;
        if self.promises {
            self.begin_fence(host);
        }
        let first = now + self.rng.below(PERIOD_NS);
        self.queue.push(first, Event::Beat { host, life });
        let first = now + self.rng.below(REPORT_NS);
        self.queue.push(first, Event::Report { host, life });
        self.after_node(host);
    }

    /// Which processes of the kept table still run: what ended meanwhile has ended, and nobody saw how.
    fn look_who_runs(&mut self, host: usize) {
        let Some(node) = &self.hosts[host].node else { return };
        let rows: Vec<(u32, Process)> = node
            .directory()
            .owner()
            .rows()
            .filter_map(|row| match &row.content {
                Content::Process(process) if !row.content.is_over() => Some((row.row, process.clone())),
                _ => None,
            })
            .collect();
        for (row, process) in rows {
            let Some(truth) = self.truths.get_mut(&process.instance.pid) else { continue };
            if truth.ended.is_none() {
                continue;
            }
            truth.is_unseen = true;
            let state =
                State { cause: Cause::Exited, grade: Grade::Certain, flags: State::CAUSE_UNKNOWN, code: -1, event_ns: self.now };
            self.put(host, row, Content::Process(Process { state, ..process }));
        }
    }

    fn running(&self, host: usize) -> impl Iterator<Item = u32> {
        self.truths.iter().filter(move |(_, truth)| truth.host == host && truth.ended.is_none()).map(|(pid, _)| *pid)
    }

    fn next_version(&mut self, host: usize) -> u64 {
        self.hosts[host].version += 1;
        self.hosts[host].version
    }

    fn put(&mut self, host: usize, row: u32, content: Content) {
        let (version, now) = (self.next_version(host), self.now);
        if let Some(node) = &mut self.hosts[host].node {
            node.put(row, version, content, now).expect("a row of its own, and a new version");
        }
    }

    fn resume(&mut self, host: usize) {
        self.note(|| format!("the agent of host {} goes on", host + 1));
        self.hosts[host].agent = AgentState::Runs;
        let unread = std::mem::take(&mut self.hosts[host].unread);
        for change in unread {
            if self.neglect == Some(Neglect::Exits) {
                continue;
            }
            self.push(host, &change);
        }
        for waiting in std::mem::take(&mut self.hosts[host].waiting) {
            match waiting {
                Waiting::Frame(path, frame, received_ns) => self.frame(host, path, frame, received_ns),
                Waiting::Named { from, incarnation, version, received_ns } => {
                    self.named(host, from, incarnation, version, received_ns)
                }
            }
        }
        let life = self.hosts[host].life;
        self.queue.push(self.now, Event::Beat { host, life });
        self.queue.push(self.now, Event::Report { host, life });
        self.hosts[host].turn_ns = u64::MAX;
        self.plan_turn(host);
    }

    // ------------------------------------------------------------------ processes

    fn spawn(&mut self, host: usize) {
        if self.hosts[host].agent != AgentState::Runs {
            // Its supervisor waits until somebody watches.
            let boot = self.hosts[host].boot;
            self.queue.push(self.now + 4 * PERIOD_NS, Event::Spawn { host, boot });
            return;
        }
        let pid = self.next_pid;
        self.next_pid += 1;
        self.truths.insert(pid, Truth { host, row: 0, is_doomed: false, ended: None, is_unseen: false });
        self.enlist(host, pid);
        self.after_node(host);
    }

    fn enlist(&mut self, host: usize, pid: u32) {
        let h = &mut self.hosts[host];
        let row = h.next_row;
        h.next_row += 1;
        let mut state = State::running(self.now);
        if let Some(truth) = self.truths.get_mut(&pid) {
            truth.row = row;
            if truth.is_doomed {
                state = State { cause: Cause::Doomed, code: 9, ..state };
            }
        }
        let process = Process { state, instance: instance(pid), uid: 0, pbsize: 0, name: format!("p{pid}").into() };
        self.put(host, row, Content::Process(process));
    }

    fn crash(&mut self, host: usize) {
        let runs: Vec<u32> = self.running(host).filter(|pid| !self.truths[pid].is_doomed).collect();
        if runs.is_empty() || !self.hosts[host].up {
            return;
        }
        self.totals.gaps += 1;
        let pid = *self.rng.pick(&runs);
        let boot = self.hosts[host].boot;
        match self.rng.below(3) {
            0 => {
                self.ends(pid, Cause::Doomed, 9);
                let at = self.now + self.rng.below(10 * PERIOD_NS);
                self.queue.push(at, Event::Ends { pid });
            }
            1 => self.ends(pid, Cause::Killed, 11),
            _ => self.ends(pid, Cause::Exited, 3),
        }
        if self.rng.chance(60) {
            let at = self.now + self.rng.below(6 * PERIOD_NS);
            self.queue.push(at, Event::Spawn { host, boot });
        }
    }

    /// The kernel of its host sees a process doomed or gone.
    fn ends(&mut self, pid: u32, cause: Cause, code: i32) {
        let Some(truth) = self.truths.get_mut(&pid).filter(|truth| truth.ended.is_none()) else { return };
        let flags = if truth.is_doomed { State::CONFIRMS } else { 0 };
        match cause {
            Cause::Doomed => truth.is_doomed = true,
            _ => truth.ended = Some((cause, code)),
        }
        let (host, row) = (truth.host, truth.row);
        if self.hosts[host].agent == AgentState::None {
            truth.is_unseen |= truth.ended.is_some();
        }
        self.note(|| format!("host {}: process {pid} {cause} {code}", host + 1));
        if self.hosts[host].agent == AgentState::None {
            return;
        }
        let state = State { cause, grade: Grade::Certain, flags, code, event_ns: self.now };
        let change = Change { origin: self.hosts[host].id, row, version: self.next_version(host), state };
        if self.hosts[host].agent == AgentState::Stopped {
            self.hosts[host].unread.push(change);
        } else {
            self.push(host, &change);
        }
    }

    fn push(&mut self, host: usize, change: &Change) {
        let frame = self.frame_of(host, Kind::Change, change.bytes().to_vec());
        self.send(To::Everybody, frame);
        let now = self.now;
        if let Some(node) = &mut self.hosts[host].node {
            node.change(change, now).expect("a process of this table");
        }
        self.after_node(host);
    }

    // ------------------------------------------------------------------ packets

    fn passes_in(&self, host: usize, path: usize) -> bool {
        self.hosts[host].up && self.hosts[host].cut_until[path] <= self.now
    }

    fn passes(&mut self, from: usize, to: usize, path: usize) -> bool {
        let (percent, until) = self.troubles[0];
        let (apart, apart_until) = &self.apart;
        if *apart_until > self.now && apart.contains(&from) != apart.contains(&to) {
            return false;
        }
        self.passes_in(from, path) && self.passes_in(to, path) && (until <= self.now || !self.rng.chance(percent))
    }

    fn happens(&mut self, trouble: usize) -> bool {
        let (percent, until) = self.troubles[trouble];
        until > self.now && self.rng.chance(percent)
    }

    /// When what leaves now arrives.
    fn delay(&mut self) -> u64 {
        let late = if self.happens(2) { self.rng.below(3 * PERIOD_NS) } else { 0 };
        self.now + LAMBDA_MIN_NS + self.rng.below(JITTER_NS) + late
    }

    fn beat(&mut self, host: usize, life: u32) {
        if self.hosts[host].life != life || self.hosts[host].agent != AgentState::Runs {
            return;
        }
        self.check_gates(host);
        let (now, h) = (self.now, &mut self.hosts[host]);
        h.numbers.heartbeats += 1;
        let (number, incarnation) = (h.numbers.heartbeats, h.incarnation);
        let version = h.node.as_ref().map_or(0, |node| node.directory().owner().complete() as u32);
        let paths = if h.is_fenced() && !h.passes_gates(now) { 0 } else { PATHS };
        for path in 0..paths {
            for to in (0..self.hosts.len()).filter(|to| *to != host) {
                if self.passes(host, to, path) {
                    for _ in 0..1 + u32::from(self.happens(1)) {
                        let at = self.delay();
                        self.queue.push(at, Event::Arrive { to, path, from: host, incarnation, number, version });
                    }
                }
            }
        }
        self.beat_left(host, number);
        let late = self.rng.below(SENDER_LATE_NS);
        self.queue.push(self.now + PERIOD_NS + late - SENDER_LATE_NS / 2, Event::Beat { host, life });
    }

    fn arrive(&mut self, to: usize, path: usize, from: usize, incarnation: u32, number: u64, version: u32) {
        if !self.passes_in(to, path) || self.hosts[to].agent == AgentState::None {
            return;
        }
        self.totals.steps += 1;
        let now = self.now;
        let slot = &mut self.hosts[to].table[from];
        if slot.incarnation == incarnation {
            if slot.condemned {
                return;
            }
            slot.count(path, number, true, now);
            let is_newest = slot.rows[path].last_number == number;
            if slot.version == version || !is_newest || self.neglect == Some(Neglect::Versions) {
                return;
            }
            slot.version = version;
        }
        if self.hosts[to].agent == AgentState::Stopped {
            self.hosts[to].waiting.push(Waiting::Named { from, incarnation, version, received_ns: now });
        } else {
            self.named(to, from, incarnation, version, now);
        }
    }

    fn named(&mut self, to: usize, from: usize, incarnation: u32, version: u32, received_ns: u64) {
        let id = self.hosts[from].id;
        if let Some(node) = &mut self.hosts[to].node {
            node.heartbeat(id, incarnation, version, received_ns);
        }
        self.after_node(to);
    }

    fn frame(&mut self, to: usize, path: usize, frame: Rc<Frame>, received_ns: u64) {
        let (now, h) = (self.now, &mut self.hosts[to]);
        // Who was given up may have given this host up as well: its reports and hellos pass.
        let (is_report, is_hello) = (frame.kind == Kind::PathReport, frame.kind == Kind::Hello);
        h.received += u64::from(!is_report);
        let slot = &h.table[frame.from];
        if slot.condemned && slot.incarnation == frame.header.incarnation && !is_report && !is_hello {
            return;
        }
        match h.agent {
            AgentState::None => return,
            AgentState::Stopped => return h.waiting.push(Waiting::Frame(path, frame, received_ns)),
            AgentState::Runs => {}
        }
        self.totals.steps += 1;
        if let Some(node) = &mut h.node {
            // What it meant is seen by what follows from it.
            let _ = node.handle_frame(&frame.header, frame.kind, &frame.body, Came { path: path as u8, received_ns }, now);
        }
        if is_report && self.promises {
            self.note_confirmations(to, &frame);
        }
        self.after_node(to);
    }

    fn frame_of(&mut self, from: usize, kind: Kind, body: Vec<u8>) -> Frame {
        let h = &mut self.hosts[from];
        h.numbers.others += 1;
        let (number, incarnation) = (h.numbers.others, h.incarnation);
        let header = Header { kind: kind as u8, sender: h.id, incarnation, number, sent_ns: self.now, ..Header::default() };
        Frame { from, header, kind, body }
    }

    fn send(&mut self, to: To, frame: Frame) {
        let may_pass = matches!(frame.kind, Kind::PathReport | Kind::Introduction | Kind::Hello | Kind::Pull | Kind::Rows);
        let sender = &self.hosts[frame.from];
        if sender.is_fenced() && !(may_pass && sender.passes_gates(self.now)) {
            return;
        }
        let (from, frame) = (frame.from, Rc::new(frame));
        let receivers = match to {
            To::Everybody => 0..self.hosts.len(),
            To::Node(id) => self.index(id)..self.index(id) + 1,
        };
        for path in 0..PATHS {
            for host in receivers.clone().filter(|host| *host != from) {
                if !self.passes(from, host, path) {
                    continue;
                }
                for _ in 0..1 + u32::from(self.happens(1)) {
                    let at = self.delay();
                    self.queue.push(at, Event::Frame { to: host, path, frame: frame.clone() });
                }
            }
        }
    }

    // ------------------------------------------------------------------ a node's turn

    fn plan_turn(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        let Some(at) = h.node.as_ref().and_then(Node::poll_timeout) else { return };
        let at = at.max(self.now + 1);
        if at < h.turn_ns {
            h.turn_ns = at + self.rng.below(2 * US);
            let life = h.life;
            self.queue.push(h.turn_ns, Event::Turn { host, life });
        }
    }

    fn turn(&mut self, host: usize, life: u32) {
        let h = &mut self.hosts[host];
        if h.life != life || h.turn_ns != self.now || h.agent != AgentState::Runs {
            return;
        }
        h.turn_ns = u64::MAX;
        let Some(node) = &mut h.node else { return };
        for (id, from) in &self.ids {
            let slot = &mut h.table[*from];
            if std::mem::take(&mut slot.fresh) {
                node.arrivals(*id, slot.incarnation, &slot.rows);
            }
        }
        node.handle_timeout(self.now);
        self.totals.steps += 1;
        self.after_node(host);
    }

    fn after_node(&mut self, host: usize) {
        loop {
            let mut body = std::mem::take(&mut self.body);
            let (now, rng) = (self.now, &mut self.rng);
            let h = &mut self.hosts[host];
            let numbers = h.numbers;
            let transmit = h.node.as_mut().and_then(|node| node.poll_transmit(now, numbers, || rng.bits(), &mut body));
            let made = transmit.map(|transmit| (transmit.to, self.frame_of(host, transmit.kind, body.clone())));
            self.body = body;
            let Some((to, frame)) = made else { break };
            self.send(to, frame);
        }
        self.send_reports(host);
        loop {
            while let Some(event) = self.hosts[host].node.as_mut().and_then(Node::poll_event) {
                self.learns(host, event);
            }
            let Some(node) = self.hosts[host].node.as_mut().filter(|node| node.probing().has_next()) else { break };
            node.ask_next(&mut NoBarriers, self.now);
        }
        if !self.hosts[host].asks.is_empty() {
            self.ask(host);
        }
        self.plan_turn(host);
    }

    /// Others gave this incarnation up.
    fn given_up(&mut self, host: usize, incarnation: u32) {
        if self.neglect != Some(Neglect::Condemned) {
            self.hosts[host].incarnation = self.hosts[host].incarnation.max(incarnation);
            self.begin_incarnation(host);
        }
    }

    fn begin_incarnation(&mut self, host: usize) {
        let now = self.now;
        let h = &mut self.hosts[host];
        h.incarnation += 1;
        h.version += 1;
        let (incarnation, version) = (h.incarnation, h.version);
        if let Some(node) = &mut h.node {
            node.begin_incarnation(incarnation, version, now);
        }
        self.note(|| format!("host {} begins incarnation {incarnation}", host + 1));
    }

    fn learns(&mut self, host: usize, event: NodeEvent) {
        match event {
            NodeEvent::Host { node, incarnation, .. } => {
                let from = self.index(node);
                self.hosts[host].table[from] = Slot { incarnation, ..Slot::default() };
                if !self.hosts[host].believed.insert((node, incarnation)) {
                    self.breaks(
                        "introduced-once",
                        format!("host {} believes {incarnation} of host {} twice", host + 1, from + 1),
                    );
                }
            }
            NodeEvent::Runs { node, row, instance, .. } => {
                self.note(|| format!("host {} hears that process {} runs, row {row}", host + 1, instance.pid));
                debug_assert_eq!(self.hosts[self.truths[&instance.pid].host].id, node);
                self.runs(host, instance.pid);
            }
            NodeEvent::Lost { node, incarnation, process, confirms, .. } => {
                let pid = process.instance.pid;
                let was_told = matches!(self.hosts[host].app.get(&pid), Some(Heard::Silent | Heard::Doomed));
                if confirms != was_told {
                    self.breaks("told-once", format!("host {}: the end of process {pid} confirms: {confirms}", host + 1));
                }
                let judged = self.hosts[host].node.as_ref().and_then(|observer| observer.detector().incarnation(node));
                if judged == Some(incarnation) && process.state.cause != Cause::Left {
                    self.breaks("told-once", format!("host {}: process {pid} ended in a later incarnation", host + 1));
                }
                self.ended(host, pid, &process.state, true);
            }
            NodeEvent::Act(Action::Verdict(verdict)) => self.hears(host, &verdict),
            NodeEvent::Act(Action::Condemn { node, incarnation }) => {
                let from = self.index(node);
                let slot = &mut self.hosts[host].table[from];
                slot.condemned |= slot.incarnation == incarnation;
            }
            NodeEvent::Ask(question) => {
                let (node, path, knock) = match question {
                    probing::Action::Echo { node, path } => (node, path, false),
                    probing::Action::Knock { node, path } => (node, path, true),
                    _ => return,
                };
                let (to, life, asked_ns) = (self.index(node), self.hosts[host].life, self.now);
                if self.passes(host, to, path) {
                    let at = self.delay();
                    self.queue.push(at, Event::Question { from: host, to, path, asked_ns, life, knock });
                }
            }
            // The node makes questions of these.
            NodeEvent::Act(Action::Probe { .. } | Action::Knock { .. } | Action::AskOthers { .. }) => {}
            NodeEvent::Act(Action::Restarts { node, incarnation }) => {
                let back_ms = self.back_ms.get(&(node, incarnation)).copied().unwrap_or(0);
                let by_ns = self.now + u64::from(back_ms) * 1_000_000;
                self.hosts[host].back_by_ns.insert((node, incarnation), by_ns);
            }
            NodeEvent::Act(Action::TimeoutChanged { .. })
            | NodeEvent::Updated { .. }
            | NodeEvent::Interest { .. }
            | NodeEvent::Maintenance { .. }
            | NodeEvent::Keys { .. }
            | NodeEvent::Whole { .. }
            | NodeEvent::Announced { .. }
            | NodeEvent::Margin { .. }
            | NodeEvent::Fenced { .. }
            // No majority keeps a fence open here.
            | NodeEvent::Refuted { .. }
            | NodeEvent::Mistaken { .. }
            | NodeEvent::Multicast { .. }
            | NodeEvent::Forgotten { .. } => {}
            NodeEvent::GivenUp { incarnation, .. } => self.given_up(host, incarnation),
            NodeEvent::Fence(step) => self.move_gates(host, step),
            NodeEvent::NameClash { .. } => self.breaks("introduced-once", "a name clash of hosts with different names"),
        }
    }

    /// A verdict of this host's node.
    fn hears(&mut self, host: usize, verdict: &Verdict) {
        let of = self.index(verdict.node);
        self.note(|| {
            let machine = (verdict.app, verdict.code, verdict.confirms);
            format!("host {}: host {} {} {machine:?} {:?}", host + 1, of + 1, verdict.cause, verdict.ended_apps)
        });
        self.judge_fence(host, of, verdict);
        let back_by_ns = self.hosts[host].back_by_ns.get(&(verdict.node, verdict.incarnation)).copied();
        let is_of_silence = matches!(verdict.cause, Cause::Left | Cause::AgentLost | Cause::SilentHost);
        if verdict.app == 0 && is_of_silence && back_by_ns.is_some_and(|by| self.now < by) {
            let what = format!("host {}: {} of host {}, which is started again", host + 1, verdict.cause, of + 1);
            self.breaks("restarts-quietly", what);
        }
        let Some(replica) = self.hosts[host].node.as_ref().and_then(|node| node.directory().replica(verdict.node)) else {
            if verdict.node != self.hosts[host].id {
                self.breaks("introduced-once", format!("host {}: {} of a host that is not known", host + 1, verdict.cause));
            }
            return;
        };
        let pid = |row: u32| match replica.get(row) {
            Some(Content::Process(process)) => Some(process.instance.pid),
            _ => None,
        };
        let silent: Vec<u32> = verdict.ended_apps.iter().filter_map(|row| pid(*row)).collect();
        let ended = pid(verdict.app).filter(|_| verdict.app != 0 && verdict.cause.ends_process());
        for pid in silent {
            self.hosts[host].app.entry(pid).and_modify(|heard| {
                if *heard == Heard::Runs {
                    *heard = Heard::Silent;
                }
            });
        }
        if let Some(pid) = ended {
            let state = State { cause: verdict.cause, code: verdict.code, ..State::running(0) };
            self.ended(host, pid, &state, true);
        }
    }

    // ------------------------------------------------------------------ reports and fences

    fn report(&mut self, host: usize, life: u32) {
        let (now, h) = (self.now, &mut self.hosts[host]);
        if h.life != life || h.agent != AgentState::Runs {
            return;
        }
        if let Some(node) = &mut h.node {
            node.report(now);
        }
        self.queue.push(now + REPORT_NS, Event::Report { host, life });
        self.after_node(host);
    }

    fn send_reports(&mut self, host: usize) {
        loop {
            let mut body = std::mem::take(&mut self.body);
            let h = &mut self.hosts[host];
            let (table, ids) = (&h.table, &self.ids);
            let heard = |node: u32, path: usize| {
                let row = ids.get(&node).map_or_else(Default::default, |at| table[*at].rows[path]);
                Arrived { number: row.last_number, arrived_ns: row.last_arrival_ns, ..Arrived::default() }
            };
            let is_one = h.node.as_mut().is_some_and(|node| node.poll_report(self.now, heard, &mut body));
            let frame = is_one.then(|| self.frame_of(host, Kind::PathReport, body.clone()));
            self.body = body;
            let Some(frame) = frame else { return };
            self.send(To::Everybody, frame);
        }
    }

    /// A new agent has a fence; if it finds its gates closed, it begins fenced.
    fn begin_fence(&mut self, host: usize) {
        let (now, known) = (self.now, self.hosts.iter().map(|h| h.id).collect::<Vec<_>>());
        let h = &mut self.hosts[host];
        let config = fence::Config {
            timeout_ns: FENCE_NS,
            margin_ns: PERIOD_NS,
            drift_ppm: 0,
            mode: FenceMode::Acknowledged(Confirmers::All),
            paths: Paths::Both,
            configured: [true; PATHS],
        };
        h.gates.look(now);
        let mut fence = HostFence::new(config, true, h.incarnation);
        match h.gates {
            Gates::Closed => fence.close(FencedWhy::FormerLife, now),
            Gates::Open { valid_ns } => fence.inherit(valid_ns, now),
            Gates::NotArmed => {}
        }
        let (is_closed, id) = (fence.closed().is_some(), h.id);
        if let Some(node) = &mut h.node {
            node.set_fence(fence);
            node.expect_members(known.into_iter().filter(|node| *node != id));
        }
        if is_closed {
            self.fenced(host);
        }
    }

    /// A host that is fenced does not call itself alive.
    fn check_gates(&mut self, host: usize) {
        let (now, h) = (self.now, &mut self.hosts[host]);
        h.gates.look(now);
        let Some(fence) = h.node.as_mut().and_then(Node::fence_mut) else { return };
        if h.gates == Gates::Closed && fence.closed().is_none() {
            fence.close(FencedWhy::RanOut, now);
            self.fenced(host);
        }
    }

    /// A heartbeat of this number left.
    fn beat_left(&mut self, host: usize, number: u64) {
        let (now, h) = (self.now, &mut self.hosts[host]);
        let Some(fence) = h.node.as_mut().and_then(Node::fence_mut) else { return };
        fence.sent(number, now, number, [true; PATHS]);
        let step = fence.alone(now);
        self.move_gates(host, step);
    }

    fn move_gates(&mut self, host: usize, step: Step) {
        let now = self.now;
        match step {
            Step::Nothing => {}
            Step::MayReopen => self.reopen(host),
            Step::Close(_) => {
                if self.neglect != Some(Neglect::Gates) {
                    self.hosts[host].gates = Gates::Closed;
                }
                self.fenced(host);
            }
            Step::Extend { extension, first } => {
                let h = &mut self.hosts[host];
                let valid_ns = if self.neglect == Some(Neglect::Gates) { u64::MAX } else { extension.valid_ns };
                if !h.gates.extend(extension.known_ns, valid_ns) {
                    return self.check_gates(host);
                }
                self.rely(host);
                if first {
                    let promise =
                        Some(FencePromise { timeout_ns: FENCE_NS, mode: FenceMode::Acknowledged(Confirmers::All), host: true });
                    let Content::Host(facts) = host::facts(host, u128::from(self.hosts[host].boot), now) else { return };
                    self.put(host, HOST_ROW, Content::Host(fide_wire::frame::table::Host { fence: promise, ..facts }));
                }
            }
        }
    }

    /// The gates are open because those who live have confirmed that.
    fn rely(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        let is_live = |agent: &&(usize, u32)| {
            let id = self.ids.iter().find(|(_, at)| **at == agent.0).map(|(id, _)| *id);
            let state = id.and_then(|id| h.node.as_ref()?.detector().state(id));
            matches!(state, Some(HostState::Alive | HostState::Late))
        };
        h.relied_on = h.confirmed_by.iter().filter(is_live).copied().collect();
    }

    /// Others hear this host behind its closed gates.
    fn reopen(&mut self, host: usize) {
        let now = self.now;
        let Some(fence) = self.hosts[host].node.as_ref().and_then(Node::fence) else { return };
        if fence.may_reopen_until(now).is_some() && !fence.is_recovering() {
            self.begin_incarnation(host);
        }
        let h = &mut self.hosts[host];
        if let Some(valid_ns) = h.node.as_mut().and_then(|node| node.reopen_fence(now)) {
            h.gates = Gates::Open { valid_ns };
            self.rely(host);
            self.note(|| format!("host {} opens again", host + 1));
        }
    }

    /// An operator opens it some time later.
    fn fenced(&mut self, host: usize) {
        self.note(|| format!("host {} is fenced", host + 1));
        self.totals.fenced += 1;
        let (at, boot) = (self.now + 4 * PERIOD_NS + self.rng.below(30 * PERIOD_NS), self.hosts[host].boot);
        self.queue.push(at, Event::Recover { host, boot });
    }

    fn recover(&mut self, host: usize, boot: u32) {
        let (now, h) = (self.now, &self.hosts[host]);
        if h.boot != boot || !h.up || (h.agent == AgentState::Runs && !h.is_fenced()) {
            return;
        }
        if h.agent != AgentState::Runs {
            return self.queue.push(now + 4 * PERIOD_NS, Event::Recover { host, boot });
        }
        self.begin_incarnation(host);
        let h = &mut self.hosts[host];
        // What ran behind the gates as they were has begun anew.
        (h.confirmed_by, h.relied_on) = Default::default();
        if let Some(valid_ns) = h.node.as_mut().and_then(|node| node.recover_fence(now)) {
            h.gates = Gates::Open { valid_ns };
        }
        self.note(|| format!("host {} is to open", host + 1));
        self.after_node(host);
    }

    /// Who has said that a heartbeat of this incarnation came.
    fn note_confirmations(&mut self, host: usize, frame: &Frame) {
        let (id, incarnation) = (self.hosts[host].id, self.hosts[host].incarnation);
        let confirms = |entry: ReportEntry| entry.node == id && entry.incarnation == incarnation && entry.last_number > 0;
        let of = &self.hosts[frame.from];
        if of.incarnation == frame.header.incarnation && ReportEntry::read_all(&frame.body).any(confirms) {
            let agent = (frame.from, of.life);
            self.hosts[host].confirmed_by.insert(agent);
        }
    }

    /// A host is called silent: by somebody who knows what it promised, and on whom it counts.
    fn judge_fence(&mut self, host: usize, of: usize, verdict: &Verdict) {
        let agent = (host, self.hosts[host].life);
        let is_relied = verdict.evidence.fence.is_some() && self.hosts.get(of).is_some_and(|of| of.relied_on.contains(&agent));
        if verdict.cause != Cause::SilentHost || verdict.app != 0 || !is_relied {
            return;
        }
        self.totals.relied += 1;
        let gates = self.hosts[of].gates;
        // A clean stop takes the fence away, and says so: whoever does not hear that is not protected (docs/fence.md).
        if self.hosts[of].up && gates != Gates::NotArmed && gates.pass(self.now) {
            self.breaks("fence-kept", format!("host {} calls host {} silent, whose gates are {gates:?}", host + 1, of + 1));
        }
    }

    // ------------------------------------------------------------------ applications

    fn runs(&mut self, host: usize, pid: u32) {
        match self.hosts[host].app.insert(pid, Heard::Runs) {
            None | Some(Heard::Runs | Heard::Silent) => {}
            Some(before) => self.breaks("accuracy", format!("host {}: process {pid} runs again, it was {before:?}", host + 1)),
        }
    }

    /// An application is told, or (not `live`) has asked its new agent.
    fn ended(&mut self, host: usize, pid: u32, state: &State, live: bool) {
        let (cause, code) = (state.cause, state.code);
        let Some(truth) = self.truths.get(&pid) else { return };
        let is_unknown = cause == Cause::Exited && code == -1 || cause == Cause::Left;
        let is_right = match (cause, truth.ended) {
            (Cause::Doomed, _) => truth.is_doomed,
            (_, None) => {
                self.breaks("accuracy", format!("host {} is told that process {pid} ended ({cause}), and it runs", host + 1));
                return;
            }
            (_, Some(ended)) => ended == (cause, code) || (is_unknown && truth.is_unseen),
        };
        if !is_right {
            let ended = truth.ended;
            let what = format!("host {} is told that process {pid} ended by {cause} {code}, it did by {ended:?}", host + 1);
            return self.breaks("right-cause", what);
        }
        let life = self.hosts[host].life;
        let next = if cause == Cause::Doomed { Heard::Doomed } else { Heard::Ended { cause, code, life } };
        match self.hosts[host].app.insert(pid, next) {
            Some(Heard::Runs | Heard::Silent) if next == Heard::Doomed => {}
            Some(Heard::Runs | Heard::Silent | Heard::Doomed) if next != Heard::Doomed => {
                self.totals.told += 1;
                self.totals.unseen += u64::from(is_unknown);
            }
            // It ended before this application had heard of it.
            None => {}
            Some(before) => {
                self.hosts[host].app.insert(pid, before);
                // What was told by the agent before is known by its identity.
                let again = match before {
                    Heard::Ended { life: then, .. } => live && then == life,
                    _ => live && next != Heard::Doomed,
                };
                if again {
                    self.breaks(
                        "told-once",
                        format!("host {} is told {cause} {code} of process {pid}, after {before:?}", host + 1),
                    );
                }
            }
        }
    }

    /// An application whose agent is new asks what became of those that ran.
    fn ask(&mut self, host: usize) {
        for pid in self.hosts[host].asks.clone() {
            let Some(truth) = self.truths.get(&pid) else { continue };
            let of = self.hosts[truth.host].id;
            let Some(node) = &self.hosts[host].node else { return };
            let Ok(became) = node.became(of, instance(pid), &format!("p{pid}")) else { continue };
            self.hosts[host].asks.remove(&pid);
            let unknown = State { cause: Cause::Exited, code: -1, ..State::running(0) };
            match became {
                Some(state) if !state.cause.ends_process() => self.runs(host, pid),
                Some(state) => self.ended(host, pid, &state, false),
                None => self.ended(host, pid, &unknown, false),
            }
        }
    }

    // ------------------------------------------------------------------ the end

    /// Whether the world is over: everything has healed, or it took too long.
    fn look(&mut self) -> bool {
        let Some(missing) = self.missing() else {
            for truth in self.truths.iter().filter(|(_, truth)| truth.ended.is_some()) {
                let others = self.hosts.iter().enumerate().filter(|(host, _)| *host != truth.1.host);
                self.totals.unheard += others.filter(|(_, host)| !host.app.contains_key(truth.0)).count() as u64;
            }
            return true;
        };
        if self.now > self.over_ns + HEAL_NS {
            self.breaks("completeness", missing);
            return false;
        }
        self.queue.push(self.now + 8 * PERIOD_NS, Event::Look);
        false
    }

    /// What some host does not know yet.
    fn missing(&self) -> Option<String> {
        let living = || self.hosts.iter().enumerate().filter(|(_, host)| host.up || self.over_ns < u64::MAX - HEAL_NS);
        for (h, host) in living() {
            let Some(node) = host.node.as_ref().filter(|_| host.agent == AgentState::Runs) else {
                return Some(format!("the agent of host {} does not run", h + 1));
            };
            for (o, other) in living().filter(|(o, _)| *o != h) {
                let known = (node.detector().state(other.id), node.directory().incarnation(other.id));
                if known != (Some(HostState::Alive), Some(other.incarnation)) {
                    return Some(format!("host {} has host {} for {known:?}, it is {}", h + 1, o + 1, other.incarnation));
                }
            }
            for (pid, truth) in self.truths.iter().filter(|(_, truth)| truth.host != h && self.hosts[truth.host].up) {
                let heard = host.app.get(pid);
                let is_known = match (truth.ended, heard) {
                    (None, Some(Heard::Runs)) => !truth.is_doomed,
                    (None, Some(Heard::Doomed)) => truth.is_doomed,
                    (None, _) => false,
                    (Some(_), heard) => matches!(heard, None | Some(Heard::Ended { .. })),
                };
                if !is_known {
                    let (of, ended) = (truth.host + 1, truth.ended);
                    return Some(format!("host {} has process {pid} of host {of} for {heard:?}, it ended by {ended:?}", h + 1));
                }
            }
        }
        None
    }
}

/// A row as it was before its process ended.
fn running(row: Row) -> Row {
    match row.content {
        Content::Process(process) => {
            let state = State::running(process.state.event_ns);
            Row { content: Content::Process(Process { state, ..process }), ..row }
        }
        content => Row { content, ..row },
    }
}
