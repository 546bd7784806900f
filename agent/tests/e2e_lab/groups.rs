//! Groups on real agents: values that hosts agree on, also while agents are killed, stopped and come back.

use crate::common::{PATIENCE, Pins, Process, Setup, World, again, until, wait_for};
use crate::e2e_lab::fence::{all_fenced, fence};
use crate::e2e_lab::sentinel::{NATIVE, capi, library};
use fide_client::group::{Entry, Event, Fate, Group, Options, Refusal, Stage};
use fide_lab::Cut;
use fide_wire::control::{ErrorCode, FenceOrder, GroupOrder, GroupStatus, Reply, Request};
use fide_wire::session::{Bundle, ToAgent};
use fide_wire::verdict::Cause;
use std::cell::Cell;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub(super) fn order(w: &World, host: u16, order: GroupOrder) -> Result<Reply, fide_client::Error> {
    w.ask(host, &Request::Group { order })
}

pub(super) fn refused(result: Result<Reply, fide_client::Error>) -> (ErrorCode, String) {
    match result {
        Err(fide_client::Error::Refused(refused)) => (refused.code, refused.what),
        other => panic!("not refused: {other:?}"),
    }
}

pub(super) fn create(w: &World, host: u16, name: &str, engine: &str, hosts: &[&str]) -> Result<Reply, fide_client::Error> {
    let hosts = hosts.iter().map(|host| (*host).to_string()).collect();
    order(
        w,
        host,
        GroupOrder::Create {
            name: name.into(),
            engine: engine.into(),
            policy: "trust-contract".into(),
            hosts,
            durable: false,
            fresh: false,
        },
    )
}

pub(super) fn status(w: &World, host: u16, name: &str) -> Option<GroupStatus> {
    match order(w, host, GroupOrder::Status) {
        Ok(Reply::Groups { groups }) => groups.into_iter().find(|group| group.name == name),
        other => panic!("no groups: {other:?}"),
    }
}

pub(super) fn runs(w: &World, host: u16, name: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let group = status(w, host, name);
        if group.as_ref().is_some_and(|group| group.stage == Stage::Running) {
            return;
        }
        assert!(Instant::now() < until, "waited {PATIENCE:?} in vain: the group does not run on h{host}: {group:?}");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Three hosts, and a group of them.
fn three(engine: &str) -> Option<World> {
    let w = Setup::hosts(3).up()?;
    three_begin(&w, engine);
    Some(w)
}

fn three_begin(w: &World, engine: &str) {
    w.all_alive();
    create(w, 1, "orders", engine, &["h1", "h2", "h3"]).unwrap();
    (1..=3).for_each(|host| runs(w, host, "orders"));
}

/// How often a test is tried on LOWI.
const LOWI_ATTEMPTS: u32 = 4;

/// What the log of a host says of its members that have stopped.
fn stops(w: &World, host: u16) -> Vec<String> {
    w.log(host).lines().filter(|line| line.contains("this host's member stopped")).map(str::to_owned).collect()
}

/// How many of them a test brought about itself, by host.
type Provoked = [Cell<usize>; 3];

/// As long as it lives, the test has the member of this host stop.
struct Provokes<'a>(&'a World, u16, usize, &'a Provoked);

impl<'a> Provokes<'a> {
    fn on(w: &'a World, host: u16, provoked: &'a Provoked) -> Self {
        Self(w, host, stops(w, host).len(), provoked)
    }
}

impl Drop for Provokes<'_> {
    fn drop(&mut self) {
        let count = &self.3[usize::from(self.1) - 1];
        count.set(count.get() + stops(self.0, self.1).len() - self.2);
    }
}

/// A test on three hosts and a group of them. A busy machine holds threads up for longer than a
/// group of LOWI allows: then members stop that the test means to go on, perhaps all of them at
/// once, what it waits for does not come, and it is tried again. Whatever else fails has failed:
/// no delay makes logs differ.
fn on_three(engine: &str, test: impl Fn(&mut World, &Provoked)) {
    for attempt in 1.. {
        let Some(mut w) = Setup::hosts(3).up() else { return };
        let provoked = Provoked::default();
        let tried = std::panic::catch_unwind(AssertUnwindSafe(|| {
            three_begin(&w, engine);
            test(&mut w, &provoked);
        }));
        let Err(failed) = tried else { return };
        let is_wait = failed.downcast_ref::<String>().is_some_and(|why| why.starts_with("waited "));
        let of_itself = |host: u16| stops(&w, host).into_iter().nth(provoked[usize::from(host) - 1].get());
        let stopped = (1..=3).find_map(|host| Some((host, of_itself(host)?)));
        match stopped {
            Some((host, line)) if engine == "lowi" && attempt < LOWI_ATTEMPTS && is_wait => {
                again(&format!("a member of LOWI stopped that was to go on, on h{host}: {line}"));
            }
            _ => std::panic::resume_unwind(failed),
        }
    }
}

pub(super) fn open(w: &World, host: u16, client: u64, behind: u64, last_number: u64) -> Group {
    let options = Options { path: Some(w.socket(host)), client, behind, last_number };
    wait_for("the group is opened", || Group::open_with("orders", options.clone()).ok())
}

/// The next entries until this many were read.
pub(super) fn read(group: &mut Group, entries: &mut Vec<Entry>, count: usize) {
    read_all(std::slice::from_mut(group), std::slice::from_mut(entries), count);
}

/// The next entries of each until this many were read. All are polled, also those that have so many: a session hands in again what its host's new member lacks,
/// and others may wait for that.
pub(super) fn read_all(groups: &mut [Group], logs: &mut [Vec<Entry>], count: usize) {
    let until = Instant::now() + Duration::from_secs(30);
    while let Some(shortest) = logs.iter().map(Vec::len).min().filter(|shortest| *shortest < count) {
        let standing = || groups.iter().map(Group::standing).collect::<Vec<_>>();
        assert!(Instant::now() < until, "waited in vain: {shortest} of {count} entries: {:?}", standing());
        for (group, log) in groups.iter_mut().zip(&mut *logs) {
            if let Some(Event::Entry(entry)) =
                group.poll(Some(Duration::from_millis(if log.len() < count { 20 } else { 0 }))).unwrap()
            {
                log.push(entry);
            }
        }
    }
}

pub(super) fn values(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| String::from_utf8_lossy(&entry.bytes).into_owned()).collect()
}

#[test]
fn what_any_host_proposes_is_decided_on_all_in_one_order() {
    for engine in ["huc", "hsuc", "lowi", "raft"] {
        on_three(engine, |w, _| what_any_host_proposes(w));
    }
}

fn what_any_host_proposes(w: &World) {
    let mut groups: Vec<Group> = (1..=3).map(|host| open(w, host, u64::from(host), 0, 0)).collect();
    let together: Vec<String> = (0..50).map(|n| format!("h3 {n}")).collect();
    let together: Vec<&[u8]> = together.iter().map(String::as_bytes).collect();
    groups[2].propose_all(&together).unwrap();
    for n in 0..50 {
        for (at, group) in groups.iter_mut().enumerate().take(2) {
            group.propose(format!("h{} {n}", at + 1).as_bytes()).unwrap();
        }
    }
    let mut logs = vec![Vec::new(); 3];
    read_all(&mut groups, &mut logs, 150);
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

/// What was asked of a host without a group was never answered there, and its loop did not rest any more.
#[test]
fn a_host_without_a_group_answers_those_that_look_for_one_and_rests() {
    let Some(w) = three("huc") else { return };
    order(&w, 1, GroupOrder::Leave { name: "orders".into(), force: false }).unwrap();
    // h1 asks the others for it again and again.
    let _ = order(&w, 2, GroupOrder::Join { name: "nosuch".into() });
    until("h2 looks for it", || status(&w, 2, "nosuch").is_some());
    for host in [1, 3] {
        // Again where the machine stood still meanwhile, which the kernel counts as the thread's time.
        until(&format!("h{host} rests"), || {
            let (before_ns, since) = (crate::e2e_lab::neighbours::lane_ns(&w, host), std::time::Instant::now());
            w.goes_on(host, 250);
            let used_ns = crate::e2e_lab::neighbours::lane_ns(&w, host) - before_ns;
            u128::from(used_ns) < since.elapsed().as_nanos() / 2
        });
    }
}

#[test]
fn the_leading_agent_is_killed_and_the_others_go_on() {
    the_leader_is_killed("huc");
}

#[test]
fn the_leading_agent_of_a_raft_group_is_killed_and_the_others_go_on() {
    the_leader_is_killed("raft");
}

#[test]
fn the_leading_agent_of_a_lowi_group_is_killed_and_the_others_go_on() {
    the_leader_is_killed("lowi");
}

/// A member that misses a frame of LOWI stops alone, and comes back with what it missed. The others
/// go on.
///
/// A member whose thread is held up for longer than the group allows (some 10 ms) stops as well,
/// which a busy machine brings about at any time. Then another cable is pulled, until one found the
/// others in time.
#[test]
fn a_cable_of_a_lowi_member_is_out_for_a_moment_and_it_comes_back() {
    on_three("lowi", |w, provoked| a_cable_of_a_lowi_member(w, provoked));
}

fn a_cable_of_a_lowi_member(w: &World, provoked: &Provoked) {
    let mut groups: Vec<Group> = (1..=3).map(|host| open(w, host, u64::from(host), 0, 0)).collect();
    let (mut logs, mut proposed) = (vec![Vec::new(); 3], Vec::new());
    wait_for("a cable of one member that stops this member alone", || {
        (1..=3).for_each(|host| runs(w, host, "orders"));
        let before = [1, 2, 3].map(|host| (status(w, host, "orders").unwrap(), stops(w, host).len()));
        let leads = before[0].0.leader;
        let leader = (1..=3u16).find(|host| leads.is_some() && before[usize::from(*host) - 1].0.me == leads)?;
        let (missed, other) = (leader % 3 + 1, (leader + 1) % 3 + 1);
        let mut propose = |groups: &mut [Group], host: u16, what: &str| {
            proposed.push(format!("{what} {}", proposed.len()));
            groups[usize::from(host) - 1].propose(proposed.last().unwrap().as_bytes()).unwrap();
            proposed.len()
        };
        let count = propose(&mut groups, other, "before");
        read_all(&mut groups, &mut logs, count);
        let me = before[usize::from(missed) - 1].0.me;
        let stopping = Provokes::on(w, missed, provoked);
        w.lab.cut(missed, 0, Cut::Silent).unwrap();
        until("it has missed a copy", || status(w, missed, "orders").is_none_or(|group| group.me != me));
        let count = propose(&mut groups, leader, "meanwhile");
        read(&mut groups[usize::from(other) - 1], &mut logs[usize::from(other) - 1], count);
        w.lab.heal(missed, 0).unwrap();
        runs(w, missed, "orders");
        drop(stopping);
        let count = propose(&mut groups, missed, "behind");
        read_all(&mut groups, &mut logs, count);
        logs.iter().for_each(|log| assert_eq!(values(log), proposed));
        assert!(status(w, missed, "orders").unwrap().me > me, "a new member");
        for host in [leader, other] {
            let stopped = stops(w, host).split_off(before[usize::from(host) - 1].1);
            let is_honest = |line: &String| line.contains("its thread was held up for longer");
            // A frame that is late stops who follows.
            if stopped.iter().any(is_honest) || (host == other && !stopped.is_empty()) {
                again(&format!("a member of LOWI stopped beside the one without a cable, on h{host}: {stopped:?}"));
                return None;
            }
            assert!(stopped.is_empty(), "h{host} was stopped beside h{missed}: {stopped:?}");
            assert_eq!(status(w, host, "orders").unwrap().me, before[usize::from(host) - 1].0.me);
        }
        Some(())
    });
}

/// A cable out of the leader: it stops before it decides, and nobody else, although the others have
/// got what left by the other path.
#[test]
fn a_cable_of_a_lowi_leader_is_out_and_the_next_one_leads() {
    on_three("lowi", |w, provoked| a_cable_of_a_lowi_leader(w, provoked));
}

fn a_cable_of_a_lowi_leader(w: &World, provoked: &Provoked) {
    let mut groups: Vec<Group> = (1..=3).map(|host| open(w, host, u64::from(host), 0, 0)).collect();
    let mut logs = vec![Vec::new(); 3];
    let mut decided = 0;
    for path in [0, 1] {
        let (leader, host): (u16, u16) = wait_for("h2 knows who leads", || {
            let group = status(w, 2, "orders")?;
            let leader = group.members.iter().find(|member| Some(member.id) == group.leader)?;
            Some((leader.id, leader.host.trim_start_matches('h').parse().unwrap()))
        });
        let stopping = Provokes::on(w, host, provoked);
        w.lab.cut(host, path, Cut::Carrier).unwrap();
        let other = usize::from(host % 3);
        for n in 0..10 {
            groups[other].propose(format!("{path} {n}").as_bytes()).unwrap();
        }
        decided += 10;
        read(&mut groups[other], &mut logs[other], decided);
        until("another one leads", || status(w, other as u16 + 1, "orders").is_some_and(|group| group.leader != Some(leader)));
        w.lab.heal(host, path).unwrap();
        (1..=3).for_each(|host| runs(w, host, "orders"));
        drop(stopping);
        let mut all = Vec::new();
        let mut fresh = open(w, host, 100 + u64::from(path), 0, 0);
        read(&mut fresh, &mut all, decided);
    }
}

/// A policy that holds a verdict back does not suit an engine that elects by silence.
#[test]
fn lowi_under_the_policy_fence_is_refused_with_the_reason() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = all_fenced(&pins, 2, "sent") else { return };
    let plan = GroupOrder::Create {
        name: "orders".into(),
        engine: "lowi".into(),
        policy: "fence".into(),
        hosts: vec!["h1".into(), "h2".into()],
        durable: false,
        fresh: false,
    };
    let refused = order(&w, 1, plan).unwrap_err().to_string();
    assert!(refused.contains("lowi") && refused.contains("fence"), "{refused}");
}

fn the_leader_is_killed(engine: &str) {
    on_three(engine, |w, _| the_leader_of_three_is_killed(w, engine));
}

fn the_leader_of_three_is_killed(w: &mut World, engine: &str) {
    let mut on_2 = open(w, 2, 22, 0, 0);
    let mut on_3 = open(w, 3, 33, 0, 0);
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
    until("it is evicted", || {
        let leads = |leader| leader == Some(2) || (engine == "raft" && leader == Some(3));
        status(w, 2, "orders").is_some_and(|group| group.members.len() == 2 && leads(group.leader))
    });
    // It comes back by itself, with everything.
    w.start(1);
    runs(w, 1, "orders");
    let mut on_1 = open(w, 1, 11, 0, 0);
    let mut log_1 = Vec::new();
    read(&mut on_1, &mut log_1, 22);
    assert_eq!(log_1, log_2);
    on_1.propose(b"back").unwrap();
    read(&mut on_3, &mut log_3, 23);
    assert_eq!(values(&log_3)[22], "back");
    // Unless another one that LOWI has stopped was a new member before it.
    let me = status(w, 1, "orders").unwrap().me;
    assert!(me == Some(4) || (engine == "lowi" && me > Some(4)), "{me:?}");
}

#[test]
fn an_agent_that_was_stopped_for_long_comes_back_as_a_new_member() {
    an_agent_is_stopped("huc");
}

#[test]
fn an_agent_of_lowi_that_was_stopped_for_long_comes_back_as_a_new_member() {
    an_agent_is_stopped("lowi");
}

fn an_agent_is_stopped(engine: &str) {
    on_three(engine, |w, provoked| an_agent_of_three_is_stopped(w, provoked));
}

fn an_agent_of_three_is_stopped(w: &World, provoked: &Provoked) {
    let mut on_1 = open(w, 1, 11, 0, 0);
    let mut on_2 = open(w, 2, 22, 0, 0);
    let (mut log_1, mut log_2) = (Vec::new(), Vec::new());
    on_1.propose(b"one").unwrap();
    read(&mut on_1, &mut log_1, 1);
    let stopping = Provokes::on(w, 1, provoked);
    w.signal_agent(1, libc::SIGSTOP);
    // While it stands still somebody proposes there, and on another host.
    on_1.propose(b"by who stood still").unwrap();
    // Led by the next one, or by another that a busy machine has held up less.
    let others_lead = |group: GroupStatus| group.leader.is_some_and(|leader| leader != 1);
    until("the others go on", || status(w, 2, "orders").is_some_and(others_lead));
    on_2.propose(b"two").unwrap();
    read(&mut on_2, &mut log_2, 2);
    w.signal_agent(1, libc::SIGCONT);
    runs(w, 1, "orders");
    drop(stopping);
    read(&mut on_1, &mut log_1, 3);
    read(&mut on_2, &mut log_2, 3);
    assert_eq!(log_1, log_2);
    let mut all = values(&log_1);
    all.sort_unstable();
    assert_eq!(all, ["by who stood still", "one", "two"]);
    // A new one; should the machine hold it up once more before it runs, the one after that.
    let me = status(w, 1, "orders").unwrap().me;
    assert!(me.is_some_and(|me| me > 3), "{me:?}");
}

/// A group under the policy *fence* on three hosts whose fences have this mode.
fn three_fenced(pins: &Pins, engine: &str, mode: &str) -> Option<World> {
    let w = all_fenced(pins, 3, mode)?;
    let hosts = (1..=3).map(|host| format!("h{host}")).collect();
    let plan = GroupOrder::Create {
        name: "orders".into(),
        engine: engine.into(),
        policy: "fence".into(),
        hosts,
        durable: false,
        fresh: false,
    };
    order(&w, 1, plan).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    Some(w)
}

/// The leader's host is held up by `hold`; the others replace it once its fence has closed, and
/// nothing that was proposed there meanwhile is decided before an operator has recovered it.
fn replaced_behind_a_fence(w: &World, hold: impl FnOnce(), release: impl FnOnce()) {
    let (mut on_1, mut on_2) = (open(w, 1, 11, 0, 0), open(w, 2, 22, 0, 0));
    let (mut log_1, mut log_2) = (Vec::new(), Vec::new());
    on_1.propose(b"one").unwrap();
    read(&mut on_1, &mut log_1, 1);
    read(&mut on_2, &mut log_2, 1);
    hold();
    on_1.propose(b"by who was held up").unwrap();
    let others_lead = |group: GroupStatus| group.leader.is_some_and(|leader| leader != 1);
    until("the others go on", || status(w, 2, "orders").is_some_and(others_lead));
    // Its fence may close behind the verdict that it is silent; then that is told by itself.
    w.event(2, "silent and fenced", |e| {
        let is_fenced = e.evidence.as_ref().is_some_and(|evidence| evidence.fenced);
        e.node == "h1" && (e.cause == Cause::SilentHost && is_fenced || e.cause == Cause::Fenced)
    });
    on_2.propose(b"two").unwrap();
    read(&mut on_2, &mut log_2, 2);
    release();
    until("h1 knows that it is fenced", || fence(w, 1, FenceOrder::Status).state == "fenced");
    on_2.propose(b"three").unwrap();
    read(&mut on_2, &mut log_2, 3);
    while let Some(event) = on_1.poll(Some(Duration::from_millis(100))).unwrap() {
        assert!(!matches!(event, Event::Entry(_)), "a fenced host tells of no entry: {event:?}");
    }
    fence(w, 1, FenceOrder::Recover);
    runs(w, 1, "orders");
    read(&mut on_1, &mut log_1, 4);
    read(&mut on_2, &mut log_2, 4);
    assert_eq!(log_1, log_2);
    assert_eq!(values(&log_1), ["one", "two", "three", "by who was held up"]);
}

#[test]
fn under_the_policy_fence_a_host_that_stands_still_is_replaced_and_decides_nothing() {
    for engine in ["huc", "hsuc"] {
        let Some(pins) = Pins::new() else { return };
        let Some(w) = three_fenced(&pins, engine, "sent") else { return };
        replaced_behind_a_fence(&w, || w.signal_agent(1, libc::SIGSTOP), || w.signal_agent(1, libc::SIGCONT));
    }
}

#[test]
fn under_the_policy_fence_a_host_that_is_cut_off_is_replaced_and_decides_nothing() {
    for engine in ["huc", "hsuc"] {
        let Some(pins) = Pins::new() else { return };
        let Some(w) = three_fenced(&pins, engine, "acknowledged") else { return };
        let cut = || (0..2).for_each(|path| w.lab.cut(1, path, Cut::Silent).unwrap());
        replaced_behind_a_fence(&w, cut, || (0..2).for_each(|path| w.lab.heal(1, path).unwrap()));
    }
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

/// What an application that opens the group on this host gets first.
fn snapshot_on(w: &World, host: u16) -> (u64, Vec<u8>) {
    let mut group = open(w, host, 0, 0, 0);
    wait_for("a snapshot", || match group.poll(Some(Duration::from_millis(100))).unwrap() {
        Some(Event::Snapshot { index, bytes }) => Some((index, bytes)),
        Some(Event::Entry(entry)) => panic!("{entry:?}"),
        _ => None,
    })
}

#[test]
fn a_state_of_many_megabytes_comes_to_every_host_and_to_those_that_come_back() {
    let Some(mut w) = three("huc") else { return };
    let mut on_1 = open(&w, 1, 11, 0, 0);
    for _ in 0..10 {
        on_1.propose(&[7; 1000]).unwrap();
    }
    read(&mut on_1, &mut Vec::new(), 10);
    until("all have the entries", || (1..=3).all(|host| status(&w, host, "orders").unwrap().index == 10));
    let before: Vec<Option<u16>> = (1..=3).map(|host| status(&w, host, "orders").unwrap().me).collect();
    let state: Vec<u8> = (0..48 << 20).map(|n: u32| (n % 253) as u8).collect();
    on_1.keep_snapshot(8, &state).unwrap();
    until("all have the state", || (1..=3).all(|host| status(&w, host, "orders").unwrap().kept_bytes < 4000));
    let after: Vec<Option<u16>> = (1..=3).map(|host| status(&w, host, "orders").unwrap().me).collect();
    assert_eq!(before, after, "no member was lost for it");
    for host in [2, 3] {
        let (index, bytes) = snapshot_on(&w, host);
        assert!(index == 8 && bytes == state, "h{host}: {index}, {} bytes", bytes.len());
    }
    // Who made it ends; it comes back, and gets it from another one.
    w.kill_agent(1);
    w.start(1);
    runs(&w, 1, "orders");
    let (index, bytes) = snapshot_on(&w, 1);
    assert!(index == 8 && bytes == state, "{index}, {} bytes", bytes.len());
    let mut on_2 = open(&w, 2, 22, 10, 0);
    on_2.propose(b"on").unwrap();
    read(&mut on_2, &mut Vec::new(), 1);
    let refused = on_2.keep_snapshot(11, &vec![0; fide_client::group::SNAPSHOT_MAX as usize + 1]).unwrap_err();
    assert!(refused.to_string().contains("67108864"), "{refused}");
}

#[test]
fn a_large_state_of_a_durable_group_outlives_all_its_agents() {
    let of = |_| block("orders", "\"h1\", \"h2\", \"h3\"", "huc") + "durable = true\n";
    let Some(mut w) = Setup::hosts(3).extra(of).up() else { return };
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    let mut on_2 = open(&w, 2, 22, 0, 0);
    for _ in 0..10 {
        on_2.propose(&[7; 1000]).unwrap();
    }
    read(&mut on_2, &mut Vec::new(), 10);
    let state: Vec<u8> = (0..3 << 20).map(|n: u32| (n % 251) as u8).collect();
    on_2.keep_snapshot(9, &state).unwrap();
    until("all have the state", || (1..=3).all(|host| status(&w, host, "orders").unwrap().kept_bytes < 2500));
    // An entry behind it is told of when the disk has it, and so has it what was written before.
    on_2.propose(b"eleven").unwrap();
    until("the disks have it", || (1..=3).all(|host| status(&w, host, "orders").unwrap().written == Some(11)));
    (1..=3).for_each(|host| w.kill_agent(host));
    // One has lost its disk: it fetches the state.
    std::fs::remove_file(w.lab.host_dir(3).join("state.json.groups")).unwrap();
    (1..=3).for_each(|host| w.start(host));
    for host in 1..=3 {
        runs(&w, host, "orders");
        let (index, bytes) = snapshot_on(&w, host);
        assert!(index == 9 && bytes == state, "h{host}: {index}, {} bytes", bytes.len());
    }
    let mut log = Vec::new();
    read(&mut open(&w, 3, 33, 9, 0), &mut log, 2);
    assert_eq!(log[1].bytes, b"eleven");
}

#[test]
fn a_proposal_whose_entry_is_in_a_snapshot_does_not_wait_for_ever() {
    let Some(mut w) = three("huc") else { return };
    let (mut on_1, mut on_2) = (open(&w, 1, 11, 0, 0), open(&w, 2, 22, 0, 0));
    let mut log = Vec::new();
    on_2.propose(b"one").unwrap();
    on_2.propose(b"two").unwrap();
    read(&mut on_1, &mut log, 2);
    on_1.keep_snapshot(2, b"both").unwrap();
    w.kill_agent(2);
    w.start(2);
    runs(&w, 2, "orders");
    wait_for("it reconnects", || on_2.reconnect().ok());
    let mut fates = Vec::new();
    until("it knows what became of both", || {
        match on_2.poll(Some(Duration::from_millis(20))).unwrap() {
            Some(Event::Snapshot { index, bytes }) => assert_eq!((index, &bytes[..]), (2, &b"both"[..])),
            Some(Event::Fate { number, fate }) => fates.push((number, fate)),
            Some(Event::Entry(entry)) => panic!("{entry:?}"),
            _ => {}
        }
        on_2.pending() == 0
    });
    assert_eq!(fates, [(1, Fate::Decided), (2, Fate::Decided)]);
    assert_eq!(on_2.propose(b"three").unwrap(), 3);
    read(&mut on_2, &mut log, 3);
}

#[test]
fn a_group_leaves_joins_and_changes_its_engine() {
    let Some(w) = three("hsuc") else { return };
    let mut on_2 = open(&w, 2, 22, 0, 0);
    let mut log = Vec::new();
    for (engine, value) in [("raft", "zero"), ("huc", "one")] {
        order(&w, 2, GroupOrder::Switch { name: "orders".into(), engine: engine.into() }).unwrap();
        on_2.propose(value.as_bytes()).unwrap();
        let count = log.len() + 1;
        read(&mut on_2, &mut log, count);
        until("all have changed", || (1..=3).all(|host| status(&w, host, "orders").is_some_and(|group| group.engine == engine)));
    }
    order(&w, 1, GroupOrder::Leave { name: "orders".into(), force: false }).unwrap();
    until("it left", || status(&w, 1, "orders").is_some_and(|group| group.stage == Stage::Left));
    on_2.propose(b"two").unwrap();
    read(&mut on_2, &mut log, 3);
    order(&w, 1, GroupOrder::Join { name: "orders".into() }).unwrap();
    runs(&w, 1, "orders");
    let mut on_1 = open(&w, 1, 11, 0, 0);
    let mut log_1 = Vec::new();
    read(&mut on_1, &mut log_1, 3);
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
        durable: false,
        fresh: false,
    };
    let (code, what) = refused(order(&w, 1, fenced));
    assert!(code == ErrorCode::Invalid && what.contains("has no fence"), "{what}");
    let (code, what) = refused(order(&w, 1, GroupOrder::Leave { name: "other".into(), force: false }));
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

fn block(name: &str, hosts: &str, engine: &str) -> String {
    format!("[[group]]\nname = \"{name}\"\nhosts = [{hosts}]\nengine = \"{engine}\"\npolicy = \"trust-contract\"\n")
}

#[test]
fn groups_of_the_configuration_begin_come_back_and_begin_anew_by_themselves() {
    const ALL: &str = "\"h1\", \"h2\", \"h3\"";
    // And one of which two files say something else.
    let odd = |host| block("odd", "\"h1\", \"h2\"", if host == 1 { "huc" } else { "hsuc" });
    let of = move |host| block("orders", ALL, "huc") + &if host < 3 { odd(host) } else { String::new() };
    let Some(mut w) = Setup::hosts(3).extra(of).up() else { return };
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    let first = status(&w, 1, "orders").unwrap();
    assert!(first.leader == Some(1) && first.members.len() == 3 && !first.anew, "{first:?}");
    until("the odd one says why it does not run", || {
        status(&w, 1, "odd").is_some_and(|group| {
            let words = ["the configuration of h2", "engine hsuc", "engine huc", "must be the same"];
            group.stage != Stage::Running && words.iter().all(|word| group.why.contains(word))
        })
    });
    let mut on_2 = open(&w, 2, 22, 0, 0);
    let mut log = Vec::new();
    on_2.propose(b"one").unwrap();
    read(&mut on_2, &mut log, 1);

    // One agent: it joins again, with what was decided.
    w.kill_agent(1);
    w.start(1);
    runs(&w, 1, "orders");
    let back = status(&w, 1, "orders").unwrap();
    assert_eq!((back.generation, back.anew, back.index), (first.generation, false, 1));

    // Also one that has forgotten that it was a member: its disk was wiped.
    w.kill_agent(3);
    std::fs::remove_file(w.lab.host_dir(3).join("state.json")).unwrap();
    w.start(3);
    runs(&w, 3, "orders");
    assert_eq!(status(&w, 3, "orders").unwrap().generation, first.generation);

    // All at once: it begins anew, and says so, also to who goes on from the one before.
    (1..=3).for_each(|host| w.kill_agent(host));
    (1..=3).for_each(|host| w.start(host));
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    for host in [1, 2] {
        let anew = status(&w, host, "orders").unwrap();
        assert!(anew.anew && anew.index == 0 && anew.generation > first.generation, "{anew:?}");
        until("its log says so", || w.log(host).contains("begins anew"));
    }
    // The former session's end is noticed first, if it has not been.
    while on_2.poll(Some(Duration::from_millis(100))).is_ok() {}
    match on_2.reconnect() {
        Err(fide_client::Error::Refused(refused)) => {
            assert!(refused.code == ErrorCode::NotFound && refused.what.contains("begun anew"), "{refused:?}");
        }
        other => panic!("it goes on in another group: {other:?}"),
    }
    let mut on_2 = open(&w, 2, 22, 0, 0);
    let mut log = Vec::new();
    on_2.propose(b"first").unwrap();
    read(&mut on_2, &mut log, 1);
    assert_eq!((log[0].index, values(&log)), (1, vec!["first".to_string()]));

    // A file that is read again: a group more, and the odd one as it should be.
    for host in [1, 2] {
        let text = w.head(host, &format!("h{host}"), "2ms")
            + &block("orders", ALL, "huc")
            + &odd(1)
            + &block("more", "\"h2\", \"h1\"", "raft");
        w.write_config(host, &text);
        let Ok(Reply::Reloaded(reloaded)) = w.ask(host, &Request::Reload) else { panic!("no account of the reload") };
        assert_eq!(reloaded.changed, ["group"]);
    }
    for (name, leader) in [("odd", "h1"), ("more", "h2")] {
        [1, 2].into_iter().for_each(|host| runs(&w, host, name));
        let group = status(&w, 1, name).unwrap();
        let first = group.members.iter().find(|member| member.id == 1).unwrap();
        assert!(first.host == leader && !group.anew, "{group:?}");
    }
    // What root has this host leave, it has left.
    order(&w, 2, GroupOrder::Leave { name: "odd".into(), force: false }).unwrap();
    until("it left", || status(&w, 2, "odd").is_some_and(|group| group.stage == Stage::Left));
    // It could have asked to come back many times.
    [1, 2].into_iter().for_each(|host| w.goes_on(host, 150));
    assert_eq!(status(&w, 2, "odd").unwrap().stage, Stage::Left);
}

#[test]
fn a_group_of_a_command_begins_anew_by_itself_when_all_of_its_last_set_are_back() {
    let Some(mut w) = Setup::hosts(4).up() else { return };
    w.all_alive();
    create(&w, 1, "orders", "huc", &["h1", "h2", "h3"]).unwrap();
    let decide = |w: &World, host: u16, value: &str| {
        let mut client = open(w, host, u64::from(host), 0, 0);
        client.propose(value.as_bytes()).unwrap();
        until("it is decided", || {
            _ = client.poll(Some(Duration::from_millis(10)));
            client.pending() == 0
        });
    };
    let generation = |w: &World, host: u16| status(w, host, "orders").unwrap().generation;
    let all_run_anew = |w: &World, hosts: &[u16], before: u64| {
        hosts.iter().for_each(|host| runs(w, *host, "orders"));
        let first = generation(w, hosts[0]);
        assert!(first > before, "{first} {before}");
        for host in hosts {
            let group = status(w, *host, "orders").unwrap();
            assert!(group.anew && group.generation == first && group.index == 0, "h{host}: {group:?}");
            assert_eq!((group.engine.as_str(), group.policy.as_str()), ("huc", "trust-contract"));
        }
        first
    };
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    decide(&w, 2, "one");
    let mut before = generation(&w, 1);

    // All at once.
    (1..=3).for_each(|host| w.kill_agent(host));
    (1..=3).for_each(|host| w.start(host));
    before = all_run_anew(&w, &[1, 2, 3], before);
    decide(&w, 3, "first");

    // Only two of three are back: nothing begins, and they say whom they wait for.
    (1..=3).for_each(|host| w.kill_agent(host));
    [1, 2].into_iter().for_each(|host| w.start(host));
    for host in [1, 2] {
        until("it says who is missing", || {
            status(&w, host, "orders")
                .is_some_and(|group| group.stage == Stage::Joining && group.why.contains("when h3 can be asked"))
        });
    }
    [1, 2].into_iter().for_each(|host| w.goes_on(host, 300));
    assert!([1, 2].into_iter().all(|host| status(&w, host, "orders").unwrap().stage == Stage::Joining));
    // The third comes.
    w.start(3);
    before = all_run_anew(&w, &[1, 2, 3], before);

    // A host has left before: it is not waited for, and does not come back. The one that leads
    // changed, and the engine.
    order(&w, 1, GroupOrder::Leave { name: "orders".into(), force: false }).unwrap();
    until("it left", || status(&w, 1, "orders").is_some_and(|group| group.stage == Stage::Left));
    until("the others know", || [2, 3].into_iter().all(|host| status(&w, host, "orders").unwrap().members.len() == 2));
    decide(&w, 2, "two");
    // The disk has it.
    [2, 3].into_iter().for_each(|host| w.goes_on(host, 100));
    (1..=3).for_each(|host| w.kill_agent(host));
    [2, 3].into_iter().for_each(|host| w.start(host));
    before = all_run_anew(&w, &[2, 3], before);
    w.start(1);
    w.goes_on(1, 300);
    assert_eq!(status(&w, 1, "orders"), None);

    // One that joined later is one of them, and a host that crashed is waited for.
    order(&w, 4, GroupOrder::Join { name: "orders".into() }).unwrap();
    runs(&w, 4, "orders");
    w.kill_agent(2);
    until("the others went on without it", || status(&w, 4, "orders").unwrap().members.iter().all(|member| member.host != "h2"));
    decide(&w, 4, "three");
    [3, 4].into_iter().for_each(|host| w.kill_agent(host));
    [3, 4].into_iter().for_each(|host| w.start(host));
    until("it says who is missing", || status(&w, 4, "orders").is_some_and(|group| group.why.contains("when h2 can be asked")));
    w.start(2);
    before = all_run_anew(&w, &[2, 3, 4], before);

    // One of them has left by force since, or lost its state: a person decides.
    (2..=4).for_each(|host| w.kill_agent(host));
    std::fs::remove_file(w.lab.host_dir(4).join("state.json")).unwrap();
    (2..=4).for_each(|host| w.start(host));
    until("it says who knows nothing of it", || {
        status(&w, 2, "orders").is_some_and(|group| group.why.contains("h4, which did not leave") && group.engine == "huc")
    });
    w.goes_on(2, 300);
    assert!([2, 3].into_iter().all(|host| status(&w, host, "orders").unwrap().stage == Stage::Joining));
    create(&w, 2, "orders", "huc", &["h2", "h3"]).unwrap();
    [2, 3].into_iter().for_each(|host| runs(&w, host, "orders"));
    assert!(generation(&w, 3) > before);
    // What is left while it waits does not begin again.
    [2, 3].into_iter().for_each(|host| w.kill_agent(host));
    w.start(2);
    until("it waits", || status(&w, 2, "orders").is_some_and(|group| group.why.contains("when h3 can be asked")));
    order(&w, 2, GroupOrder::Leave { name: "orders".into(), force: false }).unwrap();
    w.start(3);
    until("it knows", || status(&w, 3, "orders").is_some_and(|group| group.why.contains("h2, which did not leave")));
    assert_eq!(status(&w, 2, "orders").unwrap().stage, Stage::Left);
}

#[test]
fn a_durable_group_of_a_command_goes_on_by_itself_when_all_of_its_last_set_are_back() {
    let Some(mut w) = Setup::hosts(3).up() else { return };
    w.all_alive();
    order(&w, 1, durable("orders", &["h1", "h2", "h3"])).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    let mut on_2 = open(&w, 2, 22, 0, 0);
    let mut log = Vec::new();
    ["one", "two", "three"].iter().for_each(|value| _ = on_2.propose(value.as_bytes()).unwrap());
    read(&mut on_2, &mut log, 3);
    for host in 1..=3 {
        until("its disk has it", || status(&w, host, "orders").is_some_and(|group| group.written == Some(3)));
    }
    let before = status(&w, 1, "orders").unwrap();
    // The longest log is not on the first one's disk.
    w.kill_agent(1);
    until("the others went on without it", || status(&w, 2, "orders").unwrap().members.len() == 2);
    on_2.propose(b"four").unwrap();
    read(&mut on_2, &mut log, 4);
    [2, 3].into_iter().for_each(|host| w.kill_agent(host));
    (1..=3).for_each(|host| w.start(host));
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    let after = status(&w, 1, "orders").unwrap();
    assert!(after.generation == before.generation && !after.anew && after.index == 4, "{after:?}");
    while on_2.poll(Some(Duration::from_millis(100))).is_ok() {}
    on_2.reconnect().unwrap();
    on_2.propose(b"five").unwrap();
    read(&mut on_2, &mut log, 5);
    assert_eq!(values(&log), ["one", "two", "three", "four", "five"]);
}

#[test]
fn a_client_that_floods_its_agent_does_not_keep_others_from_deciding() {
    let Some(w) = three("huc") else { return };
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let flood = {
        let (socket, stop, sent) = (w.socket(2), std::sync::Arc::clone(&stop), std::sync::Arc::clone(&sent));
        std::thread::spawn(move || {
            let connection = fide_client::Connection::open(Some(&socket)).unwrap();
            let open =
                Request::OpenGroup { name: "orders".into(), client: 66, behind: 0, last_number: 0, generation: 0, bundles: true };
            let fds = connection.request(&open).unwrap().fds;
            let (mut out, mut bundle) = (Vec::new(), Bundle::default());
            let mut number = 0u64;
            // It proposes as fast as the socket takes, also what is refused, and reads nothing.
            while !stop.load(std::sync::atomic::Ordering::Acquire) {
                number += 1;
                let propose = |number| ToAgent::Propose { skipped: u32::MAX, number, bytes: &[] };
                propose(number).write(&mut out);
                // One by one, and as many at once as may be.
                if number.is_multiple_of(2) {
                    while !bundle.is_enough(0) {
                        number += 1;
                        bundle.push(|out| propose(number).append(out));
                    }
                    bundle.datagram().clone_into(&mut out);
                    bundle.clear();
                }
                // SAFETY: an open socket and a buffer of the stated length.
                let n = unsafe {
                    libc::send(
                        std::os::fd::AsRawFd::as_raw_fd(&fds[0]),
                        out.as_ptr().cast(),
                        out.len(),
                        libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                    )
                };
                if n > 0 {
                    sent.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
                } else {
                    // It waits for room without taking a processor from others.
                    let fd = std::os::fd::AsRawFd::as_raw_fd(&fds[0]);
                    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
                    // SAFETY: one pollfd, alive through the call.
                    unsafe { libc::poll(&raw mut poll, 1, 20) };
                }
            }
        })
    };
    let mut on_2 = open(&w, 2, 22, 0, 0);
    let mut own = 0;
    let mut begun = Instant::now();
    // Fifty values, and more where the machine lets the flood come slowly.
    let is_flooded = || sent.load(std::sync::atomic::Ordering::Acquire) > 1000;
    for n in (1..).take_while(|n| *n <= 50u64 || !is_flooded()) {
        on_2.propose(&n.to_le_bytes()).unwrap();
        while own < n {
            assert!(
                begun.elapsed() < PATIENCE,
                "{own} values, none for {:?}, {} entries read, {:?}",
                begun.elapsed(),
                on_2.index(),
                status(&w, 2, "orders")
            );
            let Some(Event::Entry(entry)) = on_2.poll(Some(Duration::from_millis(100))).unwrap() else { continue };
            if entry.client == 22 {
                (own, begun) = (own + 1, Instant::now());
            }
            // As who has an application there must: at 2 MiB of entries proposals wait.
            if entry.index.is_multiple_of(1_000) {
                on_2.keep_snapshot(entry.index, b"").unwrap();
            }
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Release);
    flood.join().unwrap();
    assert!((1..=3).all(|host| status(&w, host, "orders").is_some_and(|group| group.stage == Stage::Running)));
}

/// A C program, compiled strictly and, where that can be, with sanitizers; nothing where there is no compiler.
fn compile(w: &World, source: &str) -> Option<PathBuf> {
    let program = w.lab.host_dir(1).join(source.replace('/', "-"));
    let build = |options: &[&str]| {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(capi("include")).arg(capi(source)).args(options);
        cc.arg("-o").arg(&program).arg(library()).args(NATIVE).output()
    };
    let Ok(sanitized) = build(&["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]) else {
        println!("SKIPPED: there is no cc: apt-get install gcc");
        return None;
    };
    if !sanitized.status.success() {
        let plain = build(&[]).unwrap();
        assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    }
    Some(program)
}

/// A program that talks by lines.
struct Talker {
    process: Process,
    lines: Receiver<String>,
}

impl Talker {
    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { process: Process::of(child), lines }
    }

    fn hear(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says something")
    }
}

#[test]
fn every_function_of_groups_works_from_c() {
    let Some(mut w) = three("huc") else { return };
    let Some(program) = compile(&w, "tests/c/group.c") else { return };
    let mut command = w.lab.command(2, program.to_str().unwrap()).unwrap();
    command.arg(w.socket(2));
    let mut c = Talker::spawn(command);
    loop {
        match c.hear().as_str() {
            "stop" => w.signal_agent(2, libc::SIGSTOP),
            "continue" => w.signal_agent(2, libc::SIGCONT),
            "kill" => w.kill_agent(2),
            "start" => {
                w.start(2);
                runs(&w, 2, "orders");
            }
            "end" => break,
            other => panic!("what is {other:?}?"),
        }
        c.process.say("done");
    }
    assert!(c.process.ended().success());
}

#[test]
fn the_programs_of_the_readme_go_on_when_their_agent_restarts() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let of_python = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../api/python/README.md")).unwrap();
    let (c, python) = (capi("examples/watch.c"), capi("../python/examples/watch.py"));
    for (language, file) in [("c", &c), ("rust", &capi("../client/examples/watch.rs")), ("python", &python)] {
        let text = std::fs::read_to_string(file).unwrap();
        let block = format!("```{language}\n{text}```");
        assert!(readme.contains(&block), "{} is not in README.md as it is", file.display());
        assert!(language != "python" || of_python.contains(&block), "{} is not in the README of Python", file.display());
    }
    let Some(mut w) = Setup::hosts(2).up() else { return };
    w.all_alive();
    let source = w.lab.host_dir(2).join("watch.c");
    std::fs::write(&source, std::fs::read_to_string(&c).unwrap().replace("db@a", "db@h1")).unwrap();
    let Some(program) = compile(&w, source.to_str().unwrap()) else { return };
    let mut command = w.lab.command(2, program.to_str().unwrap()).unwrap();
    command.env("FIDE_SOCKET", w.socket(2));
    let watch = Talker::spawn(command);
    // One process after the other is killed, until the program that monitors them says so.
    let reports_crashes = |w: &World| {
        wait_for("it reports a crash", || {
            let db = w.sleeper(1);
            w.watch_known(1, "db", db.pid());
            db.kill();
            watch.lines.recv_timeout(Duration::from_millis(500)).ok()
        })
    };
    assert_eq!(reports_crashes(&w), "db@h1: doomed, certain");
    w.kill_agent(2);
    w.start(2);
    w.all_alive();
    while watch.lines.try_recv().is_ok() {}
    assert!(reports_crashes(&w).starts_with("db@h1: "));
}

#[test]
fn the_counters_of_the_readme_count_alike() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let rust = capi("../client/examples/counter.rs");
    for (language, file) in [("c", capi("examples/counter.c")), ("rust", rust)] {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(readme.contains(&format!("```{language}\n{text}```")), "{} is not in README.md as it is", file.display());
        assert!(text.lines().count() <= 32, "thirty lines");
    }
    let Some(mut w) = three("huc") else { return };
    create(&w, 1, "counter", "huc", &["h1", "h2", "h3"]).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "counter"));
    let Some(c) = compile(&w, "examples/counter.c") else { return };
    let deps = std::env::current_exe().unwrap();
    let rust = deps.ancestors().nth(2).unwrap().join("examples/counter");
    let count = |w: &World, host: u16, program: &PathBuf, n: &str| {
        let mut command = w.lab.command(host, program.to_str().unwrap()).unwrap();
        command.arg(n).env("FIDE_SOCKET", w.socket(host));
        Talker::spawn(command)
    };
    let hear = |counter: &mut Talker, total: &str| while counter.hear() != total {};
    let mut counters = vec![count(&w, 1, &c, "10"), count(&w, 2, &c, "10")];
    if rust.exists() {
        counters.push(count(&w, 3, &rust, "10"));
    } else {
        println!("SKIPPED: examples/counter is not built: cargo build --workspace --examples");
        counters.push(count(&w, 3, &c, "10"));
    }
    counters.iter_mut().for_each(|counter| hear(counter, "30 after entry 30"));
    // Under one of them its agent is killed; and one that comes later knows the same.
    w.kill_agent(1);
    w.start(1);
    runs(&w, 1, "counter");
    counters.push(count(&w, 2, &c, "5"));
    counters.iter_mut().for_each(|counter| hear(counter, "35 after entry 35"));
}

#[test]
fn a_proposal_has_a_deadline_and_its_fate_can_be_asked() {
    let Some(w) = three("huc") else { return };
    // A group that this host has not got yet takes nothing: what has a deadline is withdrawn, for certain.
    order(&w, 2, GroupOrder::Join { name: "later".into() }).unwrap();
    let options = Options { path: Some(w.socket(2)), client: 22, ..Options::default() };
    let mut later = Group::open_with("later", options).unwrap();
    let first = later.propose_by(b"too late", Instant::now() + Duration::from_millis(200)).unwrap();
    let second = later.propose(b"in time").unwrap();
    let refused = wait_for("it is refused", || match later.poll(Some(Duration::from_millis(50))).unwrap() {
        Some(Event::Refused { number, refusal, why }) => Some((number, refusal, why)),
        _ => None,
    });
    assert!(refused.0 == first && refused.1 == Refusal::TooLate && refused.2.contains("never will be"), "{refused:?}");
    create(&w, 1, "later", "huc", &["h1", "h3"]).unwrap();
    runs(&w, 1, "later");
    // It is asked for still, or again.
    let _ = order(&w, 2, GroupOrder::Join { name: "later".into() });
    runs(&w, 2, "later");
    // The one behind it goes on, though its number is not the next.
    let mut log = Vec::new();
    read(&mut later, &mut log, 1);
    assert_eq!((log[0].number, values(&log)), (second, vec!["in time".to_string()]));
    let fate = |group: &mut Group, number| {
        group.ask(number).unwrap();
        wait_for("an answer", || match group.poll(Some(Duration::from_millis(50))).unwrap() {
            Some(Event::Fate { number: of, fate }) if of == number => Some(fate),
            _ => None,
        })
    };
    // Before a client's first entry the group cannot tell what never came from what came too long ago.
    assert_eq!([first, second, second + 1].map(|n| fate(&mut later, n)), [Fate::Forgotten, Fate::Decided, Fate::Open]);
    // On any host, and by the same client in another process.
    let options = Options { path: Some(w.socket(3)), client: 22, behind: 0, last_number: second };
    let mut elsewhere = Group::open_with("later", options).unwrap();
    assert_eq!([first, second].map(|n| fate(&mut elsewhere, n)), [Fate::Forgotten, Fate::Decided]);
    assert!(matches!(elsewhere.ask(0), Err(fide_client::Error::Invalid(_))));
    // Its descriptor wakes an event loop for a deadline, without a word of the agent.
    w.signal_agent(3, libc::SIGSTOP);
    until("every thread of the agent stands still", || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", w.agent_pid(3))).unwrap();
        let mut states = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
        states.all(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    });
    while elsewhere.poll(Some(Duration::ZERO)).unwrap().is_some() {}
    let number = elsewhere.propose_by(b"perhaps", Instant::now() + Duration::from_millis(100)).unwrap();
    let fd = elsewhere.as_fd().try_clone_to_owned().unwrap();
    let mut poll = libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&fd), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, alive through the call.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, PATIENCE.as_millis() as i32) }, 1, "readable by the deadline");
    assert_eq!(elsewhere.poll(Some(Duration::ZERO)).unwrap(), Some(Event::Overdue { number }));
    w.signal_agent(3, libc::SIGCONT);
}

#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_a_proposal_is_refused_within_two_seconds_of_its_deadline() {
    let Some(w) = three("huc") else { return };
    order(&w, 2, GroupOrder::Join { name: "later".into() }).unwrap();
    let options = Options { path: Some(w.socket(2)), client: 22, ..Options::default() };
    let mut later = Group::open_with("later", options).unwrap();
    let deadline = Instant::now() + Duration::from_millis(200);
    let first = later.propose_by(b"too late", deadline).unwrap();
    let refused = wait_for("it is refused", || match later.poll(Some(Duration::from_millis(50))).unwrap() {
        Some(Event::Refused { number, refusal, .. }) => Some((number, refusal)),
        _ => None,
    });
    assert_eq!(refused, (first, Refusal::TooLate));
    assert!(deadline.elapsed() < Duration::from_secs(2), "{:?}", deadline.elapsed());
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
            // Sleep: interval of the proposals, as what is kept of entries is bounded.
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
                    // Sleep: interval of the tries.
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
    (proposed, log)
}

/// What clients on h1, h2 … proposed and read: the longest log.
fn each_once_in_one_order(done: &[(u64, Vec<Entry>)]) -> &Vec<Entry> {
    let longest = done.iter().map(|(_, log)| log).max_by_key(|log| log.len()).unwrap();
    for (at, (proposed, log)) in done.iter().enumerate() {
        assert!(longest.starts_with(log), "h{} has another order", at + 1);
        let own: Vec<u64> = longest.iter().filter(|entry| entry.client == at as u64 + 1).map(|entry| entry.number).collect();
        assert_eq!(own, (1..=*proposed).collect::<Vec<u64>>(), "of h{}: each once, in its order", at + 1);
    }
    longest
}

/// `FIDE_FAULTS` (9): how many.
#[test]
fn nothing_is_lost_doubled_or_reordered_whatever_happens_to_one_host_at_a_time() {
    nothing_is_lost("huc");
}

/// As above.
#[test]
fn nothing_is_lost_doubled_or_reordered_by_raft_whatever_happens_to_one_host_at_a_time() {
    nothing_is_lost("raft");
}

fn nothing_is_lost(engine: &str) {
    let Some(mut w) = three(engine) else { return };
    let faults: u64 = std::env::var("FIDE_FAULTS").ok().and_then(|n| n.parse().ok()).unwrap_or(9);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clients: Vec<_> = (1..=3u16)
        .map(|host| {
            let (socket, stop) = (w.socket(host), std::sync::Arc::clone(&stop));
            std::thread::spawn(move || client(socket, u64::from(host), &stop))
        })
        .collect();
    for fault in 0..faults {
        // Sleep: proposals come in between two faults.
        std::thread::sleep(Duration::from_millis(100 + 37 * (fault % 7)));
        let host = 1 + (fault % 3) as u16;
        match (fault / 3) % 3 {
            0 => {
                w.kill_agent(host);
                w.start(host);
            }
            1 => {
                // Until it is given up, and for a moment.
                w.signal_agent(host, libc::SIGSTOP);
                if fault % 2 == 0 {
                    until("it is given up", || w.state(host % 3 + 1, &format!("h{host}")) == "agent-lost");
                } else {
                    // Sleep: the pause, too short for that.
                    std::thread::sleep(Duration::from_millis(40));
                }
                w.signal_agent(host, libc::SIGCONT);
            }
            _ => {
                let net = (fault % 2) as usize;
                w.lab.cut(host, fide_lab::NETS[net], fide_lab::Cut::Silent).unwrap();
                // Sleep: how long the path is out.
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
    let longest = each_once_in_one_order(&done);
    assert!(longest.len() > 100, "{} entries", longest.len());
}

pub(super) fn durable(name: &str, hosts: &[&str]) -> GroupOrder {
    GroupOrder::Create {
        name: name.into(),
        engine: "huc".into(),
        policy: "trust-contract".into(),
        hosts: hosts.iter().map(|host| (*host).to_string()).collect(),
        durable: true,
        fresh: false,
    }
}

/// `FIDE_FAULTS` (4): how often.
#[test]
fn a_durable_group_goes_on_when_all_its_agents_are_killed_at_once() {
    let of = |_| block("orders", "\"h1\", \"h2\", \"h3\"", "huc") + "durable = true\n";
    let Some(mut w) = Setup::hosts(3).extra(of).up() else { return };
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    let first = status(&w, 1, "orders").unwrap();
    assert!(first.written.is_some());
    let faults: u64 = std::env::var("FIDE_FAULTS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clients: Vec<_> = (1..=3u16)
        .map(|host| {
            let (socket, stop) = (w.socket(host), std::sync::Arc::clone(&stop));
            std::thread::spawn(move || client(socket, u64::from(host), &stop))
        })
        .collect();
    // A group of which no disk has anything begins anew.
    until("all disks have it", || (1..=3).all(|host| status(&w, host, "orders").is_some_and(|group| group.written >= Some(1))));
    for fault in 0..faults {
        // Sleep: proposals come in between two faults.
        std::thread::sleep(Duration::from_millis(200 + 57 * (fault % 5)));
        // In whatever order: each may have entries that another one's disk has not got.
        (0..3).for_each(|at| w.kill_agent(1 + ((fault + at) % 3) as u16));
        (0..3).for_each(|at| w.start(1 + ((fault / 3 + at) % 3) as u16));
        (1..=3).for_each(|host| runs(&w, host, "orders"));
        let again = status(&w, 2, "orders").unwrap();
        assert!(again.generation == first.generation && !again.anew, "{again:?}");
    }
    stop.store(true, std::sync::atomic::Ordering::Release);
    let done: Vec<(u64, Vec<Entry>)> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let longest = each_once_in_one_order(&done);
    assert!(longest.len() > 50, "{} entries", longest.len());

    // The disk of the host that would begin it is lost: one that has the log does.
    until("all of it is on disk", || {
        (1..=3).all(|host| status(&w, host, "orders").unwrap().written == Some(longest.len() as u64))
    });
    (1..=3).for_each(|host| w.kill_agent(host));
    std::fs::remove_file(w.lab.host_dir(1).join("state.json.groups")).unwrap();
    (1..=3).for_each(|host| w.start(host));
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    let mut log = Vec::new();
    read(&mut open(&w, 1, 9, 0, 0), &mut log, longest.len());
    assert_eq!(&log, longest);
}

#[test]
fn a_durable_group_tells_of_nothing_that_the_disk_does_not_take() {
    let Some(w) = Setup::hosts(2).up() else { return };
    w.all_alive();
    let file = w.lab.host_dir(1).join("state.json.groups");
    std::os::unix::fs::symlink("/dev/full", &file).unwrap();
    order(&w, 1, durable("orders", &["h1", "h2"])).unwrap();
    [1, 2].into_iter().for_each(|host| runs(&w, host, "orders"));
    let (mut on_1, mut on_2) = (open(&w, 1, 11, 0, 0), open(&w, 2, 22, 0, 0));
    let (mut log_1, mut log_2) = (Vec::new(), Vec::new());
    on_1.propose(b"one").unwrap();
    on_2.propose(b"two").unwrap();
    read(&mut on_2, &mut log_2, 2);
    until("its host says why", || {
        status(&w, 1, "orders").is_some_and(|group| group.why.contains("cannot be written") && group.index == 2)
    });
    while let Some(event) = on_1.poll(Some(Duration::from_millis(50))).unwrap() {
        assert!(!matches!(event, Event::Entry(_)), "{event:?}");
    }
    std::fs::remove_file(&file).unwrap();
    read(&mut on_1, &mut log_1, 2);
    assert_eq!(log_1, log_2);
    until("it says nothing more", || {
        status(&w, 1, "orders").is_some_and(|group| group.why.is_empty() && group.written == Some(2))
    });
}

/// Of two hosts both must live for `raft` to decide anything. A polite restart of each agent in
/// turn (every upgrade) ends no such group, and loses nothing.
#[test]
fn a_raft_group_of_two_goes_on_when_its_agents_are_restarted_one_after_the_other() {
    let Some(mut w) = Setup::hosts(2).up() else { return };
    w.all_alive();
    create(&w, 1, "orders", "raft", &["h1", "h2"]).unwrap();
    [1, 2].into_iter().for_each(|host| runs(&w, host, "orders"));
    let mut log = Vec::new();
    for (round, stops) in [1u16, 2, 1].into_iter().enumerate() {
        let goes_on = 3 - stops;
        let mut on = open(&w, goes_on, 100 + round as u64, 0, 0);
        on.propose(b"before").unwrap();
        log.clear();
        read(&mut on, &mut log, 2 * round + 1);
        w.signal_agent(stops, libc::SIGTERM);
        assert!(w.agent_ended(stops).success());
        until("the other one hears that it left", || w.state(goes_on, &format!("h{stops}")) == "left");
        on.propose(b"alone").unwrap();
        read(&mut on, &mut log, 2 * round + 2);
        w.start(stops);
        w.all_alive();
        [1, 2].into_iter().for_each(|host| runs(&w, host, "orders"));
        until("both are members", || status(&w, goes_on, "orders").is_some_and(|group| group.members.len() == 2));
        let mut other = open(&w, stops, 200 + round as u64, 0, 0);
        let mut told = Vec::new();
        read(&mut other, &mut told, 2 * round + 2);
        assert_eq!(told, log);
    }
}

/// An agent that is killed takes its vote with it. A person says that the other host goes on, with
/// its log.
#[test]
fn a_raft_group_without_its_majority_goes_on_with_one_hosts_log_when_somebody_says_so() {
    let Some(mut w) = Setup::hosts(2).up() else { return };
    w.all_alive();
    create(&w, 1, "orders", "raft", &["h1", "h2"]).unwrap();
    [1, 2].into_iter().for_each(|host| runs(&w, host, "orders"));
    let mut on_2 = open(&w, 2, 22, 0, 0);
    let mut log = Vec::new();
    on_2.propose(b"one").unwrap();
    read(&mut on_2, &mut log, 1);
    let (code, what) = refused(order(&w, 2, GroupOrder::Resume { name: "orders".into() }));
    assert!(code == ErrorCode::NotFound && what.contains("runs here"), "{what}");
    w.kill_agent(1);
    w.start(1);
    w.all_alive();
    until("it says what is to be done", || {
        status(&w, 2, "orders")
            .is_some_and(|group| group.why.contains("raft decides by 2") && group.why.contains("fide group resume"))
    });
    order(&w, 2, GroupOrder::Resume { name: "orders".into() }).unwrap();
    [1, 2].into_iter().for_each(|host| runs(&w, host, "orders"));
    let mut on_1 = open(&w, 1, 11, 0, 0);
    on_1.propose(b"two").unwrap();
    let mut told = Vec::new();
    read(&mut on_1, &mut told, 2);
    assert_eq!(told[0], log[0]);
}

/// One host is asked about all agents: what each is, and whether its groups run. An agent that ends with a group that it is to be in says so when it is back.
#[test]
fn every_agent_tells_all_others_what_it_is() {
    let Some(mut w) = Setup::hosts(3).extra(|host| format!("zone = \"rack{host}\"")).up() else { return };
    w.all_alive();
    create(&w, 1, "orders", "huc", &["h1", "h2"]).unwrap();
    let of = |w: &World, at: u16, host: u16| w.view(at, &format!("h{host}")).and_then(|view| view.agent);
    let says = |w: &World, at: u16, host: u16, groups: u32, running: u32| {
        until("its agent says what it is", || {
            of(w, at, host).is_some_and(|agent| {
                agent.zone == format!("rack{host}")
                    && agent.version == env!("CARGO_PKG_VERSION")
                    && (agent.groups, agent.groups_running) == (groups, running)
            })
        });
    };
    for at in 1..=3 {
        (1..=3).filter(|host| *host != at).for_each(|host| says(&w, at, host, u32::from(host < 3), u32::from(host < 3)));
    }
    let own = w.status(1);
    assert_eq!((&*own.zone, own.groups, own.groups_running), ("rack1", 1, 1));
    w.kill_agent(2);
    w.start(2);
    for at in [1, 3] {
        says(&w, at, 2, 1, 1);
    }
    order(&w, 2, GroupOrder::Leave { name: "orders".into(), force: false }).unwrap();
    says(&w, 3, 1, 1, 1);
}
