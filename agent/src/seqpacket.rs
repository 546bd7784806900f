//! The system calls of the control socket: SOCK_SEQPACKET, one message a datagram, descriptors beside it.

use fide_wire::control::MESSAGE_MAX;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: constants only; the result is checked.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) })?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(path: &Path) -> io::Result<libc::sockaddr_un> {
    // SAFETY: sockaddr_un is plain data for which all zeros is valid.
    let mut a: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    a.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= a.sun_path.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("longer than the {} bytes of a socket's path", a.sun_path.len() - 1),
        ));
    }
    for (to, from) in a.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(a)
}

/// Who serves a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// An agent, or what speaks as one.
    Agent,
    /// Something else, or who it is cannot be asked.
    Other,
    /// Nobody: there is no file, or it was left over.
    Nobody,
}

/// Asks who serves a socket by connecting to it.
#[must_use]
pub fn serves(path: &Path) -> Serves {
    let (Ok(fd), Ok(a)) = (socket(), address(path)) else { return Serves::Other };
    // SAFETY: an open socket and an address of the stated length.
    let r = unsafe { libc::connect(fd.as_raw_fd(), (&raw const a).cast(), size_of_val(&a) as libc::socklen_t) };
    match io::Error::last_os_error().raw_os_error() {
        _ if r == 0 => Serves::Agent,
        Some(libc::EAGAIN) => Serves::Agent, // whose queue is full
        Some(libc::ECONNREFUSED | libc::ENOENT) => Serves::Nobody,
        _ => Serves::Other,
    }
}

/// Listens.
///
/// # Errors
/// The system's.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let fd = socket()?;
    let a = address(path)?;
    // SAFETY: an open socket and an address of the stated length.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const a).cast(), size_of_val(&a) as libc::socklen_t) })?;
    // SAFETY: an open, bound socket.
    check(unsafe { libc::listen(fd.as_raw_fd(), 64) })?;
    Ok(fd)
}

/// The next connection; `None` when there is none now.
///
/// # Errors
/// The system's.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    // SAFETY: an open listening socket; no address is asked for.
    let fd = unsafe {
        libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)
    };
    if fd < 0 {
        let e = io::Error::last_os_error();
        return if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) {
            Ok(None)
        } else {
            Err(e)
        };
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// What a socket held.
pub enum Received {
    /// A message of this length; 0 for one that is longer than the buffer, which nobody says.
    Message(usize),
    /// Nothing now.
    Nothing,
    /// It is closed.
    Closed,
}

/// The true length of the next message, of which the buffer has as much as it holds; 0 or less as
/// recv(2) says.
fn take(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> isize {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    for _ in 0..2 {
        // SAFETY: an open socket and a buffer of the stated length.
        let n = unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        // An end that was closed before it had read all is told first, and once: what it had sent
        // before is still to be read.
        if n >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ECONNRESET) {
            return n;
        }
    }
    0
}

/// Reads one message into `buffer`.
#[must_use]
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Received {
    match usize::try_from(take(fd, buffer)) {
        Ok(0) => Received::Closed,
        Ok(n) if n > buffer.len() => Received::Message(0),
        Ok(n) => Received::Message(n),
        Err(_) => match io::Error::last_os_error().kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Received::Nothing,
            _ => Received::Closed,
        },
    }
}

/// Writes one message; `false` when there was no room. That the other end is closed, the next read tells.
#[must_use]
pub fn send_now(fd: BorrowedFd<'_>, message: &[u8]) -> bool {
    // SAFETY: an open socket and a message of the stated length.
    let n =
        unsafe { libc::send(fd.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    n >= 0 || !matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR))
}

/// What a connection had to say.
pub enum Read {
    /// A message. (Descriptors sent by a client are never taken.)
    Message(Vec<u8>),
    /// Longer than [`MESSAGE_MAX`].
    TooLong,
    /// Nothing now.
    Nothing,
    /// It is closed.
    Closed,
}

/// Reads one message.
#[must_use]
pub fn read(fd: BorrowedFd<'_>, buf: &mut Vec<u8>) -> Read {
    buf.resize(MESSAGE_MAX, 0);
    match take(fd, buf) {
        0 => Read::Closed,
        n if n < 0 => match io::Error::last_os_error().kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Read::Nothing,
            _ => Read::Closed,
        },
        n if n as usize > MESSAGE_MAX => Read::TooLong,
        n => Read::Message(buf[..n as usize].to_vec()),
    }
}

/// Sends one message, with at most one descriptor. `Ok(false)`: no room now.
///
/// # Errors
/// The system's; the connection is then of no use any more.
pub fn send(fd: BorrowedFd<'_>, message: &[u8], passed: Option<RawFd>) -> io::Result<bool> {
    let mut part = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    // SAFETY: msghdr is plain data for which all zeros is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    let mut space = [0u64; 4]; // aligned room for one descriptor
    if let Some(passed) = passed {
        header.msg_control = space.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute; the room is larger than CMSG_SPACE(4), checked below.
        let (room, len) = unsafe { (libc::CMSG_SPACE(4) as usize, libc::CMSG_LEN(4) as usize) };
        assert!(room <= size_of_val(&space));
        header.msg_controllen = room;
        // SAFETY: msg_control points to `room` zeroed bytes, so the first header exists and holds one descriptor.
        unsafe {
            let c = libc::CMSG_FIRSTHDR(&raw const header);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = len;
            libc::CMSG_DATA(c).cast::<RawFd>().write_unaligned(passed);
        }
    }
    // SAFETY: an open socket; header points to buffers that live across the call.
    let n = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if n >= 0 {
        return Ok(true);
    }
    let e = io::Error::last_os_error();
    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) || e.raw_os_error() == Some(libc::ENOBUFS) {
        Ok(false)
    } else {
        Err(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd as _, OwnedFd};

    #[test]
    fn what_an_end_sent_before_it_closed_is_read_though_it_left_something_unread() {
        let mut fds = [0; 2];
        // SAFETY: room for two descriptors, which are new and ours alone.
        let [ours, theirs] = unsafe {
            assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, fds.as_mut_ptr()), 0);
            fds.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        assert!(send_now(ours.as_fd(), b"unread"));
        assert!(send_now(theirs.as_fd(), b"one") && send_now(theirs.as_fd(), b"two"));
        drop(theirs);
        let mut buffer = [0; 16];
        assert!(matches!(receive(ours.as_fd(), &mut buffer), Received::Message(3)) && buffer.starts_with(b"one"));
        assert!(matches!(read(ours.as_fd(), &mut Vec::new()), Read::Message(two) if two == b"two"));
        assert!(matches!(receive(ours.as_fd(), &mut buffer), Received::Closed));
    }
}
