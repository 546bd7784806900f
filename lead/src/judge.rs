//! What one host does: when it starts COMMAND, when it ends it, what it proposes. Pure: entries,
//! verdicts, what became of COMMAND and the time in; [`Action`]s out.
//!
//! ```text
//!            Start ─► started ──────────┐
//! Idle ─────────────────────────► Runs ─┴─► Clear ─► cleared ─► Over is proposed ─► Idle
//!                                  ▲ └─ its main process has ended by itself
//! ```
//!
//! **Invariant.** [`Action::Start`] is said in a term only for an entry of that term that this host
//! has read while it took part in the group and its fence was open, and never before
//! [`Judge::handle_cleared`] of the one before. [`Entry::Over`] of an own term is proposed only
//! behind `handle_cleared`.

use crate::course::{Course, End, Entry, Life};
use std::collections::BTreeMap;

/// What was proposed and had no effect is proposed again after so long.
const AGAIN_NS: u64 = 500_000_000;
/// Hosts propose the same in turn, each so long behind the one that is named before it.
const TURN_NS: u64 = 20_000_000;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Propose it.
    Propose(Entry),
    /// Start COMMAND, with the address.
    Start {
        /// In which term.
        term: u64,
    },
    /// End COMMAND with all that it started, and take the address off.
    Clear {
        /// In which term it was started.
        term: u64,
        /// It is asked to end first.
        politely: bool,
    },
    /// Another host leads.
    Follow {
        /// In which term.
        term: u64,
        /// Which.
        leader: String,
    },
    /// There is nothing left to do for this process.
    Exit {
        /// Why it failed; nothing: it did not.
        failure: Option<String>,
    },
}

/// What is known of COMMAND on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Command {
    /// Nothing of it runs, and the address is off.
    Idle,
    /// It was started, or is about to be.
    Runs { term: u64, since_ns: u64 },
    /// It is being ended.
    Clears { term: u64, ran_ms: u64, end: End, why: String },
    /// Nothing of that term runs; the others do not know it yet.
    Cleared { term: u64, ran_ms: u64, end: End, why: String },
}

/// One host's part.
#[derive(Clone, Debug)]
pub struct Judge {
    me: String,
    life: Life,
    hosts: Vec<String>,
    course: Course,
    /// This host has read all entries that were there when it came.
    is_current: bool,
    /// It is in the group's session.
    is_connected: bool,
    is_fenced: bool,
    /// This process is to end.
    is_stopping: bool,
    is_over: bool,
    command: Command,
    /// The term whose leader [`Action::Follow`] was said of.
    followed: u64,
    /// Other hosts that are fenced, in which incarnation and why.
    fenced: BTreeMap<String, (u32, String)>,
    /// Those whose `fide lead` has ended, and why.
    ended: BTreeMap<String, String>,
    /// Since when the present course is as it is, by this host's clock.
    since_ns: u64,
    /// What was proposed last, and when.
    proposed: Option<(Entry, u64)>,
    now_ns: u64,
    wall_ms: u64,
    actions: Vec<Action>,
}

impl Judge {
    /// A host that has read nothing yet, and on which nothing of COMMAND runs.
    #[must_use]
    pub fn new(me: &str, life: Life, hosts: &[String]) -> Self {
        Self {
            me: me.into(),
            life,
            hosts: hosts.to_vec(),
            course: Course::default(),
            is_current: false,
            is_connected: false,
            is_fenced: false,
            is_stopping: false,
            is_over: false,
            command: Command::Idle,
            followed: 0,
            fenced: BTreeMap::new(),
            ended: BTreeMap::new(),
            since_ns: 0,
            proposed: None,
            now_ns: 0,
            wall_ms: 0,
            actions: Vec::new(),
        }
    }

    // ---- outputs ----------------------------------------------------------------------------------

    /// What the entries say.
    #[must_use]
    pub const fn course(&self) -> &Course {
        &self.course
    }

    /// Whether this host has read all entries.
    #[must_use]
    pub const fn is_current(&self) -> bool {
        self.is_current
    }

    /// The term in which COMMAND runs here, as far as is known.
    #[must_use]
    pub const fn runs_in(&self) -> Option<u64> {
        match self.command {
            Command::Runs { term, .. } => Some(term),
            _ => None,
        }
    }

    /// What is to be done since the last call.
    pub fn poll_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// When [`Judge::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let (_, due_ns) = self.wants()?;
        let again_ns = self.proposed.as_ref().map_or(0, |(_, at_ns)| at_ns.saturating_add(AGAIN_NS));
        Some(due_ns.max(again_ns))
    }

    // ---- inputs -----------------------------------------------------------------------------------

    /// The time: monotonic, and as people tell it.
    pub const fn set_now(&mut self, now_ns: u64, wall_ms: u64) {
        self.now_ns = now_ns;
        self.wall_ms = wall_ms;
    }

    /// A session with the group begins: all its entries are read from the first one on.
    pub fn handle_connected(&mut self) {
        (self.course, self.is_current, self.is_connected, self.proposed) = (Course::default(), false, true, None);
        self.judge();
    }

    /// The session has ended. COMMAND goes on: without this host's agent nobody else starts one.
    pub fn handle_disconnected(&mut self) {
        (self.is_connected, self.is_current, self.proposed) = (false, false, None);
    }

    /// The group's state at an entry.
    pub fn handle_snapshot(&mut self, course: Course) {
        self.course = course;
        self.since_ns = self.now_ns;
    }

    /// The next entry. `is_own`: proposed by this connection to the group.
    pub fn handle_entry(&mut self, entry: &Entry, is_own: bool) {
        if self.course.apply(entry) {
            self.since_ns = self.now_ns;
        }
        // Whoever takes part again is asked anew.
        if let Entry::Here { host, .. } = entry {
            self.ended.remove(host);
        }
        if self.proposed.as_ref().is_some_and(|(proposed, _)| *proposed == entry.clone().at(0)) {
            self.proposed = None;
        }
        let is_here = |life: &Life| life.run == self.life.run;
        self.is_current |= is_own && matches!(entry, Entry::Here { host, life, .. } if *host == self.me && is_here(life));
        self.judge();
    }

    /// This host's fence has closed.
    pub fn handle_fenced(&mut self) {
        self.is_fenced = true;
        self.judge();
    }

    /// It is open again, or was not closed at all; the host is in this incarnation.
    pub fn handle_open(&mut self, incarnation: u32) {
        (self.is_fenced, self.life.incarnation) = (false, incarnation);
        self.judge();
    }

    /// Another host is silent behind its closed fence, or believed dead where the group has none.
    pub fn handle_host_over(&mut self, host: &str, incarnation: u32, why: &str) {
        self.fenced.insert(host.into(), (incarnation, why.into()));
        self.judge();
    }

    /// The `fide lead` of another host has ended.
    pub fn handle_life_over(&mut self, host: &str, why: &str) {
        self.ended.insert(host.into(), why.into());
        self.judge();
    }

    /// Another `fide lead` of that host is alive.
    pub fn handle_life(&mut self, host: &str) {
        self.ended.remove(host);
    }

    /// COMMAND could not be started, or its main process has ended: what it left is to be cleared.
    pub fn handle_ended(&mut self, term: u64, why: &str) {
        if let Command::Runs { term: runs, since_ns } = self.command
            && runs == term
        {
            let ran_ms = self.now_ns.saturating_sub(since_ns) / 1_000_000;
            self.clear(term, ran_ms, false, End::Failed, why);
        }
        self.judge();
    }

    /// Nothing of that term runs, and the address is off.
    pub fn handle_cleared(&mut self, term: u64) {
        if let Command::Clears { term: clears, ran_ms, end, why } = &self.command
            && *clears == term
        {
            self.command = Command::Cleared { term, ran_ms: *ran_ms, end: *end, why: why.clone() };
        }
        self.judge();
    }

    /// This process is to end.
    pub fn stop(&mut self) {
        self.is_stopping = true;
        self.judge();
    }

    /// Some time has passed.
    pub fn handle_timeout(&mut self) {
        self.judge();
    }

    // ---- judging ----------------------------------------------------------------------------------

    fn clear(&mut self, term: u64, ran_ms: u64, politely: bool, end: End, why: &str) {
        self.command = Command::Clears { term, ran_ms, end, why: why.into() };
        self.actions.push(Action::Clear { term, politely });
    }

    /// The term in which COMMAND is to run here.
    fn leads_in(&self) -> Option<u64> {
        let is_mine = self.course.leader.as_ref() == Some(&self.me) && self.course.life == self.life;
        is_mine.then_some(self.course.term)
    }

    /// Why what runs is to end, and in which way.
    fn must_end(&self, term: u64) -> Option<(bool, End, String)> {
        if self.is_fenced {
            return Some((false, End::Lost, format!("the fence of {} has closed", self.me)));
        }
        // What is not known yet is not held against it.
        if self.is_current && self.leads_in() != Some(term) {
            return Some((false, End::Lost, "another term has begun".into()));
        }
        if self.is_stopping {
            return Some((true, End::Planned, format!("fide lead ends on {}", self.me)));
        }
        if self.is_current && self.course.retired {
            return Some((true, End::Planned, "it is retired".into()));
        }
        let to = self.course.switching.as_ref().filter(|to| self.is_current && **to != self.me)?;
        Some((true, End::Planned, format!("it moves to {to}, by an operator's word")))
    }

    fn judge(&mut self) {
        if self.is_over {
            return;
        }
        if self.is_current && !self.course.hosts.is_empty() && self.course.hosts != self.hosts {
            return self.exit(Some(format!("others run it on the hosts {}, in this order", self.course.hosts.join(","))));
        }
        match self.command.clone() {
            Command::Runs { term, since_ns } => {
                if let Some((politely, end, why)) = self.must_end(term) {
                    let ran_ms = self.now_ns.saturating_sub(since_ns) / 1_000_000;
                    self.clear(term, ran_ms, politely, end, &why);
                }
            }
            Command::Clears { .. } => {}
            Command::Cleared { term, .. } if self.is_current && self.leads_in() != Some(term) => self.command = Command::Idle,
            Command::Cleared { .. } | Command::Idle => {}
        }
        let may_run = self.is_current && !self.is_fenced && !self.is_stopping && !self.course.retired;
        match self.leads_in().filter(|_| may_run) {
            Some(term) if self.command == Command::Idle => {
                self.command = Command::Runs { term, since_ns: self.now_ns };
                self.actions.push(Action::Start { term });
            }
            _ => {}
        }
        self.follow(may_run);
        self.propose();
        let is_clear = match &self.command {
            Command::Idle => true,
            // Without a group nobody can be told: what starts here next says it.
            Command::Cleared { .. } => !self.is_connected,
            _ => false,
        };
        let takes_part = self.course.here.get(&self.me) == Some(&self.life);
        let is_told = !self.is_connected || self.is_current && !takes_part;
        if is_clear && is_told && (self.is_stopping || self.is_current && self.course.retired) {
            self.exit(None);
        }
    }

    fn exit(&mut self, failure: Option<String>) {
        self.is_over = true;
        self.actions.push(Action::Exit { failure });
    }

    fn follow(&mut self, may_run: bool) {
        let term = self.course.term;
        if let Some(leader) = self.course.leader.clone().filter(|leader| may_run && *leader != self.me && self.followed != term) {
            self.followed = term;
            self.actions.push(Action::Follow { term, leader });
        }
    }

    fn propose(&mut self) {
        let Some((entry, due_ns)) = self.wants() else { return };
        let is_same = |proposed: &Entry| *proposed == entry;
        let waits = self.proposed.as_ref().filter(|(proposed, _)| is_same(proposed)).map(|(_, at_ns)| *at_ns + AGAIN_NS);
        if self.now_ns >= due_ns.max(waits.unwrap_or(0)) {
            self.proposed = Some((entry.clone(), self.now_ns));
            self.actions.push(Action::Propose(entry.at(self.wall_ms)));
        }
    }

    /// How many hosts that take part are named before this one.
    fn turn(&self) -> u64 {
        let before = self.course.hosts.iter().take_while(|host| **host != self.me);
        before.filter(|host| self.course.here.contains_key(*host)).count() as u64
    }

    /// What this host would propose, and from when on.
    fn wants(&self) -> Option<(Entry, u64)> {
        if !self.is_connected || self.is_over {
            return None;
        }
        let (host, life, term, at_ms) = (self.me.clone(), self.life, self.course.term, 0);
        let here = || Entry::Here { host: host.clone(), life, hosts: self.hosts.clone(), runs: self.command != Command::Idle };
        let is_ending = self.is_stopping || self.is_current && self.course.retired;
        if !self.is_current {
            // What has not been read yet may say that this host leads: nothing else is proposed before.
            return (!self.is_fenced).then(|| (here(), self.since_ns));
        }
        if let Command::Cleared { term: cleared, ran_ms, end, why } = &self.command
            && self.leads_in() == Some(*cleared)
        {
            let (end, ran_ms, why) = (*end, *ran_ms, why.clone());
            return Some((Entry::Over { term: *cleared, end, ran_ms, why, at_ms }, self.since_ns));
        }
        let takes_part = self.course.here.get(&self.me) == Some(&self.life);
        if is_ending && self.command == Command::Idle {
            // Started for nobody: the term is over as it has begun.
            if let Some(term) = self.leads_in() {
                let why = format!("fide lead ends on {host}");
                return Some((Entry::Over { term, end: End::Planned, ran_ms: 0, why, at_ms }, self.since_ns));
            }
            let why = if self.course.retired { "retired" } else { "its fide lead was stopped" };
            return takes_part.then(|| (Entry::Gone { host, life, why: why.into() }, self.since_ns));
        }
        if is_ending {
            return None;
        }
        if !takes_part {
            return Some((here(), self.since_ns));
        }
        self.wants_of_others(term, at_ms)
    }

    fn wants_of_others(&self, term: u64, at_ms: u64) -> Option<(Entry, u64)> {
        let turn_ns = self.turn() * TURN_NS;
        let over = self.course.leader.as_ref().and_then(|leader| self.fenced.get(leader));
        if let Some((_, why)) = over.filter(|(incarnation, _)| self.course.life.incarnation <= *incarnation) {
            let why = why.clone();
            return Some((Entry::Over { term, end: End::Lost, ran_ms: 0, why, at_ms }, self.since_ns + turn_ns));
        }
        let is_out = |(host, life): (&String, &Life)| {
            let fenced = self.fenced.get(host).filter(|(incarnation, _)| life.incarnation <= *incarnation).map(|(_, why)| why);
            fenced.or(self.ended.get(host)).map(|why| (host.clone(), *life, why.clone()))
        };
        if let Some((host, life, why)) = self.course.here.iter().find_map(is_out) {
            return Some((Entry::Gone { host, life, why }, self.since_ns + turn_ns));
        }
        if let Some(until_ms) = self.course.paused.as_ref().and_then(|pause| pause.until_ms) {
            let left_ns = until_ms.saturating_sub(self.wall_ms).saturating_mul(1_000_000);
            return Some((Entry::Resume { until_ms: Some(until_ms), at_ms }, self.now_ns + left_ns + turn_ns));
        }
        let is_idle = self.course.leader.is_none() && self.course.paused.is_none() && !self.course.here.is_empty();
        let pause_ms = self.course.pause_ms().filter(|pause_ms| is_idle && *pause_ms > 0)?;
        Some((Entry::Next { term, at_ms }, self.since_ns + pause_ms * 1_000_000 + turn_ns))
    }
}
