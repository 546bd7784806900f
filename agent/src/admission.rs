//! What the history keeps: which [`Class`] an event belongs to, and how much of a class one source may put in.
//!
//! A source is a user of this host; or of another host all its ordinary users together, and its
//! root. This host's root, and the agent itself, are not limited. An event over the limit is not
//! kept and not logged, but hooks run for it and counters count it; the history says how many there
//! were.

use crate::shares::{EventSource, Rate, RateLimit, UNKNOWN_USER};
use fide_wire::control::HistoryEvent;
use fide_wire::level::{REPORT_EVENT_CODE, TIMING_EVENT_CODE, WATCH_EVENT_CODE};
use fide_wire::verdict::Cause;
use std::collections::BTreeMap;

/// `code` of [`Cause::Local`] events that say what was not kept, or not run.
pub const NOT_KEPT_EVENT_CODE: i32 = 1006;

/// `code` of [`Cause::Local`] events that report a hook ([`crate::hooks::HookOutcome::event`]): no hook runs for those, or one that fails
/// on `any` would run for ever.
pub const HOOK_EVENT_CODE: i32 = 1001;

/// Codes of [`Cause::Local`] events that are kept with reports.
const OF_REPORTS: [i32; 5] = [HOOK_EVENT_CODE, REPORT_EVENT_CODE, WATCH_EVENT_CODE, NOT_KEPT_EVENT_CODE, TIMING_EVENT_CODE];

/// Events that share a room of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Crashes, silent hosts, and whatever else happened to hosts.
    Failures = 0,
    /// What applications say of themselves and each other, and what comes of that.
    Reports = 1,
    /// Contracts, paths and pauses.
    Timing = 2,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 3] = [Class::Failures, Class::Reports, Class::Timing];

    /// Where an event belongs.
    #[must_use]
    pub fn of(event: &HistoryEvent) -> Self {
        match event.cause {
            Cause::Hung | Cause::Progressing | Cause::Monitored => Class::Reports,
            Cause::Left if event.app.is_some() => Class::Reports,
            Cause::Local if OF_REPORTS.contains(&event.code) => Class::Reports,
            Cause::ContractBroken | Cause::ContractKept | Cause::PathDown | Cause::PathUp | Cause::ObserverPaused => {
                Class::Timing
            }
            Cause::Exited
            | Cause::Killed
            | Cause::OutOfMemory
            | Cause::Doomed
            | Cause::Replaced
            | Cause::Left
            | Cause::AgentLost
            | Cause::SilentHost
            | Cause::Unreachable
            | Cause::Isolated
            | Cause::Rejoined
            | Cause::Returned
            | Cause::NameClash
            | Cause::ForeignTraffic
            | Cause::Interface
            | Cause::Fenced
            | Cause::Recovered
            | Cause::Local => Class::Failures,
        }
    }

    /// What one source may put in.
    #[must_use]
    pub const fn limit(self) -> RateLimit {
        match self {
            Class::Failures => RateLimit { interval_ns: 5_000_000_000, burst: 1024 },
            Class::Reports => RateLimit { interval_ns: 2_000_000_000, burst: 512 },
            Class::Timing => RateLimit { interval_ns: 2_000_000_000, burst: 128 },
        }
    }

    /// Its part of the bytes that the history may take.
    #[must_use]
    pub const fn part_of(self, bytes: u64) -> u64 {
        match self {
            Class::Failures => bytes / 2,
            Class::Reports | Class::Timing => bytes / 4,
        }
    }

    /// Its newest events that are kept in memory, where so many failures are.
    #[must_use]
    pub const fn part_of_memory(self, failures: usize) -> usize {
        match self {
            Class::Failures => failures,
            Class::Reports => failures / 2,
            Class::Timing => failures / 4,
        }
    }

    /// What its files are called, behind the history's name.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Class::Failures => "",
            Class::Reports => ".reports",
            Class::Timing => ".timing",
        }
    }

    const fn plural(self) -> &'static str {
        match self {
            Class::Failures => "failures",
            Class::Reports => "reports",
            Class::Timing => "notices of timing",
        }
    }
}

/// That more was dropped is told at most so often of one source.
pub const TOLD_EVERY_NS: u64 = 60_000_000_000;

/// What was dropped of one source since that was told last.
#[derive(Debug, Default)]
pub struct Dropped {
    count: u64,
    last: String,
    told_ns: Option<u64>,
}

impl Dropped {
    /// One more, about this.
    pub fn note(&mut self, last: String) {
        self.count += 1;
        self.last = last;
    }

    /// How many, and the last one, if it is time to tell.
    pub fn due(&mut self, now_ns: u64) -> Option<(u64, String)> {
        let waits = self.told_ns.is_some_and(|told| now_ns.saturating_sub(told) < TOLD_EVERY_NS);
        if self.count == 0 || waits {
            return None;
        }
        self.told_ns = Some(now_ns);
        Some((std::mem::take(&mut self.count), std::mem::take(&mut self.last)))
    }

    /// Whether it may be forgotten.
    #[must_use]
    pub fn is_idle(&self, now_ns: u64) -> bool {
        self.count == 0 && self.told_ns.is_none_or(|told| now_ns.saturating_sub(told) >= TOLD_EVERY_NS)
    }
}

/// The subject of an event, for people.
#[must_use]
pub fn subject(event: &HistoryEvent) -> String {
    event.app.as_ref().map_or_else(|| event.node.clone(), |app| format!("{app}@{}", event.node))
}

#[derive(Debug, Default)]
struct Account {
    rate: Rate,
    dropped: Dropped,
    host: String,
}

/// How much of the history each source has used lately.
#[derive(Debug, Default)]
pub struct Admission {
    accounts: BTreeMap<(Class, EventSource), Account>,
    not_kept: u64,
}

impl Admission {
    /// Whether an event is kept; counted either way.
    pub fn admit(&mut self, event: &HistoryEvent, source: EventSource, now_ns: u64) -> bool {
        if source == EventSource::OWN {
            return true;
        }
        // Names of users say nothing here about those of another host, but for root.
        let user = if source.node.is_some() && source.user != 0 { UNKNOWN_USER } else { source.user };
        let class = Class::of(event);
        let account = self.accounts.entry((class, EventSource { user, ..source })).or_default();
        let kept = account.rate.take(class.limit(), now_ns);
        if !kept {
            self.not_kept += 1;
            account.dropped.note(subject(event));
            account.host.clone_from(&event.node);
        }
        kept
    }

    /// Events that were not kept.
    #[must_use]
    pub const fn not_kept(&self) -> u64 {
        self.not_kept
    }

    /// What there is to tell, and forgets sources that have nothing in the books.
    pub fn tell(&mut self, now_ns: u64) -> Vec<String> {
        let mut told = Vec::new();
        for ((class, source), account) in &mut self.accounts {
            let Some((count, last)) = account.dropped.due(now_ns) else { continue };
            let RateLimit { interval_ns, burst } = class.limit();
            told.push(format!(
                "{count} {} of {}, the last about {last}, not kept: the history takes {burst} of one source at once, then one in {} s",
                class.plural(),
                source.named(&account.host),
                interval_ns / 1_000_000_000
            ));
        }
        self.accounts.retain(|_, account| !account.rate.is_idle(now_ns) || !account.dropped.is_idle(now_ns));
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::verdict::Grade;

    fn event(cause: Cause, node: &str, app: &str) -> HistoryEvent {
        HistoryEvent {
            seq: 0,
            wall_ns: 0,
            at_ns: 0,
            observer: "h2".into(),
            observer_incarnation: 1,
            id: None,
            cause,
            grade: Grade::Certain,
            node: node.into(),
            incarnation: 1,
            app: Some(app.into()),
            code: 0,
            confirms: false,
            text: String::new(),
            maintenance: None,
            evidence: None,
        }
    }

    #[test]
    fn one_source_has_its_burst_and_its_rate_and_is_told_of_once() {
        let mut admission = Admission::default();
        let of = |user| EventSource { node: Some(7), user };
        let reports = Class::Reports.limit();
        let hung = event(Cause::Hung, "h1", "db");
        let now = 1_000_000_000_000;
        let taken = |admission: &mut Admission, source, n: u64| (0..n).filter(|_| admission.admit(&hung, source, now)).count();
        assert_eq!(taken(&mut admission, of(1000), 1000), reports.burst as usize);
        assert_eq!(taken(&mut admission, of(1001), 10), 0, "users of another host share its part");
        assert_eq!(taken(&mut admission, of(0), 10), 10, "its root has one of its own");
        assert_eq!(taken(&mut admission, EventSource { node: Some(8), user: 1000 }, 10), 10, "and so has another host");
        assert!(admission.admit(&event(Cause::Killed, "h1", "db"), of(1000), now), "and another class");
        assert_eq!(taken(&mut admission, EventSource::OWN, 1000), 1000, "this host's root is not limited");
        let told = admission.tell(now);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("498 reports of users of host h1, the last about db@h1, not kept"), "{told:?}");
        assert_eq!(taken(&mut admission, of(1000), 5), 0);
        assert_eq!(admission.tell(now + 1), Vec::<String>::new(), "once a minute");
        let told = admission.tell(now + TOLD_EVERY_NS);
        assert!(told[0].starts_with("5 reports"), "{told:?}");
        assert_eq!(admission.not_kept(), 503);
        let later = now + 1_000 * TOLD_EVERY_NS;
        assert_eq!(admission.tell(later), Vec::<String>::new());
        assert!(admission.accounts.is_empty(), "forgotten");
    }

    #[test]
    fn a_users_share_of_a_class_is_less_than_its_room() {
        for class in Class::ALL {
            let memory = class.part_of_memory(crate::history::MEMORY_EVENTS);
            assert!(class.limit().burst * 2 <= memory as u64, "{class:?}");
        }
        assert_eq!(Class::ALL.iter().map(|c| c.part_of(1 << 20)).sum::<u64>(), 1 << 20);
    }
}
