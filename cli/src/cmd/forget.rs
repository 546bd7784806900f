//! `fide forget`

use crate::context::Context;
use crate::failure::Failure;
use clap::Args;
use fide_wire::control::Request;
use serde_json::json;
use std::io::Write as _;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
#[command(
    after_help = "A host whose agent is stopped leaves by itself. One that died and will not come back stays in `fide status`, and counts where a fence \
waits for a majority, until it is forgotten: on each of the other hosts, because each decides for itself whom it counts. If it is heard again, it is back.\n\n\
A host that is only unreachable counts itself and those who are with it. Who forgets hosts that live may leave both sides of a partition open."
)]
pub struct ForgetArgs {
    /// The host's name; it must not be heard
    pub host: String,
}

/// Asks for it.
pub fn run(context: &Context, args: &ForgetArgs) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    connection.request(&Request::Forget { host: args.host.clone() })?;
    let node = &connection.agent().node;
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &json!({ "forgotten": args.host, "node": node }))?;
    } else {
        writeln!(out, "the agent of {node} has forgotten {}; every other host has to be asked, too", args.host)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
