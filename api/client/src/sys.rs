//! The system calls that the standard library has no words for: packet sockets that carry descriptors, and epoll.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most descriptors taken from one message; the kernel closes any more.
pub const FDS_MAX: usize = 4;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Takes ownership of a descriptor that a system call has just returned.
///
/// # Safety
/// `fd` is open and nobody else owns it.
unsafe fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: promised by the caller.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Connects a SOCK_SEQPACKET socket. `timeout` bounds the wait for a place in the listener's queue, and later each send.
pub fn connect(path: &Path, timeout: Duration) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: just opened.
    let fd = unsafe { own(fd) };
    let time = libc::timeval {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_usec: timeout.subsec_micros().into(),
    };
    // SAFETY: `time` lives through the call and its size is given.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            (&raw const time).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        )
    })?;
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = path.as_os_str().as_bytes();
    // One byte stays zero and ends the name.
    if name.is_empty() || name.len() >= address.sun_path.len() || name.contains(&0) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    loop {
        // SAFETY: `address` lives through the call and its size is given.
        let connected = check(unsafe {
            libc::connect(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_un>() as libc::socklen_t)
        });
        match connected {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(_) => return Ok(fd),
        }
    }
}

/// Sends one message; never raises SIGPIPE.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    loop {
        // SAFETY: the buffer is valid for its length.
        let sent = check_len(unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) });
        match sent {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(n) if n == bytes.len() => return Ok(()),
            // A packet socket sends all or nothing.
            Ok(_) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
        }
    }
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
    /// Room for one SCM_RIGHTS message, aligned as its header wants.
    #[repr(C, align(8))]
    struct Control([MaybeUninit<u8>; 64]);
    // SAFETY: only computes a size.
    const NEEDED: usize = unsafe { libc::CMSG_SPACE((FDS_MAX * size_of::<RawFd>()) as u32) } as usize;
    const _: () = assert!(NEEDED <= size_of::<Control>());

    let mut control = Control([MaybeUninit::uninit(); 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = NEEDED as _;
    let len = loop {
        // SAFETY: `message` points at a buffer and a control area that outlive the call, with their true sizes.
        let got =
            check_len(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) });
        match got {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(n) => break n,
        }
    };
    let mut fds = Vec::new();
    // SAFETY: `message` was filled in by the kernel; the macros stay within msg_controllen, which it set.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: not null, so a whole header lies within the control area.
        let (level, kind, size) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len as usize) };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: only computes a size.
            let count = size.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize) / size_of::<RawFd>();
            for i in 0..count {
                // SAFETY: the kernel wrote `count` descriptors after the header; they were opened for this process just now.
                fds.push(unsafe { own(libc::CMSG_DATA(header).cast::<RawFd>().add(i).read_unaligned()) });
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok(Received { len, truncated: message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0, fds })
}

/// Ends both directions of a socket; the other side sees it hang up.
pub fn shutdown(fd: BorrowedFd<'_>) {
    // SAFETY: no pointers. It fails only when the socket is down already.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// What is left until `deadline` in the milliseconds of poll(2), rounded up; -1 for no deadline.
fn left_ms(deadline: Option<Instant>) -> libc::c_int {
    deadline.map_or(-1, |at| {
        let left = at.saturating_duration_since(Instant::now());
        left.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(libc::c_int::MAX)
    })
}

/// The deadline that a timeout means; `None` for one too far away to matter.
pub fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|t| Instant::now().checked_add(t))
}

/// Waits until `fd` can be read or has hung up; `false` when the deadline passes first.
pub fn wait_readable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<bool> {
    wait_for(fd, libc::POLLIN, deadline)
}

/// Waits until `fd` can be written or has hung up; `false` when the deadline passes first.
pub fn wait_writable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<bool> {
    wait_for(fd, libc::POLLOUT, deadline)
}

fn wait_for(fd: BorrowedFd<'_>, events: libc::c_short, deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        // SAFETY: one pollfd, alive through the call.
        match check(unsafe { libc::poll(&raw mut poll, 1, left_ms(deadline)) }) {
            Ok(0) if deadline.is_some_and(|d| Instant::now() >= d) => return Ok(false),
            Ok(0) => {}
            Ok(_) => return Ok(true),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Something an application's event loop can wait on: readable when any of the added descriptors is.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: just opened.
        Ok(Self(unsafe { own(fd) }))
    }

    /// Waits for `fd` too: to be readable, or with `hang_up_only` to hang up. `mark` is what [`Poller::wait`] returns for it.
    pub fn add(&self, fd: BorrowedFd<'_>, mark: u64, hang_up_only: bool) -> io::Result<()> {
        // Hanging up is reported whether asked for or not.
        let mut event = libc::epoll_event { events: if hang_up_only { 0 } else { libc::EPOLLIN as u32 }, u64: mark };
        // SAFETY: `event` lives through the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) })?;
        Ok(())
    }

    /// No longer waits for `fd`. Closing it would not do: the agent holds the same open file, which keeps it in the set.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // SAFETY: no event is needed to remove. It fails only for what was never added.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), std::ptr::null_mut()) };
    }

    /// The marks of what is ready (one entry each, at most two), empty once the deadline has passed.
    pub fn wait(&self, deadline: Option<Instant>) -> io::Result<impl Iterator<Item = u64> + use<>> {
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; 2];
        loop {
            // SAFETY: room for two events, alive through the call.
            let waited = check(unsafe { libc::epoll_wait(self.0.as_raw_fd(), ready.as_mut_ptr(), 2, left_ms(deadline)) });
            match waited {
                Ok(0) if deadline.is_none_or(|d| Instant::now() < d) => {}
                Ok(n) => return Ok(ready.into_iter().take(n as usize).map(|e| e.u64)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
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
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })?;
        // SAFETY: just opened.
        Ok(Self(unsafe { own(fd) }))
    }

    /// Readable from then on; `None`: not at all.
    pub fn set(&self, at: Option<Instant>) -> io::Result<()> {
        // A time that has passed is a nanosecond from now: zero would mean never.
        let left = at.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1)));
        // SAFETY: all-zero is a valid itimerspec: never.
        let mut when: libc::itimerspec = unsafe { std::mem::zeroed() };
        when.it_value.tv_sec = left.as_secs().try_into().unwrap_or(libc::time_t::MAX);
        when.it_value.tv_nsec = left.subsec_nanos().into();
        // SAFETY: `when` lives through the call, and no old value is asked for.
        check(unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const when, std::ptr::null_mut()) })?;
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
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` lives through the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sends all of it on a connected socket, waiting up to `deadline` for room (`TimedOut`). A datagram goes whole or not at all; of a stream `bytes` is what
/// is left.
pub fn send_all(fd: BorrowedFd<'_>, bytes: &mut &[u8], deadline: Instant) -> io::Result<()> {
    // What became of earlier datagrams (ICMP said that nobody listens, or that there is no way) is told by the next call, which then sends nothing: one may have
    // been waiting before the first call, and one may come before the second.
    let mut of_earlier = 2;
    loop {
        // SAFETY: the buffer is valid for its length.
        let sent = check_len(unsafe {
            libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
        });
        match sent {
            Ok(n) if n >= bytes.len() => return Ok(()),
            Ok(n) => *bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if of_earlier > 0 && is_told_later(&e) && is_datagram(fd)? => of_earlier -= 1,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let mut wait = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
                let ms = i32::try_from(left.as_millis().max(1)).unwrap_or(i32::MAX);
                // SAFETY: one pollfd that lives through the call. Whatever it says, the next send says more.
                unsafe { libc::poll(&raw mut wait, 1, ms) };
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
    let mut kind: libc::c_int = 0;
    let mut len = size_of_val(&kind) as libc::socklen_t;
    // SAFETY: room for `len` bytes, and the length, which both live through the call.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut len) })?;
    Ok(kind == libc::SOCK_DGRAM)
}

/// Whether packets of this socket leave by interfaces.
pub fn is_internet(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut domain: libc::c_int = 0;
    let mut len = size_of_val(&domain) as libc::socklen_t;
    // SAFETY: room for `len` bytes, and the length, which both live through the call.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &raw mut len)
    })?;
    Ok(matches!(domain, libc::AF_INET | libc::AF_INET6 | libc::AF_PACKET))
}

/// Whether it is a TCP socket whose connection is not made yet.
pub fn is_connecting(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // linux/tcp_states.h; the state is the first byte of struct tcp_info.
    const SYN_SENT: u8 = 2;
    const SYN_RECV: u8 = 3;
    let mut state = 0u8;
    let mut len = 1 as libc::socklen_t;
    // SAFETY: room for `len` bytes, and the length, which both live through the call.
    let asked = check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &raw mut len)
    });
    match asked {
        Ok(_) => Ok(matches!(state, SYN_SENT | SYN_RECV)),
        // Another protocol.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// SIOCOUTQ: memory of a datagram socket's packets that the driver has not freed, or bytes of a stream that are not acknowledged.
pub fn unsent(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(bytes.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let raw = vec![theirs.as_raw_fd(); sent];
            let mut control = [0_u64; 16];
            let mut part = libc::iovec { iov_base: c"x".as_ptr().cast_mut().cast(), iov_len: 1 };
            // SAFETY: the control area has room for the descriptors; everything lives through the call.
            unsafe {
                let size = (sent * size_of::<RawFd>()) as u32;
                let mut message: libc::msghdr = std::mem::zeroed();
                message.msg_iov = &raw mut part;
                message.msg_iovlen = 1;
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(size) as _;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size) as _;
                std::ptr::copy_nonoverlapping(raw.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), size as usize);
                assert_eq!(libc::sendmsg(theirs.as_raw_fd(), &raw const message, 0), 1);
            }
            let got = receive(ours.as_fd(), &mut [0; 8]).unwrap();
            assert_eq!((got.len, got.fds.len(), got.truncated), (1, kept, sent > kept));
            for fd in &got.fds {
                // SAFETY: no pointers.
                let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
                assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
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
    fn waits_are_rounded_up_and_end() {
        assert_eq!(left_ms(None), -1);
        assert_eq!(left_ms(deadline(Some(Duration::ZERO))), 0);
        assert_eq!(left_ms(Instant::now().checked_add(Duration::from_secs(u32::MAX.into()))), libc::c_int::MAX);
        assert_eq!(deadline(Some(Duration::MAX)), None);
        let start = Instant::now();
        let (ours, _theirs) = UnixDatagram::pair().unwrap();
        let wait = Duration::from_micros(1500);
        assert!(!wait_readable(ours.as_fd(), deadline(Some(wait))).unwrap());
        assert!(start.elapsed() >= wait);
    }
}
