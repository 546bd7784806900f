//! Who is there and does not move (B10): hung, neither dead nor unreachable.

use crate::common::{Process, Setup, Watcher, World, named, until};
use fide_client::Event;
use fide_wire::verdict::{Cause, Grade, ProgressSource};
use std::time::Duration;

/// Far above what a busy machine holds a process up for, far below the tests' patience.
const LIMIT_MS: u64 = 300;

/// An application that joined and shows progress, by as many counters.
fn working(w: &World, host: u16, name: &str, counters: usize) -> Process {
    let mut p = w.actor(host, "application", &[]);
    assert_eq!(p.hear(), "ready");
    order(&mut p, &format!("join {name} 0"));
    w.known(host, name);
    for _ in 0..counters {
        order(&mut p, &format!("progress {LIMIT_MS}"));
    }
    order(&mut p, "tick-on");
    p
}

fn order(p: &mut Process, what: &str) {
    p.say(what);
    let said = p.hear();
    assert!(said.starts_with("ok"), "{what}: {said}");
}

fn state(w: &World, observer: u16, name: &str) -> String {
    let apps = w.view(observer, "h1").map(|h| h.apps).unwrap_or_default();
    apps.into_iter().find(|a| a.name == name).map_or_else(|| "unknown".into(), |a| a.state)
}

fn hung_count(watcher: &mut Watcher, name: &str) -> usize {
    watcher.drain();
    watcher.seen.iter().filter(|e| matches!(e, Event::Hung(v) if named(v, name))).count()
}

/// Nobody was told of anything but this process's progress, and of its ends if it may end.
fn only_progress(w: &World, ends: bool) {
    w.no_faults_but(|_, (cause, node, app)| {
        app.is_some() && node == "h1" && (cause.is_progress() || (ends && cause.ends_process()))
    });
}

#[test]
fn b10_a_livelock_is_hung_not_dead_and_moves_again() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let mut p = working(&w, 1, "db", 1);
    let mut watchers = [w.monitor(2, "db@h1"), w.monitor(3, "*"), w.monitor(1, "db@h1"), w.subscriber(2, true)];
    watchers[3].client.monitor("@h1", fide_client::Resources::default()).unwrap();
    // It turns in a circle and does not tick.
    order(&mut p, "spin");
    order(&mut p, "tick-off");
    let mut ids = Vec::new();
    for watcher in &mut watchers {
        let v = watcher.hung("db@h1");
        assert_eq!((v.grade, ProgressSource::from_code(v.code)), (Grade::Inferred, Some(ProgressSource::Counter(0))));
        assert_eq!((v.is_crash(), v.local), (false, watcher.host == 1));
        ids.extend(v.id);
    }
    assert!(ids.len() == 4 && ids.iter().all(|id| *id == ids[0]), "the same verdict everywhere: {ids:?}");
    for observer in [2, 3] {
        assert_eq!((state(&w, observer, "db").as_str(), w.state(observer, "h1").as_str()), ("hung", "alive"));
        let e = w.event(observer, "hung", |e| e.cause == Cause::Hung && e.app.as_deref() == Some("db"));
        assert_eq!((e.id, e.node.as_str(), e.grade), (Some(ids[0]), "h1", Grade::Inferred));
        assert!(e.evidence.is_some_and(|e| e.event_ns > 0 && e.sent_ns >= e.event_ns && e.received_ns > 0));
    }
    let own = w.event(1, "hung", |e| e.cause == Cause::Hung);
    assert_eq!(own.evidence.unwrap().timeout_ns, LIMIT_MS * 1_000_000);
    assert!(w.status(1).watched.iter().any(|a| a.name == "db" && a.state == "hung"));

    // Who comes later is told as well.
    let mut late = [w.monitor(2, "db@h1"), w.monitor(3, "@h1"), w.monitor(1, "*")];
    for watcher in &mut late {
        assert_eq!(watcher.hung("db@h1").id, Some(ids[0]));
    }
    order(&mut p, "tick-on");
    for watcher in watchers.iter_mut().chain(&mut late) {
        assert_eq!(watcher.progressing("db@h1").grade, Grade::Certain);
        assert_eq!(hung_count(watcher, "db@h1"), 1);
        assert!(watcher.failures().is_empty());
    }
    until("all hold it for alive", || [2, 3].iter().all(|o| state(&w, *o, "db") == "alive"));
    only_progress(&w, false);
}

#[test]
fn b10_a_stopped_process_is_hung_and_its_kill_is_a_certain_crash() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let p = working(&w, 1, "db", 2);
    let mut watchers = [w.monitor(2, "db@h1"), w.monitor(1, "db@h1")];
    p.signal(libc::SIGSTOP);
    for watcher in &mut watchers {
        watcher.hung("db@h1");
    }
    p.signal(libc::SIGCONT);
    for watcher in &mut watchers {
        watcher.progressing("db@h1");
        assert_eq!(hung_count(watcher, "db@h1"), 1, "two counters, one process: told once");
    }
    p.signal(libc::SIGSTOP);
    for watcher in &mut watchers {
        watcher.wait("hung again", |e| matches!(e, Event::Hung(v) if v.id.is_some_and(|id| id.0 as u32 > 2)));
    }
    p.kill();
    for watcher in &mut watchers {
        let v = watcher.failure("db@h1");
        crate::common::certain(&v);
        assert_eq!((v.cause, v.code), (Cause::Doomed, libc::SIGKILL));
        watcher.confirmation("db@h1");
    }
    only_progress(&w, true);
}

#[test]
fn b10_idle_is_not_hung() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut idle = working(&w, 1, "idle", 1);
    order(&mut idle, "end");
    order(&mut idle, "tick-off");
    // Another one hangs twice as long: had the idle one been held for hung, it would have been told by then.
    let mut busy = working(&w, 1, "busy", 1);
    order(&mut busy, &format!("limit {}", 2 * LIMIT_MS));
    let mut there = w.monitor(2, "@h1");
    order(&mut busy, "tick-off");
    there.hung("busy@h1");
    assert_eq!(hung_count(&mut there, "idle@h1"), 0);
    // And when it begins something and does not end it, it is.
    order(&mut idle, "begin");
    there.hung("idle@h1");
    order(&mut idle, "end");
    there.progressing("idle@h1");
    only_progress(&w, false);
}

#[test]
fn b10_a_stopped_agent_finds_nobody_hung() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let _p = working(&w, 1, "db", 1);
    let mut q = working(&w, 1, "queue", 1);
    let mut there = w.monitor(2, "@h1");
    for _ in 0..3 {
        w.signal_agent(1, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(2 * LIMIT_MS));
        w.signal_agent(1, libc::SIGCONT);
    }
    // It looks again: what does hang is found, and nothing else was.
    order(&mut q, "tick-off");
    there.hung("queue@h1");
    assert_eq!(hung_count(&mut there, "db@h1"), 0);
    assert!(there.failures().is_empty());
}

#[test]
fn b10_hung_is_told_anew_in_a_new_incarnation_and_unobserved_without_an_agent() {
    let Some(mut w) = Setup::hosts(3).up() else { return };
    let mut p = working(&w, 1, "db", 1);
    let mut there = w.monitor(2, "@h1");
    order(&mut p, "tick-off");
    let first = there.hung("db@h1");
    // Given up by the others while it is stopped: it returns as another, and its processes are what they were.
    w.signal_agent(1, libc::SIGSTOP);
    there.host("@h1", Cause::AgentLost);
    assert_eq!(state(&w, 2, "db"), "unobserved");
    w.signal_agent(1, libc::SIGCONT);
    let life = first.subject.incarnation;
    there.wait("hung in the new life", |e| matches!(e, Event::Hung(v) if v.subject.incarnation > life));
    until("h3 knows, too", || state(&w, 3, "db") == "hung");
    order(&mut p, "tick-on");
    there.wait("moves in the new life", |e| matches!(e, Event::Progressing(v) if v.subject.incarnation > life));
    // With the agent gone nothing is said of it; with the next one it shows its progress again.
    w.kill_agent(1);
    until("unobserved", || state(&w, 2, "db") == "unobserved");
    w.start(1);
    w.all_alive();
    order(&mut p, "reconnect");
    w.known(1, "db");
    let seen = hung_count(&mut there, "db@h1");
    order(&mut p, "tick-off");
    let mut again = w.monitor(3, "db@h1");
    again.hung("db@h1");
    there.drain();
    assert!(hung_count(&mut there, "db@h1") <= seen + 1);
}

#[test]
fn b10_who_comes_to_the_cluster_later_knows_who_is_hung() {
    let Some(mut w) = Setup::hosts(3).empty().up() else { return };
    w.start(1);
    w.start(2);
    w.all_alive();
    let mut p = working(&w, 1, "db", 1);
    let mut there = w.monitor(2, "db@h1");
    order(&mut p, "tick-off");
    there.hung("db@h1");
    // Long after the notice was confirmed.
    std::thread::sleep(Duration::from_millis(100));
    w.start(3);
    until("h3 knows", || state(&w, 3, "db") == "hung");
    let mut late = w.monitor(3, "db@h1");
    late.hung("db@h1");
    order(&mut p, "tick-on");
    late.progressing("db@h1");
    only_progress(&w, false);
}

#[test]
fn f20_an_application_reports_what_its_own_detector_found() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    let mut there = w.monitor(2, "db@h1");
    let mut doctor = w.actor(1, "application", &[]);
    assert_eq!(doctor.hear(), "ready");
    order(&mut doctor, "report db hung");
    let v = there.hung("db@h1");
    assert_eq!((v.grade, ProgressSource::from_code(v.code)), (Grade::Inferred, Some(ProgressSource::Report)));
    w.event(1, "the reason", |e| e.cause == Cause::Local && e.text.contains("db") && e.text.contains("as told"));
    order(&mut doctor, "report db progressing");
    there.progressing("db@h1");
    doctor.say("report nobody hung");
    assert!(doctor.hear().contains("no process named nobody"));
    p.kill();
    there.failure("db@h1");
}
