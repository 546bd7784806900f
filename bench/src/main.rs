//! The helper processes and commands of this crate without the rest of `fide`, for its own tests.

use clap::Parser;
use fide_bench::{Helper, demo, detect, jitter, ui::Ui};
use std::io::IsTerminal as _;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "fide-bench")]
enum Cli {
    /// The demonstration
    Demo(demo::Args),
    /// The time from a crash to knowing of it
    Detect(detect::Args),
    /// How late heartbeats are
    Jitter(jitter::Args),
    #[command(flatten)]
    Helper(Helper),
}

fn main() -> ExitCode {
    let run = || -> anyhow::Result<bool> {
        let ui = || Ui::listening(false, std::io::stdout().is_terminal());
        match Cli::parse() {
            Cli::Demo(args) => demo::run(&args, &ui()?),
            Cli::Detect(args) => detect::run(&args, &ui()?),
            Cli::Jitter(args) => jitter::run(&args, &ui()?),
            Cli::Helper(helper) => helper.run().map(|()| true),
        }
    };
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("fide-bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}
