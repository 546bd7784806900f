//! `fide-failover` over real PostgreSQL servers: promotion, return by `pg_rewind`, base backups, switches that lose nothing.

use crate::common::{Process, Setup, World, until};
use crate::e2e_failover::program;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A server that is made to follow is looked at again after 3 s, and 10 s behind that: on a busy machine twice.
const PATIENCE: Duration = Duration::from_secs(60);
const BIN: &str = "/usr/lib/postgresql/15/bin";

fn available() -> bool {
    let there = fs::metadata(BIN).is_ok() && Command::new("id").arg("postgres").output().is_ok_and(|out| out.status.success());
    if !there {
        println!("SKIPPED: there is no PostgreSQL 15: apt-get install postgresql-15");
    }
    there
}

struct Managed {
    managers: Vec<Option<Process>>,
    w: World,
    dir: tempfile::TempDir,
    hosts: u16,
    more: String,
}

impl Managed {
    /// A server and a manager on each host. `alike`: the others begin with the first one's data, else with a database system of their own.
    fn up(hosts: u16, more: &str, alike: bool, setup: impl FnOnce(Setup) -> Setup) -> Option<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        if !available() {
            return None;
        }
        let w = setup(Setup::hosts(hosts)).up()?;
        w.all_alive();
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut of = Self { managers: Vec::new(), w, dir, hosts, more: more.into() };
        for host in 1..=hosts {
            let place = of.place(host);
            fs::create_dir(&place).unwrap();
            assert!(Command::new("chown").arg("postgres:postgres").arg(&place).status().unwrap().success());
            if host == 1 || !alike {
                of.run(host, &format!("{BIN}/initdb"), &["-A", "trust", "-N", "-U", "postgres", "-D", "main"]);
                let conf =
                    "listen_addresses = '*'\nwal_log_hints = on\nwal_keep_size = 256MB\nfsync = off\nshared_buffers = 16MB\n";
                let auto = of.place(host).join("main/postgresql.conf");
                let old = fs::read_to_string(&auto).unwrap();
                fs::write(&auto, format!("{old}{conf}unix_socket_directories = '{}'\n", of.place(host).display())).unwrap();
                let hba = of.place(host).join("main/pg_hba.conf");
                fs::write(hba, "local all all peer\nhost all all 0.0.0.0/0 trust\nhost replication all 0.0.0.0/0 trust\n")
                    .unwrap();
            } else {
                let from = of.place(1).join("main");
                of.run(host, "cp", &["-a", from.to_str().unwrap(), "main"]);
                let conf = of.place(host).join("main/postgresql.conf");
                let text = fs::read_to_string(&conf).unwrap();
                let (one, other) = (of.place(1), of.place(host));
                fs::write(&conf, text.replace(one.to_str().unwrap(), other.to_str().unwrap())).unwrap();
                of.run(host, "touch", &["main/standby.signal"]);
            }
        }
        (1..=hosts).for_each(|host| of.start_server(host));
        (1..=hosts).for_each(|host| until("the server answers", || of.ask(host, "SELECT 1") == "1"));
        (1..=hosts).for_each(|host| of.start_manager(host));
        until("one leads", || {
            of.ask(1, "CREATE TABLE IF NOT EXISTS numbers (n int PRIMARY KEY); INSERT INTO numbers VALUES (-1); SELECT 1") == "1"
        });
        until("all others follow", || (2..=hosts).all(|host| of.ask(host, "SELECT n FROM numbers") == "-1"));
        Some(of)
    }

    fn place(&self, host: u16) -> PathBuf {
        self.dir.path().join(format!("h{host}"))
    }

    fn as_owner(&self, host: u16, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.w.lab.command(host, "setpriv").unwrap();
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", program]).args(arguments);
        command.current_dir(self.place(host)).stdin(Stdio::null());
        command
    }

    fn run(&self, host: u16, program: &str, arguments: &[&str]) {
        let out = self.as_owner(host, program, arguments).output().unwrap();
        assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    fn start_server(&self, host: u16) {
        self.run(host, &format!("{BIN}/pg_ctl"), &["start", "-s", "-W", "-l", "log", "-D", "main"]);
    }

    fn postmaster(&self, host: u16) -> Option<i32> {
        fs::read_to_string(self.place(host).join("main/postmaster.pid")).ok()?.lines().next()?.parse().ok()
    }

    fn kill_server(&self, host: u16) {
        let pid = self.postmaster(host).unwrap();
        // SAFETY: two numbers; the process is this test's.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        until("it has ended", || !fs::exists(format!("/proc/{pid}")).unwrap());
    }

    fn command(&self, host: u16) -> Command {
        let dir = self.w.lab.host_dir(host);
        let hosts: Vec<String> = (1..=self.hosts).map(|host| format!("\"h{host}\"")).collect();
        let text = format!(
            "name = \"orders\"\nhosts = [{}]\nstate = {:?}\n{}\n[postgresql]\ndata = {:?}\nsocket = {:?}\n",
            hosts.join(", "),
            dir.join("failover"),
            self.more,
            self.place(host).join("main"),
            self.place(host)
        );
        crate::e2e_failover::configure(&dir.join("failover.toml"), &text);
        let mut command = self.w.lab.command(host, program().to_str().unwrap()).unwrap();
        command.arg("--config").arg(dir.join("failover.toml")).arg("--socket").arg(self.w.socket(host)).stdin(Stdio::null());
        command
    }

    fn start_manager(&mut self, host: u16) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.w.lab.host_dir(host).join("failover.log")).unwrap();
        let mut command = self.command(host);
        command.arg("run").stdout(log.try_clone().unwrap()).stderr(log);
        self.managers.push(Some(Process::spawn(command)));
    }

    fn log(&self, host: u16) -> String {
        fs::read_to_string(self.w.lab.host_dir(host).join("failover.log")).unwrap_or_default()
    }

    fn say(&self, host: u16, words: &[&str]) -> (bool, String) {
        let out = self.command(host).args(words).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    }

    /// The last line of the answer of this host's server.
    fn ask(&self, host: u16, query: &str) -> String {
        self.ask_at(host, self.place(host).to_str().unwrap(), query)
    }

    fn ask_at(&self, host: u16, at: &str, query: &str) -> String {
        let conninfo = format!("host={at} dbname=postgres user=postgres connect_timeout=1");
        let out = self.as_owner(host, &format!("{BIN}/psql"), &["-XAtq", "-c", query, "-d", &conninfo]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).trim().lines().last().unwrap_or_default().to_owned()
    }

    fn takes_writes(&self, host: u16) -> bool {
        self.ask(host, "CREATE TEMP TABLE probe (); SELECT 1") == "1"
    }

    fn streams(&self, host: u16, leader: u16) -> bool {
        let sender = self.ask(host, "SELECT sender_host FROM pg_stat_wal_receiver WHERE status = 'streaming'");
        sender == self.w.lab.ipv4(leader, 0).to_string()
    }

    fn leader(&self) -> Option<u16> {
        let all: Vec<u16> = (1..=self.hosts).filter(|host| self.takes_writes(*host)).collect();
        assert!(all.len() <= 1, "{all:?} take writes");
        all.first().copied()
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("FIDE_TEST_LOGS").is_some() {
            // The end of each, so that a report that is cut short has something of all.
            let end = |text: String| {
                let lines: Vec<&str> = text.lines().collect();
                lines[lines.len().saturating_sub(25)..].join("\n")
            };
            for host in (1..=self.hosts).rev() {
                let server = ["log", "main/fide-failover.log"]
                    .map(|name| end(fs::read_to_string(self.place(host).join(name)).unwrap_or_default()));
                println!("---- manager of h{host}\n{}\n---- its server\n{}\n{}", end(self.log(host)), server[0], server[1]);
            }
        }
        self.managers.clear();
        // Also those that managers have started.
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            if let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>()
                && fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(self.dir.path()))
            {
                // SAFETY: two numbers; its directory is this test's.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }
}

#[test]
fn another_postgresql_is_promoted_and_the_former_leader_returns_rewound() {
    let Some(of) = Managed::up(3, "", true, |setup| setup) else { return };
    assert_eq!(of.leader(), Some(1));
    until("all others stream", || of.streams(2, 1) && of.streams(3, 1));
    let since = Instant::now();
    of.kill_server(1);
    until("another one takes writes", || of.leader().is_some());
    println!("another server took writes {:?} behind the kill", since.elapsed());
    let next = of.leader().unwrap();
    let other = 5 - next;
    until("the third one follows", || of.streams(other, next));
    assert_eq!(of.ask(next, "INSERT INTO numbers VALUES (1); SELECT 1"), "1");
    // It comes back with what nobody else has: as one that takes no writes, and on another timeline.
    of.start_server(1);
    until("it follows", || {
        assert!(!of.takes_writes(1), "two take writes");
        of.streams(1, next)
    });
    until("it has the next leader's write", || of.ask(1, "SELECT n FROM numbers WHERE n = 1") == "1");
    let (ok, told) = of.say(3, &["history"]);
    assert!(ok && told.contains("orders@h1: ") && told.contains("certain"), "{told}");
}

#[test]
fn a_diverged_postgresql_is_rewound_and_leadership_is_handed_over_without_loss() {
    let Some(of) = Managed::up(2, "", true, |setup| setup) else { return };
    until("the other one streams", || of.streams(2, 1));
    // Writes that the other one does not get, because its receiver stands still.
    let receiver: i32 = of.ask(2, "SELECT pid FROM pg_stat_wal_receiver").parse().unwrap();
    // SAFETY: two numbers; the process is this test's.
    unsafe { libc::kill(receiver, libc::SIGSTOP) };
    assert_eq!(of.ask(1, "INSERT INTO numbers SELECT generate_series(1000, 3000); SELECT 1"), "1");
    of.kill_server(1);
    // SAFETY: as above.
    unsafe { libc::kill(receiver, libc::SIGCONT) };
    until("another one takes writes", || of.takes_writes(2));
    of.start_server(1);
    until("it follows", || {
        assert!(!of.takes_writes(1), "two take writes");
        of.streams(1, 2)
    });
    let count = of.ask(2, "SELECT count(*) FROM numbers");
    until("both have the same", || of.ask(1, "SELECT count(*) FROM numbers") == count);
    if count == "1" {
        until("its manager says how", || of.log(1).contains("pg_rewind"));
    }
    // Leadership is handed over while a client writes.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let acknowledged = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut all, mut n) = (Vec::new(), 10_000);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                n += 1;
                let at = 1 + n as u16 % 2;
                if of.ask(at, &format!("INSERT INTO numbers VALUES ({n}); SELECT 1")) == "1" {
                    all.push(n);
                }
            }
            all
        });
        for to in [1, 2] {
            let (ok, told) = of.say(2, &["switch", &format!("h{to}")]);
            let follows = ok && {
                let since = Instant::now();
                while !of.streams(3 - to, to) && since.elapsed() < PATIENCE {
                    // Sleep: interval of the poll.
                    std::thread::sleep(Duration::from_millis(20));
                }
                of.streams(3 - to, to)
            };
            if !follows {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
                panic!("{told}");
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert_eq!(of.ask(2, "SELECT count(*) FROM numbers WHERE n > 10000"), acknowledged.len().to_string());
    assert!(!acknowledged.is_empty());
}

#[test]
fn postgresql_servers_of_their_own_get_the_first_ones_data() {
    let Some(of) = Managed::up(2, "", false, |setup| setup) else { return };
    assert!(of.log(2).contains("base backup"), "{}", of.log(2));
    until("it streams", || of.streams(2, 1));
    assert_eq!(of.leader(), Some(1));
    // A restart of the leader is no crash.
    of.run(1, &format!("{BIN}/pg_ctl"), &["restart", "-s", "-W", "-m", "fast", "-l", "log", "-D", "main"]);
    until("it leads again", || of.leader() == Some(1));
    until("the other one follows", || of.streams(2, 1));
    let (_, told) = of.say(1, &["history"]);
    assert!(told.contains("restarted") && !told.contains("h2 leads"), "{told}");
}
