//! Runs members of one engine on links that a seed plays with, and prints what they did: a trace
//! that `scripts/specs --trace` judges by the engine's specification.
//! `cargo run -p fide-proto --example trace -- hsuc|huc|lowi SEED`
//!
//! Three members, with one entry each, of which leaders crash; of LOWI three entries. `hsuc|huc
//! SEED MEMBERS ENTRIES` has so many members with so many entries each, and any member may crash.
//!
//! The format is in `specs/README.md`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::ExitCode;

use fide_proto::consensus::hsuc::Hsuc;
use fide_proto::consensus::huc::Huc;
use fide_proto::consensus::trace::{Shown, names, shown_hsuc, shown_huc};
use fide_proto::consensus::{Action, Engine, Instance};
use fide_proto::group::{Body, Entry, EntryId, MemberId, MemberSet};

const MEMBERS: u16 = 3;
const STEPS: usize = 400;

/// What a message is in the papers. Nothing for those that the papers do not have.
type Show<M> = fn(&M) -> Option<Shown>;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

#[derive(Clone, Copy)]
enum Event {
    Entry(MemberId),
    Link(MemberId, MemberId),
    Beat(MemberId, MemberId),
    Leave(MemberId),
    Notice(MemberId, MemberId),
    Crash(MemberId),
}

struct Run<M, E> {
    engines: BTreeMap<MemberId, E>,
    show: Show<M>,
    links: BTreeMap<(MemberId, MemberId), VecDeque<M>>,
    beats: BTreeMap<(MemberId, MemberId), VecDeque<M>>,
    notices: BTreeSet<(MemberId, MemberId)>,
    given: BTreeMap<MemberId, u64>,
    /// Entries that are handed in, at each member.
    entries: u64,
    /// How many members may still crash.
    crashes: usize,
    /// Only the member that leads may.
    leaders_crash: bool,
    step: usize,
    dice: Dice,
}

/// What is run.
struct Setting {
    seed: u64,
    members: u16,
    entries: u64,
    leaders_crash: bool,
}

impl<M: Clone, E: Engine<M>> Run<M, E> {
    fn line(&self, member: MemberId, what: &str) {
        println!("{} {member} {what}", self.step);
    }

    fn act(&mut self, me: MemberId) {
        while let Some(action) = self.engines.get_mut(&me).and_then(Engine::poll_action) {
            match action {
                Action::Send { to, message } => {
                    if let Some(Shown { kind, instance, value }) = (self.show)(&message) {
                        self.line(me, &format!("send {kind} {instance} {me} {to} {value}"));
                    }
                    if self.engines.contains_key(&to) {
                        self.links.entry((me, to)).or_default().push_back(message);
                    }
                }
                Action::Decide { instance, batch } => {
                    self.line(me, &format!("decide {instance} {}", names(batch.iter().map(|entry| entry.id))));
                }
                Action::Halt(why) => self.line(me, &format!("halt {why:?}")),
                Action::Copies { .. } | Action::Memory { .. } | Action::State { .. } => {}
            }
        }
    }

    fn events(&self) -> Vec<Event> {
        let waiting = |queues: &BTreeMap<_, VecDeque<M>>| -> Vec<(MemberId, MemberId)> {
            queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(&ends, _)| ends).collect()
        };
        let alive: Vec<_> = self.engines.keys().copied().collect();
        let mut events = Vec::new();
        events.extend(
            alive.iter().filter(|me| self.given.get(me).copied().unwrap_or(0) < self.entries).map(|&me| Event::Entry(me)),
        );
        events.extend(waiting(&self.links).into_iter().map(|(from, to)| Event::Link(from, to)));
        events.extend(waiting(&self.beats).into_iter().map(|(from, to)| Event::Beat(from, to)));
        events.extend(alive.iter().map(|&me| Event::Leave(me)));
        // Fail-consistency: what a crashed member piggybacked comes before the notice of its crash.
        let due = |ends: &&(MemberId, MemberId)| self.beats.get(*ends).is_none_or(VecDeque::is_empty);
        events.extend(self.notices.iter().filter(due).map(|&(from, to)| Event::Notice(from, to)));
        if self.crashes > 0 && alive.len() > 1 {
            let may_crash = if self.leaders_crash { &alive[..1] } else { &alive[..] };
            events.extend(may_crash.iter().map(|&who| Event::Crash(who)));
        }
        events
    }

    fn happen(&mut self, event: Event) {
        self.step += 1;
        let now_ns = self.step as u64;
        match event {
            Event::Entry(me) => {
                let number = self.given.entry(me).or_default();
                *number += 1;
                let id = EntryId { proposer: me, number: *number };
                self.line(me, &format!("propose {id}"));
                let entry = Entry { id, body: Body::Value(vec![0].into()) };
                let engine = self.engines.get_mut(&me).expect("it is alive");
                engine.propose(now_ns, entry).expect("there is room");
                self.act(me);
            }
            Event::Link(from, to) => {
                let message = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("something waits");
                if let Some(Shown { kind, instance, value }) = (self.show)(&message) {
                    self.line(to, &format!("recv {kind} {instance} {from} {to} {value}"));
                }
                // What is refused is of no effect, and the specification knows that too.
                let _ = self.engines.get_mut(&to).expect("it is alive").handle_message(now_ns, from, message);
                self.act(to);
            }
            Event::Beat(from, to) => {
                let message = self.beats.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("something waits");
                if let Some(Shown { kind, instance, value }) = (self.show)(&message) {
                    self.line(to, &format!("recv {kind} {instance} {from} {to} {value}"));
                }
                let _ = self.engines.get_mut(&to).expect("it is alive").handle_piggyback(now_ns, from, message);
                self.act(to);
            }
            Event::Leave(me) => {
                let Some(message) = self.engines.get_mut(&me).and_then(|engine| engine.poll_piggyback(now_ns)) else { return };
                if let Some(Shown { kind, instance, value }) = (self.show)(&message) {
                    self.line(me, &format!("send {kind} {instance} {me} * {value}"));
                }
                for &to in self.engines.keys().filter(|&&to| to != me) {
                    self.beats.entry((me, to)).or_default().push_back(message.clone());
                }
                self.engines.get_mut(&me).expect("it is alive").handle_piggyback_sent(now_ns);
                self.act(me);
            }
            Event::Notice(from, to) => {
                self.notices.remove(&(from, to));
                self.line(to, &format!("report {from}"));
                self.engines.get_mut(&to).expect("it is alive").handle_crash(now_ns, from).expect("it is true");
                self.act(to);
            }
            Event::Crash(who) => {
                self.crashes -= 1;
                self.line(who, "crash");
                self.engines.remove(&who);
                self.notices.retain(|&(_, to)| to != who);
                self.notices.extend(self.engines.keys().map(|&to| (who, to)));
                self.links.retain(|&(_, to), _| to != who);
                self.beats.retain(|&(_, to), _| to != who);
                for (&(from, _), queue) in &mut self.links {
                    if from == who {
                        queue.truncate(self.dice.below(queue.len() + 1));
                    }
                }
            }
        }
    }
}

fn run<M: Clone, E: Engine<M>>(setting: &Setting, build: fn(MemberId, MemberSet, Instance) -> E, show: Show<M>) {
    let members = MemberSet::first(setting.members);
    let mut dice = Dice(setting.seed);
    let crashes = dice.below(usize::from(setting.members));
    let mut run = Run {
        engines: members.iter().map(|me| (me, build(me, members.clone(), 1))).collect(),
        show,
        links: BTreeMap::new(),
        beats: BTreeMap::new(),
        notices: BTreeSet::new(),
        given: BTreeMap::new(),
        entries: setting.entries,
        crashes,
        leaders_crash: setting.leaders_crash,
        step: 0,
        dice,
    };
    members.iter().for_each(|me| run.act(me));
    for _ in 0..STEPS {
        let mut events = run.events();
        // Crashes are rarer than anything else.
        if run.dice.below(4) > 0 && events.len() > 1 {
            events.retain(|event| !matches!(event, Event::Crash(_)));
        }
        let event = events[run.dice.below(events.len())];
        run.happen(event);
    }
}

/// LOWI on a network of two paths, in microseconds: copies take less than Δ_I, members crash, and are reported or not.
mod lowi {
    use super::{Dice, MEMBERS, names};
    use fide_proto::consensus::lowi::{Config, Lowi, Message, Start};
    use fide_proto::consensus::{Action, Engine};
    use fide_proto::group::{Body, Entry, EntryId, MemberId, MemberSet};
    use std::collections::BTreeMap;

    const PERIOD_US: u64 = 1_000;
    const DELTA_I_US: u64 = 600;
    const END_US: u64 = 14_000;
    const ENTRIES: u64 = 3;

    enum Event {
        Begin,
        Copy { from: MemberId, path: usize, message: Message },
        Link { from: MemberId, message: Message },
        Entry,
        Crash,
        Notice(MemberId),
    }

    struct World {
        engines: BTreeMap<MemberId, Lowi>,
        config: Config,
        /// By time, then in the order in which they were made.
        events: BTreeMap<(u64, u64), (MemberId, Event)>,
        made: u64,
        now_us: u64,
        numbers: BTreeMap<MemberId, u64>,
        dice: Dice,
    }

    impl World {
        fn line(&self, member: MemberId, what: &str) {
            println!("{} {member} {what}", self.now_us);
        }

        fn plan(&mut self, after_us: u64, member: MemberId, event: Event) {
            self.made += 1;
            self.events.insert((self.now_us + after_us, self.made), (member, event));
        }

        fn act(&mut self, me: MemberId) {
            let now_ns = self.now_us * 1_000;
            loop {
                let Some(engine) = self.engines.get_mut(&me) else { return };
                let Some(action) = engine.poll_action() else {
                    match engine.poll_timeout() {
                        Some(due_ns) if due_ns <= now_ns => engine.handle_timeout(now_ns),
                        _ => return,
                    }
                    continue;
                };
                match action {
                    Action::Copies { message } => self.copies(me, &message),
                    Action::Send { to, message } => {
                        let after_us = 1 + self.dice.below(2_000) as u64;
                        self.plan(after_us, to, Event::Link { from: me, message });
                    }
                    Action::Decide { instance, batch } => {
                        self.line(me, &format!("decide {instance} {}", names(batch.iter().map(|entry| entry.id))));
                    }
                    Action::Halt(_) => self.line(me, "halt"),
                    Action::Memory { .. } | Action::State { .. } => {}
                }
            }
        }

        fn copies(&mut self, me: MemberId, message: &Message) {
            let Message::Round(round) = message else { return };
            let value = names(round.batch.iter().map(|entry| entry.id));
            for path in 0..2usize {
                let stamp_us = round.sent_ns / 1_000;
                self.line(me, &format!("send {} {me} {} {} {stamp_us} {value}", path + 1, round.round, round.instance));
                for to in MemberSet::first(MEMBERS).iter().filter(|to| *to != me) {
                    let after_us = 50 + self.dice.below(DELTA_I_US as usize - 60) as u64;
                    self.plan(after_us, to, Event::Copy { from: me, path, message: message.clone() });
                }
            }
        }

        fn happen(&mut self, me: MemberId, event: Event) {
            let now_ns = self.now_us * 1_000;
            if let Event::Begin = event {
                let members = MemberSet::first(MEMBERS);
                self.line(
                    me,
                    &format!("start together 0 p1 1 {}", members.iter().map(|id| id.to_string()).collect::<Vec<_>>().join("+")),
                );
                let engine = Lowi::new(me, self.config, members, 1, Start::Together, now_ns).expect("the settings are sound");
                self.engines.insert(me, engine);
                return self.act(me);
            }
            if !self.engines.contains_key(&me) {
                return;
            }
            if let Event::Copy { from, path, message: Message::Round(round) } = &event {
                let (value, stamp_us) = (names(round.batch.iter().map(|entry| entry.id)), round.sent_ns / 1_000);
                self.line(me, &format!("recv {} {from} {} {} {stamp_us} {value}", path + 1, round.round, round.instance));
            }
            match event {
                Event::Crash => {
                    self.line(me, "crash");
                    self.engines.remove(&me);
                    let others: Vec<MemberId> = self.engines.keys().copied().collect();
                    let reported = self.dice.below(2) == 0;
                    for other in others.into_iter().filter(|_| reported) {
                        let after_us = 20 + self.dice.below(400) as u64;
                        self.plan(after_us, other, Event::Notice(me));
                    }
                    return;
                }
                Event::Entry => {
                    let number = self.numbers.entry(me).or_default();
                    *number += 1;
                    let id = EntryId { proposer: me, number: *number };
                    self.line(me, &format!("propose {id}"));
                    let entry = Entry { id, body: Body::Value(vec![0].into()) };
                    let _ = self.engines.get_mut(&me).map(|engine| engine.propose(now_ns, entry));
                }
                Event::Notice(dead) => {
                    self.line(me, &format!("report {dead}"));
                    let _ = self.engines.get_mut(&me).map(|engine| engine.handle_crash(now_ns, dead));
                }
                // What is refused is of no effect.
                Event::Copy { from, path, message } => {
                    let _ = self.engines.get_mut(&me).map(|engine| engine.handle_copy(now_ns, from, path, message));
                }
                Event::Link { from, message } => {
                    let _ = self.engines.get_mut(&me).map(|engine| engine.handle_message(now_ns, from, message));
                }
                Event::Begin => {}
            }
            self.act(me);
        }
    }

    pub fn run(seed: u64) {
        let members = MemberSet::first(MEMBERS);
        let config = Config::new(PERIOD_US * 1_000, DELTA_I_US * 1_000);
        let late_us = config.late_ns(members.len()).unwrap_or(0) / 1_000;
        let delta_w_us = config.delta_w_ns / 1_000;
        println!(
            "# lowi {MEMBERS} seed {seed} period={PERIOD_US} delta_i={DELTA_I_US} delta_w={delta_w_us} late={late_us} slack=4"
        );
        let (engines, events, numbers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut world = World { engines, config, events, made: 0, now_us: 0, numbers, dice: Dice(seed) };
        for me in members.iter() {
            let after_us = world.dice.below(delta_w_us as usize) as u64;
            world.plan(after_us, me, Event::Begin);
            for _ in 0..ENTRIES {
                let after_us = delta_w_us + world.dice.below((END_US - 2 * delta_w_us) as usize) as u64;
                world.plan(after_us, me, Event::Entry);
            }
        }
        for me in members.iter().take(world.dice.below(usize::from(MEMBERS))) {
            let after_us = delta_w_us + world.dice.below(END_US as usize / 2) as u64;
            world.plan(after_us, me, Event::Crash);
        }
        while world.now_us < END_US {
            let due = world.engines.iter().filter_map(|(me, engine)| Some((engine.poll_timeout()?.div_ceil(1_000), *me))).min();
            let next = world.events.first_key_value().map(|(&(at_us, _), _)| at_us);
            match (due, next) {
                (Some((at_us, me)), _) if next.is_none_or(|next| at_us <= next) => {
                    world.now_us = world.now_us.max(at_us);
                    world.act(me);
                }
                (_, Some(_)) => {
                    let Some(((at_us, _), (me, event))) = world.events.pop_first() else { return };
                    world.now_us = world.now_us.max(at_us);
                    world.happen(me, event);
                }
                _ => return,
            }
        }
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let engine = args.next().unwrap_or_default();
    let numbers: Result<Vec<u64>, _> = args.map(|number| number.parse()).collect();
    let usage = "usage: trace hsuc|huc SEED [MEMBERS ENTRIES]\n       trace lowi SEED";
    let setting = match numbers.as_deref() {
        Ok([seed]) => Setting { seed: *seed, members: MEMBERS, entries: 1, leaders_crash: true },
        Ok([seed, members @ 2..=9, entries]) if engine != "lowi" => {
            Setting { seed: *seed, members: *members as u16, entries: *entries, leaders_crash: false }
        }
        _ => {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    };
    let Setting { seed, members, entries, .. } = setting;
    let of = if setting.leaders_crash { String::new() } else { format!(", entries of each: {entries}, any member may crash") };
    match engine.as_str() {
        "lowi" => lowi::run(seed),
        "hsuc" => {
            println!("# hsuc {members} seed {seed}{of}");
            run(&setting, Hsuc::new, shown_hsuc);
        }
        "huc" => {
            println!("# huc {members} seed {seed}{of}");
            run(&setting, Huc::new, shown_huc);
        }
        _ => {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
