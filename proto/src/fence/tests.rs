//! Worlds of one sender and its observers: nobody gives a verdict while the sender may send. And where an assumption is taken away, somebody
//! does.

use super::*;
use crate::detector::{self, Action, Detector, PathArrival};
use fide_wire::verdict::{Cause, Contract, FencePromise};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const DRIFT_PPM: u64 = 10_000;

fn config(mode: FenceMode) -> Config {
    Config { timeout_ns: 50 * MS, margin_ns: 5 * MS, drift_ppm: DRIFT_PPM, mode, paths: Paths::Both, configured: [true; PATHS] }
}

const ALL: FenceMode = FenceMode::Acknowledged(Confirmers::All);
const MAJORITY: FenceMode = FenceMode::Acknowledged(Confirmers::Majority);

#[test]
fn t_valid_counts_from_the_reading_before_the_sending() {
    let mut rule = Rule::new(config(FenceMode::Sent));
    let valid_for = rule.config().valid_for_ns();
    assert_eq!(valid_for, 44_504_950, "50 ms ÷ 1.01 − 5 ms");
    assert_eq!(rule.valid_ns(), None);
    rule.sent(1, 1_000, 7, [true; PATHS]);
    assert_eq!(rule.completed([6, 7], 2_000), None, "one copy is still under way");
    assert_eq!(rule.completed([7, 7], 3_000), Some(Extension { known_ns: 3_000, valid_ns: 1_000 + valid_for }));
    assert_eq!(rule.completed([7, 7], 4_000), None, "nothing new");
    assert_eq!(rule.extensions(), (1, None));
}

#[test]
fn one_completed_copy_is_enough_where_the_policy_says_so() {
    let copies = [true, false]; // the second path is down
    let mut both = Rule::new(config(FenceMode::Sent));
    both.sent(1, 0, 1, copies);
    assert_eq!(both.completed([9, 9], 1), None);
    let mut one = Rule::new(Config { paths: Paths::One, ..config(FenceMode::Sent) });
    one.sent(1, 0, 1, copies);
    assert!(one.completed([1, 0], 1).is_some());
    let mut single = Rule::new(Config { configured: [true, false], ..config(FenceMode::Sent) });
    single.sent(1, 0, 1, copies);
    assert!(single.completed([1, 0], 1).is_some(), "both of one path is that path");
}

#[test]
fn those_alone_are_waited_for_that_have_confirmed_nothing_for_a_timeout() {
    let mut rule = Rule::new(config(MAJORITY));
    rule.members([1, 2, 3]);
    let awaited = |rule: &Rule, now_ns: u64| rule.awaited(now_ns).collect::<Vec<_>>();
    assert_eq!(awaited(&rule, 0), [1, 2, 3]);
    rule.sent(1, 0, 1, [true; PATHS]);
    rule.confirmed(1, 1, 10);
    assert!(rule.confirmed(2, 1, 20).is_some());
    // Also right behind an extension, when nothing that was sent before counts any more.
    assert_eq!(awaited(&rule, 20), [3]);
    rule.sent(2, 30 * MS, 2, [true; PATHS]);
    rule.confirmed(1, 2, 31 * MS);
    rule.confirmed(2, 1, 40 * MS);
    assert_eq!(awaited(&rule, 60 * MS), [2, 3], "what it had confirmed before is nothing new");
}

#[test]
fn what_is_known_too_late_closes_for_good() {
    let mut rule = Rule::new(config(FenceMode::Sent));
    rule.sent(1, 0, 1, [true; PATHS]);
    let valid_ns = rule.completed([1, 1], 10).unwrap().valid_ns;
    rule.sent(2, valid_ns - 10, 2, [true; PATHS]);
    let mut in_time = rule.clone();
    assert!(in_time.completed([2, 2], valid_ns).is_some(), "at t_valid itself is in time");
    assert_eq!(rule.completed([2, 2], valid_ns + 1), None);
    assert!(rule.is_closed());
    rule.sent(3, valid_ns + 2, 3, [true; PATHS]);
    assert_eq!(rule.completed([3, 3], valid_ns + 3), None);
    let again = rule.recover(valid_ns + 100);
    assert_eq!(again, valid_ns + 100 + rule.config().valid_for_ns());
    rule.sent(4, valid_ns + MS, 4, [true; PATHS]);
    assert!(rule.completed([4, 4], valid_ns + 2 * MS).is_some());
}

#[test]
fn who_must_confirm() {
    let with = |mode, members: &[u32]| {
        let mut rule = Rule::new(config(mode));
        rule.members(members.iter().copied());
        rule
    };
    for (members, needed) in [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
        let nodes: Vec<u32> = (1..=members).collect();
        assert_eq!(with(MAJORITY, &nodes).needed(), needed, "{members} others");
    }
    let mut all = with(ALL, &[1, 2]);
    all.sent(1, 0, 1, [true; PATHS]);
    assert!(all.confirmed(1, 1, 5).is_some(), "who never confirmed anything does not observe");
    all.sent(2, 10 * MS, 2, [true; PATHS]);
    assert!(all.confirmed(2, 1, 11 * MS).is_none());
    assert!(all.confirmed(1, 2, 12 * MS).is_none(), "2 observes now, and has not confirmed it");
    assert!(all.confirmed(2, 2, 13 * MS).is_some());
    all.members([1]);
    all.sent(3, 20 * MS, 3, [true; PATHS]);
    assert!(all.confirmed(2, 3, 21 * MS).is_none(), "it is gone");
    assert!(all.confirmed(1, 3, 22 * MS).is_some());
    let mut fixed = with(FenceMode::Acknowledged(Confirmers::AtLeast(2)), &[1]);
    fixed.sent(1, 0, 1, [true; PATHS]);
    assert!(fixed.confirmed(1, 1, 1).is_none() && fixed.alone(1).is_none());
}

#[test]
fn alone_is_only_who_was_not_alone_before() {
    let mut rule = Rule::new(config(MAJORITY));
    rule.sent(1, 0, 1, [true; PATHS]);
    assert_eq!(rule.alone(1), None, "it may have started into a partition");
    rule.members([1]);
    assert!(rule.confirmed(1, 1, 2).is_some());
    rule.sent(2, 10 * MS, 2, [true; PATHS]);
    assert_eq!(rule.alone(11 * MS), None);
    rule.members([]);
    assert!(rule.alone(11 * MS).is_some(), "the others have left");
}

#[test]
fn a_thousand_beats_a_timeout_are_enough() {
    let mut rule = Rule::new(config(ALL));
    rule.members([1]);
    for number in 1..=200_000u64 {
        rule.sent(number, number * 1_000, number, [true; PATHS]);
    }
    assert!(rule.beats.len() <= 1100, "{}", rule.beats.len());
    let extension = rule.confirmed(1, 200_000, 200_001_000).unwrap();
    assert!(200_000_000 + rule.config().valid_for_ns() - extension.valid_ns < 100_000);
}

// ---------------------------------------------------------------- worlds

/// What may happen to a heartbeat on its way to an observer, and to the confirmation on its way back.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// `None`: lost.
    there_ns: Option<u64>,
    back_ns: Option<u64>,
}

/// One heartbeat of a world.
#[derive(Clone, Debug)]
struct Step {
    /// How long the sender does not run before it, real time.
    pause_ns: u64,
    /// From the reading of its clock to the sending, and on to the completion.
    sending_ns: u64,
    completing_ns: u64,
    ways: Vec<Way>,
}

fn step(observers: usize, slow_ns: u64, loses: bool) -> impl Strategy<Value = Step> {
    let pause = prop_oneof![8 => Just(MS), 1 => 0..60 * MS, 2 => 40 * MS..50 * MS];
    let time = move |most: u64| prop_oneof![4 => 0..most.min(100_000) + 1, 1 => 0..most + 1];
    let one = move |most: u64| {
        let lost = if loses { 1 } else { 0 };
        prop_oneof![6 => time(most).prop_map(Some), lost => Just(None)]
    };
    let way = (one(slow_ns), one(60 * MS)).prop_map(|(there_ns, back_ns)| Way { there_ns, back_ns });
    (pause, time(20 * MS), time(20 * MS), proptest::collection::vec(way, observers))
        .prop_map(|(pause_ns, sending_ns, completing_ns, ways)| Step { pause_ns, sending_ns, completing_ns, ways })
}

/// A clock that is off, and too fast or too slow within the bound: any two of them within `DRIFT_PPM`.
#[derive(Clone, Copy, Debug)]
struct Clock {
    offset_ns: u64,
    fast_ppm: u64,
}

impl Clock {
    fn at(self, real_ns: u64) -> u64 {
        self.offset_ns + (u128::from(real_ns) * u128::from(1_000_000 + self.fast_ppm) / 1_000_000) as u64
    }
}

fn clock() -> impl Strategy<Value = Clock> {
    (0..1u64 << 40, prop_oneof![Just(0), Just(DRIFT_PPM), 0..DRIFT_PPM])
        .prop_map(|(offset_ns, fast_ppm)| Clock { offset_ns, fast_ppm })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives { observer: usize, number: u64, back_ns: Option<u64> },
    Returns { observer: usize, number: u64 },
    Completes { call: u64 },
}

/// What came of a world.
struct Outcome {
    /// When, in real time, each observer gave its verdict.
    verdicts: Vec<Option<u64>>,
    /// The gate's t_valid at each moment that it was changed: (real time of the change, t_valid by the sender's clock).
    moves: Vec<(u64, u64)>,
}

/// Plays a world in real time, until everybody has given up or nothing is left to happen.
fn play(config: Config, sender: Clock, observers: &[Clock], steps: &[Step]) -> Outcome {
    let mut rule = Rule::new(config);
    rule.members(0..observers.len() as u32);
    let mut future: Vec<(u64, Event)> = Vec::new();
    let mut moves = Vec::new();
    // Arrivals as each observer's clock stamped them.
    let mut last: Vec<Option<u64>> = vec![None; observers.len()];
    let mut verdicts: Vec<Option<u64>> = vec![None; observers.len()];
    let mut beats: Vec<(u64, u64, &Step)> = Vec::new();
    let mut real = 0;
    for (i, step) in steps.iter().enumerate() {
        real += step.pause_ns;
        beats.push((real, i as u64 + 1, step));
        real += step.sending_ns;
    }
    let end = real + 500 * MS;
    let mut beats = beats.into_iter().peekable();
    let mut now = 0;
    while now < end {
        // The next thing: a beat, something under way, or an observer's patience.
        let patience = (0..observers.len()).filter(|o| verdicts[*o].is_none()).filter_map(|o| {
            let due = last[o]? + config.timeout_ns;
            // The first real moment at which its clock is past it.
            let mut at =
                (u128::from(due - observers[o].offset_ns) * 1_000_000 / u128::from(1_000_000 + observers[o].fast_ppm)) as u64;
            while observers[o].at(at) <= due {
                at += 1;
            }
            Some((at, o))
        });
        let patience = patience.min();
        future.sort_unstable();
        let under_way = future.first().copied();
        let beat = beats.peek().map(|(at, ..)| *at);
        let next = [patience.map(|p| p.0), under_way.map(|u| u.0), beat].into_iter().flatten().min();
        let Some(next) = next else { break };
        now = next.max(now);
        if beat == Some(next) {
            let (at, number, step) = beats.next().unwrap();
            let sent = at + step.sending_ns;
            rule.sent(number, sender.at(at), number, [true; PATHS]);
            future.push((sent + step.completing_ns, Event::Completes { call: number }));
            for (observer, way) in step.ways.iter().enumerate().take(observers.len()) {
                if let Some(there) = way.there_ns {
                    future.push((sent + there, Event::Arrives { observer, number, back_ns: way.back_ns }));
                }
            }
        } else if under_way.is_some_and(|u| u.0 == next) {
            let (at, event) = future.remove(0);
            let known = sender.at(at);
            let extension = match event {
                // An observer that has given its verdict hears and confirms nothing any more.
                Event::Arrives { observer, number, back_ns } if verdicts[observer].is_none() => {
                    last[observer] = last[observer].max(Some(observers[observer].at(at)));
                    future.extend(back_ns.map(|back| (at + back, Event::Returns { observer, number })));
                    None
                }
                Event::Arrives { .. } => None,
                Event::Returns { observer, number } => rule.confirmed(observer as u32, number, known),
                Event::Completes { call } => rule.completed([call; PATHS], known),
            };
            if let Some(e) = extension {
                assert!(e.known_ns <= e.valid_ns);
                moves.push((at, e.valid_ns));
            }
        } else if let Some((at, observer)) = patience {
            verdicts[observer] = Some(at);
        }
    }
    Outcome { verdicts, moves }
}

impl Outcome {
    /// Whether the sender may send at this real moment, or may ever do so later.
    fn open_at(&self, sender: Clock, real_ns: u64) -> bool {
        self.moves.iter().any(|(_, valid)| *valid >= sender.at(real_ns))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// The promise in mode sent: whatever pauses, as long as what left arrives within the margin.
    #[test]
    fn safetimer_4_2_no_verdict_while_the_sender_may_send_sent(
        sender in clock(), observer in clock(),
        steps in proptest::collection::vec(step(1, 5 * MS, false), 1..60),
    ) {
        let outcome = play(config(FenceMode::Sent), sender, &[observer], &steps);
        if let Some(at) = outcome.verdicts[0] {
            prop_assert!(!outcome.open_at(sender, at), "verdict at {at}, gate {:?}", outcome.moves);
        }
    }

    /// And in mode acknowledged by all: any delay, any loss, both ways; for every observer whose confirmation came through once.
    #[test]
    fn safetimer_4_2_no_verdict_while_the_sender_may_send_acknowledged_by_all(
        sender in clock(), observers in proptest::collection::vec(clock(), 1..4),
        steps in proptest::collection::vec(step(3, 200 * MS, true), 1..60),
    ) {
        let steps: Vec<Step> = std::iter::once(quiet(3)).chain(steps).collect(); // so that all have confirmed once
        let outcome = play(config(ALL), sender, &observers, &steps);
        for verdict in outcome.verdicts.iter().flatten() {
            prop_assert!(!outcome.open_at(sender, *verdict), "verdict at {verdict}, gate {:?}", outcome.moves);
        }
    }

    /// By a majority: when so many have given a verdict that the others are too few to confirm, the gate is shut.
    #[test]
    fn a_majority_of_verdicts_finds_the_gate_shut(
        sender in clock(), observers in proptest::collection::vec(clock(), 2..5),
        steps in proptest::collection::vec(step(4, 200 * MS, true), 1..60),
    ) {
        let steps: Vec<Step> = std::iter::once(quiet(4)).chain(steps).collect(); // armed, before anybody knows of the promise
        let outcome = play(config(MAJORITY), sender, &observers, &steps);
        let mut at: Vec<u64> = outcome.verdicts.iter().flatten().copied().collect();
        at.sort_unstable();
        let confirm = observers.len().div_ceil(2);
        if let Some(last) = at.get(observers.len() - confirm) {
            prop_assert!(!outcome.open_at(sender, *last), "verdicts at {at:?}, gate {:?}", outcome.moves);
        }
    }
}

fn quiet(ways: usize) -> Step {
    Step { pause_ns: MS, sending_ns: 0, completing_ns: 0, ways: vec![Way { there_ns: Some(0), back_ns: Some(0) }; ways] }
}

const EXACT: Clock = Clock { offset_ns: 0, fast_ppm: 0 };

#[test]
fn a_margin_below_the_time_under_way_must_fail() {
    // Held up until just before t_valid, then one heartbeat that takes longer than the margin.
    let slow = Step { pause_ns: 44 * MS, ways: vec![Way { there_ns: Some(8 * MS), back_ns: None }], ..quiet(1) };
    let steps = [quiet(1), slow];
    let outcome = play(config(FenceMode::Sent), EXACT, &[EXACT], &steps);
    assert!(outcome.open_at(EXACT, outcome.verdicts[0].unwrap()), "the verdict is wrong, and nothing stops the sender");
    let wide = Config { margin_ns: 8 * MS, ..config(FenceMode::Sent) };
    let outcome = play(wide, EXACT, &[EXACT], &steps);
    assert!(!outcome.open_at(EXACT, outcome.verdicts[0].unwrap()));
}

#[test]
fn a_partition_must_fail_in_mode_sent_and_not_when_acknowledged() {
    let cut = Step { ways: vec![Way { there_ns: None, back_ns: None }], ..quiet(1) };
    let steps: Vec<Step> = std::iter::once(quiet(1)).chain(std::iter::repeat_n(cut, 100)).collect();
    let outcome = play(config(FenceMode::Sent), EXACT, &[EXACT], &steps);
    assert!(outcome.open_at(EXACT, outcome.verdicts[0].unwrap()));
    for mode in [ALL, MAJORITY] {
        let outcome = play(config(mode), EXACT, &[EXACT], &steps);
        assert!(!outcome.open_at(EXACT, outcome.verdicts[0].unwrap()), "{mode}");
    }
}

#[test]
fn a_clock_beyond_the_bound_must_fail() {
    // Without a margin of another kind, and with an observer whose clock is three times too fast.
    let config = Config { margin_ns: 0, ..config(ALL) };
    let fast = Clock { offset_ns: 0, fast_ppm: 3 * DRIFT_PPM };
    let outcome = play(config, EXACT, &[fast], &[quiet(1)]);
    assert!(outcome.open_at(EXACT, outcome.verdicts[0].unwrap()));
    let within = Clock { offset_ns: 0, fast_ppm: DRIFT_PPM };
    let outcome = play(config, EXACT, &[within], &[quiet(1)]);
    assert!(!outcome.open_at(EXACT, outcome.verdicts[0].unwrap()));
}

/// The observer's half is the detector's: see there that it waits.
#[test]
fn the_detector_keeps_the_promise() {
    const NODE: u32 = 7;
    let contract = Contract { period_ns: MS, size_max: 0, lambda_min_ns: 10_000, delta_max_ns: 100_000 };
    for promised in [false, true] {
        let mut d = Detector::new(detector::Config::new(1, 1));
        d.offer_barriers(false);
        d.peer_seen(NODE, "a", 1, &[contract; PATHS], MS).unwrap();
        let promise = FencePromise { timeout_ns: 50 * MS, mode: FenceMode::Sent, host: true };
        d.fence(NODE, 1, promised.then_some(promise)).unwrap();
        let row = PathArrival { last_number: 1, last_arrival_ns: 2 * MS, ..PathArrival::default() };
        let mut verdicts = Vec::new();
        for now in (2 * MS..200 * MS).step_by(100_000) {
            d.arrivals(NODE, 1, &[row; PATHS]).unwrap_or_default();
            d.tick(now);
            while let Some(action) = d.poll_action() {
                if let Action::Verdict(v) = action {
                    verdicts.push(*v);
                }
            }
        }
        let of = |cause| verdicts.iter().find(|v| v.cause == cause).unwrap();
        assert!(of(Cause::ContractBroken).at_ns < 6 * MS, "as fast as ever");
        let silent = of(Cause::SilentHost);
        assert_eq!(silent.evidence.fenced, promised);
        assert_eq!(silent.evidence.fence, promised.then_some(promise));
        if promised {
            assert!(silent.at_ns > 52 * MS && silent.at_ns < 56 * MS, "{}", silent.at_ns);
        } else {
            assert!(silent.at_ns < 10 * MS, "{}", silent.at_ns);
        }
    }
}
