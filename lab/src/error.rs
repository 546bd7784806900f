//! What can go wrong. Every message says what, why and what to do.

use std::io;

/// An operation on a lab that could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The caller is not root.
    #[error(
        "cannot {what}: network namespaces, bridges and veth pairs need root (effective user id is {euid}); \
         run it with sudo, or inside a container started with --privileged"
    )]
    NotRoot {
        /// What was asked for.
        what: &'static str,
        /// The caller's effective user id.
        euid: u32,
    },
    /// The specification cannot be built.
    #[error("{0}")]
    BadSpec(String),
    /// A lab of that name exists.
    #[error("a lab named {0:?} exists already; take another name, or remove it with `fide lab down {0}`")]
    Exists(String),
    /// No lab of that name exists.
    #[error("there is no lab named {0:?}; `fide lab status` lists the labs of this machine")]
    NotFound(String),
    /// The lab is there but cannot be used: still being made, or being removed.
    #[error("lab {name:?} cannot be used: {why}; {advice}")]
    NotUsable {
        /// The lab.
        name: String,
        /// Why not.
        why: String,
        /// What to do.
        advice: &'static str,
    },
    /// The lab has no such host.
    #[error("lab {lab:?} has no host {host}; its hosts are h1 to h{hosts}")]
    NoSuchHost {
        /// The lab.
        lab: String,
        /// What was asked for.
        host: String,
        /// How many hosts there are.
        hosts: u16,
    },
    /// The lab has no such network.
    #[error("there is no network {0}; every lab has the networks 0 and 1 (net0 and net1)")]
    NoSuchNet(u8),
    /// The NIC was taken away by [`crate::Lab::remove_nic`].
    #[error("host h{host} has no net{net} now: it was removed; bring it back with restore_nic first")]
    NicRemoved {
        /// The host's number.
        host: u16,
        /// The network.
        net: u8,
    },
    /// The process is not there (any more).
    #[error("there is no process {pid}; it may have ended already")]
    NoSuchProcess {
        /// The process id.
        pid: i32,
    },
    /// The kernel lacks something that was asked for.
    #[error("cannot {what}: {why}; {advice}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What is missing.
        why: String,
        /// What to do instead.
        advice: &'static str,
    },
    /// A program that the lab needs is not installed.
    #[error("cannot {what}: the program `{tool}` was not found; install the package iproute2 (Debian: apt-get install iproute2)")]
    ToolMissing {
        /// What was asked for.
        what: String,
        /// The program.
        tool: &'static str,
    },
    /// A program that the lab ran refused.
    #[error("cannot {what}: `{tool}` failed ({status}): {stderr}{advice}")]
    Tool {
        /// What was asked for.
        what: String,
        /// The command that failed.
        tool: String,
        /// Its exit status.
        status: String,
        /// What it said.
        stderr: String,
        /// What to do, when a reason is recognised.
        advice: &'static str,
    },
    /// A file or system call failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Something did not come about in time.
    #[error("{what} did not happen within {waited_ms} ms; {advice}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long, in milliseconds.
        waited_ms: u64,
        /// What to do.
        advice: &'static str,
    },
    /// The lab's record is not readable.
    #[error(
        "the record {path} cannot be understood ({why}); if no such lab is in use, delete that file and run `fide lab down --stale`"
    )]
    BadState {
        /// The file.
        path: String,
        /// The parser's complaint.
        why: String,
    },
}

impl LabError {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        LabError::Io { what: what.into(), source }
    }
}
