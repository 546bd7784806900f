//! Word of network interfaces that go, come back, lose their carrier or change their addresses.
//!
//! A route netlink socket, read without waiting. What is reported are changes against what was known ([`Links::known`]): a
//! NIC that vanishes and returns has another index and the same name. When the kernel had to drop messages the whole
//! table is asked for again, so nothing stays wrong. Messages are parsed with every length checked ([`parse`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// What changed about an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkChange {
    /// Its name.
    pub name: String,
    /// Its index; a NIC that returns has another.
    pub index: u32,
    /// It is administratively up.
    pub up: bool,
    /// It has its carrier.
    pub carrier: bool,
    /// It does not exist any more (under this name, in this network namespace).
    pub gone: bool,
    /// One of its addresses was added or removed.
    pub addresses: bool,
}

/// What is known of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Its index.
    pub index: u32,
    /// It is administratively up.
    pub up: bool,
    /// It has its carrier.
    pub carrier: bool,
}

/// One message from the kernel, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// An interface is there, like this.
    Link {
        /// Its index.
        index: u32,
        /// Its name.
        name: String,
        /// Administratively up.
        up: bool,
        /// Has its carrier.
        carrier: bool,
    },
    /// An interface is gone.
    Gone {
        /// Its index.
        index: u32,
    },
    /// An address of an interface was added or removed.
    Address {
        /// Its index.
        index: u32,
    },
    /// The end of a dump; whether it was disturbed and is to be repeated.
    Done {
        /// Repeat it.
        interrupted: bool,
    },
    /// The kernel refused a request, with this errno.
    Error(i32),
}

const HEADER: usize = 16;
/// `struct ifinfomsg`
const IFINFO: usize = 16;

/// `N` bytes at `at`, if they are there.
pub(crate) fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Reads the messages of one datagram. Never panics, whatever the bytes; what cannot be right ends it.
#[must_use]
pub fn parse(datagram: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut rest = datagram;
    let mut interrupted = false;
    while let (Some(len), Some(kind), Some(flags)) = (bytes(rest, 0), bytes(rest, 4), bytes(rest, 6)) {
        let len = u32::from_ne_bytes(len) as usize;
        let Some(body) = (len >= HEADER).then(|| rest.get(HEADER..len)).flatten() else { break };
        interrupted |= i32::from(u16::from_ne_bytes(flags)) & libc::NLM_F_DUMP_INTR != 0;
        match u16::from_ne_bytes(kind) {
            libc::RTM_NEWLINK => messages.extend(link(body)),
            libc::RTM_DELLINK if family(body) == Some(libc::AF_UNSPEC) => {
                messages.extend(bytes(body, 4).map(|i| Message::Gone { index: u32::from_ne_bytes(i) }));
            }
            libc::RTM_NEWADDR | libc::RTM_DELADDR => {
                messages.extend(bytes(body, 4).map(|i| Message::Address { index: u32::from_ne_bytes(i) }));
            }
            kind if i32::from(kind) == libc::NLMSG_DONE => messages.push(Message::Done { interrupted }),
            kind if i32::from(kind) == libc::NLMSG_ERROR => {
                // Error 0 is an acknowledgement.
                let errno = bytes(body, 0).map(i32::from_ne_bytes).filter(|e| *e != 0);
                messages.extend(errno.map(|e| Message::Error(e.wrapping_neg())));
            }
            _ => {}
        }
        // Messages are aligned to 4 bytes; the last may lack its padding.
        let Some(next) = rest.get(len.next_multiple_of(4)..) else { break };
        rest = next;
    }
    messages
}

/// The family of a link message: a bridge speaks of its ports with another (leaving the bridge is not going away).
fn family(body: &[u8]) -> Option<i32> {
    body.first().map(|f| i32::from(*f))
}

/// `struct ifinfomsg` and its attributes.
fn link(body: &[u8]) -> Option<Message> {
    if family(body)? != libc::AF_UNSPEC {
        return None;
    }
    let index = u32::from_ne_bytes(bytes(body, 4)?);
    let flags = u32::from_ne_bytes(bytes(body, 8)?);
    let is = |flag: libc::c_int| flags & flag as u32 != 0;
    let name = attributes(body.get(IFINFO..)?).filter(|(kind, _)| *kind == libc::IFLA_IFNAME).last().map(|(_, value)| {
        let text = value.split(|b| *b == 0).next().unwrap_or(value);
        String::from_utf8_lossy(text).into_owned()
    });
    Some(Message::Link { index, name: name?, up: is(libc::IFF_UP), carrier: is(libc::IFF_LOWER_UP) })
}

/// What lies behind a message's own part, up to what cannot be right: kinds and values.
pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(u16::from_ne_bytes(bytes(rest, 0)?)), u16::from_ne_bytes(bytes(rest, 2)?));
        let value = (len >= 4).then(|| rest.get(4..len)).flatten()?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// An interface and its carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Its index; one that returns has another.
    pub index: u32,
    /// It is up and has its carrier.
    pub there: bool,
    /// How often the carrier has come or gone.
    pub changes: u32,
}

/// Asks the kernel for the carrier of an interface of this thread's network namespace.
///
/// # Errors
/// There is no such interface, or the kernel does not say.
pub fn carrier(interface: &str) -> io::Result<Carrier> {
    const IFLA_CARRIER_CHANGES: u16 = 35;
    let body = described(interface)?;
    let found = (|| -> Option<Carrier> {
        let flags = u32::from_ne_bytes(bytes(&body, 8)?);
        let is = |flag: libc::c_int| flags & flag as u32 != 0;
        let changes = attributes(body.get(IFINFO..)?).find(|(kind, _)| *kind == IFLA_CARRIER_CHANGES)?.1;
        let there = is(libc::IFF_UP) && is(libc::IFF_LOWER_UP);
        Some(Carrier { index: u32::from_ne_bytes(bytes(&body, 4)?), there, changes: u32::from_ne_bytes(bytes(changes, 0)?) })
    })();
    found.ok_or_else(does_not_say)
}

/// Asks the kernel for how many packets an interface of this thread's network namespace had no room for: `rx_over_errors`, `rx_fifo_errors` and
/// `rx_missed_errors`.
///
/// # Errors
/// There is no such interface, or the kernel does not say.
pub fn lost(interface: &str) -> io::Result<u64> {
    const IFLA_STATS64: u16 = 23;
    let body = described(interface)?;
    let found = (|| -> Option<u64> {
        let statistics = attributes(body.get(IFINFO..)?).find(|(kind, _)| *kind == IFLA_STATS64)?.1;
        // `struct rtnl_link_stats64`, whose members are u64 each.
        [11, 14, 15].into_iter().map(|member| bytes(statistics, member * 8).map(u64::from_ne_bytes)).sum()
    })();
    found.ok_or_else(does_not_say)
}

fn does_not_say() -> io::Error {
    io::Error::other("the kernel does not say")
}

/// What the kernel says of one interface of this thread's network namespace, not of all: a host may have thousands.
fn described(interface: &str) -> io::Result<Vec<u8>> {
    let name = std::ffi::CString::new(interface).map_err(io::Error::other)?;
    // SAFETY: a name that ends with a zero.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: socket has no preconditions.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just made and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut request = [0u8; HEADER + IFINFO];
    request[0..4].copy_from_slice(&((HEADER + IFINFO) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request[20..24].copy_from_slice(&index.to_ne_bytes());
    let mut answer = vec![0u8; 32 * 1024];
    // SAFETY: request and answer are live and of the lengths passed. The kernel answers within the call that sends, so there is nothing to wait for.
    let n = unsafe {
        if libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
    };
    let Ok(n) = usize::try_from(n) else { return Err(io::Error::last_os_error()) };
    answer.truncate(n);
    match bytes(&answer, 4).map(u16::from_ne_bytes) {
        Some(libc::RTM_NEWLINK) => Ok(answer.split_off(HEADER.min(n))),
        // It went meanwhile.
        Some(kind) if i32::from(kind) == libc::NLMSG_ERROR => {
            let errno = bytes(&answer, HEADER).map_or(0, i32::from_ne_bytes);
            Err(io::Error::from_raw_os_error(errno.wrapping_neg()))
        }
        _ => Err(does_not_say()),
    }
}

/// Listens for changes of this network namespace's interfaces.
pub struct Links {
    socket: OwnedFd,
    buffer: Vec<u8>,
    known: BTreeMap<u32, (String, bool, bool)>,
    queue: VecDeque<LinkChange>,
    /// The indices a dump under way has named so far.
    dump: Option<BTreeSet<u32>>,
    /// A dump is to be asked for: messages were lost, or the last dump was disturbed.
    stale: bool,
}

impl Links {
    /// Begins to listen, and learns what is there now.
    ///
    /// # Errors
    /// When the system gives no such socket or does not answer.
    pub fn open() -> io::Result<Self> {
        // SAFETY: socket has no preconditions.
        let fd = unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, libc::NETLINK_ROUTE)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just made and belongs to nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: sockaddr_nl is plain data for which zero is a value.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
        // SAFETY: the address is live and of the length passed.
        let rc = unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as libc::socklen_t) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut links =
            Self { socket, buffer: vec![0; 32 * 1024], known: BTreeMap::new(), queue: VecDeque::new(), dump: None, stale: true };
        let until = Instant::now() + Duration::from_secs(2);
        while links.stale || links.dump.is_some() {
            links.receive()?;
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not list its interfaces"));
            }
            if links.dump.is_some() {
                let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one live entry.
                unsafe { libc::poll(&raw mut entry, 1, 100) };
            }
        }
        links.queue.clear();
        Ok(links)
    }

    /// The next change, if there is one. Never waits; call until `None` when the descriptor is readable.
    pub fn poll(&mut self) -> Option<LinkChange> {
        if self.queue.is_empty() {
            // An error is no word of a change; the socket stays usable and a lost message leads to a new dump.
            let _ = self.receive();
        }
        self.queue.pop_front()
    }

    /// What is known of the interface of this name, `None` when there is none.
    #[must_use]
    pub fn known(&self, name: &str) -> Option<LinkState> {
        let (index, (_, up, carrier)) = self.known.iter().find(|(_, (n, ..))| n == name)?;
        Some(LinkState { index: *index, up: *up, carrier: *carrier })
    }

    /// Reads all that waits on the socket.
    fn receive(&mut self) -> io::Result<()> {
        loop {
            // SAFETY: sockaddr_nl is plain data for which zero is a value.
            let mut from: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
            let mut len = size_of_val(&from) as libc::socklen_t;
            // SAFETY: buffer and address are live and of the lengths passed. MSG_TRUNC gives the datagram's true length.
            let n = unsafe {
                libc::recvfrom(
                    self.socket.as_raw_fd(),
                    self.buffer.as_mut_ptr().cast(),
                    self.buffer.len(),
                    libc::MSG_TRUNC,
                    (&raw mut from).cast(),
                    &raw mut len,
                )
            };
            let Ok(n) = usize::try_from(n) else {
                let e = io::Error::last_os_error();
                match e.raw_os_error() {
                    // Only now that nothing waits: after an overflow the kernel drops messages without another word
                    // until its queue has been emptied, and an older dump is over only then.
                    Some(libc::EAGAIN) if self.stale && self.dump.is_none() => {
                        self.ask()?;
                        self.stale = false;
                        self.dump = Some(BTreeSet::new());
                        continue;
                    }
                    Some(libc::EAGAIN) => return Ok(()),
                    Some(libc::EINTR) => continue,
                    // The kernel had no room and dropped messages, perhaps the end of a dump among them.
                    Some(libc::ENOBUFS) => {
                        self.dump = None;
                        self.stale = true;
                        continue;
                    }
                    _ => return Err(e),
                }
            };
            // Only the kernel is believed, and only whole datagrams.
            if from.nl_pid != 0 {
                continue;
            }
            if n > self.buffer.len() {
                self.stale = true;
                continue;
            }
            for message in parse(&self.buffer[..n]) {
                self.take(message);
            }
        }
    }

    /// Asks for all interfaces.
    fn ask(&self) -> io::Result<()> {
        let mut request = [0u8; 32];
        request[0..4].copy_from_slice(&32u32.to_ne_bytes());
        request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
        request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
        // SAFETY: the request is live and of the length passed; an unconnected netlink socket sends to the kernel.
        let n = unsafe { libc::send(self.socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Link { index, name, up, carrier } => {
                if let Some(seen) = &mut self.dump {
                    seen.insert(index);
                }
                let new = (name, up, carrier);
                match self.known.insert(index, new.clone()) {
                    Some(old) if old == new => {}
                    old => {
                        if let Some((name, ..)) = old.filter(|(name, ..)| *name != new.0) {
                            self.queue.push_back(gone(name, index));
                        }
                        let (name, up, carrier) = new;
                        self.queue.push_back(LinkChange { name, index, up, carrier, gone: false, addresses: false });
                    }
                }
            }
            Message::Gone { index } => {
                if let Some(seen) = &mut self.dump {
                    seen.remove(&index);
                }
                self.queue.extend(self.known.remove(&index).map(|(name, ..)| gone(name, index)));
            }
            Message::Address { index } => {
                if let Some((name, up, carrier)) = self.known.get(&index).cloned() {
                    let change = LinkChange { name, index, up, carrier, gone: false, addresses: true };
                    if self.queue.back() != Some(&change) {
                        self.queue.push_back(change);
                    }
                }
            }
            Message::Done { interrupted } => {
                let Some(seen) = self.dump.take() else { return };
                if interrupted {
                    self.stale = true;
                    return;
                }
                let missing: Vec<u32> = self.known.keys().copied().filter(|i| !seen.contains(i)).collect();
                for index in missing {
                    self.queue.extend(self.known.remove(&index).map(|(name, ..)| gone(name, index)));
                }
            }
            Message::Error(errno) => {
                tracing::warn!("the kernel refuses to list its interfaces: {}", io::Error::from_raw_os_error(errno));
                self.dump = None;
                self.stale |= errno == libc::EBUSY;
            }
        }
    }
}

fn gone(name: String, index: u32) -> LinkChange {
    LinkChange { name, index, up: false, carrier: false, gone: true, addresses: false }
}

impl AsRawFd for Links {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links() -> Links {
        // A socket that is never read.
        // SAFETY: eventfd has no preconditions, and the descriptor belongs to nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, 0)) };
        Links { socket, buffer: vec![], known: BTreeMap::new(), queue: VecDeque::new(), dump: None, stale: false }
    }

    fn here(index: u32, name: &str) -> Message {
        Message::Link { index, name: name.into(), up: true, carrier: true }
    }

    #[test]
    fn a_dump_after_lost_messages_finds_what_went_and_came() {
        let mut l = links();
        [here(1, "lo"), here(2, "eth1"), here(3, "eth2")].into_iter().for_each(|m| l.take(m));
        l.queue.clear();
        l.dump = Some(BTreeSet::new());
        [here(1, "lo"), here(3, "eth2"), here(9, "eth1"), Message::Done { interrupted: false }]
            .into_iter()
            .for_each(|m| l.take(m));
        let changes: Vec<_> = l.queue.iter().map(|c| (c.name.as_str(), c.index, c.gone)).collect();
        assert_eq!(changes, [("eth1", 9, false), ("eth1", 2, true)]);
        assert_eq!(l.known("eth1").map(|s| s.index), Some(9));
    }

    #[test]
    fn a_disturbed_dump_is_repeated_and_removes_nothing() {
        let mut l = links();
        l.take(here(2, "eth1"));
        l.dump = Some(BTreeSet::new());
        l.take(Message::Done { interrupted: true });
        assert!(l.stale && l.known("eth1").is_some());
    }

    #[test]
    fn a_renamed_interface_is_gone_under_its_old_name() {
        let mut l = links();
        l.take(here(2, "eth1"));
        l.queue.clear();
        l.take(here(2, "lan"));
        let changes: Vec<_> = l.queue.iter().map(|c| (c.name.as_str(), c.gone)).collect();
        assert_eq!(changes, [("eth1", true), ("lan", false)]);
    }
}
