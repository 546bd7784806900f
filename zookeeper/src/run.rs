//! The hook: waits for verdicts and entries, and lets [`Judge`] decide.

use crate::course::{Action, Course, Disk, Entry, Judge, Look, Noted};
use crate::{disk, server};
use anyhow::{Context as _, Result, bail, ensure};
use fide_client::group::{self, Group, Stage};
use fide_client::wire::verdict::{Cause, Grade};
use fide_client::{Client, Connection, Error, Event, Resources, TargetState, Verdict};
use fide_wire::control::{ErrorCode, GroupOrder, GroupStatus, Reply, Request, Selector};
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A lost agent, or a group that does not run, is tried again after so long.
const AGAIN: Duration = Duration::from_millis(200);
/// How often the time is looked at where nothing else wakes this thread.
const TICK: Duration = Duration::from_millis(50);
/// How often the server is asked what it does, while that matters.
const LOOK_TICK: Duration = Duration::from_millis(1);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often it is read how far the server's disk goes.
const READ_EVERY: Duration = Duration::from_secs(1);
/// A server that could not be watched is tried again after so long.
const WATCH_AGAIN: Duration = Duration::from_secs(2);
/// The state is handed to the agents behind so many entries, so that they keep no more.
const SNAPSHOT_EVERY: u64 = 64;
/// A hook that comes again is given the state, if that was not done for so long: what it finds may
/// be one that no hook has kept.
const SNAPSHOT_AFTER: Duration = Duration::from_secs(1);
/// What a silent host's verdict rests on is written down a moment after it is told.
const EVIDENCE_MAX: Duration = Duration::from_millis(50);

/// What it is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// The group of the two hosts, and of a third one as a witness if there is one (fide group create)
    #[arg(long, value_name = "NAME")]
    pub group: String,
    /// The host of the other server, as its agent calls it
    #[arg(long, value_name = "HOST")]
    pub peer: String,
    /// The file that oraclePath in zoo.cfg names; each server has its own
    #[arg(long, value_name = "FILE")]
    pub oracle: PathBuf,
    /// The server's dataDir in zoo.cfg: on another disk than the one that it served on alone, or on an older copy, it is never let serve alone again
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Its dataLogDir, if zoo.cfg names one
    #[arg(long, value_name = "DIR")]
    pub data_log: Option<PathBuf>,
    /// This host's server, where clients reach it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:2181")]
    pub server: SocketAddr,
    /// What both servers are called where they are watched
    #[arg(long, value_name = "NAME", default_value = "zookeeper")]
    pub name: String,
    /// The agent's socket: an option of the program.
    #[arg(skip)]
    pub socket: Option<PathBuf>,
}

struct Link {
    client: Client,
    group: Group,
    /// This host's member.
    member: u16,
}

/// From the threads that ask the server.
enum Told {
    /// And the turn in which it was begun.
    Look(Look, u64),
    Proof(Result<()>),
    /// Read, since so many of its processes have begun.
    Disk(Box<disk::Reader>, u64, Result<Disk>),
    Marked(Box<disk::Reader>, Result<Disk>),
}

/// The hook of this host.
pub struct Hook {
    settings: Settings,
    me: String,
    judge: Judge,
    link: Option<Link>,
    session: u64,
    entries: u64,
    /// When the state was handed to the agents last.
    kept: Instant,
    tell: mpsc::Sender<Told>,
    told: mpsc::Receiver<Told>,
    is_watched: bool,
    watch_at: Instant,
    is_looking: bool,
    looked: Option<Instant>,
    look: Option<Look>,
    /// How often the server was found to be there again.
    starts: u64,
    /// Not there while it reads or marks.
    disk: Option<Box<disk::Reader>>,
    to_mark: Option<Option<Noted>>,
    disk_read: Option<Instant>,
    is_lost: bool,
    has_warned: bool,
    /// It was told that entries are skipped.
    has_skipped: bool,
    began: Instant,
    said: String,
}

/// Milliseconds since 1970, by this host's clock.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn say(text: &str) {
    eprintln!("fide-zookeeper: {text}");
}

impl Hook {
    /// Reads what the oracle says, and waits for the agent.
    ///
    /// # Errors
    /// What of the settings cannot be.
    pub fn new(settings: Settings, stop: &AtomicBool) -> Result<Self> {
        fide_wire::names::check_node(&settings.name).map_err(anyhow::Error::msg).context("--name")?;
        ensure!(settings.oracle.is_absolute(), "--oracle {}: give the whole path, as zoo.cfg does", settings.oracle.display());
        for dir in std::iter::once(&settings.data).chain(&settings.data_log) {
            ensure!(dir.is_absolute(), "{}: give the whole path, as zoo.cfg does", dir.display());
        }
        let oracle = begin_oracle(&settings.oracle)?;
        // The server may begin: its oracle says nothing of a former boot.
        _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let me = loop {
            ensure!(!stop.load(Ordering::Relaxed), "stopped while it waited for the agent");
            match Connection::open(settings.socket.as_deref()) {
                Ok(connection) => break connection.agent().node.clone(),
                Err(e) => {
                    say(&format!("waits for the agent: {e}"));
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        };
        ensure!(me != settings.peer, "--peer {me} is this host: name the host of the other server");
        let reader = disk::Reader::new(&settings.data, settings.data_log.as_ref().unwrap_or(&settings.data));
        let judge = Judge::new(&me, oracle);
        let (tell, told) = mpsc::channel();
        let (session, began) = (wall_ms() << 8, Instant::now());
        Ok(Self {
            settings,
            me,
            judge,
            link: None,
            session,
            entries: 0,
            kept: began,
            tell,
            told,
            is_watched: false,
            watch_at: began,
            is_looking: false,
            looked: None,
            look: None,
            starts: 0,
            disk: Some(Box::new(reader)),
            to_mark: None,
            disk_read: None,
            is_lost: false,
            has_warned: false,
            has_skipped: false,
            began,
            said: String::new(),
        })
    }

    /// Runs until it is told to stop. The oracle stays as it is.
    ///
    /// # Errors
    /// An oracle that cannot be written: the server would go by an old one.
    pub fn run(mut self, stop: &AtomicBool) -> Result<()> {
        let mut connect_at = Instant::now();
        self.act()?;
        while !stop.load(Ordering::Relaxed) {
            if self.link.is_none() && connect_at <= Instant::now() {
                if let Err(e) = self.connect() {
                    self.tell_once(format!("waits: {e:#}"));
                }
                connect_at = Instant::now() + AGAIN;
                // The other hook learns of this one, whatever is read here.
                self.act()?;
            }
            self.wait();
            self.judge.set_now(self.began.elapsed().as_millis() as u64, wall_ms());
            self.ask_server();
            self.ask_disk();
            if let Err(e) = self.exchange() {
                self.tell_once(format!("the agent or the group is lost: {e:#}"));
                self.link = None;
                self.judge.handle_disconnected();
            }
            self.act()?;
        }
        Ok(())
    }

    fn tell_once(&mut self, what: String) {
        if self.said != what {
            say(if what.is_empty() { "goes on" } else { &what });
            self.said = what;
        }
    }

    fn wait(&self) {
        let Some(link) = &self.link else { return std::thread::sleep(TICK) };
        let mut fds =
            [link.client.as_raw_fd(), link.group.as_raw_fd()].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // A decision waits for this look.
        let tick = if self.judge.wants_look_now() { LOOK_TICK } else { TICK };
        // SAFETY: as many as there are, which nobody else uses meanwhile.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, tick.as_millis() as i32) };
    }

    // ---- the server -------------------------------------------------------------------------------------------------

    /// By threads of their own: a server that stands still holds nobody up.
    fn ask_server(&mut self) {
        while let Ok(told) = self.told.try_recv() {
            match told {
                Told::Look(look, begun_in) => {
                    (self.is_looking, self.looked) = (false, Some(Instant::now()));
                    self.starts += u64::from(self.look == Some(Look::Ended) && look != Look::Ended);
                    self.look = Some(look);
                    self.judge.handle_look(look, begun_in);
                    if !matches!(look, Look::Ended | Look::Down) && self.link.is_some() {
                        self.have_watched();
                    }
                }
                Told::Proof(committed) => {
                    if let Err(e) = &committed {
                        say(&format!("no write is known to be committed by both servers: {e:#}"));
                    }
                    self.judge.handle_proof(committed.is_ok());
                }
                Told::Disk(reader, starts, disk) => {
                    (self.disk, self.disk_read) = (Some(reader), Some(Instant::now()));
                    match disk {
                        Ok(_) if starts != self.starts => self.disk_read = None,
                        Ok(disk) => self.judge.handle_disk(disk),
                        Err(e) => self.tell_once(format!("the server's disk cannot be read: {e:#}")),
                    }
                }
                Told::Marked(reader, disk) => {
                    self.disk = Some(reader);
                    if let Err(e) = &disk {
                        self.tell_once(format!("the server's disk cannot be marked: {e:#}"));
                    }
                    self.judge.handle_marked(disk.ok());
                }
            }
        }
        let is_due = self.judge.wants_look_now() || self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
        if (self.judge.wants_looks() || !self.is_watched) && is_due && !self.is_looking {
            self.is_looking = true;
            let (tell, server, begun_in) = (self.tell.clone(), self.settings.server, self.judge.turn());
            std::thread::spawn(move || tell.send(Told::Look(server::look(server), begun_in)));
        }
    }

    /// By threads of their own, too: a disk that stands still holds nobody up.
    fn ask_disk(&mut self) {
        let to_read =
            self.disk_read.is_none_or(|at| at.elapsed() >= READ_EVERY || self.judge.wants_disk() && at.elapsed() >= TICK);
        let job = self.to_mark.take_if(|_| self.disk.is_some());
        if job.is_none() && !to_read {
            return;
        }
        let Some(mut reader) = self.disk.take() else { return };
        let (tell, starts) = (self.tell.clone(), self.starts);
        std::thread::spawn(move || match job {
            Some(expected) => {
                let marked = reader.mark(expected.as_ref());
                tell.send(Told::Marked(reader, marked))
            }
            None => {
                let read = reader.read();
                tell.send(Told::Disk(reader, starts, read))
            }
        });
    }

    /// What is missing on this disk, and what a person can do.
    fn tell_lost(&mut self) {
        if self.judge.missing().is_some() == self.is_lost {
            return;
        }
        self.is_lost = !self.is_lost;
        let course = self.judge.course();
        if self.is_lost && course.mode == crate::course::Mode::Alone(self.me.clone()) {
            say(&crate::lost_in_words(course, &self.me, &self.settings.group));
        } else if self.is_lost {
            say(
                "the server's disk is another one, or older, than the one that was in step: it may not serve alone before it has followed the other server",
            );
        } else {
            say("the server's disk is the one that was noted");
        }
    }

    fn act(&mut self) -> Result<()> {
        self.tell_lost();
        while let Some(action) = self.judge.poll_action() {
            match action {
                Action::Propose(entry) => {
                    let Some(link) = &mut self.link else { continue };
                    // What is not taken is proposed again in a moment.
                    if let Err(e) = link.group.propose(&entry.bytes()) {
                        say(&format!("cannot propose: {e}"));
                    }
                }
                Action::Oracle(says) => {
                    let path = &self.settings.oracle;
                    replace(path, &oracle_text(says, &boot_id()?))
                        .with_context(|| format!("cannot write the oracle {}", path.display()))?;
                    say(&format!("{} says {}", path.display(), u8::from(says)));
                }
                Action::Prove => {
                    let (tell, server) = (self.tell.clone(), self.settings.server);
                    std::thread::spawn(move || tell.send(Told::Proof(server::commit(server))));
                }
                Action::Mark(expected) => self.to_mark = Some(expected),
            }
        }
        Ok(())
    }

    // ---- the agent and the group ------------------------------------------------------------------------------------

    fn connect(&mut self) -> Result<()> {
        let client = Client::open(self.settings.socket.as_deref())?;
        let path = self.settings.socket.clone();
        let group = Group::open_with(&self.settings.group, group::Options { path, ..group::Options::default() })
            .with_context(|| format!("no group {} here (fide group create {0} --hosts …)", self.settings.group))?;
        self.link = Some(Link { client, group, member: 0 });
        (self.is_watched, self.watch_at) = (false, Instant::now());
        self.session += 1;
        self.entries = 0;
        self.judge.begin(self.session);
        self.monitor()?;
        if !self.has_warned && self.status().is_some_and(|group| group.stage == Stage::Running && group.written.is_none()) {
            self.has_warned = true;
            say(&format!(
                "the group {} is not durable: when all its agents end at once, it is forgotten which server served alone, and on which disk",
                self.settings.group
            ));
        }
        Ok(())
    }

    /// The server is watched under its name, also while this hook does not run, and also its next process. The first one must be there.
    fn have_watched(&mut self) {
        if self.is_watched || self.watch_at > Instant::now() {
            return;
        }
        self.watch_at = Instant::now() + WATCH_AGAIN;
        let selector = Selector::Port(self.settings.server.port());
        let watch = Request::Watch { name: self.settings.name.clone(), selector, user: None, containers: false };
        let asked = Connection::open(self.settings.socket.as_deref()).and_then(|connection| connection.request(&watch).map(drop));
        match asked {
            Ok(()) => self.is_watched = true,
            Err(Error::Refused(refused)) if refused.code == ErrorCode::Exists => self.is_watched = true,
            Err(e) => self.tell_once(format!("the agent cannot watch the server, so that its end would not be noticed: {e}")),
        }
        if self.is_watched {
            self.tell_once(String::new());
        }
    }

    fn peer(&self) -> String {
        format!("{}@{}", self.settings.name, self.settings.peer)
    }

    fn monitor(&mut self) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let server = link.client.monitor(&self.peer(), Resources::default())?;
        match server.end {
            Some((cause, code)) if server.state == Some(TargetState::Ended) && is_known_end(cause) => {
                self.judge.handle_peer(Some(format!("{} has ended: {} {code}", self.peer(), cause.name())));
            }
            _ => self.judge.handle_peer(None),
        }
        Ok(())
    }

    fn exchange(&mut self) -> Result<()> {
        while let Some(event) = self.link.as_ref().map(|link| link.client.poll(Some(Duration::ZERO))).transpose()?.flatten() {
            match event {
                Event::Failure(verdict) | Event::Confirmed(verdict) => self.verdict(&verdict),
                Event::Monitored(verdict) if verdict.subject.name == Some(self.peer().as_str().into()) => {
                    self.judge.handle_peer(None);
                }
                Event::Lost { .. } => self.monitor()?,
                Event::AgentGone => bail!("the agent hung up"),
                _ => {}
            }
        }
        loop {
            let Some(link) = &mut self.link else { return Ok(()) };
            match link.group.poll(Some(Duration::ZERO))? {
                Some(group::Event::Entry(entry)) => self.entry(&entry)?,
                Some(group::Event::Snapshot { bytes, .. }) => {
                    let course = Course::read(&bytes).with_context(|| {
                        format!(
                            "the state of the group {} is not one of this hook: nothing is decided here until the other hook hands \
                             in its own, or there is another group",
                            self.settings.group
                        )
                    })?;
                    self.judge.handle_snapshot(course);
                }
                Some(group::Event::Standing(standing)) if matches!(standing.stage, Stage::Gone | Stage::Failed | Stage::Left) => {
                    bail!("the group is {}", standing.stage.name());
                }
                Some(group::Event::Standing(standing)) if standing.me != 0 => {
                    // What a member decided that the others had given up may be lost, and entries of theirs lie in its place.
                    let before = std::mem::replace(&mut link.member, standing.me);
                    ensure!(
                        [0, standing.me].contains(&before),
                        "this host had been given up, and is a new member: all is read again"
                    );
                }
                // It is proposed again in a moment.
                Some(group::Event::Refused { why, .. }) => self.tell_once(format!("the agent takes no proposals: {why}")),
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    fn entry(&mut self, entry: &group::Entry) -> Result<()> {
        let Some(read) = Entry::read(&entry.bytes) else {
            if !std::mem::replace(&mut self.has_skipped, true) {
                say(&format!(
                    "entry {} of the group {}, of its client {}, is none of a hook: it is skipped, and so are others like it",
                    entry.index, self.settings.group, entry.client
                ));
            }
            return Ok(());
        };
        let (epoch, was_current) = (self.judge.course().epoch, self.judge.is_current());
        self.judge.handle_entry(&read);
        if !was_current && self.judge.is_current() {
            self.tell_once(String::new());
        }
        let course = self.judge.course();
        if course.epoch != epoch && self.judge.is_current() {
            say(&crate::in_words(course, &self.settings.group));
        }
        self.entries += 1;
        let is_asked_for = matches!(&read, Entry::Here { host, .. } if *host != self.me) && self.kept.elapsed() >= SNAPSHOT_AFTER;
        if (is_asked_for || self.entries.is_multiple_of(SNAPSHOT_EVERY))
            && let Some(link) = &mut self.link
        {
            self.kept = Instant::now();
            link.group.keep_snapshot(entry.index, &serde_json::to_vec(course)?)?;
        }
        // What was known of the other server may be of its former process.
        if self.judge.course().epoch != epoch {
            self.monitor()?;
        }
        Ok(())
    }

    fn verdict(&mut self, verdict: &Verdict) {
        if verdict.subject.name != Some(self.peer().as_str().into()) {
            return;
        }
        let id = verdict.id.map_or_else(String::new, |id| format!(", verdict {id}"));
        let (peer, cause) = (self.peer(), verdict.cause);
        if verdict.grade == Grade::Certain && is_known_end(cause) {
            self.judge.handle_peer(Some(format!("{peer}: {} {} (certain{id})", cause.name(), verdict.code)));
        } else if cause == Cause::SilentHost {
            // With a witness the group decides which side goes on; without one, only a fence makes the other side harmless.
            if self.is_fenced(verdict) {
                self.judge.handle_peer(Some(format!("{} is silent behind its fence{id}", self.settings.peer)));
            } else if self.has_witness() {
                self.judge.handle_peer(Some(format!("{} is silent, and the group goes on without it{id}", self.settings.peer)));
            } else {
                say(&format!(
                    "{} is silent{id}: nobody is let serve alone, because it has no fence and there is no witness",
                    self.settings.peer
                ));
            }
        }
    }

    /// The group, as the agent has it.
    fn status(&self) -> Option<GroupStatus> {
        let asked = Connection::open(self.settings.socket.as_deref())
            .and_then(|connection| connection.request(&Request::Group { order: GroupOrder::Status }));
        let Ok(Reply::Groups { groups }) = asked.map(|response| response.reply) else { return None };
        groups.into_iter().find(|group| group.name == self.settings.group)
    }

    /// A third host is a member of the group, and lives.
    fn has_witness(&self) -> bool {
        let is_third = |host: &str| host != self.me && host != self.settings.peer;
        self.status().is_some_and(|group| group.members.iter().any(|member| !member.crashed && is_third(&member.host)))
    }

    fn is_fenced(&self, verdict: &Verdict) -> bool {
        let (Some(link), Some(id)) = (&self.link, verdict.id) else { return false };
        let until = Instant::now() + EVIDENCE_MAX;
        loop {
            match link.client.explain(id) {
                Ok(event) => return event.is_fenced(),
                Err(_) if Instant::now() >= until => return false,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// Whether it says that the process itself has ended, and cannot act again.
fn is_known_end(cause: Cause) -> bool {
    matches!(cause, Cause::Exited | Cause::Killed | Cause::Doomed | Cause::OutOfMemory)
}

fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?.trim().to_owned())
}

/// The server reads the first character. The rest says since when: a host that boots, perhaps from another disk, does not go by what was said before.
fn oracle_text(says: bool, boot: &str) -> Vec<u8> {
    format!("{}\nboot {boot}\n", u8::from(says)).into_bytes()
}

/// What an oracle says, if it is of this boot, or written by hand.
fn oracle_of(bytes: &[u8], boot: &str) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let of_boot = text.lines().nth(1).and_then(|line| line.strip_prefix("boot "));
    bytes.first() == Some(&b'1') && of_boot.is_none_or(|of_boot| of_boot == boot)
}

fn begin_oracle(path: &Path) -> Result<Option<bool>> {
    let boot = boot_id()?;
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            replace(path, &oracle_text(false, &boot)).with_context(|| format!("cannot write the oracle {}", path.display()))?;
            say(&format!("{} says 0", path.display()));
            return Ok(Some(false));
        }
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
    };
    let says = oracle_of(&bytes, &boot);
    if !says && bytes.first() == Some(&b'1') {
        replace(path, &oracle_text(false, &boot)).with_context(|| format!("cannot write the oracle {}", path.display()))?;
        say(&format!("{} said 1 before this host booted, and says 0 until the group is known", path.display()));
    }
    Ok(Some(says))
}

/// Whole, or as it was, and on the disk: a host that comes back must not find what it said before.
pub fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    // The server has another account.
    file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oracle_of_a_former_boot_says_nothing() {
        assert!(oracle_of(&oracle_text(true, "a"), "a"));
        assert!(!oracle_of(&oracle_text(true, "a"), "b"), "another boot");
        assert!(!oracle_of(&oracle_text(false, "a"), "a"));
        assert!(oracle_of(b"1\n", "b"), "by hand");
        assert!(!oracle_of(b"", "b"));
    }
}
