//! `fide bench failover`: a Redis pair whose leading server is killed, again and again. `fide-failover` and three Sentinels each have a pair of their own on the same
//! hosts, in turns within one run; what is measured is how long a client's writes stand still.

use crate::Outcome;
use crate::output;
use crate::redis::{Servers, ask, unavailable, until};
use crate::report;
use crate::rig::{Rig, RigSpec, find_program};
use crate::stats::{Case, Samples, human_us};
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result, ensure};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const FIDE: u16 = 6411;
const SENTINEL: u16 = 6412;
/// Where Sentinels listen; the managers of `fide-failover` are kept under 0.
const WATCHES: u16 = 26_412;
const MANAGER: u16 = 0;
/// The hosts with servers; the client is on another one.
const PAIR: [u16; 2] = [1, 2];
const CLIENT: u16 = 3;

/// Arguments of `fide bench failover`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Leading servers that are killed of each pair
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub kills: u32,
    /// Sentinel's down-after-milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(50..=60_000))]
    pub down_after_ms: u32,
    /// The manager; by default beside this program
    #[arg(long, value_name = "FILE")]
    pub manager: Option<PathBuf>,
    /// Write the results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
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

fn start(rig: &Rig, servers: &mut Servers, (host, port): (u16, u16), name: &str, conf: &str, more: &[&str]) -> Result<()> {
    let dir = rig.lab().host_dir(host).join(name);
    fs::create_dir_all(&dir)?;
    let file = dir.join("redis.conf");
    // A server rewrites its file: the next one goes on with that.
    if !file.exists() {
        fs::write(&file, format!("port {port}\nbind 0.0.0.0\nprotected-mode no\nsave \"\"\n{conf}"))?;
    }
    let log = OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
    let mut command = rig.lab().command(host, "redis-server")?;
    command.current_dir(&dir).arg(&file).args(more).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    servers.0.push((host, port, command.spawn().context("cannot start redis-server")?));
    Ok(())
}

fn manage(rig: &Rig, servers: &mut Servers, host: u16, manager: &Path) -> Result<()> {
    let dir = rig.lab().host_dir(host).join("failover");
    fs::create_dir_all(&dir)?;
    let file = dir.join("failover.toml");
    let text = format!("name = \"pair\"\nhosts = [\"h1\", \"h2\"]\nstate = {dir:?}\n[redis]\nport = {FIDE}\n");
    fs::write(&file, text)?;
    let log = OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
    let mut command = rig.lab().command(host, manager)?;
    command.arg("--config").arg(file).arg("--socket").arg(rig.socket(host)).arg("run");
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    servers.0.push((host, MANAGER, command.spawn().context("cannot start fide-failover")?));
    Ok(())
}

fn is_primary(rig: &Rig, host: u16, port: u16) -> bool {
    ask(rig, host, port, "ROLE").is_ok_and(|role| role.contains("master"))
}

fn follows(rig: &Rig, host: u16, port: u16) -> bool {
    ask(rig, host, port, "INFO replication")
        .is_ok_and(|info| info.contains("role:slave") && info.contains("master_link_status:up"))
}

/// One server takes writes and the other one follows: which does.
fn settled(rig: &Rig, port: u16, ui: &Ui) -> Result<u16> {
    let mut leader = None;
    until(ui, "a pair of which one follows the other", || {
        leader = PAIR.into_iter().find(|host| is_primary(rig, *host, port) && follows(rig, 3 - host, port));
        Ok(leader.is_some())
    })?;
    leader.context("nobody leads")
}

/// Runs it.
///
/// # Errors
/// When something keeps a case from being measured.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    args.results.iter().try_for_each(|file| output::reserve(file))?;
    ensure!(find_program("redis-server").is_some(), "there is no redis-server: apt-get install redis-server");
    let manager = find_manager(args.manager.as_ref())?;
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let rig = Rig::up(RigSpec { hosts: 3, ..RigSpec::default() }, ui)?;
    let mut servers = Servers::default();
    let master = rig.lab().ipv4(1, 0).to_string();
    for host in PAIR {
        start(&rig, &mut servers, (host, FIDE), "fide", "repl-diskless-sync-delay 0\n", &[])?;
        let of = format!("replicaof {master} {SENTINEL}\n");
        let conf = format!("repl-diskless-sync-delay 0\n{}", if host == 1 { "" } else { &of });
        start(&rig, &mut servers, (host, SENTINEL), "pair", &conf, &[])?;
    }
    for host in PAIR {
        until(ui, "a server", || Ok([FIDE, SENTINEL].into_iter().all(|port| ask(&rig, host, port, "PING").is_ok())))?;
        manage(&rig, &mut servers, host, &manager)?;
    }
    settled(&rig, SENTINEL, ui)?;
    settled(&rig, FIDE, ui)?;
    for host in 1..=3 {
        let watch = format!(
            "sentinel monitor pair {master} {SENTINEL} 2\nsentinel down-after-milliseconds pair {}\nsentinel failover-timeout pair 3000\n",
            args.down_after_ms
        );
        start(&rig, &mut servers, (host, WATCHES), "sentinel", &watch, &["--sentinel"])?;
    }
    let mut measured = [("fide-failover", FIDE, Samples::default()), ("sentinel", SENTINEL, Samples::default())];
    for kill in 1..=args.kills {
        for (name, port, samples) in &mut measured {
            ui.check()?;
            ui.progress(format!("kill {kill} of {}: {name}", args.kills));
            let leader = settled(&rig, *port, ui)?;
            if *port == SENTINEL {
                until(ui, "Sentinels that know each other and the pair", || Ok((1..=3).all(|host| knows(&rig, host, leader))))?;
            }
            samples.push(unavailable(&rig, &mut servers, (leader, CLIENT, *port), 1..=2, kill)?);
            if *port == SENTINEL {
                // Sentinel makes a server that comes back follow after ten seconds and more: it is told to at once.
                let (next, file) = (rig.lab().ipv4(3 - leader, 0), rig.lab().host_dir(leader).join("pair/redis.conf"));
                let conf = fs::read_to_string(&file)?;
                let kept: String =
                    conf.lines().filter(|line| !line.starts_with("replicaof")).map(|line| format!("{line}\n")).collect();
                fs::write(&file, format!("{kept}replicaof {next} {SENTINEL}\n"))?;
                start(&rig, &mut servers, (leader, *port), "pair", "", &[])?;
            } else {
                start(&rig, &mut servers, (leader, *port), "fide", "", &[])?;
            }
        }
    }
    tell(args, measured, ui)
}

fn knows(rig: &Rig, host: u16, leader: u16) -> bool {
    let address = rig.lab().ipv4(leader, 0).to_string();
    ask(rig, host, WATCHES, "INFO sentinel").is_ok_and(|info| {
        info.contains("status=ok")
            && info.contains("sentinels=3")
            && info.contains("slaves=1")
            && info.contains(&format!("address={address}:"))
    }) && ask(rig, host, WATCHES, "SENTINEL REPLICAS pair")
        .is_ok_and(|replicas| replicas.contains("master-link-status\r\n$2\r\nok"))
}

fn tell(args: &Args, measured: [(&str, u16, Samples); 2], ui: &Ui) -> Outcome {
    let mut lines = String::new();
    for (name, _, mut samples) in measured {
        let name = if name == "sentinel" { format!("sentinel down-after={}ms", args.down_after_ms) } else { name.to_owned() };
        let mut case = Case::new("failover", &name, &mut samples);
        case.notes.push(
            "from kill -9 of the leading server to the answer to the first write that a client elsewhere began after it".into(),
        );
        let q = case.quantiles;
        ui.say(format!("{name:<28} p50 {:>9}  p99 {:>9}  max {:>9}", human_us(q.p50), human_us(q.p99), human_us(q.max)));
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
