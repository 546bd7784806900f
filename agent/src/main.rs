//! fided: the agent of one host.

use anyhow::Context;
use clap::Parser;
use fide_agent::arguments::Arguments;
use fide_agent::config::Config;
use std::process::ExitCode;

fn main() -> ExitCode {
    fide_agent::memory::map_pieces_of_states();
    let arguments = Arguments::parse();
    if arguments.probe_file.is_some() || arguments.probe_write.is_some() {
        return match fide_agent::probes::help(arguments.probe_file.as_deref(), arguments.probe_write.as_deref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(what) => {
                eprintln!("{what}");
                ExitCode::FAILURE
            }
        };
    }
    let lines = match fide_agent::log_lines::Lines::to(std::io::stderr()) {
        Ok(lines) => lines,
        Err(e) => {
            eprintln!("no thread for the log: {e}");
            return ExitCode::FAILURE;
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("FIDE_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .with_writer(lines.clone())
        .with_ansi(false)
        .with_target(false)
        .init();
    let code = match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!("{e:#}");
            ExitCode::FAILURE
        }
    };
    lines.finish();
    code
}

fn start(arguments: Arguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments.config).context("fided does not start")?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if arguments.check {
        for doubt in config.doubts() {
            tracing::warn!("{doubt}");
        }
        println!("{}: fine", arguments.config.display());
        println!("{}", config.cost());
        return Ok(());
    }
    if arguments.remove_fence {
        let said = fide_agent::fence::remove(&config.fence).map_err(anyhow::Error::msg).context("the fence is not removed")?;
        said.iter().for_each(|what| println!("removed: {what}"));
        if said.is_empty() {
            println!("there was none");
        }
        return Ok(());
    }
    if let Some(from) = &arguments.adopt_state {
        fide_agent::start::adopt_state(&config, from.as_deref())
            .context("the state is not adopted")?
            .iter()
            .for_each(|what| println!("{what}"));
        return Ok(());
    }
    fide_agent::start::run(config, arguments.config).context("fided does not start")
}
