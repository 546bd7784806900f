//! One host as seen by this observer: two paths, a state, its processes, the questions put to its kernel.

use super::action::PathArrival;
use super::apps::Apps;
use super::config::Config;
use super::inbox::Inbox;
use super::state::State;
use fide_wire::PATHS;
use fide_wire::verdict::Contract;

/// Observers remembered as having reported the same silence.
const REPORTERS: usize = 16;

/// One path from a host.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub contract: Contract,
    pub last: PathArrival,
    /// Nothing before this moment is held against the path: first sight, a tighter contract, our own carrier back.
    pub from_ns: u64,
    /// When the other path first brought a heartbeat that this path did not.
    pub behind_since_ns: Option<u64>,
    /// A verdict said that it carries nothing.
    pub down: bool,
    /// Consecutive heartbeats since it was last stale.
    pub fresh: u32,
    pub kernel_answered: bool,
    pub agent_absent: bool,
    /// `last.drops` when the last heartbeat came.
    pub drops_mark: u64,
}

impl Path {
    pub fn new(contract: Contract, now_ns: u64) -> Self {
        Self {
            contract,
            last: PathArrival::default(),
            from_ns: now_ns,
            behind_since_ns: None,
            down: false,
            fresh: 0,
            kernel_answered: false,
            agent_absent: false,
            drops_mark: 0,
        }
    }

    /// The last moment at which the next heartbeat may still be missing: from the last arrival or, when later, from the moment
    /// since which we may judge at all.
    pub fn deadline_ns(&self, judge_from_ns: u64) -> u64 {
        self.last.last_arrival_ns.max(self.from_ns).max(judge_from_ns).saturating_add(self.contract.timeout_ns())
    }

    /// By how much the copies of one heartbeat may differ in their arrival: what the timeout has above the period.
    pub fn slack_ns(&self) -> u64 {
        self.contract.timeout_ns() - self.contract.period_ns
    }
}

/// The questions put to a host's kernel. One series runs from the first question that stays unanswered.
#[derive(Clone, Debug, Default)]
pub(super) struct Probing {
    /// When the last question was asked; 0 when none was in this silence.
    pub sent_ns: u64,
    /// When the next one is due.
    pub next_ns: u64,
    /// When the last answer came; 0 when none did in this silence.
    pub answered_ns: u64,
    /// When the first question of the series was asked; 0 before it was.
    pub unanswered_since_ns: u64,
    /// Questions of that series whose time is over.
    pub unanswered: u32,
    /// When, in that series, another host was first heard: then we could be reached. 0 when none was.
    pub witnessed_ns: u64,
    /// When the first question after that was asked; 0 when none was.
    pub asked_again_ns: u64,
    /// Whether such a question stayed unanswered.
    pub still_unanswered: bool,
}

impl Probing {
    /// The next question, due at `now_ns`, begins a new series.
    pub fn restart(&mut self, now_ns: u64) {
        self.next_ns = now_ns;
        self.new_series();
    }

    /// An answer came.
    pub fn answered(&mut self, now_ns: u64) {
        self.answered_ns = self.answered_ns.max(now_ns);
        self.new_series();
    }

    fn new_series(&mut self) {
        self.unanswered = 0;
        self.unanswered_since_ns = 0;
        self.witnessed_ns = 0;
        self.asked_again_ns = 0;
        self.still_unanswered = false;
    }

    /// Another host was heard at `sign_ns`, noticed now. It is a witness if that was after the first question of the series.
    pub fn witness(&mut self, sign_ns: u64, now_ns: u64) {
        if self.witnessed_ns == 0 && self.unanswered_since_ns != 0 && sign_ns > self.unanswered_since_ns {
            self.witnessed_ns = now_ns;
        }
    }

    /// At `next_ns`: closes the last question.
    ///
    /// A question counts as unanswered only if we were there to hear the answer: when this tick comes later than one more interval after
    /// it was due, we slept, and the question is put again. After `patience_ns` it counts anyway: an observer that is always late must
    /// not wait for ever.
    pub fn close_round(&mut self, now_ns: u64, interval_ns: u64, patience_ns: u64) {
        if self.unanswered_since_ns == 0 {
            return; // nothing asked yet in this series
        }
        let punctual = now_ns.saturating_sub(self.next_ns) <= interval_ns;
        if punctual || now_ns.saturating_sub(self.unanswered_since_ns) >= patience_ns {
            self.unanswered = self.unanswered.saturating_add(1);
            self.still_unanswered |= self.asked_again_ns != 0 && self.sent_ns >= self.asked_again_ns;
        }
    }

    /// A question is asked now, the next one `interval_ns` later.
    pub fn sent(&mut self, now_ns: u64, interval_ns: u64) {
        if self.unanswered_since_ns == 0 {
            self.unanswered_since_ns = now_ns;
        }
        if self.witnessed_ns != 0 && self.asked_again_ns == 0 {
            self.asked_again_ns = now_ns;
        }
        self.sent_ns = now_ns;
        self.next_ns = now_ns.saturating_add(interval_ns.max(1));
    }
}

/// One host.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub node: u32,
    pub name: String,
    pub incarnation: u32,
    pub state: State,
    pub paths: [Path; PATHS],
    pub apps: Apps,
    pub inbox: Inbox,
    pub probing: Probing,
    /// The newest arrival when it became late.
    pub late_mark_ns: u64,
    /// Other signs of life than heartbeats: its announcement, a notice.
    pub heard_ns: u64,
    /// The timeout last told to the application.
    pub told_timeout_ns: u64,
    /// The observer's drop counter when the last heartbeat came.
    pub drops_mark: u64,
    /// When a drain barrier last proved the rings empty.
    pub drained_ns: Option<u64>,
    /// Who else reported its silence, and when.
    pub reporters: Vec<(String, u64)>,
}

impl Peer {
    pub fn new(node: u32, name: &str, incarnation: u32, contracts: &[Contract; PATHS], drops: u64, now_ns: u64) -> Self {
        let mut peer = Self {
            node,
            name: name.to_owned(),
            incarnation,
            state: State::Alive,
            paths: contracts.map(|c| Path::new(c, now_ns)),
            apps: Apps::default(),
            inbox: Inbox::new(),
            probing: Probing::default(),
            late_mark_ns: 0,
            heard_ns: now_ns,
            told_timeout_ns: 0,
            drops_mark: drops,
            drained_ns: None,
            reporters: Vec::new(),
        };
        peer.told_timeout_ns = peer.timeout_ns();
        peer
    }

    /// The timeout for silence: that of the slower path, since both must be stale.
    pub fn timeout_ns(&self) -> u64 {
        self.paths.iter().map(|p| p.contract.timeout_ns()).max().unwrap_or(0)
    }

    /// The newest heartbeat on any path.
    pub fn last_arrival_ns(&self) -> u64 {
        self.paths.iter().map(|p| p.last.last_arrival_ns).max().unwrap_or(0)
    }

    /// The newest sign of life of the host, of whatever kind: what makes it a witness that we can be reached.
    pub fn sign_of_life_ns(&self) -> u64 {
        self.last_arrival_ns().max(self.heard_ns).max(self.probing.answered_ns)
    }

    /// When the host becomes late if nothing comes.
    pub fn late_at_ns(&self, judge_from_ns: u64) -> u64 {
        self.paths.iter().map(|p| p.deadline_ns(judge_from_ns)).max().unwrap_or(u64::MAX)
    }

    /// Since when nothing has come that we could have heard.
    pub fn silent_since_ns(&self, judge_from_ns: u64) -> u64 {
        self.paths.iter().map(|p| p.last.last_arrival_ns.max(p.from_ns)).max().unwrap_or(0).max(judge_from_ns)
    }

    pub fn is_stale(&self, judge_from_ns: u64, now_ns: u64) -> bool {
        now_ns > self.late_at_ns(judge_from_ns)
    }

    /// The longest round trip of a question by contract. δmax counts once: a kernel answers without waiting for any process, so that only our
    /// own side can be late.
    pub fn round_trip_ns(&self) -> u64 {
        let worst = |c: &Contract| c.lambda_min_ns.saturating_mul(2).saturating_add(c.delta_max_ns);
        self.paths.iter().map(|p| worst(&p.contract)).max().unwrap_or(0)
    }

    /// How long nothing may answer.
    pub fn probe_wait_ns(&self, config: &Config) -> u64 {
        // A period at least: who beats slowly has many neighbours or little to lose, and the questions share the road with their heartbeats.
        let period_ns = self.paths.iter().map(|p| p.contract.period_ns).max().unwrap_or(0);
        let derived = || self.round_trip_ns().max(period_ns).max(1_000_000).min(config.probe_wait_max_ns);
        config.probe_wait_ns.unwrap_or_else(derived)
    }

    /// Whether the silence has a witness: another host was heard since the first unanswered question, **and** a question asked after
    /// that has stayed unanswered for a whole round trip. The second half matters when our own connection comes back: the first
    /// host heard then proves that we can be reached now, not that we could be while the others did not answer.
    pub fn is_witnessed(&self, config: &Config, now_ns: u64) -> bool {
        let patience = self.round_trip_ns().min(config.probe_wait_max_ns);
        self.probing.still_unanswered && now_ns.saturating_sub(self.probing.asked_again_ns) >= patience
    }

    /// Time between two questions while nothing answers.
    pub fn probe_interval_ns(&self, config: &Config) -> u64 {
        (self.probe_wait_ns(config) / u64::from(config.probe_rounds.max(1))).max(1)
    }

    /// Whether enough questions stayed unanswered for long enough, we being there and permitted to judge.
    pub fn is_exhausted(&self, config: &Config, judge_from_ns: u64, now_ns: u64) -> bool {
        let silent = match self.state {
            State::Late => self.is_stale(judge_from_ns, now_ns),
            State::AgentLost => now_ns > judge_from_ns.saturating_add(self.timeout_ns()),
            State::Alive | State::Silent | State::Left => false,
        };
        silent
            && self.probing.unanswered >= config.probe_rounds.max(1)
            && now_ns.saturating_sub(self.probing.unanswered_since_ns) >= self.probe_wait_ns(config)
    }

    /// Takes a row of the receive table. Rows may be the same as before; they never go back.
    pub fn arrivals(&mut self, rows: &[PathArrival; PATHS], drops: u64) {
        let mut came = false;
        for (path, row) in self.paths.iter_mut().zip(rows) {
            if row.last_arrival_ns <= path.last.last_arrival_ns {
                path.last.lost = path.last.lost.max(row.lost);
                path.last.drops = path.last.drops.max(row.drops);
                continue;
            }
            let came_now = row.last_number.saturating_sub(path.last.last_number).max(1);
            path.fresh = if row.lost > path.last.lost {
                1
            } else {
                path.fresh.saturating_add(u32::try_from(came_now).unwrap_or(u32::MAX))
            };
            path.drops_mark = row.drops;
            path.last = *row;
            path.behind_since_ns = None;
            came = true;
        }
        if came {
            self.drops_mark = drops;
        }
    }

    /// Notes for each path whether the other one is ahead of it: by more than the two copies of one heartbeat may differ, so that a copy on
    /// this path was certainly sent and is missing.
    pub fn compare_paths(&mut self, judge_from_ns: u64) {
        let newest = self.last_arrival_ns();
        for path in &mut self.paths {
            let base = path.last.last_arrival_ns.max(path.from_ns).max(judge_from_ns);
            if path.behind_since_ns.is_none() && newest > base.saturating_add(path.slack_ns()) {
                path.behind_since_ns = Some(newest);
            }
        }
    }

    /// Forgets what was learned in the silence that is over.
    pub fn end_silence(&mut self) {
        self.probing = Probing::default();
        self.reporters.clear();
        for path in &mut self.paths {
            path.kernel_answered = false;
            path.agent_absent = false;
        }
    }

    pub fn reported_by(&mut self, name: &str, now_ns: u64) {
        if let Some(known) = self.reporters.iter_mut().find(|(n, _)| n == name) {
            known.1 = now_ns;
        } else if self.reporters.len() < REPORTERS {
            self.reporters.push((name.to_owned(), now_ns));
        }
    }

    pub fn invariants(&self) {
        self.apps.invariants();
        debug_assert!(self.reporters.len() <= REPORTERS);
        for path in &self.paths {
            debug_assert!(path.contract.period_ns > 0, "a contract without a period has no timeout");
        }
        debug_assert!(self.state != State::Alive || self.probing.sent_ns == 0, "who is alive is not questioned");
    }
}
