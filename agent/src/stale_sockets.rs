//! What a closed gate holds back, and its end before the gate opens.
//!
//! TCP keeps what it could not send and tries again: also of a process that was killed, whose connection the kernel closes on its behalf (FIN-WAIT-1). When the
//! gate opens for the next instance, those old bytes would leave beside the new ones, as if they were meant now. So before it opens, such connections are ended as
//! `ss -K` does it, by SOCK_DESTROY (sock_diag(7)): their queues are dropped; a process that holds one gets ECONNABORTED; the reset that
//! the kernel sends is of the same cgroup, so the closed gate blocks it.
//!
//! What is ended (`Connection::holds`): a connection with bytes, or its FIN, that were not acknowledged. What is not: listening sockets and
//! connections that nobody has accepted yet (nobody has written to them), connections whose other end has everything (there is nothing old in them), a
//! SYN under way that carries no data. UDP and raw sockets keep nothing: to them the gate says EPERM.
//!
//! Only sockets of one network namespace are seen at a time: see [`end`]. MPTCP and SCTP are not looked after.

use crate::links::{attributes, bytes};
use fide_xdp::fence::{Fence, Gate};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Which sockets are meant.
#[derive(Clone, Copy, Debug)]
pub enum Made<'a> {
    /// Those that were made in the cgroups of these ids.
    In(&'a BTreeSet<u64>),
    /// All of the network namespace.
    Anywhere,
}

/// Whose connections are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Those that no process holds any more.
    Nobodys,
    /// Those of living processes, too.
    Anybodys,
}

/// Why something may still be held back.
#[derive(Debug, thiserror::Error)]
pub enum HeldBack {
    /// The network namespace of the process cannot be entered.
    #[error(
        "the connections of its network namespace cannot be seen from the agent's ({0}): give the agent CAP_SYS_ADMIN, or run the process in the host's namespace"
    )]
    Elsewhere(io::Error),
    /// Sockets cannot be listed.
    #[error("the kernel does not list TCP sockets ({0}): it needs CONFIG_INET_TCP_DIAG (`modprobe tcp_diag`)")]
    NotListed(io::Error),
    /// The kernel does not say of which cgroup a socket is.
    #[error("the kernel does not say in which cgroup a socket was made: that needs Linux 5.8 or later")]
    NoCgroups,
    /// They are known, and stay.
    #[error("{left} TCP connections keep bytes from before, and {}", ended_not(.why))]
    NotEnded {
        /// How many.
        left: usize,
        /// Why.
        why: io::Error,
    },
}

fn ended_not(why: &io::Error) -> String {
    match why.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            "this kernel cannot end them (it was built without CONFIG_INET_DIAG_DESTROY): end the processes \
             that hold them and wait until `ss -tnp` shows them no more, some minutes; or begin in a cgroup of its own"
                .into()
        }
        Some(libc::EPERM) => "the agent may not end them: it needs CAP_NET_ADMIN".into(),
        _ => format!("could not be ended: {why}"),
    }
}

/// One connection, as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    family: u8,
    state: u8,
    /// What tells it from all others, its cookie included (`struct inet_diag_sockid`).
    id: [u8; ID],
    /// Bytes that were not acknowledged; a SYN and a FIN are one each.
    waiting: u32,
    /// 0: no process holds it.
    inode: u32,
    cgroup: Option<u64>,
}

// Of include/net/tcp_states.h.
const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const SYN_RECV: u8 = 3;
const FIN_WAIT1: u8 = 4;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;
/// The states in which something may wait to be acknowledged.
const STATES: [u8; 7] = [ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, CLOSE_WAIT, LAST_ACK, CLOSING];

impl Connection {
    /// Whether something of it would leave that was written before.
    fn holds(&self, whose: Whose) -> bool {
        let old = match self.state {
            SYN_SENT | SYN_RECV => self.waiting > 1, // with data (TCP Fast Open)
            state => STATES.contains(&state) && self.waiting > 0,
        };
        old && (whose == Whose::Anybodys || self.inode == 0)
    }
}

/// The netlink port of the kernel.
const KERNEL: u32 = 0;
const HEADER: usize = 16;
const ID: usize = 48;
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
/// [`io::ErrorKind::InvalidData`] for what is cut short: a connection of which nobody hears would be taken for none.
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
    let (waiting, inode) = (word(60)?, word(68)?);
    let cgroup = attributes(body.get(MESSAGE..)?).find(|(kind, _)| *kind == INET_DIAG_CGROUP_ID);
    let cgroup = cgroup.and_then(|(_, value)| bytes(value, 0)).map(u64::from_ne_bytes);
    Some(Connection { family: body[0], state: body[1], id: bytes(body, 4)?, waiting, inode, cgroup })
}

/// The kernel answers at once, and goes on at once with a long answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// For a whole list, and for ending what is on it: of a million connections, or with others that write to our socket meanwhile, it is over by then.
const PATIENCE_ALL: Duration = Duration::from_secs(10);

/// A sock_diag socket of one network namespace.
struct Diag {
    socket: OwnedFd,
    /// The number of the last request: answers carry it.
    sequence: Cell<u32>,
}

impl Diag {
    /// Of the calling thread's.
    fn open() -> io::Result<Self> {
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

    /// Sends a request, and hands on what is said until its end. What did not come from the kernel, or speaks of a former request, is passed over.
    fn ask(&self, request: &[u8; REQUEST], mut hear: impl FnMut(Vec<Connection>)) -> io::Result<()> {
        self.sequence.set(self.sequence.get().wrapping_add(1));
        let (sequence, until) = (self.sequence.get(), Instant::now() + PATIENCE_ALL);
        let mut request = *request;
        request[8..12].copy_from_slice(&sequence.to_ne_bytes());
        // SAFETY: the request is live and of the length passed; an unconnected netlink socket sends to the kernel.
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

    /// One datagram: from which netlink port, and its true length, which may be more than the buffer's.
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

    /// The connections that hold something back.
    fn holding(&self, made: Made<'_>, whose: Whose) -> Result<Vec<Connection>, HeldBack> {
        let states = STATES.iter().fold(0, |all, state| all | 1 << state);
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let list = request(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP, family as u8, states, &[0; ID]);
            match self.ask(&list, |heard| found.extend(heard.into_iter().filter(|c| c.holds(whose)))) {
                // A kernel without IPv6 has no such sockets.
                Err(e) if family == libc::AF_INET6 && e.raw_os_error() == Some(libc::ENOENT) => {}
                other => other.map_err(HeldBack::NotListed)?,
            }
        }
        if let Made::In(cgroups) = made {
            if found.iter().any(|c| c.cgroup.is_none()) {
                return Err(HeldBack::NoCgroups);
            }
            found.retain(|c| c.cgroup.is_some_and(|id| cgroups.contains(&id)));
        }
        Ok(found)
    }

    /// Ends them, and those found meanwhile.
    fn end(&self, made: Made<'_>, whose: Whose) -> Result<usize, HeldBack> {
        let (mut ended, until) = (BTreeSet::new(), Instant::now() + PATIENCE_ALL);
        loop {
            // Older kernels drop the queue of a connection that nobody holds and leave the rest to its timer: once is enough.
            let mut found = self.holding(made, whose)?;
            found.retain(|c| !ended.contains(&c.id));
            if found.is_empty() {
                return Ok(ended.len());
            }
            for (at, c) in found.iter().enumerate() {
                if Instant::now() > until {
                    return Err(HeldBack::NotEnded { left: found.len() - at, why: io::ErrorKind::TimedOut.into() });
                }
                let order = request(SOCK_DESTROY, libc::NLM_F_ACK, c.family, u32::MAX, &c.id);
                match self.ask(&order, drop) {
                    // Gone meanwhile is as good.
                    Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => {
                        return Err(HeldBack::NotEnded { left: found.len() - at, why: e });
                    }
                    _ => ended.insert(c.id),
                };
            }
        }
    }
}

/// Ends the connections that hold something back, in the network namespace of the calling thread and in that of process `of`, where it is another one. Says how many.
///
/// # Errors
/// [`HeldBack`]: what may still be there, why, and what to do.
pub fn end(made: Made<'_>, whose: Whose, of: Option<u32>) -> Result<usize, HeldBack> {
    let here = Diag::open().map_err(HeldBack::NotListed)?.end(made, whose)?;
    let there = match of.and_then(|pid| other_namespace(pid).transpose()) {
        None => 0,
        Some(namespace) => inside(&namespace.map_err(HeldBack::Elsewhere)?)?.end(made, whose)?,
    };
    Ok(here + there)
}

/// The network namespace of a process, if it is not the calling thread's.
fn other_namespace(pid: u32) -> io::Result<Option<File>> {
    let theirs = File::open(format!("/proc/{pid}/ns/net"))?;
    let (a, b) = (theirs.metadata()?, fs::metadata("/proc/thread-self/ns/net")?);
    Ok(((a.dev(), a.ino()) != (b.dev(), b.ino())).then_some(theirs))
}

/// A socket of another network namespace: made by a thread that enters it, and ends.
fn inside(namespace: &File) -> Result<Diag, HeldBack> {
    let enter = || {
        // SAFETY: an open descriptor. Only this thread moves, and it ends.
        if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
            return Err(HeldBack::Elsewhere(io::Error::last_os_error()));
        }
        Diag::open().map_err(HeldBack::NotListed)
    };
    let lost = |_| Err(HeldBack::Elsewhere(io::Error::other("the thread that was to enter it ended")));
    std::thread::scope(|s| s.spawn(enter).join().unwrap_or_else(lost))
}

/// The ids of a cgroup (of version 2, by its directory) and of all below it.
pub fn cgroups_within(dir: &Path, into: &mut BTreeSet<u64>) {
    let Ok(own) = fs::metadata(dir) else { return }; // gone: nothing is made there any more
    into.insert(own.ino());
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for below in fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
            into.insert(below.ino());
            todo.push(below.path());
        }
    }
}

/// Cgroups remembered of one gate that are gone. Those that are there cost a walk through them every half second.
const GONE_MAX: usize = 4096;

/// The cgroups whose sockets are behind a gate: its own, those below it, and those that were below it when somebody looked and are gone since (service managers
/// remove the cgroup of what has ended, and its connections stay). The fence keeps them beside the gate, so the next agent knows them, too.
#[derive(Debug, Default)]
pub struct Within {
    ids: BTreeSet<u64>,
    /// That the fence cannot keep more of them was told.
    told: bool,
}

impl Within {
    /// What is known of a gate that was found or made just now.
    #[must_use]
    pub fn of(fence: &Fence, gate: &Gate) -> Self {
        Self { ids: fence.below(gate), told: false }
    }

    /// Their ids.
    #[must_use]
    pub fn ids(&self) -> &BTreeSet<u64> {
        &self.ids
    }

    /// Looks which there are now, in the directory of the gate's cgroup.
    pub fn look(&mut self, dir: &Path, fence: &Fence, gate: &Gate) {
        let mut found = BTreeSet::new();
        cgroups_within(dir, &mut found);
        for id in found.iter().copied().filter(|id| Some(*id) != gate.cgroup() && !self.ids.contains(id)) {
            match fence.note_below(gate, id) {
                Err(e) if !std::mem::replace(&mut self.told, true) => {
                    tracing::warn!("cgroups below {} are forgotten with this agent's life, {id} and others: {e}", dir.display());
                }
                _ => {}
            }
        }
        self.ids.extend(&found);
        let own = gate.cgroup();
        for id in forgotten(&self.ids, &found, GONE_MAX).into_iter().filter(|id| Some(*id) != own) {
            self.ids.remove(&id);
            fence.forget(gate, id);
        }
    }
}

/// Of those known, which to forget so that at most so many are kept that are not there: ids grow, so those that went first.
fn forgotten(known: &BTreeSet<u64>, found: &BTreeSet<u64>, most: usize) -> Vec<u64> {
    let gone: Vec<u64> = known.difference(found).copied().collect();
    gone[..gone.len().saturating_sub(most)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::namespace;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// A connection of which this is true, in the calling thread's namespace.
    fn state_of(port: u16) -> Vec<(u8, u32, u32)> {
        let mut found = Vec::new();
        let list = request(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP, libc::AF_INET as u8, u32::MAX, &[0; ID]);
        Diag::open().unwrap().ask(&list, |heard| found.extend(heard)).unwrap();
        found.retain(|c| u16::from_be_bytes([c.id[0], c.id[1]]) == port);
        found.into_iter().map(|c| (c.state, c.waiting, c.inode)).collect()
    }

    /// Writes until nothing more goes in: the other end does not read.
    fn fill(stream: &mut TcpStream) {
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[7; 65536]).is_ok() {}
    }

    fn port(stream: &TcpStream) -> u16 {
        stream.local_addr().unwrap().port()
    }

    /// All that comes, and how it ends.
    fn read_all(mut stream: TcpStream) -> io::Result<usize> {
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20)))?;
        stream.read_to_end(&mut Vec::new())
    }

    #[test]
    fn what_holds_bytes_back_is_ended_and_nothing_else() {
        namespace::inside(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            let pair = || (TcpStream::connect(to).unwrap(), listener.accept().unwrap().0);
            let (mut idle, mut idle_end) = pair();
            let (mut full, _full_end) = pair();
            let (mut left, left_end) = pair();
            let waits = TcpStream::connect(to).unwrap(); // and is not accepted
            fill(&mut full);
            fill(&mut left);
            let (full_port, left_port) = (port(&full), port(&left));
            drop(left);
            // The kernel may end it a moment later.
            let patience = Instant::now() + Duration::from_secs(10);
            while !matches!(state_of(left_port)[..], [(FIN_WAIT1, 1.., 0)]) && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(matches!(state_of(left_port)[..], [(FIN_WAIT1, 1.., 0)]), "{:?}", state_of(left_port));

            // Of a dead process only what nobody holds any more.
            assert_eq!(end(Made::Anywhere, Whose::Nobodys, None).unwrap(), 1);
            assert_eq!(state_of(left_port), []);
            assert_eq!(read_all(left_end).unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(matches!(state_of(full_port)[..], [(ESTABLISHED, 1.., 1..)]));
            assert_eq!(end(Made::Anywhere, Whose::Nobodys, Some(std::process::id())).unwrap(), 0);

            // Before a gate opens, what living ones have written too.
            let others = BTreeSet::from([u64::MAX]);
            assert_eq!(end(Made::In(&others), Whose::Anybodys, None).unwrap(), 0, "made in another cgroup");
            assert_eq!(end(Made::Anywhere, Whose::Anybodys, None).unwrap(), 1);
            assert_eq!(full.write(b"new").unwrap_err().kind(), ErrorKind::ConnectionAborted);

            // The rest is as it was.
            idle.write_all(b"new").unwrap();
            let mut heard = [0; 3];
            idle_end.read_exact(&mut heard).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            accepted.write_all(b"new").unwrap();
            (&waits).read_exact(&mut heard).unwrap();
            assert_eq!(heard, *b"new");
        });
    }

    #[test]
    fn the_namespace_of_the_process_that_asks_is_looked_at_too() {
        namespace::inside(|| {
            let (listener, mut sleeper) = (
                TcpListener::bind("127.0.0.1:0").unwrap(),
                std::process::Command::new("sleep").arg("1000").spawn().unwrap(), // here
            );
            let mut left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            fill(&mut left);
            let port = port(&left);
            drop(left);
            let pid = sleeper.id();
            let from_outside = namespace::inside(|| {
                assert_eq!(end(Made::Anywhere, Whose::Nobodys, None).unwrap(), 0);
                end(Made::Anywhere, Whose::Nobodys, Some(pid)).unwrap()
            });
            sleeper.kill().unwrap();
            sleeper.wait().unwrap();
            assert_eq!((from_outside, state_of(port)), (Some(1), Vec::new()));
        });
    }

    #[test]
    fn the_kernels_words_are_read_with_every_length_checked() {
        let mut text = vec![0u8; HEADER + MESSAGE + 12];
        let len = text.len() as u32;
        text[0..4].copy_from_slice(&len.to_ne_bytes());
        text[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        (text[16], text[17]) = (2, FIN_WAIT1);
        text[HEADER + 60..HEADER + 64].copy_from_slice(&77u32.to_ne_bytes());
        let at = HEADER + MESSAGE;
        text[at..at + 2].copy_from_slice(&12u16.to_ne_bytes());
        text[at + 2..at + 4].copy_from_slice(&INET_DIAG_CGROUP_ID.to_ne_bytes());
        text[at + 4..at + 12].copy_from_slice(&0x1234_5678_9abcu64.to_ne_bytes());
        text[8..12].copy_from_slice(&7u32.to_ne_bytes());
        assert!(parse(&text, 6).unwrap().connections.is_empty(), "of another request");
        let said = parse(&text, 7).unwrap();
        let [c] = said.connections[..] else { panic!("{said:?}") };
        assert_eq!((c.family, c.state, c.waiting, c.inode, c.cgroup), (2, FIN_WAIT1, 77, 0, Some(0x1234_5678_9abc)));
        assert!(c.holds(Whose::Nobodys));
        for cut in 1..text.len() {
            assert_eq!(parse(&text[..cut], 7).unwrap_err().kind(), ErrorKind::InvalidData);
        }
        // A message that is shorter than what it should hold, with a header that says so.
        let mut short = text[..HEADER + MESSAGE - 1].to_vec();
        let len = short.len() as u32;
        short[0..4].copy_from_slice(&len.to_ne_bytes());
        assert_eq!(parse(&short, 7).unwrap_err().kind(), ErrorKind::InvalidData);
        let held = |state, waiting, inode, whose| {
            let mut other = c;
            (other.state, other.waiting, other.inode) = (state, waiting, inode);
            other.holds(whose)
        };
        assert!(!held(SYN_SENT, 1, 5, Whose::Anybodys), "it carries nothing");
        assert!(held(SYN_SENT, 9, 5, Whose::Anybodys));
        assert!(!held(10, 128, 5, Whose::Anybodys), "LISTEN: its queue is another one");
        assert!(!held(ESTABLISHED, 9, 5, Whose::Nobodys) && held(ESTABLISHED, 9, 5, Whose::Anybodys));
        assert!(!held(ESTABLISHED, 0, 0, Whose::Anybodys), "not accepted yet");
    }

    #[test]
    fn however_many_cgroups_there_are_those_that_went_are_remembered() {
        let found: BTreeSet<u64> = (100..20_000).collect();
        let known: BTreeSet<u64> = (1..20_000).collect();
        assert!(forgotten(&known, &found, 99).is_empty());
        assert_eq!(forgotten(&known, &found, 97), [1, 2]);
    }

    #[test]
    fn a_kernel_that_cannot_is_told_with_what_to_do() {
        let text = |errno| HeldBack::NotEnded { left: 3, why: io::Error::from_raw_os_error(errno) }.to_string();
        let said = text(libc::EOPNOTSUPP);
        assert!(said.starts_with("3 TCP connections") && said.contains("CONFIG_INET_DIAG_DESTROY") && said.contains("ss -tnp"));
        assert!(text(libc::EPERM).contains("CAP_NET_ADMIN"));
    }
}
