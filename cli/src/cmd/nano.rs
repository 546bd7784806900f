//! `fide nano`: members of LOWI groups, in hardware and in software.

use crate::context::Context;
use crate::failure::{Failure, Kind};
use fide_nano::args::NanoArgs;
use std::io::Write as _;
use std::process::ExitCode;

/// Runs one of its commands.
pub fn run(context: &Context, args: &NanoArgs) -> Result<ExitCode, Failure> {
    let mut out = context.out();
    fide_nano::control::run(&args.command, context.json, &mut out).map_err(|why| {
        let failure = Failure::new(if why.permission { Kind::Permission } else { Kind::Failed }, why.what);
        match why.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
