//! `fide fence`

use crate::context::Context;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::render;
use clap::{Args, Subcommand};
use fide_client::Connection;
use fide_wire::control::{FenceOrder, FenceStatus, GroupOrder, Reply, Request};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Its arguments.
#[derive(Debug, Args)]
pub struct FenceArgs {
    /// What to do
    #[command(subcommand)]
    pub order: FenceCommand,
}

/// What can be done.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum FenceCommand {
    /// Whether it is open, until when, what extends it, and what its gates have blocked
    Status,
    /// Close it at once: nothing that is guarded leaves this host until it is recovered
    Shut,
    /// Open it after it was closed, in a new incarnation. Others may have taken over: see first that the applications here begin anew
    Recover {
        /// Also if a manager of fide-failover is missing that would see to its server
        #[arg(long)]
        force: bool,
    },
}

/// A recovered fence that was extended so often stays open.
const EXTENSIONS: u64 = 3;
/// It does within this, or not at all.
const RECOVERED_WITHIN: Duration = Duration::from_secs(5);
/// Names of fide-failover's groups, and of its managers' processes, begin so.
const MANAGER: &str = "failover-";
/// Its configuration, unless somebody says otherwise.
const FAILOVER: &str = "/etc/fide/failover.toml";

/// A server that led when this host was fenced takes writes as soon as the fence is open, beside
/// the next leader, unless its manager has closed it: that one is joined then.
fn refuse_without_managers(connection: &Connection) -> Result<(), Failure> {
    let Reply::Status(status) = connection.request(&Request::Status)?.reply else { return Ok(()) };
    let Reply::Groups { groups } = connection.request(&Request::Group { order: GroupOrder::Status })?.reply else {
        return Ok(());
    };
    let mut managers: BTreeSet<String> =
        groups.into_iter().map(|group| group.name).filter(|name| name.starts_with(MANAGER)).collect();
    let of_file = std::fs::read_to_string(FAILOVER).ok().and_then(|text| text.parse::<toml::Table>().ok());
    managers.extend(of_file.and_then(|file| file.get("name")?.as_str().map(|name| format!("{MANAGER}{name}"))));
    let runs = |name: &String| status.watched.iter().any(|watched| watched.name == *name && watched.state == "alive");
    let missing: Vec<&str> = managers.iter().filter(|name| !runs(name)).map(|name| &name[MANAGER.len()..]).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let of = missing.join(", ");
    Err(Failure::failed(format!(
        "the fence stays closed: nobody has seen to it that {of} takes no writes here, where another host may lead by now"
    ))
    .hint("start its manager, which does (systemctl start fide-failover), and say it again")
    .hint("or, if you know that it takes none: fide fence recover --force"))
}

fn ask(connection: &Connection, order: FenceOrder) -> Result<FenceStatus, Failure> {
    match connection.request(&Request::Fence { order })?.reply {
        Reply::Fence(status) => Ok(*status),
        other => Err(Failure::unexpected("the fence", &other)),
    }
}

/// Where others must confirm this host's heartbeats, the fence opens when they do. In mode *sent* it is
/// opened for one t_valid: where an agent that has just started is late with its first heartbeats it
/// closes again, and is opened again.
fn stays_open(connection: &Connection, mut status: FenceStatus) -> Result<FenceStatus, Failure> {
    let interrupt = Interrupt::install()?;
    let until = Instant::now() + RECOVERED_WITHIN;
    let mut before = status.extensions;
    while Instant::now() < until {
        interrupt.check()?;
        match status.state.as_str() {
            "open" if status.extensions >= before + EXTENSIONS && status.left_ns > 0 => return Ok(status),
            "fenced" => {
                std::thread::sleep(Duration::from_millis(200));
                before = ask(connection, FenceOrder::Recover)?.extensions;
            }
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
        status = ask(connection, FenceOrder::Status)?;
    }
    let how = match status.state.as_str() {
        "fenced" => format!("opens, and closes again: {}", status.why),
        "recovering" => "is not open yet, and opens by itself as soon as enough others confirm heartbeats".to_owned(),
        _ => "is not extended".to_owned(),
    };
    let mut failure = match status.state.as_str() {
        "recovering" => Failure::failed(format!("the fence {how}")),
        _ => Failure::failed(format!("the fence {how}: heartbeats of this host do not count in time")),
    };
    if status.mode != "sent" {
        failure = failure.hint(format!(
            "{} of {} must confirm them; {} do not (fide status there says how they see this host)",
            status.confirmations_needed,
            status.observers.join(", "),
            if status.waits_for.is_empty() { "none".to_owned() } else { status.waits_for.join(", ") },
        ));
    }
    Err(failure.hint(
        "hosts that were fenced together confirm each other again once each of them is recovered: fide fence recover there, too",
    ))
}

/// Asks for it.
pub fn run(context: &Context, args: &FenceArgs) -> Result<ExitCode, Failure> {
    let order = match args.order {
        FenceCommand::Status => FenceOrder::Status,
        FenceCommand::Shut => FenceOrder::Shut,
        FenceCommand::Recover { .. } => FenceOrder::Recover,
    };
    let connection = context.connect()?;
    if matches!(args.order, FenceCommand::Recover { force: false }) {
        refuse_without_managers(&connection)?;
    }
    let mut status = ask(&connection, order)?;
    if order == FenceOrder::Recover {
        status = stays_open(&connection, status)?;
    }
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &status)?;
    } else {
        out.write_all(render::fence::fence(&status, &context.style).as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
