//! What an application is told: the upcalls of FiDe's Listing 1 and what this detector knows beyond them.

use fide_wire::event::{Record, RecordKind};
use fide_wire::verdict::{Cause, Grade, VerdictId};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

/// Whom an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Subject {
    /// The node's wire id.
    pub node: u32,
    /// The process's number there, never used twice in an incarnation; 0 for the node itself.
    pub app: u32,
    /// The node's incarnation; 0 where it is not known.
    pub incarnation: u32,
    /// `name@host`, or `@host`, where this client has learned it.
    pub name: Option<Arc<str>>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.app) {
            (Some(name), _) => f.write_str(name),
            (None, 0) => write!(f, "@{:08x}", self.node),
            (None, app) => write!(f, "{app}@{:08x}", self.node),
        }
    }
}

/// A verdict about a process or a host, as it came off the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whom it is about.
    pub subject: Subject,
    /// What happened.
    pub cause: Cause,
    /// How sure.
    pub grade: Grade,
    /// Exit status, signal, or path number, as the cause says.
    pub code: i32,
    /// Its identity, the same on every host that received the same notice: `fide explain` shows what it rests on. Unique within an
    /// incarnation of the node that gave it.
    pub id: Option<VerdictId>,
    /// The path its first copy came by.
    pub path: u8,
    /// It happened on this host.
    pub local: bool,
    /// It confirms an earlier *doomed* of the same process, with the final cause and code.
    pub confirms: bool,
    /// Its host is silent, and is fenced as a whole: nothing of it is heard any more, whatever it
    /// does. Who takes over from an inferred end meets nobody who still acts.
    pub fenced: bool,
    /// When it happened, by the CLOCK_MONOTONIC of the host where it happened; for inferred verdicts, of this host.
    pub event_ns: u64,
    /// When the notice was sent, by that host's CLOCK_MONOTONIC; 0 when there was none.
    pub sent_ns: u64,
    /// When this host's kernel received the notice, by this host's CLOCK_MONOTONIC; 0 when there was none.
    pub received_ns: u64,
}

impl Verdict {
    /// Whether it is a crash: the end of a process that did not say that it leaves.
    #[must_use]
    pub fn is_crash(&self) -> bool {
        self.cause.ends_process() && self.cause != Cause::Left
    }

    /// From the event to the notice's departure, measured on the host where it happened. `None` without both stamps.
    #[must_use]
    pub fn event_to_sent_ns(&self) -> Option<u64> {
        (self.event_ns != 0 && self.sent_ns != 0).then(|| self.sent_ns.saturating_sub(self.event_ns))
    }

    /// From the notice's arrival in this host's kernel until `now_ns` (CLOCK_MONOTONIC, see [`monotonic_ns`]). `None`
    /// without a stamp. Between this and [`Verdict::event_to_sent_ns`] lies the network, which two clocks cannot measure.
    #[must_use]
    pub fn received_to_ns(&self, now_ns: u64) -> Option<u64> {
        (self.received_ns != 0).then(|| now_ns.saturating_sub(self.received_ns))
    }
}

/// This host's CLOCK_MONOTONIC, nanoseconds. No system call where the vDSO serves it.
#[must_use]
pub fn monotonic_ns() -> u64 {
    crate::sys::monotonic_ns()
}

/// A message that a monitored process piggybacked on a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piggyback {
    /// Who sent it.
    pub from: Subject,
    /// The heartbeat's number.
    pub number: u64,
    /// The path its first copy came by.
    pub path: u8,
    /// When the heartbeat was sent, by its sender's CLOCK_MONOTONIC.
    pub sent_ns: u64,
    /// When this host's kernel received it, by this host's CLOCK_MONOTONIC.
    pub received_ns: u64,
    /// The message.
    pub message: Vec<u8>,
}

/// What an application is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Listing 1 `on_failure`: a monitored process is ending or gone, also by leaving politely
    /// ([`Verdict::is_crash`] tells) or with its host. Exactly once for each instance of a process.
    Failure(Verdict),
    /// The end of a process reported as *doomed* was seen; with its final code. At most once, always after its failure.
    Confirmed(Verdict),
    /// A monitored process is there and makes no progress: one of its counters, or a probe of it, has not moved for its limit. Not a failure: it may
    /// move again ([`Event::Progressing`]), fail, or stay so. `code` is a [`fide_wire::verdict::ProgressSource`].
    Hung(Verdict),
    /// A process that was hung moves again. Always after its [`Event::Hung`].
    Progressing(Verdict),
    /// A process is being monitored from now on: it came, or came back as a new instance.
    Monitored(Verdict),
    /// A host, a path, an agent or this observer itself: never a verdict on a process.
    Host(Verdict),
    /// `on_fenced`: this host is fenced. Nothing that this process sends leaves any more where it is guarded, and others may have taken over
    /// what it did: it must stop acting. `code` is a [`fide_wire::verdict::FencedWhy`].
    Fenced(Verdict),
    /// The fence was opened again on an operator's word. This host has a new incarnation: whoever was fenced begins anew, as after a restart.
    Recovered(Verdict),
    /// Listing 1 `on_piggyback_rcv`.
    Piggyback(Piggyback),
    /// Listing 1 `on_timeout_changed`.
    TimeoutChanged {
        /// Towards whom.
        subject: Subject,
        /// The timeout from now on.
        timeout_ns: u64,
    },
    /// Listing 1 `on_pbsize_changed`: what this process may piggyback from now on.
    PiggybackSizeChanged {
        /// Bytes.
        pbsize: u32,
    },
    /// Listing 1 `on_monitor_req`: somebody began to monitor this process.
    MonitorRequest {
        /// From which node.
        by: Subject,
        /// The piggyback size it would like, bytes.
        pbsize: u32,
    },
    /// Events were lost, because they came faster than they were read or could not be read. What is known is out of date:
    /// monitor again what matters and look at `alive`.
    Lost {
        /// How many.
        count: u64,
    },
    /// The agent of this host hung up. Nothing is known of anything monitored from here on, and nothing of it is a failure.
    /// Exactly once for each connection; [`crate::Client::reconnect`] starts over.
    AgentGone,
    /// A record that this library does not know.
    Other {
        /// As it came.
        record: Record,
        /// What followed it.
        body: Vec<u8>,
    },
}

impl Event {
    /// Whom it is about, where it is about somebody.
    #[must_use]
    pub fn subject(&self) -> Option<&Subject> {
        match self {
            Event::Failure(v)
            | Event::Confirmed(v)
            | Event::Hung(v)
            | Event::Progressing(v)
            | Event::Monitored(v)
            | Event::Host(v)
            | Event::Fenced(v)
            | Event::Recovered(v) => Some(&v.subject),
            Event::Piggyback(p) => Some(&p.from),
            Event::TimeoutChanged { subject, .. } => Some(subject),
            Event::MonitorRequest { by, .. } => Some(by),
            Event::PiggybackSizeChanged { .. } | Event::Lost { .. } | Event::AgentGone | Event::Other { .. } => None,
        }
    }
}

/// Two ends of one number within such a time are one: an agent does not begin another table so soon.
const SAME_END_NS: u64 = 5_000_000;

/// Most instances and names remembered; what is older is forgotten.
const REMEMBERED: usize = 1 << 16;

/// Names of nodes and processes, learned from replies and records. They decorate events; verdicts never depend on them.
#[derive(Debug, Default)]
pub struct Names {
    nodes: HashMap<u32, Arc<str>>,
    /// By node and number, with the incarnation in which it was learned. A reply does not tell that: it is filled in by the first record. Numbers go on in the next
    /// one; where a host has begun another table, its processes are introduced anew.
    apps: HashMap<(u32, u32), (Option<u32>, Arc<str>)>,
}

impl Names {
    /// A host's name.
    pub fn learn_node(&mut self, node: u32, host: &str) {
        if self.nodes.len() >= REMEMBERED {
            self.nodes.clear();
        }
        self.nodes.insert(node, format!("@{host}").into());
    }

    /// The target (`name@host`) that a process was asked for by.
    pub fn learn_app(&mut self, node: u32, app: u32, incarnation: Option<u32>, target: &str) {
        if self.apps.len() >= REMEMBERED {
            self.apps.clear();
        }
        self.apps.insert((node, app), (incarnation, target.into()));
    }

    /// What is learned from a record that carries a name: a process or host verdict whose body is short text.
    fn learn_record(&mut self, record: &Record, body: &[u8]) {
        let Ok(name) = std::str::from_utf8(body) else { return };
        let plain = !name.is_empty() && name.len() <= 255 && !name.chars().any(char::is_control);
        match (record.app, self.nodes.get(&record.node)) {
            _ if !plain => {}
            (0, _) => self.learn_node(record.node, name),
            (app, Some(host)) => {
                let target = format!("{name}{host}");
                self.learn_app(record.node, app, Some(record.incarnation), &target);
            }
            (app, None) => {
                let target = format!("{name}@{:08x}", record.node);
                self.learn_app(record.node, app, Some(record.incarnation), &target);
            }
        }
    }

    /// The target by which a process is known.
    pub fn target(&self, node: u32, app: u32) -> Option<Arc<str>> {
        self.apps.get(&(node, app)).map(|(_, target)| target.clone())
    }

    fn of(&mut self, record: &Record) -> Option<Arc<str>> {
        if record.app == 0 {
            return self.nodes.get(&record.node).cloned();
        }
        let (incarnation, name) = self.apps.get_mut(&(record.node, record.app))?;
        (*incarnation.get_or_insert(record.incarnation) <= record.incarnation).then(|| name.clone())
    }
}

/// What is known of one failure.
#[derive(Clone, Copy, Debug)]
struct Failed {
    incarnation: u32,
    id: u64,
    /// When its host's kernel saw it.
    event_ns: u64,
    is_certain: bool,
    is_confirmed: bool,
}

/// Which instances of processes have failed, so that each failure is told once. An instance is a row of its host's table: its number goes on
/// through restarts of agents.
#[derive(Debug, Default)]
pub struct Instances {
    /// (node, app) → its failure.
    failed: HashMap<(u32, u32), Failed>,
    /// The same, oldest first.
    order: VecDeque<(u32, u32)>,
    /// (node, app) → the newest notice about its progress, in which incarnation of its host, and whether it said hung.
    progress: HashMap<(u32, u32), (u32, u32, bool)>,
    /// Those that run, as far as was heard.
    running: HashSet<(u32, u32)>,
}

/// What a record about the end of a process is to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Failure,
    Confirmation,
    Nothing,
}

impl Instances {
    /// A process runs.
    pub fn runs(&mut self, node: u32, app: u32) {
        if self.running.len() < REMEMBERED {
            self.running.insert((node, app));
        }
    }

    /// Those of which no certain end was heard: they run, or that they ended was inferred.
    pub fn unsettled(&self) -> Vec<(u32, u32)> {
        let inferred = self.failed.iter().filter(|(_, failed)| !failed.is_certain).map(|(instance, _)| *instance);
        self.running.iter().copied().chain(inferred).collect()
    }

    fn forget_failure(&mut self, instance: (u32, u32)) {
        self.failed.remove(&instance);
        self.order.retain(|known| *known != instance);
    }

    /// A process is introduced. If it was said to have failed and that was inferred, it was wrong; if its host has begun another table, it is another process.
    /// `false`: its end has overtaken this.
    fn introduced(&mut self, record: &Record) -> bool {
        let instance = (record.node, record.app);
        if record.app == 0 {
            return true;
        }
        let is_wrong = |failed: &Failed| !failed.is_certain || failed.incarnation != record.incarnation;
        if self.failed.get(&instance).is_some_and(is_wrong) {
            self.forget_failure(instance);
            self.progress.remove(&instance);
        }
        let has_failed = self.failed.contains_key(&instance);
        if !has_failed {
            self.runs(record.node, record.app);
        }
        !has_failed
    }

    /// Whether a record about the progress of a process says something new. Copies come in any order; the newest number holds, and nothing holds
    /// after a failure. In a new incarnation of its host it is told anew: nobody watched it meanwhile.
    fn judge_progress(&mut self, record: &Record, hung: bool) -> bool {
        let instance = (record.node, record.app);
        let number = record.id as u32;
        let known = |(incarnation, newest, _): &(u32, u32, bool)| *incarnation == record.incarnation && number <= *newest;
        // Who shows or lacks progress in a later incarnation of its host has not failed, or is another process.
        if self.failed.get(&instance).is_some_and(|failed| failed.incarnation < record.incarnation) {
            self.forget_failure(instance);
        }
        if self.failed.contains_key(&instance) || self.progress.get(&instance).is_some_and(known) {
            return false;
        }
        if self.progress.len() >= REMEMBERED {
            self.progress.clear();
        }
        let before = self.progress.insert(instance, (record.incarnation, number, hung)).is_some_and(|(.., was)| was);
        hung || before
    }

    fn judge(&mut self, record: &Record) -> News {
        let confirms = record.flags & Record::CONFIRMS != 0;
        let is_certain = record.grade() == Some(Grade::Certain);
        let instance = (record.node, record.app);
        self.running.remove(&instance);
        let Record { incarnation, id, event_ns, .. } = *record;
        let failed = Failed { incarnation, id, event_ns, is_certain, is_confirmed: confirms };
        match self.failed.get_mut(&instance) {
            // Its end confirms what was inferred, and that once.
            Some(known) if !known.is_certain && record.cause() == Some(Cause::Doomed) => News::Nothing,
            Some(known) if (confirms && !known.is_confirmed) || (is_certain && !known.is_certain) => {
                *known = Failed { is_confirmed: confirms || known.is_confirmed, ..failed };
                News::Confirmation
            }
            // The same row in another table of its host is another process, unless it is the same end: an agent that was killed may not have noted that it told it.
            Some(known)
                if known.incarnation != incarnation
                    && known.id != id
                    && known.event_ns.abs_diff(event_ns) > SAME_END_NS
                    && is_certain
                    && !confirms =>
            {
                *known = failed;
                News::Failure
            }
            Some(_) => News::Nothing,
            // A confirmation of what was never reported (its record was lost, or came before the subscription) is the
            // first that is heard of this failure; keeping it back would be to miss a crash.
            None => {
                if self.order.len() >= REMEMBERED
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.failed.remove(&oldest);
                }
                self.failed.insert(instance, failed);
                self.progress.remove(&instance);
                self.order.push_back(instance);
                News::Failure
            }
        }
    }
}

/// Makes an event of a ring entry; `None` when it tells nothing new.
pub fn read(entry: &[u8], instances: &mut Instances, names: &mut Names) -> Option<Event> {
    let Some((record, body)) = Record::read(entry) else { return Some(Event::Lost { count: 1 }) };
    let kind = record.kind();
    if matches!(kind, Some(RecordKind::Process | RecordKind::Host)) {
        names.learn_record(&record, body);
        if record.cause() == Some(Cause::Monitored) && !instances.introduced(&record) {
            return None;
        }
    }
    let subject = |names: &mut Names| Subject {
        node: record.node,
        app: record.app,
        incarnation: record.incarnation,
        name: names.of(&record),
    };
    let other = || Event::Other { record, body: body.to_vec() };
    Some(match kind {
        Some(RecordKind::Process | RecordKind::Host) => {
            let (Some(cause), Some(grade)) = (record.cause(), record.grade()) else { return Some(other()) };
            let verdict = |names: &mut Names| Verdict {
                subject: subject(names),
                cause,
                grade,
                code: record.code,
                id: record.verdict_id(),
                path: record.path,
                local: record.flags & Record::LOCAL != 0,
                confirms: record.flags & Record::CONFIRMS != 0,
                fenced: record.flags & Record::FENCED != 0,
                event_ns: record.event_ns,
                sent_ns: record.sent_ns,
                received_ns: record.received_ns,
            };
            match (kind, cause) {
                (Some(RecordKind::Host), Cause::Fenced) if record.flags & Record::LOCAL != 0 => Event::Fenced(verdict(names)),
                (Some(RecordKind::Host), Cause::Recovered) if record.flags & Record::LOCAL != 0 => {
                    Event::Recovered(verdict(names))
                }
                (Some(RecordKind::Host), _) => Event::Host(verdict(names)),
                _ if record.app == 0 => other(),
                (_, Cause::Monitored) => Event::Monitored(verdict(names)),
                (_, Cause::Hung) if instances.judge_progress(&record, true) => Event::Hung(verdict(names)),
                (_, Cause::Progressing) if instances.judge_progress(&record, false) => Event::Progressing(verdict(names)),
                (_, Cause::Hung | Cause::Progressing) => return None,
                (_, cause) if cause.ends_process() => match instances.judge(&record) {
                    News::Failure => Event::Failure(verdict(names)),
                    News::Confirmation => Event::Confirmed(verdict(names)),
                    News::Nothing => return None,
                },
                _ => other(),
            }
        }
        Some(RecordKind::Piggyback) => Event::Piggyback(Piggyback {
            from: subject(names),
            number: record.number,
            path: record.path,
            sent_ns: record.sent_ns,
            received_ns: record.received_ns,
            message: body.to_vec(),
        }),
        Some(RecordKind::Lost) => Event::Lost { count: record.number.max(1) },
        Some(RecordKind::TimeoutChanged) => Event::TimeoutChanged { subject: subject(names), timeout_ns: record.number },
        Some(RecordKind::PiggybackSizeChanged) => Event::PiggybackSizeChanged { pbsize: u32::try_from(record.code).unwrap_or(0) },
        Some(RecordKind::MonitorRequest) => {
            // The number in the record is that of the monitored process, which is this one.
            let by = Record { app: 0, ..record };
            let by = Subject { node: by.node, app: 0, incarnation: by.incarnation, name: names.of(&by) };
            Event::MonitorRequest { by, pbsize: u32::try_from(record.code).unwrap_or(0) }
        }
        _ => other(),
    })
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
