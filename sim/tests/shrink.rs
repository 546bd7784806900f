//! Failing plans are made small: a group that trusts a contract which does not hold.

use fide_proto::consensus::Kind;
use fide_sim::{Menu, Options, Plan, Policy, run, shrink};

#[test]
fn a_disagreement_beyond_the_contract_shrinks_to_what_it_needs() {
    let options = Options { engine: Kind::Hsuc, policy: Policy::TrustContract, menu: Menu::BeyondContract, hosts: Some(3) };
    let failing = (0..100_000).map(|seed| Plan::generate(seed, options)).filter(|plan| plan.steps.len() >= 5);
    let plan = failing.into_iter().find(|plan| run::breaks(plan, "agreement").is_some()).expect("it relies on the contract");
    let small = shrink::shrink_to(&plan, "agreement").expect("it fails");
    assert!(small.is_minimum, "{} worlds", small.runs);
    assert_eq!(small.violation.property, "agreement");
    // A cut or a pause, and a value on each side, or less: a leave is proposed by itself.
    assert!(small.plan.steps.len() <= 3 && small.plan.steps.len() < plan.steps.len(), "{:#?}", small.plan);
    assert_eq!(run::breaks(&small.plan, "agreement").as_ref(), Some(&small.violation), "it replays");
    for simpler in shrink::simpler(&small.plan) {
        for draw in shrink::draws(&simpler) {
            assert!(run::breaks(&draw, "agreement").is_none(), "{draw:#?}");
        }
    }
    assert_eq!(shrink::shrink_to(&plan, "agreement"), Some(small), "the same every time");
}

#[test]
fn what_holds_is_not_shrunk() {
    assert_eq!(shrink::shrink(&Plan::generate(1, Options::default())), None);
    assert_eq!(shrink::shrink_to(&Plan::generate(1, Options::default()), "agreement"), None);
}
