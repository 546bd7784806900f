//! `fide demo`: real crashes on a lab of three hosts, and what every observer learned of each, when.
//!
//! Every scene is also a check: the demonstration succeeds only if all of them showed what they must.

mod cgroup;
pub mod page;
mod redis;
mod scenes;

pub use cgroup::reap_stale as reap_stale_cgroups;

use crate::Outcome;
use crate::crash::{Plan, Steps, Times};
use crate::observer::{Observers, Upcall};
use crate::rig::{Rig, RigSpec};
use crate::stats::{Samples, human_ns, thousands};
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long TCP is given to notice something.
const TCP_PATIENCE: Duration = Duration::from_secs(5);
/// Small crashes at the end, for the distribution.
const REPEATED: usize = 100;

/// Arguments of `fide demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where to write the report [default: fide-demo.html in the current directory]
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Leave the lab up until Ctrl-C, to look at its agents' histories
    #[arg(long)]
    pub keep: bool,
    /// What redis-server holds in memory when it crashes, MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(1..=5000))]
    pub memory: u64,
    /// Only these scenes (see their numbers in the full demonstration)
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub scenes: Vec<usize>,
}

/// What one observer learned in one scene.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The observer's host.
    pub observer: String,
    /// What it was told, in words: `doomed by SIGKILL`.
    pub what: String,
    /// The cause of it, as in JSON everywhere.
    pub cause: Option<fide_wire::verdict::Cause>,
    /// How sure.
    pub grade: Option<fide_wire::verdict::Grade>,
    /// From the true event to the upcall.
    pub after_ns: Option<u64>,
    /// Its parts, for verdicts that came with a notice.
    #[serde(skip)]
    pub steps: Option<Steps>,
    /// What the same application's TCP connection said.
    pub tcp: Tcp,
}

/// What a TCP connection said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Tcp {
    /// The peer closed it, so long after the event.
    Closed {
        /// How long.
        after_ns: u64,
    },
    /// Nothing for so long, although it should have said something.
    Nothing {
        /// How long it was waited for.
        waited_ns: u64,
    },
    /// Nothing, and rightly: the process lives.
    StillOpen,
}

impl std::fmt::Display for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tcp::Closed { after_ns } => write!(f, "{}", human_ns(*after_ns)),
            Tcp::Nothing { waited_ns } => write!(f, "nothing within {}", human_ns(*waited_ns)),
            Tcp::StillOpen => f.write_str("still open"),
        }
    }
}

/// Something that a scene must show.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What.
    pub what: String,
    /// Whether it did.
    pub ok: bool,
}

/// What happened in one scene.
#[derive(Clone, Debug, Serialize)]
pub struct Scene {
    /// From 1.
    pub number: usize,
    /// What happens.
    pub title: String,
    /// Why it matters, in a sentence.
    pub sentence: String,
    /// What time is counted from.
    pub from: String,
    /// One for each observer.
    pub lines: Vec<Line>,
    /// What it must show.
    pub checks: Vec<Check>,
    /// What else was seen.
    pub notes: Vec<String>,
}

impl Scene {
    fn new(title: &str, sentence: &str, from: &str) -> Self {
        Scene {
            number: 0,
            title: title.into(),
            sentence: sentence.into(),
            from: from.into(),
            lines: Vec::new(),
            checks: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Something that must be so.
    fn must(&mut self, what: impl Into<String>, ok: bool) {
        self.checks.push(Check { what: what.into(), ok });
    }

    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Whether it showed everything.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.checks.iter().all(|c| c.ok)
    }
}

/// What all scenes share.
pub struct Stage<'a> {
    rig: Rig,
    observers: Observers,
    ui: &'a Ui,
    /// Bytes in redis.
    memory: u64,
    /// Unique numbers of TCP connections.
    serial: u64,
}

/// The indices of the observers with a subscription: on h2 and on h3.
pub const OBSERVERS: [usize; 2] = [0, 1];

/// A scene that the demonstration has not got.
#[derive(Debug)]
pub struct NoSuchScene(usize);

impl std::fmt::Display for NoSuchScene {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "there is no scene {}: the scenes are 1 to {}", self.0, scenes::ALL.len())
    }
}

impl std::error::Error for NoSuchScene {}

/// Fails for the first of these numbers that no scene has.
///
/// # Errors
/// [`NoSuchScene`].
pub fn check_scenes(wanted: &[usize]) -> Result<(), NoSuchScene> {
    let unknown = wanted.iter().find(|number| !(1..=scenes::ALL.len()).contains(*number));
    unknown.map_or(Ok(()), |number| Err(NoSuchScene(*number)))
}

/// The distribution at the end.
#[derive(Debug, Default)]
pub struct Repeated {
    upcalls: Samples,
    tcp: Samples,
    missed: usize,
}

/// Runs it. `Ok(false)`: a scene did not show what it must.
///
/// # Errors
/// When it cannot be run at all: not root, no redis-server, no agent, no lab.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    ui.or_interrupted(play(args, ui))
}

fn play(args: &Args, ui: &Ui) -> Outcome {
    let begun = Instant::now();
    check_scenes(&args.scenes)?;
    // What keeps it from being run at all, the first thing first; nothing is written before.
    crate::sys::require_root("play the demonstration")?;
    redis::find()?;
    let report = args.report.clone().unwrap_or_else(|| "fide-demo.html".into());
    // Before anything takes time: whether the report can be written at all.
    crate::output::reserve(&report)?;
    let rig = Rig::up(RigSpec::default(), ui)?;
    let mut observers = Observers::default();
    for host in [2, 3] {
        observers.start(&rig, host, &["@h1"], false)?;
    }
    let mut stage = Stage { rig, observers, ui, memory: args.memory << 20, serial: 0 };
    ui.say(format!(
        "Three hosts ({}), two networks, an agent on each; heartbeats every {}. h2 and h3 observe what happens on h1.",
        ui.paint(Paint::Cyan, "h1 h2 h3"),
        stage.rig.spec().heartbeat,
    ));
    let mut scenes = Vec::new();
    for (i, play) in scenes::ALL.iter().enumerate() {
        let number = i + 1;
        if !args.scenes.is_empty() && !args.scenes.contains(&number) {
            continue;
        }
        ui.check()?;
        ui.progress(format!("scene {number} of {}", scenes::ALL.len()));
        let mut scene = play(&mut stage).with_context(|| format!("scene {number} could not be played"))?;
        // Half a scene shows nothing.
        ui.check()?;
        scene.number = number;
        tell(&scene, ui);
        scenes.push(scene);
    }
    let mut repeated = Repeated::default();
    if args.scenes.is_empty() {
        repeat(&mut stage, &mut repeated)?;
        tell_repeated(&mut repeated, ui);
    }
    let ok = scenes.iter().all(Scene::ok) && repeated.missed == 0;
    let page = page::render(&scenes, &mut repeated, begun.elapsed());
    crate::output::write(&report, &page)?;
    let path = std::fs::canonicalize(&report).unwrap_or(report);
    if ui.json {
        ui.line(
            serde_json::json!({ "demo": "end", "ok": ok, "seconds": begun.elapsed().as_secs_f64(), "report": path }).to_string(),
        );
    } else {
        let verdict = if ok {
            ui.paint(Paint::Green, "every scene showed what it must")
        } else {
            ui.paint(Paint::Red, "NOT every scene showed what it must")
        };
        ui.say(format!("\n{verdict} ({:.0} s)\nreport: {}", begun.elapsed().as_secs_f64(), path.display()));
    }
    if args.keep {
        keep(&stage)?;
    }
    Ok(ok)
}

fn keep(stage: &Stage<'_>) -> Result<()> {
    let name = stage.rig.lab().name();
    stage.ui.say(format!("\nThe lab stays until Ctrl-C. Try: fide lab --name {name} exec h2 -- fide events"));
    while stage.ui.check().is_ok() {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The same small crash many times.
fn repeat(stage: &mut Stage<'_>, repeated: &mut Repeated) -> Result<()> {
    let plan = Plan { rss: 0, patience: TCP_PATIENCE, pidfd: None, keys: &[], spread: Duration::ZERO };
    for i in 0..REPEATED {
        stage.ui.check()?;
        stage.ui.progress(format!("once more, {} of {REPEATED}", i + 1));
        stage.serial += 1;
        let times = crate::crash::crash(&mut stage.rig, &mut stage.observers, &OBSERVERS, &plan, stage.serial, stage.ui)?;
        note_times(&times, repeated);
    }
    Ok(())
}

fn note_times(times: &Times, repeated: &mut Repeated) {
    for upcall in &times.upcalls {
        match upcall {
            Some(u) => repeated.upcalls.push(u.at_ns.saturating_sub(times.event_ns)),
            None => repeated.missed += 1,
        }
    }
    repeated.tcp.extend(times.tcp.iter().flatten().map(|at| at.saturating_sub(times.event_ns)));
}

fn tell(scene: &Scene, ui: &Ui) {
    if ui.json {
        let mut value = serde_json::to_value(scene).unwrap_or_default();
        value["demo"] = "scene".into();
        value["ok"] = scene.ok().into();
        ui.line(value.to_string());
        return;
    }
    ui.line(format!("\n{} {}", ui.paint(Paint::Cyan, &scene.number.to_string()), ui.paint(Paint::Bold, &scene.title)));
    ui.line(format!("  {}", ui.paint(Paint::Dim, &scene.sentence)));
    for line in &scene.lines {
        let grade = line.grade.map_or(String::new(), |g| format!(", {g}"));
        let what = format!("{}{grade}", line.what);
        let after = line.after_ns.map_or_else(|| "—".into(), human_ns);
        let tcp = match (line.tcp, line.after_ns) {
            (Tcp::Closed { after_ns }, Some(ours)) if after_ns > 2 * ours => {
                format!("{} ({} × later)", line.tcp, thousands(after_ns / ours.max(1)))
            }
            _ => line.tcp.to_string(),
        };
        let after = format!("{after:>8}");
        ui.line(format!("  {:<3} {what:<44} {}   its TCP connection: {tcp}", line.observer, ui.paint(Paint::Bold, &after)));
    }
    for note in &scene.notes {
        ui.line(format!("  {}", ui.paint(Paint::Dim, note)));
    }
    for check in scene.checks.iter().filter(|c| !c.ok) {
        ui.line(format!("  {}", ui.paint(Paint::Red, &format!("✗ it did not show: {}", check.what))));
    }
    if scene.ok() {
        ui.line(format!("  {}", ui.paint(Paint::Green, "✓ as it must be")));
    }
}

fn tell_repeated(repeated: &mut Repeated, ui: &Ui) {
    let (q, t) = (repeated.upcalls.quantiles(), repeated.tcp.quantiles());
    if ui.json {
        let mut case = crate::stats::Case::new("demo", "sigkill idle rss=0", &mut repeated.upcalls);
        case.beside.insert("tcp".into(), repeated.tcp.beside());
        ui.line(case.json());
        return;
    }
    use crate::stats::human_us;
    ui.line(format!("\n{}", ui.paint(Paint::Bold, &format!("The same {REPEATED} times with a small process"))));
    let row = |name: &str, q: &crate::stats::Quantiles| {
        ui.line(format!("  {name:<22} median {:>8}   p99 {:>8}   max {:>8}", human_us(q.p50), human_us(q.p99), human_us(q.max)));
    };
    row("upcall, h2 and h3", &q);
    row("their TCP connections", &t);
}

/// What a verdict is in words: `doomed by SIGKILL`.
pub fn words(upcall: &Upcall) -> String {
    use fide_wire::verdict::Cause;
    let signal = |n: i32| match n {
        6 => "SIGABRT".into(),
        9 => "SIGKILL".into(),
        11 => "SIGSEGV".into(),
        15 => "SIGTERM".into(),
        n => format!("signal {n}"),
    };
    match upcall.cause {
        Cause::Doomed if upcall.code > 0 => format!("doomed by {}", signal(upcall.code)),
        Cause::Killed => format!("killed by {}", signal(upcall.code)),
        Cause::Exited => format!("exited with status {}", upcall.code),
        Cause::PathDown => format!("path {} down", upcall.code),
        Cause::SilentHost if upcall.app != 0 => "ended with its silent host".into(),
        cause => cause.name().replace('-', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scene_that_is_not_there_is_refused_before_anything_is_made() {
        assert!(check_scenes(&[]).is_ok() && check_scenes(&[1, 7]).is_ok());
        assert_eq!(check_scenes(&[1, 9]).unwrap_err().to_string(), "there is no scene 9: the scenes are 1 to 7");
        assert!(check_scenes(&[0]).is_err());
    }
}
