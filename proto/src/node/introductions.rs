//! Who lives now: hellos out, introductions in, and the other way round.
//!
//! # In one head
//! A newcomer does not believe what is shouted across the square: it may be an echo. It asks a question that nobody was
//! asked before, and believes those who answer it.
//!
//! # Rule
//! Nothing is believed of an incarnation of a host before an introduction of it has answered a *fresh nonce* of this
//! host: drawn at random for one hello, valid for [`NONCE_NS`]. Until then the host is *unconfirmed*: its frames are
//! counted and dropped, and no verdict is given on it. Sequence numbers begin at those of the introduction, so that
//! nothing recorded before it is fresh.
//!
//! An introduction with a *lower* incarnation than one that is confirmed is believed as well, if it answers a nonce that
//! was drawn behind that: a host whose clock or memory went back lives, an echo cannot answer, and what a former
//! incarnation answered may come late. Two hosts of one name both answer, in turns: then the *other*
//! agent of this host's own name is certain ([`Event::NameClash`]), as no replay can make it.
//!
//! # Cost
//! A host says one hello to everybody when it starts. A host that hears an unconfirmed incarnation says hello to it
//! alone, if its address is known from its own hello, and again, ever more seldom, while it is heard (then
//! to everybody in turns: its address may be another one by now). Each hello has
//! one answer. So a start costs every other host two frames received, and the starting host two for every other.

use super::Pace;
use super::table::owner::To;
use fide_wire::PATHS;
use fide_wire::frame::introduction::{ASKED_MAX, Answer, Hello};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// How long a nonce may be answered.
pub const NONCE_NS: u64 = 1_000_000_000;
/// Time between two hellos to a host that is unconfirmed, at first; it doubles up to [`HELLO_MAX_NS`].
pub const HELLO_NS: u64 = 5_000_000;
/// Hellos go to a host alone, where it was last, until they are so far apart; then to everybody in turns.
const ALONE_NS: u64 = 8 * HELLO_NS;
/// The longest time between two hellos.
pub const HELLO_MAX_NS: u64 = 500_000_000;
/// A host that was not heard for so long is not asked any more.
pub const HEARD_NS: u64 = 2_000_000_000;
/// Nonces of hellos to everybody that are valid at the same time.
const NONCES: usize = 4;

/// Unicast addresses, one for each path.
pub type Addresses = [Option<IpAddr>; PATHS];

/// A host that is heard and has not shown that it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unconfirmed {
    incarnation: u32,
    heard_ns: u64,
    ask_at_ns: u64,
    every_ns: u64,
    /// The nonce of the last hello to it alone, and when that was.
    nonce: Option<(u64, u64)>,
    /// The last hello was to it alone.
    alone: bool,
}

/// What is known of who lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// This incarnation of a host answered a fresh nonce.
    Confirmed {
        /// The host.
        node: u32,
        /// Its incarnation.
        incarnation: u32,
        /// Another incarnation of it was confirmed before.
        former: Option<u32>,
    },
    /// Another agent that has this host's name and a key answered a hello of this one.
    NameClash {
        /// What it calls its incarnation.
        incarnation: u32,
    },
}

/// Whether a frame is to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Its sender has shown that this incarnation lives.
    Confirmed,
    /// Not yet, or not any more.
    Unconfirmed,
}

/// The hellos and introductions of one host.
#[derive(Clone, Debug)]
pub struct Introductions {
    me: u32,
    incarnation: u32,
    hosts_max: usize,
    /// This host's addresses.
    addresses: Addresses,
    /// The incarnation that is believed, and since when.
    confirmed: BTreeMap<u32, (u32, u64)>,
    unconfirmed: BTreeMap<u32, Unconfirmed>,
    /// Addresses that hellos and introductions named.
    known: BTreeMap<u32, Addresses>,
    /// Nonces of the last hellos to everybody, and when each was sent.
    nonces: VecDeque<(u64, u64)>,
    to_everybody_at_ns: Option<u64>,
    /// Hellos of others that are to be answered: nonce, who asked, and whether the answer reaches it alone.
    owed: BTreeMap<u32, (u64, u32, bool)>,
    /// Nothing reaches this host alone: behind a closed gate it does not say at the link where it is.
    is_mute: bool,
    /// The highest incarnation of each host that was seen, and the one before that: also by former agents of this host.
    seen: BTreeMap<u32, (u32, u32)>,
    clash: Option<u32>,
    pace: Pace,
}

impl Introductions {
    /// Begins at `now_ns` with a hello to everybody. At most `hosts_max` others are remembered.
    #[must_use]
    pub fn new(me: u32, incarnation: u32, addresses: Addresses, hosts_max: usize, now_ns: u64) -> Self {
        Self {
            me,
            incarnation,
            hosts_max,
            addresses,
            confirmed: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
            known: BTreeMap::new(),
            nonces: VecDeque::with_capacity(NONCES),
            to_everybody_at_ns: Some(now_ns),
            owed: BTreeMap::new(),
            is_mute: false,
            seen: BTreeMap::new(),
            clash: None,
            pace: Pace::default(),
        }
    }

    /// How fast heartbeats are: before anybody is known.
    pub const fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// The incarnation of a host that is believed.
    #[must_use]
    pub fn confirmed(&self, node: u32) -> Option<u32> {
        self.confirmed.get(&node).map(|(incarnation, _)| *incarnation)
    }

    /// Hosts that are heard, and have not shown that they live.
    pub fn unconfirmed(&self) -> impl Iterator<Item = u32> {
        self.unconfirmed.keys().copied()
    }

    /// An authentic frame of another host: whether it is to be believed. If not, that host is asked.
    pub fn heard(&mut self, node: u32, incarnation: u32, now_ns: u64) -> Heard {
        if node == self.me {
            return Heard::Unconfirmed;
        }
        if self.confirmed(node) == Some(incarnation) {
            return Heard::Confirmed;
        }
        // Who was asked with everybody else a moment ago has its answer on its way.
        let asked_ns = self.nonces.back().map_or(0, |(_, sent_ns)| sent_ns.saturating_add(self.pace.of(HELLO_NS)));
        let ask_at_ns = if self.known.contains_key(&node) || self.nonces.is_empty() { now_ns } else { now_ns.max(asked_ns) };
        let is_new =
            Unconfirmed { incarnation, heard_ns: now_ns, ask_at_ns, every_ns: self.pace.of(HELLO_NS), nonce: None, alone: false };
        let is_full = self.unconfirmed.len() >= self.hosts_max;
        match self.unconfirmed.get_mut(&node) {
            Some(known) if known.incarnation == incarnation => known.heard_ns = now_ns,
            // Its nonce stays: the answer to it says which incarnation lives.
            Some(known) => {
                let ask_at_ns =
                    known.nonce.map_or(now_ns, |(_, sent_ns)| now_ns.max(sent_ns.saturating_add(self.pace.of(HELLO_NS))));
                *known = Unconfirmed { nonce: known.nonce, ask_at_ns, ..is_new };
            }
            None if !is_full => _ = self.unconfirmed.insert(node, is_new),
            // Those that are there may be echoes: everybody is asked, and whoever lives answers.
            None => _ = self.to_everybody_at_ns.get_or_insert(now_ns.saturating_add(self.pace.of(HELLO_MAX_NS))),
        }
        self.invariants();
        Heard::Unconfirmed
    }

    /// When [`Introductions::poll_hello`] or [`Introductions::poll_answer`] has something.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let owed = (!self.owed.is_empty()).then_some(0);
        self.poll_hello_timeout().into_iter().chain(owed).min()
    }

    /// When [`Introductions::poll_hello`] has something.
    #[must_use]
    pub fn poll_hello_timeout(&self) -> Option<u64> {
        self.unconfirmed.values().map(|u| u.ask_at_ns).chain(self.to_everybody_at_ns).min()
    }

    /// A hello that is due, and to whom. `random` must be fresh: 64 bits that nobody can guess.
    pub fn poll_hello(&mut self, now_ns: u64, random: impl FnOnce() -> u64) -> Option<(To, Hello)> {
        if self.to_everybody_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.to_everybody_at_ns = None;
            let hello = self.hello_to_everybody(random(), Vec::new(), now_ns);
            return Some((To::Everybody, hello));
        }
        self.unconfirmed.retain(|_, u| now_ns < u.ask_at_ns || now_ns.saturating_sub(u.heard_ns) < HEARD_NS);
        let (node, host) = self.unconfirmed.iter_mut().find(|(_, u)| u.ask_at_ns <= now_ns)?;
        let node = *node;
        let nonce = random();
        // Where it does not answer for long, it may be elsewhere by now: everybody is asked as well, in turns.
        host.alone = host.every_ns < self.pace.of(ALONE_NS) || !host.alone;
        let has_address = |addresses: &Addresses| addresses.iter().any(Option::is_some);
        if host.alone && self.known.get(&node).is_some_and(has_address) {
            host.ask_again(self.pace, now_ns);
            host.nonce = Some((nonce, now_ns));
            return Some((To::Node(node), Hello { nonce, asked: vec![node], addresses: self.answer_to() }));
        }
        // Nobody knows where it is: all such hosts are asked at once.
        let mut asked = Vec::new();
        for (other, host) in self.unconfirmed.iter_mut().filter(|(_, u)| u.ask_at_ns <= now_ns).take(ASKED_MAX) {
            if *other == node || !self.known.contains_key(other) {
                host.ask_again(self.pace, now_ns);
                asked.push(*other);
            }
        }
        let hello = self.hello_to_everybody(nonce, asked, now_ns);
        self.invariants();
        Some((To::Everybody, hello))
    }

    fn hello_to_everybody(&mut self, nonce: u64, asked: Vec<u32>, now_ns: u64) -> Hello {
        if self.nonces.len() == NONCES {
            self.nonces.pop_front();
        }
        self.nonces.push_back((nonce, now_ns));
        Hello { nonce, asked, addresses: self.answer_to() }
    }

    /// Where hellos are to be answered; nowhere: to everybody.
    const fn answer_to(&self) -> Addresses {
        if self.is_mute { [None; PATHS] } else { self.addresses }
    }

    /// Whether what others send to this host alone reaches it. If not, its hellos are answered to everybody.
    pub const fn set_mute(&mut self, is_mute: bool) {
        self.is_mute = is_mute;
    }

    /// Another host asks. Its hello may be an echo: the answer to that is worth nothing, and costs little.
    pub fn handle_hello(&mut self, from: u32, incarnation: u32, hello: &Hello, now_ns: u64) {
        let is_asked = hello.asked.is_empty() || hello.asked.contains(&self.me);
        if from == self.me || !is_asked || (self.owed.len() >= self.hosts_max && !self.owed.contains_key(&from)) {
            return;
        }
        let is_reached_alone = hello.addresses.iter().any(Option::is_some);
        self.owed.insert(from, (hello.nonce, incarnation, is_reached_alone));
        // Of a confirmed host, its own introduction knows better than what may be an echo.
        if self.heard(from, incarnation, now_ns) == Heard::Unconfirmed && !self.confirmed.contains_key(&from) {
            self.learn_addresses(from, hello.addresses);
            // It may be asked alone now.
            if self.known.contains_key(&from)
                && let Some(host) = self.unconfirmed.get_mut(&from).filter(|host| host.nonce.is_none())
            {
                host.ask_at_ns = host.ask_at_ns.min(now_ns);
            }
        }
        self.invariants();
    }

    fn learn_addresses(&mut self, node: u32, addresses: Addresses) {
        let has_one = addresses.iter().any(Option::is_some);
        if has_one && (self.known.len() < 2 * self.hosts_max || self.known.contains_key(&node)) {
            self.known.insert(node, addresses);
        }
    }

    /// Where a host is, as far as it said so.
    #[must_use]
    pub fn addresses(&self, node: u32) -> Option<Addresses> {
        self.known.get(&node).copied()
    }

    /// The answer of the next introduction, and to whom it goes.
    pub fn poll_answer(&mut self) -> Option<(To, Answer)> {
        let (node, (nonce, asking, is_reached_alone)) = self.owed.pop_first()?;
        let to = if is_reached_alone && self.known.contains_key(&node) { To::Node(node) } else { To::Everybody };
        let seen = self.seen.get(&node).map_or(0, |(latest, before)| if *latest == asking { *before } else { *latest });
        Some((to, Answer { node, nonce, seen }))
    }

    /// This incarnation of a host was seen, in this life or by a former agent of this host.
    pub fn note_seen(&mut self, node: u32, incarnation: u32) {
        if self.seen.len() >= 2 * self.hosts_max && !self.seen.contains_key(&node) {
            return; // it will not be told that its state is an old one
        }
        let seen = self.seen.entry(node).or_default();
        if incarnation > seen.0 {
            *seen = (incarnation, seen.0);
        }
    }

    /// What was seen of a host says nothing any more.
    pub fn forget_seen(&mut self, node: u32) {
        self.seen.remove(&node);
    }

    /// An introduction. The event says whether it is believed from now on; nothing else of it counts if not.
    pub fn handle_introduction(
        &mut self,
        from: u32,
        incarnation: u32,
        answers: &[Answer],
        addresses: Addresses,
        now_ns: u64,
    ) -> Option<Event> {
        let own = self.unconfirmed.get(&from).and_then(|u| u.nonce);
        // What a former incarnation answered may come late: a lower one is believed if it was asked behind the higher one.
        let asked_from = self.confirmed.get(&from).filter(|(known, _)| *known > incarnation).map_or(0, |(_, since_ns)| *since_ns);
        let is_valid = |answer: &Answer| {
            let mut nonces = self.nonces.iter().copied().chain(own);
            let is_fresh = |at_ns: u64| at_ns >= asked_from && now_ns.saturating_sub(at_ns) < NONCE_NS;
            nonces.any(|(nonce, at_ns)| nonce == answer.nonce && is_fresh(at_ns))
        };
        if !answers.iter().any(|answer| answer.node == self.me && is_valid(answer)) {
            // Where multicast is not delivered, who introduces himself by unicast can be asked by that.
            if self.heard(from, incarnation, now_ns) == Heard::Unconfirmed && !self.confirmed.contains_key(&from) {
                self.learn_addresses(from, addresses);
            }
            return None;
        }
        if from == self.me {
            // This host never answers itself, and nobody could have recorded an answer to this nonce.
            let is_news = self.clash.replace(incarnation) != Some(incarnation);
            return is_news.then_some(Event::NameClash { incarnation });
        }
        self.unconfirmed.remove(&from);
        if !self.confirmed.contains_key(&from) && self.confirmed.len() >= self.hosts_max {
            return None;
        }
        self.learn_addresses(from, addresses);
        let since_ns =
            self.confirmed.get(&from).filter(|(known, _)| *known == incarnation).map_or(now_ns, |(_, since_ns)| *since_ns);
        let former = self.confirmed.insert(from, (incarnation, since_ns)).map(|(former, _)| former);
        self.note_seen(from, incarnation);
        self.invariants();
        (former != Some(incarnation)).then_some(Event::Confirmed { node: from, incarnation, former })
    }

    /// This host begins a new incarnation; others will ask. What it knows of others stands. Those who have not answered are asked at once:
    /// a host that was fenced has asked in vain until now, and has little time to be confirmed.
    pub fn begin_incarnation(&mut self, incarnation: u32) {
        self.incarnation = incarnation;
        let every_ns = self.pace.of(HELLO_NS);
        self.unconfirmed.values_mut().for_each(|host| (host.ask_at_ns, host.every_ns) = (0, every_ns));
    }

    /// This host's incarnation.
    #[must_use]
    pub const fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// A host left, was removed, or its incarnation was given up: it must show again that it lives.
    pub fn forget(&mut self, node: u32) {
        self.confirmed.remove(&node);
        self.unconfirmed.remove(&node);
        self.known.remove(&node);
    }

    fn invariants(&self) {
        debug_assert!(self.nonces.len() <= NONCES);
        debug_assert!(self.unconfirmed.len() <= self.hosts_max && self.owed.len() <= self.hosts_max);
        debug_assert!(self.unconfirmed.iter().all(|(node, u)| self.confirmed(*node) != Some(u.incarnation)));
        debug_assert!(!self.confirmed.contains_key(&self.me) && !self.unconfirmed.contains_key(&self.me));
    }
}

impl Unconfirmed {
    fn ask_again(&mut self, pace: Pace, now_ns: u64) {
        self.ask_at_ns = now_ns.saturating_add(self.every_ns);
        self.every_ns = (self.every_ns * 2).min(pace.of(HELLO_MAX_NS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(last: u8) -> Addresses {
        [Some([10, 0, 0, last].into()), None]
    }

    fn pair() -> (Introductions, Introductions) {
        (Introductions::new(1, 10, at(1), 8, 0), Introductions::new(2, 20, at(2), 8, 0))
    }

    /// `b` answers `hello` of `a`; what `a` makes of it.
    fn introduced(a: &mut Introductions, b: &mut Introductions, hello: &Hello, now_ns: u64) -> Option<Event> {
        b.handle_hello(a.me, a.incarnation, hello, now_ns);
        let (to, answer) = b.poll_answer()?;
        assert_eq!(to, To::Node(a.me));
        a.handle_introduction(b.me, b.incarnation, &[answer], b.addresses, now_ns)
    }

    #[test]
    fn a_host_is_believed_once_it_answered_a_fresh_nonce() {
        let (mut a, mut b) = pair();
        assert_eq!(a.heard(2, 20, 0), Heard::Unconfirmed);
        let (to, hello) = a.poll_hello(0, || 77).unwrap();
        assert_eq!((to, &hello), (To::Everybody, &Hello { nonce: 77, asked: vec![], addresses: at(1) }));
        let event = introduced(&mut a, &mut b, &hello, 0);
        assert_eq!(event, Some(Event::Confirmed { node: 2, incarnation: 20, former: None }));
        assert_eq!((a.heard(2, 20, MS), a.poll_timeout()), (Heard::Confirmed, None), "nobody is left to ask");
        assert_eq!(a.addresses(2), Some(at(2)));
        assert_eq!(introduced(&mut a, &mut b, &hello, MS), None, "no news");
    }

    #[test]
    fn a_host_that_asks_is_told_which_incarnation_of_it_was_seen_before() {
        let (mut a, mut b) = pair();
        let told = |b: &mut Introductions, asking: u32, now_ns| {
            b.handle_hello(1, asking, &Hello { nonce: 5, asked: vec![], addresses: at(1) }, now_ns);
            b.poll_answer().unwrap().1.seen
        };
        assert_eq!(told(&mut b, 10, 0), 0, "never seen");
        let (_, hello) = b.poll_hello(0, || 66).unwrap();
        introduced(&mut b, &mut a, &hello, 0);
        assert_eq!(told(&mut b, 10, 0), 0, "that is the one that asks");
        // It comes back from an old disk: as much later as its clock says.
        assert_eq!(told(&mut b, 30, MS), 10);
        a.begin_incarnation(30);
        let (_, hello) = b.poll_hello(MS, || 67).unwrap();
        introduced(&mut b, &mut a, &hello, MS);
        assert_eq!(told(&mut b, 30, MS), 10, "also when it is believed already");
        assert_eq!(told(&mut b, 7, MS), 30, "a clock that went back");
        // The next agent of b knows it of its disk.
        let mut next = Introductions::new(2, 21, at(2), 8, 0);
        next.note_seen(1, 30);
        next.note_seen(1, 4);
        assert_eq!(told(&mut next, 40, 0), 30);
        next.forget_seen(1);
        assert_eq!(told(&mut next, 40, 0), 0);
    }

    #[test]
    fn a_host_that_nothing_reaches_alone_is_answered_to_everybody() {
        let [mut a, mut b] = [1, 2].map(|me| Introductions::new(me, 7, at(me as u8), 8, 0));
        let (_, hello) = a.poll_hello(0, || 9).unwrap();
        b.handle_hello(1, 7, &hello, 1);
        assert!(matches!(b.poll_answer(), Some((To::Node(1), _))));
        a.set_mute(true);
        a.heard(2, 7, 2);
        let (_, hello) = a.poll_hello(1_000_000_000, || 10).unwrap();
        assert_eq!(hello.addresses, [None; PATHS]);
        b.handle_hello(1, 7, &hello, 1_000_000_000);
        assert!(matches!(b.poll_answer(), Some((To::Everybody, Answer { node: 1, nonce: 10, .. }))));
    }

    #[test]
    fn a_host_that_says_hello_is_asked_back_where_it_is() {
        let (mut a, mut b) = pair();
        let (_, hello) = a.poll_hello(0, || 77).unwrap();
        b.poll_hello(0, || 66).unwrap();
        introduced(&mut a, &mut b, &hello, 0);
        let (to, back) = b.poll_hello(0, || 67).unwrap();
        assert_eq!((to, &back.asked), (To::Node(1), &vec![1]));
        let event = introduced(&mut b, &mut a, &back, 0);
        assert_eq!(event, Some(Event::Confirmed { node: 1, incarnation: 10, former: None }));
    }

    #[test]
    fn a_recorded_introduction_means_nothing_to_an_agent_that_restarted() {
        let (mut a, mut b) = pair();
        let (_, hello) = a.poll_hello(0, || 77).unwrap();
        b.handle_hello(1, 10, &hello, 0);
        let (_, recorded) = b.poll_answer().unwrap();
        assert!(a.handle_introduction(2, 20, &[recorded], at(2), 0).is_some());
        let mut a = Introductions::new(1, 11, at(1), 8, 5 * MS);
        a.poll_hello(5 * MS, || 78).unwrap();
        assert_eq!(a.handle_introduction(2, 20, &[recorded], at(2), 6 * MS), None);
        assert_eq!(a.heard(2, 20, 6 * MS), Heard::Unconfirmed);
    }

    #[test]
    fn a_nonce_is_valid_for_a_second() {
        let (mut a, mut b) = pair();
        let (_, hello) = a.poll_hello(0, || 77).unwrap();
        b.handle_hello(1, 10, &hello, 0);
        let (_, late) = b.poll_answer().unwrap();
        assert_eq!(a.handle_introduction(2, 20, &[late], at(2), NONCE_NS), None);
    }

    #[test]
    fn the_nonce_of_a_hello_to_one_host_is_no_other_hosts_to_answer() {
        let (mut a, mut b) = pair();
        a.poll_hello(0, || 1).unwrap();
        b.poll_hello(0, || 2).unwrap();
        let hello = Hello { nonce: 9, asked: vec![], addresses: at(2) };
        a.handle_hello(2, 20, &hello, 0);
        let (_, to_b) = a.poll_hello(0, || 77).unwrap();
        let answer = Answer { node: 1, nonce: to_b.nonce, seen: 0 };
        assert_eq!(a.handle_introduction(3, 30, &[answer], at(3), 0), None);
        assert!(a.handle_introduction(2, 20, &[answer], at(2), 0).is_some());
    }

    #[test]
    fn a_host_that_came_back_with_another_address_is_found() {
        let (mut a, mut b) = pair();
        let (_, hello) = a.poll_hello(0, || 77).unwrap();
        introduced(&mut a, &mut b, &hello, 0);
        // Confirmed at its former address. Nothing that is sent there reaches its next incarnation.
        let mut b = Introductions::new(2, 21, at(9), 8, 0);
        let (mut now_ns, mut asked) = (0, Vec::new());
        let event = loop {
            a.heard(2, 21, now_ns);
            if let Some((to, hello)) = a.poll_hello(now_ns, || 80 + now_ns) {
                asked.push(to);
                b.handle_hello(1, 10, &hello, now_ns);
                let (_, answer) = b.poll_answer().unwrap();
                if to == To::Everybody {
                    break a.handle_introduction(2, 21, &[answer], at(9), now_ns);
                }
            }
            now_ns += MS;
        };
        assert_eq!(asked.pop(), Some(To::Everybody));
        assert!(asked.iter().all(|to| *to == To::Node(2)) && now_ns < 200 * MS, "{asked:?} in {now_ns} ns");
        assert_eq!(event, Some(Event::Confirmed { node: 2, incarnation: 21, former: Some(20) }));
        assert_eq!(a.addresses(2), Some(at(9)));
    }

    #[test]
    fn an_unconfirmed_host_is_asked_ever_more_seldom_until_it_is_not_heard() {
        let (mut a, _) = pair();
        a.poll_hello(0, || 1).unwrap();
        let (mut now_ns, mut asked) = (0, Vec::new());
        while now_ns < 10_000 * MS {
            if now_ns < 5_000 * MS {
                a.heard(2, 20, now_ns);
            }
            if let Some((to, hello)) = a.poll_hello(now_ns, || now_ns) {
                assert_eq!((to, hello.asked), (To::Everybody, vec![2]), "nobody knows where it is");
                asked.push(now_ns);
            }
            now_ns += MS;
        }
        assert!((12..40).contains(&asked.len()), "{asked:?}");
        assert!(asked.last().is_some_and(|at_ns| *at_ns < 5_000 * MS + HEARD_NS + HELLO_MAX_NS));
        assert_eq!((a.poll_timeout(), a.unconfirmed().count()), (None, 0));
    }

    #[test]
    fn a_host_that_restarted_is_asked_at_once() {
        let (mut a, mut b) = pair();
        let (_, hello) = a.poll_hello(0, || 77).unwrap();
        introduced(&mut a, &mut b, &hello, 0);
        b.begin_incarnation(21);
        assert_eq!(a.heard(2, 21, 900 * MS), Heard::Unconfirmed);
        let (to, hello) = a.poll_hello(900 * MS, || 78).unwrap();
        assert_eq!((to, &hello.asked), (To::Node(2), &vec![2]));
        let event = introduced(&mut a, &mut b, &hello, 900 * MS);
        assert_eq!(event, Some(Event::Confirmed { node: 2, incarnation: 21, former: Some(20) }));
    }

    #[test]
    fn a_host_whose_incarnation_went_back_is_believed_when_it_answers() {
        let (mut a, mut b) = pair();
        let (_, hello) = a.poll_hello(0, || 77).unwrap();
        introduced(&mut a, &mut b, &hello, 0);
        b.begin_incarnation(3);
        a.heard(2, 3, 100 * MS);
        let (_, hello) = a.poll_hello(100 * MS, || 78).unwrap();
        assert!(introduced(&mut a, &mut b, &hello, 100 * MS).is_some());
    }

    #[test]
    fn a_name_clash_needs_another_agent_that_answers() {
        let (mut a, _) = pair();
        let (_, hello) = a.poll_hello(0, || 77).unwrap();
        assert_eq!(a.handle_introduction(1, 10, &[Answer { node: 1, nonce: 76, seen: 0 }], at(1), MS), None, "an echo");
        a.handle_hello(1, 10, &hello, 0);
        assert_eq!(a.poll_answer(), None, "no host answers its own hello");
        let clash = a.handle_introduction(1, 10, &[Answer { node: 1, nonce: 77, seen: 0 }], at(1), MS);
        assert_eq!(clash, Some(Event::NameClash { incarnation: 10 }));
    }

    #[test]
    fn echoes_that_fill_the_list_do_not_keep_a_newcomer_out() {
        let (mut a, _) = pair();
        a.poll_hello(0, || 1).unwrap();
        (100..200).for_each(|node| _ = a.heard(node, 1, 0));
        assert_eq!(a.unconfirmed().count(), 8);
        let mut b = Introductions::new(2, 20, at(2), 8, 0);
        a.heard(2, 20, 0);
        let mut confirmed = None;
        for now_ns in (0..2_000 * MS).step_by(MS as usize) {
            (100..200).for_each(|node| _ = a.heard(node, 1, now_ns));
            a.heard(2, 20, now_ns);
            if let Some((To::Everybody, hello)) = a.poll_hello(now_ns, || now_ns)
                && hello.asked.is_empty()
            {
                confirmed = confirmed.or(introduced(&mut a, &mut b, &hello, now_ns));
            }
        }
        assert!(confirmed.is_some());
    }

    #[test]
    fn a_flood_of_hellos_is_bounded() {
        let mut a = Introductions::new(1, 1, at(1), 8, 0);
        (2..10_000).for_each(|node| a.handle_hello(node, node, &Hello { nonce: 1, asked: vec![], addresses: at(9) }, 0));
        assert_eq!(a.unconfirmed().count(), 8);
        assert_eq!(std::iter::from_fn(|| a.poll_answer()).count(), 8);
    }
}
