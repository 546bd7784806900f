//! The table that this host writes.

use super::{ROWS_MAX, Refused};
use fide_wire::frame::table::{Change, Content, HOST_ROW, Pull, Row, RowsHead};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long a row stays after its process ended.
pub const ENDED_NS: u64 = 600_000_000_000;
/// How many ended rows stay at most; the oldest go first.
pub const ENDED_MAX: usize = 4096;
/// Frames sent for one pull; a replica that needs more pulls again.
pub const FRAMES_PER_PULL: u32 = 16;
/// Hosts whose pulls wait to be answered at most: one each.
const PULLS_MAX: usize = 256;
/// Two hosts that lack the same within so long are not the only ones: the second answer goes to everybody, and
/// for so long after it others that ask have it on its way.
pub const SHARED_NS: u64 = 500_000;
/// Of hosts that lack the whole table, only the one behind so many has its answer sent to everybody: newcomers lack everybody's.
pub const WHOLE_SHARED_FROM: u32 = 4;

/// To whom a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum To {
    /// All hosts, on every path.
    Everybody,
    /// One host.
    Node(u32),
}

/// A pull that is being answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answering {
    node: u32,
    pull: Pull,
    frames_left: u32,
}

/// The one writer of a table.
#[derive(Clone, Debug)]
pub struct Owner {
    origin: u32,
    epoch: u64,
    rows: BTreeMap<u32, Row>,
    /// The version of every row's last change, in order.
    by_version: BTreeMap<u64, u32>,
    /// All versions up to here were used or skipped.
    complete: u64,
    /// Versions above that were. The kernel's exit hook numbers changes before this side sees them.
    above: BTreeSet<u64>,
    /// The highest version of a removed row.
    floor: u64,
    /// The former agent may have written rows up to here that this table lacks.
    unsure: u64,
    /// Rows that ended, and when, in that order.
    ended: VecDeque<(u64, u32)>,
    pulls: VecDeque<Answering>,
    /// The last difference that fitted one frame.
    last: Option<Difference>,
    shared_ns: u64,
}

/// A difference that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Difference {
    from: u64,
    through: u64,
    sent_ns: u64,
    /// How many hosts in a row lacked the same.
    hosts: u32,
    to_everybody: bool,
}

impl Difference {
    fn covers(&self, pull: &Pull, now_ns: u64, shared_ns: u64) -> bool {
        (self.from..self.through).contains(&pull.from) && now_ns.saturating_sub(self.sent_ns) < shared_ns
    }
}

impl Owner {
    /// An empty table. Another epoch than any before it of this host, unless it goes on where one left off.
    #[must_use]
    pub fn new(origin: u32, epoch: u64) -> Self {
        Self {
            origin,
            epoch,
            rows: BTreeMap::new(),
            by_version: BTreeMap::new(),
            complete: 0,
            above: BTreeSet::new(),
            floor: 0,
            unsure: 0,
            ended: VecDeque::new(),
            pulls: VecDeque::new(),
            last: None,
            shared_ns: SHARED_NS,
        }
    }

    /// How fast heartbeats are.
    pub const fn set_pace(&mut self, pace: crate::node::Pace) {
        self.shared_ns = pace.of(SHARED_NS);
    }

    /// Goes on with a table that a former agent of this host wrote: its rows, the versions it used (all through
    /// `complete`), and the floor. `is_unsure`: it may have written rows that are not among these.
    ///
    /// # Errors
    /// [`Refused::Malformed`] if they cannot be from one table.
    pub fn restore(
        origin: u32,
        epoch: u64,
        (complete, floor, is_unsure): (u64, u64, bool),
        rows: impl IntoIterator<Item = Row>,
        now_ns: u64,
    ) -> Result<Self, Refused> {
        if floor > complete {
            return Err(Refused::Malformed);
        }
        let unsure = if is_unsure { floor } else { 0 };
        let mut owner = Self { complete, floor, unsure, ..Self::new(origin, epoch) };
        for row in rows {
            let is_new = !owner.rows.contains_key(&row.row) && !owner.by_version.contains_key(&row.version);
            if !is_new || row.version == 0 || row.version > complete {
                return Err(Refused::Malformed);
            }
            owner.by_version.insert(row.version, row.row);
            owner.rows.insert(row.row, row);
        }
        // Their time begins again: an observer that was away as long as this agent still finds them.
        let is_ended = |row: &Row| row.content.is_over();
        owner.ended = owner.by_version.values().filter(|row| is_ended(&owner.rows[row])).map(|row| (now_ns, *row)).collect();
        owner.invariants();
        Ok(owner)
    }

    /// Whose table it is.
    #[must_use]
    pub const fn origin(&self) -> u32 {
        self.origin
    }

    /// Which table of that host.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The version through which it is complete: what heartbeats name.
    #[must_use]
    pub const fn complete(&self) -> u64 {
        self.complete
    }

    /// The highest version of a row that was removed.
    #[must_use]
    pub const fn floor(&self) -> u64 {
        self.floor
    }

    /// The next version where no kernel counts them.
    #[must_use]
    pub fn next_version(&self) -> u64 {
        self.above.last().copied().unwrap_or(self.complete) + 1
    }

    /// One row.
    #[must_use]
    pub fn get(&self, row: u32) -> Option<&Row> {
        self.rows.get(&row)
    }

    /// Every row, by number.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    /// A row appears, or its content changes beyond its state.
    ///
    /// # Errors
    /// [`Refused::Full`]; [`Refused::OldVersion`]; [`Refused::Ended`]; [`Refused::Malformed`] where content and
    /// row number do not go together. The version is used up even so ([`Owner::skip`]).
    pub fn put(&mut self, row: u32, version: u64, content: Content, now_ns: u64) -> Result<(), Refused> {
        let put = self.can_put(row, version, &content);
        self.skip(version);
        put?;
        let is_over = content.is_over();
        let before = self.rows.insert(row, Row { row, version, content });
        if let Some(before) = before {
            self.by_version.remove(&before.version);
        }
        self.by_version.insert(version, row);
        if is_over {
            self.ended.push_back((now_ns, row));
            self.remove_ended(now_ns);
        }
        self.invariants();
        Ok(())
    }

    fn can_put(&self, row: u32, version: u64, content: &Content) -> Result<(), Refused> {
        let is_in_place = (row == HOST_ROW) == matches!(content, Content::Host(_));
        if !is_in_place || matches!(content, Content::Unknown(_)) || version == 0 {
            return Err(Refused::Malformed);
        }
        match self.rows.get(&row) {
            _ if self.by_version.contains_key(&version) || version <= self.floor => Err(Refused::OldVersion),
            None if self.rows.len() >= ROWS_MAX => Err(Refused::Full),
            Some(known) if known.version >= version => Err(Refused::OldVersion),
            Some(known) if known.content.is_over() => Err(Refused::Ended),
            _ => Ok(()),
        }
    }

    /// A row's state changes: what was pushed as `change`.
    ///
    /// # Errors
    /// [`Refused::UnknownRow`], [`Refused::OldVersion`], [`Refused::Ended`], [`Refused::OtherOrigin`]. The version
    /// is used up even so.
    pub fn change(&mut self, change: &Change, now_ns: u64) -> Result<(), Refused> {
        if change.origin != self.origin {
            return Err(Refused::OtherOrigin);
        }
        let Some(mut content) = self.rows.get(&change.row).map(|row| row.content.clone()) else {
            self.skip(change.version);
            return Err(Refused::UnknownRow);
        };
        let Some(state) = content.state_mut() else {
            self.skip(change.version);
            return Err(Refused::Malformed);
        };
        *state = change.state;
        self.put(change.row, change.version, content, now_ns)
    }

    /// A version was given out and nothing changed: replicas must not wait for it.
    pub fn skip(&mut self, version: u64) {
        if version > self.complete {
            self.above.insert(version);
        }
        while self.above.first() == Some(&(self.complete + 1)) {
            self.above.pop_first();
            self.complete += 1;
        }
    }

    /// When [`Owner::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.ended.front().map(|(at_ns, _)| at_ns.saturating_add(ENDED_NS))
    }

    /// Removes rows that ended long ago.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.remove_ended(now_ns);
        self.invariants();
    }

    fn remove_ended(&mut self, now_ns: u64) {
        while let Some((at_ns, row)) = self.ended.front().copied() {
            // A row above `complete` is not removed: the floor must not pass versions that replicas lack.
            let is_over = self.ended.len() > ENDED_MAX || now_ns.saturating_sub(at_ns) >= ENDED_NS;
            if !is_over || self.rows.get(&row).is_some_and(|row| row.version > self.complete) {
                return;
            }
            self.ended.pop_front();
            if let Some(row) = self.rows.remove(&row) {
                self.by_version.remove(&row.version);
                self.floor = self.floor.max(row.version);
            }
        }
    }

    /// A host lags behind this table.
    ///
    /// # Errors
    /// [`Refused::OtherOrigin`] where it asks for another host's table.
    pub fn handle_pull(&mut self, from: u32, pull: &Pull, now_ns: u64) -> Result<(), Refused> {
        if pull.origin != self.origin {
            return Err(Refused::OtherOrigin);
        }
        self.pulls.retain(|p| p.node != from);
        let is_current = pull.epoch == self.epoch && pull.from >= self.complete;
        let is_shared = self.last.is_some_and(|last| last.to_everybody && last.covers(pull, now_ns, self.shared_ns));
        let is_coming = pull.epoch == self.epoch && pull.list.is_none() && is_shared;
        if is_current || is_coming || self.pulls.len() >= PULLS_MAX {
            return Ok(()); // the last case: it asks again
        }
        self.pulls.push_back(Answering { node: from, pull: *pull, frames_left: FRAMES_PER_PULL });
        Ok(())
    }

    /// Whether [`Owner::poll_transmit`] has something.
    #[must_use]
    pub fn is_answering(&self) -> bool {
        !self.pulls.is_empty()
    }

    /// The next frame that answers a pull: writes the body of a `rows` frame of at most `room` bytes, and says to
    /// whom it goes.
    pub fn poll_transmit(&mut self, body: &mut Vec<u8>, room: usize, now_ns: u64) -> Option<To> {
        let mut answering = self.pulls.pop_front()?;
        body.clear();
        let head = self.answer(&answering.pull, body, room);
        let is_whole = head.through >= self.complete;
        if is_whole && head.list.is_none() {
            let hosts =
                1 + self.last.filter(|last| last.covers(&answering.pull, now_ns, self.shared_ns)).map_or(0, |last| last.hosts);
            let to_everybody = hosts > if answering.pull.from == 0 { WHOLE_SHARED_FROM } else { 1 };
            self.last = Some(Difference { from: head.from, through: head.through, sent_ns: now_ns, hosts, to_everybody });
            if to_everybody {
                self.pulls.retain(|p| p.pull.epoch != self.epoch || p.pull.from < head.from);
                return Some(To::Everybody);
            }
        }
        answering.frames_left -= 1;
        answering.pull = Pull { epoch: self.epoch, from: head.through, list: head.list, ..answering.pull };
        if !is_whole && answering.frames_left > 0 {
            self.pulls.push_back(answering); // others have their turn between
        }
        Some(To::Node(answering.node))
    }

    /// One frame of rows: all that follow what the pull has, or as many as fit.
    pub fn answer(&self, pull: &Pull, body: &mut Vec<u8>, room: usize) -> RowsHead {
        let is_known = pull.epoch == self.epoch && pull.from <= self.complete;
        let continues = is_known && pull.list == Some(self.floor);
        let is_list = !is_known || continues || pull.from < self.floor;
        let from = if is_list && !continues { 0 } else { pull.from };
        let list = is_list.then_some(self.floor);
        let (through, is_unsure) = (self.complete, list.is_some() && pull.from < self.unsure);
        // A row that has moved above a version that is not written yet is in no frame: no list ends before it.
        let complete = self.above.last().copied().filter(|_| list.is_some()).unwrap_or(self.complete);
        let head = RowsHead { origin: self.origin, epoch: self.epoch, from, through, complete, list, is_unsure };
        let begin = body.len();
        head.write(body);
        let mut through = from;
        let rest = self.by_version.range((std::ops::Bound::Excluded(from), std::ops::Bound::Included(self.complete)));
        for (version, row) in rest {
            if !self.rows[row].push(body, begin + room) {
                RowsHead::set_through(&mut body[begin..], through);
                return RowsHead { through, ..head };
            }
            through = *version;
        }
        head
    }

    /// Looks at every row: for tests.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.invariants();
        self.by_version.iter().all(|(version, row)| self.rows[row].version == *version)
    }

    fn invariants(&self) {
        debug_assert_eq!(self.rows.len(), self.by_version.len());
        debug_assert!(self.above.first().is_none_or(|v| *v > self.complete + 1));
        debug_assert!(self.floor <= self.complete);
        debug_assert!(self.ended.len() <= ENDED_MAX + self.above.len() + 1);
        debug_assert!(self.rows.len() <= ROWS_MAX);
    }
}
