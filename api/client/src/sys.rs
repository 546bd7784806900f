//! The system calls that the standard library has no words for: packet sockets that carry descriptors, and epoll.

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::time::{ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Most descriptors taken from one message; the kernel closes any more.
pub const FDS_MAX: usize = 4;

/// Until it was not interrupted.
fn whole<T>(mut call: impl FnMut() -> Result<T, Errno>) -> io::Result<T> {
    Ok(rustix::io::retry_on_intr(&mut call)?)
}

/// Connects a SOCK_SEQPACKET socket. `timeout` bounds the wait for a place in the listener's queue, and later each send.
pub fn connect(path: &Path, timeout: Duration) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // What is longer than the kernel's time_t is no limit.
    sockopt::set_socket_timeout(&fd, Timeout::Send, Some(timeout.min(Duration::from_secs(1 << 40))))?;
    if path.as_os_str().is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let address = SocketAddrUnix::new(path).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    whole(|| rustix::net::connect(&fd, &address))?;
    Ok(fd)
}

/// Sends one message; never raises SIGPIPE.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    // A packet socket sends all or nothing.
    let sent = whole(|| rustix::net::send(fd, bytes, SendFlags::NOSIGNAL))?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// One received message.
#[derive(Debug)]
pub struct Received {
    /// Bytes of it that are in the buffer; 0 when the other side hung up.
    pub len: usize,
    /// It was longer than the buffer, or carried more descriptors than [`FDS_MAX`].
    pub truncated: bool,
    /// The descriptors it carried, closed on exec.
    pub fds: Vec<OwnedFd>,
}

/// Receives one message if there is one now; `WouldBlock` otherwise.
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    /// Room for as many descriptors and no more: aligned, so that none of it is padding.
    #[repr(align(8))]
    struct Room([MaybeUninit<u8>; rustix::cmsg_aligned_space!(ScmRights(FDS_MAX))]);

    let mut room = Room([MaybeUninit::uninit(); rustix::cmsg_aligned_space!(ScmRights(FDS_MAX))]);
    let mut beside = RecvAncillaryBuffer::new(&mut room.0);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = whole(|| rustix::net::recvmsg(fd, &mut parts, &mut beside, flags))?;
    let mut fds = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(Received { len: got.bytes, truncated: got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC), fds })
}

/// Ends both directions of a socket; the other side sees it hang up.
pub fn shutdown(fd: BorrowedFd<'_>) {
    let _ = rustix::net::shutdown(fd, Shutdown::Both); // it fails only when the socket is down already
}

/// What is left until `deadline`; `None` for no deadline.
fn left(deadline: Option<Instant>) -> Option<Timespec> {
    deadline.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
    })
}

/// The deadline that a timeout means; `None` for one too far away to matter.
pub fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|t| Instant::now().checked_add(t))
}

/// Waits until `fd` can be read or has hung up; `false` when the deadline passes first.
pub fn wait_readable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<bool> {
    wait_for(fd, PollFlags::IN, deadline)
}

/// Waits until `fd` can be written or has hung up; `false` when the deadline passes first.
pub fn wait_writable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<bool> {
    wait_for(fd, PollFlags::OUT, deadline)
}

fn wait_for(fd: BorrowedFd<'_>, events: PollFlags, deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(fd, events)];
        match whole(|| rustix::event::poll(&mut fds, left(deadline).as_ref()))? {
            0 if deadline.is_some_and(|d| Instant::now() >= d) => return Ok(false),
            0 => {}
            _ => return Ok(true),
        }
    }
}

/// Something an application's event loop can wait on: readable when any of the added descriptors is.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Waits for `fd` too: to be readable, or with `hang_up_only` to hang up. `mark` is what [`Poller::wait`] returns for it.
    pub fn add(&self, fd: BorrowedFd<'_>, mark: u64, hang_up_only: bool) -> io::Result<()> {
        // Hanging up is reported whether asked for or not.
        let events = if hang_up_only { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        Ok(epoll::add(&self.0, fd, epoll::EventData::new_u64(mark), events)?)
    }

    /// No longer waits for `fd`. Closing it would not do: the agent holds the same open file, which keeps it in the set.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.0, fd); // it fails only for what was never added
    }

    /// The marks of what is ready (one entry each, at most two), empty once the deadline has passed.
    pub fn wait(&self, deadline: Option<Instant>) -> io::Result<impl Iterator<Item = u64> + use<>> {
        let mut ready = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
        loop {
            match whole(|| epoll::wait(&self.0, &mut ready, left(deadline).as_ref()))? {
                0 if deadline.is_none_or(|d| Instant::now() < d) => {}
                n => return Ok(ready.into_iter().take(n).map(|event| event.data.u64())),
            }
        }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that is readable from a moment on.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// One that never is.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Readable from then on; `None`: not at all.
    pub fn set(&self, at: Option<Instant>) -> io::Result<()> {
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A time that has passed is a nanosecond from now: zero would mean never.
        let soon = Timespec { tv_sec: 0, tv_nsec: 1 };
        let it_value = left(at).map_or(never, |left| if left == never { soon } else { left });
        rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: never, it_value })?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// CLOCK_MONOTONIC, nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sends all of it on a connected socket, waiting up to `deadline` for room (`TimedOut`). A datagram goes whole or not at all; of a stream `bytes` is what
/// is left.
pub fn send_all(fd: BorrowedFd<'_>, bytes: &mut &[u8], deadline: Instant) -> io::Result<()> {
    // What became of earlier datagrams (ICMP said that nobody listens, or that there is no way) is told by the next call, which then sends nothing: one may have
    // been waiting before the first call, and one may come before the second.
    let mut of_earlier = 2;
    loop {
        let sent = rustix::net::send(fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map_err(io::Error::from);
        match sent {
            Ok(n) if n >= bytes.len() => return Ok(()),
            Ok(n) => *bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if of_earlier > 0 && is_told_later(&e) && is_datagram(fd)? => of_earlier -= 1,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if !wait_writable(fd, Some(deadline))? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(e) => return Err(e),
        }
    }
}

/// Whether a call may report it of an earlier datagram.
fn is_told_later(e: &io::Error) -> bool {
    // All that ICMP and ICMPv6 are turned into.
    let told = [
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::EPROTO,
        libc::EACCES,
        libc::ENOPROTOOPT,
        libc::EOPNOTSUPP,
    ];
    e.raw_os_error().is_some_and(|errno| told.contains(&errno))
}

fn is_datagram(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(sockopt::socket_type(fd)? == SocketType::DGRAM)
}

/// Whether packets of this socket leave by interfaces.
pub fn is_internet(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(matches!(sockopt::socket_domain(fd)?, AddressFamily::INET | AddressFamily::INET6 | AddressFamily::PACKET))
}

/// Whether it is a TCP socket whose connection is not made yet.
pub fn is_connecting(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // linux/tcp_states.h; the state is the first byte of struct tcp_info.
    const SYN_SENT: u8 = 2;
    const SYN_RECV: u8 = 3;
    let mut state = 0u8;
    let mut len = 1 as libc::socklen_t;
    // SAFETY: room for `len` bytes, and the length, which both live through the call.
    let asked =
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &raw mut len) };
    if asked == 0 {
        return Ok(matches!(state, SYN_SENT | SYN_RECV));
    }
    let e = io::Error::last_os_error();
    // Another protocol.
    if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT)) { Ok(false) } else { Err(e) }
}

/// SIOCOUTQ: memory of a datagram socket's packets that the driver has not freed, or bytes of a stream that are not acknowledged.
pub fn unsent(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(bytes.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};
    use std::io::IoSlice;

    /// What a datagram meets on its way is told by a later call; what this host itself refuses now is not sent again.
    #[test]
    fn what_routers_say_is_of_an_earlier_datagram_and_what_this_host_says_is_not() {
        let is_told = |errno| is_told_later(&io::Error::from_raw_os_error(errno));
        for errno in [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::EHOSTDOWN, libc::ENONET, libc::EPROTO, libc::EACCES] {
            assert!(is_told(errno), "{errno}");
        }
        for errno in [libc::EPERM, libc::ENOBUFS, libc::EMSGSIZE, libc::EAGAIN] {
            assert!(!is_told(errno), "{errno}");
        }
    }
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn received_descriptors_are_closed_on_exec_and_those_too_many_are_not_kept() {
        for (sent, kept) in [(1, 1), (FDS_MAX, FDS_MAX), (FDS_MAX + 2, FDS_MAX)] {
            let (ours, theirs) = UnixDatagram::pair().unwrap();
            let rights = vec![theirs.as_fd(); sent];
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX + 2))];
            let mut beside = SendAncillaryBuffer::new(&mut room);
            assert!(beside.push(SendAncillaryMessage::ScmRights(&rights)));
            let flags = SendFlags::empty();
            assert_eq!(rustix::net::sendmsg(&theirs, &[IoSlice::new(b"x")], &mut beside, flags).unwrap(), 1);
            let got = receive(ours.as_fd(), &mut [0; 8]).unwrap();
            assert_eq!((got.len, got.fds.len(), got.truncated), (1, kept, sent > kept));
            for fd in &got.fds {
                assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
            }
        }
    }

    #[test]
    fn a_message_longer_than_the_buffer_is_marked() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.send(b"123456789").unwrap();
        let got = receive(ours.as_fd(), &mut [0; 8]).unwrap();
        assert_eq!((got.len, got.truncated), (8, true));
        assert_eq!(receive(ours.as_fd(), &mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn sending_to_nobody_is_an_error_and_no_signal() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        drop(theirs);
        assert!(send(ours.as_fd(), b"x").is_err());
    }

    #[test]
    fn waits_are_not_cut_short_and_end() {
        assert_eq!(left(None), None);
        assert_eq!(left(deadline(Some(Duration::ZERO))), Some(Timespec { tv_sec: 0, tv_nsec: 0 }));
        assert_eq!(deadline(Some(Duration::MAX)), None);
        let start = Instant::now();
        let (ours, _theirs) = UnixDatagram::pair().unwrap();
        let wait = Duration::from_micros(1500);
        assert!(!wait_readable(ours.as_fd(), deadline(Some(wait))).unwrap());
        assert!(start.elapsed() >= wait);
    }
}
