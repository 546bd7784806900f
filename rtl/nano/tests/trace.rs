//! What members did on real packets, in hardware and in software, is judged by the TLA+ specification (`specs/trace/TraceLOWI.tla`), and
//! so are copies of it with one thing changed, which must be refused.

use crate::group;

use fide_lab::Cut;
use group::{Group, root, wait_for};
use std::path::Path;
use std::process::Command;

/// The words of a line: time, member, event, and what it has.
fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

fn event(line: &str) -> &str {
    words(line).get(2).copied().unwrap_or("")
}

/// The round that member 1 is in.
fn round(group: &Group) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&group.status(1)).unwrap();
    status["round"].as_u64().unwrap_or_else(|| panic!("{status}"))
}

type Change<'a> = &'a dyn Fn(&mut Vec<String>);

/// With one decision of another value.
fn other_decision(lines: &mut [String]) {
    let at = lines.iter().rposition(|line| event(line) == "decide" && words(line)[3] != "1").unwrap();
    let line = words(&lines[at]);
    lines[at] = format!("{} {} decide {} {}9", line[0], line[1], line[3], line[4]);
}

/// Without one copy of a round that its receiver decides.
fn one_copy(lines: &mut Vec<String>) {
    let decides = lines.iter().rev().find(|line| event(line) == "decide").unwrap();
    let (member, instance) = (words(decides)[1].to_string(), words(decides)[3].to_string());
    let copy =
        |line: &String| words(line)[1] == member && event(line) == "recv" && words(line)[6] == instance && words(line)[8] != "-";
    let at = lines.iter().position(copy).unwrap_or_else(|| panic!("{member} received nothing of instance {instance}"));
    lines.remove(at);
}

/// With the last round as if its sender had counted one more.
fn wrong_round(lines: &mut [String]) {
    let last = lines.iter().rev().find(|line| event(line) == "send").unwrap();
    let (sender, round) = (words(last)[4].to_string(), words(last)[5].to_string());
    let next = (round.parse::<u64>().unwrap() + 1).to_string();
    for line in lines {
        let mut words = words(line);
        if matches!(words[2], "send" | "recv") && words[4] == sender && words[5] == round {
            words[5] = &next;
            *line = words.join(" ");
        }
    }
}

/// The model checker accepts those traces that it should, and no others.
fn judged(test: &str, traces: &[&Path]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/specs");
    let output = Command::new(script).arg("--trace").args(traces).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77) {
        println!("SKIPPED {test}: {said}");
        return;
    }
    print!("{said}");
    assert!(output.status.success(), "{said}");
}

fn a_run_is_judged(test: &str, software: [bool; 4]) {
    if !root(test) {
        return;
    }
    let mut group = Group::timed(4, 4, "period_us = 100000, delta_i_us = 150000, exit_together = false");
    group.tracing = true;
    for host in 1..=3 {
        group.start(host, software[usize::from(host) - 1]);
    }
    wait_for("member 1 to lead", || group.leader(1) && !group.status(1).contains("\"round\":0,"));
    group.decide(2, 1, &[1, 2, 3]);
    // Rounds without a value, more than may be in flight, of which the joiner gets none.
    let from = round(&group);
    wait_for("rounds without a value", || round(&group) >= from + 12);
    group.run(4, software[3]);
    let (config, engine) = (group.config(), group.engine(1).display().to_string());
    group.done(4, &["join", "--config", &config, "--member", "4", "--at", &engine]);
    wait_for("the join to be decided by the joiner", || !group.log(4).is_empty());
    group.kill(1);
    wait_for("member 2 to lead", || group.leader(2));
    group.decide(2, 2, &[2, 3]);
    group.lab.cut(3, 0, Cut::ToHost).unwrap();
    wait_for("member 3 to leave", || group.status(3).contains("\"halted\":"));
    group.decide(1, 2, &[2]);
    wait_for("the joiner to go on without member 3", || group.log(4).last() == group.log(2).last());
    group.agree(&[1, 2, 3, 4]);

    let files: Vec<String> = (1..=4).map(|host| group.trace(host).display().to_string()).collect();
    let output = Command::new(env!("CARGO_BIN_EXE_fide-nano")).arg("trace").args(files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_string).collect();
    for what in ["start message", "start join", ":join4", " crash", " halt", " decide "] {
        assert!(text.contains(what), "no line with {what}: {text}");
    }
    if let Some(kept) = std::env::var_os("FIDE_RTL_TRACES") {
        std::fs::write(Path::new(&kept).join(format!("{test}.trace")), &text).unwrap();
    }
    let whole = group.path("run.trace".into());
    std::fs::write(&whole, text).unwrap();
    let changes: [(&str, Change); 3] = [
        ("other_decision", &|lines| other_decision(lines)),
        ("one_copy", &one_copy),
        ("wrong_round", &|lines| wrong_round(lines)),
    ];
    let mut traces = vec![whole];
    for (name, change) in changes {
        let mut changed = lines.clone();
        changed[0] += " REJECT";
        let mut rest = changed.split_off(1);
        change(&mut rest);
        assert_ne!(rest, lines[1..], "{name} changes nothing");
        changed.append(&mut rest);
        let path = group.path(format!("{name}.trace"));
        std::fs::write(&path, changed.join("\n") + "\n").unwrap();
        traces.push(path);
    }
    judged(test, &traces.iter().map(std::path::PathBuf::as_path).collect::<Vec<_>>());
}

#[test]
fn b8_a_run_of_software_on_real_packets_is_a_behaviour_of_the_specification() {
    a_run_is_judged("b8_a_run_of_software_on_real_packets_is_a_behaviour_of_the_specification", [true; 4]);
}

#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_a_run_of_hardware_beside_software_is_a_behaviour_of_the_specification() {
    a_run_is_judged("n6_a_run_of_hardware_beside_software_is_a_behaviour_of_the_specification", [false, true, false, true]);
}
