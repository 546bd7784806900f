//! `fide-dev`: what `fide lab`, `fide demo`, `fide bench` and `fide sim` are.

use std::process::ExitCode;

fn main() -> ExitCode {
    fide_cli::developer()
}
