//! Issue 16: somebody has taken a MAC, so what is for a host (or for us) goes to him.

use super::super::*;
use super::harness::*;

const BOTH: [usize; PATHS] = [0, 1];

/// The host's agent stands still for so long; its kernel does not.
fn pause(b: &mut Bench, node: u32, ns: u64) {
    let at = b.sending.iter().position(|(n, ..)| *n == node).unwrap();
    let was = b.sending.swap_remove(at);
    b.run(ns);
    b.sending.push(was);
    b.run(20 * MS);
}

fn dead(b: &mut Bench) -> Vec<(Cause, u32)> {
    b.take().into_iter().filter(|(cause, _)| !matches!(cause, Cause::ContractBroken | Cause::ContractKept)).collect()
}

/// From the crash to *silent host*.
fn silent_after(b: &mut Bench, node: u32) -> u64 {
    b.until_heartbeat(node);
    let at = b.now;
    b.crash(node);
    while b.d.state(node) != Some(State::Silent) {
        b.run(100 * US);
        assert!(b.now < at + 5_000 * MS, "{:?}", b.causes());
    }
    b.now - at
}

#[test]
fn a_pause_of_an_agent_whose_mac_is_taken_is_no_dead_host() {
    for others in [&[A, B][..], &[A]] {
        let mut b = Bench::watching(others);
        b.taken = BOTH.map(|path| (A, path)).into();
        for ms in (2..60).chain([100, 500, 900]) {
            pause(&mut b, A, ms * MS);
            assert_eq!(dead(&mut b), [], "{ms} ms, {} hosts", others.len());
        }
        // A host that is dead does not answer those questions either.
        let after = silent_after(&mut b, A);
        assert!(after < 10 * MS, "{after} ns");
    }
}

#[test]
fn every_series_asks_everybody_twice_before_a_verdict_and_seldom_after_that() {
    let mut b = Bench::watching(&[A, B]);
    b.answering.retain(|(node, _)| *node != A);
    b.sending.retain(|(node, ..)| *node != A);
    let wide = |b: &Bench| -> Vec<bool> {
        let of = |action: &Action| match action {
            Action::Probe { node: A, wide, .. } => Some(*wide),
            _ => None,
        };
        b.others.iter().filter_map(of).collect()
    };
    while b.d.state(A) != Some(State::Silent) {
        b.run(100 * US);
    }
    assert_eq!(wide(&b)[..3], [false, true, true]);
    // Where the verdict has to wait.
    let mut b = Bench::watching(&[A, B]);
    let promise = FencePromise { timeout_ns: 900 * MS, mode: fide_wire::verdict::FenceMode::Sent, host: true };
    b.d.fence(A, 1, Some(promise)).unwrap();
    b.crash(A);
    b.run(900 * MS);
    let asked = wide(&b);
    let count = asked.iter().filter(|wide| **wide).count();
    assert!(asked.len() > 80 && count <= 2 + asked.len() / 8, "{count} of {}", asked.len());
}

#[test]
fn where_a_host_says_that_its_mac_is_taken_nobody_takes_it_for_dead_before_its_agents_timeout() {
    for by in [A, ME] {
        let mut b = Bench::watching(&[A, B]);
        // And what is for everybody does not get there.
        b.deaf = BOTH.map(|path| (A, path)).into();
        assert_eq!(BOTH.map(|path| b.d.diverted(by, path, b.now)), [true; 2], "news");
        assert_eq!(BOTH.map(|path| b.d.diverted(by, path, b.now)), [false; 2], "no news");
        for ms in [5, 50, 500, 900] {
            pause(&mut b, A, ms * MS);
            assert_eq!(dead(&mut b), [], "{ms} ms");
        }
        let after = silent_after(&mut b, A);
        assert!((1_000 * MS..1_020 * MS).contains(&after), "{after} ns");
    }
}

#[test]
fn one_path_on_which_nothing_goes_astray_is_enough_for_a_verdict() {
    let mut b = Bench::watching(&[A, B]);
    b.taken = vec![(A, 0)];
    b.d.diverted(A, 0, b.now);
    pause(&mut b, A, 500 * MS);
    assert_eq!(dead(&mut b), [], "it answers on the other one");
    let after = silent_after(&mut b, A);
    assert!(after < 10 * MS, "{after} ns");
    // Unless that one has not carried its heartbeats any more.
    let mut b = Bench::watching(&[A, B]);
    b.d.diverted(A, 0, b.now);
    b.mute(A, 1);
    b.deaf = BOTH.map(|path| (A, path)).into();
    b.run(1_100 * MS);
    assert_eq!(dead(&mut b), [(Cause::PathDown, A)]);
    pause(&mut b, A, 500 * MS);
    assert_eq!(dead(&mut b), []);
}

#[test]
fn a_diversion_is_forgotten_when_nothing_is_heard_of_it_for_a_while() {
    let mut b = Bench::watching(&[A, B]);
    BOTH.into_iter().for_each(|path| _ = b.d.diverted(A, path, b.now));
    b.run(10_100 * MS);
    let after = silent_after(&mut b, A);
    assert!(after < 10 * MS, "{after} ns");
}

/// Our own MAC is taken: heartbeats come, which are for everybody, and answers do not, of nobody.
#[test]
fn a_witness_that_answers_no_more_shows_nothing_before_the_agents_timeout() {
    let mut b = Bench::watching(&[A, B, C]);
    assert_eq!(b.try_all(), []);
    b.run(10 * MS);
    b.taken = BOTH.map(|path| (ME, path)).into();
    for ms in [5, 50, 500, 900] {
        pause(&mut b, A, ms * MS);
        assert_eq!(dead(&mut b), [], "{ms} ms");
    }
    let after = silent_after(&mut b, A);
    assert!((1_000 * MS..1_100 * MS).contains(&after), "{after} ns");
    assert_eq!(b.d.state(B), Some(State::Alive));
}

#[test]
fn questions_in_vain_show_a_diversion_and_a_lost_answer_does_not() {
    let mut b = Bench::watching(&[A, B]);
    let mut news = Vec::new();
    for second in 0..40 {
        // One is lost now and then; from the twentieth second on all that is for A on path 1.
        b.deaf = if second % 7 == 3 { vec![(B, 0)] } else { Vec::new() };
        b.taken = if second >= 20 { vec![(A, 1)] } else { Vec::new() };
        news.extend(b.try_all().into_iter().map(|(node, path)| (second, node, path)));
        b.run(1_000 * MS);
    }
    assert_eq!(news, [(22, A, 1)], "told once: after two of them");
    assert_eq!(dead(&mut b), []);
}

/// A host with one slow processor: its agent's heartbeats come in time, its kernel answers when it gets to it, after the next question.
#[test]
fn answers_that_are_late_are_no_diversion() {
    let mut b = Bench::watching(&[A, B]);
    assert_eq!(b.try_all(), []);
    b.run(10 * MS);
    b.taken = vec![(A, 1)];
    let mut asked = Vec::new();
    for second in 0..40 {
        asked.push(b.now);
        assert_eq!(b.try_all(), [], "{second}");
        b.run(500 * MS);
        if let Some(before) = asked.len().checked_sub(2) {
            b.d.probe_result(A, 1, ProbeResult::KernelAnswered, asked[before], b.now);
        }
        b.run(500 * MS);
    }
    // None comes any more: that is one.
    let news = (0..4).flat_map(|_| {
        let news = b.try_all();
        b.run(1_000 * MS);
        news
    });
    assert_eq!(news.collect::<Vec<_>>(), [(A, 1)]);
}

/// Heartbeats are stamped by the kernel while this agent stands still; an answer waits for it, and for its socket's room.
#[test]
fn what_this_host_is_late_for_or_loses_itself_is_no_diversion() {
    for loses in [false, true] {
        let mut b = Bench::watching(&[A, B]);
        assert_eq!(b.try_all(), []);
        b.run(10 * MS);
        b.taken = vec![(A, 1)];
        for second in 0..40 {
            assert_eq!(b.try_all(), [], "{second}");
            b.run(500 * MS);
            if loses {
                b.d.dropped(1, b.now);
            } else {
                b.sleep(200 * MS, true);
                b.turn();
            }
            b.run(300 * MS);
        }
    }
}

#[test]
fn a_host_that_never_answers_is_judged_as_before() {
    let mut b = Bench::watching(&[A, B]);
    b.answering.retain(|(node, _)| *node != A);
    for _ in 0..20 {
        assert_eq!(b.try_all(), []);
        b.run(1_000 * MS);
    }
    let after = silent_after(&mut b, A);
    assert!(after < 10 * MS, "{after} ns");
}

/// Questions are put at leisure while a fence may be open, and witnesses that answer are heard no oftener than they are asked.
#[test]
fn a_fence_that_may_be_open_for_long_costs_no_time_behind_it() {
    for timeout in [5, 20, 50, 100, 137, 400, 900] {
        let mut b = Bench::watching(&[A, B, C]);
        assert_eq!(b.try_all(), []);
        let promise = FencePromise { timeout_ns: timeout * MS, mode: fide_wire::verdict::FenceMode::Sent, host: true };
        b.d.fence(A, 1, Some(promise)).unwrap();
        let after = silent_after(&mut b, A);
        assert!((timeout * MS..(timeout + 25) * MS).contains(&after), "{after} ns with {timeout} ms");
    }
}

/// Heartbeats of a host whose fence is shut come, and its answers do not.
#[test]
fn a_host_with_a_fence_of_its_own_is_not_thought_diverted() {
    let mut b = Bench::watching(&[A, B]);
    assert_eq!(b.try_all(), []);
    let promise = FencePromise { timeout_ns: 100 * MS, mode: fide_wire::verdict::FenceMode::Sent, host: true };
    b.d.fence(A, 1, Some(promise)).unwrap();
    b.answering.retain(|(node, _)| *node != A);
    for _ in 0..10 {
        b.run(1_000 * MS);
        assert_eq!(b.try_all(), []);
    }
}

/// A neighbour on one of two networks holds the heartbeats there back for 20 s, and lets them go one after the other.
#[test]
fn heartbeats_that_were_held_back_on_one_path_keep_no_dead_host_alive() {
    let mut b = Bench::watching(&[A, B]);
    let first = b.sent(A);
    b.mute(A, 1);
    b.run(20_000 * MS);
    assert_eq!(dead(&mut b), [(Cause::PathDown, A)]);
    b.until_heartbeat(A);
    b.crash(A);
    let (at, last) = (b.now, b.sent(A));
    for number in first + 1..=last {
        b.comes(A, 1, number);
        b.run(MS);
        if b.d.state(A) == Some(State::Silent) {
            break;
        }
    }
    assert_eq!(dead(&mut b), [(Cause::SilentHost, A)], "and the path was not up again");
    assert!(b.now - at < 10 * MS, "{} ns", b.now - at);
}

#[test]
fn a_path_that_lags_by_less_than_its_contract_carries() {
    let mut b = Bench::watching(&[A, B]);
    b.mute(A, 1);
    b.run(20 * MS);
    for _ in 0..3_000 {
        b.run(MS);
        b.comes(A, 1, b.sent(A) - 20);
    }
    assert_eq!(dead(&mut b), []);
}
