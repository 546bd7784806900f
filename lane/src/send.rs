//! The lane: one payload on every path, with one system call where the host allows it.
//!
//! Multicast leaves as whole frames through one `AF_PACKET` socket that bypasses the queueing discipline (both paths in one
//! `sendmmsg`); where that is not permitted, where an interface is no Ethernet, or where there is no multicast, it leaves
//! through UDP sockets bound to the path's interface. The same UDP sockets hold the group membership — without it neither
//! snooping switches nor the NIC's filter would let the group through, whoever reads it then — and can receive.
//!
//! **When a heartbeat was sent.** A system call that returns says that a buffer took it. SafeTimer (§5.2) asks for more: that the NIC has
//! completed it, which it learns by a probe in the driver. A stock kernel tells the same by socket: the memory of a packet is
//! charged to its socket until the driver frees it, which it does on completion, and SIOCOUTQ reads that charge.
//! [`Lane::completion`] asks it, one cheap system call for each path with something under way. What a driver's "free" means differs:
//! `docs/fence.md` says what for veth, virtio and NICs.
//!
//! Hosts that multicast does not reach for a while ([`Lane::set_copies`]) get copies by unicast through a socket of their own: what the kernel
//! still holds of these, because a host that died is not found on the link, is neither an error of the path nor held
//! against its completion.
//!
//! A path whose interface is missing is *down*, not an error of the lane: the other one carries on (FiDe §3.3), every send
//! says so, and [`Lane::refresh`] brings it back.

use crate::frame::{Addressing, Head};
use crate::sys::{self, Message, SockAddr};
use fide_wire::{PATHS, PIGGYBACK_MAX, packet};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// One path, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// Its number, below [`PATHS`].
    pub path: u8,
    /// The interface by which it leaves and arrives.
    pub interface: String,
    /// The multicast group (tree) of this path.
    pub group: Option<IpAddr>,
    /// Hosts that get a copy of their own, where multicast does not reach.
    pub unicast: Vec<IpAddr>,
    /// UDP port, of the source and of the destination.
    pub port: u16,
    /// The source address; absent: the interface's first of the right family.
    pub source: Option<IpAddr>,
}

impl PathSpec {
    /// Whether this path speaks IPv6: what its group says, else its source, else its first unicast address.
    #[must_use]
    pub fn ipv6(&self) -> bool {
        self.group.or(self.source).or(self.unicast.first().copied()).is_some_and(|a| a.is_ipv6())
    }
}

/// What an interface is like that a path may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    link: sys::Link,
    addresses: Vec<sys::Address>,
}

/// Looks at the interface of a path; `None`: it is not there. Lists the addresses of the interface, and
/// waits for whoever changes an interface: nothing for a thread that others wait for.
#[must_use]
pub fn look(spec: &PathSpec) -> Option<Seen> {
    Some(Seen { link: sys::link(&spec.interface).ok()?, addresses: sys::addresses(&spec.interface).ok()? })
}

/// How multicast is to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendMode {
    /// Frames where possible, else UDP.
    #[default]
    Auto,
    /// Frames; opening fails where that is not permitted.
    Packet,
    /// UDP sockets only.
    Udp,
}

/// How a path is sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMode {
    /// Whole frames, past the queueing discipline unless [`Options::gated`].
    Packet,
    /// A UDP socket.
    Udp,
    /// Not at all: no such path, or its interface is missing ([`Lane::down`] says why).
    Down,
}

impl fmt::Display for PathMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathMode::Packet => "packet",
            PathMode::Udp => "udp",
            PathMode::Down => "down",
        })
    }
}

/// What is seldom changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time to live or hop limit of multicast: 1 stays on the link.
    pub ttl: u8,
    /// Differentiated services code point; 46 is EF, 48 CS6.
    pub dscp: u8,
    /// Whether [`Lane::receive`] will be used. Where the receive program takes everything off the interface it is not, and the
    /// sockets throw away what they get.
    pub receive: bool,
    /// Whether frames go through the queueing discipline, and so through the gate that a fence puts in front of it, instead of past both. A
    /// frame that the gate blocks is [`SendError::Full`].
    pub gated: bool,
    /// Whether [`Lane::completion`] will be asked. Each path then has a packet socket of its own, which costs a system call more
    /// when both are sent.
    pub completion: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { ttl: 1, dscp: 46, receive: true, gated: false, completion: false }
    }
}

/// A kernel error number that can be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", io::Error::from_raw_os_error(self.0))
    }
}

/// Why a copy did not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The path is not configured, or its interface is missing or administratively down: [`Lane::refresh`] when it may be back.
    #[error("the path is down: {0}")]
    Down(Errno),
    /// The interface took no more: its queue is full, it has no carrier, or a gate blocks it.
    #[error("the interface takes no packet: {0}")]
    Full(Errno),
    /// Larger than a frame on this path; never split.
    #[error("{size} bytes do not fit: this path carries at most {limit}")]
    TooLarge {
        /// Bytes of the payload.
        size: usize,
        /// Bytes possible.
        limit: usize,
    },
    /// Anything else.
    #[error("{0}")]
    Other(Errno),
}

impl SendError {
    fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::ENETUNREACH | libc::EADDRNOTAVAIL => Self::Down(Errno(errno)),
            libc::EAGAIN | libc::ENOBUFS => Self::Full(Errno(errno)),
            _ => Self::Other(Errno(errno)),
        }
    }

    pub(crate) fn from_io(e: &io::Error) -> Self {
        Self::from_errno(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// What became of one path's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOutcome {
    /// Copies handed to the interface: 1 for multicast, one for each unicast host.
    pub copies: u16,
    /// The first error, if any; with unicast lists other copies may have left all the same.
    pub error: Option<SendError>,
}

impl SendOutcome {
    fn fail(&mut self, e: SendError) {
        self.error.get_or_insert(e);
    }

    /// Whether every copy left.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.error.is_none()
    }
}

/// What keeps a lane or one of its paths from working.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// A configuration that cannot work on any host.
    #[error("path {path}: {what}")]
    Spec {
        /// Which path.
        path: u8,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// No path at all.
    #[error("no path is configured: a lane needs at least one, and two to tell a crash from a network fault")]
    NoPath,
    /// The interface is not there.
    #[error("path {path}: interface {interface} does not exist here")]
    NoInterface {
        /// Which path.
        path: u8,
        /// Its interface.
        interface: String,
    },
    /// The interface has no usable address.
    #[error(
        "path {path}: interface {interface} has no {family} address of its own (deprecated ones, and keepalived's, move between hosts): add one, or name it as the path's address"
    )]
    NoAddress {
        /// Which path.
        path: u8,
        /// Its interface.
        interface: String,
        /// IPv4 or IPv6.
        family: &'static str,
    },
    /// Somebody else has the port.
    #[error(
        "path {path}: UDP port {port} on {interface} is taken, probably by another agent in this network namespace \
         (stop it, or give one of them another port; `ss -ulpn` shows who has it)"
    )]
    PortTaken {
        /// Which path.
        path: u8,
        /// Its interface.
        interface: String,
        /// The port.
        port: u16,
    },
    /// Frames were asked for and are not permitted.
    #[error("cannot open a packet socket ({0}): it needs CAP_NET_RAW; send mode `auto` or `udp` does without")]
    PacketSocket(#[source] io::Error),
    /// A system call failed.
    #[error("path {path}: {what} on {interface}: {source}")]
    System {
        /// Which path.
        path: u8,
        /// Its interface.
        interface: String,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// A packet received through a UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes in the buffer.
    pub len: usize,
    /// Whether the packet was larger than the buffer (and therefore none of ours).
    pub truncated: bool,
    /// When the kernel took it from the interface, on CLOCK_MONOTONIC.
    pub arrived_ns: u64,
    /// Where it says that it comes from.
    pub from: IpAddr,
    /// It was sent to a multicast group.
    pub by_group: bool,
}

/// How far the kernel is done with what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// For each path, the number of a call of [`Lane::send`] ([`Lane::sends`]): the kernel holds no copy of it any more, nor of any earlier
    /// call. Calls whose outcome on that path was an error do not count. 0: none yet.
    ///
    /// On a path by UDP a copy that the queueing discipline refuses counts as done, because UDP does not tell its sender.
    pub through: [u64; PATHS],
    /// A clock reading (CLOCK_MONOTONIC) after this was known: the time to compare with a deadline, never earlier than the truth
    /// (SafeTimer §5.2, t_after).
    pub known_ns: u64,
}

/// A path whose interface is there.
struct Open {
    link: sys::Link,
    source: IpAddr,
    udp: OwnedFd,
    /// Its own, when completion is asked for; the lane's otherwise.
    packet: Option<OwnedFd>,
    /// Present in packet mode.
    head: Option<Head>,
    /// Where frames go.
    link_to: SockAddr,
    /// Where UDP copies go: the group first (when it does not leave as a frame), then the unicast hosts.
    udp_to: Vec<SockAddr>,
    /// By which copies for single hosts leave, and where they go.
    copies: Option<(OwnedFd, Vec<SockAddr>)>,
}

struct Path {
    spec: PathSpec,
    state: Result<Open, LaneError>,
    /// Hosts that get copies of their own for a while.
    copies: Vec<IpAddr>,
    /// Larger packets do not get through, whatever the interface takes.
    limit: Option<usize>,
    /// The last send of which the kernel took every copy, and the last of which it is done with every copy.
    taken: u64,
    done: u64,
}

/// The sending half of the lane, and the sockets that hold its group memberships. Made for one thread.
pub struct Lane {
    paths: [Option<Path>; PATHS],
    /// One for all paths; bound to no protocol, so that it receives nothing.
    packet: Option<OwnedFd>,
    options: Options,
    sends: u64,
}

impl Lane {
    /// Opens the lane with the default [`Options`].
    ///
    /// # Errors
    /// See [`Lane::open_with`].
    pub fn open(specs: &[PathSpec], mode: SendMode) -> Result<Self, LaneError> {
        Self::open_with(specs, mode, Options::default())
    }

    /// Opens the lane. A path whose interface or address is missing starts *down*, as long as another one works.
    ///
    /// # Errors
    /// A specification that cannot work, a port that is taken, frames asked for but not permitted, or no path that works.
    pub fn open_with(specs: &[PathSpec], mode: SendMode, options: Options) -> Result<Self, LaneError> {
        check_specs(specs)?;
        let packet = match (mode, packet_socket(options)) {
            (SendMode::Udp, _) => None,
            (_, Ok(fd)) => Some(fd),
            (SendMode::Packet, Err(e)) => return Err(LaneError::PacketSocket(e)),
            (SendMode::Auto, Err(e)) => {
                tracing::info!(error = %e, "no packet socket: multicast leaves through UDP sockets");
                None
            }
        };
        let mut lane = Self { paths: [const { None }; PATHS], packet, options, sends: 0 };
        for spec in specs {
            let state = lane.open_path(spec, None);
            if let Err(e) = &state {
                if !matches!(e, LaneError::NoInterface { .. } | LaneError::NoAddress { .. }) {
                    return state.map(|_| lane);
                }
                tracing::warn!(path = spec.path, error = %e, "path is down");
            }
            lane.paths[usize::from(spec.path)] =
                Some(Path { spec: spec.clone(), state, copies: Vec::new(), limit: None, taken: 0, done: 0 });
        }
        if lane.paths.iter().flatten().all(|p| p.state.is_err()) {
            let first = lane.paths.into_iter().flatten().find_map(|p| p.state.err());
            return Err(first.unwrap_or(LaneError::NoPath));
        }
        Ok(lane)
    }

    /// `in_use`: the address that the path had until now.
    fn open_path(&self, spec: &PathSpec, in_use: Option<IpAddr>) -> Result<Open, LaneError> {
        let link = sys::link(&spec.interface).map_err(|e| match e.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => LaneError::NoInterface { path: spec.path, interface: spec.interface.clone() },
            _ => system(spec, "looking up the interface", e),
        })?;
        let all = sys::addresses(&spec.interface).map_err(|e| system(spec, "listing addresses", e))?;
        let source = choose(spec, &all, in_use).ok_or_else(|| LaneError::NoAddress {
            path: spec.path,
            interface: spec.interface.clone(),
            family: if spec.ipv6() { "IPv6" } else { "IPv4" },
        })?;
        let udp = udp_socket(spec, &link, source, self.options)?;
        let framed = self.packet.is_some() && link.hardware == libc::ARPHRD_ETHER;
        let head = spec.group.filter(|_| framed).and_then(|group| {
            let Options { ttl, dscp, .. } = self.options;
            Head::new(&Addressing { mac: link.mac, source, group, port: spec.port, ttl, dscp })
        });
        let link_to = head
            .as_ref()
            .map_or_else(|| SockAddr::link(link.ifindex, 0, [0; 6]), |h| SockAddr::link(link.ifindex, h.ethertype(), h.mac()));
        let group = spec.group.filter(|_| head.is_none());
        let packet = match &head {
            Some(_) if self.options.completion => {
                Some(packet_socket(self.options).map_err(|e| system(spec, "opening a packet socket", e))?)
            }
            _ => None,
        };
        let udp_to = group.iter().chain(&spec.unicast).map(|a| SockAddr::ip(*a, spec.port, link.ifindex)).collect();
        Ok(Open { link, source, udp, packet, head, link_to, udp_to, copies: None })
    }

    /// Sends one payload on each path that has one: all frames with one system call (one for each path with
    /// [`Options::completion`]), then the UDP copies. Never waits, never allocates, never panics.
    pub fn send(&mut self, payloads: [Option<&[u8]>; PATHS]) -> [SendOutcome; PATHS] {
        self.send_in_turns(payloads, 1)
    }

    /// The same, of which each host that gets copies ([`Lane::set_copies`]) gets one of so many.
    pub fn send_in_turns(&mut self, payloads: [Option<&[u8]>; PATHS], turns: u32) -> [SendOutcome; PATHS] {
        self.sends += 1;
        let mut outcomes = [SendOutcome::default(); PATHS];
        let (mut frames, mut own): ([Option<Message<'_>>; PATHS], [Option<&OwnedFd>; PATHS]) = ([None; PATHS], [None; PATHS]);
        let places = frames.iter_mut().zip(&mut own);
        for (((slot, payload), outcome), (frame, own)) in self.paths.iter_mut().zip(payloads).zip(&mut outcomes).zip(places) {
            let Some(payload) = payload else { continue };
            let Some(Path { spec, state: Ok(open), .. }) = slot else {
                outcome.fail(SendError::Down(Errno(libc::ENODEV)));
                continue;
            };
            let limit = payload_max(open.link.mtu, spec.ipv6());
            if payload.len() > limit {
                outcome.fail(SendError::TooLarge { size: payload.len(), limit });
                continue;
            }
            if let Some(head) = &mut open.head {
                *frame = Some(Message { to: &open.link_to, head: head.patch(payload), payload });
                *own = open.packet.as_ref();
            }
        }
        if self.options.completion {
            for (path, own) in own.iter().enumerate() {
                if let Some(own) = own {
                    let mut only = [None; PATHS];
                    only[path] = frames[path];
                    send_frames(own, &only, &mut outcomes);
                }
            }
        } else if let Some(packet) = &self.packet {
            send_frames(packet, &frames, &mut outcomes);
        }
        for ((slot, payload), outcome) in self.paths.iter().zip(payloads).zip(&mut outcomes) {
            if let (Some(Path { state: Ok(open), .. }), Some(payload)) = (slot, payload)
                && !open.udp_to.is_empty()
                && !matches!(outcome.error, Some(SendError::TooLarge { .. }))
            {
                send_datagrams(open, payload, outcome);
            }
        }
        for (slot, payload) in self.paths.iter().zip(payloads) {
            if let (Some(Path { state: Ok(Open { copies: Some((socket, to)), .. }), .. }), Some(payload)) = (slot, payload) {
                send_copies(socket, to, payload, self.sends, turns);
            }
        }
        for (slot, outcome) in self.paths.iter_mut().zip(&outcomes) {
            if let Some(path) = slot
                && outcome.is_ok()
                && outcome.copies > 0
            {
                path.taken = self.sends;
            }
        }
        outcomes
    }

    /// How often [`Lane::send`] was called: the number of the last call.
    #[must_use]
    pub fn sends(&self) -> u64 {
        self.sends
    }

    /// Asks how far the kernel is done with what was sent: one system call for each path with something under way, none where all is
    /// done. Without [`Options::completion`] paths by frames are never done.
    ///
    /// "Done" has the deadline's meaning only for a call whose outcome on the path was no error.
    pub fn completion(&mut self) -> Completion {
        let mut through = [0; PATHS];
        for (through, path) in through.iter_mut().zip(self.paths.iter_mut()) {
            let Some(path) = path else { continue };
            if path.done < path.taken && path.state.as_ref().is_ok_and(Open::idle) {
                path.done = path.taken;
            }
            *through = path.done;
        }
        Completion { through, known_ns: sys::monotonic_ns() }
    }

    /// Sends to one host from the lane's own port (answers, confirmations).
    ///
    /// # Errors
    /// As in [`SendOutcome`]; also when the address is of another family than the path.
    pub fn send_to(&self, path: u8, addr: IpAddr, payload: &[u8]) -> Result<(), SendError> {
        let Some(Path { spec, state: Ok(open), .. }) = self.slot(path) else {
            return Err(SendError::Down(Errno(libc::ENODEV)));
        };
        if addr.is_ipv6() != spec.ipv6() {
            return Err(SendError::Other(Errno(libc::EAFNOSUPPORT)));
        }
        let limit = payload_max(open.link.mtu, spec.ipv6());
        if payload.len() > limit {
            return Err(SendError::TooLarge { size: payload.len(), limit });
        }
        let to = SockAddr::ip(addr, spec.port, open.link.ifindex);
        sys::send_to(&open.udp, payload, Some(&to)).map(drop).map_err(|e| SendError::from_io(&e))
    }

    /// From now on these hosts get a copy of every frame by unicast, where the path has a group, and no others do.
    ///
    /// # Errors
    /// When there can be no socket for them; [`Lane::refresh`] tries again.
    pub fn set_copies(&mut self, path: u8, hosts: &[IpAddr]) -> Result<(), LaneError> {
        let Some(Some(Path { spec, state, copies, .. })) = self.paths.get_mut(usize::from(path)) else { return Ok(()) };
        if spec.group.is_none() {
            return Ok(());
        }
        copies.clear();
        copies.extend(hosts.iter().filter(|host| host.is_ipv6() == spec.ipv6() && !spec.unicast.contains(host)));
        state.as_mut().map_or(Ok(()), |open| open.copy_to(spec, copies, self.options))
    }

    /// Whether all that a path sends goes by multicast, and so all that is to be heard on it.
    #[must_use]
    pub fn is_multicast(&self, path: u8) -> bool {
        self.slot(path).is_some_and(|path| path.spec.group.is_some() && path.spec.unicast.is_empty())
    }

    /// Leaves the path's group and joins it again, which tells switches that have forgotten this host.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn rejoin(&mut self, path: u8) -> Result<(), LaneError> {
        let Some(Path { spec, state: Ok(open), .. }) = self.slot(path) else { return Ok(()) };
        let Some(group) = spec.group else { return Ok(()) };
        sys::leave(&open.udp, group, open.link.ifindex).map_err(|e| system(spec, "leaving the multicast group", e))?;
        sys::join(&open.udp, group, open.link.ifindex).map_err(|e| system(spec, "joining the multicast group again", e))
    }

    /// The next packet waiting on this path, if any. Never waits. Meant for hosts without the receive program.
    pub fn receive(&self, path: u8, buf: &mut [u8]) -> Option<Received> {
        let open = self.open_slot(path)?;
        loop {
            match sys::receive(&open.udp, buf, false) {
                Ok(a) => {
                    let Some(from) = a.from else { continue };
                    return Some(Received {
                        len: a.len.min(buf.len()),
                        truncated: a.len > buf.len(),
                        arrived_ns: monotonic_of(a.stamp_ns),
                        from,
                        by_group: a.by_group,
                    });
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// The descriptors to wait on for [`Lane::receive`], with their paths. [`Lane::refresh`] replaces its path's.
    #[must_use]
    pub fn receive_fds(&self) -> Vec<(u8, RawFd)> {
        let open = self.paths.iter().flatten();
        open.filter_map(|p| p.state.as_ref().ok().map(|o| (p.spec.path, o.udp.as_raw_fd()))).collect()
    }

    /// Chooses whether packets are kept for [`Lane::receive`] from now on ([`Options::receive`]).
    pub fn set_receiving(&mut self, receiving: bool) {
        if receiving == self.options.receive {
            return;
        }
        self.options.receive = receiving;
        for open in self.paths.iter().flatten().filter_map(|p| p.state.as_ref().ok()) {
            let changed = if receiving { sys::undeafen(&open.udp) } else { sys::deafen(&open.udp) };
            if let Err(e) = changed {
                tracing::warn!(error = %e, receiving, "cannot change the socket filter");
            }
        }
    }

    /// Whether frames go through the queueing discipline from now on ([`Options::gated`]): one system call for each packet socket.
    pub fn set_gated(&mut self, gated: bool) {
        if std::mem::replace(&mut self.options.gated, gated) == gated {
            return;
        }
        let own = self.paths.iter().flatten().filter_map(|path| path.state.as_ref().ok()?.packet.as_ref());
        for socket in self.packet.iter().chain(own) {
            if let Err(e) = set_bypass(socket, gated) {
                tracing::warn!(error = %e, gated, "cannot change how frames leave");
            }
        }
    }

    /// Looks the path's interface up again (index, MAC, address, MTU) and opens its sockets anew: after a NIC came back, or
    /// when [`Lane::differs`] says that something changed. Its descriptor in [`Lane::receive_fds`] is a new one then.
    ///
    /// # Errors
    /// What keeps the path down; it stays down, [`Lane::down`] remembers the reason, and refreshing can be tried again.
    pub fn refresh(&mut self, path: u8) -> Result<(), &LaneError> {
        let index = usize::from(path);
        let Some(Path { spec, state, copies, limit, done, .. }) = self.paths.get_mut(index).and_then(Option::take) else {
            return Err(&LaneError::NoPath);
        };
        let in_use = state.as_ref().ok().map(|open| open.source);
        drop(state); // frees the port that the new socket needs
        let mut state = self.open_path(&spec, in_use);
        if let Ok(open) = &mut state
            && let Err(e) = open.copy_to(&spec, &copies, self.options)
        {
            tracing::warn!(error = %e, "no copies by unicast");
        }
        // What the old sockets had under way will never be known to be done.
        match &self.paths[index].insert(Path { spec, state, copies, limit, taken: done, done }).state {
            Ok(_) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Whether the path's interface, as it was just seen, differs from the one in use: gone, back, or renumbered.
    #[must_use]
    pub fn differs(&self, path: u8, seen: Option<&Seen>) -> bool {
        match self.slot(path) {
            None => false,
            Some(Path { spec, state: Ok(open), .. }) => seen.is_none_or(|seen| {
                seen.link != open.link || choose(spec, &seen.addresses, Some(open.source)) != Some(open.source)
            }),
            Some(Path { spec, state: Err(_), .. }) => seen.is_some_and(|seen| choose(spec, &seen.addresses, None).is_some()),
        }
    }

    /// Whether the path's interface is up with its carrier.
    #[must_use]
    pub fn carrier(&self, path: u8) -> bool {
        let running = |p: &Path| sys::running(&p.spec.interface, p.state.as_ref().ok().map(|open| &open.udp));
        self.slot(path).is_some_and(|p| running(p).unwrap_or(false))
    }

    /// How the path's multicast is sent.
    #[must_use]
    pub fn mode(&self, path: u8) -> PathMode {
        match self.open_slot(path) {
            Some(open) if open.head.is_some() => PathMode::Packet,
            Some(_) => PathMode::Udp,
            None => PathMode::Down,
        }
    }

    /// Why the path is down, if it is configured and down.
    #[must_use]
    pub fn down(&self, path: u8) -> Option<&LaneError> {
        self.slot(path)?.state.as_ref().err()
    }

    /// The name of the path's interface, up or not.
    #[must_use]
    pub fn interface(&self, path: u8) -> Option<&str> {
        self.paths.iter().flatten().find(|p| p.spec.path == path).map(|p| p.spec.interface.as_str())
    }

    /// The path's interface index, while it is up.
    #[must_use]
    pub fn ifindex(&self, path: u8) -> Option<u32> {
        self.open_slot(path).map(|o| o.link.ifindex)
    }

    /// The link's address of the path's interface, while it is up and an Ethernet.
    #[must_use]
    pub fn mac(&self, path: u8) -> Option<[u8; 6]> {
        self.open_slot(path).map(|o| o.link).filter(|link| link.hardware == libc::ARPHRD_ETHER).map(|link| link.mac)
    }

    /// The address that this host sends from on the path, while it is up.
    #[must_use]
    pub fn source(&self, path: u8) -> Option<IpAddr> {
        self.open_slot(path).map(|o| o.source)
    }

    /// The MTU of the path's interface, while it is up.
    #[must_use]
    pub fn mtu(&self, path: u8) -> Option<usize> {
        self.open_slot(path).map(|o| o.link.mtu)
    }

    /// Larger packets than this do not get through on the path, although its interface takes them. What is larger leaves all the same:
    /// the lane's users ask [`Lane::piggyback_max`] and [`Lane::payload_max`].
    pub fn set_limit(&mut self, path: u8, limit: Option<usize>) {
        if let Some(Some(path)) = self.paths.get_mut(usize::from(path)) {
            path.limit = limit;
        }
    }

    /// The largest payload that gets through on every path that is up.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        let up = self.paths.iter().flatten().filter(|path| path.state.is_ok());
        up.filter_map(|path| Some(payload_max(path.mtu()?, path.spec.ipv6()))).min().unwrap_or(usize::MAX)
    }

    /// The largest piggyback that fits one frame on every path that is up (FiDe §3.1).
    #[must_use]
    pub fn piggyback_max(&self) -> usize {
        let up = self.paths.iter().flatten().filter_map(|p| Some((p.mtu()?, p.spec.ipv6())));
        up.map(|(mtu, ipv6)| packet::piggyback_max(mtu, ipv6)).min().unwrap_or(PIGGYBACK_MAX)
    }

    fn slot(&self, path: u8) -> Option<&Path> {
        self.paths.get(usize::from(path))?.as_ref()
    }

    fn open_slot(&self, path: u8) -> Option<&Open> {
        self.slot(path)?.state.as_ref().ok()
    }
}

impl Path {
    /// What gets through, while the path is up.
    fn mtu(&self) -> Option<usize> {
        let mtu = self.state.as_ref().ok()?.link.mtu;
        Some(self.limit.map_or(mtu, |limit| limit.min(mtu)))
    }
}

impl Open {
    fn copy_to(&mut self, spec: &PathSpec, hosts: &[IpAddr], options: Options) -> Result<(), LaneError> {
        // A socket that was made once stays: who lacks multicast now and then changes every second.
        if self.copies.is_none() && !hosts.is_empty() {
            self.copies = Some((copy_socket(spec, self.source, options)?, Vec::new()));
        }
        if let Some((_, to)) = &mut self.copies {
            to.clear();
            to.extend(hosts.iter().map(|host| SockAddr::ip(*host, spec.port, self.link.ifindex)));
        }
        Ok(())
    }

    /// Whether the kernel holds nothing that this path sent. Not known is not idle.
    fn idle(&self) -> bool {
        let idle = |fd: &OwnedFd| sys::unsent(fd).is_ok_and(|bytes| bytes == 0);
        let frames = self.head.is_none() || self.packet.as_ref().is_some_and(idle);
        frames && (self.udp_to.is_empty() || idle(&self.udp))
    }
}

fn payload_max(mtu: usize, ipv6: bool) -> usize {
    mtu.min(65_535).saturating_sub(if ipv6 { 48 } else { 28 })
}

/// Sends what is there in as few calls as the kernel needs: one, unless a path fails.
fn send_frames(packet: &OwnedFd, frames: &[Option<Message<'_>>; PATHS], outcomes: &mut [SendOutcome; PATHS]) {
    let nobody = Message { to: &SockAddr::link(0, 0, [0; 6]), head: &[], payload: &[] };
    let (mut batch, mut owner, mut n) = ([nobody; PATHS], [0; PATHS], 0);
    for (path, message) in frames.iter().enumerate() {
        if let Some(message) = message {
            (batch[n], owner[n]) = (*message, path);
            n += 1;
        }
    }
    send_all(packet, &batch[..n], |i, result| match result {
        Ok(()) => outcomes[owner[i]].copies += 1,
        Err(e) => outcomes[owner[i]].fail(e),
    });
}

fn send_datagrams(open: &Open, payload: &[u8], outcome: &mut SendOutcome) {
    for to in open.udp_to.chunks(sys::BATCH) {
        let mut batch = [Message { to: &to[0], head: &[], payload }; sys::BATCH];
        for (message, to) in batch.iter_mut().zip(to) {
            message.to = to;
        }
        send_all(&open.udp, &batch[..to.len()], |_, result| match result {
            Ok(()) => outcome.copies = outcome.copies.saturating_add(1),
            Err(e) => outcome.fail(e),
        });
    }
}

/// Copies for those whose turn it is. Best effort: a host that is not found is found dead by others' means.
fn send_copies(socket: &OwnedFd, to: &[SockAddr], payload: &[u8], sends: u64, turns: u32) {
    if to.is_empty() {
        return;
    }
    let turns = turns.max(1) as usize;
    let first = (sends % turns as u64) as usize;
    let (mut batch, mut n) = ([Message { to: &to[0], head: &[], payload }; sys::BATCH], 0);
    for to in to.iter().skip(first).step_by(turns) {
        batch[n].to = to;
        n += 1;
        if n == sys::BATCH {
            send_all(socket, &batch, |_, _| {});
            n = 0;
        }
    }
    send_all(socket, &batch[..n], |_, _| {});
}

/// `sendmmsg` stops at the first message that fails; this one goes on behind it.
fn send_all(fd: &OwnedFd, messages: &[Message<'_>], mut done: impl FnMut(usize, Result<(), SendError>)) {
    let mut at = 0;
    while at < messages.len() {
        match sys::send_many(fd, &messages[at..]) {
            Ok(sent) => {
                (at..at + sent).for_each(|i| done(i, Ok(())));
                at += sent;
                if sent == 0 {
                    return; // cannot be: at least one message, or an error
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                done(at, Err(SendError::from_io(&e)));
                at += 1;
            }
        }
    }
}

fn system(spec: &PathSpec, what: &'static str, source: io::Error) -> LaneError {
    LaneError::System { path: spec.path, interface: spec.interface.clone(), what, source }
}

fn check_specs(specs: &[PathSpec]) -> Result<(), LaneError> {
    if specs.is_empty() {
        return Err(LaneError::NoPath);
    }
    for (i, spec) in specs.iter().enumerate() {
        let wrong = |what: String| Err(LaneError::Spec { path: spec.path, what });
        if usize::from(spec.path) >= PATHS {
            return wrong(format!("there are {PATHS} paths, numbered from 0"));
        }
        if spec.port == 0 {
            return wrong("port 0 is not a port".into());
        }
        if let Some(group) = spec.group.filter(|g| !g.is_multicast()) {
            return wrong(format!("{group} is not a multicast group (239.0.0.0/8 and ff15::/16 are free to use)"));
        }
        if let Some(host) = spec.unicast.iter().find(|a| a.is_multicast()) {
            return wrong(format!("{host} is a multicast group: it belongs in `group`, not in the unicast list"));
        }
        if let Some(other) = spec.source.iter().chain(&spec.unicast).find(|a| a.is_ipv6() != spec.ipv6()) {
            return wrong(format!("{other} is of another address family than the rest of this path"));
        }
        for earlier in &specs[..i] {
            if earlier.path == spec.path {
                return wrong("is configured twice".into());
            }
            if earlier.interface == spec.interface && earlier.port == spec.port {
                return wrong(format!(
                    "shares {} and port {} with path {}: use another interface (best: then one fault cannot cut both) or another port",
                    spec.interface, spec.port, earlier.path
                ));
            }
        }
    }
    Ok(())
}

fn packet_socket(options: Options) -> io::Result<OwnedFd> {
    let fd = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    set_bypass(&fd, options.gated)?;
    sys::set(&fd, libc::SOL_SOCKET, libc::SO_PRIORITY, PRIORITY)?;
    Ok(fd)
}

fn set_bypass(socket: &OwnedFd, gated: bool) -> io::Result<()> {
    sys::set(socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, i32::from(!gated))
}

/// The highest that needs no privilege; maps to the first band of pfifo_fast, to mqprio classes and VLAN priorities.
const PRIORITY: i32 = 6;

/// Whether an address is marked as one that moves between hosts. `fide-failover` gives its addresses a preferred lifetime
/// of 0, as other managers of such addresses do; keepalived writes its own protocol number beside them.
fn moves(address: &sys::Address) -> bool {
    const KEEPALIVED: u8 = 18;
    address.flags & libc::IFA_F_DEPRECATED != 0 || address.protocol == KEEPALIVED
}

/// The address that a path sends from: the one configured, else the one in use while the interface has it, else the oldest
/// that stays. The kernel lists the newest IPv6 address of a scope first: that may be one that moves and is not marked.
fn choose(spec: &PathSpec, all: &[sys::Address], in_use: Option<IpAddr>) -> Option<IpAddr> {
    let has = |wanted: IpAddr| all.iter().any(|a| a.ip == wanted);
    if let Some(wanted) = spec.source {
        return has(wanted).then_some(wanted);
    }
    // A link-local group is spoken to from a link-local address, everything else from a wider one where there is one.
    let narrow = matches!(spec.group, Some(IpAddr::V6(g)) if g.segments()[0] & 15 <= 2);
    let fits = |ip: IpAddr| is_link_local(ip) == narrow;
    let flagged = |a: &sys::Address, flag: u32| a.flags & flag != 0;
    let rank = |at: usize, a: &sys::Address| {
        // IFA_F_SECONDARY of an IPv4 address is IFA_F_TEMPORARY of an IPv6 one: neither is meant to stay longest.
        let passing = flagged(a, libc::IFA_F_SECONDARY);
        let unproven = flagged(a, libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED);
        let place = if a.ip.is_ipv6() { all.len() - at } else { at };
        (!fits(a.ip), unproven, passing, a.created, place)
    };
    let of_family = all.iter().enumerate().filter(|(_, a)| a.ip.is_ipv6() == spec.ipv6() && !moves(a));
    let best = of_family.min_by_key(|(at, a)| rank(*at, a)).map(|(_, a)| a.ip);
    match in_use.filter(|ip| has(*ip)) {
        // One that does not fit was taken because there was no other yet.
        Some(used) if fits(used) || best.is_none_or(|best| !fits(best)) => Some(used),
        _ => best,
    }
}

/// 169.254.0.0/16 or fe80::/10.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}

/// Bound to the interface and the address, for copies by unicast alone.
fn copy_socket(spec: &PathSpec, source: IpAddr, options: Options) -> Result<OwnedFd, LaneError> {
    let ipv6 = spec.ipv6();
    let fail = |what: &'static str| move |e: io::Error| system(spec, what, e);
    let family = if ipv6 { libc::AF_INET6 } else { libc::AF_INET };
    let fd = sys::socket(family, libc::SOCK_DGRAM, 0).map_err(fail("opening a UDP socket"))?;
    sys::bind_to_device(&fd, &spec.interface).map_err(fail("binding to the interface"))?;
    let level = if ipv6 { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
    let (discover, class) =
        if ipv6 { (libc::IPV6_MTU_DISCOVER, libc::IPV6_TCLASS) } else { (libc::IP_MTU_DISCOVER, libc::IP_TOS) };
    sys::set(&fd, level, discover, libc::IP_PMTUDISC_DO).map_err(fail("forbidding fragments"))?;
    sys::set(&fd, level, class, i32::from(options.dscp) << 2).map_err(fail("setting the class"))?;
    sys::set(&fd, libc::SOL_SOCKET, libc::SO_PRIORITY, PRIORITY).map_err(fail("setting the priority"))?;
    sys::deafen(&fd).map_err(fail("setting the socket filter"))?;
    let scope = sys::link(&spec.interface).map_err(fail("looking up the interface"))?.ifindex;
    sys::bind(&fd, &SockAddr::ip(source, 0, scope)).map_err(fail("binding to the address"))?;
    Ok(fd)
}

/// Bound to the interface and the port, joined to the group. No SO_REUSEADDR and no SO_REUSEPORT: a second agent on the same
/// port must fail here, not share the packets.
fn udp_socket(spec: &PathSpec, link: &sys::Link, source: IpAddr, options: Options) -> Result<OwnedFd, LaneError> {
    let ipv6 = spec.ipv6();
    let family = if ipv6 { libc::AF_INET6 } else { libc::AF_INET };
    let fd = sys::socket(family, libc::SOCK_DGRAM, 0).map_err(|e| system(spec, "opening a UDP socket", e))?;
    let fail = |what: &'static str| move |e: io::Error| system(spec, what, e);
    sys::bind_to_device(&fd, &spec.interface).map_err(fail("binding to the interface"))?;
    let (ttl, class) = (i32::from(options.ttl), i32::from(options.dscp) << 2);
    if ipv6 {
        let set = |name, value: i32| sys::set(&fd, libc::IPPROTO_IPV6, name, value).map_err(fail("setting an IPv6 option"));
        set(libc::IPV6_V6ONLY, 1)?;
        set(libc::IPV6_MULTICAST_HOPS, ttl)?;
        set(libc::IPV6_MULTICAST_LOOP, 0)?;
        set(libc::IPV6_MULTICAST_ALL, 0)?;
        set(libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set(libc::IPV6_TCLASS, class)?;
    } else {
        let set = |name, value: i32| sys::set(&fd, libc::IPPROTO_IP, name, value).map_err(fail("setting an IPv4 option"));
        set(libc::IP_MULTICAST_TTL, ttl)?;
        set(libc::IP_MULTICAST_LOOP, 0)?;
        set(libc::IP_MULTICAST_ALL, 0)?;
        set(libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set(libc::IP_TOS, class)?;
    }
    sys::multicast_interface(&fd, ipv6, link.ifindex, source).map_err(fail("choosing the multicast interface"))?;
    sys::set(&fd, libc::SOL_SOCKET, libc::SO_PRIORITY, PRIORITY).map_err(fail("setting the priority"))?;
    sys::set(&fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1i32).map_err(fail("asking for time stamps"))?;
    let (level, name) = if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) } else { (libc::IPPROTO_IP, libc::IP_PKTINFO) };
    sys::set(&fd, level, name, 1i32).map_err(fail("asking for destinations"))?;
    // Room for a burst while the reader is away; the unprivileged form stops at the system's limit, which will do.
    const ROOM: i32 = 1 << 20;
    sys::set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, ROOM)
        .or_else(|_| sys::set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, ROOM))
        .map_err(fail("sizing the receive buffer"))?;
    if !options.receive {
        sys::deafen(&fd).map_err(fail("setting the socket filter"))?;
    }
    let any: IpAddr = if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    sys::bind(&fd, &SockAddr::ip(any, spec.port, 0)).map_err(|e| match e.raw_os_error() {
        Some(libc::EADDRINUSE) => LaneError::PortTaken { path: spec.path, interface: spec.interface.clone(), port: spec.port },
        _ => system(spec, "binding to the port", e),
    })?;
    if let Some(group) = spec.group {
        sys::join(&fd, group, link.ifindex).map_err(fail("joining the multicast group"))?;
    }
    // Others ask at this port whether the agent is gone.
    Ok(sys::raised(fd))
}

/// A CLOCK_REALTIME stamp of a moment ago as CLOCK_MONOTONIC. What is not of a moment ago (the clock was set in between) or is
/// missing counts as now.
fn monotonic_of(stamp_ns: Option<u64>) -> u64 {
    const CREDIBLE_NS: u64 = 60_000_000_000;
    let (real, now) = (sys::clock_ns(libc::CLOCK_REALTIME), sys::monotonic_ns());
    let age = stamp_ns.and_then(|s| real.checked_sub(s)).filter(|age| *age < CREDIBLE_NS).unwrap_or(0);
    now.saturating_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(path: u8) -> PathSpec {
        PathSpec {
            path,
            interface: format!("eth{path}"),
            group: Some("239.241.222.1".parse().unwrap()),
            unicast: vec![],
            port: 3433,
            source: None,
        }
    }

    #[test]
    fn by_default_packets_are_expedited_and_stay_on_the_link() {
        let Options { ttl, dscp, .. } = Options::default();
        assert_eq!((dscp, ttl), (46, 1), "DSCP EF (RFC 3246), one hop");
    }

    fn refusal(specs: &[PathSpec]) -> String {
        check_specs(specs).unwrap_err().to_string()
    }

    #[test]
    fn specifications_that_cannot_work_are_refused_with_the_reason() {
        assert!(check_specs(&[spec(0), spec(1)]).is_ok());
        assert!(refusal(&[]).contains("no path"));
        assert!(refusal(&[spec(7)]).contains("there are 2 paths"));
        assert!(refusal(&[spec(0), spec(0)]).contains("twice"));
        assert!(refusal(&[PathSpec { port: 0, ..spec(0) }]).contains("port 0"));
        assert!(refusal(&[PathSpec { group: Some("10.0.0.1".parse().unwrap()), ..spec(0) }]).contains("not a multicast"));
        assert!(refusal(&[PathSpec { unicast: vec!["239.0.0.1".parse().unwrap()], ..spec(0) }]).contains("belongs in"));
        assert!(refusal(&[PathSpec { source: Some("::1".parse().unwrap()), ..spec(0) }]).contains("family"));
        assert!(refusal(&[spec(0), PathSpec { interface: "eth0".into(), ..spec(1) }]).contains("another interface"));
    }

    #[test]
    fn stamps_that_cannot_be_are_now() {
        let now = sys::monotonic_ns();
        assert!(monotonic_of(None) >= now);
        assert!(monotonic_of(Some(u64::MAX)) >= now);
        assert!(monotonic_of(Some(0)) >= now);
        let real = sys::clock_ns(libc::CLOCK_REALTIME);
        let ago = sys::monotonic_ns().saturating_sub(monotonic_of(Some(real - 5_000_000)));
        assert!((4_000_000..1_000_000_000).contains(&ago), "{ago}");
    }

    #[test]
    fn both_paths_leave_with_one_system_call() {
        let Some(net) = crate::common::Net::make("one call") else { return };
        crate::common::Net::within(&net.a, || {
            let specs = [0, 1].map(|p| PathSpec { interface: format!("e{p}"), ..spec(p) });
            let mut lane = Lane::open(&specs, SendMode::Packet).unwrap();
            let calls = || sys::SEND_CALLS.with(std::cell::Cell::take);
            calls();
            assert!(lane.send([Some(b"a"), Some(b"b")]).iter().all(|o| o.copies == 1));
            assert_eq!(calls(), 1);
            let options = Options { completion: true, ..Options::default() };
            let specs = specs.map(|s| PathSpec { port: 3434, ..s });
            let mut each = Lane::open_with(&specs, SendMode::Packet, options).unwrap();
            assert!(each.send([Some(b"a"), Some(b"b")]).iter().all(|o| o.copies == 1));
            assert_eq!(calls(), 2, "one for each path where completion is asked for");
            net.remove(0);
            let out = lane.send([Some(b"a"), Some(b"b")]);
            assert_eq!((out[0].copies, out[1].copies, calls()), (0, 1, 2), "a failing path costs one call more");
        });
    }

    #[test]
    fn errors_say_what_to_do_next() {
        assert!(matches!(SendError::from_errno(libc::ENXIO), SendError::Down(_)));
        assert!(matches!(SendError::from_errno(libc::ENOBUFS), SendError::Full(_)));
        assert!(matches!(SendError::from_errno(libc::EPERM), SendError::Other(_)));
    }
}
