//! Events on their way from the control thread to readers on other threads: the newest ones at hand, kept ones asked for.
//!
//! The control thread pushes what happens ([`Feed::push`]) and answers what readers ask of the
//! history ([`Feed::serve`]): it never waits for the disk, so the reader reads by itself what is
//! not in memory any more ([`Asked::poll`]). A reader waits for neither. Each side rings the
//! other's descriptor. A reader that was away goes on from an event's number, so nothing is sent
//! twice, and nothing is left out silently.

use crate::history::{History, Reading};
use crate::wake::{eventfd, ring};
use fide_wire::control::HistoryEvent;
use fide_wire::level::Level;
use fide_wire::verdict::{Cause, Grade};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Newest events at hand for those who follow; whoever lags further is cut off, and comes back by the history.
pub const RECENT: usize = 1024;
/// Kept events that are looked at for one question.
pub const PAGE: usize = 256;
/// Questions that may wait: more than there are connections.
const QUESTIONS: usize = 64;

/// Which events a reader wants. Filters of different kinds must all match; several values of one kind match any of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// This level and worse; absent: *notice*, or all where causes are named.
    pub level: Option<Level>,
    /// These causes.
    pub causes: Vec<Cause>,
    /// About these hosts and their processes.
    pub hosts: Vec<String>,
    /// About these processes: `name` or `name@host`.
    pub apps: Vec<String>,
    /// Of this grade.
    pub grade: Option<Grade>,
}

impl Wanted {
    /// Whether this is one of them.
    #[must_use]
    pub fn wants(&self, e: &HistoryEvent) -> bool {
        let about = |app: &String| match (app.split_once('@'), &e.app) {
            (Some((name, host)), Some(is)) => is == name && e.node == host,
            (None, Some(is)) => is == app,
            (_, None) => false,
        };
        let usual = if self.causes.is_empty() { Level::Notice } else { Level::Timing };
        e.level() <= self.level.unwrap_or(usual)
            && (self.causes.is_empty() || self.causes.contains(&e.cause))
            && (self.hosts.is_empty() || self.hosts.contains(&e.node))
            && (self.apps.is_empty() || self.apps.iter().any(about))
            && self.grade.is_none_or(|g| g == e.grade)
    }
}

/// What is asked of the history.
#[derive(Clone, Debug)]
pub enum Question {
    /// Kept events from this number on, [`PAGE`] of them at most, all levels.
    From(u64),
    /// The newest so many that are wanted, among those in memory.
    Newest(usize, Wanted),
}

/// Kept events, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// They.
    pub events: Vec<HistoryEvent>,
    /// The number of the first event that was not looked at.
    pub next: u64,
    /// Whether more are kept from `next` on.
    pub more: bool,
}

impl Page {
    /// Events from some number on that were asked for when the next one was to have the number
    /// `next`.
    fn of(events: Vec<HistoryEvent>, next: u64) -> Self {
        let looked = events.last().map_or(next, |e| e.seq + 1);
        Self { more: events.len() == PAGE && looked < next, next: looked, events }
    }
}

/// What the control thread answers.
#[derive(Debug)]
enum Answer {
    Page(Page),
    /// Some of it is in files.
    Reading(Reading),
}

#[derive(Debug, Default)]
struct Slot {
    answer: Mutex<Option<Answer>>,
    refused: AtomicBool,
}

/// Too many ask at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// A question under way. Dropped, it is not answered any more.
#[derive(Debug)]
pub struct Asked(Arc<Slot>);

impl Asked {
    /// The answer, once it is there. Reads the history's files where the events are not in memory
    /// any more.
    ///
    /// # Errors
    /// When there was no room for it.
    pub fn poll(&self) -> Result<Option<Page>, TooMany> {
        if self.0.refused.load(Ordering::Acquire) {
            return Err(TooMany);
        }
        let answer = locked(&self.0.answer).take();
        Ok(answer.map(|answer| match answer {
            Answer::Page(page) => page,
            Answer::Reading(reading) => {
                let next = reading.next;
                Page::of(reading.run(), next)
            }
        }))
    }
}

/// An event at hand.
#[derive(Debug)]
pub struct Entry {
    /// It.
    pub event: HistoryEvent,
    frame: OnceLock<Arc<str>>,
}

impl Entry {
    /// Its text on a stream, made once for all who follow.
    #[must_use]
    pub fn frame(&self, make: impl FnOnce(&HistoryEvent) -> String) -> Arc<str> {
        self.frame.get_or_init(|| make(&self.event).into()).clone()
    }
}

/// What comes behind an event's number.
#[derive(Debug)]
pub enum After {
    /// This one.
    Event(Arc<Entry>),
    /// Nothing yet.
    Nothing,
    /// Something that is not at hand any more: the history has it.
    Older,
}

#[derive(Debug, Default)]
struct Shared {
    recent: VecDeque<Arc<Entry>>,
    next: u64,
    questions: VecDeque<(Question, Arc<Slot>)>,
}

/// See the module.
#[derive(Debug)]
pub struct Feed {
    shared: Mutex<Shared>,
    /// Rung for readers.
    readers: Arc<OwnedFd>,
    /// Rung for the control thread.
    control: OwnedFd,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feed {
    /// One whose next event has the number `next`; `control` is rung when something is asked.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new(next: u64, control: OwnedFd) -> io::Result<Self> {
        let shared = Mutex::new(Shared { next, ..Shared::default() });
        Ok(Self { shared, readers: Arc::new(eventfd()?), control })
    }

    /// Readable when there is news for readers.
    #[must_use]
    pub fn readers(&self) -> Arc<OwnedFd> {
        self.readers.clone()
    }

    // ---- the control thread ----

    /// An event of the history has happened.
    pub fn push(&self, event: HistoryEvent) {
        let mut shared = locked(&self.shared);
        shared.next = event.seq + 1;
        if shared.recent.len() == RECENT {
            shared.recent.pop_front();
        }
        shared.recent.push_back(Arc::new(Entry { event, frame: OnceLock::new() }));
        drop(shared);
        ring(&self.readers);
    }

    /// An event of the history has happened, and nobody is served.
    pub fn pass(&self, seq: u64) {
        let mut shared = locked(&self.shared);
        shared.next = seq + 1;
        // What comes behind it would not follow.
        shared.recent.clear();
    }

    /// Answers one question of the history; whether more wait.
    pub fn serve(&self, history: &History) -> bool {
        let question = {
            let mut shared = locked(&self.shared);
            // Whoever asked has gone.
            shared.questions.retain(|(_, slot)| Arc::strong_count(slot) > 1);
            shared.questions.pop_front()
        };
        let Some((question, slot)) = question else { return false };
        let next = history.next_seq();
        let answer = match question {
            Question::From(from) => match history.page_at_hand(from, PAGE) {
                Some(events) => Answer::Page(Page::of(events, next)),
                None => Answer::Reading(history.reading(from, PAGE)),
            },
            Question::Newest(count, wanted) => {
                Answer::Page(Page { events: history.newest(count, |e| wanted.wants(e)), next, more: false })
            }
        };
        *locked(&slot.answer) = Some(answer);
        ring(&self.readers);
        !locked(&self.shared).questions.is_empty()
    }

    // ---- readers ----

    /// Asks the history.
    #[must_use]
    pub fn ask(&self, question: Question) -> Asked {
        let slot = Arc::new(Slot::default());
        let mut shared = locked(&self.shared);
        if shared.questions.len() < QUESTIONS {
            shared.questions.push_back((question, slot.clone()));
            drop(shared);
            ring(&self.control);
        } else {
            slot.refused.store(true, Ordering::Release);
        }
        Asked(slot)
    }

    /// The number that the next event will have.
    #[must_use]
    pub fn next(&self) -> u64 {
        locked(&self.shared).next
    }

    /// The first event with this number or a later one.
    #[must_use]
    pub fn after(&self, seq: u64) -> After {
        let shared = locked(&self.shared);
        if seq >= shared.next {
            return After::Nothing;
        }
        match shared.recent.front() {
            Some(first) if first.event.seq <= seq => {
                let at = shared.recent.partition_point(|e| e.event.seq < seq);
                shared.recent.get(at).map_or(After::Nothing, |e| After::Event(e.clone()))
            }
            _ => After::Older,
        }
    }
}
