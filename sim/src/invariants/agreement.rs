//! The same entry at the same position, whoever applies it: the log of one is a beginning of the log of another.

use fide_proto::consensus::log::Position;
use fide_proto::group::{Entry, MemberId};

use super::broken;

/// The log that all logs are beginnings of.
#[derive(Debug, Default)]
pub struct Agreement {
    log: Vec<Entry>,
}

impl Agreement {
    /// `member` applies `entry`; whether nobody did before.
    ///
    /// # Errors
    /// If another one applied something else there.
    pub fn applied(&mut self, member: MemberId, position: Position, entry: &Entry) -> Result<bool, super::Violation> {
        let at = position as usize - 1;
        match self.log.get(at) {
            None if at == self.log.len() => {
                self.log.push(entry.clone());
                Ok(true)
            }
            None => {
                broken("agreement", format!("{member} is at {position}, the longest log has {}", self.log.len())).map(|()| false)
            }
            Some(there) if there == entry => Ok(false),
            Some(there) => {
                let what = format!("{member} applies {} at {position} where another applied {}", entry.id, there.id);
                broken("agreement", what).map(|()| false)
            }
        }
    }

    /// How long the longest log is.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.log.len() as u64
    }

    /// Whether nothing was applied yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.log.is_empty()
    }

    /// What was applied first … last.
    #[must_use]
    pub fn log(&self) -> &[Entry] {
        &self.log
    }
}
