//! What applications that have groups open do to their host's agent: many sessions, large states, an exit of all at once, values
//! without end. Crashes are told meanwhile, and nobody gives the host up.

use super::groups::{create, open, runs};
use crate::common::{Pins, Process, Setup, World, until};
use fide_client::group::{Event, Group};
use fide_wire::verdict::Cause;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Three hosts and a group of them, whose fences close soon: an agent that stands still for long is given up.
fn three(engine: &str) -> Option<World> {
    let w = Setup::hosts(3).heartbeat("10ms").up()?;
    w.all_alive();
    create(&w, 1, "orders", engine, &["h1", "h2", "h3"]).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    Some(w)
}

/// Reads what there is, and proposes a value where the last one was taken.
fn turn(group: &mut Group, value: &[u8]) -> bool {
    while group.poll(Some(Duration::ZERO)).unwrap().is_some() {}
    group.pending() > 0 || group.propose(value).is_ok()
}

/// Nobody took h1 for gone, a crash on it is told, and how late its heartbeats were at most is printed.
fn is_well(w: &World, what: &str) {
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    p.kill();
    w.event(2, "the crash", |e| e.cause == Cause::Killed && e.app.as_deref() == Some("db"));
    let late: Vec<_> = (1..=3).flat_map(|host| w.events(host, Cause::ContractBroken)).map(|e| e.text).collect();
    let paused: Vec<_> = w.events(1, Cause::ObserverPaused).iter().map(|e| e.text.clone()).collect();
    println!("{what}: late {late:?}, paused {paused:?}");
    let of = [Cause::SilentHost, Cause::AgentLost, Cause::Isolated, Cause::Fenced];
    w.no_faults_but(|_, fault| fault.2.is_some() || !of.contains(&fault.0));
}

/// A process with a large state and many sessions ends. Its agent is left with all of them at once.
#[test]
fn an_application_with_many_sessions_and_a_large_state_exits() {
    let Some(w) = three("huc") else { return };
    let mut first = open(&w, 1, 1, 0, 0);
    first.propose(b"a value").unwrap();
    until("it is told", || {
        _ = first.poll(Some(Duration::from_millis(10)));
        first.index() == 1
    });
    first.keep_snapshot(1, &vec![7; 64 * MIB]).unwrap();
    until("the state is kept", || {
        let mut group = open(&w, 1, 2, 0, 0);
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            match group.poll(Some(Duration::from_millis(10))).unwrap() {
                Some(Event::Snapshot { bytes, .. }) => return bytes.len() == 64 * MIB,
                Some(Event::Entry(_)) => return false,
                _ => {}
            }
        }
        false
    });
    let sessions: Vec<Group> = (0..200).map(|at| open(&w, 1, 100 + at, 0, 0)).collect();
    // Sleep: the agent writes as much as their sockets take.
    std::thread::sleep(Duration::from_millis(500));
    drop(sessions);
    until("their sessions have ended", || super::groups::status(&w, 1, "orders").is_some_and(|group| group.sessions == 1));
    is_well(&w, "an exit with 200 sessions and 64 MiB");
}

/// Many sessions propose large values without end.
#[test]
fn many_sessions_propose_large_values_at_once() {
    for engine in ["huc", "raft"] {
        let Some(w) = three(engine) else { return };
        let mut sessions: Vec<Group> = (0..200).map(|at| open(&w, 1, 100 + at, 0, 0)).collect();
        let value = vec![7; 60 << 10];
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            assert!(sessions.iter_mut().all(|group| turn(group, &value)));
        }
        is_well(&w, &format!("{engine}: values of 60 KiB by 200 sessions"));
        let entries = super::groups::status(&w, 1, "orders").unwrap().index;
        println!("{engine}: {entries} entries");
        assert!(entries > 0);
    }
}

fn resident_mib(w: &World, host: u16) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", w.agent_pid(host))).unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() >> 10
}

/// What has been decided, and is in a state that the application handed in, is not kept: neither by a group, nor by its engine.
#[test]
fn agents_do_not_grow_with_what_was_decided() {
    for engine in ["huc", "hsuc", "raft"] {
        let Some(w) = three(engine) else { return };
        let mut groups = [1, 2, 3].map(|host| open(&w, host, host.into(), 0, 0));
        let before = [1, 2, 3].map(|host| resident_mib(&w, host));
        let value = vec![7; 60 << 10];
        let until_index = 100 * MIB as u64 / value.len() as u64;
        let (mut handed_in, began) = ([0; 3], Instant::now());
        while groups.iter().any(|group| group.index() < until_index) {
            assert!(began.elapsed() < Duration::from_secs(80), "{:?}", groups.each_ref().map(Group::index));
            for (group, handed_in) in groups.iter_mut().zip(&mut handed_in) {
                while group.poll(Some(Duration::from_micros(100))).unwrap().is_some() {}
                if group.index() >= *handed_in + 8 {
                    *handed_in = group.index();
                    group.keep_snapshot(*handed_in, b"a small state").unwrap();
                }
            }
            if groups[0].pending() < 4 && groups[0].index() < until_index {
                _ = groups[0].propose(&value);
            }
        }
        let after = [1, 2, 3].map(|host| resident_mib(&w, host));
        println!("{engine}: 100 MiB decided in {:?}; resident {before:?} MiB before, {after:?} behind", began.elapsed());
        assert!(before.iter().zip(&after).all(|(before, after)| *after < before + 40), "{before:?} {after:?}");
    }
}

const ALICE: u32 = 1101;
const BOB: u32 = 1102;

/// How long things took: median, p99 and maximum.
fn figures(what: &str, mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
    println!("{what}: median {:?}, p99 {:?}, maximum {:?}, n = {}", at(0.5), at(0.99), at(1.0), all.len());
    at(0.99)
}

/// Crashes on h1 as h2's application is told of them, and root's status, for so long.
fn crashes_and_statuses(w: &World, what: &str, lasts: Duration) -> Duration {
    let client = fide_client::Client::open(Some(&w.socket(2))).unwrap();
    client.monitor("@h1", fide_client::Resources::default()).unwrap();
    let (began, mut crashes, mut statuses) = (Instant::now(), Vec::new(), Vec::new());
    while began.elapsed() < lasts {
        let p = w.sleeper(1);
        let app = w.watch_known(1, "victim", p.pid());
        let killed_ns = fide_client::monotonic_ns();
        p.kill();
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            assert!(Instant::now() < until, "{what}: a crash is not told");
            if let Some(fide_client::Event::Failure(v)) = client.poll(Some(Duration::from_millis(100))).unwrap()
                && v.subject.app == app
            {
                crashes.push(Duration::from_nanos(v.received_ns.saturating_sub(killed_ns)));
                break;
            }
        }
        let asked = Instant::now();
        w.status(1);
        statuses.push(asked.elapsed());
    }
    figures(&format!("{what}, root's status"), statuses);
    figures(&format!("{what}, a crash on h1 is told on h2"), crashes)
}

/// Two users of h1 are at their worst, beside an application that does its work. Its values are decided, crashes are told, root is
/// answered, and no fence closes. `FIDE_WORST_SECONDS`: for how long.
#[test]
fn users_at_their_worst_stop_no_application_and_close_no_fence() {
    let seconds = std::env::var("FIDE_WORST_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3.0);
    let lasts = Duration::from_secs_f64(seconds);
    let Some(pins) = Pins::new() else { return };
    let rights = format!("[access.groups]\norders = [\"{ALICE}\", \"{BOB}\"]\n");
    let fence = |host| pins.config(host, "mode = \"acknowledged\"\ntimeout = \"3s\"\nmargin = \"10ms\"");
    let configs: Vec<String> = (1..=3).map(|host| format!("{rights}{}", fence(host))).collect();
    let Some(w) = Setup::hosts(3).heartbeat("10ms").extra(move |host| configs[usize::from(host) - 1].clone()).up() else {
        return;
    };
    w.all_alive();
    create(&w, 1, "orders", "huc", &["h1", "h2", "h3"]).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    let quiet = crashes_and_statuses(&w, "quiet", lasts);
    let mut well = open(&w, 1, 1, 0, 0);
    let ms = (2 * lasts).as_millis().to_string();
    let hoard = |uid: u32| w.actor(1, "hoard", &[&uid.to_string(), &uid.to_string(), &ms]);
    let mut users: Vec<Process> = [ALICE, BOB].map(hoard).into();
    users.iter_mut().for_each(|user| assert_eq!(user.hear(), "ready"));
    let worst = crashes_and_statuses(&w, "at their worst", lasts);
    let (began, mut decided, mut handed_in) = (Instant::now(), Vec::new(), 0);
    while began.elapsed() < lasts {
        // Nobody else hands in states that are whole.
        if well.index() >= handed_in + 8 {
            handed_in = well.index();
            well.keep_snapshot(handed_in, b"a state").unwrap();
        }
        let proposed = Instant::now();
        let Ok(number) = well.propose(b"a value") else { continue };
        let (until, client) = (Instant::now() + Duration::from_secs(30), well.client());
        loop {
            assert!(Instant::now() < until, "a well-behaved application's value is not decided: {:?}", well.standing());
            match well.poll(Some(Duration::from_millis(100))).unwrap() {
                Some(Event::Entry(entry)) if entry.is_own(number, client) => break,
                Some(Event::Snapshot { .. }) if well.pending() == 0 => break,
                _ => {}
            }
            if well.index() >= handed_in + 8 {
                handed_in = well.index();
                well.keep_snapshot(handed_in, b"a state").unwrap();
            }
        }
        decided.push(proposed.elapsed());
    }
    figures("a value of an application that does its work", decided);
    users.iter_mut().for_each(|user| println!("{}", user.hear()));
    println!("crash p99: {:.2} of the quiet one's", worst.as_secs_f64() / quiet.as_secs_f64());
    for host in 1..=3 {
        w.events(host, Cause::Local).iter().for_each(|e| println!("h{host}: {}", e.text));
    }
    // Local ones are of the histories, which take so many crashes of one host; foreign traffic are frames that overtake each other by far
    // when a lab's thread moves between busy processors, and are taken for replays.
    let of_load = [Cause::Local, Cause::ForeignTraffic];
    w.no_faults_but(|_, fault| fault.2.is_some() || of_load.contains(&fault.0));
    is_well(&w, "users at their worst");
}

/// A log that nobody reads, as of a journal that hangs, holds no agent up.
#[test]
fn an_agent_goes_on_though_nobody_reads_its_log() {
    let Some(mut w) = Setup::hosts(2).heartbeat("10ms").empty().up() else { return };
    w.start(2);
    // A pipe that is full from the beginning, and whose reader reads nothing.
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("log");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let mut open = std::fs::OpenOptions::new();
    let mut reader = open.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
    while reader.write(&[b'\n'; 4096]).is_ok() {}
    let script = format!("exec \"$0\" \"$@\" 2> {}", fifo.display());
    w.start_under(1, &["sh", "-c", &script]);
    w.all_alive();
    // Each is a line or more.
    for at in 0..300 {
        let p = w.sleeper(1);
        w.watch(1, &format!("p{at}"), p.pid());
        p.kill();
        w.event(2, "the crash", |e| e.cause == Cause::Killed && e.app.as_deref() == Some(&format!("p{at}")));
    }
    w.no_faults_but(|_, fault| fault.2.is_some());
    drop(reader);
}
