//! Who may do what on the agent's socket.
//!
//! Opening the socket is decided by its file permissions. What may be asked on it is decided here, from the peer's
//! credentials as the kernel tells them ([`Peer::of`]) and the lists of [`AccessConfig`]. Root is never refused.

use fide_wire::control::{ErrorCode, Refused};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Longest name of a group, bytes.
const GROUP_NAME_MAX: usize = fide_proto::services::groups::NAME_MAX;

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
    /// May do what in which groups.
    pub groups: GroupsConfig,
}

/// `[access.groups]`: who may do what, by the names of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupsConfig {
    /// Lines by the name of a group, or by how names begin (`"redis-*"`).
    Lines(BTreeMap<String, GroupLine>),
    /// A list as earlier releases read it. It names no groups, and grants nothing.
    Unnamed(Who),
}

impl Default for GroupsConfig {
    fn default() -> Self {
        Self::Lines(BTreeMap::new())
    }
}

/// One line of `[access.groups]`. A plain list of users is [`GroupLine::propose`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupLine {
    /// May open the group: read its entries and states.
    pub open: Who,
    /// May open it, propose values, and hand in states.
    pub propose: Who,
    /// May create, join, leave, resume and switch it, open it, and drop its entries.
    pub administer: Who,
}

impl<'de> Deserialize<'de> for GroupsConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Lines;
        impl<'de> Visitor<'de> for Lines {
            type Value = GroupsConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with a line for each group, as in: orders = [\"alice\"]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Who::deserialize(SeqAccessDeserializer::new(list)).map(GroupsConfig::Unnamed)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Self::Value, A::Error> {
                let mut lines = BTreeMap::new();
                while let Some(Pattern(name)) = table.next_key()? {
                    lines.insert(name, table.next_value()?);
                }
                Ok(GroupsConfig::Lines(lines))
            }
        }
        from.deserialize_any(Lines)
    }
}

impl<'de> Deserialize<'de> for GroupLine {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, default)]
        #[derive(Default)]
        struct Rights {
            open: Who,
            propose: Who,
            administer: Who,
        }
        struct Line;
        impl<'de> Visitor<'de> for Line {
            type Value = GroupLine;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of users and groups of users, or { open = [], propose = [], administer = [] }")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                let propose = Who::deserialize(SeqAccessDeserializer::new(list))?;
                Ok(GroupLine { propose, ..GroupLine::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Self::Value, A::Error> {
                let Rights { open, propose, administer } = Rights::deserialize(MapAccessDeserializer::new(table))?;
                Ok(GroupLine { open, propose, administer })
            }
        }
        from.deserialize_any(Line)
    }
}

/// The name of a line.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Pattern(String);

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name.is_empty() || name.len() > GROUP_NAME_MAX || name.chars().any(char::is_control) {
            return Err(format!(
                "{name:?} names no group: a name has 1 to {GROUP_NAME_MAX} bytes, none of them a control character"
            ));
        }
        if name.trim_end_matches('*').contains('*') || name.ends_with("**") {
            return Err(format!(
                "{name:?}: `*` may only stand at the end, once: \"redis-*\" stands for all names that begin with redis-"
            ));
        }
        Ok(Self(name))
    }
}

/// What somebody can be allowed to do in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupRight {
    /// Read its entries and states.
    Open,
    /// Propose values, and hand in states.
    Propose,
    /// Create, join, leave, resume and switch it.
    Administer,
}

impl GroupRight {
    /// Its key in a line of `[access.groups]`.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Propose => "propose",
            Self::Administer => "administer",
        }
    }

    const fn verb(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Propose => "propose to, or hand in states of,",
            Self::Administer => "create, join, leave, resume or switch",
        }
    }
}

/// What one user may do in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupRights {
    /// See [`GroupRight::Open`].
    pub open: bool,
    /// See [`GroupRight::Propose`].
    pub propose: bool,
    /// See [`GroupRight::Administer`].
    pub administer: bool,
}

impl GroupRights {
    /// Root's.
    pub const ALL: Self = Self { open: true, propose: true, administer: true };

    /// Whether this right is among them.
    #[must_use]
    pub const fn has(self, right: GroupRight) -> bool {
        match right {
            GroupRight::Open => self.open,
            GroupRight::Propose => self.propose,
            GroupRight::Administer => self.administer,
        }
    }

    /// Whether all of these are among them.
    #[must_use]
    pub fn includes(self, others: Self) -> bool {
        [GroupRight::Open, GroupRight::Propose, GroupRight::Administer]
            .into_iter()
            .all(|right| self.has(right) || !others.has(right))
    }

    /// Whether states of the application are taken from who has them.
    #[must_use]
    pub const fn may_hand_in(self) -> bool {
        self.propose || self.administer
    }
}

/// The lines of `[access.groups]` with their names looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPolicy {
    lines: Vec<GroupSets>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupSets {
    name: String,
    open: Set,
    propose: Set,
    administer: Set,
}

impl GroupSets {
    fn names(&self, group: &str) -> bool {
        self.name == group || self.name.strip_suffix('*').is_some_and(|begin| group.starts_with(begin))
    }
}

impl GroupPolicy {
    fn new(config: &GroupsConfig, warnings: &mut Vec<String>) -> Self {
        let lines = match config {
            GroupsConfig::Lines(lines) => lines,
            GroupsConfig::Unnamed(who) => {
                if let Some(first) = who.0.first() {
                    warnings.push(format!(
                        "access.groups: this list names no groups, so it grants nothing; write a line for each group under \
                         [access.groups], as in: orders = [\"{first}\"] (open and propose), or orders = {{ propose = \
                         [\"{first}\"], administer = [\"{first}\"] }}; \"*\" stands for every group"
                    ));
                }
                return Self::default();
            }
        };
        let set = |name: &str, right: GroupRight, who, warnings: &mut Vec<String>| {
            Set::new(&format!("groups.{}.{}", toml_key(name), right.key()), who, warnings)
        };
        let lines = lines.iter().map(|(name, line)| GroupSets {
            name: name.clone(),
            open: set(name, GroupRight::Open, &line.open, warnings),
            propose: set(name, GroupRight::Propose, &line.propose, warnings),
            administer: set(name, GroupRight::Administer, &line.administer, warnings),
        });
        Self { lines: lines.collect() }
    }

    /// What `peer` may do in this group, by all lines that name it.
    #[must_use]
    pub fn of(&self, peer: &Peer, group: &str) -> GroupRights {
        if peer.uid == 0 {
            return GroupRights::ALL;
        }
        let mut rights = GroupRights::default();
        for line in self.lines.iter().filter(|line| line.names(group)) {
            rights.propose |= line.propose.contains(peer);
            rights.administer |= line.administer.contains(peer);
            rights.open |= line.open.contains(peer);
        }
        rights.open |= rights.propose || rights.administer;
        rights
    }
}

/// A key as it is written in a file.
fn toml_key(name: &str) -> String {
    let is_bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    if is_bare { name.into() } else { format!("{name:?}") }
}

/// A user lacks this right in this group: which line of the configuration grants it.
#[must_use]
pub fn lacks_group_right(uid: u32, right: GroupRight, group: &str) -> Refused {
    Refused {
        code: ErrorCode::Permission,
        what: format!(
            "user {uid} may not {} the group {group}: the right `{key}` is missing; run it as root, or have an operator add the \
             user under [access.groups] in fide.toml: {} = {{ {key} = [\"{uid}\"] }}",
            right.verb(),
            toml_key(group),
            key = right.key(),
        ),
    }
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
            groups: GroupsConfig::default(),
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
    groups: GroupPolicy,
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
            groups: GroupPolicy::new(&config.groups, &mut warnings),
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

    /// May `peer` do this in this group?
    ///
    /// # Errors
    /// [`ErrorCode::Permission`].
    pub fn may_in_group(&self, peer: &Peer, right: GroupRight, group: &str) -> Result<(), Refused> {
        if self.groups.of(peer, group).has(right) { Ok(()) } else { Err(lacks_group_right(peer.uid, right, group)) }
    }

    /// What everybody may do in groups.
    #[must_use]
    pub const fn groups(&self) -> &GroupPolicy {
        &self.groups
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
