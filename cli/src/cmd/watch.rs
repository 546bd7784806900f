//! `fide watch`

use crate::context::{self, Context};
use crate::failure::{Failure, Kind};
use crate::{tui, units};
use clap::Args;
use fide_wire::level::Level;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

/// Its arguments.
#[derive(Debug, Args)]
#[command(
    after_help = "Keys: arrows select, Tab changes between hosts and events, Enter explains, p lists the processes of all hosts, / filters events, ? names all keys, q ends.\nWith --json: a status object for each interval."
)]
pub struct WatchArgs {
    /// How often the agent is asked (events come at once)
    #[arg(long, value_name = "SPAN", default_value = "500ms", value_parser = interval)]
    pub interval: Duration,
    /// Only events of this level and worse
    #[arg(long, value_name = "LEVEL", default_value = "notice", value_parser = super::events::levels())]
    pub level: Level,
    /// Events of every level: the same as --level timing
    #[arg(long, conflicts_with = "level")]
    pub all: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let span = Duration::from_nanos(units::parse_duration(text)?);
    if span < Duration::from_millis(50) { Err("at least 50ms".into()) } else { Ok(span) }
}

/// Shows the live view, or prints what it would show.
pub fn run(context: &Context, args: &WatchArgs) -> Result<ExitCode, Failure> {
    if context.json {
        let connection = context.connect()?;
        let mut out = context.out();
        loop {
            context.json_line(&mut out, &context::status(&connection)?)?;
            out.flush()?;
            std::thread::sleep(args.interval);
        }
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::new(Kind::Usage, "the live view needs a terminal")
            .hint("fide status, fide events --follow and fide watch --json need none"));
    }
    tui::run(context, args.interval, if args.all { Level::Timing } else { args.level })?;
    Ok(ExitCode::SUCCESS)
}
