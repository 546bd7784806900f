//! Named after the paper's section and the property. The laboratory: words of coordinators, hosts with clocks of their own, and one true time that only
//! the oracle knows.

use super::lease::{Action, Holder, Lease, Role, Timing};
use super::view::{self, Coordinator, Membership, Request, Sequence};
use super::*;
use crate::consensus::paxos::Word;
use crate::group::{MemberId, MemberSet, Refused};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

const DELTA_NS: u64 = 20_000;
const TIMING: Timing = Timing { drift_ppm: 10_000, epsilon_ns: 64 };

/// `ids` memberships, each of another member (or compatible, where `compatible` says so), with these leases.
fn memberships(leases_ns: &[(u64, u64)], compatible: impl Fn(usize) -> bool) -> Vec<Arc<Membership>> {
    let coordinators = MemberSet::first(3);
    let mut all: Vec<Arc<Membership>> = Vec::new();
    for (at, (lease_ns, cache_lease_ns)) in leases_ns.iter().enumerate() {
        let mut next = match all.last() {
            None => Membership::first(MemberSet::first(1), coordinators.clone(), *lease_ns),
            Some(before) => {
                let longest_before_ns = before.longest_before_ns.max(before.tenure_ns());
                let mut next = Membership { id: before.id + 1, longest_before_ns, ..(**before).clone() };
                if !compatible(at) {
                    next.highest = MemberId(next.highest.0 + 1);
                    next.members = [next.highest].into_iter().collect();
                    next.tokens = [(next.highest, at as u64)].into();
                }
                next
            }
        };
        (next.lease_ns, next.cache_lease_ns) = (*lease_ns, *cache_lease_ns);
        all.push(Arc::new(next));
    }
    all
}

enum Kind {
    Holder(Holder),
    Cache(Cache),
}

struct Host {
    kind: Kind,
    /// Its clock gains this much on the slowest.
    fast_ppm: u64,
    offset_ns: u64,
    /// Which cache it asks.
    cache: usize,
}

#[derive(Clone, Copy)]
enum Packet {
    Read { host: usize, coordinator: u16, check: u64, slot: u64 },
    Word { host: usize, coordinator: u16, check: u64, word: Word },
    Ask { host: usize, check: u64, membership: u64 },
    Said { host: usize, check: u64, membership: u64, active: bool },
}

struct Laboratory {
    true_ns: u64,
    views: Vec<Arc<Membership>>,
    /// By coordinator: through which slot it accepted.
    accepted: [u64; 3],
    /// A coordinator that answers nothing.
    gone: Option<u16>,
    /// Slots that holders want finished (Alg. 6 line 8).
    wanted: BTreeSet<u64>,
    hosts: Vec<Host>,
    under_way: Vec<Packet>,
    /// When a check was begun, in true time.
    begun: std::collections::BTreeMap<(usize, u64), u64>,
    /// (when it was said, of which) — the latest class that was ever said to be active, and when first.
    said: Vec<(u64, u64)>,
    random: u64,
    trues: u64,
    violated: bool,
}

impl Laboratory {
    fn new(views: Vec<Arc<Membership>>, seed: u64) -> Self {
        Self {
            true_ns: 1_000_000,
            views,
            accepted: [1; 3],
            gone: None,
            wanted: BTreeSet::new(),
            hosts: Vec::new(),
            under_way: Vec::new(),
            begun: Default::default(),
            said: Vec::new(),
            random: seed,
            trues: 0,
            violated: false,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below.max(1)
    }

    fn clock(&self, host: usize) -> u64 {
        let Host { fast_ppm, offset_ns, .. } = self.hosts[host];
        offset_ns + self.true_ns * (1_000_000 + fast_ppm) / 1_000_000
    }

    fn add(&mut self, role: Role, fast_ppm: u64, offset_ns: u64, cache: usize) -> usize {
        let view = self.views[0].clone();
        let now_ns = offset_ns + self.true_ns * (1_000_000 + fast_ppm) / 1_000_000;
        let kind = match role {
            Role::Cache => Kind::Cache(Cache::new(TIMING, view, now_ns)),
            _ => Kind::Holder(Holder::new(TIMING, role, view, now_ns)),
        };
        self.hosts.push(Host { kind, fast_ppm, offset_ns, cache });
        self.drain(self.hosts.len() - 1);
        self.hosts.len() - 1
    }

    /// Whether these two are of one class, or in the order of ids.
    fn is_superseded(&self, id: u64, by: u64) -> bool {
        id < by && (id..by).any(|at| !self.views[at as usize - 1].is_compatible(&self.views[at as usize]))
    }

    /// App. B.1: "If Active(M') returns true at any process, future calls Active(M) with M < M' will return false."
    fn is_active(&mut self, id: u64, called_ns: u64) {
        self.trues += 1;
        self.violated |= self.said.iter().any(|(ns, by)| *ns < called_ns && self.is_superseded(id, *by));
        if !self.said.iter().any(|(_, by)| *by == id) {
            self.said.push((self.true_ns, id));
        }
    }

    fn drain(&mut self, host: usize) {
        loop {
            let action = match &mut self.hosts[host].kind {
                Kind::Holder(holder) => {
                    holder.invariants();
                    holder.poll_action()
                }
                Kind::Cache(cache) => cache.poll_action(),
            };
            let is_cache = matches!(self.hosts[host].kind, Kind::Cache(_));
            match action {
                None => return,
                Some(Action::Read { coordinator, check, slot }) => {
                    self.begun.entry((host, check)).or_insert(self.true_ns);
                    self.under_way.push(Packet::Read { host, coordinator: coordinator.0, check, slot });
                }
                Some(Action::AskCache { check, membership }) => {
                    self.begun.entry((host, check)).or_insert(self.true_ns);
                    self.under_way.push(Packet::Ask { host, check, membership });
                }
                Some(Action::Checked { check, membership, active: true }) if !is_cache => {
                    self.is_active(membership, self.begun[&(host, check)]);
                }
                Some(Action::Finish { slot }) => drop(self.wanted.insert(slot)),
                Some(Action::Checked { .. }) => {}
            }
        }
    }

    fn hear(&mut self, host: usize) {
        let now_ns = self.clock(host);
        // Decided: accepted by two of three.
        let decided = {
            let mut accepted = self.accepted;
            accepted.sort_unstable();
            accepted[1]
        };
        let known = match &self.hosts[host].kind {
            Kind::Holder(holder) => holder.membership().id,
            Kind::Cache(cache) => cache.holder().membership().id,
        };
        if known < decided {
            let view = self.views[known as usize].clone();
            match &mut self.hosts[host].kind {
                Kind::Holder(holder) => holder.handle_membership(now_ns, view).unwrap(),
                Kind::Cache(cache) => cache.handle_membership(now_ns, view).unwrap(),
            }
            self.drain(host);
        }
    }

    fn ask(&mut self, host: usize) {
        let now_ns = self.clock(host);
        if let Kind::Holder(holder) = &self.hosts[host].kind {
            for id in 1..=holder.membership().id + 1 {
                let Kind::Holder(holder) = &self.hosts[host].kind else { return };
                if holder.active(now_ns, id) == Some(true) {
                    self.is_active(id, self.true_ns);
                }
            }
        }
    }

    fn deliver(&mut self, at: usize) {
        match self.under_way.swap_remove(at) {
            Packet::Read { coordinator, .. } if self.gone == Some(coordinator) => {}
            Packet::Read { host, coordinator, check, slot } => {
                let accepted = self.accepted[usize::from(coordinator) - 1] >= slot;
                let word = if accepted {
                    Word { min_proposal: 1, accepted_proposal: 1, accepted_value: 1 << 16 }
                } else {
                    Word::prepared(1)
                };
                self.under_way.push(Packet::Word { host, coordinator, check, word });
            }
            Packet::Word { host, coordinator, check, word } => {
                let now_ns = self.clock(host);
                let _ = match &mut self.hosts[host].kind {
                    Kind::Holder(holder) => holder.handle_read(now_ns, MemberId(coordinator), check, word),
                    Kind::Cache(cache) => cache.handle_read(now_ns, MemberId(coordinator), check, word),
                };
                self.drain(host);
            }
            Packet::Ask { host, check, membership } => {
                let cache = self.hosts[host].cache;
                let now_ns = self.clock(cache);
                let Kind::Cache(machine) = &self.hosts[cache].kind else { panic!("not a cache") };
                let active = machine.answer(now_ns, membership);
                self.under_way.push(Packet::Said { host, check, membership, active });
            }
            Packet::Said { host, check, membership, active } => {
                let now_ns = self.clock(host);
                if let Kind::Holder(holder) = &mut self.hosts[host].kind {
                    let _ = holder.handle_cache(now_ns, check, membership, active);
                }
                self.drain(host);
            }
        }
    }

    fn timeouts(&mut self, host: usize) {
        let now_ns = self.clock(host);
        match &mut self.hosts[host].kind {
            Kind::Holder(holder) => holder.handle_timeout(now_ns),
            Kind::Cache(cache) => cache.handle_timeout(now_ns),
        }
        self.drain(host);
    }

    /// Anything at any time; hosts that are not drawn are paused.
    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            // Mostly little, so that the edges of leases are met.
            let advance_ns = [0, 40, 150, 600, 2_500][self.draw(5) as usize];
            self.true_ns += advance_ns;
            let host = self.draw(self.hosts.len() as u64) as usize;
            match self.draw(64) {
                0 => {
                    let coordinator = self.draw(3) as usize;
                    let next = self.accepted[coordinator] + 1;
                    // No gap: the one before was decided.
                    let decided = self.accepted.iter().filter(|accepted| **accepted >= next - 1).count() >= 2;
                    if decided && next <= self.views.len() as u64 {
                        self.accepted[coordinator] = next;
                    }
                }
                1..=6 => self.hear(host),
                7..=12 => self.timeouts(host),
                13..=40 => {
                    for _ in 0..self.under_way.len().min(4) {
                        let at = self.draw(self.under_way.len() as u64) as usize;
                        self.deliver(at);
                    }
                }
                _ => self.ask(host),
            }
        }
    }

    /// Coordinators finish what holders wanted finished: those that answer accept it.
    fn finish(&mut self) {
        for slot in std::mem::take(&mut self.wanted) {
            for (coordinator, accepted) in (1..).zip(&mut self.accepted) {
                if self.gone != Some(coordinator) {
                    *accepted = slot.max(*accepted);
                }
            }
        }
    }

    /// Everything that is under way arrives, everyone hears of everything, until nothing is new.
    fn settle(&mut self, finishes: bool) {
        for _ in 0..1_000 {
            self.true_ns += 1_000;
            if finishes {
                self.finish();
            }
            for host in 0..self.hosts.len() {
                self.hear(host);
                self.timeouts(host);
            }
            let mut left = self.under_way.len();
            while left > 0 {
                self.deliver(0);
                left -= 1;
            }
        }
    }

    /// Whether the last membership is active everywhere once all have accepted it.
    fn converge(&mut self) -> bool {
        let last = self.views.len() as u64;
        self.accepted = [last; 3];
        self.settle(true);
        self.is_active_everywhere(last)
    }

    fn is_active_everywhere(&self, id: u64) -> bool {
        (0..self.hosts.len()).all(|host| {
            let now_ns = self.clock(host);
            match &self.hosts[host].kind {
                Kind::Holder(holder) => holder.active(now_ns, id) == Some(true),
                Kind::Cache(cache) => cache.answer(now_ns, id),
            }
        })
    }
}

#[test]
fn ukharon_b3_monotonicity_with_two_clocks_at_the_drift_bound() {
    let mut trues = 0;
    for seed in 0..4000 {
        let mut laboratory = Laboratory::new(memberships(&[(DELTA_NS, 0); 5], |_| false), seed);
        laboratory.add(Role::Direct, 0, 5, 0);
        laboratory.add(Role::Direct, TIMING.drift_ppm, 1_000_000_000, 0);
        laboratory.run(600);
        assert!(!laboratory.violated, "seed {seed}");
        trues += laboratory.trues;
    }
    assert!(trues > 100_000, "they were active: {trues}");
}

#[test]
fn ukharon_b3_monotonicity_must_fail_beyond_the_drift_bound() {
    let broken = (0..4000)
        .filter(|seed| {
            let mut laboratory = Laboratory::new(memberships(&[(DELTA_NS, 0); 5], |_| false), *seed);
            laboratory.add(Role::Direct, 0, 5, 0);
            laboratory.add(Role::Direct, 100 * TIMING.drift_ppm, 0, 0);
            laboratory.run(600);
            laboratory.violated
        })
        .count();
    assert!(broken > 0, "a clock that is twice as fast must show");
}

/// A slow host has a lease on M1 from 0 on; M2 is decided at once, and a fast host hears of it.
fn meet(fast_ppm: u64) -> bool {
    let views = memberships(&[(DELTA_NS, 0); 2], |_| false);
    let mut slow = Holder::new(TIMING, Role::Direct, views[0].clone(), 0);
    for coordinator in 1..=2 {
        slow.handle_read(1, MemberId(coordinator), 1, Word::default()).unwrap();
    }
    let mut fast = Holder::new(TIMING, Role::Direct, views[0].clone(), 0);
    fast.handle_membership(2, views[1].clone()).unwrap();
    let mut check = 2;
    (0..2 * DELTA_NS).any(|true_ns| {
        let now_ns = 2 + true_ns * (1_000_000 + fast_ppm) / 1_000_000;
        if true_ns % 5_000 == 0 {
            for coordinator in 1..=2 {
                fast.handle_read(now_ns, MemberId(coordinator), check, Word::default()).unwrap();
            }
            check = fast.check(now_ns);
        }
        slow.active(true_ns, 1) == Some(true) && fast.active(now_ns, 2) == Some(true)
    })
}

#[test]
fn ukharon_appendix_c_leases_meet_only_beyond_the_drift_bound() {
    assert!(!meet(0));
    assert!(!meet(TIMING.drift_ppm));
    assert!(meet(TIMING.drift_ppm + 10_000), "two percent are too much for 1.01");
}

#[test]
fn ukharon_b3_convergence_on_the_last_membership() {
    for seed in 0..100 {
        let mut laboratory = Laboratory::new(memberships(&[(DELTA_NS, 0); 4], |_| false), seed);
        laboratory.add(Role::Direct, 0, 0, 0);
        laboratory.add(Role::Direct, TIMING.drift_ppm, 77, 0);
        laboratory.run(200);
        assert!(laboratory.converge(), "seed {seed}");
        assert!(!laboratory.violated, "seed {seed}");
    }
}

#[test]
fn ukharon_6_3_leases_of_different_lengths_wait_for_the_longest_before() {
    for seed in 0..3000 {
        let leases = [(20 * DELTA_NS, 0), (DELTA_NS, 0), (DELTA_NS / 4, 0), (5 * DELTA_NS, 0), (DELTA_NS, 0)];
        let mut laboratory = Laboratory::new(memberships(&leases, |at| seed >> at & 1 == 1), seed);
        laboratory.add(Role::Direct, 0, 5, 0);
        laboratory.add(Role::Direct, TIMING.drift_ppm, 0, 0);
        laboratory.run(600);
        assert!(!laboratory.violated, "seed {seed}");
        if seed % 20 == 0 {
            assert!(laboratory.converge(), "seed {seed}");
        }
    }
}

#[test]
fn ukharon_6_3_a_compatible_membership_needs_no_wait() {
    let views = memberships(&[(DELTA_NS, 0), (4 * DELTA_NS, 0), (DELTA_NS, 0)], |at| at == 1);
    assert!(views[0].is_compatible(&views[1]) && !views[1].is_compatible(&views[2]));
    let mut holder = Holder::new(TIMING, Role::Direct, views[0].clone(), 0);
    holder.handle_membership(1_000, views[1].clone()).unwrap();
    for coordinator in 1..=2 {
        holder.handle_read(2_000, MemberId(coordinator), 2, Word::default()).unwrap();
    }
    assert_eq!((holder.active(2_000, 2), holder.active(2_000, 1)), (Some(true), Some(false)));
    assert_eq!(holder.lease().end_ns, 1_000 + 4 * DELTA_NS - 64, "from before the check was begun");
    holder.handle_membership(3_000, views[2].clone()).unwrap();
    assert_eq!(holder.lease().start_ns, 3_000 + 4 * DELTA_NS * 101 / 100 + 64, "the longest of the class");
}

#[test]
fn ukharon_6_3_caches_make_it_delta_and_delta_and_no_less() {
    let mut trues = 0;
    for seed in 0..3000 {
        let mut laboratory = Laboratory::new(memberships(&[(DELTA_NS, 2 * DELTA_NS); 4], |_| false), seed);
        laboratory.add(Role::Cache, TIMING.drift_ppm * (seed & 1), 3, 0);
        laboratory.add(Role::Cache, TIMING.drift_ppm * (seed >> 1 & 1), 9, 0);
        laboratory.add(Role::BehindCache, 0, 0, 0);
        laboratory.add(Role::BehindCache, TIMING.drift_ppm, 7, 1);
        laboratory.add(Role::Direct, TIMING.drift_ppm * (seed >> 2 & 1), 0, 0);
        laboratory.run(900);
        assert!(!laboratory.violated, "seed {seed}");
        trues += laboratory.trues;
        if seed % 20 == 0 {
            assert!(laboratory.converge(), "seed {seed}");
        }
    }
    assert!(trues > 10_000, "they were active: {trues}");
}

#[test]
fn ukharon_6_3_behind_a_cache_the_wait_begins_when_yes_has_come() {
    let views = memberships(&[(DELTA_NS, 2 * DELTA_NS); 2], |_| false);
    let mut node = Holder::new(TIMING, Role::BehindCache, views[0].clone(), 0);
    node.handle_membership(1_000, views[1].clone()).unwrap();
    // The question was under way for 2δ; Alg. 2 as printed would begin at 1,000 + δ.
    node.handle_cache(41_000, 2, 2, true).unwrap();
    assert_eq!(node.lease().start_ns, 41_000 + DELTA_NS * 101 / 100 + 64);
    assert_eq!(node.lease().end_ns, 1_000 + DELTA_NS - 64);
}

#[test]
fn ukharon_alg_2_line_12_counts_only_if_a_majority_said_so() {
    let views = memberships(&[(DELTA_NS, 0); 2], |_| false);
    let mut holder = Holder::new(TIMING, Role::Direct, views[0].clone(), 0);
    let taken = Word { min_proposal: 1, accepted_proposal: 1, accepted_value: 1 << 16 };
    let check = holder.check(100_000);
    while holder.poll_action().is_some() {}
    holder.handle_read(100_001, MemberId(1), check, taken).unwrap();
    assert_eq!(holder.poll_action(), None, "one is no majority");
    holder.handle_read(100_002, MemberId(2), check, Word::default()).unwrap();
    assert_eq!(holder.poll_action(), Some(Action::Finish { slot: 2 }), "Alg. 6 line 8");
    assert_eq!(holder.poll_action(), Some(Action::Checked { check, membership: 1, active: false }));
    assert_eq!(holder.active(100_002, 1), None);
    // The third would have been empty; too late.
    assert_eq!(holder.handle_read(100_003, MemberId(3), check, Word::default()), Err(Refused::OldInstance));
}

/// One coordinator has accepted the next membership, one has not, and the third does not answer.
#[test]
fn ukharon_alg_6_line_8_what_is_in_doubt_becomes_active_when_it_was_finished() {
    let mut laboratory = Laboratory::new(memberships(&[(DELTA_NS, 0); 2], |_| false), 1);
    (laboratory.accepted, laboratory.gone) = ([2, 1, 1], Some(3));
    laboratory.add(Role::Direct, 0, 5, 0);
    laboratory.settle(false);
    assert!(!laboratory.is_active_everywhere(1) && !laboratory.is_active_everywhere(2), "nobody finished it");
    laboratory.settle(true);
    assert!(laboratory.is_active_everywhere(2));
}

#[test]
fn ukharon_alg_2_the_lease_counts_from_before_the_reads() {
    let views = memberships(&[(DELTA_NS, 0); 1], |_| false);
    let mut holder = Holder::new(TIMING, Role::Direct, views[0].clone(), 500);
    holder.handle_read(15_000, MemberId(1), 1, Word::default()).unwrap();
    assert_eq!(holder.active(15_000, 1), None);
    holder.handle_read(16_000, MemberId(3), 1, Word::default()).unwrap();
    assert_eq!(holder.lease(), Lease { membership: 1, start_ns: 500, end_ns: 500 + DELTA_NS - 64 });
    let at = |now_ns| holder.active(now_ns, 1);
    assert_eq!((at(499), at(500), at(20_435), at(20_436)), (Some(false), Some(true), Some(true), None));
    assert_eq!((holder.active(600, 0), holder.active(600, 2)), (Some(false), None));
}

#[test]
fn ukharon_6_2_a_frozen_word_may_hide_a_successor() {
    let views = memberships(&[(DELTA_NS, 0); 1], |_| false);
    let mut holder = Holder::new(TIMING, Role::Direct, views[0].clone(), 0);
    for coordinator in 1..=2 {
        holder.handle_read(1, MemberId(coordinator), 1, Word::prepared(crate::consensus::paxos::FROZEN)).unwrap();
    }
    assert_eq!(holder.active(2, 1), None);
}

#[test]
fn what_no_coordinator_answers_is_refused_and_changes_nothing() {
    let views = memberships(&[(DELTA_NS, 0); 3], |_| false);
    let mut holder = Holder::new(TIMING, Role::Direct, views[0].clone(), 0);
    holder.handle_read(1, MemberId(1), 1, Word::default()).unwrap();
    let before = holder.clone();
    let impossible = Word { min_proposal: 1, accepted_proposal: 2, accepted_value: 0 };
    assert_eq!(holder.handle_read(2, MemberId(9), 1, Word::default()), Err(Refused::UnknownMember));
    assert_eq!(holder.handle_read(2, MemberId(1), 1, Word::default()), Err(Refused::Duplicate));
    assert_eq!(holder.handle_read(2, MemberId(2), 7, Word::default()), Err(Refused::Malformed));
    assert_eq!(holder.handle_read(2, MemberId(2), 1, impossible), Err(Refused::ImpossibleBallot));
    assert_eq!(holder.handle_cache(2, 1, 1, true), Err(Refused::Malformed));
    assert_eq!(holder.handle_membership(2, views[0].clone()), Err(Refused::OldInstance));
    assert_eq!(holder.handle_membership(2, views[2].clone()), Err(Refused::TooFarAhead));
    assert_eq!(holder.refusals().total(), 7);
    let counted = *holder.refusals();
    assert_eq!(
        format!("{before:?}"),
        format!("{holder:?}").replace(&format!("{counted:?}"), &format!("{:?}", before.refusals()))
    );
}

proptest! {
    #[test]
    fn hostile_answers_never_panic(answers in proptest::collection::vec((0u16..6, 0u64..6, any::<u64>(), any::<bool>(), any::<u64>()), 0..60)) {
        let views = memberships(&[(DELTA_NS, DELTA_NS); 3], |at| at == 1);
        for role in [Role::Direct, Role::Cache, Role::BehindCache] {
            let mut holder = Holder::new(TIMING, role, views[0].clone(), 0);
            for (from, check, bits, small, now_ns) in &answers {
                let bits = if *small { bits & 0x0003_0003_0003_0003 } else { *bits };
                let _ = holder.handle_read(*now_ns, MemberId(*from), *check, Word::from_bits(bits));
                let _ = holder.handle_cache(*now_ns, *check, bits & 3, *small);
                let _ = holder.handle_membership(*now_ns, views[(bits % 3) as usize].clone());
                holder.handle_timeout(*now_ns);
                holder.invariants();
            }
        }
    }
}

// Coordinators.

fn coordinator() -> Coordinator {
    let mut coordinator = Coordinator::new(MemberId(1), Membership::first(MemberSet::first(3), MemberSet::first(3), DELTA_NS));
    coordinator.set_leader(true);
    coordinator
}

fn proposed(coordinator: &mut Coordinator) -> Option<Membership> {
    std::iter::from_fn(|| coordinator.poll_action()).find_map(|action| match action {
        view::Action::Propose(membership) => Some((*membership).clone()),
        _ => None,
    })
}

#[test]
fn ukharon_3_1_ids_are_unique_and_memberships_without_a_gap() {
    let mut leader = coordinator();
    leader.handle_request(Request::Join { token: 77 }).unwrap();
    let second = proposed(&mut leader).unwrap();
    assert_eq!((second.id, second.highest), (2, MemberId(4)));
    leader.handle_request(Request::Leave { member: MemberId(2) }).unwrap();
    leader.handle_request(Request::Join { token: 78 }).unwrap();
    assert_eq!(leader.poll_action(), None, "the third is not proposed before the second was decided");
    leader.handle_decided(second.clone()).unwrap();
    assert_eq!(leader.poll_action(), Some(view::Action::Broadcast(Arc::new(second.clone()))));
    assert_eq!(leader.poll_action(), Some(view::Action::Joined { token: 77, member: MemberId(4) }));
    let third = proposed(&mut leader).unwrap();
    assert_eq!((third.id, third.members.to_string().as_str()), (3, "{p1 p3 p4 p5}"));
    // Another leader, who was asked again by 77.
    let mut next = Coordinator::new(MemberId(3), Membership::first(MemberSet::first(3), MemberSet::first(3), DELTA_NS));
    next.handle_decided(second).unwrap();
    next.set_leader(true);
    next.handle_request(Request::Join { token: 77 }).unwrap();
    assert_eq!(
        next.poll_action().map(|_| next.poll_action()),
        Some(Some(view::Action::Joined { token: 77, member: MemberId(4) }))
    );
    // Its own third wins; what was asked of the first leader and is not in it goes into the fourth.
    next.handle_request(Request::Leave { member: MemberId(4) }).unwrap();
    let other = proposed(&mut next).unwrap();
    leader.handle_decided(other).unwrap();
    let fourth = proposed(&mut leader).unwrap();
    assert_eq!((fourth.id, fourth.members.to_string().as_str()), (4, "{p1 p3 p5}"));
}

#[test]
fn ukharon_4_2_reports_shrink_it_to_the_maximum_clique() {
    let mut leader = coordinator();
    leader.handle_report(MemberId(2), [MemberId(3)].into_iter().collect()).unwrap();
    assert_eq!(proposed(&mut leader).unwrap().members.to_string(), "{p1 p2}");
}

#[test]
fn ukharon_6_3_a_change_of_leases_is_compatible() {
    let mut leader = coordinator();
    leader.handle_request(Request::Lease { lease_ns: 50_000, cache_lease_ns: 0 }).unwrap();
    let next = proposed(&mut leader).unwrap();
    assert!(leader.latest().is_compatible(&next) && next.lease_ns == 50_000 && next.longest_before_ns == DELTA_NS);
}

#[test]
fn what_does_not_follow_is_refused() {
    let mut leader = coordinator();
    leader.handle_request(Request::Join { token: 1 }).unwrap();
    let good = proposed(&mut leader).unwrap();
    let bad = [
        (Membership { id: 1, ..good.clone() }, Refused::OldInstance),
        (Membership { id: 3, ..good.clone() }, Refused::TooFarAhead),
        (Membership { highest: MemberId(2), ..good.clone() }, Refused::Malformed),
        (Membership { longest_before_ns: 0, ..good.clone() }, Refused::Malformed),
        (Membership { tokens: [(MemberId(9), 1)].into(), ..good.clone() }, Refused::Malformed),
        (Membership { coordinators: MemberSet::new(), ..good.clone() }, Refused::Malformed),
    ];
    for (membership, why) in bad {
        assert_eq!(leader.handle_decided(membership), Err(why));
    }
    assert_eq!(leader.handle_request(Request::Leave { member: MemberId(9) }), Err(Refused::UnknownMember));
    assert_eq!(leader.handle_request(Request::Lease { lease_ns: 0, cache_lease_ns: 0 }), Err(Refused::Malformed));
    assert_eq!(leader.handle_request(Request::Join { token: 1 }), Err(Refused::Duplicate));
    assert_eq!(leader.handle_report(MemberId(9), MemberSet::new()), Err(Refused::UnknownMember));
    assert_eq!(leader.refusals().total(), 10);
    leader.handle_decided(good).unwrap();
    leader.set_leader(false);
    assert_eq!(leader.handle_request(Request::Join { token: 5 }), Err(Refused::NotLeader));
}

#[test]
fn ukharon_3_1_members_see_them_in_order_whatever_the_multicast_does() {
    let views = memberships(&[(DELTA_NS, 0); 5], |_| false);
    let mut sequence = Sequence::new(1);
    sequence.push(views[2].clone()).unwrap();
    assert_eq!((sequence.pop(), sequence.missing()), (None, Some(1)));
    assert_eq!(sequence.push(views[2].clone()), Err(Refused::Duplicate));
    sequence.push(views[0].clone()).unwrap();
    sequence.push(views[1].clone()).unwrap();
    let ids: Vec<u64> = std::iter::from_fn(|| sequence.pop()).map(|view| view.id).collect();
    assert_eq!((ids, sequence.missing()), (vec![1, 2, 3], None));
    assert_eq!(sequence.push(views[0].clone()), Err(Refused::OldInstance));
    let far = Membership { id: 4 + Sequence::EARLY_MAX, ..(*views[0]).clone() };
    assert_eq!(sequence.push(Arc::new(far)), Err(Refused::TooFarAhead));
}
