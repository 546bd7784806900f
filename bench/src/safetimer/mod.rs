//! `fide bench safetimer`: that a delay makes no verdict wrong (SafeTimer §6.2), and what the fence costs (§6.1).
//!
//! ```text
//! table1    the rows of Table 1, one fault after the other      plain      an ordinary timeout in user space, beside it
//! inject    how each stage is held up, or made to drop
//! ```

pub mod inject;
pub mod plain;
pub mod table1;

use crate::Outcome;
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
}

/// Runs what was asked for. `Ok(false)`: a row was not as it must be.
///
/// # Errors
/// When something keeps it from being measured.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    crate::sys::require_root("bench safetimer")?;
    inject::reap();
    table1::run(&args.only, ui)
}
