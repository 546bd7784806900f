//! Two independent trees: every host is reached by two paths that share no switch, though the trees
//! may share some.
//!
//! FiDe wants trees that are vertex-disjoint as wholes (§3.3, App. B). Some networks that survive
//! any one failure have none: in a ring of switches with hosts on neighbours, a tree must pass all
//! switches but one, which leaves no second tree. What the missing-copy rule (F4) needs is less: that
//! no single failure takes both copies *of one host*. Itai and Rodeh's trees give that in every
//! network that no single switch separates.
//!
//! Switches are numbered so that each has a lower and a higher neighbour, with the sender's two
//! switches first and last (an st-numbering). One tree only climbs, the other only descends. A host
//! on switches x < y is reached through x from below and through y from above, so its two paths
//! have no switch in common.
//!
//! The price: one failed switch may cost some hosts the copy of tree 1 and others that of tree 2.

use crate::fabric::{ArcId, Fabric, NONE};
use crate::search::{Cost, Found, Task};
use crate::tree::{Hop, Leaf, Tree};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Numbers the switches that lie on paths between two; [`NONE`] for the others.
///
/// Ears are added one after the other: a path through unnumbered switches between two numbered
/// ones is put behind the lower of them.
fn number(fabric: &Fabric, first: u32, last: u32) -> Vec<u32> {
    let n = fabric.switches.len();
    let mut order = vec![first, last];
    let mut placed = vec![false; n];
    (placed[first as usize], placed[last as usize]) = (true, true);
    let mut dead = vec![false; n];
    let mut at = 0;
    while at < order.len() {
        let from = order[at];
        let start = fabric.steps(from).iter().map(|step| step.to).find(|to| !placed[*to as usize] && !dead[*to as usize]);
        let Some(start) = start else {
            at += 1;
            continue;
        };
        match ear(fabric, &placed, from, start) {
            Ok((ear, end)) => {
                let places = [from, end].map(|s| order.iter().position(|o| *o == s).unwrap_or(0));
                let low = places[0].min(places[1]);
                let ear: Vec<u32> = if places[0] < places[1] { ear } else { ear.into_iter().rev().collect() };
                for switch in &ear {
                    placed[*switch as usize] = true;
                }
                order.splice(low + 1..low + 1, ear);
                // Places have shifted; switches before this one have no ears left, or get another look.
                at = 0;
            }
            // All that can be reached from there hangs on `from` alone.
            Err(region) => region.into_iter().for_each(|switch| dead[switch as usize] = true),
        }
    }
    let mut number = vec![NONE; n];
    for (at, switch) in order.iter().enumerate() {
        number[*switch as usize] = at as u32;
    }
    number
}

/// A path from `start` through unplaced switches to a placed one other than `from`: the unplaced
/// ones, and where it ends. Or all that is reached without one.
fn ear(fabric: &Fabric, placed: &[bool], from: u32, start: u32) -> Result<(Vec<u32>, u32), Vec<u32>> {
    let mut before = vec![NONE; placed.len()];
    let mut open = VecDeque::from([start]);
    let mut region = vec![start];
    before[start as usize] = start;
    while let Some(at) = open.pop_front() {
        for step in fabric.steps(at) {
            if placed[step.to as usize] && step.to != from {
                let mut ear = vec![at];
                while ear[ear.len() - 1] != start {
                    ear.push(before[ear[ear.len() - 1] as usize]);
                }
                ear.reverse();
                return Ok((ear, step.to));
            }
            if !placed[step.to as usize] && before[step.to as usize] == NONE {
                before[step.to as usize] = at;
                region.push(step.to);
                open.push_back(step.to);
            }
        }
    }
    Err(region)
}

/// Cheapest paths from one switch along growing keys.
struct Climb {
    latency_ns: Vec<u64>,
    by: Vec<ArcId>,
    before: Vec<u32>,
}

fn climb(task: &Task<'_>, root: u32, arc: ArcId, key: impl Fn(u32) -> Option<u32>) -> Climb {
    let n = task.fabric.switches.len();
    let mut climb = Climb { latency_ns: vec![u64::MAX; n], by: vec![NONE; n], before: vec![NONE; n] };
    let mut heap = BinaryHeap::from([Reverse((task.cost_ns(arc), root))]);
    (climb.latency_ns[root as usize], climb.by[root as usize]) = (task.cost_ns(arc), arc);
    while let Some(Reverse((cost_ns, at))) = heap.pop() {
        if cost_ns > climb.latency_ns[at as usize] {
            continue;
        }
        for step in task.fabric.steps(at) {
            let cost_ns = cost_ns + task.cost_ns(step.arc);
            // What is not numbered hangs on one switch, and is reached through that by one tree.
            let onward = key(step.to).is_none() || (key(at).is_some() && key(step.to) > key(at));
            if onward && task.fits(step.arc) && cost_ns < climb.latency_ns[step.to as usize] {
                let to = step.to as usize;
                (climb.latency_ns[to], climb.by[to], climb.before[to]) = (cost_ns, step.arc, at);
                heap.push(Reverse((cost_ns, step.to)));
            }
        }
    }
    climb
}

/// Makes a tree of the paths to these ports.
fn tree_of(task: &Task<'_>, climb: &Climb, ports: &[(u32, usize)]) -> (Tree, u64) {
    let mut tree = Tree::default();
    let mut place = vec![NONE; climb.by.len()];
    let mut most_ns = 0;
    for (class, port) in ports {
        let switch = task.fabric.classes[*class as usize].ports[*port];
        let mut path = Vec::new();
        let mut at = switch;
        while at != NONE && place[at as usize] == NONE {
            path.push(at);
            at = climb.before[at as usize];
        }
        for switch in path.into_iter().rev() {
            let before = climb.before[switch as usize];
            let parent = if before == NONE { NONE } else { place[before as usize] };
            place[switch as usize] = tree.hops.len() as u32;
            tree.hops.push(Hop { switch, parent, arc: climb.by[switch as usize] });
        }
        if task.has_receivers(*class) {
            most_ns = most_ns.max(climb.latency_ns[switch as usize] + task.leaf_ns(*class, *port));
            tree.leaves.push(Leaf { class: *class, port: *port as u32, hop: place[switch as usize] });
        }
    }
    (tree, most_ns)
}

/// Finds two independent trees, or `None` where a switch separates the sender from a class that has
/// two switches and no cut before it, or where queues have no room.
#[must_use]
pub fn independent(task: Task<'_>) -> Option<Found> {
    let roots: Vec<(u32, ArcId)> = task.roots().collect();
    let mut best: Option<Found> = None;
    for (i, first) in roots.iter().enumerate() {
        for last in roots[i + 1..].iter().filter(|last| last.0 != first.0) {
            let found = between(task, *first, *last);
            if let Some(found) = found.filter(|new| best.as_ref().is_none_or(|best| new.cost < best.cost)) {
                best = Some(found);
            }
        }
    }
    best
}

fn between(task: Task<'_>, first: (u32, ArcId), last: (u32, ArcId)) -> Option<Found> {
    let number = number(task.fabric, first.0, last.0);
    let of = |switch: u32| Some(number[switch as usize]).filter(|n| *n != NONE);
    let up = climb(&task, first.0, first.1, of);
    let down = climb(&task, last.0, last.1, |switch| of(switch).map(|n| NONE - n));
    let (mut rising, mut falling) = (Vec::new(), Vec::new());
    for class in 0..task.fabric.classes.len() as u32 {
        if !task.has_receivers(class) {
            continue;
        }
        let ports = &task.fabric.classes[class as usize].ports;
        let cost = |climb: &Climb, port: usize| {
            let path_ns = climb.latency_ns[ports[port] as usize];
            path_ns.checked_add(task.leaf_ns(class, port)).filter(|ns| *ns != u64::MAX && path_ns != u64::MAX)
        };
        let pairs = (0..ports.len()).flat_map(|x| (0..ports.len()).map(move |y| (x, y)));
        let pairs = pairs.filter(|(x, y)| of(ports[*x]).zip(of(ports[*y])).is_some_and(|(x, y)| x < y));
        let best = pairs.filter_map(|(x, y)| Some((cost(&up, x)?.max(cost(&down, y)?), x, y))).min();
        match best {
            Some((_, x, y)) => {
                rising.push((class, x));
                falling.push((class, y));
            }
            None if task.fabric.redundant(task.class, class) => return None,
            // One path is what such a class can have.
            None => {
                let single = (0..ports.len()).filter_map(|port| Some((cost(&up, port)?, port))).min();
                rising.extend(single.map(|(_, port)| (class, port)));
            }
        }
    }
    let (rising, rising_ns) = tree_of(&task, &up, &rising);
    let (falling, falling_ns) = tree_of(&task, &down, &falling);
    let latency_max_ns = rising_ns.max(falling_ns);
    let cost = Cost { total_ns: latency_max_ns, sum_ns: rising_ns + falling_ns };
    Some(Found { trees: vec![rising, falling], cost, latency_max_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Limits;
    use crate::generate::Generator;

    #[test]
    fn every_switch_has_a_lower_and_a_higher_neighbour() {
        for form in ["ring:7", "leaf-spine:4x2", "fat-tree:4", "jellyfish:16x3"] {
            let topology = form.parse::<Generator>().unwrap().build().unwrap();
            let fabric = Fabric::new(&topology, Limits::default());
            for last in 1..fabric.switches.len() as u32 {
                let number = number(&fabric, 0, last);
                for switch in (0..number.len() as u32).filter(|s| *s != 0 && *s != last) {
                    let own = number[switch as usize];
                    let others = || fabric.steps(switch).iter().map(|step| number[step.to as usize]);
                    assert!(own != NONE, "{form}: {switch} is not numbered");
                    assert!(others().any(|n| n < own) && others().any(|n| n > own && n != NONE), "{form} {switch}");
                }
            }
        }
    }
}
