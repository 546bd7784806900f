//! Bytes as a source of decisions, and values that are nearly right.

use std::sync::{Arc, OnceLock};

use fide_proto::consensus::{Instance, Kind};
use fide_proto::group::{Batch, Body, Entry, EntryId, MemberId, MemberSet, VALUE_MAX, Value};

/// Read from the front; zeros when there is nothing left.
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.u8()))
    }

    /// 0 when there is nothing left.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.u8()) % n.max(1)
    }

    /// Never when there is nothing left.
    pub fn one_in(&mut self, n: usize) -> bool {
        n < 2 || self.below(n) == n - 1
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn take(&mut self, n: usize) -> Vec<u8> {
        (0..n.min(self.0.len())).map(|_| self.u8()).collect()
    }

    /// A number at or beside this one, or at a limit.
    pub fn near(&mut self, number: u64) -> u64 {
        match self.below(16) {
            0..=3 => number,
            4 => number.wrapping_add(1),
            5 => number.wrapping_sub(1),
            6 => number.wrapping_add(2),
            7 => number.wrapping_add(u64::from(self.u8())),
            8 => 0,
            9 => u64::MAX,
            10 => u64::MAX - 1,
            11 => 1 << 63,
            12 => u64::MAX / 2 - 1,
            13 => 1 << 48,
            14 => u64::from(self.u8()),
            _ => self.u64(),
        }
    }

    /// The same of 16 bits.
    pub fn near16(&mut self, number: u16) -> u16 {
        match self.below(8) {
            0..=2 => number,
            3 => number.wrapping_add(1),
            4 => number.wrapping_sub(1),
            5 => 0,
            6 => u16::MAX,
            _ => u16::from(self.u8()),
        }
    }
}

/// Zeros; large ones are made once.
pub fn zeros(len: usize) -> Value {
    static LARGE: OnceLock<[Value; 3]> = OnceLock::new();
    let large = LARGE.get_or_init(|| [VALUE_MAX - 1, VALUE_MAX, VALUE_MAX + 1].map(|n| vec![0; n].into()));
    large.iter().find(|value| value.len() == len).cloned().unwrap_or_else(|| vec![0; len].into())
}

/// What a message that is nearly right is near to.
#[derive(Clone, Debug)]
pub struct Near {
    /// Who is spoken to.
    pub me: MemberId,
    pub members: MemberSet,
    /// The instance that is open there.
    pub open: Instance,
    /// The next number of an entry.
    pub number: u64,
    pub now_ns: u64,
}

impl Near {
    pub fn member(&self, bytes: &mut Bytes) -> MemberId {
        match bytes.below(12) {
            0..=7 => self.members.iter().nth(bytes.below(self.members.len())).unwrap_or(self.me),
            8 => self.me,
            9 => MemberId(0),
            10 => MemberId(u16::MAX),
            _ => MemberId(u16::from(bytes.u8())),
        }
    }

    pub fn set(&self, bytes: &mut Bytes) -> MemberSet {
        match bytes.below(4) {
            0 => self.members.clone(),
            1 => (0..bytes.below(80) as u16).map(MemberId).collect(),
            _ => (0..bytes.below(6)).map(|_| self.member(bytes)).collect(),
        }
    }

    pub fn instance(&self, bytes: &mut Bytes) -> Instance {
        bytes.near(self.open)
    }

    pub fn id(&self, bytes: &mut Bytes) -> EntryId {
        EntryId { proposer: self.member(bytes), number: bytes.near(self.number) }
    }

    pub fn value(&self, bytes: &mut Bytes) -> Value {
        match bytes.below(32) {
            0..=19 => Arc::new([7]),
            20 => zeros(0),
            21..=23 => zeros(2000),
            24 => zeros(VALUE_MAX / 2),
            25 => zeros(VALUE_MAX - 1),
            26 => zeros(VALUE_MAX),
            27 => zeros(VALUE_MAX + 1),
            _ => bytes.take(8).into(),
        }
    }

    pub fn body(&self, bytes: &mut Bytes) -> Body {
        match bytes.below(12) {
            0..=8 => Body::Value(self.value(bytes)),
            9 => Body::Join(self.member(bytes)),
            10 => Body::Leave(self.member(bytes)),
            _ => Body::Switch(bytes.pick(&Kind::ALL)),
        }
    }

    pub fn entry(&self, bytes: &mut Bytes) -> Entry {
        Entry { id: self.id(bytes), body: self.body(bytes) }
    }

    pub fn batch(&self, bytes: &mut Bytes) -> Batch {
        match bytes.below(12) {
            0..=5 => [self.entry(bytes)].into(),
            6 => [].into(),
            7 => {
                let entry = self.entry(bytes);
                [entry.clone(), entry].into()
            }
            8 => {
                let n = bytes.pick(&[64u64, 65, 255, 256, 257, 4096, 4097]);
                let id = self.id(bytes);
                let numbers = id.number..id.number.saturating_add(n);
                numbers.map(|number| Entry { id: EntryId { number, ..id }, body: Body::Value(zeros(1)) }).collect()
            }
            _ => (0..bytes.below(6)).map(|_| self.entry(bytes)).collect(),
        }
    }

    /// A batch that was right, with something changed.
    pub fn mangled(&self, bytes: &mut Bytes, batch: &Batch) -> Batch {
        let mut entries = batch.to_vec();
        let at = bytes.below(entries.len());
        match bytes.below(6) {
            0 => return self.batch(bytes),
            1 => entries.push(self.entry(bytes)),
            2 if !entries.is_empty() => _ = entries.remove(at),
            3 if !entries.is_empty() => entries[at].id = self.id(bytes),
            4 if !entries.is_empty() => entries[at].body = self.body(bytes),
            _ if !entries.is_empty() => entries.push(entries[at].clone()),
            _ => {}
        }
        entries.into()
    }
}
