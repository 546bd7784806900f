//! HSUC (FiDe Alg. 3): all but one crash, at every point.
//!
//! Not covered: members that join or leave, more entries than fit into a batch, hostile messages (the core's own tests have these).

use fide_proto::consensus::hsuc::{Hsuc, Message};

use crate::exhaustive::explore::{Report, explore};
use crate::exhaustive::messages::{Links, World};

fn check(name: &'static str, world: World<Hsuc>) -> Report {
    explore(name, &Links::<Message, Hsuc>::new(world))
}

#[test]
fn fide_alg3_two_members() {
    check("hsuc N=2 crashes=1 entries=2+2", World::new(Hsuc::new, &[2, 2], 1)).assert_holds(1_300, 20);
}

#[test]
fn fide_alg3_three_members_one_instance() {
    check("hsuc N=3 crashes=2 entries=1+0+0", World::new(Hsuc::new, &[1, 0, 0], 2)).assert_holds(450, 14);
    check("hsuc N=3 crashes=2 entries=0+0+1", World::new(Hsuc::new, &[0, 0, 1], 2)).assert_holds(900, 19);
}

#[test]
fn fide_alg3_three_members_two_instances() {
    check("hsuc N=3 crashes=2 entries=1+1+0", World::new(Hsuc::new, &[1, 1, 0], 2)).assert_holds(4_400, 23);
    check("hsuc N=3 crashes=2 entries=2+0+0", World::new(Hsuc::new, &[2, 0, 0], 2)).assert_holds(1_600, 22);
    check("hsuc N=3 crashes=2 entries=0+1+1", World::new(Hsuc::new, &[0, 1, 1], 2)).assert_holds(9_000, 29);
}

#[test]
fn fide_alg3_three_members_three_instances() {
    check("hsuc N=3 crashes=2 entries=1+1+1", World::new(Hsuc::new, &[1, 1, 1], 2)).assert_holds(56_000, 36);
}

#[test]
#[ignore = "nightly"]
fn nightly_fide_alg3_four_members() {
    check("hsuc N=4 crashes=3 entries=1+1+0+0", World::new(Hsuc::new, &[1, 1, 0, 0], 3)).assert_holds(740_000, 39);
}

/// One notice about somebody who lives is too much: nothing but accuracy, or a fence that makes it true, keeps them together.
#[test]
fn fide_4_1_must_fail_with_an_inaccurate_detector_and_no_fence() {
    let world = World { suspicions: 2, safety_only: true, ..World::new(Hsuc::new, &[1, 1], 0) };
    check("hsuc N=2 two false notices", world).assert_fails("agreement");
    let world = World { suspicions: 2, safety_only: true, ..World::new(Hsuc::new, &[1, 1, 0], 0) };
    check("hsuc N=3 two false notices", world).assert_fails("agreement");
}
