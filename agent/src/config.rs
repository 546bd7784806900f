//! The configuration: one TOML file, `/etc/fide/fide.toml` unless told otherwise.
//!
//! [`Config::parse`] is pure (text in, configuration out) apart from asking for the host's name when `node` is not set;
//! [`Config::load`] also reads the file and the keys it names, and looks for interfaces when no `[[path]]` is given.
//! A refusal says which line, why, and what to do. What is doubtful but works ends up in [`Config::warnings`].
//!
//! [`diff`] says what of a changed file can be taken over by a running agent and what waits for a restart.

mod hook_filter;

use crate::access::{AccessConfig, Who};
use crate::files::{self, Purpose};
use crate::group_plan::GroupPlan;
use crate::witness_questions as witness;
use fide_proto::consensus::policy::Policy;
use fide_proto::detector::RESTART_MAX_MS;
use fide_proto::fence::Paths as FencePaths;
use fide_proto::node::probing::ANSWERERS;
use fide_wire::control::{DEFAULT_SOCKET, END_CONNECTIONS_PORTS_MAX, Selector};
use fide_wire::mac::{Key, Keyring};
use fide_wire::verdict::{Cause, Confirmers, FenceMode, ProgressSource};
use fide_wire::{DEFAULT_PORT, PATHS, name_id, names};
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

pub use hook_filter::{HookFilter, Trust};

/// Where the configuration is looked for unless `--config` names another file.
pub const DEFAULT_PATH: &str = "/etc/fide/fide.toml";

/// Larger files are refused unread.
const FILE_MAX: usize = 1 << 20;
/// The same of key files, which hold 32 digits.
const KEY_FILE_MAX: usize = 4096;
/// Shortest and longest limit of a progress probe, ns.
const PROBE_LIMIT_NS: std::ops::RangeInclusive<u64> = 1_000_000_000..=3_600_000_000_000;
/// Shortest and longest time that a witness may have, ns.
const WITNESS_TIMEOUT_NS: std::ops::RangeInclusive<u64> = 100_000_000..=600_000_000_000;
/// Most progress probes.
const PROBES_MAX: usize = 64;
/// Shortest and longest heartbeat interval, ns. (The wire carries it in 32 bits.)
const HEARTBEAT_NS: std::ops::RangeInclusive<u64> = 50_000..=4_000_000_000;

/// Everything an operator can say.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The cluster's name.
    pub cluster: String,
    /// Its id on the wire: [`name_id`] of its name unless set.
    pub cluster_id: u32,
    /// This host's name in the cluster.
    pub node: String,
    /// What fails together with this host, such as its rack; empty: it is not said.
    pub zone: String,
    /// HB: time between two heartbeats, ns.
    pub heartbeat_ns: u64,
    /// The UDP port of the lane.
    pub port: u16,
    /// Real-time priority (SCHED_FIFO) of the lane's thread, 0 for none.
    pub rt_priority: u8,
    /// Whether default groups are IPv6 ones.
    pub ipv6: bool,
    /// The interfaces, one per path; one or two.
    pub paths: Vec<PathConfig>,
    /// How the agent treats its processor.
    pub profile: Profile,
    /// For [`Profile::Dedicated`].
    pub dedicated: Dedicated,
    /// How packets are received.
    pub receive: Receive,
    /// How packets are sent.
    pub send: Send,
    /// What of the contract is pinned rather than measured.
    pub contract: ContractPins,
    /// The detector's settings.
    pub detector: DetectorConfig,
    /// The fence.
    pub fence: FenceConfig,
    /// Gates of applications with heartbeats of their own.
    pub gates: Vec<GateConfig>,
    /// Groups that this host begins or joins by itself.
    pub groups: Vec<GroupPlan>,
    /// Who says whether groups may go on without a host that is silent.
    pub witness: Option<witness::Command>,
    /// Processes of this host to watch from the start.
    pub watches: Vec<Watch>,
    /// Where the keys are, if packets are to be authenticated.
    pub keys: Option<KeyFiles>,
    /// The keys themselves: filled by [`Config::load_keys`], the public key until then.
    pub keyring: Keyring,
    /// The socket for clients.
    pub socket: SocketConfig,
    /// Who may do what.
    pub access: AccessConfig,
    /// Where metrics are served, if at all.
    pub metrics: Option<SocketAddr>,
    /// The read-only interface over HTTP.
    pub http: HttpConfig,
    /// The event history.
    pub history: HistoryConfig,
    /// Where ends of processes are kept while no agent runs, on a BPF file system; `None`: nowhere.
    pub ends: Option<PathBuf>,
    /// Whether an agent that ends says that it will be back.
    pub restart_within: RestartWithin,
    /// Where incarnations are kept.
    pub state: PathBuf,
    /// Programs to run when something happens.
    pub hooks: Vec<Hook>,
    /// What is doubtful but works; to be logged by whoever loads this.
    pub warnings: Vec<String>,
}

/// The read-only interface over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpConfig {
    /// Where it is served, if at all.
    pub listen: Option<SocketAddr>,
    /// The file of the token that clients must show.
    pub token_file: Option<PathBuf>,
    /// The token itself: filled by [`Config::load_keys`].
    pub token: Option<Token>,
    /// Whether `/` is the web page.
    pub page: bool,
}

/// A secret that is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Shortest and longest, characters.
    const LENGTH: std::ops::RangeInclusive<usize> = 16..=256;

    /// From a file's text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if !Self::LENGTH.contains(&text.len()) {
            return Err(format!(
                "it has {} characters and must have {} to {}",
                text.len(),
                Self::LENGTH.start(),
                Self::LENGTH.end()
            ));
        }
        // RFC 6750, 2.1: what may follow `Bearer`.
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._~+/=".contains(c);
        match text.chars().find(|c| !fits(*c)) {
            Some(c) => Err(format!("it contains {c:?}; letters, digits and -._~+/= may be in it")),
            None => Ok(Self(text.into())),
        }
    }

    /// Whether that is it. Takes the same time wherever the two differ.
    #[must_use]
    pub fn is(&self, shown: &str) -> bool {
        let own = self.0.as_bytes();
        let differ = shown.bytes().enumerate().fold(own.len() ^ shown.len(), |d, (i, b)| d | usize::from(b ^ own[i % own.len()]));
        std::hint::black_box(differ) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// One path: an interface and whom to reach through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// The interface.
    pub interface: String,
    /// The multicast group, none with a unicast list alone.
    pub group: Option<IpAddr>,
    /// Hosts to send to one by one, where the network has no multicast.
    pub unicast: Vec<IpAddr>,
    /// The address to send from; the interface's first of the right family unless set.
    pub address: Option<IpAddr>,
    /// Routers a multicast packet may cross plus one.
    pub ttl: u8,
    /// Who answers echo requests there and is no host of the cluster; unless set, the interface's gateways.
    pub answerers: Option<Vec<IpAddr>>,
}

/// How the agent treats its processor (X7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Interrupt-driven, beside everything else.
    Shared,
    /// Pinned to its own processor, polling.
    Dedicated,
}

impl Profile {
    /// The name in the file, the status and the metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Shared => "shared",
            Profile::Dedicated => "dedicated",
        }
    }
}

/// Settings of the dedicated profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dedicated {
    /// The processor to take; the agent chooses when it is not set.
    pub cpu: Option<u32>,
}

/// Whether an agent that ends says that it will be back, and others tell nothing until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartWithin {
    /// When systemd restarts it.
    Auto,
    /// In so many ms; 0: never.
    Ms(u32),
}

/// How packets are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Receive {
    /// The best that works here.
    Auto,
    /// XDP in the driver, or refuse to start.
    Xdp,
    /// XDP in the stack's generic hook.
    XdpGeneric,
    /// Plain sockets.
    Udp,
}

/// How packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Send {
    /// The best that works here.
    Auto,
    /// AF_PACKET past the queueing discipline.
    Packet,
    /// Plain sockets.
    Udp,
}

/// Parts of the contract that are set rather than measured (π is `heartbeat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContractPins {
    /// λmin: the smallest latency, ns.
    pub lambda_min_ns: Option<u64>,
    /// δmax exactly, ns: calibration does not change it.
    pub delta_max_ns: Option<u64>,
    /// δmax never below this, ns.
    pub delta_floor_ns: Option<u64>,
    /// δmax never above this, ns: more jitter breaks the contract instead of stretching it.
    pub delta_ceiling_ns: Option<u64>,
}

/// Settings of the detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectorConfig {
    /// How long an agent may say nothing while its host's kernel still answers until it is *agent lost*, ns.
    pub agent_timeout_ns: u64,
    /// Whether other hosts are asked by TCP, too, where an interface has several receive queues and a barrier is needed of one that echoes do not come by.
    pub tcp_questions: bool,
}

impl Default for DetectorConfig {
    fn default() -> Self {
        Self { agent_timeout_ns: 1_000_000_000, tcp_questions: true }
    }
}

/// The fence of this host (S3–S5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceConfig {
    /// What extends t_valid; `None`: no fence.
    pub mode: Option<FenceMode>,
    /// Which copies must have left, in mode *sent*.
    pub paths: FencePaths,
    /// How long others wait before they take this host for dead, ns.
    pub timeout_ns: u64,
    /// How much earlier this host stops, beside the drift of clocks, ns.
    pub margin_ns: u64,
    /// Whether interfaces are guarded.
    pub host: bool,
    /// Which, beside those of the paths; `*`: all.
    pub interfaces: Vec<String>,
    /// Directories of cgroups that are guarded.
    pub cgroups: Vec<PathBuf>,
    /// Where gates and programs are kept.
    pub pins: PathBuf,
    /// Whether an agent that starts on a fenced host opens the fence.
    pub recover_at_start: bool,
    /// What the gates of cgroups are until the first heartbeat counts.
    pub at_start: AtStart,
}

/// What the gates of cgroups are before anything was promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtStart {
    /// Not armed: everything leaves.
    #[default]
    Open,
    /// Nothing leaves.
    Closed,
}

impl Default for FenceConfig {
    fn default() -> Self {
        Self {
            mode: None,
            paths: FencePaths::Both,
            timeout_ns: 100_000_000,
            margin_ns: 5_000_000,
            host: true,
            interfaces: Vec::new(),
            cgroups: Vec::new(),
            pins: "/sys/fs/bpf/fide".into(),
            recover_at_start: false,
            at_start: AtStart::Open,
        }
    }
}

/// The gate of an application that has heartbeats of its own, and moves t_valid itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateConfig {
    /// Its name.
    pub name: String,
    /// The directory of the cgroup in which its processes are, and make their sockets.
    pub cgroup: PathBuf,
    /// Who may move t_valid from inside, beside root.
    pub users: Who,
    /// What becomes of TCP connections that hold bytes back when it is opened anew.
    pub connections: Connections,
}

/// What becomes of TCP connections that a closed gate holds back, when it is opened anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Connections {
    /// They are ended first; where that cannot be, the gate stays closed.
    #[default]
    End,
    /// They go on: the application sees to them itself.
    Keep,
}

/// A process to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The name others know it by, unique on this host.
    pub name: String,
    /// Which process.
    pub selector: Selector,
    /// Only processes of this user, by name or number. Without it a process found by its name must be root's.
    pub user: Option<String>,
    /// Whether a process found by its name or port may be in another network namespace, where there is none in the agent's own.
    pub containers: bool,
    /// How its progress is seen from outside, if it is.
    pub progress: Option<ProgressProbe>,
    /// Local ports whose TCP connections end with it.
    pub end_connections: Vec<u16>,
}

/// How a process's progress is seen from outside (B10): without a success for the limit, it is hung.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressProbe {
    /// The limit, ns.
    pub limit_ns: u64,
    /// What is tried, four times within it.
    pub probe: Probe,
}

/// What is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A program (absolute) and its arguments; exit status 0 is progress.
    Command(Vec<String>),
    /// A file whose time or size must change.
    File(PathBuf),
    /// A file that is written and forced to its disk.
    Write(PathBuf),
}

impl Probe {
    /// As verdicts name it.
    #[must_use]
    pub const fn source(&self) -> ProgressSource {
        match self {
            Probe::Command(_) => ProgressSource::Command,
            Probe::File(_) => ProgressSource::File,
            Probe::Write(_) => ProgressSource::Write,
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Probe::Command(words) => write!(f, "command {}", words.first().map_or("", String::as_str)),
            Probe::File(path) => write!(f, "file {}", path.display()),
            Probe::Write(path) => write!(f, "write {}", path.display()),
        }
    }
}

/// Where the keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles {
    /// The key to send with.
    pub send: KeyFile,
    /// A second one that is accepted too (the old or the new one during a rotation).
    pub accept: Option<KeyFile>,
}

/// One key in a file of 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// Its id on the wire, 1 to 15, the same on every host.
    pub id: u8,
    /// The file.
    pub file: PathBuf,
}

/// The socket for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketConfig {
    /// Where it is.
    pub path: PathBuf,
    /// Its permissions.
    pub mode: u32,
    /// Its group, by name or number; left alone when no such group exists and this is the default.
    pub group: String,
    /// Whether `group` was written in the file (then it must exist).
    pub group_is_set: bool,
}

/// The event history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    /// Where it is kept; `None` for memory only.
    pub path: Option<PathBuf>,
    /// Most bytes on disk, both segments together.
    pub max_bytes: u64,
}

/// What a hook does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookAction {
    /// Runs a program.
    #[default]
    Run,
    /// The agent of the host where a process is hung ends that process by SIGKILL, which makes a certain crash of it (FiDe §6.6).
    Kill,
    /// That agent cuts the process off instead: it shuts the gate of its cgroup ([`FenceConfig::cgroups`]), until the next instance is watched.
    Fence,
}

/// A program to run when something happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// On which causes.
    pub on: Vec<Cause>,
    /// For which processes or hosts: `name@host`, `@host`, with `*` and `?`.
    pub pattern: String,
    /// What happens.
    pub action: HookAction,
    /// The program (absolute) and its arguments; empty when the agent itself acts.
    pub command: Vec<String>,
    /// How long it may take.
    pub timeout: Duration,
    /// Also run it when an earlier *doomed* is confirmed (the same crash a second time, with the final code).
    pub confirmations: bool,
    /// For which of these events only.
    pub filter: HookFilter,
}

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, if it came from one.
    pub file: Option<PathBuf>,
    /// Where in it.
    pub at: Option<Position>,
    /// What is wrong, why, and what to do.
    pub what: String,
}

/// A place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The line itself, cut if long.
    pub text: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        match &self.at {
            Some(p) if p.text.is_empty() => write!(f, "line {}: {}", p.line, self.what),
            Some(p) => write!(f, "line {} `{}`: {}", p.line, p.text, self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    fn new(what: impl Into<String>) -> Self {
        Self { file: None, at: None, what: what.into() }
    }

    fn in_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    fn at(text: &str, offset: usize, what: impl Into<String>) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let start = before.rfind('\n').map_or(0, |i| i + 1);
        let line = text[start..].lines().next().unwrap_or("").trim();
        let mut shown: String = line.chars().take(72).collect();
        if shown.len() < line.len() {
            shown.push('…');
        }
        let column = before[start..].chars().count() + 1;
        let line = before.matches('\n').count() + 1;
        Self { file: None, at: Some(Position { line, column, text: shown }), what: what.into() }
    }
}

// ---- values that check themselves while they are read, so that errors carry their line ----

/// Reads `$what` from a string with `$parse`, and says what was expected of anything that is not a string.
macro_rules! from_text {
    ($type:ty, $expecting:literal, $parse:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct V;
                impl Visitor<'_> for V {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        let parse: fn(&str) -> Result<$type, String> = $parse;
                        parse(text).map_err(E::custom)
                    }
                }
                d.deserialize_str(V)
            }
        }
    };
}

/// A duration in ns.
#[derive(Clone, Copy, PartialEq)]
struct Ns(u64);
from_text!(Ns, "a duration such as \"1ms\", \"250us\" or \"2s\"", |t| duration_ns(t).map(Ns));

/// `None`: "auto".
struct FileRestart(Option<u64>);
from_text!(FileRestart, "\"auto\" or a duration such as \"10s\"", |t| match t {
    "auto" => Ok(FileRestart(None)),
    _ => duration_ns(t).map(|ns| FileRestart(Some(ns))),
});

/// Permission bits.
struct Mode(u32);
from_text!(Mode, "permissions as a string of octal digits such as \"0660\"", |t| {
    match u32::from_str_radix(t.strip_prefix("0o").unwrap_or(t), 8) {
        Ok(mode) if mode <= 0o777 && !t.starts_with('+') => Ok(Mode(mode)),
        _ => Err(format!("`{t}` is not a set of permissions; write three octal digits such as \"0660\"")),
    }
});

/// The path of a Unix socket.
struct SocketPath(PathBuf);
from_text!(SocketPath, "the path of a socket", |t| {
    match t.len() {
        0 => Err("an empty path; leave `path` out for the usual one".into()),
        n if n > files::SOCKET_PATH_MAX => Err(format!(
            "{n} bytes are too much for the path of a socket, which has at most {}; choose a shorter one",
            files::SOCKET_PATH_MAX
        )),
        _ if t.contains('\0') => Err("a path cannot contain the NUL character".into()),
        _ => Ok(SocketPath(t.into())),
    }
});

/// The name of a node.
struct NodeName(String);
from_text!(NodeName, "a host name", |t| names::check_node(t).map(|()| NodeName(t.into())));

/// The name of a zone.
struct ZoneName(String);
from_text!(ZoneName, "the name of a zone", |t| names::check_zone(t).map(|()| ZoneName(t.into())));

/// The name of a cluster.
struct ClusterName(String);
from_text!(ClusterName, "the name of a cluster", |t| names::check_cluster(t).map(|()| ClusterName(t.into())));

/// The name of a watched process.
struct AppName(String);
from_text!(AppName, "a name", |t| names::check_app(t).map(|()| AppName(t.into())));

/// The name of an interface.
struct InterfaceName(String);
from_text!(InterfaceName, "the name of a network interface such as \"eth1\"", |t| {
    let fits = (1..16).contains(&t.len()) && !t.contains(['/', ':', '\0']) && !t.contains(char::is_whitespace);
    if fits && t != "." && t != ".." {
        Ok(InterfaceName(t.into()))
    } else {
        Err(format!("`{t}` cannot be an interface's name (1 to 15 characters, no slash, colon or space); see `ip link`"))
    }
});

/// An IP address.
struct Ip(IpAddr);
from_text!(Ip, "an IP address such as \"10.0.1.2\" or \"fd00::2\"", |t| {
    t.parse().map(Ip).map_err(|_| format!("`{t}` is not an IP address; names are not resolved here, write the address itself"))
});

/// Where metrics are served.
struct Listen(Option<SocketAddr>);
from_text!(Listen, "an address and port such as \"127.0.0.1:9433\", or \"off\"", |t| {
    if t == "off" {
        return Ok(Listen(None));
    }
    t.parse()
        .map(|a| Listen(Some(a)))
        .map_err(|_| format!("`{t}` is not an address with a port; write for example \"127.0.0.1:9433\", or \"off\""))
});

/// A number of bytes.
struct Bytes(u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"16MiB\", or a number of bytes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                size_bytes(text).map(Bytes).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Bytes, E> {
                u64::try_from(v).map(Bytes).map_err(|_| E::custom("a size cannot be negative"))
            }
        }
        d.deserialize_any(V)
    }
}

/// Whose confirmations extend t_valid.
struct ConfirmedBy(Confirmers);

impl<'de> Deserialize<'de> for ConfirmedBy {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = ConfirmedBy;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"all\", \"majority\", or a number of other hosts")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ConfirmedBy, E> {
                match text {
                    "all" => Ok(ConfirmedBy(Confirmers::All)),
                    "majority" => Ok(ConfirmedBy(Confirmers::Majority)),
                    _ => Err(E::custom(format!("`{text}` is not \"all\" or \"majority\"; or write a number of other hosts"))),
                }
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<ConfirmedBy, E> {
                match u16::try_from(v) {
                    Ok(n) if (1..fide_wire::SLOTS).contains(&usize::from(n)) => Ok(ConfirmedBy(Confirmers::AtLeast(n))),
                    _ => Err(E::custom(format!("{v} other hosts cannot confirm; write 1 to {}", fide_wire::SLOTS - 1))),
                }
            }
        }
        d.deserialize_any(V)
    }
}

/// What a hook runs on: one or several causes.
struct On(Vec<Cause>);
from_text!(On, "the name of a cause such as \"silent-host\", or \"failure\", \"end\" or \"any\"", |t| {
    match t {
        "any" => Ok(On(Cause::ALL.to_vec())),
        "end" => Ok(On(Cause::ALL.into_iter().filter(|c| c.ends_process()).collect())),
        "failure" => Ok(On(Cause::ALL.into_iter().filter(|c| c.ends_process() && *c != Cause::Left).collect())),
        _ => match Cause::ALL.into_iter().find(|c| c.name() == t) {
            Some(cause) => Ok(On(vec![cause])),
            None => {
                let known: Vec<_> = Cause::ALL.iter().map(|c| c.name()).collect();
                Err(format!("`{t}` is not a cause; use \"failure\", \"end\", \"any\" or one of: {}", known.join(", ")))
            }
        },
    }
});

/// A program's path and arguments.
struct Command(Vec<String>);

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let words = Vec::<String>::deserialize(d)?;
        match words.first() {
            None => Err(de::Error::custom("an empty command; write [\"/path/of/program\", \"argument\", …]")),
            Some(p) if !p.starts_with('/') => Err(de::Error::custom(format!(
                "`{p}` is not an absolute path (hooks run without a shell and without PATH); write [\"/usr/local/bin/{p}\"] or where it is"
            ))),
            Some(_) if words.iter().any(|w| w.contains('\0')) => {
                Err(de::Error::custom("a command cannot contain the NUL character"))
            }
            Some(_) => Ok(Command(words)),
        }
    }
}

/// Reads a duration: a decimal number and one of `ns us µs ms s min h`. The result is in ns.
///
/// # Errors
/// What is wrong with it, for people.
pub fn duration_ns(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let factor: u64 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => {
            return Err(format!("`{text}` is not a duration; write a number and its unit, such as \"1ms\", \"250us\" or \"2s\""));
        }
    };
    decimal(number, factor).ok_or_else(|| format!("`{text}` is not a duration; write for example \"1ms\", \"1.5s\" or \"250us\""))
}

/// Reads a size: a decimal number and one of `B kB MB GB KiB MiB GiB`. The result is in bytes.
///
/// # Errors
/// What is wrong with it, for people.
pub fn size_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let factor: u64 = match unit {
        "" | "B" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(format!("`{text}` is not a size; write a number and its unit, such as \"16MiB\" or \"512KiB\"")),
    };
    decimal(number, factor).ok_or_else(|| format!("`{text}` is not a size; write for example \"16MiB\""))
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..at], text[at..].trim_start())
}

/// `number` (digits, at most one point with at most 9 digits behind it) times `factor`, rounded down.
fn decimal(number: &str, factor: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || part.is_empty() || part.len() > 9 {
        return None;
    }
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit()).then(|| t.parse::<u64>().ok()).flatten();
    let scale = 10u128.pow(part.len() as u32);
    let fraction = u128::from(digits(part)?) * u128::from(factor) / scale;
    digits(whole)?.checked_mul(factor)?.checked_add(u64::try_from(fraction).ok()?)
}

// ---- the file's own shape ----

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster: Option<ClusterName>,
    cluster_id: Option<Spanned<u32>>,
    node: Option<NodeName>,
    zone: Option<ZoneName>,
    heartbeat: Option<Spanned<Ns>>,
    restart_within: Option<Spanned<FileRestart>>,
    port: Option<Spanned<u16>>,
    ipv6: Option<bool>,
    rt_priority: Option<Spanned<u8>>,
    profile: Option<Profile>,
    receive: Option<Receive>,
    send: Option<Send>,
    state: Option<PathBuf>,
    #[serde(default)]
    path: Vec<Spanned<FilePath>>,
    #[serde(default)]
    dedicated: Dedicated,
    #[serde(default)]
    contract: Option<Spanned<FileContract>>,
    #[serde(default)]
    detector: FileDetector,
    #[serde(default)]
    fence: Option<Spanned<FileFence>>,
    #[serde(default)]
    gate: Vec<Spanned<FileGate>>,
    #[serde(default)]
    group: Vec<Spanned<FileGroup>>,
    witness: Option<FileWitness>,
    #[serde(default)]
    watch: Vec<Spanned<FileWatch>>,
    keys: Option<Spanned<FileKeys>>,
    #[serde(default)]
    socket: FileSocket,
    #[serde(default)]
    access: AccessConfig,
    #[serde(default)]
    metrics: FileMetrics,
    #[serde(default)]
    http: Option<Spanned<FileHttp>>,
    #[serde(default)]
    history: FileHistory,
    #[serde(default)]
    ends: FileEnds,
    #[serde(default)]
    hook: Vec<Spanned<FileHook>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePath {
    interface: InterfaceName,
    group: Option<Ip>,
    #[serde(default)]
    unicast: Vec<Ip>,
    address: Option<Ip>,
    ttl: Option<u8>,
    answerers: Option<Vec<Ip>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileContract {
    lambda_min: Option<Ns>,
    delta_max: Option<Ns>,
    delta_floor: Option<Ns>,
    delta_ceiling: Option<Ns>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileDetector {
    agent_timeout: Option<Spanned<Ns>>,
    tcp_questions: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FileFenceMode {
    Off,
    Sent,
    Acknowledged,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FileFencePaths {
    Both,
    One,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFence {
    mode: Option<FileFenceMode>,
    confirmed_by: Option<ConfirmedBy>,
    paths: Option<FileFencePaths>,
    timeout: Option<Ns>,
    margin: Option<Ns>,
    host: Option<bool>,
    #[serde(default)]
    interfaces: Vec<String>,
    #[serde(default)]
    cgroups: Vec<PathBuf>,
    pins: Option<PathBuf>,
    #[serde(default)]
    recover_at_start: bool,
    #[serde(default)]
    at_start: AtStart,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileGate {
    name: AppName,
    cgroup: PathBuf,
    #[serde(default)]
    users: Who,
    #[serde(default)]
    connections: Connections,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileGroup {
    name: String,
    hosts: Vec<String>,
    engine: Option<String>,
    policy: Option<String>,
    #[serde(default)]
    durable: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileWitness {
    command: Command,
    timeout: Option<Spanned<Ns>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileWatch {
    name: AppName,
    pid: Option<u32>,
    process: Option<String>,
    unit: Option<String>,
    cgroup: Option<String>,
    port: Option<u16>,
    user: Option<String>,
    #[serde(default)]
    containers: bool,
    progress: Option<Spanned<FileProgress>>,
    #[serde(default)]
    end_connections: Vec<u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileProgress {
    limit: Ns,
    command: Option<Command>,
    file: Option<PathBuf>,
    write: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileKeys {
    send: KeyFile,
    accept: Option<KeyFile>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileSocket {
    path: Option<SocketPath>,
    mode: Option<Mode>,
    group: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileMetrics {
    listen: Option<Listen>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileHttp {
    listen: Option<Listen>,
    token: Option<PathBuf>,
    #[serde(default)]
    page: bool,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileHistory {
    path: Option<PathBuf>,
    max_bytes: Option<Spanned<Bytes>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEnds {
    pins: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileHook {
    on: Vec<On>,
    #[serde(default = "any")]
    r#match: String,
    action: Option<HookAction>,
    command: Option<Command>,
    timeout: Option<Spanned<Ns>>,
    #[serde(default)]
    confirmations: bool,
    #[serde(default)]
    grade: Vec<Trust>,
    #[serde(default)]
    cause: Vec<On>,
    fenced: Option<bool>,
    planned: Option<bool>,
    maintenance: Option<bool>,
}

fn any() -> String {
    "*".into()
}

impl Config {
    /// Reads the file, the keys it names and, when it names no path, the host's interfaces.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let (text, mut warnings) = read_guarded(path).map_err(|e| e.in_file(path))?;
        let mut config = Self::parse(&text).map_err(|e| e.in_file(path))?;
        config.load_keys().map_err(|e| e.in_file(path))?;
        if config.paths.is_empty() {
            config.find_paths().map_err(|e| e.in_file(path))?;
        }
        config.check_places(path, &mut warnings).map_err(|what| ConfigError::new(what).in_file(path))?;
        warnings.append(&mut config.warnings);
        config.warnings = warnings;
        Ok(config)
    }

    /// Reads a configuration from its text. Reads no file; `paths` is empty when there is no `[[path]]`, and `keyring` the
    /// public one until [`Config::load_keys`].
    ///
    /// # Errors
    /// The first thing that is wrong, with its line. Never panics, whatever the text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let file = read_toml(text)?;
        let mut warnings = Vec::new();

        let cluster = file.cluster.map_or_else(|| "fide".into(), |n| n.0);
        let reserved = "cluster_id 0 is reserved; take another number, or leave it out";
        let cluster_id = number(text, file.cluster_id, name_id(&cluster), |id| *id != 0, reserved)?;
        let node = match file.node {
            Some(n) => n.0,
            None => own_name()?,
        };

        let bounds = "heartbeat must lie between \"50us\" and \"4s\"";
        let heartbeat_ns = number(text, file.heartbeat, Ns(1_000_000), |ns| HEARTBEAT_NS.contains(&ns.0), bounds)?.0;
        let no_port = format!("port 0 cannot be used; the usual one is {DEFAULT_PORT}");
        let port = number(text, file.port, DEFAULT_PORT, |port| *port != 0, &no_port)?;
        const RT_PRIORITY: u8 = fide_lane::profile::PRIORITY as u8;
        let bounds = format!("rt_priority must lie between 0 (none) and 99; the usual one is {RT_PRIORITY}");
        let rt_priority = number(text, file.rt_priority, RT_PRIORITY, |priority| *priority <= 99, &bounds)?;

        let ipv6 = file.ipv6.unwrap_or(false);
        let paths = paths(text, file.path, ipv6, &mut warnings)?;
        let contract = contract(text, file.contract)?;
        let usual = DetectorConfig::default().agent_timeout_ns.max(heartbeat_ns.saturating_mul(4));
        let is_long = |timeout: &Ns| timeout.0 >= heartbeat_ns.saturating_mul(2);
        let short = "agent_timeout must be at least two heartbeats, or every late heartbeat looks like a lost agent; the usual one is \"1s\"";
        let agent_timeout_ns = number(text, file.detector.agent_timeout, Ns(usual), is_long, short)?.0;
        let keys = keys(text, file.keys, &mut warnings)?;

        let fence = fence(text, file.fence, heartbeat_ns)?;
        let fences = fence.mode.is_some() && !fence.cgroups.is_empty();
        let witness = witness(text, file.witness)?;
        let groups = groups(text, file.group, &node, (fence.mode.is_some(), witness.is_some()))?;
        Ok(Self {
            groups,
            witness,
            cluster,
            cluster_id,
            node,
            heartbeat_ns,
            zone: file.zone.map_or_else(String::new, |zone| zone.0),
            port,
            rt_priority,
            ipv6,
            paths,
            profile: file.profile.unwrap_or(Profile::Shared),
            dedicated: file.dedicated,
            receive: file.receive.unwrap_or(Receive::Auto),
            send: file.send.unwrap_or(Send::Auto),
            contract,
            detector: DetectorConfig {
                agent_timeout_ns,
                tcp_questions: file.detector.tcp_questions.unwrap_or(DetectorConfig::default().tcp_questions),
            },
            fence,
            gates: gates(text, file.gate)?,
            watches: watches(text, file.watch)?,
            keys,
            keyring: Keyring::default(),
            socket: SocketConfig {
                path: file.socket.path.map_or_else(|| DEFAULT_SOCKET.into(), |p| p.0),
                mode: file.socket.mode.map_or(0o660, |m| m.0),
                group_is_set: file.socket.group.is_some(),
                group: file.socket.group.unwrap_or_else(|| "fide".into()),
            },
            access: file.access,
            metrics: file.metrics.listen.map_or_else(|| Some(SocketAddr::from(([127, 0, 0, 1], 9433))), |l| l.0),
            http: http(text, file.http)?,
            history: history(text, file.history)?,
            ends: ends(text, file.ends)?,
            restart_within: restart_within(text, file.restart_within)?,
            state: file.state.unwrap_or_else(|| "/var/lib/fide/state.json".into()),
            hooks: hooks(text, file.hook, fences)?,
            warnings,
        })
    }

    /// Checks what is at the paths that the file names: nothing that the agent would write or remove may be somebody else's, and nothing that it runs may be
    /// changed by others.
    fn check_places(&self, file: &Path, warnings: &mut Vec<String>) -> Result<(), String> {
        let beside = crate::history::beside;
        let mut places = vec![(file.to_owned(), "this file"), (self.state.clone(), "state")];
        let (draft, recent) = (beside(&self.state, ".new"), beside(&self.state, crate::owner::RECENT));
        places.push((draft.clone(), "the draft of state"));
        places.push((recent.clone(), "what state goes to first"));
        if let Some(history) = &self.history.path {
            places.push((history.clone(), "history.path"));
            places.push((beside(history, ".1"), "the older part of history.path"));
            places.push((beside(history, ".torn"), "the torn part of history.path"));
            let parts = crate::history::files_of(history).skip(3);
            places.extend(parts.map(|path| (path, "a part of history.path")));
        }
        places.push((self.socket.path.clone(), "socket.path"));
        places.extend(self.http.token_file.iter().map(|path| (path.clone(), "http.token")));
        for key in self.keys.iter().flat_map(|k| std::iter::once(&k.send).chain(&k.accept)) {
            places.push((key.file.clone(), "a key"));
        }
        for (i, (path, what)) in places.iter().enumerate() {
            let is_key = |what: &str| what == "a key";
            let same = places[..i].iter().rev().find(|(other, of)| other == path && !(is_key(what) && is_key(of)));
            if let Some((_, other)) = same {
                let (first, second) = if is_key(what) || *other == "this file" { (what, other) } else { (other, what) };
                return Err(format!("{first} and {second} are both {}: give each a path of its own", path.display()));
            }
        }
        let mut noted = |checked: Result<Vec<String>, files::Unfit>| {
            checked.map(|doubts| warnings.extend(doubts)).map_err(|unfit| unfit.to_string())
        };
        let is_state = |file: &std::fs::File| crate::state::is_ours_at(&self.state, file);
        noted(files::check_place(&self.state, is_state, crate::state::NOT_OURS))?;
        for path in [&draft, &recent] {
            noted(files::check_place(path, crate::state::is_ours, crate::state::NOT_OURS))?;
        }
        for path in self.history.path.iter().flat_map(|path| crate::history::files_of(path)) {
            noted(files::check_place(&path, crate::history::is_ours, crate::history::NOT_OURS))?;
        }
        noted(files::check_socket(&self.socket.path))?;
        let probes = self.watches.iter().filter_map(|w| match &w.progress.as_ref()?.probe {
            Probe::Command(words) => Some(("the progress probe", words)),
            Probe::File(_) | Probe::Write(_) => None,
        });
        let hooks = self.hooks.iter().map(|h| ("the hook", &h.command));
        let witness = self.witness.iter().map(|w| ("the witness", &w.words));
        for (what, program) in hooks.chain(probes).chain(witness).filter_map(|(what, words)| Some((what, words.first()?))) {
            match files::program(Path::new(program)) {
                Err(files::Unfit::System(e)) if e.kind() == std::io::ErrorKind::NotFound => {
                    warnings.push(format!("{what} {program} does not exist now; it will fail until it does"));
                }
                Err(files::Unfit::System(e)) => warnings.push(format!("{what} {program} cannot be looked at: {e}")),
                Err(files::Unfit::Refused(why)) => return Err(format!("{what} {why}")),
                Ok(doubts) => warnings.extend(doubts),
            }
        }
        warnings.dedup();
        Ok(())
    }

    /// What heartbeats of this period take of a processor, in a sentence: for `fided --check`. By `fide bench growth` on the machine that its figures are of
    /// (docs/operate.md); other processors differ, the proportions less.
    #[must_use]
    pub fn cost(&self) -> String {
        /// To send one, with its wake-ups: in a row, and where the processor did something else for 10 ms.
        const SEND_US: (f64, f64) = (20.0, 60.0);
        /// To hear one: the receive program alone, without the interface's driver.
        const HEAR_US: f64 = 0.5;
        let (period_us, paths) = (self.heartbeat_ns as f64 / 1e3, self.paths.len().max(1));
        let percent = |us: f64| us / period_us * 100.0;
        let sending = percent(SEND_US.0 + SEND_US.1 * (period_us / 10_000.0).min(1.0));
        let hearing = percent(HEAR_US * paths as f64);
        let own = if self.profile == Profile::Dedicated {
            "the processor that profile = \"dedicated\" gives them".to_owned()
        } else {
            format!("about {} % of a processor to send", rounded(sending))
        };
        format!(
            "heartbeats every {} ms on {paths} path{} take {own}, and about {} % for each other host to hear ({} % for 100 hosts), beside what the interfaces' \
             drivers take",
            self.heartbeat_ns as f64 / 1e6,
            if paths == 1 { "" } else { "s" },
            rounded(hearing),
            rounded(hearing * 100.0),
        )
    }

    /// What is doubtful on this host now, beside [`Config::warnings`]: for `fided --check`.
    #[must_use]
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        for path in &self.paths {
            if !has_interface(&path.interface) {
                doubts.push(format!(
                    "there is no interface {} on this host now: its path stays down until there is one",
                    path.interface
                ));
            }
            if let Some(group) = path.group.filter(|g| g.is_ipv6() && !self.ipv6) {
                doubts.push(format!(
                    "the path on {} uses the IPv6 group {group}, but ipv6 = false: hosts whose file names no group use an IPv4 one and are not \
                     heard on it; set ipv6 = true if IPv6 is meant",
                    path.interface
                ));
            }
        }
        if self.socket.group_is_set && crate::access::group_id(&self.socket.group).is_none() {
            doubts.push(format!(
                "socket.group: this host has no group `{0}`, and the agent does not start without it; create it with: groupadd --system {0}",
                self.socket.group
            ));
        }
        doubts.extend(crate::access::Policy::new(&self.access).1);
        if let Some(address) = self.metrics.filter(|a| !a.ip().is_loopback()) {
            doubts.push(format!(
                "metrics.listen: {address} is not a loopback address, and whoever can reach it reads names of hosts and processes and their states without \
                 a password; a firewall must keep others out"
            ));
        }
        doubts.extend(self.http_doubts());
        for (watch, user) in self.watches.iter().filter_map(|w| Some((w, w.user.as_ref()?))) {
            if crate::access::user_id(user).is_none() {
                doubts.push(format!("watch `{}`: this host has no user `{user}`, so no process is found for it", watch.name));
            }
        }
        for group in self.groups.iter().filter(|group| !group.hosts.contains(&self.node)) {
            doubts.push(format!(
                "group `{}`: this host ({}) is not one of its hosts ({}), so it does not take part",
                group.name,
                self.node,
                group.hosts.join(", ")
            ));
        }
        doubts.extend(self.fence_doubts());
        doubts.extend(self.hooks.iter().filter_map(|hook| hook_filter::doubt(hook, self.fence.mode.is_some())));
        doubts
    }

    fn http_doubts(&self) -> Vec<String> {
        let Some(address) = self.http.listen else { return Vec::new() };
        let mut doubts = Vec::new();
        if self.http.token_file.is_none() {
            doubts.push(format!(
                "http.listen: {address} asks for no token, so every user of this host reads status, events and explanations there, whatever [access] says; \
                 set http.token"
            ));
        }
        if !address.ip().is_loopback() {
            doubts.push(format!(
                "http.listen: {address} is not a loopback address: token and answers cross the network in the clear; listen on 127.0.0.1 behind a proxy that \
                 speaks TLS, or over ssh -L"
            ));
        }
        if self.metrics.is_some_and(|m| m.port() == address.port() && (m.ip() == address.ip() || address.ip().is_unspecified())) {
            doubts
                .push(format!("http.listen and metrics.listen are both {address}: only one of them is served; give each a port"));
        }
        doubts
    }

    fn fence_doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let f = &self.fence;
        if f.mode.is_none() {
            return doubts;
        }
        for dir in f.cgroups.iter().filter(|d| !d.exists()) {
            doubts.push(format!("fence.cgroups: there is no {} now: it is guarded from when there is one", dir.display()));
        }
        for name in f.interfaces.iter().filter(|i| *i != "*" && !has_interface(i)) {
            doubts.push(format!("fence.interfaces: there is no interface {name} now: it is guarded from when there is one"));
        }
        if !f.pins.ancestors().skip(1).any(|d| d == Path::new("/sys/fs/bpf")) {
            doubts.push(format!("fence.pins: {} must be on a BPF file system, which is usually /sys/fs/bpf", f.pins.display()));
        } else if !Path::new("/sys/fs/bpf").exists() {
            doubts.push("fence.pins: there is no BPF file system: mount -t bpf bpf /sys/fs/bpf".into());
        }
        if f.mode == Some(FenceMode::Sent) && f.paths == FencePaths::Both && self.paths.len() > 1 {
            doubts.push("fence.paths = \"both\": an unplugged cable of one path fences this host; \"one\" does not, and rests on the other path".into());
        }
        doubts
    }

    /// Reads the key files into [`Config::keyring`].
    ///
    /// # Errors
    /// A file that cannot be read, that others can read, or that holds no key.
    pub fn load_keys(&mut self) -> Result<(), ConfigError> {
        self.http.token = self.http.token_file.as_deref().map(read_token).transpose()?;
        let Some(files) = &self.keys else {
            self.keyring = Keyring::default();
            return Ok(());
        };
        let send = (files.send.id, read_key(&files.send.file)?);
        let accept = match &files.accept {
            Some(k) => Some((k.id, read_key(&k.file)?)),
            None => None,
        };
        self.keyring = Keyring::new(send, accept).map_err(|e| ConfigError::new(e.to_string()))?;
        Ok(())
    }

    /// Takes over what [`diff`] calls live, and nothing else, so that this stays what the agent really runs with.
    pub fn take_live(&mut self, new: &Config) {
        self.contract = new.contract;
        self.watches.clone_from(&new.watches);
        self.groups.clone_from(&new.groups);
        self.witness.clone_from(&new.witness);
        self.keys.clone_from(&new.keys);
        self.keyring = new.keyring;
        self.socket.mode = new.socket.mode;
        self.socket.group.clone_from(&new.socket.group);
        self.socket.group_is_set = new.socket.group_is_set;
        self.access.clone_from(&new.access);
        self.metrics = new.metrics;
        self.http.clone_from(&new.http);
        self.restart_within = new.restart_within;
        self.history.max_bytes = new.history.max_bytes;
        self.hooks.clone_from(&new.hooks);
        self.warnings.clone_from(&new.warnings);
    }

    /// Without a `[[path]]`: the interfaces that look as if they were meant, if that is not a matter of taste.
    fn find_paths(&mut self) -> Result<(), ConfigError> {
        let found =
            interfaces().map_err(|e| ConfigError::new(format!("cannot list the interfaces: {e}; name them with [[path]]")))?;
        if found.is_empty() || found.len() > PATHS {
            let seen =
                if found.is_empty() { "no usable interface was found".into() } else { format!("there are {}", found.join(", ")) };
            return Err(ConfigError::new(format!(
                "no [[path]] is configured and the choice is not clear ({seen}); add one block for each of two networks:\n[[path]]\ninterface = \"eth1\""
            )));
        }
        self.warnings.push(format!("no [[path]] is configured: using {}; name them to be sure", found.join(" and ")));
        self.paths = found
            .into_iter()
            .enumerate()
            .map(|(i, interface)| PathConfig {
                interface,
                group: Some(default_group(i, self.ipv6)),
                unicast: vec![],
                address: None,
                ttl: 1,
                answerers: None,
            })
            .collect();
        self.warnings.extend(one_path_warning(&self.paths));
        Ok(())
    }
}

/// The multicast group of path `index` unless configured.
#[must_use]
pub fn default_group(index: usize, ipv6: bool) -> IpAddr {
    let n = index as u16 + 1;
    if ipv6 { IpAddr::from([0xff12, 0, 0, 0, 0, 0, 0xf1de, n]) } else { IpAddr::from([239, 255, 70, n as u8]) }
}

fn one_path_warning(paths: &[PathConfig]) -> Option<String> {
    (paths.len() == 1).then(|| {
        format!(
            "ONLY ONE PATH ({}): a cut cable or a dead switch cannot be told from a crashed host, and will be reported as a crash; \
             give every host a second interface on another switch and a second [[path]]",
            paths[0].interface
        )
    })
}

fn read_toml(text: &str) -> Result<File, ConfigError> {
    if text.len() > FILE_MAX {
        return Err(ConfigError::new(format!("{} bytes are too much for a configuration (at most {FILE_MAX})", text.len())));
    }
    toml::from_str(text).map_err(|e| {
        let message = e.message().trim_end().to_owned();
        match e.span() {
            Some(span) => ConfigError::at(text, span.start, message),
            None => ConfigError::new(message),
        }
    })
}

/// A value of the file, or the usual one.
fn number<T>(
    text: &str,
    value: Option<Spanned<T>>,
    usual: T,
    is_fine: impl FnOnce(&T) -> bool,
    what: &str,
) -> Result<T, ConfigError> {
    match value {
        Some(value) if !is_fine(value.get_ref()) => Err(ConfigError::at(text, value.span().start, what)),
        Some(value) => Ok(value.into_inner()),
        None => Ok(usual),
    }
}

fn keys(text: &str, file: Option<Spanned<FileKeys>>, warnings: &mut Vec<String>) -> Result<Option<KeyFiles>, ConfigError> {
    let Some(keys) = file else {
        warnings.push(
            "no [keys]: packets are protected against corruption only, anybody on these networks can forge verdicts; \
             make a key with `openssl rand -hex 16`"
                .into(),
        );
        return Ok(None);
    };
    let span = keys.span();
    let keys = keys.into_inner();
    let bad = |what: String| Err(ConfigError::at(text, span.start, what));
    for key in std::iter::once(&keys.send).chain(&keys.accept) {
        if !(1..=15).contains(&key.id) {
            return bad(format!("key id {} is outside 1 to 15", key.id));
        }
        if !key.file.is_absolute() {
            return bad(format!("the key file {:?} must be an absolute path", key.file));
        }
    }
    if keys.accept.as_ref().is_some_and(|a| a.id == keys.send.id) {
        return bad(
            "`send` and `accept` have the same id; two keys need two ids, so that a packet says which it was signed with".into(),
        );
    }
    Ok(Some(KeyFiles { send: keys.send, accept: keys.accept }))
}

fn check_answerers(all: &[Ip], own: Option<&Ip>) -> Result<(), String> {
    let is_host = |a: &IpAddr| !a.is_multicast() && !a.is_unspecified() && !a.is_loopback();
    if let Some(Ip(a)) = all.iter().find(|a| !is_host(&a.0) || own.is_some_and(|own| own.0 == a.0)) {
        return Err(format!(
            "{a} in `answerers` is nobody else who could answer: name a router, a switch, or a host of this network that has no agent"
        ));
    }
    if let Some(Ip(a)) = all.iter().enumerate().find(|(i, a)| all[..*i].iter().any(|b| a.0 == b.0)).map(|(_, a)| a) {
        return Err(format!("{a} is in `answerers` twice"));
    }
    if all.len() > ANSWERERS {
        return Err(format!("{} addresses in `answerers`; {ANSWERERS} are more than enough", all.len()));
    }
    Ok(())
}

fn paths(
    text: &str,
    file: Vec<Spanned<FilePath>>,
    ipv6: bool,
    warnings: &mut Vec<String>,
) -> Result<Vec<PathConfig>, ConfigError> {
    let mut paths: Vec<PathConfig> = Vec::new();
    for (index, spanned) in file.into_iter().enumerate() {
        let at = spanned.span().start;
        let bad = |what: String| Err(ConfigError::at(text, at, what));
        let f = spanned.into_inner();
        if index == PATHS {
            return bad(format!("there are more than {PATHS} paths; exactly two disjoint networks are used, remove this one"));
        }
        let unicast: Vec<IpAddr> = f.unicast.into_iter().map(|ip| ip.0).collect();
        let group = match f.group {
            Some(Ip(g)) if !g.is_multicast() => {
                return bad(format!(
                    "group {g} is not a multicast address; use one like {}, or `unicast = [\"{g}\"]`",
                    default_group(index, g.is_ipv6())
                ));
            }
            Some(Ip(g)) => Some(g),
            None if !unicast.is_empty() => None,
            None => Some(default_group(index, ipv6 || f.address.as_ref().is_some_and(|a| a.0.is_ipv6()))),
        };
        if let Some(u) = unicast.iter().find(|u| u.is_multicast() || u.is_unspecified()) {
            return bad(format!("{u} in `unicast` is not the address of a host"));
        }
        if unicast.len() > fide_wire::SLOTS {
            return bad(format!("{} hosts in `unicast`; at most {} can be tracked", unicast.len(), fide_wire::SLOTS));
        }
        if let Some(Ip(a)) = &f.address
            && (a.is_multicast() || a.is_unspecified())
        {
            return bad(format!("address {a} is not the address of a host"));
        }
        if let Some(all) = &f.answerers
            && let Err(what) = check_answerers(all, f.address.as_ref())
        {
            return bad(what);
        }
        let mut families = group.iter().chain(&unicast).chain(f.address.as_ref().map(|a| &a.0)).map(IpAddr::is_ipv4);
        let first = families.next();
        if families.any(|v4| Some(v4) != first) {
            return bad("group, unicast and address mix IPv4 and IPv6; a path uses one of them".into());
        }
        if f.ttl == Some(0) {
            return bad("ttl 0 never leaves this host; leave it out, or use 1".into());
        }
        if let Some(other) = paths.first() {
            if other.interface == f.interface.0 {
                return bad(format!(
                    "both paths use {}; they must not share a cable: name another interface, or have one path only",
                    f.interface.0
                ));
            }
            if group.is_some() && other.group == group {
                return bad("both paths use the same group; give each its own, so that mixed-up cables are noticed".into());
            }
        }
        paths.push(PathConfig {
            interface: f.interface.0,
            group,
            unicast,
            address: f.address.map(|a| a.0),
            ttl: f.ttl.unwrap_or(1),
            answerers: f.answerers.map(|all| all.into_iter().map(|ip| ip.0).collect()),
        });
    }
    warnings.extend(one_path_warning(&paths));
    Ok(paths)
}

fn contract(text: &str, file: Option<Spanned<FileContract>>) -> Result<ContractPins, ConfigError> {
    let Some(spanned) = file else { return Ok(ContractPins::default()) };
    let at = spanned.span().start;
    let f = spanned.into_inner();
    let ns = |v: Option<Ns>| v.map(|v| v.0);
    let pins = ContractPins {
        lambda_min_ns: ns(f.lambda_min),
        delta_max_ns: ns(f.delta_max),
        delta_floor_ns: ns(f.delta_floor),
        delta_ceiling_ns: ns(f.delta_ceiling),
    };
    let zero = [(pins.delta_max_ns, "delta_max"), (pins.delta_ceiling_ns, "delta_ceiling")];
    if let Some((_, key)) = zero.iter().find(|(v, _)| *v == Some(0)) {
        return Err(ConfigError::at(
            text,
            at,
            format!("{key} cannot be 0: no network is without jitter; leave it out to have it measured"),
        ));
    }
    if pins.delta_max_ns.is_some() && (pins.delta_floor_ns.is_some() || pins.delta_ceiling_ns.is_some()) {
        return Err(ConfigError::at(
            text,
            at,
            "delta_max pins the jitter, so delta_floor and delta_ceiling have no meaning; keep one or the other",
        ));
    }
    if let (Some(floor), Some(ceiling)) = (pins.delta_floor_ns, pins.delta_ceiling_ns)
        && floor > ceiling
    {
        return Err(ConfigError::at(text, at, "delta_floor is above delta_ceiling; swap them"));
    }
    Ok(pins)
}

fn fence(text: &str, file: Option<Spanned<FileFence>>, heartbeat_ns: u64) -> Result<FenceConfig, ConfigError> {
    let unset = FenceConfig::default();
    let Some(spanned) = file else { return Ok(unset) };
    let at = spanned.span().start;
    let bad = |what: String| Err(ConfigError::at(text, at, format!("[fence] {what}")));
    let f = spanned.into_inner();
    let mode = match (f.mode.unwrap_or(FileFenceMode::Off), f.confirmed_by) {
        (FileFenceMode::Sent, Some(_)) => {
            return bad("confirmed_by has no meaning in mode \"sent\"; leave it out, or set mode = \"acknowledged\"".into());
        }
        (FileFenceMode::Off, _) => None,
        (FileFenceMode::Sent, None) => Some(FenceMode::Sent),
        (FileFenceMode::Acknowledged, by) => Some(FenceMode::Acknowledged(by.map_or(Confirmers::Majority, |by| by.0))),
    };
    let paths = match f.paths {
        Some(FileFencePaths::One) => FencePaths::One,
        Some(FileFencePaths::Both) | None => FencePaths::Both,
    };
    let fence = FenceConfig {
        mode,
        paths,
        timeout_ns: f.timeout.map_or(unset.timeout_ns, |t| t.0),
        margin_ns: f.margin.map_or(unset.margin_ns, |t| t.0),
        host: f.host.unwrap_or(true),
        interfaces: f.interfaces,
        cgroups: f.cgroups,
        pins: f.pins.unwrap_or(unset.pins),
        recover_at_start: f.recover_at_start,
        at_start: f.at_start,
    };
    let ms = |ns: u64| ns as f64 / 1e6;
    // Four heartbeats may be late or lost before this host stops.
    let least = (fence.margin_ns.saturating_add(heartbeat_ns.saturating_mul(4))).saturating_mul(102) / 100;
    if fence.mode.is_some() && fence.timeout_ns < least {
        return bad(format!(
            "timeout {} ms is too short for a heartbeat every {} ms and a margin of {} ms: this host would be fenced by every late heartbeat; at least {} ms",
            ms(fence.timeout_ns),
            ms(heartbeat_ns),
            ms(fence.margin_ns),
            ms(least)
        ));
    }
    if fence.timeout_ns > 10_000_000_000 {
        return bad("timeout must not be above \"10s\": for so long nobody takes this host for dead".into());
    }
    if fence.margin_ns < 100_000 {
        return bad("margin must be at least \"100us\": what has passed the gate and heartbeats under way take their time".into());
    }
    if fence.mode.is_some() && !fence.host && fence.cgroups.is_empty() {
        return bad("guards nothing: host = false, and no cgroups; set one of them, or mode = \"off\"".into());
    }
    if fence.at_start == AtStart::Closed && fence.cgroups.is_empty() {
        return bad(
            "at_start = \"closed\" is about cgroups, and there are none (the host's gate cannot begin closed: its heartbeats must leave to be confirmed); name the \
             cgroups of what must not be heard before this host is"
                .into(),
        );
    }
    if !fence.host && !fence.interfaces.is_empty() {
        return bad("interfaces are guarded with host = true only; leave them out, or set it".into());
    }
    if let Some(path) = fence.cgroups.iter().chain([&fence.pins]).find(|p| !p.is_absolute()) {
        return bad(format!("{} must be an absolute path", path.display()));
    }
    Ok(fence)
}

fn gates(text: &str, file: Vec<Spanned<FileGate>>) -> Result<Vec<GateConfig>, ConfigError> {
    let mut gates: Vec<GateConfig> = Vec::new();
    for spanned in file {
        let at = spanned.span().start;
        let FileGate { name: AppName(name), cgroup, users, connections } = spanned.into_inner();
        let bad = |what: String| Err(ConfigError::at(text, at, what));
        if !cgroup.is_absolute() {
            return bad(format!(
                "gate `{name}`: {} must be an absolute path: the directory of a cgroup of version 2",
                cgroup.display()
            ));
        }
        if gates.iter().any(|g| g.name == name || g.cgroup == cgroup) {
            return bad(format!("gate `{name}`: a second gate of this name or of this cgroup"));
        }
        gates.push(GateConfig { name, cgroup, users, connections });
    }
    Ok(gates)
}

fn witness(text: &str, file: Option<FileWitness>) -> Result<Option<witness::Command>, ConfigError> {
    let Some(FileWitness { command: Command(words), timeout }) = file else { return Ok(None) };
    let timeout = match timeout {
        Some(t) if !WITNESS_TIMEOUT_NS.contains(&t.get_ref().0) => {
            let what = "the witness's timeout must lie between \"100ms\" and \"10min\": nothing is decided while it is asked";
            return Err(ConfigError::at(text, t.span().start, what));
        }
        Some(t) => Duration::from_nanos(t.into_inner().0),
        None => Duration::from_secs(10),
    };
    Ok(Some(witness::Command { words, timeout }))
}

fn groups(
    text: &str,
    file: Vec<Spanned<FileGroup>>,
    node: &str,
    (has_fence, has_witness): (bool, bool),
) -> Result<Vec<GroupPlan>, ConfigError> {
    let mut groups: Vec<GroupPlan> = Vec::new();
    for spanned in file {
        let at = spanned.span().start;
        let FileGroup { name, hosts, engine, policy, durable } = spanned.into_inner();
        let bad = |what: String| Err(ConfigError::at(text, at, what));
        let group = match GroupPlan::new(&name, hosts, (engine.as_deref(), policy.as_deref()), durable) {
            Ok(group) => group,
            Err(what) => return bad(what),
        };
        if groups.iter().any(|other| other.name == name) {
            return bad(format!("group `{name}`: a second group of this name"));
        }
        if groups.len() >= fide_proto::services::groups::GROUPS_MAX {
            return bad(format!("group `{name}`: a host has at most {} groups", fide_proto::services::groups::GROUPS_MAX));
        }
        if group.policy == Some(Policy::Fence) && !has_fence && group.hosts.iter().any(|host| host == node) {
            return bad(format!(
                "group `{name}`: policy = \"fence\" rests on a fence, and this host has none: set mode in [fence], or take \"trust-contract\""
            ));
        }
        if group.policy == Some(Policy::Witness) && !has_witness && group.hosts.iter().any(|host| host == node) {
            return bad(format!(
                "group `{name}`: policy = \"witness\" rests on a witness, and this host has none: set command in [witness], or take \"trust-contract\""
            ));
        }
        groups.push(group);
    }
    Ok(groups)
}

fn watches(text: &str, file: Vec<Spanned<FileWatch>>) -> Result<Vec<Watch>, ConfigError> {
    let mut watches: Vec<Watch> = Vec::new();
    for spanned in file {
        let at = spanned.span().start;
        let bad = |what: String| Err(ConfigError::at(text, at, what));
        let f = spanned.into_inner();
        let name = f.name.0;
        let given = [
            f.pid.map(Selector::Pid),
            f.process.map(Selector::Name),
            f.unit.map(Selector::Unit),
            f.cgroup.map(Selector::Cgroup),
            f.port.map(Selector::Port),
        ];
        let mut given = given.into_iter().flatten();
        let (Some(selector), None) = (given.next(), given.next()) else {
            return bad(format!("watch `{name}` needs exactly one of pid, process, unit, cgroup and port"));
        };
        match &selector {
            Selector::Pid(0) | Selector::Port(0) => return bad(format!("watch `{name}`: {selector} cannot exist")),
            Selector::Name(t) | Selector::Unit(t) | Selector::Cgroup(t) if t.is_empty() || t.contains('\0') => {
                return bad(format!("watch `{name}`: an empty selector matches nothing; say which process is meant"));
            }
            _ => {}
        }
        if f.user.as_ref().is_some_and(|user| user.is_empty() || user.contains('\0')) {
            return bad(format!(
                "watch `{name}`: an empty user has no process; write for example user = \"redis\", or leave it out"
            ));
        }
        if f.containers && !matches!(selector, Selector::Name(_) | Selector::Port(_)) {
            return bad(format!(
                "watch `{name}`: `containers` is for a process that is found by its name or port; a {selector} is found wherever its network is"
            ));
        }
        if watches.iter().any(|w| w.name == name) {
            return bad(format!("a second watch is named `{name}`; names are unique on a host, choose another"));
        }
        let progress = f.progress.map(|p| progress(text, &name, p)).transpose()?;
        if progress.is_some() && watches.iter().filter(|w| w.progress.is_some()).count() == PROBES_MAX {
            return bad(format!("more than {PROBES_MAX} progress probes; each is a process every quarter of its limit"));
        }
        let end_connections = f.end_connections;
        if end_connections.len() > END_CONNECTIONS_PORTS_MAX || end_connections.contains(&0) {
            return bad(format!(
                "watch `{name}`: end_connections lists the ports on which the process serves, from 1 to 65535 and at most {END_CONNECTIONS_PORTS_MAX}"
            ));
        }
        watches.push(Watch { name, selector, user: f.user, containers: f.containers, progress, end_connections });
    }
    Ok(watches)
}

fn progress(text: &str, name: &str, file: Spanned<FileProgress>) -> Result<ProgressProbe, ConfigError> {
    let at = file.span().start;
    let bad = |what: String| Err(ConfigError::at(text, at, what));
    let f = file.into_inner();
    if !PROBE_LIMIT_NS.contains(&f.limit.0) {
        return bad(format!(
            "the progress limit of `{name}` must lie between \"1s\" and \"1h\": a probe is a process that is started four times within it; \
             a process that shows its progress itself (fide_progress_open) can have 10 ms"
        ));
    }
    let given = [f.command.map(|c| Probe::Command(c.0)), f.file.map(Probe::File), f.write.map(Probe::Write)];
    let mut given = given.into_iter().flatten();
    let (Some(probe), None) = (given.next(), given.next()) else {
        return bad(format!("the progress of `{name}` needs exactly one of command, file and write"));
    };
    if let Probe::File(path) | Probe::Write(path) = &probe
        && (!path.is_absolute() || path.to_str().is_none_or(|p| p.contains('\0')))
    {
        return bad(format!("the file {path:?} must be an absolute path: the agent has no directory of its own"));
    }
    Ok(ProgressProbe { limit_ns: f.limit.0, probe })
}

fn http(text: &str, file: Option<Spanned<FileHttp>>) -> Result<HttpConfig, ConfigError> {
    let Some(file) = file else { return Ok(HttpConfig::default()) };
    let at = file.span().start;
    let file = file.into_inner();
    let listen = file.listen.and_then(|l| l.0);
    if let Some(address) = listen.filter(|a| !a.ip().is_loopback() && file.token.is_none()) {
        return Err(ConfigError::at(
            text,
            at,
            format!(
                "http.listen = \"{address}\" is not a loopback address, and whoever can reach it could read the history, names and states: add token = \
                 \"/etc/fide/http-token\" and make it with: (umask 077; openssl rand -hex 16 > /etc/fide/http-token)"
            ),
        ));
    }
    if file.page && listen.is_none() {
        return Err(ConfigError::at(text, at, "page = true needs listen, for example listen = \"127.0.0.1:9434\""));
    }
    Ok(HttpConfig { listen, token_file: file.token, token: None, page: file.page })
}

fn history(text: &str, file: FileHistory) -> Result<HistoryConfig, ConfigError> {
    let max_bytes = match file.max_bytes {
        Some(b) if b.get_ref().0 < 64 << 10 => {
            return Err(ConfigError::at(
                text,
                b.span().start,
                "max_bytes must be at least \"64KiB\", or hardly an event is kept",
            ));
        }
        Some(b) => b.into_inner().0,
        None => 16 << 20,
    };
    let path = file.path.unwrap_or_else(|| "/var/lib/fide/history.jsonl".into());
    Ok(HistoryConfig { path: (path != Path::new("off")).then_some(path), max_bytes })
}

fn restart_within(text: &str, within: Option<Spanned<FileRestart>>) -> Result<RestartWithin, ConfigError> {
    let Some(within) = within else { return Ok(RestartWithin::Auto) };
    let FileRestart(Some(ns)) = within.get_ref() else { return Ok(RestartWithin::Auto) };
    match ns / 1_000_000 {
        ms if ms <= RESTART_MAX_MS => Ok(RestartWithin::Ms(ms as u32)),
        _ => {
            let what = "restart_within must be at most \"60s\": nobody is told of a crash of this host meanwhile";
            Err(ConfigError::at(text, within.span().start, what))
        }
    }
}

fn ends(text: &str, file: FileEnds) -> Result<Option<PathBuf>, ConfigError> {
    let Some(pins) = file.pins else { return Ok(Some("/sys/fs/bpf/fide-ends".into())) };
    match pins.get_ref() {
        path if path == Path::new("off") => Ok(None),
        path if path.is_absolute() => Ok(Some(pins.into_inner())),
        _ => Err(ConfigError::at(text, pins.span().start, "pins must be an absolute path on a BPF file system, or \"off\"")),
    }
}

fn hooks(text: &str, file: Vec<Spanned<FileHook>>, fences: bool) -> Result<Vec<Hook>, ConfigError> {
    let mut hooks = Vec::new();
    for spanned in file {
        let at = spanned.span().start;
        let f = spanned.into_inner();
        let mut on: Vec<Cause> = f.on.into_iter().flat_map(|o| o.0).collect();
        on.sort_unstable();
        on.dedup();
        if on.is_empty() {
            return Err(ConfigError::at(text, at, "this hook never runs: `on` is empty; write for example on = [\"failure\"]"));
        }
        if f.r#match.is_empty() {
            return Err(ConfigError::at(
                text,
                at,
                "this hook matches nothing: `match` is empty; leave it out to match everything",
            ));
        }
        if !f.r#match.contains(['@', '*']) {
            return Err(ConfigError::at(
                text,
                at,
                format!(
                    "`match = \"{0}\"` fits nothing; write \"{0}@*\" for a process of that name anywhere, or \"@{0}\" for a host",
                    f.r#match
                ),
            ));
        }
        let timeout = match f.timeout {
            Some(t) if !(10_000_000..=3_600_000_000_000).contains(&t.get_ref().0) => {
                return Err(ConfigError::at(text, t.span().start, "a hook's timeout must lie between \"10ms\" and \"1h\""));
            }
            Some(t) => Duration::from_nanos(t.into_inner().0),
            None => Duration::from_secs(5),
        };
        let action = f.action.unwrap_or_default();
        let command = match (action, f.command) {
            (HookAction::Run, Some(command)) => command.0,
            (HookAction::Run, None) => {
                return Err(ConfigError::at(
                    text,
                    at,
                    "this hook does nothing: give it `command = [\"/path/of/program\", …]`, or, on hung, `action = \"kill\"` or `action = \"fence\"`",
                ));
            }
            (HookAction::Kill | HookAction::Fence, Some(_)) => {
                return Err(ConfigError::at(text, at, "actions are the agent's own: a command needs a [[hook]] of its own"));
            }
            (HookAction::Kill | HookAction::Fence, None) if on != [Cause::Hung] => {
                return Err(ConfigError::at(
                    text,
                    at,
                    "only what is hung can be killed or fenced: write on = [\"hung\"] for this action, and another [[hook]] for the rest",
                ));
            }
            (HookAction::Fence, None) if !fences => {
                return Err(ConfigError::at(
                    text,
                    at,
                    "action = \"fence\" shuts the gate of the process's cgroup, and no cgroup has one: set mode and cgroups in [fence]",
                ));
            }
            (HookAction::Kill | HookAction::Fence, None) => Vec::new(),
        };
        let cause: Vec<Cause> = f.cause.into_iter().flat_map(|o| o.0).collect();
        if !cause.is_empty() && !cause.iter().any(|c| on.contains(c)) {
            return Err(ConfigError::at(text, at, "this hook never runs: none of its `cause` is in its `on`"));
        }
        let filter = HookFilter { grade: f.grade, cause, fenced: f.fenced, planned: f.planned, maintenance: f.maintenance };
        hooks.push(Hook { on, pattern: f.r#match, action, command, timeout, confirmations: f.confirmations, filter });
    }
    Ok(hooks)
}

/// What [`diff`] found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// What a running agent takes over at once.
    pub live: Live,
    /// Keys of the file whose change waits for a restart.
    pub needs_restart: Vec<String>,
}

impl Changes {
    /// Whether nothing changed at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Changes that need no restart.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Live {
    /// Watches that are new or select another process now.
    pub watches_added: Vec<Watch>,
    /// Watches that are gone or select another process now (remove these first).
    pub watches_removed: Vec<Watch>,
    /// Watches of the same process with another probe of its progress, or other connections that
    /// end with it.
    pub tended: Vec<Watch>,
    /// The keys.
    pub keys: bool,
    /// Pins of the contract.
    pub contract: bool,
    /// Mode or group of the socket.
    pub socket_permissions: bool,
    /// Who may do what.
    pub access: bool,
    /// Where metrics are served.
    pub metrics: bool,
    /// What is served over HTTP, and to whom.
    pub http: bool,
    /// Size of the history.
    pub history_size: bool,
    /// The hooks.
    pub hooks: bool,
    /// Groups that this host begins or joins by itself.
    pub groups: bool,
    /// Who says whether groups may go on without a host that is silent.
    pub witness: bool,
    /// In which time this agent says that it will be back.
    pub restart_within: bool,
}

impl Live {
    /// The sections that changed.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            (!self.watches_added.is_empty() || !self.watches_removed.is_empty() || !self.tended.is_empty(), "watch"),
            (self.keys, "keys"),
            (self.contract, "contract"),
            (self.socket_permissions, "socket.mode/group"),
            (self.access, "access"),
            (self.metrics, "metrics"),
            (self.http, "http"),
            (self.history_size, "history.max_bytes"),
            (self.hooks, "hook"),
            (self.groups, "group"),
            (self.witness, "witness"),
            (self.restart_within, "restart_within"),
        ];
        all.into_iter().filter_map(|(changed, name)| changed.then_some(name)).collect()
    }
}

/// What changed from `old` to `new`.
#[must_use]
pub fn diff(old: &Config, new: &Config) -> Changes {
    let restart = [
        (old.cluster != new.cluster, "cluster"),
        (old.cluster_id != new.cluster_id, "cluster_id"),
        (old.node != new.node, "node"),
        (old.zone != new.zone, "zone"),
        (old.heartbeat_ns != new.heartbeat_ns, "heartbeat"),
        (old.port != new.port, "port"),
        (old.rt_priority != new.rt_priority, "rt_priority"),
        (old.ipv6 != new.ipv6, "ipv6"),
        (old.paths != new.paths, "path"),
        (old.profile != new.profile, "profile"),
        (old.dedicated != new.dedicated, "dedicated"),
        (old.receive != new.receive, "receive"),
        (old.send != new.send, "send"),
        (old.detector != new.detector, "detector"),
        (old.fence != new.fence, "fence"),
        (old.gates != new.gates, "gate"),
        (old.socket.path != new.socket.path, "socket.path"),
        (old.history.path != new.history.path, "history.path"),
        (old.state != new.state, "state"),
        (old.ends != new.ends, "ends"),
    ];
    let same =
        |a: &Watch, b: &Watch| (&a.name, &a.selector, &a.user, a.containers) == (&b.name, &b.selector, &b.user, b.containers);
    let only_in = |a: &[Watch], b: &[Watch]| a.iter().filter(|w| !b.iter().any(|o| same(w, o))).cloned().collect();
    let care = |w: &Watch| (w.progress.clone(), w.end_connections.clone());
    let tended_otherwise = |w: &&Watch| old.watches.iter().any(|o| same(o, w) && care(o) != care(w));
    let permissions = |s: &SocketConfig| (s.mode, s.group.clone());
    Changes {
        live: Live {
            watches_added: only_in(&new.watches, &old.watches),
            watches_removed: only_in(&old.watches, &new.watches),
            tended: new.watches.iter().filter(tended_otherwise).cloned().collect(),
            keys: old.keyring != new.keyring || old.keys != new.keys,
            contract: old.contract != new.contract,
            socket_permissions: permissions(&old.socket) != permissions(&new.socket),
            access: old.access != new.access,
            metrics: old.metrics != new.metrics,
            http: old.http != new.http,
            history_size: old.history.max_bytes != new.history.max_bytes,
            hooks: old.hooks != new.hooks,
            groups: old.groups != new.groups,
            witness: old.witness != new.witness,
            restart_within: old.restart_within != new.restart_within,
        },
        needs_restart: restart.into_iter().filter(|(changed, _)| *changed).map(|(_, key)| key.to_owned()).collect(),
    }
}

// ---- what is asked of the host ----

/// Where the example is: installed beside this program, whatever the prefix; in the source tree that it was built in; else where packages
/// put it.
#[must_use]
pub fn example_path() -> std::path::PathBuf {
    example_of(std::env::current_exe().ok().as_deref(), Path::exists)
}

fn example_of(program: Option<&Path>, exists: impl Fn(&Path) -> bool) -> std::path::PathBuf {
    const EXAMPLE: &str = "share/doc/fide/fide.toml";
    const SOURCE: &str = "packaging/fide.toml";
    let beside = program.and_then(|p| Some(p.parent()?.parent()?.join(EXAMPLE)));
    let usual = ["/usr/local", "/usr"].map(|prefix| Path::new(prefix).join(EXAMPLE));
    let built = program.into_iter().flat_map(Path::ancestors).skip(2).map(|directory| directory.join(SOURCE));
    beside.into_iter().chain(built).chain(usual.clone()).find(|p| exists(p)).unwrap_or(usual[1].clone())
}

/// Reads the file, if only who may choose what the agent runs may write it, and says what is doubtful.
fn read_guarded(path: &Path) -> Result<(String, Vec<String>), ConfigError> {
    let (bytes, warnings) = files::read(path, Purpose::Config, FILE_MAX).map_err(|unfit| match unfit {
        files::Unfit::Refused(what) => ConfigError::new(what),
        files::Unfit::System(e) => {
            let advice = match e.kind() {
                std::io::ErrorKind::NotFound => {
                    format!("copy the example {} there, or name another file with --config", example_path().display())
                }
                std::io::ErrorKind::PermissionDenied => {
                    "run the agent as root or give its user the right to read the file".into()
                }
                _ => "see that it is an ordinary file".into(),
            };
            ConfigError::new(format!("cannot be read: {e}; {advice}"))
        }
    })?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let line = e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        ConfigError::new(format!("line {line} is not UTF-8 text; save the file as UTF-8"))
    })?;
    Ok((text, warnings))
}

fn read_token(path: &Path) -> Result<Token, ConfigError> {
    let make = format!("make one with: (umask 077; openssl rand -hex 16 > {})", path.display());
    let (bytes, _) = files::read(path, Purpose::Token, KEY_FILE_MAX).map_err(|unfit| match unfit {
        files::Unfit::Refused(what) => ConfigError::new(format!("http.token: {what}")),
        files::Unfit::System(e) => ConfigError::new(format!("http.token: {} cannot be read: {e}; {make}", path.display())),
    })?;
    Token::parse(&String::from_utf8_lossy(&bytes))
        .map_err(|e| ConfigError::new(format!("http.token: {} holds no token: {e}; {make}", path.display())))
}

fn read_key(path: &Path) -> Result<Key, ConfigError> {
    let (bytes, _) = files::read(path, Purpose::Key, KEY_FILE_MAX).map_err(|unfit| match unfit {
        files::Unfit::Refused(what) => ConfigError::new(format!("the key file {what}")),
        files::Unfit::System(e) => ConfigError::new(format!(
            "the key file {0} cannot be read: {e}; make one with: (umask 077; openssl rand -hex 16 > {0}), the same on every host",
            path.display()
        )),
    })?;
    let text = String::from_utf8_lossy(&bytes);
    Key::from_hex(&text).map_err(|e| ConfigError::new(format!("the key file {} holds no key: {e}", path.display())))
}

/// To two digits: more would be a promise.
fn rounded(value: f64) -> String {
    let digits = (1.0 - value.abs().max(1e-6).log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Whether there is such an interface. Not by /sys/class/net, which in a network namespace entered by setns (a host of a lab) shows another one's.
fn has_interface(name: &str) -> bool {
    // SAFETY: a C string that lives through the call.
    std::ffi::CString::new(name).is_ok_and(|name| unsafe { libc::if_nametoindex(name.as_ptr()) } != 0)
}

/// The host's name up to its first dot.
fn own_name() -> Result<String, ConfigError> {
    let mut buffer = [0u8; 256];
    // SAFETY: the buffer is writable for the length passed, and one byte is kept for the terminator.
    let rc = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    let name = std::ffi::CStr::from_bytes_until_nul(&buffer).ok().and_then(|c| c.to_str().ok()).unwrap_or("");
    let name = name.split('.').next().unwrap_or("");
    if rc != 0 || name.is_empty() || name == "localhost" || names::check_node(name).is_err() {
        return Err(ConfigError::new(format!(
            "this host's name ({name:?}) cannot tell it from others; add a line such as node = \"a\", different on every host"
        )));
    }
    Ok(name.into())
}

/// Interfaces that are up, can multicast, have an address, and are not obviously some virtual machine's or container's.
fn interfaces() -> std::io::Result<Vec<String>> {
    const VIRTUAL: [&str; 10] = ["docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "tun", "tap", "vnet"];
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs stores a list at the pointer, which is freed below.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let mut found: Vec<String> = Vec::new();
    let mut at = head;
    while !at.is_null() {
        // SAFETY: `at` is an element of the list, valid until freeifaddrs.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        let flags = entry.ifa_flags as libc::c_int;
        let wanted = libc::IFF_UP | libc::IFF_MULTICAST;
        if flags & wanted != wanted || flags & (libc::IFF_LOOPBACK | libc::IFF_POINTOPOINT) != 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: ifa_addr was checked for null and points to at least the family.
        let family = i32::from(unsafe { (*entry.ifa_addr).sa_family });
        // SAFETY: ifa_name is a NUL-terminated string owned by the list.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        if matches!(family, libc::AF_INET | libc::AF_INET6)
            && !found.contains(&name)
            && !VIRTUAL.iter().any(|v| name.starts_with(v))
        {
            found.push(name);
        }
    }
    // SAFETY: `head` came from getifaddrs and is freed once.
    unsafe { libc::freeifaddrs(head) };
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_looked_for_under_the_prefix_of_the_program() {
        let of = |program: &str, there: &str| example_of(Some(Path::new(program)), |p| p == Path::new(there));
        let local = "/usr/local/share/doc/fide/fide.toml";
        assert_eq!(of("/usr/local/bin/fided", local), Path::new(local));
        assert_eq!(
            of("/opt/fide/bin/fide", "/opt/fide/share/doc/fide/fide.toml"),
            Path::new("/opt/fide/share/doc/fide/fide.toml")
        );
        assert_eq!(of("/build/target/release/fided", local), Path::new(local));
        let source = "/src/fide/packaging/fide.toml";
        assert_eq!(of("/src/fide/target/release/fide", source), Path::new(source));
        let both = |p: &Path| p == Path::new(source) || p == Path::new(local);
        assert_eq!(example_of(Some(Path::new("/src/fide/target/debug/fided")), both), Path::new(source));
        assert_eq!(of("/usr/bin/fided", "/nowhere"), Path::new("/usr/share/doc/fide/fide.toml"));
    }
}
