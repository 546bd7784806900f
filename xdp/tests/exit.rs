//! The exit watch on real processes: what is a death is reported once, at once and with its code; what is none is silent. As root.
//!
//! Nothing here waits for time to pass. The hooks run within the system call or signal they watch, so a process that has answered after an
//! event has been judged already: what is not in the ring then, never will be.

use crate::common;

use common::{Bench, LO, SELF, not_root};
use fide_wire::event::{Record, RecordKind};
use fide_wire::mac::Keyring;
use fide_wire::verdict::Cause;
use fide_xdp::layout::RING_BYTES;
use fide_xdp::{Mechanism, Ring, Setup, Start, StartWatch, Wanted};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

macro_rules! as_root {
    ($($(#[$doc:meta])* fn $name:ident() $body:block)*) => {
        $($(#[$doc])* #[test] fn $name() { if !not_root() { $body } })*
    };
}

const INCARNATION: u32 = 50;
/// Nothing takes so long unless it never comes.
const PATIENCE: Duration = Duration::from_secs(90);

// ---- The watch ----

/// What a record says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Doomed(i32),
    Exited(i32),
    Killed(i32),
    /// The end of a process that was doomed before.
    ThenExited(i32),
    ThenKilled(i32),
    OutOfMemory(i32),
    ThenOutOfMemory(i32),
}
use Seen::*;

fn seen(r: &Record) -> Seen {
    match (r.cause().unwrap(), r.flags & Record::CONFIRMS != 0) {
        (Cause::Doomed, false) => Doomed(r.code),
        (Cause::Exited, false) => Exited(r.code),
        (Cause::Killed, false) => Killed(r.code),
        (Cause::Exited, true) => ThenExited(r.code),
        (Cause::Killed, true) => ThenKilled(r.code),
        (Cause::OutOfMemory, false) => OutOfMemory(r.code),
        (Cause::OutOfMemory, true) => ThenOutOfMemory(r.code),
        other => panic!("{other:?}"),
    }
}

impl Seen {
    fn is_end(self) -> bool {
        !matches!(self, Doomed(_))
    }
}

struct Watch {
    m: Mechanism,
    urgent: Ring,
    records: Vec<Record>,
    pids: RefCell<Vec<u32>>,
}

impl Watch {
    fn new() -> Self {
        let setup = Setup { cluster: 1, node: SELF, incarnation: INCARNATION, port: 3433 };
        let mut m = Mechanism::load(setup, &Keyring::default(), true).unwrap_or_else(|e| panic!("{e}"));
        m.attach_exit_watch().unwrap_or_else(|e| panic!("{e}"));
        let urgent = m.urgent().unwrap();
        Self { m, urgent, records: Vec::new(), pids: RefCell::default() }
    }

    fn watch(&self, pid: u32, app: u32) {
        self.m.watch(pid, app, start_ticks(pid).expect("it is alive")).unwrap();
        self.pids.borrow_mut().push(pid);
    }

    fn drain(&mut self) {
        let records = &mut self.records;
        self.urgent.drain(|entry| {
            let (record, body) = Record::read(entry).unwrap();
            assert!(body.is_empty());
            assert_eq!(record.kind(), Some(RecordKind::Exit));
            assert_eq!((record.node, record.incarnation), (SELF, INCARNATION));
            assert_eq!(record.flags & !Record::CONFIRMS, Record::LOCAL);
            assert!(record.event_ns > 0 && record.event_ns == record.received_ns);
            records.push(record);
        });
    }

    /// Everything reported of one process until now.
    fn of(&mut self, app: u32) -> Vec<Seen> {
        self.drain();
        self.records.iter().filter(|r| r.app == app).map(seen).collect()
    }

    /// Waits until the condition holds of what was reported.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&[Record]) -> bool) {
        let begun = Instant::now();
        loop {
            self.drain();
            if holds(&self.records) {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{what} never came; came: {:?}; {}",
                self.records.iter().map(|r| (r.app, seen(r))).collect::<Vec<_>>(),
                self.circumstances()
            );
            let mut poll = libc::pollfd { fd: self.urgent.raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one live pollfd.
            unsafe { libc::poll(&raw mut poll, 1, 1000) };
        }
    }

    /// What tells a record that was lost from a death that did not happen and from a program that did not run.
    fn circumstances(&self) -> String {
        let misses = Command::new("bpftool").args(["prog", "show"]).output().map_or_else(
            |e| format!("bpftool: {e}"),
            |o| String::from_utf8_lossy(&o.stdout).lines().filter(|l| l.contains("recursion_misses")).collect(),
        );
        let watches: Vec<_> =
            self.pids.borrow().iter().filter_map(|pid| Some((*pid, self.m.watching(*pid)?, state(*pid)))).collect();
        format!("records lost {}; programs skipped: [{misses}]; watches: {watches:?}", self.m.complaints().1)
    }

    /// Waits for the end of a process and says all that was reported of it.
    fn end_of(&mut self, app: u32) -> Vec<Seen> {
        self.until("the end", |all| all.iter().any(|r| r.app == app && seen(r).is_end()));
        self.of(app)
    }

    /// The watch goes after its report was sent, by the program that sent it, on the CPU of the dying.
    fn forgets(&self, pid: u32) {
        wait_for("the end of the watch", || self.m.watching(pid).is_none());
    }

    fn doom_of(&mut self, app: u32) {
        self.until("the doom", |all| all.iter().any(|r| r.app == app));
    }
}

/// Field 22 of /proc/PID/stat.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].split(' ').nth(19)?.parse().ok()
}

/// The state letter of /proc/PID/stat.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].chars().next()
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what}: never");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_micros(200));
    }
}

// ---- The victims ----

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/victim.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("victim-{}", std::process::id()));
        let done =
            Command::new("cc").args(["-O1", "-Wall", "-pthread", "-o"]).arg(&program).arg(source).status().expect("cc runs");
        assert!(done.success());
        program
    })
}

extern "C" fn remove_program() {
    let _ = std::fs::remove_file(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("victim-{}", std::process::id())));
}

struct Victim {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// The process that listens: the child, or one that it made.
    pid: u32,
    app: u32,
    /// Processes made on the way, to be cleaned up.
    others: Vec<u32>,
}

impl Victim {
    fn start(args: &[&str]) -> Self {
        Self::start_in(args, Path::new("/"))
    }

    fn start_in(args: &[&str], dir: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        if NEXT.load(Ordering::Relaxed) == 1 {
            // SAFETY: registers a function that only removes a file.
            unsafe { libc::atexit(remove_program) };
        }
        let mut child = Command::new(program())
            .args(args)
            .current_dir(dir)
            // A group of its own, whose parent is in another one of this login: in an orphaned group, which the tests' own is when nobody
            // waits for them at a terminal, the kernel ignores SIGTSTP, SIGTTIN and SIGTTOU.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let pid = child.id();
        Self { child, stdin, stdout, pid, app: NEXT.fetch_add(1, Ordering::Relaxed), others: Vec::new() }
    }

    /// One that is ready and watched.
    fn watched(w: &Watch, mode: &str) -> Self {
        let mut v = Self::start(&[mode]);
        v.expect("ready");
        w.watch(v.pid, v.app);
        v
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    fn expect(&mut self, wanted: &str) {
        assert_eq!(self.line(), wanted);
    }

    /// "child PID"
    fn child_line(&mut self) -> u32 {
        let line = self.line();
        let pid = line.strip_prefix("child ").unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
        self.others.push(pid);
        pid
    }

    /// A child that listens in the child's stead: its pid and "ready" come in any order.
    fn handed_over(&mut self) {
        for _ in 0..2 {
            match self.line().as_str() {
                "ready" => {}
                line => {
                    self.pid = line.strip_prefix("child ").unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
                    self.others.push(self.pid);
                }
            }
        }
    }

    /// Tells it, without waiting.
    fn tell(&mut self, command: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Tells it, and waits until it is done.
    fn ask(&mut self, command: &str) {
        self.tell(command);
        self.expect("ok");
    }

    fn kill(&self, signal: i32) {
        // SAFETY: our own descendant.
        assert_eq!(unsafe { libc::kill(self.pid as i32, signal) }, 0);
    }

    /// It still answers, and nothing was reported of it.
    fn lives_unreported(&mut self, w: &mut Watch, after: &str) {
        self.ask("p");
        assert_eq!(w.of(self.app), [], "after {after}");
        assert_eq!(w.m.watching(self.pid).map(|x| x.state), Some(0), "after {after}");
    }

    /// The watch still stands: SIGKILL is seen.
    fn then_is_killed(&mut self, w: &mut Watch) {
        self.kill(libc::SIGKILL);
        assert_eq!(w.end_of(self.app), [Doomed(9), ThenKilled(9)]);
        w.forgets(self.pid);
    }

    /// What its parent learns, as the records would say it.
    fn reaped(&mut self) -> (Option<i32>, Option<i32>) {
        use std::os::unix::process::ExitStatusExt;
        let status = self.child.wait().unwrap();
        (status.code(), status.signal())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        for pid in &self.others {
            // SAFETY: descendants of ours that were alive when they were noted; PR_SET_PDEATHSIG ends them as well.
            unsafe { libc::kill(*pid as i32, libc::SIGKILL) };
        }
        let _ = self.child.wait();
    }
}

// ---- Deaths ----

as_root! {
    fn sigkill_dooms_and_then_kills() {
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "serve");
        v.then_is_killed(&mut w);
        let [doom, end] = w.records.as_slice() else { panic!() };
        assert_eq!((doom.pid, end.pid), (v.pid, v.pid));
        assert_eq!((doom.id, end.id), (u64::from(SELF) << 32 | 1, u64::from(SELF) << 32 | 2), "numbered from 1, without a gap");
        assert!(doom.event_ns <= end.event_ns);
    }

    fn sigterm_by_default_dooms_and_then_kills() {
        let mut w = Watch::new();
        let v = Victim::watched(&w, "serve");
        v.kill(libc::SIGTERM);
        assert_eq!(w.end_of(v.app), [Doomed(15), ThenKilled(15)]);
    }

    /// Every signal with its default action: reported exactly as the parent learns it, or not at all.
    fn every_signal_is_what_the_parent_says_it_is() {
        let mut w = Watch::new();
        for signal in (1..=64).filter(|s| !matches!(s, 32 | 33)) { // these two belong to the C library
            let mut v = Victim::watched(&w, "serve");
            v.kill(signal);
            let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal);
            let harmless = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH].contains(&signal);
            if stops || harmless {
                if stops {
                    wait_for("the stop", || state(v.pid) == Some('T'));
                    v.kill(libc::SIGCONT);
                }
                v.lives_unreported(&mut w, &format!("signal {signal}"));
            } else {
                assert_eq!(w.end_of(v.app), [Doomed(signal), ThenKilled(signal)]);
                assert_eq!(v.reaped(), (None, Some(signal)));
            }
        }
    }

    fn exit_is_reported_with_its_status() {
        let mut w = Watch::new();
        for status in [0, 1, 3, 255] {
            let mut v = Victim::watched(&w, "serve");
            v.tell(&format!("x{status}"));
            assert_eq!(w.end_of(v.app), [Exited(status)]);
            assert_eq!(v.reaped(), (Some(status), None));
        }
    }

    fn exit_from_a_secondary_thread_ends_the_process() {
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "worker");
        v.tell("x5");
        let end = w.end_of(v.app);
        // Which thread leaves last decides whether the doom is seen before the end.
        assert!(end == [Doomed(5), ThenExited(5)] || end == [Exited(5)], "{end:?}");
        assert_eq!(v.reaped(), (Some(5), None));
    }

    fn the_main_threads_end_alone_is_silent_until_the_last_thread_ends() {
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "worker");
        v.ask("E7");
        assert_eq!(state(v.pid), Some('Z'), "the main thread is a zombie");
        v.lives_unreported(&mut w, "the main thread's end");
        v.tell("x4");
        assert_eq!(w.end_of(v.app), [Exited(4)]);
        assert_eq!(v.reaped(), (Some(4), None));

        let mut v = Victim::watched(&w, "worker");
        v.ask("E7");
        v.tell("X8");
        let end = w.end_of(v.app);
        let code = v.reaped().0.unwrap();
        assert_eq!(end, [Exited(code)], "each thread for itself: the code that the parent learns");

        let mut v = Victim::watched(&w, "worker");
        v.ask("E0");
        v.then_is_killed(&mut w);
    }

    fn a_thread_group_is_killed_through_any_of_its_threads() {
        let mut w = Watch::new();
        let v = Victim::watched(&w, "worker");
        let threads: Vec<i32> = std::fs::read_dir(format!("/proc/{}/task", v.pid)).unwrap()
            .map(|e| e.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
        let worker = threads.into_iter().find(|t| *t != v.pid as i32).unwrap();
        // SAFETY: a thread of our own child.
        assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, v.pid as i32, worker, libc::SIGKILL) }, 0);
        assert_eq!(w.end_of(v.app), [Doomed(9), ThenKilled(9)]);
    }

    fn abort_and_a_bad_access_kill() {
        let mut w = Watch::new();
        for (command, signal) in [("a", libc::SIGABRT), ("g", libc::SIGSEGV)] {
            for mode in ["serve", "worker"] {
                let mut v = Victim::watched(&w, mode);
                v.tell(command);
                assert_eq!(w.end_of(v.app), [Doomed(signal), ThenKilled(signal)], "{command} in {mode}");
            }
        }
    }

    fn seccomp_kills() {
        let mut w = Watch::new();
        for mode in ["serve", "worker"] {
            let mut v = Victim::watched(&w, mode);
            v.tell("S");
            assert_eq!(w.end_of(v.app), [Doomed(libc::SIGSYS), ThenKilled(libc::SIGSYS)], "{mode}");
        }
    }

    fn a_process_may_kill_itself() {
        let mut w = Watch::new();
        for command in ["k9", "r9", "k15", "r15"] {
            let mut v = Victim::watched(&w, "serve");
            v.tell(command);
            let signal = command[1..].parse().unwrap();
            assert_eq!(w.end_of(v.app), [Doomed(signal), ThenKilled(signal)], "{command}");
        }
    }

    fn a_stopped_process_is_doomed_by_sigkill_at_once_and_by_others_when_it_continues() {
        let mut w = Watch::new();
        for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGQUIT] {
            let mut v = Victim::watched(&w, "serve");
            v.kill(libc::SIGSTOP);
            wait_for("the stop", || state(v.pid) == Some('T'));
            assert_eq!(w.of(v.app), []);
            v.kill(signal);
            if signal != libc::SIGKILL {
                assert_eq!(w.of(v.app), [], "it waits in the queue, and a tracer could still take it out");
                v.kill(libc::SIGCONT);
            }
            assert_eq!(w.end_of(v.app), [Doomed(signal), ThenKilled(signal)]);
            assert_eq!(v.reaped(), (None, Some(signal)));
        }
    }

    /// A parent in vfork is in state D; SIGKILL reaches it nevertheless.
    fn an_uninterruptible_process_is_doomed_at_once() {
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "serve");
        v.tell("V");
        v.child_line();
        wait_for("uninterruptible sleep", || state(v.pid) == Some('D'));
        v.kill(libc::SIGKILL);
        assert_eq!(w.of(v.app)[0], Doomed(9), "before kill() returns");
        assert_eq!(w.end_of(v.app), [Doomed(9), ThenKilled(9)]);
    }

    fn children_by_posix_spawn_are_processes_of_their_own() {
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "serve");
        v.tell("P");
        let mut lines = [v.line(), v.line(), v.line()]; // "child N" and "ok", and the child's own "ready"
        lines.sort();
        let pid: u32 = lines[0].strip_prefix("child ").unwrap().parse().unwrap();
        v.others.push(pid);
        let app = 1_000_000;
        w.watch(pid, app);
        // SAFETY: a descendant of ours.
        assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
        assert_eq!(w.end_of(app), [Doomed(9), ThenKilled(9)]);
        v.lives_unreported(&mut w, "its child's death");
    }
}

// ---- Core dumps ----

/// A directory for a core file, on memory.
struct CoreDir(PathBuf);

impl CoreDir {
    /// `None` where core files do not go to the working directory.
    fn new(name: &str) -> Option<Self> {
        let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
        if pattern.starts_with(['|', '/', '@']) {
            println!("SKIPPED: core dumps go to {}", pattern.trim());
            return None;
        }
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("core-{name}-{}", std::process::id()));
        fide_lab::Leftover::Directory(dir.clone()).goes_with_caller().unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        Some(Self(dir))
    }

    fn bytes(&self) -> u64 {
        std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum()
    }
}

impl Drop for CoreDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const DUMPED_MB: u64 = 256;

fn dumper(w: &Watch, dir: &CoreDir) -> Victim {
    let mut v = Victim::start_in(&["serve"], &dir.0);
    v.expect("ready");
    w.watch(v.pid, v.app);
    v.ask(&format!("c{DUMPED_MB}"));
    v
}

as_root! {
    fn a_core_dump_does_not_delay_the_doom() {
        let Some(dir) = CoreDir::new("whole") else { return };
        let mut w = Watch::new();
        let mut v = dumper(&w, &dir);
        v.tell("g");
        w.doom_of(v.app);
        let written = dir.bytes();
        assert_eq!(w.of(v.app), [Doomed(libc::SIGSEGV)], "with {written} bytes of the core written");
        assert!(written < DUMPED_MB << 20);
        assert_eq!(w.end_of(v.app), [Doomed(libc::SIGSEGV), ThenKilled(libc::SIGSEGV)]);
        assert!(dir.bytes() >= DUMPED_MB << 20, "it was a whole core");
        let [doom, end] = w.records.as_slice() else { panic!() };
        eprintln!("doomed {:.1} ms before the end of its core dump", (end.event_ns - doom.event_ns) as f64 / 1e6);
    }

    fn sigkill_during_a_core_dump_reports_nothing_twice() {
        let Some(dir) = CoreDir::new("cut") else { return };
        let mut w = Watch::new();
        let mut v = dumper(&w, &dir);
        v.tell("g");
        w.doom_of(v.app);
        v.kill(libc::SIGKILL);
        let end = w.end_of(v.app);
        let signal = v.reaped().1.unwrap();
        assert_eq!(end, [Doomed(libc::SIGSEGV), ThenKilled(signal)], "the end is what the parent learns");
    }
}

// ---- What is no death ----

as_root! {
    fn ignored_handled_and_blocked_signals_are_silent() {
        let mut w = Watch::new();
        for mode in ["serve", "worker"] {
            let mut v = Victim::watched(&w, mode);
            for signal in [libc::SIGTERM, libc::SIGSEGV, libc::SIGABRT, libc::SIGUSR1, libc::SIGHUP, libc::SIGQUIT] {
                v.ask(&format!("i{signal}"));
                v.kill(signal);
                v.lives_unreported(&mut w, "an ignored signal");
                v.ask(&format!("h{signal}"));
                v.kill(signal);
                v.ask(&format!("w{signal}"));
                v.lives_unreported(&mut w, "a handled signal");
            }
            v.then_is_killed(&mut w);
        }
        // Blocked, ignored while pending, and let through: nothing.
        let mut v = Victim::watched(&w, "serve");
        v.ask("b15");
        v.kill(libc::SIGTERM);
        v.lives_unreported(&mut w, "a blocked signal");
        v.ask("i15");
        v.ask("u15");
        v.lives_unreported(&mut w, "a signal ignored when it was let through");
        // Blocked, and let through with its default action: death, at that moment.
        for signal in [libc::SIGTERM, libc::SIGQUIT, libc::SIGUSR2] {
            let mut v = Victim::watched(&w, "serve");
            v.ask(&format!("b{signal}"));
            v.kill(signal);
            v.lives_unreported(&mut w, "a blocked signal");
            v.tell(&format!("u{signal}"));
            assert_eq!(w.end_of(v.app), [Doomed(signal), ThenKilled(signal)]);
        }
    }

    fn a_threads_end_is_silent() {
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "serve");
        for _ in 0..50 {
            v.ask("s");
        }
        v.lives_unreported(&mut w, "a thread's end");
        v.ask("R");
        v.lives_unreported(&mut w, "a thread killed by seccomp");
        v.then_is_killed(&mut w);
    }

    fn stop_and_continue_are_silent() {
        let mut w = Watch::new();
        for mode in ["serve", "worker"] {
            let mut v = Victim::watched(&w, mode);
            for signal in [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
                v.kill(signal);
                wait_for("the stop", || state(v.pid) == Some('T'));
                assert_eq!(w.of(v.app), []);
                v.kill(libc::SIGCONT);
                v.lives_unreported(&mut w, "a stop");
            }
            v.then_is_killed(&mut w);
        }
    }

    fn exec_is_silent_and_the_watch_survives_it() {
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "serve");
        for _ in 0..20 {
            v.tell("e");
            v.expect("ready");
            v.lives_unreported(&mut w, "exec");
        }
        v.then_is_killed(&mut w);
    }

    /// The exec'ing thread takes over the pid; all others, the main thread among them, end with a SIGKILL that is no death.
    fn exec_from_another_thread_is_silent_and_the_watch_survives_it() {
        let mut w = Watch::new();
        for _ in 0..20 {
            let mut v = Victim::watched(&w, "worker");
            v.tell("e");
            v.expect("ready");
            v.lives_unreported(&mut w, "exec from another thread");
            v.tell("x6");
            assert_eq!(w.end_of(v.app), [Exited(6)]);
        }
        let mut v = Victim::watched(&w, "worker");
        v.ask("E0");
        v.tell("e");
        v.expect("ready");
        v.lives_unreported(&mut w, "exec after the main thread's end");
        v.then_is_killed(&mut w);
    }

    fn children_are_silent() {
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "serve");
        v.ask("f0"); // a child that comes and goes
        v.ask("F");
        v.lives_unreported(&mut w, "a child's death");
        v.then_is_killed(&mut w);
    }

    fn a_tracer_is_silent_and_what_it_holds_back_is_no_death() {
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "serve");
        let pid = v.pid as i32;
        let trace = |request: u32, data: libc::c_long| {
            // SAFETY: requests that take no memory, on our own child.
            assert_eq!(unsafe { libc::ptrace(request, pid, 0, data) }, 0, "{}", std::io::Error::last_os_error());
        };
        let stopped = |signal: i32| {
            let mut status = 0;
            // SAFETY: our own child, a live variable.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) }, pid);
            assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == signal, "status {status:x}");
        };
        trace(libc::PTRACE_ATTACH, 0);
        stopped(libc::SIGSTOP);
        assert_eq!(w.of(v.app), []);
        trace(libc::PTRACE_DETACH, 0);
        v.lives_unreported(&mut w, "attach and detach");

        trace(libc::PTRACE_ATTACH, 0);
        stopped(libc::SIGSTOP);
        trace(libc::PTRACE_CONT, 0);
        for signal in [libc::SIGTERM, libc::SIGSEGV] {
            v.kill(signal);
            stopped(signal);
            assert_eq!(w.of(v.app), []);
            trace(libc::PTRACE_CONT, 0); // the tracer keeps it
            v.lives_unreported(&mut w, "a signal the tracer kept");
        }
        v.kill(libc::SIGTERM);
        stopped(libc::SIGTERM);
        assert_eq!(w.of(v.app), []);
        trace(libc::PTRACE_CONT, libc::SIGTERM.into()); // and this one it hands on
        assert_eq!(w.end_of(v.app), [Doomed(15), ThenKilled(15)]);
    }

    fn a_traced_process_is_doomed_by_sigkill_at_once() {
        let mut w = Watch::new();
        let v = Victim::watched(&w, "serve");
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_ATTACH, v.pid as i32, 0, 0) }, 0);
        wait_for("the stop", || state(v.pid) == Some('t'));
        assert_eq!(w.of(v.app), []);
        v.kill(libc::SIGKILL);
        assert_eq!(w.of(v.app)[0], Doomed(9));
        assert_eq!(w.end_of(v.app), [Doomed(9), ThenKilled(9)]);
    }
}

// ---- Groups of processes ----

/// A control group, removed in the end with all that is left in it.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(root: &str, name: &str) -> Option<Self> {
        let dir = Path::new(root).join(format!("fide-test-{name}-{}", std::process::id()));
        fide_lab::Leftover::Cgroup(dir.clone()).goes_with_caller().unwrap();
        match std::fs::create_dir(&dir) {
            Ok(()) => Some(Self(dir)),
            Err(e) => {
                println!("SKIPPED: {}: {e}", dir.display());
                None
            }
        }
    }

    fn write(&self, file: &str, value: impl ToString) {
        std::fs::write(self.0.join(file), value.to_string()).unwrap_or_else(|e| panic!("{file} of {}: {e}", self.0.display()));
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap()
    }

    fn has(&self, file: &str) -> bool {
        self.0.join(file).exists()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for (file, value) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
            if self.has(file) {
                let _ = std::fs::write(self.0.join(file), value);
            }
        }
        for pid in std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            // SAFETY: only our own descendants were put here.
            unsafe { libc::kill(pid.parse().unwrap(), libc::SIGKILL) };
        }
        for _ in 0..2000 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(1));
        }
        eprintln!("{} is left behind", self.0.display());
    }
}

fn frozen(w: &mut Watch, v: &mut Victim, freeze: &dyn Fn(bool)) {
    freeze(true);
    assert_eq!(w.of(v.app), [], "freezing is no event");
    freeze(false);
    v.lives_unreported(w, "freezing and thawing");
    freeze(true);
    v.kill(libc::SIGKILL);
    assert_eq!(w.of(v.app)[0], Doomed(9), "doomed although it cannot run");
    freeze(false);
    assert_eq!(w.end_of(v.app), [Doomed(9), ThenKilled(9)]);
}

/// A cgroup whose processes may have so much memory; `None` where there is no memory controller.
fn limited_memory(bytes: u64) -> Option<Cgroup> {
    for (root, limit) in [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")] {
        if let Some(group) = Cgroup::new(root, "oom").filter(|g| g.has(limit)) {
            group.write(limit, bytes);
            if group.has("memory.swap.max") {
                group.write("memory.swap.max", 0);
            }
            return Some(group);
        }
    }
    None
}

as_root! {
    fn a_frozen_process_v1() {
        let Some(group) = Cgroup::new("/sys/fs/cgroup/freezer", "freezer").filter(|g| g.has("freezer.state")) else { return };
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "serve");
        group.write("cgroup.procs", v.pid);
        frozen(&mut w, &mut v, &|yes| {
            let state = if yes { "FROZEN" } else { "THAWED" };
            group.write("freezer.state", state);
            wait_for(state, || group.read("freezer.state").trim() == state);
        });
    }

    fn a_frozen_process_v2() {
        let root = if Path::new("/sys/fs/cgroup/cgroup.procs").exists() { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/unified" };
        let Some(group) = Cgroup::new(root, "freeze").filter(|g| g.has("cgroup.freeze")) else { return };
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "worker");
        group.write("cgroup.procs", v.pid);
        frozen(&mut w, &mut v, &|yes| {
            group.write("cgroup.freeze", u32::from(yes));
            let dead = std::cell::Cell::new(false);
            wait_for("freezing", || {
                dead.set(group.read("cgroup.procs").is_empty());
                dead.get() || group.read("cgroup.events").contains(if yes { "frozen 1" } else { "frozen 0" })
            });
        });
    }

    fn a_whole_group_is_killed_by_its_cgroup() {
        let root = if Path::new("/sys/fs/cgroup/cgroup.procs").exists() { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/unified" };
        let Some(group) = Cgroup::new(root, "kill").filter(|g| g.has("cgroup.kill")) else { return };
        let mut w = Watch::new();
        let victims: Vec<_> = (0..5).map(|_| Victim::watched(&w, "serve")).collect();
        victims.iter().for_each(|v| group.write("cgroup.procs", v.pid));
        group.write("cgroup.kill", 1);
        for v in &victims {
            assert_eq!(w.end_of(v.app), [Doomed(9), ThenKilled(9)]);
        }
    }

    /// A real limit and the real OOM killer; and in the same cgroup, full as well, an ordinary SIGKILL.
    fn out_of_memory_is_told_apart_from_kill_9() {
        let Some(group) = limited_memory(32 << 20) else {
            println!("SKIPPED: this machine has no memory controller for cgroups, of version 2 or 1");
            return;
        };
        let mut w = Watch::new();
        for mode in ["serve", "worker"] {
            let mut v = Victim::watched(&w, mode);
            group.write("cgroup.procs", v.pid);
            v.tell("m256");
            assert_eq!(w.end_of(v.app), [Doomed(9), ThenOutOfMemory(9)], "{mode}");
            w.forgets(v.pid);
            assert_eq!(v.reaped(), (None, Some(9)));
            let mut v = Victim::watched(&w, mode);
            group.write("cgroup.procs", v.pid);
            v.ask("m8");
            v.then_is_killed(&mut w);
        }
    }

    fn a_namespaces_init_shrugs_off_sigkill_from_inside() {
        let mut w = Watch::new();
        let mut v = Victim::start(&["pidns"]);
        v.handed_over();
        w.watch(v.pid, v.app);
        for command in ["k9", "k15", "k11", "f9", "f15"] {
            v.ask(command);
            v.lives_unreported(&mut w, command);
        }
        v.kill(libc::SIGTERM); // from outside, but without a handler an init does not get it either
        v.lives_unreported(&mut w, "SIGTERM from outside");
        // Another process in the same namespace is found by its pid out here, and dies with its init.
        v.ask("F");
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", v.pid)).unwrap();
        let inside: u32 = children.trim().parse().unwrap();
        v.others.push(inside);
        let app = 2_000_000;
        w.watch(inside, app);
        v.kill(libc::SIGKILL);
        assert_eq!(w.end_of(v.app), [Doomed(9), ThenKilled(9)], "from outside it is death");
        assert_eq!(w.end_of(app), [Doomed(9), ThenKilled(9)], "of everything inside");
    }

    fn a_namespaces_init_that_crashes_is_reported() {
        let mut w = Watch::new();
        let mut v = Victim::start(&["pidns"]);
        v.handed_over();
        w.watch(v.pid, v.app);
        v.tell("g");
        assert_eq!(w.end_of(v.app), [Doomed(11), ThenKilled(11)]);
    }
}

// ---- Identity ----

as_root! {
    fn a_process_that_was_dead_when_it_was_watched_is_not_reported() {
        let mut w = Watch::new();
        let mut v = Victim::start(&["serve"]);
        v.expect("ready");
        let (pid, app, ticks) = (v.pid, v.app, start_ticks(v.pid).unwrap());
        v.tell("x3");
        wait_for("the zombie", || state(pid) == Some('Z'));
        w.m.watch(pid, app, ticks).unwrap();
        assert_eq!(start_ticks(pid), Some(ticks), "it still has its pid and its start: the state in /proc tells");
        v.reaped();
        assert_eq!(w.of(app), []);
        assert!(w.m.stranded_watches().is_empty());
        w.m.unwatch(pid);
        assert_eq!(w.m.watching(pid), None);
    }

    fn a_process_watched_after_its_doom_is_reported_at_its_end() {
        let Some(group) = Cgroup::new("/sys/fs/cgroup/freezer", "late").filter(|g| g.has("freezer.state")) else { return };
        let mut w = Watch::new();
        let mut v = Victim::start(&["serve"]);
        v.expect("ready");
        group.write("cgroup.procs", v.pid);
        group.write("freezer.state", "FROZEN");
        wait_for("freezing", || group.read("freezer.state").trim() == "FROZEN");
        v.kill(libc::SIGKILL);
        w.watch(v.pid, v.app);
        assert_eq!(w.of(v.app), []);
        group.write("freezer.state", "THAWED");
        let end = w.end_of(v.app);
        assert!(end == [Doomed(9), ThenKilled(9)] || end == [Killed(9)], "{end:?}");
    }

    fn a_reused_pid_does_not_inherit_a_watch() {
        let mut w = Watch::new();
        let mut a = Victim::watched(&w, "serve");
        let ticks = start_ticks(a.pid).unwrap();
        a.then_is_killed(&mut w); // the entry is gone
        a.reaped();
        w.m.watch(a.pid, a.app, ticks).unwrap(); // and an agent that is late puts it back
        wait_for("another tick", || start_ticks(std::process::id()).is_some() && now_ticks() > ticks + 1);
        let mut b = Victim::start(&["clone", &a.pid.to_string()]);
        b.handed_over();
        if b.pid != a.pid {
            println!("SKIPPED: pid {} was taken", a.pid);
            return;
        }
        assert_ne!(start_ticks(b.pid), Some(ticks));
        b.kill(libc::SIGTERM);
        b.reaped();
        assert_eq!(w.of(a.app), [Doomed(9), ThenKilled(9)], "nothing of its successor");
        assert_eq!(w.m.watching(a.pid).map(|x| x.state), Some(0));
    }

    fn a_watch_that_was_ended_is_silent() {
        let mut w = Watch::new();
        let mut v = Victim::watched(&w, "serve");
        w.m.unwatch(v.pid);
        v.kill(libc::SIGKILL);
        v.reaped();
        assert_eq!(w.of(v.app), []);
    }

    fn others_are_silent() {
        let mut w = Watch::new();
        let mut watched = Victim::watched(&w, "serve");
        for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV] {
            let mut other = Victim::start(&["worker"]);
            other.expect("ready");
            other.kill(signal);
            other.reaped();
        }
        watched.lives_unreported(&mut w, "deaths of others");
        assert!(w.records.is_empty());
    }
}

/// Clock ticks since boot.
fn now_ticks() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: t lives across the call.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut t) };
    t.tv_sec as u64 * 100 + t.tv_nsec as u64 / 10_000_000
}

// ---- Many at once ----

fn many(w: &Watch, n: u32) -> (Victim, BTreeMap<u32, u32>) {
    let mut v = Victim::start(&["many", &n.to_string()]);
    let mut apps = BTreeMap::new();
    for app in 1..=n {
        let pid = v.child_line();
        apps.insert(pid, app);
        w.watch(pid, app);
    }
    v.expect("ready");
    (v, apps)
}

/// Every process once, its doom before its end, the end as its parent learned it, and notice numbers without a gap.
fn all_reported(w: &mut Watch, v: &mut Victim, apps: &BTreeMap<u32, u32>) {
    w.until("all ends", |all| all.iter().filter(|r| seen(r).is_end()).count() >= apps.len());
    let mut wait_status = BTreeMap::new();
    for _ in apps {
        let line = v.line();
        let (pid, status) = line.split_once(' ').unwrap();
        wait_status.insert(pid.parse::<u32>().unwrap(), status.parse::<i32>().unwrap());
    }
    v.others.clear();
    w.drain();
    let numbers: BTreeSet<u32> = w.records.iter().map(|r| r.id as u32).collect();
    assert_eq!(numbers.len(), w.records.len(), "no number twice");
    assert_eq!(numbers, (1..=w.records.len() as u32).collect(), "no gap");
    for (pid, app) in apps {
        let status = wait_status[pid];
        let end = if status & 0x7f != 0 { (status & 0x7f, true) } else { (status >> 8, false) };
        let of = w.of(*app);
        let right = match (of.as_slice(), end) {
            ([Exited(c)] | [Doomed(_), ThenExited(c)], (code, false)) => *c == code,
            ([Killed(c)] | [Doomed(_), ThenKilled(c)], (code, true)) => *c == code,
            _ => false,
        };
        assert!(right, "{of:?}, wait status {status:#x}");
        w.forgets(*pid);
    }
    assert!(w.m.stranded_watches().is_empty());
    assert_eq!(w.m.complaints().1, 0);
}

as_root! {
    fn a_hundred_processes_killed_at_once() {
        let mut w = Watch::new();
        let (mut v, apps) = many(&w, 100);
        for pid in apps.keys() {
            // SAFETY: our own descendants.
            unsafe { libc::kill(*pid as i32, libc::SIGKILL) };
        }
        all_reported(&mut w, &mut v, &apps);
        assert_eq!(w.records.len(), 200, "each doomed and ended");
        for app in apps.values() {
            assert_eq!(w.of(*app), [Doomed(9), ThenKilled(9)]);
        }
    }

    /// Both happen at once, on both CPUs: what is reported is what came to pass, once.
    fn processes_that_exit_while_they_are_killed() {
        for round in 0..5 {
            let mut w = Watch::new();
            let (mut v, apps) = many(&w, 60);
            let stdin = v.stdin.take();
            std::thread::scope(|s| {
                s.spawn(move || drop(stdin)); // all exit with 3
                let pids: Vec<u32> = if round % 2 == 0 { apps.keys().copied().collect() } else { apps.keys().rev().copied().collect() };
                for pid in pids {
                    // SAFETY: our own descendants, not reaped before their line was read... or already gone, which is as good.
                    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
                }
            });
            all_reported(&mut w, &mut v, &apps);
        }
    }

    fn subscribers_on_this_host_hear_it_too() {
        let mut w = Watch::new();
        let s = w.m.new_subscriber().unwrap();
        let ring = common::Mapped::new(s.fd().as_fd(), RING_BYTES as usize).unwrap();
        let mut v = Victim::watched(&w, "serve");
        w.m.set_subscribers(SELF, v.app, 1 << s.index).unwrap();
        v.then_is_killed(&mut w);
        let got = ring.all();
        assert_eq!(got.iter().map(|(r, _)| (r.kind(), seen(r))).collect::<Vec<_>>(),
            [(Some(RecordKind::Process), Doomed(9)), (Some(RecordKind::Process), ThenKilled(9))]);
        assert_eq!(got.iter().map(|(r, _)| r.id).collect::<Vec<_>>(), w.records.iter().map(|r| r.id).collect::<Vec<_>>());
    }

    fn agents_verdicts_and_the_kernels_share_one_numbering() {
        let mut w = Watch::new();
        assert_eq!(w.m.next_notice(), 1);
        let mut v = Victim::watched(&w, "serve");
        v.then_is_killed(&mut w);
        assert_eq!(w.records.iter().map(|r| r.id as u32).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(w.m.next_notice(), 4);
        w.m.set_incarnation(INCARNATION + 1);
        assert_eq!(w.m.next_notice(), 5, "versions go on in a new incarnation");
        w.m.set_incarnation(INCARNATION);
        w.m.set_version(1000);
        let mut v = Victim::watched(&w, "serve");
        v.then_is_killed(&mut w);
        assert_eq!(w.records[2..].iter().map(|r| r.id as u32).collect::<Vec<_>>(), [1006, 1007]);
    }

    fn deaths_that_find_the_ring_full_are_found_in_the_map() {
        let mut b = Bench::new(); // only for its packets
        let mut w = {
            let setup = Setup { cluster: common::CLUSTER, node: SELF, incarnation: INCARNATION, port: common::PORT };
            let mut m = Mechanism::load(setup, &b.keys, true).unwrap();
            m.attach_exit_watch().unwrap();
            m.set_peer(common::PEER_SLOT, common::PEER, common::PEER_INCARNATION).unwrap();
            m.assign_path(LO, 0).unwrap();
            let urgent = m.urgent().unwrap();
            Watch { m, urgent, records: Vec::new(), pids: RefCell::default() }
        };
        let w = &mut w;
        let frozen = Victim::watched(w, "serve");
        let mut killed = Victim::watched(w, "serve");
        let mut exits = Victim::watched(w, "serve");
        let mut lives = Victim::watched(w, "serve");
        let group = Cgroup::new("/sys/fs/cgroup/freezer", "full").filter(|g| g.has("freezer.state"));
        if let Some(group) = &group {
            group.write("cgroup.procs", frozen.pid);
            group.write("freezer.state", "FROZEN");
            wait_for("freezing", || group.read("freezer.state").trim() == "FROZEN");
        }
        let mut n = 0;
        while w.m.complaints().1 == 0 {
            n += 1;
            let p = b.notice(0, n, 1);
            w.m.test_receive(&common::ipv4(&p), LO).unwrap();
        }
        if group.is_some() {
            frozen.kill(libc::SIGKILL);
        }
        killed.kill(libc::SIGKILL);
        killed.reaped();
        exits.tell("x3");
        exits.reaped();
        lives.ask("p");
        let mut stranded: Vec<_> = w.m.stranded_watches().into_iter().map(|e| (e.pid, e.watch.app, e.watch.state, e.watch.status)).collect();
        let mut expected = vec![(killed.pid, killed.app, 2, 9), (exits.pid, exits.app, 2, 3 << 8)];
        if group.is_some() {
            expected.push((frozen.pid, frozen.app, 1, 9));
        }
        stranded.sort_unstable();
        expected.sort_unstable();
        assert_eq!(stranded, expected, "state, and wait status");
        assert!(w.m.complaints().1 > 3);
        let mut notices = 0;
        w.urgent.drain(|_| notices += 1);
        assert_eq!(notices, n - 1);
        w.m.unwatch(killed.pid);
        w.m.unwatch(exits.pid);
        // With room again, the end of the one whose doom was lost comes by itself.
        if let Some(group) = &group {
            group.write("freezer.state", "THAWED");
            assert_eq!(w.end_of(frozen.app), [ThenKilled(9)]);
        }
        assert!(w.m.stranded_watches().is_empty());
        lives.then_is_killed(w);
    }

    fn doomed_and_reported_is_not_stranded() {
        let Some(group) = Cgroup::new("/sys/fs/cgroup/freezer", "doomed").filter(|g| g.has("freezer.state")) else { return };
        let mut w = Watch::new();
        let v = Victim::watched(&w, "serve");
        group.write("cgroup.procs", v.pid);
        group.write("freezer.state", "FROZEN");
        wait_for("freezing", || group.read("freezer.state").trim() == "FROZEN");
        v.kill(libc::SIGKILL);
        assert_eq!(w.of(v.app), [Doomed(9)]);
        assert!(w.m.stranded_watches().is_empty());
        group.write("freezer.state", "THAWED");
        assert_eq!(w.end_of(v.app), [Doomed(9), ThenKilled(9)]);
    }
}

// What is started.

fn wanting(w: &mut Watch, names: &[&str], ports: &[u16]) -> StartWatch {
    let mut starts = w.m.start_watch().unwrap_or_else(|e| panic!("{e}"));
    starts
        .want(Wanted { names: names.iter().map(|name| (*name).to_owned()).collect(), ports: ports.iter().copied().collect() })
        .unwrap();
    starts
}

/// All that is there. The hooks run within the system calls that they watch.
fn all(starts: &mut StartWatch) -> Vec<Start> {
    std::iter::from_fn(|| starts.poll()).collect()
}

as_root! {
    /// The whole machine starts programs, also the tests beside this one: those that are waited for have names of their own.
    fn a_program_that_is_waited_for_is_told_at_its_start_and_no_other() {
        let mut w = Watch::new();
        let unique = |prefix: &str| program().with_file_name(format!("{prefix}-{}", std::process::id()));
        let (executable, link) = (unique("shell-of-a-long-name"), unique("sh"));
        std::fs::copy("/bin/sh", &executable).unwrap();
        std::os::unix::fs::symlink(&executable, &link).unwrap();
        let run = |program: &Path| {
            let mut child = Command::new(program).args(["-c", "exit 3"]).spawn().unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(3));
            child.id()
        };
        let name = executable.file_name().unwrap().to_str().unwrap().to_owned();
        let mut starts = wanting(&mut w, &["no-such-program", &name], &[]);
        let pid = run(&executable);
        assert_eq!(all(&mut starts), [Start::Program(pid)], "by the first fifteen bytes of its name");
        assert!(Command::new("true").status().unwrap().success());
        assert_eq!(all(&mut starts), [], "another program");
        let pid = run(&link);
        assert_eq!(all(&mut starts), [Start::Program(pid)], "by the name of the executable, whatever the process is called");
        starts.want(Wanted::default()).unwrap();
        run(&executable);
        assert_eq!(all(&mut starts), [], "nobody waits any more");
        assert!(!starts.has_lost());
        std::fs::remove_file(&link).and(std::fs::remove_file(&executable)).unwrap();
    }

    fn a_socket_that_listens_is_told_with_its_process() {
        let mut w = Watch::new();
        let any = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (one, other) = (any().local_addr().unwrap(), any().local_addr().unwrap());
        let mut starts = wanting(&mut w, &[], &[one.port()]);
        let listening = std::net::TcpListener::bind(one).unwrap();
        assert_eq!(all(&mut starts), [Start::Listens(std::process::id(), one.port())]);
        drop(listening);
        let _another = std::net::TcpListener::bind(other).unwrap();
        assert_eq!(all(&mut starts), [], "neither its end nor another port");
    }

    fn more_starts_than_the_ring_holds_are_known_to_be_lost() {
        let mut w = Watch::new();
        let mut starts = wanting(&mut w, &[], &[]);
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        starts.want(Wanted { ports: [address.port()].into(), ..Wanted::default() }).unwrap();
        let mut listened = 0;
        while listened < 3_000 {
            listened += u32::from(std::net::TcpListener::bind(address).is_ok()); // another may have it for a moment
        }
        assert!(starts.has_lost());
        assert!(!starts.has_lost(), "told once");
        assert!(all(&mut starts).len() > 1_000);
    }

    fn another_program_of_a_watched_process_is_told_with_its_number_and_is_no_end() {
        let mut w = Watch::new();
        let mut starts = wanting(&mut w, &[], &[]);
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo; read line; exec sleep 1000"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        // The kernel tells of its own exec after whoever spawned it goes on.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let (pid, app) = (child.id(), 1_000 + child.id());
        w.m.watch(pid, app, start_ticks(pid).unwrap()).unwrap();
        assert_eq!(all(&mut starts), [], "what it did before");
        drop(child.stdin.take());
        let mut told = Vec::new();
        wait_for("it runs another program", || {
            told.extend(all(&mut starts));
            !told.is_empty()
        });
        assert_eq!(told, [Start::Exec { pid, app }]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(w.of(app), vec![Doomed(9), ThenKilled(9)]);
    }

    fn a_clean_end_before_it_has_settled_hands_over_and_any_other_is_told() {
        let mut w = Watch::new();
        let mut starts = wanting(&mut w, &[], &[]);
        let mut end = |settles_ns: u64, code: &str| {
            let mut child = Command::new("sh").args(["-c", &format!("read line; {code}")]).stdin(Stdio::piped()).spawn().unwrap();
            let (pid, app) = (child.id(), 1_000 + child.id());
            w.m.watch_until_settled(pid, app, start_ticks(pid).unwrap(), settles_ns).unwrap();
            drop(child.stdin.take());
            child.wait().unwrap();
            assert_eq!(w.m.watching(pid), None);
            let mut handed_over = all(&mut starts);
            // Its own exec, which the kernel tells of after whoever spawned it goes on.
            handed_over.retain(|start| *start != Start::Exec { pid, app });
            assert!(handed_over.is_empty() || handed_over == [Start::HandedOver { pid, app }]);
            (w.of(app), handed_over.len())
        };
        assert_eq!(end(u64::MAX, "exit 0"), (vec![], 1));
        assert_eq!(end(1, "exit 0"), (vec![Exited(0)], 0), "it had settled");
        assert_eq!(end(0, "exit 0"), (vec![Exited(0)], 0));
        assert_eq!(end(u64::MAX, "exit 3"), (vec![Exited(3)], 0));
        assert_eq!(end(u64::MAX, "kill -9 $$"), (vec![Doomed(9), ThenKilled(9)], 0));
    }
}
