//! Stopping processes without ending them: a signal or the cgroup freezer.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::process::{ProcessId, wait_until};

/// How long the freezer may take.
const SETTLE: Duration = Duration::from_secs(5);

/// How a process is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FreezeBy {
    /// SIGSTOP, as by Ctrl-Z or a debugger. The parent and the process' own handlers for SIGCONT can notice.
    Signal,
    /// The freezer of cgroup v1 or v2, as `docker pause` does it. The process cannot notice.
    Cgroup,
}

/// A frozen process, with what is needed to thaw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Frozen {
    pub(crate) process: ProcessId,
    cage: Option<Cage>,
}

/// The cgroup that was made to freeze one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Cage {
    version: Version,
    directory: PathBuf,
    /// The cgroup that the process came from.
    home: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Version {
    V1,
    V2,
}

impl Frozen {
    /// Says what will be done, so that it can be recorded before [`Frozen::freeze`] does it.
    pub(crate) fn plan(process: ProcessId, by: FreezeBy, lab_id: &str) -> Result<Self, LabError> {
        let cage = match by {
            FreezeBy::Signal => None,
            FreezeBy::Cgroup => Some(Cage::plan(process.pid, lab_id)?),
        };
        Ok(Frozen { process, cage })
    }

    pub(crate) fn by(&self) -> FreezeBy {
        if self.cage.is_some() { FreezeBy::Cgroup } else { FreezeBy::Signal }
    }

    /// Returns once the process stands still.
    pub(crate) fn freeze(&self) -> Result<(), LabError> {
        let pid = self.process.pid;
        let Some(cage) = &self.cage else {
            self.process.signal(libc::SIGSTOP).map_err(|e| LabError::io(format!("stop process {pid}"), e))?;
            return settled(pid, || stands_still(pid));
        };
        let what = |e| LabError::io(format!("freeze process {pid} by the cgroup {}", cage.directory.display()), e);
        fs::create_dir_all(&cage.directory).map_err(what)?;
        fs::write(cage.directory.join("cgroup.procs"), pid.to_string()).map_err(what)?;
        fs::write(cage.switch(), cage.order(true)).map_err(what)?;
        settled(pid, || cage.is_frozen())
    }

    /// Lets the process go on, puts it back where it was, and removes what freezing made. Nothing to undo is no error.
    pub(crate) fn thaw(&self) -> Result<(), LabError> {
        let pid = self.process.pid;
        let Some(cage) = &self.cage else {
            return match self.process.signal(libc::SIGCONT) {
                Err(e) if e.raw_os_error() != Some(libc::ESRCH) => Err(LabError::io(format!("continue process {pid}"), e)),
                _ => Ok(()),
            };
        };
        if !cage.directory.exists() {
            return Ok(());
        }
        let what = |e| LabError::io(format!("thaw process {pid} in the cgroup {}", cage.directory.display()), e);
        fs::write(cage.switch(), cage.order(false)).map_err(what)?;
        for member in fs::read_to_string(cage.directory.join("cgroup.procs")).map_err(what)?.lines() {
            // It may have ended meanwhile.
            let _ = fs::write(cage.home.join("cgroup.procs"), member);
        }
        // A cgroup stays busy for a moment after its last process left.
        let mut outcome = Ok(());
        wait_until(SETTLE, || {
            outcome = fs::remove_dir(&cage.directory);
            outcome.is_ok()
        });
        outcome.map_err(what)
    }
}

impl Cage {
    fn plan(pid: i32, lab_id: &str) -> Result<Self, LabError> {
        let (version, root) = freezers().into_iter().next().ok_or_else(|| LabError::Unsupported {
            what: format!("freeze process {pid} by cgroup"),
            why: "neither the freezer of cgroup v1 nor cgroup v2 is mounted and writable".to_string(),
            advice: "freeze it by signal instead",
        })?;
        let home = home_of(pid, version).ok_or(LabError::NoSuchProcess { pid })?;
        let home = root.join(home.trim_start_matches('/'));
        Ok(Cage { version, directory: root.join(format!("{}{pid}", cage_prefix(lab_id))), home })
    }

    fn switch(&self) -> PathBuf {
        self.directory.join(match self.version {
            Version::V1 => "freezer.state",
            Version::V2 => "cgroup.freeze",
        })
    }

    fn order(&self, freeze: bool) -> &'static str {
        match (self.version, freeze) {
            (Version::V1, true) => "FROZEN",
            (Version::V1, false) => "THAWED",
            (Version::V2, true) => "1",
            (Version::V2, false) => "0",
        }
    }

    fn is_frozen(&self) -> bool {
        let says = |file: &str, text: &str| {
            fs::read_to_string(self.directory.join(file)).is_ok_and(|content| content.lines().any(|l| l == text))
        };
        match self.version {
            Version::V1 => says("freezer.state", "FROZEN"),
            Version::V2 => says("cgroup.events", "frozen 1"),
        }
    }
}

/// The cgroups that freeze processes of a lab are called after its id, so that a crashed lab's can be found.
pub(crate) fn cage_prefix(lab_id: &str) -> String {
    format!("fide-lab-{lab_id}-")
}

/// The roots of the freezers mounted here, version 1 first: where it is mounted it is the one in use.
pub(crate) fn roots() -> Vec<PathBuf> {
    freezers().into_iter().map(|(_, root)| root).collect()
}

fn freezers() -> Vec<(Version, PathBuf)> {
    let mut found = Vec::new();
    for line in fs::read_to_string("/proc/self/mounts").unwrap_or_default().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, root, kind, options, ..] = words[..] else { continue };
        match kind {
            "cgroup" if options.split(',').any(|o| o == "freezer") => found.insert(0, (Version::V1, PathBuf::from(root))),
            "cgroup2" if Path::new(root).join("cgroup.procs").exists() => found.push((Version::V2, PathBuf::from(root))),
            _ => {}
        }
    }
    found
}

/// The cgroup of the process in that hierarchy, as a path from the hierarchy's root.
fn home_of(pid: i32, version: Version) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let wanted = match version {
            Version::V1 => controllers.split(',').any(|c| c == "freezer"),
            Version::V2 => number == "0" && controllers.is_empty(),
        };
        wanted.then(|| path.to_string())
    })
}

/// Thaws whatever a crashed lab froze by cgroup, found by its id.
pub(crate) fn thaw_leftovers(lab_id: &str) {
    let prefix = cage_prefix(lab_id);
    for (version, root) in freezers() {
        for entry in fs::read_dir(&root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(Ok(pid)) = name.to_str().and_then(|n| n.strip_prefix(&prefix)).map(str::parse) else { continue };
            let process = ProcessId::of(pid).unwrap_or(ProcessId { pid, start_time: 0 });
            let cage = Cage { version, directory: entry.path(), home: root.clone() };
            let _ = Frozen { process, cage: Some(cage) }.thaw();
        }
    }
}

fn settled(pid: i32, still: impl Fn() -> bool) -> Result<(), LabError> {
    if wait_until(SETTLE, still) {
        return Ok(());
    }
    Err(LabError::Timeout {
        what: format!("process {pid} standing still"),
        waited_ms: SETTLE.as_millis() as u64,
        advice: "it may be in uninterruptible sleep; see its state in /proc/<pid>/status",
    })
}

/// Whether every thread of the process is stopped.
fn stands_still(pid: i32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let states = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    states
        .filter_map(|text| text.rsplit_once(") ").map(|(_, rest)| rest.to_string()))
        .all(|rest| matches!(rest.chars().next(), Some('T' | 't' | 'Z' | 'X')))
}
