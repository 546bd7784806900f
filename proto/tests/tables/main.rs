//! Tables and introductions over a network with faults: no crash is lost, none is reported twice, no echo is
//! believed, and a change costs each host the same in a cluster of 3 and of 256.

mod cluster;

use cluster::{Cluster, Faults, MS, Random, Restart, US};
use fide_wire::frame::Kind;
use fide_wire::verdict::Cause;

const CALM: Faults = Faults { lost: 0, doubled: 0, replayed: 0, delay_ns: 40 * US };

fn started(hosts: usize, seed: u64, faults: Faults) -> Cluster {
    let mut cluster = Cluster::new(hosts, seed, faults);
    (0..hosts).for_each(|host| cluster.start(host, Restart::Kept));
    cluster
}

/// One seed: a tenth of a second of faults, then time to heal, then the judges.
fn run(seed: u64) {
    let mut choose = Random(seed ^ 0x7461_626c_6573);
    let hosts = 2 + choose.below(4) as usize;
    let faults = Faults {
        lost: [0, 20, 200, 600][choose.below(4) as usize],
        doubled: [0, 100][choose.below(2) as usize],
        replayed: [0, 0, 50][choose.below(3) as usize],
        delay_ns: [5 * US, 100 * US, 3 * MS][choose.below(3) as usize],
    };
    let mut cluster = started(hosts, seed, faults);
    let mut at_ns = 0;
    while at_ns < 100 * MS {
        at_ns += 1 + choose.below(2 * MS);
        cluster.run_until(at_ns);
        let host = choose.below(hosts as u64) as usize;
        let living: Vec<_> = cluster.truths.iter().filter(|(_, t)| !t.state.is_final()).map(|(i, _)| *i).collect();
        match choose.below(16) {
            0..=3 => _ = cluster.spawn(host),
            4..=8 if !living.is_empty() => {
                let instance = living[choose.below(living.len() as u64) as usize];
                let (cause, code) = [(Cause::Doomed, 9), (Cause::Killed, 9), (Cause::Exited, 0)][choose.below(3) as usize];
                cluster.end(instance, cause, code);
            }
            9 | 10 => cluster.hosts[host].cut[choose.below(2) as usize] ^= true,
            11 => cluster.stop(host),
            12 => {
                cluster.stop(host);
                let restarts = [Restart::HandOver, Restart::HandOver, Restart::Kept, Restart::Lost, Restart::Reboot];
                cluster.start(host, restarts[choose.below(5) as usize]);
            }
            13 if cluster.hosts[host].directory.is_none() => cluster.start(host, Restart::HandOver),
            _ => cluster.replay(),
        }
    }
    cluster.faults = CALM;
    for host in 0..hosts {
        cluster.hosts[host].cut = [false; 2];
        if cluster.hosts[host].directory.is_none() {
            cluster.start(host, Restart::HandOver);
        }
    }
    cluster.run_until(at_ns + 1_000 * MS);
    cluster.judge();
}

#[test]
fn each_end_is_reported_once_whatever_falls_before_into_or_after_it() {
    let seeds: u64 = std::env::var("FIDE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let from: u64 = std::env::var("FIDE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    for seed in from..from + seeds {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "seed {seed}: FIDE_SEED={seed} FIDE_SEEDS=1 runs it alone");
    }
}

/// Frames, both copies counted, that the host which received most of them received for one crash.
fn frames_for_a_crash(hosts: usize) -> u64 {
    let mut cluster = started(hosts, 1, CALM);
    cluster.run_until(100 * MS);
    let process = cluster.spawn(0).unwrap();
    cluster.run_until(120 * MS);
    cluster.forget_counts();
    cluster.end(process, Cause::Killed, 9);
    cluster.run_until(140 * MS);
    cluster.judge();
    Kind::ALL.into_iter().filter(|kind| *kind != Kind::Heartbeat).map(|kind| cluster.received_most(kind)).sum()
}

#[test]
fn a_crash_costs_two_frames_in_clusters_of_any_size() {
    for hosts in [2, 3, 16, 64] {
        assert_eq!(frames_for_a_crash(hosts), 2, "{hosts} hosts");
    }
}

#[test]
fn a_push_that_everybody_lost_costs_a_few_frames() {
    for hosts in [3, 16, 64] {
        let mut cluster = started(hosts, 2, CALM);
        cluster.run_until(100 * MS);
        let process = cluster.spawn(0).unwrap();
        cluster.run_until(120 * MS);
        cluster.forget_counts();
        cluster.hosts[0].cut = [true; 2];
        cluster.end(process, Cause::Killed, 9);
        cluster.run_until(120 * MS + 500 * US);
        cluster.hosts[0].cut = [false; 2];
        cluster.run_until(140 * MS);
        cluster.judge();
        let (pulls, rows) = (cluster.received_most(Kind::Pull), cluster.received_most(Kind::Rows));
        assert!(pulls <= 2 * 32 && rows <= 2 * 4, "{hosts} hosts: {pulls} pulls, {rows} rows");
    }
}

/// `FIDE_HOSTS=256` is the largest cluster; it takes a minute.
#[test]
fn a_large_cluster_that_starts_within_a_second_introduces_itself_with_few_frames() {
    let hosts = std::env::var("FIDE_HOSTS").ok().and_then(|n| n.parse().ok()).unwrap_or(64);
    let mut cluster = Cluster::new(hosts, 3, CALM);
    let mut random = Random(4);
    let mut starts: Vec<u64> = (0..hosts).map(|_| random.below(1_000 * MS)).collect();
    starts.sort_unstable();
    // Heartbeats of 256 hosts would be all that this test does.
    cluster.quiet(1_000);
    for (host, at_ns) in starts.into_iter().enumerate() {
        cluster.run_until(at_ns);
        cluster.start(host, Restart::Kept);
    }
    cluster.run_until(2_500 * MS);
    cluster.judge();
    for kind in [Kind::Hello, Kind::Introduction, Kind::Pull, Kind::Rows] {
        let most = cluster.received_most(kind);
        println!("{}: at most {most} received by a host", kind.name());
        assert!(most <= 2 * 16 * hosts as u64, "{}: {most}", kind.name());
    }
}

#[test]
fn a_large_table_is_pulled_in_parts() {
    let mut cluster = started(2, 5, CALM);
    cluster.run_until(10 * MS);
    cluster.stop(1);
    let processes: Vec<_> = (0..4000).map(|_| cluster.spawn(0).unwrap()).collect();
    for process in processes.iter().step_by(3) {
        cluster.end(*process, Cause::Exited, 1);
    }
    cluster.start(1, Restart::HandOver);
    cluster.run_until(500 * MS);
    cluster.judge();
}
