//! `fide doctor`

use crate::context::Context;
use crate::failure::Failure;
use clap::Args;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
pub struct DoctorArgs {}

/// Not yet.
pub fn run(_context: &Context, _args: &DoctorArgs) -> Result<ExitCode, Failure> {
    Err(Failure::failed("not there yet"))
}
