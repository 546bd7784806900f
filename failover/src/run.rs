//! The manager of this host: waits for verdicts, entries and the server, and lets [`Judge`] decide.

use crate::config::Config;
use crate::course::{Course, Entry};
use crate::judge::{Action, End, Judge, Kept, Life, Position};
use crate::service::{Said, Service};
use anyhow::Context as _;
use fide_client::group::{self, Group, Stage};
use fide_client::wire::verdict::{Cause, Grade};
use fide_client::{Client, Connection, Error, Event, Resources, TargetState, Verdict};
use fide_wire::control::{ErrorCode, GroupOrder, GroupStatus, HostStatus, Reply, Request, Status};
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A lost agent, or a group that does not run, is tried again after so long.
const AGAIN: Duration = Duration::from_millis(100);
/// A group that is prepared or joined is waited for so long before another attempt.
const BEGIN_MAX: Duration = Duration::from_secs(3);
/// How often the time is looked at where nothing else wakes this thread.
const TICK: Duration = Duration::from_millis(200);
/// The state is handed to the agents behind so many entries, so that they keep no more.
const SNAPSHOT_EVERY: u64 = 64;

/// Where servers of other hosts reach this host's.
///
/// # Errors
/// What to write into the file.
pub fn told(config: &Config, status: &Status) -> anyhow::Result<String> {
    // A kernel without IPv6 has no such file.
    let listed = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    config.told(status.paths.iter().map(|path| (path.interface.as_str(), path.address.as_str())), &listed)
}

/// This host's clock, as people tell it, milliseconds since 1970.
#[must_use]
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

struct Link {
    client: Client,
    group: Group,
    /// When the agent is asked again to watch a server that did not run; nothing: it watches it.
    watch_at: Option<Instant>,
}

/// The manager.
pub struct Manager {
    config: Config,
    socket: Option<PathBuf>,
    me: String,
    judge: Judge,
    service: Service,
    link: Option<Link>,
    /// Joined while this host is fenced: whoever opens the fence sees by that that this manager
    /// runs, and that its server takes no writes.
    waiting: Option<Client>,
    /// Counts connections; begins where no other life of this manager did.
    session: u64,
    began: Instant,
    entries: u64,
    kept: Kept,
    /// What was said last of each kind, so that it is said once.
    said: [String; 3],
    told: VecDeque<String>,
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

/// Begins the group with these hosts: on fences if all have one.
///
/// # Errors
/// Why it cannot begin.
pub fn create(connection: &Connection, name: &str, hosts: &[String]) -> Result<(), Error> {
    let order = |policy: &str| {
        let (name, engine, policy) = (name.into(), "huc".into(), policy.into());
        let order = GroupOrder::Create { name, engine, policy, hosts: hosts.to_vec(), durable: false, fresh: false };
        connection.request(&Request::Group { order }).map(drop)
    };
    match order("fence") {
        Err(Error::Refused(refused)) if refused.code == ErrorCode::Invalid => order("trust-contract"),
        other => other,
    }
}

impl Manager {
    /// Reads what was kept, and starts the server's thread. The agent need not be there yet.
    ///
    /// # Errors
    /// What of the configuration cannot be; a state that cannot be kept.
    pub fn new(config: Config, socket: Option<PathBuf>, stop: &AtomicBool) -> anyhow::Result<Self> {
        let me = loop {
            anyhow::ensure!(!stop.load(Ordering::Relaxed), "stopped while it waited for the agent");
            match Connection::open(socket.as_deref()) {
                Ok(connection) => break connection.agent().node.clone(),
                Err(e) => {
                    tracing::warn!("waits for the agent: {e}");
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        };
        anyhow::ensure!(config.hosts.contains(&me), "this host is {me}, which is not one of hosts = {:?}", config.hosts);
        let kept = load(&config)?;
        save(&config, &kept)?;
        let service = Service::start(&config)?;
        let judge = Judge::new(&me, &config.hosts, (config.planned, config.is_cold()), kept.clone()).with_lag_max(config.lag_max);
        let session = wall_ms() << 8;
        let said = Default::default();
        let told = VecDeque::new();
        Ok(Self {
            config,
            socket,
            me,
            judge,
            service,
            link: None,
            waiting: None,
            session,
            began: Instant::now(),
            entries: 0,
            kept,
            said,
            told,
        })
    }

    /// Runs until it is told to stop. The server goes on as it is.
    ///
    /// # Errors
    /// What nobody else can mend.
    pub fn run(mut self, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
        let mut connect_at = Instant::now();
        _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        while !stop.load(Ordering::Relaxed) {
            if self.link.is_none() && connect_at <= Instant::now() {
                if let Err(e) = self.connect() {
                    self.say(0, format!("waits: {e:#}"));
                }
                connect_at = Instant::now() + AGAIN;
            }
            self.wait();
            self.tick();
            if let Err(e) = self.exchange().and_then(|()| self.watch_again()) {
                self.say(0, format!("the agent is lost: {e:#}"));
                self.link = None;
                self.judge.handle_disconnected();
            }
            self.act();
        }
        if let Some(client) = self.link.as_ref().map(|link| &link.client).or(self.waiting.as_ref()) {
            _ = client.quit();
        }
        Ok(())
    }

    fn say(&mut self, kind: usize, what: String) {
        if self.said[kind] != what {
            if what.is_empty() {
                tracing::info!("{}: mended", self.said[kind]);
            } else {
                tracing::warn!("{what}");
            }
            self.said[kind] = what;
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn tick(&mut self) {
        self.judge.set_now(self.now_ns() + 1, wall_ms());
        self.judge.handle_timeout();
    }

    fn wait(&self) {
        let due = self.judge.poll_timeout().map_or(TICK, |at_ns| Duration::from_nanos(at_ns.saturating_sub(self.now_ns())));
        let mut fds = vec![self.service.as_fd().as_raw_fd()];
        if let Some(link) = &self.link {
            fds.extend([link.client.as_raw_fd(), link.group.as_raw_fd()]);
        }
        let mut polled: Vec<libc::pollfd> =
            fds.into_iter().map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        let most = if self.link.is_none() { AGAIN } else { TICK };
        // Rounded up: a deadline that is almost over is not waited for in vain.
        let timeout = due.min(most).as_micros().div_ceil(1000) as i32;
        // SAFETY: as many as there are, which nobody else uses meanwhile.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
    }

    // ---- the agent and the group ------------------------------------------------------------------------------------

    fn connect(&mut self) -> anyhow::Result<()> {
        let client = if self.waiting.is_none() { Some(Client::open(self.socket.as_deref())?) } else { None };
        let status = match self.waiting.as_ref().or(client.as_ref()).map(Client::status) {
            Some(Ok(status)) => status,
            lost => {
                self.waiting = None;
                return Err(lost.and_then(Result::err).unwrap_or(Error::Disconnected).into());
            }
        };
        // A fenced host reaches no group: its server is told before that is waited for.
        let is_fenced = status.fence.as_ref().is_some_and(|fence| fence.is_closed());
        self.judge.handle_fenced(is_fenced);
        if is_fenced {
            if let Some(client) = client.filter(|_| self.judge.takes_no_writes()) {
                client.join(&self.config.group(), Position::SIZE as u32)?;
                self.waiting = Some(client);
            }
            anyhow::bail!("this host is fenced (fide fence recover)");
        }
        self.config.check_own(status.paths.iter().map(|path| path.address.as_str()))?;
        let connection = Connection::open(self.socket.as_deref())?;
        let watched = self.have_watched(&connection)?;
        self.have_group(&connection)?;
        let path = self.socket.clone();
        let group = Group::open_with(&self.config.group(), group::Options { path, ..group::Options::default() })?;
        // One that has joined goes on: to give it up would look like the end of this manager.
        let client = match (self.waiting.take(), client) {
            (Some(joined), _) => joined,
            (None, client) => {
                let client = client.map_or_else(|| Client::open(self.socket.as_deref()), Ok)?;
                client.join(&self.config.group(), Position::SIZE as u32)?;
                client
            }
        };
        let address = told(&self.config, &status)?;
        let port = self.config.reached().1;
        let address = if address.contains(':') { format!("[{address}]") } else { address };
        self.link = Some(Link { client, group, watch_at: (!watched).then(Instant::now) });
        self.monitor_all()?;
        self.session += 1;
        self.entries = 0;
        self.judge.begin(self.session, &format!("{address}:{port}"));
        self.say(0, String::new());
        Ok(())
    }

    /// The server is watched under its name, also while this manager does not run. Whether it is: one that this manager starts need not run yet.
    fn have_watched(&self, connection: &Connection) -> anyhow::Result<bool> {
        let Some(selector) = self.config.selector() else { return Ok(true) };
        // A first leader is chosen by what all servers have: they are waited for.
        let may_be_down = self.config.is_cold() || self.config.postgresql.is_some() && self.kept.term > 0;
        let is_a_users = self.config.unit.as_ref().is_some_and(|unit| unit.user);
        // SAFETY: takes nothing and cannot fail.
        let user = is_a_users.then(|| unsafe { libc::geteuid() }.to_string());
        let request = Request::Watch { name: self.config.name.clone(), selector, user, containers: false };
        match connection.request(&request) {
            Ok(_) => Ok(true),
            Err(Error::Refused(refused)) if refused.code == ErrorCode::Exists => Ok(true),
            Err(Error::Refused(refused)) if refused.code == ErrorCode::NotFound && may_be_down => Ok(false),
            Err(e) => Err(e).context("the agent cannot watch the server"),
        }
    }

    /// The group runs here. It is joined; should there be none, the first host begins it once all are heard.
    fn have_group(&self, connection: &Connection) -> anyhow::Result<()> {
        let name = self.config.group();
        let stage = |connection: &Connection| -> anyhow::Result<Option<GroupStatus>> {
            Ok(groups(connection)?.into_iter().find(|group| group.name == name))
        };
        let is_over = |group: &GroupStatus| matches!(group.stage, Stage::Failed | Stage::Left | Stage::Gone);
        let until = Instant::now() + BEGIN_MAX;
        let wait = || -> anyhow::Result<Result<(), String>> {
            loop {
                match stage(connection)? {
                    Some(group) if group.stage == Stage::Running => return Ok(Ok(())),
                    Some(group) if is_over(&group) => return Ok(Err(group.why)),
                    None => return Ok(Err("there is none".into())),
                    Some(_) if Instant::now() >= until => return Ok(Err("it does not begin".into())),
                    Some(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        };
        if stage(connection)?.is_none_or(|group| is_over(&group)) {
            connection.request(&Request::Group { order: GroupOrder::Join { name: name.clone() } })?;
        }
        let Err(why) = wait()? else { return Ok(()) };
        // Agents that were all restarted look for it for ever. A host that runs it refuses a new one.
        let may_begin = |group: &GroupStatus| is_over(group) || group.stage == Stage::Joining;
        if self.me != self.config.hosts[0] || stage(connection)?.is_some_and(|group| !may_begin(&group)) {
            anyhow::bail!("the group {name} does not run here: {why}");
        }
        create(connection, &name, &self.config.hosts).with_context(|| format!("the group {name} cannot begin"))?;
        wait()?.map_err(|why| anyhow::anyhow!("the group {name} cannot begin: {why}"))
    }

    fn watch_again(&mut self) -> anyhow::Result<()> {
        let due = |link: &Link| link.watch_at.is_some_and(|at| at <= Instant::now());
        if self.link.as_ref().is_some_and(due) && self.judge.runs() {
            let watched = self.have_watched(&Connection::open(self.socket.as_deref())?)?;
            if let Some(link) = &mut self.link {
                link.watch_at = (!watched).then(|| Instant::now() + TICK);
            }
        }
        Ok(())
    }

    fn server(&self, host: &str) -> String {
        format!("{}@{host}", self.config.name)
    }

    fn monitor_all(&mut self) -> Result<(), Error> {
        for host in self.config.hosts.clone() {
            self.monitor(&host)?;
        }
        if let Some(link) = &self.link {
            link.client.monitor(&format!("@{}", self.me), Resources::default())?;
        }
        Ok(())
    }

    fn monitor(&mut self, host: &str) -> Result<(), Error> {
        let Some(link) = &self.link else { return Ok(()) };
        if self.config.is_cold() && host != self.me {
            link.client.monitor(&format!("@{host}"), Resources::default())?;
        }
        let server = link.client.monitor(&self.server(host), Resources::default())?;
        let wanted = Resources { pbsize: Position::SIZE as u32, ..Resources::default() };
        let manager =
            (host != self.me).then(|| link.client.monitor(&format!("{}@{host}", self.config.group()), wanted)).transpose()?;
        let life = match server.end {
            Some((cause, code)) if server.state == Some(TargetState::Ended) && is_known_end(cause) => {
                let (end, said) = self.judged(end(cause, code), &self.config.name, host);
                let why = format!("its server has ended ({} {code}{said})", cause.name());
                Some(Life::Over { process: server.subject.app, why, end })
            }
            _ if server.alive => Some(Life::Alive(server.subject.app)),
            // The verdict may have come while this manager was not there to hear it.
            _ if self.is_fenced_out(host)? => {
                let (end, said) = self.judged(End::Host, &self.config.name, host);
                let why = format!("{host} is silent (inferred, fenced{said})");
                Some(Life::Over { process: 0, why, end })
            }
            _ => None,
        };
        if let Some(life) = life {
            self.judge.handle_server(host, life);
        }
        if let Some(manager) = manager {
            self.judge.handle_manager(host, manager.alive);
        }
        Ok(())
    }

    /// Whether a host is silent behind a fence of the whole host: it is told as silent only when
    /// its fence has closed.
    fn is_fenced_out(&self, host: &str) -> Result<bool, Error> {
        let Some(link) = &self.link else { return Ok(false) };
        let is_out =
            |known: &HostStatus| known.name == host && known.state == "silent-host" && known.fence.is_some_and(|f| f.host);
        Ok(link.client.status()?.hosts.iter().any(is_out))
    }

    fn exchange(&mut self) -> anyhow::Result<()> {
        for said in self.service.said() {
            match said {
                Said::Report(report) => {
                    let doubt = match &report {
                        Ok(report) if report.doubt.is_empty() => String::new(),
                        Ok(report) => format!("the server: {}", report.doubt),
                        Err(why) => format!("the server does not answer: {why}"),
                    };
                    self.say(1, doubt);
                    self.judge.handle_report(report);
                    self.say_position();
                }
                Said::Done(done) => {
                    tracing::debug!("{} {done:?}", fide_client::monotonic_ns() / 1000);
                    if let Some(why) = done.failure() {
                        tracing::warn!("{why}");
                    }
                    self.judge.handle_done(done);
                }
                Said::Doubt(doubt) => self.say(2, doubt),
            }
        }
        while let Some(event) = self.link.as_ref().map(|link| link.client.poll(Some(Duration::ZERO))).transpose()?.flatten() {
            self.event(&event)?;
        }
        loop {
            let Some(link) = &mut self.link else { return Ok(()) };
            match link.group.poll(Some(Duration::ZERO))? {
                Some(group::Event::Entry(entry)) => self.entry(&entry)?,
                Some(group::Event::Snapshot { bytes, .. }) => {
                    let course: Course = serde_json::from_slice(&bytes).context("the group's state is not one of managers")?;
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

    /// What this host's server has goes to the others with the next heartbeat, if it leads.
    fn say_position(&self) {
        let (Some(link), Some(position)) = (&self.link, self.judge.position()) else { return };
        // Where none of it comes, how much the leader has is not known.
        _ = link.client.piggyback(&position.bytes());
    }

    fn entry(&mut self, entry: &group::Entry) -> anyhow::Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let own = entry.client == link.group.client();
        let term = self.judge.course().term;
        let count = self.judge.course().history.len();
        let Some(read) = Entry::read(&entry.bytes) else { return Ok(()) };
        tracing::debug!("{} {read:?}", fide_client::monotonic_ns() / 1000);
        let was_current = self.judge.is_current();
        self.judge.handle_entry(&read, own);
        let course = self.judge.course();
        if was_current
            && course.history.len() != count
            && let Some(decision) = course.history.back()
        {
            tracing::info!("term {}: {}", decision.term, decision.text);
        }
        self.entries += 1;
        if self.entries.is_multiple_of(SNAPSHOT_EVERY) {
            link.group.keep_snapshot(entry.index, &serde_json::to_vec(course)?)?;
        }
        // What was known of it may be of its server's former life.
        if course.term != term
            && let Some(next) = course.leader.clone()
        {
            self.monitor(&next)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> anyhow::Result<()> {
        tracing::debug!("{} {event:?}", fide_client::monotonic_ns() / 1000);
        match event {
            Event::Failure(verdict) | Event::Confirmed(verdict) => self.verdict(verdict),
            // Where nothing runs that could end, its host's silence is what ends a term.
            Event::Host(verdict) if self.config.is_cold() && verdict.cause == Cause::SilentHost => self.verdict(verdict),
            Event::Host(verdict) if self.config.is_cold() && verdict.cause == Cause::Returned => {
                if let Some((_, host)) = subject(verdict) {
                    self.judge.handle_host_back(&host);
                }
            }
            Event::Monitored(verdict) => {
                if let Some((name, host)) = subject(verdict) {
                    if name == self.config.name {
                        self.judge.handle_server(&host, Life::Alive(verdict.subject.app));
                    } else if name == self.config.group() {
                        self.judge.handle_manager(&host, true);
                    }
                }
            }
            Event::Piggyback(piggyback) => {
                let named = piggyback.from.name.as_deref().and_then(|name| name.split_once('@'));
                if let Some((name, host)) = named
                    && name == self.config.group()
                    && let Some(position) = Position::read(&piggyback.message)
                {
                    self.judge.handle_position(host, position);
                }
            }
            Event::Fenced(_) => self.judge.handle_fenced(true),
            Event::Recovered(_) => self.judge.handle_fenced(false),
            Event::Lost { .. } => self.monitor_all()?,
            Event::AgentGone => anyhow::bail!("it hung up"),
            _ => {}
        }
        Ok(())
    }

    fn verdict(&mut self, verdict: &Verdict) {
        let Some((name, host)) = subject(verdict) else { return };
        if name == self.config.group() {
            self.judge.handle_manager(&host, false);
            return;
        }
        if name != self.config.name && !(name.is_empty() && verdict.cause == Cause::SilentHost)
            || !is_known_end(verdict.cause) && verdict.cause != Cause::SilentHost
        {
            return;
        }
        let id = verdict.id.map_or_else(String::new, |id| format!(", verdict {id}"));
        let what = match verdict.cause {
            Cause::SilentHost => format!("{host} is silent"),
            cause => format!("{name}@{host}: {} {}", cause.name(), verdict.code),
        };
        if verdict.grade == Grade::Certain {
            let (end, said) = self.judged(end(verdict.cause, verdict.code), &name, &host);
            let why = format!("{what} (certain{id}{said})");
            self.judge.handle_server(&host, Life::Over { process: verdict.subject.app, why, end });
            self.say_awaited(&what, &said);
        } else if verdict.fenced {
            let (end, said) = self.judged(End::Host, &name, &host);
            let why = format!("{what} (inferred, fenced{id}{said})");
            self.judge.handle_server(&host, Life::Over { process: verdict.subject.app, why, end });
            self.say_awaited(&what, &said);
        } else if self.judge.course().leader.as_ref() == Some(&host) {
            tracing::warn!(
                "{what}{id}: nobody takes over, because it has no fence that would be closed by now and may still take writes"
            );
        }
    }

    /// How an end is judged, and what is said of it: during a maintenance it was planned, whatever it looks like.
    fn judged(&self, end: End, name: &str, host: &str) -> (End, String) {
        if end == End::Planned {
            return (end, String::new());
        }
        let name = if name.is_empty() { &self.config.name } else { name };
        let covering = |link: &Link| link.client.maintenance(&format!("{name}@{host}")).ok().flatten();
        match self.link.as_ref().and_then(covering) {
            Some(m) => (end.in_maintenance(), format!(", in maintenance of {}", m.target)),
            None => (end, String::new()),
        }
    }

    fn say_awaited(&self, what: &str, said: &str) {
        if self.judge.awaits() {
            let why = if said.is_empty() { "it was asked to end" } else { "its end was planned" };
            tracing::info!("{what}{said}: {why}; another one takes over if it is not back by then (planned)");
        }
    }

    // ---- what follows -----------------------------------------------------------------------------------------------

    fn act(&mut self) {
        while let Some(action) = self.judge.poll_action() {
            tracing::debug!("{} {action:?}", fide_client::monotonic_ns() / 1000);
            match action {
                Action::Propose(entry) => {
                    // What is not taken is proposed again in a moment.
                    if let Some(link) = &mut self.link
                        && let Err(e) = link.group.propose(&entry.bytes())
                    {
                        self.told.push_back(e.to_string());
                    }
                }
                action => self.service.order(action),
            }
        }
        while let Some(why) = self.told.pop_front() {
            tracing::warn!("cannot propose: {why}");
        }
        // Of use only when all agents have ended; the disk is not waited for before the server is told.
        let kept = self.judge.kept();
        if kept != self.kept {
            if let Err(e) = save(&self.config, &kept) {
                tracing::warn!("{e:#}: should all agents end at once, this host will not know who led last");
            }
            self.kept = kept;
        }
        let waits = if self.judge.is_current() { self.judge.waits_for() } else { String::new() };
        if waits.is_empty() {
            if self.said[2].starts_with("nobody ") {
                self.said[2].clear();
            }
            return;
        }
        match &self.judge.course().leader {
            Some(leader) => {
                let what = format!(
                    "nobody takes over from {leader}: {waits}; it leads again when its server is back, or: fide-failover lead HOST --force"
                );
                self.say(2, what);
            }
            None if self.judge.course().over.is_empty() => self.say(2, format!("nobody leads: {waits}")),
            None => {}
        }
    }
}

fn subject(verdict: &Verdict) -> Option<(String, String)> {
    let (name, host) = verdict.subject.name.as_ref()?.split_once('@')?;
    Some((name.into(), host.into()))
}

/// A process that ends with status 0, or by the signal that asks for it, was asked to end. What is doomed says the status or signal to come; a status that
/// looks like a signal is put right when the process has ended.
const fn end(cause: Cause, code: i32) -> End {
    match (cause, code) {
        (Cause::Exited | Cause::Doomed, 0) | (Cause::Killed | Cause::Doomed, libc::SIGTERM) => End::Planned,
        _ => End::Crash,
    }
}

/// Whether it says that the process itself has ended, and cannot act again.
fn is_known_end(cause: Cause) -> bool {
    matches!(cause, Cause::Exited | Cause::Killed | Cause::Doomed | Cause::OutOfMemory)
}

fn path(config: &Config) -> PathBuf {
    config.state.join(format!("{}.json", config.name))
}

fn load(config: &Config) -> anyhow::Result<Kept> {
    let path = path(config);
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("{} is damaged", path.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Kept::default()),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn save(config: &Config, kept: &Kept) -> anyhow::Result<()> {
    std::fs::create_dir_all(&config.state).with_context(|| format!("cannot make {}", config.state.display()))?;
    let path = path(config);
    replace(&path, &serde_json::to_vec(kept)?).with_context(|| format!("cannot write {}", path.display()))
}

/// Whole, or as it was.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    let new = path.with_extension("new");
    let mut file = std::fs::File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_to_end_is_told_from_what_crashed_also_before_it_has_ended() {
        for (cause, code) in [(Cause::Exited, 0), (Cause::Doomed, 0), (Cause::Doomed, 15), (Cause::Killed, 15)] {
            assert_eq!(end(cause, code), End::Planned, "{cause} {code}");
        }
        for (cause, code) in [
            (Cause::Exited, 1),
            (Cause::Exited, 15),
            (Cause::Exited, -1),
            (Cause::Doomed, 9),
            (Cause::Killed, 9),
            (Cause::OutOfMemory, 9),
        ] {
            assert_eq!(end(cause, code), End::Crash, "{cause} {code}");
        }
    }
}
