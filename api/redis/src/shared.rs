//! What the server's main thread and the thread of the group tell each other.

use crate::course::Extent;
use crate::gate::Gate;
use crate::replication::Accounts;
use fide_client::Progress;
use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

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
    /// Become a primary as soon as all of the stream up to this byte was applied; clients are refused until [`ToServer::Be`].
    TakeOver(u64),
    /// From now on, not to lead.
    Be(Role),
    /// Lead from now on, and look after the group when this is readable.
    Lead(OwnedFd),
    /// For the server's log.
    Warn(String),
}

/// For the thread of the group.
#[derive(Debug, PartialEq, Eq)]
pub enum ToGroup {
    /// [`ToServer::TakeOver`] is done.
    TookOver,
    /// An operator: another server shall lead, as soon as this turn of the server is confirmed, so that the operator is answered.
    StepDown(u64),
    /// An operator: this server shall lead; also in place of one that does, whose data are dropped?
    Force(bool),
    /// An operator: this server shall follow, whatever its data are.
    Follow,
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

/// What becomes of the data that a server is given.
pub mod copy {
    /// It has them, and its log as well, if it keeps one.
    pub const NONE: u8 = 0;
    /// They come.
    pub const COMES: u8 = 1;
    /// They have come: its log is written anew with them, and the former one is on disk until then.
    pub const CAME: u8 = 2;
}

/// What both threads see.
#[derive(Debug)]
pub struct Shared {
    /// For the main thread.
    pub to_server: Queue<ToServer>,
    /// For the thread of the group.
    pub to_group: Queue<ToGroup>,
    /// What the server has written and the group has not confirmed.
    pub gate: Gate,
    /// Where the server's stream was when it began to be caught.
    pub origin: AtomicU64,
    /// Tells groups of this name apart; 0: not known yet.
    pub generation: AtomicU64,
    /// The former group from which the data of this one came ([`Course::origin`](crate::course::Course::origin)).
    pub lineage: AtomicU64,
    /// And in which term of it ([`Course::origin_term`](crate::course::Course::origin_term)).
    pub lineage_term: AtomicU64,
    /// Every write is in this server's log (AOF), also those of before it was given data.
    pub log_is_live: AtomicBool,
    /// What becomes of the data that this server is given ([`copy`]).
    pub copy: AtomicU8,
    /// Servers that hold everything that is decided, as far as the group knows.
    pub copies: AtomicU64,
    /// In how many zones they are.
    pub zones: AtomicU64,
    /// Bytes of the stream that this server has applied, while it does not lead.
    pub applied: AtomicU64,
    /// Commands of the stream that this server could not execute, since it follows.
    pub not_executed: AtomicU64,
    /// How often that was looked at.
    pub looks: AtomicU64,
    /// This server leads.
    pub is_leading: AtomicBool,
    /// This server reads by a lease while it leads ([`crate::gate::LEASE`]).
    pub has_lease: AtomicBool,
    /// By which this host's agent sees that the main thread goes on, if it is to look at that.
    pub progress: Mutex<Option<Progress>>,
    /// Turns of the main thread's loop.
    pub turns: AtomicU64,
    /// The replication id of this server's stream, while it leads.
    pub stream_id: Mutex<String>,
    /// A port of this host where nobody answers.
    pub nobody: u16,
    _nobody: TcpListener,
    /// As what this module comes to servers: as their settings were a second ago, at most.
    pub accounts: Mutex<Accounts>,
    /// For the thread that writes down of which group the data are ([`crate::lineage`]).
    pub lineages: mpsc::Sender<Former>,
    /// What this server has of a group since it was started, once that was looked at: when all data
    /// were loaded. Nothing, once it was given data or has led.
    pub on_disk: Mutex<Option<Option<Former>>>,
    /// What is written down of this server's data ([`crate::lineage`]).
    pub kept: Mutex<Option<Former>>,
    /// For INFO.
    pub seen: Mutex<Seen>,
}

/// What a server has of a group that has ended.
#[derive(Clone, Debug)]
pub struct Former {
    /// Which group that was.
    pub generation: u64,
    /// Its last term.
    pub term: u64,
    /// What this server has of it.
    pub extent: Extent,
    /// The bytes of its stream that this server has applied, at least.
    pub offset: u64,
    /// Its last in-sync set, an address a line.
    pub set: String,
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
    /// Servers that have, or will get it from their own agents.
    pub copies: u64,
    /// In how many zones those are.
    pub zones: u64,
    /// The leader's zone.
    pub zone: String,
    /// Why this server does not follow; empty: nothing keeps it from that.
    pub trouble: String,
    /// The agent of this host is in the group.
    pub runs: bool,
    /// The leader is not known to be gone.
    pub leader_lives: bool,
    /// The servers beside the leader.
    pub servers: Vec<Server>,
    /// Where this server is.
    pub own: String,
}

/// A server that follows, or should.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// Where it is.
    pub address: String,
    /// What fails together with its host; empty: it is not said.
    pub zone: String,
    /// It holds everything, or gets it from its own agent.
    pub is_in_sync: bool,
    /// Bytes that are decided and that it has not applied, as it said last.
    pub lag_bytes: u64,
    /// For how long it has not read what is there; the leader knows.
    pub lag_ms: Option<u64>,
    /// Why it gets no data.
    pub trouble: String,
}

impl Shared {
    /// # Errors
    /// Of `eventfd`.
    pub fn new(lineages: mpsc::Sender<Former>) -> io::Result<Self> {
        // Connections are taken by the kernel, and nobody says anything.
        let nobody = TcpListener::bind("127.0.0.1:0")?;
        Ok(Self {
            to_server: Queue::new()?,
            to_group: Queue::new()?,
            gate: Gate::default(),
            origin: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            lineage: AtomicU64::new(0),
            lineage_term: AtomicU64::new(0),
            log_is_live: AtomicBool::new(false),
            copy: AtomicU8::new(copy::NONE),
            copies: AtomicU64::new(0),
            zones: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            not_executed: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            is_leading: AtomicBool::new(false),
            has_lease: AtomicBool::new(false),
            progress: Mutex::default(),
            turns: AtomicU64::new(0),
            stream_id: Mutex::default(),
            nobody: nobody.local_addr()?.port(),
            _nobody: nobody,
            accounts: Mutex::default(),
            lineages,
            on_disk: Mutex::default(),
            kept: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    /// The main thread goes on.
    pub fn moves(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Progress::tick);
    }

    /// What is written down of this server's data.
    #[must_use]
    pub fn kept(&self) -> Option<Former> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// As what this module comes to servers.
    #[must_use]
    pub fn accounts(&self) -> Accounts {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was seen last.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
