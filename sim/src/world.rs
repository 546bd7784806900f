//! Virtual time, two networks, hosts, and everything that is checked while they run.
//!
//! What is real here: the node (introductions, tables, the detector) and the member, as agents run
//! them. A member is a log, its engines, and the gate between verdicts and these. What is modelled:
//! kernels, cables, clocks, memory, clients, the fence and the witness. Nothing reads a clock or
//! draws a number from outside, so a plan is a world.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use fide_proto::consensus::log::{Config, EngineMessage, Epoch, Log, Message, Output};
use fide_proto::consensus::memory::{Answer, Request, RequestId};
use fide_proto::consensus::policy::{self, Ask, Policy};
use fide_proto::consensus::{Halted, Kind};
use fide_proto::detector::{Action, AppState, How, ProbeResult, State};
use fide_proto::group::{Body, Entry, EntryId, MemberId, MemberSet, Refused};
use fide_proto::node::machine::reports::Heard;
use fide_proto::node::machine::{self, Came};
use fide_proto::node::probing;
use fide_proto::node::table::owner::To;
use fide_proto::services::groups::member;
use fide_wire::PATHS;
use fide_wire::frame::table::{Change, State as RowState, read_rows};
use fide_wire::frame::{Header, Kind as FrameKind};
use fide_wire::packet::ReportEntry;
use fide_wire::verdict::{Cause, Grade};

use crate::engines;
use crate::host::{self, Ends, Host, Input, Member, NoBarriers, Slot};
use crate::invariants::{
    Agreement, Checked, CrashOrder, EngineChange, Eviction, Integrity, NoGap, OneLeader, Reasons, SafeExit, Snapshot, Stability,
    Standing, Termination, Validity, Violation, broken, snapshot_state,
};
use crate::options::Promise;
use crate::plan::{Act, Plan};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::time::{DELTA_MAX_NS, JITTER_NS, LAMBDA_MIN_NS, PERIOD_NS, SENDER_LATE_NS, US};
use crate::timeline::{Timeline, brief};

/// How long the liveness phase may take: longer than it waits who leaves, or asked somebody who left (32 times [`fide_proto::consensus::log::Config::ask_interval_ns`]).
const LIVENESS_NS: u64 = 1000 * PERIOD_NS;
/// As many values need no more time than that.
const VALUES_FEW: u64 = 100;
/// How much longer for each one more.
const VALUE_NS: u64 = PERIOD_NS;
/// What is in flight when a fence closes or the power goes has landed by then, if the lane's contract holds.
const DRAIN_NS: u64 = 100 * US;

enum Event {
    Act(usize),
    Heartbeat {
        host: usize,
        boot: u32,
    },
    Arrive {
        to: usize,
        path: usize,
        from: usize,
        incarnation: u32,
        number: u64,
        version: u32,
        ride: Option<Rc<(MemberId, Message)>>,
    },
    /// Any other frame of a node.
    Frame {
        to: usize,
        path: usize,
        frame: Rc<Frame>,
    },
    /// The kernel of its host has seen the end of a member's process.
    Ended {
        host: usize,
        boot: u32,
        member: MemberId,
    },
    Tick {
        host: usize,
        boot: u32,
    },
    Timer {
        host: usize,
        member: MemberId,
    },
    Message {
        to: MemberId,
        from: MemberId,
        sent_ns: u64,
        message: Message,
    },
    /// What waits on the reliable link of this pair may go on.
    Release {
        pair: usize,
    },
    Copy {
        to: usize,
        from: MemberId,
        path: usize,
        sent_ns: u64,
        message: Rc<Message>,
    },
    Request {
        to: MemberId,
        from: MemberId,
        sent_ns: u64,
        epoch: Epoch,
        request: Request,
    },
    Answer {
        to: MemberId,
        from: MemberId,
        epoch: Epoch,
        id: RequestId,
        answer: Answer,
    },
    Condemned {
        to: usize,
        incarnation: u32,
    },
    Question {
        from: usize,
        to: usize,
        path: usize,
        asked_ns: u64,
        boot: u32,
    },
    Reply {
        to: usize,
        from: usize,
        path: usize,
        result: ProbeResult,
        asked_ns: u64,
        boot: u32,
    },
    ResumeProcess {
        host: usize,
        member: MemberId,
    },
    CrashNow {
        host: usize,
        member: MemberId,
    },
    Exit {
        host: usize,
        member: MemberId,
    },
    FenceAsked {
        by: MemberId,
        member: MemberId,
    },
    WitnessAsked {
        by: MemberId,
        member: MemberId,
    },
    Confirmed {
        to: MemberId,
        member: MemberId,
        answer: Option<policy::Answer>,
    },
    Admit {
        member: MemberId,
    },
    Client(usize),
    FaultsEnd,
    Look,
}

/// What a node sends, but for heartbeats.
struct Frame {
    from: usize,
    header: Header,
    kind: FrameKind,
    body: Vec<u8>,
}

/// One path's troubles: (percent, until), and by how much for delays.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    lose: (u64, u64),
    double: (u64, u64),
    delay: (u64, u64, u64),
}

/// Whoever is asked under the policy `witness`.
#[derive(Debug, Default)]
struct Witness {
    gone_until: u64,
    takes_sides: bool,
    /// Without whom it let others go on.
    expelled: MemberSet,
}

/// A member's life, also after its end.
#[derive(Debug)]
struct Life {
    host: usize,
    /// Its process is no more.
    dead: bool,
    /// It stopped safely.
    halted: bool,
    /// … because it had left.
    left: bool,
    /// What it sent later than that to each host is lost.
    lost_after: Vec<u64>,
}

/// A value that a member applied.
#[derive(Clone, Copy, Debug)]
struct Applied {
    value: u64,
    host: usize,
    /// What it applied before, or was given with its state.
    before: Option<usize>,
}

#[derive(Debug)]
struct Client {
    value: u64,
    at: Option<MemberId>,
    prefers: usize,
    done: bool,
}

/// What a world came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Messages, heartbeats, timers, verdicts and memory answers that were handed to a core.
    pub events: u64,
    /// Entries in the longest log.
    pub entries: u64,
    /// How many were applied, all members together.
    pub applied: u64,
    /// Members that were told of a crash, together.
    pub crashes_told: u64,
    /// Members that stopped safely, but for those that left.
    pub halted: u64,
    /// Virtual time.
    pub ended_ns: u64,
    /// What did not hold.
    pub violation: Option<Violation>,
    /// The liveness phase was not judged, and why.
    pub excused: Option<&'static str>,
}

/// What a client's entry says.
#[must_use]
pub fn value_of(entry: &Entry) -> Option<u64> {
    let Body::Value(bytes) = &entry.body else { return None };
    <[u8; 8]>::try_from(&bytes[..]).ok().map(u64::from_le_bytes)
}

/// A world.
pub struct World {
    /// Virtual time.
    now: u64,
    plan: Plan,
    /// What is judged; anything else that breaks is noted in the timeline alone.
    pub promise: Promise,
    /// Whatever breaks is noted, to the end: also that something was never decided, where nothing is promised any more.
    pub notes_all: bool,
    queue: Queue<Event>,
    rng: Rng,
    hosts: Vec<Host>,
    /// The id of each host.
    ids: Vec<u32>,
    /// The body of the frame that is being made.
    body: Vec<u8>,
    /// By member id, from 1.
    lives: Vec<Life>,
    /// Last arrival over the reliable link, and when it stalls no more, by (from, to).
    links: Vec<(u64, u64)>,
    /// What arrived over the reliable link and is held up, by (from, to).
    waiting: Vec<VecDeque<(MemberId, MemberId, u64, Message)>>,
    /// Last arrival of a one-sided operation, by (from, to), and of its answer.
    verbs: Vec<(u64, u64)>,
    /// Last arrival on each path, by (from, to).
    lanes: Vec<[u64; PATHS]>,
    /// The arrival of the last heartbeat that carried something, by (from, to).
    rides: Vec<u64>,
    troubles: [Trouble; PATHS],
    clients: Vec<Client>,
    /// What anybody applied (only where it is watched).
    chains: Vec<Applied>,
    /// What members were given with a state: on which host, and the end of its chain.
    given: Vec<(usize, Option<usize>)>,
    /// The end of the chain behind each state.
    chain_of: BTreeMap<u64, Option<usize>>,
    /// Along the longest log.
    memberships: Vec<MemberSet>,
    healed_ns: u64,
    out: Outcome,
    violation: Option<Violation>,
    timeline: Option<Timeline>,
    agreement: Agreement,
    validity: Validity,
    integrity: Integrity,
    eviction: Eviction,
    engine_change: EngineChange,
    one_leader: OneLeader,
    snapshots: Snapshot,
    safe_exit: SafeExit,
    /// A copy or a heartbeat did not get where it was sent, or too late: a LOWI member stops, and has all others stop.
    missed: bool,
    /// When somebody spoke first in a LOWI group, and who were its members then, by epoch.
    started: BTreeMap<Epoch, (u64, MemberSet)>,
    /// When somebody spoke last.
    spoke_ns: BTreeMap<Epoch, u64>,
    /// Over whom somebody spoke although they live, because they could not count from the last round, or stood still.
    skipped: MemberSet,
    witness: Witness,
    /// A shell in which a notice does not wait for what rode before it. What the crashed
    /// piggybacked, and the member refuses then, is judged as if it were taken. Only to see that
    /// *fail-consistency* can fail.
    pub forgets_the_crashed: bool,
}

impl World {
    /// The world of a plan. `watched` keeps a timeline.
    #[must_use]
    pub fn new(plan: Plan, watched: bool) -> Self {
        let n = plan.hosts();
        let promise = plan.options.promise();
        // A broadcast whose sender loses its power between two copies looks like a network fault.
        let power = plan.steps.iter().any(|step| matches!(step.act, Act::PowerOff { .. }));
        let to_lowi = plan.steps.iter().any(|step| matches!(step.act, Act::Switch { to: Kind::Lowi, .. }));
        let half_a_broadcast = power && (plan.options.engine == Kind::Lowi || to_lowi);
        let witness_fails = plan.steps.iter().any(|step| matches!(step.act, Act::WitnessGone { .. } | Act::WitnessTakesSides));
        let mut world = Self {
            now: 0,
            promise,
            notes_all: false,
            queue: Queue::new(),
            rng: Rng::new(plan.seed ^ 0x6e65_7477_6f72_6b21),
            hosts: (0..n).map(|h| Host::new(h, n, plan.clocks[h])).collect(),
            ids: (0..n).map(|h| fide_wire::name_id(&host::name(h))).collect(),
            body: Vec::new(),
            lives: Vec::new(),
            links: vec![(0, 0); n * n],
            waiting: (0..n * n).map(|_| VecDeque::new()).collect(),
            verbs: vec![(0, 0); n * n],
            lanes: vec![[0; PATHS]; n * n],
            rides: vec![0; n * n],
            troubles: [Trouble::default(); PATHS],
            clients: Vec::new(),
            chains: Vec::new(),
            given: Vec::new(),
            chain_of: BTreeMap::new(),
            memberships: vec![MemberSet::first(n as u16)],
            healed_ns: 0,
            out: Outcome::default(),
            violation: None,
            timeline: watched.then(Timeline::default),
            agreement: Agreement::default(),
            validity: Validity::default(),
            integrity: Integrity::default(),
            eviction: Eviction::default(),
            engine_change: EngineChange::default(),
            one_leader: OneLeader::default(),
            snapshots: Snapshot::default(),
            safe_exit: SafeExit {
                may_halt: promise.may_halt || half_a_broadcast || witness_fails,
                contract: plan.options.menu.keeps_contract(),
            },
            // Who loses its power may be heard by some and not by others, copies or not.
            missed: half_a_broadcast,
            started: BTreeMap::new(),
            spoke_ns: BTreeMap::new(),
            skipped: MemberSet::new(),
            witness: Witness::default(),
            forgets_the_crashed: false,
            plan,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let n = self.hosts.len();
        let group = MemberSet::first(n as u16);
        let world_seed = self.plan.seed;
        for h in 0..n {
            let id = self.new_life(h);
            let local = self.local(h);
            let kind = self.plan.options.engine;
            let build = engines::build(world_seed, self.plan.options.policy);
            let log = Log::new(local, id, kind, group.clone(), Config::default(), build);
            let log = log.expect("the first engine is available");
            self.hosts[h].member = Some(self.member(h, log, None));
        }
        self.introduce_all();
        for h in 0..n {
            let first = self.rng.below(PERIOD_NS);
            self.queue.push(first, Event::Heartbeat { host: h, boot: 1 });
            self.after_step(h);
        }
        for at in 0..self.plan.steps.len() {
            self.queue.push(self.plan.steps[at].at_ns, Event::Act(at));
        }
        self.queue.push(self.plan.faults_end_ns, Event::FaultsEnd);
    }

    /// Before the world begins, its hosts have met, and know each other's members: over a network without faults or delay.
    fn introduce_all(&mut self) {
        let n = self.hosts.len();
        for h in 0..n {
            self.enlist(h);
        }
        loop {
            let mut frames = Vec::new();
            for h in 0..n {
                // Pulls are spread over a moment, which is over before anything begins.
                let at = self.local(h) + PERIOD_NS / 2;
                while let Some((to, frame)) = self.next_frame(h, at) {
                    frames.push((to, frame));
                }
            }
            if frames.is_empty() {
                break;
            }
            for (to, frame) in frames {
                for host in self.receivers(frame.from, to) {
                    let (local, came) = (self.local(host), Came { path: 0, received_ns: self.local(host) });
                    let _ = self.hosts[host].node.handle_frame(&frame.header, frame.kind, &frame.body, came, local);
                }
            }
        }
        for h in 0..n {
            // That others were met is no news to a member.
            let member = self.hosts[h].member.take();
            self.take_events(h);
            self.hosts[h].member = member;
            self.plan_tick(h);
        }
    }

    /// The member of this host stands in its table from now on.
    fn enlist(&mut self, host: usize) {
        let local = self.local(host);
        let Some(id) = self.hosts[host].member.as_ref().map(|member| member.id) else { return };
        let version = self.hosts[host].next_version();
        let put = self.hosts[host].node.put(u32::from(id.0), version, host::process(id, local), local);
        debug_assert_eq!(put, Ok(()), "{id} is a new row");
    }

    fn new_life(&mut self, host: usize) -> MemberId {
        let lost_after = vec![u64::MAX; self.hosts.len()];
        self.lives.push(Life { host, dead: false, halted: false, left: false, lost_after });
        MemberId(self.lives.len() as u16)
    }

    /// The process of a member whose log begins now on this host.
    fn member(&self, host: usize, log: Log, joined_ns: Option<u64>) -> Member {
        let id = log.me();
        let core = member::Member::new(self.local(host), log, host::gate_config(self.plan.options.policy));
        Member {
            id,
            core,
            paused_until: 0,
            inbox: std::collections::VecDeque::new(),
            crash_after: None,
            timer_ns: u64::MAX,
            state: 0,
            chain: None,
            leaves: false,
            engine_of: None,
            engine_ns: 0,
            copy_ns: 0,
            joined_ns,
            asked_ns: 0,
            halted: None,
            no_gap: NoGap::default(),
            crash_order: CrashOrder::default(),
            stability: Stability::default(),
        }
    }

    /// Lets everything happen.
    pub fn run(&mut self) -> Outcome {
        while self.violation.is_none() {
            let Some((at, event)) = self.queue.pop() else { break };
            self.now = at;
            if self.handle(event) {
                break;
            }
        }
        self.out.ended_ns = self.now;
        self.out.entries = self.agreement.len();
        self.out.violation = self.violation.clone();
        self.out.clone()
    }

    /// What happened, if it was watched.
    #[must_use]
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }

    /// Takes what happened out.
    pub fn take_timeline(&mut self) -> Option<Timeline> {
        self.timeline.take()
    }

    /// The longest log.
    #[must_use]
    pub fn log(&self) -> &[Entry] {
        self.agreement.log()
    }

    /// Whether this member applied this value: itself, or whoever made the state that it was given. Only where the world is watched.
    #[must_use]
    pub fn has_applied(&self, member: &Member, value: u64) -> bool {
        self.has(member.chain, value)
    }

    fn has(&self, chain: Option<usize>, value: u64) -> bool {
        let mut chain = std::iter::successors(chain, |at| self.chains[*at].before);
        chain.any(|at| self.chains[at].value == value)
    }

    /// Whether anybody ever applied it (on this host), in whichever log. Only where the world is watched.
    #[must_use]
    pub fn was_applied(&self, value: u64, host: Option<usize>) -> bool {
        let here = |at: usize| host.is_none_or(|host| at == host);
        self.chains.iter().any(|applied| applied.value == value && here(applied.host))
            || self.given.iter().any(|(at, chain)| here(*at) && self.has(*chain, value))
    }

    /// The member that lives on this host.
    #[must_use]
    pub fn member_on(&self, host: usize) -> Option<&Member> {
        self.hosts.get(host)?.member.as_ref()
    }

    /// Whether a fence has cut this host off.
    #[must_use]
    pub fn is_fenced(&self, host: usize) -> bool {
        self.hosts.get(host).is_some_and(|host| host.fenced)
    }

    /// Whether the last member on this host stopped safely.
    #[must_use]
    pub fn halted_on(&self, host: usize) -> bool {
        self.lives.iter().rev().find(|life| life.host == host).is_some_and(|life| life.halted)
    }

    // ------------------------------------------------------------------ small things

    fn local(&self, host: usize) -> u64 {
        self.hosts[host].clock.local(self.now)
    }

    fn life(&self, member: MemberId) -> Option<&Life> {
        self.lives.get(usize::from(member.0).wrapping_sub(1))
    }

    fn host_of(&self, member: MemberId) -> Option<usize> {
        let life = self.life(member)?;
        (!life.dead).then_some(life.host)
    }

    /// It has crashed, stopped, or was cut off.
    fn is_gone(&self, member: MemberId) -> bool {
        self.life(member).is_none_or(|life| life.dead || life.halted || self.hosts[life.host].fenced)
    }

    fn at(&self, from: usize, to: usize) -> usize {
        from * self.hosts.len() + to
    }

    fn check(&mut self, checked: Checked) {
        if let (Err(violation), None) = (checked, &self.violation) {
            let safety = violation.property != "termination";
            let owed = if safety { self.promise.safe } else { self.promise.live };
            if owed {
                let text = format!("✗ {violation}");
                self.note(None, || text);
                self.violation = Some(violation);
            } else {
                self.note(None, || format!("(not promised here) {violation}"));
                if !self.notes_all {
                    self.out.excused.get_or_insert("nothing is promised here, and something broke");
                }
            }
        }
    }

    fn note(&mut self, host: Option<usize>, text: impl FnOnce() -> String) {
        if let Some(timeline) = &mut self.timeline {
            let member = host.and_then(|host| self.hosts[host].member.as_ref().map(|member| member.id));
            timeline.push(self.now, host, member, text());
        }
    }

    fn cut(&self, host: usize, path: usize) -> bool {
        self.hosts[host].cut_until[path] > self.now
    }

    fn cut_off(&self, host: usize) -> bool {
        (0..PATHS).all(|path| self.cut(host, path))
    }

    /// Whether a copy that leaves now gets through.
    fn passes(&mut self, from: usize, to: usize, path: usize) -> bool {
        let (percent, until) = self.troubles[path].lose;
        let cut = self.hosts[from].fenced || self.hosts[to].fenced || self.cut(from, path) || self.cut(to, path);
        !cut && (until <= self.now || !self.rng.chance(percent))
    }

    /// When a copy that leaves now arrives: in order on each path, unless something delays it.
    fn lane(&mut self, from: usize, to: usize, path: usize) -> u64 {
        let at = self.at(from, to);
        let mut arrival = self.now + LAMBDA_MIN_NS + self.rng.below(JITTER_NS);
        let (percent, by_ns, until) = self.troubles[path].delay;
        if until > self.now && self.rng.chance(percent) {
            arrival += self.rng.below(by_ns);
            self.missed |= arrival > self.now + LAMBDA_MIN_NS + DELTA_MAX_NS;
            return arrival;
        }
        arrival = arrival.max(self.lanes[at][path] + 1);
        self.lanes[at][path] = arrival;
        arrival
    }

    /// When the second copy of what arrives then arrives: not later than the contract allows, if the first one does not.
    fn again(&mut self, at: u64) -> u64 {
        at + self.rng.below((self.now + LAMBDA_MIN_NS + JITTER_NS).saturating_sub(at))
    }

    /// The first arrival on any path.
    fn fastest(&mut self, from: usize, to: usize) -> Option<u64> {
        let mut first = None;
        for path in 0..PATHS {
            if self.passes(from, to, path) {
                let at = self.lane(from, to, path);
                first = Some(first.map_or(at, |first: u64| first.min(at)));
            }
        }
        first
    }

    /// The reliable link: any delay, in order.
    fn link_delay(&mut self) -> u64 {
        match self.rng.below(16) {
            0 => 15 * US + self.rng.below(4 * PERIOD_NS),
            1..4 => 15 * US + self.rng.below(PERIOD_NS),
            _ => 15 * US + self.rng.below(20 * US),
        }
    }

    // ------------------------------------------------------------------ what happens

    /// On which host this happens, if it can wait there until a host that stands still goes on.
    fn waits_on(&self, event: &Event) -> Option<usize> {
        match *event {
            Event::Arrive { to, .. }
            | Event::Copy { to, .. }
            | Event::Frame { to, .. }
            | Event::Condemned { to, .. }
            | Event::Question { to, .. }
            | Event::Reply { to, .. } => Some(to),
            Event::Ended { host, .. } => Some(host),
            Event::Answer { to, .. } | Event::Confirmed { to, .. } => self.host_of(to),
            // Heartbeats, ticks and timers come late by themselves; what goes over reliable links is held up there.
            _ => None,
        }
    }

    /// Whether the world is over.
    fn handle(&mut self, event: Event) -> bool {
        if let Some(host) = self.waits_on(&event)
            && self.deferred(host)
        {
            // Its arrival is taken when the host goes on.
            self.missed |= matches!(event, Event::Copy { .. });
            self.queue.push(self.hosts[host].paused_until, event);
            return false;
        }
        match event {
            Event::Arrive { to, path, from, incarnation, number, version, ride } => {
                self.arrive(to, path, from, incarnation, number, version, ride);
            }
            Event::Frame { to, path, frame } => self.frame(to, path, &frame),
            Event::Ended { host, boot, member } => self.ended(host, boot, member),
            Event::Heartbeat { host, boot } => self.heartbeat(host, boot),
            Event::Tick { host, boot } => self.tick(host, boot),
            Event::Timer { host, member } => self.timer(host, member),
            Event::Message { to, from, sent_ns, message } => self.message(to, from, sent_ns, message),
            Event::Release { pair } => self.release(pair),
            Event::Copy { to, from, path, sent_ns, message } => self.copy(to, from, path, sent_ns, &message),
            Event::Request { to, from, sent_ns, epoch, request } => self.request(to, from, sent_ns, epoch, request),
            Event::Answer { to, from, epoch, id, answer } => {
                let Some(host) = self.host_of(to) else { return false };
                if !self.hosts[host].fenced {
                    self.give(host, Input::Memory(from, epoch, id, answer));
                }
            }
            Event::Condemned { to, incarnation } => self.condemned(to, incarnation),
            Event::Question { from, to, path, asked_ns, boot } => {
                if self.hosts[to].up && self.passes(to, from, path) {
                    let at = self.lane(to, from, path);
                    let result = ProbeResult::KernelAnswered;
                    self.queue.push(at, Event::Reply { to: from, from: to, path, result, asked_ns, boot });
                }
            }
            Event::Reply { to, from, path, result, asked_ns, boot } => {
                if self.hosts[to].up && self.hosts[to].boot == boot {
                    let local = self.local(to);
                    self.out.events += 1;
                    let of = self.ids[from];
                    self.hosts[to].node.detector_mut().probe_result(of, path, result, asked_ns, local);
                    self.plan_tick(to);
                }
            }
            Event::ResumeProcess { host, member } => self.resume(host, member),
            Event::CrashNow { host, member } => self.crash_now(host, member),
            Event::Exit { host, member } => self.exit(host, member),
            Event::FenceAsked { by, member } => self.fence(by, member),
            Event::WitnessAsked { by, member } => {
                if self.now < self.witness.gone_until {
                    return false;
                }
                let answer = Some(self.judged(by, member));
                let at = self.now + DRAIN_NS;
                self.queue.push(at, Event::Confirmed { to: by, member, answer });
            }
            Event::Confirmed { to, member, answer } => {
                let Some(host) = self.host_of(to) else { return false };
                if !self.hosts[host].fenced {
                    self.give(host, answer.map_or(Input::Fenced(member), |answer| Input::Witness(member, answer)));
                }
            }
            Event::Admit { member } => self.admit(member),
            Event::Client(client) => self.client(client),
            Event::Act(at) => self.happens(at),
            Event::FaultsEnd => self.heal(),
            Event::Look => return self.look(),
        }
        false
    }

    fn copy(&mut self, to: usize, from: MemberId, path: usize, sent_ns: u64, message: &Message) {
        if !self.hosts[to].up || self.hosts[to].fenced {
            return;
        }
        self.note(Some(to), || format!("← {from} on path {path}  {}", brief(message)));
        let arrival = self.local(to);
        self.give(to, Input::Copy(from, path, message.clone(), arrival));
        // Whoever stops in this very call has heard of nothing before.
        if let Some(member) = &mut self.hosts[to].member {
            member.copy_ns = member.copy_ns.max(sent_ns);
        }
    }

    fn crash_now(&mut self, host: usize, member: MemberId) {
        if let Some(m) = &self.hosts[host].member
            && m.id == member
            && let Some(ends) = m.crash_after
        {
            self.crash(host, ends.power);
        }
    }

    fn exit(&mut self, host: usize, member: MemberId) {
        if self.hosts[host].member.as_ref().is_some_and(|m| m.id == member) {
            self.note(Some(host), || "exits".to_owned());
            self.crash(host, false);
        }
    }

    /// What the witness says: it sees hosts and their processes by another way, unless it only takes sides.
    fn judged(&mut self, by: MemberId, member: MemberId) -> policy::Answer {
        if self.witness.takes_sides {
            if self.witness.expelled.contains(by) {
                return policy::Answer::Expelled;
            }
            self.witness.expelled.insert(member);
            return policy::Answer::Granted;
        }
        if self.life(member).is_none_or(|life| life.dead) { policy::Answer::Granted } else { policy::Answer::Refused }
    }

    /// Whether this host stands still now.
    fn deferred(&self, host: usize) -> bool {
        self.hosts[host].paused_until > self.now
    }

    fn heartbeat(&mut self, host: usize, boot: u32) {
        if self.hosts[host].boot != boot || !self.hosts[host].up {
            return;
        }
        if self.deferred(host) {
            // Kernels get to what arrived before agents run.
            let at = self.hosts[host].paused_until + US + self.rng.below(5 * US);
            self.queue.push(at, Event::Heartbeat { host, boot });
            return;
        }
        let local = self.local(host);
        self.hosts[host].numbers.heartbeats += 1;
        let (number, incarnation) = (self.hosts[host].numbers.heartbeats, self.hosts[host].incarnation);
        let mut ride = None;
        if let Some(member) = &mut self.hosts[host].member
            && member.paused_until <= self.now
        {
            let id = member.id;
            ride = member.core.poll_piggyback(local).map(|message| Rc::new((id, message)));
            if ride.is_some() {
                self.out.events += 1;
            }
        }
        if let Some(carried) = &ride {
            let text = self.timeline.is_some().then(|| brief(&carried.1));
            self.note(Some(host), || format!("⇉ piggybacks  {}", text.unwrap_or_default()));
        }
        let (mut sent, may_split) = (true, self.ways_are_whole());
        for path in 0..PATHS {
            if path > 0 && ride.is_some() && may_split && !self.survives_power(host) {
                sent = false;
                break;
            }
            self.copies_of_heartbeat(host, path, incarnation, number, ride.as_ref());
        }
        if !sent || !self.hosts[host].up {
            return;
        }
        if let Some(carried) = &ride
            && self.survives_output(host, true)
            && let Some(member) = &mut self.hosts[host].member
            && member.id == carried.0
        {
            member.core.handle_piggyback_sent(local);
        }
        self.after_step(host);
        if number % 4 == 0 {
            self.look_for_the_unknown(host);
        }
        if self.hosts[host].up {
            let late = self.rng.below(SENDER_LATE_NS);
            let next = self.hosts[host].clock.global(local + PERIOD_NS);
            // Relative to when it was due, so that lateness does not add up.
            self.queue.push((next + late).saturating_sub(SENDER_LATE_NS / 2), Event::Heartbeat { host, boot });
        }
    }

    /// No path loses anything now.
    fn ways_are_whole(&self) -> bool {
        self.troubles.iter().all(|trouble| trouble.lose.1 <= self.now)
            && self.hosts.iter().all(|host| host.cut_until.iter().all(|until| *until <= self.now))
    }

    fn copies_of_heartbeat(
        &mut self,
        from: usize,
        path: usize,
        incarnation: u32,
        number: u64,
        ride: Option<&Rc<(MemberId, Message)>>,
    ) {
        let version = self.hosts[from].table_version();
        for to in 0..self.hosts.len() {
            if to == from {
                continue;
            }
            if !self.passes(from, to, path) {
                self.missed = true;
                continue;
            }
            let at = self.lane(from, to, path);
            if ride.is_some() {
                let pair = self.at(from, to);
                self.rides[pair] = self.rides[pair].max(at);
            }
            let (percent, until) = self.troubles[path].double;
            if until > self.now && self.rng.chance(percent) {
                let again = self.again(at);
                self.queue.push(again, Event::Arrive { to, path, from, incarnation, number, version, ride: ride.cloned() });
            }
            self.queue.push(at, Event::Arrive { to, path, from, incarnation, number, version, ride: ride.cloned() });
        }
    }

    #[allow(clippy::too_many_arguments)] // what a heartbeat says
    fn arrive(
        &mut self,
        to: usize,
        path: usize,
        from: usize,
        incarnation: u32,
        number: u64,
        version: u32,
        ride: Option<Rc<(MemberId, Message)>>,
    ) {
        let local = self.local(to);
        if !self.hosts[to].up || self.hosts[to].fenced {
            return;
        }
        self.out.events += 1;
        let slot = &mut self.hosts[to].table[from];
        if slot.incarnation != incarnation {
            self.named(to, from, incarnation, version);
            return;
        }
        let condemned = slot.condemned;
        if condemned {
            if slot.told_ns + PERIOD_NS < self.now {
                slot.told_ns = self.now;
                if let Some(at) = self.fastest(to, from) {
                    self.queue.push(at, Event::Condemned { to: from, incarnation });
                }
            }
        } else {
            slot.count(path, number, true, local);
            if slot.version != version {
                slot.version = version;
                self.named(to, from, incarnation, version);
            }
        }
        // A condemned sender is no sign of life; but what it piggybacks counts until the gate lets its crash pass: a fence closes later than
        // silence is judged, and whoever sent in between may have decided.
        let slot = &mut self.hosts[to].table[from];
        if let Some(ride) = ride
            && slot.is_first_copy(number)
        {
            let (member, message) = (*ride).clone();
            self.note(Some(to), || format!("⇇ {member} piggybacked  {}", brief(&message)));
            self.give(to, Input::Piggyback(member, message));
        }
    }

    /// A heartbeat named an incarnation or a version that is new.
    fn named(&mut self, to: usize, from: usize, incarnation: u32, version: u32) {
        let (local, id) = (self.local(to), self.ids[from]);
        self.hosts[to].node.heartbeat(id, incarnation, version, local);
        self.after_node(to);
    }

    fn plan_tick(&mut self, host: usize) {
        let Some(local) = self.hosts[host].node.poll_timeout() else { return };
        let at = self.hosts[host].clock.global(local).max(self.now + 1);
        if at < self.hosts[host].tick_ns {
            self.hosts[host].tick_ns = at;
            let late = self.rng.below(2 * US);
            self.hosts[host].tick_ns += late;
            let boot = self.hosts[host].boot;
            self.queue.push(at + late, Event::Tick { host, boot });
        }
    }

    fn tick(&mut self, host: usize, boot: u32) {
        let h = &mut self.hosts[host];
        if h.boot != boot || !h.up || h.tick_ns != self.now {
            return;
        }
        if h.paused_until > self.now {
            h.tick_ns = h.paused_until + US;
            let at = h.tick_ns;
            self.queue.push(at, Event::Tick { host, boot });
            return;
        }
        h.tick_ns = u64::MAX;
        let local = h.clock.local(self.now);
        for (from, slot) in h.table.iter_mut().enumerate() {
            if std::mem::take(&mut slot.fresh) {
                h.node.arrivals(self.ids[from], slot.incarnation, &slot.rows);
            }
        }
        h.node.handle_timeout(local);
        self.out.events += 1;
        self.after_node(host);
    }

    /// Sends what the node of this host wants sent, takes what it has learned, and plans its next turn.
    fn after_node(&mut self, host: usize) {
        let local = self.local(host);
        while let Some((to, frame)) = self.next_frame(host, local) {
            self.send_frame(to, frame);
        }
        self.take_events(host);
        self.plan_tick(host);
    }

    /// The next frame of this host's node, numbered.
    fn next_frame(&mut self, from: usize, local: u64) -> Option<(To, Frame)> {
        let mut body = std::mem::take(&mut self.body);
        let h = &mut self.hosts[from];
        let transmit = h.node.poll_transmit(local, h.numbers, || self.rng.bits(), &mut body);
        if transmit.is_none() {
            // Reports are no packets here (who was given up is told by itself). What is asked of others they say at once.
            while self.hosts[from].node.poll_report(local, |_, _| Heard::default(), &mut body) {
                let asks = |entry: &ReportEntry| entry.flags & ReportEntry::ASKS != 0;
                let asked: BTreeSet<u32> = ReportEntry::read_all(&body).filter(asks).map(|entry| entry.node).collect();
                asked.into_iter().for_each(|node| self.others_state(from, node, local));
            }
        }
        let made = transmit.map(|transmit| (transmit.to, self.frame_of(from, transmit.kind, body.clone())));
        self.body = body;
        made
    }

    /// Every host that can says what it has received last of this one.
    fn others_state(&mut self, asker: usize, node: u32, local: u64) {
        let Some(of) = self.index(node) else { return };
        for by in (0..self.hosts.len()).filter(|by| ![asker, of].contains(by)) {
            let h = &self.hosts[by];
            if !h.up
                || h.fenced
                || h.paused_until > self.now
                || (0..PATHS).all(|path| self.cut(by, path) || self.cut(asker, path))
            {
                continue;
            }
            let Slot { incarnation, rows, .. } = h.table[of];
            let number = rows.iter().map(|row| row.last_number).max().unwrap_or(0);
            let company = h.node.detector().company(node);
            let detector = self.hosts[asker].node.detector_mut();
            detector.stated((self.ids[by], company), node, (incarnation, number), How::Heard, local);
        }
    }

    fn frame_of(&mut self, from: usize, kind: FrameKind, body: Vec<u8>) -> Frame {
        let (sent_ns, sender) = (self.local(from), self.ids[from]);
        let h = &mut self.hosts[from];
        h.numbers.others += 1;
        let (number, incarnation, table_version) = (h.numbers.others, h.incarnation, h.table_version());
        let header = Header { kind: kind as u8, sender, incarnation, number, sent_ns, table_version, ..Header::default() };
        Frame { from, header, kind, body }
    }

    fn receivers(&self, from: usize, to: To) -> Vec<usize> {
        let is_meant = |host: &usize| match to {
            To::Everybody => *host != from,
            To::Node(id) => self.ids[*host] == id,
        };
        (0..self.hosts.len()).filter(is_meant).collect()
    }

    /// On all paths.
    fn send_frame(&mut self, to: To, frame: Frame) {
        let from = frame.from;
        if !self.hosts[from].up || self.hosts[from].fenced {
            return;
        }
        // A row of a process that runs must not wait: nobody would know of it.
        let tells_of_an_end = match frame.kind {
            FrameKind::Change => true,
            FrameKind::Rows => read_rows(&frame.body).is_some_and(|(_, rows)| rows.iter().all(|row| row.content.is_over())),
            _ => false,
        };
        let frame = Rc::new(frame);
        for path in 0..PATHS {
            for to in self.receivers(from, to) {
                if !self.passes(from, to, path) {
                    continue;
                }
                // What tells of an end tells also which heartbeat was the last one that could carry something of this process: receivers wait for it.
                let pair = self.at(from, to);
                let rode = if self.forgets_the_crashed { 0 } else { self.rides[pair] };
                // Where the link stalls it comes late too, behind what stalled: others have heard of the crash, and have gone on.
                let stalled = if tells_of_an_end { self.links[pair].1 } else { 0 };
                let at = self.lane(from, to, path).max(rode + 1).max(stalled);
                let (percent, until) = self.troubles[path].double;
                if until > self.now && self.rng.chance(percent) {
                    let again = self.again(at).max(at);
                    self.queue.push(again, Event::Frame { to, path, frame: frame.clone() });
                }
                self.queue.push(at, Event::Frame { to, path, frame: frame.clone() });
            }
        }
    }

    fn frame(&mut self, to: usize, path: usize, frame: &Frame) {
        let h = &self.hosts[to];
        if !h.up || h.fenced {
            return;
        }
        let slot = &h.table[frame.from];
        if slot.condemned && slot.incarnation == frame.header.incarnation {
            return;
        }
        self.out.events += 1;
        let (local, came) = (self.local(to), Came { path: path as u8, received_ns: self.local(to) });
        // What it meant is seen by what follows from it.
        let _ = self.hosts[to].node.handle_frame(&frame.header, frame.kind, &frame.body, came, local);
        self.after_node(to);
    }

    /// What the node of this host has learned, and what it asks.
    fn take_events(&mut self, host: usize) {
        loop {
            while let Some(event) = self.hosts[host].node.poll_event() {
                self.take_event(host, event);
            }
            let local = self.local(host);
            let node = &mut self.hosts[host].node;
            if !node.probing().has_next() {
                return;
            }
            node.ask_next(&mut NoBarriers, local);
        }
    }

    fn take_event(&mut self, host: usize, event: machine::Event) {
        match event {
                machine::Event::Act(action) => self.act(host, action),
                machine::Event::Ask(question) => self.question(host, question),
                machine::Event::Host { node, incarnation, .. } => {
                    let Some(of) = self.index(node) else { return };
                    self.hosts[host].table[of] = Slot { incarnation, ..Slot::default() };
                }
                machine::Event::Runs { row, is_back, .. } => {
                    if is_back {
                        self.give(host, Input::Alive(MemberId(row as u16)));
                    }
                }
                machine::Event::Lost { process, .. } => {
                    let member = MemberId(process.instance.pid as u16);
                    self.give(host, Input::Verdict(member, process.state.cause, process.state.grade));
                }
                machine::Event::NameClash { .. }
                | machine::Event::Updated { .. }
                | machine::Event::Interest { .. }
                | machine::Event::Maintenance { .. }
                | machine::Event::Keys { .. }
                | machine::Event::Whole { .. }
                | machine::Event::Announced { .. }
                // Nobody reports here: who was given up is told by itself.
                | machine::Event::Fence(_)
                | machine::Event::GivenUp { .. }
                | machine::Event::Fenced { .. }
                | machine::Event::Refuted { .. }
                | machine::Event::Mistaken { .. }
                | machine::Event::Multicast { .. }
                | machine::Event::Margin { .. }
                | machine::Event::Forgotten { .. } => {}
            }
    }

    /// Which host has this id.
    fn index(&self, id: u32) -> Option<usize> {
        self.ids.iter().position(|known| *known == id)
    }

    /// Does what the detector of this host wants done.
    fn act(&mut self, host: usize, action: Action) {
        match action {
            Action::Verdict(verdict) => {
                let Some(about) = self.index(verdict.node) else { return };
                self.note(Some(host), || {
                    let what = if verdict.app == 0 { String::new() } else { format!(" (p{})", verdict.app) };
                    format!("verdict: host {} {}{what}, {}", about + 1, verdict.cause, verdict.grade)
                });
                let (cause, grade) = (verdict.cause, verdict.grade);
                if verdict.app != 0 {
                    self.give(host, Input::Verdict(MemberId(verdict.app as u16), cause, grade));
                } else if cause != Cause::SilentHost
                    && let Some(member) = self.hosts[about].member.as_ref().map(|member| member.id)
                {
                    self.give(host, Input::Verdict(member, cause, grade));
                }
                for app in verdict.ended_apps {
                    self.give(host, Input::Verdict(MemberId(app as u16), cause, grade));
                }
            }
            Action::Condemn { node, incarnation } => {
                let Some(of) = self.index(node) else { return };
                let slot = &mut self.hosts[host].table[of];
                if slot.incarnation == incarnation {
                    slot.condemned = true;
                }
            }
            // The node makes questions of these.
            Action::Probe { .. } | Action::Knock { .. } | Action::AskOthers { .. } => {}
            Action::TimeoutChanged { .. } | Action::Restarts { .. } => {}
        }
    }

    /// Asks what the node of this host wants asked.
    fn question(&mut self, host: usize, question: probing::Action) {
        // An agent ends with its host here: its port says nothing of it.
        let probing::Action::Echo { node, path } = question else { return };
        let Some(to) = self.index(node).filter(|to| self.passes(host, *to, path)) else { return };
        let (boot, asked_ns) = (self.hosts[host].boot, self.local(host));
        let at = self.lane(host, to, path);
        self.queue.push(at, Event::Question { from: host, to, path, asked_ns, boot });
    }

    // ------------------------------------------------------------------ this host's table

    /// The end of a member's process is pushed to all others, and is in the table of its host: whoever does not hear of it pulls it.
    fn ended(&mut self, host: usize, boot: u32, member: MemberId) {
        if self.hosts[host].boot != boot || !self.hosts[host].up {
            return;
        }
        let (local, origin) = (self.local(host), self.ids[host]);
        let (cause, code) = (Cause::Killed, 9);
        let state = RowState { cause, grade: Grade::Certain, flags: 0, code, event_ns: local };
        let change = Change { origin, row: u32::from(member.0), version: self.hosts[host].next_version(), state };
        let frame = self.frame_of(host, FrameKind::Change, change.bytes().to_vec());
        self.send_frame(To::Everybody, frame);
        let changed = self.hosts[host].node.change(&change, local);
        debug_assert_eq!(changed, Ok(()), "{member} is in the table");
        self.after_node(host);
    }

    /// Somebody gave this host up: it begins a new incarnation (the detector's first duty of the shell).
    fn condemned(&mut self, host: usize, incarnation: u32) {
        let h = &mut self.hosts[host];
        if !h.up || h.fenced || h.incarnation != incarnation {
            return;
        }
        h.incarnation += 1;
        h.numbers = Default::default();
        let (version, local) = (h.next_version(), h.clock.local(self.now));
        h.node.begin_incarnation(h.incarnation, version, local);
        self.note(Some(host), || "learns that it was given up, and begins a new incarnation".to_owned());
        self.give(host, Input::Condemned);
        self.after_node(host);
    }

    /// Members of the group that this host's detector never met, or that it knows to have ended
    /// before the log began: the shell says so, because no verdict will. The service of groups has
    /// its own for members that are lives of agents; here they are processes.
    fn look_for_the_unknown(&mut self, host: usize) {
        let Some(member) = &self.hosts[host].member else { return };
        // One that leaves waits for the others, so it must hear who of them is gone. A joiner knows of nobody yet.
        if member.log().halted().is_some() || member.paused_until > self.now {
            return;
        }
        let since = member.joined_ns.unwrap_or(0);
        let mut found = Vec::new();
        for other in
            member.log().concerned().iter().filter(|other| *other != member.id && !member.log().crashed().contains(*other))
        {
            let Some(life) = self.life(other) else { continue };
            let (d, id) = (self.hosts[host].node.detector(), self.ids[life.host]);
            let grade = match d.app_state(id, u32::from(other.0)) {
                Some(AppState::Alive | AppState::Hung { .. }) => None,
                Some(AppState::Doomed { .. }) => Some(Grade::Certain),
                Some(AppState::Ended { cause: Cause::SilentHost, .. }) => Some(Grade::Inferred),
                Some(AppState::Ended { .. }) => Some(Grade::Certain),
                // Nobody watches it: it may be announced yet.
                Some(AppState::Unobserved) | None => {
                    let judged = d.state(id).is_none_or(|state| state != State::Late);
                    (judged && self.now > since + 12 * PERIOD_NS).then_some(Grade::Inferred)
                }
            };
            if let Some(grade) = grade {
                found.push((other, grade));
            }
        }
        for (other, grade) in found {
            self.give(host, Input::Verdict(other, Cause::SilentHost, grade));
        }
    }

    // ------------------------------------------------------------------ a member's steps

    /// Hands something to the member's process on this host.
    fn give(&mut self, host: usize, input: Input) {
        let local = self.local(host);
        let Some(member) = &mut self.hosts[host].member else { return };
        if member.paused_until > self.now {
            member.inbox.push_back(input);
            return;
        }
        self.out.events += 1;
        // A state that comes as a message names the crashed, too: whoever made it was told.
        let was_told = (!matches!(input, Input::Message(..))).then(|| member.log().crashed().clone());
        let core = &mut member.core;
        match input {
            Input::Message(from, message) => _ = core.handle_message(local, from, message),
            Input::Copy(from, path, message, arrival) => _ = core.handle_copy(arrival, from, path, message),
            Input::Piggyback(from, message) => {
                let taken = core.handle_piggyback(local, from, message) != Err(Refused::Crashed);
                if taken || self.forgets_the_crashed {
                    let checked = member.crash_order.piggyback(member.id, from);
                    self.check(checked);
                }
            }
            Input::Memory(from, epoch, id, answer) => _ = core.handle_memory(local, from, epoch, id, answer),
            Input::Timer => core.handle_timeout(local),
            Input::Verdict(about, cause, grade) => core.handle_verdict(local, about, cause, grade),
            Input::Alive(about) => core.handle_alive(local, about),
            Input::Fenced(about) => core.handle_fenced(local, about),
            Input::Witness(about, answer) => core.handle_witness(local, about, answer),
            Input::Condemned => {
                if self.plan.options.policy == Policy::TrustContract && core.log().kind().needs_accuracy() {
                    core.stop(Halted::Expelled);
                }
            }
        }
        self.note_gate(host);
        if let Some(was_told) = was_told {
            self.note_crashes(host, &was_told);
        }
        self.drain(host);
    }

    /// Notes what the gate decided in this step.
    fn note_gate(&mut self, host: usize) {
        let Some(timeline) = &mut self.timeline else { return };
        let Some(member) = &self.hosts[host].member else { return };
        for action in member.core.decided() {
            timeline.push(self.now, Some(host), Some(member.id), format!("gate: {}", brief(action)));
        }
    }

    /// Checks and counts the crashes that the log was told of in this step.
    fn note_crashes(&mut self, host: usize, was_told: &MemberSet) {
        let Some(member) = &self.hosts[host].member else { return };
        let told = member.log().crashed().iter().filter(|about| !was_told.contains(*about));
        for about in told.collect::<Vec<_>>() {
            let gone = self.is_gone(about);
            let Some(member) = &mut self.hosts[host].member else { return };
            let checked = member.crash_order.told(member.id, about, gone);
            self.out.crashes_told += 1;
            self.note(Some(host), || format!("is told that {about} has crashed"));
            self.check(checked);
        }
    }

    /// The fence: whoever is asked for first is cut off, and can then ask for nobody.
    fn fence(&mut self, by: MemberId, member: MemberId) {
        let (Some(asker), Some(life)) = (self.host_of(by), self.life(member)) else { return };
        let (host, dead) = (life.host, life.dead);
        if self.hosts[asker].fenced || (asker == host && !dead) {
            return;
        }
        if !dead && !self.hosts[host].fenced {
            self.note(Some(host), || format!("is cut off by the fence, as {by} asked"));
            // What the policy asks of a fence is that the member neither runs nor sends. HUC needs both: it decides when its heartbeat has left, and a
            // sender whose port is closed believes so. HSUC would do with the port, which is the weaker fence and thus the harder world for it.
            let runs_on = self.hosts[host].member.as_ref().is_none_or(|m| m.log().kind() != Kind::Huc);
            if runs_on {
                self.lose_what_is_in_flight(member, host);
                self.clients_of(member);
            } else {
                self.crash(host, true);
            }
            self.hosts[host].fenced = true;
        }
        // Behind whatever it had sent.
        let mut at = self.now + DRAIN_NS;
        for to in 0..self.hosts.len() {
            at = at.max(self.rides[self.at(host, to)] + 1);
        }
        self.queue.push(at, Event::Confirmed { to: by, member, answer: None });
    }

    /// Behind each step of a member that tells it of no crash.
    fn after_step(&mut self, host: usize) {
        self.note_gate(host);
        self.drain(host);
    }

    /// Everything that the member wants, and what is checked behind each step.
    fn drain(&mut self, host: usize) {
        loop {
            let Some(member) = &mut self.hosts[host].member else { return };
            let output = match member.core.poll_output() {
                Some(member::Output::Log(output)) => output,
                Some(member::Output::Ask(ask)) => {
                    self.ask(host, ask);
                    continue;
                }
                None => break,
            };
            let is_send = matches!(output, Output::Send { .. } | Output::Copies { .. } | Output::Memory { .. });
            if !self.survives_output(host, is_send) {
                return;
            }
            self.output(host, output);
            if self.violation.is_some() {
                return;
            }
        }
        let Some(member) = &mut self.hosts[host].member else { return };
        member.core.invariants();
        let engine_of = member.log().is_running().then(|| member.log().epoch());
        if engine_of != std::mem::replace(&mut member.engine_of, engine_of) {
            member.engine_ns = self.now;
        }
        let checked = member.stability.stepped(member.core.log());
        self.check(checked);
        self.plan_timer(host);
    }

    /// What the gate wants to know from outside reaches the fence or the witness soon.
    fn ask(&mut self, host: usize, ask: Ask) {
        let Some(by) = self.hosts[host].member.as_ref().map(|member| member.id) else { return };
        let event = match ask {
            Ask::Fence { member } => Event::FenceAsked { by, member },
            Ask::Witness { member } => Event::WitnessAsked { by, member },
        };
        self.queue.push(self.now + 20 * US, event);
    }

    fn plan_timer(&mut self, host: usize) {
        let clock = self.hosts[host].clock;
        let Some(member) = &mut self.hosts[host].member else { return };
        let Some(local) = member.core.poll_timeout() else { return };
        let at = clock.global(local).max(self.now + 1);
        if at < member.timer_ns {
            let at = at + self.rng.below(2 * US);
            member.timer_ns = at;
            let id = member.id;
            self.queue.push(at, Event::Timer { host, member: id });
        }
    }

    fn timer(&mut self, host: usize, id: MemberId) {
        let paused = self.hosts[host].paused_until;
        let Some(member) = &mut self.hosts[host].member else { return };
        if member.id != id || member.timer_ns != self.now {
            return;
        }
        let until = paused.max(member.paused_until);
        if until > self.now {
            // Behind what came meanwhile.
            member.timer_ns = until + US;
            self.queue.push(until + US, Event::Timer { host, member: id });
            return;
        }
        member.timer_ns = u64::MAX;
        let due = member.core.poll_timeout().is_some_and(|at| at <= self.hosts[host].clock.local(self.now));
        if due {
            self.give(host, Input::Timer);
        } else {
            self.plan_timer(host);
        }
    }

    /// One more thing leaves this process; whether it lived to make it.
    fn survives_output(&mut self, host: usize, is_send: bool) -> bool {
        let Some(member) = &mut self.hosts[host].member else { return false };
        match &mut member.crash_after {
            None => true,
            Some(Ends { after: 0, power, .. }) => {
                let power = *power;
                self.crash(host, power);
                false
            }
            Some(ends) => {
                ends.after -= u32::from(is_send || !ends.sends);
                true
            }
        }
    }

    /// The same between two copies that the host itself sends.
    fn survives_power(&mut self, host: usize) -> bool {
        match self.hosts[host].member.as_ref().and_then(|member| member.crash_after) {
            Some(Ends { power: true, .. }) => self.survives_output(host, true),
            _ => true,
        }
    }

    fn output(&mut self, host: usize, output: Output) {
        let Some(member) = &self.hosts[host].member else { return };
        let me = member.id;
        match output {
            Output::Send { to, message } => self.send(host, me, to, message),
            Output::Copies { message } => {
                let text = self.timeline.is_some().then(|| brief(&message));
                self.note(Some(host), || format!("⇶ copies  {}", text.unwrap_or_default()));
                let checked = self.one_leader.speaks(me, &message);
                self.check(checked);
                self.speaks(host, me, &message);
                let (message, sent_ns) = (Rc::new(message), self.now);
                for path in 0..PATHS {
                    // The agent sends both copies, so only the power can come between them.
                    if path > 0 && !self.survives_power(host) {
                        self.missed = true;
                        return;
                    }
                    for to in (0..self.hosts.len()).filter(|to| *to != host) {
                        if self.passes(host, to, path) {
                            let at = self.lane(host, to, path);
                            let (percent, until) = self.troubles[path].double;
                            if until > self.now && self.rng.chance(percent) {
                                let again = self.again(at);
                                self.queue.push(again, Event::Copy { to, from: me, path, sent_ns, message: message.clone() });
                            }
                            self.queue.push(at, Event::Copy { to, from: me, path, sent_ns, message: message.clone() });
                        } else {
                            self.missed = true;
                        }
                    }
                }
            }
            Output::Memory { to, epoch, request } => {
                let Some(life) = self.life(to) else { return };
                let pair = self.at(host, life.host);
                let at = (self.now + LAMBDA_MIN_NS / 2 + self.rng.below(20 * US)).max(self.verbs[pair].0 + 1);
                self.verbs[pair].0 = at;
                let sent_ns = self.now;
                self.note(Some(host), || format!("⇢ memory of {to}  {request:?}"));
                self.queue.push(at, Event::Request { to, from: me, sent_ns, epoch, request });
            }
            Output::Apply { position, entry } => self.apply(host, me, position, &entry),
            Output::Install { position, snapshot } => {
                let state = snapshot.map_or(Some(0), |bytes| <[u8; 8]>::try_from(&bytes[..]).ok().map(u64::from_le_bytes));
                let Some(member) = &mut self.hosts[host].member else { return };
                member.state = state.unwrap_or(u64::MAX);
                member.chain = self.chain_of.get(&member.state).copied().flatten();
                self.given.push((host, member.chain));
                let gap = member.no_gap.installed(me, position);
                let state = member.state;
                let same = self.snapshots.installed(me, position, state);
                self.note(Some(host), || format!("installs the state after {position} entries"));
                self.check(gap.and(same));
            }
            Output::Halt(why) => self.halts(host, me, why),
        }
    }

    fn apply(&mut self, host: usize, me: MemberId, position: u64, entry: &Entry) {
        self.out.applied += 1;
        let Some(member) = &mut self.hosts[host].member else { return };
        member.state = snapshot_state(member.state, entry);
        let state = member.state;
        if self.timeline.is_some() {
            if let Some(value) = value_of(entry) {
                self.chains.push(Applied { value, host, before: member.chain });
                member.chain = Some(self.chains.len() - 1);
            }
            self.chain_of.insert(state, member.chain);
        }
        let gap = member.no_gap.applied(me, position);
        let (epoch, kind, members) = (member.log().epoch(), member.log().kind(), member.log().members());
        // Several outputs may wait behind each other; only the last control entry is known to be what the log stands behind.
        let behind = if !matches!(entry.body, Body::Value(_)) && member.log().position() == position {
            self.engine_change.behind(me, position, epoch, kind, members)
        } else {
            Ok(())
        };
        if self.plan.snapshots && position.is_multiple_of(3) && member.log().position() == position {
            let _ = member.core.keep_snapshot(position, state.to_le_bytes().into());
        }
        self.note(Some(host), || format!("applies {position}: {}", brief(entry)));
        let agreed = self.agreement.applied(me, position, entry);
        if let (Ok(true), Body::Join(_) | Body::Leave(_)) = (&agreed, &entry.body)
            && let Some(member) = &self.hosts[host].member
        {
            self.memberships.push(member.log().members().clone());
        }
        if agreed.is_err() && self.notes_all {
            // Another log than the longest; what it says must have been asked for all the same.
            let (valid, wanted) = (self.validity.applied(entry), self.eviction.applied(entry, |member| self.is_gone(member)));
            self.check(valid);
            self.check(wanted);
        }
        let checked = gap.and(behind).and_then(|()| match agreed {
            Err(violation) => Err(violation),
            Ok(false) => Ok(()),
            Ok(true) => {
                self.snapshots.applied(entry);
                self.integrity.applied(position, entry)?;
                self.validity.applied(entry)?;
                self.eviction.applied(entry, |member| self.is_gone(member))
            }
        });
        let client = value_of(entry).and_then(|value| (value as usize).checked_sub(1));
        if let Some(client) = client.and_then(|at| self.clients.get_mut(at)) {
            client.done = true;
        }
        self.check(checked);
    }

    fn halts(&mut self, host: usize, me: MemberId, why: Halted) {
        self.note(Some(host), || format!("stops: {why:?}"));
        let Some(member) = &mut self.hosts[host].member else { return };
        member.halted = Some(why);
        let left = member.leaves;
        let given_up = self.hosts[host].fenced
            || self.hosts[host].boot < self.hosts[host].incarnation
            || self.hosts.iter().any(|other| other.member.as_ref().is_some_and(|m| m.log().crashed().contains(me)));
        let Some(member) = &self.hosts[host].member else { return };
        let expelled = given_up || self.witness.expelled.contains(me) || self.skipped.contains(me);
        // Who came to this engine behind its first round, and has heard none that left since, cannot tell when the last one was: a joiner. Who was a member when the
        // engine began was waited for.
        let founded = self.started.get(&member.log().epoch());
        let joined = founded.is_some_and(|(at, founders)| *at <= member.engine_ns && !founders.contains(me));
        let unsettled = joined && member.copy_ns <= member.engine_ns;
        let missed = self.missed;
        let reasons = Reasons { left, expelled, missed, unsettled, kind: member.log().kind() };
        let checked = self.safe_exit.halted(me, why, reasons);
        self.check(checked);
        if why != Halted::Left {
            self.out.halted += 1;
        }
        let life = &mut self.lives[usize::from(me.0) - 1];
        (life.halted, life.left) = (true, why == Halted::Left && !life.dead);
        self.clients_of(me);
        // Its process exits, so that everybody learns for certain that it is gone.
        let at = self.now + self.rng.below(2 * PERIOD_NS);
        self.queue.push(at, Event::Exit { host, member: me });
    }

    /// A round of LOWI leaves. Whoever has a slot before it and is silent is given up, and finds out when it hears of it. Only who was not there yet
    /// when the last round came may be so late: behind a change of the engine, or with its state on its way.
    fn speaks(&mut self, host: usize, me: MemberId, message: &Message) {
        let Message::Engine { epoch, body: EngineMessage::Lowi(_) } = message else { return };
        // Those who start the group together have heard its start.
        let last_ns = self.spoke_ns.insert(*epoch, self.now).or((*epoch == 0).then_some(0));
        let Some(speaker) = &self.hosts[host].member else { return };
        self.started.entry(*epoch).or_insert_with(|| (self.now, speaker.log().members().clone()));
        for (at_host, other) in self.hosts.iter().filter_map(|host| Some((host, host.member.as_ref()?))) {
            let before = other.id < me && speaker.log().members().contains(other.id);
            let heard =
                last_ns.is_some_and(|at| other.engine_of == Some(*epoch) && other.engine_ns <= at + LAMBDA_MIN_NS + DELTA_MAX_NS);
            // Its slot passed while it stood still, or its words waited behind those of others when it went on.
            let stood_still = other.paused_until.max(at_host.paused_until) > last_ns.unwrap_or(0);
            if before && (!heard || stood_still) {
                self.skipped.insert(other.id);
            }
        }
    }

    // ------------------------------------------------------------------ links and memory

    fn send(&mut self, host: usize, me: MemberId, to: MemberId, message: Message) {
        let Some(life) = self.life(to) else { return };
        let pair = self.at(host, life.host);
        let (last, stalled) = self.links[pair];
        let at = (self.now + self.link_delay()).max(last + 1).max(stalled);
        self.links[pair].0 = at;
        self.note(Some(host), || format!("→ {to}  {}", brief(&message)));
        let sent_ns = self.now;
        self.queue.push(at, Event::Message { to, from: me, sent_ns, message });
    }

    /// Whether something that was sent then over a reliable link is lost with its sender.
    fn is_lost(&self, from: MemberId, to: usize, sent_ns: u64) -> bool {
        self.life(from).is_none_or(|life| sent_ns > life.lost_after[to])
    }

    /// Until when nothing comes over the reliable link, if so.
    fn held_up(&self, from: MemberId, to: usize) -> Option<u64> {
        let from = self.life(from)?.host;
        let cut = |host: usize| self.hosts[host].cut_until.iter().copied().min().unwrap_or(0);
        let until = cut(from).max(cut(to)).max(self.hosts[to].paused_until);
        (until > self.now).then_some(until)
    }

    fn message(&mut self, to: MemberId, from: MemberId, sent_ns: u64, message: Message) {
        let (Some(host), Some(origin)) = (self.host_of(to), self.life(from).map(|life| life.host)) else { return };
        // What is held up keeps its place: the link is first in, first out, whatever is cut in between.
        let pair = self.at(origin, host);
        let held_up = self.held_up(from, host);
        if held_up.is_some() || !self.waiting[pair].is_empty() {
            if self.waiting[pair].is_empty() {
                self.queue.push(held_up.unwrap_or(self.now), Event::Release { pair });
            }
            self.waiting[pair].push_back((to, from, sent_ns, message));
            return;
        }
        self.deliver(to, from, sent_ns, message);
    }

    fn release(&mut self, pair: usize) {
        while let Some((to, from, ..)) = self.waiting[pair].front() {
            let host = self.host_of(*to);
            if let Some(until) = host.and_then(|host| self.held_up(*from, host)) {
                self.queue.push(until, Event::Release { pair });
                return;
            }
            if let Some((to, from, sent_ns, message)) = self.waiting[pair].pop_front() {
                self.deliver(to, from, sent_ns, message);
            }
        }
    }

    fn deliver(&mut self, to: MemberId, from: MemberId, sent_ns: u64, message: Message) {
        let Some(host) = self.host_of(to) else { return };
        if self.hosts[host].fenced || self.is_lost(from, host, sent_ns) {
            return;
        }
        self.note(Some(host), || format!("← {from}  {}", brief(&message)));
        self.give(host, Input::Message(from, message));
    }

    fn request(&mut self, to: MemberId, from: MemberId, sent_ns: u64, epoch: Epoch, request: Request) {
        let (Some(life), Some(asker)) = (self.life(to), self.life(from)) else { return };
        let (host, back, was_sent) = (life.host, asker.host, !self.is_lost(from, life.host, sent_ns));
        let h = &self.hosts[host];
        // The memory lives as long as its host does, whether the process does or not.
        let there = h.up && !h.fenced && was_sent && !(life.dead && self.life_ended_with_host(to));
        if !there {
            return;
        }
        if let Some(until) = self.held_up(from, host) {
            let pair = self.at(back, host);
            self.verbs[pair].0 = self.verbs[pair].0.max(until);
            self.queue.push(until, Event::Request { to, from, sent_ns, epoch, request });
            return;
        }
        let (id, answer) = self.hosts[host].memory(to, epoch).handle(request);
        let pair = self.at(host, back);
        let at = (self.now + LAMBDA_MIN_NS / 2 + self.rng.below(20 * US)).max(self.verbs[pair].1 + 1);
        self.verbs[pair].1 = at;
        self.queue.push(at, Event::Answer { to: from, from: to, epoch, id, answer });
    }

    /// Its host has booted since: its memory is gone.
    fn life_ended_with_host(&self, member: MemberId) -> bool {
        self.life(member).is_none_or(|life| life.lost_after.len() > self.hosts.len())
    }

    /// What a member that is cut short had sent: of each link a part of what is in flight is lost, the newest first.
    fn lose_what_is_in_flight(&mut self, member: MemberId, from: usize) {
        for to in 0..self.hosts.len() {
            let back = if self.rng.chance(50) { 0 } else { self.rng.below(150 * US) };
            let after = self.now.saturating_sub(back);
            if to != from {
                self.lives[usize::from(member.0) - 1].lost_after[to] = after;
            }
        }
    }

    // ------------------------------------------------------------------ faults

    fn happens(&mut self, at: usize) {
        let act = self.plan.steps[at].act;
        if act.highest_host().is_some_and(|host| host >= self.hosts.len()) {
            return;
        }
        if let Some(host) = act.highest_host()
            && !matches!(act, Act::Propose { .. } | Act::Stall { .. })
            && self.deferred(host)
        {
            // Nothing happens inside of what stands still, but for the power.
            if !matches!(act, Act::PowerOff { .. } | Act::CutPath { .. } | Act::CutHost { .. }) {
                self.note(None, || format!("─── {act}: nothing happens, the host stands still"));
                return;
            }
        }
        let now = self.now;
        let of_process = if let Act::Leave { host } | Act::Switch { host, .. } = act { Some(host) } else { None };
        let still = of_process.and_then(|host| self.hosts[host].member.as_ref()).is_some_and(|member| member.paused_until > now);
        self.note(None, || format!("─── {act}{}", if still { ": nothing happens, the process stands still" } else { "" }));
        match act {
            Act::Propose { host, values } => {
                for _ in 0..values {
                    let value = self.clients.len() as u64 + 1;
                    self.clients.push(Client { value, at: None, prefers: host, done: false });
                    self.client(value as usize - 1);
                }
            }
            Act::Kill { host, after } => self.crash_soon(host, Ends { after, power: false, sends: false }),
            Act::KillBehind { host, sends } => {
                self.crash_soon(host, Ends { after: sends.saturating_add(1), power: false, sends: true })
            }
            Act::PowerOff { host, after } => self.crash_soon(host, Ends { after, power: true, sends: false }),
            Act::Start { host } => {
                // A host does not boot faster than what it sent arrives: its new incarnation would be announced before.
                let boots = self.hosts[host].off_ns + DRAIN_NS;
                if !self.hosts[host].up && now < boots {
                    self.queue.push(boots, Event::Act(at));
                } else {
                    self.start(host);
                }
            }
            Act::PauseProcess { host, ns } => {
                if let Some(member) = &mut self.hosts[host].member {
                    member.paused_until = member.paused_until.max(now + ns);
                    let (until, member) = (member.paused_until, member.id);
                    self.queue.push(until, Event::ResumeProcess { host, member });
                }
            }
            Act::PauseHost { host, ns } => self.hosts[host].paused_until = self.hosts[host].paused_until.max(now + ns),
            Act::CutPath { host, path, ns } => {
                self.hosts[host].cut_until[path] = self.hosts[host].cut_until[path].max(now + ns);
            }
            Act::CutHost { host, ns } => {
                for until in &mut self.hosts[host].cut_until {
                    *until = (*until).max(now + ns);
                }
            }
            Act::Lose { path, percent, ns } => self.troubles[path].lose = (percent, now + ns),
            Act::Double { path, percent, ns } => self.troubles[path].double = (percent, now + ns),
            Act::Delay { path, percent, by_ns, ns } => self.troubles[path].delay = (percent, by_ns, now + ns),
            Act::Stall { from, to, ns } => {
                let pair = self.at(from, to);
                self.links[pair].1 = self.links[pair].1.max(now + ns);
            }
            Act::Leave { host } => self.leave(host),
            Act::Switch { host, to } => self.switch(host, to),
            Act::WitnessGone { ns } => self.witness.gone_until = self.witness.gone_until.max(now + ns),
            Act::WitnessTakesSides => self.witness.takes_sides = true,
        }
    }

    fn leave(&mut self, host: usize) {
        let local = self.local(host);
        if let Some(member) = &mut self.hosts[host].member
            && member.paused_until <= self.now
            && member.core.leave(local).is_ok()
        {
            member.leaves = true;
            self.after_step(host);
        }
    }

    fn switch(&mut self, host: usize, to: Kind) {
        let local = self.local(host);
        if let Some(member) = &mut self.hosts[host].member
            && member.paused_until <= self.now
            && member.log().kind() != to
            && member.core.switch(local, to).is_ok()
        {
            self.eviction.switches(to);
            self.after_step(host);
        }
    }

    fn crash_soon(&mut self, host: usize, ends: Ends) {
        let Ends { after, power, .. } = ends;
        let Some(member) = &mut self.hosts[host].member else {
            if power && self.hosts[host].up {
                self.crash(host, true);
            }
            return;
        };
        if after == 0 {
            self.crash(host, power);
            return;
        }
        member.crash_after = Some(Ends { after: after - 1, ..ends });
        let id = member.id;
        let at = self.now + 3 * PERIOD_NS;
        self.queue.push(at, Event::CrashNow { host, member: id });
    }

    /// The process on this host ends now; with `power`, the host too.
    fn crash(&mut self, host: usize, power: bool) {
        let member = self.hosts[host].member.take();
        if let Some(member) = member {
            let id = member.id;
            self.note(Some(host), || format!("{id} {}", if power { "ends with its host" } else { "is dead" }));
            self.lose_what_is_in_flight(id, host);
            self.lives[usize::from(id.0) - 1].dead = true;
            self.clients_of(id);
            if !power && self.hosts[host].up {
                let (boot, at) = (self.hosts[host].boot, self.now + self.rng.below(3 * US));
                self.queue.push(at, Event::Ended { host, boot, member: id });
            }
        }
        if power {
            let now = self.now;
            let h = &mut self.hosts[host];
            h.up = false;
            h.off_ns = now;
            h.memories.clear();
            h.paused_until = 0;
            for life in self.lives.iter_mut().filter(|life| life.host == host) {
                // Marks that the memory went too.
                life.lost_after.push(0);
            }
        }
    }

    fn start(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        if h.fenced || h.member.is_some() {
            return;
        }
        if !h.up {
            h.boot(host, h.clock.local(self.now));
            let boot = h.boot;
            let first = self.now + self.rng.below(PERIOD_NS);
            self.queue.push(first, Event::Heartbeat { host, boot });
        }
        let id = self.new_life(host);
        let log = Log::join(id, Config::default(), engines::build(self.plan.seed, self.plan.options.policy));
        let mut member = self.member(host, log, Some(self.now));
        member.asked_ns = self.now;
        self.hosts[host].member = Some(member);
        self.eviction.joins(id);
        self.note(Some(host), || format!("{id} starts, and wants to join"));
        self.enlist(host);
        self.after_node(host);
        let at = self.now + 2 * PERIOD_NS;
        self.queue.push(at, Event::Admit { member: id });
    }

    /// Has some member that takes part propose the join of this one, until it has its state.
    fn admit(&mut self, member: MemberId) {
        let Some(host) = self.host_of(member) else { return };
        let (running, halted) =
            self.hosts[host].member.as_ref().map_or((true, true), |m| (m.log().is_running(), m.halted.is_some()));
        if running || halted || self.hosts[host].fenced {
            return;
        }
        let again = self.now + 6 * PERIOD_NS;
        let able: Vec<_> = (0..self.hosts.len()).filter(|h| self.is_able(*h)).collect();
        if able.is_empty() {
            self.queue.push(again, Event::Admit { member });
            return;
        }
        let by = *self.rng.pick(&able);
        let local = self.local(by);
        let Some(helper) = &mut self.hosts[by].member else { return };
        let known = helper.log().members().contains(member);
        let void = !known && helper.core.admit(local, member) == Err(Refused::Duplicate);
        self.after_step(by);
        if void {
            // A higher id came first: it comes again under a new one.
            self.crash(host, false);
            self.start(host);
        } else {
            self.queue.push(again, Event::Admit { member });
        }
    }

    /// Whether the member on this host takes part and can be spoken to.
    fn is_able(&self, host: usize) -> bool {
        let h = &self.hosts[host];
        let member = h.member.as_ref();
        h.up && !h.fenced
            && !self.deferred(host)
            && !self.cut_off(host)
            && member.is_some_and(|m| m.log().is_running() && m.paused_until <= self.now)
    }

    /// Whether a client that runs on this host waits for the member there, reached by others or not.
    fn waits_for_its_own(&self, host: usize) -> bool {
        let h = &self.hosts[host];
        self.plan.clients_stay && h.up && !h.fenced && h.member.as_ref().is_some_and(|m| m.halted.is_none())
    }

    /// A client hands its value to a member; if that one cannot take it, to another, later.
    fn client(&mut self, client: usize) {
        if self.clients[client].done || self.clients[client].at.is_some_and(|at| !self.is_gone(at)) {
            return;
        }
        let able: Vec<_> = (0..self.hosts.len()).filter(|h| self.is_able(*h)).collect();
        let prefers = self.clients[client].prefers;
        let stays = self.waits_for_its_own(prefers);
        let takes = |m: &Member| m.log().is_running() && m.paused_until <= self.now;
        let host = if stays {
            let takes = !self.deferred(prefers) && self.hosts[prefers].member.as_ref().is_some_and(takes);
            if takes { prefers } else { usize::MAX }
        } else if able.contains(&prefers) {
            prefers
        } else if able.is_empty() {
            usize::MAX
        } else {
            *self.rng.pick(&able)
        };
        if host == usize::MAX {
            let again = self.now + 4 * PERIOD_NS;
            self.queue.push(again, Event::Client(client));
            return;
        }
        let value = self.clients[client].value;
        let local = self.local(host);
        let Some(member) = &mut self.hosts[host].member else { return };
        let me = member.id;
        match member.core.propose(local, value.to_le_bytes().into()) {
            Ok(id) => self.proposed(client, me, id, value),
            Err(_) => {
                let again = self.now + 4 * PERIOD_NS;
                self.queue.push(again, Event::Client(client));
            }
        }
        self.after_step(host);
    }

    fn proposed(&mut self, client: usize, me: MemberId, id: EntryId, value: u64) {
        self.clients[client].at = Some(me);
        self.validity.proposed(id, value);
        let host = self.host_of(me);
        self.note(host, || format!("proposes {id}={value}"));
    }

    /// Whoever had handed something to this member hands it to another.
    fn clients_of(&mut self, member: MemberId) {
        for at in 0..self.clients.len() {
            if self.clients[at].at == Some(member) && !self.clients[at].done {
                let later = self.now + self.rng.below(6 * PERIOD_NS);
                self.queue.push(later, Event::Client(at));
            }
        }
    }

    fn resume(&mut self, host: usize, id: MemberId) {
        let Some(member) = &mut self.hosts[host].member else { return };
        if member.id != id || member.paused_until > self.now {
            return;
        }
        // Copies carry the kernel's stamp and go first: later inputs come with later times.
        let (copies, others) = std::mem::take(&mut member.inbox).into_iter().partition(|input| matches!(input, Input::Copy(..)));
        member.inbox = copies;
        member.inbox.extend::<std::collections::VecDeque<_>>(others);
        loop {
            let Some(member) = &mut self.hosts[host].member else { return };
            if member.id != id {
                return;
            }
            let Some(input) = member.inbox.pop_front() else { break };
            self.give(host, input);
        }
    }

    // ------------------------------------------------------------------ the liveness phase

    fn heal(&mut self) {
        self.note(None, || "═══ the faults are over".to_owned());
        self.troubles = [Trouble::default(); PATHS];
        for link in &mut self.links {
            link.1 = 0;
        }
        // What stands still or is cut now ends by itself: to end it here would reorder what waits for it.
        let ends = self.hosts.iter().map(|host| {
            let process = host.member.as_ref().map_or(0, |member| member.paused_until);
            host.paused_until.max(process).max(host.cut_until[0]).max(host.cut_until[1])
        });
        self.healed_ns = ends.fold(self.now.max(self.witness.gone_until), u64::max);
        let at = self.healed_ns + 4 * PERIOD_NS;
        self.queue.push(at, Event::Look);
    }

    fn standings(&self) -> Vec<Standing> {
        let living = self.hosts.iter().filter(|host| host.up && !host.fenced).filter_map(|host| host.member.as_ref());
        living
            .filter(|member| member.halted.is_none())
            .map(|member| Standing {
                member: member.id,
                running: member.log().is_running(),
                leaving: member.log().is_leaving(),
                position: member.no_gap.position(),
                pending: member.log().pending(),
            })
            .collect()
    }

    /// Whether the world is over: everything is done, or it took too long.
    fn look(&mut self) -> bool {
        let standings = self.standings();
        let longest = self.agreement.len();
        let served = self.clients.iter().all(|client| client.done);
        if standings.is_empty() && !served {
            self.out.excused = self.out.excused.or(Some("nobody is left"));
        }
        let clients = standings.is_empty() || served;
        let many = (self.clients.len() as u64).saturating_sub(VALUES_FEW) * VALUE_NS;
        let late = self.now > self.healed_ns + LIVENESS_NS + many;
        if !clients || standings.iter().any(|standing| !Termination::is_done(standing, longest)) {
            if !late {
                let again = self.now + PERIOD_NS;
                self.queue.push(again, Event::Look);
                return false;
            }
            self.out.excused = self.excuse(&standings).or(self.out.excused);
            if self.out.excused.is_none() {
                let checked = Termination::at_the_end(&standings, longest);
                let checked = checked.and_then(|()| broken("termination", "a client's value was never applied"));
                self.check(checked);
            }
        }
        true
    }

    /// Whether one who waits for its state can have it from one who leaves.
    fn may_be_given(&self) -> bool {
        let living = || self.hosts.iter().filter(|host| host.up && !host.fenced).filter_map(|host| host.member.as_ref());
        let gives = |to: MemberId| living().any(|giver| giver.log().has_state() && giver.log().members().contains(to));
        living().any(|waits| !waits.log().is_running() && !waits.log().has_state() && gives(waits.id))
    }

    /// Why the end of this world is not judged, if so.
    fn excuse(&self, standings: &[Standing]) -> Option<&'static str> {
        // Isolation ends with whatever is heard: only where there is nobody else to hear may it last.
        let lives = |host: &Host| host.up && !host.fenced && host.member.is_some();
        let isolated = |host: &Host| lives(host) && host.node.detector().isolated_since_ns().is_some();
        if self.hosts.iter().filter(|host| lives(host)).count() == 1 && self.hosts.iter().any(isolated) {
            return Some("a detector is isolated: it gives no verdict until somebody is heard");
        }
        // One that leaves and goes by hints goes in the end, whoever is left.
        let leaves = |member: &Member| member.log().is_leaving() && !member.log().kind().needs_accuracy();
        let stays = self.hosts.iter().filter(|host| lives(host)).any(|host| host.member.as_ref().is_some_and(leaves));
        if standings.iter().all(|standing| !standing.running) && !self.may_be_given() && !stays {
            return Some("nobody is left who has the state");
        }
        // Who left stayed until it was not needed any more; if it went too early, that is no excuse.
        let is_lost = |member: MemberId| self.is_gone(member) && self.life(member).is_none_or(|life| !life.left);
        let lacks = |members: &MemberSet| members.iter().filter(|member| !is_lost(*member)).count() < members.majority();
        // By the groups that know most: whoever is behind is told by them, whatever it would need by what it knows.
        let logs = || self.hosts.iter().filter_map(|host| host.member.as_ref()).map(Member::log).filter(|log| log.is_running());
        let epoch = logs().map(|log| log.epoch()).max().unwrap_or(0);
        let ahead = || logs().filter(|log| log.epoch() == epoch && !log.kind().needs_accuracy());
        // Raft changes its own voters behind the log's members, and needs a majority of those before.
        let of_raft = ahead().filter(|log| log.kind() == Kind::Raft).any(|log| {
            let since = self.memberships.iter().rev().take_while(|members| *members != log.members());
            since.chain(&log.quorums()).any(lacks)
        });
        let lacks_majority = of_raft || ahead().max_by_key(|log| log.position()).is_some_and(|log| lacks(log.members()));
        lacks_majority.then_some("a majority is gone")
    }
}
