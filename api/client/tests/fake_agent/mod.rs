//! An agent made for tests: a real SOCK_SEQPACKET server that speaks the control protocol, with an event ring and the piggyback
//! bridge, and that can be told to misbehave.
//!
//! It knows two processes: `db@a`, which runs (node a, number 7), and `web@b`, which does not. Its own host is `here`.

// Each test program uses another part of it.
#![allow(dead_code)]

pub mod bpf;

use fide_wire::control::{
    CheckOutcome, Checked, CheckedPeer, DEFAULT_SOCKET, ErrorCode, MESSAGE_MAX, MaintenanceOrder, MaintenanceStatus, PROTOCOL,
    Refused, Reply, Request, RingKind, bridge,
};
use fide_wire::event::{Record, RecordKind};
use fide_wire::name_id;
use fide_wire::verdict::{Cause, Grade};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Piggyback bytes that are granted at most.
pub const GRANTED: u32 = 1000;
/// The timeout that is granted.
pub const TIMEOUT_NS: u64 = 1_050_000;

/// How the next request with this `op` is answered instead of truthfully.
pub enum Answer {
    /// With these bytes.
    Raw(Vec<u8>),
    /// With this reply and these descriptors.
    Reply(Reply, Vec<OwnedFd>),
    /// By hanging up.
    HangUp,
    /// Not at all.
    Silence,
    /// Truthfully, but only now.
    Late(Duration),
}

/// What carries events.
pub enum Carrier {
    Socket(OwnedFd),
    Bpf(bpf::Ring),
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    answers: VecDeque<(&'static str, Answer)>,
    carriers: Vec<Carrier>,
    bridges: Vec<File>,
    connections: Vec<OwnedFd>,
    names: Vec<String>,
    bpf: bool,
    dying: bool,
    /// Who connects gets this after that long, and the end.
    turn_away: Option<(Reply, Duration)>,
}

pub struct FakeAgent {
    pub path: PathBuf,
    directory: PathBuf,
    state: Arc<Mutex<State>>,
    listener: Arc<OwnedFd>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

fn check(result: libc::c_int) -> libc::c_int {
    assert!(result >= 0, "{}", io::Error::last_os_error());
    result
}

fn owned(fd: libc::c_int) -> OwnedFd {
    // SAFETY: only called with descriptors that a system call has just returned.
    unsafe { OwnedFd::from_raw_fd(check(fd)) }
}

pub fn memfd(len: usize) -> File {
    // SAFETY: the name ends with a zero.
    let file = File::from(owned(unsafe { libc::memfd_create(c"fake".as_ptr(), libc::MFD_CLOEXEC) }));
    file.set_len(len as u64).unwrap();
    file
}

pub fn packet_pair() -> (OwnedFd, OwnedFd) {
    let mut pair = [0; 2];
    // SAFETY: room for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) });
    (owned(pair[0]), owned(pair[1]))
}

/// Sends one message with descriptors.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let raw: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0_u64; 16];
    // SAFETY: all-zero is a valid msghdr; the control area has room for the 4 descriptors that tests send at most, plus its
    // header, and everything lives through the call.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !raw.is_empty() {
            let size = (raw.len() * size_of::<i32>()) as u32;
            assert!(libc::CMSG_SPACE(size) as usize <= size_of_val(&control));
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as _;
            std::ptr::copy_nonoverlapping(raw.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), size as usize);
        }
        libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one message; 0 behind the last one.
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> usize {
    // SAFETY: the buffer is valid for its length.
    let got = unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    usize::try_from(got).unwrap_or(0)
}

fn shutdown(fd: BorrowedFd<'_>) {
    // SAFETY: no pointers.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

fn op(request: &Request) -> String {
    serde_json::to_value(request).unwrap()["op"].as_str().unwrap().to_owned()
}

pub fn refused(code: ErrorCode, what: &str) -> Reply {
    Reply::Error(Refused { code, what: what.into() })
}

/// A record about `db@a`, killed by SIGKILL, certain.
pub fn record(kind: RecordKind, cause: Cause) -> Record {
    Record {
        kind: kind as u16,
        cause: cause as u8,
        grade: Grade::Certain as u8,
        node: name_id("a"),
        app: 7,
        incarnation: 1,
        code: 9,
        id: u64::from(name_id("a")) << 32 | 1,
        event_ns: 1_000,
        sent_ns: 13_000,
        ..Record::default()
    }
}

impl FakeAgent {
    pub fn start() -> Self {
        Self::start_with(false)
    }

    /// With rings in memory that the kernel writes to; needs root.
    pub fn start_with(bpf: bool) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("fide-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(Path::new(DEFAULT_SOCKET).file_name().unwrap());
        Self::start_at(directory, path, bpf)
    }

    fn start_at(directory: PathBuf, path: PathBuf, bpf: bool) -> Self {
        // SAFETY: no pointers.
        let listener = owned(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) });
        // SAFETY: all-zero is a valid address.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
            *to = *from as libc::c_char;
        }
        // SAFETY: the address lives through the call.
        check(unsafe { libc::bind(listener.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) });
        // SAFETY: no pointers.
        check(unsafe { libc::listen(listener.as_raw_fd(), 16) });
        let listener = Arc::new(listener);
        let state = Arc::new(Mutex::new(State { bpf, ..State::default() }));
        let threads = Arc::new(Mutex::new(Vec::new()));
        let accept = {
            let (listener, state, threads) = (listener.clone(), state.clone(), threads.clone());
            std::thread::spawn(move || {
                loop {
                    // SAFETY: no address is asked for.
                    let fd = unsafe {
                        libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
                    };
                    if fd < 0 || state.lock().unwrap().dying {
                        return;
                    }
                    let connection = owned(fd);
                    let turned_away = state.lock().unwrap().turn_away.clone();
                    if let Some((reply, wait)) = turned_away {
                        // Sleep: how late the refusal is, as the test asked for.
                        std::thread::sleep(wait);
                        let _ = send(connection.as_fd(), &serde_json::to_vec(&reply).unwrap(), &[]); // it may have given up
                        continue;
                    }
                    state.lock().unwrap().connections.push(connection.try_clone().unwrap());
                    let state = state.clone();
                    threads.lock().unwrap().push(std::thread::spawn(move || serve(&connection, &state)));
                }
            })
        };
        threads.lock().unwrap().push(accept);
        Self { path, directory, state, listener, threads }
    }

    /// How the next request with this `op` is to be answered; in the order of the calls.
    pub fn next(&self, op: &'static str, answer: Answer) {
        self.state.lock().unwrap().answers.push_back((op, answer));
    }

    /// From now on whoever connects is turned away with this, unread, after that long.
    pub fn turn_away(&self, with: Option<(Reply, Duration)>) {
        self.state.lock().unwrap().turn_away = with;
    }

    /// Everything that was asked so far.
    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Puts a record onto every ring.
    pub fn emit(&self, record: Record, body: &[u8]) {
        let record = Record { body_len: body.len() as u16, ..record };
        self.emit_raw(&[record.as_bytes(), body].concat());
    }

    pub fn emit_raw(&self, bytes: &[u8]) {
        for carrier in &self.state.lock().unwrap().carriers {
            match carrier {
                // Who hung up hears no more.
                Carrier::Socket(fd) => drop(send(fd.as_fd(), bytes, &[])),
                Carrier::Bpf(ring) => ring.output(bytes),
            }
        }
    }

    /// The messages on the newest bridge, taken as the lane takes them.
    pub fn taken(&self) -> Vec<Vec<u8>> {
        let state = self.state.lock().unwrap();
        let bridge = state.bridges.last().expect("nobody joined");
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bridge.read_exact_at(&mut bytes, at as u64).unwrap();
            u32::from_ne_bytes(bytes)
        };
        let (head, mut tail) = (word(bridge::HEAD), word(bridge::TAIL));
        let mut messages = Vec::new();
        while tail != head {
            let slot = bridge::DATA + (tail % bridge::SLOTS) as usize * bridge::SLOT;
            let mut message = vec![0; word(slot) as usize];
            bridge.read_exact_at(&mut message, slot as u64 + 4).unwrap();
            messages.push(message);
            tail = tail.wrapping_add(1);
        }
        bridge.write_all_at(&tail.to_ne_bytes(), bridge::TAIL as u64).unwrap();
        messages
    }

    /// The memory of the newest bridge.
    pub fn bridge(&self) -> File {
        self.state.lock().unwrap().bridges.last().unwrap().try_clone().unwrap()
    }

    /// Dies: everything it holds is closed, as the kernel does for a process that was killed.
    pub fn kill(&self) {
        {
            let mut state = self.state.lock().unwrap();
            state.dying = true;
            for connection in &state.connections {
                shutdown(connection.as_fd());
            }
            state.connections.clear();
            state.carriers.clear();
            state.bridges.clear();
            state.names.clear();
        }
        shutdown(self.listener.as_fd());
        let threads: Vec<_> = self.threads.lock().unwrap().drain(..).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let _ = std::fs::remove_file(&self.path);
    }

    /// Starts over on the same socket.
    pub fn restart(&mut self) {
        self.kill();
        let bpf = self.state.lock().unwrap().bpf;
        let fresh = Self::start_at(self.directory.clone(), self.path.clone(), bpf);
        self.state = fresh.state.clone();
        self.listener = fresh.listener.clone();
        self.threads = fresh.threads.clone();
        std::mem::forget(fresh);
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn serve(connection: &OwnedFd, state: &Mutex<State>) {
    let mut buffer = vec![0; MESSAGE_MAX];
    loop {
        let len = receive(connection.as_fd(), &mut buffer);
        if len == 0 {
            return;
        }
        let request = match serde_json::from_slice::<Request>(&buffer[..len]) {
            Ok(request) => request,
            Err(e) => {
                let reply = refused(ErrorCode::Invalid, &e.to_string());
                let _ = send(connection.as_fd(), &serde_json::to_vec(&reply).unwrap(), &[]);
                continue;
            }
        };
        let ordered = {
            let mut state = state.lock().unwrap();
            state.requests.push(request.clone());
            let op = op(&request);
            let at = state.answers.iter().position(|(o, _)| *o == op);
            at.and_then(|at| state.answers.remove(at)).map(|(_, answer)| answer)
        };
        let (bytes, fds) = match ordered {
            Some(Answer::Raw(bytes)) => (bytes, Vec::new()),
            Some(Answer::Reply(reply, fds)) => (serde_json::to_vec(&reply).unwrap(), fds),
            Some(Answer::HangUp) => {
                shutdown(connection.as_fd());
                return;
            }
            Some(Answer::Silence) => continue,
            late => {
                if let Some(Answer::Late(delay)) = late {
                    // Sleep: how late the answer is, as the test asked for.
                    std::thread::sleep(delay);
                }
                let (reply, fds) = truth(&request, &mut state.lock().unwrap());
                (serde_json::to_vec(&reply).unwrap(), fds)
            }
        };
        if send(connection.as_fd(), &bytes, &fds).is_err() {
            return;
        }
    }
}

fn truth(request: &Request, state: &mut State) -> (Reply, Vec<OwnedFd>) {
    let alone = |reply| (reply, Vec::new());
    match request {
        Request::Hello { .. } => alone(Reply::Hello {
            protocol: PROTOCOL,
            node: "here".into(),
            node_id: name_id("here"),
            cluster: "test".into(),
            version: "0.1.0".into(),
            zone: String::new(),
        }),
        Request::Subscribe { socket_only: false } if state.bpf => {
            let ring = bpf::Ring::new();
            let (fd, size) = (ring.map.try_clone().unwrap(), ring.size);
            state.carriers.push(Carrier::Bpf(ring));
            (Reply::Ring { kind: RingKind::Bpf, size }, vec![fd])
        }
        Request::Subscribe { .. } => {
            let (ours, theirs) = packet_pair();
            state.carriers.push(Carrier::Socket(ours));
            (Reply::Ring { kind: RingKind::Socket, size: 0 }, vec![theirs])
        }
        Request::Monitor { target, pbsize, .. } => {
            let monitored = |node, app, alive| Reply::Monitored {
                node,
                app,
                pbsize: (*pbsize).min(GRANTED),
                timeout_ns: TIMEOUT_NS,
                alive,
                state: None,
                end: None,
            };
            alone(match target.as_str() {
                "db@a" => monitored(name_id("a"), 7, true),
                "web@b" => monitored(name_id("b"), 0, false),
                "@a" => monitored(name_id("a"), 0, true),
                "*" => monitored(0, 0, true),
                other => refused(ErrorCode::NotFound, &format!("no process {other} is known here")),
            })
        }
        Request::Unmonitor { target } if target == "db@a" => alone(Reply::Done),
        Request::Unmonitor { .. } => alone(refused(ErrorCode::NotFound, "it was not monitored")),
        Request::Join { name, .. } if state.names.contains(name) => {
            alone(refused(ErrorCode::Exists, &format!("{name} is taken on this host")))
        }
        Request::Join { name, pbsize, .. } => {
            state.names.push(name.clone());
            let memory = memfd(bridge::LEN);
            let fd = OwnedFd::from(memory.try_clone().unwrap());
            state.bridges.push(memory);
            let pbsize = (*pbsize).min(GRANTED);
            (Reply::Joined { app: 11, pbsize, bridge_len: bridge::LEN as u32 }, vec![fd])
        }
        Request::Quit if state.names.is_empty() => alone(refused(ErrorCode::Invalid, "this process has not joined")),
        Request::Quit => {
            state.names.clear();
            alone(Reply::Done)
        }
        Request::Progress { .. } if state.names.is_empty() => alone(refused(ErrorCode::Invalid, "join first")),
        Request::Progress { .. } | Request::Report { .. } | Request::EndConnections { .. } => alone(Reply::Done),
        // Drained, but for a host that nobody knows; this process has a gate, and is late when it says that it is from long ago.
        Request::Check { peer, since_ns, .. } => alone(Reply::Checked(Box::new(Checked {
            outcome: if peer.contains('@') { CheckOutcome::Drained } else { CheckOutcome::Void },
            drained_ns: since_ns + 1,
            lost_ns: since_ns + 2,
            why: if peer.contains('@') { String::new() } else { "this host lost packets".into() },
            peer: peer.contains('@').then(|| CheckedPeer {
                host: "a".into(),
                node: name_id("a"),
                incarnation: 3,
                host_state: "late".into(),
                app_state: "hung".into(),
                fence: None,
                fenced: false,
            }),
        }))),
        Request::Extend { known_ns, anew: false, .. } if *known_ns < 1000 => {
            alone(refused(ErrorCode::Fenced, "the gate is closed"))
        }
        Request::Extend { valid_ns, .. } => alone(Reply::Extended { gate: "me".into(), valid_ns: *valid_ns }),
        // All of host b is for a minute, and databases everywhere for two.
        Request::Maintenance { order: MaintenanceOrder::Status } => {
            let one =
                |target: &str, left_ns| MaintenanceStatus { target: target.into(), left_ns, ..MaintenanceStatus::default() };
            alone(Reply::Maintenance { maintenances: vec![one("@b", 60_000_000_000), one("db*", 120_000_000_000)] })
        }
        Request::Status => alone(Reply::Status(Box::default())),
        _ => alone(refused(ErrorCode::Unsupported, "not here")),
    }
}

/// Waits until `condition` holds; fails after a minute.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(1));
    }
}
