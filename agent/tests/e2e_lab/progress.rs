//! Who is there and does not move (B10): hung, neither dead nor unreachable.

use crate::common::{Process, Setup, Watcher, World, named, until};
use crate::e2e_lab::fence::{Group, Pins, Traffic, ear, fence};
use fide_client::Event;
use fide_wire::control::FenceOrder;
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
        // Sleep: the pause of the agent, twice as long as the limit.
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
    w.goes_on(1, 50);
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

/// What a hook says: on hung, kill.
fn with_kill(host: u16) -> String {
    if host == 1 { "[[hook]]\non = [\"hung\"]\nmatch = \"db@*\"\naction = \"kill\"\n".into() } else { String::new() }
}

#[test]
fn b10_a_hook_kills_who_is_hung_and_that_is_a_certain_crash() {
    let Some(w) = Setup::hosts(3).extra(with_kill).up() else { return };
    let mut p = working(&w, 1, "db", 1);
    let mut other = working(&w, 1, "other", 1);
    let mut watchers = [w.monitor(2, "@h1"), w.monitor(3, "db@h1")];
    order(&mut other, "tick-off");
    watchers[0].hung("other@h1");
    order(&mut p, "tick-off");
    for watcher in &mut watchers {
        watcher.hung("db@h1");
        let v = watcher.failure("db@h1");
        crate::common::certain(&v);
        assert_eq!((v.cause, v.code), (Cause::Doomed, libc::SIGKILL));
    }
    assert_eq!(p.ended_by(), Some(libc::SIGKILL));
    w.event(1, "that it was the hook", |e| e.cause == Cause::Local && e.text.contains("db") && e.text.contains("killed"));
    assert_eq!(watchers[0].failures_of("other@h1"), 0, "the hook is not for it");
    assert!(w.status(1).watched.iter().any(|a| a.name == "other" && a.state == "hung"));
}

#[test]
fn b10_a_hook_cuts_off_who_is_hung_until_the_next_instance() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("hung")) else { return };
    let lines = format!("mode = \"sent\"\ntimeout = \"10s\"\ncgroups = [\"{}\"]", group.0.display());
    let hook = "[[hook]]\non = [\"hung\"]\nmatch = \"db@*\"\naction = \"fence\"\n";
    let config = format!("{hook}{}", pins.config(1, &lines));
    let Some(mut w) = Setup::hosts(2).extra(move |h| if h == 1 { config.clone() } else { String::new() }).up() else {
        return;
    };
    let inside = |w: &World| {
        let p = w.actor(1, "application", &[]);
        std::fs::write(group.0.join("cgroup.procs"), p.pid().to_string()).unwrap();
        p
    };
    let started = |mut p: Process| {
        assert_eq!(p.hear(), "ready");
        for what in ["join db 0", &format!("progress {LIMIT_MS}"), "tick-on"] {
            order(&mut p, what);
        }
        p
    };
    let mut db = started(inside(&w));
    // Another process of its service sends for it.
    let script = format!(
        "echo $$ > {}/cgroup.procs; while :; do echo x > /dev/udp/{}/3999 || :; done 2> /dev/null",
        group.0.display(),
        w.lab.ipv4(2, 0)
    );
    let _sender = w.process(1, "bash", &["-c", &script]);
    let heard = ear(&w, 2);
    heard.flows();
    let mut there = w.monitor(2, "db@h1");
    order(&mut db, "tick-off");
    there.hung("db@h1");
    w.event(1, "that it was the hook", |e| e.cause == Cause::Local && e.text.contains("db was hung and is cut off"));
    heard.is_cut_off();
    // It moves again: others may have done without it, so that changes nothing.
    order(&mut db, "tick-on");
    there.progressing("db@h1");
    heard.is_cut_off();
    // Nor does it that another process of its cgroup is watched.
    let other = inside(&w);
    w.watch_known(1, "helper", other.pid());
    heard.is_cut_off();
    assert_eq!(w.fencings(1).len(), 0, "nobody else is meant");
    // Nor does it that the agent ends, cleanly or not, or that all gates are opened for a new incarnation.
    let outside = Traffic::new_to(&w, 1, 2, 3998);
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        w.signal_agent(1, signal);
        w.agent_ended(1);
        if signal == libc::SIGTERM {
            until("its log says so", || w.log(1).contains(&format!("process {} was cut off and lives", db.pid())));
            outside.flows();
        }
        heard.is_cut_off();
        w.start(1);
        until("its fence is open", || fence(&w, 1, FenceOrder::Status).state == "open");
        heard.is_cut_off();
        w.watch_known(1, "db", db.pid());
        heard.is_cut_off();
    }
    fence(&w, 1, FenceOrder::Shut);
    until("it is fenced", || fence(&w, 1, FenceOrder::Status).state == "fenced");
    fence(&w, 1, FenceOrder::Recover);
    outside.flows();
    heard.is_cut_off();
    w.kill_agent(1);
    w.start(1);
    w.watch_known(1, "db", db.pid());
    let mut there = w.monitor(2, "db@h1");
    outside.flows();
    heard.is_cut_off();
    db.kill();
    there.failure("db@h1");
    let _next = started(inside(&w));
    heard.flows();
}

/// Neither by leaving and coming again. Who came beside it is heard when it is gone.
#[test]
fn b10_who_is_cut_off_and_lives_does_not_open_its_gate() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("hung-and-back")) else { return };
    let lines = format!("mode = \"sent\"\ntimeout = \"10s\"\nhost = false\ncgroups = [\"{}\"]", group.0.display());
    let hook = "[[hook]]\non = [\"hung\"]\nmatch = \"db@*\"\naction = \"fence\"\n";
    let config = format!("{hook}{}", pins.config(1, &lines));
    let Some(w) = Setup::hosts(2).extra(move |h| if h == 1 { config.clone() } else { String::new() }).up() else {
        return;
    };
    let mut db = w.actor(1, "application", &[]);
    std::fs::write(group.0.join("cgroup.procs"), db.pid().to_string()).unwrap();
    assert_eq!(db.hear(), "ready");
    for what in ["join db 0", &format!("progress {LIMIT_MS}"), "tick-on"] {
        order(&mut db, what);
    }
    let script = format!(
        "echo $$ > {}/cgroup.procs; while :; do echo x > /dev/udp/{}/3999 || :; done 2> /dev/null",
        group.0.display(),
        w.lab.ipv4(2, 0)
    );
    let other = w.process(1, "bash", &["-c", &script]);
    let heard = ear(&w, 2);
    heard.flows();
    order(&mut db, "tick-off");
    w.event(1, "that it was the hook", |e| e.cause == Cause::Local && e.text.contains("db was hung and is cut off"));
    heard.is_cut_off();
    for what in ["quit", "join db 0"] {
        order(&mut db, what);
        heard.is_cut_off();
    }
    w.watch_known(1, "other", other.pid());
    heard.is_cut_off();
    db.kill();
    heard.flows();
}

/// A configuration with one watch by pid-independent name and this probe on h1.
fn probed(w: &mut World, probe: &str) -> Process {
    let program = w.lab.host_dir(1).join("e2e-probed");
    if !program.exists() {
        std::fs::copy("/bin/sleep", &program).unwrap();
    }
    let process = w.process(1, program.to_str().unwrap(), &["1000"]);
    // By its number, so that other labs' processes are not meant.
    let watch = format!("[[watch]]\nname = \"db\"\npid = {}\nprogress = {{ limit = \"1s\", {probe} }}\n", process.pid());
    w.write_config(1, &format!("{}\n{watch}", w.head(1, "h1", "2ms")));
    for host in 1..=2 {
        w.start(host);
    }
    w.all_alive();
    w.known(1, "db");
    process
}

#[test]
fn b10_a_command_that_fails_or_never_returns_is_hung() {
    let Some(mut w) = Setup::hosts(2).empty().up() else { return };
    let script = w.lab.host_dir(1).join("probe.sh");
    let says = |what: &str| {
        std::fs::write(&script, format!("#!/bin/sh\n{what}\n")).unwrap();
        let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o700);
        std::fs::set_permissions(&script, mode).unwrap();
    };
    says("exit 0");
    let command = format!("command = [\"/bin/sh\", \"{}\"]", script.display());
    let p = probed(&mut w, &command);
    let mut there = w.monitor(2, "db@h1");
    for (what, again) in [("echo no; exit 1", "exit 0"), ("exec sleep 1000", "exit 0")] {
        says(what);
        let before = there.seen.len();
        let v = there.wait("hung", |e| matches!(e, Event::Hung(v) if named(v, "db@h1")));
        let Event::Hung(v) = v else { panic!() };
        assert_eq!(ProgressSource::from_code(v.code), Some(ProgressSource::Command));
        says(again);
        there.progressing("db@h1");
        assert!(there.seen.len() > before);
        there.seen.clear();
    }
    p.kill();
    there.failure("db@h1");
}

#[test]
fn b10_a_file_that_stands_still_is_hung_also_after_a_reload() {
    let Some(mut w) = Setup::hosts(2).empty().up() else { return };
    let log = w.lab.host_dir(1).join("app.log");
    std::fs::write(&log, "").unwrap();
    // A log that grows, as long as the flag is there.
    let flag = w.lab.host_dir(1).join("flag");
    std::fs::write(&flag, "").unwrap();
    let script = format!("while :; do [ -e {} ] && echo x >> {}; sleep 0.05; done", flag.display(), log.display());
    let _writer = w.process(1, "sh", &["-c", &script]);
    let p = probed(&mut w, &format!("file = \"{}\"", log.display()));
    let mut there = w.monitor(2, "db@h1");
    std::fs::remove_file(&flag).unwrap();
    let v = there.hung("db@h1");
    assert_eq!(ProgressSource::from_code(v.code), Some(ProgressSource::File));
    std::fs::write(&flag, "").unwrap();
    there.progressing("db@h1");
    // Without the probe nothing is said of it any more, and it was not let go of meanwhile.
    std::fs::remove_file(&flag).unwrap();
    there.wait("hung again", |e| matches!(e, Event::Hung(v) if v.id.is_some_and(|id| id.0 as u32 > 2)));
    let watch = format!("[[watch]]\nname = \"db\"\npid = {}\n", p.pid());
    w.write_config(1, &format!("{}\n{watch}", w.head(1, "h1", "2ms")));
    w.ask(1, &fide_wire::control::Request::Reload).unwrap();
    until("it is alive to h2", || state(&w, 2, "db") == "alive");
    assert!(there.failures().is_empty(), "{:?}", there.seen);
    p.kill();
    there.failure("db@h1");
}

/// A file system of its own that can be frozen; thawed and gone when this is dropped.
struct Freezer {
    dir: std::path::PathBuf,
    frozen: bool,
    /// Thaws it after a while whatever becomes of this test: a frozen file system stops whoever syncs.
    guard: std::process::Child,
}

impl Freezer {
    fn make(lab_dir: &std::path::Path) -> Option<Self> {
        let (image, dir) = (lab_dir.join("disk.img"), lab_dir.join("disk"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let done = |program: &str, args: &[&std::ffi::OsStr]| {
            std::process::Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
        };
        let made = done("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image.as_os_str()])
            && done("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), dir.as_os_str()]);
        if !made {
            println!("SKIPPED: this machine cannot mount a file system of its own (mkfs.ext4, loop device)");
        }
        if !made {
            return None;
        }
        let script = "sleep 60; fsfreeze --unfreeze \"$0\"; umount -l \"$0\"";
        let guard =
            std::process::Command::new("sh").args(["-c", script]).arg(&dir).stderr(std::process::Stdio::null()).spawn().unwrap();
        Some(Self { dir, frozen: false, guard })
    }

    fn freeze(&mut self, on: bool) {
        let option = if on { "--freeze" } else { "--unfreeze" };
        assert!(std::process::Command::new("fsfreeze").arg(option).arg(&self.dir).status().unwrap().success());
        self.frozen = on;
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        if self.frozen {
            let _ = std::process::Command::new("fsfreeze").arg("--unfreeze").arg(&self.dir).status();
        }
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.dir).status();
        let _ = self.guard.kill(); // its sleep ends by itself
        let _ = self.guard.wait();
    }
}

#[test]
fn b10_a_frozen_disk_is_hung_and_holds_up_nothing_else() {
    let Some(mut w) = Setup::hosts(2).empty().up() else { return };
    let Some(mut disk) = Freezer::make(&w.lab.host_dir(1)) else { return };
    let p = probed(&mut w, &format!("write = \"{}\"", disk.dir.join("probe").display()));
    let other = w.sleeper(1);
    w.watch_known(1, "other", other.pid());
    let mut there = w.monitor(2, "@h1");
    disk.freeze(true);
    let v = there.hung("db@h1");
    assert_eq!(ProgressSource::from_code(v.code), Some(ProgressSource::Write));
    // The write cannot even be killed now. Everything else goes on: crashes, clients, the agent's own end and the next one's beginning.
    other.kill();
    there.failure("other@h1");
    assert_eq!(w.state(2, "h1"), "alive");
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    there.host("@h1", Cause::Left);
    w.start(1);
    w.all_alive();
    w.known(1, "db");
    there.wait("hung in the next life", |e| matches!(e, Event::Hung(x) if x.subject.incarnation > v.subject.incarnation));
    disk.freeze(false);
    there.wait("moves", |e| matches!(e, Event::Progressing(x) if x.subject.incarnation > v.subject.incarnation));
    p.kill();
    there.failure("db@h1");
}

/// Not a promise, a figure: from the end of the limit to the upcall on another host.
#[test]
#[ignore = "measures: make nightly"]
fn the_time_from_the_limit_to_another_host() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut p = working(&w, 1, "db", 1);
    let mut there = w.monitor(2, "db@h1");
    const TIMES: usize = 100;
    let limit_ns = 100_000_000;
    order(&mut p, "limit 100");
    let (mut limits, mut tellings) = (Vec::new(), Vec::new());
    for i in 0..TIMES {
        there.seen.clear();
        // Sleep: anywhere between two looks.
        std::thread::sleep(Duration::from_micros((i as u64 * 7919) % 12_500));
        order(&mut p, "tick-off");
        // The ticking thread may tick once more within 2 ms.
        let still = fide_client::monotonic_ns();
        let v = there.hung("db@h1");
        let now = fide_client::monotonic_ns();
        // One machine, one clock.
        tellings.push(now.saturating_sub(v.event_ns) / 1000);
        limits.push(v.event_ns.saturating_sub(still + limit_ns) / 1000);
        order(&mut p, "tick-on");
        there.progressing("db@h1");
    }
    for (what, mut us) in [("limit reached → found", limits), ("found → told on another host", tellings)] {
        us.sort_unstable();
        println!(
            "{what}: median {} µs, p99 {} µs, max {} µs (limit 100 ms, {TIMES} times)",
            us[TIMES / 2],
            us[TIMES - 2],
            us[TIMES - 1]
        );
    }
}
