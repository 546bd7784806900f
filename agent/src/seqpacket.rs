//! The system calls of the control socket: SOCK_SEQPACKET, one message a datagram, descriptors beside it.

use fide_wire::control::MESSAGE_MAX;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

/// Bytes of a socket's path, and the zero behind it.
const PATH_MAX: usize = 108;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|e| match e {
        Errno::NAMETOOLONG => {
            io::Error::new(io::ErrorKind::InvalidInput, format!("longer than the {} bytes of a socket's path", PATH_MAX - 1))
        }
        e => e.into(),
    })
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
    let (Ok(fd), Ok(address)) = (socket(), address(path)) else { return Serves::Other };
    match rustix::net::connect(&fd, &address) {
        Ok(()) => Serves::Agent,
        Err(Errno::AGAIN) => Serves::Agent, // whose queue is full
        Err(Errno::CONNREFUSED | Errno::NOENT) => Serves::Nobody,
        Err(_) => Serves::Other,
    }
}

/// Listens.
///
/// # Errors
/// The system's.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let fd = socket()?;
    rustix::net::bind(&fd, &address(path)?)?;
    rustix::net::listen(&fd, 64)?;
    Ok(fd)
}

/// The next connection; `None` when there is none now.
///
/// # Errors
/// The system's.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(e) => Err(e.into()),
    }
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

/// The true length of the next message, of which the buffer has as much as it holds; 0 at the end.
fn take(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    for _ in 0..2 {
        match rustix::net::recv(fd, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            // An end that was closed before it had read all is told first, and once: what it had
            // sent before is still to be read.
            Err(Errno::CONNRESET) => {}
            taken => return taken.map(|(_, len)| len),
        }
    }
    Ok(0)
}

/// Reads one message into `buffer`.
#[must_use]
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Received {
    match take(fd, buffer) {
        Ok(0) => Received::Closed,
        Ok(n) if n > buffer.len() => Received::Message(0),
        Ok(n) => Received::Message(n),
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::Closed,
    }
}

/// Why a message was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// There was no room now.
    Full,
    /// The other end reads no more. What it had sent before may still be read.
    Closed,
    /// The socket is of no use, or this message is of none on it.
    Failed,
}

/// Writes one message.
///
/// # Errors
/// When nothing of it was written.
pub fn send_now(fd: BorrowedFd<'_>, message: &[u8]) -> Result<(), Unsent> {
    match rustix::net::send(fd, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(_) => Ok(()),
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Err(Unsent::Full),
        Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::CONNREFUSED) => Err(Unsent::Closed),
        Err(_) => Err(Unsent::Failed),
    }
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
        Ok(0) => Read::Closed,
        Ok(n) if n > MESSAGE_MAX => Read::TooLong,
        Ok(n) => Read::Message(buf[..n].to_vec()),
        Err(Errno::AGAIN | Errno::INTR) => Read::Nothing,
        Err(_) => Read::Closed,
    }
}

/// Sends one message, with at most one descriptor. `Ok(false)`: no room now.
///
/// # Errors
/// The system's; the connection is then of no use any more.
pub fn send(fd: BorrowedFd<'_>, message: &[u8], passed: Option<BorrowedFd<'_>>) -> io::Result<bool> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    let passed = passed.as_slice();
    let is_beside = passed.is_empty() || beside.push(SendAncillaryMessage::ScmRights(passed));
    debug_assert!(is_beside, "there is room for one");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(fd, &[IoSlice::new(message)], &mut beside, flags) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn what_an_end_sent_before_it_closed_is_read_though_it_left_something_unread() {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::empty(), None).unwrap();
        assert_eq!(send_now(ours.as_fd(), b"unread"), Ok(()));
        assert_eq!((send_now(theirs.as_fd(), b"one"), send_now(theirs.as_fd(), b"two")), (Ok(()), Ok(())));
        drop(theirs);
        assert_eq!(send_now(ours.as_fd(), b"to nobody"), Err(Unsent::Closed));
        let mut buffer = [0; 16];
        assert!(matches!(receive(ours.as_fd(), &mut buffer), Received::Message(3)) && buffer.starts_with(b"one"));
        assert!(matches!(read(ours.as_fd(), &mut Vec::new()), Read::Message(two) if two == b"two"));
        assert!(matches!(receive(ours.as_fd(), &mut buffer), Received::Closed));
    }
}
