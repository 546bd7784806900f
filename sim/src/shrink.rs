//! A failing plan made small: what is not needed to fail is taken out, one thing after the other.

use crate::plan::{Act, Plan};
use crate::run::run;

/// The smallest plan found that breaks the same property.
#[must_use]
pub fn shrink(plan: &Plan) -> Plan {
    let Some(violation) = run(plan).violation else { return plan.clone() };
    let fails = |plan: &Plan| run(plan).violation.is_some_and(|other| other.property == violation.property);
    let mut small = plan.clone();
    let mut changed = true;
    while changed {
        changed = false;
        for at in (0..small.steps.len()).rev() {
            let mut less = small.clone();
            less.steps.remove(at);
            changed |= adopt(&mut small, less, &fails);
        }
        for at in 0..small.steps.len() {
            for act in simpler(small.steps[at].act) {
                let mut less = small.clone();
                less.steps[at].act = act;
                changed |= adopt(&mut small, less, &fails);
            }
        }
        let used = small.steps.iter().filter_map(|step| step.act.highest_host()).max().map_or(2, |host| host + 1);
        if small.clocks.len() > used.max(2) {
            let mut less = small.clone();
            less.clocks.pop();
            changed |= adopt(&mut small, less, &fails);
        }
        let last = small.steps.iter().map(|step| step.at_ns).max().unwrap_or(0) + 1;
        if last < small.faults_end_ns {
            let less = Plan { faults_end_ns: last, ..small.clone() };
            changed |= adopt(&mut small, less, &fails);
        }
        if small.snapshots {
            let less = Plan { snapshots: false, ..small.clone() };
            changed |= adopt(&mut small, less, &fails);
        }
    }
    small
}

fn adopt(small: &mut Plan, less: Plan, fails: &impl Fn(&Plan) -> bool) -> bool {
    let better = less != *small && fails(&less);
    if better {
        *small = less;
    }
    better
}

fn simpler(act: Act) -> Vec<Act> {
    match act {
        Act::Propose { host, values } if values > 1 => vec![Act::Propose { host, values: 1 }],
        Act::PowerOff { host, after } if after > 0 => vec![Act::PowerOff { host, after: 0 }, Act::Kill { host, after }],
        Act::PowerOff { host, after } => vec![Act::Kill { host, after }],
        Act::Kill { host, after } if after > 0 => vec![Act::Kill { host, after: 0 }],
        _ => Vec::new(),
    }
}
