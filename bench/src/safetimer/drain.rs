//! How long it takes from a deadline that was missed to a verdict behind a barrier (SafeTimer §4.1), on a receiver that is well.
//!
//! The agent of a host is stopped for a moment, at random phases of its period, and the others say *contract broken*. Each does so when an answer
//! to a question has come out of the queue that the host's heartbeats take; the time is that of its clock at the verdict, less the last heartbeat's kernel stamp and the timeout.

use crate::Outcome;
use crate::report;
use crate::rig::{Profile, Rig, RigSpec};
use crate::stats::{Case, Samples, human_us};
use crate::sys;
use crate::ui::{Paint, Ui};
use anyhow::{Result, ensure};
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::Cause;
use std::time::{Duration, Instant};

/// At p99.
const BAR_US: f64 = 100.0;
/// A stop must end before the agent is lost (1 s).
const PATIENCE: Duration = Duration::from_millis(700);

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
    let (mut drained, mut others) = (Samples::default(), Samples::default());
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
    }
    tell(profile, &mut drained, &mut others, ui)
}

/// The next time that each of them says that the contract is broken.
fn wait_for_all(rig: &mut Rig, who: &Who, from: &mut [u64]) -> Result<Vec<HistoryEvent>> {
    let deadline = Instant::now() + PATIENCE;
    let mut found = vec![Vec::new(); who.observers.len()];
    while found.iter().any(Vec::is_empty) {
        ensure!(Instant::now() < deadline, "an observer did not say within {PATIENCE:?} that h{} was overdue", who.victim);
        std::thread::sleep(Duration::from_millis(2));
        for (i, host) in who.observers.iter().enumerate() {
            let (events, next) = rig.history(*host, from[i])?;
            from[i] = next;
            found[i].extend(events.into_iter().filter(|e| missed_ns(e, who.victim).is_some()));
        }
    }
    Ok(found.into_iter().flatten().collect())
}

fn tell(profile: Profile, drained: &mut Samples, others: &mut Samples, ui: &Ui) -> Outcome {
    ensure!(!drained.is_empty(), "no verdict came behind a barrier; `fide doctor` says why this host has none");
    let name = profile.name();
    let mut case = Case::new("safetimer", format!("drain hb=1ms {name}"), drained);
    case.beside.insert("without_barrier".into(), others.beside());
    case.notes.push(report::machine());
    let ok = case.quantiles.p99 <= BAR_US;
    if ui.json {
        ui.line(case.json());
        return Ok(ok);
    }
    let q = &case.quantiles;
    ui.line(format!(
        "missed deadline to drained verdict, {name} profile: p50 {}, p99 {} (bar {BAR_US:.0} µs), p99.9 {}, max {} (n {})",
        human_us(q.p50),
        human_us(q.p99),
        human_us(q.p999),
        human_us(q.max),
        case.n
    ));
    ui.line(format!("verdicts without a barrier: {}", others.len()));
    Ok(ok)
}
