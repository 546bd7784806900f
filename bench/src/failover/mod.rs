//! `fide bench failover`: pairs of servers whose leading one is killed, again and again, each pair in the hands of another manager on the same hosts, in turns within
//! one run. What is measured is how long a client's writes stand still.

mod postgresql;
mod redis_pair;

pub use postgresql::{HelperArgs, ROLE, help};

use crate::Outcome;
use crate::output;
use crate::report;
use crate::rig::{Rig, RigSpec, find_program};
use crate::stats::{Case, Samples, human_us};
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The hosts with servers; the client is on another one.
const PAIR: [u16; 2] = [1, 2];
const CLIENT: u16 = 3;

/// Who manages a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Manager {
    /// `fide-failover` over Redis
    Redis,
    /// Three Sentinels over Redis
    Sentinel,
    /// `fide-failover` over Redis behind an address that moves
    Address,
    /// keepalived over Redis behind an address that moves
    Keepalived,
    /// `fide-failover` over PostgreSQL
    Postgresql,
    /// Patroni over PostgreSQL
    Patroni,
}

impl Manager {
    /// Programs that must be there, and where they come from.
    fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Redis | Self::Sentinel | Self::Address => &[("redis-server", "redis-server")],
            Self::Keepalived => &[("redis-server", "redis-server"), ("keepalived", "keepalived")],
            Self::Postgresql => &[(postgresql::SERVER, "postgresql-15")],
            Self::Patroni => &[(postgresql::SERVER, "postgresql-15"), ("patroni", "patroni"), ("etcd", "etcd-server")],
        }
    }
}

/// Arguments of `fide bench failover`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Leading servers that are killed of each pair
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub kills: u32,
    /// The managers to compare; by default all whose programs are installed
    #[arg(long, value_delimiter = ',', value_enum)]
    pub managers: Vec<Manager>,
    /// Sentinel's down-after-milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(50..=60_000))]
    pub down_after_ms: u32,
    /// Patroni's loop_wait; its least and fastest is 1 (its default is 10)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub loop_wait_s: u32,
    /// The manager of ours; by default beside this program
    #[arg(long, value_name = "FILE")]
    pub manager: Option<PathBuf>,
    /// Write the results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
}

/// Two servers of which one leads, and who manages them.
trait Pair {
    /// What the case is called.
    fn name(&self) -> String;
    /// What a reader of its figure must know of it.
    fn note(&self) -> String;
    /// One server takes writes, the other one follows it, and the manager is ready for the next crash: which leads.
    fn leader(&self, rig: &Rig) -> Option<u16>;
    /// A client that writes to whichever server takes it: `ready`, then for each write when it was begun and when it was answered (ns), and by whom if it knows.
    fn client(&self, rig: &Rig) -> Result<Command>;
    /// Kills this host's server: when (ns).
    fn kill(&mut self, host: u16) -> Result<u64>;
    /// Has the killed server come back.
    fn mend(&mut self, rig: &Rig, ui: &Ui, host: u16) -> Result<()>;
}

fn find_manager(named: Option<&PathBuf>) -> Result<PathBuf> {
    if let Some(named) = named {
        ensure!(named.is_file(), "no program {}", named.display());
        return Ok(std::path::absolute(named)?);
    }
    let beside = std::env::current_exe()?.with_file_name("fide-failover");
    ensure!(
        beside.is_file(),
        "fide-failover is not beside this program: build it with `cargo build --release -p fide-failover`, or name it with --manager"
    );
    Ok(beside)
}

/// The managers that were asked for, or all whose programs are there.
fn chosen(args: &Args, ui: &Ui) -> Result<Vec<Manager>> {
    let missing = |manager: &Manager| manager.needs().iter().find(|(program, _)| find_program(program).is_none());
    let mut chosen = Vec::new();
    for manager in if args.managers.is_empty() { <Manager as clap::ValueEnum>::value_variants() } else { &args.managers } {
        match missing(manager) {
            None if chosen.contains(manager) => {}
            None => chosen.push(*manager),
            Some((program, package)) if args.managers.is_empty() => {
                ui.say(format!("left out: {manager:?} (there is no {program}: apt-get install {package})"));
            }
            Some((program, package)) => bail!("{manager:?}: there is no {program}: apt-get install {package}"),
        }
    }
    ensure!(!chosen.is_empty(), "no servers to kill are installed: apt-get install redis-server");
    Ok(chosen)
}

/// Runs it.
///
/// # Errors
/// When something keeps a case from being measured.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    args.results.iter().try_for_each(|file| output::reserve(file))?;
    let managers = chosen(args, ui)?;
    let program = find_manager(args.manager.as_ref())?;
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let rig = Rig::up(RigSpec { hosts: 3, ..RigSpec::default() }, ui)?;
    let mut pairs: Vec<(Box<dyn Pair>, Samples)> = Vec::new();
    for manager in managers {
        ui.progress(format!("starting {manager:?}"));
        let pair: Box<dyn Pair> = match manager {
            Manager::Redis => Box::new(redis_pair::RedisPair::ours(&rig, ui, &program, false)?),
            Manager::Address => Box::new(redis_pair::RedisPair::ours(&rig, ui, &program, true)?),
            Manager::Sentinel => Box::new(redis_pair::RedisPair::sentinel(&rig, ui, args.down_after_ms)?),
            Manager::Keepalived => Box::new(redis_pair::RedisPair::keepalived(&rig, ui)?),
            Manager::Postgresql => Box::new(postgresql::PostgresqlPair::ours(&rig, ui, &program)?),
            Manager::Patroni => Box::new(postgresql::PostgresqlPair::patroni(&rig, ui, args.loop_wait_s)?),
        };
        pairs.push((pair, Samples::default()));
    }
    for kill in 1..=args.kills {
        for (pair, samples) in &mut pairs {
            ui.check()?;
            ui.progress(format!("kill {kill} of {}: {}", args.kills, pair.name()));
            let leader = settled(pair.as_ref(), &rig, ui)?;
            samples.push(unavailable(pair.client(&rig)?, kill, rig.lab().ipv4(leader, 0), || pair.kill(leader))?);
            pair.mend(&rig, ui, leader)?;
        }
    }
    tell(args, &mut pairs, ui)
}

fn settled(pair: &dyn Pair, rig: &Rig, ui: &Ui) -> Result<u16> {
    let mut leader = None;
    ui.until(&format!("{}: one server that leads and one that follows", pair.name()), || {
        leader = pair.leader(rig);
        Ok(leader.is_some())
    })?;
    leader.context("nobody leads")
}

/// From the end of a leader's server (at `former`) to the first answer to a write that a client began after it. Processes of a killed PostgreSQL may answer for a
/// moment, and what they answer may be lost: clients that can say whose answer it was do.
pub(crate) fn unavailable(mut client: Command, kill: u32, former: Ipv4Addr, strike: impl FnOnce() -> Result<u64>) -> Result<u64> {
    let former = former.to_string();
    let mut child = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a client")?;
    let mut lines = child.stdout.take().map(BufReader::new).context("a client without a pipe")?.lines();
    let measured = (|| -> Result<u64> {
        ensure!(lines.next().transpose()?.as_deref() == Some("ready"), "a client did not become ready");
        lines.next().transpose()?.context("no write was answered")?;
        // At another moment of everybody's periods each time.
        std::thread::sleep(Duration::from_micros(150_000 + u64::from(kill) * 618_034 % 1_000_000));
        let killed_ns = strike()?;
        for line in lines.by_ref() {
            let line = line?;
            let mut words = line.split(' ');
            let (begun, answered) = words.next().zip(words.next()).context("a client recorded nonsense")?;
            if begun.parse::<u64>()? >= killed_ns && words.next() != Some(&former) {
                return Ok(answered.parse::<u64>()? - killed_ns);
            }
        }
        bail!("nothing was answered behind the crash of the leading server");
    })();
    end(&mut child);
    measured
}

/// Where a program of a pair writes what it says.
fn log(dir: &Path, name: &str) -> Result<File> {
    fs::create_dir_all(dir)?;
    Ok(OpenOptions::new().create(true).append(true).open(dir.join(name))?)
}

fn spawn(mut command: Command, log: File) -> Result<Child> {
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let what = command.get_program().to_string_lossy().into_owned();
    command.spawn().with_context(|| format!("cannot start {what}"))
}

/// A manager of ours on one host: its file is a few lines, and these.
fn manage(rig: &Rig, host: u16, program: &Path, name: &str, servers: &str) -> Result<Child> {
    let dir = rig.lab().host_dir(host).join(format!("failover-{name}"));
    let log = log(&dir, "log")?;
    let file = dir.join("failover.toml");
    fs::write(&file, format!("name = \"{name}\"\nhosts = [\"h1\", \"h2\"]\nstate = {dir:?}\n{servers}"))?;
    let mut command = rig.lab().command(host, program)?;
    command.arg("--config").arg(file).arg("--socket").arg(rig.socket(host)).arg("run");
    spawn(command, log)
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn tell(args: &Args, pairs: &mut [(Box<dyn Pair>, Samples)], ui: &Ui) -> Outcome {
    let mut lines = String::new();
    for (pair, samples) in pairs {
        let name = pair.name();
        let mut case = Case::new("failover", &name, samples);
        case.notes.push(
            "from kill -9 of the leading server to the answer to the first write that a client elsewhere began after it".into(),
        );
        case.notes.push(pair.note());
        let q = case.quantiles;
        ui.say(format!("{name:<34} p50 {:>9}  p99 {:>9}  max {:>9}", human_us(q.p50), human_us(q.p99), human_us(q.max)));
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
