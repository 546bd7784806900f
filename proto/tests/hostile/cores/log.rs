//! The replicated log over each engine. It cannot be compared (it owns a boxed engine), so every member is two: the second one is spared what the first one
//! refuses, and both must go on alike.

use std::collections::{BTreeMap, VecDeque};

use fide_proto::consensus::hsuc::Hsuc;
use fide_proto::consensus::huc::Huc;
use fide_proto::consensus::log::{Build, Carried, Config, EngineMessage, Epoch, Log, Message, Numbers, Output, Setup, Transfer};
use fide_proto::consensus::lowi::{self, Lowi, Start, StartPoint};
use fide_proto::consensus::memory::{Answer, Request};
use fide_proto::consensus::paxos::{self, Paxos};
use fide_proto::consensus::{Engine, Kind, hsuc, huc};
use fide_proto::group::{MemberId, MemberSet, Refused, Value};

use super::assert_counted;
use super::bytes::{Bytes, Near, zeros};
use super::messages::Hostile;

const KINDS: [Kind; 4] = [Kind::Hsuc, Kind::Huc, Kind::Lowi, Kind::Paxos];
const CONFIG: Config = Config { pending_max: 16, early_max: 32, ask_interval_ns: 1_000 };

fn make(setup: &Setup) -> Option<Box<dyn Engine<EngineMessage> + Send>> {
    let (me, members, first, now_ns) = (setup.me, setup.members.clone(), setup.first, setup.now_ns);
    let mut engine: Box<dyn Engine<EngineMessage> + Send> = match setup.kind {
        Kind::Hsuc => Box::new(Carried::<_, hsuc::Message>::new(Hsuc::new(me, members, first))),
        Kind::Huc => Box::new(Carried::<_, huc::Message>::new(Huc::new(me, members, first))),
        Kind::Lowi => {
            let config = lowi::Config::new(50_000, 10_000);
            let lowi = match &setup.start {
                Some(start) => Lowi::join(me, config, members, StartPoint::from_value(start)?, now_ns),
                None if first > 1 => Lowi::new(me, config, members, first, Start::OnMessage, now_ns),
                None => Lowi::new(me, config, members, first, Start::Together, now_ns),
            };
            Box::new(Carried::<_, lowi::Message>::new(lowi.ok()?))
        }
        Kind::Paxos => {
            let config = paxos::Config { window: 16, ..paxos::Config::new(me, 3) };
            Box::new(Carried::<_, paxos::Message>::new(Paxos::new(config, members, first - 1)))
        }
        Kind::Raft => return None,
    };
    for member in setup.crashed.iter() {
        let _ = engine.handle_crash(now_ns, member);
    }
    Some(engine)
}

fn build() -> Build {
    Box::new(make)
}

fn body(bytes: &mut Bytes, near: &Near, kind: Kind) -> EngineMessage {
    match kind {
        Kind::Hsuc => hsuc::Message::make(bytes, near).into(),
        Kind::Huc => huc::Message::make(bytes, near).into(),
        Kind::Lowi => lowi::Message::make(bytes, near).into(),
        Kind::Paxos => paxos::Message::make(bytes, near).into(),
        Kind::Raft => EngineMessage::Opaque(bytes.take(20).into()),
    }
}

fn mangled_body(bytes: &mut Bytes, near: &Near, was: EngineMessage) -> EngineMessage {
    if let Ok(message) = hsuc::Message::try_from(was.clone()) {
        return message.mangle(bytes, near).into();
    }
    if let Ok(message) = huc::Message::try_from(was.clone()) {
        return message.mangle(bytes, near).into();
    }
    if let Ok(message) = lowi::Message::try_from(was.clone()) {
        return message.mangle(bytes, near).into();
    }
    match paxos::Message::try_from(was) {
        Ok(message) => message.mangle(bytes, near).into(),
        Err(other) => other,
    }
}

fn near32(bytes: &mut Bytes, number: u32) -> u32 {
    match bytes.below(8) {
        0..=3 => number,
        4 => number.wrapping_add(1),
        5 => number.wrapping_sub(1),
        6 => u32::MAX,
        _ => u32::from(bytes.u8()),
    }
}

fn transfer(bytes: &mut Bytes, near: &Near, epoch: Epoch) -> Transfer {
    let members = near.set(bytes);
    Transfer {
        epoch: near32(bytes, epoch),
        kind: bytes.pick(&Kind::ALL),
        through: near.instance(bytes),
        crashed: if bytes.one_in(3) { near.set(bytes) } else { MemberSet::new() },
        highest: near.members.iter().chain(members.iter()).max().unwrap_or(near.me),
        members,
        applied: BTreeMap::new(),
        snapshot_position: bytes.near(0),
        snapshot: bytes.one_in(2).then(|| zeros(3)),
        entries: near.batch(bytes).to_vec(),
        start: bytes.one_in(2).then(|| bytes.take(18).into()),
    }
}

fn mangled_transfer(bytes: &mut Bytes, near: &Near, mut transfer: Transfer) -> Transfer {
    match bytes.below(12) {
        0 => transfer.epoch = near32(bytes, transfer.epoch),
        1 => transfer.kind = bytes.pick(&Kind::ALL),
        2 => transfer.through = bytes.near(transfer.through),
        3 => transfer.members = near.set(bytes),
        4 => transfer.crashed = near.set(bytes),
        5 => transfer.highest = near.member(bytes),
        6 => {
            let mut numbers = Numbers::default();
            for _ in 0..4 {
                numbers.insert(bytes.near(near.number));
            }
            transfer.applied.insert(near.member(bytes), numbers);
        }
        7 => transfer.snapshot_position = bytes.near(transfer.snapshot_position),
        8 => transfer.snapshot = bytes.one_in(2).then(|| zeros(3)),
        9 => transfer.entries = near.batch(bytes).to_vec(),
        10 => transfer.start = bytes.one_in(2).then(|| bytes.take(18).into()),
        _ => transfer.applied.clear(),
    }
    transfer
}

fn mangled(bytes: &mut Bytes, near: &Near, was: Message) -> Message {
    match was {
        Message::Engine { epoch, body } if bytes.one_in(3) => Message::Engine { epoch: near32(bytes, epoch), body },
        Message::Engine { epoch, body } => Message::Engine { epoch, body: mangled_body(bytes, near, body) },
        Message::Reached { epoch, instance } if bytes.one_in(2) => Message::Reached { epoch: near32(bytes, epoch), instance },
        Message::Reached { epoch, instance } => Message::Reached { epoch, instance: bytes.near(instance) },
        Message::Ask => Message::Ask,
        Message::Transfer(transfer) => Message::Transfer(Box::new(mangled_transfer(bytes, near, *transfer))),
    }
}

fn made(bytes: &mut Bytes, near: &Near, epoch: Epoch, kind: Kind) -> Message {
    match bytes.below(8) {
        0..=3 => {
            let kind = if bytes.one_in(6) { bytes.pick(&Kind::ALL) } else { kind };
            Message::Engine { epoch: near32(bytes, epoch), body: body(bytes, near, kind) }
        }
        4 => Message::Reached { epoch: near32(bytes, epoch), instance: near.instance(bytes) },
        5 => Message::Ask,
        _ => Message::Transfer(Box::new(transfer(bytes, near, epoch))),
    }
}

/// One member, twice.
struct Pair {
    log: Log,
    spared: Log,
}

fn seen(log: &Log) -> impl PartialEq + std::fmt::Debug + use<> {
    let stands = (log.members().clone(), log.crashed().clone(), log.kind(), log.epoch(), log.decided_through());
    (stands, log.position(), log.pending(), log.is_running(), log.leader(), log.halted(), log.poll_timeout())
}

impl Pair {
    fn call<R: PartialEq + std::fmt::Debug>(
        &mut self,
        now_ns: u64,
        what: &dyn std::fmt::Debug,
        call: impl Fn(&mut Log) -> Result<R, Refused>,
    ) -> Vec<Output> {
        let (before, looked) = (*self.log.refusals(), seen(&self.log));
        let result = call(&mut self.log);
        match &result {
            Err(why) => {
                assert_counted(&before, self.log.refusals(), *why);
                if self.log.kind() != Kind::Lowi || self.log.halted().is_some() {
                    // LOWI looks at the clock before anything else.
                    assert_eq!(looked, seen(&self.log), "{what:?} was refused with {why:?}");
                }
            }
            Ok(_) => {
                let spared = call(&mut self.spared);
                assert_eq!(result, spared, "{what:?}: what was refused before has changed something");
            }
        }
        for log in [&mut self.log, &mut self.spared] {
            for _ in 0..4 {
                if log.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
                    log.handle_timeout(now_ns);
                }
            }
            log.invariants();
        }
        let outputs: Vec<_> = std::iter::from_fn(|| self.log.poll_output()).collect();
        let others: Vec<_> = std::iter::from_fn(|| self.spared.poll_output()).collect();
        assert_eq!(outputs, others, "{what:?}: what was refused has changed what is done");
        assert_eq!(seen(&self.log), seen(&self.spared), "{what:?}: what was refused has changed something");
        assert!(outputs.len() < 8192, "more is done than there is to do");
        outputs
    }
}

struct World {
    now_ns: u64,
    all: BTreeMap<MemberId, Pair>,
    links: VecDeque<(MemberId, MemberId, Option<usize>, Message)>,
    said: VecDeque<Message>,
    words: BTreeMap<(MemberId, Epoch, u64), u64>,
    regions: BTreeMap<(MemberId, Epoch, u64), Value>,
    asked: VecDeque<(MemberId, MemberId, Epoch, Request)>,
    applied: BTreeMap<MemberId, u64>,
}

pub fn log(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let kind = bytes.pick(&KINDS);
    let set = MemberSet::first(bytes.pick(&[3, 3, 2, 1]));
    let now_ns = 1_000_000;
    let start = |me| {
        let new = || Log::new(now_ns, me, kind, set.clone(), CONFIG, build()).expect("it is built");
        (me, Pair { log: new(), spared: new() })
    };
    let mut all: BTreeMap<_, _> = set.iter().map(start).collect();
    let joiner = MemberId(4);
    all.insert(joiner, Pair { log: Log::join(joiner, CONFIG, build()), spared: Log::join(joiner, CONFIG, build()) });
    let mut world = World {
        now_ns,
        all,
        links: VecDeque::new(),
        said: VecDeque::new(),
        words: BTreeMap::new(),
        regions: BTreeMap::new(),
        asked: VecDeque::new(),
        applied: BTreeMap::new(),
    };
    for _ in 0..500 {
        // At the end of time everything is due at every call, also at one that is refused.
        if bytes.is_empty() || world.now_ns == u64::MAX {
            break;
        }
        world.step(&mut bytes);
    }
}

impl World {
    fn call<R: PartialEq + std::fmt::Debug>(
        &mut self,
        me: MemberId,
        what: &dyn std::fmt::Debug,
        call: impl Fn(&mut Log) -> Result<R, Refused>,
    ) {
        let Some(pair) = self.all.get_mut(&me) else { return };
        for output in pair.call(self.now_ns, what, call) {
            match output {
                Output::Send { to, message } => self.say(me, to, None, message),
                Output::Copies { message } => {
                    let others: Vec<_> = self.all.keys().copied().filter(|to| *to != me).collect();
                    for path in 0..fide_wire::PATHS {
                        others.iter().for_each(|to| self.say(me, *to, Some(path), message.clone()));
                    }
                }
                Output::Memory { to, epoch, request } => self.asked.push_back((me, to, epoch, request)),
                Output::Install { position, .. } => _ = self.applied.insert(me, position),
                Output::Apply { position, .. } => {
                    let before = self.applied.insert(me, position).unwrap_or(0);
                    assert_eq!(position, before + 1, "{me} applies without a gap");
                }
                Output::Halt(_) => {}
            }
        }
    }

    fn say(&mut self, from: MemberId, to: MemberId, path: Option<usize>, message: Message) {
        self.said.push_back(message.clone());
        self.said.drain(..self.said.len().saturating_sub(64));
        if self.all.contains_key(&to) && self.links.len() < 4096 {
            self.links.push_back((from, to, path, message));
        }
    }

    fn hand(&mut self, from: MemberId, to: MemberId, path: Option<usize>, message: &Message) {
        let now_ns = self.now_ns;
        self.call(to, &(from, path, message), |log| match path {
            None => log.handle_message(now_ns, from, message.clone()),
            Some(RIDES) => log.handle_piggyback(now_ns, from, message.clone()),
            Some(path) => log.handle_copy(now_ns, from, path, message.clone()),
        });
    }

    fn deliver(&mut self, at: usize) {
        let Some((from, to)) = self.links.get(at).map(|(from, to, ..)| (*from, *to)) else { return };
        let first = self.links.iter().position(|(f, t, ..)| (*f, *t) == (from, to)).unwrap_or(at);
        if let Some((_, _, path, message)) = self.links.remove(first) {
            self.hand(from, to, path, &message);
        }
    }

    fn remember(&mut self, change: impl FnOnce(Answer) -> Answer) {
        let Some((me, to, epoch, request)) = self.asked.pop_front() else { return };
        let (id, answer) = match request {
            Request::Read { id, word } => (id, Answer::Word(self.words.get(&(to, epoch, word)).copied().unwrap_or(0))),
            Request::Cas { id, word, expected, new } => {
                let now = self.words.entry((to, epoch, word)).or_insert(0);
                let was = *now;
                if was == expected {
                    *now = new;
                }
                (id, Answer::Word(was))
            }
            Request::Write { id, region, bytes } => {
                self.regions.insert((to, epoch, region), bytes);
                (id, Answer::Written)
            }
            Request::Fetch { id, region } => (id, Answer::Bytes(self.regions.get(&(to, epoch, region)).cloned())),
        };
        let (answer, now_ns) = (change(answer), self.now_ns);
        self.call(me, &(to, id, &answer), |log| log.handle_memory(now_ns, to, epoch, id, answer.clone()));
    }

    fn settle(&mut self) {
        for _ in 0..256 {
            if self.links.is_empty() && self.asked.is_empty() {
                return;
            }
            self.deliver(0);
            self.remember(|answer| answer);
        }
    }

    fn step(&mut self, bytes: &mut Bytes) {
        let ids: Vec<_> = self.all.keys().copied().collect();
        let (me, mut now_ns) = (bytes.pick(&ids), self.now_ns);
        let log = &self.all[&me].log;
        let (epoch, kind) = (log.epoch(), log.kind());
        let mut members = log.members().clone();
        if members.is_empty() {
            members = ids.iter().copied().collect();
        }
        let open = log.decided_through().saturating_add(1);
        let near = Near { me, members, open, number: log.position() + 1, now_ns };
        match bytes.below(16) {
            0 | 1 => {
                let at = bytes.below(self.links.len());
                self.deliver(at);
            }
            2 | 3 => self.settle(),
            4 | 5 => {
                let value = near.value(bytes);
                self.call(me, &"value", |log| log.propose(now_ns, value.clone()));
            }
            6 => match bytes.below(8) {
                0..=3 => self.call(me, &"admit", |log| log.admit(now_ns, MemberId(4))),
                4 => {
                    let about = near.member(bytes);
                    self.call(me, &"admit", |log| log.admit(now_ns, about));
                }
                5 => self.call(me, &"leave", |log| log.leave(now_ns)),
                _ => {
                    let kind = bytes.pick(&Kind::ALL);
                    self.call(me, &"switch", |log| log.switch(now_ns, kind));
                }
            },
            7 => {
                let position = bytes.near(self.all[&me].log.position());
                self.call(me, &"snapshot", |log| log.keep_snapshot(position, zeros(3)));
            }
            8 | 9 if !self.said.is_empty() => {
                let was = self.said[bytes.below(self.said.len())].clone();
                let (from, message) = (near.member(bytes), mangled(bytes, &near, was));
                let path = bytes.pick(&[None, None, None, Some(0), Some(1), Some(RIDES), Some(9)]);
                self.hand(from, me, path, &message);
            }
            10 => {
                let (from, message) = (near.member(bytes), made(bytes, &near, epoch, kind));
                let path = bytes.pick(&[None, None, Some(0), Some(1), Some(RIDES)]);
                self.hand(from, me, path, &message);
            }
            11 => {
                let Some(pair) = self.all.get_mut(&me) else { return };
                let rides = pair.log.poll_piggyback(now_ns);
                assert_eq!(rides, pair.spared.poll_piggyback(now_ns));
                if let Some(message) = rides {
                    ids.iter().filter(|to| **to != me).for_each(|to| self.say(me, *to, Some(RIDES), message.clone()));
                }
                self.call(me, &"sent", |log| {
                    log.handle_piggyback_sent(now_ns);
                    Ok(())
                });
            }
            12 | 13 => {
                if !bytes.one_in(4) {
                    self.settle();
                }
                let next = self.all.values().filter_map(|pair| pair.log.poll_timeout()).min();
                now_ns = now_ns.max(next.filter(|next| *next < u64::MAX / 4).unwrap_or(0));
                if bytes.one_in(64) {
                    now_ns = u64::MAX;
                }
                self.now_ns = now_ns;
                for id in ids {
                    self.call(id, &"timeout", |log| {
                        log.handle_timeout(now_ns);
                        Ok(())
                    });
                }
            }
            14 => {
                let about = near.member(bytes);
                match bytes.below(6) {
                    0..=2 => self.call(me, &("crash", about), |log| log.handle_crash(now_ns, about)),
                    what => self.call(me, &(what, about), |log| {
                        match what {
                            3 => log.handle_suspect(now_ns, about),
                            4 => log.handle_alive(now_ns, about),
                            _ => log.handle_network_fault(now_ns),
                        }
                        Ok(())
                    }),
                }
            }
            _ => {
                let made = Answer::make(bytes, &near);
                if bytes.one_in(2) && !self.asked.is_empty() {
                    self.remember(|answer| answer.mangle(bytes, &near));
                } else {
                    let (of, epoch, id) = (near.member(bytes), near32(bytes, epoch), bytes.near(1));
                    self.call(me, &(of, epoch, id, &made), |log| log.handle_memory(now_ns, of, epoch, id, made.clone()));
                }
            }
        }
    }
}

/// The path of what rides on a heartbeat.
const RIDES: usize = usize::MAX;
