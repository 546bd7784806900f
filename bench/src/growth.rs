//! `fide bench growth`: what a crash costs as the cluster, the number of ends at once, and the host itself grow.
//!
//! Three sweeps. *Hosts*: crashes one after the other, with two observers on the second host, one whose application is above its agent's priority and one below,
//! the time of that agent's real-time thread, and the frames that reach the host for each crash. *Ends*: many processes, ended by one kill. *Interfaces*: a host
//! with as many network interfaces as a node of Kubernetes has.

use crate::Outcome;
use crate::crash::{NAME, WATCHED, promptly, wait_until_monitored};
use crate::observer::{Observers, Report};
use crate::output;
use crate::report::{self, Axes, Page, Series, chart};
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
    /// Network interfaces of the watched host
    #[arg(long, value_delimiter = ',', default_values = ["2", "1200"], value_parser = clap::value_parser!(u32).range(2..=5000))]
    pub interfaces: Vec<u32>,
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
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        ["report.html", "results.jsonl"].iter().try_for_each(|file| output::check(&directory.join(file)))?;
    }
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let mut args = args.clone();
    if args.quick {
        args.crashes = args.crashes.min(20);
        args.hosts.retain(|n| *n <= 8);
        args.ends.retain(|n| *n <= 256);
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
        done(ends_at_once(ends, ui)?, ui);
    }
    for &interfaces in &args.interfaces {
        done(with_interfaces(interfaces, args.crashes, ui)?, ui);
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
struct Crashes {
    /// From before kill(2) to the upcall above the agent's priority, and below it.
    above: Samples,
    below: Samples,
    /// The agent's real-time thread while a crash is told, and in as much time before it.
    thread: Samples,
    thread_before: Samples,
    /// Frames about processes that reached the host, for each crash.
    frames: Samples,
    missing: u32,
}

fn crashes(rig: &mut Rig, count: u32, ui: &Ui) -> Result<Crashes> {
    let mut observers = Observers::default();
    let above = observers.start(rig, OBSERVING, &[&format!("{NAME}@h{WATCHED}")], false)?;
    let below = observers.start_below(rig, OBSERVING, &[&format!("{NAME}@h{WATCHED}")])?;
    let agent = rig.agent_pid(OBSERVING).context("no agent on the observing host")?;
    let taps = [0, 1].map(|net| rig.lab().in_switch(net, || Tap::open(&format!("h{OBSERVING}"))));
    let taps: Vec<Tap> = taps.into_iter().map(|tap| Ok(tap??)).collect::<Result<_>>()?;
    let frames = || taps.iter().map(|tap| tap.count(is_of_tables)).sum::<usize>();
    let none = Samples::default;
    let mut crashes = Crashes { above: none(), below: none(), thread: none(), thread_before: none(), frames: none(), missing: 0 };
    for serial in 0..count {
        ui.check()?;
        ui.progress(format!("{} hosts: crash {} of {count}", rig.spec().hosts, serial + 1));
        let sleepers = Sleepers::start(rig, 1)?;
        let app = rig.watch(WATCHED, NAME, sleepers.0[0].id())?;
        wait_until_monitored(&mut observers, &[above, below], app)?;
        ui.sleep(SETTLED + Duration::from_micros(u64::from(serial) * 617 % 10_000))?;
        let idle = sys::thread_ran_ns(agent, "lane")?;
        ui.sleep(SETTLED)?;
        observers.drain();
        frames();
        let ran = sys::thread_ran_ns(agent, "lane")?;
        crashes.thread_before.push(ran - idle);
        let killed_ns = sleepers.kill()?;
        let mut heard = [None; 2];
        let deadline = Instant::now() + PATIENCE;
        while heard.iter().any(Option::is_none) {
            let Some((index, report)) = observers.next(deadline) else { break };
            let Report::Failure(upcall) = report else { continue };
            if upcall.app == app {
                heard[usize::from(index == below)].get_or_insert(upcall.at_ns.saturating_sub(killed_ns));
            }
        }
        ui.sleep(SETTLED)?;
        crashes.thread.push(sys::thread_ran_ns(agent, "lane")? - ran);
        // In thousandths, as if they were nanoseconds: one unit for all samples.
        crashes.frames.push(frames() as u64 * 1000);
        crashes.missing += heard.iter().filter(|at| at.is_none()).count() as u32;
        crashes.above.extend(heard[0]);
        crashes.below.extend(heard[1]);
    }
    Ok(crashes)
}

/// The part of the time for which the agent's real-time thread runs while nothing happens.
fn idle_rate(agent: u32) -> Result<f64> {
    let (ran, since) = (sys::thread_ran_ns(agent, "lane")?, Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    Ok((sys::thread_ran_ns(agent, "lane")? - ran) as f64 / since.elapsed().as_nanos() as f64)
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
    let mean = crashes.thread.mean_us() - crashes.thread_before.mean_us();
    case.values.insert("thread_us_per_crash".into(), (mean * 100.0).round() / 100.0);
    case.beside.insert("real-time thread".into(), crashes.thread.beside());
    case.beside.insert("real-time thread before".into(), crashes.thread_before.beside());
    case.values.insert("frames_median".into(), crashes.frames.quantile(0.5) as f64 / 1e3);
    case.values.insert("frames_max".into(), crashes.frames.quantile(1.0) as f64 / 1e3);
    case.values.insert("missing".into(), crashes.missing.into());
    case.notes.push(report::machine());
    case
}

fn with_interfaces(interfaces: u32, count: u32, ui: &Ui) -> Result<Case> {
    let mut rig = Rig::up(RigSpec { hosts: 3, heartbeat: HEARTBEAT, ..RigSpec::default() }, ui)?;
    ui.progress(format!("making {interfaces} interfaces"));
    // The two of the paths are there; loopback is one more. In pairs, as pods have them, each with an address.
    let pair = |i: u32| {
        let address = format!("172.16.{}.{}/32", i / 256, i % 256);
        format!("link add d{i} type veth peer name e{i}\nlink set d{i} up\nlink set e{i} up\naddress add {address} dev d{i}\n")
    };
    let lines: String = (0..(interfaces - 2) / 2).map(pair).collect();
    let mut ip = rig.lab().command(WATCHED, "ip")?;
    let mut ip = ip.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().context("cannot run ip")?;
    ip.stdin.take().context("ip without a pipe")?.write_all(lines.as_bytes())?;
    if !ip.wait()?.success() {
        bail!("not all interfaces could be made");
    }
    ui.sleep(Duration::from_secs(1))?;
    let agent = rig.agent_pid(WATCHED).context("no agent on the watched host")?;
    let watched = idle_rate(agent)?;
    let crashes = crashes(&mut rig, count, ui)?;
    let mut case = case(format!("interfaces={interfaces}"), crashes);
    case.values.insert("watched_thread_percent".into(), (watched * 1e4).round() / 100.0);
    Ok(case)
}

fn ends_at_once(ends: u32, ui: &Ui) -> Result<Case> {
    let mut rig = Rig::up(RigSpec { hosts: 3, heartbeat: HEARTBEAT, ..RigSpec::default() }, ui)?;
    let mut observers = Observers::default();
    observers.start(&rig, OBSERVING, &[&format!("@h{WATCHED}")], false)?;
    ui.progress(format!("{ends} processes"));
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
    let agent = rig.agent_pid(OBSERVING).context("no agent on the observing host")?;
    let ran = sys::thread_ran_ns(agent, "lane")?;
    let killed_ns = sleepers.kill()?;
    let (mut samples, mut lost) = (Samples::default(), 0);
    let deadline = Instant::now() + PATIENCE;
    while let Some((_, report)) = if apps.is_empty() { None } else { observers.next(deadline) } {
        ui.check()?;
        match report {
            Report::Failure(upcall) if apps.remove(&upcall.app) => samples.push(upcall.at_ns.saturating_sub(killed_ns)),
            Report::Lost { count } => lost += count,
            _ => {}
        }
    }
    let mut case = Case::new("growth", format!("ends={ends}"), &mut samples);
    case.values.insert("missing".into(), apps.len() as f64);
    case.values.insert("lost".into(), lost as f64);
    let per_end = (sys::thread_ran_ns(agent, "lane")? - ran) as f64 / 1e3 / f64::from(ends);
    case.values.insert("thread_us_per_end".into(), (per_end * 100.0).round() / 100.0);
    case.notes.push(report::machine());
    Ok(case)
}

fn tell(case: &Case, ui: &Ui) {
    if ui.json {
        ui.line(case.json());
        return;
    }
    ui.line(format!("\n{}  {}", ui.paint(Paint::Bold, &case.case), ui.paint(Paint::Dim, &format!("n = {}", case.n))));
    let row = |name: &str, q: &Quantiles| {
        let [p50, p99, p999, max] = [q.p50, q.p99, q.p999, q.max].map(human_us);
        ui.line(format!("  {name:<23} median {p50:>8}   p99 {p99:>8}   p99.9 {p999:>8}   max {max:>8}"));
    };
    row("crash to upcall", &case.quantiles);
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

fn write(directory: &Path, cases: &[Case]) -> Result<()> {
    let lines: String = cases.iter().map(|c| c.json() + "\n").collect();
    output::write(&directory.join("results.jsonl"), &lines)?;
    let mut page = Page::new(
        "fide bench growth",
        "What a crash costs as the cluster, the number of ends at once and the host itself grow. Where a line is level, growth costs nothing.",
    );
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
        };
        let beside = |name: &'static str| move |case: &Case| case.beside.get(name).map(|b| b.quantiles.p50);
        let series = [
            line("crash to upcall, median", &|case| Some(case.quantiles.p50)),
            line("crash to upcall, p99", &|case| Some(case.quantiles.p99)),
            line("below the agent, median", &beside("below the agent")),
            line("real-time thread, mean", &|case| case.values.get("thread_us_per_crash").copied()),
        ];
        match chart(&Axes { title: &format!("By {x}"), x, y: "µs", log_x: true, log_y: true }, &series) {
            Ok(svg) => {
                output::write(&directory.join(format!("{sweep}.svg")), &svg)?;
                page.svg(&svg);
            }
            Err(e) => page.remark("dim", &e.to_string()),
        }
    }
    output::write(&directory.join("report.html"), &page.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case_of(name: &str, us: &[u64]) -> Case {
        let samples = || us.iter().map(|us| us * 1000).collect::<Samples>();
        case(
            name.into(),
            Crashes {
                above: samples(),
                below: samples(),
                thread: samples(),
                thread_before: Samples::default(),
                frames: samples(),
                missing: 0,
            },
        )
    }

    #[test]
    fn a_report_has_a_drawing_for_each_sweep() {
        let directory = tempfile::tempdir().unwrap();
        let cases = [case_of("hosts=3", &[80, 90, 400]), case_of("hosts=24", &[100, 120]), case_of("interfaces=2", &[70])];
        write(directory.path(), &cases).unwrap();
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
