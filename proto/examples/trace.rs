//! Runs three members of one engine on links that a seed plays with, and prints what they did: a trace that `scripts/specs --trace` judges by
//! the engine's specification. `cargo run -p fide-proto --example trace -- hsuc|huc SEED`
//!
//! The format is in `specs/README.md`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::ExitCode;

use fide_proto::consensus::hsuc::{self, Hsuc};
use fide_proto::consensus::huc::{self, Huc};
use fide_proto::consensus::{Action, Engine, Instance};
use fide_proto::group::{Body, Entry, EntryId, MemberId, MemberSet};

const MEMBERS: u16 = 3;
/// Entries that are handed in, one at each member.
const ENTRIES: u64 = 1;
const STEPS: usize = 400;

/// What a message is in the papers: its kind, its instance, and the entries that it carries. Nothing for those that the papers do not have.
type Shown = Option<(&'static str, Instance, String)>;

fn names(ids: impl Iterator<Item = EntryId>) -> String {
    let names: Vec<_> = ids.map(|id| id.to_string()).collect();
    if names.is_empty() { "-".into() } else { names.join("+") }
}

fn show_hsuc(message: &hsuc::Message) -> Shown {
    match message {
        hsuc::Message::Propose { instance, batch } => Some(("propose", *instance, names(batch.iter().map(|entry| entry.id)))),
        hsuc::Message::Ack { instance } => Some(("ack", *instance, "-".into())),
        hsuc::Message::Decided(message) => {
            Some(("decide", message.id.sequence, names(message.body.iter().map(|entry| entry.id))))
        }
        _ => None,
    }
}

fn item(item: &huc::Item) -> EntryId {
    match item {
        huc::Item::Direct(entry) => entry.id,
        huc::Item::Ahead(body) => body.id,
    }
}

fn show_huc(message: &huc::Message) -> Shown {
    match message {
        huc::Message::Propose { instance, proposal } => Some(("propose", *instance, names(proposal.items.iter().map(item)))),
        huc::Message::Decision(message) => Some(("decide", message.body.instance, names(message.body.items.iter().map(item)))),
        _ => None,
    }
}

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
    show: fn(&M) -> Shown,
    links: BTreeMap<(MemberId, MemberId), VecDeque<M>>,
    beats: BTreeMap<(MemberId, MemberId), VecDeque<M>>,
    notices: BTreeSet<(MemberId, MemberId)>,
    given: BTreeMap<MemberId, u64>,
    crashes: usize,
    step: usize,
    dice: Dice,
}

impl<M: Clone, E: Engine<M>> Run<M, E> {
    fn line(&self, member: MemberId, what: &str) {
        println!("{} {member} {what}", self.step);
    }

    fn act(&mut self, me: MemberId) {
        while let Some(action) = self.engines.get_mut(&me).and_then(Engine::poll_action) {
            match action {
                Action::Send { to, message } => {
                    if let Some((kind, instance, value)) = (self.show)(&message) {
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
        events.extend(alive.iter().filter(|me| self.given.get(me).copied().unwrap_or(0) < ENTRIES).map(|&me| Event::Entry(me)));
        events.extend(waiting(&self.links).into_iter().map(|(from, to)| Event::Link(from, to)));
        events.extend(waiting(&self.beats).into_iter().map(|(from, to)| Event::Beat(from, to)));
        events.extend(alive.iter().map(|&me| Event::Leave(me)));
        // Fail-consistency: what a crashed member piggybacked comes before the notice of its crash.
        let due = |ends: &&(MemberId, MemberId)| self.beats.get(*ends).is_none_or(VecDeque::is_empty);
        events.extend(self.notices.iter().filter(due).map(|&(from, to)| Event::Notice(from, to)));
        if self.crashes > 0 && alive.len() > 1 {
            events.push(Event::Crash(alive[0]));
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
                if let Some((kind, instance, value)) = (self.show)(&message) {
                    self.line(to, &format!("recv {kind} {instance} {from} {to} {value}"));
                }
                // What is refused is of no effect, and the specification knows that too.
                let _ = self.engines.get_mut(&to).expect("it is alive").handle_message(now_ns, from, message);
                self.act(to);
            }
            Event::Beat(from, to) => {
                let message = self.beats.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("something waits");
                if let Some((kind, instance, value)) = (self.show)(&message) {
                    self.line(to, &format!("recv {kind} {instance} {from} {to} {value}"));
                }
                let _ = self.engines.get_mut(&to).expect("it is alive").handle_piggyback(now_ns, from, message);
                self.act(to);
            }
            Event::Leave(me) => {
                let Some(message) = self.engines.get_mut(&me).and_then(|engine| engine.poll_piggyback(now_ns)) else { return };
                if let Some((kind, instance, value)) = (self.show)(&message) {
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

fn run<M: Clone, E: Engine<M>>(seed: u64, build: fn(MemberId, MemberSet, Instance) -> E, show: fn(&M) -> Shown) {
    let members = MemberSet::first(MEMBERS);
    let mut dice = Dice(seed);
    let crashes = dice.below(usize::from(MEMBERS));
    let mut run = Run {
        engines: members.iter().map(|me| (me, build(me, members.clone(), 1))).collect(),
        show,
        links: BTreeMap::new(),
        beats: BTreeMap::new(),
        notices: BTreeSet::new(),
        given: BTreeMap::new(),
        crashes,
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

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let (Some(engine), Some(Ok(seed))) = (args.first(), args.get(1).map(|seed| seed.parse())) else {
        eprintln!("usage: trace hsuc|huc SEED");
        return ExitCode::from(2);
    };
    println!("# {engine} {MEMBERS} seed {seed}");
    match engine.as_str() {
        "hsuc" => run(seed, Hsuc::new, show_hsuc),
        "huc" => run(seed, Huc::new, show_huc),
        _ => {
            eprintln!("usage: trace hsuc|huc SEED");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
