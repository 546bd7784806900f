//! A few members of one engine that talk to each other, and are told what nobody correct says.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

use fide_proto::consensus::memory::{Answer, Request};
use fide_proto::consensus::{Action, Engine, Instance};
use fide_proto::group::{Body, Entry, EntryId, MAX_MEMBERS, MemberId, MemberSet, Refused, Value};

use super::bytes::{Bytes, Near, zeros};
use super::messages::Hostile;
use super::{assert_counted, state};

/// One thing that is done to an engine.
#[derive(Clone, Debug)]
pub enum Call<M> {
    Propose(Entry),
    Message(MemberId, M),
    Copy(MemberId, usize, M),
    Piggyback(MemberId, M),
    Sent,
    Memory(MemberId, u64, Answer),
    Crash(MemberId),
    Alive(MemberId),
    NetworkFault,
    Timeout,
    Members(Instance, MemberSet),
    State(MemberId, Instance, MemberSet, Option<Value>),
}

pub fn apply<M>(engine: &mut impl Engine<M>, now_ns: u64, call: Call<M>) -> Result<(), Refused> {
    match call {
        Call::Propose(entry) => return engine.propose(now_ns, entry),
        Call::Message(from, message) => return engine.handle_message(now_ns, from, message),
        Call::Copy(from, path, message) => return engine.handle_copy(now_ns, from, path, message),
        Call::Piggyback(from, message) => return engine.handle_piggyback(now_ns, from, message),
        Call::Memory(from, id, answer) => return engine.handle_memory(now_ns, from, id, answer),
        Call::Members(from, members) => return engine.set_members(now_ns, from, members),
        Call::State(from, through, members, start) => {
            return engine.handle_state(now_ns, from, through, &members, start.as_deref());
        }
        Call::Crash(member) => return engine.handle_crash(now_ns, member),
        Call::Sent => engine.handle_piggyback_sent(now_ns),
        Call::Alive(member) => engine.handle_alive(now_ns, member),
        Call::NetworkFault => engine.handle_network_fault(now_ns),
        Call::Timeout => engine.handle_timeout(now_ns),
    }
    Ok(())
}

/// An engine, and how it is seen that a refusal left it as it was.
pub trait Subject<M> {
    fn engine(&self) -> &dyn Engine<M>;
    fn call(&mut self, now_ns: u64, call: Call<M>) -> Result<(), Refused>;
    fn poll_action(&mut self) -> Option<Action<M>>;
    fn poll_piggyback(&mut self, now_ns: u64) -> Option<M>;
}

/// One that can be cloned and compared. `looks` says that it may look at the clock before anything else.
pub struct Whole<E> {
    pub engine: E,
    pub looks: bool,
}

impl<M: Clone + Debug, E: Engine<M> + Clone + Hash + Debug> Subject<M> for Whole<E> {
    fn engine(&self) -> &dyn Engine<M> {
        &self.engine
    }

    fn call(&mut self, now_ns: u64, call: Call<M>) -> Result<(), Refused> {
        let mut before = self.engine.clone();
        let result = apply(&mut self.engine, now_ns, call.clone());
        match result {
            Ok(()) => {
                let total = before.refusals().total();
                let after = self.engine.refusals().total();
                assert!(after == total || matches!(call, Call::Members(..)) && after == total + 1, "{call:?} was taken");
            }
            Err(why) => {
                assert_counted(before.refusals(), self.engine.refusals(), why);
                let mut same = state(&before) == state(&self.engine);
                if self.looks && !same {
                    before.handle_timeout(now_ns);
                    same = state(&before) == state(&self.engine);
                }
                assert!(same, "{call:?} was refused with {why:?}, and changed from\n{before:?}\nto\n{:?}", self.engine);
            }
        }
        self.engine.invariants();
        result
    }

    fn poll_action(&mut self) -> Option<Action<M>> {
        self.engine.poll_action()
    }

    fn poll_piggyback(&mut self, now_ns: u64) -> Option<M> {
        self.engine.poll_piggyback(now_ns)
    }
}

/// On its way, or said before.
#[derive(Clone, Debug)]
enum Said<M> {
    Message(M),
    Copy(usize, M),
    Piggyback(M),
}

impl<M> Said<M> {
    fn message(self) -> M {
        match self {
            Said::Message(message) | Said::Copy(_, message) | Said::Piggyback(message) => message,
        }
    }
}

struct Member<S> {
    subject: S,
    set: MemberSet,
    decided: Instance,
    number: u64,
}

struct World<M, S> {
    now_ns: u64,
    all: BTreeMap<MemberId, Member<S>>,
    links: VecDeque<(MemberId, MemberId, Said<M>)>,
    said: VecDeque<Said<M>>,
    words: BTreeMap<(MemberId, u64), u64>,
    regions: BTreeMap<(MemberId, u64), Value>,
    /// Who asked whose memory what.
    asked: VecDeque<(MemberId, MemberId, Request)>,
    /// Requests that were not answered; ids that may be answered falsely.
    ids: VecDeque<(MemberId, MemberId, u64)>,
}

/// Most that one call may want done: a message of every kind, to everybody, of everything that waits.
const ACTIONS_MAX: usize = 64 * MAX_MEMBERS;
const LINKS_MAX: usize = 4096;
const STEPS_MAX: usize = 600;

/// A group of `n` that begins with `first`, and what the bytes make of it.
pub fn run<M: Hostile, S: Subject<M>>(
    bytes: &mut Bytes,
    n: u16,
    first: Instance,
    build: impl Fn(&mut Bytes, MemberId, &MemberSet) -> S,
) {
    let set = MemberSet::first(n);
    let mut world = World {
        now_ns: 1_000_000,
        all: set
            .iter()
            .map(|me| (me, Member { subject: build(bytes, me, &set), set: set.clone(), decided: first.max(1) - 1, number: 1 }))
            .collect(),
        links: VecDeque::new(),
        said: VecDeque::new(),
        words: BTreeMap::new(),
        regions: BTreeMap::new(),
        asked: VecDeque::new(),
        ids: VecDeque::new(),
    };
    set.iter().for_each(|me| world.act(me));
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        world.step(bytes);
    }
}

impl<M: Hostile, S: Subject<M>> World<M, S> {
    fn near(&self, me: MemberId) -> Near {
        let member = &self.all[&me];
        Near {
            me,
            members: member.set.clone(),
            open: member.subject.engine().decided_through().saturating_add(1),
            number: member.number,
            now_ns: self.now_ns,
        }
    }

    fn call(&mut self, me: MemberId, call: Call<M>) -> bool {
        let Some(member) = self.all.get_mut(&me) else { return false };
        let behind = if let Call::State(_, through, members, _) = &call { Some((*through, members.clone())) } else { None };
        let taken = member.subject.call(self.now_ns, call).is_ok();
        if let Some((through, members)) = behind.filter(|_| taken) {
            (member.decided, member.set) = (through, members);
        }
        self.act(me);
        taken
    }

    /// Does what it asks for.
    fn act(&mut self, me: MemberId) {
        for _ in 0..ACTIONS_MAX {
            let Some(member) = self.all.get_mut(&me) else { return };
            let engine = member.subject.engine();
            engine.invariants();
            assert!(engine.stable_through() <= engine.decided_through().max(member.decided), "what is stable is decided");
            let Some(action) = member.subject.poll_action() else {
                // A round leaves: it is decided by a call that shows that it left in time.
                let left = member.subject.engine().halted().is_none()
                    && member.subject.engine().poll_timeout().is_some_and(|at_ns| at_ns <= self.now_ns && at_ns > 0);
                if left && self.now_ns < u64::MAX {
                    let _ = member.subject.call(self.now_ns, Call::Timeout);
                    let member = &self.all[&me];
                    if member.subject.engine().poll_timeout().is_some_and(|at_ns| at_ns <= self.now_ns) {
                        self.now_ns += 1;
                    }
                    continue;
                }
                return;
            };
            match action {
                Action::Send { to, message } => {
                    assert_ne!(to, me, "never to oneself");
                    self.say(me, to, Said::Message(message));
                }
                Action::Copies { message } => {
                    let others: Vec<_> = self.all.keys().copied().filter(|to| *to != me).collect();
                    for path in 0..fide_wire::PATHS {
                        for &to in &others {
                            self.say(me, to, Said::Copy(path, message.clone()));
                        }
                    }
                }
                Action::Memory { to, request } => {
                    let (Request::Read { id, .. }
                    | Request::Cas { id, .. }
                    | Request::Write { id, .. }
                    | Request::Fetch { id, .. }) = &request;
                    self.ids.push_back((me, to, *id));
                    self.ids.drain(..self.ids.len().saturating_sub(64));
                    self.asked.push_back((me, to, request));
                }
                Action::Decide { instance, batch } => {
                    assert_eq!(instance, member.decided + 1, "in order, each once");
                    assert!(!batch.is_empty(), "⊥ is never decided");
                    member.decided = instance;
                    match &batch[0].body {
                        Body::Join(new) if member.set.len() < MAX_MEMBERS => _ = member.set.insert(*new),
                        Body::Leave(old) => _ = member.set.remove(*old),
                        Body::Value(_) | Body::Join(_) | Body::Switch(_) => {}
                    }
                    if !matches!(batch[0].body, Body::Value(_)) {
                        let members = member.set.clone();
                        let _ = member.subject.call(self.now_ns, Call::Members(instance + 1, members));
                    }
                }
                Action::State { .. } | Action::Halt(_) => {}
            }
        }
        assert!(self.all[&me].subject.engine().halted().is_some(), "{me} wants more done than there is to do");
    }

    fn say(&mut self, from: MemberId, to: MemberId, said: Said<M>) {
        self.said.push_back(said.clone());
        self.said.drain(..self.said.len().saturating_sub(64));
        if self.all.contains_key(&to) && self.links.len() < LINKS_MAX {
            self.links.push_back((from, to, said));
        }
    }

    fn deliver(&mut self, at: usize) {
        let Some((from, to)) = self.links.get(at).map(|(from, to, _)| (*from, *to)) else { return };
        let first = self.links.iter().position(|(f, t, _)| (*f, *t) == (from, to)).unwrap_or(at);
        let Some((_, _, said)) = self.links.remove(first) else { return };
        self.hand(from, to, said);
    }

    fn hand(&mut self, from: MemberId, to: MemberId, said: Said<M>) {
        self.call(
            to,
            match said {
                Said::Message(message) => Call::Message(from, message),
                Said::Copy(path, message) => Call::Copy(from, path, message),
                Said::Piggyback(message) => Call::Piggyback(from, message),
            },
        );
    }

    /// The oldest operation on memory is carried out, and answered.
    fn remember(&mut self, change: impl FnOnce(Answer) -> Answer) {
        let Some((me, to, request)) = self.asked.pop_front() else { return };
        let (id, answer) = match request {
            Request::Read { id, word } => (id, Answer::Word(self.words.get(&(to, word)).copied().unwrap_or(0))),
            Request::Cas { id, word, expected, new } => {
                let now = self.words.entry((to, word)).or_insert(0);
                let was = *now;
                if was == expected {
                    *now = new;
                }
                (id, Answer::Word(was))
            }
            Request::Write { id, region, bytes } => {
                self.regions.insert((to, region), bytes);
                (id, Answer::Written)
            }
            Request::Fetch { id, region } => (id, Answer::Bytes(self.regions.get(&(to, region)).cloned())),
        };
        self.call(me, Call::Memory(to, id, change(answer)));
    }

    /// Everything that is on its way arrives.
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
        let me = bytes.pick(&ids);
        let near = self.near(me);
        match bytes.below(20) {
            0..=2 => {
                let at = bytes.below(self.links.len());
                self.deliver(at);
            }
            3 => self.settle(),
            4 => (0..8).for_each(|_| self.remember(|answer| answer)),
            5 | 6 => {
                let body = match bytes.below(24) {
                    0 => Body::Join(near.member(bytes)),
                    1 => Body::Leave(near.member(bytes)),
                    2 => Body::Switch(fide_proto::consensus::Kind::Raft),
                    3 => Body::Value(zeros(2000)),
                    _ => Body::Value(zeros(1)),
                };
                let entry = Entry { id: EntryId { proposer: me, number: near.number }, body };
                if self.call(me, Call::Propose(entry))
                    && let Some(member) = self.all.get_mut(&me)
                {
                    member.number += 1;
                }
            }
            7 => _ = self.call(me, Call::Propose(near.entry(bytes))),
            8..=10 if !self.said.is_empty() => {
                let at = bytes.below(self.said.len());
                let from = near.member(bytes);
                let said = match self.said[at].clone() {
                    Said::Message(message) => Said::Message(message.mangle(bytes, &near)),
                    Said::Copy(path, message) => {
                        let path = if bytes.one_in(8) { bytes.below(256) } else { path };
                        Said::Copy(path, message.mangle(bytes, &near))
                    }
                    Said::Piggyback(message) => Said::Piggyback(message.mangle(bytes, &near)),
                };
                self.hand(from, me, said);
            }
            11 => {
                let from = near.member(bytes);
                let message = M::make(bytes, &near);
                self.hand(from, me, Said::Message(message));
            }
            12 => {
                let from = near.member(bytes);
                let at = bytes.below(self.said.len());
                let message = match self.said.get(at) {
                    Some(said) if bytes.one_in(2) => said.clone().message(),
                    _ => M::make(bytes, &near),
                };
                let said = match bytes.below(3) {
                    0 => Said::Message(message),
                    1 => Said::Copy(bytes.below(9), message),
                    _ => Said::Piggyback(message),
                };
                self.hand(from, me, said);
            }
            13 => {
                let rides = self.all.get_mut(&me).and_then(|member| member.subject.poll_piggyback(self.now_ns));
                if let Some(message) = rides {
                    let others: Vec<_> = ids.iter().copied().filter(|to| *to != me).collect();
                    others.into_iter().for_each(|to| self.say(me, to, Said::Piggyback(message.clone())));
                }
                self.call(me, Call::Sent);
            }
            14 | 15 => {
                if !bytes.one_in(4) {
                    self.settle();
                }
                let next = self.all.values().filter_map(|member| member.subject.engine().poll_timeout()).min();
                if let Some(next) = next.filter(|next| *next < u64::MAX / 4) {
                    self.now_ns = self.now_ns.max(next);
                }
                ids.iter().for_each(|id| _ = self.call(*id, Call::Timeout));
            }
            16 => {
                let before = self.now_ns;
                self.now_ns = match bytes.below(8) {
                    0..=2 => before.saturating_add(u64::from(bytes.u8())),
                    3 => before.saturating_add(20_000),
                    4 => before.saturating_sub(1000),
                    5 => 0,
                    6 => before.saturating_add(1 << 40),
                    _ => u64::MAX,
                };
                self.call(me, Call::Timeout);
                if !bytes.one_in(3) {
                    self.now_ns = before;
                }
            }
            17 => {
                let about = near.member(bytes);
                let call = match bytes.below(8) {
                    0..=2 => Call::Crash(about),
                    3 => Call::Alive(about),
                    4 => Call::Sent,
                    5 | 6 => {
                        let members = if bytes.one_in(2) { near.set(bytes) } else { near.members.clone() };
                        Call::State(about, near.instance(bytes), members, bytes.one_in(2).then(|| bytes.take(18).into()))
                    }
                    _ => Call::NetworkFault,
                };
                self.call(me, call);
            }
            18 => {
                let mut made = Some(Answer::make(bytes, &near));
                let mangles = bytes.one_in(2);
                if mangles && !self.asked.is_empty() {
                    let near = near.clone();
                    self.remember(|answer| answer.mangle(bytes, &near));
                } else {
                    let (asker, of, id) = if self.ids.is_empty() { (me, me, 1) } else { self.ids[bytes.below(self.ids.len())] };
                    let of = if bytes.one_in(4) { near.member(bytes) } else { of };
                    let id = if bytes.one_in(4) { bytes.near(id) } else { id };
                    if let Some(answer) = made.take() {
                        self.call(asker, Call::Memory(of, id, answer));
                    }
                }
            }
            _ => {
                // Said again as it was, to somebody else or by somebody else.
                let at = bytes.below(self.said.len());
                let from = near.member(bytes);
                if let Some(said) = self.said.get(at).cloned() {
                    self.hand(from, me, said);
                }
            }
        }
    }
}
