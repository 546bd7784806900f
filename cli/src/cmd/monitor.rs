//! `fide monitor`

use crate::context::{self, Context};
use crate::failure::Failure;
use clap::Args;
use fide_client::Error;
use fide_wire::control::{ErrorCode, Reply, Request, Selector};
use serde_json::json;
use std::io::Write as _;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
pub struct MonitorArgs {
    /// The name others will know it by: NAME@host
    #[arg(value_parser = name)]
    pub name: String,
    /// Which process.
    #[command(flatten)]
    pub selector: SelectorArgs,
    /// Only processes of this user (name or number); without it --process finds your own (as root: root's)
    #[arg(long, value_name = "USER", value_parser = some_text)]
    pub user: Option<String>,
    /// With --process and --port: also processes in other network namespaces, where there is none in the agent's
    #[arg(long)]
    pub containers: bool,
}

/// Exactly one of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct SelectorArgs {
    /// The process with this number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
    /// The process of yours (--user: of that user) with this name; refused when there are several
    #[arg(long, value_name = "NAME", value_parser = some_text)]
    pub process: Option<String>,
    /// The main process of this systemd unit, found anew when the unit is restarted
    #[arg(long, value_name = "UNIT", value_parser = some_text)]
    pub unit: Option<String>,
    /// The first process of this container
    #[arg(long, value_name = "ID", value_parser = some_text)]
    pub container: Option<String>,
    /// The first process of this cgroup (a path below the cgroup root)
    #[arg(long, value_name = "PATH", value_parser = some_text)]
    pub cgroup: Option<String>,
    /// The process that listens on this TCP port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
}

impl SelectorArgs {
    fn selector(self) -> Result<Selector, Failure> {
        let all = [
            self.pid.map(Selector::Pid),
            self.process.map(Selector::Name),
            self.unit.map(Selector::Unit),
            // The agent finds a container's cgroup by the id in its path.
            self.container.or(self.cgroup).map(Selector::Cgroup),
            self.port.map(Selector::Port),
        ];
        all.into_iter()
            .flatten()
            .next()
            .ok_or_else(|| Failure::failed("no process was named: --pid, --process, --unit, --container, --cgroup or --port"))
    }
}

/// What can name a watched process: readable in `name@host`, and no pattern.
fn name(text: &str) -> Result<String, String> {
    fide_wire::names::check_app(text).map(|()| text.into())
}

fn some_text(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("it is empty, which matches nothing".into()) } else { Ok(text.into()) }
}

/// Has it watched.
pub fn run(context: &Context, args: MonitorArgs) -> Result<ExitCode, Failure> {
    let selector = args.selector.selector()?;
    let connection = context.connect()?;
    let node = connection.agent().node.clone();
    let MonitorArgs { name, user, containers, .. } = args;
    let request = Request::Watch { name: name.clone(), selector: selector.clone(), user, containers };
    let (pid, app) = match connection.request(&request) {
        Ok(response) => match response.reply {
            Reply::Watched { pid, app } => (pid, app),
            other => return Err(Failure::unexpected("the watched process", &other)),
        },
        Err(error) => {
            let advice = advice(&error, &selector);
            let mut failure = Failure::from(error);
            failure.hints.extend(advice);
            return Err(failure);
        }
    };
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &json!({ "watched": name, "node": node, "pid": pid, "app": app, "selector": selector }))?;
    } else {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let comm = comm.trim();
        let comm = if comm.is_empty() { String::new() } else { format!(" ({comm})") };
        writeln!(out, "{}@{node} is watched: process {pid}{comm}", name)?;
        if let Ok(status) = context::status(&connection) {
            match status.hosts.iter().filter(|h| h.state == "alive").count() {
                0 => writeln!(out, "no other host is there to learn of its crash: see fide status")?,
                n => writeln!(
                    out,
                    "{} will learn of its crash; try it with: fide events --follow",
                    crate::units::count(n, "other host")
                )?,
            }
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// What to do beside what the agent says; whose watch is in the way, it says itself.
fn advice(error: &Error, selector: &Selector) -> Option<String> {
    let Error::Refused(refused) = error else { return None };
    match (refused.code, selector) {
        (ErrorCode::Exists, _) => Some("see what is watched: fide status".into()),
        (ErrorCode::Ambiguous, Selector::Name(p)) => Some(format!("choose one with --pid: pgrep -a {p}")),
        (ErrorCode::NotFound, Selector::Port(p)) => Some(format!("see who listens: ss -ltnp 'sport = :{p}'")),
        (ErrorCode::NotFound, Selector::Unit(u)) => Some(format!("see systemctl status {u}")),
        (ErrorCode::NotFound, Selector::Name(p)) => Some(format!("see what runs: pgrep -a {p}")),
        (ErrorCode::Permission, _) => {
            Some("processes of other users may be watched by root and by those whom access.watch_others names".into())
        }
        _ => None,
    }
}
