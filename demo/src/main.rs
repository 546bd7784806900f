//! `fide demo` and its helper processes without the rest of `fide`: nothing is built for it but what it shows.

use clap::{Parser, Subcommand};
use fide_demo::{Helper, show, ui::Ui};
use std::io::IsTerminal as _;
use std::process::ExitCode;

/// Real crashes on a lab of three hosts, and what every observer learned of each, when (root)
#[derive(Parser)]
#[command(name = "fide-demo", version, args_conflicts_with_subcommands = true)]
struct Cli {
    /// Print JSON, one object on each line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    args: show::Args,
    #[command(subcommand)]
    helper: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    #[command(flatten)]
    Helper(Helper),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.helper {
        Some(Role::Helper(helper)) => helper.run().map(|()| true),
        None => {
            Ui::listening(cli.json, std::io::stdout().is_terminal()).map_err(Into::into).and_then(|ui| show::run(&cli.args, &ui))
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("fide-demo: {e:#}");
            // The exit codes of `fide`, whose 4 is an unknown name.
            if e.is::<show::NoSuchScene>() { ExitCode::from(4) } else { ExitCode::FAILURE }
        }
    }
}
