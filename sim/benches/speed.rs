//! How many protocol events a second one core simulates with 5 hosts (bar: 1,000,000). One line of JSON for each engine; 1 when one misses the bar.

use fide_proto::consensus::Kind;
use fide_sim::run::run;
use fide_sim::{Menu, Options, Plan};
use std::process::ExitCode;
use std::time::Instant;

const BAR: f64 = 1e6;
const WORLDS: u64 = 300;
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    let mut kept = true;
    for engine in Kind::ALL {
        let options = Options { engine, menu: Menu::WithinContract, hosts: Some(5), ..Options::default() };
        let mut rates: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let begun = Instant::now();
                let events: u64 = (0..WORLDS).map(|seed| run(&Plan::generate(seed, options)).events).sum();
                events as f64 / begun.elapsed().as_secs_f64()
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        let (min, median, max) = (rates[0], rates[ROUNDS / 2], rates[ROUNDS - 1]);
        kept &= median >= BAR;
        println!(
            r#"{{"bench":"sim","case":"{engine:?}","unit":"events/s","hosts":5,"worlds":{WORLDS},"n":{ROUNDS},"min":{min:.0},"p50":{median:.0},"max":{max:.0}}}"#
        );
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
