use super::*;
use crate::group::EntryId;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const US: u64 = 1_000;
const DELTA_I: u64 = 30 * US;
const PERIOD: u64 = 20 * US;
const P1: MemberId = MemberId(1);
const P2: MemberId = MemberId(2);
const P3: MemberId = MemberId(3);
const P4: MemberId = MemberId(4);

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    fn upto(&mut self, most: u64) -> u64 {
        self.next() % (most + 1)
    }
}

#[derive(Clone)]
enum Event {
    Begin(MemberId, Box<Lowi>),
    Copy { to: MemberId, from: MemberId, path: usize, message: Message },
    Send { to: MemberId, from: MemberId, message: Message },
    Propose(Entry, MemberId),
    Report { to: MemberId, dead: MemberId },
}

/// When a member dies: before it does its next action after so many, or between the two copies of one.
#[derive(Clone, Copy)]
struct Death {
    who: MemberId,
    after_actions: usize,
    between_copies: bool,
}

struct Host {
    engine: Option<Lowi>,
    offset_ns: u64,
    drift_ppm: i64,
    alive: bool,
    paused_until: u64,
    actions: usize,
    decided: Vec<(Instance, Batch)>,
    decided_at: Vec<u64>,
}

impl Host {
    fn local(&self, real_ns: u64) -> u64 {
        let drifted = i128::from(real_ns) * i128::from(self.drift_ppm) / 1_000_000;
        self.offset_ns + (i128::from(real_ns) + drifted) as u64
    }
    fn real(&self, local_ns: u64) -> u64 {
        let elapsed = i128::from(local_ns) - i128::from(self.offset_ns);
        let mut real = (elapsed * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm)) - 2).max(0) as u64;
        while self.local(real) < local_ns {
            real += 1;
        }
        real
    }
}

struct World {
    now: u64,
    rng: Rng,
    hosts: BTreeMap<MemberId, Host>,
    queue: BTreeMap<(u64, u64), Event>,
    links: BTreeMap<(MemberId, MemberId), u64>,
    sequence: u64,
    deaths: Vec<Death>,
    /// Nothing: at random up to Δ_I.
    delay: Option<u64>,
    /// Certain reports within Δ_I.
    reports: bool,
    /// Copies to this member on these paths take so long, or never come.
    faults: Vec<(MemberId, usize, Option<u64>)>,
    /// Copies handed in with their arrival time after a pause.
    stamps: bool,
    proposed: Vec<(Entry, MemberId)>,
    sent: Vec<(u64, Round)>,
    /// What came for members that have not begun.
    kept: Vec<Event>,
}

impl World {
    fn empty(seed: u64) -> Self {
        Self {
            now: 0,
            rng: Rng(seed),
            hosts: BTreeMap::new(),
            queue: BTreeMap::new(),
            links: BTreeMap::new(),
            sequence: 0,
            deaths: vec![],
            delay: None,
            reports: false,
            faults: vec![],
            stamps: false,
            proposed: vec![],
            sent: vec![],
            kept: vec![],
        }
    }

    fn new(n: u16, config: Config, seed: u64) -> Self {
        let mut world = Self::empty(seed);
        for member in MemberSet::first(n).iter() {
            world.host(member, 0, 0);
            let engine = Lowi::new(member, config, MemberSet::first(n), 1, Start::Together, 0).unwrap();
            world.hosts.get_mut(&member).unwrap().engine = Some(engine);
        }
        world
    }

    fn host(&mut self, member: MemberId, offset_ns: u64, drift_ppm: i64) {
        let host = Host {
            engine: None,
            offset_ns,
            drift_ppm,
            alive: true,
            paused_until: 0,
            actions: 0,
            decided: vec![],
            decided_at: vec![],
        };
        self.hosts.insert(member, host);
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    fn propose(&mut self, at: u64, member: MemberId, number: u64) {
        let entry = entry(member, number);
        self.proposed.push((entry.clone(), member));
        self.at(at, Event::Propose(entry, member));
    }

    fn transit(&mut self) -> u64 {
        self.delay.unwrap_or_else(|| self.rng.upto(DELTA_I))
    }

    fn run(&mut self, until: u64) {
        loop {
            let next = self.queue.first_key_value().map(|(&(at, _), _)| at);
            let wakes = self.hosts.iter().filter(|(_, host)| host.alive).filter_map(|(&member, host)| {
                let due = host.engine.as_ref()?.poll_timeout()?;
                Some((host.real(due).max(host.paused_until).max(self.now), member))
            });
            let wake = wakes.min();
            let Some(at) = next.into_iter().chain(wake.map(|(at, _)| at)).min().filter(|&at| at <= until) else {
                self.now = until;
                return;
            };
            self.now = at;
            if next == Some(at) {
                let (_, event) = self.queue.pop_first().unwrap();
                self.take(at, event);
            } else if let Some((_, member)) = wake {
                self.call(member, at, |engine, now| engine.handle_timeout(now));
            }
        }
    }

    fn take(&mut self, at: u64, event: Event) {
        let to = match &event {
            Event::Begin(to, _) | Event::Copy { to, .. } | Event::Send { to, .. } => *to,
            Event::Propose(_, to) | Event::Report { to, .. } => *to,
        };
        let host = &self.hosts[&to];
        if host.paused_until > at && !self.stamps {
            // The first thing that it does when it runs again is to look into its queues; the packets say when they came, or not.
            let until = host.paused_until;
            return self.at(until, event);
        }
        if host.engine.is_none() && !matches!(event, Event::Begin(..)) {
            return self.kept.push(event);
        }
        match event {
            Event::Begin(_, engine) => {
                self.hosts.get_mut(&to).unwrap().engine = Some(*engine);
                self.call(to, at, |_, _| {});
            }
            Event::Copy { from, path, message, .. } => {
                self.call(to, at, |engine, now| {
                    let _ = engine.handle_copy(now, from, path, message);
                });
            }
            Event::Send { from, message, .. } => self.call(to, at, |engine, now| {
                let _ = engine.handle_message(now, from, message);
            }),
            Event::Propose(entry, _) => self.call(to, at, |engine, now| {
                let _ = engine.propose(now, entry);
            }),
            Event::Report { dead, .. } => self.call(to, at, |engine, now| {
                let _ = engine.handle_crash(now, dead);
            }),
        }
    }

    fn call(&mut self, member: MemberId, at: u64, call: impl FnOnce(&mut Lowi, u64)) {
        let host = self.hosts.get_mut(&member).unwrap();
        let local = host.local(at);
        if !host.alive || host.engine.is_none() {
            return;
        }
        call(host.engine.as_mut().unwrap(), local);
        loop {
            let host = self.hosts.get_mut(&member).unwrap();
            let engine = host.engine.as_mut().unwrap();
            engine.invariants();
            let Some(action) = engine.poll_action() else {
                if engine.poll_timeout().is_some_and(|due| due <= local) {
                    engine.handle_timeout(local);
                    continue;
                }
                return;
            };
            let done = host.actions;
            host.actions += 1;
            let death = self.deaths.iter().find(|death| death.who == member && death.after_actions == done).copied();
            if let Some(death) = death {
                if let (true, Action::Copies { message }) = (death.between_copies, &action) {
                    self.copies(member, message.clone(), 1);
                }
                return self.kill(member);
            }
            self.carry_out(member, action);
        }
    }

    fn kill(&mut self, member: MemberId) {
        self.hosts.get_mut(&member).unwrap().alive = false;
        if self.reports {
            let others: Vec<_> = self.hosts.keys().copied().filter(|other| *other != member).collect();
            for to in others {
                let at = self.now + self.rng.upto(DELTA_I);
                self.at(at, Event::Report { to, dead: member });
            }
        }
    }

    fn copies(&mut self, from: MemberId, message: Message, paths: usize) {
        let others: Vec<_> = self.hosts.keys().copied().filter(|other| *other != from).collect();
        for to in others {
            for path in 0..paths {
                let fault = self.faults.iter().find(|(member, on, _)| (*member, *on) == (to, path)).map(|fault| fault.2);
                let Some(delay) = fault.unwrap_or_else(|| Some(self.transit())) else { continue };
                self.at(self.now + delay, Event::Copy { to, from, path, message: message.clone() });
            }
        }
    }

    fn carry_out(&mut self, member: MemberId, action: Action<Message>) {
        match action {
            Action::Copies { message } => {
                if let Message::Round(round) = &message {
                    self.sent.push((self.now, round.clone()));
                }
                self.copies(member, message, 2);
                let host = self.hosts.get_mut(&member).unwrap();
                let local = host.local(self.now);
                host.engine
                    .iter_mut()
                    .filter(|engine| engine.config.sent_is_said)
                    .for_each(|engine| engine.handle_copies_sent(local));
            }
            Action::Send { to, message } => {
                assert_ne!(to, member);
                let earliest = self.links.get(&(member, to)).copied().unwrap_or(0);
                let at = earliest.max(self.now + self.rng.upto(3 * DELTA_I));
                self.links.insert((member, to), at);
                self.at(at, Event::Send { to, from: member, message });
            }
            Action::Decide { instance, batch } => {
                let now = self.now;
                let host = self.hosts.get_mut(&member).unwrap();
                assert!(!batch.is_empty(), "nano_4_2 ⊥ is never decided");
                if let Some((last, _)) = host.decided.last() {
                    assert_eq!(last + 1, instance, "nano_4_2 integrity: in order, each once");
                }
                host.decided.push((instance, batch.clone()));
                host.decided_at.push(now);
                let local = host.local(now);
                let engine = host.engine.as_mut().unwrap();
                let mut members = engine.members.clone();
                match batch[0].body {
                    Body::Join(joiner) => members.insert(joiner),
                    Body::Leave(leaver) => members.remove(leaver),
                    Body::Value(_) | Body::Switch(_) => return,
                };
                engine.set_members(local, instance + 1, members).unwrap();
            }
            Action::Halt(_) | Action::Memory { .. } | Action::State { .. } => {}
        }
    }

    fn engine(&self, member: MemberId) -> &Lowi {
        self.hosts[&member].engine.as_ref().unwrap()
    }

    /// Whether no two ever decided differently, dead or alive.
    fn agrees(&self) -> bool {
        let mut log: BTreeMap<Instance, &Batch> = BTreeMap::new();
        self.hosts
            .values()
            .flat_map(|host| &host.decided)
            .all(|(instance, batch)| *log.entry(*instance).or_insert(batch) == batch)
    }

    /// Agreement, validity, and for those who are alive: not halted, and everything decided that a member alive proposed.
    fn check(&self, seed: u64) {
        assert!(self.agrees(), "seed {seed}: uniform agreement");
        let proposed: BTreeSet<EntryId> = self.proposed.iter().map(|(entry, _)| entry.id).collect();
        for (member, host) in &self.hosts {
            let mine: Vec<EntryId> = host.decided.iter().flat_map(|(_, batch)| batch.iter()).map(|entry| entry.id).collect();
            assert!(mine.iter().all(|id| proposed.contains(id)), "seed {seed}: validity");
            if !host.alive {
                continue;
            }
            assert_eq!(host.engine.as_ref().unwrap().halted(), None, "seed {seed}: {member} goes on");
            for (entry, at) in &self.proposed {
                let live = self.hosts[at].alive;
                assert!(!live || mine.contains(&entry.id), "seed {seed}: termination, {member} misses {}", entry.id);
            }
        }
    }
}

fn entry(proposer: MemberId, number: u64) -> Entry {
    Entry { id: EntryId { proposer, number }, body: Body::Value(number.to_le_bytes().as_slice().into()) }
}

fn config() -> Config {
    Config::new(PERIOD, DELTA_I)
}

fn round(leader: MemberId, round: u64, instance: Instance, batch: Vec<Entry>) -> Message {
    Message::Round(Round { round, leader, instance, sent_ns: 0, batch: batch.into() })
}

#[test]
fn nano_4_2_failure_free_decides_in_one_message_delay() {
    let mut world = World::new(5, config(), 1);
    world.delay = Some(7 * US);
    world.propose(75 * US, P1, 1);
    world.run(200 * US);
    world.check(1);
    let begun = world.sent.iter().find(|(_, round)| !round.batch.is_empty()).unwrap().0;
    let decided: Vec<u64> = world.hosts.values().map(|host| host.decided_at[0] - begun).collect();
    assert_eq!(decided, [0, 7 * US, 7 * US, 7 * US, 7 * US], "the leader as it sends, the others one delay later");
}

#[test]
fn nano_4_2_an_idle_loop_uses_rounds_and_no_instance() {
    let mut world = World::new(3, config(), 2);
    world.propose(1_000 * US, P3, 1);
    world.run(2_000 * US);
    world.check(2);
    assert!(world.sent.len() > 90 && world.sent.iter().all(|(_, round)| round.leader == P1), "heartbeats keep the leader");
    assert_eq!(world.engine(P2).decided_through(), 1);
    assert_eq!(world.engine(P2).stable_through(), 1);
    assert_eq!(world.engine(P2).round(), world.sent.last().unwrap().1.round.min(world.engine(P2).round()));
}

#[test]
fn nano_4_2_a_crash_at_every_point_of_a_round() {
    for n in 2..=4 {
        for after_actions in 0..24 {
            for reports in [false, true] {
                let seed = after_actions as u64;
                let mut world = World::new(n, config(), seed);
                world.reports = reports;
                world.deaths.push(Death { who: P1, after_actions, between_copies: false });
                (1..=4).for_each(|number| world.propose(number * 15 * US, P1, number));
                (1..=6).for_each(|number| world.propose(number * 21 * US, MemberId(n), number));
                world.run(4_000 * US);
                assert!(!world.hosts[&P1].alive);
                world.check(seed);
                assert_eq!(world.engine(P2).leader(), Some(P2));
            }
        }
    }
}

#[test]
fn nano_4_2_n_minus_1_crashes() {
    for seed in 0..200 {
        let mut world = World::new(5, config(), seed);
        world.reports = seed % 2 == 0;
        for who in 1..=4 {
            let after_actions = world.rng.upto(8) as usize;
            world.deaths.push(Death { who: MemberId(who), after_actions, between_copies: false });
            world.propose(who.into(), MemberId(who), 1);
        }
        (1..=5).for_each(|number| world.propose(number * 100 * US, MemberId(5), number));
        world.run(20_000 * US);
        assert_eq!(world.hosts.values().filter(|host| host.alive).count(), 1);
        world.check(seed);
        assert_eq!(world.engine(MemberId(5)).leader(), Some(MemberId(5)));
    }
}

/// Delays up to Δ_I, starts within Δ_W, clocks at the drift bound, any depth and period, crashes of up to N−1 at any action.
fn random_world(seed: u64) -> World {
    let mut world = World::empty(seed);
    let n = 2 + world.rng.upto(3) as u16;
    let config = Config {
        period_ns: (5 + world.rng.upto(60)) * US,
        depth: 1 + world.rng.upto(7) as usize,
        delta_w_ns: DELTA_I + 3 * US + world.rng.upto(DELTA_I),
        batch_entries_max: 1 + world.rng.upto(3) as usize,
        hurry: world.rng.upto(1) == 0,
        eager: world.rng.upto(1) == 0,
        sent_is_said: world.rng.upto(1) == 0,
        rounds_max: ROUNDS_MAX,
        ..config()
    };
    world.reports = world.rng.upto(1) == 0;
    for member in MemberSet::first(n).iter() {
        let (offset, drift) = (world.rng.upto(1 << 40), world.rng.upto(200) as i64 - 100);
        world.host(member, offset, drift);
        let begin = world.rng.upto(config.delta_w_ns);
        let local = world.hosts[&member].local(begin);
        let engine = Lowi::new(member, config, MemberSet::first(n), 1, Start::Together, local).unwrap();
        world.at(begin, Event::Begin(member, Box::new(engine)));
    }
    for _ in 0..world.rng.upto(u64::from(n) - 1) {
        let who = MemberId(1 + world.rng.upto(u64::from(n) - 1) as u16);
        let after_actions = world.rng.upto(40) as usize;
        if world.deaths.iter().any(|death| death.who == who) {
            continue;
        }
        world.deaths.push(Death { who, after_actions, between_copies: false });
    }
    for member in 1..=n {
        let mut at = config.delta_w_ns;
        for number in 1..=world.rng.upto(8) {
            at += world.rng.upto(100 * US);
            world.propose(at, MemberId(member), number);
        }
    }
    world
}

#[test]
fn nano_4_2_random_schedules() {
    for seed in 0..3_000 {
        let mut world = random_world(seed);
        world.run(4_000 * US);
        world.check(seed);
    }
}

/// Pauses of any length at any time, without arrival times: whoever slept stops, nobody disagrees.
#[test]
fn nano_4_2_random_schedules_with_pauses_agree() {
    let mut stopped = 0;
    for seed in 0..1_500 {
        let mut world = random_world(seed);
        world.stamps = seed % 3 == 0;
        for _ in 0..6 {
            let at = world.now + world.rng.upto(400 * US);
            world.run(at);
            let member = MemberId(1 + world.rng.upto(world.hosts.len() as u64 - 1) as u16);
            let pause = 1 << world.rng.upto(19);
            world.hosts.get_mut(&member).unwrap().paused_until = at + world.rng.upto(pause);
        }
        world.run(6_000 * US);
        assert!(world.agrees(), "seed {seed}");
        stopped += usize::from(world.hosts.values().any(|host| host.engine.as_ref().unwrap().halted().is_some()));
    }
    assert!(stopped > 100 && stopped < 1_500, "{stopped}");
}

#[test]
fn nano_4_2_entries_of_one_member_are_decided_in_their_order() {
    for seed in 0..50 {
        let mut world = World::new(3, Config { depth: 4, period_ns: 5 * US, ..config() }, seed);
        (1..=200).for_each(|number| world.propose(US + number / 40 * 20 * US, P3, number));
        world.deaths.push(Death { who: P1, after_actions: 20 + seed as usize, between_copies: false });
        world.run(4_000 * US);
        world.check(seed);
        let mut seen = BTreeSet::new();
        let decided = world.hosts[&P3].decided.iter().flat_map(|(_, batch)| batch.iter()).map(|entry| entry.id.number);
        let firsts: Vec<u64> = decided.filter(|&number| seen.insert(number)).collect();
        assert_eq!(firsts, (1..=200).collect::<Vec<_>>());
    }
}

#[test]
fn nano_4_2_must_fail_with_one_late_packet_and_both_sides_stop() {
    let mut world = World::new(3, config(), 3);
    world.delay = Some(US);
    world.propose(0, P1, 1);
    world.propose(500 * US, P2, 1);
    // p1 speaks once and dies; its round reaches p3 in time, and p2 long after it elected itself.
    world.deaths.push(Death { who: P1, after_actions: 2, between_copies: false });
    world.faults = vec![(P2, 0, Some(2_000 * US)), (P2, 1, Some(2_000 * US))];
    world.run(100 * US);
    assert_eq!(world.hosts[&P3].decided.len(), 1, "p3 has decided what p1 said");
    world.faults.clear();
    world.run(3_000 * US);
    assert!(world.hosts[&P1].decided == world.hosts[&P3].decided);
    // p2's first round has a number that p3 has used: p3 stops at once, and tells p2. Had p2 had something to say, they would disagree.
    assert_eq!(world.engine(P3).halted(), Some(Halted::MissingBroadcast));
    assert_eq!(world.engine(P2).halted(), Some(Halted::NetworkFault));

    // The same, but p2 has something to say: agreement is broken, as the paper assumes it away.
    let mut world = World::new(3, config(), 3);
    world.delay = Some(US);
    world.propose(0, P1, 1);
    world.propose(0, P2, 1);
    world.deaths.push(Death { who: P1, after_actions: 2, between_copies: false });
    world.faults = vec![(P2, 0, Some(2_000 * US)), (P2, 1, Some(2_000 * US))];
    world.run(100 * US);
    world.faults.clear();
    world.run(3_000 * US);
    assert!(!world.agrees(), "without the timing assumption, agreement breaks");
    assert_eq!(world.hosts[&P2].decided.len(), 1, "and the safe exit confines it to one instance");
    assert_eq!(world.engine(P3).halted(), Some(Halted::MissingBroadcast));
    assert_eq!(world.engine(P2).halted(), Some(Halted::NetworkFault));
}

#[test]
fn nano_3_3_a_missing_copy_stops_everybody_and_nobody_disagrees() {
    for exit_together in [true, false] {
        let mut world = World::new(3, Config { exit_together, ..config() }, 4);
        world.faults = vec![(P3, 1, None)];
        world.propose(0, P1, 1);
        world.run(1_000 * US);
        assert!(world.agrees());
        assert_eq!(world.engine(P3).halted(), Some(Halted::NetworkFault));
        assert_eq!(world.hosts[&P3].decided, [], "not delivered, hence not decided");
        let others = exit_together.then_some(Halted::NetworkFault);
        assert_eq!((world.engine(P1).halted(), world.engine(P2).halted()), (others, others));
        assert_eq!(world.hosts[&P2].decided.len(), 1);
    }
}

#[test]
fn nano_3_3_a_crash_between_the_copies_stops_everybody_before_they_decide() {
    let mut world = World::new(3, config(), 5);
    world.propose(0, P1, 1);
    world.deaths.push(Death { who: P1, after_actions: 0, between_copies: true });
    world.run(1_000 * US);
    for member in [P2, P3] {
        assert_eq!((world.engine(member).halted(), world.hosts[&member].decided.len()), (Some(Halted::NetworkFault), 0));
    }
}

#[test]
fn nano_3_3_a_round_that_never_came_is_shown_by_the_next_one() {
    let mut world = World::new(3, Config { exit_together: false, ..config() }, 6);
    world.delay = Some(US);
    world.run(45 * US);
    world.faults = vec![(P3, 0, None), (P3, 1, None)];
    world.run(65 * US);
    world.faults.clear();
    world.run(300 * US);
    assert_eq!(world.engine(P3).halted(), Some(Halted::MissingBroadcast));
    assert_eq!(world.engine(P2).halted(), None);
}

#[test]
fn a_paused_leader_stops_before_it_speaks_and_the_others_go_on() {
    let mut world = World::new(3, config(), 7);
    world.propose(0, P1, 1);
    world.propose(0, P3, 1);
    world.run(110 * US);
    world.hosts.get_mut(&P1).unwrap().paused_until = 900 * US;
    world.propose(200 * US, P3, 2);
    world.run(2_000 * US);
    assert_eq!(world.engine(P1).halted(), Some(Halted::Expelled));
    assert!(world.agrees());
    assert_eq!((world.engine(P2).leader(), world.engine(P3).leader()), (Some(P2), Some(P2)));
    assert_eq!(world.hosts[&P2].decided.last().unwrap().1[0].id, entry(P3, 2).id);
}

#[test]
fn a_leader_that_is_late_by_less_than_the_slack_goes_on() {
    let late = config().late_ns(3).unwrap();
    assert!(late > DELTA_I / 2);
    for seed in 0..100 {
        let mut world = World::new(3, config(), seed);
        world.propose(0, P3, 1);
        world.run(100 * US);
        world.hosts.get_mut(&P1).unwrap().paused_until = world.now + late;
        world.run(2_000 * US);
        world.check(seed);
        assert_eq!(world.engine(P3).leader(), Some(P1));
    }
}

#[test]
fn a_leader_paused_between_stamp_and_copies_does_not_decide() {
    let mut lowi = Lowi::new(P1, config(), MemberSet::first(2), 1, Start::Together, 0).unwrap();
    lowi.propose(0, entry(P1, 1)).unwrap();
    let at = lowi.poll_timeout().unwrap();
    lowi.handle_timeout(at);
    assert!(matches!(lowi.poll_action(), Some(Action::Copies { .. })));
    assert_eq!((lowi.poll_action(), lowi.poll_timeout()), (None, Some(at)), "asks to be called at once");
    let mut in_time = lowi.clone();
    in_time.handle_timeout(at + config().late_ns(2).unwrap());
    assert!(matches!(in_time.poll_action(), Some(Action::Decide { instance: 1, .. })));
    lowi.handle_timeout(at + config().late_ns(2).unwrap() + 1);
    assert_eq!(lowi.poll_action(), Some(Action::Halt(Halted::Expelled)));
    assert_eq!((lowi.poll_action(), lowi.decided_through()), (None, 0));
}

#[test]
fn copies_that_cannot_leave_are_not_decided() {
    let mut lowi = Lowi::new(P1, config(), MemberSet::first(1), 1, Start::Together, 0).unwrap();
    lowi.propose(0, entry(P1, 1)).unwrap();
    lowi.handle_timeout(4 * PERIOD);
    assert!(matches!(lowi.poll_action(), Some(Action::Copies { .. })));
    lowi.handle_network_fault(4 * PERIOD);
    assert_eq!((lowi.poll_action(), lowi.poll_action()), (Some(Action::Halt(Halted::NetworkFault)), None));
    assert_eq!((lowi.decided_through(), lowi.poll_timeout()), (0, None));
    let before = lowi.clone();
    assert_eq!(lowi.propose(4 * PERIOD, entry(P1, 2)), Err(Refused::Halted));
    lowi.refusals = before.refusals;
    assert_eq!(lowi, before);
}

#[test]
fn a_paused_follower_stops_unless_its_packets_have_their_arrival_times() {
    for stamps in [false, true] {
        let mut world = World::new(3, Config { exit_together: false, ..config() }, 8);
        world.stamps = stamps;
        world.run(110 * US);
        world.hosts.get_mut(&P3).unwrap().paused_until = 1_500 * US;
        world.propose(400 * US, P1, 1);
        world.run(3_000 * US);
        assert_eq!(world.engine(P3).halted(), if stamps { None } else { Some(Halted::Expelled) });
        assert_eq!(world.hosts[&P3].decided.len(), usize::from(stamps));
        assert_eq!((world.engine(P1).halted(), world.engine(P2).halted()), (None, None));
    }
}

#[test]
fn latency_that_creeps_up_is_noticed_although_no_timeout_is_exceeded() {
    let mut world = World::new(2, config(), 9);
    world.delay = Some(US);
    world.run(200 * US);
    for step in 1..=60 {
        world.delay = Some(US + step * US);
        world.run(200 * US + step * PERIOD);
    }
    assert_eq!(world.engine(P2).halted(), Some(Halted::NetworkFault));
    assert!(world.now - 200 * US > 30 * PERIOD && world.engine(P2).round() > 30, "Δ_I above the fastest, not before");
}

#[test]
fn nano_5_2_a_joiner_stops_nobody() {
    for seed in 0..200 {
        let config = Config { depth: 3, period_ns: 10 * US, ..config() };
        let mut world = World::new(2, config, seed);
        world.host(P3, 77, 50);
        (1..=20).for_each(|number| world.propose(number * 30 * US, P2, number));
        // It listens from before it asks, and keeps what it hears; later the state goes on its way.
        world.run(110 * US);
        world.kept.clear();
        world.run(150 * US);
        let sponsor = if seed % 2 == 0 { P1 } else { P2 };
        let point = StartPoint::from_value(&world.engine(sponsor).start_point().unwrap()).unwrap();
        let first = world.engine(sponsor).decided_through() + 1;
        assert_eq!(point.next, first);
        world.run(250 * US);
        let until = world.now;
        let kept = std::mem::take(&mut world.kept);
        let local = world.hosts[&P3].local(until);
        let joiner = Lowi::join(P3, config, MemberSet::first(2), point, local).unwrap();
        world.hosts.get_mut(&P3).unwrap().engine = Some(joiner);
        kept.into_iter().for_each(|event| world.take(until, event));
        let join = Entry { id: EntryId { proposer: P2, number: 100 }, body: Body::Join(P3) };
        world.proposed.push((join.clone(), P1));
        world.at(300 * US, Event::Propose(join, P2));
        world.deaths.push(Death { who: P1, after_actions: world.hosts[&P1].actions + 40, between_copies: false });
        world.run(6_000 * US);
        assert!(world.agrees() && !world.hosts[&P1].alive);
        assert_eq!((world.engine(P3).halted(), world.engine(P2).halted()), (None, None), "seed {seed}");
        assert_eq!(world.hosts[&P3].decided[0].0, first, "it logged from the running instance on");
        assert_eq!(world.hosts[&P3].decided.last(), world.hosts[&P2].decided.last());
        // It is a full member: alone at last, it leads.
        world.kill(P2);
        world.propose(world.now, P3, 1);
        world.run(9_000 * US);
        assert_eq!(world.engine(P3).leader(), Some(P3));
        assert_eq!(world.hosts[&P3].decided.last().unwrap().1[0].id, entry(P3, 1).id);
    }
}

#[test]
fn nano_4_2_a_round_that_skips_an_instance_stops_who_gets_it() {
    for (instance, batch) in [(2, vec![entry(P1, 1)]), (2, vec![])] {
        let mut lowi = Lowi::new(P2, config(), MemberSet::first(3), 1, Start::Together, 0).unwrap();
        lowi.handle_copy(1, P1, 0, round(P1, 1, instance, batch.clone())).unwrap();
        lowi.handle_copy(1, P1, 1, round(P1, 1, instance, batch)).unwrap();
        assert_eq!((lowi.halted(), lowi.decided_through()), (Some(Halted::MissingBroadcast), 0));
    }
}

/// Seeds 514 and 869 of the simulator: the only other member died while the joiner was on its way in, so no live round would ever come.
#[test]
fn nano_5_2_a_joiner_that_is_left_alone_goes_on() {
    let begin = StartPoint { round: 5, leader: P1, next: 2 };
    let mut joiner = Lowi::join(P3, config(), [P1, P3].into_iter().collect(), begin, 0).unwrap();
    joiner.propose(0, entry(P3, 1)).unwrap();
    joiner.handle_crash(0, P1).unwrap();
    let mut decided = Vec::new();
    while decided.is_empty() {
        joiner.handle_timeout(joiner.poll_timeout().unwrap());
        while let Some(action) = joiner.poll_action() {
            match action {
                Action::Decide { instance, batch } => decided.push((instance, batch.len())),
                Action::Halt(why) => panic!("{why:?}"),
                _ => {}
            }
        }
    }
    assert_eq!(decided, [(2, 1)]);
}

#[test]
fn nano_5_2_a_joiner_that_misses_something_stops_alone() {
    let begin = StartPoint { round: 5, leader: P1, next: 2 };
    let mut joiner = Lowi::join(P3, config(), MemberSet::first(3), begin, 0).unwrap();
    joiner.handle_copy(1, P1, 0, round(P1, 7, 2, vec![])).unwrap();
    joiner.handle_timeout(joiner.poll_timeout().unwrap());
    assert_eq!((joiner.poll_action(), joiner.poll_action()), (Some(Action::Halt(Halted::MissingBroadcast)), None));
}

#[test]
fn a_leader_that_leaves_is_followed_by_the_next_without_a_timeout() {
    for seed in 0..100 {
        let mut world = World::new(3, config(), seed);
        world.delay = Some(DELTA_I / 2);
        let leave = Entry { id: EntryId { proposer: P1, number: 1 }, body: Body::Leave(P1) };
        world.at(US + seed * 100, Event::Propose(leave, P1));
        world.propose(60 * US, P3, 1);
        world.run(600 * US);
        assert_eq!(world.engine(P1).halted(), Some(Halted::Left));
        assert_eq!((world.engine(P2).leader(), world.engine(P3).leader()), (Some(P2), Some(P2)));
        assert!(world.agrees() && world.hosts[&P3].decided.len() == 2);
        let rounds: Vec<_> = world.sent.iter().map(|(at, round)| (*at, round.leader, round.round)).collect();
        let last = rounds.iter().rposition(|&(_, leader, _)| leader == P1).unwrap();
        let wait = PERIOD.max(config().flight_ns());
        assert_eq!(rounds[last + 1].0 - rounds[last].0, DELTA_I / 2 + wait, "one period after it heard of it, or when all have");
        assert_eq!(rounds[last + 1].2, rounds[last].2 + 1, "and no round is skipped");
    }
}

/// Seed 3001216 of the simulator: p2 leads and leaves, p3 is long known to be dead, so p4's hurry would have been due before it could know.
#[test]
fn who_follows_one_that_leaves_and_one_that_is_dead_is_not_late() {
    for seed in 0..100 {
        let mut world = World::new(5, config(), seed);
        world.reports = true;
        world.run(20 * US);
        world.kill(P1);
        world.kill(P3);
        world.run(400 * US);
        let leave = Entry { id: EntryId { proposer: P2, number: 1 }, body: Body::Leave(P2) };
        world.proposed.push((leave.clone(), P2));
        world.at(400 * US, Event::Propose(leave, P2));
        world.propose(400 * US, P4, 1);
        world.propose(400 * US, MemberId(5), 1);
        world.run(1_000 * US);
        world.hosts.get_mut(&P2).unwrap().alive = false;
        world.check(seed);
        let (at, last) = world.sent.iter().rfind(|(_, round)| round.leader == P2).unwrap();
        let (next_at, next) = world.sent.iter().find(|(_, round)| round.leader == P4).unwrap();
        assert_eq!(next.round, last.round + 2, "p3 is skipped");
        assert!(
            (*at + DELTA_I..*at + 2 * DELTA_I + 100).contains(next_at),
            "when all have heard of the leave, and sooner than p3's slot is over"
        );
    }
}

/// Whoever speaks behind a leave counts in the members behind it: the others have it by then, however short the period.
#[test]
fn a_leader_that_leaves_is_followed_when_everybody_knows_it() {
    for seed in 0..100 {
        let mut world = World::new(4, Config { period_ns: 2 * US, ..config() }, seed);
        let leave = Entry { id: EntryId { proposer: P1, number: 1 }, body: Body::Leave(P1) };
        world.proposed.push((leave.clone(), P1));
        world.at(50 * US, Event::Propose(leave, P1));
        world.propose(60 * US, P3, 1);
        world.run(400 * US);
        world.hosts.get_mut(&P1).unwrap().alive = false;
        world.check(seed);
    }
}

#[test]
fn a_leader_that_leaves_is_silent_until_its_log_lets_it_go() {
    let mut lowi = Lowi::new(P1, config(), MemberSet::first(3), 1, Start::Together, 0).unwrap();
    lowi.propose(0, Entry { id: EntryId { proposer: P1, number: 1 }, body: Body::Leave(P1) }).unwrap();
    let at = lowi.poll_timeout().unwrap();
    lowi.handle_timeout(at);
    assert!(matches!(lowi.poll_action(), Some(Action::Copies { .. })));
    lowi.handle_timeout(at + 1);
    assert!(matches!(lowi.poll_action(), Some(Action::Decide { instance: 1, .. })));
    lowi.set_leaving(at + 1, 2, [P2, P3].into_iter().collect());
    lowi.handle_timeout(at + 10 * PERIOD);
    assert_eq!((lowi.poll_timeout(), lowi.poll_action(), lowi.leader()), (None, None, None), "the next round is of P2");
    lowi.invariants();
}

#[test]
fn a_barrier_is_alone_and_nothing_passes_it() {
    let mut lowi = Lowi::new(P1, Config { depth: 8, ..config() }, MemberSet::first(1), 1, Start::Together, 0).unwrap();
    lowi.propose(0, entry(P1, 1)).unwrap();
    lowi.propose(0, Entry { id: EntryId { proposer: P1, number: 2 }, body: Body::Join(P2) }).unwrap();
    lowi.propose(0, entry(P1, 3)).unwrap();
    let mut decided = vec![];
    for step in 4..=12 {
        lowi.handle_timeout(step * PERIOD);
        while let Some(action) = lowi.poll_action() {
            if let Action::Decide { instance, batch } = action {
                decided.push((instance, batch[0].id.number));
            }
            lowi.handle_timeout(step * PERIOD);
        }
        if step == 9 {
            assert_eq!(decided, [(1, 1), (2, 2)], "waits for its members");
            lowi.set_members(step * PERIOD, 3, MemberSet::first(2)).unwrap();
        }
    }
    assert_eq!(decided, [(1, 1), (2, 2), (3, 3)]);
}

#[test]
fn nano_4_2_depth_bounds_the_instances_in_flight() {
    for depth in [1, 3] {
        let mut world = World::new(2, Config { period_ns: 5 * US, batch_entries_max: 1, depth, ..config() }, 10);
        (1..=30).for_each(|number| world.propose(0, P1, number));
        world.run(3_000 * US);
        world.check(10);
        let begun: Vec<u64> = world.sent.iter().filter(|(_, round)| !round.batch.is_empty()).map(|(at, _)| *at).collect();
        let most = begun.iter().map(|&at| begun.iter().filter(|&&b| b >= at && b <= at + DELTA_I).count()).max();
        assert_eq!(most, Some(depth));
    }
}

/// A value need not wait for the slot of who spoke last, and idle rounds keep their slots.
#[test]
fn who_spoke_last_speaks_at_once_when_something_waits() {
    let config = Config { period_ns: 200 * US, eager: true, depth: 4, rounds_max: ROUNDS_MAX, ..config() };
    let mut world = World::new(3, config, 12);
    world.run(450 * US);
    let idle = world.sent.len();
    assert!((2..=3).contains(&idle), "one each period: {idle}");
    world.propose(460 * US, P1, 1);
    world.propose(470 * US, P2, 1);
    world.run(3_000 * US);
    world.check(12);
    let begun: Vec<u64> = world.sent.iter().filter(|(_, round)| !round.batch.is_empty()).map(|(at, _)| *at).collect();
    assert_eq!(begun[0], 460 * US, "at once");
    assert!(begun[1] <= 470 * US + 3 * DELTA_I, "as soon as it is with the leader");
    // Behind one of many bytes it rests, so that more come together.
    let resting = Config { rest_ns_per_byte: US, rest_max_ns: 20 * US, ..config };
    let mut p1 = Lowi::new(P1, resting, MemberSet::first(1), 1, Start::Together, 0).unwrap();
    let said =
        |p1: &mut Lowi| std::iter::from_fn(|| p1.poll_action()).filter(|action| matches!(action, Action::Copies { .. })).count();
    let slot = p1.poll_timeout().unwrap();
    p1.handle_timeout(slot);
    assert_eq!(said(&mut p1), 1, "its slot");
    let at = slot + 10 * US;
    p1.propose(at, entry(P1, 1)).unwrap();
    p1.handle_timeout(at);
    assert_eq!(said(&mut p1), 1, "8 bytes");
    p1.propose(at + US, entry(P1, 2)).unwrap();
    assert_eq!((said(&mut p1), p1.poll_timeout()), (0, Some(at + 8 * US)));
    p1.handle_timeout(at + 8 * US);
    assert_eq!(said(&mut p1), 1);
    // Who has not spoken last waits for its slot: somebody before it may live.
    let mut p2 = Lowi::new(P2, config, MemberSet::first(2), 1, Start::Together, 0).unwrap();
    p2.propose(0, entry(P2, 1)).unwrap();
    assert!(p2.poll_timeout().unwrap() >= config.wait_ns(1, Since::Start, p2.late_ns));
}

/// As if its copies had never left, until the shell says that they have; and in time.
#[test]
fn where_the_shell_says_when_copies_have_left_nothing_is_decided_before() {
    let config = Config { sent_is_said: true, ..config() };
    let mut lowi = Lowi::new(P1, config, MemberSet::first(2), 1, Start::Together, 0).unwrap();
    lowi.propose(0, entry(P1, 1)).unwrap();
    let at = lowi.poll_timeout().unwrap();
    lowi.handle_timeout(at);
    assert!(matches!(lowi.poll_action(), Some(Action::Copies { .. })));
    lowi.handle_timeout(at + 1);
    assert_eq!((lowi.poll_action(), lowi.decided_through()), (None, 0));
    let mut late = lowi.clone();
    late.handle_copies_sent(at + config.late_ns(2).unwrap() + 1);
    assert_eq!((late.poll_action(), late.poll_action()), (Some(Action::Halt(Halted::Expelled)), None));
    lowi.handle_copies_sent(at + config.late_ns(2).unwrap());
    assert!(matches!(lowi.poll_action(), Some(Action::Decide { instance: 1, .. })));
}

/// Where members exit one by one, a round that somebody has given up stops all: what was decided
/// may differ.
#[test]
fn who_finds_that_decisions_may_differ_tells_all_also_where_members_exit_alone() {
    for exit_if_diverged in [false, true] {
        let config = Config { exit_together: false, exit_if_diverged, ..config() };
        let mut p3 = Lowi::new(P3, config, MemberSet::first(3), 1, Start::Together, 0).unwrap();
        let copy = |lowi: &mut Lowi, at, from, number, instance, path| {
            lowi.handle_copy(at, from, path, round(from, number, instance, vec![entry(from, number)])).unwrap();
        };
        (0..2).for_each(|path| copy(&mut p3, 80 * US, P1, 1, 1, path));
        // The successor has not heard round 1: its number is that of a group that began with it.
        copy(&mut p3, 100 * US, P2, 2, 1, 0);
        assert_eq!(p3.halted(), Some(Halted::MissingBroadcast));
        let told = std::iter::from_fn(|| p3.poll_action())
            .filter(|action| matches!(action, Action::Send { message: Message::Exit, .. }))
            .count();
        assert_eq!(told, if exit_if_diverged { 2 } else { 0 });
    }
}

#[test]
fn certain_reports_shorten_only_ones_own_silence() {
    let elected = |reports: bool| {
        let mut world = World::new(3, config(), 11);
        world.reports = reports;
        world.run(105 * US);
        world.kill(P1);
        world.run(1_000 * US);
        world.check(11);
        world.sent.iter().find(|(_, round)| round.leader == P2).unwrap().0 - 105 * US
    };
    assert!(elected(true) < 2 * DELTA_I + 100, "the report, and Δ_I for what was in flight");
    assert!(elected(false) > 2 * DELTA_I);
    // A report about p2 does not make p3 give p2 up: p2 may not have had the report about p1 and speak in its slot.
    let mut lowi = Lowi::new(P3, config(), MemberSet::first(3), 1, Start::Together, 0).unwrap();
    lowi.handle_crash(0, P1).unwrap();
    assert_eq!(lowi.poll_timeout(), Some(lowi.wait_ns(1)));
    assert_eq!(lowi.handle_crash(0, P1), Err(Refused::Duplicate));
    lowi.handle_crash(5, P2).unwrap();
    assert_eq!(lowi.poll_timeout(), Some(5 + config().flight_ns()));
}

/// What it says, if that is a message to one member.
fn says(lowi: &mut Lowi) -> Option<(MemberId, Message)> {
    match lowi.poll_action()? {
        Action::Send { to, message } => Some((to, message)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nano_5_2_who_waits_for_the_start_message_needs_it_or_a_report() {
    let start = |member| Lowi::new(member, config(), MemberSet::first(3), 1, Start::OnMessage, 0).unwrap();
    let mut p2 = start(P2);
    assert_eq!(p2.poll_timeout(), None);
    p2.handle_copy(9_000 * US, P1, 0, round(P1, 1, 1, vec![])).unwrap();
    p2.handle_copy(9_001 * US, P1, 1, round(P1, 1, 1, vec![])).unwrap();
    assert_eq!((p2.round(), p2.poll_timeout()), (1, Some(9_001 * US + p2.wait_ns(1))));
    // Who knows of the starter's crash only does not count: when the one between begins to wait, or hears of that crash, nobody knows.
    let mut p3 = start(P3);
    p3.handle_crash(10 * US, P1).unwrap();
    assert_eq!((p3.poll_timeout(), p3.leader()), (None, Some(P2)));
    p3.handle_timeout(90_000 * US);
    p3.handle_copy(90_001 * US, P2, 0, round(P2, 2, 1, vec![])).unwrap();
    p3.handle_copy(90_002 * US, P2, 1, round(P2, 2, 1, vec![])).unwrap();
    assert_eq!((p3.round(), p3.halted()), (2, None));
    // Whatever the order of the reports, its own time comes with the last of them; and a copy that a report overtook is no fault.
    let mut p3 = start(P3);
    p3.handle_crash(10 * US, P2).unwrap();
    assert_eq!((p3.poll_timeout(), p3.leader()), (None, Some(P1)));
    p3.handle_crash(5_000 * US, P1).unwrap();
    assert_eq!(p3.poll_timeout(), Some(5_000 * US + config().flight_ns()));
    p3.handle_copy(5_001 * US, P1, 0, round(P1, 1, 1, vec![])).unwrap();
    p3.handle_copy(5_002 * US, P1, 1, round(P1, 1, 1, vec![])).unwrap();
    assert_eq!((p3.round(), p3.halted()), (1, None));
    // A start message that was kept for a member that came late does not tell when it was sent.
    let mut p2 = start(P2);
    p2.handle_copy(0, P1, 0, round(P1, 1, 1, vec![])).unwrap();
    p2.handle_copy(0, P1, 1, round(P1, 1, 1, vec![])).unwrap();
    p2.handle_timeout(p2.poll_timeout().unwrap());
    assert_eq!(p2.halted(), Some(Halted::MissingBroadcast));
}

#[test]
fn nano_5_2_the_start_waits_until_all_who_live_are_there() {
    let start = |member| Lowi::new(member, config(), MemberSet::first(4), 1, Start::OnMessage, 0).unwrap();
    let mut p1 = start(P1);
    assert_eq!((p1.poll_timeout(), p1.poll_action()), (None, None));
    for from in [P2, P2, P4] {
        p1.handle_message(70_000 * US, from, Message::Ready).unwrap();
        p1.handle_timeout(80_000 * US);
        assert_eq!((p1.poll_timeout(), p1.halted()), (None, None), "p3 is not there yet");
    }
    // It is there, or dead.
    for comes in [true, false] {
        let mut p1 = p1.clone();
        if comes {
            p1.handle_message(90_000 * US, P3, Message::Ready).unwrap();
        } else {
            p1.handle_crash(90_000 * US, P3).unwrap();
        }
        assert_eq!(p1.poll_timeout(), Some(90_000 * US + p1.wait_ns(0)));
        p1.handle_timeout(p1.poll_timeout().unwrap());
        assert!(matches!(p1.poll_action(), Some(Action::Copies { message: Message::Round(Round { round: 1, .. }) })));
    }
    // Who waits says so, and again to who takes the starter's place.
    let mut p4 = start(P4);
    assert_eq!((says(&mut p4), says(&mut p4)), (Some((P1, Message::Ready)), None));
    p4.handle_crash(5 * US, P2).unwrap();
    assert_eq!(says(&mut p4), None, "p1 is still the one");
    p4.handle_crash(6 * US, P1).unwrap();
    assert_eq!((says(&mut p4), says(&mut p4)), (Some((P3, Message::Ready)), None));
    // One that takes that place waits for the others, too, who may have said so before it knew.
    let mut p3 = start(P3);
    assert_eq!(says(&mut p3), Some((P1, Message::Ready)));
    p3.handle_message(7 * US, P4, Message::Ready).unwrap();
    p3.handle_crash(8 * US, P1).unwrap();
    assert_eq!((says(&mut p3), p3.poll_timeout()), (Some((P2, Message::Ready)), None));
    p3.handle_crash(9 * US, P2).unwrap();
    assert_eq!(p3.poll_timeout(), Some(9 * US + config().flight_ns()));
    p3.handle_timeout(p3.poll_timeout().unwrap());
    assert!(matches!(p3.poll_action(), Some(Action::Copies { message: Message::Round(Round { round: 3, .. }) })));
    // … and may be told so long after it knew.
    let mut p2 = Lowi::new(P2, config(), MemberSet::first(3), 1, Start::OnMessage, 0).unwrap();
    assert_eq!(says(&mut p2), Some((P1, Message::Ready)));
    p2.handle_crash(5 * US, P1).unwrap();
    p2.handle_message(7_000 * US, P3, Message::Ready).unwrap();
    assert_eq!((p2.poll_timeout(), p2.halted()), (Some(7_000 * US), None));
    // An entry that is proposed then finds it speaking; one that came beside its steps is there
    // before.
    for beside in [true, false] {
        let (mut p2, entry) = (p2.clone(), entry(P2, 1));
        let taken = if beside { p2.enqueue(P2, entry) } else { p2.propose(7_000 * US, entry) };
        assert_eq!((taken, p2.poll_timeout()), (Ok(()), beside.then_some(7_000 * US)));
        p2.handle_timeout(7_000 * US);
        let entries = std::iter::from_fn(|| p2.poll_action()).find_map(|action| match action {
            Action::Copies { message: Message::Round(round) } => Some(round.batch.len()),
            _ => None,
        });
        assert_eq!(entries, Some(usize::from(beside)));
    }
    p2.handle_timeout(7_000 * US);
    assert!(matches!(p2.poll_action(), Some(Action::Copies { message: Message::Round(Round { round: 2, .. }) })));
    // The last one waits for nobody.
    let mut p2 = Lowi::new(P2, config(), MemberSet::first(2), 1, Start::OnMessage, 0).unwrap();
    assert_eq!(says(&mut p2), Some((P1, Message::Ready)));
    p2.handle_crash(9_000 * US, P1).unwrap();
    p2.handle_timeout(p2.poll_timeout().unwrap());
    assert!(matches!(p2.poll_action(), Some(Action::Copies { .. })), "it starts in its place");
    // Who is given the state of a group that has not started waits like all others, and starts it if that is its part.
    let given =
        |who| Lowi::join(who, config(), MemberSet::first(3), StartPoint { round: 0, leader: P1, next: 4 }, 700 * US).unwrap();
    let mut p3 = given(P3);
    assert_eq!((says(&mut p3), p3.poll_timeout()), (Some((P1, Message::Ready)), None));
    p3.handle_crash(800 * US, P1).unwrap();
    assert_eq!((p3.poll_timeout(), p3.leader()), (None, Some(P2)));
    let mut p1 = given(P1);
    for from in [P2, P3] {
        p1.handle_message(900 * US, from, Message::Ready).unwrap();
    }
    p1.handle_timeout(p1.poll_timeout().unwrap());
    assert!(matches!(p1.poll_action(), Some(Action::Copies { message: Message::Round(Round { round: 1, instance: 4, .. }) })));
}

#[test]
fn nano_3_3_one_that_waits_for_the_start_and_misses_a_copy_has_all_others_stop() {
    let mut p2 = Lowi::new(P2, config(), MemberSet::first(3), 1, Start::OnMessage, 0).unwrap();
    assert_eq!(says(&mut p2), Some((P1, Message::Ready)));
    p2.handle_copy(9_000 * US, P1, 0, round(P1, 1, 1, vec![])).unwrap();
    p2.handle_timeout(p2.poll_timeout().unwrap());
    assert_eq!(p2.halted(), Some(Halted::NetworkFault));
    assert_eq!((says(&mut p2), says(&mut p2)), (Some((P1, Message::Exit)), Some((P3, Message::Exit))));
}

#[test]
fn nano_5_2_whose_slot_has_passed_takes_no_state_and_goes() {
    let begin = StartPoint { round: 30, leader: P3, next: 4 };
    let lowi = Lowi::join(P2, config(), MemberSet::first(3), begin, 700 * US).unwrap();
    assert_eq!(lowi.halted(), Some(Halted::Expelled));
    let lowi = Lowi::join(P4, config(), MemberSet::first(4), begin, 700 * US).unwrap();
    assert_eq!(lowi.halted(), None);
}

#[test]
fn nano_5_2_timeouts_grow_and_never_shrink() {
    let mut lowi = Lowi::new(P2, config(), MemberSet::first(2), 1, Start::Together, 0).unwrap();
    let (late, wait) = (lowi.late_ns, lowi.wait_ns(1));
    let before = lowi.clone();
    assert!(lowi.raise_timeouts(DELTA_I - 1, 2 * DELTA_I).is_err() && lowi == before);
    lowi.raise_timeouts(2 * DELTA_I, 8 * DELTA_I).unwrap();
    assert!(lowi.wait_ns(1) > wait && lowi.late_ns == late, "waits longer, speaks no later");
}

#[test]
fn settings_that_cannot_be_kept_are_refused() {
    assert_eq!(config().check(64), Ok(()));
    let bad = [
        Config { period_ns: 0, ..config() },
        Config { delta_w_ns: DELTA_I, ..config() },
        Config { drift_ppm: 200_000, ..config() },
        Config { period_ns: 100, ..config() },
        Config { depth: 0, ..config() },
        Config { paths: 0, ..config() },
        Config { delta_i_ns: u64::MAX, ..config() },
    ];
    for config in bad {
        assert!(config.check(3).is_err(), "{config:?}");
        assert!(Lowi::new(P1, config, MemberSet::first(3), 1, Start::Together, 0).is_err());
    }
    assert_eq!(Config { delta_w_ns: DELTA_I, drift_ppm: 0, ..config() }.late_ns(3), Some(0), "§5.2: Δ_W = Δ_I");
    assert!(Lowi::new(P1, config(), MemberSet::new(), 1, Start::Together, 0).is_err());
    assert!(Lowi::new(P3, config(), MemberSet::first(2), 1, Start::Together, 0).is_err());
}

#[test]
fn start_points_survive_their_bytes() {
    let point = StartPoint { round: 300, leader: P3, next: 17 };
    assert_eq!(StartPoint::from_value(&point.to_value()), Some(point));
    for bad in [&point.to_value()[1..], &[0; 18], &[0xff; 18], &[]] {
        assert_eq!(StartPoint::from_value(bad), None);
    }
}

#[test]
fn refused_with_the_state_unchanged() {
    let small = Config { batch_bytes_max: 16, batch_entries_max: 2, ..config() };
    let mut lowi = Lowi::new(P2, small, MemberSet::first(3), 1, Start::Together, 0).unwrap();
    lowi.handle_copy(1, P1, 0, round(P1, 1, 1, vec![])).unwrap();
    lowi.handle_copy(1, P1, 1, round(P1, 1, 1, vec![])).unwrap();
    lowi.handle_copy(2, P1, 0, round(P1, 2, 1, vec![entry(P1, 1)])).unwrap();
    lowi.propose(2, entry(P2, 1)).unwrap();
    let barrier = Entry { id: EntryId { proposer: P1, number: 9 }, body: Body::Leave(P3) };
    let large = Entry { id: EntryId { proposer: P1, number: 9 }, body: Body::Value(vec![0; 17].into()) };
    let copies = [
        (MemberId(9), 0, round(MemberId(9), 2, 1, vec![]), Refused::UnknownMember),
        (P3, 0, round(P1, 2, 1, vec![]), Refused::NotLeader),
        (P2, 0, round(P2, 2, 1, vec![]), Refused::Malformed),
        (P1, 2, round(P1, 2, 1, vec![entry(P1, 1)]), Refused::Malformed),
        (P1, 1, round(P1, 2, 1, vec![entry(P1, 2)]), Refused::Malformed),
        (P1, 1, round(P1, 2, 0, vec![]), Refused::Malformed),
        (P1, 1, round(P1, u64::MAX, 1, vec![]), Refused::Malformed),
        (P1, 1, round(P1, 3, 2, vec![barrier.clone(), entry(P1, 2)]), Refused::Malformed),
        (P1, 0, round(P1, 0, 1, vec![]), Refused::Malformed),
        (P1, 0, round(P1, 1, 1, vec![]), Refused::Duplicate),
        (P1, 0, round(P1, 2, 1, vec![entry(P1, 1)]), Refused::Duplicate),
        (P1, 1, round(P1, 3, 2, vec![large.clone()]), Refused::TooLarge),
        (P1, 1, round(P1, 3, 2, (1..=3).map(|n| entry(P1, n)).collect()), Refused::TooLarge),
        (P1, 1, Message::Exit, Refused::Malformed),
        (P1, 1, Message::Forward(entry(P1, 1)), Refused::Malformed),
    ];
    let unchanged = |lowi: &mut Lowi, before: Lowi, why: Refused| {
        assert_eq!(lowi.refusals().of(why), before.refusals.of(why) + 1);
        lowi.refusals = before.refusals;
        assert_eq!(*lowi, before);
    };
    lowi.handle_timeout(3);
    for (from, path, message, why) in copies {
        let before = lowi.clone();
        assert_eq!(lowi.handle_copy(3, from, path, message.clone()), Err(why), "{message:?}");
        unchanged(&mut lowi, before, why);
    }
    let messages = [
        (P1, round(P1, 2, 1, vec![]), Refused::Malformed),
        (MemberId(9), Message::Exit, Refused::UnknownMember),
        (P2, Message::Exit, Refused::Malformed),
        (P3, Message::Forward(large.clone()), Refused::TooLarge),
        (P3, Message::Forward(entry(P2, 1)), Refused::Duplicate),
    ];
    for (from, message, why) in messages {
        let before = lowi.clone();
        assert_eq!(lowi.handle_message(3, from, message), Err(why));
        unchanged(&mut lowi, before, why);
    }
    let before = lowi.clone();
    assert_eq!(lowi.propose(3, large), Err(Refused::TooLarge));
    unchanged(&mut lowi, before.clone(), Refused::TooLarge);
    assert_eq!(lowi.handle_crash(3, MemberId(9)), Err(Refused::UnknownMember));
    unchanged(&mut lowi, before, Refused::UnknownMember);
    (2..=PENDING_MAX as u64).for_each(|number| lowi.propose(3, entry(P2, number)).unwrap());
    let before = lowi.clone();
    assert_eq!(lowi.propose(3, entry(P2, 5_000)), Err(Refused::Busy));
    unchanged(&mut lowi, before, Refused::Busy);
    (1..=FORWARD_MAX as u64).for_each(|n| lowi.handle_message(3, P3, Message::Forward(entry(P3, n))).unwrap());
    assert_eq!(lowi.handle_message(3, P3, Message::Forward(entry(P3, 5_000))), Err(Refused::Busy));
    let mut joiner = Lowi::join(P3, small, MemberSet::first(2), StartPoint { round: 5, leader: P1, next: 2 }, 0).unwrap();
    assert_eq!(joiner.propose(0, entry(P3, 1)), Err(Refused::NotMember));
    assert_eq!(joiner.handle_copy(0, P1, 0, round(P1, 5, 1, vec![])), Err(Refused::OldInstance));
}

proptest! {
    /// Whatever comes: no panic, invariants hold, and what is refused changes nothing but its counter.
    #[test]
    fn hostile_messages(
        steps in prop::collection::vec(
            (0u16..5, 0u16..5, 0usize..3, prop_oneof![0u64..6, Just(u64::MAX)], 0u64..4, prop_oneof![0u64..9, any::<u64>()],
             0u64..6, 0u64..30_000, 0u8..9), 0..120),
        who in 1u16..4,
    ) {
        let mut lowi = Lowi::new(MemberId(who), config(), MemberSet::first(3), 1, Start::Together, 0).unwrap();
        let mut now = 0u64;
        for (from, leader, path, ahead, instance, sent_ns, number, step, what) in steps {
            now += step;
            if step % 7 > 0 {
                lowi.handle_timeout(now);
                lowi.handle_timeout(now);
            }
            lowi.advance(now);
            while let Some(action) = lowi.poll_action() {
                if let Action::Decide { instance, batch } = action
                    && !matches!(batch[0].body, Body::Value(_))
                {
                    let _ = lowi.set_members(now, instance + 1, MemberSet::first(3));
                }
            }
            lowi.advance(now);
            let before = lowi.clone();
            let (from, honest) = (MemberId(from), what % 2 == 0);
            let leader = if honest { from } else { MemberId(leader) };
            let entry = match number {
                0 => Entry { id: EntryId { proposer: from, number }, body: Body::Leave(leader) },
                _ => entry(leader, number),
            };
            let batch = if number == 5 { vec![] } else { vec![entry.clone()] };
            let message = Round {
                round: lowi.last.wrapping_add(ahead),
                leader,
                instance: if honest { lowi.next } else { instance },
                sent_ns: if honest { now } else { sent_ns },
                batch: batch.into(),
            };
            let result = match what {
                0..=5 => lowi.handle_copy(now, from, path, Message::Round(message)),
                6 => lowi.handle_message(now, from, Message::Forward(entry)),
                7 => lowi.propose(now, entry),
                _ if number == 3 => lowi.handle_crash(now, from),
                _ => lowi.handle_message(now, from, Message::Round(message)),
            };
            lowi.invariants();
            if let Err(why) = result {
                prop_assert_eq!(lowi.refusals().of(why), before.refusals.of(why) + 1);
                lowi.refusals = before.refusals;
                prop_assert_eq!(&lowi, &before);
            }
        }
    }
}
