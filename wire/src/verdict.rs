//! The vocabulary of verdicts: cause, grade, evidence (DESIGN: "verdicts have a cause, a grade and evidence").

use serde::{Deserialize, Serialize};
use std::fmt;

/// What happened. The numbers are on the wire and in event records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Cause {
    /// The process ended by itself; `code` is its exit status.
    Exited = 1,
    /// The process was ended by a signal; `code` is the signal.
    Killed = 2,
    /// The process can no longer be saved although it still exists; `code` is the signal or exit status to come.
    Doomed = 3,
    /// The process or the agent said that it leaves.
    Left = 4,
    /// The agent of a host is gone or stuck while its host's kernel still answers. Says nothing of the host's processes.
    AgentLost = 5,
    /// No sign of a host on any path for longer than its timeout.
    SilentHost = 6,
    /// One path to a host loses what another carries (a network fault, never a crash).
    PathDown = 7,
    /// Heartbeats came later than the contract allows.
    ContractBroken = 8,
    /// This observer itself can reach nobody; verdicts on others are withheld.
    Isolated = 9,
    /// The process is there and makes no progress: a counter or probe of its own did not move for its limit (B10). It may move again
    /// ([`Cause::Progressing`]); it did not end. `code` is the [`ProgressSource`] that stands still. The grade is *inferred*: its agent saw with
    /// certainty that nothing moved, that the process is stuck follows from the limit that was stated, as silence does from a contract.
    Hung = 10,
    /// The kernel ended the process to get memory back, its cgroup's or the host's (the OOM killer); `code` is the signal, SIGKILL.
    OutOfMemory = 11,
    /// A host is silent here on every path, and another host that is heard here hears it: a network fault between these two hosts, never a
    /// crash. [`Cause::ContractKept`] ends it.
    Unreachable = 12,
    /// The process goes on as another instance, which knows nothing of the former one: it had joined and began another program (`exec`), or
    /// joined again. What the former instance held ended with it.
    Replaced = 13,
    /// A path carries heartbeats again.
    PathUp = 16,
    /// A host came (back) with a new incarnation.
    Returned = 17,
    /// The contract holds again.
    ContractKept = 18,
    /// This observer reaches others again.
    Rejoined = 19,
    /// This observer did not run for longer than a timeout; what it missed is not held against others.
    ObserverPaused = 20,
    /// Another agent uses this agent's name.
    NameClash = 21,
    /// Another cluster uses this cluster's id, or the same cluster another key.
    ForeignTraffic = 22,
    /// A process is being monitored from now on.
    Monitored = 23,
    /// A network interface of this host went away or came back (`code` 0 or 1).
    Interface = 24,
    /// Something local needs the operator: a full disk, a failed hook, an unreadable configuration.
    Local = 25,
    /// This host's fence has closed: nothing of what it guards leaves any more (`code` as [`FencedWhy`]).
    Fenced = 26,
    /// This host's fence was opened again on an operator's word, in a new incarnation.
    Recovered = 27,
    /// A process that was hung moves again, or what was reported of it was withdrawn. *Certain*: the movement itself was seen.
    Progressing = 28,
}

impl Cause {
    /// Every cause, in the order of their numbers.
    pub const ALL: [Cause; 26] = [
        Cause::Exited,
        Cause::Killed,
        Cause::Doomed,
        Cause::Left,
        Cause::AgentLost,
        Cause::SilentHost,
        Cause::PathDown,
        Cause::ContractBroken,
        Cause::Isolated,
        Cause::Hung,
        Cause::OutOfMemory,
        Cause::Unreachable,
        Cause::Replaced,
        Cause::PathUp,
        Cause::Returned,
        Cause::ContractKept,
        Cause::Rejoined,
        Cause::ObserverPaused,
        Cause::NameClash,
        Cause::ForeignTraffic,
        Cause::Monitored,
        Cause::Interface,
        Cause::Local,
        Cause::Fenced,
        Cause::Recovered,
        Cause::Progressing,
    ];

    /// The cause with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|c| *c as u8 == number)
    }

    /// The name used in JSON, metrics and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Exited => "exited",
            Cause::Killed => "killed",
            Cause::Doomed => "doomed",
            Cause::Left => "left",
            Cause::AgentLost => "agent-lost",
            Cause::SilentHost => "silent-host",
            Cause::PathDown => "path-down",
            Cause::ContractBroken => "contract-broken",
            Cause::Isolated => "isolated",
            Cause::Hung => "hung",
            Cause::OutOfMemory => "out-of-memory",
            Cause::Unreachable => "unreachable",
            Cause::Replaced => "replaced",
            Cause::PathUp => "path-up",
            Cause::Returned => "returned",
            Cause::ContractKept => "contract-kept",
            Cause::Rejoined => "rejoined",
            Cause::ObserverPaused => "observer-paused",
            Cause::NameClash => "name-clash",
            Cause::ForeignTraffic => "foreign-traffic",
            Cause::Monitored => "monitored",
            Cause::Interface => "interface",
            Cause::Local => "local",
            Cause::Fenced => "fenced",
            Cause::Recovered => "recovered",
            Cause::Progressing => "progressing",
        }
    }

    /// Whether this is about the observer itself.
    #[must_use]
    pub const fn is_about_observer(self) -> bool {
        matches!(self, Cause::Isolated | Cause::Rejoined | Cause::ObserverPaused)
    }

    /// Whether this ends a monitored process: what `on_failure` reports.
    #[must_use]
    pub const fn ends_process(self) -> bool {
        matches!(self, Cause::Left | Cause::SilentHost) || self.is_seen_end()
    }

    /// Whether the kernel or the agent of its host saw the process end, or begin to.
    #[must_use]
    pub const fn is_seen_end(self) -> bool {
        matches!(self, Cause::Exited | Cause::Killed | Cause::Doomed | Cause::OutOfMemory | Cause::Replaced)
    }

    /// Whether this is about the progress of a process that goes on existing. Such notices may follow each other any number of times; of
    /// two, the one with the higher number holds.
    #[must_use]
    pub const fn is_progress(self) -> bool {
        matches!(self, Cause::Hung | Cause::Progressing)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What of a process stands still or moves: the `code` of [`Cause::Hung`] and [`Cause::Progressing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProgressSource {
    /// A counter of its own, by number below [`crate::control::bridge::COUNTERS`].
    Counter(u8),
    /// A command that its agent runs.
    Command,
    /// A file that is to change.
    File,
    /// A write to its disk.
    Write,
    /// An application told its agent so.
    Report,
}

impl ProgressSource {
    /// As the code of a notice.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            ProgressSource::Counter(n) => n as i32,
            ProgressSource::Command => 256,
            ProgressSource::File => 257,
            ProgressSource::Write => 258,
            ProgressSource::Report => 259,
        }
    }

    /// From the code of a notice; `None` for one that a later version may know.
    #[must_use]
    pub fn from_code(code: i32) -> Option<Self> {
        Some(match code {
            0..=255 => ProgressSource::Counter(code as u8),
            256 => ProgressSource::Command,
            257 => ProgressSource::File,
            258 => ProgressSource::Write,
            259 => ProgressSource::Report,
            _ => return None,
        })
    }
}

impl fmt::Display for ProgressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgressSource::Counter(n) => write!(f, "counter {n}"),
            ProgressSource::Command => f.write_str("its command"),
            ProgressSource::File => f.write_str("its file"),
            ProgressSource::Write => f.write_str("writing to its disk"),
            ProgressSource::Report => f.write_str("an application's report"),
        }
    }
}

/// How sure a verdict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Grade {
    /// A kernel saw it, or it announced itself.
    Certain = 1,
    /// Silence, judged against a stated contract.
    Inferred = 2,
}

impl Grade {
    /// The grade with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        match number {
            1 => Some(Grade::Certain),
            2 => Some(Grade::Inferred),
            _ => None,
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Grade::Certain => "certain",
            Grade::Inferred => "inferred",
        })
    }
}

/// The identity of a verdict, the same on every host that received the same notice.
///
/// The upper half is the node that gave the verdict (the one that saw the crash, or the observer that inferred it),
/// the lower half its running number within that node's incarnation. Unique within that incarnation only: numbers begin anew with the
/// next. [`UniqueId`] adds the incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VerdictId(pub u64);

impl VerdictId {
    /// The id of verdict `number` given by `node`.
    #[must_use]
    pub const fn new(node: u32, number: u32) -> Self {
        Self((node as u64) << 32 | number as u64)
    }

    /// Whether an observer numbered it, rather than the host where the event happened.
    #[must_use]
    pub const fn is_inferred(self) -> bool {
        self.0 as u32 & Self::INFERRED != 0
    }

    /// Set in the numbers of inferred verdicts.
    pub const INFERRED: u32 = 1 << 31;
}

impl fmt::Display for VerdictId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// What is not a verdict id.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a verdict id: expected the form 1a2b3c4d-6563a1f2-17, as `fide events` prints it, or 1a2b3c4d-17")]
pub struct VerdictIdError;

impl std::str::FromStr for VerdictId {
    type Err = VerdictIdError;
    fn from_str(text: &str) -> Result<Self, VerdictIdError> {
        let (node, number) = text.split_once('-').ok_or(VerdictIdError)?;
        if node.len() != 8 {
            return Err(VerdictIdError);
        }
        let node = u32::from_str_radix(node, 16).map_err(|_| VerdictIdError)?;
        Ok(Self::new(node, number.parse().map_err(|_| VerdictIdError)?))
    }
}

impl Serialize for VerdictId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for VerdictId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A verdict's id together with the incarnation of the node that gave it: no other verdict ever has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UniqueId {
    /// Its id within the incarnation.
    pub id: VerdictId,
    /// The incarnation; 0 where it was not recorded.
    pub incarnation: u32,
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:08x}-{}", self.id.0 >> 32, self.incarnation, self.id.0 & 0xffff_ffff)
    }
}

impl std::str::FromStr for UniqueId {
    type Err = VerdictIdError;
    fn from_str(text: &str) -> Result<Self, VerdictIdError> {
        let (node, rest) = text.split_once('-').ok_or(VerdictIdError)?;
        let (incarnation, number) = rest.split_once('-').ok_or(VerdictIdError)?;
        if incarnation.len() != 8 {
            return Err(VerdictIdError);
        }
        let id = format!("{node}-{number}").parse()?;
        Ok(Self { id, incarnation: u32::from_str_radix(incarnation, 16).map_err(|_| VerdictIdError)? })
    }
}

impl Serialize for UniqueId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// What was known of one path when a verdict was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathEvidence {
    /// The last number that arrived on this path.
    pub last_number: u64,
    /// When it arrived (the observer's CLOCK_MONOTONIC, kernel stamp); 0 when nothing ever did.
    pub last_arrival_ns: u64,
    /// How long ago that was when the verdict was given.
    pub silent_ns: u64,
    /// Numbers that never arrived on this path in this incarnation.
    pub lost: u64,
    /// The host's kernel was asked on this path after the silence began: without that, no answer says nothing.
    #[serde(default)]
    pub asked: bool,
    /// The host's kernel answered a probe on this path after the silence began.
    pub kernel_answered: bool,
    /// The host's kernel said that no agent is there (nothing listens on the port).
    pub agent_absent: bool,
    /// This observer's own interface on this path had its carrier.
    pub carrier: bool,
    /// When this observer was last found to have lost packets itself on this path (its CLOCK_MONOTONIC): silence counts from then, unless another
    /// path is clean; 0 when it never was.
    #[serde(default)]
    pub own_loss_ns: u64,
}

/// What a verdict rests on (B3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Last arrivals, one entry for each path.
    pub paths: Vec<PathEvidence>,
    /// The timeout that was exceeded, TO = HB + λmin + 2·δmax (FiDe §3.3); 0 for certain verdicts.
    pub timeout_ns: u64,
    /// The contract it was derived from.
    pub contract: Contract,
    /// The stamp of the event itself on the host where it happened (that host's CLOCK_MONOTONIC), certain verdicts only.
    pub event_ns: u64,
    /// When the notice was sent (sender's CLOCK_MONOTONIC), certain verdicts only.
    pub sent_ns: u64,
    /// When the notice arrived in the receive program (observer's CLOCK_MONOTONIC), certain verdicts only.
    pub received_ns: u64,
    /// The path the first copy of the notice took, certain verdicts only.
    pub path: u8,
    /// How long this observer had been running without a pause of its own.
    pub observer_awake_ns: u64,
    /// Packets the receive side dropped or refused since the last arrival (they could have been heartbeats).
    pub drops: u64,
    /// Whether the receive rings were proved empty; `false` until a drain barrier says so.
    pub drained: bool,
    /// By which barriers: the latest one of each path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub barriers: Vec<Barrier>,
    /// Other observers whose path reports name the same silence.
    pub also_reported_by: Vec<String>,
    /// Who hears the host although this observer does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heard_by: Vec<String>,
    /// What the host had promised of its fence; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<FencePromise>,
    /// Its promise's time was over since the last arrival when the verdict was given: it was fenced, as far as the promise goes.
    #[serde(default)]
    pub fenced: bool,
}

/// What showed that nothing waited in a path's receive queue (SafeTimer §4.1): an answer that had come out of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Barrier {
    /// The path.
    pub path: u8,
    /// Whose answer: another host's name, the address of somebody who is none ([`BarrierBy::Answerer`]), or this host's other interface ([`BarrierBy::Itself`]).
    pub from: String,
    /// Who that is.
    pub by: BarrierBy,
    /// When it was asked for (observer's CLOCK_MONOTONIC): what came before is not waiting.
    pub asked_ns: u64,
}

/// Who gave a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BarrierBy {
    /// Another host of the cluster.
    #[default]
    Host,
    /// Somebody else on the path's network.
    Answerer,
    /// This host itself, by its other interface.
    Itself,
}

/// Why a fence is closed: the code of [`Cause::Fenced`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(i32)]
pub enum FencedWhy {
    /// t_valid passed: no heartbeat was known in time to have been sent (or confirmed).
    RanOut = 0,
    /// An operator shut it.
    Operator = 1,
    /// Another host had given this one up, and may have acted on it.
    GivenUp = 2,
    /// A former life of the agent left it closed, or open for others than this life.
    FormerLife = 3,
}

impl FencedWhy {
    /// The reason with this code.
    #[must_use]
    pub const fn from_code(code: i32) -> Self {
        match code {
            1 => Self::Operator,
            2 => Self::GivenUp,
            3 => Self::FormerLife,
            _ => Self::RanOut,
        }
    }
}

impl fmt::Display for FencedWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RanOut => "it could not show in time that its heartbeats left",
            Self::Operator => "an operator shut it",
            Self::GivenUp => "another host had given it up",
            Self::FormerLife => "a former life of its agent left the fence closed",
        })
    }
}

/// Whose confirmations extend t_valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confirmers {
    /// Everybody who observes the host.
    All,
    /// With the host itself, more than half of all hosts that have not left.
    Majority,
    /// So many other hosts.
    AtLeast(u16),
}

impl fmt::Display for Confirmers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Majority => f.write_str("majority"),
            Self::AtLeast(n) => n.fmt(f),
        }
    }
}

/// What extends t_valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FenceMode {
    /// Heartbeats that have left the host.
    Sent,
    /// Heartbeats that enough others confirm.
    Acknowledged(Confirmers),
}

impl fmt::Display for FenceMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent => f.write_str("sent"),
            Self::Acknowledged(by) => write!(f, "acknowledged by {by}"),
        }
    }
}

/// What a fenced host promises to those who observe it (SafeTimer §4.2): from `timeout_ns` after a heartbeat that the mode counts, by the
/// clock of any of them, nothing of what it guards leaves, unless a later one was counted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FencePromise {
    /// Observers do not take the host for dead before so long after the last arrival.
    pub timeout_ns: u64,
    /// What counts.
    pub mode: FenceMode,
    /// The whole host is guarded; else only processes in some of its cgroups are.
    pub host: bool,
}

/// The lane's contract for one path and direction (X-Lane §2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Contract {
    /// π: the period of heartbeats.
    pub period_ns: u64,
    /// σ: the largest message, bytes of piggyback.
    pub size_max: u32,
    /// λmin: the smallest latency.
    pub lambda_min_ns: u64,
    /// δmax: the largest jitter, latency above λmin including a late sender.
    pub delta_max_ns: u64,
}

impl Contract {
    /// TO = HB + λmin + 2·δmax (FiDe §3.3).
    #[must_use]
    pub const fn timeout_ns(&self) -> u64 {
        self.period_ns.saturating_add(self.lambda_min_ns).saturating_add(self.delta_max_ns.saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_survive_the_wire_and_json() {
        for cause in Cause::ALL {
            assert_eq!(Cause::from_u8(cause as u8), Some(cause));
            assert_eq!(serde_json::to_string(&cause).unwrap(), format!("\"{}\"", cause.name()));
        }
        assert_eq!(Cause::from_u8(0), None);
        assert_eq!(Cause::from_u8(255), None);
    }

    #[test]
    fn progress_sources_survive_their_codes() {
        for code in -2..300 {
            assert!(ProgressSource::from_code(code).is_none_or(|s| s.code() == code), "{code}");
        }
        assert!((0..260).all(|code| ProgressSource::from_code(code).is_some()));
        assert!(Cause::ALL.iter().all(|c| !(c.is_progress() && c.ends_process())));
    }

    #[test]
    fn verdict_ids_read_back() {
        let id = VerdictId::new(0x00ab_cdef, 17);
        assert_eq!(id.to_string(), "00abcdef-17");
        assert_eq!("00abcdef-17".parse(), Ok(id));
        for bad in ["", "-", "abc-1", "00abcdef-", "00abcdef-99999999999", "zzzzzzzz-1"] {
            assert_eq!(bad.parse::<VerdictId>(), Err(VerdictIdError), "{bad}");
        }
    }

    #[test]
    fn unique_ids_read_back_and_differ_between_incarnations() {
        let of = |incarnation| UniqueId { id: VerdictId::new(0x00ab_cdef, 17), incarnation };
        assert_eq!(of(0x6563_a1f2).to_string(), "00abcdef-6563a1f2-17");
        assert_eq!("00abcdef-6563a1f2-17".parse(), Ok(of(0x6563_a1f2)));
        assert_ne!(of(1).to_string(), of(2).to_string());
        for bad in ["00abcdef-17", "00abcdef-1-17", "00abcdef-6563a1f2-", "00abcdef-6563a1f2-x", "-00000001-1", ""] {
            assert_eq!(bad.parse::<UniqueId>(), Err(VerdictIdError), "{bad}");
        }
        assert!(!VerdictId::new(1, 17).is_inferred() && VerdictId::new(1, VerdictId::INFERRED | 1).is_inferred());
    }

    #[test]
    fn fide_3_3_timeout_is_period_plus_latency_plus_twice_jitter() {
        let c = Contract { period_ns: 1_000, size_max: 0, lambda_min_ns: 10, delta_max_ns: 5 };
        assert_eq!(c.timeout_ns(), 1_020);
        let c = Contract { delta_max_ns: u64::MAX, ..c };
        assert_eq!(c.timeout_ns(), u64::MAX);
    }
}
