//! The cgroup in which COMMAND runs, with all that it starts: ended as a whole, and seen empty.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often an end that the kernel does not tell of is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// A cgroup of version 2, made here.
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
}

/// Where cgroups of version 2 are mounted.
fn root() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = words.find(|w| w.get(2) == Some(&"cgroup2")).and_then(|w| w.get(1).map(PathBuf::from));
    mount.ok_or_else(|| io::Error::other("no cgroup of version 2 is mounted"))
}

/// The cgroup of this process.
fn own() -> io::Result<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let below = text.lines().find_map(|line| line.strip_prefix("0::"));
    let below = below.ok_or_else(|| io::Error::other("this process is in no cgroup of version 2"))?;
    Ok(root()?.join(below.trim_start_matches('/')))
}

impl Cgroup {
    /// A new one below that of this process.
    ///
    /// # Errors
    /// What to do, in words.
    pub fn make(name: &str) -> Result<Self, String> {
        let dir = own().map_err(|e| e.to_string())?.join(format!("fide-lead.{name}"));
        let advice = "run it as root, or in a unit with Delegate=yes (fide-lead@.service)";
        match fs::create_dir(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(format!("cannot make {}: {e}; {advice}", dir.display()));
            }
            _ => {}
        }
        let made = Self { dir };
        if !made.file("cgroup.kill").exists() {
            return Err("this kernel cannot end a cgroup as a whole (cgroup.kill): that needs Linux 5.14".into());
        }
        made.joined().map_err(|e| format!("{} cannot be written to: {e}; {advice}", made.dir.display()))?;
        Ok(made)
    }

    /// One that a former life made.
    #[must_use]
    pub fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// What a process writes `0` to that is to run in it.
    ///
    /// # Errors
    /// The system's.
    pub fn joined(&self) -> io::Result<File> {
        File::options().write(true).open(self.file("cgroup.procs"))
    }

    /// Whether nothing runs in it, nor below it.
    ///
    /// # Errors
    /// The system's. One that is not there is empty.
    pub fn is_empty(&self) -> io::Result<bool> {
        match fs::read_to_string(self.file("cgroup.events")) {
            Ok(text) => Ok(is_empty(&text)),
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Ends all that runs in it. It may take a moment.
    ///
    /// # Errors
    /// The system's.
    pub fn kill(&self) -> io::Result<()> {
        match fs::write(self.file("cgroup.kill"), "1") {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => Ok(()),
            other => other,
        }
    }

    /// Waits until nothing runs in it. Whether that is so.
    ///
    /// # Errors
    /// The system's.
    pub fn wait_empty(&self, within: Duration) -> io::Result<bool> {
        let until = Instant::now() + within;
        let mut events = match File::open(self.file("cgroup.events")) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => return Ok(true),
            other => other?,
        };
        let mut text = String::new();
        loop {
            text.clear();
            events.seek(SeekFrom::Start(0))?;
            match events.read_to_string(&mut text) {
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => return Ok(true),
                other => _ = other?,
            }
            if is_empty(&text) {
                return Ok(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let mut changed = libc::pollfd { fd: events.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
            let wait_ms = left.min(LOOK).as_millis() as i32 + 1;
            // SAFETY: one descriptor, which is open.
            unsafe { libc::poll(&raw mut changed, 1, wait_ms) };
        }
    }

    /// Takes it away, with those below it. It is empty.
    pub fn remove(&self) {
        remove(&self.dir);
    }
}

fn is_empty(events: &str) -> bool {
    events.lines().any(|line| line == "populated 0")
}

fn remove(dir: &Path) {
    for below in fs::read_dir(dir).into_iter().flatten().flatten().filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir())) {
        remove(&below.path());
    }
    // What does not go now is taken by the next run.
    _ = fs::remove_dir(dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_empty_when_the_kernel_says_so() {
        assert!(is_empty("populated 0\nfrozen 0\n") && !is_empty("populated 1\nfrozen 0\n") && !is_empty(""));
        assert!(Cgroup::at("/nowhere".into()).is_empty().unwrap());
        assert!(Cgroup::at("/nowhere".into()).kill().is_ok());
    }
}
