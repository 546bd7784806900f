//! Rounds of LOWI on the wire: a copy on every path, delivered by itself with the time of its
//! arrival (RSBCAST). One that is longer than a frame leaves in parts, which are on every path,
//! too: a copy has come when all its parts have.
//!
//! A round is written as members in hardware read it ([`fide_wire::frame::group`]). `generation`
//! there is the group's own plus the epoch of its log, and the stamp of a round is its frames'.

use super::Departure;
use super::message::Timing;
use crate::consensus::log::Epoch;
use crate::consensus::lowi::Round;
use crate::consensus::{Kind, log};
use crate::group::{Body, Entry, EntryId, MemberId};
use fide_wire::frame::bytes::Reader;
use fide_wire::frame::fragment::{self, Fragment};
use fide_wire::frame::group::{self, Engine, EntryKind, Head, LowiKind};
use fide_wire::frame::{BODY_AT, FRAME_SAFE};
use std::collections::{BTreeMap, VecDeque};

/// The most bytes of a frame's body here.
const BODY_MAX: usize = FRAME_SAFE - BODY_AT;
/// Copies of one member on one path that have come in part: as many as it may have in flight.
const ARRIVING_MAX: usize = Timing::DEPTH_MAX as usize;
/// And so many bytes of them.
const ARRIVING_BYTES_MAX: usize = 4 << 20;

/// A round that is to leave.
#[derive(Clone, Debug)]
pub(super) struct Leaving {
    pub generation: u64,
    pub epoch: Epoch,
    pub sent_ns: u64,
    /// Not sent later than that: whoever was given up must not speak.
    pub until_ns: u64,
    /// Bodies of its frames.
    pub frames: VecDeque<Vec<u8>>,
    /// What became of those that were handed out.
    pub departure: Departure,
}

impl Leaving {
    /// Of the group with this number ([`fide_wire::name_id`]); none if it is too long.
    pub fn new(group: u32, (generation, epoch): (u64, Epoch), timing: &Timing, round: &Round) -> Option<Self> {
        let head = |kind: LowiKind| Head {
            group,
            from: round.leader.0,
            engine: Engine::Lowi as u8,
            kind: kind as u8,
            generation: generation.wrapping_add(epoch.into()),
        };
        let whole = written(round);
        let frame = |kind: LowiKind, rest: &dyn Fn(&mut Vec<u8>)| {
            let mut body = Vec::with_capacity(BODY_MAX);
            head(kind).write(&mut body);
            rest(&mut body);
            body
        };
        let frames = if Head::LEN + whole.len() <= BODY_MAX {
            VecDeque::from([frame(LowiKind::Round, &|body| body.extend_from_slice(&whole))])
        } else {
            let parts = Fragment::cut(round.round as u32, &whole, BODY_MAX - Head::LEN)?;
            parts.iter().map(|part| frame(LowiKind::Part, &|body| part.write(body))).collect()
        };
        // Early enough for nobody to take it for late, and to have been given up for it.
        let held_up_ns = timing.delta_w_ns.saturating_sub(timing.delta_i_ns).min(timing.delta_i_ns) / 2;
        let until_ns = round.sent_ns.saturating_add(held_up_ns);
        Some(Self { generation, epoch, sent_ns: round.sent_ns, until_ns, frames, departure: Departure::Whole })
    }
}

fn written(round: &Round) -> Vec<u8> {
    let mut batch = Vec::new();
    for entry in round.batch.iter() {
        let (kind, bytes): (EntryKind, &[u8]) = match &entry.body {
            Body::Value(value) => (EntryKind::Value, value),
            Body::Join(member) => (EntryKind::Join, &member.0.to_be_bytes()),
            Body::Leave(member) => (EntryKind::Leave, &member.0.to_be_bytes()),
            Body::Switch(kind) => (EntryKind::Switch, &[*kind as u8]),
        };
        group::Entry { proposer: entry.id.proposer.0, kind: kind as u8, number: entry.id.number, bytes }.write(&mut batch);
    }
    let mut whole = Vec::new();
    let entries = round.batch.len() as u16;
    group::Round { round: round.round, instance: round.instance, entries, batch: &batch }.write(&mut whole);
    whole
}

fn read_round(leader: MemberId, sent_ns: u64, bytes: &[u8]) -> Option<Round> {
    let group::Round { round, instance, entries, batch } = group::Round::read(&mut Reader::new(bytes))?;
    let mut r = Reader::new(batch);
    let batch: Option<Vec<Entry>> = (0..entries).map(|_| read_entry(&mut r)).collect();
    Some(Round { round, leader, instance, sent_ns, batch: batch?.into() })
}

fn read_entry(r: &mut Reader<'_>) -> Option<Entry> {
    let group::Entry { proposer, kind, number, bytes } = group::Entry::read(r)?;
    let member = || Some(MemberId(u16::from_be_bytes(bytes.try_into().ok()?)));
    let body = match kind {
        kind if kind == EntryKind::Value as u8 => Body::Value(bytes.into()),
        kind if kind == EntryKind::Join as u8 => Body::Join(member()?),
        kind if kind == EntryKind::Leave as u8 => Body::Leave(member()?),
        kind if kind == EntryKind::Switch as u8 => {
            let &[number] = bytes else { return None };
            Body::Switch(Kind::ALL.into_iter().find(|kind| *kind as u8 == number)?)
        }
        _ => return None,
    };
    Some(Entry { id: EntryId { proposer: MemberId(proposer), number }, body })
}

/// A frame with a copy of a round, or with part of one.
pub(super) struct Came<'a> {
    pub group: u32,
    pub from: MemberId,
    /// The group's own plus the epoch.
    pub generation: u64,
    is_part: bool,
    rest: &'a [u8],
}

/// Reads one.
pub(super) fn read(body: &[u8]) -> Option<Came<'_>> {
    let mut r = Reader::new(body);
    let Head { group, from, engine, kind, generation } = Head::read(&mut r)?;
    let is_part = kind == LowiKind::Part as u8;
    let is_ours = engine == Engine::Lowi as u8 && (is_part || kind == LowiKind::Round as u8);
    is_ours.then_some(Came { group, from: MemberId(from), generation, is_part, rest: r.rest() })
}

/// The copies of one member by one path that have come in part, by the low half of their number.
#[derive(Default)]
pub(super) struct Arriving {
    parts: BTreeMap<u32, BTreeMap<u16, Vec<u8>>>,
    bytes: usize,
}

impl Arriving {
    /// The round, if its copy has come whole.
    pub fn take(&mut self, came: &Came<'_>, sent_ns: u64) -> Option<log::EngineMessage> {
        let round = if came.is_part { self.take_part(came, sent_ns)? } else { read_round(came.from, sent_ns, came.rest)? };
        Some(crate::consensus::lowi::Message::Round(round).into())
    }

    fn take_part(&mut self, came: &Came<'_>, sent_ns: u64) -> Option<Round> {
        let part = Fragment::read(came.rest)?;
        if part.bytes.len() > BODY_MAX - Head::LEN - fragment::HEAD_LEN {
            return None;
        }
        let is_new = !self.parts.contains_key(&part.message);
        if is_new && self.parts.len() >= ARRIVING_MAX || self.bytes >= ARRIVING_BYTES_MAX {
            // What is missing of the oldest one will not come.
            let oldest = self.parts.pop_first();
            self.bytes -= oldest.map_or(0, |(_, parts)| parts.values().map(Vec::len).sum());
        }
        let parts = self.parts.entry(part.message).or_default();
        let before = parts.insert(part.index, part.bytes.to_vec());
        self.bytes = self.bytes + part.bytes.len() - before.map_or(0, |before| before.len());
        if parts.len() < usize::from(part.count) {
            return None;
        }
        let whole: Vec<u8> = self.parts.remove(&part.message)?.into_values().flatten().collect();
        self.bytes -= whole.len();
        (whole.len() == part.length as usize).then(|| read_round(came.from, sent_ns, &whole)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consensus::lowi;

    fn round(number: u64, lens: &[usize]) -> Round {
        let entry = |(n, len): (usize, &usize)| Entry {
            id: EntryId { proposer: MemberId(3), number: n as u64 + 1 },
            body: Body::Value((0..*len).map(|at| (at + n) as u8).collect::<Vec<_>>().into()),
        };
        let batch: Vec<Entry> = lens.iter().enumerate().map(entry).collect();
        Round { round: number, leader: MemberId(2), instance: 5, sent_ns: 77, batch: batch.into() }
    }

    fn put_together(arriving: &mut Arriving, frames: &[Vec<u8>]) -> Vec<Round> {
        let taken = frames.iter().filter_map(|frame| {
            let came = read(frame).unwrap();
            assert_eq!((came.group, came.from, came.generation), (9, MemberId(2), 1_003));
            match arriving.take(&came, 77)? {
                log::EngineMessage::Lowi(lowi::Message::Round(round)) => Some(round),
                other => panic!("{other:?}"),
            }
        });
        taken.collect()
    }

    fn frames(round: &Round) -> Vec<Vec<u8>> {
        Leaving::new(9, (1_000, 3), &Timing::of_contract(0, 0), round).unwrap().frames.into()
    }

    #[test]
    fn a_round_comes_as_it_left_in_one_frame_or_in_parts_in_any_order() {
        for lens in [&[][..], &[0], &[64], &[1_000], &[1_096], &[1_104], &[64; 64], &[1_200, 5, 9_000], &[65_000]] {
            let round = round(12, lens);
            let mut frames = frames(&round);
            let is_short = 40 + lens.iter().map(|len| group::Entry::size(*len)).sum::<usize>() <= BODY_MAX;
            assert_eq!(frames.len() == 1, is_short, "{lens:?}");
            assert!(frames.iter().all(|frame| frame.len() <= BODY_MAX));
            for _ in 0..2 {
                assert_eq!(put_together(&mut Arriving::default(), &frames), std::slice::from_ref(&round), "{lens:?}");
                frames.reverse();
            }
        }
        for body in [Body::Join(MemberId(300)), Body::Leave(MemberId(1)), Body::Switch(Kind::Raft)] {
            let id = EntryId { proposer: MemberId(1), number: 1 };
            let round = Round { batch: vec![Entry { id, body }].into(), ..round(1, &[]) };
            assert_eq!(put_together(&mut Arriving::default(), &frames(&round)), [round]);
        }
    }

    #[test]
    fn rounds_in_parts_may_overtake_each_other_and_a_lost_part_loses_one() {
        let (first, second, third) = (round(1, &[3_000]), round(2, &[3_001]), round(3, &[2_999]));
        let (a, b, c) = (frames(&first), frames(&second), frames(&third));
        let mixed = [&a[0], &b[0], &b[1], &c[0], &a[1], &a[2], &c[1], &c[2]].map(Clone::clone);
        assert_eq!(put_together(&mut Arriving::default(), &mixed), [first, third]);
        let mut arriving = Arriving::default();
        for number in 0..2 * ARRIVING_MAX as u64 {
            assert!(put_together(&mut arriving, &frames(&round(number, &[3_000]))[1..]).is_empty());
        }
        assert_eq!(arriving.parts.len(), ARRIVING_MAX);
    }

    #[test]
    fn frames_that_are_cut_short_or_lie_give_nothing() {
        let frames = frames(&round(1, &[3_000]));
        for length in 0..frames[0].len() {
            if let Some(came) = read(&frames[0][..length]) {
                let mut arriving = Arriving::default();
                assert!(arriving.take(&came, 77).is_none());
                let others = [&frames[1], &frames[2]].map(Clone::clone);
                assert!(put_together(&mut arriving, &others).is_empty(), "{length}");
            }
        }
        let mut other_engine = frames[0].clone();
        other_engine[6] = Engine::Raft as u8;
        assert!(read(&other_engine).is_none());
    }
}
