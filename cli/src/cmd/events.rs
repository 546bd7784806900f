//! `fide events`

use crate::context::{self, Context};
use crate::failure::Failure;
use crate::render::event::line;
use crate::{known, units};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use fide_client::Connection;
use fide_wire::control::{HistoryEvent, Reply, Request};
use fide_wire::level::Level;
use fide_wire::verdict::{Cause, Grade};
use std::collections::VecDeque;
use std::io::Write;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
#[command(after_help = concat!(
    "--cause also takes `failure` (a process ended without saying that it leaves) and `end` (that, or it left).\n",
    "Filters of different kinds must all match; several --cause, --host or --app match any of them.\n",
    "Missed and kept deadlines (level timing) are counted once a minute; --all lists each of them, and so does --cause.",
))]
pub struct EventsArgs {
    /// Keep printing new ones
    #[arg(long, short)]
    pub follow: bool,
    /// The newest N of those that match [default with --follow: 10]
    #[arg(long, short = 'n', value_name = "N")]
    pub last: Option<usize>,
    /// Only these causes
    #[arg(long, value_name = "CAUSE", value_parser = causes())]
    pub cause: Vec<Causes>,
    /// Only about this host and its processes
    #[arg(long, value_name = "HOST")]
    pub host: Vec<String>,
    /// Only about this process (NAME or NAME@HOST)
    #[arg(long, value_name = "APP")]
    pub app: Vec<String>,
    /// Of this level and worse [default: notice]
    #[arg(long, value_name = "LEVEL", value_parser = levels())]
    pub level: Option<Level>,
    /// Of every level: the same as --level timing
    #[arg(long, conflicts_with = "level")]
    pub all: bool,
    /// Only of this grade
    #[arg(long, value_name = "GRADE", value_parser = grades())]
    pub grade: Option<Grade>,
    /// Only since that long ago: 30s, 10m, 2h, 1d
    #[arg(long, value_name = "SPAN", value_parser = units::parse_duration)]
    pub since: Option<u64>,
    /// Only from this number of the history on
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub from: u64,
}

/// One or several causes under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Causes(Vec<Cause>);

fn causes() -> impl clap::builder::TypedValueParser<Value = Causes> {
    let names = Cause::ALL.iter().map(|c| c.name()).chain(["failure", "end"]);
    PossibleValuesParser::new(names).map(|name| {
        Causes(match name.as_str() {
            "end" => Cause::ALL.into_iter().filter(|c| c.ends_process()).collect(),
            "failure" => Cause::ALL.into_iter().filter(|c| c.ends_process() && *c != Cause::Left).collect(),
            one => Cause::ALL.into_iter().filter(|c| c.name() == one).collect(),
        })
    })
}

fn grades() -> impl clap::builder::TypedValueParser<Value = Grade> {
    PossibleValuesParser::new(["certain", "inferred"]).map(|g| if g == "certain" { Grade::Certain } else { Grade::Inferred })
}

/// The levels, by name.
pub fn levels() -> impl clap::builder::TypedValueParser<Value = Level> {
    PossibleValuesParser::new(Level::ALL.map(Level::name))
        .map(|name| Level::ALL.into_iter().find(|l| l.name() == name).unwrap_or(Level::Timing))
}

/// What is wanted, with the time that `--since` means.
#[derive(Debug)]
struct Filter<'a> {
    args: &'a EventsArgs,
    since_wall_ns: u64,
}

impl Filter<'_> {
    fn wants(&self, e: &HistoryEvent) -> bool {
        let a = self.args;
        let about = |app: &String| match (app.split_once('@'), &e.app) {
            (Some((name, host)), Some(is)) => is == name && e.node == host,
            (None, Some(is)) => is == app,
            (_, None) => false,
        };
        e.level() <= self.least()
            && e.wall_ns >= self.since_wall_ns
            && (a.cause.is_empty() || a.cause.iter().any(|c| c.0.contains(&e.cause)))
            && (a.host.is_empty() || a.host.contains(&e.node))
            && (a.app.is_empty() || a.app.iter().any(about))
            && a.grade.is_none_or(|g| g == e.grade)
    }

    /// The least level that is wanted. Who names causes means all their events.
    fn least(&self) -> Level {
        let a = self.args;
        let usual = if a.all || !a.cause.is_empty() { Level::Timing } else { Level::Notice };
        a.level.unwrap_or(usual)
    }
}

/// Asks, filters, prints; with `--follow` until someone ends it.
pub fn run(context: &Context, args: &EventsArgs) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    let since_wall_ns = args.since.map_or(0, |ago| units::now_wall_ns().saturating_sub(ago));
    let filter = Filter { args, since_wall_ns };
    let last = args.last.or((args.follow && args.since.is_none() && args.from == 0).then_some(10));
    let mut out = context.out();

    let mut from = args.from;
    let mut shown = false;
    if let Some(last) = last {
        let (kept, next) = newest(&connection, last, |e| e.seq >= args.from && filter.wants(e))?;
        shown = !kept.is_empty();
        for event in &kept {
            print(context, &mut out, event)?;
        }
        from = from.max(next);
    }
    if last.is_none() || args.follow {
        each_kept(&connection, &Request::Events { from, last: 0, follow: args.follow }, |event| {
            if filter.wants(&event) {
                shown = true;
                print(context, &mut out, &event)?;
            }
            Ok(())
        })?;
    }
    out.flush()?;
    if !shown && !args.follow && (!args.host.is_empty() || !args.app.is_empty()) {
        unknown(context, args)?;
    }
    if !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        match connection.next_reply()?.reply {
            Reply::Event(event) if filter.wants(&event) => {
                print(context, &mut out, &event)?;
                out.flush()?;
            }
            Reply::Event(_) | Reply::EventsEnd { .. } => {}
            other => return Err(Failure::unexpected("an event", &other)),
        }
    }
}

fn print(context: &Context, out: &mut impl Write, event: &HistoryEvent) -> Result<(), Failure> {
    if context.json {
        return context.json_line(out, event);
    }
    writeln!(out, "{}", line(event, &context.style))?;
    Ok(())
}

/// The newest `count` kept events that are wanted, oldest first, and the number of the first event that was not looked at.
///
/// Asks for the newest few of all first, and for more until enough of them are wanted.
pub fn newest(
    connection: &Connection,
    count: usize,
    wants: impl Fn(&HistoryEvent) -> bool,
) -> Result<(VecDeque<HistoryEvent>, u64), Failure> {
    let (mut kept, mut next) = (VecDeque::new(), 0);
    let few = (count as u64).saturating_mul(2).saturating_add(64);
    // Zero: all.
    for last in [few, few.saturating_mul(32), 0] {
        kept.clear();
        let mut came = 0;
        each_kept(connection, &Request::Events { from: 0, last, follow: false }, |event| {
            came += 1;
            next = event.seq + 1;
            if wants(&event) {
                kept.push_back(event);
                if kept.len() > count {
                    kept.pop_front();
                }
            }
            Ok(())
        })?;
        if kept.len() == count || came < last {
            break;
        }
    }
    Ok((kept, next))
}

/// Gives each kept event to `take`, until the agent says that there are no more.
pub fn each_kept(
    connection: &Connection,
    request: &Request,
    mut take: impl FnMut(HistoryEvent) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut reply = connection.request(request)?.reply;
    loop {
        match reply {
            Reply::Event(event) => take(*event)?,
            Reply::EventsEnd { .. } => return Ok(()),
            other => return Err(Failure::unexpected("an event", &other)),
        }
        reply = connection.next_reply()?.reply;
    }
}

/// Nothing about that host or process: is it a slip of the finger?
fn unknown(context: &Context, args: &EventsArgs) -> Result<(), Failure> {
    let Ok(status) = context::status(&context.connect()?) else { return Ok(()) };
    for host in &args.host {
        known::host(&status, host)?;
    }
    for app in &args.app {
        let (name, host) = app.split_once('@').map_or((app.as_str(), None), |(name, host)| (name, Some(host)));
        known::process(&status, name, host)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;
    use fide_explain::samples::killed;

    fn wants(line: &str, event: &HistoryEvent) -> bool {
        let cli = Cli::try_parse_from(format!("fide events {line}").split_whitespace()).unwrap();
        let Command::Events(args) = cli.command else { unreachable!() };
        Filter { args: &args, since_wall_ns: 0 }.wants(event)
    }

    #[test]
    fn filters_of_one_kind_are_alternatives_and_of_several_kinds_conditions() {
        let event = killed();
        for line in
            ["", "--cause killed", "--cause left --cause killed", "--cause failure", "--host h2", "--app redis", "--app redis@h2"]
        {
            assert!(wants(line, &event), "{line}");
        }
        for line in ["--cause left", "--host h1", "--app redis@h1", "--app re", "--grade inferred", "--host h2 --cause left"] {
            assert!(!wants(line, &event), "{line}");
        }
    }

    #[test]
    fn an_event_of_a_host_is_no_event_of_a_process() {
        let event = HistoryEvent { app: None, cause: Cause::SilentHost, ..killed() };
        assert!(!wants("--app redis", &event));
        assert!(wants("--host h2", &event));
        assert!(!wants("--since 10m", &event) || event.wall_ns > 0);
    }

    #[test]
    fn an_unknown_cause_is_refused_with_the_known_ones() {
        let error = Cli::try_parse_from(["fide", "events", "--cause", "died"]).unwrap_err().to_string();
        assert!(error.contains("silent-host") && error.contains("failure"), "{error}");
    }
}
