//! The two command lines: `fide`, the operator's, and `fide-dev`, which `fide` runs for `lab`, `demo`, `bench` and `sim`, as cargo
//! runs its subcommands.
//!
//! In the order a command runs: `cli` is what can be typed, `cmd` has one file per subcommand that asks (the agent, the lab,
//! this host), `render` turns answers into text without asking anything, `failure` says why something was refused and with
//! which exit code. `doctor` is the examination of a host, `tui` the live view.
//!
//! A library only so that two programs share it. What one of them does not call is not linked into it.

mod cli;
mod cmd;
mod context;
mod doctor;
mod failure;
mod interrupt;
mod known;
mod progress;
mod render;
mod shown;
mod suggest;
mod tui;

use clap::Parser;
use context::Context;
use failure::Failure;
use fide_explain::{style, table, units};
use std::borrow::Cow;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

/// `fide`: what an operator needs. `fide lab`, `demo`, `bench` and `sim` become `fide-dev`.
#[must_use]
pub fn operator() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    if cmd::dev::is_meant(&line) {
        let failure = cmd::dev::run(&line);
        return failure.report(&Context::of_line(&line));
    }
    main(line, |cli: &cli::Cli| Context::new(&cli.global), |context, cli| cmd::run(context, cli.command))
}

/// `fide-dev`: hosts made of network namespaces, the demonstration, the benchmarks, the simulator.
#[must_use]
pub fn developer() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    main(line, |cli: &cli::DevCli| Context::new(&cli.global), |context, cli| cmd::run_dev(context, cli.command))
}

fn main<C: Parser>(
    line: Vec<OsString>,
    context: impl Fn(&C) -> Context,
    run: impl Fn(&Context, C) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let cli = match C::try_parse_from(line) {
        Ok(cli) => cli,
        Err(e) => {
            // Nobody to tell when even that cannot be printed. What it quotes of the line may have
            // characters that cannot be seen.
            let text = e.render().to_string();
            let _ = match shown::shown(&text, false) {
                Cow::Owned(text) if e.use_stderr() => std::io::stderr().write_all(text.as_bytes()),
                _ => e.print(),
            };
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let context = context(&cli);
    match run(&context, cli) {
        Ok(code) => code,
        Err(failure) => failure.report(&context),
    }
}
