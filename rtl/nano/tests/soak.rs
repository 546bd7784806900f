//! Mixed groups decide while a member joins, the leader is killed, a cable is cut and a leader is stopped: the same log everywhere.
//! Long, so it is run by `scripts/rtl soak`; FIDE_RTL_DECISIONS and FIDE_RTL_FAULTS say how long.
//!
//! Leadership only moves up the ranks, so a group can lose only as many leaders as it has ranks: four faults are done to a group,
//! and then another group is begun, with its members the other way round.
//!
//! It is emulation. What is shown is that all decide the same, not how fast.

#![allow(missing_docs)]

mod group;

use fide_lab::Cut;
use group::{Group, root, wait_for};
use std::time::Instant;

/// Faults that are done to one group.
const FAULTS: u64 = 4;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number")))
}

/// One group: hosts that are odd are in hardware if `odd`, and the others in software. How many entries it decided.
fn one(odd: bool, share: u64, timing: &str) -> usize {
    let software = |host: u16| (host % 2 == 1) != odd;
    let mut group = Group::timed(5, 5, timing);
    for host in 1..=4 {
        group.start(host, software(host));
    }
    wait_for("member 1 to lead", || group.leader(1) && !group.status(1).contains("\"round\":0,"));
    group.decide(share, 1, &[1, 2, 3, 4]);

    group.run(5, software(5));
    let (config, at) = (group.config(), group.engine(1).display().to_string());
    group.done(5, &["join", "--config", &config, "--member", "5", "--at", &at]);
    wait_for("the join to be decided by the joiner", || !group.log(5).is_empty());
    group.decide(share, 1, &[1, 2, 3, 4]);
    wait_for("the joiner to follow", || group.log(5).last() == group.log(1).last());

    group.kill(1);
    wait_for("member 2 to lead", || group.leader(2));
    group.decide(share, 2, &[2, 3, 4]);

    group.lab.cut(4, 0, Cut::Silent).unwrap();
    wait_for("the member behind the cut to leave safely", || group.status(4).contains("\"halted\":"));
    group.decide(share, 2, &[2, 3]);

    group.done(2, &["stop"]);
    wait_for("member 3 to lead", || group.leader(3));
    group.decide(share, 3, &[3]);
    wait_for("the joiner to follow the third leader", || group.log(5).last() == group.log(3).last());
    group.agree(&[1, 2, 3, 4, 5])
}

#[test]
#[ignore = "long: scripts/rtl soak runs it"]
fn n6_mixed_groups_under_faults_have_one_log() {
    if !root("n6_mixed_groups_under_faults_have_one_log") {
        return;
    }
    let (decisions, faults) = (number("FIDE_RTL_DECISIONS", 200), number("FIDE_RTL_FAULTS", 8));
    let period_us = number("FIDE_RTL_PERIOD_US", 60_000);
    let timing = format!("period_us = {period_us}, delta_i_us = {}, exit_together = false", period_us * 3 / 2);
    let (groups, begun) = (faults.div_ceil(FAULTS).max(1), Instant::now());
    let share = decisions.div_ceil(groups * (FAULTS + 1));
    let mut decided = 0;
    for i in 0..groups {
        decided += one(i % 2 == 0, share, &timing) as u64;
        println!("{:.0} s: {} groups, {} faults, {decided} decisions", begun.elapsed().as_secs_f64(), i + 1, (i + 1) * FAULTS);
    }
    let faults = groups * FAULTS;
    println!("emulation: {decided} decisions, {faults} faults, 0 differences; {:.0} s", begun.elapsed().as_secs_f64());
    assert!(decided >= decisions);
}
