//! Clocks of the engine that must not grow. Without a Verilator model these are *ignored*: `make rtl` builds one.

use fide_rtl::figures::{accepted, failover, generated, params, proposal_to_decision, request_to_proposal};
use fide_rtl::model::Library;

#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn b8_clocks_of_small_packets_keep_their_bars() {
    let library = Library::from_env().unwrap();
    let built = params(library);
    let bar = if built.tag_words == 0 { 12 } else { 40 };
    let decided = proposal_to_decision(library, 3, 16, true).unwrap();
    let proposed = request_to_proposal(library, 3, 16).unwrap();
    // Copies that come in the same clock are matched one after the other.
    let together = proposal_to_decision(library, 3, 16, false).unwrap();
    println!("{built:?}: {decided} or {together} clocks to the decision, {proposed} to the proposal");
    assert!(built.bits < 512 || together <= bar, "{together} clocks, and the bar is {bar}");
    assert!((decided + 1..=decided + 4).contains(&together), "{together} clocks, and {decided} apart");
    // The same in a group of another size, and more for what is longer.
    assert_eq!(proposal_to_decision(library, 5, 16, true).unwrap(), decided);
    assert!(proposal_to_decision(library, 3, 984, true).unwrap() >= decided);
    // Without tags a proposal does not wait for its last word.
    let long = request_to_proposal(library, 1, 984).unwrap();
    assert!(if built.tag_words == 0 { long == proposed } else { long > proposed }, "{long} clocks, and {proposed} for 16 bytes");
}

#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn b8_rates_and_failover_are_those_of_the_design() {
    let library = Library::from_env().unwrap();
    let built = params(library);
    let (frames, clocks) = accepted(library, 64).unwrap();
    assert!(frames > 0 && frames <= clocks, "{frames} frames in {clocks} clocks");
    assert!(built.tag_words != 0 || built.bits < 512 || frames == clocks, "without tags a packet each clock");
    let (frames, clocks) = generated(library).unwrap();
    assert!(frames > 0 && frames <= clocks, "{frames} frames in {clocks} clocks");
    assert!(built.tag_words != 0 || built.bits < 512 || frames == clocks, "{frames} frames in {clocks} clocks without tags");
    for reported in [false, true] {
        let failover = failover(library, 3, reported).unwrap();
        let own = failover.clocks.checked_sub(failover.configured);
        assert!(own.is_some_and(|own| own < 100), "{failover:?}: what is not configured is the engine's");
    }
}
