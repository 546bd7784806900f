//! A PostgreSQL server.
//!
//! A primary cannot be told to take no writes, so it is ended for that. Whoever starts it, it starts as a standby: `standby.signal` is there also while it
//! leads, where it means nothing. A former leader whose timeline has another end than the next one's is rewound (`pg_rewind`); where that fails it gets
//! everything anew (`pg_basebackup`).

use crate::config;
use crate::server::{Report, Server};
use fallible_iterator::FallibleIterator as _;
use postgres_protocol::message::{backend, frontend};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, ToSocketAddrs as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a follower, before a leader is ended for it and behind that.
const HAND_MAX: Duration = Duration::from_secs(5);
/// A fast shutdown waits for followers. Longer than this it is not waited for.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Replay of what was received ends before a server leads.
const PROMOTE_MAX: Duration = Duration::from_secs(30);
/// A standby that has not reached its leader for so long is looked into.
const MEND_AFTER: Duration = Duration::from_secs(3);
/// ... and again, and with a base backup, after so long.
const MEND_AGAIN: Duration = Duration::from_secs(10);
/// Nobody answers there.
const NOBODY: &str = "127.0.0.1:1";

/// One of this host.
pub struct Postgresql {
    place: Place,
    connection: Option<UnixStream>,
    /// Whom this connection reaches.
    seen: Option<(String, bool)>,
    /// Whom it was told to follow.
    wanted: Option<String>,
    /// The leader with which it was last seen to stream, and when.
    streamed: Option<(String, Instant)>,
    /// Since when it has not.
    apart: Option<Instant>,
    mending: Option<Receiver<Result<String, String>>>,
    /// When the last attempt ended, and how many there were since it streamed.
    mended: Option<(Instant, u32)>,
    /// What of it went wrong.
    trouble: String,
}

/// Where it is, and who may do something there.
#[derive(Clone)]
struct Place {
    config: config::Postgresql,
    bin: PathBuf,
    uid: u32,
    gid: u32,
}

fn text(error: &std::io::Error) -> String {
    error.to_string()
}

fn split(address: &str) -> Result<(&str, &str), String> {
    let (host, port) = address.rsplit_once(':').ok_or_else(|| format!("{address} is no address with a port"))?;
    Ok((host.trim_start_matches('[').trim_end_matches(']'), port))
}

/// `10.0.0.1:5432` of `host=10.0.0.1 port=5432 …`.
fn followed(conninfo: &str) -> Option<String> {
    let field = |key: &str| {
        let word = conninfo.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))?;
        Some(word.trim_matches('\'').to_owned())
    };
    let (host, port) = (field("host")?, field("port").unwrap_or_else(|| "5432".into()));
    Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

fn parent(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1).map(str::to_owned)
}

/// A text as SQL and configuration files write it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl Place {
    /// A program, with the rights of whoever owns the data.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        // SAFETY: takes nothing and cannot fail.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(self.uid).gid(self.gid);
        }
        command.env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        command
    }

    fn run(&self, command: &mut Command) -> Result<String, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        let out = command.output().map_err(|e| format!("cannot run {name}: {e}"))?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if out.status.success() {
            return Ok(said(&out.stdout));
        }
        let why = said(&out.stderr);
        Err(format!("{name}: {}", why.lines().last().unwrap_or("has failed")))
    }

    fn program(&self, name: &str) -> Command {
        self.command(self.bin.join(name))
    }

    /// How another server is reached.
    fn conninfo(&self, address: &str) -> Result<String, String> {
        let (host, port) = split(address)?;
        let passfile = self.config.passfile.as_ref().map(|path| format!(" passfile={}", path.display())).unwrap_or_default();
        Ok(format!(
            "host={host} port={port} user={}{passfile} application_name=fide connect_timeout=2",
            self.config.replication_user
        ))
    }

    fn remote(&self, address: &str, query: &str) -> Result<String, String> {
        let conninfo = format!("{} dbname=postgres", self.conninfo(address)?);
        self.run(self.program("psql").args(["-XAtqw", "-c", query, "-d"]).arg(conninfo))
    }

    /// A file of the data directory, whole or as it was.
    fn write(&self, name: &str, content: &str) -> Result<(), String> {
        let path = self.config.data.join(name);
        let mut command = self.command("/bin/sh");
        command.args(["-c", "umask 077; cat >\"$1.fide\" && sync -d \"$1.fide\" && mv \"$1.fide\" \"$1\"", "sh"]).arg(&path);
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        let written = child.stdin.take().is_some_and(|mut to| to.write_all(content.as_bytes()).is_ok());
        let ended = child.wait().is_ok_and(|status| status.success());
        if written && ended { Ok(()) } else { Err(format!("cannot write {}", path.display())) }
    }

    /// Also while it does not run, and for every start: a standby, of that one.
    fn stand_by(&self, address: &str) -> Result<(), String> {
        self.write("standby.signal", "")?;
        let path = self.config.data.join("postgresql.auto.conf");
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        let ours = |line: &&str| {
            ["primary_conninfo", "wal_retrieve_retry_interval"].iter().any(|key| line.trim_start().starts_with(key))
        };
        let kept: String = old.lines().filter(|line| !ours(line)).map(|line| format!("{line}\n")).collect();
        let conninfo = quoted(&self.conninfo(address)?);
        self.write(
            "postgresql.auto.conf",
            &format!("{kept}primary_conninfo = {conninfo}\nwal_retrieve_retry_interval = '500ms'\n"),
        )
    }

    /// Its first process, if that lives.
    fn postmaster(&self) -> Option<u32> {
        let pid = std::fs::read_to_string(self.config.data.join("postmaster.pid")).ok()?;
        let pid: u32 = pid.lines().next()?.trim().parse().ok()?;
        self.is_here(&pid.to_string()).then_some(pid)
    }

    /// Whether a process is one of this server.
    fn is_here(&self, pid: &str) -> bool {
        let link = |name: &str| std::fs::read_link(Path::new("/proc").join(pid).join(name)).ok();
        let data = std::fs::canonicalize(&self.config.data).ok();
        let is_server =
            link("exe").is_some_and(|exe| exe.file_name().is_some_and(|name| name.to_string_lossy().starts_with("postgres")));
        is_server && data.is_some() && link("cwd") == data
    }

    /// Processes of a server whose first one has ended go on until they look up: what they still write is nobody's.
    fn end_the_rest(&self) {
        let Ok(all) = std::fs::read_dir("/proc") else { return };
        for name in all.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()) {
            // One that has just been started is no child of a server.
            let is_child = || {
                std::fs::read(Path::new("/proc").join(&name).join("cmdline")).is_ok_and(|line| line.starts_with(b"postgres: "))
            };
            if let Ok(pid) = name.parse::<libc::pid_t>()
                && self.is_here(&name)
                && is_child()
                && !parent(&name).is_some_and(|parent| self.is_here(&parent))
            {
                // SAFETY: takes two numbers.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }

    fn ctl(&self, mode: &str, most: Duration) -> Result<(), String> {
        let seconds = most.as_secs().to_string();
        let mut command = self.program("pg_ctl");
        command.args(["stop", "-s", "-m", mode, "-t", &seconds, "-D"]).arg(&self.config.data);
        self.run(&mut command).map(drop)
    }

    /// Ends it: at leisure first, if it can be waited for.
    fn stop(&self) -> Result<(), String> {
        if self.postmaster().is_none() {
            return Ok(());
        }
        let fast = match &self.config.unit {
            Some(unit) => {
                self.run(Command::new("timeout").args([&STOP_MAX.as_secs().to_string(), "systemctl", "stop", unit])).map(drop)
            }
            None => self.ctl("fast", STOP_MAX),
        };
        if fast.is_err() && self.postmaster().is_some() {
            self.ctl("immediate", STOP_MAX)?;
        }
        match self.postmaster() {
            Some(_) => Err("it does not end".into()),
            None => Ok(()),
        }
    }

    /// Starts it as a standby of whom [`Place::stand_by`] said. It is not waited for.
    fn start(&self) -> Result<(), String> {
        if let Some(unit) = &self.config.unit {
            return self.run(Command::new("systemctl").args(["start", "--no-block", unit])).map(drop);
        }
        let mut command = self.program("pg_ctl");
        command
            .args(["start", "-s", "-W", "-l"])
            .arg(self.config.data.join("fide-failover.log"))
            .arg("-D")
            .arg(&self.config.data);
        self.run(&mut command).map(drop)
    }

    fn control(&self, key: &str) -> Result<String, String> {
        let said = self.run(self.program("pg_controldata").arg("-D").arg(&self.config.data))?;
        let value = said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':').map(str::trim));
        value.map(str::to_owned).ok_or_else(|| format!("pg_controldata does not say {key}"))
    }

    /// Files of this host's that come with another one's data.
    fn keep(&self) -> Vec<(&'static str, String)> {
        let names = ["postgresql.conf", "pg_hba.conf", "pg_ident.conf"];
        names.into_iter().filter_map(|name| Some((name, std::fs::read_to_string(self.config.data.join(name)).ok()?))).collect()
    }

    /// Makes a standby follow that cannot: its data are rewound, or replaced. What was done.
    fn mend(&self, address: &str, anew: bool) -> Result<String, String> {
        if self.remote(address, "SELECT pg_is_in_recovery()")? != "f" {
            return Err(format!("{address} does not lead yet"));
        }
        // Behind a promotion the first checkpoint says which timeline it is.
        _ = self.remote(address, "CHECKPOINT");
        let kept = self.keep();
        let put_back = || -> Result<(), String> {
            kept.iter().try_for_each(|(name, content)| self.write(name, content))?;
            self.stand_by(address)
        };
        if !anew {
            self.stop()?;
            let source = format!("{} dbname=postgres", self.conninfo(address)?);
            let rewound = self.run(self.program("pg_rewind").arg("-D").arg(&self.config.data).arg("--source-server").arg(source));
            if rewound.is_ok() {
                put_back()?;
                self.start()?;
                return Ok("pg_rewind has brought it to its leader's timeline".into());
            }
            tracing::warn!("{}: a base backup is taken instead", rewound.unwrap_err());
        }
        self.back_up(address)?;
        put_back()?;
        self.start()?;
        Ok("it has its leader's data by a base backup".into())
    }

    fn back_up(&self, address: &str) -> Result<(), String> {
        let data = &self.config.data;
        if std::fs::read_dir(data.join("pg_tblspc")).is_ok_and(|mut spaces| spaces.next().is_some()) {
            return Err("a base backup is up to you, because there are tablespaces".into());
        }
        let beside = |ending: &str| PathBuf::from(format!("{}.{ending}", data.display()));
        let (new, old) = (beside("fide-new"), beside("fide-old"));
        self.run(self.command("rm").arg("-rf").arg(&new))?;
        let mut command = self.program("pg_basebackup");
        command.args(["-c", "fast", "-X", "stream", "-w", "-D"]).arg(&new).arg("-d").arg(self.conninfo(address)?);
        self.run(&mut command)?;
        self.stop()?;
        self.run(self.command("rm").arg("-rf").arg(&old))?;
        self.run(self.command("mv").arg("-T").arg(data).arg(&old))?;
        self.run(self.command("mv").arg("-T").arg(&new).arg(data))?;
        self.run(self.command("rm").arg("-rf").arg(&old)).map(drop)
    }

    fn connect(&self) -> Result<UnixStream, String> {
        let path = self.config.socket.join(format!(".s.PGSQL.{}", self.config.port));
        let mut stream = self.as_owner(|| UnixStream::connect(&path)).map_err(|e| format!("{}: {e}", path.display()))?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(|e| text(&e))?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(|e| text(&e))?;
        let mut hello = bytes::BytesMut::new();
        let parameters = [("user", self.config.user.as_str()), ("database", "postgres"), ("application_name", "fide-failover")];
        frontend::startup_message(parameters, &mut hello).map_err(|e| text(&e))?;
        stream.write_all(&hello).map_err(|e| text(&e))?;
        answer(&mut stream)??;
        Ok(stream)
    }

    /// The server asks the kernel who connects (`peer` in pg_hba.conf).
    fn as_owner<T>(&self, what: impl FnOnce() -> T) -> T {
        // SAFETY: numbers; the raw call concerns this thread only, and is undone below.
        let switched = unsafe { libc::geteuid() == 0 && libc::syscall(libc::SYS_setresuid, -1, self.uid, -1) == 0 };
        let result = what();
        if switched {
            // SAFETY: as above.
            let back = unsafe { libc::syscall(libc::SYS_setresuid, -1, 0, -1) };
            assert_eq!(back, 0, "root cannot become root again");
        }
        result
    }
}

type Rows = Vec<Vec<Option<String>>>;

/// The rows of an answer, or the error in it. `Err`: it did not come.
fn answer(stream: &mut UnixStream) -> Result<Result<Rows, String>, String> {
    let (mut buffer, mut rows, mut error) = (bytes::BytesMut::new(), Vec::new(), None);
    loop {
        while let Some(message) = backend::Message::parse(&mut buffer).map_err(|e| text(&e))? {
            match message {
                backend::Message::DataRow(row) => {
                    let (bytes, mut row_of) = (row.buffer(), Vec::new());
                    let mut ranges = row.ranges();
                    while let Some(range) = ranges.next().map_err(|e| text(&e))? {
                        row_of.push(range.map(|range| String::from_utf8_lossy(&bytes[range]).into_owned()));
                    }
                    rows.push(row_of);
                }
                backend::Message::ErrorResponse(body) => {
                    let mut fields = body.fields();
                    while let Some(field) = fields.next().map_err(|e| text(&e))? {
                        if field.type_() == b'M' {
                            error = Some(String::from_utf8_lossy(field.value_bytes()).into_owned());
                        }
                    }
                }
                backend::Message::ReadyForQuery(_) => return Ok(error.map_or(Ok(rows), Err)),
                backend::Message::AuthenticationCleartextPassword
                | backend::Message::AuthenticationMd5Password(_)
                | backend::Message::AuthenticationSasl(_) => {
                    return Err("pg_hba.conf asks its own user for a password: let it in by `local all postgres peer`".into());
                }
                _ => {}
            }
        }
        let mut some = [0; 8192];
        match stream.read(&mut some) {
            Ok(0) => return Err(error.unwrap_or_else(|| "it hung up".into())),
            Ok(count) => buffer.extend_from_slice(&some[..count]),
            Err(e) => return Err(text(&e)),
        }
    }
}

const LOOK: &str = "SELECT pg_postmaster_start_time(), pg_is_in_recovery(), current_setting('primary_conninfo'), \
    (SELECT sender_host || ' ' || sender_port FROM pg_stat_wal_receiver WHERE status = 'streaming' AND received_tli >= coalesce(\
        (SELECT max(('x' || left(name, 8))::bit(32)::int) FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{8}.history$'), 0)), \
    CASE WHEN pg_is_in_recovery() THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) ELSE pg_current_wal_lsn() END - '0/0'::pg_lsn, \
    EXISTS (SELECT FROM pg_database WHERE oid >= 16384) OR EXISTS (SELECT FROM pg_class WHERE oid >= 16384), \
    CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() END, \
    current_setting('wal_log_hints'), current_setting('data_checksums')";

impl Postgresql {
    /// As configured. Does not connect yet.
    ///
    /// # Errors
    /// Data that are not there.
    pub fn new(config: &config::Postgresql) -> Result<Self, String> {
        let data = &config.data;
        let version = std::fs::read_to_string(data.join("PG_VERSION"))
            .map_err(|e| format!("postgresql.data: no PG_VERSION in {}: {e}", data.display()))?;
        let version = version.trim();
        let owner = std::fs::metadata(data).map_err(|e| format!("{}: {e}", data.display()))?;
        let bin = config.bin.clone().unwrap_or_else(|| format!("/usr/lib/postgresql/{version}/bin").into());
        for name in ["pg_ctl", "pg_controldata", "pg_rewind", "pg_basebackup", "psql"] {
            if !bin.join(name).is_file() {
                return Err(format!("postgresql.bin: there is no {name} in {}", bin.display()));
            }
        }
        if version.parse::<u32>().is_ok_and(|version| version < 13) || version.contains('.') {
            return Err(format!("PostgreSQL {version} is too old: 13 and later follow another server without a restart"));
        }
        if config.unit.is_none() && !data.join("postgresql.conf").is_file() {
            return Err(format!("there is no postgresql.conf in {}: name the service in postgresql.unit", data.display()));
        }
        let place = Place { config: config.clone(), bin, uid: owner.uid(), gid: owner.gid() };
        Ok(Self {
            place,
            connection: None,
            seen: None,
            wanted: None,
            streamed: None,
            apart: None,
            mending: None,
            mended: None,
            trouble: String::new(),
        })
    }

    fn ask(&mut self, query: &str) -> Result<Rows, String> {
        let mut stream = match self.connection.take() {
            Some(stream) => stream,
            None => {
                self.seen = None;
                self.place.connect()?
            }
        };
        let mut message = bytes::BytesMut::new();
        frontend::query(query, &mut message).map_err(|e| text(&e))?;
        stream.write_all(&message).map_err(|e| text(&e))?;
        // A connection whose answer did not come gives it to the next question.
        let rows = answer(&mut stream)?;
        self.connection = Some(stream);
        rows
    }

    fn one(&mut self, query: &str) -> Result<String, String> {
        Ok(self.ask(query)?.into_iter().flatten().next().flatten().unwrap_or_default())
    }

    fn is_mending(&mut self) -> bool {
        let Some(result) = &self.mending else { return false };
        let result = match result.try_recv() {
            Err(TryRecvError::Empty) => return true,
            Ok(result) => result,
            Err(TryRecvError::Disconnected) => Err("its thread has ended".into()),
        };
        (self.mending, self.connection) = (None, None);
        let count = self.mended.map_or(0, |(_, count)| count);
        self.mended = Some((Instant::now(), count + 1));
        match result {
            Ok(what) => {
                tracing::info!("the server: {what}");
                self.trouble.clear();
            }
            Err(why) => self.trouble = format!("it cannot be made to follow: {why}"),
        }
        false
    }

    /// Whether a standby has to be looked into that does not reach its leader.
    fn mend(&mut self, is_apart: bool) {
        if !is_apart {
            (self.apart, self.mended) = (None, None);
            self.trouble.clear();
            return;
        }
        let since = *self.apart.get_or_insert_with(Instant::now);
        let (after, count) = self.mended.map_or((since + MEND_AFTER, 0), |(at, count)| (at + MEND_AGAIN, count));
        let (Some(address), true) = (self.wanted.clone(), Instant::now() >= after) else { return };
        if address == NOBODY {
            return;
        }
        let (to, result) = channel();
        let place = self.place.clone();
        // The first attempt may have been too early: only where rewinding has not helped is everything fetched anew.
        let anew = count > 0 && self.trouble.is_empty();
        let thread = std::thread::Builder::new().name("mend".into()).spawn(move || _ = to.send(place.mend(&address, anew)));
        if thread.is_ok() {
            (self.mending, self.connection, self.seen) = (Some(result), None, None);
        }
    }

    /// It leads: what is on disk says that it does not when it starts.
    fn mark(&mut self) -> Result<(), String> {
        self.place.write("standby.signal", "")?;
        let nobody = quoted(&self.place.conninfo(NOBODY)?);
        self.ask(&format!("ALTER SYSTEM SET primary_conninfo = {nobody}"))?;
        self.ask("SELECT pg_reload_conf()").map(drop)
    }

    /// Ended, and started again as one that takes no writes.
    fn restart(&mut self, address: &str) -> Result<(), String> {
        (self.connection, self.seen) = (None, None);
        self.place.stop()?;
        self.place.stand_by(address)?;
        self.place.start()
    }

    /// It takes no more writes, and the other one has replayed all.
    fn stop_in_step(&mut self, address: &str) -> Result<(), String> {
        let ip = split(address)?.0;
        let ip = ip.parse::<IpAddr>().ok().or_else(|| Some((ip, 0).to_socket_addrs().ok()?.next()?.ip()));
        let ip = ip.ok_or_else(|| format!("{address} is no address"))?;
        let behind = format!(
            "SELECT pg_current_wal_lsn() - flush_lsn < 16777216 FROM pg_stat_replication WHERE client_addr = '{ip}' AND state = 'streaming'"
        );
        let until = Instant::now() + HAND_MAX;
        while self.one(&behind)? != "t" {
            if Instant::now() >= until {
                return Err(format!("{address} does not follow it closely"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.place.remote(address, "SELECT 1").map_err(|why| format!("{address} cannot be asked how far it is: {why}"))?;
        // So that ending it takes less.
        self.ask("CHECKPOINT")?;
        self.place.stop()?;
        if self.place.control("Database cluster state")? != "shut down" {
            return Err("it did not end in good order within 5 s".into());
        }
        let end = self.place.control("Latest checkpoint location")?;
        let query = format!("SELECT pg_last_wal_replay_lsn() > '{end}'");
        let until = Instant::now() + HAND_MAX;
        while self.place.remote(address, &query)? != "t" {
            if Instant::now() >= until {
                return Err(format!("{address} had not all writes after {} s", HAND_MAX.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Server for Postgresql {
    fn look(&mut self) -> Result<Report, String> {
        if self.is_mending() {
            return Err("it is made to follow its leader".into());
        }
        if self.place.postmaster().is_none() {
            self.connection = None;
            self.place.end_the_rest();
            return Err("it does not run".into());
        }
        let row = self.ask(LOOK)?.into_iter().next().ok_or("it says nothing of itself")?;
        let column = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        let primary = column(1) == "f";
        let conninfo = column(2);
        let follows = if primary { None } else { followed(&conninfo) };
        // A moment behind an order it may still be another one. A standby that has more of an old timeline than became part of the leader's receives that
        // old one again and again, although the new one's history is known to it.
        let streams =
            follows.as_ref().is_some_and(|leader| split(leader).is_ok_and(|(host, port)| column(3) == format!("{host} {port}")));
        if streams && let Some(leader) = &follows {
            self.streamed = Some((leader.clone(), Instant::now()));
        }
        let is_apart = !primary && !streams && follows == self.wanted;
        self.mend(is_apart);
        let synced = self.streamed.as_ref().filter(|(leader, _)| Some(leader) == follows.as_ref());
        let hints = column(7) == "on" || column(8) == "on";
        let doubt = match () {
            () if !self.trouble.is_empty() => self.trouble.clone(),
            () if !hints => "wal_log_hints is off, and so are checksums: pg_rewind needs one of them".into(),
            () => String::new(),
        };
        let report = Report {
            instance: column(0),
            primary,
            follows,
            synced_ago: synced.map(|(_, at)| at.elapsed()),
            position: column(4).parse().unwrap_or(0),
            stream: None,
            has_data: column(5) == "t",
            durable: true,
            usable: if column(6) == "t" { Err("its replay is paused".into()) } else { Ok(()) },
            doubt,
        };
        self.seen = Some((report.instance.clone(), primary));
        Ok(report)
    }

    fn lead(&mut self, instance: &str) -> Result<(), String> {
        if self.seen.is_none() {
            self.look()?;
        }
        let (seen, primary) = self.seen.take().ok_or("it is made to follow its leader")?;
        if seen != instance {
            return Err("it was restarted".into());
        }
        self.wanted = None;
        if !primary {
            self.ask("SELECT pg_promote(false)")?;
            let until = Instant::now() + PROMOTE_MAX;
            while self.one("SELECT pg_is_in_recovery()")? != "f" {
                if Instant::now() >= until {
                    return Err(format!("it is not promoted after {} s", PROMOTE_MAX.as_secs()));
                }
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        if let Err(why) = self.mark() {
            self.trouble = format!("it would take writes behind a restart: {why}");
        }
        // Servers that are rewound have to see this timeline in its last checkpoint.
        let place = self.place.clone();
        let checkpoint = move || {
            let done = place.connect().and_then(|mut stream| {
                stream.set_read_timeout(None).map_err(|e| text(&e))?;
                let mut message = bytes::BytesMut::new();
                frontend::query("CHECKPOINT", &mut message).map_err(|e| text(&e))?;
                stream.write_all(&message).map_err(|e| text(&e))?;
                answer(&mut stream)?
            });
            if let Err(why) = done {
                tracing::warn!("no checkpoint behind the promotion: {why}");
            }
        };
        _ = std::thread::Builder::new().name("checkpoint".into()).spawn(checkpoint);
        Ok(())
    }

    fn follow(&mut self, address: &str) -> Result<(), String> {
        if self.is_mending() {
            return Err("it is made to follow another one".into());
        }
        if self.wanted.as_deref() != Some(address) {
            (self.apart, self.mended) = (None, None);
            self.wanted = Some(address.into());
        }
        if self.place.postmaster().is_none() {
            return self.place.stand_by(address);
        }
        if self.one("SELECT pg_is_in_recovery()")? == "f" {
            return self.restart(address);
        }
        self.place.write("standby.signal", "")?;
        let conninfo = self.place.conninfo(address)?;
        self.ask(&format!("ALTER SYSTEM SET primary_conninfo = {}", quoted(&conninfo)))?;
        self.ask("ALTER SYSTEM SET wal_retrieve_retry_interval = '500ms'")?;
        self.ask("SELECT pg_reload_conf()")?;
        let until = Instant::now() + TIMEOUT;
        while self.one("SELECT current_setting('primary_conninfo')")? != conninfo {
            if Instant::now() >= until {
                return Err("it does not read its configuration".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        self.wanted = Some(NOBODY.into());
        if self.is_mending() {
            return Ok(()); // it takes no writes
        }
        if self.place.postmaster().is_none() {
            return self.place.stand_by(NOBODY);
        }
        if self.one("SELECT pg_is_in_recovery()").is_ok_and(|standby| standby == "t") {
            return self.follow(NOBODY);
        }
        self.restart(NOBODY)
    }

    fn hand(&mut self, address: &str) -> Result<(), String> {
        let handed = self.stop_in_step(address);
        if self.place.postmaster().is_none() {
            (self.connection, self.seen) = (None, None);
            // Either way it takes no writes before it is told to: its data are as they were.
            self.wanted = Some(if handed.is_ok() { address.into() } else { NOBODY.into() });
            self.place.stand_by(if handed.is_ok() { address } else { NOBODY })?;
            self.place.start()?;
        }
        handed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_read_from_the_conninfo() {
        assert_eq!(followed("host=10.0.0.1 port=5433 user=x").as_deref(), Some("10.0.0.1:5433"));
        assert_eq!(followed("user=x host='fd00::1'").as_deref(), Some("[fd00::1]:5432"));
        assert_eq!(followed("user=x"), None);
        assert_eq!(split("[fd00::1]:5432"), Ok(("fd00::1", "5432")));
    }

    #[test]
    fn quotes_are_doubled() {
        assert_eq!(quoted("a'b"), "'a''b'");
    }
}
