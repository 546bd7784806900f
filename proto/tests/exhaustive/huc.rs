//! HUC (FiDe Alg. 1, 4): all but one crash, at every point, also between a heartbeat and its sender's knowing that it left.
//!
//! The detector is fail-consistent: a member is told of a crash when everything that the crashed one piggybacked was handed to it, in any order with
//! all else. Not covered: members that join or leave, heartbeats without room, hostile messages.

use fide_proto::consensus::huc::{DIRECT_MAX, Huc, Message};

use crate::exhaustive::explore::{Report, explore};
use crate::exhaustive::messages::{Links, World};

fn check(name: &'static str, world: World<Huc>) -> Report {
    explore(name, &Links::<Message, Huc>::new(world))
}

#[test]
fn fide_alg4_two_members() {
    check("huc N=2 crashes=1 entries=2+2", World::new(Huc::new, &[2, 2], 1)).assert_holds(1_500, 20);
}

#[test]
fn fide_alg4_three_members_one_entry() {
    check("huc N=3 crashes=2 entries=1+0+0", World::new(Huc::new, &[1, 0, 0], 2)).assert_holds(300, 10);
    check("huc N=3 crashes=2 entries=0+0+1", World::new(Huc::new, &[0, 0, 1], 2)).assert_holds(350, 11);
}

#[test]
fn fide_alg4_three_members_two_entries() {
    check("huc N=3 crashes=2 entries=1+1+0", World::new(Huc::new, &[1, 1, 0], 2)).assert_holds(1_500, 17);
    check("huc N=3 crashes=2 entries=0+1+1", World::new(Huc::new, &[0, 1, 1], 2)).assert_holds(1_700, 18);
}

#[test]
fn fide_alg4_three_members_four_entries() {
    check("huc N=3 crashes=2 entries=1+1+2", World::new(Huc::new, &[1, 1, 2], 2)).assert_holds(37_000, 31);
}

/// Bodies go ahead, and only their ids ride.
#[test]
fn fide_alg4_three_members_large_values() {
    let large = |entries: &[u8]| World { bytes: DIRECT_MAX + 1, ..World::new(Huc::new, entries, 2) };
    check("huc N=3 crashes=2 entries=0+0+1, large", large(&[0, 0, 1])).assert_holds(700, 14);
    check("huc N=3 crashes=2 entries=0+1+1, large", large(&[0, 1, 1])).assert_holds(9_000, 24);
}

#[test]
#[ignore = "nightly"]
fn nightly_fide_alg4_four_members() {
    check("huc N=4 crashes=3 entries=1+1+1+1", World::new(Huc::new, &[1, 1, 1, 1], 3)).assert_holds(1_180_000, 42);
}

/// A notice that overtakes a heartbeat: p2 decides alone what p1 has decided otherwise.
#[test]
fn fide_4_2_must_fail_without_fail_consistency() {
    let world = World { notice_overtakes: true, safety_only: true, ..World::new(Huc::new, &[1, 1], 1) };
    check("huc N=2 notices overtake heartbeats", world).assert_fails("agreement");
}

#[test]
fn fide_4_2_must_fail_with_an_inaccurate_detector() {
    let world = World { suspicions: 2, safety_only: true, ..World::new(Huc::new, &[1, 1, 0], 0) };
    check("huc N=3 two false notices", world).assert_fails("agreement");
}
