//! `fide agent`

use crate::failure::Failure;
use clap::Args;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Its arguments.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// For fided; `fide agent -- --help` tells them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Becomes fided.
pub fn run(args: &AgentArgs) -> Result<ExitCode, Failure> {
    let fided = find()?;
    let error = Command::new(&fided).args(&args.args).exec();
    Err(Failure::failed(format!("cannot run {}: {error}", fided.display())))
}

/// The agent's program: beside this one, or in PATH.
pub fn find() -> Result<PathBuf, Failure> {
    search("fided").ok_or_else(|| {
        Failure::not_found("the program fided was found neither beside fide nor in PATH")
            .hint("install the package, or build it: cargo build --release -p fide-agent")
    })
}

/// A program beside this one, or in PATH.
pub fn search(program: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    search_in(beside.into_iter().chain(std::env::split_paths(&path)), program)
}

fn search_in(directories: impl Iterator<Item = PathBuf>, program: &str) -> Option<PathBuf> {
    let runs = |p: &PathBuf| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    directories.filter(|d| !d.as_os_str().as_bytes().is_empty()).map(|d| d.join(program)).find(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_only_where_it_can_be_run() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(a.path().join("fided"), "").unwrap();
        std::fs::write(b.path().join("fided"), "").unwrap();
        std::fs::set_permissions(b.path().join("fided"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let directories = || [PathBuf::new(), a.path().to_owned(), b.path().to_owned()].into_iter();
        assert_eq!(search_in(directories(), "fided"), Some(b.path().join("fided")));
        assert_eq!(search_in(directories().take(2), "fided"), None);
    }
}
