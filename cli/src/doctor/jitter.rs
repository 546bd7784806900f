//! What disturbs the lane's thread (X7): every source the lane knows, and a measurement.

use super::{Group, Item, State};
use crate::units::ns;
use fide_lane::profile::{self, Profile};
use fide_lane::{JitterReport, Step, measure_jitter};
use std::time::Duration;

/// Every source, under the profile that is configured.
pub fn examine(interfaces: &[&str], dedicated: bool) -> Group {
    let beyond = profile::inspect(&Profile::Dedicated { cpu: None }, interfaces);
    let steps = if dedicated { beyond.clone() } else { profile::inspect(&Profile::Shared, interfaces) };
    let title = if dedicated { "Jitter sources (profile dedicated)" } else { "Jitter sources (profile shared)" };
    Group { title, items: steps.iter().map(|s| item(s, beyond.iter().find(|b| b.source == s.source))).collect() }
}

/// `beyond`: what the dedicated profile would come to.
fn item(step: &Step, beyond: Option<&Step>) -> Item {
    let source = Item::ok("jitter-source", "", step.detail.clone()).of(step.source);
    match step.state {
        profile::State::Achieved => source,
        profile::State::NotWanted => {
            let more = match beyond {
                Some(b) if b.detail.starts_with(&step.detail) => format!("left alone ({})", b.detail),
                Some(b) if b.state == profile::State::Achieved => {
                    format!("left alone ({}; profile dedicated: {})", step.detail, b.detail)
                }
                Some(b) => format!("left alone ({}; profile dedicated could not change it: {})", step.detail, b.detail),
                None => format!("left alone ({})", step.detail),
            };
            Item { found: more, ..source }
        }
        profile::State::Refused => Item { state: State::Degraded, ..source },
        profile::State::Unavailable => Item { state: State::Unknown, ..source },
    }
}

/// Measures, under real-time priority if that is permitted.
pub fn measure(duration: Duration) -> Group {
    let measured = std::thread::spawn(move || {
        let applied = profile::apply_to_this_thread(&Profile::Shared);
        let fifo = applied.steps.iter().any(|s| s.source == "thread-preemption" && s.state == profile::State::Achieved);
        (measure_jitter(duration), fifo)
    });
    let items = match measured.join() {
        Ok((report, fifo)) => judge(&report, fifo),
        Err(_) => vec![Item::worse("jitter-measured", "measured", State::Unknown, "the measuring thread ended early", "", "")],
    };
    Group { title: "Jitter measured", items }
}

fn judge(r: &JitterReport, fifo: bool) -> Vec<Item> {
    let priority = if fifo { "with" } else { "WITHOUT" };
    let w = &r.wakeups;
    let found = format!(
        "p50 {}, p99 {}, p99.9 {}, max {} ({} wake-ups, processor {}, {priority} real-time priority)",
        ns(w.p50_ns),
        ns(w.p99_ns),
        ns(w.p999_ns),
        ns(w.max_ns),
        w.samples,
        r.cpu
    );
    let title = "lateness of a timer's wake-up";
    // δmax must cover a late sender; at HB 1 ms a δmax of a millisecond triples the timeout.
    let wakeups = if w.max_ns < 1_000_000 {
        Item::ok("jitter-wakeups", title, found)
    } else {
        let costs = format!(
            "δmax must be {} at least, which alone makes a timeout of {} at HB 1 ms",
            ns(w.max_ns),
            ns(1_000_000 + 2 * w.max_ns)
        );
        Item::worse(
            "jitter-wakeups",
            title,
            State::Degraded,
            found,
            &costs,
            "see the sources above; on a shared host, the dedicated profile",
        )
    };
    let g = &r.gaps;
    let found =
        format!("p99.99 {}, max {}; {} ppm of the time lost in gaps above 1 µs", ns(g.p9999_ns), ns(g.max_ns), r.lost_ppm);
    let mut items = vec![wakeups, Item::ok("jitter-gaps", "gaps in a spinning loop", found)];
    if !r.disturbances.is_empty() {
        let all: Vec<String> = r.disturbances.iter().take(8).map(|d| format!("{} × {}", d.count, d.source)).collect();
        items.push(Item::ok("jitter-disturbances", "what happened meanwhile", all.join(", ")));
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_lane::{Distribution, Disturbance};

    #[test]
    fn a_source_left_alone_says_what_the_other_profile_would_do() {
        let step = |state| Step { source: "sleep-states", state, detail: "slow".into() };
        let left =
            item(&step(profile::State::NotWanted), Some(&Step { detail: "held awake".into(), ..step(profile::State::Achieved) }));
        assert!(left.state == State::Ok && left.found.contains("held awake"), "{left:?}");
        assert_eq!(item(&step(profile::State::Refused), None).state, State::Degraded);
        assert_eq!(item(&step(profile::State::Unavailable), None).state, State::Unknown);
    }

    #[test]
    fn f5_late_wake_ups_are_told_as_the_timeout_they_cause() {
        let report = |max_ns| JitterReport {
            cpu: 1,
            pinned: true,
            took_ns: 1,
            gaps: Distribution::default(),
            lost_ppm: 3,
            wakeups: Distribution { max_ns, ..Distribution::default() },
            disturbances: vec![Disturbance { source: "preemption".into(), count: 3 }],
        };
        assert_eq!(judge(&report(999_999), true)[0].state, State::Ok);
        let late = &judge(&report(4_000_000), false)[0];
        assert!(late.costs.as_ref().unwrap().contains("9 ms") && late.found.contains("WITHOUT"), "{late:?}");
    }
}
