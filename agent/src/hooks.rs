//! Failure hooks: programs run with a verdict in their environment and as JSON on standard input.
//!
//! All of it happens on one thread of its own; [`Hooks::offer`] matches, puts a job into a bounded queue and returns.
//!
//! Jobs wait by source (the host and the user of the watch), and sources take turns; those of root come first and have a queue of their own. Of the programs
//! that run at once, one place is kept for root's, and one ordinary source has half of them. A program runs without a shell, in its own process group, with a clean environment, at ordinary priority and with no
//! inherited capabilities, for as long as its time limit allows: then the group gets SIGTERM, and SIGKILL a second later.
//!
//! Children are made by `posix_spawn`: a plain fork would write-protect the agent's memory and cost the lane's thread a page
//! fault for everything it touches next. The standard library's `Command` will not do, for its children inherit the
//! signals that the agent blocks, and would never hear of SIGTERM.

use crate::admission::{self, Dropped, HOOK_EVENT_CODE};
use crate::config::{Hook, HookAction};
use crate::fair::FairQueue;
use crate::files;
use crate::shares::EventSource;
use crossbeam_channel::{Receiver, Sender, bounded};
use fide_wire::control::HistoryEvent;
pub use fide_wire::maintenance::matches;
use fide_wire::verdict::{Cause, Grade, VerdictId};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Limits of the runner.
#[derive(Clone, Copy, Debug)]
pub struct HookOptions {
    /// Programs at once.
    pub concurrency: usize,
    /// Jobs that may wait: so many of root's, and so many of all others.
    pub queue: usize,
    /// Output kept of each, bytes.
    pub output_max: usize,
    /// From SIGTERM to SIGKILL.
    pub kill_after: Duration,
}

impl Default for HookOptions {
    fn default() -> Self {
        Self { concurrency: 4, queue: 64, output_max: 4096, kill_after: Duration::from_secs(1) }
    }
}

/// How a hook ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookResult {
    /// With exit status 0.
    Succeeded,
    /// With another exit status.
    Failed(i32),
    /// By a signal that the agent did not send.
    Signaled(i32),
    /// Killed by the agent at its time limit.
    TimedOut,
    /// It never began: why.
    NotStarted(String),
    /// The queue was full. Only counted, and told by [`Hooks::dropped`].
    Dropped,
    /// The agent ended before it began or before it was done.
    Cancelled,
}

impl HookResult {
    const COUNT: usize = 7;
    /// Names of all results, in the order of [`Hooks::counts`].
    pub const NAMES: [&'static str; Self::COUNT] =
        ["succeeded", "failed", "signaled", "timed-out", "not-started", "dropped", "cancelled"];

    const fn index(&self) -> usize {
        match self {
            HookResult::Succeeded => 0,
            HookResult::Failed(_) => 1,
            HookResult::Signaled(_) => 2,
            HookResult::TimedOut => 3,
            HookResult::NotStarted(_) => 4,
            HookResult::Dropped => 5,
            HookResult::Cancelled => 6,
        }
    }

    /// The name used in metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::NAMES[self.index()]
    }
}

impl fmt::Display for HookResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HookResult::Succeeded => f.write_str("succeeded"),
            HookResult::Failed(code) => write!(f, "failed with exit status {code}"),
            HookResult::Signaled(signal) => write!(f, "was ended by signal {signal}"),
            HookResult::TimedOut => f.write_str("was killed at its time limit"),
            HookResult::NotStarted(why) => write!(f, "could not be started: {why}"),
            HookResult::Dropped => f.write_str("was not run: too many hooks wait already"),
            HookResult::Cancelled => f.write_str("was cancelled because the agent ended"),
        }
    }
}

/// One run of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookOutcome {
    /// The program.
    pub program: String,
    /// The event it ran for: its number in the history.
    pub seq: u64,
    /// The verdict it ran for.
    pub id: Option<VerdictId>,
    /// Who made that happen.
    pub source: EventSource,
    /// How it ended.
    pub result: HookResult,
    /// How long it ran.
    pub took: Duration,
    /// What it printed, standard output and error together, cut to [`HookOptions::output_max`].
    pub output: String,
}

impl HookOutcome {
    /// Whether an operator should hear of it.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.result != HookResult::Succeeded
    }

    /// In words.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("hook {} for event {} {}", self.program, self.seq, self.result);
        if self.took > Duration::ZERO {
            text.push_str(&format!(" after {:.3} s", self.took.as_secs_f64()));
        }
        let last = self.output.trim_end().lines().next_back().unwrap_or("");
        if self.is_failure() && !last.is_empty() {
            text.push_str(&format!("; it said: {}", last.chars().take(200).collect::<String>()));
        }
        text
    }

    /// As an event for the history. `seq` is left to the history.
    #[must_use]
    pub fn event(&self, wall_ns: u64, at_ns: u64, observer: &str, incarnation: u32) -> HistoryEvent {
        HistoryEvent {
            seq: 0,
            wall_ns,
            at_ns,
            observer: observer.into(),
            observer_incarnation: incarnation,
            id: None,
            cause: Cause::Local,
            grade: Grade::Certain,
            node: observer.into(),
            incarnation,
            app: None,
            code: HOOK_EVENT_CODE,
            confirms: false,
            text: self.text(),
            maintenance: None,
            evidence: None,
        }
    }
}

/// Whether `hook` runs for `event`.
///
/// A crash is often seen twice, as *doomed* and then confirmed. A hook that ran for the first does not run for the second
/// unless it asks for `confirmations`.
#[must_use]
pub fn wants(hook: &Hook, event: &HistoryEvent) -> bool {
    let about_hooks = event.cause == Cause::Local && event.code == HOOK_EVENT_CODE;
    let again = event.confirms && hook.on.contains(&Cause::Doomed) && !hook.confirmations;
    hook.on.contains(&event.cause)
        && !about_hooks
        && !again
        && hook.filter.admits(event)
        && matches(&hook.pattern, &format!("{}@{}", event.app.as_deref().unwrap_or(""), event.node))
}

/// The environment of a hook, complete.
#[must_use]
pub fn environment(event: &HistoryEvent) -> Vec<(&'static str, String)> {
    const VALUE_MAX: usize = 8192;
    let clean = |text: &str| -> String {
        let mut text = text.replace('\0', "");
        while text.len() > VALUE_MAX {
            text.pop();
        }
        text
    };
    vec![
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
        ("LANG", "C.UTF-8".into()),
        ("FIDE_CAUSE", event.cause.name().into()),
        ("FIDE_GRADE", event.grade.to_string()),
        ("FIDE_FENCED", u8::from(event.is_fenced()).to_string()),
        ("FIDE_PLANNED", u8::from(event.is_planned()).to_string()),
        ("FIDE_MAINTENANCE", clean(event.maintenance.as_deref().unwrap_or(""))),
        ("FIDE_LEVEL", event.level().name().into()),
        ("FIDE_NODE", clean(&event.node)),
        ("FIDE_INCARNATION", event.incarnation.to_string()),
        ("FIDE_APP", clean(event.app.as_deref().unwrap_or(""))),
        ("FIDE_CODE", event.code.to_string()),
        ("FIDE_CONFIRMS", u8::from(event.confirms).to_string()),
        ("FIDE_ID", event.unique_id().map(|id| id.to_string()).unwrap_or_default()),
        ("FIDE_SEQ", event.seq.to_string()),
        ("FIDE_WALL_NS", event.wall_ns.to_string()),
        ("FIDE_OBSERVER", clean(&event.observer)),
        ("FIDE_TEXT", clean(&event.text)),
    ]
}

/// What the thread is given.
pub(crate) struct Job {
    command: Vec<String>,
    timeout: Duration,
    environment: Vec<(&'static str, String)>,
    input: Vec<u8>,
    seq: u64,
    id: Option<VerdictId>,
    source: EventSource,
    /// The name of its host, and whom the event is about.
    host: String,
    subject: String,
    /// The agent's own program, which needs no check.
    is_own: bool,
}

impl Job {
    /// A run of a probe, which no event is about.
    pub(crate) fn of_probe(
        command: Vec<String>,
        is_own: bool,
        timeout: Duration,
        environment: Vec<(&'static str, String)>,
    ) -> Self {
        let (source, host, subject) = (EventSource::OWN, String::new(), String::new());
        Self { command, timeout, environment, input: Vec::new(), seq: 0, id: None, source, host, subject, is_own }
    }

    fn outcome(&self, result: HookResult) -> HookOutcome {
        let program = self.command.first().cloned().unwrap_or_default();
        let (seq, id, source) = (self.seq, self.id, self.source);
        HookOutcome { program, seq, id, source, result, took: Duration::ZERO, output: String::new() }
    }
}

/// The jobs that wait.
struct Queues {
    /// Of root, on any host.
    roots: FairQueue<EventSource, Job>,
    /// Of everybody else.
    others: FairQueue<EventSource, Job>,
}

impl Queues {
    fn new(room: usize) -> Self {
        Self { roots: FairQueue::new(room), others: FairQueue::new(room) }
    }

    /// Gives the job that there is no room for.
    fn push(&mut self, job: Job) -> Option<Job> {
        let queue = if job.source.user == 0 { &mut self.roots } else { &mut self.others };
        queue.push(job.source, job)
    }

    /// The next job to begin beside those that run, of which there may be so many.
    fn next(&mut self, running: &[Run], concurrency: usize) -> Option<Job> {
        if running.len() >= concurrency {
            return None;
        }
        if let Some((_, job)) = self.roots.pop() {
            return Some(job);
        }
        let of_others = running.iter().filter(|run| run.job.source.user != 0).count();
        if of_others >= concurrency.saturating_sub(1).max(1) {
            return None;
        }
        let own_most = (concurrency / 2).max(1);
        let has_room = |source: &EventSource| running.iter().filter(|run| run.job.source == *source).count() < own_most;
        self.others.pop_where(has_room).map(|(_, job)| job)
    }

    fn pop(&mut self) -> Option<Job> {
        self.roots.pop().or_else(|| self.others.pop()).map(|(_, job)| job)
    }

    const fn is_empty(&self) -> bool {
        self.roots.is_empty() && self.others.is_empty()
    }
}

struct Shared {
    queues: Mutex<Queues>,
    counts: [AtomicU64; HookResult::COUNT],
    unread: AtomicU64,
    stopping: AtomicBool,
    /// When the last grace ends, ns after `began`; meaningful once `stopping`.
    grace_ns: AtomicU64,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner) // each change of it is whole
    }

    fn report(&self, outcomes: &Sender<HookOutcome>, outcome: HookOutcome) {
        self.counts[outcome.result.index()].fetch_add(1, Ordering::Relaxed);
        if outcomes.try_send(outcome).is_err() {
            self.unread.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs hooks.
pub struct Hooks {
    hooks: Vec<Hook>,
    /// What there was no room for, with the name of the source's host.
    dropped: BTreeMap<EventSource, (Dropped, String)>,
    room: usize,
    outcomes: Receiver<HookOutcome>,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    began: Instant,
}

impl Hooks {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread or descriptor.
    pub fn start(hooks: Vec<Hook>, options: HookOptions) -> io::Result<Self> {
        let room = options.queue.max(1);
        let (outcomes, ended) = bounded(256);
        let shared = Arc::new(Shared {
            queues: Mutex::new(Queues::new(room)),
            counts: Default::default(),
            unread: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            grace_ns: AtomicU64::new(0),
        });
        let wake = Arc::new(crate::wake::eventfd()?);
        let began = Instant::now();
        let mut runner = Runner { outcomes, shared: shared.clone(), wake: wake.clone(), options, running: Vec::new(), began };
        let thread = std::thread::Builder::new().name("fide-hooks".into()).stack_size(256 << 10).spawn(move || {
            become_ordinary();
            runner.run();
        })?;
        Ok(Self { hooks, dropped: BTreeMap::new(), room, outcomes: ended, shared, wake, thread: Some(thread), began })
    }

    /// Replaces the hooks (a reload). What runs and waits is not touched.
    pub fn set_hooks(&mut self, hooks: Vec<Hook>) {
        self.hooks = hooks;
    }

    /// Queues every hook that wants this event, which this source made happen; gives their number. Never waits.
    pub fn offer(&mut self, event: &HistoryEvent, source: EventSource) -> usize {
        let mut queued = 0;
        if self.thread.is_none() {
            return queued; // nothing begins any more
        }
        for hook in self.hooks.iter().filter(|h| h.action == HookAction::Run && wants(h, event)) {
            let mut input = serde_json::to_vec(event).unwrap_or_default();
            input.push(b'\n');
            let job = Job {
                command: hook.command.clone(),
                timeout: hook.timeout,
                environment: environment(event),
                input,
                seq: event.seq,
                id: event.id,
                source,
                host: event.node.clone(),
                subject: admission::subject(event),
                is_own: false,
            };
            queued += 1;
            let Some(dropped) = self.shared.queues().push(job) else { continue };
            // It may be another source's that gives way.
            queued -= usize::from(dropped.source == source);
            self.shared.counts[HookResult::Dropped.index()].fetch_add(1, Ordering::Relaxed);
            let program = dropped.command.first().cloned().unwrap_or_default();
            let (count, host) = self.dropped.entry(dropped.source).or_default();
            count.note(format!("{program} for {}", dropped.subject));
            *host = dropped.host;
        }
        if queued > 0 {
            wake(&self.wake);
        }
        queued
    }

    /// Hooks that were not run, in words, with the sources that they would have run for: once for each source, and once a minute while that goes on.
    pub fn dropped(&mut self, now_ns: u64) -> Vec<(EventSource, String)> {
        let mut told = Vec::new();
        for (source, (dropped, host)) in &mut self.dropped {
            let Some((count, last)) = dropped.due(now_ns) else { continue };
            let (whom, room) = (source.named(host), self.room);
            let text =
                format!("{count} runs of hooks for {whom} were dropped (the last: {last}): {room} of its kind wait already");
            told.push((*source, text));
        }
        self.dropped.retain(|_, (dropped, _)| !dropped.is_idle(now_ns));
        told
    }

    /// Whether a hook says that this is to be done with the process of this event.
    #[must_use]
    pub fn says(&self, action: HookAction, event: &HistoryEvent) -> bool {
        self.hooks.iter().any(|h| h.action == action && event.cause == Cause::Hung && wants(h, event))
    }

    /// Where outcomes arrive. Bounded: what is not read is counted ([`Hooks::unread`]) and dropped.
    #[must_use]
    pub fn outcomes(&self) -> &Receiver<HookOutcome> {
        &self.outcomes
    }

    /// Runs so far by result, in the order of [`HookResult::NAMES`].
    #[must_use]
    pub fn counts(&self) -> [u64; HookResult::COUNT] {
        std::array::from_fn(|i| self.shared.counts[i].load(Ordering::Relaxed))
    }

    /// Outcomes that nobody read in time.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.shared.unread.load(Ordering::Relaxed)
    }

    /// Ends the thread: what runs and waits has `grace` to be done, then it is killed. Waits that long at most, and a
    /// little for the killing. Outcomes can be read afterwards.
    pub fn shutdown(&mut self, grace: Duration) {
        let Some(thread) = self.thread.take() else { return };
        let until = self.began.elapsed().saturating_add(grace).as_nanos();
        self.shared.grace_ns.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.shared.stopping.store(true, Ordering::Release);
        wake(&self.wake);
        let _ = thread.join();
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

pub(crate) fn wake(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: writes 8 bytes from a live variable; a full counter (EAGAIN) wakes as well.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Undoes what the thread inherited from a lane that is pinned, real-time and privileged: its children inherit it in turn.
pub(crate) fn become_ordinary() {
    // SAFETY: plain system calls on this thread with live arguments; where one is refused, nothing is lost.
    unsafe {
        let param = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const param);
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        (0..libc::CPU_SETSIZE as usize).for_each(|cpu| libc::CPU_SET(cpu, &mut all));
        libc::sched_setaffinity(0, size_of_val(&all), &raw const all);
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    }
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Terminated,
    Killed,
}

pub(crate) struct Run {
    job: Job,
    pid: libc::pid_t,
    pidfd: Option<OwnedFd>,
    stdin: Option<PipeWriter>,
    written: usize,
    stdout: Option<PipeReader>,
    output: Vec<u8>,
    cut: bool,
    began: Instant,
    /// When the next stage begins.
    deadline: Instant,
    stage: Stage,
    /// Killed because the agent ends, not for being slow.
    cancelled: bool,
}

struct Runner {
    outcomes: Sender<HookOutcome>,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    options: HookOptions,
    running: Vec<Run>,
    began: Instant,
}

impl Runner {
    fn run(&mut self) {
        loop {
            let stopping = self.shared.stopping.load(Ordering::Acquire);
            let grace =
                stopping.then(|| self.began + Duration::from_nanos(self.shared.grace_ns.load(Ordering::Relaxed).min(1 << 60)));
            if grace.is_some_and(|g| Instant::now() >= g) {
                self.cancel();
            }
            while let Some(job) = self.next() {
                self.begin(job);
            }
            if stopping && self.running.is_empty() && self.shared.queues().is_empty() {
                return;
            }
            self.wait(grace.filter(|g| *g > Instant::now()));
            self.advance();
        }
    }

    fn next(&self) -> Option<Job> {
        self.shared.queues().next(&self.running, self.options.concurrency.max(1))
    }

    /// The grace is over: nothing new begins, and what runs is asked to end.
    fn cancel(&mut self) {
        loop {
            let Some(job) = self.shared.queues().pop() else { break };
            self.shared.report(&self.outcomes, job.outcome(HookResult::Cancelled));
        }
        for run in self.running.iter_mut().filter(|r| r.stage == Stage::Running) {
            run.cancelled = true;
            run.deadline = Instant::now();
        }
    }

    fn begin(&mut self, job: Job) {
        match spawn(&job) {
            Ok(spawned) => self.running.push(adopt(job, spawned)),
            Err(e) => {
                let why = match e.kind() {
                    io::ErrorKind::NotFound => {
                        format!("{e}; see that the program (and the interpreter in its first line) exists")
                    }
                    io::ErrorKind::PermissionDenied => format!("{e}; see that it is executable by the agent's user"),
                    _ => e.to_string(),
                };
                let outcome = job.outcome(HookResult::NotStarted(why));
                tracing::warn!("{}", outcome.text());
                self.shared.report(&self.outcomes, outcome);
            }
        }
    }

    /// Sleeps until a child, a pipe, a new job or a deadline wants something.
    fn wait(&self, grace: Option<Instant>) {
        let entry = |fd: RawFd, events| libc::pollfd { fd, events, revents: 0 };
        let mut fds = vec![entry(self.wake.as_raw_fd(), libc::POLLIN)];
        let mut until = grace;
        let mut blind = false;
        for run in &self.running {
            fds.extend(run.pidfd.as_ref().map(|p| entry(p.as_raw_fd(), libc::POLLIN)));
            fds.extend(run.stdin.as_ref().map(|p| entry(p.as_raw_fd(), libc::POLLOUT)));
            fds.extend(run.stdout.as_ref().map(|p| entry(p.as_raw_fd(), libc::POLLIN)));
            blind |= run.pidfd.is_none();
            if run.stage != Stage::Killed {
                until = Some(until.map_or(run.deadline, |u| u.min(run.deadline)));
            }
        }
        let mut timeout = until.map_or(-1, |u| {
            let left = u.saturating_duration_since(Instant::now());
            i32::try_from(left.as_millis()).unwrap_or(i32::MAX - 1) + 1
        });
        if blind {
            timeout = if timeout < 0 { 20 } else { timeout.min(20) };
        }
        // SAFETY: the array is live and of the length passed.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
        let mut count = 0u64;
        // SAFETY: reads at most 8 bytes into a live variable; the descriptor does not block.
        unsafe { libc::read(self.wake.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    fn advance(&mut self) {
        let now = Instant::now();
        let mut at = 0;
        while at < self.running.len() {
            let run = &mut self.running[at];
            run.tend(now, self.options.output_max, self.options.kill_after);
            if run.has_ended() {
                let outcome = self.running.swap_remove(at).finish(self.options.output_max);
                if outcome.is_failure() {
                    tracing::warn!(output = outcome.output, "{}", outcome.text());
                } else {
                    tracing::info!(output = outcome.output, "{}", outcome.text());
                }
                self.shared.report(&self.outcomes, outcome);
            } else {
                at += 1;
            }
        }
    }
}

/// A program just started, and the agent's ends of its pipes.
pub(crate) struct Spawned {
    pid: libc::pid_t,
    stdin: PipeWriter,
    stdout: PipeReader,
}

pub(crate) fn spawn(job: &Job) -> io::Result<Spawned> {
    if !job.is_own {
        let program = job.command.first().map_or("", String::as_str);
        for doubt in files::program(Path::new(program))? {
            tracing::debug!("{doubt}");
        }
    }
    let text = |t: &str| CString::new(t).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a NUL character in it"));
    let arguments = job.command.iter().map(|a| text(a)).collect::<io::Result<Vec<_>>>()?;
    let environment = job.environment.iter().map(|(k, v)| text(&format!("{k}={v}"))).collect::<io::Result<Vec<_>>>()?;
    let Some(program) = arguments.first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "an empty command"));
    };
    let pointers = |list: &[CString]| -> Vec<*mut libc::c_char> {
        list.iter().map(|c| c.as_ptr().cast_mut()).chain([std::ptr::null_mut()]).collect()
    };
    let (argv, envp) = (pointers(&arguments), pointers(&environment));
    // Closed on exec, both ends; the child's are duplicated to 0, 1 and 2.
    let (stdin, writer) = io::pipe()?;
    let (reader, stdout) = io::pipe()?;
    let done = |rc: libc::c_int| if rc == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(rc)) };
    let flags = libc::POSIX_SPAWN_SETPGROUP | libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
    let mut pid = 0;
    // SAFETY: attributes and actions are initialised before use and destroyed after; all pointers are to live data, the two
    // lists end with a null pointer, and the C library copies what it keeps.
    unsafe {
        let mut attributes = std::mem::zeroed();
        let mut actions = std::mem::zeroed();
        done(libc::posix_spawnattr_init(&raw mut attributes))?;
        done(libc::posix_spawn_file_actions_init(&raw mut actions))?;
        let mut prepare = || {
            let (mut none, mut all): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&raw mut none);
            libc::sigfillset(&raw mut all);
            done(libc::posix_spawnattr_setflags(&raw mut attributes, flags as libc::c_short))?;
            done(libc::posix_spawnattr_setpgroup(&raw mut attributes, 0))?;
            done(libc::posix_spawnattr_setsigmask(&raw mut attributes, &raw const none))?;
            done(libc::posix_spawnattr_setsigdefault(&raw mut attributes, &raw const all))?;
            done(libc::posix_spawn_file_actions_addchdir_np(&raw mut actions, c"/".as_ptr()))?;
            for (fd, to) in [(stdin.as_raw_fd(), 0), (stdout.as_raw_fd(), 1), (stdout.as_raw_fd(), 2)] {
                done(libc::posix_spawn_file_actions_adddup2(&raw mut actions, fd, to))?;
            }
            done(libc::posix_spawn(
                &raw mut pid,
                program.as_ptr(),
                &raw const actions,
                &raw const attributes,
                argv.as_ptr(),
                envp.as_ptr(),
            ))
        };
        let result = prepare();
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        libc::posix_spawnattr_destroy(&raw mut attributes);
        result?;
    }
    Ok(Spawned { pid, stdin: writer, stdout: reader })
}

pub(crate) fn adopt(job: Job, Spawned { pid, stdin, stdout }: Spawned) -> Run {
    // The agent is spared by the OOM killer; what it runs should not be. Raising the score needs no privilege.
    let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "0");
    // SAFETY: the child is ours and not yet reaped, so the number is its own; the call returns a descriptor or -1.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: when not negative, it was just made and belongs to nobody else.
    let pidfd = (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd as RawFd) });
    for fd in [stdin.as_raw_fd(), stdout.as_raw_fd()] {
        // SAFETY: the descriptor is open, and ours alone: the child's ends of these pipes are other open files.
        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    }
    let began = Instant::now();
    let deadline = began + job.timeout;
    Run {
        job,
        pid,
        pidfd,
        stdin: Some(stdin),
        written: 0,
        stdout: Some(stdout),
        output: Vec::new(),
        cut: false,
        began,
        deadline,
        stage: Stage::Running,
        cancelled: false,
    }
}

impl Run {
    /// Moves its input and output along, and ends it step by step once its time is up.
    pub(crate) fn tend(&mut self, now: Instant, output_max: usize, kill_after: Duration) {
        self.feed();
        self.drain(output_max);
        if now >= self.deadline && self.stage != Stage::Killed {
            self.next_stage(now, kill_after);
        }
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        self.signal_group(libc::SIGKILL);
        self.stage = Stage::Killed;
        self.cancelled = true;
    }

    /// When its next stage begins, if there is one.
    pub(crate) fn due(&self) -> Option<Instant> {
        (self.stage != Stage::Killed).then_some(self.deadline)
    }

    /// Readable when it ended or said something.
    pub(crate) fn fds(&self) -> impl Iterator<Item = RawFd> {
        let ended = self.pidfd.as_ref().map(AsRawFd::as_raw_fd);
        ended.into_iter().chain(self.stdout.as_ref().map(AsRawFd::as_raw_fd))
    }

    /// Whether there is no descriptor for its end.
    pub(crate) fn is_blind(&self) -> bool {
        self.pidfd.is_none()
    }

    fn feed(&mut self) {
        while let Some(pipe) = &mut self.stdin {
            match pipe.write(&self.job.input[self.written..]) {
                Ok(n) if n > 0 && self.written + n < self.job.input.len() => self.written += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // All is written, or nobody reads it.
                _ => self.stdin = None,
            }
        }
    }

    fn drain(&mut self, max: usize) {
        let mut buffer = [0u8; 4096];
        // Bounded, so that a chatterbox does not keep the thread from its other children.
        for _ in 0..64 {
            let Some(pipe) = &mut self.stdout else { return };
            match pipe.read(&mut buffer) {
                Ok(0) => self.stdout = None,
                Ok(n) => {
                    let room = max.saturating_sub(self.output.len()).min(n);
                    self.output.extend_from_slice(&buffer[..room]);
                    self.cut |= room < n;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.stdout = None,
            }
        }
    }

    fn signal_group(&self, signal: libc::c_int) {
        // SAFETY: the leader is not reaped yet, so its number still names its own group.
        unsafe { libc::kill(-self.pid, signal) };
    }

    fn next_stage(&mut self, now: Instant, kill_after: Duration) {
        if self.stage == Stage::Running {
            self.signal_group(libc::SIGTERM);
            // A stopped process would not get it.
            self.signal_group(libc::SIGCONT);
            self.stage = Stage::Terminated;
            self.deadline = now + kill_after;
        } else {
            self.signal_group(libc::SIGKILL);
            self.stage = Stage::Killed;
        }
    }

    /// Whether the program has ended; it is not reaped by this.
    pub(crate) fn has_ended(&self) -> bool {
        // SAFETY: siginfo is plain data for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is live; the child is ours.
        let rc = unsafe { libc::waitid(libc::P_PID, self.pid as libc::id_t, &raw mut info, options) };
        // SAFETY: waitid filled it in or left it zero.
        rc != 0 || unsafe { info.si_pid() } != 0
    }

    pub(crate) fn finish(mut self, output_max: usize) -> HookOutcome {
        // What it left behind after being told to end goes with it; what it left behind on purpose may stay.
        if self.stage != Stage::Running {
            self.signal_group(libc::SIGKILL);
        }
        self.drain(output_max);
        let mut status = 0;
        // SAFETY: `status` is live; the child is ours and has ended.
        let reaped = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        let ended = if reaped == self.pid { Ok(ExitStatus::from_raw(status)) } else { Err(io::Error::last_os_error()) };
        let result = match ended {
            _ if self.stage != Stage::Running && self.cancelled => HookResult::Cancelled,
            _ if self.stage != Stage::Running => HookResult::TimedOut,
            Ok(status) => match (status.code(), status.signal()) {
                (Some(0), _) => HookResult::Succeeded,
                (Some(code), _) => HookResult::Failed(code),
                (None, signal) => HookResult::Signaled(signal.unwrap_or(0)),
            },
            Err(e) => HookResult::NotStarted(format!("its end could not be learnt: {e}")),
        };
        let mut output = String::from_utf8_lossy(&self.output).into_owned();
        if self.cut {
            output.push('…');
        }
        HookOutcome { took: self.began.elapsed(), output, ..self.job.outcome(result) }
    }
}
