//! `Active(M)`, leased (U6, U7; uKharon §6, Alg. 2 and 6, App. B, C).
//!
//! # In one head
//! Memberships are decided in slots, one behind the other. Whoever finds the slot *behind* M empty at a majority of coordinators knows that M's successor was not decided
//! when it **began** to look, and may act on M for δ from then: its lease. Whoever learns that M' follows M
//! waits until all such leases must be over, and only then takes one on M'. Nobody is told anything; the clocks do it.
//!
//! # Alg. 2, line by line
//! * **Line 4, `t` before the reads: kept.** A reader of the slot behind M found it empty at some coordinator of its majority; M' is decided only when a majority
//!   has accepted it, so that read came before D'. With `t` before the read, the lease ends before `D' + δ`. With `t` taken after the
//!   answers came, it could end a round trip (or a pause of any length) later.
//! * **Line 7, `t_start = t + δ`.** `t` is after D' because M' was known as decided, and all leases on M end before `D' + δ`. So the wait may begin when M' is
//!   *heard of*; the majority need not have been asked, and is asked meanwhile. (Behind caches it must not: see [`super::cache`].)
//! * **Line 12 stands one level too far left.** As printed, `return t > t_start` is reached when `majority_active` was *false*: the lease on M expired, M' was decided
//!   and is active elsewhere, and `Active(M)` says true, for ever. App. B.3 (*checked(M)*: "`majority_active(M)` returned true") shows what was meant.
//! * **`t in [t_start, t_end)` in line 9, `t > t_start` in line 12**: one instant, at which all older leases are over, belongs to line 9 only. Here it counts in both.
//! * **What line 9 says is true at `t`**, not when the caller gets to use it: a holder that is paused in between acts on a membership that is over. App. B.3's
//!   "at most δ before `Active(M)` returned" is wrong for it (Monotonicity stands: it speaks of *later calls*). "An application typically calls `Active`
//!   once before starting an operation and a second time before committing it"; effects outside need a fence, as with every lease.
//!
//! # What it rests on
//! * Memberships are decided without a gap, and shown here after they were decided, in their order.
//! * Between any two clocks of the group, what one calls δ the other calls at most δ·(1 + [`Timing::drift_ppm`]/10⁶). The paper waits 1.01·δ: 10,000 ppm. A clock
//!   that stands while its host sleeps or its machine is migrated is *not* such a clock.
//! * Between two cores of one host, readings differ by at most [`Timing::epsilon_ns`]. "uKharon considers that the lease starts at time t + ε and has a duration of
//!   t + d − 2ε" (App. C): read as *ends at t + δ − ε*.
//! * Waits count from the reading of the clock when the news was *handed in*, not when it arrived: later is safe.
//!
//! # Leases of different lengths (§6.3)
//! The paper: "invocations to Active(M) return false until all possibly ongoing leases on previous memberships have expired". That is more than δ of the
//! *previous* one: M1 with 1 s, then M2 with 20 µs, then M3, all within a microsecond: 20 µs after it heard of M3, a holder of M1 has most of its second before it. So the
//! wait is for the longest lease of all before, until one of them has been started here (then all before that one are over). Who has
//! not seen them goes by [`Membership::longest_before_ns`]. A *compatible* membership starts when the one before did, and does not end it.

use crate::consensus::paxos::Word;
use crate::group::{MemberId, MemberSet, Refusals, Refused};
use std::collections::VecDeque;
use std::sync::Arc;

use super::view::{Membership, MembershipId};

/// What is known about clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// How much faster one clock of the group may go than another (parts per million).
    pub drift_ppm: u64,
    /// How far the clocks of two cores of this host may be apart (ns).
    pub epsilon_ns: u64,
}

impl Default for Timing {
    /// The paper's (App. C): 1 %, a thousand times what was measured, and 64 ns.
    fn default() -> Self {
        Self { drift_ppm: 10_000, epsilon_ns: 64 }
    }
}

impl Timing {
    /// By our clock, how long we must wait until `lease_ns` are over by every clock. Rounded up.
    #[must_use]
    pub fn wait_ns(&self, lease_ns: u64) -> u64 {
        let wait = (u128::from(lease_ns) * (1_000_000 + u128::from(self.drift_ppm))).div_ceil(1_000_000);
        u64::try_from(wait).unwrap_or(u64::MAX)
    }
}

/// What an application thread looks at: three numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The latest membership that is known here.
    pub membership: MembershipId,
    /// By this clock it may be active from here …
    pub start_ns: u64,
    /// … and surely is until here, exclusively.
    pub end_ns: u64,
}

impl Lease {
    /// `Active(M)` at `now_ns`, which the caller has read after it was asked (Alg. 2 lines 4 and 9). Nothing if it takes a check to know.
    ///
    /// `false` for a membership that has a decided successor, and for one that cannot be active yet.
    #[inline]
    #[must_use]
    pub fn active(&self, now_ns: u64, membership: MembershipId) -> Option<bool> {
        if (membership == self.membership) & (now_ns < self.end_ns) {
            return Some(now_ns >= self.start_ns);
        }
        if membership < self.membership { Some(false) } else { None }
    }
}

/// Whose leases they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// An application node that reads a majority of coordinators itself.
    Direct,
    /// A lease cache: leases last Δ, and are for other caches to wait for.
    Cache,
    /// An application node that asks one cache.
    BehindCache,
}

/// What a holder wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read the word of this membership's slot at a coordinator.
    Read {
        /// Where.
        coordinator: MemberId,
        /// For which check.
        check: u64,
        /// Which slot: the one behind the membership in question.
        slot: MembershipId,
    },
    /// Ask a cache whether this membership is active.
    AskCache {
        /// For which check.
        check: u64,
        /// Which.
        membership: MembershipId,
    },
    /// Something was accepted in this slot: ask the coordinators to finish it (Alg. 6 line 8: without that, `Active` may stay false for ever).
    Finish {
        /// Which.
        slot: MembershipId,
    },
    /// What a check said: `Active(M)` at some moment between the check's begin and now (Alg. 2 line 12), whether or not the lease lasts until now.
    Checked {
        /// Which check.
        check: u64,
        /// Of which membership.
        membership: MembershipId,
        /// Whether it was active.
        active: bool,
    },
}

/// A check that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Check {
    number: u64,
    /// Before any read was sent.
    begun_ns: u64,
    empty: MemberSet,
    taken: MemberSet,
}

/// Checks that may be under way at once; the oldest goes on, the next is given up.
const CHECKS_MAX: usize = 4;

/// Obtains and renews the leases of one host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    timing: Timing,
    role: Role,
    membership: Arc<Membership>,
    lease: Lease,
    /// The longest tenure of those before `membership`'s class that may be running still.
    longest_ns: u64,
    /// The longest in its class: itself, and those before that are compatible with it.
    class_ns: u64,
    checks: VecDeque<Check>,
    next_check: u64,
    renew_due_ns: Option<u64>,
    actions: VecDeque<Action>,
    refusals: Refusals,
}

/// No start is known yet.
const NEVER: u64 = u64::MAX;

impl Holder {
    /// One that hears of `membership` as decided, now, and knows none before.
    #[must_use]
    pub fn new(timing: Timing, role: Role, membership: Arc<Membership>, now_ns: u64) -> Self {
        let mut holder = Self {
            timing,
            role,
            lease: Lease::default(),
            longest_ns: membership.longest_before_ns,
            class_ns: 0,
            membership,
            checks: VecDeque::new(),
            next_check: 1,
            renew_due_ns: None,
            actions: VecDeque::new(),
            refusals: Refusals::default(),
        };
        holder.class_ns = holder.tenure_ns(&holder.membership);
        holder.lease.membership = holder.membership.id;
        holder.lease.start_ns = holder.start_ns(now_ns);
        holder.check(now_ns);
        holder
    }

    /// How long after its successor was decided (for the role's kind of waiting) somebody may act on this one.
    fn tenure_ns(&self, membership: &Membership) -> u64 {
        match self.role {
            Role::Direct => membership.tenure_ns(),
            Role::Cache => membership.cache_lease_ns,
            Role::BehindCache => membership.lease_ns,
        }
    }

    fn lease_ns(&self) -> u64 {
        match self.role {
            Role::Direct | Role::BehindCache => self.membership.lease_ns,
            Role::Cache => self.membership.cache_lease_ns,
        }
    }

    /// From when on what was news at `news_ns` may be active.
    fn start_ns(&self, news_ns: u64) -> u64 {
        let first = self.longest_ns == 0;
        match self.role {
            // Behind caches it is the first positive answer that is news: see the module of caches.
            Role::BehindCache => NEVER,
            _ if first => news_ns,
            _ => self.grace_end_ns(news_ns),
        }
    }

    fn grace_end_ns(&self, news_ns: u64) -> u64 {
        news_ns.saturating_add(self.timing.wait_ns(self.longest_ns)).saturating_add(self.timing.epsilon_ns)
    }

    /// A decided membership, in its order (see [`super::Sequence`]).
    ///
    /// # Errors
    /// [`Refused::OldInstance`], [`Refused::TooFarAhead`] behind a gap, [`Refused::Malformed`] for one that does not follow from the one before.
    pub fn handle_membership(&mut self, now_ns: u64, membership: Arc<Membership>) -> Result<(), Refused> {
        if membership.id <= self.membership.id {
            return Err(self.refusals.count(Refused::OldInstance));
        }
        if membership.id > self.membership.id + 1 {
            return Err(self.refusals.count(Refused::TooFarAhead));
        }
        if !self.membership.precedes(&membership) {
            return Err(self.refusals.count(Refused::Malformed));
        }
        let tenure_ns = self.tenure_ns(&membership);
        if self.membership.is_compatible(&membership) {
            self.class_ns = self.class_ns.max(tenure_ns);
            self.membership = membership;
            self.lease = Lease { membership: self.membership.id, end_ns: 0, ..self.lease };
        } else {
            let started = now_ns >= self.lease.start_ns;
            self.longest_ns = if started { self.class_ns } else { self.longest_ns.max(self.class_ns) };
            self.class_ns = tenure_ns;
            self.membership = membership;
            self.lease = Lease { membership: self.membership.id, start_ns: self.start_ns(now_ns), end_ns: 0 };
        }
        self.checks.clear();
        self.check(now_ns);
        Ok(())
    }

    /// Begins a check of the latest membership (Alg. 2 lines 6, 10); [`Action::Checked`] says how it ended, if it ends.
    pub fn check(&mut self, now_ns: u64) -> u64 {
        let number = self.next_check;
        self.next_check += 1;
        if self.checks.len() >= CHECKS_MAX {
            // Not the oldest: a round trip longer than a few leases would never see one end.
            self.checks.remove(1);
        }
        self.checks.push_back(Check { number, begun_ns: now_ns, empty: MemberSet::new(), taken: MemberSet::new() });
        match self.role {
            Role::BehindCache => {
                self.actions.push_back(Action::AskCache { check: number, membership: self.membership.id });
            }
            Role::Direct | Role::Cache => {
                let slot = self.membership.id + 1;
                for coordinator in self.membership.coordinators.iter() {
                    self.actions.push_back(Action::Read { coordinator, check: number, slot });
                }
            }
        }
        self.renew_due_ns = Some(now_ns.saturating_add((self.lease_ns() / 2).max(1)));
        number
    }

    /// A coordinator's word of the slot behind the membership.
    ///
    /// # Errors
    /// [`Refused::Malformed`] if caches are asked here, or the check never was; [`Refused::OldInstance`] if it is over,
    /// [`Refused::UnknownMember`], [`Refused::Duplicate`], [`Refused::ImpossibleBallot`] for a word that no acceptor has.
    pub fn handle_read(&mut self, now_ns: u64, from: MemberId, check: u64, word: Word) -> Result<(), Refused> {
        self.take_read(now_ns, from, check, word).map_err(|why| self.refusals.count(why))
    }

    fn take_read(&mut self, now_ns: u64, from: MemberId, number: u64, word: Word) -> Result<(), Refused> {
        if self.role == Role::BehindCache || number >= self.next_check {
            return Err(Refused::Malformed);
        }
        if !self.membership.coordinators.contains(from) {
            return Err(Refused::UnknownMember);
        }
        if word.accepted_proposal > word.min_proposal || word.accepted_proposal == 0 && word.accepted_value != 0 {
            return Err(Refused::ImpossibleBallot);
        }
        let at = self.checks.iter().position(|check| check.number == number).ok_or(Refused::OldInstance)?;
        let majority = self.membership.coordinators.majority();
        let check = &mut self.checks[at];
        if check.empty.contains(from) || check.taken.contains(from) {
            return Err(Refused::Duplicate);
        }
        if word.may_be_accepted() {
            check.taken.insert(from);
        } else {
            check.empty.insert(from);
        }
        // "For safety, Active returns false if at least one of the READs on the next consensus slot is non-empty" (§6.2) — of those that made the majority.
        // A majority of empty ones is as good, whatever others say.
        if check.empty.len() >= majority {
            self.passed(now_ns, at);
        } else if check.empty.len() + check.taken.len() >= majority && !check.taken.is_empty() {
            let Some(check) = self.checks.remove(at) else { return Ok(()) };
            let membership = self.membership.id;
            self.actions.push_back(Action::Finish { slot: membership + 1 });
            self.actions.push_back(Action::Checked { check: check.number, membership, active: false });
        }
        Ok(())
    }

    /// A cache's answer.
    ///
    /// # Errors
    /// As [`Holder::handle_read`].
    pub fn handle_cache(&mut self, now_ns: u64, check: u64, membership: MembershipId, active: bool) -> Result<(), Refused> {
        let at = self.checks.iter().position(|known| known.number == check);
        let refused = match at {
            _ if self.role != Role::BehindCache || check >= self.next_check || membership > self.membership.id => {
                Some(Refused::Malformed)
            }
            None => Some(Refused::OldInstance),
            _ if membership != self.membership.id => Some(Refused::OldInstance),
            Some(_) => None,
        };
        if let Some(why) = refused {
            return Err(self.refusals.count(why));
        }
        let Some(at) = at else { return Ok(()) };
        if active {
            if self.lease.start_ns == NEVER {
                self.lease.start_ns = if self.longest_ns == 0 { now_ns } else { self.grace_end_ns(now_ns) };
            }
            self.passed(now_ns, at);
        } else if let Some(check) = self.checks.remove(at) {
            self.actions.push_back(Action::Checked { check: check.number, membership, active: false });
        }
        Ok(())
    }

    /// Alg. 2 line 11, and line 12 where it belongs.
    fn passed(&mut self, now_ns: u64, at: usize) {
        let Some(check) = self.checks.remove(at) else { return };
        let end_ns = check.begun_ns.saturating_add(self.lease_ns()).saturating_sub(self.timing.epsilon_ns);
        self.lease.end_ns = self.lease.end_ns.max(end_ns);
        let active = check.begun_ns >= self.lease.start_ns;
        self.actions.push_back(Action::Checked { check: check.number, membership: self.membership.id, active });
        // In the background, so that "Active is not delayed by the calls to majority_active".
        let renew_ns = check.begun_ns.saturating_add(self.lease_ns() / 2);
        self.renew_due_ns = Some(renew_ns.max(now_ns.saturating_add(1)));
    }

    /// The lease, to be published to application threads.
    #[inline]
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.lease
    }

    /// See [`Lease::active`].
    #[inline]
    #[must_use]
    pub fn active(&self, now_ns: u64, membership: MembershipId) -> Option<bool> {
        self.lease.active(now_ns, membership)
    }

    /// The latest membership known.
    #[must_use]
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// When [`Holder::handle_timeout`] wants to be called: half a lease after the last check.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.renew_due_ns
    }

    /// Time to renew.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.renew_due_ns.is_none_or(|due| due > now_ns) {
            return;
        }
        if self.checks.len() < CHECKS_MAX {
            self.check(now_ns);
        } else {
            self.renew_due_ns = Some(now_ns.saturating_add((self.lease_ns() / 2).max(1)));
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What it refused.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Panics if its state is one that it must never be in.
    pub fn invariants(&self) {
        assert_eq!(self.lease.membership, self.membership.id, "the lease is on the latest membership known");
        assert!(self.checks.len() <= CHECKS_MAX);
        for check in &self.checks {
            assert!(check.number < self.next_check);
            assert!(self.membership.coordinators.covers(&check.empty) && self.membership.coordinators.covers(&check.taken));
            assert!(check.empty.len() < self.membership.coordinators.majority(), "who has a majority is done");
        }
    }
}
