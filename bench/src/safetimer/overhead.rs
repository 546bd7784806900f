//! What the fence costs (SafeTimer §6.1): ping-pong over veth pairs, the calling host fenced, with no gate, the host's, a cgroup's and both; and what
//! it costs the lane to send through the queueing discipline, where the host's gate is, instead of past it.
//!
//! Two hosts of a lab with two cables of their own, so that no switch hides the cost among its own. A gate is on one cable and not on the other, and
//! sockets are made in a cgroup with a gate and in one without: all modes are there at once, and take turns in bursts of a few exchanges. Attaching
//! gates before each mode instead does not do: what comes right behind a change of gates is slower by some percent than what comes later, whatever
//! the mode (seen with a mode that changed nothing). Two modes have no gate, and the second is the control: what it differs by, this measurement cannot tell.

use super::inject::{Group, cgroup_root};
use crate::Outcome;
use crate::report;
use crate::stats::{Case, Samples, human_us};
use crate::sys;
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result, bail};
use fide_lab::{Lab, LabSpec};
use fide_lane::{Lane, Options, PathSpec, SendMode};
use fide_xdp::{Fence, Gate, GateState};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

const SIZES: [usize; 6] = [8, 64, 512, 4096, 16_384, 65_536];
/// The first port; each kind of traffic has its own.
const PORT: u16 = 9_720;
/// The cables between the two hosts.
const CABLES: [&str; 2] = ["e0", "e1"];
const CALLER: u16 = 1;
const ECHO: u16 = 2;

/// The hidden subcommand.
const ROLE: &str = "bench-overhead";

/// Of the mean over all sizes and both protocols, percent: a median throughput not lower, a p99 not higher.
const BARS: (f64, f64) = (-1.0, 2.0);

/// Arguments of the hidden subcommand.
#[derive(Clone, Debug, clap::Args)]
pub struct HelperArgs {
    /// Answer, as the other host
    #[arg(long)]
    pub echo: bool,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Exchanges in each
    #[arg(long, default_value_t = 100)]
    pub exchanges: usize,
    /// Where gates are pinned
    #[arg(long)]
    pub pins: Option<PathBuf>,
    /// The cgroup of sockets behind a gate
    #[arg(long)]
    pub gated: Option<PathBuf>,
    /// The cgroup of sockets without one
    #[arg(long)]
    pub free: Option<PathBuf>,
}

fn address(host: u16, cable: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, cable as u8, host as u8)
}

/// Every kind of traffic, with its port. A datagram of 64 KB there is not.
fn kinds() -> impl Iterator<Item = (bool, usize, u16)> {
    let kinds = [true, false].into_iter().flat_map(|udp| SIZES.into_iter().map(move |size| (udp, size)));
    kinds.filter(|(udp, size)| !udp || *size < 65_000).zip(PORT..).map(|((udp, size), port)| (udp, size, port))
}

// ---- in the helper processes ---------------------------------------------------------------------------------------------------

/// What the hidden subcommand does.
///
/// # Errors
/// When it cannot have its sockets, or its gates.
pub fn help(args: &HelperArgs) -> Result<()> {
    if args.echo {
        return serve();
    }
    let (Some(pins), Some(gated), Some(free)) = (&args.pins, &args.gated, &args.free) else {
        bail!("--pins, --gated and --free")
    };
    measure(pins, &Groups { gated, free }, args.rounds, args.exchanges)
}

/// Keeps other work of this machine out of the figures as far as that goes: real-time priority for this thread.
fn undisturbed() -> bool {
    sys::be_realtime(1).is_ok()
}

/// The other host.
fn serve() -> Result<()> {
    let mut threads = Vec::new();
    for (udp, size, port) in kinds() {
        let at = (Ipv4Addr::UNSPECIFIED, port);
        if udp {
            let socket = UdpSocket::bind(at)?;
            threads.push(std::thread::spawn(move || {
                undisturbed();
                let mut bytes = vec![0; size];
                loop {
                    // Nobody to answer: the other side has ended.
                    let Ok((n, from)) = socket.recv_from(&mut bytes) else { continue };
                    let _ = socket.send_to(&bytes[..n], from);
                }
            }));
        } else {
            let listener = TcpListener::bind(at)?;
            threads.push(std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    std::thread::spawn(move || answer(stream, size));
                }
            }));
        }
    }
    println!("ready");
    std::io::stdout().flush()?;
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn answer(mut stream: TcpStream, size: usize) {
    undisturbed();
    let mut bytes = vec![0; size];
    let _ = stream.set_nodelay(true);
    while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
}

/// One message there and back, however it is carried.
enum Wire {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Wire {
    fn open(udp: bool, cable: usize, port: u16) -> Result<Self> {
        let to = (address(ECHO, cable), port);
        if udp {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(Duration::from_secs(10)))?;
            return Ok(Self::Udp(socket));
        }
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self::Tcp(stream))
    }

    fn exchange(&mut self, out: &[u8], back: &mut [u8]) -> std::io::Result<()> {
        match self {
            Self::Udp(s) => {
                s.send(out)?;
                s.recv(back).map(drop)
            }
            Self::Tcp(s) => {
                s.write_all(out)?;
                s.read_exact(back)
            }
        }
    }
}

/// Which gates there are: the host's, the cgroup's. The first is what the others are compared with.
const MODES: [(&str, bool, bool); 5] =
    [("without", false, false), ("control", false, false), ("host", true, false), ("cgroup", false, true), ("both", true, true)];

/// Exchanges of one mode before the next one's turn.
const BURST: usize = 10;

/// The mode of a turn. Each comes once in a row of turns; over all rows each has each place as often, and follows each other as often within a row: the number
/// of modes is a prime.
fn turn(n: usize) -> usize {
    let (row, place) = (n / MODES.len(), n % MODES.len());
    let stride = 1 + row / MODES.len() % (MODES.len() - 1);
    (row + place * stride) % MODES.len()
}

/// Where sockets are made.
struct Groups<'a> {
    gated: &'a Path,
    free: &'a Path,
}

impl Groups<'_> {
    /// The sockets that this process makes from now on are of this cgroup; those that it has stay where they were made.
    fn enter(&self, gated: bool) -> Result<()> {
        let group = if gated { self.gated } else { self.free };
        std::fs::write(group.join("cgroup.procs"), "0").with_context(|| format!("cannot enter {}", group.display()))
    }
}

/// Gates with a t_valid far away, or none at all.
struct Switch<'a> {
    fence: &'a mut Fence,
    interfaces: [u32; 2],
}

impl Switch<'_> {
    /// The host's gate on these interfaces.
    fn interfaces(&mut self, guarded: [bool; 2]) -> Result<()> {
        for (ifindex, guarded) in self.interfaces.into_iter().zip(guarded) {
            if guarded {
                self.fence.guard_interface(ifindex)?;
            } else {
                self.fence.release_interface(ifindex)?;
            }
        }
        arm(&self.fence.host())
    }

    fn group(&mut self, group: &Path) -> Result<()> {
        arm(&self.fence.guard_cgroup(group)?)
    }
}

fn arm(gate: &Gate) -> Result<()> {
    if gate.check() == GateState::NotArmed {
        gate.arm(u64::MAX).map_err(|refused| anyhow::anyhow!("a gate cannot be armed: {refused:?}"))?;
    }
    Ok(())
}

fn measure(pins: &Path, groups: &Groups<'_>, rounds: usize, exchanges: usize) -> Result<()> {
    let mut fence = Fence::open(pins)?;
    let index = |name| sys::interface_index(name).with_context(|| format!("there is no interface {name}"));
    let interfaces = [index(CABLES[0])?, index(CABLES[1])?];
    if !undisturbed() {
        eprintln!("fide: no real-time priority: the figures include whatever else runs here");
    }
    let mut switch = Switch { fence: &mut fence, interfaces };
    switch.group(groups.gated)?;
    for (udp, size, port) in kinds() {
        for case in ping_pong(&mut switch, groups, udp, size, port, rounds, exchanges)? {
            println!("{}", case.json());
        }
        std::io::stdout().flush()?;
    }
    for case in lane_cost(&mut switch, rounds, exchanges)? {
        println!("{}", case.json());
    }
    switch.interfaces([false; 2])?;
    Ok(fence.remove()?)
}

/// Of the ratios of all rounds. Two rounds, between which the cables change places, count as one: what a cable has to itself cancels out.
fn median_of_pairs(ratios: &[f64]) -> f64 {
    let mut pairs: Vec<f64> = ratios.chunks_exact(2).map(|pair| (pair[0] * pair[1]).sqrt()).collect();
    pairs.sort_by(f64::total_cmp);
    (pairs[(pairs.len() - 1) / 2] + pairs[pairs.len() / 2]) / 2.0
}

/// For each mode, on each cable: whether that cable is the guarded one changes with the rounds.
fn wires(groups: &Groups<'_>, udp: bool, port: u16) -> Result<Vec<[Wire; 2]>> {
    let all = MODES.into_iter().map(|(.., gated)| {
        groups.enter(gated)?;
        Ok([Wire::open(udp, 0, port)?, Wire::open(udp, 1, port)?])
    });
    let all = all.collect();
    groups.enter(false)?;
    all
}

fn ping_pong(
    switch: &mut Switch<'_>,
    groups: &Groups<'_>,
    udp: bool,
    size: usize,
    port: u16,
    rounds: usize,
    exchanges: usize,
) -> Result<Vec<Case>> {
    let (out, mut back) = (vec![7; size], vec![0; size]);
    let mut all = vec![Samples::default(); MODES.len()];
    // For each mode: median, p99 and throughput of a round, over those of the same round without gates.
    let mut ratios = [const { [const { Vec::new() }; 3] }; MODES.len()];
    let mut turns = 0;
    for round in 0..rounds.next_multiple_of(2) {
        let guarded = round % 2;
        switch.interfaces([guarded == 0, guarded == 1])?;
        let mut wires = wires(groups, udp, port)?; // new ones: where an answering thread happens to run is no mode's for long
        let mut times = vec![Samples::default(); MODES.len()];
        let bursts = exchanges.div_ceil(BURST);
        let warm = bursts / 10 + 1; // what the change of gates disturbed
        for n in 0..(warm + bursts) * MODES.len() {
            let mode = turn(turns);
            turns += 1;
            let (_, host, _) = MODES[mode];
            let wire = &mut wires[mode][if host { guarded } else { 1 - guarded }];
            for _ in 0..BURST {
                let begun = Instant::now();
                wire.exchange(&out, &mut back)?;
                let took = begun.elapsed().as_nanos() as u64;
                if n >= warm * MODES.len() {
                    times[mode].push(took);
                }
            }
        }
        let figures: Vec<_> = times.iter_mut().map(|t| [t.quantile(0.5) as f64, t.quantile(0.99) as f64, t.rate()]).collect();
        for (mode, of_mode) in ratios.iter_mut().enumerate() {
            for (i, ratio) in of_mode.iter_mut().enumerate() {
                ratio.push(figures[mode][i] / figures[0][i]);
            }
            all[mode].extend(times[mode].sorted().iter().copied());
        }
    }
    let kind = if udp { "udp" } else { "tcp" };
    let cases = MODES.into_iter().zip(&mut all).zip(ratios).map(|(((name, ..), samples), ratios)| {
        let mut case = Case::new("safetimer", format!("overhead {kind} {size} {name}"), samples);
        let percent = ratios.map(|r| (median_of_pairs(&r) - 1.0) * 100.0);
        for (name, value) in ["p50_percent", "p99_percent", "throughput_percent"].iter().zip(percent) {
            case.values.insert((*name).into(), value);
        }
        case
    });
    Ok(cases.collect())
}

/// `Lane::send` of a heartbeat on both paths, by the ways it can go.
fn lane_cost(switch: &mut Switch<'_>, rounds: usize, sends: usize) -> Result<Vec<Case>> {
    const WAYS: [(&str, bool, bool, bool); 5] = [
        ("bypass", false, false, false),
        ("gated, no gate", true, false, false),
        ("gated, gate", true, false, true),
        ("bypass, completion", false, true, false),
        ("gated, completion, gate", true, true, true),
    ];
    let mut all = vec![Samples::default(); WAYS.len()];
    for round in 0..rounds {
        for i in 0..WAYS.len() {
            let way = (i + round) % WAYS.len();
            let (_, gated, completion, gate) = WAYS[way];
            switch.interfaces([gate; 2])?;
            let specs = [0, 1].map(|path: u8| PathSpec {
                path,
                interface: CABLES[usize::from(path)].into(),
                group: Some(Ipv4Addr::new(239, 241, 222, 1).into()),
                unicast: vec![],
                port: 3433,
                source: None,
            });
            let options = Options { gated, completion, receive: false, ..Options::default() };
            let mut lane = Lane::open_with(&specs, SendMode::Packet, options)?;
            let bytes = [7; 68];
            for n in 0..sends {
                let begun = Instant::now();
                let out = lane.send([Some(&bytes), Some(&bytes)]);
                let done = completion.then(|| lane.completion());
                let took = begun.elapsed().as_nanos() as u64;
                anyhow::ensure!(out.iter().all(|o| o.is_ok()), "a heartbeat was not sent: {out:?}");
                anyhow::ensure!(done.is_none_or(|d| d.through == [lane.sends(); 2]), "a heartbeat was not completed");
                if n >= sends / 10 {
                    all[way].push(took);
                }
            }
        }
    }
    let cases = WAYS.iter().zip(&mut all);
    Ok(cases.map(|((name, ..), samples)| Case::new("safetimer", format!("lane send, {name}"), samples)).collect())
}

// ---- in the parent -------------------------------------------------------------------------------------------------------------

struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A helper on a host, its lines, and its end.
fn start(mut command: Command) -> Result<(Helper, mpsc::Receiver<String>)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start a helper")?;
    let Some(stdout) = child.stdout.take() else { bail!("a helper without a pipe") };
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                break;
            }
        }
    });
    Ok((Helper(child), told))
}

/// The next line; `None` at the end.
fn next(lines: &mpsc::Receiver<String>, ui: &Ui) -> Result<Option<String>> {
    loop {
        ui.check()?;
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => return Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

fn cable(lab: &Lab) -> Result<()> {
    for (n, name) in CABLES.iter().enumerate() {
        let (a, b) = (lab.host_netns(CALLER), lab.host_netns(ECHO));
        let mut lines = vec![format!("link add {name} netns {a} type veth peer name {name} netns {b}")];
        for (host, namespace) in [(CALLER, a), (ECHO, b)] {
            lines.push(format!("-n {namespace} addr add {}/24 dev {name}", address(host, n)));
            lines.push(format!("-n {namespace} link set {name} up"));
        }
        for line in lines {
            let output = Command::new("ip").args(line.split(' ')).output().context("cannot run ip")?;
            anyhow::ensure!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
    }
    Ok(())
}

/// Percent of change, by mode, over all kinds of traffic.
#[derive(Default)]
struct Mean {
    throughput: f64,
    p99: f64,
    n: f64,
}

/// Runs it. `Ok(false)`: `--check`, and a bar was missed.
///
/// # Errors
/// When something keeps it from being measured.
pub fn run(args: &super::Args, ui: &Ui) -> Outcome {
    cgroup_root()?;
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let lab = Lab::up(&LabSpec { hosts: 2, ipv6: false, ephemeral: true, ..LabSpec::default() })?;
    cable(&lab)?;
    let helper = |host| -> Result<Command> {
        let mut command = lab.command(host, "/proc/self/exe")?;
        command.arg(ROLE).process_group(0);
        Ok(command)
    };
    let mut echo = helper(ECHO)?;
    echo.arg("--echo");
    let (_echo, lines) = start(echo)?;
    anyhow::ensure!(next(&lines, ui)?.as_deref() == Some("ready"), "the other host does not answer");
    // The process begins in the free one, and goes into the other one to make sockets there.
    let (gated, free) = (Group::new("overhead-gated")?, Group::new("overhead-free")?);
    let procs = File::options().write(true).open(free.directory().join("cgroup.procs"))?;
    let pins = lab.host_dir(CALLER).join("bpf");
    let mut caller = helper(CALLER)?;
    caller.arg("--pins").arg(pins.join("fence")).arg("--gated").arg(gated.directory()).arg("--free").arg(free.directory());
    caller.arg("--rounds").arg(args.rounds.to_string()).arg("--exchanges").arg(args.exchanges.to_string());
    sys::join_cgroup(&mut caller, procs);
    sys::mount_bpf(&mut caller, &pins)?;
    let (mut caller, lines) = start(caller)?;
    let mut means = [const { Mean { throughput: 0.0, p99: 0.0, n: 0.0 } }; MODES.len()];
    ui.say(ui.paint(Paint::Bold, &row("", ["median", "p99", "p99.9", "max", "throughput", "p99, paired"].map(String::from))));
    let expected = kinds().count();
    for n in 0.. {
        ui.progress(format!(
            "{} rounds of {} exchanges, {} of {expected} kinds of traffic",
            args.rounds,
            args.exchanges,
            n / MODES.len() + 1
        ));
        let Some(line) = next(&lines, ui)? else { break };
        let case: serde_json::Value = serde_json::from_str(&line).with_context(|| format!("a helper said {line:?}"))?;
        let name = case["case"].as_str().unwrap_or_default();
        let percent = |key: &str| case["values"][key].as_f64();
        let mode = MODES.iter().position(|(mode, ..)| name.starts_with("overhead ") && name.ends_with(&format!(" {mode}")));
        if let (Some(mode), Some(throughput), Some(p99)) = (mode, percent("throughput_percent"), percent("p99_percent")) {
            let mean = &mut means[mode];
            *mean = Mean { throughput: mean.throughput + throughput, p99: mean.p99 + p99, n: mean.n + 1.0 };
        }
        if ui.json {
            ui.line(&line);
            continue;
        }
        let us = |key: &str| case[key].as_f64().map_or_else(String::new, human_us);
        let signed = |key: &str| percent(key).filter(|_| mode != Some(0)).map_or_else(String::new, |p| format!("{p:+.1} %"));
        let cells = [us("p50"), us("p99"), us("p999"), us("max"), signed("throughput_percent"), signed("p99_percent")];
        ui.line(row(name.trim_start_matches("overhead "), cells));
    }
    let status = caller.0.wait()?;
    anyhow::ensure!(status.success(), "the measuring process ended with {status}");
    tell_means(args, ui, &means)
}

fn tell_means(args: &super::Args, ui: &Ui, means: &[Mean]) -> Outcome {
    let mut good = true;
    for ((name, host, group), mean) in MODES.iter().zip(means).skip(1).filter(|(_, m)| m.n > 0.0) {
        let (throughput, p99) = (mean.throughput / mean.n, mean.p99 / mean.n);
        let met = throughput >= BARS.0 && p99 <= BARS.1;
        if !host && !group {
            tell_control(ui, mean.n, throughput, p99);
            continue;
        }
        good &= met;
        if ui.json {
            let mean = serde_json::json!({
                "bench": "safetimer", "case": format!("overhead mean {name}"), "n": mean.n, "unit": "percent",
                "throughput_percent": throughput, "p99_percent": p99,
                "bar_throughput_percent": BARS.0, "bar_p99_percent": BARS.1, "met": met, "machine": report::machine(),
            });
            ui.line(mean.to_string());
        } else {
            let text = format!(
                "{name}: mean of all: throughput {throughput:+.1} % (bar {:+.0}), p99 {p99:+.1} % (bar {:+.0}): {}",
                BARS.0,
                BARS.1,
                if met { "met" } else { "missed" }
            );
            ui.line(ui.paint(if met { Paint::Green } else { Paint::Red }, &text));
        }
    }
    Ok(good || !args.check)
}

/// What a mode that is no other differs by.
fn tell_control(ui: &Ui, n: f64, throughput: f64, p99: f64) {
    if ui.json {
        let mean = serde_json::json!({
            "bench": "safetimer", "case": "overhead mean control", "n": n, "unit": "percent",
            "throughput_percent": throughput, "p99_percent": p99, "machine": report::machine(),
        });
        ui.line(mean.to_string());
    } else {
        let text = format!("control, without gates as well: mean of all: throughput {throughput:+.1} %, p99 {p99:+.1} %");
        ui.line(ui.paint(Paint::Dim, &text));
    }
}

fn row(name: &str, cells: [String; 6]) -> String {
    cells.iter().fold(format!("{name:<26}"), |line, cell| format!("{line}{cell:>12}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_between_the_cables_cancels_out() {
        let ratios: Vec<f64> = (0..40).map(|round| 0.99 * if round % 2 == 0 { 1.05 } else { 1.0 / 1.05 }).collect();
        assert!((median_of_pairs(&ratios) - 0.99).abs() < 1e-9);
    }

    #[test]
    fn each_mode_has_each_place_and_follows_each_other_as_often() {
        let modes = MODES.len();
        let cycle = modes * modes * (modes - 1);
        let mut places = vec![vec![0; modes]; modes];
        let mut after = vec![vec![0; modes]; modes];
        for n in 0..cycle {
            places[turn(n)][n % modes] += 1;
            if n % modes > 0 {
                after[turn(n)][turn(n - 1)] += 1;
            }
        }
        assert!(places.iter().flatten().all(|&n| n == modes - 1), "{places:?}");
        for (mode, row) in after.iter().enumerate() {
            assert!(row.iter().enumerate().all(|(other, &n)| n == if other == mode { 0 } else { modes - 1 }), "{after:?}");
        }
    }

    #[test]
    fn every_size_is_carried_by_both_but_the_largest_datagram() {
        let all: Vec<_> = kinds().collect();
        assert_eq!(all.len(), 2 * SIZES.len() - 1);
        assert!(all.iter().all(|(udp, size, _)| !udp || *size <= 65_507));
        let mut ports: Vec<u16> = all.iter().map(|k| k.2).collect();
        ports.dedup();
        assert_eq!(ports.len(), all.len());
    }
}
