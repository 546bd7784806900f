//! The whole way with real agents: a lab, a victim, kill -9, an upcall on another host; and scenes of the demonstration.

#![allow(missing_docs)]

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
fn scenes_of_the_demonstration_show_what_they_must() {
    if !possible("the demonstration") {
        return;
    }
    if fide_bench::rig::find_program("redis-server").is_none() {
        println!("SKIPPED the demonstration: it needs redis-server");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("demo.html");
    let (ok, lines) = run(&["demo", "--scenes", "1,5,6", "--memory", "64", "--report", report.to_str().unwrap()]);
    assert!(ok, "{lines:#?}");
    let scenes: Vec<_> = lines.iter().filter(|l| l["demo"] == "scene").collect();
    assert_eq!(scenes.len(), 3);
    for (scene, (cause, grade)) in scenes.iter().zip([("doomed", "certain"), ("agent-lost", "inferred"), ("left", "certain")]) {
        let observers = scene["lines"].as_array().unwrap();
        assert_eq!(observers.len(), 2, "{scene:#}");
        for line in observers {
            assert_eq!((&line["cause"], &line["grade"]), (&cause.into(), &grade.into()), "{scene:#}");
        }
    }
    let page = std::fs::read_to_string(report).unwrap();
    assert!(page.starts_with("<!doctype html>") && !page.contains("<script"));
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
        std::thread::sleep(Duration::from_millis(20));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    while Lab::list().unwrap().iter().any(|l| l.name == name) {
        assert!(Instant::now() < deadline, "lab {name} outlived its creator");
        std::thread::sleep(Duration::from_millis(50));
    }
}
