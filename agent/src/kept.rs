//! This host's table, kept in a file beside the incarnations, so that an agent that is restarted goes on with it: what ended meanwhile is told by the new one.
//!
//! The loop says what it has written ([`crate::core::Happened::Row`]); the control thread hands it
//! over ([`KeptTable::hand_over`]) to the thread that writes the file ([`TableFile::write`]), which
//! does not synchronise it: it has to outlive the agent, not the kernel. After another boot nothing
//! of it holds, since everything that ran has ended.
//!
//! The whole table is written now and then. What changes in between is a line behind it at once, in a journal (`….log`) that ends with the next whole one: an agent that is
//! killed right after it said that a process is watched leaves that to the next one, however large the table and slow the disk.

use crate::files;
use crate::owner::{self, Owner};
use crate::watchlist::{INTERESTS_FROM, Origin};
use fide_wire::frame::table::{Content, HOST_ROW, Row};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An agent gave out at most so many versions behind the last one in the file.
const VERSIONS_AHEAD: u64 = 1 << 16;
/// And so many numbers of rows.
const ROWS_AHEAD: u32 = 4096;
/// With a higher version a new table is begun: numbers of notices have 31 bits.
const VERSION_MAX: u64 = 1 << 30;
/// The last versions are for what is watched by then.
const VERSIONS_LEFT: u64 = 1 << 20;
/// Without any file a number does not return within a boot either: numbers grow by one in this time, too.
const NS_PER_NUMBER: u64 = 64_000_000;
/// Ended rows that are kept.
const ENDED_KEPT: usize = 256;
/// Writing takes at most this part of the time, and is put off for so long at most.
const PART_OF_TIME: u32 = 20;
const PUT_OFF_MAX: Duration = Duration::from_millis(200);
/// Lines go to the journal at once. The whole table follows so much later: not while applications
/// take over from what has just crashed.
const SETTLES: Duration = Duration::from_millis(50);
/// Lines that may wait for a disk that does not take them, bytes: a whole table follows in their
/// place.
const LINES_MAX: usize = 1 << 20;
/// What is longer is not read: 4096 processes take less.
const FILE_MAX: u64 = 4 << 20;
/// What the file begins with.
const FORMAT: u32 = 1;

/// Whether processes may be watched in a table of this version: each takes some, and its end one.
///
/// # Errors
/// In words, behind the last but some, which are for ends.
pub fn has_versions(version: u64) -> Result<(), String> {
    if version < 2 * VERSION_MAX - VERSIONS_LEFT {
        return Ok(());
    }
    Err("the versions of this host's table are used up but for the ends of what is watched: restart its agent, which begins a new table".into())
}

/// What a row does not say of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptWatch {
    /// The user of the process.
    pub uid: u32,
    /// Where the watch comes from.
    pub origin: Origin,
    /// Whose watch it is.
    pub owner: u32,
    /// Under whom the watch is counted.
    pub charged: u32,
    /// Under whom what the process does is counted.
    pub account: u32,
    /// The program that had joined, where that can be told ([`crate::select::image`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<u64>,
}

/// What an agent that is started finds of the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former {
    /// Which table it is.
    pub epoch: u64,
    /// No version up to here may be used again.
    pub version: u64,
    /// The last process row that the file knows of. What lies behind it, up to the next one, is in nobody's file.
    pub known_process: u32,
    /// No process row up to here may be used again.
    pub last_process: u32,
    /// No interest row up to here.
    pub last_interest: u32,
    /// Rows as they were left.
    pub rows: Vec<Row>,
    /// Of live processes.
    pub watches: BTreeMap<u32, KeptWatch>,
    /// Of other hosts' tables: the epoch, and the version up to which ends were told.
    pub seen: BTreeMap<u32, (u64, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    table: u32,
    boot: String,
    /// Whose it is; nobody's: written before that was noted.
    #[serde(default)]
    owner: Owner,
    epoch: u64,
    version: u64,
    /// Never: that the file is the newest one cannot be seen from it. Releases before read this.
    exact: bool,
    last_process: u32,
    last_interest: u32,
    /// In the bytes of the wire, as hexadecimal digits.
    rows: BTreeMap<u32, String>,
    watches: BTreeMap<u32, KeptWatch>,
    #[serde(default)]
    seen: BTreeMap<u32, (u64, u64)>,
}

/// A line of the journal: a row that is newer than the whole table before it.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    epoch: u64,
    row: String,
    watch: Option<KeptWatch>,
}

/// The table, and what its file does not have yet.
#[derive(Debug)]
pub struct KeptTable {
    file: Arc<TableFile>,
    kept: Kept,
    /// Lines that were not handed over.
    lines: String,
    /// Ended rows, by version.
    ended: BTreeMap<u64, u32>,
    /// Since when the file lacks something.
    dirty: Option<Instant>,
    /// When it was handed over last, and how long that took.
    written: Option<(Instant, Duration)>,
    complained: bool,
}

/// The file, for a thread that may wait for the disk.
#[derive(Debug)]
pub struct TableFile {
    path: PathBuf,
    waiting: Mutex<Waiting>,
    /// Behind the whole table as it was written last.
    journal: Mutex<Option<File>>,
}

/// What waits to be written. Never locked while the disk is waited for.
#[derive(Debug, Default)]
struct Waiting {
    /// A whole table; the lines follow it.
    whole: Option<Vec<u8>>,
    lines: String,
    /// A whole table is being written.
    is_under_way: bool,
    /// One was handed over.
    has_whole: bool,
    /// How long it took to write the last one.
    took: Duration,
}

impl TableFile {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what was handed over. Waits for the disk.
    ///
    /// # Errors
    /// The system's, in words; a whole table is to follow.
    pub fn write(&self) -> Result<(), String> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let (whole, lines) = {
            let mut waiting = self.waiting();
            waiting.is_under_way = waiting.whole.is_some();
            (waiting.whole.take(), std::mem::take(&mut waiting.lines))
        };
        let began = Instant::now();
        let is_whole = whole.is_some();
        let begun: io::Result<()> = whole.map_or(Ok(()), |bytes| {
            write_bytes(&self.path, &bytes)?;
            *journal = None;
            *journal = Some(begin_journal(&self.path)?);
            Ok(())
        });
        {
            let mut waiting = self.waiting();
            waiting.is_under_way = false;
            if is_whole {
                waiting.took = began.elapsed();
            }
        }
        let written = begun.and_then(|()| journal.as_mut().map_or(Ok(()), |journal| journal.write_all(lines.as_bytes())));
        written.map_err(|e| e.to_string())
    }
}

impl KeptTable {
    /// The file beside this one, and what is in it of this boot. What cannot be read is told, and begun anew. `used`: what former
    /// agents of this boot may have given out, whatever the file says.
    #[must_use]
    pub fn open(beside: &Path, here: &Owner, boot: u128, used: Numbers) -> (Self, Option<Former>, Option<String>) {
        let path = crate::history::beside(beside, ".table");
        let boot = format!("{boot:032x}");
        let (read, complaint) = match read(&path) {
            Ok(kept) if !kept.owner.fits(here) => {
                let files = [path.clone(), journal_path(&path)];
                (None, Some(owner::put_aside(beside, &files, &path, &kept.owner.unlike(here))))
            }
            Ok(kept) => (Some(with_journal(kept, &path)), None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => (None, None),
            Err(e) => (None, Some(format!("{}: {e}; what ended while no agent ran is not told", path.display()))),
        };
        let found = read.and_then(|kept| Some((former(&kept, &boot, used)?, kept)));
        let (former, kept) = found.map_or((None, Kept::default()), |(former, kept)| (Some(former), kept));
        // The rows that go on are not written again.
        (Self::of(&path, Kept { table: FORMAT, boot, owner: here.clone(), ..kept }), former, complaint)
    }

    fn of(path: &Path, kept: Kept) -> Self {
        let row = |text: &String| Row::parse(&unhex(text)?);
        let over = kept.rows.values().filter_map(row).filter(|row| row.content.is_over());
        let ended = over.map(|row| (row.version, row.row)).collect();
        let file = TableFile { path: path.to_owned(), waiting: Mutex::default(), journal: Mutex::new(None) };
        Self { file: Arc::new(file), kept, lines: String::new(), ended, dirty: None, written: None, complained: false }
    }

    /// The table that is written from now on.
    pub fn begin(&mut self, epoch: u64, version: u64, last_process: u32, last_interest: u32) {
        (self.kept.epoch, self.kept.version) = (epoch, version);
        (self.kept.last_process, self.kept.last_interest) = (last_process, last_interest);
        self.lacks();
    }

    /// A row was written.
    pub fn row(&mut self, row: &Row, watch: Option<KeptWatch>) {
        let number = row.row;
        self.kept.version = self.kept.version.max(row.version);
        // How long a maintenance still lasts, which keys there are and what the agent is, the next agent says anew.
        if matches!(row.content, Content::Maintenance(_) | Content::Keys(_) | Content::Agent(_)) {
            self.lacks();
            return;
        }
        match &row.content {
            Content::Process(_) => self.kept.last_process = self.kept.last_process.max(number),
            Content::Interest(_) => self.kept.last_interest = self.kept.last_interest.max(number),
            Content::Host(_) | Content::Maintenance(_) | Content::Keys(_) | Content::Agent(_) | Content::Unknown(_) => {}
        }
        if row.content.is_over() {
            self.kept.watches.remove(&number);
            self.ended.insert(row.version, number);
            while self.ended.len() > ENDED_KEPT {
                if let Some((_, oldest)) = self.ended.pop_first() {
                    self.kept.rows.remove(&oldest);
                }
            }
        } else if let Some(watch) = watch {
            self.kept.watches.insert(number, watch);
        }
        let mut bytes = Vec::new();
        if row.push(&mut bytes, usize::MAX) {
            let row = hex(&bytes);
            let line = Line { epoch: self.kept.epoch, row: row.clone(), watch: self.kept.watches.get(&number).cloned() };
            if let Ok(line) = serde_json::to_string(&line) {
                self.lines += &line;
                self.lines.push('\n');
            }
            self.kept.rows.insert(number, row);
        }
        self.lacks();
    }

    /// What another host's table says up to this version is known here, its ends were told.
    pub fn seen(&mut self, node: u32, epoch: u64, version: u64) {
        let known = self.kept.seen.entry(node).or_default();
        let news = (epoch, if known.0 == epoch { known.1.max(version) } else { version });
        if std::mem::replace(known, news) != news {
            self.lacks();
        }
    }

    /// The same of one end, in the table that is known of that host.
    pub fn told(&mut self, node: u32, version: u64) {
        if let Some((epoch, _)) = self.kept.seen.get(&node) {
            self.seen(node, *epoch, version);
        }
    }

    /// Writes what changed, as [`KeptTable::hand_over`] has it. Waits for the disk. `leaving`:
    /// nothing follows.
    ///
    /// # Errors
    /// In words, once per failure.
    pub fn save(&mut self, leaving: bool) -> Result<(), String> {
        if !self.hand_over(leaving) {
            return Ok(());
        }
        let written = self.file.write();
        self.written(written)
    }

    /// What writes the file: for a thread that may wait for the disk.
    #[must_use]
    pub fn file(&self) -> Arc<TableFile> {
        self.file.clone()
    }

    /// Hands over what changed: the whole table if it is some time since that was done last, else
    /// lines behind it. Whether there is something to write.
    pub fn hand_over(&mut self, leaving: bool) -> bool {
        let is_due = leaving || self.due().is_some_and(|wait| wait.is_zero());
        if !is_due && self.lines.is_empty() {
            return false;
        }
        let file = self.file.clone();
        let mut waiting = file.waiting();
        // A disk that takes no line gets the whole table instead, when it does.
        if is_due || waiting.lines.len() + self.lines.len() > LINES_MAX {
            let began = Instant::now();
            waiting.whole = serde_json::to_vec(&self.kept).ok();
            waiting.has_whole = true;
            waiting.lines.clear();
            self.written = Some((began, began.elapsed()));
            self.dirty = None;
        } else {
            waiting.lines += &self.lines;
        }
        self.lines.clear();
        true
    }

    /// What was handed over was written, or could not be: then a whole table follows.
    ///
    /// # Errors
    /// In words, once per failure.
    pub fn written(&mut self, written: Result<(), String>) -> Result<(), String> {
        let complained = std::mem::replace(&mut self.complained, written.is_err());
        if written.is_err() {
            self.lacks();
        }
        match written {
            Err(e) if !complained => {
                let path = self.file.path.display();
                Err(format!("{path} cannot be written ({e}): what ends while no agent runs will not be told"))
            }
            _ => Ok(()),
        }
    }

    fn lacks(&mut self) {
        self.dirty.get_or_insert_with(Instant::now);
    }

    /// When the whole table wants to be written; `None`: nothing changed, or the last one is not
    /// written yet.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let since = self.dirty?;
        let (has_whole, took) = {
            let waiting = self.file.waiting();
            if waiting.whole.is_some() || waiting.is_under_way {
                return None;
            }
            (waiting.has_whole, waiting.took)
        };
        let wait = |(began, handed): (Instant, Duration)| {
            (handed.max(took) * PART_OF_TIME).min(PUT_OFF_MAX).saturating_sub(began.elapsed())
        };
        let settles = if has_whole { SETTLES.saturating_sub(since.elapsed()) } else { Duration::ZERO };
        Some(self.written.map_or(Duration::ZERO, wait).max(settles))
    }
}

/// The highest numbers that agents of this boot may have given out: none of them is given out again. Kept where the socket is, in memory: the table may be an old
/// one (a backup, or a disk that was full), and would not say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    /// Of versions.
    pub version: u64,
    /// Of process rows.
    pub process: u32,
    /// Of interest rows.
    pub interest: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Life {
    boot: String,
    /// With which the last agent began.
    began: Numbers,
}

impl Numbers {
    /// What may have been used so long behind the begin of this boot, by the last agent's word at `path`.
    #[must_use]
    pub fn used(path: &Path, boot: u128, booted_ns: u64) -> Self {
        let floor = (booted_ns / NS_PER_NUMBER).min(VERSION_MAX / 2) as u32;
        let floor = Numbers { version: floor.into(), process: floor, interest: INTERESTS_FROM + floor };
        let mut bytes = Vec::new();
        let read = files::open_kept(path, false, false).map(|file| file.take(4096).read_to_end(&mut bytes));
        let life = read.is_ok().then(|| serde_json::from_slice::<Life>(&bytes).ok()).flatten();
        match life.filter(|life| life.boot == format!("{boot:032x}") && boot != 0) {
            Some(life) => floor.max(life.began.ahead()),
            None => floor,
        }
    }

    /// An agent begins with these.
    ///
    /// # Errors
    /// Of the system.
    pub fn write(self, path: &Path, boot: u128) -> io::Result<()> {
        let new = crate::history::beside(path, ".new");
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&new)?;
        file.write_all(&serde_json::to_vec(&Life { boot: format!("{boot:032x}"), began: self })?)?;
        std::fs::rename(new, path)
    }

    /// Behind an agent that began with these.
    const fn ahead(self) -> Self {
        Self {
            version: self.version.saturating_add(VERSIONS_AHEAD),
            process: self.process.saturating_add(ROWS_AHEAD),
            interest: self.interest.saturating_add(ROWS_AHEAD),
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            version: self.version.max(other.version),
            process: self.process.max(other.process),
            interest: self.interest.max(other.interest),
        }
    }
}

fn former(kept: &Kept, boot: &str, used: Numbers) -> Option<Former> {
    let is_of_boot = kept.boot == boot && boot.bytes().any(|b| b != b'0');
    if kept.table != FORMAT || !is_of_boot || kept.epoch == 0 || kept.version > VERSION_MAX {
        return None;
    }
    let numbers = Numbers { version: kept.version, process: kept.last_process, interest: kept.last_interest };
    let numbers = numbers.ahead().max(used);
    if numbers.version > 2 * VERSION_MAX - VERSIONS_AHEAD {
        return None;
    }
    let rows: Option<Vec<Row>> = kept.rows.values().map(|text| Row::parse(&unhex(text)?)).collect();
    let rows = rows?.into_iter().filter(|row| row.row != HOST_ROW).collect();
    Some(Former {
        epoch: kept.epoch,
        version: numbers.version,
        known_process: kept.last_process,
        last_process: numbers.process,
        last_interest: numbers.interest,
        rows,
        watches: kept.watches.clone(),
        seen: kept.seen.clone(),
    })
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a String takes everything
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2));
    digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

/// What a file holds that does not hold a table.
const NOT_OURS: &str = "no table of processes";

fn open_ours(path: &Path) -> io::Result<File> {
    let file = files::open_kept(path, false, false)?;
    if is_ours(&file)? { Ok(file) } else { Err(files::not_ours(path, NOT_OURS).into()) }
}

fn journal_path(path: &Path) -> PathBuf {
    crate::history::beside(path, ".log")
}

/// With what the journal says of a later time. Its last line may be torn, and all of it may be older than the table.
fn with_journal(kept: Kept, path: &Path) -> Kept {
    let (known, mut bytes) = (kept.version, Vec::new());
    let mut table = KeptTable::of(path, kept);
    let read = files::open_kept(&journal_path(path), false, false).map(|file| file.take(FILE_MAX).read_to_end(&mut bytes));
    if !matches!(read, Ok(Ok(_))) {
        return table.kept;
    }
    for line in bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        let Ok(Line { epoch, row, watch }) = serde_json::from_slice::<Line>(line) else { break };
        let Some(row) = unhex(&row).and_then(|bytes| Row::parse(&bytes)) else { break };
        if epoch == table.kept.epoch && row.version > known {
            table.row(&row, watch);
        }
    }
    table.kept
}

fn read(path: &Path) -> io::Result<Kept> {
    let mut bytes = Vec::new();
    open_ours(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn is_ours(file: &File) -> io::Result<bool> {
    Ok(files::may_begin(&files::beginning(file, 16)?, b"{\"table\":"))
}

/// Whether a table lies beside this state.
pub(crate) fn is_beside(state: &Path) -> bool {
    open_ours(&crate::history::beside(state, ".table")).is_ok_and(|file| file.metadata().is_ok_and(|meta| meta.len() > 0))
}

/// The table beside this state is this host's from now on, if there is one.
pub(crate) fn adopt(state: &Path, here: &Owner) -> io::Result<()> {
    let path = crate::history::beside(state, ".table");
    match read(&path) {
        Ok(kept) => write(&path, &Kept { owner: here.clone(), ..kept }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Beside the file, then in its place. Not synchronised: the kernel keeps what an agent that is killed has written.
fn write(path: &Path, kept: &Kept) -> io::Result<()> {
    write_bytes(path, &serde_json::to_vec(kept)?)
}

fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match open_ours(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let new = crate::history::beside(path, ".new");
    match std::fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&new)?;
    file.write_all(bytes)?;
    std::fs::rename(new, path)
}

/// The file is whole: the journal of the one before is not needed any more.
fn begin_journal(table: &Path) -> io::Result<File> {
    let path = journal_path(table);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    OpenOptions::new().append(true).create_new(true).mode(0o640).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::frame::table::{Instance, Process, State};
    use fide_wire::verdict::{Cause, Grade};

    const BOOT: u128 = 7;

    fn row(row: u32, version: u64, cause: Cause) -> Row {
        let state = State { cause, grade: Grade::Certain, flags: 0, code: 9, event_ns: 5 };
        let instance = Instance { pid: row, start_ticks: 3 };
        Row { row, version, content: Content::Process(Process { state, instance, uid: 0, pbsize: 0, name: "größer".into() }) }
    }

    fn watch() -> KeptWatch {
        KeptWatch { uid: 1, origin: Origin::Operator, owner: 2, charged: 3, account: 4, image: Some(u64::MAX) }
    }

    #[test]
    fn a_table_comes_back_as_it_was_left_and_further_on_if_its_agent_was_killed() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state.json");
        let (mut kept, former, complaint) = KeptTable::open(&state, &Owner::default(), BOOT, Numbers::default());
        assert_eq!((former, complaint), (None, None));
        kept.begin(99, 4, 0, 0);
        kept.row(&row(1, 5, Cause::Monitored), Some(watch()));
        kept.row(&row(2, 6, Cause::Monitored), Some(watch()));
        kept.row(&row(2, 8, Cause::Killed), None);
        kept.save(false).unwrap();
        let read = |boot| KeptTable::open(&state, &Owner::default(), boot, Numbers::default()).1;
        let killed = read(BOOT).unwrap();
        assert_eq!((killed.epoch, killed.version), (99, 8 + VERSIONS_AHEAD));
        assert_eq!((killed.known_process, killed.last_process), (2, 2 + ROWS_AHEAD));
        assert_eq!(killed.rows, [row(1, 5, Cause::Monitored), row(2, 8, Cause::Killed)]);
        assert_eq!(killed.watches, BTreeMap::from([(1, watch())]));
        kept.save(true).unwrap();
        let left = read(BOOT).unwrap();
        assert_eq!(left, killed, "whether it is the newest file cannot be seen");
        let (mut next, ..) = KeptTable::open(&state, &Owner::default(), BOOT, Numbers::default());
        next.begin(99, 8, 2, 0);
        next.save(true).unwrap();
        assert_eq!(read(BOOT), Some(left), "the next agent has nothing to add");
        assert_eq!(read(BOOT + 1), None, "after another boot nothing of it runs");
        assert_eq!(read(0), None, "nobody knows which boot this is");
    }

    #[test]
    fn what_changed_behind_the_last_whole_table_is_in_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let (state, log) = (dir.path().join("state.json"), dir.path().join("state.json.table.log"));
        let read = || KeptTable::open(&state, &Owner::default(), BOOT, Numbers::default()).1.unwrap();
        let (mut kept, ..) = KeptTable::open(&state, &Owner::default(), BOOT, Numbers::default());
        kept.begin(99, 4, 0, 0);
        kept.row(&row(1, 5, Cause::Monitored), Some(watch()));
        kept.save(false).unwrap();
        // The whole table is not written right behind a change, but soon, however many follow it.
        kept.written = None;
        kept.dirty = Some(Instant::now() + PUT_OFF_MAX * 100); // it has just come
        assert_eq!(kept.due(), Some(SETTLES));
        kept.dirty = Instant::now().checked_sub(SETTLES);
        assert_eq!(kept.due(), Some(Duration::ZERO));
        kept.dirty = None;
        // Writing has become slow: it waits longer.
        kept.written = Some((Instant::now() + PUT_OFF_MAX * 100, PUT_OFF_MAX)); // just now, however long the next lines take
        kept.row(&row(2, 6, Cause::Monitored), Some(watch()));
        kept.save(false).unwrap();
        kept.row(&row(1, 7, Cause::Killed), None);
        kept.save(false).unwrap();
        assert!(kept.due().is_some_and(|wait| !wait.is_zero()));
        let rows = [row(1, 7, Cause::Killed), row(2, 6, Cause::Monitored)];
        let killed = read();
        assert_eq!((&killed.rows[..], killed.version), (&rows[..], 7 + VERSIONS_AHEAD));
        assert_eq!(killed.watches, BTreeMap::from([(2, watch())]));
        // A line that was being written does not count, nor one of another table, nor what follows a broken one.
        let whole = std::fs::read_to_string(&log).unwrap();
        for (text, version) in [
            (whole[..whole.len() - 1].to_owned(), 6),
            (whole.replace("\"epoch\":99", "\"epoch\":98"), 5),
            (format!("\0{whole}"), 5),
            (String::new(), 5),
        ] {
            std::fs::write(&log, text).unwrap();
            assert_eq!(read().version, version + VERSIONS_AHEAD);
        }
        // An older journal beside a newer table says nothing.
        kept.save(true).unwrap();
        std::fs::write(&log, whole).unwrap();
        let left = read();
        assert_eq!((&left.rows[..], left.version), (&rows[..], 7 + VERSIONS_AHEAD));
    }

    #[test]
    fn no_number_returns_in_this_boot_whatever_becomes_of_the_table() {
        let dir = tempfile::tempdir().unwrap();
        let life = dir.path().join("fided.sock.life");
        let used = |boot, booted_ns| Numbers::used(&life, boot, booted_ns);
        let young = used(BOOT, 640_000_000);
        assert_eq!(young, Numbers { version: 10, process: 10, interest: INTERESTS_FROM + 10 });
        let began = Numbers { version: 700_000, process: 5000, interest: INTERESTS_FROM + 4000 };
        began.write(&life, BOOT).unwrap();
        began.write(&life, BOOT).unwrap();
        let next = used(BOOT, 640_000_000);
        assert_eq!(
            next,
            Numbers {
                version: 700_000 + VERSIONS_AHEAD,
                process: 5000 + ROWS_AHEAD,
                interest: INTERESTS_FROM + 4000 + ROWS_AHEAD
            }
        );
        assert_eq!(used(BOOT + 1, 640_000_000), young, "another boot");
        // The table is older than that agent, or there is none.
        let state = dir.path().join("state.json");
        let (mut kept, ..) = KeptTable::open(&state, &Owner::default(), BOOT, next);
        kept.begin(99, 4, 0, 0);
        kept.row(&row(1, 5, Cause::Monitored), Some(watch()));
        kept.save(true).unwrap();
        let former = KeptTable::open(&state, &Owner::default(), BOOT, next).1.unwrap();
        assert_eq!((former.version, former.last_process, former.known_process), (next.version, next.process, 1));
        std::fs::write(&life, "{").unwrap();
        assert_eq!(used(BOOT, 640_000_000), young);
    }

    #[test]
    fn the_last_versions_are_for_ends_and_the_next_agent_begins_a_new_table() {
        let last = 2 * VERSION_MAX - VERSIONS_LEFT - 1;
        assert!(has_versions(last).is_ok() && has_versions(last + 1).is_err_and(|why| why.contains("restart")));
        assert!(has_versions(u64::MAX).is_err());
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state.json");
        let open = || KeptTable::open(&state, &Owner::default(), BOOT, Numbers::default());
        for (version, goes_on) in [(VERSION_MAX, true), (VERSION_MAX + 1, false), (last, false), (u64::MAX, false)] {
            let (mut kept, ..) = open();
            kept.begin(99, version, 0, 0);
            kept.save(true).unwrap();
            assert_eq!(open().1.is_some(), goes_on, "{version}");
        }
        // Also where the numbers that an agent may have given out lie beyond all.
        assert_eq!(Numbers { version: u64::MAX, process: u32::MAX, interest: u32::MAX }.ahead().version, u64::MAX);
    }

    #[test]
    fn ended_rows_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let (mut kept, ..) = KeptTable::open(&dir.path().join("state.json"), &Owner::default(), BOOT, Numbers::default());
        kept.begin(1, 0, 0, 0);
        (1..=1000).for_each(|n| kept.row(&row(n, n.into(), Cause::Exited), None));
        assert_eq!(kept.kept.rows.len(), ENDED_KEPT);
        assert!(kept.kept.rows.contains_key(&1000));
    }

    #[test]
    fn what_is_torn_or_anothers_is_told_and_nothing_of_it_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let (state, path) = (dir.path().join("state.json"), dir.path().join("state.json.table"));
        for bytes in [&b"{\"table\":1,"[..], b"a letter", b"{\"table\":1,\"rows\":{\"1\":\"zz\"}}"] {
            std::fs::write(&path, bytes).unwrap();
            let (_, former, complaint) = KeptTable::open(&state, &Owner::default(), BOOT, Numbers::default());
            assert!(former.is_none() && complaint.is_some_and(|c| c.contains("state.json.table")));
        }
        std::fs::write(&path, b"a letter").unwrap();
        let (mut kept, ..) = KeptTable::open(&state, &Owner::default(), BOOT, Numbers::default());
        kept.begin(1, 0, 0, 0);
        assert!(kept.save(false).is_err() && kept.save(true).is_ok(), "told once");
        assert_eq!(std::fs::read(&path).unwrap(), b"a letter");
    }
}
