//! The hosts of the cluster and what runs on them: introductions, this host's table, and replicas of all others'.
//!
//! The shell hands in authentic frames (`fide_wire::frame::decode`) and the time, sends what
//! [`Directory::poll_transmit`] gives, and publishes what [`Directory::poll_event`] gives. A change on this host is
//! pushed by the shell itself, before it is handed in ([`Directory::change`]): a crash waits for nothing.

use super::introductions::{self, Heard, Introductions};
use super::table::owner::To;
use super::table::{self, Owner, Replica};
use super::window::Window;
use fide_wire::frame::introduction::{Hello, Introduction};
use fide_wire::frame::table::{Change, Content, HOST_ROW, Host, Pull, read_rows};
use fide_wire::frame::{BODY_AT, FRAME_SAFE, Header, Kind};
use fide_wire::verdict::Contract;
use std::collections::{BTreeMap, VecDeque};

/// Pulls of different hosts for the same version are spread over so long for each host of the cluster.
pub const SPREAD_NS: u64 = 10_000;

/// Why a frame meant nothing. Counted by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// Its sender has not shown that it lives.
    Unconfirmed,
    /// Its number was received before, or is too old to tell.
    OldNumber,
    /// Of this host itself: an echo.
    Own,
    /// Its body cannot be, although its tag is right.
    Malformed,
    /// Of a kind that is not the directory's.
    OtherKind,
    /// Refused by the table that it is about.
    Table(table::Refused),
}

/// What became known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A host showed that this incarnation of it lives. Its row in the receive table begins at `heartbeats`.
    Host {
        /// The host.
        node: u32,
        /// Its incarnation.
        incarnation: u32,
        /// The one that was believed before.
        former: Option<u32>,
        /// What it said of itself.
        introduction: Box<Introduction>,
    },
    /// Another agent has this host's name and a key.
    NameClash {
        /// What it calls its incarnation.
        incarnation: u32,
    },
    /// A row of another host's table.
    Row {
        /// The host.
        node: u32,
        /// What changed.
        event: table::Event,
    },
}

/// A frame to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// To whom.
    pub to: To,
    /// What it is; its body was written.
    pub kind: Kind,
}

/// What the shell knows and introductions say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The number of the last heartbeat sent.
    pub heartbeats: u64,
    /// The number of the last other frame sent.
    pub others: u64,
}

/// Another host that was confirmed.
#[derive(Clone, Debug)]
struct Peer {
    window: Window,
    replica: Replica,
}

/// The hosts of the cluster.
#[derive(Clone, Debug)]
pub struct Directory {
    me: u32,
    contract: Contract,
    introductions: Introductions,
    owner: Owner,
    peers: BTreeMap<u32, Peer>,
    /// Replicas that lag, and when each pulls: few, of up to 256.
    lagging: BTreeMap<u32, u64>,
    hosts_max: usize,
    events: VecDeque<Event>,
}

impl Directory {
    /// Begins with a table whose host row is in place. At most `hosts_max` other hosts are known.
    ///
    /// # Errors
    /// [`table::Refused::UnknownRow`] if the table has no host row.
    pub fn new(
        owner: Owner,
        contract: Contract,
        incarnation: u32,
        hosts_max: usize,
        now_ns: u64,
    ) -> Result<Self, table::Refused> {
        let Some(Content::Host(host)) = owner.get(HOST_ROW).map(|row| &row.content) else {
            return Err(table::Refused::UnknownRow);
        };
        let me = owner.origin();
        let introductions = Introductions::new(me, incarnation, host.addresses, hosts_max, now_ns);
        let (peers, lagging) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { me, contract, introductions, owner, peers, lagging, hosts_max, events: VecDeque::new() })
    }

    /// This host's table.
    #[must_use]
    pub const fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The replica of another host's table.
    #[must_use]
    pub fn replica(&self, node: u32) -> Option<&Replica> {
        self.peers.get(&node).map(|peer| &peer.replica)
    }

    /// Where a host is: for frames to it alone.
    #[must_use]
    pub fn addresses(&self, node: u32) -> Option<introductions::Addresses> {
        self.introductions.addresses(node)
    }

    /// Hosts that were confirmed, and the incarnation that is believed.
    pub fn hosts(&self) -> impl Iterator<Item = (u32, Option<u32>)> {
        self.peers.keys().map(|node| (*node, self.introductions.confirmed(*node)))
    }

    /// Hosts that are heard and have not shown that they live.
    pub fn unconfirmed(&self) -> impl Iterator<Item = u32> {
        self.introductions.unconfirmed()
    }

    /// A row of this host's table appears or has new content ([`Owner::put`]).
    ///
    /// # Errors
    /// As [`Owner::put`].
    pub fn put(&mut self, row: u32, version: u64, content: Content, now_ns: u64) -> Result<(), table::Refused> {
        self.owner.put(row, version, content, now_ns)
    }

    /// A row of this host's table has another state, which was pushed ([`Owner::change`]).
    ///
    /// # Errors
    /// As [`Owner::change`].
    pub fn change(&mut self, change: &Change, now_ns: u64) -> Result<(), table::Refused> {
        self.owner.change(change, now_ns)
    }

    /// A version was used for nothing ([`Owner::skip`]).
    pub fn skip(&mut self, version: u64) {
        self.owner.skip(version);
    }

    /// The body of a rows frame with what followed `version`: for rows that are pushed.
    pub fn push(&self, version: u64, body: &mut Vec<u8>, room: usize) {
        let pull = Pull { origin: self.me, epoch: self.owner.epoch(), from: version, list: None };
        self.owner.answer(&pull, body, room);
    }

    /// An authentic heartbeat arrived: the receive program says so when an incarnation or a version is new.
    pub fn handle_heartbeat(&mut self, header: &Header, now_ns: u64) {
        if header.sender != self.me
            && self.introductions.heard(header.sender, header.incarnation, now_ns) == Heard::Confirmed
            && let Some(peer) = self.peers.get_mut(&header.sender)
        {
            peer.replica.handle_version(header.table_version, now_ns);
            self.drain(header.sender);
        }
    }

    /// Any other authentic frame.
    ///
    /// # Errors
    /// Why it meant nothing. A gap or an old version is no fault.
    pub fn handle_frame(&mut self, header: &Header, kind: Kind, body: &[u8], now_ns: u64) -> Result<(), Ignored> {
        match kind {
            Kind::Hello => {
                let hello = Hello::read(body).ok_or(Ignored::Malformed)?;
                self.introductions.handle_hello(header.sender, header.incarnation, &hello, now_ns);
                return if header.sender == self.me { Err(Ignored::Own) } else { Ok(()) };
            }
            Kind::Introduction => return self.introduced(header, body, now_ns),
            Kind::Change | Kind::Rows | Kind::Pull => {}
            _ => return Err(Ignored::OtherKind),
        }
        if header.sender == self.me {
            return Err(Ignored::Own);
        }
        if self.introductions.heard(header.sender, header.incarnation, now_ns) == Heard::Unconfirmed {
            return Err(Ignored::Unconfirmed);
        }
        let peer = self.peers.get_mut(&header.sender).ok_or(Ignored::Unconfirmed)?;
        if !peer.window.take(header.number) {
            return Err(Ignored::OldNumber);
        }
        let result = match kind {
            Kind::Change => Self::changed(&mut peer.replica, body, now_ns),
            Kind::Rows => match read_rows(body) {
                Some((head, rows)) => peer.replica.handle_rows(&head, rows, now_ns).map_err(Ignored::Table),
                None => Err(Ignored::Malformed),
            },
            _ => match Pull::read(body) {
                Some(pull) => self.owner.handle_pull(header.sender, &pull, now_ns).map_err(Ignored::Table),
                None => Err(Ignored::Malformed),
            },
        };
        self.drain(header.sender);
        result
    }

    fn changed(replica: &mut Replica, body: &[u8], now_ns: u64) -> Result<(), Ignored> {
        let mut result = Ok(());
        for change in Change::read_all(body) {
            let Some(change) = change else {
                result = Err(Ignored::Malformed);
                continue;
            };
            if let Err(e) = replica.handle_change(&change, now_ns) {
                result = result.and(Err(Ignored::Table(e)));
            }
        }
        result
    }

    fn introduced(&mut self, header: &Header, body: &[u8], now_ns: u64) -> Result<(), Ignored> {
        let introduction = Introduction::read(body).ok_or(Ignored::Malformed)?;
        if fide_wire::name_id(&introduction.host.name) != header.sender || introduction.epoch == 0 {
            return Err(Ignored::Malformed);
        }
        let (node, incarnation) = (header.sender, header.incarnation);
        let addresses = introduction.host.addresses;
        match self.introductions.handle_introduction(node, incarnation, &introduction.answers, addresses, now_ns) {
            Some(introductions::Event::NameClash { incarnation }) => {
                self.events.push_back(Event::NameClash { incarnation });
                Ok(())
            }
            Some(introductions::Event::Confirmed { former, .. }) => {
                let spread_ns = SPREAD_NS * self.hosts_max.min(self.peers.len() + 1) as u64;
                let replica = || Replica::new(self.me, node, spread_ns);
                let peer = self.peers.entry(node).or_insert_with(|| Peer { window: Window::new(0), replica: replica() });
                // Its table outlives its incarnations; its numbers do not.
                peer.window = Window::new(introduction.others.max(header.number));
                peer.replica.handle_introduction(introduction.epoch, introduction.complete, now_ns);
                self.events.push_back(Event::Host { node, incarnation, former, introduction: Box::new(introduction) });
                self.drain(node);
                Ok(())
            }
            None if node == self.me => Err(Ignored::Own),
            None if self.introductions.confirmed(node) == Some(incarnation) => Ok(()),
            None => Err(Ignored::Unconfirmed),
        }
    }

    /// Takes what an input made of a replica: its events, and when it pulls.
    fn drain(&mut self, node: u32) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        while let Some(event) = peer.replica.poll_event() {
            self.events.push_back(Event::Row { node, event });
        }
        match peer.replica.poll_timeout() {
            Some(at_ns) => _ = self.lagging.insert(node, at_ns),
            None => _ = self.lagging.remove(&node),
        }
    }

    /// A host cannot be reached, or its incarnation was given up: what is known of its table stands, and pulls
    /// wait until it shows that it lives.
    pub fn give_up(&mut self, node: u32) {
        self.introductions.forget(node);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.replica.pause();
        }
        self.lagging.remove(&node);
    }

    /// A host is no member any more: nothing of it is remembered.
    pub fn forget(&mut self, node: u32) {
        self.introductions.forget(node);
        self.peers.remove(&node);
        self.lagging.remove(&node);
    }

    /// This host begins a new incarnation. Its table goes on.
    pub fn begin_incarnation(&mut self, incarnation: u32) {
        self.introductions.begin_incarnation(incarnation);
    }

    /// When [`Directory::poll_transmit`] or [`Directory::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.owner.is_answering() {
            return Some(0);
        }
        self.lagging.values().copied().chain(self.introductions.poll_timeout()).chain(self.owner.poll_timeout()).min()
    }

    /// Time went by.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.owner.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.owner.handle_timeout(now_ns);
        }
    }

    /// The next frame to be sent, its body written to `body`. `random` must be fresh whenever it is called.
    pub fn poll_transmit(
        &mut self,
        now_ns: u64,
        numbers: Numbers,
        random: impl FnOnce() -> u64,
        body: &mut Vec<u8>,
    ) -> Option<Transmit> {
        body.clear();
        if let Some((to, hello)) = self.introductions.poll_hello(now_ns, random) {
            hello.write(body);
            return Some(Transmit { to, kind: Kind::Hello });
        }
        if let Some((to, answer)) = self.introductions.poll_answer()
            && let Some(host) = self.host()
        {
            let Numbers { heartbeats, others } = numbers;
            let (epoch, complete, contract) = (self.owner.epoch(), self.owner.complete(), self.contract);
            Introduction { answers: vec![answer], heartbeats, others, epoch, complete, contract, host }.write(body);
            return Some(Transmit { to, kind: Kind::Introduction });
        }
        while let Some(node) = self.lagging.iter().find(|(_, at_ns)| **at_ns <= now_ns).map(|(node, _)| *node) {
            let pull = self.peers.get_mut(&node).and_then(|peer| peer.replica.poll_pull(now_ns));
            self.drain(node);
            if let Some(pull) = pull {
                pull.write(body);
                return Some(Transmit { to: To::Node(node), kind: Kind::Pull });
            }
        }
        let to = self.owner.poll_transmit(body, FRAME_SAFE - BODY_AT, now_ns)?;
        Some(Transmit { to, kind: Kind::Rows })
    }

    fn host(&self) -> Option<Host> {
        match &self.owner.get(HOST_ROW)?.content {
            Content::Host(host) => Some(host.clone()),
            _ => None,
        }
    }

    /// What became known, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
