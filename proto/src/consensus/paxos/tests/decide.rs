//! In how many delays, under which schedules.

use super::super::*;
use super::world::*;

#[test]
fn ukharon_5_3_1_a_stable_leader_decides_in_one_round_trip() {
    for n in [1, 3, 5, 7] {
        let mut world = World::new(n, 1, |_| {});
        world.quiet();
        for number in 1..=5 {
            world.propose(1, entry(1, number));
            assert_eq!(world.delays_until(1, number), 2, "a round trip is two delays, of {n} members, instance {number}");
        }
        assert_eq!(world.engine(1).stats().aborts + world.engine(1).stats().mispredictions, 0);
    }
}

#[test]
fn ukharon_5_3_1_what_waits_meanwhile_is_decided_together_in_the_next_round_trip() {
    let mut world = World::new(3, 1, |_| {});
    world.quiet();
    for number in 1..=10 {
        world.propose(1, entry(1, number));
    }
    assert_eq!(world.delays_until(1, 2), 4);
    assert_eq!(world.decisions[&2].len(), 9);
}

#[test]
fn ukharon_5_3_1_a_new_leader_needs_one_round_trip_more() {
    for n in [3, 5] {
        let mut world = World::new(n, 1, |_| {});
        world.quiet();
        world.propose(1, entry(1, 1));
        world.quiet();
        world.kill(1, false);
        world.propose(2, entry(2, 1));
        world.suspect(1);
        assert_eq!(world.delays_until(2, 2), 4);
        assert_eq!(world.engine(2).stats().mispredictions, 0, "the prediction of what the old leader prepared was right");
    }
}

#[test]
fn ukharon_5_3_1_a_third_leader_predicts_too() {
    let mut world = World::new(5, 1, |_| {});
    world.quiet();
    for leader in 1..=2 {
        world.propose(leader, entry(leader, 1));
        world.quiet();
        world.kill(leader, false);
        world.suspect(leader);
        world.quiet();
    }
    world.propose(3, entry(3, 1));
    assert_eq!(world.delays_until(3, 3), 2);
    assert_eq!(world.engine(3).stats().mispredictions, 0);
}

#[test]
fn ukharon_5_3_1_members_learn_one_delay_later() {
    let mut world = World::new(3, 1, |_| {});
    world.quiet();
    world.propose(1, entry(1, 1));
    assert_eq!(world.delays_until(3, 1), 3);
    world.propose(3, entry(3, 1));
    assert_eq!(world.delays_until(1, 2), 3, "one delay to the leader, one round trip");
}

/// The simulator's seed 11228: the leader decided 2 and 3 and died; p4 heard of neither, recovered 2 from memory and knew of nothing further. The next
/// leader learned 3 from p3.
#[test]
fn a_leader_that_catches_up_tells_who_is_behind() {
    let mut world = World::new(5, 1, |_| {});
    world.quiet();
    for number in 1..=2 {
        world.propose(1, entry(1, number));
        // The words are swapped, and the leader does not live to hear of it: nobody is told.
        let through = world.engine(3).decided_through();
        while world.engine(1).decided_through() == through {
            world.delay();
        }
        world.links.retain(|(from, to, kind), _| *from != 1 || *kind != 0 || (number == 1 && *to != 4));
        world.delay();
    }
    world.kill(1, false);
    let suspect = |world: &mut World, i| world.at(i, |engine, now_ns| engine.handle_crash(now_ns, id(1))).unwrap();
    // p3 and p5 read from memory, p4 reads what it knows that it lacks, all before the next leader has heard of the crash.
    for i in [3, 4, 5] {
        suspect(&mut world, i);
        world.quiet();
    }
    assert_eq!([3, 5].map(|i| world.engine(i).decided_through()), [2, 2]);
    assert_eq!(world.engine(4).decided_through(), 1, "it read the next one only, and nobody has told it that there is another");
    suspect(&mut world, 2);
    world.quiet();
    assert_eq!([2, 3, 4, 5].map(|i| world.engine(i).decided_through()), [2; 4]);
}

/// Random faults and hints, then healing.
fn contend(n: u16, seed: u64, crashes: u64, configure: impl Fn(&mut Config)) -> World {
    let mut world = World::new(n, seed, configure);
    let mut numbers = vec![0; usize::from(n) + 1];
    for _ in 0..200 {
        match world.draw(40) {
            0..=2 => {
                let i = 1 + world.draw(u64::from(n)) as u16;
                if !world.dead.contains(&i) {
                    numbers[usize::from(i)] += 1;
                    world.propose(i, entry(i, numbers[usize::from(i)]));
                }
            }
            // Hints that may be wrong, and different at each.
            3..=4 => {
                let (at, about) = (1 + world.draw(u64::from(n)) as u16, 1 + world.draw(u64::from(n)) as u16);
                if !world.dead.contains(&at) {
                    let _ = world.at(at, |engine, now_ns| engine.handle_crash(now_ns, id(about)));
                }
            }
            5 => {
                let (at, about) = (1 + world.draw(u64::from(n)) as u16, 1 + world.draw(u64::from(n)) as u16);
                if !world.dead.contains(&at) {
                    world.at(at, |engine, now_ns| engine.handle_alive(now_ns, id(about)));
                }
            }
            6 if (world.dead.len() as u64) < crashes => {
                let i = 1 + world.draw(u64::from(n)) as u16;
                let memory = world.draw(2) == 0;
                world.kill(i, memory);
            }
            _ => {
                for _ in 0..world.draw(12) {
                    world.step();
                }
            }
        }
    }
    world.heal(60_000);
    world
}

#[test]
fn ukharon_a4_contention_of_three_proposers_agrees_and_ends() {
    let mut aborts = 0;
    for seed in 0..1500 {
        let world = contend(3, seed, 0, |_| {});
        aborts += world.engines.values().map(|engine| engine.stats().aborts).sum::<u64>();
    }
    assert!(aborts > 1000, "they did contend: {aborts}");
}

#[test]
fn ukharon_a1_a_minority_of_acceptors_may_crash() {
    for seed in 0..1000 {
        contend(3, seed, 1, |_| {});
    }
    for seed in 0..500 {
        contend(5, seed, 2, |_| {});
    }
}

#[test]
fn ukharon_a6_numbers_run_out_and_it_goes_on_by_message() {
    let mut two_sided = 0;
    for seed in 0..1500 {
        let world = contend(3, seed, seed % 2, |config| config.two_sided_from = Some(4));
        two_sided += world.engines.values().map(|engine| engine.stats().two_sided).sum::<u64>();
    }
    assert!(two_sided > 300, "the fallback was reached: {two_sided}");
}
