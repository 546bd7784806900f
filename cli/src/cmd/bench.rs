//! `fide bench`, and the helper processes of benchmarks and the demonstration.

use crate::context::Context;
use crate::failure::{Failure, Kind};
use clap::{Args, Subcommand};
use fide_bench::ui::{Interrupted, Ui};
use fide_bench::{Helper, consensus, detect, failover, floor, growth, jitter, nano, redis, safetimer};
use fide_lab::LabError;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Which
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// How noisy this machine is: a UDP round trip between two of its hosts, the floor of every other figure
    Floor(floor::Args),
    /// How long after a crash a remote application knows (Tab. 2, Fig. 5), and what it costs to know
    Detect(detect::Args),
    /// What a crash costs as the cluster, the number of ends at once and the host itself grow
    Growth(growth::Args),
    /// How late heartbeats are, over time and against a timeout (Fig. 3, Fig. 4)
    Jitter(jitter::Args),
    /// How long groups take to decide, beside a UDP round trip; how much they decide
    Consensus(consensus::Args),
    /// Real Redis servers: alone, replicated as usual, and as a group; and when the leading one is killed
    Redis(redis::Args),
    /// Pairs of servers whose leader is killed: `fide-failover` beside Sentinel, keepalived and Patroni
    Failover(failover::Args),
    /// The engine in hardware: clocks of its model (emulation), per packet, decision and failover
    Nano(nano::Args),
    /// That a delay on either side makes no verdict wrong (SafeTimer, Table 1), and what the fence costs
    Safetimer(safetimer::Args),
}

/// Runs one. It fails also when it found what must not be: a missed crash, a false verdict.
pub fn run(context: &Context, args: &BenchArgs) -> Result<ExitCode, Failure> {
    let ui = ui(context)?;
    done(ui.or_interrupted(match &args.command {
        BenchCommand::Floor(args) => floor::run(args, &ui),
        BenchCommand::Detect(args) => detect::run(args, &ui),
        BenchCommand::Growth(args) => growth::run(args, &ui),
        BenchCommand::Jitter(args) => jitter::run(args, &ui),
        BenchCommand::Consensus(args) => consensus::run(args, &ui),
        BenchCommand::Redis(args) => redis::run(args, &ui),
        BenchCommand::Failover(args) => failover::run(args, &ui),
        BenchCommand::Nano(args) => nano::run(args, &ui),
        BenchCommand::Safetimer(args) => safetimer::run(args, &ui),
    }))
}

/// Does a helper process's work.
pub fn help(helper: &Helper) -> Result<ExitCode, Failure> {
    done(helper.run().map(|()| true))
}

/// How a benchmark talks.
pub(super) fn ui(context: &Context) -> Result<Ui, Failure> {
    Ui::listening(context.json, context.style.on).map_err(|e| Failure::failed(format!("cannot listen to signals: {e}")))
}

/// Its end as an exit code.
pub(super) fn done(outcome: fide_bench::Outcome) -> Result<ExitCode, Failure> {
    let error = match outcome {
        Ok(true) => return Ok(ExitCode::SUCCESS),
        Ok(false) => return Ok(ExitCode::FAILURE),
        Err(error) => error,
    };
    if error.is::<Interrupted>() {
        return Err(Failure::new(Kind::Interrupted, error.to_string()));
    }
    let failure = match error.downcast::<LabError>() {
        Ok(error) => return Err(error.into()),
        Err(error) => error,
    };
    let failure = match failure.downcast::<fide_demo::show::NoSuchScene>() {
        Ok(error) => return Err(Failure::not_found(error.to_string())),
        Err(error) => error,
    };
    match failure.downcast::<fide_client::Error>() {
        Ok(error) => Err(error.into()),
        Err(error) => Err(Failure::failed(format!("{error:#}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_a_benchmark_decides_the_exit_code() {
        let kind = |outcome| done(outcome).map_err(|f| f.kind as u8);
        assert_eq!(kind(Err(Interrupted.into())), Err(130));
        assert_eq!(kind(Err(LabError::NotRoot { what: "x", euid: 7 }.into())), Err(5));
        let unplayed = fide_demo::show::check_scenes(&[9]).map_err(Into::into).map(|()| true);
        assert_eq!(kind(unplayed), Err(4));
        assert_eq!(kind(Ok(true)), Ok(ExitCode::SUCCESS));
        assert_eq!(kind(Ok(false)), Ok(ExitCode::FAILURE));
    }
}
