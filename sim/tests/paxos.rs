//! One-sided Paxos in simulated worlds.

use crate::common;

use fide_proto::consensus::Kind;

#[test]
fn ukharon_alg_5_paxos_agrees_and_terminates_under_every_menu_and_policy() {
    common::every_menu_and_policy(Kind::Paxos);
}
