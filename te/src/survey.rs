//! What a network survives, whatever trees are planned: single points of failure, and how many
//! failures it takes to part two hosts.

use crate::fabric::{Fabric, Limits, NONE};
use crate::topology::{Link, LinkId, LinkSpec, Node, NodeId, NodeKind, Topology, TopologyError};
use petgraph::algo::ford_fulkerson;
use petgraph::graph::DiGraph;
use petgraph::unionfind::UnionFind;
use std::collections::{BTreeMap, BTreeSet};

/// What may fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Element {
    /// A switch.
    Switch(NodeId),
    /// A cable.
    Cable(LinkId),
    /// What switches and cables share: a power feed, a duct.
    Risk(String),
}

/// One thing whose failure parts hosts from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinglePoint {
    /// What.
    pub element: Element,
    /// Hosts outside of the largest part that is left.
    pub cut_off: Vec<NodeId>,
    /// Pairs of hosts that lose each other.
    pub pairs: usize,
}

/// What is known of a network and a group of hosts in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Pairs of hosts without a way even while everything works.
    pub parted: usize,
    /// Each thing that alone parts hosts, those first that part most.
    pub single_points: Vec<SinglePoint>,
    /// Hosts that are on one switch only, with it.
    pub on_one_switch: Vec<(NodeId, NodeId)>,
    /// Links that the plan may not use, because their bounds are not certain.
    pub uncertain: usize,
    /// How many failures of switches and cables the group survives, whichever they are.
    pub survives: usize,
}

/// Which part of the network each host is in, on both its switches.
type Parts = BTreeSet<u32>;

struct View<'a> {
    topology: &'a Topology,
    limits: Limits,
    hosts: &'a [NodeId],
}

impl View<'_> {
    fn usable(&self, link: LinkId) -> bool {
        self.topology.link(link).spec.certain || self.limits.uncertain
    }

    /// A label for each node: switches that can reach each other have one label. And how many.
    fn labels(&self, node_gone: &dyn Fn(NodeId) -> bool, link_gone: &dyn Fn(LinkId) -> bool) -> (Vec<u32>, usize) {
        let mut union: UnionFind<u32> = UnionFind::new(self.topology.node_count());
        let mut count = self.topology.switches().filter(|switch| !node_gone(*switch)).count();
        for id in self.topology.links() {
            let link = self.topology.link(id);
            let (a, b) = (link.a.0, link.b.0);
            let host = self.topology.is_host(a) || self.topology.is_host(b);
            if !host && self.usable(id) && !link_gone(id) && !node_gone(a) && !node_gone(b) {
                count -= usize::from(union.union(a.index() as u32, b.index() as u32));
            }
        }
        (union.into_labeling(), count)
    }

    fn parts(
        &self,
        host: NodeId,
        labels: &[u32],
        node_gone: &dyn Fn(NodeId) -> bool,
        link_gone: &dyn Fn(LinkId) -> bool,
    ) -> Parts {
        let links = self.topology.links_of(host).filter(|(id, _)| self.usable(*id) && !link_gone(*id));
        links.filter(|(_, switch)| !node_gone(*switch)).map(|(_, switch)| labels[switch.index()]).collect()
    }

    /// Pairs of hosts that have no way, and the hosts outside of the largest part.
    fn cut(&self, node_gone: &dyn Fn(NodeId) -> bool, link_gone: &dyn Fn(LinkId) -> bool) -> (usize, Vec<NodeId>) {
        let (labels, _) = self.labels(node_gone, link_gone);
        let mut groups: BTreeMap<Parts, Vec<NodeId>> = BTreeMap::new();
        for host in self.hosts {
            groups.entry(self.parts(*host, &labels, node_gone, link_gone)).or_default().push(*host);
        }
        let mut pairs = 0;
        let all: Vec<(&Parts, &Vec<NodeId>)> = groups.iter().collect();
        for (i, (parts, hosts)) in all.iter().enumerate() {
            let apart = all[i + 1..].iter().filter(|(other, _)| parts.is_disjoint(other));
            pairs += hosts.len() * apart.map(|(_, others)| others.len()).sum::<usize>();
            if parts.is_empty() {
                pairs += hosts.len() * hosts.len().saturating_sub(1) / 2;
            }
        }
        if pairs == 0 {
            return (0, Vec::new());
        }
        let mut sizes: BTreeMap<u32, usize> = BTreeMap::new();
        for (parts, hosts) in &groups {
            parts.iter().for_each(|part| *sizes.entry(*part).or_default() += hosts.len());
        }
        let largest = sizes.into_iter().max_by_key(|(_, size)| *size).map(|(part, _)| part);
        let outside = groups.iter().filter(|(parts, _)| largest.is_none_or(|largest| !parts.contains(&largest)));
        (pairs, outside.flat_map(|(_, hosts)| hosts.iter().copied()).collect())
    }
}

/// Looks a network over.
#[must_use]
pub fn survey(topology: &Topology, hosts: &[NodeId], limits: Limits) -> Survey {
    let view = View { topology, limits, hosts };
    let parted = view.cut(&|_| false, &|_| false).0;
    let mut points = single_points(&view, parted);
    points.sort_by_key(|point| (std::cmp::Reverse(point.pairs), std::cmp::Reverse(point.cut_off.len())));
    let switches_of = |host: NodeId| -> BTreeSet<NodeId> {
        topology.links_of(host).filter(|(id, _)| view.usable(*id)).map(|(_, switch)| switch).collect()
    };
    let single = |host: &NodeId| {
        let switches = switches_of(*host);
        (switches.len() == 1).then(|| (*host, *switches.first().expect("one")))
    };
    let least = hosts.iter().map(|host| switches_of(*host).len()).min().unwrap_or(0);
    let hard = |point: &SinglePoint| !matches!(point.element, Element::Risk(_));
    let survives = match (parted, points.iter().any(hard)) {
        (1.., _) | (0, true) => 0,
        // Its own switches part a host on two of them, and no single thing does.
        _ if least <= 2 => least.saturating_sub(1),
        _ => connectivity(topology, hosts, limits, least).saturating_sub(1),
    };
    Survey {
        parted,
        single_points: points,
        on_one_switch: hosts.iter().filter_map(single).collect(),
        uncertain: topology.links().filter(|id| !view.usable(*id)).count(),
        survives,
    }
}

fn single_points(view: &View<'_>, parted: usize) -> Vec<SinglePoint> {
    let topology = view.topology;
    let mut points = Vec::new();
    let mut judge = |element: Element, (pairs, cut_off): (usize, Vec<NodeId>)| {
        if pairs > parted {
            points.push(SinglePoint { element, cut_off, pairs: pairs - parted });
        }
    };
    let (labels, count) = view.labels(&|_| false, &|_| false);
    for switch in topology.switches() {
        judge(Element::Switch(switch), view.cut(&|node| node == switch, &|_| false));
    }
    let groups: BTreeSet<Parts> = view.hosts.iter().map(|host| view.parts(*host, &labels, &|_| false, &|_| false)).collect();
    for id in topology.links().filter(|id| view.usable(*id)) {
        let link = topology.link(id);
        let host = [link.a.0, link.b.0].into_iter().find(|end| topology.is_host(*end));
        // Most cables part nothing, which is seen without looking at every host.
        let harmless = match host {
            Some(host) => {
                let left = view.parts(host, &labels, &|_| false, &|gone| gone == id);
                !view.hosts.contains(&host) || groups.iter().all(|group| !group.is_disjoint(&left))
            }
            None => view.labels(&|_| false, &|gone| gone == id).1 == count,
        };
        if !harmless {
            judge(Element::Cable(id), view.cut(&|_| false, &|gone| gone == id));
        }
    }
    for (risk, (nodes, links)) in topology.risks() {
        judge(Element::Risk(risk.into()), view.cut(&|node| nodes.contains(&node), &|link| links.contains(&link)));
    }
    points
}

/// The least number of switches that part two hosts, at most `most`: Menger's theorem, by flows.
fn connectivity(topology: &Topology, hosts: &[NodeId], limits: Limits, most: usize) -> usize {
    let mut fabric = Fabric::new(topology, limits);
    for host in hosts {
        fabric.join(topology, *host);
    }
    let n = fabric.switches.len();
    let mut graph: DiGraph<(), u32> = DiGraph::new();
    let nodes: Vec<_> = (0..2 * n + 2).map(|_| graph.add_node(())).collect();
    for switch in 0..n as u32 {
        graph.add_edge(nodes[2 * switch as usize], nodes[2 * switch as usize + 1], 1);
        for step in fabric.steps(switch) {
            graph.add_edge(nodes[2 * switch as usize + 1], nodes[2 * step.to as usize], 1);
        }
    }
    let (source, sink) = (nodes[2 * n], nodes[2 * n + 1]);
    let mut least = most;
    for (i, a) in fabric.classes.iter().enumerate() {
        for b in &fabric.classes[i + 1..] {
            let mut pair = graph.clone();
            for switch in a.switches() {
                pair.add_edge(source, nodes[2 * switch as usize], 1);
            }
            for switch in b.switches() {
                pair.add_edge(nodes[2 * switch as usize + 1], sink, 1);
            }
            least = least.min(ford_fulkerson(&pair, source, sink).0 as usize);
        }
    }
    least
}

/// The same network with one more switch that every host of the group is on.
///
/// # Errors
/// The network is as large as one can be already.
pub fn with_another_switch(topology: &Topology, hosts: &[NodeId]) -> Result<Topology, TopologyError> {
    let mut topology = topology.clone();
    let free = (1..).map(|n| format!("added{n}")).find(|name| topology.find(name).is_none());
    let name = free.unwrap_or_default();
    let switch = topology.add_node(Node { name, kind: NodeKind::Switch, risks: Vec::new() })?;
    for host in hosts {
        let like = topology.links_of(*host).next().map_or(LinkSpec::HOST, |(id, _)| topology.link(id).spec);
        let spec = LinkSpec { certain: true, ..like };
        topology.add_link(Link { a: (*host, None), b: (switch, None), spec, risks: Vec::new() })?;
    }
    Ok(topology)
}

/// The switches, those first that most trees pass.
#[must_use]
pub fn busiest_switches(plan: &crate::plan::Plan) -> Vec<NodeId> {
    let mut passed = vec![0usize; plan.fabric().switches.len()];
    for tree in plan.sets().iter().flat_map(|set| &set.trees) {
        tree.hops.iter().filter(|hop| hop.switch != NONE).for_each(|hop| passed[hop.switch as usize] += 1);
    }
    let mut order: Vec<u32> = (0..passed.len() as u32).filter(|s| passed[*s as usize] > 0).collect();
    order.sort_by_key(|switch| (std::cmp::Reverse(passed[*switch as usize]), *switch));
    order.into_iter().map(|switch| plan.fabric().switches[switch as usize]).collect()
}
