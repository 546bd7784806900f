//! `fide lab`, `demo`, `bench` and `sim`: another program does them, `fide-dev`, so that an operator's host needs none of it.
//!
//! As cargo does: `fide-dev` gets the command line as it was typed, and becomes this process.

use super::agent::search;
use crate::failure::{Failure, Kind};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program.
pub const PROGRAM: &str = "fide-dev";
/// What it does for `fide`.
pub const COMMANDS: [&str; 5] = ["lab", "demo", "bench", "nano", "sim"];

/// The first two words of a command line that are neither options nor the values of options; the program's name is not one.
fn words(line: &[OsString]) -> [Option<&OsStr>; 2] {
    let mut rest = line.iter().skip(1);
    let mut next = || {
        loop {
            let word = rest.next()?;
            match word.to_str() {
                Some("--") => return None,
                // The only options before a subcommand that have a value of their own.
                Some("--socket" | "--color") => drop(rest.next()),
                Some(option) if option.starts_with('-') => {}
                _ => return Some(word.as_os_str()),
            }
        }
    };
    let first = next();
    [first, first.and_then(|_| next())]
}

/// Whether `fide-dev` is meant by this command line: by a command of its own, or by a request for that command's help.
pub fn is_meant(line: &[OsString]) -> bool {
    let is_its = |word: Option<&OsStr>| word.and_then(OsStr::to_str).is_some_and(|word| COMMANDS.contains(&word));
    match words(line) {
        [Some(first), second] if first == "help" => is_its(second),
        [first, _] => is_its(first),
    }
}

/// Becomes `fide-dev` with this command line; returns only when it cannot.
pub fn run(line: &[OsString]) -> Failure {
    let program = match find() {
        Ok(program) => program,
        Err(failure) => return failure,
    };
    // By the name that was typed, so that its own help shows what can be typed.
    let mut command = Command::new(&program);
    if let [name, arguments @ ..] = line {
        command.arg0(Path::new(name).file_name().unwrap_or(name)).args(arguments);
    }
    let error = command.exec();
    Failure::failed(format!("cannot run {}: {error}", program.display()))
}

/// `fide-dev`: beside this program, or in PATH.
pub fn find() -> Result<PathBuf, Failure> {
    search(PROGRAM).ok_or_else(|| {
        Failure::not_found(format!(
            "{} belong to the program {PROGRAM}, which was found neither beside fide nor in PATH",
            COMMANDS.map(|command| format!("fide {command}")).join(", ")
        ))
        .hint("install the package that has it: apt install fide-dev")
        .hint("or build it: cargo build --release -p fide-cli")
    })
}

/// For a command line of `fide-dev` that [`is_meant`] did not recognise.
pub fn misplaced() -> Failure {
    Failure::new(Kind::Usage, format!("options that are not known come before {}", COMMANDS.join(", ")))
        .hint("put the command first: fide lab --help")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_meant(line: &str) -> bool {
        super::is_meant(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn its_command_lines_are_told_from_those_of_fide() {
        for line in ["fide lab up", "fide --json lab list", "fide --socket /x sim", "fide --color always demo", "fide help bench"]
        {
            assert!(is_meant(line), "{line}");
        }
        for line in ["fide", "fide status", "fide monitor lab --pid 3", "fide --socket lab status", "fide help", "fide -- lab"] {
            assert!(!is_meant(line), "{line}");
        }
    }

    #[test]
    fn a_lacking_program_is_named_with_its_package() {
        let failure = find().err();
        // Tests lie one directory below the programs, so it is found only where it is installed.
        if let Some(failure) = failure {
            assert_eq!(failure.kind, Kind::NotFound);
            assert!(failure.hints[0].contains("fide-dev"), "{failure:?}");
        }
    }
}
