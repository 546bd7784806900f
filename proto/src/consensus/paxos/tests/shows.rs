//! What the paper's pseudo-code gets wrong, and what no correct member sends.

use super::super::*;
use super::world::*;
use crate::group::Body;
use proptest::prelude::*;

/// The operations of `from` on the memory of `to` that are under way, carried out; their answers stay under way.
fn carry_out(world: &mut World, from: u16, to: u16) {
    for _ in 0..world.links.get(&(from, to, 1)).map_or(0, VecDeque::len) {
        world.deliver((from, to, 1));
    }
}

fn answer(world: &mut World, from: u16, to: u16) {
    for _ in 0..world.links.get(&(to, from, 2)).map_or(0, VecDeque::len) {
        world.deliver((to, from, 2));
    }
}

#[test]
fn ukharon_5_3_1_the_bytes_of_an_adopted_value_are_where_it_was_accepted() {
    let mut world = World::new(3, 1, |_| {});
    world.quiet();
    // p1 writes and accepts at its own memory only, and its process dies.
    world.propose(1, entry(1, 1));
    carry_out(&mut world, 1, 1);
    world.kill(1, true);
    world.links.clear();
    // p2 finds it there, adopts it, and has it accepted by p2 and p3.
    world.suspect(1);
    for round in 0..12 {
        for to in if round < 4 { [1, 2] } else { [2, 3] } {
            carry_out(&mut world, 2, to);
            answer(&mut world, 2, to);
        }
    }
    assert_eq!(world.engine(2).decided_through(), 1);
    // Then the only memory dies to which p1 had written, and p2's process: p3 must find the bytes.
    world.memories.get_mut(&1).unwrap().gone = true;
    world.kill(2, true);
    world.links.clear();
    world.suspect(2);
    world.heal(10_000);
    assert_eq!(world.decided_by[&3][0][0], entry(1, 1));
}

#[test]
fn ukharon_a4_one_yes_one_no_and_one_dead_end_the_attempt() {
    let mut world = World::new(3, 1, |_| {});
    world.links.clear();
    world.memories.get_mut(&3).unwrap().gone = true;
    world.at(2, |engine, now_ns| engine.handle_crash(now_ns, id(1))).unwrap();
    // p2's memory promised p3 more.
    world.memories.get_mut(&2).unwrap().words.insert(1, Word::prepared(3).to_bits());
    for to in 1..=3 {
        carry_out(&mut world, 2, to);
        answer(&mut world, 2, to);
    }
    // Both were mispredicted or refused; whatever was asked again is answered.
    for to in 1..=3 {
        carry_out(&mut world, 2, to);
        answer(&mut world, 2, to);
    }
    assert_eq!(world.engine(2).stats().aborts, 1);
    assert!(world.engine(2).poll_timeout().is_some(), "and there will be another one");
}

#[test]
fn ukharon_a5_lines_9_to_12_what_was_prepared_ahead_is_not_overwritten() {
    let mut world = World::new(3, 1, |_| {});
    world.quiet();
    world.propose(1, entry(1, 1));
    for to in 1..=3 {
        carry_out(&mut world, 1, to);
    }
    // Decided by the words, but p1's process dies before it knows.
    world.kill(1, true);
    world.links.clear();
    world.suspect(1);
    world.quiet();
    // p2 prepared without anything to propose; only now is it handed something.
    world.propose(2, entry(2, 1));
    world.quiet();
    assert_eq!(world.decisions[&1][0], entry(1, 1));
    assert_eq!(world.decisions[&2][0], entry(2, 1));
}

#[test]
fn ukharon_a6_no_cas_passes_a_frozen_word() {
    let mut world = World::new(3, 1, |config| config.two_sided_from = Some(4));
    world.quiet();
    // p1's accept is under way to all, by CAS with number 1 …
    world.propose(1, entry(1, 1));
    // … when p2 (whose lowest number by message is 5) asks the processes.
    world.propose(2, entry(2, 1));
    for i in 1..=3 {
        world
            .at(i, |engine, now_ns| {
                engine.handle_message(
                    now_ns,
                    id(if i == 2 { 3 } else { 2 }),
                    Message::Prepare { instance: 1, ballot: if i == 2 { 6 } else { 5 } },
                )
            })
            .unwrap();
        // The first guess of the word is wrong.
        carry_out(&mut world, i, i);
        answer(&mut world, i, i);
        carry_out(&mut world, i, i);
    }
    for to in 1..=3 {
        let word = Word::from_bits(world.memories[&to].words[&1]);
        assert!(word.is_frozen());
        carry_out(&mut world, 1, to);
        assert_eq!(Word::from_bits(world.memories[&to].words[&1]), word, "the CAS came too late");
    }
    world.heal(60_000);
}

#[test]
fn ukharon_5_3_1_a_member_without_news_reads_words() {
    let mut world = World::new(5, 1, |_| {});
    world.quiet();
    world.propose(1, entry(1, 1));
    for to in 1..=5 {
        carry_out(&mut world, 1, to);
    }
    for to in 1..=5 {
        answer(&mut world, 1, to);
    }
    assert_eq!(world.engine(1).decided_through(), 1);
    world.kill(1, true);
    world.links.clear();
    // p5 hears of the crash; p2, who would lead, does not.
    world.at(5, |engine, now_ns| engine.handle_crash(now_ns, id(1))).unwrap();
    world.links.retain(|(_, _, kind), _| *kind != 0);
    for _ in 0..3 {
        for to in 1..=5 {
            carry_out(&mut world, 5, to);
            answer(&mut world, 5, to);
        }
    }
    assert_eq!((world.engine(5).decided_through(), world.engine(5).stats().read), (1, 1));
}

fn control(proposer: u16, number: u64, body: Body) -> Entry {
    Entry { id: EntryId { proposer: id(proposer), number }, body }
}

#[test]
fn barriers_are_decided_alone_and_nothing_begins_behind_them() {
    let mut world = World::new(3, 1, |_| {});
    world.quiet();
    world.propose(1, entry(1, 1));
    world.propose(1, control(1, 2, Body::Leave(id(3))));
    world.propose(1, entry(1, 3));
    world.quiet();
    assert_eq!(world.decisions.len(), 2, "the third waits for the members");
    let fewer = MemberSet::first(2);
    for i in 1..=3 {
        let members = fewer.clone();
        world.at(i, |engine, now_ns| engine.set_members(now_ns, 3, members).unwrap());
    }
    world.quiet();
    assert_eq!(world.engine(3).halted(), Some(Halted::Left));
    assert_eq!((world.engine(2).decided_through(), world.decisions[&3].len()), (3, 1));
    assert_eq!(world.engine(1).stable_through(), 3);
}

/// Nobody else may be left of those whom it knows.
#[test]
fn who_lags_goes_on_from_a_state() {
    let mut lags = Paxos::new(Config::new(id(1), 1), MemberSet::first(2), 0);
    lags.propose(0, entry(1, 1)).unwrap();
    lags.handle_crash(0, id(2)).unwrap();
    let members = MemberSet::first(3);
    let refused = [(0, members.clone(), Refused::Duplicate), (5, [id(2), id(3)].into_iter().collect(), Refused::NotMember)];
    for (through, members, why) in refused {
        let before = lags.clone();
        assert_eq!(lags.handle_state(0, id(3), through, &members, None), Err(why));
        assert_eq!((lags.decided_through(), lags.members()), (before.decided, &before.members));
    }
    while lags.poll_action().is_some() {}
    lags.handle_state(0, id(3), 5, &members, None).unwrap();
    assert_eq!((lags.decided_through(), lags.members(), lags.waiting.len()), (5, &members, 0));
    lags.invariants();
    assert_eq!(lags.handle_state(0, id(3), 5, &members, None), Err(Refused::Duplicate));
    // What was not applied is handed in again, and goes behind it, to the new members.
    lags.propose(0, entry(1, 1)).unwrap();
    lags.invariants();
    let asked: BTreeSet<_> = std::iter::from_fn(|| lags.poll_action())
        .filter_map(|action| match action {
            Action::Memory { to, request: Request::Cas { word: 6, .. } } => Some(to),
            _ => None,
        })
        .collect();
    assert!(asked.contains(&id(3)), "{asked:?}");
}

/// Whoever asks for what lies before a state, and asks again because nobody else has it, is given that state.
#[test]
fn who_lags_behind_a_state_is_given_it() {
    let members = MemberSet::first(3);
    let mut given = Paxos::new(Config::new(id(1), 1), members.clone(), 0);
    given.handle_state(0, id(3), 5, &members, None).unwrap();
    let mut asks = |decided| {
        given.handle_message(0, id(2), Message::Progress { decided, stable: 0, ask: true }).unwrap();
        std::iter::from_fn(|| given.poll_action()).filter(|action| *action == Action::State { to: id(2) }).count()
    };
    assert_eq!([2, 2, 2, 2, 2, 2, 2, 2].map(&mut asks), [0, 1, 0, 1, 0, 0, 0, 1]);
    assert_eq!([3, 3, 5, 5, 3].map(&mut asks), [0, 1, 0, 0, 0], "of another one anew, and of none that is there");
}

#[test]
fn everyone_hears_what_is_stable_also_when_nothing_follows() {
    let mut world = World::new(3, 1, |_| {});
    world.quiet();
    world.propose(2, entry(2, 1));
    world.heal(10_000);
    for _ in 0..200 {
        world.step();
    }
    assert!((1..=3).all(|i| world.engine(i).stable_through() == 1));
}

#[test]
fn entries_of_one_member_keep_their_order_under_false_hints() {
    for seed in 0..200 {
        let mut world = World::new(3, seed, |_| {});
        for number in 1..=20 {
            world.propose(3, entry(3, number));
            let (at, about) = (1 + world.draw(3) as u16, 1 + world.draw(3) as u16);
            let _ = world.at(at, |engine, now_ns| engine.handle_crash(now_ns, id(about)));
            for _ in 0..world.draw(10) {
                world.step();
            }
            let at = 1 + world.draw(3) as u16;
            world.at(at, |engine, now_ns| engine.handle_alive(now_ns, id(1)));
        }
        world.heal(60_000);
        let mut first = BTreeSet::new();
        let order: Vec<u64> = world
            .decisions
            .values()
            .flat_map(|batch| batch.iter())
            .map(|entry| entry.id.number)
            .filter(|n| first.insert(*n))
            .collect();
        assert_eq!(order, (1..=20).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn every_refusal_has_its_reason() {
    let mut world = World::new(3, 1, |config| config.waiting_max = 1);
    world.quiet();
    world.suspect(1);
    world.quiet();
    let batch: Batch = [entry(1, 1)].into();
    let decided = |instance, stable| Message::Decided { instance, batch: batch.clone(), stable };
    let prepare = |instance, ballot| Message::Prepare { instance, ballot };
    let large = Entry { body: Body::Value(vec![0; crate::group::VALUE_MAX + 1].into()), ..entry(1, 1) };
    let latest = (1 << 16) - 3;
    let cases = [
        (9, decided(1, 0), Refused::UnknownMember),
        (3, decided(1, 0), Refused::Malformed),
        (1, decided(1, 1), Refused::Malformed),
        (1, decided(5_000, 0), Refused::TooFarAhead),
        (1, Message::Decided { instance: 1, batch: [].into(), stable: 0 }, Refused::Malformed),
        (1, Message::Decided { instance: 0, batch: batch.clone(), stable: 0 }, Refused::Malformed),
        (1, Message::Progress { decided: 1, stable: 2, ask: true }, Refused::Malformed),
        (1, prepare(0, latest + 2), Refused::OldInstance),
        (1, prepare(2, latest + 2), Refused::TooFarAhead),
        (1, prepare(1, 1), Refused::ImpossibleBallot),
        (1, prepare(1, u64::MAX), Refused::ImpossibleBallot),
        (2, Message::Accepted { instance: 1, ballot: 1 << 17, promised: u64::MAX }, Refused::Malformed),
        (1, Message::Forward { run: 1, place: 3, entry: entry(1, 1) }, Refused::Busy),
        (1, Message::Forward { run: 1, place: 0, entry: large.clone() }, Refused::TooLarge),
    ];
    for (from, message, why) in cases {
        let result = world.at(3, |engine, now_ns| engine.handle_message(now_ns, id(from), message.clone()));
        assert_eq!(result, Err(why), "{message:?}");
    }
    let refused = |world: &mut World, from, request, given, why| {
        assert_eq!(world.at(3, |engine, now_ns| engine.handle_memory(now_ns, id(from), request, given)), Err(why));
    };
    refused(&mut world, 9, 1, Answer::Written, Refused::UnknownMember);
    refused(&mut world, 1, 99, Answer::Written, Refused::Malformed);
    assert_eq!(world.at(3, |engine, now_ns| engine.handle_crash(now_ns, id(1))), Err(Refused::Duplicate));
    assert_eq!(world.at(3, |engine, now_ns| engine.handle_crash(now_ns, id(7))), Err(Refused::UnknownMember));
    assert_eq!(world.at(3, |engine, now_ns| engine.propose(now_ns, large)), Err(Refused::TooLarge));
    world.propose(3, entry(3, 1));
    assert_eq!(world.at(3, |engine, now_ns| engine.propose(now_ns, entry(3, 2))), Err(Refused::Busy));
}

#[test]
fn impossible_words_are_refused() {
    let word = |min_proposal, accepted_proposal, accepted_value| Word { min_proposal, accepted_proposal, accepted_value };
    let cases = [
        (word(1, 2, 2 << 16), Refused::ImpossibleBallot),
        (word(2, 2, 1 << 16), Refused::ImpossibleBallot),
        (word(2, 0, 7), Refused::Malformed),
        (word(2, 2, 2 << 16 | 64), Refused::Malformed),
        (word(1, 1, 1 << 16), Refused::ImpossibleBallot),
        (word(65_534, 0, 0), Refused::ImpossibleBallot),
    ];
    for (word, why) in cases {
        let mut world = World::new(3, 1, |_| {});
        let result = world.at(1, |engine, now_ns| engine.handle_memory(now_ns, id(1), 1, Answer::Word(word.to_bits())));
        assert_eq!(result, Err(why), "{word:?}");
        let result = world.at(1, |engine, now_ns| engine.handle_memory(now_ns, id(1), 1, Answer::Written));
        assert_eq!(result, Err(Refused::Malformed));
        assert_eq!(
            world.at(1, |engine, now_ns| engine.handle_memory(now_ns, id(2), 1, Answer::Word(0))),
            Err(Refused::Malformed)
        );
        assert_eq!(world.at(1, |engine, now_ns| engine.handle_memory(now_ns, id(1), 1, Answer::Word(0))), Ok(()));
    }
}

fn hostile_message() -> impl Strategy<Value = Message> {
    let number = prop_oneof![0u64..6, 65_530u64..65_545, any::<u64>()];
    let batch = proptest::collection::vec((0u16..4, 0u64..4, 0u8..4), 0..3).prop_map(|entries| -> Batch {
        let body = |kind| match kind {
            0 => Body::Join(id(7)),
            _ => Body::Value([kind].as_slice().into()),
        };
        entries.into_iter().map(|(proposer, number, kind)| control(proposer, number, body(kind))).collect()
    });
    (0u8..7, number.clone(), number.clone(), number, batch, any::<bool>()).prop_map(|(kind, a, b, c, batch, flag)| match kind {
        0 => Message::Forward { run: a, place: b, entry: entry(c as u16, b) },
        1 => Message::Decided { instance: a, batch, stable: b },
        2 => Message::Progress { decided: a, stable: b, ask: flag },
        3 => Message::Prepare { instance: a, ballot: b },
        4 => Message::Prepared { instance: a, ballot: b, promised: c, accepted: flag.then_some((c, batch)) },
        5 => Message::Accept { instance: a, ballot: b, batch },
        _ => Message::Accepted { instance: a, ballot: b, promised: c },
    })
}

fn hostile_answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        any::<u64>().prop_map(Answer::Word),
        (0u16..7, 0u16..7, 0u16..5, 0u16..3).prop_map(|(min_proposal, accepted_proposal, proposer, variant)| {
            let accepted_value = ValueId { proposer: id(proposer), variant }.to_bits();
            Answer::Word(Word { min_proposal, accepted_proposal, accepted_value }.to_bits())
        }),
        Just(Answer::Written),
        proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40))
            .prop_map(|bytes| Answer::Bytes(bytes.map(Into::into))),
    ]
}

proptest! {
    /// `World::at` checks that a refusal changes nothing, and the invariants.
    #[test]
    fn hostile_messages_and_answers_never_panic(
        inputs in proptest::collection::vec((1u16..5, hostile_message(), 0u64..40, hostile_answer(), any::<bool>()), 0..60),
        low in any::<bool>(),
    ) {
        for me in [1, 2] {
            let mut config = Config::new(id(me), 1);
            config.two_sided_from = low.then_some(4);
            let mut engine = Paxos::new(config, MemberSet::first(3), 0);
            for (from, message, request, answer, crash) in inputs.clone() {
                let mut before = engine.clone();
                let result = engine.handle_message(0, id(from), message);
                if result.is_err() {
                    before.refusals = engine.refusals;
                    prop_assert_eq!(&before, &engine);
                }
                let mut before = engine.clone();
                let result = engine.handle_memory(0, id(from), request, answer);
                if result.is_err() {
                    before.refusals = engine.refusals;
                    prop_assert_eq!(&before, &engine);
                }
                if crash {
                    let _ = engine.handle_crash(0, id(from));
                    engine.handle_timeout(engine.poll_timeout().unwrap_or(0));
                }
                engine.invariants();
                while engine.poll_action().is_some() {}
            }
        }
    }
}
