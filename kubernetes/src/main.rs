//! `fide-kubernetes`: taints nodes and marks pods by verdicts.
//!
//! ```text
//! events (fided) ──┐
//! status (fided) ──┼─► judge ─► patches ─► API
//! watches (API) ───┘
//! ```
//!
//! | file | |
//! |---|---|
//! | `judge.rs` | what Kubernetes should know, of what the agent knows; pure |
//! | `agent.rs` | what the agent knows |
//! | `api.rs` | lists, watches and patches over HTTPS |
//! | `run.rs` | the loop |

mod agent;
mod api;
mod judge;
mod run;

use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Kubernetes nodes and pods, marked by verdicts within milliseconds.
///
/// Runs on a node beside the agent (fided), best on two or three. A node whose host is silent behind a closed fence is tainted so that its pods are evicted; one that
/// is silent without that only gets no new pods. Pods that name a watch get a condition that says whether their process is alive. It deletes nothing.
#[derive(Debug, Parser)]
#[command(name = "fide-kubernetes", version)]
struct Cli {
    /// The agent's socket [default: $FIDE_SOCKET, else /run/fide/fided.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Taint and mark, in the foreground; when it ends, all stays as it is
    Run(run::Settings),
    /// Which node is which host, and what would be done
    Status {
        #[command(flatten)]
        settings: run::Settings,
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

fn run(cli: Cli) -> Result<()> {
    // The only one that is built in; that another one was chosen before cannot be.
    _ = rustls::crypto::ring::default_provider().install_default();
    match cli.command {
        Command::Run(mut settings) => {
            settings.socket = cli.socket;
            let stop = Arc::new(AtomicBool::new(false));
            for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
                signal_hook::flag::register(signal, stop.clone())?;
            }
            run::Adapter::new(settings)?.run(&stop);
            Ok(())
        }
        Command::Status { mut settings, json } => {
            settings.socket = cli.socket;
            run::status(&settings, json)
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "fide-kubernetes", &mut std::io::stdout());
            Ok(())
        }
        Command::Man => Ok(clap_mangen::Man::new(Cli::command()).section("8").render(&mut std::io::stdout())?),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("fide-kubernetes: {e:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_taken_before_and_after_the_subcommand() {
        Cli::command().debug_assert();
        for line in ["fide-kubernetes --socket /x man", "fide-kubernetes man --socket /x"] {
            assert_eq!(Cli::try_parse_from(line.split(' ')).unwrap().socket, Some("/x".into()), "{line}");
        }
    }
}
