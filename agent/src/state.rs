//! Incarnations, kept on disk: this agent's must grow across restarts even if the clock goes back, and those of others must not be
//! forgotten, or a replay of an earlier life would be believed after a restart.
//!
//! The disk has the file before its name is the present one; that takes long where much is written. So the same is handed to the kernel first, in a file
//! beside it (`.recent`): an agent that is killed meanwhile lacks nothing. It counts in the boot in which it was written, beside a file of the same agent.
//!
//! The file names its host ([`crate::owner`]) and has a checksum. Another host's, one that is damaged and one that is older than what was seen of this host
//! count as none: what was a host's membership is nobody else's.

use crate::files;
use crate::history::beside;
use crate::maintenance::Kept as Maintenance;
use crate::owner::{self, Owner, RECENT};
use fide_proto::services::groups::GROUPS_MAX;
use fide_proto::services::groups::last_set::LastSet;
use fide_wire::mac::Key;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    incarnation: u32,
    /// Whose it is; nobody's: written before that was noted.
    #[serde(default)]
    owner: Owner,
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
    /// Of those of them that ran here, who was to run them. Releases before wrote none.
    #[serde(default, deserialize_with = "last_sets")]
    last_sets: BTreeMap<String, LastSet>,
    /// What is in maintenance.
    #[serde(default)]
    maintenance: Vec<Maintenance>,
    /// With which incarnation the agent began that wrote this, and how often it did.
    #[serde(default)]
    began: u32,
    #[serde(default)]
    written: u64,
    /// Of all bytes of the file, with zeros in its own place ([`sum`]). The last field.
    #[serde(default)]
    check: String,
}

/// What another release wrote of a group costs that group its last set, and not the host its state.
fn last_sets<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, LastSet>, D::Error> {
    let all = BTreeMap::<String, serde_json::Value>::deserialize(from)?;
    let readable = all.into_iter().filter_map(|(name, set)| Some((name, serde_json::from_value::<LastSet>(set).ok()?)));
    Ok(readable.filter(|(_, set)| set.is_sane()).take(GROUPS_MAX).collect())
}

/// The kept incarnations.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    kept: Kept,
    /// The incarnation in the file, if there was one of this host.
    former: Option<u32>,
    dirty: bool,
    complained: bool,
    rebooted: bool,
}

/// What is longer is not read on: 256 hosts take less than 32 KiB.
const FILE_MAX: u64 = 1 << 20;
/// 2024-01-01, in seconds since 1970.
const EPOCH_S: u64 = 1_704_067_200;
/// The clock's part of an incarnation: none beyond half of what there is, in 2041. A clock that was set to a later time for one boot must not use up what is
/// left: incarnations are counted on from here then.
const CLOCK_MAX: u32 = 1 << 31;
/// The last incarnation that an agent begins: one more fits, which says that it is over.
pub const INCARNATION_MAX: u32 = u32::MAX - 1;
/// What the checksum is made with. It is no secret: it finds damage, and proves nothing.
const CHECK: Key = Key(*b"FiDe state check");
/// How the checksum is written.
const CHECK_FIELD: &[u8] = b"\"check\": \"";
const CHECK_LEN: usize = 16;

/// The incarnation behind this one; `None` behind the last.
#[must_use]
pub fn next_incarnation(after: u32) -> Option<u32> {
    after.checked_add(1).filter(|next| *next <= INCARNATION_MAX)
}

impl State {
    /// Reads the file, and says what became of one that counts for nothing: incarnations then grow by the clock alone. Such a file is moved aside, another
    /// host's with all that belongs to it.
    #[must_use]
    pub fn open(path: &Path, here: &Owner) -> (Self, Option<String>) {
        let (kept, complaint) = match read(path) {
            Ok(bytes) => match parse(&bytes) {
                Ok(kept) => judged(kept, path, here),
                Err(why) => {
                    let why =
                        format!("it is damaged ({why}); incarnations start from the clock, and this host joins its groups anew");
                    (None, Some(owner::put_aside(path, &[path.to_owned()], path, &why)))
                }
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => (None, None),
            Err(e) => (None, Some(format!("{} cannot be read: {e}", path.display()))),
        };
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let kept = kept.map(|kept| recent(path, &kept, here, &boot).unwrap_or(kept));
        let former = kept.as_ref().map(|kept: &Kept| kept.incarnation);
        let mut kept = kept.unwrap_or_default();
        let former_boot = std::mem::replace(&mut kept.boot, boot);
        let rebooted = !former_boot.is_empty() && !kept.boot.is_empty() && former_boot != kept.boot;
        kept.owner = here.clone();
        (Self { path: path.into(), kept, former, dirty: false, complained: false, rebooted }, complaint)
    }

    /// The incarnation for a new life: quarter seconds since 2024, and more than any before.
    pub fn begin(&mut self, now: std::time::SystemTime) -> u32 {
        let clock = now
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| (d.as_millis() / 250).saturating_sub(u128::from(EPOCH_S) * 4));
        let clock = u32::try_from(clock).unwrap_or(u32::MAX).min(CLOCK_MAX);
        // Behind the last one none would be left: others are to forget this host ([`crate::core::Core::operator_forgets`]).
        let counted = next_incarnation(self.kept.incarnation).unwrap_or(1);
        self.set_own(clock.max(counted));
        self.kept.began = self.kept.incarnation;
        self.kept.incarnation
    }

    /// The incarnation of this host's former agent, by its file; `None`: there was none.
    #[must_use]
    pub fn former(&self) -> Option<u32> {
        self.former
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

    /// A host is no member any more, on an operator's word or because it has another name now. What ended of it stays refused, unless no incarnation is left
    /// behind that.
    pub fn forget(&mut self, name: &str) {
        if self.kept.peers.get(name).is_some_and(|known| *known >= INCARNATION_MAX) {
            self.kept.peers.remove(name);
            self.kept.left.remove(name);
            self.dirty = true;
        } else {
            self.set_left(name, true);
        }
    }

    /// Others have seen a later incarnation of this host than its file named, before this agent: the file was an old one. Hosts that were not heard since are
    /// no members, and of no group.
    pub fn is_old(&mut self, heard: impl Fn(&str) -> bool) {
        let unheard = self.kept.peers.keys().filter(|name| !heard(name)).cloned();
        self.kept.left.extend(unheard);
        self.kept.groups.clear();
        self.kept.last_sets.clear();
        self.dirty = true;
    }

    /// The hosts seen before that have not left: of whom a majority is one, also before they are heard again.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        let counts = |name: &&str| !self.kept.left.contains(*name) && *name != self.kept.owner.node;
        self.kept.peers.keys().map(String::as_str).filter(counts)
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

    /// Who was to run those of them that ran here.
    #[must_use]
    pub fn last_sets(&self) -> BTreeMap<String, LastSet> {
        let is_kept = |(name, _): &(&String, &LastSet)| self.kept.groups.contains(*name);
        self.kept.last_sets.iter().filter(is_kept).map(|(name, set)| (name.clone(), set.clone())).collect()
    }

    /// Notes who is to run the groups that run on this host.
    pub fn set_last_sets(&mut self, last_sets: BTreeMap<String, LastSet>) {
        self.dirty |= self.kept.last_sets != last_sets;
        self.kept.last_sets = last_sets;
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

    /// Writes the file if something changed: beside it, then in its place, so that a crash leaves
    /// the old or the new. Waits for the disk.
    ///
    /// # Errors
    /// In words, once per failure.
    pub fn save(&mut self) -> Result<(), String> {
        let Some(unsaved) = self.unsaved() else { return Ok(()) };
        let written = unsaved.write();
        if written.is_ok() {
            // The disk has what a former agent handed over, too.
            let _ = std::fs::remove_file(beside(&self.path, RECENT));
        }
        self.saved(written)
    }

    /// What the file lacks, if something changed: to be written by a thread that may wait for the
    /// disk. What became of it, [`State::saved`] is told.
    pub fn unsaved(&mut self) -> Option<Unsaved> {
        let is_dirty = std::mem::take(&mut self.dirty);
        self.kept.written += u64::from(is_dirty);
        is_dirty.then(|| Unsaved { path: self.path.clone(), kept: self.kept.clone() })
    }

    /// The file was written, or could not be.
    ///
    /// # Errors
    /// In words, once per failure.
    pub fn saved(&mut self, written: Result<(), String>) -> Result<(), String> {
        let complained = std::mem::replace(&mut self.complained, written.is_err());
        self.dirty |= written.is_err();
        match written {
            Err(e) if !complained => {
                Err(format!("{} cannot be written ({e}); incarnations are kept in memory until it can", self.path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// What a state's file lacks.
#[derive(Clone, Debug)]
pub struct Unsaved {
    path: PathBuf,
    kept: Kept,
}

impl Unsaved {
    /// Writes it. Waits for the disk.
    ///
    /// # Errors
    /// The system's, in words.
    pub fn write(&self) -> Result<(), String> {
        self.try_write().map_err(|e| e.to_string())
    }

    fn try_write(&self) -> io::Result<()> {
        self.put(&self.path, true)
    }

    /// Hands it to the kernel, beside the state's file. Does not wait until the disk has it.
    ///
    /// # Errors
    /// The system's, in words.
    pub fn hand_over(&self) -> Result<(), String> {
        self.put(&beside(&self.path, RECENT), false).map_err(|e| e.to_string())
    }

    fn put(&self, path: &Path, synced: bool) -> io::Result<()> {
        may_replace(path)?;
        let new = beside(path, ".new");
        may_replace(&new)?;
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&new)?;
        file.write_all(&text(&self.kept)?)?;
        if synced {
            file.sync_all()?;
        }
        std::fs::rename(new, path)
    }
}

/// What was handed to the kernel in this boot and goes beyond the state's file.
fn recent(path: &Path, kept: &Kept, here: &Owner, boot: &str) -> Option<Kept> {
    let recent = parse(&read(&beside(path, RECENT)).ok()?).ok()?;
    let is_ours = !recent.owner.is_unnamed() && recent.owner.fits(here) && !boot.is_empty() && recent.boot == boot;
    // Of the same agent: a file that was put back from a backup, or written by hand, is meant to count.
    let is_its = recent.began == kept.began;
    let goes_beyond = (recent.incarnation, recent.written) > (kept.incarnation, kept.written);
    (is_ours && is_its && goes_beyond).then_some(recent)
}

/// The state of this host, or none and why.
fn judged(kept: Kept, path: &Path, here: &Owner) -> (Option<Kept>, Option<String>) {
    // Releases before named no host in it. None has ever met itself.
    let is_unlike = !kept.owner.fits(here) || (kept.owner.is_unnamed() && kept.peers.contains_key(&here.node));
    if !is_unlike {
        return (Some(kept), None);
    }
    let unlike = if kept.owner.is_unnamed() { "another host has written it".to_owned() } else { kept.owner.unlike(here) };
    let why = format!(
        "{unlike}. So {} is a member of no group by it, and waits for no host that it names (if that is this host under its former name, or with another \
         machine id: stop the agent, fided --adopt-state DIRECTORY, start it)",
        here.node
    );
    (None, Some(owner::put_aside(path, &owner::files_of(path), path, &why)))
}

/// The file's bytes, with their checksum.
fn text(kept: &Kept) -> io::Result<Vec<u8>> {
    let zeros = "0".repeat(CHECK_LEN);
    let mut bytes = serde_json::to_vec_pretty(&Kept { check: zeros, ..kept.clone() })?;
    if let Some(at) = check_at(&bytes) {
        let sum = format!("{:016x}", CHECK.tag(&bytes));
        bytes[at..at + CHECK_LEN].copy_from_slice(sum.as_bytes());
    }
    Ok(bytes)
}

/// Where the checksum's digits are.
fn check_at(bytes: &[u8]) -> Option<usize> {
    let at = bytes.windows(CHECK_FIELD.len()).rposition(|window| window == CHECK_FIELD)? + CHECK_FIELD.len();
    (at + CHECK_LEN <= bytes.len()).then_some(at)
}

fn parse(bytes: &[u8]) -> Result<Kept, String> {
    let kept: Kept = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    // Releases before wrote neither an owner nor a checksum.
    if kept.owner.is_unnamed() && kept.check.is_empty() {
        return Ok(kept);
    }
    let at = check_at(bytes).ok_or("it has no checksum")?;
    let mut bytes = bytes.to_vec();
    bytes[at..at + CHECK_LEN].fill(b'0');
    let is_whole = kept.check == format!("{:016x}", CHECK.tag(&bytes));
    if is_whole { Ok(kept) } else { Err("its checksum is of other bytes".into()) }
}

/// Makes a state that another host, or this one under another name, has left this host's: the files in `from` (a directory that a log line named), or those in
/// their place. What is in their place is moved aside. Says what was done.
///
/// # Errors
/// In words: nothing there, or not to be read.
pub fn adopt(path: &Path, from: Option<&Path>, here: &Owner) -> Result<Vec<String>, String> {
    let mut said = Vec::new();
    let files = owner::files_of(path);
    let source = from.map_or_else(|| path.to_owned(), |dir| dir.join(path.file_name().unwrap_or_default()));
    let e = |what: &Path| {
        let what = what.display().to_string();
        move |e: &dyn std::fmt::Display| format!("{what}: {e}")
    };
    let bytes = read(&source).map_err(|error| e(&source)(&error))?;
    let mut kept = parse(&bytes).map_err(|error| e(&source)(&error))?;
    if from.is_some() {
        if files.iter().any(|file| file.exists()) {
            let aside = owner::set_aside(path, &files).map_err(|error| e(path)(&error))?;
            said.push(format!("what was in its place lies in {} now", aside.display()));
        }
        for (file, moved) in owner::files_of(&source).iter().zip(&files) {
            match std::fs::rename(file, moved) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(e(file)(&error)),
                _ => {}
            }
        }
    }
    let was = std::mem::replace(&mut kept.owner, here.clone());
    kept.peers.remove(&here.node);
    State { path: path.into(), kept, former: None, dirty: true, complained: false, rebooted: false }.save()?;
    crate::kept::adopt(path, here).map_err(|error| e(path)(&error))?;
    let was = if was.is_unnamed() { "of a host that it does not name".to_owned() } else { format!("of {was}") };
    said.insert(0, format!("{} was {was}, and is of {here} now", path.display()));
    Ok(said)
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

/// Names of fields by which a state is known whose beginning is damaged: three of them.
const FIELDS: [&[u8]; 5] = [b"\"incarnation\":", b"\"peers\":", b"\"boot\":", b"\"groups\":", b"\"maintenance\":"];

/// The same of the file in this place. One whose beginning is damaged is known by the rest of it, or by what lies beside it and beside no other program's file.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn is_ours_at(state: &Path, file: &File) -> io::Result<bool> {
    if is_ours(file)? {
        return Ok(true);
    }
    let bytes = files::beginning(file, FILE_MAX as usize)?;
    let has = |field: &&[u8]| bytes.windows(field.len()).any(|window| window == *field);
    Ok(FIELDS.iter().filter(|field| has(field)).count() > 2 || crate::kept::is_beside(state) || has_logs_beside(state))
}

/// Whether logs of durable groups lie beside this state ([`crate::group_store`]).
fn has_logs_beside(state: &Path) -> bool {
    let file = files::open_kept(&beside(state, ".groups"), false, false);
    file.is_ok_and(|file| files::beginning(&file, 4).is_ok_and(|bytes| bytes == b"redb"))
}

fn open_ours(path: &Path) -> io::Result<File> {
    let file = files::open_kept(path, false, false)?;
    if is_ours_at(path, &file)? { Ok(file) } else { Err(files::not_ours(path, NOT_OURS).into()) }
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
    use crate::kept::{KeptTable, Numbers};
    use crate::owner::files_of;
    use fide_proto::consensus::Kind;
    use fide_proto::consensus::policy::Policy;
    use fide_proto::services::groups::durable::Mark;
    use std::time::{Duration, SystemTime};

    fn here() -> Owner {
        Owner { cluster: "c".into(), node: "h1".into(), machine: "m1".into() }
    }

    fn set(nodes: &[u32]) -> LastSet {
        LastSet {
            mark: Mark { generation: 5, position: 3 },
            nodes: nodes.into(),
            engine: Kind::Huc,
            policy: Policy::Fence,
            durable: false,
        }
    }

    /// A state with members and groups, as `owner` writes it.
    fn written(path: &Path, owner: &Owner) -> Vec<u8> {
        let (mut state, _) = State::open(path, owner);
        state.set_own(1000);
        ["h2", "h3"].iter().for_each(|peer| state.set_peer(peer, 7));
        state.set_groups(["billing", "shop"].map(String::from).into());
        state.set_last_sets([("shop".to_owned(), set(&[1, 2]))].into());
        state.save().unwrap();
        std::fs::read(path).unwrap()
    }

    fn says_nothing(state: &State) -> bool {
        state.groups().is_empty()
            && state.last_sets().is_empty()
            && state.members().next().is_none()
            && state.peers().is_empty()
            && state.former().is_none()
    }

    #[test]
    fn incarnations_grow_even_when_the_clock_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH_S + 100);
        let (mut s, complaint) = State::open(&path, &here());
        assert_eq!(complaint, None);
        assert_eq!(s.begin(now), 400);
        s.set_peer("b", 7);
        s.save().unwrap();
        let (mut s, _) = State::open(&path, &here());
        assert_eq!(s.begin(now - Duration::from_secs(1000)), 401);
        assert_eq!(s.peers().get("b"), Some(&7));
        for (left, members) in [(true, Vec::new()), (false, vec!["b"])] {
            s.set_left("b", left);
            s.save().unwrap();
            (s, _) = State::open(&path, &here());
            assert_eq!(s.members().collect::<Vec<_>>(), members);
        }
    }

    #[test]
    fn another_boot_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let (mut s, _) = State::open(&path, &here());
        assert!(!s.rebooted(), "nothing is known of one before");
        s.set_own(7);
        s.save().unwrap();
        assert!(!State::open(&path, &here()).0.rebooted());
        let (mut s, _) = State::open(&path, &here());
        assert!(s.kept.boot.len() > 30, "{s:?}");
        (s.kept.boot, s.dirty) = ("another".into(), true);
        s.save().unwrap();
        assert!(State::open(&path, &here()).0.rebooted());
        std::fs::write(&path, "{\"incarnation\": 7}").unwrap();
        assert!(!State::open(&path, &here()).0.rebooted(), "an older agent's");
    }

    #[test]
    fn an_agent_that_is_killed_before_the_disk_has_the_state_comes_back_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let (mut s, _) = State::open(&path, &here());
        let began = s.begin(SystemTime::now());
        s.save().unwrap();
        s.set_peer("b", 9);
        let unsaved = s.unsaved().unwrap();
        unsaved.hand_over().unwrap();
        let peer = |here: &Owner| State::open(&path, here).0.peers().get("b").copied();
        assert_eq!(peer(&here()), Some(9));
        // The file goes beyond it by an incarnation, by what is written later, or is of another boot.
        let written = |kept: Kept| Unsaved { path: path.clone(), kept }.write().unwrap();
        let of = |change: &dyn Fn(&mut Kept)| {
            let mut kept = unsaved.kept.clone();
            kept.peers.clear();
            change(&mut kept);
            kept
        };
        written(of(&|kept| kept.incarnation = began + 1));
        assert_eq!(peer(&here()), None, "this agent has begun another incarnation since");
        written(of(&|_| ()));
        assert_eq!(peer(&here()), None, "written later");
        written(of(&|kept| (kept.began, kept.incarnation) = (began - 1, began - 1)));
        assert_eq!(peer(&here()), None, "put back from a backup");
        written(of(&|kept| kept.written = 1));
        assert_eq!(peer(&here()), Some(9));
        let mut other_boot = unsaved.clone();
        other_boot.kept.boot = "another".into();
        other_boot.hand_over().unwrap();
        assert_eq!(peer(&here()), None, "the disk may not have had it");
        std::fs::write(beside(&path, RECENT), "{\"incarnation\": 99").unwrap();
        assert_eq!(peer(&here()), None, "torn");
        unsaved.hand_over().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(peer(&here()), None, "who removes the file wants to forget");
    }

    #[test]
    fn a_torn_file_is_told_and_survived() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        std::fs::write(&path, b"{\"incarn").unwrap();
        let (mut s, complaint) = State::open(&path, &here());
        assert!(complaint.unwrap().contains("state.json"));
        assert!(s.begin(SystemTime::now()) > 0);
    }

    #[test]
    fn a_directory_that_is_gone_is_told_once() {
        let (mut s, _) = State::open(Path::new("/nonexistent/state.json"), &here());
        s.set_own(3);
        assert!(s.save().is_err());
        assert!(s.save().is_ok());
    }

    #[test]
    fn another_hosts_state_counts_as_none_and_nothing_of_it_is_lost() {
        let other = |change: fn(&mut Owner)| {
            let mut owner = here();
            change(&mut owner);
            owner
        };
        for (n, owner) in [
            other(|owner| owner.node = "golden".into()),
            other(|owner| owner.cluster = "d".into()),
            other(|owner| owner.machine = "m2".into()),
        ]
        .into_iter()
        .enumerate()
        {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("state.json");
            let text = written(&path, &owner);
            let [_, log, table, groups, _] = files_of(&path);
            for file in [&log, &table, &groups] {
                std::fs::write(file, n.to_string()).unwrap();
            }
            let (mut state, complaint) = State::open(&path, &here());
            let said = complaint.unwrap();
            assert!(said.contains("state.json.aside-1") && said.contains("--adopt-state"), "{said}");
            assert!(says_nothing(&state), "{state:?}");
            assert!(files_of(&path).iter().all(|file| !file.exists()));
            let aside = dir.path().join("state.json.aside-1");
            assert_eq!(std::fs::read(aside.join("state.json")).unwrap(), text);
            assert_eq!(std::fs::read_to_string(aside.join("state.json.groups")).unwrap(), n.to_string());
            // This host's own is begun, and stays.
            state.begin(SystemTime::now());
            state.save().unwrap();
            assert_eq!(State::open(&path, &here()).1, None);
        }
    }

    #[test]
    fn the_state_of_a_former_release_is_accepted_once_and_names_its_host_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let old = r#"{"incarnation": 9, "peers": {"h2": 7}, "left": [], "boot": "b", "groups": ["shop"]}"#;
        std::fs::write(&path, old).unwrap();
        let (mut state, complaint) = State::open(&path, &here());
        assert_eq!((complaint, state.groups().len(), state.former()), (None, 1, Some(9)));
        state.begin(SystemTime::now());
        state.save().unwrap();
        assert_eq!(State::open(&path, &here()).0.groups().len(), 1);
        let other = Owner { node: "h4".into(), ..here() };
        assert!(says_nothing(&State::open(&path, &other).0), "a copy of this disk");
        // A copy of a disk on which a former release wrote: no host has met itself.
        std::fs::write(&path, old.replace("h2", "h1")).unwrap();
        let (state, complaint) = State::open(&path, &here());
        assert!(says_nothing(&state) && complaint.unwrap().contains("another host has written it"));
    }

    #[test]
    fn a_renamed_host_adopts_its_state() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let renamed = Owner { node: "h9".into(), machine: "m2".into(), ..here() };
        written(&path, &here());
        // In its place, before the agent starts.
        let said = adopt(&path, None, &renamed).unwrap();
        assert!(said[0].contains("\"h1\"") && said[0].contains("\"h9\""), "{said:?}");
        let (state, complaint) = State::open(&path, &renamed);
        assert_eq!((complaint, state.groups().len(), state.former()), (None, 2, Some(1000)));
        // From where the log said that it lies, behind a start under the first name again.
        let (mut state, complaint) = State::open(&path, &here());
        assert!(says_nothing(&state) && complaint.is_some());
        state.begin(SystemTime::now());
        state.save().unwrap();
        let aside = dir.path().join("state.json.aside-1");
        let said = adopt(&path, Some(&aside), &here()).unwrap();
        assert!(said.iter().any(|said| said.contains("state.json.aside-2")), "{said:?}");
        assert_eq!(State::open(&path, &here()).0.groups().len(), 2);
        assert!(dir.path().join("state.json.aside-2/state.json").exists());
        assert!(adopt(&dir.path().join("none"), None, &here()).is_err());
    }

    /// Files of other hosts, other clusters, other boots and releases, damaged or cut: an agent starts with all of them, and is a member of nothing that
    /// its own host's file does not name.
    #[test]
    fn a_thousand_foreign_and_damaged_states_make_no_member() {
        let dir = tempfile::tempdir().unwrap();
        let mut seed = 0x2545_f491_4f6c_dd1du64;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % n
        };
        let (mut accepted, mut refused) = (0, 0);
        for n in 0..1000 {
            let dir = dir.path().join(n.to_string());
            std::fs::create_dir(&dir).unwrap();
            let path = dir.join("state.json");
            let owner = match n % 4 {
                0 => Owner { node: format!("h{}", 2 + n % 90), ..here() },
                1 => Owner { cluster: "other".into(), ..here() },
                2 => Owner { machine: "m2".into(), ..here() },
                _ => here(),
            };
            let mut bytes = written(&path, &owner);
            let (mut table, ..) = KeptTable::open(&path, &owner, 7, Numbers::default());
            table.begin(99, 4, 0, 0);
            table.save(true).unwrap();
            let is_whole = random(4) == 0;
            let damage = if is_whole { 9 } else { random(5) };
            let (at, len) = (random(bytes.len()), 1 + random(64));
            let end = (at + len).min(bytes.len());
            match damage {
                0 => bytes.truncate(at),
                1 => bytes[at] ^= 1 << random(8),
                2 => bytes[at..end].fill(0),
                3 => (at..end).for_each(|i| bytes[i] = random(256) as u8),
                4 => drop(bytes.drain(at..end)),
                _ => {}
            }
            std::fs::write(&path, &bytes).unwrap();
            let (mut state, complaint) = State::open(&path, &here());
            let table = KeptTable::open(&path, &here(), 7, Numbers::default()).1;
            let is_own = is_whole && owner == here();
            if is_own || (owner == here() && complaint.is_none()) {
                accepted += usize::from(is_own);
                assert_eq!(state.groups(), ["billing", "shop"].map(String::from).into(), "{n}");
                assert_eq!(state.members().collect::<Vec<_>>(), ["h2", "h3"], "{n}");
            } else {
                refused += 1;
                assert!(complaint.is_some() && says_nothing(&state), "{n}: {complaint:?} {state:?}");
                assert!(dir.join("state.json.aside-1/state.json").exists(), "{n}: nothing is lost");
                assert!(table.is_none() || owner == here(), "{n}");
            }
            assert!(state.begin(SystemTime::now()) > 0);
            state.save().unwrap();
            assert_eq!(State::open(&path, &here()).1, None, "{n}: the next one finds a good one");
        }
        assert!(accepted > 30 && refused > 700, "{accepted} {refused}");
    }

    #[test]
    fn a_clock_that_is_far_ahead_leaves_half_of_the_incarnations() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let year_2099 = SystemTime::UNIX_EPOCH + Duration::from_secs(4_070_908_800);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let (mut state, _) = State::open(&path, &here());
        assert_eq!(state.begin(year_2099), CLOCK_MAX);
        state.save().unwrap();
        let (mut state, _) = State::open(&path, &here());
        assert_eq!(state.begin(now), CLOCK_MAX + 1, "the clock is right again");
        // Removing the files helps, too: others say what they have seen, and the agent begins behind that.
        let (mut state, _) = State::open(&dir.path().join("none"), &here());
        assert!(state.begin(now) < CLOCK_MAX);
        // What a former release made of such a clock.
        state.set_own(u32::MAX);
        assert_eq!(state.begin(now), 383_731_200, "as if there were no file");
    }

    #[test]
    fn incarnations_end_without_wrapping() {
        assert_eq!(next_incarnation(5), Some(6));
        assert_eq!(next_incarnation(INCARNATION_MAX - 1), Some(INCARNATION_MAX));
        assert_eq!((next_incarnation(INCARNATION_MAX), next_incarnation(u32::MAX)), (None, None));
        // A host that was seen there is forgotten wholly, and another one only as a member.
        let dir = tempfile::tempdir().unwrap();
        let (mut state, _) = State::open(&dir.path().join("state.json"), &here());
        state.set_peer("top", INCARNATION_MAX);
        state.set_peer("other", 7);
        state.forget("top");
        state.forget("other");
        assert_eq!(state.peers(), [("other".to_owned(), 7)].into());
        assert!(state.members().next().is_none());
    }

    #[test]
    fn an_old_state_makes_members_of_those_alone_that_are_heard() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        written(&path, &here());
        let (mut state, _) = State::open(&path, &here());
        state.is_old(|name| name == "h3");
        state.save().unwrap();
        let (state, _) = State::open(&path, &here());
        assert!(state.groups().is_empty() && state.members().eq(["h3"]) && state.peers().len() == 2);
        assert!(state.last_sets().is_empty() && state.kept.last_sets.is_empty());
    }

    #[test]
    fn who_was_to_run_a_group_is_kept_and_what_makes_no_sense_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        written(&path, &here());
        let (mut state, _) = State::open(&path, &here());
        assert_eq!(state.last_sets(), BTreeMap::from([("shop".into(), set(&[1, 2]))]));
        // Of a group that this host is no member of.
        state.set_groups(["billing".to_owned()].into());
        assert!(state.last_sets().is_empty());
        // The most that can be is read again.
        let most = |n: usize| (format!("{n:064}"), set(&(u32::MAX - 255..=u32::MAX).collect::<Vec<_>>()));
        let all: BTreeMap<String, LastSet> = (0..GROUPS_MAX).map(most).collect();
        state.set_groups(all.keys().cloned().collect());
        state.set_last_sets(all.clone());
        state.save().unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < FILE_MAX / 2);
        assert_eq!(State::open(&path, &here()).0.last_sets(), all);
        // Another release, or a person.
        let group = |set: &str| {
            let text = format!(r#"{{"incarnation": 9, "groups": ["shop"], "last_sets": {{"shop": {set}}}}}"#);
            std::fs::write(&path, text).unwrap();
            let (state, complaint) = State::open(&path, &here());
            assert_eq!((complaint, state.groups().len()), (None, 1));
            state.last_sets().len()
        };
        let of = |engine: &str, nodes: &str| {
            let mark = r#""mark": {"generation": 5, "position": 3}"#;
            format!(r#"{{{mark}, "nodes": {nodes}, "engine": "{engine}", "policy": "fence", "durable": false}}"#)
        };
        assert_eq!(group(&of("huc", "[1, 2]")), 1);
        for odd in [of("new", "[1]"), of("huc", "[]"), of("huc", "[1, 1]"), of("lowi", "[1]"), "7".into(), "null".into()] {
            assert_eq!(group(&odd), 0, "{odd}");
        }
    }
}
