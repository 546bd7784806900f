//! States of applications that are too large for links: what agrees on a snapshot names it, and
//! each host fetches it by itself, from any host that has it.
//!
//! The service says what is to be fetched from whom ([`super::Event::Fetch`]) and what this host
//! has for others ([`super::Event::Hold`]); the shell has the connections. Until a state is here,
//! the entries before it stay where there are some, and a member that has only just joined does not
//! run for its applications.

use super::Group;
use fide_wire::session::SNAPSHOT_MAX;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of each piece of a state but the last.
pub const PIECE_LEN: usize = 32 << 10;
/// When no host could give a state, all are asked again after so long (ns).
const AGAIN_NS: u64 = 200_000_000;
/// So often all hosts that live said that they have not got it: this member asks for a newer one,
/// as one that joins.
const ROUNDS_MAX: u32 = 5;

/// Which state: the same name is never given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LargeId {
    /// The host whose application handed it in.
    pub node: u32,
    /// That host's incarnation then.
    pub incarnation: u32,
    /// Counted from 1 in that incarnation.
    pub serial: u64,
}

/// A state by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LargeRef {
    /// Which.
    pub id: LargeId,
    /// Its bytes.
    pub len: u64,
}

impl LargeRef {
    /// Whether an agent can have such a state.
    #[must_use]
    pub const fn is_sane(&self) -> bool {
        self.len > 0 && self.len <= SNAPSHOT_MAX
    }
}

/// A state, in pieces of [`PIECE_LEN`] bytes: nobody has to find room for it, or to copy it, in one
/// go. Clones share the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Large {
    at: LargeRef,
    pieces: Arc<[Box<[u8]>]>,
}

impl Large {
    /// Its name.
    #[must_use]
    pub const fn at(&self) -> LargeRef {
        self.at
    }

    /// Its bytes, piece by piece.
    #[must_use]
    pub fn pieces(&self) -> &Arc<[Box<[u8]>]> {
        &self.pieces
    }

    /// The rest of the piece that has this byte.
    #[must_use]
    pub fn bytes_from(&self, at: u64) -> &[u8] {
        let piece = usize::try_from(at).unwrap_or(usize::MAX) / PIECE_LEN;
        self.pieces.get(piece).map_or(&[], |piece| &piece[(at as usize % PIECE_LEN).min(piece.len())..])
    }
}

/// A state that is here, either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole<'a> {
    /// One that links take.
    Bytes(&'a [u8]),
    /// A large one.
    Large(&'a Large),
}

impl<'a> Whole<'a> {
    /// Its bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        match self {
            Whole::Bytes(bytes) => bytes.len() as u64,
            Whole::Large(large) => large.at.len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some of its bytes, from this one on; none only at its end.
    #[must_use]
    pub fn bytes_from(&self, at: u64) -> &'a [u8] {
        match self {
            Whole::Bytes(bytes) => usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or(&[]),
            Whole::Large(large) => large.bytes_from(at),
        }
    }
}

/// The bytes of a state that come one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Builder {
    whole: Vec<Box<[u8]>>,
    last: Vec<u8>,
}

impl From<Vec<u8>> for Builder {
    fn from(bytes: Vec<u8>) -> Self {
        let mut builder = Self::default();
        builder.push(&bytes);
        builder
    }
}

impl Builder {
    /// The next ones.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE_LEN - self.last.len()));
            self.last.reserve_exact(if self.last.is_empty() { PIECE_LEN } else { 0 });
            self.last.extend_from_slice(now);
            if self.last.len() == PIECE_LEN {
                self.whole.push(std::mem::take(&mut self.last).into_boxed_slice());
            }
            bytes = later;
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.whole.len() * PIECE_LEN + self.last.len()) as u64
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them in one piece.
    #[must_use]
    pub fn into_bytes(mut self) -> Vec<u8> {
        if self.whole.is_empty() {
            return self.last;
        }
        self.whole.push(self.last.into_boxed_slice());
        self.whole.concat()
    }

    /// As the state of this name.
    #[must_use]
    pub fn into_large(mut self, id: LargeId) -> Large {
        let at = LargeRef { id, len: self.len() };
        if !self.last.is_empty() {
            self.whole.push(self.last.into_boxed_slice());
        }
        Large { at, pieces: self.whole.into() }
    }
}

/// What became of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// Here it is.
    Whole(Large),
    /// That host has not got it.
    Missing,
    /// That host could not be asked, or stopped in the middle.
    Failed,
}

/// What a group is fetching.
#[derive(Debug, Default)]
pub(super) struct Fetching {
    what: Option<LargeRef>,
    /// From whom, while an answer is to come.
    pub(super) from: Option<u32>,
    /// Who did not give it; `true`: it has not got it.
    refused: BTreeMap<u32, bool>,
    rounds: u32,
    /// Nobody is asked before then.
    pub(super) not_before_ns: u64,
}

/// What is to be done about a state that is not here.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This host is asked for it.
    Ask(LargeRef, u32),
    /// Nothing now.
    Wait,
    /// None of the hosts that live has it any more.
    Superseded,
    /// No other host lives.
    Lost,
}

impl Fetching {
    /// Whom to ask for `what`, out of these.
    pub(super) fn next(&mut self, now_ns: u64, what: LargeRef, living: &BTreeSet<u32>) -> Next {
        if self.what != Some(what) {
            *self = Self { what: Some(what), ..Self::default() };
        }
        if self.from.is_some_and(|from| living.contains(&from)) || now_ns < self.not_before_ns {
            return Next::Wait;
        }
        if living.is_empty() {
            return Next::Lost;
        }
        let is_open = |node: &&u32| !self.refused.contains_key(*node);
        let maker = Some(&what.id.node).filter(|maker| living.contains(*maker)).filter(is_open);
        if let Some(node) = maker.or_else(|| living.iter().find(is_open)).copied() {
            self.from = Some(node);
            return Next::Ask(what, node);
        }
        let have_not = living.iter().all(|node| self.refused.get(node) == Some(&true));
        self.rounds = if have_not { self.rounds + 1 } else { 0 };
        self.refused.clear();
        self.not_before_ns = now_ns.saturating_add(AGAIN_NS);
        if self.rounds >= ROUNDS_MAX { Next::Superseded } else { Next::Wait }
    }

    /// `from` did not give it.
    pub(super) fn refused(&mut self, what: LargeId, has_not: bool) {
        if self.what.is_some_and(|of| of.id == what)
            && let Some(from) = self.from.take()
        {
            self.refused.insert(from, has_not);
        }
    }
}

impl Group {
    /// The state that the snapshot here stands for, if it is not here.
    pub(super) fn missing(&self) -> Option<LargeRef> {
        self.state.large().filter(|at| self.large.as_ref().is_none_or(|large| large.at() != *at))
    }

    /// When something is to be fetched, or asked for again.
    pub(super) fn fetch_at_ns(&self) -> u64 {
        let waits = self.fetching.from.is_none() && (self.missing().is_some() || self.wants_offered());
        if waits && self.member.is_some() { self.fetching.not_before_ns.max(1) } else { u64::MAX }
    }

    /// Whether the state that another host keeps would let entries go here.
    pub(super) fn wants_offered(&self) -> bool {
        self.offered.is_some_and(|(index, _)| self.state.has_applied(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LargeId = LargeId { node: 1, incarnation: 2, serial: 3 };

    #[test]
    fn a_state_is_the_same_in_whatever_pieces_it_came() {
        let bytes: Vec<u8> = (0..3 * PIECE_LEN + 17).map(|n| (n % 251) as u8).collect();
        for step in [1000, PIECE_LEN - 1, PIECE_LEN, PIECE_LEN + 1, bytes.len()] {
            let mut builder = Builder::default();
            bytes.chunks(step).for_each(|piece| builder.push(piece));
            assert_eq!(builder.len(), bytes.len() as u64);
            assert_eq!(builder.clone().into_bytes(), bytes);
            let large = builder.into_large(ID);
            assert_eq!((large.at().len, large.pieces().len()), (bytes.len() as u64, 4));
            let mut read = Vec::new();
            while read.len() < bytes.len() {
                let more = large.bytes_from(read.len() as u64);
                read.extend_from_slice(&more[..more.len().min(777)]);
            }
            assert_eq!(read, bytes);
            assert_eq!(large.bytes_from(bytes.len() as u64), b"");
            assert_eq!(large.bytes_from(u64::MAX), b"");
        }
        let mut whole = Builder::default();
        whole.push(&bytes[..PIECE_LEN]);
        assert_eq!(whole.into_large(ID).pieces().len(), 1, "no empty piece");
    }

    #[test]
    fn who_made_a_state_is_asked_first_and_then_everybody_until_nobody_has_it() {
        let what = LargeRef { id: ID, len: 9 };
        let all = BTreeSet::from([0, 1, 4]);
        let mut fetching = Fetching::default();
        assert_eq!(fetching.next(0, what, &all), Next::Ask(what, 1));
        assert_eq!(fetching.next(5, what, &all), Next::Wait, "it is under way");
        fetching.refused(ID, false);
        assert_eq!(fetching.next(5, what, &all), Next::Ask(what, 0));
        // Who is asked dies.
        assert_eq!(fetching.next(6, what, &BTreeSet::from([4])), Next::Ask(what, 4));
        fetching.refused(ID, true);
        assert_eq!(fetching.next(7, what, &BTreeSet::from([1, 4])), Next::Wait, "node 1 may have it, but did not answer");
        let mut now = 7;
        let mut asked = 0;
        let all = BTreeSet::from([1, 4]);
        loop {
            match fetching.next(now, what, &all) {
                Next::Ask(..) => {
                    fetching.refused(ID, true);
                    asked += 1;
                }
                Next::Wait => now += AGAIN_NS,
                last => break assert_eq!(last, Next::Superseded),
            }
        }
        assert_eq!(asked, all.len() as u32 * ROUNDS_MAX);
        assert_eq!(fetching.next(now + AGAIN_NS, what, &BTreeSet::new()), Next::Lost);
        // Another one begins anew.
        let other = LargeRef { id: LargeId { serial: 4, ..ID }, len: 9 };
        assert_eq!(fetching.next(now, other, &all), Next::Ask(other, 1));
        fetching.refused(ID, true);
        assert_eq!(fetching.next(now, other, &all), Next::Wait, "that was said of the former");
    }
}
