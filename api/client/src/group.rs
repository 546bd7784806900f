//! Groups: a log that several hosts agree on, for an application on one of them.
//!
//! ```no_run
//! # use fide_client::group::{Event, Group};
//! let mut orders = Group::open("orders")?;
//! let number = orders.propose(b"one more")?;
//! while let Some(event) = orders.poll(None)? {
//!     match event {
//!         Event::Entry(entry) if entry.is_own(number, orders.client()) => break, // decided
//!         Event::Entry(entry) => println!("{}: {:?}", entry.index, entry.bytes),
//!         _ => {}
//!     }
//! }
//! # Ok::<(), fide_client::Error>(())
//! ```
//!
//! A proposal is decided once its entry comes: on every host, in one order, once. What the agent has not taken (it is busy, or its host was given up and joins
//! anew) the library hands in again, with the same number, so that nothing is applied twice.

use crate::connection::{ANSWER_TIMEOUT, Connection, Response};
use crate::error::{Error, system};
use crate::sys;
use fide_wire::control::{Reply, Request};
use fide_wire::session::{self, Piece, ToAgent, ToClient};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use fide_wire::session::{Stage, Standing, VALUE_MAX, Why};

/// Proposals that may wait for their entries.
pub const PENDING_MAX: usize = 1024;
/// What was refused because too much waits is proposed again after so long.
const AGAIN: Duration = Duration::from_micros(500);

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place, from 1, without a gap.
    pub index: u64,
    /// The member that proposed it.
    pub member: u16,
    /// The client that did.
    pub client: u64,
    /// That client's number of it.
    pub number: u64,
    /// What it says.
    pub bytes: Vec<u8>,
}

impl Entry {
    /// Whether it is this proposal of that client.
    #[must_use]
    pub fn is_own(&self, number: u64, client: u64) -> bool {
        self.number == number && self.client == client
    }
}

/// What happens in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The next entry.
    Entry(Entry),
    /// The state to begin from, before the next entry: what came before its index is not kept any more.
    Snapshot {
        /// The last entry that is in it.
        index: u64,
        /// What the application handed to [`Group::keep_snapshot`].
        bytes: Vec<u8>,
    },
    /// How the group stands, at first and whenever stage, leader or this host's member change.
    Standing(Standing),
    /// The members that are not known to have crashed, at first and whenever that changes.
    Members(Vec<u16>),
    /// A proposal that can never be taken.
    Refused {
        /// Which.
        number: u64,
        /// Why, for people.
        why: String,
    },
}

/// How a [`Group`] is opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The agent's socket; `None`: as [`Connection::open`] chooses.
    pub path: Option<PathBuf>,
    /// This client's id; 0: the agent makes one. Keep it, and the number of the last proposal, to come back as the same client.
    pub client: u64,
    /// Entries that were read before: the first one to come is the next one.
    pub behind: u64,
    /// The number of this client's last proposal in a former life.
    pub last_number: u64,
}

/// A group that is open. One thread at a time uses it.
#[derive(Debug)]
pub struct Group {
    path: Option<PathBuf>,
    name: String,
    client: u64,
    socket: OwnedFd,
    /// Kept, so that the agent's end is noticed.
    connection: Connection,
    buffer: Box<[u8]>,
    out: Vec<u8>,
    index: u64,
    last_number: u64,
    /// Proposed, and not seen as entries.
    pending: VecDeque<(u64, Vec<u8>)>,
    /// The agent has those through this number.
    handed_in: u64,
    again_at: Option<Instant>,
    standing: Option<Standing>,
    snapshot: Vec<u8>,
}

impl Group {
    /// Opens a group of this host's agent, from its first entry on. Blocks.
    ///
    /// # Errors
    /// Those of [`Connection::open`]; [`Error::Refused`] for a group that this host has not got, or to who may not open it.
    pub fn open(name: &str) -> Result<Self, Error> {
        Self::open_with(name, Options::default())
    }

    /// [`Group::open`] with everything that can be chosen. Blocks.
    ///
    /// # Errors
    /// As [`Group::open`].
    pub fn open_with(name: &str, options: Options) -> Result<Self, Error> {
        let Options { path, client, behind, last_number } = options;
        let (connection, socket, client) = connect(path.as_deref(), name, (client, last_number), behind)?;
        Ok(Self {
            path,
            name: name.into(),
            client,
            socket,
            connection,
            buffer: vec![0; session::MESSAGE_MAX].into_boxed_slice(),
            out: Vec::new(),
            index: behind,
            last_number,
            pending: VecDeque::new(),
            handed_in: last_number,
            again_at: None,
            standing: None,
            snapshot: Vec::new(),
        })
    }

    /// Opens it anew, after [`Error::Disconnected`]: entries go on where they ended, and what was proposed and not seen is proposed again, once. Blocks.
    ///
    /// # Errors
    /// As [`Group::open`].
    pub fn reconnect(&mut self) -> Result<(), Error> {
        let before = self.pending.front().map_or(self.last_number, |(number, _)| number - 1);
        let (connection, socket, client) = connect(self.path.as_deref(), &self.name, (self.client, before), self.index)?;
        (self.connection, self.socket, self.client) = (connection, socket, client);
        (self.standing, self.again_at) = (None, None);
        self.snapshot.clear();
        self.hand_in_again();
        Ok(())
    }

    /// This client's id.
    #[must_use]
    pub fn client(&self) -> u64 {
        self.client
    }

    /// The last entry that was read.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// How the group stands, as far as was read.
    #[must_use]
    pub fn standing(&self) -> Option<Standing> {
        self.standing
    }

    /// Proposals that were not seen as entries yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Proposes a value, and gives its number. Does not wait: its entry says that it is decided.
    ///
    /// # Errors
    /// [`Error::TooLarge`] over [`VALUE_MAX`]; [`Error::Busy`] when [`PENDING_MAX`] wait for their entries: read them first.
    pub fn propose(&mut self, value: &[u8]) -> Result<u64, Error> {
        if value.len() > VALUE_MAX {
            return Err(Error::TooLarge { size: value.len(), limit: VALUE_MAX });
        }
        if self.pending.len() >= PENDING_MAX {
            return Err(Error::Busy);
        }
        self.last_number += 1;
        self.pending.push_back((self.last_number, value.to_vec()));
        self.hand_in()?;
        Ok(self.last_number)
    }

    /// The application's state behind this entry: the agent need not keep what is before, and gives it to those who come later.
    ///
    /// # Errors
    /// [`Error::TooLarge`] over [`session::SNAPSHOT_MAX`]; [`Error::Disconnected`], [`Error::System`].
    pub fn keep_snapshot(&mut self, index: u64, state: &[u8]) -> Result<(), Error> {
        if state.len() as u64 > session::SNAPSHOT_MAX {
            return Err(Error::TooLarge { size: state.len(), limit: session::SNAPSHOT_MAX as usize });
        }
        let total = state.len() as u64;
        let mut at = 0;
        loop {
            let bytes = &state[at..state.len().min(at + session::PIECE_MAX)];
            ToAgent::Snapshot(Piece { index, total, at: at as u64, bytes }).write(&mut self.out);
            while !self.send()? {
                let until = sys::deadline(Some(ANSWER_TIMEOUT));
                if !sys::wait_writable(self.socket.as_fd(), until).map_err(system("poll"))? {
                    return Err(Error::NoAnswer { seconds: ANSWER_TIMEOUT.as_secs_f64() });
                }
            }
            at += bytes.len();
            if at >= state.len() {
                return Ok(());
            }
        }
    }

    /// The next event. Waits at most `timeout` (`None`: without limit); `Ok(None)` when none came.
    ///
    /// # Errors
    /// [`Error::Disconnected`] when the agent is gone: [`Group::reconnect`] then. [`Error::Protocol`], [`Error::System`].
    pub fn poll(&mut self, timeout: Option<Duration>) -> Result<Option<Event>, Error> {
        let deadline = sys::deadline(timeout);
        loop {
            if self.again_at.is_some_and(|at| at <= Instant::now()) {
                self.again_at = None;
                self.hand_in()?;
            }
            let got = match sys::receive(self.socket.as_fd(), &mut self.buffer) {
                Ok(got) if got.len == 0 => return Err(Error::Disconnected),
                Ok(got) => got.len,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    if timeout == Some(Duration::ZERO) {
                        return Ok(None);
                    }
                    let until = [deadline, self.again_at].into_iter().flatten().min();
                    let came = sys::wait_readable(self.socket.as_fd(), until).map_err(system("poll"))?;
                    if !came && deadline.is_some_and(|at| at <= Instant::now()) {
                        return Ok(None);
                    }
                    continue;
                }
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return Err(Error::Disconnected),
                Err(e) => return Err(system("receive from the agent")(e)),
            };
            if let Some(event) = self.take(got)? {
                return Ok(Some(event));
            }
        }
    }

    fn take(&mut self, got: usize) -> Result<Option<Event>, Error> {
        let message = self.buffer.get(..got).and_then(ToClient::read);
        let message = message.ok_or_else(|| Error::Protocol("a message on a group's socket that means nothing".into()))?;
        match message {
            ToClient::Entry { member, index, client, number, bytes } => {
                let entry = Entry { index, member, client, number, bytes: bytes.to_vec() };
                if index != self.index + 1 {
                    return Err(Error::Protocol(format!("entry {index} came behind {}", self.index)));
                }
                self.index = index;
                if client == self.client {
                    while self.pending.front().is_some_and(|(waits, _)| *waits <= number) {
                        self.pending.pop_front();
                    }
                    self.handed_in = self.handed_in.max(number);
                    self.last_number = self.last_number.max(number);
                }
                Ok(Some(Event::Entry(entry)))
            }
            ToClient::Snapshot(Piece { index, total, at, bytes }) => {
                if at == 0 {
                    self.snapshot.clear();
                }
                if at != self.snapshot.len() as u64 {
                    return Err(Error::Protocol("a piece of a snapshot is missing".into()));
                }
                self.snapshot.extend_from_slice(bytes);
                if (self.snapshot.len() as u64) < total {
                    return Ok(None);
                }
                self.index = index;
                Ok(Some(Event::Snapshot { index, bytes: std::mem::take(&mut self.snapshot) }))
            }
            ToClient::Standing(standing) => {
                let runs = standing.stage == Stage::Running;
                let is_new = self.standing.is_none_or(|old| old.stage != Stage::Running || old.me != standing.me);
                self.standing = Some(standing);
                if runs && is_new {
                    self.hand_in_again();
                    self.hand_in()?;
                }
                Ok(Some(Event::Standing(standing)))
            }
            ToClient::Members(ids) => Ok(Some(Event::Members(ids.iter().collect()))),
            ToClient::Refused { number, why: Why::Invalid, text } => {
                let why = text.to_string();
                self.pending.retain(|(waits, _)| *waits != number);
                Ok(Some(Event::Refused { number, why }))
            }
            // Its turn comes again, before those behind it.
            ToClient::Refused { number, .. } => {
                self.handed_in = self.handed_in.min(number - 1);
                self.again_at.get_or_insert_with(|| Instant::now() + AGAIN);
                Ok(None)
            }
        }
    }

    /// What waits is proposed again, from the first one on.
    fn hand_in_again(&mut self) {
        if let Some((first, _)) = self.pending.front() {
            self.handed_in = first - 1;
        }
    }

    fn hand_in(&mut self) -> Result<(), Error> {
        if self.again_at.is_some() {
            return Ok(()); // in its turn
        }
        let from = self.pending.partition_point(|(number, _)| *number <= self.handed_in);
        for at in from..self.pending.len() {
            let (number, bytes) = &self.pending[at];
            ToAgent::Propose { number: *number, bytes }.write(&mut self.out);
            let number = *number;
            match self.send() {
                Ok(true) => self.handed_in = number,
                Ok(false) => {
                    self.again_at = Some(Instant::now() + AGAIN);
                    return Ok(());
                }
                // The next poll says so, and nothing is lost.
                Err(Error::Disconnected) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn send(&self) -> Result<bool, Error> {
        match sys::send(self.socket.as_fd(), &self.out) {
            Ok(()) => Ok(true),
            Err(e) => match e.kind() {
                std::io::ErrorKind::WouldBlock => Ok(false),
                std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset => Err(Error::Disconnected),
                _ => Err(system("send to the agent")(e)),
            },
        }
    }
}

impl AsFd for Group {
    /// Readable when [`Group::poll`] has something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Group {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn connect(
    path: Option<&Path>,
    name: &str,
    (client, last_number): (u64, u64),
    behind: u64,
) -> Result<(Connection, OwnedFd, u64), Error> {
    let connection = Connection::open(path)?;
    let Response { reply, fds } = connection.request(&Request::OpenGroup { name: name.into(), client, behind, last_number })?;
    let Reply::GroupOpened { client } = reply else { return Err(connection.unexpected("a group", &reply)) };
    let [socket] = <[OwnedFd; 1]>::try_from(fds)
        .map_err(|fds| Error::Protocol(format!("a group with {} descriptors instead of one", fds.len())))?;
    Ok((connection, socket, client))
}
