//! Groups whose members have all stopped: which of their logs they go on with, by themselves.
//!
//! A member that stops leaves its log where it was: in its agent's memory. While others run the
//! group, its node joins again as a new member and gets theirs. Where nobody runs it any more, the
//! nodes tell each other what they keep ([`KeptLog`]), and [`rule`] says who begins it again, with
//! which log: as long as nothing that an application was told can be missing from it.
//!
//! # The rule
//! Member `y` *went on without* `x` if it knows of `x` (whose id is not above all that it knows) and
//! does not count it among its members: `x` left, or had crashed and `y` has decided something
//! since. While the policy of the group holds, `x` had stopped before that, so that what `y` decided
//! later `x` has not got; and `y` has everything that `x` had, unless others decided something else
//! in its place, and agrees with the logs of all whom it still counts (`specs/resume`). That `y` only heard of the
//! crash says nothing: a member of LOWI that missed a copy hears of it before it stops. So:
//!
//! 1. Logs of an earlier generation are behind those of a later one: it began with one of them.
//! 2. Who was gone on without is behind those who did so. Two that went on without each other both
//!    decided, and no log is behind the other one: a person decides.
//! 3. All members that the others count must be here with their logs: one that is away, or has lost
//!    its memory, may have the longest. Who was let in and never took part has none.
//! 4. Of those, the longest log is the one; it has all that any of them was told.
//!
//! It is a rule about what is known. That the log which was chosen has all that this node told its
//! own applications, every node looks for itself before it agrees ([`contradiction`]).

use super::durable::{Mark, Saved};
use super::last_set::LastSet;
use crate::consensus::log::Position;
use crate::group::{Entry, MemberId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A log that a node keeps of a group whose member stopped there, as it tells others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptLog {
    /// Which group wrote it.
    pub generation: u64,
    /// Which log: see [`super::message::Plan::lineage`].
    pub lineage: u64,
    /// The member that stopped.
    pub me: MemberId,
    /// Its last entry.
    pub position: Position,
    /// The application's entries among them.
    pub index: u64,
    /// The members that it counted when it stopped, with their nodes; itself among them.
    pub members: BTreeMap<MemberId, u32>,
    /// The highest id that it knew of.
    pub highest: MemberId,
}

impl KeptLog {
    /// How far it goes.
    #[must_use]
    pub const fn mark(&self) -> Mark {
        Mark { generation: self.generation, position: self.position }
    }

    /// Whether that log has all that was told here, by the rule.
    #[must_use]
    pub fn is_behind(&self, other: &Self) -> bool {
        let went_on = other.went_on_without(self.me) && !self.went_on_without(other.me);
        self.generation < other.generation || self.generation == other.generation && went_on
    }

    /// Whether this member went on without that one.
    #[must_use]
    pub fn went_on_without(&self, other: MemberId) -> bool {
        other <= self.highest && !self.members.contains_key(&other)
    }
}

/// What a node that does not run a group has of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The log of its last member that took part.
    pub log: Option<KeptLog>,
    /// Ids that it was invited as, under which it never took part: of which generation, and which.
    pub unborn: Option<(u64, BTreeSet<MemberId>)>,
    /// Who was to run it when this node last knew of it, if it was a member and did not leave.
    pub last_set: Option<LastSet>,
}

/// Why a group does not go on by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stays {
    /// No node that is heard keeps a log of it.
    NoLog,
    /// These nodes may have the longest one, and are not here with it.
    Missing(BTreeSet<u32>),
    /// These two both went on without the other one.
    Differ(u32, u32),
}

/// Who begins a group again, and with whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoesOn {
    /// Whose log it goes on with.
    pub node: u32,
    /// Its first members, that one among them.
    pub nodes: BTreeSet<u32>,
    /// Members that any of them has gone on without.
    pub without: BTreeSet<MemberId>,
}

/// What becomes of a group that none of these nodes runs, and nobody else does who is heard.
///
/// # Errors
/// Why it does not go on by itself.
pub fn rule(kept: &BTreeMap<u32, Kept>) -> Result<GoesOn, Stays> {
    let last = kept.values().filter_map(|kept| kept.log.as_ref()).map(|log| log.generation).max().ok_or(Stays::NoLog)?;
    let logs: BTreeMap<u32, &KeptLog> = kept
        .iter()
        .filter_map(|(node, kept)| Some((*node, kept.log.as_ref()?)))
        .filter(|(_, log)| log.generation == last)
        .collect();
    let is_behind = |log: &KeptLog| logs.values().any(|other| other.went_on_without(log.me));
    for (node, log) in &logs {
        let both = |(_, other): &(&u32, &&KeptLog)| other.went_on_without(log.me) && log.went_on_without(other.me);
        if let Some((other, _)) = logs.iter().find(both) {
            return Err(Stays::Differ(*node.min(other), *node.max(other)));
        }
    }
    let first: BTreeMap<u32, &KeptLog> =
        logs.iter().filter(|(_, log)| !is_behind(log)).map(|(node, log)| (*node, *log)).collect();
    // Nobody is first only where some went on without each other in a circle.
    let without = |log: &KeptLog| logs.values().filter(|other| log.went_on_without(other.me)).count();
    let longest = first.iter().max_by_key(|(node, log)| (log.position, without(log), std::cmp::Reverse(**node)));
    let Some((node, _)) = longest else {
        let mut nodes = logs.keys();
        let one = nodes.next().copied().unwrap_or_default();
        return Err(Stays::Differ(one, nodes.next().copied().unwrap_or(one)));
    };
    let is_unborn = |of: u32, member: &MemberId| {
        let unborn = kept.get(&of).and_then(|kept| kept.unborn.as_ref());
        unborn.is_some_and(|(generation, members)| *generation == last && members.contains(member))
    };
    let counted = first.values().flat_map(|log| &log.members).map(|(member, of)| (*member, *of));
    // Who is behind itself does not say: "behind" does not pass on (specs/resume, Resume_any_excludes).
    let is_out = |member: MemberId| first.values().any(|other| other.went_on_without(member));
    let is_here = |member: &MemberId, of: &u32| logs.get(of).is_some_and(|log| log.me == *member) || is_unborn(*of, member);
    let missing: BTreeSet<u32> =
        counted.filter(|(member, of)| !is_out(*member) && !is_here(member, of)).map(|(_, of)| of).collect();
    if !missing.is_empty() {
        return Err(Stays::Missing(missing));
    }
    let all = logs.values().flat_map(|log| log.members.keys().copied().chain([log.me]));
    Ok(GoesOn { node: *node, nodes: first.keys().copied().collect(), without: all.filter(|member| is_out(*member)).collect() })
}

/// Where a log that a group is to go on with does not have what this node told its applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The first entry of the log that differs, or is missing.
    pub position: Position,
    /// Whether there is another one at its place.
    pub differs: bool,
}

/// Looks whether `offered` has all entries of `own` through `told`.
#[must_use]
pub fn contradiction(offered: &Saved, own: &Saved, told: Position) -> Option<Contradiction> {
    let length = offered.mark().position;
    let at = |saved: &Saved, position: Position| -> Option<Entry> {
        let behind = position.checked_sub(saved.snapshot_position.checked_add(1)?)?;
        saved.entries.get(usize::try_from(behind).ok()?).cloned()
    };
    // What a snapshot stands for can be compared no more.
    let from = offered.snapshot_position.max(own.snapshot_position).saturating_add(1);
    for position in from..=told.min(length) {
        if at(offered, position) != at(own, position) {
            return Some(Contradiction { position, differs: true });
        }
    }
    (told > length).then_some(Contradiction { position: length.saturating_add(1), differs: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log of member `me`, whose node has the same number, with these members.
    fn log(me: u16, position: Position, members: &[u16]) -> KeptLog {
        let members = members.iter().map(|member| (MemberId(*member), u32::from(*member))).collect();
        KeptLog { generation: 7, lineage: 7, me: MemberId(me), position, index: position, members, highest: MemberId(3) }
    }

    fn of(logs: &[KeptLog]) -> Result<(u32, BTreeSet<u32>), Stays> {
        let kept = |log: &KeptLog| (u32::from(log.me.0), Kept { log: Some(log.clone()), unborn: None, last_set: None });
        decided(&logs.iter().map(kept).collect())
    }

    fn decided(kept: &BTreeMap<u32, Kept>) -> Result<(u32, BTreeSet<u32>), Stays> {
        rule(kept).map(|GoesOn { node, nodes, .. }| (node, nodes))
    }

    fn goes_on(node: u32, nodes: &[u32]) -> Result<(u32, BTreeSet<u32>), Stays> {
        Ok((node, nodes.iter().copied().collect()))
    }

    #[test]
    fn all_that_stopped_together_go_on_with_the_longest_log() {
        let all = [1, 2, 3];
        assert_eq!(of(&[log(1, 4, &all), log(2, 9, &all), log(3, 5, &all)]), goes_on(2, &[1, 2, 3]));
        assert_eq!(of(&[log(1, 4, &all), log(2, 4, &all), log(3, 4, &all)]), goes_on(1, &[1, 2, 3]), "of equal ones the first");
        assert_eq!(of(&[]), Err(Stays::NoLog));
    }

    #[test]
    fn who_went_on_is_ahead_however_long_the_other_log_is() {
        let stopped_first = log(1, 90, &[1, 2, 3]);
        assert_eq!(of(&[stopped_first.clone(), log(2, 9, &[2, 3]), log(3, 8, &[2, 3])]), goes_on(2, &[2, 3]));
        assert_eq!(of(&[stopped_first, log(2, 9, &[2, 3]), log(3, 9, &[3])]), goes_on(3, &[3]));
    }

    #[test]
    fn one_that_is_away_may_have_the_longest_log() {
        assert_eq!(of(&[log(1, 4, &[1, 2, 3]), log(2, 9, &[1, 2, 3])]), Err(Stays::Missing([3].into())));
        assert_eq!(of(&[log(1, 4, &[1, 2, 3]), log(2, 9, &[1, 2])]), goes_on(2, &[1, 2]), "unless somebody went on without it");
        assert_eq!(of(&[log(1, 4, &[1, 2, 3])]), Err(Stays::Missing([2, 3].into())));
        assert_eq!(of(&[log(1, 4, &[1])]), goes_on(1, &[1]));
    }

    #[test]
    fn two_that_went_on_without_each_other_are_for_a_person() {
        assert_eq!(of(&[log(1, 4, &[1]), log(2, 9, &[2, 3]), log(3, 9, &[2, 3])]), Err(Stays::Differ(1, 2)));
        let circle = [log(1, 4, &[1, 3]), log(2, 9, &[1, 2]), log(3, 9, &[2, 3])];
        assert!(matches!(of(&circle), Err(Stays::Differ(..))));
    }

    #[test]
    fn a_newcomer_of_whom_a_member_does_not_know_is_not_one_that_it_went_on_without() {
        let mut newcomer = log(4, 9, &[1, 2, 4]);
        newcomer.highest = MemberId(4);
        assert_eq!(of(&[log(1, 4, &[1, 2, 3]), log(2, 4, &[1, 2, 3]), newcomer.clone()]), goes_on(4, &[1, 2, 4]));
        // Whom the others let in, and who never took part, has nothing.
        let mut knows = log(1, 9, &[1, 4]);
        knows.highest = MemberId(4);
        let unborn = |generation| Kept { log: None, unborn: Some((generation, [MemberId(4)].into())), last_set: None };
        let kept = |of_4: Kept| BTreeMap::from([(1, Kept { log: Some(knows.clone()), unborn: None, last_set: None }), (4, of_4)]);
        assert_eq!(decided(&kept(unborn(7))), goes_on(1, &[1]));
        assert_eq!(decided(&kept(unborn(6))), Err(Stays::Missing([4].into())));
        assert_eq!(decided(&kept(Kept::default())), Err(Stays::Missing([4].into())));
    }

    #[test]
    fn a_later_generation_began_with_what_was_chosen_then() {
        let later = KeptLog { generation: 8, ..log(1, 2, &[1]) };
        assert_eq!(of(&[later, log(2, 9, &[1, 2, 3]), log(3, 9, &[1, 2, 3])]), goes_on(1, &[1]));
    }

    #[test]
    fn what_was_told_must_be_in_the_log_that_is_gone_on_with() {
        use crate::group::{Body, EntryId};
        let entry = |n: u64| Entry { id: EntryId { proposer: MemberId(1), number: n }, body: Body::Join(MemberId(1)) };
        let saved = |from: u64, numbers: &[u64]| Saved {
            snapshot_position: from,
            entries: numbers.iter().map(|n| entry(*n)).collect(),
            ..Saved::default()
        };
        let own = saved(0, &[1, 2, 3]);
        assert_eq!(contradiction(&saved(0, &[1, 2, 3, 4]), &own, 3), None);
        assert_eq!(contradiction(&saved(2, &[3, 4]), &own, 3), None);
        assert_eq!(contradiction(&saved(9, &[]), &own, 3), None, "it stands for what cannot be compared");
        assert_eq!(contradiction(&saved(0, &[1, 2]), &own, 2), None, "what nobody was told of may be missing");
        let missing = Contradiction { position: 3, differs: false };
        assert_eq!(contradiction(&saved(0, &[1, 2]), &own, 3), Some(missing));
        assert_eq!(contradiction(&saved(0, &[1, 9, 3]), &own, 3), Some(Contradiction { position: 2, differs: true }));
        assert_eq!(contradiction(&saved(0, &[1, 9, 3]), &own, 1), None);
    }
}
