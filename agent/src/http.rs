//! HTTP/1.1 for a few trusted clients: connections, requests and answers, whatever is served.
//!
//! One thread, at most [`CONNECTIONS`] connections beside those that follow a stream, requests parsed by `httparse` and bounded
//! in size and time. When all places are taken the oldest connection gives way, so that slow clients cannot keep others out.
//! Every answer closes its connection. What is served is a [`Site`], which is asked on this thread and never waits.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most connections at a time, streams not included.
pub const CONNECTIONS: usize = 16;
/// Most streams at a time.
pub const STREAMS: usize = 32;
/// Largest request, its headers included.
pub const REQUEST_MAX: usize = 8 * 1024;
/// Most headers of a request.
const HEADERS_MAX: usize = 64;
/// For a request to arrive, for its answer to be made, and for a part of the answer to be taken.
const TIME_MAX: Duration = Duration::from_secs(5);
/// For what a client still sends after its answer.
const LINGER_MAX: Duration = Duration::from_millis(500);
/// A stream without news sends a comment this often: whoever is gone is noticed, and proxies keep the connection.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A request, as far as it is looked at.
#[derive(Debug)]
pub struct Request<'a> {
    /// The part of its target before the first `?`, as it was sent.
    pub path: &'a str,
    /// The part behind it; empty without one.
    pub query: &'a str,
    /// HEAD: only the answer's headers are sent.
    pub is_head: bool,
    headers: &'a [httparse::Header<'a>],
}

impl Request<'_> {
    /// The first header of this name, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// Code and reason.
    pub status: &'static str,
    /// `Content-Type`.
    pub kind: &'static str,
    /// More header lines, each with its line end.
    pub headers: String,
    /// What is sent behind the headers.
    pub body: String,
}

impl Response {
    /// Plain text.
    #[must_use]
    pub fn text(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", headers: String::new(), body: body.into() }
    }

    /// With one more header line.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// The code alone.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.status.get(..3).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    fn bytes(&self, is_head: bool) -> Vec<u8> {
        let Self { status, kind, headers, body } = self;
        let length = body.len();
        let mut bytes = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\n{headers}Connection: close\r\n\r\n"
        )
        .into_bytes();
        if !is_head {
            bytes.extend_from_slice(body.as_bytes());
        }
        bytes
    }
}

/// What a site says to a request.
pub enum Answer {
    /// All of it.
    Whole(Response),
    /// It takes a moment: asked again whenever the site's descriptor was rung.
    Later(Box<dyn Later>),
    /// Server-sent events, until somebody ends them.
    Stream(Box<dyn Stream>),
}

/// An answer that is being made elsewhere.
pub trait Later: Send {
    /// The answer, once it is there.
    fn poll(&mut self) -> Option<Response>;
    /// What is answered when it was not there in time.
    fn late(&self) -> Response;
}

/// What comes next of a stream.
pub enum Next {
    /// These bytes.
    Bytes(Arc<str>),
    /// Nothing now: asked again whenever the site's descriptor was rung.
    Nothing,
    /// The client lags so far that what comes next is not at hand any more: it is cut off.
    Gone,
}

/// A stream of server-sent events.
pub trait Stream: Send {
    /// What comes next.
    fn next(&mut self) -> Next;
}

/// What a site has answered, for the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Answers by code.
    pub answers: BTreeMap<u16, u64>,
    /// Streams that are open.
    pub streams: u64,
    /// Streams that were cut off because their clients did not take them.
    pub dropped: u64,
}

/// What is served.
pub trait Site: Send + 'static {
    /// Answers; must not wait.
    fn answer(&mut self, request: &Request<'_>) -> Answer;
    /// The answer when all places for streams are taken.
    fn full(&self) -> Response;
    /// Something was answered with this code.
    fn answered(&mut self, _code: u16) {}
    /// So many streams are open.
    fn streams(&mut self, _open: usize) {}
    /// A client did not take its stream and was cut off.
    fn dropped(&mut self) {}
}

/// Serves until it is dropped.
pub struct HttpServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Starts serving `site` on `address` by a thread of this name. `wake` is an eventfd of this server alone, which the site
    /// rings when there is news for what waits and for streams.
    ///
    /// # Errors
    /// When nothing can listen there.
    pub fn start(address: SocketAddr, thread: &str, wake: Arc<OwnedFd>, site: impl Site) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut server = Server {
            listener,
            wake: wake.clone(),
            stop: stop.clone(),
            site,
            connections: Vec::new(),
            streams: 0,
            rest_until: None,
        };
        let run = move || {
            crate::hooks::become_ordinary();
            server.run();
        };
        let thread = std::thread::Builder::new().name(thread.into()).stack_size(512 << 10).spawn(run)?;
        Ok(Self { address: bound, stop, wake, thread: Some(thread) })
    }

    /// Where it listens (the port chosen when 0 was asked for).
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        crate::wake::ring(&self.wake);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What to do when nothing can listen on an address, as set by `key`.
#[must_use]
pub fn advice(error: &io::Error, key: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another agent or program listens there (see `ss -ltnp`): set another {key}, or \"off\"")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("this host has no such address, or its interface is down: set another {key}")
        }
        io::ErrorKind::PermissionDenied => format!("ports below 1024 need a privilege: set a higher one in {key}"),
        _ => format!("set another {key}, or \"off\""),
    }
}

/// What a connection is at.
enum Phase {
    Reading,
    Waiting {
        later: Box<dyn Later>,
        is_head: bool,
    },
    Writing {
        answer: Vec<u8>,
        done: usize,
    },
    Streaming {
        out: Vec<u8>,
        done: usize,
        stream: Box<dyn Stream>,
        /// What the client sent behind its request, which nobody reads.
        ignored: usize,
    },
    /// The answer is sent; what the client still sends is thrown away, for closing on it would destroy the answer.
    Lingering,
}

struct Connection {
    stream: TcpStream,
    phase: Phase,
    request: Vec<u8>,
    deadline: Instant,
}

impl Connection {
    fn is_stream(&self) -> bool {
        matches!(self.phase, Phase::Streaming { .. })
    }

    fn events(&self) -> i16 {
        match &self.phase {
            Phase::Reading | Phase::Lingering => libc::POLLIN,
            // A client that goes away is noticed when it is answered, or too late.
            Phase::Waiting { .. } => 0,
            Phase::Writing { .. } => libc::POLLOUT,
            Phase::Streaming { out, done, .. } => libc::POLLIN | if *done < out.len() { libc::POLLOUT } else { 0 },
        }
    }

    fn write(&mut self, now: Instant, answer: Vec<u8>) {
        self.request = Vec::new();
        self.deadline = now + TIME_MAX;
        self.phase = Phase::Writing { answer, done: 0 };
    }
}

struct Server<S> {
    listener: TcpListener,
    wake: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    site: S,
    /// Oldest first.
    connections: Vec<Connection>,
    streams: usize,
    /// Accepting failed (no descriptors left): not again before then.
    rest_until: Option<Instant>,
}

impl<S: Site> Server<S> {
    fn run(&mut self) {
        while !self.stop.load(Ordering::Acquire) {
            self.wait();
            crate::wake::drain(&self.wake);
            let now = Instant::now();
            if self.rest_until.is_none_or(|r| now >= r) {
                self.rest_until = None;
                self.accept(now);
            }
            let mut kept = Vec::with_capacity(self.connections.len());
            for mut connection in std::mem::take(&mut self.connections) {
                let in_time = now < connection.deadline || self.overdue(&mut connection, now);
                if in_time && self.advance(&mut connection, now) {
                    kept.push(connection);
                }
            }
            self.connections = kept;
            self.streams = self.connections.iter().filter(|c| c.is_stream()).count();
            self.site.streams(self.streams);
        }
    }

    fn wait(&self) {
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let accepting = if self.rest_until.is_some() { 0 } else { libc::POLLIN };
        let mut fds = vec![entry(self.wake.as_raw_fd(), libc::POLLIN), entry(self.listener.as_raw_fd(), accepting)];
        let mut until = self.rest_until;
        for c in &self.connections {
            fds.push(entry(c.stream.as_raw_fd(), c.events()));
            until = Some(until.map_or(c.deadline, |u| u.min(c.deadline)));
        }
        let timeout = until.map_or(-1, |u| {
            let left = u.saturating_duration_since(Instant::now());
            i32::try_from(left.as_millis()).unwrap_or(i32::MAX - 1) + 1
        });
        // SAFETY: the array is live and of the length passed.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    }

    fn accept(&mut self, now: Instant) {
        // Bounded, so that those already here get their turn.
        for _ in 0..CONNECTIONS {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.connections.len() >= CONNECTIONS + self.streams
                        && let Some(oldest) = self.connections.iter().position(|c| !c.is_stream())
                    {
                        self.connections.remove(oldest);
                    }
                    let deadline = now + TIME_MAX;
                    self.connections.push(Connection { stream, phase: Phase::Reading, request: Vec::new(), deadline });
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                Err(_) => {
                    self.rest_until = Some(now + Duration::from_millis(200));
                    return;
                }
            }
        }
    }

    /// A connection's time is over; `false` when that is its end.
    fn overdue(&mut self, c: &mut Connection, now: Instant) -> bool {
        match &mut c.phase {
            Phase::Waiting { later, is_head } => {
                let (response, is_head) = (later.late(), *is_head);
                self.respond(c, now, &response, is_head);
                true
            }
            Phase::Streaming { out, done, .. } if *done == out.len() => {
                *out = b":\n\n".to_vec();
                *done = 0;
                c.deadline = now + TIME_MAX;
                true
            }
            Phase::Streaming { .. } => {
                self.site.dropped();
                false
            }
            Phase::Reading | Phase::Writing { .. } | Phase::Lingering => false,
        }
    }

    fn respond(&mut self, c: &mut Connection, now: Instant, response: &Response, is_head: bool) {
        self.site.answered(response.code());
        c.write(now, response.bytes(is_head));
    }

    /// Does what can be done without waiting; `false` when the connection is over.
    fn advance(&mut self, c: &mut Connection, now: Instant) -> bool {
        loop {
            match &mut c.phase {
                Phase::Reading => {
                    let mut buffer = [0u8; 2048];
                    match c.stream.read(&mut buffer) {
                        Ok(0) => return false,
                        Ok(n) => c.request.extend_from_slice(&buffer[..n]),
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                        Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
                    }
                    self.read(c, now);
                }
                Phase::Waiting { later, is_head } => match later.poll() {
                    Some(response) => {
                        let is_head = *is_head;
                        self.respond(c, now, &response, is_head);
                    }
                    None => return true,
                },
                Phase::Writing { answer, done } => match c.stream.write(&answer[*done..]) {
                    Ok(0) => return false,
                    Ok(n) if *done + n < answer.len() => *done += n,
                    Ok(_) => {
                        if c.stream.shutdown(Shutdown::Write).is_err() {
                            return false;
                        }
                        c.deadline = now + LINGER_MAX;
                        c.phase = Phase::Lingering;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
                },
                Phase::Streaming { .. } => return self.advance_stream(c, now),
                Phase::Lingering => {
                    let mut buffer = [0u8; 4096];
                    // One read a turn: who sends without end is cut off by the deadline, not served before others.
                    return match c.stream.read(&mut buffer) {
                        Ok(n) => n > 0,
                        Err(e) => matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
                    };
                }
            }
        }
    }

    fn advance_stream(&mut self, c: &mut Connection, now: Instant) -> bool {
        let Phase::Streaming { out, done, stream, ignored } = &mut c.phase else { return false };
        let mut buffer = [0u8; 1024];
        match c.stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(n) => *ignored += n,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return false,
        }
        if *ignored > REQUEST_MAX {
            return false;
        }
        loop {
            if *done < out.len() {
                match c.stream.write(&out[*done..]) {
                    Ok(0) => return false,
                    Ok(n) => {
                        *done += n;
                        c.deadline = now + TIME_MAX;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
                }
                continue;
            }
            match stream.next() {
                Next::Bytes(bytes) => {
                    *out = bytes.as_bytes().to_vec();
                    *done = 0;
                    c.deadline = now + TIME_MAX;
                }
                Next::Nothing => {
                    if !out.is_empty() {
                        out.clear();
                        *done = 0;
                        c.deadline = now + KEEP_ALIVE;
                    }
                    return true;
                }
                Next::Gone => {
                    self.site.dropped();
                    return false;
                }
            }
        }
    }

    /// Looks at what has arrived of a request, and begins its answer when it is all there.
    fn read(&mut self, c: &mut Connection, now: Instant) {
        let bytes = std::mem::take(&mut c.request);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut headers);
        let refusal = match parsed.parse(&bytes) {
            Ok(httparse::Status::Partial) if bytes.len() < REQUEST_MAX => {
                c.request = bytes;
                return;
            }
            Ok(httparse::Status::Complete(n)) if n <= REQUEST_MAX => None,
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                Some(Response::text("431 Request Header Fields Too Large", "the request is too large\n"))
            }
            Err(e) => Some(Response::text("400 Bad Request", format!("not an HTTP request: {e}\n"))),
        };
        let (is_head, is_read) = (parsed.method == Some("HEAD"), matches!(parsed.method, Some("GET" | "HEAD")));
        let refusal = refusal.or_else(|| {
            let refused = Response::text("405 Method Not Allowed", "only GET and HEAD\n").with("Allow", "GET, HEAD");
            (!is_read).then_some(refused)
        });
        if let Some(refused) = refusal {
            return self.respond(c, now, &refused, false);
        }
        let (path, query) = parsed.path.and_then(|p| p.split_once('?')).unwrap_or((parsed.path.unwrap_or(""), ""));
        let request = Request { path, query, is_head, headers: parsed.headers };
        match self.site.answer(&request) {
            Answer::Whole(response) => self.respond(c, now, &response, is_head),
            Answer::Later(later) => {
                c.deadline = now + TIME_MAX;
                c.phase = Phase::Waiting { later, is_head };
            }
            Answer::Stream(_) if self.streams >= STREAMS && !is_head => {
                let full = self.site.full();
                self.respond(c, now, &full, is_head);
            }
            Answer::Stream(stream) => {
                self.site.answered(200);
                let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-store\r\n\
                    X-Content-Type-Options: nosniff\r\nX-Accel-Buffering: no\r\nConnection: close\r\n\r\n";
                if is_head {
                    return c.write(now, head.to_vec());
                }
                self.streams += 1;
                c.deadline = now + TIME_MAX;
                // The time after which a client that was cut off comes back, ms.
                let out = [head.as_slice(), b"retry: 1000\n\n"].concat();
                c.phase = Phase::Streaming { out, done: 0, stream, ignored: 0 };
            }
        }
    }
}
