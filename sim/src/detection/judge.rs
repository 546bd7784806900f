//! What must hold, judged by somebody who knows the truth.
//!
//! | property | says | paper |
//! |---|---|---|
//! | `unreachable` | nobody is declared dead whom a host hears that is heard here, directly or over others; and only who is not heard is called unreachable | SWIM §4.1 |
//! | `accuracy` | who is alive and keeps its contract is never declared dead; no process that lives is; no path without a fault is down | §2.2, §3.3 |
//! | `barrier` | a broken contract that is told *drained* was broken by the other, whatever waited on our own side; no silence is told *drained* while a heartbeat that came in time waits in a receive queue | SafeTimer §4.1, §5.1 |
//! | `sick-observer` | paused or cut off it accuses nobody who keeps the contract, and says of itself what is so | consul #916, keepalived #2066 |
//! | `completeness` | at the end every crash is known to every observer that is alive and connected | §2.2 |
//! | `told-once` | one failure for each process, host and incarnation; a confirmation only after it; opposites alternate | issue 2 |
//! | `margin` | no contract is told as broken that was kept; when all faults are over each counts as kept, and δmax is in its bounds | DESIGN |
//! | `healing` | when all faults are over, all who live see all who live | |

use super::host::{AGENT_TIMEOUT_NS, Agent, CONTRACT, Host, MS};
use crate::invariants::{Violation, broken};
use crate::time::US;
use fide_proto::detector::{AppState, Detector, State, Verdict};
use fide_proto::node::calibration::Breach;
use fide_wire::PATHS;
use fide_wire::verdict::{Cause, Grade};
use std::collections::{BTreeMap, BTreeSet};

/// How long after a fault its consequences may still be told.
const AFTER: u64 = 4 * MS;

#[derive(Default)]
struct Life {
    started: u64,
    ended: Option<u64>,
    crashed: bool,
    left: bool,
}

/// (host of the observer, its incarnation, host, incarnation)
type View = (usize, u32, usize, u32);

/// A heartbeat that waits in a receive queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// Of which host's interface.
    pub at: usize,
    pub path: usize,
    /// Whose it is.
    pub node: u32,
    pub incarnation: u32,
    pub came_ns: u64,
    pub until_ns: u64,
}

pub(super) struct Judge {
    pub(super) verdicts: u64,
    /// Wrong verdicts on hosts that had answered nothing before.
    pub(super) open: u64,
    verbose: bool,
    lives: Vec<BTreeMap<u32, Life>>,
    /// Times in which a host did not keep its contract: (from, to, how).
    broken: Vec<Vec<(u64, u64, &'static str)>>,
    path_faults: Vec<(u64, u64)>,
    /// Times in which a host received nothing of another: (receiver, sender, from, to).
    deaf_to: Vec<(usize, usize, u64, u64)>,
    /// When a host met another's latest incarnation.
    met_ns: BTreeMap<(usize, usize), u64>,
    crash_sent: BTreeMap<(usize, u32, u32), u64>,
    seen: BTreeSet<(View, u32)>,
    failures: BTreeSet<(View, u32)>,
    /// The last verdict of each pair of opposites.
    last: BTreeMap<(View, i32), Cause>,
    finals: BTreeSet<(View, Cause)>,
    waiting: Vec<Waiting>,
    /// Answers that wait in one: (observer, who answers), and until when.
    answers_wait: Vec<((usize, u32), u64)>,
    /// The same of questions.
    questions_wait: Vec<((usize, u32), u64)>,
    /// Contracts that were told as broken, and not as kept again.
    margins: BTreeSet<(View, usize)>,
    violation: Option<Violation>,
}

impl Judge {
    pub(super) fn new(n: usize, verbose: bool) -> Self {
        Self {
            verdicts: 0,
            open: 0,
            verbose,
            lives: (0..n).map(|_| BTreeMap::new()).collect(),
            broken: vec![Vec::new(); n],
            path_faults: Vec::new(),
            deaf_to: Vec::new(),
            met_ns: BTreeMap::new(),
            crash_sent: BTreeMap::new(),
            seen: BTreeSet::new(),
            failures: BTreeSet::new(),
            last: BTreeMap::new(),
            finals: BTreeSet::new(),
            waiting: Vec::new(),
            answers_wait: Vec::new(),
            questions_wait: Vec::new(),
            margins: BTreeSet::new(),
            violation: None,
        }
    }

    /// What did not hold, if anything.
    pub(super) const fn violation(&mut self) -> Option<Violation> {
        self.violation.take()
    }

    /// The first thing that does not hold is the one that is told.
    pub(super) fn must(&mut self, property: &'static str, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.violation.is_none() {
            self.violation = broken(property, what()).err();
        }
    }

    fn of(&mut self, host: usize, incarnation: u32) -> &mut Life {
        self.lives[host].entry(incarnation).or_default()
    }

    pub(super) fn begins(&mut self, host: usize, incarnation: u32, now: u64) {
        self.note(now, host, &format!("incarnation {incarnation} starts"));
        self.lives[host].insert(incarnation, Life { started: now, ..Life::default() });
    }

    pub(super) fn agent_ended(&mut self, host: usize, incarnation: u32, now: u64) {
        self.note(now, host, &format!("incarnation {incarnation} ends"));
        self.of(host, incarnation).ended.get_or_insert(now);
    }

    pub(super) fn leaving(&mut self, host: usize, incarnation: u32, now: u64) {
        self.note(now, host, "leaves");
        self.of(host, incarnation).left = true;
    }

    pub(super) fn host_crashed(&mut self, host: usize, incarnation: u32, now: u64) {
        self.note(now, host, "crashes");
        self.of(host, incarnation).crashed = true;
    }

    pub(super) fn began(&mut self, host: usize, from: u64, to: u64, how: &'static str) {
        self.note(from, host, &format!("{how} for {} µs", (to - from) / US));
        self.broken[host].push((from, to, how));
    }

    pub(super) fn end(&mut self, host: usize, now: u64, how: &'static str) {
        self.note(now, host, &format!("no longer {how}"));
    }

    pub(super) fn path_fault(&mut self, from: u64, to: u64) {
        self.path_faults.push((from, to));
    }

    pub(super) fn deafened(&mut self, to: usize, from: usize, from_ns: u64, to_ns: u64) {
        self.note(from_ns, to, &format!("deaf to host-{from} for {} µs", (to_ns - from_ns) / US));
        self.deaf_to.push((to, from, from_ns, to_ns));
    }

    /// Whether a host received nothing of another at some time of the last moments.
    fn was_deaf(&self, to: usize, from: usize, now: u64) -> bool {
        self.deaf_to.iter().any(|d| (d.0, d.1) == (to, from) && d.2 <= now && now <= d.3 + AFTER)
    }

    /// Whether nothing was lost between two hosts, nor stood still, since then.
    pub(super) fn heard_each_other_since(&self, a: usize, b: usize, since: u64, now: u64) -> bool {
        let between = |d: &(usize, usize, u64, u64)| [(a, b), (b, a)].contains(&(d.0, d.1)) && d.2 <= now && since <= d.3 + AFTER;
        let stood = |host: usize| self.broken[host].iter().any(|(from, to, _)| *from <= now && since <= *to + AFTER);
        let is_young = |host: usize| self.lives[host].last_key_value().is_none_or(|(_, life)| life.started + AFTER > since);
        !self.deaf_to.iter().any(between) && ![a, b].into_iter().any(|host| stood(host) || is_young(host))
    }

    /// Behind the liveness phase, of hosts whose fences are open.
    pub(super) fn all_see_all(&mut self, hosts: &[Host], now: u64) {
        for (o, observer) in hosts.iter().enumerate() {
            // Where too few are left, fences close again as often as they are opened.
            let is_open = |host: &Host| host.agent.is_some() && host.gates.pass(now);
            let Some(agent) = observer.agent.as_ref().filter(|_| is_open(observer)) else { continue };
            for (n, host) in hosts.iter().enumerate().filter(|(n, host)| *n != o && is_open(host)) {
                let d = agent.node.detector();
                let (state, known) = (d.state(host.node), d.incarnation(host.node));
                let is_seen = (state, known) == (Some(State::Alive), Some(host.incarnation));
                self.must("healing", is_seen, || {
                    format!("at {now} host-{o} has host-{n}, in {}, for {state:?} in {known:?}", host.incarnation)
                });
            }
        }
    }

    /// Whether `o` has all the time heard somebody who heard `n`, directly or over others: hosts whose agents have run as they should.
    fn is_heard_over_others(&self, o: usize, n: usize, hosts: &[Host], d: &Detector, now: u64) -> bool {
        let since = now.saturating_sub(AGENT_TIMEOUT_NS);
        let is_well = |host: usize| {
            let lives = self.lives[host].last_key_value().is_some_and(|(_, life)| life.ended.is_none() && life.started < since);
            lives && hosts[host].agent.is_some() && !self.broken[host].iter().any(|(from, to, _)| *from <= now && since <= *to)
        };
        let state = |to: usize, from: usize| {
            let detector = if to == o { Some(d) } else { hosts[to].agent.as_ref().map(|agent| agent.node.detector()) };
            detector.and_then(|detector| detector.state(hosts[from].node))
        };
        let receives =
            |to: usize, from: usize| !self.deaf_to.iter().any(|d| (d.0, d.1) == (to, from) && d.2 <= now && since <= d.3);
        // Who they are they have told each other.
        let hears = |to: usize, from: usize| state(to, from) == Some(State::Alive) && receives(to, from);
        // Who never met it, or did so a moment ago, passes nothing on of it.
        let met = |to: usize| state(to, n).is_some() && self.met_ns.get(&(to, n)).is_none_or(|at| at + AFTER < now);
        // An agent that is gone is heard by nobody; its kernel answers whom it hears, once that one has asked, and that is not passed on.
        let is_over = self.lives[n].last_key_value().is_some_and(|(_, life)| life.ended.is_some());
        let knows = |to: usize| match is_over {
            true => state(to, n) == Some(State::AgentLost) && receives(to, n) && receives(n, to),
            false => hears(to, n),
        };
        let mut reached = vec![o];
        let mut at = 0;
        while at < reached.len() {
            let to = reached[at];
            if to != o && knows(to) {
                return true;
            }
            let next = (0..hosts.len())
                .filter(|from| !reached.contains(from) && *from != n && is_well(*from) && met(*from) && hears(to, *from));
            let next: Vec<usize> = next.filter(|_| !is_over || to == o).collect();
            reached.extend(next);
            at += 1;
        }
        false
    }

    pub(super) fn crash_sent(&mut self, host: usize, incarnation: u32, app: u32, now: u64) {
        self.crash_sent.entry((host, incarnation, app)).or_insert(now);
    }

    pub(super) fn app_seen(&mut self, observer: usize, host: usize, incarnation: u32, app: u32) {
        let own = self.lives[observer].last_key_value().map_or(0, |(incarnation, _)| *incarnation);
        self.seen.insert(((observer, own, host, incarnation), app));
    }

    fn note(&self, now: u64, host: usize, what: &str) {
        if self.verbose {
            println!("{:>9} µs  host-{host} {what}", now / US);
        }
    }

    fn is_broken(&self, host: usize, now: u64, how: &[&str]) -> bool {
        self.broken[host].iter().any(|(from, to, h)| how.contains(h) && *from <= now && now <= to + AFTER)
    }

    pub(super) fn has_path_fault(&self, now: u64) -> bool {
        self.path_faults.iter().any(|(from, to)| *from <= now && now <= to + AFTER)
    }

    /// Stood still, but not for long enough to call it a pause (three periods and what a tick may be late).
    fn had_a_hiccup(&self, host: usize, now: u64) -> bool {
        let short =
            |(from, to, how): &(u64, u64, &str)| *how == "frozen" && *from <= now && now <= to + AFTER && to - from < 4 * MS;
        self.broken[host].iter().any(short)
    }

    fn stuck_for(&self, host: usize, now: u64) -> u64 {
        // Neighbouring times add up.
        let mut total = 0;
        for (from, to, _) in &self.broken[host] {
            if *from <= now && now <= to + AGENT_TIMEOUT_NS {
                total += to.min(&now) - from;
            }
        }
        total
    }

    /// A heartbeat has reached an interface, and waits in its queue.
    pub(super) fn waits(&mut self, heartbeat: Waiting) {
        self.waiting.retain(|other| other.until_ns > heartbeat.came_ns);
        self.waiting.push(heartbeat);
    }

    /// An answer has reached an interface, and waits in its queue.
    pub(super) fn answer_waits(&mut self, whose: (usize, u32), now: u64, until: u64) {
        self.answers_wait.retain(|(_, until)| now <= until + AFTER);
        self.answers_wait.push((whose, until));
    }

    /// A question has reached the other's interface, and waits in its queue.
    pub(super) fn question_waits(&mut self, whose: (usize, u32), now: u64, until: u64) {
        self.questions_wait.retain(|(_, until)| now <= until + AFTER);
        self.questions_wait.push((whose, until));
    }

    /// No barrier has passed a heartbeat: one that came before the contract was broken waits
    /// nowhere where everything is said to have come out.
    fn nothing_waits(&mut self, o: usize, hosts: &[Host], d: &Detector, v: &Verdict, now: u64) {
        let Some(peer) = d.peer(v.node).filter(|_| v.evidence.drained) else { return };
        let late_ns = |path: usize| peer.paths[path].last.last_arrival_ns + peer.paths[path].contract.timeout_ns();
        let late_ns = (0..PATHS).map(late_ns).max().unwrap_or(0);
        let waits = |w: &&Waiting| {
            let is_used = peer.paths[w.path].up && !hosts[o].is_unplugged[w.path];
            let is_its = (w.at, w.node, w.incarnation) == (o, v.node, v.incarnation);
            is_its && is_used && w.until_ns > now && w.came_ns <= late_ns
        };
        let found = self.waiting.iter().find(waits).copied();
        self.must("barrier", found.is_none(), || {
            format!("host-{o} gives {} of {:x} as drained at {now}, and a heartbeat waits: {found:?}", v.cause, v.node)
        });
    }

    /// A verdict that is not judged here.
    pub(super) fn counts(&mut self, o: usize, hosts: &[Host], v: &Verdict, now: u64) {
        self.verdicts += 1;
        let n = hosts.iter().position(|h| h.node == v.node).unwrap_or(o);
        let what = || format!("{} host-{n} in {} code {} fenced {}", v.cause, v.incarnation, v.code, v.evidence.fenced);
        if self.verbose {
            self.note(now, o, &what());
        }
    }

    pub(super) fn verdict(&mut self, o: usize, hosts: &[Host], d: &Detector, v: &Verdict, now: u64) {
        self.verdicts += 1;
        let n = hosts.iter().position(|h| h.node == v.node).unwrap_or(o);
        if self.verbose {
            let (app, code) = (v.app, v.code);
            let what = format!(
                "{} {} host-{n} incarnation {} app {app} code {code} {:?}",
                v.cause, v.grade, v.incarnation, v.ended_apps
            );
            self.note(now, o, &what);
        }
        self.must("told-once", v.at_ns == now, || format!("host-{o} gives a verdict of {} at {now}", v.at_ns));
        if n == o {
            return self.verdict_on_self(o, hosts, d, v, now);
        }
        if matches!(v.cause, Cause::SilentHost | Cause::ContractBroken) {
            self.nothing_waits(o, hosts, d, v, now);
        }
        self.integrity((o, hosts[o].incarnation, n, v.incarnation), v);
        match v.cause {
            Cause::SilentHost => self.silent(o, n, hosts, d, v, now),
            Cause::AgentLost | Cause::Left => {
                self.last.remove(&((o, hosts[o].incarnation, n, v.incarnation), 1001)); // what follows is another silence
                self.lost(o, n, hosts, d, v, now);
            }
            Cause::Unreachable => {
                let is_deaf = self.was_deaf(o, n, now) || self.was_deaf(n, o, now);
                let excused = self.is_broken(n, now, &["cut", "queue"])
                    || self.is_broken(o, now, &["frozen", "cut", "deaf", "queue", "overrun"])
                    || self.has_path_fault(now);
                let once = self.last.insert(((o, hosts[o].incarnation, n, v.incarnation), 1001), v.cause) != Some(v.cause);
                // Of an agent that is gone, the end of a silence is not told.
                let once = once || self.life(n, v.incarnation).0;
                self.must("unreachable", (is_deaf || excused) && once, || {
                    format!("host-{o} says that host-{n} is unreachable, and it is not, or again")
                });
            }
            Cause::ContractBroken => self.contract_broken(o, n, v, now),
            Cause::PathDown => {
                let fault = self.has_path_fault(now);
                let excused = self.is_broken(n, now, &["frozen", "cut"]) || self.is_broken(o, now, &["frozen", "cut", "overrun"]);
                self.must("accuracy", fault || excused, || {
                    format!("host-{o} says that path {} from host-{n} is down, it is not", v.code)
                });
            }
            Cause::Doomed | Cause::Killed => {
                let sent = self.crash_sent.get(&(n, v.incarnation, v.app)).is_some_and(|at| *at <= now);
                let what = || format!("host-{o} reports a process of host-{n} that lives");
                self.must("accuracy", sent && v.grade == Grade::Certain, what);
            }
            Cause::ContractKept => {
                self.last.remove(&((o, hosts[o].incarnation, n, v.incarnation), 1001));
            }
            Cause::Returned => {
                self.met_ns.insert((o, n), now);
            }
            Cause::PathUp => {}
            other => {
                self.must("accuracy", false, || format!("host-{o} says {other} of host-{n}, of which nothing can come here"))
            }
        }
    }

    /// A path's margin is used up, or there is some again. `is_excused`: the network held up what
    /// came there in the window, which began at `since_ns`.
    pub(super) fn margin(&mut self, view: View, path: usize, breach: Breach, is_excused: bool, since_ns: u64) {
        let (o, _, n, _) = view;
        match breach {
            Breach::Kept => {
                let was_broken = self.margins.remove(&(view, path));
                self.must("margin", was_broken, || format!("{view:?}: path {path} keeps a contract that was not broken"));
            }
            Breach::Broken { worst_ns, allowed_ns } => {
                let of_sender = self.was_broken(n, since_ns, &["frozen", "stuck", "cut"]);
                let of_observer = self.was_broken(o, since_ns, &["frozen", "deaf", "queue", "cut"]);
                let is_right = worst_ns > allowed_ns && (is_excused || of_sender || of_observer);
                let once = self.margins.insert((view, path));
                self.must("margin", is_right && once, || {
                    format!("{view:?}: path {path} is told {worst_ns} ns late of {allowed_ns}, it is not, or again")
                });
            }
        }
    }

    /// As [`Self::is_broken`], in a window that began at `since_ns` and is over now.
    fn was_broken(&self, host: usize, since_ns: u64, how: &[&str]) -> bool {
        self.broken[host].iter().any(|(_, to, h)| how.contains(h) && since_ns <= to + AFTER)
    }

    fn life(&self, n: usize, incarnation: u32) -> (bool, bool) {
        self.lives[n].get(&incarnation).map_or((false, false), |life| (life.ended.is_some(), life.left))
    }

    fn silent(&mut self, o: usize, n: usize, hosts: &[Host], d: &Detector, v: &Verdict, now: u64) {
        let (over, left) = self.life(n, v.incarnation);
        let cut_off = self.is_broken(n, now, &["cut"]);
        // A cut observer with nobody else who may answer cannot know better: two nodes without a third.
        let no_witness = self.is_broken(o, now, &["cut", "deaf", "queue"])
            && !d.peers().any(|p| p.node != v.node && matches!(p.state, State::Alive | State::Late | State::AgentLost));
        // It does not send, or what it sends waits in our queue and no barrier was had; and its
        // kernel does not get to the questions.
        let unheard = over || self.is_broken(n, now, &["stuck"]) || !v.evidence.drained && self.is_broken(o, now, &["queue"]);
        let mute = self.is_broken(n, now, &["deaf", "queue"]) && unheard;
        // A barrier was waited for, in vain, for ten times as long as nobody may answer.
        let waits = !v.evidence.drained && self.is_broken(o, now, &["queue"]);
        let waits_in =
            |queues: &[((usize, u32), u64)]| queues.iter().any(|(whose, until)| *whose == (o, v.node) && now <= until + AFTER);
        // Its kernel does not get to the questions: nobody else can know that it lives.
        let waits = waits || waits_in(&self.questions_wait);
        // By which queue its kernel answers is known once it has answered.
        let is_known = |path: usize| d.peer(v.node).is_some_and(|peer| peer.paths[path].answers_known);
        let is_open = v.evidence.drained && waits_in(&self.answers_wait) && !(0..PATHS).all(is_known);
        let excused = self.is_broken(n, now, &["frozen"]) || mute || cut_off || no_witness;
        let host_crashed_since = self.lives[n].range(v.incarnation..).any(|(_, l)| l.crashed);
        let property = if self.is_broken(o, now, &["frozen", "stuck", "cut", "deaf", "queue", "overrun"]) {
            "sick-observer"
        } else {
            "accuracy"
        };
        // Nobody whom this host hears hears it: for all that can be known here, it is gone.
        let is_deaf = self.was_deaf(o, n, now) || self.was_deaf(n, o, now);
        // Who heard it leave knows no better than that either.
        let is_apart = is_deaf && (left || !self.is_heard_over_others(o, n, hosts, d, now));
        let excused = excused || waits || host_crashed_since || is_apart;
        self.open += u64::from(is_open && !excused);
        let is_right = (excused || is_open) && v.grade == Grade::Inferred;
        self.must(property, is_right, || format!("host-{o} says that host-{n} is silent, it is not"));
    }

    fn lost(&mut self, o: usize, n: usize, hosts: &[Host], d: &Detector, v: &Verdict, now: u64) {
        let (over, left) = self.life(n, v.incarnation);
        let stood_still = self.stuck_for(n, now) + 2 * MS > AGENT_TIMEOUT_NS;
        let is_right = match v.cause {
            Cause::Left => left,
            _ if v.grade == Grade::Certain => over && !left || self.lives[n].len() > 1,
            _ => {
                let is_apart = self.was_deaf(o, n, now) && !self.is_heard_over_others(o, n, hosts, d, now);
                over || stood_still || is_apart || self.is_broken(n, now, &["cut"])
            }
        };
        self.must("accuracy", is_right, || format!("host-{o} says of the agent of host-{n}: {}, it is not so", v.cause));
    }

    fn contract_broken(&mut self, o: usize, n: usize, v: &Verdict, now: u64) {
        let (over, _) = self.life(n, v.incarnation);
        let drained = v.evidence.drained;
        let excused = self.is_broken(n, now, &["frozen", "stuck", "cut"])
            || self.is_broken(o, now, &["cut"])
            || self.was_deaf(o, n, now)
            || self.is_broken(o, now, &["undelivered"])
            // One copy was lost in the network, or waits, and we lost the other.
            || self.is_broken(o, now, &["overrun"]) && (self.has_path_fault(now) || !drained)
            || !drained && (self.had_a_hiccup(o, now) || self.is_broken(o, now, &["deaf", "queue"]));
        let property = if drained { "barrier" } else { "accuracy" };
        self.must(property, over || excused, || format!("host-{o} says that host-{n} broke its contract, it did not"));
    }

    fn verdict_on_self(&mut self, o: usize, hosts: &[Host], d: &Detector, v: &Verdict, now: u64) {
        let view = (o, hosts[o].incarnation, o, 0);
        let is_right = match v.cause {
            Cause::ObserverPaused => self.is_broken(o, now, &["frozen", "stuck"]),
            Cause::Isolated => {
                let alone = (0..hosts.len()).filter(|&n| n != o).all(|n| {
                    // Nobody was there to be heard during the last moments.
                    let crashed = !hosts[n].up || hosts[n].agent.is_none();
                    let young = self.lives[n].last_key_value().is_some_and(|(_, l)| l.started + 12 * MS > now);
                    let given_up = d.state(hosts[n].node).is_some_and(State::is_condemned);
                    crashed || young || given_up || self.is_broken(n, now, &["frozen", "cut", "stuck"])
                });
                let deaf = self.is_broken(o, now, &["cut", "deaf", "queue"])
                    || self.is_broken(o, now, &["overrun"]) && self.has_path_fault(now);
                let deaf_to_all = (0..hosts.len())
                    .filter(|n| *n != o)
                    .all(|n| self.was_deaf(o, n, now) || self.was_deaf(n, o, now) || !hosts[n].up || hosts[n].agent.is_none());
                (deaf || deaf_to_all || alone) && self.last.insert((view, 2), v.cause) != Some(v.cause)
            }
            Cause::Rejoined => self.last.insert((view, 2), v.cause) == Some(Cause::Isolated),
            _ => false,
        };
        self.must("sick-observer", is_right, || format!("host-{o} says of itself {}, it is not so", v.cause));
    }

    fn integrity(&mut self, view: View, v: &Verdict) {
        let toggles = match v.cause {
            Cause::ContractBroken | Cause::ContractKept => Some((1000, Cause::ContractBroken)),
            Cause::PathDown | Cause::PathUp => Some((v.code, Cause::PathDown)),
            _ => None,
        };
        let mut once = true;
        if let Some((key, first)) = toggles {
            let before = self.last.insert((view, key), v.cause);
            once &= before != Some(v.cause) && (before.is_some() || v.cause == first);
        }
        if matches!(v.cause, Cause::SilentHost | Cause::AgentLost | Cause::Left | Cause::Returned) && v.app == 0 {
            once &= self.finals.insert((view, v.cause));
        }
        if v.app != 0 && v.confirms {
            // What was doomed or silent in this incarnation, or silent in the one before.
            let of = |failed: &View| (failed.0, failed.2) == (view.0, view.2);
            once &= self.failures.iter().any(|(failed, _)| of(failed));
            self.failures.insert((view, v.app));
        } else if v.app != 0 {
            once &= self.failures.insert((view, v.app));
        }
        for &app in &v.ended_apps {
            once &= self.failures.insert((view, app));
        }
        self.must("told-once", once, || {
            format!("{view:?}: {} of process {} again, or a confirmation of nothing", v.cause, v.app)
        });
    }

    /// Behind the liveness phase.
    pub(super) fn at_the_end(&mut self, hosts: &[Host], now: u64) {
        for (o, observer) in hosts.iter().enumerate() {
            let Some(agent) = &observer.agent else { continue };
            let d = agent.node.detector();
            let somebody = hosts.iter().enumerate().any(|(n, h)| n != o && h.agent.is_some());
            let is_healed = d.isolated_since_ns().is_none() || !somebody;
            self.must("healing", is_healed, || format!("host-{o} is still isolated at {now}"));
            for (n, host) in hosts.iter().enumerate().filter(|(n, _)| *n != o) {
                self.ends_right(o, n, d, host);
                self.contract_ends_right((o, observer.incarnation, n, host.incarnation), agent, host);
            }
        }
    }

    fn contract_ends_right(&mut self, view: View, agent: &Agent, host: &Host) {
        let is_heard = host.agent.is_some() && agent.node.detector().state(host.node) == Some(State::Alive);
        for path in (0..PATHS).filter(|_| is_heard) {
            let (least, most) = (CONTRACT.delta_max_ns, 4 * CONTRACT.delta_max_ns);
            let contract = agent.node.path_contract(host.node, path).unwrap_or_default();
            let is_bounded = (least..=most).contains(&contract.delta_max_ns);
            self.must("margin", is_bounded, || format!("{view:?}: path {path} has the contract {contract:?}"));
            let is_kept = !self.margins.contains(&(view, path));
            self.must("margin", is_kept, || format!("{view:?}: path {path} is still told as broken"));
        }
    }

    fn ends_right(&mut self, o: usize, n: usize, d: &Detector, host: &Host) {
        let state = d.state(host.node);
        let known = d.incarnation(host.node).unwrap_or(0);
        if host.agent.is_some() {
            let is_seen = (state, known) == (Some(State::Alive), host.incarnation);
            self.must("healing", is_seen, || format!("host-{o} has host-{n}, which is well, for {state:?}"));
            let up = d.peer(host.node).is_some_and(|peer| peer.paths.iter().all(|p| p.up));
            self.must("healing", up, || format!("host-{o} still has a path to host-{n} down"));
        } else if let Some(life) = self.lives[n].get(&known) {
            let isolated = d.isolated_since_ns().is_some();
            let expected = if life.left {
                matches!(state, Some(State::Left | State::Silent | State::AgentLost))
            } else if !host.up {
                matches!(state, Some(State::Silent)) || isolated
            } else {
                matches!(state, Some(State::AgentLost | State::Silent))
            };
            self.must("completeness", expected, || format!("host-{o} holds host-{n} for {state:?}, up {}", host.up));
        }
        // Every crash that was sent is known, unless the host itself was judged or went on to another life.
        let own = self.lives[o].last_key_value().map_or(0, |(incarnation, _)| *incarnation);
        let is_missed = |(h, incarnation, app): &&(usize, u32, u32)| {
            let view = (o, own, n, *incarnation);
            let watched = *h == n && self.seen.contains(&(view, *app));
            let ended = matches!(d.app_state(host.node, *app), Some(AppState::Ended { .. } | AppState::Doomed { .. }));
            watched
                && *incarnation == known
                && state.is_some_and(State::is_live)
                && !(self.failures.contains(&(view, *app)) && ended)
        };
        let missed = self.crash_sent.keys().find(is_missed).copied();
        self.must("completeness", missed.is_none(), || format!("host-{o} missed the crash of {missed:?} on host-{n}"));
    }
}
