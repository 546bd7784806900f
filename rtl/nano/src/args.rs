//! What can be typed behind `fide nano`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `fide nano`.
#[derive(Debug, Args)]
pub struct NanoArgs {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// Its commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a member on interfaces of this host: the engine in hardware as a model (emulation: correctness, not speed)
    Run(RunArgs),
    /// Write a member's settings into its registers
    Configure(ConfigureArgs),
    /// Start a configured member
    Start(StartArgs),
    /// Stop a member, from any state
    Stop(EngineArgs),
    /// What a member is, by its registers
    Status(EngineArgs),
    /// The same, whenever it changes
    Watch(WatchArgs),
    /// Hand in a value; members in hardware take it while they lead
    Propose(ProposeArgs),
    /// Have a member join a running group, without stopping the others
    Join(JoinArgs),
    /// Have a member leave the group, without stopping the others
    Leave(LeaveArgs),
    /// Make one trace of those of a group's members, for scripts/specs --trace
    Trace(TraceArgs),
}

/// Which engine.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// The socket of `fide nano run`, or the file of a board's BAR
    #[arg(long, value_name = "PATH")]
    pub engine: PathBuf,
}

/// `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The group's file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The member's id
    #[arg(long, value_name = "ID")]
    pub member: u16,
    /// The interface of each path, in their order
    #[arg(long, value_name = "NAME", required = true)]
    pub interface: Vec<String>,
    /// Where the control software finds it: a socket that is made
    #[arg(long, value_name = "PATH")]
    pub engine: PathBuf,
    /// The software core instead of the engine in hardware
    #[arg(long)]
    pub software: bool,
    /// The engine's model [default: $FIDE_RTL_MODEL, else target/rtl/libfide_rtl.so]
    #[arg(long, value_name = "FILE", conflicts_with = "software")]
    pub model: Option<PathBuf>,
    /// Where decisions are written, a JSON object on each line [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Where what the member does is written, a line an event: fide nano trace makes one trace of those of a group
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Run with real-time priority (SCHED_FIFO)
    #[arg(long)]
    pub fifo: bool,
}

/// `configure`.
#[derive(Debug, Args)]
pub struct ConfigureArgs {
    /// Which engine
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The group's file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The member's id
    #[arg(long, value_name = "ID")]
    pub member: u16,
}

/// How a group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// The lowest member speaks when all are there
    OnMessage,
    /// All are started within Δ_W
    Together,
}

/// `start`.
#[derive(Debug, Args)]
pub struct StartArgs {
    /// Which engine
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How the group begins
    #[arg(long, value_enum, default_value_t = Mode::OnMessage)]
    pub mode: Mode,
}

/// `watch`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Which engine
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How often the registers are read (ms)
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub every: u64,
    /// End after so many lines
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

/// `propose`.
#[derive(Debug, Args)]
pub struct ProposeArgs {
    /// Which engine
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The values, in their order
    #[arg(required = true)]
    pub value: Vec<String>,
}

/// `join`.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// The joiner: a member that runs and was not started
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The group's file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The joiner's id
    #[arg(long, value_name = "ID")]
    pub member: u16,
    /// The socket of a member that takes requests: the leader, or any one in software
    #[arg(long, value_name = "PATH")]
    pub at: PathBuf,
}

/// `leave`.
#[derive(Debug, Args)]
pub struct LeaveArgs {
    /// Which engine takes the request: the leader's, or any one in software
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The id of the member that leaves
    #[arg(long, value_name = "ID")]
    pub member: u16,
}

/// `trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The files that `fide nano run --trace` wrote
    #[arg(required = true, value_name = "FILE")]
    pub file: Vec<PathBuf>,
}
