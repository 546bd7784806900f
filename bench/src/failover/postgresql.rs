//! Two PostgreSQL servers in the hands of `fide-failover` or of Patroni.

use super::{CLIENT, PAIR, Pair, end, log, manage, spawn};
use crate::rig::Rig;
use crate::sys;
use crate::ui::Ui;
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The hidden subcommand.
pub const ROLE: &str = "bench-postgresql";
pub(super) const SERVER: &str = "/usr/lib/postgresql/15/bin/postgres";
const BIN: &str = "/usr/lib/postgresql/15/bin";
const PATRONI: &str = "/usr/bin/patroni";
/// Runs a program, and takes note of the ends of orphans at once, as systemd does and the first process of a container may not: PostgreSQL is one.
const REAPER: &str = "import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
program = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
while os.wait()[0] != program: pass
";

// ---- in the helper process ----------------------------------------------------------------------------------------------

/// Arguments of the helper.
#[derive(Clone, Debug, clap::Args)]
pub struct HelperArgs {
    /// The servers; writes go to whichever takes them, until standard input ends
    #[arg(long, value_delimiter = ',')]
    pub address: Vec<Ipv4Addr>,
    /// Their port
    #[arg(long)]
    pub port: u16,
}

/// Writes by `psql`, which tries the servers in turn, and prints of each write when it was begun and when it was answered.
///
/// # Errors
/// When `psql` cannot be run.
pub fn help(args: &HelperArgs) -> Result<()> {
    std::thread::spawn(|| {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let hosts: Vec<String> = args.address.iter().map(ToString::to_string).collect();
    let server = format!(
        "host={} port={} dbname=postgres user=postgres target_session_attrs=read-write connect_timeout=2",
        hosts.join(","),
        args.port
    );
    let mut out = io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    loop {
        let mut psql = Command::new(format!("{BIN}/psql"));
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-d", &server]);
        sys::end_with_us(&mut psql);
        let mut psql =
            psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("cannot run psql")?;
        let (asks, answers) = (psql.stdin.take(), psql.stdout.take());
        let (mut asks, answers) = asks.zip(answers).context("psql without pipes")?;
        let mut answers = BufReader::new(answers).lines();
        loop {
            let begun = sys::now_ns();
            let asked = asks.write_all(b"INSERT INTO writes DEFAULT VALUES RETURNING host(inet_server_addr());\n");
            let Some(Ok(server)) = answers.next().filter(|_| asked.is_ok()) else { break };
            writeln!(out, "{begun} {} {server}", sys::now_ns())?;
            out.flush()?;
            sys::sleep_until(sys::now_ns() + 200_000);
        }
        end(&mut psql);
    }
}

// ---- in the parent ------------------------------------------------------------------------------------------------------

enum By {
    Ours,
    /// With its loop_wait.
    Patroni(u32),
}

pub(super) struct PostgresqlPair {
    by: By,
    port: u16,
    managers: Vec<Child>,
    /// The server that was killed last.
    killed: u32,
    /// With a directory of each host; the owner of its data can reach it.
    dir: tempfile::TempDir,
}

impl PostgresqlPair {
    fn new(by: By, port: u16) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("fide-bench-").tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let pair = Self { by, port, managers: Vec::new(), killed: 0, dir };
        for host in PAIR {
            fs::create_dir(pair.place(host))?;
            let owned = Command::new("chown").arg("postgres:postgres").arg(pair.place(host)).status()?;
            ensure!(owned.success(), "there is no user postgres: apt-get install postgresql-15");
        }
        Ok(pair)
    }

    /// `fide-failover` on both hosts.
    pub(super) fn ours(rig: &Rig, ui: &Ui, program: &Path) -> Result<Self> {
        let mut pair = Self::new(By::Ours, 5432)?;
        pair.run(rig, 1, &format!("{BIN}/initdb"), &["-A", "trust", "-N", "-U", "postgres", "-D", "main"])?;
        let main = pair.place(1).join("main");
        fs::write(
            main.join("pg_hba.conf"),
            "local all all peer\nhost all all 0.0.0.0/0 trust\nhost replication all 0.0.0.0/0 trust\n",
        )?;
        let defaults = fs::read_to_string(main.join("postgresql.conf"))?;
        let main = main.to_str().context("a directory that is no text")?;
        pair.run(rig, 2, "cp", &["-a", main, "main"])?;
        pair.run(rig, 2, "touch", &["main/standby.signal"])?;
        for host in PAIR {
            let place = pair.place(host);
            let more = format!(
                "port = {}\nlisten_addresses = '*'\nwal_log_hints = on\nwal_keep_size = 256MB\nfsync = off\nshared_buffers = 16MB\nunix_socket_directories = '{}'\n",
                pair.port,
                place.display()
            );
            fs::write(place.join("main/postgresql.conf"), format!("{defaults}{more}"))?;
            pair.run(rig, host, &format!("{BIN}/pg_ctl"), &["start", "-s", "-W", "-l", "log", "-D", "main"])?;
        }
        for host in PAIR {
            ui.until("a PostgreSQL server", || Ok(pair.ask(rig, host, "SELECT 1") == "1"))?;
        }
        for host in PAIR {
            let place = pair.place(host);
            let servers = format!("[postgresql]\nport = {}\ndata = {:?}\nsocket = {place:?}\n", pair.port, place.join("main"));
            pair.managers.push(manage(rig, host, program, "postgresql", &servers)?);
        }
        pair.prepare(rig, ui)?;
        Ok(pair)
    }

    /// Patroni on both hosts, and etcd on the third one.
    pub(super) fn patroni(rig: &Rig, ui: &Ui, loop_wait_s: u32) -> Result<Self> {
        let mut pair = Self::new(By::Patroni(loop_wait_s), 5433)?;
        let clients = format!("http://{}:2379", rig.lab().ipv4(CLIENT, 0));
        let mut etcd = rig.lab().command(CLIENT, "etcd")?;
        etcd.arg("--data-dir").arg(pair.dir.path().join("etcd"));
        etcd.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        pair.managers.push(spawn(etcd, log(pair.dir.path(), "etcd.log")?)?);
        for host in PAIR {
            let text = pair.patroni_yml(rig, host, loop_wait_s);
            fs::write(pair.place(host).join("patroni.yml"), text)?;
            let mut command = pair.owner(rig, host, "/usr/bin/python3", &["-c", REAPER, PATRONI, "patroni.yml"])?;
            sys::end_with_us(&mut command);
            pair.managers.push(spawn(command, log(pair.dir.path(), &format!("patroni-{host}.log"))?)?);
            if host == 1 {
                ui.until("the first member of Patroni's", || Ok(pair.takes_writes(rig, 1)))?;
            }
        }
        pair.prepare(rig, ui)?;
        Ok(pair)
    }

    /// The least that Patroni accepts of ttl is 20 s, of retry_timeout 3 s; a server that ends is given up at once.
    fn patroni_yml(&self, rig: &Rig, host: u16, loop_wait_s: u32) -> String {
        let (own, dcs, place, port) = (rig.lab().ipv4(host, 0), rig.lab().ipv4(CLIENT, 0), self.place(host), self.port);
        let (at, ttl) = (place.display(), 20.max(loop_wait_s + 6));
        format!(
            "scope: orders\nname: h{host}\nrestapi: {{ listen: '{own}:8008', connect_address: '{own}:8008' }}\netcd3: {{ host: '{dcs}:2379' }}\n\
             bootstrap:\n  dcs: {{ ttl: {ttl}, loop_wait: {loop_wait_s}, retry_timeout: 3, primary_start_timeout: 0, postgresql: {{ use_pg_rewind: true }} }}\n  \
             initdb: [{{ encoding: UTF8 }}, {{ locale: C }}, no-sync]\n  pg_hba: ['local all all trust', 'host all all 0.0.0.0/0 trust', 'host replication all 0.0.0.0/0 trust']\n\
             postgresql:\n  listen: '0.0.0.0:{port}'\n  connect_address: '{own}:{port}'\n  data_dir: '{at}/main'\n  bin_dir: {BIN}\n  pgpass: '{at}/pgpass'\n  \
             authentication: {{ superuser: {{ username: postgres, password: p }}, replication: {{ username: replicator, password: p }}, rewind: {{ username: rewinder, password: p }} }}\n  \
             parameters: {{ unix_socket_directories: '{at}', wal_log_hints: 'on', fsync: 'off', shared_buffers: 16MB }}\n"
        )
    }

    /// Waits until the pair is one, and makes what clients write to.
    fn prepare(&self, rig: &Rig, ui: &Ui) -> Result<()> {
        ui.until("a table on both servers", || {
            let leader = PAIR.into_iter().find(|host| self.takes_writes(rig, *host));
            let Some(leader) = leader else { return Ok(false) };
            let made = self.ask(rig, leader, "CREATE TABLE IF NOT EXISTS writes (n bigserial PRIMARY KEY); SELECT 1") == "1";
            Ok(made && self.ask(rig, 3 - leader, "SELECT count(*) >= 0 FROM writes") == "t")
        })
    }

    fn place(&self, host: u16) -> PathBuf {
        self.dir.path().join(format!("h{host}"))
    }

    fn owner(&self, rig: &Rig, host: u16, program: &str, arguments: &[&str]) -> Result<Command> {
        let mut command = rig.lab().command(host, "setpriv")?;
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", program]).args(arguments);
        command.current_dir(self.place(host)).stdin(Stdio::null());
        Ok(command)
    }

    fn run(&self, rig: &Rig, host: u16, program: &str, arguments: &[&str]) -> Result<()> {
        let out = self.owner(rig, host, program, arguments)?.output()?;
        ensure!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr).trim());
        Ok(())
    }

    /// The last line of the answer of this host's server; nothing if there is none.
    fn ask(&self, rig: &Rig, host: u16, query: &str) -> String {
        let info =
            format!("host={} port={} dbname=postgres user=postgres connect_timeout=1", self.place(host).display(), self.port);
        let out =
            self.owner(rig, host, &format!("{BIN}/psql"), &["-XAtq", "-c", query, "-d", &info]).and_then(|mut c| Ok(c.output()?));
        out.map_or_else(
            |_| String::new(),
            |out| String::from_utf8_lossy(&out.stdout).trim().lines().last().unwrap_or_default().to_owned(),
        )
    }

    /// Asked in a way that leaves nothing in the log of one that follows.
    fn takes_writes(&self, rig: &Rig, host: u16) -> bool {
        self.ask(rig, host, "SELECT pg_is_in_recovery()") == "f"
            && self.ask(rig, host, "CREATE TEMP TABLE probe (); SELECT 1") == "1"
    }
}

impl Pair for PostgresqlPair {
    fn name(&self) -> String {
        match self.by {
            By::Ours => "fide-failover, PostgreSQL".into(),
            By::Patroni(loop_wait_s) => format!("patroni loop_wait={loop_wait_s}s"),
        }
    }

    fn note(&self) -> String {
        "the client is psql, which tries both servers in turn and is started anew for it".into()
    }

    fn leader(&self, rig: &Rig) -> Option<u16> {
        let leader = PAIR.into_iter().find(|host| self.takes_writes(rig, *host))?;
        let streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        (self.ask(rig, leader, streaming) == "1").then_some(leader)
    }

    fn client(&self, rig: &Rig) -> Result<Command> {
        let mut command = rig.helper(CLIENT, ROLE)?;
        command.arg("--port").arg(self.port.to_string()).arg("--address");
        command.arg(PAIR.map(|host| rig.lab().ipv4(host, 0).to_string()).join(","));
        Ok(command)
    }

    fn kill(&mut self, host: u16) -> Result<u64> {
        let text = fs::read_to_string(self.place(host).join("main/postmaster.pid"))?;
        self.killed = text.lines().next().unwrap_or_default().parse().context("postmaster.pid")?;
        Ok(sys::kill(self.killed, libc::SIGKILL)?)
    }

    /// Patroni does it itself; `fide-failover` leaves the start to who starts servers, as systemd.
    fn mend(&mut self, rig: &Rig, ui: &Ui, host: u16) -> Result<()> {
        match self.by {
            By::Ours => {
                // Also its last trace: a server does not start while another process has the number in its postmaster.pid.
                let is_gone =
                    || !Path::new(&format!("/proc/{}", self.killed)).exists() && within(&self.place(host)).next().is_none();
                ui.until("the end of a killed server", || Ok(is_gone()))?;
                self.run(rig, host, &format!("{BIN}/pg_ctl"), &["start", "-s", "-W", "-l", "log", "-D", "main"])
            }
            By::Patroni(_) => Ok(()),
        }
    }
}

/// The processes that work in a directory or below.
fn within(dir: &Path) -> impl Iterator<Item = u32> + '_ {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(move |entry| {
        let pid = entry.file_name().to_string_lossy().parse().ok()?;
        fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir)).then_some(pid)
    })
}

impl Drop for PostgresqlPair {
    fn drop(&mut self) {
        self.managers.iter_mut().for_each(end);
        // Servers outlive who started them; they are known by where they are.
        for pid in within(self.dir.path()) {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
    }
}
