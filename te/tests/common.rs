//! Networks for tests.

use fide_te::generate::Random;
use fide_te::plan::{Plan, Set};
use fide_te::topology::{Link, LinkSpec, Node, NodeId, NodeKind, Topology};
use std::collections::BTreeSet;

/// A link without blocking, of 8 ns a byte, so that sums are easy to follow.
pub const PLAIN: LinkSpec = LinkSpec {
    bandwidth_bps: 1_000_000_000,
    queue_bytes: 1 << 20,
    lambda_min_ns: 1_000,
    delta_max_ns: 0,
    blocking_bytes: 0,
    shared_bytes: 0,
    certain: true,
};

/// `n` switches named s0…, and hosts named h0… on the given ones. `spec` is asked for each link.
pub fn network(
    n: usize,
    wires: &[(usize, usize)],
    hosts: &[Vec<usize>],
    mut spec: impl FnMut() -> LinkSpec,
) -> (Topology, Vec<NodeId>) {
    let mut topology = Topology::new("test");
    let node = |name: String, kind| Node { name, kind, risks: Vec::new() };
    let switches: Vec<NodeId> = (0..n).map(|i| topology.add_node(node(format!("s{i}"), NodeKind::Switch)).unwrap()).collect();
    let mut link = |topology: &mut Topology, a, b| {
        topology.add_link(Link { a: (a, None), b: (b, None), spec: spec(), risks: Vec::new() }).unwrap();
    };
    for (a, b) in wires {
        link(&mut topology, switches[*a], switches[*b]);
    }
    let mut all = Vec::new();
    for (i, on) in hosts.iter().enumerate() {
        let host = topology.add_node(node(format!("h{i}"), NodeKind::Host)).unwrap();
        for switch in on {
            link(&mut topology, host, switches[*switch]);
        }
        all.push(host);
    }
    (topology, all)
}

/// A connected network with random wires, on which every host has two switches.
pub fn random_network(seed: u64, spec: impl FnMut(&mut Random) -> LinkSpec) -> (Topology, Vec<NodeId>) {
    let mut random = Random::new(seed);
    let n = 2 + random.below(7) as usize;
    let mut wires: BTreeSet<(usize, usize)> = (1..n).map(|i| (random.below(i as u64) as usize, i)).collect();
    for _ in 0..random.below(2 * n as u64 + 1) {
        let (a, b) = (random.below(n as u64) as usize, random.below(n as u64) as usize);
        if a != b {
            wires.insert((a.min(b), a.max(b)));
        }
    }
    let hosts: Vec<Vec<usize>> = (0..2 + random.below(7))
        .map(|_| {
            let a = random.below(n as u64) as usize;
            vec![a, (a + 1 + random.below(n as u64 - 1) as usize) % n]
        })
        .collect();
    let wires: Vec<_> = wires.into_iter().collect();
    let mut spec = spec;
    network(n, &wires, &hosts, move || spec(&mut random))
}

/// That the trees of a set are trees, reach whom they say, and share what their redundancy allows.
pub fn check_set(topology: &Topology, plan: &Plan, set: &Set) {
    let fabric = plan.fabric();
    let mut used: Vec<BTreeSet<u32>> = Vec::new();
    for tree in &set.trees {
        let mut switches = BTreeSet::new();
        for (at, hop) in tree.hops.iter().enumerate() {
            assert!(switches.insert(hop.switch), "a switch is entered once");
            assert!(hop.parent == u32::MAX || (hop.parent as usize) < at, "parents come first");
            let link = topology.link(fide_te::topology::LinkId::new(hop.arc as usize / 2));
            let (from, to) = if hop.arc % 2 == 0 { (link.a.0, link.b.0) } else { (link.b.0, link.a.0) };
            assert_eq!(to, fabric.switches[hop.switch as usize], "the arc leads to the switch");
            let parent =
                if hop.parent == u32::MAX { set.sender } else { fabric.switches[tree.hops[hop.parent as usize].switch as usize] };
            assert_eq!(from, parent, "and begins at its parent");
        }
        for leaf in &tree.leaves {
            let switch = fabric.classes[leaf.class as usize].ports[leaf.port as usize];
            assert_eq!(tree.hops[leaf.hop as usize].switch, switch, "a leaf hangs on its port's switch");
        }
        used.push(switches);
    }
    use fide_te::plan::Redundancy;
    for (i, a) in used.iter().enumerate() {
        for b in &used[i + 1..] {
            let shared = a.intersection(b).count();
            assert!(set.redundancy != Redundancy::Disjoint || shared == 0, "{} shares switches", topology.name_of(set.sender));
        }
    }
    if set.redundancy == Redundancy::Independent {
        for host in topology.hosts().filter(|host| *host != set.sender) {
            let paths: Vec<Vec<u32>> = set.trees.iter().map(|tree| tree.path(fabric, host)).collect();
            if paths.iter().all(|path| !path.is_empty()) {
                // All but the last arc lead to switches.
                let switches = |path: &Vec<u32>| -> BTreeSet<NodeId> {
                    let arcs = path[..path.len() - 1].iter();
                    arcs.map(|arc| {
                        let link = topology.link(fide_te::topology::LinkId::new(*arc as usize / 2));
                        if arc % 2 == 0 { link.b.0 } else { link.a.0 }
                    })
                    .collect()
                };
                assert!(
                    switches(&paths[0]).is_disjoint(&switches(&paths[1])),
                    "{} to {}",
                    topology.name_of(set.sender),
                    topology.name_of(host)
                );
            }
        }
    }
}
