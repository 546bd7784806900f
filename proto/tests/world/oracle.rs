//! What must hold, judged by somebody who knows the truth.
//!
//! | property | paper |
//! |---|---|
//! | accuracy: who is alive and keeps its contract is never declared dead; no process that lives is; no path without a fault is down | §2.2, §3.3 |
//! | the barrier: a broken contract that is told *drained* was broken by the other, whatever waited on our own side | SafeTimer §4.1 |
//! | accuracy of a sick observer: paused or cut off it accuses nobody (who keeps the contract) | consul #916, keepalived #2066 |
//! | completeness: at the end every crash is known to every observer that is alive and connected | §2.2 |
//! | integrity: one failure per process, host and incarnation; a confirmation only after it; opposites alternate | issue 2 |
//! | healing: when all faults are over, all who live see all who live | |

use crate::host::{AGENT_TIMEOUT_NS, Host};
use crate::sim::{MS, US};
use fide_proto::detector::{AppState, Detector, State, Verdict};
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

pub struct Oracle {
    pub verdicts: u64,
    verbose: bool,
    lives: Vec<BTreeMap<u32, Life>>,
    /// Times in which a host did not keep its contract: (from, to, how).
    broken: Vec<Vec<(u64, u64, &'static str)>>,
    path_faults: Vec<(u64, u64)>,
    crash_sent: BTreeMap<(usize, u32, u32), u64>,
    seen: BTreeSet<(View, u32)>,
    failures: BTreeSet<(View, u32)>,
    /// The last verdict of each pair of opposites.
    last: BTreeMap<(View, i32), Cause>,
    finals: BTreeSet<(View, Cause)>,
}

impl Oracle {
    pub fn new(n: usize, verbose: bool) -> Self {
        Self {
            verdicts: 0,
            verbose,
            lives: (0..n).map(|_| BTreeMap::new()).collect(),
            broken: vec![Vec::new(); n],
            path_faults: Vec::new(),
            crash_sent: BTreeMap::new(),
            seen: BTreeSet::new(),
            failures: BTreeSet::new(),
            last: BTreeMap::new(),
            finals: BTreeSet::new(),
        }
    }

    pub fn life(&mut self, host: usize, incarnation: u32, now: u64) {
        self.note(now, host, &format!("incarnation {incarnation} starts"));
        self.lives[host].insert(incarnation, Life { started: now, ..Life::default() });
    }

    pub fn agent_ended(&mut self, host: usize, incarnation: u32, now: u64) {
        self.note(now, host, &format!("incarnation {incarnation} ends"));
        self.lives[host].get_mut(&incarnation).unwrap().ended.get_or_insert(now);
    }

    pub fn leaving(&mut self, host: usize, incarnation: u32, now: u64) {
        self.note(now, host, "leaves");
        self.lives[host].get_mut(&incarnation).unwrap().left = true;
    }

    pub fn host_crashed(&mut self, host: usize, incarnation: u32, now: u64) {
        self.note(now, host, "crashes");
        self.lives[host].get_mut(&incarnation).unwrap().crashed = true;
    }

    pub fn began(&mut self, host: usize, from: u64, to: u64, how: &'static str) {
        self.note(from, host, &format!("{how} for {} µs", (to - from) / US));
        self.broken[host].push((from, to, how));
    }

    pub fn end(&mut self, host: usize, now: u64, how: &'static str) {
        self.note(now, host, &format!("no longer {how}"));
    }

    pub fn path_fault(&mut self, from: u64, to: u64) {
        self.path_faults.push((from, to));
    }

    pub fn crash_sent(&mut self, host: usize, incarnation: u32, app: u32, now: u64) {
        self.crash_sent.entry((host, incarnation, app)).or_insert(now);
    }

    pub fn app_seen(&mut self, observer: usize, host: usize, incarnation: u32, app: u32) {
        let own = *self.lives[observer].keys().next_back().unwrap();
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

    pub fn has_path_fault(&self, now: u64) -> bool {
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

    pub fn verdict(&mut self, o: usize, hosts: &[Host], d: &Detector, v: &Verdict, now: u64) {
        self.verdicts += 1;
        if self.verbose {
            let who = hosts.iter().find(|h| h.node == v.node).unwrap();
            println!(
                "{:>9} µs  host-{o}:   {} {} {} incarnation {} app {} code {} {:?}",
                now / US,
                v.cause,
                v.grade,
                who.name,
                v.incarnation,
                v.app,
                v.code,
                v.ended_apps
            );
        }
        let own = hosts[o].incarnation;
        assert_eq!(v.at_ns, now);
        if v.node == hosts[o].node {
            self.verdict_on_self(o, hosts, d, v, now);
            return;
        }
        let n = hosts.iter().position(|h| h.node == v.node).unwrap();
        let view = (o, own, n, v.incarnation);
        self.integrity(view, v);
        let life = &self.lives[n][&v.incarnation];
        let over = life.ended.is_some();
        let cut_off = self.is_broken(n, now, &["cut"]);
        // A cut observer with nobody else who may answer cannot know better: two nodes without a third.
        let no_witness = self.is_broken(o, now, &["cut", "deaf"])
            && !d.peers().any(|p| p.node != v.node && matches!(p.state, State::Alive | State::Late | State::AgentLost));
        match v.cause {
            Cause::SilentHost => {
                // It does not send, and its kernel does not get to the questions.
                let mute = self.is_broken(n, now, &["deaf"]) && (over || self.is_broken(n, now, &["stuck"]));
                let excused = self.is_broken(n, now, &["frozen"]) || mute || cut_off || no_witness;
                let host_crashed_since = self.lives[n].range(v.incarnation..).any(|(_, l)| l.crashed);
                assert!(host_crashed_since || excused, "host-{o} says that host-{n} is silent, it is not");
                assert_eq!(v.grade, Grade::Inferred);
            }
            Cause::AgentLost if v.grade == Grade::Certain => assert!(over && !life.left || self.lives[n].len() > 1),
            Cause::AgentLost => {
                let stood_still = self.stuck_for(n, now) + 2 * MS > AGENT_TIMEOUT_NS;
                assert!(over || stood_still || cut_off, "host-{o} says that the agent of host-{n} is lost, it is not");
            }
            Cause::ContractBroken => {
                let excused = self.is_broken(n, now, &["frozen", "stuck", "cut"])
                    || self.is_broken(o, now, &["cut"])
                    // One copy was lost in the network, or waits, and we lost the other.
                    || self.is_broken(o, now, &["overrun"]) && (self.has_path_fault(now) || !v.evidence.drained)
                    || !v.evidence.drained && (self.had_a_hiccup(o, now) || self.is_broken(o, now, &["deaf"]));
                assert!(over || excused, "host-{o} says that host-{n} broke its contract, it did not");
            }
            Cause::PathDown => {
                let fault = self.has_path_fault(now);
                let excused = self.is_broken(n, now, &["frozen", "cut"]) || self.is_broken(o, now, &["frozen", "cut", "overrun"]);
                assert!(fault || excused, "host-{o} says that path {} from host-{n} is down, it is not", v.code);
            }
            Cause::Doomed | Cause::Killed => {
                let sent = self.crash_sent.get(&(n, v.incarnation, v.app));
                assert!(sent.is_some_and(|at| *at <= now), "host-{o} reports a process of host-{n} that lives");
                assert_eq!(v.grade, Grade::Certain);
            }
            Cause::Left => assert!(life.left),
            Cause::Returned | Cause::PathUp | Cause::ContractKept => {}
            other => panic!("unexpected: {other}"),
        }
    }

    fn verdict_on_self(&mut self, o: usize, hosts: &[Host], d: &Detector, v: &Verdict, now: u64) {
        let view = (o, hosts[o].incarnation, o, 0);
        match v.cause {
            Cause::ObserverPaused => {
                assert!(self.is_broken(o, now, &["frozen", "stuck"]), "host-{o} did not pause");
            }
            Cause::Isolated => {
                let alone = (0..hosts.len()).filter(|&n| n != o).all(|n| {
                    // Nobody was there to be heard during the last moments.
                    let crashed = !hosts[n].up || hosts[n].agent.is_none();
                    let young = self.lives[n].last_key_value().is_some_and(|(_, l)| l.started + 12 * MS > now);
                    let given_up = d.state(hosts[n].node).is_some_and(State::is_condemned);
                    crashed || young || given_up || self.is_broken(n, now, &["frozen", "cut", "stuck"])
                });
                let deaf =
                    self.is_broken(o, now, &["cut", "deaf"]) || self.is_broken(o, now, &["overrun"]) && self.has_path_fault(now);
                assert!(deaf || alone, "host-{o} is not isolated");
                assert_ne!(self.last.insert((view, 2), v.cause), Some(v.cause));
            }
            Cause::Rejoined => assert_eq!(self.last.insert((view, 2), v.cause), Some(Cause::Isolated)),
            other => panic!("unexpected about oneself: {other}"),
        }
    }

    fn integrity(&mut self, view: View, v: &Verdict) {
        let toggles = match v.cause {
            Cause::ContractBroken | Cause::ContractKept => Some((1000, Cause::ContractBroken)),
            Cause::PathDown | Cause::PathUp => Some((v.code, Cause::PathDown)),
            _ => None,
        };
        if let Some((key, first)) = toggles {
            let before = self.last.insert((view, key), v.cause);
            assert_ne!(before, Some(v.cause), "{view:?} said {} twice", v.cause);
            assert!(before.is_some() || v.cause == first);
        }
        if matches!(v.cause, Cause::SilentHost | Cause::AgentLost | Cause::Left | Cause::Returned) && v.app == 0 {
            assert!(self.finals.insert((view, v.cause)), "{view:?} said {} twice", v.cause);
        }
        if v.app != 0 && v.confirms {
            // What was doomed or silent in this incarnation, or silent in the one before.
            let of = |failed: &View| (failed.0, failed.2) == (view.0, view.2);
            assert!(self.failures.iter().any(|(failed, _)| of(failed)), "{view:?}: a confirmation of nothing");
            self.failures.insert((view, v.app));
        } else if v.app != 0 {
            assert!(self.failures.insert((view, v.app)), "{view:?}: process {} failed twice", v.app);
        }
        for &app in &v.ended_apps {
            assert!(self.failures.insert((view, app)), "{view:?}: process {app} failed twice");
        }
    }

    pub fn at_the_end(&self, hosts: &[Host], now: u64) {
        for (o, observer) in hosts.iter().enumerate() {
            let Some(agent) = &observer.agent else { continue };
            let d = agent.node.detector();
            let somebody = hosts.iter().enumerate().any(|(n, h)| n != o && h.agent.is_some());
            assert!(d.isolated_since_ns().is_none() || !somebody, "host-{o} is still isolated at {now}");
            for (n, host) in hosts.iter().enumerate().filter(|(n, _)| *n != o) {
                self.ends_right(o, n, d, host);
            }
        }
    }

    fn ends_right(&self, o: usize, n: usize, d: &Detector, host: &Host) {
        let state = d.state(host.node);
        let known = d.incarnation(host.node).unwrap_or(0);
        let life = self.lives[n].get(&known);
        if host.agent.is_some() {
            assert_eq!((state, known), (Some(State::Alive), host.incarnation), "host-{o} does not see host-{n}, which is well");
            let view = d.peers().find(|p| p.node == host.node).unwrap();
            assert!(view.paths.iter().all(|p| p.up), "host-{o} still has a path to host-{n} down");
        } else if let Some(life) = life {
            let isolated = d.isolated_since_ns().is_some();
            let expected = if life.left {
                matches!(state, Some(State::Left | State::Silent | State::AgentLost))
            } else if !host.up {
                matches!(state, Some(State::Silent)) || isolated
            } else {
                matches!(state, Some(State::AgentLost | State::Silent))
            };
            assert!(expected, "host-{o} holds host-{n} for {state:?}, up {}", host.up);
        }
        // Every crash that was sent is known, unless the host itself was judged or went on to another life.
        let own = *self.lives[o].keys().next_back().unwrap();
        for &(h, incarnation, app) in self.crash_sent.keys() {
            let view = (o, own, n, incarnation);
            let watched = h == n && self.seen.contains(&(view, app));
            if watched && incarnation == known && state.is_some_and(State::is_live) {
                assert!(self.failures.contains(&(view, app)), "host-{o} missed the crash of {app} on host-{n}");
                let held_for = d.app_state(host.node, app);
                assert!(matches!(held_for, Some(AppState::Ended { .. } | AppState::Doomed { .. })), "{held_for:?}");
            }
        }
    }
}
