//! The engine in hardware against the software core. Without a Verilator model these are *ignored*:
//! `make rtl` builds one.

use fide_proto::consensus::lowi;
use fide_rtl::cosim::{Cosim, Item, Schedule, run_many, run_shared};
use fide_rtl::model::Library;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_hardware_is_the_software_core_on_seeded_schedules() {
    let library = Library::from_env().unwrap();
    let (from, count) = (number("FIDE_RTL_FROM", 0), number("FIDE_RTL_SCHEDULES", 2_000));
    let begun = std::time::Instant::now();
    let result = if let Some(waveform) = std::env::var_os("FIDE_RTL_WAVEFORM") {
        let mut cosim = Cosim::new(library);
        cosim.waveform = Some(waveform.into());
        run_many(&mut cosim, from, count)
    } else {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8) as u64);
        run_shared(library, threads.min(count.max(1)), from, count)
    };
    let report = result.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{count} schedules, {:.1} s: {report:?}", begun.elapsed().as_secs_f64());
    if count >= 2_000 {
        assert!(report.decisions > count && report.rounds > count, "{report:?}");
        for why in ["network fault", "missing broadcast", "expelled", "left"] {
            assert!(report.halts.contains_key(why), "no schedule ends in {why}: {report:?}");
        }
    }
}

/// The leader's copies come to its successor later than Δ_I, and the leader crashes: the others have decided what the successor
/// does not know, and it decides something else for the same instance. Nothing can make up for that (`lowi.rs`); a check that
/// does not see it is none.
#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_must_fail_where_copies_are_late_and_the_leader_crashes() {
    let mut cosim = Cosim::new(Library::from_env().unwrap());
    let mut late = Schedule {
        seed: 1,
        config: lowi::Config {
            delta_w_ns: 2_400,
            drift_ppm: 0,
            batch_entries_max: 1,
            batch_bytes_max: 60,
            exit_together: false,
            rounds_max: 4,
            ..lowi::Config::new(2_000, 1_200)
        },
        members: 3,
        hardware: 0b111,
        delay: 20,
        together: true,
        clocks: 5_000,
        items: vec![
            Item::Request { at: 1_300, at_rank: 0, bytes: 8 },
            // It leads by then.
            Item::Request { at: 2_800, at_rank: 1, bytes: 9 },
            Item::Late { at: 1_300, clocks: 700, rank: 1, path: 0, by: 4_000 },
            Item::Late { at: 1_300, clocks: 700, rank: 1, path: 1, by: 4_000 },
            Item::Crash { at: 2_000, rank: 0, reported: None },
        ],
        strict: true,
    };
    let difference = cosim.run(&late).unwrap_err().to_string();
    assert!(difference.contains("uniform agreement"), "{difference}");
    // In time, nothing is wrong with the same.
    late.items.retain(|item| !matches!(item, Item::Late { .. }));
    cosim.run(&late).unwrap();
}
