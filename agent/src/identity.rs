//! Which process a connection was opened by. Its number alone does not say: when that process has ended, the number may be another's, while a child
//! goes on using the connection. So the process itself is held on to, by a pidfd, from the moment the connection is accepted, and looked at again
//! whenever something is done to it, or in its name.

use crate::access::Peer;
use crate::select::{Resolver, Target};
use crate::shares::UNKNOWN_USER;
use fide_wire::control::{ErrorCode, Refused};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

/// The process that opened a connection.
#[derive(Debug)]
pub struct Identity {
    pid: u32,
    start_ticks: u64,
    fd: OwnedFd,
}

impl Identity {
    /// Of the process at the other end of a connected Unix socket; `None` where it cannot be seen, or has ended already.
    #[must_use]
    pub fn of(socket: BorrowedFd<'_>, peer: &Peer, resolver: &Resolver) -> Option<Self> {
        let pid = peer.pid?;
        let (fd, by_kernel) = match peer_pidfd(socket) {
            Ok(fd) => (fd, true),
            Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => (pidfd_of(pid)?, false),
            Err(_) => return None, // it is gone
        };
        let target = resolver.target(pid).ok()?;
        // What was read of this number is of the process that is held on to if that one lives afterwards.
        if has_ended(&fd) {
            return None;
        }
        // A kernel that does not say which process connected (before Linux 6.5) says at least whose it was.
        (by_kernel || target.uid == peer.uid).then_some(Self { pid, start_ticks: target.start_ticks, fd })
    }

    /// What this process is now.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] when it has ended, whatever has its number now.
    pub fn target(&self, resolver: &Resolver) -> Result<Target, Refused> {
        let target = resolver.target(self.pid);
        match target {
            Ok(target) if target.start_ticks == self.start_ticks && !has_ended(&self.fd) => Ok(target),
            _ => Err(ended(self.pid)),
        }
    }
}

/// The user under whom a peer is counted where users have shares and rates.
///
/// A user may have tens of thousands of subordinate user numbers (/etc/subuid), as each of which
/// processes in a user namespace of his can run and connect. So a process in another user namespace
/// than the agent's is counted under the user who made that namespace; of nested ones, the
/// outermost. What root made (a container) is counted as one user, under the number of the
/// namespace, which `lsns -t user` lists. Those of which it cannot be said who answers for them, as
/// they have ended already, are one user together ([`UNKNOWN_USER`]).
#[must_use]
pub fn account(peer: &Peer, process: Option<&Identity>) -> u32 {
    match (peer.uid, peer.pid, process) {
        (0, _, _) => 0,
        // Not in the agent's pid namespace: its user is all that is known.
        (_, None, _) => peer.uid,
        // A process that connects and ends leaves its connection to others of any namespace.
        (_, Some(_), None) => UNKNOWN_USER,
        (_, Some(_), Some(process)) => match process.made_by() {
            Ok(None) => peer.uid,
            Ok(Some(account)) => account,
            Err(_) => UNKNOWN_USER,
        },
    }
}

impl Identity {
    /// Who answers for the user namespace of this process; `None`: it is the agent's own, or not
    /// below it.
    fn made_by(&self) -> io::Result<Option<u32>> {
        let own = fs::metadata("/proc/self/ns/user")?;
        let is_own = |at: &fs::Metadata| (at.dev(), at.ino()) == (own.dev(), own.ino());
        let at = format!("/proc/{}/ns/user", self.pid);
        // Most are in the agent's; then nothing is opened.
        let is_theirs = fs::metadata(&at).map(|m| !is_own(&m));
        let namespace = match is_theirs {
            Ok(false) => Ok(None),
            _ => File::open(at).map(Some),
        };
        if has_ended(&self.fd) {
            return Err(io::ErrorKind::NotFound.into()); // and this was perhaps read of another one
        }
        let Some(mut namespace) = (match namespace {
            // Without CAP_SYS_PTRACE: users who may have other numbers are at least seen to have
            // them.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied && has_our_users(self.pid)? => return Ok(None),
            other => other?,
        }) else {
            return Ok(None);
        };
        loop {
            let (owner, number) = (owner(&namespace)?, namespace.metadata()?.ino());
            match parent(&namespace) {
                Ok(above) if is_own(&above.metadata()?) => {
                    return Ok(Some(if owner == 0 { u32::try_from(number).unwrap_or(UNKNOWN_USER) } else { owner }));
                }
                Ok(above) => namespace = above,
                // It is no descendant of the agent's.
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }
}

/// Whether a process has its user numbers from the same map as the agent.
fn has_our_users(pid: u32) -> io::Result<bool> {
    Ok(fs::read(format!("/proc/{pid}/uid_map"))? == fs::read("/proc/self/uid_map")?)
}

/// Whoever made a user namespace.
fn owner(namespace: &File) -> io::Result<u32> {
    /// linux/nsfs.h.
    const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;
    let mut uid: libc::uid_t = 0;
    // SAFETY: an open descriptor, and a number that the call fills.
    let rc = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) };
    if rc == 0 { Ok(uid) } else { Err(io::Error::last_os_error()) }
}

/// The namespace around a user namespace.
fn parent(namespace: &File) -> io::Result<File> {
    /// linux/nsfs.h.
    const NS_GET_PARENT: libc::c_ulong = 0xb702;
    // SAFETY: an open descriptor; the call returns a descriptor or -1.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made by the kernel, and nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The refusal of what is asked in the name of a process that is no more.
#[must_use]
pub fn ended(pid: u32) -> Refused {
    let what = format!(
        "process {pid}, which opened this connection, has ended: whoever uses it now must connect anew, to be known by itself"
    );
    Refused { code: ErrorCode::NotFound, what }
}

/// The process that connected, as the kernel remembers it (from Linux 6.5 on).
fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// asm-generic/socket.h.
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: RawFd = -1;
    let mut len = size_of_val(&fd) as libc::socklen_t;
    // SAFETY: `fd` is writable for `len` bytes, and `len` is its size.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut len) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made by the kernel, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The process that has this number now.
fn pidfd_of(pid: u32) -> Option<OwnedFd> {
    // SAFETY: a number; the call returns a descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: just made by the kernel, and nobody else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Whether the process behind a pidfd has ended, all its threads with it.
fn has_ended(fd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one struct with an open descriptor; returns at once.
    unsafe { libc::poll(&raw mut poll, 1, 0) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    #[test]
    fn a_connection_is_its_process_until_that_ends() {
        let resolver = Resolver::default();
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = Peer::of(a.as_fd()).unwrap();
        let own = Identity::of(a.as_fd(), &peer, &resolver).unwrap();
        assert_eq!(own.target(&resolver).unwrap().pid, std::process::id());
        // Of another process of that number, the start would differ.
        let other = Identity { start_ticks: own.start_ticks + 1, ..own };
        assert!(other.target(&resolver).unwrap_err().what.contains("has ended"));

        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let start_ticks = resolver.target(pid).unwrap().start_ticks;
        let of_child = Identity { pid, start_ticks, fd: pidfd_of(pid).unwrap() };
        assert_eq!(of_child.target(&resolver).unwrap().pid, pid);
        child.kill().unwrap();
        child.wait().unwrap();
        let refused = of_child.target(&resolver).unwrap_err();
        assert!(refused.code == ErrorCode::NotFound && refused.what.contains("connect anew"), "{refused}");
        // Who has ended before its connection is accepted is nobody.
        assert!(Identity::of(a.as_fd(), &Peer { pid: Some(pid), ..peer }, &resolver).is_none());
    }

    /// A child in a user namespace of its own, once it is there.
    fn in_a_namespace(uid: Option<u32>) -> (std::process::Child, Identity) {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("unshare");
        command.args(["--user", "sleep", "60"]).stdin(Stdio::null());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let child = command.spawn().unwrap();
        let of = |pid: &str, what: &str| fs::read_link(format!("/proc/{pid}/{what}"));
        let pid = child.id();
        let began = std::time::Instant::now();
        while !of(&pid.to_string(), "ns/user").is_ok_and(|theirs| theirs != of("self", "ns/user").unwrap()) {
            assert!(began.elapsed() < std::time::Duration::from_secs(30), "it has no namespace of its own");
            std::thread::yield_now();
        }
        let start_ticks = Resolver::default().target(pid).unwrap().start_ticks;
        (child, Identity { pid, start_ticks, fd: pidfd_of(pid).unwrap() })
    }

    #[test]
    fn a_process_in_a_user_namespace_is_counted_under_who_made_that() {
        // SAFETY: takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            println!("SKIPPED: needs root, which alone makes namespaces everywhere");
            return;
        }
        let peer = |uid, pid| Peer { pid, uid, gid: uid, groups: vec![], account: uid };
        // As one of its subordinate numbers, and as none that is known here.
        let (mut child, users) = in_a_namespace(Some(4242));
        for uid in [100_007, 65534] {
            assert_eq!(account(&peer(uid, Some(users.pid)), Some(&users)), 4242);
        }
        let (mut container, roots) = in_a_namespace(None);
        let number = fs::metadata(format!("/proc/{}/ns/user", roots.pid)).unwrap().ino();
        let counted = account(&peer(100_007, Some(roots.pid)), Some(&roots));
        assert_eq!(u64::from(counted), number, "never as root");
        assert_eq!(account(&peer(0, Some(roots.pid)), Some(&roots)), 0);

        let pid = std::process::id();
        let own = Identity { pid, start_ticks: 1, fd: pidfd_of(pid).unwrap() };
        assert_eq!(account(&peer(1000, Some(pid)), Some(&own)), 1000);
        assert_eq!(account(&peer(1000, None), None), 1000);
        assert_eq!(account(&peer(1000, Some(pid)), None), UNKNOWN_USER);
        for (child, identity) in [(&mut child, users), (&mut container, roots)] {
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(account(&peer(1000, Some(identity.pid)), Some(&identity)), UNKNOWN_USER);
        }
    }
}
