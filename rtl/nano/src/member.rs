//! What a shell needs of a member, in hardware or in software.

use fide_proto::consensus::lowi::StartPoint;
use fide_proto::group::{Batch, Body, Entry, MemberId, MemberSet};
use std::collections::VecDeque;

/// Frames that came before a member was started: a joiner is handed what came behind its starting point.
pub const KEPT_MAX: usize = 4096;

/// The network and the clock of a member.
pub trait Wire {
    /// Sends a frame on a path, to the group or to one member; false if it did not leave.
    fn send(&mut self, path: usize, to: Option<MemberId>, frame: &[u8]) -> bool;
    /// CLOCK_MONOTONIC (ns).
    fn now_ns(&self) -> u64;
    /// What the member did at this time of its engine (ns), for a trace.
    fn note(&mut self, at_ns: u64, note: Note<'_>) {
        let _ = (at_ns, note);
    }
}

/// What a member does that the network does not see.
#[derive(Clone, Copy, Debug)]
pub enum Note<'a> {
    /// It was started by a command of this mode (1: together; 2: on the first round; 3: it joins).
    Started {
        /// The mode.
        mode: u32,
        /// The members at the start.
        members: &'a MemberSet,
        /// Where it begins.
        begin: StartPoint,
    },
    /// A frame was handed to its engine.
    Handed {
        /// By which path it came.
        path: usize,
        /// The frame.
        frame: &'a [u8],
        /// Whether the engine has left the group by now.
        halted: bool,
    },
    /// A certain report was handed to it.
    Reported(MemberId),
    /// It was stopped.
    Stopped,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Its instance.
    pub instance: u64,
    /// Who decided it; `None` where a member in software does not know any more.
    pub leader: Option<MemberId>,
    /// What was decided.
    pub batch: Batch,
}

/// A member.
pub trait Member {
    /// A register; `None` if there is none.
    fn read(&mut self, at: u16, wire: &mut dyn Wire) -> Option<u32>;
    /// Whether the write was taken.
    fn write(&mut self, at: u16, value: u32, wire: &mut dyn Wire) -> bool;
    /// A frame (UDP payload) that arrived at this time (ns, CLOCK_MONOTONIC).
    fn frame(&mut self, path: usize, arrived_ns: u64, frame: &[u8], wire: &mut dyn Wire);
    /// An entry of this host.
    ///
    /// # Errors
    /// Why it was not taken.
    fn propose(&mut self, entry: Entry, wire: &mut dyn Wire) -> Result<(), String>;
    /// Time has passed.
    fn advance(&mut self, wire: &mut dyn Wire);
    /// When [`Member::advance`] is to be called next (ns).
    fn due_ns(&self) -> u64;
    /// Decisions since the last call, in their order.
    fn decisions(&mut self) -> VecDeque<Decision>;
    /// Where a joiner would begin, and who is a member there.
    fn point(&self) -> Option<(StartPoint, MemberSet)>;
    /// Whether it has left the group.
    fn halted(&self) -> bool;
    /// What it is.
    fn kind(&self) -> &'static str;
}

/// The members behind a batch, if it changes them or the engine.
#[must_use]
pub fn members_behind(members: &MemberSet, batch: &Batch) -> Option<MemberSet> {
    let mut members = members.clone();
    match batch.first()?.body {
        Body::Value(_) => return None,
        Body::Join(joiner) => {
            members.insert(joiner);
        }
        Body::Leave(leaver) => {
            let _ = members.len() > 1 && members.remove(leaver);
        }
        Body::Switch(_) => {}
    }
    Some(members)
}
