//! Groups whose log is on disk: it outlives all agents of the group at once.
//!
//! A member of such a group tells its applications of an entry when the disk of its own host has
//! it. The shell writes what [`Write`] says, in order, and says how far it is
//! ([`super::Groups::handle_written`]); proposals and decisions never wait for that.
//!
//! When no host runs the group any more, and all its hosts are back, the one with the longest log
//! begins it again: with its log, the same [`super::message::Plan::lineage`], and indices that go
//! on. A host that knows of a longer log than the one it is to begin with declines. So what an
//! application was told is there again, unless the disk that had it is lost together with all
//! agents.
//!
//! What was decided, and that this node's leader may still have to take back, is not written
//! (`Group::confirm`).

use super::large::Large;
use super::state::{Binding, Record};
use crate::consensus::log::Position;
use crate::group::{Body, Entry, EntryId, MemberId, Value};
use serde::{Deserialize, Serialize};

/// How far a log on disk goes: a later generation goes on from an earlier one, or supersedes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mark {
    /// Which group wrote it.
    pub generation: u64,
    /// Its last entry.
    pub position: Position,
}

/// The log of a group as it is on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Which group wrote it.
    pub generation: u64,
    /// The first group of this log: see [`super::message::Plan::lineage`].
    pub lineage: u64,
    /// How many entries the snapshot stands for.
    pub snapshot_position: Position,
    /// The group's state then; none at the begin of the log.
    pub snapshot: Option<Value>,
    /// Every entry since.
    pub entries: Vec<Entry>,
    /// The application's state in the snapshot, if that has only its name. Other hosts fetch it.
    #[serde(skip)]
    pub large: Option<Large>,
}

impl Saved {
    /// How far it goes.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark { generation: self.generation, position: self.snapshot_position.saturating_add(self.entries.len() as u64) }
    }

    /// Behind a [`Write`].
    ///
    /// # Panics
    /// When entries do not follow those that are there.
    pub fn write(&mut self, what: What) {
        match what {
            What::Whole(saved) => *self = saved,
            What::Entries(first, entries) => {
                assert_eq!(self.mark().position + 1, first, "without gaps");
                self.entries.extend(entries);
            }
            What::Snapshot(position, value, large) => {
                self.large = large;
                let gone = position.saturating_sub(self.snapshot_position).min(self.entries.len() as u64) as usize;
                self.entries.drain(..gone);
                (self.snapshot_position, self.snapshot) = (position, Some(value));
            }
        }
    }

    /// The highest id that was ever a member's, or bound to be one, beside those in its snapshot.
    fn highest(&self) -> MemberId {
        let of = |entry: &Entry| {
            let named = match &entry.body {
                Body::Join(member) => *member,
                Body::Value(value) => match Record::read(value) {
                    Some(Record::Binding(binding)) => binding.member,
                    _ => MemberId(0),
                },
                _ => MemberId(0),
            };
            named.max(entry.id.proposer)
        };
        self.entries.iter().map(of).max().unwrap_or(MemberId(0))
    }

    /// The members that begin with it get ids above all that were before, and are bound to their
    /// nodes in the log. None if there is no room for so many.
    pub(super) fn renumber(&mut self, in_snapshot: MemberId, members: &mut [Binding]) -> Option<()> {
        let mut last = self.highest().max(in_snapshot).0;
        for binding in members {
            last = last.checked_add(1)?;
            binding.member = MemberId(last);
            let body = Body::Value(Record::Binding(*binding).to_value());
            self.entries.push(Entry { id: EntryId { proposer: binding.member, number: u64::MAX }, body });
        }
        Some(())
    }
}

/// To be written to disk, behind all that came before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The group's name.
    pub name: String,
    /// Which group.
    pub generation: u64,
    /// The last application entry that is on disk then.
    pub index: u64,
    /// What.
    pub what: What,
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// This, in the place of all that was there under this name.
    Whole(Saved),
    /// The next entries, the first of which has this position.
    Entries(Position, Vec<Entry>),
    /// A snapshot that stands for all entries through this position, and the application's state, if
    /// the snapshot has only its name.
    Snapshot(Position, Value, Option<Large>),
}
