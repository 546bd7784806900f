//! Groups of members in hardware (the Verilator model) and in software on real packets: hosts of a lab, two networks. The
//! tests with hardware are long: `scripts/rtl lab` runs them, elsewhere they are *ignored*.
//!
//! It is emulation. What is shown is that all decide the same, not how fast.

use crate::group;

use fide_lab::Cut;
use group::{Group, root, wait_for};
use std::process::Command;

/// Three members, one of each kind as told, decide; the leader is killed, the next one leads; a fourth joins; a cable is cut, its
/// member leaves, and the others go on.
fn mixed(test: &str, software: [bool; 4]) {
    if !root(test) {
        return;
    }
    let mut group = Group::new(4, 4, false);
    for host in 1..=3 {
        group.start(host, software[usize::from(host) - 1]);
    }
    wait_for("member 1 to lead", || group.leader(1) && !group.status(1).contains("\"round\":0,"));
    group.decide(6, 1, &[1, 2, 3]);

    group.run(4, software[3]);
    let (config, engine) = (group.config(), group.engine(1).display().to_string());
    group.decide(1, 1, &[1, 2, 3]);
    group.done(4, &["join", "--config", &config, "--member", "4", "--at", &engine]);
    wait_for("the join to be decided by the joiner", || !group.log(4).is_empty());
    let joined = group.log(1).len();
    group.decide(3, 1, &[1, 2, 3]);
    wait_for("the joiner to decide what was decided behind its join", || group.log(4).last() == group.log(1).last());
    assert!(joined > 0);

    group.kill(1);
    wait_for("member 2 to lead", || group.leader(2));
    group.decide(5, 2, &[2, 3]);
    wait_for("the joiner to follow the second leader", || group.log(4).last() == group.log(2).last());

    group.lab.cut(3, 0, Cut::Silent).unwrap();
    wait_for("member 3 to leave", || group.status(3).contains("\"halted\":"));
    group.decide(4, 2, &[2]);
    wait_for("the joiner to go on without member 3", || group.log(4).last() == group.log(2).last());
    let decided = group.agree(&[1, 2, 3, 4]);
    println!("{test}: {decided} entries, the same everywhere; {}", group.status(2));
    assert!(decided >= 19);
}

#[test]
fn n7_three_in_software_decide_on_real_packets() {
    mixed("n7_three_in_software_decide_on_real_packets", [true; 4]);
}

#[test]
#[cfg_attr(not(rtl_lab), ignore = "long: scripts/rtl lab runs it")]
fn n6_a_group_led_by_hardware_decides_on_real_packets() {
    mixed("n6_a_group_led_by_hardware_decides_on_real_packets", [false, true, true, true]);
}

#[test]
#[cfg_attr(not(rtl_lab), ignore = "long: scripts/rtl lab runs it")]
fn n6_hardware_follows_software_takes_over_and_is_joined() {
    mixed("n6_hardware_follows_software_takes_over_and_is_joined", [true, false, true, false]);
}

#[test]
#[cfg_attr(not(rtl_lab), ignore = "long: scripts/rtl lab runs it")]
fn n6_a_group_of_hardware_decides_on_real_packets() {
    mixed("n6_a_group_of_hardware_decides_on_real_packets", [false; 4]);
}

#[test]
fn a_missing_model_is_refused_with_how_to_build_it() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("group.toml");
    let text = "cluster = \"c\"\ngroup = \"g\"\ngeneration = 1\nport = 7440\ntrees = [\"239.77.9.1\"]\n\
                timing = { period_us = 60000, delta_i_us = 80000 }\nmember = [{ id = 1, addresses = [\"127.0.0.1\"] }]\n";
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fide-nano"));
    command.args(["run", "--member", "1", "--interface", "lo", "--engine", "/nonexistent/x", "--model", "/nonexistent/y.so"]);
    let output = command.arg("--config").arg(&config).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("scripts/rtl model"), "{said}");
}
