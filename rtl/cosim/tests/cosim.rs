//! The engine in hardware against the software core. Without a Verilator model these are *ignored*:
//! `make rtl` builds one.

use fide_rtl::cosim::{Cosim, run_many};
use fide_rtl::model::Library;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_hardware_is_the_software_core_on_seeded_schedules() {
    let mut cosim = Cosim::new(Library::from_env().unwrap());
    cosim.waveform = std::env::var_os("FIDE_RTL_WAVEFORM").map(Into::into);
    let count = number("FIDE_RTL_SCHEDULES", 2_000);
    let begun = std::time::Instant::now();
    let report = run_many(&mut cosim, number("FIDE_RTL_FROM", 0), count).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{count} schedules, {:.1} s: {report:?}", begun.elapsed().as_secs_f64());
    if count >= 2_000 {
        assert!(report.decisions > count && report.rounds > count, "{report:?}");
        for why in ["network fault", "missing broadcast", "expelled", "left"] {
            assert!(report.halts.contains_key(why), "no schedule ends in {why}: {report:?}");
        }
    }
}
