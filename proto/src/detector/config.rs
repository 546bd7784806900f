//! What can be set, and why the defaults are what they are.

/// Settings of a [`super::Detector`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This observer's own node id.
    pub self_node: u32,
    /// This observer's own incarnation.
    pub self_incarnation: u32,
    /// How long an agent may be silent while its host's kernel answers, before it is *agent lost* (ns).
    ///
    /// Long against every scheduling delay, because a stuck agent harms nobody: crashes of processes and of the host are
    /// still found by other means, and the verdict forces the agent to start over.
    pub agent_timeout_ns: u64,
    /// How long nothing may answer on any path before a late host is *silent* (ns).
    /// `None`: max(1 ms, HB, 2·λmin + δmax) of the slower path, at most [`Config::probe_wait_max_ns`].
    pub probe_wait_ns: Option<u64>,
    /// Cap of the derived probe wait (ns), so that a badly calibrated path does not suspend detection.
    pub probe_wait_max_ns: u64,
    /// Questions that must stay unanswered in that time, one after the other: one lost echo is not a dead host.
    pub probe_rounds: u32,
    /// How long a barrier is waited for before silence is judged without one (ns). `None`: as long as nobody may answer. 0: the shell has no
    /// barriers to offer ([`super::Detector::drained`]).
    pub drain_wait_ns: Option<u64>,
    /// How often the kernel of a late host that answers is asked again (ns).
    pub late_probe_ns: u64,
    /// How often the kernel of a host whose agent is lost is asked again (ns).
    pub agent_lost_probe_ns: u64,
    /// Consecutive heartbeats, none lost between them, before earlier losses are forgotten. A path that was down must carry for
    /// [`Config::agent_timeout_ns`] without a loss before it is up: one that loses every tenth packet does not alternate.
    pub path_up_after: u32,
    /// Losses that come to light on one path, none on the other, before that path is down: a path that loses every other packet is down
    /// and stays down, although it carries something.
    pub path_down_after: u32,
    /// A tick later than this many periods (and later than the smallest timeout) after the one before is a pause of our own.
    pub pause_periods: u32,
    /// How long a path on which answers went astray is not relied on to bring any (ns).
    pub diversion_ns: u64,
    /// How long a host that has answered a question is taken for one that answers (ns): what it sends unasked is no witness's word meanwhile.
    pub answers_ns: u64,
    /// A timeout that moved by more than this is told to the application (percent).
    pub timeout_change_percent: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            self_node: 0,
            self_incarnation: 0,
            agent_timeout_ns: 1_000_000_000,
            probe_wait_ns: None,
            probe_wait_max_ns: 50_000_000,
            probe_rounds: 3,
            drain_wait_ns: None,
            late_probe_ns: 10_000_000,
            agent_lost_probe_ns: 100_000_000,
            path_up_after: 10,
            path_down_after: 100,
            pause_periods: 3,
            diversion_ns: 10_000_000_000,
            answers_ns: 60_000_000_000,
            timeout_change_percent: 10,
        }
    }
}

impl Config {
    /// Defaults for this observer.
    #[must_use]
    pub fn new(self_node: u32, self_incarnation: u32) -> Self {
        Self { self_node, self_incarnation, ..Self::default() }
    }
}
