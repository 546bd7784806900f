//! Scenarios, named after the section of the paper and the property.

use proptest::prelude::*;

use super::super::harness::{Dice, Event as Happening, Group, World, entry, id, run_seed, set, sized};
use super::*;
use crate::group::{Body, VALUE_MAX};

type Hucs = Group<Message, Huc>;

const P1: MemberId = MemberId(1);
const P2: MemberId = MemberId(2);
const P3: MemberId = MemberId(3);
const LARGE: usize = DIRECT_MAX + 1_000;

/// A group in which everybody has proposed ⊥.
fn group(n: u16) -> Hucs {
    let mut g = Group::new(n, Huc::new);
    g.settle();
    g.reset_depth();
    g
}

fn link(g: &mut Hucs, from: u16, to: u16) {
    let (from, to) = (MemberId(from), MemberId(to));
    assert!(g.links.get(&(from, to)).is_some_and(|link| !link.is_empty()), "nothing from {from} to {to}");
    g.happen(Happening::Link(from, to));
}

fn propose(instance: Instance, items: &[Item]) -> Message {
    Message::Propose { instance, proposal: Proposal { items: items.into(), holds: [].into() } }
}

fn direct(proposer: u16, number: u64) -> Item {
    Item::Direct(entry(proposer, number))
}

fn ahead(source: u16, number: u64) -> Item {
    Item::Ahead(BodyId { source: MemberId(source), id: id(source, number) })
}

fn decision(number: u64, instance: Instance, items: &[Item]) -> Message {
    Message::Decision(fcurb::Message { number, body: Decision { instance, items: items.into() } })
}

fn actions(e: &mut Huc) -> Vec<Action<Message>> {
    std::iter::from_fn(|| e.poll_action()).collect()
}

#[test]
fn fide_a4_failure_free_it_takes_two_message_delays() {
    let mut g = group(5);
    g.propose(3);
    g.settle();
    for member in 1..=5 {
        assert_eq!((g.log(member), g.of(member).decided_depth), (vec![vec![(3, 1)]], 2), "p{member}");
    }
}

#[test]
fn fide_a4_an_entry_of_the_leader_waits_for_its_heartbeat_only() {
    let mut g = group(3);
    let sent = g.sent;
    g.propose(1);
    assert_eq!(g.sent, sent, "no message");
    g.settle();
    assert_eq!((g.log(2), g.of(2).decided_depth), (vec![vec![(1, 1)]], 1));
}

#[test]
fn what_is_proposed_again_is_bounded_however_much_waits() {
    let proposed = |sizes: &[usize]| {
        let mut p2 = Huc::new(P2, set(&[1, 2, 3]), 1);
        for (number, bytes) in (1..).zip(sizes) {
            p2.propose(0, sized(2, number, *bytes)).unwrap();
        }
        let lens = actions(&mut p2).into_iter().filter_map(|action| match action {
            Action::Send { to: P1, message: Message::Propose { proposal, .. } } => {
                Some((proposal.items.len(), proposal.items.iter().map(Item::len).sum::<usize>()))
            }
            _ => None,
        });
        lens.collect::<Vec<_>>()
    };
    let small = proposed(&[400; 20]);
    assert!(small.len() > 3 && small.iter().all(|(_, bytes)| *bytes <= PROPOSAL_MAX), "{small:?}");
    // One that has more by itself is proposed alone, and not again for what comes behind it.
    let large = proposed(&[5_000, 400, 400]);
    assert_eq!(large.iter().map(|(items, _)| *items).collect::<Vec<_>>(), [0, 1]);
    assert!(large[1].1 > PROPOSAL_MAX && large[1].1 <= DIRECT_MAX);
}

#[test]
fn fide_a4_a_large_value_takes_three_message_delays() {
    let mut g = group(3);
    g.propose_entry(1, sized(1, 1, LARGE));
    g.settle();
    assert_eq!((g.log(2), g.of(2).decided_depth), (vec![vec![(1, 1)]], 3));
    g.reset_depth();
    g.propose_entry(3, sized(3, 1, LARGE));
    g.settle();
    assert_eq!((g.log(2).len(), g.of(2).decided_depth, g.engine(2).holding()), (2, 3, 0));
}

#[test]
fn fide_a4_alone_it_decides_when_its_heartbeat_has_left() {
    let mut g = group(1);
    g.propose(1);
    assert_eq!(g.log(1).len(), 0);
    g.settle();
    assert_eq!(g.log(1), [[(1, 1)]]);
}

#[test]
fn fide_a4_bottom_of_everybody_is_not_decided() {
    let mut g = group(3);
    for _ in 0..10 {
        g.tick(P1, None);
    }
    assert_eq!((g.log(1).len(), g.events()), (0, vec![]));
}

#[test]
fn fide_a4_det_takes_an_item_of_each_in_turn_and_begins_with_another_each_time() {
    let mut g = group(3);
    for member in 1..=3 {
        g.propose(member);
        g.propose(member);
    }
    g.settle();
    for member in 1..=3 {
        g.propose(member);
    }
    g.settle();
    let log = g.log(2);
    assert_eq!(log, [vec![(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)], vec![(2, 3), (3, 3), (1, 3)],]);
}

#[test]
fn fide_a4_det_after_a_crash_sees_what_those_alive_sent_to_this_leader() {
    let mut g = group(4);
    g.propose(1);
    g.propose(3);
    g.propose(4);
    link(&mut g, 3, 1);
    link(&mut g, 4, 1);
    g.crash(P1, &mut Dice(0));
    g.happen(Happening::Notice(MemberId(3), P1));
    link(&mut g, 3, 2);
    assert_eq!(g.engine(2).proposals.len(), 1, "kept, though p2 was not told yet");
    g.happen(Happening::Notice(P2, P1));
    assert!(g.engine(2).poll_piggyback(0).is_none(), "p4 has not proposed to p2");
    g.happen(Happening::Notice(MemberId(4), P1));
    g.crash(MemberId(3), &mut Dice(0));
    g.settle();
    assert_eq!(g.log(2), [[(4, 1)]], "nothing of p1 and p3");
    g.check_termination();
}

#[test]
fn fide_a4_integrity_a_new_leader_gets_no_proposal_of_an_instance_that_is_over() {
    let mut g = group(3);
    g.propose(2);
    g.settle();
    g.crash(P1, &mut Dice(0));
    g.propose(3);
    g.settle();
    assert_eq!(g.log(3), [[(2, 1)], [(3, 1)]]);
    g.check_termination();
}

#[test]
fn fide_a4_uniform_agreement_a_heartbeat_that_left_counts_though_its_sender_crashed() {
    for left in [true, false] {
        let mut g = group(3);
        g.propose(1);
        g.propose(2);
        link(&mut g, 2, 1);
        g.tick(P1, Some(left));
        g.settle();
        g.check_termination();
        let first = if left { vec![vec![(1, 1), (2, 1)]] } else { vec![vec![(2, 1)]] };
        assert_eq!((g.log(2), g.log(3)), (first.clone(), first));
    }
}

/// The counter-example: the leader holds the body, another member does not, its proposer is dead.
#[test]
fn fide_a4_an_id_is_decided_only_when_everybody_holds_its_body() {
    let mut g = group(3);
    g.propose_entry(3, sized(3, 1, LARGE));
    link(&mut g, 3, 1);
    link(&mut g, 3, 1);
    g.tick(P1, None);
    assert_eq!(g.events(), [Happening::Link(P3, P2)], "not yet");
    g.links.clear();
    g.crash(P3, &mut Dice(0));
    g.propose(2);
    g.settle();
    assert_eq!((g.log(1), g.log(2)), (vec![vec![(2, 1)]], vec![vec![(2, 1)]]));
    assert_eq!((g.engine(1).holding(), g.engine(2).holding()), (0, 0), "and it is forgotten");
    g.check_termination();
}

/// p2 is told of p3's crash before p1 is, who decides the id meanwhile.
#[test]
fn fide_a4_a_body_of_a_crashed_member_is_kept_while_it_may_be_decided() {
    let mut g = group(3);
    g.propose_entry(3, sized(3, 1, LARGE));
    for _body_and_proposal in 0..2 {
        link(&mut g, 3, 1);
    }
    link(&mut g, 3, 2);
    g.crash(P3, &mut Dice(0));
    g.happen(Happening::Notice(P2, P3));
    link(&mut g, 2, 1);
    g.tick(P1, None);
    g.happen(Happening::Beat(P1, P2));
    assert_eq!((g.log(1), g.log(2)), (vec![vec![(3, 1)]], vec![vec![(3, 1)]]));
}

#[test]
fn fide_a4_what_does_not_fit_rides_on_the_next_one() {
    let mut g = group(3);
    for number in 1..=3 {
        g.propose_entry(2, sized(2, number, 5_000));
        g.propose_entry(3, sized(3, number, LARGE));
    }
    g.settle();
    g.check_termination();
    g.check_order();
    for batch in &g.of(1).log {
        let items: Vec<_> = batch.iter().map(|e| if is_large(e) { ID_LEN } else { batch::encoded_len(e) }).collect();
        assert!(items.iter().sum::<usize>() <= DECISION_MAX);
    }
    assert_eq!(g.of(1).log.len(), 3);
}

#[test]
fn fide_a4_batches_of_large_values_are_bounded_too() {
    let mut g = group(2);
    for number in 1..=3 {
        g.propose_entry(2, sized(2, number, VALUE_MAX));
    }
    assert_eq!(g.engine(2).propose(0, sized(2, 4, VALUE_MAX)), Err(Refused::Busy));
    g.settle();
    g.check_termination();
    assert_eq!(g.log(1), [[(2, 1)], [(2, 2)], [(2, 3)]]);
}

#[test]
fn fide_a4_uniform_consensus_with_a_crash_at_every_point() {
    for first in 1..=3u16 {
        for at in 0..20 {
            for how in 0..6 {
                let mut g = group(3);
                g.propose(1);
                g.propose_entry(2, sized(2, 1, LARGE));
                g.propose(3);
                let mut ticks = 0;
                for step in 0..60 {
                    let due = step >= at && g.alive().len() == 3;
                    let events = g.events();
                    if due && how < 2 {
                        g.tick(MemberId(first), Some(how == 0));
                    } else if due && events.is_empty() {
                        g.crash(MemberId(first), &mut Dice(at));
                    } else if let Some(&event) = events.get(step as usize % events.len().max(1)) {
                        let whom = match event {
                            Happening::Link(_, to) | Happening::Beat(_, to) | Happening::Notice(to, _) => to,
                            Happening::Tick(to) | Happening::Members(to) => to,
                        };
                        if due && whom.0 == first {
                            g.crash_after = Some(how - 2);
                        }
                        g.happen(event);
                    } else {
                        let alive = g.alive();
                        g.tick(alive[ticks % alive.len()], None);
                        ticks += 1;
                    }
                }
                if g.alive().len() == 3 {
                    g.crash(MemberId(first), &mut Dice(at));
                }
                g.settle();
                g.check_termination();
                g.check_order();
            }
        }
    }
}

const SEEDS: u64 = 4_000;

#[test]
fn fide_a4_uniform_consensus_in_thousands_of_schedules() {
    for seed in 0..SEEDS {
        let hosts = 2 + (seed % 4) as u16;
        run_seed(seed, World { hosts, crashes: usize::from(hosts) - 1, changes: 0, entries: 12, bytes: 12_000 }, Huc::new);
    }
}

#[test]
fn fide_a4_uniform_consensus_in_thousands_of_schedules_with_joins_and_leaves() {
    for seed in 0..SEEDS {
        run_seed(seed, World { hosts: 3, crashes: 2, changes: 3, entries: 16, bytes: 12_000 }, Huc::new);
    }
}

#[test]
fn fide_a4_memory_is_bounded_over_a_million_instances() {
    let mut e = Huc::new(P2, set(&[1, 2]), 1);
    actions(&mut e);
    for instance in 1..=1_000_000 {
        e.handle_piggyback(0, P1, decision(instance, instance, &[direct(1, 1)])).unwrap();
        assert_eq!(actions(&mut e).len(), 2, "decided, and ⊥ proposed");
    }
    assert_eq!((e.decided_through(), e.stable_through()), (1_000_000, 999_999));
    assert_eq!((e.waiting(), e.holding(), e.proposals.len(), e.early.len()), (0, 0, 0, 0));
}

#[test]
fn fide_a4_stable_is_what_everybody_proposed_after() {
    let mut g = group(3);
    g.propose(1);
    g.tick(P1, None);
    assert_eq!((g.engine(1).decided_through(), g.engine(1).stable_through()), (1, 0));
    g.settle();
    assert_eq!((g.engine(1).stable_through(), g.engine(2).stable_through()), (1, 0));
}

#[test]
fn fide_a4_a_missing_decision_stops_it() {
    for instance in [2, 3] {
        let mut e = Huc::new(P3, set(&[1, 2, 3]), 1);
        e.handle_piggyback(0, P1, decision(instance, instance, &[direct(1, 1)])).unwrap();
        assert_eq!(e.halted(), Some(Halted::MissingBroadcast));
    }
    // A newcomer does not know the first number, but it knows its instance.
    let mut e = Huc::new(P3, set(&[1, 2, 3]), 7);
    e.handle_piggyback(0, P1, decision(41, 6, &[direct(1, 1)])).unwrap();
    e.handle_piggyback(0, P1, decision(42, 7, &[direct(1, 2)])).unwrap();
    assert_eq!((e.decided_through(), e.halted()), (7, None));
    let mut e = Huc::new(P3, set(&[1, 2, 3]), 7);
    e.handle_piggyback(0, P1, decision(43, 8, &[direct(1, 3)])).unwrap();
    assert_eq!(e.halted(), Some(Halted::MissingBroadcast));
    // A body that is not here.
    let mut e = Huc::new(P3, set(&[1, 2, 3]), 1);
    e.handle_piggyback(0, P1, decision(1, 1, &[ahead(2, 1)])).unwrap();
    assert_eq!((e.halted(), e.decided_through()), (Some(Halted::MissingBroadcast), 0));
    assert!(matches!(actions(&mut e).last(), Some(Action::Halt(Halted::MissingBroadcast))));
    assert_eq!(e.propose(0, entry(3, 1)), Err(Refused::Halted));
    assert_eq!(e.handle_piggyback(0, P1, decision(2, 1, &[direct(1, 1)])), Err(Refused::Halted));
    assert_eq!((e.handle_crash(0, P1), e.poll_piggyback(0), e.leader()), (Err(Refused::Halted), None, None));
}

/// The others have a decision before its leader relies on its heartbeat ([`crate::services::groups`], *Heartbeats*): what they propose next shows that
/// they do, and not that the leader has missed one.
#[test]
fn a_leader_that_is_held_behind_its_heartbeat_is_not_behind_the_others() {
    let mut e = Huc::new(P1, set(&[1, 2, 3]), 1);
    for from in [P2, P3] {
        e.handle_message(0, from, propose(1, &[direct(from.0, 1)])).unwrap();
    }
    assert!(e.poll_piggyback(0).is_some());
    for from in [P2, P3] {
        e.handle_message(0, from, propose(2, &[direct(from.0, 2)])).unwrap();
    }
    assert_eq!((e.decided_through(), e.halted()), (0, None));
    e.handle_piggyback_sent(0);
    assert_eq!((e.decided_through(), e.halted()), (1, None));
    assert!(e.poll_piggyback(0).is_some(), "they have proposed");
    e.handle_piggyback_sent(0);
    // One that has nothing on its heartbeat is.
    e.handle_message(0, P2, propose(4, &[direct(2, 4)])).unwrap();
    assert_eq!((e.decided_through(), e.halted()), (2, Some(Halted::MissingBroadcast)));
}

#[test]
fn fide_a4_fail_consistency_a_crash_waits_for_the_decision_that_left_before() {
    let mut e = Huc::new(P2, set(&[1, 2]), 1);
    e.handle_crash_after(P1, Some(1)).unwrap();
    assert_eq!(e.leader(), Some(P1), "held back");
    e.handle_piggyback(0, P1, decision(1, 1, &[direct(1, 1)])).unwrap();
    assert_eq!((e.decided_through(), e.leader()), (1, Some(P2)));
    assert_eq!(e.handle_crash(0, P1), Err(Refused::Duplicate));
    let mut e = Huc::new(P2, set(&[1, 2]), 1);
    e.handle_network_fault(0);
    e.handle_crash_after(P1, Some(1)).unwrap();
    assert_eq!(e.halted(), None);
    e.handle_network_fault(0);
    assert_eq!(e.halted(), Some(Halted::MissingBroadcast));
}

#[test]
fn issue_3_it_stops_when_the_others_believe_it_crashed() {
    let mut e = Huc::new(P2, set(&[1, 2, 3]), 1);
    e.handle_piggyback(0, P3, decision(1, 1, &[direct(3, 1)])).unwrap();
    assert_eq!(e.halted(), Some(Halted::Expelled));
    let mut e = Huc::new(P2, set(&[1, 2, 3]), 1);
    e.handle_crash(0, P2).unwrap();
    assert_eq!(e.halted(), Some(Halted::Expelled));
}

#[test]
fn issue_3_back_pressure_what_waits_is_bounded() {
    let mut e = Huc::new(P2, set(&[1, 2]), 1);
    for number in 1..=batch::WAITING_ENTRIES as u64 {
        e.propose(0, entry(2, number)).unwrap();
        e.propose(0, entry(2, number)).unwrap();
    }
    assert_eq!(e.propose(0, entry(2, 999)), Err(Refused::Busy));
    assert_eq!(e.waiting(), batch::WAITING_ENTRIES);
    let sends = actions(&mut e).len();
    assert!(sends < 60, "a proposal that is full is not sent again: {sends}");
    let mut e = Huc::new(P1, set(&[1, 2]), 1);
    for number in 1..=7 {
        e.handle_message(0, P2, Message::Body(sized(2, number, VALUE_MAX))).unwrap();
    }
    assert_eq!(e.handle_message(0, P2, Message::Body(sized(2, 8, VALUE_MAX))), Err(Refused::Busy));
    assert_eq!(e.holding(), 7);
}

#[test]
fn issue_3_a_newcomer_begins_where_it_joined_and_is_heard() {
    let mut g = group(2);
    g.propose_entry(2, sized(2, 1, LARGE));
    g.propose_entry(2, Entry { id: id(2, 2), body: Body::Join(P3) });
    g.propose_entry(2, sized(2, 3, LARGE));
    while g.log(2).len() < 2 {
        match g.events().into_iter().find(|e| !matches!(e, Happening::Members(_))) {
            Some(event) => g.happen(event),
            None => g.tick(P1, None),
        }
    }
    g.happen(Happening::Members(P2));
    g.propose_entry(3, sized(3, 1, LARGE));
    link(&mut g, 3, 2);
    assert_eq!(g.refused[&Refused::NotMember], 1, "it will come again");
    g.propose(3);
    for _proposal_body_proposal in 0..3 {
        link(&mut g, 3, 1);
    }
    assert!(g.refused[&Refused::UnknownMember] >= 2, "p1 does not know it yet");
    g.settle();
    g.check_termination();
    g.check_order();
    assert_eq!((g.of(3).log.len() >= 3, g.engine(1).holding(), g.engine(3).holding()), (true, 0, 0));
}

#[test]
fn issue_3_who_leaves_stops() {
    let mut g = group(3);
    g.propose_entry(1, Entry { id: id(1, 1), body: Body::Leave(P1) });
    g.propose(2);
    g.settle();
    assert_eq!((g.halts.clone(), g.log(3)), (vec![(P1, Halted::Left)], vec![vec![(1, 1)], vec![(2, 1)]]));
    assert_eq!(g.engine(1).propose(0, entry(1, 2)), Err(Refused::NotMember));
    g.check_termination();
    // The others go on before it is told.
    for (members, why) in [(set(&[1, 3]), Halted::Left), (set(&[1, 2, 3]), Halted::Expelled)] {
        let mut e = Huc::new(P2, set(&[1, 2, 3]), 1);
        let leave = Item::Direct(Entry { id: id(1, 1), body: Body::Leave(P2) });
        e.handle_piggyback(0, P1, decision(1, 1, &[leave])).unwrap();
        e.handle_piggyback(0, P1, decision(2, 2, &[direct(1, 2)])).unwrap();
        assert_eq!((e.decided_through(), e.halted()), (1, None));
        e.set_members(0, 2, members).unwrap();
        assert_eq!(e.halted(), Some(why));
    }
    // And the decisions of two leaders overtake each other.
    for (items, why) in
        [([Item::Direct(Entry { id: id(1, 1), body: Body::Leave(P3) })], None), ([direct(1, 1)], Some(Halted::MissingBroadcast))]
    {
        let mut e = Huc::new(P3, set(&[1, 2, 3]), 1);
        e.handle_piggyback(0, P2, decision(1, 2, &[direct(2, 1)])).unwrap();
        assert_eq!(e.halted(), None);
        let mut other = e.clone();
        e.handle_piggyback(0, P1, decision(1, 1, &items)).unwrap();
        assert_eq!((e.decided_through(), e.halted()), (1, why));
        let _ = e.set_members(0, 2, set(&[1, 2]));
        assert_eq!(e.halted(), why.or(Some(Halted::Left)));
        other.handle_crash(0, P1).unwrap();
        assert_eq!(other.halted(), Some(Halted::MissingBroadcast), "it does not come any more");
    }
    let mut e = Huc::new(P1, set(&[1]), 1);
    assert_eq!(e.set_members(0, 1, set(&[1, 2])), Err(Refused::Malformed));
    assert_eq!((e.refusals().of(Refused::Malformed), &e.members), (1, &set(&[1])));
}

fn refuses(e: &mut Huc, why: Refused, call: impl FnOnce(&mut Huc) -> Result<(), Refused>) {
    let before = e.clone();
    assert_eq!(call(e), Err(why), "{e:?}");
    assert_eq!(e.refusals.of(why), before.refusals.of(why) + 1);
    let count = std::mem::replace(&mut e.refusals, before.refusals);
    assert_eq!(*e, before);
    e.refusals = count;
}

#[test]
fn issue_3_what_no_correct_member_sends_is_refused_and_changes_nothing() {
    let mut e = Huc::new(P2, set(&[1, 2, 3]), 1);
    let e = &mut e;
    e.handle_crash(0, P1).unwrap();
    e.propose(0, entry(2, 1)).unwrap();
    e.handle_message(0, P3, propose(1, &[])).unwrap();
    e.poll_piggyback(0).unwrap();
    e.handle_piggyback_sent(0);
    assert_eq!(e.decided_through(), 1);
    let message = |from: u16, message| move |e: &mut Huc| e.handle_message(0, MemberId(from), message);
    let beat = |from: u16, message| move |e: &mut Huc| e.handle_piggyback(0, MemberId(from), message);
    refuses(e, Refused::UnknownMember, message(9, propose(2, &[])));
    refuses(e, Refused::Crashed, message(1, propose(2, &[])));
    refuses(e, Refused::Malformed, message(2, propose(2, &[])));
    refuses(e, Refused::OldInstance, message(3, propose(1, &[])));
    refuses(e, Refused::OldInstance, message(3, propose(0, &[])));
    refuses(e, Refused::TooFarAhead, message(3, propose(4, &[])));
    refuses(e, Refused::TooFarAhead, message(3, propose(u64::MAX, &[])));
    refuses(e, Refused::Malformed, message(3, propose(2, &[direct(3, 0)])));
    refuses(e, Refused::Malformed, message(3, propose(2, &[ahead(3, 0)])));
    refuses(e, Refused::Malformed, message(3, propose(2, &[ahead(2, 1)])));
    refuses(e, Refused::Malformed, message(3, propose(2, &[direct(3, 1), direct(3, 1)])));
    let join = Item::Direct(Entry { id: id(3, 9), body: Body::Join(P3) });
    refuses(e, Refused::Malformed, message(3, propose(2, &[direct(3, 1), join])));
    refuses(e, Refused::TooLarge, message(3, propose(2, &[Item::Direct(sized(3, 1, LARGE))])));
    let holds = |n: u64| (1..=n).map(|n| BodyId { source: P1, id: id(1, n) });
    let holding = |holds| Message::Propose { instance: 2, proposal: Proposal { items: [].into(), holds } };
    refuses(e, Refused::TooLarge, message(3, holding(holds(40_000).collect())));
    refuses(e, Refused::Malformed, message(3, holding(holds(2).rev().collect())));
    refuses(e, Refused::Malformed, message(3, Message::Body(entry(3, 1))));
    refuses(e, Refused::TooLarge, message(3, Message::Body(sized(3, 1, VALUE_MAX + 1))));
    e.handle_message(0, P3, Message::Body(sized(3, 1, LARGE))).unwrap();
    refuses(e, Refused::Duplicate, message(3, Message::Body(sized(3, 1, LARGE))));
    refuses(e, Refused::Malformed, message(3, decision(1, 2, &[direct(1, 1)])));
    refuses(e, Refused::Malformed, message(3, Message::Answer));
    refuses(e, Refused::Malformed, beat(3, Message::Ask));
    refuses(e, Refused::Malformed, beat(3, decision(1, 2, &[])));
    refuses(e, Refused::Malformed, beat(3, decision(1, 0, &[direct(1, 1)])));
    refuses(e, Refused::Malformed, beat(2, decision(1, 2, &[direct(1, 1)])));
    refuses(e, Refused::UnknownMember, beat(9, decision(1, 2, &[direct(1, 1)])));
    refuses(e, Refused::ImpossibleBallot, beat(3, decision(0, 2, &[direct(1, 1)])));
    refuses(e, Refused::TooLarge, beat(3, decision(1, 2, &[Item::Direct(sized(3, 1, LARGE))])));
    refuses(e, Refused::TooLarge, |e| e.propose(0, sized(2, 2, VALUE_MAX + 1)));
    refuses(e, Refused::Malformed, |e| e.propose(0, entry(2, 0)));
    assert_eq!(e.handle_crash(0, MemberId(9)), Err(Refused::UnknownMember));
    assert_eq!(e.handle_crash(0, P1), Err(Refused::Duplicate));
    // Who is below does not propose to it.
    let e = &mut Huc::new(P2, set(&[1, 2]), 1);
    refuses(e, Refused::Malformed, message(1, propose(1, &[])));
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    let one = (1u16..5, 0u64..4, 0u8..12).prop_map(|(proposer, number, kind)| {
        let id = id(proposer, number);
        match kind {
            0 => Item::Direct(Entry { id, body: Body::Join(MemberId(proposer)) }),
            1 | 2 => Item::Ahead(BodyId { source: id.proposer, id }),
            3 => Item::Direct(sized(proposer, number, LARGE)),
            _ => Item::Direct(entry(proposer, number)),
        }
    });
    prop::collection::vec(one, 0..4)
}

fn messages() -> impl Strategy<Value = Message> {
    let instance = || prop_oneof![6 => 0u64..5, 1 => Just(u64::MAX)];
    prop_oneof![
        4 => (instance(), items(), items()).prop_map(|(instance, items, holds)| {
            let holds = holds.iter().map(|item| BodyId { source: item.id().proposer, id: item.id() }).collect();
            Message::Propose { instance, proposal: Proposal { items: items.into(), holds } }
        }),
        4 => (instance(), instance(), items()).prop_map(|(number, instance, items)| decision(number, instance, &items)),
        2 => (1u16..5, 0u64..4, prop_oneof![Just(1), Just(LARGE)]).prop_map(|(p, n, bytes)| Message::Body(sized(p, n, bytes))),
        1 => Just(Message::Ask),
        1 => Just(Message::Answer),
    ]
}

proptest! {
    #[test]
    fn issue_3_hostile_messages_leave_it_in_order(
        me in 1u16..4, steps in prop::collection::vec((0u8..14, 0u16..6, messages()), 0..40)
    ) {
        let mut e = Huc::new(MemberId(me), set(&[1, 2, 3, 4]), 1);
        let mut decided = 0;
        for (what, who, message) in steps {
            let before = e.clone();
            let result = match what {
                0 => e.handle_crash(0, MemberId(who)),
                1 => e.propose(0, sized(me, u64::from(who), if who == 3 { LARGE } else { 1 })),
                2 => e.set_members(0, e.decided_through() + 1, set(&[1, 2, 3, 4])),
                3 => { e.poll_piggyback(0); Ok(()) }
                4 => { e.handle_piggyback_sent(0); Ok(()) }
                5 => e.handle_crash_after(MemberId(who), Some(u64::from(who))),
                6 => { e.handle_network_fault(0); Ok(()) }
                7..=9 => e.handle_piggyback(0, MemberId(who), message),
                _ => e.handle_message(0, MemberId(who), message),
            };
            if result.is_err() {
                let count = std::mem::replace(&mut e.refusals, before.refusals);
                prop_assert_eq!(e.told == before.told && e.proposals == before.proposals && e.early == before.early, true);
                prop_assert_eq!((&e.own, &e.held, &e.correct, e.decided), (&before.own, &before.held, &before.correct, before.decided));
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
