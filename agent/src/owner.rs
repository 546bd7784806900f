//! Whose files these are: the host that the agent's state on disk belongs to.
//!
//! A disk is copied (golden images, snapshots), and a host is renamed. A copy that went on as a member of its original's groups would speak for it, and a
//! fence would wait for hosts that this one has never met. So every file of the state names its host, and another host's counts as none.

use crate::history::beside;
use fide_wire::mac::Key;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What machine ids are hashed with: the id itself is not to be shown (machine-id(5)).
const APPLICATION: Key = Key(*b"FiDe state owner");

/// A host, as its state names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The cluster.
    pub cluster: String,
    /// The host's name in it.
    pub node: String,
    /// A hash of its machine id; empty where it has none that lasts.
    #[serde(default)]
    pub machine: String,
}

impl Owner {
    /// This host, by its names and its machine id.
    #[must_use]
    pub fn here(cluster: &str, node: &str) -> Self {
        Self { cluster: cluster.to_owned(), node: node.to_owned(), machine: machine() }
    }

    /// Written before files named their host.
    #[must_use]
    pub fn is_unnamed(&self) -> bool {
        self.node.is_empty() && self.cluster.is_empty() && self.machine.is_empty()
    }

    /// Whether what names `self` may be used by the host `here`.
    #[must_use]
    pub fn fits(&self, here: &Self) -> bool {
        let fits_machine = self.machine.is_empty() || here.machine.is_empty() || self.machine == here.machine;
        self.is_unnamed() || (self.cluster == here.cluster && self.node == here.node && fits_machine)
    }

    /// How it differs from this host.
    #[must_use]
    pub fn unlike(&self, here: &Self) -> String {
        if self.node == here.node && self.cluster == here.cluster {
            return format!("it was written for {} on another machine (its machine id was another one)", self.node);
        }
        format!("it is of {self}, and this is {here}")
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {:?} of cluster {:?}", self.node, self.cluster)
    }
}

fn machine() -> String {
    // An id that systemd made for one boot: /etc cannot be written.
    if Path::new("/run/machine-id").exists() {
        return String::new();
    }
    machine_of(&std::fs::read_to_string("/etc/machine-id").unwrap_or_default())
}

fn machine_of(id: &str) -> String {
    let id = id.trim();
    let is_id = id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()) && id.bytes().any(|b| b != b'0');
    if is_id { format!("{:016x}", APPLICATION.tag(id.as_bytes())) } else { String::new() }
}

/// The name's end of the file that may go beyond the state's ([`crate::state`]).
pub(crate) const RECENT: &str = ".recent";

/// The files of a state, beside its own.
pub(crate) fn files_of(state: &Path) -> [PathBuf; 5] {
    let table = beside(state, ".table");
    [state.to_owned(), beside(&table, ".log"), table, beside(state, ".groups"), beside(state, RECENT)]
}

/// Moves files into a directory of their own beside the state, where nothing of them is lost. Says where they are.
///
/// # Errors
/// Of the system; what was moved stays moved.
pub(crate) fn set_aside(state: &Path, files: &[PathBuf]) -> io::Result<PathBuf> {
    let dir = (1..).map(|n: u32| beside(state, &format!(".aside-{n}"))).find_map(|dir| match std::fs::create_dir(&dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => None,
        made => Some(made.map(|()| dir)),
    });
    let dir = dir.unwrap_or_else(|| Err(io::ErrorKind::StorageFull.into()))?;
    for file in files {
        let Some(name) = file.file_name() else { continue };
        match std::fs::rename(file, dir.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(dir)
}

/// Does that, and says what became of the files.
pub(crate) fn put_aside(state: &Path, files: &[PathBuf], shown: &Path, why: &str) -> String {
    let shown = shown.display();
    match set_aside(state, files) {
        Ok(dir) => format!("{shown} counts for nothing here: {why}. It lies in {} now", dir.display()),
        Err(e) => format!("{shown} counts for nothing here: {why}. It cannot be moved away ({e})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(cluster: &str, node: &str, machine: &str) -> Owner {
        Owner { cluster: cluster.into(), node: node.into(), machine: machine.into() }
    }

    #[test]
    fn a_state_is_of_one_host_of_one_cluster_on_one_machine() {
        let here = host("c", "h1", "m");
        for (other, fits) in [
            (here.clone(), true),
            (host("", "", ""), true),
            (host("c", "h1", ""), true),
            (host("c", "h2", "m"), false),
            (host("d", "h1", "m"), false),
            (host("c", "h1", "n"), false),
            (host("", "", "n"), false),
        ] {
            assert_eq!(other.fits(&here), fits, "{other:?}");
            assert!(other.fits(&host(&other.cluster, &other.node, "")), "a machine without an id");
        }
    }

    #[test]
    fn machine_ids_are_hashed_and_what_is_none_is_none() {
        let id = "0123456789abcdef0123456789abcdef";
        let hashed = machine_of(&format!("{id}\n"));
        assert!(hashed.len() == 16 && !id.contains(&hashed));
        for none in ["", "uninitialized\n", "00000000000000000000000000000000", "0123"] {
            assert_eq!(machine_of(none), "", "{none:?}");
        }
    }

    #[test]
    fn what_is_set_aside_is_whole_and_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state.json");
        for n in 1..=3 {
            for file in files_of(&state).iter().skip(n - 1) {
                std::fs::write(file, n.to_string()).unwrap();
            }
            let aside = set_aside(&state, &files_of(&state)).unwrap();
            assert_eq!(aside, dir.path().join(format!("state.json.aside-{n}")));
            assert!(files_of(&state).iter().all(|file| !file.exists()));
            assert_eq!(std::fs::read_dir(aside).unwrap().count(), 6 - n);
        }
    }
}
