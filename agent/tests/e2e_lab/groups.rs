//! Groups on real agents: values that hosts agree on, also while agents are killed, stopped and come back.

use crate::common::{Setup, World, until, wait_for};
use fide_client::group::{Entry, Event, Group, Options, Stage};
use fide_wire::control::{ErrorCode, GroupOrder, GroupStatus, Reply, Request};
use std::time::{Duration, Instant};

fn order(w: &World, host: u16, order: GroupOrder) -> Result<Reply, fide_client::Error> {
    w.ask(host, &Request::Group { order })
}

fn refused(result: Result<Reply, fide_client::Error>) -> (ErrorCode, String) {
    match result {
        Err(fide_client::Error::Refused(refused)) => (refused.code, refused.what),
        other => panic!("not refused: {other:?}"),
    }
}

fn create(w: &World, host: u16, name: &str, engine: &str, hosts: &[&str]) -> Result<Reply, fide_client::Error> {
    let hosts = hosts.iter().map(|host| (*host).to_string()).collect();
    order(w, host, GroupOrder::Create { name: name.into(), engine: engine.into(), policy: "trust-contract".into(), hosts })
}

fn status(w: &World, host: u16, name: &str) -> Option<GroupStatus> {
    match order(w, host, GroupOrder::Status) {
        Ok(Reply::Groups { groups }) => groups.into_iter().find(|group| group.name == name),
        other => panic!("no groups: {other:?}"),
    }
}

fn runs(w: &World, host: u16, name: &str) {
    until("the group runs", || status(w, host, name).is_some_and(|group| group.stage == Stage::Running));
}

/// Three hosts, and a group of them.
fn three(engine: &str) -> Option<World> {
    let w = Setup::hosts(3).up()?;
    w.all_alive();
    create(&w, 1, "orders", engine, &["h1", "h2", "h3"]).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    Some(w)
}

fn open(w: &World, host: u16, client: u64, behind: u64, last_number: u64) -> Group {
    let options = Options { path: Some(w.socket(host)), client, behind, last_number };
    wait_for("the group is opened", || Group::open_with("orders", options.clone()).ok())
}

/// The next entries until this many were read.
fn read(group: &mut Group, entries: &mut Vec<Entry>, count: usize) {
    let until = Instant::now() + Duration::from_secs(30);
    while entries.len() < count {
        assert!(Instant::now() < until, "{} of {count} entries: {:?}", entries.len(), group.standing());
        if let Some(Event::Entry(entry)) = group.poll(Some(Duration::from_millis(100))).unwrap() {
            entries.push(entry);
        }
    }
}

fn values(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| String::from_utf8_lossy(&entry.bytes).into_owned()).collect()
}

#[test]
fn what_any_host_proposes_is_decided_on_all_in_one_order() {
    for engine in ["huc", "hsuc"] {
        let Some(w) = three(engine) else { return };
        let mut groups: Vec<Group> = (1..=3).map(|host| open(&w, host, u64::from(host), 0, 0)).collect();
        for n in 0..50 {
            for (at, group) in groups.iter_mut().enumerate() {
                group.propose(format!("h{} {n}", at + 1).as_bytes()).unwrap();
            }
        }
        let mut logs = vec![Vec::new(); 3];
        for (group, log) in groups.iter_mut().zip(&mut logs) {
            read(group, log, 150);
        }
        assert_eq!(logs[0], logs[1]);
        assert_eq!(logs[0], logs[2]);
        for host in 1..=3u64 {
            let own: Vec<u64> = logs[0].iter().filter(|entry| entry.client == host).map(|entry| entry.number).collect();
            assert_eq!(own, (1..=50).collect::<Vec<u64>>(), "each host's in its order, each once");
        }
        let large = vec![7u8; 60_000];
        groups[1].propose(&large).unwrap();
        read(&mut groups[2], &mut logs[2], 151);
        assert_eq!(logs[2][150].bytes, large);
    }
}

#[test]
fn the_leading_agent_is_killed_and_the_others_go_on() {
    let Some(mut w) = three("huc") else { return };
    let mut on_2 = open(&w, 2, 22, 0, 0);
    let mut on_3 = open(&w, 3, 33, 0, 0);
    let (mut log_2, mut log_3) = (Vec::new(), Vec::new());
    on_2.propose(b"before").unwrap();
    read(&mut on_2, &mut log_2, 1);
    // Decided or not when the leader dies: once, everywhere.
    for n in 0..20 {
        on_2.propose(format!("{n}").as_bytes()).unwrap();
    }
    w.kill_agent(1);
    on_3.propose(b"behind").unwrap();
    read(&mut on_2, &mut log_2, 22);
    read(&mut on_3, &mut log_3, 22);
    assert_eq!(log_2, log_3);
    until("it is evicted", || status(&w, 2, "orders").is_some_and(|group| group.members.len() == 2 && group.leader == Some(2)));
    // It comes back by itself, with everything.
    w.start(1);
    runs(&w, 1, "orders");
    let mut on_1 = open(&w, 1, 11, 0, 0);
    let mut log_1 = Vec::new();
    read(&mut on_1, &mut log_1, 22);
    assert_eq!(log_1, log_2);
    on_1.propose(b"back").unwrap();
    read(&mut on_3, &mut log_3, 23);
    assert_eq!(values(&log_3)[22], "back");
    assert_eq!(status(&w, 1, "orders").unwrap().me, Some(4));
}

#[test]
fn an_agent_that_was_stopped_for_long_comes_back_as_a_new_member() {
    let Some(w) = three("huc") else { return };
    let mut on_1 = open(&w, 1, 11, 0, 0);
    let mut on_2 = open(&w, 2, 22, 0, 0);
    let (mut log_1, mut log_2) = (Vec::new(), Vec::new());
    on_1.propose(b"one").unwrap();
    read(&mut on_1, &mut log_1, 1);
    w.signal_agent(1, libc::SIGSTOP);
    // While it stands still somebody proposes there, and on another host.
    on_1.propose(b"by who stood still").unwrap();
    until("the others go on", || status(&w, 2, "orders").is_some_and(|group| group.leader == Some(2)));
    on_2.propose(b"two").unwrap();
    read(&mut on_2, &mut log_2, 2);
    w.signal_agent(1, libc::SIGCONT);
    runs(&w, 1, "orders");
    read(&mut on_1, &mut log_1, 3);
    read(&mut on_2, &mut log_2, 3);
    assert_eq!(log_1, log_2);
    let mut all = values(&log_1);
    all.sort_unstable();
    assert_eq!(all, ["by who stood still", "one", "two"]);
    assert_eq!(status(&w, 1, "orders").unwrap().me, Some(4));
}

#[test]
fn a_client_that_reconnects_has_nothing_applied_twice() {
    let Some(mut w) = three("huc") else { return };
    let mut on_2 = open(&w, 2, 22, 0, 0);
    let mut log = Vec::new();
    for n in 1..=5 {
        on_2.propose(format!("{n}").as_bytes()).unwrap();
    }
    read(&mut on_2, &mut log, 5);
    for n in 6..=10 {
        on_2.propose(format!("{n}").as_bytes()).unwrap();
    }
    w.kill_agent(2);
    // What it had proposed may be decided, or not.
    loop {
        match on_2.poll(Some(Duration::from_millis(100))) {
            Ok(Some(Event::Entry(entry))) => log.push(entry),
            Ok(_) => {}
            Err(e) => {
                assert!(matches!(e, fide_client::Error::Disconnected), "{e}");
                break;
            }
        }
    }
    w.start(2);
    runs(&w, 2, "orders");
    wait_for("it reconnects", || on_2.reconnect().ok());
    on_2.propose(b"11").unwrap();
    read(&mut on_2, &mut log, 11);
    assert_eq!(values(&log), (1..=11).map(|n| n.to_string()).collect::<Vec<_>>());
    // As after a crash of the application: the same client in a new process.
    let mut again = open(&w, 3, 22, 0, 9);
    again.propose(b"10 for the second time").unwrap();
    again.propose(b"11 for the second time").unwrap();
    again.propose(b"12").unwrap();
    read(&mut on_2, &mut log, 12);
    assert_eq!(values(&log)[11], "12");
}

#[test]
fn a_snapshot_stands_for_the_entries_before_it() {
    let Some(mut w) = three("huc") else { return };
    let mut groups: Vec<Group> = (1..=3).map(|host| open(&w, host, u64::from(host), 0, 0)).collect();
    for n in 1..=10 {
        groups[0].propose(format!("{n}").as_bytes()).unwrap();
    }
    for group in &mut groups {
        let mut log = Vec::new();
        read(group, &mut log, 10);
        let state = vec![8u8; 200_000];
        group.keep_snapshot(8, &state).unwrap();
    }
    w.kill_agent(3);
    w.start(3);
    runs(&w, 3, "orders");
    let mut on_3 = open(&w, 3, 0, 0, 0);
    let event = wait_for("a snapshot", || match on_3.poll(Some(Duration::from_millis(100))).unwrap() {
        Some(Event::Standing(_) | Event::Members(_)) | None => None,
        Some(event) => Some(event),
    });
    let Event::Snapshot { index: 8, bytes } = event else { panic!("{event:?}") };
    assert_eq!(bytes, vec![8u8; 200_000]);
    let mut log = Vec::new();
    read(&mut on_3, &mut log, 2);
    assert_eq!(values(&log), ["9", "10"]);
}

#[test]
fn a_group_leaves_joins_and_changes_its_engine() {
    let Some(w) = three("hsuc") else { return };
    let mut on_2 = open(&w, 2, 22, 0, 0);
    let mut log = Vec::new();
    order(&w, 2, GroupOrder::Switch { name: "orders".into(), engine: "huc".into() }).unwrap();
    on_2.propose(b"one").unwrap();
    read(&mut on_2, &mut log, 1);
    until("all have changed", || (1..=3).all(|host| status(&w, host, "orders").is_some_and(|group| group.engine == "huc")));
    order(&w, 1, GroupOrder::Leave { name: "orders".into() }).unwrap();
    until("it left", || status(&w, 1, "orders").is_some_and(|group| group.stage == Stage::Left));
    on_2.propose(b"two").unwrap();
    read(&mut on_2, &mut log, 2);
    order(&w, 1, GroupOrder::Join { name: "orders".into() }).unwrap();
    runs(&w, 1, "orders");
    let mut on_1 = open(&w, 1, 11, 0, 0);
    let mut log_1 = Vec::new();
    read(&mut on_1, &mut log_1, 2);
    assert_eq!(log_1, log);
}

#[test]
fn what_cannot_be_is_refused_with_words_that_help() {
    let Some(w) = three("huc") else { return };
    let (code, what) = refused(create(&w, 1, "orders", "huc", &["h1", "h2"]));
    assert!(code == ErrorCode::Exists && what.contains("already"), "{what}");
    let (code, what) = refused(create(&w, 1, "other", "huc", &["h1", "h9"]));
    assert!(code == ErrorCode::NotFound && what.contains("h9 is not heard"), "{what}");
    let (code, what) = refused(create(&w, 1, "other", "huc", &["h2", "h3"]));
    assert!(code == ErrorCode::Invalid && what.contains("this host is not one of them"), "{what}");
    let (code, what) = refused(create(&w, 1, "other", "quorum", &["h1"]));
    assert!(code == ErrorCode::Invalid && what.contains("huc"), "{what}");
    let fenced = GroupOrder::Create {
        name: "other".into(),
        engine: "huc".into(),
        policy: "fence".into(),
        hosts: vec!["h1".into(), "h2".into()],
    };
    let (code, what) = refused(order(&w, 1, fenced));
    assert!(code == ErrorCode::Invalid && what.contains("has no fence"), "{what}");
    let (code, what) = refused(order(&w, 1, GroupOrder::Leave { name: "other".into() }));
    assert!(code == ErrorCode::NotFound && what.contains("no group other"), "{what}");
    assert!(matches!(
        Group::open_with("other", Options { path: Some(w.socket(1)), ..Options::default() }),
        Err(fide_client::Error::Refused(refused)) if refused.code == ErrorCode::NotFound
    ));
    // Nobody but those who may.
    let mut stranger = w.actor(1, "opener", &["orders"]);
    let said = [stranger.hear(), stranger.hear(), stranger.hear()];
    assert!(said[..2].iter().all(|line| line.starts_with("error") && line.contains("groups")), "{said:?}");
    assert!(said[2].starts_with("ok Groups"), "{said:?}");
    order(&w, 1, GroupOrder::Join { name: "nobody-has-it".into() }).unwrap();
    until("nobody has it", || {
        status(&w, 1, "nobody-has-it").is_some_and(|group| group.stage == Stage::Failed && group.why.contains("no host"))
    });
    let mut on_1 = open(&w, 1, 11, 0, 0);
    assert!(matches!(on_1.propose(&vec![0; fide_client::group::VALUE_MAX + 1]), Err(fide_client::Error::TooLarge { .. })));
}

/// A client of one host that proposes one value after the other until it is told to stop, and reconnects as often as it takes.
fn client(socket: std::path::PathBuf, id: u64, stop: &std::sync::atomic::AtomicBool) -> (u64, Vec<Entry>) {
    let options = Options { path: Some(socket), client: id, behind: 0, last_number: 0 };
    let mut group = wait_for("the group is opened", || Group::open_with("orders", options.clone()).ok());
    let (mut proposed, mut log) = (0, Vec::new());
    let mut quiet_since = Instant::now();
    // At the end, until everything that it proposed has come, and nothing more does.
    while !stop.load(std::sync::atomic::Ordering::Acquire) || group.pending() > 0 || quiet_since.elapsed().as_millis() < 1000 {
        if group.pending() == 0 && !stop.load(std::sync::atomic::Ordering::Acquire) {
            proposed = group.propose(format!("{id} {}", proposed + 1).as_bytes()).unwrap();
            // What is kept of entries is bounded.
            std::thread::sleep(Duration::from_millis(4));
        }
        match group.poll(Some(Duration::from_millis(5))) {
            Ok(Some(Event::Entry(entry))) => {
                quiet_since = Instant::now();
                log.push(entry);
            }
            Ok(_) => {}
            Err(_) => {
                while group.reconnect().is_err() {
                    quiet_since = Instant::now();
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
    (proposed, log)
}

/// `FIDE_FAULTS` (9): how many.
#[test]
fn nothing_is_lost_doubled_or_reordered_whatever_happens_to_one_host_at_a_time() {
    let Some(mut w) = three("huc") else { return };
    let faults: u64 = std::env::var("FIDE_FAULTS").ok().and_then(|n| n.parse().ok()).unwrap_or(9);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clients: Vec<_> = (1..=3u16)
        .map(|host| {
            let (socket, stop) = (w.socket(host), std::sync::Arc::clone(&stop));
            std::thread::spawn(move || client(socket, u64::from(host), &stop))
        })
        .collect();
    for fault in 0..faults {
        std::thread::sleep(Duration::from_millis(100 + 37 * (fault % 7)));
        let host = 1 + (fault % 3) as u16;
        match (fault / 3) % 3 {
            0 => {
                w.kill_agent(host);
                w.start(host);
            }
            1 => {
                // Long enough to be given up, and not.
                w.signal_agent(host, libc::SIGSTOP);
                std::thread::sleep(Duration::from_millis(if fault % 2 == 0 { 1_500 } else { 40 }));
                w.signal_agent(host, libc::SIGCONT);
            }
            _ => {
                let net = (fault % 2) as usize;
                w.lab.cut(host, fide_lab::NETS[net], fide_lab::Cut::Silent).unwrap();
                std::thread::sleep(Duration::from_millis(300));
                w.lab.heal(host, fide_lab::NETS[net]).unwrap();
            }
        }
        w.all_alive();
        let members = |host| {
            let group = status(&w, host, "orders").filter(|group| group.stage == Stage::Running);
            group.map(|group| group.members.iter().filter(|member| !member.crashed).count())
        };
        until("all are members again", || (1..=3).all(|host| members(host) == Some(3)));
    }
    stop.store(true, std::sync::atomic::Ordering::Release);
    let done: Vec<(u64, Vec<Entry>)> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let longest = done.iter().map(|(_, log)| log).max_by_key(|log| log.len()).unwrap();
    for (at, (proposed, log)) in done.iter().enumerate() {
        assert!(longest.starts_with(log), "h{} has another order", at + 1);
        let own: Vec<u64> = longest.iter().filter(|entry| entry.client == at as u64 + 1).map(|entry| entry.number).collect();
        assert_eq!(own, (1..=*proposed).collect::<Vec<u64>>(), "of h{}: each once, in its order", at + 1);
    }
    assert!(longest.len() > 100, "{} entries", longest.len());
}
