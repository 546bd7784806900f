//! What a node remembers of a group that it was a member of, also when its agent has ended: the
//! hosts that may still run it. When none of them does, the group begins again without a person.
//!
//! A host of the last set is one that was a member and did not leave by an order. A host that
//! crashed stays in it: under *trust-contract* it may have been silent only, and run the group
//! still. So a group begins again when **every** host of the last set is heard, runs no group of
//! this name, and remembers it, as a group of the configuration begins with all of its hosts.
//!
//! Hosts may remember different sets, because the disk of one was not written before the end. Of
//! those the latest counts, by generation and then by the entry of the log at which it was noted:
//! all members apply the same joins and leaves in the same order.

use super::GENERATION_MAX;
use super::durable::Mark;
use crate::consensus::Kind;
use crate::consensus::policy::Policy;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Most hosts of a set: as many as a cluster has.
pub const NODES_MAX: usize = 256;

/// Who was to run a group when a node last knew of it, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSet {
    /// In which group, behind which entry of its log.
    pub mark: Mark,
    /// The hosts that were members and did not leave by an order; the first one leads.
    pub nodes: Vec<u32>,
    /// The engine then.
    pub engine: Kind,
    /// What the group makes of inferred verdicts.
    pub policy: Policy,
    /// Its log is on disk.
    pub durable: bool,
}

impl LastSet {
    /// Whether a node can have noted this: it comes from a file, or from another node.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        let distinct: BTreeSet<u32> = self.nodes.iter().copied().collect();
        (1..=GENERATION_MAX).contains(&self.mark.generation)
            && (1..=NODES_MAX).contains(&self.nodes.len())
            && distinct.len() == self.nodes.len()
            && self.policy.suits(self.engine)
    }
}

/// Why a group does not begin again by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// No node remembers it.
    Forgotten,
    /// These hosts are not heard, and may run it.
    Unheard(BTreeSet<u32>),
    /// These are heard, do not run it, and do not remember it: they left by force, or lost their
    /// state.
    Strangers(BTreeSet<u32>),
}

/// With which set a group begins again that none of these nodes runs: `known` is what each of them
/// remembers, this node's included.
///
/// # Errors
/// Why it does not.
pub fn rule<'a>(known: &BTreeMap<u32, Option<&'a LastSet>>) -> Result<&'a LastSet, Waits> {
    let latest = known.values().flatten().max_by_key(|set| (set.mark, &set.nodes)).ok_or(Waits::Forgotten)?;
    let unheard: BTreeSet<u32> = latest.nodes.iter().filter(|node| !known.contains_key(node)).copied().collect();
    if !unheard.is_empty() {
        return Err(Waits::Unheard(unheard));
    }
    let has_forgotten = |node: &&u32| known.get(node).is_none_or(Option::is_none);
    let strangers: BTreeSet<u32> = latest.nodes.iter().filter(has_forgotten).copied().collect();
    if strangers.is_empty() { Ok(*latest) } else { Err(Waits::Strangers(strangers)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(generation: u64, position: u64, nodes: &[u32]) -> LastSet {
        LastSet {
            mark: Mark { generation, position },
            nodes: nodes.into(),
            engine: Kind::Huc,
            policy: Policy::TrustContract,
            durable: false,
        }
    }

    #[test]
    fn the_latest_set_begins_again_when_all_of_it_are_there() {
        let (three, two) = (set(5, 1, &[1, 2, 3]), set(5, 9, &[1, 2]));
        let all = |known: &[(u32, Option<&LastSet>)]| rule(&known.iter().map(|(n, s)| (*n, *s)).collect()).cloned();
        assert_eq!(all(&[(1, Some(&three)), (2, Some(&three)), (3, Some(&three))]), Ok(three.clone()));
        assert_eq!(all(&[(1, Some(&three)), (2, Some(&three))]), Err(Waits::Unheard([3].into())));
        // 3 left, and the disk of 2 was not written before the end.
        assert_eq!(all(&[(1, Some(&two)), (2, Some(&three)), (3, None)]), Ok(two.clone()));
        assert_eq!(all(&[(1, Some(&two)), (2, Some(&three))]), Ok(two.clone()));
        // Nor was that of 1: nobody knows whether 3 is to be in it.
        assert_eq!(all(&[(1, Some(&three)), (2, Some(&three)), (3, None)]), Err(Waits::Strangers([3].into())));
        // 3 missed that the group began again without it: it joins.
        assert_eq!(all(&[(1, Some(&two)), (2, Some(&two)), (3, Some(&three))]), Ok(two.clone()));
        // 3 joined, which only its own disk has.
        let joined = set(5, 12, &[1, 2, 3]);
        assert_eq!(all(&[(1, Some(&two)), (2, Some(&two)), (3, Some(&joined))]), Ok(joined.clone()));
        // A later generation counts, wherever its log is.
        let later = set(6, 0, &[3]);
        assert_eq!(all(&[(1, Some(&two)), (2, Some(&two)), (3, Some(&later))]), Ok(later));
        assert_eq!(all(&[(1, None)]), Err(Waits::Forgotten));
    }

    #[test]
    fn what_no_node_notes_is_not_believed() {
        assert!(set(1, 0, &[1]).is_sane());
        assert!(!set(0, 0, &[1]).is_sane() && !set(GENERATION_MAX + 1, 0, &[1]).is_sane());
        assert!(!set(1, 0, &[]).is_sane() && !set(1, 0, &[1, 1]).is_sane());
        assert!(!set(1, 0, &(0..257).collect::<Vec<_>>()).is_sane());
        let lowi = LastSet { engine: Kind::Lowi, policy: Policy::Fence, ..set(1, 0, &[1]) };
        assert!(!lowi.is_sane());
    }
}
