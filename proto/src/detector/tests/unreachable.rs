//! A host that is silent here, and what others say of it.

use super::harness::*;
use crate::detector::*;
use fide_wire::verdict::Cause;

/// Nothing of this host comes on any path, and no answer of its kernel.
fn part(b: &mut Bench, node: u32) {
    (0..PATHS).for_each(|path| b.cut(node, path));
}

fn heal(b: &mut Bench, node: u32) {
    (0..PATHS).for_each(|path| b.heal(node, path));
}

#[test]
fn a_host_that_another_one_hears_is_unreachable_and_never_dead() {
    let mut b = Bench::watching(&[A, B, C]);
    b.heard_elsewhere = vec![A];
    part(&mut b, A);
    b.run(5_000 * MS);
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::Unreachable, A)]);
    assert_eq!((b.d.state(A), b.d.heard_by(A)), (Some(State::Late), Some("host-20")));
    heal(&mut b, A);
    b.run(100 * MS);
    assert_eq!(b.take(), [(Cause::ContractKept, A)]);
    assert_eq!((b.d.state(A), b.d.heard_by(A)), (Some(State::Alive), None));
}

#[test]
fn an_unreachable_host_that_dies_is_dead_a_while_later() {
    let mut b = Bench::watching(&[A, B, C]);
    b.heard_elsewhere = vec![A];
    part(&mut b, A);
    b.run(1_000 * MS);
    b.take();
    let (died_ns, _) = (b.now, b.crash(A));
    while b.verdicts.is_empty() && b.now < died_ns + 1_000 * MS {
        b.run(MS);
    }
    assert_eq!(b.take(), [(Cause::SilentHost, A)]);
    let took_ns = b.now - died_ns;
    assert!(took_ns <= b.d.config().agent_timeout_ns / 2, "{took_ns}");
}

#[test]
fn the_last_heartbeat_of_a_dead_host_may_have_reached_one_observer_alone() {
    let mut b = Bench::watching(&[A, B, C]);
    let promise = FencePromise { timeout_ns: 2 * MS, mode: fide_wire::verdict::FenceMode::Sent, host: true };
    b.d.fence(A, 1, Some(promise)).unwrap();
    b.crash(A);
    // It sent two more, which only others received.
    *b.numbers.get_mut(&A).unwrap() += 2;
    b.heard_elsewhere = vec![A];
    b.run(30 * MS);
    // It was heard by others at first, and is as dead, and as fenced, as any.
    let evidence = &b.verdicts.last().unwrap().evidence;
    assert!(evidence.fenced && evidence.heard_by.is_empty(), "{evidence:?}");
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::SilentHost, A)]);
}

#[test]
fn what_is_passed_on_counts_as_what_is_heard() {
    let mut b = Bench::watching(&[A, B, C]);
    part(&mut b, A);
    b.say_nothing = vec![B, C];
    for _ in 0..3_000 {
        b.run(MS);
        let (own, passed_on) = ((1, 5), (1, b.numbers[&A]));
        b.d.stated((B, b.d.company(A)), A, own, How::Heard, b.now);
        b.d.stated((B, b.d.company(A)), A, passed_on, How::Relayed, b.now);
    }
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::Unreachable, A)]);
}

#[test]
fn who_does_not_answer_is_waited_for_over_two_questions() {
    let mut b = Bench::watching(&[A, B, C]);
    b.say_nothing = vec![B];
    b.crash(A);
    b.run(30 * MS);
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::SilentHost, A)]);
}

#[test]
fn the_reports_of_a_host_that_does_not_hear_us_are_waited_for() {
    let mut b = Bench::watching(&[A, B, C]);
    b.say_nothing = vec![B];
    (0..PATHS).for_each(|path| b.d.hears_us(B, path, false));
    part(&mut b, A);
    b.run(900 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A)]);
    // Once a second.
    for _ in 0..10 {
        b.d.stated((B, b.d.company(A)), A, (1, b.numbers[&A]), How::Heard, b.now);
        b.run(1_000 * MS);
    }
    b.d.stated((B, b.d.company(A)), A, (1, b.numbers[&A]), How::Heard, b.now);
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::Unreachable, A)]);
    // And what it says of a dead host is waited for as well.
    b.crash(A);
    b.run(1_000 * MS);
    assert_eq!(b.take(), []);
    b.d.stated((B, b.d.company(A)), A, (1, b.numbers[&A]), How::Heard, b.now);
    b.run(500 * MS);
    assert_eq!(b.take(), [(Cause::SilentHost, A)]);
}

#[test]
fn an_agent_that_stands_still_is_lost_though_its_kernel_answers_all() {
    let mut b = Bench::watching(&[A, B, C]);
    b.agent(A, ProbeResult::KernelAnswered);
    for _ in 0..150 {
        b.run(10 * MS);
        [B, C].iter().for_each(|by| b.d.stated((*by, b.d.company(A)), A, (1, 5), How::Answered, b.now));
    }
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::AgentLost, A)]);
    // The kernel of a host whose agent is lost answers another one, and not us.
    (0..PATHS).for_each(|path| b.cut(A, path));
    b.say_nothing = vec![B, C];
    for _ in 0..1_500 {
        b.run(MS);
        b.d.stated((B, b.d.company(A)), A, (1, 5), How::Answered, b.now);
    }
    assert_eq!(b.take(), [(Cause::Unreachable, A)]);
    b.run(1_000 * MS);
    assert_eq!(b.take(), [(Cause::SilentHost, A)]);
}

#[test]
fn a_stuck_agent_whose_heartbeats_others_receive_is_not_lost() {
    let mut b = Bench::watching(&[A, B, C]);
    b.heard_elsewhere = vec![A];
    // Its kernel answers, its heartbeats do not come: multicast is not delivered here.
    (0..PATHS).for_each(|path| b.mute(A, path));
    b.run(3_000 * MS);
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::Unreachable, A)]);
    b.heard_elsewhere.clear();
    b.sending.retain(|(n, ..)| *n != A);
    b.run(1_500 * MS);
    assert_eq!(b.take(), [(Cause::AgentLost, A)]);
}

#[test]
fn a_host_is_not_dead_because_the_only_other_one_that_hears_it_stands_still_for_a_moment() {
    for stands_still_ms in [5, 30, 100, 150] {
        let mut b = Bench::watching(&[A, C]);
        b.heard_elsewhere = vec![A];
        part(&mut b, A);
        b.run(50 * MS);
        assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::Unreachable, A)]);
        b.agent(C, ProbeResult::KernelAnswered);
        b.run(stands_still_ms * MS);
        b.sending.push((C, 1, [true; PATHS]));
        b.run(100 * MS);
        assert_eq!(b.take(), [(Cause::ContractBroken, C), (Cause::ContractKept, C)], "{stands_still_ms} ms");
        assert_eq!(b.d.state(A), Some(State::Late));
    }
}

#[test]
fn two_hosts_that_die_at_once_are_not_waited_for_by_each_others_word() {
    let mut b = Bench::watching(&[A, C, B]);
    b.crash(A);
    b.crash(C);
    b.run(30 * MS);
    let mut all = b.take();
    all.sort_unstable_by_key(|(cause, node)| (*cause as u8, *node));
    assert_eq!(all, [(Cause::SilentHost, A), (Cause::SilentHost, C), (Cause::ContractBroken, A), (Cause::ContractBroken, C)]);
}
