//! Hosts that share a log, in every order of events that a seed gives.

use crate::course::{Course, End, Entry, Life};
use crate::judge::{Action, Judge};
use std::collections::VecDeque;

const MS: u64 = 1_000_000;

/// What the operating system has of one host.
#[derive(Default)]
struct Host {
    judge: Option<Judge>,
    run: u64,
    incarnation: u32,
    /// Its agent runs.
    has_agent: bool,
    /// Its fence is closed.
    is_fenced: bool,
    /// COMMAND's processes live, of that term.
    command: Option<u64>,
    /// How far this connection to the group has read.
    read: usize,
    is_connected: bool,
    /// Entries that this connection has proposed.
    own: Vec<usize>,
    /// What was handed out and is not done.
    todo: VecDeque<Action>,
    is_over: bool,
}

struct World {
    hosts: Vec<Host>,
    names: Vec<String>,
    log: Vec<Entry>,
    now_ns: u64,
    seed: u64,
    starts: u64,
}

impl World {
    fn new(count: usize, seed: u64) -> Self {
        let names: Vec<String> = (1..=count).map(|host| format!("h{host}")).collect();
        let hosts = (0..count).map(|_| Host { has_agent: true, incarnation: 1, ..Host::default() }).collect();
        Self { hosts, names, log: Vec::new(), now_ns: MS, seed: seed.wrapping_mul(2) + 1, starts: 0 }
    }

    fn random(&mut self, below: u64) -> u64 {
        // xorshift64*
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        (self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
    }

    /// At most one is heard, at any time.
    fn at_most_one(&self) {
        let heard = |host: &&Host| host.command.is_some() && !host.is_fenced;
        let count = self.hosts.iter().filter(heard).count();
        assert!(count <= 1, "{count} at {} ms of {:#?}", self.now_ns / MS, self.log);
    }

    fn begin(&mut self, at: usize) {
        let (names, now_ns) = (self.names.clone(), self.now_ns);
        let host = &mut self.hosts[at];
        // As it starts it ends what a former life has left.
        host.command = None;
        host.run += 1;
        (host.is_over, host.is_connected) = (false, false);
        host.todo.clear();
        let life = Life { run: host.run, incarnation: host.incarnation };
        let mut judge = Judge::new(&names[at], life, &names);
        judge.set_now(now_ns, now_ns / MS);
        host.judge = Some(judge);
    }

    fn connect(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let Some(judge) = host.judge.as_mut().filter(|_| host.has_agent && !host.is_fenced && !host.is_connected) else { return };
        (host.is_connected, host.read) = (true, 0);
        host.own.clear();
        judge.handle_open(host.incarnation);
        judge.handle_connected();
    }

    fn disconnect(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.is_connected = false;
        // What was proposed may be lost.
        host.todo.retain(|action| !matches!(action, Action::Propose(_)));
        if let Some(judge) = &mut host.judge {
            judge.handle_disconnected();
        }
    }

    fn collect(&mut self, at: usize) {
        let (now_ns, host) = (self.now_ns, &mut self.hosts[at]);
        if let Some(judge) = &mut host.judge {
            judge.set_now(now_ns, now_ns / MS);
            host.todo.extend(judge.poll_actions());
        }
    }

    /// Whether something was done.
    fn step(&mut self, at: usize) -> bool {
        self.collect(at);
        let (has_work, is_connected) = (!self.hosts[at].todo.is_empty(), self.hosts[at].is_connected);
        let reads = is_connected && self.hosts[at].read < self.log.len();
        if reads && (!has_work || self.random(2) == 0) {
            let host = &mut self.hosts[at];
            let entry = self.log[host.read].clone();
            let is_own = host.own.contains(&host.read);
            host.read += 1;
            if let Some(judge) = &mut host.judge {
                judge.handle_entry(&entry, is_own);
            }
            return true;
        }
        let Some(action) = self.hosts[at].todo.pop_front() else { return false };
        match action {
            Action::Propose(entry) if self.hosts[at].is_connected => {
                self.hosts[at].own.push(self.log.len());
                self.log.push(entry);
            }
            Action::Propose(_) | Action::Follow { .. } => {}
            Action::Start { term } => {
                self.starts += 1;
                let fails = self.random(10) == 0;
                let host = &mut self.hosts[at];
                assert_eq!(host.command, None, "the one before was cleared");
                if fails {
                    host.judge.iter_mut().for_each(|judge| judge.handle_ended(term, "it cannot be started"));
                } else {
                    host.command = Some(term);
                }
            }
            Action::Clear { term, .. } => {
                let host = &mut self.hosts[at];
                host.command = None;
                host.judge.iter_mut().for_each(|judge| judge.handle_cleared(term));
            }
            Action::Exit { failure } => {
                assert_eq!(failure, None);
                let host = &mut self.hosts[at];
                assert_eq!(host.command, None);
                (host.is_over, host.judge) = (true, None);
                host.todo.clear();
                host.is_connected = false;
            }
        }
        self.at_most_one();
        true
    }

    fn tell_others(&mut self, at: usize, tell: impl Fn(&mut Judge)) {
        for (other, host) in self.hosts.iter_mut().enumerate() {
            if let Some(judge) = host.judge.as_mut().filter(|_| other != at && host.has_agent && !host.is_fenced) {
                tell(judge);
            }
        }
    }

    fn fault(&mut self, at: usize) {
        let name = self.names[at].clone();
        match self.random(8) {
            // COMMAND's main process ends.
            0 | 1 => {
                let host = &mut self.hosts[at];
                if let (Some(term), Some(judge)) = (host.command, &mut host.judge) {
                    judge.handle_ended(term, "it was killed");
                }
            }
            // fide lead is killed; its agent ends COMMAND then, or when it is back.
            2 => {
                let host = &mut self.hosts[at];
                host.judge = None;
                host.is_connected = false;
                host.todo.clear();
                if host.has_agent {
                    host.command = None;
                    self.tell_others(at, |judge| judge.handle_life_over(&name, "killed"));
                }
            }
            3 => self.begin_if_none(at),
            // The agent is killed.
            4 => {
                self.disconnect(at);
                self.hosts[at].has_agent = false;
            }
            // The fence closes. Others know it, at once or later.
            5 if !self.hosts[at].is_fenced => {
                self.hosts[at].is_fenced = true;
                self.disconnect(at);
                self.tell_fenced(at);
            }
            5 => self.tell_fenced(at),
            6 => self.recover(at),
            _ => {
                let host = &mut self.hosts[at];
                // Each life of an agent is another incarnation of its host.
                host.incarnation += u32::from(!host.has_agent);
                host.has_agent = true;
                self.connect(at);
            }
        }
        self.at_most_one();
    }

    fn begin_if_none(&mut self, at: usize) {
        if self.hosts[at].judge.is_none() && !self.hosts[at].is_over {
            self.begin(at);
        }
    }

    fn tell_fenced(&mut self, at: usize) {
        let (name, incarnation) = (self.names[at].clone(), self.hosts[at].incarnation);
        self.tell_others(at, |judge| judge.handle_host_over(&name, incarnation, "silent, fenced"));
        self.hosts[at].judge.iter_mut().for_each(Judge::handle_fenced);
    }

    /// The fence opens when COMMAND is dead, for a new incarnation.
    fn recover(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        if host.is_fenced {
            let handled = host.judge.is_none() || host.judge.as_ref().is_some_and(|judge| judge.runs_in().is_none());
            if host.judge.is_none() {
                host.command = None;
            }
            if handled && host.command.is_none() {
                (host.is_fenced, host.incarnation) = (false, host.incarnation + 1);
            }
        }
    }

    fn run(&mut self, steps: u64, faults: bool) {
        for _ in 0..steps {
            let at = self.random(self.hosts.len() as u64) as usize;
            if faults && self.random(12) == 0 {
                self.fault(at);
            } else if !self.step(at) {
                self.now_ns += (1 + self.random(40)) * MS;
                self.collect(at);
                self.hosts[at].judge.iter_mut().for_each(Judge::handle_timeout);
            }
        }
    }

    fn heal(&mut self) {
        for host in &mut self.hosts {
            host.has_agent = true;
            if let Some(judge) = host.judge.as_mut().filter(|_| host.is_fenced) {
                judge.handle_fenced();
            }
        }
        self.run(2_000, false);
        for at in 0..self.hosts.len() {
            self.recover(at);
            self.begin_if_none(at);
            self.connect(at);
        }
        self.propose(Entry::Resume { until_ms: None, at_ms: self.now_ns / MS });
        self.run(6_000, false);
    }

    fn propose(&mut self, entry: Entry) {
        self.log.push(entry);
    }

    fn running(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|at| self.hosts[*at].command.is_some()).collect()
    }

    fn course(&self) -> Course {
        let mut course = Course::default();
        self.log.iter().for_each(|entry| _ = course.apply(entry));
        course
    }
}

fn up(count: usize, seed: u64) -> World {
    let mut world = World::new(count, seed);
    for at in 0..count {
        world.begin(at);
        world.connect(at);
    }
    world.run(2_000, false);
    world
}

#[test]
fn it_runs_on_one_host_whatever_happens_and_on_one_again_afterwards() {
    let mut starts = 0;
    for seed in 0..300 {
        let mut world = up(2 + (seed % 4) as usize, seed);
        world.run(1_500, true);
        world.heal();
        let (running, course) = (world.running(), world.course());
        assert_eq!(running.len(), 1, "seed {seed}: {running:?} {course:#?}");
        assert_eq!(course.leader.as_ref(), Some(&world.names[running[0]]), "seed {seed}");
        starts += world.starts;
    }
    assert!(starts > 1_000, "{starts}");
}

#[test]
fn one_decision_moves_it_when_its_main_process_has_ended() {
    let mut world = up(3, 1);
    let first = world.running()[0];
    let (term, entries) = (world.course().term, world.log.len());
    // It has run for long.
    world.now_ns += 20_000 * MS;
    world.collect(first);
    world.hosts[first].judge.as_mut().unwrap().handle_ended(term, "killed by SIGKILL");
    world.run(600, false);
    assert_eq!(world.log.len(), entries + 1, "{:?}", world.log);
    assert_eq!(world.course().term, term + 1);
    assert_ne!(world.running()[0], first, "elsewhere");
}

#[test]
fn what_fails_everywhere_is_started_with_growing_pauses_and_rests_then() {
    let hosts: Vec<String> = ["a", "b"].map(String::from).to_vec();
    let mut course = Course::default();
    for host in &hosts {
        course.apply(&Entry::Here {
            host: host.clone(),
            life: Life { run: 1, incarnation: 1 },
            hosts: hosts.clone(),
            runs: false,
        });
    }
    let mut order = Vec::new();
    let mut pauses = Vec::new();
    while let Some(pause_ms) = course.pause_ms() {
        if course.leader.is_none() {
            pauses.push(pause_ms);
            assert!(!course.apply(&Entry::Next { term: course.term + 1, at_ms: 0 }), "of another term");
            assert!(course.apply(&Entry::Next { term: course.term, at_ms: 0 }));
        }
        order.push(course.leads().to_owned());
        course.apply(&Entry::Over { term: course.term, end: End::Failed, ran_ms: 5, why: "exit 1".into(), at_ms: 0 });
    }
    assert_eq!(order[..4], ["a", "b", "a", "b"].map(String::from));
    assert_eq!(pauses, [500, 500, 1_000, 1_000, 2_000, 2_000, 4_000, 4_000, 8_000, 8_000]);
    assert_eq!(order.len(), 12);
    assert!(!course.apply(&Entry::Next { term: course.term, at_ms: 0 }), "it rests");
    assert!(course.apply(&Entry::Resume { until_ms: None, at_ms: 0 }) && course.leads() == "a");
    // Once it has run for long, what failed before is forgotten.
    course.apply(&Entry::Over { term: course.term, end: End::Failed, ran_ms: 5, why: "exit 1".into(), at_ms: 0 });
    course.apply(&Entry::Over { term: course.term, end: End::Failed, ran_ms: 10_000, why: "exit 1".into(), at_ms: 0 });
    assert!(course.failed.is_empty() && course.leads() == "a");
}

#[test]
fn a_group_without_a_term_waits_for_all_its_hosts_and_leaves_it_where_it_runs() {
    let hosts: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
    let here =
        |host: &str, runs| Entry::Here { host: host.into(), life: Life { run: 1, incarnation: 1 }, hosts: hosts.clone(), runs };
    let mut course = Course::default();
    course.apply(&here("a", false));
    course.apply(&here("b", true));
    assert_eq!(course.leader, None, "it may run on c");
    course.apply(&here("c", false));
    assert_eq!(course.leads(), "b");
    let others = Entry::Here { host: "d".into(), life: Life::default(), hosts: vec!["a".into(), "d".into()], runs: false };
    assert!(!course.apply(&others));
}

#[test]
fn an_operator_moves_pauses_and_retires_it() {
    let mut world = up(3, 5);
    let term = world.course().term;
    let to = world.names[(world.running()[0] + 1) % 3].clone();
    world.propose(Entry::Switch { term, to: to.clone(), at_ms: 1 });
    world.run(2_000, false);
    assert_eq!((world.course().leads(), world.course().term), (to.as_str(), term + 1));
    world.propose(Entry::Pause { until_ms: Some(world.now_ns / MS + 60_000), why: "kernel".into(), at_ms: 1 });
    world.run(200, false);
    let at = world.running()[0];
    world.hosts[at].judge.as_mut().unwrap().handle_ended(term + 1, "killed");
    world.run(300, false);
    assert!(world.running().is_empty() && world.course().paused.is_some());
    world.now_ns += 60_000 * MS;
    world.run(2_000, false);
    assert_eq!((world.running().len(), world.course().paused.clone()), (1, None), "the pause has ended by itself");
    world.propose(Entry::Retire { at_ms: 1 });
    world.run(2_000, false);
    assert!(world.running().is_empty() && world.hosts.iter().all(|host| host.is_over), "{:?}", world.course());
}

#[test]
fn one_that_is_stopped_hands_over_and_one_that_is_not_in_a_session_ends_all_the_same() {
    let mut world = up(3, 9);
    let at = world.running()[0];
    world.hosts[at].judge.as_mut().unwrap().stop();
    world.run(2_000, false);
    assert!(world.hosts[at].is_over && world.running().len() == 1 && world.running()[0] != at);
    let other = world.running()[0];
    world.disconnect(other);
    world.hosts[other].judge.as_mut().unwrap().stop();
    world.run(500, false);
    assert!(world.hosts[other].is_over && world.running().is_empty(), "nobody else knows that it has ended");
    world.begin(other);
    world.connect(other);
    world.run(2_000, false);
    assert_eq!(world.running().len(), 1);
}

#[test]
fn entries_are_read_as_they_were_written_and_others_are_passed_over() {
    let entry = Entry::Over { term: 3, end: End::Lost, ran_ms: 7, why: "fenced".into(), at_ms: 9 };
    assert_eq!(Entry::read(&entry.bytes()), Some(entry));
    assert_eq!(Entry::read(br#"{"entry":"of a later version"}"#), None);
    for bytes in [&b""[..], b"null", b"\0\0\0\0", b"{}", b"\xff"] {
        assert!(Entry::read(bytes).is_none() && serde_json::from_slice::<Course>(bytes).is_err(), "{bytes:?}");
    }
}
