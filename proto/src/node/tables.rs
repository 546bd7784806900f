//! This host's table, and replicas of all others'.
//!
//! ```text
//! change, put ─► Owner ─► push (rows) ─────────────► others
//! change, rows, version of a heartbeat ─► Replica ─► events
//!                                              └──► pull ─► its owner ─► rows
//! ```
//! A change of a state is pushed by the shell itself, before it is handed in ([`Tables::change`]): a crash waits for
//! nothing. Everything else leaves by [`Tables::poll_transmit`].

use super::Pace;
use super::table::owner::To;
use super::table::{self, Owner, Replica};
use fide_wire::frame::table::{Change, Content, Pull, read_rows};
use fide_wire::frame::{BODY_AT, FRAME_SAFE, Kind};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Pulls of different hosts for the same version are spread over so long for each host of the cluster.
pub const SPREAD_NS: u64 = 10_000;
/// Room for the body of a frame that passes every path.
pub const ROOM: usize = FRAME_SAFE - BODY_AT;

/// A frame to be sent, its body written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// To whom.
    pub to: To,
    /// What it is.
    pub kind: Kind,
}

/// Why a frame meant nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// Its sender has not introduced itself.
    Unknown,
    /// Its body cannot be, although its tag is right.
    Malformed,
    /// Refused by the table that it is about.
    Table(table::Refused),
}

/// What a host says of its table when it introduces itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Which table it writes.
    pub epoch: u64,
    /// The version through which that is complete.
    pub complete: u64,
    /// Its kernel's boot id. What ran in another boot has ended.
    pub boot: u128,
}

/// The tables that one host knows.
#[derive(Clone, Debug)]
pub struct Tables {
    owner: Owner,
    replicas: BTreeMap<u32, Replica>,
    /// Replicas that lag, and when each pulls: few, of up to 256.
    lagging: BTreeMap<u32, u64>,
    hosts_max: usize,
    pace: Pace,
    /// All rows of this host's table through this version have left.
    pushed: u64,
    /// Versions above that of changes that have left: the kernel tells of ends in another order than it numbers them.
    pushed_above: BTreeSet<u64>,
    events: VecDeque<(u32, table::Event)>,
}

impl Tables {
    /// Begins with this host's table. At most `hosts_max` others are known.
    #[must_use]
    pub fn new(owner: Owner, hosts_max: usize) -> Self {
        let pushed = owner.complete();
        let (replicas, lagging, events) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        let pushed_above = BTreeSet::new();
        Self { owner, replicas, lagging, hosts_max, pace: Pace::default(), pushed, pushed_above, events }
    }

    /// How fast heartbeats are: before anybody is known.
    pub const fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
        self.owner.set_pace(pace);
    }

    /// This host's table.
    #[must_use]
    pub const fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The replica of another host's table.
    #[must_use]
    pub fn replica(&self, node: u32) -> Option<&Replica> {
        self.replicas.get(&node)
    }

    /// A row of this host's table appears or has new content ([`Owner::put`]); it is pushed soon.
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
        self.has_left(change.version);
        self.owner.change(change, now_ns)
    }

    /// A version needs no push.
    fn has_left(&mut self, version: u64) {
        if version > self.pushed {
            self.pushed_above.insert(version);
        }
        while self.pushed_above.first() == Some(&(self.pushed + 1)) {
            self.pushed_above.pop_first();
            self.pushed += 1;
        }
    }

    /// A version was used for nothing ([`Owner::skip`]).
    pub fn skip(&mut self, version: u64) {
        self.has_left(version);
        self.owner.skip(version);
    }

    /// A host introduced itself.
    ///
    /// # Errors
    /// [`Ignored::Malformed`] for an epoch that cannot be; [`Ignored::Unknown`] if there is no room for it.
    pub fn introduced(&mut self, node: u32, said: &Said, now_ns: u64) -> Result<(), Ignored> {
        if said.epoch == 0 || node == self.owner.origin() {
            return Err(Ignored::Malformed);
        }
        if !self.replicas.contains_key(&node) && self.replicas.len() >= self.hosts_max {
            return Err(Ignored::Unknown);
        }
        let (me, pace) = (self.owner.origin(), self.pace);
        let spread_ns = pace.of(SPREAD_NS) * self.hosts_max.min(self.replicas.len() + 1) as u64;
        let replica = self.replicas.entry(node).or_insert_with(|| Replica::new(me, node, spread_ns).at_pace(pace));
        replica.handle_introduction(said.epoch, said.boot, said.complete, now_ns);
        self.drain(node);
        Ok(())
    }

    /// A heartbeat of a host that is believed named the low half of its version.
    pub fn named(&mut self, node: u32, low: u32, now_ns: u64) {
        if let Some(replica) = self.replicas.get_mut(&node)
            && replica.complete() as u32 != low
        {
            replica.handle_version(low, now_ns);
            self.drain(node);
        }
    }

    /// A pushed change of a host that is believed.
    ///
    /// # Errors
    /// Why it meant nothing; a copy of one that is known is [`table::Refused::OldVersion`].
    pub fn changed(&mut self, node: u32, change: &Change, now_ns: u64) -> Result<(), Ignored> {
        let replica = self.replicas.get_mut(&node).ok_or(Ignored::Unknown)?;
        let result = replica.handle_change(change, now_ns).map_err(Ignored::Table);
        self.drain(node);
        result
    }

    /// Rows or a pull of a host that is believed.
    ///
    /// # Errors
    /// Why it meant nothing. A gap or an old version is no fault.
    pub fn handle_frame(&mut self, node: u32, kind: Kind, body: &[u8], now_ns: u64) -> Result<(), Ignored> {
        if kind == Kind::Pull {
            let pull = Pull::read(body).ok_or(Ignored::Malformed)?;
            return self.owner.handle_pull(node, &pull, now_ns).map_err(Ignored::Table);
        }
        if kind == Kind::Change {
            let mut result = Ok(());
            for change in Change::read_all(body) {
                let change = change.ok_or(Ignored::Malformed);
                result = result.and(change.and_then(|change| self.changed(node, &change, now_ns)));
            }
            return result;
        }
        let replica = self.replicas.get_mut(&node).ok_or(Ignored::Unknown)?;
        let (head, rows) = read_rows(body).ok_or(Ignored::Malformed)?;
        let result = replica.handle_rows(&head, rows, now_ns).map_err(Ignored::Table);
        self.drain(node);
        result
    }

    /// Takes what an input made of a replica: its events, and when it pulls.
    fn drain(&mut self, node: u32) {
        let Some(replica) = self.replicas.get_mut(&node) else { return };
        while let Some(event) = replica.poll_event() {
            self.events.push_back((node, event));
        }
        match replica.poll_timeout() {
            Some(at_ns) => _ = self.lagging.insert(node, at_ns),
            None => _ = self.lagging.remove(&node),
        }
    }

    /// A host was given up or left: what is known of its table stands, and pulls wait until it introduces itself.
    pub fn pause(&mut self, node: u32) {
        if let Some(replica) = self.replicas.get_mut(&node) {
            replica.pause();
        }
        self.lagging.remove(&node);
    }

    /// A host is no member any more: nothing of it is remembered.
    pub fn forget(&mut self, node: u32) {
        self.replicas.remove(&node);
        self.lagging.remove(&node);
    }

    /// Whether rows of this host's table have not left yet.
    #[must_use]
    pub const fn is_pushing(&self) -> bool {
        self.pushed < self.owner.complete()
    }

    /// When [`Tables::poll_transmit`] or [`Tables::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.owner.is_answering() || self.is_pushing() {
            return Some(0);
        }
        self.lagging.values().copied().chain(self.owner.poll_timeout()).min()
    }

    /// Time went by.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.owner.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.owner.handle_timeout(now_ns);
        }
    }

    /// The next frame to be sent, its body written to `body`: rows that are pushed, then pulls, then answers.
    pub fn poll_transmit(&mut self, body: &mut Vec<u8>, now_ns: u64) -> Option<Transmit> {
        body.clear();
        if self.is_pushing() {
            // Below the floor a push would be a whole list: who lacks something there pulls it.
            let from = self.pushed.max(self.owner.floor());
            let pull = Pull { origin: self.owner.origin(), epoch: self.owner.epoch(), from, list: None };
            let head = self.owner.answer(&pull, body, ROOM);
            // A row that fits no frame would be pushed for ever.
            self.pushed = if head.through > from { head.through } else { self.owner.complete() };
            self.pushed_above = self.pushed_above.split_off(&(self.pushed + 1));
            self.has_left(self.pushed);
            return Some(Transmit { to: To::Everybody, kind: Kind::Rows });
        }
        while let Some(node) = self.lagging.iter().find(|(_, at_ns)| **at_ns <= now_ns).map(|(node, _)| *node) {
            let pull = self.replicas.get_mut(&node).and_then(|replica| replica.poll_pull(now_ns));
            self.drain(node);
            if let Some(pull) = pull {
                pull.write(body);
                return Some(Transmit { to: To::Node(node), kind: Kind::Pull });
            }
        }
        let to = self.owner.poll_transmit(body, ROOM, now_ns)?;
        Some(Transmit { to, kind: Kind::Rows })
    }

    /// What changed in other hosts' tables, in order.
    pub fn poll_event(&mut self) -> Option<(u32, table::Event)> {
        self.events.pop_front()
    }
}
