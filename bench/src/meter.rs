//! How long the threads of an agent run, and for what.

use crate::sys;
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder};
use std::io;
use std::ops::Sub;
use std::os::fd::OwnedFd;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/softirq.bpf.o"));
/// The agent's thread that hears and sends.
const REAL_TIME: &str = "lane";

/// What an agent has used until a moment, or between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Its real-time thread, without the softirqs that its processor worked on meanwhile.
    pub thread_ns: u64,
    /// Those. 0 where the kernel does not let them be told apart: then they are part of `thread_ns`.
    pub softirq_ns: u64,
    /// How often that thread went to sleep.
    pub sleeps: u64,
    /// Its other threads, as the scheduler counts them.
    pub others_ns: u64,
}

impl Sub for Used {
    type Output = Used;

    /// What was used since. A thread that has ended meanwhile makes nothing negative.
    fn sub(self, before: Used) -> Used {
        Used {
            thread_ns: self.thread_ns.saturating_sub(before.thread_ns),
            softirq_ns: self.softirq_ns.saturating_sub(before.softirq_ns),
            sleeps: self.sleeps.saturating_sub(before.sleeps),
            others_ns: self.others_ns.saturating_sub(before.others_ns),
        }
    }
}

/// Reads what one agent uses.
#[derive(Debug)]
pub struct Meter {
    pid: u32,
    softirqs: Option<Softirqs>,
}

impl Meter {
    /// Of an agent that runs.
    ///
    /// # Errors
    /// When it has no real-time thread.
    pub fn of(pid: u32) -> io::Result<Self> {
        let threads: Vec<u32> = sys::tasks(pid)?.iter().filter(|task| task.name == REAL_TIME).map(|task| task.id).collect();
        if threads.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("process {pid} has no thread {REAL_TIME}")));
        }
        Ok(Self { pid, softirqs: Softirqs::of(threads).ok() })
    }

    /// Whether softirqs are told apart.
    #[must_use]
    pub fn tells_apart(&self) -> bool {
        self.softirqs.is_some()
    }

    /// Until now.
    ///
    /// # Errors
    /// When the agent is gone.
    pub fn read(&self) -> io::Result<Used> {
        let mut used = Used { softirq_ns: self.softirqs.as_ref().map_or(0, Softirqs::sum_ns), ..Used::default() };
        for task in sys::tasks(self.pid)? {
            if task.name == REAL_TIME {
                used.thread_ns += task.ran_ns;
                used.sleeps += task.sleeps;
            } else {
                used.others_ns += task.ran_ns;
            }
        }
        used.thread_ns = used.thread_ns.saturating_sub(used.softirq_ns);
        Ok(used)
    }
}

/// The program of `bpf/softirq.bpf.c`, at work.
#[derive(Debug)]
struct Softirqs {
    threads: Vec<u32>,
    sums: MapHandle,
    _links: Vec<Link>,
    _object: Object,
}

impl Softirqs {
    fn of(threads: Vec<u32>) -> libbpf_rs::Result<Self> {
        let object = ObjectBuilder::default().open_memory(OBJECT)?.load()?;
        let found = object.maps().find(|map| map.name() == "softirq_ns");
        let sums = MapHandle::try_from(&found.ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))?)?;
        threads.iter().try_for_each(|thread| sums.update(&thread.to_ne_bytes(), &[0; 8], MapFlags::ANY))?;
        let links = object.progs_mut().map(|program| program.attach()).collect::<libbpf_rs::Result<_>>()?;
        Ok(Self { threads, sums, _links: links, _object: object })
    }

    fn sum_ns(&self) -> u64 {
        let of = |thread: &u32| {
            let value = self.sums.lookup(&thread.to_ne_bytes(), MapFlags::ANY).ok()??;
            value.try_into().ok().map(u64::from_ne_bytes)
        };
        self.threads.iter().filter_map(of).sum()
    }
}

/// How often the receive programs of all agents of this machine ran, and for how long. The kernel counts while this lives.
#[derive(Debug)]
pub struct Receiving {
    _open: OwnedFd,
}

impl Receiving {
    /// From now on.
    ///
    /// # Errors
    /// Before Linux 5.8, or without the permission.
    pub fn count() -> io::Result<Self> {
        Ok(Self { _open: sys::enable_bpf_stats()? })
    }

    /// Runs and nanoseconds until now.
    #[must_use]
    pub fn read(&self) -> (u64, u64) {
        let ours = ProgInfoIter::default().filter(|program| program.name == "fide_receive");
        ours.fold((0, 0), |(runs, ns), program| (runs + program.run_cnt, ns + program.run_time_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_between_two_moments_is_never_negative() {
        let before = Used { thread_ns: 10, softirq_ns: 4, sleeps: 2, others_ns: 9 };
        let after = Used { thread_ns: 25, softirq_ns: 4, sleeps: 5, others_ns: 3 };
        assert_eq!(after - before, Used { thread_ns: 15, softirq_ns: 0, sleeps: 3, others_ns: 0 });
    }

    #[test]
    fn a_process_without_that_thread_is_refused_by_name() {
        let refused = Meter::of(std::process::id()).unwrap_err();
        assert!(refused.to_string().contains("lane"), "{refused}");
    }
}
