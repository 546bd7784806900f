//! Who takes an ephemeral lab down when its creator cannot: a small shell that waits for the creator's end of a pipe
//! to close. A shell, because it must not share anything with a creator that may be killed at any moment: no
//! descriptors, no memory, no terminal, no signal.
//!
//! A creator that forks without executing hands its end of the pipe to the child; the watcher then waits for both, and
//! until then the lab is one that [`crate::Lab::reap_stale`] finds stale.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::error::LabError;
use crate::freeze;
use crate::process::ProcessId;
use crate::state::{self, State};
use crate::tool;

const SCRIPT: &str = include_str!("watcher.sh");

/// The watcher of one lab. Dropping it without [`Watcher::dismiss`] sets it to work.
#[derive(Debug)]
pub(crate) struct Watcher {
    child: Child,
}

impl Watcher {
    pub(crate) fn start(state: &State) -> Result<Self, LabError> {
        let freezers: Vec<String> = freeze::roots().iter().map(|root| root.display().to_string()).collect();
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "fide-lab-watcher"])
            .args(&state.namespaces)
            .env_clear()
            .env("PATH", tool::SBIN)
            .env("CREATOR", state.creator.pid.to_string())
            .env("CREATOR_START", state.creator.start_time.to_string())
            .env("LAB_ID", &state.id)
            .env("LAB_RECORD", state::path_of(&state.name))
            .env("LAB_DIRECTORY", state::directory_of(&state.name))
            .env("FREEZERS", freezers.join(" "))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: between fork and exec only the two system calls of `detach` are made.
        unsafe {
            command.pre_exec(detach);
        }
        let child = command.spawn().map_err(|e| LabError::io("start the shell that watches an ephemeral lab", e))?;
        Ok(Watcher { child })
    }

    /// `None` if it has ended already.
    pub(crate) fn id(&self) -> Option<ProcessId> {
        ProcessId::of(self.child.id().cast_signed())
    }

    /// The lab is down: the watcher has nothing to do and ends.
    pub(crate) fn dismiss(mut self) {
        if let Some(mut pipe) = self.child.stdin.take() {
            // If it was killed, there is nobody to tell.
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.child.wait();
    }
}

/// A session of its own, so that neither a terminal's Ctrl-C nor a signal to the creator's group reaches it, and no
/// descriptor but the three standard ones, so that nobody waits for an end of file that it holds back. (Closed on
/// exec rather than at once: the standard library reports a failed exec through one of them.)
pub(crate) fn detach() -> io::Result<()> {
    // SAFETY: setsid takes nothing; close_range takes three integers.
    unsafe {
        if libc::setsid() < 0 {
            return Err(io::Error::last_os_error());
        }
        // Linux before 5.11 lacks the flag; the creator's own descriptors are close-on-exec anyway.
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
    Ok(())
}
