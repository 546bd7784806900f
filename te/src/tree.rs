//! Multicast trees, and what X-ADJ makes of them: worst-case λmin, δmax and π (X-Lane Alg. 1).
//!
//! Alg. 1 walks a tree from its leaves; here it is walked from its root, which adds the same terms.
//! Of every queue (u, v) on the way of a packet of tunnel T it takes
//!
//! * t, the transmission of the packet itself, σ(T)/bw;
//! * t′, that of one packet of every other tunnel of the queue, and of what is not of tunnels;
//! * λmin and δmax of the link.
//!
//! A packet's least latency is Σ(λmin + t), its greatest Σ(λmin + δmax + t + t′). Two packets of one
//! tunnel must never meet in a queue. The second one enters queue k at least π + Σ(λmin + t) after
//! the first was sent, and the first has left it after Σ(λmin + δmax + t + t′) + t + t′, so
//!
//! ```text
//! π ≥ Σ_{i<k}(t′ᵢ + δmaxᵢ) + t′ₖ + tₖ      for every queue k
//! ```
//!
//! Line 15 of Alg. 1, as printed, lacks tₖ: its `max` has one argument. Two tunnels on one link
//! without jitter would then be given the period of one packet, and send twice what the link can
//! (`docs/papers.md`).

use crate::fabric::{ArcId, ArcSpec, Fabric, Load, NONE};
use crate::topology::NodeId;

/// A switch of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Which.
    pub switch: u32,
    /// The hop before it, or [`NONE`] after the sender.
    pub parent: u32,
    /// The arc to it.
    pub arc: ArcId,
}

/// A class that a tree reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Which.
    pub class: u32,
    /// By which of its ports.
    pub port: u32,
    /// The hop whose switch that port is.
    pub hop: u32,
}

/// A tunnel: a directed tree from one sender to hosts (X-Lane §3.1). Hops are in an order in which
/// each comes after its parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Its switches.
    pub hops: Vec<Hop>,
    /// The classes that it reaches: all members but the sender.
    pub leaves: Vec<Leaf>,
}

/// What a tree promises, worst cases over all its receivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The least period π for which the others hold, ns.
    pub period_ns: u64,
    /// The least latency to the nearest receiver, ns.
    pub lambda_min_ns: u64,
    /// The greatest latency to the farthest one, ns.
    pub latency_max_ns: u64,
}

impl Bounds {
    /// δmax of the tunnel, ns.
    #[must_use]
    pub const fn delta_max_ns(&self) -> u64 {
        self.latency_max_ns - self.lambda_min_ns
    }
}

/// What is known of a packet where it enters a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    least_ns: u64,
    most_ns: u64,
    /// Σ(t′ + δmax): how much closer two packets may have come.
    spread_ns: u64,
}

/// What X-ADJ needs to know of the tunnel itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Who sends.
    pub sender: NodeId,
    /// Bytes of a packet on the wire, σ.
    pub sigma_bytes: u64,
}

/// How long a tunnel's packet takes to be sent. Most links are alike, and the division costs more than
/// all else that is done for one.
#[derive(Clone, Copy, Debug)]
struct Sending {
    sigma_bytes: u64,
    bandwidth_bps: u64,
    ns: u64,
}

impl Sending {
    const fn new(tunnel: Tunnel) -> Self {
        Sending { sigma_bytes: tunnel.sigma_bytes, bandwidth_bps: 0, ns: 0 }
    }

    fn floor_ns(&mut self, spec: &ArcSpec) -> u64 {
        if spec.bandwidth_bps != self.bandwidth_bps {
            (self.bandwidth_bps, self.ns) = (spec.bandwidth_bps, spec.send_floor_ns(self.sigma_bytes));
        }
        self.ns
    }
}

impl Way {
    /// Past one queue; the period that this queue asks for comes as well.
    fn past(self, spec: &ArcSpec, wait_ns: u64, sending: &mut Sending) -> (Way, u64) {
        let own_ns = sending.floor_ns(spec);
        let others_ns = wait_ns - own_ns.min(wait_ns);
        let way = Way {
            least_ns: self.least_ns + spec.lambda_min_ns + own_ns,
            most_ns: self.most_ns + spec.lambda_min_ns + spec.delta_max_ns + wait_ns,
            spread_ns: self.spread_ns + others_ns + spec.delta_max_ns,
        };
        (way, (self.spread_ns + wait_ns).max(way.spread_ns))
    }
}

impl Tree {
    /// All its arcs, those to hosts as well.
    pub fn arcs<'a>(&'a self, fabric: &'a Fabric, sender: NodeId) -> impl Iterator<Item = ArcId> + 'a {
        let leaves = self.leaves.iter().flat_map(move |leaf| {
            let members = fabric.classes[leaf.class as usize].members.iter();
            members.filter(move |member| member.host != sender).map(move |m| m.down[leaf.port as usize])
        });
        self.hops.iter().map(|hop| hop.arc).chain(leaves)
    }

    /// The hop that has a switch.
    #[must_use]
    pub fn hop_of(&self, switch: u32) -> Option<u32> {
        self.hops.iter().position(|hop| hop.switch == switch).map(|at| at as u32)
    }

    /// The leaf of a class.
    #[must_use]
    pub fn leaf_of(&self, class: u32) -> Option<&Leaf> {
        self.leaves.iter().find(|leaf| leaf.class == class)
    }

    /// The arcs from the sender to a host, in their order; empty if the tree does not reach it.
    #[must_use]
    pub fn path(&self, fabric: &Fabric, host: NodeId) -> Vec<ArcId> {
        let Some(leaf) = fabric.class_of(host).and_then(|class| self.leaf_of(class)) else { return Vec::new() };
        let members = &fabric.classes[leaf.class as usize].members;
        let Some(member) = members.iter().find(|member| member.host == host) else { return Vec::new() };
        let mut path = vec![member.down[leaf.port as usize]];
        let mut at = leaf.hop;
        while at != NONE {
            let hop = self.hops[at as usize];
            path.push(hop.arc);
            at = hop.parent;
        }
        path.reverse();
        path
    }

    /// Counts the tree in the load of its arcs, or takes it out again.
    pub fn count(&self, fabric: &Fabric, load: &mut Load, tunnel: Tunnel, add: bool) {
        for arc in self.arcs(fabric, tunnel.sender) {
            load.change(fabric, arc, tunnel.sigma_bytes, add);
        }
        for leaf in &self.leaves {
            load.refresh_port(fabric, leaf.class, leaf.port as usize);
        }
    }

    /// X-ADJ: what the tree promises under a load that contains it.
    #[must_use]
    pub fn bounds(&self, fabric: &Fabric, load: &Load, tunnel: Tunnel) -> Bounds {
        let mut bounds = Bounds { lambda_min_ns: u64::MAX, ..Bounds::default() };
        let mut sending = Sending::new(tunnel);
        let ways = self.ways(fabric, load, &mut sending, &mut bounds);
        let sender_class = fabric.class_of(tunnel.sender);
        for leaf in &self.leaves {
            let class = &fabric.classes[leaf.class as usize];
            let mut reach = |arc: ArcId, wait_ns: u64| {
                let before = ways[leaf.hop as usize];
                let (way, period_ns) = before.past(&fabric.arcs[arc as usize], wait_ns, &mut sending);
                bounds.period_ns = bounds.period_ns.max(period_ns);
                bounds.lambda_min_ns = bounds.lambda_min_ns.min(way.least_ns);
                bounds.latency_max_ns = bounds.latency_max_ns.max(way.most_ns);
            };
            if sender_class == Some(leaf.class) {
                // Nothing is sent to the sender, whose own arc may be the busiest of its class.
                for member in class.members.iter().filter(|member| member.host != tunnel.sender) {
                    let arc = member.down[leaf.port as usize];
                    reach(arc, load.wait_ns[arc as usize]);
                }
            } else if let Some(member) = class.members.first() {
                let wait_ns = load.leaf_wait_ns[(class.first_port + leaf.port) as usize];
                reach(member.down[leaf.port as usize], wait_ns);
            }
        }
        bounds.period_ns = bounds.period_ns.max(self.share_period_ns(fabric, load, tunnel));
        bounds.lambda_min_ns = bounds.lambda_min_ns.min(bounds.latency_max_ns);
        bounds
    }

    /// The least and the greatest latency to one host, ns, if the tree reaches it.
    #[must_use]
    pub fn latency_to(&self, fabric: &Fabric, load: &Load, tunnel: Tunnel, host: NodeId) -> Option<(u64, u64)> {
        let path = self.path(fabric, host);
        let (mut way, mut sending) = (Way::default(), Sending::new(tunnel));
        for arc in &path {
            let at = *arc as usize;
            way = way.past(&fabric.arcs[at], load.wait_ns[at], &mut sending).0;
        }
        (!path.is_empty()).then_some((way.least_ns, way.most_ns))
    }

    fn ways(&self, fabric: &Fabric, load: &Load, sending: &mut Sending, bounds: &mut Bounds) -> Vec<Way> {
        let mut ways: Vec<Way> = Vec::with_capacity(self.hops.len());
        for hop in &self.hops {
            let before = if hop.parent == NONE { Way::default() } else { ways[hop.parent as usize] };
            let wait_ns = load.wait_ns[hop.arc as usize];
            let (way, period_ns) = before.past(&fabric.arcs[hop.arc as usize], wait_ns, sending);
            bounds.period_ns = bounds.period_ns.max(period_ns);
            ways.push(way);
        }
        ways
    }

    /// The period at which all tunnels together keep to the lane's share of every link.
    ///
    /// Each tunnel of a link has at least the period in which one packet of all of them is sent at
    /// that share, so the sum of their rates is within it.
    fn share_period_ns(&self, fabric: &Fabric, load: &Load, tunnel: Tunnel) -> u64 {
        let percent = u64::from(fabric.limits.bandwidth_percent.max(1));
        if percent >= 100 {
            return 0;
        }
        let slowest = self.arcs(fabric, tunnel.sender);
        let at_share = |arc: ArcId| {
            let spec = &fabric.arcs[arc as usize];
            (u128::from(spec.send_ns(load.bytes[arc as usize])) * 100).div_ceil(u128::from(percent))
        };
        slowest.map(at_share).max().map_or(0, |ns| u64::try_from(ns).unwrap_or(u64::MAX))
    }
}
