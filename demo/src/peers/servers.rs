//! The servers: on a host of the lab, with their data in its directory, which goes with the lab however that ends.

use super::{System, Target, etcd, zookeeper};
use crate::rig::{Rig, find_program};
use crate::ui::Ui;
use anyhow::{Context as _, Result, bail};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where they run: neither where the crashes are nor where they are observed.
const HOST: u16 = 3;
/// How long one may take to begin: a JVM on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);
/// A directory with ZooKeeper's `lib`, where it is not Debian's.
pub const ZOOKEEPER_HOME_ENV: &str = "ZOOKEEPER_HOME";

/// One of the cases: a system and its one setting that decides how short a life it grants.
#[derive(Debug)]
struct Setting {
    system: System,
    /// Behind the name of the case.
    suffix: &'static str,
    port: u16,
    /// etcd's election timeout or ZooKeeper's tick, ms.
    ms: u32,
    why: &'static str,
}

const SETTINGS: [Setting; 4] = [
    Setting {
        system: System::Etcd,
        suffix: "",
        port: 2379,
        ms: 1000,
        why: "as it comes: election timeout 1000 ms; the least TTL is 1½ of it, rounded up to seconds",
    },
    Setting {
        system: System::Etcd,
        suffix: " tuned",
        port: 2479,
        ms: 500,
        why: "election timeout 500 ms, so that a TTL of 1 s is granted",
    },
    Setting {
        system: System::ZooKeeper,
        suffix: "",
        port: 2181,
        ms: 2000,
        why: "as it comes: tickTime 2000; the least session is two ticks, and ends at a whole tick",
    },
    Setting {
        system: System::ZooKeeper,
        suffix: " tuned",
        port: 2281,
        ms: 100,
        why: "tickTime 100: shorter than most would dare",
    },
];

/// One that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Its one setting, in words.
    pub why: &'static str,
    /// Behind the name of the case: nothing, or ` tuned`.
    pub suffix: &'static str,
    /// As it says.
    pub version: String,
    /// With a key of nothing: the crash puts its own.
    pub target: Target,
}

impl Server {
    /// The name of its case, with what it granted.
    #[must_use]
    pub fn case(&self, granted_ms: u64) -> String {
        let life = if granted_ms.is_multiple_of(1000) { format!("{}s", granted_ms / 1000) } else { format!("{granted_ms}ms") };
        match self.target.system {
            System::Etcd => format!("etcd lease ttl={life}{}", self.suffix),
            System::ZooKeeper => format!("zookeeper session={life}{}", self.suffix),
        }
    }

    /// Which program, with its setting.
    #[must_use]
    pub fn note(&self) -> String {
        let name = match self.target.system {
            System::Etcd => "etcd",
            System::ZooKeeper => "ZooKeeper",
        };
        format!("{name} {}{}: {}; one server, its files in memory", self.version, self.suffix, self.why)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What runs, and a line for each that does not.
#[derive(Debug, Default)]
pub struct Servers {
    /// In the order of the cases.
    pub running: Vec<Server>,
    /// What is left out, and why.
    pub left_out: Vec<String>,
}

/// What is missing on this machine, a line each.
#[must_use]
pub fn missing() -> Vec<String> {
    [System::Etcd, System::ZooKeeper].into_iter().filter_map(|system| program(system).err()).map(|e| format!("{e:#}")).collect()
}

/// The program, and where ZooKeeper's classes are.
fn program(system: System) -> Result<(PathBuf, String)> {
    match system {
        System::Etcd => {
            let etcd = find_program("etcd").context("etcd's lease is left out: apt-get install etcd-server brings it")?;
            Ok((etcd, String::new()))
        }
        System::ZooKeeper => {
            let hint = "ZooKeeper's ephemeral node is left out:";
            let classes = classes().with_context(|| {
                format!(
                    "{hint} apt-get install libzookeeper-java default-jre-headless brings it (or name it in {ZOOKEEPER_HOME_ENV})"
                )
            })?;
            Ok((
                find_program("java").with_context(|| format!("{hint} apt-get install default-jre-headless brings java"))?,
                classes,
            ))
        }
    }
}

/// The class path of what is installed: `ZOOKEEPER_HOME/lib`, or Debian's, whose archive names what else it needs.
fn classes() -> Option<String> {
    if let Some(home) = std::env::var_os(ZOOKEEPER_HOME_ENV).filter(|v| !v.is_empty()) {
        let lib = Path::new(&home).join("lib");
        return lib.is_dir().then(|| format!("{}/*", lib.display()));
    }
    let java = Path::new("/usr/share/java");
    let found = |name: &str| Some(java.join(name)).filter(|p| p.is_file()).map(|p| p.display().to_string());
    let zookeeper = found("zookeeper.jar")?;
    Some([Some(zookeeper), found("slf4j-simple.jar")].into_iter().flatten().collect::<Vec<_>>().join(":"))
}

impl Servers {
    /// Starts everything that is installed. What is not, or does not begin, is left out with a line that says why.
    ///
    /// # Errors
    /// When somebody interrupts.
    pub fn start(rig: &Rig, ui: &Ui) -> Result<Servers> {
        let mut servers = Servers { running: Vec::new(), left_out: missing() };
        for setting in &SETTINGS {
            let Ok((program, classes)) = program(setting.system) else { continue };
            match start(rig, ui, setting, &program, &classes) {
                Ok(server) => servers.running.push(server),
                Err(e) => {
                    ui.check()?;
                    servers.left_out.push(format!("{}{} is left out: {e:#}", name(setting.system), setting.suffix));
                }
            }
        }
        Ok(servers)
    }
}

fn name(system: System) -> &'static str {
    match system {
        System::Etcd => "etcd",
        System::ZooKeeper => "zookeeper",
    }
}

fn start(rig: &Rig, ui: &Ui, setting: &Setting, program: &Path, classes: &str) -> Result<Server> {
    let label = format!("{}{}", name(setting.system), setting.suffix);
    ui.progress(format!("starting {label}"));
    let ip = rig.lab().ipv4(HOST, 0);
    let address = SocketAddr::from((ip, setting.port));
    let directory = rig.lab().host_dir(HOST).join(label.replace(' ', "-"));
    fs::create_dir_all(directory.join("data")).with_context(|| format!("cannot make {}", directory.display()))?;
    let log = directory.join("log");
    let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = rig.lab().command(HOST, program)?;
    match setting.system {
        System::Etcd => etcd_arguments(&mut command, setting, address, &directory),
        System::ZooKeeper => {
            let config = directory.join("zoo.cfg");
            fs::write(&config, zoo_cfg(setting, address, &directory.join("data"))).context("cannot write zoo.cfg")?;
            command.args(["-Xmx128m", "-Dzookeeper.preAllocSize=1024", "-cp", classes]);
            command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(config);
        }
    }
    command.current_dir(&directory).stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out).process_group(0);
    let child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
    let target = Target { system: setting.system, address, key: String::new() };
    let mut server = Server { child, why: setting.why, suffix: setting.suffix, version: String::new(), target };
    let deadline = Instant::now() + PATIENCE;
    let ask = match setting.system {
        System::Etcd => etcd::version,
        System::ZooKeeper => zookeeper::version,
    };
    loop {
        ui.check()?;
        match rig.lab().in_host(HOST, || ask(address))? {
            Ok(version) => {
                server.version = version;
                return Ok(server);
            }
            Err(_) if Instant::now() < deadline && server.child.try_wait()?.is_none() => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(e) => bail!("it does not serve ({e:#}); its log ends with:\n{}", tail(&log)),
        }
    }
}

fn etcd_arguments(command: &mut Command, setting: &Setting, client: SocketAddr, directory: &Path) {
    etcd::without_settings(command);
    let peer = SocketAddr::from((client.ip(), client.port() + 1));
    let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
    let (beat, election) = ((setting.ms / 10).to_string(), setting.ms.to_string());
    let cluster = format!("bench={peer}");
    command.args([
        "--name",
        "bench",
        "--initial-cluster",
        &cluster,
        "--heartbeat-interval",
        &beat,
        "--election-timeout",
        &election,
    ]);
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.arg("--data-dir").arg(directory.join("data"));
}

fn zoo_cfg(setting: &Setting, address: SocketAddr, data: &Path) -> String {
    format!(
        "tickTime={}\ndataDir={}\nclientPort={}\nclientPortAddress={}\nadmin.enableServer=false\n",
        setting.ms,
        data.display(),
        address.port(),
        address.ip()
    )
}

/// The end of a log: it goes with the lab.
fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_ports_of_its_own() {
        let mut ports: Vec<u16> = SETTINGS.iter().flat_map(|s| [s.port, s.port + 1]).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 2 * SETTINGS.len());
    }

    #[test]
    fn what_is_missing_names_what_brings_it() {
        for line in missing() {
            assert!(line.contains("apt-get install"), "{line}");
        }
    }
}
