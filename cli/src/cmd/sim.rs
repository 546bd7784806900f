//! `fide sim`: the coordination cores in simulated worlds.

use crate::context::Context;
use crate::failure::{Failure, Kind as Exit};
use crate::interrupt::Interrupt;
use crate::progress::{Progress, bar};
use crate::style::{Paint, Style};
use crate::table::{Cell, Table};
use crate::units;
use clap::{Args, Subcommand};
use fide_proto::consensus::Kind;
use fide_sim::invariants::{TABLE, Violation};
use fide_sim::run::{self, Totals};
use fide_sim::scenario::{self, Scenario};
use fide_sim::timeline::Timeline;
use fide_sim::world::Outcome;
use fide_sim::{Menu, Options, Plan, Policy, options, shrink};
use serde::Serialize;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Its arguments.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// What
    #[command(subcommand)]
    pub command: SimCommand,
}

/// What can be done with worlds.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Worlds by the thousand, every invariant checked at every step; fails if one does not hold
    #[command(after_help = format!("{MENUS}\n\n{LIMITS}"))]
    Run(RunArgs),
    /// The world of one seed, told as a timeline; a failing one is shrunk first
    #[command(after_help = MENUS)]
    Replay(ReplayArgs),
    /// Stories with an expected end, from text files
    #[command(after_help = language())]
    Scenario(ScenarioArgs),
    /// How many message delays each engine takes to decide, counted
    Delays(DelaysArgs),
}

/// What the menus are, as `--help` and the man pages tell it.
const MENUS: &str = "\
Menus (--menu):
  within-contract   processes killed at every step, a host that loses its power, restarts as new members
  pauses            the same, and processes or whole hosts that stand still
  network-faults    crashes; one path loses, doubles or carries nothing; reliable links stall
  beyond-contract   pauses, faults of both paths, copies later than the contract allows
  reconfigurations  crashes, joins, leaves
  engine-changes    crashes, joins, leaves, changes of the engine
  slow-links        the same, over reliable links that stall for milliseconds
  everything        all of these but changes of the engine";

/// What bounds a world, as `--help` and the man page tell it.
const LIMITS: &str = "\
A world is over some 20 ms after its faults, at the latest; the number of its events has no other limit. Of the seeds that fail the first 20 of each
engine, policy and menu are told.";

/// What a scenario can say, as `--help` and the man page tell it.
fn language() -> String {
    let forms = |begin: &str, forms: &[&str]| forms.iter().map(|form| format!("\n  {begin}{form}")).collect::<String>();
    format!(
        "\
Settings, separated by commas or lines:{}
What happens:{}
What is expected:{}

hN is a host, from h1 on; T a time such as 0.1ms; words in capitals stand for something; # begins a comment. Several names may be proposed at once:
\"a\", \"b\". A file that cannot be read or makes no sense does not keep the others from being run. Each statement explained, with examples:
docs/scenarios.md",
        forms("", &scenario::SETTINGS),
        forms("at T ", &scenario::ACTS),
        forms("expect ", &scenario::EXPECTS),
    )
}

/// One of them, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<T> {
    /// All.
    All,
    /// This one.
    One(T),
}

impl<T: Copy> Choice<T> {
    fn of(self, all: &[T]) -> Vec<T> {
        match self {
            Choice::All => all.to_vec(),
            Choice::One(one) => vec![one],
        }
    }
}

fn choice<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Choice<T>, String> {
    if text == "all" { Ok(Choice::All) } else { parse(text).map(Choice::One).map_err(|why| why.replace(')', ", all)")) }
}

fn engines(text: &str) -> Result<Choice<Kind>, String> {
    choice(text, options::parse_kind)
}

fn policies(text: &str) -> Result<Choice<Policy>, String> {
    choice(text, options::parse_policy)
}

fn menus(text: &str) -> Result<Choice<Menu>, String> {
    choice(text, str::parse)
}

/// How many hosts a world may have.
const HOSTS: RangeInclusive<u64> = 2..=9;
/// How many seeds at once.
const SEEDS: RangeInclusive<u64> = 1..=1 << 48;
/// Which may be the first: with the most of them the last one still is a number.
const FROM: RangeInclusive<u64> = 0..=1 << 62;
/// On how many threads: more are of no use on any machine that there is.
const JOBS: RangeInclusive<u64> = 1..=1024;
/// In how large a group delays are counted.
const COUNTED: RangeInclusive<u64> = 3..=9;

/// A number within a range. Words of our own, because clap takes `-1` for an option, and says no range of those that are no numbers.
fn within<N: TryFrom<u64> + Clone + Send + Sync + 'static>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static {
    move |text| {
        let n = text.parse().ok().filter(|n| range.contains(n)).and_then(|n| N::try_from(n).ok());
        n.ok_or_else(|| format!("a number from {} to {}", range.start(), range.end()))
    }
}

/// Its arguments.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The group's engine: hsuc, huc, lowi, paxos, raft, or all
    #[arg(long, value_name = "ENGINE", value_parser = engines)]
    pub engine: Choice<Kind>,
    /// What the group does with inferred crashes: trust-contract, fence, witness, or all
    #[arg(long, value_name = "POLICY", default_value = "trust-contract", value_parser = policies)]
    pub policy: Choice<Policy>,
    /// What goes wrong; `all` spreads the seeds over those menus under which the engine promises something
    #[arg(long, value_name = "MENU", default_value = "all", value_parser = menus)]
    pub menu: Choice<Menu>,
    /// How many hosts each world has: 2 to 9 [default: 2 to 5, as the seed says]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within::<u16>(HOSTS))]
    pub hosts: Option<u16>,
    /// How many seeds for each engine and policy: 1 to 2^48; Ctrl-C ends sooner, with a report of those that were run
    #[arg(long, value_name = "N", default_value_t = 10_000, allow_negative_numbers = true, value_parser = within::<u64>(SEEDS))]
    pub seeds: u64,
    /// The first seed: 0 to 2^62
    #[arg(long, value_name = "SEED", default_value_t = 0, allow_negative_numbers = true, value_parser = within::<u64>(FROM))]
    pub from: u64,
    /// On how many threads: 1 to 1024 [default: as many as there are cores]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within::<u16>(JOBS))]
    pub jobs: Option<u16>,
}

/// Its arguments.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Which seed
    #[arg(allow_negative_numbers = true, value_parser = within::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// The group's engine: hsuc, huc, lowi, paxos or raft
    #[arg(long, value_name = "ENGINE", value_parser = options::parse_kind)]
    pub engine: Kind,
    /// What the group does with inferred crashes: trust-contract, fence or witness
    #[arg(long, value_name = "POLICY", default_value = "trust-contract", value_parser = options::parse_policy)]
    pub policy: Policy,
    /// What goes wrong
    #[arg(long, value_name = "MENU", default_value = "within-contract")]
    pub menu: Menu,
    /// How many hosts: 2 to 9 [default: 2 to 5, as the seed says]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within::<u16>(HOSTS))]
    pub hosts: Option<u16>,
    /// Everything that happened in this seed, not only what a failure needs
    #[arg(long)]
    pub whole: bool,
    /// Look whether this property breaks, promised here or not, and shrink to it
    #[arg(long, value_name = "NAME", value_parser = property)]
    pub property: Option<&'static str>,
    /// Print it as a scenario to be kept and edited, not as a timeline
    #[arg(long)]
    pub scenario: bool,
}

/// Its arguments.
#[derive(Debug, Args)]
pub struct ScenarioArgs {
    /// Text files, a story in each
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Tell what happened, too; that of an unexpected end is always told
    #[arg(long)]
    pub timeline: bool,
}

/// Its arguments.
#[derive(Debug, Args)]
pub struct DelaysArgs {
    /// In a group of how many: 3 to 9
    #[arg(long, value_name = "N", default_value_t = 3, allow_negative_numbers = true, value_parser = within::<u16>(COUNTED))]
    pub hosts: u16,
}

fn property(text: &str) -> Result<&'static str, String> {
    options::one_of(&TABLE.map(|row| row.name), text, "property").map(|at| TABLE[at].name)
}

/// Runs it.
pub fn run(context: &Context, args: &SimArgs) -> Result<ExitCode, Failure> {
    match &args.command {
        SimCommand::Run(args) => explore(context, args),
        SimCommand::Replay(args) => replay(context, args),
        SimCommand::Scenario(args) => scenarios(context, args),
        SimCommand::Delays(args) => delays(context, args),
    }
}

/// What a group may be made of.
fn check(engine: Kind, policy: Policy) -> Result<(), Failure> {
    if policy.suits(engine) {
        return Ok(());
    }
    let suits: Vec<_> = Policy::ALL.iter().filter(|policy| policy.suits(engine)).map(|policy| policy.name()).collect();
    Err(Failure::new(
        Exit::Usage,
        format!("{engine} cannot keep the policy {policy}: it elects by silence, without asking anybody"),
    )
    .hint(format!("policies of {engine}: {}", suits.join(", "))))
}

// ---------------------------------------------------------------------- run

/// A row of the report.
#[derive(Serialize)]
struct Case {
    engine: Kind,
    policy: Policy,
    menu: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<u16>,
    promised: bool,
    from: u64,
    worlds: u64,
    events: u64,
    entries: u64,
    crashes_told: u64,
    halted: u64,
    judged: u64,
    judged_percent: f64,
    excused: std::collections::BTreeMap<&'static str, u64>,
    failed: u64,
    failures: Vec<Failed>,
    elapsed_ns: u64,
    events_per_second: u64,
}

/// A seed in which something did not hold.
#[derive(Serialize)]
struct Failed {
    seed: u64,
    property: &'static str,
    what: String,
    replay: String,
}

fn replay_command(seed: u64, options: &Options) -> String {
    let hosts = options.hosts.map(|hosts| format!(" --hosts {hosts}")).unwrap_or_default();
    format!("fide sim replay {seed} --engine {} --policy {} --menu {}{hosts}", options.engine, options.policy, options.menu)
}

/// The worlds to run, with the number of seeds of each.
type Cases = Vec<(Options, u64)>;

/// What to run; and what was asked for as a part of `all`, but promises nothing.
fn cases(args: &RunArgs) -> Result<(Cases, Vec<Options>), Failure> {
    let (mut cases, mut left_out) = (Vec::new(), Vec::new());
    for engine in args.engine.of(options_available()) {
        for policy in args.policy.of(&Policy::ALL) {
            match (args.policy, args.engine) {
                (Choice::One(_), Choice::One(_)) => check(engine, policy)?,
                _ if !policy.suits(engine) => continue,
                _ => {}
            }
            let all = args.menu.of(&Menu::ALL).into_iter().map(|menu| Options { engine, policy, menu, hosts: args.hosts });
            let (run, idle): (Vec<_>, Vec<_>) = all.partition(|options| args.menu != Choice::All || options.promise().safe);
            left_out.extend(idle);
            let n = run.len() as u64;
            cases.extend(run.into_iter().enumerate().map(|(at, options)| {
                let more = u64::from((at as u64) < args.seeds % n);
                (options, args.seeds / n + more)
            }));
        }
    }
    cases.retain(|(_, seeds)| *seeds > 0);
    if cases.is_empty() {
        // All policies were asked for by name of one that none of these engines keeps.
        return Err(Failure::new(Exit::Usage, "none of these engines keeps that policy"));
    }
    Ok((cases, left_out))
}

fn options_available() -> &'static [Kind] {
    fide_sim::engines::AVAILABLE
}

fn explore(context: &Context, args: &RunArgs) -> Result<ExitCode, Failure> {
    let (cases, left_out) = cases(args)?;
    let jobs = match args.jobs {
        Some(jobs) => usize::from(jobs),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let interrupt = Interrupt::install()?;
    let whole: u64 = cases.iter().map(|(_, seeds)| *seeds).sum();
    let (mut before, mut done) = (0, Vec::new());
    let begun = Instant::now();
    {
        let shown = Progress::start(context, "worlds");
        for (options, seeds) in &cases {
            let case_begun = Instant::now();
            let totals = watched(*options, args.from..args.from + seeds, jobs, &interrupt, |progress| {
                let seconds = case_begun.elapsed().as_secs_f64().max(1e-9);
                let (seeds, events) = (progress.seeds.load(Ordering::Relaxed), progress.events.load(Ordering::Relaxed));
                let failed = match progress.failed.load(Ordering::Relaxed) {
                    0 => String::new(),
                    n => format!(", {n} failed"),
                };
                shown.set(format!(
                    "{} {options}: {} worlds/s, {} events/s{failed}",
                    bar((before + seeds) as usize, whole as usize),
                    units::thousands((seeds as f64 / seconds) as u64),
                    units::thousands((events as f64 / seconds) as u64),
                ));
            });
            before += totals.seeds;
            let elapsed = case_begun.elapsed();
            if totals.seeds > 0 {
                done.push(case(*options, args.from, elapsed, totals));
            }
            if interrupt.requested() {
                break;
            }
        }
    }
    report(context, &done, &left_out, begun.elapsed(), jobs)?;
    if interrupt.requested() {
        return Err(Failure::new(Exit::Interrupted, format!("interrupted after {before} of {whole} worlds")));
    }
    Ok(if done.iter().any(|case| case.failed > 0) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// In how many of a hundred; one place behind the point, and 100 only for all.
fn percent(part: u64, whole: u64) -> f64 {
    (part as f64 * 1000.0 / whole.max(1) as f64).floor() / 10.0
}

/// Runs the seeds on their threads, and `look`s now and then.
fn watched(
    options: Options,
    seeds: std::ops::Range<u64>,
    jobs: usize,
    interrupt: &Interrupt,
    look: impl Fn(&run::Progress),
) -> Totals {
    let (stop, progress) = (AtomicBool::new(false), run::Progress::default());
    std::thread::scope(|scope| {
        let work = scope.spawn(|| run::explore(options, seeds, jobs, &stop, &progress));
        while !work.is_finished() {
            std::thread::sleep(Duration::from_millis(2));
            look(&progress);
            if interrupt.requested() {
                stop.store(true, Ordering::Relaxed);
            }
        }
        // Worlds that panic are findings; nothing else in there does.
        work.join().unwrap_or_default()
    })
}

fn case(options: Options, from: u64, elapsed: Duration, totals: Totals) -> Case {
    let judged = totals.judged();
    let failures = totals.failures.into_iter().map(|(seed, Violation { property, what })| Failed {
        seed,
        property,
        what,
        replay: replay_command(seed, &options),
    });
    let judged = if options.promise().live { judged } else { 0 };
    Case {
        engine: options.engine,
        policy: options.policy,
        menu: options.menu.name(),
        hosts: options.hosts,
        promised: options.promise().safe,
        from,
        worlds: totals.seeds,
        events: totals.events,
        entries: totals.entries,
        crashes_told: totals.crashes_told,
        halted: totals.halted,
        judged,
        judged_percent: percent(judged, totals.seeds),
        excused: totals.excused,
        failed: totals.failed,
        failures: failures.collect(),
        elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        events_per_second: (totals.events as f64 / elapsed.as_secs_f64().max(1e-9)) as u64,
    }
}

fn report(context: &Context, done: &[Case], left_out: &[Options], elapsed: Duration, jobs: usize) -> Result<(), Failure> {
    let mut out = context.out();
    if context.json {
        for case in done {
            context.json_line(&mut out, case)?;
        }
        return Ok(out.flush()?);
    }
    let style = &context.style;
    write!(out, "{}", table(done).render(style, 0))?;
    write_excused(style, &mut out, done)?;
    for options in done.iter().filter(|case| !case.promised) {
        let (engine, policy, menu) = (options.engine, options.policy, options.menu);
        writeln!(
            out,
            "{}",
            style.dim(&format!("{engine} with {policy} promises nothing under {menu}: only panics count there"))
        )?;
    }
    if !left_out.is_empty() {
        let text: Vec<_> = left_out.iter().map(|o| format!("{} {} {}", o.engine, o.policy, o.menu)).collect();
        writeln!(out, "{}", style.dim(&format!("Left out, because nothing is promised there: {}", text.join("; "))))?;
    }
    write_failures(style, &mut out, done)?;
    let (worlds, events) = done.iter().fold((0, 0), |(w, e), case| (w + case.worlds, e + case.events));
    let failed: u64 = done.iter().map(|case| case.failed).sum();
    let verdict = match failed {
        0 => style.paint(Paint::Green, "nothing was violated"),
        n => style.red(&format!("{} violated something", units::count(n as usize, "world"))),
    };
    let seconds = elapsed.as_secs_f64();
    let threads = units::count(jobs, "thread");
    let rate = units::thousands((events as f64 / seconds.max(1e-9)) as u64);
    writeln!(out, "\n{} worlds in {seconds:.1} s on {threads}, {rate} events/s: {verdict}", units::thousands(worlds))?;
    Ok(out.flush()?)
}

/// A row for each case.
fn table(done: &[Case]) -> Table {
    let headers = [
        "ENGINE",
        "POLICY",
        "MENU",
        ">WORLDS",
        ">EVENTS",
        ">ENTRIES",
        ">CRASHES TOLD",
        ">HALTED",
        ">JUDGED",
        ">EXCUSED",
        ">FAILED",
        ">EVENTS/S",
    ];
    let mut table = Table::new(&headers);
    for case in done {
        let n = |number: u64| Cell::from(units::thousands(number));
        table.row([
            Cell::painted(case.engine.name(), Paint::Cyan),
            case.policy.name().into(),
            case.menu.into(),
            n(case.worlds),
            n(case.events),
            n(case.entries),
            n(case.crashes_told),
            n(case.halted),
            if case.promised { format!("{:.1} %", case.judged_percent).into() } else { "–".into() },
            n(case.excused.values().sum()),
            Cell::painted(units::thousands(case.failed), if case.failed > 0 { Paint::Red } else { Paint::Green }),
            n(case.events_per_second),
        ]);
    }
    table
}

fn write_excused(style: &Style, out: &mut impl Write, done: &[Case]) -> Result<(), Failure> {
    let mut excused = std::collections::BTreeMap::new();
    for (why, count) in done.iter().flat_map(|case| &case.excused) {
        *excused.entry(why).or_insert(0) += count;
    }
    if !excused.is_empty() {
        writeln!(out, "\n{}", style.bold("Excused: worlds whose end proves nothing"))?;
        for (why, count) in excused {
            writeln!(out, "  {:>9}  {why}", units::thousands(count))?;
        }
    }
    Ok(())
}

fn write_failures(style: &Style, out: &mut impl Write, done: &[Case]) -> Result<(), Failure> {
    for case in done.iter().filter(|case| case.failed > 0) {
        writeln!(out, "\n{}", style.red(&format!("{}, {}, {}: {} failed", case.engine, case.policy, case.menu, case.failed)))?;
        for failed in &case.failures {
            writeln!(
                out,
                "  seed {}: {}: {}\n    {} {}",
                failed.seed,
                failed.property,
                failed.what,
                style.dim("→"),
                failed.replay
            )?;
        }
    }
    Ok(())
}

// ---------------------------------------------------------------------- replay

/// A line of a timeline.
#[derive(Serialize)]
struct Happened<'a> {
    at_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<u16>,
    text: &'a str,
}

/// Its end.
#[derive(Serialize)]
struct Ended {
    ended_ns: u64,
    entries: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    violated: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    excused: Option<&'static str>,
}

fn replay(context: &Context, args: &ReplayArgs) -> Result<ExitCode, Failure> {
    check(args.engine, args.policy)?;
    let options = Options { engine: args.engine, policy: args.policy, menu: args.menu, hosts: args.hosts };
    let mut plan = Plan::generate(args.seed, options);
    let found = match args.property {
        Some(property) => run::breaks(&plan, property),
        None => run::run(&plan).violation,
    };
    let mut shrunk = None;
    if let Some(violation) = &found
        && !args.whole
    {
        let _progress = Progress::start(context, "taking away what the failure does not need");
        let fails = |plan: &Plan| match args.property {
            Some(property) => run::breaks(plan, property),
            None => run::run(plan).violation,
        };
        let small = shrink::shrink_by(&plan, violation.clone(), shrink::BUDGET, fails);
        shrunk = Some((plan.steps.len(), small.runs, small.is_minimum));
        plan = small.plan;
    }
    let mut out = context.out();
    if args.scenario {
        let text = scenario::tell(&plan);
        if context.json {
            context.json_line(
                &mut out,
                &serde_json::json!({ "seed": args.seed, "options": options.to_string(), "scenario": text }),
            )?;
        } else {
            write!(out, "{text}")?;
        }
        out.flush()?;
        return Ok(if found.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    let (outcome, violation, timeline) = match args.property {
        Some(property) => {
            let (broken, outcome, world) = run::watch_unjudged(&plan);
            let violation = broken.into_iter().find(|violation| violation.property == property);
            (outcome, violation, world.and_then(|mut world| world.take_timeline()).unwrap_or_default())
        }
        None => {
            let (outcome, timeline) = run::watch(&plan);
            (outcome.clone(), outcome.violation, timeline)
        }
    };
    if !context.json {
        let style = &context.style;
        writeln!(out, "{}", style.bold(&format!("Seed {}: {options}", args.seed)))?;
        if let Some((steps, runs, is_minimum)) = shrunk {
            let most = if is_minimum { "nothing more can be taken away" } else { "there may be less" };
            let text = format!(
                "Shrunk from {steps} steps to {} in {} worlds: {most}. All of it: --whole",
                plan.steps.len(),
                units::thousands(u64::from(runs))
            );
            writeln!(out, "{}", style.dim(&text))?;
        }
        for line in scenario::write(&plan).lines().filter(|line| !line.starts_with("clock")) {
            writeln!(out, "  {line}")?;
        }
        writeln!(out)?;
    }
    tell(context, &mut out, &timeline)?;
    let ended = Ended {
        ended_ns: outcome.ended_ns,
        entries: outcome.entries,
        violated: violation.as_ref().map(|violation| violation.property),
        what: violation.as_ref().map(|violation| violation.what.clone()),
        excused: outcome.excused,
    };
    if context.json {
        context.json_line(&mut out, &ended)?;
    } else {
        write_verdict(&context.style, &mut out, &outcome, violation.as_ref())?;
    }
    out.flush()?;
    Ok(if violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What was violated, or that nothing was.
fn write_verdict(style: &Style, out: &mut impl Write, outcome: &Outcome, violation: Option<&Violation>) -> Result<(), Failure> {
    match violation {
        Some(violation) => {
            let row = TABLE.iter().find(|row| row.name == violation.property);
            writeln!(out, "\n{}", style.red(&format!("Violated: {violation}")))?;
            if let Some(row) = row {
                let specified = if row.tla.is_empty() { String::new() } else { format!("; in TLA+ {}", row.tla) };
                writeln!(
                    out,
                    "  {}: {}\n  {}{specified}; checked in sim/src/invariants/{}",
                    row.name, row.says, row.paper, row.file
                )?;
            }
        }
        None => {
            let excused = outcome.excused.map(|why| format!("; its end is not judged: {why}")).unwrap_or_default();
            let entries = units::count(outcome.entries as usize, "entry").replace("entrys", "entries");
            writeln!(
                out,
                "\n{}: {entries} after {}{excused}",
                style.paint(Paint::Green, "Nothing was violated"),
                units::ns(outcome.ended_ns)
            )?;
        }
    }
    Ok(())
}

/// Prints a timeline.
fn tell(context: &Context, out: &mut impl Write, timeline: &Timeline) -> Result<(), Failure> {
    for line in timeline.lines() {
        if context.json {
            let (host, member) = (line.host.map(|host| host + 1), line.member.map(|member| member.0));
            context.json_line(out, &Happened { at_ns: line.at_ns, host, member, text: &line.text })?;
            continue;
        }
        let who = match (line.host, line.member) {
            (Some(host), Some(member)) => format!("h{} {:<4}", host + 1, member.to_string()),
            (Some(host), None) => format!("h{}     ", host + 1),
            (None, _) => "       ".into(),
        };
        let text = match line.text.chars().next() {
            Some('─' | '═') => context.style.paint(Paint::Yellow, &line.text),
            Some('✗') => context.style.red(&line.text),
            Some('→' | '←' | '⇉' | '⇇' | '⇶' | '⇢') => line.text.clone(),
            _ => context.style.bold(&line.text),
        };
        let at = format!("{:>7}.{:01} µs", line.at_ns / 1000, line.at_ns % 1000 / 100);
        writeln!(out, "{}  {who}  {text}", context.style.dim(&at))?;
    }
    Ok(())
}

// ---------------------------------------------------------------------- scenarios and delays

/// How a scenario ended.
#[derive(Serialize)]
struct Told {
    file: PathBuf,
    ok: bool,
    unmet: Vec<String>,
    /// All that broke, expected or not.
    broken: Vec<Broken>,
    /// It was not judged whether all was decided at the end, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    excused: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Broken {
    property: &'static str,
    what: String,
}

fn read(file: &Path) -> Result<Scenario, Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| {
        let kind = if e.kind() == std::io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Failed };
        Failure::new(kind, format!("cannot read {}: {e}", file.display()))
    })?;
    let told = |wrong: scenario::Wrong| Failure::new(Exit::Usage, format!("{}:{}: {}", file.display(), wrong.line, wrong.what));
    Scenario::parse(&text).map_err(told)
}

fn scenarios(context: &Context, args: &ScenarioArgs) -> Result<ExitCode, Failure> {
    let mut out = context.out();
    let (mut all_well, mut unread) = (true, None);
    let interrupt = Interrupt::install()?;
    for (at, file) in args.files.iter().enumerate() {
        // What was told so far is not lost with what is interrupted.
        out.flush()?;
        if interrupt.requested() {
            return Err(Failure::new(Exit::Interrupted, format!("interrupted after {at} of {} files", args.files.len())));
        }
        let scenario = match read(file) {
            Ok(scenario) => scenario,
            Err(failure) => {
                // What was told of the files before comes first.
                out.flush()?;
                let code = failure.report(context);
                unread.get_or_insert(code);
                if context.json {
                    let error = Some(failure.what);
                    context.json_line(
                        &mut out,
                        &Told { file: file.clone(), ok: false, unmet: Vec::new(), broken: Vec::new(), excused: None, error },
                    )?;
                }
                continue;
            }
        };
        let ended = {
            let shown = Progress::start(context, "scenarios");
            shown.set(format!("{} {}", bar(at, args.files.len()), file.display()));
            scenario.run()
        };
        let ok = ended.unmet.is_empty();
        all_well &= ok;
        if args.timeline || (!ok && !context.json) {
            tell(context, &mut out, &ended.timeline)?;
        }
        if context.json {
            let broken = ended.broken.into_iter().map(|Violation { property, what }| Broken { property, what }).collect();
            context.json_line(
                &mut out,
                &Told { file: file.clone(), ok, unmet: ended.unmet, broken, excused: ended.excused, error: None },
            )?;
            continue;
        }
        let style = &context.style;
        let mark = if ok { style.paint(Paint::Green, "✓") } else { style.red("✗") };
        let excused = ended.excused.map(|why| style.dim(&format!("  (whether all is decided at the end is not judged: {why})")));
        writeln!(out, "{mark} {}{}", file.display(), excused.unwrap_or_default())?;
        if args.timeline || !ok {
            for (line, _) in &scenario.expects {
                let unmet = ended.unmet.iter().find(|unmet| unmet.starts_with(line.as_str()));
                writeln!(out, "    {}", unmet.map_or_else(|| line.clone(), |unmet| style.red(unmet)))?;
            }
            let rest =
                ended.unmet.iter().filter(|unmet| !scenario.expects.iter().any(|(line, _)| unmet.starts_with(line.as_str())));
            for unmet in rest {
                writeln!(out, "    {}", style.red(unmet))?;
            }
        }
    }
    out.flush()?;
    Ok(if all_well { unread.unwrap_or(ExitCode::SUCCESS) } else { ExitCode::FAILURE })
}

/// A row of the delays.
#[derive(Serialize)]
struct Row {
    engine: Kind,
    hosts: u16,
    by_leader_first: u32,
    by_leader_all: u32,
    by_another_first: u32,
    by_another_all: u32,
    after_crash_first: u32,
    after_crash_all: u32,
}

fn delays(context: &Context, args: &DelaysArgs) -> Result<ExitCode, Failure> {
    let mut out = context.out();
    let mut table = Table::new(&["ENGINE", ">LEADER PROPOSES", ">ANOTHER PROPOSES", ">AFTER A CRASH"]);
    for engine in options_available() {
        let counted = fide_sim::delays::count(*engine, args.hosts).map_err(Failure::failed)?;
        let (leader, another, crash) = (counted.by_leader, counted.by_another, counted.after_crash);
        if context.json {
            let row = Row {
                engine: *engine,
                hosts: args.hosts,
                by_leader_first: leader.first,
                by_leader_all: leader.all,
                by_another_first: another.first,
                by_another_all: another.all,
                after_crash_first: crash.first,
                after_crash_all: crash.all,
            };
            context.json_line(&mut out, &row)?;
        }
        let cell = |delays: fide_sim::delays::Delays| Cell::from(format!("{} / {}", delays.first, delays.all));
        table.row([Cell::painted(engine.name(), Paint::Cyan), cell(leader), cell(another), cell(crash)]);
    }
    if !context.json {
        write!(out, "{}", table.render(&context.style, 0))?;
        let about = format!(
            "Message delays from handing a value in at a member until the first / until the last of {} members has decided; a round trip is 2. Behind a crash: from its report, not from the crash.",
            args.hosts
        );
        writeln!(out, "\n{}", context.style.dim(&about))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_menu_is_explained() {
        let text: Vec<_> = MENUS.lines().skip(1).map(|line| line.trim().split_once(' ').unwrap()).collect();
        let text: Vec<_> = text.into_iter().map(|(name, about)| (name, about.trim())).collect();
        assert_eq!(text, Menu::ALL.map(|menu| (menu.name(), menu.about())));
    }

    #[test]
    fn all_is_a_choice_and_errors_name_it() {
        assert_eq!(engines("all"), Ok(Choice::All));
        assert_eq!(policies("fence"), Ok(Choice::One(Policy::Fence)));
        assert!(menus("no").unwrap_err().ends_with("everything, all)"));
    }

    #[test]
    fn the_report_says_in_how_many_worlds_the_end_was_judged() {
        let totals = || Totals { seeds: 2000, excused: [("nobody is left", 3)].into(), ..Totals::default() };
        let told = |menu| {
            let options = Options { engine: Kind::Lowi, policy: Policy::TrustContract, menu, hosts: None };
            serde_json::to_value(case(options, 0, Duration::from_secs(1), totals())).unwrap()
        };
        let told =
            [told(Menu::NetworkFaults), told(Menu::Pauses)].map(|case| (case["judged"].clone(), case["judged_percent"].clone()));
        assert_eq!(told, [(1997.into(), 99.8.into()), (0.into(), 0.0.into())], "nothing is judged where nothing is promised");
        assert_eq!([percent(1999, 2000), percent(2000, 2000), percent(0, 0)], [99.9, 100.0, 0.0]);
    }

    #[test]
    fn seeds_are_spread_over_what_is_promised() {
        let args = |engine, policy, menu, seeds| RunArgs { engine, policy, menu, hosts: None, seeds, from: 0, jobs: None };
        let (all, left_out) = cases(&args(Choice::One(Kind::Lowi), Choice::All, Choice::All, 100)).unwrap();
        assert_eq!(all.iter().map(|(_, seeds)| seeds).sum::<u64>(), 100);
        assert!(all.iter().all(|(options, _)| options.promise().safe && options.policy == Policy::TrustContract));
        assert_eq!(all.len() + left_out.len(), Menu::ALL.len());
        let refused = cases(&args(Choice::One(Kind::Lowi), Choice::One(Policy::Fence), Choice::All, 9)).unwrap_err();
        assert_eq!((refused.kind, refused.hints.len()), (Exit::Usage, 1));
        let (named, _) = cases(&args(Choice::One(Kind::Lowi), Choice::All, Choice::One(Menu::Everything), 7)).unwrap();
        assert_eq!(named.len(), 1);
    }
}
