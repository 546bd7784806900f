//! RSBCAST: reliable synchronous broadcast over redundant paths, with NET-FAULT (Nano-consensus §4.1, Alg. 1).
//!
//! The sender puts a copy of a message on every path at once ([`Sender`] numbers it). A receiver counts the copies ([`Receiver`]): the first one
//! starts a timer Δ_I, the last one delivers, and when the timer ends before, the network is at fault.
//!
//! # Where Alg. 1 had to be mended
//! * **Lines 9–11.** `received = 𝒢` is tested *before* `received ← received ∪ {G_i}`. Read literally, the last copy never delivers: with two paths, the
//!   second copy finds `received = {G_1}`, and only a third packet, which never comes, would find it complete. Here the copy is put in first.
//! * **Line 12.** The timer is never stopped, so it would also report a fault after everything has come. Here it ends with the delivery.
//! * **Lines 2, 7.** One `received` for all messages: after the first message it is never empty again, so nothing starts the timer for the second one; and
//!   two messages in flight would complete each other. Here every message has its own set and its own timer, told apart by (sender, number).
//! * **A message of which no copy came** starts no timer at all, so a receiver cut off on all paths would never learn it. Numbers are without a gap,
//!   so a later message of the same sender shows it: from then on the missing one has Δ_I, like one whose first copy has come. (It was sent earlier,
//!   so it must have arrived by then.) The last messages before a silence cannot be missed by any receiver: that is what "beyond the assumptions" means here.
//! * **The same content**: two copies that differ are no copies; the second one is refused.
//!
//! # What is kept although it costs
//! *DELIVER only when all copies are in* (line 9) delays every message to the slowest path. Delivering the first copy would be faster,
//! but then a receiver may have delivered what another one never gets; with this rule a fault of one path stops the receiver it hits
//! *before* it acts (safe exit, §3.3), and no single fault lets two receivers act differently.
//!
//! # What it rests on
//! Uniformity is not proved by acknowledgements but assumed of the network: what left on all paths arrives on all of them within Δ_I, at everybody. A sender that
//! crashes between two copies looks like a network fault, to everybody alike: all exit, none disagree. A receiver that is cut off on *every*
//! path by more than one fault does not notice until the next message (§3.3, "RSBCAST and multiple network failures").
//!
//! Delivery is in the order of completion, not of numbers; who needs an order looks at the numbers. Not here: acknowledgement, repetition.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::group::{MemberId, Refusals, Refused};

/// Most paths: the bits of a set.
pub const MAX_PATHS: usize = 8;

/// Settings of a [`Receiver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How many copies make a message: |𝒢|.
    pub paths: usize,
    /// Δ_I: the largest interaction latency, sender's call to receiver's call (ns).
    pub delta_i_ns: u64,
    /// How many messages of one sender may be in flight at once. Bounds the memory; what is further ahead is refused.
    pub in_flight_max: u64,
}

impl Config {
    /// As many paths as the lane has, and room for 64 messages in flight.
    #[must_use]
    pub const fn new(delta_i_ns: u64) -> Self {
        Self { paths: fide_wire::PATHS, delta_i_ns, in_flight_max: 64 }
    }
}

/// What a receiver reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event<M> {
    /// DELIVER: every copy came.
    Deliver {
        /// Its sender.
        from: MemberId,
        /// The how-manieth message of that sender.
        number: u64,
        /// What it says.
        message: M,
    },
    /// NET-FAULT: these copies did not come within Δ_I. Raised once for a message, which is never delivered then.
    NetFault {
        /// The sender.
        from: MemberId,
        /// Which message.
        number: u64,
        /// Bit *i* is set if the copy on path *i* is missing; all of them if only a later message showed that there was one.
        missing: u8,
    },
}

/// The sending side: numbers what is sent, from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sender {
    sent: u64,
}

impl Sender {
    /// RSBCAST: the number for the next message. A copy with this number is to leave on every path, now.
    pub fn broadcast(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// How many were sent.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }
}

/// A message some copies of which came.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flight<M> {
    /// `received` of Alg. 1, one bit for each path.
    received: u8,
    /// The timer; the time itself still counts as in time.
    due_ns: u64,
    /// Nothing while only a later message showed that there must be one.
    message: Option<M>,
}

/// Which numbers of one sender are over: all through one, and some behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Window {
    through: u64,
    beyond: BTreeSet<u64>,
}

impl Window {
    fn is_over(&self, number: u64) -> bool {
        number <= self.through || self.beyond.contains(&number)
    }

    fn close(&mut self, number: u64) {
        if number > self.through {
            self.beyond.insert(number);
        }
        while self.beyond.remove(&(self.through + 1)) {
            self.through += 1;
        }
    }
}

/// The receiving side, for any number of senders.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receiver<M> {
    config: Config,
    flights: BTreeMap<(MemberId, u64), Flight<M>>,
    windows: BTreeMap<MemberId, Window>,
    events: VecDeque<Event<M>>,
    refusals: Refusals,
}

impl<M: Clone + PartialEq> Receiver<M> {
    /// Nothing received yet. Between 1 and [`MAX_PATHS`] paths.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!((1..=MAX_PATHS).contains(&config.paths), "between 1 and {MAX_PATHS} paths, not {}", config.paths);
        Self {
            config,
            flights: BTreeMap::new(),
            windows: BTreeMap::new(),
            events: VecDeque::new(),
            refusals: Refusals::default(),
        }
    }

    /// RECV: a copy that came by `path`. Timers that ended before are heeded first.
    ///
    /// # Errors
    /// [`Refused::Malformed`] for a path or number that does not exist or a copy that differs from the others; [`Refused::Duplicate`] when this one came
    /// before or the message is over; [`Refused::TooFarAhead`] when more would be in flight than may be.
    pub fn handle_copy(&mut self, now_ns: u64, from: MemberId, path: usize, number: u64, message: M) -> Result<(), Refused> {
        self.handle_timeout(now_ns);
        self.judge(from, path, number, &message).map_err(|why| self.refusals.count(why))?;
        let due_ns = now_ns.saturating_add(self.config.delta_i_ns);
        let all = self.all_paths();
        self.expect_through(now_ns, from, number - 1);
        let flight = self.flights.entry((from, number)).or_insert(Flight { received: 0, due_ns, message: None });
        if flight.message.is_none() {
            flight.message = Some(message.clone());
        }
        flight.received |= 1 << path;
        if flight.received == all {
            self.close(from, number);
            self.events.push_back(Event::Deliver { from, number, message });
        }
        self.invariants();
        Ok(())
    }

    /// Those that were sent before have Δ_I from now.
    fn expect_through(&mut self, now_ns: u64, from: MemberId, last: u64) {
        let due_ns = now_ns.saturating_add(self.config.delta_i_ns);
        for earlier in self.through(from) + 1..=last {
            let over = self.windows.get(&from).is_some_and(|window| window.is_over(earlier));
            if !over {
                self.flights.entry((from, earlier)).or_insert(Flight { received: 0, due_ns, message: None });
            }
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event<M>> {
        self.events.pop_front()
    }

    /// When the first timer has ended: a nanosecond after the last moment that is in time.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.flights.values().map(|flight| flight.due_ns.saturating_add(1)).min()
    }

    /// TIMEOUT: reports every message whose timer has ended.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        let all = self.all_paths();
        let ended: Vec<_> = self.flights.iter().filter(|(_, f)| f.due_ns < now_ns).map(|(&key, f)| (key, f.received)).collect();
        for ((from, number), received) in ended {
            self.close(from, number);
            self.events.push_back(Event::NetFault { from, number, missing: all & !received });
        }
    }

    /// Everything of `from` through this number is over, whether it came or not: the next one is its first.
    pub fn skip(&mut self, from: MemberId, through: u64) {
        let window = self.windows.entry(from).or_default();
        if through <= window.through {
            return;
        }
        // The last number is nobody's.
        let through = through.min(u64::MAX - 1);
        window.through = through;
        window.beyond = window.beyond.split_off(&(through + 1));
        while window.beyond.remove(&(window.through + 1)) {
            window.through += 1;
        }
        self.flights.retain(|&(of, number), _| of != from || number > through);
        self.invariants();
    }

    /// This one of `from` is over, whether some of it came or not: its sender says that some copy
    /// left to nobody.
    pub fn forget(&mut self, now_ns: u64, from: MemberId, number: u64) {
        let through = self.through(from);
        if number > through && number - through <= self.config.in_flight_max {
            self.expect_through(now_ns, from, number - 1);
            self.close(from, number);
        }
        self.invariants();
    }

    /// Δ_I grows; timers that run keep their time.
    pub fn raise_delta_i(&mut self, delta_i_ns: u64) {
        self.config.delta_i_ns = self.config.delta_i_ns.max(delta_i_ns);
    }

    /// Every message of `from` with a number up to this one is over.
    #[must_use]
    pub fn through(&self, from: MemberId) -> u64 {
        self.windows.get(&from).map_or(0, |window| window.through)
    }

    /// Why this copy cannot be taken.
    pub(crate) fn judge(&self, from: MemberId, path: usize, number: u64, message: &M) -> Result<(), Refused> {
        if path >= self.config.paths || number == 0 {
            return Err(Refused::Malformed);
        }
        if self.windows.get(&from).is_some_and(|window| window.is_over(number)) {
            return Err(Refused::Duplicate);
        }
        // The last number is nobody's: there would be none behind it.
        if number == u64::MAX || number - self.through(from) > self.config.in_flight_max {
            return Err(Refused::TooFarAhead);
        }
        match self.flights.get(&(from, number)) {
            Some(flight) if flight.received & 1 << path != 0 => Err(Refused::Duplicate),
            Some(Flight { message: Some(first), .. }) if first != message => Err(Refused::Malformed),
            _ => Ok(()),
        }
    }

    /// How many messages are in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// What was refused.
    #[must_use]
    pub const fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Panics if its state is one that it must never be in.
    pub fn invariants(&self) {
        let all = self.all_paths();
        for (&(from, number), flight) in &self.flights {
            assert!(flight.received & !all == 0 && flight.received != all, "a complete message is not in flight");
            assert_eq!(flight.received != 0, flight.message.is_some(), "who has a copy knows the message");
            let through = self.through(from);
            assert!(number > through && number - through <= self.config.in_flight_max, "in flight within the bound");
        }
        for (from, window) in &self.windows {
            assert!(window.beyond.first().is_none_or(|&first| first > window.through + 1));
            let last = window.beyond.last().copied().unwrap_or(window.through);
            assert!(last - window.through <= self.config.in_flight_max);
            let missing = (window.through + 1..last).filter(|n| !window.beyond.contains(n));
            missing.for_each(|n| assert!(self.flights.contains_key(&(*from, n)), "what is missing has a timer"));
        }
    }

    fn all_paths(&self) -> u8 {
        u8::MAX >> (MAX_PATHS - self.config.paths)
    }

    fn close(&mut self, from: MemberId, number: u64) {
        self.flights.remove(&(from, number));
        self.windows.entry(from).or_default().close(number);
    }
}

#[cfg(test)]
#[path = "rsbcast_tests.rs"]
mod tests;
