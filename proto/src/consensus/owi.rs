//! OWI: one-way imposition, one instance (Nano-consensus §4.2, Alg. 2). The leader imposes a value on everybody in one message delay.
//!
//! [`super::lowi`] is what groups run; this machine is Alg. 2 by itself, for checking it, and for deciding one thing once. Everybody calls [`Owi::propose`]
//! within Δ_W. The lowest member speaks at once; if all copies of what it says came, it is decided; if nothing came for Δ_W + Δ_I, it is dead and
//! the next one speaks.
//!
//! # Slots
//! `P[0], P[1], …` are the members in their order. `P[j]` speaks at `begun + j·(Δ_W + Δ_I + late)` by its own clock, and not later than `late` after that; it is
//! given up when the next slot begins. `begun` is when this member proposed. Everything is counted from there, so that lateness does not add up.
//!
//! # Where Alg. 2 had to be read
//! * **Line 17, `SEND(v)`** in the timeout's handler: `v` belongs to another handler. It is this member's own proposal, kept since line 4. (Sending all of
//!   `proposals` would be valid too, but no better: every member alive sends its own.)
//! * **Lines 3, 11, 22: `⊥` and `∅`.** The start value is ⊥, line 11 asks for `⊥`, line 22 for `∅`. Taken as the same value, an instance that decides LOWI's
//!   heartbeat ⊥ counts as undecided: it would be decided again (Integrity), and line 11 would elect against a leader that lives. Here *undecided* is no value at all.
//! * **The leader's own DELIVER.** The sender gets no copy of its own broadcast. It may decide once its copies have left on every path, and not before: a value
//!   that it decided and that never left would be unknown to all others, who elect (uniform agreement). It does so when called with a time that shows that
//!   they left within its slot ([`Owi::poll_timeout`] asks for that call at once). That they *arrive* is RSBCAST's promise.
//! * **Lines 10, 18: the timer** Δ_W + Δ_I leaves nothing for serving a timer late, and with clocks at both ends of Δ_W the successor of a leader that is late by
//!   a nanosecond overlaps with it. `late` is that slack ([`Config::late_ns`]); drift lengthens every wait.
//! * **Line 11 lets the last member be removed** (`P = ∅`, `MIN` of nothing). Here the last slot is one's own, or the machine stops.
//! * **Late packets.** Line 21 delivers whatever comes while undecided, also from a leader that was given up: then two leaders' values are about. Here a
//!   copy of somebody who was given up, or who speaks after another one was decided, is a broken assumption: QUIT.
//! * **Line 7, DET**: the greatest of the proposals. For `Option<_>` that is ⊥ only if there is nothing else (§4.2: "chooses non-heartbeat values").
//! * **DELIVER or RECV before one's own PROPOSE** is possible within Δ_W: taken.
//!
//! # What it rests on
//! As LOWI: every copy arrives within Δ_I, all propose within Δ_W, clocks drift within the bound, nobody speaks later than `late` after its slot began (a member that could not tell
//! stops itself: [`Halted::Expelled`]). `nano_4_2_must_fail_…` shows agreement break by one late packet.

use std::collections::{BTreeSet, VecDeque};

use super::Halted;
use crate::broadcast::rsbcast;
use crate::group::{MemberId, MemberSet, Refusals, Refused};

/// Settings of an [`Owi`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Δ_I: the largest interaction latency (ns).
    pub delta_i_ns: u64,
    /// Δ_W: within this all propose (ns).
    pub delta_w_ns: u64,
    /// How late a member may speak (ns).
    pub late_ns: u64,
    /// How much any clock gains or loses, in millionths.
    pub drift_ppm: u32,
    /// Copies of a broadcast.
    pub paths: usize,
}

impl Config {
    /// Δ_I and Δ_W; a quarter of Δ_I as slack, 100 ppm.
    #[must_use]
    pub const fn new(delta_i_ns: u64, delta_w_ns: u64) -> Self {
        Self { delta_i_ns, delta_w_ns, late_ns: delta_i_ns / 4, drift_ppm: 100, paths: fide_wire::PATHS }
    }

    fn longer_ns(&self, time_ns: u64) -> u64 {
        let gain = (u128::from(time_ns) * 4 * u128::from(self.drift_ppm)).div_ceil(1_000_000);
        time_ns.saturating_add(u64::try_from(gain).unwrap_or(u64::MAX)).saturating_add(1)
    }
}

/// What it asks of its shell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action<V> {
    /// SEND: a proposal, over the reliable link.
    Send {
        /// To whom.
        to: MemberId,
        /// What.
        value: V,
    },
    /// RSBCAST: a copy on every path, now.
    Copies {
        /// What.
        value: V,
    },
    /// DECIDE, once.
    Decide(V),
    /// QUIT: it stopped safely, also when it has decided.
    Quit(Halted),
}

/// A broadcast of ours between its stamp and the proof that it left in time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leaving<V> {
    value: V,
    at_ns: u64,
    left: bool,
}

/// One member's part in one instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owi<V> {
    me: MemberId,
    config: Config,
    members: MemberSet,
    now_ns: u64,
    /// Our own proposal, and when we made it.
    own: Option<(V, u64)>,
    proposals: BTreeSet<V>,
    heard_from: MemberSet,
    slot: usize,
    spoken: bool,
    leaving: Option<Leaving<V>>,
    receiver: rsbcast::Receiver<V>,
    decision: Option<(V, MemberId)>,
    halted: Option<Halted>,
    actions: VecDeque<Action<V>>,
    refusals: Refusals,
}

impl<V: Clone + Ord> Owi<V> {
    /// Undecided. `me` is in `members`.
    #[must_use]
    pub fn new(me: MemberId, config: Config, members: MemberSet) -> Self {
        assert!(members.contains(me), "whoever decides is a member");
        let delta_i_ns = config.longer_ns(config.delta_i_ns);
        let receiver = rsbcast::Config { paths: config.paths, delta_i_ns, in_flight_max: 1 };
        Self {
            me,
            config,
            members,
            now_ns: 0,
            own: None,
            proposals: BTreeSet::new(),
            heard_from: MemberSet::new(),
            slot: 0,
            spoken: false,
            leaving: None,
            receiver: rsbcast::Receiver::new(receiver),
            decision: None,
            halted: None,
            actions: VecDeque::new(),
            refusals: Refusals::default(),
        }
    }

    /// PROPOSE.
    ///
    /// # Errors
    /// [`Refused::Duplicate`] if it has proposed or decided; [`Refused::Halted`].
    pub fn propose(&mut self, now_ns: u64, value: V) -> Result<(), Refused> {
        self.advance(now_ns);
        self.running()?;
        if self.own.is_some() || self.decision.is_some() {
            return Err(self.refusals.count(Refused::Duplicate));
        }
        self.own = Some((value.clone(), self.now_ns));
        self.proposals.insert(value);
        self.send_own();
        self.advance(now_ns);
        Ok(())
    }

    /// RECV: the proposal of `from`, over the reliable link.
    ///
    /// # Errors
    /// [`Refused::UnknownMember`]; [`Refused::Malformed`] from oneself; [`Refused::Duplicate`] when its proposal is here; [`Refused::Halted`].
    pub fn handle_proposal(&mut self, now_ns: u64, from: MemberId, value: V) -> Result<(), Refused> {
        self.advance(now_ns);
        self.running()?;
        self.known(from)?;
        if !self.heard_from.insert(from) {
            return Err(self.refusals.count(Refused::Duplicate));
        }
        self.proposals.insert(value);
        Ok(())
    }

    /// A copy of the broadcast of `from`, by `path`.
    ///
    /// # Errors
    /// [`Refused::UnknownMember`]; [`Refused::Malformed`] from oneself, on no path, or unlike the other copies; [`Refused::Duplicate`]; [`Refused::Halted`].
    pub fn handle_copy(&mut self, now_ns: u64, from: MemberId, path: usize, value: V) -> Result<(), Refused> {
        self.advance(now_ns);
        self.running()?;
        self.known(from)?;
        self.receiver.judge(from, path, 1, &value).map_err(|why| self.refusals.count(why))?;
        let place = self.members.iter().position(|member| member == from).unwrap_or(usize::MAX);
        let ours = self.members.iter().position(|member| member == self.me).unwrap_or(usize::MAX);
        if self.decision.is_some() || self.leaving.is_some() || place < self.slot {
            // Two speak: somebody did not hear the other.
            self.quit(Halted::MissingBroadcast);
        } else if place > ours {
            self.quit(Halted::Expelled);
        } else {
            self.receiver.handle_copy(self.now_ns, from, path, 1, value).map_err(|why| self.refusals.count(why))?;
            self.take_events();
        }
        Ok(())
    }

    /// When [`Owi::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.halted.is_some() {
            return None;
        }
        if let Some(leaving) = &self.leaving {
            return leaving.left.then_some(leaving.at_ns);
        }
        if self.decision.is_some() {
            return None;
        }
        let next = if self.leader() == Some(self.me) { self.slot } else { self.slot + 1 };
        let slot_ns = self.begins_ns(next);
        slot_ns.into_iter().chain(self.receiver.poll_timeout()).min()
    }

    /// TIMEOUT.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.advance(now_ns);
    }

    /// NET-FAULT from below: copies could not leave, or the contract is broken.
    pub fn handle_network_fault(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.quit(Halted::NetworkFault);
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action<V>> {
        let action = self.actions.pop_front()?;
        if let (Action::Copies { .. }, Some(leaving)) = (&action, &mut self.leaving) {
            leaving.left = true;
        }
        Some(action)
    }

    /// What was decided.
    #[must_use]
    pub fn decision(&self) -> Option<&V> {
        self.decision.as_ref().map(|(value, _)| value)
    }

    /// Whose slot it is.
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        self.members.iter().nth(self.slot)
    }

    /// Why it stopped, if it did.
    #[must_use]
    pub const fn halted(&self) -> Option<Halted> {
        self.halted
    }

    /// What was refused.
    #[must_use]
    pub const fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Panics if its state is one that it must never be in.
    pub fn invariants(&self) {
        self.receiver.invariants();
        assert!(self.proposals.len() <= self.members.len(), "one proposal of each member");
        assert!(self.slot < self.members.len() && self.leaving.is_none() | self.decision.is_none());
        assert!(self.leaving.is_none() || self.spoken);
        assert!(self.own.as_ref().is_none_or(|(value, _)| self.proposals.contains(value)));
    }

    /// When slot `slot` begins, by our clock.
    fn begins_ns(&self, slot: usize) -> Option<u64> {
        let (_, begun_ns) = self.own.as_ref()?;
        // One more in each slot: what left at its very end, by the latest clock, arrives before the next one begins by the earliest.
        let width_ns =
            self.config.delta_w_ns.saturating_add(self.config.delta_i_ns).saturating_add(self.config.late_ns).saturating_add(1);
        match slot {
            0 => Some(*begun_ns),
            _ => Some(begun_ns.saturating_add(self.config.longer_ns(width_ns.saturating_mul(slot as u64)))),
        }
    }

    fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        let now_ns = self.now_ns;
        let by_ns = self.poll_timeout().map(|due_ns| due_ns.saturating_add(self.config.late_ns));
        if self.members.len() > 1 && by_ns.is_some_and(|by_ns| now_ns > by_ns) {
            return self.quit(Halted::Expelled);
        }
        if let Some(leaving) = self.leaving.take_if(|leaving| leaving.left) {
            return self.decide(leaving.value, self.me);
        }
        self.receiver.handle_timeout(now_ns);
        self.take_events();
        while self.halted.is_none() && self.decision.is_none() && self.leaving.is_none() {
            if self.leader() == Some(self.me) {
                if self.begins_ns(self.slot).is_some_and(|begins_ns| now_ns >= begins_ns) {
                    self.speak();
                }
                return;
            }
            if self.begins_ns(self.slot + 1).is_none_or(|ends_ns| now_ns < ends_ns) {
                return;
            }
            self.slot += 1;
            self.send_own();
        }
    }

    fn speak(&mut self) {
        let Some(value) = self.proposals.last().cloned() else { return };
        if self.receiver.in_flight() > 0 {
            // Whatever was sent before has arrived by now: a copy is missing for good.
            return self.quit(Halted::NetworkFault);
        }
        self.spoken = true;
        self.leaving = Some(Leaving { value: value.clone(), at_ns: self.now_ns, left: false });
        self.actions.push_back(Action::Copies { value });
    }

    fn send_own(&mut self) {
        if let (Some((value, _)), Some(to)) = (&self.own, self.leader().filter(|leader| *leader != self.me)) {
            self.actions.push_back(Action::Send { to, value: value.clone() });
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.receiver.poll_event() {
            match event {
                rsbcast::Event::Deliver { from, message, .. } => self.decide(message, from),
                rsbcast::Event::NetFault { .. } => self.quit(Halted::NetworkFault),
            }
        }
    }

    fn decide(&mut self, value: V, of: MemberId) {
        self.actions.push_back(Action::Decide(value.clone()));
        self.decision = Some((value, of));
    }

    fn quit(&mut self, why: Halted) {
        if self.halted.is_none() {
            self.halted = Some(why);
            self.leaving = None;
            self.actions.retain(|action| matches!(action, Action::Decide(_)));
            self.actions.push_back(Action::Quit(why));
        }
    }

    fn running(&mut self) -> Result<(), Refused> {
        self.halted.map_or(Ok(()), |_| Err(self.refusals.count(Refused::Halted)))
    }

    fn known(&mut self, from: MemberId) -> Result<(), Refused> {
        if from == self.me {
            return Err(self.refusals.count(Refused::Malformed));
        }
        if !self.members.contains(from) {
            return Err(self.refusals.count(Refused::UnknownMember));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "owi_tests.rs"]
mod tests;
