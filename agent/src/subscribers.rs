//! Who receives which events: one ring for each connection that subscribed, and bit sets saying which rings hear of whom.
//!
//! Rings are the kernel's where possible: the receive program and the exit watch write them without this agent's help, and what the agent
//! infers goes the same way ([`fide_xdp::Mechanism::publish`]). Where BPF is not to be had, a ring is a datagram socket that the agent
//! writes itself.

use fide_wire::event::Record;
use fide_wire::names;
use fide_xdp::{Mechanism, Subscriber};
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

/// A ring as it is handed to the loop, and back when it is out of use.
#[derive(Debug)]
pub enum Made {
    /// The kernel's.
    Kernel(Subscriber),
    /// This agent's end of a socket.
    Socket(OwnedFd),
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
    /// The keys under which it is in [`Subscribers::masks`], and the piggyback size it wants of each.
    keys: BTreeMap<u64, u32>,
}

/// The rings of one key, and the largest piggyback that one of them wants.
#[derive(Clone, Copy, Default)]
struct Mask {
    rings: u64,
    pbsize: u32,
}

/// Subscriptions that are changed in one loop iteration.
const WORK: usize = 32;

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
    /// Rings that are out of use, still to be taken out of `masks`.
    retiring: VecDeque<(u32, Entry)>,
    masks: BTreeMap<u64, Mask>,
    /// From this key on the kernel is to be told anew which rings it serves.
    retell: Option<u64>,
    /// When it was, the last time.
    retold_ns: u64,
    sockets: u64,
    /// Rings that asked for piggybacks.
    listeners: u64,
    /// The newest subscriptions: key, ring, and when the kernel had them.
    recent: VecDeque<(u64, u32, u64)>,
    /// Events that found a ring or socket full.
    pub lost: u64,
}

impl Subscribers {
    /// Takes a ring into use.
    pub fn add(&mut self, index: u32, made: Made) {
        let sink = match made {
            Made::Kernel(subscriber) => Sink::Kernel { subscriber, told: 0 },
            Made::Socket(fd) => {
                if self.sockets == 0 {
                    self.retell = Some(0);
                }
                self.sockets |= 1 << index;
                Sink::Socket { fd, lost: 0 }
            }
        };
        self.entries.insert(index, Entry { sink, wants: BTreeMap::new(), keys: BTreeMap::new() });
    }

    /// Takes a ring out of use. Its subscriptions go a few at a time, in [`Subscribers::work`].
    pub fn remove(&mut self, index: u32) {
        let Some(entry) = self.entries.remove(&index) else { return };
        self.retiring.push_back((index, entry));
        self.listeners &= !(1 << index);
        let before = self.sockets;
        self.sockets &= !(1 << index);
        if before != 0 && self.sockets == 0 {
            self.retell = Some(0);
        }
    }

    /// Whether the kernel still has to be told which rings it serves.
    #[must_use]
    pub const fn is_retelling(&self) -> bool {
        self.retell.is_some()
    }

    /// Whether [`Subscribers::work`] has something to do.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.retell.is_some() || !self.retiring.is_empty()
    }

    /// Some of what a change of subscribers entails: each system call takes a microsecond, and there may be thousands of them. Gives a ring that no
    /// table names any more.
    pub fn work(&mut self, mechanism: Option<&Mechanism>) -> Option<(u32, Made)> {
        if let Some(from) = self.retell {
            let some: [Option<(u64, u64)>; WORK] = {
                let mut masks = self.masks.range(from..).map(|(key, mask)| (*key, mask.rings));
                std::array::from_fn(|_| masks.next())
            };
            some.iter().flatten().for_each(|(key, rings)| self.tell_kernel(*key, *rings, mechanism));
            self.retell = some[WORK - 1].and_then(|(last, _)| last.checked_add(1));
            self.retold_ns = crate::clock::now_ns();
            return None;
        }
        let (index, entry) = self.retiring.front_mut()?;
        let index = *index;
        let some: [Option<u64>; WORK] = std::array::from_fn(|_| entry.keys.pop_first().map(|(key, _)| key));
        let done = entry.keys.is_empty();
        some.iter().flatten().for_each(|key| self.unmask(*key, index, mechanism));
        if !done {
            return None;
        }
        let (index, entry) = self.retiring.pop_front()?;
        let made = match entry.sink {
            Sink::Kernel { subscriber, .. } => Made::Kernel(subscriber),
            Sink::Socket { fd, .. } => Made::Socket(fd),
        };
        Some((index, made))
    }

    /// Remembers that a ring wants a target.
    pub fn want(&mut self, index: u32, target: Target, want: Want) {
        let Some(entry) = self.entries.get_mut(&index) else { return };
        entry.wants.insert(target, want);
        if want.pbsize > 0 && self.listeners >> index & 1 == 0 {
            self.listeners |= 1 << index;
            if self.sockets != 0 {
                self.retell = Some(0);
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

    /// A ring hears of (node, app) from now on.
    pub fn listen(&mut self, key: u64, index: u32, pbsize: u32, mechanism: Option<&Mechanism>) {
        let Some(entry) = self.entries.get_mut(&index) else { return };
        entry.keys.insert(key, pbsize);
        let mask = self.masks.entry(key).or_default();
        mask.rings |= 1 << index;
        let rings = mask.rings;
        self.weigh(key);
        self.tell_kernel(key, rings, mechanism);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((key, index, crate::clock::now_ns()));
    }

    /// It does so no longer.
    pub fn unlisten(&mut self, key: u64, index: u32, mechanism: Option<&Mechanism>) {
        if self.entries.get_mut(&index).is_some_and(|e| e.keys.remove(&key).is_some()) {
            self.unmask(key, index, mechanism);
        }
    }

    fn unmask(&mut self, key: u64, index: u32, mechanism: Option<&Mechanism>) {
        let Some(mask) = self.masks.get_mut(&key) else { return };
        mask.rings &= !(1 << index);
        let rings = mask.rings;
        if rings == 0 {
            self.masks.remove(&key);
        } else {
            self.weigh(key);
        }
        self.tell_kernel(key, rings, mechanism);
    }

    /// The largest piggyback that is wanted under a key.
    fn weigh(&mut self, key: u64) {
        let wanted = self.entries.values().filter_map(|e| e.keys.get(&key)).max().copied().unwrap_or(0);
        if let Some(mask) = self.masks.get_mut(&key) {
            mask.pbsize = wanted;
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

    /// Rings of (node, app) whose subscription may have come too late for what the kernel saw at `seen_ns`.
    #[must_use]
    pub fn too_late(&self, node: u32, app: u32, seen_ns: u64) -> u64 {
        let keys = [key(node, app), key(node, 0), 0];
        let late = self.recent.iter().rev().take_while(|(_, _, at)| *at >= seen_ns);
        late.filter(|(k, _, _)| keys.contains(k)).fold(0, |mask, (_, ring, _)| mask | 1 << ring) & self.rings(node, app)
    }

    /// A process of another host is there: which one it is whose piggybacks the kernel delivers.
    pub fn number(&self, node: u32, incarnation: u32, app: u32, mechanism: Option<&Mechanism>) {
        if let Some(m) = mechanism
            && app > u32::from(u16::MAX)
            && let Err(e) = m.set_number(node, incarnation, app)
        {
            tracing::warn!("piggybacks of process {app} of node {node:08x} are not delivered: {e}");
        }
    }

    /// Removes all subscriptions to one process.
    pub fn clear(&mut self, node: u32, app: u32, mechanism: Option<&Mechanism>) {
        if let Some(m) = mechanism
            && app > u32::from(u16::MAX)
        {
            m.forget_number(node, app);
        }
        let key = key(node, app);
        let Some(mask) = self.masks.remove(&key) else { return };
        for (index, entry) in &mut self.entries {
            if mask.rings >> index & 1 == 1 {
                entry.keys.remove(&key);
            }
        }
        if let Some(m) = mechanism {
            let _ = m.set_subscribers(node, app, 0); // removal cannot fail but for absence
        }
    }

    /// Rings that hear of (node, app).
    #[must_use]
    pub fn rings(&self, node: u32, app: u32) -> u64 {
        [key(node, app), key(node, 0), 0].iter().filter_map(|k| self.masks.get(k)).fold(0, |a, m| a | m.rings)
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
            // What came in while the kernel was being told whom it serves may have been delivered to neither side's rings. Twice is better than never.
            let is_sure = delivered && self.retell.is_none() && record.received_ns > self.retold_ns;
            let mine = if is_sure { self.by_agent() } else { u64::MAX };
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

    /// The processes of hosts other than this one that are monitored, as (node, app), with the largest piggyback size wanted: what announcements tell
    /// their hosts.
    pub fn monitored(&self, own_node: u32) -> impl Iterator<Item = (u32, u32, u32)> {
        let named = self.masks.iter().map(|(key, mask)| ((key >> 32) as u32, *key as u32, mask.pbsize));
        named.filter(move |(node, app, _)| *app != 0 && *node != own_node)
    }

    /// Monitored targets, of all rings.
    #[must_use]
    pub fn targets(&self) -> usize {
        self.entries.values().map(|e| e.wants.len()).sum()
    }
}

/// A ring that is a socket: this agent's end, and the application's.
///
/// # Errors
/// The system's.
pub fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
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
        let (index, (ours, fd)) = (63, seqpacket_pair().unwrap());
        s.add(index, Made::Socket(ours));
        s.listen(key(5, 1), index, 0, None);
        s.listen(key(6, 0), index, 0, None);
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
        s.remove(index);
        let done = std::iter::from_fn(|| s.has_work().then(|| s.work(None))).flatten().next();
        assert!(matches!(done, Some((63, Made::Socket(_)))));
        assert_eq!(s.rings(5, 1), 0);
    }

    fn socket(s: &mut Subscribers, index: u32) -> OwnedFd {
        let (ours, theirs) = seqpacket_pair().unwrap();
        s.add(index, Made::Socket(ours));
        theirs
    }

    #[test]
    fn a_ring_with_many_subscriptions_goes_a_few_at_a_time_and_others_keep_theirs() {
        let mut s = Subscribers::default();
        let _fds = [socket(&mut s, 1), socket(&mut s, 2)];
        while s.has_work() {
            s.work(None);
        }
        for app in 1..=1000 {
            s.listen(key(5, app), 1, 100, None);
        }
        s.listen(key(5, 7), 2, 30, None);
        assert_eq!(s.monitored(9).find(|(_, app, _)| *app == 7), Some((5, 7, 100)));
        s.remove(1);
        let mut steps = 0;
        let gone = loop {
            steps += 1;
            if let Some((index, _)) = s.work(None) {
                break index;
            }
        };
        assert_eq!(gone, 1);
        assert!((1000 / WORK..1100 / WORK + 3).contains(&steps), "{steps}");
        assert_eq!(s.monitored(9).collect::<Vec<_>>(), [(5, 7, 30)], "what the other one wants");
        s.clear(5, 7, None);
        assert_eq!((s.rings(5, 7), s.entries[&2].keys.len()), (0, 0), "what ended is not remembered");
        assert!(!s.has_work());
    }
}
