//! One face for the three ways of receiving (XDP in the driver, XDP in the stack, plain sockets) and the two of seeing exits
//! (tracepoints, pidfds), so that the loop need not know which is at work.

use crate::core::now_ns;
use crate::soft::{Accepted, Me, SoftTable};
use fide_lane::send::Lane;
use fide_wire::PATHS;
use fide_wire::event::{Record, RecordKind};
use fide_wire::mac::Keyring;
use fide_wire::packet::{PACKET_MAX, Refusal};
use fide_wire::verdict::{Cause, Grade};
use fide_xdp::layout::{Jitter, Peer};
use fide_xdp::{Attach, Mechanism, Ring, Setup, WatchEnd, XdpError};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The best that works.
    Auto,
    /// XDP in the driver or nothing.
    Native,
    /// XDP in the stack or nothing.
    Generic,
    /// Plain sockets.
    Udp,
}

/// The receiving side.
pub struct Receiver {
    mechanism: Option<Mechanism>,
    urgent: Option<Ring>,
    inbox: Option<Ring>,
    wanted: Wanted,
    attached: [Option<Attach>; PATHS],
    xdp: bool,
    exits: bool,
    soft: SoftTable,
    records: VecDeque<Record>,
    packets: VecDeque<(Record, Vec<u8>)>,
    pidfds: BTreeMap<u32, (OwnedFd, u32)>,
    own_notices: u32,
    node: u32,
    incarnation: u32,
    refused_bodies: u64,
}

/// Why reception cannot start as it was asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "receive = \"{wanted}\" was asked for, but {why}; `receive = \"auto\"` takes what works, `fide doctor` says what is missing"
)]
pub struct ReceiveError {
    wanted: &'static str,
    why: String,
}

impl Receiver {
    /// Loads what this host allows and attaches it to the interfaces that exist.
    ///
    /// # Errors
    /// When a way was asked for that cannot be had. [`Wanted::Auto`] never fails.
    pub fn open(setup: Setup, keys: &Keyring, wanted: Wanted, interfaces: [Option<u32>; PATHS]) -> Result<Self, ReceiveError> {
        let mut r = Self {
            mechanism: None,
            urgent: None,
            inbox: None,
            wanted,
            attached: [None; PATHS],
            xdp: false,
            exits: false,
            soft: SoftTable::default(),
            records: VecDeque::with_capacity(64),
            packets: VecDeque::with_capacity(64),
            pidfds: BTreeMap::new(),
            own_notices: 0,
            node: setup.node,
            incarnation: setup.incarnation,
            refused_bodies: 0,
        };
        let failed = |why: String| ReceiveError { wanted: wanted.name(), why };
        if let Err(e) = r.load(setup, keys) {
            return match wanted {
                Wanted::Auto | Wanted::Udp => {
                    tracing::warn!(
                        "without kernel programs (packets wait for the stack, exits are seen late and without their cause): {e}"
                    );
                    Ok(r)
                }
                _ => Err(failed(e.to_string())),
            };
        }
        if wanted != Wanted::Udp {
            r.xdp = true;
            for (path, ifindex) in interfaces.into_iter().enumerate() {
                let Some(ifindex) = ifindex else { continue };
                if let Err(e) = r.attach(path, ifindex) {
                    match wanted {
                        Wanted::Auto => tracing::warn!("receiving by UDP sockets on all paths: {e}"),
                        _ => return Err(failed(e.to_string())),
                    }
                    r.detach_all();
                    break;
                }
            }
        }
        Ok(r)
    }

    fn load(&mut self, setup: Setup, keys: &Keyring) -> Result<(), XdpError> {
        let (mut mechanism, tracepoints) = match Mechanism::load(setup, keys, true) {
            Ok(m) => (m, true),
            Err(e) => {
                tracing::warn!("exits will be seen through pidfds: {e}");
                (Mechanism::load(setup, keys, false)?, false)
            }
        };
        if tracepoints {
            match mechanism.attach_exit_watch() {
                Ok(()) => self.exits = true,
                Err(e) => tracing::warn!("exits will be seen through pidfds: {e}"),
            }
        }
        self.urgent = Some(mechanism.urgent()?);
        self.inbox = Some(mechanism.inbox()?);
        self.mechanism = Some(mechanism);
        Ok(())
    }

    fn attach(&mut self, path: usize, ifindex: u32) -> Result<(), XdpError> {
        let wanted = match self.wanted {
            Wanted::Native => Some(Attach::Native),
            Wanted::Generic => Some(Attach::Generic),
            Wanted::Auto | Wanted::Udp => None,
        };
        if let Some(m) = self.mechanism.as_mut() {
            self.attached[path] = Some(m.attach(path, ifindex, wanted)?);
        }
        Ok(())
    }

    fn detach_all(&mut self) {
        self.xdp = false;
        for path in 0..PATHS {
            self.attached[path] = None;
            if let Some(m) = self.mechanism.as_mut() {
                m.detach(path);
            }
        }
    }

    /// An interface came back or was replaced.
    pub fn reattach(&mut self, path: u8, ifindex: Option<u32>) {
        let path = usize::from(path);
        if !self.xdp || path >= PATHS {
            return;
        }
        self.attached[path] = None;
        match ifindex {
            None => {
                if let Some(m) = self.mechanism.as_mut() {
                    m.detach(path);
                }
            }
            Some(ifindex) => {
                if let Err(e) = self.attach(path, ifindex) {
                    tracing::error!("path {path} receives nothing until this is mended: {e}");
                }
            }
        }
    }

    /// Whether the receive program sits on this path's interface (or need not).
    #[must_use]
    pub fn attached(&self, path: u8) -> bool {
        !self.xdp || self.attached.get(usize::from(path)).is_some_and(Option::is_some)
    }

    /// Whether sockets must receive.
    #[must_use]
    pub fn needs_sockets(&self) -> bool {
        !self.xdp
    }

    /// Whether answers to our questions can be barriers: in the driver's poll, packets of one queue come in their order. Behind it, in the
    /// stack's generic hook and at sockets, another processor may have the earlier ones.
    #[must_use]
    pub fn offers_barriers(&self) -> bool {
        self.xdp && self.attached.iter().flatten().all(|a| *a == Attach::Native)
    }

    /// The receive queue, counted from 1, that the answer to this question came by; none if it has been overtaken by another.
    #[must_use]
    pub fn barrier(&self, path: usize, nonce: u64) -> Option<u32> {
        self.mechanism.as_ref().filter(|_| self.offers_barriers())?.barrier(path, nonce)
    }

    /// The numbers of questions by TCP whose answers came last out of the receive queues of a path, counted from 1.
    #[must_use]
    pub fn steered(&self, path: usize) -> Vec<(u32, u32)> {
        self.mechanism.as_ref().filter(|_| self.offers_barriers()).map_or_else(Vec::new, |m| m.steered(path))
    }

    /// The word in the status.
    #[must_use]
    pub fn receive_name(&self) -> &'static str {
        match (self.xdp, self.offers_barriers()) {
            (false, _) => "udp",
            (true, true) => "xdp-native",
            (true, false) => "xdp-generic",
        }
    }

    /// The word in the status.
    #[must_use]
    pub fn exit_name(&self) -> &'static str {
        if self.exits { "tracepoint" } else { "pidfd" }
    }

    /// Whether notices reach the kernel's rings before this agent sees them.
    #[must_use]
    pub fn kernel_delivers(&self) -> bool {
        self.xdp
    }

    /// Whether exits do.
    #[must_use]
    pub fn kernel_watches_exits(&self) -> bool {
        self.exits
    }

    /// The kernel programs, where they are loaded.
    #[must_use]
    pub fn mechanism(&self) -> Option<&Mechanism> {
        self.mechanism.as_ref()
    }

    /// The same, to change.
    pub fn mechanism_mut(&mut self) -> Option<&mut Mechanism> {
        self.mechanism.as_mut()
    }

    /// What to wait for.
    #[must_use]
    pub fn fds(&self, lane: &Lane) -> Vec<RawFd> {
        let mut fds: Vec<RawFd> = self.urgent.iter().chain(&self.inbox).map(Ring::raw_fd).collect();
        if self.needs_sockets() {
            fds.extend(lane.receive_fds().into_iter().map(|(_, fd)| fd));
        }
        fds.extend(self.pidfds.values().map(|(fd, _)| fd.as_raw_fd()));
        fds
    }

    /// The next record that must be handled at once.
    pub fn next_urgent(&mut self) -> Option<Record> {
        if self.records.is_empty()
            && let Some(ring) = self.urgent.as_mut()
        {
            let records = &mut self.records;
            ring.drain(|bytes| records.extend(Record::read(bytes).map(|(r, _)| r)));
        }
        if self.records.is_empty() && !self.pidfds.is_empty() {
            self.check_pidfds();
        }
        self.records.pop_front()
    }

    /// The next whole packet, its fixed part already checked.
    pub fn next_packet(&mut self) -> Option<(Record, Vec<u8>)> {
        if self.packets.is_empty()
            && let Some(ring) = self.inbox.as_mut()
        {
            let packets = &mut self.packets;
            ring.drain(|bytes| packets.extend(Record::read(bytes).map(|(r, b)| (r, b.to_vec()))));
        }
        self.packets.pop_front()
    }

    /// Reads the sockets, where they receive. Bounded, so that a flood does not keep the loop from beating.
    pub fn poll_sockets(&mut self, lane: &Lane, me: &Me, keys: &Keyring) {
        if !self.needs_sockets() {
            return;
        }
        let mut buf = [0u8; PACKET_MAX + 1];
        for path in 0..PATHS as u8 {
            for _ in 0..64 {
                let Some(got) = lane.receive(path, &mut buf) else { break };
                let bytes = &buf[..got.len.min(buf.len())];
                match self.soft.accept(bytes, path, got.arrived_ns, me, keys) {
                    Ok(Accepted::Notice { record, .. }) => self.records.push_back(record),
                    Ok(Accepted::Packet(p)) => {
                        let head = Record {
                            node: p.header.sender,
                            incarnation: p.header.incarnation,
                            path,
                            sent_ns: p.header.sent_ns,
                            received_ns: got.arrived_ns,
                            number: p.header.number,
                            ..Record::default()
                        };
                        self.packets.push_back((head, bytes.to_vec()));
                    }
                    Ok(Accepted::Heartbeat | Accepted::Probe) | Err(_) => {}
                }
            }
        }
    }

    // ---- the table ----------------------------------------------------------------------------------------------------------

    fn table(&self) -> Option<&Mechanism> {
        self.mechanism.as_ref().filter(|_| self.xdp)
    }

    /// A peer's row.
    #[must_use]
    pub fn peer(&self, slot: usize) -> Peer {
        self.table().map_or_else(|| self.soft.peer(slot), |m| m.peer(slot))
    }

    /// A path's jitter histogram, cumulative.
    #[must_use]
    pub fn jitter(&self, slot: usize, path: usize) -> Jitter {
        self.table().map_or_else(|| self.soft.jitter(slot, path), |m| m.jitter(slot, path))
    }

    /// The largest jitter since the last call.
    pub fn take_jitter_max(&mut self, slot: usize, path: usize) -> u64 {
        if self.xdp
            && let Some(m) = &self.mechanism
        {
            return m.take_jitter_max(slot, path);
        }
        self.soft.take_jitter_max(slot, path)
    }

    /// Gives a peer (or its new life) a slot.
    ///
    /// # Errors
    /// When the kernel's map is full.
    pub fn set_peer(&mut self, slot: usize, node: u32, incarnation: u32) -> Result<(), XdpError> {
        self.soft.set_peer(slot, node, incarnation);
        self.mechanism.as_ref().map_or(Ok(()), |m| m.set_peer(slot, node, incarnation))
    }

    /// Frees a slot.
    pub fn remove_peer(&mut self, slot: usize, node: u32) {
        self.soft.remove_peer(slot, node);
        if let Some(m) = &self.mechanism {
            m.remove_peer(slot, node);
        }
    }

    /// Refuses a peer's life from now on.
    pub fn condemn(&mut self, slot: usize) {
        self.soft.condemn(slot);
        if let Some(m) = &self.mechanism {
            m.condemn(slot);
        }
    }

    /// New keys.
    pub fn set_keys(&self, keys: &Keyring) {
        if let Some(m) = &self.mechanism {
            m.set_keys(keys);
        }
    }

    /// A new incarnation of this agent.
    pub fn set_incarnation(&mut self, incarnation: u32) {
        self.incarnation = incarnation;
        self.own_notices = 0;
        if let Some(m) = &self.mechanism {
            m.set_incarnation(incarnation);
        }
    }

    /// The number of the next notice, without a gap.
    pub fn next_notice(&mut self) -> u32 {
        if let Some(m) = &self.mechanism {
            return m.next_notice();
        }
        self.own_notices += 1;
        self.own_notices
    }

    /// Refused packets by reason.
    #[must_use]
    pub fn refused(&self) -> [u64; Refusal::COUNT] {
        let mut sums = self.soft.refused;
        if let Some(m) = &self.mechanism {
            sums.iter_mut().zip(m.refused()).for_each(|(a, b)| *a += b);
        }
        sums[Refusal::BodyMac as usize] += self.refused_bodies;
        sums
    }

    /// Counts a packet refused after the receive program had let it through.
    pub fn count_refused(&mut self, reason: Refusal) {
        if reason == Refusal::BodyMac {
            self.refused_bodies += 1;
        } else {
            self.soft.refused[reason as usize] += 1;
        }
    }

    /// (packets of another agent of this name, its incarnation, records that found the urgent ring full).
    #[must_use]
    pub fn complaints(&self) -> (u64, u32, u64) {
        let (clashes, incarnation, lost) = self.mechanism.as_ref().map_or((0, 0, 0), Mechanism::complaints);
        (clashes + self.soft.clashes.0, incarnation.max(self.soft.clashes.1), lost)
    }

    // ---- exits --------------------------------------------------------------------------------------------------------------

    /// Watches a process.
    ///
    /// # Errors
    /// In words.
    pub fn watch(&mut self, pid: u32, app: u32, start_ticks: u64) -> Result<(), String> {
        if self.exits
            && let Some(m) = &self.mechanism
        {
            return m.watch(pid, app, start_ticks).map_err(|e| e.to_string());
        }
        // SAFETY: pidfd_open takes a pid and flags; the result is checked.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, libc::PIDFD_NONBLOCK) };
        if fd < 0 {
            return Err(format!("process {pid} cannot be watched: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        self.pidfds.insert(pid, (fd, app));
        Ok(())
    }

    /// Ends a watch.
    pub fn unwatch(&mut self, pid: u32) {
        self.pidfds.remove(&pid);
        if let Some(m) = &self.mechanism {
            m.unwatch(pid);
        }
    }

    /// Deaths that did not reach the urgent ring.
    #[must_use]
    pub fn stranded(&self) -> Vec<WatchEnd> {
        self.mechanism.as_ref().map_or_else(Vec::new, Mechanism::stranded_watches)
    }

    /// Turns readable pidfds into exit records. How a process ended is its parent's to know, hence the code -1.
    pub fn check_pidfds(&mut self) {
        let mut polls: Vec<libc::pollfd> =
            self.pidfds.values().map(|(fd, _)| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
        if polls.is_empty() {
            return;
        }
        // SAFETY: an array of the stated length with open descriptors; no waiting.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, 0) };
        let dead: Vec<u32> = self.pidfds.keys().zip(&polls).filter(|(_, p)| p.revents != 0).map(|(pid, _)| *pid).collect();
        for pid in dead {
            let Some((_, app)) = self.pidfds.remove(&pid) else { continue };
            let now = now_ns();
            let number = self.next_notice();
            self.records.push_back(Record {
                kind: RecordKind::Exit as u16,
                cause: Cause::Exited as u8,
                grade: Grade::Certain as u8,
                node: self.node,
                app,
                incarnation: self.incarnation,
                code: -1,
                flags: Record::LOCAL,
                id: u64::from(self.node) << 32 | u64::from(number),
                event_ns: now,
                received_ns: now,
                pid,
                ..Record::default()
            });
        }
    }
}

impl Wanted {
    const fn name(self) -> &'static str {
        match self {
            Wanted::Auto => "auto",
            Wanted::Native => "xdp",
            Wanted::Generic => "xdp-generic",
            Wanted::Udp => "udp",
        }
    }
}
