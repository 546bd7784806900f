//! Scenarios, named after the section of the paper and the property.

use proptest::prelude::*;

use super::super::harness::{Dice, Event, Group, World, entry, id, run_seed, set, sized};
use super::*;
use crate::group::{Body, VALUE_MAX};

type Hsucs = Group<Message, Hsuc>;

const P1: MemberId = MemberId(1);
const P2: MemberId = MemberId(2);
const P3: MemberId = MemberId(3);
const P4: MemberId = MemberId(4);

fn group(n: u16) -> Hsucs {
    Group::new(n, Hsuc::new)
}

/// The next message on one link arrives.
fn link(g: &mut Hsucs, from: u16, to: u16) {
    let (from, to) = (MemberId(from), MemberId(to));
    assert!(g.links.get(&(from, to)).is_some_and(|link| !link.is_empty()), "nothing from {from} to {to}");
    g.happen(Event::Link(from, to));
}

fn notice(g: &mut Hsucs, observer: u16, crashed: u16) {
    g.happen(Event::Notice(MemberId(observer), MemberId(crashed)));
}

#[test]
fn fide_a3_failure_free_it_takes_three_message_delays() {
    let mut g = group(5);
    g.propose(1);
    g.settle();
    assert_eq!(g.of(1).decided_depth, 2, "the leader, after proposal and ACK");
    for follower in 2..=5 {
        assert_eq!((g.log(follower), g.of(follower).decided_depth), (vec![vec![(1, 1)]], 3));
    }
    assert_eq!(g.sent, 12, "3(N−1) messages");
}

#[test]
fn fide_a3_an_entry_of_a_follower_is_one_delay_longer() {
    let mut g = group(3);
    g.propose(3);
    g.settle();
    assert_eq!((g.log(2), g.of(2).decided_depth), (vec![vec![(3, 1)]], 4));
}

#[test]
fn fide_a3_alone_it_decides_at_once() {
    let mut g = group(1);
    g.propose(1);
    assert_eq!((g.log(1), g.of(1).decided_depth), (vec![vec![(1, 1)]], 0));
}

#[test]
fn fide_a3_what_waits_is_decided_together() {
    let mut g = group(3);
    for _ in 0..3 {
        g.propose(1);
        g.propose(2);
    }
    g.settle();
    assert_eq!(g.log(3), [vec![(1, 1)], vec![(2, 1), (1, 2), (2, 2), (1, 3), (2, 3)]]);
}

/// The counter-example to ACKs without an instance.
#[test]
fn fide_a3_uniform_agreement_acks_of_an_instance_that_is_over_do_not_count() {
    let mut g = group(4);
    g.propose(1);
    for f in 2..=4 {
        link(&mut g, 1, f);
        link(&mut g, f, 1);
    }
    assert_eq!(g.log(1).len(), 1);
    // Only p4 gets the decision.
    link(&mut g, 1, 4);
    g.links.retain(|(from, _), _| *from != P1);
    g.crash(P1, &mut Dice(0));
    for f in [2, 3, 4] {
        notice(&mut g, f, 1);
    }
    link(&mut g, 2, 3);
    link(&mut g, 3, 2);
    link(&mut g, 4, 2);
    assert_eq!(g.log(2).len(), 1, "by p4's copy");
    g.propose(2);
    for _proposal_decision_proposal in 0..3 {
        link(&mut g, 2, 4);
    }
    link(&mut g, 4, 2);
    assert_eq!(g.log(2).len(), 1, "p3 has acknowledged the first instance only");
    g.settle();
    g.check_termination();
    assert_eq!(g.log(3), [vec![(1, 1)], vec![(2, 1)]]);
}

/// The counter-example to Alg. 2 and 3 as printed: p2 decides after it was told of the crash, and p3 waits for its ACK for ever.
#[test]
fn fide_a3_termination_when_the_decision_comes_after_the_crash() {
    let mut g = group(3);
    g.propose(1);
    for f in 2..=3 {
        link(&mut g, 1, f);
        link(&mut g, f, 1);
    }
    g.links.remove(&(P1, P3));
    let kept = g.links.clone();
    g.crash(P1, &mut Dice(0));
    g.links = kept;
    notice(&mut g, 2, 1);
    link(&mut g, 1, 2);
    assert_eq!(g.log(2).len(), 1);
    g.settle();
    g.check_termination();
    assert_eq!(g.log(3).len(), 1);
}

#[test]
fn fide_a3_uniform_agreement_a_late_proposal_does_not_replace_that_of_a_later_leader() {
    let mut e = Hsuc::new(P3, set(&[1, 2, 3]), 1);
    let propose = |n| Message::Propose { instance: 1, batch: [entry(n, 1)].into() };
    // p2 knows of the crash, we do not yet.
    e.handle_message(0, P2, propose(2)).unwrap();
    assert_eq!(e.handle_message(0, P1, propose(1)), Err(Refused::NotLeader));
    e.handle_crash(0, P1).unwrap();
    assert_eq!(e.handle_message(0, P1, propose(1)), Err(Refused::Crashed));
    assert_eq!(e.adopted.as_ref().unwrap().proposer, P2);
    // And not that of a leader itself.
    let mut e = Hsuc::new(P2, set(&[1, 2, 3]), 1);
    e.handle_crash(0, P1).unwrap();
    e.propose(0, entry(2, 1)).unwrap();
    assert_eq!(e.handle_message(0, P1, propose(1)), Err(Refused::Crashed));
    assert_eq!(e.adopted.as_ref().unwrap().proposer, P2);
}

#[test]
fn fide_a3_the_crash_of_the_last_one_awaited_lets_the_others_decide() {
    let mut g = group(3);
    g.propose(1);
    link(&mut g, 1, 2);
    link(&mut g, 2, 1);
    g.crash(P3, &mut Dice(0));
    assert_eq!(g.log(1).len(), 0);
    notice(&mut g, 1, 3);
    assert_eq!(g.log(1).len(), 1, "no message came");
}

#[test]
fn fide_a3_a_new_leader_proposes_what_it_adopted_and_nothing_that_was_delivered() {
    let mut g = group(3);
    g.propose(1);
    link(&mut g, 1, 2);
    g.links.clear();
    g.crash(P1, &mut Dice(0));
    g.settle();
    assert_eq!(g.log(3), [[(1, 1)]]);
    g.check_termination();
    let mut g = group(3);
    g.propose(1);
    for f in 2..=3 {
        link(&mut g, 1, f);
        link(&mut g, f, 1);
    }
    link(&mut g, 1, 2);
    g.crash(P1, &mut Dice(0));
    notice(&mut g, 2, 1);
    assert!(g.engine(2).acks.is_none(), "elected after it delivered");
    g.settle();
    g.check_termination();
}

/// Every step of two instances among three, cut after every number of actions, at each member; with every crash of a second one after it.
#[test]
fn fide_a3_uniform_consensus_with_a_crash_at_every_point() {
    let mut runs = 0;
    for first in 1..=3u16 {
        for at in 0..24 {
            for actions in 0..5 {
                for second in 0..4u16 {
                    let mut g = group(3);
                    g.propose(1);
                    g.propose(2);
                    for step in 0..200 {
                        let Some(event) = g.events().get(step % g.events().len().max(1)).copied() else { break };
                        let whom = match event {
                            Event::Link(_, to)
                            | Event::Beat(_, to)
                            | Event::Notice(to, _)
                            | Event::Tick(to)
                            | Event::Members(to) => to,
                        };
                        let due = step >= at && g.alive().len() == 3 && whom.0 == first;
                        let due_again = step >= at + 4 && g.alive().len() == 2 && whom.0 == second;
                        if due || due_again {
                            g.crash_after = Some(actions);
                        }
                        g.happen(event);
                        if !g.alive().contains(&P3) && !g.alive().contains(&P2) {
                            break;
                        }
                    }
                    g.settle();
                    g.check_termination();
                    g.check_order();
                    runs += 1;
                }
            }
        }
    }
    assert_eq!(runs, 3 * 24 * 5 * 4);
}

const SEEDS: u64 = 4_000;

#[test]
fn fide_a3_uniform_consensus_in_thousands_of_schedules() {
    for seed in 0..SEEDS {
        let hosts = 2 + (seed % 4) as u16;
        run_seed(seed, World { hosts, crashes: usize::from(hosts) - 1, changes: 0, entries: 12, bytes: 1 }, Hsuc::new);
    }
}

#[test]
fn fide_a3_uniform_consensus_in_thousands_of_schedules_with_joins_and_leaves() {
    for seed in 0..SEEDS {
        run_seed(seed, World { hosts: 3, crashes: 2, changes: 3, entries: 16, bytes: 1 }, Hsuc::new);
    }
}

#[test]
fn fide_a3_memory_is_bounded_over_a_million_instances() {
    let mut e = Hsuc::new(P2, set(&[1, 2]), 1);
    let batch: Batch = [entry(1, 1)].into();
    let mut most = 0;
    for instance in 1..=1_000_000 {
        e.handle_message(0, P1, Message::Propose { instance, batch: batch.clone() }).unwrap();
        let id = osrb::Id { origin: P1, sequence: instance };
        e.handle_message(0, P1, Message::Decided(osrb::Message { id, body: batch.clone() })).unwrap();
        most = most.max(e.unstable());
        assert_eq!((e.decided_through(), e.stable_through()), (instance, instance - 1));
        assert_eq!(std::iter::from_fn(|| e.poll_action()).count(), 2);
    }
    assert_eq!((most, e.waiting()), (1, 0), "and 2 while a decision is delivered");
}

#[test]
fn issue_3_back_pressure_what_waits_is_bounded() {
    let mut e = Hsuc::new(P2, set(&[1, 2]), 1);
    for number in 1..=batch::WAITING_ENTRIES as u64 {
        e.propose(0, entry(2, number)).unwrap();
        e.propose(0, entry(2, number)).unwrap();
    }
    assert_eq!(e.propose(0, entry(2, 999)), Err(Refused::Busy));
    assert_eq!(e.waiting(), batch::WAITING_ENTRIES);
    // The leader has room for what each may have waiting, and once more.
    let mut leader = Hsuc::new(P1, set(&[1, 2]), 1);
    let forward = |numbers: std::ops::Range<u64>| Message::Forward {
        anew: numbers.start == 1,
        entries: numbers.map(|n| entry(2, n)).collect(),
    };
    leader.handle_message(0, P2, forward(1..257)).unwrap();
    leader.handle_message(0, P2, forward(1..257)).unwrap();
    leader.handle_message(0, P2, forward(257..513)).unwrap();
    assert_eq!(leader.handle_message(0, P2, forward(512..514)), Err(Refused::Busy));
    assert_eq!(leader.waiting(), 512);
    e.propose(0, sized(2, 1000, VALUE_MAX)).unwrap_err();
    let mut e = Hsuc::new(P2, set(&[1, 2]), 1);
    for number in 1..=3 {
        e.propose(0, sized(2, number, VALUE_MAX)).unwrap();
    }
    assert_eq!(e.propose(0, sized(2, 4, VALUE_MAX)), Err(Refused::Busy));
}

#[test]
fn fide_a3_entries_of_a_follower_survive_the_leaders_that_they_were_forwarded_to() {
    let mut g = group(4);
    g.propose(4);
    link(&mut g, 4, 1);
    g.links.clear();
    for leader in [P1, P2] {
        g.crash(leader, &mut Dice(0));
        notice(&mut g, 3, leader.0);
        notice(&mut g, 4, leader.0);
    }
    g.settle();
    assert_eq!(g.log(3), [[(4, 1)]]);
    g.check_termination();
}

#[test]
fn issue_3_a_newcomer_begins_where_it_joined_and_is_heard() {
    let mut g = group(2);
    g.propose_entry(2, Entry { id: id(2, 1), body: Body::Join(P3) });
    // p2 has decided the join, and the newcomer speaks before p1 knows it.
    while g.log(2).is_empty() {
        let event = g.events().into_iter().find(|e| !matches!(e, Event::Members(_))).unwrap();
        g.happen(event);
    }
    g.happen(Event::Members(P2));
    g.propose(3);
    link(&mut g, 3, 1);
    assert_eq!(g.refused[&Refused::UnknownMember], 1);
    g.happen(Event::Members(P1));
    g.propose(3);
    link(&mut g, 3, 1);
    assert_eq!(g.refused[&Refused::NotMember], 1, "not before the first one");
    g.settle();
    g.check_order();
    g.check_termination();
    assert_eq!(g.of(3).log.iter().flat_map(|b| b.iter()).filter(|e| e.id == id(3, 1)).count(), 1);
}

#[test]
fn issue_3_nothing_is_begun_between_a_barrier_and_the_new_members() {
    let mut e = Hsuc::new(P1, set(&[1]), 5);
    e.propose(0, Entry { id: id(1, 1), body: Body::Join(P2) }).unwrap();
    e.propose(0, entry(1, 2)).unwrap();
    assert_eq!((e.decided_through(), e.stable_through()), (5, 4));
    assert_eq!(e.set_members(0, 7, set(&[1])), Err(Refused::Malformed));
    assert_eq!((e.refusals().of(Refused::Malformed), e.decided_through()), (1, 5));
    e.set_members(0, 6, set(&[1, 2])).unwrap();
    let actions: Vec<_> = std::iter::from_fn(|| e.poll_action()).collect();
    assert!(
        matches!(
            &actions[..],
            [
                Action::Decide { instance: 5, .. },
                Action::Send { to: P2, message: Message::Ask },
                Action::Send { to: P2, message: Message::Propose { instance: 6, .. } },
            ]
        ),
        "{actions:?}"
    );
}

#[test]
fn issue_3_who_leaves_hands_on_the_decision_and_stops() {
    let mut g = group(3);
    g.propose_entry(1, Entry { id: id(1, 1), body: Body::Leave(P1) });
    g.propose(2);
    g.settle();
    assert_eq!((g.halts.clone(), g.log(3)), (vec![(P1, Halted::Left)], vec![vec![(1, 1)], vec![(2, 1)]]));
    assert_eq!((g.engine(3).leader(), g.engine(1).leader()), (Some(P2), None));
    assert_eq!(g.engine(1).propose(0, entry(1, 2)), Err(Refused::NotMember));
    g.check_termination();
}

#[test]
fn issue_3_it_stops_when_the_others_believe_it_crashed() {
    let expelled = |e: &mut Hsuc, from, message| {
        let mut e = e.clone();
        e.handle_message(0, from, message).unwrap();
        assert_eq!(e.halted(), Some(Halted::Expelled));
        assert_eq!(e.propose(0, entry(2, 9)), Err(Refused::Halted));
        assert_eq!(e.handle_message(0, P1, Message::Ask), Err(Refused::Halted));
        assert_eq!(e.handle_crash(0, P1), Err(Refused::Halted));
        assert_eq!((e.decided_through(), e.leader()), (0, None));
    };
    let mut e = Hsuc::new(P2, set(&[1, 2, 3]), 1);
    let batch: Batch = [entry(1, 1)].into();
    let decided = |origin, sequence| Message::Decided(osrb::Message { id: osrb::Id { origin, sequence }, body: batch.clone() });
    expelled(&mut e, P3, Message::Propose { instance: 1, batch: batch.clone() });
    expelled(&mut e, P1, decided(P1, 1));
    expelled(&mut e, P1, decided(P1, 2));
    e.handle_message(0, P1, Message::Propose { instance: 1, batch: [entry(1, 2)].into() }).unwrap();
    expelled(&mut e, P1, decided(P1, 1));
    e.handle_crash(0, P2).unwrap();
    assert_eq!(e.halted(), Some(Halted::Expelled));
}

fn refuses(e: &mut Hsuc, from: MemberId, message: Message, why: Refused) {
    let before = e.clone();
    assert_eq!(e.handle_message(0, from, message), Err(why));
    assert_eq!(e.refusals.of(why), before.refusals.of(why) + 1);
    let count = std::mem::replace(&mut e.refusals, before.refusals);
    assert_eq!(*e, before);
    e.refusals = count;
}

#[test]
fn issue_3_what_no_correct_member_sends_is_refused_and_changes_nothing() {
    let batch: Batch = [entry(1, 1)].into();
    let propose = |instance| Message::Propose { instance, batch: batch.clone() };
    let of = |batch: Batch| Message::Propose { instance: 2, batch };
    let decided = |origin, sequence| Message::Decided(osrb::Message { id: osrb::Id { origin, sequence }, body: batch.clone() });
    let mut e = Hsuc::new(P3, set(&[1, 2, 3, 4]), 1);
    e.handle_message(0, P1, propose(1)).unwrap();
    e.handle_message(0, P1, decided(P1, 1)).unwrap();
    refuses(&mut e, MemberId(9), propose(2), Refused::UnknownMember);
    refuses(&mut e, P3, propose(2), Refused::Malformed);
    refuses(&mut e, P1, propose(1), Refused::OldInstance);
    refuses(&mut e, P1, propose(0), Refused::OldInstance);
    refuses(&mut e, P1, propose(4), Refused::TooFarAhead);
    refuses(&mut e, P1, of([].into()), Refused::Malformed);
    refuses(&mut e, P1, of([sized(1, 1, VALUE_MAX + 1)].into()), Refused::TooLarge);
    refuses(&mut e, P1, of((1..=257).map(|n| entry(1, n)).collect()), Refused::TooLarge);
    e.handle_message(0, P1, propose(2)).unwrap();
    refuses(&mut e, P1, propose(2), Refused::Duplicate);
    e.handle_message(0, P1, propose(3)).unwrap();
    refuses(&mut e, P1, propose(3), Refused::Duplicate);
    refuses(&mut e, P1, Message::Ack { instance: 1 }, Refused::OldInstance);
    refuses(&mut e, P1, Message::Ack { instance: 2 }, Refused::Malformed);
    refuses(&mut e, P1, decided(P1, 1), Refused::OldInstance);
    refuses(&mut e, P1, decided(MemberId(9), 2), Refused::UnknownMember);
    refuses(&mut e, P1, decided(P3, 2), Refused::ImpossibleBallot);
    refuses(&mut e, P4, Message::Ask, Refused::NotLeader);
    refuses(&mut e, P4, Message::Forward { anew: true, entries: [].into() }, Refused::Malformed);
    refuses(&mut e, P4, Message::Forward { anew: true, entries: [entry(4, 0)].into() }, Refused::Malformed);
    refuses(&mut e, P4, Message::Forward { anew: false, entries: [entry(4, 1)].into() }, Refused::NotMember);
    assert_eq!(e.handle_crash(0, MemberId(9)), Err(Refused::UnknownMember));
    e.handle_crash(0, P1).unwrap();
    assert_eq!(e.handle_crash(0, P1), Err(Refused::Duplicate));
    refuses(&mut e, P1, propose(2), Refused::Crashed);
    refuses(&mut e, P1, Message::Ask, Refused::Crashed);
    e.handle_crash(0, P2).unwrap();
    refuses(&mut e, P4, Message::Ack { instance: 3 }, Refused::Malformed);
    e.handle_message(0, P4, Message::Ack { instance: 2 }).unwrap();
    assert_eq!(e.decided_through(), 2);
    assert_eq!(e.propose(0, entry(3, 0)), Err(Refused::Malformed));
    assert_eq!(e.propose(0, sized(3, 1, VALUE_MAX + 1)), Err(Refused::TooLarge));
    let mut e = Hsuc::new(P1, set(&[1, 2, 3]), 1);
    e.propose(0, entry(1, 1)).unwrap();
    e.handle_message(0, P2, Message::Ack { instance: 1 }).unwrap();
    refuses(&mut e, P2, Message::Ack { instance: 1 }, Refused::Duplicate);
}

fn entries() -> impl Strategy<Value = Batch> {
    let one = (1u16..5, 0u64..4, 0u8..12).prop_map(|(proposer, number, kind)| Entry {
        id: id(proposer, number),
        body: match kind {
            0 => Body::Join(MemberId(proposer)),
            1 => Body::Leave(MemberId(proposer)),
            _ => Body::Value([kind].into()),
        },
    });
    prop::collection::vec(one, 0..4).prop_map(Into::into)
}

fn messages() -> impl Strategy<Value = Message> {
    let instance = || prop_oneof![4 => 0u64..4, 1 => Just(u64::MAX)];
    prop_oneof![
        (instance(), entries()).prop_map(|(instance, batch)| Message::Propose { instance, batch }),
        instance().prop_map(|instance| Message::Ack { instance }),
        (0u16..5, instance(), entries()).prop_map(|(origin, sequence, body)| {
            Message::Decided(osrb::Message { id: osrb::Id { origin: MemberId(origin), sequence }, body })
        }),
        (any::<bool>(), entries()).prop_map(|(anew, entries)| Message::Forward { anew, entries }),
        Just(Message::Ask),
    ]
}

proptest! {
    #[test]
    fn issue_3_hostile_messages_leave_it_in_order(
        me in 1u16..4, steps in prop::collection::vec((0u8..8, 0u16..6, messages()), 0..40)
    ) {
        let mut e = Hsuc::new(MemberId(me), set(&[1, 2, 3, 4]), 1);
        let mut decided = 0;
        for (what, who, message) in steps {
            let before = e.clone();
            let result = match what {
                0 => e.handle_crash(0, MemberId(who)),
                1 => e.propose(0, entry(me, u64::from(who))),
                2 => e.set_members(0, e.decided_through() + 1, set(&[1, 2, 3, 4])),
                _ => e.handle_message(0, MemberId(who), message),
            };
            if result.is_err() {
                let count = std::mem::replace(&mut e.refusals, before.refusals);
                prop_assert_eq!(&e, &before);
                e.refusals = count;
            }
            e.invariants();
            while let Some(action) = e.poll_action() {
                if let Action::Decide { instance, batch } = action {
                    decided += 1;
                    prop_assert_eq!(instance, decided);
                    prop_assert_eq!(batch::check(&batch), Ok(()));
                }
            }
        }
    }
}
