//! A memory cgroup for one scene, version 1 or 2, removed afterwards.

use anyhow::{Context as _, Result, bail};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

impl MemoryCgroup {
    /// Makes one.
    ///
    /// # Errors
    /// When the machine has no memory controller to be had, or refuses.
    pub fn new(name: &str, limit: u64) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/mounts").context("cannot read /proc/mounts")?;
        let offers = |root: &Path| {
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            controllers.split_whitespace().any(|c| c == "memory")
        };
        let (directory, file) = match find(&mounts, offers) {
            Some(Hierarchy::V1(root)) => (root.join(name), "memory.limit_in_bytes"),
            Some(Hierarchy::V2(root)) => {
                // Usually on already; if it cannot be turned on, the limit's file will be missing and say so.
                let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
                (root.join(name), "memory.max")
            }
            None => bail!("no memory cgroup can be made on this machine: neither version 1 nor 2 offers the controller"),
        };
        fs::create_dir(&directory).with_context(|| format!("cannot make the cgroup {}", directory.display()))?;
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
        // It stays busy for a moment after its last process ended.
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.directory).is_err_and(|e| e.kind() != io::ErrorKind::NotFound) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
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
}
