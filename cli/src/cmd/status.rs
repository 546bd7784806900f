//! `fide status`

use crate::context::{self, Context};
use crate::failure::Failure;
use crate::render;
use std::io::Write as _;
use std::process::ExitCode;

/// Asks the agent and prints.
pub fn run(context: &Context) -> Result<ExitCode, Failure> {
    let status = context::status(&context.connect()?)?;
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &status)?;
    } else {
        out.write_all(render::status::status(&status, &context.style).as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
