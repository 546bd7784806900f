//! Networks that fail in part: some hosts hear each other, others do not.

use super::groups::{create, open, read_all, runs, status};
use crate::common::{Pins, Setup, World, until};
use fide_lab::NETS;
use fide_wire::control::{FenceOrder, FenceStatus, HistoryEvent, Reply, Request};
use fide_wire::level::{FENCE_EVENT_CODE, LOSS_EVENT_CODE, MISTAKEN_EVENT_CODE, MULTICAST_EVENT_CODE, SIZE_EVENT_CODE};
use fide_wire::verdict::Cause;
use std::collections::BTreeMap;

/// `host` receives nothing of `to` any more, on both networks.
fn deafen(w: &World, host: u16, to: u16) {
    NETS.iter().for_each(|net| w.lab.deafen(host, to, *net).unwrap());
}

/// Neither receives anything of the other.
fn part(w: &World, a: u16, b: u16) {
    deafen(w, a, b);
    deafen(w, b, a);
}

fn heal(w: &World) {
    for host in w.lab.hosts() {
        NETS.iter().for_each(|net| w.lab.heal(host, *net).unwrap());
    }
}

fn unreachable(w: &World, observer: u16, host: &str) -> HistoryEvent {
    w.event(observer, "a host is unreachable", |e| e.cause == Cause::Unreachable && e.node == host)
}

fn fence(w: &World, host: u16) -> FenceStatus {
    match w.ask(host, &Request::Fence { order: FenceOrder::Status }).unwrap() {
        Reply::Fence(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// Nobody was called dead, nobody began a new incarnation, and no fence closed.
fn nobody_was_given_up(w: &World) {
    for host in w.running() {
        let all = w.history(host);
        let of = [Cause::SilentHost, Cause::AgentLost, Cause::Fenced, Cause::Isolated];
        let wrong: Vec<_> = all.iter().filter(|e| of.contains(&e.cause) || e.cause == Cause::Returned && e.code != 0).collect();
        assert!(wrong.is_empty(), "h{host}: {wrong:?}");
    }
}

/// Acknowledged fences with a timeout that a busy machine keeps.
fn fenced(pins: &Pins, hosts: u16, timeout: &str) -> Option<World> {
    fenced_by(pins, hosts, |_| timeout)
}

/// The same, with a timeout of each host's own.
fn fenced_by<'a>(pins: &Pins, hosts: u16, timeout: impl Fn(u16) -> &'a str) -> Option<World> {
    let lines = |host| format!("mode = \"acknowledged\"\ntimeout = \"{}\"\nmargin = \"10ms\"", timeout(host));
    let configs: Vec<String> = (1..=hosts).map(|h| pins.config(h, &lines(h))).collect();
    Setup::hosts(hosts).extra(move |h| configs[usize::from(h) - 1].clone()).up()
}

/// Half of a switch has died, or a table of it is wrong: two of three hosts receive nothing of each other, and the third hears both.
#[test]
fn two_hosts_that_a_third_hears_are_unreachable_to_each_other_and_nobody_is_dead() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = fenced(&pins, 3, "3s") else { return };
    (1..=3).for_each(|host| until("its fence is open", || fence(&w, host).state == "open"));
    let process = w.sleeper(3);
    w.watch_known(3, "db", process.pid());
    part(&w, 1, 3);
    for (observer, other) in [(1, "h3"), (3, "h1")] {
        let event = unreachable(&w, observer, other);
        assert_eq!(event.evidence.expect("it rests on something").heard_by, ["h2"]);
        until("it is shown as such", || w.view(observer, other).is_some_and(|view| view.heard_by == ["h2"]));
    }
    // Longer than any timeout: fence, agent, questions.
    w.all_go_on(2500);
    for host in 1..=3 {
        assert_eq!(fence(&w, host).state, "open", "h{host}");
    }
    assert_eq!(w.events(2, Cause::Unreachable), []);
    heal(&w);
    w.all_alive();
    nobody_was_given_up(&w);
    for (observer, other) in [(1, "h3"), (3, "h1")] {
        let told = w.events(observer, Cause::Unreachable);
        assert_eq!(told.len(), 1, "once for each silence: {told:?}");
        assert_eq!(w.view(observer, other).unwrap().heard_by, Vec::<String>::new());
    }
    for observer in 1..=3 {
        let ends = w.history(observer).into_iter().filter(|e| e.app.is_some() && e.cause.ends_process()).count();
        assert_eq!(ends, 0, "the process on h3 lives");
    }
}

/// A host that is unreachable from one observer and then dies is told as dead there, too.
#[test]
fn an_unreachable_host_that_dies_is_told_as_dead() {
    let Some(w) = Setup::hosts(3).up() else { return };
    part(&w, 1, 3);
    unreachable(&w, 1, "h3");
    for net in NETS {
        w.lab.cut(3, net, fide_lab::Cut::Carrier).unwrap();
    }
    for observer in [1, 2] {
        w.event(observer, "silent", |e| e.cause == Cause::SilentHost && e.node == "h3");
    }
}

/// One direction is lost: h2 receives nothing of h1, which hears everybody.
#[test]
fn a_host_that_is_deaf_to_one_other_accuses_nobody() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = fenced(&pins, 3, "3s") else { return };
    (1..=3).for_each(|host| until("its fence is open", || fence(&w, host).state == "open"));
    deafen(&w, 2, 1);
    unreachable(&w, 2, "h1");
    w.all_go_on(2500);
    (1..=3).for_each(|host| assert_eq!(fence(&w, host).state, "open", "h{host}"));
    heal(&w);
    w.all_alive();
    nobody_was_given_up(&w);
}

/// Each host hears its neighbours only: what is heard is passed on from one to the next.
#[test]
fn in_a_chain_of_five_hosts_nobody_is_dead() {
    // Of each end one host alone knows that it lives: it must not be late itself.
    let Some(w) = Setup::hosts(5).heartbeat("50ms").up() else { return };
    for a in 1..=5 {
        (a + 2..=5).for_each(|b| part(&w, a, b));
    }
    for (observer, host) in [(1, 3), (1, 4), (1, 5), (2, 4), (2, 5), (5, 1)] {
        unreachable(&w, observer, &format!("h{host}"));
    }
    w.all_go_on(500);
    heal(&w);
    w.all_alive();
    nobody_was_given_up(&w);
}

/// What a host says of a verdict that was wrong: its own, or another one's on it.
fn mistaken(w: &World, host: u16, about: &str) -> HistoryEvent {
    w.event(host, "a verdict was wrong", |e| e.code == MISTAKEN_EVENT_CODE && e.text.starts_with(about))
}

/// The incarnation of a host, as another one knows it.
fn incarnation(w: &World, observer: u16, host: &str) -> u32 {
    w.view(observer, host).unwrap().incarnation
}

/// The fences of these hosts are open, stay so for as long as they promise, and nobody has closed one of them.
fn stay_open(w: &World, hosts: &[u16], timeout_ms: u64) {
    let before: Vec<u64> = hosts.iter().map(|host| fence(w, *host).extensions).collect();
    w.all_go_on(timeout_ms + timeout_ms / 4);
    for (host, before) in hosts.iter().zip(before) {
        let status = fence(w, *host);
        assert!(status.state == "open" && status.extensions > before, "h{host}: {status:?}");
        assert_eq!(w.events(*host, Cause::Fenced), [], "h{host}");
    }
}

/// A firewall in front of one of three hosts drops what agents send: it says *agent-lost* of both others, whose kernels answer it. Each of
/// them is confirmed by the other: no fence closes. When the firewall is gone, that host alone begins a new incarnation, once.
#[test]
fn a_host_that_hears_no_agent_shuts_no_fence_that_others_keep_open_and_takes_it_back() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = fenced(&pins, 3, "10s") else { return };
    (1..=3).for_each(|host| until("its fence is open", || fence(&w, host).state == "open"));
    let process = w.sleeper(1);
    w.watch_known(1, "db", process.pid());
    let before = [incarnation(&w, 2, "h1"), incarnation(&w, 1, "h2"), incarnation(&w, 1, "h3")];
    let mut watcher = w.monitor(3, "@h1");
    NETS.iter().for_each(|net| w.lab.filter_udp(3, *net).unwrap());
    for host in ["h1", "h2"] {
        w.event(3, "its agent is lost", |e| e.cause == Cause::AgentLost && e.node == host);
    }
    for (host, other) in [(1, "h2"), (2, "h1")] {
        let text = mistaken(&w, host, "h3 has given this host up").text;
        assert!(text.contains(&format!("{other} confirm")), "{text}");
        assert_eq!(fence(&w, host).state, "open");
    }
    heal(&w);
    for host in ["h1", "h2"] {
        mistaken(&w, 3, &format!("{host} was given up here, wrongly"));
        let back = w.event(3, "it is back", |e| e.cause == Cause::Returned && e.node == host && e.code == 4);
        assert_eq!(back.incarnation, before[usize::from(host == "h2")]);
    }
    watcher.wait("its subscribers hear it", |event| {
        matches!(event, fide_client::Event::Host(v) if (v.cause, v.code, v.subject.name.as_deref()) == (Cause::Returned, 4, Some("@h1")))
    });
    w.all_alive();
    stay_open(&w, &[1, 2, 3], 1000);
    assert_eq!([incarnation(&w, 2, "h1"), incarnation(&w, 1, "h2")], before[..2], "nothing of them has ended");
    for host in [1, 2] {
        let renewed = w.history(host).iter().filter(|e| e.cause == Cause::Returned && e.node == "h3" && e.code == 2).count();
        assert_eq!(renewed, 1, "h3 has begun one new incarnation, and nobody's agent was lost");
        assert_eq!(w.history(host).iter().filter(|e| e.code == MISTAKEN_EVENT_CODE).count(), 1);
        assert!(!w.history(host).iter().any(|e| e.cause == Cause::AgentLost));
    }
    assert!(incarnation(&w, 1, "h3") > before[2]);
    let ends = w.history(3).into_iter().filter(|e| e.app.is_some() && e.cause.ends_process()).count();
    assert_eq!(ends, 0, "the process on h1 lives");
}

/// Two of five hosts hear each other, and nothing of the other three, who hear them. Their own fences close much later than the others'
/// time is over, so that they say *silent host* of all three, which a majority confirms.
#[test]
fn two_deaf_hosts_of_five_shut_no_fence_that_the_others_keep_open() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = fenced_by(&pins, 5, |host| if host < 4 { "1500ms" } else { "10s" }) else { return };
    (1..=5).for_each(|host| until("its fence is open", || fence(&w, host).state == "open"));
    [4, 5].into_iter().for_each(|deaf| (1..=3).for_each(|to| deafen(&w, deaf, to)));
    for (deaf, host) in [(4, "h1"), (4, "h2"), (4, "h3"), (5, "h1"), (5, "h2"), (5, "h3")] {
        let event = w.event(deaf, "it is silent", |e| e.cause == Cause::SilentHost && e.node == host && e.app.is_none());
        assert!(!event.evidence.expect("it rests on something").fenced, "h{deaf} of {host}");
    }
    for host in 1..=3 {
        ["h4", "h5"].into_iter().for_each(|by| _ = mistaken(&w, host, by));
    }
    stay_open(&w, &[1, 2, 3], 1500);
    heal(&w);
    w.all_alive();
    stay_open(&w, &[1, 2, 3, 4, 5], 1500);
    for host in 1..=3 {
        let all = w.history(host);
        let wrong: Vec<_> = all.iter().filter(|e| matches!(e.cause, Cause::SilentHost | Cause::AgentLost)).collect();
        assert!(wrong.is_empty(), "h{host}: {wrong:?}");
        for deaf in ["h4", "h5"] {
            assert_eq!(all.iter().filter(|e| e.code == MISTAKEN_EVENT_CODE && e.text.starts_with(deaf)).count(), 1);
            assert_eq!(all.iter().filter(|e| e.cause == Cause::Returned && e.node == deaf && e.code == 2).count(), 1);
        }
    }
}

/// The agent of a host that has given others up is killed and started again before it hears them: it takes that back all the same.
#[test]
fn an_agent_that_is_started_again_takes_back_what_the_former_one_said() {
    let Some(pins) = Pins::new() else { return };
    let Some(mut w) = fenced(&pins, 3, "10s") else { return };
    (1..=3).for_each(|host| until("its fence is open", || fence(&w, host).state == "open"));
    let lives = BTreeMap::from(["h1", "h2"].map(|host| (host, incarnation(&w, 3, host))));
    NETS.iter().for_each(|net| w.lab.filter_udp(3, *net).unwrap());
    [1, 2].into_iter().for_each(|host| _ = mistaken(&w, host, "h3 has given this host up"));
    // The word may be out a moment before it is kept.
    let recent = w.lab.host_dir(3).join("state.json.recent");
    let is_kept = |host: &&str| {
        let word = format!("\"{host}\": {}", lives[*host] + 1);
        std::fs::read_to_string(&recent).is_ok_and(|text| text.contains(&word))
    };
    until("h3 has kept that", || ["h1", "h2"].iter().all(is_kept));
    w.kill_agent(3);
    heal(&w);
    w.start(3);
    // A full machine takes longer to start an agent than the fence stays open: then an operator opens it.
    until("its fence is open", || {
        let is_open = fence(&w, 3).state == "open";
        is_open || w.ask(3, &Request::Fence { order: FenceOrder::Recover }).is_err() && fence(&w, 3).state == "open"
    });
    w.all_alive();
    stay_open(&w, &[1, 2], 1000);
    ["h1", "h2"].into_iter().for_each(|host| _ = mistaken(&w, 3, host));
}

/// Each of five hosts hears its neighbours alone. The fences of the two at the ends, which hear one other of four, run out, and then those
/// of the others, one after the other, since a fenced host confirms nothing. None is shut by what another one says; none is told as fenced
/// before it is. Behind that all come back when they are opened at once.
#[test]
fn in_a_chain_of_five_fences_run_out_and_none_is_shut_by_a_report() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = fenced(&pins, 5, "3s") else { return };
    (1..=5).for_each(|host| until("its fence is open", || fence(&w, host).state == "open"));
    for a in 1..=5 {
        (a + 2..=5).for_each(|b| part(&w, a, b));
    }
    (1..=5)
        .for_each(|host| _ = w.event(host, "its fence is closed", |e| e.cause == Cause::Fenced && e.node == format!("h{host}")));
    let closed_ns = |host: u16| w.fencings(host).first().unwrap().at_ns;
    for host in 1..=5 {
        let own: Vec<_> = w.fencings(host);
        assert_eq!(own.iter().map(|e| e.code).collect::<Vec<_>>(), [0], "it ran out: {own:?}");
        for told in w.history(host) {
            let Some(of) = told.node.strip_prefix('h').and_then(|of| of.parse().ok()).filter(|of| *of != host) else { continue };
            let is_told = told.cause == Cause::Fenced || told.evidence.is_some_and(|evidence| evidence.fenced);
            assert!(!is_told || told.at_ns >= closed_ns(of), "h{host} of h{of}");
        }
    }
    heal(&w);
    (1..=5).for_each(|host| _ = w.ask(host, &Request::Fence { order: FenceOrder::Recover }).unwrap());
    w.all_alive();
    (1..=5).for_each(|host| until("its fence is open", || fence(&w, host).state == "open"));
}

/// Reports of starting hosts come often enough for every fence, however many hosts there are.
#[test]
fn an_acknowledged_fence_is_armed_with_five_hosts_and_with_nine() {
    for hosts in [5, 9] {
        let Some(pins) = Pins::new() else { return };
        let Some(w) = fenced(&pins, hosts, "3s") else { return };
        for host in 1..=hosts {
            until("its fence is armed", || fence(&w, host).extensions > 3);
            let status = fence(&w, host);
            assert_eq!(status.observers.len(), usize::from(hosts) - 1, "{status:?}");
        }
    }
}

/// A fence whose confirmers are not there says so, and of whom.
#[test]
fn a_fence_that_is_not_armed_says_who_is_waited_for() {
    let Some(pins) = Pins::new() else { return };
    let Some(mut w) = fenced(&pins, 3, "3s") else { return };
    (1..=3).for_each(|host| until("its fence is open", || fence(&w, host).state == "open"));
    (1..=3).for_each(|host| w.kill_agent(host));
    // What its gates were is forgotten with the pins; whom it knew is not.
    let config = w.config(1);
    let remove = w.lab.command(1, crate::common::fided()).unwrap().arg("--config").arg(config).arg("--remove-fence").status();
    assert!(remove.unwrap().success());
    w.start(1);
    let event = w.event(1, "not armed", |e| e.cause == Cause::Local && e.code == FENCE_EVENT_CODE);
    assert!(event.text.contains("h2") && event.text.contains("h3"), "{}", event.text);
    let status = fence(&w, 1);
    assert_eq!((status.state.as_str(), status.observers.len()), ("starting", 2), "{status:?}");
    assert_eq!(status.observers, status.waits_for);
    assert!(status.observers.iter().all(|name| ["h2", "h3"].contains(&name.as_str())), "{status:?}");
}

/// Switches that snoop IGMP and MLD without a querier stop to deliver multicast to everybody at once. Hosts go on by unicast: nobody is
/// late for long, no fence closes, crashes are told, and the event names the cause.
#[test]
fn multicast_that_switches_stop_to_deliver_is_named_and_nobody_is_given_up() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = fenced(&pins, 3, "3s") else { return };
    (1..=3).for_each(|host| until("its fence is open", || fence(&w, host).state == "open"));
    let process = w.sleeper(2);
    w.watch_known(2, "db", process.pid());
    (1..=3).for_each(|host| NETS.iter().for_each(|net| w.lab.lose_multicast(host, *net).unwrap()));
    let named = |host: u16, path: u8, what: &str| {
        w.event(host, what, |e| {
            e.code == MULTICAST_EVENT_CODE && e.text.contains(&format!("path {path}:")) && e.text.contains(what)
        });
    };
    (1..=3).for_each(|host| NETS.iter().for_each(|net| named(host, *net, "is not delivered")));
    w.all_go_on(1500);
    w.all_alive();
    process.kill();
    for host in [1, 3] {
        w.event(host, "the crash", |e| e.cause == Cause::Killed && e.app.as_deref() == Some("db"));
    }
    nobody_was_given_up(&w);
    (1..=3).for_each(|host| assert_eq!(fence(&w, host).state, "open", "h{host}"));
    heal(&w);
    (1..=3).for_each(|host| NETS.iter().for_each(|net| named(host, *net, "is delivered again")));
    w.all_go_on(500);
    nobody_was_given_up(&w);
}

/// One host alone is forgotten by its switches: it hears nobody, and everybody hears it.
#[test]
fn a_host_that_gets_no_multicast_hears_the_others_by_unicast() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = fenced(&pins, 3, "3s") else { return };
    (1..=3).for_each(|host| until("its fence is open", || fence(&w, host).state == "open"));
    NETS.iter().for_each(|net| w.lab.lose_multicast(1, *net).unwrap());
    w.event(1, "the cause", |e| e.code == MULTICAST_EVENT_CODE && e.text.contains("h2, h3 is not delivered"));
    w.all_go_on(1500);
    nobody_was_given_up(&w);
    (2..=3).for_each(|host| assert_eq!(w.history(host).iter().filter(|e| e.code == MULTICAST_EVENT_CODE).count(), 0));
}

/// An agent that starts while multicast is not delivered finds the others, and they it.
#[test]
fn an_agent_that_is_killed_while_multicast_is_not_delivered_comes_back() {
    let Some(mut w) = Setup::hosts(3).up() else { return };
    w.all_alive();
    (1..=3).for_each(|host| NETS.iter().for_each(|net| w.lab.lose_multicast(host, *net).unwrap()));
    (1..=3).for_each(|host| _ = w.event(host, "the cause", |e| e.code == MULTICAST_EVENT_CODE));
    w.kill_agent(2);
    w.event(1, "its agent is lost", |e| e.cause == Cause::AgentLost && e.node == "h2");
    w.start(2);
    w.all_alive();
    w.all_go_on(1000);
}

/// A group decides on one side, and its members stay, while its hosts reach each other by unicast alone.
#[test]
fn a_group_decides_on_one_side_while_multicast_is_not_delivered() {
    let Some(w) = Setup::hosts(3).up() else { return };
    w.all_alive();
    create(&w, 1, "orders", "huc", &["h1", "h2", "h3"]).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    let mut on = [1, 2, 3].map(|host| open(&w, host, host.into(), 0, 0));
    let mut logs = [const { Vec::new() }; 3];
    let mut decides = |count: usize| {
        on.iter_mut().for_each(|group| _ = group.propose(b"entry").unwrap());
        read_all(&mut on, &mut logs, count);
        assert!(logs[0] == logs[1] && logs[1] == logs[2]);
    };
    decides(3);
    (1..=3).for_each(|host| NETS.iter().for_each(|net| w.lab.lose_multicast(host, *net).unwrap()));
    (1..=3).for_each(|host| _ = w.event(host, "the cause", |e| e.code == MULTICAST_EVENT_CODE));
    // A member that has missed a decision in the first moment begins anew.
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    // `FIDE_SOAK_S`: for how long; heartbeats are counted, or the clock is waited for.
    let seconds = std::env::var("FIDE_SOAK_S").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let until_end = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    let mut count = 3;
    while count < 9 || std::time::Instant::now() < until_end {
        count += 3;
        decides(count);
        w.all_go_on(if seconds == 0 { 500 } else { 50 });
    }
    println!("{count} entries, on each host the same");
    nobody_was_given_up(&w);
    for host in 1..=3 {
        let group = status(&w, host, "orders").unwrap();
        assert_eq!(group.members.len(), 3, "{group:?}");
    }
}

/// A port of each switch has a smaller MTU than the hosts: that is named, groups go on, and an agent behind it that comes back gets the
/// state of its groups.
#[test]
fn large_frames_that_do_not_get_through_are_named_and_groups_go_on() {
    let Some(mut w) = Setup::hosts(3).up() else { return };
    w.all_alive();
    create(&w, 1, "orders", "huc", &["h1", "h2", "h3"]).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    let mut on = [1, 2].map(|host| open(&w, host, host.into(), 0, 0));
    let mut logs = [const { Vec::new() }; 2];
    let mut decides = |count: usize| {
        on.iter_mut().for_each(|group| (0..20).for_each(|_| _ = group.propose(&[7; 1000]).unwrap()));
        read_all(&mut on, &mut logs, count);
        assert!(logs[0] == logs[1]);
    };
    decides(40);
    NETS.iter().for_each(|net| w.lab.limit_packets(3, *net, 1200).unwrap());
    let told = |host: u16, net: u8, what: &str| {
        let path = format!("path {net}: ");
        w.event(host, what, |e| e.code == SIZE_EVENT_CODE && e.text.contains(&path) && e.text.contains(what));
    };
    NETS.iter().for_each(|net| {
        told(1, *net, "do not reach h3, or come back from it: packets of 1200 bytes do");
        told(3, *net, "do not reach h1");
    });
    decides(80);
    w.kill_agent(3);
    w.event(1, "its agent is lost", |e| e.cause == Cause::AgentLost && e.node == "h3");
    w.start(3);
    w.all_alive();
    runs(&w, 3, "orders");
    decides(120);
    let mut late = open(&w, 3, 3, 0, 0);
    let mut all = Vec::new();
    until("a client of the host behind the port has what is decided", || {
        while let Ok(Some(event)) = late.poll(Some(std::time::Duration::from_millis(1))) {
            all.push(event);
        }
        status(&w, 3, "orders").is_some_and(|group| Some(group.index) == status(&w, 1, "orders").map(|group| group.index))
    });
    assert!(!all.is_empty());
    heal(&w);
    let told = |host: u16, net: u8| {
        let what = format!("path {net}: frames of 1500 bytes reach");
        w.event(host, "it is lifted", |e| e.code == SIZE_EVENT_CODE && e.text.contains(&what));
    };
    NETS.iter().for_each(|net| told(1, *net));
}

/// A cable loses every fifth packet: the rate is told, with the host whose cable it is, and when it ends.
#[test]
fn a_path_that_loses_a_part_is_named_with_its_rate() {
    let Some(w) = Setup::hosts(3).up() else { return };
    w.all_alive();
    w.lab.lose(3, 0, 20).unwrap();
    let told = |host: u16, what: &str| {
        w.event(host, what, |e| e.code == LOSS_EVENT_CODE && e.text.starts_with("path 0: ") && e.text.contains(what))
    };
    let text = told(1, "% of h3's heartbeats do not arrive").text;
    let rate: f64 = text["path 0: ".len()..].split(' ').next().unwrap().parse().unwrap();
    assert!((10.0..30.0).contains(&rate) && text.contains("of this host alone"), "{text}");
    let text = told(3, "of all hosts").text;
    assert!(text.contains("h1's") && text.contains("h2's"), "{text}");
    heal(&w);
    told(1, "what h3 sends arrives again");
    nobody_was_given_up(&w);
    let of_path_1 = |e: &HistoryEvent| e.code == LOSS_EVENT_CODE && e.text.starts_with("path 1");
    assert!((1..=3).all(|host| !w.history(host).iter().any(of_path_1)));
}

/// Hosts that are configured to send by unicast alone miss no multicast, and say nothing of it.
#[test]
fn hosts_that_send_by_unicast_alone_miss_no_multicast() {
    let Some(mut w) = Setup::hosts(2).up() else { return };
    for (host, other) in [(1, 2), (2, 1)] {
        w.kill_agent(host);
        let mut text = std::fs::read_to_string(w.config(host)).unwrap();
        for net in NETS {
            let address = w.lab.ipv4(other, net);
            text = text.replace(
                &format!("{{ interface = \"net{net}\" }}"),
                &format!("{{ interface = \"net{net}\", unicast = [\"{address}\"] }}"),
            );
        }
        assert!(text.contains("unicast"), "{text}");
        w.write_config(host, &text);
    }
    (1..=2).for_each(|host| w.start(host));
    w.all_alive();
    w.all_go_on(1500);
    for host in 1..=2 {
        assert!(!w.history(host).iter().any(|e| e.code == MULTICAST_EVENT_CODE), "{:?}", w.history(host));
    }
}
