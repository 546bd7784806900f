//! What a quiet tick costs: it runs every millisecond, and an allocation or a quadratic loop in it would show here.

use super::super::*;
use super::harness::{CONTRACT, MS, US};
use std::time::Instant;

/// Release build on a shared two-core machine: see the figure printed. The bar is wide, for debug
/// builds; the fastest of many rounds counts, since other work of the machine only makes a round
/// slower.
#[test]
fn a_quiet_tick_over_256_hosts_is_cheap() {
    let mut d = Detector::new(Config::new(1, 1));
    let mut now = 1_000 * MS;
    let nodes: Vec<u32> = (0..MAX_PEERS as u32).map(|n| 100 + n * 7919).collect();
    for &n in &nodes {
        d.peer_seen(n, "x", 1, &[CONTRACT; PATHS], now).unwrap();
    }
    while d.poll_action().is_some() {}
    let (rounds, turns) = (100, 20);
    let mut each = u64::MAX;
    for round in 0..rounds {
        let start = Instant::now();
        for k in round * turns..(round + 1) * turns {
            now += MS;
            for (i, &n) in nodes.iter().enumerate() {
                let last_arrival_ns = now - (i as u64 % 100) * US;
                let row = PathArrival { last_number: k + 1, last_arrival_ns, ..PathArrival::default() };
                d.arrivals(n, 1, &[row; PATHS]).unwrap();
            }
            d.tick(now);
            assert_eq!(d.poll_action(), None);
        }
        each = each.min(start.elapsed().as_nanos() as u64 / turns);
    }
    println!("256 hosts: {each} ns for arrivals and tick, {} ns a host", each / 256);
    assert!(each < 500_000, "{each} ns");
}
