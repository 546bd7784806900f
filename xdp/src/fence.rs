//! The fence: what a late sender still sends does not leave.
//!
//! A receiver that has not heard a sender for its timeout calls it dead. If the sender was only slow, both may act from then on: the split
//! brain. SafeTimer (§4.2) makes the slow one indistinguishable from a dead one by a passive rule: *a packet may leave while the clock has
//! not gone past t_valid, and t_valid moves on only when a heartbeat is known to have been sent in time*. A process that is stopped, starved,
//! swapped out or frozen cannot move t_valid, so its gate runs out without anybody doing anything (§5.2 rules out the active ways: the order
//! to stop may itself be late).
//!
//! **A gate** is one t_valid: [`Gate`]. Two kinds of packets ask it (§5.2's two blocking modes, which can be had at once):
//! * *the whole host*: everything that leaves by the interfaces given to [`Fence::guard_interface`], whoever sends it, forwarded packets,
//!   ARP, neighbour discovery and echo replies included. A fenced host is as silent as a dead one: that is what its peers
//!   have concluded, and a kernel that still answered for it would only keep them in doubt. Loopback is not guarded.
//! * *a process*: every IP packet of the sockets that were made in a cgroup or below it, to this host as well ([`Fence::guard_cgroup`]). The
//!   sender gets EPERM. A socket belongs to the cgroup in which it was *made*: a process must start there, or be fenced
//!   before it opens sockets.
//!
//! **What is guaranteed.** No packet whose send call begins after t_valid leaves, until [`Gate::recover`]. One that passed the gate
//! before t_valid may leave later (§4.2's last paragraph allows it, because it was made while the sender was valid): by what it
//! waits for below the gate, that is, the queueing discipline and the device. `docs/fence.md` has the bound and the list of what is
//! covered; the gaps in short: whole-host mode does not see `PACKET_QDISC_BYPASS`, AF_XDP, `XDP_TX` and XDP redirects; per-process
//! mode sees neither those nor any other packet socket; neither sees Unix sockets, shared memory and disks.
//!
//! **Once run out, closed for good.** The gate's whole state is one 64-bit word, changed by compare-and-swap only. The first packet that finds
//! it run out closes it in the same step in which it is blocked, so every extension is either before that packet, which
//! then passes, or is refused. An extension needs a heartbeat known to be complete *by* the old t_valid ([`Gate::extend`]'s
//! `known_ns`), so one that is itself delayed extends nothing that receivers have not agreed to: they have that heartbeat.
//!
//! **Whose life it has.** Programs and gates are pinned, and stay when their owner dies, is killed or panics: its gates then run out, which is
//! the safe end. Dropping a [`Fence`] therefore takes nothing away; [`Fence::remove`] does. The next owner opens the same
//! directory, finds the gates as they are, and decides.
//!
//! Time is CLOCK_MONOTONIC in nanoseconds. It stands still while a machine is suspended, so a fence does not cover suspending.

use crate::egress;
use crate::layout::{GATE_FENCED, GATE_NOT_ARMED, GATE_SHUT, GATES, GateRow};
use crate::lost;
use crate::memory::MappedArray;
use libbpf_rs::libbpf_sys;
use libbpf_rs::{AsRawLibbpf, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fence.bpf.o"));

const HOST_GATE: usize = 0;
/// What the storage of a cgroup says in the place of a slot. No slot was told: lets everything pass.
const NO_GATE: u64 = 0;
/// No such slot: lets nothing pass.
const BLOCKED: u64 = GATES as u64;
const MAPS: [&str; 4] = ["gates", "gate_counts", "gate_of", "gate_within"];
/// As [`MAPS`] of former versions.
const FORMER_MAPS: [&str; 1] = ["gate_below"];
pub(crate) const HOST_PROGRAM: &str = "fide_fence_host";
pub(crate) const GROUP_PROGRAM: &str = "fide_fence_group";

/// What can go wrong here.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// The directory is on no BPF file system.
    #[error(
        "{} is on no BPF file system, where the fence must be kept so that it outlives its owner (`mount -t bpf bpf /sys/fs/bpf`)",
        dir.display()
    )]
    NotBpffs {
        /// The directory.
        dir: PathBuf,
    },
    /// Somebody else owns the fence.
    #[error("the fence in {} has an owner that lives: one agent at a time", dir.display())]
    Owned {
        /// The directory.
        dir: PathBuf,
    },
    /// A file of the fence cannot be made, opened or removed.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused the programs.
    #[error(
        "the kernel does not load the fence ({source}): it must be 5.15 or later, and the agent needs CAP_BPF and CAP_NET_ADMIN; it is kept in {}",
        dir.display()
    )]
    Load {
        /// Where it is kept.
        dir: PathBuf,
        /// Why.
        #[source]
        source: libbpf_rs::Error,
    },
    /// What is pinned was made by another version.
    #[error(
        "the gates in {} are of another version ({map} is laid out differently), which has to take them away: start that one and stop it, or, if \
         everybody may send, `fided --remove-fence`",
        dir.display()
    )]
    Layout {
        /// Where it is kept.
        dir: PathBuf,
        /// Which map.
        map: String,
    },
    /// Loopback cannot be guarded.
    #[error("interface {ifindex} is the loopback device, where nothing leaves the host")]
    Loopback {
        /// Its index.
        ifindex: u32,
    },
    /// An interface cannot be guarded.
    #[error("interface {ifindex}: {what}: {source}")]
    Interface {
        /// Its index.
        ifindex: u32,
        /// What was tried, and what to look at.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A cgroup cannot be guarded.
    #[error("cgroup {}: {what}: {source}", dir.display())]
    Cgroup {
        /// Its directory.
        dir: PathBuf,
        /// What was tried, and what to look at.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// No gate is left.
    #[error("all {} gates for cgroups are in use", GATES - 1)]
    Full,
}

/// How a gate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// Lets everything pass: [`Gate::arm`] has not been called.
    NotArmed,
    /// Lets packets pass up to this time.
    Open {
        /// t_valid.
        valid_ns: u64,
    },
    /// Ran out, and was found so: by a packet, by [`Gate::check`] or by an extension that came too late.
    Fenced {
        /// When it was found.
        since_ns: u64,
    },
    /// Closed by [`Gate::shut`].
    Shut,
}

impl fmt::Display for GateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotArmed => f.write_str("not armed"),
            Self::Open { valid_ns } => write!(f, "open until {valid_ns} ns"),
            Self::Fenced { since_ns } => write!(f, "fenced since {since_ns} ns"),
            Self::Shut => f.write_str("shut"),
        }
    }
}

/// A reason to shut one gate that says nothing of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// The process behind it has ended, or will for certain.
    Ended = 1,
    /// Nothing was promised of it yet.
    NotBegun = 2,
}

/// A process, told from all others that have had or will have its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot: field 22 of its /proc/PID/stat.
    pub start_ticks: u64,
}

/// A gate's state forbids what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gate is {0}")]
pub struct Refused(pub GateState);

/// What a gate counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounts {
    /// Packets that passed, since the gate was made.
    pub passed: u64,
    /// Packets blocked.
    pub blocked: u64,
    /// The first one blocked since the gate was last closed.
    pub first_blocked_ns: Option<u64>,
}

/// One t_valid. Copies speak of the same gate, from any thread; nothing here makes a system call.
#[derive(Clone)]
pub struct Gate {
    rows: Arc<MappedArray<GateRow>>,
    slot: usize,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gate({}: {})", self.slot, self.state_of(self.word().load(Ordering::SeqCst)))
    }
}

impl Gate {
    /// The id of the cgroup that it is for; the host's has none.
    #[must_use]
    pub fn cgroup(&self) -> Option<u64> {
        Some(self.rows.read(self.slot).cgroup).filter(|id| *id != 0)
    }

    /// Whether it is for a cgroup that is gone: what it has come to says nothing any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        is_gone(self.rows.read(self.slot).cgroup)
    }

    /// Begins: from now on packets pass only up to `valid_ns` (§4.2: "during startup, the sender sets t_valid to end_0").
    ///
    /// # Errors
    /// Unless the gate is [`GateState::NotArmed`].
    pub fn arm(&self, valid_ns: u64) -> Result<(), Refused> {
        self.swap(GATE_NOT_ARMED, time(valid_ns)).map_err(|found| Refused(self.state_of(found)))
    }

    /// Moves t_valid on, never back (Fig. 3, line 4). `known_ns` is a time at which the heartbeat that allows this was already known to be
    /// complete (§5.2's t_after). When that is past the present t_valid, the gate is closed instead.
    ///
    /// # Errors
    /// The state that forbids it: fenced (perhaps by this call), shut, or not armed.
    pub fn extend(&self, known_ns: u64, valid_ns: u64) -> Result<(), Refused> {
        let wanted = time(valid_ns);
        let mut word = self.word().load(Ordering::SeqCst);
        loop {
            if matches!(word, GATE_SHUT | GATE_FENCED | GATE_NOT_ARMED) {
                return Err(Refused(self.state_of(word)));
            }
            let next = if known_ns > word { GATE_FENCED } else { wanted.max(word) };
            match self.swap(word, next) {
                Ok(()) if next == GATE_FENCED => return Err(Refused(self.fenced(monotonic_ns()))),
                Ok(()) => return Ok(()),
                Err(found) => word = found,
            }
        }
    }

    /// How the gate is now. One found to have run out is closed by this, so that the answer stays true.
    #[must_use]
    pub fn check(&self) -> GateState {
        let mut word = self.word().load(Ordering::SeqCst);
        loop {
            let state = self.state_of(word);
            let GateState::Open { valid_ns } = state else { return state };
            let now = monotonic_ns();
            if now <= valid_ns {
                return state;
            }
            match self.swap(word, GATE_FENCED) {
                Ok(()) => return self.fenced(now),
                Err(found) => word = found,
            }
        }
    }

    /// How the gate looks, without closing one that has run out: an extension that was late only in being told may still come. For status pages.
    #[must_use]
    pub fn peek(&self) -> GateState {
        self.state_of(self.word().load(Ordering::SeqCst))
    }

    /// Closes the gate at once, armed or not: for a process that is about to end, or for an operator.
    pub fn shut(&self) {
        self.shut_with(0);
    }

    /// The same for a reason that concerns this gate alone: the next owner sees that by [`Gate::shut_for`].
    pub fn shut_apart(&self, why: Apart) {
        self.shut_with(why as u64);
    }

    fn shut_with(&self, apart: u64) {
        let [word, _, first_blocked_ns, mark, ..] = self.words();
        first_blocked_ns.store(0, Ordering::SeqCst);
        mark.store(apart, Ordering::SeqCst);
        word.store(GATE_SHUT, Ordering::SeqCst);
    }

    /// Shuts it because this process has ended, will for certain, or must not be heard any more although it lives: [`Apart::Ended`]. The process is remembered, also
    /// by the next owner and when the gate is shut for another reason, until [`Gate::recover`].
    pub fn cut_off(&self, process: Process) {
        let [.., pid, start_ticks] = self.words();
        start_ticks.store(process.start_ticks, Ordering::SeqCst);
        pid.store(u64::from(process.pid), Ordering::SeqCst);
        self.shut_apart(Apart::Ended);
    }

    /// The process that was cut off last, and nobody was let through since.
    #[must_use]
    pub fn is_cut_off(&self) -> Option<Process> {
        let [word, .., pid, start_ticks] = self.words();
        if word.load(Ordering::SeqCst) != GATE_SHUT {
            return None; // opened by a version that knew of no process
        }
        let pid = u32::try_from(pid.load(Ordering::SeqCst)).ok().filter(|pid| *pid != 0)?;
        Some(Process { pid, start_ticks: start_ticks.load(Ordering::SeqCst) })
    }

    /// Another process may be heard in the place of the one that was cut off, as soon as the gate opens.
    pub fn forget_cut_off(&self) {
        let [.., pid, start_ticks] = self.words();
        pid.store(0, Ordering::SeqCst);
        start_ticks.store(0, Ordering::SeqCst);
    }

    /// Why it is shut, if that says nothing of the owner's other gates.
    #[must_use]
    pub fn shut_for(&self) -> Option<Apart> {
        let [word, _, _, mark, ..] = self.words();
        let mark = mark.load(Ordering::SeqCst);
        let is_shut = word.load(Ordering::SeqCst) == GATE_SHUT;
        [Apart::Ended, Apart::NotBegun].into_iter().find(|why| is_shut && mark == *why as u64)
    }

    /// Opens a gate that was fenced or shut, up to `valid_ns`. Whoever calls this says that the sender has a new identity, or that nobody
    /// has acted on its absence (§4.2: "unless with recovery operations").
    ///
    /// # Errors
    /// Unless the gate is [`GateState::Fenced`] or [`GateState::Shut`]; a gate that has run out must have been found so.
    pub fn recover(&self, valid_ns: u64) -> Result<(), Refused> {
        let word = self.word().load(Ordering::SeqCst);
        if !matches!(word, GATE_SHUT | GATE_FENCED) {
            return Err(Refused(self.state_of(word)));
        }
        self.words()[1..].iter().for_each(|stamp| stamp.store(0, Ordering::SeqCst));
        self.swap(word, time(valid_ns)).map_err(|found| Refused(self.state_of(found)))
    }

    /// Ends the rule, in time: lets everything pass until it is armed again.
    ///
    /// # Errors
    /// When the gate is closed: that needs [`Gate::recover`] first.
    pub fn disarm(&self) -> Result<(), Refused> {
        let GateState::Open { valid_ns } = self.check() else {
            let state = self.state_of(self.word().load(Ordering::SeqCst));
            return if state == GateState::NotArmed { Ok(()) } else { Err(Refused(state)) };
        };
        match self.swap(valid_ns, GATE_NOT_ARMED) {
            Ok(()) => Ok(()),
            Err(_) => self.disarm(), // extended meanwhile, or closed
        }
    }

    /// Ends the rule, whatever it has come to: everything passes from now on. For who takes the gate away.
    pub fn lift(&self) {
        let [word, stamps @ ..] = self.words();
        stamps.iter().for_each(|stamp| stamp.store(0, Ordering::SeqCst));
        word.store(GATE_NOT_ARMED, Ordering::SeqCst);
    }

    /// One in memory of no kernel program, for tests of who drives gates.
    ///
    /// # Panics
    /// Without memory.
    #[doc(hidden)]
    #[must_use]
    pub fn of_no_program(cgroup: u64) -> Self {
        // SAFETY: a C string; the descriptor is checked and owned.
        let memory = unsafe {
            let fd = libc::memfd_create(c"gates".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            File::from_raw_fd(fd)
        };
        memory.set_len((GATES * size_of::<GateRow>()) as u64).expect("memory");
        let rows = MappedArray::new(memory.as_fd(), GATES).expect("memory");
        rows.write(3, GateRow { valid_ns: GATE_NOT_ARMED, cgroup, ..GateRow::default() });
        Self { rows: Arc::new(rows), slot: 3 }
    }

    /// State, time of fencing, time of the first packet blocked, whether it was shut apart, who was cut off.
    fn words(&self) -> [&AtomicU64; 6] {
        let row = self.rows.at(self.slot);
        // SAFETY: the slot exists, and lives as long as self; aligned u64, the first of which the kernel programs change by atomic instructions
        // only. Of the others only whole values matter.
        unsafe {
            [
                &raw mut (*row).valid_ns,
                &raw mut (*row).fenced_ns,
                &raw mut (*row).first_blocked_ns,
                &raw mut (*row).apart,
                &raw mut (*row).pid,
                &raw mut (*row).start_ticks,
            ]
            .map(|w| AtomicU64::from_ptr(w))
        }
    }

    fn word(&self) -> &AtomicU64 {
        self.words()[0]
    }

    fn swap(&self, from: u64, to: u64) -> Result<(), u64> {
        self.word().compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).map(drop)
    }

    fn fenced(&self, since_ns: u64) -> GateState {
        self.words()[1].store(since_ns, Ordering::SeqCst);
        GateState::Fenced { since_ns }
    }

    fn state_of(&self, word: u64) -> GateState {
        match word {
            GATE_NOT_ARMED => GateState::NotArmed,
            GATE_SHUT => GateState::Shut,
            GATE_FENCED => match self.rows.read(self.slot).fenced_ns {
                0 => GateState::Fenced { since_ns: monotonic_ns() }, // this very moment: the stamp follows the word
                since_ns => GateState::Fenced { since_ns },
            },
            valid_ns => GateState::Open { valid_ns },
        }
    }
}

/// A time that is none of the words with a meaning of their own.
fn time(ns: u64) -> u64 {
    ns.clamp(GATE_FENCED + 1, GATE_NOT_ARMED - 1)
}

fn monotonic_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: t lives across the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The fence of this host: its programs, its gates, and the right to move them. One owner at a time.
pub struct Fence {
    dir: PathBuf,
    _owner: Owner,
    rows: Arc<MappedArray<GateRow>>,
    counts: MapHandle,
    gate_of: MapHandle,
    below: MapHandle,
    host: Program,
    /// A former owner's host program, of another version and with the same gates.
    former_host: Option<Program>,
    group: Program,
    /// The same of cgroups.
    former_group: Option<Program>,
    /// It was made now, not taken over.
    is_new: bool,
    interfaces: Vec<u32>,
    /// Where programs of an interface are looked for: in tcx, too, if the kernel has it.
    tcx: bool,
}

/// Whose a program is that leaves by tcx what it lets pass.
enum Theirs {
    /// Of this fence, or a former owner's of another version; or of one whose gates block nothing.
    Ours(OwnedFd),
    /// Of a fence with other gates, which may be closed.
    LostFences(OwnedFd),
    /// Of somebody else.
    Others,
    /// Only CAP_SYS_ADMIN may look.
    Hidden,
}

/// A loaded program.
struct Program {
    fd: OwnedFd,
    id: u32,
    /// The kernel's digest of its instructions.
    tag: [u8; 8],
}

impl Fence {
    /// Makes the fence that is kept in `dir`, a directory of its own on a BPF file system, or takes over the one that is there: its gates
    /// are as they were left, and packets are judged without a gap, by this version's programs.
    ///
    /// # Errors
    /// [`FenceError`], with what to do about it. What was in force before stays in force.
    pub fn open(dir: &Path) -> Result<Self, FenceError> {
        let owner = own(dir)?;
        let load_error = |source| FenceError::Load { dir: dir.to_path_buf(), source };
        let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(load_error)?;
        for mut map in open.maps_mut() {
            let path = dir.join(map.name());
            if let Some(pinned) = path.exists().then(|| MapHandle::from_pinned_path(&path).ok()).flatten() {
                let layout = |m: &MapHandle| (m.key_size(), m.value_size(), m.max_entries());
                if layout(&pinned) != (map.key_size(), map.value_size(), map.max_entries()) {
                    return Err(FenceError::Layout { dir: dir.to_path_buf(), map: map.name().to_string_lossy().into_owned() });
                }
            }
            map.set_pin_path(path).map_err(load_error)?; // and what is pinned there already is used
        }
        let object = open.load().map_err(load_error)?;
        let map = |name: &str| {
            let map = object.maps().find(|m| m.name() == name).expect("the object has the maps it was built with");
            MapHandle::try_from(&map).map_err(load_error)
        };
        let [gates, counts, gate_of, below] = MAPS.map(map);
        let rows = MappedArray::<GateRow>::new(gates?.as_fd(), GATES)
            .map_err(|source| FenceError::File { path: dir.join(MAPS[0]), source })?;
        let mut fence = Self {
            dir: dir.to_path_buf(),
            _owner: owner,
            rows: Arc::new(rows),
            counts: counts?,
            gate_of: gate_of?,
            below: below?,
            host: program(&object, HOST_PROGRAM).map_err(|source| file_error(dir, source))?,
            group: program(&object, GROUP_PROGRAM).map_err(|source| file_error(dir, source))?,
            former_host: None,
            former_group: None,
            is_new: false,
            interfaces: Vec::new(),
            tcx: true,
        };
        fence.settle()?;
        Ok(fence)
    }

    /// Brings programs and gates of a former owner in line with ours.
    fn settle(&mut self) -> Result<(), FenceError> {
        // A new map is all zeros, which is shut.
        if self.rows.read(HOST_GATE).made == 0 {
            self.is_new = true;
            for slot in (0..GATES).rev() {
                self.rows
                    .write(slot, GateRow { valid_ns: GATE_NOT_ARMED, made: u64::from(slot == HOST_GATE), ..GateRow::default() });
            }
        }
        for gate in self.groups().iter().filter(|gate| gate.peek() != GateState::Shut) {
            gate.forget_cut_off(); // a version that knew of no process let the next one pass
        }
        // What a gate of a cgroup that is gone has come to says nothing any more.
        for slot in (1..GATES).filter(|slot| is_gone(self.rows.read(*slot).cgroup)) {
            self.retire(slot);
        }
        if let Some(old) = self.pinned(GROUP_PROGRAM)? {
            if old.tag == self.group.tag {
                self.group = old;
            } else {
                self.former_group = Some(old);
                for gate in self.groups() {
                    let id = gate.cgroup().unwrap_or(0);
                    if let Ok(cgroup) = cgroup_by_id(id) {
                        self.attach_group(&cgroup, &gate).map_err(|source| FenceError::Cgroup {
                            dir: PathBuf::from(format!("(id {id})")),
                            what: "replacing the program of a former owner",
                            source,
                        })?;
                    }
                }
                self.unpin(GROUP_PROGRAM)?;
            }
        }
        FORMER_MAPS.into_iter().try_for_each(|name| self.unpin(name))?;
        if let Some(old) = self.pinned(HOST_PROGRAM)? {
            if old.tag == self.host.tag {
                self.host = old;
            } else {
                // Interfaces keep the old one, with the same gate, until they are guarded again.
                self.former_host = Some(old);
                self.unpin(HOST_PROGRAM)?;
            }
        }
        self.pin(GROUP_PROGRAM, &self.group)?;
        self.pin(HOST_PROGRAM, &self.host)
    }

    /// The host's gate.
    #[must_use]
    pub fn host(&self) -> Gate {
        Gate { rows: Arc::clone(&self.rows), slot: HOST_GATE }
    }

    /// The gates of cgroups, a former owner's included.
    #[must_use]
    pub fn groups(&self) -> Vec<Gate> {
        let used = (1..GATES).filter(|slot| self.rows.read(*slot).cgroup != 0);
        used.map(|slot| Gate { rows: Arc::clone(&self.rows), slot }).collect()
    }

    /// What a gate counted, on all processors.
    #[must_use]
    pub fn counts(&self, gate: &Gate) -> GateCounts {
        let key = (gate.slot as u32).to_ne_bytes();
        let mut counts = GateCounts {
            first_blocked_ns: Some(self.rows.read(gate.slot).first_blocked_ns).filter(|ns| *ns != 0),
            ..GateCounts::default()
        };
        for value in self.counts.lookup_percpu(&key, MapFlags::ANY).ok().flatten().unwrap_or_default() {
            counts.passed += word(&value);
            counts.blocked += value.get(8..).map_or(0, word);
        }
        counts
    }

    /// Looks for a place in clsact only, as on a kernel before 6.6. For tests of that.
    #[doc(hidden)]
    pub fn do_without_tcx(&mut self) {
        self.tcx = false;
    }

    /// Puts the host's gate on an interface of the calling thread's network namespace: everything that leaves by it asks the gate, before programs of others where
    /// the kernel has tcx (`egress`). Returns whether a program of a former owner was there, which is replaced without a gap. If that one obeyed another
    /// gate than ours (its pins were lost), ours is closed: it may have been fenced. Programs of others stay, and decide on what passes.
    ///
    /// # Errors
    /// [`FenceError::Loopback`], [`FenceError::Interface`].
    pub fn guard_interface(&mut self, ifindex: u32) -> Result<bool, FenceError> {
        let fail = |what| move |source| FenceError::Interface { ifindex, what, source };
        if interface_flags(ifindex).map_err(fail("looking it up"))? & libc::IFF_LOOPBACK != 0 {
            return Err(FenceError::Loopback { ifindex });
        }
        let filter = egress::clsact(ifindex);
        if filter.is_some_and(|id| !self.is_ours(id)) {
            self.shut_for_another(ifindex); // first, so that nothing passes in between
        }
        let in_tcx = self.guard_by_tcx(ifindex).map_err(fail("attaching to its tcx egress"))?;
        let before = filter.is_some() || in_tcx == Some(true);
        if in_tcx.is_none() {
            egress::make_clsact(ifindex).map_err(fail("making room for its filter (clsact)"))?;
            egress::attach_clsact(ifindex, self.host.fd.as_fd()).map_err(fail(
                "adding its filter (`tc filter show dev … egress`: is priority 1 taken by another kind, or an ingress qdisc there?)",
            ))?;
        } else if filter.is_some() {
            egress::detach_clsact(ifindex).map_err(fail("removing the filter of a former owner"))?;
        }
        if !self.interfaces.contains(&ifindex) {
            self.interfaces.push(ifindex);
        }
        Ok(before)
    }

    /// The same by tcx; says whether a program of a former owner was there. `None`: by clsact, because there is no tcx.
    fn guard_by_tcx(&self, ifindex: u32) -> io::Result<Option<bool>> {
        let Some(ids) = (if self.tcx { egress::tcx(ifindex)? } else { None }) else { return Ok(None) };
        let is_there = ids.contains(&self.host.id);
        let (mut ours, mut lost) = (Vec::new(), Vec::new());
        for id in ids.into_iter().filter(|id| *id != self.host.id) {
            match self.whose(id, HOST_PROGRAM)? {
                Theirs::Ours(program) => ours.push(program),
                Theirs::LostFences(program) => lost.push(program),
                Theirs::Hidden if !is_there => tracing::warn!(
                    ifindex,
                    "a program at its tcx egress cannot be looked at without CAP_SYS_ADMIN: if a fence left it whose pins are lost, it may let nothing pass \
                     (`fided --remove-fence`)"
                ),
                Theirs::Others | Theirs::Hidden => {}
            }
        }
        if !lost.is_empty() {
            self.shut_for_another(ifindex); // first, so that nothing passes in between
        }
        ours.append(&mut lost);
        let before = is_there || !ours.is_empty();
        let mut rest = ours.iter();
        if !is_there {
            let host = self.host.fd.as_fd();
            match egress::attach_tcx(ifindex, host, rest.next().map(AsFd::as_fd)) {
                Err(e) if before && e.raw_os_error() == Some(libc::ENOENT) => egress::attach_tcx(ifindex, host, None)?, // it has gone meanwhile
                attached => attached?,
            }
        }
        for old in rest {
            match egress::detach_tcx(ifindex, old.as_fd()) {
                Err(e) if e.raw_os_error() != Some(libc::ENOENT) => return Err(e),
                _ => {}
            }
        }
        Ok(Some(before))
    }

    fn shut_for_another(&self, ifindex: u32) {
        tracing::warn!(ifindex, "the interface obeyed another gate than this fence's: closed until it is recovered");
        self.host().shut();
    }

    fn is_ours(&self, id: u32) -> bool {
        // Without CAP_SYS_ADMIN, the careful answer.
        id == self.host.id || matches!(self.whose(id, HOST_PROGRAM), Ok(Theirs::Ours(_)))
    }

    /// Whose a program is, which is ours if it has this name.
    fn whose(&self, id: u32, name: &str) -> io::Result<Theirs> {
        let former = [&self.former_host, &self.former_group].into_iter().flatten().find(|former| former.id == id);
        if let Some(former) = former {
            return Ok(Theirs::Ours(former.fd.try_clone()?));
        }
        let program = match lost::program(id) {
            Err(e) => match e.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => return Ok(Theirs::Hidden),
                Some(libc::ENOENT) => return Ok(Theirs::Others), // gone meanwhile
                _ => return Err(e),
            },
            Ok(program) => program,
        };
        let info = program_info(&program, libbpf_sys::bpf_prog_info::default())?;
        let gates = self.counts.info().map_or(0, |info| info.info.id);
        Ok(if !is_named(&info, name) {
            Theirs::Others
        } else if lost::maps_of(&program).contains(&gates) {
            Theirs::Ours(program)
        } else if name == GROUP_PROGRAM && lost::is_kept(&program) {
            Theirs::Others // packets must pass both
        } else if !lost::may_block(&program) {
            Theirs::Ours(program)
        } else {
            Theirs::LostFences(program)
        })
    }

    /// Whether packets that leave by an interface are put to the host's gate now. Where that cannot be found out they may be.
    #[must_use]
    pub fn guards_interface(&self, ifindex: u32) -> bool {
        let in_tcx = if self.tcx { egress::tcx(ifindex) } else { Ok(None) };
        in_tcx.map_or(true, |ids| ids.is_some_and(|ids| ids.contains(&self.host.id)))
            || egress::clsact(ifindex) == Some(self.host.id)
    }

    /// Whether an interface obeys the host's gate since a former owner's life. Then it is one of ours, to be released with the others.
    pub fn adopt_interface(&mut self, ifindex: u32) -> bool {
        let in_tcx = if self.tcx { egress::tcx(ifindex).ok().flatten() } else { None };
        let ours = in_tcx.unwrap_or_default().into_iter().chain(egress::clsact(ifindex)).any(|id| self.is_ours(id));
        if ours && !self.interfaces.contains(&ifindex) {
            self.interfaces.push(ifindex);
        }
        ours
    }

    /// Takes the host's gate off an interface. Nothing there is as good.
    ///
    /// # Errors
    /// [`FenceError::Interface`].
    pub fn release_interface(&mut self, ifindex: u32) -> Result<(), FenceError> {
        self.interfaces.retain(|i| *i != ifindex);
        let nothing_there = |e: &io::Error| {
            // No such program or filter, no clsact, no tcx, no such interface.
            matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::ENODEV))
        };
        let mut outcomes = vec![egress::detach_tcx(ifindex, self.host.fd.as_fd()), egress::detach_clsact(ifindex)];
        // Those of other versions, which obey the same gate.
        for id in egress::tcx(ifindex).ok().flatten().unwrap_or_default() {
            if let Ok(Theirs::Ours(former)) = self.whose(id, HOST_PROGRAM) {
                outcomes.push(egress::detach_tcx(ifindex, former.as_fd()));
            }
        }
        for outcome in outcomes {
            match outcome {
                Err(e) if !nothing_there(&e) => {
                    return Err(FenceError::Interface { ifindex, what: "removing its program", source: e });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives a cgroup (of version 2, by its directory) a gate of its own, not armed; or the gate it has, as it is. Where a cgroup below
    /// another one has a gate too, packets must pass both.
    ///
    /// # Errors
    /// [`FenceError::Cgroup`], [`FenceError::Full`].
    pub fn guard_cgroup(&mut self, dir: &Path) -> Result<Gate, FenceError> {
        let fail = |what| move |source| FenceError::Cgroup { dir: dir.to_path_buf(), what, source };
        let cgroup = File::open(dir).map_err(fail("opening it"))?;
        if !is_filesystem(&cgroup, libc::CGROUP2_SUPER_MAGIC) {
            return Err(fail("not a directory of cgroup version 2")(io::ErrorKind::InvalidInput.into()));
        }
        let id = cgroup.metadata().map_err(fail("reading its id"))?.ino();
        let known = (1..GATES).find(|slot| self.rows.read(*slot).cgroup == id);
        let slot = known.or_else(|| self.free_slot()).ok_or(FenceError::Full)?;
        if known.is_none() {
            self.retire(slot);
            self.rows.write(slot, GateRow { valid_ns: GATE_NOT_ARMED, cgroup: id, ..GateRow::default() });
        }
        let gate = Gate { rows: Arc::clone(&self.rows), slot };
        self.attach_group(&cgroup, &gate).map_err(|source| {
            if known.is_none() {
                self.rows.write(slot, GateRow { valid_ns: GATE_NOT_ARMED, ..GateRow::default() });
            }
            fail("attaching the gate (a cgroup above it may hold an egress program that allows no other)")(source)
        })?;
        let told = self.gate_of.update(&id.to_ne_bytes(), &(slot as u64).to_ne_bytes(), MapFlags::ANY);
        told.map_err(|e| fail("telling its gate")(io::Error::other(e)))?;
        Ok(gate)
    }

    /// Whether packets of a cgroup are put to its gate now. Where that cannot be found out they may be.
    #[must_use]
    pub fn guards_cgroup(&self, dir: &Path) -> bool {
        File::open(dir).and_then(|cgroup| programs_of(&cgroup)).map_or(true, |ids| ids.contains(&self.group.id))
    }

    /// Attaches the program to the cgroup of a gate, in the place of those of former owners. If one of these obeyed other gates, which nobody keeps any more,
    /// this one is closed first.
    fn attach_group(&self, cgroup: &File, gate: &Gate) -> io::Result<()> {
        let ids = programs_of(cgroup)?;
        let mut ours = Vec::new();
        for id in ids.iter().copied().filter(|id| *id != self.group.id) {
            match self.whose(id, GROUP_PROGRAM)? {
                Theirs::Ours(program) => ours.push(program),
                Theirs::LostFences(program) => {
                    tracing::warn!(
                        cgroup = gate.cgroup(),
                        "the cgroup obeyed another gate than this fence's: closed until it is recovered"
                    );
                    gate.shut();
                    ours.push(program);
                }
                Theirs::Hidden if self.is_new => tracing::info!(
                    cgroup = gate.cgroup(),
                    "an egress program of the cgroup cannot be looked at without CAP_SYS_ADMIN: if a fence left it whose pins are lost, it may let nothing pass \
                     (`fided --remove-fence`)"
                ),
                Theirs::Others | Theirs::Hidden => {}
            }
        }
        let mut rest = ours.iter();
        if !ids.contains(&self.group.id) {
            let old = rest.next().map(AsFd::as_fd);
            match attach(&self.group, cgroup, old) {
                Err(e) if old.is_some() && e.raw_os_error() == Some(libc::ENOENT) => attach(&self.group, cgroup, None)?, // it has gone meanwhile
                attached => attached?,
            }
        }
        rest.try_for_each(|old| detach_from_cgroup(old.as_fd(), cgroup))
    }

    /// A slot that nobody uses, or whose cgroup is gone.
    fn free_slot(&self) -> Option<usize> {
        let owner = |slot: usize| self.rows.read(slot).cgroup;
        (1..GATES).find(|slot| owner(*slot) == 0).or_else(|| (1..GATES).find(|slot| is_gone(owner(*slot))))
    }

    /// Empties a slot. The cgroup that had it, if any, is gone, but sockets that were made in it may live on (of processes that moved away; what a dead
    /// one left), and the program still runs for them: they must not ask the gate of the slot's next owner.
    fn retire(&self, slot: usize) {
        let GateRow { cgroup, valid_ns, .. } = self.rows.read(slot);
        if cgroup != 0 {
            let rest = if valid_ns == GATE_NOT_ARMED { NO_GATE } else { BLOCKED };
            let _ = self.gate_of.update(&cgroup.to_ne_bytes(), &rest.to_ne_bytes(), MapFlags::ANY); // gone with its last socket
            self.forget_below(cgroup);
        }
        self.rows.write(slot, GateRow { valid_ns: GATE_NOT_ARMED, ..GateRow::default() });
        let zeros = libbpf_rs::num_possible_cpus().map(|n| vec![vec![0u8; 16]; n]);
        let cleared = zeros.and_then(|z| self.counts.update_percpu(&(slot as u32).to_ne_bytes(), &z, MapFlags::ANY));
        if let Err(e) = cleared {
            tracing::warn!("the counts of a gate go on from those of another cgroup: {e}");
        }
    }

    /// The cgroups that were ever told to be below that of this gate ([`Fence::note_below`]), by this owner or a former one.
    #[must_use]
    pub fn below(&self, gate: &Gate) -> BTreeSet<u64> {
        gate.cgroup().map_or_else(BTreeSet::new, |id| self.below_of(id).collect())
    }

    fn below_of(&self, id: u64) -> impl Iterator<Item = u64> {
        self.below.keys().filter(move |key| word(key) == id).map(|key| key.get(8..).map_or(0, word))
    }

    /// Remembers a cgroup below that of a gate: what its sockets still hold when it is removed waits behind this gate. For as long as the gate is there.
    ///
    /// # Errors
    /// When no more can be remembered.
    pub fn note_below(&self, gate: &Gate, cgroup: u64) -> io::Result<()> {
        let Some(id) = gate.cgroup() else { return Ok(()) };
        let noted = self.below.update(&below(id, cgroup), &[0; 8], MapFlags::ANY);
        noted.map_err(|e| match self.below.max_entries() {
            most if self.below.keys().count() >= most as usize => {
                io::Error::other(format!("all {most} that can be remembered are"))
            }
            _ => io::Error::other(e),
        })
    }

    /// The opposite.
    pub fn forget(&self, gate: &Gate, cgroup: u64) {
        let _ = self.below.delete(&below(gate.cgroup().unwrap_or(0), cgroup)); // not there is as good
    }

    fn forget_below(&self, id: u64) {
        let gone: Vec<u64> = self.below_of(id).collect();
        gone.into_iter().for_each(|cgroup| drop(self.below.delete(&below(id, cgroup))));
    }

    /// Takes a cgroup's gate away. None there is as good.
    ///
    /// # Errors
    /// [`FenceError::Cgroup`].
    pub fn release_cgroup(&mut self, dir: &Path) -> Result<(), FenceError> {
        let fail = |what| move |source| FenceError::Cgroup { dir: dir.to_path_buf(), what, source };
        let cgroup = File::open(dir).map_err(fail("opening it"))?;
        let id = cgroup.metadata().map_err(fail("reading its id"))?.ino();
        self.detach(&cgroup, id).map_err(fail("detaching the gate"))
    }

    fn detach(&self, cgroup: &File, id: u64) -> io::Result<()> {
        detach_from_cgroup(self.group.fd.as_fd(), cgroup)?;
        if let Some(slot) = (1..GATES).find(|slot| self.rows.read(*slot).cgroup == id) {
            // The storage outlives the attachment: the next one must not begin with this gate.
            let _ = self.gate_of.update(&id.to_ne_bytes(), &NO_GATE.to_ne_bytes(), MapFlags::ANY); // gone with its cgroup
            self.forget_below(id);
            self.rows.write(slot, GateRow { valid_ns: GATE_NOT_ARMED, ..GateRow::default() });
        }
        Ok(())
    }

    /// Takes everything away: the gates of all cgroups, a former owner's included, those of the interfaces that this owner guarded, and
    /// what is pinned. Called in the network namespace of these interfaces. Everybody may send from then on.
    ///
    /// # Errors
    /// The first failure; the rest was removed all the same.
    pub fn remove(self) -> Result<(), FenceError> {
        self.remove_but(|_| false)
    }

    /// The same but for these gates of cgroups: with one of them, what is pinned stays, too, and the host's gate, which guards nothing any more, is disarmed.
    ///
    /// # Errors
    /// The first failure; the rest was removed all the same.
    pub fn remove_but(mut self, stays: impl Fn(&Gate) -> bool) -> Result<(), FenceError> {
        let mut outcome = Ok(());
        let (stay, go): (Vec<Gate>, Vec<Gate>) = self.groups().into_iter().partition(stays);
        let staying: Vec<u64> = stay.iter().filter_map(Gate::cgroup).collect();
        // What cannot be detached below (an interface that is in another namespace by now, a cgroup that cannot be opened) must not be mute for ever.
        self.host().lift();
        go.iter().for_each(Gate::lift);
        for ifindex in std::mem::take(&mut self.interfaces) {
            outcome = outcome.and(self.release_interface(ifindex));
        }
        for id in (1..GATES).map(|slot| self.rows.read(slot).cgroup).filter(|id| *id != 0 && !staying.contains(id)) {
            if let Ok(cgroup) = cgroup_by_id(id) {
                outcome = outcome.and(self.detach(&cgroup, id).map_err(|source| FenceError::Cgroup {
                    dir: PathBuf::from(format!("(id {id})")),
                    what: "detaching the gate",
                    source,
                }));
            }
        }
        if !staying.is_empty() {
            return outcome;
        }
        for name in MAPS.into_iter().chain([GROUP_PROGRAM, HOST_PROGRAM]) {
            outcome = outcome.and(self.unpin(name));
        }
        outcome.and(fs::remove_dir(&self.dir).map_err(|source| file_error(&self.dir, source)))
    }

    fn pinned(&self, name: &str) -> Result<Option<Program>, FenceError> {
        let path = self.dir.join(name);
        // SAFETY: a C string that lives across the call.
        let fd = unsafe { libbpf_sys::bpf_obj_get(c_path(&path).as_ptr()) };
        if fd == -libc::ENOENT {
            return Ok(None);
        }
        let found = if fd < 0 {
            Err(io::Error::from_raw_os_error(-fd))
        } else {
            // SAFETY: fresh, and nobody else's.
            Program::of(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        found.map(Some).map_err(|source| FenceError::File { path, source })
    }

    fn pin(&self, name: &str, program: &Program) -> Result<(), FenceError> {
        let path = self.dir.join(name);
        // SAFETY: an open descriptor, and a C string that lives across the call.
        match unsafe { libbpf_sys::bpf_obj_pin(program.fd.as_raw_fd(), c_path(&path).as_ptr()) } {
            0 => Ok(()),
            e if e == -libc::EEXIST => Ok(()),
            e => Err(FenceError::File { path, source: io::Error::from_raw_os_error(-e) }),
        }
    }

    fn unpin(&self, name: &str) -> Result<(), FenceError> {
        let path = self.dir.join(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(FenceError::File { path, source }),
            _ => Ok(()),
        }
    }
}

impl Program {
    fn of(fd: OwnedFd) -> io::Result<Self> {
        let info = program_info(&fd, libbpf_sys::bpf_prog_info::default())?;
        Ok(Self { fd, id: info.id, tag: info.tag })
    }
}

fn program(object: &Object, name: &str) -> io::Result<Program> {
    let found = object.progs().find(|p| p.name() == name).expect("the object has the programs it was built with");
    // SAFETY: the program is the object's, which is loaded and lives; its descriptor is duplicated before that ends.
    let fd = unsafe { libbpf_sys::bpf_program__fd(found.as_libbpf_object().as_ptr()) };
    // SAFETY: an open descriptor, as said.
    Program::of(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?)
}

/// Whether it is one of ours, by its name, of which the kernel keeps fifteen bytes.
pub(crate) fn is_named(info: &libbpf_sys::bpf_prog_info, name: &str) -> bool {
    let kept = &name.as_bytes()[..name.len().min(info.name.len() - 1)];
    info.name.map(|c| c as u8).starts_with(kept)
}

pub(crate) fn program_info(fd: &OwnedFd, mut info: libbpf_sys::bpf_prog_info) -> io::Result<libbpf_sys::bpf_prog_info> {
    let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: info and len live across the call, and so do the arrays that the caller put into info.
    match unsafe { libbpf_sys::bpf_obj_get_info_by_fd(fd.as_raw_fd(), (&raw mut info).cast(), &raw mut len) } {
        0 => Ok(info),
        e => Err(io::Error::from_raw_os_error(-e)),
    }
}

fn file_error(path: &Path, source: io::Error) -> FenceError {
    FenceError::File { path: path.to_path_buf(), source }
}

/// The fence's directory, locked while we live; the kernel unlocks it when we do not.
pub(crate) struct Owner(File);

impl Drop for Owner {
    /// The lock belongs to the open file, which a child that is about to execute something has, too: closing ours alone would not end it.
    fn drop(&mut self) {
        // SAFETY: an open descriptor.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// Removes the pins of a fence that cannot be opened, with their directory: by their names, and only from a BPF file system.
///
/// # Errors
/// When the directory is not the fence's, or something is left in it.
pub fn remove_pins(dir: &Path) -> Result<(), FenceError> {
    let directory = open_directory(dir)?;
    if !is_filesystem(&directory, libc::BPF_FS_MAGIC) {
        return Err(FenceError::NotBpffs { dir: dir.to_path_buf() });
    }
    check_owner(dir, &directory)?;
    for name in MAPS.into_iter().chain(FORMER_MAPS).chain([GROUP_PROGRAM, HOST_PROGRAM]) {
        let path = dir.join(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(FenceError::File { path, source }),
            _ => {}
        }
    }
    fs::remove_dir(dir).map_err(|source| file_error(dir, source))
}

fn open_directory(dir: &Path) -> Result<File, FenceError> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    fs::OpenOptions::new().read(true).custom_flags(flags).open(dir).map_err(|source| file_error(dir, source))
}

/// Whoever may write the directory can remove the pins, and with them the fence: a BPF file system is often one in which everybody may make directories.
pub(crate) fn check_owner(dir: &Path, directory: &File) -> Result<(), FenceError> {
    let meta = directory.metadata().map_err(|source| file_error(dir, source))?;
    // SAFETY: geteuid takes nothing and cannot fail.
    let trusted = [0, unsafe { libc::geteuid() }];
    if trusted.contains(&meta.uid()) && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    let what = format!(
        "somebody else may change it (uid {}, mode {:04o}); see whose it is, remove it, or name another directory for the pins",
        meta.uid(),
        meta.mode() & 0o7777
    );
    Err(file_error(dir, io::Error::new(io::ErrorKind::PermissionDenied, what)))
}

/// Makes the directory if need be, and takes its lock.
pub(crate) fn own(dir: &Path) -> Result<Owner, FenceError> {
    let exists = dir.ancestors().find_map(|d| fs::symlink_metadata(d).is_ok().then(|| open_directory(d)));
    if !exists.is_some_and(|d| d.is_ok_and(|d| is_filesystem(&d, libc::BPF_FS_MAGIC))) {
        return Err(FenceError::NotBpffs { dir: dir.to_path_buf() });
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|source| file_error(dir, source))?;
    let owner = open_directory(dir)?;
    check_owner(dir, &owner)?;
    // SAFETY: an open descriptor.
    if unsafe { libc::flock(owner.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        return Err(match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::WouldBlock => FenceError::Owned { dir: dir.to_path_buf() },
            source => file_error(dir, source),
        });
    }
    Ok(Owner(owner))
}

fn is_filesystem(file: &File, magic: libc::c_long) -> bool {
    // SAFETY: statfs is plain old data, for which zero is a value.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and a structure that lives across the call.
    unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut found) == 0 && found.f_type as libc::c_long == magic }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

fn interface_flags(ifindex: u32) -> io::Result<i32> {
    // SAFETY: ifreq is plain old data, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the name has room for IF_NAMESIZE bytes; the descriptor is checked and owned; the ioctl reads the name and writes the flags.
    unsafe {
        if libc::if_indextoname(ifindex, request.ifr_name.as_mut_ptr()).is_null() {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        if libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(i32::from(request.ifr_ifru.ifru_flags))
    }
}

/// Ids of the egress programs attached to a cgroup itself.
pub(crate) fn programs_of(cgroup: &File) -> io::Result<Vec<u32>> {
    let (mut ids, mut n, mut flags) = (vec![0u32; 64], 64u32, 0u32);
    // SAFETY: the arrays and numbers live across the call; n says how many ids fit.
    let e = unsafe {
        libbpf_sys::bpf_prog_query(
            cgroup.as_raw_fd(),
            libbpf_sys::BPF_CGROUP_INET_EGRESS,
            0,
            &raw mut flags,
            ids.as_mut_ptr(),
            &raw mut n,
        )
    };
    if e != 0 && e != -libc::ENOSPC {
        return Err(io::Error::from_raw_os_error(-e));
    }
    ids.truncate(n as usize);
    Ok(ids)
}

/// Not there is as good.
pub(crate) fn detach_from_cgroup(program: BorrowedFd<'_>, cgroup: &File) -> io::Result<()> {
    // SAFETY: two open descriptors.
    match unsafe { libbpf_sys::bpf_prog_detach2(program.as_raw_fd(), cgroup.as_raw_fd(), libbpf_sys::BPF_CGROUP_INET_EGRESS) } {
        0 => Ok(()),
        e if e == -libc::ENOENT => Ok(()),
        e => Err(io::Error::from_raw_os_error(-e)),
    }
}

/// A key of what is below a gate: `struct fide_below`.
fn below(gate: u64, cgroup: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&gate.to_ne_bytes());
    key[8..].copy_from_slice(&cgroup.to_ne_bytes());
    key
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b))
}

/// Beside others, or in the place of one of ours.
fn attach(program: &Program, cgroup: &File, instead_of: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut opts = libbpf_sys::bpf_prog_attach_opts {
        sz: size_of::<libbpf_sys::bpf_prog_attach_opts>() as libbpf_sys::size_t,
        flags: libbpf_sys::BPF_F_ALLOW_MULTI,
        ..Default::default()
    };
    if let Some(old) = instead_of {
        opts.flags |= libbpf_sys::BPF_F_REPLACE;
        opts.__bindgen_anon_1.replace_prog_fd = old.as_raw_fd();
    }
    // SAFETY: open descriptors; the options live across the call.
    let e = unsafe {
        libbpf_sys::bpf_prog_attach_opts(
            program.fd.as_raw_fd(),
            cgroup.as_raw_fd(),
            libbpf_sys::BPF_CGROUP_INET_EGRESS,
            &raw const opts,
        )
    };
    if e == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-e)) }
}

/// Whether no cgroup has this id any more. Where that cannot be found out it may have.
fn is_gone(id: u64) -> bool {
    id != 0 && cgroup_by_id(id).is_err_and(|e| matches!(e.raw_os_error(), Some(libc::ESTALE | libc::ENOENT)))
}

/// Where cgroups of version 2 are mounted.
pub(crate) fn cgroup_root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut words = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    words.find(|w| w.get(2) == Some(&"cgroup2")).map(|w| PathBuf::from(w[1]))
}

/// Opens a cgroup by its id, as the kernel's file handles allow (CAP_DAC_READ_SEARCH).
fn cgroup_by_id(id: u64) -> io::Result<File> {
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        id: [u8; 8],
    }
    const FILEID_KERNFS: i32 = 0xfe;
    let root = File::open(cgroup_root().ok_or(io::ErrorKind::NotFound)?)?;
    let mut handle = Handle { bytes: 8, kind: FILEID_KERNFS, id: id.to_ne_bytes() };
    // SAFETY: a file_handle with its eight bytes, as `bytes` says, that lives across the call.
    let fd = unsafe {
        libc::open_by_handle_at(root.as_raw_fd(), (&raw mut handle).cast(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fresh, and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    fn gate() -> Gate {
        Gate::of_no_program(77)
    }

    const LONG: u64 = 3_600_000_000_000;

    #[test]
    fn t_valid_moves_on_and_never_back() {
        let (g, now) = (gate(), monotonic_ns());
        assert_eq!(g.extend(now, now + LONG), Err(Refused(GateState::NotArmed)));
        assert_eq!(g.recover(now + LONG), Err(Refused(GateState::NotArmed)));
        g.arm(now + LONG).unwrap();
        assert_eq!(g.arm(now + 2 * LONG), Err(Refused(GateState::Open { valid_ns: now + LONG })));
        g.extend(now, now + 2 * LONG).unwrap();
        g.extend(now, now + LONG).unwrap();
        g.extend(now, 0).unwrap();
        assert_eq!(g.check(), GateState::Open { valid_ns: now + 2 * LONG });
        assert_eq!(g.cgroup(), Some(77));
    }

    #[test]
    fn a_heartbeat_known_too_late_closes_the_gate_and_only_recovery_opens_it() {
        let (g, now) = (gate(), monotonic_ns());
        g.arm(now + LONG).unwrap();
        assert!(matches!(g.extend(now + LONG + 1, now + 2 * LONG), Err(Refused(GateState::Fenced { .. }))));
        assert!(matches!(g.extend(now, now + 2 * LONG), Err(Refused(GateState::Fenced { .. }))));
        assert!(g.disarm().is_err() && g.arm(now + LONG).is_err());
        g.recover(now + LONG).unwrap();
        assert_eq!(g.check(), GateState::Open { valid_ns: now + LONG });
        g.extend(now + LONG, now + 2 * LONG).unwrap(); // at t_valid itself is in time
        g.disarm().unwrap();
        g.disarm().unwrap();
        assert_eq!(g.check(), GateState::NotArmed);
    }

    #[test]
    fn whoever_finds_a_gate_run_out_closes_it() {
        let g = gate();
        g.arm(monotonic_ns().saturating_sub(1)).unwrap();
        let GateState::Fenced { since_ns } = g.check() else { panic!("{g:?}") };
        assert_eq!(g.check(), GateState::Fenced { since_ns });
        g.shut();
        assert_eq!(g.check(), GateState::Shut);
        assert_eq!(g.extend(0, u64::MAX), Err(Refused(GateState::Shut)));
    }

    #[test]
    fn a_gate_that_is_shut_apart_says_so_until_it_is_shut_or_recovered() {
        let g = gate();
        assert_eq!(g.shut_for(), None);
        for why in [Apart::Ended, Apart::NotBegun] {
            g.shut_apart(why);
            assert_eq!((g.shut_for(), g.check()), (Some(why), GateState::Shut));
            g.shut();
            assert_eq!(g.shut_for(), None);
            g.shut_apart(why);
            g.recover(monotonic_ns() + LONG).unwrap();
            assert_eq!(g.shut_for(), None);
            g.shut();
            assert_eq!(g.shut_for(), None);
        }
    }

    #[test]
    fn no_time_is_taken_for_a_word_with_a_meaning() {
        for ns in [0, 1, u64::MAX] {
            let g = gate();
            g.arm(ns).unwrap();
            assert!(!matches!(g.state_of(g.word().load(Ordering::SeqCst)), GateState::NotArmed | GateState::Shut));
            assert_ne!(g.word().load(Ordering::SeqCst), GATE_FENCED);
        }
    }

    /// Packets as the kernel program judges them, against extensions that come at any moment: once one was blocked, no later one passes.
    #[test]
    fn an_extension_is_before_the_first_blocked_packet_or_refused() {
        for _ in 0..300 {
            let g = gate();
            let start = monotonic_ns();
            g.arm(start + 20_000).unwrap();
            let over = AtomicBool::new(false);
            thread::scope(|s| {
                for _ in 0..2 {
                    s.spawn(|| {
                        while !over.load(Ordering::SeqCst) {
                            let closed_before = g.word().load(Ordering::SeqCst) == GATE_FENCED;
                            let open = matches!(g.check(), GateState::Open { .. });
                            assert!(!(closed_before && open));
                            if !open {
                                return;
                            }
                        }
                    });
                }
                // The completion was known in time; the call may come late.
                let extended = g.extend(start, start + LONG);
                if extended.is_err() {
                    assert!(matches!(g.check(), GateState::Fenced { .. }));
                } else {
                    assert_eq!(g.check(), GateState::Open { valid_ns: start + LONG });
                }
                over.store(true, Ordering::SeqCst);
            });
        }
    }
}
