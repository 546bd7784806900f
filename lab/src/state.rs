//! The record of a lab, `/run/fide/lab/<name>.json`: written before each thing is made, so that whatever a crashed
//! creator left behind can be found and removed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::fault::{LinkFaults, SwitchFault};
use crate::freeze::Frozen;
use crate::process::ProcessId;
use crate::spec::LabSpec;

/// Where the records and the hosts' directories are.
pub(crate) const BASE: &str = "/run/fide/lab";
const FORMAT: u32 = 1;

/// How far a lab has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Its creator is making it.
    Building,
    /// It can be used.
    Up,
    /// That process is taking it down.
    Removing {
        /// Who is.
        by: ProcessId,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    format: u32,
    /// Unique among all labs ever, unlike the name.
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) spec: LabSpec,
    pub(crate) creator: ProcessId,
    pub(crate) phase: Phase,
    /// All that the lab makes or will make.
    pub(crate) namespaces: Vec<String>,
    /// The shell that removes an ephemeral lab when its creator ends.
    pub(crate) watcher: Option<ProcessId>,
    /// Links that are not as they were made, by host and network, as in `h3/net0`.
    pub(crate) links: BTreeMap<String, LinkFaults>,
    /// Switches that are down, by network.
    pub(crate) switches: BTreeMap<u8, SwitchFault>,
    pub(crate) frozen: Vec<Frozen>,
}

impl State {
    pub(crate) fn new(name: String, spec: LabSpec, namespaces: Vec<String>) -> Result<Self, LabError> {
        Ok(State {
            format: FORMAT,
            id: random_hex(16)?,
            name,
            spec,
            creator: ProcessId::me(),
            phase: Phase::Building,
            namespaces,
            watcher: None,
            links: BTreeMap::new(),
            switches: BTreeMap::new(),
            frozen: Vec::new(),
        })
    }

    pub(crate) fn link(&self, host: u16, net: u8) -> LinkFaults {
        self.links.get(&link_key(host, net)).copied().unwrap_or_default()
    }

    pub(crate) fn set_link(&mut self, host: u16, net: u8, faults: LinkFaults) {
        if faults == LinkFaults::default() {
            self.links.remove(&link_key(host, net));
        } else {
            self.links.insert(link_key(host, net), faults);
        }
    }

    /// Whether somebody takes this lab down instead of its creator, who has ended.
    pub(crate) fn is_taken_over(&self) -> bool {
        matches!(self.phase, Phase::Removing { .. }) && !self.creator.is_alive()
    }

    /// Whether nobody is left who would take this lab down.
    pub(crate) fn is_stale(&self) -> bool {
        match self.phase {
            Phase::Building => !self.creator.is_alive(),
            Phase::Up => self.spec.ephemeral && !self.creator.is_alive(),
            Phase::Removing { by } => !by.is_alive(),
        }
    }
}

fn link_key(host: u16, net: u8) -> String {
    format!("h{host}/net{net}")
}

/// The record's file.
pub(crate) fn path_of(name: &str) -> PathBuf {
    Path::new(BASE).join(format!("{name}.json"))
}

/// The lab's directory; its hosts' directories are inside.
pub(crate) fn directory_of(name: &str) -> PathBuf {
    Path::new(BASE).join(name)
}

/// Writes the record of a new lab. Fails if there is one of that name.
pub(crate) fn create(state: &State) -> Result<(), LabError> {
    let _lock = Lock::take()?;
    if path_of(&state.name).exists() {
        return Err(LabError::Exists(state.name.clone()));
    }
    write(state)
}

/// The record of the lab, `None` if there is no such lab.
pub(crate) fn read(name: &str) -> Result<Option<State>, LabError> {
    let path = path_of(name);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(LabError::io(format!("read {}", path.display()), e)),
    };
    let bad = |why: String| LabError::BadState { path: path.display().to_string(), why };
    let state: State = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    if state.format != FORMAT {
        return Err(bad(format!("it has format {}, this program knows format {FORMAT}", state.format)));
    }
    Ok(Some(state))
}

/// Changes the record in one step as seen by all others. The lab with this id must (still) exist.
pub(crate) fn update<T>(name: &str, id: &str, change: impl FnOnce(&mut State) -> Result<T, LabError>) -> Result<T, LabError> {
    let _lock = Lock::take()?;
    let mut state = read(name)?.filter(|s| s.id == id).ok_or_else(|| LabError::NotFound(name.to_string()))?;
    let outcome = change(&mut state)?;
    write(&state)?;
    Ok(outcome)
}

/// Deletes the record, the last thing to go.
pub(crate) fn delete(name: &str, id: &str) -> Result<(), LabError> {
    let _lock = Lock::take()?;
    if read(name)?.is_some_and(|s| s.id == id) {
        let path = path_of(name);
        fs::remove_file(&path).map_err(|e| LabError::io(format!("delete {}", path.display()), e))?;
    }
    Ok(())
}

/// Runs `body` while nobody can make, change or delete a record.
pub(crate) fn while_locked<T>(body: impl FnOnce() -> T) -> Result<T, LabError> {
    let _lock = Lock::take()?;
    Ok(body())
}

/// The names of all labs that have a record.
pub(crate) fn names() -> Vec<String> {
    let Ok(entries) = fs::read_dir(BASE) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_string())).collect();
    names.sort();
    names
}

fn write(state: &State) -> Result<(), LabError> {
    let text = serde_json::to_string_pretty(state).expect("a record has only string keys and plain values");
    let path = path_of(&state.name);
    // Under the lock nobody else writes here, and a leftover of a crash is overwritten.
    let draft = Path::new(BASE).join(".draft");
    fs::write(&draft, text)
        .and_then(|()| fs::rename(&draft, &path))
        .map_err(|e| LabError::io(format!("write {}", path.display()), e))
}

/// Held while the records are changed. Short: never while anything is made or waited for.
struct Lock {
    _directory: File,
}

impl Lock {
    fn take() -> Result<Self, LabError> {
        fs::create_dir_all(BASE).map_err(|e| LabError::io(format!("make the directory {BASE}"), e))?;
        check_owner(Path::new(BASE))?;
        let directory = File::open(BASE).map_err(|e| LabError::io(format!("open {BASE}"), e))?;
        loop {
            // SAFETY: flock takes two integers. The lock ends with the descriptor, also when its holder is killed.
            if unsafe { libc::flock(directory.as_raw_fd(), libc::LOCK_EX) } == 0 {
                return Ok(Lock { _directory: directory });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(LabError::io(format!("lock {BASE}"), error));
            }
        }
    }
}

/// What is below the directory is written and removed by root without a further look, so nobody else may put anything there.
fn check_owner(directory: &Path) -> Result<(), LabError> {
    // SAFETY: geteuid takes nothing and cannot fail.
    let trusted = [0, unsafe { libc::geteuid() }];
    for directory in directory.ancestors() {
        let meta = fs::symlink_metadata(directory).map_err(|e| LabError::io(format!("look at {}", directory.display()), e))?;
        let shared = meta.mode() & 0o022 != 0 && meta.mode() & 0o1000 == 0;
        if !meta.is_dir() || !trusted.contains(&meta.uid()) || shared {
            return Err(LabError::Unsupported {
                what: "keep the records of labs".into(),
                why: format!(
                    "{} is not a directory that only root can change (uid {}, mode {:04o})",
                    directory.display(),
                    meta.uid(),
                    meta.mode() & 0o7777
                ),
                advice: "see who made it so, and give it back to root with mode 0755",
            });
        }
    }
    Ok(())
}

/// `digits` random hexadecimal digits.
pub(crate) fn random_hex(digits: usize) -> Result<String, LabError> {
    let mut bytes = vec![0u8; digits.div_ceil(2)];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|e| LabError::io("read /dev/urandom", e))?;
    let mut text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    text.truncate(digits);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn records_are_kept_only_where_nobody_else_can_put_anything() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let base = root.join("fide/lab");
        fs::create_dir_all(&base).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        check_owner(&base).unwrap();
        for mode in [0o777, 0o775] {
            set(&root.join("fide"), mode);
            let why = check_owner(&base).unwrap_err().to_string();
            assert!(why.contains("/fide is not a directory that only root can change"), "{why}");
        }
        set(&root.join("fide"), 0o755);
        symlink(&base, root.join("link")).unwrap();
        assert!(check_owner(&root.join("link")).is_err());
        if chown(root.join("fide"), Some(65534), None).is_ok() {
            assert!(check_owner(&base).unwrap_err().to_string().contains("uid 65534"));
        }
    }
}
