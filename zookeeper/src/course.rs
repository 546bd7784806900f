//! Which of the two servers may serve alone: what the entries of the group mean, and what one host does about them. Pure; both hosts read the same entries in
//! the same order.
//!
//! ```text
//!            Both{n}                      Alone{n, a}, Other{n, b}
//! unknown ─────────────► both in step ─────────────────────────────► a alone ──┐
//!                             ▲         the other has ended, or                 │ the other follows again, a's oracle says 0,
//!                             │         its disk is another one                 │ and a write was committed since: Both{n}
//!                             └─────────────────────────────────────────────────┘
//! ```
//! Each of these steps begins a new epoch, so that of several entries for one epoch the first counts. From *a alone* nothing leads to *b alone* but a person
//! who gives up what a has (GivenUp): b lacks what a has committed alone. It leads back to *both in step* only by a's own word, behind a commit that needed
//! both servers, so that b has everything.
//!
//! What a has is on a disk. Which one, and how far it goes, is noted in the group before a serves alone, and both disks' when both are in step. A server on
//! another disk, or on an older copy of its own, is never let serve alone: an empty disk never wins.
//!
//! Whoever may propose to the group can propose any bytes. Both hosts skip what no hook proposes, by
//! the same rule ([`Entry::read`], [`Course::read`]).

use fide_wire::names;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// No epoch and no session comes so far: counting on never overflows.
const NUMBER_MAX: u64 = 1 << 62;
/// Longest text in an entry, bytes.
const TEXT_MAX: usize = 4096;
/// Hosts whose hooks take part, at most: two do, and those that were replaced.
const HOSTS_MAX: usize = 64;

/// What the entries say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Nothing is known of the servers' data: nobody is let serve alone.
    #[default]
    Unknown,
    /// Whatever was committed is on both.
    Both,
    /// This host's server may commit alone; the other one may lack what it did.
    Alone(String),
}

/// A disk of a server, as it is noted beside the data and in the group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// Made up at random, and again each time the server has come back from behind; empty if there is none.
    pub id: String,
    /// The last transaction (zxid) that it had then.
    pub zxid: u64,
}

/// What lies on a server's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// What is noted on it: of an older copy, what was noted then.
    pub mark: Noted,
    /// Its last transaction.
    pub zxid: u64,
}

impl Disk {
    /// What would be noted of it now.
    #[must_use]
    pub fn mark_now(&self) -> Noted {
        Noted { id: self.mark.id.clone(), zxid: self.mark.zxid.min(self.zxid) }
    }

    /// It is the one that was noted, and has everything that it had.
    #[must_use]
    pub fn is(&self, noted: &Noted) -> bool {
        !noted.id.is_empty() && self.mark.id == noted.id && self.mark.zxid.min(self.zxid) >= noted.zxid
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "kebab-case")]
pub enum Entry {
    /// A hook takes part, and has read every entry before its own.
    Here {
        /// Its host.
        host: String,
        /// Which of its connections; later ones have greater numbers.
        session: u64,
    },
    /// The other server has ended: this one may serve alone.
    Alone {
        /// In which epoch.
        epoch: u64,
        /// Whose.
        host: String,
        /// Why.
        why: String,
        /// By its host's clock, milliseconds since 1970.
        at_ms: u64,
        /// On which disk, and behind which transaction.
        #[serde(default)]
        disk: Noted,
    },
    /// This host's server serves together with the other one, and its oracle says 0.
    Follows {
        /// In which epoch.
        epoch: u64,
        /// Whose.
        host: String,
        /// On which disk.
        #[serde(default)]
        disk: Noted,
    },
    /// A write was committed by both.
    Both {
        /// In which epoch.
        epoch: u64,
        /// Who says so.
        host: String,
        /// In which of its connections: what was said in a former one counts no more, because its oracle may say 1 by now.
        session: u64,
        /// On which disk.
        #[serde(default)]
        disk: Noted,
        /// On which disk the other server had followed before the write was begun.
        #[serde(default)]
        follower: String,
    },
    /// This host's disk goes so far now.
    Disk {
        /// In which epoch.
        epoch: u64,
        /// Whose.
        host: String,
        /// Which.
        disk: Noted,
    },
    /// This host's disk is not the one that was noted, or lacks some of what that had; its oracle says 0.
    Other {
        /// In which epoch.
        epoch: u64,
        /// Whose.
        host: String,
        /// What it is instead.
        disk: Noted,
    },
    /// A person gives up whatever this host's server lacks: it may serve alone.
    GivenUp {
        /// In which epoch.
        epoch: u64,
        /// Whose server goes on.
        host: String,
        /// The person says that the other server is gone for good, and does not serve.
        gone: bool,
        /// By a clock, milliseconds since 1970.
        at_ms: u64,
    },
}

impl Entry {
    /// As it is proposed.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads it; nothing for what no hook of this version proposes.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(Self::is_plausible)
    }

    fn is_plausible(&self) -> bool {
        let (host, number, texts): (_, _, [&str; 2]) = match self {
            Self::Here { host, session } => (host, session, ["", ""]),
            Self::Alone { epoch, host, why, disk, .. } => (host, epoch, [why, &disk.id]),
            Self::Follows { epoch, host, disk } | Self::Disk { epoch, host, disk } | Self::Other { epoch, host, disk } => {
                (host, epoch, [&disk.id, ""])
            }
            Self::Both { epoch, host, disk, follower, .. } => (host, epoch, [&disk.id, follower]),
            Self::GivenUp { epoch, host, .. } => (host, epoch, ["", ""]),
        };
        names::check_node(host).is_ok() && *number <= NUMBER_MAX && texts.into_iter().all(is_line)
    }
}

/// Text that may be shown to people.
fn is_line(text: &str) -> bool {
    text.len() <= TEXT_MAX && !text.chars().any(char::is_control)
}

/// The state behind some entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Course {
    /// How often [`Course::mode`] has changed.
    pub epoch: u64,
    /// What is so now.
    pub mode: Mode,
    /// The server that follows in this epoch.
    pub follower: Option<String>,
    /// On which disk.
    #[serde(default)]
    pub follower_disk: Noted,
    /// Each hook's last connection.
    pub sessions: BTreeMap<String, u64>,
    /// Why the last server was let serve alone, and when.
    pub why: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The disks that have everything: both servers', or that of the one that may serve alone.
    #[serde(default)]
    pub disks: BTreeMap<String, Noted>,
    /// The transaction behind which the last server was let serve alone.
    #[serde(default)]
    pub from_zxid: u64,
    /// The server that may serve alone is on this disk, and not on the one that was noted.
    #[serde(default)]
    pub other: Option<Noted>,
}

impl Course {
    /// The next entry.
    pub fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Here { host, session } => {
                if !self.sessions.contains_key(host) && self.sessions.len() >= HOSTS_MAX {
                    return;
                }
                let last = self.sessions.entry(host.clone()).or_default();
                *last = (*last).max(*session);
            }
            Entry::Alone { epoch, host, why, at_ms, disk } => {
                if *epoch == self.epoch && self.mode == Mode::Both && self.is_noted(host, disk) {
                    self.alone(host, why, *at_ms);
                    self.disks.insert(host.clone(), disk.clone());
                    self.from_zxid = disk.zxid;
                }
            }
            Entry::Follows { epoch, host, disk } => {
                let may = self.mode != Mode::Both && self.mode != Mode::Alone(host.clone());
                // A hook of a release that noted no disks counts for nothing.
                if *epoch == self.epoch && may && !disk.id.is_empty() {
                    (self.follower, self.follower_disk) = (Some(host.clone()), disk.clone());
                }
            }
            Entry::Both { epoch, host, session, disk, follower } => {
                let may = match &self.mode {
                    Mode::Unknown => true,
                    Mode::Alone(alone) => alone == host && self.is_noted(host, disk),
                    Mode::Both => false,
                };
                let other = self.follower.clone().filter(|other| other != host && self.follower_disk.id == *follower);
                if let Some(other) = other
                    && *epoch == self.epoch
                    && may
                    && self.sessions.get(host) == Some(session)
                {
                    self.disks = [(host.clone(), disk.clone()), (other, self.follower_disk.clone())].into();
                    self.next(Mode::Both);
                    self.forget_what_nobody_noted();
                }
            }
            Entry::Disk { epoch, host, disk } => {
                let is_first = self.mode == Mode::Alone(host.clone()) && !self.disks.contains_key(host);
                if *epoch == self.epoch && (is_first || self.is_noted(host, disk)) {
                    self.disks.insert(host.clone(), disk.clone());
                    if is_first {
                        self.from_zxid = disk.zxid;
                    }
                    if self.mode == Mode::Alone(host.clone()) {
                        self.other = None;
                    }
                }
            }
            Entry::Other { epoch, host, disk } => {
                if *epoch != self.epoch || !self.disks.contains_key(host) || self.is_noted(host, disk) {
                    return;
                }
                if self.mode == Mode::Alone(host.clone()) {
                    self.other = Some(disk.clone());
                } else if let Some(rest) = self.disks.keys().find(|rest| *rest != host).cloned() {
                    self.alone(&rest, &format!("the disk of {host} is another one, or older"), self.at_ms);
                }
            }
            Entry::GivenUp { epoch, host, gone, at_ms } => {
                if *epoch == self.epoch && self.may_be_given_up(*gone) && self.sessions.contains_key(host) {
                    self.disks.clear();
                    self.alone(host, "a person has given up what it lacks", *at_ms);
                }
            }
        }
    }

    /// The state that a former hook or release has kept; nothing for what none has written. To go
    /// on from nothing instead would contradict the other host.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut course: Self = serde_json::from_slice(bytes).ok()?;
        if !course.is_plausible() {
            return None;
        }
        course.forget_what_nobody_noted();
        Some(course)
    }

    fn is_plausible(&self) -> bool {
        let alone = match &self.mode {
            Mode::Alone(host) => Some(host),
            Mode::Unknown | Mode::Both => None,
        };
        let mut hosts = self.sessions.keys().chain(self.disks.keys()).chain(&self.follower).chain(alone);
        let disks = self.disks.values().chain(&self.other).chain([&self.follower_disk]);
        self.epoch <= NUMBER_MAX
            && self.sessions.len() <= HOSTS_MAX
            && self.disks.len() <= HOSTS_MAX
            && self.sessions.values().all(|session| *session <= NUMBER_MAX)
            && hosts.all(|host| names::check_node(host).is_ok())
            && disks.map(|disk| &disk.id).chain([&self.why]).all(|text| is_line(text))
    }

    /// Whether a person may give up what a server lacks now.
    #[must_use]
    pub const fn may_be_given_up(&self, gone: bool) -> bool {
        gone || self.other.is_some()
    }

    /// Whether this host's server has served alone, and not on this disk, or on a newer state of it.
    #[must_use]
    pub fn lacks(&self, host: &str, disk: &Disk) -> bool {
        self.mode == Mode::Alone(host.into()) && self.disks.get(host).is_some_and(|noted| !disk.is(noted))
    }

    /// Whether this is the disk that was noted, no older.
    fn is_noted(&self, host: &str, disk: &Noted) -> bool {
        let disk = Disk { mark: disk.clone(), zxid: disk.zxid };
        self.disks.get(host).is_some_and(|noted| disk.is(noted))
    }

    /// This host's server has everything, the other one may lack some.
    fn alone(&mut self, host: &str, why: &str, at_ms: u64) {
        self.next(Mode::Alone(host.into()));
        (self.why, self.at_ms) = (why.into(), at_ms);
        self.disks.retain(|noted, _| noted == host);
        self.from_zxid = self.disks.get(host).map_or(0, |disk| disk.zxid);
    }

    /// By a release that noted no disks both were in step, on disks that nobody knows.
    fn forget_what_nobody_noted(&mut self) {
        if self.mode == Mode::Both && (self.disks.len() != 2 || self.disks.values().any(|disk| disk.id.is_empty())) {
            self.mode = Mode::Unknown;
            self.disks.clear();
        }
    }

    fn next(&mut self, mode: Mode) {
        self.epoch += 1;
        (self.mode, self.follower, self.follower_disk, self.other) = (mode, None, Noted::default(), None);
    }
}

/// What a server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nobody listens: its process has ended, and the next one may have another disk.
    Ended,
    /// Nobody answers.
    Down,
    /// It answers, and does not serve.
    Waits,
    /// It leads.
    Leads,
    /// It follows.
    Follows,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Propose it.
    Propose(Entry),
    /// Let the oracle say this, on the disk before anything else is done.
    Oracle(bool),
    /// Have a write committed by the server, and tell the result.
    Prove,
    /// Note on the disk how far it goes now, if this still is what is noted there, or else a new identity, and tell the result.
    Mark(Option<Noted>),
}

/// What was proposed and had no effect is proposed again after so long.
const AGAIN_MS: u64 = 1_000;
/// A server that is down is not let serve alone before the other host's had its chance.
const DOWN_MS: u64 = 1_000;
/// How far a disk goes is noted again after so long: an older copy than that is recognised.
const NOTE_EVERY_MS: u64 = 1_000;

/// One host's part.
#[derive(Clone, Debug)]
pub struct Judge {
    me: String,
    course: Course,
    session: u64,
    current: bool,
    look: Option<Look>,
    /// How often something has happened that looks begun before it say nothing about.
    turns: u64,
    /// [`Judge::turns`] when the last look was begun.
    looked_in: u64,
    /// What lies on this server's disk, since its process began.
    disk: Option<Disk>,
    /// The disk is being marked: anew, in this epoch.
    marking: Option<Option<u64>>,
    /// The disk got this identity in this epoch.
    marked: Option<(u64, String)>,
    /// What could not be marked is not tried again before.
    mark_at_ms: u64,
    noted_at_ms: Option<u64>,
    /// The other server has ended: why, and since when this is known.
    ended: Option<(String, u64)>,
    /// The other server follows: a proof is worth trying.
    is_followed: bool,
    /// A write is being tried, since the other server has followed on this disk.
    proving: Option<String>,
    /// The write was committed in this epoch, and on this disk of the other's: until the entry for it comes, the oracle says 0.
    proved: Option<(u64, String)>,
    oracle: Option<bool>,
    proposed_at_ms: Option<u64>,
    now_ms: u64,
    wall_ms: u64,
    actions: Vec<Action>,
}

impl Judge {
    /// A host that has read nothing yet; its oracle says this, or there is none.
    #[must_use]
    pub fn new(me: &str, oracle: Option<bool>) -> Self {
        let mut of = Self {
            me: me.into(),
            course: Course::default(),
            session: 0,
            current: false,
            look: None,
            turns: 0,
            looked_in: 0,
            disk: None,
            marking: None,
            marked: None,
            mark_at_ms: 0,
            noted_at_ms: None,
            ended: None,
            is_followed: false,
            proving: None,
            proved: None,
            oracle,
            proposed_at_ms: None,
            now_ms: 0,
            wall_ms: 0,
            actions: Vec::new(),
        };
        if oracle.is_none() {
            of.say(false);
        }
        of
    }

    /// What the entries say.
    #[must_use]
    pub const fn course(&self) -> &Course {
        &self.course
    }

    /// Whether all entries were read that were there when this host came.
    #[must_use]
    pub const fn is_current(&self) -> bool {
        self.current
    }

    /// Whether the server is to be asked what it does, now and then: not while both are in step, because it writes that to its log.
    #[must_use]
    pub fn wants_looks(&self) -> bool {
        !self.current || self.course.mode != Mode::Both || self.ended.is_some()
    }

    /// What a look that begins now is told by.
    #[must_use]
    pub const fn turn(&self) -> u64 {
        self.turns
    }

    /// Whether it is to be asked at once: what it did before an entry or a verdict says nothing of
    /// what it does behind it.
    #[must_use]
    pub fn wants_look_now(&self) -> bool {
        self.current && self.wants_looks() && self.looked_in != self.turns
    }

    /// Whether the disk is to be read at once, not only now and then.
    #[must_use]
    pub const fn wants_disk(&self) -> bool {
        self.disk.is_none()
    }

    /// What is missing on this host's disk: what was noted, in the place of what lies there.
    #[must_use]
    pub fn missing(&self) -> Option<&Noted> {
        let noted = self.course.disks.get(&self.me).filter(|_| self.current)?;
        self.disk.as_ref().filter(|disk| !disk.is(noted)).map(|_| noted)
    }

    /// This host takes part, for the first time or again: all entries are read from the first one on.
    pub fn begin(&mut self, session: u64) {
        (self.session, self.current, self.course) = (session, false, Course::default());
        self.actions.push(Action::Propose(Entry::Here { host: self.me.clone(), session }));
    }

    /// Time goes by: of a clock that only grows, and as people tell it; milliseconds.
    pub fn set_now(&mut self, now_ms: u64, wall_ms: u64) {
        (self.now_ms, self.wall_ms) = (now_ms, wall_ms);
        self.step();
    }

    /// The next entry.
    pub fn handle_entry(&mut self, entry: &Entry) {
        let epoch = self.course.epoch;
        self.course.apply(entry);
        let is_own = matches!(entry, Entry::Here { host, session } if *host == self.me && *session == self.session);
        let last = self.course.sessions.get(&self.me).copied().unwrap_or_default();
        if (is_own || self.current) && last > self.session {
            // This host's clock went back: a former connection has a greater number.
            (self.session, self.current) = (last + 1, false);
            self.actions.push(Action::Propose(Entry::Here { host: self.me.clone(), session: self.session }));
        } else if is_own {
            self.current = true;
        }
        if self.course.epoch != epoch {
            (self.proposed_at_ms, self.is_followed) = (None, false);
            self.turns += 1;
        }
        if matches!(entry, Entry::Follows { epoch, host, .. } if *epoch == self.course.epoch && *host != self.me) {
            self.is_followed = true;
        }
        self.step();
    }

    /// The state behind entries that are not kept any more.
    pub fn handle_snapshot(&mut self, course: Course) {
        self.course = course;
        self.turns += 1;
    }

    /// The group or the agent is lost.
    pub fn handle_disconnected(&mut self) {
        self.current = false;
        (self.ended, self.proposed_at_ms) = (None, None);
    }

    /// How this host's server is, as a look says that was begun at this turn ([`Judge::turn`]).
    pub fn handle_look(&mut self, look: Look, begun_in: u64) {
        if self.look == Some(Look::Ended) && look != Look::Ended {
            self.disk = None;
        }
        (self.look, self.looked_in) = (Some(look), begun_in);
        self.step();
    }

    /// What lies on the server's disk, read since its process began.
    pub fn handle_disk(&mut self, disk: Disk) {
        self.disk = Some(disk);
        self.step();
    }

    /// What became of [`Action::Mark`].
    pub fn handle_marked(&mut self, disk: Option<Disk>) {
        let epoch = self.marking.take().flatten();
        if let Some(disk) = disk {
            if let Some(epoch) = epoch {
                self.marked = Some((epoch, disk.mark.id.clone()));
            }
            self.disk = Some(disk);
        } else {
            self.mark_at_ms = self.now_ms + AGAIN_MS;
        }
        self.step();
    }

    /// The other server has ended (why), or a new one is there.
    pub fn handle_peer(&mut self, ended: Option<String>) {
        self.ended = ended.map(|why| (why, self.now_ms));
        self.turns += 1;
        self.step();
    }

    /// What became of [`Action::Prove`].
    pub fn handle_proof(&mut self, is_committed: bool) {
        let follower = self.proving.take();
        if let Some(follower) = follower.filter(|_| is_committed && self.current && self.oracle == Some(false)) {
            self.proved = Some((self.course.epoch, follower));
        } else {
            // Not again before the other one says again that it follows.
            self.is_followed = false;
        }
        self.step();
    }

    /// What is to be done, in this order.
    pub fn poll_action(&mut self) -> Option<Action> {
        (!self.actions.is_empty()).then(|| self.actions.remove(0))
    }

    fn say(&mut self, oracle: bool) {
        if self.oracle != Some(oracle) {
            self.oracle = Some(oracle);
            self.actions.push(Action::Oracle(oracle));
        }
    }

    fn propose(&mut self, entry: Entry) {
        if self.proposed_at_ms.is_none_or(|at_ms| self.now_ms >= at_ms + AGAIN_MS) {
            self.proposed_at_ms = Some(self.now_ms);
            self.actions.push(Action::Propose(entry));
        }
    }

    fn step(&mut self) {
        if !self.current {
            return;
        }
        let (epoch, host) = (self.course.epoch, self.me.clone());
        let noted = self.course.disks.get(&self.me).cloned();
        let is_right = self.disk.as_ref().zip(noted.as_ref()).map(|(disk, noted)| disk.is(noted));
        match self.course.mode.clone() {
            Mode::Both => {
                self.say(false);
                match (is_right, self.disk.clone()) {
                    (Some(true), Some(disk)) => {
                        self.note(&disk, noted.as_ref());
                        if let Some((why, since_ms)) = self.ended.clone()
                            && (self.serves_or_waits() || self.now_ms >= since_ms + DOWN_MS)
                        {
                            self.propose(Entry::Alone { epoch, host, why, at_ms: self.wall_ms, disk: disk.mark });
                        }
                    }
                    (Some(false), Some(disk)) => self.propose(Entry::Other { epoch, host, disk: disk.mark_now() }),
                    _ => {}
                }
            }
            Mode::Alone(alone) if alone == self.me => self.step_alone(noted.as_ref(), is_right),
            Mode::Alone(_) => {
                self.say(false);
                if matches!(self.look_now(), Some(Look::Follows | Look::Leads)) {
                    self.follow();
                }
            }
            // What the oracle says was said by an operator, or is left from a group that has ended.
            Mode::Unknown if self.look_now() == Some(Look::Follows) => {
                self.say(false);
                self.follow();
            }
            Mode::Unknown => self.prove(),
        }
    }

    /// This server has everything, if it is on the disk that was noted.
    fn step_alone(&mut self, noted: Option<&Noted>, is_right: Option<bool>) {
        let (epoch, host) = (self.course.epoch, self.me.clone());
        // The next process begins with 0, until its disk is known.
        if self.look == Some(Look::Ended) {
            self.say(false);
        }
        match is_right {
            None if noted.is_none() => {
                // A person has given up what it lacks: what lies there now is everything.
                self.say(false);
                if let Some(disk) = self.own() {
                    self.propose(Entry::Disk { epoch, host, disk });
                }
            }
            // What it lacks is missing for good if it serves: with the other server, too.
            Some(false) => {
                self.say(false);
                if let Some(disk) = self.disk.clone().filter(|disk| self.course.other.as_ref() != Some(&disk.mark_now())) {
                    self.propose(Entry::Other { epoch, host, disk: disk.mark_now() });
                }
            }
            Some(true) if self.course.other.is_some() => {
                let disk = self.disk.clone().unwrap_or_default().mark;
                self.propose(Entry::Disk { epoch, host, disk });
            }
            Some(true) => {
                let disk = self.disk.clone().unwrap_or_default();
                self.note(&disk, noted);
                self.prove();
                if self.proving.is_none() && !self.is_proved() && self.look.is_some_and(|look| look != Look::Ended) {
                    self.say(true);
                }
            }
            None => {}
        }
    }

    fn serves_or_waits(&self) -> bool {
        !matches!(self.look_now(), None | Some(Look::Ended | Look::Down))
    }

    /// What the server does since the last entry or verdict.
    fn look_now(&self) -> Option<Look> {
        self.look.filter(|look| self.looked_in == self.turns || *look == Look::Ended)
    }

    /// How far the disk goes is noted on it first, then in the group.
    fn note(&mut self, disk: &Disk, noted: Option<&Noted>) {
        let Some(noted) = noted else { return };
        if self.noted_at_ms.is_some_and(|at_ms| self.now_ms < at_ms + NOTE_EVERY_MS) {
            return;
        }
        if disk.mark.zxid > noted.zxid {
            self.noted_at_ms = Some(self.now_ms);
            let (epoch, host) = (self.course.epoch, self.me.clone());
            self.actions.push(Action::Propose(Entry::Disk { epoch, host, disk: disk.mark.clone() }));
        } else if disk.zxid > noted.zxid {
            self.mark(None, Some(disk.mark.clone()));
        }
    }

    /// The identity that the disk gets once in each epoch in which it is to be noted: older copies then have another one.
    fn own(&mut self) -> Option<Noted> {
        let disk = self.disk.as_ref()?;
        let is_own = |(epoch, id): &(u64, String)| *epoch == self.course.epoch && *id == disk.mark.id;
        if self.marked.as_ref().is_some_and(is_own) && disk.is(&disk.mark) {
            return Some(disk.mark.clone());
        }
        self.mark(Some(self.course.epoch), None);
        None
    }

    fn mark(&mut self, epoch: Option<u64>, expected: Option<Noted>) {
        if self.marking.is_none() && self.now_ms >= self.mark_at_ms {
            self.marking = Some(epoch);
            self.actions.push(Action::Mark(expected));
        }
    }

    fn follow(&mut self) {
        if let Some(disk) = self.own() {
            self.propose(Entry::Follows { epoch: self.course.epoch, host: self.me.clone(), disk });
        }
    }

    fn is_proved(&self) -> bool {
        self.proved
            .as_ref()
            .is_some_and(|(epoch, follower)| *epoch == self.course.epoch && *follower == self.course.follower_disk.id)
    }

    /// The other server follows: a write that both have shows that it has everything.
    fn prove(&mut self) {
        let (epoch, host, session) = (self.course.epoch, self.me.clone(), self.session);
        let is_followed = self.course.follower.as_ref().is_some_and(|follower| *follower != self.me);
        if !is_followed || !(self.is_followed || self.is_proved()) || self.proving.is_some() {
            return;
        }
        let disk = match &self.course.mode {
            Mode::Unknown => self.own(),
            _ => self.disk.as_ref().map(|disk| disk.mark.clone()),
        };
        let Some(disk) = disk else { return };
        let follower = self.course.follower_disk.id.clone();
        if self.is_proved() {
            self.propose(Entry::Both { epoch, host, session, disk, follower });
        } else {
            self.proving = Some(follower);
            self.say(false);
            self.actions.push(Action::Prove);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, VecDeque};

    const HOSTS: [&str; 2] = ["a", "b"];

    type Writes = BTreeSet<u64>;

    /// What can be copied, and put back later.
    #[derive(Clone, Debug, Default)]
    struct Data {
        /// The writes, by number.
        has: Writes,
        mark: Noted,
    }

    impl Data {
        fn disk(&self) -> Disk {
            Disk { mark: self.mark.clone(), zxid: self.has.last().copied().unwrap_or(0) }
        }
    }

    /// Two servers, their hooks and the group between them.
    struct World {
        judges: Vec<Judge>,
        /// Of how many entries each hook has read.
        read: [usize; 2],
        log: Vec<Entry>,
        /// Behind all of them.
        course: Course,
        proposed: VecDeque<Entry>,
        oracles: [bool; 2],
        up: [bool; 2],
        /// The server follows the other one, or is followed.
        joined: bool,
        /// Writes that were answered, and what each server has.
        answered: Writes,
        written: u64,
        data: [Data; 2],
        copies: [Data; 2],
        marks: [Option<Option<Noted>>; 2],
        ids: u64,
        proofs: [bool; 2],
        /// Where every write, so that none may be missing on a new disk, is looked for before a server begins (fide-zookeeper check).
        checks: bool,
        sessions: u64,
        now_ms: u64,
        /// How long a step takes.
        pace_ms: u64,
    }

    impl World {
        fn new(checks: bool) -> Self {
            let mut of = Self {
                judges: HOSTS.map(|host| Judge::new(host, None)).into(),
                read: [0; 2],
                log: Vec::new(),
                course: Course::default(),
                proposed: VecDeque::new(),
                oracles: [false; 2],
                up: [true; 2],
                joined: true,
                answered: Writes::new(),
                written: 0,
                data: Default::default(),
                copies: Default::default(),
                marks: Default::default(),
                ids: 0,
                proofs: [false; 2],
                checks,
                sessions: 0,
                now_ms: 0,
                pace_ms: 300,
            };
            (0..2).for_each(|host| of.begin(host));
            of
        }

        fn begin(&mut self, host: usize) {
            self.sessions += 1;
            self.read[host] = 0;
            self.judges[host].handle_disconnected();
            self.judges[host].begin(self.sessions);
            self.act(host);
        }

        fn act(&mut self, host: usize) {
            while let Some(action) = self.judges[host].poll_action() {
                match action {
                    Action::Propose(entry) => self.proposed.push_back(entry),
                    Action::Oracle(says) => self.oracles[host] = says,
                    Action::Prove => self.proofs[host] = true,
                    Action::Mark(expected) => self.marks[host] = Some(expected),
                }
            }
            assert!(self.oracles != [true, true], "both may serve alone");
            for (host, name) in HOSTS.iter().enumerate() {
                let lacks = || self.answered.difference(&self.data[host].has).collect::<Vec<_>>();
                assert!(!self.oracles[host] || lacks().is_empty(), "{name} may serve alone and lacks {:?}", lacks());
            }
        }

        /// Both serve, or one that its oracle lets.
        fn write(&mut self, host: usize) {
            let both = self.joined && self.up == [true, true] && !self.oracles[host];
            if both || self.up[host] && self.oracles[host] {
                self.written += 1;
                self.answered.insert(self.written);
                for (of, data) in self.data.iter_mut().enumerate() {
                    if both || of == host {
                        data.has.insert(self.written);
                    }
                }
            }
        }

        fn look(&mut self, host: usize, look: Look) {
            let now = self.judges[host].turn();
            self.judges[host].handle_look(look, now);
        }

        /// The server's process ends; its hook sees that before a person changes its disk.
        fn end(&mut self, host: usize) {
            (self.up[host], self.joined) = (false, false);
            self.look(host, Look::Ended);
            self.act(host);
        }

        fn change(&mut self, host: usize, data: Data) {
            self.end(host);
            self.marks[host] = None;
            self.judges[host].handle_marked(None);
            self.data[host] = data;
            self.judges[host].handle_disk(self.data[host].disk());
            self.act(host);
        }

        /// The hook's process ends: it knows nothing any more but what the oracle says.
        fn restart_hook(&mut self, host: usize) {
            self.judges[host] = Judge::new(HOSTS[host], Some(self.oracles[host]));
            (self.proofs[host], self.marks[host]) = (false, None);
            self.begin(host);
        }

        fn is_lost(&self) -> bool {
            self.data.iter().all(|data| !self.answered.is_subset(&data.has))
        }

        fn step(&mut self, choice: u8, host: usize) {
            self.now_ms += self.pace_ms;
            let other = 1 - host;
            match choice {
                0 | 1 => {
                    if let Some(entry) = self.proposed.pop_front() {
                        self.course.apply(&entry);
                        self.log.push(entry);
                    }
                }
                // Out of order: of another host's, or of a connection that has ended.
                2 => self.proposed.rotate_left(usize::from(!self.proposed.is_empty())),
                3..=5 => {
                    if let Some(entry) = self.log.get(self.read[host]).cloned() {
                        self.read[host] += 1;
                        self.judges[host].handle_entry(&entry);
                    }
                }
                6 => {
                    self.end(host);
                    self.judges[other].handle_peer(Some("killed".into()));
                }
                // A verdict that is wrong.
                7 => self.judges[other].handle_peer(Some("silent".into())),
                8 => {
                    let is_kept_out =
                        self.checks && !self.up[host] && self.judges[host].course.lacks(HOSTS[host], &self.data[host].disk());
                    if !is_kept_out {
                        self.up[host] = true;
                        self.look(host, Look::Waits);
                        self.judges[other].handle_peer(None);
                    }
                }
                // A follower gets what the leader has, who has the last write.
                9 | 10 if self.up == [true, true] => {
                    self.joined = true;
                    let leads = usize::from(self.data[1].disk().zxid > self.data[0].disk().zxid || self.oracles[1]);
                    self.data[1 - leads].has = self.data[leads].has.clone();
                    for host in 0..2 {
                        self.look(host, if host == leads { Look::Leads } else { Look::Follows });
                        self.act(host);
                    }
                }
                11 => self.joined = false,
                12 | 13 => {
                    if std::mem::take(&mut self.proofs[host]) {
                        let by_both = self.joined && self.up == [true, true] && !self.oracles[0] && !self.oracles[1];
                        if by_both {
                            self.write(host);
                        }
                        self.judges[host].handle_proof(by_both);
                    }
                }
                14 => {
                    // Also with a clock that goes back.
                    self.sessions = self.sessions.saturating_sub(u64::from(self.now_ms.is_multiple_of(7)) * 3);
                    self.begin(host);
                }
                15 => self.restart_hook(host),
                16 | 17 => self.judges[host].handle_disk(self.data[host].disk()),
                18 | 19 => {
                    if let Some(expected) = self.marks[host].take() {
                        let data = &mut self.data[host];
                        let id = match expected {
                            Some(expected) if expected != data.mark => None,
                            Some(expected) => Some(expected.id),
                            None => {
                                self.ids += 1;
                                Some(self.ids.to_string())
                            }
                        };
                        let disk = id.map(|id| {
                            data.mark = Noted { id, zxid: data.disk().zxid };
                            data.disk()
                        });
                        self.judges[host].handle_marked(disk);
                    }
                }
                20 => self.copies[host] = self.data[host].clone(),
                // Its disk is empty, or an older one; the other's hook hears that the server has ended.
                21 | 22 => {
                    let data = if choice == 21 { Data::default() } else { self.copies[host].clone() };
                    // What was lost before anything was known, or is younger than the last note, nobody can tell.
                    let known = self.judges[host].course().disks.get(HOSTS[host]);
                    let is_told = known.is_some_and(|noted| !data.disk().is(noted)) && self.course.mode != Mode::Unknown;
                    if !is_told && !self.answered.is_subset(&data.has) {
                        return;
                    }
                    self.change(host, data);
                    if self.now_ms.is_multiple_of(2) {
                        // The whole host, which says 0 when it boots.
                        self.oracles[host] = false;
                        self.restart_hook(host);
                    }
                    self.judges[other].handle_peer(Some("killed".into()));
                }
                _ => self.write(host),
            }
            self.judges[host].set_now(self.now_ms, 0);
            (0..2).for_each(|host| self.act(host));
        }

        /// Nothing fails any more.
        fn settle(&mut self) {
            // Quicker than hooks propose again.
            self.pace_ms = 10;
            for _ in 0..100 {
                while !self.proposed.is_empty() {
                    self.step(0, 0);
                }
                while self.read.iter().any(|read| *read < self.log.len()) {
                    (0..2).for_each(|host| self.step(3, host));
                }
                for choice in [16, 18, 8, 9, 18, 12, 23] {
                    (0..2).for_each(|host| self.step(choice, host));
                }
                self.now_ms += AGAIN_MS / 8;
            }
            self.pace_ms = 300;
        }

        /// One host's hook reads and does what there is, for some seconds.
        fn catch_up(&mut self, host: usize) {
            for _ in 0..10 {
                self.step(16, host);
                self.step(18, host);
                while !self.proposed.is_empty() {
                    self.step(0, host);
                }
                while self.read[host] < self.log.len() {
                    self.step(3, host);
                }
            }
        }

        fn modes(&self) -> [Mode; 2] {
            [0, 1].map(|host| self.judges[host].course().mode.clone())
        }
    }

    #[test]
    fn one_of_two_serves_on_and_the_other_comes_back() {
        let mut of = World::new(false);
        of.settle();
        assert_eq!((of.modes(), of.oracles), ([Mode::Both, Mode::Both], [false; 2]));
        of.step(6, 1);
        of.catch_up(0);
        assert_eq!((of.modes()[0].clone(), of.oracles), (Mode::Alone("a".into()), [true, false]));
        let alone = of.answered.len();
        of.write(0);
        assert_eq!(of.answered.len(), alone + 1);
        // Its own end lets nobody else serve, who lacks what it wrote.
        of.step(6, 0);
        of.up[1] = true;
        of.catch_up(1);
        assert_eq!(of.oracles, [false, false]);
        of.settle();
        assert_eq!((of.modes()[1].clone(), of.is_lost()), (Mode::Both, false));
        assert!(of.data.iter().all(|data| of.answered.is_subset(&data.has)));
    }

    /// The follower is killed. Its hook last looked at it while it followed.
    #[test]
    fn what_a_server_did_before_it_was_killed_says_nothing_of_what_it_does() {
        let mut of = World::new(false);
        of.settle();
        assert_eq!(of.modes(), [Mode::Both, Mode::Both]);
        let before = of.judges[1].turn();
        of.judges[1].handle_look(Look::Follows, before);
        (of.up[1], of.joined) = (false, false);
        of.judges[0].handle_peer(Some("killed".into()));
        of.act(0);
        assert!(of.judges[0].wants_look_now() && of.proposed.is_empty(), "it asks its server first");
        of.look(0, Look::Leads);
        of.act(0);
        while !of.proposed.is_empty() || of.read[1] < of.log.len() {
            of.step(0, 0);
            (0..2).for_each(|host| of.step(3, host));
            // Begun before, and come late.
            of.judges[1].handle_look(Look::Follows, before);
            of.act(1);
        }
        assert_eq!(of.modes(), [Mode::Alone("a".into()), Mode::Alone("a".into())]);
        assert_eq!(of.oracles, [true, false]);
        assert!(of.log.iter().rev().take(3).all(|entry| !matches!(entry, Entry::Follows { .. })), "{:?}", of.log);
        assert!(of.judges[1].wants_look_now());
        of.look(1, Look::Ended);
        of.act(1);
        assert!(of.proposed.is_empty() && !of.judges[1].wants_look_now());
    }

    /// *a* serves alone, and writes.
    fn alone() -> World {
        let mut of = World::new(false);
        of.settle();
        of.step(20, 0);
        of.step(6, 1);
        of.catch_up(0);
        assert_eq!(of.oracles, [true, false]);
        (0..100).for_each(|_| of.write(0));
        of.catch_up(0);
        of
    }

    #[test]
    fn who_served_alone_and_lost_its_disk_never_serves_alone_again_and_the_other_one_neither() {
        for choice in [21, 22] {
            let mut of = alone();
            of.step(choice, 0);
            assert!(of.is_lost());
            of.settle();
            assert_eq!((of.modes(), of.oracles), ([Mode::Alone("a".into()), Mode::Alone("a".into())], [false; 2]));
            for host in 0..2 {
                let course = of.judges[host].course();
                assert!(course.other.is_some() && course.from_zxid > 0 && course.disks["a"].zxid >= course.from_zxid);
            }
            // A person gives up what is lost.
            let epoch = of.judges[1].course().epoch;
            of.answered = of.data[1].has.clone();
            of.proposed.push_back(Entry::GivenUp { epoch, host: "b".into(), gone: false, at_ms: 1 });
            of.settle();
            assert_eq!((of.modes(), of.oracles), ([Mode::Both, Mode::Both], [false; 2]));
        }
    }

    #[test]
    fn who_gets_the_right_disk_back_serves_on() {
        let mut of = alone();
        let right = of.data[0].clone();
        of.step(21, 0);
        of.catch_up(0);
        assert!(of.judges[0].course().other.is_some() && of.judges[0].missing().is_some());
        of.change(0, right);
        assert!(!of.is_lost());
        of.settle();
        assert_eq!((of.modes(), of.oracles), ([Mode::Both, Mode::Both], [false; 2]));
    }

    #[test]
    fn a_disk_that_goes_while_both_are_in_step_is_not_let_serve_alone() {
        let mut of = World::new(false);
        of.settle();
        // Nobody notices, because the other one's hook is not there.
        of.change(1, Data::default());
        of.step(6, 0);
        of.catch_up(1);
        assert_eq!((of.modes()[1].clone(), of.oracles), (Mode::Alone("a".into()), [false; 2]));
        of.settle();
        assert_eq!((of.modes(), of.is_lost()), ([Mode::Both, Mode::Both], false));
    }

    #[test]
    fn nobody_gives_up_what_is_there() {
        let of = alone();
        let mut course = of.judges[0].course().clone();
        let before = course.clone();
        course.apply(&Entry::GivenUp { epoch: course.epoch, host: "b".into(), gone: false, at_ms: 1 });
        assert_eq!(course, before);
        course.apply(&Entry::GivenUp { epoch: course.epoch, host: "nobody".into(), gone: true, at_ms: 1 });
        assert_eq!(course, before);
        course.apply(&Entry::GivenUp { epoch: course.epoch, host: "b".into(), gone: true, at_ms: 1 });
        assert_eq!((course.mode, course.disks.len()), (Mode::Alone("b".into()), 0));
    }

    #[test]
    fn what_a_release_without_disks_kept_says_nothing_of_them() {
        let kept = r#"{"epoch":3,"mode":"both","follower":null,"sessions":{"a":1},"why":"","at_ms":0}"#;
        let mut course = Course::read(kept.as_bytes()).unwrap();
        assert_eq!(course.mode, Mode::Unknown);
        for entry in [r#"{"entry":"follows","epoch":3,"host":"b"}"#, r#"{"entry":"both","epoch":3,"host":"a","session":1}"#] {
            course.apply(&Entry::read(entry.as_bytes()).unwrap());
        }
        assert_eq!((course.mode, course.follower), (Mode::Unknown, None));
    }

    #[test]
    fn what_no_hook_proposes_is_skipped() {
        let here = |host: &str, session| Entry::Here { host: host.into(), session };
        assert_eq!(Entry::read(&here("a", 7).bytes()), Some(here("a", 7)));
        for host in ["", "a b", "a@b", "a\n", "\u{1b}[2J"] {
            assert_eq!(Entry::read(&here(host, 7).bytes()), None, "{host:?}");
        }
        let disk = |id: &str| Noted { id: id.into(), zxid: u64::MAX };
        let follows = |epoch, id: &str| Entry::Follows { epoch, host: "a".into(), disk: disk(id) };
        assert_eq!(Entry::read(&follows(1, "id").bytes()), Some(follows(1, "id")));
        for entry in [here("a", u64::MAX), follows(u64::MAX, "id"), follows(1, "a\nb"), follows(1, &"x".repeat(5000))] {
            assert_eq!(Entry::read(&entry.bytes()), None, "{entry:?}");
        }
        for bytes in [&b""[..], b"null", b"{}", b"\0\0\0\0", b"{\"entry\":\"here\"}"] {
            assert_eq!(Entry::read(bytes), None, "{bytes:?}");
        }
        // Hosts that somebody made up take no room without end.
        let mut course = Course::default();
        (0..1000).for_each(|n| course.apply(&here(&format!("h{n}"), 1)));
        assert_eq!(course.sessions.len(), HOSTS_MAX);
        assert_eq!(Course::read(&serde_json::to_vec(&course).unwrap()), Some(course));
    }

    #[test]
    fn a_state_that_no_hook_has_kept_is_none() {
        let written = |course: &Course| serde_json::to_vec(course).unwrap();
        let course = Course { epoch: 3, mode: Mode::Alone("a".into()), why: "b has ended".into(), ..Course::default() };
        assert_eq!(Course::read(&written(&course)), Some(course.clone()));
        for bytes in [&b""[..], b"null", b"1e99", b"\0\0\0\0", b"{}"] {
            assert_eq!(Course::read(bytes), None, "{bytes:?}");
        }
        for other in [
            Course { epoch: u64::MAX, ..course.clone() },
            Course { mode: Mode::Alone("a\r".into()), ..course.clone() },
            Course { sessions: [("a".into(), u64::MAX)].into(), ..course.clone() },
            Course { follower: Some(String::new()), ..course.clone() },
            Course { why: "\u{1b}c".into(), ..course },
        ] {
            assert_eq!(Course::read(&written(&other)), None, "{other:?}");
        }
    }

    #[test]
    fn the_greatest_numbers_end_no_hook() {
        let mut judge = Judge::new("a", None);
        judge.begin(5);
        for session in [NUMBER_MAX, u64::MAX] {
            if let Some(entry) = Entry::read(&Entry::Here { host: "a".into(), session }.bytes()) {
                judge.handle_entry(&entry);
            }
            judge.handle_entry(&Entry::Here { host: "a".into(), session: 5 });
            judge.set_now(1000, 1000);
        }
        judge.handle_snapshot(Course { epoch: NUMBER_MAX, mode: Mode::Both, ..Course::default() });
        judge.handle_entry(&Entry::GivenUp { epoch: NUMBER_MAX, host: "a".into(), gone: true, at_ms: u64::MAX });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(
            std::env::var("FIDE_ZOOKEEPER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1_000)
        ))]
        #[test]
        fn never_two_serve_alone_nor_one_that_lacks_a_write_and_at_last_both_are_in_step(
            checks in any::<bool>(),
            steps in prop::collection::vec((0u8..26, 0usize..2), 1..300)
        ) {
            let mut of = World::new(checks);
            for (choice, host) in steps {
                of.step(choice, host);
            }
            let is_lost = of.is_lost();
            of.settle();
            if is_lost && of.modes().iter().any(|mode| matches!(mode, Mode::Alone(_))) {
                // Nobody serves alone on what is left, until a person says so.
                prop_assert_eq!(of.oracles, [false; 2]);
                let course = of.judges[0].course().clone();
                prop_assert!(course.other.is_some());
                of.answered = of.data[0].has.clone();
                of.proposed.push_back(Entry::GivenUp { epoch: course.epoch, host: "a".into(), gone: false, at_ms: 1 });
                of.checks = false;
                of.settle();
            }
            prop_assert_eq!(of.modes(), [Mode::Both, Mode::Both]);
            prop_assert_eq!(of.oracles, [false; 2]);
        }

        #[test]
        fn hostile_entries_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut course = Course::default();
            if let Some(entry) = Entry::read(&bytes) {
                course.apply(&entry);
            }
        }
    }
}
