//! The event history: what happened, in order, on disk and the newest part in memory.
//!
//! One JSON object a line, as people and `jq` read it, with a checksum as its last member:
//!
//! ```text
//! {"seq":17,"wall_ns":…,"cause":"killed",…,"crc":"1c291ca3"}
//! ```
//!
//! Each [`Class`] of events has a room of its own, in memory and in files: crashes in the history's own file, what applications report in `….reports`, notices
//! of timing in `….timing`. So a flood of one class does not make others be forgotten. All are numbered together, and readers see one sequence.
//!
//! The checksum (CRC-32) covers the line up to the comma in front of `"crc"`. A line that was being written when the agent
//! or the host died does not pass; it is cut off on the next start and kept beside the history (`….torn`). Two segments
//! bound the size: when the current one is half of what is allowed it becomes the older one (`….1`), in place of the last.
//!
//! [`History::append`] touches memory only. [`History::write`] hands lines to the kernel (from then on they survive the death of
//! the agent), [`History::flush`] also waits for the disk (from then on they survive the death of the host): both belong on
//! the control thread. A disk that is full or gone costs nothing but itself: events stay readable in memory, lines wait
//! and are written when there is room again, and what had to be dropped is counted and said in a later line.

use crate::admission::Class;
use crate::files;
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{Cause, Grade, UniqueId, VerdictId};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Newest failures kept in memory unless told otherwise; of reports half as many, of notices of timing a quarter.
pub const MEMORY_EVENTS: usize = 2048;
/// How every line begins.
const LINE_START: &[u8] = b"{\"seq\":";
/// Longest line, newline excluded. A longer event is kept without its evidence and with a shorter text.
const LINE_MAX: usize = 64 * 1024;
/// Lines that may wait for a disk that does not take them, bytes.
const PENDING_MAX: usize = 1 << 20;
/// One entry of the index for so many events.
const INDEX_STEP: u64 = 64;
/// A file is known as a history by a line in its first bytes, so many.
const KNOWN_WITHIN: u64 = 1 << 20;
/// At most so much of a torn tail is kept.
const TORN_MAX: u64 = 64 * 1024;

/// The line of an event, without its newline.
#[must_use]
pub fn encode_line(event: &HistoryEvent) -> String {
    let json = |event: &HistoryEvent| {
        let mut json = serde_json::to_string(event).unwrap_or_default();
        // Always an object with members, so the last byte is its brace.
        json.pop();
        json
    };
    let mut line = json(event);
    if line.len() + 18 > LINE_MAX {
        let text = event.text.chars().take(1000).collect();
        line = json(&HistoryEvent { evidence: None, text, ..event.clone() });
    }
    let crc = crc32fast::hash(line.as_bytes());
    line.push_str(&format!(",\"crc\":\"{crc:08x}\"}}"));
    line
}

/// The event of a line (without its newline), if its checksum says that it is whole. Never panics, whatever the bytes.
#[must_use]
pub fn decode_line(line: &[u8]) -> Option<HistoryEvent> {
    let json = checked(line)?;
    let mut whole = json.to_vec();
    whole.push(b'}');
    serde_json::from_slice(&whole).ok()
}

/// The part of a line that the checksum covers, if it is right.
fn checked(line: &[u8]) -> Option<&[u8]> {
    let (json, tail) = line.split_at_checked(line.len().checked_sub(18)?)?;
    let hex = tail.strip_prefix(b",\"crc\":\"")?.strip_suffix(b"\"}")?;
    let hex = std::str::from_utf8(hex).ok().filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()))?;
    (u32::from_str_radix(hex, 16).ok()? == crc32fast::hash(json)).then_some(json)
}

/// What could not be done with the history on disk, why, and what to do. The agent goes on without.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event history {}: {what}", path.display())]
pub struct HistoryError {
    /// The file.
    pub path: PathBuf,
    /// In words.
    pub what: String,
}

/// What [`History::flush`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// There was nothing to do.
    Idle,
    /// Everything is on disk.
    Written,
    /// For the first time, it could not be written: to be reported.
    Failed(HistoryError),
    /// It still cannot be written; counted in [`History::failures`].
    StillFailing,
    /// It can be written again; so many events never reached the disk (a line in the history says so).
    Recovered {
        /// Events dropped meanwhile.
        lost: u64,
    },
}

/// One file of the history.
#[derive(Debug, Default)]
struct Segment {
    /// Bytes up to the end of the last whole line.
    len: u64,
    /// Number and place of every [`INDEX_STEP`]th event.
    index: Vec<(u64, u64)>,
    events: u64,
    last_seq: Option<u64>,
}

impl Segment {
    fn note(&mut self, seq: u64, offset: u64, end: u64) {
        if self.events.is_multiple_of(INDEX_STEP) {
            self.index.push((seq, offset));
        }
        self.events += 1;
        self.last_seq = Some(seq);
        self.len = end;
    }

    /// Where to start reading to meet event `from`.
    fn offset(&self, from: u64) -> u64 {
        let after = self.index.partition_point(|(seq, _)| *seq <= from);
        after.checked_sub(1).map_or(0, |i| self.index[i].1)
    }
}

/// A line that waits to be written.
#[derive(Debug)]
struct Pending {
    seq: u64,
    line: String,
}

/// The event history.
#[derive(Debug)]
pub struct History {
    /// One for each class, in the order of [`Class::ALL`].
    rooms: [Room; Class::ALL.len()],
    next_seq: u64,
    failing: bool,
    /// Dropped while it could not be written.
    dropped: u64,
    /// Ends of processes that a former life of this agent had written.
    former: HashSet<(UniqueId, Cause)>,
}

/// An end of a process that this host's history has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldEnd {
    /// The process's.
    pub name: String,
    /// How it ended.
    pub cause: Cause,
    /// Exit status or signal.
    pub code: i32,
    /// When the kernel saw it, CLOCK_MONOTONIC.
    pub event_ns: u64,
    /// When it was told.
    pub at_ns: u64,
}

/// Two boots begin so far from each other at least, ns.
const SAME_BOOT_NS: u64 = 1_000_000_000;

/// What an event is known by when it comes again: a certain end of a process, which its host's table tells to whoever had not noted that it was told.
fn certain_end(event: &HistoryEvent) -> Option<(UniqueId, Cause)> {
    let id = event.unique_id().filter(|id| !id.id.is_inferred())?;
    (event.app.is_some() && event.cause.ends_process()).then_some((id, event.cause))
}

impl History {
    /// Opens or makes the history at `path` (`None`: memory only), of at most `max_bytes`, with [`MEMORY_EVENTS`] in memory.
    ///
    /// Always gives a history that works, if only in memory; what deserves a word comes with it, to be logged and appended.
    #[must_use]
    pub fn open(path: Option<&Path>, max_bytes: u64) -> (Self, Vec<HistoryError>) {
        Self::open_with(path, max_bytes, MEMORY_EVENTS)
    }

    /// As [`History::open`], keeping the newest `memory_max` failures in memory.
    #[must_use]
    pub fn open_with(path: Option<&Path>, max_bytes: u64, memory_max: usize) -> (Self, Vec<HistoryError>) {
        let mut words = Vec::new();
        let mut path = path;
        let rooms = Class::ALL.map(|class| {
            let of_class = path.map(|path| class_path(path, class));
            let memory_max = class.part_of_memory(memory_max);
            let room = Room::open(of_class.as_deref(), class.part_of(max_bytes), memory_max, &mut words);
            // Where the first one cannot be, the others are not made.
            path = path.filter(|_| class != Class::Failures || room.path.is_some());
            room
        });
        let next_seq = rooms.iter().map(Room::next_seq).max().unwrap_or(1);
        let former = rooms.iter().flat_map(|room| &room.memory).filter_map(certain_end).collect();
        (Self { rooms, next_seq, failing: false, dropped: 0, former }, words)
    }

    /// Whether a former life of this agent has written this end of a process: it was killed before it could note that it was told.
    #[must_use]
    pub fn was_told(&self, event: &HistoryEvent) -> bool {
        certain_end(event).is_some_and(|end| self.former.contains(&end))
    }

    /// Takes an event and gives it its number, which is returned (`event.seq` is ignored). Memory only.
    pub fn append(&mut self, mut event: HistoryEvent) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        event.seq = seq;
        self.rooms[Class::of(&event) as usize].append(event);
        seq
    }

    /// Certain ends of processes of this host, told since it was started at `booted_wall_ns`. Oldest first.
    #[must_use]
    pub fn ends_of(&self, node: &str, booted_wall_ns: u64) -> Vec<ToldEnd> {
        let is_of_this_boot = |e: &HistoryEvent| e.wall_ns.saturating_sub(e.at_ns).abs_diff(booted_wall_ns) < SAME_BOOT_NS;
        let told = |event: &HistoryEvent| {
            let name = event.app.clone().filter(|_| certain_end(event).is_some() && event.cause != Cause::Doomed)?;
            let event_ns = event.evidence.as_ref().map_or(0, |evidence| evidence.event_ns);
            let event_ns = if event_ns == 0 { event.at_ns } else { event_ns };
            Some(ToldEnd { name, cause: event.cause, code: event.code, event_ns, at_ns: event.at_ns })
        };
        let events = self.rooms.iter().flat_map(|room| &room.memory);
        events.filter(|e| e.node == node && is_of_this_boot(e)).filter_map(told).collect()
    }

    /// Hands what waits to the kernel. Cheap, but it may wait for a slow disk.
    pub fn write(&mut self) -> Flushed {
        self.attempt(false)
    }

    /// Writes what waits and sees it to the disk (`fdatasync`).
    pub fn flush(&mut self) -> Flushed {
        self.attempt(true)
    }

    fn attempt(&mut self, sync: bool) -> Flushed {
        let (mut written, mut failed) = (false, None);
        for room in &mut self.rooms {
            let was_failing = room.failing;
            match room.attempt(sync) {
                None => {}
                Some(Ok(())) => {
                    written = true;
                    if was_failing {
                        self.dropped += room.mark(&mut self.next_seq);
                        let _ = room.attempt(sync); // the marker itself; should it fail, the next call says so
                    }
                }
                Some(Err(e)) => failed = failed.or(Some(e)),
            }
        }
        let failing = self.rooms.iter().any(|room| room.failing);
        match (failed, std::mem::replace(&mut self.failing, failing)) {
            (Some(e), false) => Flushed::Failed(e),
            (Some(_), true) => Flushed::StillFailing,
            (None, true) if !failing => Flushed::Recovered { lost: std::mem::take(&mut self.dropped) },
            _ if written => Flushed::Written,
            _ => Flushed::Idle,
        }
    }

    /// Changes the size allowed (a reload); takes effect with the next rotation.
    pub fn set_max_bytes(&mut self, max_bytes: u64) {
        self.rooms.iter_mut().zip(Class::ALL).for_each(|(room, class)| room.max_bytes = class.part_of(max_bytes));
    }

    /// The number the next event gets.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Events that never reached the disk.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.rooms.iter().map(|room| room.lost).sum()
    }

    /// Writes that failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.rooms.iter().map(|room| room.failures).sum()
    }

    /// Bytes on disk, all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rooms.iter().map(|room| room.older.len + room.current.len).sum()
    }

    /// Where to begin for [`control::Request::Events`](fide_wire::control::Request::Events): not before number `from`, and at
    /// most the `last` newest (0: all). Numbers that are not kept any more count only beyond what is in memory.
    #[must_use]
    pub fn start(&self, from: u64, last: u64) -> u64 {
        if last == 0 {
            return from;
        }
        // From here on all that is kept is in memory.
        let all_from = self.rooms.iter().map(Room::in_memory_or_nothing).max().unwrap_or(0);
        let mut newest: Vec<u64> = self.rooms.iter().flat_map(|room| &room.memory).map(|e| e.seq).collect();
        newest.retain(|seq| *seq >= all_from);
        newest.sort_unstable_by(|a, b| b.cmp(a));
        let nth = usize::try_from(last - 1).ok().and_then(|nth| newest.get(nth).copied());
        from.max(nth.unwrap_or_else(|| self.next_seq.saturating_sub(last)))
    }

    /// Up to `limit` events from number `from` on, in order. Reads the disk for those that are not in memory any more; to go
    /// on, ask from the last one's number plus one.
    #[must_use]
    pub fn page(&self, from: u64, limit: usize) -> Vec<HistoryEvent> {
        let mut events: Vec<HistoryEvent> = self.rooms.iter().flat_map(|room| room.page(from, limit)).collect();
        events.sort_by_key(|e| e.seq);
        events.truncate(limit);
        events
    }

    /// The newest `count` events in memory that are wanted, oldest first.
    #[must_use]
    pub fn newest(&self, count: usize, wants: impl Fn(&HistoryEvent) -> bool) -> Vec<HistoryEvent> {
        let mut left = self.rooms.each_ref().map(|room| room.memory.len());
        let mut found = VecDeque::new();
        while found.len() < count {
            let newest = |of: usize| self.rooms[of].memory.get(left[of].checked_sub(1)?);
            let Some(of) = (0..left.len()).max_by_key(|of| newest(*of).map(|e| e.seq)) else { break };
            let Some(event) = newest(of) else { break };
            if wants(event) {
                found.push_front(event.clone());
            }
            left[of] -= 1;
        }
        found.into()
    }

    /// All kept events from number `from` on, at most the `last` newest (0: all). [`History::page`] needs less memory.
    #[must_use]
    pub fn read(&self, from: u64, last: u64) -> Vec<HistoryEvent> {
        self.page(self.start(from, last), usize::MAX)
    }

    /// The verdicts with this id, oldest first: one for each incarnation that gave it, of which the newest event stands for all. More than one
    /// when an agent was restarted, for its numbers began anew.
    #[must_use]
    pub fn find(&self, id: VerdictId) -> Vec<HistoryEvent> {
        self.search(id).run(|| false)
    }

    /// The same, to be run by another thread: reading all files takes long.
    #[must_use]
    pub fn search(&self, id: VerdictId) -> Search {
        let remembered = self.rooms.iter().flat_map(|room| &room.memory).filter(|e| e.id == Some(id)).cloned().collect();
        Search { id, incarnation: None, files: self.rooms.iter().flat_map(Room::older_files).collect(), remembered }
    }
}

/// The room of one class.
#[derive(Debug)]
struct Room {
    path: Option<PathBuf>,
    max_bytes: u64,
    memory_max: usize,
    memory: VecDeque<HistoryEvent>,
    file: Option<File>,
    older: Segment,
    current: Segment,
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    /// A line was cut short by a failed write and could not be taken back: end it before the next.
    broken_line: bool,
    /// The kernel has lines that the disk has not.
    unsynced: bool,
    failing: bool,
    failures: u64,
    lost: u64,
    /// Dropped since the last marker: how many, and the newest of them.
    unmarked: Option<(u64, Box<HistoryEvent>)>,
}

impl Room {
    /// The room at `path` (`None`: memory only). Complaints come with it.
    fn open(path: Option<&Path>, max_bytes: u64, memory_max: usize, words: &mut Vec<HistoryError>) -> Self {
        let mut room = Self {
            path: path.map(Path::to_owned),
            max_bytes,
            memory_max: memory_max.max(1),
            memory: VecDeque::new(),
            file: None,
            older: Segment::default(),
            current: Segment::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            broken_line: false,
            unsynced: false,
            failing: false,
            failures: 0,
            lost: 0,
            unmarked: None,
        };
        if let Some(path) = path
            && let Err(e) = room.load(path, words)
        {
            words.push(error(path, &e, "cannot be opened; events are kept in memory only until the agent is restarted"));
            room.path = None;
            room.file = None;
        }
        room
    }

    /// The number behind all that are kept.
    fn next_seq(&self) -> u64 {
        let last = [self.older.last_seq, self.current.last_seq].into_iter().flatten().max();
        last.map_or(1, |last| last.saturating_add(1))
    }

    fn load(&mut self, path: &Path, words: &mut Vec<HistoryError>) -> io::Result<()> {
        if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir)?;
        }
        let older_path = beside(path, ".1");
        match open_ours(&older_path) {
            Ok(file) => {
                let scan = self.scan_into_memory(&file, true)?;
                self.say_damaged(&older_path, scan.damaged + u64::from(scan.tail > 0), words);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let file = open_first(path)?;
        let scan = self.scan_into_memory(&file, false)?;
        self.say_damaged(path, scan.damaged, words);
        if scan.tail > 0 {
            let aside = beside(path, ".torn");
            let kept = keep_tail(&file, self.current.len, scan.tail, &aside);
            file.set_len(self.current.len)?;
            file.sync_data()?;
            let kept = match kept {
                Ok(()) => format!("it was cut off and kept in {}", aside.display()),
                Err(e) => format!("it was cut off, and could not be kept in {} ({e})", aside.display()),
            };
            words.push(HistoryError {
                path: path.to_owned(),
                what: format!(
                    "its last line was not whole ({} bytes; the agent or the host died while writing it); {kept}",
                    scan.tail
                ),
            });
        }
        // The last line is whole but for its newline.
        self.broken_line = scan.newline_missing;
        self.file = Some(file);
        Ok(())
    }

    fn say_damaged(&self, path: &Path, lines: u64, words: &mut Vec<HistoryError>) {
        if lines > 0 {
            words.push(HistoryError {
                path: path.to_owned(),
                what: format!("{lines} of its lines fail their checksum and are passed over; see whether the disk is sound"),
            });
        }
    }

    fn scan_into_memory(&mut self, file: &File, older: bool) -> io::Result<Scan> {
        let mut segment = Segment::default();
        let scan = scan(file, 0, |offset, end, line| {
            if let Some(event) = decode_line(line) {
                segment.note(event.seq, offset, end);
                self.remember(event);
                ControlFlow::Continue(true)
            } else {
                ControlFlow::Continue(false)
            }
        })?;
        segment.len = scan.good_end;
        *(if older { &mut self.older } else { &mut self.current }) = segment;
        Ok(scan)
    }

    fn remember(&mut self, event: HistoryEvent) {
        if self.memory.len() >= self.memory_max {
            self.memory.pop_front();
        }
        self.memory.push_back(event);
    }

    /// Takes an event that has its number. Memory only.
    fn append(&mut self, event: HistoryEvent) {
        if self.path.is_some() {
            let line = encode_line(&event);
            self.pending_bytes += line.len() + 1;
            self.pending.push_back(Pending { seq: event.seq, line });
            while self.pending_bytes > PENDING_MAX && self.pending.len() > 1 {
                if let Some(dropped) = self.pending.pop_front() {
                    self.pending_bytes -= dropped.line.len() + 1;
                    self.lost += 1;
                    if let Some(event) = decode_line(dropped.line.as_bytes()) {
                        self.unmarked = Some((self.unmarked.take().map_or(0, |(n, _)| n) + 1, Box::new(event)));
                    }
                }
            }
        }
        self.remember(event);
    }

    /// Writes what waits; `None`: there was nothing to do.
    fn attempt(&mut self, sync: bool) -> Option<Result<(), HistoryError>> {
        let path = self.path.clone()?;
        if self.pending.is_empty() && !(sync && self.unsynced) {
            return None;
        }
        let written = self.try_write(&path, sync);
        self.failing = written.is_err();
        self.failures += u64::from(written.is_err());
        let consequence = "cannot be written; events are kept in memory, and written when it can be again";
        Some(written.map_err(|e| error(&path, &e, consequence)))
    }

    /// Appends a line that says what was lost, if something was.
    fn mark(&mut self, next_seq: &mut u64) -> u64 {
        let Some((lost, newest)) = self.unmarked.take() else { return 0 };
        let seq = *next_seq;
        *next_seq += 1;
        self.append(HistoryEvent {
            seq,
            id: None,
            cause: Cause::Local,
            grade: Grade::Certain,
            node: newest.observer.clone(),
            app: None,
            code: 0,
            confirms: false,
            text: format!("{lost} events up to number {} were not kept on disk, which could not be written then", newest.seq),
            maintenance: None,
            evidence: None,
            ..*newest
        });
        lost
    }

    fn try_write(&mut self, path: &Path, sync: bool) -> io::Result<()> {
        // Somebody removed the file: start another.
        if self.file.as_ref().is_none_or(|f| f.metadata().is_ok_and(|m| m.nlink() == 0)) {
            let file = open_segment(path)?;
            // Whatever is in it was not written here; keep it out of the index and end its last line.
            self.current = Segment { len: file.metadata()?.len(), ..Segment::default() };
            self.broken_line = self.current.len > 0;
            self.file = Some(file);
        }
        while let Some(next) = self.pending.front() {
            let half = self.max_bytes / 2;
            if self.current.len > 0 && self.current.len + next.line.len() as u64 + 1 > half {
                self.rotate(path)?;
            }
            // As many lines as fit this segment, in one call.
            let mut batch = if self.broken_line { vec![b'\n'] } else { Vec::new() };
            let mut ends = Vec::new();
            for p in &self.pending {
                let too_much = self.current.len + (batch.len() + p.line.len() + 1) as u64 > half || batch.len() > PENDING_MAX / 4;
                if !ends.is_empty() && too_much {
                    break;
                }
                let start = batch.len();
                batch.extend_from_slice(p.line.as_bytes());
                batch.push(b'\n');
                ends.push((p.seq, start as u64, batch.len() as u64));
            }
            let start = self.current.len;
            let Some(file) = self.file.as_mut() else { return Err(io::Error::other("no file")) };
            if let Err(e) = file.write_all(&batch) {
                // Take back the part that was written, or end it as a broken line later.
                self.broken_line |= file.set_len(start).is_err();
                return Err(e);
            }
            self.broken_line = false;
            self.unsynced = true;
            for (seq, from, to) in ends {
                self.current.note(seq, start + from, start + to);
                if let Some(written) = self.pending.pop_front() {
                    self.pending_bytes -= written.line.len() + 1;
                }
            }
        }
        if sync && self.unsynced {
            if let Some(file) = &self.file {
                file.sync_data()?;
            }
            self.unsynced = false;
        }
        Ok(())
    }

    /// The current segment becomes the older one.
    fn rotate(&mut self, path: &Path) -> io::Result<()> {
        if let Some(file) = &self.file {
            file.sync_data()?;
        }
        let older = beside(path, ".1");
        may_replace(&older)?;
        std::fs::rename(path, older)?;
        self.file = None;
        self.older = std::mem::take(&mut self.current);
        self.broken_line = false;
        self.file = Some(open_segment(path)?);
        // So that the new names survive the host's death, too; not every file system can.
        if let Some(dir) = path.parent() {
            let _ = File::open(dir).and_then(|d| d.sync_all());
        }
        Ok(())
    }

    /// The number of the oldest event in memory, from which on all are there.
    fn in_memory(&self) -> u64 {
        let on_disk = self.current.last_seq.or(self.older.last_seq).map_or(0, |last| last + 1);
        self.memory.front().map_or(on_disk, |e| e.seq)
    }

    /// The same; 0 when nothing older is kept.
    fn in_memory_or_nothing(&self) -> u64 {
        let in_memory = self.in_memory();
        let first = [&self.older, &self.current].into_iter().find_map(|segment| segment.index.first());
        if first.is_some_and(|(first, _)| *first < in_memory) { in_memory } else { 0 }
    }

    /// Up to `limit` events from number `from` on, in order.
    fn page(&self, from: u64, limit: usize) -> Vec<HistoryEvent> {
        let mut events = Vec::new();
        let in_memory = self.in_memory();
        if from < in_memory {
            self.on_disk(from, |event| {
                if event.seq >= in_memory {
                    return ControlFlow::Break(());
                }
                if event.seq >= from && events.len() < limit {
                    events.push(event);
                }
                if events.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
        let rest = limit - events.len();
        events.extend(self.memory.iter().filter(|e| e.seq >= from).take(rest).cloned());
        events
    }

    /// Files with events that are not in memory.
    fn older_files(&self) -> impl Iterator<Item = PathBuf> {
        let in_memory = self.in_memory();
        let has_older = move |segment: &Segment| segment.index.first().is_some_and(|(first, _)| *first < in_memory);
        self.segments().into_iter().filter(move |(_, segment)| has_older(segment)).map(|(path, _)| path)
    }

    fn segments(&self) -> Vec<(PathBuf, &Segment)> {
        let Some(path) = &self.path else { return Vec::new() };
        vec![(beside(path, ".1"), &self.older), (path.clone(), &self.current)]
    }

    fn on_disk(&self, from: u64, mut each: impl FnMut(HistoryEvent) -> ControlFlow<()>) {
        for (path, segment) in self.segments() {
            if segment.last_seq.is_none_or(|last| last < from) {
                continue;
            }
            let Ok(file) = files::open_kept(&path, false, false) else { continue };
            let mut stopped = false;
            let _ = scan(&file, segment.offset(from), |_, _, line| {
                stopped = decode_line(line).is_some_and(|event| each(event).is_break());
                if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(true) }
            });
            if stopped {
                return;
            }
        }
    }
}

/// A search for a verdict ([`History::search`]).
#[derive(Debug)]
pub struct Search {
    id: VerdictId,
    /// Only what this incarnation gave.
    incarnation: Option<u32>,
    files: Vec<PathBuf>,
    remembered: Vec<HistoryEvent>,
}

impl Search {
    /// Only what this incarnation gave, if one is named.
    #[must_use]
    pub fn given_in(self, incarnation: Option<u32>) -> Self {
        Self { incarnation, ..self }
    }

    /// Reads the files until it `is_over`; what [`History::find`] gives.
    #[must_use]
    pub fn run(self, is_over: impl Fn() -> bool) -> Vec<HistoryEvent> {
        let mut lives: BTreeMap<u32, HistoryEvent> = BTreeMap::new();
        let newest = |lives: &mut BTreeMap<u32, HistoryEvent>, event: HistoryEvent| {
            let given = event.unique_id().map_or(0, |id| id.incarnation);
            if self.incarnation.is_some_and(|wanted| wanted != given) {
                return;
            }
            let known = lives.entry(given).or_insert_with(|| event.clone());
            if event.seq > known.seq {
                *known = event;
            }
        };
        let needle = format!("\"id\":\"{}\"", self.id).into_bytes();
        for path in &self.files {
            // A segment that was just renamed is found as the other one, or was dropped meanwhile.
            let Ok(file) = files::open_kept(path, false, false) else { continue };
            let _ = scan(&file, 0, |_, _, line| {
                if line.windows(needle.len()).any(|w| w == needle)
                    && let Some(event) = decode_line(line).filter(|event| event.id == Some(self.id))
                {
                    newest(&mut lives, event);
                }
                if is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(true) }
            });
        }
        self.remembered.into_iter().for_each(|event| newest(&mut lives, event));
        let mut found: Vec<HistoryEvent> = lives.into_values().collect();
        found.sort_by_key(|e| e.seq);
        found
    }
}

/// Where the events of a class are, of a history at this path.
pub(crate) fn class_path(path: &Path, class: Class) -> PathBuf {
    beside(path, class.suffix())
}

/// All files of a history at this path.
pub(crate) fn files_of(path: &Path) -> impl Iterator<Item = PathBuf> {
    let of_class = |class| ["", ".1", ".torn"].map(|suffix| beside(&class_path(path, class), suffix));
    Class::ALL.map(of_class).into_iter().flatten()
}

/// The path with a suffix.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn error(path: &Path, e: &io::Error, consequence: &str) -> HistoryError {
    let advice = match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room on that disk, or lower history.max_bytes",
        io::ErrorKind::PermissionDenied => "let the agent's user write there, or set history.path",
        io::ErrorKind::ReadOnlyFilesystem => "set history.path to a disk that can be written",
        io::ErrorKind::WouldBlock => "another agent uses it: give each its own history.path",
        io::ErrorKind::AlreadyExists => "set history.path to a file of the agent's own",
        _ => "see that the disk is sound, or set history.path to another",
    };
    HistoryError { path: path.to_owned(), what: format!("{consequence}: {e}; {advice}") }
}

/// As [`open_segment`], patient with a predecessor that is still dying (or its child between fork and exec).
fn open_first(path: &Path) -> io::Result<File> {
    for _ in 0..20 {
        match open_segment(path) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
    open_segment(path)
}

/// What a file holds that is not the history's.
pub(crate) const NOT_OURS: &str = "no history of events";

/// Whether a file holds a history, or what a crash left of one: a line of it passes its checksum, or it begins as lines do.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn is_ours(file: &File) -> io::Result<bool> {
    if files::may_begin(&files::beginning(file, LINE_START.len())?, LINE_START) {
        return Ok(true);
    }
    let mut found = false;
    scan(file, 0, |at, _, line| {
        found = checked(line).is_some();
        if found || at > KNOWN_WITHIN { ControlFlow::Break(()) } else { ControlFlow::Continue(false) }
    })?;
    Ok(found)
}

/// Opens one of the history's files as it is, if it is one.
fn open_ours(path: &Path) -> io::Result<File> {
    let file = files::open_kept(path, false, false)?;
    if is_ours(&file)? { Ok(file) } else { Err(files::not_ours(path, NOT_OURS).into()) }
}

/// Whether something may be written over what is at this path: nothing, or one of the history's files.
fn may_replace(path: &Path) -> io::Result<()> {
    match open_ours(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map(drop),
    }
}

/// Opens a segment for appending and locks it against another agent.
fn open_segment(path: &Path) -> io::Result<File> {
    let file = files::open_kept(path, true, true)?;
    if !is_ours(&file)? {
        return Err(files::not_ours(path, NOT_OURS).into());
    }
    // SAFETY: the descriptor is open; flock has no other preconditions.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let e = io::Error::last_os_error();
        // A file system without locks is no reason to keep no history.
        if e.kind() == io::ErrorKind::WouldBlock {
            return Err(e);
        }
    }
    Ok(file)
}

/// Copies the torn tail beside the history.
fn keep_tail(mut file: &File, at: u64, len: u64, aside: &Path) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    may_replace(aside)?;
    match std::fs::remove_file(aside) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o640).open(aside)?;
    io::copy(&mut file.take(len.min(TORN_MAX)), &mut out)?;
    out.sync_data()
}

/// What a look through a file found.
#[derive(Debug, Default)]
struct Scan {
    /// End of the last whole line.
    good_end: u64,
    /// Lines before it that are not whole.
    damaged: u64,
    /// Bytes after it.
    tail: u64,
    /// The last whole line has no newline yet.
    newline_missing: bool,
}

/// Gives each line of a file (without newline, with its place and its end) to `each`, which says whether it is whole, from `at` on.
fn scan(file: &File, at: u64, mut each: impl FnMut(u64, u64, &[u8]) -> ControlFlow<(), bool>) -> io::Result<Scan> {
    let mut reader = BufReader::new(file);
    let mut offset = reader.seek(SeekFrom::Start(at))?;
    let mut found = Scan { good_end: offset, ..Scan::default() };
    let mut bad = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        // Bounded, for a file may hold anything (a host that lost power leaves blocks of zeros).
        let n = reader.by_ref().take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        if n == 0 {
            found.tail = offset - found.good_end;
            return Ok(found);
        }
        let end = offset + n as u64;
        let ended = line.last() == Some(&b'\n');
        let bytes = if ended { &line[..n - 1] } else { &line[..] };
        match each(offset, end, bytes) {
            ControlFlow::Break(()) => return Ok(found),
            ControlFlow::Continue(true) => {
                found.good_end = end;
                found.damaged += std::mem::take(&mut bad);
                found.newline_missing = !ended;
            }
            // An empty line ends what was broken before it; it is not damage of its own.
            ControlFlow::Continue(false) => bad += u64::from(!bytes.is_empty()),
        }
        offset = end;
    }
}
