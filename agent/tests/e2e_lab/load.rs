//! Much at once, and little room.

use crate::common::{Process, Setup, until};
use fide_wire::verdict::Cause;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn two_hundred_processes_killed_at_once_are_told_once_each() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let processes: Vec<Process> = (0..200).map(|_| w.sleeper(1)).collect();
    for (i, p) in processes.iter().enumerate() {
        w.watch(1, &format!("p{i}"), p.pid());
    }
    w.known(1, "p199");
    for observer in [2, 3] {
        until("all are known", || {
            w.view(observer, "h1").is_some_and(|h| h.apps.iter().filter(|a| a.state == "alive").count() == 200)
        });
    }
    let mut watchers = [w.monitor(1, "*"), w.monitor(2, "*"), w.monitor(3, "@h1")];
    for p in &processes {
        p.kill();
    }
    for watcher in &mut watchers {
        until("all are told", || watcher.failures().len() >= 200);
        for i in 0..200 {
            watcher.confirmation(&format!("p{i}@h1"));
        }
        assert_eq!(watcher.failures().len(), 200);
        assert!(watcher.failures().iter().all(|v| v.cause == Cause::Doomed));
    }
    for host in [1, 2, 3] {
        until("the history has them", || w.events(host, Cause::Killed).len() >= 200);
        let mut told: BTreeMap<(String, Cause), usize> = BTreeMap::new();
        for e in w.history(host).into_iter().filter(|e| e.cause.ends_process()) {
            *told.entry((e.app.unwrap_or_default(), e.cause)).or_default() += 1;
        }
        assert_eq!(told.len(), 400);
        assert!(told.values().all(|n| *n == 1));
    }
    w.no_faults_but(|_, (_, _, app)| app.is_some());
}

#[test]
#[ignore = "takes a minute: make nightly"]
fn thirty_two_hosts_see_each_other_and_say_nothing_wrong() {
    let Some(w) = Setup::hosts(32).heartbeat("10ms").up() else { return };
    // Whatever else this machine is doing, one of three times twenty seconds passes without a word. (Loading thirty-two agents' kernel programs
    // keeps two processors busy for longer than a timeout, and so may other tests' compilers.)
    let mut told = Vec::new();
    for _ in 0..3 {
        w.all_alive();
        let begun: Vec<u64> = w.lab.hosts().map(|h| w.history(h).last().map_or(0, |e| e.seq)).collect();
        // Sleep: the window in which nothing may be said.
        std::thread::sleep(Duration::from_secs(20));
        w.all_alive();
        let faults: Vec<_> = w.lab.hosts().zip(begun).flat_map(|(h, seq)| w.faults_since(h, seq)).collect();
        if faults.is_empty() {
            return;
        }
        println!("told of what was not: {faults:?}");
        told.push(faults.len());
    }
    panic!("verdicts in each of three windows: {told:?}");
}

/// Processes at a real-time priority above the agents' keep both processors to themselves, again and again.
#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_a_starved_host_is_not_taken_for_dead() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    let hogs: Vec<std::thread::JoinHandle<()>> = (0..2)
        .map(|_| {
            std::thread::spawn(|| {
                // SAFETY: a parameter struct that lives across the call; 0 is the calling thread.
                let rt = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &libc::sched_param { sched_priority: 60 }) };
                assert_eq!(rt, 0);
                for _ in 0..10 {
                    let until = std::time::Instant::now() + Duration::from_millis(200);
                    while std::time::Instant::now() < until {
                        std::hint::spin_loop();
                    }
                    // Sleep: what is left to others.
                    std::thread::sleep(Duration::from_millis(100));
                }
            })
        })
        .collect();
    for hog in hogs {
        hog.join().unwrap();
    }
    w.all_alive();
    w.no_faults_but(|_, _| false);
    p.kill();
    w.event(2, "a true crash", |e| e.cause == Cause::Doomed && e.app.as_deref() == Some("db"));
}

#[test]
fn a_frozen_agent_accuses_nobody_when_it_thaws() {
    let Some(w) = Setup::hosts(3).up() else { return };
    w.lab.freeze(w.agent_pid(1), fide_lab::FreezeBy::Cgroup).unwrap();
    for observer in [2, 3] {
        w.event(observer, "agent lost", |e| e.cause == Cause::AgentLost && e.node == "h1");
    }
    w.lab.thaw(w.agent_pid(1)).unwrap();
    w.all_alive();
    w.no_faults_but(|observer, (cause, node, _)| {
        node == "h1" && (*cause == Cause::Returned || (observer != 1 && *cause == Cause::AgentLost))
    });
}

#[test]
fn a_full_disk_is_told_once_and_survived() {
    if !crate::common::root() {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let small = outside.path();
    let _mount = Mount::tmpfs(small, "size=4m");
    let Some(mut w) = Setup::hosts(2).empty().up() else { return };
    let dir = w.lab.host_dir(1).display().to_string();
    let text = w.head(1, "h1", "2ms").replace(&format!("{dir}/history.jsonl"), &format!("{}/history.jsonl", small.display()));
    w.write_config(1, &text);
    for host in [1, 2] {
        w.start(host);
    }
    w.all_alive();
    // Fill it to the brim.
    let filler = small.join("filler");
    let mut size = 1 << 20;
    while size > 0 {
        use std::io::Write;
        let mut file = std::fs::File::options().create(true).append(true).open(&filler).unwrap();
        if file.write_all(&vec![0; size]).is_err() {
            size /= 2;
        }
    }
    for round in 0..100 {
        let name = format!("p{round}");
        w.watch(1, &name, std::process::id());
        w.ask(1, &fide_wire::control::Request::Unwatch { name }).unwrap();
    }
    let local = w.event(1, "the disk", |e| e.cause == Cause::Local);
    assert!(local.text.contains("history.jsonl") && local.text.contains("cannot be written"), "{}", local.text);
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    p.kill();
    for host in [1, 2] {
        w.event(host, "the crash", |e| e.cause == Cause::Killed && e.app.as_deref() == Some("db"));
    }
    assert_eq!(w.events(1, Cause::Local).len(), 1, "told once: {:?}", w.events(1, Cause::Local));
    // Room again: it goes on, and says what is missing on disk, if anything is.
    std::fs::remove_file(&filler).unwrap();
    let q = w.sleeper(1);
    w.watch_known(1, "after", q.pid());
    q.kill();
    until("it is on disk", || std::fs::read_to_string(small.join("history.jsonl")).unwrap().contains("\"app\":\"after\""));
    w.agents_run();
    w.no_faults_but(|_, (cause, _, app)| *cause == Cause::Local || app.is_some());
}

/// A small file system; unmounted when dropped.
struct Mount(std::path::PathBuf);

impl Mount {
    fn tmpfs(at: &std::path::Path, options: &str) -> Self {
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).stdin(Stdio::null()).status();
        assert!(status.unwrap().success());
        Self(at.into())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status(); // gone already is as good
    }
}
