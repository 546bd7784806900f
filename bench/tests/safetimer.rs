//! SafeTimer's Table 1 as a test: the command that people run, on real agents.

#![allow(missing_docs)]

use std::process::Command;

/// A command of this crate with `--json`; `None`, and a word why, where it cannot run.
fn command(test: &str, args: &[&str]) -> Option<Command> {
    let missing = if fide_bench::sys::require_root("a lab").is_err() {
        "a lab needs root; run the tests with sudo".to_string()
    } else {
        match fide_bench::rig::find_fided() {
            Ok(fided) => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_fide-bench"));
                command.arg("--json").arg("safetimer").args(args).env(fide_bench::rig::FIDED_ENV, fided);
                return Some(command);
            }
            Err(e) => e.to_string(),
        }
    };
    println!("SKIPPED {test}: {missing}");
    None
}

#[test]
fn safetimer_table_1_no_verdict_on_the_living_and_every_late_sender_blocked() {
    let Some(mut command) = command("Table 1", &["--table1"]) else { return };
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let names: Vec<&str> = rows.iter().map(|r| r["row"].as_str().unwrap()).collect();
    assert_eq!(names, fide_bench::safetimer::table1::names(), "{}", String::from_utf8_lossy(&output.stderr));
    for row in &rows {
        assert_eq!(row["wrong"], serde_json::json!([]), "{row:#}");
        assert_eq!(row["ok"], true, "{row:#}");
    }
    assert!(output.status.success());
}
