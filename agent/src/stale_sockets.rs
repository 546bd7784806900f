//! What a closed gate holds back, and its end before the gate opens.
//!
//! TCP keeps what it could not send and tries again: also of a process that was killed, whose connection the kernel closes on its behalf (FIN-WAIT-1). When the
//! gate opens for the next instance, those old bytes would leave beside the new ones, as if they were meant now. So before it opens, such connections are ended as
//! `ss -K` does it, by SOCK_DESTROY (sock_diag(7)): their queues are dropped; a process that holds one gets ECONNABORTED; the reset that
//! the kernel sends is of the same cgroup, so the closed gate blocks it.
//!
//! What is ended (`Connection::holds`): a connection with bytes, or its FIN, that were not acknowledged. What is not: listening sockets and
//! connections that nobody has accepted yet (nobody has written to them), connections whose other end has everything (there is nothing old in them), a
//! SYN under way that carries no data. UDP and raw sockets keep nothing: to them the gate says EPERM.
//!
//! Only sockets of one network namespace are seen at a time: see [`end`]. MPTCP and SCTP are not looked after.

use crate::sock_diag::{
    CLOSE_WAIT, CLOSING, Connection, Diag, ESTABLISHED, FIN_WAIT1, IPV4, IPV6, LAST_ACK, PATIENCE_ALL, SYN_RECV, SYN_SENT,
    inside, other_namespace,
};
use fide_xdp::fence::{Fence, Gate};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

/// Which sockets are meant.
#[derive(Clone, Copy, Debug)]
pub enum Made<'a> {
    /// Those that were made in the cgroups of these ids.
    In(&'a BTreeSet<u64>),
    /// All of the network namespace.
    Anywhere,
}

/// Whose connections are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Those that no process holds any more.
    Nobodys,
    /// Those of living processes, too.
    Anybodys,
}

/// Why something may still be held back.
#[derive(Debug, thiserror::Error)]
pub enum HeldBack {
    /// The network namespace of the process cannot be entered.
    #[error(
        "the connections of its network namespace cannot be seen from the agent's ({0}): give the agent CAP_SYS_ADMIN, or run the process in the host's namespace"
    )]
    Elsewhere(io::Error),
    /// Sockets cannot be listed.
    #[error("the kernel does not list TCP sockets ({0}): it needs CONFIG_INET_TCP_DIAG (`modprobe tcp_diag`)")]
    NotListed(io::Error),
    /// The kernel does not say of which cgroup a socket is.
    #[error("the kernel does not say in which cgroup a socket was made: that needs Linux 5.8 or later")]
    NoCgroups,
    /// They are known, and stay.
    #[error("{left} TCP connections keep bytes from before, and {}", ended_not(.why))]
    NotEnded {
        /// How many.
        left: usize,
        /// Why.
        why: io::Error,
    },
}

fn ended_not(why: &io::Error) -> String {
    match why.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            "this kernel cannot end them (it was built without CONFIG_INET_DIAG_DESTROY): end the processes \
             that hold them and wait until `ss -tnp` shows them no more, some minutes; or begin in a cgroup of its own"
                .into()
        }
        Some(libc::EPERM) => "the agent may not end them: it needs CAP_NET_ADMIN".into(),
        _ => format!("could not be ended: {why}"),
    }
}

/// The states in which something may wait to be acknowledged.
const STATES: [u8; 7] = [ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, CLOSE_WAIT, LAST_ACK, CLOSING];

/// Whether something of a connection would leave that was written before.
fn holds(c: &Connection, whose: Whose) -> bool {
    let old = match c.state {
        SYN_SENT | SYN_RECV => c.waiting > 1, // with data (TCP Fast Open)
        state => STATES.contains(&state) && c.waiting > 0,
    };
    old && (whose == Whose::Anybodys || c.inode == 0)
}

/// The connections of this namespace that hold something back.
fn holding(diag: &Diag, made: Made<'_>, whose: Whose) -> Result<Vec<Connection>, HeldBack> {
    let states = STATES.iter().fold(0, |all, state| all | 1 << state);
    let mut found = Vec::new();
    for family in [IPV4, IPV6] {
        let hear = |heard: Vec<Connection>| found.extend(heard.into_iter().filter(|c| holds(c, whose)));
        diag.list(family, states, 0, hear).map_err(HeldBack::NotListed)?;
    }
    if let Made::In(cgroups) = made {
        if found.iter().any(|c| c.cgroup.is_none()) {
            return Err(HeldBack::NoCgroups);
        }
        found.retain(|c| c.cgroup.is_some_and(|id| cgroups.contains(&id)));
    }
    Ok(found)
}

/// Ends them, and those found meanwhile.
fn end_in(diag: &Diag, made: Made<'_>, whose: Whose) -> Result<usize, HeldBack> {
    let (mut ended, until) = (BTreeSet::new(), Instant::now() + PATIENCE_ALL);
    loop {
        // Older kernels drop the queue of a connection that nobody holds and leave the rest to its
        // timer: once is enough.
        let mut found = holding(diag, made, whose)?;
        found.retain(|c| !ended.contains(&c.id));
        if found.is_empty() {
            return Ok(ended.len());
        }
        for (at, c) in found.iter().enumerate() {
            if Instant::now() > until {
                return Err(HeldBack::NotEnded { left: found.len() - at, why: io::ErrorKind::TimedOut.into() });
            }
            // Gone meanwhile is as good.
            diag.end(c).map_err(|why| HeldBack::NotEnded { left: found.len() - at, why })?;
            ended.insert(c.id);
        }
    }
}

/// Ends the connections that hold something back, in the network namespace of the calling thread and in that of process `of`, where it is another one. Says how many.
///
/// # Errors
/// [`HeldBack`]: what may still be there, why, and what to do.
pub fn end(made: Made<'_>, whose: Whose, of: Option<u32>) -> Result<usize, HeldBack> {
    let here = end_in(&Diag::open().map_err(HeldBack::NotListed)?, made, whose)?;
    let there = match of.and_then(|pid| other_namespace(pid).transpose()) {
        None => 0,
        Some(namespace) => end_in(&namespace.and_then(|n| inside(&n)).map_err(HeldBack::Elsewhere)?, made, whose)?,
    };
    Ok(here + there)
}

/// The ids of a cgroup (of version 2, by its directory) and of all below it.
pub fn cgroups_within(dir: &Path, into: &mut BTreeSet<u64>) {
    let Ok(own) = fs::metadata(dir) else { return }; // gone: nothing is made there any more
    into.insert(own.ino());
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for below in fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
            into.insert(below.ino());
            todo.push(below.path());
        }
    }
}

/// Cgroups remembered of one gate that are gone. Those that are there cost a walk through them every half second.
const GONE_MAX: usize = 4096;

/// The cgroups whose sockets are behind a gate: its own, those below it, and those that were below it when somebody looked and are gone since (service managers
/// remove the cgroup of what has ended, and its connections stay). The fence keeps them beside the gate, so the next agent knows them, too.
#[derive(Debug, Default)]
pub struct Within {
    ids: BTreeSet<u64>,
    /// That the fence cannot keep more of them was told.
    told: bool,
}

impl Within {
    /// What is known of a gate that was found or made just now.
    #[must_use]
    pub fn of(fence: &Fence, gate: &Gate) -> Self {
        Self { ids: fence.below(gate), told: false }
    }

    /// Their ids.
    #[must_use]
    pub fn ids(&self) -> &BTreeSet<u64> {
        &self.ids
    }

    /// Looks which there are now, in the directory of the gate's cgroup.
    pub fn look(&mut self, dir: &Path, fence: &Fence, gate: &Gate) {
        let mut found = BTreeSet::new();
        cgroups_within(dir, &mut found);
        for id in found.iter().copied().filter(|id| Some(*id) != gate.cgroup() && !self.ids.contains(id)) {
            match fence.note_below(gate, id) {
                Err(e) if !std::mem::replace(&mut self.told, true) => {
                    tracing::warn!("cgroups below {} are forgotten with this agent's life, {id} and others: {e}", dir.display());
                }
                _ => {}
            }
        }
        self.ids.extend(&found);
        let own = gate.cgroup();
        for id in forgotten(&self.ids, &found, GONE_MAX).into_iter().filter(|id| Some(*id) != own) {
            self.ids.remove(&id);
            fence.forget(gate, id);
        }
    }
}

/// Of those known, which to forget so that at most so many are kept that are not there: ids grow, so those that went first.
fn forgotten(known: &BTreeSet<u64>, found: &BTreeSet<u64>, most: usize) -> Vec<u64> {
    let gone: Vec<u64> = known.difference(found).copied().collect();
    gone[..gone.len().saturating_sub(most)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::namespace;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    /// A connection of which this is true, in the calling thread's namespace.
    fn state_of(port: u16) -> Vec<(u8, u32, u32)> {
        let mut found = Vec::new();
        Diag::open().unwrap().list(IPV4, u32::MAX, port, |heard| found.extend(heard)).unwrap();
        found.into_iter().map(|c: Connection| (c.state, c.waiting, c.inode)).collect()
    }

    /// Writes until nothing more goes in: the other end does not read.
    fn fill(stream: &mut TcpStream) {
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[7; 65536]).is_ok() {}
    }

    fn port(stream: &TcpStream) -> u16 {
        stream.local_addr().unwrap().port()
    }

    /// All that comes, and how it ends.
    fn read_all(mut stream: TcpStream) -> io::Result<usize> {
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60)))?;
        stream.read_to_end(&mut Vec::new())
    }

    #[test]
    fn what_holds_bytes_back_is_ended_and_nothing_else() {
        namespace::inside(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            let pair = || (TcpStream::connect(to).unwrap(), listener.accept().unwrap().0);
            let (mut idle, mut idle_end) = pair();
            let (mut full, _full_end) = pair();
            let (mut left, left_end) = pair();
            let waits = TcpStream::connect(to).unwrap(); // and is not accepted
            fill(&mut full);
            fill(&mut left);
            let (full_port, left_port) = (port(&full), port(&left));
            drop(left);
            // The kernel may end it a moment later.
            let patience = Instant::now() + Duration::from_secs(60);
            while !matches!(state_of(left_port)[..], [(FIN_WAIT1, 1.., 0)]) && Instant::now() < patience {
                // Sleep: interval of the poll.
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(matches!(state_of(left_port)[..], [(FIN_WAIT1, 1.., 0)]), "{:?}", state_of(left_port));

            // Of a dead process only what nobody holds any more.
            assert_eq!(end(Made::Anywhere, Whose::Nobodys, None).unwrap(), 1);
            assert_eq!(state_of(left_port), []);
            assert_eq!(read_all(left_end).unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(matches!(state_of(full_port)[..], [(ESTABLISHED, 1.., 1..)]));
            // A process with a namespace of its own, in which there is none.
            let sleep = || std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            let mut elsewhere = namespace::inside(sleep).unwrap();
            let in_its_own = end(Made::Anywhere, Whose::Nobodys, Some(elsewhere.id()));
            elsewhere.kill().unwrap();
            elsewhere.wait().unwrap();
            assert_eq!(in_its_own.unwrap(), 0);

            // Before a gate opens, what living ones have written too.
            let others = BTreeSet::from([u64::MAX]);
            assert_eq!(end(Made::In(&others), Whose::Anybodys, None).unwrap(), 0, "made in another cgroup");
            assert_eq!(end(Made::Anywhere, Whose::Anybodys, None).unwrap(), 1);
            assert_eq!(full.write(b"new").unwrap_err().kind(), ErrorKind::ConnectionAborted);

            // The rest is as it was.
            idle.write_all(b"new").unwrap();
            let mut heard = [0; 3];
            idle_end.read_exact(&mut heard).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            accepted.write_all(b"new").unwrap();
            (&waits).read_exact(&mut heard).unwrap();
            assert_eq!(heard, *b"new");
        });
    }

    #[test]
    fn the_namespace_of_the_process_that_asks_is_looked_at_too() {
        namespace::inside(|| {
            let (listener, mut sleeper) = (
                TcpListener::bind("127.0.0.1:0").unwrap(),
                std::process::Command::new("sleep").arg("1000").spawn().unwrap(), // here
            );
            let mut left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            fill(&mut left);
            let port = port(&left);
            drop(left);
            let pid = sleeper.id();
            let from_outside = namespace::inside(|| {
                assert_eq!(end(Made::Anywhere, Whose::Nobodys, None).unwrap(), 0);
                end(Made::Anywhere, Whose::Nobodys, Some(pid)).unwrap()
            });
            sleeper.kill().unwrap();
            sleeper.wait().unwrap();
            assert_eq!((from_outside, state_of(port)), (Some(1), Vec::new()));
        });
    }

    #[test]
    fn what_was_written_and_not_acknowledged_is_held() {
        let held = |state, waiting, inode, whose| {
            let connection = Connection { family: 2, state, id: [0; 48], waiting, uid: 0, inode, cgroup: None };
            holds(&connection, whose)
        };
        assert!(held(FIN_WAIT1, 77, 0, Whose::Nobodys));
        assert!(!held(SYN_SENT, 1, 5, Whose::Anybodys), "it carries nothing");
        assert!(held(SYN_SENT, 9, 5, Whose::Anybodys));
        assert!(!held(10, 128, 5, Whose::Anybodys), "LISTEN: its queue is another one");
        assert!(!held(ESTABLISHED, 9, 5, Whose::Nobodys) && held(ESTABLISHED, 9, 5, Whose::Anybodys));
        assert!(!held(ESTABLISHED, 0, 0, Whose::Anybodys), "not accepted yet");
    }

    #[test]
    fn however_many_cgroups_there_are_those_that_went_are_remembered() {
        let found: BTreeSet<u64> = (100..20_000).collect();
        let known: BTreeSet<u64> = (1..20_000).collect();
        assert!(forgotten(&known, &found, 99).is_empty());
        assert_eq!(forgotten(&known, &found, 97), [1, 2]);
    }

    #[test]
    fn a_kernel_that_cannot_is_told_with_what_to_do() {
        let text = |errno| HeldBack::NotEnded { left: 3, why: io::Error::from_raw_os_error(errno) }.to_string();
        let said = text(libc::EOPNOTSUPP);
        assert!(said.starts_with("3 TCP connections") && said.contains("CONFIG_INET_DIAG_DESTROY") && said.contains("ss -tnp"));
        assert!(text(libc::EPERM).contains("CAP_NET_ADMIN"));
    }
}
