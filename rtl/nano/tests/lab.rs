//! Groups of members in hardware (the Verilator model) and in software on real packets: hosts of a lab, two networks. Without a
//! model the tests with hardware are *ignored*: `make rtl` builds one.
//!
//! It is emulation. What is shown is that all decide the same, not how fast.

#![allow(missing_docs)]

use fide_lab::{Cut, Lab, LabSpec};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Of entries that were decided: instance, proposer, number, value.
type Log = Vec<(u64, u64, u64, String)>;

fn root(test: &str) -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("SKIPPED {test}: a lab needs root; run the tests with sudo");
    }
    is_root
}

struct Group {
    lab: Lab,
    directory: tempfile::TempDir,
    members: BTreeMap<u16, Child>,
    proposed: u64,
}

impl Group {
    /// Hosts 1 to `hosts`; members from `joins` on join later.
    fn new(hosts: u16, joins: u16, exit_together: bool) -> Self {
        let lab = Lab::up(&LabSpec { hosts, ephemeral: true, ..LabSpec::default() }).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut text = format!(
            "cluster = \"lab\"\ngroup = \"orders\"\ngeneration = 1\nport = 7440\ntrees = [\"239.77.9.1\", \"239.77.9.2\"]\n\
             key = \"000102030405060708090a0b0c0d0e0f\"\n\
             timing = {{ period_us = 100000, delta_i_us = 150000, exit_together = {exit_together} }}\n"
        );
        for host in lab.hosts() {
            let (a, b) = (lab.ipv4(host, 0), lab.ipv4(host, 1));
            let joins = host >= joins;
            text += &format!("[[member]]\nid = {host}\naddresses = [\"{a}\", \"{b}\"]\njoins = {joins}\n");
        }
        std::fs::write(directory.path().join("group.toml"), text).unwrap();
        Self { lab, directory, members: BTreeMap::new(), proposed: 0 }
    }

    fn path(&self, name: String) -> PathBuf {
        self.directory.path().join(name)
    }

    fn engine(&self, host: u16) -> PathBuf {
        self.path(format!("{host}.sock"))
    }

    fn nano(&self, host: u16, words: &[&str]) -> Output {
        let engine = self.engine(host);
        let mut command = Command::new(env!("CARGO_BIN_EXE_fide-nano"));
        command.args(words).arg("--engine").arg(engine).output().unwrap()
    }

    /// Runs a command that must be taken; its standard output.
    fn done(&self, host: u16, words: &[&str]) -> String {
        let output = self.nano(host, words);
        assert!(output.status.success(), "{words:?} at {host}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn config(&self) -> String {
        self.path("group.toml".into()).display().to_string()
    }

    fn run(&mut self, host: u16, software: bool) {
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

    fn start(&mut self, host: u16, software: bool) {
        self.run(host, software);
        self.done(host, &["configure", "--config", &self.config(), "--member", &host.to_string()]);
        self.done(host, &["start"]);
    }

    fn status(&self, host: u16) -> String {
        self.done(host, &["status", "--json"])
    }

    fn leader(&self, host: u16) -> bool {
        self.status(host).contains("\"leads\":true")
    }

    fn log(&self, host: u16) -> Log {
        read(&self.path(format!("{host}.log")))
    }

    /// Hands in values one after the other at a member that takes them, and waits until `at` have decided them all.
    fn decide(&mut self, count: u64, by: u16, at: &[u16]) {
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

    fn kill(&mut self, host: u16) {
        let mut child = self.members.remove(&host).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// What is decided for an instance is the same everywhere, and nobody misses one between its first and its last. How many
    /// were decided.
    fn agree(&self, hosts: &[u16]) -> usize {
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

fn read(path: &Path) -> Log {
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

fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    wait_within(Duration::from_secs(20), what, condition);
}

fn wait_within(at_most: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + at_most;
    while !condition() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Three members, one of each kind as told, decide; the leader is killed, the next one leads; a fourth joins; a cable is cut, its
/// member leaves, and the others go on.
fn mixed(test: &str, software: [bool; 4]) {
    if !root(test) {
        return;
    }
    let mut group = Group::new(4, 4, false);
    for host in 1..=3 {
        group.start(host, software[usize::from(host) - 1]);
    }
    wait_for("member 1 to lead", || group.leader(1) && !group.status(1).contains("\"round\":0,"));
    group.decide(6, 1, &[1, 2, 3]);

    group.run(4, software[3]);
    let (config, engine) = (group.config(), group.engine(1).display().to_string());
    group.decide(1, 1, &[1, 2, 3]);
    group.done(4, &["join", "--config", &config, "--member", "4", "--at", &engine]);
    wait_for("the join to be decided by the joiner", || !group.log(4).is_empty());
    let joined = group.log(1).len();
    group.decide(3, 1, &[1, 2, 3]);
    wait_for("the joiner to decide what was decided behind its join", || group.log(4).last() == group.log(1).last());
    assert!(joined > 0);

    group.kill(1);
    wait_for("member 2 to lead", || group.leader(2));
    group.decide(5, 2, &[2, 3]);
    wait_for("the joiner to follow the second leader", || group.log(4).last() == group.log(2).last());

    group.lab.cut(3, 0, Cut::Silent).unwrap();
    wait_for("member 3 to leave", || group.status(3).contains("\"halted\":"));
    group.decide(4, 2, &[2]);
    wait_for("the joiner to go on without member 3", || group.log(4).last() == group.log(2).last());
    let decided = group.agree(&[1, 2, 3, 4]);
    println!("{test}: {decided} entries, the same everywhere; {}", group.status(2));
    assert!(decided >= 19);
}

#[test]
fn n7_three_in_software_decide_on_real_packets() {
    mixed("n7_three_in_software_decide_on_real_packets", [true; 4]);
}

#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_a_group_led_by_hardware_decides_on_real_packets() {
    mixed("n6_a_group_led_by_hardware_decides_on_real_packets", [false, true, true, true]);
}

#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_hardware_follows_software_takes_over_and_is_joined() {
    mixed("n6_hardware_follows_software_takes_over_and_is_joined", [true, false, true, false]);
}

#[test]
#[cfg_attr(not(rtl_model), ignore = "no Verilator model: run make rtl")]
fn n6_a_group_of_hardware_decides_on_real_packets() {
    mixed("n6_a_group_of_hardware_decides_on_real_packets", [false; 4]);
}

#[test]
fn a_missing_model_is_refused_with_how_to_build_it() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("group.toml");
    let text = "cluster = \"c\"\ngroup = \"g\"\ngeneration = 1\nport = 7440\ntrees = [\"239.77.9.1\"]\n\
                timing = { period_us = 60000, delta_i_us = 80000 }\nmember = [{ id = 1, addresses = [\"127.0.0.1\"] }]\n";
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fide-nano"));
    command.args(["run", "--member", "1", "--interface", "lo", "--engine", "/nonexistent/x", "--model", "/nonexistent/y.so"]);
    let output = command.arg("--config").arg(&config).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("scripts/rtl model"), "{said}");
}
