//! What can go wrong, and when.

use super::Profile;
use super::orders::Order;
use super::shell::Point;
use crate::detection::faults::Fault;
use crate::detection::host::MS;
use crate::rng::Rng;
use crate::time::US;
use fide_proto::consensus::Kind;

/// When the first fault may begin, and the last one.
const FIRST_NS: u64 = 5 * MS;
pub(super) const LAST_NS: u64 = 700 * MS;
/// The longest fault.
pub(super) const LONGEST_NS: u64 = 400 * MS;

/// What befalls hosts, agents and cables, and what operators do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// As in simulations without groups.
    Fault(Fault),
    /// An agent is stopped in the middle of a loop iteration.
    StopAt { host: usize, at: Point, ns: u64 },
    /// An agent is stopped there, and killed before it goes on.
    KillAt { host: usize, at: Point, back_after: u64 },
    /// Copies on both paths come twice, are late, or are lost, by so many percent.
    Trouble { doubled: u64, late: (u64, u64), lost: u64, ns: u64 },
    /// Nothing passes between these hosts (bits) and the others.
    Split { hosts: u64, ns: u64 },
    /// All agents are killed, one after the other within this time, and come back.
    KillAll { within: u64 },
    /// An operator's order.
    Order { host: usize, group: usize, order: Order },
}

/// A duration: mostly short, now and then longer than everybody's patience.
fn long(rng: &mut Rng) -> u64 {
    let most = match rng.below(100) {
        0..40 => 4 * MS,
        40..80 => 60 * MS,
        _ => LONGEST_NS - 100 * US,
    };
    100 * US + rng.below(most)
}

pub(super) fn plan(rng: &mut Rng, profile: Profile, hosts: usize, groups: usize) -> Vec<(u64, Act)> {
    let n = 1 + rng.below(9);
    // Faults that follow each other closely find what single ones do not.
    let (from, within) = match rng.below(3) {
        0 => (FIRST_NS, LAST_NS - FIRST_NS),
        1 => (250 * MS + rng.below(200 * MS), 30 * MS),
        _ => (FIRST_NS + rng.below(500 * MS), 150 * MS),
    };
    // The configuration's groups begin after half a second.
    let (from, within) = if profile == Profile::Outages { (400 * MS, 2_000 * MS) } else { (from, within) };
    // Mostly somebody is spared, so that the group outlives the faults.
    let spared = rng.chance(80).then(|| rng.below(hosts as u64) as usize);
    let mut plan = Vec::new();
    for _ in 0..n {
        let host = rng.below(hosts as u64) as usize;
        let host = if Some(host) == spared { (host + 1) % hosts } else { host };
        let act = match one(rng, profile, host, groups) {
            Act::Split { ns, .. } => Act::Split { hosts: 1 + rng.below((1 << hosts) - 2), ns },
            act => act,
        };
        plan.push((from + rng.below(within), act));
    }
    if profile == Profile::Outages {
        // Far enough from each other that the groups may have begun again, or not.
        for outage in 0..1 + rng.below(4) {
            let at = 450 * MS + outage * 600 * MS + rng.below(400 * MS);
            plan.push((at, Act::KillAll { within: 1 + rng.below(8 * MS) }));
        }
    }
    plan.sort_by_key(|(at, _)| *at);
    plan
}

fn one(rng: &mut Rng, profile: Profile, host: usize, groups: usize) -> Act {
    let all = profile == Profile::Everything;
    match rng.below(100) {
        0..45 if profile == Profile::Members => order(rng, host, groups),
        0..25 if profile == Profile::Pauses => pause(rng, host),
        25..45 if profile == Profile::Pauses => Act::StopAt { host, at: *rng.pick(&Point::ALL), ns: long(rng) },
        0..35 if profile == Profile::Cuts => cut(rng, host),
        0..12 if all => order(rng, host, groups),
        12..20 if all => pause(rng, host),
        20..30 if all => Act::StopAt { host, at: *rng.pick(&Point::ALL), ns: long(rng) },
        30..40 if all => cut(rng, host),
        40..45 if all => {
            let (late, lost) = ((rng.below(50), 4 * MS), if rng.chance(50) { rng.below(60) } else { 0 });
            Act::Trouble { doubled: rng.below(50), late, lost, ns: long(rng).min(60 * MS) }
        }
        45..52 => Act::Fault(Fault::CutPath { host, ns: long(rng), carrier: rng.chance(50) }),
        52..58 => Act::Fault(Fault::LosePath { percent: 1 + rng.below(60), ns: long(rng) }),
        58..62 => Act::Trouble { doubled: 50, late: (0, 0), lost: 0, ns: long(rng) },
        62..70 => Act::KillAt { host, at: *rng.pick(&Point::ALL), back_after: rng.below(60 * MS) },
        70..80 => Act::Fault(Fault::CrashHost { host, back_after: rng.chance(60).then(|| 5 * MS + long(rng)) }),
        80..85 => Act::Fault(Fault::LeaveAgent { host, back_after: long(rng) }),
        _ => Act::Fault(Fault::KillAgent { host, back_after: rng.chance(80).then(|| long(rng)) }),
    }
}

fn pause(rng: &mut Rng, host: usize) -> Act {
    let ns = long(rng);
    Act::Fault(if rng.chance(50) { Fault::FreezeHost { host, ns } } else { Fault::StickAgent { host, ns } })
}

fn cut(rng: &mut Rng, host: usize) -> Act {
    let ns = long(rng);
    if rng.chance(40) {
        return Act::Split { hosts: 0, ns };
    }
    Act::Fault(if rng.chance(60) {
        Fault::CutHost { host, ns, carrier: rng.chance(50) }
    } else {
        Fault::SeverHost { host, gap_ns: rng.below(3 * MS).min(ns), busy_ns: 0, ns }
    })
}

fn order(rng: &mut Rng, host: usize, groups: usize) -> Act {
    let order = match rng.below(10) {
        0..3 => Order::Leave,
        3..6 => Order::Join,
        6 => Order::Create,
        _ => Order::Switch(*rng.pick(&[Kind::Huc, Kind::Hsuc, Kind::Lowi, Kind::Raft])),
    };
    Act::Order { host, group: rng.below(groups as u64) as usize, order }
}
