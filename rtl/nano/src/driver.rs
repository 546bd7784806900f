//! Registers, wherever they are: in a process by its socket, or in a memory-mapped BAR of a board.

use crate::Refusal;
use fide_rtl::reg;
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Bytes of the register map.
const SPACE: usize = fide_rtl::description::SPACE;

/// AXI4-Lite by some way.
pub trait Driver {
    /// Reads a register.
    ///
    /// # Errors
    /// If there is none at this address, or the way is broken.
    fn read(&mut self, at: u16) -> Result<u32, Refusal>;

    /// Writes a register.
    ///
    /// # Errors
    /// If the engine refuses it, or the way is broken.
    fn write(&mut self, at: u16, value: u32) -> Result<(), Refusal>;

    /// What only a process can be asked; a board has no such door.
    ///
    /// # Errors
    /// Always, on a board.
    fn ask(&mut self, ask: &Ask) -> Result<Answer, Refusal> {
        let _ = ask;
        Err(Refusal::new("only a member run by `fide nano run` answers this"))
    }

    /// Reads a register of 64 bits.
    ///
    /// # Errors
    /// As [`Driver::read`].
    fn read_long(&mut self, at: u16) -> Result<u64, Refusal> {
        let low = self.read(at)?;
        Ok(u64::from(self.read(at + 4)?) << 32 | u64::from(low))
    }
}

/// What a process is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Ask {
    /// Reads a register.
    Read {
        /// Byte address.
        at: u16,
    },
    /// Writes one.
    Write {
        /// Byte address.
        at: u16,
        /// New value.
        value: u32,
    },
    /// Hands in a value.
    Propose {
        /// Its text.
        value: String,
    },
    /// Hands in that a member joins.
    Join {
        /// Its id.
        member: u16,
    },
    /// Hands in that a member leaves.
    Leave {
        /// Its id.
        member: u16,
    },
    /// Where a joiner would begin.
    Point,
    /// What it is.
    Info,
}

/// What it answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// A register's value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u32>,
    /// Round, leader's id, next instance and members of a starting point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<(u64, u16, u64, Vec<u16>)>,
    /// `hardware-model` or `software`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

impl Answer {
    /// A refusal.
    pub fn refused(why: impl Into<String>) -> Self {
        Self { error: Some(why.into()), ..Self::default() }
    }
}

/// A process that runs a member.
pub struct Socket {
    stream: BufReader<UnixStream>,
}

impl Socket {
    /// Connects.
    ///
    /// # Errors
    /// If nobody listens.
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        let fail = |why: std::io::Error| {
            Refusal::new(format!("{}: {why}", path.display())).hint("start a member there: fide nano run --engine PATH …")
        };
        let stream = UnixStream::connect(path).map_err(fail)?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(fail)?;
        Ok(Self { stream: BufReader::new(stream) })
    }
}

impl Driver for Socket {
    fn read(&mut self, at: u16) -> Result<u32, Refusal> {
        let answer = self.ask(&Ask::Read { at })?;
        answer.value.ok_or_else(|| Refusal::new(format!("there is no register at {at:#05x}")))
    }

    fn write(&mut self, at: u16, value: u32) -> Result<(), Refusal> {
        self.ask(&Ask::Write { at, value }).map(drop)
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer, Refusal> {
        let broken = |why: String| Refusal::new(format!("the member does not answer: {why}"));
        let mut line = serde_json::to_string(ask).map_err(|why| broken(why.to_string()))?;
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|why| broken(why.to_string()))?;
        line.clear();
        self.stream.read_line(&mut line).map_err(|why| broken(why.to_string()))?;
        let answer: Answer = serde_json::from_str(&line).map_err(|why| broken(format!("{why}: {line:?}")))?;
        match answer.error {
            Some(why) => Err(Refusal::new(why)),
            None => Ok(answer),
        }
    }
}

/// A board's registers: a BAR, mapped from its file in sysfs (`/sys/bus/pci/devices/…/resource0`).
pub struct Bar {
    base: *mut u32,
}

impl Bar {
    /// Maps it.
    ///
    /// # Errors
    /// If the file cannot be opened or mapped, or is smaller than the register map.
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        let fail = |why: std::io::Error| Refusal {
            permission: why.kind() == std::io::ErrorKind::PermissionDenied,
            ..Refusal::new(format!("{}: {why}", path.display()))
        };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(fail)?;
        let size = file.metadata().map_err(fail)?.len();
        if size < SPACE as u64 {
            let what = format!("{} has {size} bytes, and the engine's registers take {SPACE}", path.display());
            return Err(Refusal::new(what).hint("name the BAR of the engine, or the socket of `fide nano run`"));
        }
        // SAFETY: the file is open and as large as what is mapped; the mapping outlives it.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), SPACE, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(fail(std::io::Error::last_os_error()));
        }
        Ok(Self { base: base.cast() })
    }

    fn word(&self, at: u16) -> Result<*mut u32, Refusal> {
        if usize::from(at) + 4 > SPACE || !at.is_multiple_of(4) {
            return Err(Refusal::new(format!("there is no register at {at:#05x}")));
        }
        // SAFETY: within the mapping, and aligned.
        Ok(unsafe { self.base.add(usize::from(at) / 4) })
    }
}

impl Driver for Bar {
    fn read(&mut self, at: u16) -> Result<u32, Refusal> {
        let word = self.word(at)?;
        // SAFETY: mapped for reading; the device may change it at any time, so it is read as volatile.
        Ok(u32::from_le(unsafe { word.read_volatile() }))
    }

    /// PCIe writes are posted: whether the engine took it is what its counter of refused writes says, which is read before and
    /// behind it.
    fn write(&mut self, at: u16, value: u32) -> Result<(), Refusal> {
        let word = self.word(at)?;
        let before = self.read(reg::REFUSED_WRITES)?;
        // SAFETY: mapped for writing; a register takes it as one word.
        unsafe { word.write_volatile(value.to_le()) };
        if self.read(reg::REFUSED_WRITES)? == before {
            return Ok(());
        }
        Err(Refusal::new(format!("the engine refused to write {value:#x} to {at:#05x}")))
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // SAFETY: mapped by open() with this size.
        unsafe { libc::munmap(self.base.cast(), SPACE) };
    }
}

/// The engine that a path names: a socket of a member, or the file of a BAR.
///
/// # Errors
/// If it is neither, or does not open.
pub fn open(path: &Path) -> Result<Box<dyn Driver>, Refusal> {
    let is_socket = std::fs::metadata(path).map(|seen| seen.file_type().is_socket());
    match is_socket {
        Ok(false) => Ok(Box::new(Bar::open(path)?)),
        _ => Ok(Box::new(Socket::open(path)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_written_and_read_at_its_addresses() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Bar::open(file.path()).err().unwrap().what.contains("has 0 bytes"));
        file.as_file().set_len(SPACE as u64).unwrap();
        let mut bar = Bar::open(file.path()).unwrap();
        bar.write(reg::MEMBERS, 0x1234_5678).unwrap();
        bar.write(reg::LATE + 4, 7).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        let at = usize::from(reg::MEMBERS);
        assert_eq!(bytes[at..at + 4], [0x78, 0x56, 0x34, 0x12]);
        assert_eq!((bar.read(reg::MEMBERS).unwrap(), bar.read_long(reg::LATE).unwrap()), (0x1234_5678, 7 << 32));
        assert!(bar.read(SPACE as u16).is_err() && bar.write(2, 0).is_err());
    }

    #[test]
    fn a_path_without_anybody_is_refused_with_what_to_do() {
        let refused = open(Path::new("/nonexistent/engine")).err().unwrap();
        assert!(refused.hint.unwrap().contains("fide nano run"));
    }
}
