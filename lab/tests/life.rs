//! Labs come and go, and nothing stays behind, however they end.

use crate::common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{assert_gone, lab, root, traces, wait_for};
use fide_lab::{Lab, LabError, LabSpec, Leftover, Phase, ProcessId};

/// A lab that is not ephemeral, but for the end of this process.
fn lasting(hosts: u16) -> Lab {
    let lab = Lab::up(&LabSpec { hosts, ..LabSpec::default() }).unwrap();
    Leftover::Lab(lab.name().to_string()).goes_with_caller().unwrap();
    lab
}

#[test]
fn a_lab_that_was_taken_down_leaves_nothing() {
    if !root("a_lab_that_was_taken_down_leaves_nothing") {
        return;
    }
    let lab = lab(2);
    let name = lab.name().to_string();
    assert_eq!(traces(&name).len(), 2 + 2 + 2, "two switches, two hosts, a directory, a record");
    assert!(lab.host_dir(1).is_dir() && lab.host_dir(2).is_dir());

    lab.down().unwrap();
    assert_gone(&name);
}

#[test]
fn a_panic_takes_an_ephemeral_lab_down() {
    if !root("a_panic_takes_an_ephemeral_lab_down") {
        return;
    }
    let mut name = String::new();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
        let lab = lab(2);
        name = lab.name().to_string();
        panic::resume_unwind(Box::new("a test went wrong"));
    }));
    assert!(outcome.is_err());
    assert!(!name.is_empty());
    assert_gone(&name);
}

#[test]
fn a_lab_that_is_not_ephemeral_stays_and_can_be_opened_listed_and_taken_down() {
    if !root("a_lab_that_is_not_ephemeral_stays_and_can_be_opened_listed_and_taken_down") {
        return;
    }
    let made = lasting(2);
    let name = made.name().to_string();
    drop(made);

    let mine = |labs: Vec<fide_lab::LabSummary>| labs.into_iter().find(|l| l.name == name);
    let summary = mine(Lab::list().unwrap()).unwrap();
    assert_eq!((summary.hosts, summary.phase, summary.stale), (2, Phase::Up, false));
    assert!(!Lab::reap_stale().unwrap().labs.contains(&name), "a lab in use was reaped");

    let again = Lab::up(&LabSpec { name: Some(name.clone()), ..LabSpec::default() });
    assert!(matches!(again, Err(LabError::Exists(n)) if n == name));

    let opened = Lab::open(&name).unwrap();
    assert_eq!(opened.spec().hosts, 2);
    let stale_handle = Lab::open(&name).unwrap();
    opened.down().unwrap();
    assert_gone(&name);
    assert!(mine(Lab::list().unwrap()).is_none());
    assert!(matches!(Lab::open(&name), Err(LabError::NotFound(_))));
    assert!(matches!(stale_handle.status(), Err(LabError::NotFound(_))));
    stale_handle.down().unwrap();
}

/// Not a test: the process that the next ones kill. It makes a lab, starts processes in it, says so and waits.
#[test]
#[ignore = "run by the tests of crashes"]
fn creator() {
    let Ok(kind) = std::env::var("FIDE_LAB_TEST_CREATOR") else { return };
    let name = std::env::var("FIDE_LAB_TEST_NAME").ok();
    let lab = Lab::up(&LabSpec { name, hosts: 3, ephemeral: kind == "ephemeral", ..LabSpec::default() }).unwrap();
    // A process, and one that its shell forgot.
    let mut shell = lab.command(1, "sh").unwrap();
    let mut shell = spawn_quiet(shell.args(["-c", "setsid sleep 1000 & echo $!; exec sleep 1000"]));
    let mut forgotten = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut forgotten).unwrap();
    println!("READY {} {} {}", lab.name(), shell.id(), forgotten.trim());
    let _ = std::io::stdin().read(&mut [0u8]);
    // Reached only if the killer fails: then nothing must stay either.
    drop(lab);
    let _ = shell.wait();
}

fn spawn_quiet(command: &mut Command) -> std::process::Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Starts [`creator`]; `name` is the lab's, or made up.
fn start_creator(kind: &str, name: Option<&str>) -> std::process::Child {
    creator_command(kind, name).spawn().unwrap()
}

fn creator_command(kind: &str, name: Option<&str>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "life::creator", "--ignored", "--nocapture"]).env("FIDE_LAB_TEST_CREATOR", kind);
    if let Some(name) = name {
        command.env("FIDE_LAB_TEST_NAME", name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

struct Creator {
    child: std::process::Child,
    lab: String,
    started: Vec<ProcessId>,
    stdout: BufReader<std::process::ChildStdout>,
}

fn run_creator(kind: &str) -> Creator {
    let mut child = start_creator(kind, None);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    let words = loop {
        line.clear();
        assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "the creator ended early");
        // The harness may have written its own words before ours.
        if let Some((_, words)) = line.split_once("READY ") {
            break words.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        }
    };
    let started: Vec<ProcessId> = words[1..].iter().map(|pid| ProcessId::of(pid.parse().unwrap()).unwrap()).collect();
    assert_eq!(started.len(), 2);
    Creator { child, lab: words[0].clone(), started, stdout }
}

#[test]
fn killing_the_creator_takes_an_ephemeral_lab_and_its_processes_away() {
    if !root("killing_the_creator_takes_an_ephemeral_lab_and_its_processes_away") {
        return;
    }
    let mut creator = run_creator("ephemeral");
    assert!(!traces(&creator.lab).is_empty());
    creator.child.kill().unwrap();
    creator.child.wait().unwrap();
    let killed = Instant::now();

    // Nobody who waits for the creator's output may be kept waiting by the watcher; the processes started in the lab
    // were given an output of their own.
    let mut rest = String::new();
    creator.stdout.read_to_string(&mut rest).unwrap();

    wait_for("the lab of a killed creator to go", || traces(&creator.lab).is_empty());
    assert!(creator.started.iter().all(|p| !p.is_alive()), "{:?} outlived the lab", creator.started);
    println!("gone {:?} after its creator was killed", killed.elapsed());
}

/// Kills the watcher of a lab; its process id.
fn kill_watcher(lab: &str) -> i32 {
    let record = std::fs::read_to_string(format!("/run/fide/lab/{lab}.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let watcher = record["watcher"]["pid"].as_i64().unwrap() as i32;
    // SAFETY: kill takes two integers; the process is the watcher that our own child has just
    // started.
    assert_eq!(unsafe { libc::kill(watcher, libc::SIGKILL) }, 0);
    watcher
}

#[test]
fn a_stale_lab_whose_watcher_was_killed_too_is_reaped() {
    if !root("a_stale_lab_whose_watcher_was_killed_too_is_reaped") {
        return;
    }
    let mut creator = run_creator("ephemeral");
    let watcher = kill_watcher(&creator.lab);
    creator.child.kill().unwrap();
    creator.child.wait().unwrap();
    wait_for("the watcher to end", || ProcessId::of(watcher).is_none());

    let listed = || Lab::list().unwrap().into_iter().find(|l| l.name == creator.lab);
    // Another test may have made a lab just now, which reaps as well: while it does, the lab is being removed, not stale.
    wait_for("the lab to be stale, or gone", || listed().is_none_or(|summary| summary.stale));
    if listed().is_some_and(|summary| summary.stale) {
        let opened = Lab::open(&creator.lab);
        assert!(matches!(opened, Err(LabError::NotUsable { .. } | LabError::NotFound(_))), "{opened:?}");
    }
    // Another test may be reaping it at this moment; then it is gone when that one is done.
    wait_for("the lab to be reaped", || {
        Lab::reap_stale().unwrap();
        traces(&creator.lab).is_empty()
    });
    assert!(creator.started.iter().all(|p| !p.is_alive()), "{:?} outlived the lab", creator.started);
}

#[test]
fn a_lasting_lab_outlives_its_creator_and_is_not_stale() {
    if !root("a_lasting_lab_outlives_its_creator_and_is_not_stale") {
        return;
    }
    let mut creator = run_creator("lasting");
    Leftover::Lab(creator.lab.clone()).goes_with_caller().unwrap();
    creator.child.kill().unwrap();
    creator.child.wait().unwrap();
    Lab::reap_stale().unwrap();

    let lab = Lab::open(&creator.lab).unwrap();
    let status = lab.status().unwrap();
    let mut there: Vec<ProcessId> = status.hosts[0].processes.iter().map(|p| p.id).collect();
    let mut started = creator.started.clone();
    there.sort();
    started.sort();
    assert_eq!(there, started, "the process that wrote itself down and the one with the mark");
    lab.down().unwrap();
    assert_gone(&creator.lab);
    assert!(creator.started.iter().all(|p| !p.is_alive()), "{:?} outlived the lab", creator.started);
}

#[test]
fn sixty_four_hosts_come_and_go() {
    if root("sixty_four_hosts_come_and_go") {
        sixty_four_hosts();
    }
}

#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_of_sixty_four_hosts_is_seconds() {
    if root("timing_of_sixty_four_hosts_is_seconds") {
        let (up, down) = sixty_four_hosts();
        assert!(up < Duration::from_secs(30) && down < Duration::from_secs(30), "up {up:?}, down {down:?}");
    }
}

/// How long it takes to make a lab of 64 hosts, and to take it down.
fn sixty_four_hosts() -> (Duration, Duration) {
    let begin = Instant::now();
    let lab = lab(64);
    let up = begin.elapsed();
    let status = lab.status().unwrap();
    assert_eq!(status.hosts.len(), 64);
    assert!(status.hosts.iter().flat_map(|h| &h.nics).all(|nic| nic.carrier == Some(true)));
    let name = lab.name().to_string();

    let begin = Instant::now();
    lab.down().unwrap();
    let down = begin.elapsed();
    assert_gone(&name);
    println!("64 hosts: up in {up:?}, down in {down:?}");
    (up, down)
}

#[test]
fn a_creator_killed_half_way_leaves_nothing_that_is_not_reaped() {
    if !root("a_creator_killed_half_way_leaves_nothing_that_is_not_reaped") {
        return;
    }
    // A record, namespaces one by one, all of it: seven traces when it is complete.
    for kind in ["ephemeral", "lasting"] {
        for progress in 1..=7 {
            let name = format!("half-{kind}-{progress}-{}", std::process::id());
            Leftover::Lab(name.clone()).goes_with_caller().unwrap();
            let mut creator = start_creator(kind, Some(&name));
            wait_for("the lab to get that far", || traces(&name).len() >= progress);
            creator.kill().unwrap();
            creator.wait().unwrap();
            Lab::reap_stale().unwrap();
            // A lasting lab that was ready is not stale, however its creator ended.
            if let Ok(lab) = Lab::open(&name) {
                assert_eq!(kind, "lasting");
                lab.down().unwrap();
            }
            assert_gone(&name);
        }
    }
}

/// The kernel tells a tool to die with the process that runs it, but the tool ends only when it
/// leaves the system call it is in: on a busy machine that may be later than the first look at what
/// is there. Here it is later by five seconds.
#[test]
fn what_a_tool_of_a_killed_creator_still_makes_does_not_stay() {
    if !root("what_a_tool_of_a_killed_creator_still_makes_does_not_stay") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (tool, lines, pid) = (directory.path().join("ip"), directory.path().join("lines"), directory.path().join("pid"));
    let path = std::env::var("PATH").unwrap_or_default();
    let inner = format!("echo $$ >{0}.new; mv {0}.new {0}; PATH={path}; sleep 5; ip -batch -", pid.display());
    let text = format!("#!/bin/sh\ncat >{0}\nsh -c '{inner}' <{0} &\nwait\n", lines.display());
    std::fs::write(&tool, text).unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    for kind in ["ephemeral", "lasting"] {
        let name = format!("tool-{kind}-{}", std::process::id());
        Leftover::Lab(name.clone()).goes_with_caller().unwrap();
        let mut command = creator_command(kind, Some(&name));
        command.env("PATH", format!("{}:{path}", directory.path().display()));
        let mut creator = command.spawn().unwrap();
        wait_for("the tool to begin", || pid.exists());
        let tool = ProcessId::of(std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap()).unwrap();
        std::fs::remove_file(&pid).unwrap();
        creator.kill().unwrap();
        creator.wait().unwrap();
        Lab::reap_stale().unwrap();
        assert!(!tool.is_alive(), "{kind}: the tool goes on");
        assert_gone(&name);
    }
}

/// The lab is given half a second by a process that ignores SIGTERM.
#[test]
fn a_stale_lab_that_another_removes_at_the_moment_is_gone_when_reaping_returns() {
    if !root("a_stale_lab_that_another_removes_at_the_moment_is_gone_when_reaping_returns") {
        return;
    }
    let mut creator = run_creator("ephemeral");
    let mut stubborn = Lab::open(&creator.lab).unwrap().command(1, "sh").unwrap();
    let mut stubborn = spawn_quiet(stubborn.args(["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]));
    BufReader::new(stubborn.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    kill_watcher(&creator.lab);
    creator.child.kill().unwrap();
    creator.child.wait().unwrap();

    std::thread::scope(|scope| {
        scope.spawn(|| Lab::reap_stale().unwrap());
        let listed = || Lab::list().unwrap().into_iter().find(|l| l.name == creator.lab);
        wait_for("the lab to be removed", || listed().is_none_or(|l| matches!(l.phase, Phase::Removing { .. })));
        Lab::reap_stale().unwrap();
        assert_gone(&creator.lab);
    });
    stubborn.wait().unwrap();
}

/// Not a test: the process that the next one kills. It makes what a test may make outside of labs.
#[test]
#[ignore = "run by the test of leftovers"]
fn maker() {
    let Ok(directory) = std::env::var("FIDE_LAB_TEST_LEFTOVERS") else { return };
    let directory = Path::new(&directory).join("made");
    let register = |leftover: &Leftover| leftover.goes_with_caller().unwrap();
    register(&Leftover::Directory(directory.clone()));
    std::fs::create_dir_all(directory.join("mount")).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(directory.join("mount")).status().unwrap();
    assert!(mounted.success());
    std::fs::write(directory.join("mount/file"), "").unwrap();

    let namespace = format!("fideleft{}-a", std::process::id());
    register(&Leftover::Namespace(namespace.clone()));
    assert!(Command::new("ip").args(["netns", "add", &namespace]).status().unwrap().success());

    let lab = Lab::up(&LabSpec { hosts: 2, ..LabSpec::default() }).unwrap();
    register(&Leftover::Lab(lab.name().to_string()));

    let start = || {
        let mut command = Command::new("sleep");
        // No signal to this process's group reaches it.
        command.process_group(0);
        command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut child = start();
    register(&Leftover::process(child.id()).unwrap());
    let mut caged = start();
    let cgroup = cgroup(&format!("fide-left-{}", std::process::id()));
    register(&Leftover::Cgroup(cgroup.clone()));
    std::fs::create_dir_all(cgroup.join("inner")).unwrap();
    std::fs::write(cgroup.join("inner/cgroup.procs"), caged.id().to_string()).unwrap();
    for (switch, frozen) in [("freezer.state", "FROZEN"), ("cgroup.freeze", "1")] {
        if cgroup.join(switch).exists() {
            std::fs::write(cgroup.join(switch), frozen).unwrap();
        }
    }

    println!("READY {namespace} {} {} {} {}", lab.name(), child.id(), caged.id(), cgroup.display());
    let _ = std::io::stdin().read(&mut [0u8]);
    for process in [&mut child, &mut caged] {
        let _ = process.wait();
    }
}

/// A control group of this name that processes can be put into, not yet made.
fn cgroup(name: &str) -> PathBuf {
    let roots = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    roots.into_iter().find(|root| root.join("cgroup.procs").exists()).expect("control groups").join(name)
}

#[test]
fn what_a_process_made_outside_of_labs_goes_with_it_when_it_is_interrupted_or_killed() {
    if !root("what_a_process_made_outside_of_labs_goes_with_it_when_it_is_interrupted_or_killed") {
        return;
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "life::maker", "--ignored", "--nocapture"]).env("FIDE_LAB_TEST_LEFTOVERS", directory.path());
        let mut child = command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.map(Result::unwrap).find(|line| line.contains("READY ")).expect("the maker is ready");
        let words: Vec<&str> = line.split_once("READY ").unwrap().1.split(' ').collect();
        let [namespace, lab, child_pid, caged_pid, cgroup] = words[..] else { panic!("{line}") };
        let processes = [child_pid, caged_pid].map(|pid| ProcessId::of(pid.parse().unwrap()).unwrap());
        let made = [directory.path().join("made"), Path::new("/run/netns").join(namespace), cgroup.into()];
        assert!(made.iter().all(|path| path.exists()) && !traces(lab).is_empty(), "{made:?}");

        // SAFETY: the group of our own child, which is not yet waited for.
        assert_eq!(unsafe { libc::kill(-child.id().cast_signed(), signal) }, 0);
        child.wait().unwrap();
        wait_for("everything to go", || made.iter().all(|path| !path.exists()) && traces(lab).is_empty());
        assert!(processes.iter().all(|process| !process.is_alive()), "signal {signal}: {processes:?}");
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(made[0].to_str().unwrap()), "{mounts}");
    }
}

/// What a script that runs tests tells it: an environment, and names with ids of processes in them.
#[test]
fn marked_processes_and_names_of_processes_that_are_gone_are_left_by_nobody() {
    if !root("marked_processes_and_names_of_processes_that_are_gone_are_left_by_nobody") {
        return;
    }
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let [stale, living] = [ended.id(), std::process::id()].map(|pid| format!("fidestale{pid}-1a"));
    for name in [&stale, &living] {
        assert!(Command::new("ip").args(["netns", "add", name]).status().unwrap().success());
    }
    let group = cgroup(&format!("fide-stale-{}-x", ended.id()));
    std::fs::create_dir(&group).unwrap();
    let mark = format!("FIDE_LAB_TEST_MARK={}", std::process::id());
    let sleeper = |mark: &str| {
        let (name, value) = mark.split_once('=').unwrap();
        Command::new("sleep").arg("1000").env(name, value).spawn().unwrap()
    };
    let (mut marked, mut other) = (sleeper(&mark), sleeper(&format!("{mark}0")));

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/leftovers.sh");
    let mut shell = Command::new("/bin/sh");
    shell.arg(script).env_clear().env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    let mut shell = shell.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let groups = cgroup("fide-stale-");
    let lines = format!("mark {mark}\nstale /run/netns/fidestale\nstale {}\n", groups.display());
    shell.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    shell.wait().unwrap();
    let exists = |name: &str| Path::new("/run/netns").join(name).exists();
    assert_eq!((exists(&stale), exists(&living), group.exists()), (false, true, false));
    assert!(marked.try_wait().unwrap().is_some() && other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(Command::new("ip").args(["netns", "del", &living]).status().unwrap().success());
}

#[test]
fn namespaces_and_directories_without_a_record_are_reaped_unless_someone_is_inside() {
    if !root("namespaces_and_directories_without_a_record_are_reaped_unless_someone_is_inside") {
        return;
    }
    let lab = lasting(2);
    let name = lab.name().to_string();
    let mut inside = lab.command(2, "sleep").unwrap().arg("1000").spawn().unwrap();
    std::fs::remove_file(format!("/run/fide/lab/{name}.json")).unwrap();

    Lab::reap_stale().unwrap();
    assert_eq!(traces(&name), [format!("fide-{name}-h2")], "the one that someone is inside of");
    let same_name = Lab::up(&LabSpec { name: Some(name.clone()), ..LabSpec::default() }).unwrap_err();
    assert!(same_name.to_string().contains(&format!("fide-{name}-h2")), "{same_name}");
    assert_eq!(traces(&name), [format!("fide-{name}-h2")], "a refused lab removes nothing that it has not made");

    inside.kill().unwrap();
    inside.wait().unwrap();
    wait_for("the last namespace to be reaped", || {
        Lab::reap_stale().unwrap();
        traces(&name).is_empty()
    });
}

#[test]
fn only_what_was_started_through_the_lab_is_ended_with_it() {
    if !root("only_what_was_started_through_the_lab_is_ended_with_it") {
        return;
    }
    let lab = lab(2);
    let mut foreign = lab.in_host(1, || Command::new("sleep").arg("1000").spawn().unwrap()).unwrap();
    let mut ours = lab.command(1, "sleep").unwrap().arg("1000").spawn().unwrap();
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 1; done";
    let mut stubborn = spawn_quiet(lab.command(2, "sh").unwrap().args(["-c", stubborn]));
    BufReader::new(stubborn.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();

    lab.down().unwrap();
    assert!(ours.try_wait().unwrap().is_some(), "a process of the lab outlived it");
    assert!(stubborn.try_wait().unwrap().is_some(), "a process that ignores SIGTERM outlived the lab");
    assert!(foreign.try_wait().unwrap().is_none(), "a stranger was killed");
    foreign.kill().unwrap();
    foreign.wait().unwrap();
}

/// Such as a hook of an agent: its environment is not the lab's, and its parent ends before it.
const ORPHAN: &str = "env -i /bin/sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' & wait";

#[test]
fn a_stubborn_descendant_without_the_labs_mark_is_ended_with_the_lab() {
    if !root("a_stubborn_descendant_without_the_labs_mark_is_ended_with_the_lab") {
        return;
    }
    let lab = lab(2);
    let mut parent = spawn_quiet(lab.command(1, "sh").unwrap().args(["-c", ORPHAN]));
    let mut pid = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    let orphan = ProcessId::of(pid.trim().parse().unwrap()).unwrap();
    lab.down().unwrap();
    parent.wait().unwrap();
    assert!(!orphan.is_alive(), "it outlived the lab");
}

#[test]
fn a_stubborn_descendant_without_the_labs_mark_is_ended_by_the_watcher_of_a_killed_creator() {
    if !root("a_stubborn_descendant_without_the_labs_mark_is_ended_by_the_watcher_of_a_killed_creator") {
        return;
    }
    let mut creator = run_creator("ephemeral");
    let lab = Lab::open(&creator.lab).unwrap();
    let mut parent = spawn_quiet(lab.command(1, "sh").unwrap().args(["-c", ORPHAN]));
    let mut pid = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    let orphan = ProcessId::of(pid.trim().parse().unwrap()).unwrap();
    creator.child.kill().unwrap();
    creator.child.wait().unwrap();
    wait_for("the lab of a killed creator to go", || traces(&creator.lab).is_empty());
    parent.wait().unwrap();
    assert!(!orphan.is_alive(), "it outlived the lab");
}

#[test]
fn labs_can_be_made_at_the_same_time() {
    if !root("labs_can_be_made_at_the_same_time") {
        return;
    }
    let labs: Vec<Lab> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..4).map(|_| scope.spawn(|| lab(2))).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    let names: Vec<String> = labs.iter().map(|lab| lab.name().to_string()).collect();
    drop(labs);
    names.iter().for_each(|name| assert_gone(name));
}

#[test]
fn two_who_take_the_same_lab_down_do_not_get_in_each_others_way() {
    if !root("two_who_take_the_same_lab_down_do_not_get_in_each_others_way") {
        return;
    }
    let lab = lasting(8);
    let name = lab.name().to_string();
    let other = Lab::open(&name).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| lab.down().unwrap());
        scope.spawn(|| other.down().unwrap());
    });
    assert_gone(&name);
    assert!(matches!(Lab::down_by_name(&name), Err(LabError::NotFound(_))));
}

#[test]
fn an_ordinary_user_is_told_what_is_needed() {
    // As root, a thread of its own gives its privileges up: by the bare system call, which (unlike the C library's
    // function) changes the calling thread only.
    let outcome = std::thread::spawn(|| {
        // SAFETY: setresuid takes three integers.
        let rc = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        // SAFETY: geteuid takes nothing and cannot fail.
        assert!(rc == 0 || unsafe { libc::geteuid() } != 0);
        Lab::up(&LabSpec::default()).map(|lab| lab.name().to_string())
    });
    let error = outcome.join().unwrap().unwrap_err();
    assert!(matches!(error, LabError::NotRoot { .. }), "{error}");
    assert!(error.to_string().contains("sudo"), "{error}");
}
