//! Loads and attaches the kernel programs, fills their maps, reads their tables.

use crate::layout::{self, Jitter, Outgoing, Peer, Question, RING_BYTES, RINGS, Source, Unwanted, Watch};
use crate::memory::MappedArray;
use crate::ring::Ring;
use crate::starts::{STARTED_BYTES, StartWatch};
use fide_wire::event::Record;
use fide_wire::mac::Keyring;
use fide_wire::packet::Refusal;
use fide_wire::{PATHS, SLOTS};
use libbpf_rs::libbpf_sys;
use libbpf_rs::{AsRawLibbpf, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, ProgramInput};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;
use zerocopy::IntoBytes;

pub(crate) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fide.bpf.o"));
/// What is noted of an answer by TCP begins with it: STEERED_MAGIC in receive.h.
const STEERED_MAGIC: u64 = 0x4669_4474;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// What can go wrong here.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// The kernel refused the programs.
    #[error(
        "the kernel does not load the programs ({0}): it must be 5.15 or later with BTF (/sys/kernel/btf/vmlinux), and the agent needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; `fide doctor` says which is missing"
    )]
    Load(#[source] libbpf_rs::Error),
    /// A program could not be attached.
    #[error("{what} cannot be attached: {source}")]
    Attach {
        /// Which program, and where.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// A map operation failed.
    #[error("map {map}: {source}")]
    Map {
        /// Which.
        map: &'static str,
        /// Why.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A mapping failed.
    #[error("map {map} cannot be mapped: {source}")]
    Memory {
        /// Which.
        map: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// All subscriber rings are in use.
    #[error("all {RINGS} subscriber rings are in use")]
    Full,
}

/// The namespace that makes processes look different here than to the kernel's programs, and what to do; `None` in the first ones. The numbers are the
/// kernel's PROC_PID_INIT_INO and PROC_TIME_INIT_INO.
fn own_namespace() -> Option<(&'static str, &'static str)> {
    let firsts =
        [("pid", 4_026_531_836_u32, "start the container with --pid=host"), ("time", 4_026_531_834, "begin no time namespace")];
    firsts.into_iter().find_map(|(kind, first, advice)| {
        let ours = std::fs::read_link(format!("/proc/self/ns/{kind}")).ok()?; // a kernel without them
        (ours.to_str() != Some(&format!("{kind}:[{first}]"))).then_some((kind, advice))
    })
}

/// Who we are, for the receive program.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Cluster id.
    pub cluster: u32,
    /// This node's id.
    pub node: u32,
    /// This agent's incarnation.
    pub incarnation: u32,
    /// UDP port.
    pub port: u16,
}

/// Numbers that a host had used when it showed that it lives: packets with these or lower ones are recordings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Of its heartbeats.
    pub heartbeats: u64,
    /// Of its other packets.
    pub others: u64,
}

/// How the receive program sits on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// In the driver's poll.
    Native,
    /// In the stack's generic hook: works on every interface, later and with a copy.
    Generic,
}

/// The key of a process in `numbers`.
fn low_half(node: u32, app: u32) -> [u8; 8] {
    (u64::from(node) << 32 | u64::from(app as u16)).to_ne_bytes()
}

/// A subscriber's ring: a bit in subscriptions, and the descriptor the application maps.
#[derive(Debug)]
pub struct Subscriber {
    /// Its bit.
    pub index: u32,
    fd: OwnedFd,
}

impl Subscriber {
    /// The descriptor to hand over. The application needs no privilege to map and poll it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A watch that ended without its record reaching the urgent ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchEnd {
    /// The process.
    pub pid: u32,
    /// What the map says of it.
    pub watch: Watch,
}

/// The questions by ICMP echo that may be answered. What looks like an answer and is to none of them ends in the receive program.
pub struct Questions(MappedArray<Question>);

impl Questions {
    /// Lets the answer to a question in that carries these bytes, on a path and from this address: call it before the question leaves. The question with the same last
    /// 12 bits of its number is forgotten.
    pub fn expect(&self, path: u8, from: IpAddr, carried: &[u8; 20]) {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| carried[at + i]));
        let nonce = u64::from_be(word(12));
        let row = self.row(nonce);
        let tail = u32::from_ne_bytes([carried[8], carried[9], carried[10], carried[11]]);
        // SAFETY: `row` is in range; aligned integers of the shared struct, which the program only reads: while the nonce is 0, or that of another question,
        // it takes none of the rest for this one's.
        unsafe {
            let number = AtomicU64::from_ptr(&raw mut (*row).nonce);
            number.store(0, Ordering::SeqCst);
            (&raw mut (*row).head).write_volatile(word(0));
            (&raw mut (*row).tail).write_volatile(tail);
            (&raw mut (*row).path).write_volatile(path.into());
            (&raw mut (*row).from).write_volatile(layout::words(from));
            number.store(nonce, Ordering::SeqCst);
        }
    }

    /// The answer to the question with this number was taken: no other one comes in.
    pub fn taken(&self, nonce: u64) {
        // SAFETY: `row` is in range; an aligned u64 of the shared struct.
        let number = unsafe { AtomicU64::from_ptr(&raw mut (*self.row(nonce)).nonce) };
        let _ = number.compare_exchange(nonce, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn row(&self, nonce: u64) -> *mut Question {
        self.0.at(nonce as usize & (layout::QUESTIONS - 1))
    }
}

/// What a program weighs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFigures {
    /// Its name.
    pub name: String,
    /// Instructions the verifier walked through, of at most a million; 0 before Linux 5.16.
    pub verified_instructions: u32,
    /// Instructions as loaded.
    pub instructions: u32,
    /// Bytes of machine code; 0 when it is interpreted.
    pub machine_bytes: u32,
    /// How often it ran, while the kernel counts that (`kernel.bpf_stats_enabled`).
    pub runs: u64,
    /// How long, in all (ns).
    pub run_ns: u64,
}

/// The loaded programs, their maps and attachments. Dropping it detaches everything.
pub struct Mechanism {
    object: Object,
    setup: MappedArray<layout::Setup>,
    peers: MappedArray<Peer>,
    jitter: MappedArray<Jitter>,
    barriers: MappedArray<u64>,
    unwanted: MappedArray<Source>,
    outgoing: MappedArray<Outgoing>,
    ring_lost: MappedArray<u64>,
    interfaces: [Option<(u32, OwnedFd)>; PATHS],
    exit_links: Vec<libbpf_rs::Link>,
    rings_used: u64,
    /// How many rounds of questions by TCP there were, by path.
    rounds: [AtomicUsize; PATHS],
}

/// The driver of an interface of this network namespace that has no hook of its own for XDP programs, and hands them to those of other
/// interfaces beneath it, where packets arrive under their numbers: a bond's members, the virtual function of a Hyper-V interface. Members
/// come and go. In the generic hook a packet belongs to the interface itself.
#[must_use]
pub fn delegate(ifindex: u32) -> Option<&'static str> {
    let driver = driver(ifindex).ok()?;
    DELEGATES.into_iter().find(|name| *name == driver)
}

/// As their drivers call themselves.
const DELEGATES: [&str; 3] = ["bonding", "team", "hv_netvsc"];

/// What the driver of an interface of this network namespace is called.
fn driver(ifindex: u32) -> std::io::Result<String> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_GDRVINFO: u32 = 3;
    // struct ethtool_drvinfo: the command, then names and counts, 196 bytes in all; the driver's name is the first, of at most 32 bytes.
    let mut info = [0u32; 49];
    info[0] = ETHTOOL_GDRVINFO;
    // SAFETY: zeros are a request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the name's array has the IF_NAMESIZE bytes that the call may write.
    if unsafe { libc::if_indextoname(ifindex, request.ifr_name.as_mut_ptr()) }.is_null() {
        return Err(std::io::Error::last_os_error());
    }
    request.ifr_ifru.ifru_data = info.as_mut_ptr().cast();
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: the request and the structure that it points to live through the call, which writes no more than that structure.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    let words = std::hint::black_box(info);
    let name = words.as_bytes()[4..36].split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

fn map_error(map: &'static str) -> impl Fn(libbpf_rs::Error) -> XdpError {
    move |source| XdpError::Map { map, source }
}

impl Mechanism {
    /// Loads the programs. Attaches nothing yet. `exit_watch` leaves the exit programs out where the kernel refuses them.
    ///
    /// # Errors
    /// [`XdpError::Load`] with the kernel's reason.
    pub fn load(setup: Setup, keys: &Keyring, exit_watch: bool) -> Result<Self, XdpError> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(XdpError::Load)?;
        if !exit_watch {
            for mut program in open.progs_mut() {
                if program.section().to_string_lossy().starts_with("tp_btf") {
                    program.set_autoload(false);
                }
            }
        }
        let object = open.load().map_err(XdpError::Load)?;
        fn mapped<T: Copy>(object: &Object, map: &'static str, entries: usize) -> Result<MappedArray<T>, XdpError> {
            let found = find(object, map);
            MappedArray::new(found.as_fd(), entries).map_err(|source| XdpError::Memory { map, source })
        }
        let mechanism = Self {
            setup: mapped(&object, "setup", 1)?,
            peers: mapped(&object, "peers", SLOTS)?,
            jitter: mapped(&object, "jitter", SLOTS * PATHS)?,
            barriers: mapped(&object, "barriers", PATHS * layout::QUEUES)?,
            unwanted: mapped(&object, "unwanted", (Refusal::COUNT + Unwanted::ALL.len()) * PATHS)?,
            outgoing: mapped(&object, "outgoing", 1)?,
            ring_lost: mapped(&object, "ring_lost", RINGS)?,
            object,
            interfaces: [const { None }; PATHS],
            exit_links: Vec::new(),
            rings_used: 0,
            rounds: Default::default(),
        };
        mechanism.setup.write(
            0,
            layout::Setup {
                cluster: setup.cluster,
                node: setup.node,
                life: u64::from(setup.incarnation) << 32,
                port: setup.port,
                ..layout::Setup::default()
            },
        );
        mechanism.set_keys(keys);
        Ok(mechanism)
    }

    /// Leaves piggybacks to the agent from now on, because some subscribers' rings are sockets; or no longer.
    pub fn leave_piggybacks(&self, to_agent: bool) {
        // SAFETY: entry 0 exists; an aligned u32 of the shared struct.
        unsafe { (&raw mut (*self.setup.at(0)).sockets).write_volatile(u32::from(to_agent)) };
    }

    /// Accepts exactly these keys from now on. Keys that stay are never invalid in between, and none is ever accepted half-written.
    pub fn set_keys(&self, keys: &Keyring) {
        for id in 0..16u8 {
            let wanted = keys.get(id).map(|key| key.words());
            // SAFETY: entry 0 exists and id < 16.
            let slot = unsafe { &raw mut (*self.setup.at(0)).keys[usize::from(id)] };
            // SAFETY: the slot lies in the mapping; its fields are aligned u64 that the receive program only reads.
            let [k0, k1, valid] = unsafe {
                [
                    AtomicU64::from_ptr(&raw mut (*slot).k0),
                    AtomicU64::from_ptr(&raw mut (*slot).k1),
                    AtomicU64::from_ptr(&raw mut (*slot).valid),
                ]
            };
            let present = (valid.load(Ordering::Relaxed) != 0).then(|| [k0.load(Ordering::Relaxed), k1.load(Ordering::Relaxed)]);
            if wanted == present {
                continue;
            }
            valid.store(0, Ordering::SeqCst);
            let [w0, w1] = wanted.unwrap_or_default();
            k0.store(w0, Ordering::SeqCst);
            k1.store(w1, Ordering::SeqCst);
            valid.store(u64::from(wanted.is_some()), Ordering::SeqCst);
        }
    }

    fn life(&self) -> &AtomicU64 {
        // SAFETY: entry 0 exists; the field is an aligned u64 that the kernel programs change atomically.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.setup.at(0)).life) }
    }

    /// Begins a new incarnation. Versions of changes go on.
    pub fn set_incarnation(&self, incarnation: u32) {
        let begin = |life: u64| Some(u64::from(incarnation) << 32 | life & u64::from(u32::MAX));
        // The closure always gives a value, so this cannot fail.
        let _ = self.life().fetch_update(Ordering::SeqCst, Ordering::SeqCst, begin);
    }

    /// Goes on with a table that a former agent wrote: versions up to this one were used. To be called before the exit watch is attached.
    pub fn set_version(&self, version: u32) {
        self.life().fetch_add(version.into(), Ordering::SeqCst);
    }

    /// Takes the version of the next change, shared with the exit watch so that there is no gap and no double.
    #[must_use]
    pub fn next_notice(&self) -> u32 {
        (self.life().fetch_add(1, Ordering::AcqRel) + 1) as u32
    }

    /// What the programs count in the setup: (packets of this name that this incarnation did not send, records that found `urgent` full).
    #[must_use]
    pub fn complaints(&self) -> (u64, u64) {
        let s = self.setup.read(0);
        (s.not_sent, s.urgent_lost)
    }

    /// A packet with this number is about to leave: a heartbeat, or anything else.
    pub fn note_sent(&self, heartbeat: bool, number: u64) {
        let setup = self.setup.at(0);
        // SAFETY: entry 0 exists; aligned u64 of the shared struct, which the programs only read.
        unsafe {
            let place = if heartbeat { &raw mut (*setup).number_sent } else { &raw mut (*setup).event_number_sent };
            AtomicU64::from_ptr(place).store(number, Ordering::Release);
        }
    }

    /// The agent wakes by itself at `until_ns`: packets for groups need not wake it before.
    pub fn rest(&self, until_ns: u64) {
        let setup = self.setup.at(0);
        // SAFETY: entry 0 exists; aligned u64 of the shared struct, which the programs only read.
        unsafe { AtomicU64::from_ptr(&raw mut (*setup).rests_until_ns).store(until_ns, Ordering::Release) };
    }

    /// Answers to this agent's questions carry this ICMP identifier; what else looks like an answer and carries it reaches nobody.
    pub fn set_probe_id(&self, id: u16) {
        // SAFETY: entry 0 exists; an aligned u32 of the shared struct.
        unsafe { (&raw mut (*self.setup.at(0)).probe_id).write_volatile(id.into()) };
    }

    /// The address of a path's interface; what comes with it as its source is counted ([`Unwanted::OwnMac`]).
    pub fn set_mac(&self, path: usize, mac: Option<[u8; 6]>) {
        let [a, b, c, d, e, f] = mac.unwrap_or_default();
        let value = layout::Mac {
            head: u32::from_ne_bytes([a, b, c, d]),
            tail: u16::from_ne_bytes([e, f]),
            known: u16::from(mac.is_some()),
        };
        if path < PATHS {
            // SAFETY: entry 0 exists and path is in range; a value between two moments matches no frame, or one too many is counted.
            unsafe { (&raw mut (*self.setup.at(0)).mac[path]).write_volatile(value) };
        }
    }

    /// Answers by TCP to questions of this round (the last byte of its number does not count) are barriers from now on; those to the eighth before it no longer.
    pub fn expect_steered(&self, path: usize, number: u32) {
        if path >= PATHS {
            return;
        }
        let place = self.rounds[path].fetch_add(1, Ordering::Relaxed) % layout::ROUNDS;
        // SAFETY: entry 0 exists, path and place are in range; an aligned u64 that the programs only read.
        unsafe {
            let round = &raw mut (*self.setup.at(0)).rounds[path][place];
            AtomicU64::from_ptr(round).store(1 << 32 | u64::from(number & !0xff), Ordering::Release);
        }
    }

    /// The table of questions that may be answered.
    ///
    /// # Errors
    /// [`XdpError::Memory`].
    pub fn questions(&self) -> Result<Questions, XdpError> {
        let map = find(&self.object, "questions");
        let table = MappedArray::new(map.as_fd(), layout::QUESTIONS);
        table.map(Questions).map_err(|source| XdpError::Memory { map: "questions", source })
    }

    /// The socket filter that lets nothing but answers to this agent's questions in ([`Mechanism::questions`]).
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn answer_filter(&self) -> std::io::Result<OwnedFd> {
        self.program("fide_answers").as_fd().try_clone_to_owned()
    }

    /// Where packets came from last that were refused for this reason, on a path.
    #[must_use]
    pub fn refused_from(&self, reason: Refusal, path: usize) -> Source {
        self.unwanted.read(reason as usize * PATHS + path.min(PATHS - 1))
    }

    /// How many packets came that nobody wanted, and where the last came from, on a path.
    #[must_use]
    pub fn unwanted(&self, kind: Unwanted, path: usize) -> Source {
        self.unwanted.read((Refusal::COUNT + kind as usize) * PATHS + path.min(PATHS - 1))
    }

    /// Puts the receive program on an interface of this network namespace: the driver's hook if it has one of its own, the generic one
    /// otherwise, or the one asked for.
    ///
    /// # Errors
    /// [`XdpError::Attach`]; EBUSY means that another XDP program is there already.
    pub fn attach(&mut self, path: usize, ifindex: u32, wanted: Option<Attach>) -> Result<Attach, XdpError> {
        self.detach(path);
        let modes: &[Attach] = match wanted {
            Some(Attach::Native) if let Some(driver) = delegate(ifindex) => {
                let why =
                    format!("{driver} hands it to its members' drivers, which report packets as theirs; the generic hook works");
                return Err(XdpError::Attach {
                    what: format!("the receive program in the driver of interface {ifindex}"),
                    source: std::io::Error::other(why),
                });
            }
            None if delegate(ifindex).is_some() => &[Attach::Generic],
            None => &[Attach::Native, Attach::Generic],
            Some(Attach::Native) => &[Attach::Native],
            Some(Attach::Generic) => &[Attach::Generic],
        };
        let mut last = std::io::Error::from_raw_os_error(libc::EINVAL);
        for &mode in modes {
            match self.link_xdp(ifindex, mode) {
                Ok(link) => {
                    // Only now: the interface may be another path's, whose attachment this one must not disturb. Until then packets pass.
                    self.assign_path(ifindex, u32::try_from(path).unwrap_or(u32::MAX))?;
                    self.interfaces[path] = Some((ifindex, link));
                    return Ok(mode);
                }
                Err(e) => last = e,
            }
        }
        Err(XdpError::Attach {
            what: format!(
                "the receive program on interface {ifindex} (another agent, or another XDP program, may be there: `ip link` shows it)"
            ),
            source: last,
        })
    }

    fn link_xdp(&self, ifindex: u32, mode: Attach) -> Result<OwnedFd, std::io::Error> {
        let program = self.program("fide_receive");
        let opts = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            flags: match mode {
                Attach::Native => XDP_FLAGS_DRV_MODE,
                Attach::Generic => XDP_FLAGS_SKB_MODE,
            },
            ..Default::default()
        };
        // SAFETY: the descriptor is open and opts lives across the call. A link, unlike a netlink attachment, goes with its descriptor, so that
        // a crashed agent leaves nothing on the interface.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(program.as_fd().as_raw_fd(), ifindex as i32, libbpf_sys::BPF_XDP, &raw const opts)
        };
        if fd < 0 {
            return Err(std::io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Takes the receive program off a path's interface.
    pub fn detach(&mut self, path: usize) {
        if let Some((ifindex, _link)) = self.interfaces[path].take() {
            let _ = find(&self.object, "path_of").delete(&ifindex.to_ne_bytes()); // absent is as good
        }
    }

    /// Attaches the exit watch.
    ///
    /// # Errors
    /// [`XdpError::Attach`] with the tracepoint's name; or when this process is in a namespace of its own, where processes have other numbers than the
    /// kernel's, or other starts, and no watch would ever see its process's end.
    pub fn attach_exit_watch(&mut self) -> Result<(), XdpError> {
        if let Some((kind, advice)) = own_namespace() {
            let why = format!(
                "the kernel knows processes by the first {kind} namespace, and this process is in another one ({advice})"
            );
            return Err(XdpError::Attach { what: "the exit watch".into(), source: std::io::Error::other(why) });
        }
        for name in ["fide_signal_generate", "fide_signal_deliver", "fide_process_exit"] {
            let link = self.program(name).attach().map_err(|e| XdpError::Attach {
                what: format!("{name} (BTF tracepoint)"),
                source: std::io::Error::other(e.to_string()),
            })?;
            self.exit_links.push(link);
        }
        Ok(())
    }

    /// Attaches the start watch, and gives its reader to whoever waits for processes.
    ///
    /// # Errors
    /// [`XdpError::Attach`], where the exit watch cannot be attached either or this kernel is another; [`XdpError::Memory`], [`XdpError::Map`].
    pub fn start_watch(&mut self) -> Result<StartWatch, XdpError> {
        if let Some((kind, advice)) = own_namespace() {
            let why = format!("the kernel knows processes by the first {kind} namespace ({advice})");
            return Err(XdpError::Attach { what: "the start watch".into(), source: std::io::Error::other(why) });
        }
        let memory = |map: &'static str| move |source| XdpError::Memory { map, source };
        let fd = find(&self.object, "started").as_fd().try_clone_to_owned().map_err(memory("started"))?;
        let ring = Ring::new(fd, STARTED_BYTES).map_err(memory("started"))?;
        let names = MapHandle::try_from(&find(&self.object, "wanted_names")).map_err(map_error("wanted_names"))?;
        let ports = MapHandle::try_from(&find(&self.object, "wanted_ports")).map_err(map_error("wanted_ports"))?;
        let setup = MappedArray::new(find(&self.object, "setup").as_fd(), 1).map_err(memory("setup"))?;
        for name in ["fide_program_start", "fide_socket_state"] {
            let link = self.program(name).attach().map_err(|e| XdpError::Attach {
                what: format!("{name} (BTF tracepoint)"),
                source: std::io::Error::other(e.to_string()),
            })?;
            self.exit_links.push(link);
        }
        Ok(StartWatch::new(ring, names, ports, setup))
    }

    /// Takes the exit watch off again; watches stay in the map and see nothing.
    pub fn detach_exit_watch(&mut self) {
        self.exit_links.clear();
    }

    /// Gives a peer a slot of the arrival table, or its slot a new incarnation. Numbers are accepted from 1 again, so one and the same incarnation
    /// must not be set twice: its old packets would be new.
    ///
    /// # Errors
    /// [`XdpError::Map`].
    ///
    /// # Panics
    /// When `slot` is not below [`SLOTS`].
    pub fn set_peer(&self, slot: usize, node: u32, incarnation: u32) -> Result<(), XdpError> {
        self.set_peer_at(slot, node, incarnation, Used::default())
    }

    /// As [`Mechanism::set_peer`]; numbers are accepted above those that were used.
    ///
    /// # Errors
    /// [`XdpError::Map`].
    ///
    /// # Panics
    /// When `slot` is not below [`SLOTS`].
    pub fn set_peer_at(&self, slot: usize, node: u32, incarnation: u32, used: Used) -> Result<(), XdpError> {
        let path = layout::Path {
            number: used.heartbeats,
            event_number: used.others,
            by_group: used.heartbeats as u32,
            ..layout::Path::default()
        };
        let row = self.peers.at(slot);
        // SAFETY: `at` checks the range; aligned integers of the shared struct, which the receive program reads and writes meanwhile. It refuses
        // everything of a condemned row but reports, and looks again before it changes a number: packets of the old incarnation that it holds at
        // this moment cannot get into the new one's row.
        unsafe {
            AtomicU32::from_ptr(&raw mut (*row).condemned).store(1, Ordering::SeqCst);
            (&raw mut (*row).path).write_volatile([path; PATHS]);
            (&raw mut (*row).mark).write_volatile([[0; 2]; PATHS]);
            (&raw mut (*row).told).write_volatile([0; PATHS]);
            (&raw mut (*row).period_ns).write_volatile(0);
            // A host that was started anew, or lost its table, begins with lower versions.
            (&raw mut (*row).table_version).write_volatile(0);
            (&raw mut (*row).node).write_volatile(node);
            (&raw mut (*row).incarnation).write_volatile(incarnation);
            for path in 0..PATHS {
                self.jitter.write(slot * PATHS + path, [0; fide_wire::jitter::BUCKETS]);
            }
            fence(Ordering::SeqCst);
            AtomicU32::from_ptr(&raw mut (*row).condemned).store(0, Ordering::SeqCst);
        }
        let value = u32::try_from(slot).unwrap_or(u32::MAX).to_ne_bytes();
        find(&self.object, "slot_of").update(&node.to_ne_bytes(), &value, MapFlags::ANY).map_err(map_error("slot_of"))
    }

    /// Frees a slot.
    pub fn remove_peer(&self, slot: usize, node: u32) {
        let _ = find(&self.object, "slot_of").delete(&node.to_ne_bytes()); // absent is as good
        self.peers.write(slot, Peer::default());
    }

    /// Refuses the peer's present incarnation from now on.
    pub fn condemn(&self, slot: usize) {
        // SAFETY: `at` checks the range; an aligned u32 of the shared struct.
        unsafe { (&raw mut (*self.peers.at(slot)).condemned).write_volatile(1) };
    }

    /// The peer's row of the arrival table.
    #[must_use]
    pub fn peer(&self, slot: usize) -> Peer {
        self.peers.read(slot)
    }

    /// The receive queue of a path, counted from 1 as in [`Peer::queue`], out of which the answer to the question with this random number came
    /// last. Whatever came into that queue before it is in the tables now.
    #[must_use]
    pub fn barrier(&self, path: usize, nonce: u64) -> Option<u32> {
        let noted = Some(nonce.to_be()).filter(|noted| *noted != 0)?; // 0: nothing has come out of that queue
        let queue = (0..layout::QUEUES).find(|queue| self.barriers.read(path * layout::QUEUES + queue) == noted)?;
        fence(Ordering::Acquire);
        Some(queue as u32 + 1)
    }

    /// The numbers of questions by TCP whose answers came last out of receive queues of a path (counted from 1), where they did. As [`Mechanism::barrier`] otherwise.
    #[must_use]
    pub fn steered(&self, path: usize) -> Vec<(u32, u32)> {
        let noted = |queue| u64::from_be(self.barriers.read(path * layout::QUEUES + queue));
        let rows = (0..layout::QUEUES).map(|queue| (queue as u32 + 1, noted(queue)));
        let found =
            rows.filter(|(_, number)| number >> 32 == STEERED_MAGIC).map(|(queue, number)| (queue, number as u32)).collect();
        fence(Ordering::Acquire);
        found
    }

    /// The cumulative jitter histogram of a peer's path.
    #[must_use]
    pub fn jitter(&self, slot: usize, path: usize) -> Jitter {
        self.jitter.read(slot * PATHS + path)
    }

    /// Takes the largest jitter seen since the last call.
    #[must_use]
    pub fn take_jitter_max(&self, slot: usize, path: usize) -> u64 {
        // SAFETY: `at` checks the slot, path is checked by the array; an aligned u64. A maximum that arrives between the two accesses is lost to
        // this window, not to the histogram.
        unsafe {
            let max = &raw mut (*self.peers.at(slot)).path[path].jitter_max_ns;
            let value = max.read_volatile();
            max.write_volatile(0);
            value
        }
    }

    /// Watches a process of this host, by its pid in the first pid namespace. The caller checks afterwards that it is still the same process, and that
    /// not all of its threads are dead or exiting (PF_EXITING in /proc/PID/stat): the end of what was exiting before may not be reported.
    ///
    /// # Errors
    /// [`XdpError::Map`], when the table is full.
    pub fn watch(&self, pid: u32, app: u32, start_ticks: u64) -> Result<(), XdpError> {
        self.watch_until_settled(pid, app, start_ticks, 0)
    }

    /// The same of one that was started just now: until `settles_ns` (CLOCK_MONOTONIC) a clean end of it is told to nobody but the reader of the start watch
    /// ([`crate::Start::HandedOver`]).
    ///
    /// # Errors
    /// As [`Mechanism::watch`].
    pub fn watch_until_settled(&self, pid: u32, app: u32, start_ticks: u64, settles_ns: u64) -> Result<(), XdpError> {
        let watch = Watch { start_ticks, settles_ns, app, ..Watch::default() };
        find(&self.object, "watches").update(&pid.to_ne_bytes(), as_bytes(&watch), MapFlags::ANY).map_err(map_error("watches"))
    }

    /// Ends a watch; absent is as good. Whether the exit watch had already seen that process end, and reported it where it is to be
    /// reported.
    pub fn unwatch(&self, pid: u32) -> bool {
        const DEAD: u32 = 2; // WATCH_DEAD of maps.h
        let was_seen = self.watching(pid).is_none_or(|watch| watch.state == DEAD && watch.unreported == 0);
        let _ = find(&self.object, "watches").delete(&pid.to_ne_bytes());
        was_seen
    }

    /// The watch of a process: gone once its end was reported.
    #[must_use]
    pub fn watching(&self, pid: u32) -> Option<Watch> {
        watch_from(&find(&self.object, "watches").lookup(&pid.to_ne_bytes(), MapFlags::ANY).ok()??)
    }

    /// Watches whose end did not fit the urgent ring; to be looked at when `complaints` counts such losses.
    #[must_use]
    pub fn stranded_watches(&self) -> Vec<WatchEnd> {
        let map = find(&self.object, "watches");
        map.keys()
            .filter_map(|key| {
                let pid = u32::from_ne_bytes(key.as_slice().try_into().ok()?);
                let value = map.lookup(&key, MapFlags::ANY).ok()??;
                let watch = watch_from(&value)?;
                (watch.unreported != 0).then_some(WatchEnd { pid, watch })
            })
            .collect()
    }

    /// Makes a subscriber's ring, with the first bit that is free.
    ///
    /// # Errors
    /// [`XdpError::Full`] when all are in use, [`XdpError::Map`] otherwise.
    pub fn new_subscriber(&mut self) -> Result<Subscriber, XdpError> {
        let index = self.rings_used.trailing_ones();
        let subscriber = self.ring_maker()?.make(index)?;
        self.rings_used |= 1 << index;
        Ok(subscriber)
    }

    /// What makes rings in another thread. Whoever uses it says which bits are free, and does not use [`Mechanism::new_subscriber`] beside it.
    ///
    /// # Errors
    /// [`XdpError::Memory`], [`XdpError::Map`].
    pub fn ring_maker(&self) -> Result<RingMaker, XdpError> {
        let rings = MapHandle::try_from(&find(&self.object, "rings")).map_err(map_error("rings"))?;
        let lost = MappedArray::new(find(&self.object, "ring_lost").as_fd(), RINGS)
            .map_err(|source| XdpError::Memory { map: "ring_lost", source })?;
        Ok(RingMaker { rings, lost })
    }

    /// Events that a subscriber's ring had no room for, since it was made.
    ///
    /// # Panics
    /// When `index` is not below [`RINGS`].
    #[must_use]
    pub fn ring_lost(&self, index: u32) -> u64 {
        self.ring_lost.read(index as usize)
    }

    /// Takes a subscriber's ring out of use. Its subscriptions must have been cleared before.
    pub fn remove_subscriber(&mut self, subscriber: Subscriber) {
        let _ = find(&self.object, "rings").delete(&subscriber.index.to_ne_bytes());
        self.rings_used &= !(1 << subscriber.index);
    }

    /// Sets which rings receive events of a process (app 0: of a node; both 0: everything).
    ///
    /// # Errors
    /// [`XdpError::Map`], when the table is full.
    pub fn set_subscribers(&self, node: u32, app: u32, rings: u64) -> Result<(), XdpError> {
        let map = find(&self.object, "subscribers");
        let key = (u64::from(node) << 32 | u64::from(app)).to_ne_bytes();
        if rings == 0 {
            let _ = map.delete(&key); // absent is as good
            return Ok(());
        }
        map.update(&key, &rings.to_ne_bytes(), MapFlags::ANY).map_err(map_error("subscribers"))
    }

    /// Says which process of a node its piggybacks are from: they name it by the low half of its
    /// number, which does not do for numbers above 65535.
    ///
    /// # Errors
    /// [`XdpError::Map`], when the table is full.
    pub fn set_number(&self, node: u32, incarnation: u32, app: u32) -> Result<(), XdpError> {
        let mut value = [0; 8];
        value[..4].copy_from_slice(&app.to_ne_bytes());
        value[4..].copy_from_slice(&incarnation.to_ne_bytes());
        find(&self.object, "numbers").update(&low_half(node, app), &value, MapFlags::ANY).map_err(map_error("numbers"))
    }

    /// This process has ended: the low half of its number is another's, if anybody's.
    pub fn forget_number(&self, node: u32, app: u32) {
        let map = find(&self.object, "numbers");
        let key = low_half(node, app);
        let is_its = |value: Vec<u8>| value.get(..4) == Some(&app.to_ne_bytes()[..]);
        if map.lookup(&key, MapFlags::ANY).ok().flatten().is_some_and(is_its) {
            let _ = map.delete(&key); // absent is as good
        }
    }

    /// Writes a record into the rings of a set, from the agent.
    ///
    /// Returns how many of them had no room.
    ///
    /// # Panics
    /// When the body is larger than a piggyback: the caller's mistake.
    pub fn publish(&self, rings: u64, record: &Record, body: &[u8]) -> u32 {
        assert!(body.len() <= fide_wire::PIGGYBACK_MAX);
        if rings == 0 {
            return 0;
        }
        let mut out = Outgoing { bytes: [0; size_of::<Outgoing>()] };
        let record = Record { body_len: body.len() as u16, ..*record };
        out.bytes[..size_of::<Record>()].copy_from_slice(record.as_bytes());
        out.bytes[size_of::<Record>()..size_of::<Record>() + body.len()].copy_from_slice(body);
        self.outgoing.write(0, out);
        let len = (size_of::<Record>() + body.len()) as u32;
        let mut context = [0u8; 16]; // struct fide_publish
        context[..8].copy_from_slice(&rings.to_ne_bytes());
        context[8..12].copy_from_slice(&len.to_ne_bytes());
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        match self.program("fide_publish").test_run(input) {
            Ok(output) if (output.return_value as i32) >= 0 => output.return_value,
            _ => rings.count_ones(),
        }
    }

    /// The ring of what must be handled at once. Call once.
    ///
    /// # Errors
    /// [`XdpError::Memory`].
    pub fn urgent(&self) -> Result<Ring, XdpError> {
        self.ring("urgent", 256 * 1024)
    }

    /// The ring of whole packets. Call once.
    ///
    /// # Errors
    /// [`XdpError::Memory`].
    pub fn inbox(&self) -> Result<Ring, XdpError> {
        self.ring("inbox", 1024 * 1024)
    }

    fn ring(&self, map: &'static str, size: u32) -> Result<Ring, XdpError> {
        let fd = find(&self.object, map).as_fd().try_clone_to_owned().map_err(|source| XdpError::Memory { map, source })?;
        Ring::new(fd, size).map_err(|source| XdpError::Memory { map, source })
    }

    /// Refused packets by reason, in the order of [`Refusal::ALL`].
    #[must_use]
    pub fn refused(&self) -> [u64; Refusal::COUNT] {
        let map = find(&self.object, "refused");
        let mut sums = [0; Refusal::COUNT];
        for (reason, sum) in sums.iter_mut().enumerate() {
            let key = (reason as u32).to_ne_bytes();
            if let Ok(Some(per_cpu)) = map.lookup_percpu(&key, MapFlags::ANY) {
                *sum = per_cpu.iter().filter_map(|v| v.as_slice().try_into().ok()).map(u64::from_ne_bytes).sum();
            }
        }
        sums
    }

    /// Runs the receive program on a frame as if it had arrived on `ifindex`... which `BPF_PROG_TEST_RUN` takes from the loopback
    /// device of this network namespace unless it has one of that index with a receive queue. Returns the XDP action.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn test_receive(&self, frame: &[u8], ifindex: u32) -> Result<u32, XdpError> {
        self.test_receive_repeated(frame, ifindex, 1).map(|(action, _)| action)
    }

    /// The same, `repeat` times in a row: the last action, and the mean time of a run.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn test_receive_repeated(&self, frame: &[u8], ifindex: u32, repeat: u32) -> Result<(u32, Duration), XdpError> {
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
        let mut context = [0u8; 24];
        context[4..8].copy_from_slice(&(frame.len() as u32).to_ne_bytes());
        context[12..16].copy_from_slice(&ifindex.to_ne_bytes());
        let input = ProgramInput { context_in: Some(&mut context), data_in: Some(frame), repeat, ..ProgramInput::default() };
        let output = self.program("fide_receive").test_run(input).map_err(map_error("fide_receive"))?;
        Ok((output.return_value, output.duration))
    }

    /// The verifier's and the compiler's figures of every loaded program.
    #[must_use]
    pub fn figures(&self) -> Vec<ProgramFigures> {
        let mut figures = Vec::new();
        for program in self.object.progs() {
            let mut info = libbpf_sys::bpf_prog_info::default();
            let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
            // SAFETY: the program is the object's, which lives as long as self. One that was not loaded has no descriptor.
            let fd = unsafe { libbpf_sys::bpf_program__fd(program.as_libbpf_object().as_ptr()) };
            // SAFETY: info and len live across the call, and len is the size of info.
            if fd < 0 || unsafe { libbpf_sys::bpf_obj_get_info_by_fd(fd, (&raw mut info).cast(), &raw mut len) } != 0 {
                continue;
            }
            figures.push(ProgramFigures {
                name: program.name().to_string_lossy().into_owned(),
                verified_instructions: info.verified_insns,
                instructions: info.xlated_prog_len / 8,
                machine_bytes: info.jited_prog_len,
                runs: info.run_cnt,
                run_ns: info.run_time_ns,
            });
        }
        figures
    }

    /// Says which path an interface belongs to without attaching anything, for [`Mechanism::test_receive`].
    ///
    /// # Errors
    /// [`XdpError::Map`].
    pub fn assign_path(&self, ifindex: u32, path: u32) -> Result<(), XdpError> {
        find(&self.object, "path_of")
            .update(&ifindex.to_ne_bytes(), &path.to_ne_bytes(), MapFlags::ANY)
            .map_err(map_error("path_of"))
    }

    fn program(&self, name: &str) -> libbpf_rs::ProgramMut<'_> {
        self.object.progs_mut().find(|p| p.name() == name).expect("the object has the programs it was built with")
    }
}

/// Makes subscribers' rings and takes them out of use. Both wait for a grace period of the kernel, up to some 10 ms: nothing for a real-time thread.
#[derive(Debug)]
pub struct RingMaker {
    rings: MapHandle,
    lost: MappedArray<u64>,
}

impl RingMaker {
    /// Makes a ring with this bit, which must be free.
    ///
    /// # Errors
    /// [`XdpError::Full`] when there is no such bit, [`XdpError::Map`] otherwise.
    pub fn make(&self, index: u32) -> Result<Subscriber, XdpError> {
        if index as usize >= RINGS {
            return Err(XdpError::Full);
        }
        let opts = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let ring = MapHandle::create(MapType::RingBuf, Some("fide_ring"), 0, 0, RING_BYTES, &opts).map_err(map_error("ring"))?;
        let fd = ring.as_fd().try_clone_to_owned().map_err(|source| XdpError::Memory { map: "ring", source })?;
        self.lost.write(index as usize, 0);
        self.rings.update(&index.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes(), MapFlags::ANY).map_err(map_error("rings"))?;
        Ok(Subscriber { index, fd })
    }

    /// Takes a ring out of use. Its subscriptions must have been cleared before; then its bit is free.
    pub fn unmake(&self, subscriber: Subscriber) {
        let _ = self.rings.delete(&subscriber.index.to_ne_bytes()); // absent is as good
    }
}

fn find<'a>(object: &'a Object, name: &str) -> libbpf_rs::Map<'a> {
    object.maps().find(|m| m.name() == name).expect("the object has the maps it was built with")
}

fn as_bytes(watch: &Watch) -> &[u8] {
    // SAFETY: Watch is repr(C), only integers, without padding (32 bytes, asserted in layout.rs).
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(watch).cast(), size_of::<Watch>()) }
}

fn watch_from(bytes: &[u8]) -> Option<Watch> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some(Watch {
        start_ticks: u64_at(0)?,
        settles_ns: u64_at(8)?,
        app: u32_at(16)?,
        state: u32_at(20)?,
        status: u32_at(24)? as i32,
        unreported: u32_at(28)?,
    })
}
