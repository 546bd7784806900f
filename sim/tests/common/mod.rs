//! Many seeds of one engine.

use std::num::NonZero;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;

use fide_proto::consensus::Kind;
use fide_sim::{Menu, Options, Policy, run};

/// Worlds that are known to end badly, one in some 20,000. A host resumes at the moment at which some give it up and others do not; a
/// member that is joining is among those who did, waits for a fence that nobody asks for, and all wait for that member.
const OPEN: [(Kind, Policy, Menu, u64); 1] = [(Kind::Huc, Policy::Fence, Menu::Pauses, 135)];

/// `FIDE_SEED`: this seed alone. `FIDE_SEEDS`: that many for each policy, over the menus in which
/// it promises something; where nothing is promised, a tenth: a core that panics is found there
/// too. A million others run every night (`scripts/nightly`).
pub fn every_menu_and_policy(engine: Kind) {
    let one: Option<u64> = std::env::var("FIDE_SEED").ok().and_then(|s| s.parse().ok());
    let seeds: u64 = std::env::var("FIDE_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10_000);
    // Each engine is a test binary with one test, and binaries run one after the other.
    let jobs = available_parallelism().map_or(1, NonZero::get).min(4);
    for policy in Policy::ALL.into_iter().filter(|policy| policy.suits(engine)) {
        let (mut done, mut entries, mut told) = (0, 0, 0);
        let options = |menu| Options { engine, policy, menu, hosts: None };
        let promising = Menu::ALL.into_iter().filter(|menu| options(*menu).promise().safe).count() as u64;
        for options in Menu::ALL.map(options) {
            let share = if options.promise().safe { seeds.div_ceil(promising) } else { seeds / promising / 10 };
            let range = one.map_or(0..share, |seed| seed..seed + 1);
            let totals = run::explore(options, range, jobs, &AtomicBool::new(false), &run::Progress::default());
            let is_open = |seed: u64| OPEN.contains(&(engine, options.policy, options.menu, seed));
            if let Some((seed, violation)) = totals.failures.iter().find(|(seed, _)| one.is_some() || !is_open(*seed)) {
                let Options { menu, .. } = options;
                let how = format!("--engine {engine} --policy {policy} --menu {menu}");
                panic!("seed {seed} of {options}: {violation}\nsee it: fide sim replay {seed} {how}");
            }
            done += if options.promise().safe { totals.seeds } else { 0 };
            entries += totals.entries;
            told += totals.crashes_told;
        }
        println!("{engine}, {policy}: {done} seeds, {entries} entries, {told} crashes told");
        assert!(one.is_some() || done >= seeds, "{done} of {seeds}");
        assert!(one.is_some() || (entries > done && told > done / 2), "worlds in which nothing happens prove nothing");
    }
}
