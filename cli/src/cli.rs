//! What can be typed. Only words here: what they do is in [`crate::cmd`].

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Exit codes, as `--help` and the man pages tell them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    refused or failed
  2    the command line makes no sense
  3    no agent: none is running, it hung up, or it did not answer
  4    not found: no such process, host, user, group, event, lab, scene, file or program
  5    permission
  130  interrupted (Ctrl-C); what was begun was undone";

/// Know within microseconds that a process on another machine has crashed.
///
/// `fide` talks to the agent of this host (`fided`) through its socket. Start with `fide doctor`; try it without any risk with
/// `fide lab up --agents`.
#[derive(Debug, Parser)]
#[command(name = "fide", version, after_help = EXIT_CODES, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// For all subcommands.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of all subcommands.
#[derive(Debug, Args)]
pub struct Global {
    /// The agent's socket [default: $FIDE_SOCKET, else /run/fide/fided.sock]
    #[arg(long, global = true, value_name = "PATH", help_heading = "Global options")]
    pub socket: Option<PathBuf>,
    /// Print JSON, one object on each line, with stable field names
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// When to use colours; the environment's NO_COLOR is respected
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = Color::Auto, help_heading = "Global options")]
    pub color: Color,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal
    Auto,
    /// Also into a pipe
    Always,
    /// Nowhere
    Never,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// What this host can and cannot do, and what each missing thing costs
    Doctor(crate::cmd::doctor::DoctorArgs),
    /// What the agent knows now: paths, contract, hosts, margins, processes
    Status(crate::cmd::status::StatusArgs),
    /// Live view of hosts, paths, margins and verdicts
    Watch(crate::cmd::watch::WatchArgs),
    /// The event history
    Events(crate::cmd::events::EventsArgs),
    /// What a verdict rests on
    Explain(crate::cmd::explain::ExplainArgs),
    /// Whether a heartbeat that is missed may be waiting on this host, asked for somebody whose own detector counts heartbeats
    Check(crate::cmd::check::CheckArgs),
    /// Have a process of this host watched
    Monitor(crate::cmd::monitor::MonitorArgs),
    /// End a watch (others see the process leave, not crash)
    Unmonitor(crate::cmd::unmonitor::UnmonitorArgs),
    /// Make the agent read its configuration again
    Reload,
    /// Have a host that is gone for good, without having left, counted no more
    Forget(crate::cmd::forget::ForgetArgs),
    /// The cluster's keys: make one, which hosts hold which, rotate to another one without a gap
    Key(crate::cmd::key::KeyArgs),
    /// Planned work: verdicts go on and are marked, hooks and managers can leave them alone, on every host, until it ends by itself
    Maintenance(crate::cmd::maintenance::MaintenanceArgs),
    /// The fence of this host: how it is; shut it; open it again after it closed
    Fence(crate::cmd::fence::FenceArgs),
    /// Groups: a log that several hosts agree on, also while hosts crash
    Group(crate::cmd::group::GroupArgs),
    /// Run a command on one of several hosts: where it leads, and nowhere else
    Lead(crate::cmd::lead::LeadArgs),
    /// What a network can promise: trees, timeouts, bandwidth, what one failure takes; asks and changes nothing
    Plan(crate::cmd::plan::PlanArgs),
    /// Run the agent, fided, in the foreground
    Agent(crate::cmd::agent::AgentArgs),
    /// Hosts and switches on this machine, made of network namespaces (package fide-dev)
    #[command(disable_help_flag = true)]
    Lab(Passed),
    /// See it: real crashes on a lab of three hosts, beside what TCP told (package fide-dev)
    #[command(disable_help_flag = true)]
    Demo(Passed),
    /// The benchmarks: what every figure comes from (package fide-dev)
    #[command(disable_help_flag = true)]
    Bench(Passed),
    /// LOWI's engine in hardware: run its model, or the software core, as a member; drive either, or a board (package fide-dev)
    #[command(disable_help_flag = true)]
    Nano(Passed),
    /// Coordination in simulated worlds: by the thousand, or one told as a timeline (package fide-dev)
    #[command(disable_help_flag = true)]
    Sim(Passed),
    /// Shell completions
    Completions(crate::cmd::completions::CompletionsArgs),
    /// Manual pages
    Man(crate::cmd::man::ManArgs),
}

/// What `fide-dev` makes of it: see [`crate::cmd::dev`].
#[derive(Debug, Args)]
pub struct Passed {
    /// For `fide-dev`, which does it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub args: Vec<OsString>,
}

/// A cluster on this machine, and what shows what FiDe does.
///
/// `fide` runs this program for `fide lab`, `fide demo`, `fide bench`, `fide nano` and `fide sim`.
#[derive(Debug, Parser)]
#[command(name = "fide-dev", version, after_help = EXIT_CODES, subcommand_required = true, arg_required_else_help = true)]
pub struct DevCli {
    /// For all subcommands.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: DevCommand,
}

/// The subcommands of `fide-dev`.
#[derive(Debug, Subcommand)]
pub enum DevCommand {
    /// Hosts and switches on this machine, made of network namespaces
    Lab(crate::cmd::lab::LabArgs),
    /// See it: real crashes on a lab of three hosts, beside what TCP told
    Demo(fide_demo::show::Args),
    /// The benchmarks: what every figure comes from
    Bench(crate::cmd::bench::BenchArgs),
    /// LOWI's engine in hardware: run its model, or the software core, as a member; drive either, or a board
    Nano(fide_nano::args::NanoArgs),
    /// Helper processes of the demonstration and the benchmarks
    #[command(flatten)]
    Helper(fide_bench::Helper),
    /// Coordination in simulated worlds: by the thousand, or one told as a timeline
    Sim(crate::cmd::sim::SimArgs),
    /// Shell completions of `fide-dev`, or of `fide` with all that both do
    Completions(crate::cmd::completions::DevCompletionsArgs),
    /// Manual pages
    Man(crate::cmd::man::ManArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        DevCli::command().debug_assert();
    }

    #[test]
    fn global_options_are_taken_before_and_after_the_subcommand() {
        for line in ["fide --json status", "fide status --json"] {
            assert!(Cli::try_parse_from(line.split(' ')).unwrap().global.json, "{line}");
        }
    }

    #[test]
    fn what_fide_dev_does_is_described_alike_by_both() {
        let (fide, dev) = (Cli::command(), DevCli::command());
        for name in crate::cmd::dev::COMMANDS {
            let about = |c: &clap::Command| c.find_subcommand(name).unwrap().get_about().unwrap().to_string();
            assert_eq!(about(&fide), about(&dev) + " (package fide-dev)");
        }
    }

    #[test]
    fn monitor_wants_exactly_one_way_of_naming_the_process() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("fide monitor db --port 6379").is_ok());
        assert!(parse("fide monitor db").is_err());
        assert!(parse("fide monitor db --port 6379 --pid 3").is_err());
        assert!(parse("fide monitor db --port 0").is_err());
        assert!(parse("fide monitor a@b --pid 3").is_err());
    }

    #[test]
    fn every_subcommand_tells_its_exit_codes() {
        assert!(Cli::command().render_help().to_string().contains("no agent"));
    }
}
