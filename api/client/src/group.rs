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
//! anew) the library hands in again, with the same number, so that nothing is applied twice. A proposal may have a deadline
//! ([`Group::propose_by`]), and what became of one can be asked at any time ([`Group::ask`]), also by the same client in a new process.

use crate::connection::{ANSWER_TIMEOUT, Connection, Response};
use crate::error::{Error, system};
use crate::sys::{self, Poller, Timer};
use fide_wire::control::{ErrorCode, Refused, Reply, Request};
use fide_wire::session::{self, Bundle, Piece, ToAgent, ToClient};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use fide_wire::session::{Fate, SNAPSHOT_MAX, Stage, Standing, VALUE_MAX, Why};

/// Proposals that may wait for their entries.
pub const PENDING_MAX: usize = 1024;
/// Questions ([`Group::ask`]) that may wait for their answers.
pub const ASKED_MAX: usize = 64;
/// What was refused because too much waits is proposed again after so long.
const AGAIN: Duration = Duration::from_micros(500);
/// A proposal that the agent has refused for now is not handed in again so long before its deadline.
const LAST_MOMENT: Duration = Duration::from_millis(20);

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
    /// A proposal that was not taken, and never will be decided.
    Refused {
        /// Which.
        number: u64,
        /// Why.
        refusal: Refusal,
        /// Why, for people.
        why: String,
    },
    /// A proposal was not decided by its deadline. The agent has it, so it may be decided still, and then its entry comes; it is not handed in again
    /// ([`Group::ask`] says what became of it).
    Overdue {
        /// Which.
        number: u64,
    },
    /// The answer to [`Group::ask`], after all entries that it rests on. Behind a snapshot it comes
    /// unasked for each proposal that waits, because the entry of one that was decided may be in
    /// there: it waits no more then.
    Fate {
        /// Which proposal of this client.
        number: u64,
        /// What became of it.
        fate: Fate,
    },
}

/// Why a proposal was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The agent can never take it, or takes none from this user.
    Invalid,
    /// The agent had not taken it when its deadline came.
    TooLate,
}

/// A proposal that was not seen as an entry.
#[derive(Debug)]
struct Pending {
    number: u64,
    bytes: Vec<u8>,
    deadline: Option<Instant>,
    /// An agent may have taken it before this connection, or as another member.
    may_be_taken: bool,
    /// The agent has refused it in this connection, for now.
    was_refused: bool,
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
    /// What an event loop waits on: the socket, and the timer for what this library does by itself.
    poller: Poller,
    timer: Timer,
    /// When the timer wakes such a loop.
    armed: Option<Instant>,
    /// Somebody has such a loop.
    is_watched: AtomicBool,
    /// The timer wakes it until it has read everything that is here.
    has_more: bool,
    buffer: Box<[u8]>,
    /// Where the next message begins in the last datagram, and how long that is.
    unread: (usize, usize),
    out: Vec<u8>,
    bundle: Bundle,
    /// The agent reads bundles.
    bundles: bool,
    /// Why it takes no states from this client; empty: it does.
    refuses: String,
    index: u64,
    last_number: u64,
    /// Every own number through this one is an entry, or never will be.
    settled: u64,
    /// Proposed, and not seen as entries.
    pending: VecDeque<Pending>,
    /// The agent has those through this number.
    handed_in: u64,
    again_at: Option<Instant>,
    /// No pending deadline is before it.
    late_at: Option<Instant>,
    /// Questions, and how many of them, from the front, were put to this agent.
    asked: VecDeque<u64>,
    asked_here: usize,
    /// Found here.
    events: VecDeque<Event>,
    standing: Option<Standing>,
    /// Which group of that name it is.
    generation: u64,
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
        let poller = Poller::new().map_err(system("epoll_create"))?;
        let timer = Timer::new().map_err(system("timerfd_create"))?;
        poller.add(timer.as_fd(), 0, false).map_err(system("epoll_ctl"))?;
        let from = From { client, last_number, behind, generation: 0 };
        let Opened { connection, socket, client, bundles, refuses } = connect(path.as_deref(), name, from)?;
        poller.add(socket.as_fd(), 0, false).map_err(system("epoll_ctl"))?;
        Ok(Self {
            path,
            name: name.into(),
            client,
            socket,
            connection,
            poller,
            timer,
            armed: None,
            is_watched: AtomicBool::new(false),
            has_more: false,
            buffer: vec![0; session::MESSAGE_MAX].into_boxed_slice(),
            unread: (0, 0),
            out: Vec::new(),
            bundle: Bundle::default(),
            bundles,
            refuses,
            index: behind,
            last_number,
            settled: last_number,
            pending: VecDeque::new(),
            handed_in: last_number,
            again_at: None,
            late_at: None,
            asked: VecDeque::new(),
            asked_here: 0,
            events: VecDeque::new(),
            standing: None,
            generation: 0,
            snapshot: Vec::new(),
        })
    }

    /// Opens it anew, after [`Error::Disconnected`]: entries go on where they ended, and what was proposed and not seen is proposed again, once. Its descriptor
    /// stays. Blocks.
    ///
    /// # Errors
    /// As [`Group::open`]; [`Error::Refused`] with [`ErrorCode::NotFound`] where the group was begun anew
    /// meanwhile: its entries are counted from 1 again, so it must be opened anew, too.
    pub fn reconnect(&mut self) -> Result<(), Error> {
        let before = self.pending.front().map_or(self.last_number, |first| first.number - 1);
        let from = From { client: self.client, last_number: before, behind: self.index, generation: self.generation };
        let Opened { connection, socket, client, bundles, refuses } = connect(self.path.as_deref(), &self.name, from)?;
        self.poller.remove(self.socket.as_fd());
        self.poller.add(socket.as_fd(), 0, false).map_err(system("epoll_ctl"))?;
        (self.connection, self.socket, self.client, self.bundles) = (connection, socket, client, bundles);
        self.refuses = refuses;
        (self.standing, self.again_at, self.asked_here, self.unread) = (None, None, 0, (0, 0));
        self.snapshot.clear();
        self.hand_in_again();
        self.put_questions()
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
        self.propose_until(value, None)
    }

    /// [`Group::propose`] with a deadline. If the agent has not taken the value by then, it never will be decided ([`Event::Refused`] with
    /// [`Refusal::TooLate`]). If the agent has it, and its entry has not come, [`Event::Overdue`] says so once. Both come from [`Group::poll`].
    ///
    /// # Errors
    /// As [`Group::propose`].
    pub fn propose_by(&mut self, value: &[u8], deadline: Instant) -> Result<u64, Error> {
        self.propose_until(value, Some(deadline))
    }

    /// Proposes several values, decided in this order, and gives the number of the first; the
    /// others' follow. Cheaper than one call for each: they go to the agent together.
    ///
    /// # Errors
    /// As [`Group::propose`], for all of them: none is proposed then.
    pub fn propose_all(&mut self, values: &[&[u8]]) -> Result<u64, Error> {
        self.propose_values(values, None)
    }

    fn propose_until(&mut self, value: &[u8], deadline: Option<Instant>) -> Result<u64, Error> {
        self.propose_values(&[value], deadline)
    }

    fn propose_values(&mut self, values: &[&[u8]], deadline: Option<Instant>) -> Result<u64, Error> {
        if let Some(value) = values.iter().find(|value| value.len() > VALUE_MAX) {
            return Err(Error::TooLarge { size: value.len(), limit: VALUE_MAX });
        }
        if self.pending.len() + values.len() > PENDING_MAX {
            return Err(Error::Busy);
        }
        let first = self.last_number + 1;
        for (number, value) in (first..).zip(values) {
            let bytes = value.to_vec();
            self.pending.push_back(Pending { number, bytes, deadline, may_be_taken: false, was_refused: false });
            self.last_number = number;
        }
        self.late_at = self.late_at.into_iter().chain(deadline).min();
        self.hand_in()?;
        self.arm()?;
        Ok(first)
    }

    /// Asks what became of a proposal of this client, also of one that it made in a former life: [`Event::Fate`] is the answer, after all entries that it
    /// rests on. A question survives [`Group::reconnect`]. Does not wait.
    ///
    /// What is [`Fate::Open`] may be decided later. It is settled for good by any later proposal of this client that is decided.
    ///
    /// # Errors
    /// [`Error::Invalid`] for number 0; [`Error::Busy`] when [`ASKED_MAX`] questions wait for their answers.
    pub fn ask(&mut self, number: u64) -> Result<(), Error> {
        if number == 0 {
            return Err(Error::Invalid("a client's proposals are numbered from 1".into()));
        }
        if self.asked.len() >= ASKED_MAX {
            return Err(Error::Busy);
        }
        self.asked.push_back(number);
        self.put_questions()
    }

    /// The application's state behind this entry: the agent need not keep what is before, and gives it to those who come later.
    ///
    /// # Errors
    /// [`Error::Refused`] to who may only read the group; [`Error::TooLarge`] over [`session::SNAPSHOT_MAX`]; [`Error::Disconnected`], [`Error::System`].
    pub fn keep_snapshot(&mut self, index: u64, state: &[u8]) -> Result<(), Error> {
        if !self.refuses.is_empty() {
            return Err(Error::Refused(Refused { code: ErrorCode::Permission, what: self.refuses.clone() }));
        }
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
        let event = self.next_event(timeout)?;
        // What is left of a datagram does not make the socket readable.
        let has_more = self.is_watched.load(Ordering::Relaxed) && (!self.events.is_empty() || self.unread.0 < self.unread.1);
        if has_more != self.has_more {
            self.has_more = has_more;
            self.set_timer()?;
        }
        Ok(event)
    }

    fn next_event(&mut self, timeout: Option<Duration>) -> Result<Option<Event>, Error> {
        let deadline = sys::deadline(timeout);
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if self.due().is_some_and(|at| at <= Instant::now()) {
                self.catch_up()?;
                continue;
            }
            if let Some(message) = self.next_message()? {
                if let Some(event) = self.take(message)? {
                    return Ok(Some(event));
                }
                continue;
            }
            match sys::receive(self.socket.as_fd(), &mut self.buffer) {
                Ok(got) if got.len == 0 => return Err(Error::Disconnected),
                Ok(got) => self.unread = (0, got.len),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    if timeout == Some(Duration::ZERO) {
                        return Ok(None);
                    }
                    let until = [deadline, self.due()].into_iter().flatten().min();
                    let came = sys::wait_readable(self.socket.as_fd(), until).map_err(system("poll"))?;
                    if !came && deadline.is_some_and(|at| at <= Instant::now()) {
                        return Ok(None);
                    }
                    continue;
                }
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return Err(Error::Disconnected),
                Err(e) => return Err(system("receive from the agent")(e)),
            }
        }
    }

    /// Where the next message of the last datagram lies, if it has more of them.
    fn next_message(&mut self) -> Result<Option<Range<usize>>, Error> {
        let (at, length) = self.unread;
        if length == 0 {
            return Ok(None);
        }
        let next = self.buffer.get(..length).ok_or(session::Malformed).and_then(|got| session::next_message(got, at));
        let next = next.map_err(|session::Malformed| meaningless())?;
        self.unread = next.as_ref().map_or((0, 0), |message| (message.end, length));
        Ok(next)
    }

    fn take(&mut self, at: Range<usize>) -> Result<Option<Event>, Error> {
        let message = self.buffer.get(at).and_then(ToClient::read).ok_or_else(meaningless)?;
        match message {
            ToClient::Entry { member, index, client, number, bytes } => {
                let entry = Entry { index, member, client, number, bytes: bytes.to_vec() };
                if index != self.index + 1 {
                    return Err(Error::Protocol(format!("entry {index} came behind {}", self.index)));
                }
                self.index = index;
                if client == self.client {
                    while self.pending.front().is_some_and(|first| first.number <= number) {
                        self.pending.pop_front();
                    }
                    self.settled = self.settled.max(number);
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
                // Entries of what waits may be in it, and are not shown any more.
                let waits = self.pending.iter().map(|waits| waits.number).filter(|number| *number <= self.handed_in);
                let unasked: Vec<u64> = waits.filter(|number| !self.asked.contains(number)).collect();
                self.asked.extend(unasked);
                self.put_questions()?;
                Ok(Some(Event::Snapshot { index, bytes: std::mem::take(&mut self.snapshot) }))
            }
            ToClient::Standing(standing) => self.take_standing(standing),
            ToClient::Members(ids) => Ok(Some(Event::Members(ids.iter().collect()))),
            ToClient::Refused { number, why: Why::Invalid, text } => {
                let why = text.to_string();
                self.pending.retain(|waits| waits.number != number);
                Ok(Some(Event::Refused { number, refusal: Refusal::Invalid, why }))
            }
            // Its turn comes again, before those behind it.
            ToClient::Refused { number, .. } => {
                self.pending.iter_mut().filter(|waits| waits.number == number).for_each(|waits| waits.was_refused = true);
                self.handed_in = self.handed_in.min(number - 1);
                self.again_at.get_or_insert_with(|| Instant::now() + AGAIN);
                self.arm()?;
                Ok(None)
            }
            ToClient::Fate { fate, client, number } => self.take_fate(fate, client, number),
        }
    }

    fn take_standing(&mut self, standing: Standing) -> Result<Option<Event>, Error> {
        if standing.generation != 0 {
            if self.generation != 0 && self.generation != standing.generation {
                return Err(began_anew(&self.name));
            }
            self.generation = standing.generation;
        }
        let runs = standing.stage == Stage::Running;
        let is_new = self.standing.is_none_or(|old| old.stage != Stage::Running || old.me != standing.me);
        self.standing = Some(standing);
        if runs && is_new {
            self.hand_in_again();
            self.hand_in()?;
        }
        Ok(Some(Event::Standing(standing)))
    }

    fn take_fate(&mut self, fate: Fate, client: u64, number: u64) -> Result<Option<Event>, Error> {
        let asked = self.asked.iter().take(self.asked_here).position(|asked| *asked == number);
        let Some(at) = asked.filter(|_| client == self.client) else {
            return Err(Error::Protocol("an answer to nothing on a group's socket".into()));
        };
        self.asked.remove(at);
        self.asked_here -= 1;
        if matches!(fate, Fate::Decided | Fate::Never) {
            // Its entry would have come before this.
            self.pending.retain(|waits| waits.number != number);
            self.settled = self.settled.max(number);
        }
        Ok(Some(Event::Fate { number, fate }))
    }

    /// When something must be done here, whatever the agent says.
    fn due(&self) -> Option<Instant> {
        [self.again_at, self.late_at, self.armed].into_iter().flatten().min()
    }

    /// What is due: deadlines have come, and what was refused is handed in again.
    fn catch_up(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if self.armed.is_some_and(|at| at <= now) {
            self.armed = None;
            self.set_timer()?;
        }
        let handed_in = self.handed_in;
        self.pending.retain(|waits| {
            let is_late = waits.deadline.is_some_and(|at| at <= now);
            if is_late {
                let number = waits.number;
                self.events.push_back(if waits.may_be_taken || number <= handed_in {
                    Event::Overdue { number }
                } else {
                    let why = "the agent had not taken it by its deadline: it never will be decided".into();
                    Event::Refused { number, refusal: Refusal::TooLate, why }
                });
            }
            !is_late
        });
        self.late_at = self.pending.iter().filter_map(|waits| waits.deadline).min();
        if self.again_at.is_some_and(|at| at <= now) {
            self.again_at = None;
            self.hand_in()?;
        }
        self.arm()
    }

    /// Event loops wait on the descriptor alone, so that must wake them.
    fn arm(&mut self) -> Result<(), Error> {
        let next = [self.again_at, self.late_at].into_iter().flatten().min();
        // A wake-up too many costs less than a system call for each proposal.
        if let Some(at) = next
            && self.armed.is_none_or(|armed| at < armed)
        {
            self.armed = Some(at);
            self.set_timer()?;
        }
        Ok(())
    }

    fn set_timer(&self) -> Result<(), Error> {
        let at = if self.has_more { Some(Instant::now()) } else { self.armed };
        self.timer.set(at).map_err(system("timerfd_settime"))
    }

    fn put_questions(&mut self) -> Result<(), Error> {
        while let Some(number) = self.asked.get(self.asked_here) {
            ToAgent::Ask { client: self.client, number: *number }.write(&mut self.out);
            match self.send() {
                Ok(true) => self.asked_here += 1,
                Ok(false) => {
                    self.again_at.get_or_insert_with(|| Instant::now() + AGAIN);
                    return self.arm();
                }
                // The next poll says so, and they are put again behind a reconnect.
                Err(Error::Disconnected) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// What waits is proposed again, from the first one on.
    fn hand_in_again(&mut self) {
        let handed_in = self.handed_in;
        for waits in self.pending.iter_mut().filter(|waits| waits.number <= handed_in) {
            waits.may_be_taken = true;
        }
        if let Some(first) = self.pending.front() {
            self.handed_in = self.handed_in.min(first.number - 1);
        }
    }

    fn hand_in(&mut self) -> Result<(), Error> {
        if self.again_at.is_some() {
            return Ok(()); // in its turn
        }
        let from = self.pending.partition_point(|waits| waits.number <= self.handed_in);
        let mut last = self.handed_in;
        for at in from..self.pending.len() {
            let before = at.checked_sub(1).and_then(|at| self.pending.get(at)).map_or(self.settled, |before| before.number);
            let Pending { number, bytes, deadline, was_refused, .. } = &self.pending[at];
            let number = *number;
            // Just before its deadline it is not handed in once more: whether the agent has taken it would not be known by then.
            if let Some(deadline) = deadline.filter(|at| *was_refused && *at <= Instant::now() + LAST_MOMENT) {
                self.again_at = Some(deadline);
                break;
            }
            let skipped = u32::try_from(number - 1 - before.min(number - 1)).unwrap_or(u32::MAX);
            let is_enough = self.bundle.is_enough(bytes.len()) || !self.bundles;
            if is_enough && !self.send_bundle(last)? {
                return self.arm();
            }
            let Pending { bytes, .. } = &self.pending[at];
            self.bundle.push(|out| ToAgent::Propose { skipped, number, bytes }.append(out));
            last = number;
        }
        if !self.send_bundle(last)? || self.again_at.is_some() {
            return self.arm();
        }
        self.put_questions()
    }

    /// Hands in proposals, the last of which has this number. Whether the agent took them;
    /// otherwise they come again.
    fn send_bundle(&mut self, last: u64) -> Result<bool, Error> {
        if self.bundle.is_empty() {
            return Ok(true);
        }
        let sent = self.send_datagram(self.bundle.datagram());
        self.bundle.clear();
        match sent {
            Ok(true) => self.handed_in = last,
            Ok(false) => self.again_at = Some(Instant::now() + AGAIN),
            // The next poll says so, and nothing is lost.
            Err(Error::Disconnected) => return Ok(false),
            Err(e) => return Err(e),
        }
        sent
    }

    fn send(&self) -> Result<bool, Error> {
        self.send_datagram(&self.out)
    }

    fn send_datagram(&self, datagram: &[u8]) -> Result<bool, Error> {
        match sys::send(self.socket.as_fd(), datagram) {
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
    /// Readable when [`Group::poll`] has something, or something to do. Only to be waited on; it stays the same.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.is_watched.store(true, Ordering::Relaxed);
        self.poller.as_fd()
    }
}

impl AsRawFd for Group {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Where a client goes on.
struct From {
    client: u64,
    last_number: u64,
    behind: u64,
    /// 0: in whichever group of that name.
    generation: u64,
}

fn meaningless() -> Error {
    Error::Protocol("a message on a group's socket that means nothing".into())
}

fn began_anew(name: &str) -> Error {
    Error::Refused(session::began_anew(name))
}

/// What the agent has opened.
struct Opened {
    connection: Connection,
    socket: OwnedFd,
    client: u64,
    bundles: bool,
    refuses: String,
}

fn connect(path: Option<&Path>, name: &str, from: From) -> Result<Opened, Error> {
    let From { client, last_number, behind, generation } = from;
    let connection = Connection::open(path)?;
    let request = Request::OpenGroup { name: name.into(), client, behind, last_number, generation, bundles: true };
    let Response { reply, fds } = connection.request(&request)?;
    let Reply::GroupOpened { client, bundles, refuses } = reply else { return Err(connection.unexpected("a group", &reply)) };
    let [socket] = <[OwnedFd; 1]>::try_from(fds)
        .map_err(|fds| Error::Protocol(format!("a group with {} descriptors instead of one", fds.len())))?;
    Ok(Opened { connection, socket, client, bundles, refuses })
}
