//! An agent that answers from a script: a SOCK_SEQPACKET socket that speaks the control protocol, and nothing behind it.

use fide_wire::control::{
    CheckOutcome, Checked, CheckedPeer, FenceStatus, GroupOrder, HistoryEvent, PROTOCOL, Refused, Reloaded, Reply, Request,
    Status,
};
use fide_wire::verdict::UniqueId;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

/// A fake agent and its socket's directory; both end with it.
pub struct FakeAgent {
    directory: tempfile::TempDir,
    /// What it was asked, without the greetings.
    pub asked: Arc<Mutex<Vec<Request>>>,
}

/// What it knows.
#[derive(Clone, Default)]
pub struct Knowledge {
    pub status: Status,
    pub events: Vec<HistoryEvent>,
    /// Sent after the kept ones to those who follow; then it hangs up.
    pub later: Vec<HistoryEvent>,
    /// Refuses everything but greetings and questions for the status with this.
    pub refuse: Option<Refused>,
    /// The reply to `Watch`.
    pub watched: Option<(u32, u32)>,
    /// Replies to orders about the fence, one after the other; then that of `status`.
    pub fences: Arc<Mutex<VecDeque<FenceStatus>>>,
}

impl FakeAgent {
    pub fn start(knowledge: Knowledge) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = listen(&directory.path().join("fided.sock")).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            while let Ok(connection) = accept(&listener) {
                let (knowledge, log) = (knowledge.clone(), Arc::clone(&log));
                std::thread::spawn(move || serve(&connection, &knowledge, &log));
            }
        });
        FakeAgent { directory, asked }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("fided.sock")
    }

    /// Runs `fide` against it.
    pub fn fide(&self, line: &[&str]) -> Output {
        fide(&self.socket(), line)
    }
}

/// Runs `fide` with that socket, and nothing of this environment that changes what it prints.
pub fn fide(socket: &Path, line: &[&str]) -> Output {
    command(socket, line).output().unwrap()
}

pub fn command(socket: &Path, line: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fide"));
    command.args(line).env("FIDE_SOCKET", socket).env("TZ", "UTC").env_remove("NO_COLOR").env_remove("FIDE_LAB");
    command
}

fn serve(connection: &OwnedFd, knowledge: &Knowledge, log: &Mutex<Vec<Request>>) {
    let mut buffer = vec![0; 128 * 1024];
    loop {
        // SAFETY: the buffer is valid for its length.
        let n = unsafe { libc::recv(connection.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if n <= 0 {
            return;
        }
        let request: Request = serde_json::from_slice(&buffer[..n as usize]).unwrap();
        if !matches!(request, Request::Hello { .. }) {
            log.lock().unwrap().push(request.clone());
        }
        let follows = matches!(request, Request::Events { follow: true, .. });
        for reply in answer(request, knowledge) {
            let bytes = serde_json::to_vec(&reply).unwrap();
            // SAFETY: as above.
            let sent = unsafe { libc::send(connection.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
            if sent < 0 {
                return;
            }
        }
        if follows {
            return;
        }
    }
}

fn answer(request: Request, k: &Knowledge) -> Vec<Reply> {
    match (request, &k.refuse) {
        (Request::Hello { .. }, _) => vec![Reply::Hello {
            protocol: PROTOCOL,
            node: k.status.node.clone(),
            node_id: k.status.node_id,
            cluster: k.status.cluster.clone(),
            version: k.status.version.clone(),
            zone: String::new(),
        }],
        (Request::Status, _) => vec![Reply::Status(Box::new(k.status.clone()))],
        (Request::Events { from, last, follow }, None) => {
            let mut kept: Vec<_> = k.events.iter().filter(|e| e.seq >= from).cloned().collect();
            if last > 0 {
                kept.drain(..kept.len().saturating_sub(last as usize));
            }
            let kept = kept.into_iter().map(|e| Reply::Event(Box::new(e)));
            let end = Reply::EventsEnd { next: k.events.len() as u64 + 1 };
            let later = k.later.iter().filter(|_| follow).map(|e| Reply::Event(Box::new(e.clone())));
            kept.chain([end]).chain(later).collect()
        }
        (Request::Maintenance { .. }, None) => vec![Reply::Maintenance { maintenances: k.status.maintenance.clone() }],
        (Request::Fence { .. }, None) if k.status.fence.is_some() => {
            let next = k.fences.lock().unwrap().pop_front();
            vec![Reply::Fence(Box::new(next.or_else(|| k.status.fence.clone()).unwrap()))]
        }
        (Request::Explain { id, incarnation: Some(i) }, None) => {
            let wanted = Some(UniqueId { id, incarnation: i });
            let found = k.events.iter().find(|e| e.unique_id() == wanted).expect("a verdict that the test asks for");
            vec![Reply::Explained(Box::new(found.clone()))]
        }
        (Request::Explain { id, incarnation: None }, None) => match k.events.iter().find(|e| e.id == Some(id)) {
            Some(event) if k.events.iter().any(|e| e.id == Some(id) && e.incarnation != event.incarnation) => {
                vec![Reply::Error(Refused {
                    code: fide_wire::control::ErrorCode::Ambiguous,
                    what: "2 lives of h2 used it: event 3, event 4".into(),
                })]
            }
            Some(event) => vec![Reply::Explained(Box::new(event.clone()))],
            None => vec![Reply::Error(Refused {
                code: fide_wire::control::ErrorCode::NotFound,
                what: format!("no verdict {id} in the history"),
            })],
        },
        (Request::Check { peer, .. }, None) => {
            let host = peer.split('@').nth(1).unwrap_or_default();
            let peer = k.status.hosts.iter().find(|h| h.name == host).map(|h| CheckedPeer {
                host: h.name.clone(),
                host_state: h.state.clone(),
                app_state: if peer.starts_with('@') { String::new() } else { "unknown".into() },
                ..CheckedPeer::default()
            });
            vec![Reply::Checked(Box::new(Checked {
                outcome: CheckOutcome::Drained,
                drained_ns: 1,
                lost_ns: 0,
                why: String::new(),
                peer,
            }))]
        }
        (Request::Group { order: GroupOrder::Status }, None) => vec![Reply::Groups { groups: Vec::new() }],
        (Request::Reload, None) => {
            let reloaded = Reloaded { changed: vec!["hook".into()], needs_restart: vec!["port".into()], ..Reloaded::default() };
            vec![Reply::Reloaded(Box::new(reloaded))]
        }
        (Request::Watch { .. }, None) => {
            let (pid, app) = k.watched.unwrap_or((1, 1));
            vec![Reply::Watched { pid, app }]
        }
        (_, None) => vec![Reply::Done],
        (_, Some(refused)) => vec![Reply::Error(refused.clone())],
    }
}

fn own(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let socket = own(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as _;
    for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
        *to = *from as _;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address lives through the call and its size is given.
    let rc = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no pointers.
    if unsafe { libc::listen(socket.as_raw_fd(), 8) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: null pointers: the peer's address is not wanted.
    own(unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) })
}
