//! How long this host keeps a thread from running, measured: what `fide doctor` shows beside the list of causes.
//!
//! Two tests, one after the other, on the processor the caller is on. *Spinning*: a loop reads the clock and notes every
//! gap between two readings; whatever takes the processor away — interrupts, other threads, the hypervisor, system
//! management mode — is a gap. *Waking*: sleep to a point on a 1 ms grid, as a lane does, and note the lateness: to the gaps
//! comes the way out of sleep. Meanwhile the kernel's own counters are read, so that causes get a share each.

use crate::host;
use crate::sys::monotonic_ns;
use crate::thread;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// A distribution, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Distribution {
    /// How many were measured.
    pub samples: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99 % are below.
    pub p99_ns: u64,
    /// 99.9 % are below.
    pub p999_ns: u64,
    /// 99.99 % are below.
    pub p9999_ns: u64,
    /// The largest.
    pub max_ns: u64,
}

impl From<&Histogram<u64>> for Distribution {
    fn from(h: &Histogram<u64>) -> Self {
        let at = |q| h.value_at_quantile(q);
        Self { samples: h.len(), p50_ns: at(0.5), p99_ns: at(0.99), p999_ns: at(0.999), p9999_ns: at(0.9999), max_ns: h.max() }
    }
}

/// What happened on the processor meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Disturbance {
    /// What it is: `interrupt LOC (Local timer interrupts)`, `preemption`, `page fault`, `steal`, …
    pub source: String,
    /// How often (for steal: milliseconds, to the kernel's tick).
    pub count: u64,
}

/// What [`measure_jitter`] found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JitterReport {
    /// The processor measured.
    pub cpu: usize,
    /// Whether the thread could be kept there.
    pub pinned: bool,
    /// How long both tests took together.
    pub took_ns: u64,
    /// Gaps in a spinning loop. The median is the cost of the loop itself.
    pub gaps: Distribution,
    /// Time lost in gaps above 1 µs, parts per million.
    pub lost_ppm: u64,
    /// Lateness of timer wake-ups.
    pub wakeups: Distribution,
    /// What happened meanwhile, most frequent first; only what did happen.
    pub disturbances: Vec<Disturbance>,
}

/// Longest run: it takes a processor away from the host.
const LONGEST: Duration = Duration::from_secs(60);
const WAKE_PERIOD_NS: u64 = 1_000_000;
const LARGEST_NS: u64 = 60_000_000_000;

/// Measures for `duration` (at most a minute), half of it spinning. The thread stays on its processor meanwhile and gets its
/// affinity back; its scheduling class is the caller's, so call it under the profile that is to be judged.
#[must_use]
pub fn measure_jitter(duration: Duration) -> JitterReport {
    let half_ns = u64::try_from(duration.min(LONGEST).as_nanos() / 2).unwrap_or(0);
    let allowed = thread::allowed_cpus();
    let cpu = thread::current_cpu();
    let pinned = thread::set_allowed_cpus(&[cpu]).is_ok();
    let before = counters(cpu);
    let start_ns = monotonic_ns();
    let (gaps, lost_ns) = spin(half_ns);
    let spun_ns = monotonic_ns() - start_ns;
    let wakeups = wake(half_ns);
    let took_ns = monotonic_ns() - start_ns;
    let after = counters(cpu);
    if pinned && thread::set_allowed_cpus(&allowed).is_err() {
        tracing::warn!(cpu, "cannot give the thread its affinity back");
    }
    JitterReport {
        cpu,
        pinned,
        took_ns,
        gaps: (&gaps).into(),
        lost_ppm: (lost_ns.saturating_mul(1_000_000)).checked_div(spun_ns).unwrap_or(0),
        wakeups: (&wakeups).into(),
        disturbances: disturbances(&before, &after),
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LARGEST_NS, 2).expect("these bounds are valid")
}

/// Gaps, and the time in gaps above 1 µs.
fn spin(for_ns: u64) -> (Histogram<u64>, u64) {
    let (mut gaps, mut lost_ns) = (histogram(), 0);
    // Recorded once beforehand: the first touch of the histogram's pages is not the host's jitter.
    for value in [1, 1_000, 1_000_000] {
        gaps.saturating_record(value);
    }
    gaps.reset();
    let start = monotonic_ns();
    let mut last = start;
    while last - start < for_ns {
        let now = monotonic_ns();
        let gap = now - last;
        gaps.saturating_record(gap);
        if gap > 1_000 {
            lost_ns += gap;
        }
        last = now;
    }
    (gaps, lost_ns)
}

fn wake(for_ns: u64) -> Histogram<u64> {
    let mut late = histogram();
    let start = monotonic_ns();
    let mut due = start + WAKE_PERIOD_NS;
    while due - start < for_ns {
        thread::sleep_until(due);
        let now = monotonic_ns();
        late.saturating_record(now.saturating_sub(due));
        due = now - (now - start) % WAKE_PERIOD_NS + WAKE_PERIOD_NS;
    }
    late
}

fn counters(cpu: usize) -> BTreeMap<String, u64> {
    let mut all = host::interrupts(&host::read("/proc/interrupts").unwrap_or_default(), cpu);
    if let Some(ms) = host::steal_ms(&host::read("/proc/stat").unwrap_or_default(), Some(cpu)) {
        all.insert("steal (ms)".into(), ms);
    }
    let (preempted, minor, major) = thread::usage();
    all.insert("preemption".into(), preempted);
    all.insert("minor page fault".into(), minor);
    all.insert("major page fault".into(), major);
    all
}

fn disturbances(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Vec<Disturbance> {
    let grown = after.iter().filter_map(|(source, now)| {
        let count = now.saturating_sub(before.get(source).copied().unwrap_or(0));
        (count > 0).then(|| Disturbance { source: source.clone(), count })
    });
    let mut all: Vec<_> = grown.collect();
    all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.source.cmp(&b.source)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_in_time_and_gives_the_affinity_back() {
        let allowed = thread::allowed_cpus();
        let r = measure_jitter(Duration::from_millis(60));
        assert!(r.took_ns < 30_000_000_000, "{r:?}");
        assert!(r.gaps.samples > 1_000 && r.wakeups.samples > 0, "{r:?}");
        assert!(r.gaps.p50_ns <= r.gaps.p99_ns && r.gaps.p99_ns <= r.gaps.max_ns, "{r:?}");
        assert!(r.lost_ppm <= 1_000_000);
        assert_eq!(thread::allowed_cpus(), allowed);
        assert_eq!(measure_jitter(Duration::ZERO).wakeups.samples, 0);
    }

    #[test]
    fn only_what_happened_is_listed_most_frequent_first() {
        let map = |pairs: &[(&str, u64)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect::<BTreeMap<_, _>>();
        let d = disturbances(&map(&[("a", 1), ("b", 5)]), &map(&[("a", 2), ("b", 5), ("c", 9)]));
        assert_eq!(d.iter().map(|d| (d.source.as_str(), d.count)).collect::<Vec<_>>(), [("c", 9), ("a", 1)]);
    }
}
