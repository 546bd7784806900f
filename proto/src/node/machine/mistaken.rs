//! A host that is given up although enough others confirm it: the fault is the reporter's.
//!
//! # The rule
//! 1. A host with an armed fence that a majority confirms gets a report that gives it up. Enough others confirm it without the reporter:
//!    its gates stay open, and it *refutes* the report ([`Event::Refuted`]; `REFUTED` in its path reports and in its introductions). Not
//!    so where the reporter has said *fenced* as well: somebody may have acted on that, and the fence shuts.
//! 2. The reporter's word binds it all the same: others count it when they say *fenced* ([`super::fenced`]). So what the reporter
//!    confirms counts for nothing at the host, also when the reporter hears it again, until nobody counts the word any more.
//! 3. A reporter that hears a refutation was *mistaken* ([`Event::Mistaken`]). It begins a new incarnation, so that whatever rests on its
//!    verdict ends (members of groups), lifts its bar on the host, and meets it as if it had never been heard: in the same incarnation.
//! 4. Whoever meets the new incarnation of the reporter drops the former one's words, and its next report shows that it has. When all who
//!    may confirm the host have shown that, rule 2 ends.
//!
//! Whoever has given several hosts up, because it was deaf to all of them, begins one new incarnation: for a while behind that (`QUIET`)
//! it says no word on those that remain, and lifts the bar on each from which a report comes.
//!
//! A refutation names the incarnation of the reporter and of the host, so that one verdict is refuted once, and a recorded one says
//! nothing. Only a reporter that hears the host again gets it: hosts that stay deaf begin nothing anew, however often they are told.
//!
//! # Why lifting the bar is not enough
//! Of three hosts, h3 gives h1 up, is refuted, and confirms h1 again at once. h2 has h3's word, is cut off, and gives h1 up as well: both
//! of the others have given it up, so h2 says *fenced*. But h3 confirms h1, and its gates stay open.

use super::{Event, Node};
use fide_wire::packet::ReportEntry;
use fide_wire::verdict::{Confirmers, FenceMode};
use std::collections::{BTreeMap, BTreeSet};

/// Behind a new incarnation that was begun because of a mistake, nothing is said of the other hosts that were given up for so many times
/// as long as a stuck agent is given: each of them that lives reports once in that.
const QUIET: u64 = 3;

/// A host that gave this one up, and who may still count its word.
#[derive(Clone, Debug)]
struct Bar {
    /// The incarnation in which it gave its word.
    word_of: u32,
    /// The incarnation of this host that it gave up.
    own: u32,
    /// Who has met a later one of either, and does not count that word.
    know: BTreeSet<u32>,
}

/// What a node keeps of those who gave it up.
#[derive(Clone, Debug, Default)]
pub(super) struct Mistaken {
    bars: BTreeMap<u32, Bar>,
    /// Some host's word is refuted.
    refutes: bool,
    /// Until when no word is said on hosts that were given up by the former incarnation.
    quiet_until_ns: u64,
}

impl Node {
    /// This host was given up by one whose word binds it: what that one confirms does not count.
    pub(super) fn bar(&mut self, by: u32, word_of: u32, own: u32) {
        let bar = Bar { word_of, own, know: BTreeSet::new() };
        let known = self.mistaken.bars.entry(by).or_insert_with(|| bar.clone());
        if (known.word_of, known.own) != (word_of, own) {
            *known = bar;
        }
    }

    /// Nobody is barred any more: the gates were closed, and open for a new incarnation.
    pub(super) fn unbar_all(&mut self) {
        self.mistaken.bars.clear();
    }

    /// Another host's report shows which incarnations it knows.
    pub(super) fn shows_what_it_knows(&mut self, reporter: u32, body: &[u8]) {
        let Some(fence) = self.fence.as_mut().filter(|_| !self.mistaken.bars.is_empty()) else { return };
        let me = self.directory.owner().origin();
        for entry in ReportEntry::read_all(body).filter(|entry| entry.flags & ReportEntry::RELAYED == 0) {
            for (barred, bar) in &mut self.mistaken.bars {
                let is_later =
                    entry.node == *barred && entry.incarnation > bar.word_of || entry.node == me && entry.incarnation > bar.own;
                if is_later {
                    bar.know.insert(reporter);
                }
            }
        }
        let own = self.detector.config().self_incarnation;
        let hosts = &self.hosts;
        self.mistaken.bars.retain(|barred, bar| {
            let is_over = own > bar.own || hosts.get(barred).is_some_and(|known| known.incarnation > bar.word_of);
            let is_known = fence.rule().observers().all(|node| node == *barred || bar.know.contains(&node));
            if is_over && is_known {
                fence.unbar(*barred);
            }
            !(is_over && is_known)
        });
    }

    /// The reporter is outvoted.
    pub(super) fn refute(&mut self, by: u32, own: u32) {
        let Some(known) = self.hosts.get_mut(&by) else { return };
        if known.refuted.replace(own) == Some(own) {
            return;
        }
        self.mistaken.refutes = true;
        self.events.push_back(Event::Refuted { by, incarnation: known.incarnation });
        self.reports.prompt(by, false);
        // One whose agent was started again since hears no report of this host.
        self.directory.announce();
    }

    /// Whether this host refutes what another one has said of it.
    pub(super) fn is_refuted(&self, by: u32) -> bool {
        let is_open = self.fence.as_ref().is_some_and(|fence| fence.closed().is_none());
        let own = self.detector.config().self_incarnation;
        is_open && self.hosts.get(&by).is_some_and(|known| known.refuted == Some(own))
    }

    /// What introductions say of that.
    pub(super) fn introduce_refuted(&mut self) {
        if !self.mistaken.refutes {
            return;
        }
        let refuted: Vec<(u32, u32)> = self
            .hosts
            .iter()
            .filter(|(node, _)| self.is_refuted(**node))
            .map(|(node, known)| (*node, known.incarnation))
            .collect();
        self.mistaken.refutes = !refuted.is_empty();
        self.directory.set_refuted(refuted);
    }

    /// A host that was given up here refutes that: it lives, and enough others have confirmed it all the time.
    pub(super) fn was_mistaken(&mut self, node: u32, entry: &ReportEntry, own: u32, now_ns: u64) {
        let given_up = self.hosts.get(&node).filter(|known| known.condemned && entry.incarnation == own);
        // Of one that was told as fenced the report says so, and its fence shuts.
        let Some(known) = given_up.filter(|known| !known.fenced.is_fenced()) else { return };
        // Nothing rests on the verdict where the own fence was closed since.
        let (incarnation, renews) = (known.incarnation, !known.former_verdict);
        self.take_back(node, incarnation, renews, now_ns);
    }

    fn take_back(&mut self, node: u32, incarnation: u32, renews: bool, now_ns: u64) {
        // A verdict that waits for the others' word comes before its correction.
        self.tell_held(node, now_ns);
        if renews {
            let quiet_ns = self.detector.config().agent_timeout_ns.saturating_mul(QUIET);
            self.mistaken.quiet_until_ns = now_ns.saturating_add(quiet_ns);
        }
        self.lift(node, incarnation, renews);
    }

    /// Whether this host has begun a new incarnation a moment ago, because of a mistake: nothing rests on what the former one said of
    /// others, and this one has not said it again.
    #[must_use]
    pub const fn takes_back(&self, now_ns: u64) -> bool {
        now_ns < self.mistaken.quiet_until_ns
    }

    /// Whether the former incarnation's word on a host is not said again yet: others say *fenced* of that host by what is counted alone, and
    /// this one has not.
    pub(super) fn is_unsaid(&self, node: u32, now_ns: u64) -> bool {
        let is_by_majority =
            || self.detector.promise(node).is_some_and(|promise| promise.mode == FenceMode::Acknowledged(Confirmers::Majority));
        self.takes_back(now_ns)
            && self.hosts.get(&node).is_some_and(|known| known.condemned && !known.fenced.is_fenced())
            && is_by_majority()
    }

    /// A host that was given up reports, and that was not said again since: it lives.
    pub(super) fn take_back_unsaid(&mut self, node: u32, incarnation: u32, now_ns: u64) {
        if self.is_unsaid(node, now_ns) {
            self.take_back(node, incarnation, false, now_ns);
        }
    }

    /// A host that a former agent of this one has given up lives in that incarnation, and refutes the word of this one.
    pub fn refuted_by_introduction(&mut self, node: u32, incarnation: u32, now_ns: u64) {
        let renews = !self.takes_back(now_ns) && !self.reports.is_former(node);
        self.take_back(node, incarnation, renews, now_ns);
    }

    /// Nothing of a host's incarnation is refused any more. It is met as if it had never been heard.
    fn lift(&mut self, node: u32, incarnation: u32, renews: bool) {
        if let Some(known) = self.hosts.get_mut(&node) {
            (known.condemned, known.former_verdict) = (false, false);
            known.fenced = Default::default();
        }
        // It counts as before, while it is asked who it is.
        self.members.insert(node);
        self.directory.give_up(node);
        self.detector.lift(node);
        self.probing.forget(node);
        self.reports.forget(node);
        self.count_confirmers();
        self.events.push_back(Event::Mistaken { node, incarnation, renews });
    }
}
