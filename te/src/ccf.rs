//! The probability of a critical compound failure: network failures that take all trees of a sender
//! at once, within a year (FiDe §6.5, App. C).
//!
//! Only simultaneous failures of links count: switch failures are not correlated, and one switch is
//! of one tree. Equation (4) bounds the probability by the links of one tree:
//!
//! ```text
//! p ≤ p_group · (p_trunk · n_trunk + p_core · n_core)
//! ```
//!
//! The links of any of the trees give a bound, so the tree with the least is taken.
//!
//! The closed form that App. C prints after that, p_group · n · (max(H − 2, 0) · p_core +
//! max(H − 1, 0) · p_trunk), is wrong for the heights 1 and 2 ([`fat_tree`], `docs/papers.md`).

use crate::plan::{Plan, Redundancy, Set};
use crate::topology::{LinkId, NodeId, Tier, Topology};
use crate::tree::Tree;
use std::collections::BTreeSet;

/// A trunk link fails within a year (Gill et al., SIGCOMM 2011, Fig. 5).
pub const P_TRUNK: f64 = 0.054;
/// A core link fails within a year (Gill et al., Fig. 5).
pub const P_CORE: f64 = 0.095;
/// A failure is one of a group of links (Gill et al., Fig. 10).
pub const P_GROUP: f64 = 0.41;

/// How many links of each tier there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Below the core.
    pub trunk: usize,
    /// To the core.
    pub core: usize,
}

impl Links {
    /// Those of a tree, each cable once.
    #[must_use]
    pub fn of(topology: &Topology, plan: &Plan, set: &Set, tree: &Tree) -> Self {
        Self::count(topology, tree.arcs(plan.fabric(), set.sender))
    }

    fn count(topology: &Topology, arcs: impl Iterator<Item = u32>) -> Self {
        let cables: BTreeSet<u32> = arcs.map(|arc| arc / 2).collect();
        let core = cables.iter().filter(|cable| topology.tier(LinkId::new(**cable as usize)) == Tier::Core).count();
        Links { trunk: cables.len() - core, core }
    }

    /// The probability that one of them fails within a year, at most.
    #[must_use]
    pub fn failure(self) -> f64 {
        (P_TRUNK * self.trunk as f64 + P_CORE * self.core as f64).min(1.0)
    }

    /// Equation (4): that one of them fails together with others.
    #[must_use]
    pub fn compound(self) -> f64 {
        (P_GROUP * (P_TRUNK * self.trunk as f64 + P_CORE * self.core as f64)).min(1.0)
    }
}

/// The links of one tree that connects `n` hosts in a fat-tree of a height: half of its diameter,
/// 1 (one switch between) to 3 (through the core). What App. C's closed form should have counted.
#[must_use]
pub fn fat_tree(n: usize, height: usize) -> Links {
    Links { trunk: n * height.min(2), core: n * height.saturating_sub(2) }
}

/// How many years pass from one such failure to the next.
#[must_use]
pub fn years(probability: f64) -> f64 {
    1.0 / probability
}

/// The bound for all trees of one sender: equation (4). Hosts that not every tree reaches lose the
/// sender by any failure on their way, which is added.
#[must_use]
pub fn of_set(topology: &Topology, plan: &Plan, set: &Set) -> f64 {
    let alone = reached_alone(plan, set);
    let compound = if set.redundancy == Redundancy::Single {
        0.0
    } else {
        let links = set.trees.iter().map(|tree| Links::of(topology, plan, set, tree).compound());
        links.min_by(f64::total_cmp).unwrap_or(0.0)
    };
    (compound + Links::count(topology, alone.into_iter()).failure()).min(1.0)
}

/// Arcs of which one failure takes the only way to somebody.
fn reached_alone(plan: &Plan, set: &Set) -> BTreeSet<u32> {
    if set.redundancy == Redundancy::Single {
        return set.trees.iter().flat_map(|tree| tree.arcs(plan.fabric(), set.sender)).collect();
    }
    let once = plan.reached_once(set);
    once.iter().flat_map(|host| set.trees.iter().flat_map(|tree| tree.path(plan.fabric(), *host))).collect()
}

/// The bound for one sender and one receiver, which have a path in each tree; the paper's example
/// with n = 2.
#[must_use]
pub fn of_pair(topology: &Topology, plan: &Plan, set: &Set, receiver: NodeId) -> f64 {
    let paths: Vec<Vec<u32>> = set.trees.iter().map(|tree| tree.path(plan.fabric(), receiver)).collect();
    let links = paths.iter().filter(|path| !path.is_empty());
    let links: Vec<Links> = links.map(|path| Links::count(topology, path.iter().copied())).collect();
    let alone = links.len() < 2;
    let each = links.into_iter().map(|links| if alone { links.failure() } else { links.compound() });
    each.min_by(f64::total_cmp).unwrap_or(1.0)
}

/// The largest bound of one sender and any receiver. Hosts of a class are alike.
#[must_use]
pub fn of_worst_pair(topology: &Topology, plan: &Plan, set: &Set) -> f64 {
    let classes = plan.fabric().classes.iter();
    let receivers = classes.filter_map(|class| class.members.iter().find(|member| member.host != set.sender));
    let each = receivers.map(|member| of_pair(topology, plan, set, member.host));
    each.max_by(f64::total_cmp).unwrap_or(0.0)
}

/// The bound for all senders together: the union over the links of one tree of each.
#[must_use]
pub fn of_plan(topology: &Topology, plan: &Plan) -> f64 {
    let (mut pairs, mut alone) = (BTreeSet::new(), BTreeSet::new());
    for set in plan.sets() {
        alone.extend(reached_alone(plan, set).into_iter().map(|arc| arc & !1));
        let least = |tree: &&Tree| {
            let links = Links::of(topology, plan, set, tree);
            (links.compound().to_bits(), tree.hops.first().map(|hop| hop.switch))
        };
        if let Some(tree) = set.trees.iter().min_by_key(least).filter(|_| set.trees.len() > 1) {
            pairs.extend(tree.arcs(plan.fabric(), set.sender).map(|arc| arc & !1));
        }
    }
    pairs.retain(|arc| !alone.contains(arc));
    let compound = Links::count(topology, pairs.into_iter()).compound();
    (compound + Links::count(topology, alone.into_iter()).failure()).min(1.0)
}
