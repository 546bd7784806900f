//! The demonstration, and the rig that benchmarks share with it.
//!
//! ```text
//! rig       a lab with an agent on every host                    observer   an application on another host, stamping its upcalls
//! crash     one crash, measured from kill(2) to every upcall     victim     what crashes
//! stats     samples, quantiles, the JSON line of a case          report     one HTML file, drawing its figures
//! peers     etcd and ZooKeeper in the same crashes               output     files that are written where somebody asked for them
//! show      `fide demo`                                          ui         what is said meanwhile
//! ```
//!
//! All hosts of a lab share one kernel and so one CLOCK_MONOTONIC: stamps of different hosts can be subtracted, which on real
//! hosts they cannot. The event is stamped immediately before kill(2) (or what else brings it about), in a thread with real-time
//! priority, so that load does not tear the stamp and the event apart; the upcall immediately after it returned.

pub mod crash;
pub mod drawing;
pub mod observer;
pub mod output;
pub mod peers;
pub mod report;
pub mod rig;
pub mod show;
pub mod stats;
pub mod sys;
pub mod ui;
pub mod victim;

/// How a benchmark or the demonstration ended: whether it showed what it must, or why it could not be run.
pub type Outcome = anyhow::Result<bool>;

/// The hidden subcommands: helper processes that a rig starts on its hosts.
#[derive(Debug, clap::Subcommand)]
pub enum Helper {
    /// An application that observes
    #[command(name = "bench-observer", hide = true)]
    Observer(observer::Args),
    /// A process to crash
    #[command(name = "bench-victim", hide = true)]
    Victim(victim::Args),
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
        }
    }
}
