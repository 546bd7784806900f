//! Progress counters (B10): this process shows its agent that it moves, by additions in shared memory.

use crate::error::Error;
use crate::shm::Mapping;
use fide_wire::control::bridge::{BUSY, COUNTER, COUNTERS, PROGRESS, PROGRESS_LEN};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// All counters of a process, at the same address for as long as any handle lives: whichever bridge it has, or none yet.
#[derive(Debug)]
pub struct Counters {
    page: Mapping,
    /// Operations under way, by number. The page shows a copy: it may be replaced, and this is not.
    busy: [AtomicU64; COUNTERS],
    /// Limits of those that the agent looks at, by number. Not touched by ticks.
    limits: Mutex<[Option<Duration>; COUNTERS]>,
    /// Those that a handle was given for, as bits.
    taken: AtomicU32,
}

const _: () = assert!(COUNTERS <= u32::BITS as usize && COUNTERS * COUNTER <= PROGRESS_LEN && PROGRESS_LEN <= 4096);

impl Counters {
    pub fn new() -> Result<Self, Error> {
        let busy = std::array::from_fn(|_| AtomicU64::new(0));
        Ok(Self { page: Mapping::private_page()?, busy, limits: Mutex::default(), taken: AtomicU32::new(0) })
    }

    /// From now on they lie on this bridge. Who is busy stays busy there.
    pub fn attach(&self, bridge: BorrowedFd<'_>) -> Result<(), Error> {
        self.page.replace(bridge, PROGRESS)?;
        (0..COUNTERS).for_each(|counter| self.show(counter));
        Ok(())
    }

    fn word(&self, counter: usize, offset: usize) -> &AtomicU64 {
        self.page.word(counter * COUNTER + offset)
    }

    /// Copies `busy` to the page. Whoever changed it last is the last to find nothing left to copy, so what stands there in the end is right,
    /// also when the page was replaced meanwhile.
    fn show(&self, counter: usize) {
        loop {
            let busy = self.busy[counter].load(Ordering::SeqCst);
            self.word(counter, BUSY).store(busy, Ordering::SeqCst);
            if self.busy[counter].load(Ordering::SeqCst) == busy {
                return;
            }
        }
    }

    pub fn take(&self) -> Result<u8, Error> {
        let free = |taken: u32| (taken.trailing_ones() < COUNTERS as u32).then(|| taken | (taken + 1));
        let before = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).map_err(|_| Error::Full)?;
        Ok(before.trailing_ones() as u8)
    }

    pub fn set_limit(&self, counter: u8, limit: Option<Duration>) {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(counter)] = limit;
    }

    /// What the agent has to be asked for anew after a new join.
    pub fn limits(&self) -> Vec<(u8, Duration)> {
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.iter().enumerate().filter_map(|(n, limit)| limit.map(|l| (n as u8, l))).collect()
    }

    fn free(&self, counter: u8) {
        self.busy[usize::from(counter)].store(0, Ordering::SeqCst);
        self.show(counter.into());
        self.set_limit(counter, None);
        self.taken.fetch_and(!(1 << counter), Ordering::AcqRel);
    }
}

/// A progress counter of this process, from [`crate::Client::progress`]. While it is busy it must move within its limit, or the process is
/// *hung* to all who monitor it.
///
/// One for each thread or activity that could get stuck on its own: what many share moves as long as one of them does. All calls are a few operations in
/// memory, a tick is one addition: no system call, no lock, async-signal-safe, from any thread. It is busy from the start; dropping it makes it idle for good.
#[derive(Debug)]
pub struct Progress {
    counters: Arc<Counters>,
    counter: u8,
}

impl Progress {
    pub(crate) fn new(counters: Arc<Counters>, counter: u8) -> Self {
        let progress = Self { counters, counter };
        progress.begin();
        progress
    }

    pub(crate) fn belongs_to(&self, counters: &Arc<Counters>) -> bool {
        Arc::ptr_eq(&self.counters, counters)
    }

    /// Its number, as verdicts on it say.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.counter
    }

    /// It moved.
    pub fn tick(&self) {
        self.counters.word(self.counter.into(), 0).fetch_add(1, Ordering::Release);
    }

    /// An operation begins: until as many [`Progress::end`]s, it must move within its limit.
    pub fn begin(&self) {
        // Moved first, so that who sees it busy sees it moved.
        self.tick();
        self.counters.busy[usize::from(self.counter)].fetch_add(1, Ordering::SeqCst);
        self.counters.show(self.counter.into());
    }

    /// An operation ended; with the last of them it is idle, and nothing is expected of it. More ends than begins change nothing.
    pub fn end(&self) {
        let busy = &self.counters.busy[usize::from(self.counter)];
        let _ = busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |busy| busy.checked_sub(1));
        self.counters.show(self.counter.into());
        self.tick();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.tick();
        self.counters.free(self.counter);
    }
}
