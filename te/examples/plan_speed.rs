//! How long a plan takes, on one core:
//! `cargo run --release -p fide-te --example plan_speed [GENERATOR…]`
//!
//! For each topology (fat-tree:16 where none is named): two disjoint trees for every host, X-ADJ for
//! all, and one join (of a host whose rack is known, and of the first one of its rack).

use fide_te::fabric::Limits;
use fide_te::generate::Generator;
use fide_te::plan::{Plan, Redundancy, Request, wire_bytes};
use fide_te::topology::{NodeId, Topology};
use std::time::Instant;

fn main() {
    let mut forms: Vec<String> = std::env::args().skip(1).collect();
    if forms.is_empty() {
        forms.push("fat-tree:16".into());
    }
    for form in forms {
        let generator: Generator = form.parse().unwrap_or_else(|e| panic!("{form}: {e}"));
        let topology = generator.build().unwrap_or_else(|e| panic!("{form}: {e}"));
        run(&form, &topology);
    }
}

fn run(form: &str, topology: &Topology) {
    let request = Request { sigma_bytes: wire_bytes(82), period_ns: 1_000_000, trees: 2 };
    let hosts: Vec<NodeId> = topology.hosts().collect();
    let begin = Instant::now();
    let plan = Plan::new(topology, &hosts, request, Limits::default()).unwrap_or_else(|e| panic!("{form}: {e}"));
    let trees = begin.elapsed();
    let begin = Instant::now();
    let contracts = plan.contracts();
    let adjusted = begin.elapsed();
    let disjoint = plan.sets().iter().filter(|set| set.redundancy == Redundancy::Disjoint).count();
    let worst = contracts.iter().map(|c| c.timeout_ns(request.period_ns)).max().unwrap_or(0);
    println!("{form}: {} hosts, {} switches: two disjoint trees for {disjoint} hosts", hosts.len(), topology.switches().count());
    println!("  trees {:.1} ms, X-ADJ {:.2} ms, longest timeout {:.3} ms", ms(trees), ms(adjusted), worst as f64 / 1e6);
    let last = *hosts.last().unwrap_or_else(|| panic!("{form} has no hosts"));
    join(topology, &hosts, &[last], request, "host of a known rack");
    let class = plan.fabric().class_of(last).unwrap_or(0);
    let rack: Vec<NodeId> = plan.fabric().classes[class as usize].members.iter().map(|m| m.host).collect();
    join(topology, &hosts, &rack, request, "first host of a rack");
}

/// Joins the first of these hosts when none of them is in the group.
fn join(topology: &Topology, hosts: &[NodeId], out: &[NodeId], request: Request, what: &str) {
    let rest: Vec<NodeId> = hosts.iter().copied().filter(|host| !out.contains(host)).collect();
    let Ok(mut plan) = Plan::new(topology, &rest, request, Limits::default()) else { return };
    let mut times = Vec::new();
    for _ in 0..9 {
        let begin = Instant::now();
        plan.join(topology, out[0]).unwrap_or_else(|e| panic!("{e}"));
        let contracts = plan.contracts();
        times.push((ms(begin.elapsed()), contracts.len()));
        plan.leave(topology, out[0]).unwrap_or_else(|e| panic!("{e}"));
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [fastest, median, slowest] = [0, 4, 8].map(|at| times[at].0);
    println!("  join of a {what}, with all contracts: {fastest:.2} to {slowest:.2} ms, median {median:.2} ms");
}

fn ms(duration: std::time::Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
