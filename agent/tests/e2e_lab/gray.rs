//! Networks that fail in part, and the groups that people get who name neither engine nor policy: `raft` without fences, `huc`
//! with them. Nothing that was told is missing afterwards, and nobody has to mend a group.

use crate::common::{Pins, Setup, World};
use crate::e2e_lab::fence::all_fenced_within;
use crate::e2e_lab::groups::{order, runs, status};
use crate::e2e_lab::resume::{Writers, all_is_well, open_all, resumed};
use fide_lab::{Cut, NETS};
use fide_wire::control::GroupOrder;
use std::time::{Duration, Instant};

/// Hosts, with fences or without, and the group that they begin with.
fn world(pins: &Pins, hosts: u16, is_fenced: bool) -> Option<World> {
    let w = if is_fenced {
        all_fenced_within(pins, hosts, "acknowledged", "1s")
    } else {
        Setup::hosts(hosts).heartbeat("10ms").up()
    }?;
    w.all_alive();
    let names = (1..=hosts).map(|host| format!("h{host}")).collect();
    let none = String::new;
    let plan =
        GroupOrder::Create { name: "orders".into(), engine: none(), policy: none(), hosts: names, durable: false, fresh: false };
    order(&w, 1, plan).unwrap();
    (1..=hosts).for_each(|host| runs(&w, host, "orders"));
    Some(w)
}

/// A network fails for some seconds, while everybody writes, and is well again.
fn behind(what: &str, hosts: u16, fail: impl Fn(&World, u64)) {
    for is_fenced in [false, true] {
        let Some(pins) = Pins::new() else { return };
        let Some(w) = world(&pins, hosts, is_fenced) else { return };
        let mut writers = Writers::new(&w, hosts);
        writers.write(200);
        let (begun, told) = (Instant::now(), writers.told.iter().map(Vec::len).max().unwrap());
        let (mut step, mut longest, mut last) = (0, Duration::ZERO, (told, Instant::now()));
        while begun.elapsed() < Duration::from_secs(6) {
            fail(&w, step);
            step += 1;
            writers.write(50);
            let now = writers.told.iter().map(Vec::len).max().unwrap();
            if now > last.0 {
                last = (now, Instant::now());
            }
            longest = longest.max(last.1.elapsed());
        }
        let meanwhile = writers.told.iter().map(Vec::len).max().unwrap() - told;
        assert!(is_fenced || meanwhile > 0, "{what}: nobody decided anything, though a majority could");
        (1..=hosts).for_each(|host| NETS.iter().for_each(|net| w.lab.heal(host, *net).unwrap()));
        let healed = Instant::now();
        if is_fenced {
            open_all(&w, hosts);
        }
        w.all_alive();
        for host in 1..=hosts {
            let leads = || status(&w, host, "orders").is_some_and(|group| group.leader.is_some());
            let limit = Instant::now() + Duration::from_secs(30);
            while !leads() {
                let all: Vec<_> = (1..=hosts).map(|host| status(&w, host, "orders")).collect();
                assert!(Instant::now() < limit, "{what}: h{host} has no leader: {all:#?}");
            }
        }
        all_is_well(&w, &mut writers, what);
        let stops: Vec<usize> = (1..=hosts).map(|host| w.log(host).matches("this host's member stopped").count()).collect();
        println!(
            "{what}, fences {is_fenced}: {meanwhile} entries meanwhile, longest pause {} ms, members stopped {stops:?}, went on by itself {} \
             times, all well {} ms behind",
            longest.as_millis(),
            resumed(&w),
            healed.elapsed().as_millis()
        );
    }
}

fn lossy(percent: u8) {
    behind(&format!("{percent} % lost at h3"), 3, |w, step| {
        if step == 0 {
            NETS.iter().for_each(|net| w.lab.lose(3, *net, percent).unwrap());
        }
    });
}

#[test]
fn a_host_that_loses_a_fifth_of_what_is_sent_to_it_costs_nobody_an_entry() {
    lossy(20);
}

#[test]
fn a_host_that_loses_half_of_what_is_sent_to_it_costs_nobody_an_entry() {
    lossy(50);
}

#[test]
fn a_host_that_is_cut_off_again_and_again_costs_nobody_an_entry() {
    behind("h1 in and out", 3, |w, step| match step % 20 {
        0 => NETS.iter().for_each(|net| w.lab.cut(1, *net, Cut::Silent).unwrap()),
        6 => NETS.iter().for_each(|net| w.lab.heal(1, *net).unwrap()),
        _ => {}
    });
}

#[test]
fn a_chain_of_five_hosts_costs_nobody_an_entry() {
    behind("chain", 5, |w, step| {
        for (a, b) in (1..=5).flat_map(|a| (a + 2..=5).map(move |b| (a, b))).filter(|_| step == 0) {
            for net in NETS {
                w.lab.deafen(a, b, net).unwrap();
                w.lab.deafen(b, a, net).unwrap();
            }
        }
    });
}

#[test]
fn small_packets_alone_at_one_host_cost_nobody_an_entry() {
    behind("1,200 bytes at h3", 3, |w, step| {
        if step == 0 {
            NETS.iter().for_each(|net| w.lab.limit_packets(3, *net, 1200).unwrap());
        }
    });
}
