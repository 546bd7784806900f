//! Groups whose members have all stopped: they go on by themselves, with everything that was told, and where that could be
//! missing a person says so.

use crate::common::{Pins, Setup, World, kill, until};
use crate::e2e_lab::fence::{all_fenced_within, fence};
use crate::e2e_lab::groups::{create, open, order, read, refused, runs, status, values};
use fide_client::group::{Entry, Event, Group, Stage};
use fide_lab::{Cut, NETS};
use fide_wire::control::{ErrorCode, FenceOrder, GroupOrder, Reply};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A writer on each host, each with one value under way, and what each was told.
pub(super) struct Writers {
    pub groups: Vec<Group>,
    pub told: Vec<Vec<Entry>>,
    proposed: Vec<u64>,
}

impl Writers {
    pub fn new(w: &World, hosts: u16) -> Self {
        let groups: Vec<Group> = (1..=hosts).map(|host| open(w, host, u64::from(host), 0, 0)).collect();
        Self { told: vec![Vec::new(); groups.len()], proposed: vec![0; groups.len()], groups }
    }

    /// They write for so long; one whose agent is gone comes back.
    pub fn write(&mut self, for_ms: u64) {
        let until = Instant::now() + Duration::from_millis(for_ms);
        while Instant::now() < until {
            for of in 0..self.groups.len() {
                let group = &mut self.groups[of];
                if group.pending() == 0 && group.propose(format!("h{} {}", of + 1, self.proposed[of] + 1).as_bytes()).is_ok() {
                    self.proposed[of] += 1;
                }
                match group.poll(Some(Duration::from_millis(2))) {
                    Ok(Some(Event::Entry(entry))) => self.told[of].push(entry),
                    Ok(_) => {}
                    Err(_) => _ = group.reconnect(),
                }
            }
        }
    }

    /// Everybody is told everything that anybody was, in one order, and each value once.
    pub fn have_all(&mut self) -> usize {
        let longest = self.told.iter().map(Vec::len).max().unwrap();
        for (group, told) in self.groups.iter_mut().zip(&mut self.told) {
            read(group, told, longest);
        }
        let longest = self.told.iter().map(Vec::len).max().unwrap();
        let all = self.told.iter().find(|told| told.len() == longest).map(|told| values(told)).unwrap();
        for (of, told) in self.told.iter().enumerate() {
            assert_eq!(values(told), all[..told.len()], "h{}", of + 1);
        }
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), all.len(), "each value once");
        longest
    }
}

/// Everything that was told is there, and the group decides on all hosts.
pub(super) fn all_is_well(w: &World, writers: &mut Writers, what: &str) {
    let hosts = writers.groups.len() as u16;
    (1..=hosts).for_each(|host| runs(w, host, "orders"));
    let before = writers.have_all();
    let own = |writers: &Writers, of: usize| writers.told[of].iter().filter(|entry| entry.client == of as u64 + 1).count();
    let counts: Vec<usize> = (0..writers.groups.len()).map(|of| own(writers, of)).collect();
    let limit = Instant::now() + Duration::from_secs(60);
    while (0..writers.groups.len()).any(|of| own(writers, of) <= counts[of]) {
        assert!(Instant::now() < limit, "{what}: a host decides nothing behind {before} entries");
        writers.write(50);
    }
    writers.have_all();
    for host in 1..=hosts {
        assert!(!w.log(host).contains("are not in the log that it goes on"), "{what}, h{host}: {}", w.log(host));
    }
}

pub(super) fn resumed(w: &World) -> usize {
    w.running().into_iter().map(|host| w.log(host).matches("all its members had stopped").count()).sum()
}

/// All fences are open. One that its host's silence closed opens by itself; on a busy machine others may have given a host up
/// meanwhile, whose fence is a person's to open.
pub(super) fn open_all(w: &World, hosts: u16) {
    let since = Instant::now();
    until("all fences are open", || {
        let mut are_open = true;
        for host in 1..=hosts {
            let state = w.status(host).fence.unwrap().state;
            are_open &= state == "open";
            if state == "fenced" && since.elapsed() > Duration::from_secs(5) {
                fence(w, host, FenceOrder::Recover);
            }
        }
        are_open
    });
}

fn create_fenced(w: &World, engine: &str, hosts: u16) {
    let names = (1..=hosts).map(|host| format!("h{host}")).collect();
    let (engine, policy) = (engine.into(), "fence".into());
    order(w, 1, GroupOrder::Create { name: "orders".into(), engine, policy, hosts: names, durable: false, fresh: false })
        .unwrap();
}

/// All agents stand still for longer than their fences are open, or than their contracts allow: members stop, and nobody had to.
#[test]
fn behind_a_stall_of_all_hosts_a_group_goes_on() {
    let mut on_their_own = 0;
    for (engine, is_fenced) in [("huc", true), ("hsuc", true), ("huc", false), ("hsuc", false), ("lowi", false), ("raft", true)] {
        let Some(pins) = Pins::new() else { return };
        let Some(w) = world(&pins, engine, is_fenced) else { return };
        let mut writers = Writers::new(&w, 3);
        for stall_ms in [1_500, 2_500] {
            writers.write(100);
            let agents: Vec<i32> = (1..=3).map(|host| w.agent_pid(host)).collect();
            agents.iter().for_each(|agent| kill(*agent, libc::SIGSTOP));
            // Sleep: the stall.
            sleep(Duration::from_millis(stall_ms));
            agents.iter().for_each(|agent| kill(*agent, libc::SIGCONT));
            if is_fenced {
                open_all(&w, 3);
            }
            all_is_well(&w, &mut writers, engine);
        }
        println!("{engine}, fences {is_fenced}: {} entries, went on by itself {} times", writers.told[0].len(), resumed(&w));
        on_their_own += resumed(&w);
    }
    assert!(on_their_own > 0, "no group stopped, so this proves nothing");
}

/// Three hosts and a group of theirs.
fn world(pins: &Pins, engine: &str, is_fenced: bool) -> Option<World> {
    let w = if is_fenced { all_fenced_within(pins, 3, "acknowledged", "1s") } else { Setup::hosts(3).heartbeat("10ms").up() }?;
    w.all_alive();
    if is_fenced {
        create_fenced(&w, engine, 3);
    } else {
        create(&w, 1, "orders", engine, &["h1", "h2", "h3"]).unwrap();
    }
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    Some(w)
}

/// Both switches fail for a while, in bursts that no contract allows. Without fences each side of a cut trusts the contract,
/// and only those go on that need no trust.
#[test]
fn behind_bursts_without_any_packet_groups_go_on() {
    for (engine, is_fenced) in [("huc", true), ("hsuc", true), ("raft", false)] {
        let Some(pins) = Pins::new() else { return };
        let Some(w) = world(&pins, engine, is_fenced) else { return };
        let mut writers = Writers::new(&w, 3);
        writers.write(100);
        for burst_ms in [20, 100, 20, 1_500, 20, 100] {
            (1..=3).for_each(|host| NETS.iter().for_each(|net| w.lab.cut(host, *net, Cut::Silent).unwrap()));
            writers.write(burst_ms);
            (1..=3).for_each(|host| NETS.iter().for_each(|net| w.lab.heal(host, *net).unwrap()));
            writers.write(80);
        }
        if is_fenced {
            open_all(&w, 3);
        }
        w.all_alive();
        all_is_well(&w, &mut writers, engine);
        println!("{engine}: {} entries, went on by itself {} times", writers.told[0].len(), resumed(&w));
    }
}

/// The memory of one host is gone, and the others cannot know whether it was told more than they.
#[test]
fn a_group_waits_for_a_person_where_a_log_may_be_missing() {
    let Some(pins) = Pins::new() else { return };
    let Some(mut w) = all_fenced_within(&pins, 3, "acknowledged", "2s") else { return };
    create_fenced(&w, "huc", 3);
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    let mut writers = Writers::new(&w, 3);
    writers.write(100);
    writers.have_all();
    // All stop before anybody has gone on without another one, and an agent is killed meanwhile.
    (1..=3).for_each(|host| NETS.iter().for_each(|net| w.lab.cut(host, *net, Cut::Silent).unwrap()));
    for host in 1..=3 {
        until("the member has stopped", || status(&w, host, "orders").is_some_and(|group| group.stage == Stage::Joining));
    }
    w.kill_agent(3);
    (1..=3).for_each(|host| NETS.iter().for_each(|net| w.lab.heal(host, *net).unwrap()));
    w.start(3);
    fence(&w, 3, FenceOrder::Recover);
    open_all(&w, 3);
    w.all_alive();
    let why = |w: &World, host: u16| status(w, host, "orders").map_or(String::new(), |group| group.why);
    for host in 1..=2 {
        until("it is said who may have more", || why(&w, host).contains("h3 may have more"));
        let logs = status(&w, host, "orders").unwrap().logs;
        assert!(logs.iter().any(|log| log.host == "h2" && log.members.contains(&"h3".to_owned())), "{logs:?}");
    }
    let (code, what) = refused(create(&w, 1, "orders", "huc", &["h1", "h2", "h3"]));
    assert!(code == ErrorCode::Exists && what.contains("fide group resume"), "{what}");
    let (code, what) = refused(order(&w, 3, GroupOrder::Resume { name: "orders".into() }));
    assert!(code == ErrorCode::NotFound && what.contains("keeps no log"), "{what}");
    let logs = status(&w, 1, "orders").unwrap().logs;
    let longest = logs.iter().max_by_key(|log| log.entries).unwrap();
    let host: u16 = longest.host[1..].parse().unwrap();
    assert!(matches!(order(&w, host, GroupOrder::Resume { name: "orders".into() }), Ok(Reply::Done)));
    all_is_well(&w, &mut writers, "resumed");
}
