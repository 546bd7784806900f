//! When the faults are over, all who live have applied all that anybody applied, and all that they proposed themselves.

use fide_proto::consensus::log::Position;
use fide_proto::group::MemberId;

use super::{Checked, broken};

/// How a member that lives stands at the end.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Who.
    pub member: MemberId,
    /// It has its state and takes part.
    pub running: bool,
    /// It has left, and stays.
    pub leaving: bool,
    /// What it applied.
    pub position: Position,
    /// What it proposed and has not applied.
    pub pending: usize,
}

/// Judges the end of a world.
#[derive(Clone, Copy, Debug, Default)]
pub struct Termination;

impl Termination {
    /// Whether this member has done all.
    #[must_use]
    pub fn is_done(standing: &Standing, longest: Position) -> bool {
        standing.running && standing.pending == 0 && standing.position == longest
    }

    /// The liveness phase is over.
    ///
    /// # Errors
    /// If somebody has not done all.
    pub fn at_the_end(standings: &[Standing], longest: Position) -> Checked {
        let Some(s) = standings.iter().find(|s| !Self::is_done(s, longest)) else { return Ok(()) };
        if s.leaving {
            return broken("termination", format!("{} has left and does not go", s.member));
        }
        if !s.running {
            return broken("termination", format!("{} never got its state", s.member));
        }
        let what = format!("{} has applied {} of {longest}, and {} of its own wait", s.member, s.position, s.pending);
        broken("termination", what)
    }
}
