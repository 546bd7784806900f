//! Topologies from a word: `fat-tree:16`, `leaf-spine:8x4`, `ring:6`, `jellyfish:64x8`, `flat:5x2`.
//!
//! The same word gives the same topology. Hosts are on two switches each unless `homes=1` is
//! given, because a host on one switch has no second path whatever lies behind it.

use crate::topology::{Link, LinkSpec, Node, NodeId, NodeKind, Topology, TopologyError};
use std::fmt;
use std::str::FromStr;

/// What can be generated, for help texts.
pub const FORMS: &str = "\
fat-tree:K         the fat-tree of K-port switches (K even, to 32): K³/4 hosts, in pods
leaf-spine:LxS     L leaf switches (even), each linked to S spines; hosts=N in all [8 a leaf]
ring:N             N switches in a ring, host i on switches i and i+1
jellyfish:NxD      N switches (even), each with D random links to others; seed=N [1]
flat:HxS           H hosts, each on all S switches; the switches are not linked
homes=1            behind a comma: hosts on one switch each, as the literature draws them";

/// A family of topologies, with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Al-Fares et al.: `ports`-port switches in pods, hosts on neighbouring edge switches.
    FatTree {
        /// k.
        ports: u32,
    },
    /// Leaves and spines.
    LeafSpine {
        /// Leaves.
        leaves: u32,
        /// Spines.
        spines: u32,
    },
    /// A ring of switches.
    Ring {
        /// Switches.
        switches: u32,
    },
    /// Singla et al.: a random regular graph of switches.
    Jellyfish {
        /// Switches.
        switches: u32,
        /// Links of each to others.
        degree: u32,
    },
    /// Networks that nothing joins but the hosts.
    Flat {
        /// Hosts.
        hosts: u32,
        /// Switches.
        switches: u32,
    },
}

/// What to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generator {
    /// Family and size.
    pub family: Family,
    /// On how many switches each host is: 1 or 2.
    pub homes: u32,
    /// How many hosts, where the family leaves that open.
    pub hosts: Option<u32>,
    /// For what is random.
    pub seed: u64,
}

impl Generator {
    /// Of a family, with hosts on two switches.
    #[must_use]
    pub const fn new(family: Family) -> Self {
        Generator { family, homes: 2, hosts: None, seed: 1 }
    }

    /// Builds it.
    ///
    /// # Errors
    /// A size that makes no network of this family, with what would.
    pub fn build(&self) -> Result<Topology, TopologyError> {
        let mut build = Build { topology: Topology::new(self.to_string()), homes: self.homes, hosts: 0 };
        match self.family {
            Family::FatTree { ports } => build.fat_tree(ports)?,
            Family::LeafSpine { leaves, spines } => build.leaf_spine(leaves, spines, self.hosts)?,
            Family::Ring { switches } => build.ring(switches)?,
            Family::Jellyfish { switches, degree } => build.jellyfish(switches, degree, self.hosts, self.seed)?,
            Family::Flat { hosts, switches } => build.flat(hosts, switches)?,
        }
        Ok(build.topology)
    }
}

impl fmt::Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family {
            Family::FatTree { ports } => write!(f, "fat-tree:{ports}")?,
            Family::LeafSpine { leaves, spines } => write!(f, "leaf-spine:{leaves}x{spines}")?,
            Family::Ring { switches } => write!(f, "ring:{switches}")?,
            Family::Jellyfish { switches, degree } => write!(f, "jellyfish:{switches}x{degree}")?,
            Family::Flat { hosts, switches } => write!(f, "flat:{hosts}x{switches}")?,
        }
        if self.homes == 1 {
            write!(f, ",homes=1")?;
        }
        if let Some(hosts) = self.hosts {
            write!(f, ",hosts={hosts}")?;
        }
        if self.seed != 1 {
            write!(f, ",seed={}", self.seed)?;
        }
        Ok(())
    }
}

impl FromStr for Generator {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, TopologyError> {
        let refuse = |what: String| TopologyError::new(what, format!("what can be generated:\n{FORMS}"));
        let mut words = text.split(',');
        let first = words.next().unwrap_or_default();
        let (family, size) = first.split_once(':').ok_or_else(|| refuse(format!("{text} is no file and names no generator")))?;
        let number = |word: &str| -> Result<u32, TopologyError> {
            let n = word.parse().ok().filter(|n| *n <= 100_000);
            n.ok_or_else(|| refuse(format!("\"{word}\" in {text} is no number from 0 to 100000")))
        };
        let pair = || -> Result<(u32, u32), TopologyError> {
            let (a, b) = size.split_once('x').ok_or_else(|| refuse(format!("{first} lacks one of its two sizes")))?;
            Ok((number(a)?, number(b)?))
        };
        let family = match family {
            "fat-tree" => Family::FatTree { ports: number(size)? },
            "leaf-spine" => pair().map(|(leaves, spines)| Family::LeafSpine { leaves, spines })?,
            "ring" => Family::Ring { switches: number(size)? },
            "jellyfish" => pair().map(|(switches, degree)| Family::Jellyfish { switches, degree })?,
            "flat" => pair().map(|(hosts, switches)| Family::Flat { hosts, switches })?,
            other => return Err(refuse(format!("there is no generator named {other}"))),
        };
        let mut generator = Generator::new(family);
        for word in words {
            match word.split_once('=') {
                Some(("homes", "1")) => generator.homes = 1,
                Some(("homes", "2")) => generator.homes = 2,
                Some(("hosts", n)) => generator.hosts = Some(number(n)?),
                Some(("seed", n)) => {
                    generator.seed = n.parse().map_err(|_| refuse(format!("\"{n}\" is no seed")))?;
                }
                _ => return Err(refuse(format!("\"{word}\" in {text} is no option"))),
            }
        }
        Ok(generator)
    }
}

/// A small generator of random numbers (splitmix64), so that a seed means the same everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
}

struct Build {
    topology: Topology,
    homes: u32,
    hosts: u32,
}

impl Build {
    fn switch(&mut self, name: String, kind: NodeKind) -> Result<NodeId, TopologyError> {
        self.topology.add_node(Node { name, kind, risks: Vec::new() })
    }

    fn link(&mut self, a: NodeId, b: NodeId) -> Result<(), TopologyError> {
        let host = self.topology.is_host(a) || self.topology.is_host(b);
        let spec = if host { LinkSpec::HOST } else { LinkSpec::SWITCH };
        self.topology.add_link(Link { a: (a, None), b: (b, None), spec, risks: Vec::new() }).map(|_| ())
    }

    /// The next host, on the first of these switches that `homes` allows.
    fn host(&mut self, on: &[NodeId]) -> Result<(), TopologyError> {
        self.hosts += 1;
        let name = format!("h{}", self.hosts);
        let host = self.topology.add_node(Node { name, kind: NodeKind::Host, risks: Vec::new() })?;
        on.iter().take(self.homes as usize).try_for_each(|s| self.link(host, *s))
    }

    /// `n` hosts on switches that stand in pairs, in turn.
    fn hosts_on_pairs(&mut self, switches: &[NodeId], n: u32) -> Result<(), TopologyError> {
        for i in 0..n as usize {
            let at = i * switches.len() / (n as usize).max(1);
            self.host(&[switches[at], switches[at ^ 1]])?;
        }
        Ok(())
    }

    fn fat_tree(&mut self, k: u32) -> Result<(), TopologyError> {
        if !k.is_multiple_of(2) || !(4..=32).contains(&k) {
            return Err(TopologyError::new(
                format!("fat-tree:{k} is none: its switches have an even number of ports, 4 to 32"),
                "write for example fat-tree:4 (16 hosts) or fat-tree:16 (1,024 hosts)",
            ));
        }
        let half = k / 2;
        let mut core = Vec::new();
        for i in 0..half * half {
            core.push(self.switch(format!("core{}", i + 1), NodeKind::CoreSwitch)?);
        }
        for pod in 1..=k {
            let mut edges = Vec::new();
            for i in 1..=half {
                edges.push(self.switch(format!("p{pod}-edge{i}"), NodeKind::Switch)?);
            }
            for i in 0..half as usize {
                let agg = self.switch(format!("p{pod}-agg{}", i + 1), NodeKind::Switch)?;
                for edge in &edges {
                    self.link(*edge, agg)?;
                }
                for core in &core[i * half as usize..(i + 1) * half as usize] {
                    self.link(agg, *core)?;
                }
            }
            for i in 0..half * half {
                let at = (i / half) as usize;
                // Of an odd number of edge switches the last one has the first for its second.
                let other = if at ^ 1 < edges.len() { at ^ 1 } else { 0 };
                self.host(&[edges[at], edges[other]])?;
            }
        }
        Ok(())
    }

    fn leaf_spine(&mut self, leaves: u32, spines: u32, hosts: Option<u32>) -> Result<(), TopologyError> {
        if leaves < 2 || !leaves.is_multiple_of(2) || spines == 0 || leaves > 512 || spines > 64 {
            return Err(TopologyError::new(
                format!("leaf-spine:{leaves}x{spines} is none: 2 to 512 leaves in pairs, 1 to 64 spines"),
                "write for example leaf-spine:8x4",
            ));
        }
        let mut tops = Vec::new();
        for i in 1..=spines {
            tops.push(self.switch(format!("spine{i}"), NodeKind::CoreSwitch)?);
        }
        let mut all = Vec::new();
        for i in 1..=leaves {
            let leaf = self.switch(format!("leaf{i}"), NodeKind::Switch)?;
            for spine in &tops {
                self.link(leaf, *spine)?;
            }
            all.push(leaf);
        }
        self.hosts_on_pairs(&all, hosts.unwrap_or(leaves * 8))
    }

    fn ring(&mut self, n: u32) -> Result<(), TopologyError> {
        if !(3..=1024).contains(&n) {
            return Err(TopologyError::new(
                format!("ring:{n} is none: a ring has 3 to 1024 switches"),
                "write for example ring:6",
            ));
        }
        let mut all = Vec::new();
        for i in 1..=n {
            all.push(self.switch(format!("s{i}"), NodeKind::Switch)?);
        }
        for i in 0..all.len() {
            self.link(all[i], all[(i + 1) % all.len()])?;
        }
        for i in 0..all.len() {
            self.host(&[all[i], all[(i + 1) % all.len()]])?;
        }
        Ok(())
    }

    fn jellyfish(&mut self, n: u32, degree: u32, hosts: Option<u32>, seed: u64) -> Result<(), TopologyError> {
        if n < 4 || !n.is_multiple_of(2) || n > 1024 || degree < 2 || degree >= n.min(64) {
            return Err(TopologyError::new(
                format!("jellyfish:{n}x{degree} is none: 4 to 1024 switches in pairs, 2 to 63 links of each, below {n}"),
                "write for example jellyfish:64x8",
            ));
        }
        let mut all = Vec::new();
        for i in 1..=n {
            all.push(self.switch(format!("s{i}"), NodeKind::Switch)?);
        }
        for (a, b) in regular(n as usize, degree as usize, seed) {
            self.link(all[a], all[b])?;
        }
        self.hosts_on_pairs(&all, hosts.unwrap_or(n))
    }

    fn flat(&mut self, hosts: u32, switches: u32) -> Result<(), TopologyError> {
        if hosts == 0 || hosts > 4096 || !(1..=8).contains(&switches) {
            return Err(TopologyError::new(
                format!("flat:{hosts}x{switches} is none: 1 to 4096 hosts on 1 to 8 switches"),
                "write for example flat:5x2",
            ));
        }
        let mut all = Vec::new();
        for i in 1..=switches {
            all.push(self.switch(format!("s{i}"), NodeKind::Switch)?);
        }
        // Here `homes` has no say: what tells flat networks apart is how many there are.
        self.homes = switches;
        (0..hosts).try_for_each(|_| self.host(&all))
    }
}

/// A random regular graph as Jellyfish builds it (Singla et al., NSDI 2012, §3): random links
/// between switches with free ports; where none can be added, a link is broken up to fit two.
fn regular(n: usize, degree: usize, seed: u64) -> Vec<(usize, usize)> {
    let mut random = Random::new(seed);
    // A ring first, so that the graph hangs together whatever the seed.
    let mut links: Vec<(usize, usize)> = (0..n).map(|i| (i, (i + 1) % n)).collect();
    let mut linked = vec![false; n * n];
    for (a, b) in &links {
        linked[a * n + b] = true;
        linked[b * n + a] = true;
    }
    let mut used = vec![2; n];
    loop {
        let free: Vec<usize> = (0..n).filter(|i| used[*i] < degree).collect();
        if let Some((a, b)) = free_pair(&free, |a, b| linked[a * n + b], &mut random) {
            links.push((a, b));
            (linked[a * n + b], linked[b * n + a]) = (true, true);
            (used[a], used[b]) = (used[a] + 1, used[b] + 1);
            continue;
        }
        // What has free ports now is one switch, or switches that are linked with each other.
        let two = free.iter().find(|v| used[**v] + 2 <= degree).map(|v| (*v, *v));
        let Some((v, w)) = two.or_else(|| Some((*free.first()?, *free.get(1)?))) else { return links };
        let fits =
            |(a, b): (usize, usize)| ![a, b].contains(&v) && ![a, b].contains(&w) && !linked[v * n + a] && !linked[w * n + b];
        let fit: Vec<usize> = (n..links.len()).filter(|i| fits(links[*i])).collect();
        if fit.is_empty() {
            return links;
        }
        let (a, b) = links.swap_remove(fit[random.below(fit.len() as u64) as usize]);
        (linked[a * n + b], linked[b * n + a]) = (false, false);
        for (end, other) in [(v, a), (w, b)] {
            links.push((end, other));
            (linked[end * n + other], linked[other * n + end]) = (true, true);
            used[end] += 1;
        }
    }
}

/// Two switches with free ports and no link yet: drawn, and looked for where drawing finds none.
fn free_pair(free: &[usize], linked: impl Fn(usize, usize) -> bool, random: &mut Random) -> Option<(usize, usize)> {
    if free.len() < 2 {
        return None;
    }
    for _ in 0..32 {
        let (a, b) = (free[random.below(free.len() as u64) as usize], free[random.below(free.len() as u64) as usize]);
        if a != b && !linked(a, b) {
            return Some((a, b));
        }
    }
    let pairs = free.iter().enumerate().flat_map(|(i, a)| free[i + 1..].iter().map(|b| (*a, *b)));
    pairs.into_iter().find(|(a, b)| !linked(*a, *b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> Topology {
        text.parse::<Generator>().unwrap().build().unwrap()
    }

    #[test]
    fn sizes_are_those_of_the_literature() {
        let t = made("fat-tree:4");
        assert_eq!((t.hosts().count(), t.switches().count(), t.link_count()), (16, 20, 32 + 32));
        assert_eq!(made("fat-tree:4,homes=1").link_count(), 48, "Al-Fares et al.: k³/4 links a layer");
        let t = made("fat-tree:16");
        assert_eq!((t.hosts().count(), t.switches().count()), (1024, 320));
        let t = made("leaf-spine:8x4");
        assert_eq!((t.hosts().count(), t.switches().count(), t.link_count()), (64, 12, 32 + 128));
        assert_eq!(made("ring:6").link_count(), 6 + 12);
        assert_eq!(made("flat:5x3").link_count(), 15);
    }

    #[test]
    fn jellyfish_is_regular_and_the_seed_decides() {
        let t = made("jellyfish:64x8");
        let degree = |t: &Topology, s| t.links_of(s).filter(|(_, to)| !t.is_host(*to)).count();
        assert!(t.switches().all(|s| degree(&t, s) == 8));
        let links = |t: &Topology| t.links().map(|l| t.link_name(l)).collect::<Vec<_>>();
        assert_eq!(links(&t), links(&made("jellyfish:64x8")));
        assert_ne!(links(&t), links(&made("jellyfish:64x8,seed=2")));
    }

    #[test]
    fn what_makes_no_network_is_refused_with_what_does() {
        for bad in [
            "fat-tree:5",
            "fat-tree:0",
            "fat-tree:999",
            "fat-tree:x",
            "leaf-spine:8",
            "leaf-spine:7x4",
            "ring:2",
            "jellyfish:64x64",
            "jellyfish:5x2",
            "flat:0x2",
            "tree:3",
            "fat-tree:4,homes=3",
            "fat-tree:4,x",
            "fat-tree:99999999999",
            "ring:-1",
            "ring:",
            "plan.toml",
            "jellyfish:8x4,seed=a",
        ] {
            let refused = bad.parse::<Generator>().and_then(|g| g.build().map(|_| ())).unwrap_err();
            assert!(!refused.hint.is_empty() && !refused.what.is_empty(), "{bad}");
        }
        for good in ["fat-tree:4", "leaf-spine:8x4,hosts=3", "jellyfish:8x3,homes=1,seed=9", "flat:5x2"] {
            assert_eq!(good.parse::<Generator>().unwrap().to_string(), good);
        }
    }
}
