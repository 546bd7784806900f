//! What can go wrong, and how often.

use super::fenced::{FAULTS_BEGIN, FAULTS_NS};
use super::host::{AGENT_TIMEOUT_NS, MS};
use crate::rng::Rng;
use crate::time::US;
use fide_wire::PATHS;

impl Profile {
    /// Every one.
    pub const ALL: [Profile; 12] = [
        Profile::WithinContract,
        Profile::Pauses,
        Profile::Cuts,
        Profile::Severed,
        Profile::HeldUp,
        Profile::Overrun,
        Profile::Storms,
        Profile::Everything,
        Profile::Queues,
        Profile::Partial,
        Profile::Undelivered,
        Profile::Fenced,
    ];
}

/// What can go wrong in one simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Crashes, restarts, one faulty path: the contract holds for whoever is alive.
    WithinContract,
    /// The same and hosts and agents that stand still.
    Pauses,
    /// The same and hosts cut off on both paths.
    Cuts,
    /// Cables that are cut one after the other, of hosts too busy to look in time.
    Severed,
    /// Crashes, restarts, and one path of a host at a time whose processor is so busy that packets wait for it. No path is faulty.
    HeldUp,
    /// Crashes, restarts, and hosts whose own interfaces lose what they receive, and count it.
    Overrun,
    /// Many processes at once, on lossy paths.
    Storms,
    /// All of it.
    Everything,
    /// Crashes, restarts, and processors that do not get to some receive queues of a host. No path
    /// is faulty.
    Queues,
    /// Crashes, restarts, and hosts that receive nothing of some others, one way or both ways, on both paths.
    Partial,
    /// Crashes, restarts, and networks that deliver no multicast to some hosts, or to any.
    Undelivered,
    /// Hosts with fences that a majority confirms, of different times: those of [`Profile::Partial`], agents that stand still, and firewalls
    /// that drop what agents send while kernels answer.
    Fenced,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A signal: doomed now, gone a little later.
    KillApp {
        host: usize,
        app: usize,
        doomed: bool,
    },
    KillApps {
        host: usize,
    },
    KillAgent {
        host: usize,
        back_after: Option<u64>,
    },
    /// The process stands still, its kernel does not.
    StickAgent {
        host: usize,
        ns: u64,
    },
    LeaveAgent {
        host: usize,
        back_after: u64,
    },
    CrashHost {
        host: usize,
        back_after: Option<u64>,
    },
    /// Kernel and all stand still (a virtual machine stopped).
    FreezeHost {
        host: usize,
        ns: u64,
    },
    /// One cable. `carrier`: the host's own interface notices.
    CutPath {
        host: usize,
        ns: u64,
        carrier: bool,
    },
    /// Copies lost on one path everywhere.
    LosePath {
        percent: u64,
        ns: u64,
    },
    /// What this host receives on the bad path (or sends itself on it) waits until then. Nothing is lost.
    HoldPath {
        host: usize,
        ns: u64,
        sending: bool,
    },
    /// What this host receives on any path waits until then, while its agent runs.
    HoldHost {
        host: usize,
        ns: u64,
    },
    /// What this host receives by the queues of another one's heartbeats, on every path, waits
    /// until then; what comes by others does not.
    HoldQueues {
        host: usize,
        of: usize,
        ns: u64,
    },
    /// What these hosts send does not reach those, on any path: a bit for each ordered pair, `receiver · hosts + sender`.
    Deafen {
        pairs: u64,
        ns: u64,
    },
    /// A firewall on this host drops what other agents send: their kernels answer it.
    Filter {
        host: usize,
        ns: u64,
    },
    /// What is sent to everybody does not reach these hosts, on any path or on one; what is sent to one does. A bit for each host.
    Undeliver {
        hosts: u64,
        path: Option<usize>,
        ns: u64,
    },
    /// So many percent of what this host receives, on every path, are lost at its interfaces, which count them.
    OverrunHost {
        host: usize,
        percent: u64,
        ns: u64,
    },
    /// The cable of the bad path, and the other `gap_ns` later, of a host whose kernel and agent are late meanwhile.
    SeverHost {
        host: usize,
        gap_ns: u64,
        busy_ns: u64,
        ns: u64,
    },
    /// Both cables: a critical compound failure.
    CutHost {
        host: usize,
        ns: u64,
        carrier: bool,
    },
}

/// Shorter than the patience with a path by more than a period: longer is a fault.
const LONGEST_HOLD_NS: u64 = AGENT_TIMEOUT_NS - 3 * MS;

/// The path on which all single faults of a world happen: two paths failing at once is the critical compound failure.
pub(crate) fn bad_path(rng: &mut Rng) -> usize {
    rng.below(PATHS as u64) as usize
}

pub(super) fn plan(rng: &mut Rng, profile: Profile, hosts: usize) -> Vec<(u64, Fault)> {
    let n = if profile == Profile::Storms { 2 } else { 2 + rng.below(5) };
    let (from, for_ns) = if profile == Profile::Fenced { (FAULTS_BEGIN, FAULTS_NS) } else { (10 * MS, 50 * MS) };
    let mut plan: Vec<_> = (0..n).map(|_| (from + rng.below(for_ns), one(rng, profile, hosts))).collect();
    if profile == Profile::Storms {
        plan.push((9 * MS, Fault::LosePath { percent: 30, ns: 60 * MS }));
    }
    plan.sort_by_key(|(at, _)| *at);
    plan
}

fn one(rng: &mut Rng, profile: Profile, hosts: usize) -> Fault {
    let host = rng.below(hosts as u64) as usize;
    let long = |rng: &mut Rng| {
        let most = if rng.chance(50) { 4 * MS } else { 40 * MS };
        100 * US + rng.below(most)
    };
    if profile == Profile::Storms {
        return Fault::KillApps { host };
    }
    let all = profile == Profile::Everything;
    if profile == Profile::Severed && rng.chance(50) {
        let gap_ns = rng.below(3 * MS);
        let busy_ns = if rng.chance(25) { 0 } else { rng.below(4 * MS) };
        return Fault::SeverHost { host, gap_ns, busy_ns, ns: gap_ns + long(rng) };
    }
    if profile == Profile::HeldUp && rng.chance(60) || all && rng.chance(10) {
        if rng.chance(30) {
            return Fault::HoldHost { host, ns: long(rng) };
        }
        return Fault::HoldPath { host, ns: rng.below(LONGEST_HOLD_NS), sending: rng.chance(50) };
    }
    if profile == Profile::Queues && rng.chance(60) || all && rng.chance(10) {
        let of = (host + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
        return Fault::HoldQueues { host, of, ns: long(rng).min(LONGEST_HOLD_NS) };
    }
    if profile == Profile::Partial && rng.chance(70) {
        return Fault::Deafen { pairs: deaf_pairs(rng, hosts, host), ns: long(rng) };
    }
    if profile == Profile::Fenced {
        match rng.below(100) {
            0..40 => return Fault::Deafen { pairs: deaf_pairs(rng, hosts, host), ns: long(rng) },
            40..70 => return Fault::Filter { host, ns: long(rng) + 10 * MS },
            70..80 => return Fault::StickAgent { host, ns: long(rng) },
            _ => {} // crashes and restarts
        }
    }
    if profile == Profile::Undelivered && rng.chance(70) {
        let every = (1 << hosts) - 1;
        let some = if rng.chance(50) { every } else { 1 | rng.below(every + 1) };
        let path = rng.chance(20).then(|| rng.below(PATHS as u64) as usize);
        return Fault::Undeliver { hosts: some, path, ns: long(rng) };
    }
    if profile == Profile::Overrun && rng.chance(60) || all && rng.chance(10) {
        return Fault::OverrunHost { host, percent: 50 + rng.below(51), ns: long(rng) };
    }
    match rng.below(100) {
        0..15 if all || profile == Profile::Pauses => Fault::FreezeHost { host, ns: long(rng) },
        15..25 if all || profile == Profile::Pauses => Fault::StickAgent { host, ns: long(rng) },
        0..15 if profile == Profile::Cuts => Fault::CutHost { host, ns: long(rng), carrier: rng.chance(50) },
        25..35 if all || profile == Profile::Cuts => Fault::CutHost { host, ns: long(rng), carrier: rng.chance(50) },
        35..50
            if !matches!(
                profile,
                Profile::HeldUp | Profile::Overrun | Profile::Queues | Profile::Partial | Profile::Undelivered | Profile::Fenced
            ) =>
        {
            Fault::CutPath { host, ns: long(rng), carrier: rng.chance(50) }
        }
        50..55
            if !matches!(
                profile,
                Profile::HeldUp | Profile::Overrun | Profile::Queues | Profile::Partial | Profile::Undelivered | Profile::Fenced
            ) =>
        {
            Fault::LosePath { percent: 1 + rng.below(60), ns: long(rng) }
        }
        55..65 => Fault::CrashHost { host, back_after: rng.chance(60).then(|| 5 * MS + rng.below(30 * MS)) },
        65..75 => Fault::KillAgent { host, back_after: rng.chance(60).then(|| rng.below(30 * MS)) },
        75..80 => Fault::LeaveAgent { host, back_after: rng.below(30 * MS) },
        80..83 => Fault::KillApps { host },
        _ => Fault::KillApp { host, app: rng.below(4) as usize, doomed: rng.chance(70) },
    }
}

/// One pair, a chain, or any pattern.
fn deaf_pairs(rng: &mut Rng, hosts: usize, host: usize) -> u64 {
    let pair = |to: usize, from: usize| 1u64 << (to * hosts + from);
    let others = |to: usize| (0..hosts).filter(move |from| *from != to);
    match rng.below(10) {
        0..4 => {
            let other = (host + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
            pair(host, other) | if rng.chance(60) { pair(other, host) } else { 0 }
        }
        4..6 => {
            let far = |to: usize, from: usize| to.abs_diff(from) > 1;
            (0..hosts).flat_map(|to| others(to).filter(move |from| far(to, *from)).map(move |from| pair(to, from))).sum()
        }
        _ => {
            let percent = 10 + rng.below(50);
            let mut pairs = 0;
            for to in 0..hosts {
                for from in others(to) {
                    pairs |= if rng.chance(percent) { pair(to, from) } else { 0 };
                }
            }
            pairs
        }
    }
}
