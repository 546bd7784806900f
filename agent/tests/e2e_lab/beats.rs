//! Applications with heartbeats of their own: what waits on the way to them, or was lost there, is no failure; and who cannot say in time that it is there
//! is not heard any more.

use crate::common::{Process, Setup, World, kill, until, wait_for};
use crate::e2e_lab::fence::{BOUND_NS, Group, Pins, Traffic, ear};
use fide_client::{CheckOutcome, Checked};
use fide_lab::{Cut, NETS, host_name, nic_name};
use fide_wire::control::{ErrorCode, HistoryEvent, Request};
use fide_wire::verdict::Cause;
use std::cell::Cell;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn now_ns() -> u64 {
    fide_client::monotonic_ns()
}

const MS: u64 = 1_000_000;

/// A packet that was sent has come through the lab's switches after so long.
const SWITCHED: Duration = Duration::from_millis(40);
/// What waits in a receiver's ring waits for so long, several times [`SWITCHED`].
const WAITS: Duration = Duration::from_millis(150);

/// Heartbeats of an application on one host to port 4000 of another, until it is dropped.
struct Beating {
    over: Arc<AtomicBool>,
    /// When each was made, and when its send call had returned.
    sent: Arc<Mutex<Vec<(u64, u64)>>>,
    /// The newest that the listener has seen.
    looked: Cell<u64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Beating {
    fn new(w: &World, from: u16, to: u16) -> Self {
        let socket = w.lab.in_host(from, || UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        let (over, target) = (Arc::<AtomicBool>::default(), (w.lab.ipv4(to, 0), 4000));
        let sent = Arc::<Mutex<Vec<(u64, u64)>>>::default();
        let (o, s) = (over.clone(), sent.clone());
        let thread = Some(std::thread::spawn(move || {
            while !o.load(Ordering::SeqCst) {
                let made = now_ns();
                socket.send_to(&made.to_ne_bytes(), target).unwrap();
                s.lock().unwrap().push((made, now_ns()));
                // Sleep: interval of the heartbeats.
                std::thread::sleep(Duration::from_millis(3));
            }
        }));
        Self { over, sent, looked: Cell::new(0), thread }
    }

    /// The newest heartbeat that was in the receiver's ring at this time for certain: a busy
    /// machine's kernel may have it in one of the lab's switches for a while.
    fn sent_before(&self, ns: u64) -> u64 {
        let is_there = |done: u64| done + SWITCHED.as_nanos() as u64 <= ns;
        self.sent.lock().unwrap().iter().rev().find(|(_, done)| is_there(*done)).map_or(0, |(made, _)| *made)
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(std::thread::JoinHandle::join); // if it panicked, the test has failed already
    }
}

/// What one NIC of a host receives waits in its ring until a timer of this period runs; 0: no longer.
pub fn receive_late(w: &World, host: u16, net: u8, period: Duration) {
    for (file, value) in
        [("gro_flush_timeout", period.as_nanos()), ("napi_defer_hard_irqs", if period.is_zero() { 0 } else { 1_000_000 })]
    {
        let script = format!("echo {value} > /sys/class/net/{}/{file}", nic_name(net));
        let done = Command::new("ip").args(["netns", "exec", &w.lab.host_netns(host), "sh", "-c", &script]).status().unwrap();
        assert!(done.success(), "{script}");
    }
}

pub fn actor(w: &World, host: u16, arguments: &[&str]) -> Process {
    let mut actor = w.actor(host, "beats", arguments);
    assert_eq!(actor.hear(), "ready");
    actor
}

pub fn say(actor: &mut Process, order: &str) -> String {
    actor.say(order);
    actor.hear()
}

/// Empties the listener's socket: how many there were, and when the last one was sent.
fn look(listener: &mut Process) -> (u64, u64) {
    let said = say(listener, "look");
    let mut numbers = said.split(' ').map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

pub fn check(listener: &mut Process, peer: &str, since_ns: u64, wait: Duration) -> Checked {
    let said = say(listener, &format!("check {peer} {since_ns} {}", wait.as_millis()));
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// One that says something of the silence. Others on a busy machine lose packets, too: then the interval is begun again, as the paper says.
pub fn settled(listener: &mut Process, peer: &str, interval: Duration) -> Checked {
    wait_for("a check that is not void", || {
        let since_ns = now_ns();
        // Sleep: the interval that is checked.
        std::thread::sleep(interval);
        Some(check(listener, peer, since_ns, Duration::from_secs(20))).filter(|c| c.outcome != CheckOutcome::Void)
    })
}

/// The same of an interval that begins now and in which nothing is waited for longer than this.
pub fn not_void(listener: &mut Process, peer: &str, wait: Duration) -> Checked {
    wait_for("a check that is not void", || {
        Some(check(listener, peer, now_ns(), wait)).filter(|c| c.outcome != CheckOutcome::Void)
    })
}

fn heard(listener: &mut Process) {
    until("heartbeats come", || look(listener).0 > 0);
}

/// So often, after a check of h1 on h2 that says drained, what was in the ring before the question is in the socket.
fn has_what_came(w: &World, listener: &mut Process, beating: &Beating, rounds: u32) {
    let peer = w.lab.ipv4(1, 0).to_string();
    let mut drained = 0;
    while drained < rounds {
        let checked = check(listener, &peer, now_ns(), Duration::from_secs(20));
        let (count, last) = look(listener);
        if checked.outcome != CheckOutcome::Drained {
            assert_eq!(checked.outcome, CheckOutcome::Void, "{checked:?}");
            continue;
        }
        drained += 1;
        let due = beating.sent_before(checked.drained_ns);
        assert!(
            count == 0 && due <= beating.looked.get() || last >= due,
            "one that was sent at {due} still waits: {checked:?}, {last}"
        );
        beating.looked.set(last.max(beating.looked.get()));
    }
}

#[test]
fn heartbeats_that_wait_on_the_receivers_side_are_no_failure() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let mut listener = actor(&w, 2, &[]);
    let beating = Beating::new(&w, 1, 2);
    heard(&mut listener);
    let (peer, named) = (w.lab.ipv4(1, 0).to_string(), "@h1");

    // All is well: the question is answered within milliseconds, by name and by address.
    for peer in [peer.as_str(), named] {
        let before = now_ns();
        let checked = settled(&mut listener, peer, Duration::ZERO);
        let after = now_ns();
        assert_eq!(checked.outcome, CheckOutcome::Drained, "{checked:?}");
        assert!(checked.drained_ns > before && checked.drained_ns < after, "{checked:?}");
        // On a busy machine it may be late in that moment.
        let known = wait_for("a host that is not late", || {
            settled(&mut listener, peer, Duration::ZERO).peer.filter(|known| known.host_state != "late")
        });
        assert_eq!((known.host.as_str(), known.host_state.as_str(), known.fenced), ("h1", "alive", false));
        println!("a check of {peer} took {:.1} ms after its deadline", (after - checked.drained_ns) as f64 / 1e6);
    }

    // Its packets wait in the ring of the first network: an ordinary timeout of 300 ms is over, and nothing is known.
    receive_late(&w, 2, 0, Duration::from_secs(2));
    let checked = wait_for("a silence of 300 ms", || {
        let since_ns = now_ns();
        while now_ns() < since_ns + 300 * MS {
            if look(&mut listener).0 > 0 {
                return None;
            }
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(10));
        }
        let checked = check(&mut listener, &peer, since_ns, Duration::from_millis(20));
        // The ring may have been emptied just now: then there is no time for the second barrier.
        Some(checked).filter(|c| c.outcome == CheckOutcome::NoBarrier && c.why.contains("path 0"))
    });
    println!("while packets wait: {}", checked.why);
    heard(&mut listener);

    // Whoever waits for the barrier has all that had come before the question, whenever the ring is emptied.
    receive_late(&w, 2, 0, WAITS);
    has_what_came(&w, &mut listener, &beating, 10);
    receive_late(&w, 2, 0, Duration::ZERO);
    heard(&mut listener);

    // And a real end is one: nothing waits, nothing was lost, nothing is there.
    drop(beating);
    until("a barrier with nothing before it", || {
        let checked = settled(&mut listener, &peer, Duration::from_millis(50));
        assert_eq!(checked.outcome, CheckOutcome::Drained, "{checked:?}");
        look(&mut listener).0 == 0
    });
    // What was behind it on the way has come since.
    w.hears(2, "h1", 50);
    assert_eq!(look(&mut listener).0, 0, "a failure was reported, and nothing came afterwards");
}

#[test]
fn without_the_receive_program_an_interface_of_one_queue_has_barriers_too() {
    for receive in ["xdp-generic", "udp"] {
        let Some(w) = Setup::hosts(3).extra(move |_| format!("receive = \"{receive}\"")).up() else { return };
        let mut listener = actor(&w, 2, &[]);
        let beating = Beating::new(&w, 1, 2);
        heard(&mut listener);
        receive_late(&w, 2, 0, WAITS);
        has_what_came(&w, &mut listener, &beating, 5);
    }
}

#[test]
fn a_path_that_has_lost_its_carrier_is_not_left_out() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let mut listener = actor(&w, 2, &[]);
    let _beating = Beating::new(&w, 1, 2);
    heard(&mut listener);
    // What waits in the ring of the first network stays there when its cable is pulled.
    receive_late(&w, 2, 0, Duration::from_secs(2));
    w.lab.cut(2, 0, Cut::Carrier).unwrap();
    let peer = w.lab.ipv4(1, 0).to_string();
    for peer in ["@h1", &peer] {
        let checked = not_void(&mut listener, peer, Duration::from_secs(1));
        assert_eq!(checked.outcome, CheckOutcome::NoBarrier, "{peer}: {checked:?}");
        assert!(checked.why.contains("path 0") && checked.why.contains("carrier"), "{peer}: {checked:?}");
    }
    // Those that come by the other path only need no more than that.
    let other = w.lab.ipv4(1, 1).to_string();
    assert_eq!(settled(&mut listener, &other, Duration::ZERO).outcome, CheckOutcome::Drained);
    w.lab.heal(2, 0).unwrap();
    receive_late(&w, 2, 0, Duration::ZERO);
    until("it counts again", || settled(&mut listener, "@h1", Duration::ZERO).outcome == CheckOutcome::Drained);
}

/// Gives an interface of this thread's namespace so many queues to receive by, and to send by.
pub fn queues(interface: &str, rx: u32, tx: u32) {
    // struct ethtool_channels: command, four maxima, rx, tx, other, combined.
    let mut channels = [0x3d, 0, 0, 0, 0, rx, tx, 0, 0u32];
    // SAFETY: ifreq is plain old data, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = channels.as_mut_ptr().cast();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // SAFETY: an open socket; SIOCETHTOOL reads the name, which ends with a zero, and the structure.
    let done = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), 0x8946, &raw mut request) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// On a thread in the namespace of a switch.
pub fn in_switch(w: &World, net: u8, work: impl FnOnce() + Send) {
    let namespace = std::fs::File::open(format!("/run/netns/{}", w.lab.switch_netns(net))).unwrap();
    let inside = || {
        // SAFETY: an open descriptor; the thread ends with its work.
        assert_eq!(unsafe { libc::setns(std::os::fd::AsRawFd::as_raw_fd(&namespace), libc::CLONE_NEWNET) }, 0);
        work();
    };
    std::thread::scope(|s| s.spawn(inside).join().unwrap());
}

#[test]
fn a_queue_that_no_answer_came_out_of_is_not_known_to_be_empty() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED: a veth has as many queues as there are processors");
        return;
    }
    let Some(w) = Setup::hosts(3).up() else { return };
    let mut listener = actor(&w, 2, &[]);
    w.lab.in_host(2, || queues(&nic_name(0), 2, 1)).unwrap();
    // The switch's end has one queue to send by, so nothing comes by the second.
    let peer = w.lab.ipv4(1, 0).to_string();
    let checked = not_void(&mut listener, &peer, Duration::from_millis(300));
    assert_eq!(checked.outcome, CheckOutcome::NoBarrier, "{checked:?}");
    assert!(checked.why.contains("2 receive queues of path 0"), "{checked:?}");
    w.lab.in_host(2, || queues(&nic_name(0), 1, 1)).unwrap();
    assert_eq!(settled(&mut listener, &peer, Duration::ZERO).outcome, CheckOutcome::Drained);
}

/// What this interface sends goes by its second queue if it is UDP, or TCP to an odd port, else by the first: as a NIC's hash could have it. Whether the kernel can.
pub fn send_by_port(interface: &str) -> bool {
    use libbpf_rs::libbpf_sys::{self, bpf_insn};
    let instruction = |code: u8, dst: u8, src: u8, off: i16, imm: i32| {
        let mut i = bpf_insn { code, off, imm, ..Default::default() };
        i.set_dst_reg(dst);
        i.set_src_reg(src);
        i
    };
    // __sk_buff's queue_mapping counts from 1, as one that was received by a queue has it.
    let program = [
        instruction(0xbf, 6, 1, 0, 0),  // r6 = ctx
        instruction(0x30, 0, 0, 0, 23), // r0 = the protocol
        instruction(0x15, 0, 0, 4, 17), // UDP: the second
        instruction(0x55, 0, 0, 5, 6),  // not TCP: the first
        instruction(0x30, 0, 0, 0, 37), // r0 = the port's low byte
        instruction(0x57, 0, 0, 0, 1),  // r0 &= 1
        instruction(0x15, 0, 0, 2, 0),  // even: the first
        instruction(0xb7, 0, 0, 0, 2),  // r0 = 2
        instruction(0x05, 0, 0, 1, 0),  // goto the store
        instruction(0xb7, 0, 0, 0, 1),  // r0 = 1
        instruction(0x63, 6, 0, 12, 0), // queue_mapping = r0
        instruction(0xb7, 0, 0, 0, 0),  // TC_ACT_OK
        instruction(0x95, 0, 0, 0, 0),
    ];
    let interface = std::ffi::CString::new(interface).unwrap();
    // SAFETY: C strings and instructions that live across the calls; what is loaded stays with the interface.
    unsafe {
        let kind = libbpf_sys::BPF_PROG_TYPE_SCHED_CLS;
        let (gpl, n) = (c"GPL".as_ptr(), program.len() as u64);
        let fd = libbpf_sys::bpf_prog_load(kind, c"by_port".as_ptr(), gpl, program.as_ptr(), n, std::ptr::null_mut());
        assert!(fd >= 0, "{}", std::io::Error::from_raw_os_error(-fd));
        let fd: std::os::fd::OwnedFd = std::os::fd::FromRawFd::from_raw_fd(fd);
        let (fd, at) = (std::os::fd::AsRawFd::as_raw_fd(&fd), libc::if_nametoindex(interface.as_ptr()));
        libbpf_sys::bpf_prog_attach_opts(fd, at.cast_signed(), libbpf_sys::BPF_TCX_EGRESS, std::ptr::null()) == 0
    }
}

/// SafeTimer §5.1: each queue is reached by questions from many ports; the next time by the ports that reached it.
#[test]
fn every_receive_queue_is_reached_by_questions_from_many_ports() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED: a veth has as many queues as there are processors");
        return;
    }
    let Some(mut w) = Setup::hosts(3).up() else { return };
    w.kill_agent(2);
    w.lab.in_host(2, || queues(&nic_name(0), 2, 1)).unwrap();
    w.start(2);
    let mut hashes = false;
    in_switch(&w, 0, || {
        queues(&host_name(2), 1, 2);
        hashes = send_by_port(&host_name(2));
    });
    if !hashes {
        println!("SKIPPED: a program cannot choose by which queue the switch sends (it needs Linux 6.6)");
        return;
    }
    let mut listener = actor(&w, 2, &[]);
    let peer = w.lab.ipv4(1, 0).to_string();
    for peer in [&peer, &peer, "@h1"] {
        let checked = settled(&mut listener, peer, Duration::ZERO);
        assert_eq!(checked.outcome, CheckOutcome::Drained, "{checked:?}");
    }
    // And a heartbeat that waits in the ring is in the socket when it says drained.
    let beating = Beating::new(&w, 1, 2);
    heard(&mut listener);
    has_what_came(&w, &mut listener, &beating, 5);
    drop((beating, listener));
    // So are the heartbeats of the lane: no echo comes by their queue, and a verdict on a late one has its barrier all the same.
    until("a barrier of the heartbeats' queue", || {
        let since_ns = now_ns();
        kill(w.agent_pid(1), libc::SIGSTOP);
        let is_late =
            |e: &HistoryEvent| e.cause == Cause::ContractBroken && e.node == "h1" && e.app.is_none() && e.at_ns > since_ns;
        let late = w.event(2, "a late host", is_late);
        kill(w.agent_pid(1), libc::SIGCONT);
        until("it is heard again", || w.state(2, "h1") == "alive");
        late.evidence.is_some_and(|e| e.drained)
    });
    // Where they are not wanted nobody is asked so.
    let config = std::fs::read_to_string(w.config(2)).unwrap();
    w.write_config(2, &format!("{config}\n[detector]\ntcp_questions = false\n"));
    w.kill_agent(2);
    w.start(2);
    let mut listener = actor(&w, 2, &[]);
    let checked = not_void(&mut listener, &peer, Duration::from_millis(300));
    assert_eq!(checked.outcome, CheckOutcome::NoBarrier, "{checked:?}");
}

#[test]
fn what_the_receiver_lost_itself_voids_the_interval() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let mut listener = actor(&w, 2, &[]);
    let _beating = Beating::new(&w, 1, 2);
    heard(&mut listener);
    // A flood that its socket has no room for, as it is not read. The reason is that of the last
    // loss: on a busy machine something else may be lost after it.
    let flood = w.lab.in_host(3, || UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    let checked = wait_for("a check right after the socket had no room", || {
        let since_ns = now_ns();
        for _ in 0..2_000 {
            let _ = flood.send_to(&[0; 1000], (w.lab.ipv4(2, 0), 4000)); // refused is as good
        }
        let checked = check(&mut listener, "@h1", since_ns, Duration::from_secs(20));
        assert_eq!(checked.outcome, CheckOutcome::Void, "{checked:?}");
        assert!(checked.lost_ns >= since_ns, "{checked:?}");
        look(&mut listener);
        Some(checked).filter(|c| c.why.contains("UdpInErrors"))
    });
    // As the page says: a new interval, from `lost_ns` on. Others on a busy machine lose packets, too, but not for ever.
    let mut since_ns = checked.lost_ns;
    wait_for("an interval that nothing was lost in", || {
        let checked = check(&mut listener, "@h1", since_ns, Duration::from_secs(20));
        since_ns = if checked.outcome == CheckOutcome::Void { checked.lost_ns } else { since_ns };
        (checked.outcome == CheckOutcome::Drained).then_some(())
    });
    assert_eq!(settled(&mut listener, "@h1", Duration::from_millis(20)).outcome, CheckOutcome::Drained);
}

#[test]
fn a_check_says_what_is_known_of_the_peer_and_refuses_nonsense() {
    let Some(mut w) = Setup::hosts(3).up() else { return };
    let mut listener = actor(&w, 2, &[]);
    let app = w.sleeper(1);
    w.watch_known(1, "db", app.pid());
    let state = |c: &Checked| c.peer.as_ref().map_or("", |p| p.app_state.as_str()).to_string();
    let checked = settled(&mut listener, "db@h1", Duration::ZERO);
    assert_eq!((checked.outcome, state(&checked).as_str()), (CheckOutcome::Drained, "alive"));
    let heard_ns = now_ns();
    app.kill();
    w.event(2, "its end", |e| e.app.as_deref() == Some("db") && e.cause == Cause::Killed);
    // No barrier is waited for.
    let checked = check(&mut listener, "db@h1", heard_ns, Duration::ZERO);
    assert_eq!((checked.outcome, state(&checked).as_str()), (CheckOutcome::Certain, "killed"), "{checked:?}");
    // Whoever was heard after that is another one.
    let checked = settled(&mut listener, "db@h1", Duration::ZERO);
    assert_eq!((checked.outcome, state(&checked).as_str()), (CheckOutcome::Drained, "killed"), "{checked:?}");
    // One that is watched no longer has not ended.
    let lives = w.sleeper(1);
    w.watch_known(1, "cache", lives.pid());
    w.ask(1, &Request::Unwatch { name: "cache".into() }).unwrap();
    w.event(2, "that it left", |e| e.app.as_deref() == Some("cache") && e.cause == Cause::Left);
    let checked = check(&mut listener, "cache@h1", heard_ns, Duration::ZERO);
    assert_eq!((checked.outcome == CheckOutcome::Certain, state(&checked).as_str()), (false, "left"), "{checked:?}");
    let checked = settled(&mut listener, "other@h1", Duration::ZERO);
    assert_eq!(state(&checked), "unknown");
    // This host itself: its processors are all that packets wait for.
    assert_eq!(settled(&mut listener, "@h2", Duration::ZERO).outcome, CheckOutcome::Drained);
    assert_eq!(settled(&mut listener, "127.0.0.1", Duration::ZERO).outcome, CheckOutcome::Drained);

    for (peer, since_ns) in [("*", 1), ("nonsense", 1), ("@h1", 0), ("@h1", u64::MAX)] {
        let said = say(&mut listener, &format!("check {peer} {since_ns} 10"));
        assert!(said.starts_with("error Invalid"), "{peer}: {said}");
    }
    let said = say(&mut listener, "check @h1 1 60001");
    assert!(said.starts_with("error Invalid") && said.contains("60 s"), "{said}");
    // From another network namespace than the agent's: this test's own.
    let asked = || Request::Check { peer: "@h1".into(), since_ns: now_ns(), deadline_ns: 0, wait_ns: 20_000 * MS };
    let checked = wait_for("a check that is not void", || match w.ask(2, &asked()).unwrap() {
        fide_wire::control::Reply::Checked(checked) => Some(checked).filter(|c| c.outcome != CheckOutcome::Void),
        other => panic!("{other:?}"),
    });
    assert_eq!(checked.outcome, CheckOutcome::NoBarrier);
    assert!(checked.why.contains("network namespace"), "{checked:?}");
    // Another check of the same client waits for nothing of this one.
    let said = say(&mut listener, "pair @h1 50000 20000");
    assert_eq!(said, "answered, and the other was under way");
    // Somebody who hangs up while it is under way, and somebody else who asks meanwhile.
    let slow =
        Request::Check { peer: "@h1".into(), since_ns: now_ns(), deadline_ns: now_ns() + 50_000 * MS, wait_ns: 60_000 * MS };
    let mut late = actor_that_waits(&w, &slow);
    until("others are served", || w.status(2).node == "h2");
    late.kill();
    late.ended();
    assert_eq!(settled(&mut listener, "@h3", Duration::ZERO).outcome, CheckOutcome::Drained);
    // Nobody is left to answer: no barrier, and so no failure. On a busy machine something else may
    // be lost in that interval; then nothing is said of it, and the next one is checked.
    for net in NETS {
        w.lab.cut(2, net, Cut::ToHost).unwrap();
    }
    let checked = not_void(&mut listener, "@h1", Duration::from_millis(200));
    assert_eq!(checked.outcome, CheckOutcome::NoBarrier, "{checked:?}");
    assert!(checked.why.contains("nobody's answer"), "{checked:?}");
    w.agents_run();
}

/// A process on the host that asks this and waits.
fn actor_that_waits(w: &World, request: &Request) -> Process {
    let text = serde_json::to_string(request).unwrap();
    let hello = serde_json::to_string(&Request::Hello { protocol: fide_wire::control::PROTOCOL }).unwrap();
    let script = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.connect('{}')\nfor m in ('''{hello}''', '''{text}'''):\n    s.send(m.encode())\n    s.recv(65536)\n",
        w.socket(2).display()
    );
    w.process(2, "python3", &["-c", &script])
}

/// Two hosts, of which the first has a gate for an application.
pub fn gated(pins: &Pins, group: &Group) -> Option<World> {
    gated_with(pins, group, "")
}

fn gated_with(pins: &Pins, group: &Group, lines: &str) -> Option<World> {
    let config = pins.config(1, "");
    let gate = format!("{config}\n[[gate]]\nname = \"app\"\ncgroup = \"{}\"\n{lines}\n", group.0.display());
    Setup::hosts(2).extra(move |h| if h == 1 { gate.clone() } else { String::new() }).up()
}

pub fn valid_ns(said: &str) -> u64 {
    said.strip_prefix("ok ").unwrap_or_else(|| panic!("{said}")).parse().unwrap()
}

#[test]
fn who_does_not_extend_in_time_is_not_heard_any_more() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("beats")) else { return };
    let Some(mut w) = gated(&pins, &group) else { return };
    let enter = format!("enter {}", group.0.display());
    let mut sender = actor(&w, 1, &[&enter]);
    let mut listener = actor(&w, 2, &[]);
    let target = format!("{}:4000", w.lab.ipv4(2, 0));
    assert!(say(&mut sender, &format!("towards {target}")).starts_with("ok"));
    let inside = ear(&w, 2);
    assert_eq!(say(&mut sender, &format!("stream {}:3999", w.lab.ipv4(2, 0))), "ok");
    inside.flows(); // nothing was promised yet
    // It beats, and is heard as long as it does.
    let mut last = 0;
    for _ in 0..20 {
        let valid = valid_ns(&say(&mut sender, "beat 3000 2000"));
        assert!(valid > last);
        last = valid;
        // Sleep: interval of its heartbeats.
        std::thread::sleep(Duration::from_millis(10));
    }
    until("the heartbeats came", || look(&mut listener).0 > 0);
    inside.flows();
    // Then no more. Its last packet is of a time before t_valid.
    inside.is_cut_off_after(last);
    assert!(inside.last_ns() <= last + BOUND_NS, "heard {} ns after t_valid", inside.last_ns().saturating_sub(last));
    assert!(look(&mut listener).0 == 0);
    // No heartbeat leaves any more, and no word of its own makes it valid.
    let said = say(&mut sender, "beat 3000 200");
    assert!(said.starts_with("error Fenced"), "not only EPERM: {said}");
    let said = say(&mut sender, "extend 0 3000");
    assert!(said.starts_with("error Fenced") && said.contains("begin anew"), "{said}");
    let gates = || w.status(1).gates.iter().map(|g| (g.name.clone(), g.state.clone(), g.blocked > 100)).collect::<Vec<_>>();
    until("a hundred packets were blocked", || gates() == [("app".to_string(), "fenced".into(), true)]);
    let told = w.event(1, "that it closed", |e| e.cause == Cause::Local && e.code == fide_agent::gates::CLOSED_EVENT_CODE);
    assert!(told.text.contains("gate app is closed"), "{}", told.text);
    // The rest of its host goes on.
    let outside = Traffic::new_to(&w, 1, 2, 3998);
    outside.flows();
    // It begins anew.
    valid_ns(&say(&mut sender, "anew 3000"));
    inside.flows();
    let last = valid_ns(&say(&mut sender, "beat 4000 2000"));
    // The agent is killed: nobody can extend, and time goes on.
    w.kill_agent(1);
    assert!(say(&mut sender, "beat 4000 2000").starts_with("error Disconnected"));
    inside.is_cut_off_after(last);
    w.start(1);
    let said = say(&mut sender, "extend 0 3000");
    assert!(said.starts_with("error Fenced"), "a new agent finds it closed: {said}");
    inside.is_cut_off();
    valid_ns(&say(&mut sender, "anew 600000"));
    inside.flows();
    // An agent that ends cleanly leaves what was promised.
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    inside.flows();
    w.start(1);
    assert!(valid_ns(&say(&mut sender, "extend 0 700000")) > now_ns() + 600_000 * MS);
    // Taken out of the configuration it stays in force, and the next agent says so.
    let config = std::fs::read_to_string(w.config(1)).unwrap();
    std::fs::write(w.config(1), config.split("[[gate]]").next().unwrap()).unwrap();
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    w.start(1);
    until("its log says so", || w.log(1).contains("no [[gate]] names it"));
    assert!(say(&mut sender, "extend 0 800000").starts_with("error Unsupported"));
    inside.flows();
}

#[test]
fn a_stream_extends_when_the_other_kernel_has_it() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("stream")) else { return };
    let Some(w) = gated(&pins, &group) else { return };
    let enter = format!("enter {}", group.0.display());
    let mut sender = actor(&w, 1, &[&enter]);
    let listener = w.lab.in_host(2, || TcpListener::bind("0.0.0.0:4001").unwrap()).unwrap();
    assert!(say(&mut sender, &format!("towards-tcp {}:4001", w.lab.ipv4(2, 0))).starts_with("ok"));
    let (_stream, _) = listener.accept().unwrap();
    valid_ns(&say(&mut sender, "beat 20000 19000"));
    let _ear = w.lab.in_host(2, || UdpSocket::bind("0.0.0.0:4000").unwrap()).unwrap();
    assert!(say(&mut sender, &format!("towards {}:4000", w.lab.ipv4(2, 0))).starts_with("ok"));
    println!("send a heartbeat by UDP, see it leave and extend: median and p99 {} µs", say(&mut sender, "time 2000"));
    // Its acknowledgements wait: it has left, but that is not known.
    receive_late(&w, 1, 0, Duration::from_secs(5));
    let mut said = String::new();
    until("one that is not acknowledged in time", || {
        said = say(&mut sender, "beat 60000 100");
        !said.starts_with("ok")
    });
    assert!(said.starts_with("error NotSent"), "{said}");
    receive_late(&w, 1, 0, Duration::ZERO);
}

#[test]
fn a_gate_is_moved_from_inside_by_those_who_may() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("rights")) else { return };
    let Some(w) = gated(&pins, &group) else { return };
    let enter = format!("enter {}", group.0.display());
    let mut outside = actor(&w, 1, &[]);
    let said = say(&mut outside, "extend 0 1000");
    assert!(said.starts_with("error NotFound") && said.contains("[[gate]]"), "{said}");
    let mut nobody = actor(&w, 2, &[]);
    assert!(say(&mut nobody, "extend 0 1000").starts_with("error Unsupported"), "a host without gates");
    drop(outside);
    let mut nobody = actor(&w, 1, &[&enter, "nobody"]);
    let said = say(&mut nobody, "extend 0 1000");
    assert!(said.starts_with("error Permission") && said.contains("users"), "{said}");
    drop(nobody);
    let mut inside = actor(&w, 1, &[&enter]);
    for (known_ns, valid_ns) in [(0, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let request = Request::Extend { known_ns, valid_ns, anew: false };
        match w.ask(1, &request) {
            // This test is in no cgroup with a gate, which is found out first.
            Err(fide_client::Error::Refused(r)) => assert_eq!(r.code, ErrorCode::NotFound),
            other => panic!("{other:?}"),
        }
    }
    let said = say(&mut inside, "extend 0 90000000");
    assert!(said.starts_with("error Invalid") && said.contains("a day"), "{said}");
    let armed = valid_ns(&say(&mut inside, "extend 0 3000"));
    until("its time is over", || now_ns() > armed + 100 * MS);
    // A heartbeat that was known to have left in time counts, also when that is told later, as long as nothing was blocked.
    let valid = valid_ns(&say(&mut inside, "extend 3000 1000"));
    assert_eq!(valid_ns(&say(&mut inside, "extend 0 1")), valid, "never back");
    until("its time is over", || now_ns() > valid);
    // One that is known to have left after t_valid says nothing: those who listen have given up.
    let said = say(&mut inside, "extend 0 5000");
    assert!(said.starts_with("error Fenced"), "{said}");
    assert!(say(&mut inside, "extend 6000 5000").starts_with("error Fenced"), "for good");
    valid_ns(&say(&mut inside, "anew 5000"));
    valid_ns(&say(&mut inside, "extend 0 6000"));
}

/// An instance that was moved out had once gone on moving the gate of its successor, whose cgroup
/// has the same name, over the connection that it had opened inside.
#[test]
fn who_was_moved_out_of_a_cgroup_moves_its_gate_no_more() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("moved-out")) else { return };
    let Some(w) = gated(&pins, &group) else { return };
    let enter = format!("enter {}", group.0.display());
    let mut old = actor(&w, 1, &[&enter]);
    valid_ns(&say(&mut old, "extend 0 60000"));
    let put = |pid: u32, dir: &std::path::Path| fs::write(dir.join("cgroup.procs"), pid.to_string()).unwrap();
    let outside = group.0.parent().unwrap();
    put(old.pid(), outside);
    let is_refused = |said: String| assert!(said.starts_with("error NotFound") && said.contains("[[gate]]"), "{said}");
    is_refused(say(&mut old, "extend 0 70000"));
    put(old.pid(), &group.0);
    valid_ns(&say(&mut old, "extend 0 80000"));
    // A cgroup of the same name that is made again is another one, with a gate of its own.
    put(old.pid(), outside);
    fs::remove_dir(&group.0).unwrap();
    fs::create_dir(&group.0).unwrap();
    let mut new = actor(&w, 1, &[&enter]);
    let valid = valid_ns(&say(&mut new, "extend 0 500"));
    is_refused(say(&mut old, "extend 0 90000"));
    until("its time is over", || now_ns() > valid);
    assert!(say(&mut new, "extend 0 500").starts_with("error Fenced"), "nobody else has moved it");
    is_refused(say(&mut old, "anew 90000"));
    assert!(say(&mut new, "extend 0 500").starts_with("error Fenced"), "nor opened it");
    valid_ns(&say(&mut new, "anew 60000"));
}

/// The connections of h1 to port 4001 of h2 in this state, as `ss` says.
fn connections(w: &World, state: &str) -> usize {
    let said = w.lab.command(1, "ss").unwrap().args(["-Htn", "state", state, "dport", "=", ":4001"]).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    String::from_utf8(said.stdout).unwrap().lines().count()
}

/// An instance with a connection to h2, and h2's end.
fn connected(w: &World, group: &Group, listener: &TcpListener) -> (Process, TcpStream) {
    let mut instance = actor(w, 1, &[&format!("enter {}", group.0.display())]);
    assert!(say(&mut instance, &format!("towards-tcp {}:4001", w.lab.ipv4(2, 0))).starts_with("ok"));
    (instance, listener.accept().unwrap().0)
}

/// The next so many bytes that come.
fn read(stream: &mut TcpStream, count: usize) -> String {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Closes the gate while instances write, and ends the first of them.
fn left_behind(w: &World, writers: &mut [&mut Process]) {
    let armed = valid_ns(&say(writers[0], "extend 0 200"));
    until("its time is over", || now_ns() > armed);
    for writer in &mut *writers {
        assert!(say(writer, "write old").starts_with("ok"), "the socket takes it");
    }
    until("it was held back", || w.status(1).gates.iter().any(|g| g.state == "fenced" && g.blocked > 0));
    writers[0].kill();
    writers[0].ended();
    assert_eq!(connections(w, "fin-wait-1"), 1, "the kernel goes on for it");
}

#[test]
fn what_a_former_instance_wrote_does_not_leave_when_the_next_one_begins_anew() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("anew")) else { return };
    let Some(mut w) = gated(&pins, &group) else { return };
    let below = Group(group.0.join("worker"));
    std::fs::create_dir(&below.0).unwrap();
    let listener = w.lab.in_host(2, || TcpListener::bind("0.0.0.0:4001").unwrap()).unwrap();
    let (mut dead, mut dead_end) = connected(&w, &below, &listener);
    let (mut held, mut held_end) = connected(&w, &group, &listener);
    let (mut idle, mut idle_end) = connected(&w, &group, &listener);
    assert!(say(&mut idle, "write before").starts_with("ok"));
    assert_eq!(read(&mut idle_end, 6), "before");
    left_behind(&w, &mut [&mut dead, &mut held]);
    drop(below); // its connection is the cgroup's that is no more
    w.kill_agent(1); // and this agent's next life has never seen it
    w.start(1);

    let mut next = actor(&w, 1, &[&format!("enter {}", group.0.display())]);
    let said = say(&mut next, "extend 0 3000");
    assert!(
        said.starts_with("error Fenced") && connections(&w, "fin-wait-1") == 1,
        "only what opens a gate ends anything: {said}"
    );
    valid_ns(&say(&mut next, "anew 600000"));
    assert_eq!((connections(&w, "fin-wait-1"), connections(&w, "established")), (0, 1));
    until("its log says so", || w.log(1).contains("2 TCP connections that held bytes back were ended"));
    // Of both, h2 has heard nothing and hears nothing: their kernel does not know them any more.
    for end in [&mut dead_end, &mut held_end] {
        end.write_all(b"?").unwrap();
        let error = end.read(&mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    let said = say(&mut held, "write more");
    assert!(said.starts_with("error") && said.contains("abort"), "{said}");
    // The connection in which nothing waited goes on, and new ones come.
    assert!(say(&mut idle, "write after").starts_with("ok"));
    assert_eq!(read(&mut idle_end, 5), "after");
    let (mut fresh, mut fresh_end) = connected(&w, &group, &listener);
    assert!(say(&mut fresh, "write new").starts_with("ok"));
    assert_eq!(read(&mut fresh_end, 3), "new");
    // A gate that is open is moved on only, also by who begins anew: nothing is held back there.
    valid_ns(&say(&mut next, "anew 700000"));
    assert!(say(&mut idle, "write still").starts_with("ok"));
    assert_eq!(read(&mut idle_end, 5), "still");
}

#[test]
fn an_application_may_see_to_its_connections_itself() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("keep")) else { return };
    let Some(w) = gated_with(&pins, &group, "connections = \"keep\"") else { return };
    let listener = w.lab.in_host(2, || TcpListener::bind("0.0.0.0:4001").unwrap()).unwrap();
    let (mut dead, mut dead_end) = connected(&w, &group, &listener);
    left_behind(&w, &mut [&mut dead]);
    let mut next = actor(&w, 1, &[&format!("enter {}", group.0.display())]);
    valid_ns(&say(&mut next, "anew 600000"));
    assert_eq!(read(&mut dead_end, 3), "old", "which is what the default is for");
}
