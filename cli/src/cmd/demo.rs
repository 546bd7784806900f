//! `fide demo`

use super::bench::{done, ui};
use crate::context::Context;
use crate::failure::Failure;
use std::process::ExitCode;

/// Plays it. It fails also when a scene did not show what it must.
pub fn run(context: &Context, args: &fide_demo::show::Args) -> Result<ExitCode, Failure> {
    done(fide_demo::show::run(args, &ui(context)?))
}
