//! LOWI (Nano-consensus Alg. 3): Δ_I = 2, Δ_W = 3, period 3 ticks; all but one crash.
//!
//! Not covered: clock drift, more than one instance in flight, joins, a horizon beyond two elections.

use fide_proto::consensus::lowi::{Config, Lowi, Message, Start};
use fide_proto::group::{MemberId, MemberSet};

use crate::exhaustive::explore::{Report, explore, explore_deep};
use crate::exhaustive::timed::World;

fn config(paths: usize) -> Config {
    let config = Config { delta_w_ns: 3, drift_ppm: 0, paths, exit_together: false, ..Config::new(3, 2) };
    assert_eq!(config.late_ns(3), Some(1));
    config
}

fn one_path(me: MemberId, members: MemberSet, now: u64) -> Lowi {
    Lowi::new(me, config(1), members, 1, Start::Together, now).expect("these settings are right")
}

fn two_paths(me: MemberId, members: MemberSet, now: u64) -> Lowi {
    Lowi::new(me, config(2), members, 1, Start::Together, now).expect("these settings are right")
}

/// Behind a change of the engine: each begins when it is through.
fn on_message(me: MemberId, members: MemberSet, now: u64) -> Lowi {
    Lowi::new(me, config(1), members, 1, Start::OnMessage, now).expect("these settings are right")
}

fn world(entries: &[u8], crashes: u8) -> World<Message, Lowi> {
    World {
        build: one_path,
        round: |message| if let Message::Round(round) = message { round.round } else { 0 },
        delta_i: 2,
        delta_w: 3,
        late: 1,
        paths: 1,
        entries: entries.to_vec(),
        crashes,
        crash_until: 5,
        horizon: 30,
        notices: false,
        notices_by: None,
        late_copies: 0,
        once: false,
        safety_only: false,
    }
}

fn check(name: &'static str, world: World<Message, Lowi>) -> Report {
    explore(name, &world)
}

#[test]
fn nano_alg3_two_members() {
    check("lowi N=2 crashes=1 entries=1+1", world(&[1, 1], 1)).assert_holds(17_000, 80);
}

#[test]
fn nano_alg3_two_members_two_paths() {
    let world = World { build: two_paths, paths: 2, ..world(&[1, 1], 1) };
    check("lowi N=2 crashes=1 entries=1+1, two paths", world).assert_holds(24_000, 90);
}

#[test]
fn nano_alg3_two_members_crash_reports() {
    let world = World { notices: true, ..world(&[1, 1], 1) };
    check("lowi N=2 crashes=1 entries=1+1, reported", world).assert_holds(60_000, 80);
}

#[test]
fn nano_alg3_three_members() {
    check("lowi N=3 crashes=2 entries=1+1+0", World { crash_until: 4, horizon: 28, ..world(&[1, 1, 0], 2) })
        .assert_holds(200_000, 110);
}

#[test]
#[ignore = "size unknown: never run to its end"]
fn nano_alg3_three_members_two_paths_crash_reports() {
    let world = World { build: two_paths, paths: 2, notices: true, ..world(&[1, 0, 1], 2) };
    check("lowi N=3 crashes=2 entries=1+0+1, two paths, reported", world).assert_holds(1_000_000, 110);
}

/// They begin at any time in a window that is longer than a slot, and are told of crashes at any time in one that is longer still.
fn behind_a_change(entries: &[u8], crashes: u8, window: u64) -> World<Message, Lowi> {
    World {
        build: on_message,
        delta_w: window,
        notices: true,
        notices_by: Some(window + 4),
        crash_until: window + 2,
        horizon: window + 28,
        ..world(entries, crashes)
    }
}

#[test]
fn nano_5_2_two_members_behind_a_change() {
    check("lowi N=2 crashes=1 entries=1+1, behind a change", behind_a_change(&[1, 1], 1, 8)).assert_holds(62_000, 98);
}

#[test]
fn nano_5_2_three_members_behind_a_change() {
    let world = behind_a_change(&[1, 0, 0], 2, 4);
    explore_deep("lowi N=3 crashes=2 entries=1+0+0, behind a change", &world).assert_holds(3_280_000, 129);
}

#[test]
#[ignore = "nightly"]
fn nightly_nano_5_2_three_members_behind_a_change() {
    let world = behind_a_change(&[1, 0, 0], 2, 6);
    explore_deep("lowi N=3 crashes=2 entries=1+0+0, long behind a change", &world).assert_holds(7_130_000, 137);
}

/// All copies of one round late, at one member: what §4.2 rests on.
#[test]
fn nano_4_2_must_fail_with_one_late_packet() {
    let world = World { late_copies: 1, safety_only: true, ..world(&[1, 1], 0) };
    check("lowi N=2 one late packet", world).assert_fails("agreement");
}

/// One copy of two late: whoever misses it stops before it acts (§3.3).
#[test]
fn nano_3_3_one_late_copy_of_two_stops_safely() {
    let world = World { build: two_paths, paths: 2, late_copies: 1, safety_only: true, ..world(&[1, 1], 0) };
    check("lowi N=2 one late copy of two", world).assert_holds(140_000, 90);
}
