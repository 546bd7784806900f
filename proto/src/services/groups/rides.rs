//! Rides: what engines of groups piggyback on heartbeats. One that is longer than a heartbeat has
//! room for leaves in pieces, on heartbeats that follow each other.
//!
//! A heartbeat reaches everybody or nobody, and so does a ride in pieces: it counts as sent when
//! its last piece has left, and as arrived when all pieces have. A sender that crashes in between
//! has sent nothing, as far as engines can tell.
//!
//! ```text
//! 0   ride                                                           whole
//! 1   generation u64   member u16   number u64   total u32   at u32   bytes   a piece
//! ```

use super::message::Ride;
use crate::group::MemberId;
use fide_wire::frame::bytes::Reader;
use fide_wire::frame::{Channel, items};
use std::collections::BTreeMap;

/// Most bytes of a ride.
pub const RIDE_MAX: usize = 48 << 10;
/// Bytes of a piece before its own.
const PIECE_HEAD: usize = 27;
/// Less room than this in a heartbeat is left empty.
const PIECE_MIN: usize = 128;

const WHOLE: u8 = 0;
const PIECE: u8 = 1;

/// A ride that waits to leave, whole or in part.
pub(super) struct Riding {
    generation: u64,
    from: MemberId,
    /// Counts this member's rides.
    number: u64,
    bytes: Vec<u8>,
    /// How much of it has left.
    left: usize,
    /// How much of it the heartbeat carries that was written last.
    aboard: usize,
}

impl Riding {
    /// None of a ride that is too long.
    pub fn new(ride: &Ride, number: u64) -> Option<Self> {
        let bytes = postcard::to_stdvec(ride).ok().filter(|bytes| bytes.len() <= RIDE_MAX)?;
        Some(Self { generation: ride.generation, from: ride.from, number, bytes, left: 0, aboard: 0 })
    }

    /// Adds what fits to the body of a heartbeat that has `room` bytes in all.
    pub fn board(&mut self, room: usize, body: &mut Vec<u8>) {
        self.aboard = 0;
        let free = room.saturating_sub(body.len() + items::HEAD_LEN);
        let rest = &self.bytes[self.left..];
        let mut item = Vec::with_capacity(free.min(PIECE_HEAD + rest.len()));
        let length = if self.left == 0 && rest.len() < free {
            item.push(WHOLE);
            rest.len()
        } else {
            let length = rest.len().min(free.saturating_sub(PIECE_HEAD));
            if length < rest.len().min(PIECE_MIN) {
                return;
            }
            item.push(PIECE);
            item.extend_from_slice(&self.generation.to_be_bytes());
            item.extend_from_slice(&self.from.0.to_be_bytes());
            item.extend_from_slice(&self.number.to_be_bytes());
            for field in [self.bytes.len(), self.left] {
                item.extend_from_slice(&(field as u32).to_be_bytes());
            }
            length
        };
        item.extend_from_slice(&rest[..length]);
        if items::push(body, room, Channel::Groups, &item) {
            self.aboard = length;
        }
    }

    /// The heartbeat that was written last carries nothing of it any more.
    pub fn leave_behind(&mut self) {
        self.aboard = 0;
    }

    /// The heartbeat that was written last has left: whether it carried the end of this ride.
    pub fn handle_sent(&mut self) -> bool {
        self.left += std::mem::take(&mut self.aboard);
        self.left == self.bytes.len()
    }

    /// Bytes in all, if any have left or are aboard.
    pub fn len(&self) -> usize {
        if self.left + self.aboard > 0 { self.bytes.len() } else { 0 }
    }

    /// Whether the heartbeat that was written last carries some of it, and not the end.
    pub fn has_more(&self) -> bool {
        self.aboard > 0 && self.left + self.aboard < self.bytes.len()
    }

    /// Bytes that are left to be sent of a ride of which a part has left.
    pub fn midway(&self) -> usize {
        if self.left > 0 { self.bytes.len() - self.left } else { 0 }
    }
}

/// The ride of one member that has come in part.
#[derive(Default)]
pub(super) struct Arriving {
    number: u64,
    total: usize,
    pieces: BTreeMap<usize, Vec<u8>>,
    /// Bytes of them.
    came: usize,
}

/// An item of a heartbeat on the channel of groups.
pub(super) enum Came<'a> {
    Whole(Ride),
    Piece { generation: u64, from: MemberId, piece: Piece<'a> },
}

pub(super) struct Piece<'a> {
    number: u64,
    total: usize,
    at: usize,
    bytes: &'a [u8],
}

/// Reads one.
pub(super) fn read(item: &[u8]) -> Option<Came<'_>> {
    let (kind, rest) = item.split_first()?;
    match *kind {
        WHOLE => postcard::from_bytes(rest).ok().map(Came::Whole),
        PIECE => {
            let mut r = Reader::new(rest);
            let (generation, from, number) = (r.u64()?, MemberId(r.u16()?), r.u64()?);
            let (total, at, bytes) = (r.u32()? as usize, r.u32()? as usize, r.rest());
            let is_sane = number > 0 && total <= RIDE_MAX && !bytes.is_empty() && at.checked_add(bytes.len())? <= total;
            is_sane.then_some(Came::Piece { generation, from, piece: Piece { number, total, at, bytes } })
        }
        _ => None,
    }
}

impl Arriving {
    /// The whole, if this piece was the last that was missing. Pieces come in any order, because
    /// each may come by another path.
    pub fn take(&mut self, piece: &Piece<'_>) -> Option<Ride> {
        if piece.number < self.number {
            return None;
        }
        if piece.number > self.number {
            // What is missing of the one before will not come.
            *self = Self { number: piece.number, total: piece.total, ..Self::default() };
        }
        if piece.total != self.total || self.pieces.contains_key(&piece.at) || self.came + piece.bytes.len() > self.total {
            return None;
        }
        self.came += piece.bytes.len();
        self.pieces.insert(piece.at, piece.bytes.to_vec());
        if self.came < self.total {
            return None;
        }
        let mut whole = Vec::with_capacity(self.total);
        for (at, bytes) in std::mem::take(&mut self.pieces) {
            if at != whole.len() {
                return None;
            }
            whole.extend_from_slice(&bytes);
        }
        postcard::from_bytes(&whole).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consensus::log;

    fn ride(len: usize) -> Ride {
        let snapshot = (0..len).map(|n| n as u8).collect::<Vec<_>>();
        let value = crate::group::Body::Value(snapshot.into());
        let id = crate::group::EntryId { proposer: MemberId(1), number: 1 };
        let entry = crate::group::Entry { id, body: value };
        let message = log::Message::Engine { epoch: 1, body: crate::consensus::huc::Message::Body(entry).into() };
        Ride { generation: 7, from: MemberId(3), message }
    }

    fn pieces(riding: &mut Riding, rooms: &[usize]) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for room in rooms.iter().cycle().take(2_000) {
            let mut body = Vec::new();
            riding.board(*room, &mut body);
            assert!(body.len() <= *room);
            out.extend(items::read(&body).map(|item| item.unwrap().bytes.to_vec()));
            if riding.handle_sent() {
                return out;
            }
            assert!(out.len() < 1_000, "it never ends");
        }
        out
    }

    fn put_together(arriving: &mut Arriving, items: &[Vec<u8>]) -> Vec<Ride> {
        let came = |item: &Vec<u8>| match read(item).unwrap() {
            Came::Whole(ride) => Some(ride),
            Came::Piece { generation: 7, from: MemberId(3), piece } => arriving.take(&piece),
            Came::Piece { .. } => panic!("another's piece"),
        };
        items.iter().filter_map(came).collect()
    }

    #[test]
    fn a_ride_comes_as_it_left_in_any_room_and_order() {
        for len in [0, 1, 100, 1_350, 1_400, 5_000, 15_000] {
            for rooms in [&[1_421][..], &[600, 40, 1_421], &[200], &[180, 20]] {
                let ride = ride(len);
                let mut riding = Riding::new(&ride, 1).unwrap();
                let mut items = pieces(&mut riding, rooms);
                let is_whole = postcard::to_stdvec(&ride).unwrap().len() + 1 + items::HEAD_LEN <= rooms[0];
                assert_eq!(items.len() == 1, is_whole, "{len} bytes in {rooms:?}");
                for _ in 0..2 {
                    let mut arriving = Arriving::default();
                    assert_eq!(put_together(&mut arriving, &items), std::slice::from_ref(&ride));
                    items.reverse();
                }
                items.extend(items.clone());
                let once = put_together(&mut Arriving::default(), &items);
                assert!(once.len() == 1 || items.len() == 2, "pieces that come twice are taken once");
            }
        }
        assert!(Riding::new(&ride(RIDE_MAX), 1).is_none());
    }

    #[test]
    fn what_is_missing_is_never_made_up() {
        let mut first = pieces(&mut Riding::new(&ride(4_000), 1).unwrap(), &[1_421]);
        let second = pieces(&mut Riding::new(&ride(4_001), 2).unwrap(), &[1_421]);
        let lost = first.remove(1);
        let mut arriving = Arriving::default();
        assert!(put_together(&mut arriving, &first).is_empty());
        assert_eq!(put_together(&mut arriving, &second), [ride(4_001)]);
        assert!(put_together(&mut arriving, &[lost]).is_empty(), "late");
    }

    #[test]
    fn items_that_are_cut_short_or_lie_are_refused() {
        let items = pieces(&mut Riding::new(&ride(4_000), 1).unwrap(), &[1_421]);
        for length in 0..=PIECE_HEAD {
            assert!(read(&items[1][..length]).is_none());
        }
        let with = |at: usize, field: u32| {
            let mut item = items[1].clone();
            item[at..at + 4].copy_from_slice(&field.to_be_bytes());
            item
        };
        assert!(read(&with(19, RIDE_MAX as u32 + 1)).is_none(), "total");
        assert!(read(&with(23, u32::MAX)).is_none(), "behind the end");
        let mut arriving = Arriving::default();
        // Pieces that overlap make no whole.
        assert!(put_together(&mut arriving, &[items[0].clone(), with(23, 1), with(23, 2), items[2].clone()]).is_empty());
    }
}
