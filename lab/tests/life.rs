//! Labs come and go, and nothing stays behind, however they end.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::panic::{self, AssertUnwindSafe};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{assert_gone, lab, root, traces, wait_for};
use fide_lab::{Lab, LabError, LabSpec, Phase, ProcessId};

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
    let made = Lab::up(&LabSpec { hosts: 2, ..LabSpec::default() }).unwrap();
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
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "creator", "--ignored", "--nocapture"]).env("FIDE_LAB_TEST_CREATOR", kind);
    if let Some(name) = name {
        command.env("FIDE_LAB_TEST_NAME", name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
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

#[test]
fn a_stale_lab_whose_watcher_was_killed_too_is_reaped() {
    if !root("a_stale_lab_whose_watcher_was_killed_too_is_reaped") {
        return;
    }
    let mut creator = run_creator("ephemeral");
    let record = std::fs::read_to_string(format!("/run/fide/lab/{}.json", creator.lab)).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let watcher = record["watcher"]["pid"].as_i64().unwrap() as i32;
    // SAFETY: kill takes two integers; the process is the watcher that our own child has just started.
    assert_eq!(unsafe { libc::kill(watcher, libc::SIGKILL) }, 0);
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
fn sixty_four_hosts_come_and_go_within_seconds() {
    if !root("sixty_four_hosts_come_and_go_within_seconds") {
        return;
    }
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
    assert!(up < Duration::from_secs(30) && down < Duration::from_secs(30), "up {up:?}, down {down:?}");
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

#[test]
fn namespaces_and_directories_without_a_record_are_reaped_unless_someone_is_inside() {
    if !root("namespaces_and_directories_without_a_record_are_reaped_unless_someone_is_inside") {
        return;
    }
    let lab = Lab::up(&LabSpec { hosts: 2, ..LabSpec::default() }).unwrap();
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
    let lab = Lab::up(&LabSpec { hosts: 8, ..LabSpec::default() }).unwrap();
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
