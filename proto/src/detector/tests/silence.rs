use super::super::*;
use super::harness::*;

#[test]
fn quiet_when_all_is_well() {
    let mut b = Bench::watching(&[A, B]);
    b.run(1_000 * MS);
    assert_eq!(b.take(), []);
}

#[test]
fn fide_3_3_one_missing_copy_is_a_path_fault_not_a_crash() {
    let mut b = Bench::watching(&[A, B]);
    let at = b.now;
    b.cut(A, 1);
    b.run(2_000 * MS);
    assert_eq!(b.causes(), [(Cause::PathDown, A)]);
    assert!((998 * MS..1_010 * MS).contains(&(b.verdicts[0].at_ns - at)), "{}", b.verdicts[0].at_ns - at);
    assert_eq!((b.verdicts[0].code, b.verdicts[0].grade), (1, Grade::Inferred));
    assert_eq!(b.d.state(A), Some(State::Alive));
    b.take();
    b.heal(A, 1);
    b.run(1_010 * MS);
    assert_eq!(b.take(), [(Cause::PathUp, A)]);
}

#[test]
fn issue_2_a_copy_that_waits_for_a_busy_processor_is_no_path_fault() {
    // Ours: whatever arrives on one path waits, answers too.
    let mut b = Bench::watching(&[A, B]);
    for ms in [2, 10, 100, 900] {
        b.held[0] = b.now + ms * MS;
        b.run((ms + 20) * MS);
        assert_eq!(b.take(), [], "held up for {ms} ms");
    }
    // Theirs: the heartbeats wait, the kernel answers.
    b.mute(A, 1);
    b.run(900 * MS);
    b.heal(A, 1);
    b.run(20 * MS);
    assert_eq!(b.take(), []);
}

#[test]
fn a_path_that_carries_answers_but_no_heartbeats_is_down_after_a_while() {
    let mut b = Bench::watching(&[A, B]);
    let at = b.now;
    b.mute(A, 1); // a firewall in between, say
    b.run(1_500 * MS);
    assert_eq!(b.causes(), [(Cause::PathDown, A)]);
    let v = &b.verdicts[0];
    assert!((998 * MS..1_010 * MS).contains(&(v.at_ns - at)), "{}", v.at_ns - at);
}

#[test]
fn a_path_on_which_nobody_is_heard_is_down_after_a_while() {
    let mut b = Bench::watching(&[A, B]);
    b.held[0] = u64::MAX; // its switch is dead, or we are
    b.run(1_500 * MS);
    let mut said = b.causes();
    said.sort_unstable_by_key(|(_, node)| *node);
    assert_eq!(said, [(Cause::PathDown, A), (Cause::PathDown, B)]);
}

#[test]
fn evidence_says_where_the_kernel_was_asked() {
    let asked = |v: &Verdict| [0, 1].map(|k| v.evidence.paths[k].asked);
    // A path alone that is silent is waited for, not asked on.
    let mut b = Bench::watching(&[A, B]);
    b.cut(A, 1);
    b.run(1_500 * MS);
    assert_eq!(b.causes(), [(Cause::PathDown, A)]);
    assert_eq!(asked(&b.verdicts[0]), [false, false]);
    // A late host is asked on both; once it is well, that is over.
    b.heal(A, 1);
    b.run(1_500 * MS);
    b.take();
    b.crash(A);
    b.run(10 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A), (Cause::SilentHost, A)]);
    assert_eq!(b.verdicts.iter().map(asked).collect::<Vec<_>>(), [[true; 2]; 2]);
    // Where we have no carrier we cannot ask.
    let mut b = Bench::watching(&[A, B]);
    b.d.carrier(0, false, b.now);
    b.crash(A);
    b.run(10 * MS);
    assert!(b.verdicts.iter().filter(|v| v.node == A).all(|v| asked(v) == [false, true]), "{:?}", b.causes());
}

#[test]
fn issue_2_a_late_host_whose_copies_come_again_one_after_the_other_has_no_path_down() {
    let mut b = Bench::watching(&[A, B]);
    b.until_heartbeat(A);
    b.mute(A, 0);
    b.run(500 * MS); // one path is behind, and then
    b.mute(A, 1);
    b.run(900 * MS);
    b.heal(A, 1);
    b.run(2 * MS);
    b.heal(A, 0);
    b.run(20 * MS);
    assert!(!b.take().iter().any(|(cause, _)| *cause == Cause::PathDown));
}

#[test]
fn a_path_that_loses_copies_at_random_does_not_flap() {
    for percent in [5, 10, 20, 50, 80] {
        let mut b = Bench::watching(&[A, B]);
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if (random >> 33) % 100 < percent {
                b.cut(A, 1)
            } else {
                b.heal(A, 1)
            }
            b.run(MS);
        }
        let said = b.take();
        assert!(said.len() <= 1, "{percent} %: {said:?}");
        assert!(percent < 50 || said == [(Cause::PathDown, A)], "{percent} %: {said:?}");
    }
}

#[test]
fn single_lost_copies_are_counted_not_told() {
    let mut b = Bench::watching(&[A, B]);
    for _ in 0..50 {
        b.cut(A, 1);
        b.run(MS);
        b.heal(A, 1);
        b.run(10 * MS);
    }
    assert_eq!(b.take(), []);
}

#[test]
fn copies_lost_on_both_paths_are_no_fault_of_one() {
    let mut b = Bench::watching(&[A, B]);
    for _ in 0..50 {
        b.cut(A, 0);
        b.cut(A, 1);
        b.run(MS);
        b.heal(A, 0);
        b.heal(A, 1);
        b.run(2 * MS);
    }
    assert!(b.take().iter().all(|(cause, _)| [Cause::ContractBroken, Cause::ContractKept].contains(cause)));
}

#[test]
fn fide_3_3_both_paths_silent_and_nobody_answers_is_a_silent_host() {
    let mut b = Bench::watching(&[A, B]);
    for app in [3, 4] {
        b.d.app_seen(A, 1, app).unwrap();
    }
    let at = b.now;
    b.crash(A);
    b.run(5 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A), (Cause::SilentHost, A)]);
    let v = b.verdicts[1].clone();
    assert!(v.at_ns - at < 4 * MS, "{}", v.at_ns - at);
    assert_eq!(v.ended_apps, [3, 4]);
    assert_eq!((v.evidence.timeout_ns, v.evidence.contract), (TO, CONTRACT));
    assert!(v.evidence.paths.iter().all(|p| p.silent_ns > TO && !p.kernel_answered && p.carrier));
    assert_eq!(b.others.last(), Some(&Action::Condemn { node: A, incarnation: 1 }));
    b.take();
    b.run(3_000 * MS);
    assert_eq!(b.take(), [], "said once");
}

#[test]
fn fide_3_3_a_copy_lost_now_and_then_does_not_make_the_path_flap() {
    let mut b = Bench::watching(&[A]);
    // Every other heartbeat is lost on path 1.
    for k in 0..200 {
        if k % 2 == 0 {
            b.cut(A, 1)
        } else {
            b.heal(A, 1)
        }
        b.run(MS);
    }
    assert_eq!(b.take(), [(Cause::PathDown, A)]);
    b.heal(A, 1);
    b.run(1_010 * MS);
    assert_eq!(b.take(), [(Cause::PathUp, A)]);
}

#[test]
fn fide_3_3_a_late_sender_is_a_broken_contract_and_nothing_more() {
    let mut b = Bench::watching(&[A, B]);
    let before = b.sending.clone();
    b.sending.retain(|(n, ..)| *n != A); // its agent is starved, its kernel is not
    b.run(500 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A)]);
    assert_eq!(b.d.state(A), Some(State::Late));
    let probes = b.others.iter().filter(|a| matches!(a, Action::Probe { .. })).count();
    assert!((40..60).contains(&probes), "asked every 10 ms: {probes}");
    b.take();
    b.sending = before;
    b.run(10 * MS);
    assert_eq!(b.take(), [(Cause::ContractKept, A)], "and no path was blamed for it");
}

#[test]
fn issue_2_a_killed_agent_is_agent_lost_never_a_crash() {
    let mut b = Bench::watching(&[A, B]);
    b.d.app_seen(A, 1, 7).unwrap();
    let at = b.now;
    b.agent(A, ProbeResult::AgentAbsent);
    b.run(500 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A), (Cause::AgentLost, A)]);
    let v = &b.verdicts[1];
    assert!(v.at_ns - at < 3 * MS && v.evidence.paths[0].agent_absent);
    assert_eq!(v.grade, Grade::Inferred, "ICMP is not authenticated");
    assert!(v.ended_apps.is_empty());
    assert_eq!(b.d.app_state(A, 7), Some(AppState::Unobserved));
    b.take();
    b.restart(A, 2);
    b.run(10 * MS);
    assert_eq!(b.take(), [(Cause::Returned, A)]);
    assert_eq!(b.d.app_state(A, 7), None, "to be announced anew");
}

#[test]
fn issue_2_a_stuck_agent_is_agent_lost_after_its_own_timeout() {
    let mut b = Bench::watching(&[A, B]);
    let at = b.now;
    b.agent(A, ProbeResult::KernelAnswered);
    b.run(1_100 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A), (Cause::AgentLost, A)]);
    let after = b.verdicts[1].at_ns - at;
    assert!((998 * MS..1_020 * MS).contains(&after), "{after}");
}

#[test]
fn issue_2_one_answer_after_our_own_outage_is_no_stuck_agent() {
    let mut b = Bench::watching(&[A]);
    let before = b.sending.clone();
    b.crash(A);
    // Always too late to count a question as unanswered, until patience ends; never so late that it were a pause.
    for _ in 0..390 {
        b.sleep(2_500 * US, false);
        b.turn();
    }
    assert_eq!(b.take(), [(Cause::ContractBroken, A)]);
    b.sleep(40 * MS, false);
    b.d.probe_result(A, 0, ProbeResult::KernelAnswered, b.now - US, b.now);
    b.turn();
    b.sending = before;
    b.run(5 * MS);
    assert!(!b.take().iter().any(|(c, _)| *c == Cause::AgentLost));
}

#[test]
fn issue_2_a_host_that_dies_after_its_agent_is_still_found() {
    let mut b = Bench::watching(&[A, B]);
    b.d.app_seen(A, 1, 7).unwrap();
    b.agent(A, ProbeResult::AgentAbsent);
    b.run(1_000 * MS);
    b.take();
    b.crash(A);
    b.run(110 * MS);
    assert_eq!(b.causes(), [(Cause::SilentHost, A)]);
    assert_eq!(b.verdicts[0].ended_apps, [7]);
    assert!(!b.others.iter().any(|a| matches!(a, Action::Condemn { .. })), "it was condemned already");
}

#[test]
fn an_agent_that_was_given_up_elsewhere_and_renews_itself_was_not_lost() {
    let mut b = Bench::watching(&[A, B]);
    b.sending.retain(|(node, ..)| *node != A);
    b.sending.push((A, 2, [true; PATHS]));
    assert_eq!(b.d.peer_renewed(A, &format!("host-{A}"), 2, &[CONTRACT; PATHS], b.now), Ok(Seen::Returned));
    b.run(MS);
    assert_eq!(b.causes(), [(Cause::Returned, A)]);
    assert_eq!((b.verdicts[0].code, b.verdicts[0].incarnation), (2, 2));
}

#[test]
fn issue_2_a_quick_restart_is_agent_lost_and_returned() {
    let mut b = Bench::watching(&[A, B]);
    b.restart(A, 2);
    b.run(10 * MS);
    assert_eq!(b.causes(), [(Cause::AgentLost, A), (Cause::Returned, A)]);
    assert_eq!((b.verdicts[0].incarnation, b.verdicts[1].incarnation), (1, 2));
    assert_eq!(b.verdicts[0].grade, Grade::Certain, "it says so itself by coming again");
}

#[test]
fn issue_2_a_verdict_is_never_taken_back() {
    let mut b = Bench::watching(&[A, B]);
    b.crash(A);
    b.run(10 * MS);
    b.take();
    // The same incarnation speaks again: refused, and known as condemned.
    b.sending.push((A, 1, [true; PATHS]));
    b.run(20 * MS);
    assert_eq!(b.take(), []);
    assert_eq!(b.d.state(A), Some(State::Silent));
    assert_eq!(b.d.condemned().collect::<Vec<_>>(), [(A, 1)]);
    assert!(b.d.stats().ignored_arrivals >= 15);
    assert_eq!(b.d.peer_seen(A, "host-10", 1, &[CONTRACT; 2], b.now), Err(Refused::Condemned));
    assert_eq!(b.d.app_seen(A, 1, 3), Err(Refused::Condemned));
    b.restart(A, 2);
    b.run(20 * MS);
    assert_eq!(b.take(), [(Cause::Returned, A)]);
    // And the old one is over for good.
    assert_eq!(b.notice(A, 1, 1, Cause::Killed, 0), Err(Refused::OldIncarnation));
}

#[test]
fn heartbeats_of_an_incarnation_not_announced_yet_prove_the_host_but_nothing_else() {
    let mut b = Bench::watching(&[A, B]);
    b.crash(A);
    b.sending.push((A, 2, [true; PATHS])); // restarted, its announcement is lost; probes are filtered
    b.run(500 * MS);
    assert_eq!(b.take(), [(Cause::ContractBroken, A)]);
}

#[test]
fn a_lost_answer_is_not_a_dead_host() {
    let mut b = Bench::watching(&[A, B]);
    b.until_heartbeat(A);
    b.sending.retain(|(n, ..)| *n != A);
    b.answering.retain(|(n, _)| *n != A);
    b.run(TO + 300 * US);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A)]);
    b.run(400 * US);
    b.d.probe_result(A, 1, ProbeResult::KernelAnswered, b.now - 100 * US, b.now);
    b.answering.push((A, ProbeResult::KernelAnswered));
    b.run(50 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A)]);
}

#[test]
fn three_questions_over_a_millisecond_stay_unanswered_before_a_host_is_silent() {
    // Also where a shorter period is promised: then the millisecond is what counts.
    for period_ns in [MS, 200 * US] {
        let mut b = Bench::watching(&[A, B]);
        b.crash(A);
        for path in 0..PATHS {
            b.d.contract(A, path, Contract { period_ns, ..CONTRACT }, b.now).unwrap();
        }
        let mut asked = Vec::new();
        let silent_at = loop {
            b.others.clear();
            b.run(100 * US);
            asked.extend(b.others.iter().filter(|a| matches!(a, Action::Probe { node: A, .. })).map(|_| b.now));
            if let Some(v) = b.verdicts.iter().find(|v| v.cause == Cause::SilentHost) {
                break v.at_ns;
            }
            assert!(asked.len() < 100, "it is never judged");
        };
        assert!(asked.len() >= 3 && silent_at - asked[0] >= MS, "{period_ns}: {asked:?}, {silent_at}");
        assert!(asked.len() <= 5 && silent_at - asked[0] < 3 * MS, "{period_ns}: {asked:?}, {silent_at}");
    }
}

#[test]
fn evidence_says_what_it_rests_on() {
    let mut b = Bench::watching(&[A, B]);
    b.d.receive_drops(5);
    b.run(2 * MS);
    b.crash(A);
    b.run(TO - 200 * US);
    b.d.receive_drops(12);
    b.d.also_reported(A, "carol", b.now);
    b.d.also_reported(A, "carol", b.now);
    b.run(10 * MS);
    let e = &b.verdicts.last().unwrap().evidence;
    assert_eq!(e.drops, 7);
    assert_eq!(e.also_reported_by, ["carol"]);
    assert!(e.drained && e.observer_awake_ns > 10 * MS);
    assert!(e.paths[0].last_number > 0 && e.paths[0].last_arrival_ns > 0);
}

#[test]
fn safetimer_4_1_a_barrier_counts_when_it_came_after_the_timeout_and_on_every_path() {
    for (after, paths, expected) in [(500 * US, 0..2, false), (TO + 300 * US, 0..1, false), (TO + 300 * US, 0..2, true)] {
        let mut b = Bench::watching(&[A, B]);
        b.barriers = false;
        b.until_heartbeat(A);
        b.crash(A);
        b.run(after);
        for path in paths {
            b.d.drained(A, path, b.now);
        }
        b.run(5 * MS);
        assert_eq!(b.verdicts[0].cause, Cause::ContractBroken);
        assert_eq!(b.verdicts[0].evidence.drained, expected, "{after}");
    }
}

#[test]
fn safetimer_4_1_no_contract_is_broken_by_what_waits_on_our_own_side() {
    let mut b = Bench::watching(&[A, B]);
    for _ in 0..20 {
        b.held = [b.now + 1_200 * US; PATHS];
        b.run(9_700 * US);
    }
    assert_eq!(b.take(), [], "overdue, but no barrier had come out of the queues either");
    assert!(b.d.stats().spared >= 20, "{}", b.d.stats().spared);
    // Without barriers it is told.
    let mut b = Bench::with(Config { drain_wait_ns: Some(0), ..Config::new(ME, 1) }, &[A, B]);
    b.held = [b.now + 2_000 * US; PATHS];
    b.run(10 * MS);
    assert!(b.take().contains(&(Cause::ContractBroken, A)));
}

#[test]
fn safetimer_4_1_with_a_barrier_the_verdict_comes_at_once() {
    let mut b = Bench::watching(&[A, B]);
    b.until_heartbeat(A);
    let at = b.now;
    b.crash(A);
    b.run(5 * MS);
    let v = &b.verdicts[0];
    assert!(v.cause == Cause::ContractBroken && v.evidence.drained);
    assert!(v.at_ns - at <= TO + 200 * US, "{} after the last heartbeat", v.at_ns - at);
    let v = &b.verdicts[1];
    assert!(v.cause == Cause::SilentHost && v.evidence.drained);
}

/// Its kernel answered by another queue than its heartbeats take, and nothing has come out of that
/// one since: its answers may wait there.
#[test]
fn safetimer_5_1_a_silence_waits_for_a_barrier_of_the_queue_of_its_answers() {
    let silent_after = |answers: Option<u64>| {
        let mut b = Bench::watching(&[A, B]);
        (0..PATHS).for_each(|path| b.d.answers_drained(A, path, b.now));
        b.until_heartbeat(A);
        let at = b.now;
        b.crash(A);
        for ms in 1..100 {
            b.run(MS);
            if answers.is_some_and(|from_ms| ms >= from_ms) {
                (0..PATHS).for_each(|path| b.d.answers_drained(A, path, b.now));
            }
        }
        let v = b.verdicts.iter().find(|v| v.cause == Cause::SilentHost).unwrap().clone();
        ((v.at_ns - at) / MS, v.evidence.drained)
    };
    let (at_once, drained) = silent_after(Some(1));
    assert!(at_once < 8 && drained, "{at_once} ms");
    let (late, drained) = silent_after(Some(8));
    assert!((8..12).contains(&late) && drained, "{late} ms");
    let (never, drained) = silent_after(None);
    assert!(never > 8 && !drained, "{never} ms: as long as a barrier is waited for");
}

#[test]
fn safetimer_4_1_a_lost_agent_is_told_behind_a_barrier() {
    // Its kernel answers by another queue than its heartbeats take, in which they wait.
    let mut b = Bench::watching(&[A, B]);
    b.barriers = false;
    let sending = b.sending.clone();
    b.agent(A, ProbeResult::KernelAnswered);
    b.run(1_900 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A)]);
    b.sending = sending;
    b.run(10 * MS);
    assert_eq!(b.causes().last(), Some(&(Cause::ContractKept, A)));

    // One of the time before says nothing of those that may have come since.
    b.agent(A, ProbeResult::KernelAnswered);
    b.run(500 * MS);
    (0..PATHS).for_each(|path| b.d.drained(A, path, b.now));
    b.run(1_300 * MS);
    assert_eq!(b.causes().len(), 3, "late again");
    (0..PATHS).for_each(|path| b.d.drained(A, path, b.now));
    b.run(MS);
    assert!(b.causes().last() == Some(&(Cause::AgentLost, A)) && b.verdicts.last().unwrap().evidence.drained);

    // With barriers it takes no longer than without; where there are none, twice the time.
    for (barriers, least, most) in [(true, 1_000 * MS, 1_015 * MS), (false, 2_000 * MS, 2_015 * MS)] {
        let mut b = Bench::watching(&[A, B]);
        b.barriers = barriers;
        b.until_heartbeat(A);
        let at = b.now;
        b.agent(A, ProbeResult::KernelAnswered);
        b.run(2_100 * MS);
        let v = b.verdicts.last().unwrap();
        assert!(v.cause == Cause::AgentLost && v.evidence.drained == barriers);
        assert!((least..most).contains(&(v.at_ns - at)), "{}", v.at_ns - at);
    }
}

#[test]
fn safetimer_4_1_a_barrier_of_before_its_kernel_answered_says_nothing_of_a_lost_agent() {
    // A host with a fence is waited for. It is cut for 3 s; then its kernel answers, by another queue than the one in which its heartbeats wait.
    let mut b = Bench::watching(&[A, B]);
    let promise = FencePromise { timeout_ns: 10_000 * MS, mode: fide_wire::verdict::FenceMode::Sent, host: true };
    b.d.fence(A, 1, Some(promise)).unwrap();
    b.crash(A);
    b.run(3_000 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A)]);
    (0..PATHS).for_each(|path| b.d.drained(A, path, b.now));
    b.barriers = false;
    b.answering.push((A, ProbeResult::KernelAnswered));
    b.run(1_900 * MS);
    assert_eq!(b.causes().len(), 1);
    b.run(200 * MS);
    assert!(b.causes().last() == Some(&(Cause::AgentLost, A)) && !b.verdicts.last().unwrap().evidence.drained);
}

#[test]
fn safetimer_4_1_a_silent_host_waits_for_its_barrier_but_not_for_ever() {
    let mut b = Bench::watching(&[A, B]);
    b.barriers = false; // another queue than the silent host's, say
    let at = b.now;
    b.crash(A);
    b.run(1_100 * MS);
    assert_eq!(b.causes(), [(Cause::ContractBroken, A), (Cause::SilentHost, A)]);
    let v = &b.verdicts[1];
    assert!(!v.evidence.drained && v.at_ns - at >= 10 * MS, "{}", v.at_ns - at);
    // Nobody else is there who could give one: nothing to wait for.
    let mut b = Bench::watching(&[A]);
    let at = b.now;
    b.crash(A);
    b.run(10 * MS);
    assert!(b.verdicts[1].cause == Cause::SilentHost && b.verdicts[1].at_ns - at < 5 * MS);
}

#[test]
fn f5_a_recalibrated_timeout_is_told_when_it_moved_by_more_than_a_tenth() {
    let mut b = Bench::watching(&[A]);
    let with = |delta| Contract { delta_max_ns: delta, ..CONTRACT };
    b.d.contract(A, 0, with(150 * US), b.now).unwrap(); // 1.25 -> 1.35 ms: 8 %
    assert_eq!(b.d.poll_action(), None);
    b.d.contract(A, 1, with(400 * US), b.now).unwrap();
    assert_eq!(b.d.poll_action(), Some(Action::TimeoutChanged { node: A, timeout_ns: 1_850 * US }));
    assert_eq!(b.d.timeout_ns(A), Some(1_850 * US), "of the slower path");
    b.d.contract(A, 1, with(390 * US), b.now).unwrap();
    assert_eq!(b.d.poll_action(), None);
    assert_eq!(b.d.contract(A, 2, CONTRACT, b.now), Err(Refused::Malformed));
}

#[test]
fn f5_a_tighter_contract_is_not_held_against_what_came_under_the_old_one() {
    let mut b = Bench::watching(&[A, B]);
    for p in 0..PATHS {
        b.d.contract(A, p, Contract { period_ns: 10 * MS, ..CONTRACT }, b.now).unwrap();
    }
    let before = b.sending.clone();
    b.sending.retain(|(n, ..)| *n != A);
    b.run(5 * MS); // nothing for 5 ms: in time
    b.take();
    for p in 0..PATHS {
        b.d.contract(A, p, CONTRACT, b.now).unwrap();
    }
    b.sending = before;
    b.run(20 * MS);
    assert_eq!(b.take(), []);
}

#[test]
fn a_host_that_never_sends_anything_is_found_out_too() {
    let mut b = Bench::watching(&[B]);
    b.d.peer_seen(A, "host-10", 1, &[CONTRACT; 2], b.now).unwrap();
    b.run(100 * MS); // by which queue it would come nobody knows, so no answer is a barrier
    assert_eq!(b.take(), [(Cause::Returned, A), (Cause::ContractBroken, A), (Cause::SilentHost, A)]);
}

#[test]
fn the_port_of_a_killed_agent_is_asked_until_it_is_free_and_left_alone_then() {
    let mut b = Bench::watching(&[A, B]);
    b.sending.retain(|(n, ..)| *n != A);
    b.run(200 * MS);
    let knocks = b.others.iter().filter(|a| matches!(a, Action::Knock { node: A, .. })).count();
    assert!((8..=15).contains(&knocks), "every 2 ms for 30 ms: {knocks}");
    b.answering.retain(|(n, _)| *n != A);
    b.answering.extend([ProbeResult::AgentAbsent, ProbeResult::KernelAnswered].map(|result| (A, result)));
    b.run(20 * MS);
    assert_eq!(b.take(), [(Cause::ContractBroken, A), (Cause::AgentLost, A)]);
    // Its kernel says that of a few questions only, and its agent may be killed again.
    b.others.clear();
    b.run(2_000 * MS);
    let asked = |b: &Bench, knocks| {
        b.others.iter().filter(|a| matches!(a, Action::Probe { node: A, knock, .. } if *knock == knocks)).count()
    };
    assert!(asked(&b, true) <= 1 && asked(&b, false) >= 15, "{:?}", b.others);
    // One that answers no echo is asked as before.
    b.answering.retain(|(n, result)| *n != A || *result == ProbeResult::AgentAbsent);
    b.others.clear();
    b.run(2_000 * MS);
    assert!(asked(&b, true) >= 1, "{:?}", b.others);
}

#[test]
fn a_new_host_whose_agent_is_stuck_gets_the_agents_timeout_too() {
    let mut b = Bench::watching(&[B]);
    b.d.peer_seen(A, "host-10", 1, &[CONTRACT; 2], b.now).unwrap();
    b.answering.push((A, ProbeResult::KernelAnswered));
    b.run(1_900 * MS); // as above: without a barrier twice the time
    assert_eq!(b.take(), [(Cause::Returned, A), (Cause::ContractBroken, A)]);
    b.run(200 * MS);
    assert_eq!(b.take(), [(Cause::AgentLost, A)]);
}

#[test]
fn s2_one_path_cut_and_the_other_losing_on_our_side_is_no_silent_host() {
    for hosts in [&[A][..], &[A, B, C]] {
        let mut b = Bench::watching(hosts);
        // A's cable on path 0 is cut; on path 1 our own interface loses all of its heartbeats, and all answers but one in 4 ms.
        b.cut(A, 0);
        b.mute(A, 1);
        for n in 0..2_000 {
            let lost = n % 40 >= 4;
            b.deaf.retain(|at| *at != (A, 1));
            if lost {
                b.deaf.push((A, 1));
            }
            b.d.dropped(1, b.now);
            b.run(100 * US);
        }
        assert!(!b.causes().iter().any(|(cause, _)| *cause == Cause::SilentHost), "{:?}", b.take());
        // It dies: nothing answers for long enough, although the losses go on.
        b.crash(A);
        let died = b.now;
        while b.now < died + 1_200 * MS {
            b.d.dropped(1, b.now);
            b.run(100 * US);
        }
        let silent = b.verdicts.iter().find(|v| v.cause == Cause::SilentHost).expect("found in the end");
        assert!(silent.at_ns - died > 90 * MS, "{}", silent.at_ns - died);
    }
}

#[test]
fn who_will_be_late_first_is_known_before_it_is() {
    let mut b = Bench::watching(&[A, B]);
    assert!(!b.d.is_draining());
    b.cut(B, 0);
    b.cut(B, 1);
    // The other one has beaten since.
    let (node, due_ns, late_ns) = std::iter::repeat_with(|| {
        b.run(100 * US);
        b.d.next_late().expect("two are watched")
    })
    .take(10)
    .find(|(node, ..)| *node == B)
    .expect("within a period");
    assert_eq!((node, b.d.state(B)), (B, Some(State::Alive)));
    assert!(due_ns < late_ns && b.now < late_ns, "its heartbeat is due {due_ns}, it is late {late_ns}, now is {}", b.now);
    b.run(late_ns + 1 - b.now);
    let others = b.d.next_late().map(|(node, ..)| node);
    assert!(others != Some(B) || b.d.is_draining(), "{others:?}");
    b.run(200 * MS);
    assert_eq!((b.d.next_late().map(|(node, ..)| node), b.d.is_draining()), (Some(A), false));
}
