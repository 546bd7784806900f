//! What must hold, judged by somebody who sees all hosts.
//!
//! | property | says |
//! |---|---|
//! | `agreement` | applications get the same entries in the same order, none missing, on whatever host |
//! | `integrity` | no proposal is applied twice |
//! | `validity` | what is applied was proposed by that client, with that number and content |
//! | `snapshot` | a snapshot is the state that the entries before it make |
//! | `fates` | what is said of a proposal is so, and stays so |
//! | `one-life` | a member is one agent of one host, to everybody |
//! | `kept` | no host finds that entries which it was told of are missing from the log of the others |
//! | `one-group` | a group is not begun anew while a member of the one before runs |
//! | `safe-exit` | while the contract holds, members halt only with their agents, or by a witness |
//! | `termination` | when the faults are over, the groups run again and decide |
//!
//! `agreement`, `integrity`, `snapshot`, `fates`, `kept` and `one-group` hold where [`promises`] says so;
//! where nothing is promised, members may contradict each other, and that is counted. The others
//! hold under all faults.

use super::{Profile, Setting};
use crate::invariants::{Violation, broken};
use fide_proto::consensus::Kind;
use fide_proto::consensus::policy::Policy;
use fide_proto::group::MemberId;
use fide_proto::services::groups::state::Binding;
use fide_wire::session::Fate;
use std::collections::{BTreeMap, BTreeSet};

/// Which group: its place, and which one of that name.
pub(super) type Place = (usize, u64);

/// An application's entry, as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub client: u64,
    pub number: u64,
    pub len: usize,
}

#[derive(Default)]
struct Order {
    entries: Vec<Entry>,
    /// The state behind each.
    states: Vec<u64>,
    places: BTreeMap<(u64, u64), u64>,
    never: BTreeSet<(u64, u64)>,
    /// Members told different entries, and nothing had been promised.
    has_diverged: bool,
    owners: BTreeMap<MemberId, (u32, u32)>,
}

pub(super) struct Judge {
    /// Of each group.
    promises: Vec<bool>,
    orders: BTreeMap<Place, Order>,
    /// Of a node and an incarnation that follows others of the same agent: the first of these.
    first: BTreeMap<(u32, u32), u32>,
    violation: Option<Violation>,
}

/// Whether entries that were told are never lost, whatever this profile does.
///
/// | engine | policy | |
/// |---|---|---|
/// | HUC, HSUC, LOWI | trust-contract | while the contract holds, and when hosts or agents stand still |
/// | HUC, HSUC | fence, witness | always |
/// | Raft | any | always; a group that comes to it or from it by a change is as its other engine |
pub(super) fn promises(setting: Setting, engine: Kind, policy: Policy) -> bool {
    let switches = matches!(setting.profile, Profile::Members | Profile::Everything);
    let pauses = setting.profile == Profile::Pauses;
    pauses || setting.profile.keeps_contract() || policy.outlives_partitions() || engine == Kind::Raft && !switches
}

impl Judge {
    pub(super) fn new(promises: Vec<bool>) -> Self {
        Self { promises, orders: BTreeMap::new(), first: BTreeMap::new(), violation: None }
    }

    pub(super) const fn violation(&mut self) -> Option<Violation> {
        self.violation.take()
    }

    /// The first thing that does not hold is the one that is told.
    pub(super) fn must(&mut self, property: &'static str, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.violation.is_none() {
            self.violation = broken(property, what()).err();
        }
    }

    /// Where nothing is promised, a group that breaks it is judged no more.
    fn should(&mut self, place: Place, property: &'static str, holds: bool, what: impl FnOnce() -> String) {
        if self.promises[place.0] {
            self.must(property, holds, what);
        } else if !holds {
            self.orders.entry(place).or_default().has_diverged = true;
        }
    }

    pub(super) fn has_diverged(&self, place: Place) -> bool {
        self.orders.get(&place).is_some_and(|order| order.has_diverged)
    }

    pub(super) fn diverged(&self) -> u64 {
        self.orders.values().filter(|order| order.has_diverged).count() as u64
    }

    /// Entries of a group that some application was told of.
    pub(super) fn entries(&self, place: Place) -> u64 {
        self.orders.get(&place).map_or(0, |order| order.entries.len() as u64)
    }

    pub(super) fn all_entries(&self) -> u64 {
        self.orders.values().map(|order| order.entries.len() as u64).sum()
    }

    /// A client on a host is told of an entry; `before`: the one that it was told of before.
    pub(super) fn told(
        &mut self,
        place: Place,
        (host, client): (usize, usize),
        (before, index): (u64, u64),
        entry: Entry,
        bytes: &[u8],
    ) {
        let who = || format!("client {client} on host-{host}, group {}, of {}", place.0, place.1);
        let is_proposed = super::clients::value(entry.client, entry.number, entry.len) == bytes;
        self.must("validity", is_proposed, || format!("{} reads {entry:?}, which is no such proposal", who()));
        self.must("agreement", index == before + 1, || format!("{} reads {index} behind {before}", who()));
        if self.has_diverged(place) {
            return;
        }
        let order = self.orders.entry(place).or_default();
        let (key, known) = ((entry.client, entry.number), order.entries.len() as u64);
        if index == known + 1 {
            let first = order.places.insert(key, index);
            let state = order.states.last().copied().unwrap_or_default();
            order.entries.push(entry);
            order.states.push(super::clients::next_state(state, entry.client, entry.number));
            let was_never = order.never.contains(&key);
            self.should(place, "integrity", first.is_none(), || format!("{} reads {entry:?} at {index} and {first:?}", who()));
            self.should(place, "fates", !was_never, || format!("{} reads {entry:?}, which never would be decided", who()));
            return;
        }
        let there = usize::try_from(index - 1).ok().and_then(|at| order.entries.get(at)).copied();
        let what = || format!("{} reads {entry:?} at {index}, where others have {there:?}", who());
        self.should(place, "agreement", there == Some(entry), what);
    }

    /// An application is given a state instead of the entries through this one.
    pub(super) fn snapshot(&mut self, place: Place, index: u64, state: u64) {
        let order = self.orders.entry(place).or_default();
        let expected = usize::try_from(index).ok().and_then(|at| order.states.get(at.wrapping_sub(1))).copied();
        if !order.has_diverged {
            self.should(place, "snapshot", expected == Some(state), || {
                format!("group {} of {}: state {state:x} behind {index}, not {expected:x?}", place.0, place.1)
            });
        }
    }

    /// A client that has read the entries through `index` is told what became of a proposal.
    pub(super) fn fate(&mut self, place: Place, who: (usize, usize), proposal: (u64, u64), fate: Fate, index: u64) {
        if self.has_diverged(place) {
            return;
        }
        let order = self.orders.entry(place).or_default();
        let at = order.places.get(&proposal).copied();
        let is_read = at.is_some_and(|at| at <= index);
        let is_right = match fate {
            Fate::Decided => is_read,
            Fate::Open => !is_read,
            Fate::Never => {
                order.never.insert(proposal);
                at.is_none()
            }
            Fate::Forgotten => true,
        };
        self.should(place, "fates", is_right, || {
            format!("client {} on host-{} behind {index}: {proposal:?} is {}, it is at {at:?}", who.1, who.0, fate.name())
        });
    }

    /// A host finds that entries which it was told of are not in the log of the others.
    pub(super) fn differs(&mut self, place: Place, host: usize, (index, count): (u64, u64)) {
        self.should(place, "kept", false, || {
            format!("host-{host}, group {} of {}: {count} entries from {index} on are gone", place.0, place.1)
        });
    }

    /// An agent begins a new incarnation.
    pub(super) fn begins_anew(&mut self, node: u32, former: u32, incarnation: u32) {
        let first = self.first_of(node, former);
        self.first.insert((node, incarnation), first);
    }

    /// The first incarnation of the agent that had this one.
    fn first_of(&self, node: u32, incarnation: u32) -> u32 {
        self.first.get(&(node, incarnation)).copied().unwrap_or(incarnation)
    }

    /// A host holds this of a member.
    pub(super) fn believes(&mut self, host: usize, place: Place, binding: Binding) {
        let truth = (binding.node, self.first_of(binding.node, binding.incarnation));
        let owner = *self.orders.entry(place).or_default().owners.entry(binding.member).or_insert(truth);
        self.must("one-life", owner == truth || binding.node == 0, || {
            format!("host-{host}, group {} of {}: {binding:?}, which is {owner:?} elsewhere", place.0, place.1)
        });
    }

    /// These generations of a group run at once.
    pub(super) fn run_together(&mut self, group: usize, generations: &BTreeSet<u64>) {
        let newest = generations.last().copied().unwrap_or_default();
        self.should((group, newest), "one-group", generations.len() <= 1, || {
            format!("group {group}: {generations:?} run at once")
        });
    }
}
