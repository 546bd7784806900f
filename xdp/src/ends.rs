//! How watched processes ended while no agent ran.
//!
//! Two small programs (`bpf/ends.bpf.c`) are pinned on a BPF file system, and with them the table of what is watched and that of the last ends. They outlive
//! the agent that loaded them; the next one looks there for each process that it was to watch and that is gone. All agents of a machine share one pair.

use crate::fence::{check_owner, own};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ObjectBuilder};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ends.bpf.o"));
/// Of the pinned programs and maps. Raised with each change of `bpf/ends.bpf.c`.
const VERSION: u32 = 1;
const MAPS: [&str; 2] = ["kept_watches", "kept_ends"];
const PROGRAMS: [&str; 2] = ["fide_kept_signal", "fide_kept_exit"];
/// Another agent that pins them takes milliseconds.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// How and when a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Killed by a signal; otherwise it exited.
    pub is_killed: bool,
    /// The kernel ended it for want of memory.
    pub is_out_of_memory: bool,
    /// The signal, or the exit status.
    pub code: i32,
    /// When, CLOCK_MONOTONIC.
    pub event_ns: u64,
}

impl End {
    fn parse(value: &[u8]) -> Option<Self> {
        let event_ns = u64::from_ne_bytes(value.get(..8)?.try_into().ok()?);
        let status = u32::from_ne_bytes(value.get(8..12)?.try_into().ok()?);
        let oom = u32::from_ne_bytes(value.get(12..16)?.try_into().ok()?);
        let signal = status & 0x7f;
        let code = if signal == 0 { status >> 8 & 0xff } else { signal };
        Some(Self { is_killed: signal != 0, is_out_of_memory: oom != 0, code: code as i32, event_ns })
    }
}

/// The pinned tables.
pub struct KeptEnds {
    watches: MapHandle,
    ends: MapHandle,
}

impl KeptEnds {
    /// Takes over what is pinned below `pins`, a directory on a BPF file system, or pins it.
    ///
    /// # Errors
    /// In words: no BPF file system, a directory that others may change, programs that the kernel refuses.
    pub fn open(pins: &Path) -> Result<Self, String> {
        let dir = directory(pins);
        let until = Instant::now() + LOCK_PATIENCE;
        let _lock = loop {
            match own(&dir) {
                Err(crate::FenceError::Owned { .. }) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                Err(crate::FenceError::NotBpffs { .. }) => {
                    return Err(format!("{} is on no BPF file system (mount -t bpf bpf /sys/fs/bpf)", pins.display()));
                }
                got => break got.map_err(|e| e.to_string())?,
            }
        };
        remove_others(pins);
        match pinned(&dir) {
            Some(found) => Ok(found),
            // Something is missing: all of it is made anew.
            None => pin(&dir),
        }
    }

    /// A process is watched.
    ///
    /// # Errors
    /// In words, where the table is full.
    pub fn watch(&self, pid: u32, start_ticks: u64) -> Result<(), String> {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&start_ticks.to_ne_bytes());
        self.watches.update(&pid.to_ne_bytes(), &value, MapFlags::ANY).map_err(|e| e.to_string())
    }

    /// It is watched no more; absent is as good.
    pub fn unwatch(&self, pid: u32) {
        _ = self.watches.delete(&pid.to_ne_bytes());
    }

    /// How a process ended that was watched, if that is among the last ends.
    #[must_use]
    pub fn end_of(&self, pid: u32, start_ticks: u64) -> Option<End> {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&u64::from(pid).to_ne_bytes());
        key[8..].copy_from_slice(&start_ticks.to_ne_bytes());
        End::parse(&self.ends.lookup(&key, MapFlags::ANY).ok()??)
    }
}

fn directory(pins: &Path) -> PathBuf {
    pins.join(format!("v{VERSION}"))
}

/// What is pinned, if all of it is.
fn pinned(dir: &Path) -> Option<KeptEnds> {
    let attached = PROGRAMS.iter().map(|name| dir.join(name)).all(|path| path.exists() && Link::open(path).is_ok());
    let [watches, ends] = MAPS.map(|name| MapHandle::from_pinned_path(dir.join(name)).ok());
    let (watches, ends) = (watches?, ends?);
    let fits = (watches.key_size(), watches.value_size()) == (4, 16) && (ends.key_size(), ends.value_size()) == (16, 16);
    (attached && fits).then_some(KeptEnds { watches, ends })
}

fn pin(dir: &Path) -> Result<KeptEnds, String> {
    let why = |e: libbpf_rs::Error| e.to_string();
    unpin(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut object = ObjectBuilder::default().open_memory(OBJECT).and_then(libbpf_rs::OpenObject::load).map_err(why)?;
    for mut map in object.maps_mut() {
        let path = dir.join(map.name());
        map.pin(path).map_err(why)?;
    }
    for program in object.progs_mut() {
        let path = dir.join(program.name());
        program.attach().and_then(|mut link| link.pin(path)).map_err(why)?;
    }
    pinned(dir).ok_or_else(|| format!("{}: what was pinned there is not found again", dir.display()))
}

fn unpin(dir: &Path) -> std::io::Result<()> {
    MAPS.iter().chain(&PROGRAMS).try_for_each(|name| match fs::remove_file(dir.join(name)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    })
}

/// What other versions have pinned is of no use any more.
fn remove_others(pins: &Path) {
    let Ok(entries) = fs::read_dir(pins) else { return };
    for dir in entries.flatten().map(|entry| entry.path()).filter(|dir| *dir != directory(pins)) {
        if unpin(&dir).is_ok() {
            _ = fs::remove_dir(dir);
        }
    }
}

/// Takes everything away that is pinned below `pins`.
///
/// # Errors
/// In words, when something cannot be removed.
pub fn remove(pins: &Path) -> Result<(), String> {
    let why = |e: std::io::Error| format!("{}: {e}", pins.display());
    if !pins.exists() {
        return Ok(());
    }
    check_owner(pins, &fs::File::open(pins).map_err(why)?).map_err(|e| e.to_string())?;
    unpin(&directory(pins)).map_err(why)?;
    fs::remove_dir(directory(pins)).map_err(why)?;
    fs::remove_dir(pins).map_err(why)
}
