//! `fide reload`

use crate::context::Context;
use crate::failure::Failure;
use fide_wire::control::Request;
use serde_json::json;
use std::io::Write as _;
use std::process::ExitCode;

/// Asks for it.
pub fn run(context: &Context) -> Result<ExitCode, Failure> {
    let connection = context.connect()?;
    connection.request(&Request::Reload)?;
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &json!({ "reloaded": true, "node": connection.agent().node }))?;
    } else {
        writeln!(
            out,
            "the agent of {} has read its configuration; what it took over: fide events --last 3",
            connection.agent().node
        )?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
