//! Raft behind the engine interface: opaque bytes, right ones with a field changed, and made ones. It cannot be compared (the library's state is its own), so
//! every member is two: the second one is spared what the first one refuses, and both must go on alike.

use fide_proto::consensus::log::EngineMessage;
use fide_proto::consensus::{Action, Engine, Halted};
use fide_proto::group::{Body, Entry, MemberId, Refused};
use fide_raft::{Config, Raft};
use protobuf::Message as _;
use raft::prelude::{ConfChange, ConfChangeType, EntryType, Message, MessageType};

use super::cores::assert_counted;
use super::cores::bytes::{Bytes, Near};
use super::cores::messages::Hostile;
use super::cores::world::{Call, Subject, apply, run};

const KINDS: [MessageType; 12] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgPropose,
    MessageType::MsgSnapshot,
    MessageType::MsgTimeoutNow,
    MessageType::MsgHup,
];

#[derive(Clone, Debug, PartialEq)]
struct Said(EngineMessage);

impl From<Said> for EngineMessage {
    fn from(said: Said) -> Self {
        said.0
    }
}

fn entry(bytes: &mut Bytes, near: &Near, index: u64, term: u64) -> raft::prelude::Entry {
    let mut entry = raft::prelude::Entry { index: bytes.near(index), term: bytes.near(term), ..Default::default() };
    entry.data = match bytes.below(6) {
        0 => Vec::new().into(),
        1 => bytes.take(12).into(),
        2 => {
            entry.set_entry_type(EntryType::EntryConfChange);
            let mut change = ConfChange::default();
            change.set_change_type(bytes.pick(&[ConfChangeType::AddNode, ConfChangeType::RemoveNode]));
            change.node_id = bytes.near(2);
            change.write_to_bytes().unwrap_or_default().into()
        }
        _ => {
            let batch: Vec<Entry> = near.batch(bytes).to_vec();
            let small = batch.iter().filter(|e| !matches!(&e.body, Body::Value(v) if v.len() > 3000)).take(8).collect::<Vec<_>>();
            postcard::to_stdvec(&small).unwrap_or_default().into()
        }
    };
    entry
}

fn said(message: &Message) -> EngineMessage {
    EngineMessage::Opaque(message.write_to_bytes().unwrap_or_default().into())
}

impl Hostile for Said {
    fn make(bytes: &mut Bytes, near: &Near) -> Self {
        if bytes.one_in(8) {
            return Said(EngineMessage::Opaque(match bytes.below(5) {
                0 => near.value(bytes),
                1 => vec![0; (4 << 20) + 1].into(),
                2 => [&[1], &bytes.take(1)[..]].concat().into(),
                3 => {
                    let living: Vec<u64> = (0..bytes.below(5)).map(|_| u64::from(near.member(bytes).0)).collect();
                    let votes = (bytes.near(near.number), living, bytes.one_in(2));
                    [vec![2], postcard::to_stdvec(&votes).unwrap_or_default()].concat().into()
                }
                _ => bytes.take(40).into(),
            }));
        }
        let mut message = Message::default();
        message.set_msg_type(bytes.pick(&KINDS));
        message.from = u64::from(near.member(bytes).0);
        message.to = if bytes.one_in(6) { bytes.near(1) } else { 0 };
        let term = if message.get_msg_type() == MessageType::MsgPropose { 0 } else { bytes.below(6) as u64 };
        message.term = bytes.near(term);
        message.index = bytes.near(near.number);
        message.log_term = bytes.near(message.term);
        message.commit = bytes.near(near.number);
        message.reject = bytes.one_in(3);
        message.reject_hint = bytes.near(near.number);
        let (index, term) = (message.index.wrapping_add(1), message.term);
        message.entries = (0..bytes.below(3) as u64).map(|n| entry(bytes, near, index.wrapping_add(n), term)).collect();
        Said(said(&message))
    }

    fn mangle(self, bytes: &mut Bytes, near: &Near) -> Self {
        let EngineMessage::Opaque(was) = &self.0 else { return Self::make(bytes, near) };
        let Ok(mut message) = Message::parse_from_bytes(was) else { return Self::make(bytes, near) };
        match bytes.below(12) {
            0 => message.set_msg_type(bytes.pick(&KINDS)),
            1 => message.to = bytes.near(message.to),
            2 => message.from = bytes.near(message.from),
            3 => message.term = bytes.near(message.term),
            4 => message.log_term = bytes.near(message.log_term),
            5 => message.index = bytes.near(message.index),
            6 => message.commit = bytes.near(message.commit),
            7 => message.reject = !message.reject,
            8 => message.reject_hint = bytes.near(message.reject_hint),
            9 => {
                let (index, term) = (message.index.wrapping_add(1), message.term);
                message.entries = vec![entry(bytes, near, index, term)].into();
            }
            10 => {
                let at = bytes.below(message.entries.len());
                if let Some(entry) = message.entries.get_mut(at) {
                    match bytes.below(3) {
                        0 => entry.index = bytes.near(entry.index),
                        1 => entry.term = bytes.near(entry.term),
                        _ => entry.data = bytes.take(12).into(),
                    }
                }
            }
            _ => {
                let mut raw = was.to_vec();
                let at = bytes.below(raw.len());
                if let Some(byte) = raw.get_mut(at) {
                    *byte = bytes.u8();
                }
                return Said(EngineMessage::Opaque(raw.into()));
            }
        }
        if bytes.one_in(2) {
            message.to = 0;
        }
        Said(said(&message))
    }
}

/// A Raft that speaks [`Said`].
struct Speaks(Raft);

impl Engine<Said> for Speaks {
    fn kind(&self) -> fide_proto::consensus::Kind {
        self.0.kind()
    }
    fn propose(&mut self, now_ns: u64, entry: Entry) -> Result<(), Refused> {
        self.0.propose(now_ns, entry)
    }
    fn handle_message(&mut self, now_ns: u64, from: MemberId, message: Said) -> Result<(), Refused> {
        self.0.handle_message(now_ns, from, message.0)
    }
    fn handle_copy(&mut self, now_ns: u64, from: MemberId, path: usize, message: Said) -> Result<(), Refused> {
        self.0.handle_copy(now_ns, from, path, message.0)
    }
    fn handle_piggyback(&mut self, now_ns: u64, from: MemberId, message: Said) -> Result<(), Refused> {
        self.0.handle_piggyback(now_ns, from, message.0)
    }
    fn handle_memory(
        &mut self,
        now_ns: u64,
        from: MemberId,
        id: u64,
        answer: fide_proto::consensus::memory::Answer,
    ) -> Result<(), Refused> {
        self.0.handle_memory(now_ns, from, id, answer)
    }
    fn handle_crash(&mut self, now_ns: u64, member: MemberId) -> Result<(), Refused> {
        self.0.handle_crash(now_ns, member)
    }
    fn handle_alive(&mut self, now_ns: u64, member: MemberId) {
        self.0.handle_alive(now_ns, member);
    }
    fn poll_timeout(&self) -> Option<u64> {
        self.0.poll_timeout()
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        self.0.handle_timeout(now_ns);
    }
    fn set_members(&mut self, now_ns: u64, from: u64, members: fide_proto::group::MemberSet) -> Result<(), Refused> {
        self.0.set_members(now_ns, from, members)
    }
    fn handle_state(
        &mut self,
        now_ns: u64,
        from: MemberId,
        through: u64,
        members: &fide_proto::group::MemberSet,
        start: Option<&[u8]>,
    ) -> Result<(), Refused> {
        self.0.handle_state(now_ns, from, through, members, start)
    }
    fn poll_action(&mut self) -> Option<Action<Said>> {
        Some(match self.0.poll_action()? {
            Action::Send { to, message } => Action::Send { to, message: Said(message) },
            Action::Copies { message } => Action::Copies { message: Said(message) },
            Action::Memory { to, request } => Action::Memory { to, request },
            Action::Decide { instance, batch } => Action::Decide { instance, batch },
            Action::State { to } => Action::State { to },
            Action::Halt(why) => Action::Halt(why),
        })
    }
    fn decided_through(&self) -> u64 {
        self.0.decided_through()
    }
    fn stable_through(&self) -> u64 {
        self.0.stable_through()
    }
    fn leader(&self) -> Option<MemberId> {
        self.0.leader()
    }
    fn halted(&self) -> Option<Halted> {
        self.0.halted()
    }
    fn refusals(&self) -> &fide_proto::group::Refusals {
        self.0.refusals()
    }
    fn invariants(&self) {
        self.0.invariants();
    }
}

struct Pair {
    raft: Speaks,
    spared: Speaks,
}

fn seen(raft: &Raft) -> impl PartialEq + std::fmt::Debug + use<> {
    let leads = (raft.leader(), raft.halted(), raft.poll_timeout(), raft.may_leave());
    (raft.decided_through(), raft.stable_through(), leads, raft.start_point(), raft.kept())
}

impl Subject<Said> for Pair {
    fn engine(&self) -> &dyn Engine<Said> {
        &self.raft
    }

    fn call(&mut self, now_ns: u64, call: Call<Said>) -> Result<(), Refused> {
        let (before, looked) = (*self.raft.refusals(), seen(&self.raft.0));
        let was_halted = self.raft.halted().is_some();
        let result = apply(&mut self.raft, now_ns, call.clone());
        match result {
            Err(why) => {
                assert_counted(&before, self.raft.refusals(), why);
                if self.raft.halted() == Some(Halted::Contradiction) && !was_halted {
                    // What shows only once it is believed: it stops with what it was refused for. There is no other one to compare with any more.
                    let _ = std::iter::from_fn(|| self.spared.poll_action()).count();
                    return result;
                }
                assert_eq!(looked, seen(&self.raft.0), "{call:?} was refused with {why:?}");
            }
            Ok(()) if self.raft.halted() == Some(Halted::Contradiction) => {}
            Ok(()) => {
                let spared = apply(&mut self.spared, now_ns, call.clone());
                assert_eq!(result, spared, "{call:?}: what was refused before has changed something");
            }
        }
        self.raft.invariants();
        if self.raft.halted().is_none() {
            assert_eq!(seen(&self.raft.0), seen(&self.spared.0), "{call:?}: what was refused has changed something");
        }
        result
    }

    fn poll_action(&mut self) -> Option<Action<Said>> {
        let action = self.raft.poll_action();
        if self.raft.halted().is_none() {
            let spared = self.spared.poll_action();
            assert!(action == spared, "what was refused has changed what is done");
        }
        action
    }

    fn poll_piggyback(&mut self, now_ns: u64) -> Option<Said> {
        self.raft.poll_piggyback(now_ns)
    }
}

pub fn raft(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let (n, seed) = (bytes.pick(&[3, 3, 2, 1]), bytes.below(4) as u64);
    let small = bytes.one_in(2);
    run(&mut bytes, n, 1, |_, me, set| {
        let config = Config { seed, ..Config::new(me) };
        let config = if small { Config { pending_max: 8, kept_max: 8, batch_max: 4000, ..config } } else { config };
        let new = || {
            let mut raft = Raft::new(config.clone(), 1_000_000, 1, set, None).expect("a group that starts");
            if me == MemberId(1) {
                raft.campaign();
            }
            Speaks(raft)
        };
        Pair { raft: new(), spared: new() }
    });
}
