//! Limits of batches and of what waits for one, alike in every engine that batches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::group::{Batch, Body, Entry, EntryId, MemberId, Refused, VALUE_MAX};

/// Most entries of one batch.
pub const BATCH_ENTRIES: usize = 256;

/// Most bytes of one batch, as [`encoded_len`] counts; one entry may always be in it.
pub const BATCH_BYTES: usize = VALUE_MAX;

/// Most entries of one member that wait.
pub const WAITING_ENTRIES: usize = 256;

/// Most bytes of one member's entries that wait, as [`encoded_len`] counts.
pub const WAITING_BYTES: usize = 4 * VALUE_MAX;
const _: () = assert!(WAITING_BYTES >= VALUE_MAX + ENTRY_OVERHEAD, "one entry may always wait");

/// Bytes of an entry beside its value, at most: an id of 10, a tag, a length, and some to spare for an encoding that is less frugal.
pub const ENTRY_OVERHEAD: usize = 24;

/// Most bytes that an entry takes in any encoding used here.
#[must_use]
pub fn encoded_len(entry: &Entry) -> usize {
    ENTRY_OVERHEAD
        + match &entry.body {
            Body::Value(value) => value.len(),
            Body::Join(_) | Body::Leave(_) | Body::Switch(_) => 0,
        }
}

/// Whether it is alone in its batch, and ends the time of one member set.
#[must_use]
pub fn is_barrier(entry: &Entry) -> bool {
    !matches!(entry.body, Body::Value(_))
}

/// Whether this can be an entry.
///
/// # Errors
/// [`Refused::TooLarge`]; [`Refused::Malformed`] for number 0.
pub fn check_entry(entry: &Entry) -> Result<(), Refused> {
    match &entry.body {
        Body::Value(value) if value.len() > VALUE_MAX => Err(Refused::TooLarge),
        _ if entry.id.number == 0 => Err(Refused::Malformed),
        _ => Ok(()),
    }
}

/// Whether this can be a batch: some entries, within the limits, none twice, a barrier only alone.
///
/// # Errors
/// [`Refused::TooLarge`], [`Refused::Malformed`].
pub fn check(batch: &[Entry]) -> Result<(), Refused> {
    batch.iter().try_for_each(check_entry)?;
    match batch {
        [] => Err(Refused::Malformed),
        [_] => Ok(()),
        _ if batch.len() > BATCH_ENTRIES || batch.iter().map(encoded_len).sum::<usize>() > BATCH_BYTES => Err(Refused::TooLarge),
        _ if batch.iter().any(is_barrier) => Err(Refused::Malformed),
        _ if batch.is_sorted_by(|one, next| one.id < next.id) => Ok(()), // as one member alone proposes
        _ if batch.iter().map(|entry| entry.id).collect::<BTreeSet<_>>().len() < batch.len() => Err(Refused::Malformed),
        _ => Ok(()),
    }
}

/// Entries of one source in the order in which they were handed in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// An entry was put behind one of a higher id, as after a member came back to its former ones.
    is_mixed: bool,
}

impl Queue {
    /// Whether `times` times the limits leave room for these.
    pub fn has_room<'a>(&self, more: impl IntoIterator<Item = &'a Entry>, times: usize) -> bool {
        let (entries, bytes) = more
            .into_iter()
            .fold((self.entries.len(), self.bytes), |(entries, bytes), entry| (entries + 1, bytes + encoded_len(entry)));
        entries <= times * WAITING_ENTRIES && bytes <= times * WAITING_BYTES
    }

    pub fn push(&mut self, entry: Entry) {
        let last = self.entries.back().map(|last| last.id);
        self.is_mixed = last.is_some_and(|last| self.is_mixed || last >= entry.id);
        self.bytes += encoded_len(&entry);
        self.entries.push_back(entry);
    }

    pub fn remove(&mut self, gone: impl Fn(&Entry) -> bool) {
        let bytes = &mut self.bytes;
        self.entries.retain(|entry| {
            let stays = !gone(entry);
            if !stays {
                *bytes -= encoded_len(entry);
            }
            stays
        });
    }

    pub fn contains(&self, id: EntryId) -> bool {
        if self.is_mixed {
            return self.entries.iter().any(|entry| entry.id == id);
        }
        self.entries.binary_search_by_key(&id, |entry| entry.id).is_ok()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> + '_ {
        self.entries.iter()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Cut into pieces that are within the limits of a batch, barriers alone.
    pub fn pieces(&self) -> Vec<Batch> {
        let mut pieces: Vec<Batch> = Vec::new();
        let mut piece = Piece::default();
        for entry in &self.entries {
            if !piece.fits(entry) {
                pieces.push(std::mem::take(&mut piece).entries.into());
            }
            piece.push(entry);
        }
        if !piece.entries.is_empty() {
            pieces.push(piece.entries.into());
        }
        pieces
    }
}

#[derive(Default)]
struct Piece {
    entries: Vec<Entry>,
    bytes: usize,
}

impl Piece {
    fn fits(&self, entry: &Entry) -> bool {
        self.entries.is_empty()
            || !is_barrier(entry)
                && !is_barrier(&self.entries[0])
                && self.entries.len() < BATCH_ENTRIES
                && self.bytes + encoded_len(entry) <= BATCH_BYTES
    }

    fn push(&mut self, entry: &Entry) {
        self.bytes += encoded_len(entry);
        self.entries.push(entry.clone());
    }
}

/// The next batch of what waits, if anything does: one entry of each source in turn, beginning with another source at each `turn`, so that no
/// source starves another and a barrier, which must be first, comes to be first.
pub(crate) fn next(waiting: &BTreeMap<MemberId, Queue>, turn: u64) -> Option<Batch> {
    let filled = || waiting.values().filter(|queue| !queue.is_empty());
    let mut sources: Vec<_> = filled().map(|queue| queue.iter().peekable()).collect();
    if sources.is_empty() {
        return None;
    }
    // What one source hands in, in order, has nothing twice.
    let may_repeat = sources.len() > 1 || filled().any(|queue| queue.is_mixed);
    let first = (turn % sources.len() as u64) as usize;
    sources.rotate_left(first);
    let mut piece = Piece::default();
    let mut taken = BTreeSet::new();
    while !sources.is_empty() {
        sources.retain_mut(|source| {
            let Some(entry) = source.next_if(|entry| taken.contains(&entry.id) || piece.fits(entry)) else { return false };
            if !may_repeat || taken.insert(entry.id) {
                piece.push(entry);
            }
            true
        });
    }
    Some(piece.entries.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(proposer: u16, number: u64, bytes: usize) -> Entry {
        Entry { id: EntryId { proposer: MemberId(proposer), number }, body: Body::Value(vec![0; bytes].into()) }
    }

    #[test]
    fn a_queue_knows_its_entries_in_any_order() {
        let id = |number| EntryId { proposer: MemberId(1), number };
        let mut queue = Queue::default();
        for number in [3, 5, 9, 4, 9, 12] {
            queue.push(value(1, number, 1));
            for asked in 0..15 {
                assert_eq!(queue.contains(id(asked)), queue.iter().any(|entry| entry.id == id(asked)), "{asked} behind {number}");
            }
        }
        let twice = BTreeMap::from([(MemberId(1), queue.clone())]);
        assert_eq!(next(&twice, 0).unwrap().iter().map(|entry| entry.id.number).collect::<Vec<_>>(), [3, 5, 9, 4, 12]);
        queue.remove(|_| true);
        queue.push(value(1, 2, 1));
        assert!(queue.contains(id(2)) && !queue.is_mixed, "an empty one begins anew");
    }

    fn join(proposer: u16, number: u64) -> Entry {
        Entry { id: EntryId { proposer: MemberId(proposer), number }, body: Body::Join(MemberId(9)) }
    }

    fn waiting(entries: &[Entry]) -> BTreeMap<MemberId, Queue> {
        let mut waiting = BTreeMap::<_, Queue>::new();
        for entry in entries {
            waiting.entry(entry.id.proposer).or_default().push(entry.clone());
        }
        waiting
    }

    fn ids(batch: &[Entry]) -> Vec<(u16, u64)> {
        batch.iter().map(|e| (e.id.proposer.0, e.id.number)).collect()
    }

    #[test]
    fn sources_take_turns_and_begin_in_turn() {
        let w = waiting(&[value(1, 1, 1), value(1, 2, 1), value(2, 1, 1), value(3, 1, 1)]);
        assert_eq!(ids(&next(&w, 0).unwrap()), [(1, 1), (2, 1), (3, 1), (1, 2)]);
        assert_eq!(ids(&next(&w, 2).unwrap()), [(3, 1), (1, 1), (2, 1), (1, 2)]);
        assert_eq!(next(&waiting(&[]), 7), None);
    }

    #[test]
    fn a_barrier_is_alone_and_its_turn_comes() {
        let w = waiting(&[value(1, 1, 1), join(2, 1), value(2, 2, 1)]);
        assert_eq!(ids(&next(&w, 0).unwrap()), [(1, 1)]);
        assert_eq!(ids(&next(&w, 1).unwrap()), [(2, 1)]);
        let w = waiting(&[value(1, 1, 1), join(1, 2), value(1, 3, 1)]);
        assert_eq!(ids(&next(&w, 5).unwrap()), [(1, 1)], "order within a source");
        assert_eq!(w[&MemberId(1)].pieces().iter().map(|p| ids(p)).collect::<Vec<_>>(), [[(1, 1)], [(1, 2)], [(1, 3)]]);
    }

    #[test]
    fn a_batch_is_within_its_limits_and_one_entry_always_fits() {
        let w = waiting(&[value(1, 1, VALUE_MAX), value(1, 2, 1), value(2, 1, 600_000), value(2, 2, 600_000)]);
        assert_eq!(ids(&next(&w, 0).unwrap()), [(1, 1)]);
        assert_eq!(ids(&next(&w, 1).unwrap()), [(2, 1)]);
        let many: Vec<_> = (1..=300).map(|n| value(1, n, 1)).collect();
        let batch = next(&waiting(&many), 0).unwrap();
        assert_eq!((batch.len(), check(&batch)), (BATCH_ENTRIES, Ok(())));
    }

    #[test]
    fn what_cannot_be_a_batch_is_refused() {
        assert_eq!(check(&[]), Err(Refused::Malformed));
        assert_eq!(check(&[value(1, 0, 1)]), Err(Refused::Malformed));
        assert_eq!(check(&[value(1, 1, VALUE_MAX + 1)]), Err(Refused::TooLarge));
        assert_eq!(check(&[value(1, 1, 1), value(1, 1, 1)]), Err(Refused::Malformed));
        assert_eq!(check(&[value(1, 1, 1), join(1, 2)]), Err(Refused::Malformed));
        assert_eq!(check(&[value(1, 1, 600_000), value(1, 2, 600_000)]), Err(Refused::TooLarge));
        assert_eq!(check(&[value(1, 1, VALUE_MAX)]), Ok(()));
        assert_eq!(check(&[join(1, 1)]), Ok(()));
    }

    #[test]
    fn a_queue_counts_its_bytes() {
        let mut q = Queue::default();
        for n in 1..=4 {
            assert!(q.has_room([&value(1, n, VALUE_MAX - ENTRY_OVERHEAD)], 1));
            q.push(value(1, n, VALUE_MAX - ENTRY_OVERHEAD));
        }
        assert!(!q.has_room([&value(1, 5, 0)], 1) && q.has_room([&value(1, 5, 0)], 2));
        q.remove(|e| e.id.number != 3);
        assert_eq!((q.len(), q.bytes, q.contains(EntryId { proposer: MemberId(1), number: 3 })), (1, VALUE_MAX, true));
    }
}
