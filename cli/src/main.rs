//! `fide`, the operator's command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    fide_cli::operator()
}
