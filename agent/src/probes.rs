//! Probes (B10): whether a process that is not to be changed makes progress, asked from outside.
//!
//! Everything that a probe does may get stuck: a command, a look at a file on a server that is gone, a write to a disk that is frozen. So each run is a child
//! process, in which not even the kernel can hold up the agent, or its end; and of each probe there is one at a time. A run that succeeds counts as a
//! movement; whether there were enough of them is judged where all progress is ([`fide_proto::detector::progress`]). A run that takes as long as
//! the limit is ended: SIGTERM to its group, SIGKILL a second later; one that even that does not end is waited for, and nothing else waits.

use crate::config::{Probe, ProgressProbe};
use crate::hooks::{Job, Run, adopt, become_ordinary, spawn, wake};
use crate::wake::eventfd;
use crate::watchlist::Moves;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Runs within a limit.
const RUNS: u32 = 4;
/// Output kept of a run, bytes.
const OUTPUT_MAX: usize = 512;
/// From SIGTERM to SIGKILL.
const KILL_AFTER: Duration = Duration::from_secs(1);
/// What a file that is written begins with: no other is overwritten.
const MARK: &[u8] = b"fide progress probe\n";

/// Something to run again and again.
struct Asked {
    what: ProgressProbe,
    environment: Vec<(&'static str, String)>,
    moves: Moves,
    next: Instant,
    run: Option<Run>,
    /// Of the last run that succeeded.
    output: Option<String>,
    /// The last complaint, not to be repeated.
    complaint: String,
}

enum Order {
    Add(u32, Box<Asked>),
    Remove(u32),
    Stop,
}

/// Runs probes, on a thread of its own.
pub struct Probes {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Probes {
    /// Starts the thread. `helper`: this agent's own program, which looks at files and writes them ([`help`]).
    ///
    /// # Errors
    /// When the system gives no thread or descriptor.
    pub fn start(helper: PathBuf) -> io::Result<Self> {
        let (orders, ordered) = unbounded();
        let wake = Arc::new(eventfd()?);
        let mut runner = Runner { ordered, wake: wake.clone(), helper, asked: BTreeMap::new(), ending: Vec::new() };
        let thread = std::thread::Builder::new().name("fide-probes".into()).stack_size(256 << 10).spawn(move || {
            become_ordinary();
            while runner.turn() {}
        })?;
        Ok(Self { orders, wake, thread: Some(thread) })
    }

    /// Runs this probe for a process from now on. Each success adds one to `moves`.
    pub fn add(&self, app: u32, name: &str, pid: u32, what: ProgressProbe, moves: Moves) {
        let environment = vec![
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
            ("LANG", "C.UTF-8".into()),
            ("FIDE_APP", name.into()),
            ("FIDE_PID", pid.to_string()),
        ];
        let next = Instant::now();
        let asked = Asked { what, environment, moves, next, run: None, output: None, complaint: String::new() };
        self.order(Order::Add(app, Box::new(asked)));
    }

    /// No longer; what runs is ended.
    pub fn remove(&self, app: u32) {
        self.order(Order::Remove(app));
    }

    fn order(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            wake(&self.wake);
        }
    }
}

impl Drop for Probes {
    /// Ends the thread. Runs get SIGKILL; one that is stuck in the kernel is left to init.
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was told
        }
    }
}

struct Runner {
    ordered: Receiver<Order>,
    wake: Arc<OwnedFd>,
    helper: PathBuf,
    asked: BTreeMap<u32, Asked>,
    /// Runs of probes that are no longer asked for.
    ending: Vec<Run>,
}

impl Runner {
    fn turn(&mut self) -> bool {
        while let Ok(order) = self.ordered.try_recv() {
            match order {
                Order::Add(app, asked) => {
                    self.end(app);
                    self.asked.insert(app, *asked);
                }
                Order::Remove(app) => self.end(app),
                Order::Stop => {
                    let all: Vec<u32> = self.asked.keys().copied().collect();
                    all.into_iter().for_each(|app| self.end(app));
                    // Those that end at once are reaped.
                    std::thread::sleep(Duration::from_millis(10));
                    self.reap();
                    return false;
                }
            }
        }
        let now = Instant::now();
        for asked in self.asked.values_mut() {
            asked.advance(now);
            if asked.run.is_none() && now >= asked.next {
                asked.begin(&self.helper, now);
            }
        }
        self.reap();
        self.wait();
        true
    }

    fn end(&mut self, app: u32) {
        if let Some(mut run) = self.asked.remove(&app).and_then(|a| a.run) {
            run.kill();
            self.ending.push(run);
        }
    }

    fn reap(&mut self) {
        for i in (0..self.ending.len()).rev() {
            if self.ending[i].has_ended() {
                self.ending.swap_remove(i).finish(0);
            }
        }
    }

    fn wait(&self) {
        let entry = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = vec![entry(self.wake.as_raw_fd())];
        let runs = self.asked.values().filter_map(|a| a.run.as_ref());
        runs.chain(&self.ending).for_each(|run| fds.extend(run.fds().map(entry)));
        let due = |a: &Asked| a.run.as_ref().map_or(Some(a.next), Run::due);
        let until = self.asked.values().filter_map(due).min();
        let mut timeout_ms = until.map_or(-1, |u| {
            let left = u.saturating_duration_since(Instant::now());
            i32::try_from(left.as_millis()).unwrap_or(i32::MAX - 1) + 1
        });
        // Without a descriptor for its end it has to be looked at.
        if self.asked.values().filter_map(|a| a.run.as_ref()).chain(&self.ending).any(Run::is_blind) {
            timeout_ms = if timeout_ms < 0 { 20 } else { timeout_ms.min(20) };
        }
        // SAFETY: the array is live and of the length passed.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        let mut count = 0u64;
        // SAFETY: reads at most 8 bytes into a live variable; the descriptor does not block.
        unsafe { libc::read(self.wake.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

impl Asked {
    fn begin(&mut self, helper: &Path, now: Instant) {
        let limit = Duration::from_nanos(self.what.limit_ns);
        self.next = now + limit / RUNS;
        let helped = |option: &str, path: &Path| {
            vec![helper.to_string_lossy().into_owned(), option.into(), path.to_string_lossy().into_owned()]
        };
        let command = match &self.what.probe {
            Probe::Command(words) => words.clone(),
            Probe::File(path) => helped("--probe-file", path),
            Probe::Write(path) => helped("--probe-write", path),
        };
        let is_own = !matches!(self.what.probe, Probe::Command(_));
        let job = Job::of_probe(command, is_own, limit, self.environment.clone());
        match spawn(&job) {
            Ok(spawned) => self.run = Some(adopt(job, spawned)),
            Err(e) => self.complain(format!("cannot be started: {e}")),
        }
    }

    /// Looks after the run: its output, its time limit, its end.
    fn advance(&mut self, now: Instant) {
        let Some(run) = &mut self.run else { return };
        run.tend(now, OUTPUT_MAX, KILL_AFTER);
        if !run.has_ended() {
            return;
        }
        let Some(run) = self.run.take() else { return };
        let outcome = run.finish(OUTPUT_MAX);
        if outcome.is_failure() {
            let last = outcome.output.trim_end().lines().next_back().unwrap_or("").to_owned();
            self.complain(format!("{}{}{last}", outcome.result, if last.is_empty() { "" } else { "; it said: " }));
            return;
        }
        self.complaint.clear();
        let changes = matches!(self.what.probe, Probe::File(_));
        if !changes || self.output.as_ref() != Some(&outcome.output) {
            self.moves.fetch_add(1, Ordering::Release);
        }
        self.output = Some(outcome.output);
    }

    fn complain(&mut self, what: String) {
        if self.complaint != what {
            let name = self.environment.iter().find(|(k, _)| *k == "FIDE_APP").map_or("", |(_, v)| v);
            tracing::warn!("the progress probe of {name} ({}) {what}", self.what.probe);
            self.complaint = what;
        }
    }
}

/// What the helper does, in a process of its own: says how a file is, or writes one to its disk.
///
/// # Errors
/// In words, for the log.
pub fn help(file: Option<&Path>, write: Option<&Path>) -> Result<(), String> {
    if let Some(path) = file {
        use std::os::unix::fs::MetadataExt;
        let m = std::fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("{} {}.{:09} {}", m.ino(), m.mtime(), m.mtime_nsec(), m.size());
    }
    if let Some(path) = write {
        write_through(path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

fn write_through(path: &Path) -> io::Result<()> {
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)?;
    let other = || {
        io::Error::new(
            io::ErrorKind::AlreadyExists,
            "this file is somebody else's and is not written; name one that does not exist",
        )
    };
    // The directory may be another user's, who could give a file of the agent's a second name there, or make one for it to fill.
    let meta = file.metadata()?;
    // SAFETY: geteuid takes nothing and cannot fail.
    if !meta.is_file() || meta.nlink() != 1 || meta.uid() != unsafe { libc::geteuid() } {
        return Err(other());
    }
    let mut begin = Vec::new();
    Read::by_ref(&mut file).take(MARK.len() as u64).read_to_end(&mut begin)?;
    if !begin.is_empty() && begin != MARK {
        return Err(other());
    }
    file.rewind()?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    file.write_all(MARK)?;
    file.write_all(format!("{now:024}\n").as_bytes())?;
    file.sync_all()
}
