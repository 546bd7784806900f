//! Positions come one after the other.

use fide_proto::consensus::log::Position;
use fide_proto::group::MemberId;

use super::{Checked, broken};

/// Where one member stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGap {
    position: Position,
}

impl NoGap {
    /// It applies what has this position.
    ///
    /// # Errors
    /// If something is missing before, or was there before.
    pub fn applied(&mut self, member: MemberId, position: Position) -> Checked {
        let was = std::mem::replace(&mut self.position, position);
        if position == was + 1 {
            return Ok(());
        }
        broken("no-gap", format!("{member} applies {position} after {was}"))
    }

    /// It is given the state at this position.
    ///
    /// # Errors
    /// If it was further already.
    pub fn installed(&mut self, member: MemberId, position: Position) -> Checked {
        let was = std::mem::replace(&mut self.position, position);
        if position >= was {
            return Ok(());
        }
        broken("no-gap", format!("{member} is put back to {position} from {was}"))
    }

    /// Where it stands.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }
}
