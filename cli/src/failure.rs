//! Why something was refused: what, why, what to do, and the exit code.

use crate::context::Context;
use crate::shown::shown;
use fide_client::{Connection, Error};
use fide_lab::LabError;
use fide_wire::control::{ErrorCode, Reply};
use serde::Serialize;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Where labs are, each with a directory of its name.
const LABS: &str = "/run/fide/lab";

/// Exit codes ([`crate::cli::EXIT_CODES`] tells them to people).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Kind {
    /// Standard output was closed by its reader: nothing to say, nothing wrong.
    Quiet = 0,
    /// Refused or failed.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// No agent.
    NoAgent = 3,
    /// Not found.
    NotFound = 4,
    /// Permission.
    Permission = 5,
    /// Ctrl-C.
    Interrupted = 130,
}

/// What ends a command early.
#[derive(Debug)]
pub struct Failure {
    /// Its exit code.
    pub kind: Kind,
    /// What and why.
    pub what: String,
    /// What to do; one line each.
    pub hints: Vec<String>,
}

/// A failure as `--json` tells it, on standard error.
#[derive(Serialize)]
struct Told<'a> {
    error: &'a str,
    kind: Kind,
    exit: u8,
    hints: &'a [String],
}

impl Failure {
    /// Of any kind.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        Failure { kind, what: what.into(), hints: Vec::new() }
    }

    /// Refused or failed.
    pub fn failed(what: impl Into<String>) -> Self {
        Self::new(Kind::Failed, what)
    }

    /// Nothing of that name.
    pub fn not_found(what: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, what)
    }

    /// An agent of another mind.
    pub fn unexpected(wanted: &str, got: &Reply) -> Self {
        let mut got = format!("{got:?}");
        got.truncate(got.find([' ', '(']).unwrap_or(got.len()));
        Self::failed(format!("the agent answered with {got} where {wanted} was due: install the same release of fide and fided"))
    }

    /// With something to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// With something to do about it, if there is.
    #[must_use]
    pub fn maybe_hint(self, hint: Option<String>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// Tells it and gives the exit code.
    pub fn report(&self, context: &Context) -> ExitCode {
        let exit = self.kind as u8;
        if self.kind == Kind::Quiet {
            return ExitCode::SUCCESS;
        }
        let mut lines = Vec::new();
        if context.json {
            let told = Told { error: &self.what, kind: self.kind, exit, hints: &self.hints };
            // A struct of strings and numbers is always JSON.
            lines = vec![serde_json::to_string(&told).unwrap_or_default()];
        } else {
            let style = &context.err_style;
            lines.push(format!("{} {}", style.red("fide:"), self.what));
            lines.extend(self.hints.iter().map(|hint| format!("  {} {hint}", style.dim("→"))));
        }
        // A closed standard error leaves nobody to tell.
        let _ = writeln!(io::stderr(), "{}", shown(&lines.join("\n"), context.json));
        ExitCode::from(exit)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match error.code() {
            ErrorCode::Disconnected => Kind::NoAgent,
            ErrorCode::Permission => Kind::Permission,
            ErrorCode::NotFound => Kind::NotFound,
            _ => Kind::Failed,
        };
        let mut failure = Failure::new(kind, error.to_string());
        match &error {
            Error::NoAgent { path, source } if in_lab(path).is_some() => {
                failure.what = format!("no agent is listening on {} ({source})", path.display());
                failure = failure.maybe_hint(in_lab(path));
            }
            Error::NoAgent { source, .. } => {
                failure.what = format!("{} ({source})", failure.what);
                failure = failure.hint("by hand, as root: fide agent -- --config /etc/fide/fide.toml");
                failure = failure.maybe_hint(a_lab());
            }
            Error::Disconnected => {
                failure = failure.hint("see why with: journalctl -u fided -n 50; that says nothing about what it watches");
            }
            Error::NoAnswer { .. } => {
                failure = failure.hint("it is stopped or stuck: see its state with ps -o pid,stat,wchan,cmd -C fided");
            }
            _ => {}
        }
        failure
    }
}

/// What to do about an agent that is not there, if that is its socket on a host of a lab: systemd does not know of it.
pub fn in_lab(socket: &Path) -> Option<String> {
    let config = crate::cmd::explain::one_machine(socket).then(|| socket.with_file_name("fide.toml"))?;
    Some(if config.exists() {
        format!("start it on this host of the lab: fide agent -- --config {} &", config.display())
    } else {
        "this host of a lab has no agent; make a lab that has: fide lab up --agents".into()
    })
}

/// How to ask an agent of a lab of this machine, if one answers there.
fn a_lab() -> Option<String> {
    let labs = std::fs::read_dir(LABS).into_iter().flatten().flatten();
    let answers = |lab: &std::fs::DirEntry| {
        let socket = lab.path().join("h1/fided.sock");
        socket.exists() && Connection::open_with_timeout(Some(&socket), Duration::from_millis(200)).is_ok()
    };
    let lab = labs.into_iter().find(answers)?.file_name();
    Some(format!("in the lab that is up here: fide lab --name {} exec h1 -- fide status", lab.to_string_lossy()))
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        let kind = match &error {
            LabError::NotRoot { .. } => Kind::Permission,
            LabError::NotFound(_)
            | LabError::NoSuchHost { .. }
            | LabError::NoSuchNet(_)
            | LabError::NoSuchProcess { .. }
            | LabError::ToolMissing { .. } => Kind::NotFound,
            LabError::BadSpec(_) => Kind::Usage,
            _ => Kind::Failed,
        };
        Failure::new(kind, error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::new(Kind::Quiet, String::new()),
            _ => Failure::failed(format!("cannot write the output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::control::Refused;

    #[test]
    fn exit_codes_are_as_documented() {
        let refused = |code| Failure::from(Error::Refused(Refused { code, what: "no".into() })).kind as u8;
        assert_eq!(refused(ErrorCode::Invalid), 1);
        assert_eq!(refused(ErrorCode::NotFound), 4);
        assert_eq!(refused(ErrorCode::Permission), 5);
        assert_eq!(Failure::from(Error::Disconnected).kind as u8, 3);
        assert_eq!(Failure::from(LabError::NotFound("x".into())).kind as u8, 4);
        assert_eq!(Failure::from(LabError::NotRoot { what: "x", euid: 7 }).kind as u8, 5);
        for kind in [Kind::Failed, Kind::Usage, Kind::NoAgent, Kind::NotFound, Kind::Permission, Kind::Interrupted] {
            assert!(crate::cli::EXIT_CODES.contains(&format!("\n  {} ", kind as u8)), "{kind:?}");
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).kind, Kind::Quiet);
    }
}
