//! What the fence costs the host that it is on: ping-pong over a veth pair without gates, with the host's, with a cgroup's and with both,
//! in turns; and what it costs the lane to send through the
//! queueing discipline, where the host's gate is, instead of past it.
//!
//! `cargo run --release -p fide-xdp --example fence_cost [rounds] [exchanges per round]`, as root. One JSON line per case on standard output,
//! comparisons on standard error. The bar: median throughput within 1 %, p99 within 2 %.

#[path = "../../lane/tests/common/mod.rs"]
mod net;

use fide_lane::{Lane, Options, PathSpec, SendMode};
use fide_xdp::{Fence, GateState};
use net::Net;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Instant;

const SIZES: [usize; 6] = [8, 64, 512, 4096, 16_384, 65_536];
const PORT: u16 = 3498;

/// Keeps other work of this machine out of the figures as far as that goes: real-time priority for this thread.
fn undisturbed() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: a structure that lives across the call; failure leaves things as they are.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) } != 0 {
        eprintln!("no real-time priority: the figures include whatever else runs here");
    }
}

/// Median, p99, p99.9, maximum.
fn quantiles(mut times: Vec<u64>) -> [f64; 4] {
    times.sort_unstable();
    [0.5, 0.99, 0.999, 1.0].map(|q| times[((times.len() - 1) as f64 * q) as usize] as f64 / 1000.0)
}

fn json(case: &str, n: usize, [p50, p99, p999, max]: [f64; 4], steps: &str) {
    println!(
        r#"{{"bench":"fence-cost","case":"{case}","n":{n},"unit":"us","p50":{p50:.2},"p99":{p99:.2},"p999":{p999:.2},"max":{max:.2},"steps":{{{steps}}}}}"#
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One message there and back, however it is carried.
enum Wire {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Wire {
    fn exchange(&mut self, out: &[u8], back: &mut [u8]) {
        match self {
            Self::Udp(s) => {
                s.send(out).expect("sent");
                s.recv(back).expect("answered");
            }
            Self::Tcp(s) => {
                s.write_all(out).expect("sent");
                s.read_exact(back).expect("answered");
            }
        }
    }
}

/// Answers one client; then another.
fn echo(udp: bool, size: usize, at: &str, port: u16) {
    undisturbed();
    let mut bytes = vec![0; size];
    if udp {
        let socket = UdpSocket::bind((at, port)).expect("bound");
        loop {
            let (n, from) = socket.recv_from(&mut bytes).expect("asked");
            socket.send_to(&bytes[..n], from).expect("answered");
        }
    }
    let listener = TcpListener::bind((at, port)).expect("bound");
    loop {
        let mut stream = listener.accept().expect("called").0;
        stream.set_nodelay(true).expect("set");
        while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
    }
}

/// Every kind of traffic, with its port.
fn kinds() -> impl Iterator<Item = (bool, usize, u16)> {
    let kinds = [true, false].into_iter().flat_map(|udp| SIZES.into_iter().map(move |size| (udp, size)));
    kinds.filter(|(udp, size)| !udp || *size < 65_000).zip(PORT..).map(|((udp, size), port)| (udp, size, port))
}

/// The other host: a process of its own, so that its sockets are in no guarded cgroup.
fn serve() {
    let threads: Vec<_> =
        kinds().map(|(udp, size, port)| std::thread::spawn(move || echo(udp, size, "10.77.0.2", port))).collect();
    for thread in threads {
        thread.join().expect("never");
    }
}

/// Which gates there are.
const MODES: [(&str, bool, bool); 4] =
    [("without", false, false), ("host", true, false), ("cgroup", false, true), ("both", true, true)];

/// Gates with a t_valid far away, or none at all.
struct Switch<'a> {
    fence: &'a mut Fence,
    interfaces: Vec<u32>,
    group: &'a Path,
}

impl Switch<'_> {
    fn set(&mut self, host: bool, group: bool) {
        for ifindex in &self.interfaces {
            if host {
                self.fence.guard_interface(*ifindex).expect("guarded");
            } else {
                self.fence.release_interface(*ifindex).expect("released");
            }
        }
        let mut gates = vec![self.fence.host()];
        if group {
            gates.push(self.fence.guard_cgroup(self.group).expect("guarded"));
        } else {
            self.fence.release_cgroup(self.group).expect("released");
        }
        for gate in gates.iter().filter(|g| g.check() == GateState::NotArmed) {
            gate.arm(u64::MAX).expect("armed");
        }
    }
}

fn ping_pong(switch: &mut Switch<'_>, udp: bool, size: usize, port: u16, rounds: usize, exchanges: usize) {
    let mut wire = if udp {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bound");
        socket.connect(("10.77.0.2", port)).expect("connected");
        Wire::Udp(socket)
    } else {
        let stream = TcpStream::connect(("10.77.0.2", port)).expect("connected");
        stream.set_nodelay(true).expect("set");
        Wire::Tcp(stream)
    };
    let (out, mut back) = (vec![7; size], vec![0; size]);
    let mut run = |n: usize| -> Vec<u64> {
        let mut one = || {
            let begun = Instant::now();
            wire.exchange(&out, &mut back);
            begun.elapsed().as_nanos() as u64
        };
        (0..n).map(|_| one()).collect()
    };
    run(exchanges); // warm
    let mut all = [const { Vec::new() }; MODES.len()];
    // For each mode: median, p99 and throughput of a round, over those of the same round without gates.
    let mut ratios = [const { [const { Vec::new() }; 3] }; MODES.len()];
    for round in 0..rounds {
        let mut figures = [[0.0; 3]; MODES.len()];
        for i in 0..MODES.len() {
            // Each mode in each place: a machine that grows slower or faster favours none.
            let mode = (i + round) % MODES.len();
            switch.set(MODES[mode].1, MODES[mode].2);
            run(exchanges / 10 + 1); // what attaching disturbed
            let begun = Instant::now();
            let times = run(exchanges);
            let rate = (exchanges * size * 2) as f64 / begun.elapsed().as_secs_f64() / 1e6;
            let [p50, p99, ..] = quantiles(times.clone());
            figures[mode] = [p50, p99, rate];
            all[mode].extend(times);
        }
        for (mode, of_mode) in ratios.iter_mut().enumerate() {
            for (i, ratio) in of_mode.iter_mut().enumerate() {
                ratio.push(figures[mode][i] / figures[0][i]);
            }
        }
    }
    switch.set(false, false);
    let kind = if udp { "udp" } else { "tcp" };
    for (((name, ..), times), ratios) in MODES.into_iter().zip(all).zip(ratios) {
        let (n, q) = (times.len(), quantiles(times));
        let [p50, p99, rate] = ratios.map(|r| (median(r) - 1.0) * 100.0);
        json(
            &format!("{kind} {size} {name}"),
            n,
            q,
            &format!(r#""p50_percent":{p50:.2},"p99_percent":{p99:.2},"throughput_percent":{rate:.2}"#),
        );
        eprintln!(
            "{kind} {size:>5} B {name:>7}: p50 {:.2} µs, p99 {:.1}, p99.9 {:.1}, max {:.0}; against no gate, by round: p50 {p50:+.2} %, p99 {p99:+.2} %, throughput {rate:+.2} %",
            q[0], q[1], q[2], q[3]
        );
    }
}

/// `Lane::send` of a heartbeat on both paths, by the ways it can go.
fn lane_cost(switch: &mut Switch<'_>, rounds: usize, sends: usize) {
    let cases = [
        ("bypass", false, false, false),
        ("gated, no gate", true, false, false),
        ("gated, gate", true, false, true),
        ("bypass, completion", false, true, false),
        ("gated, completion, gate", true, true, true),
    ];
    let mut all = vec![Vec::new(); cases.len()];
    for round in 0..rounds {
        for i in 0..cases.len() {
            let (_, gated, completion, gate) = cases[(i + round) % cases.len()];
            switch.set(gate, gate);
            let specs = [0, 1].map(|path| PathSpec {
                path,
                interface: format!("e{path}"),
                group: Some("239.241.222.1".parse().expect("an address")),
                unicast: vec![],
                port: 3433,
                source: None,
            });
            let options = Options { gated, completion, receive: false, ..Options::default() };
            let mut lane = Lane::open_with(&specs, SendMode::Packet, options).expect("a lane");
            let bytes = [7; 68];
            for n in 0..sends {
                let begun = Instant::now();
                let out = lane.send([Some(&bytes), Some(&bytes)]);
                let done = completion.then(|| lane.completion());
                let took = begun.elapsed().as_nanos() as u64;
                assert!(out.iter().all(|o| o.is_ok()));
                assert!(done.is_none_or(|d| d.through == [lane.sends(); 2]));
                if n >= sends / 10 {
                    all[(i + round) % cases.len()].push(took);
                }
            }
        }
    }
    let base = quantiles(all[0].clone());
    for ((name, ..), times) in cases.iter().zip(all) {
        let (n, q) = (times.len(), quantiles(times));
        json(&format!("lane send, {name}"), n, q, "");
        eprintln!(
            "lane send, {name}: median {:.2} µs, p99 {:.2}, p99.9 {:.1}, max {:.0} ({:+.2} µs)",
            q[0],
            q[1],
            q[2],
            q[3],
            q[0] - base[0]
        );
    }
}

fn main() {
    if std::env::var_os("FIDE_FENCE_COST_SERVE").is_some() {
        return serve();
    }
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("a number"));
    let (rounds, exchanges) = (args.next().unwrap_or(60), args.next().unwrap_or(1000));
    let Some(net) = Net::make("fence_cost") else { std::process::exit(1) };
    let mounts = fs::read_to_string("/proc/self/mounts").expect("/proc");
    let mount = |kind: &str| {
        let found = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>()).find(|w| w[2] == kind).map(|w| PathBuf::from(w[1]));
        found.unwrap_or_else(|| panic!("no file system of type {kind} is mounted"))
    };
    let mut server = std::process::Command::new(std::env::current_exe().expect("a path"));
    server.env("FIDE_FENCE_COST_SERVE", "1");
    let mut server = Net::within(&net.b, || server.spawn().expect("a server"));
    while kinds().any(|(udp, _, port)| !udp && Net::within(&net.a, || TcpStream::connect(("10.77.0.2", port)).is_err())) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let name = format!("fide-fence-cost-{}", std::process::id());
    let (dir, group) = (mount("bpf").join(&name), mount("cgroup2").join(&name));
    fs::create_dir(&group).expect("a cgroup");
    // Our sockets are made in it.
    let procs = |dir: &Path| fs::write(dir.join("cgroup.procs"), "0").expect("moved");
    procs(&group);
    let mut fence = Fence::open(&dir).unwrap_or_else(|e| panic!("{e}"));
    Net::within(&net.a, || {
        let interfaces = ["e0", "e1"].map(|n| {
            let n = std::ffi::CString::new(n).expect("no zero");
            // SAFETY: a C string.
            unsafe { libc::if_nametoindex(n.as_ptr()) }
        });
        undisturbed();
        let mut switch = Switch { fence: &mut fence, interfaces: interfaces.into(), group: &group };
        lane_cost(&mut switch, rounds, exchanges);
        for (udp, size, port) in kinds() {
            ping_pong(&mut switch, udp, size, port, rounds, exchanges);
        }
    });
    let _ = server.kill();
    let _ = server.wait();
    fence.remove().expect("removed");
    procs(group.parent().expect("a parent"));
    let _ = fs::remove_dir(&group);
}
