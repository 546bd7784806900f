//! Frames of wire version 2 and messages of the software core, there and back; and which frames the
//! hardware takes, written once more from the wire's decoders so that the parser is judged by them.

use crate::setup::Setup;
use fide_proto::consensus::lowi::{Message, Round};
use fide_proto::group::{Body, Entry, EntryId, MemberId};
use fide_wire::frame::bytes::Reader;
use fide_wire::frame::group::{self, EntryKind, Head, LowiKind};
use fide_wire::frame::{self, Channel, Header, Kind};

/// The most words of a round and its batch that the engine holds.
pub const BEATS_MAX: usize = 16;

/// Bytes of the payload of an entry, and its kind.
fn payload(body: &Body) -> (u8, Vec<u8>) {
    match body {
        Body::Value(value) => (EntryKind::Value as u8, value.to_vec()),
        Body::Join(member) => (EntryKind::Join as u8, member.0.to_be_bytes().to_vec()),
        Body::Leave(member) => (EntryKind::Leave as u8, member.0.to_be_bytes().to_vec()),
        Body::Switch(kind) => (EntryKind::Switch as u8, vec![*kind as u8]),
    }
}

fn body(kind: u8, bytes: &[u8]) -> Option<Body> {
    let member = || Some(MemberId(u16::from_be_bytes(bytes.try_into().ok()?)));
    Some(match kind {
        0 => Body::Value(bytes.into()),
        1 => Body::Join(member()?),
        2 => Body::Leave(member()?),
        3 => Body::Switch(fide_proto::consensus::Kind::Raft),
        _ => return None,
    })
}

/// What follows the group's head in a round, or in a request, whose round and instance are 0.
#[must_use]
pub fn round_bytes(round: u64, instance: u64, batch: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in batch {
        let (kind, payload) = payload(&entry.body);
        group::Entry { proposer: entry.id.proposer.0, kind, number: entry.id.number, bytes: &payload }.write(&mut bytes);
    }
    let mut out = Vec::new();
    group::Round { round, instance, entries: batch.len() as u16, batch: &bytes }.write(&mut out);
    out
}

/// The entries of a batch; nothing if the core could not have made it.
#[must_use]
pub fn entries(count: u16, batch: &[u8]) -> Option<Vec<Entry>> {
    let mut r = Reader::new(batch);
    (0..count)
        .map(|_| {
            let read = group::Entry::read(&mut r)?;
            let id = EntryId { proposer: MemberId(read.proposer), number: read.number };
            Some(Entry { id, body: body(read.kind, read.bytes)? })
        })
        .collect()
}

/// A frame of `from`, with a message of the core.
#[must_use]
pub fn encode(setup: &Setup, from: MemberId, path: u8, number: u64, sent_ns: u64, message: &Message) -> Vec<u8> {
    let (kind, lowi, rest) = match message {
        Message::Round(round) => (Kind::Copy, LowiKind::Round, round_bytes(round.round, round.instance, &round.batch)),
        Message::Forward(entry) => (Kind::Message, LowiKind::Forward, round_bytes(0, 0, std::slice::from_ref(entry))),
        Message::Exit => (Kind::Message, LowiKind::Exit, Vec::new()),
        Message::Ready => (Kind::Message, LowiKind::Ready, Vec::new()),
        // Who says when copies have left has it; members in hardware count them as left.
        Message::Unsent { .. } => return Vec::new(),
    };
    let (cluster, sender, incarnation) = (setup.cluster, setup.sender, setup.incarnation);
    let (kind, channel) = (kind as u8, Channel::Groups as u8);
    let header = Header { kind, channel, path, cluster, sender, incarnation, number, sent_ns, ..Header::default() };
    let mut body = Vec::new();
    let head = Head {
        group: setup.group,
        from: from.0,
        engine: group::Engine::Lowi as u8,
        kind: lowi as u8,
        generation: setup.generation,
    };
    head.write(&mut body);
    body.extend(rest);
    let mut out = [0; frame::FRAME_MAX];
    let len = frame::encode(&mut out, &header, &body, &setup.keys()).unwrap_or(0);
    out[..len].to_vec()
}

/// What a frame says, if a receiver in hardware takes it: who sent it, and the core's message.
/// `path` is that of the stream it came by; requests come by their own.
#[must_use]
pub fn accept(setup: &Setup, path: Option<u8>, bytes: &[u8]) -> Option<(MemberId, Message)> {
    read(setup, path, bytes).filter(|(from, _)| path.is_none() || *from != setup.me)
}

/// The same of any member's frame, also of this one's.
#[must_use]
pub fn read(setup: &Setup, path: Option<u8>, bytes: &[u8]) -> Option<(MemberId, Message)> {
    let frame = frame::decode(bytes, setup.cluster, &setup.keys()).ok()?;
    let header = frame.header;
    let mut r = Reader::new(frame.body);
    let head = Head::read(&mut r)?;
    let ours = header.channel == Channel::Groups as u8
        && head.group == setup.group
        && head.engine == group::Engine::Lowi as u8
        && head.generation == setup.generation;
    let from = MemberId(head.from);
    if !ours || !setup.ids.contains(&from) {
        return None;
    }
    let message = match (path, header.kind, head.kind) {
        (Some(path), kind, lowi) if kind == Kind::Copy as u8 && lowi == LowiKind::Round as u8 => {
            if header.path != path {
                return None;
            }
            let read = read_round(&mut r, bytes.len())?;
            let batch = entries(read.entries, read.batch)?;
            let (round, instance, sent_ns) = (read.round, read.instance, header.sent_ns);
            Message::Round(Round { round, leader: from, instance, sent_ns, batch: batch.into() })
        }
        (None, kind, lowi) if kind == Kind::Message as u8 && lowi == LowiKind::Forward as u8 => {
            let read = read_round(&mut r, bytes.len())?;
            Message::Forward(entries(read.entries, read.batch)?.pop()?)
        }
        (Some(_), kind, lowi) if kind == Kind::Message as u8 && r.rest().is_empty() => match lowi {
            lowi if lowi == LowiKind::Exit as u8 => Message::Exit,
            lowi if lowi == LowiKind::Ready as u8 => Message::Ready,
            _ => return None,
        },
        _ => return None,
    };
    Some((from, message))
}

fn read_round<'a>(r: &mut Reader<'a>, len: usize) -> Option<group::Round<'a>> {
    let read = group::Round::read(r)?;
    let fits = read.entries <= 1 && len <= 64 + 64 * BEATS_MAX;
    let numbered = entries(read.entries, read.batch).is_some_and(|batch| batch.iter().all(|entry| entry.id.number != 0));
    (fits && numbered).then_some(read)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use fide_proto::consensus::lowi;
    use fide_wire::mac::Key;

    pub(crate) fn setup() -> Setup {
        let ids: Vec<_> = [3, 7, 300].map(MemberId).into();
        let begin = lowi::StartPoint { round: 0, leader: ids[0], next: 1 };
        let config =
            lowi::Config { rounds_max: 4, batch_entries_max: 1, batch_bytes_max: 984, ..lowi::Config::new(2_000, 1_000) };
        let members = ids.iter().copied().collect();
        let (cluster, sender, incarnation, group, generation) = (0xc1, 0x5e, 9, 0x9a, 0x1234_5678_9abc);
        Setup {
            config,
            me: ids[1],
            ids,
            members,
            begin,
            cluster,
            sender,
            incarnation,
            group,
            generation,
            key: (3, Key([7; 16])),
            clk_ns: 4,
            retry_ns: 400,
            rate: (0, 1),
        }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let setup = setup();
        let entry = Entry { id: EntryId { proposer: MemberId(300), number: 4 }, body: Body::Value([7u8; 33].as_slice().into()) };
        let round = Round { round: 5, leader: MemberId(3), instance: 2, sent_ns: 77, batch: vec![entry.clone()].into() };
        for (path, message) in [
            (Some(1), Message::Round(round)),
            (None, Message::Forward(entry)),
            (Some(0), Message::Exit),
            (Some(1), Message::Ready),
        ] {
            let bytes = encode(&setup, MemberId(3), path.unwrap_or(0), 1, 77, &message);
            assert_eq!(accept(&setup, path, &bytes), Some((MemberId(3), message)));
            assert_eq!(accept(&setup, path, &bytes[..bytes.len() - 1]), None);
        }
    }
}
