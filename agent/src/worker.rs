//! Work for clients that takes long: finding a process among thousands, a verdict or kept events
//! among megabytes of history, reading the configuration again, making an event ring.
//!
//! It is done by a worker thread at lower priority, never by the control thread. The queue is fair ([`FairQueue`]): what root asks comes first, then each
//! user's questions and each owner's standing watches in turn. A connection has at most one question here, because replies come in the order of
//! requests; when the connection is closed, its question is dropped, and the work on it ends at its next step. Each look-up has a time limit. A worker
//! that is stuck in the kernel (a process whose entries in `/proc` cannot be read) is replaced, a few times.

use crate::clock::thread_ran;
use crate::config::Config;
use crate::fair::FairQueue;
use crate::hooks::become_ordinary;
use crate::select::{Limit, Target as Process};
use crate::wake::ring;
use crossbeam_channel::{Receiver, Sender, unbounded};
use fide_wire::control::{HistoryEvent, Refused};
use fide_xdp::{Subscriber, XdpError};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest look-up.
pub const LIMIT: Duration = Duration::from_secs(2);
/// A worker that has not ended its look-up for so long is stuck.
const STUCK: Duration = Duration::from_secs(10);
/// Most workers, those that are stuck included.
const WORKERS: usize = 4;
/// Most questions: one of each connection, and one of each watch that stands.
const ROOM: usize = 256 + 4096;
/// Below ordinary programs: a machine that is busy with look-ups is of no use to anybody.
const NICE: i32 = 5;

/// For whom something is looked up: each is served in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A user's request.
    Asked(u32),
    /// The standing watches of a user (the configuration's: root).
    Standing(u32),
}

/// Who waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A connection, by its id.
    Connection(u64),
    /// A standing watch, by its id.
    Standing(u64),
    /// Whoever sent the signal upon which the configuration is read again.
    Configuration,
    /// An event ring, by its index: made for the connection that waits for it, or taken out of use.
    Ring(u32),
}

/// What was found.
#[derive(Debug)]
pub enum Found {
    /// To a selector.
    Process(Result<Process, Refused>),
    /// To a verdict's id.
    Verdicts(Vec<HistoryEvent>),
    /// Kept events, and the number that the next one had when they were asked for.
    Page(Vec<HistoryEvent>, u64),
    /// The configuration, or in words why it is refused.
    Configuration(Box<Result<Config, String>>),
    /// A ring that was made.
    Made(Result<Subscriber, XdpError>),
    /// A ring is out of use.
    Unmade,
}

/// A look-up that is done.
#[derive(Debug)]
pub struct Answer {
    /// Who waited for it.
    pub whose: Whose,
    /// For whom.
    pub source: Source,
    /// What was found.
    pub found: Found,
    /// How long it took.
    pub took: Duration,
    /// For how much of that it had a processor.
    pub ran: Duration,
}

type Work = Box<dyn FnOnce(&Limit) -> Found + Send>;

struct Job {
    whose: Whose,
    work: Work,
}

struct Running {
    worker: usize,
    whose: Whose,
    began: Instant,
    limit: Limit,
}

struct State {
    jobs: FairQueue<Source, Job>,
    running: Vec<Running>,
    stopping: bool,
}

struct Shared {
    state: Mutex<State>,
    queued: Condvar,
    answers: Sender<Answer>,
    told: OwnedFd,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // a look-up that panicked left the queue whole
    }
}

/// The queue and its thread, or threads.
pub struct Worker {
    name: &'static str,
    shared: Arc<Shared>,
    answers: Receiver<Answer>,
    workers: usize,
}

impl Worker {
    /// Starts the worker, a thread of this name. `told` becomes readable when something was found.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(name: &'static str, told: OwnedFd) -> io::Result<Self> {
        let (found, answers) = unbounded();
        let state = State { jobs: FairQueue::new(ROOM), running: Vec::new(), stopping: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), queued: Condvar::new(), answers: found, told });
        let mut worker = Self { name, shared, answers, workers: 0 };
        worker.hire()?;
        Ok(worker)
    }

    fn hire(&mut self) -> io::Result<()> {
        let (shared, worker) = (self.shared.clone(), self.workers);
        std::thread::Builder::new().name(self.name.into()).stack_size(512 << 10).spawn(move || {
            become_ordinary();
            // SAFETY: integers only; 0 is the calling thread. Refused, it is as important as others.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
            work(&shared, worker);
        })?;
        self.workers += 1;
        Ok(())
    }

    /// Queues a look-up. `false`: there is no room for it.
    pub fn ask(&self, source: Source, whose: Whose, work: impl FnOnce(&Limit) -> Found + Send + 'static) -> bool {
        let refused = self.shared.state().jobs.push(source, Job { whose, work: Box::new(work) });
        self.shared.queued.notify_one();
        refused.is_none_or(|job| job.whose != whose)
    }

    /// The next one that is done.
    pub fn poll(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }

    /// Nobody waits for this any more.
    pub fn forget(&self, whose: Whose) {
        let mut state = self.shared.state();
        state.jobs.retain(|job| job.whose != whose);
        state.running.iter().filter(|r| r.whose == whose).for_each(|r| r.limit.end());
    }

    /// Look-ups that wait or run for a source.
    #[must_use]
    pub fn waiting(&self, source: Source) -> usize {
        self.shared.state().jobs.waiting(&source)
    }

    /// Now and then: another worker where all are stuck.
    pub fn tend(&mut self) {
        let stuck = {
            let state = self.shared.state();
            state.running.len() == self.workers && state.running.iter().all(|r| r.began.elapsed() > STUCK)
        };
        if stuck && self.workers < WORKERS {
            tracing::warn!(
                "a look-up is stuck in the kernel (a process whose /proc entries cannot be read); another worker goes on"
            );
            if let Err(e) = self.hire() {
                tracing::error!("no other worker for look-ups: {e}");
            }
        }
    }
}

impl Drop for Worker {
    /// Workers end after their present look-up. They are not waited for: one may be stuck.
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.stopping = true;
        state.running.iter().for_each(|r| r.limit.end());
        self.shared.queued.notify_all();
    }
}

fn work(shared: &Shared, worker: usize) {
    loop {
        let (source, job, limit, began) = {
            let mut state = shared.state();
            let (source, job) = loop {
                if state.stopping {
                    return;
                }
                let roots = |s: &Source| *s == Source::Asked(0);
                if let Some(next) = state.jobs.pop_where(roots).or_else(|| state.jobs.pop()) {
                    break next;
                }
                state = shared.queued.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            let (began, limit) = (Instant::now(), Limit::new(LIMIT));
            state.running.push(Running { worker, whose: job.whose, began, limit: limit.clone() });
            (source, job, limit, began)
        };
        let (whose, ran) = (job.whose, thread_ran());
        let found = (job.work)(&limit);
        shared.state().running.retain(|r| r.worker != worker);
        if shared
            .answers
            .send(Answer { whose, source, found, took: began.elapsed(), ran: thread_ran().saturating_sub(ran) })
            .is_err()
        {
            return;
        }
        ring(&shared.told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::eventfd;
    use crossbeam_channel::bounded;

    fn next(worker: &Worker) -> Answer {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(answer) = worker.poll() {
                return answer;
            }
            assert!(Instant::now() < until, "no answer");
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn nothing(_: &Limit) -> Found {
        Found::Verdicts(Vec::new())
    }

    /// A worker that is held at its first look-up until told.
    fn held() -> (Worker, Sender<()>) {
        let worker = Worker::start("test", eventfd().unwrap()).unwrap();
        let (go, wait) = bounded::<()>(1);
        let (began, has_begun) = bounded::<()>(1);
        assert!(worker.ask(Source::Asked(7), Whose::Connection(0), move |_| {
            began.send(()).unwrap();
            wait.recv().unwrap();
            Found::Verdicts(Vec::new())
        }));
        has_begun.recv().unwrap();
        (worker, go)
    }

    #[test]
    fn root_comes_first_and_users_take_turns() {
        let (worker, go) = held();
        for connection in 1..=100 {
            assert!(worker.ask(Source::Asked(7), Whose::Connection(connection), nothing));
        }
        assert!(worker.ask(Source::Standing(0), Whose::Standing(1), nothing));
        assert!(worker.ask(Source::Asked(8), Whose::Connection(200), nothing));
        assert!(worker.ask(Source::Asked(0), Whose::Connection(300), nothing));
        go.send(()).unwrap();
        let order: Vec<Whose> = (0..5).map(|_| next(&worker).whose).collect();
        use Whose::{Connection as C, Standing as S};
        assert_eq!(order, [C(0), C(300), C(1), S(1), C(200)]);
    }

    #[test]
    fn what_nobody_waits_for_is_dropped_and_ended() {
        let (worker, go) = held();
        assert!(worker.ask(Source::Asked(7), Whose::Connection(1), |_| unreachable!("it was dropped")));
        worker.forget(Whose::Connection(1));
        go.send(()).unwrap();
        next(&worker);
        // At its time limit a look-up ends anyway: on a busy machine that may be sooner.
        let was_ended = || {
            let (began, has_begun) = bounded::<Limit>(1);
            worker.ask(Source::Asked(7), Whose::Connection(2), move |limit| {
                began.send(limit.clone()).unwrap();
                while !limit.is_over() {
                    std::thread::yield_now();
                }
                Found::Verdicts(Vec::new())
            });
            let limit = has_begun.recv().unwrap();
            let was_over = limit.is_over();
            worker.forget(Whose::Connection(2));
            let is_over = limit.is_over();
            assert_eq!(next(&worker).whose, Whose::Connection(2));
            !was_over && is_over
        };
        assert!((0..3).any(|_| was_ended()), "not only at its time limit");
    }
}
