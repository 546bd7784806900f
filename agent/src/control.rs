//! The control thread: everything that may wait. It owns the files, the clients, the hooks and the clock on the wall, reaches the loop by
//! commands and hears from it by events.

use crate::access;
use crate::answerers;
use crate::bridge::Bridge;
use crate::check::{self, Check};
use crate::config::{self, Config, HookAction};
use crate::core::{Command, Core, Happened, now_ns};
use crate::fence::Guard;
use crate::gates::Gates;
use crate::history::{Flushed, History, given_in};
use crate::metrics::Heart;
use crate::probes::Probes;
use crate::select::{Resolver, Target as Process};
use crate::seqpacket::{self, Read};
use crate::state::State;
use crate::status::About;
use crate::subscribers::{Target, Want};
use crate::watchlist::{Moves, Origin, Watched};
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use fide_wire::control::{
    CheckOutcome, Checked, ErrorCode, FenceOrder, HistoryEvent, PROGRESS_LIMIT_NS, PROTOCOL, REASON_MAX, Refused, Reply, Request,
    Selector, Status, bridge,
};
use fide_wire::verdict::{Cause, ProgressSource, VerdictId};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// The way to the loop. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct LoopHandle {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    /// Beats when the loop turns.
    pub heart: Arc<Heart>,
}

impl LoopHandle {
    /// A handle over a command channel and the eventfd that wakes the loop.
    #[must_use]
    pub fn new(commands: Sender<Command>, wake: OwnedFd, heart: Arc<Heart>) -> Self {
        Self { commands, wake: Arc::new(wake), heart }
    }

    /// Has the loop do something, without waiting.
    pub fn tell(&self, command: impl FnOnce(&mut Core) + Send + 'static) {
        if self.commands.send(Box::new(command)).is_ok() {
            ring(&self.wake);
        }
    }

    /// Has the loop do something, and waits for the answer. `None` when the loop has ended or is stuck.
    pub fn ask<R: Send + 'static>(&self, question: impl FnOnce(&mut Core) -> R + Send + 'static) -> Option<R> {
        let (answer, wait) = bounded(1);
        self.tell(move |core| {
            let _ = answer.send(question(core)); // nobody waits any more: a connection was closed
        });
        wait.recv_timeout(std::time::Duration::from_secs(5)).ok()
    }

    /// The status page.
    #[must_use]
    pub fn status(&self, about: &About) -> Option<Status> {
        let about = about.clone();
        self.ask(move |core| core.status(&about))
    }
}

/// Adds one to an eventfd.
pub fn ring(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: an open eventfd and eight bytes. Failing means that it is at its maximum, hence readable already.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// A reply and the descriptor that rides on it.
type Answer = (Reply, Option<OwnedFd>);

struct Connection {
    fd: OwnedFd,
    peer: access::Peer,
    greeted: bool,
    ring: Option<u32>,
    joined: Option<u32>,
    following: bool,
    /// Kept events still to be sent: from this number on, and whether new ones follow.
    reading: Option<(u64, bool)>,
    out: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    out_bytes: usize,
    closing: bool,
    /// For what is answered later.
    id: u64,
    /// One of its checks is under way.
    checking: bool,
    /// The gate that its process moves, once it did.
    gate: Option<usize>,
}

/// Bytes of replies that may wait for a slow client that follows events; beyond that it is disconnected.
const BACKLOG: usize = 4 << 20;
/// Bytes of replies from which on a client's requests wait until it has read some.
const ENOUGH: usize = 256 << 10;
/// Requests answered before others have their turn.
const REQUESTS_PER_TURN: usize = 16;
/// Kept events fetched at a time.
const PAGE: usize = 64;
/// Whoever changes how many receive queues an interface has waits so long at most for barriers.
const LOOK_AT_PATHS_EVERY: std::time::Duration = std::time::Duration::from_secs(10);
/// Most connections.
const CONNECTIONS: usize = 256;
/// Most of one user. Root may have all: it must be able to look when others misbehave.
const CONNECTIONS_PER_USER: usize = 64;
/// Of all, those that only root gets.
const CONNECTIONS_FOR_ROOT: usize = 16;

/// `code` of [`Cause::Local`] events that keep the reason of an application's report.
pub const REPORT_EVENT_CODE: i32 = 1002;

/// A watch that is kept alive: when its process ends, the next one that answers to the selector is watched.
struct Standing {
    name: String,
    selector: Selector,
    origin: Origin,
    /// Who asked for it, and may have watched what it finds; `None`: the configuration, which may watch everything.
    owner: Option<access::Peer>,
    app: Option<u32>,
    progress: Option<config::ProgressProbe>,
    complained: bool,
    /// The last process that was found and that the owner may not have watched.
    denied: Option<(u32, u64)>,
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
    policy: access::Policy,
    resolver: Resolver,
    standing: Vec<Standing>,
    probes: Option<Probes>,
    state: State,
    side: crate::side::Side,
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
    accepted: u64,
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
    /// Readable when a signal came.
    pub signals: OwnedFd,
    /// The fence's half of this thread.
    pub guard: Option<Guard>,
    /// Applications' gates.
    pub gates: Option<Gates>,
}

/// Whether one more connection of this user is accepted beside these; if not, why, and what to do.
fn admit(connected: impl Iterator<Item = u32> + Clone, uid: u32) -> Result<(), String> {
    let find = "`ss -xp` as root names the processes that hold them";
    let (all, own) = (connected.clone().count(), connected.filter(|u| *u == uid).count());
    if all >= CONNECTIONS {
        return Err(format!("all {CONNECTIONS} connections of this agent are in use: end some clients ({find})"));
    }
    if uid != 0 && own >= CONNECTIONS_PER_USER {
        return Err(format!(
            "user {uid} has {own} connections to this agent, the most that one user may have: close some of them ({find}), or watch more processes over one connection"
        ));
    }
    if uid != 0 && all >= CONNECTIONS - CONNECTIONS_FOR_ROOT {
        return Err(format!(
            "{all} connections of this agent are in use, and the last {CONNECTIONS_FOR_ROOT} are kept for root: end some clients ({find})"
        ));
    }
    Ok(())
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
        let life = match given_in(e) {
            0 => "incarnation not recorded".to_owned(),
            life => format!("incarnation {life}"),
        };
        let whom = e.app.as_ref().map_or_else(|| e.node.clone(), |app| format!("{app}@{}", e.node));
        format!("event {} ({life}, {}, {}, {whom})", e.seq, crate::words::utc(e.wall_ns), e.cause)
    };
    let older = found.len().saturating_sub(LIVES_LISTED);
    let mut list: Vec<String> = found[older..].iter().map(event).collect();
    if older > 0 {
        list.insert(0, format!("{older} older ones"));
    }
    let what = format!("{} lives of {giver} used the id {id}: {}; explain the event by its number", found.len(), list.join(", "));
    Err(Refused { code: ErrorCode::Ambiguous, what })
}

fn refused(code: ErrorCode, what: impl Into<String>) -> Reply {
    Reply::Error(Refused { code, what: what.into() })
}

impl Control {
    /// Puts the parts together.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts { config, config_path, about, core, happened, told, listener, state, signals, guard, gates } = parts;
        let (history, complaints) = History::open(config.history.path.as_deref(), config.history.max_bytes);
        for c in complaints {
            tracing::warn!("{c}");
            core.tell(move |core| core.tell_local(Cause::Local, 0, c.to_string()));
        }
        let (policy, warnings) = access::Policy::new(&config.access);
        for w in warnings {
            tracing::warn!("{w}");
        }
        let standing = config.watches.iter().map(Standing::configured).collect();
        // Its own program by what it is, not by its name: that may be another's by now.
        let probes = Probes::start("/proc/self/exe".into())
            .inspect_err(|e| {
                let text = format!("progress probes cannot be run: {e}");
                core.tell(move |core| core.tell_local(Cause::Local, 0, text));
            })
            .ok();
        let side = crate::side::Side::new(&config, &core);
        let interfaces: Vec<String> = config.paths.iter().map(|p| p.interface.clone()).collect();
        let mut carriers = check::carriers::Carriers::new(interfaces.clone());
        carriers.look(now_ns);
        let mut losses = check::losses::Losses::new(interfaces);
        losses.read(Some(Vec::new()), now_ns);
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
            policy,
            resolver: Resolver::default(),
            standing,
            probes,
            state,
            side,
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
            accepted: 0,
        }
    }

    /// Serves until the loop has ended. Returns the fence and the gates, which may go when the loop has ended well.
    pub fn run(mut self) -> (Option<Guard>, Option<Gates>) {
        self.sweep();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]); // not under systemd: nobody to notify
        while self.turn() {}
        self.probes = None;
        self.side.shutdown();
        if let Flushed::Failed(e) = self.history.flush() {
            tracing::error!("{e}");
        }
        // What the last half second brought.
        if let Err(e) = self.state.save() {
            tracing::error!("{e}");
        }
        (self.guard, self.gates)
    }

    fn turn(&mut self) -> bool {
        let fixed = [self.listener.as_raw_fd(), self.told.as_raw_fd(), self.signals.as_raw_fd(), self.side.links_fd()];
        let mut polls: Vec<libc::pollfd> = fixed
            .into_iter()
            .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
            .chain(self.connections.iter().map(|c| libc::pollfd {
                fd: c.fd.as_raw_fd(),
                events: if c.is_listening() { libc::POLLIN } else { 0 } | if c.out.is_empty() { 0 } else { libc::POLLOUT },
                revents: 0,
            }))
            .collect();
        let more = self.connections.iter().any(|c| c.reading.is_some() && c.out.is_empty());
        let timeout_ms = match (more, self.checks.is_empty()) {
            (true, _) => 0,
            (_, false) => 1,
            (_, true) => 250,
        };
        // SAFETY: an array of the stated length with open descriptors (negative ones are skipped by the kernel).
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout_ms) };
        let ready = |i: usize| polls[i].revents != 0;
        let mut alive = true;
        if ready(1) {
            drain(&self.told);
        }
        alive &= self.hear();
        if ready(2) {
            self.signalled();
        }
        if ready(3) {
            self.links_changed();
        }
        for i in (0..self.connections.len()).rev() {
            match polls[fixed.len() + i].revents {
                0 => {}
                // Nobody waits for the answer any more.
                gone if self.connections[i].checking && gone & (libc::POLLHUP | libc::POLLERR) != 0 => self.close(i),
                _ => self.serve(i),
            }
        }
        if ready(0) {
            self.accept();
        }
        self.advance_checks();
        self.send_pages();
        self.flush_connections();
        self.write_history();
        let now = now_ns();
        if now.saturating_sub(self.swept_ns) > 500_000_000 {
            self.swept_ns = now;
            self.sweep();
        }
        alive
    }

    // ---- what the loop tells ------------------------------------------------------------------------------------------------

    fn hear(&mut self) -> bool {
        loop {
            match self.happened.try_recv() {
                Ok(Happened::Event(event)) => self.event(*event),
                Ok(Happened::Incarnation(n)) => self.state.set_own(n),
                Ok(Happened::PeerIncarnation(name, n)) => self.state.set_peer(&name, n),
                Err(TryRecvError::Empty) => return true,
                // Without a word, it has panicked.
                Ok(Happened::Stopped) | Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn event(&mut self, mut event: HistoryEvent) {
        event.wall_ns = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        event.seq = self.history.append(event.clone());
        match event.cause {
            Cause::Monitored | Cause::PathUp | Cause::ContractKept => tracing::info!("{}", event.text),
            _ => tracing::warn!(grade = %event.grade, "{}", event.text),
        }
        self.side.happened(&event);
        if matches!(event.cause, Cause::Left | Cause::Returned) && event.app.is_none() && event.node != self.config.node {
            self.state.set_left(&event.node, event.cause == Cause::Left);
        }
        if event.cause == Cause::Hung && event.node == self.config.node {
            if self.side.says(HookAction::Fence, &event) {
                self.fence_hung(&event);
            }
            if self.side.says(HookAction::Kill, &event) {
                self.kill_hung(&event);
            }
        }
        let reply = Reply::Event(Box::new(event));
        for c in self.connections.iter_mut().filter(|c| c.following) {
            c.push(&reply, None);
        }
    }

    /// A hook says that who is hung shall end. The exit watch sees it doomed, and all hosts hear of a crash that is certain.
    fn fence_hung(&mut self, event: &HistoryEvent) {
        let (Some(name), Some(number)) = (event.app.clone(), event.id.map(|id| id.0 as u32)) else { return };
        let wanted = name.clone();
        let text = match self.core.ask(move |core| core.fence_hung(&wanted, number)) {
            Some(Some(Ok(gate))) => {
                format!("{name} was hung and is cut off with {gate}, as a hook says, until its next instance is watched")
            }
            Some(Some(Err(why))) => format!("{name} is hung and cannot be cut off, as a hook says: {why}"),
            Some(None) => return, // it moves again
            None => format!("{name} is hung and cannot be cut off, as a hook says: the agent's loop does not answer"),
        };
        tracing::warn!("{text}");
        self.core.tell(move |core| core.tell_local(Cause::Local, crate::hooks::HOOK_EVENT_CODE, text));
    }

    fn kill_hung(&mut self, event: &HistoryEvent) {
        let Some(name) = event.app.clone() else { return };
        let number = event.id.map(|id| id.0 as u32);
        let wanted = name.clone();
        // It may have moved since.
        let still = self.core.ask(move |core| {
            let w = core.watchlist.named(&wanted).and_then(|app| core.watchlist.get(app))?;
            (w.hung == number).then_some((w.pid, w.start_ticks))
        });
        let Some((pid, start_ticks)) = still.flatten() else { return };
        let text = match self.resolver.kill(pid, start_ticks) {
            Ok(()) => format!("{name} (process {pid}) was hung and is killed, as a hook says"),
            Err(e) => format!("{name} (process {pid}) is hung and cannot be killed, as a hook says: {e}"),
        };
        tracing::warn!("{text}");
        self.core.tell(move |core| core.tell_local(Cause::Local, crate::hooks::HOOK_EVENT_CODE, text));
    }

    fn write_history(&mut self) {
        let outcome = self.history.write();
        self.history_written(outcome);
    }

    fn history_written(&mut self, outcome: Flushed) {
        match outcome {
            Flushed::Failed(e) => {
                tracing::error!("{e}");
                let text = e.to_string();
                self.core.tell(move |core| core.tell_local(Cause::Local, 0, text));
            }
            Flushed::Recovered { lost } => tracing::warn!("the history can be written again; {lost} events were not kept"),
            Flushed::Idle | Flushed::Written | Flushed::StillFailing => {}
        }
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
                    if let Err(e) = self.reload() {
                        tracing::error!("{e}");
                    }
                }
                _ if !self.stopping => {
                    self.stopping = true;
                    tracing::info!("leaving");
                    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]); // as in run()
                    self.core.tell(Core::leave);
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
            let mut answerers = configured.cloned().unwrap_or_else(|| answerers::gateways(interface));
            answerers.retain(|address| !fide_lane::is_local(*address));
            (check::processors::queues(interface).unwrap_or(0), answerers)
        };
        let looked: Vec<_> = self.carriers.interfaces().iter().zip(configured).map(of).collect();
        self.core.tell(move |core| {
            for (path, (queues, answerers)) in looked.iter().enumerate() {
                core.set_queues(path, *queues);
                core.set_answerers(path, answerers);
            }
        });
    }

    /// Interfaces and cgroups that came (back).
    fn renew_guards(&mut self) {
        for text in self.gates.as_mut().map_or_else(Vec::new, Gates::renew) {
            tracing::error!("{text}");
            self.core.tell(move |core| core.tell_local(Cause::Local, 0, text));
        }
        for text in self.gates.as_mut().map_or_else(Vec::new, Gates::closed) {
            self.core.tell(move |core| core.tell_local(Cause::Local, crate::gates::CLOSED_EVENT_CODE, text));
        }
        let unguarded = self.guard.as_mut().and_then(Guard::renew_interfaces);
        self.tell_unguarded(unguarded);
        self.renew_guarded_cgroups();
    }

    fn renew_guarded_cgroups(&mut self) {
        let Some(guard) = self.guard.as_mut() else { return };
        let (gates, unguarded) = guard.renew_cgroups();
        for (name, gate) in gates {
            self.core.tell(move |core| core.add_gate(name, gate));
        }
        self.tell_unguarded(unguarded);
    }

    /// Who came beside a process that was cut off and lived is its next instance as soon as that one is gone.
    fn renew_beside_cut_off(&mut self) {
        let Some(guard) = self.guard.as_mut().filter(|guard| guard.cut_off_gone()) else { return };
        for (app, pid, gate) in self.core.ask(|core| core.beside_cut_off()).unwrap_or_default() {
            if !guard.cut_off_lives(&gate) {
                guard.drop_left_by_doomed(&gate, pid);
                self.core.tell(move |core| core.fence_process(app, &gate, false));
            }
        }
    }

    fn tell_unguarded(&self, complaints: impl IntoIterator<Item = String>) {
        for text in complaints {
            tracing::error!("{text}");
            self.core.tell(move |core| core.tell_local(Cause::Local, 0, text));
        }
    }

    /// A host that is gone for good. On disk before it is answered: a restart must not count it again.
    fn forget(&mut self, host: String) -> Result<(), Refused> {
        let name = host.clone();
        self.core.ask(move |core| core.operator_forgets(&name)).ok_or_else(stuck)??;
        self.state.set_left(&host, true);
        self.state.save().map_err(|what| Refused { code: ErrorCode::System, what })
    }

    fn fence(&self, i: usize, order: FenceOrder) -> Result<Reply, Refused> {
        let peer = &self.connections[i].peer;
        match order {
            FenceOrder::Status => self.policy.may_read(peer)?,
            FenceOrder::Shut => {
                self.policy.may_fence(peer)?;
                self.core.ask(Core::operator_shuts_fence).ok_or_else(stuck)??;
            }
            FenceOrder::Recover => {
                self.policy.may_fence(peer)?;
                self.guard.iter().for_each(Guard::drop_left);
                self.core.ask(Core::operator_recovers_fence).ok_or_else(stuck)??;
            }
        }
        let status = self.core.ask(|core| core.fence_status()).ok_or_else(stuck)?;
        let mut status = status.ok_or_else(crate::core::no_fence)?;
        if let Some(guard) = &self.guard {
            guard.complete(&mut status);
        }
        Ok(Reply::Fence(Box::new(status)))
    }

    fn links_changed(&mut self) {
        self.carriers.look(now_ns);
        let changed = self.side.changed_interfaces();
        self.paths_looked_at = None;
        self.renew_guards();
        for interface in changed {
            for (path, p) in self.config.paths.iter().enumerate() {
                if p.interface == interface {
                    self.core.tell(move |core| core.refresh_path(path as u8));
                }
            }
        }
    }

    /// Twice a second: watches to renew, files to sync, the watchdog.
    fn sweep(&mut self) {
        self.read_losses();
        self.carriers.look(now_ns);
        self.look_at_paths();
        self.renew_guards();
        self.renew_beside_cut_off();
        self.renew_watches();
        if let Err(e) = self.state.save() {
            tracing::error!("{e}");
        }
        let outcome = self.history.flush();
        self.history_written(outcome);
        let counted = crate::side::Counted {
            clients: self.connections.len() as u64,
            history_events: self.history.next_seq(),
            history_bytes: self.history.bytes(),
            history_lost: self.history.lost(),
            history_failures: self.history.failures(),
        };
        self.side.publish(&self.core, &self.about, counted, self.guard.as_ref(), self.gates.as_ref());
        for outcome in self.side.failed_hooks() {
            let text = outcome.text();
            self.core.tell(move |core| core.tell_local(Cause::Local, crate::hooks::HOOK_EVENT_CODE, text));
        }
        if self.core.heart.check(now_ns()).is_ok() {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]); // as in run()
        }
    }

    fn renew_watches(&mut self) {
        for i in 0..self.standing.len() {
            if let Some(app) = self.standing[i].app {
                let ended = self.core.ask(move |core| core.watchlist.get(app).is_none_or(|w| w.ended.is_some()));
                if ended != Some(true) {
                    continue;
                }
                self.standing[i].app = None;
                if let Some(probes) = &self.probes {
                    probes.remove(app);
                }
            }
            let s = &self.standing[i];
            let found = self.resolver.resolve(&s.selector, None);
            let process = match found {
                Ok(p) => p,
                Err(e) => {
                    if !self.standing[i].complained {
                        self.standing[i].complained = true;
                        tracing::warn!("{} is not watched yet: {e}", self.standing[i].name);
                    }
                    continue;
                }
            };
            if let Err(e) = s.may_watch(&self.policy, &process) {
                let found = Some((process.pid, process.start_ticks));
                if s.denied != found {
                    tracing::debug!("{} goes on waiting, process {} is not for it: {e}", s.name, process.pid);
                    self.standing[i].denied = found;
                }
                continue;
            }
            let (name, origin, progress) = (s.name.clone(), s.origin, s.progress.clone());
            match self.watch(&name, &process, origin, 0, None, None) {
                Ok(app) => {
                    self.standing[i].app = Some(app);
                    self.standing[i].complained = false;
                    self.probe(app, &name, process.pid, progress);
                }
                Err(e) if !self.standing[i].complained => {
                    self.standing[i].complained = true;
                    tracing::warn!("{name} is not watched: {}", e.what);
                }
                Err(_) => {}
            }
        }
    }

    /// Has a process's progress seen from outside, from now on in this way.
    fn probe(&self, app: u32, name: &str, pid: u32, progress: Option<config::ProgressProbe>) {
        let Some(probes) = &self.probes else { return };
        probes.remove(app);
        let Some(progress) = progress else {
            self.core.tell(move |core| core.watch_probe(app, None));
            return;
        };
        let moves = Moves::default();
        let (source, limit_ns, counted) = (progress.probe.source(), progress.limit_ns, moves.clone());
        self.core.tell(move |core| core.watch_probe(app, Some((source, limit_ns, counted))));
        probes.add(app, name, pid, progress, moves);
    }

    fn watch(
        &mut self,
        name: &str,
        process: &Process,
        origin: Origin,
        pbsize: u32,
        bridge: Option<Bridge>,
        ring: Option<u32>,
    ) -> Result<u32, Refused> {
        fide_wire::names::check_app(name).map_err(|what| Refused { code: ErrorCode::Invalid, what })?;
        let watched = Watched {
            name: name.into(),
            pid: process.pid,
            start_ticks: process.start_ticks,
            uid: process.uid,
            origin,
            pbsize,
            bridge,
            probe: None,
            hung: None,
            ring,
            ended: None,
            ended_ns: 0,
        };
        let app = self
            .core
            .ask(move |core| core.watch(watched))
            .ok_or_else(stuck)?
            .map_err(|what| Refused { code: ErrorCode::Exists, what })?;
        // It may have died between being found and being watched; then nobody would ever hear of it.
        if !self.resolver.still_same(process) {
            self.core.tell(move |core| {
                core.unwatch(app);
            });
            return Err(Refused { code: ErrorCode::NotFound, what: format!("process {} has just ended", process.pid) });
        }
        self.renew_guarded_cgroups(); // its cgroup may have been made a moment ago
        if let Some((guard, gate)) = self.guard.as_mut().and_then(|g| g.cgroup_of(process.pid).map(|gate| (g, gate))) {
            let lives = guard.cut_off_lives(&gate);
            guard.drop_left_by_doomed(&gate, process.pid);
            self.core.tell(move |core| core.fence_process(app, &gate, lives));
        }
        Ok(app)
    }

    fn reload(&mut self) -> Result<String, String> {
        let new = Config::load(&self.config_path).map_err(|e| format!("the configuration stays as it was: {e}"))?;
        let changes = config::diff(&self.config, &new);
        if changes.is_empty() {
            return Ok("nothing changed".into());
        }
        for w in &changes.live.watches_removed {
            if let Some(i) = self.standing.iter().position(|s| s.name == w.name && s.origin == Origin::Config)
                && let Some(app) = self.standing.remove(i).app
            {
                if let Some(probes) = &self.probes {
                    probes.remove(app);
                }
                self.core.tell(move |core| {
                    core.unwatch(app);
                });
            }
        }
        for w in &changes.live.progress {
            let Some(s) = self.standing.iter_mut().find(|s| s.name == w.name && s.origin == Origin::Config) else { continue };
            s.progress.clone_from(&w.progress);
            let Some(app) = s.app else { continue };
            let pid = self.core.ask(move |core| core.watchlist.get(app).map_or(0, |w| w.pid)).unwrap_or(0);
            self.probe(app, &w.name, pid, w.progress.clone());
        }
        self.standing.extend(changes.live.watches_added.iter().map(Standing::configured));
        if changes.live.keys {
            let keys = new.keyring;
            self.core.tell(move |core| core.set_keys(keys));
        }
        if changes.live.contract {
            let calibration = crate::start::calibration(&new);
            self.core.tell(move |core| core.set_calibration(calibration));
        }
        if changes.live.access {
            let (policy, warnings) = access::Policy::new(&new.access);
            self.policy = policy;
            for w in warnings {
                tracing::warn!("{w}");
            }
        }
        if changes.live.socket_permissions
            && let Err(e) = crate::start::set_permissions(&new.socket)
        {
            tracing::error!("{e}");
        }
        self.side.reload(&new, &changes.live, &self.core);
        if changes.live.history_size {
            self.history.set_max_bytes(new.history.max_bytes);
        }
        self.config.take_live(&new);
        let summary = changes.summary();
        tracing::info!("configuration reloaded: {summary}");
        self.renew_watches();
        Ok(summary)
    }

    // ---- clients ------------------------------------------------------------------------------------------------------------

    fn accept(&mut self) {
        loop {
            match seqpacket::accept(self.listener.as_fd()) {
                Ok(Some(fd)) => {
                    let peer = match access::Peer::of(fd.as_fd()) {
                        Ok(p) => p,
                        Err(e) => {
                            tracing::warn!("a client without credentials is turned away: {e}");
                            continue;
                        }
                    };
                    let mut c = Connection {
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
                        gate: None,
                    };
                    self.accepted += 1;
                    if let Err(what) = admit(self.connections.iter().map(|c| c.peer.uid), c.peer.uid) {
                        tracing::warn!("a client of uid {} is turned away: {what}", c.peer.uid);
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

    fn serve(&mut self, i: usize) {
        let mut buf = Vec::new();
        // A client that asks without reading its replies is read on when it has caught up, and one that asks much does not keep others waiting.
        for _ in 0..REQUESTS_PER_TURN {
            if !self.connections[i].is_listening() {
                return;
            }
            match seqpacket::read(self.connections[i].fd.as_fd(), &mut buf) {
                Read::Nothing => return,
                Read::Closed => {
                    self.close(i);
                    return;
                }
                Read::TooLong => {
                    let c = &mut self.connections[i];
                    c.push(&refused(ErrorCode::TooLarge, "a message has at most 131072 bytes"), None);
                }
                Read::Message(bytes) => {
                    let answer = match serde_json::from_slice::<Request>(&bytes) {
                        Ok(request) => self.answer(i, request),
                        Err(e) => Some((refused(ErrorCode::Invalid, format!("not a request: {e}")), None)),
                    };
                    if let Some((reply, fd)) = answer {
                        self.connections[i].push(&reply, fd);
                    }
                }
            }
        }
    }

    fn close(&mut self, i: usize) {
        let c = self.connections.swap_remove(i);
        self.checks.retain(|check| check.connection != c.id);
        if let Some(ring) = c.ring {
            self.core.tell(move |core| core.unsubscribe(ring));
        }
        // A process that joined stays watched: closing a descriptor is neither a crash nor a farewell.
    }

    /// The next kept events for those who asked for them and have read the last ones.
    fn send_pages(&mut self) {
        for c in &mut self.connections {
            while let Some((from, follow)) = c.reading.filter(|_| c.out_bytes < ENOUGH) {
                let page = self.history.page(from, PAGE);
                let next = self.history.next_seq();
                c.reading = page.last().map(|e| (e.seq + 1, follow)).filter(|(from, _)| *from < next);
                for event in page {
                    c.push(&Reply::Event(Box::new(event)), None);
                }
                if c.reading.is_none() {
                    c.push(&Reply::EventsEnd { next }, None);
                    c.following |= follow;
                }
            }
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
        match request {
            Request::Hello { protocol } if protocol != PROTOCOL => fail(
                ErrorCode::Version,
                format!("this agent speaks protocol {PROTOCOL}, the client {protocol}: install the same version of both"),
            ),
            Request::Hello { .. } => {
                self.connections[i].greeted = true;
                plain(Reply::Hello {
                    protocol: PROTOCOL,
                    node: self.config.node.clone(),
                    node_id: fide_wire::name_id(&self.config.node),
                    cluster: self.config.cluster.clone(),
                    version: env!("CARGO_PKG_VERSION").into(),
                })
            }
            Request::Subscribe { socket_only } => {
                self.policy.may_monitor(&self.connections[i].peer)?;
                if self.connections[i].ring.is_some() {
                    return fail(ErrorCode::Exists, "this connection has its event ring already".into());
                }
                let made = self.core.ask(move |core| core.subscribe(socket_only)).ok_or_else(stuck)?;
                let (index, kind, fd) = made.map_err(|e| Refused { code: ErrorCode::Full, what: e.to_string() })?;
                self.connections[i].ring = Some(index);
                Ok(Some((Reply::Ring { kind, size: fide_xdp::layout::RING_BYTES }, Some(fd))))
            }
            Request::Monitor { target, pbsize, timeout_ns } => {
                self.policy.may_monitor(&self.connections[i].peer)?;
                let Some(ring) = self.connections[i].ring else {
                    return fail(ErrorCode::Invalid, "subscribe first: events need a ring".into());
                };
                let target = Target::parse(&target).map_err(|what| Refused { code: ErrorCode::Invalid, what })?;
                let want = Want { pbsize, timeout_ns };
                let (node, app, pbsize, timeout_ns, alive) =
                    self.core.ask(move |core| core.monitor(ring, target, want)).ok_or_else(stuck)?;
                plain(Reply::Monitored { node, app, pbsize, timeout_ns, alive })
            }
            Request::Unmonitor { target } => {
                let Some(ring) = self.connections[i].ring else {
                    return fail(ErrorCode::NotFound, "nothing is monitored on this connection".into());
                };
                let parsed = Target::parse(&target).map_err(|what| Refused { code: ErrorCode::Invalid, what })?;
                match self.core.ask(move |core| core.unmonitor(ring, &parsed)).ok_or_else(stuck)? {
                    true => plain(Reply::Done),
                    false => fail(ErrorCode::NotFound, format!("{target} is not monitored on this connection")),
                }
            }
            Request::Join { name, pbsize } => self.join(i, &name, pbsize).map(Some),
            Request::Progress { counter, limit_ns } => self.watch_counter(i, counter, limit_ns).map(Some),
            Request::Report { name, hung, reason } => self.report(i, &name, hung, reason).map(Some),
            Request::Quit => match self.connections[i].joined.take() {
                Some(app) => {
                    self.core.ask(move |core| core.unwatch(app)).ok_or_else(stuck)?;
                    plain(Reply::Done)
                }
                None => fail(ErrorCode::NotFound, "this connection has not joined".into()),
            },
            Request::Watch { name, selector } => {
                let process = self.resolver.resolve(&selector, self.connections[i].peer.pid)?;
                self.policy.may_watch(&self.connections[i].peer, process.uid)?;
                let app = self.watch(&name, &process, Origin::Operator, 0, None, None)?;
                if !matches!(selector, Selector::Pid(_)) {
                    self.standing.retain(|s| s.name != name);
                    let owner = Some(self.connections[i].peer.clone());
                    self.standing.push(Standing { app: Some(app), owner, ..Standing::new(&name, &selector, Origin::Operator) });
                }
                plain(Reply::Watched { pid: process.pid, app })
            }
            Request::Unwatch { name } => self.unwatch(i, &name).map(Some),
            Request::Status => {
                self.policy.may_read(&self.connections[i].peer)?;
                let mut status = self.core.status(&self.about).ok_or_else(stuck)?;
                if let (Some(guard), Some(fence)) = (&self.guard, status.fence.as_mut()) {
                    guard.complete(fence);
                }
                status.gates = self.gates.as_ref().map_or_else(Vec::new, |gates| gates.status(now_ns()));
                plain(Reply::Status(Box::new(status)))
            }
            Request::Events { from, last, follow } => {
                self.policy.may_read(&self.connections[i].peer)?;
                self.connections[i].reading = Some((self.history.start(from, last), follow));
                Ok(None)
            }
            Request::Explain { id } => {
                self.policy.may_read(&self.connections[i].peer)?;
                one_life(id, self.history.find(id)).map(|event| Some((Reply::Explained(Box::new(event)), None)))
            }
            Request::Reload => {
                self.policy.may_reload(&self.connections[i].peer)?;
                self.reload().map_err(|what| Refused { code: ErrorCode::Invalid, what })?;
                plain(Reply::Done)
            }
            Request::Forget { host } => {
                self.policy.may_forget(&self.connections[i].peer)?;
                self.forget(host)?;
                plain(Reply::Done)
            }
            Request::Fence { order } => plain(self.fence(i, order)?),
            Request::Check { peer, since_ns, deadline_ns, wait_ns } => {
                self.policy.may_monitor(&self.connections[i].peer)?;
                self.carriers.look(now_ns); // what is seen now was before a deadline that begins now
                self.begin_check(i, Check::new(self.connections[i].id, &peer, since_ns, deadline_ns, wait_ns)?)
            }
            Request::Extend { known_ns, valid_ns, anew } => plain(self.extend(i, known_ns, valid_ns, anew)?),
        }
    }

    // ---- other people's heartbeats ------------------------------------------------------------------------------------------

    /// Answers at once where nothing needs to be waited for.
    fn begin_check(&mut self, i: usize, mut check: Check) -> Result<Option<Answer>, Refused> {
        let whom = check.whom().clone();
        let since_ns = check.since_ns();
        let asked = self.core.ask(move |core| core.known_of(&whom, since_ns));
        let Some((peer, certain)) = asked else {
            return Err(Refused { code: ErrorCode::System, what: "the agent's loop does not answer".into() });
        };
        let plain = |checked| Ok(Some((Reply::Checked(Box::new(checked)), None)));
        if certain {
            let outcome = CheckOutcome::Certain;
            return plain(Checked { outcome, drained_ns: 0, lost_ns: 0, why: String::new(), peer });
        }
        match check.route(&mut self.carriers, &self.config.node, self.connections[i].peer.pid) {
            Err(why) => plain(check::no_barrier(why, peer)),
            Ok(()) => {
                let queues: Vec<_> = check.queues().collect();
                self.core.tell(move |core| queues.into_iter().for_each(|(path, queues)| core.set_queues(path, queues)));
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
        let at = match c.gate {
            Some(at) => at,
            None => *c.gate.insert(gates.of(&c.peer)?),
        };
        let (gate, valid_ns) = gates.extend(at, c.peer.pid, (known_ns, valid_ns, anew), now_ns())?;
        Ok(Reply::Extended { gate, valid_ns })
    }

    fn read_losses(&mut self) {
        let lane = self.core.ask(|core| core.lane_losses());
        self.losses.read(lane, now_ns);
    }

    /// Carries every check that is under way one step further, and answers those that are done.
    fn advance_checks(&mut self) {
        if self.checks.is_empty() {
            return;
        }
        let Some((answers, offered)) = self.core.ask(|core| core.answers()) else { return };
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
            self.core.tell(move |core| core.ask_for_barriers(paths));
        }
    }

    fn end_check(&mut self, check: &Check, done: Result<u64, String>) {
        let whom = check.whom().clone();
        let since_ns = check.since_ns();
        let (peer, certain) = self.core.ask(move |core| core.known_of(&whom, since_ns)).unwrap_or_default();
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

    fn join(&mut self, i: usize, name: &str, pbsize: u32) -> Result<Answer, Refused> {
        let c = &self.connections[i];
        if c.joined.is_some() {
            return Err(Refused { code: ErrorCode::Exists, what: "this connection has joined already; quit first".into() });
        }
        let Some(pid) = c.peer.pid else {
            return Err(Refused {
                code: ErrorCode::Unsupported,
                what: "the agent cannot see this process: it must run in the host's pid namespace".into(),
            });
        };
        let process = self.resolver.target(pid)?;
        let ring = c.ring;
        let (bridge, fd) =
            Bridge::create().map_err(|e| Refused { code: ErrorCode::System, what: format!("no memory for the bridge: {e}") })?;
        let most = self.core.ask(|core| core.piggyback_max()).unwrap_or(0);
        let granted = pbsize.min(most);
        // A process that reconnects is watched already: it gets a new bridge, and its connection can say goodbye again.
        let known = {
            let name = name.to_string();
            self.core.ask(move |core| core.joined_as(&name, pid))
        };
        let app = match known.flatten() {
            Some(app) => {
                self.core.tell(move |core| core.rejoin(app, granted, bridge, ring));
                app
            }
            None => self.watch(name, &process, Origin::Joined, granted, Some(bridge), ring)?,
        };
        self.connections[i].joined = Some(app);
        Ok((Reply::Joined { app, pbsize: granted, bridge_len: bridge::LEN as u32 }, Some(fd)))
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
        match self.core.ask(move |core| core.watch_progress(app, ProgressSource::Counter(counter), limit_ns)) {
            Some(true) => Ok((Reply::Done, None)),
            Some(false) => fail(ErrorCode::NotFound, "this process is no longer watched: it is ending".into()),
            None => fail(ErrorCode::System, "the agent's loop does not answer".into()),
        }
    }

    /// Who may have a process watched may also say of it that it is hung; who joined may say so of itself.
    fn report(&mut self, i: usize, name: &str, hung: bool, reason: String) -> Result<Answer, Refused> {
        if reason.len() > REASON_MAX || reason.chars().any(char::is_control) {
            let what = format!("a reason is one line of at most {REASON_MAX} bytes");
            return Err(Refused { code: ErrorCode::Invalid, what });
        }
        let wanted = name.to_string();
        let found = self
            .core
            .ask(move |core| core.watchlist.named(&wanted).and_then(|app| core.watchlist.get(app).map(|w| (app, w.uid))));
        let Some((app, uid)) = found.flatten() else {
            return Err(Refused { code: ErrorCode::NotFound, what: format!("no process named {name} is watched on this host") });
        };
        if self.connections[i].joined != Some(app) {
            self.policy.may_watch(&self.connections[i].peer, uid)?;
        }
        if !reason.is_empty() {
            let by = &self.connections[i].peer;
            let who = by.pid.map_or_else(|| format!("user {}", by.uid), |pid| format!("process {pid} of user {}", by.uid));
            let says = if hung { "hung" } else { "progressing" };
            let text = format!("{who} reports {name} as {says}: {reason}");
            self.core.tell(move |core| core.tell_local(Cause::Local, REPORT_EVENT_CODE, text));
        }
        self.core.ask(move |core| core.report_progress(app, hung));
        Ok((Reply::Done, None))
    }

    fn unwatch(&mut self, i: usize, name: &str) -> Result<Answer, Refused> {
        let wanted = name.to_string();
        let found = self
            .core
            .ask(move |core| core.watchlist.named(&wanted).and_then(|app| core.watchlist.get(app).map(|w| (app, w.uid))));
        let waiting = self.standing.iter().find(|s| s.name == name);
        let Some((app, uid)) = found.flatten() else {
            let uid = waiting.and_then(|s| s.owner.as_ref()).map_or(0, |owner| owner.uid);
            if waiting.is_some() && self.policy.may_watch(&self.connections[i].peer, uid).is_ok() {
                self.standing.retain(|s| s.name != name);
                return Ok((Reply::Done, None));
            }
            return Err(Refused { code: ErrorCode::NotFound, what: format!("no process named {name} is watched on this host") });
        };
        self.policy.may_watch(&self.connections[i].peer, uid)?;
        self.standing.retain(|s| s.name != name);
        if let Some(probes) = &self.probes {
            probes.remove(app);
        }
        self.core.ask(move |core| core.unwatch(app));
        Ok((Reply::Done, None))
    }
}

impl Standing {
    fn new(name: &str, selector: &Selector, origin: Origin) -> Self {
        Self {
            name: name.into(),
            selector: selector.clone(),
            origin,
            owner: None,
            app: None,
            progress: None,
            complained: false,
            denied: None,
        }
    }

    fn configured(watch: &config::Watch) -> Self {
        Self { progress: watch.progress.clone(), ..Self::new(&watch.name, &watch.selector, Origin::Config) }
    }

    /// Whether its owner may have this process watched: the next one that answers to a selector may be somebody else's.
    fn may_watch(&self, policy: &access::Policy, process: &Process) -> Result<(), Refused> {
        self.owner.as_ref().map_or(Ok(()), |owner| policy.may_watch(owner, process.uid))
    }
}

impl Connection {
    /// Whether its next request may be read: replies come in the order of requests, and it must read them.
    fn is_listening(&self) -> bool {
        !self.closing && !self.checking && self.reading.is_none() && self.out_bytes < ENOUGH
    }

    fn push(&mut self, reply: &Reply, fd: Option<OwnedFd>) {
        match serde_json::to_vec(reply) {
            Ok(bytes) => {
                self.out_bytes += bytes.len();
                self.out.push_back((bytes, fd));
            }
            Err(e) => tracing::error!("reply not written: {e}"),
        }
    }

    fn flush(&mut self) {
        while let Some((bytes, fd)) = self.out.front() {
            match seqpacket::send(self.fd.as_fd(), bytes, fd.as_ref().map(AsRawFd::as_raw_fd)) {
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

fn drain(fd: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: an open, non-blocking eventfd and eight bytes to fill.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
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
                "2 lives of h1 used the id {id}: event 17 (incarnation 3, 2026-11-06 21:20:00 UTC, killed, db@h1), \
                 event 93 (incarnation 4, 2026-11-06 21:20:00 UTC, killed, db@h1); explain the event by its number"
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
        let process = |uid| Process { pid: 7, start_ticks: 1, uid, comm: "victimd".into(), exe: None, nspids: vec![7] };
        let allowed = |section: &str| {
            let config = Config::parse(&format!("node = \"a\"\n[access]\n{section}")).unwrap();
            access::Policy::new(&config.access).0
        };
        let (strict, open) = (allowed(""), allowed("watch_others = [\"%50\"]"));
        let own = Standing::new("spy", &Selector::Name("victimd".into()), Origin::Config);
        assert_eq!(own.may_watch(&strict, &process(0)), Ok(()), "the operator's file may watch everything");
        let peer = |uid, groups: &[u32]| Some(access::Peer { pid: Some(1), uid, gid: uid, groups: groups.to_vec() });
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
        for _ in 0..CONNECTIONS_PER_USER {
            assert_eq!(admit(connected.iter().copied(), 1000), Ok(()));
            connected.push(1000);
        }
        let why = admit(connected.iter().copied(), 1000).unwrap_err();
        assert!(why.contains("user 1000 has 64 connections") && why.contains("close some"), "{why}");
        assert_eq!(admit(connected.iter().copied(), 1001), Ok(()), "another user has its own");

        let mut user = 1001;
        while connected.len() < CONNECTIONS - CONNECTIONS_FOR_ROOT {
            assert_eq!(admit(connected.iter().copied(), user), Ok(()));
            connected.push(user);
            user += 1;
        }
        let why = admit(connected.iter().copied(), user).unwrap_err();
        assert!(why.contains("kept for root"), "{why}");
        while connected.len() < CONNECTIONS {
            assert_eq!(admit(connected.iter().copied(), 0), Ok(()));
            connected.push(0);
        }
        let why = admit(connected.iter().copied(), 0).unwrap_err();
        assert!(why.contains("all 256") && why.contains("end some clients"), "{why}");
    }
}
