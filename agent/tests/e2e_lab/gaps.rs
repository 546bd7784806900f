//! Crashes that fall into a gap of an agent: while it is stopped, killed, restarted, or cut off. Each is told on every host, once, as soon as they hear each other
//! again.

use crate::common::{Pins, Process, Setup, World, named, until, wait_for};
use crate::e2e_lab::beats::in_switch;
use crate::e2e_lab::neighbours::{kind, sender};
use crate::e2e_lab::ways::PacketSocket;
use fide_client::{Event, Resources, TargetState};
use fide_lab::{Cut, NETS, host_name};
use fide_wire::control::{HistoryEvent, Request, Selector};
use fide_wire::packet::Kind;
use fide_wire::verdict::{Cause, Grade};
use std::time::Duration;

/// Three hosts, and a database on the first.
fn three() -> Option<(World, Process)> {
    let w = Setup::hosts(3).up()?;
    let db = w.sleeper(1);
    w.watch_known(1, "db", db.pid());
    Some((w, db))
}

/// The last words on the database: certain ones.
fn ends(w: &World, host: u16) -> Vec<HistoryEvent> {
    let is_end = |e: &HistoryEvent| {
        e.app.as_deref() == Some("db")
            && e.grade == Grade::Certain
            && matches!(e.cause, Cause::Killed | Cause::Exited | Cause::Left)
    };
    w.history(host).into_iter().filter(is_end).collect()
}

/// Every host tells once that the database ended, so.
fn told_once(w: &World, cause: Cause, code: i32) {
    for host in w.running() {
        let told = w.event(host, "the end of db", |e| {
            e.app.as_deref() == Some("db") && e.grade == Grade::Certain && (e.cause, e.code) == (cause, code)
        });
        assert!(told.id.is_some(), "{told:?}");
    }
    // What comes twice comes with the next heartbeats.
    w.all_alive();
    for host in w.running() {
        let told: Vec<_> = ends(w, host).iter().map(|e| (e.cause, e.code)).collect();
        assert_eq!(told, [(cause, code)], "on h{host}");
    }
}

/// The database runs on, and nobody says otherwise; its crash is told.
fn goes_on(w: &World, db: &Process) {
    w.known(1, "db");
    for host in w.running() {
        let told = ends(w, host);
        assert!(told.is_empty(), "on h{host}: {told:?}");
    }
    db.kill();
    told_once(w, Cause::Killed, libc::SIGKILL);
}

fn given_up(w: &World) {
    for observer in [2, 3] {
        until("h1 is given up", || !matches!(w.state(observer, "h1").as_str(), "alive" | "late"));
    }
}

#[test]
fn while_its_agent_is_stopped() {
    let Some((w, db)) = three() else { return };
    w.signal_agent(1, libc::SIGSTOP);
    given_up(&w);
    db.kill();
    w.signal_agent(1, libc::SIGCONT);
    told_once(&w, Cause::Killed, libc::SIGKILL);
}

#[test]
fn while_its_host_is_cut_off() {
    let Some((w, db)) = three() else { return };
    NETS.into_iter().for_each(|net| w.lab.cut(1, net, Cut::Silent).unwrap());
    given_up(&w);
    db.kill();
    NETS.into_iter().for_each(|net| w.lab.heal(1, net).unwrap());
    told_once(&w, Cause::Killed, libc::SIGKILL);
}

#[test]
fn while_an_observer_is_cut_off() {
    let Some((w, db)) = three() else { return };
    NETS.into_iter().for_each(|net| w.lab.cut(2, net, Cut::Silent).unwrap());
    until("h2 is given up", || !matches!(w.state(3, "h2").as_str(), "alive" | "late"));
    db.kill();
    NETS.into_iter().for_each(|net| w.lab.heal(2, net).unwrap());
    told_once(&w, Cause::Killed, libc::SIGKILL);
}

#[test]
fn between_two_agents_of_which_the_first_was_killed() {
    let Some((mut w, mut db)) = three() else { return };
    w.kill_agent(1);
    db.kill();
    db.ended();
    w.start(1);
    told_once(&w, Cause::Exited, -1);
}

#[test]
fn between_two_agents_of_which_the_first_left() {
    let Some((mut w, mut db)) = three() else { return };
    w.signal_agent(1, libc::SIGTERM);
    w.agent_ended(1);
    db.kill();
    db.ended();
    w.start(1);
    told_once(&w, Cause::Exited, -1);
}

/// How the database ends between two agents of its host.
type End = fn(&mut Process);

#[test]
fn between_two_agents_the_kernel_keeps_how_and_when() {
    let killed: End = |db| db.kill();
    let terminated: End = |db| db.signal(libc::SIGTERM);
    for (end, signal, leaves) in [(killed, libc::SIGKILL, libc::SIGKILL), (terminated, libc::SIGTERM, libc::SIGTERM)] {
        let Some(pins) = Pins::new() else { return };
        let Some(mut w) = Setup::hosts(3).empty().up() else { return };
        for host in 1..=3 {
            let head = w.head(host, &host_name(host), "2ms");
            w.write_config(host, &pins.keeping_ends(&head));
            w.start(host);
        }
        w.all_alive();
        let mut db = w.sleeper(1);
        w.watch_known(1, "db", db.pid());
        let mut watcher = w.monitor(2, "db@h1");
        w.signal_agent(1, leaves);
        w.agent_ended(1);
        let before_ns = fide_agent::clock::now_ns();
        end(&mut db);
        db.ended();
        let after_ns = fide_agent::clock::now_ns();
        w.start(1);
        told_once(&w, Cause::Killed, signal);
        let told = watcher.failure("db@h1");
        assert!((before_ns..after_ns).contains(&told.event_ns), "{told:?}, ended between {before_ns} and {after_ns}");
    }
}

/// What has become of it is not known, so nobody says that it has ended; what ends from then on is told.
#[test]
fn of_a_table_that_is_lost_nothing_is_said_to_have_ended_and_what_ends_next_is_told() {
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let Some((mut w, db)) = three() else { return };
        let number = w.status(1).watched.iter().find(|watched| watched.name == "db").map(|watched| watched.app).unwrap();
        let mut watchers = [w.monitor(1, "*"), w.monitor(2, "*")];
        for watcher in &mut watchers {
            watcher.wait("db is there", |e| matches!(e, Event::Monitored(v) if named(v, "db@h1")));
        }
        w.signal_agent(1, signal);
        w.agent_ended(1);
        for file in ["state.json.table", "state.json.table.log"] {
            _ = std::fs::remove_file(w.lab.host_dir(1).join(file));
        }
        w.start(1);
        w.all_alive();
        for host in [2, 3] {
            let of_db = |e: &HistoryEvent| e.app.as_deref() == Some("db") && e.cause == Cause::Left;
            w.event(host, "db is not watched any more", of_db);
            assert!(ends(&w, host).iter().all(|e| e.cause == Cause::Left), "{:?}", ends(&w, host));
        }
        assert_eq!(watchers[1].failure("db@h1").cause, Cause::Left);
        db.kill();
        watchers[0].client.reconnect().unwrap();
        let mut next = w.sleeper(1);
        assert!(w.watch_known(1, "next", next.pid()) > number, "a number returned");
        next.kill();
        next.ended();
        for host in 1..=3 {
            w.event(host, "the end of the next one", |e| {
                e.app.as_deref() == Some("next") && (e.cause, e.code) == (Cause::Killed, 9)
            });
        }
        for watcher in &mut watchers {
            watcher.failure("next@h1");
            watcher.drain();
            assert_eq!((watcher.failures_of("next@h1"), watcher.failures_of("db@h1")), (1, 1), "on h{}", watcher.host);
            assert!(watcher.failures().iter().filter(|v| named(v, "db@h1")).all(|v| v.cause == Cause::Left));
        }
    }
}

/// The kernel tells of an exit long before it has taken down a large process: who watches it in that time is told that it has ended, or is told of its end.
#[test]
fn a_large_process_that_is_being_taken_down_is_not_watched_for_ever() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut watcher = w.monitor(2, "*");
    for round in 0..8 {
        let mut large = w.process(1, "dd", &["if=/dev/zero", "of=/dev/null", "bs=256M"]);
        let statm = format!("/proc/{}/statm", large.pid());
        let pages = || std::fs::read_to_string(&statm).ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
        until("it has its memory", || pages().is_some_and(|pages| pages > 50_000));
        large.kill();
        // Sleep: how far its end has come, which differs from round to round.
        std::thread::sleep(Duration::from_millis(round % 4));
        let name = format!("large{round}");
        let watched = w.ask(1, &Request::watch(&name, Selector::Pid(large.pid())));
        large.ended();
        if watched.is_ok() {
            watcher.failure(&format!("{name}@h1"));
        }
    }
    until("nobody is said to run", || w.status(1).watched.iter().all(|watched| watched.state != "alive"));
}

/// The next agent reads another file: what the former one watched for its own gives way at once.
#[test]
fn a_watch_that_names_another_process_after_a_restart_has_it_at_once() {
    let Some(mut w) = Setup::hosts(2).empty().up() else { return };
    let (mut first, mut second) = (w.sleeper(1), w.sleeper(1));
    let config = |w: &World, name: &str, pid: u32| {
        w.write_config(1, &format!("{}\n[[watch]]\nname = \"{name}\"\npid = {pid}\n", w.head(1, "h1", "2ms")));
    };
    w.write_config(2, &w.head(2, "h2", "2ms"));
    config(&w, "db", first.pid());
    [1, 2].into_iter().for_each(|host| w.start(host));
    w.all_alive();
    w.known(1, "db");
    for (name, pid, kept) in [("db", second.pid(), true), ("other", second.pid(), false)] {
        w.signal_agent(1, libc::SIGKILL);
        w.agent_ended(1);
        config(&w, name, pid);
        let before_ns = fide_agent::clock::now_ns();
        w.start(1);
        until("the new watch has its process", || {
            w.status(1).watched.iter().any(|watched| watched.name == name && watched.pid == pid && watched.state == "alive")
        });
        // The watches of a former file that nobody asks for go ten seconds later.
        assert!(fide_agent::clock::now_ns() - before_ns < 9_000_000_000);
        let of_db = |watched: &fide_wire::control::WatchStatus| watched.name == "db" && watched.state == "alive";
        assert_eq!(w.status(1).watched.iter().any(of_db), kept);
    }
    for process in [&mut first, &mut second] {
        process.kill();
        process.ended();
    }
    w.event(2, "the end of the other one", |e| e.app.as_deref() == Some("other") && (e.cause, e.code) == (Cause::Killed, 9));
}

#[test]
fn a_process_goes_on_under_the_next_agent() {
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let Some((mut w, db)) = three() else { return };
        w.signal_agent(1, signal);
        w.agent_ended(1);
        w.start(1);
        w.all_alive();
        goes_on(&w, &db);
    }
}

#[test]
fn after_many_agents_and_an_observer_that_was_not_there() {
    let Some((mut w, db)) = three() else { return };
    for round in 0..5 {
        if round == 2 {
            w.kill_agent(3);
        }
        w.signal_agent(1, if round % 2 == 0 { libc::SIGKILL } else { libc::SIGTERM });
        w.agent_ended(1);
        w.start(1);
        w.all_alive();
    }
    w.start(3);
    w.all_alive();
    goes_on(&w, &db);
}

#[test]
fn while_an_observers_agent_is_not_there() {
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let Some((mut w, mut db)) = three() else { return };
        // It has to be in the file that this table was known; other than that nothing of h1 has happened here.
        until("it is in the file that h1's table is known", || {
            let kept = std::fs::read(w.lab.host_dir(2).join("state.json.table")).unwrap_or_default();
            let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap_or_default();
            !kept["seen"][fide_wire::name_id("h1").to_string()].is_null()
        });
        w.signal_agent(2, signal);
        w.agent_ended(2);
        db.kill();
        db.ended();
        w.start(2);
        told_once(&w, Cause::Killed, libc::SIGKILL);
    }
}

#[test]
fn an_application_hears_what_ended_while_its_agent_was_not_there() {
    for target in ["db@h1", "@h1", "*"] {
        let Some((mut w, mut db)) = three() else { return };
        let other = w.sleeper(1);
        w.watch_known(1, "other", other.pid());
        let mut watcher = w.monitor(2, target);
        if target != "db@h1" {
            watcher
                .wait("db is introduced", |e| matches!(e, fide_client::Event::Monitored(v) if crate::common::named(v, "db@h1")));
        }
        w.kill_agent(2);
        db.kill();
        db.ended();
        w.start(2);
        watcher.wait("its agent is gone", |e| matches!(e, fide_client::Event::AgentGone));
        watcher.client.reconnect().unwrap();
        let v = watcher.failure("db@h1");
        assert_eq!((v.cause, v.code, v.grade), (Cause::Killed, libc::SIGKILL, Grade::Certain), "{target}");
        w.all_alive();
        w.known(1, "other");
        watcher.client.reconnect().unwrap();
        other.kill();
        if target != "db@h1" {
            watcher.failure("other@h1");
        }
        w.event(2, "the other end", |e| e.cause == Cause::Killed && e.app.as_deref() == Some("other"));
        watcher.drain();
        assert_eq!(watcher.failures_of("db@h1"), 1, "{target}");
    }
}

#[test]
fn on_its_own_host_too() {
    let Some((mut w, mut db)) = three() else { return };
    let mut watcher = w.monitor(1, "db@h1");
    w.kill_agent(1);
    db.kill();
    db.ended();
    w.start(1);
    watcher.wait("its agent is gone", |e| matches!(e, fide_client::Event::AgentGone));
    watcher.client.reconnect().unwrap();
    let v = watcher.failure("db@h1");
    assert_eq!((v.cause, v.code), (Cause::Exited, -1));
}

#[test]
fn who_monitors_is_told_what_is_there() {
    let Some((mut w, mut db)) = three() else { return };
    let state = |w: &World, host: u16, target: &str| {
        let client = w.subscriber(host, false).client;
        let monitored = client.monitor(target, Resources::default()).unwrap();
        (monitored.state.expect("this agent says so"), monitored.end, monitored.alive)
    };
    for host in [1, 2] {
        assert_eq!(state(&w, host, "db@h1"), (TargetState::Alive, None, true));
        assert_eq!(state(&w, host, "@h1"), (TargetState::Alive, None, true));
        assert_eq!(state(&w, host, "nothing@h1"), (TargetState::NoProcess, None, false));
        assert_eq!(state(&w, host, "db@h9"), (TargetState::NoHost, None, false));
    }
    db.kill();
    db.ended();
    told_once(&w, Cause::Killed, libc::SIGKILL);
    for host in [1, 2] {
        assert_eq!(state(&w, host, "db@h1"), (TargetState::Ended, Some((Cause::Killed, libc::SIGKILL)), false));
    }
    w.kill_agent(2);
    w.start(2);
    w.all_alive();
    // What ended before an agent's time is known all the same.
    until("h2 knows that it ended", || state(&w, 2, "db@h1").0 == TargetState::Ended);
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    assert_eq!(state(&w, 2, "db@h1"), (TargetState::Alive, None, true));
    w.kill_agent(1);
    given_up(&w);
    assert_eq!(state(&w, 2, "db@h1").0, TargetState::Unobserved);
}

#[test]
fn after_a_cut_the_certain_end_confirms_the_inferred_one() {
    let Some((w, mut db)) = three() else { return };
    let mut watcher = w.monitor(2, "*");
    NETS.into_iter().for_each(|net| w.lab.cut(1, net, Cut::Silent).unwrap());
    assert_eq!(watcher.failure("db@h1").grade, Grade::Inferred);
    db.kill();
    db.ended();
    NETS.into_iter().for_each(|net| w.lab.heal(1, net).unwrap());
    let v = watcher.confirmation("db@h1");
    assert_eq!((v.cause, v.code, v.grade), (Cause::Killed, libc::SIGKILL, Grade::Certain));
    assert_eq!(watcher.failures_of("db@h1"), 1);
}

#[test]
fn after_a_cut_a_process_that_lives_is_introduced_again_and_its_crash_is_told() {
    let Some((w, db)) = three() else { return };
    let mut watcher = w.monitor(2, "*");
    NETS.into_iter().for_each(|net| w.lab.cut(1, net, Cut::Silent).unwrap());
    assert_eq!(watcher.failure("db@h1").grade, Grade::Inferred);
    NETS.into_iter().for_each(|net| w.lab.heal(1, net).unwrap());
    watcher.host("@h1", Cause::Returned);
    w.known(1, "db");
    db.kill();
    until("the crash is told", || {
        watcher.drain();
        watcher.failures_of("db@h1") == 2
    });
}

/// The next agent of a host takes its kernel for another one, started anew.
fn boots(w: &mut World, host: u16, boot: u32) {
    let id = w.lab.host_dir(host).join(format!("boot-{boot}"));
    std::fs::write(&id, format!("{boot:08x}-0000-4000-8000-000000000000\n")).unwrap();
    let script = format!("mount --bind {} /proc/sys/kernel/random/boot_id && exec \"$@\"", id.display());
    w.start_under(host, &["unshare", "--mount", "sh", "-c", &script, "sh"]);
}

/// What a host tells of the database's ends: cause and incarnation of each.
fn ends_of_db(w: &World, host: u16) -> Vec<(Cause, u32)> {
    let is_end = |e: &HistoryEvent| e.app.as_deref() == Some("db") && e.cause.ends_process();
    w.history(host).into_iter().filter(is_end).map(|e| (e.cause, e.incarnation)).collect()
}

#[test]
fn what_ended_with_its_host_is_not_told_again_when_that_has_booted() {
    let Some((mut w, mut db)) = three() else { return };
    let before = w.view(2, "h1").unwrap().incarnation;
    let mut watcher = w.monitor(2, "db@h1");
    NETS.into_iter().for_each(|net| w.lab.cut(1, net, Cut::Silent).unwrap());
    w.kill_agent(1);
    db.kill();
    db.ended();
    for host in [2, 3] {
        w.event(host, "db ended with its host", |e| e.app.as_deref() == Some("db") && e.cause == Cause::SilentHost);
    }
    NETS.into_iter().for_each(|net| w.lab.heal(1, net).unwrap());
    boots(&mut w, 1, 2);
    w.all_alive();
    let after = w.view(2, "h1").unwrap().incarnation;
    // It may even have the same pid again: it is another one, whose end is told.
    let mut next = w.sleeper(1);
    w.watch_known(1, "db", next.pid());
    for host in [2, 3] {
        assert_eq!(ends_of_db(&w, host), [(Cause::SilentHost, before)], "on h{host}");
    }
    next.kill();
    next.ended();
    for host in [2, 3] {
        w.event(host, "the end of the next one", |e| (e.cause, e.incarnation) == (Cause::Killed, after));
        let doomed_and_killed = [(Cause::SilentHost, before), (Cause::Doomed, after), (Cause::Killed, after)];
        assert_eq!(ends_of_db(&w, host), doomed_and_killed, "on h{host}");
    }
    until("the watcher hears of both", || watcher.failures_of("db@h1") == 2);
    let told: Vec<_> = watcher.failures().iter().map(|v| v.subject.incarnation).collect();
    assert_eq!(told, [before, after]);
}

#[test]
fn what_ended_with_a_host_that_booted_unnoticed_is_told_once_of_the_incarnation_in_which_it_ran() {
    let Some((mut w, mut db)) = three() else { return };
    let before = w.view(2, "h1").unwrap().incarnation;
    let mut watchers = [w.monitor(2, "db@h1"), w.monitor(2, "@h1"), w.monitor(2, "*")];
    for watcher in &mut watchers[1..] {
        watcher.wait("db is introduced", |e| matches!(e, Event::Monitored(v) if named(v, "db@h1")));
    }
    w.signal_agent(2, libc::SIGSTOP);
    w.kill_agent(1);
    db.kill();
    db.ended();
    boots(&mut w, 1, 3);
    w.signal_agent(2, libc::SIGCONT);
    w.all_alive();
    let mut next = w.sleeper(1);
    w.watch_known(1, "db", next.pid());
    assert_eq!(ends_of_db(&w, 2), [(Cause::Exited, before)]);
    for watcher in &mut watchers {
        let told = watcher.failure("db@h1");
        assert_eq!((told.cause, told.code, told.subject.incarnation), (Cause::Exited, -1, before));
    }
    next.kill();
    next.ended();
    for watcher in &mut watchers {
        until("the next end is told, too", || watcher.failures_of("db@h1") == 2);
    }
}

/// What a switch hands to a host because of a crash elsewhere: changes, pulls and rows of others.
/// One that a busy machine has lost a packet of is followed by another one.
fn frames_of_a_crash(hosts: u16) -> Option<usize> {
    let w = Setup::hosts(hosts).heartbeat("10ms").up()?;
    let own = fide_wire::name_id("h2");
    let is_of_tables = |f: &Vec<u8>| matches!(kind(f), Some(Kind::Notice | Kind::Pull | Kind::Rows)) && sender(f) != own;
    let mut ports = Vec::new();
    NETS.into_iter().for_each(|net| in_switch(&w, net, || ports.push(PacketSocket::open(&host_name(2)))));
    let read = || ports.iter().flat_map(PacketSocket::read).filter(is_of_tables).count();
    let lost = || {
        let paths = |host: u16| w.status(host).hosts.into_iter().flat_map(|h| h.paths).map(|path| path.lost).sum::<u64>();
        w.running().into_iter().map(paths).sum::<u64>()
    };
    let mut crashes = 0;
    Some(wait_for("a crash of which no packet is lost", || {
        crashes += 1;
        let name = format!("db{crashes}");
        let db = w.sleeper(1);
        w.watch_known(1, &name, db.pid());
        let before = lost();
        // What is on its way yet.
        until("nothing of tables comes", || {
            read();
            w.all_go_on(10);
            read() == 0
        });
        db.kill();
        for host in w.running() {
            w.event(host, "the end", |e| e.app.as_deref() == Some(name.as_str()) && e.cause == Cause::Killed);
        }
        // What is told twice, or pulled, comes with the next heartbeats.
        w.all_go_on(20);
        let frames = read();
        (lost() == before).then_some(frames)
    }))
}

#[test]
fn a_crash_costs_a_host_as_many_packets_in_a_large_cluster_as_in_a_small_one() {
    for hosts in [3, 8, 16] {
        let Some(frames) = frames_of_a_crash(hosts) else { return };
        println!("{hosts} hosts: {frames} packets to each for one crash");
        // Doomed and killed, on two paths. One that is lost is pulled.
        assert!((2..=6).contains(&frames), "{frames} with {hosts} hosts");
    }
}
