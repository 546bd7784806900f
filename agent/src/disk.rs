//! The threads that wait for the disk, so that nobody else does: one hands lines to the kernel, from where they survive this agent; one waits until the
//! disk has things, which may take a busy machine long, and must not hold up lines.
//!
//! The control thread asks for what is to be written ([`Disk::ask`]) and goes on. For each file
//! there is one job that waits: a newer one has all that the older one had, and takes its place, so
//! that nothing grows behind a disk that hangs. Whoever must not answer before something is written
//! asks for its [`Ticket`], or waits for it, never without a bound. How long the present job takes
//! says whether the disk hangs ([`Disk::in_job_for`]).

use crate::hooks::become_ordinary;
use crate::wake::ring;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// At the end a thread that is not stuck in the kernel has ended within this.
const ENDS_WITHIN: Duration = Duration::from_millis(100);

/// What is written, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The table of processes: applications wait for it.
    Table,
    /// The next one's content, where a kill of this agent does not reach it.
    Recent,
    /// Incarnations, groups, maintenances: operators wait for it.
    State,
    /// The event history: nobody waits for it.
    History,
    /// What was written of it reaches the disk.
    Synced,
}

/// All of them.
pub const KINDS: [Kept; 5] = [Kept::Table, Kept::Recent, Kept::State, Kept::History, Kept::Synced];
/// The threads, and what each does.
const THREADS: [(&str, &[Kept]); 2] =
    [("fide-disk", &[Kept::Table, Kept::Recent, Kept::History]), ("fide-sync", &[Kept::State, Kept::Synced])];

/// A job that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    kept: Kept,
    number: u64,
}

/// Since when a thread's present job on the disk runs. Clones show the same thread.
#[derive(Clone, Debug, Default)]
pub struct JobClock(Arc<Mutex<Option<Instant>>>);

impl JobClock {
    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Does a job, which counts from now on until it is done.
    pub fn time<R>(&self, job: impl FnOnce() -> R) -> R {
        self.set(Some(Instant::now()));
        let result = job();
        self.set(None);
        result
    }

    /// For how long the present job has been running; `None`: there is none.
    #[must_use]
    pub fn in_job_for(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(|since| since.elapsed())
    }
}

/// Writes; says in words why not.
type Work = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// Of one kind of file.
#[derive(Default)]
struct Slot {
    waiting: Option<Work>,
    asked: u64,
    /// The last one that is done, and what became of it.
    done: u64,
    result: Option<Result<(), String>>,
    is_polled: bool,
}

#[derive(Default)]
struct State {
    slots: [Slot; KINDS.len()],
    /// Since when each thread's present job runs.
    since: [Option<Instant>; THREADS.len()],
    is_stopping: bool,
    ended: usize,
}

struct Shared {
    state: Mutex<State>,
    /// Somebody asked.
    asked: Condvar,
    /// Something is done, or a thread has ended.
    done: Condvar,
    told: OwnedFd,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads, and what they are to do.
pub struct Disk {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Disk {
    /// Starts the threads. `told` becomes readable when something is done.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(told: OwnedFd) -> io::Result<Self> {
        let (asked, done) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { state: Mutex::default(), asked, done, told });
        let threads = THREADS.iter().enumerate().map(|(at, (name, kinds))| {
            let of_thread = shared.clone();
            std::thread::Builder::new().name((*name).into()).stack_size(512 << 10).spawn(move || {
                become_ordinary();
                work(&of_thread, at, kinds);
                of_thread.state().ended += 1;
                of_thread.done.notify_all();
            })
        });
        let threads = threads.collect::<io::Result<Vec<_>>>()?;
        Ok(Self { shared, threads })
    }

    /// Has something written. A job of the same kind that has not begun is dropped: this one must
    /// do its part, too.
    pub fn ask(&self, kept: Kept, work: impl FnOnce() -> Result<(), String> + Send + 'static) -> Ticket {
        let mut state = self.shared.state();
        let slot = &mut state.slots[kept as usize];
        slot.asked += 1;
        slot.waiting = Some(Box::new(work));
        let number = slot.asked;
        drop(state);
        self.shared.asked.notify_all();
        Ticket { kept, number }
    }

    /// The last job of a kind that was asked for; one that is done, if none was.
    #[must_use]
    pub fn last(&self, kept: Kept) -> Ticket {
        Ticket { kept, number: self.shared.state().slots[kept as usize].asked }
    }

    /// What became of a job, or of the one that took its place; `None`: it is not done.
    #[must_use]
    pub fn outcome(&self, ticket: Ticket) -> Option<Result<(), String>> {
        let state = self.shared.state();
        let slot = &state.slots[ticket.kept as usize];
        if slot.done < ticket.number { None } else { Some(slot.result.clone().unwrap_or(Ok(()))) }
    }

    /// What became of the last job of a kind, if that was not polled.
    #[must_use]
    pub fn poll(&self, kept: Kept) -> Option<Result<(), String>> {
        let mut state = self.shared.state();
        let slot = &mut state.slots[kept as usize];
        if std::mem::replace(&mut slot.is_polled, true) { None } else { slot.result.clone() }
    }

    /// For how long the longest of the present jobs has been running.
    #[must_use]
    pub fn in_job_for(&self) -> Option<Duration> {
        self.shared.state().since.iter().flatten().map(Instant::elapsed).max()
    }

    /// The same of the thread that writes this.
    #[must_use]
    pub fn in_job_of(&self, kept: Kept) -> Option<Duration> {
        let at = THREADS.iter().position(|(_, kinds)| kinds.contains(&kept))?;
        self.shared.state().since[at].map(|since| since.elapsed())
    }

    /// Waits until these are done, and until `deadline` at most; whether they are.
    #[must_use]
    pub fn wait(&self, tickets: &[Ticket], deadline: Instant) -> bool {
        let is_pending = |state: &mut State| tickets.iter().any(|t| state.slots[t.kept as usize].done < t.number);
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.shared.done.wait_timeout_while(self.shared.state(), left, is_pending);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for Disk {
    /// What waits is not begun any more. Threads that are stuck in the kernel are left there: they
    /// end with the process.
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_stopping = true;
        self.shared.asked.notify_all();
        let ends = self.shared.done.wait_timeout_while(state, ENDS_WITHIN, |state| state.ended < THREADS.len());
        if ends.unwrap_or_else(PoisonError::into_inner).0.ended == THREADS.len() {
            // A panic of one was reported by the panic hook.
            self.threads.drain(..).for_each(|thread| _ = thread.join());
        }
    }
}

fn work(shared: &Shared, at: usize, kinds: &[Kept]) {
    loop {
        let (kind, number, work) = {
            let mut state = shared.state();
            loop {
                if state.is_stopping {
                    return;
                }
                let next = kinds.iter().find_map(|kind| {
                    let slot = &mut state.slots[*kind as usize];
                    Some((*kind as usize, slot.asked, slot.waiting.take()?))
                });
                if let Some(next) = next {
                    state.since[at] = Some(Instant::now());
                    break next;
                }
                state = shared.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let result = work();
        let mut state = shared.state();
        state.since[at] = None;
        let slot = &mut state.slots[kind];
        (slot.done, slot.result, slot.is_polled) = (number, Some(result), false);
        drop(state);
        shared.done.notify_all();
        ring(&shared.told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::eventfd;
    use crossbeam_channel::{Receiver, Sender, unbounded};

    const LONG: Duration = Duration::from_secs(60);

    /// A disk that hangs in its first job until told.
    fn hanging() -> (Disk, Sender<()>) {
        let disk = Disk::start(eventfd().unwrap()).unwrap();
        let (go, wait) = unbounded::<()>();
        let (began, has_begun) = unbounded::<()>();
        let _ = disk.ask(Kept::History, move || {
            began.send(()).unwrap();
            let _ = wait.recv(); // or the test is over
            Ok(())
        });
        has_begun.recv().unwrap();
        (disk, go)
    }

    fn writes(disk: &Disk, kept: Kept, written: &Sender<u32>, number: u32) -> Ticket {
        let written = written.clone();
        disk.ask(kept, move || {
            written.send(number).unwrap();
            if number < 10 { Ok(()) } else { Err(number.to_string()) }
        })
    }

    #[test]
    fn a_job_counts_while_it_runs() {
        let clock = JobClock::default();
        let seen = clock.clone();
        assert!(clock.in_job_for().is_none());
        assert!(clock.time(|| seen.in_job_for().is_some()));
        assert!(clock.in_job_for().is_none());
    }

    #[test]
    fn nobody_waits_for_a_disk_that_hangs_and_of_each_file_the_newest_is_written() {
        let (disk, go) = hanging();
        let (written, order): (_, Receiver<u32>) = unbounded();
        let asked: Vec<Ticket> = (1..=3).map(|n| writes(&disk, Kept::History, &written, n)).collect();
        let table = writes(&disk, Kept::Table, &written, 50);
        assert!(disk.in_job_for().is_some() && disk.in_job_of(Kept::Table).is_some());
        assert!(!disk.wait(&asked, Instant::now() + Duration::from_millis(1)), "it hangs");
        assert_eq!((disk.outcome(asked[0]), disk.poll(Kept::History)), (None, None));
        // What waits for the disk holds up no lines, nor they it.
        let state = writes(&disk, Kept::State, &written, 4);
        assert!(disk.wait(&[state], Instant::now() + LONG));
        go.send(()).unwrap();
        assert!(disk.wait(&[asked[0], asked[2], table], Instant::now() + LONG));
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [4, 50, 3], "the most urgent first, and nothing twice");
        assert_eq!(disk.outcome(asked[0]), Some(Ok(())), "the newest has its part");
        assert_eq!(disk.poll(Kept::Table), Some(Err("50".into())));
        assert_eq!(disk.poll(Kept::Table), None, "once");
    }

    #[test]
    fn a_thread_that_is_stuck_is_not_waited_for_at_the_end() {
        let (disk, go) = hanging();
        drop(disk);
        drop(go); // the thread goes on, and ends
    }
}
