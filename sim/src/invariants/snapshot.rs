//! A joiner is given the state that the entries before make. The application here keeps a hash of all that it applied.

use fide_proto::consensus::log::Position;
use fide_proto::group::{Body, Entry, MemberId};

use super::{Checked, broken};

/// The state after each position, along the longest log.
#[derive(Debug, Default)]
pub struct Snapshot {
    states: Vec<u64>,
}

/// The application: its state after one more entry.
#[must_use]
pub fn next_state(state: u64, entry: &Entry) -> u64 {
    let word = match &entry.body {
        Body::Value(bytes) => <[u8; 8]>::try_from(&bytes[..]).map_or(1, u64::from_le_bytes),
        Body::Join(member) => 2 << 32 | u64::from(member.0),
        Body::Leave(member) => 3 << 32 | u64::from(member.0),
        Body::Switch(kind) => 4 << 32 | *kind as u64,
    };
    let mixed = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

impl Snapshot {
    /// Somebody applies this for the first time.
    pub fn applied(&mut self, entry: &Entry) {
        let state = self.states.last().copied().unwrap_or(0);
        self.states.push(next_state(state, entry));
    }

    /// The state after so many entries.
    #[must_use]
    pub fn at(&self, position: Position) -> Option<u64> {
        if position == 0 { Some(0) } else { self.states.get(position as usize - 1).copied() }
    }

    /// A member is given this state.
    ///
    /// # Errors
    /// If it is not the one that the entries make.
    pub fn installed(&self, member: MemberId, position: Position, state: u64) -> Checked {
        if self.at(position) == Some(state) {
            return Ok(());
        }
        broken("snapshot", format!("{member} is given another state than the first {position} entries make"))
    }
}
