//! Ends that are kept while nobody reads them, on real processes. As root.

use crate::common;

use common::not_root;
use fide_xdp::KeptEnds;
use fide_xdp::ends::{self, End};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A BPF file system of its own, which goes with the test.
struct Pins(tempfile::TempDir);

impl Pins {
    fn mount() -> Self {
        let dir = tempfile::tempdir().unwrap();
        assert!(Command::new("mount").args(["-t", "bpf", "bpf"]).arg(dir.path()).status().unwrap().success());
        Self(dir)
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("fide-ends")
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(self.0.path()).status().unwrap().success());
    }
}

fn start_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap()
}

fn waits(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
}

/// Its end, after `ending`; it was watched by another owner of the pins, who is gone.
fn end_of(pins: &Path, script: &str, ending: impl FnOnce(&mut Child)) -> Option<End> {
    let mut child = waits(script);
    let (pid, ticks) = (child.id(), start_ticks(child.id()));
    KeptEnds::open(pins).unwrap().watch(pid, ticks).unwrap();
    ending(&mut child);
    child.wait().unwrap();
    let next = KeptEnds::open(pins).unwrap();
    assert_eq!(next.end_of(pid, ticks + 1), None, "another process with its number");
    next.end_of(pid, ticks)
}

#[test]
fn an_end_that_nobody_read_is_known_to_the_next_owner() {
    if not_root() {
        return;
    }
    let pins = Pins::mount();
    let before = now_ns();
    let killed = end_of(&pins.path(), "read x", |child| child.kill().unwrap()).unwrap();
    assert_eq!((killed.is_killed, killed.is_out_of_memory, killed.code), (true, false, 9));
    assert!((before..now_ns()).contains(&killed.event_ns));
    let exited = end_of(&pins.path(), "read x; exit 3", |child| drop(child.stdin.take())).unwrap();
    assert_eq!((exited.is_killed, exited.code), (false, 3));
    let ended_by_itself = end_of(&pins.path(), "read x; kill -TERM $$", |child| drop(child.stdin.take())).unwrap();
    assert_eq!((ended_by_itself.is_killed, ended_by_itself.code), (true, 15));
    ends::remove(&pins.path()).unwrap();
    assert!(!pins.path().exists());
}

#[test]
fn what_is_not_watched_leaves_nothing() {
    if not_root() {
        return;
    }
    let pins = Pins::mount();
    let kept = KeptEnds::open(&pins.path()).unwrap();
    let mut child = waits("read x");
    let (pid, ticks) = (child.id(), start_ticks(child.id()));
    kept.watch(pid, ticks).unwrap();
    kept.unwatch(pid);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(kept.end_of(pid, ticks), None);
    // Watched under another process's start.
    let mut child = waits("read x");
    let (pid, ticks) = (child.id(), start_ticks(child.id()));
    kept.watch(pid, ticks + 1).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((kept.end_of(pid, ticks), kept.end_of(pid, ticks + 1)), (None, None));
    ends::remove(&pins.path()).unwrap();
}

#[test]
fn pins_of_another_version_are_replaced_and_where_there_is_no_bpf_file_system_it_is_said() {
    if not_root() {
        return;
    }
    let pins = Pins::mount();
    drop(KeptEnds::open(&pins.path()).unwrap());
    std::fs::rename(pins.path().join("v1"), pins.path().join("v0")).unwrap();
    let kept = KeptEnds::open(&pins.path()).unwrap();
    assert!(!pins.path().join("v0").exists(), "its programs run no more");
    // Something of it is missing: it is made anew, and works.
    drop(kept);
    std::fs::remove_file(pins.path().join("v1/fide_kept_exit")).unwrap();
    assert!(end_of(&pins.path(), "read x", |child| child.kill().unwrap()).is_some());
    ends::remove(&pins.path()).unwrap();
    let nowhere = tempfile::tempdir().unwrap();
    let why = KeptEnds::open(&nowhere.path().join("fide-ends")).err().unwrap();
    assert!(why.contains("no BPF file system"), "{why}");
}

fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: t is a valid place for the time.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) }, 0);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
