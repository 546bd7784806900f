//! Scenes of the demonstration with real agents (root).

#![allow(missing_docs)]

use std::process::Command;

#[test]
fn scenes_of_the_demonstration_show_what_they_must() {
    let missing = if fide_demo::sys::require_root("a lab").is_err() {
        Some("a lab needs root; run the tests with sudo".to_string())
    } else if fide_demo::rig::find_program("redis-server").is_none() {
        Some("it needs redis-server".into())
    } else {
        fide_demo::rig::find_fided().err().map(|e| e.to_string())
    };
    if let Some(missing) = missing {
        return println!("SKIPPED the demonstration: {missing}");
    }
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("demo.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fide-demo"));
    command.args(["--json", "--scenes", "1,5,6", "--memory", "64", "--report", report.to_str().unwrap()]);
    let output = command.env(fide_demo::rig::FIDED_ENV, fide_demo::rig::find_fided().unwrap()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect();
    assert!(output.status.success(), "{lines:#?} {}", String::from_utf8_lossy(&output.stderr));
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
