//! The hosts of the cluster and what runs on them: introductions, this host's table, and replicas of all others'.
//!
//! The shell hands in authentic frames (`fide_wire::frame::decode`) and the time, sends what
//! [`Directory::poll_transmit`] gives, and publishes what [`Directory::poll_event`] gives. A change on this host is
//! pushed by the shell itself, before it is handed in ([`Directory::change`]): a crash waits for nothing.

use super::Pace;
use super::introductions::{self, Heard, Introductions};
use super::table::owner::To;
use super::table::{self, Owner, Replica};
use super::tables::{self, Said, Tables, Transmit};
use super::window::Window;
use fide_wire::PATHS;
use fide_wire::frame::introduction::{Answer, Hello, Introduction};
use fide_wire::frame::table::{Change, Content, HOST_ROW, Host};
use fide_wire::frame::{Header, Kind};
use fide_wire::verdict::{Cause, Contract};
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;

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

impl Ignored {
    const fn of(ignored: tables::Ignored) -> Self {
        match ignored {
            tables::Ignored::Unknown => Self::Unconfirmed,
            tables::Ignored::Malformed => Self::Malformed,
            tables::Ignored::Table(refused) => Self::Table(refused),
        }
    }
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
    /// What a host says of itself, again: its contract, addresses and fence may have changed.
    Announced {
        /// The host.
        node: u32,
        /// Its incarnation, which is believed.
        incarnation: u32,
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

/// What the shell knows and introductions say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The number of the last heartbeat sent.
    pub heartbeats: u64,
    /// The number of the last other frame sent.
    pub others: u64,
}

/// What introductions of this host say beside its own row and table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// What it promises of its heartbeats.
    pub contract: Contract,
    /// See [`Introduction::challenge`].
    pub challenge: Option<NonZeroU64>,
    /// See [`Introduction::response`].
    pub response: Option<NonZeroU64>,
    /// See [`Introduction::diverted`].
    pub diverted: [bool; PATHS],
}

/// The hosts of the cluster.
#[derive(Clone, Debug)]
pub struct Directory {
    me: u32,
    facts: Facts,
    /// See [`Introduction::refuted`].
    refuted: Vec<(u32, u32)>,
    /// An announcement to everybody is due.
    is_announcing: bool,
    introductions: Introductions,
    tables: Tables,
    /// The numbers that were received of hosts that were confirmed.
    windows: BTreeMap<u32, Window>,
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
        let mut introductions = Introductions::new(me, incarnation, host.addresses, hosts_max, now_ns);
        let (mut tables, windows) = (Tables::new(owner, hosts_max), BTreeMap::new());
        let pace = Pace::new(contract.period_ns);
        introductions.set_pace(pace);
        tables.set_pace(pace);
        let facts = Facts { contract, ..Facts::default() };
        Ok(Self { me, facts, refuted: Vec::new(), is_announcing: false, introductions, tables, windows, events: VecDeque::new() })
    }

    /// This host's table.
    #[must_use]
    pub const fn owner(&self) -> &Owner {
        self.tables.owner()
    }

    /// The replica of another host's table.
    #[must_use]
    pub fn replica(&self, node: u32) -> Option<&Replica> {
        self.tables.replica(node)
    }

    /// Where a host is: for frames to it alone.
    #[must_use]
    pub fn addresses(&self, node: u32) -> Option<introductions::Addresses> {
        self.introductions.addresses(node)
    }

    /// Hosts that were confirmed, and the incarnation that is believed.
    pub fn hosts(&self) -> impl Iterator<Item = (u32, Option<u32>)> {
        self.windows.keys().map(|node| (*node, self.introductions.confirmed(*node)))
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
        self.tables.put(row, version, content, now_ns)
    }

    /// A row of this host's table has another state, which was pushed ([`Owner::change`]).
    ///
    /// # Errors
    /// As [`Owner::change`].
    pub fn change(&mut self, change: &Change, now_ns: u64) -> Result<(), table::Refused> {
        self.tables.change(change, now_ns)
    }

    /// A version was used for nothing ([`Owner::skip`]).
    pub fn skip(&mut self, version: u64) {
        self.tables.skip(version);
    }

    /// What introductions say from now on. Others are not told by this ([`Directory::announce`]).
    pub const fn set_facts(&mut self, facts: Facts) {
        self.facts = facts;
    }

    /// The next frame is an introduction to everybody.
    pub const fn announce(&mut self) {
        self.is_announcing = true;
    }

    /// Whether [`Directory::poll_transmit`] needs a random number now: a hello is due.
    #[must_use]
    pub fn is_asking(&self, now_ns: u64) -> bool {
        !self.is_leaving() && self.introductions.poll_hello_timeout().is_some_and(|at_ns| at_ns <= now_ns)
    }

    /// An authentic heartbeat arrived: the receive program says so when an incarnation or a version is new.
    pub fn handle_heartbeat(&mut self, header: &Header, now_ns: u64) {
        if header.sender != self.me && self.introductions.heard(header.sender, header.incarnation, now_ns) == Heard::Confirmed {
            self.tables.named(header.sender, header.table_version, now_ns);
            self.drain();
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
        let window = self.windows.get_mut(&header.sender).ok_or(Ignored::Unconfirmed)?;
        if !window.take(header.number) {
            return Err(Ignored::OldNumber);
        }
        let result = self.tables.handle_frame(header.sender, kind, body, now_ns).map_err(Ignored::of);
        self.drain();
        result
    }

    fn introduced(&mut self, header: &Header, body: &[u8], now_ns: u64) -> Result<(), Ignored> {
        let introduction = Introduction::read(body).ok_or(Ignored::Malformed)?;
        self.handle_introduction(header, introduction, now_ns)
    }

    /// An authentic introduction, already read.
    ///
    /// # Errors
    /// As [`Directory::handle_frame`].
    pub fn handle_introduction(&mut self, header: &Header, introduction: Introduction, now_ns: u64) -> Result<(), Ignored> {
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
                // Its table outlives its incarnations; its numbers do not.
                self.windows.insert(node, Window::new(introduction.others.max(header.number)));
                let Introduction { epoch, complete, .. } = introduction;
                // As many tables as introductions are remembered.
                let _ = self.tables.introduced(node, &Said { epoch, complete, boot: introduction.host.boot }, now_ns);
                self.events.push_back(Event::Host { node, incarnation, former, introduction: Box::new(introduction) });
                self.drain();
                Ok(())
            }
            None if node == self.me => Err(Ignored::Own),
            None if self.introductions.confirmed(node) == Some(incarnation) => {
                self.events.push_back(Event::Announced { node, incarnation, introduction: Box::new(introduction) });
                Ok(())
            }
            None => Err(Ignored::Unconfirmed),
        }
    }

    /// A change of the table of a host whose incarnation is believed, already read. Its version tells copies apart.
    ///
    /// # Errors
    /// As [`Directory::handle_frame`].
    pub fn handle_change(&mut self, node: u32, incarnation: u32, change: &Change, now_ns: u64) -> Result<(), Ignored> {
        if self.introductions.confirmed(node) != Some(incarnation) {
            return Err(Ignored::Unconfirmed);
        }
        let result = self.tables.changed(node, change, now_ns).map_err(Ignored::of);
        self.drain();
        result
    }

    fn drain(&mut self) {
        while let Some((node, event)) = self.tables.poll_event() {
            self.events.push_back(Event::Row { node, event });
        }
    }

    /// What a host is believed to be now: its incarnation.
    #[must_use]
    pub fn incarnation(&self, node: u32) -> Option<u32> {
        self.introductions.confirmed(node)
    }

    /// Whose word on this host its introductions refute from now on ([`Introduction::refuted`]).
    pub fn set_refuted(&mut self, refuted: Vec<(u32, u32)>) {
        self.refuted = refuted;
    }

    /// An incarnation of a host was cut off by a verdict: pulls wait for its next one.
    pub fn pause(&mut self, node: u32) {
        self.tables.pause(node);
    }

    /// A host cannot be reached, or its incarnation was given up: what is known of its table stands, and pulls
    /// wait until it shows that it lives.
    pub fn give_up(&mut self, node: u32) {
        self.introductions.forget(node);
        self.tables.pause(node);
    }

    /// A host is no member any more: nothing of it is remembered.
    pub fn forget(&mut self, node: u32) {
        self.introductions.forget(node);
        self.introductions.forget_seen(node);
        self.windows.remove(&node);
        self.tables.forget(node);
    }

    /// A former agent of this host has seen this incarnation of a host ([`Introductions::note_seen`]).
    pub fn note_seen(&mut self, node: u32, incarnation: u32) {
        self.introductions.note_seen(node, incarnation);
    }

    /// This host begins a new incarnation. Its table goes on.
    pub fn begin_incarnation(&mut self, incarnation: u32) {
        self.introductions.begin_incarnation(incarnation);
    }

    /// Whether what others send to this host alone reaches it ([`Introductions::set_mute`]).
    pub const fn set_mute(&mut self, is_mute: bool) {
        self.introductions.set_mute(is_mute);
    }

    /// When [`Directory::poll_transmit`] or [`Directory::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let introducing = (!self.is_leaving()).then(|| self.introductions.poll_timeout()).flatten();
        let announcing = self.is_announcing.then_some(0);
        self.tables.poll_timeout().into_iter().chain(introducing).chain(announcing).min()
    }

    /// Time went by.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.tables.handle_timeout(now_ns);
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
        if !self.is_leaving() {
            if let Some((to, hello)) = self.introductions.poll_hello(now_ns, random) {
                hello.write(body);
                return Some(Transmit { to, kind: Kind::Hello });
            }
            if let Some((to, answer)) = self.introductions.poll_answer() {
                self.write_introduction(vec![answer], numbers, body);
                return Some(Transmit { to, kind: Kind::Introduction });
            }
        }
        if std::mem::take(&mut self.is_announcing) {
            self.write_introduction(Vec::new(), numbers, body);
            return Some(Transmit { to: To::Everybody, kind: Kind::Introduction });
        }
        self.tables.poll_transmit(body, now_ns)
    }

    fn write_introduction(&self, answers: Vec<Answer>, numbers: Numbers, body: &mut Vec<u8>) {
        // The row is there from the start on, and is never removed.
        let Some(host) = self.host() else { return };
        let Numbers { heartbeats, others } = numbers;
        let (epoch, complete) = (self.owner().epoch(), self.owner().complete());
        let Facts { contract, challenge, response, diverted } = self.facts;
        // Another agent of this name is asked by announcements alone: everybody receives those.
        let (challenge, response) = if answers.is_empty() { (challenge, response) } else { (None, None) };
        let refuted = self.refuted.clone();
        let introduction =
            Introduction { answers, heartbeats, others, epoch, complete, contract, host, challenge, response, diverted, refuted };
        introduction.write(body);
    }

    /// A host that leaves asks nobody, and nobody is to take it for one that lives.
    fn is_leaving(&self) -> bool {
        let row = self.owner().get(HOST_ROW).and_then(|row| row.content.state());
        row.is_some_and(|state| state.cause == Cause::Left)
    }

    fn host(&self) -> Option<Host> {
        match &self.owner().get(HOST_ROW)?.content {
            Content::Host(host) => Some(host.clone()),
            _ => None,
        }
    }

    /// What became known, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
