//! Waking another thread by an eventfd.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Adds one to an eventfd.
pub fn ring(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: an open eventfd and eight bytes. Failing means that it is at its maximum, hence readable already.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// An eventfd that never blocks.
///
/// # Errors
/// When the system has no more descriptors.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: eventfd has no preconditions.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just made and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes an eventfd unreadable again.
pub fn drain(fd: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: an open, non-blocking eventfd and eight bytes to fill. Failing means that it is not readable.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
}
