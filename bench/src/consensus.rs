//! `fide bench consensus`: from an application's proposal to its entry, beside a UDP round trip between two real-time threads on
//! the same cables (the floor), and beside etcd on the same hosts with its files in memory, in turns within one run; how many entries a second; and how
//! long a client waits when the leading agent is killed.

use crate::Outcome;
use crate::output;
use crate::peers::cluster::{Client, Cluster};
use crate::raft_tcp;
use crate::report;
use crate::rig::{Rig, RigSpec};
use crate::stats::{Case, Samples, human_us, thousands};
use crate::sys;
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result, bail, ensure};
use fide_client::group::{Event, Group, Options, Stage};
use fide_wire::control::{GroupOrder, Reply, Request};
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The hidden subcommand.
pub const ROLE: &str = "bench-group";

/// Where the floor is measured.
const PORT: u16 = 9_800;
/// Where servers of Raft over TCP listen.
const RAFT_PORT: u16 = 9_801;
/// Bytes of entries from one snapshot to the next: agents keep 2 MiB, and take no more without one.
const KEEP_BYTES: u64 = 256 << 10;
/// Proposals that wait at once, where throughput is measured.
const OUTSTANDING: usize = 512;

/// Arguments of `fide bench consensus`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Members of the group, one a host
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub members: u16,
    /// How it decides
    #[arg(long, value_delimiter = ',', default_values = ["huc", "hsuc", "lowi", "raft"])]
    pub engine: Vec<String>,
    /// Without etcd, which is measured beside it where it is installed
    #[arg(long)]
    pub no_etcd: bool,
    /// Bytes of a value
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub size: u32,
    /// Rounds: each measures every case once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Values of each case in each round
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub values: u32,
    /// Groups whose log is on disk: an entry is told of when the host's disk has it
    #[arg(long)]
    pub durable: bool,
    /// HB, as in the configuration
    #[arg(long, default_value = "1ms")]
    pub heartbeat: String,
    /// Leading agents that are killed, one after the other; 0: none
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub kills: u32,
    /// Write the results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
}

/// What a helper does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Answer UDP packets
    Pong,
    /// Send one, wait for the answer, and so on
    Ping,
    /// Propose one value, wait for its entry, and so on
    Single,
    /// Keep many values waiting
    Many,
    /// Put one value into etcd, wait for the answer, and so on
    EtcdSingle,
    /// Keep many of them waiting
    EtcdMany,
    /// Propose one value after the other until standard input ends
    Stream,
    /// Serve Raft over TCP until standard input ends
    RaftServer,
    /// Propose one value to that, wait until it is decided, and so on
    RaftSingle,
}

/// Arguments of the helper.
#[derive(Clone, Debug, clap::Args)]
pub struct HelperArgs {
    /// What to do
    #[arg(long)]
    pub mode: Mode,
    /// The agent's socket
    #[arg(long)]
    pub agent: Option<PathBuf>,
    /// The group
    #[arg(long, default_value = "")]
    pub group: String,
    /// Where to answer, or to send to
    #[arg(long)]
    pub address: Option<SocketAddr>,
    /// All servers, the one that leads first
    #[arg(long, value_delimiter = ',')]
    pub servers: Vec<SocketAddr>,
    /// Which of them this one is, from 0
    #[arg(long, default_value_t = 0)]
    pub place: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 64)]
    pub size: usize,
    /// How many
    #[arg(long, default_value_t = 1_000)]
    pub values: u32,
}

// ---- in the helper process -----------------------------------------------------------------------------------------------------

/// Does it: prints the time of each exchange (ns), one a line, or how long all took.
///
/// # Errors
/// When the group or the socket cannot be had.
pub fn help(args: &HelperArgs) -> Result<()> {
    let _ = sys::be_realtime(sys::STAMPER_PRIORITY);
    let mut times = Vec::with_capacity(args.values as usize);
    match args.mode {
        Mode::Stream => return stream(args),
        Mode::RaftServer => {
            return raft_tcp::serve(args.place, &args.servers, args.agent.as_deref().context("--agent is missing")?);
        }
        Mode::RaftSingle => {
            let socket = args.agent.as_deref().context("--agent is missing")?;
            times = raft_tcp::single(socket, args.size, args.values, pause)?;
        }
        Mode::Pong => {
            std::thread::spawn(|| {
                // Whatever ends it, it is over.
                let _ = io::stdin().lock().read_to_end(&mut Vec::new());
                std::process::exit(0);
            });
            let socket = UdpSocket::bind(args.address.context("--address is missing")?)?;
            println!("ready");
            io::stdout().flush()?;
            let mut packet = vec![0; 1 << 16];
            loop {
                let (length, from) = socket.recv_from(&mut packet)?;
                socket.send_to(&packet[..length], from)?;
            }
        }
        Mode::Ping => {
            let socket = UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(args.address.context("--address is missing")?)?;
            socket.set_read_timeout(Some(Duration::from_secs(1)))?;
            let mut packet = vec![7; args.size.min(1_400)];
            for _ in 0..args.values {
                let begun = sys::now_ns();
                socket.send(&packet)?;
                socket.recv(&mut packet).context("no answer within a second")?;
                times.push(sys::now_ns() - begun);
                pause();
            }
        }
        Mode::Single => {
            let mut group = open(args)?;
            let value = vec![7; args.size];
            for _ in 0..args.values {
                let begun = sys::now_ns();
                let number = group.propose(&value)?;
                decided(&mut group, number)?;
                times.push(sys::now_ns() - begun);
                pause();
            }
        }
        Mode::EtcdSingle => {
            let mut etcd = Client::open(args.address.context("--address is missing")?, args.size)?;
            for _ in 0..args.values {
                let begun = sys::now_ns();
                etcd.put(0)?;
                times.push(sys::now_ns() - begun);
                pause();
            }
        }
        Mode::EtcdMany => {
            let mut etcd = Client::open(args.address.context("--address is missing")?, args.size)?;
            etcd.put(0)?;
            let begun = sys::now_ns();
            for _ in 0..args.values {
                etcd.put(OUTSTANDING - 1)?;
            }
            etcd.finish()?;
            times.push(sys::now_ns() - begun);
        }
        Mode::Many => {
            let mut group = open(args)?;
            let value = vec![7; args.size];
            let values = vec![value.as_slice(); OUTSTANDING];
            let begun = sys::now_ns();
            let (mut left, mut last) = (args.values as usize, 0);
            while left > 0 {
                // As many as there is room for once all that has come is read.
                while group.pending() >= OUTSTANDING {
                    next(&mut group)?;
                }
                while let Some(event) = group.poll(Some(Duration::ZERO))? {
                    read(&mut group, &event)?;
                }
                let room = (OUTSTANDING - group.pending()).min(left);
                last = group.propose_all(&values[..room])? + room as u64 - 1;
                left -= room;
            }
            decided(&mut group, last)?;
            times.push(sys::now_ns() - begun);
        }
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    for ns in times {
        writeln!(out, "{ns}")?;
    }
    Ok(out.flush()?)
}

/// Prints of each value when it was proposed and when its entry came, once that has.
fn stream(args: &HelperArgs) -> Result<()> {
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let at_end = std::sync::Arc::clone(&over);
    std::thread::spawn(move || {
        // Whatever ends it, it is over.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        at_end.store(true, std::sync::atomic::Ordering::Release);
    });
    let mut group = open(args)?;
    println!("ready");
    io::stdout().flush()?;
    let value = vec![7; args.size];
    while !over.load(std::sync::atomic::Ordering::Acquire) {
        let begun = sys::now_ns();
        let number = group.propose(&value)?;
        decided(&mut group, number)?;
        println!("{begun} {}", sys::now_ns());
        sys::sleep_until(sys::now_ns() + 200_000);
    }
    Ok(())
}

/// Between two exchanges, so that each finds everything at rest: not a whole number of heartbeats.
fn pause() {
    sys::sleep_until(sys::now_ns() + 1_370_000);
}

fn open(args: &HelperArgs) -> Result<Group> {
    // The entries that are there already are read before anything is measured.
    let mut group = Group::open_with(&args.group, Options { path: args.agent.clone(), ..Options::default() })?;
    loop {
        match group.poll(Some(Duration::from_millis(200)))? {
            None if group.standing().is_some_and(|standing| standing.stage == Stage::Running) => return Ok(group),
            _ => {}
        }
    }
}

fn next(group: &mut Group) -> Result<Option<Event>> {
    let event = group.poll(Some(Duration::from_secs(10)))?;
    if let Some(event) = &event {
        read(group, event)?;
    }
    ensure!(event.is_some(), "nothing was decided for 10 s: {:?}", group.standing());
    Ok(event)
}

/// As an application does whose state is small.
fn read(group: &mut Group, event: &Event) -> Result<()> {
    if let Event::Entry(entry) = event
        && entry.index % (KEEP_BYTES / (entry.bytes.len() as u64 + 64)).max(1) == 0
    {
        group.keep_snapshot(entry.index, &entry.index.to_le_bytes())?;
    }
    Ok(())
}

fn decided(group: &mut Group, number: u64) -> Result<()> {
    loop {
        if let Some(Event::Entry(entry)) = next(group)?
            && entry.is_own(number, group.client())
        {
            return Ok(());
        }
    }
}

// ---- in the parent -------------------------------------------------------------------------------------------------------------

/// A case, and what was measured of it so far.
struct Measured {
    name: String,
    host: u16,
    mode: Mode,
    group: String,
    /// Whom a helper without a group talks to.
    address: Option<SocketAddr>,
    samples: Samples,
}

/// Runs it.
///
/// # Errors
/// When something keeps a case from being measured.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    args.results.iter().try_for_each(|file| output::reserve(file))?;
    for engine in &args.engine {
        ensure!(
            ["huc", "hsuc", "lowi", "raft"].contains(&engine.as_str()),
            "no engine {engine:?} here: there are huc, hsuc, lowi and raft"
        );
    }
    let heartbeat: &'static str = Box::leak(args.heartbeat.clone().into_boxed_str());
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let hosts = args.members.max(2);
    let mut rig = Rig::up(RigSpec { hosts, heartbeat, ..RigSpec::default() }, ui)?;
    let (size, members) = (args.size, args.members);
    let mut all = vec![Measured {
        name: "udp round trip".into(),
        host: 1,
        mode: Mode::Ping,
        group: String::new(),
        address: None,
        samples: Samples::default(),
    }];
    for engine in &args.engine {
        begin(&mut rig, engine, args, ui)?;
        let durable = if args.durable { " durable" } else { "" };
        let case = |what: &str, host, mode| Measured {
            name: format!("{engine}{durable} {what} {size}B members={members}"),
            host,
            mode,
            group: engine.clone(),
            address: None,
            samples: Samples::default(),
        };
        all.push(case("leader", 1, Mode::Single));
        if args.members > 1 {
            all.push(case("follower", 2, Mode::Single));
        }
        all.push(case("leader batched", 1, Mode::Many));
        if engine == "raft" && args.members > 1 && !args.durable {
            all.push(Measured {
                name: format!("raft over TCP leader {size}B members={members}"),
                ..case("", 1, Mode::RaftSingle)
            });
        }
    }
    let etcd = if args.no_etcd { None } else { Some(Cluster::start(&rig, members, ui)) };
    match &etcd {
        None => {}
        Some(Err(e)) => {
            ui.check()?;
            ui.say(ui.paint(Paint::Cyan, &format!("{e:#}")));
        }
        Some(Ok(etcd)) => {
            ui.say(ui.paint(
                Paint::Dim,
                &format!("etcd {} as it comes, {members} members, its files in memory, by gRPC", etcd.version),
            ));
            let mut case = |what: &str, (host, address), mode| {
                all.push(Measured {
                    name: format!("etcd {what} {size}B members={members}"),
                    host,
                    mode,
                    group: String::new(),
                    address: Some(address),
                    samples: Samples::default(),
                });
            };
            case("leader", etcd.leader, Mode::EtcdSingle);
            if let Some(follower) = etcd.follower {
                case("follower", follower, Mode::EtcdSingle);
            }
            case("leader batched", etcd.leader, Mode::EtcdMany);
        }
    }
    let address = SocketAddr::from((rig.lab().ipv4(2, 0), PORT));
    let mut pong = helper(&rig, args, 2, Mode::Pong, "", address)?;
    let mut pong = pong.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a helper")?;
    let mut line = String::new();
    if let Some(stdout) = pong.stdout.take() {
        io::BufReader::new(stdout).read_line(&mut line)?;
    }
    let measured = (|| {
        ensure!(line == "ready\n", "what answers UDP packets on h2 did not become ready");
        for round in 1..=args.rounds {
            for of in &mut all {
                ui.check()?;
                ui.progress(format!("round {round} of {}: {}", args.rounds, of.name));
                if of.mode == Mode::RaftSingle {
                    of.samples.extend(raft_over_tcp(&rig, args)?);
                    continue;
                }
                let address = of.address.unwrap_or(address);
                let out = helper(&rig, args, of.host, of.mode, &of.group, address)?.output().context("cannot run a helper")?;
                if !out.status.success() {
                    bail!("{}: {}", of.name, String::from_utf8_lossy(&out.stderr).trim());
                }
                let text = String::from_utf8_lossy(&out.stdout).into_owned();
                let times: Result<Vec<u64>, _> = text.lines().map(str::parse).collect();
                of.samples.extend(times.context("a helper recorded nonsense")?);
            }
        }
        Ok(())
    })();
    let _ = pong.kill();
    let _ = pong.wait();
    measured?;
    drop(etcd);
    for engine in args.engine.iter().filter(|_| args.members > 1 && args.kills > 0) {
        let samples = failovers(&mut rig, args, engine, address, ui)?;
        let name = format!("{engine} leading agent killed members={members}");
        all.push(Measured { name, host: 0, mode: Mode::Stream, group: engine.clone(), address: None, samples });
    }
    tell(args, &mut all, ui)
}

/// From `kill -9` of the leading agent to the entry of the first value that a client on another host proposed after it.
fn failovers(rig: &mut Rig, args: &Args, engine: &str, address: SocketAddr, ui: &Ui) -> Result<Samples> {
    let mut samples = Samples::default();
    for kill in 1..=args.kills {
        ui.progress(format!("{engine}: kill {kill} of {}", args.kills));
        let leader = settle(rig, engine, args.members, ui)?;
        let client = if leader == 1 { 2 } else { 1 };
        let mut command = helper(rig, args, client, Mode::Stream, engine, address)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a helper")?;
        let mut lines = child.stdout.take().map(io::BufReader::new).context("a helper without a pipe")?.lines();
        let measured = (|| -> Result<u64> {
            ensure!(lines.next().transpose()?.as_deref() == Some("ready"), "a client on h{client} did not become ready");
            // In the middle of what it does, not always at the same place of a heartbeat.
            std::thread::sleep(Duration::from_micros(20_000 + u64::from(kill) * 7_919 % 5_000));
            let killed_ns = rig.kill_agent(leader)?;
            for line in lines.by_ref() {
                let line = line?;
                let (begun, decided) = line.split_once(' ').context("a helper recorded nonsense")?;
                if begun.parse::<u64>()? >= killed_ns {
                    return Ok(decided.parse::<u64>()? - killed_ns);
                }
            }
            bail!("nothing was decided behind the crash of the agent of h{leader}");
        })();
        drop(child.stdin.take());
        let _ = child.kill();
        let _ = child.wait();
        samples.push(measured?);
        rig.start_agent(leader)?;
        rig.wait_until_all_see_all(ui)?;
    }
    Ok(samples)
}

/// Until the group runs on all hosts, all of them members: which host leads.
fn settle(rig: &mut Rig, engine: &str, members: u16, ui: &Ui) -> Result<u16> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        ui.check()?;
        let mut leaders = Vec::new();
        for host in 1..=members {
            let Reply::Groups { groups } = rig.ask(host, &Request::Group { order: GroupOrder::Status })? else {
                bail!("the agent of h{host} did not answer with groups");
            };
            let whole = |group: &&fide_wire::control::GroupStatus| {
                let alive = group.members.iter().filter(|member| !member.crashed).count();
                group.name == engine && group.stage == Stage::Running && alive == usize::from(members)
            };
            let leads = groups.iter().find(whole).and_then(|group| {
                let leader = group.members.iter().find(|member| Some(member.id) == group.leader)?;
                leader.host.trim_start_matches('h').parse::<u16>().ok()
            });
            leaders.extend(leads);
        }
        if leaders.len() == usize::from(members) && leaders.iter().all(|leader| *leader == leaders[0]) {
            return Ok(leaders[0]);
        }
        ensure!(Instant::now() < until, "{engine} did not come together again");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn begin(rig: &mut Rig, engine: &str, args: &Args, ui: &Ui) -> Result<()> {
    let members = args.members;
    let hosts: Vec<String> = (1..=members).map(|host| format!("h{host}")).collect();
    let order = GroupOrder::Create {
        name: engine.into(),
        engine: engine.into(),
        policy: "trust-contract".into(),
        hosts: hosts.clone(),
        durable: args.durable,
        fresh: false,
    };
    rig.ask(1, &Request::Group { order })?;
    let until = Instant::now() + Duration::from_secs(10);
    for host in 1..=members {
        loop {
            ui.check()?;
            let Reply::Groups { groups } = rig.ask(host, &Request::Group { order: GroupOrder::Status })? else {
                bail!("the agent of h{host} did not answer with groups");
            };
            let stage = groups.iter().find(|group| group.name == engine).map(|group| group.stage);
            if stage == Some(Stage::Running) {
                break;
            }
            ensure!(Instant::now() < until, "{engine} does not run on h{host}: {groups:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

/// The same library over TCP, on the same hosts and cables: servers that begin for this, and a
/// client of the one that leads.
fn raft_over_tcp(rig: &Rig, args: &Args) -> Result<Vec<u64>> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("client");
    let servers: Vec<String> =
        (1..=args.members).map(|host| SocketAddr::from((rig.lab().ipv4(host, 0), RAFT_PORT)).to_string()).collect();
    let mut children = Vec::new();
    let measured = (|| {
        for host in 1..=args.members {
            let mut command = rig.helper(host, ROLE)?;
            command.args(["--mode", "raft-server", "--place", &(host - 1).to_string(), "--agent"]).arg(&socket);
            command.args(["--servers", &servers.join(",")]).stdin(Stdio::piped()).stdout(Stdio::piped());
            children.push(command.spawn().context("cannot start a helper")?);
        }
        let mut line = String::new();
        if let Some(stdout) = children.first_mut().and_then(|child| child.stdout.take()) {
            io::BufReader::new(stdout).read_line(&mut line)?;
        }
        ensure!(line == "ready\n", "no server of Raft over TCP came to lead");
        let mut command = rig.helper(1, ROLE)?;
        command.args(["--mode", "raft-single", "--agent"]).arg(&socket).arg("--size").arg(args.size.to_string());
        let out =
            command.arg("--values").arg(args.values.to_string()).stdin(Stdio::null()).output().context("cannot run a helper")?;
        ensure!(out.status.success(), "Raft over TCP: {}", String::from_utf8_lossy(&out.stderr).trim());
        let times: Result<Vec<u64>, _> = String::from_utf8_lossy(&out.stdout).lines().map(str::parse).collect();
        times.context("a helper recorded nonsense")
    })();
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
    measured
}

fn helper(rig: &Rig, args: &Args, host: u16, mode: Mode, group: &str, address: SocketAddr) -> Result<std::process::Command> {
    use clap::ValueEnum as _;
    let mut command = rig.helper(host, ROLE)?;
    let name = mode.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default();
    let values = if is_batched(mode) { args.values.saturating_mul(20) } else { args.values };
    command.arg("--mode").arg(name).arg("--agent").arg(rig.socket(host)).arg("--group").arg(group);
    command.arg("--address").arg(address.to_string()).arg("--size").arg(args.size.to_string());
    command.arg("--values").arg(values.to_string()).stdin(Stdio::null());
    Ok(command)
}

fn is_batched(mode: Mode) -> bool {
    matches!(mode, Mode::Many | Mode::EtcdMany)
}

fn tell(args: &Args, all: &mut [Measured], ui: &Ui) -> Outcome {
    let mut lines = String::new();
    let floor = all[0].samples.quantiles().p50;
    for of in all.iter_mut() {
        let mut case = Case::new("consensus", &of.name, &mut of.samples);
        let values = u64::from(args.values) * 20;
        if is_batched(of.mode) {
            let median_s = case.quantiles.p50 / 1e6;
            case.values.insert("per_second".into(), (values as f64 / median_s.max(1e-9)).round());
            case.values.insert("outstanding".into(), OUTSTANDING as f64);
            case.notes.push(format!("a sample is the time of {values} values; per_second is of the median round"));
            let per_second = case.values["per_second"] as u64;
            ui.say(format!("{:<34} {:>10} entries a second", of.name, ui.paint(Paint::Bold, &thousands(per_second))));
        } else {
            case.values.insert("to_floor".into(), (case.quantiles.p50 / floor.max(0.01) * 100.0).round() / 100.0);
            if of.mode == Mode::Stream {
                case.notes.push("from kill -9 to the entry of the first value that a client elsewhere proposed after it".into());
            }
            let q = case.quantiles;
            ui.say(format!(
                "{:<34} p50 {:>8}  p99 {:>8}  p99.9 {:>8}  max {:>8}   {:.2} × the floor",
                of.name,
                human_us(q.p50),
                human_us(q.p99),
                human_us(q.p999),
                human_us(q.max),
                q.p50 / floor.max(0.01)
            ));
        }
        if ui.json {
            ui.line(case.json());
        }
        lines.push_str(&case.json());
        lines.push('\n');
    }
    if let Some(file) = &args.results {
        output::write(file, &lines)?;
    }
    Ok(true)
}
