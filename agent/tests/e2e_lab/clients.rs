//! Applications: their messages, their rings, their mistakes, their rights.

use crate::common::{Process, Setup, Watcher, World, kill, named, until, wait_for};
use fide_client::{Client, Error, Event, Options, Resources};
use fide_lab::Cut;
use fide_wire::control::{ErrorCode, MESSAGE_MAX, Reply, Request, Selector};
use fide_wire::verdict::Cause;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Stdio;
use std::time::{Duration, Instant};

const WANT: Resources = Resources { pbsize: 1418, timeout: Duration::ZERO };

// ---- piggybacks ---------------------------------------------------------------------------------------------------------------

fn number(message: &[u8]) -> u32 {
    u32::from_be_bytes(message[..4].try_into().unwrap())
}

/// Messages of the largest size that a ring holds beside each other, with room to spare.
const IN_A_RING: u32 = 30;

/// `count` messages of this length, numbered from `from` on, are piggybacked, and arrive in order,
/// once each, at all of them. Those that are under way have room in a ring, however late it is
/// read.
fn piggybacked(sender: &mut Process, watchers: &mut [Watcher], name: &str, length: usize, from: u32, count: u32) {
    let mut next = from;
    while next < from + count {
        let some = IN_A_RING.min(from + count - next);
        sender.say(&format!("piggyback {length} {next} {some}"));
        assert_eq!(sender.hear(), format!("ok {some}"));
        next += some;
        in_order(watchers, name, from, next - from);
    }
}

/// `count` messages from `from` on arrive in order, once each, at all of them.
fn in_order(watchers: &mut [Watcher], name: &str, from: u32, count: u32) {
    until("all messages have arrived", || {
        let last = |w: &Watcher| w.messages().last().is_some_and(|m| m.len() >= 4 && number(m) == from + count - 1);
        watchers.iter_mut().for_each(Watcher::drain);
        watchers.iter().all(last)
    });
    for watcher in watchers {
        let messages = watcher.messages();
        let numbers: Vec<u32> = messages.iter().filter(|m| m.len() >= 4).map(|m| number(m)).filter(|n| *n >= from).collect();
        assert_eq!(numbers, (from..from + count).collect::<Vec<_>>(), "h{}", watcher.host);
        let others = watcher.seen.iter().filter(|e| matches!(e, Event::Piggyback(p) if p.from.name.as_deref() != Some(name)));
        assert_eq!(others.count(), 0, "all from {name}");
    }
}

#[test]
fn piggybacks_arrive_in_order_once_each_on_two_paths_and_on_one() {
    let Some(w) = Setup::hosts(3).up() else { return };
    let mut sender = w.actor(1, "application", &[]);
    assert_eq!(sender.hear(), "ready");
    sender.say("join writer 1418");
    assert!(sender.hear().contains("1418"));
    w.known(1, "writer");
    let mut watchers = [w.subscriber(2, false), w.subscriber(3, true), w.subscriber(1, false)];
    for watcher in &watchers {
        assert_eq!(watcher.client.monitor("writer@h1", WANT).unwrap().granted.pbsize, 1418);
    }
    sender.say("piggyback 1 0 1");
    assert_eq!(sender.hear(), "ok 1");
    for watcher in &mut watchers {
        watcher.wait("one byte", |e| matches!(e, Event::Piggyback(p) if p.message == [0]));
    }
    sender.say("piggyback 1419 0 1");
    let refused = sender.hear();
    assert!(refused.starts_with("error") && refused.contains("1419") && refused.contains("1418"), "{refused}");
    piggybacked(&mut sender, &mut watchers, "writer@h1", 1418, 0, 100);
    w.lab.cut(1, 1, Cut::Silent).unwrap();
    for observer in [2, 3] {
        w.event(observer, "path down", |e| e.cause == Cause::PathDown && e.node == "h1");
    }
    piggybacked(&mut sender, &mut watchers, "writer@h1", 40, 100, 100);
}

/// FiDe §4.1: what was sent before the crash arrives before its notice, nothing afterwards.
fn last_words(w: &World, sockets: [bool; 2]) {
    for round in 0..10 {
        let name = format!("writer{round}");
        let mut sender = w.actor(1, "application", &[]);
        assert_eq!(sender.hear(), "ready");
        sender.say(&format!("join {name} 100"));
        assert!(sender.hear().starts_with("ok"));
        w.known(1, &name);
        let full = format!("{name}@h1");
        let mut watchers = [w.subscriber(2, sockets[0]), w.subscriber(if sockets[0] == sockets[1] { 3 } else { 2 }, sockets[1])];
        for watcher in &watchers {
            watcher.client.monitor(&full, WANT).unwrap();
        }
        sender.say("stream");
        assert_eq!(sender.hear(), "ok streaming");
        for watcher in &mut watchers {
            watcher.wait("it streams", |e| matches!(e, Event::Piggyback(p) if number(&p.message) >= 5));
        }
        // Half of the time this observer's agent is held up meanwhile, and finds words and crash together.
        let held = round % 2 == 1;
        if held {
            w.signal_agent(2, libc::SIGSTOP);
            w.goes_on(1, 5);
        }
        sender.kill();
        if held {
            w.event(1, "its end", |e| e.cause == Cause::Killed && e.app.as_deref() == Some(name.as_str()));
            w.goes_on(1, 5);
            w.signal_agent(2, libc::SIGCONT);
        }
        let mut lasts = Vec::new();
        for watcher in &mut watchers {
            // Where the foretold end and the end come together, only the end is told.
            if watcher.failure(&full).cause == Cause::Doomed {
                watcher.confirmation(&full);
            }
            // Whatever was still under way comes before the next heartbeats.
            w.hears(watcher.host, "h1", 3);
            watcher.drain();
            let failed = watcher.seen.iter().position(|e| matches!(e, Event::Failure(v) if named(v, &full))).unwrap();
            let late = watcher.seen[failed..].iter().filter(|e| matches!(e, Event::Piggyback(_))).count();
            assert_eq!(late, 0, "nothing comes after the crash was told");
            let numbers: Vec<u32> = watcher.messages().iter().map(|m| number(m)).collect();
            assert_eq!(numbers, (numbers[0]..numbers[0] + numbers.len() as u32).collect::<Vec<_>>(), "no gap");
            lasts.extend(numbers.last().copied());
        }
        assert_eq!(lasts[0], lasts[1], "everybody hears the same last words");
    }
}

#[test]
fn fide_4_1_last_words_come_before_the_crash_by_socket() {
    let Some(w) = Setup::hosts(3).heartbeat("5ms").up() else { return };
    last_words(&w, [true, true]);
}

#[test]
fn fide_4_1_last_words_come_before_the_crash_by_ring() {
    let Some(w) = Setup::hosts(3).heartbeat("5ms").up() else { return };
    last_words(&w, [false, false]);
}

/// Where one application of a host takes its events by socket, which only the agent can write, the others' order holds as well.
#[test]
fn fide_4_1_last_words_come_before_the_crash_by_both() {
    let Some(w) = Setup::hosts(3).heartbeat("5ms").up() else { return };
    last_words(&w, [false, true]);
}

// ---- what is monitored -----------------------------------------------------------------------------------------------------------

#[test]
fn who_asks_before_the_process_and_its_host_exist_hears_of_both() {
    let Some(mut w) = Setup::hosts(3).empty().up() else { return };
    w.start(2);
    let mut early = w.monitor(2, "db@h1");
    let mut host = w.monitor(2, "@h1");
    assert!(!early.client.monitor("db@h1", Resources::default()).unwrap().alive);
    w.start(1);
    w.all_alive();
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    for watcher in [&mut early, &mut host] {
        watcher.wait("it came", |e| matches!(e, Event::Monitored(v) if named(v, "db@h1")));
    }
    p.kill();
    for watcher in [&mut early, &mut host] {
        watcher.failure("db@h1");
        watcher.confirmation("db@h1");
        assert_eq!(watcher.failures().len(), 1);
    }
}

/// A process that is killed as soon as it is watched is told by name even where its notice came before its name.
#[test]
fn a_process_that_dies_at_once_is_not_missed() {
    let Some(w) = Setup::hosts(2).up() else { return };
    for round in 0..20 {
        let name = format!("brief{round}");
        let mut watcher = w.monitor(2, &format!("{name}@h1"));
        let p = w.sleeper(1);
        let pid = p.pid();
        w.watch(1, &name, pid);
        p.kill();
        watcher.failure(&format!("{name}@h1"));
        watcher.drain();
        assert_eq!(watcher.failures().len(), 1);
    }
}

fn named_program(w: &World, host: u16, name: &str) -> String {
    let program = w.lab.host_dir(host).join(name);
    std::fs::copy("/bin/sleep", &program).unwrap();
    program.display().to_string()
}

#[test]
fn a_standing_watch_follows_restarts_and_ends_when_it_is_told() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let program = named_program(&w, 1, "e2e-restarts");
    let mut watcher = w.monitor(2, "db@h1");
    let mut p = w.process(1, &program, &["1000"]);
    w.ask(1, &Request::watch("db", Selector::Name("e2e-restarts".into()))).unwrap();
    w.known(1, "db");
    for crash in 1..=3 {
        p.kill();
        until("it is told", || watcher.failures_of("db@h1") == crash);
        p = w.process(1, &program, &["1000"]);
        w.known(1, "db");
        assert!(watcher.client.monitor("db@h1", Resources::default()).unwrap().alive);
    }
    // By port as well.
    let listen = "import socket,sys\ns=socket.socket();s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1);s.bind(('127.0.0.1',7901));s.listen();sys.stdin.read()";
    if std::process::Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_ok() {
        let server = w.process(1, "python3", &["-c", listen]);
        until("it listens", || w.ask(1, &Request::watch("server", Selector::Port(7901))).is_ok());
        w.known(1, "server");
        let mut there = w.monitor(2, "server@h1");
        server.kill();
        there.failure("server@h1");
    }
    // Nobody listens any more.
    watcher.client.unmonitor("db@h1").unwrap();
    assert!(matches!(watcher.client.unmonitor("db@h1"), Err(Error::Refused(r)) if r.code == ErrorCode::NotFound));
    let mut other = w.monitor(2, "db@h1");
    p.kill();
    other.failure("db@h1");
    other.confirmation("db@h1");
    assert_eq!(watcher.failures_of("db@h1"), 3);
    w.ask(1, &Request::Unwatch { name: "db".into() }).unwrap();
    // The next one is found by another watch of that name, and not by this one.
    let lines = "[[watch]]\nname = \"other\"\nprocess = \"e2e-restarts\"\n";
    w.write_config(1, &format!("{}\n{lines}", w.head(1, "h1", "2ms")));
    w.ask(1, &Request::Reload).unwrap();
    let next = w.process(1, &program, &["1000"]);
    let alive = || w.status(1).watched.into_iter().filter(|a| a.state == "alive").map(|a| (a.name, a.pid)).collect::<Vec<_>>();
    until("the next one is found", || !alive().is_empty());
    assert_eq!(alive(), [("other".to_string(), next.pid())]);
}

/// One host with a watch by the name of this program, told to by its configuration.
fn configured_watch(name: &'static str) -> Option<World> {
    Setup::hosts(2)
        .extra(move |h| if h == 1 { format!("[[watch]]\nname = \"db\"\nprocess = \"{name}\"\n") } else { String::new() })
        .up()
}

/// Issue 24: of five processes that lived for 50 ms none was told, of those that lived for 0.2 s one. They were searched every half second.
#[test]
fn every_crash_of_a_process_that_does_not_live_long_is_told() {
    crash_loop(None);
}

#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_every_crash_of_a_process_that_lives_for_a_tenth_of_a_second_is_told() {
    crash_loop(Some(Duration::from_millis(100)));
}

/// Processes that are killed after so long, or as soon as they are watched.
fn crash_loop(lives: Option<Duration>) {
    let Some(w) = configured_watch("e2e-crash-loop") else { return };
    let live = |pid: u32| match lives {
        // Sleep: how long it lives, which is what is tried.
        Some(lives) => std::thread::sleep(lives),
        None => until("it is watched", || w.status(1).watched.iter().any(|a| a.state == "alive" && a.pid == pid)),
    };
    let program = named_program(&w, 1, "e2e-crash-loop");
    let mut watcher = w.monitor(2, "db@h1");
    for _ in 0..8 {
        let p = w.process(1, &program, &["1000"]);
        live(p.pid());
        p.kill();
    }
    until("all are told", || watcher.failures_of("db@h1") >= 8);
    assert_eq!(watcher.failures_of("db@h1"), 8, "once each");
    // By port as well, from the moment on that it listens.
    if std::process::Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err() {
        return;
    }
    let listens = "import socket,sys,time\ns=socket.socket();s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1);s.bind(('127.0.0.1',7902));s.listen();print('',flush=True);time.sleep(100)";
    let start = || {
        let (mut out, output) = std::io::pipe().unwrap();
        let mut command = w.lab.command(1, "python3").unwrap();
        command.args(["-c", listens]).stdin(Stdio::null()).stdout(output).stderr(Stdio::null());
        let server = crate::common::Process::spawn(command);
        out.read_exact(&mut [0]).unwrap(); // it listens
        server
    };
    let mut server = start();
    // On a busy machine a look-up may take too long.
    until("its port is looked up", || w.ask(1, &Request::watch("server", Selector::Port(7902))).is_ok());
    let mut there = w.monitor(2, "server@h1");
    for crash in 1..=4 {
        live(server.pid());
        server.kill();
        server.ended();
        until("it is told", || there.failures_of("server@h1") >= crash);
        server = start();
    }
}

/// How many are told of those that live still shorter: `FIDE_CRASHES=100 … --ignored` prints it.
#[test]
#[ignore = "a measurement"]
fn how_short_a_life_is_told() {
    let Some(w) = configured_watch("e2e-crash-loop") else { return };
    let program = named_program(&w, 1, "e2e-crash-loop");
    let crashes = std::env::var("FIDE_CRASHES").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let mut watcher = w.monitor(2, "db@h1");
    for life_us in [50_000, 20_000, 10_000, 5_000, 2_000, 1_000, 500, 0] {
        let before = watcher.failures_of("db@h1");
        for _ in 0..crashes {
            let mut p = w.process(1, &program, &["1000"]);
            // Sleep: how long it lives.
            std::thread::sleep(Duration::from_micros(life_us));
            p.kill();
            p.ended();
        }
        // Sleep: those that are told have been told by then; of the others nothing can be waited
        // for.
        std::thread::sleep(Duration::from_millis(300));
        println!("{life_us} us: {} of {crashes} told", watcher.failures_of("db@h1") - before);
    }
}

/// What a crashed process left behind is not taken for its next instance, whatever it is called: a fence would open for it.
#[test]
fn a_child_that_a_crash_left_behind_is_no_next_instance() {
    let Some(w) = configured_watch("e2e-left") else { return };
    let program = w.lab.host_dir(1).join("e2e-left");
    std::fs::copy(std::fs::canonicalize("/bin/sh").unwrap(), &program).unwrap();
    let (fifo, pids) = (w.lab.host_dir(1).join("fifo"), w.lab.host_dir(1).join("pid"));
    let (blocks, notes) = (format!("read line <> {}", fifo.display()), pids.display());
    let script = format!("mkfifo {}; ({blocks}) & echo $! > {notes}; {blocks}", fifo.display());
    let first = w.process(1, program.to_str().unwrap(), &["-c", &script]);
    let mut watcher = w.monitor(2, "db@h1");
    let child: i32 = wait_for("its child", || std::fs::read_to_string(&pids).ok()?.trim().parse().ok());
    let row = || w.status(1).watched.into_iter().filter(|a| a.name == "db").collect::<Vec<_>>();
    until("it is watched", || row().iter().any(|a| a.state == "alive" && a.pid == first.pid()));
    // Sleep: start times are counted in hundredths of a second.
    std::thread::sleep(Duration::from_millis(20));
    first.kill();
    watcher.failure("db@h1");
    until("it is told why nobody is watched", || row().iter().any(|a| a.why.contains("left behind")));
    assert!(row().iter().all(|a| a.state != "alive"), "{:?}", row());
    let next = w.process(1, program.to_str().unwrap(), &["-c", &blocks]);
    until("the next one is watched", || row().iter().any(|a| a.state == "alive" && a.pid == next.pid()));
    // SAFETY: a process of this test's own: signal 0 asks whether it is there.
    assert_eq!(unsafe { libc::kill(child, 0) }, 0, "while the other still lives");
    kill(child, libc::SIGKILL);
}

/// A server that goes into the background: its first process ends cleanly, and its child is the one that is watched. Nobody is told of a failure.
///
/// Its parent takes note of the first one's end when the child is watched: then the agent sees that
/// it was clean, also if it was late to watch it. A first process that needs more than a second, by
/// which a clean end is an end, is followed by another one.
#[test]
fn a_server_that_goes_into_the_background_does_not_fail_by_that() {
    let Some(w) = configured_watch("e2e-daemon") else { return };
    let program = w.lab.host_dir(1).join("e2e-daemon");
    std::fs::copy(std::fs::canonicalize("/bin/sh").unwrap(), &program).unwrap();
    let (fifo, pids) = (w.lab.host_dir(1).join("fifo"), w.lab.host_dir(1).join("pid"));
    let script = format!("mkfifo {0}; (read line <> {0}) & echo $! > {1}; exit 0", fifo.display(), pids.display());
    let mut watcher = w.monitor(2, "db@h1");
    let (mut in_time, mut told) = (0, 0);
    until("ten first processes were done within a second, some of which were watched", || {
        let _ = std::fs::remove_file(&fifo); // the first time there is none
        let began = Instant::now();
        let mut first = w.process(1, program.to_str().unwrap(), &["-c", &script]);
        let stat = format!("/proc/{}/stat", first.pid());
        let has_ended = || std::fs::read_to_string(&stat).unwrap().rsplit(") ").next().unwrap().starts_with('Z');
        until("it has ended", has_ended);
        let is_in_time = began.elapsed() < Duration::from_secs(1);
        let pid: i32 = std::fs::read_to_string(&pids).unwrap().trim().parse().unwrap();
        until("its child is watched", || {
            w.status(1).watched.iter().any(|a| a.name == "db" && a.state == "alive" && a.pid == pid as u32)
        });
        first.ended();
        assert!(watcher.failures_of("db@h1") == told || !is_in_time, "{:?}", watcher.seen);
        let before = watcher.failures_of("db@h1");
        kill(pid, libc::SIGKILL);
        until("its end is told", || watcher.failures_of("db@h1") > before);
        if !is_in_time {
            w.goes_on(1, 100); // the first one's end may have been told, too
        }
        told = watcher.failures_of("db@h1");
        assert!(told == before + 1 || !is_in_time, "{:?}", watcher.seen);
        in_time += u32::from(is_in_time);
        in_time >= 10 && w.log(1).contains("HandedOver")
    });
}

/// A process that takes long to die is not taken for its own successor.
#[test]
fn a_dying_process_is_not_watched_again() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let program = named_program(&w, 1, "e2e-slow-death");
    let mut watcher = w.monitor(2, "*");
    // Its parent traces it, so that it stays on the threshold of death until the tracer lets it go.
    let p = w.process(1, &program, &["1000"]);
    let pid = p.pid().cast_signed();
    w.ask(1, &Request::watch("slow", Selector::Name("e2e-slow-death".into()))).unwrap();
    w.known(1, "slow");
    const EXIT_KILL_STOP: usize = libc::PTRACE_O_TRACEEXIT as usize;
    // SAFETY: ptrace of a child with integer arguments; results are checked.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, pid, 0usize, EXIT_KILL_STOP), 0);
    }
    kill(pid, libc::SIGTERM);
    // It stops at the signal; passed on, it stops once more on its way out.
    let mut exiting = false;
    while !exiting {
        let mut status = 0;
        // SAFETY: waits for a traced child and lets it go on with the signal it was stopped for.
        unsafe {
            assert_eq!(libc::waitpid(pid, &raw mut status, libc::__WALL), pid);
            if status >> 8 == (libc::SIGTRAP | libc::PTRACE_EVENT_EXIT << 8) {
                exiting = true;
            } else {
                assert!(libc::WIFSTOPPED(status), "{status:#x}");
                assert_eq!(libc::ptrace(libc::PTRACE_CONT, pid, 0usize, libc::WSTOPSIG(status) as usize), 0);
            }
        }
    }
    watcher.failure("slow@h1");
    // Its successor is looked for, and once more.
    until("a successor was looked for", || {
        w.status(1).watched.iter().any(|a| a.name == "slow" && a.state == "pending" && !a.why.is_empty())
    });
    w.goes_on(1, 300);
    assert_eq!(watcher.failures().len(), 1);
    assert!(w.status(1).watched.iter().all(|a| a.state != "alive"), "{:?}", w.status(1).watched);
    // SAFETY: as above.
    unsafe { libc::ptrace(libc::PTRACE_CONT, pid, 0usize, 0usize) };
    watcher.confirmation("slow@h1");
    assert_eq!(watcher.failures().len(), 1);
}

// ---- rings and connections -------------------------------------------------------------------------------------------------------

#[test]
fn rings_are_counted_and_come_back() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let options = || Options { path: Some(w.socket(2)), ..Options::default() };
    let mut clients: Vec<Client> = (0..64).map(|_| Client::open_with(options()).unwrap()).collect();
    for client in &clients[..20] {
        client.monitor("db@h1", Resources::default()).unwrap();
    }
    let refused = Client::open_with(options()).unwrap_err();
    assert!(matches!(&refused, Error::Refused(r) if r.code == ErrorCode::Full && r.what.contains("64")), "{refused}");
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    p.kill();
    for client in &clients[..20] {
        let mut failures = 0;
        while failures == 0 {
            let event = client.poll(Some(crate::common::PATIENCE)).unwrap().expect("told in time");
            failures += usize::from(matches!(event, Event::Failure(_)));
        }
    }
    clients.truncate(10);
    until("rings are free again", || Client::open_with(options()).is_ok());
    let mut again = w.monitor(2, "late@h1");
    let p = w.sleeper(1);
    w.watch_known(1, "late", p.pid());
    p.kill();
    again.failure("late@h1");
}

#[test]
fn who_never_reads_disturbs_nobody_and_hears_how_much_it_missed() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut lazy = w.monitor(2, "*");
    let mut lazy_socket = w.subscriber(2, true);
    lazy_socket.client.monitor("*", Resources::default()).unwrap();
    let mut sender = w.actor(1, "application", &[]);
    assert_eq!(sender.hear(), "ready");
    sender.say("join writer 1000");
    assert!(sender.hear().starts_with("ok"));
    w.known(1, "writer");
    for (watcher, target) in [(&lazy, "writer@h1"), (&lazy_socket, "writer@h1")] {
        watcher.client.monitor(target, WANT).unwrap();
    }
    let mut keen = w.subscriber(2, false);
    keen.client.monitor("writer@h1", WANT).unwrap();
    // Far more than a ring holds.
    piggybacked(&mut sender, std::slice::from_mut(&mut keen), "writer@h1", 1000, 0, 600);
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    let mut other = w.monitor(2, "db@h1");
    p.kill();
    other.failure("db@h1");
    for watcher in [&mut lazy, &mut lazy_socket] {
        watcher.drain();
        assert!(watcher.messages().len() < 600);
    }
    // When there is room again, the loss is told. (A socket's with the next event.)
    let p = w.sleeper(1);
    w.watch_known(1, "next", p.pid());
    for watcher in [&mut lazy, &mut lazy_socket] {
        // In parts, where there was room for a few bytes in between. All that was sent came, or is counted.
        while watcher.lost() + (watcher.messages().len() as u64) < 600 {
            let known = watcher.seen.len();
            watcher.wait_behind(known, "what it lost", |e| matches!(e, Event::Lost { .. }));
        }
        assert!(watcher.lost() > 100, "{}", watcher.lost());
    }
}

/// A raw connection to the agent's socket.
fn raw(w: &World, host: u16) -> OwnedFd {
    // SAFETY: a fresh socket, and an address of the stated length; results are checked.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        let fd = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as u16;
        let path = w.socket(host);
        for (to, from) in address.sun_path.iter_mut().zip(path.to_str().unwrap().bytes()) {
            *to = from.cast_signed();
        }
        assert_eq!(libc::connect(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32), 0);
        let timeout = libc::timeval { tv_sec: 20, tv_usec: 0 };
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const timeout).cast(),
            size_of_val(&timeout) as u32,
        );
        fd
    }
}

fn send(fd: &OwnedFd, bytes: &[u8], flags: i32) -> isize {
    // SAFETY: an open socket and a buffer of the stated length.
    unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL | flags) }
}

fn receive(fd: &OwnedFd) -> String {
    let mut buf = vec![0u8; MESSAGE_MAX];
    // SAFETY: an open socket and a buffer of the stated length.
    let n = unsafe { libc::recv(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0) };
    String::from_utf8_lossy(&buf[..n.max(0) as usize]).into_owned()
}

#[test]
fn hostile_messages_hurt_nobody() {
    let Some(mut w) = Setup::hosts(2).up() else { return };
    let hello = br#"{"op":"hello","protocol":1}"#;
    let c = raw(&w, 1);
    send(&c, br#"{"op":"status"}"#, 0);
    assert!(receive(&c).contains("hello"), "who does not greet is told to");
    send(&c, hello, 0);
    assert!(receive(&c).contains("\"re\":\"hello\""));
    for garbage in
        [&b"\0\xff\xfe"[..], b"{", b"[]", b"{\"op\":\"fly\"}", br#"{"op":"watch","name":"a"}"#, b"null", &[b'['; 100_000]]
    {
        send(&c, garbage, 0);
        assert!(receive(&c).contains("\"code\":\"invalid\""), "{garbage:?}");
    }
    send(&c, &vec![b' '; MESSAGE_MAX], 0);
    assert!(receive(&c).contains("invalid"));
    send(&c, &vec![b' '; MESSAGE_MAX + 1], 0);
    assert!(receive(&c).contains("too-large"));
    for (name, code) in [("a b", "invalid"), ("", "invalid"), (&"x".repeat(65)[..], "invalid"), ("a@b", "invalid")] {
        let request = Request::watch(name, Selector::Pid(std::process::id()));
        send(&c, &serde_json::to_vec(&request).unwrap(), 0);
        assert!(receive(&c).contains(code), "{name}");
    }
    for pid in [0, 1 << 30, u32::MAX] {
        let request = Request::watch("x", Selector::Pid(pid));
        send(&c, &serde_json::to_vec(&request).unwrap(), 0);
        assert!(receive(&c).contains("error"));
    }
    for target in ["", "db", "@", &format!("{}@h2", "n".repeat(100_000))] {
        send(&c, &serde_json::to_vec(&Request::Monitor { target: target.into(), pbsize: 0, timeout_ns: 0 }).unwrap(), 0);
        assert!(receive(&c).contains("error"));
    }
    // Descriptors are not taken.
    let fds = || std::fs::read_dir(format!("/proc/{}/fd", w.agent_pid(1))).unwrap().count();
    let fds_before = fds();
    for _ in 0..50 {
        send_with_descriptor(&c, br#"{"op":"fly"}"#);
        assert!(receive(&c).contains("invalid"));
    }
    // Some that were there before may have been closed meanwhile: of connections that ended. The agent's files come and go.
    until("it has no more than before", || fds() <= fds_before);
    // A flood of questions whose answers nobody reads: others are served all the same, and memory stays bounded.
    let floods: Vec<OwnedFd> = (0..4).map(|_| raw(&w, 1)).collect();
    for flood in &floods {
        send(flood, hello, 0);
        while send(flood, br#"{"op":"status"}"#, libc::MSG_DONTWAIT) > 0 {}
    }
    assert_eq!(w.status(1).node, "h1");
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    let mut there = w.monitor(2, "db@h1");
    p.kill();
    there.failure("db@h1");
    let rss = resident_kib(w.agent_pid(1));
    assert!(rss < 64 << 10, "{rss} KiB resident");
    // More connections than are allowed, and more after they are gone.
    let crowd: Vec<OwnedFd> = (0..300).map(|_| raw(&w, 1)).collect();
    drop((crowd, floods, c));
    until("the agent answers", || fide_client::Connection::open(Some(&w.socket(1))).is_ok());
    w.agents_run();
    w.no_faults_but(|_, (cause, _, app)| app.is_some() && cause.ends_process());
}

fn resident_kib(pid: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn send_with_descriptor(to: &OwnedFd, bytes: &[u8]) {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut space = [0u64; 4];
    // SAFETY: a message of one part with one descriptor, in room that is large enough for it.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = space.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let c = libc::CMSG_FIRSTHDR(&raw const header);
        (*c).cmsg_level = libc::SOL_SOCKET;
        (*c).cmsg_type = libc::SCM_RIGHTS;
        (*c).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(c).cast::<i32>().write_unaligned(to.as_raw_fd());
        assert!(libc::sendmsg(to.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) > 0);
    }
}

#[test]
fn an_ordinary_user_may_watch_its_own_processes_only() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let p = w.sleeper(1);
    w.watch(1, "roots", p.pid());
    // The test program must be reachable for nobody.
    let mut nobody = w.actor(1, "nobody", &[&p.pid().to_string()]);
    let answers: Vec<String> = (0..5).map(|_| nobody.hear()).collect();
    assert!(answers[0].starts_with("error") && answers[0].contains("watch_others"), "{answers:?}");
    assert!(answers[1].starts_with("ok Watched"), "{answers:?}");
    assert!(answers[2].starts_with("error") && answers[3].starts_with("error") && answers[3].contains("reload"), "{answers:?}");
    assert!(answers[4].starts_with("ok"), "{answers:?}");
    assert!(w.status(1).watched.iter().any(|a| a.name == "roots" && a.state == "alive"));
}

#[test]
fn a_standing_watch_of_an_ordinary_user_does_not_take_to_processes_of_root() {
    let Some(w) = Setup::hosts(2).up() else { return };
    // Reachable for nobody, and of a name that nothing else on this machine has.
    let directory = tempfile::tempdir().unwrap();
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(directory.path(), mode).unwrap();
    let name = format!("victimd{}", std::process::id());
    let program = directory.path().join(&name);
    std::fs::copy("/bin/sleep", &program).unwrap();
    let program = program.to_str().unwrap();
    let mut spy = w.actor(1, "spy", &[program, &name]);
    let answer = spy.hear();
    assert!(answer.starts_with("ok Watched"), "{answer}");
    spy.say("end it");
    assert_eq!(spy.hear(), "ok ended");
    w.event(1, "its own end", |e| e.cause == Cause::Killed && e.app.as_deref() == Some("spy"));
    let mut roots = w.process(1, program, &["1000"]);
    let alive = || w.status(1).watched.into_iter().find(|a| a.name == "spy" && a.state == "alive").map(|a| (a.pid, a.uid));
    until("the watch has met root's process", || w.log(1).contains(&format!("process {} ", roots.pid())) || alive().is_some());
    assert_eq!(alive(), None);
    roots.kill();
    roots.ended();
    spy.say("start another");
    let pid: u32 = spy.hear().strip_prefix("ok ").unwrap().parse().unwrap();
    until("the user's next one is watched", || alive() == Some((pid, 65534)));
    let told = w.history(1).into_iter().filter(|e| e.cause == Cause::Killed && e.app.as_deref() == Some("spy")).count();
    assert_eq!(told, 1, "root's process was never watched");
    // A watch that waits is ended by its owner, too.
    spy.say("end it");
    let answer = spy.hear();
    assert!(answer.starts_with("ok"), "{answer}");
}

#[test]
fn a_long_history_is_read_to_its_end() {
    let Some(w) = Setup::hosts(2).up() else { return };
    // Ends of processes in plenty, and not more than other hosts keep of one source at once.
    for round in 0..200 {
        let name = format!("p{round}");
        w.ask(1, &Request::watch(name.clone(), Selector::Pid(std::process::id()))).unwrap();
        w.ask(1, &Request::Unwatch { name }).unwrap();
    }
    w.event(2, "the last one", |e| e.cause == Cause::Left && e.app.as_deref() == Some("p199"));
    let history = w.history(1);
    assert!(history.len() >= 400, "{}", history.len());
    let numbers: Vec<u64> = history.iter().map(|e| e.seq).collect();
    assert!(numbers.windows(2).all(|n| n[1] == n[0] + 1), "without a gap");
    // Following goes on where the kept ones end.
    let c = w.connect(1);
    let mut reply = c.request(&Request::Events { from: 0, last: 10, follow: true }).unwrap().reply;
    let mut seqs = Vec::new();
    while let Reply::Event(e) = reply {
        seqs.push(e.seq);
        reply = c.next_reply().unwrap().reply;
    }
    assert!(matches!(reply, Reply::EventsEnd { .. }) && seqs.len() == 10, "{reply:?} {seqs:?}");
    w.ask(1, &Request::watch("one more".replace(' ', "-"), Selector::Pid(std::process::id()))).unwrap();
    let Reply::Event(e) = c.next_reply().unwrap().reply else { panic!() };
    assert_eq!(e.seq, seqs[9] + 1);
}
