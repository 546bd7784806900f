//! Two members never lead one LOWI group at once.

use fide_proto::consensus::log::Epoch;
use fide_proto::group::MemberId;

use super::{Checked, broken};

/// Who leads now, by its own belief.
#[derive(Debug, Default)]
pub struct OneLeader {
    leading: Vec<(MemberId, Epoch)>,
}

impl OneLeader {
    /// Whether this member believes that it leads the LOWI group of this epoch.
    ///
    /// # Errors
    /// If another one that lives and has not stopped believes it too.
    pub fn believes(&mut self, member: MemberId, epoch: Epoch, leads: bool) -> Checked {
        let known = self.leading.iter().position(|(who, _)| *who == member);
        match (known, leads) {
            (None, false) => return Ok(()),
            (Some(at), false) => {
                self.leading.swap_remove(at);
                return Ok(());
            }
            (Some(at), true) if self.leading[at].1 == epoch => return Ok(()),
            (Some(at), true) => self.leading[at].1 = epoch,
            (None, true) => self.leading.push((member, epoch)),
        }
        match self.leading.iter().find(|(who, of)| *who != member && *of == epoch) {
            None => Ok(()),
            Some((other, _)) => broken("one-leader", format!("{member} and {other} both lead")),
        }
    }
}
