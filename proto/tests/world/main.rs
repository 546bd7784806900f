//! A seeded world of hosts that run nodes (introductions, tables, the detector): virtual time, two networks, crashes, pauses, cuts.
//!
//! Each seed first makes faults (the safety phase), then lets all of them end and everything heal (the liveness phase). What must hold is in
//! `oracle`. A failing seed is printed; run it alone, with every verdict printed, by
//! `FIDE_SEED=17 cargo test -p fide-proto --test world -- --nocapture`.

mod faults;
mod host;
mod oracle;
mod sim;

use faults::Menu;
use sim::World;

fn run(seed: u64, menu: Menu, verbose: bool) -> World {
    let mut world = World::new(seed, menu, verbose);
    world.run();
    world
}

/// `FIDE_SEED`: this seed alone. `FIDE_SEEDS`: that many (the default takes some seconds).
fn explore(menu: Menu, default: u64) {
    if let Some(seed) = std::env::var("FIDE_SEED").ok().and_then(|s| s.parse().ok()) {
        run(seed, menu, true);
        return;
    }
    let seeds = std::env::var("FIDE_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(default);
    let (mut verdicts, mut packets) = (0, 0);
    for seed in 0..seeds {
        match std::panic::catch_unwind(|| run(seed, menu, false)) {
            Ok(world) => {
                verdicts += world.oracle.verdicts;
                packets += world.packets;
            }
            Err(why) => {
                eprintln!("seed {seed} of {menu:?}: FIDE_SEED={seed} cargo test -p fide-proto --test world -- --nocapture");
                std::panic::resume_unwind(why);
            }
        }
    }
    println!("{menu:?}: {seeds} seeds, {packets} packets, {verdicts} verdicts");
    assert!(verdicts > seeds, "a world in which nothing happens proves nothing");
}

#[test]
fn everything_at_once() {
    explore(Menu::Everything, 800);
}

#[test]
fn fide_3_3_within_the_contract_only_crashes_are_reported() {
    explore(Menu::WithinContract, 400);
}

#[test]
fn issue_2_a_paused_observer_accuses_nobody() {
    explore(Menu::Pauses, 400);
}

#[test]
fn consul_916_a_cut_observer_accuses_nobody() {
    explore(Menu::Cuts, 400);
}

#[test]
fn consul_916_an_observer_whose_cables_are_cut_one_after_the_other_accuses_nobody() {
    explore(Menu::Severed, 3_000);
}

#[test]
fn issue_2_a_path_whose_packets_wait_for_a_busy_processor_is_not_down() {
    explore(Menu::HeldUp, 2_000);
}

#[test]
fn safetimer_4_1_who_loses_packets_itself_accuses_nobody() {
    explore(Menu::Overrun, 2_000);
}

#[test]
fn fide_4_1_crash_storms_are_told_once_each() {
    explore(Menu::Storms, 40);
}

#[test]
fn a_seed_is_a_world() {
    let (a, b) = (run(7, Menu::Everything, false), run(7, Menu::Everything, false));
    assert_eq!((a.packets, a.oracle.verdicts, a.now), (b.packets, b.oracle.verdicts, b.now));
}
