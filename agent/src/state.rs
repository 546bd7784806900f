//! Incarnations, kept on disk: this agent's must grow across restarts even if the clock goes back, and those of others must not be
//! forgotten, or a replay of an earlier life would be believed after a restart.

use crate::files;
use crate::maintenance::Kept as Maintenance;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    incarnation: u32,
    #[serde(default)]
    peers: BTreeMap<String, u32>,
    /// Those of them that have left.
    #[serde(default)]
    left: BTreeSet<String>,
    /// The kernel's boot in which this was written.
    #[serde(default)]
    boot: String,
    /// The groups that this host is a member of.
    #[serde(default)]
    groups: BTreeSet<String>,
    /// What is in maintenance.
    #[serde(default)]
    maintenance: Vec<Maintenance>,
}

/// The kept incarnations.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    kept: Kept,
    dirty: bool,
    complained: bool,
    rebooted: bool,
}

/// What is longer is not read on: 256 hosts take less than 32 KiB.
const FILE_MAX: u64 = 1 << 20;
/// 2024-01-01, in seconds since 1970.
const EPOCH_S: u64 = 1_704_067_200;

impl State {
    /// Reads the file. What cannot be read is told and begun anew: the clock alone then makes incarnations grow.
    #[must_use]
    pub fn open(path: &Path) -> (Self, Option<String>) {
        let (kept, complaint) = match read(path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(kept) => (kept, None),
                Err(e) => (
                    Kept::default(),
                    Some(format!("{} is not readable ({e}); incarnations start from the clock", path.display())),
                ),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => (Kept::default(), None),
            Err(e) => (Kept::default(), Some(format!("{} cannot be read: {e}", path.display()))),
        };
        let mut kept: Kept = kept;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let former = std::mem::replace(&mut kept.boot, boot);
        let rebooted = !former.is_empty() && !kept.boot.is_empty() && former != kept.boot;
        (Self { path: path.into(), kept, dirty: false, complained: false, rebooted }, complaint)
    }

    /// The incarnation for a new life: quarter seconds since 2024, and more than any before.
    pub fn begin(&mut self, now: std::time::SystemTime) -> u32 {
        let clock =
            now.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| (d.as_millis() as u64 / 250).saturating_sub(EPOCH_S * 4));
        let clock = u32::try_from(clock).unwrap_or(u32::MAX);
        self.set_own(clock.max(self.kept.incarnation.saturating_add(1)));
        self.kept.incarnation
    }

    /// Whether the kernel was started anew since: nothing that ran then does.
    #[must_use]
    pub fn rebooted(&self) -> bool {
        self.rebooted
    }

    /// The kernel's boot id; 0 where it does not tell.
    #[must_use]
    pub fn boot(&self) -> u128 {
        u128::from_str_radix(&self.kept.boot.replace('-', ""), 16).unwrap_or(0)
    }

    /// Notes this agent's incarnation.
    pub fn set_own(&mut self, incarnation: u32) {
        self.kept.incarnation = incarnation;
        self.dirty = true;
    }

    /// Notes another host's.
    pub fn set_peer(&mut self, name: &str, incarnation: u32) {
        if self.kept.peers.insert(name.into(), incarnation) != Some(incarnation) {
            self.dirty = true;
        }
    }

    /// Incarnations of others seen before.
    #[must_use]
    pub fn peers(&self) -> BTreeMap<String, u32> {
        self.kept.peers.clone()
    }

    /// Notes that a host left, or is there (again).
    pub fn set_left(&mut self, name: &str, left: bool) {
        self.dirty |= if left { self.kept.left.insert(name.into()) } else { self.kept.left.remove(name) };
    }

    /// The hosts seen before that have not left: of whom a majority is one, also before they are heard again.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.kept.peers.keys().map(String::as_str).filter(|name| !self.kept.left.contains(*name))
    }

    /// The groups that this host's former agent was a member of, and did not leave.
    #[must_use]
    pub fn groups(&self) -> BTreeSet<String> {
        self.kept.groups.clone()
    }

    /// Notes the groups that this host is a member of.
    pub fn set_groups(&mut self, groups: BTreeSet<String>) {
        self.dirty |= self.kept.groups != groups;
        self.kept.groups = groups;
    }

    /// The maintenances that this host's former agent knew.
    #[must_use]
    pub fn maintenance(&self) -> Vec<Maintenance> {
        self.kept.maintenance.clone()
    }

    /// Notes the maintenances that this host knows.
    pub fn set_maintenance(&mut self, maintenance: Vec<Maintenance>) {
        self.dirty |= self.kept.maintenance != maintenance;
        self.kept.maintenance = maintenance;
    }

    /// Writes the file if something changed: beside it, then in its place, so that a crash leaves the old or the new.
    ///
    /// # Errors
    /// In words, once per failure.
    pub fn save(&mut self) -> Result<(), String> {
        if !self.dirty {
            return Ok(());
        }
        match self.write() {
            Ok(()) => {
                self.dirty = false;
                self.complained = false;
                Ok(())
            }
            Err(_) if self.complained => Ok(()),
            Err(e) => {
                self.complained = true;
                Err(format!("{} cannot be written ({e}); incarnations are kept in memory until it can", self.path.display()))
            }
        }
    }

    fn write(&self) -> io::Result<()> {
        may_replace(&self.path)?;
        let new = crate::history::beside(&self.path, ".new");
        may_replace(&new)?;
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&new)?;
        file.write_all(&serde_json::to_vec_pretty(&self.kept)?)?;
        file.sync_all()?;
        std::fs::rename(new, &self.path)
    }
}

/// What a file holds that does not hold the agent's state.
pub(crate) const NOT_OURS: &str = "no incarnations of hosts";

/// Whether a file holds a state, or what a crash left of one.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn is_ours(file: &File) -> io::Result<bool> {
    let beginning = files::beginning(file, 64)?;
    let text: Vec<u8> = beginning.into_iter().filter(|b| !b.is_ascii_whitespace()).collect();
    Ok(files::may_begin(&text, b"{\"incarnation\":"))
}

fn open_ours(path: &Path) -> io::Result<File> {
    let file = files::open_kept(path, false, false)?;
    if is_ours(&file)? { Ok(file) } else { Err(files::not_ours(path, NOT_OURS).into()) }
}

fn may_replace(path: &Path) -> io::Result<()> {
    match open_ours(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map(drop),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_ours(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn incarnations_grow_even_when_the_clock_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH_S + 100);
        let (mut s, complaint) = State::open(&path);
        assert_eq!(complaint, None);
        assert_eq!(s.begin(now), 400);
        s.set_peer("b", 7);
        s.save().unwrap();
        let (mut s, _) = State::open(&path);
        assert_eq!(s.begin(now - Duration::from_secs(1000)), 401);
        assert_eq!(s.peers().get("b"), Some(&7));
        for (left, members) in [(true, Vec::new()), (false, vec!["b"])] {
            s.set_left("b", left);
            s.save().unwrap();
            (s, _) = State::open(&path);
            assert_eq!(s.members().collect::<Vec<_>>(), members);
        }
    }

    #[test]
    fn another_boot_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let (mut s, _) = State::open(&path);
        assert!(!s.rebooted(), "nothing is known of one before");
        s.set_own(7);
        s.save().unwrap();
        assert!(!State::open(&path).0.rebooted());
        let text = std::fs::read_to_string(&path).unwrap();
        let boot = text.split("\"boot\": \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        assert!(boot.len() > 30, "{text}");
        std::fs::write(&path, text.replace(boot, "another")).unwrap();
        assert!(State::open(&path).0.rebooted());
        std::fs::write(&path, "{\"incarnation\": 7}").unwrap();
        assert!(!State::open(&path).0.rebooted(), "an older agent's");
    }

    #[test]
    fn a_torn_file_is_told_and_survived() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        std::fs::write(&path, b"{\"incarn").unwrap();
        let (mut s, complaint) = State::open(&path);
        assert!(complaint.unwrap().contains("state.json"));
        assert!(s.begin(SystemTime::now()) > 0);
    }

    #[test]
    fn a_directory_that_is_gone_is_told_once() {
        let (mut s, _) = State::open(Path::new("/nonexistent/state.json"));
        s.set_own(3);
        assert!(s.save().is_err());
        assert!(s.save().is_ok());
    }
}
