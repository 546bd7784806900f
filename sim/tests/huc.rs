//! HUC in simulated worlds.

use crate::common;

use fide_proto::consensus::Kind;

#[test]
fn fide_alg_4_huc_agrees_and_terminates_under_every_menu_and_policy() {
    common::every_menu_and_policy(Kind::Huc);
}
