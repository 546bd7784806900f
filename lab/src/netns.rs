//! Entering network namespaces, and what can only be asked from inside one.
//!
//! Only the network namespace changes (`setns`), never the mount namespace: `ip netns exec` would remount /sys and
//! hide pinned BPF objects.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::error::LabError;

const NAMED_DIR: &str = "/run/netns";

/// A network namespace held open.
#[derive(Debug)]
pub(crate) struct Netns {
    name: String,
    file: File,
}

impl Netns {
    pub(crate) fn open(name: &str) -> Result<Self, LabError> {
        let path = path_of(name);
        let file = File::open(&path).map_err(|e| {
            LabError::io(format!("open the network namespace {} (was the lab removed meanwhile?)", path.display()), e)
        })?;
        Ok(Netns { name: name.to_string(), file })
    }

    /// Moves the calling thread, and no other, into the namespace.
    fn enter(&self) -> io::Result<()> {
        set_netns(self.file.as_raw_fd())
    }

    /// Runs `body` in a fresh thread inside the namespace and waits for it. A panic of `body` goes on in the caller.
    pub(crate) fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let outcome = thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter().map_err(|e| LabError::io(format!("enter the network namespace {}", self.name), e))?;
                    Ok(body())
                })
                .join()
        });
        outcome.unwrap_or_else(|payload| panic::resume_unwind(payload))
    }

    /// Makes `command` run inside the namespace. The command keeps the namespace open until it is dropped.
    pub(crate) fn confine(self, command: &mut Command) {
        // SAFETY: between fork and exec only `setns` is called, which is async-signal-safe; the descriptor is owned
        // by the closure and so open.
        unsafe {
            command.pre_exec(move || self.enter());
        }
    }
}

pub(crate) fn path_of(name: &str) -> PathBuf {
    Path::new(NAMED_DIR).join(name)
}

/// The names of all named network namespaces of this machine.
pub(crate) fn names() -> Vec<String> {
    let Ok(entries) = fs::read_dir(NAMED_DIR) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Takes the name away; the kernel frees the namespace once no process is inside. No such name is no error.
pub(crate) fn remove(name: &str) -> Result<(), LabError> {
    let path = path_of(name);
    if !path.exists() {
        return Ok(());
    }
    let text = CString::new(path.as_os_str().as_encoded_bytes()).expect("a checked lab name has no NUL");
    // SAFETY: `text` is a NUL-terminated string that outlives the call. A name that is not mounted (its creator died
    // between making the file and mounting it) gives EINVAL and is then simply unlinked.
    unsafe { libc::umount2(text.as_ptr(), libc::MNT_DETACH) };
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(LabError::io(format!("remove the network namespace {}", path.display()), e))
        }
        _ => Ok(()),
    }
}

/// Whether any thread of this machine is inside the named namespace. On doubt, yes.
pub(crate) fn is_inhabited(name: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(wanted) = fs::metadata(path_of(name)) else { return false };
    let same = |path: &Path| fs::metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == (wanted.dev(), wanted.ino()));
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    processes.flatten().any(|process| {
        let Ok(tasks) = fs::read_dir(process.path().join("task")) else { return false };
        tasks.flatten().any(|task| same(&task.path().join("ns/net")))
    })
}

fn set_netns(fd: i32) -> io::Result<()> {
    // SAFETY: setns reads two integers; a bad descriptor is an error, not undefined behaviour.
    match unsafe { libc::setns(fd, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket to ask about the interfaces of the namespace that the thread was in when it made it.
pub(crate) struct Interfaces(OwnedFd);

impl Interfaces {
    pub(crate) fn here() -> io::Result<Self> {
        // SAFETY: socket takes three integers; the descriptor it returns is new and owned by nobody else.
        unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Interfaces(OwnedFd::from_raw_fd(fd))) }
        }
    }

    /// Whether the interface has a carrier (its peer is up). No such interface: `None`.
    pub(crate) fn carrier(&self, name: &str) -> io::Result<Option<bool>> {
        let mut request = request_for(name);
        // SAFETY: SIOCGIFFLAGS reads the name and writes the flags into the `ifreq`, which is valid for both.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) };
        if rc != 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ENODEV) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the kernel has just written this member of the union.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        Ok(Some(flags & libc::IFF_RUNNING != 0))
    }

    /// `ethtool -K <name> tx off` without ethtool: sent packets carry whole checksums, as on a real cable. (UDP
    /// sockets on veth leave a partial one otherwise, which whoever reads the frame takes for damage.)
    /// A kernel that does not know the request is left alone.
    pub(crate) fn checksum_in_software(&self, name: &str) -> io::Result<()> {
        /// `struct ethtool_value`.
        #[repr(C)]
        struct EthtoolValue {
            command: u32,
            data: u32,
        }
        const ETHTOOL_STXCSUM: u32 = 0x17;
        const SIOCETHTOOL: libc::Ioctl = 0x8946;

        let mut value = EthtoolValue { command: ETHTOOL_STXCSUM, data: 0 };
        let mut request = request_for(name);
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: SIOCETHTOOL reads the name and follows `ifru_data` to the eight bytes of `value`, which lives
        // until after the call.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL, &raw mut request) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::EOPNOTSUPP) { Ok(()) } else { Err(error) }
    }
}

fn request_for(name: &str) -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid `ifreq` (integers, and a union of integers and pointers).
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    assert!(name.len() < request.ifr_name.len(), "interface names of a lab are short");
    for (to, &from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    request
}
