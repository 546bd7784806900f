//! `fide explain`

use super::events::newest;
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::render::explain::{self, Explanation};
use clap::Args;
use fide_client::Connection;
use fide_wire::control::{ErrorCode, HistoryEvent, Reply, Request};
use fide_wire::level::Level;
use fide_wire::verdict::{UniqueId, VerdictId};
use serde::Serialize;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The verdict (1a2b3c4d-6563a1f2-17) or the number of an event (#17), both as `fide events` prints them, or `last`: the last failure
    #[arg(value_parser = which, default_value = "last")]
    pub id: Which,
    /// With `last`: the last verdict of whatever level, not the last failure
    #[arg(long)]
    pub any: bool,
}

/// Which verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest one.
    Last,
    /// This one.
    Unique(UniqueId),
    /// This one, of whatever incarnation.
    Id(VerdictId),
    /// The event with this number in the history.
    Seq(u64),
}

fn which(text: &str) -> Result<Which, String> {
    if text == "last" {
        return Ok(Which::Last);
    }
    // A verdict's id has a dash in it.
    if let Ok(seq) = text.trim_start_matches('#').parse() {
        return Ok(Which::Seq(seq));
    }
    let error = |e: fide_wire::verdict::VerdictIdError| e.to_string();
    text.parse().map(Which::Unique).or_else(|_| text.parse().map(Which::Id)).map_err(error)
}

#[derive(Serialize)]
struct Told<'a> {
    verdict: &'a HistoryEvent,
    explanation: &'a Explanation,
}

/// Asks for the verdict and explains it.
pub fn run(context: &Context, args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    let (id, incarnation) = match args.id {
        Which::Unique(UniqueId { id, incarnation }) => (id, Some(incarnation)),
        Which::Id(id) => (id, None),
        Which::Seq(seq) => return tell(context, &numbered(&connection, seq)?),
        // Not by its id, which may be that of older ones, too.
        Which::Last => {
            let found = newest(&connection, 1, |e| is_last(e, args.any))?.0.pop_back();
            return tell(context, &found.ok_or_else(|| nothing(args.any))?);
        }
    };
    let event = match ask(&connection, id, incarnation) {
        Ok(event) => event,
        Err(failure) if failure.kind == Kind::NotFound => {
            let (verdicts, _) = newest(&connection, 5, |e| e.id.is_some())?;
            let ids: Vec<String> = verdicts.iter().rev().filter_map(|e| e.unique_id()).map(|id| id.to_string()).collect();
            let hint = if ids.is_empty() {
                "the history holds no verdict yet".into()
            } else {
                format!("the newest ones are {}", ids.join(", "))
            };
            return Err(failure.hint(hint));
        }
        Err(failure) => return Err(failure),
    };
    tell(context, &event)
}

/// Asks for the event with this number.
pub fn numbered(connection: &Connection, seq: u64) -> Result<HistoryEvent, Failure> {
    let (mut found, mut kept) = (None, None);
    let request = Request::Events { from: seq, last: 0, follow: false };
    super::events::each_kept(connection, &request, |event| {
        kept.get_or_insert(event.seq);
        if event.seq == seq {
            found = Some(event);
        }
        Ok(())
    })?;
    match (found, kept) {
        (Some(event), _) => Ok(event),
        (None, Some(first)) => {
            Err(Failure::not_found(format!("event {seq} is not kept any more")).hint(format!("the next one is {first}")))
        }
        (None, None) => {
            Err(Failure::not_found(format!("there is no event {seq} yet")).hint("see fide events for those that are kept"))
        }
    }
}

fn tell(context: &Context, event: &HistoryEvent) -> Result<ExitCode, Failure> {
    let explanation = Explanation::of(event, one_machine(&context.socket_path()));
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &Told { verdict: event, explanation: &explanation })?;
    } else {
        out.write_all(explain::text(event, &explanation, &context.style).as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Asks for one verdict.
fn ask(connection: &Connection, id: VerdictId, incarnation: Option<u32>) -> Result<HistoryEvent, Failure> {
    match connection.request(&Request::Explain { id, incarnation }) {
        Ok(response) => match response.reply {
            Reply::Explained(event) => Ok(*event),
            other => Err(Failure::unexpected("an explanation", &other)),
        },
        Err(error) if error.code() == ErrorCode::Ambiguous => {
            Err(Failure::from(error).hint("with the number of the one that you mean: fide explain NUMBER, or its whole id"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the agent is one of a lab, whose hosts are all this machine.
pub fn one_machine(socket: &Path) -> bool {
    socket.starts_with("/run/fide/lab")
}

/// Whether `last` may mean this event. Its confirmation explains a crash as well as its first notice does.
fn is_last(event: &HistoryEvent, any: bool) -> bool {
    if any { event.id.is_some() } else { event.level() == Level::Failure }
}

fn nothing(any: bool) -> Failure {
    if any {
        return Failure::not_found("the history holds no verdict yet").hint("see fide events");
    }
    Failure::not_found("the history holds no failure of a process or host")
        .hint("fide explain last --any explains the last verdict of any level; fide events lists what happened")
}
