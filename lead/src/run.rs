//! `fide lead run` on one host: waits for verdicts, entries and COMMAND, and lets [`Judge`] decide.

use crate::course::{Course, Entry, Life};
use crate::judge::{Action, Judge};
use crate::payload::{Lock, Order, Payload, Plan, Said};
use anyhow::Context as _;
use fide_client::group::{self, Group, Stage};
use fide_client::wire::verdict::{Cause, Grade};
use fide_client::{Client, Connection, Error, Event, Resources, Verdict};
use fide_wire::control::{GroupOrder, GroupStatus, Reply, Request};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A lost agent, or a group that does not run, is tried again after so long.
const AGAIN: Duration = Duration::from_millis(100);
/// A group that is prepared or joined is waited for so long before another attempt.
const BEGIN_MAX: Duration = Duration::from_secs(3);
/// How often the time is looked at where nothing else wakes this thread.
const TICK: Duration = Duration::from_millis(200);
/// How often it is looked who is there, beside what verdicts say.
const LOOK: Duration = Duration::from_secs(1);
/// The state is handed to the agents behind so many entries, so that they keep no more.
const SNAPSHOT_EVERY: u64 = 64;

/// What is to run where, and how that is decided.
#[derive(Clone, Debug)]
pub struct Options {
    /// What runs.
    pub plan: Plan,
    /// The hosts, the preferred ones first.
    pub hosts: Vec<String>,
    /// Of the group; empty: as the hosts' fences suggest.
    pub engine: String,
    /// As `engine`.
    pub policy: String,
    /// The agent's socket.
    pub socket: Option<PathBuf>,
}

/// The group of a name, and what the `fide lead` of it is watched as.
#[must_use]
pub fn group_of(name: &str) -> String {
    format!("lead-{name}")
}

/// This host's clock, as people tell it, milliseconds since 1970.
#[must_use]
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The groups of an agent.
///
/// # Errors
/// Those of the connection.
pub fn groups(connection: &Connection) -> Result<Vec<GroupStatus>, Error> {
    match connection.request(&Request::Group { order: GroupOrder::Status })?.reply {
        Reply::Groups { groups } => Ok(groups),
        other => Err(Error::Protocol(format!("{other:?} in the place of groups"))),
    }
}

struct Link {
    client: Client,
    group: Group,
    /// A silent host counts as ended although nothing shows that it acts no more.
    believes: bool,
}

/// One host's `fide lead`.
pub struct Runner {
    options: Options,
    me: String,
    judge: Judge,
    payload: Payload,
    link: Option<Link>,
    /// Joined, so that others see its end, also while no group is there.
    joined: Option<Client>,
    began: Instant,
    looked: Instant,
    entries: u64,
    /// What was said last of each kind, so that it is said once.
    said: [String; 2],
    failure: Option<String>,
    is_over: bool,
}

impl Runner {
    /// Ends what a former life has left on this host. The agent need not be there yet.
    ///
    /// # Errors
    /// What cannot be, and what to do.
    pub fn new(options: Options, stop: &AtomicBool) -> anyhow::Result<Self> {
        let socket = fide_client::socket_path(options.socket.as_deref());
        let lock = Lock::take(&options.plan.name, &socket).map_err(anyhow::Error::msg)?;
        let me = loop {
            anyhow::ensure!(!stop.load(Ordering::Relaxed), "stopped while it waited for the agent");
            match Connection::open(options.socket.as_deref()) {
                Ok(connection) => break connection.agent().node.clone(),
                Err(e) => {
                    say!("warning: ", "waits for the agent: {e}");
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        };
        anyhow::ensure!(
            options.hosts.contains(&me),
            "this host is {me}, which is not one of --hosts {}",
            options.hosts.join(",")
        );
        if let Some((address, _)) = &options.plan.address {
            let alone = |text: &str| text.split('/').next().unwrap_or_default().to_owned();
            let paths = Client::open(options.socket.as_deref())?.status()?.paths;
            let is_own = paths.iter().any(|path| alone(&path.address) == alone(address));
            anyhow::ensure!(!is_own, "--address {address} is this host's own, by which its agent works: name one that moves");
        }
        let payload = Payload::new(options.plan.clone(), lock).map_err(anyhow::Error::msg)?;
        let judge = Judge::new(&me, Life { run: wall_ms(), incarnation: 0 }, &options.hosts);
        let said = Default::default();
        let (link, joined, now) = (None, None, Instant::now());
        let (entries, failure, is_over) = (0, None, false);
        Ok(Self { options, me, judge, payload, link, joined, began: now, looked: now, entries, said, failure, is_over })
    }

    /// Runs until it is told to stop, or has nothing left to do.
    ///
    /// # Errors
    /// Why nothing is to be done here.
    pub fn run(mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut connect_at = Instant::now();
        while !self.is_over {
            if self.link.is_none() && connect_at <= Instant::now() {
                if let Err(e) = self.connect() {
                    self.say(0, format!("waits: {e:#}"));
                }
                connect_at = Instant::now() + AGAIN;
            }
            self.act();
            self.wait();
            self.judge.set_now(self.now_ns(), wall_ms());
            if stop.load(Ordering::Relaxed) {
                self.judge.stop();
            }
            self.judge.handle_timeout();
            self.hear();
            if let Err(e) = self.exchange() {
                self.say(0, format!("the agent is lost: {e:#}"));
                self.link = None;
                self.judge.handle_disconnected();
            }
            self.act();
        }
        if let Some(client) = self.link.as_ref().map(|link| &link.client).or(self.joined.as_ref()) {
            _ = client.quit();
        }
        self.failure.map_or(Ok(()), |why| Err(anyhow::anyhow!(why)))
    }

    fn say(&mut self, kind: usize, what: String) {
        if self.said[kind] != what {
            if what.is_empty() {
                say!("", "{}: mended", self.said[kind]);
            } else {
                say!("warning: ", "{what}");
            }
            self.said[kind] = what;
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64 + 1
    }

    fn wait(&self) {
        let due = self.judge.poll_timeout().map_or(TICK, |at_ns| Duration::from_nanos(at_ns.saturating_sub(self.now_ns())));
        let mut fds = vec![self.payload.as_fd().as_raw_fd()];
        if let Some(link) = &self.link {
            fds.extend([link.client.as_raw_fd(), link.group.as_raw_fd()]);
        }
        let mut polled: Vec<libc::pollfd> =
            fds.into_iter().map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        let most = if self.link.is_none() { AGAIN } else { TICK };
        let timeout = due.min(most).as_micros().div_ceil(1000) as i32;
        // SAFETY: as many as there are, which nobody else uses meanwhile.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
    }

    // ---- the agent and the group ------------------------------------------------------------------

    fn connect(&mut self) -> anyhow::Result<()> {
        let socket = self.options.socket.clone();
        let client = match self.joined.take() {
            Some(client) if client.status().is_ok() => client,
            _ => {
                let client = Client::open(socket.as_deref())?;
                client.join(&group_of(&self.options.plan.name), 0)?;
                client
            }
        };
        let status = client.status()?;
        if status.fence.as_ref().is_some_and(|fence| fence.is_closed()) {
            self.judge.handle_fenced();
            self.joined = Some(client);
            anyhow::bail!("this host is fenced (fide fence recover)");
        }
        let connection = Connection::open(socket.as_deref())?;
        let believes = match self.have_group(&connection) {
            Ok(believes) => believes,
            Err(e) => {
                self.joined = Some(client);
                return Err(e);
            }
        };
        let options = group::Options { path: socket, ..group::Options::default() };
        let group = Group::open_with(&group_of(&self.options.plan.name), options)?;
        self.link = Some(Link { client, group, believes });
        self.entries = 0;
        self.judge.set_now(self.now_ns(), wall_ms());
        self.judge.handle_open(status.incarnation);
        self.judge.handle_connected();
        self.monitor_all()?;
        self.say(0, String::new());
        if believes {
            self.say(
                1,
                "the hosts have no fences that are confirmed: a host that is only believed dead may still run it, and what it sends is heard".into(),
            );
        }
        Ok(())
    }

    /// The group runs here: whether it takes silence for an end. It is joined; should there be none,
    /// the first host begins it once all are heard.
    fn have_group(&self, connection: &Connection) -> anyhow::Result<bool> {
        let name = group_of(&self.options.plan.name);
        let here = |connection: &Connection| -> anyhow::Result<Option<GroupStatus>> {
            Ok(groups(connection)?.into_iter().find(|group| group.name == name))
        };
        let is_over = |group: &GroupStatus| matches!(group.stage, Stage::Failed | Stage::Left | Stage::Gone);
        let until = Instant::now() + BEGIN_MAX;
        // A majority goes on without a host that is silent, and lets nobody lead in its place.
        let believes = |group: &GroupStatus| group.policy == "trust-contract" && group.engine != "raft";
        let wait = || -> anyhow::Result<Result<bool, String>> {
            loop {
                match here(connection)? {
                    Some(group) if group.stage == Stage::Running => return Ok(Ok(believes(&group))),
                    Some(group) if is_over(&group) => return Ok(Err(group.why)),
                    None => return Ok(Err("there is none".into())),
                    Some(group) if Instant::now() >= until => return Ok(Err(format!("it does not begin: {}", group.why))),
                    Some(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        };
        if here(connection)?.is_none_or(|group| is_over(&group)) {
            connection.request(&Request::Group { order: GroupOrder::Join { name: name.clone() } })?;
        }
        let why = match wait()? {
            Ok(believes) => return Ok(believes),
            Err(why) => why,
        };
        let may_begin = |group: &GroupStatus| is_over(group) || group.stage == Stage::Joining;
        if self.me != self.options.hosts[0] || here(connection)?.is_some_and(|group| !may_begin(&group)) {
            anyhow::bail!("the group {name} does not run here: {why}");
        }
        let (engine, policy) = (self.options.engine.clone(), self.options.policy.clone());
        let hosts = self.options.hosts.clone();
        let order = GroupOrder::Create { name: name.clone(), engine, policy, hosts, durable: true, fresh: false };
        connection.request(&Request::Group { order }).with_context(|| format!("the group {name} cannot begin"))?;
        wait()?.map_err(|why| anyhow::anyhow!("the group {name} cannot begin: {why}"))
    }

    fn monitor_all(&mut self) -> anyhow::Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let name = group_of(&self.options.plan.name);
        let hosts: Vec<String> = self.options.hosts.iter().filter(|host| **host != self.me).cloned().collect();
        let status = link.client.status()?;
        for host in hosts {
            let process = link.client.monitor(&format!("{name}@{host}"), Resources::default())?;
            link.client.monitor(&format!("@{host}"), Resources::default())?;
            if let Some((cause, code)) = process.end.filter(|_| !process.alive) {
                self.judge.handle_life_over(&host, &format!("its fide lead has ended ({} {code})", cause.name()));
            } else if process.alive {
                self.judge.handle_life(&host);
            }
            // The verdict may have come while this process was not there to hear it.
            let known = status.hosts.iter().find(|known| known.name == host && known.state == "silent-host");
            if let Some(known) = known.filter(|known| link.believes || known.fence.is_some_and(|fence| fence.host)) {
                self.judge.handle_host_over(&host, known.incarnation, &format!("{host} is silent"));
            }
        }
        Ok(())
    }

    fn exchange(&mut self) -> anyhow::Result<()> {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.monitor_all()?;
        }
        while let Some(event) = self.link.as_ref().map(|link| link.client.poll(Some(Duration::ZERO))).transpose()?.flatten() {
            self.event(&event)?;
        }
        loop {
            let Some(link) = &mut self.link else { return Ok(()) };
            match link.group.poll(Some(Duration::ZERO))? {
                Some(group::Event::Entry(entry)) => self.entry(&entry)?,
                Some(group::Event::Snapshot { bytes, .. }) => {
                    let course: Course = serde_json::from_slice(&bytes).context("the group's state is not one of fide lead")?;
                    self.judge.handle_snapshot(course);
                }
                Some(group::Event::Standing(standing)) if matches!(standing.stage, Stage::Gone | Stage::Failed | Stage::Left) => {
                    anyhow::bail!("the group is {}", standing.stage.name());
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    fn entry(&mut self, entry: &group::Entry) -> anyhow::Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let is_own = entry.client == link.group.client();
        let Some(read) = Entry::read(&entry.bytes) else { return Ok(()) };
        let (count, was_current) = (self.judge.course().history.len(), self.judge.is_current());
        self.judge.handle_entry(&read, is_own);
        let course = self.judge.course();
        if was_current && course.history.len() != count {
            for decision in course.history.iter().skip(count) {
                say!("", "term {}: {}", decision.term, decision.text);
            }
        }
        self.entries += 1;
        if self.entries.is_multiple_of(SNAPSHOT_EVERY) {
            link.group.keep_snapshot(entry.index, &serde_json::to_vec(course)?)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> anyhow::Result<()> {
        match event {
            Event::Failure(verdict) | Event::Confirmed(verdict) => self.process(verdict),
            Event::Host(verdict) if verdict.cause == Cause::SilentHost => {
                let believes = self.link.as_ref().is_some_and(|link| link.believes);
                let named = verdict.subject.name.as_ref().and_then(|name| name.split_once('@'));
                if let Some((_, host)) = named.filter(|_| believes || verdict.fenced) {
                    let how = if verdict.fenced { "fenced" } else { "believed dead" };
                    self.judge.handle_host_over(host, verdict.subject.incarnation, &format!("{host} is silent ({how})"));
                }
            }
            Event::Monitored(verdict) => {
                let named = verdict.subject.name.as_ref().and_then(|name| name.split_once('@'));
                if let Some((_, host)) = named.filter(|(name, _)| *name == group_of(&self.options.plan.name)) {
                    self.judge.handle_life(host);
                }
            }
            Event::Fenced(_) => self.judge.handle_fenced(),
            // The group is joined again in the new incarnation.
            Event::Recovered(_) => anyhow::bail!("this host's fence is open again"),
            Event::Lost { .. } => self.monitor_all()?,
            Event::AgentGone => anyhow::bail!("it hung up"),
            _ => {}
        }
        Ok(())
    }

    fn process(&mut self, verdict: &Verdict) {
        let Some((name, host)) = verdict.subject.name.as_ref().and_then(|name| name.split_once('@')) else { return };
        // A process that joins again under its name lives.
        let is_end = verdict.grade == Grade::Certain && verdict.cause != Cause::Replaced;
        if name == group_of(&self.options.plan.name) && is_end {
            let why = format!("its fide lead has ended ({} {})", verdict.cause.name(), verdict.code);
            self.judge.handle_life_over(host, &why);
        }
    }

    // ---- COMMAND ----------------------------------------------------------------------------------

    fn hear(&mut self) {
        for said in self.payload.said() {
            match said {
                Said::Ended(term, why) => {
                    say!("warning: ", "term {term}: {why}");
                    self.judge.handle_ended(term, &why);
                }
                Said::Cleared(term) => self.judge.handle_cleared(term),
                Said::Doubt(doubt) => self.say(1, doubt),
            }
        }
    }

    fn act(&mut self) {
        for action in self.judge.poll_actions() {
            match action {
                Action::Propose(entry) => {
                    // What is not taken is proposed again in a moment.
                    let proposed = self.link.as_mut().map(|link| link.group.propose(&entry.bytes()));
                    if let Some(Err(e)) = proposed {
                        say!("warning: ", "cannot propose: {e}");
                    }
                }
                Action::Start { term } => self.payload.order(Order::Start(term)),
                Action::Clear { term, politely } => self.payload.order(Order::Clear(term, politely)),
                Action::Follow { term, leader } => self.payload.order(Order::Follow(term, leader)),
                Action::Exit { failure } => (self.failure, self.is_over) = (failure, true),
            }
        }
    }
}
