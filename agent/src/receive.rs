//! One face for the three ways of receiving (XDP in the driver, XDP in the stack, plain sockets) and the two of seeing exits
//! (tracepoints, pidfds), so that the loop need not know which is at work.

use crate::clock::now_ns;
use crate::receive_userspace::{Accepted, Me, UserspaceTable};
use fide_lane::probe::PROBE_LEN;
use fide_lane::send::Lane;
use fide_lane::{AnswerFilter, Prober};
use fide_wire::event::{Record, RecordKind};
use fide_wire::mac::Keyring;
use fide_wire::packet::{PACKET_MAX, Refusal};
use fide_wire::verdict::{Cause, Grade};
use fide_wire::{PATHS, SLOTS};
use fide_xdp::ends::End;
use fide_xdp::layout::{Jitter, Peer, Source, Unwanted};
use fide_xdp::{Attach, KeptEnds, Mechanism, Ring, RingMaker, Setup, StartWatch, Used, WatchEnd, XdpError};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

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
    /// It was said why this path does not receive in its driver.
    told_delegate: [bool; PATHS],
    xdp: bool,
    exits: bool,
    /// What is left of processes that end while no agent runs.
    ends: Option<KeptEnds>,
    userspace: UserspaceTable,
    records: VecDeque<Record>,
    packets: VecDeque<(Record, Vec<u8>)>,
    pidfds: BTreeMap<u32, (OwnedFd, u32)>,
    own_notices: u32,
    node: u32,
    incarnation: u32,
}

/// While more packets wait than this, sockets are not read.
const PACKETS_WAITING: usize = 256;

/// What came and nobody wanted, of one kind: how many, and the last of them.
pub type Came = (u64, Source, u8);

/// The questions that the prober asks, for the kernel programs.
struct Asked(fide_xdp::Questions);

impl AnswerFilter for Asked {
    fn expect(&self, path: u8, from: IpAddr, carried: &[u8; PROBE_LEN]) {
        self.0.expect(path, from, carried);
    }

    fn taken(&self, nonce: u64) {
        self.0.taken(nonce);
    }
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
            told_delegate: [false; PATHS],
            xdp: false,
            exits: false,
            ends: None,
            userspace: UserspaceTable::default(),
            records: VecDeque::with_capacity(64),
            packets: VecDeque::with_capacity(64),
            pidfds: BTreeMap::new(),
            own_notices: 0,
            node: setup.node,
            incarnation: setup.incarnation,
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
        for (path, ifindex) in interfaces.into_iter().enumerate() {
            r.assign(path, ifindex);
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
                    r.detach_all(interfaces);
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
            let attached = m.attach(path, ifindex, wanted)?;
            self.attached[path] = Some(attached);
            if let Some(driver) = fide_xdp::delegate(ifindex).filter(|_| wanted.is_none())
                && !std::mem::replace(&mut self.told_delegate[path], true)
            {
                tracing::warn!(
                    "path {path} receives in the stack's generic hook: {driver} would hand the receive program to its members' drivers, \
                     which report packets as theirs"
                );
            }
        }
        Ok(())
    }

    /// Which path an interface belongs to: where the receive program is not attached, the filter of the sockets must know as well.
    fn assign(&self, path: usize, ifindex: Option<u32>) {
        if let (Some(m), Some(ifindex)) = (&self.mechanism, ifindex)
            && let Err(e) = m.assign_path(ifindex, path as u32)
        {
            tracing::warn!("path {path}: no answers come by interface {ifindex}: {e}");
        }
    }

    fn detach_all(&mut self, interfaces: [Option<u32>; PATHS]) {
        self.xdp = false;
        for (path, ifindex) in interfaces.into_iter().enumerate() {
            self.attached[path] = None;
            if let Some(m) = self.mechanism.as_mut() {
                m.detach(path);
            }
            self.assign(path, ifindex);
        }
    }

    /// An interface came back or was replaced.
    ///
    /// # Errors
    /// The receive program cannot be attached, and nothing comes by this path: another program was there first. If sockets may
    /// receive ([`Wanted::Auto`]), [`Receiver::detach`] and [`Receiver::use_sockets`] are to follow.
    pub fn reattach(&mut self, path: u8, ifindex: Option<u32>) -> Result<(), XdpError> {
        let path = usize::from(path);
        if path >= PATHS {
            return Ok(());
        }
        if !self.xdp {
            self.assign(path, ifindex);
            return Ok(());
        }
        self.attached[path] = None;
        match ifindex {
            None => {
                if let Some(m) = self.mechanism.as_mut() {
                    m.detach(path);
                }
                Ok(())
            }
            Some(ifindex) => self.attach(path, ifindex).inspect_err(|_| self.assign(path, Some(ifindex))),
        }
    }

    /// Whether sockets may receive where the receive program cannot be attached.
    #[must_use]
    pub fn may_use_sockets(&self) -> bool {
        self.wanted == Wanted::Auto
    }

    /// Takes the receive program off all interfaces. What it has taken waits in the rings, and counts as delivered by the kernel until
    /// [`Receiver::use_sockets`].
    pub fn detach(&mut self) {
        self.attached = [None; PATHS];
        if let Some(m) = self.mechanism.as_mut() {
            (0..PATHS).for_each(|path| m.detach(path));
        }
    }

    /// Everything comes by sockets from now on. What the receive program knows of the peers goes on: nobody looks silent by the change,
    /// and recordings of what it has taken stay worth nothing.
    pub fn use_sockets(&mut self, interfaces: [Option<u32>; PATHS]) {
        if let Some(m) = self.mechanism.as_ref().filter(|_| self.xdp) {
            for slot in 0..SLOTS {
                self.userspace.go_on(slot, m.peer(slot), std::array::from_fn(|path| m.jitter(slot, path)));
            }
        }
        self.detach_all(interfaces);
    }

    /// Whether the receive program sits on this path's interface (or need not).
    #[must_use]
    pub fn attached(&self, path: u8) -> bool {
        !self.xdp || self.attached.get(usize::from(path)).is_some_and(Option::is_some)
    }

    /// What makes the kernel's event rings, where there are any.
    #[must_use]
    pub fn ring_maker(&self) -> Option<RingMaker> {
        let maker = self.mechanism.as_ref()?.ring_maker();
        maker.inspect_err(|e| tracing::warn!("events go by sockets: {e}")).ok()
    }

    /// What tells of programs that are started, where the kernel watches exits.
    pub fn start_watch(&mut self) -> Option<StartWatch> {
        let starts = self.mechanism.as_mut().filter(|_| self.exits)?.start_watch();
        starts.inspect_err(|e| tracing::warn!("processes of standing watches are found by searching: {e}")).ok()
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

    /// How many records wait that were taken out of the ring.
    #[must_use]
    pub fn urgent_waiting(&self) -> usize {
        self.records.len()
    }

    /// The next whole packet, its fixed part already checked. No more are taken out of the kernel's ring than asked for: it is bounded, and counts what it has
    /// no room for.
    pub fn next_packet(&mut self) -> Option<(Record, Vec<u8>)> {
        if self.packets.is_empty()
            && let Some(ring) = self.inbox.as_mut()
        {
            let packets = &mut self.packets;
            ring.take_one(|bytes| packets.extend(Record::read(bytes).map(|(r, b)| (r, b.to_vec()))));
        }
        self.packets.pop_front()
    }

    /// Whether there is another one.
    #[must_use]
    pub fn has_packet(&self) -> bool {
        !self.packets.is_empty() || self.inbox.as_ref().is_some_and(Ring::has_entry)
    }

    /// Reads the sockets, where they receive. Bounded, so that a flood does not keep the loop from beating.
    pub fn poll_sockets(&mut self, lane: &Lane, me: &Me, keys: &Keyring) {
        if !self.needs_sockets() || self.packets.len() > PACKETS_WAITING {
            return;
        }
        let mut buf = [0u8; PACKET_MAX + 1];
        for path in 0..PATHS as u8 {
            for _ in 0..64 {
                let Some(got) = lane.receive(path, &mut buf) else { break };
                let bytes = &buf[..got.len.min(buf.len())];
                match self.userspace.accept(bytes, path, (got.from, got.by_group), got.arrived_ns, me, keys) {
                    Ok(Accepted::Notices(p)) => self.records.extend(self.userspace.records(&p, got.arrived_ns)),
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
        self.table().map_or_else(|| self.userspace.peer(slot), |m| m.peer(slot))
    }

    /// A path's jitter histogram, cumulative.
    #[must_use]
    pub fn jitter(&self, slot: usize, path: usize) -> Jitter {
        self.table().map_or_else(|| self.userspace.jitter(slot, path), |m| m.jitter(slot, path))
    }

    /// The largest jitter since the last call.
    pub fn take_jitter_max(&mut self, slot: usize, path: usize) -> u64 {
        if self.xdp
            && let Some(m) = &self.mechanism
        {
            return m.take_jitter_max(slot, path);
        }
        self.userspace.take_jitter_max(slot, path)
    }

    /// Gives a peer (or its new life) a slot.
    ///
    /// # Errors
    /// When the kernel's map is full.
    pub fn set_peer(&mut self, slot: usize, node: u32, incarnation: u32, used: Used) -> Result<(), XdpError> {
        self.userspace.set_peer(slot, node, incarnation, used);
        self.mechanism.as_ref().map_or(Ok(()), |m| m.set_peer_at(slot, node, incarnation, used))
    }

    /// Frees a slot.
    pub fn remove_peer(&mut self, slot: usize, node: u32) {
        self.userspace.remove_peer(slot, node);
        if let Some(m) = &self.mechanism {
            m.remove_peer(slot, node);
        }
    }

    /// Refuses a peer's life from now on.
    pub fn condemn(&mut self, slot: usize) {
        self.userspace.condemn(slot);
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
        if let Some(m) = &self.mechanism {
            m.set_incarnation(incarnation);
        }
    }

    /// Goes on with a table that a former agent wrote ([`Mechanism::set_version`]).
    pub fn set_version(&mut self, version: u32) {
        self.own_notices = version;
        if let Some(m) = &self.mechanism {
            m.set_version(version);
        }
    }

    /// The version of the next change of this host's table.
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
        let mut sums = self.userspace.refused;
        if let Some(m) = &self.mechanism {
            sums.iter_mut().zip(m.refused()).for_each(|(a, b)| *a += b);
        }
        sums
    }

    /// Counts a packet refused after the receive program had let it through.
    pub fn count_refused(&mut self, reason: Refusal) {
        self.userspace.refused[reason as usize] += 1;
    }

    /// (packets of this name that this incarnation did not send, records that found the urgent ring full).
    #[must_use]
    pub fn complaints(&self) -> (u64, u64) {
        let (not_sent, lost) = self.mechanism.as_ref().map_or((0, 0), Mechanism::complaints);
        (not_sent + self.userspace.not_sent, lost)
    }

    /// A packet with this number is about to leave: a heartbeat, or anything else.
    pub fn note_sent(&self, heartbeat: bool, number: u64) {
        if let Some(m) = &self.mechanism {
            m.note_sent(heartbeat, number);
        }
    }

    /// The loop wakes by itself at `until_ns`: packets for groups need not wake it before.
    pub fn rest(&self, until_ns: u64) {
        if let Some(m) = &self.mechanism {
            m.rest(until_ns);
        }
    }

    /// The address of a path's interface.
    pub fn set_mac(&self, path: usize, mac: Option<[u8; 6]>) {
        if let Some(m) = &self.mechanism {
            m.set_mac(path, mac);
        }
    }

    /// Questions by TCP are about to leave that have this number, but for its last byte.
    pub fn expect_steered(&self, path: usize, number: u32) {
        if let Some(m) = &self.mechanism {
            m.expect_steered(path, number);
        }
    }

    /// Has the kernel programs keep from the prober what answers none of its questions.
    pub fn filter_answers(&self, prober: &mut Prober) {
        let Some(m) = &self.mechanism else { return };
        m.set_probe_id(prober.id());
        match m.questions() {
            Ok(questions) => prober.set_filter(Box::new(Asked(questions))),
            // Without the table no answer would come in.
            Err(e) => return tracing::error!("answers cannot be told from what only looks like one: {e}"),
        }
        if let Err(e) = m.answer_filter().and_then(|program| prober.set_program(program)) {
            tracing::warn!("the sockets that answers come by have no filter for questions: {e}");
        }
    }

    /// What came of a kind that nobody wanted, on all paths, and on which the last came.
    #[must_use]
    pub fn unwanted(&self, kind: Unwanted) -> Came {
        let userspace = |path: usize| if kind == Unwanted::Probe { self.userspace.probes[path] } else { Source::default() };
        let of = |path| (self.mechanism.as_ref().map_or_else(Source::default, |m| m.unwanted(kind, path)), userspace(path));
        last_of(of)
    }

    /// When a frame with our own MAC came last on a path; 0: none has.
    #[must_use]
    pub fn own_mac_ns(&self, path: usize) -> u64 {
        self.mechanism.as_ref().map_or(0, |m| m.unwanted(Unwanted::OwnMac, path).last_ns)
    }

    /// The same of packets that were refused for this reason.
    #[must_use]
    pub fn refused_from(&self, reason: Refusal) -> Came {
        let kernel = |path| self.mechanism.as_ref().map_or_else(Source::default, |m| m.refused_from(reason, path));
        last_of(|path| (kernel(path), self.userspace.sources[reason as usize][path]))
    }

    // ---- exits --------------------------------------------------------------------------------------------------------------

    /// Has the kernel keep the ends of what is watched for the next agent, where exits are seen by the kernel's programs.
    pub fn keep_ends(&mut self, pins: &Path) {
        if !self.exits {
            return;
        }
        match KeptEnds::open(pins) {
            Ok(ends) => self.ends = Some(ends),
            Err(e) => tracing::info!("how a process ends while no agent runs will not be known: {e}"),
        }
    }

    /// How a process ended that an agent watched which is gone.
    #[must_use]
    pub fn kept_end(&self, pid: u32, start_ticks: u64) -> Option<End> {
        self.ends.as_ref()?.end_of(pid, start_ticks)
    }

    /// Watches a process.
    ///
    /// # Errors
    /// In words.
    pub fn watch(&mut self, pid: u32, app: u32, start_ticks: u64, settles_ns: u64) -> Result<(), String> {
        if self.exits
            && let Some(m) = &self.mechanism
        {
            if let Some(Err(e)) = self.ends.as_ref().map(|ends| ends.watch(pid, start_ticks)) {
                tracing::debug!("the end of process {pid} will not be kept: {e}");
            }
            return m.watch_until_settled(pid, app, start_ticks, settles_ns).map_err(|e| e.to_string());
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

    /// Ends a watch. Whether the kernel's exit watch had already seen that process end.
    pub fn unwatch(&mut self, pid: u32) -> bool {
        self.pidfds.remove(&pid);
        let was_seen = self.mechanism.as_ref().is_some_and(|m| m.unwatch(pid)) && self.exits;
        if let Some(ends) = &self.ends {
            ends.unwatch(pid);
        }
        was_seen
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

/// All of both sides and paths together, and the last.
fn last_of(of: impl Fn(usize) -> (Source, Source)) -> Came {
    let all = (0..PATHS).flat_map(|path| [(path, of(path).0), (path, of(path).1)]);
    let count = all.clone().map(|(_, source)| source.count).sum();
    let (path, last) = all.max_by_key(|(_, source)| source.last_ns).unwrap_or_default();
    (count, last, path as u8)
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
