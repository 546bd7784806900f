//! The network topology graph G: hosts, switches, and the links between them (X-Lane §3.1).
//!
//! A link is a cable with two directions, each with an egress queue of its own. A host's end of a
//! link is one of its NICs. Hosts do not forward: a path crosses switches only.
//!
//! Latency and jitter of a link include the processing at its far end (X-Lane §3.1), so links of
//! hosts carry what NIC, kernel and scheduler of the host add.

use petgraph::graph::{EdgeIndex, NodeIndex, UnGraph};
use petgraph::visit::EdgeRef as _;
use std::collections::{BTreeMap, HashMap};

/// A host or a switch.
pub type NodeId = NodeIndex<u32>;
/// A cable, in both directions.
pub type LinkId = EdgeIndex<u32>;

/// Most nodes that a topology may have.
pub const NODES_MAX: usize = 20_000;
/// Most links that a topology may have.
pub const LINKS_MAX: usize = 200_000;
/// Longest name, bytes.
pub const NAME_MAX: usize = 64;

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Sends and receives, forwards nothing.
    Host,
    /// Forwards.
    Switch,
    /// A switch of the highest level: links to it count as *core* links in failure statistics.
    CoreSwitch,
}

/// A host or a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name, unique.
    pub name: String,
    /// What it is.
    pub kind: NodeKind,
    /// Names of what it shares with others and fails with (a power feed, a chassis).
    pub risks: Vec<String>,
}

/// Where a link stands in failure statistics (FiDe App. C).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Below the core: between hosts and switches, and between switches of the lower levels.
    Trunk,
    /// To a switch of the core.
    Core,
}

/// What is known of each direction of a link (X-Lane §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Bandwidth β, bit/s.
    pub bandwidth_bps: u64,
    /// Length of the egress queue of the lane, bytes.
    pub queue_bytes: u64,
    /// Least delay, without queueing and transmission, ns.
    pub lambda_min_ns: u64,
    /// Most that the delay may exceed that, ns.
    pub delta_max_ns: u64,
    /// The largest frame of lower priority that a packet of the lane may have to wait for, because
    /// its transmission has begun, bytes. 0 where the port preempts (802.3br).
    pub blocking_bytes: u64,
    /// What other services may have in the lane's priority queue at any instant, bytes.
    pub shared_bytes: u64,
    /// Whether these bounds hold. Those of a line that strangers share do not.
    pub certain: bool,
}

impl LinkSpec {
    /// Between switches, where nothing else is said: 10 Gbit/s, 1 µs + 0.5 µs, 256 KiB.
    pub const SWITCH: LinkSpec = LinkSpec {
        bandwidth_bps: 10_000_000_000,
        queue_bytes: 256 << 10,
        lambda_min_ns: 1_000,
        delta_max_ns: 500,
        blocking_bytes: 1_538,
        shared_bytes: 0,
        certain: true,
    };
    /// Of a host, where nothing else is said: 5 µs + 20 µs for NIC, kernel and scheduler.
    pub const HOST: LinkSpec = LinkSpec { lambda_min_ns: 5_000, delta_max_ns: 20_000, ..Self::SWITCH };
}

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// One end, and the NIC there, if it has a name.
    pub a: (NodeId, Option<String>),
    /// The other end.
    pub b: (NodeId, Option<String>),
    /// What each direction can do.
    pub spec: LinkSpec,
    /// Names of what it shares with others and fails with (a duct, a line card).
    pub risks: Vec<String>,
}

/// Why a topology is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct TopologyError {
    /// What is wrong, where, and why that cannot be.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl TopologyError {
    /// Both sentences.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        TopologyError { what: what.into(), hint: hint.into() }
    }
}

/// A network.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// What the operator calls it.
    pub name: String,
    graph: UnGraph<Node, Link, u32>,
    by_name: HashMap<String, NodeId>,
}

impl Topology {
    /// An empty one.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Topology { name: name.into(), ..Topology::default() }
    }

    /// Adds a node.
    ///
    /// # Errors
    /// The name is taken, empty, too long, or has characters that names cannot have; or there are
    /// [`NODES_MAX`] already.
    pub fn add_node(&mut self, node: Node) -> Result<NodeId, TopologyError> {
        check_name(&node.name)?;
        if let Some(known) = self.by_name.get(&node.name) {
            let kind = if self.is_host(*known) { "a host" } else { "a switch" };
            return Err(TopologyError::new(
                format!("there is {kind} named {} already: names are unique", node.name),
                "give one of the two another name",
            ));
        }
        if self.graph.node_count() == NODES_MAX {
            return Err(TopologyError::new(
                format!("more than {NODES_MAX} hosts and switches"),
                "plan one part of the network at a time",
            ));
        }
        let name = node.name.clone();
        let id = self.graph.add_node(node);
        self.by_name.insert(name, id);
        Ok(id)
    }

    /// Adds a link.
    ///
    /// # Errors
    /// Both ends are one node, or hosts; a NIC has a link already; a value is 0 that must not be;
    /// or there are [`LINKS_MAX`] already.
    pub fn add_link(&mut self, link: Link) -> Result<LinkId, TopologyError> {
        let (a, b) = (link.a.0, link.b.0);
        let called = format!("{} – {}", self.end(&link.a), self.end(&link.b));
        if a == b {
            return Err(TopologyError::new(
                format!("the link {called} begins and ends at {}: a self-loop", self.name_of(a)),
                "name the node at the other end of the cable",
            ));
        }
        if self.is_host(a) && self.is_host(b) {
            return Err(TopologyError::new(
                format!("the link {called} joins two hosts, and multicast needs a switch between"),
                "if that is a cable between two hosts, describe it as a switch with two links",
            ));
        }
        for end in [&link.a, &link.b] {
            self.check_nic(end)?;
        }
        check_spec(&link.spec, &called)?;
        if self.graph.edge_count() == LINKS_MAX {
            let what = format!("more than {LINKS_MAX} links");
            return Err(TopologyError::new(what, "plan one part of the network at a time"));
        }
        Ok(self.graph.add_edge(a, b, link))
    }

    fn check_nic(&self, (node, nic): &(NodeId, Option<String>)) -> Result<(), TopologyError> {
        let Some(nic) = nic else { return Ok(()) };
        check_name(nic)?;
        if !self.is_host(*node) {
            return Err(TopologyError::new(
                format!("{}:{nic} names a port of a switch, and only hosts have NICs here", self.name_of(*node)),
                "leave the part from the colon on out",
            ));
        }
        let taken = self.links_of(*node).any(|(id, _)| self.nic_of(id, *node) == Some(nic.as_str()));
        if taken {
            return Err(TopologyError::new(
                format!("the NIC {}:{nic} has two links, and a NIC has one cable", self.name_of(*node)),
                "give the second link a NIC of its own",
            ));
        }
        Ok(())
    }

    /// The node of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// A node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.graph[id]
    }

    /// A link.
    #[must_use]
    pub fn link(&self, id: LinkId) -> &Link {
        &self.graph[id]
    }

    /// A link, to change it.
    #[must_use]
    pub fn link_mut(&mut self, id: LinkId) -> &mut Link {
        &mut self.graph[id]
    }

    /// A node's name.
    #[must_use]
    pub fn name_of(&self, id: NodeId) -> &str {
        &self.graph[id].name
    }

    /// Whether it is a host.
    #[must_use]
    pub fn is_host(&self, id: NodeId) -> bool {
        self.graph[id].kind == NodeKind::Host
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.graph.node_indices()
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes().filter(|id| self.is_host(*id))
    }

    /// All switches.
    pub fn switches(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes().filter(|id| !self.is_host(*id))
    }

    /// All links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.graph.edge_indices()
    }

    /// How many links there are.
    #[must_use]
    pub fn link_count(&self) -> usize {
        self.graph.edge_count()
    }

    /// How many nodes there are.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.graph.node_count()
    }

    /// A node's links, each with the node at the other end.
    pub fn links_of(&self, node: NodeId) -> impl Iterator<Item = (LinkId, NodeId)> + '_ {
        self.graph.edges(node).map(move |edge| {
            let other = if edge.source() == node { edge.target() } else { edge.source() };
            (edge.id(), other)
        })
    }

    /// The name of a host's NIC that has this link.
    #[must_use]
    pub fn nic_of(&self, link: LinkId, host: NodeId) -> Option<&str> {
        let link = self.link(link);
        let end = if link.a.0 == host { &link.a } else { &link.b };
        end.1.as_deref()
    }

    /// A link as people call it: `h1:eth0 – s1`.
    #[must_use]
    pub fn link_name(&self, id: LinkId) -> String {
        let link = self.link(id);
        format!("{} – {}", self.end(&link.a), self.end(&link.b))
    }

    /// Where a link stands in failure statistics.
    #[must_use]
    pub fn tier(&self, id: LinkId) -> Tier {
        let link = self.link(id);
        let core = [link.a.0, link.b.0].iter().any(|n| self.node(*n).kind == NodeKind::CoreSwitch);
        if core { Tier::Core } else { Tier::Trunk }
    }

    /// What fails together: the name of each risk, with its nodes and links.
    #[must_use]
    pub fn risks(&self) -> BTreeMap<&str, (Vec<NodeId>, Vec<LinkId>)> {
        let mut risks: BTreeMap<&str, (Vec<NodeId>, Vec<LinkId>)> = BTreeMap::new();
        for node in self.nodes() {
            for risk in &self.node(node).risks {
                risks.entry(risk).or_default().0.push(node);
            }
        }
        for link in self.links() {
            for risk in &self.link(link).risks {
                risks.entry(risk).or_default().1.push(link);
            }
        }
        risks
    }

    fn end(&self, (node, nic): &(NodeId, Option<String>)) -> String {
        let name = self.name_of(*node);
        nic.as_ref().map_or_else(|| name.to_owned(), |nic| format!("{name}:{nic}"))
    }
}

/// Names are printed on terminals and into SVG, so they have no control characters nor markup.
pub(crate) fn check_name(name: &str) -> Result<(), TopologyError> {
    let fits = |c: char| c.is_alphanumeric() || "-_./+".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(fits) {
        let mut shown: String = name.escape_debug().take(NAME_MAX).collect();
        if shown.len() < name.len() {
            shown.push('…');
        }
        return Err(TopologyError::new(
            format!("\"{shown}\" cannot be a name"),
            format!("names are 1 to {NAME_MAX} letters, digits and any of - _ . / +"),
        ));
    }
    Ok(())
}

fn check_spec(spec: &LinkSpec, called: &str) -> Result<(), TopologyError> {
    /// A second: anything longer is a slip in the unit.
    const DELAY_MAX_NS: u64 = 1_000_000_000;
    /// With the slowest link and the longest path, sums of times stay below 2⁶³ ns.
    const BYTES_MAX: u64 = 1 << 30;
    let bad = |what: &str, hint: &str| Err(TopologyError::new(format!("the link {called} {what}"), hint));
    if !(100_000..=100_000_000_000_000).contains(&spec.bandwidth_bps) {
        return bad("has a bandwidth outside of 100 kbit/s to 100 Tbit/s", "look at the unit: 10Gbit/s");
    }
    if spec.lambda_min_ns > DELAY_MAX_NS || spec.delta_max_ns > DELAY_MAX_NS {
        return bad("has a delay above a second", "look at the unit: 500ns, 20us, 1ms");
    }
    if spec.queue_bytes == 0 {
        return bad("has a queue of 0 bytes, in which no packet fits", "write its length: 256KiB");
    }
    if spec.queue_bytes > BYTES_MAX || spec.blocking_bytes > BYTES_MAX || spec.shared_bytes > BYTES_MAX {
        return bad("has more than 1 GiB of queue", "look at the unit: 256KiB");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, kind: NodeKind) -> Node {
        Node { name: name.into(), kind, risks: Vec::new() }
    }

    fn link(a: NodeId, b: NodeId) -> Link {
        Link { a: (a, None), b: (b, None), spec: LinkSpec::SWITCH, risks: Vec::new() }
    }

    #[test]
    fn what_cannot_be_wired_is_refused_with_what_to_do() {
        let mut t = Topology::new("t");
        let h = t.add_node(node("h1", NodeKind::Host)).unwrap();
        let g = t.add_node(node("h2", NodeKind::Host)).unwrap();
        let s = t.add_node(node("s1", NodeKind::Switch)).unwrap();
        assert!(t.add_node(node("h1", NodeKind::Switch)).unwrap_err().what.contains("a host named h1"));
        assert!(t.add_link(link(s, s)).unwrap_err().what.contains("self-loop"));
        assert!(t.add_link(link(h, g)).unwrap_err().hint.contains("as a switch"));
        let mut named = link(h, s);
        named.a.1 = Some("eth0".into());
        t.add_link(named.clone()).unwrap();
        assert!(t.add_link(named.clone()).unwrap_err().what.contains("has two links"));
        named.a.1 = None;
        named.b.1 = Some("1".into());
        assert!(t.add_link(named).unwrap_err().what.contains("port of a switch"));
        for (spec, why) in [
            (LinkSpec { bandwidth_bps: 1, ..LinkSpec::HOST }, "bandwidth"),
            (LinkSpec { lambda_min_ns: 2_000_000_000, ..LinkSpec::HOST }, "above a second"),
            (LinkSpec { queue_bytes: 0, ..LinkSpec::HOST }, "0 bytes"),
            (LinkSpec { shared_bytes: u64::MAX, ..LinkSpec::HOST }, "1 GiB"),
        ] {
            let refused = t.add_link(Link { spec, ..link(g, s) }).unwrap_err();
            assert!(refused.what.contains(why), "{refused:?}");
        }
        assert_eq!(t.link_count(), 1, "a refused link leaves nothing");
    }

    #[test]
    fn names_carry_no_escape_sequences() {
        for bad in ["", "a b", "\x1b[31m", "<script>", "ü\u{202e}", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_name("rack-1/leaf_2.a").is_ok());
    }
}
