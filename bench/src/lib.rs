//! What produces every figure. The demonstration is `fide-demo`.
//!
//! ```text
//! detect    the time from a crash to knowing of it               jitter     how late heartbeats are
//! growth    the same as the cluster, the number of ends and the host grow, and across restarts; with what an agent's threads use (meter)
//! consensus how long groups take to decide                       redis      real Redis servers, alone and as a group
//! safetimer never wrong about the living                         failover   pairs of servers whose leader is killed
//! load      stress-ng and iperf3 beside it                       tab2       the paper's table, remade
//! floor     how noisy this machine is                            lab_redis  `fide lab redis`
//! ```
//!
//! The rig, observers, victims, samples and reports are those of the demonstration.

pub mod bars;
#[cfg(test)]
#[allow(dead_code)] // The web page's tests use more of it.
#[path = "../../agent/tests/common/chromium.rs"]
mod chromium;
pub mod consensus;
pub mod detect;
pub mod failover;
pub mod floor;
pub mod growth;
pub mod heartbeats;
pub mod jitter;
pub mod lab_redis;
pub mod load;
pub mod meter;
pub mod nano;
mod raft_tcp;
pub mod redis;
#[cfg(test)]
mod report_tests;
pub mod safetimer;
pub mod tab2;

pub use fide_demo::{Outcome, crash, drawing, observer, output, peers, report, rig, show, stats, sys, ui, victim};

/// The hidden subcommands: helper processes that a benchmark starts on its hosts.
#[derive(Debug, clap::Subcommand)]
pub enum Helper {
    /// Those of the rig
    #[command(flatten)]
    Rig(fide_demo::Helper),
    /// Heartbeats to record
    #[command(name = "bench-heartbeats", hide = true)]
    Heartbeats(heartbeats::Args),
    /// An ordinary timeout
    #[command(name = "bench-plain", hide = true)]
    Plain(safetimer::plain::Args),
    /// Ping-pong through a fence
    #[command(name = "bench-overhead", hide = true)]
    Overhead(safetimer::overhead::HelperArgs),
    /// An application of a group, or one end of a UDP round trip
    #[command(name = "bench-group", hide = true)]
    Group(consensus::HelperArgs),
    /// Clients of Redis servers
    #[command(name = "bench-redis", hide = true)]
    Redis(redis::HelperArgs),
    /// A client of PostgreSQL servers
    #[command(name = "bench-postgresql", hide = true)]
    Postgresql(failover::HelperArgs),
    /// A host that dies on order
    #[command(name = "bench-death", hide = true)]
    Death(safetimer::starvation::DeathArgs),
}

impl Helper {
    /// Does it.
    ///
    /// # Errors
    /// Whatever keeps the helper from its work.
    pub fn run(&self) -> anyhow::Result<()> {
        match self {
            Helper::Rig(helper) => helper.run(),
            Helper::Heartbeats(args) => heartbeats::run(args),
            Helper::Plain(args) => safetimer::plain::run(args),
            Helper::Overhead(args) => safetimer::overhead::help(args),
            Helper::Group(args) => consensus::help(args),
            Helper::Redis(args) => redis::help(args),
            Helper::Postgresql(args) => failover::help(args),
            Helper::Death(args) => safetimer::starvation::die(args),
        }
    }
}
