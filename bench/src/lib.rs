//! What produces every figure, and the demonstration.
//!
//! ```text
//! rig       a lab with an agent on every host                    observer   an application on another host, stamping its upcalls
//! crash     one crash, measured from kill(2) to every upcall     victim     what crashes
//! load      stress-ng and iperf3 beside it                       stats      samples, quantiles, the JSON line of a case
//! growth    the same as the cluster, the number of ends and the host grow, and across restarts; with what an agent's threads use (meter)
//! peers     etcd and ZooKeeper in the same crashes               report     one HTML file, drawing its figures
//! demo      `fide demo`                                          tab2       the paper's table, remade
//! lab_redis `fide lab redis`
//! ```
//!
//! All hosts of a lab share one kernel and so one CLOCK_MONOTONIC: stamps of different hosts can be subtracted, which on real
//! hosts they cannot. The event is stamped immediately before kill(2) (or what else brings it about), in a thread with real-time
//! priority, so that load does not tear the stamp and the event apart; the upcall immediately after it returned.

pub mod bars;
#[cfg(test)]
#[allow(dead_code)] // The web page's tests use more of it.
#[path = "../../agent/tests/common/chromium.rs"]
mod chromium;
pub mod consensus;
pub mod crash;
pub mod demo;
pub mod detect;
pub mod drawing;
pub mod failover;
pub mod growth;
pub mod heartbeats;
pub mod jitter;
pub mod lab_redis;
pub mod load;
pub mod meter;
pub mod nano;
pub mod observer;
mod output;
pub mod peers;
mod raft_tcp;
pub mod redis;
pub mod report;
#[cfg(test)]
mod report_tests;
pub mod rig;
pub mod safetimer;
pub mod stats;
pub mod sys;
pub mod tab2;
pub mod ui;
pub mod victim;

/// How a benchmark or the demonstration ended: whether it showed what it must, or why it could not be run.
pub type Outcome = anyhow::Result<bool>;

/// The hidden subcommands: helper processes that a benchmark starts on its hosts.
#[derive(Debug, clap::Subcommand)]
pub enum Helper {
    /// An application that observes
    #[command(name = "bench-observer", hide = true)]
    Observer(observer::Args),
    /// A process to crash
    #[command(name = "bench-victim", hide = true)]
    Victim(victim::Args),
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
            Helper::Observer(args) => observer::run(args),
            Helper::Victim(args) => victim::run(args),
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
