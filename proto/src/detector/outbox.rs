//! The sending side of notices: told at once, repeated until everybody has them, and nothing of the dead piggybacked afterwards.
//!
//! Two promises are kept here because one machine sees both kinds of packets leave:
//! * a notice is repeated until every live receiver confirmed it (or nobody can be expected to any more);
//! * **fail-consistency** (FiDe §4.1, FCURB): "all heartbeats sent by p_i are delivered to p_j before p_j detects the failure of p_i".
//!   Once a process's crash was sent, [`Outbox::may_piggyback`] is false for it, for ever, although a doomed process may still
//!   run for a moment and write into its bridge. Numbers of processes are never used twice in an incarnation, so remembering who
//!   may send is enough, and the memory is bounded by who is alive.
//!
//! Repetitions come after 200 µs and 1 ms (a lost copy on both paths at once is rare, and then usually a burst) and from then on every
//! 10 ms, for two seconds at most: a receiver silent for that long has been judged by the detector.

use super::apps::MAX_APPS;
use super::inbox::ConfirmEntry;
use fide_wire::packet::Notice;
use fide_wire::verdict::{Cause, Grade};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most notices waiting for confirmations; the oldest are given up beyond that.
pub const MAX_PENDING: usize = 2 * MAX_APPS;

/// Settings of an [`Outbox`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxConfig {
    /// This node.
    pub self_node: u32,
    /// Its incarnation.
    pub incarnation: u32,
    /// Time of the first repetitions after the first sending (ns), increasing.
    pub first_repeats_ns: Vec<u64>,
    /// Time between all later ones (ns).
    pub repeat_ns: u64,
    /// When to stop (ns after the first sending).
    pub give_up_ns: u64,
    /// At most this many repetitions leave per [`OutboxConfig::pace_ns`], so that a thousand deaths at once do not break the lane's contract.
    pub burst: u32,
    /// See [`OutboxConfig::burst`].
    pub pace_ns: u64,
}

impl OutboxConfig {
    /// Defaults for this node.
    #[must_use]
    pub fn new(self_node: u32, incarnation: u32) -> Self {
        Self {
            self_node,
            incarnation,
            first_repeats_ns: vec![200_000, 1_000_000],
            repeat_ns: 10_000_000,
            give_up_ns: 2_000_000_000,
            burst: 32,
            pace_ns: 100_000,
        }
    }
}

/// Why a process cannot be taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// Its number was used before in this incarnation.
    NumberUsed,
    /// Number 0 is the agent.
    Zero,
    /// Too many processes are watched ([`MAX_APPS`]).
    TooMany,
    /// This agent left.
    Left,
}

impl std::fmt::Display for NotStarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NotStarted::NumberUsed => "this process number was used before in this incarnation",
            NotStarted::Zero => "process number 0 is the agent itself",
            NotStarted::TooMany => "at most 4096 processes are watched on one host",
            NotStarted::Left => "this agent has left",
        })
    }
}

impl std::error::Error for NotStarted {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    /// Its messages may be piggybacked.
    May,
    /// Its doom was sent; its end was not.
    Doomed,
}

#[derive(Clone, Debug)]
struct Pending {
    notice: Notice,
    first_sent_ns: u64,
    repeats: usize,
    due_ns: u64,
}

/// What one receiver confirmed.
#[derive(Clone, Copy, Debug)]
struct Receiver {
    node: u32,
    confirmed: ConfirmEntry,
}

/// The machine. One per incarnation of an agent.
#[derive(Clone, Debug)]
pub struct Outbox {
    config: OutboxConfig,
    apps: BTreeMap<u32, Sending>,
    highest_app: u32,
    next_number: u32,
    /// Consecutive numbers, oldest first; confirmed ones are taken out.
    pending: VecDeque<Pending>,
    /// (due, number) of every pending notice.
    schedule: BTreeSet<(u64, u32)>,
    receivers: Vec<Receiver>,
    /// Start and count of the current burst.
    burst: (u64, u32),
    given_up: u64,
    left: bool,
}

impl Outbox {
    /// Nothing sent yet.
    #[must_use]
    pub fn new(config: OutboxConfig) -> Self {
        Self {
            config,
            apps: BTreeMap::new(),
            highest_app: 0,
            next_number: 1,
            pending: VecDeque::new(),
            schedule: BTreeSet::new(),
            receivers: Vec::new(),
            burst: (0, 0),
            given_up: 0,
            left: false,
        }
    }

    /// A process is watched from now on: its messages may be piggybacked. Numbers must grow.
    ///
    /// # Errors
    /// [`NotStarted`], with the reason.
    pub fn app_started(&mut self, app: u32) -> Result<(), NotStarted> {
        if app == 0 {
            return Err(NotStarted::Zero);
        }
        if self.left {
            return Err(NotStarted::Left);
        }
        if app <= self.highest_app {
            return Err(NotStarted::NumberUsed);
        }
        if self.apps.len() >= MAX_APPS {
            return Err(NotStarted::TooMany);
        }
        self.highest_app = app;
        self.apps.insert(app, Sending::May);
        self.invariants();
        Ok(())
    }

    /// Whether messages of this process may still be sent. False for ever once its crash was sent, and for whom was never started.
    #[must_use]
    pub fn may_piggyback(&self, app: u32) -> bool {
        !self.left && self.apps.get(&app) == Some(&Sending::May)
    }

    /// The crash of this process was sent by other means than [`Outbox::push`] (by the exit hook itself).
    pub fn crash_sent(&mut self, app: u32) {
        if let Some(sending) = self.apps.get_mut(&app) {
            *sending = Sending::Doomed;
        }
        self.invariants();
    }

    /// A verdict about one of our processes. Returns the notice, **to be sent on all paths at once**; its repetitions come
    /// from [`Outbox::poll_transmit`]. `None` when there is nothing to tell: the process was not watched, or this was told before.
    ///
    /// The end of a process whose doom was sent gets [`Notice::CONFIRMS`].
    pub fn push(&mut self, app: u32, cause: Cause, code: i32, event_ns: u64, now_ns: u64) -> Option<Notice> {
        debug_assert!(cause == Cause::Left || cause.is_seen_end(), "not a process's end: {cause}");
        if self.left {
            return None;
        }
        let flags = match (self.apps.get(&app)?, cause) {
            (Sending::May, Cause::Doomed) => {
                self.apps.insert(app, Sending::Doomed);
                0
            }
            (Sending::May, _) => {
                self.apps.remove(&app);
                0
            }
            (Sending::Doomed, Cause::Exited | Cause::Killed | Cause::OutOfMemory) => {
                self.apps.remove(&app);
                Notice::CONFIRMS
            }
            (Sending::Doomed, _) => return None,
        };
        Some(self.enqueue(app, cause, flags, code, event_ns, now_ns))
    }

    /// A notice that was numbered and sent already: the exit hook numbers in the kernel, so that a subscriber on this host learns the
    /// verdict's id without waiting for the agent. From here it is repeated like any other. App 0 is the agent's own leave.
    ///
    /// A notice about the progress of a process changes nothing else about it: it goes on talking.
    ///
    /// Two CPUs may number and report in different orders, so numbers may come slightly out of order; one that came before is ignored.
    pub fn push_numbered(&mut self, notice: &Notice, now_ns: u64) {
        if self.left {
            return;
        }
        match (notice.app, notice.cause) {
            (0, _) => {
                self.left = true;
                self.apps.clear();
            }
            (_, cause) if cause.is_progress() => {}
            (app, Cause::Doomed) => {
                if let Some(sending) = self.apps.get_mut(&app) {
                    *sending = Sending::Doomed;
                }
            }
            (app, _) => {
                self.apps.remove(&app);
            }
        }
        self.next_number = self.next_number.max(notice.notice.saturating_add(1));
        self.keep(*notice, now_ns);
    }

    /// This agent leaves: the last notice of this incarnation, to be sent as `Kind::Leave`. `None` when it left before.
    pub fn leave(&mut self, now_ns: u64) -> Option<Notice> {
        if self.left {
            return None;
        }
        self.left = true;
        self.apps.clear();
        Some(self.enqueue(0, Cause::Left, 0, 0, now_ns, now_ns))
    }

    /// Who must confirm: the hosts that are alive now ([`super::Detector::live_peers`]). Whoever drops out is not waited for.
    pub fn peer_set(&mut self, nodes: impl IntoIterator<Item = u32>) {
        let (node, incarnation) = (self.config.self_node, self.config.incarnation);
        let before = std::mem::take(&mut self.receivers);
        self.receivers.extend(nodes.into_iter().map(|n| {
            let fresh = Receiver { node: n, confirmed: ConfirmEntry { node, incarnation, upto: 0, beyond: 0 } };
            before.iter().find(|r| r.node == n).copied().unwrap_or(fresh)
        }));
        self.drop_confirmed();
        self.invariants();
    }

    /// Entry of a confirmation from `node`. Entries about others, other incarnations or notices never sent are ignored.
    pub fn confirmed(&mut self, node: u32, entry: &ConfirmEntry) {
        let ours = entry.node == self.config.self_node && entry.incarnation == self.config.incarnation;
        let highest = u64::from(entry.upto) + u64::from(u32::BITS - entry.beyond.leading_zeros());
        if !ours || highest >= u64::from(self.next_number) {
            return;
        }
        let Some(receiver) = self.receivers.iter_mut().find(|r| r.node == node) else { return };
        // The union: a receiver that started over confirms from the beginning, and copies come out of order.
        let known = &mut receiver.confirmed;
        let (low, high) = if entry.upto < known.upto { (*entry, *known) } else { (*known, *entry) };
        let seen_by_both = low.beyond.checked_shr(high.upto - low.upto).unwrap_or(0);
        *known = ConfirmEntry { beyond: high.beyond | seen_by_both, ..high };
        self.drop_confirmed();
        self.invariants();
    }

    /// The next notice to repeat now, on all paths. Call until `None`.
    pub fn poll_transmit(&mut self, now_ns: u64) -> Option<Notice> {
        loop {
            let &(due_ns, number) = self.schedule.first()?;
            if due_ns > now_ns {
                return None;
            }
            if now_ns.saturating_sub(self.burst.0) >= self.config.pace_ns {
                self.burst = (now_ns, 0);
            }
            if self.burst.1 >= self.config.burst {
                return None;
            }
            self.schedule.pop_first();
            let at = self.position(number)?;
            if now_ns.saturating_sub(self.pending[at].first_sent_ns) > self.config.give_up_ns {
                self.pending.remove(at);
                self.given_up += 1;
                continue;
            }
            self.burst.1 += 1;
            let pending = &mut self.pending[at];
            pending.repeats += 1;
            pending.due_ns = match self.config.first_repeats_ns.get(pending.repeats) {
                Some(&after) => pending.first_sent_ns.saturating_add(after).max(now_ns + 1),
                None => now_ns.saturating_add(self.config.repeat_ns.max(1)),
            };
            let (due_ns, notice) = (pending.due_ns, pending.notice);
            self.schedule.insert((due_ns, number));
            self.invariants();
            return Some(notice);
        }
    }

    /// When [`Outbox::poll_transmit`] has something next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let &(due_ns, _) = self.schedule.first()?;
        let paced = self.burst.0.saturating_add(self.config.pace_ns);
        Some(if self.burst.1 >= self.config.burst { due_ns.max(paced) } else { due_ns })
    }

    /// Notices not confirmed by everybody yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Notices no longer repeated although somebody did not confirm them.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// The number of the last notice, 0 before the first.
    #[must_use]
    pub fn last_number(&self) -> u32 {
        self.next_number - 1
    }

    fn enqueue(&mut self, app: u32, cause: Cause, flags: u16, code: i32, event_ns: u64, now_ns: u64) -> Notice {
        let notice = Notice { notice: self.next_number, app, cause, grade: Grade::Certain, flags, code, event_ns };
        self.next_number += 1;
        self.keep(notice, now_ns);
        notice
    }

    /// Schedules the repetitions of a notice just sent.
    fn keep(&mut self, notice: Notice, now_ns: u64) {
        if self.pending.len() == MAX_PENDING
            && let Some(oldest) = self.pending.pop_front()
        {
            self.schedule.remove(&(oldest.due_ns, oldest.notice.notice));
            self.given_up += 1;
        }
        let Err(at) = self.pending.binary_search_by_key(&notice.notice, |p| p.notice.notice) else { return };
        let first = self.config.first_repeats_ns.first().copied().unwrap_or(self.config.repeat_ns);
        let due_ns = now_ns.saturating_add(first.max(1));
        self.pending.insert(at, Pending { notice, first_sent_ns: now_ns, repeats: 0, due_ns });
        self.schedule.insert((due_ns, notice.notice));
        self.invariants();
    }

    fn position(&self, number: u32) -> Option<usize> {
        self.pending.binary_search_by_key(&number, |p| p.notice.notice).ok()
    }

    /// Nobody known to listen is no reason to stop: somebody not known yet may.
    fn drop_confirmed(&mut self) {
        if self.receivers.is_empty() || self.pending.is_empty() {
            return;
        }
        let (receivers, schedule) = (&self.receivers, &mut self.schedule);
        self.pending.retain(|p| {
            let everybody = receivers.iter().all(|r| r.confirmed.covers(p.notice.notice));
            if everybody {
                schedule.remove(&(p.due_ns, p.notice.notice));
            }
            !everybody
        });
    }

    fn invariants(&self) {
        debug_assert!(self.apps.len() <= MAX_APPS && self.pending.len() <= MAX_PENDING);
        debug_assert_eq!(self.pending.len(), self.schedule.len(), "every pending notice is scheduled once");
        debug_assert!(self.apps.keys().all(|&a| a != 0 && a <= self.highest_app));
        debug_assert!(self.pending.back().is_none_or(|p| p.notice.notice < self.next_number));
        debug_assert!(!self.left || self.apps.is_empty());
    }
}
