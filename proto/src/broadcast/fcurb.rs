//! Fail-consistent uniform reliable broadcast over heartbeats (FiDe §4.1, App. A.4).
//!
//! A body rides on a heartbeat, which reaches everybody or nobody. What this machine adds to what the lane does:
//!
//! * **Uniform agreement, checked.** Bodies are numbered for each sender without a gap. A number that is missing is a body that others have delivered
//!   and we never shall: it stops ([`Halted::MissingBroadcast`]).
//! * **Uniform self-delivery.** A body is delivered here only after [`Fcurb::handle_sent`]. If it were when it is handed to the heartbeat and the
//!   process crashed in between, it alone would have delivered it.
//! * **Fail-consistency.** After [`Event::Crash`] of q nothing of q is delivered. The notice of a crash and the last heartbeats may come by different
//!   ways; a notice that says how many bodies q sent is held back until they are here.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::consensus::Halted;
use crate::group::{MemberId, MemberSet, Refusals, Refused};

/// Most bodies that wait for a heartbeat.
pub const MAX_UNSENT: usize = 16;

/// What rides on a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message<B> {
    /// From 1, without a gap, for each sender.
    pub number: u64,
    /// What.
    pub body: B,
}

/// What the user is told, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event<B> {
    /// Everybody correct delivers it.
    Deliver {
        /// Whose.
        from: MemberId,
        /// What.
        body: B,
    },
    /// It has crashed, and everything of it was delivered.
    Crash(MemberId),
    /// Something is missing. Nothing comes any more.
    Halt(Halted),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sender {
    /// The next number. Unknown to a newcomer until it hears one.
    next: Option<u64>,
    crash: Crash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Crash {
    No,
    /// Told, but this number was not delivered yet.
    Held(u64),
    Told,
}

/// The machine of one member. After every call, drain [`Fcurb::poll_event`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fcurb<B> {
    me: MemberId,
    senders: BTreeMap<MemberId, Sender>,
    /// The number of the first of `unsent`.
    next: u64,
    unsent: VecDeque<B>,
    /// The first of `unsent` was handed out.
    polled: bool,
    events: VecDeque<Event<B>>,
    halted: bool,
    refusals: Refusals,
}

impl<B: Clone> Fcurb<B> {
    /// A member that is there from the beginning: everybody's first body has number 1.
    #[must_use]
    pub fn new(me: MemberId, members: &MemberSet) -> Self {
        Self::build(me, members, Some(1))
    }

    /// A newcomer: the first body that it hears of each of the others has whatever number. That one before is missing is for
    /// its user to notice.
    #[must_use]
    pub fn joining(me: MemberId, members: &MemberSet) -> Self {
        Self::build(me, members, None)
    }

    fn build(me: MemberId, members: &MemberSet, next: Option<u64>) -> Self {
        Self {
            me,
            senders: members
                .iter()
                .filter(|&sender| sender != me)
                .map(|sender| (sender, Sender { next, crash: Crash::No }))
                .collect(),
            next: 1,
            unsent: VecDeque::new(),
            polled: false,
            events: VecDeque::new(),
            halted: false,
            refusals: Refusals::default(),
        }
    }

    /// Puts a body on one of the next heartbeats, one on each.
    ///
    /// # Errors
    /// [`Refused::Busy`], [`Refused::Halted`].
    pub fn broadcast(&mut self, body: B) -> Result<(), Refused> {
        if self.halted {
            return Err(self.refusals.count(Refused::Halted));
        }
        if self.unsent.len() >= MAX_UNSENT {
            return Err(self.refusals.count(Refused::Busy));
        }
        self.unsent.push_back(body);
        Ok(())
    }

    /// What rides on the heartbeat that is about to leave: the same again until [`Fcurb::handle_sent`].
    pub fn poll_piggyback(&mut self) -> Option<Message<B>> {
        let body = self.unsent.front().filter(|_| !self.halted)?.clone();
        self.polled = true;
        Some(Message { number: self.next, body })
    }

    /// The heartbeat left. Now it is delivered here.
    pub fn handle_sent(&mut self) {
        if std::mem::take(&mut self.polled)
            && !self.halted
            && let Some(body) = self.unsent.pop_front()
        {
            self.next += 1;
            self.events.push_back(Event::Deliver { from: self.me, body });
        }
        self.invariants();
    }

    /// Whether a body waits for its heartbeat.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether [`Fcurb::handle_piggyback`] would take it, or why not.
    ///
    /// # Errors
    /// See there.
    pub fn check_piggyback(&self, from: MemberId, number: u64) -> Result<(), Refused> {
        if self.halted {
            return Err(Refused::Halted);
        }
        if from == self.me {
            return Err(Refused::Malformed);
        }
        let sender = self.senders.get(&from).ok_or(Refused::UnknownMember)?;
        match (number, sender.next, sender.crash) {
            (0 | u64::MAX, ..) => Err(Refused::ImpossibleBallot),
            (_, Some(next), _) if number < next => Err(Refused::Duplicate),
            (_, _, Crash::Held(last)) if number > last => Err(Refused::ImpossibleBallot),
            _ => Ok(()),
        }
    }

    /// The first copy of a piggyback of `from`. One that came after the crash of its sender, or after a gap, stops us: others may have delivered what
    /// we cannot.
    ///
    /// # Errors
    /// [`Refused::Halted`]; [`Refused::UnknownMember`]; [`Refused::Duplicate`]; [`Refused::ImpossibleBallot`] for number 0, the last of all, and for more than
    /// the notice of its crash allows; [`Refused::Malformed`] for one of our own.
    pub fn handle_piggyback(&mut self, from: MemberId, message: Message<B>) -> Result<(), Refused> {
        self.check_piggyback(from, message.number).map_err(|why| self.refusals.count(why))?;
        let Some(sender) = self.senders.get_mut(&from) else { return Ok(()) };
        if sender.crash == Crash::Told || sender.next.is_some_and(|next| message.number > next) {
            self.halt();
            return Ok(());
        }
        sender.next = Some(message.number + 1);
        self.events.push_back(Event::Deliver { from, body: message.body });
        if sender.crash == Crash::Held(message.number) {
            sender.crash = Crash::Told;
            self.events.push_back(Event::Crash(from));
        }
        self.invariants();
        Ok(())
    }

    /// `member` has crashed. `last`, if known, is the number of the last body that it sent (0: none); otherwise the caller says that all
    /// were handed in.
    ///
    /// A newcomer that heard nothing of `member` cannot tell which are missing, and takes the caller's word.
    ///
    /// # Errors
    /// [`Refused::Halted`]; [`Refused::UnknownMember`]; [`Refused::Duplicate`]; [`Refused::ImpossibleBallot`] if more than `last` were delivered;
    /// [`Refused::Malformed`] for our own.
    pub fn handle_crash(&mut self, member: MemberId, last: Option<u64>) -> Result<(), Refused> {
        let halted = self.halted;
        let why = match self.senders.get_mut(&member) {
            _ if halted => Refused::Halted,
            None if member == self.me => Refused::Malformed,
            None => Refused::UnknownMember,
            Some(sender) => match (sender.crash, sender.next, last) {
                // A second notice that says less does not free the first one.
                (Crash::Held(_) | Crash::Told, ..) => Refused::Duplicate,
                (_, Some(next), Some(last)) if next - 1 > last => Refused::ImpossibleBallot,
                (_, Some(next), Some(last)) if next - 1 < last => {
                    sender.crash = Crash::Held(last);
                    return Ok(());
                }
                _ => {
                    sender.crash = Crash::Told;
                    self.events.push_back(Event::Crash(member));
                    return Ok(());
                }
            },
        };
        Err(self.refusals.count(why))
    }

    /// Nothing comes any more that was not handed in: if the notice of a crash waits for a body, that is missing.
    pub fn handle_network_fault(&mut self) {
        if self.holds_crash() {
            self.halt();
        }
    }

    /// Whether the notice of a crash waits for a body.
    #[must_use]
    pub fn holds_crash(&self) -> bool {
        !self.halted && self.senders.values().any(|sender| matches!(sender.crash, Crash::Held(_)))
    }

    /// Who belongs to it from now on. Whoever is new begins with number 1.
    pub fn set_members(&mut self, members: &MemberSet) {
        let fresh = Sender { next: Some(1), crash: Crash::No };
        let before = std::mem::take(&mut self.senders);
        let others = members.iter().filter(|&member| member != self.me);
        self.senders = others.map(|member| (member, before.get(&member).copied().unwrap_or(fresh))).collect();
    }

    /// What the user is told next.
    pub fn poll_event(&mut self) -> Option<Event<B>> {
        self.events.pop_front()
    }

    /// How many bodies were sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.next - 1
    }

    /// What it refused.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    fn halt(&mut self) {
        self.halted = true;
        self.events.push_back(Event::Halt(Halted::MissingBroadcast));
    }

    fn invariants(&self) {
        debug_assert!(self.unsent.len() <= MAX_UNSENT && (!self.polled || !self.unsent.is_empty()));
        debug_assert!(!self.senders.contains_key(&self.me) && self.next > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const P1: MemberId = MemberId(1);
    const P2: MemberId = MemberId(2);
    const P3: MemberId = MemberId(3);

    fn fcurb() -> Fcurb<u32> {
        Fcurb::new(P2, &MemberSet::first(3))
    }

    fn m(number: u64, body: u32) -> Message<u32> {
        Message { number, body }
    }

    fn events(f: &mut Fcurb<u32>) -> Vec<Event<u32>> {
        std::iter::from_fn(|| f.poll_event()).collect()
    }

    fn delivery(from: MemberId, body: u32) -> Event<u32> {
        Event::Deliver { from, body }
    }

    #[test]
    fn fide_a4_validity_ones_own_is_delivered_when_it_has_left_and_not_before() {
        let mut f = fcurb();
        f.broadcast(7).unwrap();
        f.broadcast(8).unwrap();
        assert_eq!((f.poll_piggyback(), f.poll_piggyback(), events(&mut f)), (Some(m(1, 7)), Some(m(1, 7)), vec![]));
        f.handle_sent();
        f.handle_sent();
        assert_eq!(events(&mut f), [delivery(P2, 7)], "two heartbeats left, one with it");
        assert_eq!(f.poll_piggyback(), Some(m(2, 8)));
        f.handle_sent();
        assert_eq!((events(&mut f), f.poll_piggyback(), f.sent()), (vec![delivery(P2, 8)], None, 2));
    }

    #[test]
    fn fide_a4_no_duplication() {
        let mut f = fcurb();
        f.handle_piggyback(P1, m(1, 7)).unwrap();
        assert_eq!(f.handle_piggyback(P1, m(1, 7)), Err(Refused::Duplicate));
        f.handle_piggyback(P3, m(1, 9)).unwrap();
        assert_eq!(events(&mut f), [delivery(P1, 7), delivery(P3, 9)]);
    }

    #[test]
    fn fide_a4_uniform_agreement_a_gap_stops_it() {
        let mut f = fcurb();
        f.handle_piggyback(P1, m(1, 7)).unwrap();
        f.handle_piggyback(P1, m(3, 9)).unwrap();
        assert_eq!(events(&mut f), [delivery(P1, 7), Event::Halt(Halted::MissingBroadcast)]);
        assert_eq!(f.handle_piggyback(P3, m(1, 7)), Err(Refused::Halted));
        assert_eq!((f.broadcast(1), f.handle_crash(P3, None)), (Err(Refused::Halted), Err(Refused::Halted)));
        assert_eq!(f.refusals().of(Refused::Halted), 3);
    }

    #[test]
    fn fide_a4_fail_consistency_nothing_after_the_crash() {
        let mut f = fcurb();
        f.handle_piggyback(P1, m(1, 7)).unwrap();
        f.handle_crash(P1, None).unwrap();
        assert_eq!(f.handle_piggyback(P1, m(1, 7)), Err(Refused::Duplicate), "an old copy is harmless");
        f.handle_piggyback(P1, m(2, 8)).unwrap();
        assert_eq!(events(&mut f), [delivery(P1, 7), Event::Crash(P1), Event::Halt(Halted::MissingBroadcast)]);
    }

    #[test]
    fn fide_a4_fail_consistency_a_crash_is_held_back_until_all_that_was_sent_is_here() {
        let mut f = fcurb();
        f.handle_piggyback(P1, m(1, 7)).unwrap();
        f.handle_crash(P1, Some(3)).unwrap();
        assert_eq!(f.handle_crash(P1, None), Err(Refused::Duplicate));
        f.handle_piggyback(P1, m(2, 8)).unwrap();
        assert!(f.holds_crash());
        assert_eq!(f.handle_piggyback(P1, m(4, 0)), Err(Refused::ImpossibleBallot));
        f.handle_piggyback(P1, m(3, 9)).unwrap();
        assert_eq!(events(&mut f), [delivery(P1, 7), delivery(P1, 8), delivery(P1, 9), Event::Crash(P1)]);
        f.handle_network_fault();
        f.handle_crash(P3, Some(0)).unwrap();
        assert_eq!(events(&mut f), [Event::Crash(P3)]);
    }

    #[test]
    fn fide_a4_fail_consistency_or_it_stops() {
        let mut f = fcurb();
        f.handle_crash(P1, Some(1)).unwrap();
        f.handle_network_fault();
        assert_eq!(events(&mut f), [Event::Halt(Halted::MissingBroadcast)]);
        assert!(!f.holds_crash());
    }

    #[test]
    fn fide_a4_a_newcomer_begins_with_what_it_hears_first() {
        let mut f: Fcurb<u32> = Fcurb::joining(P3, &MemberSet::first(3));
        f.handle_piggyback(P1, m(41, 7)).unwrap();
        f.handle_piggyback(P1, m(42, 8)).unwrap();
        f.handle_crash(P2, Some(17)).unwrap();
        f.handle_piggyback(P1, m(44, 9)).unwrap();
        let halt = Event::Halt(Halted::MissingBroadcast);
        assert_eq!(events(&mut f), [delivery(P1, 7), delivery(P1, 8), Event::Crash(P2), halt]);
        let mut f = fcurb();
        f.set_members(&[2, 3, 4].map(MemberId).into_iter().collect());
        assert_eq!(f.handle_piggyback(P1, m(1, 7)), Err(Refused::UnknownMember));
        f.handle_piggyback(MemberId(4), m(1, 7)).unwrap();
    }

    #[test]
    fn fide_a4_what_cannot_be_is_refused_and_changes_nothing() {
        let mut f = fcurb();
        f.handle_piggyback(P1, m(1, 7)).unwrap();
        let before = f.clone();
        assert_eq!(f.handle_piggyback(P2, m(1, 7)), Err(Refused::Malformed));
        assert_eq!(f.handle_piggyback(MemberId(9), m(1, 7)), Err(Refused::UnknownMember));
        assert_eq!(f.handle_piggyback(P1, m(0, 7)), Err(Refused::ImpossibleBallot));
        assert_eq!(f.handle_crash(P1, Some(0)), Err(Refused::ImpossibleBallot));
        assert_eq!(f.handle_crash(P2, None), Err(Refused::Malformed));
        assert_eq!(f.handle_crash(MemberId(9), None), Err(Refused::UnknownMember));
        assert_eq!(f.refusals.total(), 6);
        f.refusals = before.refusals;
        assert_eq!(f, before);
        for body in 0..MAX_UNSENT as u32 {
            f.broadcast(body).unwrap();
        }
        assert_eq!(f.broadcast(99), Err(Refused::Busy));
    }

    proptest! {
        #[test]
        fn fide_a4_hostile_heartbeats_leave_it_in_order(
            steps in prop::collection::vec((0u8..6, 0u16..5, prop_oneof![0u64..5, Just(u64::MAX)]), 0..60)
        ) {
            let mut f = fcurb();
            let (mut crashed, mut last) = (Vec::new(), BTreeMap::new());
            for (what, who, number) in steps {
                let before = f.clone();
                let who = MemberId(who);
                let result = match what {
                    0 => f.handle_crash(who, None),
                    1 => f.handle_crash(who, Some(number)),
                    2 => f.broadcast(0),
                    3 => { f.poll_piggyback(); f.handle_sent(); Ok(()) }
                    _ => f.handle_piggyback(who, m(number, number as u32)),
                };
                if result.is_err() {
                    let count = std::mem::replace(&mut f.refusals, before.refusals);
                    prop_assert_eq!(&f, &before);
                    f.refusals = count;
                }
                while let Some(event) = f.poll_event() {
                    match event {
                        Event::Deliver { from: P2, .. } | Event::Halt(_) => {}
                        Event::Deliver { from, body } => {
                            prop_assert!(!crashed.contains(&from), "fail-consistency");
                            prop_assert_eq!(body, last.insert(from, body).unwrap_or(0) + 1);
                        }
                        Event::Crash(member) => crashed.push(member),
                    }
                }
            }
        }
    }
}
