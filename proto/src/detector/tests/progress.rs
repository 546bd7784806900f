use super::super::progress::*;
use super::super::*;
use super::harness::*;
use fide_wire::verdict::ProgressSource;
use proptest::prelude::*;

const COUNTER: ProgressSource = ProgressSource::Counter(0);
const LIMIT: u64 = 80 * MS;

/// A shell on time: looks when asked for, at a counter that moves as long as the test says.
struct Shell {
    p: Progress,
    now: u64,
    count: u64,
    busy: bool,
    findings: Vec<(u64, Finding)>,
}

impl Shell {
    fn new() -> Self {
        let mut p = Progress::new();
        p.watch(7, COUNTER, LIMIT, 1_000 * MS);
        Self { p, now: 1_000 * MS, count: 0, busy: true, findings: Vec::new() }
    }

    fn look(&mut self) {
        while let Some((app, source)) = self.p.poll_look(self.now) {
            let look = Look { count: self.count, busy: self.busy };
            self.findings.extend(self.p.looked(app, source, look, self.now).map(|f| (self.now, f)));
        }
    }

    /// Lets time pass; `moving` ticks every millisecond.
    fn run(&mut self, ns: u64, moving: bool) {
        for _ in 0..ns / MS {
            self.now += MS;
            self.count += u64::from(moving);
            self.look();
        }
    }

    fn take(&mut self) -> Vec<Cause> {
        std::mem::take(&mut self.findings).into_iter().map(|(_, f)| f.cause).collect()
    }
}

#[test]
fn b10_hung_between_the_limit_and_an_eighth_more() {
    for offset in 0..LIMIT / LOOKS / MS {
        let mut s = Shell::new();
        s.run(200 * MS + offset * MS, true);
        let last = s.now;
        s.run(2 * LIMIT, false);
        let [(at, f)] = s.findings[..] else { panic!("{:?}", s.findings) };
        assert_eq!((f.app, f.cause, f.source, f.limit_ns), (7, Cause::Hung, COUNTER, LIMIT));
        assert!(at - last >= LIMIT && at - last <= LIMIT + LIMIT / LOOKS + MS, "{}", at - last);
        assert_eq!(s.p.hung_by(7), Some(COUNTER));
    }
}

#[test]
fn b10_hung_is_told_once_and_the_next_movement_is_progress() {
    let mut s = Shell::new();
    s.run(10 * LIMIT, false);
    assert_eq!(s.take(), [Cause::Hung]);
    s.run(10 * LIMIT, true);
    assert_eq!(s.take(), [Cause::Progressing]);
    s.run(10 * LIMIT, false);
    assert_eq!(s.take(), [Cause::Hung]);
}

#[test]
fn b10_idle_is_not_hung_and_the_next_begin_starts_anew() {
    let mut s = Shell::new();
    s.run(LIMIT / 2, false);
    s.busy = false;
    s.run(10 * LIMIT, false);
    assert_eq!(s.take(), []);
    s.busy = true;
    s.count += 1;
    s.run(LIMIT - MS, false);
    assert_eq!(s.take(), [], "what it stood before it was idle does not count");
    s.run(LIMIT, false);
    assert_eq!(s.take(), [Cause::Hung]);
    s.busy = false;
    s.run(LIMIT, false);
    assert_eq!(s.take(), [Cause::Progressing], "who has nothing to do is not stuck");
}

#[test]
fn b10_the_observers_own_pause_is_not_held_against_a_process() {
    for before in [0, LIMIT / 2, LIMIT - 11 * MS] {
        for pause in [LIMIT / 4, LIMIT, 50 * LIMIT] {
            let mut s = Shell::new();
            s.run(200 * MS, true);
            s.run(before, false);
            s.now += pause;
            s.look();
            assert_eq!(s.take(), [], "before {before} pause {pause}");
            s.count += 1;
            s.run(LIMIT, true);
            assert_eq!(s.take(), [], "it moved as soon as both ran");
        }
    }
    // After a pause as long as the limit it has all its time again; a short one is only not counted.
    let mut s = Shell::new();
    s.run(LIMIT, false);
    s.now += LIMIT + LIMIT / LOOKS;
    s.look();
    s.run(LIMIT - MS, false);
    assert_eq!(s.take(), []);
    s.run(2 * LIMIT / LOOKS, false);
    assert_eq!(s.take(), [Cause::Hung]);
    assert_eq!(s.p.pauses(), 1);
}

#[test]
fn b10_several_sources_make_one_story() {
    let mut p = Progress::new();
    let (a, b) = (ProgressSource::Counter(1), ProgressSource::Write);
    p.watch(7, a, LIMIT, 0);
    p.watch(7, b, LIMIT, 0);
    let still = Look { count: 5, busy: true };
    let mut told = Vec::new();
    let mut run = |p: &mut Progress, from: u64, to: u64, a_look: Look, b_look: Look| {
        for now in (from..to).step_by(MS as usize) {
            while let Some((app, source)) = p.poll_look(now) {
                told.extend(p.looked(app, source, if source == a { a_look } else { b_look }, now).map(|f| (f.cause, f.source)));
            }
        }
        std::mem::take(&mut told)
    };
    assert_eq!(run(&mut p, 0, 2 * LIMIT, still, still), [(Cause::Hung, a)]);
    assert_eq!(run(&mut p, 2 * LIMIT, 3 * LIMIT, Look { count: 6, busy: true }, still), [], "one still stands");
    assert_eq!(p.hung_by(7), Some(b));
    let finding = p.unwatch(7, b).expect("it was the last");
    assert_eq!((finding.cause, finding.source), (Cause::Progressing, b));
    assert_eq!(p.unwatch(7, b), None);
    p.forget(7);
    assert!(!p.is_watched(7) && p.poll_timeout().is_none());
}

#[test]
fn b10_a_new_limit_counts_anew_and_takes_nothing_back() {
    let mut s = Shell::new();
    s.run(2 * LIMIT, false);
    assert_eq!(s.take(), [Cause::Hung]);
    s.p.watch(7, COUNTER, 10 * LIMIT, s.now);
    s.run(LIMIT, false);
    assert_eq!((s.take(), s.p.hung_by(7)), (vec![], Some(COUNTER)), "it has still not moved");
    s.run(2 * LIMIT, true);
    assert_eq!(s.take(), [Cause::Progressing]);
    s.run(9 * LIMIT, false);
    assert_eq!(s.take(), []);
    s.run(3 * LIMIT, false);
    assert_eq!(s.take(), [Cause::Hung]);
}

#[test]
fn f20_a_report_holds_until_it_is_withdrawn() {
    let mut p = Progress::new();
    let f = p.reported(7, true, 5).unwrap();
    assert_eq!((f.cause, f.source), (Cause::Hung, ProgressSource::Report));
    assert_eq!((p.reported(7, true, 6), p.poll_timeout()), (None, None));
    assert_eq!(p.reported(7, false, 7).map(|f| f.cause), Some(Cause::Progressing));
    assert_eq!(p.reported(7, false, 8), None);
}

proptest! {
    /// Whatever a client writes and whenever the shell looks: nobody is hung before its limit, nor while it is idle or moving; the two
    /// findings alternate; and looks are never due in a loop.
    #[test]
    fn b10_nobody_is_hung_before_its_limit(
        steps in prop::collection::vec((1u64..30, any::<bool>(), prop::bool::weighted(0.9), prop::bool::weighted(0.05)), 1..300)
    ) {
        let mut p = Progress::new();
        let (mut now, mut count, mut moved_at, mut hung) = (0u64, 0u64, 0u64, false);
        p.watch(1, COUNTER, LIMIT, now);
        for (ms, tick, busy, jump) in steps {
            now += ms * MS + if jump { 3 * LIMIT } else { 0 };
            if tick {
                count = count.wrapping_mul(31).wrapping_add(1);
            }
            if tick {
                moved_at = now;
            }
            let mut looks = 0;
            while let Some((app, source)) = p.poll_look(now) {
                looks += 1;
                // Idle between two looks, nobody has seen it.
                moved_at = if busy { moved_at } else { now };
                prop_assert_eq!((app, source), (1, COUNTER));
                if let Some(f) = p.looked(app, source, Look { count, busy }, now) {
                    prop_assert_eq!(f.cause, if hung { Cause::Progressing } else { Cause::Hung });
                    hung = !hung;
                    if hung {
                        prop_assert!(busy && now - moved_at >= LIMIT && f.stood_ns >= LIMIT);
                    }
                }
            }
            prop_assert!(looks <= 1);
            prop_assert!(p.poll_timeout().is_some_and(|due| due > now));
        }
    }
}

// ---- on the hosts that are told --------------------------------------------------------------------------------------------------

#[test]
fn b10_a_notice_of_a_hang_is_a_verdict_at_once_and_no_end() {
    let mut b = Bench::watching(&[A]);
    b.d.app_seen(A, 1, 7).unwrap();
    assert_eq!(b.notice(A, 1, 7, Cause::Hung, 0), Ok(Taken::New));
    let v = &b.verdicts[0];
    assert_eq!((v.id, v.cause, v.app), (VerdictId::new(A, 1), Cause::Hung, 7));
    assert!(b.d.app_state(A, 7).unwrap().is_running() && b.d.app_state(A, 7).unwrap().name() == "hung");
    assert_eq!(b.notice(A, 2, 7, Cause::Progressing, 0), Ok(Taken::New));
    assert_eq!(b.d.app_state(A, 7), Some(AppState::Alive));
    assert_eq!(b.take(), [(Cause::Hung, A), (Cause::Progressing, A)]);
    assert!(matches!(b.notice(A, 3, 0, Cause::Hung, 0), Err(Refused::Malformed)), "an agent is never hung to others");
}

#[test]
fn b10_of_two_notices_the_one_with_the_higher_number_holds() {
    let mut b = Bench::watching(&[A]);
    b.notice(A, 3, 7, Cause::Hung, 0).unwrap();
    for number in [2, 1, 3] {
        let cause = if number == 2 { Cause::Progressing } else { Cause::Hung };
        assert_eq!(b.notice(A, number, 7, cause, 0), Ok(Taken::Duplicate));
    }
    assert_eq!(b.take(), [(Cause::Hung, A)]);
}

#[test]
fn b10_a_hung_process_can_still_crash_and_nothing_revives_it() {
    let mut b = Bench::watching(&[A]);
    b.notice(A, 1, 7, Cause::Hung, 0).unwrap();
    b.notice(A, 3, 7, Cause::Doomed, 0).unwrap();
    assert_eq!(b.notice(A, 2, 7, Cause::Progressing, 0), Ok(Taken::Duplicate));
    b.notice(A, 4, 7, Cause::Killed, Notice::CONFIRMS).unwrap();
    assert_eq!(b.notice(A, 5, 7, Cause::Hung, 0), Ok(Taken::Duplicate));
    assert_eq!(b.take(), [(Cause::Hung, A), (Cause::Doomed, A), (Cause::Killed, A)]);
}

#[test]
fn b10_a_hung_process_ends_with_its_host_and_is_unobserved_without_its_agent() {
    let mut b = Bench::watching(&[A, B]);
    b.notice(A, 1, 7, Cause::Hung, 0).unwrap();
    b.crash(A);
    b.run(20 * MS);
    assert_eq!(b.d.app_state(A, 7).unwrap().name(), "silent-host");
    b.notice(B, 1, 8, Cause::Hung, 0).unwrap();
    b.notice(B, 2, 0, Cause::Left, 0).unwrap();
    assert_eq!(b.d.app_state(B, 8), Some(AppState::Unobserved));
}
