//! `fide bench growth`: what a crash costs as the cluster, the number of ends at once, and the host itself grow.
//!
//! Three sweeps. *Hosts*: crashes one after the other, with two observers on the second host, one whose application is above its agent's priority and one below,
//! the time of that agent's threads, and the frames that reach the host for each crash. *Ends*: many processes, ended by one kill. *Interfaces*: a host
//! with as many network interfaces as a node of Kubernetes has, and its addresses, processes and waiting watches. *Restarts*: the agent of the watched host
//! ends, then what it watched, and another agent starts.

use crate::Outcome;
use crate::crash::{NAME, Steps, WATCHED, promptly, wait_until_monitored};
use crate::drawing::{Axes, Axis, Series};
use crate::meter::{Meter, Receiving, Used};
use crate::observer::{Observers, Report};
use crate::output;
use crate::report::{self, Page};
use crate::rig::{Rig, RigSpec};
use crate::stats::{Case, Quantiles, Samples, human_us};
use crate::sys::{self, Tap};
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Arguments of `fide bench growth`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Sizes of the cluster
    #[arg(long, value_delimiter = ',', default_values = ["3", "8", "16", "24"], value_parser = clap::value_parser!(u16).range(3..=64))]
    pub hosts: Vec<u16>,
    /// Processes that one kill ends
    #[arg(long, value_delimiter = ',', default_values = ["1", "16", "256", "1000"], value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ends: Vec<u32>,
    /// Rounds of each, with agents of their own
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Network interfaces of the watched host
    #[arg(long, value_delimiter = ',', default_values = ["2", "1200"], value_parser = clap::value_parser!(u32).range(2..=5000))]
    pub interfaces: Vec<u32>,
    /// Addresses of the watched host where it has more than two interfaces
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pub addresses: u32,
    /// Processes beside them
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u32).range(0..=16_000))]
    pub processes: u32,
    /// Watches there whose process never comes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub pending: u32,
    /// Restarts of the watched host's agent, half of them without a word
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub restarts: u32,
    /// Periods of heartbeats
    #[arg(long, value_name = "SPAN,…", value_delimiter = ',', default_values = ["1ms", "10ms"], value_parser = clap::builder::PossibleValuesParser::new(PERIODS))]
    pub periods: Vec<String>,
    /// Crashes in each size
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub crashes: u32,
    /// Fewer sizes and crashes: a minute
    #[arg(long)]
    pub quick: bool,
    /// Write report.html, its drawings and results.jsonl there
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// The host whose agent, applications and frames are looked at.
const OBSERVING: u16 = 2;
/// HB of everything here: the lanes of all hosts share the processors of one machine.
const HEARTBEAT: &str = "10ms";
/// Periods that can be asked for.
const PERIODS: [&str; 5] = ["1ms", "2ms", "5ms", "10ms", "100ms"];
/// What a crash brings about is over so long behind it.
const SETTLED: Duration = Duration::from_millis(40);
/// Longest wait for all ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs it.
///
/// # Errors
/// When something keeps a case from being measured.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    if let Some(directory) = &args.report {
        report::prepare(directory)?;
    }
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let mut args = args.clone();
    if args.quick {
        args.crashes = args.crashes.min(20);
        args.hosts.retain(|n| *n <= 8);
        args.ends.retain(|n| *n <= 256);
        args.rounds = 1;
        args.restarts = args.restarts.min(6);
        args.addresses = args.addresses.min(1000);
        args.processes = args.processes.min(400);
    }
    let mut cases = Vec::new();
    let mut done = |case: Case, ui: &Ui| {
        tell(&case, ui);
        cases.push(case);
    };
    for &hosts in &args.hosts {
        done(with_hosts(hosts, args.crashes, ui)?, ui);
    }
    for &ends in &args.ends {
        let mut all = Ends::default();
        for round in 0..args.rounds {
            ends_at_once(ends, &format!("round {} of {}", round + 1, args.rounds), &mut all, ui)?;
        }
        done(all.case(ends, args.rounds), ui);
    }
    for &interfaces in &args.interfaces {
        done(with_interfaces(interfaces, &args, ui)?, ui);
    }
    for period in &args.periods {
        done(with_period(period, ui)?, ui);
    }
    if args.restarts > 0 {
        for case in with_restarts(args.restarts, ui)? {
            done(case, ui);
        }
    }
    if let Some(directory) = &args.report {
        write(directory, &cases).with_context(|| format!("cannot write the report to {}", directory.display()))?;
        ui.say(format!("report: {}", directory.join("report.html").display()));
    }
    Ok(cases.iter().all(|case| case.values.get("missing").is_none_or(|n| *n == 0.0)))
}

/// A process that can be killed.
struct Sleepers(Vec<Child>);

impl Sleepers {
    /// In one process group, so that one kill ends them.
    fn start(rig: &Rig, count: u32) -> Result<Self> {
        let mut all = Sleepers(Vec::new());
        for _ in 0..count {
            let mut command = rig.lab().command(WATCHED, "sleep")?;
            let group = all.0.first().map_or(0, |first| first.id().cast_signed());
            command.arg("3600").stdin(Stdio::null()).process_group(group);
            all.0.push(command.spawn().context("cannot start a process to be killed")?);
        }
        Ok(all)
    }

    fn kill(&self) -> Result<u64> {
        let group = self.0.first().context("nobody to kill")?.id();
        Ok(promptly(|| sys::kill_group(group, libc::SIGKILL))?)
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended.
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// Crashes of one process after the other.
#[derive(Default)]
struct Crashes {
    /// From before kill(2) to the upcall above the agent's priority, and below it.
    above: Samples,
    below: Samples,
    /// What the agent used while a crash was told, and in as much time before it.
    used: Vec<Used>,
    used_before: Vec<Used>,
    /// Runs of all agents' receive programs in that time, and how long they took.
    receiving: (u64, u64),
    /// Softirqs are counted apart from the thread that they interrupted.
    tells_apart: bool,
    /// The parts of the time above the agent's priority, as [`Steps::NAMES`].
    steps: [Samples; 4],
    /// Frames about processes that reached the host, for each crash.
    frames: Samples,
    missing: u32,
}

fn crashes(rig: &mut Rig, count: u32, ui: &Ui) -> Result<Crashes> {
    let mut observers = Observers::default();
    let above = observers.start(rig, OBSERVING, &[&format!("{NAME}@h{WATCHED}")], false)?;
    let below = observers.start_below(rig, OBSERVING, &[&format!("{NAME}@h{WATCHED}")])?;
    let meter = Meter::of(rig.agent_pid(OBSERVING).context("no agent on the observing host")?)?;
    let receiving = Receiving::count().ok();
    let received = || receiving.as_ref().map_or((0, 0), Receiving::read);
    let taps = [0, 1].map(|net| rig.lab().in_switch(net, || Tap::open(&format!("h{OBSERVING}"))));
    let taps: Vec<Tap> = taps.into_iter().map(|tap| Ok(tap??)).collect::<Result<_>>()?;
    let frames = || taps.iter().map(|tap| tap.count(is_of_tables)).sum::<usize>();
    let mut crashes = Crashes { tells_apart: meter.tells_apart(), ..Crashes::default() };
    for serial in 0..count {
        ui.check()?;
        ui.progress(format!("{} hosts: crash {} of {count}", rig.spec().hosts, serial + 1));
        let sleepers = Sleepers::start(rig, 1)?;
        let app = rig.watch(WATCHED, NAME, sleepers.0[0].id())?;
        wait_until_monitored(&mut observers, &[above, below], app)?;
        ui.sleep(SETTLED + Duration::from_micros(u64::from(serial) * 617 % 10_000))?;
        let idle = meter.read()?;
        ui.sleep(SETTLED)?;
        observers.drain();
        frames();
        let (used, before) = (meter.read()?, received());
        crashes.used_before.push(used - idle);
        let killed_ns = sleepers.kill()?;
        let mut heard = [None; 2];
        let deadline = Instant::now() + PATIENCE;
        while heard.iter().any(Option::is_none) {
            let Some((index, report)) = observers.next(deadline) else { break };
            let Report::Failure(upcall) = report else { continue };
            if upcall.app == app {
                if let Some(steps) = Steps::of(killed_ns, &upcall).filter(|_| index == above) {
                    crashes.steps.iter_mut().zip(steps.all()).for_each(|(samples, ns)| samples.push(ns));
                }
                heard[usize::from(index == below)].get_or_insert(upcall.at_ns.saturating_sub(killed_ns));
            }
        }
        ui.sleep(SETTLED)?;
        crashes.used.push(meter.read()? - used);
        let after = received();
        crashes.receiving = (crashes.receiving.0 + after.0 - before.0, crashes.receiving.1 + after.1 - before.1);
        // In thousandths, as if they were nanoseconds: one unit for all samples.
        crashes.frames.push(frames() as u64 * 1000);
        crashes.missing += heard.iter().filter(|at| at.is_none()).count() as u32;
        crashes.above.extend(heard[0]);
        crashes.below.extend(heard[1]);
    }
    Ok(crashes)
}

/// The parts of a processor that the agent's real-time thread and all of it take while nothing happens, percent.
fn idle_rates(agent: u32) -> Result<(f64, f64)> {
    let meter = Meter::of(agent)?;
    let (before, since) = (meter.read()?, Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let (used, ns) = (meter.read()? - before, since.elapsed().as_nanos() as f64);
    let percent = |ran: u64| (ran as f64 / ns * 1e4).round() / 100.0;
    Ok((percent(used.thread_ns), percent(used.thread_ns + used.others_ns)))
}

/// A frame of ours about processes that another host sent: a change, rows, or a question for them.
fn is_of_tables(frame: &[u8]) -> bool {
    use fide_wire::packet::Kind;
    // Ethernet, IPv4 and UDP take 42 bytes; the lane's own frames have no options.
    let is_ours = frame.get(12..14) == Some(&[8, 0]) && frame.get(42..44) == Some(&[0xf1, 0xde]);
    let kind = frame.get(58).copied().and_then(fide_wire::frame::Kind::from_u8).and_then(Kind::of);
    let own = fide_wire::name_id(&format!("h{OBSERVING}")).to_be_bytes();
    is_ours && frame.get(50..54) != Some(&own) && matches!(kind, Some(Kind::Notice | Kind::Pull | Kind::Rows))
}

fn with_hosts(hosts: u16, count: u32, ui: &Ui) -> Result<Case> {
    let mut rig = Rig::up(RigSpec { hosts, heartbeat: HEARTBEAT, ..RigSpec::default() }, ui)?;
    let crashes = crashes(&mut rig, count, ui)?;
    Ok(case(format!("hosts={hosts}"), crashes))
}

fn case(name: String, mut crashes: Crashes) -> Case {
    let mut case = Case::new("growth", name, &mut crashes.above);
    case.beside.insert("below the agent".into(), crashes.below.beside());
    case.steps = Steps::NAMES.into_iter().map(String::from).zip(crashes.steps.iter_mut().map(Samples::quantiles)).collect();
    let mut value = |name: &str, value: f64| case.values.insert(name.into(), (value * 100.0).round() / 100.0);
    // Medians: whoever the machine's own host lets wait for 20 ms is no word about a crash. The slow ones stand beside.
    let per_crash = |of: fn(&Used) -> u64| {
        let median = |all: &[Used]| all.iter().map(of).collect::<Samples>().quantile(0.5) as f64;
        median(&crashes.used) - median(&crashes.used_before)
    };
    value("thread_us_per_crash", per_crash(|used| used.thread_ns) / 1e3);
    value("softirq_us_per_crash", per_crash(|used| used.softirq_ns) / 1e3);
    value("other_threads_us_per_crash", per_crash(|used| used.others_ns) / 1e3);
    value("sleeps_per_crash", per_crash(|used| used.sleeps));
    let (runs, ns) = crashes.receiving;
    value("receive_program_ns_per_frame", ns as f64 / runs.max(1) as f64);
    value("frames_median", crashes.frames.quantile(0.5) as f64 / 1e3);
    value("frames_max", crashes.frames.quantile(1.0) as f64 / 1e3);
    value("missing", crashes.missing.into());
    let samples = |all: &[Used]| all.iter().map(|used| used.thread_ns).collect::<Samples>().beside();
    case.beside.insert("real-time thread".into(), samples(&crashes.used));
    case.beside.insert("real-time thread before".into(), samples(&crashes.used_before));
    if !crashes.tells_apart {
        case.notes.push("softirqs are counted as the thread that they interrupt".into());
    }
    case.notes.push(report::machine());
    case
}

/// What a large host has, on the watched one: its interfaces, addresses and processes. What is returned keeps the processes.
fn populate(rig: &Rig, interfaces: u32, args: &Args, ui: &Ui) -> Result<Vec<Child>> {
    ui.progress(format!("making {interfaces} interfaces, {} addresses and {} processes", args.addresses, args.processes));
    // The two of the paths are there; loopback is one more. In pairs, as pods have them.
    let pairs = (interfaces - 2) / 2;
    let pair = |i: u32| format!("link add d{i} type veth peer name e{i}\nlink set d{i} up\nlink set e{i} up\n");
    let address = |i: u32| format!("address add 172.{}.{}.{}/32 dev d{}\n", 16 + (i >> 16), i >> 8 & 255, i & 255, i % pairs);
    let lines: String = (0..pairs).map(pair).chain((0..args.addresses).map(address)).collect();
    let mut ip = rig.lab().command(WATCHED, "ip")?;
    let mut ip = ip.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().context("cannot run ip")?;
    ip.stdin.take().context("ip without a pipe")?.write_all(lines.as_bytes())?;
    if !ip.wait()?.success() {
        bail!("not all interfaces could be made");
    }
    let mut processes = Vec::new();
    // A parent for each hundred, in one process group that ends as one.
    for _ in 0..args.processes.div_ceil(100) {
        let mut shell = rig.lab().command(WATCHED, "sh")?;
        let few = "i=1; while [ $i -lt 100 ]; do sleep 3600 & i=$((i+1)); done; wait";
        processes.push(shell.args(["-c", few]).stdin(Stdio::null()).process_group(0).spawn().context("cannot start processes")?);
    }
    ui.sleep(Duration::from_secs(5))?;
    Ok(processes)
}

fn with_interfaces(interfaces: u32, args: &Args, ui: &Ui) -> Result<Case> {
    let is_large = interfaces > 2;
    let waiting = |i: u32| format!("\n[[watch]]\nname = \"waiting{i}\"\nprocess = \"nobody-{i}\"\n");
    let more = (0..if is_large { args.pending } else { 0 }).map(waiting).collect();
    let mut rig = Rig::up(RigSpec { hosts: 3, heartbeat: HEARTBEAT, more, ..RigSpec::default() }, ui)?;
    let processes = if is_large { populate(&rig, interfaces, args, ui)? } else { Vec::new() };
    let done = (|| {
        let agent = rig.agent_pid(WATCHED).context("no agent on the watched host")?;
        let (thread, all) = idle_rates(agent)?;
        let mut case = case(format!("interfaces={interfaces}"), crashes(&mut rig, args.crashes, ui)?);
        case.values.insert("watched_thread_percent".into(), thread);
        case.values.insert("watched_agent_percent".into(), all);
        case.values.insert("watched_agent_mib".into(), (sys::usage(agent)?.1 >> 20) as f64);
        if is_large {
            let Args { addresses, processes, pending, .. } = args;
            case.notes.push(format!(
                "the watched host has {addresses} addresses, {processes} processes and {pending} watches that wait"
            ));
        }
        Ok(case)
    })();
    for mut group in processes {
        // They may have ended.
        _ = sys::kill_group(group.id(), libc::SIGKILL);
        _ = group.wait();
    }
    done
}

/// What agents take of a processor while nothing happens.
fn with_period(period: &str, ui: &Ui) -> Result<Case> {
    const WINDOW: Duration = Duration::from_millis(100);
    const WINDOWS: u32 = 50;
    let heartbeat = PERIODS.into_iter().find(|known| *known == period).context("clap has looked")?;
    let mut rig = Rig::up(RigSpec { hosts: 3, heartbeat, ..RigSpec::default() }, ui)?;
    let meter = Meter::of(rig.agent_pid(OBSERVING).context("no agent on the observing host")?)?;
    let receiving = Receiving::count()?;
    ui.progress(format!("heartbeats every {period}"));
    ui.sleep(Duration::from_secs(1))?;
    let sent = rig.status(OBSERVING)?.heartbeats_sent;
    let (mut samples, received, before) = (Samples::default(), receiving.read(), meter.read()?);
    for _ in 0..WINDOWS {
        let used = meter.read()?;
        ui.sleep(WINDOW)?;
        samples.push((meter.read()? - used).thread_ns);
    }
    let used = meter.read()? - before;
    let after = receiving.read();
    let (runs, ns) = (after.0 - received.0, after.1 - received.1);
    let sent = (rig.status(OBSERVING)?.heartbeats_sent - sent) as f64;
    let mut case = Case::new("growth", format!("period={period}"), &mut samples);
    let mut value = |name: &str, value: f64| case.values.insert(name.into(), (value * 100.0).round() / 100.0);
    value("thread_us_per_heartbeat", used.thread_ns as f64 / 1e3 / sent);
    value("softirq_us_per_heartbeat", used.softirq_ns as f64 / 1e3 / sent);
    value("thread_percent", used.thread_ns as f64 / (WINDOW * WINDOWS).as_nanos() as f64 * 100.0);
    value("receive_program_ns_per_frame", ns as f64 / runs.max(1) as f64);
    case.notes.push("the agent's real-time thread in windows of 100 ms, without the softirqs of its processor".into());
    case.notes.push(report::machine());
    Ok(case)
}

/// A heartbeat of the watched host.
fn is_its_heartbeat(frame: &[u8]) -> bool {
    let is_ours = frame.get(12..14) == Some(&[8, 0]) && frame.get(42..44) == Some(&[0xf1, 0xde]);
    let of = fide_wire::name_id(&format!("h{WATCHED}")).to_be_bytes();
    is_ours && frame.get(50..54) == Some(&of) && frame.get(58) == Some(&(fide_wire::frame::Kind::Heartbeat as u8))
}

/// What a restart of the watched host's agent costs who waits for a crash that falls into it.
#[derive(Default)]
struct Restarts {
    /// From before the start of the new agent's process to its first heartbeat at the other host.
    heartbeat: Samples,
    /// From that to the upcall there.
    told: Samples,
    missing: u32,
}

fn with_restarts(count: u32, ui: &Ui) -> Result<Vec<Case>> {
    let mut rig = Rig::up(RigSpec { hosts: 3, heartbeat: HEARTBEAT, restarts: true, ..RigSpec::default() }, ui)?;
    let mut observers = Observers::default();
    let observer = observers.start(&rig, OBSERVING, &[&format!("{NAME}@h{WATCHED}")], false)?;
    let mut all = [Restarts::default(), Restarts::default()];
    for serial in 0..count {
        ui.check()?;
        ui.progress(format!("restart {} of {count}", serial + 1));
        let restarts = &mut all[serial as usize % 2];
        let sleepers = Sleepers::start(&rig, 1)?;
        let app = rig.watch(WATCHED, NAME, sleepers.0[0].id())?;
        wait_until_monitored(&mut observers, &[observer], app)?;
        ui.sleep(SETTLED)?;
        rig.end_agent(WATCHED, if serial % 2 == 0 { libc::SIGTERM } else { libc::SIGKILL })?;
        let tap = rig.lab().in_switch(0, || Tap::open(&format!("h{OBSERVING}")))??;
        sleepers.kill()?;
        // Its last heartbeats are behind the tap's beginning, if any: it is gone, but veth devices queue.
        ui.sleep(Duration::from_millis(2))?;
        tap.count(|_| false);
        let started_ns = sys::now_ns();
        rig.start_agent(WATCHED)?;
        let heartbeat =
            promptly(|| tap.first(is_its_heartbeat, Instant::now() + PATIENCE)).context("no heartbeat after a restart")?;
        restarts.heartbeat.push(heartbeat - started_ns);
        let told = observers.wait_for(PATIENCE, |_, report| matches!(report, Report::Failure(upcall) if upcall.app == app));
        match told {
            Some((_, Report::Failure(upcall))) => restarts.told.push(upcall.at_ns.saturating_sub(heartbeat)),
            _ => restarts.missing += 1,
        }
        rig.wait_until_all_see_all(ui)?;
    }
    let names = ["restarts=stopped", "restarts=killed"];
    let cases = names.into_iter().zip(&mut all).map(|(name, restarts)| {
        let mut case = Case::new("growth", name, &mut restarts.told);
        case.beside.insert("start to first heartbeat".into(), restarts.heartbeat.beside());
        case.values.insert("missing".into(), restarts.missing.into());
        case.notes.push("from the first heartbeat after the start to the upcall of a crash before it".into());
        case.notes.push(report::machine());
        case
    });
    Ok(cases.collect())
}

/// Ends at once, of all rounds.
#[derive(Default)]
struct Ends {
    samples: Samples,
    /// The largest of each round.
    last: Samples,
    missing: usize,
    lost: u64,
    thread_ns: u64,
}

impl Ends {
    fn case(mut self, ends: u32, rounds: u32) -> Case {
        let mut case = Case::new("growth", format!("ends={ends}"), &mut self.samples);
        case.beside.insert("last of a round".into(), self.last.beside());
        case.values.insert("missing".into(), self.missing as f64);
        case.values.insert("lost".into(), self.lost as f64);
        let per_end = self.thread_ns as f64 / 1e3 / f64::from(ends * rounds);
        case.values.insert("thread_us_per_end".into(), (per_end * 100.0).round() / 100.0);
        case.notes.push(report::machine());
        case
    }
}

fn ends_at_once(ends: u32, round: &str, all: &mut Ends, ui: &Ui) -> Result<()> {
    let mut rig = Rig::up(RigSpec { hosts: 3, heartbeat: HEARTBEAT, ..RigSpec::default() }, ui)?;
    let mut observers = Observers::default();
    observers.start(&rig, OBSERVING, &[&format!("@h{WATCHED}")], false)?;
    ui.progress(format!("{ends} processes, {round}"));
    let sleepers = Sleepers::start(&rig, ends)?;
    let mut apps = BTreeSet::new();
    for (n, child) in sleepers.0.iter().enumerate() {
        apps.insert(rig.watch(WATCHED, &format!("{NAME}{n}"), child.id())?);
    }
    let mut unknown = apps.clone();
    observers.wait_for(PATIENCE, |_, report| {
        if let Report::Monitored(upcall) = report {
            unknown.remove(&upcall.app);
        }
        unknown.is_empty()
    });
    if !unknown.is_empty() {
        bail!("{} of {ends} processes are not known on h{OBSERVING}", unknown.len());
    }
    ui.sleep(Duration::from_millis(200))?;
    let meter = Meter::of(rig.agent_pid(OBSERVING).context("no agent on the observing host")?)?;
    let before = meter.read()?;
    let killed_ns = sleepers.kill()?;
    let mut last = 0;
    let deadline = Instant::now() + PATIENCE;
    while let Some((_, report)) = if apps.is_empty() { None } else { observers.next(deadline) } {
        ui.check()?;
        match report {
            Report::Failure(upcall) if apps.remove(&upcall.app) => {
                last = last.max(upcall.at_ns.saturating_sub(killed_ns));
                all.samples.push(upcall.at_ns.saturating_sub(killed_ns));
            }
            Report::Lost { count } => all.lost += count,
            _ => {}
        }
    }
    all.last.push(last);
    all.missing += apps.len();
    all.thread_ns += (meter.read()? - before).thread_ns;
    Ok(())
}

fn tell(case: &Case, ui: &Ui) {
    if ui.json {
        ui.line(case.json());
        return;
    }
    ui.line(format!("\n{}  {}", ui.paint(Paint::Bold, &case.case), ui.paint(Paint::Dim, &format!("n = {}", case.n))));
    let row = |name: &str, q: &Quantiles| {
        let [p50, p99, p999, max] = [q.p50, q.p99, q.p999, q.max].map(human_us);
        ui.line(format!("  {name:<25} median {p50:>8}   p99 {p99:>8}   p99.9 {p999:>8}   max {max:>8}"));
    };
    let whole = match case.case.split('=').next() {
        Some("restarts") => "first heartbeat to upcall",
        Some("period") => "real-time thread, 100 ms",
        _ => "crash to upcall",
    };
    row(whole, &case.quantiles);
    for name in Steps::NAMES {
        if let Some(step) = case.steps.get(name) {
            row(&format!("  {name}"), step);
        }
    }
    for (name, beside) in &case.beside {
        row(name, &beside.quantiles);
    }
    let values: Vec<String> = case.values.iter().map(|(name, value)| format!("{} {value}", name.replace('_', " "))).collect();
    ui.line(format!("  {}", values.join(", ")));
}

/// The sweep that a case belongs to, and its size.
fn size(case: &Case) -> Option<(&str, f64)> {
    let (sweep, size) = case.case.split_once('=')?;
    Some((sweep, size.parse().ok()?))
}

fn restart_row((how, case): (&str, &Case)) -> Vec<String> {
    let heartbeat = case.beside.get("start to first heartbeat").map(|b| b.quantiles).unwrap_or_default();
    let times = [heartbeat.p50, heartbeat.max, case.quantiles.p50, case.quantiles.max].map(human_us);
    let missing = case.values.get("missing").map_or(String::new(), f64::to_string);
    [how.to_owned(), case.n.to_string()].into_iter().chain(times).chain([missing]).collect()
}

fn write(directory: &Path, cases: &[Case]) -> Result<()> {
    let lines: String = cases.iter().map(|c| c.json() + "\n").collect();
    output::write(&directory.join("results.jsonl"), &lines)?;
    let mut page = Page::new(
        "fide bench growth",
        "What a crash costs as the cluster, the number of ends at once and the host itself grow. Where a line is level, growth costs nothing.",
    );
    page.medians("crash to upcall", cases);
    for (sweep, x) in [("hosts", "hosts"), ("ends", "processes ended by one kill"), ("interfaces", "network interfaces")] {
        let of: Vec<(f64, &Case)> =
            cases.iter().filter_map(|c| size(c).filter(|(s, _)| *s == sweep).map(|(_, n)| (n, c))).collect();
        if of.is_empty() {
            continue;
        }
        page.heading(&format!("By {x}"));
        let row = |(n, case): &(f64, &Case)| {
            let q = &case.quantiles;
            let beside = |name: &str| case.beside.get(name).map_or(String::new(), |b| human_us(b.quantiles.p50));
            let value = |name: &str| case.values.get(name).map_or(String::new(), f64::to_string);
            let times = [q.p50, q.p99, q.max].map(human_us);
            let rest = [beside("below the agent"), value("thread_us_per_crash"), value("frames_median"), value("missing")];
            [n.to_string(), case.n.to_string()].into_iter().chain(times).chain(rest).collect()
        };
        page.table(
            &[x, ">n", ">median", ">p99", ">max", ">below the agent", ">real-time thread, µs a crash", ">frames", ">missing"],
            &of.iter().map(row).collect::<Vec<_>>(),
        );
        let line = |name: &str, of_case: &dyn Fn(&Case) -> Option<f64>| Series {
            name: name.into(),
            points: of.iter().filter_map(|(n, case)| Some((*n, of_case(case)?))).collect(),
            ..Series::default()
        };
        let beside = |name: &'static str| move |case: &Case| case.beside.get(name).map(|b| b.quantiles.p50);
        let series = [
            line("crash to upcall, median", &|case| Some(case.quantiles.p50)),
            line("crash to upcall, p99", &|case| Some(case.quantiles.p99)),
            line("below the agent, median", &beside("below the agent")),
            line("real-time thread, mean", &|case| case.values.get("thread_us_per_crash").copied()),
        ];
        let axes = Axes { title: &format!("By {x}"), x: Axis::numbers(x).log(), y: Axis::times("time") };
        page.chart(&directory.join(format!("{sweep}.svg")), &axes, &series)?;
    }
    let restarts: Vec<Vec<String>> =
        cases.iter().filter_map(|case| Some((case.case.strip_prefix("restarts=")?, case))).map(restart_row).collect();
    if !restarts.is_empty() {
        page.heading("By restarts of the agent");
        page.table(
            &["its end", ">n", ">start to heartbeat, median", ">max", ">from there to the upcall, median", ">max", ">missing"],
            &restarts,
        );
    }
    output::write(&directory.join("report.html"), &page.finish())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn case_of(name: &str, us: &[u64]) -> Case {
        let samples = || us.iter().map(|us| us * 1000).collect::<Samples>();
        case(
            name.into(),
            Crashes {
                above: samples(),
                below: samples(),
                used: us.iter().map(|us| Used { thread_ns: us * 1000, ..Used::default() }).collect(),
                frames: samples(),
                ..Crashes::default()
            },
        )
    }

    /// A report of what was never measured.
    pub(crate) fn sample(directory: &Path) {
        let cases = [
            case_of("hosts=3", &[80, 90, 400]),
            case_of("hosts=24", &[100, 120]),
            case_of("interfaces=2", &[70]),
            case_of("restarts=killed", &[900]),
        ];
        write(directory, &cases).unwrap();
    }

    #[test]
    fn a_report_has_a_drawing_for_each_sweep() {
        let directory = tempfile::tempdir().unwrap();
        sample(directory.path());
        for file in ["report.html", "results.jsonl", "hosts.svg", "interfaces.svg"] {
            assert!(directory.path().join(file).metadata().unwrap().len() > 100, "{file}");
        }
        assert!(!directory.path().join("ends.svg").exists());
    }

    #[test]
    fn frames_of_others_are_not_counted() {
        assert!(!is_of_tables(&[]));
        assert!(!is_of_tables(&[0; 1500]));
        let mut frame = [0; 100];
        frame[12] = 8;
        (frame[42], frame[43]) = (0xf1, 0xde);
        frame[58] = fide_wire::frame::Kind::Heartbeat as u8;
        assert!(!is_of_tables(&frame));
    }
}
