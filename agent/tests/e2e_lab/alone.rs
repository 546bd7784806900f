//! The last of two hosts: no other host is left whose answer could be a barrier (SafeTimer §4.1), but whatever else answers on the paths' networks, or the
//! host itself by its other interface.

use crate::common::{Setup, World, until, wait_for};
use crate::e2e_lab::beats::{actor, in_switch, not_void, queues, send_by_port, settled};
use crate::e2e_lab::fence::Pins;
use fide_client::CheckOutcome;
use fide_lab::{Cut, NETS, host_name, nic_name};
use fide_wire::control::{FenceOrder, HistoryEvent, Request};
use fide_wire::verdict::{BarrierBy, Cause};
use std::process::Command;
use std::time::Duration;

fn now_ns() -> u64 {
    fide_client::monotonic_ns()
}

/// Two agents, and nothing on any further host.
fn pair(hosts: u16) -> Option<World> {
    let mut w = Setup::hosts(hosts).empty().up()?;
    w.start(1);
    w.start(2);
    w.all_alive();
    Some(w)
}

fn again(w: &mut World, path: &str) {
    let config = w.head(2, "h2", "2ms");
    let (head, _) = config.split_once("\npath = ").unwrap();
    w.write_config(2, &format!("{head}\n{path}\n"));
    w.kill_agent(2);
    w.start(2);
    w.all_alive();
}

fn silence(w: &World) {
    NETS.into_iter().for_each(|net| w.lab.cut(1, net, Cut::Silent).unwrap());
}

fn ip(w: &World, host: u16, words: &str) {
    assert!(w.lab.command(host, "ip").unwrap().args(words.split(' ')).status().unwrap().success(), "h{host}: {words}");
}

/// h1 falls silent: by whose answers h2 knew that none of its heartbeats was waiting, if it did.
fn barriers(w: &World) -> Option<Vec<(BarrierBy, String)>> {
    let since_ns = now_ns();
    silence(w);
    let is_silent = |e: &HistoryEvent| e.cause == Cause::SilentHost && e.node == "h1" && e.app.is_none() && e.at_ns > since_ns;
    let evidence = w.event(2, "a silent host", is_silent).evidence.expect("evidence");
    assert!(evidence.barriers.iter().all(|b| b.asked_ns > since_ns));
    evidence.drained.then(|| evidence.barriers.into_iter().map(|b| (b.by, b.from)).collect())
}

/// h1 falls silent, and again until that came behind barriers: on a busy machine an answer may come
/// too late for one. By whose answers they were.
fn some_barriers(w: &World) -> Vec<(BarrierBy, String)> {
    wait_for("a silence behind barriers", || {
        let found = barriers(w);
        if found.is_none() {
            heal(w);
        }
        found
    })
}

fn heal(w: &World) {
    NETS.into_iter().for_each(|net| w.lab.heal(1, net).unwrap());
    w.all_alive();
}

fn has_barriers(w: &World) {
    let mut listener = actor(w, 2, &[]);
    let drained = settled(&mut listener, "@h1", Duration::ZERO);
    assert_eq!(drained.outcome, CheckOutcome::Drained, "{drained:?}");
}

fn has_no_barrier(w: &World, peer: &str) {
    let mut listener = actor(w, 2, &[]);
    let checked = not_void(&mut listener, peer, Duration::from_millis(300));
    assert_eq!(checked.outcome, CheckOutcome::NoBarrier, "{checked:?}");
}

#[test]
fn a_router_that_answers_is_a_barrier_when_the_only_other_host_is_gone() {
    let Some(mut w) = pair(3) else { return };
    assert_eq!(barriers(&w), None, "nobody was left to answer");
    has_no_barrier(&w, "@h1");
    heal(&w);

    // Of one path it is known by the routes, of the other by the configuration.
    let by = w.lab.ipv4(3, 0).to_string();
    let done = w.lab.command(2, "ip").unwrap().args(["route", "add", "default", "via", &by]).status().unwrap();
    assert!(done.success());
    let other = w.lab.ipv4(3, 1);
    again(&mut w, &format!("path = [{{ interface = \"net0\" }}, {{ interface = \"net1\", answerers = [\"{other}\"] }}]"));
    let named = |w: &World| w.status(2).paths.iter().map(|p| p.answerers.clone()).collect::<Vec<_>>();
    until("both answer", || named(&w).iter().all(|of| of.len() == 1 && of[0].answers));
    assert_eq!(named(&w).iter().map(|of| of[0].address.clone()).collect::<Vec<_>>(), [by.clone(), other.to_string()]);
    assert_eq!(some_barriers(&w), [(BarrierBy::Answerer, by), (BarrierBy::Answerer, other.to_string())]);
    has_barriers(&w);
    heal(&w);

    // Where they are not wanted nobody is asked.
    again(&mut w, "path = [{ interface = \"net0\", answerers = [] }, { interface = \"net1\", answerers = [] }]");
    assert!(named(&w).iter().all(Vec::is_empty));
    assert_eq!(barriers(&w), None);
    has_no_barrier(&w, "@h1");
    w.agents_run();
}

#[test]
fn where_both_paths_are_on_one_network_the_last_host_sends_itself_its_barriers() {
    let Some(mut w) = pair(2) else { return };
    // A cable from one switch to the other.
    let other = w.lab.switch_netns(1);
    in_switch(&w, 0, || {
        let ip = |words: &str| assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
        ip(&format!("link add cable type veth peer name cable netns {other}"));
        ip("link set cable master br0 up");
    });
    in_switch(&w, 1, || {
        assert!(Command::new("ip").args(["link", "set", "cable", "master", "br0", "up"]).status().unwrap().success());
    });
    for net in NETS {
        in_switch(&w, net, || {
            let shown = || Command::new("ip").args(["-d", "link", "show", "cable"]).output().unwrap().stdout;
            until("the cable carries", || String::from_utf8(shown()).unwrap().contains("state forwarding"));
        });
    }
    let by = [(BarrierBy::Itself, "net1".into()), (BarrierBy::Itself, "net0".into())];
    assert_eq!(some_barriers(&w), by);
    has_barriers(&w);
    heal(&w);

    let config = std::fs::read_to_string(w.config(2)).unwrap();
    w.write_config(2, &format!("{config}\n[detector]\ntcp_questions = false\n"));
    w.kill_agent(2);
    w.start(2);
    w.all_alive();
    assert_eq!(barriers(&w), None);
    has_no_barrier(&w, "@h1");
    w.agents_run();
}

/// Each takes the other one for gone, as nobody else is there who could tell; neither listens to the other one any more, but for that.
#[test]
fn two_hosts_that_gave_each_other_up_meet_again() {
    for receive in ["auto", "udp"] {
        let Some(w) = Setup::hosts(2).extra(move |_| format!("receive = \"{receive}\"\n")).up() else { return };
        let lives = [1, 2].map(|host| w.status(host).incarnation);
        silence(&w);
        for (host, other) in [(1, "h2"), (2, "h1")] {
            until("each has given the other one up", || w.state(host, other) == "silent-host");
        }
        heal(&w);
        // Everybody listens to somebody new.
        for (host, former) in [1, 2].into_iter().zip(lives) {
            assert!(w.status(host).incarnation > former, "{receive}, h{host}");
        }
    }
}

/// As before, but two and two.
#[test]
fn halves_that_gave_each_other_up_meet_again() {
    let Some(w) = Setup::hosts(4).up() else { return };
    let on_switches = |words: &[&str]| {
        for net in NETS {
            in_switch(&w, net, || {
                for words in words {
                    assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
                }
            });
        }
    };
    let lives: Vec<u32> = (1..=4).map(|host| w.status(host).incarnation).collect();
    on_switches(&[
        "link add br9 type bridge mcast_snooping 0",
        "link set br9 up",
        "link set h3 master br9",
        "link set h4 master br9",
    ]);
    for (observer, others) in [(1, ["h3", "h4"]), (2, ["h3", "h4"]), (3, ["h1", "h2"]), (4, ["h1", "h2"])] {
        until("each half has given the other one up", || others.iter().all(|other| w.state(observer, other) == "silent-host"));
    }
    on_switches(&["link set h3 master br0", "link set h4 master br0"]);
    w.all_alive();
    for (host, former) in (1..=4).zip(lives) {
        assert!(w.status(host).incarnation > former, "h{host} began anew");
    }
}

/// An address that moves to the host itself, as one that is highly available does when the other host dies, is answered by no way through an interface.
#[test]
fn an_address_that_is_this_hosts_by_now_gives_no_barrier() {
    for receive in ["auto", "udp"] {
        let Some(mut w) = pair(3) else { return };
        let moving = ["10.200.0.9", "10.200.1.9"];
        for (net, address) in NETS.into_iter().zip(moving) {
            ip(&w, 3, &format!("addr add {address}/24 dev net{net}"));
            ip(&w, 2, &format!("route add {address} dev net{net}"));
        }
        // As is usual beside such addresses.
        assert!(
            w.lab
                .command(2, "sh")
                .unwrap()
                .args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind"])
                .status()
                .unwrap()
                .success()
        );
        let path = |net: usize| format!("{{ interface = \"net{net}\", answerers = [\"{}\"] }}", moving[net]);
        again(&mut w, &format!("receive = \"{receive}\"\npath = [{}, {}]", path(0), path(1)));
        let answers = || w.status(2).paths.iter().all(|p| p.answerers.iter().any(|a| a.answers));
        until("both answer", answers);
        silence(&w);
        until("it is gone", || w.state(2, "h1") == "silent-host");
        let mut listener = actor(&w, 2, &[]);
        let address = w.lab.ipv4(1, 0).to_string();
        assert_eq!(settled(&mut listener, &address, Duration::ZERO).outcome, CheckOutcome::Drained, "{receive}");
        for (net, address) in NETS.into_iter().zip(moving) {
            ip(&w, 3, &format!("addr del {address}/24 dev net{net}"));
            ip(&w, 2, &format!("addr add {address}/24 dev net{net}"));
        }
        drop(listener);
        has_no_barrier(&w, &address);
        until("it is an answerer no longer", || w.status(2).paths.iter().all(|p| p.answerers.is_empty()));
        has_no_barrier(&w, &address);
    }
}

#[test]
fn the_only_other_host_is_no_answerer_beside_itself() {
    let Some(mut w) = pair(2) else { return };
    let (a, b) = (w.lab.ipv4(1, 0), w.lab.ipv4(1, 1));
    again(
        &mut w,
        &format!("path = [{{ interface = \"net0\", answerers = [\"{a}\"] }}, {{ interface = \"net1\", answerers = [\"{b}\"] }}]"),
    );
    until("it is left out", || w.status(2).paths.iter().all(|p| p.answerers.is_empty()));
}

/// In mode *sent* both sides of a cut go on. Whoever hears first that the other one gave it up stops; coming back must not cost the one that went on.
#[test]
fn of_two_fenced_hosts_the_one_that_went_on_stays_when_the_other_comes_back() {
    let Some(pins) = Pins::new() else { return };
    let fence = [1, 2].map(|host| pins.config(host, "mode = \"sent\"\ntimeout = \"2s\""));
    let Some(w) = Setup::hosts(2).extra(move |host| fence[usize::from(host) - 1].clone()).up() else { return };
    let state = |host: u16| w.status(host).fence.map(|fence| fence.state).unwrap();
    until("both are open", || [1, 2].iter().all(|host| state(*host) == "open"));
    silence(&w);
    for (host, other) in [(1, "h2"), (2, "h1")] {
        until("each has given the other one up", || w.state(host, other) == "silent-host");
    }
    NETS.into_iter().for_each(|net| w.lab.heal(1, net).unwrap());
    until("one hears that", || [1, 2].iter().any(|host| state(*host) == "fenced"));
    // Both, if both were told in the same moment.
    let mut recovered = 0;
    until("all is well again", || {
        for host in [1, 2] {
            if state(host) == "fenced" {
                w.ask(host, &Request::Fence { order: FenceOrder::Recover }).unwrap();
                recovered += 1;
            }
        }
        [(1, "h2"), (2, "h1")].iter().all(|(host, other)| state(*host) == "open" && w.state(*host, other) == "alive")
    });
    let fencings: usize = [1, 2].iter().map(|host| w.fencings(*host).len()).sum();
    assert!(fencings == recovered && [1, 2].iter().all(|host| w.fencings(*host).len() <= 1), "{fencings}, {recovered} recovered");
}

/// The same where the agent that comes back is another one by now, which found the gates closed: what its former life knew is on the disk.
#[test]
fn nor_when_its_agent_was_started_anew_meanwhile() {
    for recover_at_start in [false, true] {
        let Some(pins) = Pins::new() else { return };
        let lines = format!("mode = \"sent\"\ntimeout = \"2s\"\nrecover_at_start = {recover_at_start}");
        let fence = [1, 2].map(|host| pins.config(host, &lines));
        let Some(mut w) = Setup::hosts(2).extra(move |host| fence[usize::from(host) - 1].clone()).up() else { return };
        let state = |w: &World, host: u16| w.status(host).fence.map(|fence| fence.state).unwrap();
        until("both are open", || [1, 2].iter().all(|host| state(&w, *host) == "open"));
        silence(&w);
        for (host, other) in [(1, "h2"), (2, "h1")] {
            until("each has given the other one up", || w.state(host, other) == "silent-host");
        }
        let given_up = w.view(1, "h2").unwrap().incarnation + 1;
        let written = || std::fs::read_to_string(w.lab.host_dir(1).join("state.json")).unwrap().contains(&given_up.to_string());
        until("that is on the disk", written);
        let stopped_ns = now_ns();
        w.kill_agent(1);
        until("its time is over", || now_ns() > stopped_ns + 3_000_000_000);
        w.start(1);
        if !recover_at_start {
            until("it is found closed", || state(&w, 1) == "fenced");
            w.ask(1, &Request::Fence { order: FenceOrder::Recover }).unwrap();
        }
        NETS.into_iter().for_each(|net| w.lab.heal(1, net).unwrap());
        w.all_alive();
        until("both are open", || [1, 2].iter().all(|host| state(&w, *host) == "open"));
        assert_eq!(w.fencings(2).len(), 0, "the one that went on, recover_at_start = {recover_at_start}");
    }
}

#[test]
fn all_who_answer_are_known_to() {
    let Some(mut w) = pair(3) else { return };
    for (host, addresses) in [(3, ["10.200.0.3", "10.200.0.4"]), (2, ["10.200.0.2", "10.200.0.1"])] {
        addresses.iter().for_each(|address| ip(&w, host, &format!("addr add {address}/24 dev net0")));
    }
    let third = w.lab.ipv4(3, 0);
    again(
        &mut w,
        &format!(
            "path = [{{ interface = \"net0\", answerers = [\"10.200.0.3\", \"{third}\", \"10.200.0.4\"] }}, {{ interface = \"net1\" }}]"
        ),
    );
    until("all three answer", || w.status(2).paths[0].answerers.iter().filter(|a| a.answers).count() == 3);
}

/// Its own kernel is the only one that can, by TCP, as its echo comes by one queue only.
#[test]
fn a_lost_agent_is_told_behind_a_barrier_that_its_own_kernel_gives() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED: a veth has as many queues as there are processors");
        return;
    }
    let Some(mut w) = pair(2) else { return };
    w.kill_agent(2);
    NETS.into_iter().for_each(|net| w.lab.in_host(2, || queues(&nic_name(net), 2, 1)).unwrap());
    w.start(2);
    let mut hashes = true;
    for net in NETS {
        let sends = &mut hashes;
        in_switch(&w, net, || {
            queues(&host_name(2), 1, 2);
            *sends &= send_by_port(&host_name(2));
        });
    }
    if !hashes {
        println!("SKIPPED: a program cannot choose by which queue the switch sends (it needs Linux 6.6)");
        return;
    }
    w.all_alive();
    // On a busy machine an answer may come too late for a barrier.
    let barriers = wait_for("an agent that is lost behind barriers", || {
        let since_ns = now_ns();
        w.signal_agent(1, libc::SIGSTOP);
        let is_lost = |e: &HistoryEvent| e.cause == Cause::AgentLost && e.node == "h1" && e.app.is_none() && e.at_ns > since_ns;
        let evidence = w.event(2, "a lost agent", is_lost).evidence.expect("evidence");
        w.signal_agent(1, libc::SIGCONT);
        w.all_alive();
        evidence.drained.then_some(evidence.barriers)
    });
    let by: Vec<_> = barriers.iter().map(|b| (b.by, b.from.as_str())).collect();
    assert!(by == [(BarrierBy::Host, "h1"); 2], "{by:?}");
}
