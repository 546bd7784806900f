//! `fide bench nano`: figures of the engine in hardware, in clocks of its Verilator model. A clock of the model is a clock of the
//! design; how long one is on a board was not measured, so a time here is clocks × period and is marked so.

use crate::Outcome;
use crate::stats::{Case, Quantiles};
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result, anyhow, bail};
use fide_rtl::figures::{self, Params};
use fide_rtl::model::Library;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What every output says.
const EMULATION: &str =
    "emulation: clocks of a Verilator model; a time is clocks × the period of the clock that was named, not measured";
/// Clocks from a proposal to its decision, without tags and with.
const BARS: [u64; 2] = [12, 40];

/// Arguments of `fide bench nano`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A model of the engine, or several [default: $FIDE_RTL_MODEL, else target/rtl/libfide_rtl.so]
    #[arg(long, value_name = "FILE")]
    pub model: Vec<PathBuf>,
    /// Members of the group
    #[arg(long, value_delimiter = ',', default_values_t = 1..=9u16, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub members: Vec<u16>,
    /// Bytes of a value; the engine takes at most 984
    #[arg(long, value_delimiter = ',', default_values_t = [16, 64, 256, 512, 984], value_parser = clap::value_parser!(u16).range(0..=984))]
    pub size: Vec<u16>,
    /// The clock for times (MHz)
    #[arg(long, value_name = "MHZ", default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub clock_mhz: u32,
    /// Fail where a bar is missed
    #[arg(long)]
    pub check: bool,
}

/// One figure in clocks.
struct Figure<'a> {
    ui: &'a Ui,
    mhz: u32,
    missed: u64,
}

impl Figure<'_> {
    fn clocks(&mut self, case: String, what: &str, clocks: u64, bar: Option<u64>, values: &[(&str, f64)]) {
        let at = clocks as f64;
        let quantiles = Quantiles { min: at, p50: at, p99: at, p999: at, max: at };
        let ns = at * 1e3 / f64::from(self.mhz);
        let mut values: BTreeMap<String, f64> = values.iter().map(|(name, value)| ((*name).into(), *value)).collect();
        values.insert("clocks_x_period_ns".into(), ns);
        values.insert("clock_mhz".into(), self.mhz.into());
        values.extend(bar.map(|bar| ("bar".to_string(), bar as f64)));
        let (steps, beside, notes) = (BTreeMap::new(), BTreeMap::new(), vec![EMULATION.into()]);
        let missed = bar.is_some_and(|bar| clocks > bar);
        self.missed += u64::from(missed);
        let said = bar.map_or_else(String::new, |bar| format!(", bar {bar}{}", if missed { ": MISSED" } else { "" }));
        self.ui.say(format!("  {what}: {clocks} clocks{said} (× {:.1} ns = {ns:.0} ns)", 1e3 / f64::from(self.mhz)));
        self.tell(&Case { bench: "nano", case, n: 1, unit: "clocks", quantiles, steps, beside, values, notes });
    }

    fn rate(&self, case: String, what: &str, frames: u64, clocks: u64, words: u64) {
        let rate = frames as f64 / clocks as f64;
        let quantiles = Quantiles { min: rate, p50: rate, p99: rate, p999: rate, max: rate };
        let values = [("frames", frames as f64), ("clocks", clocks as f64), ("words_per_clock", rate * words as f64)];
        let values = values.into_iter().map(|(name, value)| (name.into(), value)).collect();
        self.ui.say(format!("  {what}: {rate:.3} packets a clock ({:.3} words a clock)", rate * words as f64));
        let (steps, beside, notes) = (BTreeMap::new(), BTreeMap::new(), vec![EMULATION.into()]);
        let n = frames as usize;
        self.tell(&Case { bench: "nano", case, n, unit: "packets/clock", quantiles, steps, beside, values, notes });
    }

    fn tell(&self, case: &Case) {
        if self.ui.json {
            self.ui.line(case.json());
        }
    }
}

/// Runs it.
///
/// # Errors
/// A model that cannot be loaded, or an engine that does not do what is measured.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    ui.say(ui.paint(Paint::Dim, EMULATION));
    let mut models = args.model.clone();
    if models.is_empty() {
        models.push(std::env::var_os("FIDE_RTL_MODEL").map_or_else(|| "target/rtl/libfide_rtl.so".into(), PathBuf::from));
    }
    let mut figure = Figure { ui, mhz: args.clock_mhz, missed: 0 };
    for model in &models {
        let library =
            Library::load(model).map_err(|why| anyhow!(why)).context("no model of the engine; build one: scripts/rtl model")?;
        one(args, library, figures::params(library), &mut figure).with_context(|| model.display().to_string())?;
    }
    if figure.missed > 0 {
        ui.say(format!("{} figures miss their bar", figure.missed));
    }
    Ok(!args.check || figure.missed == 0)
}

fn one(args: &Args, library: Library, built: Params, figure: &mut Figure<'_>) -> Result<()> {
    let Params { bits, tag_words, .. } = built;
    let ui = figure.ui;
    let design = format!("bits={bits} tag_words={tag_words}");
    ui.say(ui.paint(
        Paint::Bold,
        &format!(
            "{bits} bits, {}",
            if tag_words == 0 { "no tags".into() } else { format!("{tag_words} words hashed each clock") }
        ),
    ));
    let members: Vec<usize> = args.members.iter().map(|&n| n.into()).filter(|n| *n <= built.members).collect();
    if members.is_empty() {
        bail!("the model holds at most {} members: FIDE_RTL_MEMBERS=9 scripts/rtl model builds a larger one", built.members);
    }
    let fail = |why: String| anyhow!(why);
    for &n in &members {
        for &size in &args.size {
            ui.check()?;
            let case = |what: &str| format!("{what} {design} members={n} size={size}");
            let clocks = figures::request_to_proposal(library, n, size.into()).map_err(fail)?;
            figure.clocks(
                case("proposal"),
                &format!("{n} members, {size} B, last byte of a request → first byte of its proposal"),
                clocks,
                None,
                &[],
            );
            for (name, apart) in [("decision", true), ("decision-same-clock", false)].into_iter().filter(|_| n > 1) {
                let clocks = figures::proposal_to_decision(library, n, size.into(), apart).map_err(fail)?;
                let bar = Some(BARS[usize::from(tag_words != 0)]).filter(|_| bits == 512);
                let what = if apart { "" } else { " (copies in the same clock)" };
                figure.clocks(
                    case(name),
                    &format!("{n} members, {size} B, proposal on all trees → decision{what}"),
                    clocks,
                    bar,
                    &[],
                );
            }
        }
        if n > 1 {
            for (name, reported) in [("failover", false), ("failover-reported", true)] {
                let found = figures::failover(library, n, reported).map_err(fail)?;
                let own = [
                    ("configured_clocks", found.configured as f64),
                    ("own_clocks", found.clocks as f64 - found.configured as f64),
                ];
                let what =
                    format!("{n} members, {name}: of these {} are the settings', and the rest the engine's", found.configured);
                figure.clocks(format!("{name} {design} members={n}"), &what, found.clocks, None, &own);
            }
        }
    }
    for bytes in [64, 128, 256, 512, 1024] {
        ui.check()?;
        let (frames, clocks) = figures::accepted(library, bytes).map_err(fail)?;
        let words = (bytes * 8).div_ceil(bits) as u64;
        figure.rate(
            format!("accepted {design} bytes={bytes}"),
            &format!("accepted, frames of {bytes} B back to back"),
            frames,
            clocks,
            words,
        );
    }
    let (frames, clocks) = figures::generated(library).map_err(fail)?;
    figure.rate(format!("generated {design} bytes=64"), "generated, frames of 64 B", frames, clocks, 512 / bits as u64);
    Ok(())
}
