//! Disks that were copied, put back or damaged, hosts that were renamed, and a clock that was far ahead: who is who behind a start.

use crate::common::{Pins, Setup, World, until, wait_for};
use crate::e2e_lab::groups::{create, order, runs, status};
use fide_wire::control::{FenceOrder, FenceStatus, GroupOrder, Reply, Request};
use fide_wire::level::FORGOTTEN_EVENT_CODE;
use fide_wire::verdict::Cause;
use std::fs;
use std::path::PathBuf;

const FILES: [&str; 4] = ["state.json", "state.json.table", "state.json.table.log", "state.json.groups"];

fn fence(w: &World, host: u16) -> FenceStatus {
    match w.ask(host, &Request::Fence { order: FenceOrder::Status }).unwrap() {
        Reply::Fence(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// By name.
fn observers(w: &World, host: u16) -> Vec<String> {
    let mut observers = fence(w, host).observers;
    observers.sort();
    observers
}

fn file(w: &World, host: u16, name: &str) -> PathBuf {
    w.lab.host_dir(host).join(name)
}

/// The state of one host's disk comes to be that of another one's, or of a directory.
fn copy(w: &World, from: u16, to: &dyn Fn(&str) -> PathBuf) {
    for name in FILES {
        let (from, to) = (file(w, from, name), to(name));
        let _ = fs::remove_file(&to); // there may be none
        if from.exists() {
            fs::copy(from, to).unwrap();
        }
    }
}

/// Four hosts, whose agents a test starts, with acknowledged fences.
fn four(pins: &Pins) -> Option<World> {
    let lines = "mode = \"acknowledged\"\ntimeout = \"5s\"\nmargin = \"10ms\"";
    let fences: Vec<String> = (1..=4).map(|host| pins.config(host, lines)).collect();
    Setup::hosts(4).extra(move |host| fences[usize::from(host) - 1].clone()).empty().up()
}

/// The host's agent has another name from its next start on.
fn rename(w: &World, host: u16, from: &str, to: &str) {
    let text = fs::read_to_string(w.config(host)).unwrap();
    w.write_config(host, &text.replace(&format!("node = \"{from}\""), &format!("node = \"{to}\"")));
}

fn forget(w: &World, host: u16, name: &str) {
    assert_eq!(w.ask(host, &Request::Forget { host: name.into() }).unwrap(), Reply::Done);
}

#[test]
fn a_host_made_of_a_members_disk_is_no_member_and_waits_for_nobody_it_has_not_met() {
    let Some(pins) = Pins::new() else { return };
    let Some(mut w) = four(&pins) else { return };
    (1..=3).for_each(|host| w.start(host));
    // A host that h1 has met, and that is gone for good.
    rename(&w, 4, "h4", "ghost");
    w.start(4);
    until("h1 has met ghost", || w.state(1, "ghost") == "alive");
    w.kill_agent(4);
    until("ghost is lost", || w.state(1, "ghost") == "agent-lost");
    create(&w, 1, "orders", "raft", &["h1", "h2", "h3"]).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    until("h1's disk knows of the group", || fs::read_to_string(file(&w, 1, "state.json")).unwrap().contains("orders"));

    // The golden image. Its original has left by then, so that nobody else's word says who is who.
    copy(&w, 1, &|name| file(&w, 4, name));
    rename(&w, 4, "ghost", "h4");
    w.start(4);
    until("h4 is a host of its own", || (1..=3).all(|host| w.state(host, "h4") == "alive"));
    until("its fence is armed by those it has met", || fence(&w, 4).state == "open");
    assert_eq!(observers(&w, 4), ["h1", "h2", "h3"]);
    w.goes_on(4, 200);
    assert_eq!(status(&w, 4, "orders"), None, "it is no member");
    let log = w.log(4);
    assert!(log.contains("counts for nothing here: it is of host \"h1\"") && log.contains("--adopt-state"), "{log}");
    assert!(file(&w, 4, "state.json.aside-1/state.json").exists());
    // Nor does its former name count any more where it was met: the same boot, and the same addresses.
    for host in 1..=3 {
        until("ghost is forgotten", || fence(&w, host).observers.iter().all(|name| name != "ghost"));
        assert!(w.history(host).iter().any(|e| e.code == FORGOTTEN_EVENT_CODE && e.text.contains("ghost is h4 now")));
    }
    // Also in the next agent, which has not met it.
    w.kill_agent(1);
    w.start(1);
    until("h1 is back", || w.state(2, "h1") == "alive");
    until("everybody counts again", || observers(&w, 1) == ["h2", "h3", "h4"]);
}

#[test]
fn a_host_that_was_renamed_while_another_was_away_is_shown_and_forgotten_there_alone() {
    let Some(pins) = Pins::new() else { return };
    let Some(mut w) = four(&pins) else { return };
    (1..=3).for_each(|host| w.start(host));
    until("all have met", || [(1, "h3"), (2, "h3"), (1, "h2"), (2, "h1")].iter().all(|(host, of)| w.state(*host, of) == "alive"));
    w.kill_agent(1);
    w.kill_agent(3);
    until("h3 is lost", || w.state(2, "h3") == "agent-lost");
    rename(&w, 3, "h3", "h9");
    w.start(3);
    until("h2 forgets the former name", || fence(&w, 2).observers.iter().all(|name| name != "h3"));
    w.start(1);
    until("h1 has met it under its new name", || w.state(1, "h9") == "alive");
    // Nothing says to h1 that these are one host: it has never heard h3.
    assert_eq!(observers(&w, 1), ["h2", "h3", "h9"]);
    until("it is waited for", || fence(&w, 1).waits_for == ["h3"]);
    forget(&w, 1, "h3");
    let without = |w: &World| fence(w, 1).observers.iter().all(|name| name != "h3");
    assert!(without(&w));
    w.kill_agent(1);
    w.start(1);
    until("h1 is back", || w.state(2, "h1") == "alive" && w.state(1, "h9") == "alive");
    assert!(without(&w), "a restart counts it no more");
    // Who was forgotten and comes back counts, also behind a restart.
    w.kill_agent(3);
    rename(&w, 3, "h9", "h3");
    w.start(3);
    until("h3 is back", || w.state(1, "h3") == "alive");
    until("h9 is forgotten, as h3 is heard there", || fence(&w, 1).observers.iter().all(|name| name != "h9"));
    w.kill_agent(3);
    w.kill_agent(1);
    w.start(1);
    until("h3 counts", || fence(&w, 1).observers.iter().any(|name| name == "h3"));
}

#[test]
fn the_former_name_of_a_host_whose_agent_was_stopped_to_rename_it_is_forgotten() {
    let Some(mut w) = Setup::hosts(2).empty().up() else { return };
    (1..=2).for_each(|host| w.start(host));
    until("they have met", || w.state(1, "h2") == "alive");
    w.signal_agent(2, libc::SIGTERM);
    w.agent_ended(2);
    until("h2 has left", || w.state(1, "h2") == "left");
    rename(&w, 2, "h2", "h9");
    w.start(2);
    until("it is met under its new name", || w.state(1, "h9") == "alive");
    until("its former one is forgotten", || w.status(1).hosts.iter().all(|host| host.name != "h2"));
}

#[test]
fn a_disk_that_was_put_back_from_a_backup_makes_no_member() {
    let Some(mut w) = Setup::hosts(3).up() else { return };
    create(&w, 1, "orders", "raft", &["h1", "h2", "h3"]).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    until("h3's disk knows of the group", || fs::read_to_string(file(&w, 3, "state.json")).unwrap().contains("orders"));
    let backup = w.lab.host_dir(3).join("backup");
    fs::create_dir(&backup).unwrap();
    copy(&w, 3, &|name| backup.join(name));
    let then = w.status(3).incarnation;
    order(&w, 3, GroupOrder::Leave { name: "orders".into(), force: false }).unwrap();
    until("h3 has left the group", || status(&w, 3, "orders").is_none_or(|group| group.me.is_none()));
    // An agent of the same moment would be one that had not yet written: its file is not old.
    while w.status(3).incarnation <= then + 1 {
        w.kill_agent(3);
        w.start(3);
        w.all_alive();
    }
    w.kill_agent(3);
    for name in FILES.iter().filter(|name| backup.join(name).exists()) {
        fs::copy(backup.join(name), file(&w, 3, name)).unwrap();
    }
    // Sleep: a backup is not put back within the fraction of a second in which incarnations are counted.
    std::thread::sleep(std::time::Duration::from_secs(1));
    w.start(3);
    let told = w.event(3, "its state is an old one", |e| e.cause == Cause::Local && e.text.contains("is an old one"));
    assert!(told.text.contains("it named orders"), "{}", told.text);
    w.all_alive();
    w.goes_on(3, 200);
    assert_eq!(status(&w, 3, "orders").and_then(|group| group.me), None);
    // What it has now is its own, and new.
    w.kill_agent(3);
    w.start(3);
    w.all_alive();
    w.goes_on(3, 200);
    assert_eq!(w.history(3).iter().filter(|e| e.text.contains("is an old one")).count(), 1);
}

#[test]
fn a_host_whose_incarnations_are_used_up_comes_back_when_the_others_forget_it() {
    let Some(mut w) = Setup::hosts(2).up() else { return };
    w.kill_agent(1);
    w.kill_agent(2);
    // As a former release left it, behind one boot with a clock of 2099: on its own disk, and where it was seen.
    fs::write(file(&w, 2, "state.json"), "{\"incarnation\": 4294967295}").unwrap();
    fs::write(file(&w, 1, "state.json"), "{\"incarnation\": 9, \"peers\": {\"h2\": 4294967295}}").unwrap();
    w.start(1);
    w.start(2);
    assert!(w.status(2).incarnation < 1 << 31, "by a clock that is right");
    let told = w.event(2, "it is refused", |e| e.cause == Cause::Local && e.text.contains("incarnation 4294967294"));
    assert!(told.text.contains("fide forget h2"), "{}", told.text);
    assert_eq!(w.state(1, "h2"), "unknown");
    forget(&w, 1, "h2");
    w.all_alive();
    w.kill_agent(1);
    w.start(1);
    w.all_alive();
}

#[test]
fn agents_start_with_damaged_files_and_lose_none() {
    let Some(mut w) = Setup::hosts(2).up() else { return };
    let plan = GroupOrder::Create {
        name: "kept".into(),
        engine: "raft".into(),
        policy: "trust-contract".into(),
        hosts: vec!["h1".into(), "h2".into()],
        durable: true,
        fresh: false,
    };
    order(&w, 1, plan).unwrap();
    (1..=2).for_each(|host| runs(&w, host, "kept"));
    until("h2's disk has the group", || file(&w, 2, "state.json.groups").exists());
    let whole: Vec<(&str, Vec<u8>)> = FILES.iter().filter_map(|name| Some((*name, fs::read(file(&w, 2, name)).ok()?))).collect();
    type Damage = fn(&mut Vec<u8>);
    let damages: [Damage; 6] = [
        |bytes| bytes.clear(),
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes.iter_mut().take(100).for_each(|byte| *byte = 0xa5),
        |bytes| bytes.iter_mut().step_by(97).for_each(|byte| *byte ^= 0x10),
        |bytes| bytes.fill(0),
        |bytes| {
            let at = bytes.len() / 3;
            bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1);
        },
    ];
    for (n, damage) in damages.into_iter().enumerate() {
        w.kill_agent(2);
        for (name, bytes) in &whole {
            let mut bytes = bytes.clone();
            damage(&mut bytes);
            fs::write(file(&w, 2, name), bytes).unwrap();
        }
        w.start(2);
        until("it is heard", || w.state(1, "h2") == "alive" && w.state(2, "h1") == "alive");
        let groups = wait_for("its groups", || match order(&w, 2, GroupOrder::Status) {
            Ok(Reply::Groups { groups }) => Some(groups),
            _ => None,
        });
        assert!(groups.iter().all(|group| group.name == "kept"), "{n}: {groups:?}");
        assert!(file(&w, 2, &format!("state.json.aside-{}", n + 1)).exists(), "{n}: what was damaged is kept");
    }
}
