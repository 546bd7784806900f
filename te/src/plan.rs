//! A plan: the trees of every sender of a group, the contracts that follow, joins and leaves.
//!
//! Every host of the group sends to all others (FiDe §3.3). Trees are found one sender after the
//! other under the load of those before (X-Lane §3.2), then all are adjusted together: what one
//! tunnel promises depends on all.

use crate::fabric::{Fabric, Limits, Load, NONE};
use crate::independent::independent;
use crate::search::{Effort, Found, TREES_MAX, Task, disjoint};
use crate::topology::{NodeId, Topology};
use crate::tree::{Bounds, Hop, Leaf, Tree, Tunnel};

/// What is asked for, the same for every sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes of a packet on the wire, σ: see [`wire_bytes`].
    pub sigma_bytes: u64,
    /// The period asked for, ns. The plan may need a longer one.
    pub period_ns: u64,
    /// How many trees each sender is to have, 1 to [`TREES_MAX`].
    pub trees: usize,
}

/// What Ethernet adds to an IP packet on the wire: header and checksum (18 B), preamble and gap
/// (20 B), and filling up to the shortest frame.
#[must_use]
pub const fn wire_bytes(ip_bytes: u64) -> u64 {
    let filled = if ip_bytes < 46 { 46 } else { ip_bytes };
    filled + 38
}

/// How much a sender's trees have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// No switch is in two of them (FiDe App. B).
    Disjoint,
    /// No host's two paths share a switch, though trees do ([`crate::independent`]).
    Independent,
    /// One tree: a single failure may silence the sender for others.
    Single,
}

/// The trees of one sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Who sends.
    pub sender: NodeId,
    /// How much the trees have in common.
    pub redundancy: Redundancy,
    /// The trees.
    pub trees: Vec<Tree>,
}

/// What a set of trees promises to one receiver, or at worst to any (FiDe App. B).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contract {
    /// πmin, ns.
    pub period_ns: u64,
    /// λmin, ns.
    pub lambda_min_ns: u64,
    /// δmax, ns.
    pub delta_max_ns: u64,
}

impl Contract {
    /// TO = HB + λmin + 2·δmax (FiDe §3.3), where the heartbeat interval is at least π, ns.
    #[must_use]
    pub fn timeout_ns(&self, heartbeat_ns: u64) -> u64 {
        heartbeat_ns.max(self.period_ns) + self.lambda_min_ns + 2 * self.delta_max_ns
    }

    /// λmin + δmax, ns.
    #[must_use]
    pub fn latency_max_ns(&self) -> u64 {
        self.lambda_min_ns + self.delta_max_ns
    }

    /// What several trees promise together: a receiver takes whichever copy comes first, and relies
    /// on none (FiDe App. B).
    fn of(all: &[Bounds]) -> Self {
        let lambda_min_ns = all.iter().map(|b| b.lambda_min_ns).min().unwrap_or(0);
        let latency_max_ns = all.iter().map(|b| b.latency_max_ns).max().unwrap_or(0);
        Contract {
            period_ns: all.iter().map(|b| b.period_ns).max().unwrap_or(0),
            lambda_min_ns,
            delta_max_ns: latency_max_ns - lambda_min_ns,
        }
    }
}

/// Why a host cannot be planned for. What was planned before stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct PlanError {
    /// What cannot be, and why.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

fn refuse(what: impl Into<String>, hint: impl Into<String>) -> PlanError {
    PlanError { what: what.into(), hint: hint.into() }
}

/// The plan of a group.
#[derive(Clone, Debug)]
pub struct Plan {
    fabric: Fabric,
    load: Load,
    request: Request,
    sets: Vec<Set>,
    effort: Option<Effort>,
}

impl Plan {
    /// Plans for a group of hosts.
    ///
    /// # Errors
    /// No trees are asked for or too many; a host cannot be reached; or the queues of a link have
    /// no room for one packet of every tunnel (X-Lane App. A.2).
    pub fn new(topology: &Topology, hosts: &[NodeId], request: Request, limits: Limits) -> Result<Self, PlanError> {
        Self::of(topology, Fabric::new(topology, limits), hosts, request, None)
    }

    /// The same on what is left of a network, with so much effort for each sender, or with what fits.
    ///
    /// # Errors
    /// As for [`Plan::new`].
    pub fn of(
        topology: &Topology,
        fabric: Fabric,
        hosts: &[NodeId],
        request: Request,
        effort: Option<Effort>,
    ) -> Result<Self, PlanError> {
        if !(1..=TREES_MAX).contains(&request.trees) {
            return Err(refuse(
                format!("{} trees for each sender cannot be planned", request.trees),
                format!("ask for 1 to {TREES_MAX}"),
            ));
        }
        let mut fabric = fabric;
        for host in hosts {
            fabric.join(topology, *host);
        }
        let load = Load::new(&fabric);
        let mut plan = Plan { fabric, load, request, sets: Vec::new(), effort };
        for host in hosts {
            let set = plan.find(topology, *host)?;
            plan.count(&set, true);
            plan.sets.push(set);
        }
        Ok(plan)
    }

    /// Takes in one more host: its own trees, and a leaf in everybody else's. The others' trees stay
    /// where they are.
    ///
    /// # Errors
    /// As for [`Plan::new`]; the host is in the group already.
    pub fn join(&mut self, topology: &Topology, host: NodeId) -> Result<(), PlanError> {
        let name = topology.name_of(host);
        if self.fabric.class_of(host).is_some() {
            return Err(refuse(format!("{name} is in the group already"), "nothing is to be done"));
        }
        self.fabric.join(topology, host);
        let Some(class) = self.fabric.class_of(host) else {
            return Err(refuse(format!("{name} has no class"), "report this as a bug"));
        };
        self.load.refresh(&self.fabric);
        self.admit(host, class);
        let mut replaced = Vec::new();
        let extended = self.extend(topology, class, &mut replaced);
        match extended.and_then(|()| self.check_room(topology, host)).and_then(|()| self.find(topology, host)) {
            Ok(set) => {
                self.count(&set, true);
                self.sets.push(set);
                Ok(())
            }
            Err(refused) => {
                for (at, old) in replaced {
                    let new = std::mem::replace(&mut self.sets[at], old.clone());
                    self.count(&new, false);
                    self.count(&old, true);
                }
                self.remove_receiver(host, class);
                Err(refused)
            }
        }
    }

    /// Takes out a host: its trees, and its leaf in the others'.
    ///
    /// # Errors
    /// The host is not in the group.
    pub fn leave(&mut self, topology: &Topology, host: NodeId) -> Result<(), PlanError> {
        let (Some(class), Some(at)) = (self.fabric.class_of(host), self.sets.iter().position(|set| set.sender == host)) else {
            return Err(refuse(format!("{} is not in the group", topology.name_of(host)), "nothing is to be done"));
        };
        let set = self.sets.remove(at);
        self.count(&set, false);
        self.remove_receiver(host, class);
        Ok(())
    }

    /// Counts the arcs to a new host of those trees that reach its class already.
    fn admit(&mut self, host: NodeId, class: u32) {
        let down = self.down_of(host, class);
        for set in &self.sets {
            for leaf in set.trees.iter().filter_map(|tree| tree.leaf_of(class)) {
                self.load.change(&self.fabric, down[leaf.port as usize], self.request.sigma_bytes, true);
            }
        }
        (0..down.len()).for_each(|port| self.load.refresh_port(&self.fabric, class, port));
    }

    fn down_of(&self, host: NodeId, class: u32) -> Vec<u32> {
        let members = &self.fabric.classes[class as usize].members;
        members.iter().find(|member| member.host == host).map(|member| member.down.clone()).unwrap_or_default()
    }

    /// Leads those sets to a class that do not reach it. What they replace is kept for the way back.
    fn extend(&mut self, topology: &Topology, class: u32, replaced: &mut Vec<(usize, Set)>) -> Result<(), PlanError> {
        for at in 0..self.sets.len() {
            if self.sets[at].trees.iter().any(|tree| tree.leaf_of(class).is_some()) {
                continue;
            }
            let old = self.sets[at].clone();
            if let Some(new) = extended(&self.fabric, &old, class) {
                self.count_more(&old, &new);
                self.sets[at] = new;
            } else {
                self.count(&old, false);
                let new = self.find(topology, old.sender);
                let (refused, set) = new.map_or_else(|e| (Some(e), old.clone()), |new| (None, new));
                self.count(&set, true);
                self.sets[at] = set;
                if let Some(refused) = refused {
                    return Err(refused);
                }
            }
            replaced.push((at, old));
        }
        Ok(())
    }

    /// Counts what a set has beyond the one that it was extended from.
    fn count_more(&mut self, old: &Set, new: &Set) {
        for (old, tree) in old.trees.iter().zip(&new.trees) {
            for hop in &tree.hops[old.hops.len()..] {
                self.load.change(&self.fabric, hop.arc, self.request.sigma_bytes, true);
            }
            for leaf in &tree.leaves[old.leaves.len()..] {
                let members = &self.fabric.classes[leaf.class as usize].members;
                for member in members.iter().filter(|member| member.host != new.sender) {
                    let arc = member.down[leaf.port as usize];
                    self.load.change(&self.fabric, arc, self.request.sigma_bytes, true);
                }
                self.load.refresh_port(&self.fabric, leaf.class, leaf.port as usize);
            }
        }
    }

    /// Whether the queues still hold one packet of every tunnel, after trees were extended.
    fn check_room(&self, topology: &Topology, host: NodeId) -> Result<(), PlanError> {
        let class = self.fabric.class_of(host).unwrap_or(0);
        let down = self.down_of(host, class);
        let near = self.fabric.classes[class as usize].ports.iter();
        let near = near.flat_map(|switch| self.fabric.steps(*switch).iter().flat_map(|step| [step.arc, step.arc ^ 1]));
        let full = down.iter().copied().chain(near).find(|arc| !self.load.fits(&self.fabric, *arc, 0));
        full.map_or(Ok(()), |arc| Err(self.no_room(topology, arc)))
    }

    fn remove_receiver(&mut self, host: NodeId, class: u32) {
        let members = &self.fabric.classes[class as usize].members;
        let down = members.iter().find(|member| member.host == host).map(|member| member.down.clone());
        for arc in down.unwrap_or_default() {
            while self.load.tunnels[arc as usize] > 0 {
                self.load.change(&self.fabric, arc, self.request.sigma_bytes, false);
            }
        }
        self.fabric.leave(host);
        self.load.refresh(&self.fabric);
        // A tree that leads to an emptied class keeps its leaf for who comes next.
    }

    fn count(&mut self, set: &Set, add: bool) {
        let tunnel = self.tunnel(set.sender);
        for tree in &set.trees {
            tree.count(&self.fabric, &mut self.load, tunnel, add);
        }
    }

    fn tunnel(&self, sender: NodeId) -> Tunnel {
        Tunnel { sender, sigma_bytes: self.request.sigma_bytes }
    }

    /// The best trees of one sender, under the load that there is.
    fn find(&self, topology: &Topology, sender: NodeId) -> Result<Set, PlanError> {
        let task = Task::new(&self.fabric, &self.load, self.tunnel(sender));
        let class = &self.fabric.classes[task.class as usize];
        let k = self.request.trees.min(class.switches().len());
        let effort = self.effort.unwrap_or_else(|| Effort::fitting(&self.fabric));
        let mut found: Option<(Redundancy, Found)> = None;
        for k in (2..=k).rev() {
            found = disjoint(task, k, effort).map(|found| (Redundancy::Disjoint, found));
            if found.is_some() {
                break;
            }
        }
        if found.is_none() && k > 1 {
            found = independent(task).map(|found| (Redundancy::Independent, found));
        }
        if found.is_none() && k > 0 {
            found = disjoint(task, 1, effort).map(|found| (Redundancy::Single, found));
        }
        let reached = |class: u32| found.iter().any(|(_, f)| f.trees.iter().any(|tree| tree.leaf_of(class).is_some()));
        let classes = 0..self.fabric.classes.len() as u32;
        let mut missing = classes.into_iter().filter(|class| task.has_receivers(*class) && !reached(*class));
        let lost = if found.is_some() { missing.next() } else { self.parted(task.class, &missing.collect::<Vec<_>>()) };
        match (found, lost) {
            (Some((redundancy, found)), None) => Ok(Set { sender, redundancy, trees: found.trees }),
            // Alone, a host has nobody to send to.
            (None, None) if self.fabric.host_count() < 2 => Ok(Set { sender, redundancy: Redundancy::Single, trees: Vec::new() }),
            (_, lost) => Err(self.unreached(topology, sender, lost)),
        }
    }

    /// The first of these classes that no way leads to, else the first one.
    fn parted(&self, from: u32, classes: &[u32]) -> Option<u32> {
        let (part, _) = self.fabric.parts(NONE);
        let parts = |class: u32| self.fabric.classes[class as usize].ports.iter().map(|s| part[*s as usize]);
        let parted = classes.iter().find(|class| !parts(**class).any(|p| parts(from).any(|own| own == p)));
        parted.or(classes.first()).copied()
    }

    /// Why a sender cannot be given trees.
    fn unreached(&self, topology: &Topology, sender: NodeId, lost: Option<u32>) -> PlanError {
        let receivers = lost.map(|class| &self.fabric.classes[class as usize].members);
        let receiver = receivers.and_then(|m| m.iter().find(|member| member.host != sender)).map(|member| member.host);
        let own = self.fabric.class_of(sender).map(|class| &self.fabric.classes[class as usize]);
        for (host, class) in [(Some(sender), own), (receiver, lost.map(|c| &self.fabric.classes[c as usize]))] {
            if let (Some(host), Some(true)) = (host, class.map(|class| class.ports.is_empty())) {
                let links = topology.links_of(host).count();
                return refuse(
                    format!("{} is on no switch that may be used ({links} links in the file)", topology.name_of(host)),
                    "connect it, leave it out with --hosts, or allow links without certain bounds with --uncertain",
                );
            }
        }
        let arcs = (0..self.fabric.arcs.len() as u32).filter(|arc| self.fabric.usable[*arc as usize / 2]);
        let full = arcs.into_iter().find(|arc| !self.load.fits(&self.fabric, *arc, self.request.sigma_bytes));
        if let Some(arc) = full {
            return self.no_room(topology, arc);
        }
        let to = receiver.map_or("the others", |host| topology.name_of(host));
        refuse(
            format!("no way leads from {} to {to} over links that may be used", topology.name_of(sender)),
            "see whether a link is missing in the file, or allow links without certain bounds with --uncertain",
        )
    }

    fn no_room(&self, topology: &Topology, arc: u32) -> PlanError {
        let link = topology.link_name(crate::topology::LinkId::new(arc as usize / 2));
        let (tunnels, room) = (self.load.tunnels[arc as usize], self.fabric.arcs[arc as usize].room_bytes);
        let sigma = self.request.sigma_bytes;
        refuse(
            format!(
                "the queue of {link} has room for {room} B, and one packet of each of {} tunnels needs {} B",
                u64::from(tunnels) + 1,
                self.load.bytes[arc as usize] + sigma
            ),
            "shorten the packets (--size), give the lane more of the queue (--queue-share), or split the group",
        )
    }

    /// The group.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// What the tunnels send over each arc.
    #[must_use]
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// What was asked for.
    #[must_use]
    pub fn request(&self) -> Request {
        self.request
    }

    /// The trees of every sender.
    #[must_use]
    pub fn sets(&self) -> &[Set] {
        &self.sets
    }

    /// X-ADJ for one tree.
    #[must_use]
    pub fn bounds(&self, set: &Set, tree: usize) -> Bounds {
        set.trees[tree].bounds(&self.fabric, &self.load, self.tunnel(set.sender))
    }

    /// What a sender promises to all others, at worst.
    #[must_use]
    pub fn contract(&self, set: &Set) -> Contract {
        let all: Vec<Bounds> = (0..set.trees.len()).map(|tree| self.bounds(set, tree)).collect();
        Contract::of(&all)
    }

    /// What a sender promises to one receiver; `None` if no tree leads there.
    #[must_use]
    pub fn contract_to(&self, set: &Set, host: NodeId) -> Option<Contract> {
        let tunnel = self.tunnel(set.sender);
        let period_ns = self.contract(set).period_ns;
        let ways = set.trees.iter().filter_map(|tree| tree.latency_to(&self.fabric, &self.load, tunnel, host));
        let all: Vec<Bounds> =
            ways.map(|(least, most)| Bounds { period_ns, lambda_min_ns: least, latency_max_ns: most }).collect();
        (!all.is_empty()).then(|| Contract::of(&all))
    }

    /// What every sender promises, in their order: X-ADJ for all tunnels.
    #[must_use]
    pub fn contracts(&self) -> Vec<Contract> {
        self.sets.iter().map(|set| self.contract(set)).collect()
    }

    /// Receivers that only one of several trees reaches.
    #[must_use]
    pub fn reached_once(&self, set: &Set) -> Vec<NodeId> {
        let classes = 0..self.fabric.classes.len() as u32;
        let reaching = |class: u32| set.trees.iter().filter(|tree| tree.leaf_of(class).is_some()).count();
        let short = classes.filter(|class| set.trees.len() > 1 && reaching(*class) == 1);
        let members = short.flat_map(|class| self.fabric.classes[class as usize].members.iter());
        members.map(|member| member.host).filter(|host| *host != set.sender).collect()
    }

    /// What all tunnels send over an arc if each has this period, bit/s.
    #[must_use]
    pub fn rate_bps(&self, arc: u32, period_ns: u64) -> u64 {
        let bits = u128::from(self.load.bytes[arc as usize]) * 8_000_000_000;
        u64::try_from(bits.div_ceil(u128::from(period_ns.max(1)))).unwrap_or(u64::MAX)
    }
}

/// A set whose trees reach one more class, each by a shortest way through switches that no tree has.
/// `None`: there is none for each tree.
fn extended(fabric: &Fabric, set: &Set, class: u32) -> Option<Set> {
    if set.redundancy == Redundancy::Independent {
        return None;
    }
    let mut owner = vec![u8::MAX; fabric.switches.len()];
    for (tree, of) in set.trees.iter().enumerate() {
        of.hops.iter().for_each(|hop| owner[hop.switch as usize] = tree as u8);
    }
    let mut new = set.clone();
    let mut reached = 0;
    for (tree, of) in new.trees.iter_mut().enumerate() {
        reached += usize::from(lead(fabric, of, tree as u8, &mut owner, class).is_some());
    }
    let wanted = fabric.classes[class as usize].switches().len().min(set.trees.len());
    (reached >= wanted && reached > 0).then_some(new)
}

/// Leads one tree to a class.
fn lead(fabric: &Fabric, tree: &mut Tree, number: u8, owner: &mut [u8], class: u32) -> Option<()> {
    let ports = &fabric.classes[class as usize].ports;
    let free = |owner: &[u8], switch: u32| owner[switch as usize] == number || owner[switch as usize] == u8::MAX;
    // From the class towards the tree: (switch, where it was reached from, the arc back).
    let mut seen: Vec<(u32, usize, u32)> = Vec::new();
    for switch in ports.iter().filter(|switch| free(owner, **switch)) {
        seen.push((*switch, usize::MAX, NONE));
    }
    let mut at = 0;
    while at < seen.len() && owner[seen[at].0 as usize] != number {
        for step in fabric.steps(seen[at].0) {
            if free(owner, step.to) && seen.iter().all(|(known, _, _)| *known != step.to) {
                seen.push((step.to, at, step.arc ^ 1));
            }
        }
        at += 1;
    }
    let (mut switch, mut next, mut arc) = *seen.get(at)?;
    let mut hop = tree.hop_of(switch)?;
    while next != usize::MAX {
        let (to, after, arc_after) = seen[next];
        tree.hops.push(Hop { switch: to, parent: hop, arc });
        owner[to as usize] = number;
        hop = tree.hops.len() as u32 - 1;
        (switch, next, arc) = (to, after, arc_after);
    }
    let port = ports.iter().position(|port| *port == switch)? as u32;
    tree.leaves.push(Leaf { class, port, hop });
    Some(())
}
