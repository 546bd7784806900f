//! What to simulate, and what is promised of it.

use std::fmt;
use std::str::FromStr;

use fide_proto::consensus::Kind;

pub use fide_proto::consensus::policy::Policy;

/// What can go wrong in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Menu {
    /// Crashes of processes at every step, a host that loses its power, restarts.
    WithinContract,
    /// The same, and processes and hosts that stand still.
    Pauses,
    /// Crashes; on one path copies are lost, doubled, cut off; links stall.
    NetworkFaults,
    /// The same on both paths, and copies that are later than the contract allows.
    BeyondContract,
    /// Crashes, members that join and leave.
    Reconfigurations,
    /// The same, and changes of the engine.
    EngineChanges,
    /// The same, over reliable links that stall for milliseconds: some are far behind while others leave.
    SlowLinks,
    /// All of it but changes of the engine.
    Everything,
}

impl Menu {
    /// Every menu.
    pub const ALL: [Menu; 8] = [
        Menu::WithinContract,
        Menu::Pauses,
        Menu::NetworkFaults,
        Menu::BeyondContract,
        Menu::Reconfigurations,
        Menu::EngineChanges,
        Menu::SlowLinks,
        Menu::Everything,
    ];

    /// The name used on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Menu::WithinContract => "within-contract",
            Menu::Pauses => "pauses",
            Menu::NetworkFaults => "network-faults",
            Menu::BeyondContract => "beyond-contract",
            Menu::Reconfigurations => "reconfigurations",
            Menu::EngineChanges => "engine-changes",
            Menu::SlowLinks => "slow-links",
            Menu::Everything => "everything",
        }
    }

    /// What is on it.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Menu::WithinContract => "processes killed at every step, a host that loses its power, restarts as new members",
            Menu::Pauses => "the same, and processes or whole hosts that stand still",
            Menu::NetworkFaults => "crashes; one path loses, doubles or carries nothing; reliable links stall",
            Menu::BeyondContract => "pauses, faults of both paths, copies later than the contract allows",
            Menu::Reconfigurations => "crashes, joins, leaves",
            Menu::EngineChanges => "crashes, joins, leaves, changes of the engine",
            Menu::SlowLinks => "the same, over reliable links that stall for milliseconds",
            Menu::Everything => "all of these but changes of the engine",
        }
    }

    /// Whether whoever is judged silent is so, and whatever was sent arrives in time on one path at least.
    #[must_use]
    pub const fn keeps_contract(self) -> bool {
        matches!(
            self,
            Menu::WithinContract | Menu::NetworkFaults | Menu::Reconfigurations | Menu::EngineChanges | Menu::SlowLinks
        )
    }

    /// Whether groups change their engine.
    #[must_use]
    pub const fn changes_engines(self) -> bool {
        matches!(self, Menu::EngineChanges | Menu::SlowLinks)
    }
}

/// What to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The group's first engine.
    pub engine: Kind,
    /// Its policy.
    pub policy: Policy,
    /// What goes wrong.
    pub menu: Menu,
    /// How many hosts; 2 to 5, as the seed says, if not given.
    pub hosts: Option<u16>,
}

impl Default for Options {
    fn default() -> Self {
        Self { engine: Kind::Hsuc, policy: Policy::TrustContract, menu: Menu::WithinContract, hosts: None }
    }
}

/// What must hold in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Everything in [`crate::invariants::TABLE`] but termination.
    pub safe: bool,
    /// When the faults are over, all who live decide.
    pub live: bool,
    /// A member may stop safely; it then decides nothing any more.
    pub may_halt: bool,
}

impl Options {
    /// Whether its first engine decides nothing without a majority of its members.
    #[must_use]
    pub const fn needs_majority(&self) -> bool {
        !self.engine.needs_accuracy()
    }

    /// To which engines a group may change in these worlds: those that can keep its policy; and where the contract does not hold not LOWI, of which
    /// nothing could be promised then.
    #[must_use]
    pub fn switch_to(&self) -> Vec<Kind> {
        let suits = |kind: &Kind| self.policy.suits(*kind) && (self.menu.keeps_contract() || *kind != Kind::Lowi);
        crate::engines::AVAILABLE.iter().copied().filter(suits).collect()
    }

    /// What is promised under these faults.
    ///
    /// | engine | relies on |
    /// |---|---|
    /// | HSUC | that a crash that it is told of is true: the contract, or a fence, or a witness |
    /// | HUC | the same, and that each heartbeat arrives by one path at least |
    /// | LOWI | the contract, whatever the policy |
    /// | one-sided Paxos, Raft | nothing; that a majority lives, for termination |
    #[must_use]
    pub fn promise(&self) -> Promise {
        let contract = self.menu.keeps_contract();
        let accurate = contract || self.policy != Policy::TrustContract;
        let safe = match self.engine {
            Kind::Lowi => contract,
            Kind::Hsuc => accurate,
            Kind::Huc => contract || (accurate && self.menu == Menu::Pauses),
            Kind::Paxos | Kind::Raft => true,
        };
        // Only LOWI stops for one lost copy; and who changes the engine may change to LOWI.
        let needs_both_copies = self.engine == Kind::Lowi || self.menu.changes_engines();
        let may_halt = !contract || (needs_both_copies && self.menu != Menu::WithinContract);
        Promise { safe, live: safe, may_halt }
    }
}

/// The names closest to `wanted`, best first, at most three; empty when none is close.
pub fn close<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let limit = (wanted.chars().count() / 3).max(1);
    let mut scored: Vec<(usize, &str)> = names
        .into_iter()
        .filter_map(|name| {
            let d = distance(&wanted.to_lowercase(), &name.to_lowercase());
            let starts = wanted.len() > 1 && name.starts_with(wanted);
            (d <= limit || starts).then_some((if starts { d.min(1) } else { d }, name))
        })
        .collect();
    scored.sort();
    scored.dedup();
    scored.into_iter().map(|(_, name)| name).take(3).collect()
}

/// Insertions, deletions, replacements and swaps of neighbours that lead from one to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        best = best.min(rows[i - 2][j - 2] + 1);
                    }
                    best
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

/// Which of these names it is.
///
/// # Errors
/// If it is none; says what may have been meant, and which there are.
pub fn one_of(names: &[&str], text: &str, what: &str) -> Result<usize, String> {
    names.iter().position(|name| *name == text).ok_or_else(|| {
        let meant = close(text, names.iter().copied());
        let meant = if meant.is_empty() { String::new() } else { format!("; did you mean {}?", meant.join(" or ")) };
        format!("no such {what}: {text}{meant} (there are: {})", names.join(", "))
    })
}

fn parse<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str, text: &str, what: &str) -> Result<T, String> {
    let names: Vec<_> = all.iter().map(|one| name(*one)).collect();
    one_of(&names, text, what).map(|at| all[at])
}

/// The engine of this name.
///
/// # Errors
/// If there is none; says which there are.
pub fn parse_kind(text: &str) -> Result<Kind, String> {
    parse(crate::engines::AVAILABLE, Kind::name, text, "engine")
}

/// The policy of this name.
///
/// # Errors
/// If there is none; says which there are.
pub fn parse_policy(text: &str) -> Result<Policy, String> {
    parse(&Policy::ALL, Policy::name, text, "policy")
}

impl FromStr for Menu {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse(&Menu::ALL, Menu::name, text, "menu")
    }
}

impl fmt::Display for Menu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.engine, self.policy, self.menu)?;
        if let Some(hosts) = self.hosts {
            write!(f, ", {hosts} hosts")?;
        }
        Ok(())
    }
}
