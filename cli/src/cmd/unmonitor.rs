//! `fide unmonitor`

use crate::context::{self, Context};
use crate::failure::{Failure, Kind};
use crate::suggest;
use clap::Args;
use fide_wire::control::{Request, WatchStatus};
use fide_wire::verdict::Cause;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
pub struct UnmonitorArgs {
    /// The name it is watched by
    pub name: String,
}

/// A watch that waits for its process.
const PENDING: &str = "pending";

/// A hung process is there as well.
fn is_running(watch: &WatchStatus) -> bool {
    watch.state == "alive" || watch.state == Cause::Hung.name()
}

/// Ends the watch.
pub fn run(context: &Context, args: &UnmonitorArgs) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    let node = connection.agent().node.clone();
    // `db@h1` on h1 is what others call it.
    let name = args.name.strip_suffix(&format!("@{node}")).unwrap_or(&args.name);
    // A watch by unit, name, port or cgroup outlives its process. That it had ended is worth saying; afterwards nobody knows.
    let before = context::status(&connection).ok().and_then(|s| s.watched.into_iter().rev().find(|w| w.name == name));
    if let Err(error) = connection.request(&Request::Unwatch { name: name.into() }) {
        let failure = Failure::from(error);
        if failure.kind != Kind::NotFound {
            return Err(failure);
        }
        let status = context::status(&connection)?;
        // What has ended has nothing left to end.
        if let Some(ended) = status.watched.iter().rev().find(|w| w.name == name && !is_running(w) && w.state != PENDING) {
            return Err(
                failure.maybe_hint(Some(format!("{name} has ended already ({}), so there is no watch to end", ended.state)))
            );
        }
        let names: BTreeSet<&str> = status.watched.iter().map(|w| w.name.as_str()).filter(|n| *n != name).collect();
        let names: Vec<&str> = names.into_iter().collect();
        return Err(failure.maybe_hint(suggest::hint("watches", name, &names)));
    }
    let mut out = context.out();
    let by_configuration = before.as_ref().is_some_and(|w| w.origin == "config");
    let running = before.as_ref().is_some_and(is_running);
    if context.json {
        let state = before.map_or_else(|| "not-found".to_string(), |w| w.state);
        context.json_line(&mut out, &json!({ "unwatched": name, "node": node, "was": state }))?;
    } else if running {
        writeln!(out, "{name}@{node} is not watched any more; other hosts see that it left")?;
    } else if let Some(ended) = before.as_ref().filter(|w| w.state != PENDING || w.ended > 0) {
        let how = if ended.state == PENDING { String::new() } else { format!(" ({})", ended.state) };
        writeln!(out, "{name}@{node} had ended already{how}; its next instance is not waited for any more")?;
    } else {
        writeln!(out, "no process had been found for {name}@{node} yet; none is waited for any more")?;
    }
    if !context.json && by_configuration {
        writeln!(out, "the configuration has it watched again with: fide reload")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
