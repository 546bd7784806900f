//! The history's files: segments, what waits to be written to them, and reading them.
//!
//! The control thread puts lines into a queue of each class ([`Queue`]), and asks what the files
//! have; a thread that may wait for the disk writes them ([`Files::write`]). The lock between both
//! is never held while the disk is waited for, so that a disk that hangs stalls nobody else.

use super::{beside, checked, class_path, decode_line};
use crate::admission::Class;
use crate::files;
use fide_wire::control::HistoryEvent;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How every line begins.
const LINE_START: &[u8] = b"{\"seq\":";
/// Longest line, newline excluded. A longer event is kept without its evidence and with a shorter
/// text.
pub(super) const LINE_MAX: usize = 64 * 1024;
/// Lines of one class that may wait for a disk that does not take them, bytes.
const PENDING_MAX: usize = 1 << 20;
/// Bytes of lines that are written in one call.
const BATCH_MAX: usize = PENDING_MAX / 4;
/// One entry of the index for so many events.
const INDEX_STEP: u64 = 64;
/// A file is known as a history by a line in its first bytes, so many.
const KNOWN_WITHIN: u64 = 1 << 20;
/// At most so much of a torn tail is kept.
const TORN_MAX: u64 = 64 * 1024;
const CLASSES: usize = Class::ALL.len();

/// What could not be done with the history on disk, why, and what to do. The agent goes on without.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event history {}: {what}", path.display())]
pub struct HistoryError {
    /// The file.
    pub path: PathBuf,
    /// In words.
    pub what: String,
}

/// One file of the history.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// Bytes up to the end of the last whole line.
    pub(super) len: u64,
    /// Number and place of every [`INDEX_STEP`]th event.
    index: Vec<(u64, u64)>,
    events: u64,
    pub(super) last_seq: Option<u64>,
    /// Its device and inode: by its name it is the other one after a rotation.
    id: (u64, u64),
}

impl Segment {
    fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { len: meta.len(), id: (meta.dev(), meta.ino()), ..Self::default() })
    }

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

    /// Whether it has events with numbers from this one on, and below that one.
    fn has_between(&self, from: u64, below: u64) -> bool {
        self.last_seq.is_some_and(|last| last >= from) && self.index.first().is_some_and(|(first, _)| *first < below)
    }
}

/// A line that waits to be written.
#[derive(Debug)]
struct Line {
    seq: u64,
    text: String,
}

/// What the control thread and the one that writes share of one class.
#[derive(Debug)]
pub(super) struct Queue {
    lines: VecDeque<Line>,
    bytes: usize,
    /// So many of the first ones are being written.
    under_way: usize,
    pub(super) older: Segment,
    pub(super) current: Segment,
    pub(super) max_bytes: u64,
    pub(super) failures: u64,
}

/// Lines that are written in one call.
struct Batch {
    bytes: Vec<u8>,
    /// Number, begin and end of each.
    ends: Vec<(u64, u64, u64)>,
    /// Where the file ends so far.
    start: u64,
}

impl Queue {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self {
            lines: VecDeque::new(),
            bytes: 0,
            under_way: 0,
            older: Segment::default(),
            current: Segment::default(),
            max_bytes,
            failures: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// A line more. Where too much waits, the oldest ones that are not being written are dropped,
    /// and given back.
    pub(super) fn push(&mut self, seq: u64, text: String) -> Vec<String> {
        self.bytes += text.len() + 1;
        self.lines.push_back(Line { seq, text });
        let mut dropped = Vec::new();
        while self.bytes > PENDING_MAX && self.lines.len() > self.under_way + 1 {
            let Some(line) = self.lines.remove(self.under_way) else { break };
            self.bytes -= line.text.len() + 1;
            dropped.push(line.text);
        }
        dropped
    }

    /// As many lines as fit the current segment and one call. They stay in the queue until they are
    /// written.
    fn begin_batch(&mut self, begins_anew: bool) -> Option<Batch> {
        let mut bytes = if begins_anew { vec![b'\n'] } else { Vec::new() };
        let (mut ends, start) = (Vec::new(), self.current.len);
        for Line { seq, text } in &self.lines {
            let is_over = start + (bytes.len() + text.len() + 1) as u64 > self.max_bytes / 2 || bytes.len() > BATCH_MAX;
            if !ends.is_empty() && is_over {
                break;
            }
            let from = bytes.len() as u64;
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(b'\n');
            ends.push((*seq, from, bytes.len() as u64));
        }
        self.under_way = ends.len();
        (!ends.is_empty()).then_some(Batch { bytes, ends, start })
    }

    /// Whether the next line wants a new segment.
    fn is_full(&self) -> bool {
        let next = self.lines.front().map_or(0, |line| line.text.len() as u64 + 1);
        self.current.len > 0 && self.current.len + next > self.max_bytes / 2
    }

    fn end_batch(&mut self, batch: &Batch, is_written: bool) {
        self.under_way = 0;
        for (seq, from, to) in batch.ends.iter().filter(|_| is_written) {
            self.current.note(*seq, batch.start + from, batch.start + to);
            if let Some(line) = self.lines.pop_front() {
                self.bytes -= line.text.len() + 1;
            }
        }
    }

    /// Whether events with these numbers are in a file, or on the way to it.
    pub(super) fn has_between(&self, from: u64, below: u64) -> bool {
        from < below && (self.has_files_between(from, below) || self.waiting_between(from, below).next().is_some())
    }

    fn has_files_between(&self, from: u64, below: u64) -> bool {
        [&self.older, &self.current].into_iter().any(|segment| segment.has_between(from, below))
    }

    fn waiting_between(&self, from: u64, below: u64) -> impl Iterator<Item = &str> {
        let lines = self.lines.iter().skip_while(move |line| line.seq < from);
        lines.take_while(move |line| line.seq < below).map(|line| line.text.as_str())
    }

    /// What is to be read for events with these numbers, and what waits to be written of them.
    pub(super) fn plan(&self, path: &Path, from: u64, below: u64, limit: usize) -> Plan {
        let wanted = [&self.older, &self.current].into_iter().filter(|segment| segment.has_between(from, below));
        let place = |segment: &Segment| {
            let last = segment.last_seq.unwrap_or(0);
            Place { id: segment.id, offset: segment.offset(from), below: below.min(last.saturating_add(1)) }
        };
        Plan {
            path: path.to_owned(),
            from,
            places: wanted.map(place).collect(),
            waiting: self.waiting_between(from, below).take(limit).map(str::to_owned).collect(),
        }
    }
}

/// Where events of one class are that are to be read.
#[derive(Debug)]
pub(super) struct Plan {
    path: PathBuf,
    from: u64,
    places: Vec<Place>,
    waiting: Vec<String>,
}

#[derive(Debug)]
struct Place {
    id: (u64, u64),
    offset: u64,
    below: u64,
}

impl Plan {
    /// Reads at most `limit` events, oldest first.
    pub(super) fn read(&self, limit: usize) -> Vec<HistoryEvent> {
        let mut events = Vec::new();
        for place in &self.places {
            // After a rotation it has the other name, or is gone.
            let is_it = |file: &File| file.metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == place.id);
            let paths = [beside(&self.path, ".1"), self.path.clone()];
            let found = paths.iter().filter_map(|path| files::open_kept(path, false, false).ok()).find(is_it);
            let Some(file) = found else { continue };
            let _ = scan(&file, place.offset, |_, _, line| {
                let Some(event) = decode_line(line) else { return ControlFlow::Continue(true) };
                if event.seq >= place.below || events.len() >= limit {
                    return ControlFlow::Break(());
                }
                if event.seq >= self.from {
                    events.push(event);
                }
                ControlFlow::Continue(true)
            });
        }
        let waiting = self.waiting.iter().filter_map(|line| decode_line(line.as_bytes()));
        let room = limit.saturating_sub(events.len());
        events.extend(waiting.take(room));
        events
    }

    /// Gives each line to `each`, as long as it wants more.
    pub(super) fn lines(&self, mut each: impl FnMut(&[u8]) -> ControlFlow<()>) {
        for path in [beside(&self.path, ".1"), self.path.clone()].iter().filter(|_| !self.places.is_empty()) {
            // A segment that was just renamed is found as the other one, or was dropped meanwhile.
            let Ok(file) = files::open_kept(path, false, false) else { continue };
            let mut is_over = false;
            let _ = scan(&file, 0, |_, _, line| {
                is_over = each(line).is_break();
                if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(true) }
            });
            if is_over {
                return;
            }
        }
        let _ = self.waiting.iter().try_for_each(|line| each(line.as_bytes()));
    }
}

/// What became of [`Files::write`].
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// In the order of [`Class::ALL`]: something of it was written, and nothing failed.
    pub(super) written: [bool; CLASSES],
    /// The first failure.
    pub(super) failed: Option<HistoryError>,
    /// Some class cannot be written.
    pub(super) failing: bool,
}

/// What follows when a file cannot be written.
const UNWRITTEN: &str = "cannot be written; events are kept in memory, and written when it can be again";

/// All files of a history, for a thread that may wait for the disk.
#[derive(Debug)]
pub struct Files {
    classes: Mutex<[Option<ClassFiles>; CLASSES]>,
    wants_sync: AtomicBool,
    outcomes: Mutex<VecDeque<Outcome>>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Files {
    pub(super) fn new(classes: [Option<ClassFiles>; CLASSES]) -> Self {
        Self { classes: Mutex::new(classes), wants_sync: AtomicBool::new(false), outcomes: Mutex::default() }
    }

    /// The next [`Files::write`] sees to it that the disk has what is written.
    pub(super) fn want_sync(&self) {
        self.wants_sync.store(true, Ordering::Release);
    }

    /// Writes what waits. Waits for the disk.
    pub fn write(&self) {
        let sync = self.wants_sync.swap(false, Ordering::AcqRel);
        let mut classes = locked(&self.classes);
        let (mut outcome, mut is_idle) = (Outcome::default(), true);
        for (files, written) in classes.iter_mut().zip(&mut outcome.written) {
            let Some(files) = files else { continue };
            match files.attempt(sync) {
                None => {}
                Some(Ok(())) => (*written, is_idle) = (true, false),
                Some(Err(e)) => {
                    is_idle = false;
                    outcome.failed = outcome.failed.take().or(Some(e));
                }
            }
        }
        outcome.failing = classes.iter().flatten().any(|files| files.failing);
        drop(classes);
        if !is_idle {
            locked(&self.outcomes).push_back(outcome);
        }
    }

    /// Sees to it that the disk has what the kernel has. Waits for the disk, and keeps nobody from
    /// writing meanwhile.
    pub fn sync(&self) {
        let unsynced: Vec<(usize, io::Result<File>)> = locked(&self.classes)
            .iter_mut()
            .enumerate()
            .filter_map(|(at, files)| {
                let files = files.as_mut().filter(|files| files.unsynced)?;
                files.unsynced = false;
                Some((at, files.file.as_ref()?.try_clone()))
            })
            .collect();
        for (at, file) in unsynced {
            let synced = file.and_then(|file| file.sync_data());
            let mut classes = locked(&self.classes);
            let Some(files) = classes[at].as_mut() else { continue };
            let was_failing = std::mem::replace(&mut files.failing, synced.is_err());
            files.unsynced |= synced.is_err();
            locked(&files.queue).failures += u64::from(synced.is_err());
            let mut outcome = Outcome::default();
            outcome.written[at] = synced.is_ok();
            outcome.failed = synced.err().map(|e| error(&files.path, &e, UNWRITTEN));
            let is_news = was_failing || outcome.failed.is_some();
            outcome.failing = classes.iter().flatten().any(|files| files.failing);
            drop(classes);
            if is_news {
                locked(&self.outcomes).push_back(outcome);
            }
        }
    }

    pub(super) fn poll(&self) -> Option<Outcome> {
        locked(&self.outcomes).pop_front()
    }
}

/// The files of one class.
#[derive(Debug)]
pub(super) struct ClassFiles {
    path: PathBuf,
    queue: Arc<Mutex<Queue>>,
    file: Option<File>,
    /// A line was cut short by a failed write and could not be taken back: end it before the next.
    broken_line: bool,
    /// The kernel has lines that the disk has not.
    unsynced: bool,
    failing: bool,
}

impl ClassFiles {
    /// Opens or makes the files of a class at `path`; each event that they have is given to
    /// `remember`. Complaints come in `words`.
    pub(super) fn open(
        path: &Path,
        queue: &Arc<Mutex<Queue>>,
        words: &mut Vec<HistoryError>,
        mut remember: impl FnMut(HistoryEvent),
    ) -> io::Result<Self> {
        if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir)?;
        }
        let older_path = beside(path, ".1");
        match open_ours(&older_path) {
            Ok(file) => {
                let (segment, scan) = scan_segment(&file, &mut remember)?;
                locked(queue).older = segment;
                say_damaged(&older_path, scan.damaged + u64::from(scan.tail > 0), words);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let file = open_first(path)?;
        let (segment, scan) = scan_segment(&file, &mut remember)?;
        let len = segment.len;
        locked(queue).current = segment;
        say_damaged(path, scan.damaged, words);
        if scan.tail > 0 {
            let aside = beside(path, ".torn");
            let kept = keep_tail(&file, len, scan.tail, &aside);
            file.set_len(len)?;
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
        let (path, broken_line) = (path.to_owned(), scan.newline_missing);
        Ok(Self { path, queue: queue.clone(), file: Some(file), broken_line, unsynced: false, failing: false })
    }

    /// Writes what waits; `None`: there was nothing to do.
    fn attempt(&mut self, sync: bool) -> Option<Result<(), HistoryError>> {
        if locked(&self.queue).is_empty() && !(sync && self.unsynced) {
            return None;
        }
        let written = self.try_write(sync);
        self.failing = written.is_err();
        locked(&self.queue).failures += u64::from(written.is_err());
        Some(written.map_err(|e| error(&self.path, &e, UNWRITTEN)))
    }

    fn try_write(&mut self, sync: bool) -> io::Result<()> {
        // Somebody removed the file: start another.
        if self.file.as_ref().is_none_or(|f| f.metadata().is_ok_and(|m| m.nlink() == 0)) {
            self.begin_segment()?;
        }
        while !locked(&self.queue).is_empty() {
            if locked(&self.queue).is_full() {
                self.rotate()?;
            }
            let Some(batch) = locked(&self.queue).begin_batch(self.broken_line) else { break };
            let Some(file) = self.file.as_mut() else { return Err(io::Error::other("no file")) };
            let written = file.write_all(&batch.bytes);
            if written.is_err() {
                // Take back the part that was written, or end it as a broken line later.
                self.broken_line |= file.set_len(batch.start).is_err();
            }
            locked(&self.queue).end_batch(&batch, written.is_ok());
            written?;
            self.broken_line = false;
            self.unsynced = true;
        }
        if sync && self.unsynced {
            if let Some(file) = &self.file {
                file.sync_data()?;
            }
            self.unsynced = false;
        }
        Ok(())
    }

    /// Whatever is in the file was not written here: it is kept out of the index, and its last line
    /// ended.
    fn begin_segment(&mut self) -> io::Result<()> {
        let file = open_segment(&self.path)?;
        let segment = Segment::of(&file)?;
        self.broken_line = segment.len > 0;
        locked(&self.queue).current = segment;
        self.file = Some(file);
        Ok(())
    }

    /// The current segment becomes the older one.
    fn rotate(&mut self) -> io::Result<()> {
        if let Some(file) = &self.file {
            file.sync_data()?;
        }
        let older = beside(&self.path, ".1");
        may_replace(&older)?;
        std::fs::rename(&self.path, older)?;
        self.file = None;
        {
            let mut queue = locked(&self.queue);
            queue.older = std::mem::take(&mut queue.current);
        }
        self.begin_segment()?;
        // So that the new names survive the host's death, too; not every file system can.
        if let Some(dir) = self.path.parent() {
            let _ = File::open(dir).and_then(|d| d.sync_all());
        }
        Ok(())
    }
}

fn scan_segment(file: &File, remember: &mut impl FnMut(HistoryEvent)) -> io::Result<(Segment, Scan)> {
    let mut segment = Segment::of(file)?;
    let scan = scan(file, 0, |offset, end, line| match decode_line(line) {
        Some(event) => {
            segment.note(event.seq, offset, end);
            remember(event);
            ControlFlow::Continue(true)
        }
        None => ControlFlow::Continue(false),
    })?;
    segment.len = scan.good_end;
    Ok((segment, scan))
}

fn say_damaged(path: &Path, lines: u64, words: &mut Vec<HistoryError>) {
    if lines > 0 {
        words.push(HistoryError {
            path: path.to_owned(),
            what: format!("{lines} of its lines fail their checksum and are passed over; see whether the disk is sound"),
        });
    }
}

/// All files of a history at this path.
pub(crate) fn files_of(path: &Path) -> impl Iterator<Item = PathBuf> {
    let of_class = |class| ["", ".1", ".torn"].map(|suffix| beside(&class_path(path, class), suffix));
    Class::ALL.map(of_class).into_iter().flatten()
}

pub(super) fn error(path: &Path, e: &io::Error, consequence: &str) -> HistoryError {
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

/// As [`open_segment`], patient with a predecessor that is still dying (or its child between fork
/// and exec).
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

/// Whether a file holds a history, or what a crash left of one: a line of it passes its checksum,
/// or it begins as lines do.
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

/// Whether something may be written over what is at this path: nothing, or one of the history's
/// files.
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

/// Gives each line of a file (without newline, with its place and its end) to `each`, which says
/// whether it is whole, from `at` on.
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
