//! Tables: what a host publishes of itself and its processes, as versioned rows.
//!
//! Every host writes one table and has a copy of every other host's. Each change of a row gets the next
//! *version*. A change is pushed at once; every heartbeat names the version through which its sender's table
//! is complete; a host that lags [pulls](Pull) the rows with later versions. Nothing is confirmed, nothing
//! repeated: a lost push, a late joiner, a restart and a healed cable are one case.
//!
//! ```text
//! Change  32 bytes, any number in a frame, the first at a fixed offset:
//!  0  u32 origin   4  u32 row   8  u64 version
//! 16  u8  cause   17  u8  grade   18  u16 flags   20  i32 code   24  u64 event_ns
//!
//! Pull    u32 origin   u64 epoch   u64 from   u64 floor   u8 flags (1: a list of that floor goes on)
//!
//! Rows    u32 origin   u64 epoch   u64 from   u64 through   u64 complete   u64 floor   u8 flags (1: a list, 2: of an agent that was killed)
//!         u8×3 zero   rows: u32 row   u64 version   u8 type   u16 length   content
//! ```
//! `origin` is the host whose table it is. It differs from the sender where a gateway passes a table on.

use super::bytes::{Reader, put_address, put_text};
use crate::PATHS;
use crate::maintenance::{MAINTENANCE_NS, check_target};
use crate::verdict::{Cause, Confirmers, FenceMode, FencePromise, Grade};
use std::net::IpAddr;

/// The row that describes the host itself.
pub const HOST_ROW: u32 = 0;
/// The longest name, in bytes.
pub const NAME_MAX: usize = 64;

/// What became of a process, or of the host's agent (row [`HOST_ROW`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// [`Cause::Monitored`] while it runs; [`Cause::Doomed`], [`Cause::Hung`], or how it ended.
    pub cause: Cause,
    /// How sure.
    pub grade: Grade,
    /// [`State::CONFIRMS`], [`State::CAUSE_UNKNOWN`].
    pub flags: u16,
    /// Exit status, signal, or what stands still.
    pub code: i32,
    /// When it happened (CLOCK_MONOTONIC of the origin).
    pub event_ns: u64,
}

impl State {
    /// Bytes on the wire.
    pub const LEN: usize = 16;
    /// Flag: this confirms an earlier *doomed*, with the final code.
    pub const CONFIRMS: u16 = 1;
    /// Flag: it ended while nobody watched; that it ended is certain, how is unknown.
    pub const CAUSE_UNKNOWN: u16 = 2;

    /// A process that runs since `event_ns`.
    #[must_use]
    pub const fn running(event_ns: u64) -> Self {
        Self { cause: Cause::Monitored, grade: Grade::Certain, flags: 0, code: 0, event_ns }
    }

    /// Whether this state is never left again.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        self.cause.ends_process() && !matches!(self.cause, Cause::Doomed)
    }

    fn read(r: &mut Reader<'_>) -> Option<Self> {
        let cause = Cause::from_u8(r.u8()?)?;
        let grade = Grade::from_u8(r.u8()?)?;
        Some(Self { cause, grade, flags: r.u16()?, code: r.i32()?, event_ns: r.u64()? })
    }

    fn bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        (b[0], b[1]) = (self.cause as u8, self.grade as u8);
        b[2..4].copy_from_slice(&self.flags.to_be_bytes());
        b[4..8].copy_from_slice(&self.code.to_be_bytes());
        b[8..16].copy_from_slice(&self.event_ns.to_be_bytes());
        b
    }
}

/// A new state of one row, pushed the moment it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    /// Whose table.
    pub origin: u32,
    /// Which row; [`HOST_ROW`] for the agent itself.
    pub row: u32,
    /// The version of this change.
    pub version: u64,
    /// The row's state from now on.
    pub state: State,
}

impl Change {
    /// Bytes on the wire.
    pub const LEN: usize = 32;
    /// The most changes of one frame.
    pub const PER_FRAME: usize = super::BODY_MAX / Self::LEN;
    /// The most that leave in one frame: all paths carry it.
    pub const AT_ONCE: usize = (super::FRAME_SAFE - super::BODY_AT) / Self::LEN;

    /// The bytes of this change. Allocates nothing: this is the path of a crash.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0..4].copy_from_slice(&self.origin.to_be_bytes());
        b[4..8].copy_from_slice(&self.row.to_be_bytes());
        b[8..16].copy_from_slice(&self.version.to_be_bytes());
        b[16..].copy_from_slice(&self.state.bytes());
        b
    }

    /// Reads every change of a body. A change that this version cannot read, or one cut short, is `None`.
    pub fn read_all(body: &[u8]) -> impl Iterator<Item = Option<Self>> {
        body.chunks(Self::LEN).map(|b| {
            let mut r = Reader::new(b);
            let (origin, row, version) = (r.u32()?, r.u32()?, r.u64()?);
            Some(Self { origin, row, version, state: State::read(&mut r)? })
        })
    }
}

/// The sender has this table complete through `from` and asks for what followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pull {
    /// Whose table.
    pub origin: u32,
    /// Which table of that host; another one begins from nothing.
    pub epoch: u64,
    /// All versions up to here are known. 0: nothing.
    pub from: u64,
    /// In the middle of a list of the whole table that began under this floor ([`RowsHead::list`]).
    pub list: Option<u64>,
}

/// Flag of pulls and rows: they are of a list.
const LIST: u8 = 1;
/// Flag of rows: [`RowsHead::is_unsure`].
const UNSURE: u8 = 2;

impl Pull {
    /// Bytes on the wire.
    pub const LEN: usize = 29;

    /// Appends it to a body.
    pub fn write(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.origin.to_be_bytes());
        body.extend_from_slice(&self.epoch.to_be_bytes());
        body.extend_from_slice(&self.from.to_be_bytes());
        body.extend_from_slice(&self.list.unwrap_or(0).to_be_bytes());
        body.push(if self.list.is_some() { LIST } else { 0 });
    }

    /// Reads it; bytes behind it are a later version's.
    #[must_use]
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut r = Reader::new(body);
        let (origin, epoch, from, floor) = (r.u32()?, r.u64()?, r.u64()?, r.u64()?);
        Some(Self { origin, epoch, from, list: (r.u8()? & LIST != 0).then_some(floor) })
    }
}

/// What the rows of one frame are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowsHead {
    /// Whose table.
    pub origin: u32,
    /// Which table of that host.
    pub epoch: u64,
    /// With these rows, a copy that is complete through `from` …
    pub from: u64,
    /// … is complete through here.
    pub through: u64,
    /// The version through which the table is complete at its origin.
    pub complete: u64,
    /// The rows are part of a list of the whole table, in order of their versions, and this is the version of the
    /// last row that was removed from it: rows with lower versions that are not listed are gone. `None`: a
    /// difference.
    pub list: Option<u64>,
    /// The origin's agent was killed and has begun with the rows that it could find: whether one that is not listed has ended, it does not
    /// know.
    pub is_unsure: bool,
}

impl RowsHead {
    /// Bytes on the wire.
    pub const LEN: usize = 48;

    /// Appends it to a body.
    pub fn write(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.origin.to_be_bytes());
        for word in [self.epoch, self.from, self.through, self.complete, self.list.unwrap_or(0)] {
            body.extend_from_slice(&word.to_be_bytes());
        }
        let flags = if self.list.is_some() { LIST } else { 0 } | if self.is_unsure { UNSURE } else { 0 };
        body.extend_from_slice(&[flags, 0, 0, 0]);
    }

    /// Changes `through` of a head that was written at the front of `body`: rows that did not fit follow in
    /// another frame.
    pub fn set_through(body: &mut [u8], through: u64) {
        if let Some(place) = body.get_mut(20..28) {
            place.copy_from_slice(&through.to_be_bytes());
        }
    }

    fn read(r: &mut Reader<'_>) -> Option<Self> {
        let (origin, epoch, from, through, complete, floor) = (r.u32()?, r.u64()?, r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let flags = r.u8()?;
        r.take(3)?;
        let (list, is_unsure) = ((flags & LIST != 0).then_some(floor), flags & UNSURE != 0);
        Some(Self { origin, epoch, from, through, complete, list, is_unsure })
    }
}

/// What identifies a process for ever: a restart of its host's agent does not change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Instance {
    /// Its pid in its host's first pid namespace.
    pub pid: u32,
    /// When it started, in clock ticks since its host's boot (field 22 of /proc/PID/stat).
    pub start_ticks: u64,
}

/// A process of the origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its state.
    pub state: State,
    /// Its identity, within the boot that [`Host::boot`] names.
    pub instance: Instance,
    /// Its user.
    pub uid: u32,
    /// The largest piggyback it sends.
    pub pbsize: u16,
    /// The name it is watched under, at most [`NAME_MAX`] bytes.
    pub name: Box<str>,
}

/// The origin itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Its state: running, or how its agent left.
    pub state: State,
    /// The kernel's boot id.
    pub boot: u128,
    /// The largest piggyback it takes.
    pub size_max: u32,
    /// This incarnation follows others of the same agent, which had been given up although the agent ran on, from this
    /// one on: no process ended, and nothing that the agent keeps in memory is lost.
    pub renewed_from: Option<u32>,
    /// What it promises of its fence, once that is armed.
    pub fence: Option<FencePromise>,
    /// What it will promise: its fence is not armed yet, and its heartbeats are to be confirmed as often as if it were.
    pub starting: Option<FencePromise>,
    /// Its unicast address on each path.
    pub addresses: [Option<IpAddr>; PATHS],
    /// Its name.
    pub name: Box<str>,
}

/// An interest of an application on the origin in a process elsewhere (`on_monitor_req`, FiDe Listing 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interest {
    /// The host of that process.
    pub node: u32,
    /// Its row there.
    pub row: u32,
    /// The piggyback size wanted.
    pub pbsize: u16,
    /// False once the application has lost interest.
    pub is_held: bool,
}

/// A maintenance, as one host knows it. Every host writes down those that it knows, so that any of them tells a newcomer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Maintenance {
    /// Of two about the same target the one with the higher stamp holds. Milliseconds since 1970 by the clock of the host where
    /// it was set, and more than any stamp that was known there.
    pub stamp: u64,
    /// How long it still lasted when this row was written, ms; 0: it is over. No clocks are compared.
    pub left_ms: u64,
    /// The user who set it or ended it.
    pub uid: u32,
    /// The host where that was.
    pub by: Box<str>,
    /// Whom it covers ([`crate::maintenance::covers`]).
    pub target: Box<str>,
    /// Why, in the operator's words.
    pub reason: Box<str>,
}

/// The keys that a host accepts, by id and fingerprint. It sends with the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Keys(pub Vec<(u8, u64)>);

/// The agent that writes a table, for whoever looks at all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Agent {
    /// Its version.
    pub version: Box<str>,
    /// What fails together with its host; empty: not said.
    pub zone: Box<str>,
    /// Groups that it knows: those that its host is a member of, is to be one of, or keeps the log of.
    pub groups: u16,
    /// Those of them that run there.
    pub running: u16,
}

/// What a row says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// Row [`HOST_ROW`].
    Host(Host),
    /// A monitored process.
    Process(Process),
    /// An interest in a process of another host.
    Interest(Interest),
    /// What an operator has put in maintenance.
    Maintenance(Maintenance),
    /// The keys that the origin holds.
    Keys(Keys),
    /// The origin's agent.
    Agent(Agent),
    /// Of a type that this version does not know: its version counts, its content does not.
    Unknown(u8),
}

/// One row and the version of its last change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Its number: never used for another row of the same table.
    pub row: u32,
    /// The version of its last change.
    pub version: u64,
    /// What it says.
    pub content: Content,
}

impl Row {
    /// Bytes before a row's content.
    pub const HEAD_LEN: usize = 15;

    /// Appends the row to a body if it fits `room` bytes in all; false, and nothing appended, if not.
    pub fn push(&self, body: &mut Vec<u8>, room: usize) -> bool {
        let before = body.len();
        body.extend_from_slice(&self.row.to_be_bytes());
        body.extend_from_slice(&self.version.to_be_bytes());
        body.push(self.content.number());
        body.extend_from_slice(&[0, 0]);
        self.content.write(body);
        let length = body.len() - before - Self::HEAD_LEN;
        if body.len() > room.min(super::BODY_MAX) {
            body.truncate(before);
            return false;
        }
        body[before + 13..before + 15].copy_from_slice(&(length as u16).to_be_bytes());
        true
    }

    /// Reads one row that [`Row::push`] wrote, and nothing behind it.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        Self::read(&mut r).filter(|_| r.rest().is_empty())
    }

    fn read(r: &mut Reader<'_>) -> Option<Self> {
        let (row, version, number, length) = (r.u32()?, r.u64()?, r.u8()?, r.u16()?);
        let content = Content::read(number, &mut Reader::new(r.take(length.into())?))?;
        let is_in_place = (row == HOST_ROW) == matches!(content, Content::Host(_));
        (is_in_place || matches!(content, Content::Unknown(_))).then_some(Self { row, version, content })
    }
}

/// Reads the body of a rows frame: its head and every row. `None` if any of it cannot be read: a difference
/// with a hole must not count as complete.
#[must_use]
pub fn read_rows(body: &[u8]) -> Option<(RowsHead, Vec<Row>)> {
    let mut r = Reader::new(body);
    let head = RowsHead::read(&mut r)?;
    let mut rows = Vec::new();
    while !r.rest().is_empty() {
        rows.push(Row::read(&mut r)?);
    }
    let in_range = |row: &Row| row.version > head.from && row.version <= head.through;
    let in_order = rows.is_sorted_by_key(|row| row.version);
    (in_order && head.from <= head.through && rows.iter().all(in_range)).then_some((head, rows))
}

impl Content {
    const fn number(&self) -> u8 {
        match self {
            Content::Host(_) => 0,
            Content::Process(_) => 1,
            Content::Interest(_) => 2,
            Content::Maintenance(_) => 3,
            Content::Keys(_) => 4,
            Content::Agent(_) => 5,
            Content::Unknown(number) => *number,
        }
    }

    fn write(&self, body: &mut Vec<u8>) {
        match self {
            Content::Host(host) => host.write(body),
            Content::Process(p) => {
                body.extend_from_slice(&p.state.bytes());
                body.extend_from_slice(&p.instance.pid.to_be_bytes());
                body.extend_from_slice(&p.instance.start_ticks.to_be_bytes());
                body.extend_from_slice(&p.uid.to_be_bytes());
                body.extend_from_slice(&p.pbsize.to_be_bytes());
                put_text(body, &p.name);
            }
            Content::Interest(i) => {
                body.extend_from_slice(&i.node.to_be_bytes());
                body.extend_from_slice(&i.row.to_be_bytes());
                body.extend_from_slice(&i.pbsize.to_be_bytes());
                body.push(i.is_held.into());
            }
            Content::Maintenance(m) => m.write(body),
            Content::Keys(keys) => keys.write(body),
            Content::Agent(agent) => agent.write(body),
            Content::Unknown(_) => {}
        }
    }

    fn read(number: u8, r: &mut Reader<'_>) -> Option<Self> {
        Some(match number {
            0 => Content::Host(Host::read(r)?),
            1 => {
                let state = State::read(r)?;
                let instance = Instance { pid: r.u32()?, start_ticks: r.u64()? };
                let (uid, pbsize) = (r.u32()?, r.u16()?);
                Content::Process(Process { state, instance, uid, pbsize, name: name(r)? })
            }
            2 => {
                let (node, row, pbsize) = (r.u32()?, r.u32()?, r.u16()?);
                Content::Interest(Interest { node, row, pbsize, is_held: r.u8()? == 1 })
            }
            3 => Content::Maintenance(Maintenance::read(r)?),
            4 => Content::Keys(Keys::read(r)?),
            5 => Content::Agent(Agent::read(r)?),
            number => Content::Unknown(number),
        })
    }

    /// The state, for rows that have one.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        match self {
            Content::Host(host) => Some(host.state),
            Content::Process(process) => Some(process.state),
            Content::Interest(_) | Content::Maintenance(_) | Content::Keys(_) | Content::Agent(_) | Content::Unknown(_) => None,
        }
    }

    /// Whether the row never changes again: its process has ended, or nobody has that interest any more.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        match self {
            Content::Process(process) => process.state.is_final(),
            Content::Interest(interest) => !interest.is_held,
            Content::Host(_) | Content::Maintenance(_) | Content::Keys(_) | Content::Agent(_) | Content::Unknown(_) => false,
        }
    }

    /// The state, for rows that have one, to be changed.
    pub fn state_mut(&mut self) -> Option<&mut State> {
        match self {
            Content::Host(host) => Some(&mut host.state),
            Content::Process(process) => Some(&mut process.state),
            Content::Interest(_) | Content::Maintenance(_) | Content::Keys(_) | Content::Agent(_) | Content::Unknown(_) => None,
        }
    }
}

/// A name that may stand in messages and file names: printable, not empty, not too long.
fn name(r: &mut Reader<'_>) -> Option<Box<str>> {
    let text = r.text()?;
    let is_name = !text.is_empty() && text.len() <= NAME_MAX && !text.chars().any(char::is_control);
    is_name.then(|| text.into())
}

impl Maintenance {
    /// Stamps beyond this cannot be: some room is left for those that follow one.
    const STAMP_MAX: u64 = 1 << 62;

    fn write(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.stamp.to_be_bytes());
        body.extend_from_slice(&self.left_ms.to_be_bytes());
        body.extend_from_slice(&self.uid.to_be_bytes());
        [&self.by, &self.target, &self.reason].into_iter().for_each(|text| put_text(body, text));
    }

    fn read(r: &mut Reader<'_>) -> Option<Self> {
        let (stamp, left_ms, uid, by) = (r.u64()?, r.u64()?, r.u32()?, name(r)?);
        let target: Box<str> = r.text()?.into();
        let reason: Box<str> = r.text()?.into();
        let left_ms = left_ms.min(MAINTENANCE_NS.end() / 1_000_000);
        let is_sound = stamp <= Self::STAMP_MAX && check_target(&target).is_ok() && !reason.chars().any(char::is_control);
        is_sound.then_some(Self { stamp, left_ms, uid, by, target, reason })
    }
}

impl Keys {
    /// As many as there are ids.
    const MAX: usize = 15;

    fn write(&self, body: &mut Vec<u8>) {
        let keys = &self.0[..self.0.len().min(Self::MAX)];
        body.push(keys.len() as u8);
        for (id, fingerprint) in keys {
            body.push(*id);
            body.extend_from_slice(&fingerprint.to_be_bytes());
        }
    }

    fn read(r: &mut Reader<'_>) -> Option<Self> {
        let count = usize::from(r.u8()?);
        let keys: Option<Vec<_>> = (0..count).map(|_| Some((r.u8()?, r.u64()?))).collect();
        keys.filter(|keys| keys.len() <= Self::MAX).map(Self)
    }
}

impl Agent {
    fn write(&self, body: &mut Vec<u8>) {
        put_text(body, &self.version);
        put_text(body, &self.zone);
        body.extend_from_slice(&self.groups.to_be_bytes());
        body.extend_from_slice(&self.running.to_be_bytes());
    }

    fn read(r: &mut Reader<'_>) -> Option<Self> {
        let mut text = || {
            let text = r.text()?;
            (text.len() <= NAME_MAX && !text.chars().any(char::is_control)).then(|| Box::from(text))
        };
        Some(Self { version: text()?, zone: text()?, groups: r.u16()?, running: r.u16()? })
    }
}

impl Host {
    const RENEWED: u8 = 1;
    const FENCED: u8 = 2;
    const STARTING: u8 = 4;

    pub(super) fn write(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.state.bytes());
        body.extend_from_slice(&self.boot.to_be_bytes());
        body.extend_from_slice(&self.size_max.to_be_bytes());
        let starting = self.starting.filter(|_| self.fence.is_none());
        let flags = [
            (self.renewed_from.is_some(), Self::RENEWED),
            (self.fence.is_some(), Self::FENCED),
            (starting.is_some(), Self::STARTING),
        ];
        body.push(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
        if let Some(from) = self.renewed_from {
            body.extend_from_slice(&from.to_be_bytes());
        }
        if let Some(fence) = self.fence.or(starting) {
            let (mode, at_least) = match fence.mode {
                FenceMode::Sent => (0, 0),
                FenceMode::Acknowledged(Confirmers::All) => (1, 0),
                FenceMode::Acknowledged(Confirmers::Majority) => (2, 0),
                FenceMode::Acknowledged(Confirmers::AtLeast(n)) => (3, n),
            };
            body.extend_from_slice(&fence.timeout_ns.to_be_bytes());
            body.extend_from_slice(&[mode, fence.host.into()]);
            body.extend_from_slice(&at_least.to_be_bytes());
        }
        self.addresses.iter().for_each(|address| put_address(body, *address));
        put_text(body, &self.name);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Option<Self> {
        let (state, boot, size_max, flags) = (State::read(r)?, r.u128()?, r.u32()?, r.u8()?);
        let renewed_from = if flags & Self::RENEWED == 0 { None } else { Some(r.u32()?) };
        let promise = if flags & (Self::FENCED | Self::STARTING) == 0 {
            None
        } else {
            let (timeout_ns, mode, host, at_least) = (r.u64()?, r.u8()?, r.u8()? == 1, r.u16()?);
            let mode = match mode {
                0 => FenceMode::Sent,
                1 => FenceMode::Acknowledged(Confirmers::All),
                2 => FenceMode::Acknowledged(Confirmers::Majority),
                3 => FenceMode::Acknowledged(Confirmers::AtLeast(at_least)),
                _ => return None,
            };
            Some(FencePromise { timeout_ns, mode, host })
        };
        let addresses = r.addresses()?;
        let fence = promise.filter(|_| flags & Self::FENCED != 0);
        let starting = promise.filter(|_| fence.is_none());
        Some(Self { state, boot, size_max, renewed_from, fence, starting, addresses, name: name(r)? })
    }
}
