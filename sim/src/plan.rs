//! What is going to happen in a world: hosts, clocks, proposals, faults. A plan is made from a seed, taken apart by the shrinker, and written and
//! read as text.

use std::fmt;
use std::str::FromStr;

use fide_proto::consensus::Kind;
use fide_wire::PATHS;

use crate::options::{Menu, Options};
use crate::rng::Rng;
use crate::time::{Clock, PERIOD_NS, US, micros};
use fide_proto::consensus::policy::Policy;

/// One thing that happens. Hosts count from 0 here and from 1 in texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A client hands so many values to the member on this host; one that gets no answer hands them to another.
    Propose {
        /// Where.
        host: usize,
        /// How many.
        values: u32,
    },
    /// The member's process is killed, after so many more things that it has sent or written.
    Kill {
        /// Where.
        host: usize,
        /// After how many outputs.
        after: u32,
    },
    /// The member's process is killed behind so many more things that it has sent: before its next output, whatever that is.
    KillBehind {
        /// Where.
        host: usize,
        /// Behind how many.
        sends: u32,
    },
    /// The host loses its power.
    PowerOff {
        /// Which.
        host: usize,
        /// After how many outputs of its member.
        after: u32,
    },
    /// The host boots if it is off, and a new member joins from it if there is none.
    Start {
        /// Which.
        host: usize,
    },
    /// The member's process stands still, its host does not.
    PauseProcess {
        /// Where.
        host: usize,
        /// For how long.
        ns: u64,
    },
    /// Kernel and all stand still.
    PauseHost {
        /// Which.
        host: usize,
        /// For how long.
        ns: u64,
    },
    /// One cable of a host.
    CutPath {
        /// Whose.
        host: usize,
        /// Which.
        path: usize,
        /// For how long.
        ns: u64,
    },
    /// Both cables of a host: beyond the contract.
    CutHost {
        /// Whose.
        host: usize,
        /// For how long.
        ns: u64,
    },
    /// Copies are lost on a path.
    Lose {
        /// Which.
        path: usize,
        /// How many of them.
        percent: u64,
        /// For how long.
        ns: u64,
    },
    /// Copies arrive twice on a path.
    Double {
        /// Which.
        path: usize,
        /// How many of them.
        percent: u64,
        /// For how long.
        ns: u64,
    },
    /// Copies are late on a path, and overtaken: beyond the contract.
    Delay {
        /// Which.
        path: usize,
        /// How many of them.
        percent: u64,
        /// By at most that much.
        by_ns: u64,
        /// For how long.
        ns: u64,
    },
    /// Nothing comes over the reliable link, nor a notice of a crash, until later.
    Stall {
        /// From.
        from: usize,
        /// To.
        to: usize,
        /// For how long.
        ns: u64,
    },
    /// The member on this host leaves.
    Leave {
        /// Which.
        host: usize,
    },
    /// The member on this host has the group change its engine.
    Switch {
        /// Which.
        host: usize,
        /// To what.
        to: Kind,
    },
    /// The witness hears nothing and answers nobody.
    WitnessGone {
        /// For how long.
        ns: u64,
    },
    /// From now on the witness takes the word of whoever asks first, and does not look whether the other lives: a mere tie-breaker, beyond what
    /// the policy assumes (`fide_proto::consensus::policy`).
    WitnessTakesSides,
}

/// Something and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When.
    pub at_ns: u64,
    /// What.
    pub act: Act,
}

/// All that a world is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What decides delays, losses and everything that is not planned.
    pub seed: u64,
    /// Engine, policy, menu.
    pub options: Options,
    /// Their clocks: one for each host.
    pub clocks: Vec<Clock>,
    /// What happens, by time.
    pub steps: Vec<Step>,
    /// When whatever is broken is mended, and the liveness phase begins.
    pub faults_end_ns: u64,
    /// Whether applications make snapshots now and then.
    pub snapshots: bool,
    /// Whether clients run beside the members: a value goes to that of its host also while that is cut off, and to another one only when it is gone.
    /// (Those of seeds come over the network, and go to whoever can be reached.)
    pub clients_stay: bool,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn generate(seed: u64, options: Options) -> Self {
        let mut rng = Rng::new(seed);
        // Of two, nobody may crash whose vote is needed: where a majority must live, few worlds are so small.
        let least = if options.needs_majority() && rng.chance(90) { 3 } else { 2 };
        let drawn = least + rng.below(6 - least);
        let hosts = options.hosts.map_or(drawn as usize, usize::from);
        let clocks =
            (0..hosts).map(|_| Clock { offset_ns: 1_000_000 + rng.below(1_000_000), ppm: rng.below(401) as i64 - 200 }).collect();
        let mut faults_end_ns = (8 + rng.below(8)) * PERIOD_NS;
        if options.menu == Menu::SlowLinks {
            faults_end_ns *= SLOWER;
        }
        let snapshots = rng.chance(30);
        let mut draw = Draw {
            rng,
            options,
            hosts,
            end_ns: faults_end_ns,
            bad_path: 0,
            power_offs: 0,
            cut: false,
            leaves: 0,
            crashed: Vec::new(),
        };
        draw.bad_path = draw.rng.below(PATHS as u64) as usize;
        let mut steps = draw.steps();
        steps.sort_by_key(|step| step.at_ns);
        Self { seed, options, clocks, steps, faults_end_ns, snapshots, clients_stay: false }
    }

    /// How many hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.clocks.len()
    }
}

/// So many times longer does everything take where links stall for milliseconds.
const SLOWER: u64 = 4;

struct Draw {
    rng: Rng,
    options: Options,
    hosts: usize,
    end_ns: u64,
    /// The path on which all single faults of a world happen: two paths failing at once is the critical compound failure.
    bad_path: usize,
    power_offs: u32,
    cut: bool,
    leaves: u32,
    /// Where something crashes.
    crashed: Vec<usize>,
}

impl Draw {
    /// Some host is behind by milliseconds, because nothing comes to it, while others change the group.
    fn slow_links(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        let behind = self.host();
        for other in (0..self.hosts).filter(|other| *other != behind) {
            for (chance, from, to) in [(60, other, behind), (25, behind, other)] {
                if self.rng.chance(chance) {
                    let ns = 2 * PERIOD_NS + self.rng.below(38 * PERIOD_NS);
                    steps.push(Step { at_ns: self.rng.below(self.end_ns / 2), act: Act::Stall { from, to, ns } });
                }
            }
        }
        for _ in 0..2 + self.rng.below(6) {
            let act = Act::Propose { host: self.host(), values: 1 + self.rng.below(3) as u32 };
            steps.push(Step { at_ns: self.rng.below(self.end_ns), act });
        }
        for _ in 0..2 + self.rng.below(4) {
            let at_ns = self.rng.below(self.end_ns * 2 / 3);
            if self.rng.chance(30) {
                self.crash(at_ns, &mut steps);
                continue;
            }
            // Three of five may leave, and one of two.
            let act = match self.of(Menu::SlowLinks) {
                Act::Leave { .. } if self.leaves as usize * 2 > self.hosts => Act::Start { host: behind },
                act => act,
            };
            steps.push(Step { at_ns, act });
        }
        steps
    }

    fn steps(&mut self) -> Vec<Step> {
        if self.options.menu == Menu::SlowLinks {
            return self.slow_links();
        }
        let mut steps = Vec::new();
        for _ in 0..1 + self.rng.below(4) {
            let act = Act::Propose { host: self.host(), values: 1 + self.rng.below(3) as u32 };
            steps.push(Step { at_ns: self.rng.below(self.end_ns), act });
        }
        for _ in 0..1 + self.rng.below(4) {
            let at_ns = self.rng.below(self.end_ns);
            self.fault(at_ns, &mut steps);
        }
        steps
    }

    fn host(&mut self) -> usize {
        self.rng.below(self.hosts as u64) as usize
    }

    fn long(&mut self) -> u64 {
        let most = if self.rng.chance(60) { 2 * PERIOD_NS } else { 10 * PERIOD_NS };
        5 * US + self.rng.below(most)
    }

    fn after(&mut self) -> u32 {
        if self.rng.chance(50) { 0 } else { self.rng.below(12) as u32 }
    }

    fn fault(&mut self, at_ns: u64, steps: &mut Vec<Step>) {
        let menu = self.options.menu;
        if self.options.policy == Policy::Witness && self.rng.chance(15) {
            let ns = 10 * self.long();
            steps.push(Step { at_ns: self.rng.below(self.end_ns), act: Act::WitnessGone { ns } });
        }
        let crash = self.rng.below(100);
        if crash < 45 || menu == Menu::WithinContract {
            self.crash(at_ns, steps);
            return;
        }
        let among: &[Menu] = match menu {
            Menu::Everything => &[Menu::Pauses, Menu::NetworkFaults, Menu::BeyondContract, Menu::Reconfigurations],
            Menu::BeyondContract => &[Menu::Pauses, Menu::NetworkFaults, Menu::BeyondContract, Menu::BeyondContract],
            _ => &[],
        };
        let kind = if among.is_empty() { menu } else { *self.rng.pick(among) };
        let act = self.of(kind);
        steps.push(Step { at_ns, act });
    }

    fn crash(&mut self, at_ns: u64, steps: &mut Vec<Step>) {
        let mut host = self.host();
        // Without a majority there is nothing to be judged at the end: most worlds keep one.
        if self.options.needs_majority() {
            let minority = (self.hosts - 1) / 2;
            if self.crashed.len() >= minority.max(1) && self.rng.chance(85) {
                host = self.crashed[0];
            } else {
                self.crashed.push(host);
            }
        }
        let after = self.after();
        // Hosts that all go dark within a few timeouts leave the last one isolated, without a verdict ("What isolation costs" in the detector).
        if self.power_offs == 0 && self.rng.chance(40) {
            self.power_offs += 1;
            steps.push(Step { at_ns, act: Act::PowerOff { host, after } });
        } else {
            steps.push(Step { at_ns, act: Act::Kill { host, after } });
        }
        let changes = self.options.menu == Menu::Reconfigurations || self.options.menu.changes_engines();
        if self.rng.chance(if changes { 60 } else { 25 }) {
            let slower = if self.options.menu == Menu::SlowLinks { SLOWER } else { 1 };
            let later = at_ns + self.rng.below(6 * slower * PERIOD_NS);
            steps.push(Step { at_ns: later, act: Act::Start { host } });
        }
    }

    fn of(&mut self, kind: Menu) -> Act {
        let (host, ns) = (self.host(), self.long());
        let percent = 5 + self.rng.below(90);
        match kind {
            Menu::WithinContract => Act::Stall { from: host, to: self.host(), ns },
            Menu::Pauses if self.rng.chance(50) => Act::PauseProcess { host, ns },
            Menu::Pauses => Act::PauseHost { host, ns },
            Menu::NetworkFaults => match self.rng.below(4) {
                // Of one host at a time: one whose cable is cut on this path hears the others still.
                0 if !self.cut => {
                    self.cut = true;
                    Act::CutPath { host, path: self.bad_path, ns }
                }
                1 => Act::Double { path: self.bad_path, percent, ns },
                2 => Act::Stall { from: host, to: self.host(), ns },
                _ => Act::Lose { path: self.bad_path, percent, ns },
            },
            Menu::BeyondContract => match self.rng.below(4) {
                0 => Act::CutHost { host, ns },
                1 => {
                    let by_ns = 10 * US + self.rng.below(4 * PERIOD_NS);
                    Act::Delay { path: self.rng.below(PATHS as u64) as usize, percent, by_ns, ns }
                }
                2 => Act::CutPath { host, path: self.rng.below(PATHS as u64) as usize, ns },
                _ => Act::Lose { path: self.rng.below(PATHS as u64) as usize, percent, ns },
            },
            Menu::Reconfigurations | Menu::EngineChanges | Menu::SlowLinks | Menu::Everything => match self.rng.below(4) {
                0 if self.leaves == 0 || kind == Menu::SlowLinks => {
                    self.leaves += 1;
                    Act::Leave { host }
                }
                0 | 1 => Act::Start { host },
                _ if !kind.changes_engines() => Act::Start { host },
                _ => {
                    let kinds = self.options.switch_to();
                    if kinds.is_empty() { Act::Start { host } } else { Act::Switch { host, to: *self.rng.pick(&kinds) } }
                }
            },
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let h = |host: usize| host + 1;
        let after = |after: u32| match after {
            0 => String::new(),
            n => format!(" after {n} outputs"),
        };
        match *self {
            Act::Propose { host, values } => write!(f, "host {} proposes {values} values", h(host)),
            Act::Kill { host, after: n } => write!(f, "host {} is killed{}", h(host), after(n)),
            Act::KillBehind { host, sends } => write!(f, "host {} is killed after {sends} sends", h(host)),
            Act::PowerOff { host, after: n } => write!(f, "host {} loses power{}", h(host), after(n)),
            Act::Start { host } => write!(f, "host {} starts", h(host)),
            Act::PauseProcess { host, ns } => write!(f, "process of host {} pauses for {}", h(host), micros(ns)),
            Act::PauseHost { host, ns } => write!(f, "host {} pauses for {}", h(host), micros(ns)),
            Act::CutPath { host, path, ns } => write!(f, "path {path} of host {} is cut for {}", h(host), micros(ns)),
            Act::CutHost { host, ns } => write!(f, "host {} is cut off for {}", h(host), micros(ns)),
            Act::Lose { path, percent, ns } => write!(f, "path {path} loses {percent} % for {}", micros(ns)),
            Act::Double { path, percent, ns } => write!(f, "path {path} doubles {percent} % for {}", micros(ns)),
            Act::Delay { path, percent, by_ns, ns } => {
                write!(f, "path {path} delays {percent} % by {} for {}", micros(by_ns), micros(ns))
            }
            Act::Stall { from, to, ns } => write!(f, "link {} to {} stalls for {}", h(from), h(to), micros(ns)),
            Act::Leave { host } => write!(f, "host {} leaves", h(host)),
            Act::Switch { host, to } => write!(f, "host {} switches to {to}", h(host)),
            Act::WitnessGone { ns } => write!(f, "the witness is gone for {}", micros(ns)),
            Act::WitnessTakesSides => write!(f, "the witness takes sides"),
        }
    }
}

/// `12 µs`, `3 ms`, `1.5 µs`.
pub(crate) fn parse_time(number: &str, unit: &str) -> Result<u64, String> {
    let scale = match unit {
        "ns" => 1.0,
        "µs" | "us" => 1e3,
        "ms" => 1e6,
        _ => return Err(format!("not a unit of time: {unit} (ns, µs, ms)")),
    };
    let ns = number.parse::<f64>().map_err(|_| format!("not a number: {number}"))? * scale;
    // Not a number is not in it either.
    if !(0.0..=1e11).contains(&ns) {
        return Err(format!("not a time from 0 to 100000 ms: {number} {unit}"));
    }
    Ok(ns.round() as u64)
}

pub(crate) fn parse_host(text: &str) -> Result<usize, String> {
    text.parse::<usize>().ok().and_then(|n| n.checked_sub(1)).ok_or_else(|| format!("not a host, they count from 1: {text}"))
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}

fn parse_path(text: &str) -> Result<usize, String> {
    number::<usize>(text).and_then(|path| if path < PATHS { Ok(path) } else { Err(format!("no such path: {path}")) })
}

impl FromStr for Act {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<_> = text.split_whitespace().collect();
        Ok(match words[..] {
            ["host", host, "proposes", values, "values" | "value"] => {
                Act::Propose { host: parse_host(host)?, values: number(values)? }
            }
            ["host", host, "is", "killed"] => Act::Kill { host: parse_host(host)?, after: 0 },
            ["host", host, "is", "killed", "after", after, "outputs" | "output"] => {
                Act::Kill { host: parse_host(host)?, after: number(after)? }
            }
            ["host", host, "is", "killed", "after", sends, "sends" | "send"] => {
                Act::KillBehind { host: parse_host(host)?, sends: number(sends)? }
            }
            ["host", host, "loses", "power"] => Act::PowerOff { host: parse_host(host)?, after: 0 },
            ["host", host, "loses", "power", "after", after, "outputs" | "output"] => {
                Act::PowerOff { host: parse_host(host)?, after: number(after)? }
            }
            ["host", host, "starts"] => Act::Start { host: parse_host(host)? },
            ["process", "of", "host", host, "pauses", "for", n, unit] => {
                Act::PauseProcess { host: parse_host(host)?, ns: parse_time(n, unit)? }
            }
            ["host", host, "pauses", "for", n, unit] => Act::PauseHost { host: parse_host(host)?, ns: parse_time(n, unit)? },
            ["path", path, "of", "host", host, "is", "cut", "for", n, unit] => {
                Act::CutPath { host: parse_host(host)?, path: parse_path(path)?, ns: parse_time(n, unit)? }
            }
            ["host", host, "is", "cut", "off", "for", n, unit] => {
                Act::CutHost { host: parse_host(host)?, ns: parse_time(n, unit)? }
            }
            ["path", path, "loses", percent, "%", "for", n, unit] => {
                Act::Lose { path: parse_path(path)?, percent: number(percent)?, ns: parse_time(n, unit)? }
            }
            ["path", path, "doubles", percent, "%", "for", n, unit] => {
                Act::Double { path: parse_path(path)?, percent: number(percent)?, ns: parse_time(n, unit)? }
            }
            ["path", path, "delays", percent, "%", "by", by, by_unit, "for", n, unit] => Act::Delay {
                path: parse_path(path)?,
                percent: number(percent)?,
                by_ns: parse_time(by, by_unit)?,
                ns: parse_time(n, unit)?,
            },
            ["link", from, "to", to, "stalls", "for", n, unit] => {
                Act::Stall { from: parse_host(from)?, to: parse_host(to)?, ns: parse_time(n, unit)? }
            }
            ["host", host, "leaves"] => Act::Leave { host: parse_host(host)? },
            ["host", host, "switches", "to", kind] => {
                Act::Switch { host: parse_host(host)?, to: crate::options::parse_kind(kind)? }
            }
            ["the", "witness", "is", "gone", "for", n, unit] => Act::WitnessGone { ns: parse_time(n, unit)? },
            ["the", "witness", "takes", "sides"] => Act::WitnessTakesSides,
            _ => return Err(format!("not something that can happen: {text}")),
        })
    }
}

impl Act {
    /// For how long, if it says so.
    #[must_use]
    pub fn lasts_ns(&self) -> u64 {
        match *self {
            Act::PauseProcess { ns, .. }
            | Act::PauseHost { ns, .. }
            | Act::CutPath { ns, .. }
            | Act::CutHost { ns, .. }
            | Act::Lose { ns, .. }
            | Act::Double { ns, .. }
            | Act::Delay { ns, .. }
            | Act::Stall { ns, .. }
            | Act::WitnessGone { ns } => ns,
            _ => 0,
        }
    }

    /// The highest host that it speaks of.
    #[must_use]
    pub fn highest_host(&self) -> Option<usize> {
        match *self {
            Act::Propose { host, .. }
            | Act::Kill { host, .. }
            | Act::KillBehind { host, .. }
            | Act::PowerOff { host, .. }
            | Act::Start { host }
            | Act::PauseProcess { host, .. }
            | Act::PauseHost { host, .. }
            | Act::CutPath { host, .. }
            | Act::CutHost { host, .. }
            | Act::Leave { host }
            | Act::Switch { host, .. } => Some(host),
            Act::Stall { from, to, .. } => Some(from.max(to)),
            Act::Lose { .. } | Act::Double { .. } | Act::Delay { .. } | Act::WitnessGone { .. } | Act::WitnessTakesSides => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_happen_reads_back() {
        for menu in Menu::ALL {
            for seed in 0..50 {
                let options = Options { menu, ..Options::default() };
                for step in Plan::generate(seed, options).steps {
                    let text = step.act.to_string();
                    assert_eq!(text.parse(), Ok(step.act), "{text}");
                }
            }
        }
        assert!("host 0 starts".parse::<Act>().is_err() && "path 2 loses 3 % for 1 ms".parse::<Act>().is_err());
    }
}
