//! Processes: named so that a reused process id is never mistaken, started inside a lab, found again and ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// Set in the environment of everything started through a lab: the lab's unique id. Children inherit it.
pub(crate) const MARK: &str = "FIDE_LAB_ID";

/// How long a process may take to leave after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_millis(500);
/// How long a killed process may take to vanish (much memory takes its time).
const DEATH: Duration = Duration::from_secs(5);

/// A process id with the time its process started: together they are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// The process id.
    pub pid: i32,
    /// When it started, in clock ticks since the machine booted (field 22 of `/proc/<pid>/stat`).
    pub start_time: u64,
}

impl ProcessId {
    /// The process that has this id now; `None` if there is none, or only its zombie.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = Stat::read(pid)?;
        (!stat.is_dead(pid)).then_some(ProcessId { pid, start_time: stat.start_time })
    }

    /// The calling process.
    #[must_use]
    pub fn me() -> Self {
        let pid = std::process::id().cast_signed();
        ProcessId::of(pid).expect("/proc is mounted and knows the calling process")
    }

    /// Whether this very process still runs. A zombie does not.
    #[must_use]
    pub fn is_alive(self) -> bool {
        ProcessId::of(self.pid) == Some(self)
    }

    /// Sends a signal to this process and to no other that might have taken over its id.
    pub(crate) fn signal(self, signal: i32) -> io::Result<()> {
        // SAFETY: pidfd_open takes two integers; the descriptor it returns is new and ours alone.
        let fd = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, self.pid, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd as i32)
        };
        // The descriptor pins whatever has the id now; if that is our process, the signal cannot go astray.
        if !self.is_alive() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // SAFETY: a null `siginfo` asks the kernel to fill it as kill() would.
        let rc =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// What `/proc/<pid>/stat` says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) command: String,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) start_time: u64,
}

impl Stat {
    pub(crate) fn read(pid: i32) -> Option<Self> {
        Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The command may itself contain spaces and parentheses; the last `)` ends it.
    fn parse(text: &str) -> Option<Self> {
        let (head, tail) = text.rsplit_once(')')?;
        let (_, command) = head.split_once('(')?;
        let mut fields = tail.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        // Fields 3 and 4 are gone; the start time is field 22.
        let start_time = fields.nth(22 - 5)?.parse().ok()?;
        Some(Stat { command: command.to_string(), state, parent, start_time })
    }

    /// A zombie is dead, unless only its main thread has ended and others go on.
    fn is_dead(&self, pid: i32) -> bool {
        let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        matches!(self.state, 'Z' | 'X' | 'x') && threads() <= 1
    }
}

/// The file in which everything that a lab starts writes itself down: a line `pid start-time host` each.
pub(crate) struct Registry {
    file: File,
}

impl Registry {
    pub(crate) fn open(path: &Path) -> Result<Self, LabError> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map_err(|e| LabError::io(format!("open the list of processes {}", path.display()), e))?;
        Ok(Registry { file })
    }

    /// Makes `command` write itself down before it executes. One that cannot is not started: what is not in the
    /// list would be left behind.
    pub(crate) fn enlist(self, command: &mut Command, host: &str) {
        let host = host.to_string();
        let caller = std::process::id().cast_signed();
        // SAFETY: between fork and exec `write_self_down` only opens, reads, writes and formats
        // into a fixed buffer, and `die_with_parent` makes two system calls on integers; neither
        // allocates or locks.
        unsafe {
            command.pre_exec(move || {
                // Before it is in the list, nobody finds it: then it must not outlive a caller that
                // is killed. A command that replaces the caller has no parent to outlive.
                let is_child = std::process::id().cast_signed() != caller;
                if is_child {
                    die_with_parent(libc::SIGKILL, caller)?;
                }
                write_self_down(&self.file, &host)?;
                if is_child { die_with_parent(0, caller) } else { Ok(()) }
            });
        }
    }
}

/// Has the kernel send a signal to the calling process when its parent ends; 0: none. An error if
/// that is another one by now. Async-signal-safe.
pub(crate) fn die_with_parent(signal: i32, parent: i32) -> io::Result<()> {
    // SAFETY: prctl takes integers here, and getppid nothing.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, signal) != 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::getppid() == parent { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
    }
}

fn write_self_down(mut list: &File, host: &str) -> io::Result<()> {
    let mut text = [0u8; 1024];
    let length = read_own_stat(&mut text)?;
    let stat = &text[..length];
    // `pid (command) S ppid …`: the pid is the first word, the start time the twentieth after the last `)`.
    let pid_end = stat.iter().position(|&b| b == b' ').ok_or(io::ErrorKind::InvalidData)?;
    let close = stat.iter().rposition(|&b| b == b')').ok_or(io::ErrorKind::InvalidData)?;
    let start = stat[close + 1..].split(|&b| b == b' ').nth(20).ok_or(io::ErrorKind::InvalidData)?;

    // One write to a file opened for appending: lines of processes starting at once do not mix.
    let mut line = [0u8; 128];
    let mut rest = &mut line[..];
    for part in [&stat[..pid_end], b" ", start, b" ", host.as_bytes(), b"\n"] {
        rest.write_all(part)?;
    }
    let unused = rest.len();
    let used = line.len() - unused;
    list.write_all(&line[..used])
}

fn read_own_stat(buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the path is a NUL-terminated literal; `buffer` is valid for writes of its length; the descriptor is
    // closed before returning and never seen by anyone else.
    unsafe {
        let fd = libc::open(c"/proc/self/stat".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let length = libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len());
        libc::close(fd);
        usize::try_from(length).map_err(|_| io::Error::last_os_error())
    }
}

/// Everything started through the lab that still runs, with its host's name where known: what wrote itself down,
/// whatever carries the lab's mark, and the descendants of both.
pub(crate) fn started_by(registry: &Path, lab_id: &str) -> BTreeMap<ProcessId, Option<String>> {
    let table = process_table();
    let mut found = BTreeMap::new();

    let list = fs::read_to_string(registry).unwrap_or_default();
    for line in list.lines() {
        let mut words = line.split(' ');
        let (Some(pid), Some(start)) = (words.next(), words.next()) else { continue };
        let (Ok(pid), Ok(start_time)) = (pid.parse(), start.parse()) else { continue };
        let id = ProcessId { pid, start_time };
        if table.get(&pid).is_some_and(|stat| stat.start_time == start_time) {
            found.insert(id, words.next().map(str::to_string));
        }
    }
    for (&pid, stat) in &table {
        let id = ProcessId { pid, start_time: stat.start_time };
        if !found.contains_key(&id)
            && let Some(host) = marked(pid, lab_id)
        {
            found.insert(id, host);
        }
    }
    loop {
        let pids: BTreeMap<i32, Option<String>> = found.iter().map(|(id, host)| (id.pid, host.clone())).collect();
        let before = found.len();
        for (&pid, stat) in &table {
            if let Some(host) = pids.get(&stat.parent) {
                found.entry(ProcessId { pid, start_time: stat.start_time }).or_insert_with(|| host.clone());
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Whether the process' environment carries the lab's mark, and then its host.
fn marked(pid: i32, lab_id: &str) -> Option<Option<String>> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |key: &str| {
        environment.split(|&b| b == 0).find_map(|entry| {
            entry.strip_prefix(key.as_bytes())?.strip_prefix(b"=").map(|v| String::from_utf8_lossy(v).into_owned())
        })
    };
    (value(MARK)? == lab_id).then(|| value("FIDE_HOST"))
}

/// Every process that lives (no zombies).
fn process_table() -> BTreeMap<i32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, Stat::read(pid)?)))
        .filter(|(pid, stat)| !stat.is_dead(*pid))
        .collect()
}

/// Ends what was started through the lab: politely, then not. The caller itself and its ancestors are spared (the
/// lab may be taken down from a shell inside it). Returns how many there were.
pub(crate) fn end_all(registry: &Path, lab_id: &str) -> Result<usize, LabError> {
    let spared = caller_and_ancestors();
    let left = || -> Vec<ProcessId> { started_by(registry, lab_id).into_keys().filter(|id| !spared.contains(&id.pid)).collect() };
    let first = left();
    let count = first.len();
    for &id in &first {
        // Gone meanwhile is what we want; a stopped process must run to see the SIGTERM.
        let _ = id.signal(libc::SIGTERM);
        let _ = id.signal(libc::SIGCONT);
    }
    if wait_until(GRACE, || first.iter().all(|id| !id.is_alive())) && left().is_empty() {
        return Ok(count);
    }
    // Again and again, because a process that is being killed may just have forked. One whose
    // parent has ended is nobody's descendant any more, and is found by nothing where its
    // environment was cleared: hence those that were found at first.
    let left = || {
        let mut rest = left();
        rest.extend(first.iter().filter(|id| id.is_alive()));
        rest.sort_unstable();
        rest.dedup();
        rest
    };
    let gone = wait_until(DEATH, || {
        let rest = left();
        rest.iter().for_each(|id| drop(id.signal(libc::SIGKILL)));
        rest.is_empty()
    });
    if gone {
        return Ok(count);
    }
    let stuck: Vec<String> = left().iter().map(|id| id.pid.to_string()).collect();
    Err(LabError::Timeout {
        what: format!("the end of the killed processes {}", stuck.join(", ")),
        waited_ms: DEATH.as_millis() as u64,
        advice: "they may be in uninterruptible sleep or in a frozen cgroup; thaw them and take the lab down again",
    })
}

fn caller_and_ancestors() -> BTreeSet<i32> {
    let mut line = BTreeSet::new();
    let mut pid = std::process::id().cast_signed();
    while pid > 0 && line.insert(pid) {
        pid = Stat::read(pid).map_or(0, |stat| stat.parent);
    }
    line
}

/// Asks again every few milliseconds until `done` or the time is up; says which.
pub(crate) fn wait_until(at_most: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + at_most;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let text = "77 (a) b (c) S 12 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 2 3 4\n";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(stat, Stat { command: "a) b (c".into(), state: 'S', parent: 12, start_time: 987_654 });
    }

    #[test]
    fn what_a_process_writes_down_is_what_proc_says() {
        let path = std::env::temp_dir().join(format!("fide-lab-registry-{}", std::process::id()));
        let mut command = Command::new("sleep");
        command.arg("60");
        Registry::open(&path).unwrap().enlist(&mut command, "h1");
        let mut child = command.spawn().unwrap();
        let id = ProcessId::of(child.id().cast_signed()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{} {} h1\n", id.pid, id.start_time));

        assert!(started_by(&path, "no such id").contains_key(&id));
        assert_eq!(end_all(&path, "no such id").unwrap(), 1);
        assert!(!id.is_alive());
        assert_eq!(id.signal(libc::SIGKILL).unwrap_err().raw_os_error(), Some(libc::ESRCH), "a zombie is dead");
        child.wait().unwrap();
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_reused_process_id_is_someone_else() {
        let me = ProcessId::me();
        assert!(me.is_alive());
        let other = ProcessId { start_time: me.start_time + 1, ..me };
        assert!(!other.is_alive());
        assert!(other.signal(0).is_err());
    }
}
