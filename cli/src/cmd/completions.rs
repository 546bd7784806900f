//! `fide completions`, `fide-dev completions`

use super::dev;
use crate::cli::{Cli, DevCli};
use crate::context::Context;
use crate::failure::Failure;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// Its arguments.
#[derive(Debug, Args)]
#[command(after_help = "For bash: fide completions bash > /etc/bash_completion.d/fide")]
pub struct CompletionsArgs {
    /// For which shell
    pub shell: Shell,
}

/// Its arguments in `fide-dev`.
#[derive(Debug, Args)]
pub struct DevCompletionsArgs {
    /// For which shell
    pub shell: Shell,
    /// For `fide`, with what `fide-dev` does for it, instead of for `fide-dev`
    #[arg(long)]
    pub fide: bool,
}

/// Prints the script. Where `fide-dev` is installed, that prints it, because it knows its own options.
pub fn run(context: &Context, args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    if let Ok(program) = dev::find() {
        let error = Command::new(&program).args(["completions", "--fide", &args.shell.to_string()]).exec();
        return Err(Failure::failed(format!("cannot run {}: {error}", program.display())));
    }
    print(context, args.shell, Cli::command(), "fide")
}

/// Prints the script of `fide-dev`, or that of both.
pub fn run_dev(context: &Context, args: &DevCompletionsArgs) -> Result<ExitCode, Failure> {
    if args.fide {
        print(context, args.shell, both(), "fide")
    } else {
        print(context, args.shell, DevCli::command(), dev::PROGRAM)
    }
}

/// `fide` with the commands of `fide-dev` as they are there.
fn both() -> clap::Command {
    let its = DevCli::command();
    dev::COMMANDS.iter().fold(Cli::command(), |command, name| {
        command.mut_subcommand(name, |known| its.find_subcommand(name).cloned().unwrap_or(known))
    })
}

fn print(context: &Context, shell: Shell, mut command: clap::Command, name: &str) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    let mut out = context.out();
    out.write_all(&script)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
