//! A failing plan made smaller while the same property is still violated: what is left is what the failure needs.
//!
//! Greedy and deterministic: of all [`simpler`] plans the first one that fails in the same way is taken, until none does (a *local minimum*) or the
//! budget of worlds is used up. Taking something away shifts every number that is drawn after it, so each plan is also tried with other draws:
//! the seed of what is left need not be the one that was found.

use crate::invariants::Violation;
use crate::plan::{Act, Plan, Step};
use crate::run;
use crate::time::US;

/// Worlds that a shrinking may take.
pub const BUDGET: u32 = 20_000;
/// With so many other draws a plan is tried.
const DRAWS: u64 = 6;
/// No pause or cut is made shorter.
const SHORTEST_NS: u64 = 10 * US;

/// What is left of a failing plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk {
    /// The smallest plan that was found.
    pub plan: Plan,
    /// What is violated in it.
    pub violation: Violation,
    /// How many worlds it took.
    pub runs: u32,
    /// Nothing simpler fails; else the budget was used up.
    pub is_minimum: bool,
}

/// Shrinks a plan whose world violates something that is promised. Nothing if it does not.
#[must_use]
pub fn shrink(plan: &Plan) -> Option<Shrunk> {
    let violation = run::run(plan).violation?;
    Some(shrink_by(plan, violation, BUDGET, |plan| run::run(plan).violation))
}

/// Shrinks a plan in whose world this property breaks, whether it is promised or not. Nothing if it holds.
#[must_use]
pub fn shrink_to(plan: &Plan, property: &str) -> Option<Shrunk> {
    let violation = run::breaks(plan, property)?;
    Some(shrink_by(plan, violation, BUDGET, |plan| run::breaks(plan, property)))
}

/// Takes the plan apart for as long as `fails` finds the same property violated, in at most `budget` worlds.
#[must_use]
pub fn shrink_by(plan: &Plan, violation: Violation, budget: u32, mut fails: impl FnMut(&Plan) -> Option<Violation>) -> Shrunk {
    let mut best = Shrunk { plan: plan.clone(), violation, runs: 0, is_minimum: false };
    'smaller: loop {
        for candidate in simpler(&best.plan) {
            for draw in draws(&candidate) {
                if best.runs == budget {
                    return best;
                }
                best.runs += 1;
                if let Some(found) = fails(&draw).filter(|found| found.property == best.violation.property) {
                    best.plan = draw;
                    best.violation = found;
                    continue 'smaller;
                }
            }
        }
        best.is_minimum = true;
        return best;
    }
}

/// This plan, and the same with other draws.
pub fn draws(plan: &Plan) -> impl Iterator<Item = Plan> + '_ {
    (0..=DRAWS).map(|by| Plan { seed: if by == 0 { plan.seed } else { by }, ..plan.clone() })
}

/// Every plan that is one thing simpler, the boldest first. None of them leads back: each has fewer steps or hosts, or smaller numbers.
#[must_use]
pub fn simpler(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    let with = |steps: Vec<Step>| Plan { steps, ..plan.clone() };
    let n = plan.steps.len();
    if n > 3 {
        all.push(with(plan.steps[..n / 2].to_vec()));
        all.push(with(plan.steps[n / 2..].to_vec()));
    }
    for at in 0..n {
        let mut steps = plan.steps.clone();
        steps.remove(at);
        all.push(with(steps));
    }
    if plan.hosts() > 2 {
        all.extend((0..plan.hosts()).rev().map(|host| without(plan, host)));
    }
    if plan.snapshots {
        all.push(Plan { snapshots: false, ..plan.clone() });
    }
    if plan.clocks.iter().any(|clock| clock.ppm != 0) {
        let mut quiet = plan.clone();
        quiet.clocks.iter_mut().for_each(|clock| clock.ppm = 0);
        all.push(quiet);
    }
    for at in 0..n {
        for act in simpler_acts(plan.steps[at].act) {
            let mut steps = plan.steps.clone();
            steps[at].act = act;
            all.push(with(steps));
        }
        // A time that is easier to read.
        for round in [100 * US, 10 * US, US] {
            let at_ns = plan.steps[at].at_ns / round * round;
            if at_ns != plan.steps[at].at_ns {
                let mut steps = plan.steps.clone();
                steps[at].at_ns = at_ns;
                steps.sort_by_key(|step| step.at_ns);
                all.push(with(steps));
            }
        }
    }
    all
}

/// The same world with one host fewer.
fn without(plan: &Plan, gone: usize) -> Plan {
    let mut plan = plan.clone();
    plan.clocks.remove(gone);
    plan.options.hosts = plan.options.hosts.map(|hosts| hosts - 1);
    plan.steps.retain(|step| !hosts_of(step.act).contains(&Some(gone)));
    for step in &mut plan.steps {
        rename(&mut step.act, |host| if host > gone { host - 1 } else { host });
    }
    plan
}

fn hosts_of(mut act: Act) -> [Option<usize>; 2] {
    let mut hosts = [None; 2];
    let mut at = 0;
    rename(&mut act, |host| {
        hosts[at] = Some(host);
        at += 1;
        host
    });
    hosts
}

fn rename(act: &mut Act, mut to: impl FnMut(usize) -> usize) {
    match act {
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
        | Act::Switch { host, .. } => *host = to(*host),
        Act::Stall { from, to: other, .. } => {
            *from = to(*from);
            *other = to(*other);
        }
        Act::Lose { .. } | Act::Double { .. } | Act::Delay { .. } | Act::WitnessGone { .. } | Act::WitnessTakesSides => {}
    }
}

/// The same with a smaller number.
fn simpler_acts(act: Act) -> Vec<Act> {
    let half = |ns: u64| (ns / 2 >= SHORTEST_NS).then_some(ns / 2 / US * US);
    let after = |n: u32| [0, n / 2, n.saturating_sub(1)].into_iter().filter(move |less| *less < n);
    match act {
        Act::Propose { host, values } if values > 1 => {
            vec![Act::Propose { host, values: 1 }, Act::Propose { host, values: values - 1 }]
        }
        Act::Kill { host, after: n } => after(n).map(|after| Act::Kill { host, after }).collect(),
        Act::KillBehind { host, sends: n } => after(n).map(|sends| Act::KillBehind { host, sends }).collect(),
        Act::PowerOff { host, after: n } => {
            let kill = Act::Kill { host, after: n };
            after(n).map(|after| Act::PowerOff { host, after }).chain([kill]).collect()
        }
        Act::PauseProcess { host, ns } => half(ns).map(|ns| Act::PauseProcess { host, ns }).into_iter().collect(),
        Act::PauseHost { host, ns } => half(ns).map(|ns| Act::PauseHost { host, ns }).into_iter().collect(),
        Act::CutPath { host, path, ns } => half(ns).map(|ns| Act::CutPath { host, path, ns }).into_iter().collect(),
        Act::CutHost { host, ns } => half(ns).map(|ns| Act::CutHost { host, ns }).into_iter().collect(),
        Act::Lose { path, percent, ns } => half(ns).map(|ns| Act::Lose { path, percent, ns }).into_iter().collect(),
        Act::Double { path, percent, ns } => half(ns).map(|ns| Act::Double { path, percent, ns }).into_iter().collect(),
        Act::Delay { path, percent, by_ns, ns } => {
            let shorter = half(ns).map(|ns| Act::Delay { path, percent, by_ns, ns });
            let sooner = half(by_ns).map(|by_ns| Act::Delay { path, percent, by_ns, ns });
            shorter.into_iter().chain(sooner).collect()
        }
        Act::Stall { from, to, ns } => half(ns).map(|ns| Act::Stall { from, to, ns }).into_iter().collect(),
        Act::WitnessGone { ns } => half(ns).map(|ns| Act::WitnessGone { ns }).into_iter().collect(),
        Act::Propose { .. } | Act::Start { .. } | Act::Leave { .. } | Act::Switch { .. } | Act::WitnessTakesSides => Vec::new(),
    }
}
