//! What the server has written to clients and the group has not confirmed: it is kept here, and leaves when it is.
//!
//! The server's event loop goes in turns: it reads commands, executes them, writes replies, sleeps. Everything that is written to clients in a turn while this
//! server leads waits until an entry is decided that was proposed after the turn had ended, and that holds all that the turn wrote to replicas, or follows it.
//! Nothing else about commands matters: what was executed by a script, within MULTI, in a pipeline or for a client that has waited since long is a reply
//! like others. This is *external synchrony* (Nightingale et al., OSDI 2006; Remus, NSDI 2008, for machines) with a group of servers as the disk.
//!
//! # Replies that leave at once
//! A leader may hold a *lease*: for a time after each of its entries no other server answers anybody ([`LEASE`]). A turn that ends within it needs no entry: its
//! replies are right as of its end, however late they arrive, and each waits only for the writes that it shows ([`crate::reads`]).
//!
//! The stream to replicas is caught in the same place: it is what is proposed, and never lies in a socket.

use crate::reads::Reads;
use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::FromRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a leader answers at once behind the proposal of an entry that was decided while it led. A successor that does not know for certain that the leader
/// has ended answers nobody until then ([`crate::group`]).
pub const LEASE: Duration = Duration::from_millis(100);
/// The rest of it from which on a new one is asked for, while there are replies; and how often.
const LEASE_REST: Duration = Duration::from_millis(60);
const LEASE_AGAIN: Duration = Duration::from_millis(20);
/// Bytes that wait for one client; then the server is told that the socket is full.
const HELD_MAX: usize = 1 << 20;
/// Room that is kept for a client's next replies.
const KEPT_ROOM: usize = 64 << 10;
/// A client that the server has closed, and that reads nothing, is given this long.
const LINGER: Duration = Duration::from_secs(10);
/// While so much of the stream waits for the group, clients that are owed replies are not read from.
const BEHIND: usize = 1 << 20;
const FAR_BEHIND: usize = 16 * BEHIND;
/// Descriptors are kept in pieces, which are made when they are needed.
const CHUNK: usize = 1 << 10;
const CHUNKS: usize = 1 << 10;

/// What a descriptor of the server is.
mod kind {
    /// Not a connection of a client.
    pub const OTHER: u8 = 0;
    /// Was accepted.
    pub const CLIENT: u8 = 1;
    /// The server's replication stream, to this module.
    pub const SOURCE: u8 = 2;
    /// A client that is told nothing more.
    pub const CUT: u8 = 3;
    /// A connection of this module, to which everything passes.
    pub const OWN: u8 = 4;
}

/// Bytes for one client, in the order of the server's writes.
#[derive(Debug, Default)]
struct Held {
    bytes: VecDeque<u8>,
    /// Bytes that have left, since this descriptor was first used.
    left: u64,
    /// Bytes that may leave.
    ready: u64,
    /// Bytes that the server has written to this connection, wherever they are.
    written: u64,
    /// The server has closed it.
    is_closing: Option<Instant>,
    /// Listed in [`Gate::touched`].
    is_touched: bool,
}

impl Held {
    fn end(&self) -> u64 {
        self.left + self.bytes.len() as u64
    }

    fn drop_all(&mut self) {
        self.left = self.end();
        self.ready = self.left;
        self.bytes.clear();
    }

    /// What may leave does, as far as the socket takes it. `false`: some is left.
    fn send(&mut self, fd: i32) -> bool {
        while self.left < self.ready {
            let (first, _) = self.bytes.as_slices();
            let len = first.len().min((self.ready - self.left) as usize);
            // SAFETY: as many bytes as said.
            let sent = unsafe { libc::send(fd, first.as_ptr().cast(), len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
            match usize::try_from(sent) {
                Ok(sent) => {
                    self.bytes.drain(..sent);
                    self.left += sent as u64;
                }
                Err(_) => match io::Error::last_os_error().kind() {
                    io::ErrorKind::WouldBlock => return false,
                    io::ErrorKind::Interrupted => {}
                    // The server finds out when it reads.
                    _ => self.drop_all(),
                },
            }
        }
        // One large reply is no reason to keep its room for as long as the client stays.
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT_ROOM {
            self.bytes = VecDeque::new();
        }
        true
    }
}

#[derive(Debug, Default)]
struct Slot {
    kind: AtomicU8,
    held: Mutex<Held>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A turn of the server's event loop that clients wait for.
#[derive(Debug)]
struct Turn {
    ticket: u64,
    /// Descriptors, and the bytes for them up to here.
    replies: Vec<(i32, u64)>,
}

/// What [`Gate::take`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The last turn that is confirmed by what was taken.
    pub ticket: Option<u64>,
    /// There is something to propose.
    pub is_any: bool,
    /// The last bytes that were taken are of a command that goes on: so many; none: no command has ended since the stream is caught.
    pub cut: Option<u64>,
}

/// What the group is asked about, in the order of turns.
#[derive(Debug, Default)]
struct Flow {
    /// Of the server's stream, what was not taken yet, behind what was.
    stream: Vec<u8>,
    taken: usize,
    /// Ends of turns, where commands end, of what was not taken; the last one of what was.
    ends: VecDeque<u64>,
    end: Option<u64>,
    /// Bytes of it, since it is caught.
    caught: u64,
    /// It is not all that the server has done: no turn can be confirmed any more.
    is_broken: bool,
    /// The connection was closed by which it was caught, and what the server did since is asked for.
    gap: Option<Gap>,
    ticket: u64,
    /// Turns up to this ticket are confirmed.
    released: u64,
    /// Tickets of turns that were not proposed, with where the stream ended.
    ended: VecDeque<(u64, u64)>,
    /// By ticket.
    turns: VecDeque<Turn>,
    /// The present turn is to be confirmed by an entry, whatever it writes.
    is_awaited: bool,
    /// An entry is wanted for the lease alone, and when one was asked for.
    renews: bool,
    renewed_ns: u64,
}

/// Behind these bytes of the stream some are missing.
#[derive(Debug)]
struct Gap {
    at: u64,
    /// The last turn that had ended before.
    ticket: u64,
    /// What the server had written when the stream was caught again is there; it may have had more to write.
    is_filled: bool,
}

/// How many replies have left in which way.
#[derive(Debug, Default)]
pub struct Counts {
    /// At once.
    pub at_once: AtomicU64,
    /// When the writes that they show were decided.
    pub after_write: AtomicU64,
    /// When an entry was decided that was proposed for them.
    pub after_entry: AtomicU64,
}

/// Time that goes on while this host is suspended, ns.
#[must_use]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time; the clock is there on all kernels that this runs on.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// All clients of a server.
#[derive(Debug)]
pub struct Gate {
    slots: Vec<OnceLock<Box<[Slot]>>>,
    holds: AtomicBool,
    /// The descriptor of the stream that is caught, or −1.
    source: AtomicI32,
    highest: AtomicI32,
    touched: Mutex<Vec<i32>>,
    flow: Mutex<Flow>,
    is_behind: AtomicBool,
    /// Until when replies may leave at once ([`now_ns`]).
    lease_ns: AtomicU64,
    /// Clients that have not taken what left at once.
    stuck: Mutex<Vec<i32>>,
    /// For INFO.
    pub counts: Counts,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            slots: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            holds: AtomicBool::new(false),
            source: AtomicI32::new(-1),
            highest: AtomicI32::new(-1),
            touched: Mutex::default(),
            flow: Mutex::default(),
            is_behind: AtomicBool::new(false),
            lease_ns: AtomicU64::new(0),
            stuck: Mutex::default(),
            counts: Counts::default(),
        }
    }
}

impl Flow {
    /// These replies leave when that ticket is confirmed.
    fn wait(&mut self, ticket: u64, fd: i32, end: u64) {
        match self.turns.binary_search_by_key(&ticket, |turn| turn.ticket) {
            Ok(at) => self.turns[at].replies.push((fd, end)),
            Err(at) => self.turns.insert(at, Turn { ticket, replies: vec![(fd, end)] }),
        }
    }

    /// An entry is to be proposed before the lease ends.
    fn renew(&mut self, rest: Duration, now_ns: u64) -> bool {
        if rest >= LEASE_REST || now_ns.saturating_sub(self.renewed_ns) < LEASE_AGAIN.as_nanos() as u64 {
            return false;
        }
        (self.renews, self.renewed_ns) = (true, now_ns);
        true
    }

    /// Bytes of the stream that were not taken.
    fn waiting(&self) -> usize {
        self.stream.len() - self.taken
    }
}

impl Gate {
    fn slot(&self, fd: i32) -> Option<&Slot> {
        let fd = usize::try_from(fd).ok()?;
        self.slots.get(fd / CHUNK)?.get()?.get(fd % CHUNK)
    }

    // ---- the server's threads -------------------------------------------------------------------------------------------

    /// The server has a new client. `false`: this one cannot be kept.
    pub fn accepted(&self, fd: i32) -> bool {
        let Some(chunk) = usize::try_from(fd).ok().and_then(|fd| self.slots.get(fd / CHUNK)) else { return false };
        chunk.get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect());
        self.highest.fetch_max(fd, Ordering::Relaxed);
        let Some(slot) = self.slot(fd) else { return false };
        lock(&slot.held).written = 0;
        slot.kind.store(kind::CLIENT, Ordering::Release);
        true
    }

    /// The server writes: how many bytes were taken, or what `pass` returned if they do not stay here. Nothing: the server has to try again when the socket
    /// is writable.
    pub fn write(&self, fd: i32, parts: &[&[u8]], pass: impl FnOnce() -> isize) -> Option<isize> {
        let Some(slot) = self.slot(fd) else { return Some(pass()) };
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        match slot.kind.load(Ordering::Acquire) {
            kind::CLIENT | kind::OWN => self.write_to_client(fd, slot, parts, pass),
            kind::OTHER => Some(pass()),
            kind::SOURCE => Some(self.catch_bytes(fd, parts)),
            _ => Some(len.cast_signed()),
        }
    }

    /// Of the server's stream.
    fn catch_bytes(&self, fd: i32, parts: &[&[u8]]) -> isize {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut flow = lock(&self.flow);
        if self.source.load(Ordering::Acquire) == fd {
            parts.iter().for_each(|part| flow.stream.extend_from_slice(part));
            flow.caught += len as u64;
            self.is_behind.store(flow.waiting() > BEHIND, Ordering::Relaxed);
        }
        len.cast_signed()
    }

    fn write_to_client(&self, fd: i32, slot: &Slot, parts: &[&[u8]], pass: impl FnOnce() -> isize) -> Option<isize> {
        let mut held = lock(&slot.held);
        let kind = slot.kind.load(Ordering::Acquire);
        if kind == kind::SOURCE {
            // Since a moment ago, by the group's thread.
            drop(held);
            return Some(self.catch_bytes(fd, parts));
        }
        if kind == kind::OWN || !self.holds.load(Ordering::Acquire) {
            // Under the lock, so that what is caught begins where this ends.
            let passed = pass();
            held.written += u64::try_from(passed).unwrap_or(0);
            return Some(passed);
        }
        let mut room = HELD_MAX.saturating_sub(held.bytes.len());
        let mut taken = 0;
        for part in parts {
            let part = &part[..part.len().min(room)];
            held.bytes.extend(part);
            room -= part.len();
            taken += part.len();
        }
        held.written += taken as u64;
        if !std::mem::replace(&mut held.is_touched, true) {
            lock(&self.touched).push(fd);
        }
        (taken > 0).then_some(taken.cast_signed())
    }

    /// The server closes a descriptor. `true`: something waits for it, and it is closed later.
    pub fn closes(&self, fd: i32) -> bool {
        let Some(slot) = self.slot(fd) else { return false };
        if slot.kind.load(Ordering::Acquire) == kind::OTHER {
            return false;
        }
        if self.source.compare_exchange(fd, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let mut flow = lock(&self.flow);
            let gap = Gap { at: flow.caught, ticket: flow.ticket, is_filled: false };
            flow.is_broken |= flow.gap.replace(gap).is_some_and(|former| !former.is_filled);
        }
        let mut held = lock(&slot.held);
        if slot.kind.load(Ordering::Acquire) == kind::CLIENT && !held.bytes.is_empty() {
            held.is_closing = Some(Instant::now());
            return true;
        }
        slot.kind.store(kind::OTHER, Ordering::Release);
        false
    }

    /// The server is about to sleep. `true`: the group has to be asked about what it did since, or has something to do for it.
    pub fn end_turn(&self, reads: &mut Reads) -> bool {
        if !self.holds.load(Ordering::Relaxed) {
            return false;
        }
        let touched = std::mem::take(&mut *lock(&self.touched));
        let replies: Vec<(i32, u64)> = touched
            .into_iter()
            .filter_map(|fd| {
                let mut held = lock(&self.slot(fd)?.held);
                held.is_touched = false;
                Some((fd, held.end()))
            })
            .collect();
        let now_ns = if reads.is_on() { now_ns() } else { u64::MAX };
        let mut flow = lock(&self.flow);
        // Behind everything that was executed in the turn: a lease that is over later makes no reply wrong.
        let rest = Duration::from_nanos(self.lease_ns.load(Ordering::Acquire).saturating_sub(now_ns));
        let (has_gap, is_awaited) = (flow.gap.is_some(), std::mem::take(&mut flow.is_awaited));
        let is_at_once = !rest.is_zero() && !flow.is_broken && !is_awaited && !has_gap && !reads.is_nested();
        let has_grown = flow.ends.back().or(flow.end.as_ref()) != Some(&flow.caught) && flow.caught > 0;
        if has_grown {
            let end = flow.caught;
            flow.ends.push_back(end);
        }
        // What is missing may be of this turn.
        let has_grown = has_grown || has_gap;
        let (ticket, released) = (flow.ticket + 1, flow.released);
        reads.end_turn(has_grown.then_some(ticket), released);
        let has_replies = !replies.is_empty();
        // A turn within a command ends before that command has told what it did.
        let (mut at_once, replies): (Vec<_>, Vec<_>) = replies.into_iter().partition(|(fd, _)| reads.is_plain(*fd, released));
        let wants_entry = reads.is_on() && has_grown || !is_at_once && !replies.is_empty() || is_awaited;
        let asks = wants_entry && !flow.is_broken;
        if asks {
            let end = flow.caught;
            flow.ticket = ticket;
            flow.ended.push_back((ticket, end));
        }
        for (fd, end) in replies {
            if !is_at_once && !asks {
                // What is broken is not confirmed, and does not leave.
                reads.must_wait(fd, u64::MAX);
                continue;
            }
            let (waits, count) = if is_at_once {
                (reads.waits(fd), &self.counts.after_write)
            } else {
                reads.must_wait(fd, ticket);
                (ticket, &self.counts.after_entry)
            };
            if waits <= released {
                at_once.push((fd, end));
            } else {
                count.fetch_add(1, Ordering::Relaxed);
                flow.wait(waits, fd, end);
            }
        }
        let renews = is_at_once && has_replies && flow.renew(rest, now_ns);
        let is_asked = !flow.ended.is_empty() || flow.waiting() > 0 || flow.is_broken || has_gap || renews;
        drop(flow);
        self.counts.at_once.fetch_add(at_once.len() as u64, Ordering::Relaxed);
        let mut stuck = Vec::new();
        for (fd, end) in at_once {
            self.send(fd, Some(end), &mut stuck);
        }
        let is_stuck = !stuck.is_empty();
        lock(&self.stuck).append(&mut stuck);
        is_asked || is_stuck
    }

    /// Until when turns need no entry ([`now_ns`]); 0: none has a lease.
    pub fn set_lease(&self, until_ns: u64) {
        self.lease_ns.store(until_ns, Ordering::Release);
    }

    /// The turn that has not ended yet: it is confirmed by an entry.
    #[must_use]
    pub fn turn(&self) -> u64 {
        let mut flow = lock(&self.flow);
        flow.is_awaited = true;
        flow.ticket + 1
    }

    /// This server leads: replies wait from now on.
    pub fn hold(&self) {
        self.holds.store(true, Ordering::Release);
    }

    /// Nothing waits from now on.
    pub fn let_pass(&self) {
        self.holds.store(false, Ordering::Release);
    }

    /// This server leads no more: what waits will not be confirmed, and what the server has in its own buffers for these clients neither. They are cut off.
    pub fn cut(&self) {
        self.set_lease(0);
        if !self.holds.swap(false, Ordering::AcqRel) {
            return;
        }
        for fd in 0..=self.highest.load(Ordering::Relaxed) {
            let Some(slot) = self.slot(fd) else { continue };
            let mut held = lock(&slot.held);
            // Also of one that has gone in this turn: it is listed no more, and the next client of that number would never be.
            held.is_touched = false;
            if slot.kind.load(Ordering::Acquire) != kind::CLIENT {
                continue;
            }
            held.drop_all();
            // SAFETY: a descriptor that the server has open, or has left to be closed here.
            unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
            if held.is_closing.take().is_some() {
                close(slot, fd);
            } else {
                slot.kind.store(kind::CUT, Ordering::Release);
            }
        }
        lock(&self.touched).clear();
    }

    /// Ends the connections of these clients; of all where none are named.
    pub fn hang_up(&self, fds: Option<&[i32]>) {
        for fd in 0..=self.highest.load(Ordering::Relaxed) {
            let Some(slot) = self.slot(fd).filter(|_| fds.is_none_or(|fds| fds.contains(&fd))) else { continue };
            let held = lock(&slot.held);
            if slot.kind.load(Ordering::Acquire) == kind::CLIENT && held.is_closing.is_none() {
                // SAFETY: a descriptor that the server has open.
                unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
            }
        }
    }

    /// What the server has closed, and whose client has read nothing for long, is let go: also while
    /// nothing is decided.
    pub fn let_go(&self) {
        for fd in 0..=self.highest.load(Ordering::Relaxed) {
            let Some(slot) = self.slot(fd) else { continue };
            let mut held = lock(&slot.held);
            if held.is_closing.is_some_and(|since| since.elapsed() >= LINGER) {
                held.drop_all();
                held.is_closing = None;
                close(slot, fd);
            }
        }
    }

    /// Clients whose replies wait.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        lock(&self.flow).turns.iter().map(|turn| turn.replies.len() as u64).sum()
    }

    /// Bytes of the stream that were caught since [`Gate::catch`].
    #[must_use]
    pub fn caught(&self) -> Option<u64> {
        let flow = lock(&self.flow);
        (self.source.load(Ordering::Relaxed) >= 0 && !flow.is_broken).then_some(flow.caught)
    }

    /// The stream that is caught is not all that the server has done: no turn is confirmed any more.
    pub fn break_off(&self) {
        lock(&self.flow).is_broken = true;
    }

    // ---- the group's thread ---------------------------------------------------------------------------------------------

    /// From now on, what the server writes to the other end of this connection of ours is caught, whatever was before forgotten: how many bytes it had
    /// written there. Only while nothing is held.
    #[must_use]
    pub fn catch(&self, connection: &TcpStream) -> Option<u64> {
        self.catch_with(connection, |flow| {
            *flow = Flow { ticket: flow.ticket, released: flow.ticket, ..Flow::default() };
            true
        })
    }

    /// The connection by which the stream was caught is closed: behind how many bytes of it.
    #[must_use]
    pub fn gap(&self) -> Option<u64> {
        let flow = lock(&self.flow);
        flow.gap.as_ref().filter(|gap| !gap.is_filled && !flow.is_broken).map(|gap| gap.at)
    }

    /// The stream is caught again, by another connection: how many bytes the server had written there. They are to be [filled in](Self::fill) behind
    /// the gap, but for its answer to PSYNC.
    #[must_use]
    pub fn catch_again(&self, connection: &TcpStream) -> Option<u64> {
        self.catch_with(connection, |flow| flow.gap.as_ref().is_some_and(|gap| !gap.is_filled) && !flow.is_broken)
    }

    /// What was missing: the turns that have ended since wrote it, or come behind it. It is taken when [all is there](Self::close_gap).
    pub fn fill(&self, bytes: &[u8]) {
        let mut flow = lock(&self.flow);
        let caught = flow.caught;
        let Some(gap) = flow.gap.as_mut().filter(|gap| !gap.is_filled) else { return };
        gap.is_filled = true;
        let (gap_at, ticket, len) = (gap.at, gap.ticket, bytes.len() as u64);
        let at = flow.stream.len() - (caught - gap_at) as usize;
        flow.stream.splice(at..at, bytes.iter().copied());
        flow.caught += len;
        flow.ends.iter_mut().filter(|end| **end > gap_at).for_each(|end| *end += len);
        flow.ended.iter_mut().filter(|(of, _)| *of > ticket).for_each(|(_, end)| *end += len);
        self.is_behind.store(flow.waiting() > BEHIND, Ordering::Relaxed);
    }

    /// Whether some of the stream is missing, or may be.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        lock(&self.flow).gap.is_some()
    }

    /// The server's stream has so many bytes behind where it was caught first. If they are all there, turns since then wrote some of them.
    pub fn close_gap(&self, all: u64) {
        let mut flow = lock(&self.flow);
        if flow.caught != all {
            return;
        }
        let Some(gap) = flow.gap.take_if(|gap| gap.is_filled) else { return };
        // The server may have written more of what was missing behind the point at which the stream was caught again.
        flow.ends.retain(|end| *end <= gap.at);
        flow.ends.push_back(all);
        flow.ended.iter_mut().filter(|(of, _)| *of > gap.ticket).for_each(|(_, end)| *end = all);
    }

    /// What the server writes to the other end of this connection of ours passes, whatever waits for the group. `false`: the server has not accepted it yet.
    #[must_use]
    pub fn admit(&self, connection: &TcpStream) -> bool {
        self.find(connection).is_some_and(|(_, slot, _)| {
            slot.kind.store(kind::OWN, Ordering::Release);
            true
        })
    }

    /// The server's end of a connection of ours, which it does not close meanwhile.
    fn find(&self, connection: &TcpStream) -> Option<(i32, &Slot, MutexGuard<'_, Held>)> {
        let canonical = |address: SocketAddr| (address.ip().to_canonical(), address.port());
        let ends = |stream: &TcpStream| Some((canonical(stream.local_addr().ok()?), canonical(stream.peer_addr().ok()?)));
        let (here, there) = ends(connection)?;
        let is_it = |fd: i32| {
            // SAFETY: the descriptor is not closed by this.
            let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
            // Both ends: connections to two addresses of the server may come from one port.
            ends(&stream) == Some((there, here))
        };
        let is_client = |slot: &Slot| [kind::CLIENT, kind::OWN].contains(&slot.kind.load(Ordering::Acquire));
        (0..=self.highest.load(Ordering::Relaxed)).find_map(|fd| {
            let slot = self.slot(fd)?;
            let held = lock(&slot.held);
            (is_client(slot) && is_it(fd)).then_some((fd, slot, held))
        })
    }

    fn catch_with(&self, connection: &TcpStream, begins: impl FnOnce(&mut Flow) -> bool) -> Option<u64> {
        let (fd, slot, held) = self.find(connection)?;
        let mut flow = lock(&self.flow);
        if !begins(&mut flow) {
            return None;
        }
        self.source.store(fd, Ordering::Release);
        slot.kind.store(kind::SOURCE, Ordering::Release);
        Some(held.written)
    }

    /// Nothing is caught any more.
    pub fn release_source(&self) {
        self.source.store(-1, Ordering::Release);
    }

    /// Appends what was caught, at most `max` bytes. A turn is confirmed by what holds all of its stream.
    pub fn take(&self, out: &mut Vec<u8>, max: usize) -> Taken {
        let mut flow = lock(&self.flow);
        if flow.is_broken {
            return Taken::default();
        }
        // What is missing comes first.
        let until = flow.gap.as_ref().map_or(flow.caught, |gap| gap.at);
        let len = flow.waiting().saturating_sub((flow.caught - until) as usize).min(max);
        out.extend_from_slice(&flow.stream[flow.taken..flow.taken + len]);
        flow.taken += len;
        if flow.waiting() == 0 {
            flow.stream.clear();
            flow.taken = 0;
            // One large command is no reason to keep its room.
            flow.stream.shrink_to(BEHIND);
        } else if flow.taken >= BEHIND.max(flow.waiting()) {
            let taken = std::mem::take(&mut flow.taken);
            flow.stream.drain(..taken);
        }
        self.is_behind.store(flow.waiting() > BEHIND, Ordering::Relaxed);
        let proposed = flow.caught - flow.waiting() as u64;
        while let Some(end) = flow.ends.front().copied().filter(|end| *end <= proposed) {
            flow.end = Some(end);
            flow.ends.pop_front();
        }
        let mut ticket = None;
        let last = flow.gap.as_ref().map_or(u64::MAX, |gap| gap.ticket);
        let is_whole = |(next, end): &(u64, u64)| *end <= proposed && *next <= last;
        while let Some((next, _)) = flow.ended.front().filter(|turn| is_whole(turn) && !flow.is_broken) {
            ticket = Some(*next);
            flow.ended.pop_front();
        }
        let cut = if proposed == 0 { None } else { flow.end.map(|end| proposed - end) };
        let renews = std::mem::take(&mut flow.renews);
        Taken { ticket, is_any: len > 0 || ticket.is_some() || renews, cut }
    }

    /// So much of the stream waits that clients are to send no more.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Whether a client is not read from while this server is behind: one that waits for replies; any, once it is far behind, because some
    /// want none.
    #[must_use]
    pub fn must_wait(&self, fd: i32) -> bool {
        let Some(slot) = self.slot(fd).filter(|slot| slot.kind.load(Ordering::Acquire) == kind::CLIENT) else { return false };
        if lock(&self.flow).waiting() > FAR_BEHIND {
            return true;
        }
        let held = lock(&slot.held);
        held.end() > held.ready
    }

    /// Turns up to this one are confirmed: what was written in them leaves. Clients that do not take all of it are added to `slow`.
    pub fn release(&self, ticket: u64, slow: &mut Vec<i32>) {
        loop {
            let Some(turn) = ({
                let mut flow = lock(&self.flow);
                flow.released = flow.released.max(ticket);
                let is_confirmed = flow.turns.front().is_some_and(|turn| turn.ticket <= ticket);
                if is_confirmed { flow.turns.pop_front() } else { None }
            }) else {
                return;
            };
            for (fd, end) in turn.replies {
                self.send(fd, Some(end), slow);
            }
        }
    }

    /// Clients that were slow get more.
    pub fn resume(&self, slow: &mut Vec<i32>) {
        slow.append(&mut lock(&self.stuck));
        for fd in std::mem::take(slow) {
            self.send(fd, None, slow);
        }
    }

    fn send(&self, fd: i32, ready: Option<u64>, slow: &mut Vec<i32>) {
        let Some(slot) = self.slot(fd) else { return };
        let mut held = lock(&slot.held);
        if let Some(ready) = ready {
            held.ready = held.ready.max(ready.min(held.end()));
        }
        let is_sent = held.send(fd);
        let is_over = held.is_closing.is_some_and(|since| since.elapsed() >= LINGER);
        if is_over {
            held.drop_all();
        }
        if held.is_closing.is_some() && held.bytes.is_empty() {
            held.is_closing = None;
            close(slot, fd);
        } else if !is_sent && !slow.contains(&fd) {
            slow.push(fd);
        }
    }
}

/// What the server has closed is closed now.
fn close(slot: &Slot, fd: i32) {
    slot.kind.store(kind::OTHER, Ordering::Release);
    // SAFETY: the server has left it to be closed here.
    unsafe { libc::close(fd) };
}

#[cfg(test)]
mod tests;
