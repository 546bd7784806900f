//! Asking the kernel of a silent host whether it is there.
//!
//! A host whose agent is killed, stopped or starved stops its heartbeats as surely as one that lost power, but its kernel
//! still answers. Each probe is two packets on the path in question: an ICMP echo request (answered: the kernel runs), and
//! a datagram to the lane's port (answered "port unreachable": the kernel runs *and* no agent holds the port).
//!
//! Answers are believed only when they come from the probed address and repeat the 64-bit random number of one of the last
//! few probes; each counts once. Somebody else's pings, late answers to somebody else's question and forged errors
//! from off the path are none of these. What remains to be known when reading an answer:
//! * Kernels limit how often they send port-unreachable (Linux: six at once, then one a second and host). Probing
//!   more often than that is fine for echo, and merely learns nothing more of the agent.
//! * A host firewall that *rejects* the lane's port looks like an absent agent — though only once heartbeats are missing
//!   too, because the receive program sees them before the firewall.
//! * A host that drops ICMP never answers: absence of an answer proves nothing.
//! * Switches learn from frames where a MAC is, and believe them: whoever sends frames with a host's MAC has what is for it. The frame of a question that is
//!   asked of everybody ([`Prober::echo_wide`]) gets to the host all the same, and what it answers shows the switches where it is.
//!
//! What looks like an answer and is to no question costs next to nothing: the kernel drops it ([`AnswerFilter`], and a filter on the sockets for who has none).

use crate::frame::{ETH_P_IP, ETH_P_IPV6};
use crate::send::{Errno, LaneError, PathSpec, SendError};
use crate::sys::{self, Polled, SockAddr, monotonic_ns};
use fide_wire::{PATHS, SLOTS};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// First bytes of what a probe carries, in both packets.
pub const PROBE_MAGIC: [u8; 4] = *b"FiDp";
/// Bytes that a probe carries: magic, node, path, padding, nonce. Shorter than any packet of the lane.
pub const PROBE_LEN: usize = 20;

/// Whether a datagram on the lane's port is such a question. An agent that gets one is there, and owes no answer: its heartbeats say so.
#[must_use]
pub fn is_probe(datagram: &[u8]) -> bool {
    datagram.len() == PROBE_LEN && datagram.starts_with(&PROBE_MAGIC)
}

/// Most (node, path) pairs that are remembered.
const TARGETS: usize = SLOTS * PATHS;
/// Most UDP sockets held open for them.
const SOCKETS: usize = 64;
/// How many of the last probes of one target may still be answered.
const RECENT: usize = 16;
/// After so many errors on a target's UDP socket that answer nothing, the socket is closed until the target is asked again.
const JUNK: u8 = 8;
/// Most packets that one [`Prober::poll`] looks at: a flood of strangers' pings must not hold up the lane.
const PATIENCE: usize = 64;

/// What answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerKind {
    /// The host's kernel: it runs, whatever became of its agent.
    KernelAnswered,
    /// The host's kernel, saying that nobody listens on the lane's port.
    AgentAbsent,
}

/// An answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeAnswer {
    /// The node that was probed.
    pub node: u32,
    /// On which path.
    pub path: u8,
    /// Where it was asked, and who answered.
    pub from: IpAddr,
    /// What is known now.
    pub kind: AnswerKind,
    /// The random number of the question: the receive program notes by which queue its answer came (the eight bytes as they are in the packet).
    pub nonce: u64,
    /// Bytes of the question's packet, where that was asked for ([`Prober::echo_sized`]); else 0.
    pub size: u16,
    /// When the probe left: the kernel was alive at some moment after this (CLOCK_MONOTONIC).
    pub probed_ns: u64,
    /// When the answer was read (CLOCK_MONOTONIC).
    pub at_ns: u64,
}

/// One probe that may still be answered.
#[derive(Clone, Copy, Default)]
struct Question {
    nonce: u64,
    sent_ns: u64,
    size: u16,
    echo_answered: bool,
    absence_answered: bool,
}

/// What keeps those out of the kernel's queues who answer what was not asked: the receive program, told of every question.
pub trait AnswerFilter: Send {
    /// A question that carries these bytes leaves on a path for this address: its answer may come in.
    fn expect(&self, path: u8, from: IpAddr, carried: &[u8; PROBE_LEN]);
    /// The answer to the question with this random number has been taken.
    fn taken(&self, nonce: u64);
}

struct Target {
    addr: IpAddr,
    questions: Questions,
    /// Of others than the detector: however many they are, its own are not forgotten for them.
    aside: Questions,
    /// Of how large packets may be.
    sized: Questions,
    udp: Option<Polled>,
    /// Errors on that socket that answered nothing, since the last knock.
    junk: u8,
    used_ns: u64,
}

/// The last ones.
#[derive(Clone, Copy, Default)]
struct Questions {
    recent: [Option<Question>; RECENT],
    next: usize,
}

impl Questions {
    fn put(&mut self, nonce: u64, sent_ns: u64, size: u16) {
        self.recent[self.next] = Some(Question { nonce, sent_ns, size, ..Question::default() });
        self.next = (self.next + 1) % RECENT;
    }

    fn last(&self) -> Option<Question> {
        self.recent[(self.next + RECENT - 1) % RECENT]
    }
}

impl Target {
    fn new(addr: IpAddr) -> Self {
        Self {
            addr,
            questions: Questions::default(),
            aside: Questions::default(),
            sized: Questions::default(),
            udp: None,
            junk: 0,
            used_ns: 0,
        }
    }

    /// Takes the answer to the question with this nonce; each kind once.
    fn answer(&mut self, nonce: u64, kind: AnswerKind) -> Option<(u64, u16)> {
        let all = self.questions.recent.iter_mut().chain(&mut self.aside.recent).chain(&mut self.sized.recent);
        let q = all.flatten().find(|q| q.nonce == nonce)?;
        let seen = match kind {
            AnswerKind::KernelAnswered => &mut q.echo_answered,
            AnswerKind::AgentAbsent => &mut q.absence_answered,
        };
        (!std::mem::replace(seen, true)).then_some((q.sent_ns, q.size))
    }
}

struct Path {
    spec: PathSpec,
    /// Raw ICMP sockets, by family, and the interface's index.
    open: Option<(Option<Polled>, Option<Polled>, u32)>,
    /// A raw socket by which questions by TCP leave, and whether it is one of IPv6.
    tcp: Option<(OwnedFd, bool)>,
    /// The interface's own address.
    mac: [u8; 6],
    /// A packet socket by which this host's other path is asked, made when it is first wanted.
    frames: Option<OwnedFd>,
}

/// Sends probes and recognises their answers. Made for the lane's thread; nothing here waits.
pub struct Prober {
    paths: [Option<Path>; PATHS],
    targets: HashMap<(u32, u8), Target>,
    epoll: Arc<OwnedFd>,
    /// The ICMP identifier of this prober.
    id: u16,
    sequence: u16,
    filter: Option<Box<dyn AnswerFilter>>,
    /// A socket filter of the kernel's, in the place of [`sys::only_answers`].
    program: Option<OwnedFd>,
    ignored: u64,
}

// Tokens of the epoll instance: a target's (node, path), or a raw socket's path and family with this bit.
const RAW: u64 = 1 << 63;

impl Prober {
    /// Opens the raw sockets of every path. A path whose interface is missing is left out until [`Prober::refresh`].
    ///
    /// # Errors
    /// When no raw socket is permitted at all (CAP_NET_RAW), or the kernel has no descriptors left.
    pub fn open(specs: &[PathSpec]) -> Result<Self, LaneError> {
        let Some(first) = specs.first() else { return Err(LaneError::NoPath) };
        let fail = |what| move |source| LaneError::System { path: first.path, interface: first.interface.clone(), what, source };
        let epoll = Arc::new(sys::epoll().map_err(fail("opening an epoll instance"))?);
        let id = u16::from_ne_bytes(sys::random().map_err(fail("asking for random bytes"))?).max(1);
        let mut prober = Self {
            paths: [const { None }; PATHS],
            targets: HashMap::new(),
            epoll,
            id,
            sequence: 0,
            filter: None,
            program: None,
            ignored: 0,
        };
        for spec in specs {
            let Some(slot) = prober.paths.get_mut(usize::from(spec.path)) else { continue };
            *slot = Some(Path { spec: spec.clone(), open: None, tcp: None, mac: [0; 6], frames: None });
            match prober.refresh(spec.path) {
                Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
                    return Err(fail("opening a raw ICMP socket (needs CAP_NET_RAW)")(e));
                }
                Err(e) => tracing::warn!(path = spec.path, error = %e, "cannot probe on this path"),
                Ok(()) => {}
            }
        }
        prober.targets.reserve(TARGETS);
        Ok(prober)
    }

    /// Opens the path's sockets anew, after its interface came back.
    ///
    /// # Errors
    /// The kernel's reason why it cannot be probed on this path.
    pub fn refresh(&mut self, path: u8) -> io::Result<()> {
        let no_path = || io::Error::from_raw_os_error(libc::ENODEV);
        let slot = self.paths.get_mut(usize::from(path)).and_then(Option::as_mut).ok_or_else(no_path)?;
        (slot.open, slot.tcp, slot.frames) = (None, None, None);
        for (key, target) in &mut self.targets {
            if key.1 == path {
                target.udp = None;
            }
        }
        let link = sys::link(&slot.spec.interface)?;
        let v4 = raw_socket(&slot.spec.interface, false, self.id, self.program.as_ref());
        let v6 = raw_socket(&slot.spec.interface, true, self.id, self.program.as_ref());
        let (v4, v6) = match (v4, v6) {
            (Err(e), Err(_)) => return Err(e),
            (v4, v6) => (v4.ok(), v6.ok()), // a host without IPv6 is an ordinary host
        };
        let polled = |fd, family: u64| Polled::new(fd, &self.epoll, RAW | family << 8 | u64::from(path));
        let (v4, v6) = (v4.map(|fd| polled(fd, 0)).transpose()?, v6.map(|fd| polled(fd, 1)).transpose()?);
        (slot.open, slot.mac) = (Some((v4, v6, link.ifindex)), link.mac);
        Ok(())
    }

    /// The ICMP identifier that answers repeat.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Tells this one of every question from now on.
    pub fn set_filter(&mut self, filter: Box<dyn AnswerFilter>) {
        self.filter = Some(filter);
    }

    /// Puts this BPF program on the raw sockets, also on those that are opened later.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_program(&mut self, program: OwnedFd) -> io::Result<()> {
        let program = self.program.insert(program);
        let open = self.paths.iter().flatten().filter_map(|path| path.open.as_ref());
        open.flat_map(|(v4, v6, _)| [v4, v6]).flatten().try_for_each(|fd| sys::attach_program(fd, program))
    }

    /// How many packets came to the sockets that looked like answers and were to no question, or came again.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Sends an echo request. Its answer is the fastest of all, and may be what somebody waits for: it goes first.
    ///
    /// # Errors
    /// When it did not leave. The interface being gone is [`SendError::Down`].
    pub fn echo(&mut self, node: u32, path: u8, addr: IpAddr) -> Result<(), SendError> {
        self.ask(node, path, addr, |target| &mut target.questions)
    }

    /// The same for somebody else than the detector.
    ///
    /// # Errors
    /// As [`Prober::echo`].
    pub fn echo_aside(&mut self, node: u32, path: u8, addr: IpAddr) -> Result<(), SendError> {
        self.ask(node, path, addr, |target| &mut target.aside)
    }

    /// The same in a frame for everybody on the path's network, from `source`: hosts drop what is not for their address, so only `addr` answers, wherever the switches
    /// think that it is.
    ///
    /// # Errors
    /// As [`Prober::echo`]; also when the path is no Ethernet.
    pub fn echo_wide(&mut self, node: u32, path: u8, source: IpAddr, addr: IpAddr) -> Result<(), SendError> {
        if source.is_ipv6() != addr.is_ipv6() {
            return Err(SendError::Other(Errno(libc::EAFNOSUPPORT)));
        }
        let carried = self.prepare(node, path, addr, 0, |target| &mut target.questions)?;
        let down = SendError::Down(Errno(libc::ENODEV));
        let (id, sequence) = (self.id, self.sequence);
        let slot = self.paths.get_mut(usize::from(path)).and_then(Option::as_mut).ok_or(down)?;
        let (_, _, ifindex) = slot.open.as_ref().ok_or(down)?;
        if slot.mac == [0; 6] {
            return Err(SendError::Other(Errno(libc::EOPNOTSUPP)));
        }
        let ethertype = if addr.is_ipv6() { ETH_P_IPV6 } else { ETH_P_IP };
        let packet = echo_packet(source, addr, id, sequence, &carried);
        let frame = [&EVERYBODY[..], &slot.mac, &ethertype.to_be_bytes(), &packet].concat();
        let to = SockAddr::link(*ifindex, ethertype, EVERYBODY);
        let fd = frames_socket(&mut slot.frames)?;
        sys::send_to(fd, &frame, Some(&to)).map(drop).map_err(|e| SendError::from_io(&e))
    }

    /// A new question to this address, whose answer may come in from now on: what it carries.
    fn prepare(
        &mut self,
        node: u32,
        path: u8,
        addr: IpAddr,
        size: u16,
        whose: fn(&mut Target) -> &mut Questions,
    ) -> Result<[u8; PROBE_LEN], SendError> {
        if addr.is_multicast() || addr.is_unspecified() {
            return Err(SendError::Other(Errno(libc::EINVAL)));
        }
        let random = sys::random().map_err(|e| SendError::Other(Errno(e.raw_os_error().unwrap_or(libc::EIO))))?;
        self.sequence = self.sequence.wrapping_add(1);
        // Questions that follow each other have different places in the filter's table.
        let nonce = u64::from_ne_bytes(random) & !PLACES | u64::from(self.sequence) & PLACES;
        let now = monotonic_ns();

        make_room(&mut self.targets, (node, path));
        let target = self.targets.entry((node, path)).or_insert_with(|| Target::new(addr));
        if target.addr != addr {
            *target = Target::new(addr);
        }
        target.used_ns = now;
        whose(target).put(nonce, now, size);
        let carried = encode(node, path, nonce);
        if let Some(filter) = &self.filter {
            filter.expect(path, addr, &carried);
        }
        Ok(carried)
    }

    fn ask(&mut self, node: u32, path: u8, addr: IpAddr, whose: fn(&mut Target) -> &mut Questions) -> Result<(), SendError> {
        self.echo_socket(path, addr)?;
        let carried = self.prepare(node, path, addr, 0, whose)?;
        let echo = echo_request(addr.is_ipv6(), self.id, self.sequence, &carried);
        let (icmp, ifindex) = self.echo_socket(path, addr)?;
        sys::send_to(icmp, &echo, Some(&SockAddr::ip(addr, 0, ifindex))).map(drop).map_err(|e| SendError::from_io(&e))
    }

    /// An echo request in a packet of so many bytes, which is not cut into fragments on the way.
    ///
    /// # Errors
    /// As [`Prober::echo`]; also when it does not fit the interface.
    pub fn echo_sized(&mut self, node: u32, path: u8, addr: IpAddr, size: u16) -> Result<(), SendError> {
        self.echo_socket(path, addr)?;
        let carried = self.prepare(node, path, addr, size, |target| &mut target.sized)?;
        let header = if addr.is_ipv6() { 40 } else { 20 };
        let mut cargo = carried.to_vec();
        cargo.resize(usize::from(size).saturating_sub(header + ECHO_HEADER).max(PROBE_LEN), 0);
        let echo = echo_request(addr.is_ipv6(), self.id, self.sequence, &cargo);
        let (icmp, ifindex) = self.echo_socket(path, addr)?;
        sys::send_to(icmp, &echo, Some(&SockAddr::ip(addr, 0, ifindex))).map(drop).map_err(|e| SendError::from_io(&e))
    }

    /// By which socket and interface an address is asked.
    fn echo_socket(&self, path: u8, addr: IpAddr) -> Result<(&OwnedFd, u32), SendError> {
        let down = SendError::Down(Errno(libc::ENODEV));
        let slot = self.paths.get(usize::from(path)).and_then(Option::as_ref).ok_or(down)?;
        let (v4, v6, ifindex) = slot.open.as_ref().ok_or(down)?;
        let icmp = if addr.is_ipv6() { v6 } else { v4 }.as_ref().ok_or(SendError::Other(Errno(libc::EAFNOSUPPORT)))?;
        Ok((icmp, *ifindex))
    }

    /// Sends the datagram to the lane's port that belongs to the last echo request to this address: the second half of a probe. Nothing without one.
    ///
    /// # Errors
    /// When it did not leave.
    pub fn knock(&mut self, node: u32, path: u8, addr: IpAddr) -> Result<(), SendError> {
        let down = SendError::Down(Errno(libc::ENODEV));
        let slot = self.paths.get(usize::from(path)).and_then(Option::as_ref).ok_or(down)?;
        let (_, _, ifindex) = slot.open.as_ref().ok_or(down)?;
        let Some(target) = self.targets.get_mut(&(node, path)).filter(|target| target.addr == addr) else { return Ok(()) };
        let Some(last) = target.questions.last() else { return Ok(()) };
        let cargo = encode(node, path, last.nonce);
        target.junk = 0;
        knock(target, &self.epoll, slot, *ifindex, token(node, path), &cargo).map_err(|e| SendError::from_io(&e))
    }

    /// Asks by TCP: a SYN from `source` and `from_port` to the lane's port, which is one of UDP. Kernels answer with a reset that repeats `number`, without a limit, and
    /// where hosts have several receive queues its ports decide by which one it comes: so each can be reached (SafeTimer §5.1). Nobody listens for the answer:
    /// only the receive program sees it, and its number is too short to prove more than that the queue was emptied.
    ///
    /// # Errors
    /// When it did not leave. The interface being gone is [`SendError::Down`].
    pub fn steer(&mut self, path: u8, source: IpAddr, addr: IpAddr, from_port: u16, number: u32) -> Result<(), SendError> {
        let down = SendError::Down(Errno(libc::ENODEV));
        let slot = self.paths.get_mut(usize::from(path)).and_then(Option::as_mut).ok_or(down)?;
        let (_, _, ifindex) = slot.open.as_ref().ok_or(down)?;
        if source.is_ipv6() != addr.is_ipv6() {
            return Err(SendError::Other(Errno(libc::EAFNOSUPPORT)));
        }
        let to = SockAddr::ip(addr, 0, *ifindex);
        let packet = syn(source, addr, from_port, slot.spec.port, number);
        let (fd, _) = match slot.tcp.take() {
            Some(open) if open.1 == source.is_ipv6() => slot.tcp.insert(open),
            _ => {
                let fd = sending_socket(&slot.spec.interface, source.is_ipv6()).map_err(|e| SendError::from_io(&e))?;
                slot.tcp.insert((fd, source.is_ipv6()))
            }
        };
        sys::send_to(fd, &packet, Some(&to)).map(drop).map_err(|e| SendError::from_io(&e))
    }

    /// Sends this host itself, from the interface of path `by` to that of path `to` (addresses and paths in this order), what an answer to [`Prober::steer`]'s question
    /// with this number looks like: where both interfaces are on one network, it comes by a receive queue of the second as any other packet (SafeTimer §4.1, the
    /// barrier "to oneself"). IPv4 takes it for a forgery (its source is this host), IPv6 hands it to TCP, where it is nobody's; the receive program has seen it by then.
    ///
    /// # Errors
    /// When it did not leave. The interface being gone is [`SendError::Down`].
    pub fn cross(&mut self, (by, to): (u8, u8), from: IpAddr, addr: IpAddr, to_port: u16, number: u32) -> Result<(), SendError> {
        let down = SendError::Down(Errno(libc::ENODEV));
        if from.is_ipv6() != addr.is_ipv6() {
            return Err(SendError::Other(Errno(libc::EAFNOSUPPORT)));
        }
        let path = |path: u8| self.paths.get(usize::from(path)).and_then(Option::as_ref).filter(|path| path.open.is_some());
        let (mac, port) = path(to).map(|path| (path.mac, path.spec.port)).ok_or(down)?;
        let (source, ifindex) = path(by).and_then(|path| Some((path.mac, path.open.as_ref()?.2))).ok_or(down)?;
        let ethertype = if addr.is_ipv6() { ETH_P_IPV6 } else { ETH_P_IP };
        let frame = [&mac[..], &source, &ethertype.to_be_bytes(), &reset(from, addr, port, to_port, number)].concat();
        let slot = self.paths.get_mut(usize::from(by)).and_then(Option::as_mut).ok_or(down)?;
        let fd = frames_socket(&mut slot.frames)?;
        sys::send_to(fd, &frame, Some(&SockAddr::link(ifindex, ethertype, mac))).map(drop).map_err(|e| SendError::from_io(&e))
    }

    /// The next answer, if one has arrived. Never waits; looks at a bounded number of packets.
    pub fn poll(&mut self) -> Option<ProbeAnswer> {
        for _ in 0..PATIENCE {
            let token = sys::epoll_ready(&self.epoll)?;
            let answer = if token & RAW != 0 { self.read_echo(token) } else { self.read_error(token) };
            if answer.is_some() {
                return answer;
            }
            self.ignored += 1;
            if token & RAW == 0 {
                self.note_junk(token);
            }
        }
        None
    }

    /// What to wait on for [`Prober::poll`]: one descriptor that stands for all.
    #[must_use]
    pub fn fds(&self) -> Vec<RawFd> {
        vec![self.epoll.as_raw_fd()]
    }

    fn read_echo(&mut self, token: u64) -> Option<ProbeAnswer> {
        let (path, ipv6) = ((token & 0xff) as u8, token >> 8 & 1 == 1);
        let (v4, v6, _) = self.paths.get(usize::from(path))?.as_ref()?.open.as_ref()?;
        let mut buf = [0u8; 128];
        let arrival = sys::receive(if ipv6 { v6 } else { v4 }.as_ref()?, &mut buf, false).ok()?;
        let cargo = echo_reply(ipv6, self.id, &buf[..arrival.len.min(buf.len())])?;
        let (node, probed_path, nonce) = decode(cargo)?;
        self.settle(node, path, nonce, arrival.from?, AnswerKind::KernelAnswered).filter(|_| probed_path == path)
    }

    fn read_error(&mut self, token: u64) -> Option<ProbeAnswer> {
        let key = ((token >> 8) as u32, (token & 0xff) as u8);
        let fd = self.targets.get(&key)?.udp.as_ref()?;
        let mut buf = [0u8; 128];
        let Ok(arrival) = sys::receive(fd, &mut buf, true) else {
            // No error queued: a datagram came back, or the error was only flagged. Either is taken off and means nothing.
            let _ = sys::receive(fd, &mut buf, false);
            return None;
        };
        let (origin, kind, code, offender) = arrival.error?;
        let unreachable = match origin {
            libc::SO_EE_ORIGIN_ICMP => (kind, code) == (3, 3),
            libc::SO_EE_ORIGIN_ICMP6 => (kind, code) == (1, 4),
            _ => false,
        };
        let (node, path, nonce) = decode(buf.get(..arrival.len)?)?;
        if !unreachable || (node, path) != key {
            return None;
        }
        self.settle(node, path, nonce, offender?, AnswerKind::AgentAbsent)
    }

    /// Somebody has errors reported of what a target was asked: until it is asked again nothing of it is heard.
    fn note_junk(&mut self, token: u64) {
        let key = ((token >> 8) as u32, (token & 0xff) as u8);
        if let Some(target) = self.targets.get_mut(&key) {
            target.junk += 1;
            if target.junk >= JUNK {
                (target.udp, target.junk) = (None, 0);
            }
        }
    }

    fn settle(&mut self, node: u32, path: u8, nonce: u64, from: IpAddr, kind: AnswerKind) -> Option<ProbeAnswer> {
        let target = self.targets.get_mut(&(node, path)).filter(|t| t.addr == from)?;
        let (probed_ns, size) = target.answer(nonce, kind)?;
        if let Some(filter) = self.filter.as_ref().filter(|_| kind == AnswerKind::KernelAnswered) {
            filter.taken(nonce);
        }
        Some(ProbeAnswer { node, path, from, kind, nonce, size, probed_ns, at_ns: monotonic_ns() })
    }
}

/// Whether this host itself has this address now: then whoever answers there answered by way of no interface. What leaves for such an address has it as its source, too
/// (binding to it would say little: `ip_nonlocal_bind` is usual beside addresses that move).
#[must_use]
pub fn is_local(address: IpAddr) -> bool {
    let any = if address.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?; // sends nothing
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address || source.ip().is_loopback())
}

/// Random bits.
///
/// # Errors
/// When the kernel has none.
pub fn random() -> io::Result<u64> {
    sys::random().map(u64::from_ne_bytes)
}

fn token(node: u32, path: u8) -> u64 {
    u64::from(node) << 8 | u64::from(path)
}

/// Keeps the table and the number of sockets bounded: the target that was not asked for longest goes first.
fn make_room(targets: &mut HashMap<(u32, u8), Target>, wanted: (u32, u8)) {
    if targets.get(&wanted).is_some_and(|t| t.udp.is_some()) {
        return;
    }
    let oldest = |t: &HashMap<(u32, u8), Target>, socket: bool| {
        t.iter().filter(|(_, t)| !socket || t.udp.is_some()).min_by_key(|(_, t)| t.used_ns).map(|(k, _)| *k)
    };
    if targets.values().filter(|t| t.udp.is_some()).count() >= SOCKETS
        && let Some(target) = oldest(targets, true).and_then(|k| targets.get_mut(&k))
    {
        target.udp = None;
    }
    if targets.len() >= TARGETS
        && !targets.contains_key(&wanted)
        && let Some(key) = oldest(targets, false)
    {
        targets.remove(&key);
    }
}

/// The datagram to the lane's port, from a socket of the target's own that hears what the host's kernel says to it.
fn knock(
    target: &mut Target,
    epoll: &Arc<OwnedFd>,
    path: &Path,
    ifindex: u32,
    token: u64,
    cargo: &[u8; PROBE_LEN],
) -> io::Result<()> {
    let fd = match target.udp.take() {
        Some(fd) => fd,
        None => {
            let ipv6 = target.addr.is_ipv6();
            let fd = sys::socket(if ipv6 { libc::AF_INET6 } else { libc::AF_INET }, libc::SOCK_DGRAM, 0)?;
            sys::bind_to_device(&fd, &path.spec.interface)?;
            let (level, name) =
                if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) } else { (libc::IPPROTO_IP, libc::IP_RECVERR) };
            sys::set(&fd, level, name, 1i32)?;
            sys::connect(&fd, &SockAddr::ip(target.addr, path.spec.port, ifindex))?;
            Polled::new(fd, epoll, token)?
        }
    };
    let fd = target.udp.insert(fd);
    // An error that an earlier probe met is reported by the next call on the socket, which then does nothing else.
    let mut sent = sys::send_to(fd, cargo, None);
    for _ in 0..2 {
        if !matches!(&sent, Err(e) if matches!(e.raw_os_error(), Some(libc::ECONNREFUSED | libc::EHOSTUNREACH))) {
            break;
        }
        sent = sys::send_to(fd, cargo, None);
    }
    sent.map(drop)
}

/// Every station on a network.
const EVERYBODY: [u8; 6] = [0xff; 6];
/// Bits of a question's number that say which place it has in the filter's table.
const PLACES: u64 = 0xfff;

/// A packet socket that only sends, made when it is first wanted.
fn frames_socket(frames: &mut Option<OwnedFd>) -> Result<&OwnedFd, SendError> {
    let fd = match frames.take() {
        Some(fd) => fd,
        // Of no protocol: it receives nothing.
        None => sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(|e| SendError::from_io(&e))?,
    };
    Ok(frames.insert(fd))
}

/// A raw ICMP socket of the interface that hears answers to this prober only.
fn raw_socket(interface: &str, ipv6: bool, id: u16, program: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    const ICMP_FILTER: i32 = 1; // linux/icmp.h, with SOL_RAW
    const SOL_RAW: i32 = 255;
    const ICMP6_FILTER: i32 = 1; // linux/icmpv6.h, with SOL_ICMPV6
    const SOL_ICMPV6: i32 = 58;
    let fd = if ipv6 {
        let fd = sys::socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6)?;
        sys::set(&fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        let mut blocked = [u32::MAX; 8];
        blocked[129 / 32] &= !(1 << (129 % 32));
        sys::set(&fd, SOL_ICMPV6, ICMP6_FILTER, blocked)?;
        fd
    } else {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)?;
        sys::set(&fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        sys::set(&fd, SOL_RAW, ICMP_FILTER, !1u32)?;
        fd
    };
    match program {
        Some(program) => sys::attach_program(&fd, program)?,
        None => sys::only_answers(&fd, ipv6, id, u32::from_be_bytes(PROBE_MAGIC))?,
    }
    sys::bind_to_device(&fd, interface)?;
    Ok(fd)
}

/// A raw socket that only sends, whole packets: one of IPPROTO_TCP would be handed a copy of all TCP.
fn sending_socket(interface: &str, ipv6: bool) -> io::Result<OwnedFd> {
    let fd = sys::socket(if ipv6 { libc::AF_INET6 } else { libc::AF_INET }, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
    sys::bind_to_device(&fd, interface)?;
    Ok(fd)
}

/// An IP packet with a SYN without options.
fn syn(source: IpAddr, to: IpAddr, from_port: u16, port: u16, number: u32) -> Vec<u8> {
    const SYN: u8 = 2;
    segment(source, to, (from_port, port), number, 0, SYN)
}

/// What a kernel without a listener answers to that.
fn reset(source: IpAddr, to: IpAddr, port: u16, to_port: u16, number: u32) -> Vec<u8> {
    const RST_ACK: u8 = 0x14;
    segment(source, to, (port, to_port), 0, number.wrapping_add(1), RST_ACK)
}

/// An IP packet with an echo request.
fn echo_packet(source: IpAddr, to: IpAddr, id: u16, sequence: u16, carried: &[u8; PROBE_LEN]) -> Vec<u8> {
    let ipv6 = to.is_ipv6();
    let mut echo = echo_request(ipv6, id, sequence, carried);
    let protocol = if ipv6 { libc::IPPROTO_ICMPV6 } else { libc::IPPROTO_ICMP } as u8;
    let (mut packet, pseudo) = ip_header(source, to, protocol, echo.len() as u8);
    if ipv6 {
        let check = crate::frame::checksum(&[&pseudo[..], &echo].concat());
        echo[2..4].copy_from_slice(&check.to_be_bytes());
    }
    packet.extend(echo);
    packet
}

/// An IP packet with a TCP segment without options and data.
fn segment(source: IpAddr, to: IpAddr, (from_port, port): (u16, u16), number: u32, acknowledged: u32, flags: u8) -> Vec<u8> {
    const TCP: u8 = libc::IPPROTO_TCP as u8;
    let mut segment = [0; 20];
    segment[0..2].copy_from_slice(&from_port.to_be_bytes());
    segment[2..4].copy_from_slice(&port.to_be_bytes());
    segment[4..8].copy_from_slice(&number.to_be_bytes());
    segment[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    (segment[12], segment[13]) = (5 << 4, flags);
    segment[14..16].copy_from_slice(&1024u16.to_be_bytes());
    let (mut packet, pseudo) = ip_header(source, to, TCP, segment.len() as u8);
    let check = crate::frame::checksum(&[&pseudo[..], &segment].concat());
    segment[16..18].copy_from_slice(&check.to_be_bytes());
    packet.extend(segment);
    packet
}

/// The header of an IP packet whose payload has `len` bytes, and what the payload's checksum is to cover besides.
fn ip_header(source: IpAddr, to: IpAddr, protocol: u8, len: u8) -> (Vec<u8>, Vec<u8>) {
    const TTL: u8 = 64;
    match (source, to) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let addresses = [a.octets(), b.octets()].concat();
            let mut head = [&[0x45, 0, 0, 20 + len, 0, 0, 0x40, 0, TTL, protocol, 0, 0][..], &addresses].concat();
            // A raw socket's kernel does that, too; a packet socket's does not.
            let check = crate::frame::checksum(&head);
            head[10..12].copy_from_slice(&check.to_be_bytes());
            (head, [&addresses[..], &[0, protocol, 0, len]].concat())
        }
        (a, b) => {
            let octets = |a: IpAddr| if let IpAddr::V6(a) = a { a.octets() } else { [0; 16] };
            let addresses = [octets(a), octets(b)].concat();
            let head = [&[0x60, 0, 0, 0, 0, len, protocol, TTL][..], &addresses].concat();
            (head, [&addresses[..], &[0, 0, 0, len, 0, 0, 0, protocol]].concat())
        }
    }
}

fn encode(node: u32, path: u8, nonce: u64) -> [u8; PROBE_LEN] {
    let mut cargo = [0; PROBE_LEN];
    cargo[0..4].copy_from_slice(&PROBE_MAGIC);
    cargo[4..8].copy_from_slice(&node.to_be_bytes());
    cargo[8] = path;
    cargo[12..20].copy_from_slice(&nonce.to_be_bytes());
    cargo
}

/// Node, path and nonce.
fn decode(cargo: &[u8]) -> Option<(u32, u8, u64)> {
    let cargo: &[u8; PROBE_LEN] = cargo.get(..PROBE_LEN)?.try_into().ok()?;
    let [m0, m1, m2, m3, n0, n1, n2, n3, path, 0, 0, 0, nonce @ ..] = *cargo else { return None };
    ([m0, m1, m2, m3] == PROBE_MAGIC).then_some((u32::from_be_bytes([n0, n1, n2, n3]), path, u64::from_be_bytes(nonce)))
}

/// Bytes of an echo request before what it carries.
const ECHO_HEADER: usize = 8;

fn echo_request(ipv6: bool, id: u16, sequence: u16, cargo: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; ECHO_HEADER + cargo.len()];
    packet[0] = if ipv6 { 128 } else { 8 };
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&sequence.to_be_bytes());
    packet[8..].copy_from_slice(cargo);
    if !ipv6 {
        // For ICMPv6 the kernel does it, who knows the source address that goes into it.
        let check = crate::frame::checksum(&packet);
        packet[2..4].copy_from_slice(&check.to_be_bytes());
    }
    packet
}

/// What an echo reply to `id` carries; raw IPv4 sockets show the IP header before it.
fn echo_reply(ipv6: bool, id: u16, packet: &[u8]) -> Option<&[u8]> {
    let icmp = if ipv6 { packet } else { packet.get(usize::from(packet.first()? & 15) * 4..)? };
    let [kind, 0, _, _, id0, id1, _, _, cargo @ ..] = icmp else { return None };
    (*kind == if ipv6 { 129 } else { 0 } && u16::from_be_bytes([*id0, *id1]) == id).then_some(cargo)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(addr: &str) -> Target {
        Target::new(addr.parse().unwrap())
    }

    #[test]
    fn an_answer_counts_once_and_only_for_its_nonce() {
        let mut t = target("10.0.0.1");
        t.questions.put(77, 5, 0);
        assert_eq!(t.answer(78, AnswerKind::KernelAnswered), None);
        assert_eq!(t.answer(77, AnswerKind::KernelAnswered), Some((5, 0)));
        assert_eq!(t.answer(77, AnswerKind::KernelAnswered), None);
        assert_eq!(t.answer(77, AnswerKind::AgentAbsent), Some((5, 0)));
    }

    #[test]
    fn others_who_ask_much_do_not_push_out_the_questions_of_the_detector() {
        let mut t = target("10.0.0.1");
        t.questions.put(77, 5, 0);
        for nonce in 100..100 + 4 * RECENT as u64 {
            t.aside.put(nonce, nonce, 0);
        }
        assert_eq!(t.answer(77, AnswerKind::KernelAnswered), Some((5, 0)));
        assert_eq!(t.answer(100, AnswerKind::KernelAnswered), None, "long ago");
        let last = 100 + 4 * RECENT as u64 - 1;
        assert_eq!(t.answer(last, AnswerKind::KernelAnswered), Some((last, 0)));
        assert_eq!(t.questions.last().map(|q| q.nonce), Some(77), "to whom the knock belongs");
    }

    #[test]
    fn a_syn_has_its_fields_where_they_belong_and_a_checksum_that_verifies() {
        for (source, to, head) in [("10.0.0.1", "10.0.0.2", 20), ("fd77::1", "fd77::2", 40)] {
            let (source, to): (IpAddr, IpAddr) = (source.parse().unwrap(), to.parse().unwrap());
            let packet = syn(source, to, 40_000, 7400, 0x0102_0304);
            let (ip, segment) = packet.split_at(head);
            assert_eq!(segment[..8], [0x9c, 0x40, 0x1c, 0xe8, 1, 2, 3, 4]);
            assert_eq!((segment.len(), segment[12], segment[13]), (20, 0x50, 2));
            let addresses = if head == 20 { &ip[12..] } else { &ip[8..] };
            assert_eq!(crate::frame::checksum(&[addresses, &[0, 6, 0, 20], segment].concat()), 0, "{source}");
            assert_eq!(
                if head == 20 { (ip[0], ip[9], ip[3]) } else { (ip[0], ip[6], ip[5] + 20) },
                (if head == 20 { 0x45 } else { 0x60 }, 6, 40)
            );
            assert!(head == 40 || crate::frame::checksum(ip) == 0);
            // And what looks like its answer.
            let answer = reset(to, source, 7400, 40_000, 0x0102_0304);
            let (_, segment) = answer.split_at(head);
            assert_eq!(segment[..14], [0x1c, 0xe8, 0x9c, 0x40, 0, 0, 0, 0, 1, 2, 3, 5, 0x50, 0x14]);
            assert_eq!(reset(to, source, 7400, 40_000, u32::MAX)[head + 8..head + 12], [0; 4]);
        }
    }

    #[test]
    fn a_question_for_everybody_has_checksums_that_verify() {
        for (source, to, head) in [("10.0.0.1", "10.0.0.2", 20), ("fd77::1", "fd77::2", 40)] {
            let (source, to): (IpAddr, IpAddr) = (source.parse().unwrap(), to.parse().unwrap());
            let carried = encode(7, 1, 99);
            let packet = echo_packet(source, to, 0x0102, 3, &carried);
            let (ip, icmp) = packet.split_at(head);
            assert_eq!((icmp[0], &icmp[4..8], &icmp[8..]), (if head == 20 { 8 } else { 128 }, &[1, 2, 0, 3][..], &carried[..]));
            let addresses = [&ip[8..], &[0, 0, 0, 28, 0, 0, 0, 58]].concat();
            let pseudo = if head == 20 { &[][..] } else { &addresses };
            assert_eq!(crate::frame::checksum(&[pseudo, icmp].concat()), 0, "{source}");
        }
    }

    #[test]
    fn own_addresses_are_told_from_those_of_others() {
        for (address, local) in
            [("127.0.0.1", true), ("127.1.2.3", true), ("192.0.2.1", false), ("2001:db8::1", false), ("fe80::1", false)]
        {
            assert_eq!(is_local(address.parse().unwrap()), local, "{address}");
        }
    }

    #[test]
    fn the_table_stays_bounded_and_forgets_the_longest_unasked() {
        let mut targets = HashMap::new();
        for n in 0..TARGETS as u32 + 10 {
            make_room(&mut targets, (n, 0));
            targets.insert((n, 0), Target { used_ns: u64::from(n), ..target("10.0.0.1") });
        }
        assert_eq!(targets.len(), TARGETS);
        assert!(!targets.contains_key(&(9, 0)) && targets.contains_key(&(10, 0)));
    }

    proptest! {
        #[test]
        fn cargo_survives_and_strangers_do_not(node: u32, path: u8, nonce: u64, id: u16, other: u16, v6: bool) {
            let cargo = encode(node, path, nonce);
            prop_assert_eq!(decode(&cargo), Some((node, path, nonce)));
            let mut echo = echo_request(v6, id, 1, &cargo).to_vec();
            prop_assert_eq!(echo_reply(v6, id, &echo), None, "a request is no reply");
            echo[0] = if v6 { 129 } else { 0 };
            if !v6 {
                echo.splice(0..0, std::iter::once(0x45).chain([0; 19]));
            }
            prop_assert_eq!(echo_reply(v6, id, &echo), Some(&cargo[..]));
            if other != id {
                prop_assert_eq!(echo_reply(v6, other, &echo), None);
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), v6: bool, id: u16) {
            let _ = echo_reply(v6, id, &bytes).and_then(decode);
        }
    }
}
