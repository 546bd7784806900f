//! LOWI in simulated worlds.

use crate::common;

use fide_proto::consensus::Kind;

#[test]
fn nano_alg_3_lowi_agrees_and_terminates_under_every_menu_and_policy() {
    common::every_menu_and_policy(Kind::Lowi);
}
