//! Messages built field by field, and real ones with one field changed.

use std::fmt::Debug;
use std::sync::Arc;

use fide_proto::broadcast::{fcurb, osrb};
use fide_proto::consensus::paxos::{FROZEN, ValueId, Word};
use fide_proto::consensus::{hsuc, huc, lowi, memory, paxos};
use fide_proto::group::{Entry, MemberId};

use super::bytes::{Bytes, Near, zeros};

/// What members of one protocol say.
pub trait Hostile: Clone + Debug {
    /// One that is nearly right.
    fn make(bytes: &mut Bytes, near: &Near) -> Self;
    /// This one, nearly.
    fn mangle(self, bytes: &mut Bytes, near: &Near) -> Self;
}

impl Hostile for hsuc::Message {
    fn make(bytes: &mut Bytes, near: &Near) -> Self {
        match bytes.below(5) {
            0 => Self::Propose { instance: near.instance(bytes), batch: near.batch(bytes) },
            1 => Self::Ack { instance: near.instance(bytes) },
            2 => {
                let id = osrb::Id { origin: near.member(bytes), sequence: near.instance(bytes) };
                Self::Decided(osrb::Message { id, body: near.batch(bytes) })
            }
            3 => Self::Forward { anew: bytes.one_in(2), entries: near.batch(bytes) },
            _ => Self::Ask,
        }
    }

    fn mangle(self, bytes: &mut Bytes, near: &Near) -> Self {
        let first = bytes.one_in(2);
        match self {
            Self::Propose { instance, batch } if first => Self::Propose { instance: bytes.near(instance), batch },
            Self::Propose { instance, batch } => Self::Propose { instance, batch: near.mangled(bytes, &batch) },
            Self::Ack { instance } => Self::Ack { instance: bytes.near(instance) },
            Self::Decided(mut message) => {
                match bytes.below(3) {
                    0 => message.id.origin = near.member(bytes),
                    1 => message.id.sequence = bytes.near(message.id.sequence),
                    _ => message.body = near.mangled(bytes, &message.body),
                }
                Self::Decided(message)
            }
            Self::Forward { anew, entries } if first => Self::Forward { anew: !anew, entries },
            Self::Forward { anew, entries } => Self::Forward { anew, entries: near.mangled(bytes, &entries) },
            Self::Ask => Self::make(bytes, near),
        }
    }
}

fn items(bytes: &mut Bytes, near: &Near) -> Arc<[huc::Item]> {
    (0..bytes.pick(&[1, 1, 1, 2, 3, 0, 100]))
        .map(|_| {
            if bytes.one_in(3) {
                huc::Item::Ahead(huc::BodyId { source: near.member(bytes), id: near.id(bytes) })
            } else {
                huc::Item::Direct(near.entry(bytes))
            }
        })
        .collect()
}

fn holds(bytes: &mut Bytes, near: &Near) -> Arc<[huc::BodyId]> {
    let mut holds: Vec<_> = match bytes.below(16) {
        0 => {
            let id = near.id(bytes);
            (0..40_000).map(|n| huc::BodyId { source: MemberId(1), id: fide_proto::group::EntryId { number: n, ..id } }).collect()
        }
        _ => (0..bytes.below(4)).map(|_| huc::BodyId { source: near.member(bytes), id: near.id(bytes) }).collect(),
    };
    if !bytes.one_in(4) {
        holds.sort_unstable();
    }
    holds.into()
}

fn decision(bytes: &mut Bytes, near: &Near) -> huc::Decision {
    huc::Decision { instance: near.instance(bytes), items: items(bytes, near) }
}

impl Hostile for huc::Message {
    fn make(bytes: &mut Bytes, near: &Near) -> Self {
        match bytes.below(5) {
            0 => {
                let proposal = huc::Proposal { items: items(bytes, near), holds: holds(bytes, near) };
                Self::Propose { instance: near.instance(bytes), proposal }
            }
            1 => {
                let number = if bytes.one_in(2) { near.instance(bytes) } else { bytes.near(1) };
                Self::Decision(fcurb::Message { number, body: decision(bytes, near) })
            }
            2 => {
                let value = bytes.pick(&[1usize, 1500, 2000, 1 << 20, (1 << 20) + 1]);
                Self::Body(Entry { id: near.id(bytes), body: fide_proto::group::Body::Value(zeros(value)) })
            }
            3 => Self::Ask,
            _ => Self::Answer,
        }
    }

    fn mangle(self, bytes: &mut Bytes, near: &Near) -> Self {
        match self {
            Self::Propose { mut instance, mut proposal } => {
                match bytes.below(3) {
                    0 => instance = bytes.near(instance),
                    1 => proposal.items = items(bytes, near),
                    _ => proposal.holds = holds(bytes, near),
                }
                Self::Propose { instance, proposal }
            }
            Self::Decision(mut message) => {
                match bytes.below(3) {
                    0 => message.number = bytes.near(message.number),
                    1 => message.body.instance = bytes.near(message.body.instance),
                    _ => message.body.items = items(bytes, near),
                }
                Self::Decision(message)
            }
            Self::Body(entry) if bytes.one_in(2) => Self::Body(Entry { id: near.id(bytes), ..entry }),
            Self::Body(entry) => Self::Body(Entry { body: near.body(bytes), ..entry }),
            Self::Ask | Self::Answer => Self::make(bytes, near),
        }
    }
}

impl Hostile for lowi::Message {
    fn make(bytes: &mut Bytes, near: &Near) -> Self {
        match bytes.below(9) {
            0..=4 => Self::Round(lowi::Round {
                round: near.instance(bytes),
                leader: near.member(bytes),
                instance: near.instance(bytes),
                sent_ns: bytes.near(near.now_ns),
                batch: if bytes.one_in(2) { [].into() } else { near.batch(bytes) },
            }),
            5 | 6 => Self::Forward(near.entry(bytes)),
            7 => Self::Ready,
            _ if bytes.one_in(2) => Self::Unsent { round: near.instance(bytes) },
            _ => Self::Exit,
        }
    }

    fn mangle(self, bytes: &mut Bytes, near: &Near) -> Self {
        match self {
            Self::Round(mut round) => {
                match bytes.below(5) {
                    0 => round.round = bytes.near(round.round),
                    1 => round.leader = near.member(bytes),
                    2 => round.instance = bytes.near(round.instance),
                    3 => round.sent_ns = bytes.near(round.sent_ns),
                    _ => round.batch = near.mangled(bytes, &round.batch),
                }
                Self::Round(round)
            }
            Self::Forward(entry) if bytes.one_in(2) => Self::Forward(Entry { id: near.id(bytes), ..entry }),
            Self::Forward(entry) => Self::Forward(Entry { body: near.body(bytes), ..entry }),
            Self::Unsent { round } => Self::Unsent { round: bytes.near(round) },
            Self::Exit | Self::Ready => Self::make(bytes, near),
        }
    }
}

fn ballot(bytes: &mut Bytes) -> u64 {
    match bytes.below(6) {
        0..=2 => bytes.below(32) as u64,
        3 => u64::from(bytes.near16(FROZEN)),
        4 => (1 << 48) + bytes.below(6) as u64,
        _ => bytes.near(1),
    }
}

impl Hostile for paxos::Message {
    fn make(bytes: &mut Bytes, near: &Near) -> Self {
        let instance = near.instance(bytes);
        match bytes.below(7) {
            0 => Self::Forward { run: bytes.near(1), place: bytes.near(0), entry: near.entry(bytes) },
            1 => Self::Decided { instance, batch: near.batch(bytes), stable: near.instance(bytes) },
            2 => Self::Progress { decided: instance, stable: near.instance(bytes), ask: bytes.one_in(2) },
            3 => Self::Prepare { instance, ballot: ballot(bytes) },
            4 => {
                let accepted = bytes.one_in(2).then(|| (ballot(bytes), near.batch(bytes)));
                Self::Prepared { instance, ballot: ballot(bytes), promised: ballot(bytes), accepted }
            }
            5 => Self::Accept { instance, ballot: ballot(bytes), batch: near.batch(bytes) },
            _ => Self::Accepted { instance, ballot: ballot(bytes), promised: ballot(bytes) },
        }
    }

    fn mangle(self, bytes: &mut Bytes, near: &Near) -> Self {
        let mut message = self;
        match &mut message {
            Self::Forward { run, place, entry } => match bytes.below(4) {
                0 => *run = bytes.near(*run),
                1 => *place = bytes.near(*place),
                2 => entry.id = near.id(bytes),
                _ => entry.body = near.body(bytes),
            },
            Self::Decided { instance, batch, stable } => match bytes.below(3) {
                0 => *instance = bytes.near(*instance),
                1 => *batch = near.mangled(bytes, batch),
                _ => *stable = bytes.near(*stable),
            },
            Self::Progress { decided, stable, ask } => match bytes.below(3) {
                0 => *decided = bytes.near(*decided),
                1 => *stable = bytes.near(*stable),
                _ => *ask = !*ask,
            },
            Self::Prepare { instance, ballot } => match bytes.below(2) {
                0 => *instance = bytes.near(*instance),
                _ => *ballot = bytes.near(*ballot),
            },
            Self::Prepared { instance, ballot: number, promised, accepted } => match bytes.below(4) {
                0 => *instance = bytes.near(*instance),
                1 => *number = bytes.near(*number),
                2 => *promised = bytes.near(*promised),
                _ => *accepted = bytes.one_in(2).then(|| (ballot(bytes), near.batch(bytes))),
            },
            Self::Accept { instance, ballot, batch } => match bytes.below(3) {
                0 => *instance = bytes.near(*instance),
                1 => *ballot = bytes.near(*ballot),
                _ => *batch = near.mangled(bytes, batch),
            },
            Self::Accepted { instance, ballot, promised } => match bytes.below(3) {
                0 => *instance = bytes.near(*instance),
                1 => *ballot = bytes.near(*ballot),
                _ => *promised = bytes.near(*promised),
            },
        }
        message
    }
}

/// A word as an acceptor may have it, or nearly.
pub fn word(bytes: &mut Bytes, near: &Near) -> Word {
    let number = bytes.below(16) as u16;
    let accepted = if bytes.one_in(2) { number } else { 0 };
    let id = ValueId { proposer: near.member(bytes), variant: bytes.near16(0) };
    Word {
        min_proposal: bytes.near16(number),
        accepted_proposal: bytes.near16(accepted),
        accepted_value: if bytes.one_in(2) { id.to_bits() } else { 0 },
    }
}

impl Hostile for memory::Answer {
    fn make(bytes: &mut Bytes, near: &Near) -> Self {
        match bytes.below(6) {
            0..=2 => Self::Word(word(bytes, near).to_bits()),
            3 => Self::Written,
            4 => Self::Bytes(None),
            _ => {
                let id = ValueId { proposer: near.member(bytes), variant: bytes.near16(0) };
                Self::Bytes(Some(paxos::encode(near.instance(bytes), id, &near.batch(bytes))))
            }
        }
    }

    fn mangle(self, bytes: &mut Bytes, near: &Near) -> Self {
        match self {
            Self::Word(bits) => Self::Word(match bytes.below(3) {
                0 => bits ^ (1 << bytes.below(64)),
                1 => Word { min_proposal: FROZEN, ..Word::from_bits(bits) }.to_bits(),
                _ => bytes.near(bits),
            }),
            Self::Bytes(Some(value)) if !value.is_empty() => {
                let mut value = value.to_vec();
                let at = bytes.below(value.len());
                match bytes.below(3) {
                    0 => value[at] = bytes.u8(),
                    1 => value.truncate(at),
                    _ => value.push(0),
                }
                Self::Bytes(Some(value.into()))
            }
            _ => Self::make(bytes, near),
        }
    }
}
