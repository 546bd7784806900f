//! Worlds as text that reads like a notebook: what happens when, and what is expected.
//!
//! ```text
//! # The leader is killed while its proposal is on its way.
//! 3 hosts, engine hsuc, policy trust-contract, seed 7
//! at 0.1ms h1 proposes "a"
//! at 0.12ms h1 is killed after its second send
//!
//! expect all alive apply "a"
//! expect h2 leads
//! ```
//!
//! Settings are separated by commas or lines. What can be said is listed in [`SETTINGS`], [`ACTS`] and [`EXPECTS`], and explained in
//! `docs/scenarios.md`. What [`crate::plan::Act`] prints can be read, too. If nothing is said of what breaks, nothing may.

use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;

/// What a world is made of. Words in capitals stand for something, `hN` for a host, `T` for a time.
pub const SETTINGS: [&str; 9] = [
    "N hosts",
    "engine ENGINE",
    "policy POLICY",
    "menu MENU",
    "seed SEED",
    "snapshots",
    "clients stay",
    "clock of hN gains PPM ppm from NS",
    "faults end at T",
];

/// What can happen: what may stand behind `at T`.
pub const ACTS: [&str; 22] = [
    "hN proposes \"NAME\"",
    "hN proposes COUNT values",
    "hN is killed",
    "hN is killed after its NTH send",
    "hN is killed after COUNT sends",
    "hN is killed after COUNT outputs",
    "hN loses power",
    "hN loses power after COUNT outputs",
    "hN joins",
    "hN starts",
    "hN leaves",
    "hN switches to ENGINE",
    "process of hN pauses for T",
    "hN pauses for T",
    "path PATH of hN is cut for T",
    "hN is cut off for T",
    "path PATH loses PERCENT % for T",
    "path PATH doubles PERCENT % for T",
    "path PATH delays PERCENT % by T for T",
    "link hN to hN stalls for T",
    "the witness is gone for T",
    "the witness takes sides",
];

/// What can be expected: what may stand behind `expect`.
pub const EXPECTS: [&str; 15] = [
    "no violation",
    "disagreement",
    "PROPERTY broken",
    "violation of PROPERTY",
    "all alive apply \"NAME\"",
    "hN applies \"NAME\"",
    "hN applied \"NAME\"",
    "nobody applies \"NAME\"",
    "hN applies COUNT entries",
    "hN leads",
    "hN runs ENGINE",
    "hN is down",
    "hN is fenced",
    "hN stops safely",
    "hN halted REASON",
];

/// Why a member stops, as scenarios call it: the names of [`fide_proto::consensus::Halted`].
pub const REASONS: [&str; 6] = ["network-fault", "missing-broadcast", "unconfirmed", "expelled", "left", "contradiction"];

/// Most values that a scenario proposes.
const VALUES_MAX: u64 = 100_000;

/// A clock that is a tenth off is beyond any that there is.
const PPM_MAX: i64 = 100_000;

/// The longest story, and the latest that a clock begins with: a hundred seconds.
const TIME_MAX_NS: u64 = 100_000_000_000;

use crate::host::Member;
use crate::invariants::{TABLE, Violation};
use crate::options::{self, Menu, Options};
use crate::plan::{Act, Plan, Step, parse_host, parse_time};
use crate::run;
use crate::time::{Clock, PERIOD_NS, micros};
use crate::timeline::Timeline;
use crate::world::{World, value_of};

/// What a scenario expects of its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// `no violation`: every property holds.
    NoViolation,
    /// `disagreement`, `PROPERTY broken`: this property does not.
    Broken(&'static str),
    /// `h1 applies 2 entries`: the member there has applied so many.
    Applies(usize, u64),
    /// `all alive apply "a"`, `h1 applies "a"`: whoever runs there (anywhere) has applied this value.
    AppliesValue(Option<usize>, u64),
    /// `h1 applied "a"`: somebody there did, whoever runs there at the end.
    Applied(usize, u64),
    /// `nobody applies "a"`.
    Never(u64),
    /// `h1 leads`: whoever runs there believes so, and nobody else of itself.
    Leads(usize),
    /// `h1 runs hsuc`: the engine of whoever runs there.
    Runs(usize, String),
    /// `h1 is fenced`: its host was cut off.
    Fenced(usize),
    /// `h1 is down`: nobody runs there.
    Down(usize),
    /// `h1 halted network-fault`, `h1 stops safely`: the member there stopped, for this reason.
    Halted(usize, Option<String>),
}

/// A scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What happens.
    pub plan: Plan,
    /// What must come of it, with the lines that say so.
    pub expects: Vec<(String, Expect)>,
    /// How the values are called, from the first.
    pub values: Vec<String>,
}

/// How a scenario ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// What happened.
    pub timeline: Timeline,
    /// What broke.
    pub broken: Vec<Violation>,
    /// Which expectations were not met, and why.
    pub unmet: Vec<String>,
    /// It was not judged whether all was decided at the end, and why.
    pub excused: Option<&'static str>,
}

/// Why a text is no scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there, and what may have been meant.
    pub what: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for Wrong {}

/// What was read so far.
struct Reader {
    options: Options,
    seed: u64,
    hosts: usize,
    ends_ns: Option<u64>,
    snapshots: bool,
    clients_stay: bool,
    /// The line that last spoke of the engine or the policy.
    made_at: usize,
    /// With the numbers of their lines.
    steps: Vec<(usize, Step, Vec<String>)>,
    clocks: Vec<(usize, usize, Clock)>,
    expects: Vec<(usize, String)>,
}

impl Scenario {
    /// Reads one.
    ///
    /// # Errors
    /// The line that makes no sense, and why.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        // Some editors begin a file with a mark of its encoding.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reader = Reader {
            options: Options { menu: Menu::Everything, ..Options::default() },
            seed: 1,
            hosts: 3,
            ends_ns: None,
            snapshots: false,
            clients_stay: false,
            made_at: 0,
            steps: Vec::new(),
            clocks: Vec::new(),
            expects: Vec::new(),
        };
        for (at, line) in text.lines().enumerate() {
            let read = uncommented(line).and_then(|line| reader.line(at + 1, line));
            read.map_err(|what| Wrong { line: at + 1, what })?;
        }
        if text.lines().all(|line| uncommented(line) == Ok("")) {
            return Err(Wrong { line: 1, what: "it says nothing (what can be said: fide sim scenario --help)".to_owned() });
        }
        reader.finish()
    }

    /// Lets it happen and judges its end.
    #[must_use]
    pub fn run(&self) -> Ended {
        let (broken, outcome, mut world) = run::watch_unjudged(&self.plan);
        let mut timeline = world.as_mut().and_then(World::take_timeline).unwrap_or_default();
        let mut unmet: Vec<_> = match &world {
            Some(world) => self
                .expects
                .iter()
                .filter_map(|(line, expect)| {
                    self.unmet(expect, world, &timeline, &broken).map(|found| format!("{line}: {found}"))
                })
                .collect(),
            // It panicked: nothing that was expected was looked at.
            None => self.expects.iter().map(|(line, _)| format!("{line}: the world did not come to its end")).collect(),
        };
        timeline.name(&self.values);
        // The first of each property; what follows from it breaks again and again.
        let said = |property| self.expects.iter().any(|(_, expect)| *expect == Expect::Broken(property));
        let diverged = broken.iter().position(|violation| violation.property == "agreement").unwrap_or(broken.len());
        let mut told = BTreeSet::new();
        // Where there are two logs, states and engines differ with them.
        let counts = |at: usize, property| at < diverged || !["engine-change", "snapshot"].contains(&property);
        let unsaid =
            broken.iter().enumerate().filter(|(at, violation)| counts(*at, violation.property) && !said(violation.property));
        for (_, violation) in unsaid.filter(|(_, violation)| told.insert(violation.property)) {
            unmet.push(format!("nobody said that {} breaks: {violation}", violation.property));
        }
        Ended { timeline, broken, unmet, excused: outcome.excused }
    }

    fn unmet(&self, expect: &Expect, world: &World, timeline: &Timeline, broken: &[Violation]) -> Option<String> {
        let there = |host: usize| world.member_on(host).filter(|member| member.halted.is_none());
        // One that joins has no state yet.
        let member = |host: usize| there(host).filter(|member| member.log().is_running());
        let position = |wanted: u64| world.log().iter().position(|entry| value_of(entry) == Some(wanted)).map(|at| at as u64 + 1);
        match expect {
            Expect::NoViolation => broken.first().map(ToString::to_string),
            Expect::Broken(name) => (!broken.iter().any(|violation| violation.property == *name)).then(|| "it holds".to_owned()),
            Expect::Applies(host, n) => {
                let position = member(*host).map(|member| member.no_gap.position());
                (position != Some(*n)).then(|| position.map_or("nobody is there".to_owned(), |p| format!("it applied {p}")))
            }
            Expect::AppliesValue(host, wanted) => {
                if !world.was_applied(*wanted, None) {
                    return Some("nobody ever applied it".to_owned());
                }
                let hosts = host.map_or(0..self.plan.hosts(), |host| host..host + 1);
                // Whoever is fenced is not among the living.
                let living = || hosts.clone().filter(|at| host.is_some() || !world.is_fenced(*at)).filter_map(there);
                let lacks = living().find(|member| !world.has_applied(member, *wanted));
                let nobody = living().next().is_none();
                let told = |member: &Member| format!("{} applied {} entries without it", member.id, member.no_gap.position());
                lacks.map(told).or_else(|| nobody.then(|| "nobody is there".to_owned()))
            }
            Expect::Applied(host, wanted) => (!world.was_applied(*wanted, Some(*host))).then(|| "nobody there did".to_owned()),
            Expect::Never(wanted) => world.was_applied(*wanted, None).then(|| {
                position(*wanted).map_or("a member whose log is another one did".to_owned(), |at| format!("it is entry {at}"))
            }),
            Expect::Leads(host) => {
                let leads = |host: usize| member(host).is_some_and(|member| member.log().leader() == Some(member.id));
                let all: Vec<_> =
                    (0..self.plan.hosts()).filter(|host| leads(*host)).map(|host| format!("h{}", host + 1)).collect();
                (!leads(*host) || all.len() > 1)
                    .then(|| format!("led by {}", if all.is_empty() { "nobody".into() } else { all.join(", ") }))
            }
            Expect::Runs(host, kind) => {
                let found = member(*host).map_or("nothing", |member| member.log().kind().name());
                (found != kind).then(|| format!("it runs {found}"))
            }
            Expect::Fenced(host) => (!world.is_fenced(*host)).then(|| "it is not".to_owned()),
            Expect::Down(host) => there(*host).map(|member| format!("{} runs there", member.id)),
            Expect::Halted(host, why) => {
                let lines = timeline.lines().iter().filter(|line| line.host == Some(*host));
                let reasons = lines.filter_map(|line| line.text.strip_prefix("stops: "));
                let reasons: Vec<_> = reasons.map(|why| kebab(why.split('(').next().unwrap_or(why))).collect();
                match why {
                    _ if reasons.is_empty() => Some("it did not stop".to_owned()),
                    Some(why) if !reasons.contains(why) => Some(format!("it stopped: {}", reasons.join(", "))),
                    _ => None,
                }
            }
        }
    }
}

/// `NetworkFault` as `network-fault`.
fn kebab(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// A line without its comment.
fn uncommented(line: &str) -> Result<&str, String> {
    let mut within = false;
    for (at, letter) in line.char_indices() {
        match letter {
            '"' => within = !within,
            '#' if !within => return Ok(line[..at].trim()),
            '“' | '”' | '„' | '«' | '»' | '‘' | '’' if !within => {
                return Err(format!("names stand between \"straight\" quotes, not {letter}: {}", line.trim()));
            }
            _ => {}
        }
    }
    if within { Err(format!("a quote is not closed: {}", line.trim())) } else { Ok(line.trim()) }
}

/// `2ms` and `h1` as `2 ms` and `host 1`; the names between quotes, which come last, apart.
fn words(line: &str) -> Result<(Vec<String>, Vec<String>), String> {
    let (mut words, mut quoted) = (Vec::new(), Vec::new());
    for (at, part) in line.split('"').enumerate() {
        if at % 2 == 1 {
            if part.is_empty() {
                return Err("a name is empty".to_owned());
            }
            quoted.push(part.to_owned());
            continue;
        }
        for word in part.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty()) {
            if !quoted.is_empty() {
                return Err(format!("something follows the names: {word}"));
            }
            let word = word.trim_end_matches(':');
            if let Some(number) =
                word.strip_prefix('h').filter(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit()))
            {
                words.extend(["host".to_owned(), number.to_owned()]);
            } else if let Some((number, unit)) = measure(word) {
                words.extend([number.to_owned(), unit.to_owned()]);
            } else if !word.is_empty() {
                words.push(word.to_owned());
            }
        }
    }
    Ok((words, quoted))
}

const UNITS: [&str; 4] = ["ms", "us", "µs", "ns"];

fn is_unit(word: &str) -> bool {
    UNITS.contains(&word)
}

/// `2ms` and `40%`: what looks like a number, and what follows it.
fn measure(word: &str) -> Option<(&str, &str)> {
    let looks_like_one = word.strip_prefix('-').unwrap_or(word).starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let split = |unit| word.strip_suffix(unit).filter(|number| !number.is_empty()).map(|number| (number, &word[number.len()..]));
    UNITS.into_iter().chain(["%"]).find_map(split).filter(|_| looks_like_one)
}

fn is_number(word: &str) -> bool {
    word.parse::<f64>().is_ok()
}

/// What is said instead of what makes no sense: `; did you mean "…"?`, or where to look.
fn meant(words: &[&str], named: bool, forms: &[&str]) -> String {
    let near = nearest(words, named, forms);
    if near.is_empty() {
        return " (what can be said: fide sim scenario --help)".to_owned();
    }
    let near: Vec<_> = near.iter().map(|form| format!("\"{form}\"")).collect();
    format!("; did you mean {}?", near.join(" or "))
}

/// The forms that these words come closest to, filled in with them; none if that is not close.
fn nearest(said: &[&str], named: bool, forms: &[&str]) -> Vec<String> {
    let mut said = said.to_vec();
    if named {
        said.push("\"NAME\"");
    }
    let mut best = (NEAR + 1, Vec::new());
    for form in forms {
        let (cost, text) = align(&said, &tokens(form));
        if cost < best.0 {
            best = (cost, vec![text]);
        } else if cost == best.0 && !best.1.contains(&text) {
            best.1.push(text);
        }
    }
    if best.0 > NEAR || best.1.len() > 2 { Vec::new() } else { best.1 }
}

/// A word of a form that is missing, or one too many, costs 2; a slip of the finger 1; another word 3.
const NEAR: usize = 2;

fn tokens(form: &str) -> Vec<&str> {
    form.split(' ')
        .flat_map(|word| match word {
            "hN" => vec!["host", "N"],
            "T" => vec!["TIME", "UNIT"],
            _ => vec![word],
        })
        .collect()
}

/// How far these words are from a form, and the form with what it takes of them.
fn align(said: &[&str], form: &[&str]) -> (usize, String) {
    let mut rows: Vec<Vec<(usize, Vec<&str>)>> = vec![vec![(0, Vec::new()); form.len() + 1]; said.len() + 1];
    for i in 0..=said.len() {
        for j in 0..=form.len() {
            let mut ways = Vec::new();
            let with = |(cost, text): &(usize, Vec<_>), more: usize, word| {
                (cost + more, text.iter().copied().chain(word).collect::<Vec<_>>())
            };
            if i > 0 {
                ways.push(with(&rows[i - 1][j], 2, None));
            }
            if j > 0 {
                ways.push(with(&rows[i][j - 1], 2, Some(form[j - 1])));
            }
            if i > 0 && j > 0 {
                let (cost, word) = fits(said[i - 1], form[j - 1]);
                ways.push(with(&rows[i - 1][j - 1], cost, Some(word)));
            }
            rows[i][j] = ways.into_iter().min_by_key(|(cost, _)| *cost).unwrap_or_default();
        }
    }
    let (cost, words) = rows.pop().and_then(|mut row| row.pop()).unwrap_or_default();
    (cost, words.join(" ").replace("host ", "h").replace("TIME UNIT", "T"))
}

/// What it costs to take this word for one of a form, and what then stands there.
fn fits<'a>(said: &'a str, form: &'a str) -> (usize, &'a str) {
    let stands_for_something = form.chars().all(|c| c.is_ascii_uppercase());
    let good = match form {
        "N" | "COUNT" | "SEED" | "PPM" | "NS" | "PATH" | "PERCENT" | "TIME" => is_number(said),
        "UNIT" => is_unit(said),
        "PROPERTY" => TABLE.iter().any(|property| property.name == said),
        "ENGINE" => options::parse_kind(said).is_ok(),
        _ if stands_for_something => !is_number(said) && !said.starts_with('"'),
        _ => said == form,
    };
    match good {
        true if stands_for_something => (0, said),
        true => (0, form),
        false if !stands_for_something && !options::close(said, [form]).is_empty() => (1, form),
        false => (3, form),
    }
}

const ORDINALS: [&str; 6] = ["first", "second", "third", "fourth", "fifth", "sixth"];

impl Reader {
    fn line(&mut self, at: usize, line: &str) -> Result<(), String> {
        let (words, quoted) = words(line)?;
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        match words[..] {
            [] if quoted.is_empty() => Ok(()),
            ["at", n, unit, ..] if !is_number(n) && !is_unit(unit) => Err(format!("not a time: {n} (as 2ms, 15µs or 300ns)")),
            ["at", n, unit, ..] => {
                let at_ns = parse_time(n, unit)?;
                let act = act(&words[3..], &quoted)?;
                self.steps.push((at, Step { at_ns, act }, quoted));
                Ok(())
            }
            // What it means depends on the values that lines further down may name.
            ["expect", ..] => {
                self.expects.push((at, line.to_owned()));
                Ok(())
            }
            [_, n, unit, ..] if is_number(n) && is_unit(unit) => {
                let rest = line.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim());
                Err(format!("not something that a scenario says: {line}; did you mean \"at {rest}\"?"))
            }
            [first, ..] if !options::close(first, ["expect"]).is_empty() => {
                let rest = line.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim());
                Err(format!("not something that a scenario says: {line}; did you mean \"expect {rest}\"?"))
            }
            _ if !quoted.is_empty() => Err(format!("a setting has no name: {line}")),
            _ => line.split(',').try_for_each(|setting| self.setting(at, setting.trim())),
        }
    }

    fn setting(&mut self, at: usize, setting: &str) -> Result<(), String> {
        let (words, _) = words(setting)?;
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        match words[..] {
            [] => {}
            ["engine", name] => (self.options.engine, self.made_at) = (options::parse_kind(name)?, at),
            ["policy", name] => (self.options.policy, self.made_at) = (options::parse_policy(name)?, at),
            ["menu", name] => self.options.menu = name.parse()?,
            ["hosts", n] | [n, "hosts"] => {
                self.hosts = number(n)? as usize;
                if !(2..=32).contains(&self.hosts) {
                    return Err(format!("a scenario has 2 to 32 hosts, not {n}"));
                }
            }
            ["seed", n] => self.seed = number(n)?,
            ["snapshots"] => self.snapshots = true,
            ["clients", "stay"] => self.clients_stay = true,
            ["clock", "of", "host", host, "gains", ppm, "ppm", "from", offset] => {
                let ppm: i64 = ppm.parse().map_err(|_| format!("not a number: {ppm}"))?;
                let offset_ns = number(offset)?;
                if ppm.abs() > PPM_MAX || offset_ns > TIME_MAX_NS {
                    return Err(format!("a clock gains at most {PPM_MAX} ppm either way, from at most {TIME_MAX_NS}"));
                }
                self.clocks.push((at, parse_host(host)?, Clock { ppm, offset_ns }));
            }
            ["faults", "end", "at", n, unit] => self.ends_ns = Some(parse_time(n, unit)?),
            _ => return Err(format!("not something that a scenario says: {setting}{}", meant(&words, false, &SETTINGS))),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Scenario, Wrong> {
        let hosts = self.hosts;
        let wrong = |line, what| Wrong { line, what };
        if !self.options.policy.suits(self.options.engine) {
            return Err(wrong(self.made_at, format!("{} cannot keep the policy {}", self.options.engine, self.options.policy)));
        }
        if let Some((at, step, _)) =
            self.steps.iter().find(|(_, step, _)| step.act.highest_host().is_some_and(|host| host >= hosts))
        {
            return Err(wrong(*at, format!("there are {hosts} hosts: {}", step.act)));
        }
        let switched = self.steps.iter().filter_map(|(at, step, _)| match step.act {
            Act::Switch { to, .. } => Some((at, to)),
            _ => None,
        });
        for (at, kind) in switched {
            if !self.options.policy.suits(kind) {
                return Err(wrong(*at, format!("{kind} cannot keep the policy {}", self.options.policy)));
            }
        }
        let mut clocks = vec![Clock { offset_ns: 1_000_000, ppm: 0 }; hosts];
        for (at, host, clock) in self.clocks {
            *clocks.get_mut(host).ok_or_else(|| wrong(at, format!("there are {hosts} hosts")))? = clock;
        }
        self.steps.sort_by_key(|(_, step, _)| step.at_ns);
        // Clients count their values as they come.
        let (mut values, mut named, mut proposed) = (Vec::new(), BTreeSet::new(), 0);
        for (at, step, names) in &self.steps {
            let Act::Propose { values: n, .. } = step.act else { continue };
            proposed += u64::from(n);
            if proposed > VALUES_MAX {
                return Err(wrong(*at, format!("{proposed} values are proposed: a scenario has room for {VALUES_MAX}")));
            }
            for nth in 0..n as usize {
                let name = names.get(nth).cloned().unwrap_or_default();
                if !name.is_empty() && !named.insert(name.clone()) {
                    return Err(wrong(*at, format!("there is a \"{name}\" already")));
                }
                values.push(name);
            }
        }
        let mut expects = Vec::new();
        for (at, line) in self.expects {
            let expect = expectation(&line, &values, hosts).map_err(|what| wrong(at, what))?;
            expects.push((line, expect));
        }
        let steps: Vec<_> = self.steps.into_iter().map(|(_, step, _)| step).collect();
        let last = steps.iter().map(|step| step.at_ns.saturating_add(step.act.lasts_ns())).max().unwrap_or(0);
        let faults_end_ns = self.ends_ns.unwrap_or(last + PERIOD_NS);
        let (snapshots, clients_stay) = (self.snapshots, self.clients_stay);
        let plan = Plan { seed: self.seed, options: self.options, clocks, steps, faults_end_ns, snapshots, clients_stay };
        Ok(Scenario { plan, expects, values })
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}

fn act(words: &[&str], quoted: &[String]) -> Result<Act, String> {
    let act = match words {
        ["host", host, "proposes"] if !quoted.is_empty() => {
            return Ok(Act::Propose { host: parse_host(host)?, values: quoted.len() as u32 });
        }
        ["host", host, "joins"] => Act::Start { host: parse_host(host)? },
        ["host", host, "is", "killed", "after", "its", nth, "send"] => {
            let nth = options::one_of(&ORDINALS, nth, "send")?;
            Act::KillBehind { host: parse_host(host)?, sends: nth as u32 + 1 }
        }
        ["link", "host", from, "to", "host", to, rest @ ..] => format!("link {from} to {to} {}", rest.join(" ")).parse()?,
        words => words.join(" ").parse().map_err(|why: String| {
            // What is wrong with a number or a name is told by it; what else is not known here.
            let form = why.starts_with(NOT_AN_ACT).then(|| meant(words, !quoted.is_empty(), &ACTS));
            why + &form.unwrap_or_default()
        })?,
    };
    if !quoted.is_empty() {
        return Err(format!("only what is proposed has a name: {act}"));
    }
    if let Act::Lose { percent, .. } | Act::Double { percent, .. } | Act::Delay { percent, .. } = act
        && percent > 100
    {
        return Err(format!("of a hundred, not {percent}: {act}"));
    }
    if let Act::Propose { values: 0, .. } = act {
        return Err(format!("nothing is proposed: {act}"));
    }
    Ok(act)
}

/// How [`Act`] begins to say that it is none.
const NOT_AN_ACT: &str = "not something that can happen";

fn expectation(line: &str, values: &[String], hosts: usize) -> Result<Expect, String> {
    let (words, quoted) = words(line)?;
    let words: Vec<_> = words.iter().map(String::as_str).skip(1).collect();
    if words.is_empty() {
        return Err("nothing is expected (what can be: fide sim scenario --help)".to_owned());
    }
    let value = || match &quoted[..] {
        [name] => values
            .iter()
            .position(|value| value == name)
            .map(|at| at as u64 + 1)
            .ok_or_else(|| format!("nobody proposes \"{name}\"")),
        _ => Err(format!("one value at a time: {line}")),
    };
    let host = |text: &str| {
        let host = parse_host(text)?;
        if host < hosts { Ok(host) } else { Err(format!("there are {hosts} hosts: {line}")) }
    };
    let property = |name: &str| options::one_of(&TABLE.map(|row| row.name), name, "property").map(|at| TABLE[at].name);
    let expect = match words[..] {
        ["no", "violation"] => Expect::NoViolation,
        ["disagreement"] => Expect::Broken("agreement"),
        [name, "broken"] | ["violation", "of", name] => Expect::Broken(property(name)?),
        ["all", "alive", "apply"] => Expect::AppliesValue(None, value()?),
        ["nobody", "applies"] => Expect::Never(value()?),
        ["host", h, "applies"] => Expect::AppliesValue(Some(host(h)?), value()?),
        ["host", h, "applied"] => Expect::Applied(host(h)?, value()?),
        ["host", h, "applies", n, "entries" | "entry"] => Expect::Applies(host(h)?, number(n)?),
        ["host", h, "leads"] => Expect::Leads(host(h)?),
        ["host", h, "runs", kind] => Expect::Runs(host(h)?, options::parse_kind(kind)?.name().to_owned()),
        ["host", h, "is", "fenced"] => Expect::Fenced(host(h)?),
        ["host", h, "is", "down"] => Expect::Down(host(h)?),
        ["host", h, "stops", "safely"] => Expect::Halted(host(h)?, None),
        ["host", h, "halted", why] => {
            let why = REASONS[options::one_of(&REASONS, why, "reason to stop")?];
            Expect::Halted(host(h)?, Some(why.to_owned()))
        }
        _ => return Err(format!("not something to expect: {}{}", words.join(" "), meant(&words, !quoted.is_empty(), &EXPECTS))),
    };
    if !quoted.is_empty() && !matches!(expect, Expect::AppliesValue(..) | Expect::Applied(..) | Expect::Never(_)) {
        return Err(format!("this expects something of no value: {line}"));
    }
    Ok(expect)
}

/// The world of a plan as a story that ends as it says: with what breaks there.
#[must_use]
pub fn tell(plan: &Plan) -> String {
    let mut text = write(plan);
    let mut told = BTreeSet::new();
    text.push('\n');
    for violation in run::watch_unjudged(plan).0 {
        // What panics can be told, and is never expected.
        let (property, mark) = (violation.property, if violation.property == "assertion" { "# " } else { "" });
        if told.insert(property) {
            let _ = writeln!(text, "# {violation}\n{mark}expect {property} broken");
        }
    }
    if told.is_empty() {
        let _ = writeln!(text, "expect no violation");
    }
    text
}

/// A plan as the text of a scenario: the same world when it is read.
#[must_use]
pub fn write(plan: &Plan) -> String {
    let mut text = String::new();
    let Options { engine, policy, menu, .. } = plan.options;
    // Writing into a string never fails.
    let _ = writeln!(text, "{} hosts, engine {engine}, policy {policy}, menu {menu}, seed {}", plan.hosts(), plan.seed);
    for (host, clock) in plan.clocks.iter().enumerate() {
        let _ = writeln!(text, "clock of host {} gains {} ppm from {}", host + 1, clock.ppm, clock.offset_ns);
    }
    for (is_set, setting) in [(plan.snapshots, "snapshots"), (plan.clients_stay, "clients stay")] {
        if is_set {
            let _ = writeln!(text, "{setting}");
        }
    }
    for step in &plan.steps {
        let _ = writeln!(text, "at {}: {}", micros(step.at_ns), step.act);
    }
    let _ = writeln!(text, "faults end at {}", micros(plan.faults_end_ns));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_the_same_world_when_it_is_read_again() {
        for seed in 0..30 {
            let plan = Plan::generate(seed, Options { menu: Menu::Everything, ..Options::default() });
            let read = Scenario::parse(&write(&plan)).unwrap().plan;
            let hostless = |mut plan: Plan| {
                plan.options.hosts = None;
                plan
            };
            assert_eq!(hostless(read), hostless(plan));
        }
    }

    #[test]
    fn what_makes_no_sense_is_told_with_its_line() {
        for (text, wanted) in [
            ("3 hosts\nengine zab", "line 2: no such engine: zab"),
            ("\n\nat 2ms h9 joins", "line 3: there are 3 hosts"),
            ("at 2 parsecs h1 joins", "line 1: not a unit of time"),
            ("at -1ms h1 joins", "line 1: not a time from 0 to 100000 ms: -1 ms"),
            ("at 1.2.3ms h1 joins", "line 1: not a number: 1.2.3"),
            ("at 1s h1 joins", "line 1: not a time: 1s (as 2ms"),
            ("at NaNms h1 joins", "line 1: not a time: NaNms"),
            ("at 1e400ms h1 joins", "line 1: not a time from 0 to 100000 ms"),
            ("expect", "line 1: nothing is expected"),
            ("at 2ms h1 dances", "line 1: not something that can happen: host 1 dances"),
            ("expect h1 dances", "line 1: not something to expect"),
            ("at 2ms h1 proposes \"a\"\nexpect all alive apply \"b\"", "line 2: nobody proposes \"b\""),
            ("at 2ms h1 proposes \"a\"\nat 3ms h2 proposes \"a\"", "line 2: there is a \"a\" already"),
            ("expect speed broken", "line 1: no such property: speed"),
            ("1 hosts", "line 1: a scenario has 2 to 32 hosts, not 1"),
            ("engine lowi, policy fence", "lowi cannot keep the policy fence"),
            ("at 1ms h1 is killed after its last send", "line 1: no such send: last"),
            ("\n# a title\n", "line 1: it says nothing"),
            ("", "line 1: it says nothing"),
            ("at 1ms h1 proposes 0 values", "line 1: nothing is proposed"),
            ("at 1ms h1 proposes “a”", "line 1: names stand between \"straight\" quotes, not “"),
            ("a nice day", "line 1: not something that a scenario says: a nice day"),
        ] {
            let why = Scenario::parse(text).unwrap_err().to_string();
            assert!(why.contains(wanted), "{text}: {why}");
        }
    }

    #[test]
    fn what_is_applied_is_looked_for_in_the_log_of_who_applied_it() {
        // Two sides go on alone, and each decides what its own client wants.
        let text = "2 hosts, engine hsuc, seed 2, clients stay\nat 1ms h1 is cut off for 3ms\nat 1.1ms h1 proposes \"one\"\nat 1.2ms h2 proposes \"other\"\n\
            faults end at 3ms\nexpect disagreement\nexpect accuracy broken\nexpect eviction broken\n";
        let unmet = |more: &str| Scenario::parse(&format!("{text}{more}")).unwrap().run().unmet;
        assert_eq!(unmet("expect h1 is down\nexpect h2 is down\n"), [""; 0]);
        assert_eq!(unmet("expect nobody applies \"one\"").len(), 1);
        assert_eq!(unmet("expect nobody applies \"other\"").len(), 1);
        assert_eq!(unmet("expect h1 applied \"one\"\nexpect h2 applied \"other\""), [""; 0]);
        assert_eq!(unmet("expect h1 applied \"other\"\nexpect h2 applied \"one\"").len(), 2);
        // Only one side is left.
        let told = "3 hosts, engine hsuc, policy witness, seed 2, clients stay\nat 0.05ms the witness takes sides\nat 1ms h1 is cut off for 3ms\n\
            at 1.1ms h1 proposes \"a\"\nat 2ms h2 proposes \"b\"\nat 5ms h2 is killed\nat 5ms h3 is killed\nexpect accuracy broken\n\
            expect eviction broken\nexpect disagreement\nexpect h1 applies \"a\"\nexpect h2 applied \"b\"\n";
        assert_eq!(Scenario::parse(told).unwrap().run().unmet, [""; 0]);
        let ended = Scenario::parse(&format!("{told}expect h1 applies \"b\"\nexpect all alive apply \"b\"")).unwrap().run();
        assert_eq!(ended.unmet.len(), 2, "{:?}", ended.unmet);
        // A cause and what follows from it: each is said.
        let silent = text.replace("expect eviction broken\n", "");
        let unmet = Scenario::parse(&silent).unwrap().run().unmet;
        assert!(unmet.len() == 1 && unmet[0].starts_with("nobody said that eviction breaks: "), "{unmet:?}");
    }

    #[test]
    fn what_comes_late_is_a_reason_for_lowi_to_stop() {
        for trouble in [
            "path 1 delays 100 % by 300us for 2ms",
            "h2 pauses for 1ms",
            "process of h2 pauses for 1ms",
            "process of h1 pauses for 1ms",
        ] {
            let text = format!("3 hosts, engine lowi\nat 0.2ms h1 proposes \"a\"\nat 0.5ms {trouble}\nexpect no violation");
            let ended = Scenario::parse(&text).unwrap().run();
            // A follower whose process stands still has the kernel's stamps.
            let stops = trouble.starts_with("process of h2") || ended.timeline.to_string().contains("stops: ");
            assert!(
                stops && ended.broken.iter().all(|violation| violation.property != "safe-exit"),
                "{trouble}: {:?}",
                ended.broken
            );
        }
    }

    #[test]
    fn what_was_never_decided_is_told_also_where_something_else_broke() {
        let text = "4 hosts, engine huc, seed 4\nat 1ms path 0 loses 60 % for 3ms\nat 1ms path 1 loses 60 % for 3ms\nat 1ms h1 proposes 10 values\n\
            at 1.3ms h2 proposes \"x\"\nat 0.2ms h3 pauses for 0.5ms\nfaults end at 4ms\nexpect accuracy broken\nexpect eviction broken\n";
        // Whether all three break is chance, of the seed.
        let unmet = |seed: u64| Scenario::parse(&text.replace("seed 4", &format!("seed {seed}"))).unwrap().run().unmet;
        let is_one = |unmet: &Vec<String>| unmet.len() == 1 && unmet[0].starts_with("nobody said that termination breaks");
        assert!((0..100).map(unmet).any(|unmet| is_one(&unmet)));
        // Where it cannot be judged, that is said.
        let text =
            "3 hosts, engine raft\nat 3ms h2 is killed\nat 3ms h3 is killed\nat 4ms h1 proposes \"b\"\nexpect no violation";
        let ended = Scenario::parse(text).unwrap().run();
        assert_eq!((ended.unmet, ended.excused), (vec![], Some("a majority is gone")));
        // Whoever joins is not down, and has applied nothing.
        let text = "3 hosts, engine raft\nat 1ms h1 proposes \"a\"\nat 3ms h2 is killed\nat 3ms h3 is killed\nat 4ms h3 joins\nexpect h2 is down\n\
            expect h3 is down\nexpect all alive apply \"a\"";
        let unmet = Scenario::parse(text).unwrap().run().unmet;
        assert!(unmet.len() == 2 && unmet[0].contains("h3 is down: p4 runs there"), "{unmet:?}");
    }

    #[test]
    fn a_state_that_is_given_has_what_was_applied_before_it() {
        let text = "3 hosts, engine hsuc, snapshots\nat 0.01ms h3 is killed\nat 1ms h1 proposes \"a\"\nat 1.5ms h1 proposes \"b\"\nat 2ms h1 proposes \"c\"\n\
            at 5ms h3 joins\nat 8ms h1 proposes \"z\"\nexpect h3 applies \"a\"\nexpect h3 applied \"a\"\nexpect h3 applied \"z\"";
        assert_eq!(Scenario::parse(text).unwrap().run().unmet, [""; 0]);
        let unmet = |more: &str| {
            Scenario::parse(&text.replace("expect", "# ").replace("at 8ms", more)).unwrap().run().timeline.to_string()
        };
        assert!(unmet("at 8ms").contains("installs the state after"), "it is given a state, not the log");
    }

    #[test]
    fn only_what_is_sent_counts_where_sends_are_counted() {
        let text = "3 hosts, engine hsuc\nat 0.5ms h1 proposes \"a\"\nat 0.5ms h2 is killed after its second send\nat 0.7ms h1 proposes \"b\"\nexpect h2 is down";
        let ended = Scenario::parse(text).unwrap().run();
        let sends = ended.timeline.lines().iter().filter(|line| line.host == Some(1) && line.text.starts_with('→')).count();
        assert_eq!((sends, ended.unmet), (2, vec![]), "{}", ended.timeline);
    }

    #[test]
    fn many_values_take_their_time() {
        let text =
            "3 hosts, engine raft\nat 0.2ms h1 proposes 15000 values\nexpect no violation\nexpect h2 applies 15000 entries";
        assert_eq!(Scenario::parse(text).unwrap().run().unmet, [""; 0]);
    }

    #[test]
    fn a_story_of_a_world_ends_as_it_says() {
        let mut broken = 0;
        for seed in 0..60 {
            let plan = Plan::generate(seed, Options { menu: Menu::BeyondContract, ..Options::default() });
            let text = tell(&plan);
            broken += u32::from(text.contains(" broken"));
            let ended = Scenario::parse(&text).unwrap().run();
            assert_eq!(ended.unmet, [""; 0], "{text}");
        }
        assert!(broken > 0, "some of these worlds break");
    }

    #[test]
    fn a_mark_within_quotes_begins_no_comment() {
        let text = "at 1ms h1 proposes \"a#b\" # and this is one, with \"half a quote\nexpect all alive apply \"a#b\"";
        assert_eq!(Scenario::parse(text).unwrap().values, ["a#b"]);
        assert_eq!(Scenario::parse("\u{feff}at 1ms h1 proposes \"“a”\"").unwrap().values, ["“a”"]);
    }

    #[test]
    fn what_was_once_taken_in_silence_is_refused() {
        for (text, wanted) in [
            ("at 1ms h1 proposes \"a", "line 1: a quote is not closed"),
            ("at 1ms h1 proposes \"a\nexpect no violation", "line 1: a quote is not closed"),
            ("at 1ms h1 joins \"a\"", "line 1: only what is proposed has a name"),
            ("at 1ms h1 proposes 2 values \"a\"", "line 1: only what is proposed has a name"),
            ("at 1ms h1 proposes \"\"", "line 1: a name is empty"),
            ("at 1ms h1 proposes \"a\", \"a\"", "line 1: there is a \"a\" already"),
            ("at 1ms \"a\" h1 proposes", "line 1: something follows the names"),
            ("expect h1 leads \"a\"", "line 1: this expects something of no value"),
            ("seed \"7\"", "line 1: a setting has no name"),
            ("expect h1 halted network-falt", "line 1: no such reason to stop: network-falt; did you mean network-fault?"),
            ("at 1ms path 0 loses 300 % for 1ms", "line 1: of a hundred, not 300"),
            ("expect h4 leads", "line 1: there are 3 hosts"),
            ("\nengine lowi\npolicy fence", "line 3: lowi cannot keep the policy fence"),
            ("policy fence\nat 1ms h1 switches to lowi", "line 2: lowi cannot keep the policy fence"),
            ("3 hosts\nclock of h9 gains 1 ppm from 0", "line 2: there are 3 hosts"),
            ("at 1ms h1 proposes 99999 values\nat 2ms h1 proposes 99999 values", "line 2: 199998 values are proposed"),
        ] {
            let why = Scenario::parse(text).map(|_| ()).map_err(|why| why.to_string());
            assert!(why.as_ref().is_err_and(|why| why.contains(wanted)), "{text}: {why:?}");
        }
    }

    #[test]
    fn slips_of_the_finger_are_told_what_may_have_been_meant() {
        for (text, wanted) in [
            ("expect nothing", "not something to expect: nothing (what can be said"),
            ("expect h1 halted", "did you mean \"h1 halted REASON\"?"),
            ("at 2ms h1 is kiled", "did you mean \"h1 is killed\"?"),
            ("at 2ms h1 killed", "did you mean \"h1 is killed\"?"),
            ("at 2ms h1 propose \"a\"", "did you mean \"h1 proposes \"NAME\"\"?"),
            ("at 2ms h1 is cut of for 3ms", "did you mean \"h1 is cut off for 3 ms\"?"),
            ("at 2ms path 1 of h2 is cut 3ms", "did you mean \"path 1 of h2 is cut for 3 ms\"?"),
            ("at 2ms h1 is killed after its first sent", "did you mean \"h1 is killed after its first send\"?"),
            ("at 2ms h1 is killed after its frist send", "did you mean first?"),
            ("at 2ms h1 switches to pacsos", "did you mean paxos?"),
            ("at 2 m h1 joins", "not a unit of time: m (ns, µs, ms)"),
            ("engin hsuc", "did you mean \"engine hsuc\"?"),
            ("3 host", "did you mean \"3 hosts\"?"),
            ("fault end at 2ms", "did you mean \"faults end at 2 ms\"?"),
            ("policy fense", "did you mean fence?"),
            ("menu pauzes", "did you mean pauses?"),
            ("expcet no violation", "did you mean \"expect no violation\"?"),
            ("on 2ms h1 joins", "did you mean \"at 2ms h1 joins\"?"),
            ("expect no violations", "did you mean \"no violation\"?"),
            ("expect h1 leeds", "did you mean \"h1 leads\"?"),
            ("expect agrement broken", "did you mean agreement?"),
            ("expect all apply \"a\"\nat 1ms h1 proposes \"a\"", "did you mean \"all alive apply \"NAME\"\"?"),
        ] {
            let why = Scenario::parse(text).map(|_| ()).map_err(|why| why.to_string());
            assert!(why.as_ref().is_err_and(|why| why.contains(wanted)), "{text}: {why:?}");
        }
        let why = Scenario::parse("at 2ms h1 dances").unwrap_err().to_string();
        assert!(!why.contains("did you mean"), "{why}");
    }

    #[test]
    fn every_form_can_be_said_and_whatever_acts_print_is_one() {
        let said = |form: &str| {
            let stands_for = [
                ("hN", "h1"),
                ("T", "2ms"),
                ("NS", "1000"),
                ("N", "3"),
                ("NTH", "second"),
                ("COUNT", "2"),
                ("SEED", "7"),
                ("PPM", "-5"),
                ("PATH", "1"),
                ("PERCENT", "30"),
                ("ENGINE", "huc"),
                ("POLICY", "fence"),
                ("MENU", "pauses"),
                ("PROPERTY", "stability"),
                ("REASON", "left"),
                ("\"NAME\"", "\"a\""),
            ];
            let word = |word| stands_for.iter().find(|(name, _)| *name == word).map_or(word, |(_, text)| *text);
            form.split(' ').map(word).collect::<Vec<_>>().join(" ")
        };
        let read = |text: &str| Scenario::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        SETTINGS.iter().for_each(|form| drop(read(&said(form))));
        ACTS.iter().for_each(|form| assert_eq!(read(&format!("at 1ms {}", said(form))).plan.steps.len(), 1));
        for form in EXPECTS {
            let proposed = if form.contains('"') { "at 1ms h1 proposes \"a\"\n" } else { "" };
            assert_eq!(read(&format!("{proposed}expect {}", said(form))).expects.len(), 1);
        }
        for seed in 0..200 {
            let options =
                Options { menu: if seed % 2 == 0 { Menu::Everything } else { Menu::EngineChanges }, ..Options::default() };
            for step in Plan::generate(seed, options).steps {
                // A link says its hosts without an h.
                let text = step.act.to_string().replace("link ", "link host ");
                let (words, _) = words(&if text.starts_with("link") { text.replace(" to ", " to host ") } else { text }).unwrap();
                let words: Vec<_> = words.iter().map(String::as_str).collect();
                assert!(ACTS.iter().any(|form| align(&words, &tokens(form)).0 == 0), "{}", step.act);
            }
        }
    }

    #[test]
    fn reasons_are_those_of_the_engines() {
        use fide_proto::consensus::Halted::{Contradiction, Expelled, Left, MissingBroadcast, NetworkFault, Unconfirmed};
        let all = [NetworkFault, MissingBroadcast, Unconfirmed(fide_proto::group::MemberId(1)), Expelled, Left, Contradiction];
        let name = |why| kebab(format!("{why:?}").split('(').next().unwrap_or_default());
        assert_eq!(all.map(name), REASONS);
    }
}
