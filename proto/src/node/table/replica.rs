//! A copy of another host's table.

use super::{ROWS_MAX, Refused, spread};
use crate::node::Pace;
use fide_wire::frame::table::{Change, Content, HOST_ROW, Instance, Pull, Row, RowsHead, State};
use fide_wire::verdict::{Cause, Grade};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long a version may be missing before it is pulled: copies on two paths do not arrive at once.
pub const GAP_NS: u64 = 200_000;
/// Time between a pull and its repetition, at first and at most.
pub const RETRY_NS: std::ops::RangeInclusive<u64> = 2_000_000..=100_000_000;
/// Versions above a gap that are remembered; beyond, a pull brings them again.
const ABOVE_MAX: usize = 1024;
/// How long ended rows stay here after their end came in, at the latest.
const ENDED_MAX: usize = super::owner::ENDED_MAX;

/// What changed in a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A row that was not known. A process may have ended already: then this event is also that of its end.
    Appeared {
        /// Which.
        row: u32,
        /// Its state.
        state: Option<State>,
    },
    /// A row has another state. `after` holds; states between that were overtaken are not shown.
    Changed {
        /// Which.
        row: u32,
        /// The version of the change.
        version: u64,
        /// The state before.
        before: State,
        /// The state now.
        after: State,
    },
    /// The content of a row changed, and not its state.
    Updated {
        /// Which.
        row: u32,
    },
    /// A process has another row than in the table before: the same instance, under the same name,
    /// goes on. If it has another state as well, the next event says so.
    Renumbered {
        /// Its former row.
        former: u32,
        /// Its row now.
        row: u32,
    },
    /// Nothing is missing any more: what an application knew of this host and is not here has ended.
    Complete,
    /// A process of the table before is not in this one: it ended with the boot of that time, or nobody watches it any more.
    Lost {
        /// Its former row.
        former: u32,
        /// What was known of it, with its end.
        content: Content,
    },
}

/// A row as it is known here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    version: u64,
    /// What it says; not known before a pull brought it, when a change overtook the row itself.
    content: Option<Content>,
    /// The state of a row without content.
    state: Option<State>,
}

/// A list of the whole table that is coming in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listing {
    floor: u64,
    position: u64,
    /// Some of its frames were [`RowsHead::is_unsure`].
    is_unsure: bool,
    seen: BTreeSet<u32>,
}

/// A copy of the table of one host.
#[derive(Clone, Debug)]
pub struct Replica {
    me: u32,
    origin: u32,
    epoch: u64,
    /// The boot id of its host's kernel.
    boot: u128,
    rows: BTreeMap<u32, Known>,
    /// Processes of the epoch before that ran, by instance and name, until this epoch is complete.
    former: BTreeMap<(Instance, Box<str>), (u32, Content)>,
    /// Every row whose last change is up to here is as the owner has it.
    complete: u64,
    /// Versions above that are known.
    above: BTreeSet<u64>,
    /// The highest version that was named.
    target: u64,
    listing: Option<Listing>,
    /// Ended rows in the order in which their ends came in.
    ended: VecDeque<u32>,
    /// How far the pulls of different hosts are spread.
    spread_ns: u64,
    pace: Pace,
    pull_at_ns: Option<u64>,
    retry_ns: u64,
    /// [`Event::Complete`] is owed.
    lagged: bool,
    events: VecDeque<Event>,
}

impl Replica {
    /// A copy on `me` of the table of `origin`, of which nothing is known. `spread_ns`: pulls of different hosts
    /// for the same version leave within so long of each other; more hosts need more.
    #[must_use]
    pub fn new(me: u32, origin: u32, spread_ns: u64) -> Self {
        Self {
            me,
            origin,
            epoch: 0,
            boot: 0,
            rows: BTreeMap::new(),
            former: BTreeMap::new(),
            complete: 0,
            above: BTreeSet::new(),
            target: 0,
            listing: None,
            ended: VecDeque::new(),
            spread_ns,
            pace: Pace::default(),
            pull_at_ns: None,
            retry_ns: *RETRY_NS.start(),
            lagged: true,
            events: VecDeque::new(),
        }
    }

    /// The same, where heartbeats are this fast.
    #[must_use]
    pub fn at_pace(self, pace: Pace) -> Self {
        Self { pace, retry_ns: pace.of(*RETRY_NS.start()), ..self }
    }

    /// Which table of the host this is; 0 before its introduction.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The version through which it is complete.
    #[must_use]
    pub const fn complete(&self) -> u64 {
        self.complete
    }

    /// Whether nothing is known to be missing. If not, what is shown of this host may be out of date.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.epoch != 0 && self.complete >= self.target && self.listing.is_none()
    }

    /// The content of a row, once it is known.
    #[must_use]
    pub fn get(&self, row: u32) -> Option<&Content> {
        self.rows.get(&row)?.content.as_ref()
    }

    /// The state of a row, also of one whose content is not known yet.
    #[must_use]
    pub fn state(&self, row: u32) -> Option<State> {
        let known = self.rows.get(&row)?;
        known.content.as_ref().and_then(Content::state).or(known.state)
    }

    /// The version of a row's last change.
    #[must_use]
    pub fn version(&self, row: u32) -> Option<u64> {
        self.rows.get(&row).map(|known| known.version)
    }

    /// Every row whose content is known, by number.
    pub fn rows(&self) -> impl Iterator<Item = (u32, &Content)> {
        self.rows.iter().filter_map(|(row, known)| Some((*row, known.content.as_ref()?)))
    }

    /// The host introduced itself: which table it writes, in which boot of its kernel, and how far that goes.
    pub fn handle_introduction(&mut self, epoch: u64, boot: u128, complete: u64, now_ns: u64) {
        if epoch != self.epoch {
            self.begin_epoch(epoch);
            if boot != self.boot {
                self.end_former(true); // pids begin anew with each boot
            }
        }
        self.boot = boot;
        self.named(complete, now_ns);
    }

    /// The owner lost its table. What ran in it is compared by instance once the new table is complete here.
    fn begin_epoch(&mut self, epoch: u64) {
        for (row, known) in std::mem::take(&mut self.rows) {
            if let Some(content @ Content::Process(_)) = known.content
                && content.state().is_some_and(|state| !state.is_final())
                && let Content::Process(process) = &content
            {
                self.former.insert((process.instance, process.name.clone()), (row, content));
            }
        }
        self.epoch = epoch;
        (self.complete, self.target) = (0, 0);
        self.above.clear();
        self.ended.clear();
        self.listing = None;
        self.pull_at_ns = None;
        self.retry_ns = self.pace.of(*RETRY_NS.start());
    }

    /// A heartbeat named the low half of the version through which the table is complete at its owner.
    pub fn handle_version(&mut self, low: u32, now_ns: u64) {
        if self.epoch != 0 {
            // The version next to what is known here that ends so: a replica never lags by 2^31 changes.
            let ahead = i64::from(low.wrapping_sub(self.target as u32) as i32);
            self.named(self.target.saturating_add_signed(ahead), now_ns);
        }
    }

    fn named(&mut self, version: u64, now_ns: u64) {
        self.target = self.target.max(version);
        self.plan(now_ns);
    }

    /// A pushed change.
    ///
    /// # Errors
    /// [`Refused::OldVersion`] if it is known, as the copy on the other path is; [`Refused::OtherOrigin`];
    /// [`Refused::OtherEpoch`] before the introduction; [`Refused::Full`]; [`Refused::Ended`].
    pub fn handle_change(&mut self, change: &Change, now_ns: u64) -> Result<(), Refused> {
        if change.origin != self.origin {
            return Err(Refused::OtherOrigin);
        }
        if self.epoch == 0 {
            return Err(Refused::OtherEpoch);
        }
        if change.version <= self.complete || self.above.contains(&change.version) {
            return Err(Refused::OldVersion);
        }
        let applied = match self.get(change.row).cloned() {
            Some(mut content) => {
                let applied = match content.state_mut() {
                    Some(state) => {
                        *state = change.state;
                        self.apply(Row { row: change.row, version: change.version, content })
                    }
                    None => Err(Refused::Malformed),
                };
                self.have(change.version);
                applied
            }
            // The row itself is missing, so this version does not count as known.
            None => self.apply_nameless(change),
        };
        self.named(change.version, now_ns);
        self.invariants();
        applied
    }

    /// A change overtook the row that it changes. Nobody here knows that process; its event waits for its name.
    fn apply_nameless(&mut self, change: &Change) -> Result<(), Refused> {
        if !self.rows.contains_key(&change.row) && self.rows.len() >= ROWS_MAX {
            return Err(Refused::Full);
        }
        let known = self.rows.entry(change.row).or_insert(Known { version: 0, content: None, state: None });
        if known.version >= change.version {
            return Err(Refused::OldVersion);
        }
        (known.version, known.state) = (change.version, Some(change.state));
        Ok(())
    }

    /// A version is in the rows.
    fn have(&mut self, version: u64) {
        if version > self.complete && self.above.len() < ABOVE_MAX {
            self.above.insert(version);
        }
        self.advance();
    }

    fn advance(&mut self) {
        // In a list nothing is complete before the floor.
        if self.listing.is_some() {
            return;
        }
        while let Some(version) = self.above.first().copied().filter(|version| *version <= self.complete + 1) {
            self.above.pop_first();
            self.complete = self.complete.max(version);
        }
    }

    /// Rows that were pushed or pulled.
    ///
    /// # Errors
    /// [`Refused::OtherOrigin`], [`Refused::OtherEpoch`]; [`Refused::Gap`] if they begin beyond what is complete
    /// here. Rows that cannot be are left out, and their versions count.
    pub fn handle_rows(&mut self, head: &RowsHead, rows: Vec<Row>, now_ns: u64) -> Result<(), Refused> {
        if head.origin != self.origin {
            return Err(Refused::OtherOrigin);
        }
        if head.epoch != self.epoch || self.epoch == 0 {
            return Err(Refused::OtherEpoch);
        }
        self.target = self.target.max(head.complete).max(head.through);
        let taken = match head.list {
            None => self.take_difference(head, rows),
            Some(floor) => self.take_list(head, floor, rows),
        };
        if taken.is_ok() {
            self.retry_ns = self.pace.of(*RETRY_NS.start());
            self.pull_at_ns = None;
            if self.complete < self.target {
                // More frames of the same answer are on their way, most likely.
                self.pull_at_ns = Some(now_ns.saturating_add(self.retry_ns));
            }
        }
        self.plan(now_ns);
        self.invariants();
        taken
    }

    fn take_difference(&mut self, head: &RowsHead, rows: Vec<Row>) -> Result<(), Refused> {
        // An owner of an older version lists no further than the floor, and what follows is the rest of the list.
        let is_rest = |listing: &&Listing| listing.position >= listing.floor && listing.position == head.from;
        if let Some(floor) = self.listing.as_ref().filter(is_rest).map(|listing| listing.floor) {
            return self.take_list(head, floor, rows);
        }
        if head.from > self.complete || self.listing.is_some() {
            // Each row is news all the same; how far it is complete is the pull's to find out.
            for row in rows {
                let version = row.version;
                if self.apply(row).is_ok() {
                    self.have(version);
                }
            }
            return Err(Refused::Gap);
        }
        for row in rows {
            let _ = self.apply(row); // known already, or one that cannot be
        }
        self.reach(head.through);
        Ok(())
    }

    fn take_list(&mut self, head: &RowsHead, floor: u64, rows: Vec<Row>) -> Result<(), Refused> {
        let position = self.listing.as_ref().filter(|l| l.floor == floor).map(|l| l.position);
        let continues = position.is_some_and(|position| head.from == position);
        if !continues && (head.from != 0 || position.is_some_and(|position| position > 0)) {
            return Err(Refused::Gap); // of another list, or a part that came twice
        }
        if head.from == 0 && self.complete >= floor && self.complete > 0 {
            return Err(Refused::Gap); // nothing is missing below the floor: a difference is enough
        }
        let mut listing = self.listing.take().filter(|_| continues).unwrap_or(Listing {
            floor,
            position: 0,
            is_unsure: false,
            seen: BTreeSet::new(),
        });
        listing.is_unsure |= head.is_unsure;
        for row in rows {
            listing.seen.insert(row.row);
            let _ = self.apply(row);
        }
        listing.position = head.through;
        // A row that changed meanwhile stands behind the floor: the list goes on to where the table is complete.
        if listing.position < floor.max(head.complete) {
            self.listing = Some(listing);
            return Ok(());
        }
        let is_gone = |(row, known): (&u32, &Known)| (known.version <= floor && !listing.seen.contains(row)).then_some(*row);
        let gone: Vec<u32> = self.rows.iter().filter_map(is_gone).collect();
        for row in gone {
            self.vanished(row, floor, listing.is_unsure);
        }
        self.reach(head.through);
        Ok(())
    }

    /// All versions up to here are known.
    fn reach(&mut self, through: u64) {
        self.complete = self.complete.max(through);
        self.above = self.above.split_off(&(self.complete + 1));
        self.advance();
    }

    /// Takes a row if it is newer than what is known of it.
    fn apply(&mut self, row: Row) -> Result<(), Refused> {
        let Row { row: number, version, content } = row;
        let before = self.rows.get(&number);
        if before.is_none() && self.rows.len() >= ROWS_MAX && !self.make_room() {
            return Err(Refused::Full);
        }
        let before = self.rows.get(&number);
        let named = before.is_some_and(|known| known.content.is_some());
        if before.is_some_and(|known| known.version > version || (known.version == version && named)) {
            return Err(Refused::OldVersion);
        }
        let state = content.state();
        let state_before = before.and_then(|known| known.content.as_ref()).and_then(Content::state);
        if before.and_then(|known| known.content.as_ref()).is_some_and(Content::is_over) {
            // Ends are final; only what is known of the same end may grow.
            return Err(Refused::Ended);
        }
        let former = match &content {
            Content::Process(process) if !named => self.former.remove(&(process.instance, process.name.clone())),
            _ => None,
        };
        let state_before = match former {
            Some((former, content)) => {
                self.events.push_back(Event::Renumbered { former, row: number });
                content.state()
            }
            None => state_before,
        };
        match (state_before, state) {
            (Some(before), Some(after)) if before != after => {
                self.events.push_back(Event::Changed { row: number, version, before, after });
            }
            (Some(_), _) => self.events.push_back(Event::Updated { row: number }),
            (None, _) if named => self.events.push_back(Event::Updated { row: number }),
            (None, state) => self.events.push_back(Event::Appeared { row: number, state }),
        }
        let is_over = content.is_over();
        self.rows.insert(number, Known { version, content: Some(content), state: None });
        if is_over {
            self.ended.push_back(number);
            while self.ended.len() > ENDED_MAX {
                self.forget_oldest();
            }
        }
        Ok(())
    }

    fn make_room(&mut self) -> bool {
        let had = !self.ended.is_empty();
        self.forget_oldest();
        had
    }

    fn forget_oldest(&mut self) {
        if let Some(row) = self.ended.pop_front() {
            self.rows.remove(&row);
        }
    }

    /// The owner has not got this row any more: if it ran as far as was known here, it ended, and nobody knows how; or
    /// it is not watched any more, if the owner's former agent was killed.
    fn vanished(&mut self, row: u32, version: u64, is_unsure: bool) {
        let Some(known) = self.rows.get_mut(&row) else { return };
        let Some(state) = known.content.as_mut().and_then(Content::state_mut) else {
            self.rows.remove(&row);
            return;
        };
        if state.is_final() || row == HOST_ROW {
            self.rows.remove(&row);
            self.ended.retain(|ended| *ended != row);
            return;
        }
        let before = *state;
        *state = ended_unseen(before);
        if is_unsure {
            *state = State { cause: Cause::Left, code: 0, ..*state };
        }
        known.version = version;
        let after = *state;
        self.events.push_back(Event::Changed { row, version, before, after });
        self.ended.push_back(row);
    }

    /// The table of this epoch is complete. Processes of the former one that are not in it have ended with the boot of that time; in the same boot nobody watches
    /// them any more, and what becomes of them is not known.
    fn end_former(&mut self, is_other_boot: bool) {
        for (_, (former, mut content)) in std::mem::take(&mut self.former) {
            if let Some(state) = content.state_mut() {
                *state = ended_unseen(*state);
                if !is_other_boot {
                    *state = State { cause: Cause::Left, code: 0, ..*state };
                }
            }
            self.events.push_back(Event::Lost { former, content });
        }
    }

    fn plan(&mut self, now_ns: u64) {
        if self.is_complete() {
            self.pull_at_ns = None;
            self.end_former(false);
            if std::mem::take(&mut self.lagged) {
                self.events.push_back(Event::Complete);
            }
            return;
        }
        self.lagged = true;
        if self.pull_at_ns.is_none() && self.epoch != 0 {
            let spread_ns = spread(self.me, self.origin, self.target, self.spread_ns);
            // Nobody is known to have lost the same when a whole table is wanted.
            let wait_ns = if self.complete == 0 { spread_ns } else { self.pace.of(GAP_NS) + spread_ns };
            self.pull_at_ns = Some(now_ns.saturating_add(wait_ns));
        }
    }

    /// When [`Replica::poll_pull`] has something.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<u64> {
        self.pull_at_ns
    }

    /// A pull that is due. It is due again later unless an answer comes.
    pub fn poll_pull(&mut self, now_ns: u64) -> Option<Pull> {
        if self.pull_at_ns.is_none_or(|at_ns| now_ns < at_ns) {
            return None;
        }
        let jitter_ns = spread(self.me, self.origin, now_ns, self.retry_ns / 4);
        self.pull_at_ns = Some(now_ns.saturating_add(self.retry_ns + jitter_ns));
        self.retry_ns = (self.retry_ns * 2).min(self.pace.of(*RETRY_NS.end()));
        let (from, list) = match &self.listing {
            Some(listing) => (listing.position, Some(listing.floor)),
            None => (self.complete, None),
        };
        Some(Pull { origin: self.origin, epoch: self.epoch, from, list })
    }

    /// The host cannot be reached: pulls wait until it is heard again ([`Replica::handle_version`]).
    pub fn pause(&mut self) {
        self.pull_at_ns = None;
        self.retry_ns = self.pace.of(*RETRY_NS.start());
    }

    /// What changed, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn invariants(&self) {
        debug_assert!(self.complete <= self.target || self.epoch == 0);
        debug_assert!(self.above.first().is_none_or(|version| *version > self.complete));
        debug_assert!(self.above.len() <= ABOVE_MAX);
        debug_assert!(self.rows.len() <= ROWS_MAX);
        debug_assert!(self.listing.as_ref().is_none_or(|l| l.position < l.floor.max(self.target)));
        debug_assert!(self.epoch != 0 || self.rows.is_empty());
    }
}

/// A process that ended while nobody watched it.
const fn ended_unseen(before: State) -> State {
    State { cause: Cause::Exited, grade: Grade::Certain, flags: State::CAUSE_UNKNOWN, code: -1, event_ns: before.event_ns }
}
