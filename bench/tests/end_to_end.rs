//! The whole way with real agents: a lab, a victim, kill -9, an upcall on another host.

use fide_lab::Lab;
use std::process::Command;
use std::time::{Duration, Instant};

/// Whether it can run here; says so if not.
fn possible(test: &str) -> bool {
    let missing = if fide_bench::sys::require_root("a lab").is_err() {
        "a lab needs root; run the tests with sudo".to_string()
    } else if let Err(e) = fide_bench::rig::find_fided() {
        e.to_string()
    } else {
        return true;
    };
    println!("SKIPPED {test}: {missing}");
    false
}

/// A command of this crate with `--json`.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fide-bench"));
    command.arg("--json").args(args).env(fide_bench::rig::FIDED_ENV, fide_bench::rig::find_fided().unwrap());
    command
}

/// Whether it succeeded, and its lines.
fn run(args: &[&str]) -> (bool, Vec<serde_json::Value>) {
    let output = command(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.is_empty(), "it said nothing: {}", String::from_utf8_lossy(&output.stderr));
    let lines = text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect();
    (output.status.success(), lines)
}

#[test]
fn fide_3_4_a_killed_process_is_known_on_another_host_before_its_tcp_connection_ends() {
    if !possible("kill -9") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().to_str().unwrap();
    let args = ["detect", "--only", "sigkill", "--crashes", "20", "--rss", "64M", "--load", "idle", "--report", report];
    let (ok, lines) = run(&args);
    assert!(ok, "{lines:?}");
    let case = &lines[0];
    assert_eq!((&case["bench"], &case["case"]), (&"detect".into(), &"sigkill idle rss=64M".into()));
    assert_eq!((&case["unit"], &case["values"]["missed"]), (&"us".into(), &0.0.into()), "{case}");
    let number = |v: &serde_json::Value| v.as_f64().unwrap();
    assert!(number(&case["n"]) >= 10.0, "{case}");
    assert!(number(&case["p50"]) < number(&case["beside"]["tcp"]["p50"]), "{case}");
    // The parts are parts of the whole: no stamp lies before the one that caused it.
    let steps: f64 = ["hook", "agent", "wire", "application"].iter().map(|s| number(&case["steps"][s]["min"])).sum();
    assert!(steps > 0.0 && steps <= number(&case["max"]), "{case}");
    let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("sigkill idle rss=64M") && page.contains("<svg"));
}

#[test]
fn fide_tab_2_the_same_kill_is_told_by_us_by_tcp_by_etcd_and_by_zookeeper() {
    const TEST: &str = "etcd and ZooKeeper beside us";
    if !possible(TEST) {
        return;
    }
    let missing = fide_bench::peers::servers::missing();
    for line in &missing {
        println!("SKIPPED {TEST}: {line}");
    }
    if missing.len() == 2 {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().to_str().unwrap();
    let (ok, lines) = run(&["detect", "--only", "peers", "--crashes", "100", "--report", report]);
    assert!(ok, "{lines:?}");
    let number = |v: &serde_json::Value| v.as_f64().unwrap();
    let (ours, theirs) = lines.split_first().unwrap();
    assert_eq!((&ours["case"], &ours["n"]), (&"peers sigkill rss=0".into(), &2.into()), "{ours:#}");
    assert!(number(&ours["beside"]["tcp"]["n"]) == 2.0 && number(&ours["beside"]["pidfd"]["n"]) == 2.0, "{ours:#}");
    assert_eq!(theirs.len(), 2 * (2 - missing.len()), "as it comes and tuned: {theirs:#?}");
    for case in theirs {
        let (granted_ms, name) = (number(&case["values"]["granted_ms"]), case["case"].as_str().unwrap());
        // On a machine too busy to renew in time a key is given up while its process lives: then there is no time to tell.
        assert_eq!(number(&case["n"]) + number(&case["values"]["given_up_while_alive"]), 2.0, "{case:#}");
        if number(&case["n"]) > 0.0 {
            assert_eq!(ours["beside"][name]["p50"], case["p50"], "{case:#}");
            // The last renewal was at most a third of what was granted before the crash, as far as the machine kept to it.
            assert!(number(&case["min"]) >= granted_ms * 1e3 / 3.0, "{case:#}");
            assert!(number(&case["min"]) > number(&ours["max"]), "{case:#} {ours:#}");
        }
    }
    let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("Tab. 2") && page.contains("Fig. 5") && page.contains("uKharon-FD"));
    for case in theirs {
        assert!(page.contains(case["case"].as_str().unwrap()));
    }
}

#[test]
fn x_lane_fig_8_proposals_are_measured_and_drawn_for_each_number_of_members() {
    if !possible("the consensus bench") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().to_str().unwrap();
    let few = ["--rounds", "1", "--values", "50", "--kills", "2", "--no-etcd", "--engine", "huc,raft", "--members", "3,1,3"];
    let (ok, lines) = run(&[&["consensus", "--report", report][..], &few].concat());
    assert!(ok, "{lines:?}");
    let of = |name: &str| lines.iter().find(|line| line["case"] == name).unwrap_or_else(|| panic!("no {name} in {lines:#?}"));
    for engine in ["huc", "raft"] {
        assert_eq!(of(&format!("{engine} leader 64B members=1"))["n"], 50);
        assert_eq!(of(&format!("{engine} follower 64B members=3"))["n"], 50);
        assert!(of(&format!("{engine} leader batched 64B members=3"))["values"]["per_second"].as_f64().unwrap() > 0.0);
        for event in ["leading agent killed", "member joins"] {
            let case = of(&format!("{engine} {event} members=3"));
            assert!(case["n"] == 2 && case["min"].as_f64().unwrap() > 0.0, "{case:#}");
        }
    }
    assert_eq!(lines.len(), 1 + 2 * 2 + 1 + 2 * (3 + 2) + 1, "each size once");
    for file in ["leader", "follower", "throughput", "killed", "joins", "distribution-1", "distribution-3"] {
        assert!(std::fs::read_to_string(directory.path().join(format!("{file}.svg"))).unwrap().contains("huc"), "{file}");
    }
    let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("raft over TCP") && page.matches("</figure>").count() == 7);
}

#[test]
fn fide_fig_6_sets_are_measured_and_drawn_for_each_number_of_servers() {
    const TEST: &str = "the Redis bench";
    if !possible(TEST) {
        return;
    }
    if fide_bench::rig::find_program("redis-server").is_none() {
        println!("SKIPPED {TEST}: there is no redis-server");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().to_str().unwrap();
    // Cargo puts the module of a test beside the test.
    let module = std::env::current_exe().unwrap().with_file_name("libfide_redis.so");
    let few = ["--rounds", "1", "--requests", "400", "--clients", "5", "--kills", "1", "--replicas", "2,3"];
    let (ok, lines) = run(&[&["redis", "--report", report, "--module", module.to_str().unwrap()][..], &few].concat());
    assert!(ok, "{lines:?}");
    let of = |name: &str| lines.iter().find(|line| line["case"] == name).unwrap_or_else(|| panic!("no {name} in {lines:#?}"));
    assert_eq!(of("redis alone 64B clients=1 pipeline=1")["n"], 20);
    for replicas in [2, 3] {
        for of_line in ["redis async".to_owned(), format!("redis wait {}", replicas - 1), "redis huc".to_owned()] {
            let case = of(&format!("{of_line} replicas={replicas} 64B clients=5 pipeline=1"));
            assert!(case["n"] == 400 && case["values"]["per_second"].as_f64().unwrap() > 0.0, "{case:#}");
        }
        assert_eq!(of(&format!("redis huc leading server killed replicas={replicas}"))["n"], 1);
    }
    for file in ["throughput-1-1", "latency-1-1", "throughput-5-1", "latency-5-1", "throughput-5-16", "latency-5-16"] {
        assert!(std::fs::read_to_string(directory.path().join(format!("{file}.svg"))).unwrap().contains("redis wait"), "{file}");
    }
    let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("redis huc replicas=3") && page.matches("</figure>").count() == 6);
}

#[test]
fn nothing_is_left_behind_when_it_is_killed() {
    if !possible("cleaning up") {
        return;
    }
    let mut child = command(&["detect", "--only", "footprint"]).spawn().unwrap();
    let pid = child.id().cast_signed();
    let deadline = Instant::now() + Duration::from_secs(60);
    let name = loop {
        if let Some(lab) = Lab::list().unwrap().into_iter().find(|l| l.creator.pid == pid) {
            break lab.name;
        }
        assert!(Instant::now() < deadline, "no lab appeared");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(20));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    while Lab::list().unwrap().iter().any(|l| l.name == name) {
        assert!(Instant::now() < deadline, "lab {name} outlived its creator");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(50));
    }
}
