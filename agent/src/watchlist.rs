//! The processes of this host that others may monitor: who they are, what became of them, and their piggyback bridges.

use crate::bridge::Bridge;
use fide_proto::detector::progress::Look;
use fide_wire::control::WatchStatus;
use fide_wire::names::NAME_MAX;
use fide_wire::verdict::{Cause, ProgressSource};
use fide_xdp::Process;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows of interests have numbers from here on; those of processes lie below.
pub const INTERESTS_FROM: u32 = 0xc000_0000;

/// Where a watch comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The configuration file.
    Config,
    /// `fide monitor`.
    Operator,
    /// The process itself (Listing 1 `join`).
    Joined,
}

impl Origin {
    /// The word in status and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Origin::Config => "config",
            Origin::Operator => "operator",
            Origin::Joined => "joined",
        }
    }
}

/// Whose a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Whoever asked for it, or the process itself.
    User(u32),
    /// The configuration's.
    Configuration,
}

impl Owner {
    /// Of a watch of this origin that this user asked for.
    #[must_use]
    pub const fn of(origin: Origin, uid: u32) -> Self {
        if matches!(origin, Origin::Config) { Owner::Configuration } else { Owner::User(uid) }
    }

    /// The user's number; the configuration is root's.
    #[must_use]
    pub const fn uid(self) -> u32 {
        match self {
            Owner::User(uid) => uid,
            Owner::Configuration => 0,
        }
    }

    /// Whether it takes a name or a process from that one: the configuration from everybody, root from ordinary users, nobody from his like.
    #[must_use]
    pub const fn goes_before(self, other: Self) -> bool {
        match (self, other) {
            (Owner::Configuration, Owner::User(_)) => true,
            (Owner::User(uid), Owner::User(other)) => uid == 0 && other != 0,
            (_, Owner::Configuration) => false,
        }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::User(0) => f.write_str("root"),
            Owner::User(uid) => write!(f, "user {uid}"),
            Owner::Configuration => f.write_str("the configuration"),
        }
    }
}

/// One watched process.
pub struct Watched {
    /// Its name, unique among those alive.
    pub name: String,
    /// Its pid.
    pub pid: u32,
    /// Field 22 of its /proc/PID/stat: with the pid, its identity.
    pub start_ticks: u64,
    /// Its owner.
    pub uid: u32,
    /// Where the watch comes from.
    pub origin: Origin,
    /// The user whose watch it is; 0 for the configuration's.
    pub owner: u32,
    /// Until when a clean end of it is one of a process that hands over to its child (CLOCK_MONOTONIC); 0: never.
    pub settles_ns: u64,
    /// Under whom the watch is counted; 0 for the configuration's.
    pub charged: u32,
    /// Under whom what the process does is counted: looks at its counters, changes of its progress,
    /// piggybacks.
    pub account: u32,
    /// How often its progress counters are looked at, each second.
    pub looks: u64,
    /// How many processes before it had this name, and have ended.
    pub former: u64,
    /// Piggyback bytes granted.
    pub pbsize: u32,
    /// Its bridge, if it joined.
    pub bridge: Option<Bridge>,
    /// The movements of its probe, if it has one.
    pub probe: Option<Moves>,
    /// The number of the notice that told that it is hung, while it is.
    pub hung: Option<u32>,
    /// Connections end with it (`end_connections.rs`).
    pub ends_connections: bool,
    /// The ring of the connection it joined by, for `on_monitor_req`.
    pub ring: Option<u32>,
    /// The program that had joined ([`crate::select::image`]), where that can be told.
    pub image: Option<u64>,
    /// The end that was reported, and its code. Once set, nothing of it is piggybacked any more.
    pub ended: Option<(Cause, i32)>,
    /// When the end was reported (CLOCK_MONOTONIC).
    pub ended_ns: u64,
    /// The turn in which its last message was taken.
    pub taken_at: u64,
    /// A former agent has watched it; whoever had it watched has not said so again.
    pub is_kept: bool,
}

impl Watched {
    /// Whose the watch is.
    #[must_use]
    pub const fn whose(&self) -> Owner {
        Owner::of(self.origin, self.owner)
    }

    /// Which process it is.
    #[must_use]
    pub const fn process(&self) -> Process {
        Process { pid: self.pid, start_ticks: self.start_ticks }
    }

    /// Whether the process has joined, by this agent or the former one.
    #[must_use]
    pub const fn has_joined(&self) -> bool {
        self.bridge.is_some() || self.image.is_some() || matches!(self.origin, Origin::Joined)
    }
}

/// A process that has joined, as it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its number.
    pub app: u32,
    /// Its name.
    pub name: String,
    /// The process.
    pub process: Process,
    /// It joined by this agent.
    pub is_own: bool,
    /// The program that had joined, where that can be told.
    pub image: Option<u64>,
}

/// The watch of an instance that was replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Its name.
    pub name: String,
    /// The process, as before.
    pub process: Process,
    /// Where the watch comes from.
    pub origin: Origin,
    /// Whose it is.
    pub owner: u32,
    /// Under whom it is counted.
    pub charged: u32,
}

/// What a process that joins brings along.
pub struct Joining {
    /// Piggyback bytes granted.
    pub pbsize: u32,
    /// Where its messages and counters lie.
    pub bridge: Bridge,
    /// The ring of its connection.
    pub ring: Option<u32>,
    /// Its program ([`crate::select::image`]), where that can be told.
    pub image: Option<u64>,
    /// Under whom it is counted.
    pub account: u32,
}

/// What holds a name or a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub app: u32,
    /// Its name.
    pub name: String,
    /// The process.
    pub process: Process,
    /// Whose the watch is.
    pub owner: Owner,
    /// The process has joined by itself.
    pub joined: bool,
    /// Of a former agent of this host.
    pub is_kept: bool,
}

impl Holder {
    /// Why another watch of this name or of its process cannot be, and what to do.
    #[must_use]
    pub fn taken(&self, name: &str) -> String {
        let Holder { name: own, process, owner, .. } = self;
        let pid = process.pid;
        if own == name {
            format!(
                "the name {name} is taken: {owner} has process {pid} watched by it; choose another name, or have that watch ended: fide unmonitor {name}"
            )
        } else if self.joined {
            format!("process {pid} is watched already: it has joined as {own}")
        } else {
            format!("process {pid} is watched already, as {own}, for {owner}; have that watch ended first: fide unmonitor {own}")
        }
    }
}

/// How often a probe found movement; counted by whoever runs it.
pub type Moves = Arc<AtomicU64>;

/// All of them, by number.
#[derive(Default)]
pub struct Watchlist {
    by_app: BTreeMap<u32, Watched>,
    next_app: u32,
    /// Messages taken so far: the number of the turn.
    turn: u64,
    /// The turn in which each user had a message taken last, or appeared. Users without a process
    /// are not in it.
    turns: BTreeMap<u32, u64>,
    /// The last message was one of root's.
    was_roots: bool,
    /// Bridges that are not used any more: to be dropped by a thread that may wait.
    pub dropped: Vec<Bridge>,
}

/// The numbers that watches of ordinary users may have; those above are kept for root's. One user
/// uses them up in 248 days: it is given a hundred a second.
const NUMBERS_OF_USERS: u32 = (1 << 31) - 1;
/// Ended watches kept for the status page.
const ENDED_KEPT: usize = 64;
/// How long an end is shown on the status page, ns.
pub const ENDED_SHOWN_NS: u64 = 600_000_000_000;

impl Watchlist {
    /// Whether it is watched, and no end of it was reported.
    #[must_use]
    pub fn is_alive(&self, app: u32) -> bool {
        self.get(app).is_some_and(|w| w.ended.is_none())
    }

    /// Which process it is or was; all zeros for one that is not known.
    #[must_use]
    pub fn identity(&self, app: u32) -> Process {
        self.get(app).map_or(Process { pid: 0, start_ticks: 0 }, |w| Process { pid: w.pid, start_ticks: w.start_ticks })
    }

    /// The number of the next process that is counted under this user: never used before in this
    /// agent's life. A piggyback names its process by the low half of its number, so that half is
    /// not 0, and no process in this list has it: 65,535 others come between one that has ended and
    /// the next with the same low half, less those that live.
    ///
    /// # Errors
    /// In words: all are used up.
    fn number(&self, account: u32) -> Result<u32, String> {
        let mut taken = [0u64; 1024];
        for app in self.by_app.keys() {
            let low = usize::from(*app as u16);
            taken[low / 64] |= 1 << (low % 64);
        }
        let is_free = |low: usize| low != 0 && taken[low / 64] >> (low % 64) & 1 == 0;
        let last = if account == 0 { INTERESTS_FROM - 1 } else { NUMBERS_OF_USERS };
        let mut free = (self.next_app..last).map(|number| number + 1).filter(|number| is_free(usize::from(*number as u16)));
        free.next().ok_or_else(|| {
            format!(
                "{} processes have been watched since this agent was started: have root restart it (systemctl restart fided)",
                self.next_app
            )
        })
    }

    /// Adds a process and returns its number.
    ///
    /// # Errors
    /// In words: there is no number for it.
    pub fn add(&mut self, mut watched: Watched) -> Result<u32, String> {
        self.next_app = self.number(watched.charged)?;
        watched.former = self.last_named(&watched.name).map_or(0, |w| w.former + u64::from(w.ended.is_some()));
        // A user that comes anew waits for one round: leaving and coming again gains nothing.
        self.turns.entry(watched.account).or_insert(self.turn);
        watched.taken_at = self.turn;
        self.by_app.insert(self.next_app, watched);
        // A doomed process is still awaited.
        let over = |w: &Watched| w.ended.is_some_and(|(c, _)| c != Cause::Doomed);
        let ended: Vec<u32> = self.by_app.iter().filter(|(_, w)| over(w)).map(|(a, _)| *a).collect();
        for app in ended.iter().take(ended.len().saturating_sub(ENDED_KEPT)) {
            self.remove(*app);
        }
        Ok(self.next_app)
    }

    /// A process that a former agent has watched goes on under its number.
    pub fn restore(&mut self, app: u32, watched: Watched) {
        self.next_app = self.next_app.max(app);
        self.turns.entry(watched.account).or_insert(self.turn);
        self.by_app.insert(app, watched);
    }

    /// Numbers up to this one were used by a former agent.
    pub fn used_up_to(&mut self, app: u32) {
        self.next_app = self.next_app.max(app);
    }

    fn remove(&mut self, app: u32) -> Option<Watched> {
        let gone = self.by_app.remove(&app)?;
        self.forget_turns(gone.account);
        Some(gone)
    }

    /// The process with this number.
    #[must_use]
    pub fn get(&self, app: u32) -> Option<&Watched> {
        self.by_app.get(&app)
    }

    /// The same, to change.
    pub fn get_mut(&mut self, app: u32) -> Option<&mut Watched> {
        self.by_app.get_mut(&app)
    }

    /// What a source of a process's progress shows now; `None` when there is no such source any more.
    #[must_use]
    pub fn look(&self, app: u32, source: ProgressSource) -> Option<Look> {
        let w = self.by_app.get(&app).filter(|w| w.ended.is_none())?;
        match source {
            ProgressSource::Counter(n) => w.bridge.as_ref()?.look(n),
            ProgressSource::Command | ProgressSource::File | ProgressSource::Write => {
                Some(Look { count: w.probe.as_ref()?.load(Ordering::Acquire), busy: true })
            }
            ProgressSource::Report => None,
        }
    }

    /// Notes that a process is hung, by the notice with this number, or no longer.
    pub fn set_hung(&mut self, app: u32, hung: Option<u32>) {
        if let Some(w) = self.by_app.get_mut(&app) {
            w.hung = hung;
        }
    }

    /// From now on what a process does is counted under this user.
    pub fn count_under(&mut self, app: u32, account: u32) {
        let Some(w) = self.by_app.get_mut(&app) else { return };
        let former = std::mem::replace(&mut w.account, account);
        self.turns.entry(account).or_insert(self.turn);
        self.forget_turns(former);
    }

    /// Of a user without a process.
    fn forget_turns(&mut self, account: u32) {
        if self.by_app.values().all(|w| w.account != account) {
            self.turns.remove(&account);
        }
    }

    /// Those that are alive.
    pub fn alive(&self) -> impl Iterator<Item = (u32, &Watched)> {
        self.by_app.iter().filter(|(_, w)| w.ended.is_none()).map(|(a, w)| (*a, w))
    }

    /// The same from this number on.
    pub fn alive_from(&self, app: u32) -> impl Iterator<Item = (u32, &Watched)> {
        self.by_app.range(app..).filter(|(_, w)| w.ended.is_none()).map(|(a, w)| (*a, w))
    }

    /// Watches that are counted under this user, and all: of processes that live, or are doomed and
    /// still have to end.
    #[must_use]
    pub fn held_by(&self, account: u32) -> (u64, u64) {
        let held = || self.by_app.values().filter(|w| w.ended.is_none_or(|(cause, _)| cause == Cause::Doomed));
        (held().filter(|w| w.charged == account).count() as u64, held().count() as u64)
    }

    /// Looks a second at the progress counters of processes that are counted under this user, and
    /// of all.
    #[must_use]
    pub fn looks_of(&self, account: u32) -> (u64, u64) {
        let of = |own: bool| self.alive().filter(|(_, w)| !own || w.account == account).map(|(_, w)| w.looks).sum();
        (of(true), of(false))
    }

    /// The live process of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<u32> {
        self.alive().find(|(_, w)| w.name == name).map(|(a, _)| a)
    }

    /// The live watches of this name or of this process: one, or two.
    #[must_use]
    pub fn holders(&self, name: &str, pid: Option<u32>) -> Vec<Holder> {
        let holds = |w: &Watched| w.name == name || Some(w.pid) == pid;
        let holder = |(app, w): (u32, &Watched)| Holder {
            app,
            name: w.name.clone(),
            process: w.process(),
            owner: w.whose(),
            joined: w.origin == Origin::Joined,
            is_kept: w.is_kept,
        };
        self.alive().filter(|(_, w)| holds(w)).map(holder).collect()
    }

    /// The newest process of this name, ended or not.
    #[must_use]
    pub fn last_named(&self, name: &str) -> Option<&Watched> {
        let app = *self.by_app.iter().rev().find(|(_, w)| w.name == name)?.0;
        self.get(app)
    }

    /// The live watch of this pid.
    #[must_use]
    pub fn of_pid(&self, pid: u32) -> Option<u32> {
        self.alive().find(|(_, w)| w.pid == pid).map(|(a, _)| a)
    }

    /// Whether this very process was reported as doomed and still has to end.
    #[must_use]
    pub fn is_doomed(&self, pid: u32, start_ticks: u64) -> bool {
        let doomed = |w: &Watched| w.ended.is_some_and(|(c, _)| c == Cause::Doomed);
        self.by_app.values().any(|w| w.pid == pid && w.start_ticks == start_ticks && doomed(w))
    }

    /// A subscriber's ring was closed; its number may soon be somebody else's.
    pub fn ring_gone(&mut self, ring: u32) {
        self.by_app.values_mut().filter(|w| w.ring == Some(ring)).for_each(|w| w.ring = None);
    }

    /// Notes an end; `false` if it was known (a confirmation).
    pub fn end(&mut self, app: u32, cause: Cause, code: i32, now_ns: u64) -> bool {
        let Some(w) = self.by_app.get_mut(&app) else { return false };
        let first = w.ended.is_none();
        if w.ended.is_none_or(|(c, _)| c == Cause::Doomed) {
            w.ended = Some((cause, code));
        }
        if first {
            w.ended_ns = now_ns;
            w.hung = None;
            w.probe = None;
            self.dropped.extend(w.bridge.take()); // fail-consistency (FiDe §4.1): not a byte of it after its crash was sent
        }
        first
    }

    /// Drops a watch that never came to be.
    pub fn forget(&mut self, app: u32) {
        let gone = self.remove(app).and_then(|w| w.bridge);
        self.dropped.extend(gone);
    }

    /// Whether a process has a message for the next heartbeat.
    #[must_use]
    pub fn is_piggyback_waiting(&self) -> bool {
        self.by_app.values().any(|w| w.bridge.as_ref().is_some_and(Bridge::is_waiting))
    }

    /// The next piggybacked message: `body` becomes the heartbeat's body. Returns whose it is.
    /// Users take turns, and the processes of each user take turns; at least every second message
    /// is root's while one of root's waits.
    pub fn take_piggyback(&mut self, body: &mut Vec<u8>) -> Option<u32> {
        body.clear();
        let (turns, roots_turn) = (&self.turns, !self.was_roots);
        let waiting = self.by_app.iter().filter(|(_, w)| w.bridge.as_ref().is_some_and(Bridge::is_waiting));
        let order =
            |(app, w): &(&u32, &Watched)| (!(roots_turn && w.account == 0), turns.get(&w.account).copied(), w.taken_at, **app);
        let app = *waiting.min_by_key(order)?.0;
        self.turn += 1;
        let w = self.by_app.get_mut(&app)?;
        w.taken_at = self.turn;
        self.was_roots = w.account == 0;
        self.turns.insert(w.account, self.turn);
        let limit = w.pbsize as usize;
        body.extend_from_slice(&(app as u16).to_be_bytes());
        if !w.bridge.as_mut().is_some_and(|b| b.take(body, limit)) {
            body.clear();
            return None;
        }
        Some(app)
    }

    /// Cuts grants to `most` bytes; returns who is to be told, and on which ring.
    pub fn shrink_grants(&mut self, most: u32) -> Vec<(u32, u32)> {
        let mut told = Vec::new();
        for (app, w) in self.by_app.iter_mut().filter(|(_, w)| w.ended.is_none() && w.pbsize > most) {
            w.pbsize = most;
            told.extend(w.ring.map(|ring| (*app, ring)));
        }
        told
    }

    /// For the status page: copies processes from this one on, as many as there is room for. Gives the one to go on with.
    pub fn rows(&self, from: u32, rows: &mut Vec<WatchRow>) -> Option<u32> {
        for (app, w) in self.by_app.range(from..) {
            if rows.len() == rows.capacity() {
                return Some(*app);
            }
            rows.push(WatchRow {
                name: w.name.as_str().into(),
                app: *app,
                pid: w.pid,
                uid: w.uid,
                origin: w.origin,
                owner: w.owner,
                former: w.former,
                ended: w.ended.map(|(cause, _)| (cause, w.ended_ns)),
                hung: w.hung.is_some(),
            });
        }
        None
    }
}

/// A name, copied without allocation.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    len: u8,
    bytes: [u8; NAME_MAX],
}

impl From<&str> for Name {
    /// Names are never longer.
    fn from(name: &str) -> Self {
        let len = name.len().min(NAME_MAX);
        let mut bytes = [0; NAME_MAX];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Self { len: len as u8, bytes }
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        String::from_utf8_lossy(&name.bytes[..usize::from(name.len)]).into_owned()
    }
}

/// What is copied of a watched process for the status page.
#[derive(Clone, Copy, Debug)]
pub struct WatchRow {
    name: Name,
    app: u32,
    pid: u32,
    uid: u32,
    origin: Origin,
    owner: u32,
    former: u64,
    ended: Option<(Cause, u64)>,
    hung: bool,
}

impl WatchRow {
    /// Its number, process and owner, unless it has ended.
    pub fn alive(&self) -> Option<(u32, u32, u32)> {
        self.ended.is_none().then_some((self.app, self.pid, self.owner))
    }

    /// Its name, and when it ended if it has.
    pub fn shown(&self) -> (String, Option<u64>) {
        (self.name.into(), self.ended.map(|(_, at_ns)| at_ns))
    }
}

impl From<WatchRow> for WatchStatus {
    fn from(row: WatchRow) -> Self {
        Self {
            name: row.name.into(),
            app: row.app,
            pid: row.pid,
            uid: row.uid,
            origin: row.origin.name().into(),
            state: match (row.ended, row.hung) {
                (Some((cause, _)), _) => cause.name().into(),
                (None, true) => Cause::Hung.name().into(),
                (None, false) => "alive".into(),
            },
            owner: row.owner,
            why: String::new(),
            ended: row.former + u64::from(row.ended.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(name: &str) -> Watched {
        Watched {
            name: name.into(),
            pid: 7,
            start_ticks: 1,
            uid: 0,
            origin: Origin::Joined,
            owner: 0,
            charged: 0,
            account: 0,
            looks: 0,
            former: 0,
            pbsize: 100,
            bridge: Some(Bridge::create().unwrap().0),
            probe: None,
            hung: None,
            ends_connections: false,
            ring: None,
            image: None,
            ended: None,
            ended_ns: 0,
            settles_ns: 0,
            taken_at: 0,
            is_kept: false,
        }
    }

    fn watched_of(uid: u32) -> Watched {
        Watched { account: uid, ..watched("x") }
    }

    fn push(list: &mut Watchlist, app: u32, messages: usize) {
        let bridge = list.get_mut(app).unwrap().bridge.as_mut().unwrap();
        (0..messages).for_each(|_| bridge.push_for_test(b"x"));
    }

    /// Whose messages are taken, in this order.
    fn taken(list: &mut Watchlist, most: usize) -> Vec<u32> {
        let mut body = Vec::new();
        (0..most).map_while(|_| list.take_piggyback(&mut body)).collect()
    }

    #[test]
    fn numbers_are_never_used_twice() {
        let mut list = Watchlist::default();
        let a = list.add(watched("a")).unwrap();
        list.forget(a);
        assert!(list.add(watched("b")).unwrap() > a);
    }

    #[test]
    fn a_piggyback_names_one_process_also_when_65535_have_been_watched() {
        let mut list = Watchlist::default();
        let [first, second] = [0; 2].map(|_| list.add(watched_of(1001)).unwrap());
        for number in 3..=65_535 {
            let ended = list.add(Watched { bridge: None, ..watched_of(1001) }).unwrap();
            list.forget(ended);
            assert_eq!(ended, number);
        }
        // Neither 65536, whose low half is 0, nor those of the two that live.
        let next = list.add(watched_of(1001)).unwrap();
        assert_eq!((first, second, next), (1, 2, 65_536 + 3));
        push(&mut list, next, 1);
        let mut body = Vec::new();
        assert_eq!(list.take_piggyback(&mut body), Some(next));
        assert_eq!(body, [0, 3, b'x']);
    }

    #[test]
    fn the_last_numbers_are_roots() {
        let mut list = Watchlist { next_app: NUMBERS_OF_USERS - 1, ..Watchlist::default() };
        let of = |charged| Watched { charged, ..watched("x") };
        let last = list.add(of(1001)).unwrap();
        let why = list.add(of(1001)).unwrap_err();
        assert!(why.contains("2147483647 processes") && why.contains("restart"), "{why}");
        list.add(of(0)).unwrap();
        list.forget(last); // it has the low half of the very last one
        list.next_app = INTERESTS_FROM - 2;
        assert_eq!(list.add(of(0)), Ok(INTERESTS_FROM - 1));
        assert!(list.add(of(0)).is_err());
    }

    #[test]
    fn fide_4_1_nothing_is_piggybacked_once_the_crash_was_sent() {
        let mut list = Watchlist::default();
        let a = list.add(watched("a")).unwrap();
        list.get_mut(a).unwrap().bridge.as_mut().unwrap().push_for_test(b"last words");
        assert!(list.end(a, Cause::Doomed, 9, 1));
        let mut body = Vec::new();
        list.take_piggyback(&mut body);
        assert!(body.is_empty());
        assert!(!list.end(a, Cause::Killed, 9, 2), "a confirmation is not a second end");
        assert_eq!(list.get(a).unwrap().ended, Some((Cause::Killed, 9)));
    }

    #[test]
    fn ended_processes_of_a_name_are_counted_and_age_out() {
        let mut list = Watchlist::default();
        for n in 1..=40 {
            let app = list.add(watched("db")).unwrap();
            list.end(app, Cause::Killed, 9, n);
        }
        let other = list.add(watched("other")).unwrap();
        let rows = |l: &Watchlist, now| {
            let mut rows = Vec::with_capacity(100);
            assert_eq!(l.rows(0, &mut rows), None);
            let shown = crate::status::shown(rows, now, WatchRow::shown);
            shown.into_iter().map(WatchStatus::from).map(|w| (w.name, w.state, w.ended)).collect::<Vec<_>>()
        };
        let ended = ("db".to_string(), "killed".to_string(), 40);
        assert_eq!(rows(&list, 41), [ended, ("other".into(), "alive".into(), 0)]);
        assert_eq!(rows(&list, 40 + ENDED_SHOWN_NS), [("other".into(), "alive".into(), 0)]);
        list.add(watched("db")).unwrap();
        assert_eq!(rows(&list, 41)[1], ("db".into(), "alive".into(), 40));
        list.end(other, Cause::Exited, 0, 50);
        assert_eq!(rows(&list, 51)[0], ("other".into(), "exited".into(), 1));
    }

    #[test]
    fn users_take_turns_however_many_processes_one_of_them_has() {
        let mut list = Watchlist::default();
        let crowd: Vec<u32> = (0..600).map(|_| list.add(watched_of(1001)).unwrap()).collect();
        crowd.iter().for_each(|app| push(&mut list, *app, 4));
        assert_eq!(taken(&mut list, 3), crowd[..3]);
        let other = list.add(watched_of(1002)).unwrap();
        push(&mut list, other, 3);
        assert_eq!(taken(&mut list, 6), [crowd[3], other, crowd[4], other, crowd[5], other]);
        // Whoever ends and comes again is not before those that stay.
        let third = list.add(watched_of(1003)).unwrap();
        push(&mut list, third, 2);
        assert_eq!(taken(&mut list, 2), [crowd[6], third]);
        list.forget(third);
        let again = list.add(watched_of(1003)).unwrap();
        push(&mut list, again, 1);
        assert_eq!(taken(&mut list, 2), [crowd[7], again]);
    }

    #[test]
    fn every_second_message_is_roots_while_one_of_root_waits() {
        let mut list = Watchlist::default();
        let users: Vec<u32> = (1..=3).map(|user| list.add(watched_of(1000 + user)).unwrap()).collect();
        users.iter().for_each(|app| push(&mut list, *app, 5));
        assert_eq!(taken(&mut list, 2), users[..2]);
        let root = list.add(watched_of(0)).unwrap();
        push(&mut list, root, 3);
        assert_eq!(taken(&mut list, 6), [root, users[2], root, users[0], root, users[1]]);
        assert_eq!(taken(&mut list, 2), [users[2], users[0]]);
        // And where nobody else has something, all of them.
        users.iter().for_each(|app| list.forget(*app));
        push(&mut list, root, 3);
        assert_eq!(taken(&mut list, 4), [root, root, root]);
        assert_eq!(list.turns.len(), 1, "users without a process are forgotten");
    }

    #[test]
    fn processes_take_turns() {
        let mut list = Watchlist::default();
        let (a, b) = (list.add(watched("a")).unwrap(), list.add(watched("b")).unwrap());
        for (app, text) in [(a, &b"a1"[..]), (a, b"a2"), (b, b"b1")] {
            list.get_mut(app).unwrap().bridge.as_mut().unwrap().push_for_test(text);
        }
        let mut seen = Vec::new();
        let mut body = Vec::new();
        loop {
            list.take_piggyback(&mut body);
            if body.is_empty() {
                break;
            }
            seen.push(String::from_utf8(body[2..].to_vec()).unwrap());
        }
        assert_eq!(seen, ["a1", "b1", "a2"]);
    }
}
