//! The start watch (`src/bpf/start.h`): programs that are started and sockets that begin to listen, as far as somebody waits for them.

use crate::layout::{self, START_NAME};
use crate::memory::MappedArray;
use crate::ring::Ring;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::BTreeSet;
use std::os::fd::RawFd;

/// Bytes of the ring.
pub(crate) const STARTED_BYTES: u32 = 64 * 1024;

/// What began on this host, or ended so that something else goes on in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// This process has begun to run a program whose name, or whose cgroup's name, begins like one that is waited for.
    Program(u32),
    /// This process listens on a TCP port that is waited for, in some network namespace.
    Listens(u32, u16),
    /// The watched process of this number ended cleanly before it had settled; nobody was told.
    HandedOver {
        /// Its pid.
        pid: u32,
        /// Its number.
        app: u32,
    },
    /// The watched process of this number runs another program from now on (`exec`).
    Exec {
        /// Its pid.
        pid: u32,
        /// Its number.
        app: u32,
    },
}

impl Start {
    fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (kind, pid, what) = (word(0)?, word(4)?, word(8)?);
        match kind {
            1 => Some(Start::Program(pid)),
            2 => Some(Start::Listens(pid, u16::try_from(what).ok()?)),
            3 => Some(Start::HandedOver { pid, app: what }),
            4 => Some(Start::Exec { pid, app: what }),
            _ => None,
        }
    }
}

/// What is waited for. Names count as far as [`START_NAME`] - 1 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Names of programs, and of cgroups.
    pub names: BTreeSet<String>,
    /// TCP ports.
    pub ports: BTreeSet<u16>,
}

/// Reads what the start watch tells, and says what it is to tell. For a thread of its own.
pub struct StartWatch {
    ring: Ring,
    names: MapHandle,
    ports: MapHandle,
    setup: MappedArray<layout::Setup>,
    lost_seen: u64,
    wanted: Wanted,
}

fn key(name: &str) -> [u8; START_NAME] {
    let mut key = [0; START_NAME];
    let len = name.len().min(START_NAME - 1);
    key[..len].copy_from_slice(&name.as_bytes()[..len]);
    key
}

impl StartWatch {
    pub(crate) fn new(ring: Ring, names: MapHandle, ports: MapHandle, setup: MappedArray<layout::Setup>) -> Self {
        Self { ring, names, ports, setup, lost_seen: 0, wanted: Wanted::default() }
    }

    /// Readable when something is told.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.ring.raw_fd()
    }

    /// From now on these are told of.
    ///
    /// # Errors
    /// The first that a map has no room for; the others are told of.
    pub fn want(&mut self, wanted: Wanted) -> Result<(), libbpf_rs::Error> {
        let mut result = Ok(());
        let keys = |wanted: &Wanted| wanted.names.iter().map(|name| key(name)).collect::<BTreeSet<_>>();
        let (before, after) = (keys(&self.wanted), keys(&wanted));
        for gone in before.difference(&after) {
            let _ = self.names.delete(gone); // absent is as good
        }
        for new in after.difference(&before) {
            result = result.and(self.names.update(new, &[0; 4], MapFlags::ANY));
        }
        for gone in self.wanted.ports.difference(&wanted.ports) {
            let _ = self.ports.delete(&u32::from(*gone).to_ne_bytes());
        }
        for new in wanted.ports.difference(&self.wanted.ports) {
            result = result.and(self.ports.update(&u32::from(*new).to_ne_bytes(), &[0; 4], MapFlags::ANY));
        }
        self.wanted = wanted;
        result
    }

    /// The next that was told.
    pub fn poll(&mut self) -> Option<Start> {
        loop {
            let mut start = None;
            if !self.ring.take_one(|bytes| start = Start::read(bytes)) {
                return None;
            }
            if start.is_some() {
                return start;
            }
        }
    }

    /// Whether something was not told since the last call, because the ring was full.
    pub fn has_lost(&mut self) -> bool {
        // SAFETY: entry 0 exists; an aligned u64 of the shared struct.
        let lost = unsafe { (&raw const (*self.setup.at(0)).starts_lost).read_volatile() };
        std::mem::replace(&mut self.lost_seen, lost) != lost
    }
}
