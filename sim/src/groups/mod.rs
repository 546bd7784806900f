//! Groups as a service of simulated nodes: what an agent runs, under faults of hosts, agents and
//! cables.
//!
//! # What is real, what is modelled
//! Real are the node with its detector ([`fide_proto::node::Node`]), the service
//! ([`fide_proto::services::groups::Groups`]) with its links, gates, logs and engines, and the rule
//! of the fence. Modelled are the kernel and the network ([`crate::detection`], which runs the same
//! hosts without groups), the loop of the agent around the service (`shell`, which does what
//! `agent/src/core/groups.rs` and `send.rs` do), the egress gates of a fence (`fences`), the
//! operator's command that is the witness (`witness`), and applications with their library
//! (`clients`).
//!
//! Each seed first makes faults of one [`Profile`], then lets all of them end, and waits until the
//! groups run again and have decided new proposals. What must hold is in `judge`.

mod clients;
pub(crate) mod cluster;
mod faults;
mod fences;
mod judge;
mod orders;
pub(crate) mod shell;
mod witness;

use crate::invariants::Violation;
use fide_proto::consensus::Kind;
use fide_proto::consensus::policy::Policy;
use std::collections::BTreeMap;

/// What can go wrong in one simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Agents killed and started again, hosts without power, one faulty path: the contract holds.
    WithinContract,
    /// The same, and members that leave, join and come back, changes of the engine, several hosts
    /// that begin the same group.
    Members,
    /// As within the contract, and hosts and agents that stand still, also in the middle of a loop
    /// iteration.
    Pauses,
    /// As within the contract, and hosts cut off on both paths.
    Cuts,
    /// All of it, and copies that are lost and late on both paths.
    Everything,
    /// As within the contract, and all agents killed at about the same time: of durable groups,
    /// which the configuration has begin.
    Outages,
}

impl Profile {
    /// Every one.
    pub const ALL: [Profile; 6] =
        [Profile::WithinContract, Profile::Members, Profile::Pauses, Profile::Cuts, Profile::Everything, Profile::Outages];

    /// Whether whoever is judged silent is so, and every heartbeat arrives in time by one path.
    #[must_use]
    pub const fn keeps_contract(self) -> bool {
        matches!(self, Profile::WithinContract | Profile::Members | Profile::Outages)
    }
}

/// What to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What goes wrong.
    pub profile: Profile,
    /// The first engine of all groups; the seed says it, if it is not given.
    pub engine: Option<Kind>,
    /// Their policy; the seed says it, if it is not given.
    pub policy: Option<Policy>,
    /// How many hosts; 2 to 5, as the seed says, if it is not given.
    pub hosts: Option<usize>,
}

impl Setting {
    /// Engines and policies as the seeds say.
    #[must_use]
    pub const fn of(profile: Profile) -> Self {
        Self { profile, engine: None, policy: None, hosts: None }
    }
}

/// A shell that does not do what it must: only to see that the checks can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neglect {
    /// Nothing is held back after a silence of this host.
    Hold,
    /// Gates that should be closed let everything pass, and members go on behind them.
    Gates,
    /// Applications are told of entries that are not confirmed.
    Confirmed,
    /// Answers to applications do not wait for the entries that they rest on.
    Fates,
    /// New incarnations of other hosts are not handed in.
    Incarnations,
    /// Applications get the last entry once more after a reconnect.
    Again,
    /// Proposals are numbered anew by the shell.
    Numbers,
    /// What is to be on disk counts as written before it is.
    Written,
    /// The witness lets members go on without anybody, and does not look.
    Witness,
}

/// What many simulations came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries, each counted once.
    pub entries: u64,
    /// Entries told to applications.
    pub told: u64,
    /// Members that halted, but for those that left.
    pub halted: u64,
    /// Groups that began after all members of the one before had ended.
    pub anew: u64,
    /// Groups that went on by themselves after all their members had stopped.
    pub resumed: u64,
    /// Members that came back or joined.
    pub joined: u64,
    /// Answers to what became of a proposal.
    pub fates: u64,
    /// Hosts that were cut off by their fence.
    pub fenced: u64,
    /// Questions that the witness answered, yes and no.
    pub witnessed: [u64; 2],
    /// Packets sent, each copy counted.
    pub packets: u64,
    /// When the last simulation ended.
    pub ended_ns: u64,
    /// The longest time between the end of the faults and decisions everywhere.
    pub healed_ns: u64,
    /// Groups of which nothing was promised, and whose members told different entries.
    pub diverged: u64,
    /// Groups whose end was not judged, by reason.
    pub excused: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Both together.
    pub fn add(&mut self, other: &Totals) {
        self.entries += other.entries;
        self.told += other.told;
        self.halted += other.halted;
        self.anew += other.anew;
        self.resumed += other.resumed;
        self.joined += other.joined;
        self.fates += other.fates;
        self.fenced += other.fenced;
        self.witnessed = std::array::from_fn(|at| self.witnessed[at] + other.witnessed[at]);
        self.packets += other.packets;
        self.ended_ns = other.ended_ns;
        self.healed_ns = self.healed_ns.max(other.healed_ns);
        self.diverged += other.diverged;
        for (why, count) in &other.excused {
            *self.excused.entry(why).or_default() += count;
        }
    }
}

/// One simulation of this seed. `told`: what happens is printed.
///
/// # Errors
/// What did not hold.
pub fn run(seed: u64, setting: Setting, neglect: Option<Neglect>, told: bool) -> Result<Totals, Violation> {
    cluster::run(seed, setting, neglect, told)
}
