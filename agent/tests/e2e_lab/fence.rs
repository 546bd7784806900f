//! A host that promised a fence: when its agent cannot speak for it, nothing of it is heard, before anybody says that it is dead.

use crate::common::{PATIENCE, Setup, World, kill, until, wait_for};
use crate::e2e_lab::beats::{actor, say};
use fide_client::Event;
use fide_lab::{Cut, FreezeBy, NETS};
use fide_wire::control::{ErrorCode, FenceOrder, FenceStatus, HistoryEvent, Reply, Request};
use fide_wire::verdict::{Cause, Confirmers, FenceMode, FencedWhy};
use std::fs;
use std::io;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// What had passed the gate may still lie in a queue: a few packets between two threads here, on a machine that may be busy (docs/fence.md, the bound).
pub const BOUND_NS: u64 = 5_000_000;

fn now_ns() -> u64 {
    fide_client::monotonic_ns()
}

pub use crate::common::Pins;

/// A cgroup of version 2, removed with what lives in it.
pub struct Group(pub PathBuf);

impl Group {
    pub fn new(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let root = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>()).find(|w| w.get(2) == Some(&"cgroup2"));
        let Some(root) = root else {
            println!("SKIPPED: cgroup version 2 is not mounted");
            return None;
        };
        let dir = PathBuf::from(root[1]).join(format!("fide-e2e-{name}-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Some(Self(dir))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.0).is_err() && std::time::Instant::now() < deadline {
            for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
                // SAFETY: a process of this test's own cgroup.
                unsafe { libc::kill(pid.parse().unwrap(), libc::SIGKILL) };
            }
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// An application on one host that sends to another all the time, and when the last packet that arrived was sent.
pub struct Traffic {
    over: Arc<AtomicBool>,
    tried: Arc<AtomicU64>,
    last_ns: Arc<AtomicU64>,
    /// How often the socket had been empty for [`EMPTY`].
    empty: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

/// A socket that nothing comes to for so long is empty.
const EMPTY: Duration = Duration::from_millis(20);

impl Traffic {
    pub fn new(w: &World, from: u16, to: u16) -> Self {
        Self::new_to(w, from, to, 3999)
    }

    pub fn new_to(w: &World, from: u16, to: u16, port: u16) -> Self {
        let heard = w.lab.in_host(to, || UdpSocket::bind(("0.0.0.0", port)).unwrap()).unwrap();
        let sends = w.lab.in_host(from, || UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        let target = (w.lab.ipv4(to, 0), port);
        Self::between(move || drop(sends.send_to(&now_ns().to_ne_bytes(), target)), heard)
    }

    /// From a sender of its own, or with one that this thread is.
    pub fn between(send: impl Fn() + Send + 'static, heard: UdpSocket) -> Self {
        let (over, tried, last_ns) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let empty = Arc::<AtomicU64>::default();
        heard.set_read_timeout(Some(EMPTY)).unwrap();
        let mut threads = Vec::new();
        let (o, t) = (over.clone(), tried.clone());
        threads.push(std::thread::spawn(move || {
            while !o.load(Ordering::SeqCst) {
                send();
                t.fetch_add(1, Ordering::SeqCst);
                // Sleep: interval of the packets.
                std::thread::sleep(Duration::from_micros(300));
            }
        }));
        let (o, l, e) = (over.clone(), last_ns.clone(), empty.clone());
        threads.push(std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while !o.load(Ordering::SeqCst) {
                if let Ok(n) = heard.recv(&mut buffer) {
                    // When it was sent, where it says so: this thread may be late.
                    let sent = buffer[..n].try_into().map_or_else(|_| now_ns(), u64::from_ne_bytes);
                    l.fetch_max(sent, Ordering::SeqCst);
                } else {
                    e.fetch_add(1, Ordering::SeqCst);
                }
            }
        }));
        Self { over, tried, last_ns, empty, threads }
    }

    pub fn last_ns(&self) -> u64 {
        self.last_ns.load(Ordering::SeqCst)
    }

    pub fn flows(&self) {
        let before = self.last_ns();
        until("the application is heard", || self.last_ns() > before);
    }

    /// Long enough after this time that what was sent in time has come.
    pub fn is_cut_off_after(&self, valid_ns: u64) {
        until("its time is over", || now_ns() > valid_ns);
        self.is_cut_off();
    }

    /// It goes on trying and is not heard.
    pub fn is_cut_off(&self) {
        let is_empty = |times: u64| {
            let from = self.empty.load(Ordering::SeqCst);
            until("its socket is empty", || self.empty.load(Ordering::SeqCst) > from + times);
        };
        // What was under way has been taken from it.
        is_empty(2);
        let (since_ns, tried) = (now_ns(), self.tried.load(Ordering::SeqCst));
        until("the application has tried a hundred times more", || self.tried.load(Ordering::SeqCst) > tried + 100);
        is_empty(1);
        let last_ns = self.last_ns();
        assert!(last_ns < since_ns, "it was heard {} ns later", last_ns.saturating_sub(since_ns));
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // if it panicked, what it was for has failed already
        }
    }
}

pub fn fence(w: &World, host: u16, order: FenceOrder) -> FenceStatus {
    match w.ask(host, &Request::Fence { order }).unwrap() {
        Reply::Fence(status) => *status,
        other => panic!("{other:?}"),
    }
}

pub fn open(w: &World, host: u16) -> FenceStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = fence(w, host, FenceOrder::Status);
        if status.state == "open" && status.extensions > 20 {
            return status;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for the fence of h{host}: {status:#?}");
        // Sleep: interval of the poll.
        sleep(Duration::from_millis(5));
    }
}

/// The others know of its promise: it is in what they would say.
fn is_promised(w: &World, observer: u16, host: &str) -> bool {
    w.view(observer, host).is_some_and(|h| h.fence.is_some())
}

/// All others of so many hosts know what this one promises.
fn promised(w: &World, host: u16, hosts: u16) {
    until(&format!("the promise of h{host} is known"), || {
        (1..=hosts).filter(|observer| *observer != host).all(|observer| is_promised(w, observer, &format!("h{host}")))
    });
}

fn silent(w: &World, observer: u16, host: &str) -> HistoryEvent {
    w.event(observer, "silent", |e| e.cause == Cause::SilentHost && e.node == host && e.app.is_none())
}

/// Long enough that no fence runs out because the machine is busy, or stands still for a second.
const TIMEOUT: &str = "2s";

/// So many hosts with a fence in this mode, of [`TIMEOUT`], which is promised to all of them.
pub fn all_fenced(pins: &Pins, hosts: u16, mode: &str) -> Option<World> {
    all_fenced_within(pins, hosts, mode, TIMEOUT)
}

/// The same, with a timeout of its own.
pub fn all_fenced_within(pins: &Pins, hosts: u16, mode: &str, timeout: &str) -> Option<World> {
    let lines = format!("mode = \"{mode}\"\ntimeout = \"{timeout}\"");
    let configs: Vec<String> = (1..=hosts).map(|host| pins.config(host, &lines)).collect();
    let w = Setup::hosts(hosts).extra(move |host| configs[usize::from(host) - 1].clone()).up()?;
    w.all_alive();
    (1..=hosts).for_each(|host| promised(&w, host, hosts));
    Some(w)
}

/// Three hosts, of which the first has a fence in mode *sent*.
fn one_fenced(pins: &Pins, lines: &str) -> Option<World> {
    one_fenced_beside(pins, lines, "")
}

/// The same, with these lines in the configuration of the others.
fn one_fenced_beside(pins: &Pins, lines: &str, others: &'static str) -> Option<World> {
    let config = pins.config(1, &format!("mode = \"sent\"\ntimeout = \"{TIMEOUT}\"\n{lines}"));
    let w = Setup::hosts(3).extra(move |h| if h == 1 { config.clone() } else { others.into() }).up()?;
    open(&w, 1);
    for observer in [2, 3] {
        until("the promise is known", || is_promised(&w, observer, "h1"));
    }
    Some(w)
}

/// The same, with a timeout of its own.
fn fenced_within(pins: &Pins, lines: &str) -> Option<World> {
    let config = pins.config(1, &format!("mode = \"sent\"\n{lines}"));
    let w = Setup::hosts(3).extra(move |h| if h == 1 { config.clone() } else { String::new() }).up()?;
    open(&w, 1);
    Some(w)
}

fn is_inside(group: &Group, process: &crate::common::Process) -> bool {
    fs::read_to_string(group.0.join("cgroup.procs")).unwrap().lines().any(|pid| pid == process.pid().to_string())
}

/// The story of a host whose agent is held up: silent before it is called dead, told of it when it runs again, back on the operator's word only.
fn held_up(w: &World, hold: impl FnOnce(i32), release: impl FnOnce(i32)) {
    let life = w.view(2, "h1").unwrap().incarnation;
    let mut application = w.subscriber(1, false);
    let traffic = Traffic::new(w, 1, 2);
    traffic.flows();
    let agent = w.agent_pid(1);
    hold(agent);
    let verdict = silent(w, 2, "h1");
    silent(w, 3, "h1"); // if it was held up, too, it says so later
    let evidence = verdict.evidence.as_ref().expect("it rests on something");
    assert!(evidence.fenced, "{evidence:?}");
    assert_eq!(evidence.fence.map(|f| f.mode), Some(FenceMode::Sent));
    let last_ns = traffic.last_ns();
    assert!(last_ns < verdict.at_ns, "heard {} ns after the verdict", last_ns.saturating_sub(verdict.at_ns));
    traffic.is_cut_off();
    release(agent);
    match application.wait("on_fenced", |e| matches!(e, Event::Fenced(_))) {
        Event::Fenced(v) => {
            // The others' reports may be the first that it reads.
            let is_told = [FencedWhy::RanOut as i32, FencedWhy::GivenUp as i32].contains(&v.code);
            assert!(is_told && v.subject.incarnation == life, "{v:?}");
        }
        other => panic!("{other:?}"),
    }
    let status = fence(w, 1, FenceOrder::Status);
    assert_eq!((status.state.as_str(), status.gates[0].blocked > 100), ("fenced", true), "{status:?}");
    assert!(last_ns <= status.valid_ns + BOUND_NS, "heard {} ns after t_valid", last_ns.saturating_sub(status.valid_ns));
    assert!(
        verdict.at_ns > status.valid_ns,
        "the verdict came {} ns before t_valid",
        status.valid_ns.saturating_sub(verdict.at_ns)
    );
    // It runs again, and stays fenced.
    traffic.is_cut_off();
    assert_eq!(w.state(2, "h1"), "silent-host");
    assert_eq!(w.fencings(1).len(), 1);
    let status = fence(w, 1, FenceOrder::Recover);
    assert_eq!(status.state, "open", "{status:?}");
    application.wait("on_recovered", |e| matches!(e, Event::Recovered(v) if v.subject.incarnation > life));
    traffic.flows();
    w.all_alive();
    for observer in [2, 3] {
        let back = w.event(observer, "returned", |e| e.cause == Cause::Returned && e.node == "h1" && e.incarnation > life);
        assert!(back.seq > silent(w, observer, "h1").seq);
    }
    open(w, 1);
}

#[test]
fn a_host_whose_agent_is_stopped_is_fenced_before_it_is_called_dead() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = one_fenced(&pins, "") else { return };
    held_up(&w, |agent| kill(agent, libc::SIGSTOP), |agent| kill(agent, libc::SIGCONT));
}

#[test]
fn a_host_whose_agent_is_frozen_by_its_cgroup_is_fenced() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = one_fenced(&pins, "") else { return };
    let (freezing, thawing) = (&w.lab, &w.lab);
    held_up(&w, |agent| freezing.freeze(agent, FreezeBy::Cgroup).unwrap(), |agent| thawing.thaw(agent).unwrap());
}

/// Everything of a process on one processor.
fn confine(pid: i32, cpu: usize) {
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let tid: i32 = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: a set that is initialised before use, and integers.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            assert_eq!(libc::sched_setaffinity(tid, size_of_val(&set), &raw const set), 0, "{}", io::Error::last_os_error());
        }
    }
}

/// It takes a processor away from everybody.
#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_a_host_whose_agent_is_starved_by_a_real_time_process_is_fenced() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = one_fenced(&pins, "") else { return };
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED: the test needs a processor for itself");
        return;
    }
    let hog = std::cell::RefCell::new(None);
    held_up(
        &w,
        |agent| {
            confine(agent, 1);
            // Above the agent's own priority, and not so long at a time that the kernel steps in.
            let p = w.process(1, "chrt", &["-f", "99", "taskset", "-c", "1", "sh", "-c", "while :; do :; done"]);
            *hog.borrow_mut() = Some(p);
        },
        |_| drop(hog.borrow_mut().take()),
    );
}

/// Other tests open such a fence again (`World::all_alive_at_first`).
#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_no_fence_closes_while_three_hosts_start() {
    for mode in ["sent", "acknowledged"] {
        let Some(pins) = Pins::new() else { return };
        let lines = format!("mode = \"{mode}\"\ntimeout = \"{TIMEOUT}\"");
        let configs: Vec<String> = (1..=3).map(|host| pins.config(host, &lines)).collect();
        let setup = Setup::hosts(3).extra(move |host| configs[usize::from(host) - 1].clone());
        let Some(w) = setup.fences_stay_open().up() else { return };
        for host in 1..=3 {
            open(&w, host);
            let closed = w.fencings(host);
            assert!(closed.is_empty(), "{mode}, h{host}: {closed:?}");
        }
    }
}

#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_a_quiet_host_with_a_fence_is_not_fenced_for_twenty_seconds() {
    let Some(pins) = Pins::new() else { return };
    // At the defaults, on all three.
    let all: Vec<String> = (1..=3).map(|h| pins.config(h, "mode = \"sent\"")).collect();
    let Some(w) = Setup::hosts(3).heartbeat("1ms").extra(move |h| all[usize::from(h) - 1].clone()).up() else { return };
    for host in 1..=3 {
        open(&w, host);
    }
    // Sleep: the time in which no fence may run out.
    std::thread::sleep(Duration::from_secs(20));
    for host in 1..=3 {
        let status = fence(&w, host, FenceOrder::Status);
        println!("h{host}: least left of {} ms: {:.3} ms", status.timeout_ns / 1_000_000, status.left_min_ns as f64 / 1e6);
        assert_eq!((status.state.as_str(), w.fencings(host).len()), ("open", 0), "{status:?}");
    }
}

#[test]
fn a_killed_agent_leaves_a_host_that_is_fenced_until_somebody_recovers_it() {
    let Some(pins) = Pins::new() else { return };
    let Some(mut w) = one_fenced(&pins, "") else { return };
    let traffic = Traffic::new(&w, 1, 2);
    traffic.flows();
    w.kill_agent(1);
    // Its agent is gone, which says nothing of its processes; they are cut off, and then its kernel is silent too.
    let verdict = silent(&w, 2, "h1");
    assert!(verdict.evidence.as_ref().unwrap().fenced && traffic.last_ns() < verdict.at_ns);
    traffic.is_cut_off();
    w.start(1);
    let status = fence(&w, 1, FenceOrder::Status);
    assert_eq!((status.state.as_str(), status.why.contains("former life")), ("fenced", true), "{status:?}");
    traffic.is_cut_off();
    // Stopping the agent is no recovery either.
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    traffic.is_cut_off();
    w.start(1);
    traffic.is_cut_off();
    fence(&w, 1, FenceOrder::Recover);
    traffic.flows();
    w.all_alive();
    // And a clean end of an open one takes the fence away.
    open(&w, 1);
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    traffic.flows();
    let (before, tried) = (traffic.last_ns(), traffic.tried.load(Ordering::SeqCst));
    until("long after t_valid", || traffic.tried.load(Ordering::SeqCst) > tried + 1000);
    assert!(traffic.last_ns() > before);
    assert!(!pins.0.join("h1").exists(), "nothing stays");
}

#[test]
fn an_operator_shuts_and_recovers_the_fence_and_others_may_not() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = one_fenced(&pins, "") else { return };
    let traffic = Traffic::new(&w, 1, 3);
    let refused = |host, order| match w.ask(host, &Request::Fence { order }) {
        Err(fide_client::Error::Refused(r)) => r.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(1, FenceOrder::Recover), ErrorCode::Invalid);
    assert_eq!(refused(2, FenceOrder::Status), ErrorCode::Unsupported);
    let status = fence(&w, 1, FenceOrder::Shut);
    assert_eq!((status.state.as_str(), status.why.as_str()), ("fenced", FencedWhy::Operator.to_string().as_str()));
    assert_eq!(refused(1, FenceOrder::Shut), ErrorCode::Exists);
    silent(&w, 2, "h1");
    traffic.is_cut_off();
    fence(&w, 1, FenceOrder::Recover);
    traffic.flows();
    w.all_alive();
}

#[test]
fn an_unplugged_cable_fences_where_both_paths_must_carry() {
    for (paths, state) in [("one", "open"), ("both", "fenced")] {
        let Some(pins) = Pins::new() else { return };
        let Some(w) = one_fenced(&pins, &format!("paths = \"{paths}\"")) else { return };
        w.lab.cut(1, 1, Cut::Carrier).unwrap();
        if state == "fenced" {
            // On a machine this busy others may have given it up before it looked at its own gate.
            w.event(1, "fenced", |e| e.cause == Cause::Fenced);
        } else {
            let before = fence(&w, 1, FenceOrder::Status);
            until("its fence is extended for three timeouts more", || {
                let now = fence(&w, 1, FenceOrder::Status);
                now.state != "open" || now.valid_ns > before.valid_ns + 3 * before.timeout_ns
            });
        }
        assert_eq!(fence(&w, 1, FenceOrder::Status).state, state, "{paths}");
    }
}

/// A shell on a host, in a cgroup from its first moment.
fn in_group(w: &World, host: u16, group: &Group, script: &str) -> crate::common::Process {
    let script = format!("echo $$ > {}/cgroup.procs; {script}", group.0.display());
    w.process(host, "bash", &["-c", &script])
}

/// Sends to UDP port 3999 of `to` for ever.
fn sender(w: &World, to: u16) -> String {
    format!("while :; do echo x > /dev/udp/{}/3999 || :; done 2> /dev/null", w.lab.ipv4(to, 0))
}

/// Hears port 3999 of a host.
pub fn ear(w: &World, host: u16) -> Traffic {
    let heard = w.lab.in_host(host, || UdpSocket::bind("0.0.0.0:3999").unwrap()).unwrap();
    Traffic::between(|| {}, heard)
}

#[test]
fn a_guarded_process_is_cut_off_and_the_rest_of_its_host_is_not() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("fence")) else { return };
    let lines = format!("host = false\ncgroups = [\"{}\"]", group.0.display());
    // The fence runs out before they give the agent up.
    let others = "[detector]\nagent_timeout = \"4s\"";
    let Some(w) = one_fenced_beside(&pins, &lines, others) else { return };
    // What it sends says when it was sent.
    let mut process = actor(&w, 1, &[&format!("enter {}", group.0.display())]);
    assert_eq!(say(&mut process, &format!("stream {}:3999", w.lab.ipv4(2, 0))), "ok");
    let inside = ear(&w, 2);
    inside.flows();
    let outside = Traffic::new(&w, 1, 3);
    kill(w.agent_pid(1), libc::SIGSTOP);
    let lost = w.event(2, "agent lost", |e| e.cause == Cause::AgentLost && e.node == "h1");
    let evidence = lost.evidence.expect("it rests on something");
    assert!(evidence.fenced && evidence.fence.is_some_and(|f| !f.host), "{evidence:?}");
    assert!(inside.last_ns() < lost.at_ns);
    inside.is_cut_off();
    outside.flows();
    kill(w.agent_pid(1), libc::SIGCONT);
    w.event(1, "fenced", |e| e.cause == Cause::Fenced);
    inside.is_cut_off();
    fence(&w, 1, FenceOrder::Recover);
    inside.flows();
}

#[test]
fn a_program_that_somebody_detached_from_a_cgroup_is_put_back() {
    use libbpf_rs::libbpf_sys;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("detached")) else { return };
    let lines = format!("host = false\ncgroups = [\"{}\"]", group.0.display());
    let Some(w) = one_fenced(&pins, &lines) else { return };
    let _inside = in_group(&w, 1, &group, &sender(&w, 2));
    let inside = ear(&w, 2);
    inside.flows();
    fence(&w, 1, FenceOrder::Shut);
    inside.is_cut_off();
    let pin = pins.0.join("h1/fide_fence_group");
    let pin = std::ffi::CString::new(pin.to_str().unwrap()).unwrap();
    let at = fs::File::open(&group.0).unwrap();
    // SAFETY: a C string and open descriptors that live across the calls; the first one made is nobody else's.
    unsafe {
        let program = libbpf_sys::bpf_obj_get(pin.as_ptr());
        assert!(program >= 0, "{}: {}", pin.to_string_lossy(), io::Error::from_raw_os_error(-program));
        let program = OwnedFd::from_raw_fd(program);
        assert_eq!(libbpf_sys::bpf_prog_detach2(program.as_raw_fd(), at.as_raw_fd(), libbpf_sys::BPF_CGROUP_INET_EGRESS), 0);
    }
    until("it is missed", || w.log(1).contains("somebody has taken its program away, which is put back"));
    inside.is_cut_off();
    assert_eq!(fence(&w, 1, FenceOrder::Status).gates[0].state, "shut", "its gate is what it was");
    fence(&w, 1, FenceOrder::Recover);
    inside.flows();
}

#[test]
fn a_doomed_process_is_cut_off_at_once_and_its_next_instance_is_heard() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("doomed")) else { return };
    let lines = format!("host = false\ncgroups = [\"{}\"]", group.0.display());
    let Some(w) = one_fenced(&pins, &lines) else { return };
    // The watched process has a child that goes on sending when it is killed: of the same cgroup, hence of the same fate.
    let parent = in_group(&w, 1, &group, &format!("({}) & exec sleep 1000", sender(&w, 2)));
    let inside = ear(&w, 2);
    inside.flows();
    let mut there = w.monitor(2, "db@h1");
    w.watch_known(1, "db", parent.pid());
    until("its gate is known", || fence(&w, 1, FenceOrder::Status).gates.iter().any(|g| g.state == "open"));
    inside.flows();
    parent.kill();
    let v = there.failure("db@h1");
    assert!(v.cause == Cause::Doomed);
    inside.is_cut_off();
    let status = fence(&w, 1, FenceOrder::Status);
    assert_eq!((status.state.as_str(), status.gates[0].state.as_str(), status.gates[0].doomed.as_str()), ("open", "shut", "db"));
    assert_eq!(w.state(2, "h1"), "alive", "nobody else is meant");
    let next = in_group(&w, 1, &group, &sender(&w, 2));
    inside.is_cut_off();
    w.watch_known(1, "db", next.pid());
    inside.flows();
}

/// A member in the cgroup of root's service had once opened the gate that was shut for it by
/// joining, kept it open by having joined before, and shut it by ending.
#[test]
fn a_gate_follows_the_watches_of_those_who_may_speak_for_its_cgroup() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("speak")) else { return };
    let lines = format!("host = false\ncgroups = [\"{}\"]", group.0.display());
    let Some(w) = one_fenced(&pins, &lines) else { return };
    const MEMBER: u32 = 4242;
    let member = |name: &str| {
        let mut member = w.actor(1, "user", &[&MEMBER.to_string()]);
        assert!(member.hear().starts_with("ok"));
        fs::write(group.0.join("cgroup.procs"), member.pid().to_string()).unwrap();
        member.say(&format!(r#"ask {{"op":"join","name":"{name}"}}"#));
        let said = member.hear();
        assert!(said.starts_with("ok Joined"), "{said}");
        w.known(1, name);
        member
    };
    let roots = || {
        let process = in_group(&w, 1, &group, "exec sleep 1000");
        let of = || fs::read_to_string(format!("/proc/{}/comm", process.pid())).unwrap_or_default();
        until("it is in its cgroup", || of() == "sleep\n");
        process
    };
    let gate = || {
        let status = fence(&w, 1, FenceOrder::Status);
        (status.gates[0].state.clone(), status.gates[0].doomed.clone())
    };
    let shut_for = |name: &str| assert_eq!(gate(), ("shut".into(), name.into()));
    // A service of root's that sends, and that nobody has watched.
    let _service = in_group(&w, 1, &group, &sender(&w, 2));
    let inside = ear(&w, 2);
    inside.flows();

    let ended = |process: crate::common::Process, name: &str| {
        let mut there = w.monitor(2, &format!("{name}@h1"));
        process.kill();
        there.failure(&format!("{name}@h1"));
    };
    ended(member("first"), "first");
    inside.flows();
    assert_eq!(gate(), ("open".into(), String::new()), "the end of a member's process says nothing of root's service");

    let beside = member("beside");
    let web = roots();
    w.watch_known(1, "web", web.pid());
    ended(web, "web");
    inside.is_cut_off();
    shut_for("web");

    let _next = member("next");
    inside.is_cut_off();
    shut_for("web");
    let web = roots();
    w.watch_known(1, "web", web.pid());
    inside.flows();
    // Root speaks for whomever it has watched: also for a process that a member's watch had.
    w.watch_known(1, "beside", beside.pid());
    ended(web, "web");
    inside.flows();
    ended(beside, "beside");
    inside.is_cut_off();

    // The user to whom the cgroup was delegated speaks for it as well.
    std::os::unix::fs::chown(&group.0, Some(MEMBER), None).unwrap();
    let owners = member("owners");
    inside.flows();
    ended(owners, "owners");
    inside.is_cut_off();
    shut_for("owners");
}

/// A process in a cgroup of h1 that has a connection to h2 and writes into it what it is told; and h2's end.
fn writer(w: &World, group: &Group) -> (crate::common::Process, TcpStream) {
    let listener = w.lab.in_host(2, || TcpListener::bind("0.0.0.0:0").unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("exec 3<> /dev/tcp/{}/{port}; exec cat >&3", w.lab.ipv4(2, 0));
    let process = in_group(w, 1, group, &script);
    listener.set_nonblocking(true).unwrap();
    let end = wait_for("it connects", || listener.accept().ok()).0;
    end.set_nonblocking(false).unwrap();
    (process, end)
}

/// Connections of h1 to h2 in this state that have not sent all.
fn unsent(w: &World, state: &str) -> usize {
    let said = w.lab.command(1, "ss").unwrap().args(["-Htn", "state", state]).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    said.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|waiting| waiting != "0")).count()
}

/// The other end was told nothing, and is told nothing: the kernel does not know the connection any more.
fn is_reset(mut end: TcpStream) {
    end.write_all(b"?").unwrap();
    assert_eq!(end.read(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn what_a_dead_process_left_in_its_queues_does_not_leave_when_the_fence_opens() {
    let Some(group) = Group::new("left") else { return };
    // Each of them on a fence of its own: a host's, and a cgroup's.
    for lines in [String::new(), format!("host = false\ncgroups = [\"{}\"]", group.0.display())] {
        let Some(pins) = Pins::new() else { return };
        let Some(w) = one_fenced(&pins, &lines) else { return };
        let (mut dead, end) = writer(&w, &group);
        let (mut lives, mut living_end) = writer(&w, &group);
        fence(&w, 1, FenceOrder::Shut);
        for process in [&mut dead, &mut lives] {
            process.say("old");
        }
        until("it is held back", || unsent(&w, "established") == 2);
        dead.kill();
        dead.ended();
        assert_eq!(unsent(&w, "fin-wait-1"), 1);
        fence(&w, 1, FenceOrder::Recover);
        assert_eq!(unsent(&w, "fin-wait-1"), 0);
        is_reset(end);
        // What living processes do is theirs to begin anew: the operator says that they did.
        let mut heard = [0; 4];
        living_end.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"old\n");
    }
}

#[test]
fn what_a_doomed_process_left_in_its_queues_does_not_leave_with_the_next_instance() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("queues")) else { return };
    let lines = format!("host = false\ncgroups = [\"{}\"]", group.0.display());
    let Some(w) = one_fenced(&pins, &lines) else { return };
    let (mut doomed, end) = writer(&w, &group);
    w.watch_known(1, "db", doomed.pid());
    until("its gate is known", || fence(&w, 1, FenceOrder::Status).gates.iter().any(|g| g.state == "open"));
    // Something lies in its queue in the moment of its doom: the path is cut.
    w.lab.cut(2, 0, Cut::ToHost).unwrap();
    doomed.say("old");
    until("it is under way", || unsent(&w, "established") == 1);
    doomed.kill();
    until("its gate is shut", || fence(&w, 1, FenceOrder::Status).gates[0].doomed == "db");
    until("the kernel goes on for it", || unsent(&w, "fin-wait-1") == 1);
    w.lab.heal(2, 0).unwrap();
    let next = in_group(&w, 1, &group, "exec sleep 1000");
    until("it is in its cgroup", || is_inside(&group, &next));
    w.watch_known(1, "db", next.pid());
    assert_eq!(unsent(&w, "fin-wait-1"), 0);
    until("it is open", || fence(&w, 1, FenceOrder::Status).gates[0].state == "open");
    is_reset(end);
}

/// A clean end of the agent opens the gates. What the dead left leaves by none that was shut for them; what others left is theirs.
#[test]
fn a_clean_end_lets_go_what_services_left_that_ended_well() {
    let (Some(pins), Some(group), Some(other)) = (Pins::new(), Group::new("doomed-end"), Group::new("well-end")) else { return };
    let lines = format!("host = false\ncgroups = [\"{}\", \"{}\"]", group.0.display(), other.0.display());
    let Some(mut w) = one_fenced(&pins, &lines) else { return };
    let (mut doomed, doomed_end) = writer(&w, &group);
    let (mut well, mut well_end) = writer(&w, &other);
    w.watch_known(1, "db", doomed.pid());
    until("its gate is known", || fence(&w, 1, FenceOrder::Status).gates.iter().filter(|g| g.state == "open").count() == 2);
    w.lab.cut(2, 0, Cut::ToHost).unwrap();
    for process in [&mut doomed, &mut well] {
        process.say("old");
    }
    until("it is under way", || unsent(&w, "established") == 2);
    doomed.kill();
    well.kill(); // nobody watches it
    until("one gate is shut", || fence(&w, 1, FenceOrder::Status).gates.iter().any(|g| g.doomed == "db"));
    until("the kernel goes on for both", || unsent(&w, "fin-wait-1") == 2);
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    assert_eq!(unsent(&w, "fin-wait-1"), 1);
    w.lab.heal(2, 0).unwrap();
    let mut heard = [0; 4];
    well_end.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"old\n");
    is_reset(doomed_end);
}

/// As service managers do it: each instance has a cgroup of its own below the guarded one, which goes with it.
#[test]
fn what_a_doomed_process_left_in_a_cgroup_that_is_gone_does_not_leave_with_the_next_instance() {
    let gate = |w: &World| fence(w, 1, FenceOrder::Status).gates.swap_remove(0);
    for restarts in [false, true] {
        let (Some(pins), Some(parent)) = (Pins::new(), Group::new("slice")) else { return };
        let lines = format!("timeout = \"10s\"\nhost = false\ncgroups = [\"{}\"]", parent.0.display());
        let make = |name: &str| {
            let group = Group(parent.0.join(name));
            fs::create_dir(&group.0).unwrap();
            group
        };
        let Some(mut w) = fenced_within(&pins, &lines) else { return };
        let group = make("instance");
        let (mut doomed, end) = writer(&w, &group);
        w.watch_known(1, "db", doomed.pid());
        until("its gate is open", || gate(&w).state == "open");
        w.lab.cut(2, 0, Cut::ToHost).unwrap();
        doomed.say("old");
        until("it is under way", || unsent(&w, "established") == 1);
        doomed.kill();
        until("its gate is shut", || gate(&w).doomed == "db");
        doomed.ended();
        drop(group);
        until("the kernel goes on for it", || unsent(&w, "fin-wait-1") == 1);
        w.lab.heal(2, 0).unwrap();
        if restarts {
            w.kill_agent(1);
            w.start(1);
            open(&w, 1);
        }
        let group = make("next");
        let next = in_group(&w, 1, &group, "exec sleep 1000");
        until("it is in its cgroup", || is_inside(&group, &next));
        w.watch_known(1, "db", next.pid());
        assert_eq!(unsent(&w, "fin-wait-1"), 0, "restarts: {restarts}");
        until("it is open", || gate(&w).state == "open");
        is_reset(end);
    }
}

#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_what_comes_before_the_notice_of_a_doom_is_not_felt() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("cost")) else { return };
    let mut made = fide_xdp::Fence::open(&pins.0.join("cost")).unwrap();
    let gate = made.guard_cgroup(&group.0).unwrap();
    let config = fide_agent::config::FenceConfig::default();
    let rule = fide_agent::fence::rule_config(&config, FenceMode::Sent, 2);
    let mut fence = fide_proto::node::fence::HostFence::new(rule, false, 1);
    let mut driver = fide_agent::fence::Driver::new(
        &mut fence,
        fide_agent::config::AtStart::Open,
        vec![("db".into(), gate.clone())],
        Arc::default(),
        now_ns(),
    );
    let mut took: Vec<u64> = (1..=2000)
        .map(|app| {
            let who = (app, fide_xdp::Process { pid: app, start_ticks: 7 });
            driver.process(&fence, who, "db", false, |_| fide_agent::fence::Known::Ended);
            let before = now_ns();
            driver.doomed(&fence, who, |_| false);
            let took = now_ns() - before;
            assert_eq!(gate.check(), fide_xdp::GateState::Shut);
            took
        })
        .collect();
    took.sort_unstable();
    println!("shutting a doomed process's gate: median {} ns, p99 {} ns", took[1000], took[1980]);
    assert!(took[1000] < 20_000, "the notice waits for it");
    made.remove().unwrap();
}

#[test]
fn an_interface_that_comes_later_is_guarded() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = one_fenced(&pins, "interfaces = [\"*\"]") else { return };
    assert_eq!(fence(&w, 1, FenceOrder::Status).interfaces, ["net0", "net1"]);
    let ip = |line: &str| {
        let done = w.lab.command(1, "ip").unwrap().args(line.split(' ')).status().unwrap();
        assert!(done.success(), "ip {line}");
    };
    ip("link add late0 type veth peer name late1");
    let late = || fence(&w, 1, FenceOrder::Status).interfaces.iter().filter(|i| i.starts_with("late")).count();
    until("the new ones are guarded", || late() == 2);
    ip("link del late0");
    until("the old ones are forgotten", || late() == 0);
}

/// Three hosts with fences in mode *acknowledged*.
fn acknowledged(pins: &Pins) -> Option<World> {
    let all: Vec<String> = (1..=3)
        .map(|h| pins.config(h, &format!("mode = \"acknowledged\"\ntimeout = \"{TIMEOUT}\"\nmargin = \"10ms\"")))
        .collect();
    let w = Setup::hosts(3).extra(move |h| all[usize::from(h) - 1].clone()).up()?;
    for host in 1..=3 {
        let status = open(&w, host);
        assert_eq!((status.mode.as_str(), status.confirmations_needed), ("acknowledged by majority", 1), "{status:?}");
        for observer in (1..=3).filter(|o| *o != host) {
            until("the promise is known", || is_promised(&w, observer, &format!("h{host}")));
        }
    }
    Some(w)
}

#[test]
fn in_a_partition_the_minority_is_fenced_and_the_majority_is_not() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = acknowledged(&pins) else { return };
    let life = w.view(2, "h1").unwrap().incarnation;
    let mut application = w.subscriber(1, false);
    // Only what it sends is lost: mode sent would go on for ever. And it still hears everybody.
    for net in NETS {
        w.lab.cut(1, net, Cut::FromHost).unwrap();
    }
    application.wait("on_fenced", |e| matches!(e, Event::Fenced(v) if v.code == FencedWhy::RanOut as i32));
    for observer in [2, 3] {
        let verdict = silent(&w, observer, "h1");
        let evidence = verdict.evidence.unwrap();
        if !evidence.fenced {
            // A busy machine: the other one's word has come behind the verdict.
            w.event(observer, "it is fenced", |e| e.cause == Cause::Fenced && e.node == "h1");
        }
        assert_eq!(evidence.fence.map(|f| f.mode), Some(FenceMode::Acknowledged(Confirmers::Majority)));
        let status = fence(&w, 1, FenceOrder::Status);
        assert!(verdict.at_ns > status.valid_ns, "{} ns early", status.valid_ns.saturating_sub(verdict.at_ns));
    }
    for host in [2, 3] {
        let status = fence(&w, host, FenceOrder::Status);
        assert_eq!((status.state.as_str(), w.fencings(host).len()), ("open", 0), "{status:?}");
    }
    // Alone it cannot come back, and needs nobody any more once others can confirm it.
    let status = fence(&w, 1, FenceOrder::Recover);
    assert_eq!((status.state.as_str(), status.waits_for.len()), ("recovering", 2), "{status:?}");
    assert_eq!(w.events(1, Cause::Recovered).len(), 0);
    for net in NETS {
        w.lab.heal(1, net).unwrap();
    }
    open(&w, 1);
    w.all_alive();
    assert!(w.view(2, "h1").unwrap().incarnation > life);
    assert_eq!(w.fencings(1).len(), 1);
}

/// Four hosts: h1 has a fence with these lines, the others what is said of them, by number.
fn four(pins: &Pins, lines: &str, others: impl Fn(u16) -> &'static str, start: bool) -> Option<World> {
    let all: Vec<String> = (1..=4)
        .map(|h| match (h, others(h)) {
            (1, _) => pins.config(1, lines),
            (_, "") => String::new(),
            (h, lines) => pins.config(h, lines),
        })
        .collect();
    let setup = Setup::hosts(4).extra(move |h| all[usize::from(h) - 1].clone());
    if start { setup.up() } else { setup.empty().up() }
}

/// Nothing that this host sends is heard.
fn mute(w: &World, host: u16) {
    for net in NETS {
        w.lab.cut(host, net, Cut::FromHost).unwrap();
    }
}

/// Its fence is extended for so many timeouts more.
fn goes_on(w: &World, host: u16, timeouts: u64) {
    let before = fence(w, host, FenceOrder::Status);
    assert_eq!(before.state, "open", "{before:?}");
    until("its fence is extended", || {
        let now = fence(w, host, FenceOrder::Status);
        assert_eq!((now.state.as_str(), w.fencings(host).len()), ("open", 0), "{now:?}");
        now.valid_ns > before.valid_ns + timeouts * before.timeout_ns
    });
}

/// It closes by itself, and an observer that hears everybody else says that it is silent only after that.
fn runs_out(w: &World, host: u16, observer: u16) {
    let fenced = w.event(host, "fenced", |e| e.cause == Cause::Fenced);
    assert_eq!(fenced.code, FencedWhy::RanOut as i32);
    let verdict = silent(w, observer, &format!("h{host}"));
    let (evidence, status) = (verdict.evidence.unwrap(), fence(w, host, FenceOrder::Status));
    assert!(evidence.fenced && verdict.at_ns > status.valid_ns, "{} ns early", status.valid_ns.saturating_sub(verdict.at_ns));
}

#[test]
fn confirmed_by_all_waits_for_everybody_but_those_that_are_fenced_themselves() {
    let Some(pins) = Pins::new() else { return };
    let lines = "mode = \"acknowledged\"\nconfirmed_by = \"all\"\ntimeout = \"6s\"\nmargin = \"10ms\"";
    let others = |h| if h == 4 { "mode = \"sent\"\ntimeout = \"2s\"" } else { "" };
    let Some(w) = four(&pins, lines, others, true) else { return };
    let status = open(&w, 1);
    assert_eq!(status.mode, "acknowledged by all");
    let needed = || fence(&w, 1, FenceOrder::Status).confirmations_needed;
    until("all three confirm", || needed() == 3);
    for observer in 2..=4 {
        until("the promise is known", || is_promised(&w, observer, "h1"));
    }
    open(&w, 4);
    until("its promise is known", || is_promised(&w, 1, "h4"));
    // One that is fenced itself is not waited for, as soon as it may be taken for dead, which is before h1's own time is over.
    mute(&w, 4);
    assert!(silent(&w, 1, "h4").evidence.unwrap().fenced);
    until("it is not waited for", || needed() == 2);
    goes_on(&w, 1, 1);
    // One without a fence takes h1 with it: it might observe h1, and nobody knows.
    mute(&w, 3);
    runs_out(&w, 1, 2);
    assert_eq!(w.state(2, "h4"), "silent-host");
}

#[test]
fn confirmed_by_two_needs_two_others_and_no_third() {
    let Some(pins) = Pins::new() else { return };
    let lines = "mode = \"acknowledged\"\nconfirmed_by = 2\ntimeout = \"3s\"\nmargin = \"10ms\"";
    let Some(mut w) = four(&pins, lines, |_| "", false) else { return };
    for host in [1, 2] {
        w.start(host);
    }
    w.all_alive();
    until("h1 is in its second", || w.view(2, "h1").is_some_and(|h| h.paths.iter().all(|p| p.last_number > 500)));
    let status = fence(&w, 1, FenceOrder::Status);
    assert_eq!((status.state.as_str(), status.confirmations_needed), ("starting", 2), "one other is not enough: {status:?}");
    for host in [3, 4] {
        w.start(host);
    }
    w.all_alive();
    assert_eq!(open(&w, 1).mode, "acknowledged by 2");
    for observer in 2..=4 {
        until("the promise is known", || is_promised(&w, observer, "h1"));
        until("it confirms", || fence(&w, 1, FenceOrder::Status).confirmed_by.contains(&format!("h{observer}")));
    }
    mute(&w, 4);
    silent(&w, 1, "h4");
    goes_on(&w, 1, 2);
    mute(&w, 3);
    runs_out(&w, 1, 2);
}

#[test]
fn a_host_that_others_have_given_up_is_fenced_when_it_hears_that() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = one_fenced(&pins, "") else { return };
    let mut application = w.subscriber(1, false);
    let traffic = Traffic::new(&w, 1, 2);
    traffic.flows();
    // Mode sent: what left is believed to arrive. It does not, and nobody on h1 knows.
    mute(&w, 1);
    for observer in [2, 3] {
        assert!(silent(&w, observer, "h1").evidence.unwrap().fenced);
    }
    // They say so in their path reports, which reach it at once.
    application.wait("on_fenced", |e| matches!(e, Event::Fenced(v) if v.code == FencedWhy::GivenUp as i32));
    for net in NETS {
        w.lab.heal(1, net).unwrap();
    }
    traffic.is_cut_off();
    let status = fence(&w, 1, FenceOrder::Status);
    assert_eq!((status.state.as_str(), status.why), ("fenced", FencedWhy::GivenUp.to_string()));
    fence(&w, 1, FenceOrder::Recover);
    traffic.flows();
    w.all_alive();
    open(&w, 1);
}

#[test]
fn recover_at_start_opens_what_a_former_life_left_closed() {
    let Some(pins) = Pins::new() else { return };
    let Some(mut w) = one_fenced(&pins, "recover_at_start = true") else { return };
    let life = w.view(2, "h1").unwrap().incarnation;
    let traffic = Traffic::new(&w, 1, 2);
    traffic.flows();
    w.kill_agent(1);
    silent(&w, 2, "h1");
    traffic.is_cut_off();
    w.start(1);
    traffic.flows();
    let status = open(&w, 1);
    assert_eq!(status.why, "");
    w.event(1, "that it was found closed", |e| e.cause == Cause::Fenced && e.code == FencedWhy::FormerLife as i32);
    w.event(1, "that it was opened", |e| e.cause == Cause::Recovered && e.incarnation > life);
    w.all_alive();
    assert!(w.view(2, "h1").unwrap().incarnation > life);
}

/// Others have confirmed nothing of the new life yet; what the former one left closes all the same.
#[test]
fn a_host_that_falls_silent_right_behind_its_agents_restart_is_fenced() {
    let Some(pins) = Pins::new() else { return };
    // A full machine takes seconds to start an agent.
    let config = pins.config(1, "mode = \"acknowledged\"\ntimeout = \"10s\"\n");
    let setup = Setup::hosts(3).extra(move |h| if h == 1 { config.clone() } else { String::new() });
    let Some(mut w) = setup.up() else { return };
    open(&w, 1);
    until("the promise is known", || (2..=3).all(|observer| is_promised(&w, observer, "h1")));
    let traffic = Traffic::new(&w, 1, 2);
    traffic.flows();
    let life = w.view(2, "h1").unwrap().incarnation;
    w.kill_agent(1);
    w.start(1);
    let again = |observer: u16| w.view(observer, "h1").is_some_and(|h| h.incarnation > life && h.state == "alive");
    until("it is there again", || (2..=3).all(again));
    NETS.into_iter().for_each(|net| w.lab.cut(1, net, Cut::Silent).unwrap());
    for observer in 2..=3 {
        let evidence = silent(&w, observer, "h1").evidence.unwrap();
        assert!(evidence.fence.is_some_and(|promise| promise.host), "{evidence:?}");
        if !evidence.fenced {
            // The other one has stood still, and gives it up so much later.
            w.event(observer, "that it is fenced", |e| e.cause == Cause::Fenced && e.node == "h1");
        }
    }
    NETS.into_iter().for_each(|net| w.lab.heal(1, net).unwrap());
    traffic.is_cut_off();
}

#[test]
fn what_a_killed_agent_left_open_is_taken_over_open() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("adopted")) else { return };
    // Long enough for the next agent to come in time.
    let lines = format!("timeout = \"10s\"\ncgroups = [\"{}\"]", group.0.display());
    let Some(mut w) = fenced_within(&pins, &lines) else { return };
    let traffic = Traffic::new(&w, 1, 2);
    let _inside = in_group(&w, 1, &group, &sender(&w, 3));
    let inside = ear(&w, 3);
    let watched = in_group(&w, 1, &group, "exec sleep 1000");
    until("it is in its cgroup", || is_inside(&group, &watched));
    w.watch_known(1, "db", watched.pid());
    for heard in [&traffic, &inside] {
        heard.flows();
    }
    let before = open(&w, 1);
    w.kill_agent(1);
    w.start(1);
    let extended = wait_for("its fence is extended", || Some(open(&w, 1)).filter(|s| s.valid_ns > before.valid_ns));
    assert!(extended.gates.iter().all(|g| g.state == "open"), "{extended:?}");
    for heard in [&traffic, &inside] {
        heard.flows();
    }
    // A gate that was shut for a doomed process stays so, and the others are open all the same.
    w.watch_known(1, "db", watched.pid());
    watched.kill();
    let gate = |w: &World| fence(w, 1, FenceOrder::Status).gates.into_iter().find(|g| g.name != "host").unwrap();
    until("its gate is shut", || gate(&w).doomed == "db");
    inside.is_cut_off();
    w.kill_agent(1);
    w.start(1);
    open(&w, 1);
    assert_eq!((gate(&w).state.as_str(), gate(&w).doomed.as_str()), ("shut", "a process of the agent's former life"));
    traffic.flows();
    inside.is_cut_off();
    assert_eq!(w.fencings(1).len(), 0);
    let next = in_group(&w, 1, &group, "exec sleep 1000");
    until("it is in its cgroup", || is_inside(&group, &next));
    w.watch_known(1, "db", next.pid());
    inside.flows();
}

#[test]
fn a_cgroup_that_is_made_again_is_guarded_again() {
    let (Some(pins), Some(parent)) = (Pins::new(), Group::new("again")) else { return };
    let make = || {
        let group = Group(parent.0.join("service"));
        fs::create_dir(&group.0).unwrap();
        group
    };
    let group = make();
    let lines = format!("timeout = \"10s\"\nhost = false\ncgroups = [\"{}\"]", group.0.display());
    let Some(mut w) = fenced_within(&pins, &lines) else { return };
    let _first = in_group(&w, 1, &group, &sender(&w, 2));
    let heard = ear(&w, 2);
    heard.flows();
    drop(group); // with what runs in it
    heard.is_cut_off();
    // Watched at once, before the agent looks for cgroups by itself: its gate is there, and shut when it is doomed.
    let group = make();
    let parent_of_one = in_group(&w, 1, &group, &format!("({}) & exec sleep 1000", sender(&w, 2)));
    until("it is in its cgroup", || is_inside(&group, &parent_of_one));
    w.watch(1, "db", parent_of_one.pid());
    heard.flows();
    parent_of_one.kill();
    w.event(2, "its doom", |e| e.cause == Cause::Doomed && e.app.as_deref() == Some("db"));
    heard.is_cut_off();
    let gates = fence(&w, 1, FenceOrder::Status).gates;
    assert_eq!(gates.iter().map(|g| (g.state.as_str(), g.doomed.as_str())).collect::<Vec<_>>(), [("shut", "db")]);
    // Made again on a host that is fenced, it is shut.
    fence(&w, 1, FenceOrder::Shut);
    drop(group);
    let group = make();
    let _third = in_group(&w, 1, &group, &sender(&w, 2));
    until("it is guarded", || {
        fence(&w, 1, FenceOrder::Status).gates.iter().any(|g| g.state == "shut" && g.blocked > 0 && g.doomed.is_empty())
    });
    heard.is_cut_off();
    fence(&w, 1, FenceOrder::Recover);
    heard.flows();
    // The gates of the two that are gone are nobody's: they ran out, and the next agent does not take this host for fenced.
    w.kill_agent(1);
    w.start(1);
    open(&w, 1);
    heard.flows();
    assert_eq!(w.fencings(1).len(), 1);
}

#[test]
fn a_host_that_starts_with_a_minority_is_not_armed_and_where_that_is_configured_not_heard() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("minority")) else { return };
    let lines =
        format!("mode = \"acknowledged\"\ntimeout = \"2s\"\ncgroups = [\"{}\"]\nat_start = \"closed\"", group.0.display());
    let Some(mut w) = four(&pins, &lines, |_| "", true) else { return };
    let status = |w: &World| fence(w, 1, FenceOrder::Status);
    open(&w, 1);
    until("two of three others must confirm", || status(&w).confirmations_needed == 2);
    let _inside = in_group(&w, 1, &group, &sender(&w, 2));
    let inside = ear(&w, 2);
    inside.flows();
    // Two of four are dead when h1 begins anew, after a clean end: no gate is there any more.
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    for host in [3, 4] {
        w.kill_agent(host);
    }
    inside.flows();
    w.start(1);
    until("h2 confirms", || status(&w).confirmed_by == ["h2"]);
    let starting = |w: &World| {
        let s = status(w);
        let gates: Vec<_> = s.gates.iter().map(|g| (g.name == "host", g.state.clone())).collect();
        assert_eq!((s.state.as_str(), s.confirmations_needed), ("starting", 2), "two of four are no majority: {s:?}");
        assert_eq!(gates, [(true, "not-armed".to_string()), (false, "shut".into())]);
    };
    starting(&w);
    inside.is_cut_off();
    // Nor does one that is killed meanwhile open it.
    w.kill_agent(1);
    inside.is_cut_off();
    w.start(1);
    until("h2 confirms", || status(&w).confirmed_by == ["h2"]);
    starting(&w);
    // A third one comes back.
    w.start(3);
    open(&w, 1);
    inside.flows();
    assert_eq!(w.fencings(1).len(), 0);
    // Who leaves is counted no more, also by the next life.
    w.start(4);
    w.all_alive();
    w.signal_agent(4, libc::SIGTERM);
    assert!(w.agent_ended(4).success());
    w.event(1, "it left", |e| e.cause == Cause::Left && e.node == "h4");
    until("it is not counted", || status(&w).confirmations_needed == 1);
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    w.start(1);
    open(&w, 1);
    assert_eq!(status(&w).confirmations_needed, 1);
    inside.flows();
}

#[test]
fn a_host_that_died_without_leaving_counts_until_it_is_forgotten() {
    let Some(pins) = Pins::new() else { return };
    let Some(mut w) = four(&pins, "mode = \"acknowledged\"\ntimeout = \"2s\"", |_| "", true) else { return };
    let needed = |w: &World| fence(w, 1, FenceOrder::Status).confirmations_needed;
    let forget = |w: &World, host: &str| match w.ask(1, &Request::Forget { host: host.into() }) {
        Ok(Reply::Done) => None,
        Err(fide_client::Error::Refused(r)) => Some(r.code),
        other => panic!("{other:?}"),
    };
    open(&w, 1);
    until("two of three others must confirm", || needed(&w) == 2);
    let codes = ["h1", "h4", "h9"].map(|host| forget(&w, host));
    assert_eq!(codes, [ErrorCode::Invalid, ErrorCode::Exists, ErrorCode::NotFound].map(Some));
    // One falls silent, and of one the agent is gone; neither has left.
    mute(&w, 4);
    silent(&w, 1, "h4");
    assert_eq!(needed(&w), 2);
    assert_eq!((forget(&w, "h4"), needed(&w)), (None, 1));
    w.kill_agent(3);
    w.event(1, "agent lost", |e| e.cause == Cause::AgentLost && e.node == "h3");
    assert_eq!((forget(&w, "h3"), needed(&w)), (None, 1), "one of two");
    assert!(w.view(1, "h3").is_none() && w.view(1, "h4").is_none() && w.view(1, "h2").is_some());
    open(&w, 1);
    // The next life counts them as little.
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    w.start(1);
    open(&w, 1);
    assert_eq!(needed(&w), 1);
    assert_eq!(forget(&w, "h3"), None, "also where it was not heard in this life");
    // Whoever is heard again counts again, in a life that is newer than the one that was given up.
    for net in NETS {
        w.lab.heal(4, net).unwrap();
    }
    w.start(3);
    w.all_alive();
    until("two of three others must confirm again", || needed(&w) == 2);
    open(&w, 1);
    assert_eq!(w.fencings(1).len(), 0);
}

/// Neither by a start that fails, nor because a gate of it had cut off a process before.
#[test]
fn a_fenced_host_stays_fenced_when_its_agent_cannot_start() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("bad-start")) else { return };
    for host in [false, true] {
        let lines = format!("host = {host}\ncgroups = [\"{}\"]", group.0.display());
        let Some(mut w) = one_fenced(&pins, &lines) else { return };
        let first = in_group(&w, 1, &group, "exec sleep 1000");
        until("it is in its cgroup", || is_inside(&group, &first));
        w.watch_known(1, "db", first.pid());
        first.kill();
        let gate = |w: &World| fence(w, 1, FenceOrder::Status).gates.into_iter().find(|g| g.name != "host").unwrap();
        until("its gate is shut", || gate(&w).doomed == "db");
        let _next = in_group(&w, 1, &group, &sender(&w, 2));
        let inside = ear(&w, 2);
        fence(&w, 1, FenceOrder::Shut);
        w.kill_agent(1);
        let good = fs::read_to_string(w.config(1)).unwrap();
        w.write_config(1, &good.replace("cgroups = [", "cgroups = [\"/proc\", "));
        let mut agent = w.spawn(1, &w.config(1));
        let ended = wait_for("the agent ends", || agent.try_wait().unwrap());
        assert!(!ended.success() && w.log(1).contains("not a directory of cgroup version 2"), "{}", w.log(1));
        inside.is_cut_off();
        w.write_config(1, &good);
        w.start(1);
        let status = fence(&w, 1, FenceOrder::Status);
        assert_eq!((status.state.as_str(), status.why.contains("former life")), ("fenced", true), "{status:?}");
        let next = in_group(&w, 1, &group, &sender(&w, 2));
        until("it is in its cgroup", || is_inside(&group, &next));
        w.watch(1, "db", next.pid());
        inside.is_cut_off();
        fence(&w, 1, FenceOrder::Recover);
        inside.flows();
        w.signal_agent(1, libc::SIGTERM);
        assert!(w.agent_ended(1).success());
    }
}

/// What an agent without a fence says of the one that is there, and how that is taken away for good.
#[test]
fn a_fence_that_nobody_drives_any_more_is_told_of_and_can_be_removed() {
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("removed")) else { return };
    let Some(mut w) = one_fenced(&pins, &format!("cgroups = [\"{}\"]", group.0.display())) else { return };
    let remove = |w: &World| {
        let mut command = w.lab.command(1, env!("CARGO_BIN_EXE_fided")).unwrap();
        let out = command.arg("--config").arg(w.config(1)).arg("--remove-fence").output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        (out.status.success(), text)
    };
    let (done, text) = remove(&w);
    assert!(!done && text.contains("stop it first"), "{text}");
    let (outside, _inside) = (Traffic::new(&w, 1, 2), in_group(&w, 1, &group, &sender(&w, 3)));
    let inside = ear(&w, 3);
    inside.flows();
    fence(&w, 1, FenceOrder::Shut);
    w.kill_agent(1);
    let config = fs::read_to_string(w.config(1)).unwrap();
    w.write_config(1, &config.replace("mode = \"sent\"", "mode = \"off\""));
    w.start(1);
    let log = w.log(1);
    assert!(log.contains("the host's gate, left by a former life") && log.contains("fided --remove-fence"), "{log}");
    for heard in [&outside, &inside] {
        heard.is_cut_off();
    }
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    let (done, text) = remove(&w);
    assert!(done && text.contains("its program on interface net1") && text.contains("its gate of cgroup"), "{text}");
    for heard in [&outside, &inside] {
        heard.flows();
    }
    assert!(!pins.0.join("h1").exists());
    let (done, text) = remove(&w);
    assert!(done && !text.contains("its "), "{text}");
}

/// What makes a program run as the shipped unit runs it, as far as that can be had without systemd: its capabilities, no new ones, and cgroups that cannot be
/// written to.
fn as_the_unit_does(cgroups: &std::path::Path) -> Vec<String> {
    let unit = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/fided.service")).unwrap();
    let line = |key: &str| unit.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_else(|| panic!("{key} is in the unit"));
    assert_eq!((line("NoNewPrivileges="), line("ProtectControlGroups=")), ("yes", "yes"));
    let names = line("CapabilityBoundingSet=").split(' ').map(|name| name.strip_prefix("CAP_").unwrap().to_lowercase());
    let bounding = names.fold("-all".to_string(), |all, name| format!("{all},+{name}"));
    let script = format!(
        "mount -o remount,bind,ro {} && exec setpriv --no-new-privs --bounding-set={bounding} --inh-caps=-all \"$@\"",
        cgroups.display()
    );
    ["unshare", "--mount", "sh", "-c", &script, "sh"].map(String::from).to_vec()
}

#[test]
fn a_fence_can_be_had_with_what_the_shipped_unit_permits() {
    let (Some(pins), Some(group), Some(service)) = (Pins::new(), Group::new("unit"), Group::new("unit-gate")) else { return };
    let fenced = pins.config(1, &format!("mode = \"sent\"\ntimeout = \"5s\"\ncgroups = [\"{}\"]", group.0.display()));
    let config = format!("{fenced}[[gate]]\nname = \"app\"\ncgroup = \"{}\"\n", service.0.display());
    let extra = move |h| if h == 1 { config.clone() } else { String::new() };
    let Some(mut w) = Setup::hosts(3).extra(extra).empty().up() else { return };
    let under = as_the_unit_does(group.0.parent().unwrap());
    let under: Vec<&str> = under.iter().map(String::as_str).collect();
    w.start_under(1, &under);
    for host in [2, 3] {
        w.start(host);
    }
    w.all_alive();
    let status = fs::read_to_string(format!("/proc/{}/status", w.agent_pid(1))).unwrap();
    let caps = |key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key)).unwrap();
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap().count_ones()
    };
    assert_eq!((caps("CapEff"), caps("CapBnd")), (10, 10), "as many as the unit names");
    let traffic = Traffic::new(&w, 1, 2);
    let (mut dead, end) = writer(&w, &group);
    let before = open(&w, 1);
    assert!(before.gates.len() == 2 && before.gates.iter().all(|g| g.state == "open"), "{before:?}");
    assert_eq!(before.interfaces, ["net0", "net1"]);
    assert_eq!(w.status(1).gates.iter().map(|g| g.state.as_str()).collect::<Vec<_>>(), ["not-armed"]);
    traffic.flows();
    // The next agent takes it over.
    w.kill_agent(1);
    w.start_under(1, &under);
    until("its fence is extended", || open(&w, 1).valid_ns > before.valid_ns);
    fence(&w, 1, FenceOrder::Shut);
    traffic.is_cut_off();
    dead.say("old");
    until("it is held back", || unsent(&w, "established") == 1);
    dead.kill();
    dead.ended();
    fence(&w, 1, FenceOrder::Recover);
    assert_eq!(unsent(&w, "fin-wait-1"), 0);
    is_reset(end);
    traffic.flows();
    // A watched process is seen, and cut off when it is doomed.
    let watched = in_group(&w, 1, &group, &format!("({}) & exec sleep 1000", sender(&w, 3)));
    let inside = ear(&w, 3);
    until("it is in its cgroup", || is_inside(&group, &watched));
    w.watch_known(1, "db", watched.pid());
    inside.flows();
    watched.kill();
    w.event(2, "its doom", |e| e.cause == Cause::Doomed && e.app.as_deref() == Some("db"));
    inside.is_cut_off();
    // A clean end takes all away.
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    assert!(!pins.0.join("h1").exists() && !pins.0.join("h1-gates").exists());
    traffic.flows();
}

/// Its questions do not leave, so whoever answers nothing may live: it says nothing of them, and its hooks do not run.
#[test]
fn a_fenced_host_calls_nobody_silent() {
    let Some(pins) = Pins::new() else { return };
    let Some(w) = one_fenced(&pins, "") else { return };
    fence(&w, 1, FenceOrder::Shut);
    // h3 says so of the stopped agent, by its own questions: h1 had as much time.
    w.signal_agent(2, libc::SIGSTOP);
    until("another host has given the stopped agent up", || {
        w.history(3).iter().any(|e| e.node == "h2" && e.cause == Cause::AgentLost)
    });
    let wrong: Vec<_> = w.history(1).into_iter().filter(|e| e.node == "h2" && e.cause == Cause::SilentHost).collect();
    w.signal_agent(2, libc::SIGCONT);
    assert!(wrong.is_empty(), "{wrong:?}");
}
