//! States of applications on their way between agents, by TCP
//! ([`fide_proto::services::groups::large`]).
//!
//! ```text
//! fetches: magic, key id, cluster; e, payload: which ─►
//!                              ◄─ e, ee, payload: its bytes, or 0
//! an empty message: only who has the key and lives can write it ─►
//!                              ◄─ a message for each piece
//! ```
//! Noise (pattern `NNpsk0`, by snow) with the cluster's key: who has not got it learns nothing, and
//! nothing that he sends is taken for a state. Who repeats what another one sent gets some bytes, and
//! no state. Before the third message came, a connection takes a place of its own kind, of which an
//! address has a few and no connection has one for long. Without `[keys]` the key is the public one, as it is
//! for packets. Agents listen on the interfaces of the paths, at the number behind the lane's port.
//!
//! Threads here are ordinary ones. What is sent is paced: heartbeats do not queue behind it.

use crate::core::requests::Request;
use crate::handle::LoopHandle;
use crate::hooks::become_ordinary;
use crate::state_jobs::Job;
use anyhow::{Context as _, bail, ensure};
use crossbeam_channel::Receiver;
use fide_lane::PathSpec;
use fide_proto::services::groups::large::{Builder, Fetched, Large, LargeId, LargeRef, PIECE_LEN};
use fide_wire::mac::Keyring;
use snow::{HandshakeState, TransportState};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const MAGIC: &[u8; 6] = b"FiDeS2";
/// Before the first message of Noise.
const HEAD_LEN: usize = MAGIC.len() + 1 + 4;
/// What fills a key of 16 bytes up to those that Noise wants.
const KEY_FOR: &[u8; 16] = b"FiDe app's state";
/// The largest message of Noise, and what a piece grows by.
const SEALED_MAX: usize = PIECE_LEN + 16;
/// Connections that are served at a time; more are closed.
const SERVED_MAX: usize = 8;
/// Connections at a time that have not shown who they are, of all and of one address; for another one
/// the oldest is closed: who has the key shows it at once.
const STRANGERS_MAX: usize = 64;
const STRANGERS_OF_ADDRESS: usize = 8;
/// How long one may take to show it.
const SHOWN: Duration = Duration::from_secs(2);
/// Fetches at a time: each group has one under way, or two when it turns to another host.
const FETCHES_MAX: usize = 128;
const CONNECT: Duration = Duration::from_secs(1);
/// The other end sends, or takes, nothing for so long.
const SILENT: Duration = Duration::from_secs(3);
/// One transfer takes no longer than this.
const TRANSFER: Duration = Duration::from_secs(300);
/// Bytes a second of one transfer: a fifth of a link of 2.5 Gbit/s.
const PACE: u32 = 64 << 20;
/// What could not listen tries again after so long.
const AGAIN: Duration = Duration::from_secs(5);

/// The port at which agents give states: questions by TCP at the lane's own must be answered by the
/// kernel.
#[must_use]
pub const fn port_of(lane: u16) -> u16 {
    if lane == u16::MAX { lane - 1 } else { lane + 1 }
}

type Pieces = [Box<[u8]>];

struct Shared {
    cluster: u32,
    keys: Mutex<Keyring>,
    held: Mutex<HashMap<LargeId, (u64, Weak<Pieces>)>>,
    served: AtomicUsize,
    /// Addresses of connections that have not shown who they are.
    strangers: Mutex<Vec<Connection>>,
    fetches: AtomicUsize,
}

/// Gives states to other agents, and fetches what the loop asks for, until there are no more jobs.
///
/// # Errors
/// When there is no thread.
pub fn start(cluster: u32, keys: Keyring, specs: &[PathSpec], jobs: Receiver<Job>, core: LoopHandle) -> std::io::Result<()> {
    let shared = Arc::new(Shared {
        cluster,
        keys: Mutex::new(keys),
        held: Mutex::default(),
        served: AtomicUsize::new(0),
        strangers: Mutex::default(),
        fetches: AtomicUsize::new(0),
    });
    for spec in specs {
        let (spec, shared) = (spec.clone(), shared.clone());
        thread("fide-states", move || listen(&spec, &shared))?;
    }
    let port = port_of(specs.first().map_or(0, |spec| spec.port));
    thread("fide-fetches", move || {
        while let Ok(job) = jobs.recv() {
            shared.job(job, port, &core);
        }
    })
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let run = || {
        become_ordinary();
        run();
    };
    std::thread::Builder::new().name(name.into()).stack_size(512 << 10).spawn(run).map(drop)
}

/// One of a bounded number.
struct Place(Arc<Shared>, fn(&Shared) -> &AtomicUsize);

impl Place {
    fn take(shared: &Arc<Shared>, of: fn(&Shared) -> &AtomicUsize, max: usize) -> Option<Self> {
        let place = Self(shared.clone(), of);
        (of(shared).fetch_add(1, Ordering::Relaxed) < max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        (self.1)(&self.0).fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection of somebody who has not shown who he is.
struct Connection {
    serial: u64,
    from: IpAddr,
    stream: TcpStream,
}

/// One of those.
struct Stranger(Arc<Shared>, u64);

impl Stranger {
    fn new(shared: &Arc<Shared>, from: IpAddr, stream: &TcpStream) -> std::io::Result<Self> {
        let mut strangers = shared.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let of_address = strangers.iter().filter(|of| of.from == from).count();
        let is_full = strangers.len() >= STRANGERS_MAX;
        let oldest = strangers.iter().position(|of| is_full || of.from == from);
        if let Some(oldest) = oldest.filter(|_| is_full || of_address >= STRANGERS_OF_ADDRESS) {
            let oldest = strangers.remove(oldest);
            let _ = oldest.stream.shutdown(std::net::Shutdown::Both);
        }
        let serial = strangers.last().map_or(0, |last| last.serial + 1);
        strangers.push(Connection { serial, from, stream: stream.try_clone()? });
        Ok(Self(shared.clone(), serial))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.strangers.lock().unwrap_or_else(PoisonError::into_inner).retain(|of| of.serial != self.1);
    }
}

impl Shared {
    fn keys(&self) -> Keyring {
        *self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn job(self: &Arc<Self>, job: Job, port: u16, core: &LoopHandle) {
        match job {
            Job::Hold(large) => {
                let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
                held.retain(|_, (_, pieces)| pieces.strong_count() > 0);
                held.insert(large.at().id, (large.at().len, Arc::downgrade(large.pieces())));
            }
            Job::Release(large) => drop(large),
            Job::Keys(keys) => *self.keys.lock().unwrap_or_else(PoisonError::into_inner) = keys,
            Job::Fetch { generation, what, from } => {
                let (shared, to) = (self.clone(), core.clone());
                let place = Place::take(self, |shared| &shared.fetches, FETCHES_MAX);
                let fetch = move || {
                    let fetched = if place.is_some() { shared.fetch_from(what, &from, port) } else { Fetched::Failed };
                    to.tell(Request::StateFetched(generation, what.id, fetched));
                };
                if thread("fide-fetch", fetch).is_err() {
                    core.tell(Request::StateFetched(generation, what.id, Fetched::Failed));
                }
            }
        }
    }

    fn fetch_from(&self, what: LargeRef, from: &[IpAddr], port: u16) -> Fetched {
        for address in from {
            let to = SocketAddr::new(*address, port);
            match fetch(to, self.cluster, &self.keys(), what) {
                Ok(Some(large)) => return Fetched::Whole(large),
                Ok(None) => return Fetched::Missing,
                Err(e) => tracing::warn!("a state of {} bytes cannot be fetched from {to}: {e:#}", what.len),
            }
        }
        Fetched::Failed
    }

    fn pieces(&self, what: LargeId) -> Option<(u64, Arc<Pieces>)> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (len, pieces) = held.get(&what)?;
        Some((*len, pieces.upgrade()?))
    }
}

// ---- the side that gives ----------------------------------------------------------------------

/// Listens on the interface of a path, also if that comes later, or is replaced.
fn listen(spec: &PathSpec, shared: &Arc<Shared>) {
    let mut said = String::new();
    loop {
        let index = interface(&spec.interface);
        match listener(spec) {
            Ok(listener) => {
                said.clear();
                serve(&listener, shared, || interface(&spec.interface) == index);
            }
            Err(e) => {
                let why = format!("states of groups cannot be fetched from this host by {}: {e:#}", spec.interface);
                if said != why {
                    tracing::warn!("{why}");
                    said = why;
                }
                std::thread::sleep(AGAIN);
            }
        }
    }
}

fn interface(name: &str) -> u32 {
    let Ok(name) = std::ffi::CString::new(name) else { return 0 };
    // SAFETY: a string that lives.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

fn listener(spec: &PathSpec) -> anyhow::Result<Socket> {
    let (domain, any): (_, IpAddr) = match spec.ipv6() {
        true => (Domain::IPV6, Ipv6Addr::UNSPECIFIED.into()),
        false => (Domain::IPV4, Ipv4Addr::UNSPECIFIED.into()),
    };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if spec.ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind_device(Some(spec.interface.as_bytes()))?;
    let at = SocketAddr::new(any, port_of(spec.port));
    socket.bind(&at.into()).with_context(|| format!("TCP port {}", at.port()))?;
    socket.listen(16)?;
    socket.set_read_timeout(Some(AGAIN))?; // of accept, too
    Ok(socket)
}

/// As long as the socket is that of the interface.
fn serve(listener: &Socket, shared: &Arc<Shared>, is_there: impl Fn() -> bool) {
    loop {
        match listener.accept() {
            Ok((socket, from)) => {
                let Some(from) = from.as_socket().map(|from| from.ip()) else { continue };
                let stream = TcpStream::from(socket);
                let Ok(stranger) = Stranger::new(shared, from, &stream) else { continue };
                let shared = shared.clone();
                let run = move || {
                    if let Err(e) = give(&shared, stream, stranger) {
                        tracing::debug!("a state was not given to {from}: {e:#}");
                    }
                };
                let _ = thread("fide-give", run);
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {} // nobody for a while
            // Without descriptors, or an interface: it would fail again at once.
            Err(_) => std::thread::sleep(AGAIN),
        }
        if !is_there() {
            return;
        }
    }
}

/// Answers one that asks for a state.
fn give(shared: &Arc<Shared>, mut stream: TcpStream, stranger: Stranger) -> anyhow::Result<()> {
    prepare(&stream)?;
    let until = Instant::now() + SHOWN;
    let mut head = [0; HEAD_LEN];
    read_by(&mut stream, &mut head, until)?;
    let (magic, rest) = head.split_at(MAGIC.len());
    ensure!(magic == MAGIC, "not an agent of this release");
    ensure!(rest[1..] == shared.cluster.to_be_bytes(), "an agent of another cluster");
    let keys = shared.keys();
    let key = keys.get(rest[0]).context("its key is not one of this host's")?;
    let mut noise = begin(&key.0, &head, false)?;
    let mut buffer = [0; 256];
    let length = receive(&mut stream, &mut buffer, until)?;
    let mut asked = [0; 256];
    let length = noise.read_message(&buffer[..length], &mut asked).context("its key is another one")?;
    let what: LargeId = postcard::from_bytes(&asked[..length])?;
    let found = shared.pieces(what);
    let len = found.as_ref().map_or(0, |(len, _)| *len);
    let length = noise.write_message(&len.to_be_bytes(), &mut buffer)?;
    send(&mut stream, &buffer[..length])?;
    let Some((_, pieces)) = found else { return Ok(()) };
    let mut noise = noise.into_transport_mode()?;
    let length = receive(&mut stream, &mut buffer, until)?;
    noise.read_message(&buffer[..length], &mut asked).context("it repeats what another one sent")?;
    drop(stranger);
    let _place = Place::take(shared, |shared| &shared.served, SERVED_MAX).context("as many are served as may be")?;
    let mut sealed = vec![0; SEALED_MAX];
    let began = Instant::now();
    for piece in pieces.iter() {
        ensure!(began.elapsed() < TRANSFER, "it took longer than {TRANSFER:?}");
        let length = noise.write_message(piece, &mut sealed)?;
        send(&mut stream, &sealed[..length])?;
    }
    Ok(())
}

// ---- the side that fetches ----------------------------------------------------------------------

/// Bytes of what a TCP segment carries, at most: packets of some 1,180 bytes.
const SEGMENT_MAX: u32 = 1_120;

/// A state of another host; none if that has not got it.
fn fetch(to: SocketAddr, cluster: u32, keys: &Keyring, what: LargeRef) -> anyhow::Result<Option<Large>> {
    // Segments that get through where large frames do not.
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_tcp_mss(SEGMENT_MAX)?;
    socket.connect_timeout(&to.into(), CONNECT)?;
    let mut stream = TcpStream::from(socket);
    prepare(&stream)?;
    let (id, key) = keys.sending();
    let mut head = Vec::with_capacity(HEAD_LEN);
    head.extend_from_slice(MAGIC);
    head.push(id);
    head.extend_from_slice(&cluster.to_be_bytes());
    let mut noise = begin(&key.0, &head, true)?;
    stream.write_all(&head)?;
    let mut buffer = [0; 256];
    let length = noise.write_message(&postcard::to_stdvec(&what.id)?, &mut buffer)?;
    send(&mut stream, &buffer[..length])?;
    let length = receive(&mut stream, &mut buffer, Instant::now() + SILENT).context("it does not answer: are its keys these?")?;
    let mut answer = [0; 256];
    let length = noise.read_message(&buffer[..length], &mut answer)?;
    let len = u64::from_be_bytes(answer[..length].try_into()?);
    if len == 0 {
        return Ok(None);
    }
    ensure!(len == what.len, "it has {len} bytes of that name");
    let mut noise = noise.into_transport_mode()?;
    let length = noise.write_message(&[], &mut buffer)?;
    send(&mut stream, &buffer[..length])?;
    receive_pieces(&mut stream, noise, what).map(Some)
}

fn receive_pieces(stream: &mut TcpStream, mut noise: TransportState, what: LargeRef) -> anyhow::Result<Large> {
    let (mut sealed, mut piece) = (vec![0; SEALED_MAX], vec![0; SEALED_MAX]);
    let mut whole = Builder::default();
    let began = Instant::now();
    while whole.len() < what.len {
        ensure!(began.elapsed() < TRANSFER, "it took longer than {TRANSFER:?}");
        let length = receive(stream, &mut sealed, Instant::now() + SILENT)?;
        let length = noise.read_message(&sealed[..length], &mut piece)?;
        if length == 0 || whole.len() + length as u64 > what.len {
            bail!("a piece has {length} bytes behind {} of {}", whole.len(), what.len);
        }
        whole.push(&piece[..length]);
    }
    Ok(whole.into_large(what.id))
}

// ---- both sides -------------------------------------------------------------------------------

fn prepare(stream: &TcpStream) -> anyhow::Result<()> {
    stream.set_write_timeout(Some(SILENT))?;
    stream.set_nodelay(true)?;
    let pace = PACE.to_ne_bytes();
    // SAFETY: an option of an open socket, and a number that lives.
    unsafe {
        let fd = std::os::fd::AsRawFd::as_raw_fd(stream);
        // Refused or not, it is a courtesy.
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, pace.as_ptr().cast(), size_of_val(&pace) as u32);
    }
    Ok(())
}

/// What both ends must have said alike is part of what they agree on.
fn begin(key: &[u8; 16], head: &[u8], asks: bool) -> anyhow::Result<HandshakeState> {
    let mut secret = [0; 32];
    secret[..16].copy_from_slice(key);
    secret[16..].copy_from_slice(KEY_FOR);
    let builder = snow::Builder::new(PATTERN.parse()?).psk(0, &secret)?.prologue(head)?;
    Ok(if asks { builder.build_initiator()? } else { builder.build_responder()? })
}

fn send(stream: &mut TcpStream, sealed: &[u8]) -> anyhow::Result<()> {
    let length = u16::try_from(sealed.len())?;
    stream.write_all(&length.to_be_bytes())?;
    Ok(stream.write_all(sealed)?)
}

/// All of it, by then: one byte now and one a little later is not enough.
fn read_by(stream: &mut TcpStream, mut bytes: &mut [u8], until: Instant) -> anyhow::Result<()> {
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "it took too long");
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => bail!("it closed the connection"),
            Ok(length) => bytes = &mut bytes[length..],
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// The next message, which is whole by then; its length.
fn receive(stream: &mut TcpStream, sealed: &mut [u8], until: Instant) -> anyhow::Result<usize> {
    let mut length = [0; 2];
    read_by(stream, &mut length, until)?;
    let length = usize::from(u16::from_be_bytes(length));
    let room = sealed.len();
    ensure!(length <= room, "a message of {length} bytes, where {room} may be");
    read_by(stream, &mut sealed[..length], until)?;
    Ok(length)
}

#[cfg(test)]
mod tests;
