//! Trees beside the best there are, on all small networks.
//!
//! More switches never make a tree slower, so the best pair of disjoint trees is found among the
//! ways to give each switch to one of the two: 2ⁿ of them, with shortest paths in each half.

use crate::common::{PLAIN, network};
use fide_te::fabric::{Fabric, Limits, Load};
use fide_te::generate::Random;
use fide_te::search::{Effort, Task, disjoint};
use fide_te::topology::{LinkSpec, NodeId, Topology};
use fide_te::tree::Tunnel;
use std::collections::BTreeSet;

const SIGMA: u64 = 120;

/// Every graph of `n` nodes, one of each shape.
fn graphs(n: usize) -> Vec<Vec<(usize, usize)>> {
    let pairs: Vec<(usize, usize)> = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).collect();
    let mut orders = vec![vec![]];
    for _ in 0..n {
        let longer = |o: &Vec<usize>| -> Vec<Vec<usize>> {
            let free = (0..n).filter(|i| !o.contains(i));
            free.map(|i| o.iter().copied().chain([i]).collect()).collect()
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    let at = |a: usize, b: usize| pairs.iter().position(|p| *p == (a.min(b), a.max(b))).unwrap();
    let mut shapes = BTreeSet::new();
    for bits in 0..1u32 << pairs.len() {
        let moved = |order: &Vec<usize>| {
            let there = pairs.iter().enumerate().filter(|(i, _)| bits & (1 << i) != 0);
            there.map(|(_, (a, b))| 1u32 << at(order[*a], order[*b])).sum::<u32>()
        };
        // The least of all numberings stands for the shape.
        if orders.iter().all(|order| moved(order) >= bits) {
            shapes.insert(bits);
        }
    }
    let wires = |bits: u32| pairs.iter().enumerate().filter(|(i, _)| bits & (1 << i) != 0).map(|(_, p)| *p).collect();
    shapes.into_iter().map(wires).collect()
}

/// The least greatest latency of two disjoint trees, by trying all halves; independent of `te`'s code.
fn best(topology: &Topology, hosts: &[NodeId], sender: NodeId) -> Option<u64> {
    let switches: Vec<NodeId> = topology.switches().collect();
    let cost = |spec: &LinkSpec| {
        let bytes = SIGMA + spec.blocking_bytes + spec.shared_bytes;
        spec.lambda_min_ns + spec.delta_max_ns + (bytes * 8_000_000_000).div_ceil(spec.bandwidth_bps)
    };
    let far = |half: &dyn Fn(NodeId) -> bool| -> Option<u64> {
        // Bellman and Ford, because that is short.
        let mut distance = vec![u64::MAX; topology.node_count()];
        distance[sender.index()] = 0;
        for _ in 0..=switches.len() {
            for id in topology.links() {
                let link = topology.link(id);
                for (from, to) in [(link.a.0, link.b.0), (link.b.0, link.a.0)] {
                    let forwards = from == sender || (!topology.is_host(from) && half(from));
                    let enters = topology.is_host(to) || half(to);
                    if forwards && enters && distance[from.index()] != u64::MAX && to != sender {
                        let over = distance[from.index()] + cost(&link.spec);
                        distance[to.index()] = distance[to.index()].min(over);
                    }
                }
            }
        }
        let most = hosts.iter().filter(|host| **host != sender).map(|host| distance[host.index()]).max()?;
        Some(most).filter(|most| *most != u64::MAX)
    };
    let halves = 0..1u32 << switches.len();
    let in_half = |bits: u32, node: NodeId| bits & (1 << switches.iter().position(|s| *s == node).unwrap()) != 0;
    halves.filter_map(|bits| Some(far(&|n| in_half(bits, n))?.max(far(&|n| !in_half(bits, n))?))).min()
}

/// What came of many networks.
#[derive(Default)]
struct Tally {
    compared: usize,
    optimal: usize,
    /// Found by nobody.
    none: usize,
    /// Ratio, and which network.
    worse: Vec<(f64, String)>,
    missed: Vec<String>,
}

impl Tally {
    fn compare(&mut self, topology: &Topology, hosts: &[NodeId], effort: Option<Effort>, called: impl Fn() -> String) {
        let mut fabric = Fabric::new(topology, Limits::default());
        for host in hosts {
            fabric.join(topology, *host);
        }
        let load = Load::new(&fabric);
        for sender in hosts {
            let task = Task::new(&fabric, &load, Tunnel { sender: *sender, sigma_bytes: SIGMA });
            let found = disjoint(task, 2, effort.unwrap_or_else(|| Effort::fitting(&fabric)));
            // Trees that do not reach everybody are no answer to this question.
            let whole = |f: &fide_te::search::Found| {
                let classes = (0..fabric.classes.len() as u32)
                    .filter(|c| fabric.classes[*c as usize].members.iter().any(|m| m.host != *sender));
                classes.into_iter().all(|c| f.trees.iter().all(|tree| tree.leaf_of(c).is_some()))
            };
            match (found.filter(whole), best(topology, hosts, *sender)) {
                (Some(found), Some(best)) => {
                    self.compared += 1;
                    let ratio = found.latency_max_ns as f64 / best as f64;
                    assert!(ratio >= 1.0, "better than the best: {}", called());
                    if found.latency_max_ns == best {
                        self.optimal += 1;
                    } else {
                        self.worse.push((ratio, called()));
                    }
                }
                (None, None) => self.none += 1,
                (Some(_), None) => panic!("disjoint trees where there are none: {}", called()),
                (None, Some(_)) => self.missed.push(called()),
            }
        }
    }

    fn report(&mut self, what: &str) {
        self.worse.sort_by(|a, b| b.0.total_cmp(&a.0));
        let share = 100.0 * self.optimal as f64 / self.compared.max(1) as f64;
        println!(
            "{what}: {} senders compared, {share:.2} % optimal, worst {:.3}, not found {}; {} have no disjoint trees",
            self.compared,
            self.worse.first().map_or(1.0, |w| w.0),
            self.missed.len(),
            self.none
        );
        for (ratio, which) in self.worse.iter().take(20) {
            println!("  {ratio:.3} {which}");
        }
        for which in self.missed.iter().take(20) {
            println!("  not found {which}");
        }
        assert!(share >= 90.0 && self.worse.first().is_none_or(|w| w.0 <= 1.5) && self.missed.is_empty(), "{what}");
    }
}

/// Hosts on two switches each: every choice of at most `most` pairs of switches.
fn homes(n: usize, most: usize) -> Vec<Vec<Vec<usize>>> {
    let pairs: Vec<Vec<usize>> = (0..n).flat_map(|a| (a + 1..n).map(move |b| vec![a, b])).collect();
    let sets = 0..1u32 << pairs.len();
    let chosen = |bits: u32| pairs.iter().enumerate().filter(|(i, _)| bits & (1 << i) != 0).map(|(_, p)| p.clone()).collect();
    sets.filter(|bits| (2..=most as u32).contains(&bits.count_ones())).map(chosen).collect()
}

fn all_of(n: usize, most: usize, effort: Option<Effort>, uneven: bool, every: usize) -> Tally {
    let mut tally = Tally::default();
    let mut random = Random::new(7);
    let mut at = 0;
    for wires in graphs(n) {
        for on in homes(n, most) {
            at += 1;
            if at % every != 0 {
                continue;
            }
            let mut spec = || {
                let lambda_min_ns = if uneven { 500 + 500 * random.below(6) } else { PLAIN.lambda_min_ns };
                LinkSpec { lambda_min_ns, ..PLAIN }
            };
            let (topology, hosts) = network(n, &wires, &on, &mut spec);
            tally.compare(&topology, &hosts, effort, || format!("wires {wires:?}, hosts {on:?}"));
        }
    }
    tally
}

#[test]
fn trees_are_the_best_on_all_networks_of_up_to_four_switches() {
    for (n, most) in [(3, 3), (4, 6)] {
        all_of(n, most, None, false, 1).report(&format!("{n} switches, like links"));
        all_of(n, most, None, true, 1).report(&format!("{n} switches, links of 0.5 to 3 µs"));
    }
}

#[test]
fn trees_are_nearly_the_best_on_networks_of_five_and_six_switches() {
    // FIDE_TE_ALL: every one of them, minutes.
    let every = if std::env::var_os("FIDE_TE_ALL").is_some() { 1 } else { 23 };
    all_of(5, 4, None, true, every).report("5 switches, links of 0.5 to 3 µs");
    all_of(6, 3, None, true, 5 * every).report("6 switches, links of 0.5 to 3 µs");
}

/// Two connected halves of `n` switches with hosts on one switch of each, and wires between them that
/// lead astray.
fn two_halves(n: usize, seed: u64) -> (Topology, Vec<NodeId>) {
    let mut random = Random::new(seed);
    let mut of = |n: usize| random.below(n as u64) as usize;
    let first = 2 + of(n - 3);
    let mut wires = BTreeSet::new();
    for i in 1..n {
        if i != first {
            let from = if i < first { of(i) } else { first + of(i - first) };
            wires.insert((from, i));
        }
    }
    for _ in 0..of(2 * n) {
        let (a, b) = (of(n), of(n));
        if a != b {
            wires.insert((a.min(b), a.max(b)));
        }
    }
    let hosts: Vec<Vec<usize>> = (0..2 + of(6)).map(|_| vec![of(first), first + of(n - first)]).collect();
    let wires: Vec<_> = wires.into_iter().collect();
    network(n, &wires, &hosts, || LinkSpec { lambda_min_ns: 500 + 500 * random.below(6), ..PLAIN })
}

#[test]
fn trees_are_nearly_the_best_on_random_networks_of_8_to_11_switches() {
    // These are not searched through.
    let networks = if std::env::var_os("FIDE_TE_ALL").is_some() { 300 } else { 20 };
    let mut tally = Tally::default();
    for n in 8..=11 {
        for seed in 0..networks {
            let (topology, hosts) = two_halves(n, seed);
            tally.compare(&topology, &hosts, None, || format!("{n} switches, seed {seed}"));
        }
    }
    tally.report("8 to 11 switches, links of 0.5 to 3 µs");
}

#[test]
fn one_search_alone_is_nearly_as_good() {
    let alone = Some(Effort { searches: 0 });
    all_of(4, 6, alone, true, 3).report("4 switches, one search");
    all_of(5, 4, alone, true, 97).report("5 switches, one search");
}
