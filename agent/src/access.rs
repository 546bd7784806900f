//! Who may do what on the agent's socket.
//!
//! Opening the socket is decided by its file permissions. What may be asked on it is decided here, from the peer's
//! credentials as the kernel tells them ([`Peer::of`]) and the lists of [`AccessConfig`]. Root is never refused.

use fide_wire::control::{ErrorCode, Refused};
use serde::Deserialize;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Users and groups as the configuration names them.
///
/// `"everyone"`, `"alice"` or `"1000"` (users), `"%ops"` or `"%100"` (groups). Root is never refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Who(pub Vec<String>);

impl Who {
    /// Everyone who can open the socket.
    #[must_use]
    pub fn everyone() -> Self {
        Who(vec!["everyone".into()])
    }
}

/// Who may do what, beside root, who may do everything.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// May have processes of other users watched. Everyone may have their own watched.
    pub watch_others: Who,
    /// May report processes of other users as hung. Everyone may report their own.
    pub report_others: Who,
    /// May monitor and receive verdicts.
    pub monitor: Who,
    /// May read status, events and explanations.
    pub read: Who,
    /// May make the agent read its configuration again, and shut or recover the fence.
    pub reload: Who,
    /// May begin, join and leave groups, open them, and propose values.
    pub groups: Who,
}

impl Default for AccessConfig {
    fn default() -> Self {
        let nobody = Who::default;
        Self {
            watch_others: nobody(),
            report_others: nobody(),
            monitor: Who::everyone(),
            read: Who::everyone(),
            reload: nobody(),
            groups: nobody(),
        }
    }
}

/// Who asks, as the kernel says: not as the peer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process when it connected; `None` when it cannot be seen from the agent's pid namespace.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Vec<u32>,
    /// The user under whom it is counted where users have shares and rates
    /// ([`crate::identity::account`]): never looked at for what it may do.
    pub account: u32,
}

impl Peer {
    /// The process at the other end of a connected Unix socket.
    ///
    /// # Errors
    /// When the kernel does not say, for example because this is not a Unix socket.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of_val(&cred) as libc::socklen_t;
        // SAFETY: `cred` is writable for `len` bytes, and `len` is its size.
        let rc = unsafe {
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &raw mut len)
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        if cred.uid == u32::MAX {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the socket has no peer"));
        }
        Ok(Self {
            pid: u32::try_from(cred.pid).ok().filter(|p| *p != 0),
            uid: cred.uid,
            gid: cred.gid,
            groups: peer_groups(socket)?,
            account: cred.uid,
        })
    }

    fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 32];
    loop {
        let mut len = (groups.len() * 4) as libc::socklen_t;
        // SAFETY: `groups` is writable for `len` bytes.
        let rc = unsafe {
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, groups.as_mut_ptr().cast(), &raw mut len)
        };
        if rc == 0 {
            groups.truncate(len as usize / 4);
            return Ok(groups);
        }
        match io::Error::last_os_error() {
            // The kernel stored the length that is needed; 65536 groups are the most a process can have.
            e if e.raw_os_error() == Some(libc::ERANGE) && len as usize / 4 > groups.len() && len <= 4 * 65536 => {
                groups.resize(len as usize / 4, 0);
            }
            // No groups were recorded (a socket pair on old kernels).
            e if e.raw_os_error() == Some(libc::ENODATA) => return Ok(Vec::new()),
            e => return Err(e),
        }
    }
}

/// A list of the configuration with its names looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set {
    everyone: bool,
    users: Vec<u32>,
    groups: Vec<u32>,
}

impl Set {
    pub(crate) fn new(key: &str, who: &Who, warnings: &mut Vec<String>) -> Self {
        let mut set = Self::default();
        for name in &who.0 {
            let (kind, found) = match name.strip_prefix('%') {
                _ if name == "everyone" => {
                    set.everyone = true;
                    continue;
                }
                Some(group) => ("group", group_id(group).map(|g| set.groups.push(g))),
                None => ("user", user_id(name).map(|u| set.users.push(u))),
            };
            if found.is_none() {
                warnings.push(format!(
                    "access.{key}: this host has no {kind} `{}`, so nobody is allowed by it; groups are written \"%name\"",
                    name.trim_start_matches('%')
                ));
            }
        }
        set
    }

    pub(crate) fn contains(&self, peer: &Peer) -> bool {
        peer.uid == 0 || self.everyone || self.users.contains(&peer.uid) || self.groups.iter().any(|g| peer.in_group(*g))
    }
}

/// What the configuration allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    watch_others: Set,
    report_others: Set,
    monitor: Set,
    read: Set,
    reload: Set,
    groups: Set,
}

impl Policy {
    /// Looks up the users and groups. A name that this host does not have allows nobody, and is reported in words.
    #[must_use]
    pub fn new(config: &AccessConfig) -> (Self, Vec<String>) {
        let mut warnings = Vec::new();
        let mut set = |key, who| Set::new(key, who, &mut warnings);
        let policy = Self {
            watch_others: set("watch_others", &config.watch_others),
            report_others: set("report_others", &config.report_others),
            monitor: set("monitor", &config.monitor),
            read: set("read", &config.read),
            reload: set("reload", &config.reload),
            groups: set("groups", &config.groups),
        };
        (policy, warnings)
    }

    /// May `peer` have a process of user `target_uid` watched?
    ///
    /// # Errors
    /// [`ErrorCode::Permission`].
    pub fn may_watch(&self, peer: &Peer, target_uid: u32) -> Result<(), Refused> {
        if peer.uid == target_uid || self.watch_others.contains(peer) {
            return Ok(());
        }
        refuse(peer, &format!("watch a process of user {target_uid}; their own processes everyone may watch"), "watch_others")
    }

    /// May `peer` report a process of user `target_uid` as hung?
    ///
    /// # Errors
    /// [`ErrorCode::Permission`].
    pub fn may_report(&self, peer: &Peer, target_uid: u32) -> Result<(), Refused> {
        if peer.uid == target_uid || self.report_others.contains(peer) {
            return Ok(());
        }
        refuse(peer, &format!("report a process of user {target_uid}; their own processes everyone may report"), "report_others")
    }

    /// May `peer` monitor processes and hosts and receive verdicts?
    ///
    /// # Errors
    /// [`ErrorCode::Permission`].
    pub fn may_monitor(&self, peer: &Peer) -> Result<(), Refused> {
        if self.monitor.contains(peer) { Ok(()) } else { refuse(peer, "monitor", "monitor") }
    }

    /// May `peer` read status, events and explanations?
    ///
    /// # Errors
    /// [`ErrorCode::Permission`].
    pub fn may_read(&self, peer: &Peer) -> Result<(), Refused> {
        if self.read.contains(peer) { Ok(()) } else { refuse(peer, "read status and events", "read") }
    }

    /// May `peer` make the agent read its configuration again?
    ///
    /// # Errors
    /// [`ErrorCode::Permission`].
    pub fn may_reload(&self, peer: &Peer) -> Result<(), Refused> {
        if self.reload.contains(peer) { Ok(()) } else { refuse(peer, "reload the configuration", "reload") }
    }

    /// May `peer` have a host forgotten? Who may change the agent may.
    ///
    /// # Errors
    /// [`ErrorCode::Permission`].
    pub fn may_forget(&self, peer: &Peer) -> Result<(), Refused> {
        if self.reload.contains(peer) { Ok(()) } else { refuse(peer, "have a host forgotten", "reload") }
    }

    /// May `peer` put something in maintenance? Who may change the agent may.
    ///
    /// # Errors
    /// [`ErrorCode::Permission`].
    pub fn may_maintain(&self, peer: &Peer) -> Result<(), Refused> {
        if self.reload.contains(peer) { Ok(()) } else { refuse(peer, "begin or end a maintenance", "reload") }
    }

    /// May `peer` change groups, open them and propose values?
    ///
    /// # Errors
    /// [`ErrorCode::Permission`].
    pub fn may_group(&self, peer: &Peer) -> Result<(), Refused> {
        if self.groups.contains(peer) { Ok(()) } else { refuse(peer, "change or open groups", "groups") }
    }

    /// May `peer` shut or recover the fence? Who may change the agent may.
    ///
    /// # Errors
    /// [`ErrorCode::Permission`].
    pub fn may_fence(&self, peer: &Peer) -> Result<(), Refused> {
        if self.reload.contains(peer) { Ok(()) } else { refuse(peer, "shut or recover the fence", "reload") }
    }
}

fn refuse(peer: &Peer, what: &str, key: &str) -> Result<(), Refused> {
    Err(Refused {
        code: ErrorCode::Permission,
        what: format!(
            "user {} may not {what}; run it as root, or have an operator add you to `{key}` under [access] in fide.toml",
            peer.uid
        ),
    })
}

/// The number of a user, by name or number.
#[must_use]
pub fn user_id(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let name = CString::new(name).ok()?;
    lookup(|buffer| {
        // SAFETY: passwd is plain data of pointers and integers, for which zero is a value.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call, and the length is the buffer's.
        let rc =
            unsafe { libc::getpwnam_r(name.as_ptr(), &raw mut entry, buffer.as_mut_ptr().cast(), buffer.len(), &raw mut found) };
        (rc, (!found.is_null()).then_some(entry.pw_uid))
    })
}

/// The number of a group, by name or number: also for the socket's group.
#[must_use]
pub fn group_id(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let name = CString::new(name).ok()?;
    lookup(|buffer| {
        // SAFETY: group is plain data of pointers and integers, for which zero is a value.
        let mut entry: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call, and the length is the buffer's.
        let rc =
            unsafe { libc::getgrnam_r(name.as_ptr(), &raw mut entry, buffer.as_mut_ptr().cast(), buffer.len(), &raw mut found) };
        (rc, (!found.is_null()).then_some(entry.gr_gid))
    })
}

/// Calls a `get…_r` with a buffer that grows until the entry fits (a group can have very many members).
fn lookup(mut call: impl FnMut(&mut [u8]) -> (libc::c_int, Option<u32>)) -> Option<u32> {
    let mut buffer = vec![0u8; 4096];
    loop {
        match call(&mut buffer) {
            (libc::ERANGE, _) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            (libc::EINTR, _) => {}
            (0, found) => return found,
            _ => return None,
        }
    }
}
