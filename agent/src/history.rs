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
//! [`History::append`] touches memory only, and so does all that the control thread does. What
//! waits is written by a thread that may wait for the disk ([`Files::write`]): lines that the
//! kernel has survive the death of the agent, and those that are synchronised the death of the
//! host. A disk that is full, gone or hangs costs nothing but itself: events stay readable in
//! memory, lines wait and are written when that is possible again, and what had to be dropped is
//! counted and said in a later line. [`History::write`] and [`History::flush`] do both threads'
//! part.

mod segments;

pub use self::segments::{Files, HistoryError};
pub(crate) use self::segments::{NOT_OURS, files_of, is_ours};

use self::segments::{ClassFiles, LINE_MAX, Plan, Queue, error, locked};
use crate::admission::Class;
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{Cause, Grade, UniqueId, VerdictId};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Newest failures kept in memory unless told otherwise; of reports half as many, of notices of timing a quarter.
pub const MEMORY_EVENTS: usize = 2048;

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

/// The event history.
#[derive(Debug)]
pub struct History {
    /// One for each class, in the order of [`Class::ALL`].
    rooms: [Room; Class::ALL.len()],
    files: Arc<Files>,
    next_seq: u64,
    /// Lines came since it was asked last.
    is_news: bool,
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
        let mut files = Class::ALL.map(|_| None);
        let rooms = Class::ALL.map(|class| {
            let memory_max = class.part_of_memory(memory_max);
            let mut room = Room::new(class.part_of(max_bytes), memory_max);
            if let Some(path) = path.map(|path| class_path(path, class)) {
                match ClassFiles::open(&path, &room.queue.clone(), &mut words, |event| room.remember(event)) {
                    Ok(opened) => (room.path, files[class as usize]) = (Some(path), Some(opened)),
                    Err(e) => {
                        let consequence = "cannot be opened; events are kept in memory only until the agent is restarted";
                        words.push(error(&path, &e, consequence));
                    }
                }
            }
            // Where the first one cannot be, the others are not made.
            path = path.filter(|_| class != Class::Failures || room.path.is_some());
            room
        });
        let next_seq = rooms.iter().map(Room::next_seq).max().unwrap_or(1);
        let former = rooms.iter().flat_map(|room| &room.memory).filter_map(certain_end).collect();
        let files = Arc::new(Files::new(files));
        (Self { rooms, files, next_seq, is_news: false, failing: false, dropped: 0, former }, words)
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
        self.is_news = true;
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

    /// What writes the files: for a thread that may wait for the disk. `sync`: it also waits until
    /// the disk has all.
    #[must_use]
    pub fn files(&self, sync: bool) -> Arc<Files> {
        if sync {
            self.files.want_sync();
        }
        self.files.clone()
    }

    /// Whether lines came since this was asked last.
    pub fn has_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }

    /// What became of a [`Files::write`]; `None`: nothing that was not polled.
    pub fn poll(&mut self) -> Option<Flushed> {
        let outcome = self.files.poll()?;
        for (room, written) in self.rooms.iter_mut().zip(outcome.written) {
            if written && let Some((lost, newest)) = room.unmarked.take() {
                self.dropped += if self.failing { lost } else { 0 };
                room.append(marker(self.next_seq, lost, *newest));
                self.next_seq += 1;
                self.is_news = true;
            }
        }
        let is_written = outcome.written.contains(&true);
        Some(match (outcome.failed, std::mem::replace(&mut self.failing, outcome.failing)) {
            (Some(e), false) => Flushed::Failed(e),
            (Some(_), true) => Flushed::StillFailing,
            (None, true) if !outcome.failing => Flushed::Recovered { lost: std::mem::take(&mut self.dropped) },
            _ if is_written => Flushed::Written,
            _ => Flushed::Idle,
        })
    }

    /// Hands what waits to the kernel. It may wait for the disk.
    pub fn write(&mut self) -> Flushed {
        self.attempt(false)
    }

    /// Writes what waits and sees it to the disk (`fdatasync`).
    pub fn flush(&mut self) -> Flushed {
        self.attempt(true)
    }

    fn attempt(&mut self, sync: bool) -> Flushed {
        self.files(sync).write();
        self.is_news = false;
        let flushed = self.poll().unwrap_or(Flushed::Idle);
        // What was lost is said in a line of its own.
        if self.has_news() {
            self.files(sync).write();
            if let Some(failed @ Flushed::Failed(_)) = self.poll() {
                return failed;
            }
        }
        flushed
    }

    /// Changes the size allowed (a reload); takes effect with the next rotation.
    pub fn set_max_bytes(&mut self, max_bytes: u64) {
        self.rooms.iter().zip(Class::ALL).for_each(|(room, class)| locked(&room.queue).max_bytes = class.part_of(max_bytes));
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
        self.rooms.iter().map(|room| locked(&room.queue).failures).sum()
    }

    /// Bytes on disk, all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = |room: &Room| {
            let queue = locked(&room.queue);
            queue.older.len + queue.current.len
        };
        self.rooms.iter().map(bytes).sum()
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
        self.reading(from, limit).run()
    }

    /// The same where all of them are in memory.
    #[must_use]
    pub fn page_at_hand(&self, from: u64, limit: usize) -> Option<Vec<HistoryEvent>> {
        let is_elsewhere = |room: &Room| {
            let in_memory = room.in_memory();
            locked(&room.queue).has_between(from, in_memory)
        };
        (!self.rooms.iter().any(is_elsewhere)).then(|| self.page(from, limit))
    }

    /// The same, to be read by a thread that may wait for the disk.
    #[must_use]
    pub fn reading(&self, from: u64, limit: usize) -> Reading {
        let plan = |room: &Room| {
            let in_memory = room.in_memory();
            let plan = room.path.as_ref().map(|path| locked(&room.queue).plan(path, from, in_memory, limit));
            let memory = room.memory.iter().filter(|e| e.seq >= from).take(limit).cloned().collect();
            (plan, memory)
        };
        Reading { limit, next: self.next_seq, rooms: self.rooms.iter().map(plan).collect() }
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
        let plan = |room: &Room| {
            let in_memory = room.in_memory();
            Some(locked(&room.queue).plan(room.path.as_ref()?, 0, in_memory, usize::MAX))
        };
        Search { id, incarnation: None, plans: self.rooms.iter().filter_map(plan).collect(), remembered }
    }
}

/// Kept events that are to be read ([`History::reading`]).
#[derive(Debug)]
pub struct Reading {
    limit: usize,
    /// The number that the next event had when this was asked for.
    pub next: u64,
    rooms: Vec<(Option<Plan>, Vec<HistoryEvent>)>,
}

impl Reading {
    /// Reads the files: what [`History::page`] gives.
    #[must_use]
    pub fn run(self) -> Vec<HistoryEvent> {
        let mut events = Vec::new();
        for (plan, memory) in self.rooms {
            let mut of_room = plan.map_or_else(Vec::new, |plan| plan.read(self.limit));
            of_room.extend(memory);
            of_room.truncate(self.limit);
            events.extend(of_room);
        }
        events.sort_by_key(|e| e.seq);
        events.truncate(self.limit);
        events
    }
}

/// The room of one class: its newest events, and the way to its files.
#[derive(Debug)]
struct Room {
    path: Option<PathBuf>,
    memory_max: usize,
    memory: VecDeque<HistoryEvent>,
    queue: Arc<Mutex<Queue>>,
    lost: u64,
    /// Dropped since the last marker: how many, and the newest of them.
    unmarked: Option<(u64, Box<HistoryEvent>)>,
}

impl Room {
    fn new(max_bytes: u64, memory_max: usize) -> Self {
        Self {
            path: None,
            memory_max: memory_max.max(1),
            memory: VecDeque::new(),
            queue: Arc::new(Mutex::new(Queue::new(max_bytes))),
            lost: 0,
            unmarked: None,
        }
    }

    /// The number behind all that are kept.
    fn next_seq(&self) -> u64 {
        let queue = locked(&self.queue);
        let last = [queue.older.last_seq, queue.current.last_seq].into_iter().flatten().max();
        last.map_or(1, |last| last.saturating_add(1))
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
            let dropped = locked(&self.queue).push(event.seq, encode_line(&event));
            self.lost += dropped.len() as u64;
            for event in dropped.iter().filter_map(|line| decode_line(line.as_bytes())) {
                self.unmarked = Some((self.unmarked() + 1, Box::new(event)));
            }
        }
        self.remember(event);
    }

    fn unmarked(&self) -> u64 {
        self.unmarked.as_ref().map_or(0, |(lost, _)| *lost)
    }

    /// The number of the oldest event in memory, from which on all are there.
    fn in_memory(&self) -> u64 {
        self.memory.front().map_or_else(|| self.next_seq(), |e| e.seq)
    }

    /// The same; 0 when nothing older is kept.
    fn in_memory_or_nothing(&self) -> u64 {
        let in_memory = self.in_memory();
        if locked(&self.queue).has_between(0, in_memory) { in_memory } else { 0 }
    }
}

/// The event that says what was lost.
fn marker(seq: u64, lost: u64, newest: HistoryEvent) -> HistoryEvent {
    HistoryEvent {
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
        ..newest
    }
}

/// A search for a verdict ([`History::search`]).
#[derive(Debug)]
pub struct Search {
    id: VerdictId,
    /// Only what this incarnation gave.
    incarnation: Option<u32>,
    plans: Vec<Plan>,
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
        for plan in &self.plans {
            plan.lines(|line| {
                if line.windows(needle.len()).any(|w| w == needle)
                    && let Some(event) = decode_line(line).filter(|event| event.id == Some(self.id))
                {
                    newest(&mut lives, event);
                }
                if is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
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

/// The path with a suffix.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
