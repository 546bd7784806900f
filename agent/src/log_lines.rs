//! Log lines, written by a thread of their own.
//!
//! Whoever reads standard error may stand still: a journal that hangs, a pipe that nobody reads, a
//! disk that is frozen. A thread that sends heartbeats hands its lines over and never waits, not
//! even for another thread that hands one over: the queue has no lock. Lines that find no room, and
//! those of a minute that has too many, are counted, and the count is written when lines are again.

use crate::wake;
use crossbeam_queue::ArrayQueue;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written.
const WAITING_MAX: usize = 4096;
/// Lines of a minute; one that has more says how many.
const OF_A_MINUTE: u64 = 60_000;
/// How long the end of the process waits for its last lines.
const LAST: Duration = Duration::from_secs(1);

struct Shared {
    queue: ArrayQueue<Vec<u8>>,
    /// Lines that were not written.
    lost: AtomicU64,
    is_over: AtomicBool,
    is_written: AtomicBool,
    wake: OwnedFd,
}

/// Where lines are handed over.
#[derive(Clone)]
pub struct Lines(Arc<Shared>);

/// One line on its way.
pub struct Line {
    lines: Lines,
    bytes: Vec<u8>,
}

/// This thread takes no signal. It is older than the descriptor by which the agent reads its signals: those that it took, SIGTERM
/// among them, would end the process before it has left.
fn block_signals() {
    // SAFETY: a signal set that is initialised before use; the calls only read it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

impl Lines {
    /// Lines that are written to `to` by a new thread.
    ///
    /// # Errors
    /// When the system has no thread or descriptor for that.
    pub fn to(mut to: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: ArrayQueue::new(WAITING_MAX),
            lost: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_written: AtomicBool::new(false),
            wake: wake::eventfd()?,
        });
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("log".into()).spawn(move || {
            block_signals();
            of_thread.write(&mut to);
        })?;
        Ok(Self(shared))
    }

    fn push(&self, line: Vec<u8>) {
        if self.0.queue.push(line).is_err() {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        }
        wake::ring(&self.0.wake);
    }

    /// The process ends: waits until the lines so far are written, but not for long.
    pub fn finish(&self) {
        self.0.is_over.store(true, Ordering::Release);
        wake::ring(&self.0.wake);
        let began = Instant::now();
        while !self.0.is_written.load(Ordering::Acquire) && began.elapsed() < LAST {
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Shared {
    fn write(&self, to: &mut dyn Write) {
        let (mut minute, mut count) = (Instant::now(), 0);
        loop {
            let is_over = self.is_over.load(Ordering::Acquire);
            while let Some(line) = self.queue.pop() {
                if minute.elapsed() >= Duration::from_secs(60) {
                    (minute, count) = (Instant::now(), 0);
                }
                count += 1;
                if count > OF_A_MINUTE {
                    self.lost.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                // Nobody can be told that standard error is closed.
                let _ = to.write_all(&line);
            }
            if count <= OF_A_MINUTE {
                let lost = self.lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let _ = writeln!(to, "{lost} lines are missing here: there were too many, or nobody read them");
                }
            }
            if is_over {
                let _ = to.flush();
                return self.is_written.store(true, Ordering::Release);
            }
            let mut fds = [rustix::event::PollFd::new(&self.wake, rustix::event::PollFlags::IN)];
            let limit = rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 };
            let _ = rustix::event::poll(&mut fds, Some(&limit));
            wake::drain(&self.wake);
        }
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line { lines: self.clone(), bytes: Vec::new() }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            self.lines.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};

    #[test]
    fn a_line_is_handed_over_though_nobody_reads_and_what_is_missing_is_counted() {
        let (read, write) = io::pipe().unwrap();
        let lines = Lines::to(write).unwrap();
        // More than the pipe and the queue take.
        let text = "x".repeat(1000);
        for _ in 0..3 * WAITING_MAX {
            writeln!(lines.make_writer(), "{text}").unwrap();
        }
        let all = std::thread::spawn(move || {
            let mut all = BufReader::new(read).lines();
            let mut count = 0;
            loop {
                let line = all.next().unwrap().unwrap();
                if line.contains("lines are missing") {
                    return count + line.split(' ').next().unwrap().parse::<usize>().unwrap();
                }
                assert_eq!(line, text);
                count += 1;
            }
        });
        assert_eq!(all.join().unwrap(), 3 * WAITING_MAX);
    }

    #[test]
    fn the_last_lines_are_written_before_the_process_ends() {
        let (mut read, write) = io::pipe().unwrap();
        let lines = Lines::to(write).unwrap();
        (0..100).for_each(|number| writeln!(lines.make_writer(), "{number}").unwrap());
        lines.finish();
        let mut all = String::new();
        read.read_to_string(&mut all).unwrap();
        assert_eq!(all.lines().count(), 100);
    }

    #[test]
    fn the_thread_of_the_log_takes_no_signal() {
        let (read, write) = std::io::pipe().unwrap();
        let lines = Lines::to(write).unwrap();
        writeln!(lines.make_writer(), "it runs").unwrap();
        assert_eq!(BufReader::new(read).lines().next().unwrap().unwrap(), "it runs");
        let blocked = |task: &std::path::Path| {
            let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?.trim().to_owned();
            status.starts_with("Name:\tlog\n").then(|| u64::from_str_radix(&mask, 16).unwrap())
        };
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        let wanted = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP].map(|signal| 1u64 << (signal - 1));
        assert!(tasks.any(|task| blocked(&task).is_some_and(|mask| wanted.iter().all(|bit| mask & bit != 0))));
    }
}
