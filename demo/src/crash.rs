//! One crash, measured: a victim is started, watched and observed, killed, and everything that anybody noticed is collected.

use crate::observer::{Observers, Order, Report, Upcall};
use crate::peers::Target;
use crate::rig::Rig;
use crate::sys;
use crate::ui::Ui;
use crate::victim::Victim;
use anyhow::{Context as _, Result, bail};
use std::time::{Duration, Instant};

/// The watched host of every benchmark.
pub const WATCHED: u16 = 1;
/// The name under which victims are watched.
pub const NAME: &str = "victim";

/// How to crash.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Bytes resident in the victim.
    pub rss: u64,
    /// How long everything is waited for.
    pub patience: Duration,
    /// The observer that only has a pidfd, if there is one.
    pub pidfd: Option<usize>,
    /// What the victim keeps alive with others, and the first observer watches. Each crash has keys of its own.
    pub keys: &'a [Target],
    /// Crashes are spread over so much time after everything is set up: they must not be in step with what renews the keys.
    pub spread: Duration,
}

/// What came of it. All stamps are of one clock.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Immediately before kill(2).
    pub event_ns: u64,
    /// The upcall of each observer.
    pub upcalls: Vec<Option<Upcall>>,
    /// When each observer's TCP connection ended.
    pub tcp: Vec<Option<u64>>,
    /// When the pidfd became readable on the victim's own host.
    pub pidfd: Option<u64>,
    /// What each key was granted, ms.
    pub granted_ms: Vec<u64>,
    /// When the end of each key was noticed. A stamp before the event: it was given up while its process lived.
    pub keys: Vec<Option<u64>>,
}

/// The parts of a detection's time, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// From before kill(2) to the hook in the kernel.
    pub hook: u64,
    /// From the hook to the agent's sending.
    pub agent: u64,
    /// From sending to the receive program on the other host.
    pub wire: u64,
    /// From the receive program to the application's upcall.
    pub application: u64,
}

impl Steps {
    /// Their names, in the order of things happening.
    pub const NAMES: [&'static str; 4] = ["hook", "agent", "wire", "application"];

    /// Of an upcall that came from a notice.
    #[must_use]
    pub fn of(event_ns: u64, upcall: &Upcall) -> Option<Self> {
        (upcall.event_ns != 0 && upcall.sent_ns != 0 && upcall.received_ns != 0).then(|| Steps {
            hook: upcall.event_ns.saturating_sub(event_ns),
            agent: upcall.sent_ns.saturating_sub(upcall.event_ns),
            wire: upcall.received_ns.saturating_sub(upcall.sent_ns),
            application: upcall.at_ns.saturating_sub(upcall.received_ns),
        })
    }

    /// In the order of [`Steps::NAMES`].
    #[must_use]
    pub fn all(&self) -> [u64; 4] {
        [self.hook, self.agent, self.wire, self.application]
    }
}

/// Runs something with the priority of those who stamp, so that a stamp and what it stamps are not torn apart by load.
pub fn promptly<T>(body: impl FnOnce() -> T) -> T {
    let realtime = sys::be_realtime(sys::STAMPER_PRIORITY).is_ok();
    let result = body();
    if realtime {
        sys::be_ordinary();
    }
    result
}

/// Waits until these observers were told that the process is monitored.
///
/// # Errors
/// When one is not, in time.
pub fn wait_until_monitored(observers: &mut Observers, which: &[usize], app: u32) -> Result<()> {
    let mut missing = which.to_vec();
    let told = observers.wait_for(Duration::from_secs(10), |index, report| {
        if matches!(report, Report::Monitored(m) if m.app == app) {
            missing.retain(|i| *i != index);
        }
        missing.is_empty()
    });
    match told {
        Some(_) => Ok(()),
        None => bail!("within 10 s no word of process {app} of h{WATCHED} being monitored reached every observer"),
    }
}

/// One crash by SIGKILL. `subscribed` are the observers with a subscription; they also hold TCP connections.
///
/// # Errors
/// When the victim cannot be made, watched or killed, or somebody interrupts; a missing upcall is no error but a `None`.
pub fn crash(
    rig: &mut Rig,
    observers: &mut Observers,
    subscribed: &[usize],
    plan: &Plan<'_>,
    serial: u64,
    ui: &Ui,
) -> Result<Times> {
    let port = 20_000 + (serial % 20_000) as u16;
    let targets: Vec<Target> =
        plan.keys.iter().map(|target| Target { key: format!("{}/fide-bench-{serial}", target.key), ..target.clone() }).collect();
    let mut victim = Victim::keeping(rig, WATCHED, port, plan.rss, &targets)?;
    for &index in subscribed {
        observers.connect(index, serial, victim.address)?;
    }
    let pid = victim.pid();
    if let Some(index) = plan.pidfd {
        observers.order(index, &Order::Pidfd { pid })?;
        let ready = |i, r: &Report| i == index && matches!(r, Report::PidfdOpen { pid: p } if *p == pid);
        observers.wait_for(Duration::from_secs(5), ready).context("no pidfd of the victim")?;
    }
    let app = rig.watch(WATCHED, NAME, pid)?;
    wait_until_monitored(observers, subscribed, app)?;
    let mut keys = watch_keys(observers, subscribed, &targets, serial)?;
    // Not in step with the heartbeats: anything between 2 and 4 ms. The golden ratio's multiples fill an interval evenly.
    let phase = (serial as f64 * 0.618_033_988_749_895).fract();
    ui.sleep(plan.spread.mul_f64(phase) + Duration::from_micros(2_000 + (serial * 617) % 2_000))?;
    for (_, report) in observers.drain() {
        note_key(&mut keys, serial, &report)?;
    }

    let mut times = Times {
        upcalls: vec![None; subscribed.len()],
        tcp: vec![None; subscribed.len()],
        event_ns: promptly(|| sys::kill(pid, libc::SIGKILL))?,
        pidfd: None,
        granted_ms: victim.granted_ms.clone(),
        keys,
    };
    let mut confirmed = 0;
    let deadline = Instant::now() + plan.patience;
    let complete = |t: &Times, confirmed: usize| {
        t.upcalls.iter().all(Option::is_some)
            && t.tcp.iter().all(Option::is_some)
            && t.keys.iter().all(Option::is_some)
            && (plan.pidfd.is_none() || t.pidfd.is_some())
            && confirmed >= subscribed.len()
    };
    while !complete(&times, confirmed) {
        ui.check()?;
        let now = Instant::now();
        if now >= deadline {
            break;
        }
        let Some((index, report)) = observers.next(deadline.min(now + LOOK_UP)) else { continue };
        note_key(&mut times.keys, serial, &report)?;
        let at = subscribed.iter().position(|i| *i == index);
        match (report, at) {
            (Report::Failure(u), Some(at)) if u.app == app => times.upcalls[at] = Some(u),
            (Report::Confirmed(u), Some(_)) if u.app == app => confirmed += 1,
            (Report::TcpEnd { tag, at_ns, .. }, Some(at)) if tag == serial => times.tcp[at] = Some(at_ns),
            (Report::PidfdEnd { pid: p, at_ns }, _) if p == pid => times.pidfd = Some(at_ns),
            _ => {}
        }
    }
    victim.reap()?;
    Ok(times)
}

/// How often a wait looks up whether it was interrupted.
const LOOK_UP: Duration = Duration::from_millis(200);

/// Has the first observer watch the keys, and waits until it does. What ended meanwhile has its stamp.
fn watch_keys(observers: &mut Observers, subscribed: &[usize], targets: &[Target], tag: u64) -> Result<Vec<Option<u64>>> {
    let mut keys = vec![None; targets.len()];
    let (Some(&observer), false) = (subscribed.first(), targets.is_empty()) else { return Ok(keys) };
    observers.order(observer, &Order::Keys { tag, targets: targets.to_vec() })?;
    let mut unwatched = targets.len();
    let deadline = Instant::now() + Duration::from_secs(20);
    while unwatched > 0 {
        let (_, report) = observers.next(deadline).context("the keys are not watched")?;
        note_key(&mut keys, tag, &report)?;
        unwatched -= usize::from(matches!(report, Report::KeyWatched { tag: t, .. } if t == tag));
    }
    Ok(keys)
}

/// Writes down the end of a key, if this is one.
fn note_key(keys: &mut [Option<u64>], tag: u64, report: &Report) -> Result<()> {
    match report {
        Report::KeyEnd { tag: t, index, at_ns } if *t == tag => {
            if let Some(key) = keys.get_mut(*index) {
                *key = Some(*at_ns);
            }
        }
        Report::KeyFailed { tag: t, why, .. } if *t == tag => bail!("a key cannot be watched: {why}"),
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::verdict::{Cause, Grade};

    #[test]
    fn steps_add_up_to_the_whole() {
        let upcall = Upcall {
            at_ns: 1_100,
            node: 1,
            app: 1,
            incarnation: 1,
            cause: Cause::Doomed,
            grade: Grade::Certain,
            code: 9,
            id: None,
            path: 0,
            event_ns: 1_010,
            sent_ns: 1_040,
            received_ns: 1_060,
        };
        let steps = Steps::of(1_000, &upcall).unwrap();
        assert_eq!(steps.all(), [10, 30, 20, 40]);
        assert_eq!(steps.all().iter().sum::<u64>(), upcall.at_ns - 1_000);
        assert_eq!(Steps::of(1_000, &Upcall { received_ns: 0, ..upcall }), None, "an inferred verdict has no such steps");
    }
}
