//! How many message delays it takes until a value is decided, counted.
//!
//! In this world every message takes the same time and nothing else takes any. Whatever follows from the proposal carries a number: 0 where it was
//! made, and one more with each message that it went through; at a member, the most of what it knows. So a decision has the length of the longest
//! chain of messages that it waited for. Time that passes without a message (a heartbeat's turn, LOWI's Δ) is not counted, and messages that do not
//! follow from the proposal (idle heartbeats) count nothing.

use std::collections::{BTreeMap, VecDeque};

use fide_proto::consensus::Kind;
use fide_proto::consensus::log::{Config, Epoch, Log, Message, Output};
use fide_proto::consensus::memory::{Answer, Request, RequestId};
use fide_proto::consensus::policy::Policy;
use fide_proto::group::{MemberId, MemberSet};
use fide_wire::PATHS;

use crate::engines;
use crate::host::Memory;
use crate::time::{JITTER_NS, LAMBDA_MIN_NS, PERIOD_NS};

/// What every message takes.
const UNIT_NS: u64 = LAMBDA_MIN_NS + JITTER_NS / 2;

/// Delays until a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// Until the first member decides: the proposer's client may have its answer, if it proposed there.
    pub first: u32,
    /// Until everybody has decided.
    pub all: u32,
}

/// What was counted for an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Which.
    pub engine: Kind,
    /// A value that the leader proposes, when nothing fails.
    pub by_leader: Delays,
    /// A value that the next member proposes, when nothing fails.
    pub by_another: Delays,
    /// From the report of the leader's crash to the next decision: for engines that act on reports, that it is not a member any more; for the others
    /// a value that the next member proposes at once.
    pub after_crash: Delays,
}

/// Counts for an engine, in a group of so many.
///
/// # Errors
/// If nothing is decided; a group of less than three has no majority behind a crash.
pub fn count(engine: Kind, members: u16) -> Result<Counted, String> {
    let never = |what: &str| format!("{engine}: {what} was never decided");
    let mut world = Unit::new(engine, members)?;
    world.propose(MemberId(1), 1);
    world.run(40).ok_or_else(|| never("the first value"))?;
    world.settle();
    world.propose(MemberId(1), 2);
    let by_leader = world.run(40).ok_or_else(|| never("the leader's value"))?;
    world.settle();
    world.propose(MemberId(2), 3);
    let by_another = world.run(40).ok_or_else(|| never("another's value"))?;
    world.settle();
    world.crash(MemberId(1));
    if !engine.needs_accuracy() {
        world.propose(MemberId(2), 4);
    }
    let after_crash = world.run(400).ok_or_else(|| never("anything behind the crash"))?;
    Ok(Counted { engine, by_leader, by_another, after_crash })
}

enum What {
    Message(Message),
    Copy(usize, Message),
    Piggyback(Message),
    Request(Epoch, Request),
    Answer(Epoch, RequestId, Answer),
}

struct Flight {
    at_ns: u64,
    from: usize,
    to: usize,
    delays: Option<u32>,
    what: What,
}

struct Member {
    log: Log,
    alive: bool,
    /// The longest chain of messages behind what it knows of the proposal.
    delays: Option<u32>,
    /// The first entry that it applied since.
    decided: Option<u32>,
    memories: BTreeMap<Epoch, Memory>,
}

struct Unit {
    now_ns: u64,
    members: Vec<Member>,
    /// All take the same time, so they arrive as they were sent.
    flying: VecDeque<Flight>,
}

impl Unit {
    fn new(engine: Kind, members: u16) -> Result<Self, String> {
        // A seed with which Paxos stays one-sided.
        const SEED: u64 = 1;
        let group = MemberSet::first(members);
        let member = |id: MemberId| {
            let log = Log::new(0, id, engine, group.clone(), Config::default(), engines::build(SEED, Policy::TrustContract));
            let log = log.map_err(|why| format!("there is no {engine}: {why}"))?;
            Ok(Member { log, alive: true, delays: None, decided: None, memories: BTreeMap::new() })
        };
        let members = group.iter().map(member).collect::<Result<_, String>>()?;
        let mut world = Self { now_ns: 0, members, flying: VecDeque::new() };
        (0..world.members.len()).for_each(|at| world.drain(at));
        Ok(world)
    }

    /// Forgets what was counted.
    fn settle(&mut self) {
        self.pass(20, |_| false);
        for member in &mut self.members {
            member.delays = None;
            member.decided = None;
        }
        for flight in &mut self.flying {
            flight.delays = None;
        }
    }

    fn propose(&mut self, member: MemberId, value: u64) {
        let at = usize::from(member.0) - 1;
        self.members[at].delays = Some(0);
        // What is refused is never decided, and that is told.
        let _ = self.members[at].log.propose(self.now_ns, value.to_le_bytes().into());
        self.drain(at);
    }

    /// It is dead, and everybody is told.
    fn crash(&mut self, crashed: MemberId) {
        self.members[usize::from(crashed.0) - 1].alive = false;
        for at in self.alive() {
            self.members[at].delays = Some(0);
            let accurate = self.members[at].log.kind().needs_accuracy();
            if accurate {
                // Members know each other, and are told once.
                let _ = self.members[at].log.handle_crash(self.now_ns, crashed);
            } else {
                self.members[at].log.handle_suspect(self.now_ns, crashed);
            }
            self.drain(at);
        }
    }

    fn alive(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|at| self.members[*at].alive).collect()
    }

    /// Lets time pass until everybody has decided.
    fn run(&mut self, periods: u64) -> Option<Delays> {
        let done = |world: &Self| world.members.iter().all(|member| !member.alive || member.decided.is_some());
        self.pass(periods, done);
        let alive = || self.members.iter().filter(|member| member.alive);
        let all = alive().map(|member| member.decided).collect::<Option<Vec<_>>>()?;
        Some(Delays { first: *all.iter().min()?, all: *all.iter().max()? })
    }

    fn pass(&mut self, periods: u64, done: impl Fn(&Self) -> bool) {
        let end_ns = self.now_ns + periods * PERIOD_NS;
        while !done(self) {
            let heartbeat = (self.now_ns / PERIOD_NS + 1) * PERIOD_NS;
            let timers = self.members.iter().filter(|member| member.alive).filter_map(|member| member.log.poll_timeout());
            let flight = self.flying.front().map(|flight| flight.at_ns);
            let next = timers.chain(flight).map(|at| at.max(self.now_ns)).chain([heartbeat]).min().unwrap_or(heartbeat);
            if next > end_ns {
                self.now_ns = end_ns;
                break;
            }
            self.now_ns = next;
            if flight.is_some_and(|at| at <= next) {
                if let Some(flight) = self.flying.pop_front() {
                    self.arrive(flight);
                }
                continue;
            }
            let mut fired = false;
            for at in self.alive() {
                if self.members[at].log.poll_timeout().is_some_and(|due| due <= next) {
                    fired = true;
                    self.members[at].log.handle_timeout(next);
                    self.drain(at);
                }
            }
            if !fired && next == heartbeat {
                self.alive().into_iter().for_each(|at| self.heartbeat(at));
            } else if !fired {
                // Nothing was due that is not due any more: let the clock run.
                self.now_ns += 1;
            }
        }
    }

    fn heartbeat(&mut self, at: usize) {
        let Some(message) = self.members[at].log.poll_piggyback(self.now_ns) else { return };
        self.broadcast(at, || What::Piggyback(message.clone()));
        self.members[at].log.handle_piggyback_sent(self.now_ns);
        self.drain(at);
    }

    fn broadcast(&mut self, from: usize, what: impl Fn() -> What) {
        for to in (0..self.members.len()).filter(|to| *to != from) {
            self.fly(from, to, what());
        }
    }

    fn fly(&mut self, from: usize, to: usize, what: What) {
        let delays = self.members[from].delays.map(|delays| delays + 1);
        self.flying.push_back(Flight { at_ns: self.now_ns + UNIT_NS, from, to, delays, what });
    }

    fn arrive(&mut self, flight: Flight) {
        let Flight { from, to, delays, what, .. } = flight;
        let (now_ns, sender, id) = (self.now_ns, MemberId(from as u16 + 1), MemberId(to as u16 + 1));
        if !self.members[to].alive {
            return;
        }
        if let What::Request(epoch, request) = what {
            // The process takes no part. One's own memory is not a message away.
            let (request, answer) = self.members[to].memories.entry(epoch).or_default().handle(request);
            let at_ns = if to == from { now_ns } else { now_ns + UNIT_NS };
            let delays = if to == from { delays.map(|delays| delays - 1) } else { delays.map(|delays| delays + 1) };
            let answer = Flight { at_ns, from: to, to: from, delays, what: What::Answer(epoch, request, answer) };
            if to == from {
                self.flying.push_front(answer)
            } else {
                self.flying.push_back(answer)
            }
            return;
        }
        let member = &mut self.members[to];
        debug_assert_eq!(member.log.me(), id);
        member.delays = member.delays.max(delays);
        // What is refused has no effect: if it should have had one, nothing is decided.
        let _ = match what {
            What::Message(message) => member.log.handle_message(now_ns, sender, message),
            What::Copy(path, message) => member.log.handle_copy(now_ns, sender, path, message),
            What::Piggyback(message) => member.log.handle_piggyback(now_ns, sender, message),
            What::Answer(epoch, id, answer) => member.log.handle_memory(now_ns, sender, epoch, id, answer),
            What::Request(..) => Ok(()),
        };
        self.drain(to);
    }

    fn drain(&mut self, at: usize) {
        while let Some(output) = self.members[at].log.poll_output() {
            match output {
                Output::Send { to, message } => self.fly(at, usize::from(to.0) - 1, What::Message(message)),
                Output::Copies { message } => {
                    for path in 0..PATHS {
                        self.broadcast(at, || What::Copy(path, message.clone()));
                    }
                }
                Output::Memory { to, epoch, request } => self.fly(at, usize::from(to.0) - 1, What::Request(epoch, request)),
                Output::Apply { .. } => {
                    let member = &mut self.members[at];
                    member.decided = member.decided.or(member.delays);
                }
                Output::Install { .. } | Output::Halt(_) => {}
            }
        }
    }
}
