//! SafeTimer's Table 1 as a test: the command that people run, on real agents.

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
    let said = String::from_utf8_lossy(&output.stderr);
    eprint!("{said}");
    assert_eq!(names, fide_bench::safetimer::table1::offered(), "{said}");
    for row in &rows {
        assert_eq!(row["wrong"], serde_json::json!([]), "{row:#}");
        assert_eq!(row["ok"], true, "{row:#}");
    }
    assert!(output.status.success());
}

#[test]
fn safetimer_table_1_by_plain_sockets_no_verdict_on_the_living_where_heartbeats_pass_ip_and_sockets() {
    let rows = "receiver-socket-drop,receiver-ip-delay,receiver-napi-delay,sender-device-delay";
    let args = ["--table1", "--receive", "udp", "--send", "udp", "--only", rows];
    let Some(mut command) = command("Table 1 by plain sockets", &args) else { return };
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let found: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(found.len(), 4, "{}", String::from_utf8_lossy(&output.stderr));
    for row in &found {
        assert_eq!(row["wrong"], serde_json::json!([]), "{row:#}");
        assert_eq!((&row["receive"], &row["fide"]["on_way"]), (&"udp".into(), &true.into()), "{row:#}");
    }
    assert!(output.status.success());
}

#[test]
fn a_row_within_the_kernel_is_refused_with_its_reason_where_it_cannot_be_had() {
    if fide_bench::safetimer::inject::can_hold().is_ok() {
        println!("SKIPPED a row that cannot be had: this kernel has them all");
        return;
    }
    let Some(mut command) = command("a row that cannot be had", &["--table1", "--only", "receiver-udp-delay"]) else { return };
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(said.contains("receiver-udp-delay") && said.contains("FIDE_GUEST_SUITES=table1 scripts/guest"), "{said}");
}

#[test]
fn the_cost_of_every_gate_is_told_for_every_kind_of_traffic() {
    let args = ["--overhead", "--rounds", "3", "--exchanges", "100"];
    let Some(mut command) = command("the cost of the fence", &args) else { return };
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let cases: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let named = |name: &str| cases.iter().find(|c| c["case"] == name).unwrap_or_else(|| panic!("no {name} in {cases:#?}"));
    for mode in ["without", "control", "host", "cgroup", "both"] {
        for kind in ["udp 8", "udp 16384", "tcp 8", "tcp 65536"] {
            let case = named(&format!("overhead {kind} {mode}"));
            assert_eq!(case["n"], 400, "an even number of rounds: {case:#}");
            assert!(case["p50"].as_f64().unwrap() > 0.0 && case["values"]["throughput_percent"].is_number(), "{case:#}");
        }
    }
    for mode in ["control", "host", "cgroup", "both"] {
        assert_eq!(named(&format!("overhead mean {mode}"))["n"], 11.0);
    }
    named("lane send, gated, gate");
    assert!(output.status.success(), "without --check a missed bar fails nothing");
}
