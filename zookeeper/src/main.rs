//! `fide-zookeeper`: the oracle of a ZooKeeper ensemble of two servers.
//!
//! ```text
//! verdicts (fided) ─┐
//! entries (group) ──┼─► judge ─► proposals ─► group
//! server (srvr) ────┤      ├───► oracle file ─► ZooKeeper
//! disk (dataDir) ───┘      └───► identity on the disk
//! ```
//!
//! | file | |
//! |---|---|
//! | `course.rs` | what entries mean, and what one host does about them; pure |
//! | `disk.rs` | which disk the server's data are on, and how far they go |
//! | `run.rs` | the hook: agent, group and server around the judge |
//! | `server.rs` | what the server is asked |

mod course;
mod disk;
mod run;
mod server;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{CommandFactory as _, Parser, Subcommand};
use course::{Course, Entry, Mode};
use fide_client::Connection;
use fide_client::group::{Event, Group, Options};
use std::path::{Path, PathBuf};
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
    /// The agent's socket [default: $FIDE_SOCKET, else /run/fide/fided.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
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
        #[command(flatten)]
        of: Of,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Whether this host's server may begin: not on a disk that lacks what it wrote alone (for ExecStartPre= of the server)
    Check {
        #[command(flatten)]
        of: Of,
        /// The server's dataDir in zoo.cfg
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// Its dataLogDir, if zoo.cfg names one
        #[arg(long, value_name = "DIR")]
        data_log: Option<PathBuf>,
    },
    /// Give up what another disk or the other server has and this one lacks: this host's server serves on alone with what it has
    ///
    /// For when the server that may serve alone has lost its disk for good (fide-zookeeper status says so). What only that disk had is lost.
    GiveUp {
        #[command(flatten)]
        of: Of,
        /// The other server's host is gone for good and does not serve: also where nobody has noted that its disk is lost
        #[arg(long)]
        gone: bool,
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

#[derive(Debug, clap::Args)]
struct Of {
    /// The group
    #[arg(long, value_name = "NAME")]
    group: String,
    /// The agent's socket: an option of the program.
    #[arg(skip)]
    socket: Option<PathBuf>,
}

/// Longest wait for what a person proposes.
const DECIDED_MAX: Duration = Duration::from_secs(10);
/// Longest wait of a server that is to begin for the group.
const KNOWN_MAX: Duration = Duration::from_secs(30);

/// What is missing when the server of this host served alone, and has lost its disk; and what a person can do.
fn lost_in_words(course: &Course, host: &str, group: &str) -> String {
    let noted = course.disks.get(host).cloned().unwrap_or_default();
    format!(
        "the server of {host} lacks what it wrote alone: it served alone from transaction {:#x} on, at least to {:#x}, on the disk {}, and now has another disk or \
         an older copy. No oracle says 1. Stop the server of {host} and give that disk's data back to it, or give them up: on the host whose server shall go on with \
         what it has, `fide-zookeeper give-up --group {group}`",
        course.from_zxid, noted.zxid, noted.id
    )
}

/// A state for people.
fn in_words(course: &Course, group: &str) -> String {
    match &course.mode {
        Mode::Alone(host) if course.other.is_some() => lost_in_words(course, host, group),
        Mode::Unknown => "nothing is known of the servers' data yet: no oracle is changed to 1".into(),
        Mode::Both => "both servers are in step: both oracles say 0".into(),
        Mode::Alone(host) => format!("the server of {host} may serve alone: {}", course.why),
    }
}

/// The group, with every entry read that was there. Entries come at once when it is opened; there is nothing more when none came for a while.
fn read(of: &Of) -> Result<(Group, Course)> {
    const SILENCE: Duration = Duration::from_millis(300);
    let options = Options { path: of.socket.clone(), ..Options::default() };
    let mut group = Group::open_with(&of.group, options).with_context(|| format!("cannot open the group {}", of.group))?;
    let mut course = Course::default();
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        match group.poll(Some(SILENCE))? {
            None => break,
            event => follow(&mut course, event)?,
        }
    }
    if group.standing().is_none() {
        bail!("the group {} does not run here (fide group status)", of.group);
    }
    Ok((group, course))
}

fn follow(course: &mut Course, event: Option<Event>) -> Result<()> {
    match event {
        Some(Event::Entry(entry)) => Entry::read(&entry.bytes).iter().for_each(|entry| course.apply(entry)),
        Some(Event::Snapshot { bytes, .. }) => {
            *course = Course::read(&bytes).context("the group's state is not one of fide-zookeeper")?;
        }
        _ => {}
    }
    Ok(())
}

fn status(of: &Of, json: bool) -> Result<()> {
    let (_, course) = read(of)?;
    let words = in_words(&course, &of.group);
    if json {
        let mut said = serde_json::to_value(&course)?;
        said["missing"] = course.other.is_some().then_some(words).into();
        println!("{said}");
    } else {
        println!("{words}");
    }
    Ok(())
}

/// Fails where it is not known what this host's server must have: systemd tries again.
fn check(of: &Of, data: &Path, data_log: Option<&Path>) -> Result<()> {
    let until = Instant::now() + KNOWN_MAX;
    let (me, course) = loop {
        let known = Connection::open(of.socket.as_deref())
            .map_err(anyhow::Error::from)
            .and_then(|connection| Ok((connection.agent().node.clone(), read(of)?.1)));
        match known {
            Ok(known) => break known,
            Err(e) if Instant::now() >= until => return Err(e).context("it is not known what this host's server must have"),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    };
    let disk = disk::Reader::new(data, data_log.unwrap_or(data)).read()?;
    ensure!(!course.lacks(&me, &disk), "{}", lost_in_words(&course, &me, &of.group));
    println!("the server of {me} may begin");
    Ok(())
}

fn give_up(of: &Of, gone: bool) -> Result<()> {
    let me = Connection::open(of.socket.as_deref())?.agent().node.clone();
    let (mut group, mut course) = read(of)?;
    ensure!(
        course.sessions.contains_key(&me),
        "the hook of {me} does not take part in the group {}: give up on the host whose server shall go on",
        of.group
    );
    ensure!(
        course.may_be_given_up(gone),
        "nothing is known to be missing ({}). If the other server's host is gone for good and does not serve: --gone",
        in_words(&course, &of.group)
    );
    let epoch = course.epoch;
    group.propose(&Entry::GivenUp { epoch, host: me.clone(), gone, at_ms: run::wall_ms() }.bytes())?;
    let until = Instant::now() + DECIDED_MAX;
    while course.epoch == epoch {
        ensure!(Instant::now() < until, "not decided within {} s; it may be later: fide group status", DECIDED_MAX.as_secs());
        follow(&mut course, group.poll(Some(Duration::from_millis(100)))?)?;
    }
    ensure!(course.mode == Mode::Alone(me), "something else came first: {}", in_words(&course, &of.group));
    println!("{}", in_words(&course, &of.group));
    Ok(())
}

fn run(cli: Cli) -> Result<()> {
    let socket = cli.socket;
    let asked = |of: Of| Of { socket: socket.clone(), ..of };
    match cli.command {
        Command::Run(mut settings) => {
            settings.socket = socket;
            let stop = Arc::new(AtomicBool::new(false));
            for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
                signal_hook::flag::register(signal, stop.clone())?;
            }
            run::Hook::new(settings, &stop)?.run(&stop)
        }
        Command::Status { of, json } => status(&asked(of), json),
        Command::Check { of, data, data_log } => check(&asked(of), &data, data_log.as_deref()),
        Command::GiveUp { of, gone } => give_up(&asked(of), gone),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_taken_before_and_after_the_subcommand() {
        Cli::command().debug_assert();
        for line in ["fide-zookeeper --socket /x status --group g", "fide-zookeeper status --group g --socket /x"] {
            assert_eq!(Cli::try_parse_from(line.split(' ')).unwrap().socket, Some("/x".into()), "{line}");
        }
    }
}
