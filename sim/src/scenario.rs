//! Worlds as text that reads like a notebook: what happens when, and what is expected.
//!
//! ```text
//! # The leader is killed while its proposal is on its way.
//! engine hsuc
//! policy trust-contract
//! hosts 3
//! seed 7
//! at 100 µs: host 1 proposes 1 values
//! at 120 µs: host 1 is killed after 2 outputs
//! faults end at 900 µs
//!
//! expect no violation
//! expect host 2 applies 2 entries
//! ```

use std::fmt::Write as _;

use crate::options::{self, Menu, Options};
use crate::plan::{Plan, Step, parse_host, parse_time};
use crate::time::{Clock, PERIOD_NS, micros};
use crate::world::{Outcome, World};

/// What a scenario expects of its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Everything holds.
    NoViolation,
    /// This property does not.
    Violation(String),
    /// The member on this host (from 0) has applied so many entries.
    Applies(usize, u64),
    /// There is no member on this host that runs.
    Down(usize),
    /// The member on this host stopped safely.
    Stops(usize),
}

/// A scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What happens.
    pub plan: Plan,
    /// What must come of it, with the lines that say so.
    pub expects: Vec<(String, Expect)>,
}

impl Scenario {
    /// Reads one.
    ///
    /// # Errors
    /// The line that makes no sense, and why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut options = Options { menu: Menu::Everything, ..Options::default() };
        let (mut seed, mut hosts, mut ends_ns, mut snapshots) = (1, 3_usize, None, false);
        let (mut steps, mut clocks, mut expects) = (Vec::new(), Vec::new(), Vec::new());
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let words: Vec<_> = line.split_whitespace().collect();
            let wrong = |why: String| format!("line {}: {why}", at + 1);
            let number = |text: &str| text.parse::<u64>().map_err(|_| wrong(format!("not a number: {text}")));
            match words[..] {
                [] => {}
                ["engine", name] => options.engine = options::parse_kind(name).map_err(wrong)?,
                ["policy", name] => options.policy = options::parse_policy(name).map_err(wrong)?,
                ["menu", name] => options.menu = name.parse().map_err(wrong)?,
                ["hosts", n] => hosts = number(n)? as usize,
                ["seed", n] => seed = number(n)?,
                ["snapshots"] => snapshots = true,
                ["clock", "of", "host", host, "gains", ppm, "ppm", "from", offset] => {
                    let ppm = ppm.parse().map_err(|_| wrong(format!("not a number: {ppm}")))?;
                    clocks.push((parse_host(host).map_err(wrong)?, Clock { ppm, offset_ns: number(offset)? }));
                }
                ["faults", "end", "at", n, unit] => ends_ns = Some(parse_time(n, unit).map_err(wrong)?),
                ["at", n, unit, ..] if unit.ends_with(':') => {
                    let at_ns = parse_time(n, unit.trim_end_matches(':')).map_err(wrong)?;
                    let act = line.split_once(": ").map_or("", |(_, act)| act).parse().map_err(wrong)?;
                    steps.push(Step { at_ns, act });
                }
                ["expect", ..] => expects.push((line.to_owned(), expectation(&words[1..]).map_err(wrong)?)),
                _ => return Err(wrong(format!("not something that a scenario says: {line}"))),
            }
        }
        if !(1..=32).contains(&hosts) {
            return Err(format!("a scenario has 1 to 32 hosts, not {hosts}"));
        }
        if !options.policy.suits(options.engine) {
            return Err(format!("{} cannot keep the policy {}", options.engine, options.policy));
        }
        if let Some(step) = steps.iter().find(|step| step.act.highest_host().is_some_and(|host| host >= hosts)) {
            return Err(format!("there are {hosts} hosts: {}", step.act));
        }
        let mut all = vec![Clock { offset_ns: 1_000_000, ppm: 0 }; hosts];
        for (host, clock) in clocks {
            *all.get_mut(host).ok_or_else(|| format!("there are {hosts} hosts"))? = clock;
        }
        steps.sort_by_key(|step| step.at_ns);
        let last = steps.last().map_or(0, |step| step.at_ns);
        let faults_end_ns = ends_ns.unwrap_or(last + PERIOD_NS);
        Ok(Self { plan: Plan { seed, options, clocks: all, steps, faults_end_ns, snapshots }, expects })
    }

    /// Which expectations were not met, and why.
    #[must_use]
    pub fn judge(&self, outcome: &Outcome, world: Option<&World>) -> Vec<String> {
        let unmet = |(line, expect): &(String, Expect)| {
            let member = |host: usize| world.and_then(|world| world.member_on(host)).filter(|member| member.halted.is_none());
            let found = match expect {
                Expect::NoViolation => outcome.violation.as_ref().map(ToString::to_string),
                Expect::Violation(name) => match &outcome.violation {
                    Some(violation) if violation.property == name => None,
                    Some(violation) => Some(violation.to_string()),
                    None => Some("everything held".to_owned()),
                },
                Expect::Applies(host, n) => {
                    let position = member(*host).map(|member| member.no_gap.position());
                    (position != Some(*n)).then(|| position.map_or("nobody is there".to_owned(), |p| format!("it applied {p}")))
                }
                Expect::Down(host) => member(*host).map(|member| format!("{} runs there", member.id)),
                Expect::Stops(host) => (!world.is_some_and(|world| world.halted_on(*host))).then(|| "it did not stop".to_owned()),
            };
            found.map(|found| format!("{line}: {found}"))
        };
        self.expects.iter().filter_map(unmet).collect()
    }
}

fn expectation(words: &[&str]) -> Result<Expect, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("not a number: {text}"));
    Ok(match words {
        ["no", "violation"] => Expect::NoViolation,
        ["violation", "of", name] => Expect::Violation((*name).to_owned()),
        ["host", host, "applies", n, "entries" | "entry"] => Expect::Applies(parse_host(host)?, number(n)?),
        ["host", host, "is", "down"] => Expect::Down(parse_host(host)?),
        ["host", host, "stops", "safely"] => Expect::Stops(parse_host(host)?),
        _ => return Err(format!("not something to expect: {}", words.join(" "))),
    })
}

/// A plan as the text of a scenario: the same world when it is read.
#[must_use]
pub fn write(plan: &Plan) -> String {
    let mut text = String::new();
    // Writing into a string never fails.
    let _ = writeln!(text, "engine {}\npolicy {}\nmenu {}", plan.options.engine, plan.options.policy, plan.options.menu);
    let _ = writeln!(text, "hosts {}\nseed {}", plan.hosts(), plan.seed);
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
}
