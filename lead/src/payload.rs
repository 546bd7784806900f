//! COMMAND and its address on this host: started, watched, ended. A thread of its own does what
//! waits.

use crate::address::Address;
use crate::cgroup::Cgroup;
use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// How long what was killed may take before it is told that it does not end.
const KILLED_MAX: Duration = Duration::from_secs(5);

/// What is to run, and with what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The name under which it runs.
    pub name: String,
    /// COMMAND and its arguments; not empty.
    pub words: Vec<String>,
    /// What runs on the others; may be empty.
    pub on_follow: Vec<String>,
    /// An address that moves with it, with its prefix, and on which interface.
    pub address: Option<(String, String)>,
    /// How long COMMAND may take to end when it is asked to.
    pub stop_timeout: Duration,
}

/// What the thread is asked.
#[derive(Clone, Debug)]
pub enum Order {
    /// Start COMMAND in this term.
    Start(u64),
    /// End it, politely or not.
    Clear(u64, bool),
    /// Another host leads.
    Follow(u64, String),
}

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// COMMAND could not be started in this term, or its main process has ended.
    Ended(u64, String),
    /// Nothing of this term runs, and the address is off.
    Cleared(u64),
    /// Something an operator should know; empty: it is mended.
    Doubt(String),
}

/// The thread, as the others see it.
pub struct Payload {
    orders: Sender<Order>,
    said: Receiver<Said>,
    bell: PipeReader,
    wake: PipeWriter,
}

/// What a former life on this host has left, by name.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// This name is this process's on this host, which is that of the agent at `socket`.
    ///
    /// # Errors
    /// That another process has it.
    pub fn take(name: &str, socket: &Path) -> Result<Self, String> {
        // SAFETY: takes nothing and cannot fail.
        let user = unsafe { libc::geteuid() };
        let dir = match socket.parent().filter(|_| user == 0) {
            Some(dir) => dir.join("lead"),
            None => PathBuf::from(format!("/run/user/{user}/fide-lead")),
        };
        fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
        let path = dir.join(name);
        let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.map_err(|e| format!("cannot open {}: {e}", path.display()))?;
        // SAFETY: an open descriptor.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(format!("{name} runs on this host already ({} is locked)", path.display()));
        }
        Ok(Self { file, path })
    }

    /// The cgroup and the address that were written down last.
    fn kept(&mut self) -> Option<Kept> {
        let mut text = String::new();
        self.file.read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn keep(&mut self, kept: &Kept) -> io::Result<()> {
        // Into the file that is locked.
        use std::os::unix::fs::FileExt as _;
        let bytes = serde_json::to_vec(kept)?;
        self.file.set_len(0)?;
        self.file.write_all_at(&bytes, 0)
    }
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Kept {
    cgroup: PathBuf,
    #[serde(default)]
    address: Option<(String, String)>,
}

struct Worker {
    plan: Plan,
    cgroup: Cgroup,
    address: Option<Address>,
    orders: Receiver<Order>,
    woken: PipeReader,
    said: Sender<Said>,
    bell: PipeWriter,
    child: Option<(u64, Child, OwnedFd)>,
    follower: Option<Child>,
    _lock: Lock,
}

/// Ends what a former life of this name has left on this host.
fn clear_former(lock: &mut Lock) -> Result<(), String> {
    let Some(kept) = lock.kept() else { return Ok(()) };
    let cgroup = Cgroup::at(kept.cgroup);
    let failed = |e: io::Error| format!("what ran in {} cannot be ended: {e}", cgroup.dir().display());
    cgroup.kill().map_err(failed)?;
    while !cgroup.wait_empty(KILLED_MAX).map_err(failed)? {
        say!("warning: ", "what ran in {} was killed and does not end", cgroup.dir().display());
    }
    cgroup.remove();
    if let Some((ip, interface)) = kept.address {
        Address::new(&ip, &interface)?.drop()?;
    }
    Ok(())
}

impl Payload {
    /// Nothing of it runs on this host when this returns.
    ///
    /// # Errors
    /// What cannot be, and what to do.
    pub fn new(plan: Plan, mut lock: Lock) -> Result<Self, String> {
        clear_former(&mut lock)?;
        let cgroup = Cgroup::make(&format!("{}.{}", plan.name, std::process::id()))?;
        let mut address = plan.address.as_ref().map(|(ip, interface)| Address::new(ip, interface)).transpose()?;
        if let Some(address) = &mut address {
            address.drop()?;
        }
        let kept = Kept { cgroup: cgroup.dir().to_owned(), address: plan.address.clone() };
        lock.keep(&kept).map_err(|e| format!("cannot write {}: {e}", lock.path.display()))?;
        let (orders, from) = channel();
        let (to, said) = channel();
        let pipe = || io::pipe().map_err(|e| e.to_string());
        let ((bell, ring), (woken, wake)) = (pipe()?, pipe()?);
        let worker =
            Worker { plan, cgroup, address, orders: from, woken, said: to, bell: ring, child: None, follower: None, _lock: lock };
        let spawned = std::thread::Builder::new().name("payload".into()).spawn(move || worker.run());
        spawned.map_err(|e| e.to_string())?;
        Ok(Self { orders, said, bell, wake })
    }

    /// Asks for something.
    pub fn order(&mut self, order: Order) {
        // The thread ends with this process only.
        _ = self.orders.send(order);
        _ = self.wake.write_all(&[0]);
    }

    /// What it said since. After a readable descriptor, at least one.
    pub fn said(&mut self) -> Vec<Said> {
        let said: Vec<Said> = self.said.try_iter().collect();
        let mut rung = vec![0; said.len()];
        // One byte was written behind each.
        _ = self.bell.read_exact(&mut rung);
        said
    }
}

impl AsFd for Payload {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Readable once that process has ended.
fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: a system call with two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was opened just now and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

impl Worker {
    fn run(mut self) {
        loop {
            self.wait();
            if let Some((term, mut child, _)) =
                self.child.take_if(|(_, child, _)| matches!(child.try_wait(), Ok(Some(_)) | Err(_)))
            {
                let how = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
                // What it has left may still act.
                self.kill();
                self.say(Said::Ended(term, format!("COMMAND has ended ({how})")));
            }
            self.follower.take_if(|child| matches!(child.try_wait(), Ok(Some(_)) | Err(_)));
            loop {
                match self.orders.try_recv() {
                    Ok(order) => self.obey(order),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            if let Some(address) = &mut self.address {
                address.announce_again();
            }
        }
    }

    fn wait(&mut self) {
        let child = self.child.as_ref().map_or(-1, |(.., ended)| ended.as_raw_fd());
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = [poll(self.woken.as_raw_fd()), poll(child)];
        let due = self.address.as_ref().and_then(Address::timeout);
        let due = due.map_or(-1, |at| at.saturating_duration_since(Instant::now()).as_millis() as i32 + 1);
        // SAFETY: as many as there are; a negative one is passed over.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, due) };
        if polled[0].revents & libc::POLLIN != 0 {
            // One byte for each order; those of several are read at once.
            _ = self.woken.read(&mut [0; 64]);
        }
    }

    fn say(&mut self, said: Said) {
        _ = self.said.send(said);
        _ = self.bell.write_all(&[0]);
    }

    fn kill(&mut self) {
        if let Err(e) = self.cgroup.kill() {
            self.say(Said::Doubt(format!("what runs in {} cannot be killed: {e}", self.cgroup.dir().display())));
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Start(term) => {
                self.end_follower();
                if let Err(why) = self.start(term) {
                    self.kill();
                    self.say(Said::Ended(term, why));
                }
            }
            Order::Clear(term, politely) => self.clear(term, politely),
            Order::Follow(term, leader) => {
                self.end_follower();
                self.follow(term, &leader);
            }
        }
    }

    fn start(&mut self, term: u64) -> Result<(), String> {
        if let Some(address) = &mut self.address {
            address.take()?;
        }
        let join = self.cgroup.joined().map_err(|e| format!("{}: {e}", self.cgroup.dir().display()))?;
        let mut command = self.command(&self.plan.words, term, "")?;
        // SAFETY: what runs in the child before it is COMMAND are two system calls on integers and
        // one on a descriptor that was opened before.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::write(join.as_raw_fd(), c"0".as_ptr().cast(), 1) != 1 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().map_err(|e| format!("cannot run {}: {e}", self.plan.words[0]))?;
        let ended = pidfd(child.id()).map_err(|e| format!("cannot wait for {}: {e}", self.plan.words[0]))?;
        self.child = Some((term, child, ended));
        Ok(())
    }

    fn command(&self, words: &[String], term: u64, leader: &str) -> Result<Command, String> {
        let (program, arguments) = words.split_first().ok_or("no command is named")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).env("FIDE_NAME", &self.plan.name).env("FIDE_TERM", term.to_string());
        command.env("FIDE_LEADER", leader).process_group(0);
        Ok(command)
    }

    fn follow(&mut self, term: u64, leader: &str) {
        if self.plan.on_follow.is_empty() {
            return;
        }
        match self.command(&self.plan.on_follow, term, leader).and_then(|mut c| c.spawn().map_err(|e| e.to_string())) {
            Ok(child) => self.follower = Some(child),
            Err(why) => self.say(Said::Doubt(format!("cannot run {}: {why}", self.plan.on_follow[0]))),
        }
    }

    /// One at a time, and none beside COMMAND.
    fn end_follower(&mut self) {
        if let Some(mut child) = self.follower.take() {
            // SAFETY: a process group of its own, which this process has made and not waited for.
            unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
            _ = child.wait();
        }
    }

    fn clear(&mut self, term: u64, politely: bool) {
        if politely && let Some((_, child, _)) = &self.child {
            // SAFETY: a child that was not waited for.
            unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
            _ = self.cgroup.wait_empty(self.plan.stop_timeout);
        }
        loop {
            self.kill();
            // The main process is there until somebody has waited for it.
            if let Some((_, child, _)) = &mut self.child {
                _ = child.try_wait();
            }
            match self.cgroup.wait_empty(KILLED_MAX) {
                Ok(true) => break,
                Ok(false) => {
                    self.say(Said::Doubt(format!("what runs in {} was killed and does not end", self.cgroup.dir().display())))
                }
                Err(e) => {
                    self.say(Said::Doubt(format!(
                        "whether anything runs in {} cannot be seen: {e}",
                        self.cgroup.dir().display()
                    )));
                    std::thread::sleep(KILLED_MAX);
                }
            }
        }
        if let Some((_, mut child, _)) = self.child.take() {
            _ = child.wait();
        }
        while let Some(Err(why)) = self.address.as_mut().map(Address::drop) {
            self.say(Said::Doubt(why));
            std::thread::sleep(KILLED_MAX);
        }
        self.say(Said::Doubt(String::new()));
        self.say(Said::Cleared(term));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end_follower();
        self.cgroup.remove();
    }
}

/// Whether a program is there, as a shell would look for it.
#[must_use]
pub fn is_program(word: &str) -> bool {
    let is_file = |path: &Path| path.is_file();
    if word.contains('/') {
        return is_file(Path::new(word));
    }
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| is_file(&dir.join(word))))
}
