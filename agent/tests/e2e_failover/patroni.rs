//! Patroni beside FiDe: two real members and a real etcd. A hook wakes the Patroni whose PostgreSQL has ended, by its REST API; what is done then is Patroni's own judgement.

use crate::common::{Process, Setup, World, until};
use fide_wire::control::{MaintenanceOrder, Request};
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// PostgreSQL starts, is rewound or copied; on a busy machine more than once.
const PATIENCE: Duration = Duration::from_secs(90);
const POSTGRESQL: &str = "/usr/lib/postgresql/15/bin";
const PATRONI: &str = "/usr/bin/patroni";
const ETCD: &str = "/usr/bin/etcd";
const CURL: &str = "/usr/bin/curl";
/// Runs a program, and takes note of the ends of orphans at once, as systemd does and the first process of a container may not: PostgreSQL is one.
const REAPER: &str = "import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
program = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
while os.wait()[0] != program: pass
";
/// Patroni's own default: how often it looks.
const LOOP_WAIT: Duration = Duration::from_secs(10);

fn available() -> bool {
    let missing: Vec<&str> = [
        (POSTGRESQL, "postgresql-15"),
        (PATRONI, "patroni"),
        (ETCD, "etcd-server"),
        (CURL, "curl"),
        ("/usr/lib/python3/dist-packages/etcd", "python3-etcd"),
    ]
    .into_iter()
    .filter(|(path, _)| !Path::new(path).exists())
    .map(|(_, package)| package)
    .collect();
    if !missing.is_empty() {
        println!("SKIPPED Patroni beside FiDe: apt-get install {}", missing.join(" "));
    }
    missing.is_empty()
}

/// The hook of docs/patroni.md, at the address of this host's Patroni.
fn documented(address: Ipv4Addr) -> String {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/patroni.md")).unwrap();
    let block = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap().to_owned();
    assert!(block.contains("127.0.0.1:8008"), "{block}");
    block.replace("127.0.0.1:8008", &format!("{address}:8008"))
}

/// Patroni on hosts 1 and 2, etcd on host 3.
struct Members {
    patronis: Vec<Process>,
    _etcd: Process,
    w: World,
    dir: tempfile::TempDir,
}

impl Members {
    fn up() -> Option<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        if !available() {
            return None;
        }
        // The lab's addresses are known before it is up.
        let w = Setup::hosts(3).empty().up()?;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let of = |host| w.lab.ipv4(host, 0);
        let mut etcd = w.lab.command(3, ETCD).unwrap();
        etcd.arg("--data-dir").arg(dir.path().join("etcd")).arg("--listen-client-urls").arg(format!("http://{}:2379", of(3)));
        etcd.arg("--advertise-client-urls").arg(format!("http://{}:2379", of(3)));
        let etcd = logged(etcd, &dir.path().join("etcd.log"));
        let mut w = w;
        for host in 1..=3 {
            let more = if host < 3 { documented(w.lab.ipv4(host, 0)) } else { String::new() };
            let config = format!("{}\n{more}", w.head(host, &format!("h{host}"), "2ms"));
            w.write_config(host, &config);
            w.start(host);
        }
        w.all_alive();
        let mut all = Self { patronis: Vec::new(), _etcd: etcd, w, dir };
        for host in [1, 2] {
            fs::create_dir(all.place(host)).unwrap();
            assert!(Command::new("chown").arg("postgres:postgres").arg(all.place(host)).status().unwrap().success());
        }
        for host in [1, 2] {
            all.start(host);
            if host == 1 {
                wait("the first member leads", || all.leader() == Some(1));
            }
        }
        wait("the other one follows", || all.streams());
        for host in [1, 2] {
            wait("its server is watched", || {
                all.w.status(host).hosts.iter().any(|h| h.apps.iter().any(|a| a.name == "postgres" && a.state == "alive"))
            });
        }
        Some(all)
    }

    fn place(&self, host: u16) -> PathBuf {
        self.dir.path().join(format!("h{host}"))
    }

    fn start(&mut self, host: u16) {
        let (place, own, dcs) = (self.place(host), self.w.lab.ipv4(host, 0), self.w.lab.ipv4(3, 0));
        let at = place.display();
        let text = format!(
            "scope: orders\nname: h{host}\nrestapi: {{ listen: '{own}:8008', connect_address: '{own}:8008' }}\netcd3: {{ host: '{dcs}:2379' }}\n\
             bootstrap:\n  dcs: {{ ttl: 30, loop_wait: {}, retry_timeout: 10, primary_start_timeout: 0, postgresql: {{ use_pg_rewind: true }} }}\n  \
             initdb: [{{ encoding: UTF8 }}, {{ locale: C }}, no-sync]\n  pg_hba: ['local all all trust', 'host all all 0.0.0.0/0 trust', 'host replication all 0.0.0.0/0 trust']\n\
             postgresql:\n  listen: '0.0.0.0:5432'\n  connect_address: '{own}:5432'\n  data_dir: '{at}/main'\n  bin_dir: {POSTGRESQL}\n  pgpass: '{at}/pgpass'\n  \
             authentication: {{ superuser: {{ username: postgres, password: p }}, replication: {{ username: replicator, password: p }}, rewind: {{ username: rewinder, password: p }} }}\n  \
             parameters: {{ unix_socket_directories: '{at}', wal_log_hints: 'on', fsync: 'off', shared_buffers: 16MB }}\n",
            LOOP_WAIT.as_secs()
        );
        fs::write(place.join("patroni.yml"), text).unwrap();
        let mut command = self.owner(host, "/usr/bin/python3");
        command.args(["-c", REAPER, PATRONI, "patroni.yml"]);
        self.patronis.push(logged(command, &self.dir.path().join(format!("patroni-{host}.log"))));
    }

    fn owner(&self, host: u16, program: &str) -> Command {
        let mut command = self.w.lab.command(host, "setpriv").unwrap();
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", program]).current_dir(self.place(host));
        command
    }

    fn log(&self, host: u16) -> String {
        fs::read_to_string(self.dir.path().join(format!("patroni-{host}.log"))).unwrap_or_default()
    }

    /// The last line of the answer of a host's server.
    fn ask(&self, host: u16, query: &str) -> String {
        let place = self.place(host);
        let info = format!("host={} dbname=postgres user=postgres connect_timeout=1", place.display());
        let out = self.owner(host, &format!("{POSTGRESQL}/psql")).args(["-XAtq", "-c", query, "-d", &info]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).trim().lines().last().unwrap_or_default().to_owned()
    }

    /// Asked in a way that leaves nothing in the log of one that follows.
    fn takes_writes(&self, host: u16) -> bool {
        self.ask(host, "SELECT pg_is_in_recovery()") == "f" && self.ask(host, "CREATE TEMP TABLE probe (); SELECT 1") == "1"
    }

    fn leader(&self) -> Option<u16> {
        let all: Vec<u16> = [1, 2].into_iter().filter(|host| self.takes_writes(*host)).collect();
        assert!(all.len() <= 1, "{all:?} take writes");
        all.first().copied()
    }

    /// Whether the one that does not lead follows the other.
    fn streams(&self) -> bool {
        self.leader()
            .is_some_and(|leader| self.ask(leader, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == "1")
    }

    /// Kills the leader's server so long after its Patroni has looked; how long until the other one takes writes.
    fn kill(&self, behind: Duration) -> Duration {
        let leader = self.leader().unwrap();
        let looks = || self.log(leader).matches("the leader with the lock").count();
        let before = looks();
        until("its Patroni looks", || looks() > before);
        // Sleep: the moment of the kill between two looks of Patroni, which is what is measured.
        std::thread::sleep(behind);
        let pid: i32 =
            fs::read_to_string(self.place(leader).join("main/postmaster.pid")).unwrap().lines().next().unwrap().parse().unwrap();
        let since = Instant::now();
        // SAFETY: two numbers; the process is this test's.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        wait("the other one takes writes", || self.takes_writes(3 - leader));
        let took = since.elapsed();
        wait("the former leader follows", || self.leader() == Some(3 - leader) && self.streams());
        took
    }
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn logged(mut command: Command, log: &Path) -> Process {
    let log = File::options().create(true).append(true).open(log).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Process::spawn(command)
}

impl Drop for Members {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for host in [1, 2] {
                let log = self.log(host);
                // Its own lines, not PostgreSQL's.
                let lines: Vec<&str> =
                    log.lines().filter(|l| ["INFO", "WARNING", "ERROR"].iter().any(|w| l.contains(&format!(" {w}: ")))).collect();
                println!("---- Patroni of h{host}\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
            }
        }
        self.patronis.clear();
        // PostgreSQL outlives its Patroni.
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
fn patroni_acts_at_once_when_its_server_ends() {
    let Some(members) = Members::up() else { return };
    let rounds: u32 = std::env::var("FIDE_PATRONI_ROUNDS").map_or(1, |n| n.parse().unwrap());
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // At evenly spaced moments between two looks.
        let behind = LOOP_WAIT.mul_f64((f64::from(round) + 0.5) / f64::from(rounds));
        beside.push(members.kill(behind));
        // In maintenance the hook does not run.
        let order = MaintenanceOrder::On { target: "postgres".into(), for_ns: 600_000_000_000, reason: "Patroni alone".into() };
        members.w.ask(1, &Request::Maintenance { order }).unwrap();
        until("both know of it", || [1, 2].iter().all(|h| !members.w.status(*h).maintenance.is_empty()));
        alone.push(members.kill(behind));
        members.w.ask(1, &Request::Maintenance { order: MaintenanceOrder::Off { target: Some("postgres".into()) } }).unwrap();
        until("both know of its end", || [1, 2].iter().all(|h| members.w.status(*h).maintenance.is_empty()));
    }
    for all in [&mut alone, &mut beside] {
        all.sort_unstable();
    }
    println!(
        "kill -9 of the leading PostgreSQL to the next one's first write, {rounds} each: Patroni alone {alone:.1?}, woken by FiDe {beside:.1?}"
    );
    let median = |all: &[Duration]| all[all.len() / 2];
    // What PostgreSQL needs to be promoted is the same in both: half a wait is saved in the median, half of which a busy machine may eat.
    assert!(median(&beside) + LOOP_WAIT / 4 < median(&alone), "{beside:?} {alone:?}");
}
