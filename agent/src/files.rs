//! The files that the configuration names: which of them may be read, run, written or removed.
//!
//! The agent runs as root and takes paths from a file, so a path may lead to anything: a FIFO that blocks whoever opens it, somebody's work, a program
//! that an ordinary user can change. Two rules hold for all of them:
//!
//! 1. What the agent relies on (configuration, keys, programs) is an ordinary file that only root or the agent's own user can change or replace: the
//!    file, every symbolic link on the way to it, and every directory above it.
//! 2. What the agent writes or removes is its own: it belongs to root or to the agent's user, it has one name, and its content is of the kind that the
//!    agent writes there. Symbolic links are not followed.
//!
//! Nothing here opens a path before `stat` has called it an ordinary file, and then only with `O_NONBLOCK`.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// Longest path of a Unix socket, bytes: `sun_path` ends with a NUL.
pub const SOCKET_PATH_MAX: usize = 107;
/// Symbolic links followed on the way to a file, as the kernel does.
const LINKS_MAX: u32 = 40;
const STICKY: u32 = 0o1000;

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The configuration.
    Config,
    /// A key of the cluster.
    Key,
    /// A secret that readers show.
    Token,
    /// A program that the agent runs.
    Program,
    /// What the agent writes: history, incarnations.
    Kept,
    /// The socket for clients.
    Socket,
}

impl Purpose {
    const fn danger(self) -> &'static str {
        match self {
            Purpose::Config => "whoever can change it chooses programs that the agent runs",
            Purpose::Key => "whoever can change it chooses the cluster's key",
            Purpose::Token => "whoever can change it chooses who reads over HTTP",
            Purpose::Program => "whoever can change it chooses what the agent runs",
            Purpose::Kept => "whoever can change it has the agent read or write something else",
            Purpose::Socket => "whoever can change it has clients talk to somebody else",
        }
    }

    /// What others could do who know it; `None` where it is no secret.
    const fn secret(self) -> Option<&'static str> {
        match self {
            Purpose::Key => Some("forge verdicts"),
            Purpose::Token => Some("read over HTTP"),
            Purpose::Config | Purpose::Program | Purpose::Kept | Purpose::Socket => None,
        }
    }

    /// Whether a group that may write a directory on the way is refused, or only warned of: distributions give groups of administrators the directories of
    /// programs (`staff`) and logs (`syslog`), and what is written there is checked once more when it is opened.
    const fn is_strict(self) -> bool {
        matches!(self, Purpose::Config | Purpose::Key | Purpose::Token)
    }
}

/// Why a file is not used.
#[derive(Debug)]
pub enum Unfit {
    /// The system's answer.
    System(io::Error),
    /// What is wrong with it, why that matters and what to do; begins with the path.
    Refused(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::System(e) => e.fmt(f),
            Unfit::Refused(what) => f.write_str(what),
        }
    }
}

impl From<io::Error> for Unfit {
    fn from(e: io::Error) -> Self {
        Unfit::System(e)
    }
}

impl From<Unfit> for io::Error {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::System(e) => e,
            Unfit::Refused(what) => io::Error::new(io::ErrorKind::AlreadyExists, what),
        }
    }
}

fn refused<T>(what: String) -> Result<T, Unfit> {
    Err(Unfit::Refused(what))
}

/// Root, and the user that the agent runs as.
fn is_trusted(uid: u32) -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    uid == 0 || uid == unsafe { libc::geteuid() }
}

fn owner_to_be() -> String {
    // SAFETY: as above.
    match unsafe { libc::geteuid() } {
        0 => "root".into(),
        uid => format!("{uid}"),
    }
}

/// What a thing in the file system is, with its article.
#[must_use]
pub fn kind(meta: &Metadata) -> &'static str {
    let t = meta.file_type();
    match () {
        () if t.is_file() => "an ordinary file",
        () if t.is_dir() => "a directory",
        () if t.is_symlink() => "a symbolic link",
        () if t.is_fifo() => "a FIFO",
        () if t.is_socket() => "a socket",
        () if t.is_char_device() => "a character device",
        () => "a block device",
    }
}

/// Who may change this file or directory, beside those who must.
fn check_owner(path: &Path, meta: &Metadata, purpose: Purpose) -> Result<(), Unfit> {
    if is_trusted(meta.uid()) {
        return Ok(());
    }
    refused(format!(
        "{0} belongs to uid {1}, and not to root or the agent's user: {2}; chown {3} {0}",
        path.display(),
        meta.uid(),
        purpose.danger(),
        owner_to_be()
    ))
}

fn check_file(path: &Path, meta: &Metadata, purpose: Purpose) -> Result<(), Unfit> {
    let shown = path.display();
    if !meta.is_file() {
        return refused(format!("{shown} is {}, not an ordinary file; name another path", kind(meta)));
    }
    check_owner(path, meta, purpose)?;
    let mode = meta.mode() & 0o7777;
    for (bit, who, letter) in [(0o002, "everybody may write it", 'o'), (0o020, "its group may write it", 'g')] {
        if mode & bit != 0 {
            return refused(format!("{shown}: {who} (mode {mode:04o}), and {}; chmod {letter}-w {shown}", purpose.danger()));
        }
    }
    Ok(())
}

/// A directory or a symbolic link on the way to a file.
#[derive(Debug)]
struct Step {
    path: PathBuf,
    meta: Metadata,
}

/// The way to a file, as the kernel goes it: every directory and every symbolic link, from `/` on. It ends before a name that is not there.
fn way(path: &Path) -> io::Result<Vec<Step>> {
    let mut at = PathBuf::from("/");
    let mut steps = vec![Step { meta: std::fs::symlink_metadata(&at)?, path: at.clone() }];
    let mut ahead: VecDeque<OsString> = parts(&std::path::absolute(path)?).collect();
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(name);
        let meta = match std::fs::symlink_metadata(&next) {
            Ok(meta) => meta,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(steps),
            Err(e) => return Err(e),
        };
        if meta.is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            let target = std::fs::read_link(&next)?;
            if target.is_absolute() {
                at = "/".into();
            }
            parts(&target).collect::<Vec<_>>().into_iter().rev().for_each(|part| ahead.push_front(part));
            steps.push(Step { path: next, meta });
        } else {
            if meta.is_dir() {
                steps.push(Step { path: next.clone(), meta });
            }
            at = next;
        }
    }
    Ok(steps)
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    let part = |c: Component<'_>| match c {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(part)
}

/// Checks who else may put something else at this path. Returns what is doubtful.
///
/// # Errors
/// A directory or link on the way that somebody else may change.
pub fn check_way(path: &Path, purpose: Purpose) -> Result<Vec<String>, Unfit> {
    let mut doubts = Vec::new();
    for Step { path, meta } in way(path)? {
        check_owner(&path, &meta, purpose)?;
        let mode = meta.mode() & 0o7777;
        if meta.is_symlink() || mode & STICKY != 0 {
            continue; // its owner alone may change what it is, and the owner of what lies in it alone may remove that
        }
        let shown = path.display();
        let says = |who, letter| {
            format!(
                "the directory {shown}: {who} may write it (mode {mode:04o}), and {}; chmod {letter}-w {shown}",
                purpose.danger()
            )
        };
        if mode & 0o002 != 0 {
            return refused(says("everybody", 'o'));
        }
        if mode & 0o020 != 0 {
            let says = says("its group", 'g');
            if purpose.is_strict() {
                return refused(says);
            }
            doubts.push(says);
        }
    }
    Ok(doubts)
}

/// Reads a file on which the agent relies, of at most `max` bytes, and says what is doubtful about it.
///
/// # Errors
/// What keeps it from being read, or why it is not to be relied on.
pub fn read(path: &Path, purpose: Purpose, max: usize) -> Result<(Vec<u8>, Vec<String>), Unfit> {
    let before = std::fs::metadata(path)?;
    check_file(path, &before, purpose)?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let meta = file.metadata()?;
    check_file(path, &meta, purpose)?;
    if let Some(danger) = purpose.secret().filter(|_| meta.mode() & 0o007 != 0) {
        return refused(format!(
            "{0} can be used by every user of this host (mode {1:04o}), who could {danger} with it; chmod 600 {0}",
            path.display(),
            meta.mode() & 0o777
        ));
    }
    let doubts = check_way(path, purpose)?;
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return refused(format!("{} has more than {max} bytes, which is too much for what it is for", path.display()));
    }
    Ok((bytes, doubts))
}

/// Whether a program may be run by the agent; what is doubtful.
///
/// # Errors
/// Not there, not executable, or somebody else may change it.
pub fn program(path: &Path) -> Result<Vec<String>, Unfit> {
    let meta = std::fs::metadata(path)?;
    check_file(path, &meta, Purpose::Program)?;
    check_way(path, Purpose::Program)
}

/// Opens a file of the agent's own, for reading and appending or for reading only; not through a symbolic link.
///
/// # Errors
/// The system's, or that it is not the agent's own.
pub fn open_kept(path: &Path, write: bool, create: bool) -> Result<File, Unfit> {
    if let Ok(meta) = std::fs::symlink_metadata(path) {
        check_kept(path, &meta)?;
    }
    let file = OpenOptions::new()
        .read(true)
        .append(write)
        .create(create)
        .mode(0o640)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY)
        .open(path)?;
    check_kept(path, &file.metadata()?)?;
    Ok(file)
}

fn check_kept(path: &Path, meta: &Metadata) -> Result<(), Unfit> {
    check_file(path, meta, Purpose::Kept)?;
    if meta.nlink() > 1 {
        return refused(format!(
            "{} has {} names (hard links), so that writing it would change another one, too; name another path",
            path.display(),
            meta.nlink()
        ));
    }
    Ok(())
}

/// Checks a place where the agent keeps something: there is nothing, or a file of its own of which `is_ours` knows the content. What is doubtful.
///
/// # Errors
/// It is somebody else's, or of another kind. What cannot be looked at, because it may not be or because something on the way is not there, is not refused.
pub fn check_place(path: &Path, is_ours: impl Fn(&File) -> io::Result<bool>, what: &str) -> Result<Vec<String>, Unfit> {
    let look = || -> Result<Vec<String>, Unfit> {
        let doubts = check_way(path, Purpose::Kept)?;
        let file = open_kept(path, false, false)?;
        if !is_ours(&file)? {
            return Err(not_ours(path, what));
        }
        Ok(doubts)
    };
    match look() {
        Err(Unfit::System(e)) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Ok(Vec::new()),
        Err(Unfit::System(e)) if e.raw_os_error() == Some(libc::ELOOP) => {
            // Only of the last name: those before it may be links.
            refused(format!("{} is a symbolic link, which is not followed; name the file itself", path.display()))
        }
        other => other,
    }
}

/// The refusal of a file whose content is another's.
#[must_use]
pub fn not_ours(path: &Path, what: &str) -> Unfit {
    Unfit::Refused(format!(
        "{0} holds {what}: it is somebody else's file and is left as it is; name another path, or remove it",
        path.display()
    ))
}

/// The beginning of a file, up to `max` bytes.
///
/// # Errors
/// The system's.
pub fn beginning(file: &File, max: usize) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; max];
    let mut read = 0;
    while read < max {
        match file.read_at(&mut bytes[read..], read as u64) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// Whether these bytes may be the beginning of something that begins with `start`, however much of it a crash left: also nothing, or the zeros that a
/// file system fills in.
#[must_use]
pub fn may_begin(bytes: &[u8], start: &[u8]) -> bool {
    let n = bytes.len().min(start.len());
    bytes[..n] == start[..n] || bytes.iter().all(|b| *b == 0)
}

/// Checks the socket's path: there is nothing, or a socket that root or the agent's user made. What is doubtful.
///
/// # Errors
/// Something else is there, or somebody else may put something else there.
pub fn check_socket(path: &Path) -> Result<Vec<String>, Unfit> {
    let doubts = match check_way(path.parent().unwrap_or(path), Purpose::Socket) {
        Err(Unfit::System(e)) if e.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
        other => other?,
    };
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => refused(format!(
            "{} is {}, not a socket, and is left as it is; give the agent another [socket] path",
            path.display(),
            kind(&meta)
        )),
        Ok(meta) => check_owner(path, &meta, Purpose::Socket).map(|()| doubts),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Ok(doubts),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_is_that_of_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir(root.join("c")).unwrap();
        std::fs::write(root.join("c/file"), "").unwrap();
        std::os::unix::fs::symlink("../../c/./../c", root.join("a/b/l")).unwrap();
        std::os::unix::fs::symlink(root.join("a"), root.join("m")).unwrap();
        let seen = |path: &str| -> Vec<String> {
            let below = |s: Step| s.path.strip_prefix(&root).ok().map(|p| p.display().to_string());
            way(&root.join(path)).unwrap().into_iter().filter_map(below).filter(|p| !p.is_empty()).collect()
        };
        assert_eq!(seen("m/b/l/file"), ["m", "a", "a/b", "a/b/l", "c", "c"]);
        assert_eq!(seen("a/none/file"), ["a"]);
        std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
        assert_eq!(way(&root.join("loop/x")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn what_a_crash_left_may_begin_as_it_should() {
        for (bytes, may) in [("", true), ("{", true), ("{\"seq\":9", true), ("{\"sex\"", false), ("\0\0\0", true), ("\0x", false)]
        {
            assert_eq!(may_begin(bytes.as_bytes(), b"{\"seq\":"), may, "{bytes:?}");
        }
    }
}
