//! Messages on the agent's Unix socket: one JSON object per datagram of a SOCK_SEQPACKET socket, at most
//! [`MESSAGE_MAX`] bytes. Descriptors (a ring, a bridge) ride on the reply they belong to.
//!
//! A client sends [`Request`]s and gets exactly one [`Reply`] for each, in order; with [`Request::Events`] and `follow`,
//! [`Reply::Event`]s keep coming on that connection until it is closed.

use crate::verdict::{Cause, Contract, Evidence, FencePromise, Grade, VerdictId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where the agent listens unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/run/fide/fided.sock";
/// The environment variable that names another socket, for all clients.
pub const SOCKET_ENV: &str = "FIDE_SOCKET";
/// Version of this protocol.
pub const PROTOCOL: u32 = 1;
/// Shortest and longest limit of a progress counter, ns. Below, an ordinary host's own scheduling would be taken for a hang.
pub const PROGRESS_LIMIT_NS: std::ops::RangeInclusive<u64> = 10_000_000..=86_400_000_000_000;
/// Longest reason in a [`Request::Report`], bytes.
pub const REASON_MAX: usize = 512;
/// Most ports of a process whose connections end with it ([`Request::EndConnections`]).
pub const END_CONNECTIONS_PORTS_MAX: usize = 16;
/// Longest wait for a [`Request::Check`], ns.
pub const CHECK_WAIT_MAX_NS: u64 = 60_000_000_000;
/// Farthest t_valid of a [`Request::Extend`] from now, ns.
pub const VALID_MAX_NS: u64 = 86_400_000_000_000;
/// Largest message, either way.
pub const MESSAGE_MAX: usize = 128 * 1024;

/// How a process is named to the agent of its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selector {
    /// This process, as numbered in the agent's pid namespace.
    Pid(u32),
    /// The process with this name (`comm` or the file name of its executable); refused when several match.
    Name(String),
    /// The main process of a systemd unit, found anew when the unit is restarted.
    Unit(String),
    /// The first process (the container's init) of this cgroup: a path below the cgroup root, or a container id.
    Cgroup(String),
    /// The process that listens on this TCP port.
    Port(u16),
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Selector::Pid(p) => write!(f, "pid {p}"),
            Selector::Name(n) => write!(f, "name {n}"),
            Selector::Unit(u) => write!(f, "unit {u}"),
            Selector::Cgroup(c) => write!(f, "cgroup {c}"),
            Selector::Port(p) => write!(f, "port {p}"),
        }
    }
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// First message of every connection.
    Hello {
        /// [`PROTOCOL`] as the client knows it.
        protocol: u32,
    },
    /// Asks for this connection's event ring. The reply carries one descriptor.
    Subscribe {
        /// Refuse a BPF ring and take the socket (for clients that cannot map memory).
        #[serde(default)]
        socket_only: bool,
    },
    /// Listing 1 `monitor`: events of this process (`name@host`), or of a host and all its processes (`@host`), or of
    /// everything (`*`), from now on. Needs [`Request::Subscribe`] first.
    Monitor {
        /// Whom.
        target: String,
        /// Smallest piggyback size wanted from it, bytes.
        #[serde(default)]
        pbsize: u32,
        /// Largest timeout that is of use; 0 for whatever the contract gives.
        #[serde(default)]
        timeout_ns: u64,
    },
    /// What became of these processes, which this connection's application held for running? Those that have ended are told through its ring, as
    /// if they ended now. For who was away, or has lost events. Needs [`Request::Subscribe`] first.
    Became {
        /// (node, number there), at most [`BECAME_MAX`].
        instances: Vec<(u32, u32)>,
    },
    /// Listing 1 `unmonitor`.
    Unmonitor {
        /// Whom.
        target: String,
    },
    /// Listing 1 `join`: the calling process wants to be monitored. The reply carries the descriptor of its piggyback bridge.
    Join {
        /// Its name, unique on this host.
        name: String,
        /// Piggyback bytes it would like to send on each heartbeat.
        #[serde(default)]
        pbsize: u32,
        /// The number that this same client of this process had joined by, on a connection that is lost: it goes on. Without it a
        /// process that had joined is a new instance, and the former one is *replaced*.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resumes: Option<u32>,
    },
    /// One of the progress counters on the caller's bridge (B10) is to be looked at: without movement for `limit_ns` while it is busy, the process is
    /// *hung*. Said again it changes the limit. Needs [`Request::Join`] on this connection.
    Progress {
        /// Which, below [`bridge::COUNTERS`].
        counter: u32,
        /// The limit, within [`PROGRESS_LIMIT_NS`]; 0: it is no longer looked at.
        limit_ns: u64,
    },
    /// When a watched process of this host is killed or crashes (not at exit status 0), its TCP
    /// connections of these local ports are ended at once, those that wait to be accepted and the
    /// listening sockets too: clients are reset without waiting for the kernel to take the process
    /// down. Only sockets of the process's user, in its network namespace. Said again it changes
    /// the ports. For the process's user, and root.
    EndConnections {
        /// Its name.
        name: String,
        /// At most [`END_CONNECTIONS_PORTS_MAX`]; none: no more.
        ports: Vec<u16>,
    },
    /// What an application's own detector finds of itself or of another watched process of this host (F20): told to all hosts as what this
    /// agent finds itself.
    Report {
        /// Its name.
        name: String,
        /// Hung, or progressing again.
        hung: bool,
        /// Why, for the history of this host.
        #[serde(default)]
        reason: String,
    },
    /// Listing 1 `quit`: it leaves politely; what follows is not a crash.
    Quit,
    /// An operator names a process of this host to be watched.
    Watch {
        /// The name others will know it by.
        name: String,
        /// Which process.
        selector: Selector,
        /// Only processes of this user, by name or number. Without it [`Selector::Name`] finds processes of the user who asks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// [`Selector::Name`] and [`Selector::Port`] also find processes in other network namespaces than the agent's, when there is none in its own.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        containers: bool,
    },
    /// Ends a watch (others see the process leave): one's own, or as root any. One of the configuration comes back with [`Request::Reload`].
    Unwatch {
        /// Its name.
        name: String,
    },
    /// Everything known now.
    Status,
    /// The event history.
    Events {
        /// Only events with this number or later; 0 for all that is kept.
        #[serde(default)]
        from: u64,
        /// At most this many of the newest, 0 for all.
        #[serde(default)]
        last: u64,
        /// Keep sending new ones.
        #[serde(default)]
        follow: bool,
    },
    /// One verdict with all it rests on. Refused as [`ErrorCode::Ambiguous`] when several incarnations of a node gave one with this id.
    Explain {
        /// Which.
        id: VerdictId,
        /// The incarnation that gave it, as [`crate::verdict::UniqueId`] says; absent: whichever did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incarnation: Option<u32>,
    },
    /// Reads the configuration again (as SIGHUP does).
    Reload,
    /// A host that is gone for good and did not leave is not one of the cluster any more: for this agent alone, until that host is heard again.
    Forget {
        /// Its name.
        host: String,
    },
    /// Looks at what is in maintenance, or changes it: for the whole cluster, whichever of its agents is asked.
    Maintenance {
        /// What to do.
        order: MaintenanceOrder,
    },
    /// Looks at the fence, or changes it.
    Fence {
        /// What to do.
        order: FenceOrder,
    },
    /// An application with heartbeats of its own has missed some (SafeTimer §4.1, `safetimer_check`): is all that came to this host for it by then with
    /// it, and was nothing lost here? The reply comes when that is known; until then the connection's next requests wait.
    Check {
        /// Whom: `name@host`, `@host`, or the address that its packets come from.
        peer: String,
        /// When the interval began in which nothing was heard (CLOCK_MONOTONIC).
        since_ns: u64,
        /// When it ended, not before `since_ns`; 0: now.
        #[serde(default)]
        deadline_ns: u64,
        /// How long the answer is worth waiting for, at most [`CHECK_WAIT_MAX_NS`].
        wait_ns: u64,
    },
    /// The calling process has heartbeats of its own, and one of them counts (SafeTimer §4.2, `safetimer_extend`): what is made in its cgroup may be sent
    /// up to `valid_ns`. The first one closes the gate from then on.
    Extend {
        /// A time at which the heartbeat was known to have left (CLOCK_MONOTONIC).
        known_ns: u64,
        /// The new t_valid (CLOCK_MONOTONIC).
        valid_ns: u64,
        /// Open the gate if it was closed: whoever sends from now on has dropped what it did before.
        #[serde(default)]
        anew: bool,
    },
    /// Looks at the groups of this host, or changes them.
    Group {
        /// What to do.
        order: GroupOrder,
    },
    /// Opens a group for the calling process. The reply carries one end of a socket on which [`crate::session`] is spoken.
    OpenGroup {
        /// Its name.
        name: String,
        /// The client's id; 0: the agent makes one. Whoever comes back with its id proposes nothing twice.
        #[serde(default)]
        client: u64,
        /// Entries that it has read.
        #[serde(default)]
        behind: u64,
        /// The number before its next proposal, or before the first one that it proposes again.
        #[serde(default)]
        last_number: u64,
        /// Which group of that name it goes on in; 0: any.
        #[serde(default)]
        generation: u64,
        /// It reads [bundles](crate::session).
        #[serde(default)]
        bundles: bool,
    },
}

/// What is asked of maintenances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "maintenance", rename_all = "kebab-case")]
pub enum MaintenanceOrder {
    /// Which are there?
    Status,
    /// Begin one, or have it last from now on.
    On {
        /// Whom it covers ([`crate::maintenance::covers`]).
        target: String,
        /// How long, within [`crate::maintenance::MAINTENANCE_NS`].
        for_ns: u64,
        /// Why; may be empty.
        #[serde(default)]
        reason: String,
    },
    /// End one, or all.
    Off {
        /// Whom it covers, as it was said when it was begun; absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
    },
}

/// One maintenance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceStatus {
    /// Whom it covers.
    pub target: String,
    /// How long it still lasts, as this host counts.
    pub left_ns: u64,
    /// When it ends, by this host's clock, nanoseconds since 1970.
    pub ends_wall_ns: u64,
    /// Why; empty: nobody said.
    pub reason: String,
    /// The host on which it was set.
    pub by: String,
    /// By which user there.
    pub user: u32,
    /// The hosts that are known to know it, this one among them.
    pub known_by: Vec<String>,
}

/// What is asked of groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "group", rename_all = "kebab-case")]
pub enum GroupOrder {
    /// How do all groups of this host stand?
    Status,
    /// Begin a group.
    Create {
        /// Its name.
        name: String,
        /// `huc`, `hsuc`, `lowi` or `raft`; empty: as the policy, or the hosts' fences, suggest.
        #[serde(default)]
        engine: String,
        /// `trust-contract`, `fence` or `witness`; empty: `fence` where every host has one that
        /// counts, else a majority decides (`raft`).
        #[serde(default)]
        policy: String,
        /// Its hosts, this one among them; the first one leads.
        hosts: Vec<String>,
        /// Its log is on disk.
        #[serde(default)]
        durable: bool,
        /// It begins with an empty log, whatever the disks have.
        #[serde(default)]
        fresh: bool,
    },
    /// Become a member of a group that runs on other hosts.
    Join {
        /// Its name.
        name: String,
    },
    /// Leave a group; the others go on.
    Leave {
        /// Its name.
        name: String,
        /// Without asking the others: they take this host's member for crashed.
        #[serde(default)]
        force: bool,
    },
    /// Go on with the log that this host keeps of a group whose members have all stopped, also where
    /// another host may have more of it.
    Resume {
        /// Its name.
        name: String,
    },
    /// Go on with another engine.
    Switch {
        /// Its name.
        name: String,
        /// Which.
        engine: String,
    },
}

/// How a group stands, as seen from this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Tells groups of one name apart.
    pub generation: u64,
    /// Its engine now; empty while only its name is known here.
    pub engine: String,
    /// What it makes of inferred verdicts; empty as well.
    pub policy: String,
    /// How far it is here.
    pub stage: crate::session::Stage,
    /// Why it has not begun, does not come to run, or decides nothing; empty otherwise.
    #[serde(default)]
    pub why: String,
    /// Why this host chose its engine and policy when it began it; empty: they were named.
    #[serde(default)]
    pub chosen: String,
    /// It was begun anew after all members of the one before had ended: what was decided there is gone.
    #[serde(default)]
    pub anew: bool,
    /// This host's member.
    #[serde(default)]
    pub me: Option<u16>,
    /// The leading member.
    #[serde(default)]
    pub leader: Option<u16>,
    /// Its members.
    pub members: Vec<GroupMember>,
    /// Entries applied here.
    pub index: u64,
    /// Of a durable group: entries that this host's disk has, and its applications may know of.
    #[serde(default)]
    pub written: Option<u64>,
    /// Proposals of this host that wait.
    pub pending: usize,
    /// Why this host's last member stopped; empty: none did.
    #[serde(default)]
    pub halted: String,
    /// Logs that hosts keep of it, none of which runs it, as far as this host has heard.
    #[serde(default)]
    pub logs: Vec<GroupLog>,
    /// Bytes of entries that are kept here.
    pub kept_bytes: usize,
    /// Applications of this host that have it open.
    pub sessions: usize,
}

/// A log that a host keeps of a group, whose member there has stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLog {
    /// Which host.
    pub host: String,
    /// Entries of applications in it.
    pub entries: u64,
    /// The hosts that its member counted when it stopped, itself among them.
    pub members: Vec<String>,
    /// Others began the group again with another log since then.
    pub superseded: bool,
}

/// One member of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMember {
    /// Its id.
    pub id: u16,
    /// Its host.
    pub host: String,
    /// That host's incarnation.
    pub incarnation: u32,
    /// It is known to have crashed.
    pub crashed: bool,
    /// Where its host is reached on the paths, as far as this agent knows; of another host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<std::net::IpAddr>,
}

/// What is asked of the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FenceOrder {
    /// Say how it is.
    Status,
    /// Close it at once.
    Shut,
    /// Open it again, in a new incarnation.
    Recover,
}

impl Request {
    /// [`Request::Watch`] without any more conditions.
    #[must_use]
    pub fn watch(name: impl Into<String>, selector: Selector) -> Self {
        Request::Watch { name: name.into(), selector, user: None, containers: false }
    }
}

/// The most processes that one [`Request::Became`] asks for.
pub const BECAME_MAX: usize = 64;

/// What is known of a target that is monitored from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub enum TargetState {
    /// It runs; a host: it is heard.
    Alive = 1,
    /// It runs and makes no progress.
    Hung = 2,
    /// Nobody watches it now: its host's agent is lost, or left.
    Unobserved = 3,
    /// The last process of that name has ended; the next one is waited for.
    Ended = 4,
    /// No process of that name was known there; it is waited for.
    NoProcess = 5,
    /// No such host was ever heard; it is waited for.
    NoHost = 6,
}

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "re", rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Hello`].
    Hello {
        /// [`PROTOCOL`] as the agent knows it.
        protocol: u32,
        /// This host's name.
        node: String,
        /// Its wire id.
        node_id: u32,
        /// The cluster.
        cluster: String,
        /// The agent's version.
        version: String,
        /// What fails together with this host, such as its rack; empty: it is not said.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        zone: String,
    },
    /// To [`Request::Subscribe`], with one descriptor.
    Ring {
        /// What the descriptor is.
        kind: RingKind,
        /// Bytes of the data area (a power of two), for [`RingKind::Bpf`].
        size: u32,
    },
    /// To [`Request::Monitor`]: the resources granted (Listing 1).
    Monitored {
        /// The node it is on.
        node: u32,
        /// Its number there; 0 when the target is a host, is `*`, or is not running now.
        app: u32,
        /// Granted piggyback size, bytes.
        pbsize: u32,
        /// The timeout for silence towards its host.
        timeout_ns: u64,
        /// Whether it is known and alive now.
        alive: bool,
        /// What is known of it; `None` of agents that do not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<TargetState>,
        /// How the last process of that name ended, where `state` is [`TargetState::Ended`]: cause, and exit status or signal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<(Cause, i32)>,
    },
    /// To [`Request::Join`], with the bridge's descriptor.
    Joined {
        /// This process's number on this node.
        app: u32,
        /// Granted piggyback size, bytes.
        pbsize: u32,
        /// Bytes of the bridge.
        bridge_len: u32,
    },
    /// To [`Request::Watch`].
    Watched {
        /// The process found.
        pid: u32,
        /// Its number on this node.
        app: u32,
    },
    /// To what has nothing to say.
    Done,
    /// To [`Request::Reload`].
    Reloaded(Box<Reloaded>),
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Events`]: one kept event.
    Event(Box<HistoryEvent>),
    /// Ends the kept events; new ones follow if asked for.
    EventsEnd {
        /// The number the next event will get.
        next: u64,
    },
    /// To [`Request::Explain`].
    Explained(Box<HistoryEvent>),
    /// To [`Request::Maintenance`]: those that are there now.
    Maintenance {
        /// By target.
        maintenances: Vec<MaintenanceStatus>,
    },
    /// To [`Request::Fence`].
    Fence(Box<FenceStatus>),
    /// To [`Request::Check`].
    Checked(Box<Checked>),
    /// To [`Request::Extend`].
    Extended {
        /// The gate's name.
        gate: String,
        /// t_valid now: later than asked for when it was.
        valid_ns: u64,
    },
    /// To [`Request::Group`] with [`GroupOrder::Status`].
    Groups {
        /// All of this host.
        groups: Vec<GroupStatus>,
    },
    /// To [`Request::OpenGroup`], with one descriptor.
    GroupOpened {
        /// The client's id.
        client: u64,
        /// The agent reads [bundles](crate::session).
        #[serde(default)]
        bundles: bool,
        /// Why it takes no states from this client ([`crate::session::ToAgent::Snapshot`]); empty:
        /// it does.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        refuses: String,
    },
    /// A refusal.
    Error(Refused),
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{what}")]
pub struct Refused {
    /// For programs.
    pub code: ErrorCode,
    /// For people: what, why, and what to do.
    pub what: String,
}

/// Reasons for programs; the numbers are `libfide`'s error codes, negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum ErrorCode {
    /// The message makes no sense.
    Invalid = 1,
    /// Not allowed to this user.
    Permission = 2,
    /// No such process, host or verdict.
    NotFound = 3,
    /// The name is taken, or the process is watched already.
    Exists = 4,
    /// Larger than allowed.
    TooLarge = 5,
    /// No room for more.
    Full = 6,
    /// The other side speaks another version.
    Version = 7,
    /// The agent cannot do this on this host.
    Unsupported = 8,
    /// The agent went away or never was there.
    Disconnected = 9,
    /// A system call failed.
    System = 10,
    /// Several processes match, or several verdicts.
    Ambiguous = 11,
    /// The gate is closed: what this process sends does not leave.
    Fenced = 12,
    /// A heartbeat is not known to have left in time.
    NotSent = 13,
}

/// What [`Request::Check`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum CheckOutcome {
    /// Everything that came by the deadline is in the sockets, and nothing was lost since the interval began: who looks into its sockets now and finds no
    /// heartbeat may report a failure.
    Drained = 1,
    /// Packets were lost on this host, or may have been: the interval says nothing. Begin a new one.
    Void = 2,
    /// It is not known whether something waits on this host: the interval says nothing.
    NoBarrier = 3,
    /// A kernel saw the end of this process, and this agent learned it within the interval. No barrier was needed.
    Certain = 4,
}

/// To [`Request::Check`]: whether the missing heartbeats say something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checked {
    /// In one word.
    pub outcome: CheckOutcome,
    /// [`CheckOutcome::Drained`]: what came before this is in the sockets (CLOCK_MONOTONIC). Not before the deadline.
    #[serde(default)]
    pub drained_ns: u64,
    /// [`CheckOutcome::Void`]: packets may have been lost up to this time; a new interval begins here (CLOCK_MONOTONIC).
    #[serde(default)]
    pub lost_ns: u64,
    /// Why it is void or not known; empty otherwise.
    #[serde(default)]
    pub why: String,
    /// What this agent itself knows of the peer; absent when it is no host of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<CheckedPeer>,
}

/// What the agent itself knows of a peer that is checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckedPeer {
    /// Its host.
    pub host: String,
    /// Its host's wire id.
    pub node: u32,
    /// Its host's incarnation.
    pub incarnation: u32,
    /// `alive`, `late`, `agent-lost`, `silent-host`, `left`, `restarting`.
    pub host_state: String,
    /// `alive`, `hung`, or the cause of its end; empty when no process was named, `unknown` when it is not known.
    #[serde(default)]
    pub app_state: String,
    /// What its host promised of its fence; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<FencePromise>,
    /// The verdict on its host waited for that fence: what it guards sends nothing any more.
    #[serde(default)]
    pub fenced: bool,
}

/// What carries events to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RingKind {
    /// A BPF ring buffer: the kernel writes, the client maps and polls it.
    Bpf,
    /// A SOCK_SEQPACKET socket with one record per datagram.
    Socket,
}

/// What the agent knows now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// This host.
    pub node: String,
    /// Its wire id.
    pub node_id: u32,
    /// The cluster.
    pub cluster: String,
    /// What fails together with this host, such as its rack; empty: it is not said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub zone: String,
    /// The agent's version.
    pub version: String,
    /// This agent's incarnation.
    pub incarnation: u32,
    /// Seconds since the agent started.
    pub uptime_s: u64,
    /// `shared` or `dedicated`.
    pub profile: String,
    /// How packets are received: `xdp-native`, `xdp-generic`, `udp`.
    pub receive: String,
    /// How packets are sent: `packet`, `udp`.
    pub send: String,
    /// How exits are seen: `tracepoint`, `pidfd`.
    pub exit_watch: String,
    /// This host's interfaces, one per path.
    pub paths: Vec<LocalPath>,
    /// The contract this agent offers.
    pub contract: Contract,
    /// The other hosts.
    pub hosts: Vec<HostStatus>,
    /// Watched processes of this host.
    pub watched: Vec<WatchStatus>,
    /// Refused packets by reason.
    pub refused: BTreeMap<String, u64>,
    /// What came and nobody wanted, and where the last of each kind came from: refused packets by reason, and answers, questions and frames that are
    /// none of the cluster's business.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unwanted: Vec<UnwantedStatus>,
    /// Heartbeats sent since the start.
    pub heartbeats_sent: u64,
    /// Silences that ended while a barrier was waited for (S1).
    #[serde(default)]
    pub silences_spared: u64,
    /// Silences measured anew because packets were lost on this host's own side (S2).
    #[serde(default)]
    pub silences_vetoed: u64,
    /// Whether packets are authenticated.
    pub authenticated: bool,
    /// The fence; absent when none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<FenceStatus>,
    /// Gates of applications with heartbeats of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateStatus>,
    /// What is in maintenance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maintenance: Vec<MaintenanceStatus>,
    /// The keys of every host that says so, this one among them; empty without keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<HostKeys>,
    /// Groups that this agent knows: those that its host is a member of, is to be one of, or keeps the log of.
    #[serde(default)]
    pub groups: u32,
    /// Those of them that run here.
    #[serde(default)]
    pub groups_running: u32,
}

/// The keys that a host accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostKeys {
    /// Its name.
    pub host: String,
    /// That which it sends with first.
    pub keys: Vec<HeldKey>,
}

/// A key, as it is named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldKey {
    /// Its id on the wire.
    pub id: u8,
    /// 16 hexadecimal digits that say which key it is, and not the key ([`crate::mac::Key::fingerprint`]).
    pub fingerprint: String,
}

/// What [`Request::Reload`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// What was taken over: `watch NAME (new)`, `(removed)`, `(changed)`, or a section of the file.
    pub changed: Vec<String>,
    /// Watches that had been ended by an operator, and stand again.
    pub watched_again: Vec<String>,
    /// Keys of the file whose change waits for a restart of the agent.
    pub needs_restart: Vec<String>,
    /// What could not be done, and why.
    pub refused: Vec<String>,
    /// What works but is doubtful on this host now, as `fided --check` says it.
    pub doubtful: Vec<String>,
}

/// Packets of a kind that nobody wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnwantedStatus {
    /// `echo-answer`, `probe`, `tcp-answer`, `own-mac`, or why it was refused.
    pub kind: String,
    /// How many have come.
    pub count: u64,
    /// The last one's source address; empty when it was no IP packet.
    #[serde(default)]
    pub from: String,
    /// Its source on the link; empty when that is not known.
    #[serde(default)]
    pub mac: String,
    /// The path that it came by.
    #[serde(default)]
    pub path: u8,
    /// How long ago.
    #[serde(default)]
    pub age_ns: u64,
}

/// The fence of this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FenceStatus {
    /// `starting` (not armed yet), `open`, `fenced`, `recovering` (closed, and to open when others confirm).
    pub state: String,
    /// Why it is fenced; empty while it is not.
    #[serde(default)]
    pub why: String,
    /// When it was found fenced (CLOCK_MONOTONIC); 0 while it is not.
    #[serde(default)]
    pub fenced_ns: u64,
    /// `sent`, or `acknowledged by …`.
    pub mode: String,
    /// `both` or `one`.
    pub paths: String,
    /// What others wait for.
    pub timeout_ns: u64,
    /// What t_valid stays below that, beside the drift of clocks.
    pub margin_ns: u64,
    /// t_valid (CLOCK_MONOTONIC); 0 before it is armed.
    pub valid_ns: u64,
    /// How long that still is.
    pub left_ns: u64,
    /// How often t_valid was extended.
    pub extensions: u64,
    /// The smallest time that was left when it was extended, since the fence was armed; 0 before.
    pub left_min_ns: u64,
    /// Others whose confirmations are needed; 0 where none are.
    pub confirmations_needed: u32,
    /// Others who have confirmed, by name.
    #[serde(default)]
    pub confirmed_by: Vec<String>,
    /// All hosts of which so many must confirm, by name: those that this host has heard of and that have not left.
    #[serde(default)]
    pub observers: Vec<String>,
    /// Those of them that have confirmed nothing new for `timeout_ns`.
    #[serde(default)]
    pub waits_for: Vec<String>,
    /// Interfaces that are guarded.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Every gate.
    pub gates: Vec<GateStatus>,
}

impl FenceStatus {
    /// Whether the gates are closed: fenced, or to open as soon as enough others confirm this host.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.state.as_str(), "fenced" | "recovering")
    }
}

/// One gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GateStatus {
    /// `host`, the cgroup's directory, or what `[[gate]]` says.
    pub name: String,
    /// `not-armed`, `open`, `fenced`, `shut`; of an application's also `absent` (its cgroup is) and `run-out` (no packet has met it since).
    pub state: String,
    /// The process whose doom closed it; empty when none did.
    #[serde(default)]
    pub doomed: String,
    /// Packets that passed.
    pub passed: u64,
    /// Packets that it blocked.
    pub blocked: u64,
}

/// One of this host's interfaces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LocalPath {
    /// Path number.
    pub path: u8,
    /// Interface.
    pub interface: String,
    /// Its address.
    pub address: String,
    /// Whether it exists, has its carrier, and packets that come by it are received.
    pub up: bool,
    /// Who gives barriers there when no other host is left to answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answerers: Vec<PathAnswerer>,
}

/// Somebody on a path's network who is no host of the cluster, and may be asked for a barrier (SafeTimer §4.1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathAnswerer {
    /// Its address.
    pub address: String,
    /// Whether it answered an echo request of the last half minute.
    pub answers: bool,
}

/// What is known of another host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// Its wire id.
    pub node_id: u32,
    /// Its incarnation.
    pub incarnation: u32,
    /// `alive`, `late`, `unreachable`, `agent-lost`, `silent-host`, `left`, `restarting`.
    pub state: String,
    /// Hosts that hear it, where it is `unreachable` from this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heard_by: Vec<String>,
    /// The timeout towards it now.
    pub timeout_ns: u64,
    /// Paths from it.
    pub paths: Vec<PathStatus>,
    /// Its monitored processes.
    pub apps: Vec<AppStatus>,
    /// What it promised of its fence; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<FencePromise>,
    /// How long ago it reported whom it hears; absent: it has not, in this incarnation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_age_ns: Option<u64>,
    /// Whom it does not hear, as it last reported. Of this host, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unheard: Vec<Unheard>,
    /// What its agent says of itself; absent: nothing yet, or it is of a version that does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
}

/// What an agent says of itself to all others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its version.
    pub version: String,
    /// What fails together with its host, by its configuration; empty: not said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub zone: String,
    /// Groups that it knows: those that its host is a member of, is to be one of, or keeps the log of.
    pub groups: u32,
    /// Those of them that run there.
    pub groups_running: u32,
}

/// A host that another one does not hear.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unheard {
    /// Which host.
    pub host: String,
    /// On these paths.
    pub paths: Vec<u8>,
}

/// One path from another host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Whether it carries heartbeats.
    pub up: bool,
    /// Last number.
    pub last_number: u64,
    /// How long ago it arrived.
    pub age_ns: u64,
    /// Numbers that never arrived.
    pub lost: u64,
    /// The contract on this path.
    pub contract: Contract,
    /// What of the contract's jitter was left over in the worst case of the last window; negative: broken.
    pub margin_ns: i64,
    /// Jitter in the last window: median, p99, p99.9, maximum.
    pub jitter_ns: [u64; 4],
    /// Its heartbeats come by unicast alone: multicast is not delivered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_unicast: bool,
}

/// A monitored process of another host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AppStatus {
    /// Its name.
    pub name: String,
    /// Its number.
    pub app: u32,
    /// `alive`, or the cause of its end.
    pub state: String,
}

/// A watched process of this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WatchStatus {
    /// Its name.
    pub name: String,
    /// Its number.
    pub app: u32,
    /// Its pid.
    pub pid: u32,
    /// Its owner.
    pub uid: u32,
    /// `config`, `operator`, `joined`.
    pub origin: String,
    /// `alive`, `hung`, `pending` (no process is found for it now), or the cause of its end.
    pub state: String,
    /// The user whose watch it is; 0 for the configuration's.
    #[serde(default)]
    pub owner: u32,
    /// Why it is pending; empty otherwise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// How many of its processes have ended.
    #[serde(default)]
    pub ended: u64,
}

/// One line of the event history. Its JSON also has what follows from these fields ([`crate::level`]): `level`, `unique_id`
/// where it has an id, `fenced` and `planned`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct HistoryEvent {
    /// Running number in this host's history.
    pub seq: u64,
    /// Wall clock, nanoseconds since 1970.
    pub wall_ns: u64,
    /// The observer's CLOCK_MONOTONIC when it took note.
    pub at_ns: u64,
    /// Who observed (this host).
    pub observer: String,
    /// In which incarnation; 0 in a line that does not say.
    #[serde(default)]
    pub observer_incarnation: u32,
    /// The verdict's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<VerdictId>,
    /// What happened.
    pub cause: Cause,
    /// How sure.
    pub grade: Grade,
    /// On which host.
    pub node: String,
    /// That host's incarnation.
    pub incarnation: u32,
    /// Which process, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Exit status, signal, path number: as the cause says.
    #[serde(default)]
    pub code: i32,
    /// Confirms an earlier *doomed*.
    #[serde(default)]
    pub confirms: bool,
    /// In words.
    pub text: String,
    /// The target of the maintenance that covers it, if one did when it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<String>,
    /// What it rests on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Box<Evidence>>,
}

/// The piggyback bridge (X6): memory shared by an application and its agent, one message slot ring, written by the application
/// without a system call and read by the lane at each heartbeat.
///
/// ```text
///   0  u32 head   messages written by the application (free running)
///  64  u32 tail   messages taken by the agent (free running)
/// 128  BRIDGE_SLOTS slots of BRIDGE_SLOT bytes: u32 length, then the message
/// PROGRESS  COUNTERS progress counters (B10), 64 bytes each:
///      0  u64 count   grows with every movement
///      8  u64 busy    operations under way; 0: idle, nothing is expected of it
/// ```
pub mod bridge {
    /// Slots in a bridge.
    pub const SLOTS: u32 = 64;
    /// Bytes of a slot.
    pub const SLOT: usize = 1424;
    /// Offset of `head`.
    pub const HEAD: usize = 0;
    /// Offset of `tail`.
    pub const TAIL: usize = 64;
    /// Offset of the first slot.
    pub const DATA: usize = 128;
    /// Bytes of head, tail and slots.
    pub const PIGGYBACKS_LEN: usize = (DATA + SLOTS as usize * SLOT).next_multiple_of(4096);
    /// Offset of the progress counters: a page of their own, whatever the page size, because an application maps it apart.
    pub const PROGRESS: usize = PIGGYBACKS_LEN.next_multiple_of(65536);
    /// Bytes of their page.
    pub const PROGRESS_LEN: usize = 4096;
    /// Progress counters of one process.
    pub const COUNTERS: usize = 16;
    /// Bytes of each: a cache line, so that threads that tick do not slow each other.
    pub const COUNTER: usize = 64;
    /// Offset of `busy` in a counter.
    pub const BUSY: usize = 8;
    /// Bytes of the whole bridge. What is between its parts takes no memory.
    pub const LEN: usize = PROGRESS + PROGRESS_LEN;
    const _: () = assert!(COUNTERS * COUNTER <= PROGRESS_LEN);
    const _: () = assert!(SLOT >= 4 + crate::PIGGYBACK_MAX);
    const _: () = assert!(SLOTS.is_power_of_two());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_documented() {
        let r: Request = serde_json::from_str(r#"{"op":"watch","name":"db","selector":{"port":6379}}"#).unwrap();
        assert_eq!(r, Request::watch("db", Selector::Port(6379)));
        assert_eq!(
            serde_json::to_string(&r).unwrap(),
            r#"{"op":"watch","name":"db","selector":{"port":6379}}"#,
            "as it ever was"
        );
        let r: Request = serde_json::from_str(r#"{"op":"monitor","target":"db@a"}"#).unwrap();
        assert_eq!(r, Request::Monitor { target: "db@a".into(), pbsize: 0, timeout_ns: 0 });
        let e = Reply::Error(Refused { code: ErrorCode::NotFound, what: "no".into() });
        assert_eq!(serde_json::to_string(&e).unwrap(), r#"{"re":"error","code":"not-found","what":"no"}"#);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["", "{}", "[]", r#"{"op":"fly"}"#, r#"{"op":"watch","name":"x","selector":{"port":70000}}"#] {
            assert!(serde_json::from_str::<Request>(bad).is_err(), "{bad}");
        }
    }
}
