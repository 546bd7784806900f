//! Hosts, agents and networks fall silent.

use crate::common::service::ServiceManager;
use crate::common::{Setup, World, again, until};
use fide_lab::{Cut, NETS, SwitchFault, host_name};
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{Cause, Grade};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// The other hosts' numbers.
fn others(w: &World, but: u16) -> Vec<u16> {
    w.running().into_iter().filter(|h| *h != but).collect()
}

/// A host falls silent and comes back, until one of the others had proved that no heartbeat was
/// waiting: on a busy machine neither may have had the other's answers in time.
fn host_falls_silent(cut: Cut) {
    for _ in 0..5 {
        if host_falls_silent_once(cut).unwrap_or(true) {
            return;
        }
        again("no heartbeat was waiting, and nobody proved it");
    }
    panic!("no heartbeat was waiting, and nobody ever proved it");
}

/// Whether that was proved; `None` without root.
fn host_falls_silent_once(cut: Cut) -> Option<bool> {
    let w = Setup::hosts(3).up()?;
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    let life = w.view(2, "h1").unwrap().incarnation;
    let mut everything = w.monitor(2, "*");
    let mut process = w.monitor(3, "db@h1");
    let mut own = w.monitor(1, "*");
    for net in NETS {
        w.lab.cut(1, net, cut).unwrap();
    }
    for watcher in [&mut everything, &mut process] {
        let v = watcher.host("@h1", Cause::SilentHost);
        assert_eq!(v.grade, Grade::Inferred);
        let v = watcher.failure("db@h1");
        assert_eq!((v.cause, v.grade, v.is_crash()), (Cause::SilentHost, Grade::Inferred, true));
    }
    let drained = [2, 3].map(|observer| {
        let e = w.event(observer, "silent", |e| e.cause == Cause::SilentHost && e.node == "h1" && e.app.is_none());
        e.evidence.expect("a host's verdict has evidence").drained
    });
    own.host("@h1", Cause::Isolated);
    for net in NETS {
        w.lab.heal(1, net).unwrap();
    }
    for watcher in [&mut everything, &mut process] {
        let v = watcher.host("@h1", Cause::Returned);
        assert!(v.subject.incarnation > life, "never the same life again: {v:?}");
    }
    w.all_alive();
    own.host("@h1", Cause::Rejoined);
    w.known(1, "db");
    for observer in [2, 3] {
        let silent = w.events(observer, Cause::SilentHost);
        assert!(silent.iter().all(|e| e.node == "h1" && e.grade == Grade::Inferred && e.incarnation == life), "{silent:?}");
        assert_eq!(silent.iter().filter(|e| e.app.is_none()).count(), 1);
        assert_eq!(silent.iter().filter(|e| e.app.as_deref() == Some("db")).count(), 1);
        let evidence = silent[0].evidence.clone().expect("it rests on something");
        assert!(evidence.paths.iter().all(|p| p.silent_ns > evidence.timeout_ns), "{evidence:?}");
        // The second cable goes a moment after the first: where the agent stood still just then, and says so, its kernel may have answered by it.
        let answerable = if w.events(1, Cause::ObserverPaused).is_empty() { 0 } else { 1 };
        let unanswered = &evidence.paths[..evidence.paths.len() - answerable];
        assert!(unanswered.iter().all(|p| !p.kernel_answered), "{evidence:?}");
    }
    assert_eq!(everything.failures_of("db@h1"), 1);
    assert_eq!(own.failures().len(), 0);
    // Two hosts' carriers are not lost in one instant: the path that goes first may be told, and the agents may be lost in between.
    w.no_faults_but(|observer, (cause, node, _)| match observer {
        1 => *cause == Cause::Isolated || *cause == Cause::Interface || *cause == Cause::PathDown || node == "h1",
        _ => node == "h1" && [Cause::SilentHost, Cause::PathDown, Cause::Returned].contains(cause),
    });
    // And its processes are watched in the new life.
    p.kill();
    everything.wait(
        "the new instance fails",
        |e| matches!(e, fide_client::Event::Failure(v) if v.cause == Cause::Doomed && v.subject.incarnation > life),
    );
    // The other one's answers were the barrier.
    Some(drained.contains(&true))
}

#[test]
fn both_cables_pulled_is_a_silent_host() {
    host_falls_silent(Cut::Carrier);
}

#[test]
fn both_cables_dead_is_a_silent_host() {
    host_falls_silent(Cut::Silent);
}

#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_that_no_heartbeat_of_a_silent_host_waits_is_proved_at_the_first_try() {
    for cut in [Cut::Carrier, Cut::Silent] {
        let Some(proved) = host_falls_silent_once(cut) else { return };
        assert!(proved, "no heartbeat was waiting, and nobody proved it");
    }
}

#[test]
fn one_dead_cable_is_a_path_fault() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    for (round, cut) in [Cut::Silent, Cut::Carrier].into_iter().enumerate() {
        let net = round as u8;
        w.lab.cut(1, net, cut).unwrap();
        for observer in [2, 3] {
            let e = w.event(observer, "path down", |e| e.cause == Cause::PathDown && e.node == "h1" && e.code == i32::from(net));
            assert_eq!(e.grade, Grade::Inferred);
        }
        w.lab.heal(1, net).unwrap();
        for observer in [2, 3] {
            w.event(observer, "path up", |e| e.cause == Cause::PathUp && e.node == "h1" && e.code == i32::from(net));
        }
        w.all_alive();
    }
    // What h1 lost on its side is told of both others where its own carrier stayed, and as an interface where it did not.
    w.no_faults_but(|observer, (cause, node, _)| match observer {
        1 => *cause == Cause::PathDown || (*cause == Cause::Interface && node == "h1"),
        _ => *cause == Cause::PathDown && node == "h1",
    });
    for observer in [2, 3] {
        assert_eq!(w.events(observer, Cause::PathDown).len(), 2, "each fault once");
    }
}

#[test]
fn one_direction_lost_is_a_path_fault_of_those_who_hear_nothing() {
    let Some(w) = Setup::hosts(3).up() else { return };
    w.lab.cut(1, 0, Cut::FromHost).unwrap();
    for observer in [2, 3] {
        w.event(observer, "path down", |e| e.cause == Cause::PathDown && e.node == "h1" && e.code == 0);
    }
    w.lab.heal(1, 0).unwrap();
    for observer in [2, 3] {
        w.event(observer, "path up", |e| e.cause == Cause::PathUp && e.node == "h1" && e.code == 0);
    }
    w.all_alive();
    // (Changing a port may hold up the other direction for a moment.) What h1 asked did go astray,
    // and so may have what was asked of it.
    let of_h1 = |observer, node: &str| observer == 1 || node == "h1";
    let causes = [Cause::PathDown, Cause::ForeignTraffic];
    w.no_faults_but(|observer, (cause, node, _)| causes.contains(cause) && of_h1(observer, node));

    w.lab.cut(1, 1, Cut::ToHost).unwrap();
    for host in ["h2", "h3"] {
        w.event(1, "path down", |e| e.cause == Cause::PathDown && e.node == host && e.code == 1);
    }
    w.lab.heal(1, 1).unwrap();
    for host in ["h2", "h3"] {
        w.event(1, "path up", |e| e.cause == Cause::PathUp && e.node == host && e.code == 1);
    }
    w.no_faults_but(|observer, (cause, node, _)| causes.contains(cause) && of_h1(observer, node));
}

#[test]
fn a_dead_switch_is_a_path_fault_towards_everybody() {
    let Some(w) = Setup::hosts(3).up() else { return };
    for (net, how) in [(0, SwitchFault::Hung), (1, SwitchFault::Off)] {
        w.lab.switch_down(net, how).unwrap();
        for observer in w.running() {
            for host in others(&w, observer).into_iter().filter(|_| how == SwitchFault::Hung) {
                let host = format!("h{host}");
                w.event(observer, "path down", |e| e.cause == Cause::PathDown && e.node == host && e.code == i32::from(net));
            }
            until("the path is seen to be down", || {
                w.view(observer, &format!("h{}", observer % 3 + 1)).is_some_and(|h| !h.paths[usize::from(net)].up)
            });
        }
        w.lab.switch_up(net).unwrap();
        w.all_alive();
    }
    w.no_faults_but(|_, (cause, _, _)| [Cause::PathDown, Cause::Interface].contains(cause));
}

#[test]
fn a_killed_agent_is_lost_and_returns_as_another() {
    let Some(mut w) = Setup::hosts(3)
        .extra(|h| if h == 1 { "[[watch]]\nname = \"db\"\nprocess = \"e2e-standing\"\n".into() } else { String::new() })
        .up()
    else {
        return;
    };
    let p = standing(&w, 1);
    w.known(1, "db");
    let life = w.view(2, "h1").unwrap().incarnation;
    let mut watchers = [w.monitor(2, "db@h1"), w.monitor(3, "*")];
    w.kill_agent(1);
    for watcher in &mut watchers {
        let v = watcher.host("@h1", Cause::AgentLost);
        assert_eq!((v.grade, v.subject.incarnation), (Grade::Inferred, life));
    }
    assert_eq!(w.view(2, "h1").unwrap().apps[0].state, "unobserved");
    w.start(1);
    for watcher in &mut watchers {
        let v = watcher.host("@h1", Cause::Returned);
        assert!(v.subject.incarnation > life);
        assert!(watcher.failures().is_empty(), "nothing is claimed of its processes: {:?}", watcher.seen);
    }
    w.all_alive();
    w.known(1, "db");
    p.kill();
    for watcher in &mut watchers {
        assert_eq!(watcher.failure("db@h1").cause, Cause::Doomed);
        assert_eq!(watcher.failures().len(), 1);
    }
    w.no_faults_but(|observer, (cause, node, app)| {
        let story = [Cause::AgentLost, Cause::Returned].contains(cause) && observer != 1;
        node == "h1" && (story || (app.is_some() && [Cause::Doomed, Cause::Killed].contains(cause)))
    });
}

/// The kernel takes a killed agent's receive program down long after its sockets: here it stays as
/// long as the test holds it.
#[test]
fn a_killed_agent_is_told_by_its_port_while_its_receive_program_is_still_there() {
    let Some(mut w) = Setup::hosts(2).up() else { return };
    let held = links(w.agent_pid(1));
    assert!(!held.is_empty());
    w.kill_agent(1);
    let lost = w.event(2, "the agent is lost", |e| e.cause == Cause::AgentLost && e.node == "h1");
    let evidence = lost.evidence.unwrap();
    assert!(evidence.paths.iter().any(|path| path.agent_absent), "{evidence:?}");
    drop(held);
    w.no_faults_but(|_, (cause, node, _)| (*cause, node.as_str()) == (Cause::AgentLost, "h1"));
}

/// What holds a process's programs where they are attached, as descriptors of our own.
fn links(pid: i32) -> Vec<OwnedFd> {
    let duplicate = |pidfd: &OwnedFd, fd: i32| {
        // SAFETY: no pointers; the descriptor returned is new and ours alone.
        let ours = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) } as i32;
        assert!(ours >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: as said.
        unsafe { OwnedFd::from_raw_fd(ours) }
    };
    // SAFETY: no pointers; the descriptor returned is new and ours alone.
    let pidfd = unsafe { OwnedFd::from_raw_fd(libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32) };
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|entry| entry.unwrap().path());
    let links = fds.filter(|fd| std::fs::read_link(fd).is_ok_and(|to| to.to_string_lossy().contains("bpf_link")));
    links.map(|fd| duplicate(&pidfd, fd.file_name().unwrap().to_str().unwrap().parse().unwrap())).collect()
}

/// A process whose executable is called `e2e-standing` in this lab alone.
fn standing(w: &World, host: u16) -> crate::common::Process {
    let program = w.lab.host_dir(host).join("e2e-standing");
    if !program.exists() {
        std::fs::copy("/bin/sleep", &program).unwrap();
    }
    w.process(host, program.to_str().unwrap(), &["1000"])
}

#[test]
fn an_agent_restarted_at_once_is_another_life() {
    let Some(mut w) = Setup::hosts(2).up() else { return };
    let life = w.view(2, "h1").unwrap().incarnation;
    w.kill_agent(1);
    w.start(1);
    until("h2 knows the new life", || w.view(2, "h1").is_some_and(|h| h.incarnation > life && h.state == "alive"));
    let lost = w.events(2, Cause::AgentLost);
    assert_eq!(lost.iter().filter(|e| e.node == "h1" && e.incarnation == life).count(), 1, "{lost:?}");
    w.no_faults_but(|observer, (cause, node, _)| {
        observer == 2 && node == "h1" && [Cause::AgentLost, Cause::Returned].contains(cause)
    });
}

#[test]
fn a_stopped_agent_is_no_dead_host() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    let mut there = w.monitor(2, "*");
    // Its kernel's own answers show that no heartbeat waits here, unless a busy machine has them
    // come too late.
    until("an agent is lost after its kernel's answers on both paths", || {
        let (life, seq) = (w.view(2, "h1").unwrap().incarnation, w.history(2).last().map_or(0, |e| e.seq));
        there.seen.clear();
        w.signal_agent(1, libc::SIGSTOP);
        let v = there.host("@h1", Cause::AgentLost);
        assert_eq!(v.grade, Grade::Inferred);
        let is_lost = |e: &HistoryEvent| e.seq > seq && e.cause == Cause::AgentLost && e.node == "h1" && e.app.is_none();
        let told = w.event(2, "a lost agent", is_lost);
        // It stays stopped for a while after that: the kernel answers, so nothing else may be said.
        [2, 3].into_iter().for_each(|host| w.goes_on(host, 500));
        w.signal_agent(1, libc::SIGCONT);
        let v = there.host("@h1", Cause::Returned);
        assert!(v.subject.incarnation > life);
        w.all_alive();
        let proved = told.evidence.is_some_and(|e| e.drained && e.barriers.len() == 2);
        if !proved {
            again("an agent was lost before its kernel had answered on both paths");
        }
        proved
    });
    w.all_alive();
    w.known(1, "db");
    w.event(1, "its own pause", |e| e.cause == Cause::ObserverPaused && e.node == "h1");
    w.no_faults_but(|observer, (cause, node, _)| {
        node == "h1" && (*cause == Cause::Returned || (observer != 1 && *cause == Cause::AgentLost))
    });
    p.kill();
    assert_eq!(there.failure("db@h1").cause, Cause::Doomed);
}

#[test]
fn a_stopped_observer_accuses_nobody() {
    let Some(w) = Setup::hosts(3).up() else { return };
    // Short of the agent timeout: the others may find it late, not lost.
    for _ in 0..3 {
        w.signal_agent(3, libc::SIGSTOP);
        // Sleep: the pause, half of the agent timeout.
        std::thread::sleep(std::time::Duration::from_millis(500));
        w.signal_agent(3, libc::SIGCONT);
        w.all_alive();
    }
    w.event(3, "its own pause", |e| e.cause == Cause::ObserverPaused && e.code > 300_000);
    assert!(w.faults(3).iter().all(|(_, node, _)| node == "h3"), "{:?}", w.faults(3));
    // And so long that both others find it lost.
    let before = [1, 2].map(|host| w.events(host, Cause::AgentLost).len());
    w.signal_agent(3, libc::SIGSTOP);
    for (host, before) in [1, 2].into_iter().zip(before) {
        until("its agent is lost", || w.events(host, Cause::AgentLost).len() > before);
    }
    w.signal_agent(3, libc::SIGCONT);
    w.all_alive();
    assert!(w.faults(3).iter().all(|(cause, node, _)| node == "h3" && *cause == Cause::Returned), "{:?}", w.faults(3));
    w.no_faults_but(|_, (cause, node, _)| node == "h3" && [Cause::AgentLost, Cause::Returned].contains(cause));
}

/// Three hosts whose agents say, when they end, that they will be back in this time.
fn restarting(within: &str) -> Option<World> {
    let mut w = Setup::hosts(3).empty().up()?;
    for host in 1..=3 {
        let head = w.head(host, &host_name(host), "2ms");
        w.write_config(host, &format!("restart_within = \"{within}\"\n{head}"));
        w.start(host);
    }
    w.all_alive();
    Some(w)
}

#[test]
fn an_agent_that_is_started_again_in_time_was_never_gone() {
    let Some(mut w) = restarting("20s") else { return };
    let mut lives = w.sleeper(1);
    let mut ends = w.sleeper(1);
    w.watch_known(1, "lives", lives.pid());
    w.watch_known(1, "ends", ends.pid());
    let mut watcher = w.monitor(2, "@h1");
    let mut of_ends = w.monitor(2, "ends@h1");
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    for observer in [2, 3] {
        until("it is known to be started again", || w.state(observer, "h1") == "restarting");
    }
    assert_eq!(w.view(2, "h1").unwrap().apps[0].state, "unobserved");
    ends.kill();
    ends.ended();
    // The others look at it for longer than a stuck agent is given, and than every other timeout.
    w.all_go_on(750);
    w.no_faults_but(|_, _| false);
    w.start(1);
    w.all_alive();
    let told = w.event(2, "that it is back", |e| e.cause == Cause::Returned && e.node == "h1" && e.code == 3);
    assert_eq!(told.text, "the agent of h1 was started again");
    assert!(of_ends.failure("ends@h1").cause.ends_process());
    w.no_faults_but(|_, (cause, node, _)| {
        *cause == Cause::Returned && node == "h1" || cause.ends_process() && *cause != Cause::Left
    });
    watcher.host("@h1", Cause::Returned);
    let gone =
        |e: &&fide_client::Event| matches!(e, fide_client::Event::Host(v) if [Cause::Left, Cause::AgentLost].contains(&v.cause));
    assert_eq!(watcher.seen.iter().find(gone), None);
    lives.kill();
    lives.ended();
    w.event(3, "the end of the other", |e| e.app.as_deref() == Some("lives") && e.cause == Cause::Killed);
}

#[test]
fn an_agent_that_is_not_back_in_time_is_lost_and_its_host_lives() {
    let Some(mut w) = restarting("300ms") else { return };
    let mut watcher = w.monitor(2, "@h1");
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    let v = watcher.host("@h1", Cause::AgentLost);
    assert_eq!(v.grade, Grade::Inferred);
    w.event(3, "that it is lost", |e| e.cause == Cause::AgentLost && e.node == "h1");
    w.no_faults_but(|_, (cause, node, _)| *cause == Cause::AgentLost && node == "h1");
    w.start(1);
    w.all_alive();
}

#[test]
fn a_host_that_dies_while_its_agent_is_started_again_is_told_as_dead() {
    let Some(mut w) = restarting("1s") else { return };
    let db = w.sleeper(1);
    w.watch_known(1, "db", db.pid());
    let mut watcher = w.monitor(2, "db@h1");
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    until("it is known to be started again", || w.state(2, "h1") == "restarting");
    NETS.into_iter().for_each(|net| w.lab.cut(1, net, Cut::Silent).unwrap());
    let v = watcher.failure("db@h1");
    assert_eq!((v.cause, v.grade), (Cause::SilentHost, Grade::Inferred));
    assert_eq!(w.state(2, "h1"), "silent-host");
}

/// Whoever upgrades says `systemctl restart`; whoever takes a host out of service says `systemctl stop`.
#[test]
fn an_agent_that_systemd_restarts_was_never_gone_and_one_that_it_stops_left() {
    if !ServiceManager::can_run() {
        return;
    }
    let Some(mut w) = Setup::hosts(3).empty().up() else { return };
    for host in 1..=3 {
        w.write_config(host, &w.head(host, &host_name(host), "2ms"));
    }
    w.start(2);
    w.start(3);
    let unit = format!("fided-{}.service", std::process::id());
    let exec = format!("Type=notify\nExecStart={} --config {}\n", crate::common::fided(), w.config(1).display());
    let manager = ServiceManager::start(&w, 1, &unit, &exec);
    manager.systemctl(&["start"]);
    assert!(manager.runs());
    let db = w.sleeper(1);
    w.watch_known(1, "db", db.pid());
    until("it is known", || w.state(2, "h1") == "alive" && w.state(3, "h1") == "alive");
    let mut watcher = w.monitor(2, "@h1");
    let before: Vec<u64> = [2, 3].map(|host| w.history(host).last().map_or(0, |e| e.seq)).into();
    for round in 1..=3 {
        manager.systemctl(&["restart"]);
        until("it is back", || {
            let is_back = |e: &HistoryEvent| e.cause == Cause::Returned && e.node == "h1" && e.code == 3;
            [2, 3].into_iter().all(|host| w.history(host).into_iter().filter(is_back).count() == round)
        });
    }
    for (host, seq) in [2, 3].into_iter().zip(before) {
        let told = w.faults_since(host, seq);
        assert!(told.iter().all(|(cause, ..)| *cause == Cause::Returned), "{told:?}");
    }
    watcher.drain();
    assert!(watcher.failures().is_empty());
    w.known(1, "db");
    manager.systemctl(&["stop"]);
    let v = watcher.host("@h1", Cause::Left);
    assert_eq!(v.grade, Grade::Certain);
}

/// The assumptions that timeouts rest on are measured while they are relied on.
#[test]
fn a_margin_that_is_used_up_is_told_of_each_path_and_that_it_is_kept_again() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let told = |cause: Cause, path: i32| {
        let is =
            |e: &HistoryEvent| (e.cause, &*e.node, e.code) == (cause, "h1", path) && e.text.contains(&format!("on path {path}"));
        w.history(2).into_iter().find(is)
    };
    // Who stood still sends its next heartbeat with the next number, late on each path alike.
    until("a late heartbeat by both paths", || {
        w.signal_agent(1, libc::SIGSTOP);
        // Sleep: the pause, longer than any margin here.
        std::thread::sleep(std::time::Duration::from_millis(10));
        w.signal_agent(1, libc::SIGCONT);
        let is_told = || (0..2).all(|path| told(Cause::ContractBroken, path).is_some());
        // It is measured once a second.
        let measured_by = w.status(2).heartbeats_sent + 600;
        until("it was measured", || is_told() || w.status(2).heartbeats_sent > measured_by);
        is_told()
    });
    for path in 0..2 {
        let broken = told(Cause::ContractBroken, path).expect("it was there");
        assert_eq!((broken.id, broken.grade, broken.app), (None, Grade::Inferred, None));
        until("a contract that is kept again", || told(Cause::ContractKept, path).is_some_and(|kept| kept.seq > broken.seq));
    }
}

#[test]
fn an_agent_that_is_asked_to_stop_leaves_politely() {
    let Some(mut w) = Setup::hosts(3).up() else { return };
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    let mut watchers = [w.monitor(2, "db@h1"), w.monitor(2, "@h1"), w.monitor(3, "*")];
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    assert!(!w.socket(1).exists(), "its socket goes with it");
    for watcher in &mut watchers {
        let v = watcher.host("@h1", Cause::Left);
        assert_eq!(v.grade, Grade::Certain);
    }
    assert_eq!(w.view(2, "h1").unwrap().apps[0].state, "unobserved");
    // The others go on for far longer than every timeout.
    w.all_go_on(750);
    for observer in [2, 3] {
        assert_eq!(w.state(observer, "h1"), "left");
    }
    for watcher in &mut watchers {
        assert!(watcher.failures().is_empty());
        let told = watcher.seen.iter().filter(|e| matches!(e, fide_client::Event::Host(v) if v.cause == Cause::Left)).count();
        assert_eq!(told, 1, "{:?}", watcher.seen);
    }
    w.no_faults_but(|_, (cause, node, _)| *cause == Cause::Left && node == "h1");
    w.start(1);
    w.all_alive();
    w.no_faults_but(|_, (cause, node, _)| [Cause::Left, Cause::Returned].contains(cause) && node == "h1");
}
