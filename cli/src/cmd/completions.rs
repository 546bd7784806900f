//! `fide completions`

use crate::cli::Cli;
use crate::context::Context;
use crate::failure::Failure;
use clap::{Args, CommandFactory as _};
use std::io::Write as _;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
#[command(after_help = "For bash: fide completions bash > /etc/bash_completion.d/fide")]
pub struct CompletionsArgs {
    /// For which shell
    pub shell: clap_complete::Shell,
}

/// Prints the script.
pub fn run(context: &Context, args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fide", &mut script);
    let mut out = context.out();
    out.write_all(&script)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
