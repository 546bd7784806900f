use super::super::*;
use super::harness::*;
use fide_wire::verdict::FenceMode;

#[test]
fn fide_3_4_a_crash_notice_is_a_verdict_at_once_without_any_timer() {
    let mut b = Bench::watching(&[A]);
    b.d.app_seen(A, 1, 7).unwrap();
    assert_eq!(b.notice(A, 1, 7, Cause::Killed, 0), Ok(Taken::New));
    let v = &b.verdicts[0];
    assert_eq!((v.id, v.cause, v.grade, v.app, v.code), (VerdictId::new(A, 1), Cause::Killed, Grade::Certain, 7, 9));
    assert_eq!((v.evidence.event_ns, v.evidence.sent_ns, v.evidence.received_ns, v.evidence.path), (5, 6, b.now, 1));
    assert_eq!(v.evidence.timeout_ns, 0);
    assert_eq!(b.d.app_state(A, 7), Some(AppState::Ended { cause: Cause::Killed, code: 9, id: VerdictId::new(A, 1) }));
}

#[test]
fn fide_3_4_copies_of_a_notice_are_one_failure() {
    let mut b = Bench::watching(&[A]);
    for _ in 0..5 {
        let _ = b.notice(A, 1, 7, Cause::Killed, 0);
    }
    assert_eq!(b.take(), [(Cause::Killed, A)]);
    assert_eq!(b.d.stats().duplicates, 4);
}

#[test]
fn fide_3_4_a_confirmation_is_not_a_second_failure() {
    let mut b = Bench::watching(&[A]);
    b.notice(A, 1, 7, Cause::Doomed, 0).unwrap();
    b.notice(A, 2, 7, Cause::Killed, Notice::CONFIRMS).unwrap();
    assert_eq!(b.causes(), [(Cause::Doomed, A), (Cause::Killed, A)]);
    assert_eq!(b.verdicts.iter().map(|v| v.confirms).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn fide_3_4_a_confirmation_that_overtakes_the_doom_is_the_failure_itself() {
    let mut b = Bench::watching(&[A]);
    b.notice(A, 2, 7, Cause::Killed, Notice::CONFIRMS).unwrap();
    assert_eq!(b.notice(A, 1, 7, Cause::Doomed, 0), Ok(Taken::Duplicate));
    assert_eq!(b.causes(), [(Cause::Killed, A)]);
    assert!(!b.verdicts[0].confirms, "on_failure is due: nothing was said before");
}

#[test]
fn a_late_announcement_does_not_raise_the_dead() {
    let mut b = Bench::watching(&[A]);
    b.notice(A, 1, 7, Cause::Exited, 0).unwrap();
    b.d.app_seen(A, 1, 7).unwrap();
    assert_eq!(b.d.app_state(A, 7).unwrap().name(), "exited");
}

#[test]
fn after_leaving_silence_is_expected() {
    let mut b = Bench::watching(&[A, B]);
    b.d.app_seen(A, 1, 7).unwrap();
    b.notice(A, 1, 0, Cause::Left, 0).unwrap();
    assert_eq!(b.take(), [(Cause::Left, A)]);
    b.crash(A);
    b.run(3_000 * MS);
    assert_eq!(b.take(), []);
    assert_eq!(b.d.app_state(A, 7), Some(AppState::Unobserved), "it may well run on");
    assert_eq!(b.d.peer_seen(A, "host-10", 1, &[CONTRACT; 2], b.now), Err(Refused::Left));
    b.restart(A, 2);
    b.run(10 * MS);
    assert_eq!(b.take(), [(Cause::Returned, A)]);
}

/// A leave notice of A that says that it is back in so many ms.
fn restarts(b: &mut Bench, back_ms: i32) -> Result<Taken, Refused> {
    b.notice_of_code(A, 1, 0, Cause::Left, 0, back_ms)
}

#[test]
fn an_announced_restart_is_told_to_nobody_but_when_it_is_over() {
    let mut b = Bench::watching(&[A, B]);
    b.d.app_seen(A, 1, 7).unwrap();
    assert_eq!(restarts(&mut b, 2_000), Ok(Taken::New));
    assert_eq!(b.others[0], Action::Restarts { node: A, incarnation: 1 });
    assert!(matches!(b.others[1..], [Action::Probe { node: A, .. }]), "{:?}", b.others);
    assert_eq!(restarts(&mut b, 2_000), Ok(Taken::Duplicate), "the other copies");
    assert_eq!(b.d.state(A), Some(State::Restarting));
    assert_eq!(b.d.app_state(A, 7), Some(AppState::Unobserved));
    b.crash(A);
    b.run(1_900 * MS);
    assert_eq!(b.take(), []);
    b.restart(A, 2);
    b.run(200 * MS);
    assert_eq!((b.d.state(A), b.verdicts.last().map(|v| v.code)), (Some(State::Alive), Some(3)));
    assert_eq!(b.take(), [(Cause::Returned, A)]);
}

#[test]
fn who_is_not_back_in_time_and_never_answered_left_then() {
    for (back_ms, over_ms) in [(500, 500), (1, 1), (i32::MAX, 60_000)] {
        let mut b = Bench::watching(&[A, B]);
        restarts(&mut b, back_ms).unwrap();
        b.crash(A);
        b.run((over_ms - 1) * MS);
        assert_eq!(b.take(), [], "{back_ms}");
        b.run(10 * MS);
        let v = b.verdicts.last().unwrap();
        assert_eq!((v.code, v.grade, v.evidence.sent_ns), (0, Grade::Certain, 6));
        assert_eq!(b.take(), [(Cause::Left, A)], "{back_ms}");
        b.run(3_000 * MS);
        assert_eq!(b.take(), []);
        b.restart(A, 2);
        b.run(10 * MS);
        assert_eq!(b.take(), [(Cause::Returned, A)]);
    }
}

#[test]
fn who_is_not_back_in_time_is_asked_whether_it_lives() {
    let promise = FencePromise { timeout_ns: 100 * MS, mode: FenceMode::Sent, host: true };
    for (answer, verdict) in [
        (None, Cause::SilentHost),
        (Some(ProbeResult::AgentAbsent), Cause::AgentLost),
        (Some(ProbeResult::KernelAnswered), Cause::AgentLost),
    ] {
        let mut b = Bench::watching(&[A, B, C]);
        b.d.app_seen(A, 1, 7).unwrap();
        b.d.fence(A, 1, Some(promise)).unwrap();
        b.try_all();
        restarts(&mut b, 500).unwrap();
        b.d.fence(A, 1, Some(promise)).unwrap();
        match answer {
            None => b.crash(A),
            Some(answer) => b.agent(A, answer),
        }
        b.run(499 * MS);
        assert_eq!(b.take(), [], "{verdict:?}");
        b.run(50 * MS);
        if answer == Some(ProbeResult::KernelAnswered) {
            b.run(1_000 * MS); // as any agent that is silent while its kernel answers
        }
        let told = b.verdicts.last().unwrap();
        assert_eq!((told.evidence.fence, told.evidence.fenced), (None, false), "the fence went with the agent: {told:?}");
        assert_eq!(told.ended_apps, if answer.is_none() { vec![7] } else { vec![] }, "{verdict:?}");
        assert_eq!(b.take(), [(Cause::ContractBroken, A), (verdict, A)]);
        b.restart(A, 2);
        b.run(10 * MS);
        assert_eq!(b.take(), [(Cause::Returned, A)]);
    }
}

#[test]
fn of_those_who_are_started_again_ends_are_told_and_a_leave_is_one() {
    let mut b = Bench::watching(&[A, B]);
    b.d.app_seen(A, 1, 7).unwrap();
    restarts(&mut b, 2_000).unwrap();
    b.notice(A, 3, 7, Cause::Killed, 0).unwrap();
    assert_eq!(b.take(), [(Cause::Killed, A)], "sent before, and late");
    b.notice(A, 4, 0, Cause::Left, 0).unwrap();
    assert_eq!(b.take(), [(Cause::Left, A)]);
    b.run(3_000 * MS);
    assert_eq!(b.take(), []);
}

#[test]
fn while_one_is_started_again_its_kernel_is_a_witness_of_anothers_silence() {
    let mut b = Bench::watching(&[A, B]);
    restarts(&mut b, 10_000).unwrap();
    b.agent(A, ProbeResult::KernelAnswered);
    b.run(50 * MS);
    assert_eq!(b.take(), []);
    b.crash(B);
    b.run(50 * MS);
    assert_eq!(b.take(), [(Cause::ContractBroken, B), (Cause::SilentHost, B)]);
}

#[test]
fn a_process_notice_sent_before_the_leave_still_counts_after_it() {
    let mut b = Bench::watching(&[A]);
    b.notice(A, 2, 0, Cause::Left, 0).unwrap();
    b.notice(A, 1, 7, Cause::Killed, 0).unwrap();
    assert_eq!(b.take(), [(Cause::Left, A), (Cause::Killed, A)]);
}

#[test]
fn a_notice_after_the_host_was_judged_is_not_reported_twice() {
    let mut b = Bench::watching(&[A, B]);
    b.d.app_seen(A, 1, 7).unwrap();
    b.crash(A);
    b.run(10 * MS);
    assert_eq!(b.verdicts.last().unwrap().ended_apps, [7]);
    b.take();
    assert_eq!(b.notice(A, 1, 7, Cause::Killed, 0), Err(Refused::Condemned));
    assert_eq!(b.take(), []);
    assert_eq!(b.d.refused(Refused::Condemned), 1);
    assert_eq!(b.d.app_state(A, 7).unwrap().name(), "silent-host");
}

#[test]
fn processes_that_ended_before_are_not_ended_again_by_their_hosts_silence() {
    let mut b = Bench::watching(&[A, B]);
    for app in 1..=3 {
        b.d.app_seen(A, 1, app).unwrap();
    }
    b.notice(A, 1, 1, Cause::Killed, 0).unwrap();
    b.notice(A, 2, 2, Cause::Doomed, 0).unwrap();
    b.crash(A);
    b.run(10 * MS);
    assert_eq!(b.verdicts.last().unwrap().ended_apps, [3]);
}

#[test]
fn nonsense_is_refused_and_counted() {
    let mut b = Bench::watching(&[A]);
    for (n, app, cause) in [
        (0, 1, Cause::Killed),
        (INFERRED | 1, 1, Cause::Killed),
        (1, 0, Cause::Killed),
        (1, 1, Cause::SilentHost),
        (1, 0, Cause::AgentLost),
    ] {
        assert_eq!(b.notice(A, n, app, cause, 0), Err(Refused::Malformed));
    }
    assert_eq!(b.notice(C, 1, 1, Cause::Killed, 0), Err(Refused::UnknownPeer));
    assert_eq!(b.d.refused(Refused::Malformed), 5);
    assert_eq!(b.d.peer_seen(ME, "me", 1, &[CONTRACT; 2], b.now), Err(Refused::OwnNode));
    assert_eq!(b.d.peer_seen(A, "other", 1, &[CONTRACT; 2], b.now), Err(Refused::NameClash));
    assert_eq!(b.d.peer_seen(B, "b", 1, &[Contract::default(); 2], b.now), Err(Refused::Malformed));
    assert_eq!(b.d.peer_seen(A, "host-10", 0, &[CONTRACT; 2], b.now), Err(Refused::OldIncarnation));
    assert_eq!(b.take(), []);
}

#[test]
fn memory_is_bounded_and_the_refusal_says_so() {
    let mut d = Detector::new(Config::new(ME, 1));
    for n in 0..MAX_PEERS as u32 {
        d.peer_seen(1000 + n, &n.to_string(), 1, &[CONTRACT; 2], 1).unwrap();
    }
    assert_eq!(MAX_PEERS, 256);
    assert_eq!(d.peer_seen(5, "x", 1, &[CONTRACT; 2], 1), Err(Refused::TooManyPeers));
    assert_eq!(Refused::TooManyPeers.to_string(), "no room for another host: at most 256 are tracked");
    for app in 1..=MAX_APPS as u32 {
        d.app_seen(1000, 1, app).unwrap();
    }
    assert_eq!(MAX_APPS, 4096);
    assert_eq!(d.app_seen(1000, 1, 5000), Err(Refused::TooManyApps));
    assert_eq!(Refused::TooManyApps.to_string(), "no room for another process: at most 4096 per host are tracked");
    // An ended one makes room, and stays ended.
    let gone = Notice { notice: 1, app: 1, cause: Cause::Killed, grade: Grade::Certain, flags: 0, code: 9, event_ns: 0 };
    d.notice(1000, 1, &gone, 0, 0, 0, 2).unwrap();
    d.app_seen(1000, 1, 5000).unwrap();
    assert_eq!(d.app_state(1000, 1), None);
    d.app_seen(1000, 1, 1).unwrap();
    assert_eq!(d.app_state(1000, 1), None);
    assert_eq!(d.notice(1000, 1, &gone, 0, 0, 0, 2), Ok(Taken::Duplicate));
}

#[test]
fn a_withdrawn_process_is_never_reported() {
    let mut b = Bench::watching(&[A, B]);
    b.d.app_seen(A, 1, 7).unwrap();
    b.d.app_withdrawn(A, 1, 7).unwrap();
    b.crash(A);
    b.run(10 * MS);
    assert!(b.verdicts.iter().all(|v| v.ended_apps.is_empty()));
}

#[test]
fn own_verdicts_and_notices_never_share_an_id() {
    let mut b = Bench::watching(&[A, B]);
    b.crash(A);
    b.run(10 * MS);
    for v in &b.verdicts {
        assert_eq!(v.id.0 >> 32, u64::from(ME));
        assert_ne!(v.id.0 as u32 & INFERRED, 0);
    }
    let ids: std::collections::BTreeSet<_> = b.verdicts.iter().map(|v| v.id).collect();
    assert_eq!(ids.len(), b.verdicts.len());
}
