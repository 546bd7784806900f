//! A real Redis Sentinel, not changed, and beside it api/capi/examples/sentinel.c: a living master whose packets wait on the Sentinel's own host stays
//! master, and a dead one is replaced no later than by Sentinel alone.
//!
//! h1 runs the master; h2 the replica and the Sentinel, as is usual; h3 nothing but an agent.

use crate::common::{PATIENCE, Process, Setup, World, until};
use crate::e2e_lab::beats::receive_late;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MASTER: u16 = 6379;
const SENTINEL: u16 = 26379;
const DOWN_AFTER_MS: u16 = 1000;

/// Whether what is needed is installed; says so if not.
fn available() -> bool {
    let there =
        |program: &str| Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    for (program, package) in [("redis-server", "redis-server"), ("cc", "gcc")] {
        if !there(program) {
            println!("SKIPPED: there is no {program}: apt-get install {package}");
            return false;
        }
    }
    true
}

/// Where cargo put libfide.a: beside this program.
pub fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libfide.a")
}

pub fn capi(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/capi").join(file)
}

/// What it needs beside itself.
pub const NATIVE: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// One of the C examples, compiled.
fn compile(w: &World, source: &str) -> PathBuf {
    let program = w.lab.host_dir(2).join("example");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"]).arg(capi("include")).arg(capi(source)).arg("-o").arg(&program);
    let out = cc.arg(library()).args(NATIVE).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

/// Asks a Redis server on a host, with one line.
fn ask(w: &World, host: u16, port: u16, line: &str) -> String {
    let asked = w.lab.in_host(host, || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        Ok(reply)
    });
    asked.unwrap().unwrap_or_default()
}

struct Redis {
    w: World,
    master: Process,
    _replica: Process,
    _sentinel: Process,
}

fn server(w: &World, host: u16, name: &str, arguments: &[String]) -> Process {
    let dir = w.lab.host_dir(host).join(name);
    fs::create_dir_all(&dir).unwrap();
    let log = fs::File::create(dir.join("log")).unwrap();
    let mut command = w.lab.command(host, "redis-server").unwrap();
    command.current_dir(&dir).args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Process::spawn(command)
}

/// The file that an operator has; `quorum` is the line that is changed for the guard.
fn sentinel_conf(master: std::net::Ipv4Addr, quorum: u32) -> String {
    format!(
        "port {SENTINEL}\nprotected-mode no\nsentinel monitor mymaster {} {MASTER} {quorum}\n\
         sentinel down-after-milliseconds mymaster {DOWN_AFTER_MS}\nsentinel failover-timeout mymaster 60000\n",
        master
    )
}

/// The same, line by line.
pub fn sentinel_conf_lines(quorum: u32) -> Vec<String> {
    sentinel_conf(std::net::Ipv4Addr::LOCALHOST, quorum).lines().map(str::to_owned).collect()
}

impl Redis {
    /// Master, replica and Sentinel, which knows both.
    fn up(quorum: u32) -> Option<Self> {
        if !available() {
            return None;
        }
        // A ring of 256 holds what comes in a few seconds.
        let w = Setup::hosts(3).heartbeat("100ms").up()?;
        let common = |port: u16| {
            [
                "--port",
                &port.to_string(),
                "--bind",
                "0.0.0.0",
                "--protected-mode",
                "no",
                "--save",
                "",
                "--repl-diskless-sync-delay",
                "0",
            ]
            .map(str::to_owned)
            .to_vec()
        };
        let master = server(&w, 1, "master", &common(MASTER));
        until("the master answers", || ask(&w, 1, MASTER, "PING").starts_with("+PONG"));
        let mut replica = common(MASTER);
        replica.extend(["--replicaof".into(), w.lab.ipv4(1, 0).to_string(), MASTER.to_string()]);
        let replica = server(&w, 2, "replica", &replica);
        until("the replica has all", || ask(&w, 2, MASTER, "INFO replication").contains("master_link_status:up"));
        let conf = w.lab.host_dir(2).join("sentinel.conf");
        fs::write(&conf, sentinel_conf(w.lab.ipv4(1, 0), quorum)).unwrap();
        let sentinel = server(&w, 2, "sentinel", &[conf.display().to_string(), "--sentinel".into()]);
        let redis = Self { w, master, _replica: replica, _sentinel: sentinel };
        until("Sentinel knows master and replica", || {
            redis.sentinel().contains("status=ok") && redis.sentinel().contains("slaves=1")
        });
        redis.w.watch_known(1, "redis", redis.master.pid());
        // What it read of its replica a moment ago is what a failover needs.
        until("Sentinel knows how the replica is", || {
            ask(&redis.w, 2, SENTINEL, "SENTINEL REPLICAS mymaster").contains("master-link-status\r\n$2\r\nok")
        });
        Some(redis)
    }

    fn sentinel(&self) -> String {
        ask(&self.w, 2, SENTINEL, "INFO sentinel")
    }

    /// Whether the replica was made master.
    fn failed_over(&self) -> bool {
        ask(&self.w, 2, MASTER, "ROLE").contains("master")
    }

    fn guard(&self) -> Guard {
        let mut command = self.w.lab.command(2, compile(&self.w, "examples/sentinel.c")).unwrap();
        let [sentinel, port, patience] = [SENTINEL, MASTER, DOWN_AFTER_MS].map(|n| n.to_string());
        let arguments = [sentinel, "mymaster".into(), self.w.lab.ipv4(1, 0).to_string(), port, "redis@h1".into(), patience];
        command.args(arguments).env("FIDE_SOCKET", self.w.socket(2)).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "guarding mymaster");
        let said = Arc::<Mutex<Vec<String>>>::default();
        let heard = said.clone();
        let thread = std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| heard.lock().unwrap().push(line)));
        Guard { child, said, thread }
    }

    /// From now until the replica is master.
    fn failover_took(&self, guard: Option<&Guard>) -> Duration {
        let from = Instant::now();
        while !self.failed_over() {
            let said = || guard.map(|guard| guard.said.lock().unwrap().clone());
            assert!(from.elapsed() < PATIENCE, "no failover; the guard: {:?}; Sentinel: {}", said(), self.sentinel());
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(5));
        }
        from.elapsed()
    }

    /// The master's packets wait in the ring of h2, several times as long as Sentinel's timeout,
    /// until it suspects the master and what follows is decided; and then come.
    fn packets_wait(&self, suspected: impl Fn() -> bool, decided: impl Fn() -> bool) {
        receive_late(&self.w, 2, 0, Duration::from_secs(4));
        until("Sentinel suspects the master", suspected);
        until("it is decided what follows", decided);
        receive_late(&self.w, 2, 0, Duration::ZERO);
    }
}

struct Guard {
    child: std::process::Child,
    said: Arc<Mutex<Vec<String>>>,
    thread: std::thread::JoinHandle<()>,
}

impl Guard {
    fn times_said(&self, what: &str) -> usize {
        self.said.lock().unwrap().iter().filter(|line| line.starts_with(what)).count()
    }

    fn end(mut self) -> Vec<String> {
        let _ = self.child.kill(); // it has ended by itself after a failover
        self.child.wait().unwrap();
        self.thread.join().unwrap();
        std::mem::take(&mut *self.said.lock().unwrap())
    }
}

#[test]
fn a_living_master_whose_packets_wait_here_stays_master() {
    // Sentinel alone: two masters.
    let Some(plain) = Redis::up(1) else { return };
    plain.packets_wait(|| plain.failed_over(), || true);
    assert!(plain.failed_over() && ask(&plain.w, 1, MASTER, "ROLE").contains("master"), "the first one lives, and is replaced");
    drop(plain);

    let Some(ours) = Redis::up(2) else { return };
    let guard = ours.guard();
    // It looks again and again, and holds each time.
    ours.packets_wait(|| ours.sentinel().contains("status=sdown"), || guard.times_said("held: ") >= 5);
    until("Sentinel hears the master again", || ours.sentinel().contains("status=ok"));
    assert!(!ours.failed_over());
    let said = guard.end();
    println!("the guard said {} times that nothing is known, first: {}", said.len(), said.first().map_or("", String::as_str));
    assert!(said.iter().any(|l| l.starts_with("held: ")) && !said.iter().any(|l| l.starts_with("failover")), "{said:?}");
}

/// How long it takes until a master is replaced that is sent this signal.
fn replaced(signal: i32, guarded: bool) -> Option<Duration> {
    let redis = Redis::up(1 + u32::from(guarded))?;
    let guard = guarded.then(|| redis.guard());
    if guarded {
        // Sleep: its first PING, of which it says nothing.
        std::thread::sleep(Duration::from_millis(300));
    }
    redis.master.signal(signal);
    let took = redis.failover_took(guard.as_ref());
    if let Some(guard) = guard {
        until("the guard ends", || guard.thread.is_finished());
        let said = guard.end();
        assert!(said.last().is_some_and(|l| l.starts_with("failover: +OK")), "{said:?}");
    }
    redis.master.signal(libc::SIGCONT);
    Some(took)
}

#[test]
fn a_dead_master_is_replaced_by_the_guard() {
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        let Some(_) = replaced(signal, true) else { return };
    }
}

#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_a_dead_master_is_replaced_no_later_than_by_sentinel_alone() {
    let mut took = Vec::new();
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        for guarded in [false, true] {
            let Some(one) = replaced(signal, guarded) else { return };
            took.push(one);
        }
    }
    let [killed, killed_ours, stopped, stopped_ours] = took[..] else { panic!("{took:?}") };
    println!("kill -9: {killed:?} by Sentinel alone, {killed_ours:?} with the guard; stopped: {stopped:?} and {stopped_ours:?}");
    assert!(killed_ours < killed, "{took:?}");
    // Both begin by the same suspicion of the same Sentinel; its timer and its steps are a tenth of a second and a second apart.
    assert!(stopped_ours < stopped + Duration::from_secs(1), "{took:?}");
}
