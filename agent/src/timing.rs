//! How many events of level *timing* there were, told once a minute at most.
//!
//! A busy host misses deadlines and keeps them again all day. Each of these events is in the history, but `fide events`
//! does not show them unless asked. This counts them instead, so that an operator sees that they happen, and where.

use crate::admission;
use fide_wire::control::HistoryEvent;
use fide_wire::level::Level;
use fide_wire::verdict::Cause;
use std::collections::BTreeMap;

/// The shortest time between two summaries.
pub const SUMMARY_NS: u64 = 60_000_000_000;
/// Of each cause so many subjects are named, those with the most events first.
const NAMED: usize = 4;

/// What was counted since the last summary.
#[derive(Debug, Default)]
pub struct Timing {
    counts: BTreeMap<Cause, BTreeMap<String, u64>>,
    /// When the first of them happened.
    since_ns: Option<u64>,
}

impl Timing {
    /// Counts an event, if it is one of this level.
    pub fn note(&mut self, event: &HistoryEvent, now_ns: u64) {
        if event.level() != Level::Timing {
            return;
        }
        self.since_ns.get_or_insert(now_ns);
        *self.counts.entry(event.cause).or_default().entry(admission::subject(event)).or_default() += 1;
    }

    /// The summary, a minute after the first event that it counts.
    pub fn due(&mut self, now_ns: u64) -> Option<String> {
        self.since_ns.filter(|since| now_ns.saturating_sub(*since) >= SUMMARY_NS)?;
        self.since_ns = None;
        let parts: Vec<String> = std::mem::take(&mut self.counts).into_iter().map(|(cause, of)| summary(cause, of)).collect();
        Some(format!("in the last minute {}; each of them: fide events --all", parts.join(", ")))
    }
}

/// `contract-broken 41 times (h2 30, h3 11)`.
fn summary(cause: Cause, of: BTreeMap<String, u64>) -> String {
    let total: u64 = of.values().sum();
    let mut subjects: Vec<(String, u64)> = of.into_iter().collect();
    subjects.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let more = subjects.len().saturating_sub(NAMED);
    let only = subjects.len() == 1;
    let name = |(subject, count): (String, u64)| if only { subject } else { format!("{subject} {count}") };
    let mut named: Vec<String> = subjects.into_iter().take(NAMED).map(name).collect();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    let times = if total == 1 { "once".into() } else { format!("{total} times") };
    format!("{cause} {times} ({})", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::{HookOutcome, HookResult};
    use crate::shares::EventSource;
    use std::time::Duration;

    fn event(cause: Cause, node: &str) -> HistoryEvent {
        let outcome = HookOutcome {
            program: String::new(),
            seq: 0,
            id: None,
            source: EventSource::OWN,
            result: HookResult::Succeeded,
            took: Duration::ZERO,
            output: String::new(),
        };
        HistoryEvent { cause, code: 0, ..outcome.event(0, 0, node, 1) }
    }

    #[test]
    fn an_hour_under_load_has_at_most_sixty_summaries_that_count_everything() {
        let mut timing = Timing::default();
        let (mut told, mut noted) = (Vec::new(), 0);
        for half_second in 0..7200u64 {
            let now = half_second * 500_000_000;
            for (cause, node) in [(Cause::ContractBroken, "h2"), (Cause::ContractKept, "h2"), (Cause::ObserverPaused, "h1")] {
                timing.note(&event(cause, node), now);
                noted += 1;
            }
            told.extend(timing.due(now));
        }
        assert!((55..=60).contains(&told.len()), "{}", told.len());
        told.extend(timing.due(u64::MAX));
        let counted: u64 = told.iter().flat_map(|t| t.split_whitespace()).filter_map(|w| w.parse::<u64>().ok()).sum();
        assert_eq!(counted, noted);
    }

    #[test]
    fn a_summary_names_those_with_the_most_and_a_calm_minute_has_none() {
        let mut timing = Timing::default();
        for (node, times) in [("h1", 1), ("h2", 5), ("h3", 2), ("h4", 3), ("h5", 1), ("h6", 1)] {
            (0..times).for_each(|_| timing.note(&event(Cause::ContractBroken, node), 0));
        }
        timing.note(&event(Cause::ObserverPaused, "h1"), 0);
        timing.note(&event(Cause::Killed, "h1"), 0);
        assert_eq!(timing.due(SUMMARY_NS - 1), None);
        assert_eq!(
            timing.due(SUMMARY_NS).unwrap(),
            "in the last minute contract-broken 13 times (h2 5, h4 3, h3 2, h1 1, 2 more), observer-paused once (h1); \
             each of them: fide events --all"
        );
        assert_eq!(timing.due(10 * SUMMARY_NS), None);
    }
}
