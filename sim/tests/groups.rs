//! Groups as agents run them, under faults of hosts, agents and cables ([`fide_sim::groups`]).
//!
//! `FIDE_SEEDS=5000 cargo test -p fide-sim --test sim groups::` runs so many of each profile, from
//! `FIDE_FIRST` on, with `FIDE_ENGINE` and `FIDE_POLICY` alone, if they are given. A failing seed
//! is named; run it alone, with everything that happens printed, by `FIDE_SEED=17 cargo test -p
//! fide-sim --test sim -- groups:: --nocapture within_the_contract`.

use fide_proto::consensus::Kind;
use fide_proto::consensus::policy::Policy;

use fide_sim::groups::{Neglect, Profile, Setting, Totals, run};
use fide_sim::options::{parse_kind, parse_policy};
use fide_sim::run::catching;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn setting(profile: Profile) -> Setting {
    let named = |name: &str| std::env::var(name).ok();
    let engine = named("FIDE_ENGINE").map(|text| parse_kind(&text).unwrap());
    let policy = named("FIDE_POLICY").map(|text| parse_policy(&text).unwrap());
    Setting { engine, policy, ..Setting::of(profile) }
}

fn explore(profile: Profile, default: u64) {
    let setting = setting(profile);
    if let Some(seed) = number("FIDE_SEED") {
        let totals = run(seed, setting, None, true).unwrap_or_else(|violation| panic!("{profile:?}: {violation}"));
        return println!("{totals:?}");
    }
    let (first, seeds) = (number("FIDE_FIRST").unwrap_or(0), number("FIDE_SEEDS").unwrap_or(default));
    let (mut totals, mut failed) = (Totals::default(), Vec::new());
    for seed in first..first + seeds {
        match catching(|| run(seed, setting, None, false)) {
            Ok(Ok(one)) => totals.add(&one),
            Ok(Err(violation)) | Err(violation) => failed.push((seed, violation)),
        }
    }
    println!("{setting:?}: {seeds} seeds, {totals:?}");
    for (seed, violation) in failed.iter().take(20) {
        println!("seed {seed} of {profile:?}: {violation}");
    }
    assert!(failed.is_empty(), "{} of {seeds} seeds; see one: FIDE_SEED={}", failed.len(), failed[0].0);
    assert!(totals.entries > 10 * seeds, "simulations in which nothing happens prove nothing");
}

#[test]
fn within_the_contract() {
    explore(Profile::WithinContract, 60);
}

#[test]
fn members_come_and_go() {
    explore(Profile::Members, 60);
}

#[test]
fn pauses() {
    explore(Profile::Pauses, 60);
}

#[test]
fn cuts() {
    explore(Profile::Cuts, 60);
}

#[test]
fn everything_at_once() {
    explore(Profile::Everything, 100);
}

#[test]
fn outages() {
    explore(Profile::Outages, 60);
}

/// What a larger search has found once.
#[test]
fn seeds_that_found_faults_find_none() {
    let found = [
        (Profile::Everything, 71),
        (Profile::Everything, 625),
        (Profile::Everything, 658),
        (Profile::Everything, 911),
        (Profile::Pauses, 917),
        (Profile::WithinContract, 968),
    ];
    for (profile, seed) in found {
        assert_eq!(run(seed, Setting::of(profile), None, false).err(), None, "seed {seed} of {profile:?}");
    }
}

#[test]
fn a_seed_is_a_simulation() {
    let once = || run(7, Setting::of(Profile::Everything), None, false);
    assert_eq!(once(), once());
}

#[test]
fn a_shell_that_neglects_a_duty_is_found_out() {
    let (huc, fence, trust) = (Some(Kind::Huc), Some(Policy::Fence), Some(Policy::TrustContract));
    let witness = Some(Policy::Witness);
    let of = |profile, engine, policy, hosts| Setting { profile, engine, policy, hosts };
    // The search begins shortly before the first seed that was found.
    let cases = [
        (Neglect::Hold, of(Profile::Pauses, None, trust, None), 440, "agreement"),
        // A side of two, and one of three that goes on.
        (Neglect::Gates, of(Profile::Cuts, None, fence, Some(5)), 230, "agreement"),
        (Neglect::Confirmed, of(Profile::Cuts, huc, fence, None), 30, "agreement"),
        (Neglect::Fates, Setting::of(Profile::WithinContract), 0, "fates"),
        (Neglect::Incarnations, Setting::of(Profile::WithinContract), 0, "termination"),
        (Neglect::Again, Setting::of(Profile::WithinContract), 0, "agreement"),
        (Neglect::Numbers, Setting::of(Profile::WithinContract), 0, "validity"),
        (Neglect::Written, Setting::of(Profile::Outages), 0, "agreement"),
        (Neglect::Witness, of(Profile::Cuts, None, witness, Some(5)), 20, "agreement"),
    ];
    for (neglect, setting, first, property) in cases {
        let breaks = |seed, neglect| catching(|| run(seed, setting, neglect, false)).and_then(|ended| ended).err();
        let finds = |seed: &u64| breaks(*seed, Some(neglect)).is_some_and(|found| found.property == property);
        let found = (first..first + 1_000).find(finds);
        let seed = found.unwrap_or_else(|| panic!("{neglect:?} is not found out by {property} in {setting:?}"));
        println!("{neglect:?}: seed {seed} of {:?}: {property}", setting.profile);
        assert_eq!(breaks(seed, None), None, "{neglect:?}: seed {seed} breaks without it, too");
    }
}
