//! The log of one member, in memory: a member that comes back is a new one (`fide_proto::group::MemberId`), so nothing outlives its process.

use std::cell::RefCell;
use std::collections::BTreeSet;

use raft::prelude::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

/// Entries behind `start`, contiguous.
pub(crate) struct Memory {
    hard: HardState,
    conf: ConfState,
    /// Index and term of the entry before the first.
    start: (u64, u64),
    entries: Vec<Entry>,
    /// Bytes of their values.
    bytes: usize,
    /// For whom the library wanted a snapshot since that was looked at.
    lagging: RefCell<BTreeSet<u64>>,
}

impl Memory {
    pub(crate) fn new(start: (u64, u64), conf: ConfState) -> Self {
        let mut hard = HardState::default();
        hard.set_commit(start.0);
        hard.set_term(start.1);
        Self { hard, conf, start, entries: Vec::new(), bytes: 0, lagging: RefCell::default() }
    }

    pub(crate) fn set_hard(&mut self, hard: HardState) {
        self.hard = hard;
    }

    pub(crate) fn set_commit(&mut self, commit: u64) {
        self.hard.set_commit(commit);
    }

    pub(crate) fn set_conf(&mut self, conf: ConfState) {
        self.conf = conf;
    }

    /// Puts `entries` behind what is there, in place of what contradicts them.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.start.0 && first.index <= self.last() + 1, "entries without a gap, none that was compacted");
        let kept = (first.index - self.start.0 - 1) as usize;
        self.bytes += bytes_of(entries);
        self.bytes -= bytes_of(&self.entries[kept..]);
        self.entries.truncate(kept);
        self.entries.extend_from_slice(entries);
    }

    /// The last entry that is to be forgotten so that at most half of so many, and of so many bytes, are left; none while
    /// there are no more than that.
    pub(crate) fn surplus(&self, entries_max: usize, bytes_max: usize) -> Option<u64> {
        if self.entries.len() <= entries_max && self.bytes <= bytes_max {
            return None;
        }
        let (mut count, mut bytes) = (self.entries.len(), self.bytes);
        let is_surplus = |entry: &&Entry| {
            let is_surplus = count > entries_max / 2 || bytes > bytes_max / 2;
            (count, bytes) = (count - 1, bytes - entry.data.len());
            is_surplus
        };
        self.entries.iter().take_while(is_surplus).last().map(|entry| entry.index)
    }

    /// Forgets everything through `index`.
    pub(crate) fn compact(&mut self, index: u64) {
        if index > self.start.0 && index <= self.last() {
            let n = (index - self.start.0) as usize;
            self.start = (index, self.entries[n - 1].term);
            self.bytes -= bytes_of(&self.entries[..n]);
            self.entries.drain(..n);
        }
    }

    /// Begins anew behind what a snapshot stands for.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot) {
        let metadata = snapshot.get_metadata();
        self.start = (metadata.index, metadata.term);
        self.entries.clear();
        self.bytes = 0;
        self.conf = metadata.get_conf_state().clone();
        self.hard.set_commit(metadata.index);
        self.hard.set_term(self.hard.term.max(metadata.term));
    }

    /// Who lags behind the first entry.
    pub(crate) fn take_lagging(&self) -> BTreeSet<u64> {
        self.lagging.take()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn first(&self) -> u64 {
        self.start.0 + 1
    }

    fn last(&self) -> u64 {
        self.start.0 + self.entries.len() as u64
    }
}

fn bytes_of(entries: &[Entry]) -> usize {
    entries.iter().map(|entry| entry.data.len()).sum()
}

impl Storage for Memory {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.conf.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.start.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let range = (low - self.start.0 - 1) as usize..(high - self.start.0 - 1) as usize;
        let mut entries = self.entries[range].to_vec();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.start.0 {
            return Ok(self.start.1);
        }
        if index < self.start.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        let entry = self.entries.get((index - self.start.0 - 1) as usize);
        entry.map(|entry| entry.term).ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// The state of an application is not here but in the log above, which is asked to give it to whoever lags.
    fn snapshot(&self, _request_index: u64, to: u64) -> raft::Result<Snapshot> {
        self.lagging.borrow_mut().insert(to);
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, bytes: usize) -> Entry {
        Entry { index, term: 1, data: vec![0; bytes].into(), ..Entry::default() }
    }

    #[test]
    fn a_log_is_bounded_in_entries_and_in_bytes() {
        let mut log = Memory::new((10, 1), ConfState::default());
        log.append(&(11..=20).map(|index| entry(index, 100)).collect::<Vec<_>>());
        assert_eq!((log.surplus(10, 1000), log.surplus(9, 1000), log.surplus(10, 999)), (None, Some(16), Some(16)));
        // Others in the place of the last ones.
        log.append(&[entry(19, 5000), entry(20, 0)]);
        assert_eq!((log.bytes, log.surplus(10, 5800), log.surplus(10, 5799)), (5800, None, Some(19)));
        log.compact(19);
        assert_eq!((log.bytes, log.len(), log.surplus(0, 0)), (0, 1, Some(20)));
    }
}
