//! One file per subcommand: each asks, and leaves the telling to [`crate::render`].

pub mod agent;
pub mod bench;
pub mod check;
pub mod completions;
pub mod demo;
pub mod dev;
pub mod doctor;
pub mod events;
pub mod explain;
pub mod fence;
pub mod forget;
pub mod group;
pub mod key;
pub mod lab;
pub mod lead;
pub mod maintenance;
pub mod man;
pub mod monitor;
pub mod nano;
pub mod plan;
pub mod reload;
pub mod sim;
pub mod status;
pub mod unmonitor;
pub mod watch;

use crate::cli::{Command, DevCommand};
use crate::context::Context;
use crate::failure::Failure;
use std::process::ExitCode;

/// Runs a command.
pub fn run(context: &Context, command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Doctor(args) => doctor::run(context, &args),
        Command::Status(args) => status::run(context, &args),
        Command::Watch(args) => watch::run(context, &args),
        Command::Events(args) => events::run(context, &args),
        Command::Explain(args) => explain::run(context, &args),
        Command::Check(args) => check::run(context, &args),
        Command::Monitor(args) => monitor::run(context, args),
        Command::Unmonitor(args) => unmonitor::run(context, &args),
        Command::Reload => reload::run(context),
        Command::Forget(args) => forget::run(context, &args),
        Command::Key(args) => key::run(context, args),
        Command::Maintenance(args) => maintenance::run(context, args),
        Command::Fence(args) => fence::run(context, &args),
        Command::Group(args) => group::run(context, args),
        Command::Lead(args) => lead::run(context, args),
        Command::Plan(args) => plan::run(context, &args),
        Command::Agent(args) => agent::run(&args),
        Command::Lab(_) | Command::Demo(_) | Command::Bench(_) | Command::Nano(_) | Command::Sim(_) => Err(dev::misplaced()),
        Command::Completions(args) => completions::run(context, &args),
        Command::Man(args) => man::run(context, &args),
    }
}

/// Runs a command of `fide-dev`.
pub fn run_dev(context: &Context, command: DevCommand) -> Result<ExitCode, Failure> {
    match command {
        DevCommand::Lab(args) => lab::run(context, args),
        DevCommand::Demo(args) => demo::run(context, &args),
        DevCommand::Bench(args) => bench::run(context, &args),
        DevCommand::Nano(args) => nano::run(context, &args),
        DevCommand::Sim(args) => sim::run(context, &args),
        DevCommand::Helper(helper) => bench::help(&helper),
        DevCommand::Completions(args) => completions::run_dev(context, &args),
        DevCommand::Man(args) => man::run_dev(context, &args),
    }
}
