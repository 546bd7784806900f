//! Raft by the same library as on the lane, over TCP: what an application would have that takes the
//! library and connects its hosts by sockets. A server on each host, real-time as agents are, and a
//! client in a process of its own on the leader's, by a socket of that host, as applications and
//! agents are.

use crate::sys;
use anyhow::{Context as _, Result, bail, ensure};
use fide_proto::consensus::log::EngineMessage;
use fide_proto::consensus::{Action, Engine as _};
use fide_proto::group::{Body, Entry, EntryId, MemberId, MemberSet};
use fide_raft::{Config, Raft};
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Raft's time step: nobody crashes here.
const TICK_NS: u64 = 10_000_000;
/// The longest message.
const MESSAGE_MAX: usize = 8 << 20;

/// One frame: its length, and the bytes.
fn write(to: &mut impl io::Write, bytes: &[u8]) -> io::Result<()> {
    let mut frame = Vec::with_capacity(4 + bytes.len());
    frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    frame.extend_from_slice(bytes);
    to.write_all(&frame)
}

/// What has come of a connection.
#[derive(Default)]
struct Incoming(Vec<u8>);

impl Incoming {
    /// Reads what is there.
    fn fill(&mut self, from: &mut impl io::Read) -> Result<()> {
        let mut bytes = [0; 65_536];
        match from.read(&mut bytes) {
            Ok(0) => bail!("the connection was closed"),
            Ok(count) => self.0.extend_from_slice(&bytes[..count]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    fn frame(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(head) = self.0.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        ensure!(length <= MESSAGE_MAX, "a frame of {length} bytes");
        if self.0.len() < 4 + length {
            return Ok(None);
        }
        let frame = self.0[4..4 + length].to_vec();
        self.0.drain(..4 + length);
        Ok(Some(frame))
    }
}

struct Peer {
    member: MemberId,
    stream: TcpStream,
    incoming: Incoming,
}

/// Connects to all others: who has the higher place dials.
fn connect(me: usize, all: &[SocketAddr]) -> Result<Vec<Peer>> {
    let listener = TcpListener::bind(all[me])?;
    let mut peers = Vec::new();
    for (at, address) in all.iter().enumerate().take(me) {
        let until = Instant::now() + Duration::from_secs(10);
        let mut stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(e) => ensure!(Instant::now() < until, "{address}: {e}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        write(&mut stream, &(me as u16).to_le_bytes())?;
        peers.push((at, stream));
    }
    while peers.len() + 1 < all.len() {
        let (mut stream, _) = listener.accept()?;
        let mut head = [0; 6];
        stream.read_exact(&mut head)?;
        peers.push((usize::from(u16::from_le_bytes([head[4], head[5]])), stream));
    }
    let peer = |(at, stream): (usize, TcpStream)| {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Peer { member: MemberId(at as u16 + 1), stream, incoming: Incoming::default() })
    };
    peers.into_iter().map(peer).collect()
}

/// A server, until its input or its client ends. The first of `all` leads, and serves one client at
/// `socket`.
///
/// # Errors
/// When it cannot be reached, or the others cannot.
pub fn serve(me: usize, all: &[SocketAddr], socket: &Path) -> Result<()> {
    ensure!(me < all.len(), "no address of this host");
    let clients = if me == 0 { Some(UnixListener::bind(socket)?) } else { None };
    let mut peers = connect(me, all)?;
    let id = MemberId(me as u16 + 1);
    let members: MemberSet = (1..=all.len() as u16).map(MemberId).collect();
    let config = Config { tick_ns: TICK_NS, ..Config::new(id) };
    let mut raft = Raft::new(config, sys::now_ns(), 1, &members, None).map_err(|why| anyhow::anyhow!("{why}"))?;
    if me == 0 {
        raft.campaign();
    }
    let mut client: Option<(UnixStream, Incoming)> = None;
    let mut number = 0;
    loop {
        let mut answers = VecDeque::new();
        while let Some(action) = raft.poll_action() {
            match action {
                Action::Send { to, message } => {
                    let bytes = postcard::to_stdvec(&message).context("a message cannot be written")?;
                    let peer = peers.iter_mut().find(|peer| peer.member == to).context("no such member")?;
                    send(&mut peer.stream, &bytes)?;
                }
                Action::Decide { batch, .. } => answers.extend(batch.iter().map(|entry| entry.id.number)),
                Action::Halt(why) => bail!("the engine stopped: {why:?}"),
                Action::Copies { .. } | Action::Memory { .. } | Action::State { .. } => {}
            }
        }
        if let Some((stream, _)) = &mut client {
            answers.iter().try_for_each(|number| stream.write_all(&number.to_le_bytes()))?;
        }
        // A client comes once this server leads.
        if client.is_none()
            && raft.leader() == Some(id)
            && let Some(clients) = &clients
        {
            println!("ready");
            io::stdout().flush()?;
            let (stream, _) = clients.accept()?;
            client = Some((stream, Incoming::default()));
        }
        let timeout = raft.poll_timeout().map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(sys::now_ns())));
        let input = io::stdin();
        let mut fds = vec![input.as_fd()];
        fds.extend(peers.iter().map(|peer| peer.stream.as_fd()));
        fds.extend(client.iter().map(|(stream, _)| stream.as_fd()));
        let ready: Vec<bool> = sys::wait(&fds, timeout)?.iter().map(|ready| ready.readable || ready.hung_up).collect();
        if ready[0] {
            return Ok(()); // nothing comes there: it has ended
        }
        for (peer, _) in peers.iter_mut().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            if peer.incoming.fill(&mut peer.stream).is_err() {
                return Ok(()); // another one has ended
            }
            while let Some(frame) = peer.incoming.frame()? {
                let message: EngineMessage = postcard::from_bytes(&frame).context("nonsense came")?;
                let _ = raft.handle_message(sys::now_ns(), peer.member, message);
            }
        }
        if let (Some((stream, incoming)), Some(true)) = (&mut client, ready.get(1 + peers.len())) {
            if incoming.fill(stream).is_err() {
                return Ok(());
            }
            while let Some(value) = incoming.frame()? {
                number += 1;
                let entry = Entry { id: EntryId { proposer: id, number }, body: Body::Value(value.into()) };
                raft.propose(sys::now_ns(), entry).map_err(|why| anyhow::anyhow!("{why}"))?;
            }
        }
        if raft.poll_timeout().is_some_and(|at_ns| at_ns <= sys::now_ns()) {
            raft.handle_timeout(sys::now_ns());
        }
    }
}

/// Writes a frame to a socket that does not block.
fn send(stream: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    stream.set_nonblocking(false)?;
    let written = write(stream, bytes);
    stream.set_nonblocking(true)?;
    Ok(written?)
}

/// Proposes one value, waits until it is decided, and so on: the time of each (ns).
///
/// # Errors
/// When the server ends.
pub fn single(socket: &Path, size: usize, values: u32, pause: impl Fn()) -> Result<Vec<u64>> {
    let mut stream = UnixStream::connect(socket).with_context(|| format!("{}", socket.display()))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (value, mut number) = (vec![7; size], [0; 8]);
    let mut times = Vec::with_capacity(values as usize);
    for expected in 1..=u64::from(values) {
        let begun = sys::now_ns();
        write(&mut stream, &value)?;
        stream.read_exact(&mut number)?;
        times.push(sys::now_ns() - begun);
        ensure!(u64::from_le_bytes(number) == expected, "another value was decided");
        pause();
    }
    Ok(times)
}
