//! `fide maintenance`

use crate::context::{self, Context};
use crate::failure::{Failure, Kind};
use crate::{known, render, units};
use clap::{Args, Subcommand};
use fide_client::Connection;
use fide_wire::control::{MaintenanceOrder, MaintenanceStatus, Reply, Request, Status};
use fide_wire::maintenance::{MAINTENANCE_DEFAULT_NS, MAINTENANCE_NS, check_target, covers};
use serde::Serialize;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Its arguments.
#[derive(Debug, Args)]
#[command(
    after_help = "Verdicts go on during a maintenance and are marked `in maintenance`, in the history, in JSON and for hooks (FIDE_MAINTENANCE). \
Hooks with `maintenance = false` do not run, and fide-failover takes a server's end for planned.\n\n\
The word is given to one agent and reaches all hosts, also those that join later. It survives restarts of agents, and ends by itself."
)]
pub struct MaintenanceArgs {
    /// What to do
    #[command(subcommand)]
    pub order: MaintenanceCommand,
}

/// What can be done.
#[derive(Clone, Debug, Subcommand)]
pub enum MaintenanceCommand {
    /// Begin a maintenance, on all hosts; once more for the same target: it lasts from now on
    On {
        /// NAME for a process on every host, NAME@HOST, @HOST for a host and all its processes; * and ? may stand in both
        #[arg(value_name = "WATCH", default_value = "*", value_parser = target)]
        target: String,
        /// How long, at most 1d [default: 1h]
        #[arg(long = "for", value_name = "SPAN", value_parser = span)]
        span: Option<u64>,
        /// Why, for whoever reads events meanwhile
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
        /// Also for a name that this agent does not know yet
        #[arg(long)]
        ahead: bool,
    },
    /// End a maintenance before its time, on all hosts; without WATCH all of them
    Off {
        /// As it was begun
        #[arg(value_name = "WATCH", value_parser = target)]
        target: Option<String>,
    },
    /// What is in maintenance, for how long, and which hosts know it
    Status,
}

/// So long the other hosts may take to know.
const SPREAD_MAX: Duration = Duration::from_secs(3);

fn target(text: &str) -> Result<String, String> {
    check_target(text).map(|()| text.to_owned())
}

fn span(text: &str) -> Result<u64, String> {
    let ns = units::parse_duration(text)?;
    if MAINTENANCE_NS.contains(&ns) {
        Ok(ns)
    } else {
        Err("a maintenance lasts from 1s to 1d: it must end by itself should everybody forget it".into())
    }
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Told<'a> {
    maintenances: &'a [MaintenanceStatus],
    /// Hosts that are alive and were not heard to know all of them.
    unaware: &'a [String],
}

fn ask(connection: &Connection, order: MaintenanceOrder) -> Result<Vec<MaintenanceStatus>, Failure> {
    match connection.request(&Request::Maintenance { order })?.reply {
        Reply::Maintenance { maintenances } => Ok(maintenances),
        other => Err(Failure::unexpected("maintenances", &other)),
    }
}

/// Hosts that run an agent and do not know all of these.
fn unaware(status: &Status, maintenances: &[MaintenanceStatus]) -> Vec<String> {
    let knows = |host: &String| maintenances.iter().all(|m| m.known_by.contains(host));
    let running = status.hosts.iter().filter(|h| matches!(h.state.as_str(), "alive" | "late")).map(|h| &h.name);
    running.filter(|host| !knows(host)).cloned().collect()
}

/// What of all that is known now this target covers.
fn covered(status: &Status, target: &str) -> Vec<String> {
    let hosts = [&status.node].into_iter().chain(status.hosts.iter().map(|h| &h.name));
    let hosts = hosts.filter(|host| covers(target, None, host)).map(|host| format!("@{host}"));
    let own = status.watched.iter().map(|w| (w.name.as_str(), status.node.as_str()));
    let others = status.hosts.iter().flat_map(|h| h.apps.iter().map(|a| (a.name.as_str(), h.name.as_str())));
    let apps = own.chain(others).filter(|(app, host)| covers(target, Some(app), host));
    let mut names: Vec<String> = hosts.chain(apps.map(|(app, host)| format!("{app}@{host}"))).collect();
    names.sort();
    names.dedup();
    names
}

/// Fails where a name without `*` and `?` covers nothing that is known.
fn is_known(status: &Status, target: &str) -> Result<(), Failure> {
    if target.contains(['*', '?']) || !covered(status, target).is_empty() {
        return Ok(());
    }
    let found = match target.split_once('@') {
        Some(("", host)) => known::host(status, host),
        Some((name, host)) => known::process(status, name, Some(host)),
        None => known::process(status, target, None),
    };
    let ahead = format!("to begin it before that is there: fide maintenance on {target} --ahead");
    found.map_err(|failure| failure.hint(ahead))
}

/// Asks for it, and after a change waits until all hosts know.
pub fn run(context: &Context, args: MaintenanceArgs) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    let (order, begun) = match args.order {
        MaintenanceCommand::Status => (MaintenanceOrder::Status, None),
        MaintenanceCommand::Off { target } => (MaintenanceOrder::Off { target }, None),
        MaintenanceCommand::On { target, span, reason, ahead } => {
            if !ahead {
                is_known(&context::status(&connection)?, &target)?;
            }
            let for_ns = span.unwrap_or(MAINTENANCE_DEFAULT_NS);
            (MaintenanceOrder::On { target: target.clone(), for_ns, reason }, Some(target))
        }
    };
    let is_change = order != MaintenanceOrder::Status;
    ask(&connection, order)?;
    let until = Instant::now() + SPREAD_MAX;
    let (status, unaware) = loop {
        let status = context::status(&connection)?;
        let unaware = unaware(&status, &status.maintenance);
        if !is_change || unaware.is_empty() || Instant::now() >= until {
            break (status, unaware);
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &Told { maintenances: &status.maintenance, unaware: &unaware })?;
    } else {
        let shown = status.maintenance.iter().filter(|m| begun.as_ref().is_none_or(|target| *target == m.target));
        let shown: Vec<_> = shown.map(|m| (m, covered(&status, &m.target))).collect();
        out.write_all(render::maintenance::maintenances(&shown, &context.style).as_bytes())?;
    }
    out.flush()?;
    if unaware.is_empty() || !is_change {
        return Ok(ExitCode::SUCCESS);
    }
    let what = format!("not known yet on {}: its agent does not answer, or is older", unaware.join(", "));
    Err(Failure::new(Kind::Failed, what).hint("the word waits there and is read as soon as it can be: fide maintenance status"))
}
