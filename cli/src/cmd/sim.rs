//! `fide sim`: the coordination cores in simulated worlds.

use crate::context::Context;
use crate::failure::Failure;
use clap::{Args, Subcommand};
use fide_proto::consensus::Kind;
use fide_sim::{Menu, Options, Plan, Policy, options, run};
use std::io::Write as _;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// What
    #[command(subcommand)]
    pub command: SimCommand,
}

/// What can be done with worlds.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// The world of one seed, told as a timeline
    Replay(ReplayArgs),
}

/// Its arguments.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Which seed
    pub seed: u64,
    /// The engine: hsuc, huc, lowi, paxos or raft
    #[arg(long, value_parser = options::parse_kind)]
    pub engine: Kind,
    /// What the group does with inferred crashes: trust-contract, fence or witness
    #[arg(long, default_value = "trust-contract", value_parser = parse_policy)]
    pub policy: Policy,
    /// What goes wrong
    #[arg(long, default_value = "within-contract")]
    pub menu: Menu,
    /// How many hosts [default: 2 to 5, as the seed says]
    #[arg(long)]
    pub hosts: Option<u16>,
}

fn parse_policy(text: &str) -> Result<Policy, String> {
    Policy::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| {
        let names: Vec<_> = Policy::ALL.iter().map(|policy| policy.name()).collect();
        format!("no such policy: {text} (there are: {})", names.join(", "))
    })
}

/// Runs it.
pub fn run(context: &Context, args: &SimArgs) -> Result<ExitCode, Failure> {
    match &args.command {
        SimCommand::Replay(args) => replay(context, args),
    }
}

fn replay(context: &Context, args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let options = Options { engine: args.engine, policy: args.policy, menu: args.menu, hosts: args.hosts };
    let (outcome, timeline) = run::watch(&Plan::generate(args.seed, options));
    let mut out = context.out();
    write!(out, "{timeline}")?;
    out.flush()?;
    Ok(if outcome.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
