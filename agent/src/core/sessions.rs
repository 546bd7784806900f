//! Applications that have groups open: what they propose is read, and what was decided is written.
//!
//! ```text
//! socket ─► FairQueue (users in turn) ─► propose, ask, snapshot ─► Groups
//! Groups ─► who has news ─► FairQueue (users in turn) ─► entries, standing, fates ─► socket
//! ```
//!
//! # Bounds
//! The thread that sends heartbeats does this, so one loop iteration spends at most [`READ_NS`] and
//! [`WRITE_NS`] on it, plus one turn of one session (64 KiB or 256 messages). What is left waits for
//! the next iteration. An iteration that needed all of that is followed by a rest, in which the
//! thread sleeps unless something else is due: real-time threads that never sleep are stopped by the
//! kernel, for 50 ms of every second at once, in favour of ordinary ones. Users take turns, and so do the sessions of a user: a
//! user who opens many sessions waits for them, and nobody else does. A socket that is full is not
//! tried again before the kernel says that it has room; one whose other end is closed is dropped at
//! the first write that says so, by the control thread.

use super::{Core, Happened};
use crate::access::{GroupPolicy, GroupRight, GroupRights, Peer, lacks_group_right};
use crate::client_ids::ClientIds;
use crate::clock::now_ns;
use crate::fair::FairQueue;
use crate::seqpacket::{self, Received, Unsent};
use crate::subscribers::seqpacket_pair;
use fide_proto::group::MemberId;
use fide_proto::services::groups::large::Builder;
use fide_proto::services::groups::{Error, Groups, Question, Stage};
use fide_wire::control::{ErrorCode, Refused};
use fide_wire::session::{self, Bundle, Piece, ToAgent, ToClient, Why};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// How long a loop iteration reads applications, and how long it writes to them.
const READ_NS: u64 = 100_000;
const WRITE_NS: u64 = 100_000;
/// Behind an iteration whose part for groups took so long, applications wait for half as long, and no longer than this.
const REST_FROM_NS: u64 = 100_000;
const REST_MAX_NS: u64 = 1_000_000;
/// What is read from one session, or written to it, before it is the next one's turn.
const BYTES_AT_ONCE: usize = 64 << 10;
const DATAGRAMS_AT_ONCE: usize = 64;
const ENTRIES_AT_ONCE: usize = 256;
/// Sessions that end in one loop iteration: each takes some system calls.
const ENDS_AT_ONCE: usize = 8;
/// Proposals of one application that were not taken and that it has not been told.
const REFUSED_MAX: usize = 1024;
/// Questions of one application that wait for their answers.
const ASKED_MAX: usize = 1024;
/// Sessions of one host, of its ordinary users together, and of one of these.
const SESSIONS_MAX: usize = 256;
const SESSIONS_OF_USERS: usize = 240;
const SESSIONS_OF_USER: usize = 128;
/// Bytes of states that are being handed in: by all, by ordinary users together, and by one of these.
const TAKEN_MAX: u64 = 256 << 20;
const TAKEN_OF_USERS: u64 = 192 << 20;
const TAKEN_OF_USER: u64 = 128 << 20;
/// A state that comes more slowly than this, but for so long (ns), is given up, and its session ends.
const TAKEN_BYTES_A_SECOND: u64 = 1 << 20;
const HALF_SENT_NS: u64 = 10_000_000_000;
/// Root's sessions have a reserve.
const ROOT: u32 = 0;

/// How an application opens a group.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Entries that it has read.
    pub behind: u64,
    /// Which group of that name it goes on in; 0: any.
    pub generation: u64,
    /// It reads bundles.
    pub bundles: bool,
    /// What the user may do that opens it.
    pub rights: GroupRights,
}

/// One application that has a group open.
struct Session {
    fd: OwnedFd,
    /// The user under whom it is counted.
    account: u32,
    name: String,
    client: u64,
    /// Its number before those that it may propose: as it said, then as its entries were written to it.
    last_number: u64,
    /// Which group of that name, once that is known.
    generation: u64,
    /// The last entry that was written to it.
    index: u64,
    /// The place in the snapshot that is being written to it: last entry, bytes written.
    snapshot: Option<(u64, u64)>,
    /// A snapshot of the application that has not come whole.
    taken: Option<Taken>,
    told: Option<session::Standing>,
    /// The members that it was told of, as ids.
    members: Vec<u8>,
    /// The member through which it proposed last, and its last number there.
    proposed: (Option<MemberId>, u64),
    /// What became of these proposals, it wants to know once it has all entries: client, number.
    asked: VecDeque<Question>,
    /// It reads bundles.
    bundles: bool,
    /// Who has opened it, and what that user could do then.
    peer: Box<Peer>,
    rights: GroupRights,
    /// Proposals that were not taken, which it has not been told: it would wait for them for ever.
    refused: VecDeque<(u64, Why, String)>,
    /// It waits for its turn to be read, or to be written to.
    is_readable: bool,
    is_writable: bool,
    /// Its socket was full: it is not written to before the kernel says that there is room.
    is_full: bool,
    /// Its other end reads no more.
    is_deaf: bool,
    is_gone: bool,
}

/// A state that an application hands in.
struct Taken {
    /// Its last entry.
    index: u64,
    bytes: Builder,
    /// When its first piece came.
    since_ns: u64,
}

impl Taken {
    /// When it is given up: one piece now and then does not keep its room.
    fn until_ns(&self) -> u64 {
        let at_pace_ns = self.bytes.len().saturating_mul(1_000_000_000 / TAKEN_BYTES_A_SECOND);
        self.since_ns.saturating_add(HALF_SENT_NS).saturating_add(at_pace_ns)
    }
}

/// What became of one turn of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// There is nothing more to do.
    Done,
    /// There is more.
    More,
}

/// What is the same for all applications of a group, as of now.
#[derive(Default)]
struct View {
    name: String,
    /// Its [`session::Standing::last_number`] is each client's own.
    standing: Option<session::Standing>,
    /// The members that live, as ids.
    members: Vec<u8>,
}

/// What is left of a session that has ended: to be dropped by a thread that has time, since each of these can be large.
#[derive(Debug)]
pub struct Ended {
    _socket: Option<OwnedFd>,
    _taken: Option<Builder>,
}

/// All applications of this host that have groups open.
pub(super) struct Sessions {
    all: Vec<Session>,
    /// Whose the client ids of each group are.
    clients: BTreeMap<String, ClientIds>,
    to_read: FairQueue<u32, RawFd>,
    to_write: FairQueue<u32, RawFd>,
    buffer: Vec<u8>,
    out: Vec<u8>,
    bundle: Bundle,
    view: View,
    /// Nobody is read or written to before.
    rest_until_ns: u64,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            clients: BTreeMap::new(),
            // Each session stands in each of them once at most, and in none when it has ended.
            to_read: FairQueue::new(SESSIONS_MAX),
            to_write: FairQueue::new(SESSIONS_MAX),
            buffer: vec![0; session::MESSAGE_MAX],
            out: Vec::new(),
            bundle: Bundle::default(),
            view: View::default(),
            rest_until_ns: 0,
        }
    }
}

impl Sessions {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many have this group open.
    pub(super) fn of(&self, name: &str) -> usize {
        self.all.iter().filter(|session| session.name == name).count()
    }

    /// Whether somebody's turn is still to come.
    pub(super) fn has_work(&self) -> bool {
        !self.to_read.is_empty() || !self.to_write.is_empty() || self.all.iter().any(|session| session.is_gone)
    }

    /// How long applications still wait.
    pub(super) fn rest_ns(&self, now: u64) -> u64 {
        if self.all.is_empty() { 0 } else { self.rest_until_ns.saturating_sub(now) }
    }

    /// Groups, and those that have them open, took from then until now.
    pub(super) fn note_spent(&mut self, since: u64, now: u64) {
        let spent_ns = now.saturating_sub(since);
        if spent_ns >= REST_FROM_NS {
            self.rest_until_ns = now.saturating_add((spent_ns / 2).min(REST_MAX_NS));
        }
    }

    fn position(&self, fd: RawFd) -> Option<usize> {
        self.all.iter().position(|session| session.fd.as_raw_fd() == fd)
    }

    /// Ends those of a group that have read so many entries, and gives their clients.
    pub(super) fn end_those_that_read(&mut self, name: &str, index: u64) -> Vec<u64> {
        let concerned = self.all.iter_mut().filter(|session| session.name == name && session.index >= index);
        concerned
            .map(|session| {
                session.is_gone = true;
                session.client
            })
            .collect()
    }

    /// Why a user opens no group now.
    fn is_full(&self, account: u32) -> Option<String> {
        let of_users = self.all.iter().filter(|session| session.account != ROOT).count();
        let of_user = self.all.iter().filter(|session| session.account == account).count();
        if self.all.len() >= SESSIONS_MAX {
            Some(format!("{SESSIONS_MAX} sessions of groups are open on this host, and it takes no more: close some"))
        } else if account != ROOT && of_user >= SESSIONS_OF_USER {
            Some(format!(
                "user {account} has {SESSIONS_OF_USER} sessions of groups open on this host, and no user may have more: close some"
            ))
        } else if account != ROOT && of_users >= SESSIONS_OF_USERS {
            Some(format!(
                "{SESSIONS_OF_USERS} sessions of groups are open on this host, and the rest is kept for root: close some"
            ))
        } else {
            None
        }
    }

    /// Where more is handed in at a time than may be: the session with the most bytes of the user with the most.
    fn takes_too_much(&self) -> Option<usize> {
        let mut of_user: BTreeMap<u32, u64> = BTreeMap::new();
        for (session, taken) in self.all.iter().filter_map(|session| Some((session, session.taken.as_ref()?))) {
            *of_user.entry(session.account).or_default() += taken.bytes.len();
        }
        let most = |of_users: bool| of_user.iter().filter(|(of, _)| !of_users || **of != ROOT).max_by_key(|(_, bytes)| **bytes);
        let sum =
            |of_users: bool| of_user.iter().filter(|(of, _)| !of_users || **of != ROOT).map(|(_, bytes)| bytes).sum::<u64>();
        let is_over = most(true).is_some_and(|(_, bytes)| *bytes > TAKEN_OF_USER) || sum(true) > TAKEN_OF_USERS;
        let (account, _) = if is_over { most(true)? } else { most(false).filter(|_| sum(false) > TAKEN_MAX)? };
        let bytes = |at: &usize| self.all[*at].taken.as_ref().map_or(0, |taken| taken.bytes.len());
        (0..self.all.len()).filter(|at| self.all[*at].account == *account).max_by_key(bytes)
    }

    /// Puts those into the queue to whom there is something to write.
    fn look_who_has_news(&mut self, groups: &Groups) {
        self.view.name.clear();
        for session in &mut self.all {
            if session.is_writable || session.is_full || session.is_deaf || session.is_gone {
                continue;
            }
            if session.name != self.view.name {
                self.view.look(&session.name, groups);
            }
            if self.view.is_news_for(session) {
                session.is_writable = self.to_write.push(session.account, session.fd.as_raw_fd()).is_none();
            }
        }
    }
}

impl View {
    fn look(&mut self, name: &str, groups: &Groups) {
        self.name.clear();
        self.name.push_str(name);
        self.members.clear();
        self.members.extend(groups.living(name).flat_map(|member| member.0.to_le_bytes()));
        self.standing = groups.brief(name).map(|brief| session::Standing {
            stage: stage(brief.stage),
            me: brief.me.map_or(0, |me| me.0),
            leader: brief.leader.map_or(0, |(leader, _)| leader.0),
            leader_node: brief.leader.map_or(0, |(_, node)| node),
            generation: brief.lineage,
            index: brief.index,
            last_number: 0,
        });
    }

    fn standing(&self) -> session::Standing {
        const GONE: session::Standing = session::Standing {
            stage: session::Stage::Gone,
            me: 0,
            leader: 0,
            leader_node: 0,
            generation: 0,
            index: 0,
            last_number: 0,
        };
        self.standing.unwrap_or(GONE)
    }

    fn is_news_for(&self, session: &Session) -> bool {
        let standing = self.standing();
        session.is_told_otherwise(&standing)
            || session.members != self.members
            || session.index < standing.index
            || !session.refused.is_empty()
            || !session.asked.is_empty()
    }
}

/// How a stage is called on a session.
pub(super) fn stage(stage: &Stage) -> session::Stage {
    match stage {
        Stage::Preparing(_) => session::Stage::Preparing,
        Stage::Prepared => session::Stage::Prepared,
        Stage::Joining => session::Stage::Joining,
        Stage::Running => session::Stage::Running,
        Stage::Left => session::Stage::Left,
        Stage::Failed(_) => session::Stage::Failed,
    }
}

impl Core {
    /// An application opens a group of this host: its end of their socket.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`], [`ErrorCode::Permission`], [`ErrorCode::Full`],
    /// [`ErrorCode::System`].
    pub fn open_group(
        &mut self,
        name: &str,
        (client, last_number): (u64, u64),
        Opening { behind, generation, bundles, rights }: Opening,
        peer: Box<Peer>,
    ) -> Result<OwnedFd, Refused> {
        let (uid, account) = (peer.uid, peer.account);
        let Some(status) = self.groups.status_named(name) else {
            let what = format!("this host has no group {name}: see fide group status");
            return Err(Refused { code: ErrorCode::NotFound, what });
        };
        if let Some(what) = self.sessions.is_full(account) {
            return Err(Refused { code: ErrorCode::Full, what });
        }
        self.may_be_client(name, status.lineage, client, uid)?;
        // Once: it opens the group anew, from its first entry.
        let was_told = self.group_plans.was_told_more(name, client);
        if was_told && behind > 0 || generation != 0 && status.lineage != 0 && generation != status.lineage {
            return Err(session::began_anew(name));
        }
        if behind > status.index && matches!(status.stage, Stage::Running | Stage::Left) {
            let what =
                format!("{name} has applied {} entries here, not {behind}: the application is ahead of its group", status.index);
            return Err(Refused { code: ErrorCode::Invalid, what });
        }
        let system = |e: std::io::Error| Refused { code: ErrorCode::System, what: format!("no socket for {name}: {e}") };
        let (ours, theirs) = seqpacket_pair().map_err(system)?;
        self.wait_for(&ours, libc::EPOLLIN as u32, libc::EPOLL_CTL_ADD).map_err(system)?;
        // Who only reads takes no id from anybody.
        if rights.propose
            && let Some(ids) = self.sessions.clients.get_mut(name)
        {
            ids.note(client, uid, account);
        }
        self.sessions.all.push(Session {
            fd: ours,
            account,
            name: name.into(),
            client,
            last_number,
            generation: generation.max(status.lineage),
            index: behind,
            snapshot: None,
            taken: None,
            told: None,
            members: Vec::new(),
            proposed: (None, 0),
            asked: VecDeque::new(),
            bundles,
            peer,
            rights,
            refused: VecDeque::new(),
            is_readable: false,
            is_writable: false,
            is_full: false,
            is_deaf: false,
            is_gone: false,
        });
        self.write_sessions();
        Ok(theirs)
    }

    /// Whether this user may open a group as that client. From another host everybody may who may
    /// propose there.
    fn may_be_client(&mut self, name: &str, lineage: u64, client: u64, uid: u32) -> Result<(), Refused> {
        let groups = &self.groups;
        self.sessions.clients.retain(|name, _| groups.status_named(name).is_some());
        let ids = self.sessions.clients.entry(name.into()).or_default();
        ids.set_lineage(lineage);
        ids.may_use(client, uid).map_err(|owner| Refused {
            code: ErrorCode::Permission,
            what: format!(
                "the client id {client} of the group {name} belongs to user {owner} of this host: user {uid} may not come as that \
                 client; use an id of its own (0: the agent makes one), or run it as user {owner} or root"
            ),
        })
    }

    /// Ends sessions of users that had more rights in their group than they have now. When they
    /// open it again they are told which one is missing.
    pub(super) fn set_group_policy(&mut self, policy: &GroupPolicy) {
        for session in &mut self.sessions.all {
            if !policy.of(&session.peer, &session.name).includes(session.rights) {
                session.is_gone = true;
                tracing::warn!(
                    "group {}: a session of user {} ends, because a right in the group was taken from that user",
                    session.name,
                    session.peer.uid
                );
            }
        }
    }

    /// Reads those whose turn it is.
    pub(super) fn read_sessions(&mut self, now: u64) {
        if !self.sessions.to_read.is_empty() && self.sessions.rest_ns(now_ns()) == 0 {
            let until_ns = now_ns() + READ_NS;
            let mut buffer = std::mem::take(&mut self.sessions.buffer);
            while let Some((account, fd)) = self.sessions.to_read.pop() {
                let Some(at) = self.sessions.position(fd) else { continue };
                self.sessions.all[at].is_readable = false;
                if self.sessions.all[at].is_gone {
                    continue;
                }
                if self.read_session(at, &mut buffer, now) == Turn::More {
                    self.sessions.all[at].is_readable = self.sessions.to_read.push(account, fd).is_none();
                }
                if now_ns() >= until_ns {
                    break;
                }
            }
            self.sessions.buffer = buffer;
        }
        self.end_sessions();
    }

    fn read_session(&mut self, at: usize, buffer: &mut [u8], now: u64) -> Turn {
        let (mut bytes, mut messages) = (0, 0);
        for _ in 0..DATAGRAMS_AT_ONCE {
            match seqpacket::receive(self.sessions.all[at].fd.as_fd(), buffer) {
                Received::Message(length) => {
                    bytes += length;
                    messages += self.session_said(at, &buffer[..length], now);
                    if self.sessions.all[at].is_gone {
                        return Turn::Done;
                    }
                    if bytes >= BYTES_AT_ONCE || messages >= session::BUNDLE_MESSAGES {
                        return Turn::More;
                    }
                }
                Received::Nothing => return Turn::Done,
                Received::Closed => {
                    self.sessions.all[at].is_gone = true;
                    return Turn::Done;
                }
            }
        }
        Turn::More
    }

    /// What is left of some that are gone is handed to the control thread.
    fn end_sessions(&mut self) {
        for _ in 0..ENDS_AT_ONCE {
            let Some(at) = self.sessions.all.iter().position(|session| session.is_gone) else { return };
            let session = self.sessions.all.swap_remove(at);
            let fd = session.fd.as_raw_fd();
            self.sessions.to_read.retain(|of| *of != fd);
            self.sessions.to_write.retain(|of| *of != fd);
            if let Err(e) = self.wait_for(&session.fd, 0, libc::EPOLL_CTL_DEL) {
                tracing::warn!("a session of group {}: {e}", session.name);
            }
            // The other end hears it now, whenever the descriptor is closed.
            let _ = rustix::net::shutdown(&session.fd, rustix::net::Shutdown::Both);
            let taken = session.taken.map(|taken| taken.bytes);
            self.say(Happened::SessionEnded(Ended { _socket: Some(session.fd), _taken: taken }));
        }
    }

    /// A second is over: who began to hand a state in and went no further does not keep its room.
    pub(super) fn look_at_half_sent(&mut self, now: u64) {
        for session in &mut self.sessions.all {
            if session.taken.as_ref().is_some_and(|taken| now >= taken.until_ns()) {
                tracing::warn!(
                    "an application of group {} sends a state too slowly, or only a part: its session ends",
                    session.name
                );
                session.is_gone = true;
            }
        }
    }

    /// How many messages it was.
    fn session_said(&mut self, at: usize, datagram: &[u8], now: u64) -> usize {
        let (mut from, mut count) = (0, 0);
        while !self.sessions.all[at].is_gone {
            match session::next_message(datagram, from) {
                Ok(Some(message)) if count < session::BUNDLE_MESSAGES => {
                    (from, count) = (message.end, count + 1);
                    self.session_message(at, &datagram[message], now);
                }
                Ok(None) => break,
                Ok(Some(_)) | Err(session::Malformed) => self.session_message(at, &[], now),
            }
        }
        count
    }

    fn session_message(&mut self, at: usize, message: &[u8], now: u64) {
        let session = &mut self.sessions.all[at];
        match ToAgent::read(message) {
            Some(ToAgent::Propose { number, .. }) if !session.rights.propose => {
                let lacks = lacks_group_right(session.peer.uid, GroupRight::Propose, &session.name);
                session.refuse(number, Why::Invalid, &lacks.what);
            }
            Some(ToAgent::Propose { skipped, number, bytes }) => {
                // Numbers come without a gap, but for those that the client gave up: what was refused comes again before what is behind it.
                let brief = self.groups.brief(&session.name);
                let me = brief.and_then(|brief| brief.me);
                if session.proposed.0 != me {
                    session.proposed = (me, 0);
                }
                let applied = self.groups.state(&session.name).map_or(0, |state| state.last_of(session.client));
                let expected = applied.max(session.proposed.1).max(session.last_number).saturating_add(1);
                if number < expected && number > 0 {
                    return; // it is on its way, or there
                }
                let outcome = if number.saturating_sub(skipped.into()) > expected {
                    Err(Error::Busy(format!("proposal {expected} comes first")))
                } else {
                    self.groups.propose(now, &session.name, session.client, number, bytes)
                };
                if outcome.is_ok() {
                    session.proposed.1 = number;
                }
                if let Err(error) = outcome {
                    let (why, text) = match &error {
                        Error::Busy(text) if text.contains("does not run") => (Why::NotRunning, text),
                        Error::Busy(text) => (Why::Busy, text),
                        Error::NotFound(text) => (Why::NotRunning, text),
                        Error::Exists(text) | Error::Invalid(text) => (Why::Invalid, text),
                    };
                    session.refuse(number, why, text);
                }
            }
            Some(ToAgent::Ask { client, number }) if session.asked.len() < ASKED_MAX => {
                session.asked.push_back(Question::new(client, number))
            }
            Some(ToAgent::Ask { .. }) => {
                tracing::warn!("an application of group {} asks too much at once: its session ends", session.name);
                session.is_gone = true;
            }
            // The library tells the application so.
            Some(ToAgent::Snapshot(_)) if !session.rights.may_hand_in() => {
                tracing::debug!("a snapshot of {} is not taken from user {}, who only reads", session.name, session.peer.uid);
            }
            Some(ToAgent::Snapshot(piece)) => {
                let (whole, dropped) = session.take(&piece, now);
                if dropped.is_some() {
                    self.say(Happened::SessionEnded(Ended { _socket: None, _taken: dropped }));
                }
                let Some(whole) = whole else {
                    if let Some(most) = self.sessions.takes_too_much() {
                        let session = &mut self.sessions.all[most];
                        tracing::warn!(
                            "user {} hands in more bytes of states at a time than may be: a session of {} ends",
                            session.account,
                            session.name
                        );
                        session.is_gone = true;
                    }
                    return;
                };
                let session = &self.sessions.all[at];
                let (name, index) = (session.name.clone(), piece.index);
                if let Err(error) = self.groups.keep_snapshot(&name, index, whole) {
                    tracing::debug!("a snapshot of {name} is not kept: {error:?}");
                }
            }
            None => {
                tracing::warn!("an application of group {} speaks what this agent does not: its session ends", session.name);
                session.is_gone = true;
            }
        }
    }

    /// Writes to those whose turn it is what they have not got.
    pub(super) fn write_sessions(&mut self) {
        if self.sessions.is_empty() || self.sessions.rest_ns(now_ns()) > 0 {
            return;
        }
        self.sessions.look_who_has_news(&self.groups);
        if self.sessions.to_write.is_empty() {
            return;
        }
        let until_ns = now_ns() + WRITE_NS;
        let mut out = std::mem::take(&mut self.sessions.out);
        while let Some((account, fd)) = self.sessions.to_write.pop() {
            let Some(at) = self.sessions.position(fd) else { continue };
            self.sessions.all[at].is_writable = false;
            if self.sessions.all[at].is_gone {
                continue;
            }
            let wrote = self.write_session(at, &mut out);
            let session = &mut self.sessions.all[at];
            match wrote {
                Ok(Turn::Done) => {}
                Ok(Turn::More) => session.is_writable = self.sessions.to_write.push(account, fd).is_none(),
                Err(Unsent::Full) => {
                    session.is_full = true;
                    self.wait_for_room(at, true);
                }
                // What it sent before it closed is still read.
                Err(Unsent::Closed) => session.is_deaf = true,
                Err(Unsent::Failed) => session.is_gone = true,
            }
            if now_ns() >= until_ns {
                break;
            }
        }
        self.sessions.out = out;
    }

    /// What the kernel says of a descriptor, if it is a session's.
    pub(super) fn session_is_ready(&mut self, fd: RawFd, events: u32) {
        let Some(at) = self.sessions.position(fd) else { return };
        let session = &mut self.sessions.all[at];
        if events & !(libc::EPOLLOUT as u32) != 0 && !session.is_readable {
            session.is_readable = self.sessions.to_read.push(session.account, fd).is_none();
        }
        if events & libc::EPOLLOUT as u32 != 0 {
            session.is_full = false;
            self.wait_for_room(at, false);
        }
    }

    /// Whether the kernel is to say when a session's socket has room.
    fn wait_for_room(&self, at: usize, waits: bool) {
        let session = &self.sessions.all[at];
        let events = if waits { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN };
        if let Err(e) = self.wait_for(&session.fd, events as u32, libc::EPOLL_CTL_MOD) {
            tracing::warn!("a session of group {}: {e}", session.name);
        }
    }

    /// One turn. More than 80 lines: what an application gets, in the order in which it must come.
    fn write_session(&mut self, at: usize, out: &mut Vec<u8>) -> Result<Turn, Unsent> {
        let Sessions { all, view, bundle, .. } = &mut self.sessions;
        let session = &mut all[at];
        let groups = &self.groups;
        if view.name != session.name {
            view.look(&session.name, groups);
        }
        let standing = view.standing();
        // Another group of that name counts its entries anew: its applications must say where they begin.
        if session.generation != 0 && standing.generation != 0 && standing.generation != session.generation {
            session.is_gone = true;
            return Ok(Turn::Done);
        }
        session.generation = session.generation.max(standing.generation);
        session.send_refusals(bundle)?;
        let state = groups.state(&session.name);
        if session.is_told_otherwise(&standing) {
            let last_number = state.map_or(0, |state| state.last_of(session.client));
            let standing = session::Standing { last_number, ..standing };
            ToClient::Standing(standing).write(out);
            seqpacket::send_now(session.fd.as_fd(), out)?;
            session.told = Some(standing);
        }
        if session.members != view.members
            && let Some(ids) = session::Ids::new(&view.members)
        {
            ToClient::Members(ids).write(out);
            seqpacket::send_now(session.fd.as_fd(), out)?;
            session.members.clone_from(&view.members);
        }
        let Some(state) = state else { return Ok(Turn::Done) };
        if standing.stage != session::Stage::Running && standing.stage != session::Stage::Left {
            return Ok(Turn::Done); // what is there may be replaced
        }
        let (kept_from, _) = state.snapshot();
        if session.index < kept_from {
            if kept_from > standing.index {
                return Ok(Turn::Done); // of entries that applications may not know of yet
            }
            let Some((_, whole)) = groups.snapshot(&session.name) else { return Ok(Turn::Done) };
            let (index, at) = session.snapshot.filter(|(index, _)| *index == kept_from).unwrap_or((kept_from, 0));
            let bytes = whole.bytes_from(at);
            let bytes = &bytes[..bytes.len().min(session::PIECE_MAX)];
            ToClient::Snapshot(Piece { index, total: whole.len(), at, bytes }).write(out);
            session.snapshot = Some((index, at));
            seqpacket::send_now(session.fd.as_fd(), out)?;
            let at = at + bytes.len() as u64;
            if at < whole.len() {
                session.snapshot = Some((index, at));
            } else {
                (session.index, session.snapshot) = (kept_from, None);
            }
            return Ok(Turn::More);
        }
        let Some(entries) = groups.entries_behind(&session.name, session.index) else { return Ok(Turn::Done) };
        let (mut index, mut last_number, mut count, mut size) = (session.index, session.last_number, 0, 0);
        let mut turn = Turn::Done;
        for applied in entries {
            if count == ENTRIES_AT_ONCE || size >= BYTES_AT_ONCE {
                turn = Turn::More;
                break;
            }
            let (client, number, bytes) = applied.value();
            (count, size) = (count + 1, size + bytes.len());
            if bundle.is_enough(bytes.len()) || !session.bundles {
                session.send_entries(bundle, (index, last_number))?;
            }
            let entry = ToClient::Entry { member: applied.member.0, index: applied.index, client, number, bytes };
            bundle.push(|out| entry.append(out));
            index = applied.index;
            if client == session.client {
                last_number = last_number.max(number);
            }
        }
        session.send_entries(bundle, (index, last_number))?;
        // An answer rests on all entries.
        while turn == Turn::Done
            && let Some(question) = session.asked.front_mut()
            && let Some(fate) = groups.answer(&session.name, session.index, question)
        {
            let (client, number) = question.about();
            ToClient::Fate { fate, client, number }.write(out);
            seqpacket::send_now(session.fd.as_fd(), out)?;
            session.asked.pop_front();
        }
        Ok(turn)
    }
}

impl Session {
    /// This proposal was not taken. One that waits comes again with all that are behind it, so that
    /// the first of them is enough.
    fn refuse(&mut self, number: u64, why: Why, text: &str) {
        let comes_again = |why| why != Why::Invalid;
        if !(comes_again(why) && self.refused.iter().any(|(first, why, _)| comes_again(*why) && *first <= number)) {
            self.refused.push_back((number, why, text.into()));
        }
        // More than a client may have under way.
        self.is_gone |= self.refused.len() > REFUSED_MAX;
    }

    /// Whether it was told anything else of its group than this.
    fn is_told_otherwise(&self, standing: &session::Standing) -> bool {
        let of = |standing: &session::Standing| (standing.stage, standing.me, standing.leader, standing.generation);
        self.told.as_ref().is_none_or(|told| of(told) != of(standing))
    }

    /// Tells what was not taken.
    fn send_refusals(&mut self, bundle: &mut Bundle) -> Result<(), Unsent> {
        while !self.refused.is_empty() {
            let mut count = 0;
            for (number, why, text) in &self.refused {
                if count > 0 && (!self.bundles || bundle.is_enough(text.len())) {
                    break;
                }
                bundle.push(|out| ToClient::Refused { number: *number, why: *why, text }.append(out));
                count += 1;
            }
            let sent = seqpacket::send_now(self.fd.as_fd(), bundle.datagram());
            bundle.clear();
            sent?;
            self.refused.drain(..count);
        }
        Ok(())
    }

    /// Sends a bundle of entries, the last of which is `index`.
    fn send_entries(&mut self, bundle: &mut Bundle, (index, last_number): (u64, u64)) -> Result<(), Unsent> {
        let sent = if bundle.is_empty() { Ok(()) } else { seqpacket::send_now(self.fd.as_fd(), bundle.datagram()) };
        bundle.clear();
        sent?;
        (self.index, self.last_number) = (index, last_number);
        Ok(())
    }

    /// The whole snapshot, when the last piece has come; and what came of another one, which is not dropped here.
    fn take(&mut self, piece: &Piece<'_>, now: u64) -> (Option<Builder>, Option<Builder>) {
        let follows = |taken: &Taken| taken.index == piece.index && taken.bytes.len() == piece.at;
        let dropped = self.taken.take_if(|taken| piece.at == 0 || !follows(taken)).map(|taken| taken.bytes);
        if piece.at == 0 {
            self.taken = Some(Taken { index: piece.index, bytes: Builder::default(), since_ns: now });
        }
        let Some(taken) = self.taken.as_mut() else { return (None, dropped) };
        taken.bytes.push(piece.bytes);
        let is_whole = taken.bytes.len() == piece.total;
        (self.taken.take_if(|_| is_whole).map(|taken| taken.bytes), dropped)
    }
}
