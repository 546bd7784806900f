//! Groups on hosts of a lab, as the tests of this crate drive them.

#![allow(missing_docs, dead_code, reason = "each test uses a part")]

use fide_lab::{Lab, LabSpec, Leftover};
use fide_nano::driver::{Ask, Driver as _, Socket};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Of entries that were decided: instance, proposer, number, value.
pub type Log = Vec<(u64, u64, u64, String)>;

pub fn root(test: &str) -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("SKIPPED {test}: a lab needs root; run the tests with sudo");
    }
    is_root
}

pub struct Group {
    pub lab: Lab,
    pub directory: tempfile::TempDir,
    pub members: BTreeMap<u16, Child>,
    pub proposed: u64,
    /// On which host a member runs; where it does not say, on that of its number.
    pub places: BTreeMap<u16, u16>,
    /// Whether members write traces.
    pub tracing: bool,
    logs: BTreeMap<u16, Reader>,
    sockets: BTreeMap<u16, Socket>,
}

/// What was read of a member's log so far.
#[derive(Default)]
struct Reader {
    at: u64,
    rest: Vec<u8>,
    log: Log,
}

/// Why a group does not go on.
pub type Step<T = ()> = Result<T, String>;

impl Group {
    /// Hosts 1 to `hosts`; members from `joins` on join later.
    pub fn new(hosts: u16, joins: u16, exit_together: bool) -> Self {
        Self::timed(hosts, joins, &format!("period_us = 100000, delta_i_us = 150000, exit_together = {exit_together}"))
    }

    /// The same with other timing.
    pub fn timed(hosts: u16, joins: u16, timing: &str) -> Self {
        let places = (1..=hosts).map(|host| (host, host)).collect();
        Self::placed(hosts, places, joins, timing)
    }

    /// The same with members on hosts as told.
    pub fn placed(hosts: u16, places: BTreeMap<u16, u16>, joins: u16, timing: &str) -> Self {
        let lab = Lab::up(&LabSpec { hosts, ephemeral: true, ..LabSpec::default() }).unwrap();
        let directory = tempfile::tempdir().unwrap();
        Leftover::Directory(directory.path().into()).goes_with_caller().unwrap();
        let mut text = format!(
            "cluster = \"lab\"\ngroup = \"orders\"\ngeneration = 1\nport = 7440\ntrees = [\"239.77.9.1\", \"239.77.9.2\"]\n\
             key = \"000102030405060708090a0b0c0d0e0f\"\n\
             timing = {{ {timing} }}\n"
        );
        for (id, host) in &places {
            let (a, b) = (lab.ipv4(*host, 0), lab.ipv4(*host, 1));
            let joins = *id >= joins;
            text += &format!("[[member]]\nid = {id}\naddresses = [\"{a}\", \"{b}\"]\njoins = {joins}\n");
        }
        std::fs::write(directory.path().join("group.toml"), text).unwrap();
        let (members, logs, sockets) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { lab, directory, members, proposed: 0, places, tracing: false, logs, sockets }
    }

    pub fn path(&self, name: String) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn engine(&self, host: u16) -> PathBuf {
        self.path(format!("{host}.sock"))
    }

    pub fn nano(&self, host: u16, words: &[&str]) -> Output {
        let engine = self.engine(host);
        let mut command = Command::new(env!("CARGO_BIN_EXE_fide-nano"));
        command.args(words).arg("--engine").arg(engine).output().unwrap()
    }

    /// Runs a command that must be taken; its standard output.
    pub fn done(&self, host: u16, words: &[&str]) -> String {
        let output = self.nano(host, words);
        assert!(output.status.success(), "{words:?} at {host}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn config(&self) -> String {
        self.path("group.toml".into()).display().to_string()
    }

    pub fn run(&mut self, host: u16, software: bool) {
        let id = host.to_string();
        let mut command = self.lab.command(self.places[&host], env!("CARGO_BIN_EXE_fide-nano")).unwrap();
        command.args([
            "run",
            "--config",
            &self.config(),
            "--member",
            &id,
            "--interface",
            "net0",
            "--interface",
            "net1",
            "--fifo",
        ]);
        command.arg("--engine").arg(self.engine(host)).arg("--log").arg(self.path(format!("{host}.log")));
        if software {
            command.arg("--software");
        }
        if self.tracing {
            command.arg("--trace").arg(self.trace(host));
        }
        command.stderr(Stdio::from(std::fs::File::create(self.path(format!("{host}.err"))).unwrap()));
        let child = command.spawn().unwrap();
        self.members.insert(host, child);
        wait_for(&format!("member {host} to listen"), || self.nano(host, &["status"]).status.success());
        let said = std::fs::read_to_string(self.path(format!("{host}.err"))).unwrap();
        assert!(said.contains("correctness, not speed"), "{said}");
    }

    pub fn start(&mut self, host: u16, software: bool) {
        self.run(host, software);
        self.done(host, &["configure", "--config", &self.config(), "--member", &host.to_string()]);
        self.done(host, &["start"]);
    }

    pub fn status(&self, host: u16) -> String {
        self.done(host, &["status", "--json"])
    }

    pub fn leader(&self, host: u16) -> bool {
        self.status(host).contains("\"leads\":true")
    }

    pub fn trace(&self, host: u16) -> PathBuf {
        self.path(format!("{host}.trace"))
    }

    pub fn log(&self, host: u16) -> Log {
        read(&self.path(format!("{host}.log")))
    }

    /// Hands in values one after the other at a member that takes them, and waits until `at` have decided them all.
    pub fn decide(&mut self, count: u64, by: u16, at: &[u16]) {
        let mut before = self.log(by).len();
        for _ in 0..count {
            self.proposed += 1;
            let value = format!("value {}", self.proposed);
            // A request that finds the FIFO full is its client's to repeat.
            wait_for("a request to be taken", || self.nano(by, &["propose", &value]).status.success());
            before += 1;
        }
        for host in at {
            wait_within(Duration::from_secs(60), &format!("member {host} to have decided {before}"), || {
                self.log(*host).len() >= before
            });
        }
    }

    pub fn kill(&mut self, host: u16) {
        let mut child = self.members.remove(&host).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        self.sockets.remove(&host);
        if self.tracing {
            // It cannot write that itself. A line that it had half written ends here.
            let text = std::fs::read_to_string(self.trace(host)).unwrap();
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let crash = format!("{whole}\n{} p{host} crash\n", monotonic_ns());
            std::fs::write(self.trace(host), crash).unwrap();
        }
    }

    // What a long run does: without a process for each request, and without a panic where a member is not there.

    fn socket(&mut self, host: u16) -> Step<&mut Socket> {
        if !self.sockets.contains_key(&host) {
            let socket = Socket::open(&self.engine(host)).map_err(|why| why.to_string())?;
            self.sockets.insert(host, socket);
        }
        self.sockets.get_mut(&host).ok_or_else(|| unreachable!())
    }

    /// How many entries a member has decided; what is new of its log is read.
    pub fn decided(&mut self, host: u16) -> usize {
        let path = self.path(format!("{host}.log"));
        let reader = self.logs.entry(host).or_default();
        if let Ok(mut file) = std::fs::File::open(path) {
            file.seek(SeekFrom::Start(reader.at)).unwrap();
            reader.at += file.read_to_end(&mut reader.rest).unwrap() as u64;
        }
        if let Some(end) = reader.rest.iter().rposition(|byte| *byte == b'\n') {
            let whole: Vec<u8> = reader.rest.drain(..=end).collect();
            reader.log.extend(parse(std::str::from_utf8(&whole).unwrap()));
        }
        reader.log.len()
    }

    /// The last instance that it decided.
    pub fn last(&mut self, host: u16) -> u64 {
        self.decided(host);
        self.logs[&host].log.last().map_or(0, |entry| entry.0)
    }

    /// A member must be neither stopped nor gone. What its registers say.
    pub fn alive(&mut self, host: u16) -> Step<String> {
        let output = self.nano(host, &["status", "--json"]);
        let status = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() || status.contains("\"halted\":") || !status.contains("\"running\":true") {
            return Err(format!("member {host} should run: {status}{}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(status)
    }

    /// Hands in a value at a member, as often as it takes.
    pub fn offer(&mut self, by: u16) -> Step {
        self.proposed += 1;
        let value = format!("value {}", self.proposed);
        let until = Instant::now() + Duration::from_secs(60);
        while let Err(why) = self.socket(by)?.ask(&Ask::Propose { value: value.clone() }) {
            if Instant::now() > until {
                return Err(format!("member {by} takes no request: {why}; {}", self.alive(by)?));
            }
            // Sleep: pause before a refused request is handed in again.
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Waits until a condition holds, while those who are to live do.
    pub fn until(&mut self, what: &str, living: &[u16], mut condition: impl FnMut(&mut Self) -> bool) -> Step {
        let until = Instant::now() + Duration::from_secs(60);
        let mut looks = 0u32;
        while !condition(self) {
            looks += 1;
            if looks.is_multiple_of(50) {
                for host in living {
                    self.alive(*host)?;
                }
            }
            if Instant::now() > until {
                return Err(format!("waited in vain for {what}"));
            }
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Values are decided by all that are named, one after the other; the first of them takes the requests.
    pub fn decide_all(&mut self, count: u64, members: &[u16]) -> Step {
        let by = members[0];
        let before = self.decided(by);
        for _ in 0..count {
            self.offer(by)?;
        }
        self.until(&format!("member {by} to decide"), members, |group| group.decided(by) >= before + count as usize)?;
        let last = self.last(by);
        for host in &members[1..] {
            self.until(&format!("member {host} to decide instance {last}"), members, |group| group.last(*host) >= last)?;
        }
        Ok(())
    }

    /// What is decided for an instance is the same everywhere, and nobody misses one between its first and its last. How many
    /// were decided.
    pub fn agree(&self, hosts: &[u16]) -> usize {
        let logs: Vec<Log> = hosts.iter().map(|host| self.log(*host)).collect();
        same(hosts, &logs)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in self.members.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let hosts: Vec<u16> = self.members.keys().copied().collect();
            hosts
                .into_iter()
                .for_each(|host| println!("member {host}: {}", String::from_utf8_lossy(&self.nano(host, &["status"]).stdout)));
            for host in self.lab.hosts() {
                let said = std::fs::read_to_string(self.path(format!("{host}.err"))).unwrap_or_default();
                println!("member {host}: {said}");
            }
        }
    }
}

/// What [`Group::agree`] asks of these logs; and that no entry is decided twice.
pub fn same(hosts: &[u16], logs: &[Log]) -> usize {
    let mut all = BTreeMap::new();
    for (host, log) in hosts.iter().zip(logs) {
        for entry in log {
            let known = all.entry(entry.0).or_insert(entry);
            assert_eq!(*known, entry, "member {host} decided differently");
        }
        let gap = log.windows(2).find(|pair| pair[1].0 != pair[0].0 + 1);
        assert!(gap.is_none(), "member {host} has a gap: {gap:?}");
    }
    let ids: BTreeSet<(u64, u64)> = all.values().map(|entry| (entry.1, entry.2)).collect();
    assert_eq!(ids.len(), all.len(), "an entry was decided in two instances");
    all.len()
}

pub fn read(path: &Path) -> Log {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // The last line may be half written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    parse(whole)
}

fn parse(whole: &str) -> Log {
    let lines = whole.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let entry = |line: serde_json::Value| {
        assert_eq!(line["emulation"], true);
        let number = |name: &str| line[name].as_u64().unwrap();
        (number("instance"), number("proposer"), number("number"), line["value"].as_str().unwrap().to_string())
    };
    lines.map(entry).collect()
}

pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    wait_within(Duration::from_secs(60), what, condition);
}

pub fn wait_within(at_most: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + at_most;
    while !condition() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(20));
    }
}
