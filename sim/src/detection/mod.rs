//! What a node says of others' silence, under every fault of hosts, agents and cables: virtual
//! time, two networks, and the loop of each agent.
//!
//! # What is real, what is modelled
//! Real is the node ([`fide_proto::node::Node`]): introductions, tables, the detector, whom to ask
//! of whom, path reports. Modelled are the kernel (receive table, receive queues, ring, answers to
//! questions, counters of its interfaces), the network with others that answer, and the loop that
//! hands one to the other, which may be late.
//!
//! Each seed first makes faults of one [`Profile`] (the safety phase), then lets all of them end
//! and everything heal (the liveness phase). What must hold is in `judge`.

pub(crate) mod faults;
pub(crate) mod fenced;
pub(crate) mod host;
mod judge;
mod nic;
mod questions;
pub(crate) mod world;

pub use faults::Profile;
pub use fenced::Counts;

use crate::invariants::Violation;

/// A shell that does not do what it must: only to see that the checks can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neglect {
    /// What the interfaces lose is not counted.
    Drops,
    /// Answers to questions are not handed in.
    Answers,
    /// A process is told as doomed of which nothing came.
    Processes,
    /// Verdicts are given twice.
    Twice,
    /// An agent that was given up goes on as before.
    GivenUp,
    /// The largest lateness of a window counts in the next one, too.
    Maximum,
    /// All receive queues of an interface are taken for one.
    Queues,
    /// Nobody gets copies by unicast.
    Copies,
    /// A host that was given up wrongly stays refused.
    Mistaken,
}

/// What many simulations came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Verdicts that were judged.
    pub verdicts: u64,
    /// Packets sent, each copy counted.
    pub packets: u64,
    /// When the last one ended.
    pub ended_ns: u64,
    /// What emptied receive queues.
    pub barriers: Barriers,
    /// Hosts wrongly called silent, as drained, whose answers waited in a receive queue of their
    /// own and which had answered nothing before: the queue was not known.
    pub open: u64,
    /// What came of fences.
    pub fences: Counts,
}

/// Barriers, by who gave them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Barriers {
    /// Hosts, by an answer to an echo request.
    pub echoes: u64,
    /// Hosts, by an answer to a TCP question.
    pub segments: u64,
    /// Responders that are no hosts, by either.
    pub responders: u64,
    /// The asking host, from its other interface.
    pub itself: u64,
}

impl Totals {
    /// Both together.
    pub const fn add(&mut self, other: &Totals) {
        self.verdicts += other.verdicts;
        self.packets += other.packets;
        self.ended_ns = other.ended_ns;
        self.barriers.echoes += other.barriers.echoes;
        self.barriers.segments += other.barriers.segments;
        self.barriers.responders += other.barriers.responders;
        self.barriers.itself += other.barriers.itself;
        self.open += other.open;
        self.fences.add(&other.fences);
    }
}

/// One simulation of this seed. `told`: what happens is printed.
///
/// # Errors
/// What did not hold.
pub fn run(seed: u64, profile: Profile, neglect: Option<Neglect>, told: bool) -> Result<Totals, Violation> {
    world::World::new(seed, profile, neglect, told).run()
}
