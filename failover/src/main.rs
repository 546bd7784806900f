//! `fide-failover`: which of several servers leads.
//!
//! ```text
//! verdicts (fided) ─┐
//! entries (group) ──┼─► judge ─► proposals ─► group
//! server's reports ─┘      └───► server: lead, follow
//! ```
//!
//! | file | |
//! |---|---|
//! | `course.rs` | what entries mean: terms, leaders, pauses; pure |
//! | `judge.rs` | what one host does about verdicts, entries and reports; pure |
//! | `run.rs` | the manager: agent, group and server around the judge |
//! | `service.rs` | the thread that talks to the server |
//! | `server.rs` | what a server is asked and told |
//! | `redis.rs`, `postgresql.rs`, `unit.rs` | Redis and Valkey; PostgreSQL; a systemd service, or nothing but an address |
//! | `address.rs` | an address that moves with the leader |
//! | `config.rs`, `operator.rs` | the file; what operators say |

mod address;
mod config;
mod course;
mod judge;
mod operator;
mod postgresql;
mod redis;
mod run;
mod server;
mod service;
mod unit;

use clap::{CommandFactory as _, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tracing_subscriber::EnvFilter;

/// One of several servers leads, and another one takes over within milliseconds of its crash.
///
/// Runs on every host that has one of the servers, with the same configuration, beside the agent (fided). Never two lead: who does is decided in a group
/// of these hosts, and only a crash that is certain, or a silent host whose fence has closed, ends a term.
#[derive(Debug, Parser)]
#[command(name = "fide-failover", version)]
struct Cli {
    /// The configuration
    #[arg(long, global = true, value_name = "FILE", default_value = config::PATH)]
    config: PathBuf,
    /// The agent's socket [default: $FIDE_SOCKET, else /run/fide/fided.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Manage this host's server, in the foreground; when it ends, the server goes on as it is
    Run,
    /// Check the configuration, and what of this host it needs
    Check,
    /// Who leads, and how all servers are
    Status {
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// What was decided, when and why
    History {
        /// One JSON object on each line
        #[arg(long)]
        json: bool,
    },
    /// Another server leads, and nothing is lost
    Switch {
        /// Whose
        host: String,
    },
    /// Nobody takes over until further notice: a leader that is restarted leads again
    Pause {
        /// It ends by itself after so long: 90s, 10m, 2h
        #[arg(long = "for", value_name = "TIME", value_parser = operator::duration)]
        time: Option<std::time::Duration>,
        /// Why, for those who look at the status
        #[arg(long, default_value = "", value_name = "TEXT")]
        why: String,
    },
    /// The pause is over
    Resume,
    /// Let a host lead where nobody may by the rules: writes that only others have are lost
    Lead {
        /// Which
        host: String,
        /// Writes may be lost, and it is known that no other server takes any
        #[arg(long, required = true)]
        force: bool,
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

/// What needs no configuration.
fn print(command: &Command) -> std::io::Result<bool> {
    let mut out = std::io::stdout();
    match command {
        Command::Man => clap_mangen::Man::new(Cli::command()).section("8").render(&mut out)?,
        Command::Completions { shell } => clap_complete::generate(*shell, &mut Cli::command(), "fide-failover", &mut out),
        _ => return Ok(false),
    }
    Ok(true)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("fide-failover: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    if print(&cli.command)? {
        return Ok(());
    }
    let config = config::Config::load(&cli.config)?;
    let operator = || operator::Operator::new(config.clone(), cli.socket.clone());
    match cli.command {
        Command::Run => {
            let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
            tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_writer(std::io::stderr)
                .without_time()
                .with_ansi(false)
                .with_target(false)
                .init();
            let stop = Arc::new(AtomicBool::new(false));
            for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
                signal_hook::flag::register(signal, stop.clone())?;
            }
            run::Manager::new(config, cli.socket, &stop)?.run(&stop)
        }
        Command::Check => operator().check(),
        Command::Status { json } => operator().status(json),
        Command::History { json } => operator().history(json),
        Command::Switch { host } => operator().switch(&host),
        Command::Pause { time, why } => operator().pause(time, why),
        Command::Resume => operator().resume(),
        Command::Lead { host, force: _ } => operator().lead(&host),
        Command::Completions { .. } | Command::Man => Ok(()), // printed above
    }
}
