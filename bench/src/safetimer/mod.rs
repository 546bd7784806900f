//! `fide bench safetimer`: that a delay makes no verdict wrong (SafeTimer §6.2), and what the fence costs (§6.1).
//!
//! ```text
//! table1    the rows of Table 1, one fault after the other      plain      an ordinary timeout in user space, beside it
//! inject    how each stage is held up, or made to drop          overhead   ping-pong with and without gates
//! drain     from a missed deadline to a verdict behind a barrier
//! starvation   an observer that does not get a processor
//! ```

pub mod drain;
pub mod inject;
pub mod overhead;
pub mod plain;
pub mod starvation;
pub mod table1;

use crate::Outcome;
use crate::rig::Profile;
use crate::ui::Ui;

/// Arguments of `fide bench safetimer`.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct Args {
    /// Delays and drops at every stage of receiver and sender that this kernel lets us reach, an ordinary timeout beside us
    #[arg(long, group = "what")]
    pub table1: bool,
    /// Only these rows of the table
    #[arg(long, value_name = "ROW", value_delimiter = ',', requires = "table1", value_parser = table1::names())]
    pub only: Vec<String>,
    /// How agents receive: by XDP where they can, or by the fallback, plain sockets
    #[arg(long, requires = "table1", default_value = "auto")]
    pub receive: table1::By,
    /// How agents send: frames, or by the fallback, plain sockets
    #[arg(long, requires = "table1", default_value = "auto")]
    pub send: table1::By,
    /// All times of the table so many times as long, for a machine that is slow: an emulated one
    #[arg(long, value_name = "N", requires = "table1", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub slower: u32,
    /// Ping-pong from 8 B to 64 KB with and without the fence, in turns
    #[arg(long, group = "what")]
    pub overhead: bool,
    /// Starve an observer on every processor for so long; a host dies meanwhile. Everything else on this machine is starved, too
    #[arg(long, value_name = "SECONDS", group = "what", value_parser = clap::value_parser!(u64).range(2..=600))]
    pub starvation: Option<u64>,
    /// Stop an agent so many times, and tell the time from the deadline that it missed to the verdict behind a barrier
    #[arg(long, value_name = "TIMES", group = "what", num_args = 0..=1, default_missing_value = "300", value_parser = clap::value_parser!(u32).range(10..=100_000))]
    pub drain: Option<u32>,
    /// How the observer's agent treats its processor
    #[arg(long, requires = "drain", default_value = "shared")]
    pub profile: Profile,
    /// Rounds for each size, an even number; each mode has its exchanges in every round
    #[arg(long, value_name = "N", default_value_t = 40, requires = "overhead", value_parser = clap::value_parser!(u32).range(3..=1000))]
    pub rounds: u32,
    /// Exchanges in a round, for each mode, in bursts of ten
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "overhead", value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub exchanges: u32,
    /// Fail when the mean of all sizes misses its bar in SPECIFICATION.md
    #[arg(long, requires = "overhead")]
    pub check: bool,
}

/// Runs what was asked for. `Ok(false)`: a row was not as it must be.
///
/// # Errors
/// When something keeps it from being measured.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    crate::sys::require_root("run this benchmark")?;
    inject::reap();
    if let Some(seconds) = args.starvation {
        starvation::run(seconds, ui)
    } else if let Some(times) = args.drain {
        drain::run(times, args.profile, ui)
    } else if args.overhead {
        overhead::run(args, ui)
    } else {
        table1::run(args, ui)
    }
}
