//! When another host counts as fenced: not by the clock of one observer, but by the word of so many that none can be left who keep its gates open.
//!
//! A fence in mode *acknowledged by a majority* stays open while more than half of the hosts that it knows confirm it. An observer that hears
//! nothing of it may be the only one: then its own clock says nothing. So each observer states that it has given an incarnation up
//! (`CONDEMNED` in its path reports), from when on it confirms nothing of it, and how long before that it heard it last. The host is
//! fenced once so many have stated that, and the promised time is over for each of them, that those who are left are too few to confirm.
//!
//! **Invariant.** Let U be the hosts that the fenced host knows (without itself), and S those who have given it up. It needs ⌈|U|/2⌉ confirmations,
//! of U \ S. With |S| ≥ ⌊|U|/2⌋ + 1 there are fewer. U is not known here, but every host that it knows is taken to be known here as well, so
//! |U| ≤ |known|, which makes the condition stricter. This host counts itself, so it says nothing of the fence of a host that does not
//! know it.
//!
//! S is made of words alone. A host that is fenced or dead confirms nothing either, and may do so again: its operator opens its fence, or
//! boots it, or it opens by itself ([`crate::node::fence`]), and an observer that is cut off does not hear of that. A word is dropped when its giver is met in a new
//! incarnation, which may have taken it back ([`super::mistaken`]).
//!
//! *Silent host* waits for that for a while, so that one verdict says both. Where it does not come (this side of a partition is too small), the
//! verdict says *not fenced*, and [`Event::Fenced`] follows if it comes later.

use super::{Event, Known, Node};
use crate::detector::{Action, Verdict};
use fide_wire::packet::ReportEntry;
use fide_wire::verdict::{Cause, Confirmers, FenceMode};
use std::collections::BTreeMap;

/// A verdict waits for the others' word for as long as the fence's time is, and no longer than this.
const HELD_MAX_NS: u64 = 250_000_000;

/// What is known of a host that was given up here, and of its fence.
#[derive(Clone, Debug, Default)]
pub(super) struct FencedView {
    /// Who has stated that it has given this incarnation up, and when what it confirmed last is over.
    by: BTreeMap<u32, u64>,
    /// It is fenced, as far as it promised to be.
    is_fenced: bool,
    /// *Silent host*, which waits for that, and until when.
    held: Option<(Box<Verdict>, u64)>,
    /// It was told without.
    is_owed: bool,
}

impl FencedView {
    pub(super) const fn is_fenced(&self) -> bool {
        self.is_fenced
    }
}

impl Node {
    /// Whether the fence of this host stays open while a majority confirms it.
    fn is_fenced_by_majority(verdict: &Verdict) -> bool {
        verdict.evidence.fence.is_some_and(|promise| promise.mode == FenceMode::Acknowledged(Confirmers::Majority))
    }

    /// A verdict of the detector, by its own clock: what it says of the fence is made true, or it waits for that.
    pub(super) fn weigh_fence(&mut self, mut verdict: Box<Verdict>, now_ns: u64) -> Option<Box<Verdict>> {
        let is_final = matches!(verdict.cause, Cause::SilentHost | Cause::AgentLost) && verdict.app == 0;
        let is_counted = Self::is_fenced_by_majority(&verdict);
        if !is_final && is_counted {
            // A host that is late or unreachable is not fenced because one clock says that its time is over.
            verdict.evidence.fenced &= self.is_fenced_by_now(verdict.node, now_ns);
            return Some(verdict);
        }
        if !is_counted {
            if verdict.cause == Cause::SilentHost && verdict.evidence.fenced && verdict.app == 0 {
                self.note_fenced(verdict.node);
            }
            return Some(verdict);
        }
        // Others wait for this host's word, as it does for theirs.
        self.reports.prompt(verdict.node, false);
        let is_over = verdict.evidence.fenced;
        verdict.evidence.fenced = is_over && self.is_given_up_by_enough(verdict.node, now_ns);
        if verdict.evidence.fenced {
            self.note_fenced(verdict.node);
        } else if is_over && verdict.cause == Cause::SilentHost {
            let timeout_ns = verdict.evidence.fence.map_or(0, |promise| promise.timeout_ns);
            let until_ns = now_ns.saturating_add(timeout_ns.min(HELD_MAX_NS));
            self.reports.prompt(verdict.node, true);
            if let Some(known) = self.hosts.get_mut(&verdict.node) {
                known.fenced.held = Some((verdict, until_ns));
                return None;
            }
        }
        Some(verdict)
    }

    pub(super) fn note_fenced(&mut self, node: u32) {
        if let Some(known) = self.hosts.get_mut(&node) {
            known.fenced.is_fenced = true;
        }
    }

    /// Whether this host is fenced, as far as it promised to be: by what enough others say, or, in the other modes, by this observer's clock.
    #[must_use]
    pub fn is_fenced(&self, node: u32) -> bool {
        self.hosts.get(&node).is_some_and(|known| known.fenced.is_fenced)
    }

    /// Whether those who have not given this host up are too few to keep its gates open.
    fn is_given_up_by_enough(&self, node: u32, now_ns: u64) -> bool {
        // A host that does not count this one knows fewer hosts than are counted here.
        let counts_us = self.hosts.get(&node).filter(|known| known.counts_us);
        let Some(given_up) = counts_us.map(|known| &known.fenced.by) else { return false };
        let mut others = self.members.clone();
        others.extend(self.detector.peers().map(|peer| peer.node));
        others.remove(&node);
        let is_out = |other: &&u32| given_up.get(other).is_some_and(|over_ns| *over_ns <= now_ns);
        let out = others.iter().filter(is_out).count() + 1; // and this host
        out > others.len().div_ceil(2)
    }

    /// Another host has given this incarnation up.
    pub(super) fn given_up_by(&mut self, reporter: u32, entry: &ReportEntry, now_ns: u64) {
        let timeout_ns = self.detector.promise(entry.node).map_or(0, |promise| promise.timeout_ns);
        let Some(known) = self.hosts.get_mut(&entry.node).filter(|known| known.incarnation == entry.incarnation) else { return };
        let over_ns = now_ns.saturating_add(timeout_ns.saturating_sub(entry.hold_ns));
        // The path that carried last counts. What it says again says the same, but for the time under way.
        let known_ns = known.fenced.by.entry(reporter).or_insert(0);
        *known_ns = over_ns.max(*known_ns);
    }

    /// A host is met in a new incarnation: its former one's words are not counted any more, unless they have been.
    pub(super) fn drop_words_of(&mut self, reporter: u32) {
        for known in self.hosts.values_mut().filter(|known| !known.fenced.is_fenced) {
            known.fenced.by.remove(&reporter);
        }
    }

    /// Whether this host is fenced, by what enough others have stated by now, for whoever waits for that.
    #[must_use]
    pub fn is_fenced_by_now(&self, node: u32, now_ns: u64) -> bool {
        self.is_fenced(node) || self.is_given_up_by_enough(node, now_ns)
    }

    /// Verdicts that waited for the others' word, or have waited for long enough, are told; so is what came too late for one.
    pub(super) fn weigh_held(&mut self, now_ns: u64) {
        let waiting = |(node, known): (&u32, &Known)| (known.fenced.held.is_some() || known.fenced.is_owed).then_some(*node);
        let waiting: Vec<u32> = self.hosts.iter().filter_map(waiting).collect();
        for node in waiting {
            let is_fenced = self.is_given_up_by_enough(node, now_ns);
            let Some(view) = self.hosts.get_mut(&node).map(|known| &mut known.fenced) else { continue };
            let is_due = view.held.as_ref().is_some_and(|(_, until_ns)| is_fenced || now_ns >= *until_ns);
            view.is_fenced |= is_fenced;
            if is_due {
                view.is_owed = !is_fenced;
                self.tell_held(node, now_ns);
            } else if is_fenced && std::mem::take(&mut view.is_owed) {
                let incarnation = self.hosts.get(&node).map_or(0, |known| known.incarnation);
                self.events.push_back(Event::Fenced { node, incarnation });
            }
        }
    }

    /// A verdict that waits is told as it is.
    pub(super) fn tell_held(&mut self, node: u32, now_ns: u64) {
        let Some(view) = self.hosts.get_mut(&node).map(|known| &mut known.fenced) else { return };
        let Some((mut verdict, _)) = view.held.take() else { return };
        (verdict.evidence.fenced, verdict.at_ns) = (view.is_fenced, now_ns);
        self.events.push_back(Event::Act(Action::Verdict(verdict)));
    }

    /// When a verdict that waits is to be weighed again.
    pub(super) fn held_until_ns(&self) -> Option<u64> {
        let now_ns = self.detector.now_ns();
        let next = |known: &Known| {
            let (_, until_ns) = known.fenced.held.as_ref()?;
            known.fenced.by.values().copied().filter(|over_ns| *over_ns > now_ns).chain([*until_ns]).min()
        };
        self.hosts.values().filter_map(next).min()
    }
}
