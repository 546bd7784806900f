//! Removal of what a program makes outside of labs, when it is killed: directories, mounts, control
//! groups, namespaces and processes. As for a lab, a small shell waits for the program's end of a
//! pipe to close (see `watcher`). Ephemeral labs need none of this.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::error::LabError;
use crate::process::ProcessId;
use crate::tool;
use crate::watcher::detach;

const SCRIPT: &str = include_str!("leftovers.sh");

/// One thing that must not outlive the calling process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftover {
    /// A directory with everything in it. File systems that are mounted there are unmounted.
    Directory(PathBuf),
    /// A control group with those below it. Processes in it are killed.
    Cgroup(PathBuf),
    /// A named network namespace.
    Namespace(String),
    /// A process. It is killed.
    Process(ProcessId),
    /// A lab that is not ephemeral, by its name.
    Lab(String),
}

impl Leftover {
    /// A process by its id. `None`: it has ended.
    #[must_use]
    pub fn process(pid: u32) -> Option<Self> {
        ProcessId::of(pid.cast_signed()).map(Leftover::Process)
    }

    /// Has it removed when the calling process ends, however it ends, unless it is gone by then. A
    /// directory or name that is made again under the same name is removed as well.
    ///
    /// Whoever makes something should register it first, and still remove it: this is for processes
    /// that are killed.
    ///
    /// # Errors
    /// If the shell that does it cannot be started or has ended, or the name has a line break.
    pub fn goes_with_caller(&self) -> Result<(), LabError> {
        static SHELL: Mutex<Option<(u32, Child)>> = Mutex::new(None);
        let line = self.to_string();
        let what = || format!("have {line:?} removed at the end");
        if line.contains('\n') {
            return Err(LabError::io(what(), io::ErrorKind::InvalidInput.into()));
        }
        let mut shell = SHELL.lock().unwrap_or_else(PoisonError::into_inner);
        // A forked child has its parent's pipe, and needs one of its own.
        let me = std::process::id();
        if shell.as_ref().is_none_or(|(of, _)| *of != me) {
            let started = start().map_err(|e| LabError::io("start the shell that removes what is left behind", e))?;
            *shell = Some((me, started));
        }
        let pipe = shell.as_mut().and_then(|(_, shell)| shell.stdin.as_mut()).expect("its standard input is piped");
        // One write: a process that is killed leaves a whole line, or none.
        pipe.write_all(format!("{line}\n").as_bytes()).map_err(|e| LabError::io(what(), e))
    }
}

/// As `leftovers.sh` reads it.
impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = |path: &Path| path.display().to_string();
        match self {
            Leftover::Directory(at) => write!(f, "directory {}", path(at)),
            Leftover::Cgroup(at) => write!(f, "cgroup {}", path(at)),
            Leftover::Namespace(name) => write!(f, "namespace {name}"),
            Leftover::Lab(name) => write!(f, "lab {name}"),
            Leftover::Process(id) => write!(f, "process {} {}", id.pid, id.start_time),
        }
    }
}

fn start() -> io::Result<Child> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("/bin/sh");
    // The name of the labs' watchers as well: a script that ends what tests have left running waits
    // for shells of this name.
    command.args(["-c", SCRIPT, "fide-lab-watcher"]).env_clear().env("PATH", tool::SBIN).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec only the two system calls of `detach` are made.
    unsafe {
        command.pre_exec(detach);
    }
    command.spawn()
}
