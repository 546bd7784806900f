//! Waking another thread by an eventfd.

use rustix::event::EventfdFlags;
use std::io;
use std::os::fd::OwnedFd;

/// Adds one to an eventfd.
pub fn ring(fd: &OwnedFd) {
    // Failing means that it is at its maximum, hence readable already.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// An eventfd that never blocks.
///
/// # Errors
/// When the system has no more descriptors.
pub fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes an eventfd unreadable again.
pub fn drain(fd: &OwnedFd) {
    // Failing means that it is not readable.
    let _ = rustix::io::read(fd, &mut [0u8; 8]);
}
