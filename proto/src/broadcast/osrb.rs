//! Optimistic stabilizing reliable broadcast (FiDe Alg. 2, App. A.2).
//!
//! To broadcast is to send to everybody. Whoever delivered a message keeps it, and sends it to everybody when its origin has crashed, because the
//! origin may have reached only some; until its user says by [`Osrb::stabilize`] that everybody correct has it.
//!
//! What Alg. 2 leaves open, and what is done here:
//!
//! * **A message that comes after the crash of its origin.** Alg. 2 sends again only `upon CRASH`, what it holds at that moment. p1 sends m to p2
//!   and p3 and crashes; the copy for p3 is lost. p2 is told of the crash first and gets m then: it delivers m, p3 never does, and no other
//!   crash makes p2 send it again. *Agreement* is broken (and HSUC stops: p3 proposes what p2 will not acknowledge any more). Here what comes from
//!   an origin that is known to have crashed is sent on at once, as lazy reliable broadcast does (Cachin et al., Alg. 3.2).
//! * **Whose messages are sent again.** Alg. 2 sends everything at any crash. Only what the crashed one was the *origin* of can be missing
//!   somewhere, as long as links between the living lose nothing; so only that is sent.
//! * **`delivered` grows for ever.** Stability is told of an id *and all before it of the same origin*. Then whatever is at or below the last stable
//!   sequence was delivered, and what is above it is what is kept: `delivered` is a watermark for each origin, and the keys of `retransmit`.
//! * **An origin that leaves** while its last message is unstable is like one that crashed: what it broadcast is sent on
//!   ([`Osrb::set_members`]), because nobody will be told of its crash. So is what is unstable to those who leave: p1 broadcasts that p3 leaves,
//!   only p2 gets it and forgets p3, p1 crashes; p3 would wait for ever.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::group::{MemberId, MemberSet, Refusals, Refused};

/// Most messages that wait for stability. What comes beyond is refused, so a user must stabilize sooner (HSUC needs 2).
pub const MAX_UNSTABLE: usize = 64;

/// Which message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Id {
    /// Who broadcast it first.
    pub origin: MemberId,
    /// Grows with every broadcast of this origin, from 1; it may skip.
    pub sequence: u64,
}

/// What is sent, by its origin or by whoever sends it again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message<B> {
    /// Which.
    pub id: Id,
    /// What.
    pub body: B,
}

/// The word of the caller that *every correct process has received this message and all that its origin broadcast before it*
/// (Stability, App. A.2).
///
/// OSRB cannot check this. If it is false, and the origin has crashed, a process that has not got the message never gets it:
/// agreement is broken. So it is built by name, where the reason can be written beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stable(Id);

impl Stable {
    /// I know that every correct process has received `id` and all before it of its origin.
    #[must_use]
    pub const fn received_by_everybody(id: Id) -> Self {
        Self(id)
    }
}

/// The machine of one member.
///
/// Links are reliable: between two that live nothing is lost. After every call, drain [`Osrb::poll_send`] and [`Osrb::poll_deliver`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Osrb<B> {
    me: MemberId,
    correct: MemberSet,
    crashed: MemberSet,
    last_sequence: u64,
    /// Everything of this origin up to here was delivered and is stable.
    stable: BTreeMap<MemberId, u64>,
    retransmit: BTreeMap<Id, B>,
    sends: VecDeque<(MemberId, Message<B>)>,
    deliveries: VecDeque<Message<B>>,
    refusals: Refusals,
}

impl<B: Clone> Osrb<B> {
    /// Nothing was broadcast, everybody is alive.
    #[must_use]
    pub fn new(me: MemberId, members: MemberSet) -> Self {
        Self {
            me,
            correct: members,
            crashed: MemberSet::new(),
            last_sequence: 0,
            stable: BTreeMap::new(),
            retransmit: BTreeMap::new(),
            sends: VecDeque::new(),
            deliveries: VecDeque::new(),
            refusals: Refusals::default(),
        }
    }

    /// Alg. 2 line 4. It is delivered here at once.
    ///
    /// # Errors
    /// [`Refused::ImpossibleBallot`] if `sequence` is not above the last one, [`Refused::Busy`] if [`MAX_UNSTABLE`] are unstable.
    pub fn broadcast(&mut self, sequence: u64, body: B) -> Result<Id, Refused> {
        if sequence <= self.last_sequence {
            return Err(self.refusals.count(Refused::ImpossibleBallot));
        }
        if self.retransmit.len() >= MAX_UNSTABLE {
            return Err(self.refusals.count(Refused::Busy));
        }
        let message = Message { id: Id { origin: self.me, sequence }, body };
        self.last_sequence = sequence;
        self.multisend(&message);
        self.deliver(message.clone());
        self.invariants();
        Ok(message.id)
    }

    /// Alg. 2 line 7.
    ///
    /// # Errors
    /// [`Refused::UnknownMember`]; [`Refused::Duplicate`]; [`Refused::ImpossibleBallot`] for sequence 0, and for one of our own that was never
    /// broadcast; [`Refused::Malformed`] for a message from ourselves; [`Refused::Busy`] if [`MAX_UNSTABLE`] are unstable.
    pub fn handle_message(&mut self, from: MemberId, message: Message<B>) -> Result<(), Refused> {
        if let Err(why) = self.check(from, message.id) {
            return Err(self.refusals.count(why));
        }
        if self.crashed.contains(message.id.origin) {
            self.multisend(&message);
        }
        self.deliver(message);
        self.invariants();
        Ok(())
    }

    fn check(&self, from: MemberId, id: Id) -> Result<(), Refused> {
        if !self.is_member(from) || !self.is_member(id.origin) {
            Err(Refused::UnknownMember)
        } else if from == self.me {
            Err(Refused::Malformed)
        } else if id.sequence == 0 || id.origin == self.me && id.sequence > self.last_sequence {
            Err(Refused::ImpossibleBallot)
        } else if self.delivered(id) {
            Err(Refused::Duplicate)
        } else if self.retransmit.len() >= MAX_UNSTABLE {
            Err(Refused::Busy)
        } else {
            Ok(())
        }
    }

    /// Alg. 2 line 12.
    ///
    /// # Errors
    /// [`Refused::UnknownMember`], [`Refused::Duplicate`].
    pub fn handle_crash(&mut self, member: MemberId) -> Result<(), Refused> {
        if self.crashed.contains(member) {
            return Err(self.refusals.count(Refused::Duplicate));
        }
        if !self.correct.remove(member) {
            return Err(self.refusals.count(Refused::UnknownMember));
        }
        self.crashed.insert(member);
        self.send_again(|origin| origin == member);
        self.invariants();
        Ok(())
    }

    /// Alg. 2 line 17. False if there was nothing to forget.
    ///
    /// # Errors
    /// [`Refused::Malformed`] if we have not even got it ourselves: then the caller cannot know.
    pub fn stabilize(&mut self, Stable(id): Stable) -> Result<bool, Refused> {
        if !self.retransmit.contains_key(&id) {
            return if self.delivered(id) { Ok(false) } else { Err(self.refusals.count(Refused::Malformed)) };
        }
        self.retransmit.retain(|kept, _| kept.origin != id.origin || kept.sequence > id.sequence);
        if self.is_member(id.origin) {
            self.stable.insert(id.origin, id.sequence);
        }
        self.invariants();
        Ok(true)
    }

    /// Who belongs to it from now on. What those broadcast who do not any more is sent on first, to everyone before; and to them, what is unstable.
    ///
    /// Messages of origins that are not members are refused from now on, so they must be stable or known to come again by another origin.
    pub fn set_members(&mut self, members: &MemberSet) {
        let me_out = !members.contains(self.me);
        self.send_again(|origin| me_out || !members.contains(origin));
        // Who leaves gets what it may miss now: it is not among those to whom later crashes make us send.
        for leaver in self.correct.iter().filter(|&member| member != self.me && !members.contains(member)) {
            let missed = self.retransmit.iter().filter(|(id, _)| id.origin != self.me && id.origin != leaver);
            self.sends.extend(missed.map(|(&id, body)| (leaver, Message { id, body: body.clone() })));
        }
        self.crashed = self.crashed.iter().filter(|&member| members.contains(member)).collect();
        self.correct = members.iter().filter(|&member| !self.crashed.contains(member)).collect();
        self.stable.retain(|&origin, _| members.contains(origin));
        self.invariants();
    }

    /// What is to be sent next, to whom.
    pub fn poll_send(&mut self) -> Option<(MemberId, Message<B>)> {
        self.sends.pop_front()
    }

    /// What is delivered next.
    pub fn poll_deliver(&mut self) -> Option<Message<B>> {
        self.deliveries.pop_front()
    }

    /// How many messages are kept to be sent again.
    #[must_use]
    pub fn unstable(&self) -> usize {
        self.retransmit.len()
    }

    /// Whether it was delivered here.
    #[must_use]
    pub fn delivered(&self, id: Id) -> bool {
        id.sequence <= self.stable.get(&id.origin).copied().unwrap_or(0) || self.retransmit.contains_key(&id)
    }

    /// What it refused.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    fn is_member(&self, member: MemberId) -> bool {
        self.correct.contains(member) || self.crashed.contains(member)
    }

    fn deliver(&mut self, message: Message<B>) {
        self.retransmit.insert(message.id, message.body.clone());
        self.deliveries.push_back(message);
    }

    fn send_again(&mut self, of: impl Fn(MemberId) -> bool) {
        let again: Vec<_> =
            self.retransmit.iter().filter(|(id, _)| of(id.origin)).map(|(&id, body)| (id, body.clone())).collect();
        for (id, body) in again {
            self.multisend(&Message { id, body });
        }
    }

    fn multisend(&mut self, message: &Message<B>) {
        let others = self.correct.iter().filter(|&member| member != self.me && member != message.id.origin);
        self.sends.extend(others.map(|member| (member, message.clone())));
    }

    fn invariants(&self) {
        debug_assert!(self.retransmit.len() <= MAX_UNSTABLE);
        debug_assert!(self.correct.iter().all(|member| !self.crashed.contains(member)));
        debug_assert!(self.retransmit.keys().all(|id| id.sequence > self.stable.get(&id.origin).copied().unwrap_or(0)));
        debug_assert!(self.stable.keys().all(|&origin| self.is_member(origin)), "bounded by the members");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const P1: MemberId = MemberId(1);
    const P2: MemberId = MemberId(2);
    const P3: MemberId = MemberId(3);

    fn osrb(me: MemberId) -> Osrb<u32> {
        Osrb::new(me, MemberSet::first(3))
    }

    fn m(origin: MemberId, sequence: u64, body: u32) -> Message<u32> {
        Message { id: Id { origin, sequence }, body }
    }

    fn sends(o: &mut Osrb<u32>) -> Vec<(u16, u64)> {
        std::iter::from_fn(|| o.poll_send()).map(|(to, message)| (to.0, message.id.sequence)).collect()
    }

    fn deliveries(o: &mut Osrb<u32>) -> Vec<u32> {
        std::iter::from_fn(|| o.poll_deliver()).map(|message| message.body).collect()
    }

    #[test]
    fn fide_a2_validity_a_broadcast_goes_to_everybody_and_is_delivered_here() {
        let mut o = osrb(P2);
        assert_eq!(o.broadcast(1, 7), Ok(Id { origin: P2, sequence: 1 }));
        assert_eq!((sends(&mut o), deliveries(&mut o)), (vec![(1, 1), (3, 1)], vec![7]));
    }

    #[test]
    fn fide_a2_no_duplication() {
        let mut o = osrb(P2);
        o.handle_message(P1, m(P1, 1, 7)).unwrap();
        assert_eq!(o.handle_message(P3, m(P1, 1, 7)), Err(Refused::Duplicate));
        assert_eq!(o.stabilize(Stable::received_by_everybody(Id { origin: P1, sequence: 1 })), Ok(true));
        assert_eq!(o.handle_message(P3, m(P1, 1, 7)), Err(Refused::Duplicate), "stable, and still known");
        assert_eq!(deliveries(&mut o), [7]);
    }

    #[test]
    fn fide_a2_agreement_when_the_crash_comes_after_the_message() {
        let mut o = osrb(P2);
        o.handle_message(P1, m(P1, 1, 7)).unwrap();
        o.handle_message(P3, m(P3, 1, 8)).unwrap();
        o.handle_crash(P1).unwrap();
        assert_eq!(sends(&mut o), [(3, 1)], "the one of p1, not the one of p3 who lives");
    }

    /// Alg. 2 as printed delivers it here and never sends it on.
    #[test]
    fn fide_a2_agreement_when_the_message_comes_after_the_crash() {
        let mut o = osrb(P2);
        o.handle_crash(P1).unwrap();
        o.handle_message(P1, m(P1, 1, 7)).unwrap();
        assert_eq!((sends(&mut o), deliveries(&mut o)), (vec![(3, 1)], vec![7]));
    }

    #[test]
    fn fide_a2_agreement_when_the_origin_leaves_with_its_message_unstable() {
        let mut o = osrb(P2);
        o.handle_message(P1, m(P1, 1, 7)).unwrap();
        o.set_members(&[2, 3].map(MemberId).into_iter().collect());
        assert_eq!(sends(&mut o), [(3, 1)]);
        let mut o = osrb(P2);
        o.handle_message(P1, m(P1, 1, 7)).unwrap();
        o.set_members(&MemberSet::first(2));
        assert_eq!(sends(&mut o), [(3, 1)], "to who leaves");
        let mut o = osrb(P2);
        o.handle_message(P1, m(P1, 1, 7)).unwrap();
        o.set_members(&[1, 3].map(MemberId).into_iter().collect());
        assert_eq!(sends(&mut o), [(3, 1)], "who leaves hands on what it has");
    }

    #[test]
    fn fide_a2_what_is_stable_is_not_sent_again() {
        let mut o = osrb(P2);
        for sequence in [2, 5, 9] {
            o.handle_message(P1, m(P1, sequence, 7)).unwrap();
        }
        o.stabilize(Stable::received_by_everybody(Id { origin: P1, sequence: 5 })).unwrap();
        assert_eq!(o.unstable(), 1, "what came before it is stable too");
        o.handle_crash(P1).unwrap();
        assert_eq!(sends(&mut o), [(3, 9)]);
    }

    #[test]
    fn fide_a2_nobody_can_vouch_for_what_is_not_here() {
        let mut o = osrb(P2);
        assert_eq!(o.stabilize(Stable::received_by_everybody(Id { origin: P1, sequence: 1 })), Err(Refused::Malformed));
    }

    #[test]
    fn fide_a2_memory_is_bounded_over_a_million_messages() {
        let mut o = osrb(P2);
        for sequence in 1..=1_000_000 {
            o.handle_message(P1, m(P1, sequence, 7)).unwrap();
            o.poll_deliver().unwrap();
            if sequence > 1 {
                assert!(o.unstable() <= 2);
                o.stabilize(Stable::received_by_everybody(Id { origin: P1, sequence: sequence - 1 })).unwrap();
            }
        }
        assert_eq!((o.unstable(), o.stable.len()), (1, 1));
    }

    #[test]
    fn fide_a2_what_cannot_be_is_refused_and_changes_nothing() {
        let mut o = osrb(P2);
        o.broadcast(3, 1).unwrap();
        let refused = |o: &mut Osrb<u32>, from, message, why| {
            let before = o.clone();
            assert_eq!(o.handle_message(from, message), Err(why));
            let count = std::mem::replace(&mut o.refusals, before.refusals);
            assert_eq!((&*o, count.of(why)), (&before, before.refusals.of(why) + 1));
            o.refusals = count;
        };
        refused(&mut o, MemberId(4), m(P1, 1, 0), Refused::UnknownMember);
        refused(&mut o, P1, m(MemberId(4), 1, 0), Refused::UnknownMember);
        refused(&mut o, P2, m(P1, 1, 0), Refused::Malformed);
        refused(&mut o, P1, m(P1, 0, 0), Refused::ImpossibleBallot);
        refused(&mut o, P1, m(P2, 4, 0), Refused::ImpossibleBallot);
        refused(&mut o, P1, m(P2, 3, 0), Refused::Duplicate);
        assert_eq!(o.broadcast(3, 1), Err(Refused::ImpossibleBallot));
        assert_eq!(o.handle_crash(MemberId(4)), Err(Refused::UnknownMember));
        o.handle_crash(P1).unwrap();
        assert_eq!(o.handle_crash(P1), Err(Refused::Duplicate));
        for sequence in 1..MAX_UNSTABLE as u64 {
            o.handle_message(P3, m(P3, sequence, 0)).unwrap();
        }
        refused(&mut o, P3, m(P3, 1_000, 0), Refused::Busy);
        assert_eq!(o.broadcast(9, 1), Err(Refused::Busy));
    }

    proptest! {
        #[test]
        fn fide_a2_hostile_messages_leave_it_in_order(
            steps in prop::collection::vec((0u8..4, 0u16..5, 0u16..5, prop_oneof![0u64..6, Just(u64::MAX)]), 0..60)
        ) {
            let mut o = osrb(P2);
            let mut seen = Vec::new();
            for (what, from, origin, sequence) in steps {
                let before = o.clone();
                let id = Id { origin: MemberId(origin), sequence };
                let result = match what {
                    0 => o.handle_message(MemberId(from), Message { id, body: 0 }),
                    1 => o.handle_crash(MemberId(from)),
                    2 => o.stabilize(Stable::received_by_everybody(id)).map(drop),
                    _ => o.broadcast(sequence, 0).map(drop),
                };
                if result.is_err() {
                    let count = std::mem::replace(&mut o.refusals, before.refusals);
                    prop_assert_eq!(&o, &before);
                    o.refusals = count;
                }
                while o.poll_send().is_some() {}
                while let Some(message) = o.poll_deliver() {
                    prop_assert!(!seen.contains(&message.id), "delivered twice");
                    seen.push(message.id);
                }
            }
        }
    }
}
