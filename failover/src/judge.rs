//! What one host does: when it bids, whom it proposes, what it tells its server. Pure: verdicts, entries, reports and the time in; [`Action`]s out.
//!
//! ```text
//! verdict on the leader's server ─► bid ─► bids of all who answer ─► the best one is proposed ─► entry: the next term ─► its server leads, others follow it
//! ```
//! Two rules keep writes: nobody proposes an end of a term but on a verdict that is certain or fenced, or for the leader itself; and a host tells its
//! server to lead only for an entry that it has read while it was a member of the group. A server that starts takes no writes until it is told to lead.

use crate::course::{Course, Entry, Offer};
use crate::server::Report;
use std::collections::{BTreeMap, BTreeSet};

/// Bids of hosts that seem to live are waited for so long; a host proposes after as many of these as there are hosts before it in the order.
pub const BID_WAIT_NS: u64 = 20_000_000;
/// What was proposed and had no effect is proposed again after so long.
const AGAIN_NS: u64 = 200_000_000;
/// What the server did not do is tried again after so long.
const RETRY_NS: u64 = 500_000_000;
/// A service that is found not to run has ended; its verdict is waited for so long.
const MISSED_NS: u64 = 300_000_000;
/// The last leader's host offers its service again after so long, if no other one has taken over.
const STEP_BACK_NS: u64 = 1_000_000_000;
/// A leader that hands over may have to end its server for it: others wait so long for what becomes of that.
pub const HAND_NS: u64 = 15_000_000_000;
/// A replica whose link to the leader was down for longer before the leader ended has missed
/// writes. What the leader had is not known from longer before, either.
pub const STALE_AFTER_NS: u64 = 2_000_000_000;
/// A choice that takes longer is told, with what it waits for.
const WAITS_NS: u64 = 1_000_000_000;
/// A host that led keeps what moves with the leader for so long, if the next one does not say that it has it.
const YIELD_NS: u64 = 2_000_000_000;

/// What is known of a server's process on another host, or of the manager there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It lives, as far as is known: the process with this number.
    Alive(u32),
    /// It has ended, and cannot act: a verdict that is certain, or silence behind a fence.
    Over {
        /// The process that has; 0 with the end of a host: whatever ran there.
        process: u32,
        /// Why, for people.
        why: String,
        /// Of what kind that is.
        end: End,
    },
}

/// How a server came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its process crashed.
    Crash,
    /// Somebody asked it to end, and it did: a restart, as a rule.
    Planned,
    /// Its host is silent, and its fence has closed.
    Host,
    /// The same, while it is in maintenance: a reboot, as a rule.
    PlannedHost,
}

impl End {
    /// The same end, of what is in maintenance.
    #[must_use]
    pub const fn in_maintenance(self) -> Self {
        match self {
            End::Crash | End::Planned => End::Planned,
            End::Host | End::PlannedHost => End::PlannedHost,
        }
    }
}

/// What a leader's server has, as its manager tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// In which term.
    pub term: u64,
    /// As in [`Report`]; 0: it cannot be told.
    pub stream: u64,
    /// As in [`Report`].
    pub position: u64,
}

impl Position {
    /// Bytes of one on a heartbeat.
    pub const SIZE: usize = 24;

    /// As it rides on a heartbeat: three numbers, the low byte first.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        [self.term, self.stream, self.position].map(u64::to_le_bytes).concat()
    }

    /// One that came; nothing for what a later version says.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        match bytes.as_chunks() {
            ([term, stream, position], []) => {
                let [term, stream, position] = [term, stream, position].map(|bytes| u64::from_le_bytes(*bytes));
                Some(Self { term, stream, position })
            }
            _ => None,
        }
    }
}

/// What becomes of a leader that was asked to end, and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    /// Another one takes over, as if it had crashed.
    AtOnce,
    /// It leads again if it is back within so many nanoseconds; then another one takes over.
    Wait(u64),
}

impl Planned {
    const fn wait_ns(self) -> u64 {
        match self {
            Self::AtOnce => 0,
            Self::Wait(ns) => ns,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Propose it.
    Propose(Entry),
    /// Find out how the server is, now.
    Look,
    /// The server leads in this term, if it is this instance.
    Lead {
        /// Which.
        term: u64,
        /// As in [`Report`].
        instance: String,
    },
    /// The server follows another one.
    Follow {
        /// In which term.
        term: u64,
        /// Where that one is reached.
        address: String,
    },
    /// Another host leads: this one does not announce any more what moves with the leader.
    BeStill,
    /// Another host leads, and has by now what moves with the leader: this one has it no more.
    Yield,
    /// The server takes no writes.
    Close,
    /// The server takes no writes until the one there has all of them, or this fails.
    Hand {
        /// In which term.
        term: u64,
        /// Where that one is reached.
        address: String,
    },
}

/// What became of an [`Action`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// Of [`Action::Lead`].
    Lead(u64, Result<(), String>),
    /// Of [`Action::Follow`].
    Follow(u64, Result<(), String>),
    /// Of [`Action::Hand`].
    Hand(u64, Result<(), String>),
    /// Of [`Action::Close`].
    Close(Result<(), String>),
}

/// What outlives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Kept {
    /// The last term that this host knew.
    pub term: u64,
    /// Who led in it.
    pub leader: String,
}

/// What this host has told its server last.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Lead { term: u64, instance: String },
    Follow { term: u64, address: String },
    Close,
}

/// One host's part.
#[derive(Clone, Debug)]
pub struct Judge {
    me: String,
    /// Servers run where they lead, and nowhere else.
    cold: bool,
    hosts: Vec<String>,
    planned: Planned,
    kept: Kept,
    course: Course,
    /// This host has read all entries that were there when it came.
    current: bool,
    fenced: bool,
    lives: BTreeMap<String, Life>,
    gone: BTreeSet<String>,
    report: Result<Report, String>,
    report_at_ns: u64,
    /// When the present term began, by this host's clock.
    began_ns: u64,
    /// The last time at which the server was seen to follow a term's leader with its link up.
    in_sync: Option<(u64, u64)>,
    /// What this term's leader was last known to have, and when that came.
    leader_has: Option<(Position, u64)>,
    /// Who lacks more than this of it does not lead.
    lag_max: Option<u64>,
    told: Told,
    /// An action of the server is under way; nothing else is asked of it.
    busy: bool,
    retry_at_ns: u64,
    /// Since when this host takes part in the choice behind a term.
    choosing: Option<(u64, u64)>,
    session: u64,
    /// This host's own entry of that session, until it is read.
    here: Option<Entry>,
    /// When something was proposed that waits for its entry.
    proposed_at_ns: Option<u64>,
    handing: Option<u64>,
    /// The instance that was offered, its process, and for the term behind which one.
    candidate: Option<(u64, String, u32)>,
    /// This host's server may begin to lead: in which term, and which instance.
    may_lead: Option<(u64, String)>,
    /// The term in which it must not lead again.
    broken: Option<u64>,
    /// The term in which [`Action::Yield`] was said.
    yielded: Option<u64>,
    /// Since when this host has known that another one leads, and in which term.
    behind: Option<(u64, u64)>,
    /// When this host learned that a term's leader had ended, and whether that was planned.
    over_at: Option<(u64, u64, bool)>,
    /// What this host's server had when it last took writes: in which term, any data, and whether those outlive its end.
    held: Option<(u64, bool, bool)>,
    /// Since when what should lead in a term does not run.
    missed: Option<(u64, u64)>,
    /// What became of handing over, until its entry is read.
    handed: Option<Entry>,
    now_ns: u64,
    wall_ms: u64,
    actions: Vec<Action>,
}

impl Judge {
    /// A host that has read nothing yet.
    #[must_use]
    pub fn new(me: &str, hosts: &[String], (planned, cold): (Planned, bool), kept: Kept) -> Self {
        Self {
            me: me.into(),
            cold,
            hosts: hosts.to_vec(),
            planned,
            kept,
            course: Course::default(),
            current: false,
            fenced: false,
            lives: BTreeMap::new(),
            gone: BTreeSet::new(),
            report: Err("has not been asked yet".into()),
            report_at_ns: 0,
            began_ns: 0,
            in_sync: None,
            leader_has: None,
            lag_max: None,
            told: Told::Nothing,
            busy: false,
            retry_at_ns: 0,
            choosing: None,
            session: 0,
            here: None,
            proposed_at_ns: None,
            handing: None,
            candidate: None,
            may_lead: None,
            broken: None,
            yielded: None,
            behind: None,
            over_at: None,
            held: None,
            missed: None,
            handed: None,
            now_ns: 0,
            wall_ms: 0,
            actions: Vec::new(),
        }
    }

    /// Whoever lacks more bytes than this of what the last leader was known to have, or of whose
    /// lag nothing is known, does not take over.
    #[must_use]
    pub fn with_lag_max(self, lag_max: Option<u64>) -> Self {
        Self { lag_max, ..self }
    }

    /// What the entries say.
    #[must_use]
    pub const fn course(&self) -> &Course {
        &self.course
    }

    /// Whether this host has read all entries.
    #[must_use]
    pub const fn is_current(&self) -> bool {
        self.current
    }

    /// What a restart has to know.
    #[must_use]
    pub fn kept(&self) -> Kept {
        if self.course.term >= self.kept.term && self.course.term > 0 {
            let leader = self.course.leader.clone().unwrap_or_else(|| self.kept.leader.clone());
            return Kept { term: self.course.term, leader };
        }
        self.kept.clone()
    }

    /// The time: monotonic, and as people tell it.
    pub const fn set_now(&mut self, now_ns: u64, wall_ms: u64) {
        self.now_ns = now_ns;
        self.wall_ms = wall_ms;
    }

    /// This host takes part, for the first time or again, and reads all entries, from the first one on. Those up to its own were there before.
    pub fn begin(&mut self, session: u64, address: &str) {
        self.session = session;
        self.course = Course::default();
        let here = Entry::Here { host: self.me.clone(), address: address.into(), session };
        self.here = Some(here.clone());
        self.propose(here);
    }

    /// An entry. `own`: this host proposed it.
    pub fn handle_entry(&mut self, entry: &Entry, own: bool) {
        let term = self.course.term;
        self.course.apply(entry);
        if matches!(entry, Entry::Here { host, session, .. } if *host == self.me && *session == self.session) {
            (self.current, self.here) = (true, None);
        }
        if self.course.term != term {
            self.note_begin();
            (self.choosing, self.handing, self.handed) = (None, None, None);
            let offered = self.candidate.clone().filter(|(of, ..)| *of == term).map(|(_, instance, process)| (instance, process));
            let candidate = offered.or_else(|| Some((self.report.as_ref().ok()?.instance.clone(), self.process().unwrap_or(0))));
            // The term ends with the process that it was begun for: an instance that was offered
            // behind that one must not lead in it.
            let is_meant = |process: u32| self.course.process == 0 || self.course.process == process;
            // What was read of the past says nothing of the server as it is now.
            let candidate = candidate.filter(|(_, process)| self.current && self.leads() && is_meant(*process));
            self.may_lead = candidate.map(|(instance, _)| (self.course.term, instance));
        }
        if let (Entry::Switch { to, .. }, Ok(report)) = (entry, &self.report)
            && *to == self.me
        {
            self.candidate = Some((self.course.term, report.instance.clone(), self.process().unwrap_or(0)));
        }
        if own {
            self.proposed_at_ns = None;
        }
        self.handed.take_if(|handed| handed == entry);
        self.kept = self.kept();
        self.step();
    }

    /// The state behind the entries that are not kept any more.
    pub fn handle_snapshot(&mut self, course: Course) {
        self.course = course;
        self.note_begin();
        self.kept = self.kept();
        self.step();
    }

    /// A term that is read of the past began when its entry says; clocks of two hosts may differ.
    fn note_begin(&mut self) {
        let ago_ms = if self.current { 0 } else { self.wall_ms.saturating_sub(self.course.began_ms) };
        self.began_ns = self.now_ns.saturating_sub(ago_ms.saturating_mul(1_000_000));
    }

    /// What the server of a host has, by the word of the manager there.
    pub fn handle_position(&mut self, host: &str, position: Position) {
        if position.term == self.course.term && self.course.leader.as_deref() == Some(host) {
            self.leader_has = Some((position, self.now_ns));
        }
    }

    /// What this host's server has, for [`Judge::handle_position`] of others: nothing unless it
    /// leads.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        let report = self.report.as_ref().ok().filter(|report| report.primary)?;
        let (term, stream, position) = (self.course.term, report.stream.unwrap_or(0), report.position);
        (self.leads() && self.current).then_some(Position { term, stream, position })
    }

    /// The group or the agent is lost: until further notice this host's word counts for nothing.
    pub fn handle_disconnected(&mut self) {
        self.current = false;
        (self.choosing, self.proposed_at_ns, self.handing) = (None, None, None);
        (self.here, self.handed) = (None, None);
        // What became of others meanwhile is said anew.
        self.lives.clear();
        self.gone.clear();
        self.step();
    }

    /// How this host's server is.
    pub fn handle_report(&mut self, report: Result<Report, String>) {
        if let Ok(report) = &report
            && let Some(ago) = report.synced_ago
            && let Some(leader) = self.course.leader.as_ref().and_then(|leader| self.course.hosts.get(leader))
            && report.follows.as_ref() == Some(leader)
        {
            let at_ns = self.now_ns.saturating_sub(ago.as_nanos() as u64);
            // A leader that was restarted has taken writes since then that came here by no link of
            // before.
            let before_ns = self.in_sync.filter(|(of, _)| *of == self.course.term).map(|(_, at_ns)| at_ns);
            if at_ns >= self.began_ns && before_ns.is_none_or(|before_ns| before_ns < at_ns) {
                self.in_sync = Some((self.course.term, at_ns));
            }
        }
        if let Ok(report) = &report
            && report.primary
        {
            self.held = Some((self.course.term, report.has_data, report.durable));
        }
        (self.report, self.report_at_ns) = (report, self.now_ns);
        self.step();
    }

    /// The server did, or did not do, what it was told.
    pub fn handle_done(&mut self, done: Done) {
        self.busy = false;
        match done {
            Done::Lead(term, Err(_)) => {
                self.told = Told::Nothing;
                self.broken = Some(term);
            }
            Done::Follow(_, Err(_)) | Done::Close(Err(_)) => {
                self.told = Told::Nothing;
                self.retry_at_ns = self.now_ns + RETRY_NS;
            }
            Done::Hand(term, result) if term == self.course.term => {
                self.told = if result.is_ok() { Told::Close } else { Told::Nothing };
                if result.is_ok() {
                    self.broken = Some(term);
                }
                if let Some(to) = self.course.switching.clone() {
                    self.say_handed(term, to, result);
                }
            }
            _ => {}
        }
        self.step();
    }

    /// What is known of a host's server.
    pub fn handle_server(&mut self, host: &str, life: Life) {
        let term = self.course.term;
        if let Life::Over { process, end, .. } = &life
            && self.course.leader.as_deref() == Some(host)
            && self.is_the_leaders(*process, *end)
        {
            let planned = matches!(end, End::Planned | End::PlannedHost);
            let at_ns = self.over_at.filter(|(of, ..)| *of == term).map_or(self.now_ns, |(_, at_ns, _)| at_ns);
            self.over_at = Some((term, at_ns, planned));
        }
        self.lives.insert(host.into(), life);
        self.step();
    }

    /// A host that was silent is there again: what was known of it then says nothing of what it does next.
    pub fn handle_host_back(&mut self, host: &str) {
        if matches!(self.lives.get(host), Some(Life::Over { end: End::Host | End::PlannedHost, .. })) {
            self.lives.remove(host);
        }
    }

    /// What is known of the manager on a host, this one's colleague.
    pub fn handle_manager(&mut self, host: &str, is_there: bool) {
        if is_there {
            self.gone.remove(host);
        } else {
            self.gone.insert(host.into());
        }
        self.step();
    }

    /// This host's fence has closed, or was opened again.
    pub fn handle_fenced(&mut self, fenced: bool) {
        if fenced && self.leads() {
            self.broken = Some(self.course.term);
        }
        if self.fenced && !fenced {
            // Others may have taken over: nothing is right until the entries say so again.
            self.told = Told::Nothing;
        }
        self.fenced = fenced;
        self.step();
    }

    /// Time went by.
    pub fn handle_timeout(&mut self) {
        self.step();
    }

    /// When [`Judge::handle_timeout`] has something to do, at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let choice = self.choosing.map(|(_, since_ns)| {
            let over = self.now_ns.saturating_sub(since_ns) / BID_WAIT_NS;
            since_ns + (over + 1) * BID_WAIT_NS
        });
        let again = self.proposed_at_ns.map(|at_ns| at_ns + AGAIN_NS);
        let back = self.waits_until().filter(|until_ns| *until_ns > self.now_ns);
        let retry = (self.retry_at_ns > self.now_ns).then_some(self.retry_at_ns);
        choice.into_iter().chain(again).chain(retry).chain(back).min()
    }

    /// What is to be done, in this order.
    pub fn poll_action(&mut self) -> Option<Action> {
        (!self.actions.is_empty()).then(|| self.actions.remove(0))
    }

    /// Whether this host's server was seen to take no writes.
    #[must_use]
    pub fn takes_no_writes(&self) -> bool {
        !self.busy && self.report.as_ref().is_ok_and(|report| !report.primary)
    }

    /// Why nobody leads, or takes over from one that has ended, for people; empty: somebody does.
    #[must_use]
    pub fn waits_for(&self) -> String {
        let is_new = self.choosing.is_none_or(|(_, since_ns)| self.now_ns < since_ns + WAITS_NS);
        match self.course.leader {
            Some(_) if self.course.bids.is_empty() || is_new => String::new(),
            _ => self.course.choose(&self.hosts).err().unwrap_or_default(),
        }
    }

    fn propose(&mut self, entry: Entry) {
        self.proposed_at_ns = Some(self.now_ns);
        self.actions.push(Action::Propose(entry));
    }

    fn propose_cannot(&mut self, term: u64, why: String) {
        if self.current && term == self.course.term && self.course.leader.as_ref() == Some(&self.me) {
            self.propose(Entry::Cannot { term, host: self.me.clone(), why, at_ms: self.wall_ms });
        }
    }

    /// Whether the end of that process ends the leader's term. The end of a former one does not.
    const fn is_the_leaders(&self, process: u32, end: End) -> bool {
        let of_host = matches!(end, End::Host | End::PlannedHost);
        process != 0 && self.course.process == process
            || process == 0 && of_host
            || self.course.process == 0 && (!self.cold || of_host)
    }

    fn leads(&self) -> bool {
        self.course.leader.as_ref() == Some(&self.me)
    }

    fn step(&mut self) {
        if self.proposed_at_ns.is_some_and(|at_ns| self.now_ns >= at_ns + AGAIN_NS) {
            self.proposed_at_ns = None;
        }
        // A proposal may be lost; these two have nobody else who would make them.
        if self.proposed_at_ns.is_none()
            && let Some(entry) = self.here.clone().or_else(|| self.handed.clone())
        {
            self.propose(entry);
        }
        self.direct();
        if self.current && !self.fenced {
            self.end_pause();
            self.look_for_a_leader();
        }
    }

    /// Tells the server what it should be.
    fn direct(&mut self) {
        if self.busy || self.now_ns < self.retry_at_ns {
            return;
        }
        if self.fenced {
            // Nothing leaves this host, and others may lead by now. Whoever opens the fence must not find a server that takes writes.
            if self.report.as_ref().is_ok_and(|report| report.primary) {
                self.tell(Told::Close, Action::Close);
            }
            return;
        }
        if !self.current {
            return;
        }
        let term = self.course.term;
        if self.course.leader.is_some() && !self.leads() {
            self.yield_to_leader(term);
        }
        let Ok(report) = self.report.clone() else { return };
        if self.leads() {
            self.direct_leader(term, &report);
            return;
        }
        let Some(address) = self.course.leader.as_ref().and_then(|leader| self.course.hosts.get(leader)).cloned() else { return };
        let told = Told::Follow { term, address: address.clone() };
        if self.told != told || report.primary || report.follows.as_ref() != Some(&address) {
            self.tell(told, Action::Follow { term, address });
        }
    }

    /// A server leads in a term without a break, or never again in it: others may have seen its end, or that its host was fenced, and their proposals to end
    /// the term may be under way.
    fn direct_leader(&mut self, term: u64, report: &Report) {
        if self.handing == Some(term) && self.told == Told::Close {
            return; // the next leader is to be decided
        }
        let instance = match &self.told {
            Told::Lead { term: of, instance } if *of == term => {
                if *instance == report.instance && report.primary {
                    self.say_started(term);
                    self.hand_over();
                    return;
                }
                None
            }
            _ if self.broken == Some(term) => None,
            // It has led since before this manager began.
            _ if report.primary => Some(report.instance.clone()),
            _ => self.may_lead.take_if(|(of, _)| *of == term).map(|(_, instance)| instance),
        };
        if let Some(instance) = instance {
            self.tell(Told::Lead { term, instance: instance.clone() }, Action::Lead { term, instance });
        } else if report.primary && !(self.cold && self.awaits()) {
            self.broken = Some(term);
            self.tell(Told::Close, Action::Close);
        } else if self.proposed_at_ns.is_none() {
            self.broken = Some(term);
            self.end_term(term, report);
        }
    }

    /// A server that has followed until the end has more than one that begins with what is on its disk. In a pause, and where its end was planned, the
    /// leader's own leads nevertheless, in a term of its own, if it has its data.
    fn end_term(&mut self, term: u64, report: &Report) {
        let (host, at_ms) = (self.me.clone(), self.wall_ms);
        let is_awaited = self.awaits();
        let why = if self.course.paused.is_some() { "its server was restarted in a pause" } else { "its server was restarted" };
        if !self.cold
            && self.held.is_some_and(|(of, had_data, _)| of == term && had_data)
            && !report.has_data
            && report.usable.is_ok()
        {
            self.propose_cannot(term, "its server came back without its data".into());
        } else if self.course.paused.is_none() && !is_awaited {
            // How it ended is known in a moment, if its process was watched.
            let since_ns = self.missed.filter(|(of, _)| *of == term).map_or(self.now_ns, |(_, at_ns)| at_ns);
            self.missed = Some((term, since_ns));
            if !self.cold || report.primary {
                self.propose_cannot(term, "its server was restarted, or its host was fenced".into());
            } else if self.now_ns >= since_ns + MISSED_NS {
                self.propose_cannot(term, "its service does not run".into());
            }
        } else if let Some(process) = self.process()
            && report.usable.is_ok()
            && (!self.cold || report.primary)
        {
            self.candidate = Some((term, report.instance.clone(), process));
            self.propose(Entry::Take { term, host, process, force: false, why: why.into(), at_ms });
        }
    }

    /// This host's server's, for an entry: 0 where it begins when it leads.
    fn process(&self) -> Option<u32> {
        match self.lives.get(&self.me) {
            _ if self.cold => Some(0),
            Some(Life::Alive(process)) => Some(*process),
            _ => None,
        }
    }

    /// Until when a leader that was asked to end may come back; nothing: it was not, or this term has another end.
    fn waits_until(&self) -> Option<u64> {
        let (term, at_ns, planned) = self.over_at?;
        let wait_ns = if self.course.switching.is_some() { self.planned.wait_ns().max(HAND_NS) } else { self.planned.wait_ns() };
        (planned && term == self.course.term && self.course.leader.is_some()).then_some(at_ns + wait_ns)
    }

    /// Whether there is a process of this host's server that could be watched.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.report.as_ref().is_ok_and(|report| report.primary || !self.cold)
    }

    /// Whether a leader may yet come back that was asked to end.
    #[must_use]
    pub fn awaits(&self) -> bool {
        self.waits_until().is_some_and(|until_ns| self.now_ns < until_ns)
    }

    fn tell(&mut self, told: Told, action: Action) {
        self.busy = true;
        if self.told == told {
            // It was told before and does something else.
            self.retry_at_ns = self.now_ns + RETRY_NS;
        }
        self.told = told;
        self.actions.push(action);
    }

    /// This host's server leads now; and the end of which process ends this term, where the entry that began it did not say.
    fn say_started(&mut self, term: u64) {
        let process = match self.lives.get(&self.me) {
            Some(Life::Alive(process)) if *process != 0 => *process,
            _ => self.course.process,
        };
        if !self.course.started && self.proposed_at_ns.is_none() && process != 0 {
            self.propose(Entry::Started { term, host: self.me.clone(), process });
        }
    }

    /// What moves with the leader stays here until the next one has it: clients are refused here meanwhile, and try again. Between two hosts of which none has it
    /// their packets would be lost, and TCP tries again a second later. A server that runs only where it leads has nothing behind it on this host by now.
    fn yield_to_leader(&mut self, term: u64) {
        if self.yielded == Some(term) {
            return;
        }
        let since_ns = match self.behind {
            Some((of, at_ns)) if of == term => at_ns,
            _ => {
                self.behind = Some((term, self.now_ns));
                self.actions.push(Action::BeStill);
                self.now_ns
            }
        };
        if self.cold || self.course.started || self.now_ns >= since_ns + YIELD_NS {
            self.yielded = Some(term);
            self.actions.push(Action::Yield);
        }
    }

    fn hand_over(&mut self) {
        let term = self.course.term;
        let Some(to) = self.course.switching.clone() else {
            self.handing = None;
            return;
        };
        if self.handing == Some(term) {
            return;
        }
        let Some(address) = self.course.hosts.get(&to).cloned() else { return };
        self.handing = Some(term);
        // Nobody there would tell its server to lead.
        if self.gone.contains(&to) {
            self.say_handed(term, to.clone(), Err(format!("fide-failover does not run on {to}")));
        } else if !self.cold && !matches!(self.lives.get(&to), Some(Life::Alive(_))) {
            self.say_handed(term, to.clone(), Err(format!("the server of {to} does not run")));
        } else {
            self.busy = true;
            self.actions.push(Action::Hand { term, address });
        }
    }

    fn say_handed(&mut self, term: u64, to: String, result: Result<(), String>) {
        let (host, at_ms) = (self.me.clone(), self.wall_ms);
        let process = match self.lives.get(&to) {
            Some(Life::Alive(process)) => *process,
            _ => 0,
        };
        let entry = match result {
            Ok(()) => Entry::Handed { term, host, to, process, at_ms },
            Err(why) => Entry::NotHanded { term, host, why, at_ms },
        };
        self.handed = Some(entry.clone());
        self.propose(entry);
    }

    /// Every host ends a pause whose time is over: one of them lives.
    fn end_pause(&mut self) {
        let until_ms = self.course.paused.as_ref().and_then(|pause| pause.until_ms);
        if let Some(until_ms) = until_ms
            && self.wall_ms >= until_ms
            && self.proposed_at_ns.is_none()
        {
            self.propose(Entry::Resume { until_ms: Some(until_ms), at_ms: self.wall_ms });
        }
    }

    fn look_for_a_leader(&mut self) {
        let term = self.course.term;
        // Waiting for a server that keeps nothing is in vain.
        if self.leads()
            && self.awaits()
            && self.course.paused.is_none()
            && self.course.switching.is_none()
            && self.held.is_some_and(|(of, had_data, durable)| of == term && had_data && !durable)
            && self.proposed_at_ns.is_none()
        {
            self.propose_cannot(term, "its server was stopped and keeps nothing on disk".into());
        }
        let over = match self.course.leader.as_ref() {
            None if self.course.over.is_empty() => "nobody leads".into(),
            None => self.course.over.clone(),
            Some(leader) => match self.lives.get(leader) {
                Some(Life::Over { process, why, end }) if self.is_the_leaders(*process, *end) && !self.awaits() => why.clone(),
                _ => String::new(),
            },
        };
        if self.course.paused.is_some() || over.is_empty() && self.course.bids.is_empty() {
            self.choosing = None;
            return;
        }
        let since_ns = match self.choosing {
            Some((of, since_ns)) if of == term => since_ns,
            _ => {
                self.choosing = Some((term, self.now_ns));
                // How far the server is now, behind the leader's end.
                self.actions.push(Action::Look);
                return;
            }
        };
        if self.report_at_ns < since_ns {
            return;
        }
        // Where it has just failed it may fail again: another host goes first.
        if self.cold && self.kept.leader == self.me && self.now_ns < since_ns + STEP_BACK_NS {
            return;
        }
        let offer = self.offer(since_ns);
        let differs = |of: &Offer| {
            (of.unable.is_empty(), of.fresh, of.primary, of.has_data, of.process)
                != (offer.unable.is_empty(), offer.fresh, offer.primary, offer.has_data, offer.process)
        };
        if self.course.bids.get(&self.me).is_none_or(differs) {
            if self.proposed_at_ns.is_none() {
                self.candidate = self.report.as_ref().ok().map(|report| (term, report.instance.clone(), offer.process));
                self.propose(Entry::Bid { term, host: self.me.clone(), why: over, offer });
            }
            return;
        }
        self.propose_a_leader(since_ns);
    }

    fn offer(&self, since_ns: u64) -> Offer {
        let term = self.course.term;
        let mut offer = Offer { known_term: self.kept.term, led: self.kept.leader == self.me, ..Offer::default() };
        match &self.report {
            Ok(report) => {
                if let Err(why) = &report.usable {
                    offer.unable.clone_from(why);
                }
                (offer.position, offer.primary, offer.has_data) = (report.position, report.primary, report.has_data);
                // A pause may lie between the leader's end and the choice.
                let since_ns = self.over_at.filter(|(of, ..)| *of == term).map_or(since_ns, |(_, at_ns, _)| since_ns.min(at_ns));
                offer.fresh = term > 0
                    && !report.primary
                    && !self.cold
                    && (self.in_sync.is_some_and(|(of, at_ns)| of == term && at_ns + STALE_AFTER_NS >= since_ns)
                        || self.has_all(report, since_ns));
            }
            Err(why) => offer.unable = format!("its server does not answer: {why}"),
        }
        if offer.fresh
            && let Err(why) = self.may_lag(offer.position, since_ns)
        {
            offer.unable = why;
        }
        match self.lives.get(&self.me) {
            // Any host's is as good as the leader's was.
            _ if self.cold => offer.fresh = term > 0 && offer.unable.is_empty() && self.kept.leader != self.me,
            Some(Life::Alive(process)) => offer.process = *process,
            _ if offer.unable.is_empty() => offer.unable = "its agent does not watch its server".into(),
            _ => {}
        }
        offer
    }

    /// What this term's leader had a moment before its end.
    fn leader_had(&self, since_ns: u64) -> Option<Position> {
        let (position, at_ns) = self.leader_has?;
        (position.term == self.course.term && at_ns + STALE_AFTER_NS >= since_ns).then_some(position)
    }

    /// Whether this is all that the leader was known to have: its link was up, however shortly.
    fn has_all(&self, report: &Report, since_ns: u64) -> bool {
        let follows = |had: Position| report.stream == Some(had.stream) && report.position >= had.position;
        self.leader_had(since_ns).is_some_and(follows)
    }

    /// Whether as much as this is enough of what the leader had.
    fn may_lag(&self, position: u64, since_ns: u64) -> Result<(), String> {
        let Some(lag_max) = self.lag_max else { return Ok(()) };
        let had = self.leader_had(since_ns).ok_or("how much the last leader had is not known (lag_max)")?.position;
        match had.saturating_sub(position) {
            lag if lag > lag_max => Err(format!("lacks {lag} bytes of what the last leader had (lag_max)")),
            _ => Ok(()),
        }
    }

    /// The first host of the order that lives proposes as soon as all have bid; the others in their turn, should it not.
    fn propose_a_leader(&mut self, since_ns: u64) {
        if self.proposed_at_ns.is_some() || !self.course.bids.contains_key(&self.me) {
            return;
        }
        // Whose server has just ended has nothing to offer that a server that followed it has not.
        let has_fresh = self.course.bids.values().any(|offer| offer.fresh && offer.unable.is_empty());
        let answers = |host: &&String| match self.course.leader.as_ref() {
            Some(leader) if has_fresh && leader == *host => false,
            _ => !self.gone.contains(*host) || self.course.bids.contains_key(*host),
        };
        let living: Vec<&String> = self.hosts.iter().filter(answers).collect();
        let rank = living.iter().position(|host| **host == self.me).unwrap_or(living.len()) as u64;
        let complete = living.iter().all(|host| self.course.bids.contains_key(*host));
        let waits = rank + u64::from(!complete);
        if self.now_ns < since_ns + waits * BID_WAIT_NS {
            return;
        }
        if let Ok(host) = self.course.choose(&self.hosts) {
            let why = if self.course.over.is_empty() { "nobody led".into() } else { self.course.over.clone() };
            let process = self.course.bids.get(&host).map_or(0, |offer| offer.process);
            self.propose(Entry::Take { term: self.course.term, host, process, force: false, why, at_ms: self.wall_ms });
        }
    }
}

impl Done {
    /// What went wrong, for people.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let (what, result) = match self {
            Self::Lead(_, result) => ("does not lead", result),
            Self::Follow(_, result) => ("does not follow", result),
            Self::Hand(_, result) => ("does not hand over", result),
            Self::Close(result) => ("still takes writes", result),
        };
        result.as_ref().err().map(|why| format!("the server {what}: {why}"))
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
