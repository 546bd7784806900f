//! The clock of every stamp in this agent.

use std::time::{SystemTime, UNIX_EPOCH};

/// This host's CLOCK_MONOTONIC, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a timespec to fill; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// For how long the calling thread has had a processor.
#[must_use]
pub fn thread_ran() -> std::time::Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a timespec to fill; CLOCK_THREAD_CPUTIME_ID always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    std::time::Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// What the clock on the wall showed when this host's CLOCK_MONOTONIC began, in nanoseconds since 1970, as far as the two agree now.
#[must_use]
pub fn booted_wall_ns() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
    wall.saturating_sub(now_ns())
}
