//! What can be typed after `fided`: here and not in `main.rs`, so that `fide man` can print a page of it.

use crate::config;
use clap::Parser;
use std::path::PathBuf;

/// The FiDe agent: watches processes of this host, tells the others the moment one is doomed, and judges the others' silence.
#[derive(Debug, Parser)]
#[command(name = "fided", version)]
pub struct Arguments {
    /// The configuration.
    #[arg(long, short, value_name = "FILE", default_value = config::DEFAULT_PATH)]
    pub config: PathBuf,
    /// Read the configuration and its keys, say what is doubtful, and exit.
    #[arg(long)]
    pub check: bool,
    /// Take the fence and all gates away, while no agent runs: everybody may send. Also what fences left whose pins are lost.
    #[arg(long, conflicts_with = "check")]
    pub remove_fence: bool,
    /// While no agent runs, make the state on disk this host's, though it names another one: for a host that was renamed or has another machine id. DIRECTORY:
    /// where the log says that it was moved to; without one, the state lies in its place. Then exit.
    #[arg(long, value_name = "DIRECTORY", num_args = 0..=1, conflicts_with_all = ["check", "remove_fence"])]
    pub adopt_state: Option<Option<PathBuf>>,
    /// What the agent starts itself for: says how a file is, for a progress probe.
    #[arg(long, value_name = "FILE", hide = true)]
    pub probe_file: Option<PathBuf>,
    /// The same: writes a file to its disk.
    #[arg(long, value_name = "FILE", hide = true)]
    pub probe_write: Option<PathBuf>,
}
