//! The test rig: a lab with an agent on every host, and what is run on it.

use crate::sys;
use crate::ui::Ui;
use anyhow::{Context as _, Result, bail};
use fide_client::Connection;
use fide_lab::{Lab, LabError, LabSpec};
use fide_wire::control::{HistoryEvent, Reply, Request, Selector, Status};
use fide_wire::verdict::VerdictId;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The variable that names the agent's program.
pub const FIDED_ENV: &str = "FIDE_FIDED";

/// How long until all agents must see each other: a base and something for each host.
const PATIENCE: Duration = Duration::from_secs(20);
const PATIENCE_PER_HOST: Duration = Duration::from_secs(2);

/// Of agents that something between this and the usual 50 shall not starve.
pub const RAISED_PRIORITY: i32 = 54;

/// How an agent treats its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Interrupt-driven, beside everything else
    Shared,
    /// The watched host's agent spins on a core of its own
    Dedicated,
}

impl Profile {
    /// As in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Profile::Shared => "shared",
            Profile::Dedicated => "dedicated",
        }
    }
}

/// What to make.
#[derive(Clone, Debug)]
pub struct RigSpec {
    /// How many hosts.
    pub hosts: u16,
    /// HB, as in the configuration.
    pub heartbeat: &'static str,
    /// Of h1's agent, the watched host; all others are shared.
    pub profile: Profile,
    /// How many of the hosts, the last ones, have no agent.
    pub bare: u16,
    /// h1's fence: its timeout, as in the configuration.
    pub fence: Option<&'static str>,
    /// The host whose agent alone has the usual real-time priority; all others have [`RAISED_PRIORITY`].
    pub lowest: Option<u16>,
    /// How agents receive, as in the configuration.
    pub receive: &'static str,
    /// How they send.
    pub send: &'static str,
    /// All times of the configuration are so many times as long.
    pub slower: u32,
    /// h1's agent is stopped and started: the kernel keeps ends for it, and SIGTERM says that it will be back.
    pub restarts: bool,
    /// More of h1's configuration: whole tables.
    pub more: String,
}

impl Default for RigSpec {
    fn default() -> Self {
        RigSpec {
            hosts: 3,
            heartbeat: "1ms",
            profile: Profile::Shared,
            bare: 0,
            fence: None,
            lowest: None,
            receive: "auto",
            send: "auto",
            slower: 1,
            restarts: false,
            more: String::new(),
        }
    }
}

/// A lab with agents. Dropping it takes everything down.
#[derive(Debug)]
pub struct Rig {
    agents: Vec<Agent>,
    spec: RigSpec,
    fided: PathBuf,
    /// Holds h1's BPF file system while its agent is restarted.
    pins: Option<Child>,
    /// Dropped last: it ends what the agents' handles could not.
    lab: Lab,
}

#[derive(Debug)]
struct Agent {
    child: Option<Child>,
    socket: PathBuf,
    log: PathBuf,
    connection: Option<Connection>,
}

/// The agent's program: named by the environment, or beside this one, or in PATH.
///
/// # Errors
/// When it is nowhere.
pub fn find_fided() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(FIDED_ENV).filter(|v| !v.is_empty()) {
        return Ok(named.into());
    }
    let exe = std::env::current_exe().ok();
    // A test lies one directory below the programs.
    let beside = exe.iter().flat_map(|exe| exe.ancestors().skip(1).take(2)).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let runs = |p: &PathBuf| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    beside.chain(std::env::split_paths(&path)).map(|d| d.join("fided")).find(runs).with_context(|| {
        format!("the program fided was found neither beside this one nor in PATH: build it with `cargo build --release -p fide-agent`, or name it in {FIDED_ENV}")
    })
}

/// A program of this machine, if it is installed.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let runs = |p: &PathBuf| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path).chain(more).map(|d| d.join(name)).find(runs)
}

impl Rig {
    /// Makes the lab, starts the agents and returns when every one sees every other on both paths.
    ///
    /// # Errors
    /// If the caller is not root, fided is missing, or the hosts do not find each other. Nothing is left behind.
    pub fn up(spec: RigSpec, ui: &Ui) -> Result<Rig> {
        let fided = find_fided()?;
        ui.progress(format!("making {} hosts on two switches", spec.hosts));
        let lab = Lab::up(&LabSpec { hosts: spec.hosts, ipv6: false, ephemeral: true, ..LabSpec::default() })
            .map_err(|e| if ui.check().is_err() { anyhow::Error::new(crate::ui::Interrupted) } else { e.into() })?;
        let pins = spec.restarts.then(|| hold_pins(&lab)).transpose()?;
        let mut rig = Rig { agents: Vec::new(), spec, fided, pins, lab };
        for host in rig.agents() {
            ui.check()?;
            ui.progress(format!("starting agents: {host} of {}", rig.agents().end()));
            let directory = rig.lab.host_dir(host);
            rig.agents.push(Agent {
                child: None,
                socket: directory.join("fided.sock"),
                log: directory.join("fided.log"),
                connection: None,
            });
            rig.start_agent(host)?;
        }
        rig.wait_until_all_see_all(ui)?;
        Ok(rig)
    }

    /// The lab below.
    #[must_use]
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// What it was made from.
    #[must_use]
    pub fn spec(&self) -> &RigSpec {
        &self.spec
    }

    /// The hosts that have an agent.
    #[must_use]
    pub fn agents(&self) -> std::ops::RangeInclusive<u16> {
        1..=self.spec.hosts - self.spec.bare
    }

    /// The socket of a host's agent.
    #[must_use]
    pub fn socket(&self, host: u16) -> &Path {
        &self.agents[usize::from(host) - 1].socket
    }

    /// The process of a host's agent, if it runs.
    #[must_use]
    pub fn agent_pid(&self, host: u16) -> Option<u32> {
        self.agents[usize::from(host) - 1].child.as_ref().map(Child::id)
    }

    fn configuration(&self, host: u16) -> String {
        let directory = self.lab.host_dir(host);
        let at = |file: &str| format!("{:?}", directory.join(file).display().to_string());
        let profile = if host == 1 { self.spec.profile } else { Profile::Shared };
        let mut text = String::new();
        if self.spec.lowest.is_some_and(|lowest| lowest != host) {
            let _ = writeln!(text, "rt_priority = {RAISED_PRIORITY}");
        }
        let pins = if host == 1 && self.spec.restarts {
            let _ = writeln!(text, "restart_within = \"10s\"");
            at("bpf/ends")
        } else {
            "\"off\"".into()
        };
        let _ = write!(
            text,
            "cluster = \"bench\"\nnode = \"h{host}\"\nheartbeat = \"{}\"\nprofile = \"{}\"\nreceive = \"{}\"\nsend = \"{}\"\n\
             state = {}\n\n[[path]]\ninterface = \"net0\"\n\n[[path]]\ninterface = \"net1\"\n\n\
             [socket]\npath = {}\n\n[history]\npath = {}\n\n[metrics]\nlisten = \"off\"\n\n[ends]\npins = {pins}\n",
            longer(self.spec.heartbeat, self.spec.slower),
            profile.name(),
            self.spec.receive,
            self.spec.send,
            at("state.json"),
            at("fided.sock"),
            at("history.jsonl"),
        );
        if let Some(timeout) = self.spec.fence.filter(|_| host == 1) {
            let timeout = longer(timeout, self.spec.slower);
            let _ = write!(text, "\n[fence]\nmode = \"sent\"\ntimeout = \"{timeout}\"\npins = {}\n", at("bpf/fence"));
            if self.spec.slower > 1 {
                let _ = writeln!(text, "margin = \"{}\"", longer("5ms", self.spec.slower));
            }
        }
        if host == 1 {
            text += &self.spec.more;
        }
        if self.spec.slower > 1 {
            let [floor, agent] = ["25ms", "1000ms"].map(|usual| longer(usual, self.spec.slower));
            let _ = write!(text, "\n[contract]\ndelta_floor = \"{floor}\"\n\n[detector]\nagent_timeout = \"{agent}\"\n");
        }
        text
    }

    /// Starts a host's agent; it answers a moment later.
    ///
    /// # Errors
    /// When its files cannot be written or it cannot be run.
    pub fn start_agent(&mut self, host: u16) -> Result<()> {
        let config = self.lab.host_dir(host).join("fide.toml");
        fs::write(&config, self.configuration(host)).with_context(|| format!("cannot write {}", config.display()))?;
        let log = &self.agents[usize::from(host) - 1].log;
        let out =
            File::options().create(true).append(true).open(log).with_context(|| format!("cannot write {}", log.display()))?;
        let err = out.try_clone()?;
        let mut command = self.lab.command(host, &self.fided)?;
        command.arg("--config").arg(&config).stdin(Stdio::null()).stdout(out).stderr(err);
        if self.spec.fence.is_some() && host == 1 {
            sys::mount_bpf(&mut command, &self.lab.host_dir(host).join("bpf"))?;
        }
        if let Some(holder) = self.pins.as_ref().filter(|_| host == 1) {
            sys::join_mounts(&mut command, holder.id())?;
        }
        // In a process group of its own: the terminal's Ctrl-C is not meant for it.
        let child = command.process_group(0).spawn().with_context(|| format!("cannot run {}", self.fided.display()))?;
        self.agents[usize::from(host) - 1].child = Some(child);
        Ok(())
    }

    /// Kills a host's agent as a crash would. Returns the moment immediately before.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_agent(&mut self, host: u16) -> Result<u64> {
        self.end_agent(host, libc::SIGKILL)
    }

    /// Ends a host's agent by a signal and waits for its end. Returns the moment immediately before the signal.
    ///
    /// # Errors
    /// When it does not run.
    pub fn end_agent(&mut self, host: u16, signal: i32) -> Result<u64> {
        let agent = &mut self.agents[usize::from(host) - 1];
        let mut child = agent.child.take().with_context(|| format!("the agent of h{host} does not run"))?;
        agent.connection = None;
        let at = sys::kill(child.id(), signal)?;
        child.wait()?;
        Ok(at)
    }

    /// Asks a host's agent. Connects first where needed.
    ///
    /// # Errors
    /// When it does not answer or refuses.
    pub fn ask(&mut self, host: u16, request: &Request) -> Result<Reply> {
        let agent = &mut self.agents[usize::from(host) - 1];
        if agent.connection.is_none() {
            agent.connection = Some(Connection::open_with_timeout(Some(&agent.socket), Duration::from_secs(5))?);
        }
        let Some(connection) = agent.connection.as_ref() else { bail!("unreachable: it was just made") };
        match connection.request(request) {
            Ok(response) => Ok(response.reply),
            Err(e) => {
                if connection.is_over() {
                    agent.connection = None;
                }
                Err(e).with_context(|| format!("the agent of h{host} was asked in vain"))
            }
        }
    }

    /// What a host's agent knows.
    ///
    /// # Errors
    /// As [`Rig::ask`].
    pub fn status(&mut self, host: u16) -> Result<Status> {
        match self.ask(host, &Request::Status)? {
            Reply::Status(status) => Ok(*status),
            other => bail!("the agent of h{host} answered a status with {other:?}"),
        }
    }

    /// Has a process watched by its host's agent. Returns its number.
    ///
    /// # Errors
    /// As [`Rig::ask`].
    pub fn watch(&mut self, host: u16, name: &str, pid: u32) -> Result<u32> {
        let request = Request::watch(name, Selector::Pid(pid));
        match self.ask(host, &request)? {
            Reply::Watched { app, .. } => Ok(app),
            other => bail!("the agent of h{host} answered a watch with {other:?}"),
        }
    }

    /// What a verdict rests on, as this host's agent keeps it. It may take a moment to be written down.
    ///
    /// # Errors
    /// As [`Rig::ask`].
    pub fn explain(&mut self, host: u16, id: VerdictId) -> Result<HistoryEvent> {
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            match self.ask(host, &Request::Explain { id, incarnation: None }) {
                Ok(Reply::Explained(event)) => return Ok(*event),
                Ok(other) => bail!("the agent of h{host} explained with {other:?}"),
                Err(e) if Instant::now() >= deadline => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Everything that a host's agent wrote down from number `from` on, and the number of the next event.
    ///
    /// # Errors
    /// As [`Rig::ask`].
    pub fn history(&mut self, host: u16, from: u64) -> Result<(Vec<HistoryEvent>, u64)> {
        // A connection of its own: several replies come.
        let connection = Connection::open(Some(self.socket(host)))?;
        let mut events = Vec::new();
        let mut reply = connection.request(&Request::Events { from, last: 0, follow: false })?.reply;
        loop {
            match reply {
                Reply::Event(event) => events.push(*event),
                Reply::EventsEnd { next } => return Ok((events, next)),
                other => bail!("the agent of h{host} answered events with {other:?}"),
            }
            reply = connection.next_reply()?.reply;
        }
    }

    /// Returns when every agent sees every other alive on both paths.
    ///
    /// # Errors
    /// When that takes too long, with the end of a log.
    pub fn wait_until_all_see_all(&mut self, ui: &Ui) -> Result<()> {
        let patience = (PATIENCE + PATIENCE_PER_HOST * u32::from(self.spec.hosts)) * self.spec.slower;
        let deadline = Instant::now() + patience;
        let others = usize::from(*self.agents().end()) - 1;
        loop {
            ui.check()?;
            let mut lacking = None;
            let mut well = 0;
            for host in self.agents() {
                self.agent_still_runs(host)?;
                let sees = self.status(host).ok().map(|s| seen_well(&s));
                match sees {
                    Some(n) if n >= others => well += 1,
                    Some(n) => lacking = Some(format!("the agent of h{host} sees {n} of {others} others on both paths")),
                    None => lacking = Some(format!("the agent of h{host} does not answer")),
                }
            }
            let Some(lacking) = lacking else { return Ok(()) };
            ui.progress(format!("hosts that see all others: {well} of {}", self.agents().end()));
            if Instant::now() >= deadline {
                bail!("{lacking} after {} s; the log of h1's agent ends with:\n{}", patience.as_secs(), self.log_tail(1));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn agent_still_runs(&mut self, host: u16) -> Result<()> {
        let agent = &mut self.agents[usize::from(host) - 1];
        match agent.child.as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => bail!("the agent of h{host} ended ({status}); its log ends with:\n{}", self.log_tail(host)),
            _ => Ok(()),
        }
    }

    /// The log goes with the lab, so its end is told.
    #[must_use]
    pub fn log_tail(&self, host: u16) -> String {
        let text = fs::read_to_string(&self.agents[usize::from(host) - 1].log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }

    /// A helper process of this program on a host (`bench-observer`, `bench-victim`, …).
    ///
    /// # Errors
    /// When the lab is gone.
    pub fn helper(&self, host: u16, role: &str) -> Result<Command, LabError> {
        // Resolved in the child just before it executes: the very file that runs here, even if another was built over it.
        let mut command = self.lab.command(host, "/proc/self/exe")?;
        command.arg(role).process_group(0);
        Ok(command)
    }
}

/// A process among whose mounts is a BPF file system. It goes with it.
fn hold_pins(lab: &Lab) -> Result<Child> {
    let mut command = Command::new("sleep");
    command.arg("infinity").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    sys::end_with_us(&mut command);
    sys::mount_bpf(&mut command, &lab.host_dir(1).join("bpf"))?;
    command.spawn().context("cannot hold a BPF file system")
}

/// A time of the configuration, so many times as long.
fn longer(time: &str, times: u32) -> String {
    let (number, unit) = time.split_at(time.find(|c: char| !c.is_ascii_digit()).unwrap_or(time.len()));
    number.parse::<u32>().map_or_else(|_| time.to_string(), |n| format!("{}{unit}", n * times))
}

/// How many others an agent sees, alive and on all paths.
fn seen_well(status: &Status) -> usize {
    status.hosts.iter().filter(|h| h.state == "alive" && h.paths.len() == 2 && h.paths.iter().all(|p| p.up)).count()
}

impl Drop for Rig {
    fn drop(&mut self) {
        for child in self.agents.iter_mut().filter_map(|a| a.child.as_mut()).chain(self.pins.as_mut()) {
            // Ends it faster than a farewell to hosts that end as well; the lab would do it otherwise.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_unit() {
        assert_eq!(longer("10ms", 10), "100ms");
        assert_eq!(longer("1s", 1), "1s");
    }
}
