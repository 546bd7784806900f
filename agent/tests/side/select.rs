//! Finding processes: in a made-up `/proc` with containers, units and twins, and among real ones.

use fide_agent::select::{Place, Resolver, Scope, Target};
use fide_wire::control::{ErrorCode, Selector};
use std::io::BufRead;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A made-up process.
struct Fake<'a> {
    pid: u32,
    ppid: u32,
    comm: &'a str,
    exe: &'a str,
    state: char,
    start: u64,
    cgroup: &'a str,
    net: u32,
    nspids: &'a str,
    /// Real, effective, saved.
    uids: [u32; 3],
    sockets: &'a [u32],
}

impl Default for Fake<'_> {
    fn default() -> Self {
        Self {
            pid: 0,
            ppid: 1,
            comm: "x",
            exe: "/usr/bin/x",
            state: 'S',
            start: 0,
            cgroup: "0::/",
            net: 1,
            nspids: "",
            uids: [7; 3],
            sockets: &[],
        }
    }
}

fn write(proc: &Path, fakes: &[Fake]) {
    for f in fakes {
        let dir = proc.join(f.pid.to_string());
        std::fs::create_dir_all(dir.join("fd")).unwrap();
        std::fs::create_dir_all(dir.join("ns")).unwrap();
        std::fs::create_dir_all(dir.join("net")).unwrap();
        let start = if f.start == 0 { u64::from(f.pid) } else { f.start };
        let stat = format!("{} ({}) {} {} 1 1 0 -1 0 1 1 1 1 1 1 1 1 20 0 1 0 {start} 1 1", f.pid, f.comm, f.state, f.ppid);
        std::fs::write(dir.join("stat"), stat).unwrap();
        let nspids = if f.nspids.is_empty() { f.pid.to_string() } else { f.nspids.into() };
        let [real, effective, saved] = f.uids;
        let status = format!("Tgid:\t{}\nUid:\t{real}\t{effective}\t{saved}\t1\nNSpid:\t{nspids}\n", f.pid);
        std::fs::write(dir.join("status"), status).unwrap();
        std::fs::write(dir.join("cgroup"), f.cgroup).unwrap();
        symlink(f.exe, dir.join("exe")).unwrap();
        symlink(format!("net:[{}]", f.net), dir.join("ns/net")).unwrap();
        symlink("/dev/null", dir.join("fd/0")).unwrap();
        for s in f.sockets {
            symlink(format!("socket:[{s}]"), dir.join(format!("fd/{s}"))).unwrap();
        }
        // Everybody in network n listens on port 6379 with the sockets n*100 .. n*100+9.
        let line = |i: u32| format!(" 0: 00000000:18EB 00000000:0000 0A 0:0 0:0 0 0 0 {} 1\n", f.net * 100 + i);
        let table: String = (0..10).map(line).collect();
        std::fs::write(dir.join("net/tcp"), format!("header\n{table}")).unwrap();
        std::fs::write(dir.join("net/tcp6"), "header\n").unwrap();
    }
    if !proc.join("self").exists() {
        std::fs::create_dir_all(proc.join("self/ns")).unwrap();
        symlink("net:[1]", proc.join("self/ns/net")).unwrap();
    }
}

fn find(fakes: &[Fake], selector: Selector) -> Result<u32, (ErrorCode, String)> {
    find_within(&Scope::default(), fakes, selector)
}

fn find_within(scope: &Scope, fakes: &[Fake], selector: Selector) -> Result<u32, (ErrorCode, String)> {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), fakes);
    Resolver::at(dir.path()).resolve_within(scope, &selector, None).map(|t| t.pid).map_err(|e| (e.code, e.what))
}

fn containers() -> Scope {
    Scope { containers: true, ..Scope::default() }
}

#[test]
fn a_name_is_comm_or_the_executables() {
    let fakes = [
        Fake { pid: 10, comm: "redis-server", exe: "/usr/bin/redis-check-rdb", ..Fake::default() },
        Fake { pid: 11, comm: "java", exe: "/opt/jdk/bin/java (deleted)", ..Fake::default() },
        Fake { pid: 12, comm: "renamed) Z (", exe: "/opt/odd", ..Fake::default() },
    ];
    assert_eq!(find(&fakes, Selector::Name("redis-server".into())), Ok(10));
    assert_eq!(find(&fakes, Selector::Name("java".into())), Ok(11));
    assert_eq!(find(&fakes, Selector::Name("odd".into())), Ok(12));
    assert_eq!(find(&fakes, Selector::Name("renamed) Z (".into())), Ok(12));
    let (code, what) = find(&fakes, Selector::Name("none".into())).unwrap_err();
    assert_eq!(code, ErrorCode::NotFound);
    assert!(what.contains("ps -e"));
}

#[test]
fn twins_are_refused_with_the_candidates() {
    let fakes = [
        Fake { pid: 10, comm: "redis", exe: "/a/redis", ..Fake::default() },
        Fake { pid: 20, comm: "redis", exe: "/b/redis", ..Fake::default() },
    ];
    let (code, what) = find(&fakes, Selector::Name("redis".into())).unwrap_err();
    assert_eq!(code, ErrorCode::Ambiguous);
    assert!(what.contains("10 (/a/redis, user 7)") && what.contains("20 (/b/redis, user 7)"), "{what}");
}

#[test]
fn children_of_a_match_are_not_meant_and_the_own_network_comes_first() {
    let fakes = [
        Fake { pid: 10, comm: "postgres", ..Fake::default() },
        Fake { pid: 11, ppid: 10, comm: "postgres", ..Fake::default() },
        Fake { pid: 12, ppid: 11, comm: "postgres", ..Fake::default() },
        Fake { pid: 13, comm: "postgres", net: 2, ..Fake::default() },
    ];
    assert_eq!(find(&fakes, Selector::Name("postgres".into())), Ok(10));
}

#[test]
fn the_dead_are_refused_and_do_not_hide_the_living() {
    let dead = || Fake { pid: 10, comm: "x", state: 'Z', ..Fake::default() };
    let (code, what) = find(&[dead()], Selector::Name("x".into())).unwrap_err();
    assert!(code == ErrorCode::NotFound && what.contains("already dead"), "{what}");
    let (_, what) = find(&[dead()], Selector::Pid(10)).unwrap_err();
    assert!(what.contains("already dead"), "{what}");
    assert_eq!(find(&[dead(), Fake { pid: 11, comm: "x", ..Fake::default() }], Selector::Name("x".into())), Ok(11));
}

#[test]
fn units_are_found_in_nested_slices_and_in_both_cgroup_versions() {
    let fakes = [
        Fake { pid: 10, cgroup: "1:name=systemd:/system.slice/redis-server.service\n0::/\n", ..Fake::default() },
        Fake { pid: 20, cgroup: "0::/system.slice/system-postgresql.slice/postgresql@15-main.service", ..Fake::default() },
        Fake {
            pid: 21,
            ppid: 20,
            cgroup: "0::/system.slice/system-postgresql.slice/postgresql@15-main.service",
            ..Fake::default()
        },
        Fake { pid: 30, cgroup: "0::/system.slice/box.service/payload", ..Fake::default() },
        Fake { pid: 40, cgroup: "0::/user.slice/user@1.service/app.slice/x.service", ..Fake::default() },
        Fake { pid: 41, cgroup: "0::/user.slice/user@1.service", ..Fake::default() },
    ];
    let unit = |name: &str| find(&fakes, Selector::Unit(name.into()));
    assert_eq!(unit("redis-server.service"), Ok(10));
    assert_eq!(unit("redis-server"), Ok(10));
    assert_eq!(unit("postgresql@15-main.service"), Ok(20));
    assert_eq!(unit("box.service"), Ok(30));
    assert_eq!(unit("user@1.service"), Ok(41));
    assert_eq!(unit("none").unwrap_err().0, ErrorCode::NotFound);
    assert_eq!(unit("--help").unwrap_err().0, ErrorCode::Invalid);
    assert_eq!(unit("a/b").unwrap_err().0, ErrorCode::Invalid);
}

#[test]
fn containers_are_found_by_id_and_path_and_their_init_is_taken() {
    let long = "3f1c5a9e77b2d00dfeed3f1c5a9e77b2d00dfeed3f1c5a9e77b2d00dfeed1234";
    let docker = format!("0::/system.slice/docker-{long}.scope");
    let conmon = format!("0::/machine.slice/libpod-conmon-{long}.scope");
    let fakes = [
        Fake { pid: 9, cgroup: &conmon, ..Fake::default() },
        Fake { pid: 12, start: 50, nspids: "12 7", cgroup: &docker, ..Fake::default() },
        Fake { pid: 30, start: 90, nspids: "30 1", cgroup: &docker, ..Fake::default() },
        Fake { pid: 31, start: 95, nspids: "31 8 1", cgroup: &docker, ..Fake::default() },
        Fake { pid: 50, start: 80, cgroup: "3:memory:/jobs/one\n", ..Fake::default() },
        Fake { pid: 40, start: 99, cgroup: "3:memory:/jobs/one/sub\n", ..Fake::default() },
        Fake { pid: 60, cgroup: "3:memory:/jobs/one-more\n", ..Fake::default() },
    ];
    let cgroup = |name: &str| find(&fakes, Selector::Cgroup(name.into()));
    assert_eq!(cgroup(&long[..12]), Ok(30));
    assert_eq!(cgroup(long), Ok(30));
    assert_eq!(cgroup(&format!("/system.slice/docker-{long}.scope")), Ok(30));
    assert_eq!(cgroup("/sys/fs/cgroup/memory/jobs/one"), Ok(50));
    assert_eq!(cgroup("jobs/one/"), Ok(50));
    assert_eq!(cgroup(&long[..11]).unwrap_err().0, ErrorCode::NotFound, "eleven digits are not an id");
    assert_eq!(cgroup("").unwrap_err().0, ErrorCode::Invalid);
    assert_eq!(cgroup("../..").unwrap_err().0, ErrorCode::Invalid);

    let other = format!("0::/docker/{}", long.replace("1234", "9999"));
    let twins = [Fake { pid: 1, cgroup: &docker, ..Fake::default() }, Fake { pid: 2, cgroup: &other, ..Fake::default() }];
    assert_eq!(find(&twins, Selector::Cgroup(long[..12].into())).unwrap_err().0, ErrorCode::Ambiguous);
}

#[test]
fn the_listener_is_found_own_network_first_then_containers() {
    let init = || Fake { pid: 1, ppid: 0, sockets: &[100], ..Fake::default() };
    let master = || Fake { pid: 10, sockets: &[5, 100], ..Fake::default() };
    let worker = || Fake { pid: 11, ppid: 10, sockets: &[100], ..Fake::default() };
    let container = || Fake { pid: 20, net: 2, sockets: &[200], ..Fake::default() };
    let twin = || Fake { pid: 30, sockets: &[101], ..Fake::default() };
    let port = Selector::Port(6379);
    assert_eq!(find(&[init(), master(), worker(), container()], port.clone()), Ok(10));
    let (code, what) = find(&[master(), twin()], port.clone()).unwrap_err();
    assert!(code == ErrorCode::Ambiguous && what.contains("TCP port 6379 fits 2"), "{what}");
    let (code, what) = find(&[container()], port.clone()).unwrap_err();
    assert!(code == ErrorCode::NotFound && what.contains("process 20") && what.contains("`containers = true`"), "{what}");
    assert_eq!(find_within(&containers(), &[container()], port.clone()), Ok(20));
    assert_eq!(find_within(&containers(), &[container(), master()], port.clone()), Ok(10));
    assert_eq!(find(&[master()], Selector::Port(80)).unwrap_err().0, ErrorCode::NotFound);
    let (_, what) = find(&[Fake { pid: 10, ..Fake::default() }], port).unwrap_err();
    assert!(what.contains("CAP_SYS_PTRACE"), "{what}");
}

#[test]
fn a_name_is_looked_for_among_the_processes_of_its_user() {
    let of = |pid, uids| Fake { pid, uids, comm: "redis", ..Fake::default() };
    let name = || Selector::Name("redis".into());
    let roots = Scope { user: Some(0), ..Scope::default() };
    let (code, what) = find_within(&roots, &[of(10, [1000; 3])], name()).unwrap_err();
    assert_eq!(code, ErrorCode::NotFound);
    for part in ["process 10 (", "user 1000", "only root's", "`user = \"1000\"`", "--user 1000"] {
        assert!(what.contains(part), "{part}: {what}");
    }
    assert_eq!(find_within(&roots, &[of(10, [1000; 3]), of(11, [1000; 3]), of(12, [0; 3])], name()), Ok(12));
    assert_eq!(
        find_within(&Scope { user: Some(1000), ..Scope::default() }, &[of(10, [1000; 3]), of(12, [0; 3])], name()),
        Ok(10)
    );
    // What a user runs with root's rights, by a link of this name to a set-user-ID program, is not root's service; nor is it the user's.
    for between in [[1000, 0, 0], [0, 1000, 0], [1000, 0, 1000]] {
        for scope in [&roots, &Scope { user: Some(1000), ..Scope::default() }] {
            let found = find_within(scope, &[of(10, between)], name());
            assert!(found.is_err(), "{between:?} {scope:?} {found:?}");
        }
    }
    // By its other ways as well, where a user is named.
    let one = [Fake { pid: 10, uids: [1000; 3], cgroup: "0::/system.slice/redis.service", sockets: &[100], ..Fake::default() }];
    for selector in
        [Selector::Pid(10), Selector::Unit("redis".into()), Selector::Cgroup("system.slice".into()), Selector::Port(6379)]
    {
        assert_eq!(find(&one, selector.clone()), Ok(10), "anybody's, unless a user is named");
        let (_, what) = find_within(&roots, &one, selector).unwrap_err();
        assert!(what.contains("only root's"), "{what}");
    }
}

#[test]
fn a_watch_stays_where_its_first_process_was() {
    let dir = tempfile::tempdir().unwrap();
    let redis = |pid| Fake { pid, comm: "redis", cgroup: "0::/system.slice/redis.service", sockets: &[100], ..Fake::default() };
    write(dir.path(), &[redis(10)]);
    let resolver = Resolver::at(dir.path());
    let target = resolver.target(10).unwrap();
    let place = resolver.place(&containers(), &target);
    assert_eq!(place, Place { own_network: true, user: 7, service: Some("/system.slice/redis.service".into()) });
    let scope = Scope { place: Some(place), ..containers() };
    let strangers = [
        (Fake { net: 2, sockets: &[200], ..redis(20) }, "another network namespace"),
        (Fake { uids: [8; 3], ..redis(20) }, "one of user 7 before"),
        (Fake { cgroup: "0::/user.slice/session-3.scope", ..redis(20) }, "the service /system.slice/redis.service before"),
    ];
    for (stranger, why) in strangers {
        for selector in [Selector::Port(6379), Selector::Name("redis".into())] {
            let alone = std::slice::from_ref(&stranger);
            assert!(find_within(&containers(), alone, selector.clone()).is_ok(), "the first of a watch may be: {why}");
            let (code, what) = find_within(&scope, alone, selector.clone()).unwrap_err();
            assert!(code == ErrorCode::NotFound && what.contains(why) && what.contains("make it anew"), "{why}: {what}");
        }
    }
    assert_eq!(find_within(&scope, &[redis(30)], Selector::Port(6379)), Ok(30));
    // One of a container stays in containers.
    let outside = Scope { place: Some(Place { own_network: false, user: 7, service: None }), ..containers() };
    assert_eq!(find_within(&outside, &[Fake { net: 3, sockets: &[300], ..redis(20) }], Selector::Port(6379)), Ok(20));
    let (_, what) = find_within(&outside, &[redis(20)], Selector::Port(6379)).unwrap_err();
    assert!(what.contains("own network namespace"), "{what}");
}

#[test]
fn units_and_containers_of_users_own_managers_are_not_the_systems() {
    let id = "3f1c5a9e77b2d00dfeed3f1c5a9e77b2d00dfeed3f1c5a9e77b2d00dfeed1234";
    let of_user = |leaf: &str| format!("0::/user.slice/user-7.slice/user@7.service/app.slice/{leaf}");
    let (unit, container) = (of_user("redis.service"), of_user(&format!("docker-{id}.scope")));
    let fakes = [Fake { pid: 10, cgroup: &unit, ..Fake::default() }, Fake { pid: 11, cgroup: &container, ..Fake::default() }];
    for (selector, pid) in [(Selector::Unit("redis".into()), 10), (Selector::Cgroup(id[..12].into()), 11)] {
        assert_eq!(find(&fakes, selector.clone()).unwrap_err().0, ErrorCode::NotFound);
        let own = |uid| Scope { manager: Some(uid), ..Scope::default() };
        assert_eq!(find_within(&own(7), &fakes, selector.clone()), Ok(pid));
        assert_eq!(find_within(&own(8), &fakes, selector).unwrap_err().0, ErrorCode::NotFound);
    }
    // The system's own one is found beside it.
    let system = Fake { pid: 12, cgroup: "0::/system.slice/redis.service", ..Fake::default() };
    assert_eq!(find(&[Fake { pid: 10, cgroup: &unit, ..Fake::default() }, system], Selector::Unit("redis".into())), Ok(12));
    // A path says itself where it is.
    assert_eq!(find(&fakes, Selector::Cgroup(unit[3..].into())), Ok(10));
}

#[test]
fn one_process_is_known_to_fit_without_a_look_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let long = "3f1c5a9e77b2d00dfeed3f1c5a9e77b2d00dfeed3f1c5a9e77b2d00dfeed1234";
    let container = format!("0::/system.slice/docker-{long}.scope");
    write(
        dir.path(),
        &[
            Fake { pid: 10, comm: "redis", cgroup: "0::/system.slice/redis.service", sockets: &[100], ..Fake::default() },
            Fake { pid: 11, comm: "redis", ..Fake::default() },
            Fake { pid: 12, cgroup: &container, net: 2, ..Fake::default() },
        ],
    );
    let resolver = Resolver::at(dir.path());
    let fits = |scope: &Scope, selector: Selector| -> Vec<u32> {
        [10, 11, 12].into_iter().filter(|pid| resolver.fits(scope, &selector, *pid)).collect()
    };
    let any = Scope::default();
    assert_eq!(fits(&any, Selector::Name("redis".into())), [10, 11]);
    assert_eq!(fits(&any, Selector::Unit("redis".into())), [10]);
    assert_eq!(fits(&any, Selector::Port(6379)), [10]);
    assert_eq!(fits(&any, Selector::Cgroup(long[..12].into())), [12]);
    assert_eq!(fits(&any, Selector::Pid(11)), [11]);
    assert!(fits(&Scope { user: Some(0), ..any }, Selector::Name("redis".into())).is_empty());
}

/// A child that is killed and reaped at the end of the test.
struct Guard(Child);
impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeper() -> Guard {
    let child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    fide_lab::Leftover::process(child.id()).unwrap().goes_with_caller().unwrap();
    Guard(child)
}

#[test]
fn a_real_process_is_itself_until_it_dies() {
    let mut child = sleeper();
    let resolver = Resolver::default();
    let target: Target = resolver.resolve(&Selector::Pid(child.0.id()), Some(std::process::id())).unwrap();
    assert!(target.start_ticks > 0 && target.nspids.first() == Some(&child.0.id()));
    assert!(resolver.still_same(&target));
    assert!(!resolver.still_same(&Target { start_ticks: target.start_ticks + 1, ..target.clone() }), "a number used again");
    child.0.kill().unwrap();
    while resolver.still_same(&target) {
        std::thread::yield_now();
    }
    let refused = resolver.target(child.0.id()).unwrap_err();
    assert!(refused.what.contains("already dead"), "{refused}");
    child.0.wait().unwrap();
    assert_eq!(resolver.target(target.pid).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn a_thread_is_not_a_process() {
    let (tx, rx) = std::sync::mpsc::channel();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: gettid has no preconditions.
        tx.send(unsafe { libc::gettid() } as u32).unwrap();
        let _ = stopped.recv();
    });
    let refused = Resolver::default().target(rx.recv().unwrap()).unwrap_err();
    assert!(refused.code == ErrorCode::Invalid && refused.what.contains(&std::process::id().to_string()), "{refused}");
    drop(stop);
    thread.join().unwrap();
}

#[test]
fn a_real_listener_is_found() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
        let port = listener.local_addr().unwrap().port();
        // Another test's child may hold an inherited copy for a moment; it is this process's child, so this one is taken.
        let target = Resolver::default().resolve(&Selector::Port(port), None).unwrap();
        assert_eq!(target.pid, std::process::id());
    }
}

#[test]
fn a_pid_is_read_in_the_namespace_of_whom_asks() {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED: needs root to make a pid namespace");
        return;
    }
    // In a new pid namespace: a shell (1) and a sleep; the shell prints what it calls the sleep.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "sh", "-c", "sleep 60 & echo $!; wait"]);
    let Ok(child) = command.stdout(Stdio::piped()).process_group(0).spawn() else {
        println!("SKIPPED: no unshare");
        return;
    };
    let mut guard = Guard(child);
    let mut line = String::new();
    std::io::BufReader::new(guard.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let Ok(inner) = line.trim().parse::<u32>() else {
        println!("SKIPPED: pid namespaces cannot be made here");
        return;
    };
    let resolver = Resolver::default();
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", guard.0.id())).unwrap();
    let shell: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
    let target = resolver.resolve(&Selector::Pid(inner), Some(shell)).unwrap();
    assert_eq!(target.nspids.last(), Some(&inner));
    assert_eq!(target.nspids[0], target.pid);
    assert_eq!(resolver.resolve(&Selector::Pid(1), Some(shell)).unwrap().pid, shell);
    assert_ne!(resolver.resolve(&Selector::Pid(1), None).map(|t| t.pid), Ok(shell));
    assert_eq!(resolver.resolve(&Selector::Pid(4_000_000), Some(shell)).unwrap_err().code, ErrorCode::NotFound);
}
