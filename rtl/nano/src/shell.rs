//! `fide nano run`: a member on interfaces of this host.
//!
//! Frames leave as whole Ethernet frames through an AF_PACKET socket (`fide_lane`). What arrives for the group's port on an
//! interface is taken with the kernel's time stamp from a socket bound to it: the kernel has stripped Ethernet, IP and UDP, as a
//! NIC's shell does for the engine.

use crate::args::RunArgs;
use crate::config::Group;
use crate::driver::{Answer, Ask};
use crate::hardware::Hardware;
use crate::member::{Member, Note, Wire};
use crate::software::Software;
use crate::trace::Trace;
use crate::{EMULATION, Refusal};
use fide_lane::send::{Lane, Options, PathSpec, SendMode};
use fide_proto::group::{Body, Entry, EntryId, MemberId};
use fide_rtl::model::Library;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read as _, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Asks of one client that may be unread (bytes).
const LINE_MAX: usize = 64 * 1024;
/// The shell looks at everything at least so often (ns).
const WAIT_NS: u64 = 5_000_000;

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

struct Net {
    lane: Lane,
    addresses: BTreeMap<MemberId, Vec<IpAddr>>,
    trace: Option<Trace>,
}

impl Wire for Net {
    fn send(&mut self, path: usize, to: Option<MemberId>, frame: &[u8]) -> bool {
        let Some(to) = to else {
            let mut payloads = [None; fide_wire::PATHS];
            payloads[path] = Some(frame);
            if let Some(trace) = &mut self.trace {
                trace.leaves(monotonic_ns(), path, frame);
            }
            let sent = self.lane.send(payloads)[path].is_ok();
            if let Some(trace) = self.trace.as_mut().filter(|_| !sent) {
                trace.stayed(monotonic_ns(), path, frame);
            }
            return sent;
        };
        let address = self.addresses.get(&to).and_then(|addresses| addresses.get(path));
        // A message to one member is repeated, or its client's to repeat: it is no fault of the network.
        address.is_some_and(|address| self.lane.send_to(path as u8, *address, frame).is_ok())
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    fn note(&mut self, at_ns: u64, note: Note<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.note(at_ns, note);
        }
    }
}

/// A line of the log: one entry that was decided.
#[derive(Serialize)]
struct Decided<'a> {
    instance: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u16>,
    proposer: u16,
    number: u64,
    kind: &'a str,
    value: String,
    emulation: bool,
}

struct Client {
    stream: UnixStream,
    unread: Vec<u8>,
}

struct Shell {
    member: Box<dyn Member>,
    net: Net,
    me: MemberId,
    number: u64,
    log: BufWriter<Box<dyn Write>>,
    listener: UnixListener,
    clients: Vec<Client>,
    socket: PathBuf,
}

/// Where the model is: as named, in the environment, or where `scripts/rtl model` leaves it.
fn library(named: Option<&Path>) -> Result<Library, Refusal> {
    let path = named.map_or_else(
        || std::env::var_os("FIDE_RTL_MODEL").map_or_else(|| PathBuf::from("target/rtl/libfide_rtl.so"), PathBuf::from),
        Path::to_path_buf,
    );
    Library::load(&path).map_err(|why| {
        Refusal::new(format!("the engine's model is missing: {why}")).hint(
            "build it in the source tree (needs Verilator: scripts/setup rtl): scripts/rtl model; then name it: \
             --model target/rtl/libfide_rtl.so, or FIDE_RTL_MODEL",
        )
    })
}

/// Runs a member until it is ended.
///
/// # Errors
/// What keeps it from starting.
pub fn run(args: &RunArgs) -> Result<(), Refusal> {
    let group = Group::read(&args.config)?;
    let setup = group.setup(args.member).map_err(|why| Refusal::new(format!("{}: {why}", args.config.display())))?;
    let interfaces = &args.interface;
    if interfaces.len() != group.trees.len() {
        return Err(Refusal::new(format!("{} interfaces, and the group has {} paths", interfaces.len(), group.trees.len()))
            .hint("name one --interface for each tree of the group, in their order"));
    }
    // Before anything is opened: it may not be there.
    let library = if args.software { None } else { Some(library(args.model.as_deref())?) };
    let specs: Vec<PathSpec> = (0u8..)
        .zip(interfaces.iter().zip(&group.trees))
        .map(|(path, (interface, tree))| PathSpec {
            path,
            interface: interface.clone(),
            group: Some(*tree),
            unicast: Vec::new(),
            port: group.port,
            source: None,
        })
        .collect();
    let options = Options { receive: true, ..Options::default() };
    let lane = Lane::open_with(&specs, SendMode::Packet, options).map_err(|why| Refusal::new(why.to_string()))?;
    for (path, interface) in interfaces.iter().enumerate() {
        if let Some(why) = lane.down(path as u8) {
            return Err(Refusal::new(format!("{interface}: {why}")));
        }
    }
    if args.fifo {
        // SAFETY: pid 0 is the calling thread; the parameter is readable.
        let set = unsafe {
            let param = libc::sched_param { sched_priority: 40 };
            libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const param)
        };
        if set != 0 {
            let why = std::io::Error::last_os_error();
            return Err(Refusal { permission: true, ..Refusal::new(format!("--fifo: {why}")) });
        }
    }
    let trace = args.trace.as_ref().map(|path| Trace::create(path, setup.clone())).transpose()?;
    let mut net = Net { lane, addresses: group.addresses(), trace };
    let me = setup.me;
    let member: Box<dyn Member> = match library {
        Some(library) => Box::new(Hardware::new(library, setup, &mut net)),
        None => Box::new(Software::new(setup, &mut net)),
    };
    let log: Box<dyn Write> = match &args.log {
        Some(path) => Box::new(File::create(path).map_err(|why| Refusal::new(format!("{}: {why}", path.display())))?),
        None => Box::new(std::io::stdout()),
    };
    let listener = listen(&args.engine)?;
    eprintln!("member {} ({}): {EMULATION}", args.member, member.kind());
    let number = monotonic_ns() / 1_000;
    let (log, clients, socket) = (BufWriter::new(log), Vec::new(), args.engine.clone());
    let mut shell = Shell { member, net, me, number, log, listener, clients, socket };
    loop {
        shell.turn()?;
    }
}

fn listen(path: &Path) -> Result<UnixListener, Refusal> {
    let fail = |why: std::io::Error| Refusal::new(format!("{}: {why}", path.display()));
    if UnixStream::connect(path).is_ok() {
        return Err(Refusal::new(format!("{}: a member listens there already", path.display())));
    }
    match std::fs::remove_file(path) {
        Err(why) if why.kind() != ErrorKind::NotFound => return Err(fail(why)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

impl Shell {
    fn turn(&mut self) -> Result<(), Refusal> {
        let mut arrived = Vec::new();
        let mut buffer = [0u8; 2048];
        for path in 0..fide_wire::PATHS {
            while let Some(received) = self.net.lane.receive(path as u8, &mut buffer) {
                arrived.push((received.arrived_ns, path, buffer[..received.len].to_vec()));
            }
        }
        arrived.sort_by_key(|(at_ns, ..)| *at_ns);
        for (at_ns, path, frame) in arrived {
            self.member.frame(path, at_ns.min(monotonic_ns()), &frame, &mut self.net);
        }
        self.member.advance(&mut self.net);
        self.serve();
        self.tell().map_err(|why| Refusal::new(format!("the log of decisions: {why}")))?;
        self.trace()?;
        self.wait();
        Ok(())
    }

    fn tell(&mut self) -> std::io::Result<()> {
        let decisions = self.member.decisions();
        if decisions.is_empty() {
            return Ok(());
        }
        for decision in decisions {
            if let Some(trace) = &mut self.net.trace {
                trace.decides(monotonic_ns(), decision.instance, &decision.batch);
            }
            for entry in decision.batch.iter() {
                let (kind, value) = match &entry.body {
                    Body::Value(value) => ("value", String::from_utf8_lossy(value).into_owned()),
                    Body::Join(member) => ("join", member.0.to_string()),
                    Body::Leave(member) => ("leave", member.0.to_string()),
                    Body::Switch(_) => ("switch", String::new()),
                };
                let (proposer, number) = (entry.id.proposer.0, entry.id.number);
                let (instance, leader) = (decision.instance, decision.leader.map(|leader| leader.0));
                let line = Decided { instance, leader, proposer, number, kind, value, emulation: true };
                serde_json::to_writer(&mut self.log, &line)?;
                self.log.write_all(b"\n")?;
            }
        }
        self.log.flush()
    }

    fn trace(&mut self) -> Result<(), Refusal> {
        let Some(trace) = &mut self.net.trace else { return Ok(()) };
        if self.member.halted() {
            trace.halts(monotonic_ns());
        }
        trace.failed.take().map_or(Ok(()), |why| Err(Refusal::new(format!("the trace: {why}"))))
    }

    fn wait(&self) {
        let mut fds: Vec<libc::pollfd> =
            self.net.lane.receive_fds().into_iter().map(|(_, fd)| fd).collect::<Vec<_>>().iter().map(|fd| poll_in(*fd)).collect();
        fds.push(poll_in(self.listener.as_raw_fd()));
        fds.extend(self.clients.iter().map(|client| poll_in(client.stream.as_raw_fd())));
        let wait_ns = self.member.due_ns().saturating_sub(monotonic_ns()).min(WAIT_NS);
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: wait_ns as libc::c_long };
        // SAFETY: the descriptors' list and the timeout live through the call.
        unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const timeout, std::ptr::null()) };
    }

    fn serve(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client { stream, unread: Vec::new() });
            }
        }
        let mut clients = std::mem::take(&mut self.clients);
        clients.retain_mut(|client| self.serve_one(client));
        self.clients = clients;
    }

    /// Whether the client stays.
    fn serve_one(&mut self, client: &mut Client) -> bool {
        let mut bytes = [0u8; 4096];
        loop {
            match client.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(n) => client.unread.extend_from_slice(&bytes[..n]),
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
            if client.unread.len() > LINE_MAX {
                return false;
            }
        }
        while let Some(end) = client.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = client.unread.drain(..=end).collect();
            let answer = match serde_json::from_slice::<Ask>(&line) {
                Ok(ask) => self.answer(ask),
                Err(why) => Answer::refused(format!("this cannot be read: {why}")),
            };
            let mut text = serde_json::to_vec(&answer).unwrap_or_default();
            text.push(b'\n');
            // Answers are short; a client that does not read them is let go.
            if client.stream.write_all(&text).is_err() {
                return false;
            }
        }
        true
    }

    fn answer(&mut self, ask: Ask) -> Answer {
        let body = match ask {
            Ask::Read { at } => return Answer { value: self.member.read(at, &mut self.net), ..Answer::default() },
            Ask::Write { at, value } => {
                if self.member.write(at, value, &mut self.net) {
                    return Answer::default();
                }
                return Answer::refused(format!("the engine refused to write {value:#x} to {at:#05x}"));
            }
            Ask::Point => {
                let Some((point, members)) = self.member.point() else {
                    return Answer::refused("nothing was decided here yet, so there is no point to begin at: try again later");
                };
                let members = members.iter().map(|id| id.0).collect();
                return Answer { point: Some((point.round, point.leader.0, point.next, members)), ..Answer::default() };
            }
            Ask::Info => return Answer { kind: Some(self.member.kind().into()), ..Answer::default() },
            Ask::Propose { value } => Body::Value(value.as_bytes().into()),
            Ask::Join { member } => Body::Join(MemberId(member)),
            Ask::Leave { member } => Body::Leave(MemberId(member)),
        };
        self.number += 1;
        let entry = Entry { id: EntryId { proposer: self.me, number: self.number }, body };
        if let Some(trace) = &mut self.net.trace {
            trace.proposes(monotonic_ns(), &entry);
        }
        self.member.propose(entry, &mut self.net).map_or_else(Answer::refused, |()| Answer::default())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn poll_in(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
