//! The last of two hosts: no other host is left whose answer could be a barrier (SafeTimer §4.1), but whatever else answers on the paths' networks, or the
//! host itself by its other interface.

use crate::beats::{actor, check, in_switch, settled};
use crate::common::{Setup, World, until, wait_for};
use fide_client::CheckOutcome;
use fide_lab::{Cut, NETS};
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{BarrierBy, Cause};
use std::process::Command;
use std::time::Duration;

fn now_ns() -> u64 {
    fide_client::monotonic_ns()
}

/// Two agents, and nothing on any further host.
fn pair(hosts: u16) -> Option<World> {
    let mut w = Setup::hosts(hosts).alone().empty().up()?;
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

/// h1 falls silent: by whose answers h2 knew that none of its heartbeats was waiting, if it did.
fn barriers(w: &World) -> Option<Vec<(BarrierBy, String)>> {
    let since_ns = now_ns();
    NETS.into_iter().for_each(|net| w.lab.cut(1, net, Cut::Silent).unwrap());
    let is_silent = |e: &HistoryEvent| e.cause == Cause::SilentHost && e.node == "h1" && e.app.is_none() && e.at_ns > since_ns;
    let evidence = w.event(2, "a silent host", is_silent).evidence.expect("evidence");
    assert!(evidence.barriers.iter().all(|b| b.asked_ns > since_ns));
    evidence.drained.then(|| evidence.barriers.into_iter().map(|b| (b.by, b.from)).collect())
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

fn has_no_barrier(w: &World) {
    let mut listener = actor(w, 2, &[]);
    let checked = wait_for("a check that is not void", || {
        Some(check(&mut listener, "@h1", now_ns(), Duration::from_millis(300))).filter(|c| c.outcome != CheckOutcome::Void)
    });
    assert_eq!(checked.outcome, CheckOutcome::NoBarrier, "{checked:?}");
}

#[test]
fn a_router_that_answers_is_a_barrier_when_the_only_other_host_is_gone() {
    let Some(mut w) = pair(3) else { return };
    assert_eq!(barriers(&w), None, "nobody was left to answer");
    has_no_barrier(&w);
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
    assert_eq!(barriers(&w), Some(vec![(BarrierBy::Answerer, by), (BarrierBy::Answerer, other.to_string())]));
    has_barriers(&w);
    heal(&w);

    // Where they are not wanted nobody is asked.
    again(&mut w, "path = [{ interface = \"net0\", answerers = [] }, { interface = \"net1\", answerers = [] }]");
    assert!(named(&w).iter().all(Vec::is_empty));
    assert_eq!(barriers(&w), None);
    has_no_barrier(&w);
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
    // The first search may be too early for the ports of the cable.
    until("a silence behind a barrier", || {
        let found = barriers(&w);
        if let Some(by) = &found {
            assert_eq!(*by, [(BarrierBy::Itself, "net1".into()), (BarrierBy::Itself, "net0".into())]);
            has_barriers(&w);
        }
        heal(&w);
        found.is_some()
    });

    let config = std::fs::read_to_string(w.config(2)).unwrap();
    w.write_config(2, &format!("{config}\n[detector]\ntcp_questions = false\n"));
    w.kill_agent(2);
    w.start(2);
    w.all_alive();
    assert_eq!(barriers(&w), None);
    has_no_barrier(&w);
    w.agents_run();
}

/// Each takes the other one for gone, as nobody else is there who could tell; neither listens to the other one any more, but for that.
#[test]
fn two_hosts_that_gave_each_other_up_meet_again() {
    for receive in ["auto", "udp"] {
        let Some(w) = Setup::hosts(2).extra(move |_| format!("receive = \"{receive}\"\n")).up() else { return };
        let lives = [1, 2].map(|host| w.status(host).incarnation);
        NETS.into_iter().for_each(|net| w.lab.cut(1, net, Cut::Silent).unwrap());
        for (host, other) in [(1, "h2"), (2, "h1")] {
            until("each has given the other one up", || w.state(host, other) == "silent-host");
        }
        heal(&w);
        // Everybody listens to somebody new, and neither life was begun more than once.
        for (host, former) in [1, 2].into_iter().zip(lives) {
            assert_eq!(w.status(host).incarnation, former + 1, "{receive}, h{host}");
        }
    }
}
