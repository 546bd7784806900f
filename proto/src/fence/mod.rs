//! How long this host may go on sending: the sender's half of the fence (SafeTimer §4.2, §5.2).
//!
//! # In one head
//! A diver and a tender at the surface have agreed: a tug on the line at least every minute, else the tender pulls up and sails. The tender's
//! watch decides nothing for the diver, who cannot see it; he has his own, and counts from the moment *before* each tug, a little less than a
//! minute, since watches differ. If a tug cannot have been felt in time (his arm was caught, the line was), he is as good as left: he must not
//! turn the valve any more, whatever he still believes. Whether he counts a tug because he *gave* it or because the tender *tugged back* is the choice
//! between the two modes: a line that is cut swallows the first kind.
//!
//! # The rule
//! Others do not call this host dead before `timeout_ns` after the last heartbeat that reached them ([`crate::detector`], `FencePromise`). So
//! ```text
//! t_valid = (clock before heartbeat k was sent) + timeout ÷ (1 + drift) − margin
//! ```
//! where k is the latest heartbeat that *counts*, and was known to count before the former t_valid was over:
//! * [`FenceMode::Sent`]: the network interface is done with its copies on both paths ([`Paths::Both`]) or on one.
//! * [`FenceMode::Acknowledged`]: enough others have confirmed it, or a later one.
//!
//! The margin has two duties, of which the larger one counts: what had passed the gate at t_valid must have left the host (`docs/fence.md`, the bound); and,
//! in mode *sent*, a heartbeat that left just before t_valid must arrive before the others' patience ends. Without the second duty this
//! happens: the host is held up until just before t_valid, sends, and counts that; the copy is still under way when an observer gives its
//! verdict; the host is valid for another timeout. (`a_margin_below_the_time_under_way_must_fail` shows it.) An acknowledged heartbeat has
//! arrived, so there the network may take as long as it likes.
//!
//! # What each mode guarantees
//! *No observer who knows of the promise gives its verdict while this host may send*, if …
//! * *sent*: … every heartbeat that left arrives on one path at least, within the margin. A partition breaks that: both sides go on.
//! * *acknowledged by all*: … the observer has ever confirmed anything in this life of the agent. Nothing is assumed of the network. The price: whoever falls
//!   silent without having promised a fence itself takes this host with him, and any silence longer than t_valid does.
//! * *acknowledged by a majority*: … the observer is one of the majority that confirmed last. Any two majorities share a host, so at most one side of
//!   a partition stays open; but a single observer that alone has lost its connection may be early.
//! * *acknowledged by n*: … the observer is one of the n.
//!
//! # Who counts as a member
//! The shell says it ([`Rule::members`]). A majority is one of all hosts that are known and have not left: suspicion must not shrink it, or
//! each side of a partition would soon be a majority of itself.

use fide_wire::PATHS;
use fide_wire::verdict::{Confirmers, FenceMode};
use std::collections::{BTreeMap, VecDeque};

#[cfg(test)]
mod tests;

/// Which completions make a heartbeat count, in mode *sent*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// Those of all configured paths.
    Both,
    /// That of any.
    One,
}

/// Settings of a [`Rule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What others wait for after the last arrival, ns.
    pub timeout_ns: u64,
    /// See [the rule](self).
    pub margin_ns: u64,
    /// By how much one clock may be faster than another (parts per million): the leases' bound,
    /// [`crate::membership::Timing::drift_ppm`].
    pub drift_ppm: u64,
    /// What counts.
    pub mode: FenceMode,
    /// On which paths.
    pub paths: Paths,
    /// Which paths there are.
    pub configured: [bool; PATHS],
}

impl Config {
    /// From the clock reading before a heartbeat to the t_valid that it allows. 0 when the timeout is too short for anything.
    #[must_use]
    pub fn valid_for_ns(&self) -> u64 {
        let shorter = u128::from(self.timeout_ns) * 1_000_000 / (1_000_000 + u128::from(self.drift_ppm));
        u64::try_from(shorter).unwrap_or(u64::MAX).saturating_sub(self.margin_ns)
    }
}

/// What may be done now: move t_valid to `valid_ns`, because of something that was known at `known_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// A clock reading at which the heartbeat was known to count. Not past the former t_valid.
    pub known_ns: u64,
    /// The new t_valid, later than the former one.
    pub valid_ns: u64,
}

/// A heartbeat that may still count.
#[derive(Clone, Copy, Debug)]
struct Beat {
    number: u64,
    /// The clock before it was sent.
    read_ns: u64,
    /// The call that sent it, if the path took its copy.
    calls: [Option<u64>; PATHS],
}

/// Somebody who observes this host.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    /// The latest number that it confirmed since the fence was (re)opened.
    number: u64,
    /// When that became known here.
    known_ns: u64,
    /// It has ever confirmed anything: it observes.
    observes: bool,
    /// It has given this host up, and its word binds it: nothing that it confirms counts.
    is_barred: bool,
}

/// Beats remembered per timeout: those that come closer together than that are not told apart, to the safe side.
const RESOLUTION: u64 = 1024;

/// The machine. One for each life of an agent.
#[derive(Clone, Debug)]
pub struct Rule {
    config: Config,
    beats: VecDeque<Beat>,
    members: BTreeMap<u32, Member>,
    /// t_valid; `None` before it was armed.
    valid_ns: Option<u64>,
    /// It ran out, or was closed.
    closed: bool,
    extensions: u64,
    left_min_ns: Option<u64>,
}

impl Rule {
    /// Not armed: nothing was promised, everything may be sent.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            beats: VecDeque::new(),
            members: BTreeMap::new(),
            valid_ns: None,
            closed: false,
            extensions: 0,
            left_min_ns: None,
        }
    }

    // ---------------------------------------------------------------- inputs

    /// A heartbeat was handed over by call `call` of the lane, on the paths in `taken` without an error; the clock was `read_ns` before
    /// that. Numbers and readings grow.
    pub fn sent(&mut self, number: u64, read_ns: u64, call: u64, taken: [bool; PATHS]) {
        debug_assert!(self.beats.back().is_none_or(|b| b.number < number && b.read_ns <= read_ns));
        let valid_for = self.config.valid_for_ns();
        while self.beats.front().is_some_and(|b| b.read_ns.saturating_add(valid_for) < read_ns) {
            self.beats.pop_front(); // what it would allow is over
        }
        let calls = taken.map(|t| t.then_some(call));
        if self.beats.back().is_none_or(|b| read_ns - b.read_ns >= self.config.timeout_ns / RESOLUTION) {
            self.beats.push_back(Beat { number, read_ns, calls });
        }
        self.invariants();
    }

    /// The interface is done with everything up to these calls, as of `known_ns` ([`FenceMode::Sent`]). Says what that allows.
    pub fn completed(&mut self, through: [u64; PATHS], known_ns: u64) -> Option<Extension> {
        if self.config.mode != FenceMode::Sent {
            return None;
        }
        let Config { paths, configured, .. } = self.config;
        let counts = |b: &Beat| {
            let mut done = (0..PATHS).filter(|p| configured[*p]).map(|p| b.calls[p].is_some_and(|call| call <= through[p]));
            match paths {
                Paths::Both => done.all(|d| d),
                Paths::One => done.any(|d| d),
            }
        };
        let number = self.beats.iter().rev().find(|b| counts(b))?.number;
        self.count(number, known_ns)
    }

    /// Another host confirms heartbeat `number` of this incarnation, as of `known_ns` ([`FenceMode::Acknowledged`]). Says what that allows.
    pub fn confirmed(&mut self, node: u32, number: u64, known_ns: u64) -> Option<Extension> {
        let FenceMode::Acknowledged(_) = self.config.mode else { return None };
        let member = self.members.get_mut(&node).filter(|member| !member.is_barred)?;
        member.observes |= number > 0;
        if number > member.number {
            (member.number, member.known_ns) = (number, known_ns);
        }
        let number = self.confirmed_by_enough();
        self.count(number, known_ns)
    }

    /// Who observes this host now: those that must confirm, or of whom a majority must. Who is not among them any more is forgotten.
    pub fn members(&mut self, nodes: impl IntoIterator<Item = u32>) {
        let known = std::mem::take(&mut self.members);
        self.members = nodes.into_iter().map(|n| (n, known.get(&n).copied().unwrap_or_default())).collect();
        self.invariants();
    }

    /// The gate was found closed, or was closed: nothing is extended until [`Rule::recover`].
    pub fn close(&mut self) {
        self.closed = true;
        self.beats.clear();
    }

    /// The gates are opened again for a new incarnation, which nobody has heard of yet: what it sends first is not held against
    /// it (§4.2: "t_valid = end_0"). Returns t_valid.
    pub fn recover(&mut self, now_ns: u64) -> u64 {
        self.closed = false;
        self.beats.clear();
        for member in self.members.values_mut() {
            member.number = 0; // of the life that is over
            member.is_barred = false;
        }
        let valid_ns = now_ns.saturating_add(self.config.valid_for_ns());
        self.valid_ns = Some(valid_ns);
        self.left_min_ns = None;
        self.invariants();
        valid_ns
    }

    /// The same rule for the same observers, as if nothing had been sent or confirmed.
    #[must_use]
    pub fn anew(&self) -> Self {
        let members = self.members.iter().map(|(node, member)| (*node, Member { number: 0, ..*member })).collect();
        Self { members, extensions: self.extensions, ..Self::new(self.config) }
    }

    /// A new incarnation while the gates are open: numbers of the former one are no confirmation any more.
    pub fn renew(&mut self) {
        for member in self.members.values_mut() {
            member.number = 0;
        }
    }

    /// A member has given this host up (`is_barred`): others may count its word, so that what it confirms counts for nothing from now
    /// on, also in a new incarnation behind the same open gates. Until nobody counts its word any more.
    pub fn bar(&mut self, node: u32, is_barred: bool) {
        if let Some(member) = self.members.get_mut(&node) {
            member.is_barred = is_barred;
        }
    }

    // ---------------------------------------------------------------- outputs

    /// The words on a former incarnation bind nobody.
    pub fn unbar_all(&mut self) {
        self.members.values_mut().for_each(|member| member.is_barred = false);
    }

    /// Whether enough members to keep the gates open have confirmed something within the last timeout, without this one and without
    /// those who have given this host up. For a majority alone: the other modes let an observer rely on its own clock.
    #[must_use]
    pub fn is_kept_open_without(&self, node: u32, now_ns: u64) -> bool {
        let is_recent = |member: &Member| member.number > 0 && now_ns.saturating_sub(member.known_ns) <= self.config.timeout_ns;
        let confirms = |(other, member): &(&u32, &Member)| **other != node && !member.is_barred && is_recent(member);
        self.config.mode == FenceMode::Acknowledged(Confirmers::Majority)
            && !self.closed
            && self.valid_ns.is_some_and(|valid_ns| now_ns <= valid_ns)
            && self.members.iter().filter(confirms).count() >= self.needed().max(1)
    }

    /// t_valid; `None` while nothing was promised.
    #[must_use]
    pub fn valid_ns(&self) -> Option<u64> {
        self.valid_ns
    }

    /// Whether it ran out, or was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// How often t_valid was extended, and the least time that was left then, since it was armed or recovered.
    #[must_use]
    pub fn extensions(&self) -> (u64, Option<u64>) {
        (self.extensions, self.left_min_ns)
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How many others must confirm a heartbeat. 0: mode *sent*, or nobody is there to be misled.
    #[must_use]
    pub fn needed(&self) -> usize {
        match self.config.mode {
            FenceMode::Sent => 0,
            FenceMode::Acknowledged(Confirmers::All) => self.members.values().filter(|m| m.observes).count(),
            // More than half of the members and us, without us.
            FenceMode::Acknowledged(Confirmers::Majority) => self.members.len().div_ceil(2),
            FenceMode::Acknowledged(Confirmers::AtLeast(n)) => n.into(),
        }
    }

    /// Those who have confirmed a heartbeat since the fence was opened.
    pub fn confirmers(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.iter().filter(|(_, m)| m.number > 0).map(|(node, _)| *node)
    }

    /// All who observe this host: those of whom so many must confirm.
    pub fn observers(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.keys().copied()
    }

    /// Those of them that have confirmed nothing new for a timeout.
    pub fn awaited(&self, now_ns: u64) -> impl Iterator<Item = u32> + '_ {
        let is_long_ago = move |known_ns: u64| now_ns.saturating_sub(known_ns) > self.config.timeout_ns;
        let waits = move |member: &Member| member.number == 0 || is_long_ago(member.known_ns);
        self.members.iter().filter(move |(_, member)| waits(member)).map(|(node, _)| *node)
    }

    // ---------------------------------------------------------------- innards

    /// The latest number that enough members have confirmed; without members, what was sent: there is nobody to be misled.
    fn confirmed_by_enough(&self) -> u64 {
        let needed = self.needed();
        let mut numbers: Vec<u64> = self.members.values().map(|m| m.number).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        match needed {
            0 => 0,
            n => numbers.get(n - 1).copied().unwrap_or(0),
        }
    }

    /// Everybody has left: nobody observes this host, and its own word is enough. Only for those who were observed before, so that a host that
    /// starts into a partition does not take itself for the cluster.
    pub fn alone(&mut self, now_ns: u64) -> Option<Extension> {
        let nobody = matches!(self.config.mode, FenceMode::Acknowledged(Confirmers::All | Confirmers::Majority));
        if !nobody || !self.members.is_empty() || self.valid_ns.is_none() {
            return None;
        }
        let number = self.beats.back()?.number;
        self.count(number, now_ns)
    }

    /// Heartbeat `number` counts, and so do all before it.
    fn count(&mut self, number: u64, known_ns: u64) -> Option<Extension> {
        if self.closed {
            return None;
        }
        // THE RULE, first half (§5.2): known before the former t_valid was over, else receivers may have given up already.
        if self.valid_ns.is_some_and(|valid| known_ns > valid) {
            self.close();
            return None;
        }
        let mut read_ns = None;
        while let Some(beat) = self.beats.front().filter(|b| b.number <= number) {
            read_ns = Some(beat.read_ns);
            self.beats.pop_front();
        }
        // THE RULE, second half (Fig. 3, line 4): from the reading before the sending, and never back.
        let valid_ns = read_ns?.saturating_add(self.config.valid_for_ns());
        if self.valid_ns.is_some_and(|valid| valid_ns <= valid) || valid_ns <= known_ns {
            return None;
        }
        if let Some(before) = self.valid_ns {
            let left_ns = before.saturating_sub(known_ns);
            self.left_min_ns = Some(self.left_min_ns.map_or(left_ns, |least| least.min(left_ns)));
        }
        self.valid_ns = Some(valid_ns);
        self.extensions += 1;
        self.invariants();
        Some(Extension { known_ns, valid_ns })
    }

    fn invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let beats = self.beats.iter().zip(self.beats.iter().skip(1));
        debug_assert!(beats.clone().all(|(a, b)| a.number < b.number && a.read_ns <= b.read_ns), "in the order of sending");
        debug_assert!(self.beats.len() as u64 <= 2 * RESOLUTION + 2, "as many as one timeout holds");
    }
}
