//! `fide bench jitter`: how late heartbeats are, over time (Fig. 3), and what that means for a timeout (Fig. 4).

use crate::Outcome;
use crate::drawing::{Axes, Axis, Series, chart};
use crate::heartbeats::{Beat, Helper, Mode};
use crate::load::{self, Load};
use crate::output;
use crate::report::{self, Page};
use crate::rig::{Profile, Rig, RigSpec};
use crate::stats::{Case, Samples, human_us};
use crate::ui::{Paint, Ui};
use anyhow::{Context as _, Result};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `fide bench jitter`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How long each case is recorded
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// What goes on beside
    #[arg(long, value_delimiter = ',', default_values = ["idle", "stress", "traffic"])]
    pub load: Vec<Load>,
    /// How the sending host's agent treats its processor
    #[arg(long, value_delimiter = ',', default_values = ["shared", "dedicated"])]
    pub profile: Vec<Profile>,
    /// Ten seconds each
    #[arg(long)]
    pub quick: bool,
    /// Write report.html, its drawings and results.jsonl there
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// HB of everything here.
const PERIOD_NS: u64 = 1_000_000;
/// The first heartbeats are recorded while everything is still being started.
const WARM_UP_NS: u64 = 500_000_000;
/// Where the ordinary program listens.
const PORT: u16 = 9_700;

/// One sender and one receiver, recorded.
#[derive(Debug)]
struct Recorded {
    name: String,
    gaps: Samples,
    one_way: Samples,
    /// Seconds since the start, and the largest one-way latency within each (µs).
    over_time: Vec<(f64, f64)>,
    minutes: f64,
    missing: u64,
}

impl Recorded {
    fn new(name: String, beats: &[Beat]) -> Option<Self> {
        let begun = beats.first()?.seen_ns + WARM_UP_NS;
        let beats: Vec<Beat> = beats.iter().copied().filter(|b| b.seen_ns >= begun).collect();
        let (first, last) = (beats.first()?, beats.last()?);
        let mut gaps = Samples::default();
        let mut missing = 0;
        for pair in beats.windows(2) {
            // Whatever is missing between them makes the gap larger: a detector that heard nothing does not know why.
            gaps.push(pair[1].seen_ns.saturating_sub(pair[0].seen_ns));
            missing += (pair[1].number - pair[0].number).saturating_sub(1);
        }
        let mut over_time: Vec<(f64, f64)> = Vec::new();
        for b in &beats {
            let second = ((b.seen_ns - first.seen_ns) / 1_000_000_000) as f64;
            let us = b.seen_ns.saturating_sub(b.sent_ns) as f64 / 1e3;
            match over_time.last_mut() {
                Some((s, max)) if *s == second => *max = max.max(us),
                _ => over_time.push((second, us)),
            }
        }
        Some(Recorded {
            name,
            one_way: beats.iter().map(|b| b.seen_ns.saturating_sub(b.sent_ns)).collect(),
            gaps,
            over_time,
            minutes: (last.seen_ns - first.seen_ns) as f64 / 60e9,
            missing,
        })
    }

    /// How often a detector with this timeout would have been wrong, per minute.
    fn false_per_minute(&mut self, timeout_ns: u64) -> f64 {
        self.gaps.above(timeout_ns) as f64 / self.minutes.max(f64::MIN_POSITIVE)
    }
}

/// Runs it.
///
/// # Errors
/// When something keeps a case from being measured.
pub fn run(args: &Args, ui: &Ui) -> Outcome {
    if let Some(directory) = &args.report {
        report::prepare(directory)?;
    }
    ui.say(ui.paint(Paint::Dim, &report::machine()));
    let during = Duration::from_secs(if args.quick { 10 } else { args.seconds });
    let mut all = Vec::new();
    let mut cases = Vec::new();
    for &profile in &args.profile {
        let rig = Rig::up(RigSpec { profile, ..RigSpec::default() }, ui)?;
        for &load in &args.load {
            let _running = load::start(&rig, load)?;
            for mut recorded in record(&rig, ui, load, during)? {
                let case = case(&mut recorded);
                tell(&case, ui);
                cases.push(case);
                all.push(recorded);
            }
        }
    }
    if let Some(directory) = &args.report {
        write(directory, &mut all, &cases).with_context(|| format!("cannot write the report to {}", directory.display()))?;
        ui.say(format!("report: {}", directory.join("report.html").display()));
    }
    Ok(true)
}

fn record(rig: &Rig, ui: &Ui, load: Load, during: Duration) -> Result<Vec<Recorded>> {
    let address = Some(SocketAddr::from((rig.lab().ipv4(2, 0), PORT)));
    // Receivers first.
    let sender = Helper::start(rig, 1, Mode::LaneSend, None, PERIOD_NS)?;
    let lane = Helper::start(rig, 2, Mode::LaneReceive, None, PERIOD_NS)?;
    let udp = Helper::start(rig, 2, Mode::UdpReceive, address, PERIOD_NS)?;
    let udp_sender = Helper::start(rig, 1, Mode::UdpSend, address, PERIOD_NS)?;
    let begun = Instant::now();
    while begun.elapsed() < during + Duration::from_nanos(WARM_UP_NS) {
        ui.check()?;
        let name = format!("{} {}", rig.spec().profile.name(), load.name());
        ui.progress(format!("recording heartbeats, {name}: {} of {} s", begun.elapsed().as_secs(), during.as_secs()));
        std::thread::sleep(Duration::from_millis(100));
    }
    let (lane, udp) = (lane.finish()?, udp.finish()?);
    drop((sender, udp_sender));
    let named = |what: &str, beats: &[Beat]| {
        let name = format!("{what} {}", load.name());
        Recorded::new(name.clone(), beats).with_context(|| format!("{name}: no heartbeat was recorded"))
    };
    let profile = rig.spec().profile.name();
    Ok(vec![named(&format!("lane {profile}"), &lane)?, named(&format!("udp beside-{profile}"), &udp)?])
}

fn case(recorded: &mut Recorded) -> Case {
    let mut case = Case::new("jitter", format!("gaps {} hb=1ms", recorded.name), &mut recorded.gaps);
    case.beside.insert("one_way".into(), recorded.one_way.beside());
    for ms in [2, 3, 5, 10, 20] {
        case.values.insert(format!("false_per_minute_at_{ms}ms"), recorded.false_per_minute(ms * 1_000_000));
    }
    case.values.insert("missing".into(), recorded.missing as f64);
    case.values.insert("minutes".into(), recorded.minutes);
    case.notes.push(report::machine());
    case
}

fn tell(case: &Case, ui: &Ui) {
    if ui.json {
        ui.line(case.json());
        return;
    }
    ui.line(format!("\n{}  {}", ui.paint(Paint::Bold, &case.case), ui.paint(Paint::Dim, &format!("n = {}", case.n))));
    let row = |name: &str, q: &crate::stats::Quantiles| {
        let cells = [q.p50, q.p99, q.p999, q.max].map(human_us);
        ui.line(format!(
            "  {name:<10} median {:>8}   p99 {:>8}   p99.9 {:>8}   max {:>8}",
            cells[0], cells[1], cells[2], cells[3]
        ));
    };
    row("gap", &case.quantiles);
    for (name, beside) in &case.beside {
        row(&name.replace('_', " "), &beside.quantiles);
    }
    let at = |ms: u32| case.values.get(&format!("false_per_minute_at_{ms}ms")).copied().unwrap_or(0.0);
    let wrong: Vec<String> = [2, 3, 5, 10, 20].map(|ms| format!("{ms} ms: {:.1}", at(ms))).to_vec();
    ui.line(format!("  wrong suspicions per minute with a timeout of {}", wrong.join(", ")));
}

/// Timeouts of Fig. 4: from just above the period to a second, ten a decade.
fn timeouts() -> impl Iterator<Item = u64> {
    (1..=30).map(|i| (PERIOD_NS as f64 * 10f64.powf(f64::from(i) / 10.0)) as u64)
}

fn write(directory: &std::path::Path, all: &mut [Recorded], cases: &[Case]) -> Result<()> {
    let lines: String = cases.iter().map(|c| c.json() + "\n").collect();
    output::write(&directory.join("results.jsonl"), &lines)?;
    let mut page = Page::new(
        "fide bench jitter",
        "Heartbeats every millisecond from one host to another: the lane's, and those of an ordinary program that sleeps and sends \
         UDP packets, recorded in the same run.",
    );
    for case in cases {
        let q = &case.quantiles;
        page.fact(&case.case, &format!("median {}, p99.9 {}, {} at most", human_us(q.p50), human_us(q.p999), human_us(q.max)));
    }
    let rows: Vec<Vec<String>> = cases
        .iter()
        .map(|c| {
            let q = &c.quantiles;
            let at = |ms: u32| c.values.get(&format!("false_per_minute_at_{ms}ms")).copied().unwrap_or(0.0);
            let times = [q.p50, q.p99, q.p999, q.max].map(human_us);
            let wrong = [2, 3, 5, 10, 20].map(|ms| format!("{:.1}", at(ms)));
            [c.case.clone(), c.n.to_string()].into_iter().chain(times).chain(wrong).collect()
        })
        .collect();
    page.table(
        &["case", ">n", ">gap: median", ">p99", ">p99.9", ">max", ">wrong/min at 2 ms", ">3 ms", ">5 ms", ">10 ms", ">20 ms"],
        &rows,
    );
    let over_time: Vec<Series> =
        all.iter().map(|r| Series { name: r.name.clone(), points: r.over_time.clone(), ..Series::default() }).collect();
    let wrong: Vec<Series> = all
        .iter_mut()
        .map(|r| {
            let points = timeouts().map(|t| (t as f64 / 1e3, r.false_per_minute(t))).collect();
            Series { name: r.name.clone(), points, ..Series::default() }
        })
        .collect();
    let figures = [
        (
            "fig3.svg",
            Axes {
                title: "Fig. 3: largest one-way latency in each second",
                x: Axis::numbers("seconds since the start"),
                y: Axis::times("latency"),
            },
            over_time,
            "The lane: from the sender's stamp to the receive program's. UDP: from before send to after recv.",
        ),
        (
            "fig4.svg",
            Axes {
                title: "Fig. 4: wrong suspicions per minute",
                x: Axis::times("timeout"),
                y: Axis::numbers("gaps above it per minute").log(),
            },
            wrong,
            "Where a line ends, no recorded gap was larger. Counted are gaps between two heartbeats as the detector's clock saw them; the lane's own verdicts also need both paths silent and the host's kernel not to answer.",
        ),
    ];
    for (file, axes, series, text) in figures {
        page.heading(axes.title);
        match chart(&axes, &series) {
            Ok(figure) => {
                output::write(&directory.join(file), &figure.file())?;
                page.figure(&figure);
            }
            Err(e) => page.remark("dim", &e.to_string()),
        }
        page.remark("dim", text);
    }
    output::write(&directory.join("report.html"), &page.finish())?;
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn beats(gaps_us: &[u64]) -> Vec<Beat> {
        let mut at = 1_000_000_000;
        let mut all = vec![Beat { number: 0, sent_ns: at - WARM_UP_NS - 10_000, seen_ns: at - WARM_UP_NS }];
        all.extend((1..).zip(gaps_us).map(|(number, gap)| {
            at += gap * 1_000;
            Beat { number, sent_ns: at - 20_000, seen_ns: at }
        }));
        all
    }

    #[test]
    fn a_gap_longer_than_the_timeout_is_a_wrong_suspicion() {
        let mut r = Recorded::new("x".into(), &beats(&[1_000, 1_000, 1_000, 2_500, 1_000, 8_000])).unwrap();
        assert_eq!(r.gaps.len(), 5);
        let (two, five, ten) = (r.false_per_minute(2_000_000), r.false_per_minute(5_000_000), r.false_per_minute(10_000_000));
        assert!(two > five && five > 0.0 && ten == 0.0);
        assert_eq!((two * r.minutes).round(), 2.0);
        assert_eq!(r.one_way.quantile(1.0), 20_000);
    }

    #[test]
    fn what_never_came_is_counted_and_widens_the_gap() {
        let mut all = beats(&[1_000; 8]);
        all.remove(4);
        let mut r = Recorded::new("x".into(), &all).unwrap();
        assert_eq!((r.missing, r.gaps.quantile(1.0)), (1, 2_000_000));
    }

    #[test]
    fn nothing_recorded_is_no_record() {
        assert!(Recorded::new("x".into(), &[]).is_none());
        assert!(Recorded::new("x".into(), &[Beat::default()]).is_none());
    }

    /// A report of what was never measured.
    pub(crate) fn sample(directory: &std::path::Path) {
        let of = |(name, gaps): (&str, &[u64])| Recorded::new(name.into(), &beats(gaps)).unwrap();
        let mut all =
            [("lane shared idle", &[1_000, 1_500, 9_000, 1_000][..]), ("udp beside-dedicated stress", &[1_100, 40_000])].map(of);
        let cases: Vec<Case> = all.iter_mut().map(case).collect();
        write(directory, &mut all, &cases).unwrap();
    }

    #[test]
    fn a_report_is_written_with_its_figures() {
        let directory = tempfile::tempdir().unwrap();
        sample(directory.path());
        for file in ["report.html", "results.jsonl", "fig3.svg", "fig4.svg"] {
            assert!(directory.path().join(file).metadata().unwrap().len() > 100, "{file}");
        }
    }
}
