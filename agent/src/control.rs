//! The control thread: everything that may wait, but not for the disk. It owns the clients, the
//! hooks and the clock on the wall, reaches the loop by commands and hears from it by events, and
//! has its files written by a thread of their own.

mod files;
mod keys;
mod maintenance;
mod reload;

use crate::access::{self, GroupRight, lacks_group_right};
use crate::admission::{Admission, NOT_KEPT_EVENT_CODE};
use crate::bridge::Bridge;
use crate::check::{self, Check};
use crate::clock::now_ns;
use crate::config::{self, Config, HookAction, RestartWithin};
use crate::core::requests::Request as LoopRequest;
use crate::core::{Before, Happened, Introduced, Opening};
use crate::disk::{Disk, JobClock, Ticket};
use crate::end_connections::{Connections, Ender};
use crate::event_text;
use crate::fair::FairQueue;
use crate::fence::Guard;
use crate::gates::{Gates, Place};
use crate::gateways::gateways;
use crate::handle::LoopHandle;
use crate::history::{History, HistoryError};
use crate::identity::{Identity, account};
use crate::kept::KeptTable;
use crate::maintenance::{Maintenances, Now};
use crate::probes::Probes;
use crate::rings::Rings;
use crate::select::{self, Crashed, Limit, Resolver, Scope, Target as Process};
use crate::seqpacket::{self, Read};
use crate::service;
use crate::shares::{Account, CONNECTIONS, EventSource, INTRODUCTIONS, Rate, TARGETS, TOLD_REQUESTS, WATCHES};
use crate::sock_diag::Diag;
use crate::state::State;
use crate::status::About;
use crate::subscribers::{Made, Target, Want, seqpacket_pair};
use crate::timing::Timing;
use crate::wake::drain;
use crate::watchlist::{Holder, Joining, Moves, Name, Origin, Owner, Replaced, Session, WatchRow, Watched};
use crate::worker::{Answer as LookedUp, Found, Source, Whose, Worker};
use crossbeam_channel::{Receiver, TryRecvError};
use fide_lane::PathSpec;
use fide_wire::control::{
    BECAME_MAX, CheckOutcome, Checked, CheckedPeer, END_CONNECTIONS_PORTS_MAX, ErrorCode, FenceOrder, GroupOrder, HistoryEvent,
    MaintenanceOrder, PROGRESS_LIMIT_NS, PROTOCOL, REASON_MAX, Refused, Reply, Request, RingKind, Selector, Status, WatchStatus,
    bridge,
};
use fide_wire::frame::table::Keys;
use fide_wire::level::{Level, TIMING_EVENT_CODE};
pub use fide_wire::level::{REPORT_EVENT_CODE, WATCH_EVENT_CODE};
use fide_wire::verdict::{Cause, VerdictId};
use fide_xdp::{Start, StartWatch, Wanted};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A reply and the descriptor that rides on it.
type Answer = (Reply, Option<OwnedFd>);

struct Connection {
    fd: OwnedFd,
    peer: access::Peer,
    /// The process that opened it, if it can be seen and has not ended before this was accepted.
    process: Option<Identity>,
    greeted: bool,
    ring: Option<u32>,
    joined: Option<u32>,
    following: bool,
    /// Kept events still to be sent: from this number on, and whether new ones follow.
    reading: Option<(u64, bool)>,
    /// Replies that wait to be read. Those that many get are there once.
    out: VecDeque<(Rc<[u8]>, Option<OwnedFd>)>,
    out_bytes: usize,
    closing: bool,
    /// For what is answered later.
    id: u64,
    /// One of its checks is under way.
    checking: bool,
    /// What is looked up for it, and since when.
    waiting: Option<(Instant, Wait)>,
    /// What it monitors.
    targets: BTreeSet<Target>,
    /// Who is still to be introduced to it, and how far that is.
    introducing: VecDeque<(Target, Introduced)>,
    introduced: Option<Instant>,
    /// A request that came too early for its user's rate.
    held: Option<Box<Request>>,
    /// It was closed at the other end: so many of the requests that it left behind are still read.
    left_behind: Option<usize>,
    /// When it was served last, in numbers that grow.
    served: u64,
    /// Where its process was when it last moved its gate.
    gate: Option<Place>,
}

/// What becomes of a look-up.
enum Wait {
    /// A watch of this name.
    Watch(String, Selector, Scope),
    /// An explanation of this verdict.
    Explain(VerdictId),
    /// The event ring with this index.
    Ring(u32),
    /// The status.
    Status,
    /// Kept events.
    Page,
    /// The disk is to know that this host is forgotten.
    Forgotten(String, Ticket),
    /// The configuration.
    Reload,
}

/// Bytes of replies that may wait for a slow client that follows events; beyond that it is disconnected.
const BACKLOG: usize = 4 << 20;
/// Bytes of replies from which on a client's requests wait until it has read some.
const ENOUGH: usize = 256 << 10;
/// Bytes of replies that one connection of an ordinary user is handed before others have their turn.
const FLUSHED_PER_TURN: usize = 64 << 10;
/// Requests of one of root's connections that are answered before others have their turn; and of a connection that its client has closed, at all.
const REQUESTS_PER_TURN: usize = 16;
/// Time that all users but root have together before root's connections, the loop and the files come again.
const USERS_SLICE: Duration = Duration::from_millis(2);
/// Processes of one [`Request::Became`] that the loop looks at without a pause.
const BECAME_AT_ONCE: usize = 16;
/// Events taken from the loop before clients have their turn.
const EVENTS_PER_TURN: usize = 256;
/// Hosts and processes that a new subscriber to a host or to everything is told of before its request is answered: about as many as its ring holds.
const INTRODUCED: usize = 256;
/// The loop tells so many at a time; and of those beyond, that many in so much time.
const INTRODUCED_AT_ONCE: usize = 16;
const INTRODUCE_EVERY: Duration = Duration::from_millis(5);
/// To so many subscribers.
const INTRODUCE_TO: usize = 4;
/// Connections accepted before others have their turn.
const ACCEPTS_PER_TURN: usize = 16;
/// A look-up that has not been done for so long is refused: clients wait ten seconds.
const LOOKUP_WAIT: Duration = Duration::from_secs(9);
/// Of its time, standing watches of an ordinary user have so much spent on looking for their processes: one part in so many.
const STANDING_SHARE: u32 = 10;
/// At most so much of it is saved up.
const STANDING_TIME_MAX: Duration = Duration::from_millis(200);
/// Standing watches of an ordinary user that are looked for at a time.
const STANDING_QUEUED: usize = 8;
/// Standing watches that the loop is asked about at once.
const STANDING_AT_ONCE: usize = 256;
/// This thread's niceness.
const NICE: i32 = -10;
/// Kept events fetched at a time.
const PAGE: usize = 64;
/// Word of changed interfaces comes by itself; this is for what was missed.
const LOOK_AT_INTERFACES_EVERY: Duration = Duration::from_secs(1);
/// Whoever changes how many receive queues an interface has waits so long at most for barriers.
const LOOK_AT_PATHS_EVERY: Duration = Duration::from_secs(10);
/// A process that was watched from its start on, and ends cleanly in this time, has handed over to a child.
const SETTLES_NS: u64 = 1_000_000_000;
/// Starts looked at before clients have their turn, and in one second; beyond, all processes are searched.
const STARTS_PER_TURN: usize = 32;
const STARTS_PER_SECOND: u32 = 500;
/// Starts that wait for their turn behind those that had to be read before it; beyond, all processes are searched.
const STARTS_WAITING: usize = 4096;
/// A socket that listens is in the kernel's tables a moment after that was told, or later where its process has to wait for a processor: it is looked for again
/// after 1, 2, 4, … ms, so often.
const LISTENS_LOOKS: u32 = 7;
/// Sockets that are looked for again at a time; searching finds the others.
const LISTENS_WAITING: usize = 64;
/// A watch without a process has it searched at every sweep, so many times; after that, where the kernel tells of starts, every so often.
const SEARCHES_AT_ONCE: u32 = 4;
const SEARCH_EVERY: Duration = Duration::from_secs(5);
/// These later searches of all watches together take at most this part of one processor, whatever number of processes there is: one in so many.
const SEARCH_SHARE: u32 = 100;
/// A search that was asked for is waited for so long before the next one.
const SEARCH_WAIT: Duration = Duration::from_secs(60);
/// That one watch cannot tell processes apart is told at most so often.
const AMBIGUITY_TOLD_EVERY: Duration = Duration::from_secs(60);

/// A watch that is kept alive: when its process ends, the next one that answers to the selector is watched.
struct Standing {
    /// For look-ups.
    id: u64,
    /// Its process is being looked for.
    looking: bool,
    /// Searches that were asked for and have not been answered: more than one where a process was
    /// found otherwise meanwhile.
    searches_under_way: u32,
    /// When that was last asked for.
    looked: Option<Instant>,
    name: String,
    selector: Selector,
    origin: Origin,
    /// Who asked for it, and may have watched what it finds; `None`: the configuration, which may watch everything.
    owner: Option<access::Peer>,
    app: Option<u32>,
    progress: Option<config::ProgressProbe>,
    end_connections: Vec<u16>,
    /// What must be true of a process that it finds.
    scope: Scope,
    /// The user of the scope, while this host does not know him.
    unknown_user: Option<String>,
    /// Its process was looked at a second time: what begins as root may become another user's a moment later.
    settled: bool,
    /// Why no process is found for it; empty while there is one.
    why: String,
    ambiguity_told: Option<Instant>,
    /// When it was last looked for, several processes were meant.
    is_ambiguous: bool,
    /// What is known of its process, for when that has crashed.
    former: Option<Crashed>,
    /// Searches since it had a process.
    searches: u32,
    /// Its process has ended cleanly before it had settled, and a child is searched that goes on.
    is_handing_over: bool,
    complained: bool,
    /// The process that has quit: it is not found again.
    quit: Option<fide_xdp::Process>,
    /// The last process that was found and that the owner may not have watched.
    denied: Option<fide_xdp::Process>,
}

/// The control thread's state.
pub struct Control {
    config: Config,
    config_path: PathBuf,
    about: About,
    core: LoopHandle,
    happened: Receiver<Happened>,
    told: OwnedFd,
    listener: OwnedFd,
    connections: Vec<Connection>,
    history: History,
    disk: Disk,
    /// The thread that writes the logs of durable groups.
    logs_clock: JobClock,
    /// The disk does not answer.
    hang: Option<files::Hang>,
    /// How often that was.
    hangs: u64,
    admission: Admission,
    timing: Timing,
    policy: access::Policy,
    resolver: Resolver,
    lookups: Worker,
    rings: Rings,
    ender: Ender,
    /// Monitored targets by user.
    targets: Account,
    standing: Vec<Standing>,
    /// Tells of programs that are started and sockets that listen, as far as a standing watch may wait for them; how many were looked at in this second.
    starts: Option<StartWatch>,
    starts_taken: (u32, Instant),
    /// Read out of the ring before their turn, for what had to be known of an `exec`.
    starts_waiting: VecDeque<Start>,
    /// Until when a process that is watched now has not settled: it has just been started. 0: it was there before.
    settles_ns: u64,
    /// How long processes that are exiting may still be waited for in this turn.
    exits_left_ms: u32,
    /// Processes that ended cleanly while they began to be watched, of which nobody else tells.
    ended_cleanly: Vec<u32>,
    /// Sockets that were told to listen and were not found yet: when they are looked for again, their process and port, and how often they were.
    listening: Vec<(Instant, u32, u16, u32)>,
    /// Time that look-ups for the standing watches of a user may still take, and when it was reckoned.
    standing_time: BTreeMap<u32, (Duration, Instant)>,
    /// When the next search begins that has no reason but that time has passed.
    next_search: Instant,
    /// How fast each user changes what other hosts are told.
    rates: BTreeMap<u32, Rate>,
    /// How fast each user has whole hosts introduced.
    introductions: BTreeMap<u32, Rate>,
    served: u64,
    /// Requests are read into it.
    buffer: Vec<u8>,
    /// When subscribers were told more names last.
    introduced: Instant,
    /// Clients turned away since that was last logged.
    turned_away: (u64, Option<Instant>),
    probes: Option<Probes>,
    state: State,
    maintenance: Maintenances,
    /// By host, this one among them.
    keys: BTreeMap<String, Keys>,
    table: KeptTable,
    /// The loop has ended, as was heard in the middle of something else.
    loop_ended: bool,
    integrations: crate::integrations::Integrations,
    signals: OwnedFd,
    guard: Option<Guard>,
    gates: Option<Gates>,
    swept_ns: u64,
    stopping: bool,
    checks: Vec<Check>,
    /// The paths of which they need a barrier, and when one was last asked for.
    asking: [bool; fide_wire::PATHS],
    asked_ns: u64,
    losses: check::losses::Losses,
    carriers: check::carriers::Carriers,
    /// When the paths' receive queues were counted last.
    paths_looked_at: Option<std::time::Instant>,
    /// The paths, as configured, and when their interfaces were looked at.
    specs: Vec<PathSpec>,
    interfaces_looked_at: Option<Instant>,
    accepted: u64,
    /// Somebody who reads over HTTP waits for kept events.
    asked_over_http: bool,
    /// A host was met, or a life of one is over, and that is not on disk yet.
    has_met: bool,
}

/// What the control thread is made of.
pub struct Parts {
    /// Configuration and where it came from.
    pub config: Config,
    /// The file.
    pub config_path: PathBuf,
    /// For the status page.
    pub about: About,
    /// The way to the loop.
    pub core: LoopHandle,
    /// What the loop tells.
    pub happened: Receiver<Happened>,
    /// Readable when it told something.
    pub told: OwnedFd,
    /// The control socket.
    pub listener: OwnedFd,
    /// Incarnations.
    pub state: State,
    /// Where this host's table is kept.
    pub table: KeptTable,
    /// What happened, and what its files said of themselves.
    pub history: (History, Vec<HistoryError>),
    /// What writes the files.
    pub disk: Disk,
    /// How long what writes the logs of durable groups has been at it.
    pub logs_clock: JobClock,
    /// Readable when a signal came.
    pub signals: OwnedFd,
    /// The fence's half of this thread.
    pub guard: Option<Guard>,
    /// Applications' gates.
    pub gates: Option<Gates>,
    /// Where processes and verdicts are looked up.
    pub lookups: Worker,
    /// The event rings.
    pub rings: Rings,
    /// Connections that end with their process.
    pub connections: Ender,
    /// What tells of programs that are started, where the kernel can.
    pub starts: Option<StartWatch>,
    /// The paths.
    pub specs: Vec<PathSpec>,
}

/// Whether one more connection of this user is accepted beside these; if not, why, and what to do.
fn admit(connected: impl Iterator<Item = u32> + Clone, uid: u32) -> Result<(), String> {
    let (used, own) = (connected.clone().count(), connected.filter(|u| *u == uid).count());
    CONNECTIONS.admit(uid, own as u64, used as u64, 1)
}

/// Of verdicts with the same id, at most so many are listed, the newest.
const LIVES_LISTED: usize = 8;

fn stuck() -> Refused {
    Refused { code: ErrorCode::System, what: "the agent's loop does not answer; see `fide doctor`".into() }
}

/// The verdict that an id stands for, of those that [`History::find`] found. Several lives of a node may have used it; which of them is
/// meant, the id does not say.
fn one_life(id: VerdictId, mut found: Vec<HistoryEvent>) -> Result<HistoryEvent, Refused> {
    let Some(newest) = found.pop() else {
        let what = format!("no verdict {id} is kept on this host; `fide events` lists those that are");
        return Err(Refused { code: ErrorCode::NotFound, what });
    };
    if found.is_empty() {
        return Ok(newest);
    }
    // What was inferred was numbered here, whomever it is about.
    let giver = if (id.0 >> 32) as u32 == fide_wire::name_id(&newest.node) { &newest.node } else { &newest.observer }.clone();
    found.push(newest);
    let event = |e: &HistoryEvent| {
        let life = match e.unique_id().map_or(0, |id| id.incarnation) {
            0 => "incarnation not recorded".to_owned(),
            life => format!("incarnation {life}"),
        };
        let whom = e.app.as_ref().map_or_else(|| e.node.clone(), |app| format!("{app}@{}", e.node));
        format!("event {} ({life}, {}, {}, {whom})", e.seq, crate::event_text::utc(e.wall_ns), e.cause)
    };
    let older = found.len().saturating_sub(LIVES_LISTED);
    let mut list: Vec<String> = found[older..].iter().map(event).collect();
    if older > 0 {
        list.insert(0, format!("{older} older ones"));
    }
    let what = format!("{} lives of {giver} used the id {id}: {}; explain the event by its number", found.len(), list.join(", "));
    Err(Refused { code: ErrorCode::Ambiguous, what })
}

/// Whether other hosts are told of what such a request does, and their histories keep it.
const fn is_told(request: &Request) -> bool {
    matches!(
        request,
        Request::Watch { .. }
            | Request::Unwatch { .. }
            | Request::Join { .. }
            | Request::Quit
            | Request::Progress { .. }
            | Request::Report { .. }
            | Request::Maintenance { order: MaintenanceOrder::On { .. } | MaintenanceOrder::Off { .. } }
    )
}

/// A reply as it is sent.
fn encoded(reply: &Reply) -> Rc<[u8]> {
    let bytes = serde_json::to_vec(reply).unwrap_or_else(|e| {
        tracing::error!("reply not written: {e}");
        br#"{"re":"error","code":"system","what":"the agent cannot write its reply"}"#.to_vec()
    });
    bytes.into()
}

/// Introduces some of whom a target names to a ring. `None`: the loop does not answer.
fn introduce(core: &LoopHandle, ring: u32, target: &Target, from: Introduced) -> Option<Option<Introduced>> {
    let target = target.clone();
    core.ask(|answer| LoopRequest::Introduce { ring, target, from, most: INTRODUCED_AT_ONCE, answer })
}

fn refused(code: ErrorCode, what: impl Into<String>) -> Reply {
    Reply::Error(Refused { code, what: what.into() })
}

impl Control {
    /// Puts the parts together.
    // More than 80 lines: one for each part and each field.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts {
            config,
            config_path,
            about,
            core,
            happened,
            told,
            listener,
            state,
            table,
            history: (history, complaints),
            disk,
            logs_clock,
            signals,
            guard,
            gates,
            lookups,
            rings,
            connections: ender,
            starts,
            specs,
        } = parts;
        for c in complaints {
            tracing::warn!("{c}");
            core.note(0, c.to_string());
        }
        let (policy, warnings) = access::Policy::new(&config.access);
        for w in warnings {
            tracing::warn!("{w}");
        }
        let standing = config.watches.iter().map(Standing::configured).collect();
        // Its own program by what it is, not by its name: that may be another's by now.
        let probes = Probes::start("/proc/self/exe".into())
            .inspect_err(|e| {
                core.note(0, format!("progress probes cannot be run: {e}"));
            })
            .ok();
        let integrations = crate::integrations::Integrations::new(&config, &core, history.next_seq(), told.try_clone());
        let interfaces: Vec<String> = config.paths.iter().map(|p| p.interface.clone()).collect();
        let mut carriers = check::carriers::Carriers::new(interfaces.clone());
        carriers.look(now_ns);
        let mut losses = check::losses::Losses::new(interfaces);
        losses.read(Some(Vec::new()), now_ns);
        let node = &config.node.clone();
        Self {
            config,
            config_path,
            about,
            core,
            happened,
            told,
            listener,
            connections: Vec::new(),
            history,
            disk,
            logs_clock,
            hang: None,
            hangs: 0,
            timing: Timing::default(),
            admission: Admission::default(),
            policy,
            resolver: Resolver::default(),
            lookups,
            rings,
            ender,
            targets: Account::new(TARGETS),
            starts,
            starts_taken: (0, Instant::now()),
            starts_waiting: VecDeque::new(),
            listening: Vec::new(),
            settles_ns: 0,
            exits_left_ms: select::EXITS_WITHIN_MS,
            ended_cleanly: Vec::new(),
            standing,
            standing_time: BTreeMap::new(),
            next_search: Instant::now(),
            rates: BTreeMap::new(),
            introductions: BTreeMap::new(),
            served: 0,
            buffer: Vec::new(),
            introduced: Instant::now(),
            turned_away: (0, None),
            probes,
            keys: BTreeMap::new(),
            maintenance: Maintenances::new(node, state.maintenance(), Now::read()),
            state,
            table,
            loop_ended: false,
            integrations,
            signals,
            guard,
            gates,
            swept_ns: 0,
            stopping: false,
            checks: Vec::new(),
            asking: [false; fide_wire::PATHS],
            asked_ns: 0,
            losses,
            carriers,
            paths_looked_at: None,
            specs,
            interfaces_looked_at: None,
            accepted: 0,
            asked_over_http: false,
            has_met: false,
        }
    }

    /// Serves until the loop has ended. Returns the fence and the gates, which may go when the loop has ended well.
    pub fn run(mut self) -> (Option<Guard>, Option<Gates>) {
        // Before ordinary programs: whoever keeps the processors busy is not to keep root waiting. Threads that are not urgent have begun by now.
        // SAFETY: integers only; 0 is the calling thread. Refused, it is as important as others.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
        self.spread_keys();
        self.sweep();
        self.gates_of_kept_watches();
        self.find_first();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]); // not under systemd: nobody to notify
        while self.turn() {}
        self.probes = None;
        self.integrations.shutdown();
        self.end_files();
        (self.guard, self.gates)
    }

    /// Processes that a former agent had watched are behind their gates again, whoever asks for them.
    fn gates_of_kept_watches(&mut self) {
        let kept = self.core.watched().unwrap_or_default();
        for (app, pid, owner) in kept.iter().filter_map(WatchRow::alive) {
            self.put_behind_gate(app, pid, owner);
        }
    }

    /// The processes that the configuration names are watched before this agent is ready.
    fn find_first(&mut self) {
        let began = Instant::now();
        while self.standing.iter().any(|s| s.looking) && began.elapsed() < crate::worker::LIMIT {
            let mut told = libc::pollfd { fd: self.told.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, which is open.
            unsafe { libc::poll(&raw mut told, 1, 10) };
            drain(&self.told);
            self.looked_up();
        }
    }

    fn turn(&mut self) -> bool {
        let starts = self.starts.as_ref().map_or(-1, StartWatch::raw_fd);
        let fixed =
            [self.listener.as_raw_fd(), self.told.as_raw_fd(), self.signals.as_raw_fd(), self.integrations.links_fd(), starts];
        let mut polls: Vec<libc::pollfd> = fixed
            .into_iter()
            .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
            .chain(self.connections.iter().map(|c| libc::pollfd {
                fd: c.fd.as_raw_fd(),
                events: if c.is_listening() { libc::POLLIN } else { 0 } | if c.out.is_empty() { 0 } else { libc::POLLOUT },
                revents: 0,
            }))
            .collect();
        let more = self.connections.iter().any(Connection::wants_page) || !self.happened.is_empty();
        let more = more || !self.starts_waiting.is_empty();
        let soon = self.connections.iter().any(|c| c.held.is_some() || !c.introducing.is_empty());
        let more = more || std::mem::take(&mut self.asked_over_http);
        let timeout_ms = match (more, self.checks.is_empty() && self.listening.is_empty(), soon) {
            (true, ..) => 0,
            (_, false, _) => 1,
            (.., true) => 5,
            _ => 250,
        };
        let table_ms = self.table.due().map_or(timeout_ms, |due| due.as_millis() as i32 + 1);
        let timeout_ms = timeout_ms.min(table_ms);
        // SAFETY: an array of the stated length with open descriptors (negative ones are skipped by the kernel).
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout_ms) };
        let ready = |i: usize| polls[i].revents != 0;
        let mut alive = true;
        if ready(1) {
            drain(&self.told);
        }
        alive &= self.hear() && !self.loop_ended;
        self.exits_left_ms = select::EXITS_WITHIN_MS;
        if ready(4) || !self.starts_waiting.is_empty() {
            self.started();
        }
        self.look_again();
        self.looked_up();
        self.rings_made();
        if ready(2) {
            self.signalled();
        }
        if ready(3) {
            self.links_changed();
        }
        let revents: Vec<i16> = polls[fixed.len()..].iter().map(|p| p.revents).collect();
        self.serve(&revents);
        if ready(0) {
            self.accept();
        }
        self.advance_checks();
        self.answer_statuses();
        self.introduce_more();
        self.send_pages();
        self.asked_over_http = self.integrations.serve_history(&self.history);
        self.disk_wrote();
        self.answer_forgetful();
        self.flush_connections();
        if self.history.has_news() {
            self.write_history();
        }
        self.keep_table(false);
        let now = now_ns();
        if now.saturating_sub(self.swept_ns) > 500_000_000 {
            self.swept_ns = now;
            self.sweep();
        }
        alive
    }

    // ---- what the loop tells ------------------------------------------------------------------------------------------------

    fn hear(&mut self) -> bool {
        let goes_on = self.hear_all();
        // At once: who was met counts for majorities, also of an agent that is killed now.
        if std::mem::take(&mut self.has_met) {
            self.save_state();
        }
        goes_on
    }

    fn hear_all(&mut self) -> bool {
        for _ in 0..EVENTS_PER_TURN {
            match self.happened.try_recv() {
                Ok(Happened::Event(event, source)) => self.event(*event, source),
                Ok(Happened::Row(row, watch)) => self.table.row(&row, watch),
                Ok(Happened::Seen { node, epoch, version }) => self.table.seen(node, epoch, version),
                Ok(Happened::MayReopen) => {
                    self.guard.iter().for_each(Guard::drop_left);
                    self.core.tell(LoopRequest::ReopenFence);
                }
                Ok(Happened::Incarnation(n)) => {
                    // At once: others that see it would take a file that lacks it for an old one.
                    self.state.set_own(n);
                    self.has_met = true;
                }
                Ok(Happened::Groups(groups, last_sets)) => {
                    // At once: an agent that is killed now comes back as a member.
                    self.state.set_groups(groups);
                    self.state.set_last_sets(last_sets);
                    self.save_state();
                }
                Ok(Happened::Keys { host, keys }) => self.keys_learned(host, keys),
                Ok(Happened::Maintenance { host, maintenance, is_fresh }) => {
                    self.maintenance_learned(&host, &maintenance, is_fresh);
                }
                Ok(Happened::PeerIncarnation(name, n)) => {
                    self.state.set_peer(&name, n);
                    self.has_met = true;
                }
                Ok(Happened::Met(name, n)) => {
                    self.state.set_peer(&name, n);
                    // Also if it was forgotten, or left while a former agent ran.
                    self.state.set_left(&name, false);
                    self.has_met = true;
                }
                Ok(Happened::Renamed(name)) => {
                    self.keys.remove(&name);
                    self.state.forget(&name);
                    self.has_met = true;
                }
                Ok(Happened::OldState(heard)) => {
                    self.state.is_old(|name| heard.contains(name));
                    self.has_met = true;
                }
                Err(TryRecvError::Empty) => return true,
                Ok(Happened::RingGone(index, Made::Socket(_))) => self.rings.give_back(index),
                Ok(Happened::RingGone(_, Made::Kernel(subscriber))) => self.rings.unmake(subscriber),
                Ok(Happened::BridgeGone(bridge)) => drop(bridge),
                Ok(Happened::SessionEnded(ended)) => drop(ended),
                // Without a word, it has panicked.
                Ok(Happened::Stopped) | Err(TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    fn event(&mut self, mut event: HistoryEvent, source: EventSource) {
        event.wall_ns = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        if let Some(id) = event.id.filter(|id| id.0 as u32 & fide_proto::detector::INFERRED == 0) {
            self.table.told((id.0 >> 32) as u32, id.0 & u64::from(u32::MAX));
        }
        if event.text.is_empty() {
            let HistoryEvent { cause, node, app, code, confirms, .. } = &event;
            event.text = event_text::sentence(*cause, node, app.as_deref(), *code, *confirms);
        }
        self.mark_maintenance(&mut event);
        self.timing.note(&event, now_ns());
        // What is over its source's limit has no number.
        let is_kept = !self.history.was_told(&event) && self.admission.admit(&event, source, now_ns());
        if is_kept {
            event.seq = self.history.append(event.clone());
            match event.level() {
                Level::Failure | Level::Fault => tracing::warn!(grade = %event.grade, "{}", event.text),
                Level::Notice | Level::Timing => tracing::info!(grade = %event.grade, "{}", event.text),
            }
        }
        self.integrations.happened(&event, source);
        if matches!(event.cause, Cause::Left | Cause::Returned) && event.app.is_none() && event.node != self.config.node {
            self.state.set_left(&event.node, event.cause == Cause::Left);
            self.has_met = true; // a restart must not count it
            if event.cause == Cause::Returned {
                self.maintenance.host_joined();
            }
        }
        if event.cause == Cause::Hung && event.node == self.config.node {
            if self.integrations.says(HookAction::Fence, &event) {
                self.fence_hung(&event);
            }
            if self.integrations.says(HookAction::Kill, &event) {
                self.kill_hung(&event);
            }
        }
        if is_kept && self.connections.iter().any(|c| c.following) {
            let bytes = encoded(&Reply::Event(Box::new(event)));
            self.connections.iter_mut().filter(|c| c.following).for_each(|c| c.push_bytes(bytes.clone(), None));
        }
    }

    /// A hook says that who is hung shall end. The exit watch sees it doomed, and all hosts hear of a crash that is certain.
    fn fence_hung(&mut self, event: &HistoryEvent) {
        let (Some(name), Some(number)) = (event.app.clone(), event.id.map(|id| id.0 as u32)) else { return };
        let text = match self.core.ask(|answer| LoopRequest::FenceHung { name: name.clone(), number, answer }) {
            Some(Some(Ok(gate))) => {
                format!("{name} was hung and is cut off with {gate}, as a hook says, until its next instance is watched")
            }
            Some(Some(Err(why))) => format!("{name} is hung and cannot be cut off, as a hook says: {why}"),
            Some(None) => return, // it moves again
            None => format!("{name} is hung and cannot be cut off, as a hook says: the agent's loop does not answer"),
        };
        tracing::warn!("{text}");
        self.core.note(crate::admission::HOOK_EVENT_CODE, text);
    }

    fn kill_hung(&mut self, event: &HistoryEvent) {
        let Some(name) = event.app.clone() else { return };
        let number = event.id.map(|id| id.0 as u32);
        // It may have moved since.
        let still = self.core.ask(|answer| LoopRequest::Hung { name: name.clone(), number, answer });
        let Some((fide_xdp::Process { pid, start_ticks }, owner)) = still.flatten() else { return };
        let text = match self.resolver.kill(pid, start_ticks, owner) {
            Ok(()) => format!("{name} (process {pid}) was hung and is killed, as a hook says"),
            Err(e) => format!("{name} (process {pid}) is hung and cannot be killed, as a hook says: {e}"),
        };
        tracing::warn!("{text}");
        self.core.note(crate::admission::HOOK_EVENT_CODE, text);
    }

    // ---- signals, interfaces, time ------------------------------------------------------------------------------------------

    fn signalled(&mut self) {
        // SAFETY: a signalfd yields whole signalfd_siginfo structs; all zeros is valid.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        // SAFETY: an open, non-blocking signalfd and a buffer of one struct.
        while unsafe { libc::read(self.signals.as_raw_fd(), (&raw mut info).cast(), size) } == size as isize {
            match info.ssi_signo as i32 {
                libc::SIGHUP => {
                    // What was read before the file changed last is of no use.
                    self.lookups.forget(Whose::Configuration);
                    let read = self.read_configuration();
                    if !self.lookups.ask(Source::Asked(0), Whose::Configuration, read) {
                        tracing::error!("the configuration is not read again: too much is being looked up");
                    }
                }
                _ if !self.stopping => {
                    self.stopping = true;
                    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]); // as in run()
                    let within_ms = match self.config.restart_within {
                        RestartWithin::Auto if service::is_restarting() => service::BACK_WITHIN_MS,
                        RestartWithin::Auto => 0,
                        RestartWithin::Ms(ms) => ms,
                    };
                    match within_ms {
                        0 => tracing::info!("leaving"),
                        ms => tracing::info!("ending; others expect the next agent within {ms} ms"),
                    }
                    self.core.tell(LoopRequest::Leave(within_ms));
                }
                _ => {}
            }
        }
    }

    /// Counts the paths' receive queues, and looks who may answer there: either may make a thread wait for whoever changes an interface.
    fn look_at_paths(&mut self) {
        if self.paths_looked_at.is_some_and(|at| at.elapsed() < LOOK_AT_PATHS_EVERY) {
            return;
        }
        self.paths_looked_at = Some(std::time::Instant::now());
        let configured = self.config.paths.iter().map(|path| path.answerers.as_ref());
        let of = |(interface, configured): (&String, Option<&Vec<IpAddr>>)| {
            let mut answerers = configured.cloned().unwrap_or_else(|| gateways(interface));
            answerers.retain(|address| !fide_lane::is_local(*address));
            (check::processors::queues(interface).unwrap_or(0), answerers)
        };
        let looked: Vec<_> = self.carriers.interfaces().iter().zip(configured).map(of).collect();
        for (path, (queues, addresses)) in looked.into_iter().enumerate() {
            self.core.tell(LoopRequest::SetQueues { path, queues });
            self.core.tell(LoopRequest::SetAnswerers { path, addresses });
        }
    }

    /// Interfaces and cgroups that came (back).
    fn renew_guards(&mut self) {
        for text in self.gates.as_mut().map_or_else(Vec::new, Gates::renew) {
            tracing::error!("{text}");
            self.core.note(0, text);
        }
        for text in self.gates.as_mut().map_or_else(Vec::new, Gates::closed) {
            self.core.note(crate::gates::CLOSED_EVENT_CODE, text);
        }
        let unguarded = self.guard.as_mut().and_then(Guard::renew_interfaces);
        self.tell_unguarded(unguarded);
        self.renew_guarded_cgroups();
    }

    fn renew_guarded_cgroups(&mut self) {
        let Some(guard) = self.guard.as_mut() else { return };
        let (gates, unguarded) = guard.renew_cgroups();
        for (name, gate) in gates {
            self.core.tell(LoopRequest::AddGate(name, gate));
        }
        self.tell_unguarded(unguarded);
    }

    /// Who came beside a process that was cut off and lived is its next instance as soon as that one is gone.
    fn renew_beside_cut_off(&mut self) {
        let Some(guard) = self.guard.as_mut().filter(|guard| guard.cut_off_gone()) else { return };
        for (app, pid, gate) in self.core.ask(LoopRequest::BesideCutOff).unwrap_or_default() {
            if !guard.cut_off_lives(&gate) {
                guard.drop_left_by_doomed(&gate, pid);
                self.core.tell(LoopRequest::FenceProcess { app, gate, lives: false });
            }
        }
    }

    fn tell_unguarded(&self, complaints: impl IntoIterator<Item = String>) {
        for text in complaints {
            tracing::error!("{text}");
            self.core.note(0, text);
        }
    }

    fn fence(&self, i: usize, order: FenceOrder) -> Result<Reply, Refused> {
        let peer = &self.connections[i].peer;
        match order {
            FenceOrder::Status => self.policy.may_read(peer)?,
            FenceOrder::Shut => {
                self.policy.may_fence(peer)?;
                self.core.ask(LoopRequest::ShutFence).ok_or_else(stuck)??;
            }
            FenceOrder::Recover => {
                self.policy.may_fence(peer)?;
                self.guard.iter().for_each(Guard::drop_left);
                self.core.ask(LoopRequest::RecoverFence).ok_or_else(stuck)??;
            }
        }
        let status = self.core.ask(LoopRequest::FenceStatus).ok_or_else(stuck)?;
        let mut status = status.ok_or_else(crate::core::no_fence)?;
        if let Some(guard) = &self.guard {
            guard.complete(&mut status);
        }
        Ok(Reply::Fence(Box::new(status)))
    }

    fn links_changed(&mut self) {
        self.carriers.look(now_ns);
        let changed = self.integrations.changed_interfaces();
        self.paths_looked_at = None;
        self.renew_guards();
        for interface in changed {
            self.look_at_interfaces(|spec| spec.interface == interface);
        }
    }

    /// Tells the loop what these paths' interfaces are like now.
    fn look_at_interfaces(&self, which: impl Fn(&PathSpec) -> bool) {
        for spec in self.specs.iter().filter(|spec| which(spec)) {
            let (path, seen) = (spec.path, fide_lane::look(spec));
            self.core.tell(LoopRequest::PathSeen(path, seen));
        }
    }

    /// Twice a second: watches to renew, files to sync, the watchdog.
    fn sweep(&mut self) {
        self.read_losses();
        self.carriers.look(now_ns);
        self.look_at_paths();
        if self.interfaces_looked_at.is_none_or(|at| at.elapsed() >= LOOK_AT_INTERFACES_EVERY) {
            self.interfaces_looked_at = Some(Instant::now());
            self.look_at_interfaces(|_| true);
        }
        self.renew_guards();
        self.renew_beside_cut_off();
        self.tend_maintenance();
        self.renew_watches();
        self.lookups.tend();
        self.end_long_lookups();
        let now = now_ns();
        self.rates.retain(|_, rate| !rate.is_idle(now));
        self.introductions.retain(|_, rate| !rate.is_idle(now));
        self.save_state();
        self.write_history();
        self.sync_history();
        self.look_at_disk();
        let counted = crate::integrations::Counted {
            clients: self.connections.len() as u64,
            history_events: self.history.next_seq(),
            history_bytes: self.history.bytes(),
            history_lost: self.history.lost(),
            history_failures: self.history.failures() + self.hangs,
            history_not_kept: self.admission.not_kept(),
        };
        let extra = (self.pending(), self.maintenance.status(Now::read()));
        self.integrations.publish(&self.core, &self.about, counted, self.guard.as_ref(), self.gates.as_ref(), extra);
        for (source, code, text) in self.integrations.failed_hooks(now) {
            // A hook that fails is this host's matter, and counts as whose doing made it run.
            self.core.tell(LoopRequest::Note(source, code, text));
        }
        if let Some(text) = self.timing.due(now) {
            self.core.note(TIMING_EVENT_CODE, text);
        }
        for text in self.admission.tell(now) {
            self.core.note(NOT_KEPT_EVENT_CODE, text);
        }
        if self.core.heart.check(now_ns()).is_ok() {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]); // as in run()
        }
    }

    /// Has the next process looked for where a watch stands and its process has ended.
    fn renew_watches(&mut self) {
        let watched: Vec<u32> = self.standing.iter().filter_map(|s| s.app).collect();
        for some in watched.chunks(STANDING_AT_ONCE) {
            let ended = self.core.ask(|answer| LoopRequest::Ended(some.to_vec(), answer));
            for (app, crashed_ns) in ended.unwrap_or_default() {
                self.has_ended(app, crashed_ns);
            }
        }
        self.want_starts();
        for i in 0..self.standing.len() {
            if let Some(app) = self.standing[i].app {
                self.settle(i, app);
            }
        }
        // Those that were looked for longest ago first.
        let mut waiting: Vec<usize> =
            (0..self.standing.len()).filter(|i| self.standing[*i].app.is_none() && !self.standing[*i].looking).collect();
        waiting.sort_by_key(|i| self.standing[*i].looked);
        let owners: BTreeSet<u32> = waiting.iter().map(|i| self.standing[*i].account()).collect();
        // By number: what one finds may end another.
        let waiting: Vec<u64> = waiting.into_iter().map(|i| self.standing[i].id).collect();
        self.standing_time.retain(|account, _| owners.contains(account));
        let now = Instant::now();
        for id in waiting {
            let Some(s) = self.stands(id).map(|i| &self.standing[i]) else { continue };
            let is_at_leisure = s.is_searched_at_leisure(self.starts.is_some());
            if is_at_leisure && (now < self.next_search || s.looked.is_some_and(|at| now - at < SEARCH_EVERY)) {
                continue;
            }
            self.look_for(id);
            if is_at_leisure && self.stands(id).is_some_and(|i| self.standing[i].looking) {
                self.next_search = now + SEARCH_WAIT;
            }
        }
    }

    /// Has the process of a standing watch searched among all.
    fn look_for(&mut self, id: u64) {
        let Some(i) = self.stands(id).filter(|i| !self.standing[*i].looking) else { return };
        let now = Instant::now();
        let account = self.standing[i].account();
        let source = Source::Standing(account);
        let (left, reckoned) = self.standing_time.entry(account).or_insert((STANDING_TIME_MAX, now));
        *left = (*left + (now - *reckoned) / STANDING_SHARE).min(STANDING_TIME_MAX);
        *reckoned = now;
        // Root's and the configuration's are looked for at once. Of the others a few at a time, while there is time left for this user.
        if account != 0 && (left.is_zero() || self.lookups.waiting(source) >= STANDING_QUEUED) {
            return;
        }
        let s = &mut self.standing[i];
        s.looked = Some(now);
        s.searches = s.searches.saturating_add(1);
        if let Err(unknown) = s.find_user() {
            self.found_standing(id, Err(unknown));
            return;
        }
        let (resolver, selector, scope) = (self.resolver.clone(), s.selector.clone(), s.scope.clone());
        let work = move |limit: &Limit| Found::Process(resolver.within(limit).resolve_within(&scope, &selector, None));
        s.looking = self.lookups.ask(source, Whose::Standing(s.id), work);
        s.searches_under_way += u32::from(s.looking);
    }

    /// The process of this number has ended: whatever watch had it waits for the next.
    fn has_ended(&mut self, app: u32, crashed_ns: Option<u64>) {
        self.standing.iter_mut().filter(|s| s.app == Some(app)).for_each(|s| s.lost(crashed_ns));
        if let Some(probes) = &self.probes {
            probes.remove(app);
        }
    }

    // ---- processes that are started -----------------------------------------------------------------------------------------

    /// Has the kernel tell what standing watches may wait for.
    fn want_starts(&mut self) {
        let Some(starts) = self.starts.as_mut() else { return };
        let mut wanted = Wanted::default();
        for s in &self.standing {
            match &s.selector {
                Selector::Name(name) => _ = wanted.names.insert(name.clone()),
                Selector::Port(port) => _ = wanted.ports.insert(*port),
                Selector::Unit(_) | Selector::Cgroup(_) => wanted.names.extend(select::cgroup_of_selector(&s.selector)),
                Selector::Pid(_) => {}
            }
        }
        if let Err(e) = starts.want(wanted) {
            tracing::warn!("some processes are found by searching only: {e}");
        }
    }

    /// Programs that have just begun, sockets that listen, and processes that handed over to a child.
    fn started(&mut self) {
        if self.starts.as_mut().is_some_and(StartWatch::has_lost) {
            self.search_all();
        }
        for _ in 0..STARTS_PER_TURN {
            let told = self.starts_waiting.pop_front();
            let Some(start) = told.or_else(|| self.starts.as_mut().and_then(StartWatch::poll)) else { return };
            tracing::debug!("{start:?}");
            match start {
                Start::HandedOver { app, .. } => {
                    self.handed_over(app);
                    continue;
                }
                Start::Exec { app, .. } => {
                    self.runs_another_program(app);
                    continue;
                }
                Start::Program(_) | Start::Listens(..) => {}
            }
            let (taken, since) = &mut self.starts_taken;
            if since.elapsed() >= Duration::from_secs(1) {
                (*taken, *since) = (0, Instant::now());
            }
            *taken += 1;
            if *taken > STARTS_PER_SECOND {
                self.search_all();
                continue;
            }
            match start {
                Start::Program(pid) => self.newcomer(pid, |selector| !matches!(selector, Selector::Port(_) | Selector::Pid(_))),
                Start::Listens(pid, port) => self.listens(pid, port, 0),
                Start::HandedOver { .. } | Start::Exec { .. } => {}
            }
        }
    }

    // ---- processes that are replaced ----------------------------------------------------------------------------------------

    /// Every `exec` that the kernel has told of up to now: before a process joins, since what joins is the new program.
    fn note_execs(&mut self) {
        for _ in 0..STARTS_WAITING {
            match self.starts.as_mut().and_then(StartWatch::poll) {
                Some(Start::Exec { app, .. }) => self.runs_another_program(app),
                // One that handed over is waited for: it is never left out.
                Some(other @ Start::HandedOver { .. }) => self.starts_waiting.push_back(other),
                Some(other) if self.starts_waiting.len() < STARTS_WAITING => self.starts_waiting.push_back(other),
                Some(_) => self.search_all(),
                None => return,
            }
        }
    }

    /// A watched process runs another program from now on. If the former one had joined, that is over: the new one knows nothing of it. A process that only
    /// others have watched goes on: a shell that becomes its server is ordinary.
    fn runs_another_program(&mut self, app: u32) {
        if self.core.ask(|answer| LoopRequest::Session(app, answer)).flatten().is_some() {
            self.replaced(app);
        }
    }

    /// The connection is closed by which a process had joined: by itself, by its end, or because it runs another program.
    fn session_closed(&mut self, app: u32) {
        if let Some(session) = self.core.ask(|answer| LoopRequest::Session(app, answer)).flatten()
            && is_another_program(&session)
        {
            self.replaced(app);
        }
    }

    /// The instance of this number has ended although its process lives. Whoever else has that process watched has a new one.
    fn replaced(&mut self, app: u32) {
        let Some(replaced) = self.core.ask(|answer| LoopRequest::Replaced(app, answer)).flatten() else { return };
        let is_standing = self.standing.iter().any(|s| s.app == Some(app));
        self.has_ended(app, None);
        let Replaced { name, process, origin, owner, charged } = replaced;
        if is_standing || origin == Origin::Joined {
            return;
        }
        let found = self.resolver.target(process.pid).ok().filter(|found| found.identity() == process);
        if let Some(found) = found
            && let Err(e) = self.watch(&name, &found, (origin, owner), charged, None)
        {
            self.tell_of_watch(format!("the watch {name} has ended with the instance that was replaced: {}", e.what));
        }
    }

    /// A process that had joined joins again: the former instance has ended, unless the same client goes on by another connection, or the same program does behind a
    /// restart of this agent.
    fn end_former_sessions(&mut self, name: &str, process: &Process, resumes: Option<u32>) -> Result<(), Refused> {
        self.note_execs();
        let sessions = self.core.ask(|answer| LoopRequest::Sessions(process.identity(), answer)).ok_or_else(stuck)?;
        for session in sessions {
            let joins_again = session.name == name && session.is_own && resumes != Some(session.app);
            if joins_again || is_another_program(&session) {
                self.replaced(session.app);
            }
        }
        Ok(())
    }

    /// A process listens on a port, or is about to.
    fn listens(&mut self, pid: u32, port: u16, looks: u32) {
        self.newcomer(pid, |selector| *selector == Selector::Port(port));
        let of_port = |i: &usize| self.standing[*i].selector == Selector::Port(port);
        let watches: Vec<usize> = (0..self.standing.len()).filter(of_port).collect();
        if looks < LISTENS_LOOKS && self.listening.len() < LISTENS_WAITING && watches.into_iter().any(|i| self.lives(i).is_none())
        {
            self.listening.push((Instant::now() + Duration::from_millis(1 << looks), pid, port, looks + 1));
        }
    }

    /// Looks again for sockets that were told to listen and were not found.
    fn look_again(&mut self) {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = self.listening.iter().partition(|(at, ..)| *at <= now);
        self.listening = later;
        for (_, pid, port, looks) in due {
            self.listens(pid, port, looks);
        }
    }

    /// Starts were missed: with the next sweep every watch that waits has its process searched.
    fn search_all(&mut self) {
        self.standing.iter_mut().for_each(|s| s.searches = 0);
    }

    /// A server has gone into the background: its first process ended cleanly, which was told to nobody, and a child goes on.
    fn handed_over(&mut self, app: u32) {
        let Some(id) = self.standing.iter().find(|s| s.app == Some(app)).map(|s| s.id) else {
            return self.core.tell(LoopRequest::EndedCleanly(app));
        };
        self.stands(id).into_iter().for_each(|i| self.standing[i].searches = 0);
        self.look_for_child(id, app);
    }

    /// Searches what goes on in the place of this process.
    fn look_for_child(&mut self, id: u64, app: u32) {
        self.look_for(id);
        match self.stands(id) {
            Some(i) if self.standing[i].looking => self.standing[i].is_handing_over = true,
            _ => self.core.tell(LoopRequest::EndedCleanly(app)),
        }
    }

    /// The process of this number goes on as its child; if none was found, it has ended.
    fn goes_on(&mut self, i: usize, app: u32, found: Result<Process, Refused>) {
        let s = &mut self.standing[i];
        s.is_handing_over = false;
        // A search that was ended for its time says nothing: this host is busy.
        if found.as_ref().is_err_and(|e| e.code == ErrorCode::System) && s.searches < SEARCHES_AT_ONCE {
            let id = s.id;
            return self.look_for_child(id, app);
        }
        let child = found.ok().filter(|process| s.may_watch(&self.policy, process).is_ok());
        let Some(process) = child else { return self.core.tell(LoopRequest::EndedCleanly(app)) };
        let (pid, child, uid) = (process.pid, process.identity(), process.uid);
        if self.core.ask(|answer| LoopRequest::HandOn { app, child, uid, answer }) != Some(true) {
            return;
        }
        if !self.resolver.still_same(&process) {
            return self.core.tell(LoopRequest::EndedCleanly(app));
        }
        let (progress, name, owner) = (s.progress.clone(), s.name.clone(), s.owner().uid());
        let ports = s.end_connections.clone();
        s.has(app, &process, &self.resolver);
        if let Some(probes) = &self.probes {
            probes.remove(app);
        }
        self.probe(app, &name, pid, progress);
        self.tend_connections(app, &name, &process, ports);
        self.put_behind_gate(app, pid, owner);
    }

    /// A process has begun that a watch of these selectors may wait for.
    fn newcomer(&mut self, pid: u32, is_meant: impl Fn(&Selector) -> bool) {
        let waits = |s: &&Standing| is_meant(&s.selector) && !s.is_ambiguous && s.unknown_user.is_none();
        let ids: Vec<u64> = self.standing.iter().filter(waits).map(|s| s.id).collect();
        for id in ids {
            let Some(i) = self.stands(id) else { continue };
            let s = &self.standing[i];
            if !self.resolver.fits(&s.scope, &s.selector, pid) || self.lives(i).is_some() {
                continue;
            }
            let s = &self.standing[i];
            if !matches!(s.selector, Selector::Name(_) | Selector::Port(_)) {
                self.look_for(id); // which of its cgroup's processes is meant takes more than its name
                continue;
            }
            if self.resolver.has_fitting_ancestor(&s.scope, &s.selector, pid) {
                continue; // a child of one that is meant
            }
            let Ok(target) = self.resolver.target(pid) else { continue };
            self.settles_ns = now_ns().saturating_add(SETTLES_NS);
            self.found_standing(id, Ok(target));
            self.settles_ns = 0;
            for app in std::mem::take(&mut self.ended_cleanly) {
                self.handed_over(app);
            }
        }
    }

    /// The live process that this watch has.
    fn lives(&mut self, i: usize) -> Option<u32> {
        let app = self.standing[i].app?;
        let ended = self.core.ask(|answer| LoopRequest::Ended(vec![app], answer)).unwrap_or_default();
        let Some((_, crashed_ns)) = ended.first().copied() else { return Some(app) };
        self.has_ended(app, crashed_ns);
        None
    }

    /// Where the watch of this number stands.
    fn stands(&self, id: u64) -> Option<usize> {
        self.standing.iter().position(|s| s.id == id)
    }

    /// What was found for a watch that stands: it is watched from now on, or the watch goes on waiting.
    fn found_standing(&mut self, id: u64, found: Result<Process, Refused>) {
        let Some(i) = self.stands(id) else { return };
        self.standing[i].looking = false;
        let s = &self.standing[i];
        if let Some(app) = s.app {
            if s.is_handing_over {
                self.goes_on(i, app, found);
            }
            return;
        }
        let (name, account, owner) = (s.name.clone(), s.account(), s.owner());
        if found.is_ok() && !self.may_be_told(account) {
            return; // at the next sweep
        }
        let watched = found.and_then(|process| {
            let s = &self.standing[i];
            if s.quit == Some(process.identity()) {
                let what = format!("process {} has quit; its next instance is waited for", process.pid);
                return Err(Refused { code: ErrorCode::NotFound, what });
            }
            if let Err(e) = s.may_watch(&self.policy, &process) {
                if s.denied != Some(process.identity()) {
                    tracing::debug!("{} goes on waiting, process {} is not for it: {e}", s.name, process.pid);
                    self.standing[i].denied = Some(process.identity());
                }
                return Err(e);
            }
            let app = self.watch_as(&name, &process, (s.origin, owner), account)?;
            Ok((app, process))
        });
        // Others may have given way to it.
        let Some(i) = self.stands(id) else { return };
        match watched {
            Ok((app, process)) => {
                self.standing[i].has(app, &process, &self.resolver);
                let (progress, ports) = (self.standing[i].progress.clone(), self.standing[i].end_connections.clone());
                self.probe(app, &name, process.pid, progress);
                self.tend_connections(app, &name, &process, ports);
            }
            Err(e) => self.goes_on_waiting(i, e),
        }
    }

    /// Has a process watched, by a watch of this owner, that is counted under `charged`.
    fn watch_as(
        &mut self,
        name: &str,
        process: &Process,
        (origin, owner): (Origin, Owner),
        charged: u32,
    ) -> Result<u32, Refused> {
        match self.make_way(name, Some(process), owner)? {
            Some(app) => {
                self.core.tell(LoopRequest::HandOver { app, origin, owner: owner.uid() });
                self.put_behind_gate(app, process.pid, owner.uid());
                Ok(app)
            }
            None => self.watch(name, process, (origin, owner.uid()), charged, None),
        }
    }

    /// Says why, once; and once a minute at most in the history when it cannot tell which of several processes is meant.
    fn goes_on_waiting(&mut self, i: usize, why: Refused) {
        let s = &mut self.standing[i];
        s.is_ambiguous = why.code == ErrorCode::Ambiguous;
        if why.code == ErrorCode::Ambiguous && s.ambiguity_told.is_none_or(|at| at.elapsed() >= AMBIGUITY_TOLD_EVERY) {
            s.ambiguity_told = Some(Instant::now());
            let (text, source) = (format!("{} is not watched: {why}", s.name), EventSource::user(s.account()));
            self.core.tell(LoopRequest::Note(source, WATCH_EVENT_CODE, text));
        }
        if !s.complained {
            s.complained = true;
            tracing::warn!("{} is not watched yet: {why}", s.name);
        } else if s.why != why.what {
            tracing::debug!("{} is not watched yet: {why}", s.name);
        }
        s.why = why.what;
        // Root's names are root's also while they wait.
        let (name, owner) = (s.name.clone(), s.owner());
        if owner.uid() == 0
            && let Err(e) = self.make_way(&name, None, owner)
        {
            tracing::debug!("{name}: {e}");
        }
    }

    /// Looks at the process of a watch once more, when it has had time to become what it is to be.
    fn settle(&mut self, i: usize, app: u32) {
        if self.standing[i].settled {
            return;
        }
        self.standing[i].settled = true;
        let Some(known) = self.core.ask(|answer| LoopRequest::Identity(app, answer)) else { return };
        let s = &mut self.standing[i];
        let now = self.resolver.target(known.pid).ok().filter(|process| process.identity() == known);
        if let (Some(process), Some(place)) = (now, s.scope.place.as_mut()) {
            place.user = process.owner();
        }
    }

    /// The rows of watches that wait for their processes.
    fn pending(&self) -> Vec<WatchStatus> {
        let row = |s: &Standing| WatchStatus {
            name: s.name.clone(),
            origin: s.origin.name().into(),
            state: "pending".into(),
            owner: s.owner().uid(),
            why: s.why.clone(),
            ..WatchStatus::default()
        };
        self.standing.iter().filter(|s| s.app.is_none()).map(row).collect()
    }

    // ---- whose a watch is ---------------------------------------------------------------------------------------------------

    /// Whether somebody may have a watch of this name, as far as watches say that stand, or that the configuration names.
    fn may_take(&self, name: &str, by: Owner) -> Result<(), Refused> {
        let refuse = |what: String| Err(Refused { code: ErrorCode::Exists, what });
        if let Some(s) = self.standing.iter().find(|s| s.name == name) {
            let owner = s.owner();
            return match owner {
                _ if owner == by || by.goes_before(owner) => Ok(()),
                Owner::Configuration => refuse(format!(
                    "the name {name} belongs to the configuration, also while no process is found for it: choose another name, or change its [[watch]] and `fide reload`"
                )),
                Owner::User(_) => refuse(format!(
                    "the name {name} is taken by a watch of {owner}, also while no process is found for it: choose another name, or have that watch ended: \
                     fide unmonitor {name}"
                )),
            };
        }
        // What root has ended until the next reload is root's to use meanwhile.
        if by.uid() != 0 && self.config.watches.iter().any(|w| w.name == name) {
            return refuse(format!("the name {name} belongs to the configuration: choose another name"));
        }
        Ok(())
    }

    /// Frees a name, and a process, for a watch of this owner: whoever comes after it gives way, and that is told. Gives the number of a watch that has this
    /// name and this very process already, and goes over to the new owner as it is.
    ///
    /// # Errors
    /// When somebody else's watch does not have to give way.
    fn make_way(&mut self, name: &str, process: Option<&Process>, by: Owner) -> Result<Option<u32>, Refused> {
        let holders = self.holders(name, process.map(|p| p.pid))?;
        // A former agent had it watched for the same one.
        let goes_on =
            |h: &Holder| h.is_kept && h.owner == by && h.name == name && process.is_some_and(|p| p.identity() == h.process);
        // Or for a configuration that is another one by now.
        let is_in_file = |name: &str| self.config.watches.iter().any(|watch| watch.name == name);
        let is_former =
            |h: &Holder| h.is_kept && h.owner == by && by == Owner::Configuration && (h.name == name || !is_in_file(&h.name));
        let gives_way = |h: &Holder| goes_on(h) || is_former(h) || (by.goes_before(h.owner) && (h.name == name || !h.joined));
        if let Some(holder) = holders.iter().find(|h| !gives_way(h)) {
            return Err(Refused { code: ErrorCode::Exists, what: holder.taken(name) });
        }
        let standing = |s: &Standing| s.name == name && by.goes_before(s.owner());
        if let Some(at) = self.standing.iter().position(standing) {
            let s = self.standing.swap_remove(at);
            if s.app.is_none() {
                self.tell_of_watch(format!(
                    "the watch {name} of {}, which had no process, has ended: {by} has that name now",
                    s.owner()
                ));
            }
        }
        let mut taken_over = None;
        for holder in holders {
            if goes_on(&holder) {
                taken_over = Some(holder.app);
                continue;
            }
            let Holder { app, name: own, process: held, owner, .. } = holder;
            let pid = held.pid;
            if own == name && process.is_some_and(|p| p.identity() == held) {
                self.tell_of_watch(format!("the watch {name} (process {pid}) of {owner} is {by}'s now"));
                taken_over = Some(app);
                continue;
            }
            self.end_watch(app);
            let what = if own == name { "that name" } else { "that process" };
            self.tell_of_watch(format!("the watch {own} (process {pid}) of {owner} has ended: {by} has {what} now"));
        }
        Ok(taken_over)
    }

    fn tell_of_watch(&self, text: String) {
        tracing::warn!("{text}");
        self.core.note(WATCH_EVENT_CODE, text);
    }

    /// The live watches of this name or of this process.
    fn holders(&self, name: &str, pid: Option<u32>) -> Result<Vec<Holder>, Refused> {
        self.core.ask(|answer| LoopRequest::Holders { name: name.into(), pid, answer }).ok_or_else(stuck)
    }

    /// A live process is watched no more; others see it leave.
    fn end_watch(&mut self, app: u32) {
        if let Some(probes) = &self.probes {
            probes.remove(app);
        }
        self.core.ask(|answer| LoopRequest::Unwatch(app, answer));
    }

    /// Has a process's progress seen from outside, from now on in this way.
    fn probe(&self, app: u32, name: &str, pid: u32, progress: Option<config::ProgressProbe>) {
        let Some(probes) = &self.probes else { return };
        probes.remove(app);
        let Some(progress) = progress else {
            self.core.tell(LoopRequest::WatchProbe(app, None));
            return;
        };
        let moves = Moves::default();
        let (source, limit_ns, counted) = (progress.probe.source(), progress.limit_ns, moves.clone());
        self.core.tell(LoopRequest::WatchProbe(app, Some((source, limit_ns, counted))));
        probes.add(app, name, pid, progress, moves);
    }

    fn watch(
        &mut self,
        name: &str,
        process: &Process,
        (origin, owner): (Origin, u32),
        charged: u32,
        joining: Option<Joining>,
    ) -> Result<u32, Refused> {
        fide_wire::names::check_app(name).map_err(|what| Refused { code: ErrorCode::Invalid, what })?;
        let account = joining.as_ref().map_or(process.uid, |joining| joining.account);
        let (pbsize, ring) = joining.as_ref().map_or((0, None), |joining| (joining.pbsize, joining.ring));
        let image = joining.as_ref().and_then(|joining| joining.image);
        let watched = Watched {
            name: name.into(),
            pid: process.pid,
            start_ticks: process.start_ticks,
            uid: process.uid,
            origin,
            owner,
            charged,
            account,
            settles_ns: self.settles_ns,
            looks: 0,
            former: 0,
            pbsize,
            bridge: joining.map(|joining| joining.bridge),
            probe: None,
            hung: None,
            ends_connections: false,
            ring,
            image,
            ended: None,
            ended_ns: 0,
            taken_at: 0,
            is_kept: false,
        };
        let app = self.core.ask(|answer| LoopRequest::Watch(Box::new(watched), answer)).ok_or_else(stuck)??;
        // It may have died between being found and being watched; then nobody would ever hear of it. Others have been told that it runs.
        if self.resolver.still_same(process) {
            self.put_behind_gate(app, process.pid, owner);
        } else {
            if self.settles_ns != 0 {
                // The kernel tells of its end, if the watch was there in time.
                self.resolver.wait_until_dead(process, &mut self.exits_left_ms);
            }
            let end = self.resolver.end_of(process);
            let before = self.core.ask(|answer| LoopRequest::DiedBeforeWatched(app, end, answer)).unwrap_or(Before::Told);
            if before == Before::Told {
                return Err(Refused { code: ErrorCode::NotFound, what: format!("process {} has just ended", process.pid) });
            }
            // A server that has gone into the background in this moment: its child is looked for.
            self.ended_cleanly.extend((before == Before::Cleanly).then_some(app));
        }
        // Before anybody is told that it is watched: should this agent be killed now, the next one knows it.
        self.loop_ended |= !self.hear();
        self.keep_table_now();
        Ok(app)
    }

    /// The gate of a process's cgroup follows this watch of it from now on, if the owner of the
    /// watch may speak for the cgroup.
    fn put_behind_gate(&mut self, app: u32, pid: u32, owner: u32) {
        self.renew_guarded_cgroups(); // its cgroup may have been made a moment ago
        let Some((guard, gate)) = self.guard.as_mut().and_then(|g| g.cgroup_of(pid).map(|gate| (g, gate))) else { return };
        if !guard.may_speak(&gate, owner) {
            tracing::info!("{gate} does not follow the watch of process {pid}: user {owner} does not own that cgroup");
            return;
        }
        let lives = guard.cut_off_lives(&gate);
        guard.drop_left_by_doomed(&gate, pid);
        self.core.tell(LoopRequest::FenceProcess { app, gate, lives });
    }

    // ---- clients ------------------------------------------------------------------------------------------------------------

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            match seqpacket::accept(self.listener.as_fd()) {
                Ok(Some(fd)) => {
                    let mut peer = match access::Peer::of(fd.as_fd()) {
                        Ok(p) => p,
                        Err(e) => {
                            tracing::warn!("a client without credentials is turned away: {e}");
                            continue;
                        }
                    };
                    let process = Identity::of(fd.as_fd(), &peer, &self.resolver);
                    peer.account = account(&peer, process.as_ref());
                    let mut c = Connection {
                        process,
                        fd,
                        peer,
                        greeted: false,
                        ring: None,
                        joined: None,
                        following: false,
                        reading: None,
                        out: VecDeque::new(),
                        out_bytes: 0,
                        closing: false,
                        id: self.accepted,
                        checking: false,
                        waiting: None,
                        targets: BTreeSet::new(),
                        introducing: VecDeque::new(),
                        introduced: None,
                        held: None,
                        left_behind: None,
                        served: 0,
                        gate: None,
                    };
                    self.accepted += 1;
                    if let Err(what) = admit(self.connections.iter().map(|c| c.peer.account), c.peer.account) {
                        self.note_turned_away(c.peer.uid, &what);
                        c.push(&refused(ErrorCode::Full, what), None);
                        c.flush();
                        continue;
                    }
                    self.connections.push(c);
                }
                Ok(None) => return,
                Err(e) => {
                    tracing::error!("no connection can be accepted: {e}");
                    return;
                }
            }
        }
    }

    /// At most once a second: whoever is turned away may come again at once.
    fn note_turned_away(&mut self, uid: u32, what: &str) {
        let (since, logged) = &mut self.turned_away;
        *since += 1;
        if logged.is_none_or(|at| at.elapsed() >= Duration::from_secs(1)) {
            let others = std::mem::take(since) - 1;
            *logged = Some(Instant::now());
            tracing::warn!("a client of uid {uid} is turned away (and {others} since the last word of it): {what}");
        }
    }

    /// Reads requests where some came. Root's connections come first; then all other users have a slice of time together, in which they take turns, and
    /// the connections of each take turns as well. What is not served waits in its socket.
    fn serve(&mut self, revents: &[i16]) {
        for (c, revents) in self.connections.iter_mut().zip(revents) {
            if revents & (libc::POLLHUP | libc::POLLERR) != 0 && c.left_behind.is_none() {
                c.left_behind = Some(REQUESTS_PER_TURN);
                // Nobody waits for these answers any more.
                c.closing |= c.checking || c.waiting.is_some() || c.held.is_some();
            }
        }
        let is_ready = |i: &usize| {
            let c = &self.connections[*i];
            c.held.is_some() || (c.is_listening() && revents.get(*i).is_some_and(|revents| *revents != 0))
        };
        let (roots, mut others): (Vec<usize>, Vec<usize>) =
            (0..self.connections.len()).filter(is_ready).partition(|i| self.connections[*i].peer.uid == 0);
        for i in roots {
            let mut left = REQUESTS_PER_TURN;
            while left > 0 && self.serve_one(i) {
                left -= 1;
            }
        }
        let began = Instant::now();
        let mut last_of: BTreeMap<u32, u64> = BTreeMap::new();
        for c in &self.connections {
            let last = last_of.entry(c.peer.account).or_default();
            *last = c.served.max(*last);
        }
        others.sort_by_key(|i| {
            let c = &self.connections[*i];
            (last_of.get(&c.peer.account).copied(), c.served)
        });
        let mut queue = FairQueue::new(others.len());
        for i in others {
            queue.push(self.connections[i].peer.account, i);
        }
        while began.elapsed() < USERS_SLICE
            && let Some((account, i)) = queue.pop()
        {
            if self.serve_one(i) {
                queue.push(account, i);
            }
        }
    }

    /// Reads one request and answers it; `false` when no other one can be read from this connection now.
    fn serve_one(&mut self, i: usize) -> bool {
        self.served += 1;
        self.connections[i].served = self.served;
        if let Some(request) = self.connections[i].held.take() {
            self.answer_now(i, *request);
            return self.connections[i].is_listening();
        }
        let c = &mut self.connections[i];
        // A client that asks without reading its replies is read on when it has caught up.
        if !c.is_listening() {
            return false;
        }
        if let Some(left) = c.left_behind.as_mut() {
            if *left == 0 {
                c.closing = true;
                return false;
            }
            *left -= 1;
        }
        match seqpacket::read(c.fd.as_fd(), &mut self.buffer) {
            Read::Nothing => return false,
            Read::Closed => {
                c.closing = true;
                return false;
            }
            Read::TooLong => c.push(&refused(ErrorCode::TooLarge, "a message has at most 131072 bytes"), None),
            Read::Message(bytes) => match serde_json::from_slice::<Request>(&bytes) {
                Ok(request) => self.answer_now(i, request),
                Err(e) => c.push(&refused(ErrorCode::Invalid, format!("not a request: {e}")), None),
            },
        }
        let c = &mut self.connections[i];
        // What waits for something now, of a client that is gone, waits in vain.
        c.closing |= c.left_behind.is_some() && (c.checking || c.waiting.is_some() || c.held.is_some());
        c.is_listening()
    }

    fn answer_now(&mut self, i: usize, request: Request) {
        if let Some((reply, fd)) = self.answer(i, request) {
            self.connections[i].push(&reply, fd);
        }
    }

    /// Whether a user may now have other hosts told of one more thing. Counted if so.
    fn may_be_told(&mut self, account: u32) -> bool {
        account == 0 || self.rates.entry(account).or_default().take(TOLD_REQUESTS, now_ns())
    }

    // ---- what is looked up --------------------------------------------------------------------------------------------------

    fn looked_up(&mut self) {
        while let Some(LookedUp { whose, source, found, took, ran }) = self.lookups.poll() {
            if let Source::Standing(account) = source
                && let Some((left, _)) = self.standing_time.get_mut(&account)
            {
                *left = left.saturating_sub(took);
            }
            match (whose, found) {
                (Whose::Standing(id), Found::Process(found)) => {
                    let is_told = self.starts.is_some();
                    if self.stands(id).is_some_and(|i| self.standing[i].is_searched_at_leisure(is_told)) {
                        self.next_search = Instant::now() + ran * SEARCH_SHARE;
                    }
                    let Some(i) = self.stands(id) else { continue };
                    let s = &mut self.standing[i];
                    s.searches_under_way = s.searches_under_way.saturating_sub(1);
                    if s.is_handing_over && s.searches_under_way > 0 {
                        continue; // it was begun before there was a child
                    }
                    self.found_standing(id, found);
                }
                (Whose::Configuration, Found::Configuration(read)) => {
                    if let Err(e) = self.reload(*read) {
                        tracing::error!("{e}");
                        self.core.note(0, e);
                    }
                }
                (Whose::Connection(id), found) => {
                    let Some(i) = self.connections.iter().position(|c| c.id == id) else { continue };
                    let Some((_, wait)) = self.connections[i].waiting.take() else { continue };
                    let answer = match (wait, found) {
                        (Wait::Page, Found::Page(page, next)) => {
                            self.send_page(i, page, next);
                            continue;
                        }
                        (Wait::Watch(name, selector, scope), Found::Process(found)) => {
                            found.and_then(|process| self.watch_found(i, &name, selector, scope, &process))
                        }
                        (Wait::Explain(id), Found::Verdicts(found)) => {
                            one_life(id, found).map(|event| Reply::Explained(Box::new(event)))
                        }
                        (Wait::Reload, Found::Configuration(read)) => {
                            let reloaded = self.reload(*read).map_err(|what| Refused { code: ErrorCode::Invalid, what });
                            reloaded.map(|reloaded| Reply::Reloaded(Box::new(reloaded)))
                        }
                        _ => continue,
                    };
                    self.connections[i].push(&answer.unwrap_or_else(Reply::Error), None);
                }
                _ => {}
            }
        }
    }

    /// Has something looked up for a connection; its next requests wait for that.
    fn look_up(
        &mut self,
        i: usize,
        wait: Wait,
        work: impl FnOnce(&Limit) -> Found + Send + 'static,
    ) -> Result<Option<Answer>, Refused> {
        let c = &mut self.connections[i];
        if !self.lookups.ask(Source::Asked(c.peer.account), Whose::Connection(c.id), work) {
            return Err(Refused { code: ErrorCode::Full, what: "too much is being looked up already: try again later".into() });
        }
        c.waiting = Some((Instant::now(), wait));
        Ok(None)
    }

    // ---- event rings --------------------------------------------------------------------------------------------------------

    /// The reply comes when the ring has been made.
    fn subscribe(&mut self, i: usize, socket_only: bool) -> Result<Option<Answer>, Refused> {
        let account = self.connections[i].peer.account;
        if self.connections[i].ring.is_some() {
            return Err(Refused { code: ErrorCode::Exists, what: "this connection has its event ring already".into() });
        }
        let system = |what: String| Refused { code: ErrorCode::System, what };
        let socket = socket_only || !self.rings.has_kernels();
        let index = self.rings.take(account, socket)?;
        if socket {
            let (ours, theirs) = seqpacket_pair().map_err(|e| {
                self.rings.give_back(index);
                system(format!("no socket for events: {e}"))
            })?;
            self.core.ask(|answer| LoopRequest::Subscribe(index, Made::Socket(ours), answer)).ok_or_else(stuck)?;
            self.connections[i].ring = Some(index);
            return Ok(Some((Reply::Ring { kind: RingKind::Socket, size: fide_xdp::layout::RING_BYTES }, Some(theirs))));
        }
        if !self.rings.make(index) {
            self.rings.give_back(index);
            return Err(system("too many event rings are being made: try again later".into()));
        }
        self.connections[i].waiting = Some((Instant::now(), Wait::Ring(index)));
        Ok(None)
    }

    fn rings_made(&mut self) {
        while let Some((index, found)) = self.rings.poll() {
            let Found::Made(made) = found else { continue };
            let waits = |c: &Connection| matches!(c.waiting, Some((_, Wait::Ring(of))) if of == index);
            let asked = self.connections.iter_mut().find(|c| waits(c));
            let made = made.map_err(|e| e.to_string());
            let made = made.and_then(|s| Ok((s.fd().try_clone_to_owned().map_err(|e| e.to_string())?, s)));
            match (made, asked) {
                (Ok((fd, subscriber)), Some(c)) => {
                    c.waiting = None;
                    if self.core.ask(|answer| LoopRequest::Subscribe(index, Made::Kernel(subscriber), answer)).is_none() {
                        c.push(&Reply::Error(stuck()), None);
                        continue;
                    }
                    c.ring = Some(index);
                    c.push(&Reply::Ring { kind: RingKind::Bpf, size: fide_xdp::layout::RING_BYTES }, Some(fd));
                }
                // It hung up meanwhile.
                (Ok((_, subscriber)), None) => self.rings.unmake(subscriber),
                (Err(what), asked) => {
                    self.rings.give_back(index);
                    if let Some(c) = asked {
                        c.waiting = None;
                        c.push(&refused(ErrorCode::Full, what), None);
                    }
                }
            }
        }
    }

    fn monitor(&mut self, i: usize, target: &str, want: Want) -> Result<Reply, Refused> {
        let c = &mut self.connections[i];
        let Some(ring) = c.ring else {
            return Err(Refused { code: ErrorCode::Invalid, what: "subscribe first: events need a ring".into() });
        };
        let target = Target::parse(target).map_err(|what| Refused { code: ErrorCode::Invalid, what })?;
        if !c.targets.contains(&target) {
            self.targets.take(c.peer.account, 1).map_err(|what| Refused { code: ErrorCode::Full, what })?;
            c.targets.insert(target.clone());
        }
        // Names first: whom they belong to may end as soon as somebody listens. As many as a ring holds; the others follow while they are read.
        let account = c.peer.account;
        let mut at = (!matches!(target, Target::Process(..))).then_some(Introduced::Hosts(0));
        if account == 0 || at.is_none() || self.introductions.entry(account).or_default().take(INTRODUCTIONS, now_ns()) {
            for _ in 0..INTRODUCED / INTRODUCED_AT_ONCE {
                let Some(from) = at else { break };
                at = introduce(&self.core, ring, &target, from).ok_or_else(stuck)?;
            }
        }
        if let Some(from) = at
            && !c.introducing.iter().any(|(t, _)| *t == target)
        {
            c.introducing.push_back((target.clone(), from));
        }
        let monitored = self.core.ask(|answer| LoopRequest::Monitor { ring, target, want, answer });
        monitored.ok_or_else(stuck)
    }

    /// Some more names for those who monitor more processes than their rings hold at once.
    fn introduce_more(&mut self) {
        let now = Instant::now();
        if now.saturating_duration_since(self.introduced) < INTRODUCE_EVERY {
            return;
        }
        self.introduced = now;
        // Those that had their turn longest ago.
        let mut waiting: Vec<&mut Connection> = self.connections.iter_mut().filter(|c| !c.introducing.is_empty()).collect();
        waiting.sort_by_key(|c| c.introduced);
        for c in waiting.into_iter().take(INTRODUCE_TO) {
            c.introduced = Some(now);
            let (Some(ring), Some((target, from))) = (c.ring, c.introducing.front_mut()) else { continue };
            match introduce(&self.core, ring, target, *from) {
                Some(Some(next)) if c.targets.contains(target) => *from = next,
                _ => drop(c.introducing.pop_front()),
            }
        }
    }

    // ---- the status ---------------------------------------------------------------------------------------------------------

    /// Everybody who asked since the last time gets the same one: however many ask, the loop is asked once.
    fn answer_statuses(&mut self) {
        let waits = |c: &Connection| matches!(c.waiting, Some((_, Wait::Status)));
        if !self.connections.iter().any(waits) {
            return;
        }
        let answer = self.status().map_or_else(|| Reply::Error(stuck()), |status| Reply::Status(Box::new(status)));
        let bytes = encoded(&answer);
        for c in self.connections.iter_mut().filter(|c| waits(c)) {
            c.waiting = None;
            c.push_bytes(bytes.clone(), None);
        }
    }

    fn status(&self) -> Option<Status> {
        let mut status = self.core.status(&self.about)?;
        if let (Some(guard), Some(fence)) = (&self.guard, status.fence.as_mut()) {
            guard.complete(fence);
        }
        status.gates = self.gates.as_ref().map_or_else(Vec::new, |gates| gates.status(now_ns()));
        crate::status::with_pending(&mut status, self.pending());
        status.maintenance = self.maintenance.status(Now::read());
        status.keys = self.held_keys();
        Some(status)
    }

    fn end_long_lookups(&mut self) {
        for c in &mut self.connections {
            let is_lookup = |wait: &Wait| matches!(wait, Wait::Watch(..) | Wait::Explain(_) | Wait::Page | Wait::Reload);
            if c.waiting.as_ref().is_some_and(|(since, wait)| is_lookup(wait) && since.elapsed() > LOOKUP_WAIT) {
                let wait = c.waiting.take().map(|(_, wait)| wait);
                self.lookups.forget(Whose::Connection(c.id));
                let what = match wait {
                    Some(Wait::Page) => {
                        "the history's files have not been read in nine seconds: see that their disk answers, or ask for the newest events alone, \
                         which are in memory (`fide events --last 100`)"
                    }
                    Some(Wait::Reload) => {
                        "the configuration has not been read in nine seconds, and stays as it was: see that the disk of its file and of those \
                         that it names answers, then reload again"
                    }
                    _ => {
                        "the look-up has not been done in nine seconds, behind others of the same user or of many users: \
                         name the process by its pid, or try again later"
                    }
                };
                c.reading = None;
                c.push(&refused(ErrorCode::System, what), None);
            }
        }
    }

    fn close(&mut self, i: usize) {
        let c = self.connections.swap_remove(i);
        self.checks.retain(|check| check.connection != c.id);
        if c.waiting.is_some() {
            self.lookups.forget(Whose::Connection(c.id)); // a ring that is being made is taken out of use when it is
        }
        self.targets.give_back(c.peer.account, c.targets.len() as u64);
        if let Some(ring) = c.ring {
            self.core.tell(LoopRequest::Unsubscribe(ring));
        }
        // A process that joined stays watched: closing a descriptor is neither a crash nor a farewell. But an exec closes it, too.
        if let Some(app) = c.joined {
            self.session_closed(app);
        }
    }

    /// The next kept events for those who asked for them and have read the last ones: root's connections first, the others for a slice of time.
    fn send_pages(&mut self) {
        let mut reading: Vec<usize> = (0..self.connections.len()).filter(|i| self.connections[*i].reading.is_some()).collect();
        reading.sort_by_key(|i| (self.connections[*i].peer.uid != 0, self.connections[*i].served));
        let began = Instant::now();
        for i in reading {
            self.served += 1;
            self.connections[i].served = self.served;
            while let Some((from, _)) = self.connections[i].next_page() {
                match self.history.page_at_hand(from, PAGE) {
                    Some(page) => self.send_page(i, page, self.history.next_seq()),
                    None => self.read_page(i, from),
                }
                if began.elapsed() >= USERS_SLICE {
                    return;
                }
            }
        }
    }

    /// Has kept events read that are not in memory any more.
    fn read_page(&mut self, i: usize, from: u64) {
        let reading = self.history.reading(from, PAGE);
        let asked = self.look_up(i, Wait::Page, move |_| {
            let next = reading.next;
            Found::Page(reading.run(), next)
        });
        if let Err(e) = asked {
            self.connections[i].reading = None;
            self.connections[i].push(&Reply::Error(e), None);
        }
    }

    /// Kept events that were asked for when the next one was to have the number `next`.
    fn send_page(&mut self, i: usize, page: Vec<HistoryEvent>, next: u64) {
        let c = &mut self.connections[i];
        let Some((_, follow)) = c.reading else { return };
        let behind = page.last().map_or(next, |e| e.seq + 1);
        for event in page {
            c.push(&Reply::Event(Box::new(event)), None);
        }
        let next = self.history.next_seq();
        c.reading = (behind < next).then_some((behind, follow));
        if c.reading.is_none() {
            c.push(&Reply::EventsEnd { next }, None);
            c.following |= follow;
        }
    }

    fn flush_connections(&mut self) {
        for i in (0..self.connections.len()).rev() {
            let c = &mut self.connections[i];
            c.flush();
            if c.out_bytes > BACKLOG {
                tracing::warn!("a client does not read its events and is disconnected");
                c.closing = true;
            }
            if c.closing {
                self.close(i);
            }
        }
    }

    /// The reply; none when it comes in pages.
    fn answer(&mut self, i: usize, request: Request) -> Option<Answer> {
        if !self.connections[i].greeted && !matches!(request, Request::Hello { .. }) {
            return Some((refused(ErrorCode::Invalid, "the first message of a connection is hello"), None));
        }
        match self.try_answer(i, request) {
            Ok(answer) => answer,
            Err(e) => Some((Reply::Error(e), None)),
        }
    }

    fn try_answer(&mut self, i: usize, request: Request) -> Result<Option<Answer>, Refused> {
        let plain = |reply| Ok(Some((reply, None)));
        let fail = |code, what: String| Err(Refused { code, what });
        if is_told(&request) && !self.may_be_told(self.connections[i].peer.account) {
            self.connections[i].held = Some(Box::new(request));
            return Ok(None);
        }
        match request {
            Request::Hello { protocol } if protocol != PROTOCOL => fail(
                ErrorCode::Version,
                format!("this agent speaks protocol {PROTOCOL}, the client {protocol}: install the same version of both"),
            ),
            Request::Hello { .. } => plain(self.greet(i)),
            Request::Subscribe { socket_only } => {
                self.policy.may_monitor(&self.connections[i].peer)?;
                self.subscribe(i, socket_only)
            }
            Request::Monitor { target, pbsize, timeout_ns } => {
                self.policy.may_monitor(&self.connections[i].peer)?;
                self.monitor(i, &target, Want { pbsize, timeout_ns }).map(|reply| Some((reply, None)))
            }
            Request::Became { instances } => plain(self.tell_what_became(i, &instances)?),
            Request::Unmonitor { target } => plain(self.unmonitor(i, &target)?),
            Request::Join { name, pbsize, resumes } => self.join(i, &name, pbsize, resumes).map(Some),
            Request::Progress { counter, limit_ns } => self.watch_counter(i, counter, limit_ns).map(Some),
            Request::EndConnections { name, ports } => self.connections_end(i, &name, ports).map(Some),
            Request::Report { name, hung, reason } => self.report(i, &name, hung, reason).map(Some),
            Request::Quit => match self.connections[i].joined.take() {
                Some(app) => {
                    let quit = self.core.ask(|answer| LoopRequest::Quit(app, answer)).ok_or_else(stuck)?;
                    self.standing.iter_mut().filter(|s| s.app == Some(app)).for_each(|s| s.quit = Some(quit));
                    plain(Reply::Done)
                }
                None => fail(ErrorCode::NotFound, "this connection has not joined".into()),
            },
            Request::Watch { name, selector, user, containers } => {
                self.find_and_watch(i, name, selector, user.as_deref(), containers)
            }
            Request::Unwatch { name } => self.unwatch(i, &name).map(Some),
            Request::Status => {
                self.policy.may_read(&self.connections[i].peer)?;
                self.connections[i].waiting = Some((Instant::now(), Wait::Status));
                Ok(None)
            }
            Request::Events { from, last, follow } => {
                self.policy.may_read(&self.connections[i].peer)?;
                self.connections[i].reading = Some((self.history.start(from, last), follow));
                Ok(None)
            }
            Request::Explain { id, incarnation } => {
                self.policy.may_read(&self.connections[i].peer)?;
                let search = self.history.search(id).given_in(incarnation);
                self.look_up(i, Wait::Explain(id), move |limit| Found::Verdicts(search.run(|| limit.is_over())))
            }
            Request::Reload => {
                self.policy.may_reload(&self.connections[i].peer)?;
                let read = self.read_configuration();
                self.look_up(i, Wait::Reload, read)
            }
            Request::Forget { host } => {
                self.policy.may_forget(&self.connections[i].peer)?;
                self.forget(i, host)
            }
            Request::Maintenance { order } => self.order_maintenance(i, order).map(Some),
            Request::Fence { order } => plain(self.fence(i, order)?),
            Request::Check { peer, since_ns, deadline_ns, wait_ns } => {
                self.policy.may_monitor(&self.connections[i].peer)?;
                self.carriers.look(now_ns); // what is seen now was before a deadline that begins now
                self.begin_check(i, Check::new(self.connections[i].id, &peer, since_ns, deadline_ns, wait_ns)?)
            }
            Request::Extend { known_ns, valid_ns, anew } => plain(self.extend(i, known_ns, valid_ns, anew)?),
            Request::Group { order } => plain(self.order_group(i, order)?),
            Request::OpenGroup { name, client, behind, last_number, generation, bundles } => {
                let peer = &self.connections[i].peer;
                let rights = self.policy.groups().of(peer, &name);
                let from = Opening { behind, generation, bundles, rights };
                self.open_group(i, name, (client, last_number), from).map(Some)
            }
        }
    }

    fn greet(&mut self, i: usize) -> Reply {
        self.connections[i].greeted = true;
        Reply::Hello {
            protocol: PROTOCOL,
            node: self.config.node.clone(),
            node_id: fide_wire::name_id(&self.config.node),
            cluster: self.config.cluster.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            zone: self.config.zone.clone(),
        }
    }

    fn tell_what_became(&mut self, i: usize, instances: &[(u32, u32)]) -> Result<Reply, Refused> {
        self.policy.may_monitor(&self.connections[i].peer)?;
        let fail = |code, what: String| Err(Refused { code, what });
        let Some(ring) = self.connections[i].ring else {
            return fail(ErrorCode::Invalid, "subscribe first: what became of processes is told through a ring".into());
        };
        if instances.len() > BECAME_MAX {
            return fail(ErrorCode::TooLarge, format!("at most {BECAME_MAX} processes are asked for at once"));
        }
        // A few at a time: what is urgent comes in between.
        for some in instances.chunks(BECAME_AT_ONCE) {
            let instances = some.to_vec();
            self.core.ask(|answer| LoopRequest::TellWhatBecame { ring, instances, answer }).ok_or_else(stuck)?;
        }
        Ok(Reply::Done)
    }

    fn unmonitor(&mut self, i: usize, target: &str) -> Result<Reply, Refused> {
        let fail = |code, what: String| Err(Refused { code, what });
        let Some(ring) = self.connections[i].ring else {
            return fail(ErrorCode::NotFound, "nothing is monitored on this connection".into());
        };
        let parsed = Target::parse(target).map_err(|what| Refused { code: ErrorCode::Invalid, what })?;
        let c = &mut self.connections[i];
        if c.targets.remove(&parsed) {
            self.targets.give_back(c.peer.account, 1);
        }
        match self.core.ask(|answer| LoopRequest::Unmonitor { ring, target: parsed, answer }).ok_or_else(stuck)? {
            true => Ok(Reply::Done),
            false => fail(ErrorCode::NotFound, format!("{target} is not monitored on this connection")),
        }
    }

    /// Looks for the process here, or in another thread where that may take long.
    fn find_and_watch(
        &mut self,
        i: usize,
        name: String,
        selector: Selector,
        user: Option<&str>,
        containers: bool,
    ) -> Result<Option<Answer>, Refused> {
        let uid = self.connections[i].peer.uid;
        self.may_take(&name, Owner::User(uid))?;
        let scope = scope(&selector, user, containers, uid)?;
        let asking = if matches!(selector, Selector::Pid(_)) { self.connections[i].asker(&self.resolver)? } else { None };
        if self.resolver.is_quick(&selector, asking) {
            let process = self.resolver.resolve_within(&scope, &selector, asking)?;
            return self.watch_found(i, &name, selector, scope, &process).map(|reply| Some((reply, None)));
        }
        let (resolver, wanted, within) = (self.resolver.clone(), selector.clone(), scope.clone());
        self.look_up(i, Wait::Watch(name, selector, scope), move |limit| {
            Found::Process(resolver.within(limit).resolve_within(&within, &wanted, asking))
        })
    }

    fn order_group(&mut self, i: usize, order: GroupOrder) -> Result<Reply, Refused> {
        let peer = &self.connections[i].peer;
        match &order {
            GroupOrder::Status => self.policy.may_read(peer)?,
            GroupOrder::Create { name, .. }
            | GroupOrder::Join { name }
            | GroupOrder::Leave { name, .. }
            | GroupOrder::Resume { name }
            | GroupOrder::Switch { name, .. } => self.policy.may_in_group(peer, GroupRight::Administer, name)?,
        }
        let account = peer.account;
        self.core.ask(|answer| LoopRequest::OrderGroup(Box::new(order), account, answer)).ok_or_else(stuck)?
    }

    /// With a new number for a client that has none.
    fn open_group(
        &mut self,
        i: usize,
        name: String,
        (client, last_number): (u64, u64),
        from: Opening,
    ) -> Result<Answer, Refused> {
        let peer = self.connections[i].peer.clone();
        self.policy.may_in_group(&peer, GroupRight::Open, &name)?;
        let may_hand_in = from.rights.may_hand_in();
        let refuses = if may_hand_in { String::new() } else { lacks_group_right(peer.uid, GroupRight::Propose, &name).what };
        let random = || fide_lane::random().map(|n| n.max(1));
        let client =
            if client == 0 { random().map_err(|e| Refused { code: ErrorCode::System, what: e.to_string() })? } else { client };
        let peer = Box::new(peer);
        let open = |answer| LoopRequest::OpenGroup { name, client: (client, last_number), from, peer, answer };
        let fd = self.core.ask(open).ok_or_else(stuck)??;
        Ok((Reply::GroupOpened { client, bundles: true, refuses }, Some(fd)))
    }

    // ---- other people's heartbeats ------------------------------------------------------------------------------------------

    /// Answers at once where nothing needs to be waited for.
    fn begin_check(&mut self, i: usize, mut check: Check) -> Result<Option<Answer>, Refused> {
        let asked = self.known_of(&check);
        let Some((peer, certain)) = asked else {
            return Err(Refused { code: ErrorCode::System, what: "the agent's loop does not answer".into() });
        };
        let plain = |checked| Ok(Some((Reply::Checked(Box::new(checked)), None)));
        if certain {
            let outcome = CheckOutcome::Certain;
            return plain(Checked { outcome, drained_ns: 0, lost_ns: 0, why: String::new(), peer });
        }
        let asker = self.connections[i].asker(&self.resolver)?;
        match check.route(&mut self.carriers, &self.config.node, asker) {
            Err(why) => plain(check::no_barrier(why, peer)),
            Ok(()) => {
                check.queues().for_each(|(path, queues)| self.core.tell(LoopRequest::SetQueues { path, queues }));
                self.connections[i].checking = true;
                self.checks.push(check);
                Ok(None)
            }
        }
    }

    fn extend(&mut self, i: usize, known_ns: u64, valid_ns: u64, anew: bool) -> Result<Reply, Refused> {
        // A heartbeat that the host's own gate drops counts for nothing, whatever became of its packet.
        if (valid_ns != 0 || anew) && self.config.fence.host && self.guard.as_ref().is_some_and(Guard::is_closed) {
            let what = "this host is fenced: nothing leaves it, no heartbeat either; see fide fence status";
            return Err(Refused { code: ErrorCode::Fenced, what: what.into() });
        }
        let Some(gates) = self.gates.as_mut() else {
            let what = "this host has no gates for applications: add a [[gate]] to its configuration, and restart the agent";
            return Err(Refused { code: ErrorCode::Unsupported, what: what.into() });
        };
        let c = &mut self.connections[i];
        let asker = c.asker(&self.resolver)?;
        let at = gates.of(&c.peer, &mut c.gate)?;
        let (gate, valid_ns) = gates.extend(at, asker, (known_ns, valid_ns, anew), now_ns())?;
        Ok(Reply::Extended { gate, valid_ns })
    }

    fn read_losses(&mut self) {
        let room = Vec::with_capacity(fide_wire::SLOTS);
        let lane = self.core.ask(|answer| LoopRequest::LaneLosses(room, answer)).map(|hosts| {
            let of = |(host, lost): (Name, [u64; fide_wire::PATHS])| {
                let host = String::from(host);
                lost.into_iter().enumerate().map(move |(path, lost)| (format!("heartbeats of {host} on path {path}"), lost))
            };
            hosts.into_iter().flat_map(of).collect()
        });
        self.losses.read(lane, now_ns);
    }

    /// What the loop knows of the peer of a check, and whether it is certain that the process has ended since.
    fn known_of(&self, check: &Check) -> Option<(Option<CheckedPeer>, bool)> {
        let (whom, since_ns) = (check.whom().clone(), check.since_ns());
        self.core.ask(|answer| LoopRequest::KnownOf { whom, since_ns, answer })
    }

    /// Carries every check that is under way one step further, and answers those that are done.
    fn advance_checks(&mut self) {
        if self.checks.is_empty() {
            return;
        }
        let Some((answers, offered)) = self.core.ask(LoopRequest::Answers) else { return };
        for mut check in std::mem::take(&mut self.checks) {
            let asking = &mut self.asking;
            let ask = |paths: [bool; fide_wire::PATHS]| asking.iter_mut().zip(paths).for_each(|(a, p)| *a |= p);
            let done = check.step(ask, &answers, offered, &mut self.carriers);
            match done {
                None => self.checks.push(check),
                Some(done) => self.end_check(&check, done),
            }
        }
        // One question serves all: many checks ask no more than one.
        let now = now_ns();
        if self.asking.contains(&true) && now.saturating_sub(self.asked_ns) >= check::ASK_EVERY_NS {
            let paths = std::mem::take(&mut self.asking);
            self.asked_ns = now;
            self.core.tell(LoopRequest::AskForBarriers(paths));
        }
    }

    fn end_check(&mut self, check: &Check, done: Result<u64, String>) {
        let (peer, certain) = self.known_of(check).unwrap_or_default();
        // After the barrier: what was lost before it is counted now.
        self.read_losses();
        let (lost_ns, what) = self.losses.lost();
        let checked = match done {
            _ if certain => Checked { outcome: CheckOutcome::Certain, drained_ns: 0, lost_ns: 0, why: String::new(), peer },
            // The clock was read behind the counters: what they had counted by then was lost before.
            _ if lost_ns > check.since_ns() => {
                Checked { outcome: CheckOutcome::Void, drained_ns: 0, lost_ns, why: what.to_owned(), peer }
            }
            Ok(_) if let Some((lost_ns, why)) = check.flapped(&self.carriers) => {
                Checked { outcome: CheckOutcome::Void, drained_ns: 0, lost_ns, why, peer }
            }
            Ok(drained_ns) => Checked { outcome: CheckOutcome::Drained, drained_ns, lost_ns: 0, why: String::new(), peer },
            Err(why) => check::no_barrier(why, peer),
        };
        if let Some(c) = self.connections.iter_mut().find(|c| c.id == check.connection) {
            c.checking = false;
            c.push(&Reply::Checked(Box::new(checked)), None);
        }
    }

    fn join(&mut self, i: usize, name: &str, pbsize: u32, resumes: Option<u32>) -> Result<Answer, Refused> {
        let c = &self.connections[i];
        if c.joined.is_some() {
            return Err(Refused { code: ErrorCode::Exists, what: "this connection has joined already; quit first".into() });
        }
        let process = c.own_process(&self.resolver)?;
        let (ring, uid, account) = (c.ring, c.peer.uid, c.peer.account);
        self.end_former_sessions(name, &process, resumes)?;
        let image = select::image(Path::new("/proc"), process.pid, process.start_ticks);
        let whose = self.join_as(name, &process, Owner::User(uid))?;
        let (bridge, fd) =
            Bridge::create().map_err(|e| Refused { code: ErrorCode::System, what: format!("no memory for the bridge: {e}") })?;
        let most = self.core.ask(LoopRequest::PiggybackMax).unwrap_or(0);
        let granted = pbsize.min(most);
        let joining = Joining { pbsize: granted, bridge, ring, image, account };
        let app = match whose {
            Joins::Watched(app) => {
                self.core.tell(LoopRequest::Rejoin(app, Box::new(joining)));
                app
            }
            Joins::Standing(at) => {
                let s = &self.standing[at];
                let (origin, owner, charged, progress) = (s.origin, s.owner(), s.account(), s.progress.clone());
                let ports = s.end_connections.clone();
                self.make_way(name, Some(&process), owner)?;
                let app = self.watch(name, &process, (origin, owner.uid()), charged, Some(joining))?;
                if let Some(s) = self.standing.iter_mut().find(|s| s.name == name) {
                    s.has(app, &process, &self.resolver);
                }
                self.probe(app, name, process.pid, progress);
                self.tend_connections(app, name, &process, ports);
                app
            }
            Joins::Alone => {
                self.admit_watch(account)?;
                self.watch(name, &process, (Origin::Joined, uid), account, Some(joining))?
            }
        };
        self.connections[i].joined = Some(app);
        Ok((Reply::Joined { app, pbsize: granted, bridge_len: bridge::LEN as u32 }, Some(fd)))
    }

    /// As what a process joins under this name.
    fn join_as(&mut self, name: &str, process: &Process, by: Owner) -> Result<Joins, Refused> {
        let watched_as = |answer| LoopRequest::WatchedAs { name: name.into(), process: process.identity(), answer };
        // A process that reconnects, or that somebody else has watched by this name, gets a bridge, and its connection can say goodbye.
        if let Some(app) = self.core.ask(watched_as).flatten() {
            return Ok(Joins::Watched(app));
        }
        // It may be what a watch of this name waits for.
        if let Some(at) = self.standing.iter().position(|s| s.name == name)
            && self.lives(at).is_none()
            && self.standing[at].unknown_user.is_none()
            && self.standing[at].may_watch(&self.policy, process).is_ok()
            && self.resolver.fits(&self.standing[at].scope, &self.standing[at].selector, process.pid)
        {
            return Ok(Joins::Standing(at));
        }
        self.may_take(name, by)?;
        self.make_way(name, Some(process), by).map(|_| Joins::Alone)
    }

    fn watch_counter(&mut self, i: usize, counter: u32, limit_ns: u64) -> Result<Answer, Refused> {
        let fail = |code, what: String| Err(Refused { code, what });
        let Some(app) = self.connections[i].joined else {
            return fail(ErrorCode::Invalid, "join first: progress counters lie on the bridge of a process that joined".into());
        };
        let Some(counter) = u8::try_from(counter).ok().filter(|c| usize::from(*c) < bridge::COUNTERS) else {
            return fail(ErrorCode::Invalid, format!("there is no counter {counter}: a process has {}", bridge::COUNTERS));
        };
        if limit_ns != 0 && !PROGRESS_LIMIT_NS.contains(&limit_ns) {
            return fail(
                ErrorCode::Invalid,
                "a progress limit lies between 10 ms, below which scheduling alone would look like a hang, and a day".into(),
            );
        }
        match self.core.ask(|answer| LoopRequest::WatchCounter { app, counter, limit_ns, answer }) {
            Some(Ok(true)) => Ok((Reply::Done, None)),
            Some(Err(what)) => fail(ErrorCode::Full, what),
            Some(Ok(false)) => fail(ErrorCode::NotFound, "this process is no longer watched: it is ending".into()),
            None => fail(ErrorCode::System, "the agent's loop does not answer".into()),
        }
    }

    /// Everybody may say of the processes of his own user that they are hung. Of which process a connection says that it is its own, and whose the other
    /// one is, is looked at now: both may have changed.
    fn report(&mut self, i: usize, name: &str, hung: bool, reason: String) -> Result<Answer, Refused> {
        if reason.len() > REASON_MAX || reason.chars().any(char::is_control) {
            let what = format!("a reason is one line of at most {REASON_MAX} bytes");
            return Err(Refused { code: ErrorCode::Invalid, what });
        }
        let found = self.core.ask(|answer| LoopRequest::Named(name.into(), answer));
        let not_watched =
            || Refused { code: ErrorCode::NotFound, what: format!("no process named {name} is watched on this host") };
        let Some((app, identity)) = found.flatten() else { return Err(not_watched()) };
        if self.connections[i].joined == Some(app) {
            self.connections[i].own_process(&self.resolver)?;
        } else {
            let process = self.resolver.target(identity.pid).ok().filter(|process| process.identity() == identity);
            self.policy.may_report(&self.connections[i].peer, process.ok_or_else(not_watched)?.owner())?;
        }
        if !reason.is_empty() {
            let by = &self.connections[i].peer;
            let who = by.pid.map_or_else(|| format!("user {}", by.uid), |pid| format!("process {pid} of user {}", by.uid));
            let says = if hung { "hung" } else { "progressing" };
            let (text, source) = (format!("{who} reports {name} as {says}: {reason}"), EventSource::user(by.account));
            self.core.tell(LoopRequest::Note(source, REPORT_EVENT_CODE, text));
        }
        self.core.ask(|answer| LoopRequest::ReportProgress { app, hung, answer });
        Ok((Reply::Done, None))
    }

    /// Everybody may say which connections of his own processes end with them.
    fn connections_end(&mut self, i: usize, name: &str, ports: Vec<u16>) -> Result<Answer, Refused> {
        if ports.len() > END_CONNECTIONS_PORTS_MAX || ports.contains(&0) {
            let what = format!("at most {END_CONNECTIONS_PORTS_MAX} ports, from 1 to 65535, are those of a process");
            return Err(Refused { code: ErrorCode::Invalid, what });
        }
        let not_watched =
            || Refused { code: ErrorCode::NotFound, what: format!("no process named {name} is watched on this host") };
        let found = self.core.ask(|answer| LoopRequest::Named(name.into(), answer)).ok_or_else(stuck)?;
        let Some((app, identity)) = found else { return Err(not_watched()) };
        let process = self.resolver.target(identity.pid).ok().filter(|process| process.identity() == identity);
        let process = process.ok_or_else(not_watched)?;
        let peer = &self.connections[i].peer;
        if peer.uid != 0 && peer.uid != process.owner() {
            let who = if process.owner() == 0 { "only root may" } else { "only its own user and root may" };
            let what = format!(
                "{name} is a process of user {}: user {} may not say what ends with it, {who}",
                process.owner(),
                peer.uid
            );
            return Err(Refused { code: ErrorCode::Permission, what });
        }
        self.end_connections_of(app, name, &process, ports)?;
        Ok((Reply::Done, None))
    }

    /// As the configuration says, if it does.
    fn tend_connections(&self, app: u32, name: &str, process: &Process, ports: Vec<u16>) {
        if !ports.is_empty()
            && let Err(e) = self.end_connections_of(app, name, process, ports)
        {
            tracing::warn!("the connections of {name} do not end with it: {e}");
        }
    }

    /// Connections of these ports end with the process of this number; of none, they do not.
    fn end_connections_of(&self, app: u32, name: &str, process: &Process, ports: Vec<u16>) -> Result<(), Refused> {
        let ends = !ports.is_empty();
        if ends {
            let elsewhere = Diag::elsewhere(process.pid).map_err(|e| Refused {
                code: ErrorCode::System,
                what: format!(
                    "the connections of process {} cannot be seen from the agent ({e}): give the agent CAP_SYS_ADMIN, or run the process in the \
                     host's network namespace",
                    process.pid
                ),
            })?;
            self.ender.has(app, Connections { name: name.into(), uid: process.uid, ports, elsewhere });
        }
        let lives = self.core.ask(|answer| LoopRequest::EndsConnections { app, ends, answer }).ok_or_else(stuck)?;
        if !ends || !lives {
            self.ender.forget(app);
        }
        if lives {
            return Ok(());
        }
        Err(Refused { code: ErrorCode::NotFound, what: format!("{name} is no longer watched: it is ending") })
    }

    /// Whether a user may have one more process watched. Watches that wait for their processes count.
    fn admit_watch(&self, account: u32) -> Result<(), Refused> {
        let (own, used) = self.core.ask(|answer| LoopRequest::HeldBy(account, answer)).ok_or_else(stuck)?;
        let waiting = || self.standing.iter().filter(|s| s.app.is_none());
        let (own, used) = (own + waiting().filter(|s| s.account() == account).count() as u64, used + waiting().count() as u64);
        WATCHES.admit(account, own, used, 1).map_err(|what| Refused { code: ErrorCode::Full, what })
    }

    /// An operator's watch of a process that was found.
    fn watch_found(
        &mut self,
        i: usize,
        name: &str,
        selector: Selector,
        scope: Scope,
        process: &Process,
    ) -> Result<Reply, Refused> {
        let peer = self.connections[i].peer.clone();
        let owner = Owner::User(peer.uid);
        // Both may have changed while it was looked for.
        self.may_take(name, owner)?;
        if matches!(selector, Selector::Pid(_)) {
            self.connections[i].asker(&self.resolver)?;
        }
        self.policy.may_watch(&peer, process.owner())?;
        self.admit_watch(peer.account)?;
        let app = self.watch_as(name, process, (Origin::Operator, owner), peer.account)?;
        if !matches!(selector, Selector::Pid(_)) {
            self.standing.retain(|s| s.name != name);
            let mut standing = Standing { owner: Some(peer), scope, ..Standing::new(name, &selector, Origin::Operator) };
            standing.has(app, process, &self.resolver);
            self.standing.push(standing);
            self.want_starts();
        }
        Ok(Reply::Watched { pid: process.pid, app })
    }

    /// A watch is ended by whoever made it, or by root; one of the configuration by root, until the next reload.
    fn unwatch(&mut self, i: usize, name: &str) -> Result<Answer, Refused> {
        let live = self.holders(name, None)?.pop();
        let standing = self.standing.iter().find(|s| s.name == name).map(Standing::owner);
        let Some(owner) = standing.or(live.as_ref().map(|h| h.owner)) else {
            return Err(Refused { code: ErrorCode::NotFound, what: format!("no process named {name} is watched on this host") });
        };
        let uid = self.connections[i].peer.uid;
        if uid != 0 && owner != Owner::User(uid) {
            let what = match owner {
                Owner::Configuration => {
                    format!("the watch {name} belongs to the configuration: only root may end it, until the next `fide reload`")
                }
                Owner::User(_) => {
                    let who = if owner == Owner::User(0) { "only root may".into() } else { format!("only {owner} and root may") };
                    format!("the watch {name} belongs to {owner}: user {uid} may not end it, {who}")
                }
            };
            return Err(Refused { code: ErrorCode::Permission, what });
        }
        self.standing.retain(|s| s.name != name);
        if let Some(live) = live {
            self.end_watch(live.app);
        }
        Ok((Reply::Done, None))
    }
}

/// Whether the process of a session runs another program than when it joined.
fn is_another_program(session: &Session) -> bool {
    let runs = || select::image(Path::new("/proc"), session.process.pid, session.process.start_ticks);
    session.image.is_some_and(|joined| runs().is_some_and(|runs| runs != joined))
}

/// As what a process joins.
enum Joins {
    /// It is watched by this number already.
    Watched(u32),
    /// It is what this watch waits for.
    Standing(usize),
    /// By its own word.
    Alone,
}

/// What must be true of a process that a selector finds, for a watch that this user asks for.
fn scope(selector: &Selector, user: Option<&str>, containers: bool, asked_by: u32) -> Result<Scope, Refused> {
    let given = user.map(|name| {
        let what = || format!("this host has no user `{name}`: give a user's name or number");
        access::user_id(name).ok_or_else(|| Refused { code: ErrorCode::NotFound, what: what() })
    });
    let given = given.transpose()?;
    // Anybody can give a process any name.
    let user = given.or(matches!(selector, Selector::Name(_)).then_some(asked_by));
    Ok(Scope { user, manager: given.or((asked_by != 0).then_some(asked_by)), containers, place: None, crashed: None })
}

impl Standing {
    fn new(name: &str, selector: &Selector, origin: Origin) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            looking: false,
            searches_under_way: 0,
            looked: None,
            name: name.into(),
            selector: selector.clone(),
            origin,
            owner: None,
            app: None,
            progress: None,
            end_connections: Vec::new(),
            complained: false,
            scope: Scope::default(),
            unknown_user: None,
            settled: false,
            why: "its process has not been looked for yet".into(),
            ambiguity_told: None,
            is_ambiguous: false,
            former: None,
            searches: 0,
            is_handing_over: false,
            quit: None,
            denied: None,
        }
    }

    fn configured(watch: &config::Watch) -> Self {
        let standing = Self::new(&watch.name, &watch.selector, Origin::Config);
        let with = |user| scope(&watch.selector, user, watch.containers, 0);
        match with(watch.user.as_deref()).or_else(|_| with(None)) {
            Ok(scope) => {
                let unknown_user = watch.user.clone().filter(|name| access::user_id(name).is_none());
                let (progress, end_connections) = (watch.progress.clone(), watch.end_connections.clone());
                Self { progress, end_connections, scope, unknown_user, ..standing }
            }
            Err(_) => standing,
        }
    }

    /// Looks for the user that this host did not know.
    fn find_user(&mut self) -> Result<(), Refused> {
        let Some(name) = &self.unknown_user else { return Ok(()) };
        self.scope = Scope { place: None, ..scope(&self.selector, Some(name), self.scope.containers, 0)? };
        self.unknown_user = None;
        Ok(())
    }

    fn owner(&self) -> Owner {
        Owner::of(self.origin, self.owner.as_ref().map_or(0, |peer| peer.uid))
    }

    /// This is its process now. What else listens on its port or has its name later must be where this one is.
    fn has(&mut self, app: u32, process: &Process, resolver: &Resolver) {
        self.app = Some(app);
        self.former = Some(resolver.before_a_crash(&self.selector, process));
        (self.complained, self.settled, self.is_ambiguous) = (false, false, false);
        self.why.clear();
        // Of one that has handed over meanwhile nothing can be seen any more: its child says where
        // they are.
        if matches!(self.selector, Selector::Name(_) | Selector::Port(_))
            && self.scope.place.is_none()
            && resolver.still_same(process)
        {
            self.scope.place = Some(resolver.place(&self.scope, process));
        }
    }

    /// Its process has ended; when (CLOCK_MONOTONIC), if it crashed.
    fn lost(&mut self, crashed_ns: Option<u64>) {
        self.scope.crashed =
            self.former.take().zip(crashed_ns).map(|(former, at_ns)| Crashed { at_ticks: select::ticks_at(at_ns), ..former });
        (self.app, self.searches, self.is_handing_over) = (None, 0, false);
    }

    /// Where the kernel tells of what is started, searching is for what it cannot tell: a process that takes the name later, or a child that goes on alone. That has
    /// time.
    fn is_searched_at_leisure(&self, is_told: bool) -> bool {
        // Of several that are meant, the end of one is told by nobody.
        is_told && !self.is_ambiguous && self.searches >= SEARCHES_AT_ONCE
    }

    /// Under whom it is counted, and whose time is spent on it.
    fn account(&self) -> u32 {
        self.owner.as_ref().map_or(0, |owner| owner.account)
    }

    /// Whether its owner may have this process watched: the next one that answers to a selector may be somebody else's.
    fn may_watch(&self, policy: &access::Policy, process: &Process) -> Result<(), Refused> {
        self.owner.as_ref().map_or(Ok(()), |owner| policy.may_watch(owner, process.owner()))
    }
}

impl Connection {
    /// The number of the process that opened it, as long as that one lives; `None` where it cannot be seen.
    fn asker(&self, resolver: &Resolver) -> Result<Option<u32>, Refused> {
        match (&self.process, self.peer.pid) {
            (Some(process), _) => process.target(resolver).map(|t| Some(t.pid)),
            (None, Some(pid)) => Err(crate::identity::ended(pid)),
            (None, None) => Ok(None),
        }
    }

    /// The process that opened it, which is still there, and is still its user's.
    fn own_process(&self, resolver: &Resolver) -> Result<Process, Refused> {
        let Some(pid) = self.peer.pid else {
            return Err(Refused {
                code: ErrorCode::Unsupported,
                what: "the agent cannot see this process: it must run in the host's pid namespace".into(),
            });
        };
        let process = self.process.as_ref().ok_or_else(|| crate::identity::ended(pid))?.target(resolver)?;
        if self.peer.uid != 0 && process.uid != self.peer.uid {
            let what = format!(
                "process {pid} was user {}'s when it connected and is user {}'s now: connect again",
                self.peer.uid, process.uid
            );
            return Err(Refused { code: ErrorCode::Permission, what });
        }
        Ok(process)
    }

    /// From where on it wants kept events now, and whether new ones follow.
    fn next_page(&self) -> Option<(u64, bool)> {
        self.reading.filter(|_| self.out_bytes < ENOUGH && !self.closing && self.waiting.is_none())
    }

    fn wants_page(&self) -> bool {
        self.next_page().is_some() && self.out.is_empty()
    }

    /// Whether its next request may be read: replies come in the order of requests, and it must read them.
    fn is_listening(&self) -> bool {
        let waits = self.checking || self.waiting.is_some() || self.held.is_some() || self.reading.is_some();
        !self.closing && !waits && self.out_bytes < ENOUGH
    }

    fn push(&mut self, reply: &Reply, fd: Option<OwnedFd>) {
        self.push_bytes(encoded(reply), fd);
    }

    fn push_bytes(&mut self, bytes: Rc<[u8]>, fd: Option<OwnedFd>) {
        self.out_bytes += bytes.len();
        self.out.push_back((bytes, fd));
    }

    fn flush(&mut self) {
        let mut left = if self.peer.uid == 0 { usize::MAX } else { FLUSHED_PER_TURN };
        while let Some((bytes, fd)) = self.out.front().filter(|_| left > 0) {
            left = left.saturating_sub(bytes.len());
            match seqpacket::send(self.fd.as_fd(), bytes, fd.as_ref().map(AsFd::as_fd)) {
                Ok(true) => {
                    self.out_bytes -= bytes.len();
                    self.out.pop_front();
                }
                Ok(false) => return,
                Err(_) => {
                    self.closing = true;
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::verdict::Grade;

    #[test]
    fn an_id_of_several_lives_is_refused_with_the_numbers_of_their_events() {
        let h1 = fide_wire::name_id("h1");
        let event = |seq, incarnation| HistoryEvent {
            seq,
            wall_ns: 1_794_000_000_000_000_000,
            at_ns: 0,
            observer: "h2".into(),
            observer_incarnation: 50,
            id: Some(VerdictId::new(h1, 1)),
            cause: Cause::Killed,
            grade: Grade::Certain,
            node: "h1".into(),
            incarnation,
            app: Some("db".into()),
            code: 9,
            confirms: false,
            text: String::new(),
            maintenance: None,
            evidence: None,
        };
        let id = VerdictId::new(h1, 1);
        assert_eq!(one_life(id, vec![]).unwrap_err().code, ErrorCode::NotFound);
        assert_eq!(one_life(id, vec![event(17, 3)]).unwrap().seq, 17);
        let refused = one_life(id, vec![event(17, 3), event(93, 4)]).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Ambiguous);
        assert_eq!(
            refused.what,
            format!(
                "2 lives of h1 used the id {id}: event 17 (incarnation 3, 2026-11-06T21:20:00Z, killed, db@h1), \
                 event 93 (incarnation 4, 2026-11-06T21:20:00Z, killed, db@h1); explain the event by its number"
            )
        );
        let many = one_life(id, (1..=100).map(|n| event(n, n as u32)).collect()).unwrap_err().what;
        assert!(many.starts_with("100 lives of h1") && many.contains("92 older ones, event 93 ("), "{many}");
        // What an observer inferred it numbered itself.
        let id = VerdictId::new(fide_wire::name_id("h2"), (1 << 31) + 1);
        let inferred = |seq, life| HistoryEvent { id: Some(id), observer_incarnation: life, ..event(seq, 3) };
        let what = one_life(id, vec![inferred(1, 0), inferred(2, 51)]).unwrap_err().what;
        assert!(what.starts_with("2 lives of h2") && what.contains("incarnation not recorded"), "{what}");
        assert!(what.contains("event 2 (incarnation 51,"), "{what}");
    }

    #[test]
    fn a_standing_watch_finds_only_what_its_owner_may_have_watched() {
        let process = |uid| Process {
            pid: 7,
            start_ticks: 1,
            uid,
            real_uid: uid,
            saved_uid: uid,
            comm: "victimd".into(),
            exe: None,
            nspids: vec![7],
        };
        let allowed = |section: &str| {
            let config = Config::parse(&format!("node = \"a\"\n[access]\n{section}")).unwrap();
            access::Policy::new(&config.access).0
        };
        let (strict, open) = (allowed(""), allowed("watch_others = [\"%50\"]"));
        let own = Standing::new("spy", &Selector::Name("victimd".into()), Origin::Config);
        assert_eq!(own.may_watch(&strict, &process(0)), Ok(()), "the operator's file may watch everything");
        let peer =
            |uid, groups: &[u32]| Some(access::Peer { pid: Some(1), uid, gid: uid, groups: groups.to_vec(), account: uid });
        let of = |owner| Standing { owner, ..Standing::new("spy", &own.selector, Origin::Operator) };
        let user = of(peer(1000, &[50]));
        assert_eq!(user.may_watch(&strict, &process(1000)), Ok(()));
        assert_eq!(user.may_watch(&strict, &process(0)).unwrap_err().code, ErrorCode::Permission);
        assert_eq!(user.may_watch(&strict, &process(1001)).unwrap_err().code, ErrorCode::Permission);
        assert_eq!(user.may_watch(&open, &process(0)), Ok(()), "as the lists are now, with its groups");
        assert_eq!(of(peer(0, &[])).may_watch(&strict, &process(1000)), Ok(()));
    }

    #[test]
    fn one_user_cannot_take_all_connections_and_root_always_gets_one() {
        let mut connected: Vec<u32> = Vec::new();
        for _ in 0..CONNECTIONS.per_user {
            assert_eq!(admit(connected.iter().copied(), 1000), Ok(()));
            connected.push(1000);
        }
        let why = admit(connected.iter().copied(), 1000).unwrap_err();
        assert!(why.contains("user 1000 has 64 connections") && why.contains("close some"), "{why}");
        assert_eq!(admit(connected.iter().copied(), 1001), Ok(()), "another user has its own");

        let mut user = 1001;
        while (connected.len() as u64) < CONNECTIONS.all - CONNECTIONS.for_root {
            assert_eq!(admit(connected.iter().copied(), user), Ok(()));
            connected.push(user);
            user += 1;
        }
        let why = admit(connected.iter().copied(), user).unwrap_err();
        assert!(why.contains("kept for root"), "{why}");
        while (connected.len() as u64) < CONNECTIONS.all {
            assert_eq!(admit(connected.iter().copied(), 0), Ok(()));
            connected.push(0);
        }
        let why = admit(connected.iter().copied(), 0).unwrap_err();
        assert!(why.contains("all 256 connections") && why.contains("close some"), "{why}");
    }
}
