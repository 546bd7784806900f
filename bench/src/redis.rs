//! `fide bench redis`: SETs, or GETs and SETs, of clients against real Redis servers, in turns within one run: one server alone, asynchronous replication to the others, the
//! same with `WAIT` after each write, and a group of the same size with the module of api/redis. Then how long a client waits when the leading server is
//! killed.

use crate::Outcome;
use crate::drawing::Axis;
use crate::failover::unavailable;
use crate::output;
use crate::report::{self, OfMembers, Page};
use crate::rig::{Rig, RigSpec, find_program};
use crate::stats::{Case, Samples, human_us, thousands};
use crate::sys;
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result, bail, ensure};
use fide_wire::control::{GroupOrder, Request};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The hidden subcommand.
pub const ROLE: &str = "bench-redis";

const ALONE: u16 = 6401;

/// Servers with asynchronous replication, so many of them.
const fn asynchronous(replicas: u16) -> u16 {
    6410 + replicas
}

/// Servers of a group, so many of them.
const fn of_group(replicas: u16) -> u16 {
    6420 + replicas
}

/// What takes longer does not come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of `fide bench redis`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Servers that hold the data, one a host; several numbers are measured beside each other
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [2, 3], value_parser = clap::value_parser!(u16).range(2..=9))]
    pub replicas: Vec<u16>,
    /// How the group decides
    #[arg(long, default_value = "huc")]
    pub engine: String,
    /// Bytes of a value
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub size: u32,
    /// Clients, where throughput is measured
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub clients: u32,
    /// Of a hundred commands, so many are GETs, of 10,000 keys
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub reads: u32,
    /// What the group's leader waits for before it answers a read: with `lease`, only for writes that the answer shows
    #[arg(long, value_name = "lease|entry", default_value = "lease", value_parser = ["lease", "entry"])]
    pub reads_by: String,
    /// Rounds: each measures every case once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Requests of each case in each round; a twentieth of them with one client
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    pub requests: u32,
    /// Leading servers that are killed, one after the other; 0: none
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub kills: u32,
    /// Data that the group's servers hold when the leading one is killed, MiB
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub data: u32,
    /// Measure only cases with this in their name; those that kill have "killed" in theirs
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub only: String,
    /// The module; by default beside this program
    #[arg(long, value_name = "FILE")]
    pub module: Option<PathBuf>,
    /// Write the results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Write report.html, its drawings and results.jsonl there
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

impl Args {
    /// Where nothing is read, the module decides.
    fn reads_by(&self) -> Option<&String> {
        Some(&self.reads_by).filter(|_| self.reads > 0)
    }
}

/// Arguments of the helper.
#[derive(Clone, Debug, clap::Args)]
pub struct HelperArgs {
    /// The server; several with --follow
    #[arg(long, value_delimiter = ',')]
    pub address: Vec<SocketAddr>,
    /// Writes go to whichever server takes them, until standard input ends
    #[arg(long)]
    pub follow: bool,
    /// Connections, each with one request under way
    #[arg(long, default_value_t = 1)]
    pub clients: usize,
    /// Writes in one request
    #[arg(long, default_value_t = 1)]
    pub pipeline: usize,
    /// Each write is followed by WAIT for so many replicas
    #[arg(long, default_value_t = 0)]
    pub wait: u16,
    /// Bytes of a value
    #[arg(long, default_value_t = 64)]
    pub size: usize,
    /// Of a hundred commands, so many are GETs
    #[arg(long, default_value_t = 0)]
    pub reads: u32,
    /// Writes, all clients together
    #[arg(long, default_value_t = 1_000)]
    pub requests: usize,
}

// ---- in the helper process ----------------------------------------------------------------------------------------------

fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Prints the time of each request (ns), one a line, and behind them how long all took.
///
/// # Errors
/// When a server is not there, or answers with an error.
pub fn help(args: &HelperArgs) -> Result<()> {
    if args.follow {
        return follow(args);
    }
    let address = *args.address.first().context("--address is missing")?;
    let mut connections = Vec::new();
    for _ in 0..args.clients {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        connections.push(Asking { stream, missing: 0, asked_ns: 0 });
    }
    let mut commands = Commands { args, value: vec![b'v'; args.size], random: 0x9e37_79b9_7f4a_7c15 };
    if args.reads > 0 {
        commands.fill(&mut TcpStream::connect(address)?)?;
    }
    // The first request is not measured: a WAIT may take a second then (replicas report by
    // themselves once a second), which is nothing that later ones see.
    if let Some(Asking { stream, .. }) = connections.first_mut() {
        stream.set_read_timeout(Some(PATIENCE))?;
        let (bytes, lines) = commands.request(0);
        stream.write_all(&bytes)?;
        let mut told = BufReader::new(&*stream).lines();
        for _ in 0..lines {
            told.next().context("the server hung up")??;
        }
    }
    connections.iter().try_for_each(|asking| asking.stream.set_nonblocking(true))?;
    let mut left = args.requests / args.pipeline;
    let mut times = Vec::with_capacity(left);
    let begun = sys::now_ns();
    let mut busy = 0;
    for (at, connection) in connections.iter_mut().enumerate() {
        if left > 0 {
            (left, busy) = (left - 1, busy + 1);
            connection.send(&commands.request(at))?;
        }
    }
    let mut buffer = vec![0; 1 << 16];
    while busy > 0 {
        for at in ready(&connections)? {
            let connection = &mut connections[at];
            match connection.stream.read(&mut buffer) {
                Ok(0) => bail!("the server hung up"),
                Ok(len) => {
                    let text = &buffer[..len];
                    ensure!(text[0] != b'-' && !text.windows(2).any(|two| two == b"\n-"), "{}", String::from_utf8_lossy(text));
                    let lines = text.iter().filter(|byte| **byte == b'\n').count();
                    connection.missing = connection.missing.saturating_sub(lines);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e.into()),
            }
            if connection.missing == 0 {
                times.push(sys::now_ns() - connection.asked_ns);
                busy -= 1;
                if left > 0 {
                    (left, busy) = (left - 1, busy + 1);
                    connection.send(&commands.request(at))?;
                }
            }
        }
    }
    let all = sys::now_ns() - begun;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for ns in times {
        writeln!(out, "{ns}")?;
    }
    writeln!(out, "{all}")?;
    Ok(out.flush()?)
}

/// Keys, where some commands are GETs.
const KEYS: u64 = 10_000;

/// What clients ask.
struct Commands<'a> {
    args: &'a HelperArgs,
    value: Vec<u8>,
    random: u64,
}

impl Commands<'_> {
    fn random(&mut self, below: u64) -> u64 {
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// All keys are there.
    fn fill(&self, server: &mut TcpStream) -> Result<()> {
        let mut all = Vec::new();
        for n in 0..KEYS {
            command(&mut all, &[b"SET", format!("key:{n}").as_bytes(), &self.value]);
        }
        let (mut written, mut answers) = (server.try_clone()?, BufReader::new(server).lines());
        std::thread::scope(|scope| -> Result<()> {
            let writes = scope.spawn(move || written.write_all(&all));
            for _ in 0..KEYS {
                let answer = answers.next().context("the server hung up")??;
                ensure!(answer == "+OK", "{answer}");
            }
            Ok(writes.join().map_err(|_| anyhow::anyhow!("no keys are written"))??)
        })
    }

    /// The next ones of a client, and how many lines answer them.
    fn request(&mut self, client: usize) -> (Vec<u8>, usize) {
        let (mut out, mut lines) = (Vec::new(), 0);
        for n in 0..self.args.pipeline {
            let key = if self.args.reads > 0 { format!("key:{}", self.random(KEYS)) } else { format!("key:{client}:{n}") };
            if self.random(100) < u64::from(self.args.reads) {
                command(&mut out, &[b"GET", key.as_bytes()]);
                lines += 2;
                continue;
            }
            command(&mut out, &[b"SET", key.as_bytes(), &self.value]);
            lines += 1;
            if self.args.wait > 0 {
                command(&mut out, &[b"WAIT", self.args.wait.to_string().as_bytes(), b"1000"]);
                lines += 1;
            }
        }
        (out, lines)
    }
}

/// A client, and what it waits for.
struct Asking {
    stream: TcpStream,
    /// Lines of the answer.
    missing: usize,
    asked_ns: u64,
}

impl Asking {
    fn send(&mut self, (bytes, lines): &(Vec<u8>, usize)) -> Result<()> {
        (self.missing, self.asked_ns) = (*lines, sys::now_ns());
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(len) => sent += len,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// The connections that can be read.
fn ready(connections: &[Asking]) -> Result<Vec<usize>> {
    let pollfd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds: Vec<_> = connections.iter().map(|asking| pollfd(asking.stream.as_raw_fd())).collect();
    // SAFETY: as many as there are.
    let got = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, PATIENCE.as_millis() as i32) };
    ensure!(got > 0, "no answer for {} s", PATIENCE.as_secs());
    Ok(fds.iter().enumerate().filter(|(_, fd)| fd.revents != 0).map(|(at, _)| at).collect())
}

/// Writes to whichever server takes it, and prints of each write when it was begun and when it was answered.
fn follow(args: &HelperArgs) -> Result<()> {
    std::thread::spawn(|| {
        // Whatever ends it, it is over.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let mut out = io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    let mut connections: Vec<Option<BufReader<TcpStream>>> = args.address.iter().map(|_| None).collect();
    let mut at = 0;
    loop {
        let begun = sys::now_ns();
        if write(&mut connections[at], args.address[at]).is_ok() {
            writeln!(out, "{begun} {}", sys::now_ns())?;
            out.flush()?;
            sys::sleep_until(sys::now_ns() + 200_000);
        } else {
            at = (at + 1) % args.address.len();
            sys::sleep_until(sys::now_ns() + 20_000);
        }
    }
}

fn write(connection: &mut Option<BufReader<TcpStream>>, address: SocketAddr) -> Result<()> {
    if connection.is_none() {
        let stream = TcpStream::connect_timeout(&address, Duration::from_millis(200))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        *connection = Some(BufReader::new(stream));
    }
    let Some(server) = connection.as_mut() else { bail!("no connection") };
    let mut line = String::new();
    let asked = server.get_mut().write_all(b"*2\r\n$4\r\nINCR\r\n$5\r\ncount\r\n").and_then(|()| server.read_line(&mut line));
    match asked {
        Ok(len) if len > 0 => {
            ensure!(line.starts_with(':'), "{line}");
            Ok(())
        }
        Ok(_) => {
            *connection = None;
            bail!("the server hung up")
        }
        Err(e) => {
            *connection = None;
            Err(e.into())
        }
    }
}

// ---- in the parent ------------------------------------------------------------------------------------------------------

/// A case, and what was measured of it so far.
struct Measured {
    name: String,
    /// Of the drawings.
    line: String,
    replicas: u16,
    port: u16,
    clients: u32,
    pipeline: u32,
    wait: u16,
    samples: Samples,
    /// Requests a second, of each round.
    rates: Vec<f64>,
}

/// The servers; their processes end with it.
#[derive(Default)]
pub(crate) struct Servers(pub Vec<(u16, u16, Child)>);

impl Servers {
    /// Kills one, and says when.
    pub(crate) fn end(&mut self, host: u16, port: u16) -> Option<u64> {
        let at = self.0.iter().position(|(h, p, _)| (*h, *p) == (host, port))?;
        let (_, _, mut child) = self.0.swap_remove(at);
        let killed_ns = sys::now_ns();
        let _ = child.kill();
        let _ = child.wait();
        Some(killed_ns)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (_, _, child) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn find_module(named: Option<&PathBuf>) -> Result<PathBuf> {
    if let Some(named) = named {
        ensure!(named.is_file(), "no module {}", named.display());
        return Ok(std::path::absolute(named)?);
    }
    let exe = std::env::current_exe()?;
    let beside = exe.ancestors().skip(1).take(2).map(|dir| dir.join("libfide_redis.so"));
    // Where make install and the package put it.
    let installed = exe.ancestors().nth(2).map(|prefix| prefix.join("lib/redis/modules/fide.so"));
    beside.chain(installed).find(|path| path.is_file()).context(
        "the module libfide_redis.so is neither beside this program nor installed: build it with `cargo build --release -p fide-redis`, or name it with --module",
    )
}

/// Runs it.
///
/// # Errors
/// When something keeps a case from being measured.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    args.results.iter().try_for_each(|file| output::reserve(file))?;
    args.report.iter().try_for_each(|directory| report::prepare(directory))?;
    let mut sizes = args.replicas.clone();
    sizes.sort_unstable();
    sizes.dedup();
    let killed: Vec<u16> = sizes.iter().copied().filter(|n| args.kills > 0 && killed(args, *n).contains(&args.only)).collect();
    let mut all = cases(args, &sizes);
    ensure!(!all.is_empty() || !killed.is_empty(), "no case has {:?} in its name: see those of a run without --only", args.only);
    ensure!(find_program("redis-server").is_some(), "there is no redis-server: apt-get install redis-server");
    let module = find_module(args.module.as_ref())?;
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let most = *sizes.last().context("no number of replicas")?;
    let mut rig = Rig::up(RigSpec { hosts: most, ..RigSpec::default() }, ui)?;
    let mut servers = Servers::default();
    start(&rig, &mut servers, 1, ALONE, &[])?;
    for &replicas in &sizes {
        begin(&mut rig, args, &mut servers, &module, replicas, ui)?;
    }
    for round in 1..=args.rounds {
        for of in &mut all {
            ui.check()?;
            ui.progress(format!("round {round} of {}: {}", args.rounds, of.name));
            measure(&rig, args, of)?;
        }
    }
    let mut failovers = Vec::new();
    for replicas in killed {
        fill(&rig, args, replicas, ui)?;
        let mut samples = Samples::default();
        for kill in 1..=args.kills {
            ui.progress(format!("{replicas} replicas: kill {kill} of {}", args.kills));
            samples.push(kill_leader(&rig, ((&module, args.reads_by()), replicas), &mut servers, kill, ui)?);
        }
        failovers.push((replicas, samples));
    }
    tell(args, &mut all, failovers, ui)
}

/// A group, and what is measured beside it: all servers of one size have all data.
fn begin(rig: &mut Rig, args: &Args, servers: &mut Servers, module: &Path, replicas: u16, ui: &Ui) -> Result<()> {
    let order = GroupOrder::Create {
        name: group(replicas),
        engine: args.engine.clone(),
        policy: "trust-contract".into(),
        hosts: (1..=replicas).map(|host| format!("h{host}")).collect(),
        durable: false,
        fresh: false,
    };
    rig.ask(1, &Request::Group { order })?;
    let port = asynchronous(replicas);
    for host in 1..=replicas {
        let master = rig.lab().ipv4(1, 0).to_string();
        let of = ["--replicaof".to_owned(), master, port.to_string()];
        start(rig, servers, host, port, if host == 1 { &[] } else { &of })?;
        start_member(rig, servers, host, (module, args.reads_by()), replicas)?;
        wait_until_in_sync(rig, host, replicas, ui)?;
    }
    let replicated = format!("slave{}", replicas - 2);
    ui.until("asynchronous replication", || {
        Ok(ask(rig, 1, port, "INFO replication").is_ok_and(|info| info.contains(&replicated) && !info.contains("wait_bgsave")))
    })
}

fn group(replicas: u16) -> String {
    format!("bench-{replicas}")
}

fn cases(args: &Args, sizes: &[u16]) -> Vec<Measured> {
    let mut servers = vec![("redis alone".to_owned(), String::new(), 1, ALONE, 0)];
    for &replicas in sizes {
        let of = format!(" replicas={replicas}");
        let others = replicas - 1;
        servers.push(("redis async".into(), of.clone(), replicas, asynchronous(replicas), 0));
        servers.push((format!("redis wait {others}"), of.clone(), replicas, asynchronous(replicas), others));
        servers.push((format!("redis {}", args.engine), of, replicas, of_group(replicas), 0));
    }
    let reads = if args.reads > 0 { format!(" reads={}%", args.reads) } else { String::new() };
    let reads = &reads;
    let case = |(clients, pipeline): (u32, u32)| {
        servers.clone().into_iter().map(move |(line, of, replicas, port, wait)| Measured {
            name: format!("{line}{of} {}B{reads} clients={clients} pipeline={pipeline}", args.size),
            line: if wait > 0 { "redis wait".into() } else { line },
            replicas,
            port,
            clients,
            pipeline,
            wait,
            samples: Samples::default(),
            rates: Vec::new(),
        })
    };
    loads(args).into_iter().flat_map(case).filter(|case| case.name.contains(&args.only)).collect()
}

/// The name of the case whose leading server is killed.
fn killed(args: &Args, replicas: u16) -> String {
    let data = if args.data > 0 { format!(" data={}MiB", args.data) } else { String::new() };
    format!("redis {} leading server killed replicas={replicas}{data}", args.engine)
}

/// Clients, and commands in a pipeline.
fn loads(args: &Args) -> [(u32, u32); 3] {
    [(1, 1), (args.clients, 1), (args.clients, 16)]
}

fn measure(rig: &Rig, args: &Args, of: &mut Measured) -> Result<()> {
    let requests = if of.clients == 1 { args.requests / 20 } else { args.requests };
    let mut command = rig.helper(1, ROLE)?;
    command.arg("--address").arg(SocketAddr::from((Ipv4Addr::LOCALHOST, of.port)).to_string());
    for (name, number) in
        [("--clients", of.clients), ("--pipeline", of.pipeline), ("--wait", of.wait.into()), ("--size", args.size)]
            .into_iter()
            .chain((args.reads > 0).then_some(("--reads", args.reads)))
    {
        command.arg(name).arg(number.to_string());
    }
    let out = command.arg("--requests").arg(requests.to_string()).stdin(Stdio::null()).output().context("cannot run a helper")?;
    ensure!(out.status.success(), "{}: {}", of.name, String::from_utf8_lossy(&out.stderr).trim());
    let times: Result<Vec<u64>, _> = String::from_utf8_lossy(&out.stdout).lines().map(str::parse).collect();
    let mut times = times.context("a helper recorded nonsense")?;
    let all_ns = times.pop().context("a helper recorded nothing")?;
    of.rates.push((times.len() as f64 * f64::from(of.pipeline)) / (all_ns as f64 / 1e9));
    of.samples.extend(times);
    Ok(())
}

/// Bytes of a value of the data.
const VALUE: u32 = 50_000;

/// Has the group's servers hold their data.
fn fill(rig: &Rig, args: &Args, replicas: u16, ui: &Ui) -> Result<()> {
    let values = (u64::from(args.data) << 20) / u64::from(VALUE);
    if values == 0 {
        return Ok(());
    }
    let leader = leading_server(rig, replicas, ui)?;
    rig.lab().in_host(leader, || -> Result<()> {
        let mut server = BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, of_group(replicas)))?);
        server.get_ref().set_read_timeout(Some(PATIENCE))?;
        let (value, mut line) = (vec![b'v'; VALUE as usize], String::new());
        for n in 0..values {
            if n % 100 == 0 {
                ui.check()?;
                ui.progress(format!("writing {} MiB: {} %", args.data, n * 100 / values));
            }
            let mut set = Vec::new();
            command(&mut set, &[b"SET", format!("data:{n}").as_bytes(), &value]);
            server.get_mut().write_all(&set)?;
            line.clear();
            server.read_line(&mut line)?;
            ensure!(line.starts_with("+OK"), "the data cannot be written: {}", line.trim());
        }
        Ok(())
    })??;
    (1..=replicas).try_for_each(|host| wait_until_in_sync(rig, host, replicas, ui))
}

fn leading_server(rig: &Rig, replicas: u16, ui: &Ui) -> Result<u16> {
    let leads =
        |host: &u16| ask(rig, *host, of_group(replicas), "FIDE STATUS").is_ok_and(|status| status.contains("this server leads"));
    let mut leader = None;
    ui.until("a leading server", || {
        leader = (1..=replicas).find(leads);
        Ok(leader.is_some())
    })?;
    leader.context("no server leads")
}

/// From `kill -9` of the leading server to the first answer to a write that a client elsewhere
/// began after it.
fn kill_leader(
    rig: &Rig,
    (module, replicas): ((&Path, Option<&String>), u16),
    servers: &mut Servers,
    kill: u32,
    ui: &Ui,
) -> Result<u64> {
    let leader = leading_server(rig, replicas, ui)?;
    let client = if leader == 1 { 2 } else { 1 };
    let port = of_group(replicas);
    let all: Vec<String> = (1..=replicas).map(|host| SocketAddr::from((rig.lab().ipv4(host, 0), port)).to_string()).collect();
    let mut command = rig.helper(client, ROLE)?;
    command.arg("--follow").arg("--address").arg(all.join(","));
    let took = unavailable(command, kill, rig.lab().ipv4(leader, 0), || {
        servers.end(leader, port).context("the leading server is not known")
    })?;
    start_member(rig, servers, leader, module, replicas)?;
    wait_until_in_sync(rig, leader, replicas, ui)?;
    Ok(took)
}

fn start_member(
    rig: &Rig,
    servers: &mut Servers,
    host: u16,
    (module, reads_by): (&Path, Option<&String>),
    replicas: u16,
) -> Result<()> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let port = of_group(replicas);
    let (address, group) = (SocketAddr::from((rig.lab().ipv4(host, 0), port)).to_string(), group(replicas));
    let socket = text(rig.socket(host));
    let more = ["--loadmodule", &text(module), "group", &group, "socket", &socket, "address", &address];
    let reads = reads_by.iter().flat_map(|by| ["reads", by.as_str()]);
    let more: Vec<String> = more.into_iter().chain(reads).map(str::to_owned).collect();
    start(rig, servers, host, port, &more)
}

fn start(rig: &Rig, servers: &mut Servers, host: u16, port: u16, more: &[String]) -> Result<()> {
    let dir = rig.lab().host_dir(host).join(format!("redis-{port}"));
    std::fs::create_dir_all(&dir)?;
    let log = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
    let mut command = rig.lab().command(host, "redis-server")?;
    command.current_dir(&dir).args([
        "--bind",
        "0.0.0.0",
        "--protected-mode",
        "no",
        "--save",
        "",
        "--repl-diskless-sync-delay",
        "0",
    ]);
    command.arg("--port").arg(port.to_string()).args(more).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    servers.0.push((host, port, command.spawn().context("cannot start redis-server")?));
    let until = Instant::now() + PATIENCE;
    while ask(rig, host, port, "PING").is_err() {
        ensure!(Instant::now() < until, "redis-server does not answer on h{host}, port {port}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The answer to one line, as it comes.
pub(crate) fn ask(rig: &Rig, host: u16, port: u16, line: &str) -> Result<String> {
    rig.lab().in_host(host, || -> Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply)?;
        ensure!(!reply.is_empty(), "no answer");
        Ok(String::from_utf8_lossy(&reply).into_owned())
    })?
}

fn wait_until_in_sync(rig: &Rig, host: u16, replicas: u16, ui: &Ui) -> Result<()> {
    ui.until("a server that has all that is decided", || {
        Ok(ask(rig, host, of_group(replicas), "FIDE STATUS").is_ok_and(|status| status.contains("in-sync\r\n:1")))
    })
}

fn tell(args: &Args, all: &mut [Measured], failovers: Vec<(u16, Samples)>, ui: &Ui) -> Outcome {
    let mut told = Vec::new();
    for of in all.iter_mut() {
        of.rates.sort_by(f64::total_cmp);
        let rate = of.rates[of.rates.len() / 2];
        let mut case = Case::new("redis", &of.name, &mut of.samples);
        let range = [of.rates[0], of.rates[of.rates.len() - 1]];
        for (name, rate) in [("per_second", rate), ("per_second_min", range[0]), ("per_second_max", range[1])] {
            case.values.insert(name.into(), rate.round());
        }
        let q = case.quantiles;
        ui.say(format!(
            "{:<52} {:>9}/s   p50 {:>8}  p99 {:>8}  p99.9 {:>8}  max {:>8}",
            of.name,
            thousands(rate as u64),
            human_us(q.p50),
            human_us(q.p99),
            human_us(q.p999),
            human_us(q.max)
        ));
        told.push(case);
    }
    for (replicas, mut samples) in failovers {
        let name = killed(args, replicas);
        let mut case = Case::new("redis", &name, &mut samples);
        case.notes.push("from kill -9 to the answer to the first write that a client elsewhere began after it".into());
        let q = case.quantiles;
        ui.say(format!("{name:<52} p50 {:>8}  p99 {:>8}  max {:>8}", human_us(q.p50), human_us(q.p99), human_us(q.max)));
        told.push(case);
    }
    if ui.json {
        told.iter().for_each(|case| ui.line(case.json()));
    }
    let lines: String = told.iter().map(|case| case.json() + "\n").collect();
    if let Some(file) = &args.results {
        output::write(file, &lines)?;
    }
    if let Some(directory) = &args.report {
        write_report(args, directory, &lines, (all, &told))
            .with_context(|| format!("cannot write the report to {}", directory.display()))?;
        ui.say(format!("report: {}", directory.join("report.html").display()));
    }
    Ok(true)
}

/// The cases of `all` are the first ones of `told`.
fn write_report(args: &Args, directory: &Path, lines: &str, (all, told): (&[Measured], &[Case])) -> Result<()> {
    output::write(&directory.join("results.jsonl"), lines)?;
    output::remove_drawings(directory)?;
    let mut page = Page::new(
        "fide bench redis",
        "SETs of clients against one Redis server, asynchronous replication, the same with WAIT after each write, and a group \
         whose module answers once a write is decided: FiDe Fig. 6 and Nano-consensus Fig. 9, as far as one machine goes.",
    );
    page.medians("request to answer", told);
    page.heading("All cases");
    let row = |case: &Case| {
        let q = case.quantiles;
        let rate = case.values.get("per_second").map_or_else(String::new, |rate| thousands(*rate as u64));
        let times = [q.p50, q.p99, q.p999, q.max].map(human_us);
        [case.case.clone(), case.n.to_string()].into_iter().chain(times).chain([rate]).collect::<Vec<String>>()
    };
    let headers = ["case", ">n", ">median", ">p99", ">p99.9", ">max", ">writes a second"];
    page.table(&headers, &told.iter().map(row).collect::<Vec<_>>());
    page.heading("By servers that hold the data");
    page.remark(
        "dim",
        "A group loses nothing as long as one of its servers lives; asynchronous replication may lose what was answered when the \
         first one ends. Bars of rates go from the slowest round to the fastest, bars of times from the least to the 99th percentile.",
    );
    let lines = ["redis alone".to_owned(), "redis async".into(), "redis wait".into(), format!("redis {}", args.engine)];
    for (clients, pipeline) in loads(args) {
        let of = || all.iter().zip(told).filter(|(of, _)| (of.clients, of.pipeline) == (clients, pipeline));
        let point = |of: &Measured, [least, median, most]: [f64; 3]| OfMembers {
            line: of.line.clone(),
            members: of.replicas,
            median,
            least,
            most,
        };
        let rates =
            of().map(|(of, case)| point(of, ["per_second_min", "per_second", "per_second_max"].map(|name| case.values[name])));
        let times = of().map(|(of, case)| point(of, [case.quantiles.min, case.quantiles.p50, case.quantiles.p99]));
        let (rates, times): (Vec<_>, Vec<_>) = (rates.collect(), times.collect());
        if rates.is_empty() {
            continue;
        }
        let load = match (clients, pipeline) {
            (1, _) => "one client".to_owned(),
            (clients, 1) => format!("{clients} clients"),
            (clients, pipeline) => format!("{clients} clients, {pipeline} commands in a request"),
        };
        let file = |what: &str| directory.join(format!("{what}-{clients}-{pipeline}.svg"));
        let rate = Axis::numbers("writes a second").log();
        page.by_members(&file("throughput"), (&format!("SETs a second, {load}"), "servers", rate), &lines, &rates)?;
        let time = (&*format!("Request to answer, {load}"), "servers", Axis::times("time"));
        page.by_members(&file("latency"), time, &lines, &times)?;
    }
    output::write(&directory.join("report.html"), &page.finish())
}
