//! The commands of `fide nano`, for this crate's own tests.

use clap::Parser;
use fide_nano::args::NanoArgs;
use std::process::ExitCode;

/// `fide nano`, by itself.
#[derive(Parser)]
struct Cli {
    /// What to do.
    #[command(flatten)]
    nano: NanoArgs,
    /// Print JSON, one object on each line
    #[arg(long, global = true)]
    json: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match fide_nano::control::run(&cli.nano.command, cli.json, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("fide-nano: {why}");
            why.hint.iter().for_each(|hint| eprintln!("  {hint}"));
            ExitCode::FAILURE
        }
    }
}
