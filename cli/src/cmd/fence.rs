//! `fide fence`

use crate::context::Context;
use crate::failure::Failure;
use crate::render;
use clap::{Args, Subcommand};
use fide_wire::control::{FenceOrder, Reply, Request};
use std::io::Write as _;
use std::process::ExitCode;

/// Its arguments.
#[derive(Debug, Args)]
pub struct FenceArgs {
    /// What to do
    #[command(subcommand)]
    pub order: FenceCommand,
}

/// What can be done.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum FenceCommand {
    /// Whether it is open, until when, what extends it, and what its gates have blocked
    Status,
    /// Close it at once: nothing that is guarded leaves this host until it is recovered
    Shut,
    /// Open it after it was closed, in a new incarnation. Others may have taken over: see first that the applications here begin anew
    Recover,
}

/// Asks for it.
pub fn run(context: &Context, args: &FenceArgs) -> Result<ExitCode, Failure> {
    let order = match args.order {
        FenceCommand::Status => FenceOrder::Status,
        FenceCommand::Shut => FenceOrder::Shut,
        FenceCommand::Recover => FenceOrder::Recover,
    };
    let reply = context.connect()?.request(&Request::Fence { order })?.reply;
    let Reply::Fence(status) = reply else {
        return Err(Failure::failed(format!("the agent gave an answer to something else: {reply:?}")));
    };
    let mut out = context.out();
    if context.json {
        context.json_line(&mut out, &status)?;
    } else {
        out.write_all(render::fence::fence(&status, &context.style).as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
