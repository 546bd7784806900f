//! Faults do what they say, no more, and can be undone.

use crate::common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{PATIENCE, PORT, Wire, lab, passes, root, v6, wait_for};
use fide_lab::{Cut, Direction, FreezeBy, Lab, LabError, LinkFaults, NETS, ProcessId, SwitchFault};

fn carrier(lab: &Lab, host: u16, net: u8) -> Option<bool> {
    lab.status().unwrap().hosts[usize::from(host) - 1].nics[usize::from(net)].carrier
}

/// The kernel takes note of a carrier in its own time, on a busy machine up to a second.
fn has_carrier(lab: &Lab, host: u16, net: u8, expected: Option<bool>) -> bool {
    (0..500).any(|_| {
        let is_so = carrier(lab, host, net) == expected;
        if !is_so {
            // Sleep: interval of the poll.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        is_so
    })
}

#[test]
fn a_pulled_cable_takes_the_carrier_and_only_that_link() {
    if !root("a_pulled_cable_takes_the_carrier_and_only_that_link") {
        return;
    }
    let lab = lab(3);
    let mut net0 = Wire::new(&lab, 1, 2, 0);
    let mut net1 = Wire::new(&lab, 1, 2, 1);
    let mut others = Wire::new(&lab, 2, 3, 0);
    assert!(net0.both_ways() && net1.both_ways() && others.both_ways());

    lab.cut(1, 0, Cut::Carrier).unwrap();
    assert!(net0.a_to_b_is_dead() && net0.b_to_a_is_dead());
    assert!(net1.both_ways() && others.both_ways());
    assert!(has_carrier(&lab, 1, 0, Some(false)) && has_carrier(&lab, 1, 1, Some(true)) && has_carrier(&lab, 2, 0, Some(true)));
    assert!(lab.link_faults(1, 0).unwrap().carrier_cut);

    lab.heal(1, 0).unwrap();
    assert!(net0.both_ways());
    assert!(has_carrier(&lab, 1, 0, Some(true)));
    assert_eq!(lab.link_faults(1, 0).unwrap(), LinkFaults::default());
    let (six_1, six_2) = (v6(&lab, 1, PORT), v6(&lab, 2, PORT));
    let kept = passes(PATIENCE, &six_1, (lab.ipv6(2, 0), PORT).into(), &six_2, "IPv6 as well");
    assert!(kept, "the IPv6 address was lost with the carrier");
}

#[test]
fn a_silent_cut_keeps_the_carrier_and_lets_nothing_pass() {
    if !root("a_silent_cut_keeps_the_carrier_and_lets_nothing_pass") {
        return;
    }
    let lab = lab(2);
    let mut wire = Wire::new(&lab, 1, 2, 1);
    assert!(wire.both_ways());

    lab.cut(1, 1, Cut::Silent).unwrap();
    assert!(wire.a_to_b_is_dead() && wire.b_to_a_is_dead());
    assert!(has_carrier(&lab, 1, 1, Some(true)));
    // Another handle, another process perhaps, sees and undoes it.
    Lab::open(lab.name()).unwrap().heal(1, 1).unwrap();
    assert!(wire.both_ways());
}

#[test]
fn one_direction_can_be_lost_alone() {
    if !root("one_direction_can_be_lost_alone") {
        return;
    }
    let lab = lab(2);
    let mut wire = Wire::new(&lab, 1, 2, 0);
    assert!(wire.both_ways());

    lab.cut(1, 0, Cut::FromHost).unwrap();
    assert!(wire.a_to_b_is_dead());
    assert!(wire.b_to_a());
    lab.heal(1, 0).unwrap();
    assert!(wire.both_ways());

    lab.cut(1, 0, Cut::ToHost).unwrap();
    assert!(wire.b_to_a_is_dead());
    assert!(wire.a_to_b());
    lab.heal(1, 0).unwrap();
    assert!(wire.both_ways());
}

#[test]
fn cuts_add_up_and_one_heal_undoes_them_all() {
    if !root("cuts_add_up_and_one_heal_undoes_them_all") {
        return;
    }
    let lab = lab(2);
    let mut wire = Wire::new(&lab, 1, 2, 0);
    for cut in [Cut::FromHost, Cut::Silent, Cut::Carrier, Cut::Silent] {
        lab.cut(1, 0, cut).unwrap();
    }
    lab.slow(1, 0, Direction::Both, 1000).unwrap();
    assert!(wire.a_to_b_is_dead());
    lab.heal(1, 0).unwrap();
    lab.heal(1, 0).unwrap();
    assert!(wire.both_ways());
}

#[test]
fn a_slow_link_delivers_late_in_the_direction_asked_for() {
    if !root("a_slow_link_delivers_late_in_the_direction_asked_for") {
        return;
    }
    let lab = lab(2);
    let mut wire = Wire::new(&lab, 1, 2, 0);
    for (direction, slow_is_a_to_b) in [(Direction::FromHost, true), (Direction::ToHost, false)] {
        assert!(wire.both_ways());
        // Ten datagrams of 1000 bytes at 80 kbit/s: the bucket lets one or two pass at once, the last comes after
        // most of a second.
        lab.slow(1, 0, direction, 80_000).unwrap();
        let late = |span: Duration| span > Duration::from_millis(500);
        assert!(late(wire.burst(10, slow_is_a_to_b)), "{direction:?} is not slow");
        // A busy machine may deliver one burst late, but a slow link delivers all of them late.
        let mut is_quick = |a_to_b| (0..10).any(|_| !late(wire.burst(10, a_to_b)));
        assert!(is_quick(!slow_is_a_to_b), "the other direction than {direction:?} is slow");
        lab.heal(1, 0).unwrap();
        assert!(is_quick(slow_is_a_to_b), "{direction:?} stayed slow");
    }
}

#[test]
fn a_nic_vanishes_and_returns() {
    if !root("a_nic_vanishes_and_returns") {
        return;
    }
    let lab = lab(2);
    let mut net0 = Wire::new(&lab, 1, 2, 0);
    let mut net1 = Wire::new(&lab, 1, 2, 1);
    assert!(net0.both_ways());

    lab.remove_nic(1, 0).unwrap();
    assert!(has_carrier(&lab, 1, 0, None) && has_carrier(&lab, 1, 1, Some(true)));
    assert!(net0.a_to_b_is_dead());
    assert!(net1.both_ways());
    assert!(matches!(lab.cut(1, 0, Cut::Silent), Err(LabError::NicRemoved { host: 1, net: 0 })));
    assert!(matches!(lab.remove_nic(1, 0), Err(LabError::NicRemoved { .. })));

    lab.restore_nic(1, 0).unwrap();
    assert!(net0.both_ways());
    assert!(has_carrier(&lab, 1, 0, Some(true)));
    assert!(lab.restore_nic(1, 0).is_err(), "restored twice");
}

#[test]
fn a_nic_returns_to_the_faults_it_left() {
    if !root("a_nic_returns_to_the_faults_it_left") {
        return;
    }
    let lab = lab(2);
    let mut wire = Wire::new(&lab, 1, 2, 0);
    lab.cut(1, 0, Cut::Silent).unwrap();
    lab.slow(1, 0, Direction::FromHost, 1000).unwrap();
    lab.remove_nic(1, 0).unwrap();
    lab.restore_nic(1, 0).unwrap();
    assert!(has_carrier(&lab, 1, 0, Some(true)));
    assert!(wire.a_to_b_is_dead());
    lab.heal(1, 0).unwrap();
    assert!(wire.both_ways());
}

#[test]
fn a_switch_fails_with_and_without_taking_the_carriers() {
    if !root("a_switch_fails_with_and_without_taking_the_carriers") {
        return;
    }
    let lab = lab(3);
    let mut net0 = Wire::new(&lab, 1, 2, 0);
    let mut net1 = Wire::new(&lab, 1, 2, 1);
    let mut to_h3 = Wire::new(&lab, 2, 3, 0);
    assert!(net0.both_ways() && net1.both_ways() && to_h3.both_ways());

    for (how, kept) in [(SwitchFault::Off, Some(false)), (SwitchFault::Hung, Some(true))] {
        lab.switch_down(0, how).unwrap();
        assert_eq!(lab.status().unwrap().switches[0].fault, Some(how));
        assert!(net0.a_to_b_is_dead(), "{how:?}");
        assert!(net1.both_ways(), "{how:?}");
        assert!(lab.hosts().all(|host| has_carrier(&lab, host, 0, kept)), "{how:?}");

        // A cable cut meanwhile stays cut when the switch is back, one healed meanwhile does not come back before.
        lab.cut(3, 0, Cut::Carrier).unwrap();
        lab.cut(1, 0, Cut::Carrier).unwrap();
        lab.heal(1, 0).unwrap();
        assert!(has_carrier(&lab, 1, 0, kept), "{how:?}");
        lab.switch_up(0).unwrap();
        assert!(net0.both_ways(), "{how:?}");
        assert!(to_h3.a_to_b_is_dead(), "{how:?}");
        lab.heal(3, 0).unwrap();
        assert!(to_h3.both_ways(), "{how:?}");
    }
}

#[test]
fn what_does_not_exist_is_refused_by_name() {
    if !root("what_does_not_exist_is_refused_by_name") {
        return;
    }
    let lab = lab(2);
    let error = lab.cut(3, 0, Cut::Silent).unwrap_err().to_string();
    assert!(error.contains("no host h3") && error.contains("h1 to h2"), "{error}");
    assert!(matches!(lab.cut(1, 2, Cut::Silent), Err(LabError::NoSuchNet(2))));
    assert!(lab.command(0, "true").is_err());
    assert!(lab.host_number("h3").is_err());
    assert_eq!(lab.host_number("h2").unwrap(), 2);
    assert!(lab.slow(1, 0, Direction::Both, 0).is_err());
}

#[test]
fn a_process_runs_on_its_host_can_be_frozen_and_ends_with_the_lab() {
    if !root("a_process_runs_on_its_host_can_be_frozen_and_ends_with_the_lab") {
        return;
    }
    let lab = lab(2);
    // Its mounts are the caller's, its network is the host's.
    let script = "ip -o addr show net1; echo $FIDE_HOST; readlink /proc/self/ns/mnt";
    let output = lab.command(2, "sh").unwrap().args(["-c", script]).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(output.contains("10.77.1.2/24"), "{output}");
    assert!(output.contains("\nh2\n"), "{output}");
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    assert!(output.contains(own.to_str().unwrap()), "{output}");

    // Prints a growing number.
    let counting = "i=0; while :; do i=$((i+1)); echo $i >$0; done";
    let file = lab.host_dir(1).join("count");
    let mut child = lab.command(1, "sh").unwrap().args(["-c", counting]).arg(&file).stdout(Stdio::null()).spawn().unwrap();
    let pid = child.id().cast_signed();
    let process = ProcessId::of(pid).unwrap();
    let count = || std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let running = |what: &str| {
        let from = count();
        wait_for(what, || count().is_some_and(|now| Some(now) > from));
    };
    running("the process to count");
    for by in [FreezeBy::Signal, FreezeBy::Cgroup] {
        lab.freeze(pid, by).unwrap();
        let at = count();
        // Sleep: time for a process that is not frozen to count on. Nothing shows that it does not.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(count(), at, "{by:?}: it counts while frozen");
        let seen = lab.status().unwrap().hosts[0].processes.iter().find(|p| p.id == process).unwrap().frozen;
        assert_eq!(seen, Some(by));
        assert!(lab.freeze(pid, by).is_err(), "frozen twice");
        lab.thaw(pid).unwrap();
        running("the thawed process to count");
        lab.thaw(pid).unwrap();
    }

    lab.freeze(pid, FreezeBy::Cgroup).unwrap();
    let begin = Instant::now();
    lab.down().unwrap();
    assert!(!process.is_alive(), "a frozen process outlived its lab");
    println!("down with a frozen process in {:?}", begin.elapsed());
    child.wait().unwrap();
    for root in ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"] {
        let cages = std::fs::read_dir(root).into_iter().flatten().flatten();
        let ours = cages.filter(|e| e.file_name().to_string_lossy().ends_with(&format!("-{pid}"))).count();
        assert_eq!(ours, 0, "a cgroup stayed in {root}");
    }
}

#[test]
fn both_cables_cut_make_a_silent_host_and_the_rest_goes_on() {
    if !root("both_cables_cut_make_a_silent_host_and_the_rest_goes_on") {
        return;
    }
    let lab = lab(3);
    let mut wires = NETS.map(|net| Wire::new(&lab, 1, 2, net));
    let mut rest = Wire::new(&lab, 2, 3, 0);
    for net in NETS {
        lab.cut(1, net, Cut::Silent).unwrap();
    }
    assert!(wires.iter_mut().all(|wire| wire.a_to_b_is_dead()));
    assert!(rest.both_ways());
    for net in NETS {
        lab.heal(1, net).unwrap();
    }
    assert!(wires.iter_mut().all(Wire::both_ways));
}
