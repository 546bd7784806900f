//! The commands and helper processes of this crate without the rest of `fide`, for its own tests.

use clap::{Parser, Subcommand};
use fide_bench::{Helper, Outcome, consensus, detect, failover, floor, growth, jitter, nano, redis, safetimer, ui::Ui};
use std::io::IsTerminal as _;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "fide-bench")]
struct Cli {
    /// Print JSON, one object on each line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// How noisy this machine is
    Floor(floor::Args),
    /// The time from a crash to knowing of it
    Detect(detect::Args),
    /// What a crash costs as everything grows
    Growth(growth::Args),
    /// How late heartbeats are
    Jitter(jitter::Args),
    /// How long groups take to decide
    Consensus(consensus::Args),
    Redis(redis::Args),
    /// Pairs of servers whose leader is killed: `fide-failover` beside Sentinel, keepalived and Patroni
    Failover(failover::Args),
    /// The engine in hardware, in clocks of its model
    Nano(nano::Args),
    /// Never wrong about the living
    Safetimer(safetimer::Args),
    #[command(flatten)]
    Helper(Helper),
}

fn run(cli: &Cli) -> Outcome {
    let ui = || Ui::listening(cli.json, std::io::stdout().is_terminal());
    match &cli.command {
        Command::Floor(args) => floor::run(args, &ui()?),
        Command::Detect(args) => detect::run(args, &ui()?),
        Command::Growth(args) => growth::run(args, &ui()?),
        Command::Jitter(args) => jitter::run(args, &ui()?),
        Command::Consensus(args) => consensus::run(args, &ui()?),
        Command::Redis(args) => redis::run(args, &ui()?),
        Command::Failover(args) => failover::run(args, &ui()?),
        Command::Nano(args) => nano::run(args, &ui()?),
        Command::Safetimer(args) => safetimer::run(args, &ui()?),
        Command::Helper(helper) => helper.run().map(|()| true),
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("fide-bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}
