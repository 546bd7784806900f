//! The loop of an agent around its groups: as `agent/src/core/groups.rs` and `core/send.rs` have
//! it.
//!
//! An agent may be stopped at every [`Point`] of a loop iteration, or killed while it is stopped.

use super::Neglect;
use super::clients::Session;
use super::fences;
use crate::detection::host::{Agent, Body, CONTRACT, MS};
use crate::detection::world::World;
use crate::time::US;
use fide_proto::consensus::log::{self, EngineMessage, Setup};
use fide_proto::consensus::policy::Policy;
use fide_proto::consensus::{Engine, Kind as EngineKind};
use fide_proto::detector::{State, Verdict};
use fide_proto::node::table::owner::To;
use fide_proto::services::groups::message::Timing;
use fide_proto::services::groups::{self, Config, Departure, Event, Frame, Groups, Standing};
use fide_proto::services::links;
use fide_wire::PATHS;
use fide_wire::frame::items::{self, Item};
use fide_wire::frame::{BODY_MAX, Channel, Kind};
use fide_wire::verdict::{Cause, Grade};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

const SEGMENTS_AT_ONCE: usize = 8;
const EARLY_NS: u64 = 50 * US;
const RIDES_AT_ONCE: u32 = 12;
const DOUBLED_NS: u64 = 100 * MS;
const DOUBLED_MAX_NS: u64 = 10_000 * MS;
const RAFT_TICK_NS: u64 = 10 * MS;

/// Where an agent may be stopped: before each of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// The iteration begins: was this host silent?
    Hold,
    /// What waits for the agent is read.
    Ring,
    /// What rides on a heartbeat is taken.
    Beat,
    /// It is handed over to the interfaces.
    Transmit,
    /// It counts, if it left.
    Left,
    /// Applications are read, and timers run.
    Exchange,
    /// Segments leave, and early heartbeats.
    Segments,
    /// Applications are written to.
    Tail,
    /// Silences are judged.
    Judge,
}

impl Point {
    pub(super) const ALL: [Point; 9] = [
        Point::Hold,
        Point::Ring,
        Point::Beat,
        Point::Transmit,
        Point::Left,
        Point::Exchange,
        Point::Segments,
        Point::Tail,
        Point::Judge,
    ];
}

/// A heartbeat that is about to leave.
struct Sending {
    number: u64,
    /// The clock before.
    read_ns: u64,
    items: Rc<[u8]>,
    has_groups: bool,
    /// When the one before left.
    before_ns: u64,
    /// How many left early in this iteration, this one included; 0: it has its slot.
    early: u32,
    midway: usize,
}

/// The part of an agent that its groups are.
pub(crate) struct Shell {
    pub groups: Groups,
    pub sessions: Vec<Session>,
    /// Lives of hosts that left.
    left: BTreeSet<(u32, u32)>,
    /// Hosts whose members were excluded because they were unreachable, and which incarnations of them.
    pub excluded: BTreeMap<u32, u32>,
    beaten_ns: u64,
    held_behind_ns: u64,
    /// When it next tells its groups that a second is over.
    second_at_ns: u64,
    rides_stay: bool,
    resent: u64,
    doubled_ns: u64,
    doubled_until_ns: u64,
    point: Point,
    sending: Option<Sending>,
    /// See [`Neglect::Gates`].
    ignores_fence: bool,
    /// Incarnations of hosts about which the witness is asked now.
    pub witnessed: BTreeSet<(u32, u32)>,
    /// The last number that it gave to a proposal, for [`Neglect::Numbers`].
    pub counted: u64,
}

/// The settings of a host's groups.
pub(super) fn config(node: u32, incarnation: u32) -> Config {
    let seed = u64::from(node) << 32 | u64::from(incarnation);
    Config {
        node,
        incarnation,
        links: links::Config { resend_ns: 3 * MS, ack_wait_ns: MS },
        log: log::Config { ask_interval_ns: 100 * MS, ..log::Config::default() },
        fence_repeat_ns: 10 * MS,
        witness_ns: Some(super::witness::TIMEOUT_NS),
        distrust_ns: 50 * MS,
        // So that clients' states are of both kinds.
        inline_max: 1_000,
        make: Arc::new(move |setup, how, timing| make(setup, how, timing, seed)),
    }
}

fn make(setup: &Setup, how: Policy, timing: &Timing, seed: u64) -> Option<Box<dyn Engine<EngineMessage> + Send>> {
    if setup.kind != EngineKind::Raft {
        return groups::make(setup, how, timing);
    }
    let word_wait_ns = fide_raft::WORD_WAIT_NS;
    let config = fide_raft::Config { tick_ns: RAFT_TICK_NS, seed, word_wait_ns, ..fide_raft::Config::new(setup.me) };
    let start = setup.start.as_deref();
    let mut raft = fide_raft::Raft::new(config, setup.now_ns, setup.first, &setup.members, start).ok()?;
    if !setup.joins && setup.members.min() == Some(setup.me) {
        raft.campaign();
    }
    for member in setup.crashed.iter() {
        let _ = raft.handle_crash(setup.now_ns, member);
    }
    Some(Box::new(raft))
}

/// Whether no heartbeat left since `before` for so long that others may have given this host up.
fn was_silent(before: u64, now: u64) -> bool {
    let allowed_ns = CONTRACT.period_ns + CONTRACT.timeout_ns().saturating_sub(CONTRACT.period_ns) / 2;
    before != 0 && now.saturating_sub(before) > allowed_ns
}

impl Shell {
    pub(super) fn new(groups: Groups, ignores_fence: bool) -> Self {
        Self {
            groups,
            ignores_fence,
            sessions: Vec::new(),
            left: BTreeSet::new(),
            excluded: BTreeMap::new(),
            beaten_ns: 0,
            held_behind_ns: 0,
            second_at_ns: 0,
            rides_stay: false,
            resent: 0,
            doubled_ns: 0,
            doubled_until_ns: 0,
            point: Point::Hold,
            sending: None,
            witnessed: BTreeSet::new(),
            counted: 0,
        }
    }

    /// After a silence of this host nothing of its groups leaves before the others have said that
    /// they have not given it up.
    fn hold(&mut self, now: u64) {
        if !self.groups.is_empty() && self.held_behind_ns != self.beaten_ns && was_silent(self.beaten_ns, now) {
            self.held_behind_ns = self.beaten_ns;
            self.groups.hold(now, 0);
        }
    }

    fn is_midway(&self) -> bool {
        !self.rides_stay && self.groups.midway() > 0
    }

    fn early_at(&self) -> Option<u64> {
        (self.groups.is_stirred() || self.is_midway()).then(|| self.beaten_ns.saturating_add(EARLY_NS))
    }

    /// Whether a segment had to be sent again lately.
    fn loses_segments(&mut self, now: u64) -> bool {
        let resent = self.groups.resent();
        if std::mem::replace(&mut self.resent, resent) != resent {
            let is_again = now < self.doubled_until_ns.saturating_add(1_000 * MS);
            let longer_ns = (2 * self.doubled_ns).min(DOUBLED_MAX_NS);
            if now >= self.doubled_until_ns {
                self.doubled_ns = if is_again { longer_ns } else { DOUBLED_NS };
            }
            self.doubled_until_ns = now.saturating_add(self.doubled_ns);
        }
        now < self.doubled_until_ns
    }
}

/// The shell of an agent that has groups.
pub(super) fn shell(agent: &mut Agent) -> &mut Shell {
    agent.shell.as_mut().expect("an agent with groups")
}

pub(super) fn is_fenced(agent: &Agent) -> bool {
    let ignores = agent.shell.as_ref().is_some_and(|shell| shell.ignores_fence);
    !ignores && agent.node.fence().is_some_and(|fence| fence.closed().is_some())
}

impl World {
    // ---- the loop -------------------------------------------------------------------------------

    /// One iteration of an agent's loop, from where it was stopped.
    pub(crate) fn turn_with_groups(&mut self, host: usize, mut agent: Agent) {
        let mut at = shell(&mut agent).point;
        loop {
            if let Some(until) = self.stands_still(host, at) {
                shell(&mut agent).point = at;
                self.hosts[host].agent = Some(agent);
                self.wake(host, until);
                return;
            }
            at = self.step(host, &mut agent, at);
            if at == Point::Hold {
                break;
            }
        }
        let shell = shell(&mut agent);
        shell.point = Point::Hold;
        shell.groups.invariants();
        let sooner = shell.groups.poll_timeout().into_iter().chain(shell.early_at()).min();
        self.plan_turn(host, agent, sooner);
    }

    /// Goes from this point to the next.
    fn step(&mut self, host: usize, agent: &mut Agent, at: Point) -> Point {
        let now = self.now;
        match at {
            Point::Hold => {
                if self.neglects() != Some(Neglect::Hold) {
                    shell(agent).hold(now);
                }
                Point::Ring
            }
            Point::Ring => {
                let send = self.drain_ring(host, agent);
                self.send_all(host, agent, send);
                if agent.node.poll_heartbeat(now).is_some() {
                    self.check_gates(host, agent);
                    Point::Beat
                } else {
                    Point::Exchange
                }
            }
            Point::Beat => {
                self.begin_heartbeat(agent, 0);
                Point::Transmit
            }
            Point::Transmit => {
                self.transmit(host, agent);
                Point::Left
            }
            Point::Left => self.heartbeat_left(host, agent),
            Point::Exchange => self.exchange(host, agent),
            Point::Segments => {
                self.send_segments(host, agent);
                let shell = shell(agent);
                let is_early = now >= shell.beaten_ns.saturating_add(EARLY_NS);
                if is_early && (shell.is_midway() || shell.groups.has_ride(now)) {
                    self.begin_heartbeat(agent, 1);
                    Point::Transmit
                } else {
                    Point::Tail
                }
            }
            Point::Tail => {
                self.groups_happened(host, agent);
                self.write_sessions(host, agent);
                Point::Judge
            }
            Point::Judge => {
                let send = self.judge_silence(host, agent);
                self.send_all(host, agent, send);
                Point::Hold
            }
        }
    }

    fn send_all(&mut self, host: usize, agent: &Agent, send: Vec<(To, Body)>) {
        self.choose_way(host, agent);
        let (is_fenced, is_past) = (is_fenced(agent), self.hosts[host].is_past_gates);
        for (to, body) in send.into_iter().filter(|(_, body)| !is_fenced || is_past && body.passes_gates()) {
            self.broadcast(host, to, &[true; PATHS], &body);
        }
    }

    // ---- heartbeats -----------------------------------------------------------------------------

    fn begin_heartbeat(&mut self, agent: &mut Agent, early: u32) {
        let now = self.now;
        agent.numbers.heartbeats += 1;
        let number = agent.numbers.heartbeats;
        let (neglects_hold, is_fenced) = (self.neglects() == Some(Neglect::Hold), is_fenced(agent));
        let shell = shell(agent);
        let (mut body, midway) = (Vec::new(), shell.groups.midway());
        // What passes a closed gate carries nothing.
        let has_groups = !is_fenced && !shell.groups.is_empty();
        if has_groups {
            if !neglects_hold {
                shell.hold(now);
            }
            shell.groups.poll_rides(now, BODY_MAX, &mut body);
        }
        let before_ns = shell.beaten_ns;
        shell.sending = Some(Sending { number, read_ns: now, items: body.into(), has_groups, before_ns, early, midway });
    }

    fn transmit(&mut self, host: usize, agent: &mut Agent) {
        let version = agent.node.directory().owner().complete() as u32;
        let Some(sending) = &shell(agent).sending else { return };
        let (number, read_ns, items) = (sending.number, sending.read_ns, sending.items.clone());
        self.choose_way(host, agent);
        if !is_fenced(agent) || self.hosts[host].is_past_gates {
            self.broadcast(host, To::Everybody, &[true; PATHS], &Body::Heartbeat { number, version, items });
        }
        shell(agent).beaten_ns = self.now;
        self.fence_beat(host, agent, number, read_ns);
    }

    /// Whether it counts, and where the iteration goes on.
    fn heartbeat_left(&mut self, host: usize, agent: &mut Agent) -> Point {
        let now = self.now;
        let neglects_hold = self.neglects() == Some(Neglect::Hold);
        let has_left = !is_fenced(agent) && self.hosts[host].is_unplugged.contains(&false);
        let shell = shell(agent);
        let Some(Sending { number, has_groups, before_ns, early, midway, .. }) = shell.sending.take() else {
            return Point::Exchange;
        };
        shell.rides_stay = has_groups && !has_left;
        if !has_groups {
        } else if shell.rides_stay {
            // It rides on the next one, or on none.
        } else if was_silent(before_ns, now) && !neglects_hold {
            shell.groups.hold(now, number);
        } else {
            shell.groups.handle_sent(now);
        }
        if early == 0 {
            return Point::Exchange;
        }
        let rest = shell.groups.midway();
        if rest == 0 || rest == midway || early >= RIDES_AT_ONCE {
            self.send_segments(host, agent);
            return Point::Tail;
        }
        self.begin_heartbeat(agent, early + 1);
        Point::Transmit
    }

    // ---- what comes in --------------------------------------------------------------------------

    fn is_believed(&self, host: usize, agent: &mut Agent, (node, incarnation): (u32, u32)) -> bool {
        let slot = self.hosts[host].table.get(&node).filter(|slot| slot.incarnation == incarnation && !slot.condemned);
        slot.is_some() && !shell(agent).left.contains(&(node, incarnation))
    }

    pub(crate) fn segment_came(&mut self, host: usize, agent: &mut Agent, from: (u32, u32), came_ns: u64, body: &[u8]) {
        if self.is_believed(host, agent, from) {
            // One for another incarnation, or one that came before.
            let _ = shell(agent).groups.handle_segment(came_ns, from.0, from.1, body);
        }
    }

    /// A copy of a round: by which path, with which stamp, and when it came.
    pub(crate) fn copy_came(
        &mut self,
        host: usize,
        agent: &mut Agent,
        from: (u32, u32),
        (path, sent_ns, came_ns): (usize, u64, u64),
        body: &[u8],
    ) {
        if self.is_believed(host, agent, from) {
            shell(agent).groups.handle_copy(came_ns, from.0, path, sent_ns, body);
        }
    }

    pub(crate) fn items_came(&mut self, host: usize, agent: &mut Agent, from: (u32, u32), number: u64, body: &[u8]) {
        if !self.is_believed(host, agent, from) {
            return;
        }
        let is_first = self.hosts[host].table.get_mut(&from.0).is_some_and(|slot| slot.is_first_copy(number));
        if !is_first {
            return;
        }
        let groups = &mut shell(agent).groups;
        for item in items::read(body) {
            let Item { channel, bytes } = item.expect("whole items");
            if channel == Channel::Groups as u8 {
                groups.handle_ride(self.now, from.0, bytes);
            }
        }
        groups.handle_heartbeat(self.now, from.0, number);
    }

    /// An incarnation of another host has shown that it lives.
    pub(crate) fn host_lives(&mut self, agent: &mut Agent, node: u32, incarnation: u32, first: u32) {
        if self.neglects() == Some(Neglect::Incarnations) && incarnation > 1 {
            return;
        }
        if let Some(shell) = &mut agent.shell {
            shell.groups.handle_life(self.now, node, incarnation, first);
        }
    }

    /// A verdict about a host, or about this one's own sight of the others.
    pub(crate) fn groups_judge(&mut self, host: usize, agent: &mut Agent, v: &Verdict) {
        if v.app != 0 {
            return;
        }
        // What it sent before came before, and is refused once it is condemned.
        let send = self.drain_ring(host, agent);
        self.send_all(host, agent, send);
        let now = self.now;
        let is_gone = v.cause == Cause::AgentLost && v.evidence.paths.iter().any(|path| path.agent_absent);
        let is_apart = v.cause == Cause::Unreachable;
        let (cause, grade) = match v.cause {
            _ if is_gone => (Cause::Exited, Grade::Certain),
            Cause::Unreachable => (Cause::SilentHost, Grade::Inferred),
            cause => (cause, v.grade),
        };
        self.note(host, || format!("{} {} of {} in {}", v.cause, v.grade, v.node, v.incarnation));
        if v.cause == Cause::Isolated {
            self.is_isolated(host);
        }
        let shell = shell(agent);
        shell.groups.handle_verdict(now, v.node, v.incarnation, cause, grade);
        let is_back = v.cause == Cause::ContractKept && shell.excluded.get(&v.node) == Some(&v.incarnation);
        if is_apart {
            shell.excluded.insert(v.node, v.incarnation);
        } else if shell.excluded.remove(&v.node).is_some() && is_back {
            let own = self.hosts[host].incarnation;
            self.begin_anew(host, agent, own);
            if let Some(shell) = &mut agent.shell {
                shell.groups.handle_heard_again(now, v.node, v.incarnation);
            }
            return;
        }
        if v.evidence.fenced {
            shell.groups.handle_fenced(now, v.node, v.incarnation);
        }
        if v.cause == Cause::Left {
            shell.left.insert((v.node, v.incarnation));
        }
    }

    /// A host that was told as silent is fenced by what the others say.
    pub(crate) fn groups_fenced(&mut self, agent: &mut Agent, node: u32, incarnation: u32) {
        let now = self.now;
        if let Some(shell) = &mut agent.shell {
            shell.groups.handle_fenced(now, node, incarnation);
        }
    }

    // ---- what goes out --------------------------------------------------------------------------

    /// Applications are read, and timers run.
    fn exchange(&mut self, host: usize, agent: &mut Agent) -> Point {
        let now = self.now;
        if shell(agent).groups.is_idle() && shell(agent).sessions.is_empty() {
            return Point::Judge;
        }
        self.read_sessions(host, agent);
        let Agent { node, shell, .. } = agent;
        let Shell { groups, second_at_ns, .. } = &mut **shell.as_mut().expect("an agent with groups");
        if *second_at_ns <= now {
            *second_at_ns = now + 1_000 * MS;
            // Lost packets are not counted here: they count as nothing out of the ordinary.
            groups.handle_second(now, |_| true);
        }
        // What has come is read first: a copy of a round may be among it.
        if self.hosts[host].ring.is_empty() && groups.poll_timeout().is_some_and(|at_ns| at_ns <= now) {
            let table = &self.hosts[host].table;
            groups.handle_timeout(now, |of| {
                let incarnation = table.get(&of).map_or(0, |slot| slot.incarnation);
                match node.detector().state(of) {
                    None => Standing::Unknown,
                    Some(State::Alive) => Standing::Alive(incarnation),
                    Some(State::Late) => Standing::Late(incarnation),
                    Some(State::AgentLost | State::Silent) => Standing::Silent(incarnation),
                    Some(State::Left | State::Restarting) => Standing::Left(incarnation),
                }
            });
        }
        Point::Segments
    }

    pub(super) fn send_segments(&mut self, host: usize, agent: &mut Agent) {
        let (now, mut body) = (self.now, Vec::new());
        let mut segments = 0;
        while segments < SEGMENTS_AT_ONCE {
            let fenced = is_fenced(agent);
            let shell = shell(agent);
            let Some(frame) = shell.groups.poll_frame(now, &mut body) else { return };
            segments += 1;
            let (to, on_all) = match frame {
                Frame::Segment { node, is_again } => (To::Node(node), shell.loses_segments(now) || is_again),
                Frame::Shared { is_one_of_many } => (To::Everybody, !is_one_of_many || shell.loses_segments(now)),
                Frame::Copies { sent_ns } => {
                    segments -= 1;
                    let paths = self.hosts[host].is_unplugged.map(|is_unplugged| !is_unplugged);
                    if !fenced {
                        self.broadcast(host, To::Everybody, &paths, &Body::Copy { sent_ns, body: body.as_slice().into() });
                    }
                    let is_whole = !fenced && paths == [true; PATHS];
                    shell.groups.handle_copies_sent(now, if is_whole { Departure::Whole } else { Departure::Void });
                    continue;
                }
            };
            if fenced {
                continue;
            }
            agent.numbers.others += 1;
            let number = agent.numbers.others;
            let first = (number % PATHS as u64) as usize;
            // A path whose interface has no carrier takes nothing: the other one does.
            let unplugged = self.hosts[host].is_unplugged;
            let one = if unplugged[first] { 1 - first } else { first };
            let paths = std::array::from_fn(|path| on_all || path == one);
            let body = Body::Frame { number, kind: Kind::Message, body: body.as_slice().into() };
            self.broadcast(host, to, &paths, &body);
        }
    }

    fn groups_happened(&mut self, host: usize, agent: &mut Agent) {
        let mut has_changed = false;
        while let Some(event) = shell(agent).groups.poll_event() {
            match event {
                Event::Applied { .. } | Event::Halted { .. } => {}
                Event::Begin { name } => self.begin_planned(host, agent, &name),
                Event::Resume { name, nodes } => self.resume(host, agent, &name, &nodes),
                Event::Closed { node } => unreachable!("agents send what agents send, {node:08x} too"),
                Event::Differs { generation, what } => self.differs(host, agent, generation, &what),
                Event::Changed { .. } => {
                    self.keep_names(host, agent);
                    has_changed = true;
                }
                Event::Write(write) => self.write_to_disk(host, agent, *write),
                Event::Hold(_) | Event::Release(_) => {}
                Event::Fetch { generation, what, from } => self.fetch_state(host, generation, what, from),
                Event::AskFence { node, incarnation } => {
                    if fences::is_cut_off(&self.hosts[host], agent, node, incarnation, self.now) {
                        shell(agent).groups.handle_fenced(self.now, node, incarnation);
                    }
                }
                Event::AskWitness { node, incarnation } => self.ask_witness(host, agent, (node, incarnation)),
            }
        }
        if has_changed {
            self.observe(host, agent);
        }
    }

    /// Others gave this incarnation up, or its fence opens again: a new one begins.
    pub(crate) fn begin_anew(&mut self, host: usize, agent: &mut Agent, after: u32) {
        let now = self.now;
        let h = &mut self.hosts[host];
        let former = h.incarnation;
        h.incarnation = former.max(after) + 1;
        let (node, incarnation) = (h.node, h.incarnation);
        if let Some(cluster) = &mut self.groups {
            cluster.judge.begins_anew(node, former, incarnation);
        }
        self.note(host, || format!("begins incarnation {incarnation}"));
        match &mut agent.shell {
            Some(shell) => shell.groups.begin_incarnation(now, incarnation),
            None => self.renewed(host, former),
        }
        agent.version += 1;
        agent.node.begin_incarnation(incarnation, agent.version, now);
        agent.node.announce();
    }

    /// The agent says goodbye: its members stop, and what they say of that leaves before it ends.
    pub(crate) fn groups_leave(&mut self, host: usize, agent: &mut Agent) {
        if agent.shell.is_none() {
            return;
        }
        shell(agent).groups.stop(self.now);
        self.send_segments(host, agent);
        self.take_fence_away(host, agent);
    }
}
