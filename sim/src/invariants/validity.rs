//! What is applied was proposed.

use std::collections::HashMap;

use fide_proto::group::{Body, Entry, EntryId};

use super::{Checked, broken};

/// All values that were ever proposed.
#[derive(Debug, Default)]
pub struct Validity {
    proposed: HashMap<EntryId, u64>,
}

impl Validity {
    /// A member took this value.
    pub fn proposed(&mut self, id: EntryId, value: u64) {
        self.proposed.insert(id, value);
    }

    /// Somebody applies this for the first time.
    ///
    /// # Errors
    /// If nobody proposed it. (Joins, leaves and changes of the engine are judged by their own files.)
    pub fn applied(&self, entry: &Entry) -> Checked {
        let Body::Value(bytes) = &entry.body else { return Ok(()) };
        let value = <[u8; 8]>::try_from(&bytes[..]).map(u64::from_le_bytes);
        match (self.proposed.get(&entry.id), value) {
            (Some(proposed), Ok(value)) if *proposed == value => Ok(()),
            (Some(_), _) => broken("validity", format!("{} was proposed with another value", entry.id)),
            (None, _) => broken("validity", format!("nobody proposed {}", entry.id)),
        }
    }
}
