//! One host as seen by this observer: two paths, a state, its processes, the questions put to its kernel.

use super::action::PathArrival;
use super::apps::Apps;
use super::config::Config;
use super::others::{Beat, Others};
use super::state::State;
use fide_wire::PATHS;
use fide_wire::packet::Notice;
use fide_wire::verdict::{Confirmers, Contract, FenceMode, FencePromise};

/// Who is not heard for this many timeouts after another was judged silent fell silent together with it.
const TOGETHER_TIMEOUTS: u64 = 2;

/// After this many times the questions that a verdict needs, they are put at leisure.
const PATIENT_SERIES: u32 = 20;

/// So many times as long nothing may answer while our own side loses packets.
const LOSSY_WAITS: u64 = 100;

/// Questions of which it is remembered whether another host answered for them: more than are asked within a round trip and a timeout.
const REMEMBERED: usize = 16;

/// Of a long series of questions so many go to their host alone, then one to everybody.
const WIDE_EVERY: u32 = 8;

/// Rows of two paths are read one after the other, and what lies in a queue comes at once: heartbeats that lag by less than this are no
/// sign of a delay.
const HELD_UP_NS: u64 = 20_000_000;

/// Observers remembered as having reported the same silence.
const REPORTERS: usize = 16;

/// One path from a host.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub contract: Contract,
    pub last: PathArrival,
    /// What had reached our interface before this moment is noted: a barrier came out of the queue behind it.
    pub drained_ns: u64,
    /// The same for the queue by which its kernel's answers come; 0: that is not known.
    pub answers_drained_ns: u64,
    /// Nothing before this moment is held against the path: first sight, a tighter contract, our own carrier back.
    pub from_ns: u64,
    /// When the other path first brought a heartbeat that this path did not.
    pub behind_since_ns: Option<u64>,
    /// How often a gap in the numbers came to light since the path last carried [`Config::path_up_after`] heartbeats in a row.
    pub gaps: u32,
    /// A verdict said that it loses what another carries.
    pub down: bool,
    /// Consecutive heartbeats, none lost between them, since it was last stale.
    pub fresh: u32,
    /// When the first of these came.
    pub fresh_since_ns: u64,
    /// A question was put on this path since it fell silent.
    pub asked: bool,
    pub kernel_answered: bool,
    pub agent_absent: bool,
    /// `last.drops` when the last heartbeat came.
    pub drops_mark: u64,
    /// The first barrier asked for since this observer woke up.
    pub barrier_ns: u64,
    /// When the latest question that was answered on this path was asked; 0 when none was in this life.
    pub answered_ns: u64,
    /// When the latest answer came on this path, to whatever question; 0 when none has.
    pub came_ns: u64,
    /// When it was asked last without a doubt, to know whether it answers; 0 when it was not.
    pub tried_ns: u64,
    /// How many of these questions were in vain lately, see [`Peer::tried`].
    pub in_vain: u8,
    /// When it was last known that what is for this host, or what it answers, may go astray on this path; 0 when it never was.
    pub diverted_ns: u64,
}

/// Each question that stays unanswered while its heartbeats come counts so much, each answer one less.
const IN_VAIN: u8 = 2;
/// And so much is a diversion: one lost packet is none.
const IN_VAIN_LIMIT: u8 = 4;

impl Path {
    pub fn new(contract: Contract, now_ns: u64) -> Self {
        Self {
            contract,
            last: PathArrival::default(),
            drained_ns: 0,
            answers_drained_ns: 0,
            from_ns: now_ns,
            behind_since_ns: None,
            gaps: 0,
            down: false,
            fresh: 0,
            fresh_since_ns: 0,
            asked: false,
            kernel_answered: false,
            agent_absent: false,
            drops_mark: 0,
            barrier_ns: 0,
            answered_ns: 0,
            came_ns: 0,
            tried_ns: 0,
            in_vain: 0,
            diverted_ns: 0,
        }
    }

    /// Whether this host is known to answer questions on this path.
    pub fn answers(&self, config: &Config, now_ns: u64) -> bool {
        self.answered_ns != 0 && now_ns.saturating_sub(self.answered_ns) <= config.answers_ns
    }

    /// Whether what is asked or answered on this path may go astray.
    pub fn is_diverted(&self, config: &Config, now_ns: u64) -> bool {
        self.diverted_ns != 0 && now_ns.saturating_sub(self.diverted_ns) <= config.diversion_ns
    }

    /// The time in which this host's heartbeats show that nothing was lost to us on this path, while we slept: since when, and how much of it they leave open.
    /// `None` when they show nothing: one is missing, or none has come behind the first barrier since `awake_since_ns`, behind which all that came
    /// before must have been.
    ///
    /// What came of a host that slept as we did (the same machine below us) covers no time, so for that time it shows nothing.
    pub fn shows(&self, awake_since_ns: u64) -> Option<(u64, u64)> {
        let recent = self.last.recent;
        let is_whole = recent.from_ns != 0 && recent.lost == 0;
        let is_behind = self.barrier_ns >= awake_since_ns && self.last.last_arrival_ns > self.barrier_ns;
        let covered_ns = recent.came.saturating_mul(self.contract.period_ns);
        let open_ns = self.last.last_arrival_ns.saturating_sub(recent.from_ns).saturating_sub(covered_ns);
        (is_whole && is_behind).then_some((recent.from_ns, open_ns))
    }

    /// The last moment at which the next heartbeat may still be missing: from the last arrival or, when later, from the moment
    /// since which we may judge at all.
    pub fn deadline_ns(&self, judge_from_ns: u64) -> u64 {
        self.silent_since_ns(judge_from_ns).saturating_add(self.contract.timeout_ns())
    }

    /// Since when it has brought nothing that we could have heard.
    pub fn silent_since_ns(&self, judge_from_ns: u64) -> u64 {
        self.last.last_arrival_ns.max(self.from_ns).max(judge_from_ns)
    }

    /// When it is down if nothing comes: the other one has carried alone for as long as a stuck agent is given.
    pub fn down_at_ns(&self, config: &Config) -> u64 {
        self.behind_since_ns.map_or(u64::MAX, |since| since.saturating_add(config.agent_timeout_ns))
    }

    /// Whether the heartbeat of this number comes later than a copy may when that of number `newest` has come on the other path.
    fn was_held_up(&self, number: u64, newest: u64) -> bool {
        newest.saturating_sub(number).saturating_mul(self.contract.period_ns) > self.slack_ns().saturating_add(HELD_UP_NS)
    }

    /// By how much the copies of one heartbeat may differ in their arrival: what the timeout has above the period.
    pub fn slack_ns(&self) -> u64 {
        self.contract.timeout_ns() - self.contract.period_ns
    }
}

/// So long after its first answer the kernel of a late host may still be taking its agent down; and
/// how often its port is asked meanwhile.
const DIES_NS: u64 = 30_000_000;
const KNOCK_NS: u64 = 2_000_000;

/// The questions put to a host's kernel. One series runs from the first question that stays unanswered.
#[derive(Clone, Debug, Default)]
pub(super) struct Probing {
    /// When the last question was asked; 0 when none was in this silence.
    pub sent_ns: u64,
    /// When the next one is due.
    pub next_ns: u64,
    /// When the last answer came; 0 when none did in this silence.
    pub answered_ns: u64,
    /// Since when answers have come without a long gap; 0 when none did in this silence.
    pub answering_since_ns: u64,
    /// One of them was an echo: the host can be asked without a question to its agent's port, of
    /// which kernels answer a few only (six, then one a second).
    pub echoes: bool,
    /// When the port was asked alone, last.
    pub knocked_ns: u64,
    /// When the first question of the series was asked; 0 before it was.
    pub unanswered_since_ns: u64,
    /// Questions of that series whose time is over.
    pub unanswered: u32,
    /// Since when witnesses count: the first question of the series, or later when what they said has gone stale.
    pub witnesses_from_ns: u64,
    /// When it was noticed that another host had reached us since then. 0 when none did.
    pub witnessed_ns: u64,
    /// When that was, at the earliest.
    pub first_reached_ns: u64,
    /// When the first question after that was asked; 0 when none was.
    pub asked_again_ns: u64,
    /// A moment at which that question had certainly left: the next tick. 0 before it.
    pub asked_again_by_ns: u64,
    /// Whether such a question stayed unanswered.
    pub still_unanswered: bool,
    /// When it was noticed that another host had reached us after the answer to that question was due. 0 when none did.
    pub reached_since_ns: u64,
    /// Questions of the series, and when the last of them were asked.
    pub asked: u32,
    pub asked_ns: [u64; REMEMBERED],
    /// Which of these another host has answered for, and of how many of the series one did.
    pub shown: [bool; REMEMBERED],
    pub shown_count: u32,
}

/// What the words of a witness are measured by.
#[derive(Clone, Copy, Debug)]
pub(super) struct WitnessLimits {
    /// How long an answer may take.
    pub round_trip_ns: u64,
    /// How far apart the two moments may be between which a question stayed unanswered: a longer gap has room for an outage of our own.
    pub apart_ns: u64,
    /// How long after the second moment the verdict may come.
    pub stale_ns: u64,
}

impl Probing {
    /// The next question, due at `now_ns`, begins a new series.
    pub fn restart(&mut self, now_ns: u64) {
        self.next_ns = now_ns;
        self.new_series();
    }

    /// An answer came. After more than `gap_ns` without one it is the first of a row.
    pub fn answered(&mut self, now_ns: u64, gap_ns: u64) {
        if self.answered_ns == 0 || now_ns.saturating_sub(self.answered_ns) > gap_ns {
            self.answering_since_ns = now_ns;
        }
        self.answered_ns = self.answered_ns.max(now_ns);
        self.new_series();
    }

    fn new_series(&mut self) {
        (self.asked, self.shown_count) = (0, 0);
        self.unanswered = 0;
        self.unanswered_since_ns = 0;
        self.new_witnesses(0);
    }

    fn new_witnesses(&mut self, from_ns: u64) {
        self.witnesses_from_ns = from_ns;
        self.witnessed_ns = 0;
        self.first_reached_ns = 0;
        self.asked_again_ns = 0;
        self.asked_again_by_ns = 0;
        self.still_unanswered = false;
        self.reached_since_ns = 0;
    }

    /// Another host certainly reached us at some moment after `reached_ns`; noticed now. The first time it must have been after the first
    /// question, the second time when the answer to a question asked after that was due (`limits.round_trip_ns`). Two moments too far
    /// apart frame nothing, and what led to no verdict goes stale: then it begins anew.
    pub fn witness(&mut self, reached_ns: u64, limits: &WitnessLimits, now_ns: u64) {
        if self.unanswered_since_ns == 0 {
            return;
        }
        self.show(reached_ns);
        if self.reached_since_ns != 0 && now_ns.saturating_sub(self.reached_since_ns) > limits.stale_ns {
            self.new_witnesses(now_ns);
        }
        if self.asked_again_ns != 0 && self.asked_again_ns < now_ns && self.asked_again_by_ns == 0 {
            self.asked_again_by_ns = now_ns;
        }
        let due = match self.asked_again_by_ns {
            0 => u64::MAX,
            by => by.saturating_add(limits.round_trip_ns),
        };
        let framed = reached_ns >= due && reached_ns - self.first_reached_ns <= limits.apart_ns;
        if self.witnessed_ns == 0 && reached_ns >= self.witnesses_from_ns || reached_ns >= due && !framed {
            self.new_witnesses(self.witnesses_from_ns);
            self.witnessed_ns = now_ns;
            self.first_reached_ns = reached_ns;
        } else if framed && self.reached_since_ns == 0 {
            self.reached_since_ns = now_ns;
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
            self.witnesses_from_ns = now_ns;
        }
        if self.witnessed_ns != 0 && self.asked_again_ns == 0 {
            self.asked_again_ns = now_ns;
        }
        self.sent_ns = now_ns;
        self.next_ns = now_ns.saturating_add(interval_ns.max(1));
        let place = self.asked as usize % REMEMBERED;
        (self.asked_ns[place], self.shown[place]) = (now_ns, false);
        self.asked = self.asked.saturating_add(1);
    }

    /// Another host reached us between two questions, or after the last: it shows that the first of them could have been answered.
    fn show(&mut self, reached_ns: u64) {
        let remembered = (self.asked as usize).min(REMEMBERED);
        for back in 0..remembered {
            let place = (self.asked as usize - 1 - back) % REMEMBERED;
            if self.asked_ns[place] <= reached_ns {
                self.shown_count += u32::from(!std::mem::replace(&mut self.shown[place], true));
                return;
            }
        }
    }

    /// A host that answers is a witness at the moments of its questions only. Where they are put at leisure, two
    /// such moments never frame a question closely enough: once the first is known, the next question is due
    /// `soon_ns` later, and the one after that when a witness's answer to it completes the frame.
    pub fn hurry(&mut self, soon_ns: u64, round_trip_ns: u64) {
        if self.witnessed_ns == 0 || self.reached_since_ns != 0 {
            return;
        }
        let at_ns = match (self.asked_again_ns, self.asked_again_by_ns) {
            (0, _) => self.witnessed_ns.saturating_add(soon_ns),
            (again, by) if by != 0 && self.sent_ns == again => by.saturating_add(round_trip_ns),
            _ => return, // that one was asked, too
        };
        self.next_ns = self.next_ns.min(at_ns);
    }

    /// Whether the next question is asked of everybody: the second and the third of a series, which so do not rest on what switches have learned, and then now
    /// and then, for everybody's processors have to do with it.
    pub fn is_next_wide(&self) -> bool {
        matches!(self.asked, 1 | 2) || (self.asked != 0 && self.asked.is_multiple_of(WIDE_EVERY))
    }

    /// When the port of a host whose kernel has just begun to answer is asked alone: a killed agent
    /// holds it until the kernel has taken the process down, some milliseconds later.
    pub fn knock_at_ns(&self) -> Option<u64> {
        let at_ns = self.sent_ns.max(self.knocked_ns).saturating_add(KNOCK_NS);
        let until_ns = self.answering_since_ns.saturating_add(DIES_NS);
        (self.answered_ns > 0 && at_ns < until_ns && at_ns < self.next_ns).then_some(at_ns)
    }

    /// Whether the last question was answered and none before it stays unanswered.
    pub fn is_settled(&self) -> bool {
        self.unanswered == 0 && self.sent_ns != 0 && self.answered_ns >= self.sent_ns
    }

    /// Whether enough questions stayed unanswered for long enough.
    pub fn is_unanswered(&self, config: &Config, wait_ns: u64, now_ns: u64) -> bool {
        self.unanswered >= config.probe_rounds.max(1) && now_ns.saturating_sub(self.unanswered_since_ns) >= wait_ns
    }

    /// Whether that has a witness: a question that stayed unanswered lies between two moments at which another host reached us, the
    /// second of them after the answer was due. The first half matters when our own connection comes back: whom we hear then proves
    /// that we can be reached now, not that we could be while the others did not answer. The second half matters when it is cut:
    /// whom we heard just before proves nothing of answers that were still to come. And since between the two there is room for a short outage of our
    /// own, as many questions as a verdict needs must each have been answered for by another host.
    pub fn is_witnessed(&self, config: &Config) -> bool {
        self.still_unanswered && self.reached_since_ns != 0 && self.shown_count >= config.probe_rounds.max(1)
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
    pub probing: Probing,
    /// The newest arrival when it became late.
    pub late_mark_ns: u64,
    /// Other signs of life than heartbeats: its announcement, a notice.
    pub heard_ns: u64,
    /// What those and its answers prove, by path, see [`Peer::reached_ns`].
    pub reached_ns: [u64; PATHS],
    /// When it was last asked as a witness.
    pub asked_as_witness_ns: u64,
    /// When it was judged silent.
    pub silent_ns: u64,
    /// The timeout last told to the application.
    pub told_timeout_ns: u64,
    /// The observer's drop counter when the last heartbeat came.
    pub drops_mark: u64,
    /// Since when it is overdue, or would be if we had not slept, and a barrier is waited for; it is alive still.
    pub draining_since_ns: Option<u64>,
    /// Silence before this is not held against it: when we joined, woke up, or rejoined.
    pub judge_from_ns: u64,
    /// What that was before we slept, until it is known whether anything was missed ([`super`], "What a pause costs"); else the same.
    pub doubt_from_ns: u64,
    /// Until when we were awake before the first pause that is in doubt.
    pub slept_from_ns: u64,
    /// When we joined or rejoined: what came before may have been confirmed by us, and we do not know it.
    pub joined_ns: u64,
    /// Who else reported its silence, and when.
    pub reporters: Vec<(String, u64)>,
    /// When a heartbeat of a later incarnation of it came last, which it has not announced here yet.
    pub renewed_ns: u64,
    /// What other observers hear of it in this silence.
    pub others: Others,
    /// Whether it reported that it hears this host, by path.
    pub hears_us: [bool; PATHS],
    /// What it promised of its fence, in this life.
    pub fence: Option<FencePromise>,
    /// The notice that it is started again, and until when that may take.
    pub restart: Option<Restart>,
}

/// What an agent said that is started again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restart {
    pub notice: Notice,
    pub came: NoticeCame,
    pub until_ns: u64,
}

/// How a notice came.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoticeCame {
    pub sent_ns: u64,
    pub received_ns: u64,
    pub path: u8,
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
            probing: Probing::default(),
            late_mark_ns: 0,
            heard_ns: now_ns,
            reached_ns: [0; PATHS],
            asked_as_witness_ns: 0,
            silent_ns: 0,
            told_timeout_ns: 0,
            drops_mark: drops,
            draining_since_ns: None,
            judge_from_ns: 0,
            doubt_from_ns: 0,
            slept_from_ns: 0,
            joined_ns: 0,
            reporters: Vec::new(),
            renewed_ns: 0,
            others: Others::default(),
            hears_us: [true; PATHS],
            fence: None,
            restart: None,
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

    /// The latest heartbeat that was received here.
    pub fn last_beat(&self) -> Beat {
        (self.incarnation, self.paths.iter().map(|p| p.last.last_number).max().unwrap_or(0))
    }

    /// The newest sign of life of the host, of whatever kind.
    pub fn sign_of_life_ns(&self) -> u64 {
        self.last_arrival_ns().max(self.heard_ns).max(self.probing.answered_ns)
    }

    /// The latest moment after which it certainly reached us on this path: what makes it a witness.
    ///
    /// An answer was sent after its question. What comes unasked may have waited before it was stamped, on the wire or in this kernel,
    /// for as long as the contract allows or the contract is broken. And it comes by multicast: of a host that answers questions it does not show that answers
    /// get here.
    pub fn reached_ns(&self, path: usize, config: &Config, now_ns: u64) -> u64 {
        let p = &self.paths[path];
        if p.answers(config, now_ns) { p.answered_ns } else { self.reached_unasked_ns(path) }
    }

    /// The same by whatever came.
    pub fn reached_unasked_ns(&self, path: usize) -> u64 {
        let p = &self.paths[path];
        self.reached_ns[path].max(p.answered_ns).max(p.last.last_arrival_ns.saturating_sub(self.timeout_ns()))
    }

    /// It is asked on a path without a doubt, now. Whether the last such questions, as it turns out, went astray or their answers did: they stayed
    /// unanswered, and what it sent after the answers were due has come. `excused_ns`: when this host last paused, or lost something itself. Since
    /// then, and where an answer to an earlier question has come meanwhile, an answer may only be late: that shows nothing.
    pub fn tried(&mut self, path: usize, excused_ns: u64, now_ns: u64) -> bool {
        let due_ns = self.timeout_ns();
        let p = &mut self.paths[path];
        let before_ns = std::mem::replace(&mut p.tried_ns, now_ns);
        if before_ns == 0 || p.answered_ns == 0 {
            return false; // it never answered: ICMP is filtered, as far as we know
        }
        if self.fence.is_some_and(|promise| promise.host) {
            return false; // its fence may be shut, which lets nothing but its heartbeats through
        }
        if p.answered_ns >= before_ns {
            p.in_vain = p.in_vain.saturating_sub(1);
        } else if excused_ns.max(p.came_ns) < before_ns && p.last.last_arrival_ns > before_ns.saturating_add(due_ns) {
            p.in_vain = (p.in_vain + IN_VAIN).min(2 * IN_VAIN_LIMIT);
        }
        p.in_vain >= IN_VAIN_LIMIT
    }

    /// Until when its silence may be that of an agent alone, whose kernel's answers go astray: while that is to be feared on every path that may carry them.
    pub fn diverted_until_ns(&self, config: &Config, carrier: &[bool; PATHS], now_ns: u64) -> Option<u64> {
        let ways = self.last_ways();
        let mut usable = (0..PATHS).filter(|&k| carrier[k] && ways[k] && !self.paths[k].down).peekable();
        usable.peek()?;
        let diverted = usable.all(|k| self.paths[k].is_diverted(config, now_ns));
        diverted.then(|| self.silent_since_ns().saturating_add(config.agent_timeout_ns))
    }

    /// Something other than its heartbeats came unasked, stamped at `at_ns`.
    pub fn came_unasked(&mut self, path: usize, at_ns: u64) {
        self.heard_ns = self.heard_ns.max(at_ns);
        self.reached_ns[path] = self.reached_ns[path].max(at_ns.saturating_sub(self.timeout_ns()));
    }

    /// The paths that carried its last heartbeats. A witness on the other one proves nothing: that one has a fault of its own.
    pub fn last_ways(&self) -> [bool; PATHS] {
        let newest = self.last_arrival_ns();
        std::array::from_fn(|k| {
            let path = &self.paths[k];
            path.last.last_arrival_ns.saturating_add(path.contract.timeout_ns()) >= newest
        })
    }

    /// When the host becomes late if nothing comes.
    pub fn late_at_ns(&self) -> u64 {
        self.paths.iter().map(|p| p.deadline_ns(self.judge_from_ns)).max().unwrap_or(u64::MAX)
    }

    /// When the next heartbeat should have come, by its contract: only our own lateness is still to be waited for. Never after [`Peer::late_at_ns`].
    pub fn due_at_ns(&self) -> u64 {
        let due = |p: &Path| p.deadline_ns(self.judge_from_ns).saturating_sub(p.contract.delta_max_ns);
        self.paths.iter().map(due).max().unwrap_or(u64::MAX)
    }

    /// Since when nothing has come that we could have heard.
    pub fn silent_since_ns(&self) -> u64 {
        self.paths.iter().map(|p| p.silent_since_ns(self.judge_from_ns)).max().unwrap_or(self.judge_from_ns)
    }

    /// Whether it would be late if we had not slept.
    pub fn is_doubtful(&self, now_ns: u64) -> bool {
        self.paths.iter().all(|p| now_ns > p.deadline_ns(self.doubt_from_ns))
    }

    /// Until when a barrier is waited for: the wait begins when it is overdue, though the questions may have begun before.
    pub fn drained_by_ns(&self, config: &Config) -> Option<u64> {
        let since = self.draining_since_ns?.max(self.late_at_ns());
        Some(since.saturating_add(self.drain_wait_ns(config)))
    }

    pub fn is_stale(&self, now_ns: u64) -> bool {
        now_ns > self.late_at_ns()
    }

    /// Until when its fence may still be open: what it counted in this time it has promised to stop after ([`crate::fence`]). The time runs from the
    /// last arrival by any path, and not from before anything that we did not hear for a reason of our own. Where the fence needs our
    /// confirmation, what we slept through does not matter: we have not confirmed what we did not hear. (Where it needs that of a
    /// majority, the others say the same of theirs, `node::machine::fenced`.)
    pub fn fence_until_ns(&self) -> Option<u64> {
        let promise = self.fence?;
        let needs_us = matches!(promise.mode, FenceMode::Acknowledged(Confirmers::All | Confirmers::Majority));
        let last_ns = self.paths.iter().map(|p| p.silent_since_ns(self.joined_ns)).max().unwrap_or(self.joined_ns);
        let since_ns = if needs_us { last_ns } else { self.silent_since_ns() };
        Some(since_ns.saturating_add(promise.timeout_ns))
    }

    /// We did not run since `last_ns`: what came since may have been lost, until it is known that it was not.
    pub fn slept(&mut self, last_ns: u64, now_ns: u64) {
        if self.doubt_from_ns == self.judge_from_ns {
            self.slept_from_ns = last_ns;
        }
        self.judge_from_ns = now_ns;
    }

    /// From when on its silence counts, as those show who were heard since `from_ns` without a gap, but for `open_ns`: from
    /// where it counted before we slept if they were heard before that, too.
    pub fn shown_from_ns(&self, from_ns: u64, open_ns: u64) -> u64 {
        let is_all = from_ns.saturating_add(self.timeout_ns()) <= self.slept_from_ns;
        let from_ns = if is_all { self.doubt_from_ns } else { from_ns };
        from_ns.max(self.last_arrival_ns()).saturating_add(open_ns)
    }

    /// When it has had all its time again since we woke up, whatever we missed: the time of its fence, too.
    pub fn forgiven_ns(&self, awake_since_ns: u64) -> u64 {
        let fence_ns = self.fence.map_or(0, |promise| promise.timeout_ns);
        awake_since_ns.saturating_add(self.timeout_ns().max(fence_ns))
    }

    /// Whether it promised a fence that may still be open.
    pub fn fence_may_be_open(&self, now_ns: u64) -> bool {
        self.fence_until_ns().is_some_and(|until| now_ns <= until)
    }

    /// The longest round trip of a question by contract. δmax counts once: a kernel answers without waiting for any process, so that only our
    /// own side can be late.
    pub fn round_trip_ns(&self) -> u64 {
        let worst = |c: &Contract| c.lambda_min_ns.saturating_mul(2).saturating_add(c.delta_max_ns);
        self.paths.iter().map(|p| worst(&p.contract)).max().unwrap_or(0)
    }

    /// How long a barrier is waited for.
    pub fn drain_wait_ns(&self, config: &Config) -> u64 {
        config.drain_wait_ns.unwrap_or_else(|| self.probe_wait_ns(config))
    }

    /// Whether no heartbeat that came in time can be waiting between our interfaces and us (SafeTimer §4.1): a barrier that arrived after the
    /// timeout was over has been seen on every path that may carry something.
    pub fn is_drained(&self, carrier: &[bool; PATHS]) -> bool {
        let overdue_ns = self.late_at_ns();
        self.paths.iter().zip(carrier).all(|(p, carrier)| !carrier || p.down || p.drained_ns > overdue_ns)
    }

    /// Whether no answer to the first question that stayed unanswered can be waiting between our
    /// interfaces and us, where it is known by which queue its answers come: that may be another
    /// one than that of its heartbeats.
    pub fn are_answers_drained(&self, carrier: &[bool; PATHS]) -> bool {
        let answered_ns = self.probing.unanswered_since_ns.saturating_add(self.round_trip_ns());
        let is_drained = |p: &Path| p.answers_drained_ns == 0 || p.answers_drained_ns > answered_ns;
        self.paths.iter().zip(carrier).all(|(p, carrier)| !carrier || p.down || is_drained(p))
    }

    /// Whether a host whose kernel answers has sent nothing for `agent_timeout_ns` of these `stuck_ns`, and nothing waits on our own side (SafeTimer §4.1): its answers may come
    /// by another queue than its heartbeats do. What came up to the latest barrier of each path is known. Without such barriers twice the time will do, and older
    /// ones are no evidence then.
    pub fn is_stuck(&mut self, config: &Config, carrier: &[bool; PATHS], stuck_ns: u64, now_ns: u64) -> bool {
        if stuck_ns < config.agent_timeout_ns || config.drain_wait_ns == Some(0) {
            return stuck_ns >= config.agent_timeout_ns;
        }
        let from_ns = now_ns.saturating_sub(stuck_ns).saturating_add(config.agent_timeout_ns);
        if self.paths.iter().zip(carrier).all(|(p, carrier)| !carrier || p.down || p.drained_ns >= from_ns) {
            return true;
        }
        let is_over = stuck_ns >= config.agent_timeout_ns.saturating_mul(2);
        if is_over {
            self.paths.iter_mut().for_each(|p| p.drained_ns = 0);
        }
        is_over
    }

    /// Silence begins anew at the moment since when at least one path that carried its last heartbeats has lost nothing on our side. Whether that
    /// changed anything.
    pub fn veto(&mut self, carrier: &[bool; PATHS], dropped_ns: &[u64; PATHS]) -> bool {
        let ways = self.last_ways();
        let may_carry = ways.iter().zip(carrier).map(|(way, carrier)| *way && *carrier);
        let Some(clean_ns) = may_carry.zip(dropped_ns).filter_map(|(may, at)| may.then_some(*at)).min() else { return false };
        let mut changed = false;
        for path in &mut self.paths {
            changed |= clean_ns > path.last.last_arrival_ns.max(path.from_ns);
            path.from_ns = path.from_ns.max(clean_ns);
        }
        changed
    }

    /// Whether questions are put to it, or were in this silence.
    pub fn is_questioned(&self) -> bool {
        matches!(self.state, State::Late | State::AgentLost) || self.draining_since_ns.is_some()
    }

    /// How long nothing may answer.
    pub fn probe_wait_ns(&self, config: &Config) -> u64 {
        // A period at least: who beats slowly has many neighbours or little to lose, and the questions share the road with their heartbeats.
        let period_ns = self.paths.iter().map(|p| p.contract.period_ns).max().unwrap_or(0);
        let derived = || self.round_trip_ns().max(period_ns).max(1_000_000).min(config.probe_wait_max_ns);
        config.probe_wait_ns.unwrap_or_else(derived)
    }

    /// How long nothing may answer when our own side loses packets on a path where its answers may come: after that it is not chance.
    pub fn answers_wait_ns(&self, config: &Config, own_loss_ns: &[u64; PATHS]) -> u64 {
        let wait_ns = self.probe_wait_ns(config);
        let since_ns = self.probing.unanswered_since_ns;
        if self.paths.iter().zip(own_loss_ns).any(|(path, lost)| !path.down && *lost >= since_ns && *lost != 0) {
            wait_ns.saturating_mul(LOSSY_WAITS).min(config.agent_timeout_ns).max(wait_ns)
        } else {
            wait_ns
        }
    }

    /// Whether it fell silent together with one that was judged silent at `other_ns`: it was not heard for long enough after that.
    pub fn fell_silent_with(&self, other_ns: u64) -> bool {
        self.sign_of_life_ns() <= other_ns.saturating_add(self.timeout_ns().saturating_mul(TOGETHER_TIMEOUTS))
    }

    /// By what its witnesses are measured, when the slowest of all hosts has this timeout: whoever answers no question is heard once in it.
    pub fn witness_limits(&self, config: &Config, slowest_timeout_ns: u64, now_ns: u64) -> WitnessLimits {
        let wait_ns = self.probe_wait_ns(config);
        let apart_ns = slowest_timeout_ns.saturating_add(wait_ns).saturating_mul(2);
        // An observer that is always late must not wait for ever, see [`Probing::close_round`].
        let apart_ns = if self.has_patience_ended(config, now_ns) { apart_ns.max(config.agent_timeout_ns) } else { apart_ns };
        // The question in between is closed when the next one is due: asked at leisure, that is later than any wait.
        let stale_ns = wait_ns.max(self.probe_interval_ns(config).saturating_mul(2));
        WitnessLimits { round_trip_ns: self.round_trip_ns().min(config.probe_wait_max_ns), apart_ns, stale_ns }
    }

    /// Whether its questions have stayed unanswered for as long as a stuck agent may be silent.
    pub fn has_patience_ended(&self, config: &Config, now_ns: u64) -> bool {
        let since_ns = self.probing.unanswered_since_ns;
        since_ns != 0 && now_ns.saturating_sub(since_ns) >= config.agent_timeout_ns
    }

    /// Time between two questions while nothing answers; longer when that has led to no verdict for long.
    pub fn probe_interval_ns(&self, config: &Config) -> u64 {
        let interval = self.probe_soon_ns(config);
        if self.others.is_told {
            interval.max(config.agent_lost_probe_ns)
        } else if self.asks_at_leisure(config) {
            interval.max(config.late_probe_ns)
        } else {
            interval
        }
    }

    /// Time between two questions that a verdict waits for.
    pub fn probe_soon_ns(&self, config: &Config) -> u64 {
        (self.probe_wait_ns(config) / u64::from(config.probe_rounds.max(1))).max(1)
    }

    /// Whether so many questions have led to no verdict that they are asked less often.
    pub fn asks_at_leisure(&self, config: &Config) -> bool {
        self.probing.unanswered > config.probe_rounds.max(1).saturating_mul(PATIENT_SERIES)
    }

    /// Whether enough questions stayed unanswered for long enough, we being there and permitted to judge.
    pub fn is_exhausted(&self, config: &Config, own_loss_ns: &[u64; PATHS], now_ns: u64) -> bool {
        let silent = match self.state {
            State::Late => self.is_stale(now_ns),
            State::AgentLost => now_ns > self.judge_from_ns.saturating_add(self.timeout_ns()),
            State::Alive | State::Silent | State::Left | State::Restarting => false,
        };
        silent && self.probing.is_unanswered(config, self.answers_wait_ns(config, own_loss_ns), now_ns)
    }

    /// Takes a row of the receive table. Rows may be the same as before; they never go back.
    ///
    /// A heartbeat that comes on one path long after a later one has come on the other was held up on its way, by a neighbour perhaps: it
    /// shows that the host lived before, not that it lives, and not that the path carries.
    pub fn arrivals(&mut self, rows: &[PathArrival; PATHS], drops: u64) {
        let mut came = false;
        let newest = rows.iter().map(|row| row.last_number).max().unwrap_or(0);
        for (path, row) in self.paths.iter_mut().zip(rows) {
            if row.last_arrival_ns > path.last.last_arrival_ns && path.was_held_up(row.last_number, newest) {
                path.fresh = 0;
                path.last = PathArrival { last_arrival_ns: path.last.last_arrival_ns, ..*row };
                continue;
            }
            if row.last_arrival_ns <= path.last.last_arrival_ns {
                path.last.lost = path.last.lost.max(row.lost);
                path.last.drops = path.last.drops.max(row.drops);
                continue;
            }
            let came_now = row.last_number.saturating_sub(path.last.last_number).max(1);
            let gap = row.lost > path.last.lost;
            path.gaps = path.gaps.saturating_add(u32::from(gap));
            if gap || path.fresh == 0 {
                path.fresh_since_ns = row.last_arrival_ns;
            }
            path.fresh = if gap { 1 } else { path.fresh.saturating_add(u32::try_from(came_now).unwrap_or(u32::MAX)) };
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
    pub fn compare_paths(&mut self) {
        let judge_from_ns = self.judge_from_ns;
        let newest = self.last_arrival_ns();
        for path in &mut self.paths {
            let since = path.silent_since_ns(judge_from_ns);
            if path.behind_since_ns.is_none() && newest > since.saturating_add(path.slack_ns()) {
                path.behind_since_ns = Some(newest);
            }
        }
    }

    /// Forgets what was learned in the silence that is over.
    pub fn end_silence(&mut self) {
        self.probing = Probing::default();
        self.draining_since_ns = None;
        self.reporters.clear();
        self.others = Others::default();
        for path in &mut self.paths {
            path.asked = false;
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
        debug_assert!(
            self.state != State::Alive || self.probing.sent_ns == 0 || self.is_questioned(),
            "who is in time is not questioned"
        );
        debug_assert!(self.state == State::Alive || self.draining_since_ns.is_none(), "the barrier comes before the verdict");
    }
}
