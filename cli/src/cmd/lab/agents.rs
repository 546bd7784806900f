//! fided on every host of a lab.

use crate::failure::{Failure, Kind};
use crate::interrupt::Interrupt;
use crate::progress::{Progress, bar};
use fide_client::Connection;
use fide_lab::Lab;
use fide_wire::control::{Reply, Request, Status};
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long until all agents must see each other: a base and something for each host.
const PATIENCE: Duration = Duration::from_secs(20);
const PATIENCE_PER_HOST: Duration = Duration::from_secs(1);

/// The agent's socket on a host.
pub fn socket(lab: &Lab, host: u16) -> PathBuf {
    lab.host_dir(host).join("fided.sock")
}

/// A heartbeat interval that can stand in a configuration.
pub fn check_heartbeat(text: &str) -> Result<&str, Failure> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') && ["us", "ms", "s"].contains(&unit) {
        return Ok(text);
    }
    Err(Failure::new(Kind::Usage, format!("{text:?} is not a heartbeat interval; write for example 1ms, 250us or 0.5s")))
}

/// A new key of the lab's own, below its directory, with which it goes.
fn make_key(lab: &Lab) -> Result<PathBuf, Failure> {
    let path = lab.directory().join("key1");
    let written = || -> std::io::Result<()> {
        let mut bytes = [0u8; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let digits: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        writeln!(file, "{digits}")
    };
    written().map_err(|e| Failure::failed(format!("cannot make the lab's key {}: {e}", path.display())))?;
    Ok(path)
}

/// The configuration of host `hN`.
fn configuration(directory: &Path, host: u16, ipv6: bool, heartbeat: &str, key: Option<&Path>) -> String {
    let address =
        |net: u8| -> IpAddr { if ipv6 { fide_lab::host_ipv6(host, net).into() } else { fide_lab::host_ipv4(host, net).into() } };
    let at = |file: &str| format!("{:?}", directory.join(file).display().to_string());
    let keys = |key: &Path| format!("\n[keys]\nsend = {{ id = 1, file = {:?} }}\n", key.display().to_string());
    format!(
        "\
# Made by `fide lab up --agents`; it goes with the lab.
cluster = \"lab\"
node = \"h{host}\"
heartbeat = \"{heartbeat}\"
ipv6 = {ipv6}
state = {}

[[path]]
interface = \"net0\"
address = \"{}\"

[[path]]
interface = \"net1\"
address = \"{}\"

[socket]
path = {}

[history]
path = {}

[metrics]
listen = \"off\"

[ends]
pins = \"off\"
{}",
        at("state.json"),
        address(0),
        address(1),
        at("fided.sock"),
        at("history.jsonl"),
        key.map(keys).unwrap_or_default()
    )
}

/// Starts them, and returns when every one sees every other on both paths.
pub fn start(
    lab: &Lab,
    fided: &Path,
    heartbeat: &str,
    key: bool,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let mut agents = Vec::new();
    let key = if key { Some(make_key(lab)?) } else { None };
    for host in lab.hosts() {
        interrupt.check()?;
        progress.set(format!("starting agents {}", bar(agents.len(), usize::from(lab.spec().hosts))));
        agents.push(Agent::start(lab, host, fided, heartbeat, key.as_deref())?);
    }
    let patience = PATIENCE + PATIENCE_PER_HOST * u32::from(lab.spec().hosts);
    let deadline = Instant::now() + patience;
    let others = agents.len() - 1;
    loop {
        interrupt.check()?;
        let mut answering = 0;
        let mut seen = 0;
        let mut lacking = String::new();
        for agent in &mut agents {
            agent.still_runs()?;
            let status = agent.ask();
            answering += usize::from(status.is_some());
            let sees = status.as_ref().map_or(0, seen_well);
            seen += sees.min(others);
            if sees < others && lacking.is_empty() {
                lacking = match status {
                    None => format!("the agent of h{} does not answer on {}", agent.host, agent.socket.display()),
                    Some(_) => format!("the agent of h{} sees {sees} of {others} others on both paths", agent.host),
                };
            }
        }
        if lacking.is_empty() {
            return Ok(());
        }
        progress.set(if answering < agents.len() {
            format!("agents answer {}", bar(answering, agents.len()))
        } else {
            format!("hosts see each other {}", bar(seen, agents.len() * others))
        });
        if Instant::now() >= deadline {
            let tail = agents.iter().map(Agent::log_tail).find(|t| !t.is_empty()).unwrap_or_default();
            return Err(Failure::failed(format!("{lacking} after {} s", patience.as_secs()))
                .maybe_hint((!tail.is_empty()).then(|| format!("its log ends with: {tail}")))
                .hint("with many hosts on few processors a longer interval helps: --heartbeat 10ms"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// How many others an agent sees, alive and on all paths.
fn seen_well(status: &Status) -> usize {
    status.hosts.iter().filter(|h| h.state == "alive" && !h.paths.is_empty() && h.paths.iter().all(|p| p.up)).count()
}

struct Agent {
    host: u16,
    child: Child,
    socket: PathBuf,
    log: PathBuf,
    connection: Option<Connection>,
}

impl Agent {
    fn start(lab: &Lab, host: u16, fided: &Path, heartbeat: &str, key: Option<&Path>) -> Result<Self, Failure> {
        let directory = lab.host_dir(host);
        let (config, log) = (directory.join("fide.toml"), directory.join("fided.log"));
        let cannot = |path: &Path, e| Failure::failed(format!("cannot write {}: {e}", path.display()));
        fs::write(&config, configuration(&directory, host, lab.spec().ipv6, heartbeat, key)).map_err(|e| cannot(&config, e))?;
        let output = File::create(&log).map_err(|e| cannot(&log, e))?;
        let errors = output.try_clone().map_err(|e| cannot(&log, e))?;
        let mut command = lab.command(host, fided)?;
        // In a process group of its own: the terminal's Ctrl-C is not meant for it.
        command.arg("--config").arg(&config).stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let child = command.spawn().map_err(|e| Failure::failed(format!("cannot run {} on h{host}: {e}", fided.display())))?;
        Ok(Agent { host, child, socket: socket(lab, host), log, connection: None })
    }

    fn still_runs(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                let failure = Failure::failed(format!("the agent of h{} ended ({status})", self.host));
                Err(failure.hint(format!("its log ends with: {}", self.log_tail())))
            }
            _ => Ok(()),
        }
    }

    fn ask(&mut self) -> Option<Status> {
        if self.connection.is_none() {
            self.connection = Connection::open_with_timeout(Some(&self.socket), Duration::from_secs(1)).ok();
        }
        match self.connection.as_ref()?.request(&Request::Status).map(|r| r.reply) {
            Ok(Reply::Status(status)) => Some(*status),
            _ => {
                self.connection = None;
                None
            }
        }
    }

    /// The log goes with the lab, so its end is told.
    fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(5)..].join("\n    ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::status::tests::fixed;

    #[test]
    fn a_lab_hosts_configuration_names_everything_below_its_directory() {
        let text = configuration(Path::new("/run/fide/lab/x/h2"), 2, false, "1ms", None);
        let config = fide_agent::config::Config::parse(&text).unwrap();
        assert_eq!((config.node.as_str(), config.paths.len(), config.metrics), ("h2", 2, None));
        let text6 = configuration(Path::new("/run/fide/lab/x/h2"), 2, true, "1ms", Some(Path::new("/run/fide/lab/x/key1")));
        let config = fide_agent::config::Config::parse(&text6).unwrap();
        assert_eq!(config.keys.as_ref().unwrap().send.file, Path::new("/run/fide/lab/x/key1"));
        assert!(config.ipv6 && config.paths.iter().all(|p| p.group.is_some_and(|g| g.is_ipv6())), "{text6}");
        for wanted in ["node = \"h2\"", "path = \"/run/fide/lab/x/h2/fided.sock\"", "listen = \"off\"", "interface = \"net1\""] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }

    #[test]
    fn a_host_with_a_dead_path_is_not_seen_well() {
        let mut status = fixed();
        assert_eq!(seen_well(&status), 0);
        status.hosts[0].paths[1].up = true;
        assert_eq!(seen_well(&status), 1);
    }

    #[test]
    fn heartbeat_intervals_cannot_smuggle_in_other_keys() {
        assert!(check_heartbeat("1ms").is_ok() && check_heartbeat("0.5s").is_ok());
        for bad in ["", "ms", "1", "1h", "1ms\"\nnode = \"x", "-1ms"] {
            assert!(check_heartbeat(bad).is_err(), "{bad}");
        }
    }
}
