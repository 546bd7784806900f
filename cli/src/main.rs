//! `fide`, the command line.
//!
//! In the order a command runs: [`cli`] is what can be typed, [`cmd`] has one file per subcommand that asks (the agent, the lab,
//! this host), [`render`] turns answers into text without asking anything, [`failure`] says why something was refused and with
//! which exit code. [`doctor`] is the examination of a host, [`tui`] the live view.

mod cli;
mod cmd;
mod context;
mod doctor;
mod failure;
mod interrupt;
mod progress;
mod render;
mod style;
mod suggest;
mod table;
mod tui;
mod units;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Nobody to tell when even that cannot be printed.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let context = context::Context::new(&cli.global);
    match cmd::run(&context, cli.command) {
        Ok(code) => code,
        Err(failure) => failure.report(&context),
    }
}
