//! The fence on real interfaces and cgroups: two network namespaces, senders in processes of their own. Needs root.
//!
//! Nothing here waits for a time to pass and hopes: "nothing arrives" is said behind a barrier through every processor's backlog, by a way
//! that no gate sees. `FIDE_FENCINGS` is how often the loop of fencings at random moments runs (nightly: 10000).

#[path = "../../lane/tests/common/mod.rs"]
pub mod net;
#[path = "fence/sender.rs"]
mod sender;
#[path = "fence/world.rs"]
mod world;

use fide_lane::{Lane, Options, PathSpec, SendError, SendMode};
use fide_xdp::{Apart, Fence, FenceError, Gate, GateState, Process};
use libbpf_rs::libbpf_sys;
use net::{Net, ip};
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use world::*;

const B: &str = "10.77.0.2";
const MS: u64 = 1_000_000;

/// Not a test: what the tests run as other processes.
#[test]
fn role() {
    let Ok(role) = std::env::var("FIDE_FENCE_ROLE") else { return };
    enter_group();
    let args = std::env::var("FIDE_FENCE_ARGS").unwrap();
    let args: Vec<&str> = args.split(' ').collect();
    match role.as_str() {
        "sender" => sender::run(&args),
        "owner" => owner(&args),
        other => panic!("{other}?"),
    }
    std::process::exit(0);
}

/// Owns a fence with both kinds of gates and extends them for as long as it lives.
fn owner(args: &[&str]) {
    let mut fence = Fence::open(args[0].as_ref()).unwrap();
    fence.guard_interface(ifindex("e0")).unwrap();
    let gates = [fence.host(), fence.guard_cgroup(args[1].as_ref()).unwrap()];
    gates.iter().for_each(|g| g.arm(now_ns() + 5_000 * MS).unwrap());
    say("ready");
    loop {
        // Sleep: interval at which the owner extends its gates.
        std::thread::sleep(Duration::from_millis(1));
        let now = now_ns();
        gates.iter().for_each(|g| g.extend(now, now + 3_000 * MS).unwrap());
    }
}

struct Scene {
    net: Net,
    pins: Pins,
    /// So that B does not call the port unreachable.
    _sink: UdpSocket,
}

impl Scene {
    fn new(test: &str) -> Option<Self> {
        let net = Net::make(test)?;
        let sink = Net::within(&net.b, || UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
        Some(Self { net, pins: Pins::new(), _sink: sink })
    }

    fn fence(&self) -> Fence {
        Fence::open(&self.pins.dir()).unwrap_or_else(|e| panic!("{e}"))
    }

    fn guard(&self, fence: &mut Fence, interface: &str) -> bool {
        Net::within(&self.net.a, || fence.guard_interface(ifindex(interface))).unwrap_or_else(|e| panic!("{e}"))
    }

    fn capture(&self) -> Capture {
        Capture::new(&self.net.b, &self.net.a, "e0")
    }

    fn sender(&self, how: &str, group: Option<&Group>) -> Role {
        Role::start(&self.net.a, group, "sender", &[how, B])
    }
}

fn numbers(arrived: &[Arrived]) -> Vec<u64> {
    arrived.iter().map(|a| a.number).collect()
}

fn fenced(gate: &Gate) -> bool {
    matches!(gate.check(), GateState::Fenced { .. })
}

// The host's gate.

#[test]
fn a_hosts_gate_opens_runs_out_and_opens_again_only_by_recovery() {
    opens_runs_out_and_opens_again(|_| {});
}

/// As on kernels that have no tcx.
#[test]
fn a_hosts_gate_in_clsact_opens_runs_out_and_opens_again_only_by_recovery() {
    opens_runs_out_and_opens_again(Fence::do_without_tcx);
}

fn opens_runs_out_and_opens_again(choose: impl Fn(&mut Fence)) {
    let Some(scene) = Scene::new("host gate") else { return };
    let (mut fence, capture, mut s) = (scene.fence(), scene.capture(), scene.sender("udp", None));
    choose(&mut fence);
    scene.guard(&mut fence, "e0");
    let gate = fence.host();
    assert_eq!(gate.check(), GateState::NotArmed);
    s.ask("send 1");
    assert_eq!(numbers(&capture.drain()), [1], "not armed: everything passes");

    gate.arm(now_ns() + 60_000 * MS).unwrap();
    s.ask("send 2");
    assert_eq!(numbers(&capture.drain()), [2], "in time");
    let counts = fence.counts(&gate);
    assert!(counts.passed >= 2 && counts.blocked == 0, "{counts:?}");

    gate.shut();
    s.ask("send 3");
    assert_eq!(capture.drain(), [], "shut");
    assert_eq!(gate.extend(now_ns(), u64::MAX).unwrap_err().0, GateState::Shut);
    assert!(fence.counts(&gate).first_blocked_ns.is_some());

    let valid_ns = now_ns() + 20 * MS;
    gate.recover(valid_ns).unwrap();
    wait_until("t_valid", || now_ns() > valid_ns);
    // Nobody has looked at the gate: the packet finds that it has run out, and closes it.
    let before = now_ns();
    s.ask("send 4");
    assert_eq!(capture.drain(), []);
    let GateState::Fenced { since_ns } = gate.check() else { panic!("{gate:?}") };
    assert!((before..now_ns()).contains(&since_ns));
    assert_eq!(fence.counts(&gate).first_blocked_ns, Some(since_ns));
    assert!(gate.extend(valid_ns - 1, now_ns() + 1000 * MS).is_err(), "closed for good, also for a heartbeat that was in time");
    s.ask("send 5");
    assert_eq!(capture.drain(), []);

    gate.recover(now_ns() + 60_000 * MS).unwrap();
    s.ask("send 6");
    assert_eq!(numbers(&capture.drain()), [6]);
    fence.remove().unwrap();
}

#[test]
fn a_fenced_host_is_as_silent_as_a_dead_one() {
    let Some(scene) = Scene::new("silence") else { return };
    let mut fence = scene.fence();
    scene.guard(&mut fence, "e0");
    let (gate, capture) = (fence.host(), scene.capture());
    let blocked = || fence.counts(&gate).blocked;
    let mac = || {
        let out = Command::new("ip").args(["-n", &scene.net.a, "-o", "link", "show", "e0"]).output().unwrap().stdout;
        let text = String::from_utf8(out).unwrap();
        let mac = text.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_string();
        mac.split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect::<Vec<_>>()
    };
    let a = mac();
    // Questions from B, of which the first is answered by A's ARP and the second by its ICMP.
    let mut arp = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 2], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 77, 0, 2]].concat();
    arp.extend_from_slice(&[0, 0, 0, 0, 0, 0, 10, 77, 0, 1]);
    let mut echo = vec![8, 0, 0, 0, 0, 1, 0, 1];
    echo.extend_from_slice(&payload(9));
    let sum = |bytes: &[u8]| {
        let mut sum: u32 = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    };
    let check = sum(&echo);
    echo[2..4].copy_from_slice(&check);
    let mut header = vec![0x45, 0, 0, 20 + echo.len() as u8, 0, 1, 0, 0, 64, 1, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1];
    let check = sum(&header);
    header[10..12].copy_from_slice(&check);
    let ping = [&a[..], &[2, 0, 0, 0, 0, 2, 8, 0], &header, &echo].concat();
    // So that A need not ask for B's address before it answers.
    ip(&format!("-n {} neigh replace 10.77.0.2 lladdr 02:00:00:00:00:02 dev e0 nud permanent", scene.net.a)).unwrap();
    let ask = |frame: &[u8]| Net::within(&scene.net.b, || Frames::new("e0", true).send(frame).unwrap());

    let passed = || fence.counts(&gate).passed;
    for (what, frame) in [("ARP", &arp), ("echo", &ping)] {
        let before = passed();
        ask(frame);
        wait_until(what, || passed() > before);
    }
    assert!(numbers(&capture.drain()).contains(&9), "the echo's answer");
    gate.shut();
    for (what, frame) in [("ARP", &arp), ("echo", &ping)] {
        let before = blocked();
        ask(frame);
        wait_until(what, || blocked() > before);
    }
    let arrived = capture.drain();
    assert!(!numbers(&arrived).contains(&9), "{arrived:?}");

    // Loopback is untouched, and cannot be guarded.
    Net::within(&scene.net.a, || {
        let (one, other) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        one.send_to(b"here", other.local_addr().unwrap()).unwrap();
        assert_eq!(other.recv(&mut [0; 9]).unwrap(), 4);
        assert!(matches!(fence.guard_interface(ifindex("lo")), Err(FenceError::Loopback { .. })));
        assert!(matches!(fence.guard_interface(99_999), Err(FenceError::Interface { .. })));
    });
    fence.remove().unwrap();
}

#[test]
fn what_a_fenced_host_forwards_is_blocked_too() {
    let Some(scene) = Scene::new("forwarding") else { return };
    let mut fence = scene.fence();
    scene.guard(&mut fence, "e1");
    Net::within(&scene.net.a, || {
        sysctl("net/ipv4/ip_forward", "1");
        sysctl("net/ipv4/conf/all/rp_filter", "0");
    });
    ip(&format!("-n {} neigh replace 10.77.1.99 lladdr 02:00:00:00:00:99 dev e1 nud permanent", scene.net.a)).unwrap();
    // B reaches a host behind A, as it believes.
    ip(&format!("-n {} route add 10.77.1.99/32 via 10.77.0.1", scene.net.b)).unwrap();
    let capture = Capture::new(&scene.net.b, &scene.net.a, "e1");
    let mut s = Role::start(&scene.net.b, None, "sender", &["udp", "10.77.1.99"]);
    s.ask("send 1");
    wait_until("the first to be forwarded", || fence.counts(&fence.host()).passed > 0 && numbers(&capture.drain()).contains(&1));
    fence.host().shut();
    s.ask("send 2");
    wait_until("the second to be blocked", || fence.counts(&fence.host()).blocked > 0);
    assert!(!numbers(&capture.drain()).contains(&2));
    fence.remove().unwrap();
}

// The gate of a cgroup.

#[test]
fn a_cgroups_gate_gives_eperm_to_what_is_in_it_and_below_and_to_nobody_else() {
    let Some(scene) = Scene::new("cgroup gate") else { return };
    let Some(group) = Group::new() else { return };
    let below = group.below();
    let (mut fence, capture) = (scene.fence(), scene.capture());
    let mut inside = scene.sender("udp", Some(&group));
    let mut inner = scene.sender("udp", Some(&below));
    let mut outside = scene.sender("udp", None);
    let gate = fence.guard_cgroup(&group.0).unwrap();
    assert_eq!(inside.ask("send 1"), "sent", "not armed");
    gate.arm(now_ns() + 60_000 * MS).unwrap();
    assert_eq!(inside.ask("send 2"), "sent");
    gate.shut();
    let eperm = format!("error {}", libc::EPERM);
    assert_eq!(inside.ask("send 3"), eperm);
    assert_eq!(inner.ask("send 4"), eperm);
    assert_eq!(outside.ask("send 5"), "sent");
    assert_eq!(numbers(&capture.drain()), [1, 2, 5]);
    // To this host itself it is the same.
    let mut local = Role::start(&scene.net.a, Some(&group), "sender", &["udp", "127.0.0.1"]);
    assert_eq!(local.ask("send 6"), eperm);
    let counts = fence.counts(&gate);
    assert_eq!((counts.passed, counts.blocked), (2, 3));

    // The inner cgroup gets a gate of its own: both must be open.
    let own = fence.guard_cgroup(&below.0).unwrap();
    gate.recover(now_ns() + 60_000 * MS).unwrap();
    own.shut();
    assert_eq!(inner.ask("send 7"), eperm);
    assert_eq!(inside.ask("send 8"), "sent");
    fence.release_cgroup(&below.0).unwrap();
    assert_eq!(inner.ask("send 9"), "sent");
    assert_eq!(fence.groups().len(), 1);
    assert_eq!(fence.guard_cgroup(&group.0).unwrap().check(), gate.check(), "guarding again finds the same gate");
    gate.shut();
    fence.remove().unwrap();
    assert_eq!(inside.ask("send 10"), "sent", "nothing is left");
    assert!(!scene.pins.dir().exists());
}

#[test]
fn a_socket_belongs_to_the_cgroup_it_was_made_in() {
    let Some(scene) = Scene::new("moved") else { return };
    let Some(group) = Group::new() else { return };
    let mut fence = scene.fence();
    let mut s = scene.sender("udp", None);
    fence.guard_cgroup(&group.0).unwrap().shut();
    std::fs::write(group.0.join("cgroup.procs"), s.child.id().to_string()).unwrap();
    assert_eq!(s.ask("send 1"), "sent", "it keeps the socket that it made outside");
    fence.remove().unwrap();
}

#[test]
fn both_gates_at_once_and_either_closes() {
    let Some(scene) = Scene::new("both") else { return };
    let Some(group) = Group::new() else { return };
    let (mut fence, capture, mut s) = (scene.fence(), scene.capture(), scene.sender("udp", Some(&group)));
    scene.guard(&mut fence, "e0");
    let (host, own) = (fence.host(), fence.guard_cgroup(&group.0).unwrap());
    let mut number = 0;
    for (host_open, own_open) in [(true, true), (false, true), (true, false), (false, false)] {
        for (gate, open) in [(&host, host_open), (&own, own_open)] {
            gate.shut();
            if open {
                gate.recover(now_ns() + 60_000 * MS).unwrap();
            }
        }
        number += 1;
        let said = s.ask(&format!("send {number}"));
        assert_eq!(said == "sent", own_open, "the host's gate says nothing to a UDP sender");
        assert_eq!(capture.drain().len(), usize::from(host_open && own_open), "{host_open} {own_open}");
    }
    fence.remove().unwrap();
}

// What is covered.

/// The table of docs/fence.md, line by line: (how it is sent, covered by the host's gate, by the cgroup's).
const WAYS: [(&str, bool, bool); 7] = [
    ("udp", true, true),
    ("raw", true, true),
    ("tcp", true, true),
    ("uring", true, true),
    ("packet", true, false),
    ("bypass", false, false),
    ("af_xdp", false, false),
];

#[test]
fn every_way_out_is_covered_or_not_as_documented() {
    let Some(scene) = Scene::new("ways") else { return };
    let Some(group) = Group::new() else { return };
    let (mut fence, capture) = (scene.fence(), scene.capture());
    scene.guard(&mut fence, "e0");
    let gates = [fence.host(), fence.guard_cgroup(&group.0).unwrap()];
    let listener = Net::within(&scene.net.b, || TcpListener::bind((B, PORT)).unwrap());
    let mut number = 0;
    for (how, by_host, by_group) in WAYS {
        let mut s = scene.sender(how, Some(&group));
        if !s.here {
            println!("SKIPPED {how}: not offered by this kernel");
            continue;
        }
        for (gate, covered) in gates.iter().zip([by_host, by_group]) {
            number += 1;
            s.ask(&format!("send {number}"));
            assert!(numbers(&capture.drain()).contains(&number), "{how}: the gates are open");
            gate.shut();
            number += 1;
            let before = fence.counts(gate).blocked;
            let said = s.ask(&format!("send {number}"));
            assert_eq!(numbers(&capture.drain()).contains(&number), !covered, "{how}: {gate:?} ({said})");
            // The kernel's own packets (neighbours, listeners) may be blocked meanwhile.
            assert!(fence.counts(gate).blocked > before || !covered, "{how}: {gate:?}");
            gate.recover(u64::MAX).unwrap();
            if how == "tcp" {
                wait_until("TCP to catch up", || numbers(&capture.drain()).contains(&number));
            }
        }
    }
    drop(listener);
    fence.remove().unwrap();
}

#[test]
fn what_tcp_holds_back_asks_the_gate_again_with_every_retransmission() {
    let Some(scene) = Scene::new("retransmission") else { return };
    let (mut fence, capture) = (scene.fence(), scene.capture());
    scene.guard(&mut fence, "e0");
    let listener = Net::within(&scene.net.b, || TcpListener::bind((B, PORT)).unwrap());
    let mut s = scene.sender("tcp", None);
    let mut accepted = listener.accept().unwrap().0;
    let gate = fence.host();
    gate.arm(u64::MAX).unwrap();
    capture.drain();
    gate.shut();
    assert_eq!(s.ask("send 1"), "sent", "into the buffer, says TCP");
    let blocked = || fence.counts(&gate).blocked;
    wait_until("retransmissions", || blocked() >= 4);
    assert_eq!(capture.drain(), []);
    gate.recover(u64::MAX).unwrap();
    let mut bytes = [0; 24];
    accepted.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes[..8], MAGIC);
    fence.remove().unwrap();
}

#[test]
fn what_waits_in_a_queueing_discipline_has_passed_the_gate_and_leaves_late() {
    let Some(scene) = Scene::new("queue") else { return };
    let tc = |words: &str| {
        let out = Command::new("tc").args(["-n", &scene.net.a]).args(words.split(' ')).output().unwrap();
        out.status.success()
    };
    if !tc("qdisc replace dev e0 root handle 1: htb default 1")
        || !tc("class add dev e0 parent 1: classid 1:1 htb rate 64kbit burst 200 cburst 200")
    {
        println!("SKIPPED: no HTB here");
        return;
    }
    let (mut fence, capture, mut s) = (scene.fence(), scene.capture(), scene.sender("udp", None));
    scene.guard(&mut fence, "e0");
    let gate = fence.host();
    const QUEUED: u64 = 40;
    (1..=QUEUED).for_each(|n| _ = s.ask(&format!("send {n}")));
    let valid_ns = now_ns();
    gate.arm(valid_ns).unwrap();
    s.ask(&format!("send {}", QUEUED + 1));
    assert!(fenced(&gate));
    let mut arrived = Vec::new();
    wait_until("the queue to empty", || {
        arrived.extend(capture.drain());
        numbers(&arrived).contains(&QUEUED)
    });
    let late = arrived.iter().filter(|a| a.arrived_ns > valid_ns).count();
    let bound = arrived.iter().map(|a| a.arrived_ns.saturating_sub(valid_ns)).max().unwrap();
    assert!(arrived.iter().all(|a| a.sent_ns <= valid_ns), "none whose send began after t_valid");
    assert!(late > 0, "the queue was at a crawl");
    println!("queue at 64 kbit/s: {late} of {QUEUED} left after t_valid, the last {:.1} ms after it", bound as f64 / 1e6);
    fence.remove().unwrap();
}

/// The lane's own frames escape the host's gate by default; with `gated` they obey it, and the lane knows that they did not leave.
#[test]
fn a_gated_lane_obeys_the_hosts_gate() {
    let Some(scene) = Scene::new("lane") else { return };
    let (mut fence, capture) = (scene.fence(), scene.capture());
    scene.guard(&mut fence, "e0");
    let open = |gated| {
        let spec = PathSpec {
            path: 0,
            interface: "e0".into(),
            group: Some("239.241.222.1".parse().unwrap()),
            unicast: vec![],
            // Not one for both: a process that another test is just starting may hold the first one's socket for a moment.
            port: 3433 + u16::from(gated),
            source: None,
        };
        let options = Options { gated, completion: true, ..Options::default() };
        Net::within(&scene.net.a, || Lane::open_with(&[spec], SendMode::Packet, options).unwrap_or_else(|e| panic!("{e}")))
    };
    let mut number = 0;
    for gated in [false, true] {
        let mut lane = open(gated);
        number += 1;
        assert!(lane.send([Some(&payload(number)), None])[0].is_ok());
        assert_eq!((numbers(&capture.drain()), lane.completion().through[0]), (vec![number], 1));
        fence.host().shut();
        number += 1;
        let outcome = lane.send([Some(&payload(number)), None])[0];
        if gated {
            assert!(matches!(outcome.error, Some(SendError::Full(_))), "{outcome:?}");
            assert_eq!((numbers(&capture.drain()), lane.completion().through[0]), (vec![], 1));
        } else {
            assert_eq!((numbers(&capture.drain()), lane.completion().through[0]), (vec![number], 2));
        }
        fence.host().recover(u64::MAX).unwrap();
    }
    fence.remove().unwrap();
}

// Senders that cannot help being late.

/// Floods through a gate that is not extended while `late` holds the sender up: nothing stamped after t_valid arrives.
fn held_up(test: &str, late: impl Fn(&Role, &Group, &mut dyn FnMut())) {
    let Some(scene) = Scene::new(test) else { return };
    let Some(group) = Group::new() else { return };
    let mut fence = scene.fence();
    scene.guard(&mut fence, "e0");
    for gate in [fence.host(), fence.guard_cgroup(&group.0).unwrap()] {
        let capture = scene.capture();
        let mut s = scene.sender("udp", Some(&group));
        s.ask("flood 100");
        gate.arm(now_ns() + 60_000 * MS).unwrap();
        wait_until("packets", || !capture.drain().is_empty());
        let mut valid_ns = 0;
        late(&s, &group, &mut || {
            gate.shut();
            valid_ns = now_ns() + 5 * MS;
            gate.recover(valid_ns).unwrap();
            wait_until("t_valid", || now_ns() > valid_ns);
        });
        wait_until("the sender to try again", || fence.counts(&gate).blocked > 0);
        assert!(fenced(&gate));
        let arrived = capture.drain();
        assert!(arrived.iter().all(|a| a.sent_ns <= valid_ns), "{test}: {arrived:?}");
        assert_eq!(capture.lost(), 0);
        gate.recover(u64::MAX).unwrap();
        wait_until("packets after recovery", || capture.drain().iter().any(|a| a.sent_ns > valid_ns));
        drop(s);
    }
    fence.remove().unwrap();
}

#[test]
fn a_sender_stopped_across_t_valid_sends_nothing_when_it_continues() {
    held_up("stopped", |s, _, pass_t_valid| {
        s.stop();
        pass_t_valid();
        s.signal(libc::SIGCONT);
    });
}

#[test]
fn a_sender_frozen_across_t_valid_sends_nothing_when_it_is_thawed() {
    held_up("frozen", |_, group, pass_t_valid| {
        group.freeze(true);
        pass_t_valid();
        group.freeze(false);
    });
}

/// Whole-host, per process and both, with an ordinary sender or one at real-time priority, that send flat out; t_valid at a random moment.
#[test]
fn fencings_at_random_moments_let_nothing_through_that_was_sent_after_t_valid() {
    let Some(scene) = Scene::new("random") else { return };
    let Some(group) = Group::new() else { return };
    let times: u64 = std::env::var("FIDE_FENCINGS").map_or(300, |n| n.parse().expect("FIDE_FENCINGS is a number"));
    let mut fence = scene.fence();
    scene.guard(&mut fence, "e0");
    let gates = [fence.host(), fence.guard_cgroup(&group.0).unwrap()];
    gates.iter().for_each(|g| g.shut());
    let capture = scene.capture();
    let mut seed = u64::from(std::process::id()) << 20 | 1;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    real_time(20); // above the senders, so that there are many moments and not much waiting
    // Flat out, unless nobody else would ever run.
    let alone = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
    let (span, watched) = if alone { (50 * MS, 50 * MS) } else { (3 * MS, 400_000) };
    let (mut bound, mut near) = (0, 0);
    for (how, part) in [("ordinary", times / 2), ("SCHED_FIFO", times - times / 2)] {
        let mut s = scene.sender("udp", Some(&group));
        if how == "SCHED_FIFO" && s.ask("fifo") == "no" {
            eprintln!("no real-time priority here");
        }
        s.ask(if alone { "flood 100" } else { "flood 0" });
        for round in 0..part {
            let now = now_ns();
            let valid_ns = now + 500_000 + random(span);
            capture.only_sent_after(valid_ns - watched);
            // One gate, the other, or both. Extended once; if that comes too late, the first t_valid counts.
            let chosen: Vec<&Gate> =
                gates.iter().enumerate().filter(|(i, _)| round % 3 == 2 || round % 3 == *i as u64).map(|(_, g)| g).collect();
            for gate in &gates {
                let armed = if chosen.iter().any(|c| std::ptr::eq(*c, gate)) { now + 300_000 } else { u64::MAX };
                gate.recover(armed).unwrap();
            }
            let extended: Vec<bool> = chosen.iter().map(|g| g.extend(now, valid_ns).is_ok()).collect();
            wait_until("the gates to run out", || {
                now_ns() > valid_ns && chosen.iter().any(|g| fence.counts(g).first_blocked_ns.is_some() || fenced(g))
            });
            assert!(chosen.iter().all(|g| g.extend(now_ns(), u64::MAX).is_err()));
            // The first of two gates hides the packets from the second.
            let last = if extended.iter().all(|e| *e) { valid_ns } else { now + 300_000 };
            for a in capture.drain() {
                assert!(a.sent_ns <= last, "{how} {round}: {a:?} was sent {} ns after t_valid", a.sent_ns - last);
                near += 1;
                bound = bound.max(a.arrived_ns.saturating_sub(valid_ns));
            }
            assert_eq!(capture.lost(), 0);
            gates.iter().for_each(|g| g.shut());
        }
    }
    assert!(near > 0, "the senders sent");
    println!(
        "{times} fencings: 0 packets sent after t_valid arrived; of {near} sent in the {} µs before it, the latest arrived {bound} ns after it",
        watched / 1000
    );
    fence.remove().unwrap();
}

// Owners.

#[test]
fn a_killed_owners_gates_run_out_and_the_next_one_recovers_them() {
    let Some(scene) = Scene::new("owners") else { return };
    let Some(group) = Group::new() else { return };
    let dir = scene.pins.dir();
    let capture = scene.capture();
    let owner = Role::start(&scene.net.a, None, "owner", &[dir.to_str().unwrap(), group.0.to_str().unwrap()]);
    let mut inside = scene.sender("udp", Some(&group));
    let mut outside = scene.sender("udp", None);
    assert_eq!((inside.ask("send 1"), outside.ask("send 2")), ("sent".into(), "sent".into()));
    assert_eq!(numbers(&capture.drain()), [1, 2]);
    assert!(matches!(Fence::open(&dir), Err(FenceError::Owned { .. })), "one owner at a time");

    drop(owner); // SIGKILL
    wait_until("the gate to run out", || inside.ask("send 3") == format!("error {}", libc::EPERM));
    capture.drain();
    wait_until("the host's gate to run out", || {
        outside.ask("send 4");
        capture.drain().is_empty()
    });

    let mut fence = scene.fence();
    let gates = [fence.host(), fence.groups()[0].clone()];
    assert!(gates.iter().all(fenced), "{gates:?}");
    assert_eq!(gates[1].cgroup(), fence.guard_cgroup(&group.0).unwrap().cgroup());
    assert!(scene.guard(&mut fence, "e0"), "the filter is still there");
    assert!(gates.iter().all(fenced), "taking over opens nothing: {gates:?}");
    gates.iter().for_each(|g| g.recover(now_ns() + 60_000 * MS).unwrap());
    assert_eq!((inside.ask("send 5"), outside.ask("send 6")), ("sent".into(), "sent".into()));
    assert_eq!(numbers(&capture.drain()), [5, 6]);

    gates.iter().for_each(Gate::shut);
    drop(fence);
    outside.ask("send 7");
    assert_eq!(capture.drain(), [], "dropping takes nothing away");
    let mut fence = scene.fence();
    scene.guard(&mut fence, "e0");
    Net::within(&scene.net.a, || fence.remove()).unwrap();
    assert_eq!((inside.ask("send 8"), outside.ask("send 9")), ("sent".into(), "sent".into()));
    assert_eq!(numbers(&capture.drain()), [8, 9]);
}

#[test]
fn other_peoples_filters_stay_and_a_lost_fences_filter_closes_ours() {
    let Some(scene) = Scene::new("filters") else { return };
    let other = Pins::new();
    let mut theirs = Fence::open(&other.dir()).unwrap();
    theirs.do_without_tcx();
    let tc = |words: &str| {
        let out = Net::within(&scene.net.a, || Command::new("tc").args(words.split(' ')).output().unwrap());
        assert!(out.status.success(), "tc {words}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    tc("qdisc add dev e0 clsact");
    let program = other.dir().join("fide_fence_host");
    for priority in [1, 5] {
        tc(&format!("filter add dev e0 egress prio {priority} handle 7 bpf da object-pinned {}", program.display()));
    }
    let show = || tc("filter show dev e0 egress");
    let ours = |text: &str| text.matches("handle 0xf1de01").count();
    let others = |text: &str| text.matches("handle 0x7").count();
    let mut fence = scene.fence();
    fence.do_without_tcx();
    assert!(!scene.guard(&mut fence, "e0"), "none of ours was there");
    assert_eq!((ours(&show()), others(&show())), (1, 2));
    assert!(scene.guard(&mut fence, "e0"), "again is no harm");
    assert_eq!((ours(&show()), others(&show())), (1, 2));
    // The others still decide on what passes.
    let (capture, mut s) = (scene.capture(), scene.sender("udp", None));
    theirs.host().shut();
    s.ask("send 1");
    assert_eq!(capture.drain(), []);
    theirs.host().recover(u64::MAX).unwrap();
    s.ask("send 2");
    // A's question for B's address was blocked as well; it asks again after a second.
    wait_until("passing both filters", || numbers(&capture.drain()).contains(&2));
    Net::within(&scene.net.a, || fence.release_interface(ifindex("e0"))).unwrap();
    assert_eq!((ours(&show()), others(&show())), (0, 2));
    Net::within(&scene.net.a, || fence.release_interface(ifindex("e0"))).unwrap();

    // A filter in our place that obeys a gate whose state we do not know.
    scene.guard(&mut theirs, "e0");
    assert_eq!(fence.host().check(), GateState::NotArmed);
    assert!(scene.guard(&mut fence, "e0"));
    assert_eq!(fence.host().check(), GateState::Shut);
    Net::within(&scene.net.a, || (fence.remove().unwrap(), theirs.remove().unwrap()));
    assert_eq!((ours(&show()), others(&show())), (0, 2));
}

/// The programs at the tcx egress of A's interface; `None` where the kernel has none.
fn tcx(scene: &Scene) -> Option<Vec<u32>> {
    Net::within(&scene.net.a, || {
        let mut ids = [0u32; 8];
        let mut opts = libbpf_sys::bpf_prog_query_opts {
            sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as u64,
            prog_ids: ids.as_mut_ptr(),
            ..Default::default()
        };
        opts.__bindgen_anon_1.prog_cnt = 8;
        // SAFETY: ids and options live across the call; both members of the union are the same number.
        unsafe {
            let found = libbpf_sys::bpf_prog_query_opts(ifindex("e0") as i32, libbpf_sys::BPF_TCX_EGRESS, &raw mut opts);
            (found == 0).then(|| ids[..opts.__bindgen_anon_1.prog_cnt as usize].to_vec())
        }
    })
}

/// A program before ours that ends the classification would let everything pass: in tcx ours is the first, and it takes the place of a filter in clsact.
#[test]
fn ours_is_the_first_in_tcx_and_takes_the_place_of_a_filter() {
    let Some(scene) = Scene::new("tcx") else { return };
    if tcx(&scene).is_none() {
        println!("SKIPPED: this kernel has no tcx");
        return;
    }
    const PASS: u64 = 0;
    let other = other_program(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, PASS);
    let opts =
        libbpf_sys::bpf_prog_attach_opts { sz: size_of::<libbpf_sys::bpf_prog_attach_opts>() as u64, ..Default::default() };
    // SAFETY: an open descriptor; the options live across the call.
    let attached = Net::within(&scene.net.a, || unsafe {
        libbpf_sys::bpf_prog_attach_opts(other.as_raw_fd(), ifindex("e0") as i32, libbpf_sys::BPF_TCX_EGRESS, &raw const opts)
    });
    assert_eq!(attached, 0);
    let others = tcx(&scene).unwrap();
    let (capture, mut s) = (scene.capture(), scene.sender("udp", None));
    let filters = || {
        let show = || Command::new("tc").args(["filter", "show", "dev", "e0", "egress"]).output().unwrap().stdout;
        String::from_utf8(Net::within(&scene.net.a, show)).unwrap().matches("handle 0xf1de01").count()
    };

    // As an agent before tcx left it: nobody asks a gate that is behind the other program.
    let mut fence = scene.fence();
    fence.do_without_tcx();
    scene.guard(&mut fence, "e0");
    fence.host().shut();
    s.ask("send 1");
    assert_eq!((numbers(&capture.drain()), filters()), (vec![1], 1));
    drop(fence);
    let mut fence = scene.fence();
    for _ in 0..2 {
        assert!(scene.guard(&mut fence, "e0"), "a former owner's, or ours");
        let now = tcx(&scene).unwrap();
        assert_eq!((now.len(), now[1], filters()), (2, others[0], 0));
        s.ask("send 2");
        assert_eq!(capture.drain(), [], "ours comes first");
    }
    fence.host().recover(u64::MAX).unwrap();
    s.ask("send 3");
    wait_until("what it lets pass", || numbers(&capture.drain()).contains(&3));

    // A fence with other gates, whose pins may be lost: its place is taken, and its gate may have been closed.
    let pins = Pins::new();
    let mut lost = Fence::open(&pins.dir()).unwrap();
    assert!(scene.guard(&mut lost, "e0"));
    assert_eq!((lost.host().check(), tcx(&scene).unwrap().len()), (GateState::Shut, 2));
    drop(lost);
    assert!(scene.guard(&mut fence, "e0"));
    assert_eq!((fence.host().check(), tcx(&scene).unwrap().len()), (GateState::Shut, 2));
    Net::within(&scene.net.a, || fence.remove()).unwrap();
    assert_eq!(tcx(&scene).unwrap(), others);
}

/// Attaches a program to the tcx egress of A's interface, behind all others; says whether it is so.
fn attach_behind(scene: &Scene, program: &OwnedFd) -> bool {
    let opts =
        libbpf_sys::bpf_prog_attach_opts { sz: size_of::<libbpf_sys::bpf_prog_attach_opts>() as u64, ..Default::default() };
    // SAFETY: an open descriptor; the options live across the call.
    Net::within(&scene.net.a, || unsafe {
        libbpf_sys::bpf_prog_attach_opts(program.as_raw_fd(), ifindex("e0") as i32, libbpf_sys::BPF_TCX_EGRESS, &raw const opts)
            == 0
    })
}

/// Runs this without CAP_SYS_ADMIN, as the shipped unit runs an agent.
fn without_admin<T>(work: impl FnOnce() -> T) -> T {
    #[repr(C)]
    struct Header(u32, i32);
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_SYS_ADMIN: u32 = 21;
    let mut caps = [[0u32; 3]; 2]; // effective, permitted, inheritable; twice 32
    let call = |number, caps: &mut [[u32; 3]; 2]| {
        let mut header = Header(VERSION_3, 0);
        // SAFETY: header and data are laid out as capget(2) has them, and live across the call; only this thread changes.
        assert_eq!(unsafe { libc::syscall(number, &raw mut header, caps.as_mut_ptr()) }, 0);
    };
    call(libc::SYS_capget, &mut caps);
    let before = caps;
    caps[0][0] &= !(1 << CAP_SYS_ADMIN);
    call(libc::SYS_capset, &mut caps);
    let done = work();
    call(libc::SYS_capset, &mut before.clone());
    done
}

#[test]
fn ours_is_the_first_in_tcx_also_where_the_others_cannot_be_looked_at() {
    let Some(scene) = Scene::new("hidden") else { return };
    let other = other_program(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, 0);
    if tcx(&scene).is_none() || !attach_behind(&scene, &other) {
        println!("SKIPPED: this kernel has no tcx");
        return;
    }
    let others = tcx(&scene).unwrap();
    let (capture, mut s) = (scene.capture(), scene.sender("udp", None));
    let mut fence = scene.fence();
    Net::within(&scene.net.a, || without_admin(|| fence.guard_interface(ifindex("e0")))).unwrap();
    assert_eq!(tcx(&scene).unwrap()[1..], others);
    fence.host().shut();
    s.ask("send 1");
    assert_eq!(capture.drain(), []);
    drop(fence);
    // A former version's, known by its pin, goes although there is one that cannot be looked at.
    let (former, pin) = (other_program(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, 0), scene.pins.dir().join("fide_fence_host"));
    std::fs::remove_file(&pin).unwrap();
    let path = std::ffi::CString::new(pin.to_str().unwrap()).unwrap();
    // SAFETY: an open descriptor and a C string that lives across the call.
    assert_eq!(unsafe { libbpf_sys::bpf_obj_pin(former.as_raw_fd(), path.as_ptr()) }, 0);
    assert!(attach_behind(&scene, &former));
    let before = tcx(&scene).unwrap();
    let mut fence = scene.fence();
    assert!(Net::within(&scene.net.a, || without_admin(|| fence.guard_interface(ifindex("e0")))).unwrap());
    let now = tcx(&scene).unwrap();
    assert_eq!((now.len(), now[1], now.contains(&before[2])), (3, others[0], false), "before: {before:?}, now: {now:?}");
    // What was left of the one before is seen by an owner who may look.
    drop(fence);
    let mut fence = scene.fence();
    assert!(scene.guard(&mut fence, "e0"));
    assert_eq!(tcx(&scene).unwrap().len(), 2);
    s.ask("send 2");
    assert_eq!(capture.drain(), [], "as it was left");
    Net::within(&scene.net.a, || fence.remove()).unwrap();
    assert_eq!(tcx(&scene).unwrap(), others);
}

#[test]
fn a_program_that_somebody_detached_is_missed() {
    let Some(scene) = Scene::new("detached") else { return };
    for by_tcx in [true, false] {
        let mut fence = scene.fence();
        if !by_tcx {
            fence.do_without_tcx();
        }
        scene.guard(&mut fence, "e0");
        Net::within(&scene.net.a, || {
            assert!(fence.guards_interface(ifindex("e0")) && !fence.guards_interface(ifindex("e1")));
            fence.release_interface(ifindex("e0")).unwrap();
            assert!(!fence.guards_interface(ifindex("e0")));
            fence.guard_interface(ifindex("e0")).unwrap();
            assert!(fence.guards_interface(ifindex("e0")));
            fence.remove().unwrap();
        });
    }
    let Some(group) = Group::new() else { return };
    let (mut fence, mut s) = (scene.fence(), scene.sender("udp", Some(&group)));
    fence.guard_cgroup(&group.0).unwrap().shut();
    assert!(fence.guards_cgroup(&group.0) && !fence.guards_cgroup(&group.below().0));
    let pin = std::ffi::CString::new(scene.pins.dir().join("fide_fence_group").to_str().unwrap()).unwrap();
    let cgroup = std::fs::File::open(&group.0).unwrap();
    // SAFETY: a C string and open descriptors that live across the calls.
    unsafe {
        let ours = owned(libbpf_sys::bpf_obj_get(pin.as_ptr()));
        let at = (cgroup.as_raw_fd(), libbpf_sys::BPF_CGROUP_INET_EGRESS);
        assert_eq!(libbpf_sys::bpf_prog_detach2(ours.as_raw_fd(), at.0, at.1), 0);
    }
    assert_eq!(s.ask("send 1"), "sent");
    assert!(!fence.guards_cgroup(&group.0));
    assert_eq!(fence.guard_cgroup(&group.0).unwrap().check(), GateState::Shut, "its gate is what it was");
    assert!(fence.guards_cgroup(&group.0));
    assert_eq!(s.ask("send 2"), format!("error {}", libc::EPERM));
    fence.remove().unwrap();
}

#[test]
fn a_clean_removal_leaves_nothing_mute_that_it_does_not_find() {
    let Some(scene) = Scene::new("not found") else { return };
    let (capture, mut s) = (scene.capture(), scene.sender("udp", None));
    let mut fence = scene.fence();
    scene.guard(&mut fence, "e0");
    fence.host().shut();
    drop(fence);
    // The next owner is not told to guard it: by then it has another name, or is in another namespace.
    let fence = scene.fence();
    s.ask("send 1");
    assert_eq!(capture.drain(), []);
    Net::within(&scene.net.a, || fence.remove()).unwrap();
    wait_until("what leaves by it", || {
        s.ask("send 2");
        numbers(&capture.drain()).contains(&2)
    });
    // Nothing is closed because of one whose gate blocks nothing.
    let mut fence = scene.fence();
    scene.guard(&mut fence, "e0");
    assert_eq!(fence.host().check(), GateState::NotArmed);
    drop(fence);
    // An owner that looks finds it.
    let mut fence = scene.fence();
    Net::within(&scene.net.a, || {
        assert!(fence.adopt_interface(ifindex("e0")) && !fence.adopt_interface(ifindex("e1")));
        fence.remove().unwrap();
    });
    assert!(tcx(&scene).is_none_or(|left| left.is_empty()));
}

/// One test, because it ends what fences left anywhere on this machine whose pins are gone.
#[test]
fn a_lost_fences_programs_are_replaced_on_cgroups_or_taken_away_by_order() {
    let (Some(scene), Some(group)) = (Scene::new("lost"), Group::new()) else { return };
    let mut s = scene.sender("udp", Some(&group));
    let eperm = format!("error {}", libc::EPERM);
    let lose = |interface: bool| {
        let mut fence = scene.fence();
        if interface {
            scene.guard(&mut fence, "e0");
            fence.host().shut();
        }
        fence.guard_cgroup(&group.0).unwrap().shut();
        drop(fence);
        std::fs::remove_dir_all(scene.pins.dir()).unwrap();
    };
    lose(false);
    assert_eq!(s.ask("send 1"), eperm, "the program stays");
    let mut fence = scene.fence();
    let gate = fence.guard_cgroup(&group.0).unwrap();
    assert_eq!((gate.check(), gate.shut_for()), (GateState::Shut, None), "it may have been closed");
    gate.recover(now_ns() + 60_000 * MS).unwrap();
    assert_eq!(s.ask("send 2"), "sent", "and only ours is asked");
    // One that is kept elsewhere is another fence: packets must pass both.
    let elsewhere = Pins::new();
    let mut other = Fence::open(&elsewhere.dir()).unwrap();
    let second = other.guard_cgroup(&group.0).unwrap();
    assert_eq!(second.check(), GateState::NotArmed);
    second.shut();
    assert_eq!(s.ask("send 3"), eperm);
    second.recover(now_ns() + 60_000 * MS).unwrap();
    gate.shut();
    assert_eq!(s.ask("send 4"), eperm);
    other.remove().unwrap();
    fence.remove().unwrap();
    assert_eq!(s.ask("send 5"), "sent");

    let mut kept = Fence::open(&elsewhere.dir()).unwrap();
    kept.guard_cgroup(&group.0).unwrap();
    lose(true);
    assert_eq!(s.ask("send 6"), eperm);
    let said = Net::within(&scene.net.a, fide_xdp::lost::remove).unwrap().join("\n");
    assert!(said.contains("interface e0") && said.contains(&group.0.display().to_string()), "{said}");
    assert_eq!(s.ask("send 7"), "sent");
    let mut outside = scene.sender("udp", None);
    let capture = scene.capture();
    wait_until("what leaves", || {
        outside.ask("send 8");
        numbers(&capture.drain()).contains(&8)
    });
    kept.guard_cgroup(&group.0).unwrap().shut();
    assert_eq!(s.ask("send 9"), eperm, "whose pins are there is left alone");
    kept.remove().unwrap();
}

#[test]
fn what_another_version_laid_out_is_refused_in_words() {
    let Some(scene) = Scene::new("layout") else { return };
    let dir = scene.pins.dir();
    std::fs::create_dir(&dir).unwrap();
    let path = std::ffi::CString::new(dir.join("gates").to_str().unwrap()).unwrap();
    // SAFETY: strings that live across the calls; the descriptor is checked and owned.
    unsafe {
        let (kind, name) = (libbpf_sys::BPF_MAP_TYPE_ARRAY, c"gates".as_ptr());
        let map = owned(libbpf_sys::bpf_map_create(kind, name, 4, 32, 256, std::ptr::null()));
        assert_eq!(libbpf_sys::bpf_obj_pin(map.as_raw_fd(), path.as_ptr()), 0);
    }
    let error = Fence::open(&dir).err().unwrap().to_string();
    assert!(error.starts_with("the gates in") && error.contains("another version (gates"), "{error}");
}

/// A program of another version: lets everything pass.
fn other_program(kind: u32, verdict: u64) -> OwnedFd {
    // r0 = verdict; exit
    let program: [u64; 2] = [verdict << 32 | 0xb7, 0x95];
    let mut opts = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as u64,
        expected_attach_type: if kind == libbpf_sys::BPF_PROG_TYPE_CGROUP_SKB { libbpf_sys::BPF_CGROUP_INET_EGRESS } else { 0 },
        ..Default::default()
    };
    // SAFETY: strings, instructions and options live across the call.
    owned(unsafe {
        let (name, license) = (c"other".as_ptr(), c"GPL".as_ptr());
        libbpf_sys::bpf_prog_load(kind, name, license, program.as_ptr().cast(), 2, &raw mut opts)
    })
}

#[test]
fn the_program_of_another_version_is_replaced_where_it_is() {
    let Some(scene) = Scene::new("versions") else { return };
    let Some(group) = Group::new() else { return };
    let mut fence = scene.fence();
    let gate = fence.guard_cgroup(&group.0).unwrap();
    gate.shut();
    let mut s = scene.sender("udp", Some(&group));
    let eperm = format!("error {}", libc::EPERM);
    assert_eq!(s.ask("send 1"), eperm);
    drop((fence, gate));
    // As another version would have left it: its program attached and pinned, the same gates.
    let (other, pin) = (other_program(libbpf_sys::BPF_PROG_TYPE_CGROUP_SKB, 1), scene.pins.dir().join("fide_fence_group"));
    let cgroup = std::fs::File::open(&group.0).unwrap();
    let path = std::ffi::CString::new(pin.to_str().unwrap()).unwrap();
    // SAFETY: open descriptors and a C string that live across the calls.
    unsafe {
        let ours = owned(libbpf_sys::bpf_obj_get(path.as_ptr()));
        let (at, egress) = (cgroup.as_raw_fd(), libbpf_sys::BPF_CGROUP_INET_EGRESS);
        assert_eq!(libbpf_sys::bpf_prog_attach(other.as_raw_fd(), at, egress, libbpf_sys::BPF_F_ALLOW_MULTI), 0);
        assert_eq!(libbpf_sys::bpf_prog_detach2(ours.as_raw_fd(), at, egress), 0);
        std::fs::remove_file(&pin).unwrap();
        assert_eq!(libbpf_sys::bpf_obj_pin(other.as_raw_fd(), path.as_ptr()), 0);
    }
    assert_eq!(s.ask("send 2"), "sent", "the other version's program");
    let mut fence = scene.fence();
    assert_eq!(s.ask("send 3"), eperm, "ours in its place, with the gate as it was left");
    assert_eq!(fence.guard_cgroup(&group.0).unwrap().check(), GateState::Shut);
    fence.release_cgroup(&group.0).unwrap();
    assert_eq!(s.ask("send 4"), "sent", "and nothing of either beside it");

    // The same on an interface: the other version's filter is known to have obeyed these gates.
    scene.guard(&mut fence, "e0");
    fence.host().arm(now_ns() + 60_000 * MS).unwrap();
    drop(fence);
    let (other, pin) = (other_program(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, 0), scene.pins.dir().join("fide_fence_host"));
    let path = std::ffi::CString::new(pin.to_str().unwrap()).unwrap();
    std::fs::remove_file(&pin).unwrap();
    // SAFETY: an open descriptor and a C string that lives across the call.
    assert_eq!(unsafe { libbpf_sys::bpf_obj_pin(other.as_raw_fd(), path.as_ptr()) }, 0);
    let words = format!("filter replace dev e0 egress prio 1 handle 0xf1de01 bpf da object-pinned {}", pin.display());
    for words in ["qdisc add dev e0 clsact", &words] {
        let tc = Net::within(&scene.net.a, || Command::new("tc").args(words.split(' ')).output().unwrap());
        // There is one already where there is no tcx.
        assert!(tc.status.success() || words.starts_with("qdisc"), "{words}: {tc:?}");
    }
    let mut fence = scene.fence();
    assert!(scene.guard(&mut fence, "e0"));
    assert!(matches!(fence.host().check(), GateState::Open { .. }));
    s.ask("send 5");
    wait_until("our program to be asked", || fence.counts(&fence.host()).passed > 0);
    Net::within(&scene.net.a, || fence.remove()).unwrap();
}

/// Killed while it replaced the programs of another version, before it pinned its own.
#[test]
fn an_owner_that_was_killed_while_it_took_over_does_not_keep_the_next_out() {
    let (Some(scene), Some(group)) = (Scene::new("amid"), Group::new()) else { return };
    let mut s = scene.sender("udp", Some(&group));
    let eperm = format!("error {}", libc::EPERM);
    for may_look in [true, false] {
        let mut fence = scene.fence();
        fence.guard_cgroup(&group.0).unwrap().shut();
        drop(fence);
        let (other, pin) = (other_program(libbpf_sys::BPF_PROG_TYPE_CGROUP_SKB, 1), scene.pins.dir().join("fide_fence_group"));
        std::fs::remove_file(&pin).unwrap();
        let path = std::ffi::CString::new(pin.to_str().unwrap()).unwrap();
        // SAFETY: an open descriptor and a C string that lives across the call.
        assert_eq!(unsafe { libbpf_sys::bpf_obj_pin(other.as_raw_fd(), path.as_ptr()) }, 0);
        let open = || Fence::open(&scene.pins.dir());
        let mut fence = if may_look { open() } else { without_admin(open) }.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(fence.guard_cgroup(&group.0).unwrap().check(), GateState::Shut);
        assert_eq!(s.ask("send 1"), eperm);
        fence.remove().unwrap();
        assert_eq!(s.ask("send 2"), "sent");
    }
}

#[test]
fn gates_of_cgroups_that_are_gone_are_used_again() {
    let Some(scene) = Scene::new("slots") else { return };
    let Some(group) = Group::new() else { return };
    let mut fence = scene.fence();
    let mut inner: Vec<Group> = (0..255).map(|_| group.below()).collect();
    for g in &inner {
        fence.guard_cgroup(&g.0).unwrap().shut();
    }
    let one_more = group.below();
    let error = fence.guard_cgroup(&one_more.0).unwrap_err();
    assert!(matches!(error, FenceError::Full), "{error}");
    inner.pop();
    let gate = fence.guard_cgroup(&one_more.0).unwrap();
    assert_eq!(gate.check(), GateState::NotArmed, "a new gate, not the old one's state");
    assert!(fence.guard_cgroup(std::env::temp_dir().as_ref()).unwrap_err().to_string().contains("version 2"));
    fence.remove().unwrap();
}

#[test]
fn sockets_of_a_cgroup_that_is_gone_do_not_ask_the_gate_of_the_next() {
    let Some(scene) = Scene::new("orphans") else { return };
    let Some(group) = Group::new() else { return };
    let mut fence = scene.fence();
    let (armed, loose) = (group.below(), group.below());
    // Two sockets whose processes have gone elsewhere, so that their cgroups can go.
    let mut cut_off = scene.sender("udp", Some(&armed));
    let mut free = scene.sender("udp", Some(&loose));
    let gate = fence.guard_cgroup(&armed.0).unwrap();
    fence.guard_cgroup(&loose.0).unwrap();
    for s in [&cut_off, &free] {
        std::fs::write(group.0.join("cgroup.procs"), s.child.id().to_string()).unwrap();
    }
    gate.shut();
    let eperm = format!("error {}", libc::EPERM);
    assert_eq!(cut_off.ask("send 1"), eperm);
    assert_eq!(fence.counts(&gate).blocked, 1);
    let (armed_dir, loose_dir) = (armed.0.clone(), loose.0.clone());
    drop((armed, loose));
    assert!(!armed_dir.exists() && !loose_dir.exists());
    assert_eq!((cut_off.ask("send 2"), free.ask("send 3").as_str()), (eperm.clone(), "sent"), "the program runs for them still");
    // All slots are taken, theirs again.
    let others: Vec<Group> = (0..255).map(|_| group.below()).collect();
    for g in &others {
        let gate = fence.guard_cgroup(&g.0).unwrap();
        assert_eq!(fence.counts(&gate).blocked, 0, "counts of its own");
        gate.arm(now_ns() + 60_000 * MS).unwrap();
    }
    assert_eq!(cut_off.ask("send 4"), eperm, "not by the gate of another cgroup");
    for g in &others {
        fence.guard_cgroup(&g.0).unwrap().shut();
    }
    assert_eq!(free.ask("send 5"), "sent", "nothing was ever promised of it");
    fence.remove().unwrap();
}

#[test]
fn the_next_owner_finds_no_gates_of_cgroups_that_are_gone() {
    let Some(scene) = Scene::new("gone") else { return };
    let Some(group) = Group::new() else { return };
    let (stays, goes) = (group.below(), group.below());
    let mut fence = scene.fence();
    fence.guard_cgroup(&stays.0).unwrap().shut_apart(Apart::Ended);
    fence.guard_cgroup(&goes.0).unwrap().shut();
    drop((fence, goes));
    let fence = scene.fence();
    let found: Vec<_> = fence.groups().iter().map(|g| (g.check(), g.shut_for())).collect();
    assert_eq!(found, [(GateState::Shut, Some(Apart::Ended))]);
    fence.remove().unwrap();
}

#[test]
fn the_next_owner_knows_the_cgroups_that_were_below_a_gates() {
    let Some(scene) = Scene::new("below") else { return };
    let Some(group) = Group::new() else { return };
    let (one, other) = (group.below(), group.below());
    let mut fence = scene.fence();
    let gates = [&one, &other].map(|g| fence.guard_cgroup(&g.0).unwrap());
    // One may be below both, where gates are around each other.
    for (gate, below) in [(&gates[0], 71), (&gates[0], 72), (&gates[1], 73), (&gates[0], 74), (&gates[1], 74), (&gates[1], 72)] {
        fence.note_below(gate, below).unwrap();
    }
    fence.forget(&gates[0], 72);
    fence.forget(&gates[1], 72);
    drop(fence);
    let mut fence = scene.fence();
    let below = |fence: &mut Fence, g: &Group| {
        let gate = fence.guard_cgroup(&g.0).unwrap();
        fence.below(&gate)
    };
    assert_eq!((below(&mut fence, &one), below(&mut fence, &other)), ([71, 74].into(), [73, 74].into()));
    assert!(fence.below(&fence.host()).is_empty());
    // With the gate it is forgotten.
    fence.release_cgroup(&one.0).unwrap();
    assert_eq!((below(&mut fence, &one), below(&mut fence, &other)), ([].into(), [73, 74].into()));
    fence.remove().unwrap();
}

#[test]
fn a_gate_that_cut_off_somebody_may_stay_when_the_rest_is_removed() {
    let Some(scene) = Scene::new("stays") else { return };
    let Some(group) = Group::new() else { return };
    let (stays, goes) = (group.below(), group.below());
    let (mut fence, capture) = (scene.fence(), scene.capture());
    scene.guard(&mut fence, "e0");
    let mut senders = [&stays, &goes, &group].map(|g| scene.sender("udp", Some(g)));
    let gates = [fence.guard_cgroup(&stays.0).unwrap(), fence.guard_cgroup(&goes.0).unwrap(), fence.host()];
    gates.iter().for_each(|gate| gate.arm(now_ns() + 5 * MS).unwrap());
    let who = Process { pid: 4711, start_ticks: 99 };
    gates[0].cut_off(who);
    gates[0].shut(); // the fence closes, and is recovered
    gates[0].shut_apart(Apart::Ended);
    gates[1..].iter().for_each(|gate| {
        gate.extend(now_ns(), now_ns() + 60_000 * MS).unwrap_or_else(|_| gate.recover(now_ns() + 60_000 * MS).unwrap())
    });
    Net::within(&scene.net.a, || fence.remove_but(|gate| gate.is_cut_off() == Some(who))).unwrap();
    assert_eq!(senders[0].ask("send 1"), format!("error {}", libc::EPERM));
    assert_eq!((senders[1].ask("send 2"), senders[2].ask("send 3")), ("sent".into(), "sent".into()));
    assert_eq!(numbers(&capture.drain()), [2, 3]);
    // The next owner finds it, and nothing else.
    let fence = scene.fence();
    let found: Vec<_> = fence.groups().iter().map(|g| (g.check(), g.shut_for(), g.is_cut_off())).collect();
    assert_eq!(found, [(GateState::Shut, Some(Apart::Ended), Some(who))]);
    assert_eq!(fence.host().check(), GateState::NotArmed);
    let [gate] = &fence.groups()[..] else { panic!() };
    gate.recover(now_ns() + 60_000 * MS).unwrap();
    assert_eq!(gate.is_cut_off(), None);
    assert_eq!(senders[0].ask("send 4"), "sent");
    fence.remove().unwrap();
}

/// The lock belongs to the open file, which a child has, too, until it executes something.
#[test]
fn a_fence_can_be_opened_again_while_a_child_is_about_to_begin() {
    let Some(scene) = Scene::new("children") else { return };
    let fence = scene.fence();
    let (mut forked, mut says) = std::io::pipe().unwrap();
    let (mut may_go_on, go_on) = std::io::pipe().unwrap();
    let child = std::thread::spawn(move || {
        let mut command = Command::new("true");
        // SAFETY: between fork and exec only two system calls are made, on pipes that are open.
        unsafe {
            command.pre_exec(move || {
                says.write_all(b"f")?;
                may_go_on.read_exact(&mut [0])
            })
        };
        command.status().unwrap()
    });
    forked.read_exact(&mut [0]).unwrap();
    assert!(matches!(Fence::open(&scene.pins.dir()), Err(FenceError::Owned { .. })));
    drop(fence);
    let fence = Fence::open(&scene.pins.dir()).map_err(|e| e.to_string());
    (&go_on).write_all(b"g").unwrap();
    assert!(child.join().unwrap().success());
    fence.unwrap().remove().unwrap();
}

#[test]
fn a_fence_is_kept_only_where_it_outlives_its_owner() {
    if net::ip("-V").is_err() {
        return;
    }
    let dir = std::env::temp_dir();
    let error = Fence::open(&dir.join("fide-fence")).err().unwrap().to_string();
    assert!(error.contains("mount -t bpf"), "{error}");
    assert!(!dir.join("fide-fence").exists());
}
