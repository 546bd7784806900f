//! How long it takes from a deadline that was missed to a verdict behind a barrier (SafeTimer §4.1), on a receiver that is well.
//!
//! The agent of a host is stopped for a moment, at random phases of its period, and the others say *contract broken*. Each does so when an answer
//! to a question has come out of the queue that the host's heartbeats take; the time is that of its clock at the verdict, less the last heartbeat's kernel stamp and the timeout.
//!
//! Beside it, in turns: the questions and answers alone, on one of the observers, by a thread that does nothing else and spins. That is what this machine takes for a
//! barrier whoever asks.

use crate::Outcome;
use crate::report;
use crate::rig::{Profile, Rig, RigSpec};
use crate::stats::{Case, Quantiles, Samples, human_us};
use crate::sys;
use crate::ui::{Paint, Ui};
use anyhow::{Result, ensure};
use fide_lab::NETS;
use fide_lane::probe::Prober;
use fide_lane::send::PathSpec;
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::Cause;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// At p99.
const BAR_US: f64 = 100.0;
/// A stop must end before the agent is lost (1 s).
const PATIENCE: Duration = Duration::from_millis(700);

/// The least that is waited before an agent is asked for its history: one that is asked meanwhile has that to do, too.
const ASK_AFTER: Duration = Duration::from_millis(20);

/// As the agent: an echo ahead of time warms the way, and it stays awake from then on.
const WARM: Duration = Duration::from_micros(60);
/// As agents have; none where it is not permitted.
const PRIORITY: i32 = fide_lane::profile::PRIORITY;
/// An answer that takes longer is given up, and counts for so long.
const LOST_NS: u64 = 50_000_000;

/// Who is stopped, and who says so.
struct Who {
    victim: u16,
    observers: &'static [u16],
}

impl Who {
    /// With the dedicated profile only h1's agent has a processor of its own, so it is the observer.
    fn of(profile: Profile) -> Self {
        match profile {
            Profile::Shared => Who { victim: 1, observers: &[2, 3] },
            Profile::Dedicated => Who { victim: 2, observers: &[1] },
        }
    }
}

/// Since when this host was overdue, and whether a barrier had been seen; `None` for another event.
fn missed_ns(e: &HistoryEvent, victim: u16) -> Option<(u64, bool)> {
    let about = e.node.strip_prefix('h').and_then(|host| host.parse().ok()) == Some(victim);
    let evidence = e.evidence.as_ref().filter(|_| e.cause == Cause::ContractBroken && about && e.app.is_none())?;
    let last_ns = evidence.paths.iter().map(|p| p.last_arrival_ns).max()?;
    let overdue_ns = last_ns.checked_add(evidence.timeout_ns).filter(|at| evidence.timeout_ns > 0 && *at <= e.at_ns)?;
    Some((overdue_ns, evidence.drained))
}

/// Echo requests of one observer to the host that answers it, on both paths.
struct Echoes {
    prober: Prober,
    to: [IpAddr; NETS.len()],
}

impl Echoes {
    fn new(rig: &Rig, who: &Who) -> Result<Self> {
        let from = who.observers[0];
        let other = rig.agents().find(|host| *host != who.victim && *host != from).expect("three hosts");
        let spec = |net: u8| PathSpec {
            path: net,
            interface: fide_lab::nic_name(net),
            group: None,
            unicast: Vec::new(),
            port: fide_wire::DEFAULT_PORT,
            source: None,
        };
        let prober = rig.lab().in_host(from, || Prober::open(&NETS.map(spec)))??;
        Ok(Self { prober, to: NETS.map(|net| rig.lab().ipv4(other, net).into()) })
    }

    /// Both ways, until both answers are there.
    fn once(&mut self) -> Result<u64> {
        let real_time = sys::be_realtime(PRIORITY).is_ok();
        self.ask()?;
        let warm = Instant::now();
        while warm.elapsed() < WARM {
            std::hint::spin_loop();
        }
        let begun_ns = sys::now_ns();
        self.ask()?;
        let (mut answered, mut took_ns) = (0, 0);
        while answered < NETS.len() && took_ns < LOST_NS {
            // Those that were asked ahead of time may come only now.
            answered += usize::from(self.prober.poll().is_some_and(|answer| answer.probed_ns >= begun_ns));
            took_ns = sys::now_ns() - begun_ns;
        }
        if real_time {
            sys::be_ordinary();
        }
        Ok(took_ns)
    }

    fn ask(&mut self) -> Result<()> {
        for net in NETS {
            self.prober.echo(0, net, self.to[usize::from(net)])?;
        }
        Ok(())
    }
}

/// Stops it so many times. `Ok(false)`: the bar was missed.
///
/// # Errors
/// When it cannot be arranged, or a verdict does not come.
pub fn run(times: u32, profile: Profile, ui: &Ui) -> Outcome {
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let mut rig = Rig::up(RigSpec { profile, ..RigSpec::default() }, ui)?;
    rig.wait_until_all_see_all(ui)?;
    let who = Who::of(profile);
    let Some(victim) = rig.agent_pid(who.victim) else { anyhow::bail!("the agent of h{} does not run", who.victim) };
    let mut from = Vec::new();
    for host in who.observers {
        from.push(rig.history(*host, u64::MAX)?.1);
    }
    let (mut drained, mut others, mut alone) = (Samples::default(), Samples::default(), Samples::default());
    let mut echoes = Echoes::new(&rig, &who)?;
    for n in 0..times {
        ui.check()?;
        ui.progress(format!("stopping the agent of h{}: {n} of {times}", who.victim));
        // Spread over the period: no power of two, no multiple of it.
        std::thread::sleep(Duration::from_micros(30_000 + u64::from(n) * 377 % 1_000));
        sys::kill(victim, libc::SIGSTOP)?;
        let found = wait_for_all(&mut rig, &who, &mut from);
        sys::kill(victim, libc::SIGCONT)?;
        for e in found? {
            if let Some((overdue_ns, is_drained)) = missed_ns(&e, who.victim) {
                if is_drained { &mut drained } else { &mut others }.push(e.at_ns - overdue_ns);
            }
        }
        rig.wait_until_all_see_all(ui)?;
        std::thread::sleep(Duration::from_millis(30));
        alone.push(echoes.once()?);
    }
    tell(profile, &mut drained, &mut others, &mut alone, ui)
}

/// The next time that each of them says that the contract is broken.
fn wait_for_all(rig: &mut Rig, who: &Who, from: &mut [u64]) -> Result<Vec<HistoryEvent>> {
    let deadline = Instant::now() + PATIENCE;
    let mut found = vec![Vec::new(); who.observers.len()];
    while found.iter().any(Vec::is_empty) {
        ensure!(Instant::now() < deadline, "an observer did not say within {PATIENCE:?} that h{} was overdue", who.victim);
        std::thread::sleep(ASK_AFTER);
        for (i, host) in who.observers.iter().enumerate() {
            let (events, next) = rig.history(*host, from[i])?;
            from[i] = next;
            found[i].extend(events.into_iter().filter(|e| missed_ns(e, who.victim).is_some()));
        }
    }
    Ok(found.into_iter().flatten().collect())
}

fn tell(profile: Profile, drained: &mut Samples, others: &mut Samples, alone: &mut Samples, ui: &Ui) -> Outcome {
    ensure!(!drained.is_empty(), "no verdict came behind a barrier; `fide doctor` says why this host has none");
    let name = profile.name();
    let mut case = Case::new("safetimer", format!("drain hb=1ms {name}"), drained);
    case.beside.insert("without_barrier".into(), others.beside());
    case.beside.insert("questions_and_answers_alone".into(), alone.beside());
    case.notes.push(report::machine());
    let ok = case.quantiles.p99 <= BAR_US;
    if ui.json {
        ui.line(case.json());
        return Ok(ok);
    }
    let figures = |q: &Quantiles, bar: &str| {
        format!("p50 {}, p99 {}{bar}, p99.9 {}, max {}", human_us(q.p50), human_us(q.p99), human_us(q.p999), human_us(q.max))
    };
    let bar = format!(" (bar {BAR_US:.0} µs)");
    ui.line(format!("missed deadline to drained verdict, {name} profile: {} (n {})", figures(&case.quantiles, &bar), case.n));
    ui.line(format!(
        "the questions and answers alone, by a thread that spins: {} (n {})",
        figures(&alone.quantiles(), ""),
        alone.len()
    ));
    ui.line(format!("verdicts without a barrier: {}", others.len()));
    Ok(ok)
}
