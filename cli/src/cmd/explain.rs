//! `fide explain`

use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::render::explain::{self, Explanation};
use clap::Args;
use fide_client::Connection;
use fide_wire::control::{HistoryEvent, Reply, Request};
use fide_wire::verdict::VerdictId;
use serde::Serialize;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The verdict, as `fide events` prints it (1a2b3c4d-17), or `last`
    #[arg(value_parser = which, default_value = "last")]
    pub id: Which,
}

/// Which verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest one.
    Last,
    /// This one.
    Id(VerdictId),
}

fn which(text: &str) -> Result<Which, String> {
    if text == "last" {
        return Ok(Which::Last);
    }
    text.parse().map(Which::Id).map_err(|e: fide_wire::verdict::VerdictIdError| e.to_string())
}

#[derive(Serialize)]
struct Told<'a> {
    verdict: &'a HistoryEvent,
    explanation: &'a Explanation,
}

/// Asks for the verdict and explains it.
pub fn run(context: &Context, args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    let id = match args.id {
        Which::Id(id) => id,
        Which::Last => recent(&connection)?
            .last()
            .copied()
            .ok_or_else(|| Failure::not_found("the history holds no verdict yet").hint("see fide events"))?,
    };
    let event = match ask(&connection, id) {
        Ok(event) => event,
        Err(failure) if failure.kind == Kind::NotFound => {
            let ids: Vec<String> = recent(&connection)?.iter().rev().take(5).map(ToString::to_string).collect();
            let hint = if ids.is_empty() {
                "the history holds no verdict yet".into()
            } else {
                format!("the newest ones are {}", ids.join(", "))
            };
            return Err(failure.hint(hint));
        }
        Err(failure) => return Err(failure),
    };
    let explanation = Explanation::of(&event, one_machine(&context.socket_path()));
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &Told { verdict: &event, explanation: &explanation })?;
    } else {
        out.write_all(explain::text(&event, &explanation, &context.style).as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Asks for one verdict.
pub fn ask(connection: &Connection, id: VerdictId) -> Result<HistoryEvent, Failure> {
    match connection.request(&Request::Explain { id })?.reply {
        Reply::Explained(event) => Ok(*event),
        other => Err(Failure::unexpected("an explanation", &other)),
    }
}

/// Whether the agent is one of a lab, whose hosts are all this machine.
pub fn one_machine(socket: &Path) -> bool {
    socket.starts_with("/run/fide/lab")
}

/// The verdicts in the history, oldest first.
fn recent(connection: &Connection) -> Result<Vec<VerdictId>, Failure> {
    let mut ids = Vec::new();
    super::events::each_kept(connection, &Request::Events { from: 0, last: 200, follow: false }, |event| {
        ids.extend(event.id);
        Ok(())
    })?;
    Ok(ids)
}
