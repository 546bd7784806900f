//! `fide lead`

use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::units;
use clap::{Args, Subcommand};
use fide_client::Error;
use fide_lead::course::Course;
use fide_lead::operator::{Operator, names};
use fide_lead::payload::{Plan, is_program};
use fide_lead::run::{Options, Runner, wall_ms};
use serde::Serialize;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A switch, or the end of all, takes no longer than COMMAND may take to end, and this.
const MOVES_WITHIN: Duration = Duration::from_secs(60);

/// Its arguments.
#[derive(Debug, Args)]
pub struct LeadArgs {
    /// What to do
    #[command(subcommand)]
    pub order: LeadCommand,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum LeadCommand {
    /// Run COMMAND here while this host leads, and nowhere else; the same on every host of --hosts
    Run(RunArgs),
    /// On which host it runs, and since when; without NAME all of this host
    Status {
        /// Of which
        name: Option<String>,
    },
    /// What was decided, when and why
    History {
        /// Of which
        name: String,
    },
    /// Have it run on another host: it is asked to end here first
    Switch {
        /// What
        name: String,
        /// Where
        host: String,
    },
    /// Have nothing started on any host until further notice
    Pause {
        /// What
        name: String,
        /// It ends by itself after so long: 90s, 10m, 2h
        #[arg(long = "for", value_name = "SPAN", value_parser = units::parse_duration)]
        span: Option<u64>,
        /// Why, for those who look at the status
        #[arg(long, default_value = "", value_name = "TEXT", hide_default_value = true)]
        reason: String,
    },
    /// End a pause, and try again what has failed on every host
    Resume {
        /// What
        name: String,
    },
    /// Have it run nowhere any more, and end every `fide lead run` of it
    Retire {
        /// What
        name: String,
    },
}

/// Of `fide lead run`.
#[derive(Debug, Args)]
#[command(
    after_help = "COMMAND is started with FIDE_NAME and FIDE_TERM in its environment, in a cgroup of its own. When its main process ends, everything in that \
cgroup is ended, and another host starts it. A host that is silent is waited for until its fence has closed (docs/fence.md)."
)]
pub struct RunArgs {
    /// Its name, the same on all hosts
    pub name: String,
    /// All hosts on which it may run, the preferred ones first, in the same order everywhere
    #[arg(long, value_name = "HOST,…", value_delimiter = ',', required = true)]
    pub hosts: Vec<String>,
    /// An address that moves with it, with its prefix: 10.0.0.9/24
    #[arg(long, value_name = "ADDRESS", requires = "interface")]
    pub address: Option<String>,
    /// On which interface
    #[arg(long, value_name = "NAME", requires = "address")]
    pub interface: Option<String>,
    /// How long COMMAND may take to end when it is asked to (SIGTERM) before it is killed
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = units::parse_duration)]
    pub stop_timeout: u64,
    /// A program that runs on the other hosts while this name leads elsewhere; it gets FIDE_LEADER
    #[arg(long, value_name = "PROGRAM")]
    pub on_follow: Option<String>,
    /// Of its group: huc, hsuc, lowi or raft [default: as the hosts' fences suggest]
    #[arg(long, value_name = "ENGINE", default_value = "", hide_default_value = true)]
    pub engine: String,
    /// Of its group: fence, trust-contract or witness [default: as the hosts' fences suggest]
    #[arg(long, value_name = "POLICY", default_value = "", hide_default_value = true)]
    pub policy: String,
    /// What to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub words: Vec<String>,
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Told<'a> {
    name: &'a str,
    #[serde(flatten)]
    course: &'a Course,
}

fn failed(e: anyhow::Error) -> Failure {
    match e.downcast::<Error>() {
        Ok(e) => Failure::from(e),
        Err(e) => Failure::failed(format!("{e:#}")),
    }
}

/// Runs it, or asks for it.
pub fn run(context: &Context, args: LeadArgs) -> Result<ExitCode, Failure> {
    let open = |name: &str| Operator::open(name, context.socket.clone()).map_err(failed);
    match args.order {
        LeadCommand::Run(args) => return start(context, args),
        LeadCommand::Status { name } => return status(context, name),
        LeadCommand::History { name } => return history(context, &open(&name)?),
        LeadCommand::Switch { name, host } => open(&name)?.switch(&host, MOVES_WITHIN).map_err(failed)?,
        LeadCommand::Pause { name, span, reason } => {
            open(&name)?.pause(span.map(Duration::from_nanos), reason).map_err(failed)?;
        }
        LeadCommand::Resume { name } => open(&name)?.resume().map_err(failed)?,
        LeadCommand::Retire { name } => open(&name)?.retire(MOVES_WITHIN).map_err(failed)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn start(context: &Context, args: RunArgs) -> Result<ExitCode, Failure> {
    let usage = |what: String| Failure::new(Kind::Usage, what);
    fide_wire::maintenance::check_target(&args.name).map_err(|why| usage(format!("{}: {why}", args.name)))?;
    if args.name.contains(['@', '*', '?', '/']) {
        return Err(usage(format!("{}: a name without @, *, ? and /", args.name)));
    }
    let mut hosts = args.hosts.clone();
    hosts.sort();
    hosts.dedup();
    if hosts.len() != args.hosts.len() {
        return Err(usage("--hosts names a host twice".into()));
    }
    for program in [Some(&args.words[0]), args.on_follow.as_ref()].into_iter().flatten() {
        if !is_program(program) {
            return Err(Failure::not_found(format!("there is no program {program} on this host")));
        }
    }
    let plan = Plan {
        name: args.name,
        words: args.words,
        on_follow: args.on_follow.into_iter().collect(),
        address: args.address.zip(args.interface),
        stop_timeout: Duration::from_nanos(args.stop_timeout),
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone()).map_err(|e| Failure::failed(format!("signals: {e}")))?;
    }
    let options = Options { plan, hosts: args.hosts, engine: args.engine, policy: args.policy, socket: context.socket.clone() };
    Runner::new(options, &stop).and_then(|runner| runner.run(&stop)).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn in_words(name: &str, course: &Course) -> String {
    let state = match &course.leader {
        Some(leader) => {
            let for_s = wall_ms().saturating_sub(course.began_ms) / 1000;
            let leaves = course.switching.as_ref().map(|to| format!(", and is about to move to {to}")).unwrap_or_default();
            let here = if course.here.contains_key(leader) {
                ""
            } else {
                "; its fide lead is gone: it goes on when that is started there again, or its host is fenced"
            };
            format!("runs on {leader} for {for_s} s, term {}{leaves}{here}", course.term)
        }
        None if course.term == 0 => {
            let missing: Vec<&str> =
                course.hosts.iter().filter(|host| !course.here.contains_key(*host)).map(String::as_str).collect();
            format!("has not begun: waits for {}", missing.join(", "))
        }
        None => match course.pause_ms() {
            None => format!("rests, because it failed everywhere ({}); fide lead resume {name}", course.over),
            Some(_) => format!("runs nowhere: {}", course.over),
        },
    };
    let paused = course.paused.as_ref().map_or_else(String::new, |pause| {
        let until = pause.until_ms.map_or_else(
            || format!("until fide lead resume {name}"),
            |until_ms| format!("for {} s", until_ms.saturating_sub(wall_ms()) / 1000),
        );
        let why = if pause.why.is_empty() { String::new() } else { format!(" ({})", pause.why) };
        format!("\n  paused {until}{why}: nothing is started")
    });
    let hosts = course.hosts.iter().map(|host| {
        let role = match (course.leader.as_ref() == Some(host), course.here.contains_key(host)) {
            (true, true) => "runs it",
            (true, false) => "ran it, its fide lead is gone",
            (false, true) => "waits",
            (false, false) => "missing",
        };
        let failed = course.failed.get(host).map(|times| format!(", failed {times} times")).unwrap_or_default();
        format!("\n  {host:<16} {role}{failed}")
    });
    format!("{name}: {state}{paused}{}\n", hosts.collect::<String>())
}

fn status(context: &Context, name: Option<String>) -> Result<ExitCode, Failure> {
    let all = match name {
        Some(name) => vec![name],
        None => names(&context.connect()?).map_err(failed)?,
    };
    let mut out = context.out();
    if all.is_empty() && !context.json {
        writeln!(out, "no fide lead runs on this host")?;
    }
    for name in all {
        let of = Operator::open(&name, context.socket.clone()).map_err(failed)?;
        if context.json {
            context.json_line(&mut out, &Told { name: &name, course: of.course() })?;
        } else {
            out.write_all(in_words(&name, of.course()).as_bytes())?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn history(context: &Context, of: &Operator) -> Result<ExitCode, Failure> {
    let mut out = context.out();
    for decision in &of.course().history {
        if context.json {
            context.json_line(&mut out, decision)?;
        } else {
            let ago_s = wall_ms().saturating_sub(decision.at_ms) as f64 / 1000.0;
            writeln!(out, "{ago_s:>12.3} s ago  term {:<4} {}", decision.term, decision.text)?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
