//! What has the group open, and the thread for it: it proposes what this server's replication stream says while the server leads, gives what is decided to the server
//! while it follows, and finds out what the server should be.

use crate::clocks::Clocks;
use crate::copies::Copies;
use crate::course::{Course, Extent, Heir, Holder, HolderRef, Leader, Meaning, Proposal, WHY_MAX};
use crate::feed::{Feed, MEMORY_MAX};
use crate::gate::{LEASE, now_ns};
use crate::replication::{self, Counted, Followed, Sync};
use crate::shared::{Former, Role, Server, Shared, ToGroup, ToServer, copy};
use fide_client::group::{Entry, Event, Group, Options, Stage};
use fide_client::wire::control::{GroupMember, GroupOrder, GroupStatus, Reply, Request};
use fide_client::wire::verdict::{Cause, Grade};
use fide_client::{Client, Resources, TargetState};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Bytes of the stream in one entry.
const PIECE_MAX: usize = 60_000;
/// Proposals under way; what comes meanwhile is proposed together.
const PENDING_MAX: usize = 3;
/// A server says what it has read after so many bytes of the stream, or so much time.
const SAY_AFTER_BYTES: usize = 128 << 10;
const SAY_AFTER: Duration = Duration::from_millis(100);
/// A server that is in sync has at most so many bytes to apply; it comes in with at most so many.
const TO_APPLY_MAX: u64 = MEMORY_MAX as u64;
const TO_APPLY_FIRST: u64 = 1 << 20;
/// A leader that lost its member leads again if nobody else does.
const LEAD_AGAIN: Duration = Duration::from_secs(1);
/// A leader whose host is no member of the group for so long tells its clients so.
const OUTSIDE_MAX: Duration = Duration::from_secs(1);
/// A server that should lead and has not become a primary by then lets another one.
const TAKE_OVER_MAX: Duration = Duration::from_secs(10);
/// A server is told that its replica has its stream at least, and at most, this often.
const ACK_MAX: Duration = Duration::from_secs(1);
const ACK_MIN: Duration = Duration::from_millis(10);
/// In a new group the first server leads, if no other has said by then that it has data of a former one.
const OTHERS_MAY_SPEAK: Duration = Duration::from_millis(500);
/// A server that the group has left applies what it was given within this time.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// An operator's word that this server shall lead is void behind this.
const FORCE_MAX: Duration = Duration::from_secs(2);
/// A server whose clock is off lets others lead for so long.
const OFF_WAITS: Duration = Duration::from_secs(3);
/// A server whose main thread has not gone on for so long lets others take over, for so long.
const HANGS_AFTER: Duration = Duration::from_millis(300);
const HANGS_LONG: Duration = Duration::from_secs(3);
/// A leader that is to let another one lead waits so long for what it has answered before.
const STEPS_DOWN_WITHIN: Duration = Duration::from_millis(200);
/// A leader whose own stream was interrupted, and does not go on within this time, leads no more.
const RESUMES_WITHIN: Duration = Duration::from_secs(2);
/// A leader whose agent's disk has not taken what was decided for so long lets others lead.
const STALLED: Duration = Duration::from_secs(1);
/// Why nobody leads is said when that lasts.
const SAYS_WHY_AFTER: Duration = Duration::from_secs(3);
/// A server that has just spoken may be known to the group before its process is to the agents: it is called ended behind this.
const KNOWN_AFTER: Duration = Duration::from_millis(50);
/// Why such a server is not in sync.
const NOT_EXECUTED: &str = "this server could not execute a command of the leader's stream (its log has the error), so that its data are not the \
                            leader's: rename-command, modules and versions must be the same on all servers; start it again then";
/// A leader that is not observed any more is passed over so long behind its last entry, and no
/// sooner than so long behind the last change.
const PASSED_OVER_AFTER: Duration = Duration::from_millis(50);
const PASSED_OVER_AGAIN: Duration = Duration::from_secs(2);
/// What failed is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// What a server is told when its module is loaded.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The group.
    pub group: String,
    /// What this server's process is called where it is monitored.
    pub name: String,
    /// The agent's socket; none: where it is by default.
    pub socket: Option<PathBuf>,
    /// Where other servers reach this one; none: its host's name and the port.
    pub address: Option<String>,
    /// Where this module reaches it.
    pub own: String,
    /// Its port.
    pub port: u16,
    /// Where clients come in: its port and that for TLS.
    pub ports: Vec<u16>,
    /// Writes are refused while fewer servers hold everything, this one included.
    pub min_copies: u64,
    /// … and while those servers are in fewer zones.
    pub min_zones: u64,
    /// Where metrics are served, if at all.
    pub metrics: Option<String>,
    /// A server that has read nothing for so long, while there is something to read, is not in sync any more.
    pub lag_max: Duration,
    /// Reads need no entry within a lease; none: as the group's policy suggests.
    pub reads_by_lease: Option<bool>,
    /// Others take over from a leader whose main thread has not gone on for so long.
    pub hung_after: Option<Duration>,
    /// A server whose clock differs more from the leader's is not in sync; none: any is.
    pub clock_skew_max: Option<Duration>,
    /// The server's directory.
    pub dir: PathBuf,
    /// Where this server keeps of which group its data are.
    pub lineage: PathBuf,
}

/// This host's server gets its data, from another thread.
struct Syncing {
    is_over: Arc<AtomicBool>,
    result: mpsc::Receiver<io::Result<Followed>>,
    /// What is decided meanwhile.
    feed: Feed,
}

/// What a server that follows has missed comes from the leader's own stream, which keeps the last part; what is decided meanwhile waits.
struct Gap {
    missed: mpsc::Receiver<io::Result<Vec<u8>>>,
    /// Where the entries of the group go on, and the bytes before it that are of a command that is not whole.
    until: u64,
    cut: u64,
    later: Vec<(u64, u64, Vec<u8>)>,
    later_bytes: usize,
}

enum State {
    Nothing {
        since: Instant,
    },
    /// The agent is asked whether the leader is where it says.
    Checking {
        leader: Leader,
        result: mpsc::Receiver<Result<(), String>>,
    },
    Syncing(Syncing),
    /// Its data contain what was decided up to [`Feed::data`], at least, if the leader's term has not ended before that was decided: then it must begin anew.
    Following {
        link: TcpStream,
        feed: Feed,
        /// Its agent does not have the entries that follow any more.
        gap: Option<Gap>,
    },
    /// The server becomes a primary; its stream goes on behind `position`, or it has data of its own. Its link stays until it has read all.
    TakingOver {
        position: Option<u64>,
        rest: Option<(TcpStream, Feed)>,
        /// Since when it has applied no more than so much.
        since: Instant,
        applied: u64,
        /// It is a primary, and waits for a former leader's lease to end.
        is_primary: bool,
    },
    Leading {
        source: BufReader<Counted>,
        /// Of the server's stream, what was proposed.
        proposed: u64,
        /// Turns that were.
        ticket: u64,
        /// What came before the stream was caught, while no command has ended since.
        before: u64,
        acked: Instant,
        acked_offset: u64,
        /// The first entry of it was decided: each follows the one before.
        has_begun: bool,
    },
}

/// A former leader that may answer until then, if it is not known to have ended.
struct Lease {
    /// 0: some client.
    client: u64,
    host: String,
    until: Instant,
}

/// See [`Place`].
pub struct Worker {
    settings: Settings,
    shared: Arc<Shared>,
    group: Group,
    fide: Client,
    host: String,
    /// The replication id under which this host's server follows.
    id: String,
    course: Course,
    state: State,
    members: Vec<u16>,
    /// Of the servers that lead or are on the list: whose process has ended.
    ended: BTreeSet<u64>,
    /// Of those: whose end was told, of this process. What is only not known to run may not be waited for any more, but may still answer.
    told_ended: BTreeSet<u64>,
    /// Of the same: which do not go on; the node and the number of each one's process; whose end was seen when it was asked for, since when.
    hung: BTreeSet<u64>,
    /// Of the same: whose host is silent, or its agent gone. A group that decides by a majority
    /// goes on without them, and keeps them as members.
    unobserved: BTreeSet<u64>,
    /// The group decides by a majority (engine `raft`), as was asked when somebody was unobserved
    /// last.
    by_majority: bool,
    looked_at_unobserved: Option<Instant>,
    /// When something of a leader's stream was decided, and when somebody began to lead.
    streamed_at: Instant,
    /// The term in which this server was last taken off the list.
    struck_off_in: u64,
    led_at: Option<Instant>,
    /// The term and the in-sync set that were written down last, and whether the log was live.
    kept_set: (u64, String, bool),
    /// Nothing is decided: the agent was asked why.
    asked_stall: Option<(Instant, mpsc::Receiver<Result<GroupStatus, String>>)>,
    instances: BTreeMap<u64, (u32, u32)>,
    seen_ended: BTreeMap<u64, Instant>,
    /// Since when this server's own stream is interrupted.
    gap_since: Option<Instant>,
    /// When an entry came, or none was waited for.
    decided_at: Instant,
    /// Turns of this server's main thread, and when there was a new one.
    turns: u64,
    moved: Instant,
    /// Since when the group has no leader.
    headless: Option<Instant>,
    /// Since when this host is no member, while this server leads.
    outside: Option<Instant>,
    asked_term: u64,
    resigned_term: u64,
    /// Of the group before this one, if this server has it whole.
    former: Option<Former>,
    /// When entries of this server's stream were proposed that are not decided ([`now_ns`]), while it leads; none: what it shows may lie in later ones.
    proposed_at: VecDeque<Option<u64>>,
    /// It has not said that it leads no more.
    may_renew: bool,
    /// Of former leaders.
    leases: Vec<Lease>,
    /// The last client that said that it leads no more.
    resigned: Option<u64>,
    /// Behind which term this server has said what it has, and whether it loads.
    has_claimed: Option<(u64, bool)>,
    /// When that was decided.
    claimed: Option<Instant>,
    /// The hosts of a group that was begun anew, and when they were asked for; nobody's where it was not.
    anew: Option<(Instant, Vec<String>)>,
    /// The group has ended, and one of its name has begun.
    is_former: bool,
    /// An operator wants this server to lead: the term that was asked for, once it was.
    forced: Option<u64>,
    /// Until the term is asked for: since when, and whether others' data may be dropped.
    forced_at: Option<(Instant, bool)>,
    /// The server's data contain all that was decided, since it led last.
    is_whole: bool,
    /// The group's log begins with something that is no state of servers.
    is_lost: bool,
    copies: Copies,
    clocks: Clocks,
    /// This server's clock is off: in words.
    is_off: String,
    /// Bytes of the stream that were read since this server has said what it has, when that was, and for which term.
    unsaid: usize,
    said: Option<Instant>,
    said_term: u64,
    said_fails: Option<Instant>,
    /// Why the leader is not followed; empty: it is.
    distrusts: String,
    /// The log was told of entries that no server proposed.
    has_warned: bool,
    /// For the agent: the state behind an entry.
    unkept: Option<(u64, Vec<u8>)>,
    /// Another process is to be monitored.
    unmonitored: bool,
    /// Why this server cannot go on, for the group's thread.
    failed: Option<String>,
    /// An operator's word: in this term, behind this turn, since when.
    steps_down: Option<(u64, u64, Instant)>,
    /// Turns of the server that are confirmed, while it leads.
    confirmed: u64,
    /// Clients that read more slowly than they are answered.
    slow: Vec<i32>,
    bytes: Vec<u8>,
    piece: Vec<u8>,
}

impl Gap {
    fn wait(&mut self, start: u64, cut: u64, bytes: &[u8]) -> io::Result<()> {
        self.later_bytes += bytes.len();
        if self.later_bytes > MEMORY_MAX {
            return Err(io::Error::other("what it has missed does not come"));
        }
        self.later.push((start, cut, bytes.to_vec()));
        Ok(())
    }
}

/// What has the group open. Both threads use it: the group's thread for everything that takes its time; the server's main thread, while this server leads,
/// for entries and proposals, so that no other thread has to wake up between a client and the group.
pub type Place = Mutex<Option<Worker>>;

fn lock(place: &Place) -> MutexGuard<'_, Option<Worker>> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until the process ends; a lost agent is waited for. The client of the group stays the same, so that this server goes on as the one that it was.
pub fn run(settings: &Settings, shared: &Arc<Shared>, place: &Place) {
    let mut said = String::new();
    let mut say = |why: String| {
        if why != said {
            shared.to_server.push(ToServer::Be(Role::Waits(why.clone())));
            said = why;
        }
    };
    let mut former = None;
    loop {
        match Worker::new(settings.clone(), shared.clone(), former.clone()) {
            Ok(worker) => {
                *lock(place) = Some(worker);
                go_on(place, &mut say);
                // The lock is not held while this server applies what it has.
                let worker = lock(place).take();
                former = worker.and_then(Worker::leaves).or(former);
            }
            Err(why) => say(why),
        }
        std::thread::sleep(AGAIN);
    }
}

/// Returns when this client of the group is of no use any more.
fn go_on(place: &Place, say: &mut impl FnMut(String)) {
    loop {
        let why = loop {
            let Some(mut waits) = lock(place).as_ref().map(Worker::waits) else { return };
            waits.sleep();
            let Some(done) = lock(place).as_mut().map(Worker::turn) else { return };
            if let Err(why) = done {
                break why;
            }
        };
        let is_lost = lock(place).as_mut().is_none_or(|worker| {
            worker.wait_for_the_agent();
            worker.is_lost
        });
        say(why);
        if is_lost {
            return;
        }
        loop {
            std::thread::sleep(AGAIN);
            match lock(place).as_mut().map(Worker::reconnect) {
                Some(Err(why)) => say(why),
                _ => break,
            }
            if lock(place).as_ref().is_none_or(|worker| worker.is_former) {
                return;
            }
        }
        if let Some(worker) = lock(place).as_ref() {
            worker.follows_again();
        }
    }
}

/// The server's main thread, while this server leads: what is decided, what is to be proposed, and replies that may leave. `false`: the group's thread is to go on.
#[must_use]
pub fn pump(place: &Place) -> bool {
    // It is held for long only while this server begins to lead, or leads no more.
    let Ok(mut place) = place.try_lock() else { return false };
    place.as_mut().is_some_and(Worker::pump)
}

/// What the group's thread waits for.
struct Waits {
    fds: Vec<libc::pollfd>,
    timeout_ms: i32,
}

impl Waits {
    fn sleep(&mut self) {
        // SAFETY: the array is as long as said. A descriptor that is closed meanwhile wakes at most too early: this thread alone closes them, but clients'.
        unsafe { libc::poll(self.fds.as_mut_ptr(), self.fds.len() as libc::nfds_t, self.timeout_ms) };
    }
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// The group, as the agent knows it.
fn status(socket: Option<&Path>, group: &str) -> Result<GroupStatus, String> {
    let connection = fide_client::Connection::open(socket).map_err(text)?;
    match connection.request(&Request::Group { order: GroupOrder::Status }).map_err(text)?.reply {
        Reply::Groups { groups } => groups.into_iter().find(|of| of.name == group),
        _ => None,
    }
    .ok_or_else(|| format!("the agent does not know the group {group}"))
}

/// Which group of this name it is, and its policy.
fn generation(settings: &Settings) -> Result<(u64, String), String> {
    let group = status(settings.socket.as_deref(), &settings.group)?;
    // An agent that has just started knows the name, and learns from the others which group that is.
    if group.generation == 0 {
        return Err(format!("the agent is joining the group {}", settings.group));
    }
    Ok((group.generation, group.policy))
}

impl Worker {
    fn new(settings: Settings, shared: Arc<Shared>, former: Option<Former>) -> Result<Self, String> {
        let fide = Client::open(settings.socket.as_deref()).map_err(text)?;
        if let Err(e) = fide.join(&settings.name, 0) {
            return Err(format!("its end would not be noticed: {} cannot be joined: {e}", settings.name));
        }
        // A dead server's clients go to the next one at once, however long the kernel takes to take
        // down its data. Where the agent cannot see to it, they wait for the kernel.
        let _ = fide.end_connections(&settings.ports);
        if let Some(limit) = settings.hung_after {
            let progress = fide.progress(limit).map_err(|e| format!("the agent does not look at this server's progress: {e}"))?;
            *shared.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
        }
        let options = Options { path: settings.socket.clone(), ..Options::default() };
        let group = Group::open_with(&settings.group, options).map_err(text)?;
        let (generation, policy) = generation(&settings)?;
        // Behind a fence a takeover from a host that is silent waits anyway, for longer than a lease.
        shared.has_lease.store(settings.reads_by_lease.unwrap_or(policy == "fence"), Ordering::Release);
        shared.generation.store(generation, Ordering::Relaxed);
        let host = fide.agent().node.clone();
        let id = format!("{:016x}{:024x}", group.client(), std::process::id());
        Ok(Self {
            settings,
            shared,
            group,
            fide,
            host,
            id,
            course: Course::default(),
            state: State::Nothing { since: Instant::now() },
            members: Vec::new(),
            ended: BTreeSet::new(),
            told_ended: BTreeSet::new(),
            hung: BTreeSet::new(),
            unobserved: BTreeSet::new(),
            by_majority: false,
            asked_stall: None,
            looked_at_unobserved: None,
            streamed_at: Instant::now(),
            struck_off_in: 0,
            led_at: None,
            kept_set: (0, String::new(), false),
            instances: BTreeMap::new(),
            seen_ended: BTreeMap::new(),
            gap_since: None,
            decided_at: Instant::now(),
            turns: 0,
            moved: Instant::now(),
            headless: None,
            outside: None,
            asked_term: 0,
            resigned_term: 0,
            former: former.filter(|former| former.generation != generation),
            proposed_at: VecDeque::new(),
            may_renew: false,
            leases: Vec::new(),
            resigned: None,
            has_claimed: None,
            claimed: None,
            anew: None,
            is_former: false,
            forced: None,
            forced_at: None,
            is_whole: false,
            is_lost: false,
            copies: Copies::new(Instant::now()),
            clocks: Clocks::default(),
            is_off: String::new(),
            unsaid: 0,
            said: None,
            said_term: 0,
            said_fails: None,
            distrusts: String::new(),
            has_warned: false,
            unkept: None,
            unmonitored: false,
            failed: None,
            steps_down: None,
            confirmed: 0,
            slow: Vec::new(),
            bytes: Vec::new(),
            piece: Vec::new(),
        })
    }

    fn reconnect(&mut self) -> Result<(), String> {
        if let Err(e) = self.group.reconnect() {
            // The agent knows another generation of it.
            let known = generation(&self.settings).ok();
            self.is_former = known.is_some_and(|(known, _)| known != self.shared.generation.load(Ordering::Relaxed));
            return Err(text(e));
        }
        self.fide.reconnect().map_err(text)?;
        self.members.clear();
        (self.headless, self.failed, self.unkept, self.steps_down) = (None, None, None, None);
        (self.forced, self.forced_at) = (None, None);
        self.distrusts.clear();
        self.monitor();
        Ok(())
    }

    /// The group is not there any more: what this server has of it, once it has applied what it was given.
    fn leaves(mut self) -> Option<Former> {
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let is_whole = self.is_whole || self.is_in_sync();
        let whole = match &self.state {
            State::Following { feed, .. } => feed.whole(),
            _ => None,
        };
        if let Some(whole) = whole {
            let until = Instant::now() + DRAIN_MAX;
            while self.shared.applied.load(Ordering::Relaxed) < whole && Instant::now() < until {
                self.give();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.stop();
        // The server says where it is once it knows that it leads no more.
        let (looks, until) = (self.shared.looks.load(Ordering::Acquire), Instant::now() + DRAIN_MAX);
        while self.shared.looks.load(Ordering::Acquire) < looks + 2 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let offset = self.shared.applied.load(Ordering::Acquire);
        let has_all = is_whole && whole.is_none_or(|whole| offset >= whole);
        (has_all && self.course.term > 0).then(|| Former {
            generation,
            term: self.course.term,
            extent: Extent::Memory,
            offset,
            set: self.course.set(),
        })
    }

    /// While no server leads: what this one has of a former group, or of this one where all servers
    /// that had everything have ended.
    fn claim(&mut self) -> Result<(), String> {
        let is_idle = matches!(self.state, State::Nothing { .. }) && !self.is_whole && self.is_headless_for(LEAD_AGAIN);
        if !self.runs() || self.members.is_empty() || self.course.term > 0 && !is_idle {
            return Ok(());
        }
        let term = self.course.term;
        let said = self.has_claimed.filter(|(of, _)| *of == term).map(|(_, loads)| loads);
        if said == Some(false) {
            return Ok(());
        }
        let on_disk = self.shared.on_disk.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let loads = on_disk.is_none();
        if loads && said == Some(true) {
            return Ok(());
        }
        let loading = || self.shared.kept().map(|kept| Former { extent: Extent::Loads, ..kept });
        let has = on_disk.unwrap_or_else(loading);
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let former = if term == 0 {
            self.former.clone().or(has).filter(|former| former.generation != generation)
        } else {
            has.filter(|has| has.generation == generation && has.term.saturating_add(1) >= term)
        };
        if former.is_none() && (loads || term > 0) {
            return Ok(()); // it says more when it has loaded; of this group it has not all
        }
        (self.has_claimed, self.claimed) = (Some((term, loads)), None);
        let (host, address) = (self.host.clone(), self.address());
        let nothing = Former { generation: 0, term: 0, extent: Extent::Empty, offset: 0, set: String::new() };
        let Former { generation, term, extent, offset, set } = former.unwrap_or(nothing);
        self.propose(Proposal::Has { term, extent, former: generation, offset, set: &set, host: &host, address: &address })
    }

    fn keep_origin(&self) {
        self.shared.lineage.store(self.course.origin, Ordering::Relaxed);
        self.shared.lineage_term.store(self.course.origin_term, Ordering::Relaxed);
    }

    fn is_headless_for(&self, time: Duration) -> bool {
        self.headless.is_some_and(|at| at.elapsed() >= time)
    }

    /// Whether this server may ask to lead first.
    fn is_first(&mut self) -> bool {
        // Somebody may have more to say.
        let may_ask = self.claimed.is_some_and(|at| at.elapsed() >= OTHERS_MAY_SPEAK);
        let loads = self.has_claimed.is_some_and(|(_, loads)| loads);
        match self.course.heir() {
            Heir::Is(client) => client == self.group.client() && may_ask,
            _ if !may_ask || loads => false,
            Heir::None => self.all_have_spoken(),
            Heir::Waits(missing) if missing.is_empty() => {
                let what = "the group has begun anew, and no server here knows how far its data go, as with the data of its last snapshot, or of a \
                            log that was not written anew yet behind a copy of all data: FIDE LEAD FORCE on the one whose data shall stay (INFO \
                            fide, INFO keyspace); with appendonly yes, and fide_data_in_log 1, no person is asked";
                self.waits_because(what.into());
                false
            }
            Heir::Waits(missing) => {
                let missing = self.in_words(&missing);
                self.waits_because(format!(
                    "the group has begun anew; of the servers that had all data of the former one, {missing}: FIDE LEAD FORCE here goes on without"
                ));
                false
            }
        }
    }

    /// Servers that are waited for, and why.
    fn in_words(&self, missing: &[String]) -> String {
        let of = |address: &String| match self.course.extent_of(address) {
            None => format!("{address} is missing"),
            Some(Extent::Loads) => format!("{address} loads its data"),
            Some(Extent::Empty) => format!("{address} has lost them"),
            Some(_) => format!("{address} does not know how far its data go (no log of every write, or of former data)"),
        };
        missing.iter().map(of).collect::<Vec<_>>().join(", ")
    }

    /// Nobody has anything of a former group. Where there was one, a server that has not spoken yet
    /// may have all of its data: it loads, or is started later.
    fn all_have_spoken(&mut self) -> bool {
        if self.anew.as_ref().is_none_or(|(at, _)| at.elapsed() >= LEAD_AGAIN) {
            let Ok(of) = status(self.settings.socket.as_deref(), &self.settings.group) else { return false };
            let hosts = of.members.into_iter().map(|member| member.host).filter(|_| of.anew);
            self.anew = Some((Instant::now(), hosts.collect()));
        }
        let hosts = self.anew.iter().flat_map(|(_, hosts)| hosts);
        let silent: Vec<&str> = hosts.filter(|host| !self.course.has_spoken(host)).map(String::as_str).collect();
        if silent.is_empty() {
            return true;
        }
        let silent = silent.join(", ");
        self.waits_because(format!(
            "the group has begun anew, and no server that has spoken has data of the former one; none of {silent} has: start the servers there, \
             or FIDE LEAD FORCE here begins without data"
        ));
        false
    }

    /// Whether this server leads again where all that had everything have ended, and were started again.
    fn is_first_again(&self) -> bool {
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let may_ask = self.claimed.is_some_and(|at| at.elapsed() >= OTHERS_MAY_SPEAK);
        may_ask && self.is_headless_for(LEAD_AGAIN) && self.course.heir_again(generation) == Heir::Is(self.group.client())
    }

    /// Nobody leads for long, and this server cannot.
    fn say_why_nobody_leads(&mut self) {
        let is_long = |at: Instant| at.elapsed() >= SAYS_WHY_AFTER;
        let waits = matches!(self.state, State::Nothing { since } if is_long(since));
        if !waits || self.course.term == 0 || !self.runs() || !self.headless.is_some_and(is_long) {
            return;
        }
        let had = self.course.set().replace('\n', ", ");
        let rest = match self.course.heir_again(self.shared.generation.load(Ordering::Relaxed)) {
            Heir::Waits(missing) if !missing.is_empty() => format!("; {}", self.in_words(&missing)),
            _ => String::new(),
        };
        self.waits_because(format!(
            "no server leads: those that had all data ({had}) have ended, or lost them{rest}. FIDE LEAD FORCE on the server whose data shall stay (INFO \
             fide says of which term each has data, INFO keyspace how many keys)"
        ));
    }

    /// Says once why this server waits.
    fn waits_because(&mut self, why: String) {
        if self.distrusts != why {
            self.shared.to_server.push(ToServer::Be(Role::Waits(why.clone())));
            self.distrusts = why;
        }
    }

    /// A server that follows keeps its data and its place in the log: it goes on from there when its agent is back.
    fn wait_for_the_agent(&mut self) {
        let mut seen = self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.runs, seen.in_sync) = (false, false);
        drop(seen);
        if self.is_lost || !matches!(self.state, State::Following { .. }) {
            self.stop();
        }
    }

    fn follows_again(&self) {
        if let (State::Following { .. }, Some(leader)) = (&self.state, &self.course.leader) {
            self.shared.to_server.push(ToServer::Be(Role::Follows(leader.address.clone())));
        }
    }

    fn turn(&mut self) -> Result<(), String> {
        self.shared.to_group.bell.hush();
        while let Some(asked) = self.shared.to_group.pop() {
            self.asked(&asked)?;
        }
        self.synced();
        self.give();
        self.keep_source()?;
        self.exchange()?;
        self.ask_agent()?;
        while let Some(event) = self.fide.poll(Some(Duration::ZERO)).map_err(text)? {
            self.verdict(&event);
        }
        self.look_at_stalls()?;
        self.look_again();
        self.look_at_unobserved();
        self.claim()?;
        self.look_at_clocks();
        self.look_for_a_leader()?;
        self.begin_to_lead()?;
        self.say_what_is_held()?;
        self.say_what_fails()?;
        self.take_off_the_list()?;
        self.step_down()?;
        self.say_why_nobody_leads();
        self.keep_set();
        self.show();
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Entries in, proposals out, and the replies that may leave then.
    fn exchange(&mut self) -> Result<(), String> {
        loop {
            match self.group.poll(Some(Duration::ZERO)) {
                Ok(Some(event)) => self.event(event)?,
                Ok(None) => break,
                Err(e) => return Err(format!("the agent is not there: {e}")),
            }
        }
        self.propose_stream()?;
        self.shared.gate.release(self.confirmed, &mut self.slow);
        self.shared.gate.resume(&mut self.slow);
        Ok(())
    }

    /// What may have to wait for the agent: not for the server's main thread.
    fn ask_agent(&mut self) -> Result<(), String> {
        if let Some((index, snapshot)) = self.unkept.take() {
            self.group.keep_snapshot(index, &snapshot).map_err(text)?;
        }
        if std::mem::take(&mut self.unmonitored) {
            self.monitor();
        }
        Ok(())
    }

    fn pump(&mut self) -> bool {
        if self.failed.is_some() || !matches!(self.state, State::Leading { .. }) {
            return false;
        }
        self.failed = self.exchange().err();
        let is_plain = self.slow.is_empty() && self.steps_down.is_none() && self.unkept.is_none() && self.failed.is_none();
        is_plain && matches!(self.state, State::Leading { .. })
    }

    fn waits(&self) -> Waits {
        let leads = matches!(self.state, State::Leading { .. });
        // The main thread waits for the group while this server leads.
        let group = if leads { -1 } else { self.group.as_raw_fd() };
        let other = match &self.state {
            State::Leading { source, .. } => source.get_ref().stream.as_raw_fd(),
            State::Following { link, .. } => link.as_raw_fd(),
            _ => -1,
        };
        // Its server takes no more for now.
        let full = match &self.state {
            State::Following { link, feed, .. } | State::TakingOver { rest: Some((link, feed)), .. } if feed.waits() => {
                Some(link.as_raw_fd())
            }
            _ => None,
        };
        let readable = [self.shared.to_group.bell.fd(), group, self.fide.as_raw_fd(), other].map(|fd| (fd, libc::POLLIN));
        let writable = self.slow.iter().copied().chain(full).map(|fd| (fd, libc::POLLOUT));
        let fds = readable.into_iter().chain(writable).map(|(fd, events)| libc::pollfd { fd, events, revents: 0 });
        let is_soon = self.group.pending() > 0 || matches!(self.state, State::TakingOver { is_primary: true, .. });
        Waits { fds: fds.collect(), timeout_ms: if is_soon { 2 } else { 50 } }
    }

    fn propose(&mut self, proposal: Proposal<'_>) -> Result<(), String> {
        if matches!(proposal, Proposal::Resign { .. }) {
            // Others may lead as soon as they have read it, and before this server has.
            self.may_renew = false;
            self.shared.gate.set_lease(0);
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        proposal.write(&mut bytes);
        let done = self.group.propose(&bytes).map_err(text);
        self.bytes = bytes;
        done.map(|_| ())
    }

    // ---- who leads ------------------------------------------------------------------------------------------------------

    fn is_own(&self) -> bool {
        self.course.leader.as_ref().is_some_and(|leader| leader.client == self.group.client())
    }

    /// Whether this server has everything that is decided, and nothing else.
    fn is_in_sync(&self) -> bool {
        match &self.state {
            State::Following { feed, gap, .. } => {
                !self.has_not_executed() && gap.is_none() && self.course.offset.is_some_and(|offset| Some(offset) >= feed.data())
            }
            State::Leading { .. } => true,
            _ => false,
        }
    }

    /// Something of the leader's stream had no effect here.
    fn has_not_executed(&self) -> bool {
        self.shared.not_executed.load(Ordering::Acquire) > 0
    }

    /// If nobody leads, a server that has all that is decided asks to; the first such entry counts.
    fn look_for_a_leader(&mut self) -> Result<(), String> {
        let turns = self.shared.turns.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.turns, turns) != turns {
            self.moved = Instant::now();
        }
        let stage = self.group.standing().map(|standing| standing.stage);
        let leads = matches!(self.state, State::Leading { .. });
        if stage == Some(Stage::Running) || !leads {
            self.outside = None;
        } else if self.outside.get_or_insert_with(Instant::now).elapsed() >= OUTSIDE_MAX {
            // What waits may be decided, or not, and nobody knows when that is known.
            self.stop();
            let stage = stage.map_or("unknown", Stage::name);
            let why = format!("the agent of this host is not in the group now: it is {stage} (fide group status says why)");
            self.shared.to_server.push(ToServer::Be(Role::Waits(why)));
        }
        if self.members.is_empty() || stage != Some(Stage::Running) {
            return Ok(());
        }
        if let State::TakingOver { since, applied, .. } = &mut self.state {
            let now = self.shared.applied.load(Ordering::Acquire);
            if std::mem::replace(applied, now) != now {
                *since = Instant::now();
            }
        }
        let is_stuck = match &self.state {
            State::Nothing { .. } => true,
            State::TakingOver { since, .. } => since.elapsed() >= TAKE_OVER_MAX || self.has_not_executed(),
            _ => false,
        };
        if self.is_own() && !self.course.resigned && is_stuck && self.resigned_term < self.course.term {
            let term = self.course.term;
            self.resigned_term = term;
            self.propose(Proposal::Resign { term })?;
        }
        let may_lead = self.course.leader.as_ref().is_some_and(|leader| {
            let lives = !self.ended.contains(&leader.client) && !self.hung.contains(&leader.client);
            !self.course.resigned && lives && self.members.contains(&leader.member)
        });
        let leads = may_lead && self.course.leader.as_ref().is_some_and(|leader| !self.is_passed_over(leader.client));
        // An operator's word counts for what was true when it was given. The leader leads already: another term would end its clients' connections for nothing.
        let leads_here = leads && self.is_own() && matches!(self.state, State::Leading { .. } | State::TakingOver { .. });
        let is_void = |discards: bool| leads_here || may_lead && !discards && !self.is_in_sync();
        if self.forced_at.is_some_and(|(at, discards)| at.elapsed() >= FORCE_MAX || is_void(discards)) {
            self.forced_at = None;
            self.forced = self.forced.filter(|term| *term != 0);
        }
        let is_forced = self.forced == Some(0);
        if leads && !is_forced {
            self.headless = None;
            return Ok(());
        }
        let headless = self.headless.get_or_insert_with(Instant::now).elapsed();
        if matches!(self.state, State::Leading { .. }) && headless >= LEAD_AGAIN {
            self.stop(); // what waits is not known to be decided
        }
        let is_able = match &self.state {
            // If all others are gone, or off: it may be the last leader's clock that was.
            State::Following { .. } if !self.is_off.is_empty() && headless < OFF_WAITS => false,
            // Its main thread could not take over.
            _ if self.moved.elapsed() >= HANGS_AFTER && headless < HANGS_LONG => false,
            // It says first that it has everything.
            State::Following { .. } if self.is_struck_off() => false,
            // Who has much to apply lets others ask first.
            State::Following { feed, .. } if self.is_in_sync() => {
                let to_apply = feed.whole().unwrap_or(0).saturating_sub(self.shared.applied.load(Ordering::Acquire));
                to_apply <= TO_APPLY_MAX || headless >= LEAD_AGAIN
            }
            State::Nothing { .. } if self.course.term == 0 => self.is_first(),
            State::Nothing { since } if self.is_whole => since.elapsed() >= LEAD_AGAIN && headless >= LEAD_AGAIN,
            State::Nothing { .. } => self.is_first_again(),
            _ => false,
        };
        let term = self.course.term + 1;
        if (is_able || is_forced) && self.asked_term < term {
            self.asked_term = term;
            if is_forced {
                (self.forced, self.forced_at) = (Some(term), None);
            }
            let (host, address) = (self.host.clone(), self.address());
            let lease_ms = if self.shared.has_lease.load(Ordering::Acquire) { LEASE.as_millis() as u32 } else { 0 };
            let zone = self.zone();
            // By what all have said.
            self.is_whole |= is_able && matches!(self.state, State::Nothing { .. });
            let is_listed = !is_forced && self.course.holders.contains_key(&self.group.client());
            self.propose(Proposal::Lead { term, is_listed, lease_ms, zone: &zone, host: &host, address: &address })?;
        }
        Ok(())
    }

    /// By a majority a leader that is not observed any more is replaced, whether it lives or not:
    /// what it proposes later is void, and its lease is waited for. The other engines say
    /// themselves who is no member any more. Not if something of it has just come by others, nor
    /// again and again where hosts do not hear each other.
    fn is_passed_over(&self, client: u64) -> bool {
        self.by_majority
            && self.unobserved.contains(&client)
            && self.streamed_at.elapsed() >= PASSED_OVER_AFTER
            && self.led_at.is_none_or(|at| at.elapsed() >= PASSED_OVER_AGAIN)
    }

    /// In this term the group went on without this server, and it has not come back to the list.
    fn is_struck_off(&self) -> bool {
        self.struck_off_in == self.course.term && !self.course.holders.contains_key(&self.group.client())
    }

    /// Whether those that are not observed are so still, and what that means.
    fn look_at_unobserved(&mut self) {
        if self.unobserved.is_empty() || matches!(self.state, State::Leading { .. }) {
            return;
        }
        if self.looked_at_unobserved.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        self.looked_at_unobserved = Some(Instant::now());
        let engine = status(self.settings.socket.as_deref(), &self.settings.group).map(|of| of.engine);
        self.by_majority = engine.is_ok_and(|engine| engine == "raft");
        self.monitor();
    }

    /// What fails together with this host.
    fn zone(&self) -> String {
        self.fide.agent().zone.clone()
    }

    /// Where other servers reach this one.
    fn address(&self) -> String {
        self.settings.address.clone().unwrap_or_else(|| format!("{}:{}", self.host, self.settings.port))
    }

    fn asked(&mut self, asked: &ToGroup) -> Result<(), String> {
        match asked {
            ToGroup::TookOver => {
                if let State::TakingOver { is_primary, .. } = &mut self.state {
                    *is_primary = true;
                    self.is_whole = true;
                    self.begin_to_lead()?;
                }
            }
            ToGroup::StepDown(turn) => self.steps_down = Some((self.course.term, *turn, Instant::now())),
            ToGroup::Force(discards) => (self.forced, self.forced_at) = (Some(0), Some((Instant::now(), *discards))),
            ToGroup::Follow if !self.is_own() => self.follow(),
            ToGroup::Follow => {}
        }
        Ok(())
    }

    /// What an operator has asked for, once the operator was answered.
    fn step_down(&mut self) -> Result<(), String> {
        let (confirmed, term) = (self.confirmed, self.course.term);
        // Nor does an operator wait for a group that decides nothing.
        let is_due = |(asked, turn, at): &mut (u64, u64, Instant)| {
            *asked != term || *turn <= confirmed || at.elapsed() >= STEPS_DOWN_WITHIN
        };
        if let Some((asked, ..)) = self.steps_down.take_if(is_due)
            && asked == term
            && self.is_own()
            && !self.course.resigned
        {
            self.propose(Proposal::Resign { term })?;
        }
        Ok(())
    }

    /// Keys would expire too early here, or too late.
    fn look_at_clocks(&mut self) {
        let follows = matches!(self.state, State::Following { .. });
        let max_ms = self.settings.clock_skew_max.map(|max| max.as_millis() as u64).filter(|_| follows);
        let off_ms = max_ms.and_then(|max_ms| self.clocks.is_off(Instant::now(), max_ms));
        if off_ms.is_some() != self.is_off.is_empty() {
            return;
        }
        self.is_off = off_ms.map_or_else(String::new, |off_ms| {
            let (by, how) = (off_ms.unsigned_abs(), if off_ms > 0 { "ahead of" } else { "behind" });
            format!(
                "the clock of {} is {by} ms {how} the leader's: this server is not in sync, because keys would expire at other times here; set the \
                 clock (chrony, ntpd), or see clock-skew-max",
                self.host
            )
        });
        let what = if self.is_off.is_empty() { "the clock goes as the leader's again".into() } else { self.is_off.clone() };
        self.shared.to_server.push(ToServer::Warn(what));
    }

    /// A leader that does not hear what is decided is of no use to its clients.
    fn look_at_stalls(&mut self) -> Result<(), String> {
        let is_waiting = matches!(self.state, State::Leading { .. }) && self.group.pending() > 0;
        if !is_waiting {
            self.decided_at = Instant::now();
        }
        // Nobody could take over: only a majority that is not heard ends it.
        let is_alone = self.course.in_sync() < 2;
        if self.decided_at.elapsed() < STALLED {
            self.asked_stall = None;
            return Ok(());
        }
        let Some((asked, answer)) = &self.asked_stall else {
            // Not by this thread: the agent may stand still.
            let (tell, answer) = mpsc::channel();
            let (shared, socket, group) = (self.shared.clone(), self.settings.socket.clone(), self.settings.group.clone());
            std::thread::spawn(move || {
                let _ = tell.send(status(socket.as_deref(), &group));
                shared.to_group.bell.ring();
            });
            self.asked_stall = Some((Instant::now(), answer));
            return Ok(());
        };
        let why = match answer.try_recv() {
            Ok(Ok(of)) if !is_alone && of.written.is_some_and(|written| written < of.index) => format!(
                "nothing that was decided was written here for {} s: the disk of this host's agent does not take the log",
                STALLED.as_secs()
            ),
            // Others may lead, whom no majority hears here.
            Ok(Ok(of)) if of.engine == "raft" => format!("nothing was decided for {} s: {}", STALLED.as_secs(), of.why),
            // Where others decide nothing either (a fence or a witness is waited for), nobody would
            // lead.
            Ok(_) => {
                (self.decided_at, self.asked_stall) = (Instant::now(), None);
                return Ok(());
            }
            Err(_) if asked.elapsed() < STALLED || is_alone => return Ok(()),
            Err(_) => "the agent of this host does not answer".into(),
        };
        (self.decided_at, self.asked_stall) = (Instant::now(), None);
        let term = self.course.term;
        self.resigned_term = term;
        self.propose(Proposal::Resign { term })?;
        self.stop();
        self.shared.to_server.push(ToServer::Be(Role::Waits(why)));
        Ok(())
    }

    /// The server is a primary, and nobody else answers any more: this one does.
    fn begin_to_lead(&mut self) -> Result<(), String> {
        let State::TakingOver { position, is_primary: true, .. } = self.state else { return Ok(()) };
        let (now, ended) = (Instant::now(), &self.told_ended);
        self.leases.retain(|lease| lease.until > now && !ended.contains(&lease.client));
        if self.leases.is_empty() { self.lead(position) } else { Ok(()) }
    }

    /// A leader is a former one: until when it may answer.
    fn was_led(&mut self, former: Option<Leader>) {
        let resigned = self.resigned.take();
        let Some(Leader { client, lease_ms, host, .. }) = former else { return };
        let is_over = resigned == Some(client) || self.told_ended.contains(&client);
        if lease_ms > 0 && !is_over && client != self.group.client() {
            self.leases.push(Lease { client, host, until: Instant::now() + wait_for_lease(lease_ms) });
        }
    }

    /// The server is a primary: its stream is read from here on.
    fn lead(&mut self, position: Option<u64>) -> Result<(), String> {
        let (own, account) = (&self.settings.own, self.shared.accounts().own);
        let failed = |e: io::Error| format!("this server's own stream: {e}");
        // Without a position its data are others', and its stream need not go on: where it has one, all its data need not be read.
        let from = match position {
            Some(offset) => Some((self.id.clone(), offset)),
            None => Some(replication::position(own, &account).map_err(failed)?),
        };
        let asked = from.as_ref().map(|(id, offset)| (id.as_str(), *offset));
        let (mut source, sync) = replication::attach(own, &account, asked, true).map_err(failed)?;
        let anew = sync != Sync::Continues || position.is_none();
        let read = match (sync, from.map(|(_, offset)| offset)) {
            (Sync::Continues, Some(offset)) => offset,
            (Sync::Continues, None) => return Err("this server's own stream has no beginning".into()),
            (Sync::Whole(offset), _) => {
                replication::pass_data(&mut source, &mut io::sink(), &AtomicBool::new(false)).map_err(text)?;
                offset
            }
        };
        let total = self.shared.gate.catch(&source.get_ref().stream).ok_or("this server has ended its own stream")?;
        let first = replication::rest(&mut source, total).map_err(|e| format!("this server's own stream: {e}"))?;
        self.shared.origin.store(read + first.len() as u64, Ordering::Release);
        source.get_ref().stream.set_nonblocking(true).map_err(text)?;
        let (term, now) = (self.course.term, Instant::now());
        self.confirmed = 0;
        self.gap_since = None;
        self.proposed_at.clear();
        self.may_renew = self.shared.has_lease.load(Ordering::Acquire);
        // Even if it is empty, so that all know where the stream begins. Where commands end in it is known later.
        let mut proposed = read;
        let mut anew = anew;
        for piece in first.chunks(PIECE_MAX).chain(first.is_empty().then_some(&[][..])) {
            let cut = proposed + piece.len() as u64 - read;
            self.proposed_at.push_back((cut == first.len() as u64).then(now_ns));
            self.propose(Proposal::Stream { term, anew, start: proposed, ticket: 0, cut, wall_ms: wall_ms(), bytes: piece })?;
            anew = false;
            proposed += piece.len() as u64;
        }
        let before = first.len() as u64;
        self.state = State::Leading { source, proposed, ticket: 0, before, acked: now, acked_offset: 0, has_begun: false };
        let fd = self.group.as_fd().try_clone_to_owned().map_err(text)?;
        self.shared.to_server.push(ToServer::Lead(fd));
        Ok(())
    }

    fn follow(&mut self) {
        self.stop();
        let Some(leader) = self.course.leader.clone().filter(|_| !self.is_own()) else { return };
        if leader.address == self.address() {
            // The program that took the leader's place does not follow itself, and says that the leader is gone.
            if leader.host != self.host {
                self.waits_because(format!(
                    "{} leads at the address of this server, {}: name another one (address)",
                    leader.host, leader.address
                ));
            }
            return;
        }
        self.is_whole = false;
        let (tell, result) = mpsc::channel();
        let (shared, asked) = (self.shared.clone(), leader.clone());
        let (socket, group) = (self.settings.socket.clone(), self.settings.group.clone());
        std::thread::spawn(move || {
            let _ = tell.send(members(socket.as_deref(), &group).and_then(|members| check_leader(&asked, &members)));
            shared.to_group.bell.ring();
        });
        self.state = State::Checking { leader, result };
    }

    fn get_data(&mut self, leader: Leader) {
        // At a port of its own: a server that still waits for former data begins anew.
        let listener =
            match TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.set_nonblocking(true).map(|()| listener)) {
                Ok(listener) => listener,
                Err(e) => {
                    self.state = State::Nothing { since: Instant::now() };
                    self.waits_because(format!("this server cannot be given data: {e}"));
                    return;
                }
            };
        let Ok(port) = listener.local_addr().map(|address| address.port()) else { return };
        self.shared.to_server.push(ToServer::Follow { port, leader: leader.address.clone() });
        let (tell, result) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, shared) = (is_over.clone(), self.shared.clone());
        let (account, id) = (self.shared.accounts().of_others, self.id.clone());
        std::thread::spawn(move || {
            let comes = || {
                shared.copy.store(copy::COMES, Ordering::Release);
                // What lay on its disk when it was started is not what it has from here on.
                *shared.on_disk.lock().unwrap_or_else(PoisonError::into_inner) = Some(None);
            };
            let given = replication::give_data(&listener, &leader.address, &account, &id, &over, comes);
            let (comes, came) = (copy::COMES, copy::CAME);
            let _ = shared.copy.compare_exchange(comes, came, Ordering::AcqRel, Ordering::Acquire);
            let _ = tell.send(given);
            shared.to_group.bell.ring();
        });
        let feed = Feed::new(self.course.offset, self.settings.dir.clone());
        self.said = None;
        self.state = State::Syncing(Syncing { is_over, result, feed });
    }

    fn stop(&mut self) {
        match std::mem::replace(&mut self.state, State::Nothing { since: Instant::now() }) {
            State::Syncing(syncing) => syncing.is_over.store(true, Ordering::Relaxed),
            State::Following { link, .. } => drop(link.shutdown(Shutdown::Both)),
            State::Leading { .. } => {
                self.may_renew = false;
                self.shared.gate.set_lease(0);
                self.shared.gate.release_source();
                self.shared.to_server.push(ToServer::Be(Role::Waits("this server leads no more".into())));
            }
            State::TakingOver { position, rest, .. } => {
                self.shared.to_server.push(ToServer::Be(Role::Waits("this server does not take over".into())));
                let applied = self.shared.applied.load(Ordering::Acquire);
                self.is_whole = position.is_none_or(|position| applied >= position) && self.is_whole;
                // It goes on to apply what is decided: nobody else may have it.
                if let Some((link, feed)) = rest.filter(|_| !self.is_whole) {
                    self.state = State::Following { link, feed, gap: None };
                }
            }
            State::Nothing { .. } | State::Checking { .. } => {}
        }
    }

    // ---- entries --------------------------------------------------------------------------------------------------------

    fn event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Entry(entry) => {
                self.decided_at = Instant::now();
                let mut course = std::mem::take(&mut self.course);
                let former_term = course.term;
                let former = course.leader.clone();
                let meaning = course.apply(entry.client, entry.member, &entry.bytes);
                self.course = course;
                let is_stream = matches!(meaning, Meaning::Decided { .. } | Meaning::Leads);
                if is_stream {
                    self.streamed_at = Instant::now();
                }
                if matches!(meaning, Meaning::Leads) {
                    self.led_at = Some(Instant::now());
                }
                if matches!(meaning, Meaning::Void) && entry.client == self.group.client() {
                    // If it was a word to lead: another one may follow.
                    self.asked_term = self.asked_term.min(self.course.term);
                }
                match meaning {
                    Meaning::Leads => self.was_led(former),
                    Meaning::Resigned => self.resigned = Some(entry.client),
                    _ => {}
                }
                match meaning {
                    Meaning::Void => {}
                    Meaning::Malformed => self.warn_of_malformed(&entry),
                    Meaning::Leads if self.is_own() => self.leads(former_term),
                    Meaning::Leads => self.has_leader(),
                    Meaning::Resigned if self.is_own() => self.stop(),
                    Meaning::Resigned => {}
                    Meaning::Decided { start, follows, ticket, cut, wall_ms: leader_ms, bytes } => {
                        self.clocks.read(Instant::now(), wall_ms(), leader_ms);
                        self.decided(start, follows, ticket, cut, bytes)?;
                    }
                    // Its process is watched, too.
                    Meaning::Holds { is_new, .. } => self.unmonitored |= is_new,
                    Meaning::Out { client } => self.is_out(client),
                    Meaning::Claims { client } if client == self.group.client() => self.claimed = Some(Instant::now()),
                    Meaning::Claims { .. } | Meaning::Fails => {}
                }
                self.keep_origin();
                let leads = self.is_own();
                self.copies.read(&self.course, entry.index, entry.bytes.len(), is_stream, leads, Instant::now());
                if leads && let Some(dropped) = self.copies.to_drop(&self.course) {
                    self.unkept = Some(dropped);
                }
            }
            Event::Snapshot { bytes, .. } => {
                let Some(course) = Course::of_snapshot(&bytes) else {
                    self.is_lost = true;
                    return Err("the group's entries were dropped, or another application uses it: this server goes on as soon \
                                as a server that leads has written down its state"
                        .into());
                };
                let before = std::mem::replace(&mut self.course, course);
                self.keep_origin();
                self.copies = Copies::new(Instant::now());
                if self.course.lease_max_ms > 0 {
                    // Of whoever has led among the entries that are not there any more.
                    let until = Instant::now() + wait_for_lease(self.course.lease_max_ms);
                    self.leases.push(Lease { client: 0, host: String::new(), until });
                }
                self.resigned = None;
                self.clocks.has_leader();
                if !self.has_missed(&before) {
                    self.follow();
                }
                self.unmonitored = true;
            }
            Event::Members(members) => {
                self.members = members;
            }
            Event::Refused { why, .. } => return Err(why),
            // It sets no deadlines and asks nothing.
            Event::Standing(_) | Event::Overdue { .. } | Event::Fate { .. } => {}
        }
        Ok(())
    }

    /// Whether this server's data are of the stream that goes on: then what is missing is asked for.
    fn has_missed(&mut self, before: &Course) -> bool {
        let was_synced = before.offset.is_some();
        let is_own = self.is_own();
        let (Some(leader), Some(until)) = (self.course.leader.clone(), self.course.offset) else { return false };
        let State::Following { feed, gap, .. } = &mut self.state else { return false };
        let is_same =
            before.breaks == self.course.breaks && was_synced && before.offset >= feed.data() && !is_own && gap.is_none();
        feed.drop_cut();
        let Some(whole) = feed.whole().filter(|whole| is_same && *whole <= until) else { return false };
        let (tell, missed) = mpsc::channel();
        let (shared, account) = (self.shared.clone(), self.shared.accounts().of_others);
        let (socket, group) = (self.settings.socket.clone(), self.settings.group.clone());
        std::thread::spawn(move || {
            let checked = members(socket.as_deref(), &group).and_then(|members| check_leader(&leader, &members));
            let asked = checked.map_err(io::Error::other);
            let _ = tell.send(asked.and_then(|()| replication::missed(&leader.address, &account, whole, until)));
            shared.to_group.bell.ring();
        });
        *gap = Some(Gap { missed, until, cut: self.course.cut, later: Vec::new(), later_bytes: 0 });
        true
    }

    /// Another application proposes to the group, or somebody means harm.
    fn warn_of_malformed(&mut self, entry: &Entry) {
        if !std::mem::replace(&mut self.has_warned, true) {
            self.shared.to_server.push(ToServer::Warn(format!(
                "entry {} of the group {}, of its client {}, is none of a server: it is skipped, and so are others like it",
                entry.index, self.settings.group, entry.client
            )));
        }
    }

    /// Another server leads.
    fn has_leader(&mut self) {
        self.headless = None;
        self.clocks.has_leader();
        self.unmonitored = true;
        self.copies.has_leader();
        if let State::Following { feed, .. } = &mut self.state {
            feed.drop_cut();
        }
        match &self.state {
            // The next leader had all that this server has.
            State::Following { feed, gap: None, .. } if feed.whole() >= feed.data() && self.course.offset == feed.whole() => {
                let address = self.course.leader.as_ref().map(|leader| leader.address.clone()).unwrap_or_default();
                self.shared.to_server.push(ToServer::Be(Role::Follows(address)));
            }
            _ => self.follow(),
        }
    }

    /// This server leads. It has asked for that when it had all that was decided; if that is not so any more, it leads no more at once (`look_for_a_leader`).
    fn leads(&mut self, former_term: u64) {
        self.headless = None;
        self.clocks.has_leader();
        let is_forced = self.forced.take_if(|term| *term == self.course.term).is_some();
        if is_forced {
            // Its data are the group's from now on, whatever it could not execute.
            self.shared.not_executed.store(0, Ordering::Release);
        }
        let is_whole = self.is_in_sync() || self.is_whole || former_term == 0;
        let has_all = match &mut self.state {
            State::Following { feed, .. } => {
                feed.drop_cut();
                feed.whole() == self.course.offset
            }
            _ => true,
        };
        if !has_all && !is_forced {
            // Never, as long as all servers make the same of the same entries: better that another one leads.
            self.is_whole = false;
            let what = "this server has not all that is decided, and does not lead, though it seemed to have it".into();
            self.shared.to_server.push(ToServer::Warn(what));
        }
        if !(is_forced || is_whole && has_all) {
            self.stop();
            return;
        }
        self.unmonitored = true;
        self.copies.has_leader();
        let now = Instant::now();
        let (position, rest) = match std::mem::replace(&mut self.state, State::Nothing { since: now }) {
            State::Following { feed, link, .. } => (feed.whole(), Some((link, feed))),
            other => {
                self.state = other;
                self.stop();
                (None, None)
            }
        };
        self.state = State::TakingOver { position, rest, since: now, applied: 0, is_primary: false };
        self.shared.to_server.push(ToServer::TakeOver(position.unwrap_or(0)));
    }

    fn decided(&mut self, start: u64, follows: bool, ticket: u64, cut: u64, bytes: &[u8]) -> Result<(), String> {
        self.unsaid += bytes.len() + 1;
        let pushed = match &mut self.state {
            State::Leading { has_begun, .. } => {
                if std::mem::replace(has_begun, true) && !follows {
                    // Never, as long as the group decides what this server proposes in its order. No reply rests on that.
                    return Err("a part of this server's stream was not decided, and what follows it was".into());
                }
                self.confirmed = self.confirmed.max(ticket);
                if let Some(Some(proposed_ns)) = self.proposed_at.pop_front().filter(|_| self.may_renew) {
                    self.shared.gate.set_lease(proposed_ns + LEASE.as_nanos() as u64);
                }
                return Ok(());
            }
            State::Following { gap: Some(gap), .. } if follows => gap.wait(start, cut, bytes),
            State::Following { link, feed, .. } if follows => {
                feed.push(start, cut, bytes).and_then(|()| feed.give(link).map(drop))
            }
            State::Syncing(syncing) if follows => syncing.feed.push(start, cut, bytes),
            State::Following { .. } | State::Syncing(_) => Err(io::Error::other("the leader has other data now")),
            _ => return Ok(()),
        };
        if let Err(e) = pushed {
            self.begins_anew(&e);
        }
        Ok(())
    }

    /// This host's server cannot go on with the data that it has, or gets.
    fn begins_anew(&mut self, why: &io::Error) {
        self.shared.to_server.push(ToServer::Warn(format!("this server begins with a copy of all data: {why}")));
        self.follow();
    }

    /// What waits for this host's server, as far as it takes it.
    fn give(&mut self) {
        let given = match &mut self.state {
            State::Following { link, feed, .. } | State::TakingOver { rest: Some((link, feed)), .. } => feed.give(link),
            _ => return,
        };
        if let Err(e) = given
            && matches!(self.state, State::Following { .. })
        {
            self.begins_anew(&e);
        }
    }

    /// A server is off the list: of its own word, or the leader's.
    fn is_out(&mut self, client: u64) {
        if client == self.group.client() {
            self.said = None;
            self.struck_off_in = self.course.term;
        }
    }

    /// Another program led at this address, which ended without a trace (exec).
    fn is_in_the_leaders_place(&self) -> bool {
        let leader = self.course.leader.as_ref().filter(|_| !self.is_own() && !self.course.resigned);
        leader.is_some_and(|leader| leader.address == self.address() && leader.host == self.host)
    }

    /// What keeps this server from following, or from being in sync; empty: nothing.
    fn trouble(&self) -> &str {
        match self.state {
            State::Following { .. } if self.has_not_executed() => NOT_EXECUTED,
            State::Following { .. } => &self.is_off,
            State::Leading { .. } => "",
            _ => &self.distrusts,
        }
    }

    /// Others know why this server gets no data, and when it does.
    fn say_what_fails(&mut self) -> Result<(), String> {
        let why = self.trouble();
        let known = self.course.fails.get(&self.address()).map_or("", String::as_str);
        let why: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WHY_MAX / 4).collect();
        let is_due = self.said_fails.is_none_or(|said| said.elapsed() >= Duration::from_secs(1));
        if why == known || !is_due || self.course.term == 0 || self.group.pending() > 0 || !self.runs() {
            return Ok(());
        }
        self.said_fails = Some(Instant::now());
        let (host, address) = (self.host.clone(), self.address());
        self.propose(Proposal::Fails { term: self.course.term, why: &why, host: &host, address: &address })
    }

    /// This host's agent is in the group.
    fn runs(&self) -> bool {
        self.group.standing().is_some_and(|standing| standing.stage == Stage::Running)
    }

    /// What other servers and the agents have to know of this one while it follows: what it has read, and whether it could lead.
    fn say_what_is_held(&mut self) -> Result<(), String> {
        let applied = self.shared.applied.load(Ordering::Relaxed);
        let (is_synced, whole, data) = match &self.state {
            State::Syncing(syncing) => (false, syncing.feed.whole(), None),
            State::Following { feed, .. } => (self.is_in_sync(), feed.whole(), feed.data()),
            State::Nothing { .. } if self.is_in_the_leaders_place() => (false, None, None),
            _ => return Ok(()),
        };
        if !self.runs() || self.group.pending() > 0 || self.course.term == 0 {
            return Ok(());
        }
        let own = self.course.holders.get(&self.group.client());
        let was_whole = own.is_some_and(|own| own.is_whole);
        let to_apply = whole.unwrap_or(0).saturating_sub(applied);
        let is_synced = is_synced && self.is_off.is_empty();
        let is_whole = is_synced && Some(applied) >= data && to_apply <= if was_whole { TO_APPLY_MAX } else { TO_APPLY_FIRST };
        if was_whole && is_synced && !is_whole {
            // All others wait for it, up to a limit: then the leader takes it off the list.
            return Ok(());
        }
        let is_due =
            self.unsaid > 0 && (self.unsaid >= SAY_AFTER_BYTES || self.said.is_none_or(|said| said.elapsed() >= SAY_AFTER));
        let is_news = own.is_none() || is_whole != was_whole || self.said_term != self.course.term;
        let is_asked = self.said.is_some_and(|said| said.elapsed() < SAY_AFTER) && self.said_term == self.course.term;
        if !(is_due || is_news && !is_asked) {
            return Ok(());
        }
        (self.unsaid, self.said, self.said_term) = (0, Some(Instant::now()), self.course.term);
        let (host, address) = (self.host.clone(), self.address());
        let zone = self.zone();
        let holder = HolderRef { index: self.group.index(), applied, is_whole, zone: &zone, host: &host, address: &address };
        self.propose(Proposal::Holds { term: self.course.term, breaks: self.course.breaks, holder })
    }

    /// While this server leads: others that are gone, or do not go on, are no copies.
    fn take_off_the_list(&mut self) -> Result<(), String> {
        if !matches!(self.state, State::Leading { .. }) || self.members.is_empty() {
            return Ok(());
        }
        let (members, ended) = (&self.members, &self.ended);
        let is_gone = |client: u64, member: u16| ended.contains(&client) || !members.contains(&member);
        let term = self.course.term;
        for client in self.copies.to_take_off(&self.course, is_gone, self.settings.lag_max, Instant::now()) {
            if let Some(holder) = self.course.holders.get(&client) {
                let what = format!("{} ({}) is not in sync: it is gone, or does not go on", holder.host, holder.address);
                self.shared.to_server.push(ToServer::Warn(what));
            }
            self.propose(Proposal::Out { term, client })?;
        }
        Ok(())
    }

    /// This host's server has its data, or could not get them.
    fn synced(&mut self) {
        // One that has ended has nothing to give.
        let lives = |leader: &Leader| !self.ended.contains(&leader.client);
        let has_other_leader = self.course.leader.as_ref().is_some_and(lives) && !self.course.resigned && !self.is_own();
        match &mut self.state {
            State::Checking { leader, result } => match result.try_recv() {
                // Another one leads meanwhile, who is asked about.
                Ok(_) if self.course.leader.as_ref() != Some(leader) => self.follow(),
                Ok(Ok(())) => {
                    let leader = leader.clone();
                    self.get_data(leader);
                }
                Ok(Err(why)) => {
                    self.state = State::Nothing { since: Instant::now() };
                    self.waits_because(why);
                }
                Err(mpsc::TryRecvError::Disconnected) => self.state = State::Nothing { since: Instant::now() },
                Err(mpsc::TryRecvError::Empty) => {}
            },
            State::Syncing(syncing) => match syncing.result.try_recv() {
                Ok(Ok(Followed { stream, offset })) => {
                    let mut feed = std::mem::replace(&mut syncing.feed, Feed::new(None, PathBuf::new()));
                    match feed.has_data(offset).and_then(|()| feed.give(&stream)) {
                        Ok(_) => {
                            self.said = None;
                            self.distrusts.clear();
                            self.state = State::Following { link: stream, feed, gap: None };
                        }
                        Err(e) => self.begins_anew(&e),
                    }
                }
                Ok(Err(e)) => {
                    self.state = State::Nothing { since: Instant::now() };
                    self.waits_because(format!("this server does not get the leader's data: {e}"));
                }
                Err(mpsc::TryRecvError::Disconnected) => self.state = State::Nothing { since: Instant::now() },
                Err(mpsc::TryRecvError::Empty) => {}
            },
            State::Following { link, .. } if has_hung_up(link) => self.follow(),
            State::Following { feed, gap: of @ Some(_), .. } => {
                let Some(missed) = of.as_ref().and_then(|gap| gap.missed.try_recv().ok()) else { return };
                let Some(gap) = of.take() else { return };
                let closed = missed.and_then(|missed| {
                    let start = gap.until - missed.len() as u64;
                    feed.push(start, gap.cut, &missed)?;
                    gap.later.iter().try_for_each(|(start, cut, bytes)| feed.push(*start, *cut, bytes))
                });
                match closed {
                    Ok(()) => self.said = None,
                    Err(e) => self.begins_anew(&e),
                }
            }
            State::Nothing { since } if has_other_leader && since.elapsed() >= AGAIN => self.follow(),
            _ => {}
        }
    }

    // ---- while this server leads ----------------------------------------------------------------------------------------

    /// The server's own stream comes by the gate; its connection only has to stay.
    fn keep_source(&mut self) -> Result<(), String> {
        if matches!(self.state, State::Leading { .. })
            && let Some(at) = self.shared.gate.gap()
        {
            let since = *self.gap_since.get_or_insert_with(Instant::now);
            match self.resume_source(at) {
                Ok(()) => self.gap_since = None,
                // Tried again: clients are killed one after the other, or a script runs.
                Err(_) if since.elapsed() < RESUMES_WITHIN => return Ok(()),
                Err(e) => return Err(format!("this server has ended its own stream, which does not go on: {e}")),
            }
        }
        let State::Leading { source, proposed, acked, acked_offset, .. } = &mut self.state else { return Ok(()) };
        if has_hung_up(&source.get_ref().stream) || self.shared.gate.caught().is_none() {
            return Err("this server has ended its own stream".into());
        }
        let since = acked.elapsed();
        if since >= ACK_MAX || since >= ACK_MIN && *acked_offset != *proposed {
            (*acked, *acked_offset) = (Instant::now(), *proposed);
            let offset = proposed.to_string();
            let ack = format!("*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n${}\r\n{offset}\r\n", offset.len());
            let _ = source.get_mut().write(ack.as_bytes());
        }
        Ok(())
    }

    /// The connection by which the stream comes was closed (`CLIENT KILL`), behind so many bytes of it: it goes on from there.
    fn resume_source(&mut self, at: u64) -> io::Result<()> {
        let State::Leading { source: of_leader, .. } = &mut self.state else { return Ok(()) };
        let (gate, offset) = (&self.shared.gate, self.shared.origin.load(Ordering::Acquire) + at);
        let account = self.shared.accounts().own;
        let id = self.shared.stream_id.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut source = replication::resume(&self.settings.own, &account, (&id, offset), |stream| gate.admit(stream))?;
        let total = gate.catch_again(&source.get_ref().stream).ok_or(io::ErrorKind::ConnectionReset)?;
        gate.fill(&replication::rest(&mut source, total)?);
        // Its main thread ends a turn.
        self.shared.to_server.bell.ring();
        source.get_ref().stream.set_nonblocking(true)?;
        *of_leader = source;
        Ok(())
    }

    fn propose_stream(&mut self) -> Result<(), String> {
        let term = self.course.term;
        let mut piece = std::mem::take(&mut self.piece);
        while self.group.pending() < PENDING_MAX && self.copies.has_room(self.group.pending() * PIECE_MAX) {
            let State::Leading { proposed, ticket, before, .. } = &mut self.state else { break };
            piece.clear();
            let taken = self.shared.gate.take(&mut piece, PIECE_MAX);
            if !taken.is_any {
                break;
            }
            *ticket = taken.ticket.unwrap_or(*ticket);
            let (start, ticket) = (*proposed, *ticket);
            *proposed += piece.len() as u64;
            let cut = match taken.cut {
                Some(cut) => {
                    *before = 0;
                    cut
                }
                None => {
                    *before += piece.len() as u64;
                    *before
                }
            };
            self.proposed_at.push_back(Some(now_ns()));
            self.propose(Proposal::Stream { term, anew: false, start, ticket, cut, wall_ms: wall_ms(), bytes: &piece })?;
        }
        self.piece = piece;
        Ok(())
    }

    // ---- verdicts -------------------------------------------------------------------------------------------------------

    /// The leader's and the others' processes are monitored: their certain end is known at once.
    fn monitor(&mut self) {
        let leader = self.course.leader.iter().map(|leader| (leader.client, leader.host.clone()));
        let holders = self.course.holders.iter().map(|(client, holder)| (*client, holder.host.clone()));
        let own = self.group.client();
        let watched: Vec<(u64, String)> = leader.chain(holders).filter(|(client, _)| *client != own).collect();
        let now = Instant::now();
        self.leases.retain(|lease| lease.until > now);
        self.unobserved.retain(|client| watched.iter().any(|(of, _)| of == client));
        let is_known =
            |client: &u64| watched.iter().any(|(of, _)| of == client) || self.leases.iter().any(|lease| lease.client == *client);
        self.ended.retain(is_known);
        self.told_ended.retain(is_known);
        self.hung.retain(is_known);
        self.instances.retain(|client, _| is_known(client));
        self.seen_ended.retain(|client, _| is_known(client));
        for (client, host) in watched {
            let target = format!("{}@{host}", self.settings.name);
            let Ok(monitored) = self.fide.monitor(&target, Resources::default()) else { continue };
            if monitored.subject.app != 0 {
                self.instances.insert(client, (monitored.subject.node, monitored.subject.app));
            }
            if monitored.state != Some(TargetState::Hung) {
                self.hung.remove(&client);
            }
            match monitored.state {
                Some(TargetState::Unobserved) => _ = self.unobserved.insert(client),
                Some(TargetState::Alive | TargetState::Hung | TargetState::Ended) => _ = self.unobserved.remove(&client),
                // An agent that was just started knows nothing of it yet.
                _ => {}
            }
            if monitored.state != Some(TargetState::Ended) {
                // What ended was another one of that name.
                self.ended.remove(&client);
                self.told_ended.remove(&client);
                self.seen_ended.remove(&client);
            } else if now.duration_since(*self.seen_ended.entry(client).or_insert(now)) >= KNOWN_AFTER {
                self.ended.insert(client);
            }
        }
    }

    /// Ends that were not told are looked at twice.
    fn look_again(&mut self) {
        let is_due = |(client, since): (&u64, &Instant)| since.elapsed() >= KNOWN_AFTER && !self.ended.contains(client);
        if self.seen_ended.iter().any(is_due) {
            self.monitor();
        }
    }

    fn verdict(&mut self, event: &fide_client::Event) {
        use fide_client::Event::{Confirmed, Failure, Host, Hung, Lost, Progressing};
        if let Lost { .. } | Host(_) = event {
            self.monitor(); // it may have been among them, or one of them is not observed any more
        }
        // An end that was inferred may be confirmed later.
        let (Failure(verdict) | Confirmed(verdict) | Hung(verdict) | Progressing(verdict)) = event else { return };
        let Some(name) = &verdict.subject.name else { return };
        let is_it = |host: &str| **name == *format!("{}@{host}", self.settings.name);
        let leader = self.course.leader.iter().filter(|leader| is_it(&leader.host)).map(|leader| leader.client);
        let holders = self.course.holders.iter().filter(|(_, holder)| is_it(&holder.host)).map(|(client, _)| *client);
        let former = self.leases.iter().filter(|lease| is_it(&lease.host)).map(|lease| lease.client);
        let these: Vec<u64> = leader.chain(holders).chain(former).collect();
        match event {
            Hung(_) => self.hung.extend(these),
            Progressing(_) => self.hung.retain(|client| !these.contains(client)),
            // A process that joins again under its name lives.
            _ if verdict.cause == Cause::Replaced => self.unmonitored = true,
            _ if verdict.grade == Grade::Certain => {
                let instance = (verdict.subject.node, verdict.subject.app);
                for client in these {
                    if self.instances.get(&client).is_none_or(|known| *known == instance) {
                        self.ended.insert(client);
                        self.told_ended.insert(client);
                    } else {
                        // Another process of that name, before this one or behind it.
                        self.unmonitored = true;
                    }
                }
            }
            // Its host is silent, or its agent gone.
            Failure(_) => self.unobserved.extend(these),
            _ => {}
        }
    }

    /// Who had all data last, if this server was one of them: for when all servers and agents have
    /// ended. It is written by another thread.
    fn keep_set(&mut self) {
        let is_one = matches!(self.state, State::Leading { .. })
            || self.course.holders.get(&self.group.client()).is_some_and(|own| own.is_whole);
        if !is_one {
            return;
        }
        let (term, set, is_live) = (self.course.term, self.course.set(), self.shared.log_is_live.load(Ordering::Acquire));
        let (kept_term, kept_set, was_live) = &self.kept_set;
        if (*kept_term, kept_set, *was_live) == (term, &set, is_live) {
            return;
        }
        self.kept_set = (term, set.clone(), is_live);
        let extent = if is_live { Extent::Log } else { Extent::Unknown };
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let offset = self.course.offset.unwrap_or(0);
        let _ = self.shared.lineages.send(Former { generation, term, extent, offset, set });
    }

    fn show(&self) {
        let now = Instant::now();
        let mut seen = self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.term = self.course.term;
        seen.index = self.group.index();
        seen.members = self.members.len() as u64;
        seen.pending = self.group.pending() as u64;
        seen.in_sync = self.is_in_sync() && self.runs() && self.is_off.is_empty();
        (seen.copies, seen.zones) = (self.course.in_sync(), self.course.zones());
        let leads = matches!(self.state, State::Leading { .. });
        let trouble = self.trouble();
        if seen.trouble != trouble {
            trouble.clone_into(&mut seen.trouble);
        }
        seen.runs = self.runs();
        // One that is not heard may live, and answer its clients.
        seen.leader_lives = self.course.leader.as_ref().is_some_and(|leader| {
            let is_gone = self.ended.contains(&leader.client);
            !self.course.resigned && !is_gone && self.members.contains(&leader.member)
        });
        let offset = self.course.offset.unwrap_or(0);
        seen.zone = self.course.leader.as_ref().map_or_else(String::new, |leader| leader.zone.clone());
        let lag_ms = |client| leads.then(|| self.copies.lag(client, now).as_millis() as u64);
        let of = |client: &u64, holder: &Holder| Server {
            address: holder.address.clone(),
            zone: holder.zone.clone(),
            is_in_sync: holder.is_whole,
            lag_bytes: offset.saturating_sub(holder.applied),
            lag_ms: lag_ms(*client),
            trouble: self.course.fails.get(&holder.address).cloned().unwrap_or_default(),
        };
        let failing =
            |(address, why): (&String, &String)| Server { address: address.clone(), trouble: why.clone(), ..Server::default() };
        let is_listed = |address: &String| self.course.holders.values().any(|holder| holder.address == *address);
        let holders = self.course.holders.iter().map(|(client, holder)| of(client, holder));
        let fails = self.course.fails.iter().filter(|(address, _)| !is_listed(address)).map(failing);
        let claims = self.course.claimants().map(|address| Server { address: address.clone(), ..Server::default() });
        seen.servers = holders.chain(fails).chain(claims).collect();
        self.shared.copies.store(seen.copies, Ordering::Relaxed);
        self.shared.zones.store(seen.zones, Ordering::Relaxed);
        if seen.own.is_empty() {
            seen.own = self.address();
        }
        let leader = self.course.leader.as_ref().map_or("", |leader| leader.address.as_str());
        if seen.leader != leader {
            leader.clone_into(&mut seen.leader);
        }
    }
}

/// This host's clock, ms since 1970.
fn wall_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A lease that began before this is over by then, also where one host's clock is slower than another's.
fn wait_for_lease(lease_ms: u32) -> Duration {
    Duration::from_millis(u64::from(lease_ms) * 5 / 4)
}

/// The group's members, as the agent knows them.
fn members(socket: Option<&Path>, group: &str) -> Result<Vec<GroupMember>, String> {
    status(socket, group).map(|group| group.members)
}

/// Whether a server may follow this one: before it connects there, and shows its password. What the
/// agent does not know holds nobody up.
fn check_leader(leader: &Leader, members: &[GroupMember]) -> Result<(), String> {
    let Leader { member, host, address, .. } = leader;
    let of_host = members.iter().find(|of| of.id == *member);
    if let Some(other) = of_host.filter(|of| of.host != *host) {
        return Err(format!("{address} is said to lead on {host}, and {} said so: it is not followed", other.host));
    }
    let resolved = std::net::ToSocketAddrs::to_socket_addrs(address.as_str()).map_err(|e| format!("{address}: {e}"))?;
    for ip in resolved.map(|at| at.ip()) {
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(format!("{address}, where the server of {host} is said to lead, is no server's: it is not followed"));
        }
        let is_at = |of: &&GroupMember| of.addresses.contains(&ip);
        let owners = || members.iter().filter(is_at);
        if let Some(other) = owners().next()
            && !owners().any(|of| of.host == *host)
        {
            return Err(format!(
                "{address}, where the server of {host} is said to lead, is {}'s: it is not followed",
                other.host
            ));
        }
    }
    Ok(())
}

/// What a server says to its primary matters to nobody here, until it hangs up.
fn has_hung_up(link: &TcpStream) -> bool {
    let mut bytes = [0u8; 4096];
    // SAFETY: room for as many bytes as said.
    let got = unsafe { libc::recv(link.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
    got == 0 || got < 0 && io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_followed_at_an_address_of_the_host_that_said_so() {
        let member = |id, host: &str, addresses: &[&str]| GroupMember {
            id,
            host: host.into(),
            incarnation: 1,
            crashed: false,
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        };
        let members = [member(1, "h1", &["10.0.0.1", "10.1.0.1"]), member(2, "h2", &["10.0.0.2"]), member(3, "h3", &[])];
        let check = |member, host: &str, address: &str| {
            check_leader(
                &Leader { client: 7, member, lease_ms: 0, zone: String::new(), host: host.into(), address: address.into() },
                &members,
            )
        };
        assert_eq!(check(1, "h1", "10.1.0.1:6379"), Ok(()));
        assert_eq!(check(1, "h1", "192.0.2.1:6379"), Ok(()), "on a network of which agents know nothing");
        assert_eq!(check(9, "h9", "192.0.2.1:6379"), Ok(()), "of a host that agents know no more");
        let refused = |member, host, address, says: &str| {
            let why = check(member, host, address).unwrap_err();
            assert!(why.contains(says), "{why}");
        };
        refused(2, "h1", "10.0.0.1:6379", "and h2 said so");
        refused(2, "h2", "10.0.0.1:6379", "is h1's");
        refused(3, "h3", "10.0.0.2:6379", "is h2's");
        refused(1, "h1", "0.0.0.0:6379", "no server's");
        refused(1, "h1", "[ff02::1]:6379", "no server's");
    }
}
