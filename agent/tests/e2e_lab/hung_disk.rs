//! A disk that hangs: the file system with an agent's history and state is frozen. Whoever writes
//! there stands still until it is thawed, and nothing else does.

use crate::common::{Setup, World, root, until, wait_for};
use crate::e2e_lab::groups::{create, durable, open, order, read, runs};
use fide_lab::Leftover;
use fide_wire::control::{Request, Status};
use fide_wire::verdict::Cause;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Events of the flood, and what the agent may need for them.
const FLOOD: usize = 3_000;
const GROWTH_MAX_KB: u64 = 32 << 10;

/// A file system of the test's own, on a loop device.
pub(super) struct Disk {
    dir: tempfile::TempDir,
    /// Thaws and unmounts it when its standard input is closed: also where this process is killed.
    keeper: Child,
}

/// Thaws a disk at the latest when it is dropped: before the agents, which could not end otherwise.
pub(super) struct Frozen<'a>(&'a Disk);

fn ran(program: &str, arguments: &[&str]) -> Result<(), String> {
    let out = Command::new(program).args(arguments).stdin(Stdio::null()).output().map_err(|e| format!("{program}: {e}"))?;
    if out.status.success() { Ok(()) } else { Err(format!("{program}: {}", String::from_utf8_lossy(&out.stderr).trim())) }
}

impl Disk {
    pub(super) fn new(test: &str) -> Option<Self> {
        if !root() {
            return None;
        }
        let made = Self::make();
        made.map_err(|why| println!("SKIPPED {test}: no file system that can be frozen ({why})")).ok()
    }

    fn make() -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        Leftover::Directory(dir.path().into()).goes_with_caller().map_err(|e| e.to_string())?;
        let (image, at) = (dir.path().join("image"), dir.path().join("disk"));
        fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).map_err(|e| e.to_string())?;
        fs::create_dir(&at).map_err(|e| e.to_string())?;
        let (image, at) = (image.to_str().unwrap_or_default(), at.to_str().unwrap_or_default());
        ran("mkfs.ext4", &["-q", "-F", image])?;
        let script = "trap '' HUP INT TERM; cat >/dev/null; fsfreeze -u \"$1\"; umount -l \"$1\"";
        let mut keeper = Command::new("sh");
        keeper.args(["-c", script, "sh", at]).stdin(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let disk = Self { keeper: keeper.spawn().map_err(|e| e.to_string())?, dir };
        ran("mount", &["-o", "loop", image, at])?;
        ran("fsfreeze", &["-f", at])?;
        ran("fsfreeze", &["-u", at])?;
        Ok(disk)
    }

    fn at(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    pub(super) fn freeze(&self) -> Frozen<'_> {
        ran("fsfreeze", &["-f", self.at().to_str().unwrap()]).unwrap();
        Frozen(self)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = ran("fsfreeze", &["-u", self.0.at().to_str().unwrap_or_default()]);
    }
}

/// Three hosts, of which the first has its files on this disk, and writes down beside it what its
/// hook was told.
pub(super) fn world(disk: &Disk) -> Option<World> {
    let mut w = Setup::hosts(3).empty().up()?;
    let (dir, at) = (w.lab.host_dir(1).display().to_string(), disk.at().display().to_string());
    let head = w.head(1, "h1", "2ms");
    let head = ["state.json", "history.jsonl"]
        .iter()
        .fold(head, |head, file| head.replace(&format!("{dir}/{file}"), &format!("{at}/{file}")));
    let hook = format!(
        "[[hook]]\non = [\"killed\"]\ncommand = [\"/bin/sh\", \"-c\", \"echo $FIDE_APP >> {}\"]\n",
        hooked(disk).display()
    );
    w.write_config(1, &format!("{head}\n{hook}"));
    (1..=3).for_each(|host| w.start(host));
    w.all_alive();
    Some(w)
}

fn hooked(disk: &Disk) -> PathBuf {
    disk.dir.path().join("hooked")
}

/// A process of h1 that ends, which the others are told of, and a hook of h1.
fn a_crash_is_told(w: &World, disk: &Disk, name: &str) {
    let victim = w.sleeper(1);
    w.watch_known(1, name, victim.pid());
    let mut watcher = w.monitor(2, &format!("{name}@h1"));
    victim.kill();
    watcher.failure(&format!("{name}@h1"));
    w.event(1, "its own crash", |e| e.cause == Cause::Killed && e.app.as_deref() == Some(name));
    let has_run = || fs::read_to_string(hooked(disk)).is_ok_and(|names| names.lines().any(|line| line == name));
    until("the hook has run", has_run);
}

/// Kilobytes of memory that a process has.
fn memory_kb(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The numbers of all events in a history's files.
fn on_disk(at: &Path) -> BTreeSet<u64> {
    let files =
        fs::read_dir(at).unwrap().flatten().filter(|file| file.file_name().to_string_lossy().starts_with("history.jsonl"));
    let text: String = files.map(|file| fs::read_to_string(file.path()).unwrap()).collect();
    let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    events.filter_map(|event| event["seq"].as_u64()).collect()
}

/// How many events never came to the disk, as the history says: its files lack so many.
fn lost(w: &World, disk: &Disk) -> usize {
    wait_for("the files have all but what the history says", || {
        let (files, events) = (on_disk(&disk.at()), w.history(1));
        let missing = (1..=events.last()?.seq).filter(|seq| !files.contains(seq)).count();
        let markers =
            events.iter().filter(|event| event.text.ends_with("were not kept on disk, which could not be written then"));
        let said: usize = markers.map(|event| event.text.split(' ').next().unwrap().parse::<usize>().unwrap()).sum();
        (missing == said).then_some(missing)
    })
}

#[test]
fn a_disk_that_hangs_stalls_nothing_and_has_all_of_it_when_it_answers() {
    let Some(disk) = Disk::new("a disk that hangs") else { return };
    let Some(mut w) = world(&disk) else { return };
    create(&w, 1, "orders", "huc", &["h1", "h2"]).unwrap();
    [1, 2].iter().for_each(|host| runs(&w, *host, "orders"));
    let state = disk.at().join("state.json");
    until("h1's disk knows of the group", || fs::read_to_string(&state).unwrap().contains("orders"));
    a_crash_is_told(&w, &disk, "before");
    w.kill_agent(3);
    until("h3 is lost", || w.state(1, "h3") == "agent-lost");
    let (agent, before) = (w.agent_pid(1), memory_kb(w.agent_pid(1)));

    let frozen = disk.freeze();
    // Each of these is a new connection that is greeted and answered while the disk hangs.
    (0..3).for_each(|n| a_crash_is_told(&w, &disk, &format!("hanging{n}")));
    let Status { incarnation, .. } = w.status(1);
    let refused = w.ask(1, &Request::Forget { host: "h3".into() }).unwrap_err().to_string();
    assert!(refused.contains("h3 is forgotten here") && refused.contains("was not written within 2 s"), "{refused}");
    let told = w.event(1, "the disk hangs", |e| e.text.contains("the disk has not answered for 5 s"));
    assert!(told.cause == Cause::Local && told.text.contains("state.json"), "{}", told.text);
    let victim = w.sleeper(1);
    w.watch_known(1, "noisy", victim.pid());
    let flood = w.connect(1);
    for n in 0..FLOOD {
        let reason = format!("{n} {}", "x".repeat(400));
        flood.request(&Request::Report { name: "noisy".into(), hung: n % 2 == 0, reason }).unwrap();
    }
    let grown = memory_kb(agent).saturating_sub(before);
    println!("{FLOOD} reports while the disk hangs: {grown} KiB more memory");
    assert!(grown < GROWTH_MAX_KB, "{grown} KiB for {FLOOD} reports");
    a_crash_is_told(&w, &disk, "behind");
    let unwritten = w.history(1).iter().filter(|event| !on_disk(&disk.at()).contains(&event.seq)).count();
    assert!(unwritten > 8, "the disk hangs: {unwritten}");

    drop(frozen);
    let told = w.event(1, "it answers again", |e| e.text.contains("the disk answers again"));
    let lost = lost(&w, &disk);
    println!("{}; {lost} lines in all", told.text);
    assert!(lost > 0 && lost < 2 * FLOOD && told.text.contains("are not in the history's files"), "{lost}: {}", told.text);
    let files = on_disk(&disk.at());
    let crashes = w.events(1, Cause::Killed);
    assert!(crashes.len() > 4 && crashes.iter().all(|crash| files.contains(&crash.seq)), "reports displace no crash");
    assert_eq!(w.history(1).iter().filter(|e| e.text.contains("the disk has not answered")).count(), 1, "told once");
    until("h3 is forgotten on disk, too", || fs::read_to_string(&state).is_ok_and(|text| text.contains("\"h3\"\n  ]")));
    // What the disk has makes this agent's successor the same host.
    let last = w.history(1).last().unwrap().seq;
    w.kill_agent(1);
    w.start(1);
    wait_for("h2 sees h1 again", || (w.state(2, "h1") == "alive").then_some(()));
    assert!(w.status(1).incarnation > incarnation);
    runs(&w, 1, "orders");
    assert!(w.history(1).iter().any(|e| e.seq == last), "it goes on with the history");
}

#[test]
fn an_agent_whose_disk_hangs_leaves_all_the_same() {
    let Some(disk) = Disk::new("a disk that hangs at the end") else { return };
    let Some(mut w) = world(&disk) else { return };
    let frozen = disk.freeze();
    a_crash_is_told(&w, &disk, "last");
    w.signal_agent(1, libc::SIGTERM);
    until("h2 sees it leave", || w.state(2, "h1") == "left");
    until("it says what it did not write", || w.log(1).contains("the disk has not answered within 2 s"));
    drop(frozen);
    // The kernel keeps the process until its last write has ended.
    assert!(w.agent_ended(1).success());
    w.start(1);
    w.all_alive();
}

/// Nothing but the logs of durable groups lies on the disk that hangs.
#[test]
fn logs_of_groups_on_a_disk_that_hangs_are_told() {
    let Some(disk) = Disk::new("logs of groups on a disk that hangs") else { return };
    let Some(w) = Setup::hosts(2).up() else { return };
    w.all_alive();
    std::os::unix::fs::symlink(disk.at().join("groups"), w.lab.host_dir(1).join("state.json.groups")).unwrap();
    order(&w, 1, durable("orders", &["h1", "h2"])).unwrap();
    [1, 2].into_iter().for_each(|host| runs(&w, host, "orders"));
    let (mut on_1, mut on_2) = (open(&w, 1, 11, 0, 0), open(&w, 2, 22, 0, 0));
    let (mut log_1, mut log_2) = (Vec::new(), Vec::new());
    on_2.propose(b"one").unwrap();
    read(&mut on_1, &mut log_1, 1);
    let frozen = disk.freeze();
    on_2.propose(b"two").unwrap();
    read(&mut on_2, &mut log_2, 2);
    w.event(1, "the disk hangs", |e| e.text.contains("the disk has not answered for 5 s"));
    drop(frozen);
    w.event(1, "it answers again", |e| e.text.contains("the disk answers again"));
    read(&mut on_1, &mut log_1, 2);
    assert_eq!(log_1, log_2);
}
