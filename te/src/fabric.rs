//! What a planner sees of a topology: its switches with the links it may use, and the hosts of one
//! group, those with like links as one class.
//!
//! Hosts of a class are on the same switches by like links, so one tree reaches all of them through
//! the same switch. Trees of a thousand hosts are thus found on a graph of some hundred switches.

use crate::topology::{LinkId, LinkSpec, NodeId, Topology};
use std::collections::HashMap;

/// No switch, class or hop.
pub const NONE: u32 = u32::MAX;

/// One direction of a link: twice its number, plus one from its second end to its first.
pub type ArcId = u32;

/// What of the network a plan may use (FiDe §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most of a link's bandwidth that the lane may take, percent, 1 to 100.
    pub bandwidth_percent: u32,
    /// Most of an egress queue that the lane may take, percent, 1 to 100.
    pub queue_percent: u32,
    /// Whether links may be used whose bounds are not certain.
    pub uncertain: bool,
}

impl Default for Limits {
    /// All of every certain link.
    fn default() -> Self {
        Limits { bandwidth_percent: 100, queue_percent: 100, uncertain: false }
    }
}

/// What the planner needs of one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArcSpec {
    /// Bandwidth β, bit/s.
    pub bandwidth_bps: u64,
    /// What the lane may have in the egress queue, bytes.
    pub room_bytes: u64,
    /// Least delay, ns.
    pub lambda_min_ns: u64,
    /// Jitter, ns.
    pub delta_max_ns: u64,
    /// What may be before a packet though no tunnel sent it, bytes: one frame of lower priority
    /// whose transmission has begun, and what other services have in the same queue.
    pub extra_bytes: u64,
}

impl ArcSpec {
    fn new(spec: &LinkSpec, limits: Limits) -> Self {
        let room = u128::from(spec.queue_bytes) * u128::from(limits.queue_percent) / 100;
        ArcSpec {
            bandwidth_bps: spec.bandwidth_bps,
            room_bytes: u64::try_from(room).unwrap_or(u64::MAX).saturating_sub(spec.shared_bytes),
            lambda_min_ns: spec.lambda_min_ns,
            delta_max_ns: spec.delta_max_ns,
            extra_bytes: spec.blocking_bytes + spec.shared_bytes,
        }
    }

    /// How long so many bytes take to be sent, rounded up, ns.
    #[must_use]
    pub fn send_ns(&self, bytes: u64) -> u64 {
        if bytes <= SMALL_BYTES {
            return (bytes * NS_OF_BYTE).div_ceil(self.bandwidth_bps);
        }
        let ns = (u128::from(bytes) * u128::from(NS_OF_BYTE)).div_ceil(u128::from(self.bandwidth_bps));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// The same rounded down: of the least latency.
    #[must_use]
    pub fn send_floor_ns(&self, bytes: u64) -> u64 {
        if bytes <= SMALL_BYTES {
            return bytes * NS_OF_BYTE / self.bandwidth_bps;
        }
        let ns = u128::from(bytes) * u128::from(NS_OF_BYTE) / u128::from(self.bandwidth_bps);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// How long a byte takes at 1 bit/s, ns.
const NS_OF_BYTE: u64 = 8_000_000_000;
/// So many bytes times [`NS_OF_BYTE`] fit in 64 bits, which are divided several times as fast.
const SMALL_BYTES: u64 = u64::MAX / NS_OF_BYTE - 1;

/// A step to the next switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which.
    pub to: u32,
    /// By which arc.
    pub arc: ArcId,
}

/// A host in its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which host.
    pub host: NodeId,
    /// The arcs to it, one for each of the class's ports.
    pub down: Vec<ArcId>,
}

/// Hosts with like links to the same switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The switches; one twice where two cables go there.
    pub ports: Vec<u32>,
    /// The hosts.
    pub members: Vec<Member>,
    /// Its first port among those of all classes.
    pub first_port: u32,
}

impl Class {
    /// Its switches, each once.
    #[must_use]
    pub fn switches(&self) -> Vec<u32> {
        let mut switches = self.ports.clone();
        switches.sort_unstable();
        switches.dedup();
        switches
    }
}

/// The network as the planner sees it. Switches are numbered from 0 in the topology's order.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// What may be used.
    pub limits: Limits,
    /// Of every arc of the topology.
    pub arcs: Vec<ArcSpec>,
    /// Which links may be used.
    pub usable: Vec<bool>,
    /// The node of each switch.
    pub switches: Vec<NodeId>,
    /// The classes.
    pub classes: Vec<Class>,
    /// The classes of each switch.
    pub classes_at: Vec<Vec<u32>>,
    /// Switches that separate others when they fail, each with the part every other one is in then.
    pub cuts: Vec<(u32, Vec<u32>)>,
    switch_of: Vec<u32>,
    class_of: Vec<u32>,
    by_key: HashMap<Key, u32>,
    first_step: Vec<u32>,
    steps: Vec<Step>,
    ports: u32,
}

/// What hosts of one class have in common: switches and links.
type Key = Vec<(u32, u64, u64, u64, u64, u64)>;

impl Fabric {
    /// The switches and usable links of a topology, without a host yet.
    #[must_use]
    pub fn new(topology: &Topology, limits: Limits) -> Self {
        Self::without(topology, limits, |_| false, |_| false)
    }

    /// The same without some switches and links: what is left after failures.
    #[must_use]
    pub fn without(
        topology: &Topology,
        limits: Limits,
        node_gone: impl Fn(NodeId) -> bool,
        link_gone: impl Fn(LinkId) -> bool,
    ) -> Self {
        let mut arcs = Vec::with_capacity(2 * topology.link_count());
        let mut usable = Vec::with_capacity(topology.link_count());
        for id in topology.links() {
            let link = topology.link(id);
            arcs.extend([ArcSpec::new(&link.spec, limits); 2]);
            let there = !node_gone(link.a.0) && !node_gone(link.b.0) && !link_gone(id);
            usable.push(there && (link.spec.certain || limits.uncertain));
        }
        let switches: Vec<NodeId> = topology.switches().filter(|id| !node_gone(*id)).collect();
        let mut switch_of = vec![NONE; topology.node_count()];
        for (at, id) in switches.iter().enumerate() {
            switch_of[id.index()] = at as u32;
        }
        let mut fabric = Fabric {
            limits,
            arcs,
            usable,
            classes: Vec::new(),
            classes_at: vec![Vec::new(); switches.len()],
            cuts: Vec::new(),
            class_of: vec![NONE; topology.node_count()],
            by_key: HashMap::new(),
            first_step: Vec::new(),
            steps: Vec::new(),
            ports: 0,
            switches,
            switch_of,
        };
        fabric.fill_steps(topology);
        fabric.fill_cuts();
        fabric
    }

    fn fill_steps(&mut self, topology: &Topology) {
        for at in &self.switches {
            self.first_step.push(self.steps.len() as u32);
            for (link, other) in topology.links_of(*at) {
                let to = self.switch_of[other.index()];
                if self.usable[link.index()] && to != NONE {
                    self.steps.push(Step { to, arc: arc_from(topology, link, *at) });
                }
            }
        }
        self.first_step.push(self.steps.len() as u32);
    }

    /// A switch separates others if the rest falls into more parts without it.
    fn fill_cuts(&mut self) {
        let n = self.switches.len();
        let (_, parts) = self.parts(NONE);
        for gone in 0..n as u32 {
            let alone = usize::from(self.steps(gone).is_empty());
            let (labels, count) = self.parts(gone);
            if count > parts - alone {
                self.cuts.push((gone, labels));
            }
        }
    }

    /// The connected part of each switch when one is gone, and how many parts there are.
    #[must_use]
    pub fn parts(&self, gone: u32) -> (Vec<u32>, usize) {
        let mut label = vec![NONE; self.switches.len()];
        let mut count = 0;
        let mut open = Vec::new();
        for start in 0..self.switches.len() as u32 {
            if start == gone || label[start as usize] != NONE {
                continue;
            }
            label[start as usize] = count;
            open.push(start);
            while let Some(at) = open.pop() {
                for step in self.steps(at) {
                    if step.to != gone && label[step.to as usize] == NONE {
                        label[step.to as usize] = count;
                        open.push(step.to);
                    }
                }
            }
            count += 1;
        }
        (label, count as usize)
    }

    /// The steps from a switch to others.
    #[must_use]
    pub fn steps(&self, switch: u32) -> &[Step] {
        let at = switch as usize;
        &self.steps[self.first_step[at] as usize..self.first_step[at + 1] as usize]
    }

    /// Takes a host into the group. `true` if it is the first of its class.
    pub fn join(&mut self, topology: &Topology, host: NodeId) -> bool {
        if self.class_of[host.index()] != NONE {
            return false;
        }
        let mut ports: Vec<(Key, ArcId)> = Vec::new();
        for (link, switch) in topology.links_of(host) {
            let at = self.switch_of[switch.index()];
            if self.usable[link.index()] && at != NONE {
                let arc = arc_from(topology, link, switch);
                let spec = self.arcs[arc as usize];
                let key = (at, spec.bandwidth_bps, spec.room_bytes, spec.lambda_min_ns, spec.delta_max_ns, spec.extra_bytes);
                ports.push((vec![key], arc));
            }
        }
        ports.sort();
        let key: Key = ports.iter().flat_map(|(key, _)| key.iter().copied()).collect();
        let member = Member { host, down: ports.iter().map(|(_, arc)| *arc).collect() };
        let next = self.classes.len() as u32;
        let class = *self.by_key.entry(key.clone()).or_insert(next);
        self.class_of[host.index()] = class;
        if class != next {
            self.classes[class as usize].members.push(member);
            return false;
        }
        let ports: Vec<u32> = key.iter().map(|port| port.0).collect();
        let first_port = self.ports;
        self.ports += ports.len() as u32;
        let new = Class { ports, members: vec![member], first_port };
        for switch in new.switches() {
            self.classes_at[switch as usize].push(class);
        }
        self.classes.push(new);
        true
    }

    /// Takes a host out of the group. Its class stays, if need be without members.
    pub fn leave(&mut self, host: NodeId) {
        let class = std::mem::replace(&mut self.class_of[host.index()], NONE);
        if class != NONE {
            self.classes[class as usize].members.retain(|member| member.host != host);
        }
    }

    /// The class of a host of the group.
    #[must_use]
    pub fn class_of(&self, host: NodeId) -> Option<u32> {
        Some(self.class_of[host.index()]).filter(|class| *class != NONE)
    }

    /// How many ports all classes have together.
    #[must_use]
    pub fn port_count(&self) -> usize {
        self.ports as usize
    }

    /// How many hosts are in the group.
    #[must_use]
    pub fn host_count(&self) -> usize {
        self.classes.iter().map(|class| class.members.len()).sum()
    }

    /// Whether two classes keep a connection whichever switch fails, with two switches each.
    #[must_use]
    pub fn redundant(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.classes[a as usize], &self.classes[b as usize]);
        a.switches().len() > 1
            && b.switches().len() > 1
            && self.cuts.iter().all(|(gone, part)| {
                let parts = |class: &Class| -> Vec<u32> {
                    class.ports.iter().filter(|s| *s != gone).map(|s| part[*s as usize]).collect()
                };
                let there = parts(b);
                parts(a).iter().any(|part| there.contains(part))
            })
    }
}

/// The arc of a link that leaves this end.
fn arc_from(topology: &Topology, link: LinkId, from: NodeId) -> ArcId {
    2 * link.index() as u32 + u32::from(topology.link(link).a.0 != from)
}

/// What tunnels send over each arc.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Σσ of the tunnels, bytes.
    pub bytes: Vec<u64>,
    /// How many there are.
    pub tunnels: Vec<u32>,
    /// How long one packet of each and what is not of tunnels take to be sent, ns.
    pub wait_ns: Vec<u64>,
    /// The largest of these to any member of a class, by the class's ports.
    pub leaf_wait_ns: Vec<u64>,
}

impl Load {
    /// Without a tunnel.
    #[must_use]
    pub fn new(fabric: &Fabric) -> Self {
        let mut load = Load {
            bytes: vec![0; fabric.arcs.len()],
            tunnels: vec![0; fabric.arcs.len()],
            wait_ns: fabric.arcs.iter().map(|arc| arc.send_ns(arc.extra_bytes)).collect(),
            leaf_wait_ns: Vec::new(),
        };
        load.refresh(fabric);
        load
    }

    /// Adds a tunnel to an arc, or takes one away.
    pub fn change(&mut self, fabric: &Fabric, arc: ArcId, sigma_bytes: u64, add: bool) {
        let at = arc as usize;
        if add {
            self.bytes[at] += sigma_bytes;
            self.tunnels[at] += 1;
        } else {
            self.bytes[at] -= sigma_bytes;
            self.tunnels[at] -= 1;
        }
        let spec = &fabric.arcs[at];
        self.wait_ns[at] = spec.send_ns(self.bytes[at] + spec.extra_bytes);
    }

    /// What the arcs of a class's port wait at most.
    pub fn refresh_port(&mut self, fabric: &Fabric, class: u32, port: usize) {
        let class = &fabric.classes[class as usize];
        let wait = class.members.iter().map(|member| self.wait_ns[member.down[port] as usize]).max();
        self.leaf_wait_ns[class.first_port as usize + port] = wait.unwrap_or(0);
    }

    /// The same of all ports, after hosts have joined or left.
    pub fn refresh(&mut self, fabric: &Fabric) {
        self.leaf_wait_ns.resize(fabric.port_count(), 0);
        for (class, of) in fabric.classes.iter().enumerate() {
            (0..of.ports.len()).for_each(|port| self.refresh_port(fabric, class as u32, port));
        }
    }

    /// Whether one packet more of every tunnel fits into the queue: Σσ ≤ qlen (X-Lane App. A.2).
    #[must_use]
    pub fn fits(&self, fabric: &Fabric, arc: ArcId, sigma_bytes: u64) -> bool {
        self.bytes[arc as usize] + sigma_bytes <= fabric.arcs[arc as usize].room_bytes
    }
}
