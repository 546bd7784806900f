//! What the end-to-end tests share: real agents in a lab, one configuration each, applications that monitor, processes to crash.
//!
//! Nothing here waits for a clock where it can wait for a condition. What is waited for in vain is
//! told with the logs and the
//! histories of every host.

#![allow(dead_code, missing_docs)]

pub mod actor;
pub mod member;
pub mod service;
pub mod watchdog;
pub mod worst;

use fide_client::{Client, Connection, Error, Event, Options, Resources, Verdict};
use fide_lab::{Lab, LabSpec};
use fide_wire::control::{FenceOrder, GroupOrder, HistoryEvent, HostStatus, Reply, Request, Selector, Status};
use fide_wire::level::{RELOAD_EVENT_CODE, TIMING_EVENT_CODE};
use fide_wire::verdict::{Cause, Grade};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Long, because the machine may be busy with other things; nothing waits longer than it must.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// How often a question may have no answer in time, one time after the other.
const MOST_LATE: u32 = 5;

/// Whether the test can run; says so if not.
pub fn root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        let name = std::thread::current().name().unwrap_or("test").to_string();
        println!("SKIPPED {name}: a lab of real agents needs root; run the tests with sudo");
    }
    root
}

/// Waits for something and returns it.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    let _waits = watchdog::waits(what);
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain: {what}");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether every thread of a process is stopped: kill(2) does not wait for that.
fn stands_still(pid: i32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let stat = |task: fs::DirEntry| fs::read_to_string(task.path().join("stat")).unwrap_or_default();
    // The state stands behind the name, which is in parentheses.
    tasks.flatten().all(|task| stat(task).rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
}

/// Something that should have come about at once is done once more: `scripts/test` lists who said
/// so.
pub fn again(what: &str) {
    eprintln!("TRIED AGAIN: {what}");
}

/// On a busy machine an agent may wait for longer than a client's ten seconds for a lock of the
/// kernel's, while other labs are made.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// Waits for a truth.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// How a world is made.
pub struct Setup {
    hosts: u16,
    heartbeat: &'static str,
    extra: Box<dyn Fn(u16) -> String>,
    start: bool,
    fences_may_close: bool,
}

impl Setup {
    pub fn hosts(hosts: u16) -> Self {
        Self { hosts, heartbeat: "2ms", extra: Box::new(|_| String::new()), start: true, fences_may_close: true }
    }

    pub fn heartbeat(mut self, heartbeat: &'static str) -> Self {
        self.heartbeat = heartbeat;
        self
    }

    /// More lines for every host's file, placed before the first table.
    pub fn extra(mut self, extra: impl Fn(u16) -> String + 'static) -> Self {
        self.extra = Box::new(extra);
        self
    }

    /// Without agents.
    pub fn empty(mut self) -> Self {
        self.start = false;
        self
    }

    /// A fence that closes while all start makes the test fail.
    pub fn fences_stay_open(mut self) -> Self {
        self.fences_may_close = false;
        self
    }

    /// The lab, its agents, and everybody alive to everybody. `None` (and a word why) without root.
    pub fn up(self) -> Option<World> {
        if !root() {
            return None;
        }
        watchdog::start();
        let lab = Lab::up(&LabSpec { hosts: self.hosts, ephemeral: true, ipv6: true, ..LabSpec::default() }).unwrap();
        let mut world = World { agents: Vec::new(), lab };
        for host in 1..=self.hosts {
            let config = format!("{}\n{}", world.head(host, &format!("h{host}"), self.heartbeat), (self.extra)(host));
            world.write_config(host, &config);
            watchdog::has_logs(world.lab.host_dir(host), host);
        }
        if self.start {
            for host in 1..=self.hosts {
                world.start(host);
            }
            world.all_alive_at_first(self.fences_may_close);
        }
        Some(world)
    }
}

/// A BPF file system of the test's own, with everything that is pinned there.
pub struct Pins(pub PathBuf);

impl Pins {
    pub fn new() -> Option<Self> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        if !root() {
            return None;
        }
        let name = format!("fide-e2e-fence-{}-{}", std::process::id(), COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).unwrap();
        fide_lab::Leftover::Directory(dir.clone()).goes_with_caller().unwrap();
        let target = std::ffi::CString::new(dir.to_str().unwrap()).unwrap();
        // SAFETY: C strings that live across the call.
        let rc = unsafe { libc::mount(c"bpf".as_ptr(), target.as_ptr(), c"bpf".as_ptr(), 0, std::ptr::null()) };
        assert_eq!(rc, 0, "mount bpf: {}", std::io::Error::last_os_error());
        Some(Self(dir))
    }

    /// The beginning of a configuration that has the kernel keep ends there.
    pub fn keeping_ends(&self, head: &str) -> String {
        head.replace("pins = \"off\"", &format!("pins = {:?}", self.0.join("ends")))
    }

    /// `[fence]` of one host, with these lines.
    pub fn config(&self, host: u16, lines: &str) -> String {
        format!("[fence]\npins = \"{}/h{host}\"\n{lines}\n", self.0.display())
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let target = std::ffi::CString::new(self.0.to_str().unwrap()).unwrap();
        // SAFETY: a C string that lives across the call.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        let _ = fs::remove_dir(&self.0); // mounted still when the unmounting failed: nothing else can be done
    }
}

/// One running agent.
pub struct Agent {
    pub host: u16,
    pub child: Child,
}

/// The lab and what runs in it. Dropping it ends everything; if the test is failing, it tells what the agents said.
pub struct World {
    agents: Vec<Agent>,
    pub lab: Lab,
}

/// The agent's program. FIDE_TEST_FIDED: another one than that just built, to see that a test fails with it.
pub fn fided() -> String {
    std::env::var("FIDE_TEST_FIDED").unwrap_or_else(|_| env!("CARGO_BIN_EXE_fided").into())
}

impl World {
    /// The usual beginning of a configuration.
    pub fn head(&self, host: u16, node: &str, heartbeat: &str) -> String {
        let dir = self.lab.host_dir(host);
        let dir = dir.display();
        format!(
            "cluster = \"e2e\"\nnode = \"{node}\"\nheartbeat = \"{heartbeat}\"\nstate = \"{dir}/state.json\"\n\
             socket = {{ path = \"{dir}/fided.sock\", mode = \"0666\" }}\nhistory = {{ path = \"{dir}/history.jsonl\" }}\n\
             metrics = {{ listen = \"off\" }}\nends = {{ pins = \"off\" }}\npath = [{{ interface = \"net0\" }}, {{ interface = \"net1\" }}]\n"
        )
    }

    pub fn write_config(&self, host: u16, text: &str) {
        fs::write(self.config(host), text).unwrap();
        // The agent refuses files that others could write.
        let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600);
        fs::set_permissions(self.config(host), mode).unwrap();
    }

    pub fn config(&self, host: u16) -> PathBuf {
        self.lab.host_dir(host).join("fide.toml")
    }

    pub fn socket(&self, host: u16) -> PathBuf {
        self.lab.host_dir(host).join("fided.sock")
    }

    pub fn log(&self, host: u16) -> String {
        fs::read_to_string(self.lab.host_dir(host).join("log")).unwrap_or_default()
    }

    /// An agent on a host with a configuration of its own, not yet known to be running.
    pub fn spawn(&self, host: u16, config: &Path) -> Child {
        self.spawn_under(host, config, &[&fided()])
    }

    /// The same, or another program that becomes it, with its arguments.
    fn spawn_under(&self, host: u16, config: &Path, words: &[&str]) -> Child {
        let log = File::options().create(true).append(true).open(self.lab.host_dir(host).join("log")).unwrap();
        let mut command = self.lab.command(host, words[0]).unwrap();
        command
            .args(&words[1..])
            .arg("--config")
            .arg(config)
            .env("FIDE_LOG", std::env::var("FIDE_LOG").unwrap_or_else(|_| "debug".into()));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command.spawn().unwrap()
    }

    /// Starts the host's agent and waits until it answers.
    pub fn start(&mut self, host: u16) {
        self.start_by(host, &fided());
    }

    /// The same of another agent's program.
    pub fn start_by(&mut self, host: u16, program: &str) {
        self.start_as(host, &[program]);
    }

    /// The same by a program that becomes it, with its arguments.
    pub fn start_under(&mut self, host: u16, under: &[&str]) {
        self.start_as(host, &[under, &[&fided()]].concat());
    }

    fn start_as(&mut self, host: u16, words: &[&str]) {
        let child = self.spawn_under(host, &self.config(host), words);
        self.agents.push(Agent { host, child });
        wait_for(&format!("the agent of h{host} answers"), || {
            let agent = self.agents.iter_mut().find(|a| a.host == host)?;
            if let Ok(Some(status)) = agent.child.try_wait() {
                panic!("the agent of h{host} ended: {status}");
            }
            Connection::open(Some(&self.socket(host))).ok()
        });
    }

    pub fn agent_pid(&self, host: u16) -> i32 {
        self.agents.iter().find(|a| a.host == host).expect("it runs").child.id().cast_signed()
    }

    pub fn signal_agent(&self, host: u16, signal: i32) {
        let pid = self.agent_pid(host);
        kill(pid, signal);
        if signal == libc::SIGSTOP {
            until(&format!("the agent of h{host} stands still"), || stands_still(pid));
        }
    }

    /// Waits for the agent's end.
    pub fn agent_ended(&mut self, host: u16) -> ExitStatus {
        let at = self.agents.iter().position(|a| a.host == host).expect("it runs");
        let mut agent = self.agents.swap_remove(at);
        wait_for(&format!("the agent of h{host} ends"), || agent.child.try_wait().unwrap())
    }

    pub fn kill_agent(&mut self, host: u16) {
        self.signal_agent(host, libc::SIGKILL);
        self.agent_ended(host);
    }

    /// Every agent that was started still runs.
    pub fn agents_run(&mut self) {
        for agent in &mut self.agents {
            let ended = agent.child.try_wait().unwrap();
            assert!(ended.is_none(), "the agent of h{} ended: {}", agent.host, ended.unwrap());
        }
    }

    /// Agents that have ended, though nobody has waited for that.
    pub fn ended(&mut self) -> Vec<u16> {
        let has_ended = |agent: &mut Agent| agent.child.try_wait().unwrap().is_some();
        self.agents.iter_mut().filter_map(|agent| has_ended(agent).then_some(agent.host)).collect()
    }

    pub fn running(&self) -> Vec<u16> {
        let mut hosts: Vec<u16> = self.agents.iter().map(|a| a.host).collect();
        hosts.sort_unstable();
        hosts
    }

    pub fn connect(&self, host: u16) -> Connection {
        Connection::open_with_timeout(Some(&self.socket(host)), ANSWERS_WITHIN).unwrap()
    }

    /// A question that is not answered in time is asked again, a few times.
    pub fn ask(&self, host: u16, request: &Request) -> Result<Reply, Error> {
        self.asked(host, request).1
    }

    fn asked(&self, host: u16, request: &Request) -> (Connection, Result<Reply, Error>) {
        let changes_nothing = matches!(
            request,
            Request::Status
                | Request::Events { .. }
                | Request::Explain { .. }
                | Request::Fence { order: FenceOrder::Status }
                | Request::Group { order: GroupOrder::Status }
        );
        let mut late = 0;
        wait_for(&format!("h{host} answers {request:?}"), || {
            let connection = self.connect(host);
            let reply = connection.request(request).map(|r| r.reply);
            if !(changes_nothing && matches!(reply, Err(Error::NoAnswer { .. }))) {
                return Some((connection, reply));
            }
            late += 1;
            assert!(late <= MOST_LATE, "h{host} has not answered {request:?} {late} times: {:?}", reply.err());
            again(&format!("h{host} did not answer in time: {request:?}"));
            None
        })
    }

    pub fn status(&self, host: u16) -> Status {
        match self.ask(host, &Request::Status).unwrap() {
            Reply::Status(s) => *s,
            other => panic!("{other:?}"),
        }
    }

    /// What `observer` knows of `host`.
    pub fn view(&self, observer: u16, host: &str) -> Option<HostStatus> {
        self.status(observer).hosts.into_iter().find(|h| h.name == host)
    }

    pub fn state(&self, observer: u16, host: &str) -> String {
        self.view(observer, host).map_or_else(|| "unknown".into(), |h| h.state)
    }

    /// Waits until a host's agent has sent so many heartbeats more: it has gone through as many
    /// periods and looked at all others in each of them.
    pub fn goes_on(&self, host: u16, heartbeats: u64) {
        let to = self.status(host).heartbeats_sent + heartbeats;
        until(&format!("h{host} sends {heartbeats} heartbeats more"), || self.status(host).heartbeats_sent >= to);
    }

    /// The same of every running agent.
    pub fn all_go_on(&self, heartbeats: u64) {
        let to: Vec<_> = self.running().into_iter().map(|host| (host, self.status(host).heartbeats_sent + heartbeats)).collect();
        for (host, to) in to {
            until(&format!("h{host} sends {heartbeats} heartbeats more"), || self.status(host).heartbeats_sent >= to);
        }
    }

    /// Waits until so many heartbeats more of `host` have come to `observer` by both paths: what
    /// left before them has come as well, or is lost.
    pub fn hears(&self, observer: u16, host: &str, heartbeats: u64) {
        let numbers = || self.view(observer, host).map_or_else(Vec::new, |h| h.paths.iter().map(|p| p.last_number).collect());
        let from: Vec<u64> = numbers();
        until(&format!("h{observer} receives {heartbeats} heartbeats more of {host}"), || {
            let now = numbers();
            now.len() == 2 && now.iter().zip(&from).all(|(now, from)| *now >= from + heartbeats)
        });
    }

    /// The same of agents that have just started. A fence that has closed since then, because the
    /// machine held its host up for longer than its timeout, is opened again where it may have
    /// closed: a test begins with open ones.
    fn all_alive_at_first(&self, fences_may_close: bool) {
        let all_see_all = |host: u16| {
            self.status(host)
                .hosts
                .iter()
                .filter(|h| h.state == "alive" && h.paths.len() == 2 && h.paths.iter().all(|p| p.up))
                .count()
                + 1
                >= self.running().len()
        };
        let mut looked = Instant::now();
        until("all hosts see each other when they have started", || {
            if looked.elapsed() > Duration::from_secs(1) {
                looked = Instant::now();
                for host in self.running() {
                    let fence = self.ask(host, &Request::Fence { order: FenceOrder::Status });
                    if matches!(&fence, Ok(Reply::Fence(status)) if status.state == "fenced") {
                        assert!(fences_may_close, "h{host} was fenced while all started: {fence:?}");
                        again(&format!("h{host} was fenced while all started: {fence:?}"));
                        // Refused while something of it still has to end: asked again.
                        let _ = self.ask(host, &Request::Fence { order: FenceOrder::Recover });
                    }
                }
            }
            self.running().into_iter().all(all_see_all)
        });
        self.all_alive();
    }

    /// Every running agent sees every other alive on both paths.
    pub fn all_alive(&self) {
        let running = self.running();
        for &observer in &running {
            for &host in running.iter().filter(|h| **h != observer) {
                until(&format!("h{observer} sees h{host} alive on both paths"), || {
                    self.view(observer, &format!("h{host}")).is_some_and(|h| {
                        h.state == "alive" && h.paths.len() == 2 && h.paths.iter().all(|p| p.up && p.last_number > 0)
                    })
                });
            }
        }
    }

    /// The whole history of a host.
    pub fn history(&self, host: u16) -> Vec<HistoryEvent> {
        let (connection, reply) = self.asked(host, &Request::Events { from: 0, last: 0, follow: false });
        let mut reply = reply.unwrap();
        let mut events = Vec::new();
        loop {
            match reply {
                Reply::Event(e) => events.push(*e),
                Reply::EventsEnd { .. } => return events,
                other => panic!("{other:?}"),
            }
            reply = connection.next_reply().unwrap().reply;
        }
    }

    pub fn events(&self, host: u16, cause: Cause) -> Vec<HistoryEvent> {
        self.history(host).into_iter().filter(|e| e.cause == cause).collect()
    }

    /// How often a host's own gates closed, by its history. What it was told of other hosts' fences, which a slow machine
    /// brings later or earlier than a test expects, is not among it.
    pub fn fencings(&self, host: u16) -> Vec<HistoryEvent> {
        self.events(host, Cause::Fenced).into_iter().filter(|e| e.node == format!("h{host}")).collect()
    }

    /// Waits for an event in a host's history.
    pub fn event(&self, host: u16, what: &str, is: impl Fn(&HistoryEvent) -> bool) -> HistoryEvent {
        wait_for(&format!("h{host}'s history tells: {what}"), || self.history(host).into_iter().find(|e| is(e)))
    }

    /// The causes in a host's history that speak of a fault, without what a busy machine may bring about.
    pub fn faults(&self, host: u16) -> Vec<(Cause, String, Option<String>)> {
        self.faults_since(host, 0)
    }

    /// The same, of events after number `seq`.
    pub fn faults_since(&self, host: u16, seq: u64) -> Vec<(Cause, String, Option<String>)> {
        let harmless =
            [Cause::Monitored, Cause::ContractBroken, Cause::ContractKept, Cause::ObserverPaused, Cause::PathUp, Cause::Rejoined];
        let mut faults: Vec<_> = self
            .history(host)
            .into_iter()
            .filter(|e| !(e.cause == Cause::Local && [TIMING_EVENT_CODE, RELOAD_EVENT_CODE].contains(&e.code)))
            .filter(|e| e.seq > seq && !harmless.contains(&e.cause) && !(e.cause == Cause::Returned && e.code == 0))
            .map(|e| (e.cause, e.node, e.app))
            .collect();
        faults.dedup();
        faults
    }

    /// No running agent told of any fault, unless `allowed`.
    pub fn no_faults_but(&self, allowed: impl Fn(u16, &(Cause, String, Option<String>)) -> bool) {
        for host in self.running() {
            let faults: Vec<_> = self.faults(host).into_iter().filter(|f| !allowed(host, f)).collect();
            assert!(faults.is_empty(), "h{host} tells of what was not: {faults:?}");
        }
    }

    /// Has an operator watch a process.
    pub fn watch(&self, host: u16, name: &str, pid: u32) -> u32 {
        match self.ask(host, &Request::watch(name, Selector::Pid(pid))).unwrap() {
            Reply::Watched { app, .. } => app,
            other => panic!("{other:?}"),
        }
    }

    /// Watches, and waits until all running agents know it.
    pub fn watch_known(&self, host: u16, name: &str, pid: u32) -> u32 {
        let app = self.watch(host, name, pid);
        self.known(host, name);
        app
    }

    /// Every other running agent knows the process to be alive.
    pub fn known(&self, host: u16, name: &str) {
        for observer in self.running().into_iter().filter(|o| *o != host) {
            until(&format!("h{observer} knows {name} on h{host}"), || {
                self.view(observer, &format!("h{host}"))
                    .is_some_and(|h| h.apps.iter().any(|a| a.name == name && a.state == "alive"))
            });
        }
    }

    /// An application on a host that monitors a target.
    pub fn monitor(&self, host: u16, target: &str) -> Watcher {
        let watcher = self.subscriber(host, false);
        watcher.client.monitor(target, Resources::default()).unwrap();
        watcher
    }

    pub fn subscriber(&self, host: u16, socket_only: bool) -> Watcher {
        let options = Options { path: Some(self.socket(host)), socket_only, answer_timeout: ANSWERS_WITHIN };
        Watcher { client: Client::open_with(options).unwrap(), host, seen: Vec::new() }
    }

    /// A process on a host that sleeps until it is ended.
    pub fn sleeper(&self, host: u16) -> Process {
        self.process(host, "sleep", &["1000"])
    }

    pub fn process(&self, host: u16, program: &str, arguments: &[&str]) -> Process {
        let mut command = self.lab.command(host, program).unwrap();
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Process::spawn(command)
    }

    /// This test's own program, in another role on a host.
    pub fn actor(&self, host: u16, role: &str, arguments: &[&str]) -> Process {
        self.actor_by(host, &std::env::current_exe().unwrap(), role, arguments)
    }

    /// The same by a copy of it.
    pub fn actor_by(&self, host: u16, program: &Path, role: &str, arguments: &[&str]) -> Process {
        let mut command = self.lab.command(host, program).unwrap();
        command.args(["--exact", "actor_role", "--nocapture", "--include-ignored"]);
        command.env(actor::ROLE, role).env(actor::ARGUMENTS, arguments.join("\n")).env(actor::SOCKET, self.socket(host));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Process::spawn(command)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for host in self.lab.hosts() {
                let history = fs::read_to_string(self.lab.host_dir(host).join("history.jsonl")).unwrap_or_default();
                let dull = ["\"contract-", "\"observer-paused\"", "\"monitored\""];
                let telling: Vec<&str> = history.lines().filter(|l| !dull.iter().any(|d| l.contains(d))).collect();
                eprintln!("---- h{host}: history\n{}", tail(&telling.join("\n"), 60));
                eprintln!("---- h{host}: log\n{}", tail(&self.log(host), 40));
            }
            watchdog::keep_logs();
        } else if std::env::var_os("FIDE_TEST_SHOW_LOGS").is_some() {
            for host in self.lab.hosts() {
                eprintln!("---- h{host}: log\n{}", self.log(host));
            }
        }
        for agent in &mut self.agents {
            let _ = agent.child.kill(); // gone already is as good
            let _ = agent.child.wait();
        }
    }
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: two integers; the processes signalled are children that were not reaped yet.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "kill({pid}, {signal}): {}", std::io::Error::last_os_error());
}

/// A child on some host, ended at the latest when it is dropped.
pub struct Process {
    pub child: Child,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
}

impl Process {
    pub fn spawn(mut command: Command) -> Self {
        // A program that was written just now is busy while another test forks: its child has the file open until it executes something itself.
        let is_busy = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ExecutableFileBusy;
        let child = wait_for("the program is not busy", || match command.spawn() {
            Err(e) if is_busy(&e) => None,
            spawned => Some(spawned.unwrap()),
        });
        Self::of(child)
    }

    pub fn of(mut child: Child) -> Self {
        let input = child.stdin.take();
        let output = child.stdout.take().map(BufReader::new);
        Self { child, input, output }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: i32) {
        kill(self.child.id().cast_signed(), signal);
    }

    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
    }

    /// Tells an actor something.
    pub fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().expect("it listens"), "{line}").unwrap();
    }

    /// The next line that an actor says to us, without what the test harness around it prints.
    pub fn hear(&mut self) -> String {
        let output = self.output.as_mut().expect("it speaks");
        loop {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the actor has ended: {:?}", self.child.try_wait());
            if let Some(at) = line.find(actor::MARK) {
                return line[at + actor::MARK.len()..].trim_end().to_string();
            }
        }
    }

    pub fn ended(&mut self) -> ExitStatus {
        wait_for("the process ends", || self.child.try_wait().unwrap())
    }

    pub fn ended_by(&mut self) -> Option<i32> {
        self.ended().signal()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // gone already is as good
        let _ = self.child.wait();
    }
}

/// An application that monitors, and everything it was told.
pub struct Watcher {
    pub client: Client,
    pub host: u16,
    pub seen: Vec<Event>,
}

impl Watcher {
    /// Takes what is there now.
    pub fn drain(&mut self) {
        while let Some(event) = self.client.poll(Some(Duration::ZERO)).unwrap() {
            self.seen.push(event);
        }
    }

    /// The first event that `is`, waiting for it.
    pub fn wait(&mut self, what: &str, is: impl Fn(&Event) -> bool) -> Event {
        self.wait_behind(0, what, is)
    }

    /// The same behind so many events that were seen.
    pub fn wait_behind(&mut self, seen: usize, what: &str, is: impl Fn(&Event) -> bool) -> Event {
        let deadline = Instant::now() + PATIENCE;
        let mut looked = seen;
        loop {
            if let Some(found) = self.seen[looked..].iter().find(|e| is(e)) {
                return found.clone();
            }
            looked = self.seen.len();
            let left = deadline.saturating_duration_since(Instant::now());
            match self.client.poll(Some(left)).unwrap() {
                Some(event) => self.seen.push(event),
                None => panic!("h{}: waited {PATIENCE:?} in vain: {what}; seen: {:#?}", self.host, self.seen),
            }
        }
    }

    /// The failure of a process (`name@host`).
    pub fn failure(&mut self, name: &str) -> Verdict {
        match self.wait(&format!("the failure of {name}"), |e| matches!(e, Event::Failure(v) if named(v, name))) {
            Event::Failure(v) => v,
            other => panic!("{other:?}"),
        }
    }

    /// The confirmation of a doom.
    pub fn confirmation(&mut self, name: &str) -> Verdict {
        match self.wait(&format!("the confirmation of {name}"), |e| matches!(e, Event::Confirmed(v) if named(v, name))) {
            Event::Confirmed(v) => v,
            other => panic!("{other:?}"),
        }
    }

    /// A verdict about a host.
    pub fn host(&mut self, name: &str, cause: Cause) -> Verdict {
        let is = |e: &Event| matches!(e, Event::Host(v) if named(v, name) && v.cause == cause);
        match self.wait(&format!("{cause} of {name}"), is) {
            Event::Host(v) => v,
            other => panic!("{other:?}"),
        }
    }

    /// That a process is hung.
    pub fn hung(&mut self, name: &str) -> Verdict {
        match self.wait(&format!("{name} is hung"), |e| matches!(e, Event::Hung(v) if named(v, name))) {
            Event::Hung(v) => v,
            other => panic!("{other:?}"),
        }
    }

    /// That a process moves again.
    pub fn progressing(&mut self, name: &str) -> Verdict {
        match self.wait(&format!("{name} moves again"), |e| matches!(e, Event::Progressing(v) if named(v, name))) {
            Event::Progressing(v) => v,
            other => panic!("{other:?}"),
        }
    }

    pub fn failures(&mut self) -> Vec<Verdict> {
        self.drain();
        self.seen.iter().filter_map(|e| if let Event::Failure(v) = e { Some(v.clone()) } else { None }).collect()
    }

    pub fn failures_of(&mut self, name: &str) -> usize {
        self.failures().iter().filter(|v| named(v, name)).count()
    }

    pub fn lost(&self) -> u64 {
        self.seen.iter().map(|e| if let Event::Lost { count } = e { *count } else { 0 }).sum()
    }

    pub fn messages(&self) -> Vec<Vec<u8>> {
        self.seen.iter().filter_map(|e| if let Event::Piggyback(p) = e { Some(p.message.clone()) } else { None }).collect()
    }
}

pub fn named(v: &Verdict, name: &str) -> bool {
    v.subject.name.as_deref() == Some(name)
}

/// Checks what every verdict from a kernel has.
pub fn certain(v: &Verdict) {
    assert_eq!(v.grade, Grade::Certain, "{v:?}");
    assert!(v.id.is_some() && v.event_ns != 0 && v.received_ns != 0, "{v:?}");
}
