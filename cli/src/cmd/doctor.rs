//! `fide doctor`

use crate::context::Context;
use crate::doctor::files::Files;
use crate::doctor::{Report, agent, bpf, fence, jitter, kernel, network, render, timing};
use crate::failure::Failure;
use crate::progress::Progress;
use clap::Args;
use fide_agent::config::Profile;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Its arguments.
#[derive(Debug, Args)]
#[command(
    after_help = "The exit code is 1 when something is missing without which the agent cannot work here. Run it as root to have everything tried."
)]
pub struct DoctorArgs {
    /// Examine these interfaces, and try XDP on them (some drivers drop the link for a moment) [default: those that look as if they were meant]
    #[arg(long, short, value_name = "IF")]
    pub interface: Vec<String>,
    /// Try XDP also on interfaces that were not named
    #[arg(long)]
    pub r#try: bool,
    /// The agent's configuration to check [default: /etc/fide/fide.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Measure for that long how this host delays a thread
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=60))]
    pub jitter: Option<u64>,
}

/// Examines and prints.
pub fn run(context: &Context, args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let progress = Progress::start(context, "examining this host");
    let report = examine(context, args, &progress);
    drop(progress);
    let mut out = context.out();
    if context.json {
        for item in report.groups.iter().flat_map(|g| &g.items) {
            context.json_line(&mut out, item)?;
        }
        context.json_line(&mut out, &report.summary)?;
    } else {
        out.write_all(render::report(&report, &context.style).as_bytes())?;
    }
    out.flush()?;
    Ok(if report.summary.works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn examine(context: &Context, args: &DoctorArgs, progress: &Progress) -> Report {
    let files = Files::host();
    let (configuration, config) = agent::configuration(args.config.as_deref());
    let configured: Vec<String> = config.iter().flat_map(|c| &c.paths).map(|p| p.interface.clone()).collect();
    let named = if args.interface.is_empty() { &configured } else { &args.interface };
    let all = network::interfaces();
    let used = network::chosen(&all, named);

    progress.set("asking the kernel");
    let mut groups = vec![kernel::examine(&files)];
    progress.set("loading programs");
    let status = context.connect().and_then(|c| crate::context::status(&c)).ok();
    groups.push(bpf::examine(&files, &used, args.r#try || !args.interface.is_empty(), status.as_ref()));
    progress.set("trying the fence");
    groups.push(fence::examine(kernel::may_load(&files), &all, status.as_ref()));
    progress.set("looking at the network");
    groups.push(network::examine(&files, &all, &used, config.as_ref()));
    progress.set("measuring stolen time");
    let usual = fide_lane::profile::PRIORITY;
    groups.push(timing::examine(&files, config.as_ref().map_or(usual, |c| c.rt_priority.into())));
    progress.set("asking the agent");
    groups.push(agent::examine(context.socket.as_deref(), configuration, config.as_ref(), status.as_ref()));
    progress.set("looking for sources of jitter");
    let dedicated = config.as_ref().is_some_and(|c| c.profile == Profile::Dedicated);
    let names: Vec<&str> = used.iter().filter(|n| n.index > 0).map(|n| n.name.as_str()).collect();
    groups.push(jitter::examine(&names, dedicated));
    if let Some(seconds) = args.jitter {
        progress.set(format!("measuring for {seconds} s how this host delays a thread"));
        groups.push(jitter::measure(Duration::from_secs(seconds)));
    }
    Report::of(groups, used.iter().filter(|n| n.index > 0).count().min(fide_wire::PATHS))
}
