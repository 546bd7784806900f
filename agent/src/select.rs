//! From the name an operator uses ([`Selector`]) to one process, or a refusal that lists the candidates.
//!
//! Only `/proc` is read, so every kind of container looks the same; `systemctl` is asked when a unit's processes alone
//! do not tell which is the main one. A process is identified by its number *and* its start time ([`Target`]), so that a
//! number used again is not taken for it ([`Resolver::still_same`]).
//!
//! Several matches are narrowed down by two rules before they are refused: a process whose ancestor matches as well is that
//! one's child (PostgreSQL's backends, nginx's workers), and processes in the agent's own network namespace come first
//! (a container's port 6379 does not hide the host's).
//!
//! Anybody on this host can give a process a name, or listen on a port that is free. So a selector is applied within a
//! [`Scope`]: the user whose processes are meant, whether containers are, and the place of the process before.

use crate::service;
use fide_wire::control::{ErrorCode, Refused, Selector};
use fide_wire::verdict::Cause;
use fide_xdp::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Processes that are exiting are waited for so many ms, all of one turn together: they exit side
/// by side, and whoever asks meanwhile waits as well.
pub const EXITS_WITHIN_MS: u32 = 20;

/// One process, so that it cannot be mistaken for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its number in the agent's pid namespace.
    pub pid: u32,
    /// When it started, clock ticks after boot (field 22 of `/proc/pid/stat`).
    pub start_ticks: u64,
    /// Its effective user.
    pub uid: u32,
    /// The user who started it, unless it changed that.
    pub real_uid: u32,
    /// The user it can become again.
    pub saved_uid: u32,
    /// Its `comm`.
    pub comm: String,
    /// Its executable, if it may be seen.
    pub exe: Option<String>,
    /// Its numbers from the agent's pid namespace down to its own.
    pub nspids: Vec<u32>,
}

impl Target {
    /// Which process it is.
    #[must_use]
    pub fn identity(&self) -> Process {
        Process { pid: self.pid, start_ticks: self.start_ticks }
    }

    /// Whether it is this user's, and nobody else's: not a program that a user runs with other rights than his own (set-user-ID), whatever he calls it.
    #[must_use]
    pub fn is_of(&self, uid: u32) -> bool {
        self.real_uid == uid && self.uid == uid
    }

    /// The user who may speak for it: of a process between two users, root.
    #[must_use]
    pub fn owner(&self) -> u32 {
        if self.real_uid == self.uid { self.uid } else { 0 }
    }

    /// Whether this user may send it a signal, by the kernel's rule (kill(2)).
    #[must_use]
    pub fn may_be_killed_by(&self, uid: u32) -> bool {
        uid == 0 || uid == self.real_uid || uid == self.saved_uid
    }
}

/// What must be true of a process beside what its selector says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// It is this user's, in fact and in effect; `None`: anybody's.
    pub user: Option<u32>,
    /// The user whose own units and containers are meant as well: everybody with a service manager can have them, under any name.
    pub manager: Option<u32>,
    /// It may be in another network namespace than the agent, where there is none in the agent's own.
    pub containers: bool,
    /// It is where the process was that the watch had before.
    pub place: Option<Place>,
    /// It is no child that this process has left behind.
    pub crashed: Option<Crashed>,
}

/// The process that a watch had before, and that has crashed: children that go on without it are no next instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crashed {
    /// When (clock ticks after boot).
    pub at_ticks: u64,
    /// Its parent, which is that of other instances, too, but not of its children. `None`: whatever answers to the selector belongs to it.
    pub parent: Option<u32>,
    /// The cgroup of its systemd service.
    pub service: Option<String>,
}

/// Where a process is: what stays the same when its service is restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The agent's own network namespace.
    pub own_network: bool,
    /// Its user.
    pub user: u32,
    /// The cgroup of its systemd service, if it is in one that keeps its name.
    pub service: Option<String>,
}

/// What `/proc/pid/stat` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The name, which may contain anything, parentheses and spaces included.
    pub comm: String,
    /// `R`, `S`, `D`, `T`, `t`, `Z`, `X`, …
    pub state: u8,
    /// The parent.
    pub ppid: u32,
    /// `PF_…` flags.
    pub flags: u64,
    /// Start time, clock ticks after boot.
    pub start_ticks: u64,
    /// A wait status, of one that is exiting or dead and whose statistics may be read.
    pub status: i32,
}

impl Stat {
    /// Whether it is dead and only waits to be reaped.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// Whether it is on its way there, past all that it does by itself.
    fn is_exiting(&self) -> bool {
        const PF_EXITING: u64 = 0x4;
        self.flags & PF_EXITING != 0
    }

    fn is_kernel_thread(&self) -> bool {
        const PF_KTHREAD: u64 = 0x0020_0000;
        self.flags & PF_KTHREAD != 0
    }
}

/// The clock ticks after boot, as start times are counted, at this moment of CLOCK_MONOTONIC.
#[must_use]
pub fn ticks_at(monotonic_ns: u64) -> u64 {
    const NS_PER_TICK: u64 = 10_000_000; // USER_HZ is 100 on every architecture that runs this
    let mut boot = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a timespec to fill; CLOCK_BOOTTIME exists since Linux 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut boot) };
    let slept_ns = (boot.tv_sec as u64 * 1_000_000_000 + boot.tv_nsec as u64).saturating_sub(crate::clock::now_ns());
    monotonic_ns.saturating_add(slept_ns) / NS_PER_TICK
}

/// Whether this process can still do something by itself: no other that has its number by now, and none that is dead or exiting. The main thread may be dead
/// long before the others.
#[must_use]
pub fn lives(proc: &Path, pid: u32, start_ticks: u64) -> bool {
    let dir = proc.join(pid.to_string());
    stat_in(&dir).is_some_and(|main| main.start_ticks == start_ticks && has_thread(&dir, &main))
}

/// Tells the program that this process runs from the one that it ran before an `exec`: by where the kernel laid out its code and stack, at random (unless that
/// is switched off). `None`: the process has ended or is exiting, or the agent may not see it.
#[must_use]
pub fn image(proc: &Path, pid: u32, start_ticks: u64) -> Option<u64> {
    let line = std::fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
    let stat = parse_stat(&line).filter(|s| s.start_ticks == start_ticks && !s.is_dead() && !s.is_exiting())?;
    let rest = std::str::from_utf8(line.get(line.iter().rposition(|b| *b == b')')? + 1..)?).ok()?;
    let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3)?.parse::<u64>().ok();
    let (memory, code, stack) = (field(23)?, field(26)?, field(28)?);
    // Without memory it is exiting; 1 instead of an address: not for everybody's eyes.
    (memory != 0 && code != 1 && !stat.is_kernel_thread()).then_some(code.rotate_left(32) ^ stack)
}

/// Whether one of its threads, of which the main one is like this, is neither dead nor exiting.
fn has_thread(dir: &Path, main: &Stat) -> bool {
    let runs = |s: &Stat| !s.is_dead() && !s.is_exiting();
    let threads = || std::fs::read_dir(dir.join("task")).into_iter().flatten().flatten();
    runs(main) || threads().any(|thread| stat_in(&thread.path()).is_some_and(|s| runs(&s)))
}

fn stat_in(dir: &Path) -> Option<Stat> {
    parse_stat(&std::fs::read(dir.join("stat")).ok()?)
}

/// Reads a `/proc/pid/stat` line; `None` if it is not one. The name ends at the *last* parenthesis, for it may hold others.
#[must_use]
pub fn parse_stat(line: &[u8]) -> Option<Stat> {
    let open = line.iter().position(|b| *b == b'(')?;
    let close = line.iter().rposition(|b| *b == b')')?;
    let comm = line.get(open + 1..close)?;
    let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // `fields[0]` is field 3 of proc(5).
    let field = |number: usize| fields.get(number - 3);
    Some(Stat {
        comm: String::from_utf8_lossy(comm).into_owned(),
        state: *field(3)?.as_bytes().first()?,
        ppid: field(4)?.parse().ok()?,
        flags: field(9)?.parse().ok()?,
        start_ticks: field(22)?.parse().ok()?,
        status: field(52).and_then(|status| status.parse().ok()).unwrap_or(0),
    })
}

/// What is taken from `/proc/pid/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ProcStatus {
    tgid: u32,
    /// Real, effective, saved.
    uids: [u32; 3],
    nspids: Vec<u32>,
}

fn parse_status(text: &str) -> Option<ProcStatus> {
    let values = |key: &str| text.lines().find_map(|l| l.strip_prefix(key));
    let numbers = |key: &str| -> Vec<u32> {
        values(key).map(|v| v.split_ascii_whitespace().map_while(|n| n.parse().ok()).collect()).unwrap_or_default()
    };
    let uids = numbers("Uid:").get(..3)?.try_into().ok()?;
    Some(ProcStatus { tgid: *numbers("Tgid:").first()?, uids, nspids: numbers("NSpid:") })
}

/// The inodes of sockets that listen on `port`, from the text of `/proc/net/tcp` or `tcp6`.
fn listening_inodes(text: &str, port: u16, inodes: &mut BTreeSet<u64>) {
    const LISTEN: &str = "0A";
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (Some(local), Some(&state), Some(inode)) = (fields.get(1), fields.get(3), fields.get(9)) else { continue };
        let local_port = local.rsplit(':').next().and_then(|p| u16::from_str_radix(p, 16).ok());
        if state == LISTEN && local_port == Some(port) {
            inodes.extend(inode.parse::<u64>().ok().filter(|i| *i != 0));
        }
    }
}

/// The cgroup paths in the text of `/proc/pid/cgroup`, every hierarchy's.
fn cgroup_paths(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|l| l.splitn(3, ':').nth(2))
}

/// The whole name of a unit.
fn unit_name(unit: &str) -> Result<String, Refused> {
    const SUFFIXES: [&str; 3] = [".service", ".scope", ".slice"];
    if unit.is_empty() || unit.contains('/') || unit.starts_with('-') || unit.chars().any(|c| c.is_control() || c == ' ') {
        return refused(ErrorCode::Invalid, format!("`{unit}` is not the name of a unit; it looks like redis-server.service"));
    }
    Ok(if SUFFIXES.iter().any(|s| unit.ends_with(s)) { unit.to_owned() } else { format!("{unit}.service") })
}

/// The last part of the path of the cgroup that a unit or cgroup is; `None` where that cannot be known beforehand (a container's id).
#[must_use]
pub fn cgroup_of_selector(selector: &Selector) -> Option<String> {
    match selector {
        Selector::Unit(unit) => unit_name(unit).ok(),
        Selector::Cgroup(cgroup) => {
            let (path, is_id) = cgroup_name(cgroup).ok()?;
            if is_id { None } else { path.rsplit('/').next().map(str::to_owned) }
        }
        _ => None,
    }
}

/// How near to a unit a process is, by the text of its `/proc/pid/cgroup`. 2: in the unit's own cgroup; 1: in one below it (a delegated unit);
/// 0: elsewhere. Users have units of their own, under any name: those count only where this user's are meant.
fn unit_rank(text: &str, unit: &str, manager: Option<u32>) -> usize {
    let of_a_user = |path: &str| user_manager(path).is_some_and(|uid| manager != Some(uid));
    let one = |path: &str| match path.rsplit('/').position(|c| c == unit) {
        Some(_) if of_a_user(path) && !unit.starts_with("user@") => 0,
        Some(0) => 2,
        Some(_) => 1,
        None => 0,
    };
    cgroup_paths(text).map(one).max().unwrap_or(0)
}

/// A cgroup's path below the root, or a container's id, and whether it may be one.
fn cgroup_name(wanted: &str) -> Result<(&str, bool), Refused> {
    let path = wanted.strip_prefix("/sys/fs/cgroup/").unwrap_or(wanted).trim_matches('/');
    if path.is_empty() || path.contains("..") {
        return refused(ErrorCode::Invalid, "name a cgroup below the root, or a container by 12 or more digits of its id");
    }
    Ok((path, path.len() >= 12 && path.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))))
}

/// The container or cgroup of this name that a process is in, by the text of its `/proc/pid/cgroup`.
fn cgroup_of<'a>(text: &'a str, path: &'a str, is_id: bool, manager: Option<u32>) -> Option<&'a str> {
    let may_be = |p: &&str| is_id && user_manager(p).is_none_or(|uid| manager == Some(uid));
    let id = cgroup_paths(text).filter(may_be).find_map(|p| p.split('/').find_map(|c| container_id(c, path)));
    id.or_else(|| cgroup_paths(text).any(|p| is_or_below(p, path)).then_some(path))
}

/// The user whose own service manager made this cgroup, if one did: `…/user@1000.service/app.slice/x.service`.
fn user_manager(path: &str) -> Option<u32> {
    let (above, _) = path.rsplit_once('/')?;
    above.split('/').find_map(|c| c.strip_prefix("user@")?.strip_suffix(".service")?.parse().ok())
}

/// The part of a cgroup's path up to the service that it belongs to, unless that one's name is made up anew each time (`systemd-run`).
fn service_path(path: &str) -> Option<&str> {
    let end = path.rfind(".service")? + ".service".len();
    let (path, rest) = path.split_at(end);
    let name = path.rsplit('/').next()?;
    let passing = name.starts_with("run-r") || name.starts_with("run-u") || name.starts_with("run-p");
    ((rest.is_empty() || rest.starts_with('/')) && !passing).then_some(path)
}

/// Whether a cgroup's name is that of container `id` (a prefix): `docker-<id>.scope`, `<id>`, `cri-containerd-<id>.scope`,
/// but not of the process that supervises it (`libpod-conmon-<id>.scope`). Gives the whole id.
fn container_id<'a>(component: &'a str, id: &str) -> Option<&'a str> {
    if component.contains("conmon") {
        return None;
    }
    component.split(|c: char| !c.is_ascii_hexdigit()).find(|run| run.starts_with(id))
}

/// How long a look-up may take, and whether anybody still waits for it.
#[derive(Clone, Debug)]
pub struct Limit {
    until: Instant,
    ended: Arc<AtomicBool>,
}

impl Limit {
    /// So long from now.
    #[must_use]
    pub fn new(time: Duration) -> Self {
        Self { until: Instant::now() + time, ended: Arc::default() }
    }

    /// Ends the look-up now.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Whether it is to end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || Instant::now() >= self.until
    }
}

/// Finds processes.
#[derive(Clone, Debug)]
pub struct Resolver {
    proc: PathBuf,
    ask_systemd: bool,
    limit: Option<Limit>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self { proc: "/proc".into(), ask_systemd: true, limit: None }
    }
}

fn refused<T>(code: ErrorCode, what: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { code, what: what.into() })
}

impl Resolver {
    /// One that reads another tree than `/proc` and asks nobody else: for tests.
    #[must_use]
    pub fn at(proc: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into(), ask_systemd: false, limit: None }
    }

    /// The same for one look-up that ends when its time is over, or nobody waits for it.
    #[must_use]
    pub fn within(&self, limit: &Limit) -> Self {
        Self { limit: Some(limit.clone()), ..self.clone() }
    }

    /// Whether this look-up reads the entries of one process alone, not those of all: then it need not wait for a worker.
    #[must_use]
    pub fn is_quick(&self, selector: &Selector, peer: Option<u32>) -> bool {
        let Selector::Pid(_) = selector else { return false };
        let namespace = |pid: &str| std::fs::read_link(self.proc.join(pid).join("ns/pid")).ok();
        peer.is_none_or(|peer| namespace(&peer.to_string()).is_some_and(|theirs| Some(theirs) == namespace("self")))
    }

    /// The process meant by `selector`, of any user, in the agent's own network. `peer` is the asking process (from SO_PEERCRED): a pid is read in
    /// its pid namespace.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`], [`ErrorCode::Ambiguous`] with the candidates, or [`ErrorCode::Invalid`].
    pub fn resolve(&self, selector: &Selector, peer: Option<u32>) -> Result<Target, Refused> {
        self.resolve_within(&Scope::default(), selector, peer)
    }

    /// The same within a scope.
    ///
    /// # Errors
    /// As [`Resolver::resolve`].
    pub fn resolve_within(&self, scope: &Scope, selector: &Selector, peer: Option<u32>) -> Result<Target, Refused> {
        let found = match selector {
            Selector::Pid(pid) => self.by_pid(*pid, peer),
            Selector::Name(name) => self.by_name(name, scope),
            Selector::Unit(unit) => self.by_unit(unit, scope),
            Selector::Cgroup(cgroup) => self.by_cgroup(cgroup, scope),
            Selector::Port(port) => self.by_port(*port, scope),
        };
        // What was not read any more is missing in what was found.
        if self.is_over() {
            return refused(
                ErrorCode::System,
                format!(
                    "the look-up of {selector} took too long on this host and was ended; a standing watch tries again by itself, else name the process by its pid"
                ),
            );
        }
        let found = found?;
        if self.is_left_behind(scope, &found) {
            return refused(ErrorCode::NotFound, left_behind(&found));
        }
        // It may have become another user's since it was listed, and not every way lists.
        match scope.user.filter(|user| !found.is_of(*user)) {
            Some(user) => refused(ErrorCode::NotFound, of_another_user(&found, user)),
            None => Ok(found),
        }
    }

    fn is_over(&self) -> bool {
        self.limit.as_ref().is_some_and(Limit::is_over)
    }

    /// Whether this process is one that the selector may mean, alone or among others.
    #[must_use]
    pub fn fits(&self, scope: &Scope, selector: &Selector, pid: u32) -> bool {
        // Whose it is costs least to see.
        if self.misfit(scope, pid, true).is_some() {
            return false;
        }
        let text = || self.read_text(pid, "cgroup").unwrap_or_default();
        let (named, is_near) = match selector {
            Selector::Pid(wanted) => (*wanted == pid, false),
            Selector::Name(name) => (self.stat(pid).is_some_and(|stat| self.is_named(pid, &stat, name)), false),
            Selector::Unit(unit) => (unit_name(unit).is_ok_and(|unit| unit_rank(&text(), &unit, scope.manager) > 0), true),
            Selector::Cgroup(cgroup) => {
                (cgroup_name(cgroup).is_ok_and(|(path, is_id)| cgroup_of(&text(), path, is_id, scope.manager).is_some()), true)
            }
            Selector::Port(port) => {
                let listens = self.holds(pid, &self.listeners(pid, *port).0, &mut 0);
                (listens, listens && self.is_near(pid))
            }
        };
        named && self.misfit(scope, pid, is_near).is_none()
    }

    /// Whether one of its ancestors is meant as well: then it is that one's child.
    #[must_use]
    pub fn has_fitting_ancestor(&self, scope: &Scope, selector: &Selector, pid: u32) -> bool {
        let mut at = pid;
        for _ in 0..64 {
            match self.stat(at).map(|s| s.ppid) {
                Some(parent) if parent != at && parent > 1 => at = parent,
                _ => return false,
            }
            if self.fits(scope, selector, at) {
                return true;
            }
        }
        false
    }

    /// Where this process is, which was found within a scope.
    #[must_use]
    pub fn place(&self, scope: &Scope, target: &Target) -> Place {
        let own_network = !scope.containers || self.is_near(target.pid);
        Place { own_network, user: target.owner(), service: self.service(target.pid) }
    }

    /// Whether the process still exists, can still do something by itself, and is the same one: its exit is seen by whoever watches it from now on. The kernel tells of
    /// an exit long before it has taken down a large process, so one that is exiting counts as dead.
    #[must_use]
    pub fn still_same(&self, target: &Target) -> bool {
        self.stat(target.pid).is_some_and(|s| s.start_ticks == target.start_ticks && !self.is_dead(target.pid, &s))
    }

    /// Waits a moment for a process that is exiting to be past all that the kernel tells of it; the
    /// time is taken from what is left.
    pub fn wait_until_dead(&self, target: &Target, left_ms: &mut u32) {
        while *left_ms > 0 && self.stat(target.pid).is_some_and(|s| s.start_ticks == target.start_ticks && !s.is_dead()) {
            std::thread::sleep(Duration::from_millis(1));
            *left_ms -= 1;
        }
    }

    /// How this process ended, if it has and its parent has not taken note of it: cause and code.
    #[must_use]
    pub fn end_of(&self, target: &Target) -> Option<(Cause, i32)> {
        let look = || self.stat(target.pid).filter(|s| s.start_ticks == target.start_ticks && self.is_dead(target.pid, s));
        let mut stat = look()?;
        if stat.status == 0 && !stat.is_dead() {
            // Its status is there a moment after it began to exit; 0 is one, too.
            std::thread::sleep(Duration::from_millis(1));
            stat = look()?;
        }
        let signal = stat.status & 0x7f;
        Some(if signal == 0 { (Cause::Exited, stat.status >> 8 & 0xff) } else { (Cause::Killed, signal) })
    }

    /// Whether it can do nothing by itself any more: it is exiting, or nothing of it is left but what its parent takes note of.
    fn is_dead(&self, pid: u32, main: &Stat) -> bool {
        !has_thread(&self.dir(pid), main)
    }

    /// Ends this process, and no other that may have its number by now, by SIGKILL, in the name of this user.
    ///
    /// # Errors
    /// When it is gone, the user may not, or the system refuses.
    pub fn kill(&self, pid: u32, start_ticks: u64, in_name_of: u32) -> io::Result<()> {
        // SAFETY: a number; the call returns a descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        // The descriptor holds on to one process; whether it is the one that is meant is seen now, and stays so.
        if !self.stat(pid).is_some_and(|s| s.start_ticks == start_ticks && !self.is_dead(pid, &s)) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let target = self.target(pid).map_err(|e| io::Error::new(io::ErrorKind::NotFound, e.what))?;
        if !target.may_be_killed_by(in_name_of) {
            let what =
                format!("it is a process of user {}, and user {in_name_of}, whose watch it is, may not kill it", target.uid);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        // SAFETY: an open pidfd, and no siginfo.
        let sent = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), libc::SIGKILL, std::ptr::null::<libc::siginfo_t>(), 0)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The process with this number in the agent's pid namespace.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] when there is none or it is dead, [`ErrorCode::Invalid`] when it is not a process of a user.
    pub fn target(&self, pid: u32) -> Result<Target, Refused> {
        let gone = || Refused {
            code: ErrorCode::NotFound,
            what: format!("there is no process {pid} on this host (as the agent counts them)"),
        };
        let stat = self.stat(pid).ok_or_else(gone)?;
        if self.is_dead(pid, &stat) {
            return refused(
                ErrorCode::NotFound,
                format!(
                    "process {pid} ({}) is already dead or exiting: it only waits for the kernel and its parent to take note",
                    stat.comm
                ),
            );
        }
        if stat.is_kernel_thread() {
            return refused(
                ErrorCode::Invalid,
                format!("{pid} ({}) is a thread of the kernel; it lives as long as this host does", stat.comm),
            );
        }
        let status = self.read_text(pid, "status").as_deref().and_then(parse_status).ok_or_else(gone)?;
        if status.tgid != pid {
            return refused(
                ErrorCode::Invalid,
                format!("{pid} is a thread of process {}; processes are watched, take {}", status.tgid, status.tgid),
            );
        }
        let exe = std::fs::read_link(self.dir(pid).join("exe")).ok();
        let exe = exe.map(|p| p.to_string_lossy().trim_end_matches(" (deleted)").to_owned());
        // The number may have been used again between these reads; then the start time differs.
        if self.stat(pid).map(|s| s.start_ticks) != Some(stat.start_ticks) {
            return Err(gone());
        }
        let nspids = if status.nspids.is_empty() { vec![pid] } else { status.nspids };
        let [real_uid, uid, saved_uid] = status.uids;
        Ok(Target { pid, start_ticks: stat.start_ticks, uid, real_uid, saved_uid, comm: stat.comm, exe, nspids })
    }

    fn by_pid(&self, pid: u32, peer: Option<u32>) -> Result<Target, Refused> {
        let Some(peer) = peer else { return self.target(pid) };
        let link = |pid: u32| std::fs::metadata(self.dir(pid).join("ns/pid")).ok().map(|m| (m.dev(), m.ino()));
        let own = std::fs::metadata(self.proc.join("self/ns/pid")).ok().map(|m| (m.dev(), m.ino()));
        let Some(theirs) = link(peer) else {
            return refused(
                ErrorCode::NotFound,
                format!("the process that asks ({peer}) cannot be seen, nor what it calls process {pid}"),
            );
        };
        if Some(theirs) == own {
            return self.target(pid);
        }
        // The peer counts differently: its number of a process is the one at its own depth.
        let depth = self.nspids(peer).len().saturating_sub(1);
        let found = self.pids().into_iter().find(|p| {
            let theirs_too = self.nspids(*p).get(depth) == Some(&pid) && self.within_pid_namespace(*p, theirs);
            theirs_too && self.stat(*p).is_some()
        });
        match found {
            Some(p) => self.target(p),
            None => refused(
                ErrorCode::NotFound,
                format!("there is no process {pid} in the pid namespace of the process that asks ({peer})"),
            ),
        }
    }

    /// Whether `pid` lives in this pid namespace or in one made inside it.
    fn within_pid_namespace(&self, pid: u32, namespace: (u64, u64)) -> bool {
        /// `_IO(0xb7, 0x2)` of linux/nsfs.h.
        const NS_GET_PARENT: libc::Ioctl = 0xb702;
        use std::os::fd::{AsRawFd, FromRawFd};
        let Ok(mut file) = std::fs::File::open(self.dir(pid).join("ns/pid")) else { return false };
        // Pid namespaces nest at most 32 deep.
        for _ in 0..33 {
            match file.metadata() {
                Ok(m) if (m.dev(), m.ino()) == namespace => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
            // SAFETY: the descriptor is open; the call takes no argument and returns a new descriptor or -1.
            let parent = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_PARENT) };
            if parent < 0 {
                return false;
            }
            // SAFETY: `parent` was just made by the kernel and belongs to nobody else.
            file = unsafe { std::fs::File::from_raw_fd(parent) };
        }
        false
    }

    fn by_name(&self, name: &str, scope: &Scope) -> Result<Target, Refused> {
        if name.is_empty() {
            return refused(ErrorCode::Invalid, "an empty name matches nothing; give the name `ps -e` shows");
        }
        let matches = |pid: u32| {
            let stat = self.stat(pid)?;
            self.is_named(pid, &stat, name).then(|| (pid, self.is_dead(pid, &stat)))
        };
        let (dead, alive): (Vec<_>, Vec<_>) = self.pids().into_iter().filter_map(matches).partition(|(_, dead)| *dead);
        let alive: Vec<u32> = alive.into_iter().map(|(pid, _)| pid).collect();
        if let (true, Some((pid, _))) = (alive.is_empty(), dead.first()) {
            return self.target(*pid);
        }
        let what = format!("the name {name}");
        let (alive, others) = self.meant(scope, alive, false);
        self.one(self.eldest(self.nearest(alive)), &what, || {
            others.unwrap_or_else(|| format!("no process is named {name}; see `ps -e`, the name is the one in its last column"))
        })
    }

    fn by_unit(&self, unit: &str, scope: &Scope) -> Result<Target, Refused> {
        let unit = unit_name(unit)?;
        let mut ranked: [Vec<u32>; 3] = Default::default();
        for (pid, text) in self.cgroups() {
            ranked[unit_rank(&text, &unit, scope.manager)].push(pid);
        }
        let [_, below, own] = ranked;
        let members = self.eldest(self.alive(if own.is_empty() { below } else { own }));
        if members.len() != 1
            && self.ask_systemd
            && let Some(main) = main_pid(&unit, self.limit.as_ref())
        {
            return self.target(main);
        }
        self.one(members, &format!("the unit {unit}"), || {
            format!(
                "the unit {unit} has no process: it is not running, or has another name, or is a user's own (`user`); see `systemctl status {unit}`"
            )
        })
    }

    fn by_cgroup(&self, wanted: &str, scope: &Scope) -> Result<Target, Refused> {
        let (path, is_id) = cgroup_name(wanted)?;
        let mut groups: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (pid, text) in self.cgroups() {
            if let Some(group) = cgroup_of(&text, path, is_id, scope.manager) {
                groups.entry(group.to_owned()).or_default().push(pid);
            }
        }
        if groups.len() > 1 {
            let ids: Vec<&str> = groups.keys().map(String::as_str).take(8).collect();
            return refused(
                ErrorCode::Ambiguous,
                format!("several containers begin with {path}: {}; give more digits", ids.join(", ")),
            );
        }
        let members = self.alive(groups.into_values().next().unwrap_or_default());
        // What is in the cgroup is meant, wherever its network is.
        let (members, others) = self.meant(scope, members, true);
        // A container's init is number 1 in its own pid namespace; without one the first process that was started is taken.
        let init = members.iter().copied().filter(|p| self.nspids(*p).last() == Some(&1)).min_by_key(|p| self.nspids(*p).len());
        let first = || members.iter().copied().min_by_key(|p| (self.stat(*p).map_or(u64::MAX, |s| s.start_ticks), *p));
        match init.or_else(first) {
            Some(pid) => self.target(pid),
            None if let Some(others) = others => refused(ErrorCode::NotFound, others),
            None if is_id => refused(
                ErrorCode::NotFound,
                format!(
                    "no process of this host is in a container {path}; see `docker ps` or `crictl ps` (a user's own container is named by the path of its cgroup)"
                ),
            ),
            None => refused(
                ErrorCode::NotFound,
                format!(
                    "no process of this host is in a cgroup {path} (a container is named by at least 12 hexadecimal digits); see `systemd-cgls`"
                ),
            ),
        }
    }

    fn by_port(&self, port: u16, scope: &Scope) -> Result<Target, Refused> {
        if port == 0 {
            return refused(ErrorCode::Invalid, "nothing listens on port 0");
        }
        let own = self.netns("self");
        let mut namespaces: BTreeMap<PathBuf, Vec<u32>> = BTreeMap::new();
        for pid in self.pids() {
            if let Some(ns) = self.netns(&pid.to_string()) {
                namespaces.entry(ns).or_default().push(pid);
            }
        }
        let (mut hidden, mut strangers) = (0, None);
        // The agent's own network first; only if nothing listens there that is meant, those of containers.
        for ours in [true, false] {
            let mut holders = Vec::new();
            for (_, pids) in namespaces.iter().filter(|(ns, _)| (Some(*ns) == own.as_ref()) == ours) {
                // Any process of the namespace shows its tables; the first may be gone already.
                let tables = pids.iter().map(|pid| self.listeners(*pid, port)).find(|(_, read)| *read);
                let inodes = tables.map_or_else(BTreeSet::new, |(inodes, _)| inodes);
                if !inodes.is_empty() {
                    // A socket can be held from another network namespace, but hardly ever is: these first, then all.
                    let before = holders.len();
                    holders.extend(pids.iter().copied().filter(|p| self.holds(*p, &inodes, &mut hidden)));
                    if holders.len() == before {
                        holders.extend(self.pids().into_iter().filter(|p| self.holds(*p, &inodes, &mut hidden)));
                    }
                    if holders.len() == before {
                        return refused(
                            ErrorCode::NotFound,
                            format!(
                                "something listens on TCP port {port}, but the agent may not see which process ({hidden} cannot be looked into); \
                                 it needs CAP_SYS_PTRACE for that; name the process or its pid instead"
                            ),
                        );
                    }
                }
            }
            // systemd keeps the sockets it passed on.
            if holders.len() > 1 {
                holders.retain(|p| *p != 1);
            }
            let (holders, others) = self.meant(scope, self.alive(holders), ours);
            strangers = strangers.or(others);
            if !holders.is_empty() {
                return self.one(self.eldest(holders), &format!("TCP port {port}"), String::new);
            }
        }
        let none = || format!("no process listens on TCP port {port}; see `ss -ltnp`");
        refused(ErrorCode::NotFound, strangers.unwrap_or_else(none))
    }

    // ---- narrowing down ----

    /// Those of `pids` that are meant; and one that is not, with the reason. `is_near`: whatever its network namespace is.
    fn meant(&self, scope: &Scope, pids: Vec<u32>, is_near: bool) -> (Vec<u32>, Option<String>) {
        let mut why = None;
        let mut fits = pids;
        fits.retain(|pid| match self.misfit(scope, *pid, is_near) {
            None => true,
            Some(text) => {
                why.get_or_insert(text);
                false
            }
        });
        (fits, why)
    }

    /// Why this process is not meant; `None`: it is.
    fn misfit(&self, scope: &Scope, pid: u32, is_near: bool) -> Option<String> {
        let target = match self.target(pid) {
            Ok(target) => target,
            Err(gone) => return Some(gone.what),
        };
        if let Some(user) = scope.user.filter(|user| !target.is_of(*user)) {
            return Some(of_another_user(&target, user));
        }
        if self.is_left_behind(scope, &target) {
            return Some(left_behind(&target));
        }
        let its_own_is_near = self.is_near(pid);
        let near = its_own_is_near || is_near;
        let what = describe(&target);
        if !near && !scope.containers {
            return Some(format!(
                "process {what} is in another network namespace than this agent, that of a container perhaps; processes there are meant by \
                 `containers = true` in the [[watch]] (`fide monitor --containers`), or by their cgroup"
            ));
        }
        match &scope.place {
            Some(place) if place.own_network && !near => {
                Some(format!("process {what} is in another network namespace than the one that this watch had before: {ANEW}"))
            }
            Some(place) if !place.own_network && its_own_is_near => Some(format!(
                "process {what} is in this agent's own network namespace, and this watch had one in another: {ANEW}"
            )),
            Some(place) if place.user != target.owner() => {
                Some(format!("process {what} is not meant: this watch had one of user {} before: {ANEW}", place.user))
            }
            Some(Place { service: Some(service), .. }) if self.service(pid).as_ref() != Some(service) => {
                Some(format!("process {what} is not meant: this watch had one of the service {service} before: {ANEW}"))
            }
            _ => None,
        }
    }

    /// Whether it is a child that a crashed process has left behind.
    fn is_left_behind(&self, scope: &Scope, target: &Target) -> bool {
        let Some(crashed) = scope.crashed.as_ref().filter(|crashed| target.start_ticks < crashed.at_ticks) else { return false };
        let Some(parent) = crashed.parent else { return true };
        let beside = self.stat(target.pid).is_some_and(|stat| stat.ppid == parent);
        !beside || (crashed.service.is_some() && self.service(target.pid) == crashed.service)
    }

    /// What will be known of this process, which was found for this selector, when it has crashed.
    #[must_use]
    pub fn before_a_crash(&self, selector: &Selector, target: &Target) -> Crashed {
        let is_alone = matches!(selector, Selector::Name(_) | Selector::Port(_));
        let parent = self.stat(target.pid).map(|stat| stat.ppid).filter(|_| is_alone);
        Crashed { at_ticks: 0, parent, service: self.service(target.pid) }
    }

    /// Whether it is in the agent's own network namespace, as far as that can be seen.
    fn is_near(&self, pid: u32) -> bool {
        let (own, its) = (self.netns("self"), self.netns(&pid.to_string()));
        own.is_none() || its.is_none() || own == its
    }

    /// The cgroup of its systemd service.
    fn service(&self, pid: u32) -> Option<String> {
        let text = self.read_text(pid, "cgroup")?;
        cgroup_paths(&text).find_map(service_path).map(str::to_owned)
    }

    /// The only one of `pids`, or a refusal.
    fn one(&self, pids: Vec<u32>, what: &str, none: impl FnOnce() -> String) -> Result<Target, Refused> {
        match pids[..] {
            [] => refused(ErrorCode::NotFound, none()),
            [pid] => self.target(pid),
            _ => {
                let show = |pid: &u32| self.target(*pid).map_or_else(|_| pid.to_string(), |t| describe(&t));
                let mut list: Vec<String> = pids.iter().take(8).map(show).collect();
                if pids.len() > 8 {
                    list.push(format!("and {} more", pids.len() - 8));
                }
                refused(
                    ErrorCode::Ambiguous,
                    format!("{what} fits {} processes: {}; choose one by its pid", pids.len(), list.join(", ")),
                )
            }
        }
    }

    /// Those of `pids` that have no ancestor among them.
    fn eldest(&self, pids: Vec<u32>) -> Vec<u32> {
        let all: BTreeSet<u32> = pids.iter().copied().collect();
        let is_child = |pid: u32| {
            let mut at = pid;
            // Bounded, for the tree changes while it is walked.
            for _ in 0..1024 {
                match self.stat(at).map(|s| s.ppid) {
                    Some(parent) if parent != at && parent != 0 => at = parent,
                    _ => return false,
                }
                if at != pid && all.contains(&at) {
                    return true;
                }
            }
            false
        };
        pids.into_iter().filter(|p| !is_child(*p)).collect()
    }

    /// Those in the agent's own network namespace, or all if none is.
    fn nearest(&self, pids: Vec<u32>) -> Vec<u32> {
        let own = self.netns("self");
        let (near, far): (Vec<u32>, Vec<u32>) =
            pids.into_iter().partition(|p| own.is_some() && self.netns(&p.to_string()) == own);
        if near.is_empty() { far } else { near }
    }

    fn alive(&self, pids: Vec<u32>) -> Vec<u32> {
        pids.into_iter().filter(|p| self.stat(*p).is_some_and(|s| !s.is_kernel_thread() && !self.is_dead(*p, &s))).collect()
    }

    // ---- reading /proc ----

    /// Whether it has this name, or its executable.
    fn is_named(&self, pid: u32, stat: &Stat, name: &str) -> bool {
        let exe = || std::fs::read_link(self.dir(pid).join("exe")).ok();
        let file_name = |p: PathBuf| p.file_name().map(|n| n.to_string_lossy().trim_end_matches(" (deleted)").to_owned());
        !stat.is_kernel_thread() && (stat.comm == name || exe().and_then(file_name).as_deref() == Some(name))
    }

    /// The sockets that listen on this port in its network namespace, and whether that could be seen.
    fn listeners(&self, pid: u32, port: u16) -> (BTreeSet<u64>, bool) {
        let mut inodes = BTreeSet::new();
        let tables: Vec<_> = ["net/tcp", "net/tcp6"].iter().filter_map(|t| self.read_text(pid, t)).collect();
        tables.iter().for_each(|t| listening_inodes(t, port, &mut inodes));
        (inodes, !tables.is_empty())
    }

    fn dir(&self, pid: u32) -> PathBuf {
        self.proc.join(pid.to_string())
    }

    fn read_text(&self, pid: u32, file: &str) -> Option<String> {
        if self.is_over() {
            return None;
        }
        std::fs::read(self.dir(pid).join(file)).ok().map(|b| String::from_utf8_lossy(&b).into_owned())
    }

    fn stat(&self, pid: u32) -> Option<Stat> {
        if self.is_over() {
            return None;
        }
        parse_stat(&std::fs::read(self.dir(pid).join("stat")).ok()?)
    }

    fn nspids(&self, pid: u32) -> Vec<u32> {
        self.read_text(pid, "status").as_deref().and_then(parse_status).map(|s| s.nspids).unwrap_or_default()
    }

    fn netns(&self, pid: &str) -> Option<PathBuf> {
        if self.is_over() {
            return None;
        }
        std::fs::read_link(self.proc.join(pid).join("ns/net")).ok()
    }

    fn cgroups(&self) -> impl Iterator<Item = (u32, String)> + '_ {
        self.pids().into_iter().filter_map(|pid| self.read_text(pid, "cgroup").map(|text| (pid, text)))
    }

    fn pids(&self) -> Vec<u32> {
        let entries = std::fs::read_dir(&self.proc).into_iter().flatten().flatten();
        let mut pids: Vec<u32> = entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        pids
    }

    fn holds(&self, pid: u32, inodes: &BTreeSet<u64>, hidden: &mut u32) -> bool {
        if self.is_over() {
            return false;
        }
        let entries = match std::fs::read_dir(self.dir(pid).join("fd")) {
            Ok(entries) => entries,
            Err(e) => {
                *hidden += u32::from(e.kind() == io::ErrorKind::PermissionDenied);
                return false;
            }
        };
        let inode = |link: PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
        entries.flatten().filter_map(|e| std::fs::read_link(e.path()).ok()).filter_map(inode).any(|i: u64| inodes.contains(&i))
    }
}

/// What to do where a watch shall have a process of another place from now on.
const ANEW: &str = "end the watch and make it anew to have it";

fn left_behind(target: &Target) -> String {
    format!(
        "process {} began before the one that this watch had has crashed, as a child that it left behind; the next instance is waited for",
        describe(target)
    )
}

fn describe(target: &Target) -> String {
    format!("{} ({}, user {})", target.pid, target.exe.as_deref().unwrap_or(&target.comm), target.uid)
}

fn of_another_user(target: &Target, user: u32) -> String {
    let whose = if user == 0 { "root's".to_owned() } else { format!("user {user}'s") };
    if target.uid != target.real_uid {
        let (real, effective) = (target.real_uid, target.uid);
        return format!(
            "process {} is not meant: only {whose} are, and user {real} runs it with the rights of user {effective}",
            describe(target)
        );
    }
    format!(
        "process {} is not meant: only {whose} are; for another user's give `user = \"{}\"` in the [[watch]] (`fide monitor --user {1}`)",
        describe(target),
        target.uid
    )
}

/// Whether cgroup path `have` is `wanted` or below it; `wanted` may begin with a v1 hierarchy's name (`memory/a/b`).
fn is_or_below(have: &str, wanted: &str) -> bool {
    let have = have.trim_matches('/');
    let below = |wanted: &str| {
        !wanted.is_empty() && have.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    const HIERARCHIES: [&str; 12] = [
        "unified",
        "systemd",
        "memory",
        "cpu",
        "cpuacct",
        "cpu,cpuacct",
        "pids",
        "freezer",
        "blkio",
        "devices",
        "cpuset",
        "net_cls,net_prio",
    ];
    below(wanted) || wanted.split_once('/').is_some_and(|(first, rest)| HIERARCHIES.contains(&first) && below(rest))
}

/// The main process of a unit as systemd knows it. Takes some milliseconds, or as long as the limit.
fn main_pid(unit: &str, limit: Option<&Limit>) -> Option<u32> {
    // Without systemd there is nobody to ask, and the program would wait for a bus.
    if !Path::new("/run/systemd/system").exists() {
        return None;
    }
    let said = service::systemctl(["show", "--property=MainPID", "--value", "--", unit], || limit.is_some_and(Limit::is_over))?;
    said.trim().parse().ok().filter(|p| *p != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_contain_anything() {
        let tail = "S 7 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 987654 1 1";
        for comm in ["sh", "a) S 1 (b", "(((", ")))", ") Z 1 1 1", "", "x y", "é)"] {
            let stat = parse_stat(format!("42 ({comm}) {tail}").as_bytes()).unwrap();
            assert_eq!((stat.comm.as_str(), stat.state, stat.ppid, stat.start_ticks), (comm, b'S', 7, 987_654));
        }
        for bad in ["", "42", "42 (", "42 )x(", "42 (x)", "42 (x) S", "42 (x) S 1 2 3"] {
            assert_eq!(parse_stat(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_program_is_told_from_the_one_before_an_exec_as_far_as_it_may_be_seen() {
        let proc = std::env::temp_dir().join(format!("fide-select-image-{}", std::process::id()));
        std::fs::create_dir_all(proc.join("42")).unwrap();
        let image = |state: char, flags: u32, memory: u64, code: u64, stack: u64| {
            let middle = format!("1 1 1 1 1 1 1 1 20 0 1 0 99 {memory} 1 1 {code} 1 {stack} 0 0");
            std::fs::write(proc.join("42/stat"), format!("42 (d) b) {state} 1 1 1 0 -1 {flags} {middle}")).unwrap();
            super::image(&proc, 42, 99)
        };
        let first = image('S', 0, 4096, 0x5555_0000, 0x7fff_1000);
        assert!(first.is_some() && first == image('R', 0, 8192, 0x5555_0000, 0x7fff_1000));
        assert_ne!(first, image('S', 0, 4096, 0x5555_0000, 0x7fff_2000));
        assert_ne!(first, image('S', 0, 4096, 0x5556_0000, 0x7fff_1000));
        assert!(image('R', 0, 4096, 0, 0).is_some_and(|image| Some(image) != first), "in the middle of an exec");
        assert_eq!(image('S', 0, 0, 0, 0), None, "its memory is gone");
        assert_eq!((image('Z', 0, 4096, 2, 2), image('S', 4, 4096, 2, 2)), (None, None), "dead, exiting");
        assert_eq!(image('S', 0, 4096, 1, 0), None, "not for everybody's eyes");
        assert_eq!(super::image(&proc, 42, 98), None, "another process");
        std::fs::remove_dir_all(&proc).unwrap();
    }

    #[test]
    fn a_process_lives_as_long_as_one_of_its_threads() {
        let proc = std::env::temp_dir().join(format!("fide-select-lives-{}", std::process::id()));
        let thread = |tid: u32, state: char, flags: u32| {
            let stat = format!("{tid} (db) {state} 1 1 1 0 -1 {flags} 1 1 1 1 1 1 1 1 20 0 2 0 99 1 1");
            for dir in [proc.join(format!("42/task/{tid}")), proc.join("42")].into_iter().take(1 + usize::from(tid == 42)) {
                std::fs::create_dir_all(&dir).unwrap();
                std::fs::write(dir.join("stat"), &stat).unwrap();
            }
        };
        thread(42, 'Z', 0x4);
        thread(43, 'S', 0);
        assert!(lives(&proc, 42, 99), "its main thread has exited, and another one goes on");
        assert!(!lives(&proc, 42, 98), "another process of that number");
        let target = Target {
            pid: 42,
            start_ticks: 99,
            uid: 0,
            real_uid: 0,
            saved_uid: 0,
            comm: "db".into(),
            exe: None,
            nspids: vec![42],
        };
        assert!(Resolver::at(&proc).still_same(&target));
        thread(43, 'S', 0x4);
        assert!(!lives(&proc, 42, 99) && !Resolver::at(&proc).still_same(&target), "it is exiting, and may be for seconds");
        assert_eq!(Resolver::at(&proc).end_of(&target), Some((Cause::Exited, 0)));
        let line = std::fs::read_to_string(proc.join("42/stat")).unwrap();
        let fields = line.split_ascii_whitespace().count();
        let killed = format!("{line} {}9", "0 ".repeat(51 - fields));
        std::fs::write(proc.join("42/stat"), killed).unwrap();
        assert_eq!(Resolver::at(&proc).end_of(&target), Some((Cause::Killed, 9)));
        thread(43, 'X', 0x4);
        assert!(!lives(&proc, 42, 99) && !Resolver::at(&proc).still_same(&target));
        std::fs::remove_dir_all(&proc).unwrap();
    }

    #[test]
    fn container_names_are_recognised_in_all_their_forms() {
        let id = "3f1c5a9e77b2";
        let long = "3f1c5a9e77b2d00dfeed3f1c5a9e77b2d00dfeed3f1c5a9e77b2d00dfeed1234";
        for form in [
            long.to_owned(),
            format!("docker-{long}.scope"),
            format!("cri-containerd-{long}.scope"),
            format!("libpod-{long}.scope"),
        ] {
            assert_eq!(container_id(&form, id), Some(long), "{form}");
        }
        assert_eq!(container_id(&format!("libpod-conmon-{long}.scope"), id), None);
        assert_eq!(container_id("docker-000000000000.scope", id), None);
    }

    #[test]
    fn services_are_known_by_their_cgroup() {
        assert_eq!(service_path("/system.slice/redis.service"), Some("/system.slice/redis.service"));
        assert_eq!(service_path("/system.slice/box.service/payload/x"), Some("/system.slice/box.service"));
        assert_eq!(
            service_path("/user.slice/user@7.service/app.slice/x.service"),
            Some("/user.slice/user@7.service/app.slice/x.service")
        );
        for none in ["/", "/user.slice/session-3.scope", "/system.slice/run-r0f3.service", "/a.servicex/b"] {
            assert_eq!(service_path(none), None, "{none}");
        }
        assert_eq!(user_manager("/user.slice/user-7.slice/user@7.service/app.slice/redis.service"), Some(7));
        assert_eq!(user_manager("/user.slice/user-7.slice/user@7.service"), None, "itself a unit of the system");
        assert_eq!(user_manager("/system.slice/redis.service"), None);
    }

    #[test]
    fn cgroup_paths_below_count_and_similar_names_do_not() {
        assert!(is_or_below("/a/b", "a"));
        assert!(is_or_below("/a/b", "a/b"));
        assert!(is_or_below("/a/b", "memory/a"));
        assert!(!is_or_below("/ab", "a"));
        assert!(!is_or_below("/", "memory"));
        assert!(!is_or_below("/b", "a/b"));
    }

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000   105        0 111 1\n\
            1: 0100007F:18EB 0100007F:9999 01 00000000:00000000 00:00000000 00000000   105        0 222 1\n\
            2: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000   105        0 333 1\n\
            garbage\n";
        let mut inodes = BTreeSet::new();
        listening_inodes(table, 6379, &mut inodes);
        assert_eq!(inodes.into_iter().collect::<Vec<_>>(), [111]);
    }
}
