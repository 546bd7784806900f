//! TCP sockets as the kernel lists and ends them (sock_diag(7)): what `ss` and `ss -K` use.
//!
//! Only sockets of one network namespace are seen at a time: see [`Diag::elsewhere`].

use crate::links::{attributes, bytes};
use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Families of sockets. One of IPv6 may be connected by IPv4.
pub const IPV4: u8 = libc::AF_INET as u8;
/// As there.
pub const IPV6: u8 = libc::AF_INET6 as u8;

/// One connection, as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// `AF_INET` or `AF_INET6`.
    pub family: u8,
    /// One of the states below.
    pub state: u8,
    /// What tells it from all others, its cookie included (`struct inet_diag_sockid`).
    pub id: [u8; ID],
    /// Bytes that were not acknowledged; a SYN and a FIN are one each. Of a listening socket, how
    /// long its queue may be.
    pub waiting: u32,
    /// Who made it.
    pub uid: u32,
    /// 0: no process holds it.
    pub inode: u32,
    /// Where it was made; unknown before Linux 5.8.
    pub cgroup: Option<u64>,
}

/// Of include/net/tcp_states.h, as all of these.
pub const ESTABLISHED: u8 = 1;
/// As there.
pub const SYN_SENT: u8 = 2;
/// As there.
pub const SYN_RECV: u8 = 3;
/// As there.
pub const FIN_WAIT1: u8 = 4;
/// As there.
pub const CLOSE_WAIT: u8 = 8;
/// As there.
pub const LAST_ACK: u8 = 9;
/// As there.
pub const LISTEN: u8 = 10;
/// As there.
pub const CLOSING: u8 = 11;
/// The netlink port of the kernel.
const KERNEL: u32 = 0;
const HEADER: usize = 16;
/// Bytes of `struct inet_diag_sockid`.
pub const ID: usize = 48;
/// `struct inet_diag_req_v2`.
const REQUEST: usize = HEADER + 8 + ID;
/// `struct inet_diag_msg`.
const MESSAGE: usize = 72;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const INET_DIAG_CGROUP_ID: u16 = 21;

fn request(kind: u16, flags: libc::c_int, family: u8, states: u32, id: &[u8; ID]) -> [u8; REQUEST] {
    let mut r = [0; REQUEST];
    r[0..4].copy_from_slice(&(REQUEST as u32).to_ne_bytes());
    r[4..6].copy_from_slice(&kind.to_ne_bytes());
    r[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
    (r[16], r[17]) = (family, libc::IPPROTO_TCP as u8);
    r[20..24].copy_from_slice(&states.to_ne_bytes());
    r[24..].copy_from_slice(id);
    r
}

/// What a datagram of the kernel says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    connections: Vec<Connection>,
    /// The end of a list, or of a request: 0, or the errno.
    over: Option<i32>,
}

/// Reads one datagram, as far as it answers request `sequence`. Never panics, whatever the bytes.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for what is cut short: a connection of which nobody hears would
/// be taken for none.
fn parse(datagram: &[u8], sequence: u32) -> io::Result<Said> {
    let cut_short = || io::Error::from(io::ErrorKind::InvalidData);
    let (mut said, mut rest) = (Said::default(), datagram);
    while !rest.is_empty() {
        let word = |at| bytes(rest, at).map(u32::from_ne_bytes).ok_or_else(cut_short);
        let (len, of) = (word(0)? as usize, word(8)?);
        let kind = u16::from_ne_bytes(bytes(rest, 4).ok_or_else(cut_short)?);
        let body = (len >= HEADER).then(|| rest.get(HEADER..len)).flatten().ok_or_else(cut_short)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        if of != sequence {
            continue;
        }
        match kind {
            SOCK_DIAG_BY_FAMILY => said.connections.push(connection(body).ok_or_else(cut_short)?),
            kind if i32::from(kind) == libc::NLMSG_DONE || i32::from(kind) == libc::NLMSG_ERROR => {
                said.over = Some(bytes(body, 0).map_or(0, |e| i32::from_ne_bytes(e).wrapping_neg()));
            }
            _ => {}
        }
    }
    Ok(said)
}

fn connection(body: &[u8]) -> Option<Connection> {
    let word = |at| bytes(body, at).map(u32::from_ne_bytes);
    let (waiting, uid, inode) = (word(60)?, word(64)?, word(68)?);
    let cgroup = attributes(body.get(MESSAGE..)?).find(|(kind, _)| *kind == INET_DIAG_CGROUP_ID);
    let cgroup = cgroup.and_then(|(_, value)| bytes(value, 0)).map(u64::from_ne_bytes);
    Some(Connection { family: body[0], state: body[1], id: bytes(body, 4)?, waiting, uid, inode, cgroup })
}

/// The kernel answers at once, and goes on at once with a long answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// For a whole list, and for ending what is on it: of a million connections, or with others that
/// write to our socket meanwhile, it is over by then.
pub const PATIENCE_ALL: Duration = Duration::from_secs(10);

/// A sock_diag socket of one network namespace.
#[derive(Debug)]
pub struct Diag {
    socket: OwnedFd,
    /// The number of the last request: answers carry it.
    sequence: Cell<u32>,
}

impl Diag {
    /// Of the calling thread's.
    ///
    /// # Errors
    /// When the kernel gives no such socket.
    pub fn open() -> io::Result<Self> {
        // SAFETY: socket has no preconditions.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just made and belongs to nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let patience = libc::timeval { tv_sec: PATIENCE.as_secs() as libc::time_t, tv_usec: 0 };
        // SAFETY: an open socket; the option is live and of the length passed.
        let rc = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const patience).cast(),
                size_of_val(&patience) as libc::socklen_t,
            )
        };
        if rc == 0 { Ok(Self { socket, sequence: Cell::new(0) }) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends a request, and hands on what is said until its end. What did not come from the kernel,
    /// or speaks of a former request, is passed over.
    fn ask(&self, request: &[u8; REQUEST], mut hear: impl FnMut(Vec<Connection>)) -> io::Result<()> {
        self.sequence.set(self.sequence.get().wrapping_add(1));
        let (sequence, until) = (self.sequence.get(), Instant::now() + PATIENCE_ALL);
        let mut request = *request;
        request[8..12].copy_from_slice(&sequence.to_ne_bytes());
        // SAFETY: the request is live and of the length passed; an unconnected netlink socket sends
        // to the kernel.
        if unsafe { libc::send(self.socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut buffer = vec![0u8; 64 * 1024];
        loop {
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let (from, n) = match self.receive(&mut buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            // Any process of the namespace may write to this socket.
            if from != KERNEL {
                continue;
            }
            let Some(datagram) = buffer.get(..n) else { return Err(io::Error::other("an answer longer than its buffer")) };
            let said = parse(datagram, sequence)?;
            hear(said.connections);
            match said.over {
                None => {}
                Some(0) => return Ok(()),
                Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// One datagram: from which netlink port, and its true length, which may be more than the
    /// buffer's.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(u32, usize)> {
        // SAFETY: sockaddr_nl is plain old data, for which zero is a value.
        let mut from: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&from) as libc::socklen_t;
        // SAFETY: buffer, address and length are live and as long as said.
        let n = unsafe {
            libc::recvfrom(
                self.socket.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_TRUNC,
                (&raw mut from).cast(),
                &raw mut len,
            )
        };
        usize::try_from(n).map(|n| (from.nl_pid, n)).map_err(|_| io::Error::last_os_error())
    }

    /// Of a process's network namespace, where it is not the calling thread's.
    ///
    /// # Errors
    /// That the process is gone, that its namespace cannot be entered, or as [`Diag::open`].
    pub fn elsewhere(pid: u32) -> io::Result<Option<Self>> {
        other_namespace(pid)?.map(|namespace| inside(&namespace)).transpose()
    }

    /// Hands on the TCP sockets of a family in these states (a bit for each), in lists; of this
    /// local port only, unless it is 0. Where others than those that listen are asked for, the
    /// kernel looks through its whole table: up to a millisecond.
    ///
    /// # Errors
    /// As the kernel says, or that its answer is cut short.
    pub fn list(&self, family: u8, states: u32, port: u16, hear: impl FnMut(Vec<Connection>)) -> io::Result<()> {
        let mut id = [0; ID];
        id[..2].copy_from_slice(&port.to_be_bytes());
        match self.ask(&request(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP, family, states, &id), hear) {
            // A kernel without IPv6 has no such sockets.
            Err(e) if family == IPV6 && e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Ends one: what it keeps is dropped, the other end gets a reset, and a process that has it
    /// open `ECONNABORTED`. `false`: it was gone already.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: this kernel cannot (`CONFIG_INET_DIAG_DESTROY`); `EPERM`.
    pub fn end(&self, connection: &Connection) -> io::Result<bool> {
        match self.ask(&request(SOCK_DESTROY, libc::NLM_F_ACK, connection.family, u32::MAX, &connection.id), drop) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => Ok(false),
            other => other.map(|()| true),
        }
    }
}

/// The network namespace of a process, if it is not the calling thread's.
///
/// # Errors
/// That the process is gone.
pub fn other_namespace(pid: u32) -> io::Result<Option<File>> {
    let theirs = File::open(format!("/proc/{pid}/ns/net"))?;
    let (a, b) = (theirs.metadata()?, fs::metadata("/proc/thread-self/ns/net")?);
    Ok(((a.dev(), a.ino()) != (b.dev(), b.ino())).then_some(theirs))
}

/// A socket of another network namespace: made by a thread that enters it, and ends.
///
/// # Errors
/// That it cannot be entered, or as [`Diag::open`].
pub fn inside(namespace: &File) -> io::Result<Diag> {
    let enter = || {
        // SAFETY: an open descriptor. Only this thread moves, and it ends.
        if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Diag::open()
    };
    let lost = |_| Err(io::Error::other("the thread that was to enter it ended"));
    std::thread::scope(|s| s.spawn(enter).join().unwrap_or_else(lost))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn the_kernels_words_are_read_with_every_length_checked() {
        let mut text = vec![0u8; HEADER + MESSAGE + 12];
        let len = text.len() as u32;
        text[0..4].copy_from_slice(&len.to_ne_bytes());
        text[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        (text[16], text[17]) = (2, FIN_WAIT1);
        text[HEADER + 60..HEADER + 64].copy_from_slice(&77u32.to_ne_bytes());
        text[HEADER + 64..HEADER + 68].copy_from_slice(&999u32.to_ne_bytes());
        let at = HEADER + MESSAGE;
        text[at..at + 2].copy_from_slice(&12u16.to_ne_bytes());
        text[at + 2..at + 4].copy_from_slice(&INET_DIAG_CGROUP_ID.to_ne_bytes());
        text[at + 4..at + 12].copy_from_slice(&0x1234_5678_9abcu64.to_ne_bytes());
        text[8..12].copy_from_slice(&7u32.to_ne_bytes());
        assert!(parse(&text, 6).unwrap().connections.is_empty(), "of another request");
        let said = parse(&text, 7).unwrap();
        let [c] = said.connections[..] else { panic!("{said:?}") };
        assert_eq!((c.family, c.state, c.waiting, c.uid, c.inode, c.cgroup), (2, FIN_WAIT1, 77, 999, 0, Some(0x1234_5678_9abc)));
        for cut in 1..text.len() {
            assert_eq!(parse(&text[..cut], 7).unwrap_err().kind(), ErrorKind::InvalidData);
        }
        // A message that is shorter than what it should hold, with a header that says so.
        let mut short = text[..HEADER + MESSAGE - 1].to_vec();
        let len = short.len() as u32;
        short[0..4].copy_from_slice(&len.to_ne_bytes());
        assert_eq!(parse(&short, 7).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
