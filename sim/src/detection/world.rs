//! Virtual time, two networks, and the loop of every agent.

use super::faults::{self, Fault};
use super::fenced::{self, Fenced};
use super::host::*;
use super::judge::{Judge, Waiting};
use super::nic::Flow;
use super::questions::{Asked, Surroundings};
use super::{Barriers, Neglect, Profile, Totals};
use crate::gates::Gates;
use crate::groups::cluster::{Cluster, Happening};
use crate::host::Slot;
use crate::invariants::Violation;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::time::US;
use fide_proto::detector::Action;
use fide_proto::node::calibration::Breach;
use fide_proto::node::fence::{HostFence, Step};
use fide_proto::node::machine::contracts::Jitter;
use fide_proto::node::machine::reports::Heard;
use fide_proto::node::machine::{self, Came};
use fide_proto::node::table::owner::To;
use fide_wire::PATHS;
use fide_wire::frame::table::{Change, State};
use fide_wire::frame::{Header, Kind};
use fide_wire::verdict::{Cause, FencedWhy, Grade};
use std::rc::Rc;

/// When the faults stop being started; the last of them end 40 ms later.
pub(crate) const FAULTS_END: u64 = 60 * MS;
/// Behind them everything heals. A host that could not be asked who it is for 40 ms is asked again
/// up to 80 ms later.
const END: u64 = FAULTS_END + 40 * MS + 100 * MS;
/// How often an agent reports what arrives.
const REPORT_NS: u64 = 5 * MS;

pub(crate) enum Event {
    Deliver {
        to: usize,
        packet: Packet,
    },
    Wake {
        host: usize,
    },
    Fault(Fault),
    Question(Asked),
    Answer(Asked),
    AppDies {
        host: usize,
        boot: u32,
        app: usize,
    },
    HealPath {
        host: usize,
        path: usize,
    },
    HealHost {
        host: usize,
    },
    /// The second cable goes.
    Sever {
        host: usize,
        path: usize,
    },
    HealLoss,
    /// An operator opens all fences that are closed.
    OpenFences,
    StartAgent {
        host: usize,
        boot: u32,
    },
    Boot {
        host: usize,
    },
    /// Of groups.
    Groups(Happening),
}

/// What befalls copies on both paths.
#[derive(Clone, Copy, Default)]
pub(crate) struct Trouble {
    /// Until when.
    pub until: u64,
    /// So many percent come twice.
    pub doubled: u64,
    /// So many are lost.
    pub lost: u64,
    /// So many are later than they should be, by up to so much.
    pub late: (u64, u64),
}

pub(crate) struct World {
    pub now: u64,
    pub hosts: Vec<Host>,
    pub(super) judge: Judge,
    pub packets: u64,
    pub(super) barriers: Barriers,
    pub(super) neglect: Option<Neglect>,
    pub rng: Rng,
    pub queue: Queue<Event>,
    pub bad_path: usize,
    pub trouble: Trouble,
    pub(super) around: Surroundings,
    /// Until when nothing passes between these hosts and the others.
    pub apart: (u64, Vec<bool>),
    /// Their fences, where they are judged.
    pub(super) fenced: Option<Box<Fenced>>,
    /// Groups that run on these hosts; silences are not judged then.
    pub groups: Option<Box<Cluster>>,
    loss_percent: u64,
    /// The host whose bad path holds up packets, whether it is those it sends, and until when.
    held: (usize, bool, u64),
    /// Until when a host holds up whatever it receives.
    deaf_until: Vec<u64>,
    /// Until when, and how many percent, a host's interfaces lose of what it receives.
    overrun: Vec<(u64, u64)>,
    /// Until when a host receives nothing of another: `receiver · hosts + sender`.
    deaf_to: Vec<u64>,
    /// Until when a host receives by path nothing of what is sent to everybody.
    undelivered: Vec<[u64; PATHS]>,
    /// How many cuts of each kind are in force on each host.
    cuts: Vec<[u32; PATHS]>,
}

impl World {
    pub(crate) fn new(seed: u64, profile: Profile, neglect: Option<Neglect>, verbose: bool) -> Self {
        let mut rng = Rng::new(seed ^ (profile as u64) << 56);
        let n = 2 + rng.below(5) as usize;
        let apps = if profile == Profile::Storms { 80 } else { 4 };
        let bad_path = faults::bad_path(&mut rng);
        let plan = faults::plan(&mut rng, profile, n);
        if verbose {
            println!("{n} hosts, bad path {bad_path}, {plan:#?}");
        }
        let mut world = Self::bare(rng, n, bad_path, neglect, verbose);
        // Of numbers of their own, so that faults are the same whatever surrounds the hosts.
        world.surround(&mut Rng::new(!seed));
        world.fenced = Fenced::new(profile, &mut Rng::new(seed.rotate_left(17)), n);
        if world.fenced.is_some() {
            world.plan_recoveries();
        }
        for h in 0..n {
            world.boot(h, apps);
        }
        for (at, fault) in plan {
            world.at(at, Event::Fault(fault));
        }
        world
    }

    /// Hosts that are not booted yet.
    pub(crate) fn bare(rng: Rng, n: usize, bad_path: usize, neglect: Option<Neglect>, verbose: bool) -> Self {
        Self {
            now: MS,
            hosts: (0..n).map(Host::new).collect(),
            judge: Judge::new(n, verbose),
            packets: 0,
            barriers: Barriers::default(),
            neglect,
            rng,
            queue: Queue::new(),
            bad_path,
            trouble: Trouble::default(),
            around: Surroundings::default(),
            apart: (0, vec![false; n]),
            fenced: None,
            groups: None,
            loss_percent: 0,
            held: (0, false, 0),
            deaf_until: vec![0; n],
            overrun: vec![(0, 0); n],
            deaf_to: vec![0; n * n],
            undelivered: vec![[0; PATHS]; n],
            cuts: vec![[0; PATHS]; n],
        }
    }

    pub(crate) fn run(&mut self) -> Result<Totals, Violation> {
        while let Some((at, event)) = self.queue.pop() {
            if at > if self.fenced.is_some() { fenced::END } else { END } {
                break;
            }
            self.now = self.now.max(at);
            self.handle(event);
            if let Some(violation) = self.judge.violation() {
                return Err(violation);
            }
        }
        let fences = self.fenced_at_the_end()?;
        if fences.is_none() {
            self.judge.at_the_end(&self.hosts, self.now);
        }
        let fences = fences.unwrap_or_default();
        let Judge { verdicts, open, .. } = self.judge;
        let totals = Totals { verdicts, packets: self.packets, ended_ns: self.now, barriers: self.barriers, open, fences };
        self.judge.violation().map_or(Ok(totals), Err)
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.queue.push(at, event);
    }

    pub(crate) fn wake(&mut self, host: usize, at: u64) {
        let at = at.max(self.now + 1);
        if at < self.hosts[host].next_wake {
            self.hosts[host].next_wake = at;
            self.at(at, Event::Wake { host });
        }
    }

    pub(crate) fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Deliver { to, packet } => {
                let queue = self.hosts[to].nics[packet.path].queue_of(Flow::Lane(packet.node));
                if let Some(until) = self.frozen(to) {
                    self.at(until, Event::Deliver { to, packet });
                } else if let Some(until) = self.held(to, packet.path, queue) {
                    if matches!(packet.body, Body::Heartbeat { .. }) {
                        let Packet { node, incarnation, path, .. } = packet;
                        self.judge.waits(Waiting { at: to, path, node, incarnation, came_ns: now, until_ns: until });
                    }
                    self.at(until, Event::Deliver { to, packet });
                } else if self.overruns(to, packet.path)
                    || self.fenced.as_ref().is_some_and(|fenced| fenced.filtered_until[to] > now)
                {
                } else if self.hosts[to].up && self.hosts[to].agent.is_some() && self.hosts[to].receive(packet, queue, now) {
                    let soon = now + 5 * US + self.rng.below(SENDER_LATE_NS);
                    self.wake(to, soon);
                }
            }
            Event::Wake { host } => {
                if self.hosts[host].next_wake == now {
                    self.hosts[host].next_wake = u64::MAX;
                    self.turn(host);
                }
            }
            Event::Question(asked) => self.question_came(asked),
            Event::Answer(asked) => self.answer_came(asked),
            Event::AppDies { host, boot, app } => {
                if let Some(until) = self.frozen(host) {
                    self.at(until, Event::AppDies { host, boot, app });
                } else if self.hosts[host].boot == boot && !self.hosts[host].apps[app].dead {
                    let h = &mut self.hosts[host];
                    h.apps[app].dead = true;
                    h.apps[app].doomed_at.get_or_insert(now);
                    h.ring.push_back(RingItem::Exit { app, cause: Cause::Killed, event_ns: now });
                    self.wake(host, now + 10 * US);
                }
            }
            Event::HealPath { host, path } => self.cut(host, &[path], false, true),
            Event::HealHost { host } => {
                self.judge.end(host, now, "cut");
                self.cut(host, &[0, 1], false, true);
            }
            Event::Sever { host, path } => self.cut(host, &[path], true, false),
            Event::HealLoss => self.loss_percent = 0,
            Event::OpenFences => self.open_fences(),
            Event::StartAgent { host, boot } => {
                if self.hosts[host].boot == boot && self.hosts[host].up && self.hosts[host].agent.is_none() {
                    self.start_agent(host);
                }
            }
            Event::Boot { host } => {
                if !self.hosts[host].up {
                    self.boot(host, 4);
                }
            }
            Event::Fault(fault) => self.fault(fault),
            Event::Groups(happening) => self.groups_happen(happening),
        }
    }

    pub(crate) fn boot(&mut self, host: usize, apps: usize) {
        let h = &mut self.hosts[host];
        h.up = true;
        h.boot += 1;
        h.gates = Gates::default();
        h.apps = (0..apps).map(|_| App { doomed_at: None, dead: false, numbers: Default::default() }).collect();
        self.start_agent(host);
    }

    pub(crate) fn start_agent(&mut self, host: usize) {
        let now = self.now;
        self.hosts[host].start_agent(now);
        self.hosts[host].stuck_until = 0;
        if let Some(mut agent) = self.hosts[host].agent.take() {
            self.look_around(host, &mut agent);
            if self.fenced.is_some() {
                self.begin_fence(host, &mut agent);
            }
            self.hosts[host].agent = Some(agent);
        }
        self.begin_groups(host);
        self.judge.begins(host, self.hosts[host].incarnation, now);
        self.hosts[host].next_wake = u64::MAX;
        let soon = now + self.rng.below(MS);
        self.wake(host, soon);
    }

    pub(crate) fn end_agent(&mut self, host: usize) {
        self.groups_end(host);
        self.hosts[host].agent = None;
        self.judge.agent_ended(host, self.hosts[host].incarnation, self.now);
    }

    pub(crate) fn frozen(&self, host: usize) -> Option<u64> {
        Some(self.hosts[host].frozen_until).filter(|&until| until > self.now)
    }

    /// Until when what this host receives on a path, by this queue, waits.
    pub(super) fn held(&self, host: usize, path: usize, queue: u32) -> Option<u64> {
        let until = self.deaf_until[host].max(self.hosts[host].nics[path].held_until(queue));
        Some(until.max(self.held_on(host, path, false))).filter(|until| *until > self.now)
    }

    fn held_on(&self, host: usize, path: usize, sending: bool) -> u64 {
        let (who, what, until) = self.held;
        if (who, self.bad_path, what) == (host, path, sending) { until } else { 0 }
    }

    /// Whether this packet is lost at the interface of its receiver, which counts it.
    pub(super) fn overruns(&mut self, host: usize, path: usize) -> bool {
        let (until, percent) = self.overrun[host];
        let lost = until > self.now && self.rng.chance(percent);
        self.hosts[host].nic_drops[path] += u64::from(lost);
        lost
    }

    fn cut(&mut self, host: usize, paths: &[usize], down: bool, carrier: bool) {
        for &p in paths {
            let n = &mut self.cuts[host][p];
            *n = if down { *n + 1 } else { *n - 1 };
            let is_cut = *n > 0;
            let h = &mut self.hosts[host];
            let changed = h.cut[p] != is_cut;
            h.cut[p] = is_cut;
            h.is_unplugged[p] = is_cut && carrier;
            if changed && carrier && h.agent.is_some() {
                h.ring.push_back(RingItem::Carrier { path: p, up: !is_cut });
                let now = self.now;
                self.wake(host, now + 20 * US);
            }
        }
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        let now = self.now;
        match fault {
            Fault::KillApp { host, app, doomed } => self.kill_app(host, app, doomed),
            Fault::KillApps { host } => {
                for app in 0..self.hosts[host].apps.len() {
                    let doomed = self.rng.chance(70);
                    self.kill_app(host, app, doomed);
                }
            }
            Fault::KillAgent { host, back_after } => {
                if self.hosts[host].agent.is_some() && self.frozen(host).is_none() {
                    self.end_agent(host);
                    let boot = self.hosts[host].boot;
                    if let Some(after) = back_after {
                        self.at(now + after, Event::StartAgent { host, boot });
                    }
                }
            }
            Fault::LeaveAgent { host, back_after } => {
                let asleep = self.frozen(host).is_some() || self.hosts[host].stuck_until > now;
                if asleep {
                    return;
                }
                if let Some(mut agent) = self.hosts[host].agent.take() {
                    self.judge.leaving(host, self.hosts[host].incarnation, now);
                    agent.version += 1;
                    self.groups_leave(host, &mut agent);
                    agent.node.leave(agent.version, 0, now);
                    // Three copies on each path before it ends.
                    for (to, frame) in self.frames(host, &mut agent) {
                        (0..3).for_each(|_| self.broadcast(host, to, &[true; PATHS], &frame));
                    }
                    self.hosts[host].agent = Some(agent);
                    self.end_agent(host);
                    let boot = self.hosts[host].boot;
                    self.at(now + back_after, Event::StartAgent { host, boot });
                }
            }
            Fault::StickAgent { host, ns } => {
                if self.hosts[host].agent.is_some() {
                    self.hosts[host].stuck_until = self.hosts[host].stuck_until.max(now + ns);
                    self.judge.began(host, now, now + ns, "stuck");
                }
            }
            Fault::CrashHost { host, back_after } => {
                if self.hosts[host].up && self.frozen(host).is_none() {
                    self.end_agent(host);
                    let h = &mut self.hosts[host];
                    h.up = false;
                    h.boot += 1;
                    self.judge.host_crashed(host, h.incarnation, now);
                    if let Some(after) = back_after {
                        self.at(now + after, Event::Boot { host });
                    }
                }
            }
            Fault::FreezeHost { host, ns } => {
                if self.hosts[host].up {
                    self.hosts[host].frozen_until = self.hosts[host].frozen_until.max(now + ns);
                    // Thawed, its kernel gets to what has come meanwhile a little later than its agent to the clock.
                    let until = self.hosts[host].frozen_until + self.rng.below(200 * US);
                    self.deaf_until[host] = self.deaf_until[host].max(until);
                    self.judge.began(host, now, now + ns, "frozen");
                }
            }
            other => self.network_fault(other),
        }
    }

    /// What befalls cables and interfaces.
    fn network_fault(&mut self, fault: Fault) {
        let now = self.now;
        match fault {
            Fault::CutPath { host, ns, carrier } => {
                let path = self.bad_path;
                self.judge.path_fault(now, now + ns);
                self.cut(host, &[path], true, carrier);
                self.at(now + ns, Event::HealPath { host, path });
            }
            Fault::LosePath { percent, ns } => {
                self.judge.path_fault(now, now + ns);
                self.loss_percent = percent;
                self.at(now + ns, Event::HealLoss);
            }
            // Not one after another, nor after a fault: together they would outlast the patience with a path.
            Fault::HoldPath { host, ns, sending } if self.may_hold() => {
                self.held = (host, sending, now + ns);
            }
            Fault::HoldHost { host, ns } if now > self.deaf_until[host] + 3 * MS => {
                self.deaf_until[host] = now + ns;
                self.judge.began(host, now, now + ns, "deaf");
            }
            // As above: what waits on both paths must not outlast the patience with one of them.
            Fault::HoldQueues { host, of, ns } if self.may_hold() => {
                let flow = Flow::Lane(self.hosts[of].node);
                for nic in &mut self.hosts[host].nics {
                    nic.hold(nic.queue_of(flow), now + ns);
                }
                self.judge.began(host, now, now + ns, "queue");
            }
            Fault::Deafen { pairs, ns } => {
                let hosts = self.hosts.len();
                for place in (0..hosts * hosts).filter(|place| pairs & 1 << place != 0) {
                    self.deaf_to[place] = self.deaf_to[place].max(now + ns);
                    self.judge.deafened(place / hosts, place % hosts, now, now + ns);
                }
            }
            Fault::Filter { host, ns } => {
                if let Some(fenced) = &mut self.fenced {
                    fenced.filtered_until[host] = fenced.filtered_until[host].max(now + ns);
                }
                self.judge.began(host, now, now + ns, "filtered");
            }
            Fault::Undeliver { hosts, path, ns } => {
                for host in (0..self.hosts.len()).filter(|host| hosts & 1 << host != 0) {
                    (0..PATHS).filter(|at| path.is_none_or(|path| path == *at)).for_each(|at| {
                        self.undelivered[host][at] = self.undelivered[host][at].max(now + ns);
                    });
                    self.judge.began(host, now, now + ns, "undelivered");
                }
            }
            Fault::OverrunHost { host, percent, ns } => {
                self.judge.began(host, now, now + ns, "overrun");
                self.overrun[host] = (now + ns, percent);
            }
            Fault::SeverHost { host, gap_ns, busy_ns, ns } => {
                let first = self.bad_path;
                self.judge.path_fault(now, now + ns);
                self.judge.began(host, now, now + ns, "cut");
                self.hosts[host].busy_ns = busy_ns;
                self.hosts[host].busy_until = now + ns;
                self.cut(host, &[first], true, false);
                self.at(now + gap_ns, Event::Sever { host, path: 1 - first });
                self.at(now + ns, Event::HealHost { host });
            }
            Fault::CutHost { host, ns, carrier } => {
                self.judge.path_fault(now, now + ns);
                self.judge.began(host, now, now + ns, "cut");
                self.cut(host, &[0, 1], true, carrier);
                self.at(now + ns, Event::HealHost { host });
            }
            _ => {} // of hosts and agents, or too soon
        }
    }

    /// Whether packets of one path may begin to wait: nothing does, nor did a moment ago, and no
    /// path is faulty.
    fn may_hold(&self) -> bool {
        let of_queues = self.hosts.iter().map(|h| h.nics[0].held_last()).max().unwrap_or(0);
        self.now > self.held.2.max(of_queues) + 3 * MS && !self.judge.has_path_fault(self.now)
    }

    fn kill_app(&mut self, host: usize, app: usize, doomed: bool) {
        let now = self.now;
        if self.frozen(host).is_some() || !self.hosts[host].up || app >= self.hosts[host].apps.len() {
            return;
        }
        let boot = self.hosts[host].boot;
        if self.hosts[host].apps[app].doomed_at.is_some() {
            return;
        }
        if doomed {
            self.hosts[host].apps[app].doomed_at = Some(now);
            self.hosts[host].ring.push_back(RingItem::Exit { app, cause: Cause::Doomed, event_ns: now });
            self.wake(host, now + 10 * US);
            let after = self.rng.below(3 * MS);
            self.at(now + after, Event::AppDies { host, boot, app });
        } else {
            self.at(now, Event::AppDies { host, boot, app });
        }
    }

    pub(super) fn delay(&mut self) -> u64 {
        let Trouble { until, late: (percent, most), .. } = self.trouble;
        let late = if until > self.now && self.rng.chance(percent) { self.rng.below(most) } else { 0 };
        CONTRACT.lambda_min_ns + self.rng.below(WIRE_JITTER_NS) + late
    }

    /// When a busy host's kernel gets to what arrives at `at`: late, and in the order of arrival.
    pub(super) fn past_the_backlog(&mut self, host: usize, at: u64) -> u64 {
        let (busy_ns, until) = (self.hosts[host].busy_ns, self.hosts[host].busy_until);
        if at >= until {
            return at;
        }
        let late = self.rng.below(busy_ns);
        let h = &mut self.hosts[host];
        h.backlog_until = h.backlog_until.max(at + late).min(at.max(h.backlog_until) + busy_ns);
        h.backlog_until
    }

    /// Whether what a kernel sends arrives.
    pub(super) fn passes(&mut self, from: usize, to: usize, path: usize) -> bool {
        self.hosts[from].gates.look(self.now);
        let arrives = self.arrives(from, to, path);
        self.hosts[from].gates.pass(self.now) && arrives
    }

    /// Whether what has passed the gates arrives.
    fn arrives(&mut self, from: usize, to: usize, path: usize) -> bool {
        let lost = path == self.bad_path && self.loss_percent > 0 && self.rng.below(100) < self.loss_percent;
        let lost = lost || self.trouble.until > self.now && self.rng.chance(self.trouble.lost);
        let (until, side) = &self.apart;
        if *until > self.now && side[from] != side[to] {
            return false;
        }
        if self.deaf_to[to * self.hosts.len() + from] > self.now {
            return false;
        }
        !self.hosts[from].cut[path] && !lost && !self.hosts[to].cut[path]
    }

    /// What the node of an agent wants sent.
    pub(crate) fn frames(&mut self, host: usize, agent: &mut Agent) -> Vec<(To, Body)> {
        let (mut frames, mut body) = (Vec::new(), Vec::new());
        let (now, rng) = (self.now, &mut self.rng);
        while let Some(transmit) = agent.node.poll_transmit(now, agent.numbers, || rng.bits(), &mut body) {
            agent.numbers.others += 1;
            let (number, kind) = (agent.numbers.others, transmit.kind);
            frames.push((transmit.to, Body::Frame { number, kind, body: body.as_slice().into() }));
        }
        let Host { table, measured, .. } = &self.hosts[host];
        let heard = |node: u32, path: usize| {
            let row = table.get(&node).map_or_else(Default::default, |slot| slot.rows[path]);
            let sent_ns = measured.get(&node).map_or(0, |paths| paths[path].sent_ns);
            let (number, arrived_ns, since_group) = (row.last_number, row.last_arrival_ns, row.since_group);
            Heard { number, arrived_ns, sent_ns, since_group, ..Heard::default() }
        };
        while agent.node.poll_report(now, heard, &mut body) {
            agent.numbers.others += 1;
            let body = body.as_slice().into();
            frames.push((To::Everybody, Body::Frame { number: agent.numbers.others, kind: Kind::PathReport, body }));
        }
        frames
    }

    /// On these paths.
    pub(crate) fn broadcast(&mut self, from: usize, meant: To, paths: &[bool; PATHS], body: &Body) {
        let is_past = self.hosts[from].is_past_gates && body.passes_gates();
        for path in (0..PATHS).filter(|path| paths[*path]) {
            for to in 0..self.hosts.len() {
                let is_meant = matches!(meant, To::Everybody) || meant == To::Node(self.hosts[to].node);
                let by_group = meant == To::Everybody && self.undelivered[to][path] <= self.now;
                let is_copied = || self.hosts[from].copies.contains(&(self.hosts[to].node, path));
                let arrives = by_group || meant != To::Everybody || is_copied();
                let passes = |world: &mut Self| match is_past {
                    true => world.arrives(from, to, path),
                    false => world.passes(from, to, path),
                };
                if to != from && is_meant && arrives && passes(self) {
                    let h = &self.hosts[from];
                    let (node, incarnation) = (h.node, h.incarnation);
                    let doubled = self.trouble.until > self.now && self.rng.chance(self.trouble.doubled);
                    for _ in 0..1 + u32::from(doubled) {
                        let packet = Packet { node, incarnation, path, by_group, sent_ns: self.now, body: body.clone() };
                        let at = self.now + self.delay();
                        let at = self.past_the_backlog(to, at).max(self.held_on(from, path, true));
                        self.packets += 1;
                        self.at(at, Event::Deliver { to, packet });
                    }
                }
            }
        }
    }

    /// One turn of the loop of a host's agent, as `fided` runs it.
    fn turn(&mut self, host: usize) {
        let now = self.now;
        let asleep = self.hosts[host].frozen_until.max(self.hosts[host].stuck_until);
        if asleep > now {
            let at = asleep + self.rng.below(100 * US);
            self.wake(host, at);
            return;
        }
        let Some(mut agent) = self.hosts[host].agent.take() else { return };
        if agent.shell.is_some() {
            return self.turn_with_groups(host, agent);
        }
        let mut send = self.drain_ring(host, &mut agent);
        if agent.restart {
            self.end_agent(host);
            self.start_agent(host);
            return;
        }
        self.check_gates(host, &mut agent);
        if agent.node.poll_heartbeat(now).is_some() {
            agent.numbers.heartbeats += 1;
            let version = agent.node.directory().owner().complete() as u32;
            let items = Rc::default();
            send.push((To::Everybody, Body::Heartbeat { number: agent.numbers.heartbeats, version, items }));
            let number = agent.numbers.heartbeats;
            self.fence_beat(host, &mut agent, number, now);
        }
        send.extend(self.judge_silence(host, &mut agent));
        for (to, body) in send {
            self.broadcast(host, to, &[true; PATHS], &body);
        }
        self.plan_turn(host, agent, None);
    }

    /// Takes what waits for the agent. Gives what is to be sent.
    pub(crate) fn drain_ring(&mut self, host: usize, agent: &mut Agent) -> Vec<(To, Body)> {
        let mut send = Vec::new();
        while let Some(item) = self.hosts[host].ring.pop_front() {
            self.take(host, agent, item, &mut send);
        }
        send
    }

    /// A window is over: what it brought of each host goes into the contracts.
    fn measure(&mut self, host: usize, agent: &mut Agent) {
        let now = self.now;
        let keeps_maximum = self.neglect == Some(Neglect::Maximum);
        for (node, paths) in &mut self.hosts[host].measured {
            for (path, measured) in paths.iter_mut().enumerate() {
                let jitter = Jitter { counters: &measured.counters, max_ns: measured.max_ns, period_ns: CONTRACT.period_ns };
                agent.node.handle_window(*node, path, &jitter, now);
                measured.max_ns = if keeps_maximum { measured.max_ns } else { 0 };
            }
        }
        self.act(host, agent);
        agent.window_ns = now;
    }

    /// What the table of arrivals says, and what comes of it.
    pub(crate) fn judge_silence(&mut self, host: usize, agent: &mut Agent) -> Vec<(To, Body)> {
        let now = self.now;
        if now >= agent.next_report_ns {
            agent.next_report_ns = now + REPORT_NS;
            agent.node.report(now);
        }
        if now >= agent.window_ns + WINDOW_NS {
            self.measure(host, agent);
        }
        for (node, slot) in &self.hosts[host].table {
            agent.node.arrivals(*node, slot.incarnation, &slot.rows);
        }
        // As the agent does: when it matters, and now and then, so that what was lost long ago is no veto.
        if agent.node.detector().is_doubting(now) || agent.next_report_ns == now + REPORT_NS {
            let counted = self.hosts[host].nic_drops;
            let is_neglected = self.neglect == Some(Neglect::Drops);
            for path in (0..PATHS).filter(|p| counted[*p] != agent.drops_seen[*p] && !is_neglected) {
                agent.node.detector_mut().dropped(path, now);
            }
            agent.drops_seen = counted;
        }
        // Its questions are among what its own gates drop: silence says nothing of anybody then.
        if agent.node.fence().is_some_and(HostFence::is_mute) {
            (0..PATHS).for_each(|path| agent.node.detector_mut().dropped(path, now));
        }
        self.take_noted(host, agent);
        agent.node.handle_timeout(now);
        if let Some(copies) = agent.node.poll_copies(now)
            && self.neglect != Some(Neglect::Copies)
        {
            self.hosts[host].copies = copies.to_vec();
        }
        let send = self.frames(host, agent);
        self.act(host, agent);
        self.ask_the_rest(host, agent);
        send
    }

    /// When the next turn is, at `sooner` at the latest.
    pub(crate) fn plan_turn(&mut self, host: usize, agent: Agent, sooner: Option<u64>) {
        let now = self.now;
        let probing = agent.node.probing();
        let more = probing.has_steered().then_some(now);
        let wants = [agent.node.poll_timeout(), probing.poll_timeout(now), more, Some(agent.node.next_heartbeat_ns()), sooner];
        let next = wants.into_iter().flatten().min().unwrap_or(now);
        self.hosts[host].agent = Some(agent);
        let busy = self.hosts[host].busy_ns.min(BUSY_AGENT_NS) * u64::from(now < self.hosts[host].busy_until);
        let at = next.max(now + 1) + self.rng.below(SENDER_LATE_NS + busy);
        self.wake(host, at);
    }

    fn take(&mut self, host: usize, agent: &mut Agent, item: RingItem, send: &mut Vec<(To, Body)>) {
        let now = self.now;
        let h = &mut self.hosts[host];
        match item {
            RingItem::Answer(answer, number) => self.take_answer(host, agent, answer, number),
            RingItem::Carrier { path, up } => agent.node.detector_mut().carrier(path, up, now),
            RingItem::Exit { app, cause, event_ns } => {
                let Some(&row) = h.apps[app].numbers.get(&h.incarnation) else { return };
                agent.version += 1;
                agent.numbers.others += 1;
                let confirms = cause != Cause::Doomed && h.apps[app].doomed_at.is_some_and(|at| at < event_ns);
                let flags = if confirms { State::CONFIRMS } else { 0 };
                let state = State { cause, grade: Grade::Certain, flags, code: 9, event_ns };
                let change = Change { origin: h.node, row, version: agent.version, state };
                let body =
                    Body::Frame { number: agent.numbers.others, kind: Kind::Change, body: change.bytes().as_slice().into() };
                if self.neglect != Some(Neglect::Processes) {
                    self.judge.crash_sent(host, h.incarnation, row, now);
                }
                send.push((To::Everybody, body));
                agent.node.change(&change, now).expect("a process of this table");
            }
            RingItem::Items { node, incarnation, number, items } => {
                self.items_came(host, agent, (node, incarnation), number, &items);
            }
            RingItem::Named { node, incarnation, version } => {
                agent.node.heartbeat(node, incarnation, version, now);
                self.act(host, agent);
            }
            RingItem::Packet(packet, received_ns) => match packet.body {
                Body::Heartbeat { .. } => unreachable!("stays in the table"),
                Body::Frame { kind: Kind::Message, body, .. } => {
                    self.segment_came(host, agent, (packet.node, packet.incarnation), received_ns, &body);
                }
                Body::Copy { sent_ns, body } => {
                    let from = (packet.node, packet.incarnation);
                    self.copy_came(host, agent, from, (packet.path, sent_ns, received_ns), &body);
                }
                Body::Frame { number, kind, body } => {
                    let (sender, incarnation, sent_ns) = (packet.node, packet.incarnation, packet.sent_ns);
                    let header = Header { kind: kind as u8, sender, incarnation, number, sent_ns, ..Header::default() };
                    if kind == Kind::Introduction && self.refuses(host, agent, (sender, incarnation), &body) {
                        return self.act(host, agent);
                    }
                    let came = Came { path: packet.path as u8, received_ns };
                    // What it meant is seen by what follows from it.
                    let _ = agent.node.handle_frame(&header, kind, &body, came, now);
                    self.act(host, agent);
                }
            },
        }
    }

    /// The margin of a contract is used up, or there is some again.
    fn margin(&mut self, host: usize, since_ns: u64, of: (u32, u32, usize), breach: Breach) {
        let (node, incarnation, path) = of;
        let from = self.hosts.iter().position(|h| h.node == node).expect("one of them");
        // What held up packets in the window.
        let is_held = self.held.2 + MS > since_ns && self.bad_path == path;
        let is_late = self.trouble.until + MS > since_ns;
        let own = self.hosts[host].incarnation;
        if self.groups.is_none() && self.fenced.is_none() {
            self.judge.margin((host, own, from, incarnation), path, breach, is_held || is_late, since_ns);
        }
    }

    pub(crate) fn act(&mut self, host: usize, agent: &mut Agent) {
        let now = self.now;
        while let Some(event) = agent.node.poll_event() {
            let action = match event {
                machine::Event::Host { node, incarnation, introduction } => {
                    self.hosts[host].table.insert(node, Slot { incarnation, ..Slot::default() });
                    self.hosts[host].measured.insert(node, Default::default());
                    let first = introduction.host.renewed_from.unwrap_or(incarnation);
                    self.host_lives(agent, node, incarnation, first);
                    continue;
                }
                machine::Event::Runs { node, row, .. } => {
                    let from = self.hosts.iter().position(|h| h.node == node).expect("one of them");
                    let incarnation = agent.node.detector().incarnation(node).expect("it is judged");
                    self.judge.app_seen(host, from, incarnation, row);
                    continue;
                }
                machine::Event::Lost { .. }
                | machine::Event::Updated { .. }
                | machine::Event::Interest { .. }
                | machine::Event::Maintenance { .. }
                | machine::Event::Keys { .. }
                | machine::Event::Whole { .. }
                | machine::Event::Announced { .. } => continue,
                machine::Event::Margin { node, incarnation, path, breach } => {
                    self.margin(host, agent.window_ns, (node, incarnation, path), breach);
                    continue;
                }
                machine::Event::Multicast { .. } => continue,
                machine::Event::Fenced { node, incarnation } => {
                    self.groups_fenced(agent, node, incarnation);
                    self.told_as_fenced(host, node, incarnation);
                    continue;
                }
                machine::Event::GivenUp { incarnation, .. } => {
                    if agent.shell.is_some() || self.fenced.is_some() {
                        self.begin_anew(host, agent, incarnation);
                    } else {
                        agent.restart |= self.neglect != Some(Neglect::GivenUp);
                    }
                    continue;
                }
                machine::Event::Refuted { .. } => {
                    self.told_as_refuted();
                    continue;
                }
                machine::Event::Mistaken { node, incarnation, renews } => {
                    if self.neglect == Some(Neglect::Mistaken) {
                        continue;
                    }
                    self.told_as_mistaken(host, node, incarnation);
                    self.hosts[host].table.remove(&node);
                    self.hosts[host].measured.remove(&node);
                    if let Some(shell) = &mut agent.shell {
                        shell.excluded.remove(&node);
                    }
                    if renews {
                        let own = self.hosts[host].incarnation;
                        self.begin_anew(host, agent, own);
                    }
                    continue;
                }
                machine::Event::Fence(step) => {
                    if step == Step::Close(FencedWhy::GivenUp) {
                        self.shut_by_report(host, Some(agent));
                    }
                    self.move_gates(host, agent, step);
                    continue;
                }
                machine::Event::Forgotten { .. } => panic!("there is room for all"),
                machine::Event::NameClash { .. } => panic!("no two hosts have one name here"),
                machine::Event::Ask(question) => {
                    self.ask(host, agent, question);
                    continue;
                }
                machine::Event::Act(action) => action,
            };
            if let Action::Verdict(v) = &action
                && (v.cause, v.app) == (Cause::Left, 0)
                && let Some(slot) = self.hosts[host].table.get_mut(&v.node)
            {
                slot.left = true;
            }
            match action {
                Action::Verdict(v) if agent.shell.is_some() => self.groups_judge(host, agent, &v),
                Action::Verdict(v) if self.fenced.is_some() => {
                    if v.evidence.fenced && v.app == 0 {
                        self.told_as_fenced(host, v.node, v.incarnation);
                    }
                    self.judge.counts(host, &self.hosts, &v, now);
                }
                Action::Verdict(v) => {
                    for _ in 0..1 + u32::from(self.neglect == Some(Neglect::Twice)) {
                        self.judge.verdict(host, &self.hosts, agent.node.detector(), &v, now);
                    }
                }
                Action::Condemn { node, incarnation } => {
                    if let Some(slot) = self.hosts[host].table.get_mut(&node)
                        && slot.incarnation == incarnation
                    {
                        slot.condemned = true;
                    }
                    self.note_over(host, node, incarnation);
                }
                Action::Restarts { .. } => panic!("nobody says so here"),
                // Whom it is told is the agent's matter.
                Action::TimeoutChanged { .. } => {}
                // The node makes questions of these.
                Action::Probe { .. } | Action::Knock { .. } | Action::AskOthers { .. } => {}
            }
        }
    }
}
