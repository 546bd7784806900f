//! Logs of durable groups on disk: an embedded database beside the agent's state, written by a
//! thread of its own.
//!
//! The loop says what is to be written ([`Write`]) and goes on; what waits is written in one
//! transaction, and the loop hears when that is on disk. A transaction that fails is tried again
//! every second with all logs whole, so nothing is told of that the disk has not got.

use crate::core::requests::Request;
use crate::disk::JobClock;
use crate::group_jobs::Job;
use crate::handle::LoopHandle;
use crate::hooks::become_ordinary;
use crate::owner::{self, Owner};
use crossbeam_channel::Receiver;
use fide_proto::consensus::log::Position;
use fide_proto::group::{Entry, Value};
use fide_proto::services::groups::durable::{Saved, What, Write};
use fide_proto::services::groups::large::{Builder, Large, LargeRef};
use redb::{Database, ReadTransaction, ReadableTable as _, TableDefinition, TableError, WriteTransaction};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

/// By name: a [`Head`].
const HEADS: TableDefinition<&str, &[u8]> = TableDefinition::new("heads");
/// By name and position: an entry.
const ENTRIES: TableDefinition<(&str, u64), &[u8]> = TableDefinition::new("entries");
/// By name: which large state its snapshot stands for.
const STATES: TableDefinition<&str, &[u8]> = TableDefinition::new("states");
/// By name and number: a piece of that state.
const PIECES: TableDefinition<(&str, u64), &[u8]> = TableDefinition::new("pieces");
/// Under [`OWNER`]: whose file it is, as JSON. Releases before wrote none.
const OWNERS: TableDefinition<&str, &str> = TableDefinition::new("owner");
const OWNER: &str = "owner";
/// How heads and entries are written; another one is another file's.
const FORMAT: u8 = 1;
/// Most writes in one transaction.
const AT_ONCE: usize = 1024;
/// What failed is tried again after so long.
const AGAIN: Duration = Duration::from_secs(1);

/// A log but for its entries.
#[derive(serde::Serialize, serde::Deserialize)]
struct Head {
    format: u8,
    generation: u64,
    lineage: u64,
    snapshot_position: Position,
    snapshot: Option<Value>,
}

/// The file, and what it has.
pub struct Store {
    path: PathBuf,
    here: Owner,
    database: Option<Database>,
    /// Logs that lie in it as the loop last wrote them: others must be written whole first.
    whole: BTreeSet<String>,
    clock: JobClock,
}

impl Store {
    /// Opens the file, if there is one, and reads all logs; or says why they cannot be read. One of another host counts as none: `complaint` says so.
    pub fn open(path: &Path, here: &Owner) -> (Self, Result<BTreeMap<String, Saved>, String>, Option<String>) {
        let mut store = Self {
            path: path.to_owned(),
            here: here.clone(),
            database: None,
            whole: BTreeSet::new(),
            clock: JobClock::default(),
        };
        if !path.exists() {
            return (store, Ok(BTreeMap::new()), None);
        }
        let read = || {
            // It would be taken for a new one.
            anyhow::ensure!(path.metadata()?.len() > 0, "it is empty");
            let mut database = make(path, here)?;
            let other = owner_of(&database)?.filter(|owner| !owner.fits(here));
            if let Some(other) = other {
                return Ok(Err(other));
            }
            anyhow::ensure!(database.check_integrity()?, "pages of it are damaged");
            let logs = read(&database)?;
            note_owner(&database, here)?;
            anyhow::Ok(Ok((database, logs)))
        };
        // What a disk made of it may be more than the database expects.
        let read = std::panic::catch_unwind(read).unwrap_or_else(|_| Err(anyhow::anyhow!("pages of it make no sense")));
        let (logs, complaint) = match read {
            Ok(Ok((database, logs))) => {
                store.database = Some(database);
                (Ok(logs), None)
            }
            Ok(Err(other)) => {
                let why = other.unlike(here);
                (Ok(BTreeMap::new()), Some(owner::put_aside(path, &[path.to_owned()], path, &why)))
            }
            Err(e) => {
                let file = path.display();
                let why = format!(
                    "the logs of durable groups in {file} cannot be read ({e:#}): none runs on this host until that file is moved away and the agent \
                     started again, which gives up what only this disk has"
                );
                (Err(why), None)
            }
        };
        (store, logs, complaint)
    }

    /// For how long the disk has been at its present write.
    #[must_use]
    pub fn clock(&self) -> JobClock {
        self.clock.clone()
    }

    /// Writes what comes, until nobody has anything any more.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn start(mut self, jobs: Receiver<Job>, core: LoopHandle) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("fide-logs".into()).stack_size(512 << 10).spawn(move || {
            become_ordinary();
            while let Ok(first) = jobs.recv() {
                let jobs_now = std::iter::once(first).chain(jobs.try_iter().take(AT_ONCE));
                let clock = self.clock.clone();
                let all: Vec<Box<Write>> = clock.time(|| jobs_now.filter_map(|job| self.take(job)).collect());
                match clock.time(|| self.write(&all)) {
                    Ok(written) => {
                        for write in written {
                            let Write { name, generation, index, .. } = write;
                            core.tell(Request::GroupWritten(name.clone(), *generation, *index));
                        }
                    }
                    Err(e) => {
                        let why = format!("{} cannot be written: {e:#}", self.path.display());
                        // The database may be of no use behind an error of its disk.
                        self.database = None;
                        self.whole.clear();
                        std::thread::sleep(AGAIN);
                        jobs.try_iter().for_each(|job| _ = self.take(job));
                        core.tell(Request::GroupsUnwritten(why));
                    }
                }
            }
        })
    }

    /// What is not to be written to the database is done at once.
    fn take(&self, job: Job) -> Option<Box<Write>> {
        match job {
            Job::Write(write) => Some(write),
            Job::Keep(lost) => {
                if let Err(e) = lost.keep(&self.path) {
                    tracing::error!("what was lost of the group {} cannot be written down: {e:#}", lost.name);
                }
                None
            }
        }
    }

    /// In one transaction. Gives those that are on disk then.
    fn write<'a>(&mut self, writes: &'a [Box<Write>]) -> anyhow::Result<Vec<&'a Write>> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let database = match self.database.take() {
            Some(database) => database,
            None => make(&self.path, &self.here)?,
        };
        let transaction = database.begin_write()?;
        let (mut whole, mut written) = (self.whole.clone(), Vec::new());
        for write in writes {
            if matches!(write.what, What::Whole(_)) {
                whole.insert(write.name.clone());
            } else if !whole.contains(&write.name) {
                continue; // of before a failure: all of it is on its way again
            }
            apply(&transaction, write)?;
            written.push(&**write);
        }
        transaction.commit()?;
        self.whole = whole;
        self.database = Some(database);
        Ok(written)
    }
}

/// Whose file it is.
fn owner_of(database: &Database) -> anyhow::Result<Option<Owner>> {
    let owners = match database.begin_read()?.open_table(OWNERS) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        owners => owners?,
    };
    let owner = owners.get(OWNER)?;
    Ok(owner.map(|owner| serde_json::from_str(owner.value())).transpose()?)
}

fn note_owner(database: &Database, here: &Owner) -> anyhow::Result<()> {
    if owner_of(database)?.as_ref() != Some(here) {
        let transaction = database.begin_write()?;
        transaction.open_table(OWNERS)?.insert(OWNER, serde_json::to_string(here)?.as_str())?;
        transaction.commit()?;
    }
    Ok(())
}

/// The logs in this file are this host's from now on, if there are any.
///
/// # Errors
/// In words.
pub(crate) fn adopt(path: &Path, here: &Owner) -> Result<(), String> {
    if !path.exists() {
        return Ok(());
    }
    let noted = Database::create(path).map_err(anyhow::Error::from).and_then(|database| note_owner(&database, here));
    noted.map_err(|e| format!("{}: {e:#}", path.display()))
}

/// The database, made if it is not there; for this user alone.
fn make(path: &Path, here: &Owner) -> anyhow::Result<Database> {
    if path.symlink_metadata().is_ok() {
        return Ok(Database::create(path)?);
    }
    // An agent that is killed while a file is made leaves one that cannot be read: it gets its name
    // once it is whole.
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let _ = std::fs::remove_file(&new); // there is none, unless that has happened
    std::fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
    let database = Database::create(&new)?;
    note_owner(&database, here)?;
    std::fs::rename(&new, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(dir)?.sync_all()?;
    Ok(database)
}

fn read(database: &Database) -> anyhow::Result<BTreeMap<String, Saved>> {
    let transaction = database.begin_read()?;
    let (heads, entries) = match transaction.open_table(HEADS) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()), // nothing was ever written
        heads => (heads?, transaction.open_table(ENTRIES)?),
    };
    let mut logs = BTreeMap::new();
    for head in heads.iter()? {
        let (name, bytes) = head?;
        let name = name.value();
        let Head { format, generation, lineage, snapshot_position, snapshot } = postcard::from_bytes(bytes.value())?;
        anyhow::ensure!(format == FORMAT, "{name} is written in format {format}, and here in {FORMAT}");
        let large = read_state(&transaction, name)?;
        let mut saved = Saved { generation, lineage, snapshot_position, snapshot, entries: Vec::new(), large };
        for entry in entries.range((name, 0)..=(name, Position::MAX))? {
            let (place, bytes) = entry?;
            let (position, expected) = (place.value().1, saved.mark().position + 1);
            anyhow::ensure!(position == expected, "{name} has entry {position} in the place of {expected}");
            saved.entries.push(postcard::from_bytes(bytes.value())?);
        }
        logs.insert(name.to_owned(), saved);
    }
    Ok(logs)
}

fn read_state(transaction: &ReadTransaction, name: &str) -> anyhow::Result<Option<Large>> {
    let states = match transaction.open_table(STATES) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None), // of a release that had none
        states => states?,
    };
    let Some(at) = states.get(name)? else { return Ok(None) };
    let at: LargeRef = postcard::from_bytes(at.value())?;
    let mut bytes = Builder::default();
    for piece in transaction.open_table(PIECES)?.range((name, 0)..=(name, u64::MAX))? {
        bytes.push(piece?.1.value());
    }
    let (len, expected) = (bytes.len(), at.len);
    anyhow::ensure!(len == expected, "the state of {name} has {len} bytes in the place of {expected}");
    Ok(Some(bytes.into_large(at.id)))
}

fn put_state(transaction: &WriteTransaction, name: &str, large: Option<&Large>) -> anyhow::Result<()> {
    let mut states = transaction.open_table(STATES)?;
    let at = large.map(|large| postcard::to_stdvec(&large.at())).transpose()?;
    if states.get(name)?.as_ref().map(|at| at.value()) == at.as_deref() {
        return Ok(());
    }
    let mut pieces = transaction.open_table(PIECES)?;
    pieces.retain_in((name, 0)..=(name, u64::MAX), |_, _| false)?;
    match at {
        Some(at) => states.insert(name, at.as_slice())?,
        None => states.remove(name)?,
    };
    for (number, piece) in (0..).zip(large.into_iter().flat_map(|large| large.pieces().iter())) {
        pieces.insert((name, number), &**piece)?;
    }
    Ok(())
}

fn put(
    entries: &mut redb::Table<'_, (&'static str, u64), &'static [u8]>,
    name: &str,
    first: Position,
    all: &[Entry],
) -> anyhow::Result<()> {
    for (position, entry) in (first..).zip(all) {
        entries.insert((name, position), postcard::to_stdvec(entry)?.as_slice())?;
    }
    Ok(())
}

fn apply(transaction: &WriteTransaction, write: &Write) -> anyhow::Result<()> {
    let mut heads = transaction.open_table(HEADS)?;
    let mut entries = transaction.open_table(ENTRIES)?;
    let name = write.name.as_str();
    let head = match &write.what {
        What::Entries(first, all) => return put(&mut entries, name, *first, all),
        What::Whole(saved) => {
            let Saved { generation, lineage, snapshot_position, snapshot, entries: all, large } = saved;
            put_state(transaction, name, large.as_ref())?;
            entries.retain_in((name, 0)..=(name, Position::MAX), |_, _| false)?;
            put(&mut entries, name, snapshot_position + 1, all)?;
            Head {
                format: FORMAT,
                generation: *generation,
                lineage: *lineage,
                snapshot_position: *snapshot_position,
                snapshot: snapshot.clone(),
            }
        }
        What::Snapshot(position, snapshot, large) => {
            put_state(transaction, name, large.as_ref())?;
            entries.retain_in((name, 0)..=(name, *position), |_, _| false)?;
            let before: Head = match heads.get(name)? {
                Some(bytes) => postcard::from_bytes(bytes.value())?,
                None => anyhow::bail!("there is no log of {name}"),
            };
            Head { snapshot_position: *position, snapshot: Some(snapshot.clone()), ..before }
        }
    };
    heads.insert(name, postcard::to_stdvec(&head)?.as_slice())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_proto::group::{Body, EntryId, MemberId};
    use fide_proto::services::groups::large::LargeId;

    fn entry(number: u64) -> Entry {
        Entry { id: EntryId { proposer: MemberId(2), number }, body: Body::Value(vec![number as u8; 300].into()) }
    }

    fn write(name: &str, what: What) -> Box<Write> {
        Box::new(Write { name: name.into(), generation: 7, index: 0, what })
    }

    fn open(path: &Path) -> (Store, BTreeMap<String, Saved>) {
        let (store, logs, complaint) = Store::open(path, &Owner::default());
        assert_eq!(complaint, None);
        (store, logs.unwrap())
    }

    fn whole(numbers: std::ops::RangeInclusive<u64>) -> What {
        What::Whole(Saved { generation: 7, lineage: 5, entries: numbers.map(entry).collect(), ..Saved::default() })
    }

    #[test]
    fn a_file_that_was_not_finished_when_its_agent_was_killed_keeps_no_later_one_from_running() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("state.json.groups"), dir.path().join("state.json.groups.new"));
        std::fs::write(&new, [0; 4096]).unwrap();
        let database = make(&path, &Owner::default()).unwrap();
        assert!(path.is_file() && !new.exists() && read(&database).unwrap().is_empty());
        drop(database);
        assert!(read(&make(&path, &Owner::default()).unwrap()).unwrap().is_empty());
    }

    #[test]
    fn another_hosts_logs_are_moved_aside_and_those_of_a_former_release_are_taken() {
        let host = |node: &str| Owner { cluster: "c".into(), node: node.into(), machine: String::new() };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json.groups");
        let (mut store, ..) = Store::open(&path, &host("h1"));
        store.write(&[write("a", whole(1..=3))]).unwrap();
        drop(store);
        assert_eq!(Store::open(&path, &host("h1")).1.unwrap().len(), 1);
        let (mut store, logs, complaint) = Store::open(&path, &host("h2"));
        assert!(logs.unwrap().is_empty() && complaint.unwrap().contains("state.json.groups.aside-1"));
        let aside = dir.path().join("state.json.groups.aside-1/state.json.groups");
        assert!(aside.exists() && !path.exists());
        store.write(&[write("b", whole(1..=1))]).unwrap();
        drop(store);
        assert!(Store::open(&path, &host("h2")).1.unwrap().contains_key("b"));
        adopt(&aside, &host("h2")).unwrap();
        assert!(Store::open(&aside, &host("h2")).1.unwrap().contains_key("a"));
        // A file that names nobody.
        let old = dir.path().join("old");
        let database = Database::create(&old).unwrap();
        let transaction = database.begin_write().unwrap();
        apply(&transaction, &write("a", whole(1..=3))).unwrap();
        transaction.commit().unwrap();
        drop(database);
        assert_eq!(Store::open(&old, &host("h1")).1.unwrap().len(), 1);
        assert!(Store::open(&old, &host("h2")).2.is_some(), "it names its host since");
    }

    /// Whatever a disk makes of the file, the agent starts, and is told of no log but those that were written, as they were.
    #[test]
    fn damaged_and_foreign_logs_make_no_member_and_no_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs");
        let (mut store, _) = open(&path);
        store.write(&[write("a", whole(1..=30)), write("b", whole(1..=3))]).unwrap();
        store.write(&[write("a", What::Entries(31, vec![entry(31)]))]).unwrap();
        drop(store);
        let (store, logs) = open(&path);
        drop(store);
        let whole = std::fs::read(&path).unwrap();
        let mut seed = 7u64;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % n
        };
        let mut refused = 0;
        for n in 0..1000 {
            let mut bytes = whole.clone();
            // Most of the file is room that was never used.
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
            let (at, len) = (random(if n % 4 == 0 { 4096 } else { used }), 1 + random(300));
            let end = (at + len).min(used);
            match n % 5 {
                0 => bytes[at] ^= 1 << random(8),
                1 => bytes[at..end].fill(0),
                2 => (at..end).for_each(|i| bytes[i] = random(256) as u8),
                3 => bytes.truncate(at),
                _ => bytes.fill(0),
            }
            std::fs::write(&path, &bytes).unwrap();
            match Store::open(&path, &Owner::default()).1 {
                Ok(read) => assert!(read.iter().all(|(name, saved)| logs.get(name) == Some(saved)), "{n}: {read:?}"),
                Err(why) => {
                    refused += 1;
                    assert!(why.contains("cannot be read"), "{n}: {why}");
                }
            }
        }
        assert!(refused > 50, "{refused}");
    }

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs");
        let (mut store, logs) = open(&path);
        assert!(logs.is_empty() && !path.exists(), "no file for nothing");
        let more = What::Entries(4, vec![entry(4), entry(5)]);
        store.write(&[write("a", whole(1..=3)), write("b", whole(1..=1)), write("a", more)]).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap()) & 0o777, 0o600);
        store.write(&[write("a", What::Snapshot(4, vec![9].into(), None))]).unwrap();
        store.write(&[write("a", What::Entries(6, vec![entry(6)]))]).unwrap();
        drop(store);
        let (mut store, logs) = open(&path);
        let a = &logs["a"];
        assert_eq!((a.generation, a.lineage, a.snapshot_position, a.snapshot.as_deref()), (7, 5, 4, Some(&[9][..])));
        assert_eq!((&a.entries[..], logs["b"].entries.len()), (&[entry(5), entry(6)][..], 1));
        // What comes for a log that was not written whole since is of before: it is left alone.
        store.write(&[write("a", What::Entries(9, vec![entry(9)]))]).unwrap();
        store.write(&[write("b", whole(1..=2))]).unwrap();
        drop(store);
        let logs = open(&path).1;
        assert_eq!((logs["a"].mark().position, logs["b"].mark().position), (6, 2));
    }

    #[test]
    fn a_large_state_is_written_with_its_snapshot_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs");
        let (mut store, _) = open(&path);
        let large = |serial, byte: u8| {
            let mut bytes = Builder::default();
            bytes.push(&[byte; 100_000]);
            bytes.into_large(LargeId { node: 1, incarnation: 2, serial })
        };
        store.write(&[write("a", whole(1..=3)), write("b", whole(1..=3))]).unwrap();
        let snapshot = |position, large| What::Snapshot(position, vec![9].into(), large);
        store.write(&[write("a", snapshot(1, Some(large(1, 7)))), write("b", snapshot(2, Some(large(2, 8))))]).unwrap();
        drop(store);
        let (mut store, logs) = open(&path);
        assert_eq!((&logs["a"].large, &logs["b"].large), (&Some(large(1, 7)), &Some(large(2, 8))));
        // Written whole with the same one, then with others.
        store.write(&logs.iter().map(|(name, saved)| write(name, What::Whole(saved.clone()))).collect::<Vec<_>>()).unwrap();
        store.write(&[write("a", snapshot(2, Some(large(3, 9)))), write("b", snapshot(3, None))]).unwrap();
        drop(store);
        let logs = open(&path).1;
        assert_eq!((&logs["a"].large, &logs["b"].large), (&Some(large(3, 9)), &None));
        assert_eq!((logs["a"].snapshot_position, logs["a"].entries.len()), (2, 1));
    }

    #[test]
    fn a_file_that_is_no_such_database_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs");
        std::fs::write(&path, [7; 5000]).unwrap();
        let error = Store::open(&path, &Owner::default()).1.unwrap_err();
        assert!(error.contains("moved away"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), [7; 5000]);
    }

    #[test]
    fn a_disk_that_takes_nothing_is_an_error_and_nothing_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs");
        let (mut store, _) = open(&path);
        store.path = dir.path().join("nowhere").join("logs");
        assert!(store.write(&[write("a", whole(1..=1))]).is_err());
        store.path = path.clone();
        store.write(&[write("a", whole(1..=1))]).unwrap();
        drop(store);
        assert_eq!(open(&path).1["a"].entries.len(), 1);
    }
}
