//! The system calls about the calling thread, its process and its processor: wrapped, undecided.

use std::io;
use std::mem::{size_of, zeroed};

fn check(ret: i32) -> io::Result<i32> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// SCHED_FIFO at this priority for the calling thread; what it starts afterwards is ordinary again.
pub(crate) fn set_fifo(priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: pid 0 is the calling thread; `param` is readable.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const param) }).map(drop)
}

/// Locks all memory of the process, each page from its first use on.
pub(crate) fn lock_memory() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) }).map(drop)
}

/// The limit on locked memory in bytes; `None` when there is none.
pub(crate) fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    let ret = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (ret == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The highest real-time priority that this process may take without CAP_SYS_NICE; `None`: none is known.
pub(crate) fn rtprio_limit() -> Option<i32> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    let ret = unsafe { libc::getrlimit(libc::RLIMIT_RTPRIO, &raw mut limit) };
    (ret == 0).then(|| i32::try_from(limit.rlim_cur).unwrap_or(99))
}

/// Timers of this thread may be late by this much.
pub(crate) fn set_timer_slack(ns: u64) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns as libc::c_ulong, 0, 0, 0) }).map(drop)
}

/// The process gets no transparent huge pages from now on.
pub(crate) fn disable_huge_pages() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1 as libc::c_ulong, 0, 0, 0) }).map(drop)
}

/// Touches the stack that the thread will use, so that it need not be faulted in later.
#[inline(never)]
pub(crate) fn touch_stack() {
    let mut stack = [0u8; 128 * 1024];
    for page in stack.chunks_mut(4096) {
        page[0] = std::hint::black_box(1);
    }
    std::hint::black_box(&stack);
}

/// The processor that the thread is on.
pub(crate) fn current_cpu() -> usize {
    // SAFETY: no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// The processors that the thread may run on.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    // SAFETY: cpu_set_t is plain old data; the call writes at most its size.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize).filter(|c| libc::CPU_ISSET(*c, &set)).collect()
    }
}

/// Confines the thread to these processors.
pub(crate) fn set_allowed_cpus(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: cpu_set_t is plain old data; CPU_SET stays within it (filtered), and the call reads its size.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        for cpu in cpus.iter().filter(|c| **c < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(*cpu, &mut set);
        }
        check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)).map(drop)
    }
}

/// Sleeps until this moment of CLOCK_MONOTONIC.
pub(crate) fn sleep_until(ns: u64) {
    let at = libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
    // SAFETY: `at` is readable, no remainder is asked for. A signal ends the sleep early, which the caller sees from the clock.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const at, std::ptr::null_mut()) };
}

/// What the thread suffered so far: involuntary context switches, minor and major page faults.
pub(crate) fn usage() -> (u64, u64, u64) {
    // SAFETY: rusage is plain old data; the call writes one.
    let u = unsafe {
        let mut u: libc::rusage = zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut u);
        u
    };
    (u.ru_nivcsw as u64, u.ru_minflt as u64, u.ru_majflt as u64)
}
