//! What every member of a group makes of the log, alike: which member lives where, the applications' entries, and which of
//! their proposals were applied.
//!
//! # Records
//! A value of the log is a record: an application's value with its client and that client's number, or a *binding* of a member's
//! id to a life of a node. A binding is proposed before the member's join, and the first one of an id counts.
//!
//! # Once
//! A client numbers its proposals in growing order and hands in again, in order, what it has not seen applied, at any member. A
//! number that is not above the client's last one is void everywhere. The last [`CLIENTS_MAX`] clients are remembered, and of each the last
//! [`SKIPPED_MAX`] runs of numbers that it passed over: [`State::fate`] says what became of a proposal.

use super::large::LargeRef;
use crate::consensus::log::Position;
use crate::group::{Entry, MemberId, VALUE_MAX, Value};
use fide_wire::frame::bytes::Reader;
use fide_wire::session::Fate;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Clients whose last number is remembered.
pub const CLIENTS_MAX: usize = 4096;
/// Runs of numbers that a client passed over, of which it is remembered that they were not decided.
pub const SKIPPED_MAX: usize = 16;
/// Bytes of a record before an application's value.
pub const RECORD_LEN: usize = 17;
/// The largest value of an application.
pub const APP_VALUE_MAX: usize = VALUE_MAX - RECORD_LEN;
/// Most bytes of entries that are kept for who reads slowly, or joins: a newcomer gets them in one message, which its sender's loop writes in one go.
pub const KEPT_BYTES_MAX: usize = 2 << 20;

/// So many more for small values.
pub const KEPT_RESERVE: usize = 256 << 10;

/// An entry's bytes beside its value, about.
const ENTRY_LEN: usize = 24;

const VALUE: u8 = 0;
const BINDING: u8 = 1;

/// Which life of which node a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Binding {
    /// The member.
    pub member: MemberId,
    /// Its node.
    pub node: u32,
    /// That node's incarnation.
    pub incarnation: u32,
}

/// What a value of the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// An application's.
    Value {
        /// Whose.
        client: u64,
        /// Its number, from 1.
        number: u64,
        /// What.
        bytes: &'a [u8],
    },
    /// Who a member is.
    Binding(Binding),
}

impl<'a> Record<'a> {
    /// Reads it; none that a member of this build can have written.
    #[must_use]
    pub fn read(value: &'a [u8]) -> Option<Self> {
        let mut r = Reader::new(value);
        match r.u8()? {
            VALUE => Some(Record::Value { client: r.u64()?, number: r.u64()?, bytes: r.rest() }),
            BINDING => {
                let binding = Binding { member: MemberId(r.u16()?), node: r.u32()?, incarnation: r.u32()? };
                r.rest().is_empty().then_some(Record::Binding(binding))
            }
            _ => None,
        }
    }

    /// As a value of the log.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut out = Vec::new();
        match self {
            Record::Value { client, number, bytes } => {
                out.reserve(RECORD_LEN + bytes.len());
                out.push(VALUE);
                out.extend_from_slice(&client.to_be_bytes());
                out.extend_from_slice(&number.to_be_bytes());
                out.extend_from_slice(bytes);
            }
            Record::Binding(binding) => {
                out.push(BINDING);
                out.extend_from_slice(&binding.member.0.to_be_bytes());
                out.extend_from_slice(&binding.node.to_be_bytes());
                out.extend_from_slice(&binding.incarnation.to_be_bytes());
            }
        }
        out.into()
    }
}

/// An entry as applications get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The how-manieth of the group, from 1, without a gap.
    pub index: u64,
    /// Its place in the log, where control entries count, too.
    pub position: Position,
    /// The member that proposed it.
    pub member: MemberId,
    record: Value,
}

impl Applied {
    /// Client, number and bytes.
    #[must_use]
    pub fn value(&self) -> (u64, u64, &[u8]) {
        match Record::read(&self.record) {
            Some(Record::Value { client, number, bytes }) => (client, number, bytes),
            // Nothing else is kept.
            _ => (0, 0, &[]),
        }
    }
}

/// What is known of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Client {
    /// Its last number that was applied.
    last: u64,
    /// The index at which that came.
    at: u64,
    /// Runs of numbers that it passed over, first and last of each: none of them was decided, nor will be.
    skipped: Vec<(u64, u64)>,
    /// Of the numbers through this one, nothing is remembered.
    forgotten: u64,
}

/// The part of the state that is no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Application entries so far.
    pub index: u64,
    /// Who each member is.
    pub bindings: BTreeMap<MemberId, Binding>,
    clients: BTreeMap<u64, Client>,
    /// Some client is not remembered any more.
    has_forgotten: bool,
}

impl Base {
    fn apply(&mut self, entry: &Entry) -> Option<u64> {
        let crate::group::Body::Value(value) = &entry.body else { return None };
        match Record::read(value)? {
            Record::Binding(binding) => {
                // A member stays where it is, and may go on in a later incarnation.
                let bound = self.bindings.entry(binding.member).or_insert(binding);
                if bound.node == binding.node {
                    bound.incarnation = bound.incarnation.max(binding.incarnation);
                }
                None
            }
            Record::Value { client, number, .. } => {
                // What a client that is new here numbered before is not known.
                let new = Client { last: number.saturating_sub(1), forgotten: number.saturating_sub(1), ..Client::default() };
                let known = self.clients.entry(client).or_insert(new);
                if number <= known.last {
                    return None;
                }
                self.index += 1;
                if number > known.last + 1 {
                    known.skipped.push((known.last + 1, number - 1));
                }
                if known.skipped.len() > SKIPPED_MAX {
                    known.forgotten = known.skipped.remove(0).1;
                }
                (known.last, known.at) = (number, self.index);
                if self.clients.len() > CLIENTS_MAX {
                    let oldest = self.clients.iter().min_by_key(|(_, known)| known.at).map(|(client, _)| *client);
                    oldest.map(|client| self.clients.remove(&client));
                    self.has_forgotten = true;
                }
                Some(self.index)
            }
        }
    }

    fn fate(&self, client: u64, number: u64) -> Fate {
        match self.clients.get(&client) {
            None if self.has_forgotten => Fate::Forgotten,
            None => Fate::Open,
            Some(known) if number > known.last => Fate::Open,
            Some(known) if number <= known.forgotten => Fate::Forgotten,
            Some(known) if known.skipped.iter().any(|(first, last)| (*first..=*last).contains(&number)) => Fate::Never,
            Some(_) => Fate::Decided,
        }
    }
}

/// A state of the application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppState {
    /// As it is.
    Bytes(Vec<u8>),
    /// One that is too large for links.
    Large(LargeRef),
}

/// A snapshot: the application's state, and what the group knows behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Snapshot {
    base: Base,
    /// Empty for a large one, whose name follows.
    state: Vec<u8>,
}

fn write_snapshot(base: &Base, state: &AppState) -> Option<Value> {
    let (state, large) = match state {
        AppState::Bytes(bytes) => (bytes.clone(), None),
        AppState::Large(at) => (Vec::new(), Some(at)),
    };
    let bytes = postcard::to_stdvec(&Snapshot { base: base.clone(), state }).ok()?;
    match large {
        Some(at) => postcard::to_extend(at, bytes).ok().map(Value::from),
        None => Some(bytes.into()),
    }
}

fn read_snapshot(bytes: &[u8]) -> Result<(Base, AppState), Malformed> {
    let (Snapshot { base, state }, rest) = postcard::take_from_bytes(bytes).map_err(|_| Malformed)?;
    if rest.is_empty() {
        return Ok((base, AppState::Bytes(state)));
    }
    let (at, rest) = postcard::take_from_bytes::<LargeRef>(rest).map_err(|_| Malformed)?;
    if rest.is_empty() && state.is_empty() && at.is_sane() { Ok((base, AppState::Large(at))) } else { Err(Malformed) }
}

/// One member's copy of the group's state.
#[derive(Clone, Debug, Default)]
pub struct State {
    now: Base,
    /// Where the kept entries begin, and the application's state there.
    kept_from: Base,
    snapshot: Option<AppState>,
    snapshot_position: Position,
    /// Every entry of the log since, the application's among them.
    entries: VecDeque<(Position, Entry)>,
    applied: VecDeque<Applied>,
    bytes: usize,
}

impl State {
    /// Nothing was applied; these are the first members.
    #[must_use]
    pub fn new(bindings: &[Binding]) -> Self {
        let bindings = bindings.iter().map(|binding| (binding.member, *binding)).collect();
        let base = Base { bindings, ..Base::default() };
        Self { now: base.clone(), kept_from: base, ..Self::default() }
    }

    /// The next entry of the log; whether it is one for applications.
    pub fn apply(&mut self, position: Position, entry: Entry) -> bool {
        let index = self.now.apply(&entry);
        let value = if let crate::group::Body::Value(value) = &entry.body { value.clone() } else { Value::from([]) };
        self.bytes += value.len() + ENTRY_LEN;
        if let Some(index) = index {
            self.applied.push_back(Applied { index, position, member: entry.id.proposer, record: value });
        }
        self.entries.push_back((position, entry));
        index.is_some()
    }

    /// The state of the others at this position, for one that joins or lags.
    ///
    /// # Errors
    /// When nobody of this build can have made that snapshot: nothing is changed.
    pub fn install(&mut self, position: Position, snapshot: Option<&[u8]>) -> Result<(), Malformed> {
        let Some(bytes) = snapshot else {
            // From the begin; who the members were then, the newcomer was told when it was let in.
            let bindings: Vec<_> = self.kept_from.bindings.values().copied().collect();
            *self = Self::new(&bindings);
            return Ok(());
        };
        let (base, state) = read_snapshot(bytes)?;
        *self = Self {
            now: base.clone(),
            kept_from: base,
            snapshot: Some(state),
            snapshot_position: position,
            entries: VecDeque::new(),
            applied: VecDeque::new(),
            bytes: 0,
        };
        Ok(())
    }

    /// The log's last entry that was applied.
    #[must_use]
    pub fn position(&self) -> Position {
        self.entries.back().map_or(self.snapshot_position, |(position, _)| *position)
    }

    /// Through which entry of the log the snapshot goes.
    pub(super) const fn snapshot_position(&self) -> Position {
        self.snapshot_position
    }

    /// The log through this position, which is not before the snapshot: position of the snapshot,
    /// itself, and the entries since.
    pub(super) fn log_through(&self, position: Position) -> (Position, Option<Value>, Vec<Entry>) {
        let snapshot = self.snapshot.as_ref().and_then(|state| write_snapshot(&self.kept_from, state));
        let entries = self.entries.iter().take_while(|(at, _)| *at <= position).map(|(_, entry)| entry.clone()).collect();
        (self.snapshot_position, snapshot, entries)
    }

    /// Entries of the log behind a position, through another one.
    pub(super) fn log_between(&self, behind: Position, through: Position) -> Vec<Entry> {
        let from = self.entries.partition_point(|(at, _)| *at <= behind);
        self.entries.range(from..).take_while(|(at, _)| *at <= through).map(|(_, entry)| entry.clone()).collect()
    }

    /// The application's state behind its entry `index`: what comes before need not be kept. Gives position and value for
    /// [`Log::keep_snapshot`](crate::consensus::log::Log::keep_snapshot); nothing for an index that is not kept any more, or is still to come.
    pub fn keep_snapshot(&mut self, index: u64, state: AppState) -> Option<(Position, Value)> {
        let position = self.applied.iter().find(|applied| applied.index == index)?.position;
        while self.entries.front().is_some_and(|(at, _)| *at <= position) {
            let Some((_, entry)) = self.entries.pop_front() else { break };
            self.kept_from.apply(&entry);
            if let crate::group::Body::Value(value) = &entry.body {
                self.bytes -= value.len();
            }
            self.bytes -= ENTRY_LEN;
        }
        while self.applied.front().is_some_and(|applied| applied.position <= position) {
            self.applied.pop_front();
        }
        let value = write_snapshot(&self.kept_from, &state)?;
        (self.snapshot, self.snapshot_position) = (Some(state), position);
        Some((position, value))
    }

    /// The entries behind `index`; nothing if those are not kept any more, and the snapshot must be taken first.
    #[must_use]
    pub fn entries_behind(&self, index: u64) -> Option<impl Iterator<Item = &Applied>> {
        let skipped = index.checked_sub(self.kept_from.index)?;
        Some(self.applied.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX)))
    }

    /// The application's state at the begin of what is kept, and the index of its last entry.
    #[must_use]
    pub fn snapshot(&self) -> (u64, Option<&AppState>) {
        (self.kept_from.index, self.snapshot.as_ref())
    }

    /// The application's state at the begin of what is kept, if it is a large one.
    pub(super) fn large(&self) -> Option<LargeRef> {
        match &self.snapshot {
            Some(AppState::Large(at)) => Some(*at),
            _ => None,
        }
    }

    /// Whether this entry was applied, and is still kept.
    pub(super) fn has_applied(&self, index: u64) -> bool {
        (self.kept_from.index + 1..=self.now.index).contains(&index)
    }

    /// Application entries so far.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.now.index
    }

    /// The last number of this client that was applied; 0 if none is known.
    #[must_use]
    pub fn last_of(&self, client: u64) -> u64 {
        self.now.clients.get(&client).map_or(0, |known| known.last)
    }

    /// What became of this client's proposal, as far as entries were applied here.
    #[must_use]
    pub fn fate(&self, client: u64, number: u64) -> Fate {
        self.now.fate(client, number)
    }

    /// The highest member that a snapshot knows of; none if nobody of this build can have made it.
    pub(super) fn highest_in(snapshot: &[u8]) -> Option<MemberId> {
        let (base, _) = read_snapshot(snapshot).ok()?;
        Some(base.bindings.keys().next_back().copied().unwrap_or(MemberId(0)))
    }

    /// Who each member is, former ones included.
    #[must_use]
    pub const fn bindings(&self) -> &BTreeMap<MemberId, Binding> {
        &self.now.bindings
    }

    /// Bytes of the entries that are kept.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A snapshot that no member of this build can have made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

#[cfg(test)]
mod tests {
    use super::super::large::LargeId;
    use super::*;
    use crate::group::{Body, EntryId};
    use fide_wire::session::SNAPSHOT_MAX;

    fn entry(n: u64, record: &Record<'_>) -> Entry {
        Entry { id: EntryId { proposer: MemberId(1), number: n }, body: Body::Value(record.to_value()) }
    }

    fn value(client: u64, number: u64) -> Record<'static> {
        Record::Value { client, number, bytes: b"x" }
    }

    #[test]
    fn a_proposal_that_was_handed_in_again_is_applied_once() {
        let mut state = State::new(&[]);
        let records = [value(7, 1), value(7, 2), value(8, 1), value(7, 1), value(7, 2), value(7, 3)];
        let applied: Vec<bool> =
            records.iter().enumerate().map(|(n, record)| state.apply(n as u64 + 1, entry(n as u64 + 1, record))).collect();
        assert_eq!(applied, [true, true, true, false, false, true]);
        let indices: Vec<u64> = state.entries_behind(1).unwrap().map(|applied| applied.index).collect();
        assert_eq!((indices, state.last_of(7), state.last_of(9)), (vec![2, 3, 4], 3, 0));
    }

    #[test]
    fn what_became_of_a_proposal_is_remembered() {
        let mut state = State::new(&[]);
        for (at, number) in [3, 4, 7, 8].into_iter().enumerate() {
            state.apply(at as u64 + 1, entry(at as u64 + 1, &value(7, number)));
        }
        let fates = [2, 3, 4, 5, 6, 7, 8, 9].map(|number| state.fate(7, number));
        assert_eq!(
            fates,
            [Fate::Forgotten, Fate::Decided, Fate::Decided, Fate::Never, Fate::Never, Fate::Decided, Fate::Decided, Fate::Open]
        );
        assert_eq!(state.fate(8, 1), Fate::Open, "nobody is forgotten yet");
        let mut at = 4;
        let mut next = |client, number| {
            at += 1;
            state.apply(at, entry(at, &value(client, number)));
            state.fate(7, 5)
        };
        for run in 0..SKIPPED_MAX as u64 {
            let expected = if run + 1 < SKIPPED_MAX as u64 { Fate::Never } else { Fate::Forgotten };
            assert_eq!(next(7, 10 + 2 * run), expected, "run {run}");
        }
        for client in 0..CLIENTS_MAX as u64 {
            next(1000 + client, 1);
        }
        assert_eq!((state.fate(7, 8), state.fate(9, 1)), (Fate::Forgotten, Fate::Forgotten));
        assert_eq!(state.fate(1000 + CLIENTS_MAX as u64 - 1, 1), Fate::Decided);
    }

    #[test]
    fn the_first_binding_of_an_id_counts() {
        let first = Binding { member: MemberId(4), node: 1, incarnation: 1 };
        let second = Binding { node: 2, ..first };
        let mut state = State::new(&[]);
        state.apply(1, entry(1, &Record::Binding(first)));
        state.apply(2, entry(2, &Record::Binding(second)));
        assert_eq!(state.bindings()[&MemberId(4)], first);
        let later = Binding { incarnation: 3, ..first };
        state.apply(3, entry(3, &Record::Binding(later)));
        state.apply(4, entry(4, &Record::Binding(first)));
        assert_eq!(state.bindings()[&MemberId(4)], later, "it goes on in a later incarnation");
    }

    #[test]
    fn a_snapshot_stands_for_what_came_before_it_and_for_nothing_else() {
        let binding = Binding { member: MemberId(2), node: 9, incarnation: 3 };
        let mut state = State::new(&[]);
        state.apply(1, entry(1, &value(7, 1)));
        state.apply(2, entry(2, &Record::Binding(binding)));
        state.apply(3, entry(3, &value(7, 2)));
        state.apply(4, entry(4, &value(7, 3)));
        assert_eq!(state.keep_snapshot(9, AppState::Bytes(vec![])), None, "it is still to come");
        let bytes = AppState::Bytes(b"state".to_vec());
        let (position, snapshot) = state.keep_snapshot(2, bytes.clone()).unwrap();
        assert_eq!((position, state.snapshot()), (3, (2, Some(&bytes))));
        assert!(state.entries_behind(1).is_none(), "not kept any more");
        let mut other = State::new(&[]);
        other.install(position, Some(&snapshot)).unwrap();
        assert_eq!((other.index(), other.last_of(7), other.bindings().get(&MemberId(2))), (2, 2, Some(&binding)));
        other.apply(4, entry(4, &value(7, 3)));
        assert_eq!(other.now, state.now);
        assert_eq!(other.entries_behind(2).unwrap().count(), 1);
        assert_eq!(other.install(3, Some(b"\xff")), Err(Malformed));
    }

    #[test]
    fn a_snapshot_has_a_state_or_its_name() {
        let id = LargeId { node: 1, incarnation: 2, serial: 3 };
        let at = LargeRef { id, len: SNAPSHOT_MAX };
        let large = AppState::Large(at);
        let mut state = State::new(&[]);
        state.apply(1, entry(1, &value(7, 1)));
        let (position, snapshot) = state.keep_snapshot(1, large.clone()).unwrap();
        let mut other = State::new(&[]);
        other.install(position, Some(&snapshot)).unwrap();
        assert_eq!((other.snapshot(), other.large()), ((1, Some(&large)), Some(at)));
        for cut in 1..snapshot.len() {
            let _ = State::new(&[]).install(1, Some(&snapshot[..cut]));
        }
        assert_eq!(State::new(&[]).install(1, Some(&snapshot[..snapshot.len() - 1])), Err(Malformed));
        assert_eq!(State::new(&[]).install(1, Some(&[&snapshot, &[0][..]].concat())), Err(Malformed));
        for len in [0, SNAPSHOT_MAX + 1] {
            let snapshot = write_snapshot(&Base::default(), &AppState::Large(LargeRef { id, len })).unwrap();
            assert_eq!(State::new(&[]).install(1, Some(&snapshot)), Err(Malformed), "{len}");
        }
    }

    #[test]
    fn records_that_nobody_wrote_are_no_records() {
        assert_eq!(Record::read(&[]), None);
        assert_eq!(Record::read(&[2, 0]), None);
        assert_eq!(Record::read(&[VALUE, 1]), None);
        let binding = Record::Binding(Binding { member: MemberId(1), node: 2, incarnation: 3 });
        let mut long = binding.to_value().to_vec();
        assert_eq!(Record::read(&long), Some(binding));
        long.push(0);
        assert_eq!(Record::read(&long), None);
    }
}
