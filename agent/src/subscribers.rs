//! Who receives which events: one ring for each connection that subscribed, and bit sets saying which rings hear of whom.
//!
//! Rings are the kernel's where possible: the receive program and the exit watch write them without this agent's help, and what the agent
//! infers goes the same way ([`fide_xdp::Mechanism::publish`]). Where BPF is not to be had, a ring is a datagram socket that the agent
//! writes itself.

use fide_wire::control::RingKind;
use fide_wire::event::Record;
use fide_wire::names;
use fide_xdp::{Mechanism, Subscriber, XdpError};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use zerocopy::IntoBytes;

/// Whom a target names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// `*`
    Everything,
    /// `@host`
    Host(String),
    /// `name@host`
    Process(String, String),
}

impl Target {
    /// Reads `name@host`, `@host` or `*`.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        Ok(match names::Target::parse(text)? {
            names::Target::Everything => Target::Everything,
            names::Target::Host(host) => Target::Host(host.into()),
            names::Target::Process(name, host) => Target::Process(name.into(), host.into()),
        })
    }
}

/// What a subscriber wants of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Smallest piggyback size, bytes.
    pub pbsize: u32,
    /// Largest timeout of use, 0 for any.
    pub timeout_ns: u64,
}

enum Sink {
    Kernel {
        subscriber: Subscriber,
        /// Losses that its reader was told of.
        told: u64,
    },
    Socket {
        fd: OwnedFd,
        lost: u64,
    },
}

struct Entry {
    sink: Sink,
    wants: BTreeMap<Target, Want>,
}

/// Newest subscriptions remembered, for [`Subscribers::too_late`]: more than can be made while a record waits for this agent.
const RECENT: usize = 4096;

/// The key of (node, app) in subscription tables.
#[must_use]
pub const fn key(node: u32, app: u32) -> u64 {
    (node as u64) << 32 | app as u64
}

/// All subscribers.
#[derive(Default)]
pub struct Subscribers {
    entries: HashMap<u32, Entry>,
    masks: HashMap<u64, u64>,
    sockets: u64,
    /// Rings that asked for piggybacks.
    listeners: u64,
    /// The newest subscriptions: key, ring, and when the kernel had them.
    recent: VecDeque<(u64, u32, u64)>,
    /// Events that found a ring or socket full.
    pub lost: u64,
}

impl Subscribers {
    /// Makes a ring and returns its index, kind, and the descriptor for the application.
    ///
    /// # Errors
    /// When all are in use, or the kernel refuses.
    pub fn add(
        &mut self,
        mechanism: Option<&mut Mechanism>,
        socket_only: bool,
    ) -> Result<(u32, RingKind, OwnedFd), SubscribeError> {
        let mut mechanism = mechanism;
        if let Some(mechanism) = mechanism.as_deref_mut()
            && !socket_only
        {
            let subscriber = mechanism.new_subscriber()?;
            let index = subscriber.index;
            if self.entries.contains_key(&index) {
                mechanism.remove_subscriber(subscriber);
                return Err(SubscribeError::Full);
            }
            let fd = subscriber.fd().try_clone_to_owned()?;
            self.entries.insert(index, Entry { sink: Sink::Kernel { subscriber, told: 0 }, wants: BTreeMap::new() });
            return Ok((index, RingKind::Bpf, fd));
        }
        // From the top, where the kernel's come from the bottom.
        let index = (0..64).rev().find(|i| !self.entries.contains_key(i)).ok_or(SubscribeError::Full)?;
        let (ours, theirs) = seqpacket_pair()?;
        let first = self.sockets == 0;
        self.sockets |= 1 << index;
        if first {
            self.tell_kernel_all(mechanism.as_deref());
        }
        self.entries.insert(index, Entry { sink: Sink::Socket { fd: ours, lost: 0 }, wants: BTreeMap::new() });
        Ok((index, RingKind::Socket, theirs))
    }

    /// Takes a ring out of use, with all its subscriptions.
    pub fn remove(&mut self, index: u32, mechanism: Option<&mut Mechanism>) {
        let Some(entry) = self.entries.remove(&index) else { return };
        let keys: Vec<u64> = self.masks.iter().filter(|(_, m)| *m >> index & 1 == 1).map(|(k, _)| *k).collect();
        for k in keys {
            self.set(k, index, false, mechanism.as_deref());
        }
        self.listeners &= !(1 << index);
        let before = self.sockets;
        self.sockets &= !(1 << index);
        if before != 0 && self.sockets == 0 {
            self.tell_kernel_all(mechanism.as_deref());
        }
        if let (Sink::Kernel { subscriber, .. }, Some(mechanism)) = (entry.sink, mechanism) {
            mechanism.remove_subscriber(subscriber);
        }
    }

    /// Remembers that a ring wants a target.
    pub fn want(&mut self, index: u32, target: Target, want: Want, mechanism: Option<&Mechanism>) {
        let Some(entry) = self.entries.get_mut(&index) else { return };
        entry.wants.insert(target, want);
        if want.pbsize > 0 && self.listeners >> index & 1 == 0 {
            self.listeners |= 1 << index;
            if self.sockets != 0 {
                self.tell_kernel_all(mechanism);
            }
        }
    }

    /// Forgets it; `false` if it never was.
    pub fn unwant(&mut self, index: u32, target: &Target) -> bool {
        self.entries.get_mut(&index).is_some_and(|e| e.wants.remove(target).is_some())
    }

    /// Rings that want a target, and what.
    pub fn wanting<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = (u32, Want)> + 'a {
        self.entries.iter().filter_map(move |(i, e)| e.wants.get(target).map(|w| (*i, *w)))
    }

    /// Adds or removes one ring's bit for (node, app).
    pub fn set(&mut self, key: u64, index: u32, on: bool, mechanism: Option<&Mechanism>) {
        let mask = self.masks.entry(key).or_default();
        *mask = if on { *mask | 1 << index } else { *mask & !(1 << index) };
        let mask = *mask;
        if mask == 0 {
            self.masks.remove(&key);
        }
        self.tell_kernel(key, mask, mechanism);
        if on {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back((key, index, crate::core::now_ns()));
        }
    }

    fn tell_kernel(&self, key: u64, mask: u64, mechanism: Option<&Mechanism>) {
        if let Some(m) = mechanism
            && let Err(e) = m.set_subscribers((key >> 32) as u32, key as u32, mask & !self.by_agent())
        {
            tracing::warn!("subscription not set: {e}");
        }
    }

    /// The rings that this agent serves alone: sockets, which the kernel cannot write; and while there are any, the kernel leaves piggybacks to the
    /// agent, hence also the rings of those who asked for piggybacks, or a crash would overtake last words (FiDe §4.1).
    const fn by_agent(&self) -> u64 {
        if self.sockets == 0 { 0 } else { self.sockets | self.listeners }
    }

    /// Rings to which this agent may write piggybacks of other hosts without a crash overtaking them.
    #[must_use]
    pub const fn listeners(&self) -> u64 {
        self.sockets | self.listeners
    }

    /// After a change of who is served by whom.
    fn tell_kernel_all(&self, mechanism: Option<&Mechanism>) {
        for (key, mask) in &self.masks {
            self.tell_kernel(*key, *mask, mechanism);
        }
    }

    /// Rings of (node, app) whose subscription may have come too late for what the kernel saw at `seen_ns`.
    #[must_use]
    pub fn too_late(&self, node: u32, app: u32, seen_ns: u64) -> u64 {
        let keys = [key(node, app), key(node, 0), 0];
        let late = self.recent.iter().rev().take_while(|(_, _, at)| *at >= seen_ns);
        late.filter(|(k, _, _)| keys.contains(k)).fold(0, |mask, (_, ring, _)| mask | 1 << ring) & self.rings(node, app)
    }

    /// Removes all subscriptions to one process.
    pub fn clear(&mut self, node: u32, app: u32, mechanism: Option<&Mechanism>) {
        if self.masks.remove(&key(node, app)).is_some()
            && let Some(m) = mechanism
        {
            let _ = m.set_subscribers(node, app, 0); // removal cannot fail but for absence
        }
    }

    /// Rings that hear of (node, app).
    #[must_use]
    pub fn rings(&self, node: u32, app: u32) -> u64 {
        [key(node, app), key(node, 0), 0].iter().filter_map(|k| self.masks.get(k)).fold(0, |a, m| a | m)
    }

    /// Rings that asked for a host, for any of its processes (whether they exist or not), or for everything.
    #[must_use]
    pub fn rings_of_host(&self, host: &str) -> u64 {
        let concerns = |target: &Target| match target {
            Target::Everything => true,
            Target::Host(h) | Target::Process(_, h) => h == host,
        };
        self.entries.iter().filter(|(_, e)| e.wants.keys().any(concerns)).fold(0, |a, (i, _)| a | 1 << i)
    }

    /// Writes a record into rings. `delivered` says that the kernel programs have served their own rings already.
    pub fn publish(&mut self, rings: u64, record: &Record, body: &[u8], delivered: bool, mechanism: Option<&Mechanism>) {
        if let Some(m) = mechanism {
            let mine = if delivered { self.by_agent() } else { u64::MAX };
            self.lost += u64::from(m.publish(rings & mine & !self.sockets, record, body));
        }
        let mut sockets = rings & self.sockets;
        while sockets != 0 {
            let index = sockets.trailing_zeros();
            sockets &= sockets - 1;
            if let Some(Entry { sink: Sink::Socket { fd, lost }, .. }) = self.entries.get_mut(&index)
                && !send_record(fd, record, body, lost)
            {
                self.lost += 1;
            }
        }
    }

    /// Tells the readers of the kernel's rings how many events found their rings full, once there is room again.
    pub fn tell_losses(&mut self, mechanism: Option<&Mechanism>) {
        let Some(m) = mechanism else { return };
        for (index, entry) in &mut self.entries {
            let Sink::Kernel { told, .. } = &mut entry.sink else { continue };
            let lost = m.ring_lost(*index);
            if lost == *told {
                continue;
            }
            let kind = fide_wire::event::RecordKind::Lost as u16;
            let note = Record { kind, number: lost.saturating_sub(*told), ..Record::default() };
            // A note that finds it still full is itself counted there, and is no loss.
            *told = if m.publish(1 << index, &note, &[]) == 0 { lost } else { *told + 1 };
        }
    }

    /// The set of rings in use.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.entries.keys().fold(0, |a, i| a | 1 << i)
    }

    /// Number of rings in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether some rings are sockets, which only the agent can write.
    #[must_use]
    pub fn has_sockets(&self) -> bool {
        self.sockets != 0
    }

    /// Whether nobody subscribed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The processes of other hosts that are wanted, with the largest piggyback size wanted: what announcements tell their hosts.
    pub fn process_wants(&self) -> BTreeMap<(String, String), u32> {
        let mut all = BTreeMap::new();
        for (target, want) in self.entries.values().flat_map(|e| &e.wants) {
            if let Target::Process(name, host) = target {
                let size: &mut u32 = all.entry((name.clone(), host.clone())).or_default();
                *size = want.pbsize.max(*size);
            }
        }
        all
    }
}

/// Why there is no ring.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    /// All in use.
    #[error("all {} event rings of this agent are in use; close a subscriber", fide_xdp::layout::RINGS)]
    Full,
    /// The kernel programs' side.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// A system call.
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: an array of two descriptors to fill; the result is checked.
    let r = unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0, fds.as_mut_ptr())
    };
    if r < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: two fresh descriptors that nobody else owns.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// One datagram for one record; what a slow reader lost is told before the next record that fits.
fn send_record(fd: &OwnedFd, record: &Record, body: &[u8], lost: &mut u64) -> bool {
    if *lost > 0 {
        let note = Record { kind: fide_wire::event::RecordKind::Lost as u16, number: *lost, ..Record::default() };
        if !send_datagram(fd, note.as_bytes(), &[]) {
            *lost += 1;
            return false;
        }
        *lost = 0;
    }
    let record = Record { body_len: body.len() as u16, ..*record };
    let sent = send_datagram(fd, record.as_bytes(), body);
    if !sent {
        *lost += 1;
    }
    sent
}

fn send_datagram(fd: &OwnedFd, head: &[u8], body: &[u8]) -> bool {
    let mut parts = [
        libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
        libc::iovec { iov_base: body.as_ptr().cast_mut().cast(), iov_len: body.len() },
    ];
    // SAFETY: msghdr is plain data for which all zeros is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    // SAFETY: the descriptor is open; message points to two buffers that live across the call and are only read.
    unsafe { libc::sendmsg(fd.as_fd().as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) >= 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_or_refused_with_a_hint() {
        assert_eq!(Target::parse("*"), Ok(Target::Everything));
        assert_eq!(Target::parse("@a"), Ok(Target::Host("a".into())));
        assert_eq!(Target::parse("db@a"), Ok(Target::Process("db".into(), "a".into())));
        for bad in ["", "db", "db@", "@"] {
            assert!(Target::parse(bad).unwrap_err().contains("process@host"), "{bad}");
        }
        // What cannot be named so is never there: it is not waited for.
        for bad in ["a@b@c", "db@h1\n", "d b@h1", &format!("@{}", "h".repeat(200))] {
            assert!(Target::parse(bad).unwrap_err().contains("cannot name a"), "{bad}");
        }
    }

    #[test]
    fn a_socket_subscriber_hears_what_it_asked_for_and_of_what_it_lost() {
        let mut s = Subscribers::default();
        let (index, kind, fd) = s.add(None, false).unwrap();
        assert_eq!(kind, RingKind::Socket);
        s.set(key(5, 1), index, true, None);
        s.set(key(6, 0), index, true, None);
        assert_eq!(s.rings(5, 2), 0);
        assert_eq!(s.rings(6, 9), 1 << index);
        let record = Record { kind: 1, node: 5, app: 1, ..Record::default() };
        let mut sent = 0;
        while s.lost == 0 {
            s.publish(s.rings(5, 1), &record, b"xyz", false, None);
            sent += 1;
        }
        let read = |fd: &OwnedFd| {
            let mut buf = [0u8; 200];
            // SAFETY: an open socket and a buffer of the stated length.
            let n = unsafe { libc::recv(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT) };
            (n > 0).then(|| buf[..n as usize].to_vec())
        };
        for _ in 0..sent - 1 {
            let got = read(&fd).unwrap();
            assert_eq!(Record::read(&got), Some((Record { body_len: 3, ..record }, &b"xyz"[..])));
        }
        assert_eq!(read(&fd), None);
        s.publish(s.rings(5, 1), &record, b"", false, None);
        let note = read(&fd).unwrap();
        assert_eq!(Record::read(&note).map(|(r, _)| (r.kind(), r.number)), Some((Some(fide_wire::event::RecordKind::Lost), 1)));
        assert!(read(&fd).is_some());
        s.remove(index, None);
        assert_eq!(s.rings(5, 1), 0);
    }
}
