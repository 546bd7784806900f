//! Waking another thread by an eventfd.

use std::os::fd::{AsRawFd, OwnedFd};

/// Adds one to an eventfd.
pub fn ring(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: an open eventfd and eight bytes. Failing means that it is at its maximum, hence readable already.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}
