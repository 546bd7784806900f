//! No entry is applied twice. With agreement and without gaps, the longest log alone need be looked at.

use std::collections::HashSet;

use fide_proto::consensus::log::Position;
use fide_proto::group::{Entry, EntryId};

use super::{Checked, broken};

/// All that was applied.
#[derive(Debug, Default)]
pub struct Integrity {
    applied: HashSet<EntryId>,
}

impl Integrity {
    /// Somebody applies this for the first time at this position.
    ///
    /// # Errors
    /// If it was applied at another one.
    pub fn applied(&mut self, position: Position, entry: &Entry) -> Checked {
        if self.applied.insert(entry.id) {
            return Ok(());
        }
        broken("integrity", format!("{} is applied again at {position}", entry.id))
    }
}
