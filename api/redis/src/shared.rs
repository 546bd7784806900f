//! What the server's main thread and the thread of the group tell each other.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A descriptor that is readable after [`Bell::ring`], until [`Bell::hush`].
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// # Errors
    /// Of `eventfd`.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the descriptor is ours.
        unsafe {
            let fd = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(OwnedFd::from_raw_fd(fd))) }
        }
    }

    /// Makes it readable.
    pub fn ring(&self) {
        // SAFETY: eight bytes; a full counter is readable, too.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const ONE).cast(), 8) };
    }

    /// Makes it unreadable.
    pub fn hush(&self) {
        let mut count = 0u64;
        // SAFETY: room for eight bytes.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// The descriptor.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

static ONE: u64 = 1;

/// What this server may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nothing: why.
    Waits(String),
    /// Follow the server at this address.
    Follows(String),
    /// Lead.
    Leads,
}

/// For the main thread.
#[derive(Debug)]
pub enum ToServer {
    /// Become a replica of this port of this host, and refuse clients: the server at that address leads.
    Follow {
        /// Where the thread of the group listens.
        port: u16,
        /// For clients.
        leader: String,
    },
    /// Become a primary as soon as all of the stream up to this byte was applied; clients wait until [`ToServer::Be`].
    TakeOver(u64),
    /// From now on.
    Be(Role),
}

/// For the thread of the group.
#[derive(Debug, PartialEq, Eq)]
pub enum ToGroup {
    /// [`ToServer::TakeOver`] is done.
    TookOver,
    /// An operator: another server shall lead.
    StepDown,
    /// An operator: this server shall lead, whatever its data are.
    Force,
}

/// A queue with a bell.
#[derive(Debug)]
pub struct Queue<T> {
    items: Mutex<VecDeque<T>>,
    /// Rings for each item.
    pub bell: Bell,
}

impl<T> Queue<T> {
    fn new() -> io::Result<Self> {
        Ok(Self { items: Mutex::default(), bell: Bell::new()? })
    }

    /// Adds an item.
    pub fn push(&self, item: T) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).push_back(item);
        self.bell.ring();
    }

    /// The next item.
    pub fn pop(&self) -> Option<T> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// What both threads see.
#[derive(Debug)]
pub struct Shared {
    /// For the main thread.
    pub to_server: Queue<ToServer>,
    /// For the thread of the group.
    pub to_group: Queue<ToGroup>,
    /// The leader's stream is decided up to this byte, in the term in which this server leads.
    pub decided: AtomicU64,
    /// Turns of the server's event loop up to this one were confirmed: an entry is decided that was proposed after they had ended.
    pub confirmed: AtomicU64,
    /// The last turn that has ended with commands in it.
    ticket: AtomicU64,
    /// Where the server's stream ended then.
    end: AtomicU64,
    /// For INFO.
    pub seen: Mutex<Seen>,
}

/// What INFO and `FIDE STATUS` say.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// How many servers have led.
    pub term: u64,
    /// Who leads.
    pub leader: String,
    /// The last entry that was read.
    pub index: u64,
    /// Members that live.
    pub members: u64,
    /// Proposals under way.
    pub pending: u64,
    /// This server has all that is decided.
    pub in_sync: bool,
}

impl Shared {
    /// # Errors
    /// Of `eventfd`.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            to_server: Queue::new()?,
            to_group: Queue::new()?,
            decided: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            ticket: AtomicU64::new(0),
            end: AtomicU64::new(0),
            seen: Mutex::default(),
        })
    }

    /// A turn has ended, and the stream there: its number. Main thread.
    pub fn end_turn(&self, end: u64) -> u64 {
        self.end.store(end, Ordering::Relaxed);
        let ticket = self.ticket.load(Ordering::Relaxed) + 1;
        self.ticket.store(ticket, Ordering::Release);
        self.to_group.bell.ring();
        ticket
    }

    /// The last turn, and where the stream ended then, or in a later one.
    #[must_use]
    pub fn last_turn(&self) -> (u64, u64) {
        (self.ticket.load(Ordering::Acquire), self.end.load(Ordering::Relaxed))
    }

    /// What was seen last.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
