//! `fide bench detect`: how long after a crash a remote application knows, and what it costs to know.

use crate::Outcome;
use crate::crash::{self, NAME, Plan, Steps, WATCHED, promptly};
use crate::drawing::{Axes, Axis, Series, cdf, chart, pdf};
use crate::load::{self, Load};
use crate::observer::{Observers, Report};
use crate::output;
use crate::peers::Target;
use crate::peers::servers::{self, Servers};
use crate::report::{self, Page};
use crate::rig::{Profile, Rig, RigSpec};
use crate::stats::{Case, Samples, human_us};
use crate::sys;
use crate::tab2::{self, Cell, Row};
use crate::ui::{Paint, Ui};
use crate::victim::Victim;
use anyhow::{Context as _, Result, bail};
use fide_lab::Cut;
use fide_wire::verdict::{Cause, Evidence};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Which cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// kill -9 of a process: upcall, TCP close and pidfd in the same crashes
    Sigkill,
    /// The same beside etcd's lease and ZooKeeper's ephemeral node, where these are installed
    Peers,
    /// Both cables of a host are cut silently
    Silent,
    /// A process that moves every millisecond is stopped: it is hung when its limit is over (50 ms)
    Hung,
    /// kill -9 of an agent
    Agent,
    /// What an agent takes of processor and memory
    Footprint,
    /// 32 hosts at 10 ms with nothing wrong, for a minute
    Hosts,
}

/// Arguments of `fide bench detect`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Crashes for each case of small processes; fewer for large ones, and a fiftieth for peers, each of which takes seconds
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub crashes: u64,
    /// Bytes resident in the crashing process (K, M and G are understood)
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values = ["0", "1G", "4G"], value_parser = bytes)]
    pub rss: Vec<u64>,
    /// What goes on beside
    #[arg(long, value_delimiter = ',', default_values = ["idle", "stress", "traffic"])]
    pub load: Vec<Load>,
    /// How the watched host's agent treats its processor
    #[arg(long, value_delimiter = ',', default_values = ["shared"])]
    pub profile: Vec<Profile>,
    /// Only these
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub only: Vec<Kind>,
    /// A tenth of everything
    #[arg(long)]
    pub quick: bool,
    /// The observing application spins instead of sleeping
    #[arg(long)]
    pub spin: bool,
    /// Instead: count verdicts for so long under stress with nothing wrong
    #[arg(long, value_name = "MINUTES", conflicts_with = "only")]
    pub false_verdicts: Option<f64>,
    /// Write report.html, its drawings and results.jsonl there
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Fail when a figure misses its bar in SPECIFICATION.md
    #[arg(long)]
    pub check: bool,
}

/// `4G`, `512M`, `0`.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let n: u64 = digits.parse().map_err(|_| format!("{text:?} is not a number of bytes; write for example 0, 512M or 4G"))?;
    let bytes = n.checked_shl(shift).filter(|b| b >> shift == n && *b <= 16 << 30);
    bytes.ok_or_else(|| format!("{text} is more than the 16G that a benchmark may take"))
}

/// `4G`, `512M`, `0`.
fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 && b.is_multiple_of(1 << 30) => format!("{}G", b >> 30),
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{}M", b >> 20),
        b => b.to_string(),
    }
}

/// A case with its samples, for the drawings.
#[derive(Debug)]
struct Measured {
    case: Case,
    /// By name: `upcall`, `tcp`, `pidfd`, and the cases of peers.
    samples: BTreeMap<String, Samples>,
}

/// Samples by name.
fn named<const N: usize>(samples: [(&str, Samples); N]) -> BTreeMap<String, Samples> {
    samples.map(|(name, samples)| (name.to_string(), samples)).into()
}

/// Runs what was asked for. `Ok(false)`: an upcall never came, or there was a false verdict.
///
/// # Errors
/// When something keeps a case from being measured.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    if let Some(directory) = &args.report {
        report::prepare(directory)?;
    }
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let mut all = Vec::new();
    let mut good = match args.false_verdicts {
        Some(minutes) => false_verdicts(minutes, ui, &mut all)?,
        None => measure_all(args, ui, &mut all)?,
    };
    if all.iter().any(|m| m.case.case.starts_with(PEERS)) {
        tell_tab2(&all, ui);
    }
    if let Some(directory) = &args.report {
        write(directory, &mut all).with_context(|| format!("cannot write the report to {}", directory.display()))?;
        ui.say(format!("report: {}", directory.join("report.html").display()));
    }
    if args.check {
        for missed in crate::bars::missed(all.iter().map(|m| &m.case)) {
            good = false;
            eprintln!("missed: {missed}");
        }
    }
    Ok(good)
}

fn measure_all(args: &Args, ui: &Ui, all: &mut Vec<Measured>) -> Result<bool> {
    let missing = servers::missing();
    if args.only.contains(&Kind::Peers) && missing.len() == PEERS_KNOWN {
        bail!("there is nothing to compare with: {}", missing.join("; "));
    }
    let wanted = |kind| args.only.is_empty() || args.only.contains(&kind);
    let scaled = |n: u64, least: u64| if args.quick { (n / 10).max(least) } else { n };
    let mut good = true;
    for &profile in &args.profile {
        let mut rig = Rig::up(RigSpec { profile, ..RigSpec::default() }, ui)?;
        let pidfd_and_upcalls = |rig: &Rig| -> Result<Observers> {
            let mut observers = Observers::default();
            observers.start(rig, 2, &[&format!("{NAME}@h1"), "@h1"], args.spin)?;
            observers.start(rig, WATCHED, &[], false)?;
            Ok(observers)
        };
        if wanted(Kind::Sigkill) {
            for &load in &args.load {
                let running = load::start(&rig, load)?;
                let mut observers = pidfd_and_upcalls(&rig)?;
                for &rss in &args.rss {
                    let n = match rss {
                        0 => scaled(args.crashes, 20),
                        // Large processes take seconds to make: as many as fill about two minutes.
                        _ => scaled((args.crashes * (128 << 20) / rss).clamp(1, args.crashes), 3),
                    };
                    let measured = sigkill(&mut rig, &mut observers, ui, n, rss, load, args.spin)?;
                    good &= measured.case.values.get("missed") == Some(&0.0);
                    tell(&measured, ui);
                    all.push(measured);
                }
                drop(running);
            }
        }
        if wanted(Kind::Peers) {
            good &= peers(&mut rig, ui, scaled((args.crashes / 50).max(1), 2), args.spin, all)?;
        }
        let one = |measured: Measured, all: &mut Vec<Measured>| {
            tell(&measured, ui);
            all.push(measured);
        };
        if wanted(Kind::Footprint) {
            for measured in footprint(&mut rig, ui, if args.quick { 5 } else { 20 })? {
                one(measured, all);
            }
        }
        if wanted(Kind::Hung) {
            one(hung(&mut rig, ui, scaled(200, 10))?, all);
        }
        if wanted(Kind::Agent) {
            one(agent_killed(&mut rig, ui, scaled(30, 3))?, all);
        }
        if wanted(Kind::Silent) {
            one(silent(&mut rig, ui, scaled(100, 5))?, all);
        }
    }
    if wanted(Kind::Hosts) {
        let (measured, none) = hosts(ui, 32, Duration::from_secs(if args.quick { 10 } else { 60 }))?;
        good &= none;
        tell(&measured, ui);
        all.push(measured);
    }
    Ok(good)
}

fn suffix(rig: &Rig) -> String {
    match rig.spec().profile {
        Profile::Shared => String::new(),
        Profile::Dedicated => " dedicated".into(),
    }
}

fn sigkill(rig: &mut Rig, observers: &mut Observers, ui: &Ui, n: u64, rss: u64, load: Load, spin: bool) -> Result<Measured> {
    let name = format!("sigkill {} rss={}{}{}", load.name(), size(rss), suffix(rig), if spin { " spin" } else { "" });
    let plan = Plan { rss, patience: Duration::from_secs(30), pidfd: Some(1), keys: &[], spread: Duration::ZERO };
    let (mut upcall, mut tcp, mut pidfd) = (Samples::default(), Samples::default(), Samples::default());
    let mut steps: [Samples; 4] = Default::default();
    let mut missed = 0;
    let mut worst_ratio = Samples::default();
    for i in 0..n {
        ui.check()?;
        ui.progress(format!("{name}: {} of {n}", i + 1));
        let times = crash::crash(rig, observers, &[0], &plan, i, ui)?;
        let Some(Some(u)) = times.upcalls.first() else {
            missed += 1;
            continue;
        };
        let ours = u.at_ns.saturating_sub(times.event_ns);
        upcall.push(ours);
        if let Some(parts) = Steps::of(times.event_ns, u) {
            for (samples, ns) in steps.iter_mut().zip(parts.all()) {
                samples.push(ns);
            }
        }
        if let Some(Some(at)) = times.tcp.first() {
            let theirs = at.saturating_sub(times.event_ns);
            tcp.push(theirs);
            worst_ratio.push(theirs / ours.max(1));
        }
        pidfd.extend(times.pidfd.map(|at| at.saturating_sub(times.event_ns)));
    }
    let mut case = Case::new("detect", name, &mut upcall);
    for (name, samples) in Steps::NAMES.iter().zip(&mut steps) {
        case.steps.insert((*name).into(), samples.quantiles());
    }
    case.beside.insert("tcp".into(), tcp.beside());
    case.beside.insert("pidfd".into(), pidfd.beside());
    case.values.insert("missed".into(), f64::from(missed));
    case.values.insert("tcp_ratio_p50".into(), worst_ratio.quantile(0.5) as f64);
    case.values.insert("tcp_ratio_min".into(), worst_ratio.quantile(0.0) as f64);
    case.notes.push(report::machine());
    if !observers.realtime() {
        case.notes.push("no permission for SCHED_FIFO: the observers ran as ordinary threads".into());
    }
    if rss > 0 {
        case.notes.push(format!("{n} crashes only: each has to fill {} first", size(rss)));
    }
    Ok(Measured { case, samples: named([("upcall", upcall), ("tcp", tcp), ("pidfd", pidfd)]) })
}

// ---- etcd and ZooKeeper --------------------------------------------------------------------------------------------------------

/// The case with everything in the same crashes.
const PEERS: &str = "peers sigkill rss=0";
/// How many systems there are to compare with.
const PEERS_KNOWN: usize = 2;
/// Crashes are spread over a whole number of everything periodic: renewals (a third of 4 s, 2 s, 1 s and 200 ms) and the ticks at
/// which ZooKeeper ends sessions (2 s and 100 ms). Each crash begins when the last session ended, which was at a tick.
const PEERS_SPREAD: Duration = Duration::from_secs(4);

/// What became of one server's keys.
#[derive(Debug, Default)]
struct Kept {
    granted_ms: u64,
    ended: Samples,
    ratio: Samples,
    /// Given up while their process lived.
    early: u32,
    missed: u32,
}

/// One kill for each crash: our upcall, TCP, pidfd, and the end of the key of each server. Whether nothing of ours was missed.
fn peers(rig: &mut Rig, ui: &Ui, n: u64, spin: bool, all: &mut Vec<Measured>) -> Result<bool> {
    let servers = Servers::start(rig, ui)?;
    for line in &servers.left_out {
        ui.warn(line);
    }
    if servers.running.is_empty() {
        return Ok(true);
    }
    let mut observers = Observers::default();
    observers.start(rig, 2, &[&format!("{NAME}@h1"), "@h1"], spin)?;
    observers.start(rig, WATCHED, &[], false)?;
    let keys: Vec<Target> = servers.running.iter().map(|s| s.target.clone()).collect();
    let plan = Plan { rss: 0, patience: Duration::from_secs(30), pidfd: Some(1), keys: &keys, spread: PEERS_SPREAD };
    let name = format!("{PEERS}{}{}", suffix(rig), if spin { " spin" } else { "" });
    let (mut upcall, mut tcp, mut pidfd) = (Samples::default(), Samples::default(), Samples::default());
    let mut steps: [Samples; 4] = Default::default();
    let mut kept: Vec<Kept> = keys.iter().map(|_| Kept::default()).collect();
    let mut missed = 0;
    for i in 0..n {
        ui.check()?;
        ui.progress(format!("{name}: {} of {n}, some seconds each", i + 1));
        let times = crash::crash(rig, &mut observers, &[0], &plan, i, ui)?;
        let since = |at: u64| at.saturating_sub(times.event_ns);
        let ours = times.upcalls.first().and_then(Option::as_ref);
        missed += u32::from(ours.is_none());
        upcall.extend(ours.map(|u| since(u.at_ns)));
        if let Some(parts) = ours.and_then(|u| Steps::of(times.event_ns, u)) {
            for (samples, ns) in steps.iter_mut().zip(parts.all()) {
                samples.push(ns);
            }
        }
        tcp.extend(times.tcp.iter().flatten().map(|at| since(*at)));
        pidfd.extend(times.pidfd.map(since));
        for ((kept, end), granted_ms) in kept.iter_mut().zip(&times.keys).zip(&times.granted_ms) {
            kept.granted_ms = *granted_ms;
            match end {
                None => kept.missed += 1,
                Some(at) if *at < times.event_ns => kept.early += 1,
                Some(at) => {
                    kept.ended.push(since(*at));
                    kept.ratio.extend(ours.map(|u| since(*at) / since(u.at_ns).max(1)));
                }
            }
        }
    }
    let mut case = Case::new("detect", name, &mut upcall);
    for (name, samples) in Steps::NAMES.iter().zip(&mut steps) {
        case.steps.insert((*name).into(), samples.quantiles());
    }
    case.beside.insert("tcp".into(), tcp.beside());
    case.beside.insert("pidfd".into(), pidfd.beside());
    case.values.insert("missed".into(), f64::from(missed));
    case.values.insert("mean".into(), upcall.mean_us());
    // By silence on a host that is gone, before the questions to its kernel: at most this.
    let timeout_ns = rig.status(2)?.hosts.iter().find(|h| h.name == "h1").map_or(0, |h| h.timeout_ns);
    case.values.insert("timeout".into(), timeout_ns as f64 / 1e3);
    case.notes.push(report::machine());
    case.notes.push(
        "in each crash, one process is seen by all of these; it renews its keys after each third of what was granted, and dies at \
         any moment between two renewals or ticks"
            .into(),
    );
    let mut samples = named([("upcall", upcall), ("tcp", tcp), ("pidfd", pidfd)]);
    let mut theirs = Vec::new();
    for (server, mut kept) in servers.running.iter().zip(kept) {
        let name = format!("{}{}", server.case(kept.granted_ms), suffix(rig));
        case.beside.insert(name.clone(), kept.ended.beside());
        case.notes.push(server.note());
        if kept.early + kept.missed > 0 {
            case.notes.push(format!(
                "{name}: given up while its process lived in {} of {n} crashes, never told in {}",
                kept.early, kept.missed
            ));
        }
        let mut own = Case::new("detect", name.clone(), &mut kept.ended);
        own.values = BTreeMap::from([
            ("granted_ms".into(), kept.granted_ms as f64),
            ("given_up_while_alive".into(), f64::from(kept.early)),
            ("missed".into(), f64::from(kept.missed)),
            ("mean".into(), kept.ended.mean_us()),
            ("ratio_p50".into(), kept.ratio.quantile(0.5) as f64),
        ]);
        own.notes = vec![report::machine(), server.note()];
        samples.insert(name, kept.ended.clone());
        theirs.push(Measured { case: own, samples: named([("key", kept.ended)]) });
    }
    let ours = Measured { case, samples };
    tell(&ours, ui);
    all.push(ours);
    for measured in theirs {
        // People have read it as a line of the case above.
        if ui.json {
            tell(&measured, ui);
        }
        all.push(measured);
    }
    Ok(missed == 0)
}

/// The case with the most crashes of a small process on an idle machine: which, and what to call FiDe there.
fn small_crashes(all: &[Measured]) -> Option<(usize, String)> {
    let how = |m: &Measured| ["sigkill idle rss=0", PEERS].iter().find_map(|p| m.case.case.strip_prefix(p)).map(String::from);
    let found = all.iter().enumerate().filter_map(|(i, m)| Some((i, m.case.n, how(m)?)));
    // Of equals the first.
    let most = found.reduce(|a, b| if b.1 > a.1 { b } else { a })?;
    Some((most.0, format!("FiDe{}", most.2)))
}

/// Tab. 2 of what was measured.
fn tab2_rows(all: &[Measured]) -> Vec<Row> {
    let of = |m: &Measured, name: &str| m.samples.get(name).filter(|s| !s.is_empty()).cloned();
    let row = |approach: String, mut samples: Samples, system: Cell, catastrophe: Cell| Row {
        approach,
        n: Some(samples.len()),
        application_us: Some((samples.mean_us(), samples.quantiles().max)),
        system,
        catastrophe,
    };
    let mut rows = Vec::new();
    if let Some((most, ours)) = small_crashes(all) {
        let most = &all[most];
        let silent = all.iter().find(|m| m.case.case.starts_with("silent-host idle"));
        let timeout = all.iter().find_map(|m| m.case.values.get("timeout"));
        let silent = match (silent, timeout) {
            (Some(m), _) => Cell::Us(m.case.quantiles.max, "measured, max"),
            (None, Some(us)) => Cell::Us(*us, "timeout, then 3 questions"),
            (None, None) => Cell::Blank,
        };
        for (name, approach, system, catastrophe) in [
            ("upcall", ours.as_str(), silent.clone(), silent),
            ("tcp", "TCP close", Cell::None("no word"), Cell::None("no word")),
            ("pidfd", "pidfd, same host only", Cell::None("no word"), Cell::None("no word")),
        ] {
            rows.extend(of(most, name).map(|samples| row(approach.into(), samples, system, catastrophe)));
        }
    }
    for m in all {
        if let (Some(granted_ms), Some(samples)) = (m.case.values.get("granted_ms"), of(m, "key")) {
            let granted = Cell::Us(granted_ms * 1e3, "granted");
            rows.push(row(m.case.case.clone(), samples, granted.clone(), granted));
        }
    }
    rows
}

fn tell_tab2(all: &[Measured], ui: &Ui) {
    if ui.json {
        return;
    }
    ui.line(format!("\n{}  {}", ui.paint(Paint::Bold, "Tab. 2, measured here"), ui.paint(Paint::Dim, tab2::LEGEND)));
    for line in tab2::lines(&tab2_rows(all)) {
        ui.line(format!("  {line}"));
    }
    ui.line(ui.paint(Paint::Dim, &format!("\n{}", tab2::PAPER)));
    for line in tab2::lines(&tab2::paper()) {
        ui.line(ui.paint(Paint::Dim, &format!("  {line}")));
    }
}

/// A single number as a case.
fn number(name: String, unit: &'static str, value: f64) -> Case {
    let mut case = Case::new("detect", name, &mut Samples::default());
    case.n = 1;
    case.unit = unit;
    case.quantiles = crate::stats::Quantiles { min: value, p50: value, p99: value, p999: value, max: value };
    case.notes.push(report::machine());
    case
}

fn footprint(rig: &mut Rig, ui: &Ui, seconds: u64) -> Result<Vec<Measured>> {
    let mut found = Vec::new();
    let hosts: Vec<u16> = if rig.spec().profile == Profile::Dedicated { vec![WATCHED] } else { vec![2] };
    for host in hosts {
        let pid = rig.agent_pid(host).context("no agent")?;
        let begun = Instant::now();
        let before = sys::usage(pid)?;
        while begun.elapsed() < Duration::from_secs(seconds) {
            ui.check()?;
            ui.progress(format!("footprint of an agent: {} of {seconds} s", begun.elapsed().as_secs()));
            std::thread::sleep(Duration::from_millis(100));
        }
        let after = sys::usage(pid)?;
        let percent = (after.0 - before.0) / begun.elapsed().as_secs_f64() * 100.0;
        let mut case =
            number(format!("footprint hosts=3 hb={}{}", rig.spec().heartbeat, suffix(rig)), "percent-of-a-core", percent);
        case.values.insert("cpu_percent".into(), percent);
        case.values.insert("rss_mb".into(), after.1 as f64 / 1e6);
        case.values.insert("seconds".into(), begun.elapsed().as_secs_f64());
        found.push(Measured { case, samples: BTreeMap::new() });
    }
    Ok(found)
}

/// The last heartbeat that a verdict rests on, on any path.
fn last_heartbeat(rig: &mut Rig, host: u16, upcall: &crate::observer::Upcall) -> Result<u64> {
    let event = rig.explain(host, upcall.id.context("a verdict without an id")?)?;
    let last = event.evidence.and_then(|e| e.paths.iter().map(|p| p.last_arrival_ns).max()).unwrap_or(0);
    anyhow::ensure!(last != 0, "the verdict rests on no arrival");
    Ok(last)
}

/// Waits for a report about h1 itself.
fn host_report(observers: &mut Observers, cause: Cause, within: Duration) -> Result<crate::observer::Upcall> {
    match observers.wait_for(within, |_, r| matches!(r, Report::Host(u) if u.cause == cause)) {
        Some((_, Report::Host(u))) => Ok(u),
        _ => bail!("no {cause} of h1 was reported within {} s", within.as_secs()),
    }
}

/// Of the process on h1 that is monitored.
fn progress_report(observers: &mut Observers, cause: Cause) -> Result<crate::observer::Upcall> {
    match observers.wait_for(Duration::from_secs(10), |_, r| matches!(r, Report::Progress(u) if u.cause == cause)) {
        Some((_, Report::Progress(u))) => Ok(u),
        _ => bail!("no word of {NAME}@h1 being {cause} came within 10 s"),
    }
}

/// B10, F20: no progress for the limit, and the others know.
fn hung(rig: &mut Rig, ui: &Ui, n: u64) -> Result<Measured> {
    const LIMIT: Duration = Duration::from_millis(50);
    let mut observers = Observers::default();
    observers.start(rig, 2, &[&format!("{NAME}@h1")], false)?;
    let moved = rig.lab().host_dir(WATCHED).join("bench-moved");
    let victim = Victim::moving(rig, WATCHED, 19_998, NAME, LIMIT, &moved)?;
    crash::wait_until_monitored(&mut observers, &[0], victim.app)?;
    let (mut late, mut told) = (Samples::default(), Samples::default());
    for i in 0..n {
        ui.check()?;
        ui.progress(format!("hung: {} of {n}", i + 1));
        // Spread over the agent's period and its looks.
        std::thread::sleep(Duration::from_micros(30_000 + i * 617 % 8_000));
        sys::kill(victim.pid(), libc::SIGSTOP)?;
        let report = progress_report(&mut observers, Cause::Hung)?;
        // It stands still since long, so this is its last.
        let stamp = std::fs::read(&moved).ok().and_then(|bytes| Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?)));
        let stamp = stamp.context("the process did not say when it moved")?;
        sys::kill(victim.pid(), libc::SIGCONT)?;
        late.push(report.at_ns.saturating_sub(stamp + LIMIT.as_nanos() as u64));
        told.push(report.at_ns.saturating_sub(report.event_ns));
        progress_report(&mut observers, Cause::Progressing)?;
    }
    let mut case = Case::new("detect", format!("hung limit=50ms idle{}", suffix(rig)), &mut late);
    case.beside.insert("since_found".into(), told.beside());
    case.notes.push(report::machine());
    case.notes
        .push("counted from the last movement and the limit; since_found: from the look of its own agent to the upcall".into());
    Ok(Measured { case, samples: named([("upcall", late)]) })
}

/// A kernel says of a closed port that nobody holds it to each asker six times, and then once a
/// second (`icmp_ratelimit`): kills in quick succession would measure that.
const PORT_ANSWERS: Duration = Duration::from_secs(6);

fn rest(how_long: Duration, ui: &Ui) -> Result<()> {
    let until = Instant::now() + how_long;
    while Instant::now() < until {
        ui.check()?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn agent_killed(rig: &mut Rig, ui: &Ui, n: u64) -> Result<Measured> {
    let mut observers = Observers::default();
    observers.start(rig, 2, &["@h1"], false)?;
    let mut lost = Samples::default();
    let mut crashes = 0;
    let victim = Victim::start(rig, WATCHED, 19_999, 0, None)?;
    // Once: the watch goes on under the next agents.
    let app = rig.watch(WATCHED, NAME, victim.pid())?;
    crash::wait_until_monitored(&mut observers, &[0], app)?;
    for i in 0..n {
        ui.check()?;
        ui.progress(format!("agent killed: {} of {n}", i + 1));
        rest(PORT_ANSWERS, ui)?;
        observers.drain();
        let event_ns = promptly(|| rig.kill_agent(WATCHED))?;
        let verdict = host_report(&mut observers, Cause::AgentLost, Duration::from_secs(20))?;
        lost.push(verdict.at_ns.saturating_sub(event_ns));
        rig.start_agent(WATCHED)?;
        host_report(&mut observers, Cause::Returned, Duration::from_secs(20))?;
        rig.wait_until_all_see_all(ui)?;
        crashes += observers.drain().iter().filter(|(_, r)| matches!(r, Report::Failure(_))).count();
    }
    let mut case = Case::new("detect", format!("agent-killed idle{}", suffix(rig)), &mut lost);
    case.values.insert("false_crashes".into(), crashes as f64);
    case.notes.push(report::machine());
    Ok(Measured { case, samples: named([("upcall", lost)]) })
}

fn silent(rig: &mut Rig, ui: &Ui, n: u64) -> Result<Measured> {
    let mut observers = Observers::default();
    observers.start(rig, 2, &["@h1"], false)?;
    let (mut upper, mut lower) = (Samples::default(), Samples::default());
    for i in 0..n {
        ui.check()?;
        ui.progress(format!("silent host: {} of {n}", i + 1));
        observers.drain();
        let lab = rig.lab();
        std::thread::scope(|scope| {
            let cuts = [0, 1].map(|net| scope.spawn(move || lab.cut(WATCHED, net, Cut::Silent)));
            cuts.into_iter().try_for_each(|cut| cut.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
        let cut_ns = sys::now_ns();
        let verdict = host_report(&mut observers, Cause::SilentHost, Duration::from_secs(20))?;
        let last_ns = last_heartbeat(rig, 2, &verdict)?;
        upper.push(verdict.at_ns.saturating_sub(last_ns));
        lower.push(verdict.at_ns.saturating_sub(cut_ns));
        for net in [0, 1] {
            rig.lab().heal(WATCHED, net)?;
        }
        host_report(&mut observers, Cause::Returned, Duration::from_secs(20))?;
        rig.wait_until_all_see_all(ui)?;
    }
    let mut case = Case::new("detect", format!("silent-host idle hb={}{}", rig.spec().heartbeat, suffix(rig)), &mut upper);
    case.beside.insert("since_cut_returned".into(), lower.beside());
    case.notes.push(report::machine());
    case.notes.push(
        "counted from the last heartbeat that arrived on either path, at most one interval before the cut took effect: an upper bound".into(),
    );
    Ok(Measured { case, samples: named([("upcall", upper)]) })
}

/// What no host may say of another when nothing is wrong.
fn is_verdict(cause: Cause) -> bool {
    cause.ends_process() || matches!(cause, Cause::AgentLost | Cause::PathDown | Cause::Isolated)
}

/// Counts what all agents wrote down in a while. The case, and whether there was no verdict.
fn quiet(rig: &mut Rig, ui: &Ui, name: String, during: Duration) -> Result<(Measured, bool)> {
    let mut from = BTreeMap::new();
    for host in rig.lab().hosts() {
        from.insert(host, rig.history(host, u64::MAX)?.1);
    }
    let begun = Instant::now();
    while begun.elapsed() < during {
        ui.check()?;
        ui.progress(format!("{name}: {} of {} s", begun.elapsed().as_secs(), during.as_secs()));
        std::thread::sleep(Duration::from_millis(200));
    }
    let mut causes: BTreeMap<String, f64> = BTreeMap::new();
    let mut verdicts = 0;
    let mut examples = Vec::new();
    for (host, from) in from {
        for event in rig.history(host, from)?.0 {
            *causes.entry(event.cause.name().replace('-', "_")).or_default() += 1.0;
            if is_verdict(event.cause) {
                verdicts += 1;
                if examples.len() < 10 {
                    let of = |e: &Evidence| {
                        e.paths.iter().map(|p| format!("{} µs, {} lost", p.silent_ns / 1_000, p.lost)).collect::<Vec<_>>()
                    };
                    let silent =
                        event.evidence.as_deref().map_or_else(String::new, |e| format!("; silent by path: {}", of(e).join("; ")));
                    examples.push(format!("{} said: {}{silent}", event.observer, event.text));
                }
            }
        }
    }
    let mut case = number(name, "verdicts", f64::from(verdicts));
    case.values = causes;
    case.values.insert("verdicts".into(), f64::from(verdicts));
    case.values.insert("minutes".into(), begun.elapsed().as_secs_f64() / 60.0);
    case.notes.extend(examples);
    Ok((Measured { case, samples: BTreeMap::new() }, verdicts == 0))
}

fn false_verdicts(minutes: f64, ui: &Ui, all: &mut Vec<Measured>) -> Result<bool> {
    let mut rig = Rig::up(RigSpec::default(), ui)?;
    let running = load::start(&rig, Load::Traffic)?;
    let during = Duration::try_from_secs_f64(minutes * 60.0).context("that many minutes cannot be waited for")?;
    let name = format!("false-verdicts stress+iperf3 hb={}", rig.spec().heartbeat);
    let (measured, none) = quiet(&mut rig, ui, name, during)?;
    drop(running);
    tell(&measured, ui);
    all.push(measured);
    Ok(none)
}

fn hosts(ui: &Ui, n: u16, during: Duration) -> Result<(Measured, bool)> {
    let mut rig = Rig::up(RigSpec { hosts: n, heartbeat: "10ms", ..RigSpec::default() }, ui)?;
    quiet(&mut rig, ui, format!("hosts={n} hb=10ms idle"), during)
}

// ---- telling -------------------------------------------------------------------------------------------------------------------

fn tell(measured: &Measured, ui: &Ui) {
    let case = &measured.case;
    if ui.json {
        ui.line(case.json());
        return;
    }
    ui.line(format!("\n{}  {}", ui.paint(Paint::Bold, &case.case), ui.paint(Paint::Dim, &format!("n = {}", case.n))));
    if case.unit != "us" {
        let values: Vec<String> = case.values.iter().map(|(k, v)| format!("{k} {}", round(*v))).collect();
        ui.line(format!("  {} {} ({})", round(case.quantiles.p50), case.unit, values.join(", ")));
    } else {
        for line in rows(case) {
            ui.line(format!("  {:<30}{:>10}{:>10}{:>10}{:>10}{:>10}", line[0], line[1], line[2], line[3], line[4], line[5]));
        }
        if let (Some(p50), Some(min)) = (case.values.get("tcp_ratio_p50"), case.values.get("tcp_ratio_min")) {
            ui.line(format!("  TCP ÷ ours in the same crash: median {p50:.0}, smallest {min:.0}"));
        }
        if let Some(missed) = case.values.get("missed").filter(|m| **m > 0.0) {
            ui.line(format!("  {}", ui.paint(Paint::Red, &format!("{missed:.0} upcalls never came"))));
        }
    }
    for note in case.notes.iter().skip(1) {
        ui.line(format!("  {}", ui.paint(Paint::Dim, note)));
    }
}

fn round(v: f64) -> String {
    let text = format!("{v:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// A header, the whole, its steps, and what was measured beside it.
fn rows(case: &Case) -> Vec<[String; 6]> {
    let row = |name: &str, q: &crate::stats::Quantiles| {
        [name.to_string(), human_us(q.min), human_us(q.p50), human_us(q.p99), human_us(q.p999), human_us(q.max)]
    };
    let mut rows = vec![["", "min", "p50", "p99", "p99.9", "max"].map(String::from), row("upcall", &case.quantiles)];
    for name in Steps::NAMES {
        if let Some(q) = case.steps.get(name).filter(|_| !case.steps.is_empty()) {
            rows.push(row(&format!("  {name}"), q));
        }
    }
    let mut beside: Vec<_> = case.beside.iter().collect();
    beside.sort_by(|a, b| a.1.quantiles.p50.total_cmp(&b.1.quantiles.p50));
    for (name, beside) in beside {
        rows.push(row(name, &beside.quantiles));
    }
    rows
}

fn write(directory: &std::path::Path, all: &mut [Measured]) -> Result<()> {
    let lines: String = all.iter().map(|m| m.case.json() + "\n").collect();
    output::write(&directory.join("results.jsonl"), &lines)?;
    let mut page = Page::new(
        "fide bench detect",
        "From a crash on one host to the upcall in an application on another, beside what TCP and a pidfd told in the same crashes.",
    );
    page.medians("crash to upcall", all.iter().filter(|m| m.samples.contains_key("upcall")).map(|m| &m.case));
    if let Some((most, _)) = small_crashes(all) {
        for (name, words) in [("tcp", "TCP beside it"), ("pidfd", "pidfd beside it")] {
            if let Some(q) = all[most].samples.get_mut(name).filter(|s| !s.is_empty()).map(Samples::quantiles) {
                page.fact(words, &format!("median {} ({})", human_us(q.p50), all[most].case.case));
            }
        }
    }
    page.heading("Detectors beside each other (Tab. 2)");
    page.remark("dim", tab2::LEGEND);
    page.paragraph("Measured here, on this machine, by this run:");
    page.table(&tab2::HEADERS, &tab2::cells(&tab2_rows(all)));
    page.paragraph(&format!("{}:", tab2::PAPER));
    page.table(&tab2::HEADERS, &tab2::cells(&tab2::paper()));
    page.heading("All cases");
    let summary: Vec<Vec<String>> = all
        .iter()
        .map(|m| {
            let q = &m.case.quantiles;
            let cells = match m.case.unit {
                "us" => [q.min, q.p50, q.p99, q.p999, q.max].map(human_us).to_vec(),
                unit => vec![String::new(), format!("{} {unit}", round(q.p50)), String::new(), String::new(), String::new()],
            };
            [m.case.case.clone(), m.case.n.to_string()].into_iter().chain(cells).collect()
        })
        .collect();
    page.table(&["case", ">n", ">min", ">median", ">p99", ">p99.9", ">max"], &summary);
    let figures = [
        ("fig5-pdf.svg", "Fig. 5, left: density of detection time", pdf as Draw, detectors as Pick),
        ("fig5-cdf.svg", "Fig. 5, right: cumulative", cdf, detectors),
        ("fig5-pdf-cases.svg", "FiDe in each case: density", pdf, cases),
        ("fig5-cdf-cases.svg", "FiDe in each case: cumulative", cdf, cases),
    ];
    page.heading("Distributions (Fig. 5)");
    page.remark("dim", "In logarithmic steps, unlike the paper's: the detectors lie five orders of magnitude apart.");
    for (file, title, draw, pick) in figures {
        let series = pick(all, draw);
        if let Ok(figure) = chart(&Axes { title, x: AFTER, y: PART }, &series) {
            output::write(&directory.join(file), &figure.file())?;
            page.figure(&figure);
        }
    }
    for m in all.iter_mut() {
        page.heading(&m.case.case);
        if m.case.unit == "us" {
            let rows = rows(&m.case);
            let cells: Vec<Vec<String>> = rows[1..].iter().map(|r| r.to_vec()).collect();
            page.table(&["", ">min", ">median", ">p99", ">p99.9", ">max"], &cells);
        }
        let values: Vec<Vec<String>> = m.case.values.iter().map(|(k, v)| vec![k.clone(), round(*v)]).collect();
        if !values.is_empty() {
            page.table(&["", ">"], &values);
        }
        if m.samples.contains_key("tcp") {
            let mut series: Vec<_> = m.samples.iter_mut().map(|(name, s)| cdf(name, s.sorted())).collect();
            // In the colour that it has everywhere.
            series.sort_by_key(|line| line.name != "upcall");
            if let Ok(figure) = chart(&Axes { title: &m.case.case, x: AFTER, y: PART }, &series) {
                page.figure(&figure);
            }
        }
        for note in &m.case.notes {
            page.remark("dim", note);
        }
    }
    output::write(&directory.join("report.html"), &page.finish())?;
    Ok(())
}

const AFTER: Axis<'_> = Axis::times("after kill(2)");
const PART: Axis<'_> = Axis::numbers("part of all crashes");

/// How samples become a line.
type Draw = fn(&str, &[u64]) -> Series;
/// Which samples a figure has.
type Pick = fn(&mut [Measured], Draw) -> Vec<Series>;

/// Every detector once, as the rows of Tab. 2.
fn detectors(all: &mut [Measured], draw: Draw) -> Vec<Series> {
    let most = small_crashes(all);
    let mut series = Vec::new();
    for (i, m) in all.iter_mut().enumerate() {
        let names = match &most {
            Some((most, ours)) if i == *most => vec![("upcall", ours.as_str()), ("tcp", "TCP close"), ("pidfd", "pidfd")],
            _ => vec![("key", "")],
        };
        for (name, label) in names {
            if let Some(samples) = m.samples.get_mut(name).filter(|s| !s.is_empty()) {
                let label = if label.is_empty() { m.case.case.as_str() } else { label };
                series.push(draw(&format!("{label}, n = {}", samples.len()), samples.sorted()));
            }
        }
    }
    series
}

/// Our upcall in each case with crashes of processes.
fn cases(all: &mut [Measured], draw: Draw) -> Vec<Series> {
    let crashes = all.iter_mut().filter(|m| m.samples.contains_key("tcp"));
    crashes.filter_map(|m| m.samples.get_mut("upcall").map(|s| draw(&m.case.case, s.sorted()))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_alike() {
        for text in ["0", "512M", "4G", "1G"] {
            assert_eq!(size(bytes(text).unwrap()), text);
        }
        assert_eq!(bytes("8k"), Ok(8192));
        for bad in ["", "G", "-1", "17G", "99999999999G", "1T", "é"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_counts_as_a_false_verdict_is_what_harms() {
        assert!(is_verdict(Cause::SilentHost) && is_verdict(Cause::PathDown) && is_verdict(Cause::AgentLost));
        for fine in [Cause::ContractBroken, Cause::ContractKept, Cause::ObserverPaused, Cause::Returned, Cause::Monitored] {
            assert!(!is_verdict(fine), "{fine}");
        }
    }

    /// A report of what was never measured: as many cases as one run can have, so more lines than colours.
    pub(crate) fn sample(directory: &std::path::Path) {
        let measured = |case: &str, slower: u64| {
            let mut upcall: Samples = (50..150).map(|us| us * 1_000 * slower).collect();
            let mut case = Case::new("detect", case, &mut upcall);
            case.notes.push("machine".into());
            let tcp = (50..150).map(|us| us * 10_000 * slower).collect();
            Measured { case, samples: named([("upcall", upcall), ("tcp", tcp)]) }
        };
        let mut all = vec![measured("sigkill idle rss=0", 1), key()];
        for load in ["idle", "stress"] {
            all.extend((1..7).map(|gigabytes| measured(&format!("sigkill {load} rss={gigabytes}G"), 1 + gigabytes)));
        }
        write(directory, &mut all).unwrap();
    }

    #[test]
    fn a_report_is_written_with_its_figures() {
        let directory = tempfile::tempdir().unwrap();
        sample(directory.path());
        for file in ["report.html", "results.jsonl", "fig5-pdf.svg", "fig5-cdf.svg", "fig5-pdf-cases.svg", "fig5-cdf-cases.svg"] {
            assert!(directory.path().join(file).metadata().unwrap().len() > 100, "{file}");
        }
        let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
        assert!(page.contains("TCP close, n = 100") && page.contains("etcd lease ttl=2s, n = 2"));
        assert!(page.contains("The paper&#39;s own") || page.contains("The paper's own"));
    }

    fn key() -> Measured {
        let mut ended: Samples = [2_000_000_000, 3_000_000_000].into_iter().collect();
        let mut case = Case::new("detect", "etcd lease ttl=2s", &mut ended);
        case.values.insert("granted_ms".into(), 2_000.0);
        Measured { case, samples: named([("key", ended)]) }
    }

    #[test]
    fn fide_tab_2_has_a_row_for_each_detector_that_was_measured() {
        let upcall: Samples = [80_000, 100_000].into_iter().collect();
        let case = Case::new("detect", PEERS, &mut upcall.clone());
        let ours = Measured { case, samples: named([("upcall", upcall), ("tcp", Samples::default())]) };
        let rows = tab2_rows(&[ours, key()]);
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert_eq!((rows[0].approach.as_str(), rows[0].n, rows[0].application_us), ("FiDe", Some(2), Some((90.0, 100.0))));
        assert_eq!(rows[1].application_us, Some((2_500_000.0, 3_000_000.0)));
        assert_eq!(rows[1].system, Cell::Us(2_000_000.0, "granted"));
    }
}
