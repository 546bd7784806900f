//! Processes end in all their ways.

use crate::common::{Setup, World, certain, kill, named, until};
use fide_client::Event;
use fide_wire::control::{HistoryEvent, Reply, Request};
use fide_wire::verdict::{Cause, Grade, VerdictId};
use std::process::Stdio;

/// One crash, seen by subscribers on every host, in every history, and explained. `stages`: what is told of it, one after the other.
fn crash(w: &World, end: impl FnOnce(), name: &str, stages: &[(Cause, i32)]) {
    let full = format!("{name}@h1");
    let mut watchers: Vec<_> = w.running().into_iter().map(|h| w.monitor(h, &full)).collect();
    watchers.extend(w.running().into_iter().map(|h| w.monitor(h, "*")));
    end();
    let mut ids: Vec<VerdictId> = Vec::new();
    for watcher in &mut watchers {
        let v = watcher.failure(&full);
        certain(&v);
        assert_eq!((v.cause, v.code, v.local), (stages[0].0, stages[0].1, watcher.host == 1), "{v:?}");
        ids.extend(v.id);
        if let Some(last) = stages.get(1) {
            let v = watcher.confirmation(&full);
            certain(&v);
            assert_eq!((v.cause, v.code, v.confirms), (last.0, last.1, true), "{v:?}");
        }
        assert_eq!(watcher.failures_of(&full), 1, "one on_failure: {:?}", watcher.seen);
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "the same verdict everywhere: {ids:?}");
    for host in w.running() {
        for (i, stage) in stages.iter().enumerate() {
            let event = w.event(host, "the end", |e| e.cause == stage.0 && e.app.as_deref() == Some(name));
            assert_eq!((event.grade, event.node.as_str(), event.code, event.confirms), (Grade::Certain, "h1", stage.1, i == 1));
            assert!(i > 0 || event.id == Some(ids[0]), "{event:?}");
        }
        let Reply::Explained(explained) = w.ask(host, &Request::Explain { id: ids[0], incarnation: None }).unwrap() else {
            panic!()
        };
        let evidence = explained.evidence.expect("a verdict rests on something");
        assert!(evidence.event_ns > 0 && evidence.sent_ns >= evidence.event_ns && evidence.received_ns > 0, "{evidence:?}");
        let told = w.history(host).iter().filter(|e| e.app.as_deref() == Some(name) && e.cause.ends_process()).count();
        assert_eq!(told, stages.len());
    }
}

fn only_ends(w: &World) {
    w.no_faults_but(|_, (cause, _, app)| app.is_some() && cause.ends_process());
}

#[test]
fn kill_9_is_known_everywhere_once_and_explained() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    crash(&w, || p.kill(), "db", &[(Cause::Doomed, 9), (Cause::Killed, 9)]);
    only_ends(&w);
}

#[test]
fn no_two_lives_of_an_agent_use_the_same_id() {
    let Some(mut w) = Setup::hosts(2).up() else { return };
    for (signal, name) in [(libc::SIGKILL, "first"), (libc::SIGTERM, "second"), (libc::SIGKILL, "third")] {
        let p = w.sleeper(1);
        w.watch_known(1, name, p.pid());
        p.kill();
        // On its own host, too: what an agent has not written when it is killed is in no history of it.
        for host in [1, 2] {
            w.event(host, "the end", |e| e.cause == Cause::Killed && e.app.as_deref() == Some(name));
        }
        // A thread of its own writes that.
        let of_it = format!("\"app\":\"{name}\"");
        let file = w.lab.host_dir(1).join("history.jsonl");
        until("its end is in the file", || {
            std::fs::read_to_string(&file).is_ok_and(|text| text.lines().filter(|line| line.contains(&of_it)).count() >= 2)
        });
        w.signal_agent(1, signal);
        w.agent_ended(1);
        w.start(1);
        w.all_alive();
    }
    for host in [1, 2] {
        let of_h1 =
            |e: &HistoryEvent| e.id.is_some_and(|id| (id.0 >> 32) as u32 == fide_wire::name_id("h1") && id.0 as u32 >> 31 == 0);
        let given: Vec<_> = w.history(host).into_iter().filter(of_h1).collect();
        let different: std::collections::BTreeSet<_> = given.iter().filter_map(|e| e.id).map(|id| id.0).collect();
        assert!(given.len() >= 6 && different.len() == given.len(), "on h{host}: {given:?}");
        for event in given {
            let (id, unique) = (event.id.unwrap(), event.unique_id().unwrap());
            for incarnation in [None, Some(unique.incarnation)] {
                let asked = Request::Explain { id, incarnation };
                let Ok(Reply::Explained(explained)) = w.ask(host, &asked) else { panic!("{unique} is not explained") };
                assert_eq!((explained.unique_id(), &explained.app), (Some(unique), &event.app));
            }
        }
    }
}

#[test]
fn other_ends_tell_how() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let p = w.sleeper(1);
    w.watch_known(1, "term", p.pid());
    crash(&w, || p.signal(libc::SIGTERM), "term", &[(Cause::Doomed, 15), (Cause::Killed, 15)]);

    let mut sh = {
        let mut command = w.lab.command(1, "sh").unwrap();
        command.args(["-c", "read x; exit 3"]).stdin(Stdio::piped());
        crate::common::Process::spawn(command)
    };
    w.watch_known(1, "exit3", sh.pid());
    // Its only thread's exit is its end; there is nothing to foretell.
    crash(&w, || sh.say("now"), "exit3", &[(Cause::Exited, 3)]);

    // With a core dump: doomed when the signal is delivered, not when the dump is written.
    let dumper = {
        let mut command = w.lab.command(1, "sleep").unwrap();
        command.arg("1000").current_dir(w.lab.host_dir(1));
        // SAFETY: setrlimit is async-signal-safe and reads a struct on our stack.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut command, || {
                let limit = libc::rlimit { rlim_cur: 1 << 24, rlim_max: 1 << 24 };
                let _ = libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
                Ok(())
            });
        }
        crate::common::Process::spawn(command)
    };
    w.watch_known(1, "segv", dumper.pid());
    crash(&w, || dumper.signal(libc::SIGSEGV), "segv", &[(Cause::Doomed, 11), (Cause::Killed, 11)]);
    only_ends(&w);
}

/// A real limit of a memory cgroup, and the real OOM killer.
#[test]
fn out_of_memory_is_known_everywhere_as_such() {
    let directory = std::path::PathBuf::from(format!("/sys/fs/cgroup/memory/fide-e2e-oom-{}", std::process::id()));
    if std::fs::create_dir(&directory).is_err() || !directory.join("memory.limit_in_bytes").exists() {
        println!("SKIPPED: this machine has no memory controller of cgroup version 1");
        return;
    }
    std::fs::write(directory.join("memory.limit_in_bytes"), "33554432").unwrap();
    if let Some(w) = Setup::hosts(2).up() {
        // A shell whose variable doubles until there is no room for it.
        let mut command = w.lab.command(1, "sh").unwrap();
        command.args(["-c", "read x; while :; do x=$x$x; done"]).stdin(Stdio::piped());
        let mut hog = crate::common::Process::spawn(command);
        std::fs::write(directory.join("cgroup.procs"), hog.pid().to_string()).unwrap();
        w.watch_known(1, "hog", hog.pid());
        crash(&w, || hog.say("xxxxxxxx"), "hog", &[(Cause::Doomed, 9), (Cause::OutOfMemory, 9)]);
        only_ends(&w);
    }
    std::fs::remove_dir(&directory).unwrap();
}

#[test]
fn what_is_no_death_is_not_told() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut trap = {
        let mut command = w.lab.command(1, "sh").unwrap();
        let script = "trap '' TERM; trap 'true' USR1; echo 'ACTOR: ready'; while :; do read x || sleep 0.01; done";
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        crate::common::Process::spawn(command)
    };
    assert_eq!(trap.hear(), "ready");
    w.watch_known(1, "tough", trap.pid());
    let mut there = w.monitor(2, "*");
    for signal in [libc::SIGTERM, libc::SIGUSR1, libc::SIGSTOP, libc::SIGCONT, libc::SIGCHLD, libc::SIGWINCH] {
        trap.signal(signal);
    }
    trap.say("still here");
    // A second process dies: what came before it in the kernel has been told by then.
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    p.kill();
    there.confirmation("db@h1");
    assert_eq!(there.failures().len(), 1);
    assert_eq!(w.view(2, "h1").unwrap().apps.iter().find(|a| a.name == "tough").unwrap().state, "alive");
    only_ends(&w);
}

#[test]
fn leaving_is_not_crashing() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let mut there = w.monitor(2, "*");
    let mut here = w.monitor(1, "*");

    let p = w.sleeper(1);
    w.watch_known(1, "watched", p.pid());
    w.ask(1, &Request::Unwatch { name: "watched".into() }).unwrap();
    let mut polite = w.actor(1, "application", &[]);
    assert_eq!(polite.hear(), "ready");
    polite.say("join polite 0");
    assert!(polite.hear().starts_with("ok"));
    w.known(1, "polite");
    polite.say("quit");
    assert!(polite.hear().starts_with("ok"));
    for watcher in [&mut there, &mut here] {
        for name in ["watched@h1", "polite@h1"] {
            let v = watcher.failure(name);
            assert_eq!((v.cause, v.grade, v.is_crash()), (Cause::Left, Grade::Certain, false));
        }
    }
    // Their ends afterwards are nobody's business.
    p.kill();
    polite.say("exit 0");
    polite.ended();

    let mut rude = w.actor(1, "application", &[]);
    assert_eq!(rude.hear(), "ready");
    rude.say("join rude 0");
    assert!(rude.hear().starts_with("ok"));
    w.known(1, "rude");
    rude.say("exit 0");
    for watcher in [&mut there, &mut here] {
        let v = watcher.failure("rude@h1");
        assert!(v.is_crash());
        assert_eq!(watcher.confirmation("rude@h1").cause, Cause::Exited);
        assert_eq!(watcher.failures().len(), 3, "{:?}", watcher.seen);
    }
    only_ends(&w);
}

#[test]
fn a_closed_connection_is_neither_a_crash_nor_a_farewell() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut there = w.monitor(2, "*");
    let joined = fide_client::Client::open(Some(&w.socket(1))).unwrap();
    joined.join("me", 10).unwrap();
    w.known(1, "me");
    drop(joined);
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    p.kill();
    there.confirmation("db@h1");
    assert!(there.seen.iter().all(|e| !matches!(e, Event::Failure(v) if named(v, "me@h1"))));
    assert!(w.status(1).watched.iter().any(|a| a.name == "me" && a.state == "alive"));
}

/// The program that is watched is started by the one that becomes the agent, so that the two see each other.
#[test]
fn in_a_pid_namespace_of_its_own_an_agent_sees_ends_by_pidfd() {
    let watch = |h| if h == 1 { "[[watch]]\nname = \"db\"\nprocess = \"sleep\"\n".into() } else { String::new() };
    let Some(mut w) = Setup::hosts(2).empty().extra(watch).up() else { return };
    w.start(2);
    let inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", "sleep 1000 & exec \"$0\" \"$@\""];
    w.start_under(1, &inside);
    w.all_alive();
    assert_eq!(w.status(1).exit_watch, "pidfd", "the kernel's programs know processes by other numbers");
    until("it is watched", || w.status(1).watched.iter().any(|p| p.pid == 2));
    let mut watcher = w.monitor(2, "db@h1");
    let child = |pid: i32| -> i32 {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    };
    kill(child(child(w.agent_pid(1))), libc::SIGKILL);
    let failure = watcher.failure("db@h1");
    assert_eq!((failure.cause, failure.code), (Cause::Exited, -1), "how it ended is its parent's to know");
}
