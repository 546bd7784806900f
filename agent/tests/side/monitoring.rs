//! The shipped alert rules and dashboard, without agents: the rules by Prometheus' own unit tests, the dashboard's layout.
//! `e2e_lab/monitoring.rs` has a real Prometheus load both and read real agents.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/monitoring").join(name)
}

/// What a program says of a file, and that it has nothing against it; false where it is missing.
fn promtool(arguments: &[&str], file: &str) -> bool {
    let Ok(done) = Command::new("promtool").args(arguments).arg(shipped(file)).output() else {
        println!("SKIPPED: promtool is not installed (package prometheus), so {file} was not tried");
        return false;
    };
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("SUCCESS"), "promtool {arguments:?} {file}: {said}");
    true
}

#[test]
fn every_alert_fires_on_what_it_is_for_and_clears() {
    let rules = std::fs::read_to_string(shipped("fide.rules.yml")).unwrap();
    let tests = std::fs::read_to_string(shipped("fide.rules.test.yml")).unwrap();
    let alerts: BTreeSet<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 20, "{alerts:?}");
    let (mut fired, mut cleared) = (BTreeSet::new(), BTreeSet::new());
    let lines: Vec<&str> = tests.lines().map(str::trim).collect();
    for pair in lines.windows(2) {
        let Some(alert) = pair[0].strip_prefix("alertname: ") else { continue };
        match pair[1] {
            "exp_alerts:" => fired.insert(alert),
            "exp_alerts: []" if fired.contains(alert) => cleared.insert(alert),
            _ => false,
        };
    }
    assert_eq!(fired, alerts, "each has a test in which it fires");
    assert_eq!(cleared, alerts, "and clears later");
    if promtool(&["check", "rules", "--lint=all", "--lint-fatal"], "fide.rules.yml") {
        promtool(&["test", "rules"], "fide.rules.test.yml");
    }
}

#[test]
fn the_dashboard_has_no_panels_over_each_other_and_asks_one_source() {
    let text = std::fs::read_to_string(shipped("fide.dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&dashboard["uid"], &dashboard["id"]), (&"fide".into(), &Value::Null), "an id would be of somebody's Grafana");
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() > 20);
    let mut seen = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is another panel's");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title} is wider than the page");
        for place in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
            assert!(seen.insert(place), "{title} lies over another panel at {place:?}");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{title}");
        let targets = panel["targets"].as_array().unwrap();
        let sources = targets.iter().map(|t| &t["datasource"]).chain([&panel["datasource"]]);
        sources.for_each(|source| assert_eq!(source["uid"], "${datasource}", "{title}"));
        let refs: BTreeSet<&str> = targets.iter().map(|t| t["refId"].as_str().unwrap()).collect();
        assert_eq!(refs.len(), targets.len(), "{title}");
    }
}
