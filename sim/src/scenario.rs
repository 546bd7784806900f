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
//! Settings are separated by commas or lines: `N hosts`, `engine E`, `policy P`, `menu M`, `seed N`, `snapshots`, `faults end at T`, `clock of host N
//! gains PPM ppm from NS`. What can happen is what [`crate::plan::Act`] prints, with these besides: `proposes "a", "b"` for a number of values, `joins`
//! for `starts`, `is killed after its first send`. What can be expected: [`Expect`]. If nothing is said of what breaks, nothing may.

use std::fmt::Write as _;

/// Most values that a scenario proposes.
const VALUES_MAX: u64 = 100_000;

/// A clock that is a tenth off is beyond any that there is.
const PPM_MAX: i64 = 100_000;

/// The longest story, and the latest that a clock begins with: a hundred seconds.
const TIME_MAX_NS: u64 = 100_000_000_000;

use fide_proto::group::{Body, Entry};

use crate::invariants::{TABLE, Violation};
use crate::options::{self, Menu, Options};
use crate::plan::{Act, Plan, Step, parse_host, parse_time};
use crate::run;
use crate::time::{Clock, PERIOD_NS, micros};
use crate::timeline::Timeline;
use crate::world::World;

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
    /// `nobody applies "a"`.
    Never(u64),
    /// `h1 leads`: whoever runs there believes so, and nobody else of itself.
    Leads(usize),
    /// `h1 runs hsuc`: the engine of whoever runs there.
    Runs(usize, String),
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
}

/// What was read so far.
struct Reader {
    options: Options,
    seed: u64,
    hosts: usize,
    ends_ns: Option<u64>,
    snapshots: bool,
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
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader {
            options: Options { menu: Menu::Everything, ..Options::default() },
            seed: 1,
            hosts: 3,
            ends_ns: None,
            snapshots: false,
            steps: Vec::new(),
            clocks: Vec::new(),
            expects: Vec::new(),
        };
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            reader.line(at + 1, line).map_err(|why| format!("line {}: {why}", at + 1))?;
        }
        reader.finish()
    }

    /// Lets it happen and judges its end.
    #[must_use]
    pub fn run(&self) -> Ended {
        let (broken, _, mut world) = run::watch_unjudged(&self.plan);
        let timeline = world.as_mut().and_then(World::take_timeline).unwrap_or_default();
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
        let says = self.expects.iter().any(|(_, expect)| matches!(expect, Expect::Broken(_)));
        if let Some(violation) = broken.iter().find(|violation| !says || violation.property == "assertion") {
            unmet.push(format!("nothing was expected to break: {violation}"));
        }
        Ended { timeline, broken, unmet }
    }

    fn unmet(&self, expect: &Expect, world: &World, timeline: &Timeline, broken: &[Violation]) -> Option<String> {
        let member = |host: usize| world.member_on(host).filter(|member| member.halted.is_none() && member.log.is_running());
        let value = |entry: &Entry| match &entry.body {
            Body::Value(bytes) => <[u8; 8]>::try_from(&bytes[..]).ok().map(u64::from_le_bytes),
            _ => None,
        };
        let position = |wanted: u64| world.log().iter().position(|entry| value(entry) == Some(wanted)).map(|at| at as u64 + 1);
        match expect {
            Expect::NoViolation => broken.first().map(ToString::to_string),
            Expect::Broken(name) => (!broken.iter().any(|violation| violation.property == *name)).then(|| "it holds".to_owned()),
            Expect::Applies(host, n) => {
                let position = member(*host).map(|member| member.no_gap.position());
                (position != Some(*n)).then(|| position.map_or("nobody is there".to_owned(), |p| format!("it applied {p}")))
            }
            Expect::AppliesValue(host, wanted) => {
                let Some(at) = position(*wanted) else { return Some("nobody ever applied it".to_owned()) };
                let hosts = host.map_or(0..self.plan.hosts(), |host| host..host + 1);
                let late = hosts.clone().filter_map(member).find(|member| member.no_gap.position() < at);
                let nobody = hosts.clone().all(|host| member(host).is_none());
                late.map(|member| format!("{} applied {} entries, and this is the {at}th", member.id, member.no_gap.position()))
                    .or_else(|| nobody.then(|| "nobody is there".to_owned()))
            }
            Expect::Never(wanted) => position(*wanted).map(|at| format!("it is entry {at}")),
            Expect::Leads(host) => {
                let leads = |host: usize| member(host).is_some_and(|member| member.log.leader() == Some(member.id));
                let all: Vec<_> =
                    (0..self.plan.hosts()).filter(|host| leads(*host)).map(|host| format!("h{}", host + 1)).collect();
                (!leads(*host) || all.len() > 1)
                    .then(|| format!("led by {}", if all.is_empty() { "nobody".into() } else { all.join(", ") }))
            }
            Expect::Runs(host, kind) => {
                let found = member(*host).map_or("nothing", |member| member.log.kind().name());
                (found != kind).then(|| format!("it runs {found}"))
            }
            Expect::Down(host) => member(*host).map(|member| format!("{} runs there", member.id)),
            Expect::Halted(host, why) => {
                let mut stops = timeline.lines().iter().filter(|line| line.host == Some(*host));
                let stopped = stops.find_map(|line| line.text.strip_prefix("stops: "));
                let Some(stopped) = stopped else { return Some("it did not stop".to_owned()) };
                let name = kebab(stopped.split('(').next().unwrap_or(stopped));
                why.as_ref().filter(|why| **why != name).map(|_| format!("it stopped: {name}"))
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

/// `2ms` and `h1` as `2 ms` and `host 1`; what stands between quotes apart.
fn words(line: &str) -> (Vec<String>, Vec<String>) {
    let (mut words, mut quoted) = (Vec::new(), Vec::new());
    for (at, part) in line.split('"').enumerate() {
        if at % 2 == 1 {
            quoted.push(part.to_owned());
            continue;
        }
        for word in part.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty()) {
            let word = word.trim_end_matches(':');
            let digits = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
            if let Some(number) =
                word.strip_prefix('h').filter(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit()))
            {
                words.extend(["host".to_owned(), number.to_owned()]);
            } else if digits > 0 && matches!(&word[digits..], "ms" | "us" | "µs" | "ns" | "%") {
                words.extend([word[..digits].to_owned(), word[digits..].to_owned()]);
            } else if !word.is_empty() {
                words.push(word.to_owned());
            }
        }
    }
    (words, quoted)
}

const ORDINALS: [&str; 6] = ["first", "second", "third", "fourth", "fifth", "sixth"];

impl Reader {
    fn line(&mut self, at: usize, line: &str) -> Result<(), String> {
        let (words, quoted) = words(line);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        match words[..] {
            [] => Ok(()),
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
            _ => line.split(',').try_for_each(|setting| self.setting(at, setting.trim())),
        }
    }

    fn setting(&mut self, at: usize, setting: &str) -> Result<(), String> {
        let (words, _) = words(setting);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        match words[..] {
            [] => {}
            ["engine", name] => self.options.engine = options::parse_kind(name)?,
            ["policy", name] => self.options.policy = options::parse_policy(name)?,
            ["menu", name] => self.options.menu = name.parse()?,
            ["hosts", n] | [n, "hosts"] => {
                self.hosts = number(n)? as usize;
                if !(2..=32).contains(&self.hosts) {
                    return Err(format!("a scenario has 2 to 32 hosts, not {n}"));
                }
            }
            ["seed", n] => self.seed = number(n)?,
            ["snapshots"] => self.snapshots = true,
            ["clock", "of", "host", host, "gains", ppm, "ppm", "from", offset] => {
                let ppm: i64 = ppm.parse().map_err(|_| format!("not a number: {ppm}"))?;
                let offset_ns = number(offset)?;
                if ppm.abs() > PPM_MAX || offset_ns > TIME_MAX_NS {
                    return Err(format!("a clock gains at most {PPM_MAX} ppm either way, from at most {TIME_MAX_NS}"));
                }
                self.clocks.push((at, parse_host(host)?, Clock { ppm, offset_ns }));
            }
            ["faults", "end", "at", n, unit] => self.ends_ns = Some(parse_time(n, unit)?),
            _ => {
                return Err(format!(
                    "not something that a scenario says: {setting} (`N hosts`, `engine E`, `policy P`, `seed N`, `at T …`, `expect …`)"
                ));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Scenario, String> {
        let hosts = self.hosts;
        if !self.options.policy.suits(self.options.engine) {
            return Err(format!("{} cannot keep the policy {}", self.options.engine, self.options.policy));
        }
        if let Some((at, step, _)) =
            self.steps.iter().find(|(_, step, _)| step.act.highest_host().is_some_and(|host| host >= hosts))
        {
            return Err(format!("line {at}: there are {hosts} hosts: {}", step.act));
        }
        let mut clocks = vec![Clock { offset_ns: 1_000_000, ppm: 0 }; hosts];
        for (at, host, clock) in self.clocks {
            *clocks.get_mut(host).ok_or_else(|| format!("line {at}: there are {hosts} hosts"))? = clock;
        }
        self.steps.sort_by_key(|(_, step, _)| step.at_ns);
        let proposed: u64 = self
            .steps
            .iter()
            .map(|(_, step, _)| if let Act::Propose { values, .. } = step.act { u64::from(values) } else { 0 })
            .sum();
        if proposed > VALUES_MAX {
            return Err(format!("{proposed} values are proposed: a scenario has room for {VALUES_MAX}"));
        }
        // Clients count their values as they come.
        let mut values = Vec::new();
        for (at, step, names) in &self.steps {
            let Act::Propose { values: n, .. } = step.act else { continue };
            if let Some(name) = names.iter().find(|name| values.contains(*name)) {
                return Err(format!("line {at}: there is a \"{name}\" already"));
            }
            values.extend((0..n as usize).map(|nth| names.get(nth).cloned().unwrap_or_default()));
        }
        let mut expects = Vec::new();
        for (at, line) in self.expects {
            let expect = expectation(&line, &values).map_err(|why| format!("line {at}: {why}"))?;
            expects.push((line, expect));
        }
        let steps: Vec<_> = self.steps.into_iter().map(|(_, step, _)| step).collect();
        let last = steps.last().map_or(0, |step| step.at_ns);
        let faults_end_ns = self.ends_ns.unwrap_or(last + PERIOD_NS);
        let plan = Plan { seed: self.seed, options: self.options, clocks, steps, faults_end_ns, snapshots: self.snapshots };
        Ok(Scenario { plan, expects, values })
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}

fn act(words: &[&str], quoted: &[String]) -> Result<Act, String> {
    match words {
        ["host", host, "proposes"] if !quoted.is_empty() => {
            Ok(Act::Propose { host: parse_host(host)?, values: quoted.len() as u32 })
        }
        ["host", host, "joins"] => Ok(Act::Start { host: parse_host(host)? }),
        ["host", host, "is", "killed", "after", "its", nth, "send"] => {
            let nth =
                ORDINALS.iter().position(|name| name == nth).ok_or_else(|| format!("after its {nth} send (first to sixth)"))?;
            // At the next one.
            Ok(Act::Kill { host: parse_host(host)?, after: nth as u32 + 2 })
        }
        words => words.join(" ").parse(),
    }
}

fn expectation(line: &str, values: &[String]) -> Result<Expect, String> {
    let (words, quoted) = words(line);
    let words: Vec<_> = words.iter().map(String::as_str).skip(1).collect();
    let value = || match &quoted[..] {
        [name] => values
            .iter()
            .position(|value| value == name)
            .map(|at| at as u64 + 1)
            .ok_or_else(|| format!("nobody proposes \"{name}\"")),
        _ => Err(format!("one value at a time: {line}")),
    };
    let property = |name: &str| {
        let row = TABLE.iter().find(|row| row.name == name);
        row.map(|row| row.name).ok_or_else(|| format!("no such property: {name}"))
    };
    Ok(match words[..] {
        ["no", "violation"] => Expect::NoViolation,
        ["disagreement"] => Expect::Broken("agreement"),
        [name, "broken"] | ["violation", "of", name] => Expect::Broken(property(name)?),
        ["all", "alive", "apply"] => Expect::AppliesValue(None, value()?),
        ["nobody", "applies"] => Expect::Never(value()?),
        ["host", host, "applies"] => Expect::AppliesValue(Some(parse_host(host)?), value()?),
        ["host", host, "applies", n, "entries" | "entry"] => Expect::Applies(parse_host(host)?, number(n)?),
        ["host", host, "leads"] => Expect::Leads(parse_host(host)?),
        ["host", host, "runs", kind] => Expect::Runs(parse_host(host)?, options::parse_kind(kind)?.name().to_owned()),
        ["host", host, "is", "down"] => Expect::Down(parse_host(host)?),
        ["host", host, "stops", "safely"] => Expect::Halted(parse_host(host)?, None),
        ["host", host, "halted", why] => Expect::Halted(parse_host(host)?, Some(why.to_owned())),
        _ => return Err(format!("not something to expect: {}", words.join(" "))),
    })
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
    if plan.snapshots {
        let _ = writeln!(text, "snapshots");
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
            ("at 2ms h1 dances", "line 1: not something that can happen: host 1 dances"),
            ("expect h1 dances", "line 1: not something to expect"),
            ("at 2ms h1 proposes \"a\"\nexpect all alive apply \"b\"", "line 2: nobody proposes \"b\""),
            ("at 2ms h1 proposes \"a\"\nat 3ms h2 proposes \"a\"", "line 2: there is a \"a\" already"),
            ("expect speed broken", "line 1: no such property: speed"),
            ("1 hosts", "line 1: a scenario has 2 to 32 hosts, not 1"),
            ("engine lowi, policy fence", "lowi cannot keep the policy fence"),
            ("at 1ms h1 is killed after its last send", "line 1: after its last send"),
            ("a nice day", "line 1: not something that a scenario says: a nice day"),
        ] {
            let why = Scenario::parse(text).unwrap_err();
            assert!(why.contains(wanted), "{text}: {why}");
        }
    }
}
