//! `fide-zookeeper`: the oracle of a ZooKeeper ensemble of two servers.
//!
//! ```text
//! verdicts (fided) ─┐
//! entries (group) ──┼─► judge ─► proposals ─► group
//! server (srvr) ────┘      └───► oracle file ─► ZooKeeper
//! ```
//!
//! | file | |
//! |---|---|
//! | `course.rs` | what entries mean, and what one host does about them; pure |
//! | `run.rs` | the hook: agent, group and server around the judge |
//! | `server.rs` | what the server is asked |

mod course;
mod run;
mod server;

use anyhow::{Context as _, Result, bail};
use clap::{CommandFactory as _, Parser, Subcommand};
use course::{Course, Entry, Mode};
use fide_client::group::{Event, Group, Options};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Two ZooKeeper servers, of which one serves on when the other has crashed.
///
/// Runs on the hosts of both servers, beside the agent (fided), and writes the file that oraclePath in zoo.cfg names. Never both files say 1: which server may
/// serve alone is decided in a group, and one that lacks a write is never chosen.
#[derive(Debug, Parser)]
#[command(name = "fide-zookeeper", version)]
struct Cli {
    /// What to do
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write this host's oracle, in the foreground; when it ends, the oracle stays as it is
    Run(run::Settings),
    /// Which server may serve alone, as the group has it
    Status {
        /// The group
        #[arg(long, value_name = "NAME")]
        group: String,
        /// The agent's socket [default: $FIDE_SOCKET, else /run/fide/fided.sock]
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Shell completions
    Completions {
        /// For which shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// The manual page
    Man,
}

/// A state for people.
fn in_words(course: &Course) -> String {
    match &course.mode {
        Mode::Unknown => "nothing is known of the servers' data yet: no oracle is changed to 1".into(),
        Mode::Both => "both servers are in step: both oracles say 0".into(),
        Mode::Alone(host) => format!("the server of {host} may serve alone: {}", course.why),
    }
}

/// Entries come at once when a group is opened; there is nothing more when none came for a while.
fn status(group: &str, socket: Option<PathBuf>, json: bool) -> Result<()> {
    const SILENCE: Duration = Duration::from_millis(300);
    let options = Options { path: socket, ..Options::default() };
    let mut opened = Group::open_with(group, options).with_context(|| format!("cannot open the group {group}"))?;
    let mut course = Course::default();
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        match opened.poll(Some(SILENCE))? {
            Some(Event::Entry(entry)) => Entry::read(&entry.bytes).iter().for_each(|entry| course.apply(entry)),
            Some(Event::Snapshot { bytes, .. }) => {
                course = serde_json::from_slice(&bytes).context("the group's state is not one of fide-zookeeper")?;
            }
            Some(_) => {}
            None => break,
        }
    }
    if opened.standing().is_none() {
        bail!("the group {group} does not run here (fide group status)");
    }
    println!("{}", if json { serde_json::to_string(&course)? } else { in_words(&course) });
    Ok(())
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Run(settings) => {
            let stop = Arc::new(AtomicBool::new(false));
            for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
                signal_hook::flag::register(signal, stop.clone())?;
            }
            run::Hook::new(settings, &stop)?.run(&stop)
        }
        Command::Status { group, socket, json } => status(&group, socket, json),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "fide-zookeeper", &mut std::io::stdout());
            Ok(())
        }
        Command::Man => Ok(clap_mangen::Man::new(Cli::command()).section("8").render(&mut std::io::stdout())?),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("fide-zookeeper: {e:#}");
            ExitCode::FAILURE
        }
    }
}
