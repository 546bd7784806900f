//! The calls and upcalls of FiDe's Listing 1.

use crate::beats::Side;
use crate::bridge::Bridge;
use crate::callbacks::Callbacks;
use crate::connection::{ANSWER_TIMEOUT, Agent, Connection, Response};
use crate::error::{Error, system};
use crate::event::{self, Event, Instances, Names, Subject};
use crate::progress::{Counters, Progress};
use crate::ring::{Found, Ring};
use crate::sys::{self, Poller};
use fide_wire::control::{BECAME_MAX, HistoryEvent, MaintenanceOrder, MaintenanceStatus, Reply, Request, Status, TargetState};
use fide_wire::maintenance::covers;
use fide_wire::verdict::{Cause, VerdictId};
use fide_wire::{PIGGYBACK_MAX, name_id, names};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// After how many empty looks [`Client::try_next`] asks once whether the agent is still there.
const LOOKS_PER_CHECK: u32 = 1 << 14;

/// Most events handled by one [`Client::dispatch`], so that it returns however fast they come.
const DISPATCH_MAX: usize = 1024;

/// Listing 1 `struct resources`: what is asked for, or was granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Piggyback size, bytes.
    pub pbsize: u32,
    /// Timeout for the silence of its host; zero asks for whatever the contract gives.
    pub timeout: Duration,
}

/// What [`Client::monitor`] was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitored {
    /// The node; the process's number there is 0 when the target is a host, is `*`, or is not running now.
    pub subject: Subject,
    /// The resources granted.
    pub granted: Resources,
    /// Whether it is known and alive now. If not, no failure will be reported until it has come and gone again.
    pub alive: bool,
    /// What is known of it; `None` of agents that do not say.
    pub state: Option<TargetState>,
    /// How the last process of that name ended, if it did: cause, and exit status or signal.
    pub end: Option<(Cause, i32)>,
}

/// What [`Client::reconnect`] restored.
#[derive(Debug, Default)]
pub struct Resumed {
    /// For a process that had joined: its number and the piggyback size granted now, or why it could not join again.
    pub joined: Option<Result<(u32, u32), Error>>,
    /// For each target of [`Client::monitor`], what the agent says now.
    pub targets: Vec<(String, Result<Monitored, Error>)>,
}

/// How a [`Client`] is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agent's socket; `None`: as [`Connection::open`] chooses.
    pub path: Option<PathBuf>,
    /// Take events through a socket from the agent although the kernel could write them straight into memory.
    pub socket_only: bool,
    /// Longest wait for each answer of the agent.
    pub answer_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { path: None, socket_only: false, answer_timeout: ANSWER_TIMEOUT }
    }
}

/// An application's link to the failure detector.
///
/// Share it by reference or `Arc`: every call may come from any thread.
///
/// | call | blocks | system calls |
/// |---|---|---|
/// | [`open`](Client::open), [`monitor`](Client::monitor), [`unmonitor`](Client::unmonitor), [`join`](Client::join), [`quit`](Client::quit), [`status`](Client::status), [`explain`](Client::explain), [`reconnect`](Client::reconnect) | on the agent, and on each other | yes |
/// | [`check`](Client::check), [`send_heartbeat`](Client::send_heartbeat) | on the agent and as long as you say; not on the others | yes |
/// | [`extend`](Client::extend), [`begin_anew`](Client::begin_anew) | on the agent; not on the others | yes |
/// | [`poll`](Client::poll), [`dispatch`](Client::dispatch) | until an event comes or the timeout passes | yes, where there is no event yet |
/// | [`try_next`](Client::try_next) | never | none on a ring in memory; one on a socket |
/// | [`piggyback`](Client::piggyback) | never | none |
///
/// `try_next`, `poll` and `piggyback` exclude each other's critical sections by short locks (the copying of one event or one
/// message); they never wait for a thread that is waiting for the agent. Each event goes to one caller.
///
/// After a fork only one of the two processes may go on using it.
#[derive(Debug)]
pub struct Client {
    options: Options,
    control: Mutex<Control>,
    events: Mutex<Events>,
    names: Mutex<Names>,
    bridge: Mutex<Option<Bridge>>,
    counters: Arc<Counters>,
    /// Piggyback bytes granted now.
    pbsize: AtomicUsize,
    /// [`Event::AgentGone`] was told.
    gone: AtomicBool,
    /// Looks of [`Client::try_next`] that found nothing.
    empty_looks: AtomicU32,
    poller: Poller,
    agent: Agent,
    pub(crate) side: Side,
}

/// The asking side.
#[derive(Debug)]
struct Control {
    connection: Arc<Connection>,
    monitored: BTreeMap<String, Resources>,
    /// Name, piggyback size wanted, and number.
    joined: Option<(String, u32, u32)>,
    /// Ports whose connections end with this process.
    end_connections: Vec<u16>,
}

/// The listening side.
#[derive(Debug)]
struct Events {
    ring: Ring,
    /// The connection the ring belongs to; only its descriptor matters here.
    link: Arc<Connection>,
    entry: Vec<u8>,
    instances: Instances,
    /// Counts connections; marks what the poller says with the one it is about.
    generation: u64,
    /// The agent hung up.
    hung_up: bool,
    /// The ring turned out to be damaged.
    damaged: Option<&'static str>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here is left half done by a panic: each critical section ends with plain stores.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Marks for the poller: which connection, and which of its two descriptors.
const fn ring_mark(generation: u64) -> u64 {
    generation << 1
}
const fn link_mark(generation: u64) -> u64 {
    generation << 1 | 1
}

/// The only descriptor of a reply.
fn one_fd(fds: Vec<OwnedFd>, connection: &Connection, what: &str) -> Result<OwnedFd, Error> {
    <[OwnedFd; 1]>::try_from(fds).map(|[fd]| fd).map_err(|fds| {
        connection.close();
        Error::Protocol(format!("{what} with {} descriptors instead of one", fds.len()))
    })
}

/// Connects and subscribes, and puts both descriptors into the poller.
fn link(options: &Options, poller: &Poller, generation: u64) -> Result<(Arc<Connection>, Ring), Error> {
    let attempt = |socket_only| {
        let connection = Connection::open_with_timeout(options.path.as_deref(), options.answer_timeout)?;
        let Response { reply, fds } = connection.request(&Request::Subscribe { socket_only })?;
        let Reply::Ring { kind, size } = reply else { return Err(connection.unexpected("ring", &reply)) };
        let ring = Ring::new(kind, one_fd(fds, &connection, "a ring")?, size)?;
        poller.add(ring.as_fd(), ring_mark(generation), false).map_err(system("epoll_ctl"))?;
        if let Err(e) = poller.add(connection.as_fd(), link_mark(generation), true) {
            poller.remove(ring.as_fd());
            return Err(system("epoll_ctl")(e));
        }
        Ok((Arc::new(connection), ring))
    };
    match attempt(options.socket_only) {
        // A ring that this process may not map or wait on (a sandbox, an odd kernel): the agent can write to a socket.
        Err(Error::System { .. }) if !options.socket_only => attempt(true),
        done => done,
    }
}

impl Client {
    /// Connects to the agent of this host (`path`, else FIDE_SOCKET, else the default) and gets an event ring. Blocks.
    ///
    /// # Errors
    /// Those of [`Connection::open`], and of mapping the ring.
    pub fn open(path: Option<&Path>) -> Result<Self, Error> {
        Self::open_with(Options { path: path.map(Path::to_owned), ..Options::default() })
    }

    /// [`Client::open`] with everything that can be chosen. Blocks.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub fn open_with(options: Options) -> Result<Self, Error> {
        let poller = Poller::new().map_err(system("epoll_create"))?;
        let (connection, ring) = link(&options, &poller, 0)?;
        let agent = connection.agent().clone();
        let mut names = Names::default();
        names.learn_node(agent.node_id, &agent.node);
        Ok(Self {
            options,
            control: Mutex::new(Control {
                connection: connection.clone(),
                monitored: BTreeMap::new(),
                joined: None,
                end_connections: Vec::new(),
            }),
            events: Mutex::new(Events {
                ring,
                link: connection,
                entry: Vec::new(),
                instances: Instances::default(),
                generation: 0,
                hung_up: false,
                damaged: None,
            }),
            names: Mutex::new(names),
            bridge: Mutex::new(None),
            counters: Arc::new(Counters::new()?),
            pbsize: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            empty_looks: AtomicU32::new(0),
            poller,
            agent,
            side: Side::default(),
        })
    }

    /// How it was opened.
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The agent's greeting when this client was opened.
    #[must_use]
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Listing 1 `monitor`: from now on, events of this process (`name@host`), of a host and all its processes (`@host`)
    /// or of everything (`*`). Blocks on the agent.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what no process or host can be named; [`Error::Refused`] with `NotFound`, `Permission`, `Full` or `TooLarge`;
    /// the errors of [`Connection::request`].
    pub fn monitor(&self, target: &str, wanted: Resources) -> Result<Monitored, Error> {
        names::Target::parse(target).map_err(Error::Invalid)?;
        let mut control = lock(&self.control);
        let monitored = self.ask_to_monitor(&control.connection, target, wanted)?;
        control.monitored.insert(target.to_owned(), wanted);
        Ok(monitored)
    }

    fn ask_to_monitor(&self, connection: &Connection, target: &str, wanted: Resources) -> Result<Monitored, Error> {
        let host = target.rsplit_once('@').map(|(_, host)| host);
        if let Some(host) = host {
            // Before the answer, because an event may be quicker.
            lock(&self.names).learn_node(name_id(host), host);
        }
        let timeout_ns = u64::try_from(wanted.timeout.as_nanos()).unwrap_or(u64::MAX);
        let request = Request::Monitor { target: target.to_owned(), pbsize: wanted.pbsize, timeout_ns };
        match connection.request(&request)?.reply {
            Reply::Monitored { node, app, pbsize, timeout_ns, alive, state, end } => {
                self.ask_what_became(connection, target)?;
                if app != 0 {
                    lock(&self.names).learn_app(node, app, None, target);
                    if alive {
                        lock(&self.events).instances.runs(node, app);
                    }
                }
                Ok(Monitored {
                    subject: Subject { node, app, incarnation: 0, name: Some(target.into()) },
                    granted: Resources { pbsize, timeout: Duration::from_nanos(timeout_ns) },
                    alive,
                    state,
                    end,
                })
            }
            other => Err(connection.unexpected("monitored", &other)),
        }
    }

    /// Whoever was held for running, or was inferred to have ended, and has ended is told through the ring: for what ended while this process was not connected, or whose
    /// event was lost.
    fn ask_what_became(&self, connection: &Connection, target: &str) -> Result<(), Error> {
        let unsettled = lock(&self.events).instances.unsettled();
        if unsettled.is_empty() {
            return Ok(());
        }
        let is_meant = |(node, app): &(u32, u32)| match target.rsplit_once('@') {
            None => true,
            Some(("", host)) => *node == name_id(host),
            Some(_) => lock(&self.names).target(*node, *app).is_some_and(|name| *name == *target),
        };
        let instances: Vec<(u32, u32)> = unsettled.into_iter().filter(is_meant).collect();
        for some in instances.chunks(BECAME_MAX) {
            match connection.request(&Request::Became { instances: some.to_vec() }) {
                // An agent of an older version does not know the request.
                Ok(_) | Err(Error::Refused(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Listing 1 `unmonitor`, with the same target as in [`Client::monitor`]. Events already on the ring still come.
    /// Blocks on the agent.
    ///
    /// # Errors
    /// [`Error::Refused`] with `NotFound` when it was not monitored; the errors of [`Connection::request`].
    pub fn unmonitor(&self, target: &str) -> Result<(), Error> {
        let mut control = lock(&self.control);
        control.monitored.remove(target);
        self.done(&control.connection, &Request::Unmonitor { target: target.to_owned() })
    }

    /// Listing 1 `join`: this process wants to be monitored under `name`, unique on this host, and to piggyback `pbsize`
    /// bytes at a time. Returns its number and the size granted. Blocks on the agent.
    ///
    /// A process that had joined, by a client that is no more or by another one, is a new instance from here on: the former one
    /// is reported as *replaced*, as it is when such a process begins another program (`exec`). [`Client::reconnect`] goes on.
    ///
    /// From here on its end without [`Client::quit`] is a crash to those who monitor it, also when only the connection
    /// was dropped: closing a connection is not taken for leaving.
    ///
    /// # Errors
    /// [`Error::Refused`] with `Exists` when somebody else's watch holds that name, `NotFound` in a child that inherited the connection of its parent,
    /// `Permission` or `Full`; the errors of [`Connection::request`].
    pub fn join(&self, name: &str, pbsize: u32) -> Result<(u32, u32), Error> {
        if name.is_empty() {
            return Err(Error::Invalid("a process needs a name to be monitored by".into()));
        }
        let mut control = lock(&self.control);
        let joined = self.ask_to_join(&control.connection, name, pbsize, None)?;
        control.joined = Some((name.to_owned(), pbsize, joined.0));
        Ok(joined)
    }

    /// `resumes`: the number by which this client had joined.
    fn ask_to_join(&self, connection: &Connection, name: &str, pbsize: u32, resumes: Option<u32>) -> Result<(u32, u32), Error> {
        let Response { reply, fds } = connection.request(&Request::Join { name: name.to_owned(), pbsize, resumes })?;
        let Reply::Joined { app, pbsize, bridge_len } = reply else { return Err(connection.unexpected("joined", &reply)) };
        let fd = one_fd(fds, connection, "a bridge")?;
        let bridge = Bridge::map(fd.as_fd(), bridge_len).inspect_err(|_| connection.close())?;
        self.counters.attach(fd.as_fd()).inspect_err(|_| connection.close())?;
        let pbsize = pbsize.min(PIGGYBACK_MAX as u32);
        *lock(&self.bridge) = Some(bridge);
        self.pbsize.store(pbsize as usize, Ordering::Release);
        lock(&self.names).learn_app(connection.agent().node_id, app, None, &format!("{name}@{}", connection.agent().node));
        for (counter, limit) in self.counters.limits() {
            self.ask_for_progress(connection, counter, Some(limit))?;
        }
        Ok((app, pbsize))
    }

    /// When this process, which has joined, is killed or crashes, its TCP connections of these
    /// local ports are ended at once, those that are not accepted yet and the listening sockets
    /// too: its clients are reset, and can go where the service goes on, without waiting until the
    /// kernel has taken the process and its memory down. What it wrote and they have not
    /// acknowledged is dropped then. None: no more. It stays through [`Client::reconnect`]. Blocks
    /// on the agent.
    ///
    /// # Errors
    /// [`Error::Invalid`] before [`Client::join`]; [`Error::Refused`] with `Invalid` for port 0 and
    /// for more than 16, with `System` where the agent cannot see this process's sockets; the
    /// errors of [`Connection::request`].
    pub fn end_connections(&self, ports: &[u16]) -> Result<(), Error> {
        let mut control = lock(&self.control);
        let Some((name, ..)) = control.joined.clone() else {
            return Err(Error::Invalid("join first: connections end with a process that is watched".into()));
        };
        self.done(&control.connection, &Request::EndConnections { name, ports: ports.to_vec() })?;
        control.end_connections = ports.to_vec();
        Ok(())
    }

    /// This process, which has joined, will show progress on a counter of its own: while busy it must move within `limit`, or the process is
    /// *hung* to all who monitor it ([`Event::Hung`]), until it moves again. Told between `limit` and `limit` + ⅛ after the last movement. It stays
    /// through [`Client::reconnect`]. Blocks on the agent; what [`Progress`] itself does, does not.
    ///
    /// # Errors
    /// [`Error::Full`] when all 16 counters are in use; [`Error::Refused`] with `Invalid` before [`Client::join`] and for a limit below 10 ms or
    /// above a day; the errors of [`Connection::request`].
    pub fn progress(&self, limit: Duration) -> Result<Progress, Error> {
        let control = lock(&self.control);
        let progress = Progress::new(self.counters.clone(), self.counters.take()?);
        self.set_limit(&control.connection, &progress, Some(limit))?;
        Ok(progress)
    }

    /// Changes the limit of a counter; what was counted begins anew. Blocks on the agent.
    ///
    /// # Errors
    /// As [`Client::progress`]; [`Error::Invalid`] for a counter of another client.
    pub fn set_progress_limit(&self, progress: &Progress, limit: Duration) -> Result<(), Error> {
        let control = lock(&self.control);
        self.set_limit(&control.connection, progress, Some(limit))
    }

    /// The counter is no longer looked at. If the process was hung by it, it no longer is. (Dropping a counter has nearly the same effect, without
    /// waiting: it is idle for good.) Blocks on the agent.
    ///
    /// # Errors
    /// As [`Client::set_progress_limit`].
    pub fn end_progress(&self, progress: Progress) -> Result<(), Error> {
        let control = lock(&self.control);
        self.set_limit(&control.connection, &progress, None)
    }

    fn set_limit(&self, connection: &Connection, progress: &Progress, limit: Option<Duration>) -> Result<(), Error> {
        if !progress.belongs_to(&self.counters) {
            return Err(Error::Invalid("this progress counter is another client's".into()));
        }
        self.ask_for_progress(connection, progress.number(), limit)?;
        self.counters.set_limit(progress.number(), limit);
        Ok(())
    }

    fn ask_for_progress(&self, connection: &Connection, counter: u8, limit: Option<Duration>) -> Result<(), Error> {
        // Zero means "no longer" to the agent.
        let limit_ns = limit.map_or(0, |l| u64::try_from(l.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.done(connection, &Request::Progress { counter: counter.into(), limit_ns })
    }

    /// Tells what this application's own detector found of a process of this host that is watched as `name`: that it is hung, or is not (any
    /// more). All hosts hear it as they would hear a finding of the agent. It holds until it is withdrawn or the process ends. `reason`, one line,
    /// goes into this host's history. Blocks on the agent.
    ///
    /// # Errors
    /// [`Error::Refused`] with `NotFound`, with `Permission` unless it is this process, one of the same user, or the user may report others'
    /// processes, with `Invalid` for a long reason; the errors of [`Connection::request`].
    pub fn report(&self, name: &str, hung: bool, reason: &str) -> Result<(), Error> {
        let control = lock(&self.control);
        self.done(&control.connection, &Request::Report { name: name.to_owned(), hung, reason: reason.to_owned() })
    }

    /// Listing 1 `quit`: this process leaves politely; what follows is not a crash. Blocks on the agent.
    ///
    /// # Errors
    /// [`Error::Refused`] when it had not joined; the errors of [`Connection::request`].
    pub fn quit(&self) -> Result<(), Error> {
        let mut control = lock(&self.control);
        self.done(&control.connection, &Request::Quit)?;
        control.joined = None;
        control.end_connections.clear();
        *lock(&self.bridge) = None;
        for (counter, _) in self.counters.limits() {
            self.counters.set_limit(counter, None);
        }
        self.pbsize.store(0, Ordering::Release);
        Ok(())
    }

    /// Listing 1 `piggyback`: `message` rides on this host's next free heartbeat to all who monitor this process. Copies
    /// it into memory shared with the agent; no system call, never waits.
    ///
    /// # Errors
    /// [`Error::TooLarge`] above the size granted (FiDe §3.1: larger messages would break what the network was promised);
    /// [`Error::Full`] when earlier ones still wait for their heartbeats; [`Error::Invalid`] before [`Client::join`] and for an
    /// empty message; [`Error::Disconnected`] once [`Event::AgentGone`] was told (before that, messages to a dead agent
    /// are accepted until the bridge is full, as for a host that dies with messages still to be sent).
    pub fn piggyback(&self, message: &[u8]) -> Result<(), Error> {
        if self.gone.load(Ordering::Acquire) {
            return Err(Error::Disconnected);
        }
        let mut bridge = lock(&self.bridge);
        let Some(bridge) = bridge.as_mut() else {
            return Err(Error::Invalid("piggyback needs join first".into()));
        };
        let limit = self.pbsize.load(Ordering::Acquire);
        if message.len() > limit {
            return Err(Error::TooLarge { size: message.len(), limit });
        }
        if message.is_empty() {
            return Err(Error::Invalid("an empty message would not be noticed".into()));
        }
        bridge.push(message)
    }

    /// The piggyback size granted now, bytes; 0 before [`Client::join`].
    #[must_use]
    pub fn pbsize(&self) -> usize {
        self.pbsize.load(Ordering::Acquire)
    }

    /// Everything the agent knows now. Blocks on the agent.
    ///
    /// # Errors
    /// The errors of [`Connection::request`].
    pub fn status(&self) -> Result<Status, Error> {
        let control = lock(&self.control);
        match control.connection.request(&Request::Status)?.reply {
            Reply::Status(status) => Ok(*status),
            other => Err(control.connection.unexpected("status", &other)),
        }
    }

    /// One verdict with all it rests on. Blocks on the agent.
    ///
    /// # Errors
    /// [`Error::Refused`] with `NotFound`, or with `Ambiguous` when several incarnations of a node used this id; the errors of
    /// [`Connection::request`].
    pub fn explain(&self, id: VerdictId) -> Result<HistoryEvent, Error> {
        let control = lock(&self.control);
        match control.connection.request(&Request::Explain { id, incarnation: None })?.reply {
            Reply::Explained(event) => Ok(*event),
            other => Err(control.connection.unexpected("explained", &other)),
        }
    }

    /// What is in maintenance now. Blocks on the agent.
    ///
    /// # Errors
    /// Those of [`Connection::request`].
    pub fn maintenances(&self) -> Result<Vec<MaintenanceStatus>, Error> {
        let control = lock(&self.control);
        match control.connection.request(&Request::Maintenance { order: MaintenanceOrder::Status })?.reply {
            Reply::Maintenance { maintenances } => Ok(maintenances),
            other => Err(control.connection.unexpected("maintenances", &other)),
        }
    }

    /// The maintenance that a process ("name@host") or a host ("@host") is in now; of several, the one that lasts longest. Blocks on the agent.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what names neither, and those of [`Connection::request`].
    pub fn maintenance(&self, target: &str) -> Result<Option<MaintenanceStatus>, Error> {
        let named = target.split_once('@').filter(|(_, host)| !host.is_empty());
        let Some((name, host)) = named.filter(|_| fide_wire::maintenance::check_target(target).is_ok()) else {
            return Err(Error::Invalid(format!("{target:?} names neither a process (NAME@HOST) nor a host (@HOST)")));
        };
        let covering = self.maintenances()?.into_iter().filter(|m| covers(&m.target, (!name.is_empty()).then_some(name), host));
        Ok(covering.max_by_key(|m| m.left_ns))
    }

    fn done(&self, connection: &Connection, request: &Request) -> Result<(), Error> {
        match connection.request(request)?.reply {
            Reply::Done => Ok(()),
            other => Err(connection.unexpected("done", &other)),
        }
    }

    /// The next event, waiting for it at most `timeout` (`None`: for ever, zero: not at all). `Ok(None)` when none came.
    ///
    /// With [`Client::as_fd`] in an event loop: when it is readable, call `poll(Some(Duration::ZERO))` until it returns `None`.
    ///
    /// # Errors
    /// [`Error::Disconnected`] after [`Event::AgentGone`]; [`Error::Ring`], [`Error::System`].
    pub fn poll(&self, timeout: Option<Duration>) -> Result<Option<Event>, Error> {
        if let Some(event) = self.take()? {
            return Ok(Some(event));
        }
        let deadline = sys::deadline(timeout);
        loop {
            if !self.wait(deadline)? {
                return Ok(None);
            }
            if let Some(event) = self.take()? {
                return Ok(Some(event));
            }
            // Ready but empty: another thread was quicker, or the kernel is about to finish an entry. With zero to wait
            // for it, that is for the next call.
            if timeout.is_some_and(|t| t.is_zero()) {
                return Ok(None);
            }
        }
    }

    /// The next event if there is one now: for those who spin. No system call on a ring in memory, except that one look
    /// in 16384 that find nothing also asks whether the agent is still there.
    ///
    /// # Errors
    /// As [`Client::poll`].
    pub fn try_next(&self) -> Result<Option<Event>, Error> {
        if let Some(event) = self.take()? {
            return Ok(Some(event));
        }
        let looks = self.empty_looks.fetch_add(1, Ordering::Relaxed);
        if looks % LOOKS_PER_CHECK == LOOKS_PER_CHECK - 1 && self.wait(sys::deadline(Some(Duration::ZERO)))? {
            self.take()
        } else {
            Ok(None)
        }
    }

    /// Waits until something is ready and takes note of a hang-up; `false` when the deadline passes first.
    fn wait(&self, deadline: Option<std::time::Instant>) -> Result<bool, Error> {
        let mut any = false;
        for mark in self.poller.wait(deadline).map_err(system("epoll_wait"))? {
            any = true;
            let mut events = lock(&self.events);
            if mark == link_mark(events.generation) {
                events.hung_up = true;
            }
        }
        Ok(any)
    }

    /// What is on the ring now; after its end, that the agent is gone, once.
    fn take(&self) -> Result<Option<Event>, Error> {
        let mut guard = lock(&self.events);
        let events = &mut *guard;
        if self.gone.load(Ordering::Acquire) {
            return Err(Error::Disconnected);
        }
        if let Some(damage) = events.damaged {
            return Err(Error::Ring(damage));
        }
        loop {
            match events.ring.next(&mut events.entry) {
                Ok(Found::Entry) => {
                    let event = event::read(&events.entry, &mut events.instances, &mut lock(&self.names));
                    if let Some(Event::PiggybackSizeChanged { pbsize }) = event {
                        self.pbsize.store((pbsize as usize).min(PIGGYBACK_MAX), Ordering::Release);
                    }
                    if event.is_some() {
                        return Ok(event);
                    }
                }
                Ok(Found::Nothing) if !events.hung_up => return Ok(None),
                Ok(Found::Nothing | Found::End) => {
                    // What the agent, or the kernel, wrote before has been read by now.
                    self.poller.remove(events.ring.as_fd());
                    self.poller.remove(events.link.as_fd());
                    self.gone.store(true, Ordering::Release);
                    return Ok(Some(Event::AgentGone));
                }
                Err(e) => {
                    if let Error::Ring(damage) = e {
                        events.damaged = Some(damage);
                        self.poller.remove(events.ring.as_fd());
                    }
                    return Err(e);
                }
            }
        }
    }

    /// Calls `callbacks` for what comes: waits at most `timeout` for a first event (as [`Client::poll`]), then goes on while
    /// there are more, up to 1024. Returns how many there were. No lock is held meanwhile: callbacks may call this client.
    ///
    /// # Errors
    /// As [`Client::poll`]; events that were already handled stay handled.
    pub fn dispatch<C: Callbacks + ?Sized>(&self, callbacks: &mut C, timeout: Option<Duration>) -> Result<usize, Error> {
        let mut count = 0;
        let mut next = self.poll(timeout)?;
        while let Some(event) = next {
            callbacks.on_event(&event);
            count += 1;
            // After the last word of an agent there is nothing to be asked.
            next = if matches!(event, Event::AgentGone) || count == DISPATCH_MAX { None } else { self.take()? };
        }
        Ok(count)
    }

    /// Connects anew after [`Event::AgentGone`] (or at any time), joins again if this process had joined, and monitors
    /// again what was monitored. [`Client::as_fd`] stays the same descriptor. Blocks on the agent.
    ///
    /// What ended of it while there was no connection is told as [`Event::Failure`] now, once; one that came back meanwhile has another number. What is
    /// refused now is no longer monitored. A refused join is not tried again by the next call either; it leaves the
    /// piggyback bridge of before, which an agent that lives still reads.
    ///
    /// # Errors
    /// Those of [`Client::open`], and those that end the new connection. It may be tried again: what was monitored is
    /// remembered. Events of the old connection that were not read are given up when the new one stands, not before.
    pub fn reconnect(&self) -> Result<Resumed, Error> {
        let mut control = lock(&self.control);
        let generation = lock(&self.events).generation + 1;
        let (connection, ring) = link(&self.options, &self.poller, generation)?;
        {
            let mut events = lock(&self.events);
            self.poller.remove(events.ring.as_fd());
            self.poller.remove(events.link.as_fd());
            // The agent may still be there; to it, this was another connection.
            control.connection.close();
            control.connection = connection.clone();
            events.link = connection;
            events.ring = ring;
            events.generation = generation;
            events.hung_up = false;
            events.damaged = None;
            self.gone.store(false, Ordering::Release);
        }
        let mut resumed = Resumed::default();
        let lasting = |error: &Error| matches!(error, Error::Refused(_));
        if let Some((name, pbsize, app)) = control.joined.clone() {
            let answer = self.ask_to_join(&control.connection, &name, pbsize, Some(app));
            match answer {
                Err(e) if !lasting(&e) => return Err(e),
                Err(e) => {
                    control.joined = None;
                    resumed.joined = Some(Err(e));
                }
                Ok(joined) => {
                    control.joined = Some((name.clone(), pbsize, joined.0));
                    resumed.joined = Some(Ok(joined));
                    if !control.end_connections.is_empty() {
                        let request = Request::EndConnections { name: name.clone(), ports: control.end_connections.clone() };
                        match self.done(&control.connection, &request) {
                            Err(e) if !lasting(&e) => return Err(e),
                            // An agent that cannot, or of an older release: the rest goes on, and
                            // clients wait for the kernel.
                            Err(_) => control.end_connections.clear(),
                            Ok(()) => {}
                        }
                    }
                }
            }
        }
        let targets: Vec<_> = control.monitored.iter().map(|(target, wanted)| (target.clone(), *wanted)).collect();
        for (target, wanted) in targets {
            let answer = self.ask_to_monitor(&control.connection, &target, wanted);
            match &answer {
                Err(e) if lasting(e) => drop(control.monitored.remove(&target)),
                Err(_) => return answer.map(|_| resumed),
                Ok(_) => {}
            }
            resumed.targets.push((target, answer));
        }
        Ok(resumed)
    }
}

impl AsFd for Client {
    /// For the application's own event loop: readable when there may be an event, never after [`Event::AgentGone`]. Only to
    /// be waited on. It stays the same through [`Client::reconnect`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl AsRawFd for Client {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

const _: () = {
    const fn thread_safe<T: Send + Sync>() {}
    thread_safe::<Client>();
    thread_safe::<Connection>();
};
