//! A batch as bytes in a region. The first 12 bytes say which value of which slot it is, so that a reader who comes too late sees it.
//!
//! `slot u64 | proposer u16 | variant u16 | entries u32`, then each entry: `proposer u16 | number u64 | kind u8`, then for kind 0 `length u32` and
//! the bytes, for 1 (join) and 2 (leave) `member u16`, for 3 (switch) `engine u8`. All little-endian.

use super::word::ValueId;
use crate::consensus::batch::check_entry;
use crate::consensus::{Instance, Kind};
use crate::group::{Batch, Body, Entry, EntryId, MemberId, Refused, VALUE_MAX, Value};
use std::collections::BTreeSet;

/// Most entries that a batch may have.
pub const BATCH_MAX: usize = 4096;

/// Whether an entry is decided alone.
#[must_use]
pub fn is_barrier(entry: &Entry) -> bool {
    !matches!(entry.body, Body::Value(_))
}

/// Whether a correct member can have made this batch.
///
/// # Errors
/// [`Refused::Malformed`] for one that is empty, has an entry twice or one that cannot be, or a barrier with others; [`Refused::TooLarge`].
pub fn judge(batch: &Batch) -> Result<(), Refused> {
    if batch.is_empty() || batch.len() > 1 && batch.iter().any(is_barrier) {
        return Err(Refused::Malformed);
    }
    if batch.len() > BATCH_MAX {
        return Err(Refused::TooLarge);
    }
    batch.iter().try_for_each(check_entry)?;
    let once = batch.len() == 1 || batch.iter().map(|entry| entry.id).collect::<BTreeSet<_>>().len() == batch.len();
    if once { Ok(()) } else { Err(Refused::Malformed) }
}

/// For a region.
#[must_use]
pub fn encode(slot: Instance, id: ValueId, batch: &Batch) -> Value {
    let mut bytes = Vec::with_capacity(16 + batch.len() * 32);
    bytes.extend(slot.to_le_bytes());
    bytes.extend(id.proposer.0.to_le_bytes());
    bytes.extend(id.variant.to_le_bytes());
    bytes.extend((batch.len() as u32).to_le_bytes());
    for entry in batch.iter() {
        bytes.extend(entry.id.proposer.0.to_le_bytes());
        bytes.extend(entry.id.number.to_le_bytes());
        match &entry.body {
            Body::Value(value) => {
                bytes.push(0);
                bytes.extend((value.len() as u32).to_le_bytes());
                bytes.extend(value.iter());
            }
            Body::Join(member) => {
                bytes.push(1);
                bytes.extend(member.0.to_le_bytes());
            }
            Body::Leave(member) => {
                bytes.push(2);
                bytes.extend(member.0.to_le_bytes());
            }
            Body::Switch(kind) => {
                bytes.push(3);
                bytes.push(Kind::ALL.iter().position(|k| k == kind).unwrap_or(0) as u8);
            }
        }
    }
    bytes.into()
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(Refused::Malformed)?;
        self.0 = tail;
        Ok(*head)
    }

    fn member(&mut self) -> Result<MemberId, Refused> {
        Ok(MemberId(u16::from_le_bytes(self.take()?)))
    }

    fn value(&mut self) -> Result<Value, Refused> {
        let length = u32::from_le_bytes(self.take()?) as usize;
        if length > VALUE_MAX {
            return Err(Refused::TooLarge);
        }
        let (head, tail) = self.0.split_at_checked(length).ok_or(Refused::Malformed)?;
        self.0 = tail;
        Ok(head.into())
    }
}

/// What a region holds, if it is this value of this slot.
///
/// # Errors
/// [`Refused::OldInstance`] when the region was used for another slot, [`Refused::Malformed`], [`Refused::TooLarge`].
pub fn decode(slot: Instance, id: ValueId, bytes: &[u8]) -> Result<Batch, Refused> {
    let mut reader = Reader(bytes);
    if u64::from_le_bytes(reader.take()?) != slot {
        return Err(Refused::OldInstance);
    }
    let written = ValueId { proposer: reader.member()?, variant: u16::from_le_bytes(reader.take()?) };
    let entries = u32::from_le_bytes(reader.take()?) as usize;
    if written != id || entries == 0 {
        return Err(Refused::Malformed);
    }
    if entries > BATCH_MAX {
        return Err(Refused::TooLarge);
    }
    let mut batch = Vec::with_capacity(entries);
    for _ in 0..entries {
        let id = EntryId { proposer: reader.member()?, number: u64::from_le_bytes(reader.take()?) };
        let body = match reader.take::<1>()? {
            [0] => Body::Value(reader.value()?),
            [1] => Body::Join(reader.member()?),
            [2] => Body::Leave(reader.member()?),
            [3] => Body::Switch(*Kind::ALL.get(usize::from(reader.take::<1>()?[0])).ok_or(Refused::Malformed)?),
            _ => return Err(Refused::Malformed),
        };
        batch.push(Entry { id, body });
    }
    if !reader.0.is_empty() {
        return Err(Refused::Malformed);
    }
    let batch: Batch = batch.into();
    judge(&batch)?;
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: ValueId = ValueId { proposer: MemberId(2), variant: 0 };

    fn entry(number: u64, body: Body) -> Entry {
        Entry { id: EntryId { proposer: MemberId(2), number }, body }
    }

    #[test]
    fn every_body_comes_back() {
        for body in [
            Body::Value([1, 2, 3].as_slice().into()),
            Body::Join(MemberId(9)),
            Body::Leave(MemberId(1)),
            Body::Switch(Kind::Lowi),
        ] {
            let batch: Batch = [entry(7, body)].into();
            let bytes = encode(5, ID, &batch);
            assert_eq!(decode(5, ID, &bytes), Ok(batch));
            assert_eq!(decode(6, ID, &bytes), Err(Refused::OldInstance));
            assert_eq!(decode(5, ValueId { variant: 1, ..ID }, &bytes), Err(Refused::Malformed));
            for cut in 0..bytes.len() {
                assert!(decode(5, ID, &bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn what_no_correct_member_makes_is_refused() {
        assert_eq!(judge(&[].into()), Err(Refused::Malformed));
        let two: Batch = [entry(1, Body::Join(MemberId(3))), entry(2, Body::Value([].into()))].into();
        assert_eq!(judge(&two), Err(Refused::Malformed));
        let large: Batch = [entry(1, Body::Value(vec![0; VALUE_MAX + 1].into()))].into();
        assert_eq!(judge(&large), Err(Refused::TooLarge));
        let value = |number| entry(number, Body::Value([].into()));
        assert_eq!(judge(&[value(0)].into()), Err(Refused::Malformed));
        assert_eq!(judge(&[value(1), value(1)].into()), Err(Refused::Malformed));
        assert_eq!(judge(&[value(1), value(2)].into()), Ok(()));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), good: bool) {
            let mut bytes = bytes;
            if good && bytes.len() >= 12 {
                bytes[..8].copy_from_slice(&5u64.to_le_bytes());
                bytes[8..12].copy_from_slice(&[2, 0, 0, 0]);
            }
            if let Ok(batch) = decode(5, ID, &bytes) {
                prop_assert_eq!(&*encode(5, ID, &batch), &bytes[..]);
            }
        }
    }
}
