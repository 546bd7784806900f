//! What must hold, one file for each property. Every check is incremental: it looks at what just happened, never at the whole world.
//!
//! [`TABLE`] says which property stands in which paper and specification.

mod agreement;
mod crash_order;
mod engine_change;
mod eviction;
mod integrity;
mod leader;
mod no_gap;
mod safe_exit;
mod snapshot;
mod stability;
mod termination;
mod validity;

pub use agreement::Agreement;
pub use crash_order::CrashOrder;
pub use engine_change::EngineChange;
pub use eviction::Eviction;
pub use integrity::Integrity;
pub use leader::OneLeader;
pub use no_gap::NoGap;
pub use safe_exit::{Reasons, SafeExit};
pub use snapshot::{Snapshot, next_state as snapshot_state};
pub use stability::Stability;
pub use termination::{Standing, Termination};
pub use validity::Validity;

use std::fmt;

/// A property that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its name, as in [`TABLE`]; `assertion` for a core that found itself in a state that it must never be in.
    pub property: &'static str,
    /// Who saw what.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.property, self.what)
    }
}

/// What a check says.
pub type Checked = Result<(), Violation>;

pub(crate) fn broken(property: &'static str, what: impl Into<String>) -> Checked {
    Err(Violation { property, what: what.into() })
}

/// A row of [`TABLE`].
#[derive(Clone, Copy, Debug)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub says: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
    /// What the TLA+ specifications call it; empty for what only a whole world has.
    pub tla: &'static str,
    /// Which file checks it.
    pub file: &'static str,
}

const fn row(name: &'static str, says: &'static str, paper: &'static str, tla: &'static str, file: &'static str) -> Property {
    Property { name, says, paper, tla, file }
}

/// Property → paper → specification → file.
pub const TABLE: [Property; 13] = [
    row(
        "agreement",
        "the same entry at the same position, whoever applies it, crashed or not",
        "FiDe §4 (uniform agreement); B7",
        "UniformAgreement",
        "agreement.rs",
    ),
    row("validity", "what is applied was proposed, by that member, with that content", "FiDe §4", "Validity", "validity.rs"),
    row("integrity", "no entry is applied twice", "FiDe §4", "Integrity", "integrity.rs"),
    row("no-gap", "positions come one after the other", "Nano-consensus §5; U9", "", "no_gap.rs"),
    row(
        "termination",
        "when the faults are over, all who live have applied all that was proposed or applied by anybody",
        "FiDe §4; Nano-consensus §4",
        "Termination",
        "termination.rs",
    ),
    row(
        "fail-consistency",
        "nothing that a member piggybacked is handed in after its crash was",
        "FiDe §4.1 (FCURB)",
        "FailConsistency",
        "crash_order.rs",
    ),
    row("accuracy", "nobody alive is declared crashed, unless it was cut off first", "FiDe §2.2, §3.3; B5", "", "crash_order.rs"),
    row("one-leader", "two members never lead one LOWI group at once", "Nano-consensus Alg. 2", "", "leader.rs"),
    row(
        "engine-change",
        "everybody changes to the same engine, at the same position, with the same members",
        "B7",
        "",
        "engine_change.rs",
    ),
    row(
        "eviction",
        "only who crashed, was cut off or asked for it leaves; only who asked joins",
        "FiDe App. B; U5, U9",
        "",
        "eviction.rs",
    ),
    row("stability", "what is stable was decided, and stays stable", "FiDe Alg. 2, Alg. 3", "", "stability.rs"),
    row("snapshot", "a joiner is given the state that the entries before make", "Nano-consensus §5.2", "", "snapshot.rs"),
    row(
        "safe-exit",
        "nobody stops who need not: only on a network fault, on what may not be believed, or on leaving",
        "Nano-consensus §4 (N4); B4",
        "",
        "safe_exit.rs",
    ),
];

#[cfg(test)]
mod tests {
    use super::TABLE;

    #[test]
    fn what_the_specifications_call_it_is_in_them() {
        let mut specs = String::new();
        let mut dirs = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../specs"))];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else if path.extension().is_some_and(|e| e == "tla") {
                    specs += &std::fs::read_to_string(path).unwrap();
                }
            }
        }
        let names: std::collections::BTreeSet<&str> = specs.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        for row in TABLE.iter().filter(|row| !row.tla.is_empty()) {
            assert!(names.contains(row.tla), "{}: {} is in no specification", row.name, row.tla);
        }
        assert!(TABLE.iter().any(|row| !row.tla.is_empty()));
    }

    #[test]
    fn every_property_has_its_file_and_every_file_its_property() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/invariants");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(name == "mod.rs" || TABLE.iter().any(|row| row.file == name), "{name}");
        }
        for row in TABLE {
            let text = std::fs::read_to_string(format!("{folder}/{}", row.file)).unwrap();
            assert!(text.contains(&format!("\"{}\"", row.name)), "{} does not check {}", row.file, row.name);
        }
    }
}
