//! Hosts whose servers, managers, agents and connections end at random, around judges that share a log.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;

const STEP_NS: u64 = 1_000_000;

struct Rng(u64);

impl Rng {
    /// SplitMix64.
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Debug)]
struct Server {
    instance: u32,
    alive: bool,
    primary: bool,
    follows: Option<String>,
    /// Writes, by the term in which they were taken and their number.
    data: Vec<(u64, u64)>,
}

struct Host {
    name: String,
    judge: Option<Judge>,
    kept: Kept,
    server: Server,
    /// Told and not done.
    orders: VecDeque<(u64, Action)>,
    /// What others know of this host's server and manager, when they are told.
    news: VecDeque<(u64, usize, News)>,
    read: usize,
    connected: bool,
    fenced: bool,
    session: u64,
    /// Its manager reads nothing until then.
    stalls_until_ns: u64,
    /// Its server is started again then.
    starts_at_ns: u64,
    /// Its server was asked to end the last time it did.
    ended_planned: bool,
    /// What moves with the leader.
    has_address: bool,
}

#[derive(Clone, Debug)]
enum News {
    Server(Life),
    Manager(bool),
}

struct World {
    rng: Rng,
    now_ns: u64,
    log: Vec<Entry>,
    proposed: VecDeque<(u64, usize, Entry)>,
    hosts: Vec<Host>,
    writes: u64,
    /// What was taken when leadership was handed over, and to whom.
    handed: Option<(usize, usize)>,
    faults: bool,
    /// One fault in so many milliseconds.
    every: u64,
    /// What becomes of a leader that was asked to end.
    planned: Planned,
    /// Servers have to end in order to take no more writes, as those of PostgreSQL.
    ends_to_hand: bool,
}

fn over(process: u32, planned: bool) -> Life {
    Life::Over { process, why: "ended".into(), end: if planned { End::Planned } else { End::Crash } }
}

fn address(host: &str) -> String {
    format!("{host}:1")
}

impl World {
    fn new(seed: u64, hosts: usize) -> Self {
        let names: Vec<String> = (0..hosts).map(|n| format!("h{n}")).collect();
        let planned = if (seed / 9).is_multiple_of(2) { Planned::AtOnce } else { Planned::Wait(30 * STEP_NS) };
        let host = |name: &String| Host {
            name: name.clone(),
            judge: Some(Judge::new(name, &names, (planned, false), Kept::default())),
            kept: Kept::default(),
            server: Server { instance: 1, alive: true, primary: name == "h0", follows: None, data: Vec::new() },
            orders: VecDeque::new(),
            news: VecDeque::new(),
            read: 0,
            connected: false,
            fenced: false,
            session: 0,
            stalls_until_ns: 0,
            starts_at_ns: u64::MAX,
            ended_planned: false,
            has_address: false,
        };
        let hosts = names.iter().map(host).collect();
        Self {
            rng: Rng(seed),
            now_ns: 1,
            log: Vec::new(),
            proposed: VecDeque::new(),
            hosts,
            writes: 0,
            handed: None,
            faults: true,
            every: [40, 15, 6][(seed / 3 % 3) as usize],
            planned,
            ends_to_hand: seed / 18 % 2 == 1,
        }
    }

    fn takes_writes(host: &Host) -> bool {
        host.server.alive && host.server.primary && !host.fenced
    }

    fn tell(&mut self, about: usize, news: &News, most_ms: u64) {
        for to in 0..self.hosts.len() {
            // A host's table is told in order.
            let before = self.hosts[about].news.iter().filter(|(_, whom, _)| *whom == to).map(|(at_ns, _, _)| *at_ns).max();
            let at_ns = (self.now_ns + self.rng.below(most_ms * STEP_NS + 1)).max(before.unwrap_or(0));
            self.hosts[about].news.push_back((at_ns, to, news.clone()));
        }
    }

    fn fault(&mut self) {
        let at = self.rng.below(self.hosts.len() as u64) as usize;
        let wall_ms = self.now_ns / 1_000_000;
        match self.rng.below(13) {
            11 | 12 if self.hosts[at].server.alive => {
                self.end_planned(at);
                self.hosts[at].starts_at_ns = self.now_ns + self.rng.below(40) * STEP_NS;
            }
            9 => self.hosts[at].stalls_until_ns = self.now_ns + self.rng.below(60) * STEP_NS,
            10 if self.hosts[at].server.alive => {
                self.hosts[at].server.alive = false;
                let instance = self.hosts[at].server.instance;
                self.tell(at, &News::Server(over(instance, false)), 60);
                self.hosts[at].starts_at_ns = self.now_ns + self.rng.below(6) * STEP_NS;
            }
            0 | 1 if self.hosts[at].server.alive => {
                self.hosts[at].server.alive = false;
                let instance = self.hosts[at].server.instance;
                self.tell(at, &News::Server(over(instance, false)), 3);
            }
            2 | 3 => self.start_server(at),
            4 if self.hosts[at].judge.is_some() => {
                self.hosts[at].judge = None;
                self.hosts[at].connected = false;
                self.tell(at, &News::Manager(false), 3);
            }
            5 => {
                let host = &mut self.hosts[at];
                host.connected = false;
                if let Some(judge) = &mut host.judge {
                    judge.handle_disconnected();
                }
            }
            6 if !self.hosts[at].fenced && self.hosts.iter().filter(|host| host.fenced).count() + 1 < self.hosts.len() => {
                let host = &mut self.hosts[at];
                (host.fenced, host.connected) = (true, false);
                if let Some(judge) = &mut host.judge {
                    judge.handle_disconnected();
                    judge.handle_fenced(true);
                }
                let instance = self.hosts[at].server.instance;
                self.tell(at, &News::Server(over(instance, false)), 10);
                self.tell(at, &News::Manager(false), 10);
            }
            7 => {
                let to = self.hosts[at].name.clone();
                let term = self
                    .log
                    .iter()
                    .fold(Course::default(), |mut course, entry| {
                        course.apply(entry);
                        course
                    })
                    .term;
                self.log.push(Entry::Switch { term, to, at_ms: wall_ms });
            }
            8 => {
                let until_ms = Some(wall_ms + self.rng.below(60));
                self.log.push(Entry::Pause { until_ms, why: String::new(), at_ms: wall_ms });
            }
            _ => {}
        }
    }

    fn end_planned(&mut self, at: usize) {
        self.hosts[at].server.alive = false;
        self.hosts[at].ended_planned = true;
        let instance = self.hosts[at].server.instance;
        self.tell(at, &News::Server(over(instance, true)), 3);
    }

    fn start_server(&mut self, at: usize) {
        self.hosts[at].ended_planned = false;
        let server = &mut self.hosts[at].server;
        if !server.alive {
            (server.alive, server.primary) = (true, false);
            server.instance += 1;
            let instance = server.instance;
            if !self.hosts[at].fenced {
                self.tell(at, &News::Server(Life::Alive(instance)), 3);
            }
        }
    }

    fn mend(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        // An operator opens a fence once its server takes no writes.
        if host.fenced && !(host.server.alive && host.server.primary) {
            host.fenced = false;
            if let Some(judge) = &mut host.judge {
                judge.handle_fenced(false);
            }
        }
        let names: Vec<String> = self.hosts.iter().map(|host| host.name.clone()).collect();
        let planned = self.planned;
        let host = &mut self.hosts[at];
        let judge = host.judge.get_or_insert_with(|| {
            let mut judge = Judge::new(&host.name, &names, (planned, false), host.kept.clone());
            judge.handle_fenced(host.fenced);
            judge
        });
        if !host.fenced && !host.connected {
            (host.connected, host.read) = (true, 0);
            host.session += 1;
            judge.set_now(self.now_ns, self.now_ns / 1_000_000);
            judge.begin(host.session, &address(&host.name));
            let lives: Vec<(String, Life, bool)> = self
                .hosts
                .iter()
                .map(|host| {
                    let life = if host.fenced || !host.server.alive {
                        over(host.server.instance, host.ended_planned)
                    } else {
                        Life::Alive(host.server.instance)
                    };
                    (host.name.clone(), life, host.judge.is_some() && !host.fenced)
                })
                .collect();
            self.hosts.iter_mut().for_each(|host| host.news.retain(|(_, to, _)| *to != at));
            let judge = self.hosts[at].judge.as_mut().unwrap();
            for (name, life, manager) in lives {
                judge.handle_server(&name, life);
                judge.handle_manager(&name, manager);
            }
            self.tell(at, &News::Manager(true), 3);
            if self.hosts[at].server.alive {
                self.tell(at, &News::Server(Life::Alive(self.hosts[at].server.instance)), 3);
            }
        }
    }

    fn report(host: &Host, hosts: &[Host]) -> Result<Report, String> {
        let server = &host.server;
        if !server.alive {
            return Err("refused".into());
        }
        let leader = hosts.iter().find(|other| server.follows.as_ref() == Some(&address(&other.name)));
        let in_sync = leader.is_some_and(|leader| {
            leader.server.alive
                && leader.server.primary
                && !leader.fenced
                && !host.fenced
                && leader.server.data.starts_with(&server.data)
        });
        Ok(Report {
            instance: server.instance.to_string(),
            primary: server.primary,
            follows: server.follows.clone(),
            synced_ago: in_sync.then_some(std::time::Duration::ZERO),
            position: server.data.len() as u64,
            stream: None,
            has_data: !server.data.is_empty(),
            durable: true,
            usable: Ok(()),
            doubt: String::new(),
        })
    }

    fn obey(&mut self, at: usize, action: &Action) -> Option<Done> {
        let alive = self.hosts[at].server.alive;
        let result = if alive { Ok(()) } else { Err("refused".to_owned()) };
        let server = &mut self.hosts[at].server;
        match action {
            Action::Lead { term, instance } => {
                let is_it = alive && *instance == server.instance.to_string();
                if is_it {
                    (server.primary, server.follows) = (true, None);
                    self.hosts[at].has_address = true;
                }
                Some(Done::Lead(*term, if is_it { Ok(()) } else { Err("was restarted".into()) }))
            }
            Action::Follow { term, address } => {
                if alive {
                    (server.primary, server.follows) = (false, Some(address.clone()));
                }
                Some(Done::Follow(*term, result))
            }
            Action::Close => {
                if alive {
                    (server.primary, server.follows) = (false, None);
                }
                self.hosts[at].has_address = false;
                Some(Done::Close(result))
            }
            Action::Hand { term, address: to } => {
                let data = server.data.clone();
                let other = self.hosts.iter().find(|other| address(&other.name) == *to);
                let has_all = other.is_some_and(|other| {
                    other.server.alive && !other.server.primary && !other.fenced && other.server.data == data
                });
                if alive && has_all {
                    let server = &mut self.hosts[at].server;
                    (server.primary, server.follows) = (false, None);
                    self.handed = self.hosts.iter().position(|other| address(&other.name) == *to).map(|to| (to, data.len()));
                }
                // It comes back as one that takes no writes.
                if alive && self.ends_to_hand && self.rng.one_in(2) == has_all {
                    self.end_planned(at);
                    self.start_server(at);
                }
                Some(Done::Hand(*term, if alive && has_all { Ok(()) } else { Err("has not all".into()) }))
            }
            Action::Yield => {
                self.hosts[at].has_address = false;
                None
            }
            Action::Look | Action::BeStill | Action::Propose(_) => None,
        }
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        if self.faults && self.rng.one_in(self.every) {
            self.fault();
        }
        for at in 0..self.hosts.len() {
            if self.rng.one_in(if self.faults { self.every * 2 } else { 10 }) && self.hosts[at].stalls_until_ns <= self.now_ns {
                self.mend(at);
            }
            if !self.faults && self.rng.one_in(50) {
                self.start_server(at);
            }
            if self.hosts[at].starts_at_ns <= self.now_ns {
                self.hosts[at].starts_at_ns = u64::MAX;
                self.start_server(at);
            }
            self.replicate(at);
            if self.hosts[at].stalls_until_ns <= self.now_ns {
                self.drive(at);
            }
        }
        for about in 0..self.hosts.len() {
            let (now_ns, stalls) = (self.now_ns, self.hosts.iter().map(|host| host.stalls_until_ns).collect::<Vec<_>>());
            let due = |(at_ns, to, _): &(u64, usize, News)| *at_ns <= now_ns && stalls[*to] <= now_ns;
            while let Some(place) = self.hosts[about].news.iter().position(due) {
                let (_, to, news) = self.hosts[about].news.remove(place).unwrap();
                let name = self.hosts[about].name.clone();
                let host = &mut self.hosts[to];
                if let (Some(judge), true) = (&mut host.judge, host.connected) {
                    match news {
                        News::Server(life) => judge.handle_server(&name, life),
                        News::Manager(is_there) => judge.handle_manager(&name, is_there),
                    }
                }
            }
        }
        while let Some(place) = self.proposed.iter().position(|(at_ns, _, _)| *at_ns <= self.now_ns) {
            let (_, by, entry) = self.proposed.remove(place).unwrap();
            // What a host proposes while it is cut off is lost, or comes later.
            if (self.hosts[by].connected || self.rng.one_in(2)) && !self.rng.one_in(20) {
                self.log.push(entry);
            }
        }
        let writers: Vec<&str> =
            self.hosts.iter().filter(|host| Self::takes_writes(host)).map(|host| host.name.as_str()).collect();
        assert!(writers.len() <= 1, "{writers:?} take writes at {} ms, entries {:#?}", self.now_ns / STEP_NS, self.log);
    }

    fn replicate(&mut self, at: usize) {
        if Self::takes_writes(&self.hosts[at]) {
            self.writes += 1;
            let write = (at as u64, self.writes);
            if let Some((to, least)) = self.handed.take() {
                assert!(at != to || self.hosts[at].server.data.len() >= least, "writes are lost that were handed over");
            }
            self.hosts[at].server.data.push(write);
        }
        if !self.hosts[at].server.alive || self.hosts[at].fenced || self.rng.one_in(3) {
            return;
        }
        let leader = self.hosts.iter().find(|other| self.hosts[at].server.follows.as_ref() == Some(&address(&other.name)));
        if let Some(leader) = leader.filter(|leader| Self::takes_writes(leader)) {
            self.hosts[at].server.data = leader.server.data.clone();
        }
    }

    fn drive(&mut self, at: usize) {
        let (now_ns, wall_ms) = (self.now_ns, self.now_ns / 1_000_000);
        while let Some((at_ns, _)) = self.hosts[at].orders.front()
            && *at_ns <= now_ns
        {
            let (_, action) = self.hosts[at].orders.pop_front().unwrap();
            let done = self.obey(at, &action);
            let report = Self::report(&self.hosts[at], &self.hosts);
            if let Some(judge) = &mut self.hosts[at].judge {
                judge.set_now(now_ns, wall_ms);
                judge.handle_report(report);
                if let Some(done) = done {
                    judge.handle_done(done);
                }
            }
        }
        let looks = self.rng.one_in(20);
        let report = Self::report(&self.hosts[at], &self.hosts);
        let reads = self.rng.below(4);
        let host = &mut self.hosts[at];
        let Some(judge) = &mut host.judge else {
            host.orders.clear();
            return;
        };
        judge.set_now(now_ns, wall_ms);
        if looks {
            judge.handle_report(report);
        }
        for _ in 0..reads {
            if host.connected
                && let Some(entry) = self.log.get(host.read)
            {
                host.read += 1;
                let own = matches!(entry, Entry::Bid { host: by, .. } | Entry::Here { host: by, .. } if *by == host.name);
                judge.handle_entry(entry, own);
            }
        }
        judge.handle_timeout();
        host.kept = judge.kept();
        while let Some(action) = judge.poll_action() {
            let at_ns = now_ns + self.rng.below(2 * STEP_NS);
            match action {
                Action::Propose(entry) => self.proposed.push_back((at_ns, at, entry)),
                action => host.orders.push_back((at_ns, action)),
            }
        }
    }
}

fn run(seed: u64, hosts: usize) {
    println!("seed {seed}, {hosts} hosts"); // shown where it fails
    let mut world = World::new(seed, hosts);
    (0..hosts).for_each(|at| world.mend(at));
    (0..2000).for_each(|_| world.step());
    world.faults = false;
    let is_settled = |world: &World| {
        let leader = world.hosts.iter().find(|host| World::takes_writes(host));
        leader.is_some_and(|leader| {
            let address = address(&leader.name);
            world.hosts.iter().all(|host| {
                let leads = host.name == leader.name;
                host.has_address == leads && (leads || host.server.follows.as_ref() == Some(&address))
            })
        })
    };
    let settled = (0..20_000).any(|_| {
        world.step();
        is_settled(&world)
    });
    let shown = || -> Vec<String> {
        world
            .hosts
            .iter()
            .map(|host| {
                format!(
                    "{} {:?} {:?}",
                    host.name,
                    host.server,
                    host.judge.as_ref().map(|j| (j.course(), &j.told, j.busy, j.current))
                )
            })
            .collect()
    };
    assert!(settled, "seed {seed}: nobody leads, or not all follow: {:#?}", shown());
}

#[test]
fn never_two_take_writes_and_at_last_one_does() {
    let seeds = std::env::var("FIDE_FAILOVER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(300);
    let from = std::env::var("FIDE_FAILOVER_FROM").ok().and_then(|from| from.parse().ok()).unwrap_or(0);
    for seed in from..from + seeds {
        run(seed, 2 + (seed % 3) as usize);
    }
}

const STREAM: u64 = 77;

const fn had(position: u64) -> Position {
    Position { term: 2, stream: STREAM, position }
}

/// What h1 offers behind the end of h0's server, which led in a term that began at 10 s. Times are
/// milliseconds.
struct Follower(Judge);

impl Follower {
    fn of_a_restarted_leader(lag_max: Option<u64>) -> Self {
        let names = ["h0".to_owned(), "h1".to_owned()];
        let judge = Judge::new("h1", &names, (Planned::Wait(30_000_000_000), false), Kept::default()).with_lag_max(lag_max);
        let mut follower = Self(judge);
        follower.at(9_000);
        follower.0.begin(1, &address("h1"));
        for (host, session) in [("h0", 9), ("h1", 1)] {
            let here = Entry::Here { host: host.into(), address: address(host), session };
            follower.0.handle_entry(&here, host == "h1");
        }
        follower.0.handle_server("h1", Life::Alive(7));
        follower.leads(0, 9_000);
        follower.reports(9_500, 0, 100);
        follower.leads(1, 10_000);
        follower
    }

    fn at(&mut self, ms: u64) {
        self.0.set_now(ms * 1_000_000, ms);
    }

    fn leads(&mut self, term: u64, ms: u64) {
        self.at(ms);
        let (host, why) = ("h0".to_owned(), String::new());
        self.0.handle_entry(&Entry::Take { term, host, process: 3, force: false, why, at_ms: ms }, false);
    }

    /// It had all that the leader had so long ago.
    fn reports(&mut self, ms: u64, synced_ago_ms: u64, position: u64) {
        self.at(ms);
        self.0.handle_report(Ok(Report {
            instance: "i".into(),
            primary: false,
            follows: Some(address("h0")),
            synced_ago: Some(Duration::from_millis(synced_ago_ms)),
            position,
            stream: Some(STREAM),
            has_data: true,
            durable: true,
            usable: Ok(()),
            doubt: String::new(),
        }));
    }

    /// The leader is killed, and this host is asked what it has.
    fn offers(&mut self, ms: u64, synced_ago_ms: u64, position: u64) -> Offer {
        self.at(ms);
        self.0.handle_server("h0", Life::Over { process: 3, why: "killed".into(), end: End::Crash });
        self.reports(ms + 1, synced_ago_ms, position);
        let bid = std::iter::from_fn(|| self.0.poll_action()).find_map(|action| match action {
            Action::Propose(Entry::Bid { offer, .. }) => Some(offer),
            _ => None,
        });
        bid.unwrap()
    }
}

#[test]
fn a_follower_that_has_not_found_a_restarted_leader_yet_has_not_followed_it_to_the_end() {
    // Its link was up until a moment before the restart, and clients write again.
    assert!(!Follower::of_a_restarted_leader(None).offers(10_500, 1_000, 100).fresh);
    let mut found = Follower::of_a_restarted_leader(None);
    found.reports(10_400, 0, 120);
    assert!(found.offers(10_500, 500, 120).fresh);
    // It was found, and ended before anybody looked: what it had is here.
    let told = |position: Position, mine: u64| {
        let mut follower = Follower::of_a_restarted_leader(None);
        follower.0.handle_position("h0", position);
        follower.offers(10_500, 1_000, mine).fresh
    };
    assert!(told(had(120), 120) && !told(had(121), 120));
    assert!(!told(Position { stream: STREAM + 1, ..had(120) }, 120), "of a former life");
    assert!(!told(Position { term: 1, ..had(120) }, 120));
}

/// The server that was offered ends, and another one is offered for the same term, before this host
/// reads that it was chosen.
#[test]
fn a_term_is_led_by_the_process_that_it_was_begun_for_or_by_none() {
    let leads_with = |process: u32| {
        let mut chosen = Follower::of_a_restarted_leader(None);
        chosen.reports(10_400, 0, 120);
        assert_eq!(chosen.offers(10_500, 0, 120).process, 7);
        chosen.0.handle_server("h1", Life::Over { process: 7, why: "killed".into(), end: End::Crash });
        chosen.0.handle_server("h1", Life::Alive(8));
        chosen.at(10_510);
        let report = chosen.0.report.clone().unwrap();
        chosen.0.handle_report(Ok(Report { instance: "another".into(), ..report }));
        chosen.at(11_000);
        (1..=2).for_each(|term| chosen.0.handle_done(Done::Follow(term, Ok(()))));
        let (host, why) = ("h1".to_owned(), String::new());
        chosen.0.handle_entry(&Entry::Take { term: 2, host, process, force: false, why, at_ms: 10_501 }, false);
        chosen.0.handle_timeout();
        std::iter::from_fn(|| chosen.0.poll_action()).find_map(|action| match action {
            Action::Lead { term: 3, instance } => Some(instance),
            _ => None,
        })
    };
    assert_eq!(leads_with(7), None);
    assert_eq!(leads_with(8).as_deref(), Some("another"));
}

#[test]
fn who_lacks_more_than_it_may_does_not_take_over() {
    let offer = |lag_max, known: Option<u64>| {
        let mut follower = Follower::of_a_restarted_leader(lag_max);
        follower.reports(10_400, 0, 120);
        known.into_iter().for_each(|position| follower.0.handle_position("h0", had(position)));
        follower.offers(10_500, 0, 1_000)
    };
    assert_eq!(offer(None, Some(5_000)).unable, "");
    assert_eq!(offer(Some(4_000), Some(5_000)).unable, "");
    assert!(offer(Some(3_999), Some(5_000)).unable.contains("lacks 4000 bytes"));
    assert!(offer(Some(3_999), None).unable.contains("not known"));
    let mut long_ago = Follower::of_a_restarted_leader(Some(0));
    long_ago.0.handle_position("h0", had(1_000));
    long_ago.reports(20_000, 0, 1_000);
    assert!(long_ago.offers(20_000, 0, 1_000).unable.contains("not known"));
}

proptest! {
    #[test]
    fn what_a_leader_has_is_read_as_it_was_told_and_nothing_else_is(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        let read = Position::read(&bytes);
        prop_assert_eq!(read.is_some(), bytes.len() == Position::SIZE);
        prop_assert!(read.is_none_or(|position| position.bytes() == bytes));
    }

    #[test]
    fn entries_in_any_order_leave_one_leader_at_most(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        // Whatever a group holds, reading it must not fail.
        let mut course = Course::default();
        if let Some(entry) = Entry::read(&bytes) {
            course.apply(&entry);
        }
        prop_assert!(course.term <= 1);
    }
}
