//! Acceptors are alike: states that differ only in which acceptor is which are one state to a checker.

use super::{Learning, Operation, Paxos, Slot};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// A proposer's state, taken apart for a checker: whatever it does next is the same for equal parts, but for the names of acceptors and of
/// requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Apart<const ACCEPTORS: usize> {
    /// What does not belong to any one acceptor.
    pub rest: u64,
    /// What it knows of each acceptor, and has asked it and not heard of, in the order of the members.
    pub acceptors: [u64; ACCEPTORS],
}

impl Paxos {
    /// Hashes for a checker that takes acceptors for alike, which they are as memories: nothing here prefers one. Left out is what nothing
    /// depends on: the totals, and which numbers requests got (what is asked of one acceptor is answered in order).
    ///
    /// # Panics
    /// If there are not so many members, if the two-sided acceptor was used (it is in one process, and so not like the others), or if
    /// actions were not taken.
    #[doc(hidden)]
    #[must_use]
    pub fn apart<const ACCEPTORS: usize>(&self) -> Apart<ACCEPTORS> {
        // No `..`: what is added to the machine must be put somewhere here.
        let Self {
            config,
            random,
            members,
            suspected,
            barrier,
            next_members,
            led_before,
            waiting,
            waiting_mine: _,
            waiting_ids: _,
            run,
            place,
            resend_due_ns,
            runs,
            slots,
            two_sided,
            pending,
            in_flight: _,
            next_request: _,
            local,
            base,
            decided,
            given,
            learned,
            history,
            recent_ids,
            stable,
            told_stable,
            tell_due_ns,
            reached,
            in_vain,
            learning,
            behind,
            learn_due_ns,
            learn_tries,
            halted,
            refusals: _,
            stats: _,
            actions,
        } = self;
        assert!(two_sided.is_empty() && local.is_empty() && actions.is_empty() && members.len() == ACCEPTORS);
        let mut hasher = DefaultHasher::new();
        (config, random, members, suspected, barrier, next_members, led_before).hash(&mut hasher);
        (waiting, run, place, resend_due_ns, runs, base, decided, given, learned, history, recent_ids).hash(&mut hasher);
        (stable, told_stable, tell_due_ns, reached, in_vain, behind, learn_due_ns, learn_tries, halted).hash(&mut hasher);
        learning.as_ref().map(|Learning { slot, words: _, fetching }| (slot, fetching)).hash(&mut hasher);
        for (instance, slot) in slots {
            let Slot { ballot, stage, lanes: _, mine, variants, value, aborts, due_ns } = slot;
            (instance, ballot, stage, mine, variants, value, aborts, due_ns).hash(&mut hasher);
        }
        let rest = hasher.finish();
        let mut known = members.iter().enumerate().map(|(place, member)| {
            let mut hasher = DefaultHasher::new();
            let asked: Vec<_> = pending.iter().filter(|(_, operation)| operation.to == member).collect();
            for (_, Operation { to: _, slot, what }) in &asked {
                (slot, what).hash(&mut hasher);
            }
            for (instance, slot) in slots {
                let super::slot::Lane { predicted, seen, last, promised, vote, prior, written } = &slot.lanes[place];
                let last = last.and_then(|last| asked.iter().position(|(id, _)| **id == last));
                (instance, predicted, seen, last, promised, vote, prior, written).hash(&mut hasher);
            }
            learning.as_ref().and_then(|learning| learning.words.get(&member)).hash(&mut hasher);
            hasher.finish()
        });
        Apart { rest, acceptors: std::array::from_fn(|_| known.next().unwrap_or_default()) }
    }
}
