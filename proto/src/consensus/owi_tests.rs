use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const DELTA_I: u64 = 1_000;
const DELTA_W: u64 = 600;
const P1: MemberId = MemberId(1);
const P2: MemberId = MemberId(2);
const P3: MemberId = MemberId(3);

fn config() -> Config {
    Config::new(DELTA_I, DELTA_W)
}

enum Event {
    Propose(MemberId),
    Copy { to: MemberId, from: MemberId, path: usize, value: u64 },
    Send { to: MemberId, from: MemberId, value: u64 },
}

/// All clocks are one here; starts are within Δ_W. What is not fixed is drawn by `draw(limit)`.
struct World<'a> {
    members: BTreeMap<MemberId, (Owi<u64>, bool, usize)>,
    queue: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    /// Whoever is in here dies before its action of this number.
    deaths: BTreeMap<MemberId, usize>,
    draw: &'a mut dyn FnMut(u64) -> u64,
    late: Option<(MemberId, u64)>,
    decided: Vec<(MemberId, u64, u64)>,
}

impl<'a> World<'a> {
    fn new(n: u16, draw: &'a mut dyn FnMut(u64) -> u64) -> Self {
        let all = MemberSet::first(n);
        let members = all.iter().map(|me| (me, (Owi::new(me, config(), all.clone()), true, 0))).collect();
        let mut world =
            Self { members, queue: BTreeMap::new(), sequence: 0, deaths: BTreeMap::new(), draw, late: None, decided: vec![] };
        for member in all.iter() {
            let at = (world.draw)(DELTA_W);
            world.at(at, Event::Propose(member));
        }
        world
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    fn run(&mut self) {
        loop {
            let next = self.queue.first_key_value().map(|(&(at, _), _)| at);
            let alive = self.members.iter().filter(|(_, (_, alive, _))| *alive);
            let wake = alive.filter_map(|(&member, (owi, ..))| Some((owi.poll_timeout()?, member))).min();
            match (next, wake) {
                (Some(at), wake) if wake.is_none_or(|(due, _)| at <= due) => {
                    let (_, event) = self.queue.pop_first().unwrap();
                    match event {
                        Event::Propose(member) => self.call(at, member, |owi| {
                            let _ = owi.propose(at, member.0.into());
                        }),
                        Event::Copy { to, from, path, value } => self.call(at, to, |owi| {
                            let _ = owi.handle_copy(at, from, path, value);
                        }),
                        Event::Send { to, from, value } => self.call(at, to, |owi| {
                            let _ = owi.handle_proposal(at, from, value);
                        }),
                    }
                }
                (_, Some((due, member))) => self.call(due, member, |owi| owi.handle_timeout(due)),
                (_, None) => return,
            }
        }
    }

    fn call(&mut self, at: u64, member: MemberId, call: impl FnOnce(&mut Owi<u64>)) {
        if !self.members[&member].1 || self.deaths.get(&member) == Some(&0) {
            self.members.get_mut(&member).unwrap().1 = false;
            return;
        }
        call(&mut self.members.get_mut(&member).unwrap().0);
        loop {
            let (owi, alive, done) = self.members.get_mut(&member).unwrap();
            owi.invariants();
            let Some(action) = owi.poll_action() else {
                if owi.poll_timeout().is_some_and(|due| due <= at) {
                    owi.handle_timeout(at);
                    continue;
                }
                return;
            };
            *done += 1;
            if self.deaths.get(&member) == Some(done) {
                *alive = false;
                return;
            }
            match action {
                Action::Send { to, value } => {
                    let delay = (self.draw)(DELTA_I);
                    self.at(at + delay, Event::Send { to, from: member, value });
                }
                Action::Copies { value } => {
                    let others: Vec<_> = self.members.keys().copied().filter(|to| *to != member).collect();
                    for to in others {
                        for path in 0..2 {
                            let drawn = (self.draw)(DELTA_I);
                            let delay = self.late.filter(|late| late.0 == to).map_or(drawn, |late| late.1);
                            self.at(at + delay, Event::Copy { to, from: member, path, value });
                        }
                    }
                    self.late = None;
                }
                Action::Decide(value) => self.decided.push((member, value, at)),
                Action::Quit(_) => {}
            }
        }
    }

    fn check(&self) {
        let decided: BTreeMap<_, _> = self.decided.iter().map(|&(member, value, _)| (member, value)).collect();
        assert_eq!(decided.len(), self.decided.len(), "nano_4_2 integrity");
        assert!(decided.values().all(|&value| Some(&value) == decided.values().next()), "nano_4_2 uniform agreement");
        assert!(decided.values().all(|&value| (1..=self.members.len() as u64).contains(&value)), "nano_4_2 validity");
        for (member, (owi, alive, _)) in &self.members {
            assert!(!alive || (decided.contains_key(member) && owi.halted().is_none()), "nano_4_2 termination: {member}");
        }
    }
}

#[test]
fn nano_4_2_failure_free_decides_in_one_message_delay() {
    let mut world_draw = |limit| if limit == DELTA_I { 700 } else { 0 };
    let mut world = World::new(4, &mut world_draw);
    world.run();
    world.check();
    assert_eq!(
        world.decided.iter().map(|&(_, value, at)| (value, at)).collect::<Vec<_>>(),
        [(1, 0), (1, 700), (1, 700), (1, 700)]
    );
}

/// N = 3, every choice of fastest and slowest for the first 14 delays and starts, crashes of up to two at every point.
#[test]
fn nano_4_2_every_crash_point_and_extreme_delay_of_three() {
    for death_of_1 in [None, Some(0), Some(1), Some(2)] {
        for death_of_2 in [None, Some(0), Some(1), Some(2), Some(3), Some(4)] {
            for choices in 0u64..1 << 9 {
                let mut rest = choices | choices << 9 | choices << 18 | choices << 27 | choices << 36;
                let mut draw = |limit: u64| {
                    let extreme = if rest & 1 == 1 { limit } else { 0 };
                    rest = rest.rotate_right(1);
                    extreme
                };
                let mut world = World::new(3, &mut draw);
                world.deaths.extend(death_of_1.map(|at| (P1, at)));
                world.deaths.extend(death_of_2.map(|at| (P2, at)));
                world.run();
                world.check();
            }
        }
    }
}

#[test]
fn nano_4_2_random_schedules_with_n_minus_1_crashes() {
    for seed in 1u64..3_000 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 11
        };
        let n = 2 + (next() % 4) as u16;
        let deaths: Vec<_> = (1..n).map(|member| (MemberId(member), (next() % 6) as usize)).filter(|death| death.1 < 5).collect();
        let mut draw = |limit| next() % (limit + 1);
        let mut world = World::new(n, &mut draw);
        world.deaths.extend(deaths);
        world.run();
        world.check();
    }
}

#[test]
fn nano_4_2_must_fail_with_one_late_packet() {
    let mut draw = |_| 0;
    let mut world = World::new(3, &mut draw);
    // p1 dies right after its copies left; those to p2 take a hundred Δ_I.
    world.deaths.insert(P1, 2);
    world.late = Some((P2, 100 * DELTA_I));
    world.run();
    let decided: Vec<_> = world.decided.iter().map(|&(member, value, _)| (member, value)).collect();
    assert_eq!(decided, [(P3, 1), (P2, 2)], "without the timing assumption, agreement breaks");
    let quit = |member| world.members[&member].0.halted();
    assert_eq!((quit(P2), quit(P3)), (Some(Halted::MissingBroadcast), Some(Halted::MissingBroadcast)), "and both learn it");
}

#[test]
fn nano_4_2_undecided_is_not_the_heartbeat_value() {
    let mut owi: Owi<Option<u64>> = Owi::new(P2, config(), MemberSet::first(2));
    owi.propose(0, None).unwrap();
    assert_eq!(owi.poll_action(), Some(Action::Send { to: P1, value: None }));
    owi.handle_copy(5, P1, 0, None).unwrap();
    owi.handle_copy(5, P1, 1, None).unwrap();
    assert_eq!((owi.poll_action(), owi.decision(), owi.poll_timeout()), (Some(Action::Decide(None)), Some(&None), None));
    owi.handle_timeout(1_000_000);
    assert_eq!((owi.poll_action(), owi.leader()), (None, Some(P1)), "⊥ is a decision: nobody is elected");
    let mut leader: Owi<Option<u64>> = Owi::new(P1, config(), MemberSet::first(2));
    leader.handle_proposal(0, P2, Some(7)).unwrap();
    leader.propose(1, None).unwrap();
    assert_eq!(leader.poll_action(), Some(Action::Copies { value: Some(7) }), "DET prefers a value");
}

#[test]
fn nano_4_2_line_17_sends_its_own_proposal_to_the_next_leader() {
    let mut owi = Owi::new(P3, config(), MemberSet::first(3));
    owi.propose(0, 9u64).unwrap();
    assert_eq!(owi.poll_action(), Some(Action::Send { to: P1, value: 9 }));
    owi.handle_timeout(owi.poll_timeout().unwrap());
    assert_eq!(owi.poll_action(), Some(Action::Send { to: P2, value: 9 }));
    owi.handle_timeout(owi.poll_timeout().unwrap());
    assert_eq!(owi.poll_action(), Some(Action::Copies { value: 9 }));
    assert_eq!(owi.decision(), None, "not before they have left");
}

#[test]
fn nano_4_2_the_leader_decides_when_its_copies_have_left_in_time() {
    let mut owi = Owi::new(P1, config(), MemberSet::first(2));
    owi.propose(10, 1u64).unwrap();
    let mut lost = owi.clone();
    lost.handle_network_fault(10);
    assert_eq!(
        (lost.poll_action(), lost.poll_action()),
        (Some(Action::Quit(Halted::NetworkFault)), None),
        "neither sent nor decided"
    );
    owi.handle_timeout(10);
    assert!(matches!(owi.poll_action(), Some(Action::Copies { .. })));
    assert_eq!((owi.poll_action(), owi.poll_timeout()), (None, Some(10)));
    let mut paused = owi.clone();
    paused.handle_timeout(10 + config().late_ns + 1);
    assert_eq!((paused.poll_action(), paused.decision()), (Some(Action::Quit(Halted::Expelled)), None));
    owi.handle_timeout(10);
    assert_eq!(owi.poll_action(), Some(Action::Decide(1)));
}

#[test]
fn nano_3_3_a_missing_copy_is_a_safe_exit() {
    let mut owi = Owi::new(P2, config(), MemberSet::first(2));
    owi.propose(0, 2u64).unwrap();
    owi.handle_copy(5, P1, 0, 1).unwrap();
    owi.handle_timeout(owi.poll_timeout().unwrap());
    assert_eq!((owi.halted(), owi.decision()), (Some(Halted::NetworkFault), None));
}

#[test]
fn a_successor_that_slept_through_its_slot_does_not_speak() {
    let mut owi = Owi::new(P2, config(), MemberSet::first(3));
    owi.propose(0, 2u64).unwrap();
    let slot = owi.poll_timeout().unwrap();
    let mut late = owi.clone();
    late.handle_timeout(slot + config().late_ns + 1);
    assert_eq!(late.halted(), Some(Halted::Expelled));
    owi.handle_timeout(slot + config().late_ns);
    assert_eq!(owi.actions.back(), Some(&Action::Copies { value: 2 }));
    let mut skipped = Owi::new(P2, config(), MemberSet::first(3));
    skipped.propose(0, 2u64).unwrap();
    skipped.handle_copy(1, P3, 0, 3).unwrap();
    assert_eq!(skipped.halted(), Some(Halted::Expelled), "p3 speaks only if it has given us up");
}

#[test]
fn refused_with_the_state_unchanged() {
    let mut owi = Owi::new(P2, config(), MemberSet::first(3));
    owi.propose(0, 2u64).unwrap();
    owi.handle_proposal(0, P3, 3).unwrap();
    owi.handle_copy(0, P1, 0, 1).unwrap();
    type Call = fn(&mut Owi<u64>) -> Result<(), Refused>;
    let cases: [(Call, Refused); 9] = [
        (|owi| owi.propose(0, 5), Refused::Duplicate),
        (|owi| owi.handle_proposal(0, P3, 4), Refused::Duplicate),
        (|owi| owi.handle_proposal(0, P2, 4), Refused::Malformed),
        (|owi| owi.handle_proposal(0, MemberId(9), 4), Refused::UnknownMember),
        (|owi| owi.handle_copy(0, P1, 0, 1), Refused::Duplicate),
        (|owi| owi.handle_copy(0, P1, 1, 2), Refused::Malformed),
        (|owi| owi.handle_copy(0, P1, 2, 1), Refused::Malformed),
        (|owi| owi.handle_copy(0, P2, 1, 1), Refused::Malformed),
        (|owi| owi.handle_copy(0, MemberId(9), 1, 1), Refused::UnknownMember),
    ];
    for (at, (call, why)) in cases.into_iter().enumerate() {
        let before = owi.clone();
        assert_eq!(call(&mut owi), Err(why), "case {at}");
        assert_eq!(owi.refusals().of(why), before.refusals.of(why) + 1);
        owi.refusals = before.refusals;
        assert_eq!(owi, before);
    }
    owi.handle_network_fault(0);
    assert_eq!(owi.propose(0, 1), Err(Refused::Halted));
}

proptest! {
    /// Whatever comes: no panic, and what is refused changes nothing but its counter.
    #[test]
    fn hostile_messages(steps in prop::collection::vec((0u16..5, 0usize..3, 0u64..3, 0u64..2_000, 0u8..5), 0..60), who in 1u16..4) {
        let mut owi = Owi::new(MemberId(who), config(), MemberSet::first(3));
        let mut now = 0;
        for (from, path, value, step, what) in steps {
            now += if step > 1_500 { step } else { step / 20 };
            owi.handle_timeout(now);
            while owi.poll_action().is_some() {}
            owi.handle_timeout(now);
            let before = owi.clone();
            let result = match what {
                0 => owi.propose(now, value),
                1 => owi.handle_proposal(now, MemberId(from), value),
                _ => owi.handle_copy(now, MemberId(from), path, value),
            };
            owi.invariants();
            if let Err(why) = result {
                prop_assert_eq!(owi.refusals().of(why), before.refusals.of(why) + 1);
                owi.refusals = before.refusals;
                prop_assert_eq!(&owi, &before);
            }
        }
    }
}
