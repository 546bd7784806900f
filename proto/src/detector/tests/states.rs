use super::super::state::{TRANSITIONS, draw};
use super::super::*;
use super::harness::*;

#[test]
fn the_drawing_in_the_documentation_is_the_table() {
    let drawn: String = draw().lines().map(|l| format!("//! {l}\n")).collect();
    assert!(include_str!("../mod.rs").contains(&drawn), "put this into the documentation of the module:\n{drawn}");
}

#[test]
fn nothing_leads_back_from_a_verdict_within_an_incarnation() {
    for t in TRANSITIONS {
        assert!(t.new_life || !t.from.is_condemned() || t.to == State::Silent, "{t:?}");
        assert!(!t.new_life || t.to == State::Alive);
    }
    for from in State::ALL {
        assert!(TRANSITIONS.iter().any(|t| t.from == from && t.new_life), "{from} has no way back at all");
        assert!(!from.may_become(from));
    }
}

/// Their numbers have 31 bits, and begin again: an id says with its bit who numbered it, whatever comes before or after.
#[test]
fn numbers_of_inferred_verdicts_begin_again_behind_the_last_and_stay_marked() {
    let mut b = Bench::watching(&[A]);
    b.d.next_inferred = INFERRED - 1;
    let ids = [b.d.next_inferred_id(), b.d.next_inferred_id()];
    assert_eq!(ids.map(|id| id.0 as u32), [u32::MAX, INFERRED]);
}
