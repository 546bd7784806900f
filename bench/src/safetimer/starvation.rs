//! An observer that does not get a processor: on every one of them a SCHED_FIFO hog above its agent. Whatever it said of the others would be its own
//! fault; and a host that really dies meanwhile must be known as soon as it can look again.
//!
//! The hosts of a lab share the processors. The other agents therefore run above the hogs, as on machines of their own; everything else on this
//! machine is starved as well, but for the 5 % that the kernel keeps for ordinary threads.

use super::plain::{Receiver, Sender};
use crate::Outcome;
use crate::report;
use crate::rig::{Rig, RigSpec};
use crate::sys;
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result, bail};
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::Cause;
use fide_xdp::Fence;
use serde::Serialize;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// HB of all, and the ordinary timeout of three of them.
const HEARTBEAT: &str = "10ms";
const PERIOD_NS: u64 = 10_000_000;
const PLAIN_TIMEOUT_NS: u64 = 3 * PERIOD_NS;
/// Above the observer's agent (51), below those that are not to starve ([`crate::rig::RAISED_PRIORITY`]).
const HOG_PRIORITY: i32 = 52;
/// So long before the end of the starvation a host dies.
const DEATH_BEFORE_END: Duration = Duration::from_millis(300);
/// After its end the verdict must be there.
const BAR_MS: f64 = 50.0;

const VICTIM: u16 = 1;
const OBSERVER: u16 = 2;
const PLAIN: u16 = 3;

// ---- a host that dies ----------------------------------------------------------------------------------------------------------

/// The hidden subcommand.
const ROLE: &str = "bench-death";

/// Its arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct DeathArgs {
    /// Where a gate is pinned
    #[arg(long)]
    pub pins: PathBuf,
    /// The host's agent
    #[arg(long)]
    pub agent: u32,
}

/// Waits for a line; then nothing leaves this host any more, its agent is killed, and the moment just before is told.
///
/// # Errors
/// When it cannot have its gate.
pub fn die(args: &DeathArgs) -> Result<()> {
    let mut fence = Fence::open(&args.pins)?;
    for name in ["net0", "net1"] {
        fence.guard_interface(sys::interface_index(name)?)?;
    }
    sys::be_realtime(sys::UPCALL_PRIORITY).context("dying in time needs a real-time priority")?;
    println!("ready");
    io::stdout().flush()?;
    io::stdin().lock().read_line(&mut String::new())?;
    let at = sys::now_ns();
    fence.host().shut();
    sys::kill(args.agent, libc::SIGKILL)?;
    println!("{at}");
    io::stdout().flush()?;
    // The gate goes with this process.
    io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

struct Death {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Death {
    fn prepare(rig: &Rig) -> Result<Self> {
        let pins = rig.lab().host_dir(VICTIM).join("death");
        let mut command = rig.helper(VICTIM, ROLE)?;
        let agent = rig.agent_pid(VICTIM).context("the agent to kill does not run")?;
        command.arg("--pins").arg(pins.join("gate")).arg("--agent").arg(agent.to_string());
        sys::mount_bpf(&mut command, &pins)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a helper")?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else { bail!("a helper without pipes") };
        let mut death = Self { child, stdin, stdout: BufReader::new(stdout) };
        anyhow::ensure!(death.hear()? == "ready", "{ROLE} did not become ready");
        Ok(death)
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim_end().to_string())
    }

    /// Returns when it died.
    fn now(&mut self) -> Result<u64> {
        self.stdin.write_all(b"die\n")?;
        let line = self.hear()?;
        line.parse().with_context(|| format!("{ROLE} said {line:?}"))
    }
}

impl Drop for Death {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ---- starving ------------------------------------------------------------------------------------------------------------------

/// A thread on every processor that never sleeps. Ends by itself at its time, whatever becomes of us.
struct Hogs {
    over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<io::Result<u64>>>,
}

impl Hogs {
    fn start(until_ns: u64) -> Self {
        let over = Arc::<AtomicBool>::default();
        let hog = |cpu: usize| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                sys::pin_to(cpu)?;
                sys::be_realtime(HOG_PRIORITY)?;
                while sys::now_ns() < until_ns && !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                Ok(sys::now_ns())
            })
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..cpus).map(hog).collect();
        Self { over, threads }
    }

    /// When the last one ended.
    fn wait(mut self) -> Result<u64> {
        let mut last = 0;
        for thread in self.threads.drain(..) {
            let Ok(ended) = thread.join() else { bail!("a hog panicked") };
            last = last.max(ended.context("a hog may not have real-time priority")?);
        }
        Ok(last)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
struct Found {
    bench: &'static str,
    case: String,
    seconds: f64,
    /// Of the observer, on hosts that lived.
    false_verdicts: Vec<String>,
    /// An ordinary timeout of three periods on the same starved host.
    plain_accused: usize,
    /// The observer's verdict on the host that died.
    verdict: Option<String>,
    /// After the end of the starvation; negative: before.
    verdict_after_end_ms: Option<f64>,
    verdict_after_death_ms: Option<f64>,
    /// The timeout that the silence exceeded.
    timeout_ms: Option<f64>,
    /// How long the observer had been awake again.
    observer_awake_ms: Option<f64>,
    /// When the kernel had seen the victim's last heartbeat, before its death.
    last_arrival_before_death_ms: Option<f64>,
    /// Everything that the observer said, and when, by the end of the starvation.
    said: Vec<String>,
    ok: bool,
    machine: String,
}

/// Runs it for so many seconds. `Ok(false)`: a false verdict, or a late one.
///
/// # Errors
/// When it cannot be arranged.
pub fn run(seconds: u64, ui: &Ui) -> Outcome {
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let spec = RigSpec { hosts: 3, heartbeat: HEARTBEAT, lowest: Some(OBSERVER), ..RigSpec::default() };
    let mut rig = Rig::up(spec, ui)?;
    let at = SocketAddr::from((rig.lab().ipv4(OBSERVER, 0), 9_703));
    let mut ear = Receiver::start(&rig, OBSERVER, at, PLAIN_TIMEOUT_NS)?;
    let _voice = Sender::undisturbed(&rig, PLAIN, at, PERIOD_NS)?;
    let mut death = Death::prepare(&rig)?;
    ui.sleep(Duration::from_secs(2))?;
    rig.wait_until_all_see_all(ui)?;
    let from = rig.history(OBSERVER, u64::MAX)?.1;
    ear.begin()?;
    // This thread has to act in time, too.
    sys::be_realtime(sys::UPCALL_PRIORITY).context("starving needs a real-time priority for who ends it")?;
    let ends_ns = sys::now_ns() + seconds * 1_000_000_000;
    let hogs = Hogs::start(ends_ns);
    let deadline = Instant::now() + Duration::from_secs(seconds).saturating_sub(DEATH_BEFORE_END);
    let begun = Instant::now();
    while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        ui.check()?;
        ui.progress(format!("starving: {} of {seconds} s", begun.elapsed().as_secs()));
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
    let died_ns = death.now()?;
    let ended_ns = hogs.wait()?;
    sys::be_ordinary();
    let is_victims = |e: &HistoryEvent| e.node == "h1" && e.app.is_none() && e.at_ns > died_ns;
    let is_death = |e: &HistoryEvent| e.cause == Cause::SilentHost && is_victims(e);
    let patience = Instant::now() + Duration::from_secs(5);
    let events = loop {
        ui.check()?;
        let events = rig.history(OBSERVER, from)?.0;
        if events.iter().any(is_death) || Instant::now() > patience {
            break events;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut found = Found {
        bench: "safetimer",
        case: format!("starvation {seconds} s, heartbeat {HEARTBEAT}"),
        seconds: seconds as f64,
        plain_accused: ear.report()?.accused_ns.len(),
        machine: report::machine(),
        ..Found::default()
    };
    let since = |at: u64, from: u64| (at as f64 - from as f64) / 1e6;
    for e in &events {
        let said = format!("{} {} ({:+.1} ms)", e.cause.name(), e.node, since(e.at_ns, ended_ns));
        if matches!(e.cause, Cause::SilentHost | Cause::AgentLost) && !is_victims(e) {
            found.false_verdicts.push(said.clone());
        }
        found.said.push(said);
    }
    if let Some(e) = events.iter().find(|e| is_death(e)) {
        found.verdict = Some(e.text.clone());
        found.verdict_after_end_ms = Some(since(e.at_ns, ended_ns));
        found.verdict_after_death_ms = Some(since(e.at_ns, died_ns));
        let last = e.evidence.as_ref().and_then(|e| e.paths.iter().map(|p| p.last_arrival_ns).max());
        found.timeout_ms = e.evidence.as_ref().map(|e| e.timeout_ns as f64 / 1e6);
        found.observer_awake_ms = e.evidence.as_ref().map(|e| e.observer_awake_ns as f64 / 1e6);
        found.last_arrival_before_death_ms = last.map(|at| since(died_ns, at));
    }
    found.ok = found.false_verdicts.is_empty() && found.verdict_after_end_ms.is_some_and(|ms| ms <= BAR_MS);
    tell(&found, ui)?;
    Ok(found.ok)
}

fn tell(found: &Found, ui: &Ui) -> Result<()> {
    if ui.json {
        ui.line(serde_json::to_string(found)?);
        return Ok(());
    }
    let count = if found.false_verdicts.is_empty() { "0".to_string() } else { found.false_verdicts.join("; ") };
    ui.line(format!("{}: false verdicts {count}; an ordinary timeout of three periods: {}", found.case, found.plain_accused));
    let ms = |value: Option<f64>| value.map_or_else(|| "never".into(), |ms| format!("{ms:.1} ms"));
    ui.line(format!(
        "the host that died: said {} after the end of the starvation (bar {BAR_MS:.0} ms), {} after its death; last heartbeat {} before it",
        ms(found.verdict_after_end_ms),
        ms(found.verdict_after_death_ms),
        ms(found.last_arrival_before_death_ms)
    ));
    ui.line(format!(
        "its contract's timeout was {}, the observer had been awake for {}",
        ms(found.timeout_ms),
        ms(found.observer_awake_ms)
    ));
    ui.line(ui.paint(Paint::Dim, &format!("said: {}", found.said.join("; "))));
    ui.line(
        ui.paint(if found.ok { Paint::Green } else { Paint::Red }, if found.ok { "as it must be" } else { "not as it must be" }),
    );
    Ok(())
}
