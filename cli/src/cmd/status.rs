//! `fide status`

use crate::context::{self, Context};
use crate::failure::Failure;
use crate::render;
use crate::render::agents::Agent;
use crate::render::matrix::Matrix;
use std::io::Write as _;
use std::process::ExitCode;

/// `fide status`
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Who hears whom, by the hosts' own reports of the last second
    #[arg(long)]
    matrix: bool,

    /// Every agent of the cluster: its version, zone, fence, keys and groups, as this host knows them
    #[arg(long, conflicts_with = "matrix")]
    agents: bool,
}

/// Asks the agent and prints.
pub fn run(context: &Context, args: &StatusArgs) -> Result<ExitCode, Failure> {
    let status = context::status(&context.connect()?)?;
    let mut out = context.out();
    if args.matrix {
        let matrix = Matrix::new(&status);
        if context.json {
            context.json_line(&mut out, &matrix)?;
        } else {
            out.write_all(matrix.render(status.paths.len(), &context.style).as_bytes())?;
        }
    } else if args.agents {
        let agents = Agent::all(&status);
        if context.json {
            agents.iter().try_for_each(|agent| context.json_line(&mut out, agent))?;
        } else {
            out.write_all(Agent::render(&agents, &context.style).as_bytes())?;
        }
    } else if context.json {
        context.json_line(&mut out, &status)?;
    } else {
        out.write_all(render::status::status(&status, &context.style).as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
