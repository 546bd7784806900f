//! A memory cgroup for one scene, version 1 or 2, removed afterwards; [`reap_stale`] removes those of demonstrations that were killed.
//!
//! Its name says whose it is, and whether version 2's root had to be told to offer the controller to its children: `fide-demo-PID`, or
//! `fide-demo-PID-on`. So that can be taken back also when the process that did it is gone.

use anyhow::{Context as _, Result, bail};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What every name begins with.
const PREFIX: &str = "fide-demo-";
/// What the name ends with when the controller was turned on for it.
const TURNED_ON: &str = "-on";
/// It stays busy for a moment after its last process ended.
const BUSY: Duration = Duration::from_secs(5);
/// What a child of version 2's root says when nobody limits its memory.
const UNLIMITED: [(&str, &str); 5] =
    [("memory.max", "max"), ("memory.high", "max"), ("memory.low", "0"), ("memory.min", "0"), ("memory.swap.max", "max")];

/// A cgroup whose processes may have so much memory and no more.
#[derive(Debug)]
pub struct MemoryCgroup {
    directory: PathBuf,
}

/// Where the memory controller is.
#[derive(Debug, PartialEq, Eq)]
enum Hierarchy {
    V1(PathBuf),
    V2(PathBuf),
}

/// From `/proc/mounts`. Version 2 counts only if `has_memory` says so of its root.
fn find(mounts: &str, has_memory: impl Fn(&Path) -> bool) -> Option<Hierarchy> {
    let mut v2 = None;
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(root), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else { continue };
        match kind {
            "cgroup" if options.split(',').any(|o| o == "memory") => return Some(Hierarchy::V1(root.into())),
            "cgroup2" if has_memory(Path::new(root)) => v2 = Some(Hierarchy::V2(root.into())),
            _ => {}
        }
    }
    v2
}

/// Has the children of version 2's root the controller's files? `true`: not before this call, and now they do.
fn turn_on(root: &Path) -> bool {
    let file = root.join("cgroup.subtree_control");
    let on = || fs::read_to_string(&file).unwrap_or_default().split_whitespace().any(|c| c == "memory");
    // If it cannot be turned on, the limit's file will be missing and say so.
    !on() && fs::write(&file, "+memory").is_ok()
}

/// Whether a child of this root relies on the controller.
fn is_needed(root: &Path) -> bool {
    let mut children = fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path()).filter(|p| p.is_dir());
    children.any(|child| {
        let read = |file: &str| fs::read_to_string(child.join(file)).unwrap_or_default();
        read("cgroup.subtree_control").split_whitespace().any(|c| c == "memory")
            || UNLIMITED.iter().any(|(file, unlimited)| !["", *unlimited].contains(&read(file).trim()))
    })
}

/// Removes one, and takes back what was turned on for it unless somebody has come to need it.
fn remove(directory: &Path) -> io::Result<()> {
    let deadline = Instant::now() + BUSY;
    loop {
        match fs::remove_dir(directory) {
            Ok(()) => break,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if Instant::now() >= deadline => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    take_back(directory);
    Ok(())
}

fn take_back(directory: &Path) {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    if let Some(root) = directory.parent().filter(|root| name.ends_with(TURNED_ON) && !is_needed(root)) {
        // The kernel refuses where children of children have it.
        let _ = fs::write(root.join("cgroup.subtree_control"), "-memory");
    }
}

/// Whose cgroup this is, by its name.
fn owner(name: &str) -> Option<u32> {
    let pid = name.strip_prefix(PREFIX)?;
    pid.strip_suffix(TURNED_ON).unwrap_or(pid).parse().ok()
}

/// Removes what demonstrations left behind that were killed. Returns where it was.
///
/// # Errors
/// When one cannot be removed.
pub fn reap_stale() -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/mounts").context("cannot read /proc/mounts")?;
    let mut reaped = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        if let (Some(root), Some("cgroup" | "cgroup2")) = (words.next(), words.next()) {
            reaped.extend(reap_below(Path::new(root), |pid| Path::new("/proc").join(pid.to_string()).exists())?);
        }
    }
    Ok(reaped)
}

fn reap_below(root: &Path, is_alive: impl Fn(u32) -> bool) -> Result<Vec<PathBuf>> {
    let mut reaped = Vec::new();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.path().is_dir() && owner(&entry.file_name().to_string_lossy()).is_some_and(|pid| !is_alive(pid)) {
            let directory = entry.path();
            remove(&directory).with_context(|| format!("cannot remove the cgroup {}", directory.display()))?;
            reaped.push(directory);
        }
    }
    Ok(reaped)
}

impl MemoryCgroup {
    /// Makes that of this process.
    ///
    /// # Errors
    /// When the machine has no memory controller to be had, or refuses.
    pub fn new(limit: u64) -> Result<Self> {
        let name = format!("{PREFIX}{}", std::process::id());
        let mounts = fs::read_to_string("/proc/mounts").context("cannot read /proc/mounts")?;
        let offers = |root: &Path| {
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            controllers.split_whitespace().any(|c| c == "memory")
        };
        let hierarchy = find(&mounts, offers);
        if let Some(Hierarchy::V1(root) | Hierarchy::V2(root)) = &hierarchy {
            // One of this very name is of an earlier process with this number.
            reap_below(root, |pid| pid != std::process::id())?;
        }
        let (directory, file) = match hierarchy {
            Some(Hierarchy::V1(root)) => (root.join(name), "memory.limit_in_bytes"),
            Some(Hierarchy::V2(root)) => {
                // Usually on already.
                let turned_on = if turn_on(&root) { TURNED_ON } else { "" };
                (root.join(name + turned_on), "memory.max")
            }
            None => bail!("no memory cgroup can be made on this machine: neither version 1 nor 2 offers the controller"),
        };
        fs::create_dir(&directory)
            .inspect_err(|_| take_back(&directory))
            .with_context(|| format!("cannot make the cgroup {}", directory.display()))?;
        let cgroup = MemoryCgroup { directory };
        let path = cgroup.directory.join(file);
        fs::write(&path, limit.to_string()).with_context(|| format!("cannot set {}", path.display()))?;
        Ok(cgroup)
    }

    /// Its `cgroup.procs`, open for writing.
    ///
    /// # Errors
    /// When it is gone.
    pub fn procs(&self) -> io::Result<File> {
        File::options().write(true).open(self.directory.join("cgroup.procs"))
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = remove(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_preferred_where_both_are_mounted() {
        let v1 = "cgroup /sys/fs/cgroup/memory cgroup rw,nosuid,memory 0 0\n";
        let v2 = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let both = format!("{v2}{v1}cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n");
        assert_eq!(find(&both, |_| true), Some(Hierarchy::V1("/sys/fs/cgroup/memory".into())));
        assert_eq!(find(v2, |_| true), Some(Hierarchy::V2("/sys/fs/cgroup/unified".into())));
        assert_eq!(find(v2, |_| false), None);
        assert_eq!(find("garbage\n", |_| true), None);
    }

    #[test]
    fn what_a_killed_demonstration_left_is_removed_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for name in ["fide-demo-7", "fide-demo-8", "fide-demo-9-on", "fide-demo-x", "fide-demo", "other-7"] {
            fs::create_dir(at(name)).unwrap();
        }
        let mut reaped = reap_below(root.path(), |pid| pid == 8).unwrap();
        reaped.sort();
        assert_eq!(reaped, [at("fide-demo-7"), at("fide-demo-9-on")]);
        assert!(["fide-demo-8", "fide-demo-x", "fide-demo", "other-7"].iter().all(|name| at(name).is_dir()));
        assert!(!at("fide-demo-7").exists() && !at("fide-demo-9-on").exists());
        assert_eq!(reap_below(root.path(), |pid| pid == 8).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn the_controller_is_turned_off_again_by_whom_it_was_turned_on_for_unless_it_is_needed() {
        let root = tempfile::tempdir().unwrap();
        let (file, other) = (root.path().join("cgroup.subtree_control"), root.path().join("other"));
        fs::create_dir(&other).unwrap();
        let control = || fs::read_to_string(&file).unwrap();
        let leave = |name: &str| {
            fs::create_dir(root.path().join(name)).unwrap();
            remove(&root.path().join(name)).unwrap();
        };
        fs::write(&file, "cpu memory pids\n").unwrap();
        assert!(!turn_on(root.path()), "it was on");
        assert_eq!(control(), "cpu memory pids\n");
        leave("fide-demo-1");
        assert_eq!(control(), "cpu memory pids\n", "not ours to turn off");

        fs::write(&file, "cpu\n").unwrap();
        assert!(turn_on(root.path()));
        assert_eq!(control(), "+memory");
        for (needed, value, idle) in [("memory.max", "1000\n", "max\n"), ("cgroup.subtree_control", "cpu memory\n", "cpu\n")] {
            fs::write(other.join(needed), value).unwrap();
            leave("fide-demo-1-on");
            assert_eq!(control(), "+memory", "{needed} of another");
            fs::write(other.join(needed), idle).unwrap();
        }
        leave("fide-demo-1-on");
        assert_eq!(control(), "-memory");
    }
}
