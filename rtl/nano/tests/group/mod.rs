//! Groups on hosts of a lab, as the tests of this crate drive them.

#![allow(missing_docs, dead_code, reason = "each test uses a part")]

use fide_lab::{Lab, LabSpec};
use std::collections::BTreeMap;
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
}

impl Group {
    /// Hosts 1 to `hosts`; members from `joins` on join later.
    pub fn new(hosts: u16, joins: u16, exit_together: bool) -> Self {
        Self::timed(hosts, joins, &format!("period_us = 100000, delta_i_us = 150000, exit_together = {exit_together}"))
    }

    /// The same with other timing.
    pub fn timed(hosts: u16, joins: u16, timing: &str) -> Self {
        let lab = Lab::up(&LabSpec { hosts, ephemeral: true, ..LabSpec::default() }).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut text = format!(
            "cluster = \"lab\"\ngroup = \"orders\"\ngeneration = 1\nport = 7440\ntrees = [\"239.77.9.1\", \"239.77.9.2\"]\n\
             key = \"000102030405060708090a0b0c0d0e0f\"\n\
             timing = {{ {timing} }}\n"
        );
        for host in lab.hosts() {
            let (a, b) = (lab.ipv4(host, 0), lab.ipv4(host, 1));
            let joins = host >= joins;
            text += &format!("[[member]]\nid = {host}\naddresses = [\"{a}\", \"{b}\"]\njoins = {joins}\n");
        }
        std::fs::write(directory.path().join("group.toml"), text).unwrap();
        Self { lab, directory, members: BTreeMap::new(), proposed: 0 }
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
        let mut command = self.lab.command(host, env!("CARGO_BIN_EXE_fide-nano")).unwrap();
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
    }

    /// What is decided for an instance is the same everywhere, and nobody misses one between its first and its last. How many
    /// were decided.
    pub fn agree(&self, hosts: &[u16]) -> usize {
        let logs: Vec<Log> = hosts.iter().map(|host| self.log(*host)).collect();
        let mut all = BTreeMap::new();
        for (host, log) in hosts.iter().zip(&logs) {
            for entry in log {
                let known = all.entry(entry.0).or_insert(entry);
                assert_eq!(*known, entry, "member {host} decided differently");
            }
            let instances: Vec<u64> = log.iter().map(|entry| entry.0).collect();
            assert!(instances.windows(2).all(|pair| pair[1] == pair[0] + 1), "member {host} has a gap: {instances:?}");
        }
        all.len()
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

pub fn read(path: &Path) -> Log {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // The last line may be half written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let entry = |line: serde_json::Value| {
        assert_eq!(line["emulation"], true);
        let number = |name: &str| line[name].as_u64().unwrap();
        (number("instance"), number("proposer"), number("number"), line["value"].as_str().unwrap().to_string())
    };
    lines.map(entry).collect()
}

pub fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    wait_within(Duration::from_secs(20), what, condition);
}

pub fn wait_within(at_most: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + at_most;
    while !condition() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
