//! How much an event matters to an operator, and the members that its JSON has beside its fields.

use crate::control::HistoryEvent;
use crate::verdict::{Cause, UniqueId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The level of an event, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// A verdict about a process or a host: it ended, hangs, or cannot be observed any more.
    Failure,
    /// Something is broken or refused, and nothing has failed yet: a path, a fence, a hook.
    Fault,
    /// What an operator may want to read later.
    Notice,
    /// A deadline that was missed or is kept again. Normal on a busy host; hidden unless asked for.
    Timing,
}

impl Level {
    /// Every level, worst first.
    pub const ALL: [Level; 4] = [Level::Failure, Level::Fault, Level::Notice, Level::Timing];

    /// The name used in JSON, on the command line and in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Failure => "failure",
            Level::Fault => "fault",
            Level::Notice => "notice",
            Level::Timing => "timing",
        }
    }

    /// The level of an event with this cause and code.
    #[must_use]
    pub const fn of(cause: Cause, code: i32) -> Self {
        match cause {
            Cause::Exited
            | Cause::Killed
            | Cause::OutOfMemory
            | Cause::Doomed
            | Cause::Replaced
            | Cause::SilentHost
            | Cause::AgentLost
            | Cause::Hung => Level::Failure,
            Cause::PathDown | Cause::Unreachable | Cause::Isolated | Cause::Fenced | Cause::NameClash | Cause::ForeignTraffic => {
                Level::Fault
            }
            // An interface that came back.
            Cause::Interface if code != 0 => Level::Notice,
            Cause::Interface => Level::Fault,
            Cause::Local if is_for_the_record(code) => Level::Notice,
            Cause::Local => Level::Fault,
            Cause::Left
            | Cause::PathUp
            | Cause::Returned
            | Cause::Rejoined
            | Cause::Monitored
            | Cause::Recovered
            | Cause::Progressing => Level::Notice,
            Cause::ContractBroken | Cause::ContractKept | Cause::ObserverPaused => Level::Timing,
        }
    }
}

/// `code` of [`Cause::Local`]: an application's reason for a report.
pub const REPORT_EVENT_CODE: i32 = 1002;
/// `code` of [`Cause::Local`]: an operator had a host forgotten.
pub const FORGOTTEN_EVENT_CODE: i32 = 1004;
/// `code` of [`Cause::Local`]: what became of a watch.
pub const WATCH_EVENT_CODE: i32 = 1005;
/// `code` of [`Cause::Local`]: how many events of level *timing* there were in the last minute.
pub const TIMING_EVENT_CODE: i32 = 1007;
/// `code` of [`Cause::Local`]: the configuration was read again.
pub const RELOAD_EVENT_CODE: i32 = 1008;

/// `code` of [`Cause::Local`]: the fence of this host is not armed although it should be.
pub const FENCE_EVENT_CODE: i32 = 1010;

/// `code` of [`Cause::Local`]: multicast is not delivered on a path, or is again.
pub const MULTICAST_EVENT_CODE: i32 = 1011;
/// `code` of [`Cause::Local`]: large frames do not get through on a path, or do again.
pub const SIZE_EVENT_CODE: i32 = 1012;
/// `code` of [`Cause::Local`]: a part of what a host sends does not arrive on a path, or does again.
pub const LOSS_EVENT_CODE: i32 = 1013;

/// `code` of [`Cause::Local`]: a host was given up by another one, wrongly. On both of them.
pub const MISTAKEN_EVENT_CODE: i32 = 1014;

/// `code` of [`Cause::Local`]: a maintenance begins or ends.
pub const MAINTENANCE_EVENT_CODE: i32 = 1009;

const fn is_for_the_record(code: i32) -> bool {
    matches!(
        code,
        REPORT_EVENT_CODE
            | FORGOTTEN_EVENT_CODE
            | WATCH_EVENT_CODE
            | TIMING_EVENT_CODE
            | RELOAD_EVENT_CODE
            | MAINTENANCE_EVENT_CODE
    )
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl HistoryEvent {
    /// How much it matters.
    #[must_use]
    pub const fn level(&self) -> Level {
        Level::of(self.cause, self.code)
    }

    /// Its verdict's id with the incarnation that numbered it: this observer's if it inferred the verdict, else that of the
    /// host where the event happened.
    #[must_use]
    pub fn unique_id(&self) -> Option<UniqueId> {
        self.id.map(|id| {
            let incarnation = if id.is_inferred() { self.observer_incarnation } else { self.incarnation };
            UniqueId { id, incarnation }
        })
    }

    /// Whether the host that it is about is fenced as a whole: its promise covered all that it sends, and the promise's time
    /// was over when the verdict was given.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.evidence.as_ref().is_some_and(|e| e.fenced && e.fence.is_some_and(|promise| promise.host))
    }

    /// Whether it is the end of a process that was meant to end: by exit status 0, or by leaving.
    #[must_use]
    pub fn is_planned(&self) -> bool {
        match self.cause {
            Cause::Left => true,
            // Of a process in which exit(0) was called, while its last thread is not gone yet.
            Cause::Exited | Cause::Doomed => self.code == 0 && self.app.is_some(),
            _ => false,
        }
    }

    /// Whether the guarded cgroups of its host are fenced, or all of the host.
    #[must_use]
    pub fn is_partly_fenced(&self) -> bool {
        self.evidence.as_ref().is_some_and(|e| e.fenced)
    }
}

/// An event as it is written: its fields, and what follows from them.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten, serialize_with = "HistoryEvent::serialize")]
    event: &'a HistoryEvent,
    level: Level,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_id: Option<UniqueId>,
    fenced: bool,
    planned: bool,
}

impl Serialize for HistoryEvent {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let (level, unique_id) = (self.level(), self.unique_id());
        let (fenced, planned) = (self.is_fenced(), self.is_planned());
        Serialize::serialize(&Written { event: self, level, unique_id, fenced, planned }, s)
    }
}

impl<'de> Deserialize<'de> for HistoryEvent {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        HistoryEvent::deserialize(d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Evidence, FenceMode, FencePromise, Grade, VerdictId};

    fn event(cause: Cause, id: Option<VerdictId>) -> HistoryEvent {
        HistoryEvent {
            seq: 7,
            wall_ns: 1,
            at_ns: 2,
            observer: "h1".into(),
            observer_incarnation: 0x10,
            id,
            cause,
            grade: Grade::Certain,
            node: "h2".into(),
            incarnation: 0x20,
            app: None,
            code: 0,
            confirms: false,
            text: "x".into(),
            maintenance: None,
            evidence: None,
        }
    }

    #[test]
    fn what_is_observed_of_deadlines_is_timing_and_every_verdict_that_ends_something_a_failure() {
        for cause in Cause::ALL {
            let level = Level::of(cause, 0);
            assert_eq!(
                cause.ends_process() && cause != Cause::Left || matches!(cause, Cause::AgentLost | Cause::Hung),
                level == Level::Failure,
                "{cause}"
            );
        }
        assert_eq!(Level::of(Cause::ContractBroken, 0), Level::Timing);
        assert_eq!(Level::of(Cause::Local, 1001), Level::Fault, "a hook that failed");
        assert_eq!(Level::of(Cause::Local, TIMING_EVENT_CODE), Level::Notice);
        assert_eq!((Level::of(Cause::Interface, 0), Level::of(Cause::Interface, 1)), (Level::Fault, Level::Notice));
    }

    #[test]
    fn an_events_json_has_its_level_and_an_id_that_no_other_verdict_has() {
        let json = |e: &HistoryEvent| serde_json::to_value(e).unwrap();
        let certain = event(Cause::Killed, Some(VerdictId::new(0xab, 17)));
        assert_eq!(json(&certain)["unique_id"], "000000ab-00000020-17", "numbered by the host where it happened");
        assert_eq!((json(&certain)["id"].clone(), json(&certain)["level"].clone()), ("000000ab-17".into(), "failure".into()));
        let inferred = event(Cause::SilentHost, Some(VerdictId::new(0xac, VerdictId::INFERRED | 1)));
        assert_eq!(json(&inferred)["unique_id"], "000000ac-00000010-2147483649", "numbered by the observer");
        let back: HistoryEvent = serde_json::from_value(json(&certain)).unwrap();
        assert_eq!(back, certain);
        assert!(serde_json::to_string(&certain).unwrap().starts_with("{\"seq\":7,"), "as lines of the history begin");
    }

    #[test]
    fn an_end_by_exit_status_0_and_a_leave_are_planned_and_nothing_else_is() {
        let end = |cause, code| HistoryEvent { app: Some("db".into()), code, ..event(cause, None) };
        for (cause, code, planned) in [
            (Cause::Exited, 0, true),
            (Cause::Doomed, 0, true),
            (Cause::Left, 0, true),
            (Cause::Exited, 1, false),
            (Cause::Exited, -1, false),
            (Cause::Doomed, 9, false),
            (Cause::Killed, 9, false),
            (Cause::OutOfMemory, 9, false),
            (Cause::SilentHost, 0, false),
        ] {
            assert_eq!(end(cause, code).is_planned(), planned, "{cause} {code}");
        }
    }

    #[test]
    fn only_a_promise_for_all_that_a_host_sends_makes_it_fenced() {
        let with = |fenced, host| {
            let promise = FencePromise { timeout_ns: 1, mode: FenceMode::Sent, host };
            let evidence = Evidence { fence: Some(promise), fenced, ..Evidence::default() };
            HistoryEvent { evidence: Some(Box::new(evidence)), ..event(Cause::SilentHost, None) }
        };
        assert!(with(true, true).is_fenced());
        assert!(!with(true, false).is_fenced() && with(true, false).is_partly_fenced());
        assert!(!with(false, true).is_partly_fenced() && !event(Cause::SilentHost, None).is_fenced());
    }
}
