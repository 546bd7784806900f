use super::super::state::{TRANSITIONS, draw};
use super::super::*;

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
