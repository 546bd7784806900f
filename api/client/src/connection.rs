//! One conversation with the agent: a request, its reply, the descriptors that ride on it.

use crate::error::{Error, system};
use crate::sys;
use fide_wire::control::{DEFAULT_SOCKET, MESSAGE_MAX, PROTOCOL, Reply, Request, SOCKET_ENV};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long an answer is waited for unless [`Connection::set_timeout`] says otherwise. Agents answer in microseconds;
/// this is for one that is stopped or stuck.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A reply and what came with it.
#[derive(Debug)]
pub struct Response {
    /// What the agent said; never [`Reply::Error`], which becomes [`Error::Refused`].
    pub reply: Reply,
    /// Descriptors, closed on exec: one with [`Reply::Ring`] and [`Reply::Joined`], none otherwise.
    pub fds: Vec<OwnedFd>,
}

/// Who is at the other end, as it said in its greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// The host's name.
    pub node: String,
    /// Its wire id.
    pub node_id: u32,
    /// The cluster.
    pub cluster: String,
    /// The agent's version.
    pub version: String,
    /// What fails together with this host, such as its rack; empty: it is not said.
    pub zone: String,
}

/// A connection to the agent of this host: the low level, one message at a time.
///
/// It may be shared by threads: a request and its reply are one step under an internal lock, so calls from several threads
/// wait for each other. Use a connection of its own for `Events` with `follow`, because events that were not asked for
/// would be taken for replies.
///
/// When the agent hangs up, answers too late or breaks the protocol, the connection is over: that call says why, later
/// ones return [`Error::Disconnected`].
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    agent: Agent,
    /// The receive buffer; holding it makes request and reply one step.
    turn: Mutex<Box<[u8]>>,
    over: AtomicBool,
    timeout: Duration,
}

/// Reads one reply as it came off the socket. Pure; whatever the bytes, it returns.
///
/// # Errors
/// [`Error::Protocol`] when it is longer than [`MESSAGE_MAX`] or is no reply.
pub fn parse_reply(bytes: &[u8]) -> Result<Reply, Error> {
    if bytes.len() > MESSAGE_MAX {
        return Err(Error::Protocol(format!("a message of more than {MESSAGE_MAX} bytes")));
    }
    serde_json::from_slice(bytes).map_err(|e| Error::Protocol(format!("not a reply: {e}")))
}

/// The socket that [`Connection::open`] uses: `path`, else the environment's FIDE_SOCKET, else [`DEFAULT_SOCKET`].
#[must_use]
pub fn socket_path(path: Option<&Path>) -> PathBuf {
    match (path, std::env::var_os(SOCKET_ENV)) {
        (Some(path), _) => path.to_owned(),
        (None, Some(named)) if !named.is_empty() => named.into(),
        (None, _) => DEFAULT_SOCKET.into(),
    }
}

impl Connection {
    /// Connects to the agent (`path`, else FIDE_SOCKET, else [`DEFAULT_SOCKET`]) and greets it. Blocks for the answer, at
    /// most [`ANSWER_TIMEOUT`].
    ///
    /// # Errors
    /// [`Error::NoAgent`], [`Error::Permission`], [`Error::Version`]; [`Error::Refused`] when the agent turns this user
    /// away; the errors of [`Connection::request`].
    pub fn open(path: Option<&Path>) -> Result<Self, Error> {
        Self::open_with_timeout(path, ANSWER_TIMEOUT)
    }

    /// [`Connection::open`] with another limit for each answer (see [`Connection::set_timeout`]).
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub fn open_with_timeout(path: Option<&Path>, timeout: Duration) -> Result<Self, Error> {
        let path = socket_path(path);
        let socket = sys::connect(&path, timeout).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidInput => Error::Invalid(format!("{}: too long for the name of a socket", path.display())),
            io::ErrorKind::PermissionDenied => Error::Permission { path },
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::NoAnswer { seconds: timeout.as_secs_f64() },
            _ => Error::NoAgent { path, source },
        })?;
        let mut connection = Self {
            socket,
            agent: Agent { node: String::new(), node_id: 0, cluster: String::new(), version: String::new(), zone: String::new() },
            turn: Mutex::new(vec![0; MESSAGE_MAX].into_boxed_slice()),
            over: AtomicBool::new(false),
            timeout,
        };
        match connection.request(&Request::Hello { protocol: PROTOCOL })?.reply {
            Reply::Hello { protocol, .. } if protocol != PROTOCOL => Err(Error::Version { agent: protocol, client: PROTOCOL }),
            Reply::Hello { node, node_id, cluster, version, zone, .. } => {
                connection.agent = Agent { node, node_id, cluster, version, zone };
                Ok(connection)
            }
            other => Err(connection.unexpected("hello", &other)),
        }
    }

    /// The agent's greeting.
    #[must_use]
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Longest wait for the answer to a request; [`ANSWER_TIMEOUT`] at first.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Asks, and waits for the answer. Blocks, also while another thread asks.
    ///
    /// # Errors
    /// [`Error::Refused`] when the agent says no (the connection stays usable); [`Error::Disconnected`],
    /// [`Error::NoAnswer`], [`Error::Protocol`] and [`Error::System`] end the connection; [`Error::TooLarge`] when the
    /// request is longer than [`MESSAGE_MAX`].
    pub fn request(&self, request: &Request) -> Result<Response, Error> {
        self.request_within(request, self.timeout)
    }

    /// [`Connection::request`] with another limit for this answer.
    ///
    /// # Errors
    /// As [`Connection::request`].
    pub fn request_within(&self, request: &Request, timeout: Duration) -> Result<Response, Error> {
        let message = serde_json::to_vec(request).map_err(|e| Error::Invalid(e.to_string()))?;
        if message.len() > MESSAGE_MAX {
            return Err(Error::TooLarge { size: message.len(), limit: MESSAGE_MAX });
        }
        let mut buffer = self.turn();
        self.usable()?;
        if let Err(e) = sys::send(self.socket.as_fd(), &message) {
            self.close();
            return Err(match e.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => {
                    self.last_words(&mut buffer)
                }
                io::ErrorKind::WouldBlock => self.no_answer(),
                _ => system("send to the agent")(e),
            });
        }
        match self.receive(&mut buffer, Some(timeout))? {
            Some(response) => refuse(response),
            None => {
                self.close();
                Err(Error::NoAnswer { seconds: timeout.as_secs_f64() })
            }
        }
    }

    /// The next message that was not the direct answer to a request: more events after `Events`. Blocks without limit.
    ///
    /// # Errors
    /// As [`Connection::request`].
    pub fn next_reply(&self) -> Result<Response, Error> {
        loop {
            if let Some(response) = self.next_reply_within(None)? {
                return Ok(response);
            }
        }
    }

    /// [`Connection::next_reply`] that gives up after `timeout` (`None`: never); `Ok(None)` then, and nothing is lost.
    ///
    /// # Errors
    /// As [`Connection::request`].
    pub fn next_reply_within(&self, timeout: Option<Duration>) -> Result<Option<Response>, Error> {
        let mut buffer = self.turn();
        self.usable()?;
        self.receive(&mut buffer, timeout)?.map(refuse).transpose()
    }

    /// Whether the connection has ended, as far as calls on it have noticed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Ends the conversation: the agent sees this side hang up. Dropping the connection does the same.
    pub fn close(&self) {
        self.over.store(true, Ordering::Release);
        sys::shutdown(self.socket.as_fd());
    }

    /// Ends the connection with an agent that answered something else than it was asked.
    pub(crate) fn unexpected(&self, wanted: &str, got: &Reply) -> Error {
        self.close();
        let mut got = format!("{got:?}");
        got.truncate(got.find([' ', '(']).unwrap_or(got.len()));
        Error::Protocol(format!("{wanted} was due, {got} came"))
    }

    fn turn(&self) -> MutexGuard<'_, Box<[u8]>> {
        // What a panicking thread leaves behind is a scratch buffer.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usable(&self) -> Result<(), Error> {
        if self.is_over() { Err(Error::Disconnected) } else { Ok(()) }
    }

    fn no_answer(&self) -> Error {
        Error::NoAnswer { seconds: self.timeout.as_secs_f64() }
    }

    /// Why the agent hung up, if it said so: who is turned away is told before its first request is read.
    fn last_words(&self, buffer: &mut [u8]) -> Error {
        // The first read may report the hang-up instead of what was said before it.
        let said = sys::receive(self.socket.as_fd(), buffer).or_else(|_| sys::receive(self.socket.as_fd(), buffer));
        match said.ok().filter(|got| got.len > 0 && !got.truncated).and_then(|got| parse_reply(&buffer[..got.len]).ok()) {
            Some(Reply::Error(refused)) => Error::Refused(refused),
            _ => Error::Disconnected,
        }
    }

    /// Waits for one message; `None` when there is none in time.
    fn receive(&self, buffer: &mut [u8], timeout: Option<Duration>) -> Result<Option<Response>, Error> {
        let deadline = sys::deadline(timeout);
        let got = loop {
            match sys::receive(self.socket.as_fd(), buffer) {
                Ok(got) => break got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if !sys::wait_readable(self.socket.as_fd(), deadline).map_err(system("poll"))? {
                        return Ok(None);
                    }
                }
                Err(e) => {
                    self.close();
                    return Err(match e.kind() {
                        io::ErrorKind::ConnectionReset => self.last_words(buffer),
                        _ => system("receive from the agent")(e),
                    });
                }
            }
        };
        if got.len == 0 {
            self.close();
            return Err(Error::Disconnected);
        }
        let reply = if got.truncated {
            Err(Error::Protocol(format!("a message of more than {MESSAGE_MAX} bytes or {} descriptors", sys::FDS_MAX)))
        } else {
            parse_reply(&buffer[..got.len])
        };
        reply.map(|reply| Some(Response { reply, fds: got.fds })).inspect_err(|_| self.close())
    }
}

/// Turns a refusal into the error it is.
fn refuse(response: Response) -> Result<Response, Error> {
    match response.reply {
        Reply::Error(refused) => Err(Error::Refused(refused)),
        _ => Ok(response),
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
