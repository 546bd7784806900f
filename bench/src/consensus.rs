//! `fide bench consensus`: from an application's proposal to its entry, beside a UDP round trip between two real-time threads on
//! the same cables (the floor), and beside etcd on the same hosts with its files in memory, in turns within one run; how many entries a second; and how
//! long a client waits when the leading agent is killed.

use crate::Outcome;
use crate::drawing::{self, Axes, Axis};
use crate::output;
use crate::peers::cluster::{Client, Cluster};
use crate::raft_tcp;
use crate::report::{self, OfMembers, Page};
use crate::rig::{Rig, RigSpec};
use crate::stats::{Case, Samples, human_us, thousands};
use crate::sys;
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result, bail, ensure};
use fide_client::group::{Event, Group, Options, Stage};
use fide_wire::control::{GroupOrder, Reply, Request};
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
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
    /// Members of the group, one a host; several numbers are measured one after the other
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [3], value_parser = clap::value_parser!(u16).range(1..=9))]
    pub members: Vec<u16>,
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
    /// Write report.html, its drawings and results.jsonl there
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
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

/// A case that was measured, with all its samples.
struct Told {
    case: Case,
    mode: Mode,
    members: u16,
    samples: Samples,
}

/// Runs it.
///
/// # Errors
/// When something keeps a case from being measured.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    args.results.iter().try_for_each(|file| output::reserve(file))?;
    args.report.iter().try_for_each(|directory| report::prepare(directory))?;
    for (n, engine) in args.engine.iter().enumerate() {
        ensure!(!args.engine[..n].contains(engine), "--engine has {engine} twice");
        ensure!(
            ["huc", "hsuc", "lowi", "raft"].contains(&engine.as_str()),
            "no engine {engine:?} here: there are huc, hsuc, lowi and raft"
        );
    }
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let mut all = Vec::new();
    let mut sizes = args.members.clone();
    sizes.sort_unstable();
    sizes.dedup();
    for members in sizes {
        all.extend(with_members(args, members, ui)?);
    }
    let lines: String = all.iter().map(|told| told.case.json() + "\n").collect();
    if let Some(file) = &args.results {
        output::write(file, &lines)?;
    }
    if let Some(directory) = &args.report {
        write(directory, &lines, &mut all).with_context(|| format!("cannot write the report to {}", directory.display()))?;
        ui.say(format!("report: {}", directory.join("report.html").display()));
    }
    Ok(true)
}

/// All cases with one number of members.
fn with_members(args: &Args, members: u16, ui: &Ui) -> Result<Vec<Told>> {
    let heartbeat: &'static str = Box::leak(args.heartbeat.clone().into_boxed_str());
    let mut rig = Rig::up(RigSpec { hosts: members.max(2), heartbeat, ..RigSpec::default() }, ui)?;
    let size = args.size;
    let mut all = vec![Measured {
        name: "udp round trip".into(),
        host: 1,
        mode: Mode::Ping,
        group: String::new(),
        address: None,
        samples: Samples::default(),
    }];
    for engine in &args.engine {
        begin(&mut rig, engine, (args, members), ui)?;
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
        if members > 1 {
            all.push(case("follower", 2, Mode::Single));
        }
        all.push(case("leader batched", 1, Mode::Many));
        if engine == "raft" && members > 1 && !args.durable {
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
                    of.samples.extend(raft_over_tcp(&rig, (args, members))?);
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
    // The majority of two is both.
    let survives = |engine: &&String| members > if *engine == "raft" { 2 } else { 1 };
    for engine in args.engine.iter().filter(survives).filter(|_| args.kills > 0) {
        let [killed, joined] = failovers(&mut rig, (args, members), engine, address, ui)?;
        for (what, samples) in [("leading agent killed", killed), ("member joins", joined)] {
            let name = format!("{engine} {what} members={members}");
            all.push(Measured { name, host: 0, mode: Mode::Stream, group: engine.clone(), address: None, samples });
        }
    }
    Ok(tell(args, members, all, ui))
}

/// From `kill -9` of the leading agent to the entry of the first value that a client on another
/// host proposed after it; and, as the restarted one joins, how long that client waited longest.
fn failovers(rig: &mut Rig, (args, members): (&Args, u16), engine: &str, address: SocketAddr, ui: &Ui) -> Result<[Samples; 2]> {
    let [mut killed, mut joined] = [Samples::default(), Samples::default()];
    for kill in 1..=args.kills {
        ui.progress(format!("{engine}: kill {kill} of {}", args.kills));
        let leader = settle(rig, engine, members, ui)?;
        let client = if leader == 1 { 2 } else { 1 };
        let mut command = helper(rig, args, client, Mode::Stream, engine, address)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a helper")?;
        let stdout = child.stdout.take().map(io::BufReader::new).context("a helper without a pipe")?;
        let (sender, lines) = std::sync::mpsc::channel();
        // It is read whatever this one waits for, so that the client never waits.
        let reader =
            std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)).is_ok());
        let measured = (|| {
            let next = || lines.recv_timeout(Duration::from_secs(15)).context("a client went silent");
            ensure!(next()? == "ready", "a client on h{client} did not become ready");
            // In the middle of what it does, not always at the same place of a heartbeat.
            std::thread::sleep(Duration::from_micros(20_000 + u64::from(kill) * 7_919 % 5_000));
            let killed_ns = rig.kill_agent(leader)?;
            let first = loop {
                let (begun_ns, decided_ns) = exchange(&next()?)?;
                if begun_ns >= killed_ns {
                    break decided_ns - killed_ns;
                }
            };
            let restarted_ns = sys::now_ns();
            rig.start_agent(leader)?;
            rig.wait_until_all_see_all(ui)?;
            settle(rig, engine, members, ui)?;
            drop(child.stdin.take());
            let mut longest = 0;
            for line in &lines {
                let (begun_ns, decided_ns) = exchange(&line)?;
                longest = longest.max(if decided_ns >= restarted_ns { decided_ns - begun_ns } else { 0 });
            }
            ensure!(longest > 0, "nothing was decided while the agent of h{leader} joined");
            Ok((first, longest))
        })();
        let _ = child.kill();
        let _ = child.wait();
        let _ = reader.join();
        let (first, longest) = measured?;
        killed.push(first);
        joined.push(longest);
    }
    Ok([killed, joined])
}

/// When a value was proposed, and when its entry came.
fn exchange(line: &str) -> Result<(u64, u64)> {
    let (begun, decided) = line.split_once(' ').context("a helper recorded nonsense")?;
    Ok((begun.parse()?, decided.parse()?))
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

fn begin(rig: &mut Rig, engine: &str, (args, members): (&Args, u16), ui: &Ui) -> Result<()> {
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
fn raft_over_tcp(rig: &Rig, (args, members): (&Args, u16)) -> Result<Vec<u64>> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("client");
    let servers: Vec<String> =
        (1..=members).map(|host| SocketAddr::from((rig.lab().ipv4(host, 0), RAFT_PORT)).to_string()).collect();
    let mut children = Vec::new();
    let measured = (|| {
        for host in 1..=members {
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

fn tell(args: &Args, members: u16, mut all: Vec<Measured>, ui: &Ui) -> Vec<Told> {
    let floor = all[0].samples.quantiles().p50;
    let told = all.into_iter().map(|of| {
        let Measured { name, mode, mut samples, .. } = of;
        let mut case = Case::new("consensus", &name, &mut samples);
        let values = u64::from(args.values) * 20;
        if is_batched(mode) {
            let per_second = |us: f64| (values as f64 / (us / 1e6).max(1e-9)).round();
            let q = case.quantiles;
            for (name, us) in [("per_second", q.p50), ("per_second_min", q.max), ("per_second_max", q.min)] {
                case.values.insert(name.into(), per_second(us));
            }
            case.values.insert("outstanding".into(), OUTSTANDING as f64);
            case.notes.push(format!("a sample is the time of {values} values; per_second is of the median round"));
            let per_second = case.values["per_second"] as u64;
            ui.say(format!("{name:<34} {:>10} entries a second", ui.paint(Paint::Bold, &thousands(per_second))));
        } else {
            case.values.insert("to_floor".into(), (case.quantiles.p50 / floor.max(0.01) * 100.0).round() / 100.0);
            if name.contains("killed") {
                case.notes.push("from kill -9 to the entry of the first value that a client elsewhere proposed after it".into());
            } else if name.contains("joins") {
                case.notes.push(
                    "how long a client elsewhere waited longest for an entry while a restarted agent came to be a member".into(),
                );
            }
            let q = case.quantiles;
            ui.say(format!(
                "{name:<34} p50 {:>8}  p99 {:>8}  p99.9 {:>8}  max {:>8}   {:.2} × the floor",
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
        Told { case, mode, members, samples }
    });
    told.collect()
}

/// Whose line a case is in a drawing by members.
fn line_of(told: &Told, what: &str) -> Option<String> {
    let (line, rest) = told.case.case.split_once(what)?;
    (rest.starts_with(' ') && rest.split(' ').count() == 3).then(|| line.trim().into())
}

fn write(directory: &Path, lines: &str, all: &mut [Told]) -> Result<()> {
    output::write(&directory.join("results.jsonl"), lines)?;
    output::remove_drawings(directory)?;
    let mut page = Page::new(
        "fide bench consensus",
        "From an application's proposal to its entry, beside a UDP round trip between two real-time threads on the same cables \
         (the floor), etcd on the same hosts, and the same Raft library over TCP; X-Lane Fig. 8 and Nano-consensus Tab. 3, \
         as far as one machine goes.",
    );
    page.medians(
        "proposal to entry, at the leader",
        all.iter().filter(|told| line_of(told, " leader").is_some()).map(|told| &told.case),
    );
    page.heading("All cases");
    let row = |told: &Told| {
        let (case, q) = (&told.case, told.case.quantiles);
        // The time of a round of many values is nobody's wait.
        let time = |us| if is_batched(told.mode) { String::new() } else { human_us(us) };
        let times = [q.p50, q.p99, q.p999, q.max].map(time);
        let rate = case.values.get("per_second").map_or_else(String::new, |rate| thousands(*rate as u64));
        let floor = case.values.get("to_floor").map_or_else(String::new, |floor| format!("{floor:.2}"));
        [case.case.clone(), case.n.to_string()].into_iter().chain(times).chain([floor, rate]).collect::<Vec<String>>()
    };
    let headers = ["case", ">n", ">median", ">p99", ">p99.9", ">max", ">× the floor", ">entries a second"];
    page.table(&headers, &all.iter().map(row).collect::<Vec<_>>());
    let point = |line: String, told: &Told, [least, median, most]: [f64; 3]| OfMembers {
        line,
        members: told.members,
        median,
        least,
        most,
    };
    let times = |what: &'static str| {
        let of = |told: &Told| {
            let q = told.case.quantiles;
            let floor = (told.mode == Mode::Ping).then(|| told.case.case.clone());
            Some(point(floor.or_else(|| line_of(told, what))?, told, [q.min, q.p50, q.p99]))
        };
        all.iter().filter_map(of).collect::<Vec<_>>()
    };
    let events = |what: &str| {
        let of = |told: &Told| {
            let q = told.case.quantiles;
            let line = told.case.case.split_once(what)?.0.trim().to_owned();
            Some(point(line, told, [q.min, q.p50, q.max]))
        };
        all.iter().filter_map(of).collect::<Vec<_>>()
    };
    let rates = |told: &Told| {
        let value = |name: &str| told.case.values.get(name).copied();
        let range = [value("per_second_min")?, value("per_second")?, value("per_second_max")?];
        Some(point(line_of(told, " leader batched")?, told, range))
    };
    page.heading("By members");
    page.remark(
        "dim",
        "Points are medians. Bars of exchanges go from the least to the 99th percentile, all others from the least to the most.",
    );
    let figures = [
        ("leader", "Proposal to entry at the leader, one client", Axis::times("time"), times(" leader")),
        ("follower", "Proposal to entry at a follower, one client", Axis::times("time"), times(" follower")),
        (
            "throughput",
            "Entries a second, many proposals at once",
            Axis::numbers("entries a second").log(),
            all.iter().filter_map(rates).collect(),
        ),
        ("killed", "kill -9 of the leading agent to the next entry", Axis::times("time"), events(" leading agent killed")),
        ("joins", "The longest wait for an entry while a member joins", Axis::times("time"), events(" member joins")),
    ];
    let mut lines: Vec<String> = Vec::new();
    for point in figures.iter().flat_map(|(.., points)| points) {
        if !lines.contains(&point.line) {
            lines.push(point.line.clone());
        }
    }
    for (file, title, y, points) in figures.iter().filter(|(.., points)| !points.is_empty()) {
        page.by_members(&directory.join(format!("{file}.svg")), (title, "members", *y), &lines, points)?;
    }
    let mut sizes: Vec<u16> = all.iter().map(|told| told.members).collect();
    sizes.dedup();
    for members in sizes {
        let of = all.iter_mut().filter(|told| told.members == members && !is_batched(told.mode) && told.mode != Mode::Stream);
        let series: Vec<_> = of.map(|told| drawing::cdf(&told.case.case, told.samples.sorted())).collect();
        let title = format!("Distribution, {members} members");
        let axes = Axes { title: &title, x: Axis::times("time"), y: Axis::numbers("part of all exchanges") };
        page.chart(&directory.join(format!("distribution-{members}.svg")), &axes, &series)?;
    }
    output::write(&directory.join("report.html"), &page.finish())
}
