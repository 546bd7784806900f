//! A process whose memory is on a disk that hands it back a page a second (SafeTimer §4.2): as late as one that is stopped, and nobody stopped it.

use crate::common::{Process, until};
use crate::e2e_lab::beats::{actor, gated, say, valid_ns};
use crate::e2e_lab::fence::{BOUND_NS, Group, Pins, ear};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A swap file, and a cgroup whose processes may read only so much of its disk.
struct SlowSwap {
    file: PathBuf,
    group: PathBuf,
}

impl SlowSwap {
    /// `None`, and a word why: it is the whole machine's swap, as long as the test runs.
    fn new() -> Option<Self> {
        if std::env::var_os("FIDE_SWAP").is_none() {
            println!("SKIPPED: adds swap to this machine for some seconds; set FIDE_SWAP=1");
            return None;
        }
        let controller = Path::new("/sys/fs/cgroup/blkio");
        if !controller.join("blkio.throttle.read_bps_device").exists() {
            println!("SKIPPED: no blkio controller of cgroup version 1 in {}", controller.display());
            return None;
        }
        let group = controller.join(format!("fide-e2e-{}", std::process::id()));
        let file = PathBuf::from(format!("/var/tmp/fide-e2e-{}.swap", std::process::id()));
        let swap = Self { file, group };
        fs::write(&swap.file, vec![0; 64 << 20]).unwrap();
        fs::set_permissions(&swap.file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(&swap.group).unwrap();
        let ready = Command::new("mkswap").arg(&swap.file).output().is_ok_and(|done| done.status.success())
            && Command::new("swapon").arg(&swap.file).status().is_ok_and(|done| done.success());
        if !ready {
            println!("SKIPPED: {} cannot be swap here", swap.file.display());
            return None;
        }
        Some(swap)
    }

    /// What it reads from the disk from now on comes at one page a second.
    fn slows(&self, process: &Process) {
        let disk = fs::metadata(&self.file).unwrap().dev();
        let limit = format!("{}:{} 4096", libc::major(disk), libc::minor(disk));
        fs::write(self.group.join("blkio.throttle.read_bps_device"), limit).unwrap();
        fs::write(self.group.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }
}

impl Drop for SlowSwap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.file).status();
        let _ = fs::remove_file(&self.file);
        until("its processes have ended", || fs::remove_dir(&self.group).is_ok() || !self.group.exists());
    }
}

/// Writes all that a process has in memory to the swap file. How much of it is there, in kB.
fn page_out(process: &Process) -> u64 {
    const MADV_PAGEOUT: i32 = 21;
    // SAFETY: the result is a descriptor of ours, or -1.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, process.pid(), 0) } as i32;
    assert!(pidfd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: as above.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    for line in fs::read_to_string(format!("/proc/{}/maps", process.pid())).unwrap().lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
        let (from, to) = (usize::from_str_radix(range.0, 16).unwrap(), usize::from_str_radix(range.1, 16).unwrap());
        let range = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: to - from };
        // Ranges that cannot be paged out (the vdso, what is locked) are refused, and that is all.
        // SAFETY: one range, of another process: nothing of ours is touched.
        unsafe { libc::syscall(libc::SYS_process_madvise, pidfd.as_raw_fd(), &raw const range, 1, MADV_PAGEOUT, 0) };
    }
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    status.lines().find_map(|line| line.strip_prefix("VmSwap:")?.trim().trim_end_matches(" kB").parse().ok()).unwrap()
}

#[test]
fn a_process_that_was_swapped_out_is_not_heard_after_its_time() {
    let Some(swap) = SlowSwap::new() else { return };
    let (Some(pins), Some(group)) = (Pins::new(), Group::new("swap")) else { return };
    let Some(w) = gated(&pins, &group) else { return };
    let mut sender = actor(&w, 1, &[&format!("enter {}", group.0.display())]);
    assert!(say(&mut sender, &format!("towards {}:4000", w.lab.ipv4(2, 0))).starts_with("ok"));
    let inside = ear(&w, 2);
    assert_eq!(say(&mut sender, &format!("stream {}:3999", w.lab.ipv4(2, 0))), "ok");
    // It beats by itself, each time for a second.
    let mut beating = actor(&w, 1, &[&format!("enter {}", group.0.display())]);
    assert!(say(&mut beating, &format!("towards {}:4000", w.lab.ipv4(2, 0))).starts_with("ok"));
    valid_ns(&say(&mut beating, "beat 1000 900"));
    beating.say("beat-on 1000");
    let state = || w.status(1).gates.first().map(|gate| gate.state.clone()).unwrap();
    // Sleep: twice as long as one of them makes it valid.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(state(), "open");
    inside.flows();

    swap.slows(&beating);
    let mut most = 0;
    // What it reads of its program counts, too, and may make it late while little of its memory is on the disk yet.
    until("its memory is on the disk, and it was too late", || {
        most = page_out(&beating).max(most);
        most > 100 && state() == "fenced"
    });
    inside.is_cut_off();
    // It lives, and what it says when it comes back makes nothing valid again.
    fs::write("/sys/fs/cgroup/blkio/cgroup.procs", beating.pid().to_string()).unwrap();
    let said = beating.hear();
    let (valid_ns, why) = said.split_once(' ').unwrap_or_else(|| panic!("{said}"));
    assert!(why.starts_with("Fenced") || why.starts_with("Timeout"), "{said}");
    let late_ns = inside.last_ns().saturating_sub(valid_ns.parse().unwrap());
    assert!(late_ns <= BOUND_NS, "heard {late_ns} ns after t_valid");
    assert!(say(&mut beating, "extend 0 3000").starts_with("error Fenced"));
    inside.is_cut_off();
}
