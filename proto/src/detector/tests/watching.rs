//! The observer's own troubles: pauses and isolation.

use super::super::*;
use super::harness::*;
use fide_wire::verdict::{Confirmers, FenceMode, FencePromise};

#[test]
fn keepalived_2066_an_observer_that_was_not_scheduled_says_so_and_judges_nobody() {
    for kernel_runs in [true, false] {
        let mut b = Bench::watching(&[A, B]);
        b.sleep(50 * MS, kernel_runs);
        b.run(20 * MS);
        assert_eq!(b.causes(), [(Cause::ObserverPaused, ME)], "kernel_runs {kernel_runs}");
        assert!((50_000..50_200).contains(&b.verdicts[0].code), "in µs: {}", b.verdicts[0].code);
    }
}

/// Sleeps through a crash of A, and says how long after waking up it was said.
fn crash_in_a_pause(b: &mut Bench, pause: impl Fn(&mut Bench)) -> (u64, u64) {
    b.run(150 * MS); // for two marks
    b.crash(A);
    pause(b);
    let woke = b.now;
    b.run(20 * MS);
    assert_eq!(b.causes(), [(Cause::ObserverPaused, ME), (Cause::ContractBroken, A), (Cause::SilentHost, A)]);
    (b.verdicts[1].at_ns - woke, b.verdicts[2].at_ns - woke)
}

#[test]
fn a_crash_during_the_pause_is_found_at_once_when_nothing_was_missed() {
    for offset in 0..10 {
        let mut b = Bench::watching(&[A, B]);
        b.run(offset * 100 * US);
        let (late, silent) = crash_in_a_pause(&mut b, |b| b.sleep(50 * MS, true));
        // One heartbeat of the other behind the barrier, and the questions that run meanwhile: 1 ms each.
        assert!(late < TO && silent < TO + 300 * US, "{late} {silent}");
        assert!(b.verdicts[1].evidence.drained);
    }
}

#[test]
fn a_crash_during_the_pause_is_found_a_timeout_after_it_when_something_may_have_been_missed() {
    let heard = |b: &mut Bench| b.sleep(50 * MS, true);
    type Sleep = fn(&mut Bench);
    // The machine below stood still; one heartbeat of the other host was lost, or all; the other host comes by another queue; there is no other host, or no barrier.
    let cases: [(&[u32], bool, Sleep); 6] = [
        (&[A, B], true, |b| b.sleep(50 * MS, false)),
        (&[A, B], true, |b| {
            b.sleep(25 * MS, true);
            b.lose(1);
            b.sleep(25 * MS, true);
        }),
        (&[A, B], true, |b| {
            b.sleep(50 * MS, false);
            b.lose(50);
        }),
        (&[A, B], true, |b| {
            b.own_queue.push(B);
            b.sleep(50 * MS, true);
        }),
        (&[A], true, |b| b.sleep(50 * MS, true)),
        (&[A, B], false, |b| b.sleep(50 * MS, true)),
    ];
    for (i, (hosts, barriers, sleep)) in cases.into_iter().enumerate() {
        let mut b = Bench::watching(hosts);
        b.barriers = barriers;
        if !barriers {
            b.d.offer_barriers(false);
        }
        let (late, silent) = crash_in_a_pause(&mut b, sleep);
        assert!(late > TO && silent > TO, "case {i}: {late} {silent}");
    }
    assert!(crash_in_a_pause(&mut Bench::watching(&[A, B]), heard).0 < TO, "without these it is found earlier");
    // The other host stood still for a while, and maybe all did: the silence is longer than that.
    let (late, _) = crash_in_a_pause(&mut Bench::watching(&[A, B]), |b| {
        b.sleep(40 * MS, true);
        b.sleep(10 * MS, false);
    });
    assert!(late < TO, "{late}");
    // Or it is not: the host died just before the others stood still.
    let mut b = Bench::watching(&[A, B]);
    b.run(150 * MS);
    b.until_heartbeat(A);
    b.crash(A);
    b.sleep(10 * MS, false);
    let woke = b.now;
    b.run(20 * MS);
    assert_eq!(b.causes(), [(Cause::ObserverPaused, ME), (Cause::ContractBroken, A), (Cause::SilentHost, A)]);
    assert!(b.verdicts[1].at_ns > woke + TO - 200 * US, "{}", b.verdicts[1].at_ns - woke);
}

#[test]
fn what_waits_in_the_kernel_after_a_pause_is_waited_for() {
    for offset in 0..10 {
        let mut b = Bench::watching(&[A, B, C]);
        b.run(offset * 100 * US);
        // The kernel's own work waits longer than we do: nothing is stamped before, nor is any barrier.
        b.held = [b.now + 50 * MS + offset * 150 * US; PATHS];
        b.sleep(50 * MS, true);
        b.run(20 * MS);
        assert_eq!(b.take(), [(Cause::ObserverPaused, ME)], "offset {offset}");
    }
}

#[test]
fn a_pause_of_everybody_accuses_nobody() {
    for offset in 0..10 {
        let mut b = Bench::watching(&[A, B, C]);
        b.run(offset * 100 * US);
        b.sleep(50 * MS, false);
        // We are back first, the others one after the other.
        let all = std::mem::take(&mut b.sending);
        for host in all {
            b.run(300 * US);
            b.sending.push(host);
        }
        b.run(20 * MS);
        assert_eq!(b.take(), [(Cause::ObserverPaused, ME)], "offset {offset}");
    }
}

#[test]
fn a_pause_in_the_middle_of_questions_starts_them_over() {
    let mut b = Bench::watching(&[A, B]);
    b.until_heartbeat(A);
    b.crash(A);
    b.run(TO + 700 * US);
    assert_eq!(b.take(), [(Cause::ContractBroken, A)]);
    b.sleep(50 * MS, false);
    // It was reachable all the time, the answers lie unread behind us; now it speaks.
    b.sending.push((A, 1, [true; PATHS]));
    b.run(10 * MS);
    assert_eq!(b.take(), [(Cause::ObserverPaused, ME), (Cause::ContractKept, A)]);
}

#[test]
fn a_starved_observer_says_it_once_and_still_finds_the_dead_when_it_can() {
    let mut b = Bench::watching(&[A, B]);
    for _ in 0..50 {
        b.sleep(4 * MS, true);
        b.run(500 * US);
    }
    assert_eq!(b.take(), [(Cause::ObserverPaused, ME)]);
    assert_eq!(b.d.stats().pauses, 50);
    b.crash(A);
    b.run(10 * MS);
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::SilentHost, A)]);
}

#[test]
fn a_hiccup_shorter_than_a_pause_never_makes_a_silent_host() {
    // Shorter than the pause limit (3 periods), longer than all three questions together.
    for offset in 0..40 {
        let mut b = Bench::watching(&[A, B]);
        b.run(offset * 100 * US);
        let kept = (b.sending.clone(), b.answering.clone());
        b.sleep(2_900 * US, false);
        b.turn(); // sees the hole before the kernel delivers what waits
        b.sleep(2_900 * US, false);
        b.turn();
        (b.sending, b.answering) = kept;
        b.run(20 * MS);
        let bad = b.take().into_iter().filter(|(c, _)| matches!(c, Cause::SilentHost | Cause::AgentLost)).count();
        assert_eq!(bad, 0, "offset {offset}");
    }
}

#[test]
fn questions_asked_between_naps_do_not_count() {
    let mut b = Bench::watching(&[A, B]);
    b.crash(A); // as far as we can hear: what it says waits in a kernel that naps with us
    b.until_heartbeat(B);
    b.run(2 * MS);
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::SilentHost, A)], "without naps");

    // With a witness and without.
    for hosts in [&[A, B][..], &[A]] {
        let mut b = Bench::watching(hosts);
        b.crash(A);
        for _ in 0..20 {
            b.sleep(2_500 * US, true);
            b.turn();
        }
        assert_eq!(b.take(), [(Cause::ContractBroken, A)]);
        b.sending.push((A, 1, [true; PATHS]));
        b.run(20 * MS);
        assert_eq!(b.take(), [(Cause::ContractKept, A)]);
    }
}

#[test]
fn an_observer_that_is_always_a_little_late_finds_the_dead_nevertheless() {
    let mut b = Bench::watching(&[A, B]);
    b.crash(A);
    while b.now < 1_000 * MS + 1_200 * MS {
        b.sleep(2_500 * US, true);
        b.turn();
    }
    assert!(b.causes().contains(&(Cause::SilentHost, A)), "{:?}", b.causes());
}

#[test]
fn consul_916_an_observer_that_hears_nobody_suspects_itself() {
    let mut b = Bench::watching(&[A, B, C]);
    let before = (b.sending.clone(), b.answering.clone());
    b.sending.clear();
    b.answering.clear();
    b.run(3_000 * MS);
    let mut causes = b.take();
    assert_eq!(causes.pop(), Some((Cause::Isolated, ME)));
    assert!(causes.iter().all(|(c, _)| *c == Cause::ContractBroken) && causes.len() == 3, "{causes:?}");
    assert!(b.d.isolated_since_ns().is_some());
    (b.sending, b.answering) = before;
    b.run(20 * MS);
    let causes = b.take();
    assert_eq!(causes[0], (Cause::Rejoined, ME));
    assert!(causes[1..].iter().all(|(c, _)| *c == Cause::ContractKept) && causes.len() == 4, "{causes:?}");
}

#[test]
fn consul_916_a_host_that_died_while_we_were_isolated_is_found_after_a_full_timeout() {
    let mut b = Bench::watching(&[A, B, C]);
    let before = (b.sending.clone(), b.answering.clone());
    b.sending.clear();
    b.answering.clear();
    b.run(100 * MS);
    (b.sending, b.answering) = before;
    b.crash(C);
    b.take();
    b.run(20 * MS);
    let rejoined = b.verdicts.iter().find(|v| v.cause == Cause::Rejoined).unwrap().at_ns;
    let silent = b.verdicts.iter().find(|v| v.cause == Cause::SilentHost).unwrap();
    assert!(silent.node == C && silent.at_ns > rejoined + TO);
    assert_eq!(b.verdicts.iter().filter(|v| v.cause == Cause::SilentHost).count(), 1);
}

#[test]
fn consul_916_one_answering_kernel_is_witness_enough() {
    let mut b = Bench::watching(&[A, B, C]);
    b.agent(C, ProbeResult::AgentAbsent);
    b.run(50 * MS);
    b.take();
    b.crash(A);
    b.crash(B); // two at once, only C's kernel is left
    b.run(10 * MS);
    let causes = b.take();
    for n in [A, B] {
        assert!(causes.contains(&(Cause::SilentHost, n)), "{causes:?}");
    }
    assert_eq!(causes.len(), 4, "{causes:?}");
}

#[test]
fn consul_916_the_price_both_of_two_dying_at_once_is_isolation() {
    let mut b = Bench::watching(&[A, B]);
    b.crash(A);
    b.crash(B);
    b.run(3_000 * MS);
    let causes = b.take();
    assert_eq!(causes.last(), Some(&(Cause::Isolated, ME)));
    assert!(!causes.iter().any(|(c, _)| *c == Cause::SilentHost));
    // A newcomer is heard: now the two are judged.
    b.restart(A, 2);
    b.run(20 * MS);
    let causes = b.take();
    assert!(causes.contains(&(Cause::Rejoined, ME)) && causes.contains(&(Cause::SilentHost, B)), "{causes:?}");
}

#[test]
fn consul_916_what_was_sent_before_our_cables_were_cut_is_no_witness() {
    let mut b = Bench::watching(&[A, B]);
    b.until_heartbeat(A);
    // Cut. A's last heartbeat was stamped at once; some of B's wait in our busy kernel and are stamped when it gets to them.
    b.sending.retain(|(n, ..)| *n != A);
    b.answering.clear();
    b.run(TO + 2 * MS);
    b.sending.clear();
    b.run(100 * MS);
    let causes = b.take();
    assert_eq!(causes.last(), Some(&(Cause::Isolated, ME)), "{causes:?}");
    assert!(!causes.iter().any(|(c, _)| *c == Cause::SilentHost), "{causes:?}");
}

#[test]
fn consul_916_who_answers_no_questions_is_a_witness_when_it_is_heard_for_longer() {
    let mut b = Bench::watching(&[A, B]);
    b.crash(A);
    b.answering.clear();
    b.run(15 * MS);
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::SilentHost, A)]);
}

#[test]
fn consul_916_a_witness_on_another_path_than_the_silent_host_used_is_none() {
    let mut b = Bench::watching(&[A, B]);
    b.cut(A, 0); // its own cable
    b.run(1_010 * MS);
    assert_eq!(b.take(), [(Cause::PathDown, A)]);
    b.cut(A, 1); // and now ours, of the other path
    b.cut(B, 1);
    b.answering.clear();
    b.run(100 * MS);
    let probes = b.others.iter().filter(|a| matches!(a, Action::Probe { node: A, .. })).count();
    assert!((60..80).contains(&probes), "asked at leisure in the end: {probes}");
    assert_eq!(b.take(), [(Cause::ContractBroken, A)]);
    b.run(1_000 * MS);
    assert_eq!(b.take(), [(Cause::PathDown, B)], "nobody is heard on it: told when it has lasted");
}

#[test]
fn consul_916_the_last_of_those_who_fall_silent_together_is_not_judged_by_itself() {
    for (after, expected) in [(MS, (Cause::Isolated, ME)), (20 * MS, (Cause::SilentHost, B))] {
        let mut b = Bench::watching(&[A, B]);
        b.crash(A);
        while b.d.state(A) != Some(State::Silent) {
            b.run(100 * US);
        }
        b.run(after);
        b.crash(B);
        b.run(100 * MS);
        assert_eq!(b.take().last(), Some(&expected), "{after} ns after A was judged");
    }
}

#[test]
fn rqlite_318_with_two_nodes_the_rule_cannot_apply() {
    let mut b = Bench::watching(&[A]);
    b.crash(A);
    b.run(10 * MS);
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::SilentHost, A)]);
}

#[test]
fn a_slow_peer_is_waited_for_as_witness() {
    let slow = Contract { period_ns: 100 * MS, ..CONTRACT };
    for slow_one_lives in [true, false] {
        let mut b = Bench::watching(&[A]);
        b.d.peer_seen(B, "host-20", 1, &[slow; 2], b.now).unwrap();
        b.take();
        b.crash(A);
        b.run(50 * MS);
        assert_eq!(b.causes().iter().filter(|(c, _)| *c != Cause::Returned).count(), 1, "A is late, and not more yet");
        if slow_one_lives {
            b.sending.push((B, 1, [true; PATHS]));
        }
        b.run(200 * MS);
        let expected = if slow_one_lives { (Cause::SilentHost, A) } else { (Cause::Isolated, ME) };
        assert_eq!(b.take().last(), Some(&expected));
    }
}

#[test]
fn both_own_carriers_down_is_isolation_at_once() {
    let mut b = Bench::watching(&[A, B]);
    let before = b.sending.clone();
    b.sending.clear();
    b.d.carrier(0, false, b.now);
    b.d.carrier(1, false, b.now);
    b.run(100 * MS);
    assert_eq!(b.causes(), [(Cause::Isolated, ME)]);
    assert_eq!(b.verdicts[0].grade, Grade::Certain);
    b.take();
    b.sending = before;
    b.d.carrier(0, true, b.now);
    b.run(20 * MS);
    assert_eq!(b.causes(), [(Cause::Rejoined, ME)]);
    b.d.carrier(1, true, b.now);
    b.run(20 * MS);
    assert_eq!(b.take(), [(Cause::Rejoined, ME)]);
}

#[test]
fn one_own_carrier_down_blames_nobodys_path_and_asks_on_the_other() {
    let mut b = Bench::watching(&[A, B]);
    for n in [A, B] {
        b.cut(n, 0);
    }
    b.d.carrier(0, false, b.now);
    b.run(100 * MS);
    assert_eq!(b.causes(), []);
    b.crash(A);
    b.run(10 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A), (Cause::SilentHost, A)]);
    assert_eq!(b.others[0], Action::Probe { node: A, paths: [false, true], knock: true, wide: false });
    assert!(!b.verdicts[1].evidence.paths[0].carrier);
    b.take();
    b.heal(B, 0);
    b.d.carrier(0, true, b.now);
    b.run(20 * MS);
    assert_eq!(b.take(), []);
}

#[test]
fn the_plan_never_sleeps_past_what_it_would_call_a_pause() {
    let mut b = Bench::watching(&[A, B]);
    // Driven by poll_timeout alone.
    let end = b.now + 200 * MS;
    let mut turns = 0;
    let mut phase = b.now;
    while b.now < end {
        let next = b.d.poll_timeout().unwrap();
        assert!(next > b.now, "no busy loop");
        while phase + 100 * US <= next {
            phase += 100 * US;
            b.now = phase;
            b.sleep(0, true);
        }
        b.now = next;
        for n in [A, B] {
            let at = next - next % MS;
            let row = PathArrival { last_number: at / MS, last_arrival_ns: at, ..PathArrival::default() };
            b.d.arrivals(n, 1, &[row; 2]).unwrap();
        }
        b.d.tick(next);
        turns += 1;
        assert_eq!(b.d.poll_action(), None);
    }
    assert!(turns <= 400, "{turns} turns in 200 ms");
}

/// A host with a fence of half a second crashes, and the observer stands still for 8 of every 60 ms, its kernel too. Whether it is told in so much time.
fn is_told_by_a_starved_observer(hosts: &[u32], mode: FenceMode, within_ns: u64) -> bool {
    let mut b = Bench::watching(hosts);
    let timeout_ns = 500 * MS;
    b.d.fence(A, 1, Some(FencePromise { timeout_ns, mode, host: true })).unwrap();
    b.run(150 * MS);
    b.crash(A);
    let crashed = b.now;
    while b.now < crashed + within_ns {
        b.run(52 * MS);
        b.sleep(8 * MS, false);
    }
    let told = b.verdicts.iter().find(|v| v.cause == Cause::SilentHost);
    told.inspect(|v| assert!(v.at_ns > crashed + timeout_ns - 2 * TO && v.evidence.fenced, "{v:?}")).is_some()
}

/// Silence that lasts for a fence's time had to begin anew with every pause: an observer on a busy machine never told a host behind a fence as dead.
#[test]
fn an_observer_that_sleeps_again_and_again_tells_a_fenced_host_all_the_same() {
    // Each of ten pauses may have been one of the machine below us.
    assert!(is_told_by_a_starved_observer(&[A, B], FenceMode::Sent, 700 * MS));
    // What we did not hear we did not confirm, and it cannot have extended the fence.
    for needs_us in [Confirmers::All, Confirmers::Majority] {
        assert!(is_told_by_a_starved_observer(&[A], FenceMode::Acknowledged(needs_us), 700 * MS));
    }
    // Nobody shows that a heartbeat was not lost in a pause that extended it, or that others have not confirmed one.
    assert!(!is_told_by_a_starved_observer(&[A], FenceMode::Sent, 3_000 * MS));
    assert!(!is_told_by_a_starved_observer(&[A], FenceMode::Acknowledged(Confirmers::AtLeast(1)), 3_000 * MS));
}
