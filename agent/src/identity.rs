//! Which process a connection was opened by. Its number alone does not say: when that process has ended, the number may be another's, while a child
//! goes on using the connection. So the process itself is held on to, by a pidfd, from the moment the connection is accepted, and looked at again
//! whenever something is done to it, or in its name.

use crate::access::Peer;
use crate::select::{Resolver, Target};
use fide_wire::control::{ErrorCode, Refused};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The process that opened a connection.
#[derive(Debug)]
pub struct Identity {
    pid: u32,
    start_ticks: u64,
    fd: OwnedFd,
}

impl Identity {
    /// Of the process at the other end of a connected Unix socket; `None` where it cannot be seen, or has ended already.
    #[must_use]
    pub fn of(socket: BorrowedFd<'_>, peer: &Peer, resolver: &Resolver) -> Option<Self> {
        let pid = peer.pid?;
        let (fd, by_kernel) = match peer_pidfd(socket) {
            Ok(fd) => (fd, true),
            Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => (pidfd_of(pid)?, false),
            Err(_) => return None, // it is gone
        };
        let target = resolver.target(pid).ok()?;
        // What was read of this number is of the process that is held on to if that one lives afterwards.
        if has_ended(&fd) {
            return None;
        }
        // A kernel that does not say which process connected (before Linux 6.5) says at least whose it was.
        (by_kernel || target.uid == peer.uid).then_some(Self { pid, start_ticks: target.start_ticks, fd })
    }

    /// What this process is now.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] when it has ended, whatever has its number now.
    pub fn target(&self, resolver: &Resolver) -> Result<Target, Refused> {
        let target = resolver.target(self.pid);
        match target {
            Ok(target) if target.start_ticks == self.start_ticks && !has_ended(&self.fd) => Ok(target),
            _ => Err(ended(self.pid)),
        }
    }
}

/// The refusal of what is asked in the name of a process that is no more.
#[must_use]
pub fn ended(pid: u32) -> Refused {
    let what = format!(
        "process {pid}, which opened this connection, has ended: whoever uses it now must connect anew, to be known by itself"
    );
    Refused { code: ErrorCode::NotFound, what }
}

/// The process that connected, as the kernel remembers it (from Linux 6.5 on).
fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// asm-generic/socket.h.
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: RawFd = -1;
    let mut len = size_of_val(&fd) as libc::socklen_t;
    // SAFETY: `fd` is writable for `len` bytes, and `len` is its size.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut len) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made by the kernel, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The process that has this number now.
fn pidfd_of(pid: u32) -> Option<OwnedFd> {
    // SAFETY: a number; the call returns a descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: just made by the kernel, and nobody else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Whether the process behind a pidfd has ended, all its threads with it.
fn has_ended(fd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one struct with an open descriptor; returns at once.
    unsafe { libc::poll(&raw mut poll, 1, 0) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    #[test]
    fn a_connection_is_its_process_until_that_ends() {
        let resolver = Resolver::default();
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = Peer::of(a.as_fd()).unwrap();
        let own = Identity::of(a.as_fd(), &peer, &resolver).unwrap();
        assert_eq!(own.target(&resolver).unwrap().pid, std::process::id());
        // Of another process of that number, the start would differ.
        let other = Identity { start_ticks: own.start_ticks + 1, ..own };
        assert!(other.target(&resolver).unwrap_err().what.contains("has ended"));

        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let start_ticks = resolver.target(pid).unwrap().start_ticks;
        let of_child = Identity { pid, start_ticks, fd: pidfd_of(pid).unwrap() };
        assert_eq!(of_child.target(&resolver).unwrap().pid, pid);
        child.kill().unwrap();
        child.wait().unwrap();
        let refused = of_child.target(&resolver).unwrap_err();
        assert!(refused.code == ErrorCode::NotFound && refused.what.contains("connect anew"), "{refused}");
        // Who has ended before its connection is accepted is nobody.
        assert!(Identity::of(a.as_fd(), &Peer { pid: Some(pid), ..peer }, &resolver).is_none());
    }
}
