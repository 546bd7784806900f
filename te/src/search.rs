//! Finding K vertex-disjoint multicast trees for one sender (FiDe App. B) in any network.
//!
//! # What FiDe does, and why that is not enough here
//! App. B builds the trees bottom-up from sets of switches at one distance from the sender, for
//! networks whose shortest paths are *regular*. A ring, a random graph, and two networks that
//! somebody has cabled wrongly are not. Here every switch belongs to at most one tree, its *colour*,
//! and trees grow towards the farthest hosts first, as X-OPT grows one tree (X-Lane Alg. 2):
//!
//! 1. A host that is on K switches needs one of each colour. So once a switch has a colour, others
//!    are forced: if h1 is on s1 and s2, and s1 is of tree 1, then s2 is of tree 2. `Search::paint`
//!    follows that until nothing more is forced. Three hosts on s1+s2, s2+s3, s3+s1 show that there
//!    may be no such colouring at all.
//! 2. Each round searches the cheapest paths of each tree through switches that have its colour or
//!    none, and attaches the classes of hosts, farthest first, of all trees in turn.
//! 3. Each tree is then grown again while the others stay, until none gets better.
//!
//! The cost is the papers': the greatest latency of the set, and what other tunnels gain by it,
//! σ/β for each tunnel of each link (App. B). A path's length counts both.
//!
//! Optimal trees are NP-hard already for one tree (X-Lane Theorem 3), and so is whether several
//! fit (Theorem 2). `tests/brute.rs` compares with the optimum on small networks.

use crate::fabric::{ArcId, Fabric, Load, NONE};
use crate::tree::{Hop, Leaf, Tree, Tunnel};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most trees of a sender.
pub const TREES_MAX: usize = 4;

const NO_COLOUR: u8 = u8::MAX;
const FAR: u64 = u64::MAX;

/// What one search is about. Costs of arcs are looked up in it.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The network.
    pub fabric: &'a Fabric,
    /// The load of the tunnels that there are, without this one.
    pub load: &'a Load,
    /// Sender and size.
    pub tunnel: Tunnel,
    /// The sender's class.
    pub class: u32,
}

impl<'a> Task<'a> {
    /// For a sender of the group.
    ///
    /// # Panics
    /// The sender is not of the fabric's group.
    #[must_use]
    pub fn new(fabric: &'a Fabric, load: &'a Load, tunnel: Tunnel) -> Self {
        let class = fabric.class_of(tunnel.sender).expect("the sender is of the group");
        Task { fabric, load, tunnel, class }
    }

    /// The greatest latency over an arc, with the new tunnel: Alg. 2, lines 4 to 6.
    fn latency_ns(&self, arc: ArcId) -> u64 {
        let spec = &self.fabric.arcs[arc as usize];
        let own_ns = spec.send_ns(self.tunnel.sigma_bytes);
        spec.lambda_min_ns + spec.delta_max_ns + self.load.wait_ns[arc as usize] + own_ns
    }

    /// What other tunnels gain in latency where the new one joins them (FiDe App. B).
    fn gain_ns(&self, arc: ArcId) -> u64 {
        let spec = &self.fabric.arcs[arc as usize];
        u64::from(self.load.tunnels[arc as usize]) * spec.send_ns(self.tunnel.sigma_bytes)
    }

    /// Latency and gain together.
    pub(crate) fn cost_ns(&self, arc: ArcId) -> u64 {
        self.latency_ns(arc) + self.gain_ns(arc)
    }

    pub(crate) fn fits(&self, arc: ArcId) -> bool {
        self.load.fits(self.fabric, arc, self.tunnel.sigma_bytes)
    }

    /// The sender's arcs to its switches.
    pub(crate) fn roots(&self) -> impl Iterator<Item = (u32, ArcId)> + '_ {
        let class = &self.fabric.classes[self.class as usize];
        let member = class.members.iter().find(|member| member.host == self.tunnel.sender);
        let down = member.map_or(&[][..], |member| &member.down);
        class.ports.iter().zip(down).map(|(switch, down)| (*switch, down ^ 1)).filter(|(_, arc)| self.fits(*arc))
    }

    /// The greatest latency of the last arc to any host of a class, or [`FAR`] if one has no room.
    pub(crate) fn leaf_ns(&self, class: u32, port: usize) -> u64 {
        let of = &self.fabric.classes[class as usize];
        let mut others = of.members.iter().filter(|member| member.host != self.tunnel.sender);
        let Some(first) = others.next() else { return FAR };
        let arc = first.down[port];
        let spec = &self.fabric.arcs[arc as usize];
        let mut wait_ns = self.load.leaf_wait_ns[of.first_port as usize + port];
        if class == self.class {
            let waits = others.map(|member| self.load.wait_ns[member.down[port] as usize]);
            wait_ns = waits.fold(self.load.wait_ns[arc as usize], u64::max);
        }
        // Members are looked at only where the longest wait says that one of their queues may be full.
        let most_ns = spec.send_ns(spec.room_bytes.saturating_sub(self.tunnel.sigma_bytes));
        let mut receivers = of.members.iter().filter(|member| member.host != self.tunnel.sender);
        if wait_ns >= most_ns && receivers.any(|member| !self.fits(member.down[port])) {
            return FAR;
        }
        spec.lambda_min_ns + spec.delta_max_ns + wait_ns + spec.send_ns(self.tunnel.sigma_bytes)
    }

    /// Whether a class has anybody who is to receive.
    pub(crate) fn has_receivers(&self, class: u32) -> bool {
        self.fabric.classes[class as usize].members.iter().any(|member| member.host != self.tunnel.sender)
    }
}

/// What a set of trees costs, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Greatest latency of the set and what others gain, ns: FiDe App. B.
    pub total_ns: u64,
    /// The sum of the trees' greatest latencies, ns: FiDe §3.3.
    pub sum_ns: u64,
}

/// Trees that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The trees.
    pub trees: Vec<Tree>,
    /// What they cost.
    pub cost: Cost,
    /// The greatest latency of the set, ns.
    pub latency_max_ns: u64,
}

/// A tree while it grows.
#[derive(Clone, Debug)]
struct Growing {
    /// The latency to each of its switches, or [`FAR`].
    depth_ns: Vec<u64>,
    /// The place of each switch in `tree.hops`, or [`NONE`].
    place: Vec<u32>,
    tree: Tree,
    gain_ns: u64,
    latency_max_ns: u64,
}

/// The cheapest paths of one tree through what is free.
#[derive(Clone, Debug)]
struct Paths {
    cost_ns: Vec<u64>,
    latency_ns: Vec<u64>,
    /// The arc by which each switch is reached.
    by: Vec<ArcId>,
    before: Vec<u32>,
}

/// How a search weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// By the papers' cost.
    Cost,
    /// With as few switches as possible: leaves more to other trees.
    Narrow,
}

/// More than any detour: a switch that no tree has yet, in [`Mode::Narrow`].
const NEW_SWITCH_NS: u64 = 1 << 40;

struct Search<'a> {
    task: Task<'a>,
    k: usize,
    mode: Mode,
    colour: Vec<u8>,
    /// Trees that must not have a switch, a bit each.
    banned: Vec<u8>,
    painted: Vec<u32>,
    /// Classes that must be of all trees.
    need: Vec<bool>,
    leaf_ns: Vec<u64>,
    trees: Vec<Growing>,
    paths: Vec<Paths>,
}

impl<'a> Search<'a> {
    fn new(task: Task<'a>, k: usize, mode: Mode) -> Self {
        let n = task.fabric.switches.len();
        let classes = &task.fabric.classes;
        let need = (0..classes.len() as u32).map(|class| {
            let receives = task.has_receivers(class) || class == task.class;
            receives && classes[class as usize].switches().len() >= k && (k < 2 || task.fabric.redundant(task.class, class))
        });
        let ports = classes.iter().enumerate().flat_map(|(class, of)| (0..of.ports.len()).map(move |p| (class as u32, p)));
        let growing =
            Growing { depth_ns: vec![FAR; n], place: vec![NONE; n], tree: Tree::default(), gain_ns: 0, latency_max_ns: 0 };
        let paths = Paths { cost_ns: vec![FAR; n], latency_ns: vec![FAR; n], by: vec![NONE; n], before: vec![NONE; n] };
        Search {
            task,
            k,
            mode,
            colour: vec![NO_COLOUR; n],
            banned: vec![0; n],
            painted: Vec::new(),
            need: need.collect(),
            leaf_ns: ports.map(|(class, port)| task.leaf_ns(class, port)).collect(),
            trees: vec![growing; k],
            paths: vec![paths; k],
        }
    }

    /// Gives a switch to a tree, with all that this forces. `false`: that cannot be; nothing changed.
    fn paint(&mut self, switch: u32, tree: usize) -> bool {
        let mark = self.painted.len();
        let mut open = vec![(switch, tree as u8)];
        while let Some((switch, tree)) = open.pop() {
            let at = switch as usize;
            if self.colour[at] == tree {
                continue;
            }
            if self.colour[at] != NO_COLOUR || self.banned[at] & (1 << tree) != 0 {
                self.unpaint(mark);
                return false;
            }
            self.colour[at] = tree;
            self.painted.push(switch);
            for class in &self.task.fabric.classes_at[at] {
                if self.need[*class as usize] && !self.force(*class, &mut open) {
                    self.unpaint(mark);
                    return false;
                }
            }
        }
        true
    }

    fn unpaint(&mut self, mark: usize) {
        for switch in self.painted.drain(mark..) {
            self.colour[switch as usize] = NO_COLOUR;
        }
    }

    /// What the switches of a class must be, if every tree is to have one. `false`: one has none.
    fn force(&self, class: u32, open: &mut Vec<(u32, u8)>) -> bool {
        for tree in 0..self.k as u8 {
            let (mut has, mut could, mut only) = (false, 0, NONE);
            for switch in &self.task.fabric.classes[class as usize].ports {
                let at = *switch as usize;
                if self.colour[at] == tree {
                    has = true;
                } else if self.colour[at] == NO_COLOUR && self.banned[at] & (1 << tree) == 0 && only != *switch {
                    could += 1;
                    only = *switch;
                }
            }
            match (has, could) {
                (true, _) => {}
                (false, 0) => return false,
                (false, 1) => open.push((only, tree)),
                (false, _) => {}
            }
        }
        true
    }

    fn free(&self, switch: u32, tree: usize) -> bool {
        let at = switch as usize;
        (self.colour[at] == NO_COLOUR || self.colour[at] == tree as u8) && self.banned[at] & (1 << tree) == 0
    }

    /// The cheapest paths from a tree, or its sender, to every switch that it may have.
    fn find_paths(&mut self, tree: usize) {
        let mut paths = std::mem::replace(
            &mut self.paths[tree],
            Paths { cost_ns: Vec::new(), latency_ns: Vec::new(), by: Vec::new(), before: Vec::new() },
        );
        paths.cost_ns.fill(FAR);
        let mut heap = BinaryHeap::new();
        for hop in &self.trees[tree].tree.hops {
            let (at, depth_ns) = (hop.switch as usize, self.trees[tree].depth_ns[hop.switch as usize]);
            (paths.cost_ns[at], paths.latency_ns[at], paths.before[at]) = (depth_ns, depth_ns, NONE);
            heap.push(Reverse((depth_ns, hop.switch)));
        }
        for (switch, arc) in self.task.roots() {
            if self.free(switch, tree) {
                self.relax(&mut paths, &mut heap, tree, (NONE, 0, 0), switch, arc);
            }
        }
        while let Some(Reverse((cost_ns, switch))) = heap.pop() {
            let at = switch as usize;
            if cost_ns > paths.cost_ns[at] {
                continue;
            }
            let from = (switch, cost_ns, paths.latency_ns[at]);
            for step in self.task.fabric.steps(switch) {
                if paths.cost_ns[step.to as usize] > cost_ns && self.free(step.to, tree) && self.task.fits(step.arc) {
                    self.relax(&mut paths, &mut heap, tree, from, step.to, step.arc);
                }
            }
        }
        self.paths[tree] = paths;
    }

    fn relax(
        &self,
        paths: &mut Paths,
        heap: &mut BinaryHeap<Reverse<(u64, u32)>>,
        tree: usize,
        (before, cost_ns, latency_ns): (u32, u64, u64),
        to: u32,
        arc: ArcId,
    ) {
        let at = to as usize;
        if self.trees[tree].place[at] != NONE {
            return;
        }
        let latency = self.task.latency_ns(arc);
        let detour = if self.mode == Mode::Narrow { NEW_SWITCH_NS } else { 0 };
        let cost = cost_ns + latency + self.task.gain_ns(arc) + detour;
        if cost < paths.cost_ns[at] {
            (paths.cost_ns[at], paths.latency_ns[at]) = (cost, latency_ns + latency);
            (paths.by[at], paths.before[at]) = (arc, before);
            heap.push(Reverse((cost, to)));
        }
    }

    /// By which port a tree reaches a class best, and at what cost.
    fn best_port(&self, tree: usize, class: u32) -> Option<(u64, usize)> {
        let of = &self.task.fabric.classes[class as usize];
        let costs = of.ports.iter().enumerate().filter_map(|(port, switch)| {
            let (path_ns, leaf_ns) = (self.paths[tree].cost_ns[*switch as usize], self.leaf_ns[of.first_port as usize + port]);
            let cost = path_ns.checked_add(leaf_ns).filter(|_| path_ns != FAR && leaf_ns != FAR)?;
            self.free(*switch, tree).then_some((cost, port))
        });
        costs.min()
    }

    /// Attaches a class to a tree along the paths found last.
    fn attach(&mut self, tree: usize, class: u32) -> Attached {
        let Some((_, port)) = self.best_port(tree, class) else { return Attached::Wait };
        let mut at = self.task.fabric.classes[class as usize].ports[port];
        let mut path = Vec::new();
        while at != NONE && self.trees[tree].place[at as usize] == NONE {
            if !self.free(at, tree) {
                return Attached::Wait;
            }
            path.push(at);
            at = self.paths[tree].before[at as usize];
        }
        let mark = self.painted.len();
        for switch in path.iter().rev() {
            if !self.paint(*switch, tree) {
                self.unpaint(mark);
                self.banned[*switch as usize] |= 1 << tree;
                return Attached::Banned;
            }
        }
        for switch in path.iter().rev() {
            self.append(tree, *switch);
        }
        self.append_leaf(tree, class, port);
        Attached::Done
    }

    fn append(&mut self, tree: usize, switch: u32) {
        let at = switch as usize;
        let (arc, before) = (self.paths[tree].by[at], self.paths[tree].before[at]);
        let gain_ns = self.task.gain_ns(arc);
        let latency_ns = self.task.latency_ns(arc);
        let growing = &mut self.trees[tree];
        let (parent, base_ns) = match before {
            NONE => (NONE, 0),
            before => (growing.place[before as usize], growing.depth_ns[before as usize]),
        };
        growing.place[at] = growing.tree.hops.len() as u32;
        growing.depth_ns[at] = base_ns + latency_ns;
        growing.gain_ns += gain_ns;
        growing.tree.hops.push(Hop { switch, parent, arc });
    }

    fn append_leaf(&mut self, tree: usize, class: u32, port: usize) {
        if !self.task.has_receivers(class) {
            return;
        }
        let of = &self.task.fabric.classes[class as usize];
        let switch = of.ports[port];
        let leaf_ns = self.leaf_ns[of.first_port as usize + port];
        let growing = &mut self.trees[tree];
        let hop = growing.place[switch as usize];
        growing.latency_max_ns = growing.latency_max_ns.max(growing.depth_ns[switch as usize] + leaf_ns);
        growing.tree.leaves.push(Leaf { class, port: port as u32, hop });
    }

    /// Grows all trees until every class that needs it is in all of them.
    fn grow(&mut self, trees: &[usize]) -> bool {
        let needed = (0..self.need.len() as u32).filter(|c| self.need[*c as usize] && self.task.has_receivers(*c));
        let needed: Vec<u32> = needed.collect();
        let mut open: Vec<(usize, u32)> = trees.iter().flat_map(|t| needed.iter().map(|c| (*t, *c))).collect();
        while !open.is_empty() {
            for tree in trees {
                if open.iter().any(|(t, _)| t == tree) {
                    self.find_paths(*tree);
                }
            }
            // Farthest first (Alg. 2, line 19); of like distance the trees take turns.
            let mut order: Vec<(u64, u32, usize)> = Vec::with_capacity(open.len());
            for (tree, class) in &open {
                let Some((cost, _)) = self.best_port(*tree, *class) else { return false };
                order.push((cost, *class, *tree));
            }
            order.sort_unstable_by_key(|(cost, class, tree)| (Reverse(*cost), *class, *tree));
            let before = open.len();
            let mut banned = false;
            open.clear();
            for (_, class, tree) in order {
                match self.attach(tree, class) {
                    Attached::Done => {}
                    Attached::Wait => open.push((tree, class)),
                    Attached::Banned => {
                        banned = true;
                        open.push((tree, class));
                    }
                }
            }
            if open.len() == before && !banned {
                return false;
            }
        }
        true
    }

    /// Attaches what is on too few switches for all trees, to every tree that can have it.
    fn attach_rest(&mut self) {
        let classes = 0..self.need.len() as u32;
        let rest: Vec<u32> = classes.filter(|c| !self.need[*c as usize] && self.task.has_receivers(*c)).collect();
        if rest.is_empty() {
            return;
        }
        for tree in 0..self.k {
            for class in &rest {
                // A path may be refused for what it forces; the next one avoids that switch.
                for _ in 0..self.colour.len() {
                    self.find_paths(tree);
                    if self.attach(tree, *class) != Attached::Banned {
                        break;
                    }
                }
            }
        }
    }

    /// Grows one tree again in what the others leave.
    fn regrow(&mut self, tree: usize) {
        let kept = self.trees[tree].clone();
        let colours = self.colour.clone();
        self.reset(tree);
        let better = self.grow(&[tree]) && {
            self.attach_rest_of(tree);
            let new = &self.trees[tree];
            new.tree.leaves.len() >= kept.tree.leaves.len()
                && (new.latency_max_ns + new.gain_ns, new.latency_max_ns)
                    < (kept.latency_max_ns + kept.gain_ns, kept.latency_max_ns)
        };
        if !better {
            self.trees[tree] = kept;
            self.colour = colours;
        }
    }

    /// Forgets a tree, and every colour that no other tree's switches need.
    fn reset(&mut self, tree: usize) {
        self.colour.fill(NO_COLOUR);
        self.painted.clear();
        self.banned.fill(0);
        for (other, growing) in self.trees.iter().enumerate().filter(|(other, _)| *other != tree) {
            for hop in &growing.tree.hops {
                self.colour[hop.switch as usize] = other as u8;
            }
        }
        let growing = &mut self.trees[tree];
        growing.depth_ns.fill(FAR);
        growing.place.fill(NONE);
        growing.tree = Tree::default();
        (growing.gain_ns, growing.latency_max_ns) = (0, 0);
    }

    fn attach_rest_of(&mut self, tree: usize) {
        let classes = 0..self.need.len() as u32;
        let rest: Vec<u32> = classes.filter(|c| !self.need[*c as usize] && self.task.has_receivers(*c)).collect();
        for class in rest {
            self.find_paths(tree);
            self.attach(tree, class);
        }
    }

    fn found(&self) -> Found {
        let latency_max_ns = self.trees.iter().map(|growing| growing.latency_max_ns).max().unwrap_or(0);
        let gain_ns: u64 = self.trees.iter().map(|growing| growing.gain_ns).sum();
        Found {
            trees: self.trees.iter().map(|growing| growing.tree.clone()).collect(),
            cost: Cost {
                total_ns: latency_max_ns + gain_ns,
                sum_ns: self.trees.iter().map(|growing| growing.latency_max_ns).sum(),
            },
            latency_max_ns,
        }
    }

    /// How many receivers' classes the trees reach, counted once for each tree.
    fn reached(&self) -> usize {
        self.trees.iter().map(|growing| growing.tree.leaves.len()).sum()
    }
}

/// What came of an attempt to attach a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attached {
    Done,
    /// The path is taken by now.
    Wait,
    /// A switch of the path cannot be of this tree, which is noted.
    Banned,
}

/// Rounds in which each tree is grown again.
const ROUNDS: usize = 3;

/// One search, with some switches given to trees beforehand.
fn attempt(task: Task<'_>, k: usize, mode: Mode, given: &[(u32, usize)], rounds: usize) -> Option<(Found, usize)> {
    let mut search = Search::new(task, k, mode);
    if !given.iter().all(|(switch, tree)| search.paint(*switch, *tree)) || !search.grow(&(0..k).collect::<Vec<_>>()) {
        return None;
    }
    search.attach_rest();
    search.mode = Mode::Cost;
    let mut cost = search.found().cost;
    for _ in 0..rounds {
        (0..k).for_each(|tree| search.regrow(tree));
        let new = search.found().cost;
        if new >= cost {
            break;
        }
        cost = new;
    }
    Some((search.found(), search.reached()))
}

/// How hard to look for better trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// How many further searches may be made, each with a switch given to another tree.
    pub searches: usize,
}

impl Effort {
    /// As many as a network of this size can have in about a millisecond.
    #[must_use]
    pub fn fitting(fabric: &Fabric) -> Self {
        let size = fabric.switches.len() * (fabric.classes.len() + 4);
        Effort { searches: (20_000 / size.max(1)).min(400) }
    }
}

/// Finds `k` trees that share no switch and reach every class that can be reached so, or `None`.
///
/// Classes on fewer than `k` switches, and those that one switch cuts off, are reached by as many
/// trees as can. K = 1 is X-OPT (X-Lane Alg. 2).
#[must_use]
pub fn disjoint(task: Task<'_>, k: usize, effort: Effort) -> Option<Found> {
    let first = attempt(task, k, Mode::Cost, &[], ROUNDS);
    let first = first.or_else(|| attempt(task, k, Mode::Narrow, &[], ROUNDS));
    let mut left = effort.searches.max(if first.is_none() { 200 } else { 0 });
    let mut best = match first {
        Some(best) => best,
        None => rescue(task, k, &mut left)?,
    };
    if k == 2 && effort.searches > 0 && task.fabric.switches.len() <= SEARCHED_THROUGH {
        let whole = halves(task).filter(|new| new.1 >= best.1 && new.0.cost < best.0.cost);
        return Some(whole.unwrap_or(best).0);
    }
    let mut given: Vec<(u32, usize)> = Vec::new();
    while k > 1 && left > 0 {
        let Some((better, with)) = step(task, k, &best, &given, &mut left) else { break };
        best = better;
        given.push(with);
    }
    Some(best.0)
}

/// A better set of trees, with one more switch given to a tree.
fn step(
    task: Task<'_>,
    k: usize,
    best: &(Found, usize),
    given: &[(u32, usize)],
    left: &mut usize,
) -> Option<((Found, usize), (u32, usize))> {
    for switch in 0..task.fabric.switches.len() as u32 {
        for tree in 0..k {
            if *left == 0 {
                return None;
            }
            if best.0.trees[tree].hop_of(switch).is_some() {
                continue;
            }
            *left -= 1;
            let mut with = given.to_vec();
            with.push((switch, tree));
            let new = attempt(task, k, Mode::Cost, &with, ROUNDS);
            if let Some(new) = new.filter(|new| new.1 >= best.1 && new.0.cost < best.0.cost) {
                return Some((new, (switch, tree)));
            }
        }
    }
    None
}

/// Networks of so many switches are searched through, where the plain searches find nothing.
const SMALL: usize = 12;

/// Networks of so many switches are searched through in any case: 128 short searches a sender.
const SEARCHED_THROUGH: usize = 7;

/// The best of all ways to divide the switches between two trees. One more switch never makes a tree
/// slower, so there is none better.
fn halves(task: Task<'_>) -> Option<(Found, usize)> {
    let n = task.fabric.switches.len() as u32;
    let half = |bits: u32| (0..n).map(|switch| (switch, (bits >> switch & 1) as usize)).collect::<Vec<_>>();
    let all = (0..1u32 << n).filter_map(|bits| attempt(task, 2, Mode::Cost, &half(bits), 0));
    all.min_by_key(|(found, reached)| (Reverse(*reached), found.cost))
}

/// Trees where the plain searches found none: in a small network with the switches divided in every
/// way, in a larger one with every switch given to every tree in turn.
fn rescue(task: Task<'_>, k: usize, left: &mut usize) -> Option<(Found, usize)> {
    let n = task.fabric.switches.len();
    if k == 2 && n <= SMALL {
        return halves(task);
    }
    let pairs = (0..n as u32).flat_map(|switch| (0..k).map(move |tree| (switch, tree)));
    for (switch, tree) in pairs {
        *left = left.checked_sub(1)?;
        for mode in [Mode::Cost, Mode::Narrow] {
            if let Some(found) = attempt(task, k, mode, &[(switch, tree)], ROUNDS) {
                return Some(found);
            }
        }
    }
    None
}
