//! Messages of replicated logs (channel [`super::Channel::Groups`]): their common head, batches of entries, and the
//! rounds of LOWI, which software and hardware members share.
//!
//! ```text
//! head   0  u32 group   4  u16 from   6  u8 engine   7  u8 type   8  u64 generation
//! round 16  u64 round  24  u64 instance  32  u16 entries  34  u16 zero  36  u32 bytes  40  batch
//! batch  entries, each: u16 proposer  u8 type  u8 zero  u32 length  u64 number  bytes, zeros to a multiple of 8
//! ```
//! Every field of a round is aligned to its size behind the frame's fixed header, and a batch is a whole
//! number of 8-byte words: a hardware parser takes them from fixed lanes. The stamp of a round is the
//! frame's `sent_ns`.

use super::bytes::Reader;

/// What every message of a group begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    /// The group, [`crate::name_id`] of its name.
    pub group: u32,
    /// The member that sent it.
    pub from: u16,
    /// Its engine ([`Engine`]).
    pub engine: u8,
    /// The type of the message, by engine.
    pub kind: u8,
    /// Grows when the group changes its engine or starts over: older messages are ignored.
    pub generation: u64,
}

/// Numbers of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Engine {
    /// The log over the engines: joins, state, links.
    Log = 0,
    /// Hierarchical stabilizing uniform consensus.
    Hsuc = 1,
    /// Heartbeat uniform consensus.
    Huc = 2,
    /// Looped one-way imposition.
    Lowi = 3,
    /// One-sided Paxos.
    Paxos = 4,
    /// Raft.
    Raft = 5,
}

/// Types of LOWI's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LowiKind {
    /// A round, one copy on every path ([`super::Kind::Copy`]).
    Round = 1,
    /// Entries for the leader.
    Forward = 2,
    /// A copy was missing: leave safely.
    Exit = 3,
    /// The sender waits for the first round.
    Ready = 4,
    /// Part of a round that exceeds one frame ([`super::fragment::Fragment`]), a copy on every
    /// path.
    Part = 5,
}

impl Head {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Appends it to a body.
    pub fn write(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.group.to_be_bytes());
        body.extend_from_slice(&self.from.to_be_bytes());
        body.extend_from_slice(&[self.engine, self.kind]);
        body.extend_from_slice(&self.generation.to_be_bytes());
    }

    /// Reads it off the front of a body.
    #[must_use]
    pub fn read<'a>(r: &mut Reader<'a>) -> Option<Self> {
        Some(Self { group: r.u32()?, from: r.u16()?, engine: r.u8()?, kind: r.u8()?, generation: r.u64()? })
    }
}

/// What an entry of a batch says. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// Bytes of the application.
    Value = 0,
    /// A member joins; its id is the value.
    Join = 1,
    /// A member leaves.
    Leave = 2,
    /// The group changes its engine.
    Switch = 3,
}

/// One entry of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry<'a> {
    /// The member that proposed it.
    pub proposer: u16,
    /// What it says ([`EntryKind`]).
    pub kind: u8,
    /// The how-manieth proposal of that member it is.
    pub number: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Bytes before an entry's own.
    pub const HEAD_LEN: usize = 16;

    /// Bytes that this entry takes in a batch.
    #[must_use]
    pub const fn size(bytes: usize) -> usize {
        Self::HEAD_LEN + bytes.next_multiple_of(8)
    }

    /// Appends it to a batch.
    pub fn write(&self, batch: &mut Vec<u8>) {
        let begin = batch.len();
        batch.extend_from_slice(&self.proposer.to_be_bytes());
        batch.extend_from_slice(&[self.kind, 0]);
        batch.extend_from_slice(&(self.bytes.len() as u32).to_be_bytes());
        batch.extend_from_slice(&self.number.to_be_bytes());
        batch.extend_from_slice(self.bytes);
        batch.resize(begin + Self::size(self.bytes.len()), 0);
    }

    /// Reads it off the front of a batch. The padding must be zeros, so that a batch has one encoding only.
    #[must_use]
    pub fn read(r: &mut Reader<'a>) -> Option<Self> {
        let (proposer, kind, zero, length, number) = (r.u16()?, r.u8()?, r.u8()?, r.u32()? as usize, r.u64()?);
        let bytes = r.take(length)?;
        let padding = r.take(length.checked_next_multiple_of(8)? - length)?;
        (zero == 0 && padding.iter().all(|b| *b == 0)).then_some(Self { proposer, kind, number, bytes })
    }
}

/// A round of LOWI (Nano-consensus Alg. 3), behind its [`Head`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Round<'a> {
    /// Its number.
    pub round: u64,
    /// The instance that it decides; with an empty batch, the next to be decided.
    pub instance: u64,
    /// How many entries its batch has; 0 is ⊥.
    pub entries: u16,
    /// The entries, to be read with [`Entry::read`].
    pub batch: &'a [u8],
}

impl<'a> Round<'a> {
    /// Bytes before the batch.
    pub const HEAD_LEN: usize = 24;

    /// Appends it to a body.
    pub fn write(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.round.to_be_bytes());
        body.extend_from_slice(&self.instance.to_be_bytes());
        body.extend_from_slice(&self.entries.to_be_bytes());
        body.extend_from_slice(&[0, 0]);
        body.extend_from_slice(&(self.batch.len() as u32).to_be_bytes());
        body.extend_from_slice(self.batch);
    }

    /// Reads what follows the head. Entries and bytes must be as many as stated.
    #[must_use]
    pub fn read(r: &mut Reader<'a>) -> Option<Self> {
        let (round, instance, entries, zero, length) = (r.u64()?, r.u64()?, r.u16()?, r.u16()?, r.u32()?);
        let batch = r.take(length as usize)?;
        let mut rest = Reader::new(batch);
        for _ in 0..entries {
            Entry::read(&mut rest)?;
        }
        let is_whole = zero == 0 && rest.rest().is_empty() && r.rest().is_empty();
        is_whole.then_some(Self { round, instance, entries, batch })
    }
}
