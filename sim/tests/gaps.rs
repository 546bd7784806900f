//! Crashes that fall before, into and behind gaps of agents, hosts and cables.
//!
//! `FIDE_GAPS=20000 cargo test -p fide-sim --test sim gaps::` looks at so many. A million, with its progress (a few minutes on one core):
//! `cargo test -p fide-sim --test sim -- --ignored --nocapture a_million`. One seed with all that happens in it:
//! `FIDE_SEED=17 cargo test -p fide-sim --test sim -- gaps:: --nocapture`.

use fide_sim::gaps::{GAPS, Neglect, Totals, run, story};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn explore(gaps: u64, progress: bool) -> Totals {
    if let Some(seed) = number("FIDE_SEED") {
        let (text, ended) = story(seed, None);
        println!("{text}");
        return ended.unwrap_or_else(|violation| panic!("{violation}"));
    }
    let (mut totals, mut seed, begun) = (Totals::default(), 0, std::time::Instant::now());
    while totals.gaps < gaps {
        match std::panic::catch_unwind(|| run(seed, None)) {
            Ok(Ok(world)) => totals.add(&world),
            Ok(Err(violation)) => {
                panic!("seed {seed}: {violation}\nsee it: FIDE_SEED={seed} cargo test -p fide-sim --test sim gaps::")
            }
            Err(_) => panic!("seed {seed} panics: FIDE_SEED={seed} cargo test -p fide-sim --test sim gaps::"),
        }
        seed += 1;
        if progress && seed % 10_000 == 0 {
            let rate = totals.steps as f64 / begun.elapsed().as_secs_f64();
            println!("{totals:?}, {rate:.0} steps a second");
        }
    }
    println!("{totals:?}");
    totals
}

fn check(gaps: u64, progress: bool) {
    let totals = explore(gaps, progress);
    if number("FIDE_SEED").is_none() {
        assert!(totals.told > totals.gaps, "{totals:?}: worlds in which nobody is told anything prove nothing");
        assert!(totals.unseen * 2 < totals.told && totals.unheard * 4 < totals.told, "{totals:?}");
    }
}

#[test]
fn each_end_is_told_once_by_its_cause_whatever_gap_it_falls_into() {
    check(number("FIDE_GAPS").unwrap_or(8_000), false);
}

#[test]
#[ignore = "some minutes: the command is above"]
fn a_million_gaps() {
    check(1_000_000, true);
}

#[test]
fn a_shell_that_neglects_a_duty_is_found_out() {
    for neglect in Neglect::ALL {
        let found = (0..4_000).find_map(|seed| run(seed, Some(neglect)).err().map(|violation| (seed, violation)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{neglect:?} is not found out within {} gaps", 4_000 * GAPS));
        println!("{neglect:?}: seed {seed}: {violation}");
        assert!(run(seed, None).is_ok(), "{neglect:?}: seed {seed} breaks without it, too");
    }
}
