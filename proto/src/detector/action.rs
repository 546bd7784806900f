//! What the detector asks its shell to do, and what it refuses.

use fide_wire::PATHS;
use fide_wire::marks::Recent;
use fide_wire::verdict::{Cause, Evidence, Grade, VerdictId};
use std::fmt;

/// A verdict, ready to be published.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Its identity; the sender's for notices, our own (with [`super::INFERRED`] set) for what we inferred.
    pub id: VerdictId,
    /// What happened.
    pub cause: Cause,
    /// How sure.
    pub grade: Grade,
    /// The node it is about (our own for `isolated`, `rejoined`, `observer-paused`).
    pub node: u32,
    /// That node's incarnation.
    pub incarnation: u32,
    /// The process it is about, 0 for the node itself.
    pub app: u32,
    /// Exit status or signal; the path for `path-down` and `path-up`; 0 (joined), 1 (came back), 2 (was given up elsewhere, and renewed itself), 3 (was started again) or 4 (had been given up here, wrongly) for `returned`; the length of
    /// the pause in µs for `observer-paused`; -1 for a process whose end was not told to us; else 0.
    pub code: i32,
    /// It only confirms an earlier *doomed*: not a second failure.
    pub confirms: bool,
    /// When it was given (ns, observer's clock).
    pub at_ns: u64,
    /// Processes of a silent host that were not known to have ended before: `on_failure` is due for each of them.
    pub ended_apps: Vec<u32>,
    /// What it rests on.
    pub evidence: Evidence,
}

/// What the shell must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Publish this.
    Verdict(Box<Verdict>),
    /// Ask that host's kernel on these paths: an ICMP echo and a datagram to the FiDe port. Any answer to either goes to
    /// [`super::Detector::probe_result`].
    Probe {
        /// Which host.
        node: u32,
        /// On which paths (those where our own interface has its carrier, or all if none has).
        paths: [bool; PATHS],
        /// Whether the port matters: a witness, whose agent is heard, is asked by echo alone.
        knock: bool,
        /// Asked of everybody on the network as well, so that the question gets there wherever the switches think that this host is.
        wide: bool,
    },
    /// Send a datagram to the FiDe port of that host on these paths, and nothing else: its kernel
    /// answers where no agent holds the port ([`ProbeResult::AgentAbsent`]).
    Knock {
        /// Which host.
        node: u32,
        /// On which paths.
        paths: [bool; PATHS],
    },
    /// Ask all others for the latest heartbeat of this host that they know of. What they say goes to [`super::Detector::stated`].
    AskOthers {
        /// Which host.
        node: u32,
    },
    /// Refuse everything of this incarnation from now on, and say so in path reports (`CONDEMNED`).
    Condemn {
        /// Which host.
        node: u32,
        /// Which of its incarnations.
        incarnation: u32,
    },
    /// The agent of this host is started again, as it says: its members of groups are gone with it, and so is
    /// what it confirms. Told to nobody, unless it does not come back.
    Restarts {
        /// Which host.
        node: u32,
        /// Which of its incarnations.
        incarnation: u32,
    },
    /// The timeout for silence towards this host moved noticeably (`on_timeout_changed`).
    TimeoutChanged {
        /// Which host.
        node: u32,
        /// The new one (ns), of the slower path.
        timeout_ns: u64,
    },
}

/// What came back from a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The host's kernel answered (an echo reply, or anything its agent sent back).
    KernelAnswered,
    /// The host's kernel said that nothing listens on the FiDe port.
    AgentAbsent,
}

/// What one row of the receive table says of one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathArrival {
    /// The last heartbeat number.
    pub last_number: u64,
    /// Its kernel stamp (observer's CLOCK_MONOTONIC); 0 when none ever came.
    pub last_arrival_ns: u64,
    /// Numbers that never came, cumulative in this incarnation.
    pub lost: u64,
    /// Packets of this sender that were dropped or refused here, cumulative.
    pub drops: u64,
    /// How many numbers ago a heartbeat came by multicast last; the others came by unicast.
    pub since_group: u32,
    /// What the last of them were like; nothing when nobody stamps them while this observer sleeps.
    pub recent: Recent,
}

/// What [`super::Detector::peer_seen`] made of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Known already.
    Known,
    /// Not seen before.
    Joined,
    /// A newer incarnation of a known host: its processes must be announced anew.
    Returned,
}

/// What [`super::Detector::notice`] made of a notice. Both are to be confirmed to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It changed what is known: a verdict was given.
    New,
    /// Nothing new: a copy, or about a process already known to have ended.
    Duplicate,
}

/// Why an input was not accepted. Counted by reason, see [`super::Detector::refused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// No announcement of this node came yet.
    UnknownPeer,
    /// Of an incarnation that is over.
    OldIncarnation,
    /// Of an incarnation that has not announced itself yet; it will be repeated.
    NotAnnounced,
    /// Of an incarnation that was cut off by a verdict.
    Condemned,
    /// Of an incarnation that left.
    Left,
    /// All places for hosts are taken ([`super::MAX_PEERS`]); [`super::Detector::forget`] frees one.
    TooManyPeers,
    /// All places for processes of this host are taken ([`super::MAX_APPS`]).
    TooManyApps,
    /// Another name hashes to the same node id.
    NameClash,
    /// About ourselves.
    OwnNode,
    /// A contract with no period, a notice with an impossible number, cause or path.
    Malformed,
}

impl Refused {
    /// Every reason.
    pub const ALL: [Refused; 10] = [
        Refused::UnknownPeer,
        Refused::OldIncarnation,
        Refused::NotAnnounced,
        Refused::Condemned,
        Refused::Left,
        Refused::TooManyPeers,
        Refused::TooManyApps,
        Refused::NameClash,
        Refused::OwnNode,
        Refused::Malformed,
    ];

    /// The name used in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Refused::UnknownPeer => "unknown-peer",
            Refused::OldIncarnation => "old-incarnation",
            Refused::NotAnnounced => "not-announced",
            Refused::Condemned => "condemned",
            Refused::Left => "left",
            Refused::TooManyPeers => "too-many-peers",
            Refused::TooManyApps => "too-many-apps",
            Refused::NameClash => "name-clash",
            Refused::OwnNode => "own-node",
            Refused::Malformed => "malformed",
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::UnknownPeer => "this node has not announced itself",
            Refused::OldIncarnation => "this incarnation is over, a newer one is known",
            Refused::NotAnnounced => "this incarnation has not announced itself yet",
            Refused::Condemned => "this incarnation was cut off by a verdict and must start over",
            Refused::Left => "this incarnation left",
            Refused::TooManyPeers => "no room for another host: at most 256 are tracked",
            Refused::TooManyApps => "no room for another process: at most 4096 per host are tracked",
            Refused::NameClash => "another host's name has the same node id: rename one of them",
            Refused::OwnNode => "this is our own node id",
            Refused::Malformed => "impossible values",
        })
    }
}

impl std::error::Error for Refused {}
