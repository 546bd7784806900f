//! What agents tell each other in frames ([`crate::frame`]): kinds and their bodies.
//!
//! | kind | on the wire | body |
//! |---|---|---|
//! | heartbeat | [`frame::Kind::Heartbeat`] | nothing, or items ([`frame::items`]): the piggyback of one process first, then those of groups |
//! | notices | [`frame::Kind::Change`] | [`Change`]s of the sender's own table, of processes, as many as came together |
//! | leave | [`frame::Kind::Change`] | one [`Change`] of row 0, the sender's agent |
//! | pull | [`frame::Kind::Pull`] | [`frame::table::Pull`] |
//! | rows | [`frame::Kind::Rows`] | [`frame::table::RowsHead`] and rows |
//! | path report | [`frame::Kind::PathReport`] | [`ReportEntry`] each |
//! | introduction, announcement | [`frame::Kind::Introduction`] | [`frame::introduction::Introduction`] |
//! | hello | [`frame::Kind::Hello`] | [`frame::introduction::Hello`] |
//! | message | [`frame::Kind::Message`], channel [`Channel::Groups`] | a segment of the link between two nodes' groups |
//! | copy | [`frame::Kind::Copy`], channel [`Channel::Groups`] | a round of a group's LOWI, a copy by each path |
//!
//! `number` grows within (sender, incarnation, path, class), the classes being heartbeats and everything else; what does
//! not grow is refused as a replay. Frames of other kinds are authenticated, counted as [`Refusal::Kind`] and ignored.

use crate::PIGGYBACK_MAX;
use crate::frame::table::{Change, State};
use crate::frame::{self, BODY_AT, Channel, items};
use crate::mac::Keyring;
use crate::verdict::{Cause, Grade};
use serde::{Deserialize, Serialize};

pub use crate::frame::{MAGIC, NUMBER_MAX, TAG_LEN, VERSION};

/// Bytes before a piggybacked message, behind the head of its item: the low half of the number of the process it is from.
pub const PIGGYBACK_HEAD: usize = items::APP_LEN;
/// Largest body: for a heartbeat, of its piggyback with [`PIGGYBACK_HEAD`].
pub const BODY_MAX: usize = PIGGYBACK_HEAD + PIGGYBACK_MAX;
/// Largest packet.
pub const PACKET_MAX: usize = frame::FRAME_MAX;
/// Bytes of a heartbeat's headers above IP: UDP, the fixed part with its tag, and the head of the piggyback.
pub const HEARTBEAT_OVERHEAD: usize = 8 + BODY_AT + items::HEAD_LEN + PIGGYBACK_HEAD;

// FiDe §3.1: 1418 bytes of piggyback in an ordinary 1500-byte IPv4 frame.
const _: () = assert!(20 + HEARTBEAT_OVERHEAD + PIGGYBACK_MAX <= 1500);
const _: () = assert!(BODY_MAX + items::HEAD_LEN <= frame::BODY_MAX);

/// The largest piggyback on an interface with this MTU.
#[must_use]
pub const fn piggyback_max(mtu: usize, ipv6: bool) -> usize {
    let ip = if ipv6 { 40 } else { 20 };
    let room = mtu.saturating_sub(ip + HEARTBEAT_OVERHEAD);
    if room < PIGGYBACK_MAX { room } else { PIGGYBACK_MAX }
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Periodic; its body is the piggyback.
    Heartbeat,
    /// Verdicts about processes of the sender, one or several.
    Notice,
    /// The sender's agent leaves: a notice with app 0.
    Leave,
    /// The sender lags behind a table.
    Pull,
    /// Rows of the sender's table.
    Rows,
    /// What the sender receives from others, per path.
    PathReport,
    /// Name, contract and table of the sender ([`crate::frame::introduction::Introduction`]); an *announcement* where it answers nobody.
    Introduction,
    /// The sender asks others to show that they live now ([`crate::frame::introduction::Hello`]).
    Hello,
    /// A segment of the link between the groups of two nodes.
    Message,
    /// A copy of a round of a group, each path's by itself.
    Copy,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 10] = [
        Kind::Heartbeat,
        Kind::Notice,
        Kind::Leave,
        Kind::Pull,
        Kind::Rows,
        Kind::PathReport,
        Kind::Introduction,
        Kind::Hello,
        Kind::Message,
        Kind::Copy,
    ];

    /// The kind of its frames.
    #[must_use]
    pub const fn frame(self) -> frame::Kind {
        match self {
            Kind::Heartbeat => frame::Kind::Heartbeat,
            Kind::Notice | Kind::Leave => frame::Kind::Change,
            Kind::Pull => frame::Kind::Pull,
            Kind::Rows => frame::Kind::Rows,
            Kind::PathReport => frame::Kind::PathReport,
            Kind::Introduction => frame::Kind::Introduction,
            Kind::Hello => frame::Kind::Hello,
            Kind::Message => frame::Kind::Message,
            Kind::Copy => frame::Kind::Copy,
        }
    }

    /// What a frame of this kind is; a change may also be a leave. `None`: nothing that agents tell each other yet.
    #[must_use]
    pub const fn of(kind: frame::Kind) -> Option<Self> {
        Some(match kind {
            frame::Kind::Heartbeat => Kind::Heartbeat,
            frame::Kind::Change => Kind::Notice,
            frame::Kind::Pull => Kind::Pull,
            frame::Kind::Rows => Kind::Rows,
            frame::Kind::PathReport => Kind::PathReport,
            frame::Kind::Introduction => Kind::Introduction,
            frame::Kind::Hello => Kind::Hello,
            frame::Kind::Message => Kind::Message,
            frame::Kind::Copy => Kind::Copy,
            _ => return None,
        })
    }

    /// The channel of its frames.
    #[must_use]
    pub const fn channel(self) -> Channel {
        match self {
            Kind::Message | Kind::Copy => Channel::Groups,
            _ => Channel::Node,
        }
    }

    /// Whether it carries a notice.
    #[must_use]
    pub const fn has_notice(self) -> bool {
        matches!(self, Kind::Notice | Kind::Leave)
    }
}

/// Why a packet was not accepted. The numbers index the counters of the receive program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Refusal {
    /// Cut short.
    Short = 0,
    /// Not a FiDe packet.
    Magic = 1,
    /// Another version of the format.
    Version = 2,
    /// Authentic, and of a kind, cause or grade that this version does not know.
    Kind = 3,
    /// Another cluster's id.
    Cluster = 4,
    /// Signed with a key id that is not accepted.
    Key = 5,
    /// The tag is wrong: corrupted, forged, or another key under the same id.
    Mac = 6,
    /// A number seen before on this path: a replay or a duplicate.
    OldNumber = 7,
    /// An incarnation that is over.
    OldIncarnation = 8,
    /// Sent on another path than the one it arrived on: cables or switches are mixed up.
    WrongPath = 9,
    /// Larger than any packet.
    Oversize = 10,
    /// From this very agent: looped back by the network.
    Own = 11,
    /// From a node not heard of before (its announcement is awaited).
    UnknownSender = 12,
    /// A ring had no room.
    RingFull = 13,
    /// An IP fragment; packets fit one frame.
    Fragment = 14,
    /// More announcements of a host that is not known (or of an incarnation of it) than one makes.
    RateLimited = 15,
}

impl Refusal {
    /// Number of reasons.
    pub const COUNT: usize = 16;
    /// Every reason in the order of the counters.
    pub const ALL: [Refusal; Self::COUNT] = [
        Refusal::Short,
        Refusal::Magic,
        Refusal::Version,
        Refusal::Kind,
        Refusal::Cluster,
        Refusal::Key,
        Refusal::Mac,
        Refusal::OldNumber,
        Refusal::OldIncarnation,
        Refusal::WrongPath,
        Refusal::Oversize,
        Refusal::Own,
        Refusal::UnknownSender,
        Refusal::RingFull,
        Refusal::Fragment,
        Refusal::RateLimited,
    ];

    /// The name used in metrics and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Short => "short",
            Refusal::Magic => "magic",
            Refusal::Version => "version",
            Refusal::Kind => "kind",
            Refusal::Cluster => "cluster",
            Refusal::Key => "key",
            Refusal::Mac => "mac",
            Refusal::OldNumber => "old-number",
            Refusal::OldIncarnation => "old-incarnation",
            Refusal::WrongPath => "wrong-path",
            Refusal::Oversize => "oversize",
            Refusal::Own => "own",
            Refusal::UnknownSender => "unknown-sender",
            Refusal::RingFull => "ring-full",
            Refusal::Fragment => "fragment",
            Refusal::RateLimited => "rate-limited",
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// The path (multicast tree) this copy was sent on.
    pub path: u8,
    /// Which key it is signed with; 0 is the public one.
    pub key_id: u8,
    /// The cluster it belongs to.
    pub cluster: u32,
    /// The sending node, [`crate::name_id`] of its name.
    pub sender: u32,
    /// Grows whenever the sender starts over.
    pub incarnation: u32,
    /// Grows with every packet of its class.
    pub number: u64,
    /// When it was handed to the network (sender's CLOCK_MONOTONIC).
    pub sent_ns: u64,
    /// The sender's heartbeat interval HB.
    pub period_ns: u32,
    /// The low half of the version through which the sender's table is complete.
    pub table_version: u32,
    /// Frames that belong to this one follow at once ([`frame::MORE`]).
    pub more: bool,
}

/// A notice: one verdict about one process (or, with app 0, about the sending agent), a change of the sender's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The version of the change.
    pub notice: u32,
    /// Which monitored process, as announced; 0 for the agent itself.
    pub app: u32,
    /// What happened.
    pub cause: Cause,
    /// How sure.
    pub grade: Grade,
    /// [`Notice::CONFIRMS`] or 0.
    pub flags: u16,
    /// Exit status or signal.
    pub code: i32,
    /// When it happened (sender's CLOCK_MONOTONIC).
    pub event_ns: u64,
}

impl Notice {
    /// Flag: this confirms an earlier *doomed* of the same process, with the final code.
    pub const CONFIRMS: u16 = 1;

    /// That a process runs, certain: to be completed.
    #[must_use]
    pub const fn of_process(app: u32, event_ns: u64) -> Self {
        Self { notice: 0, app, cause: Cause::Monitored, grade: Grade::Certain, flags: 0, code: 0, event_ns }
    }
}

/// A received and authenticated packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The fixed part.
    pub header: Header,
    /// The first one, for [`Kind::Notice`] and [`Kind::Leave`].
    pub notice: Option<Notice>,
    /// The body, authenticated; empty when there is none. Of a heartbeat, the piggyback of a process; of
    /// notices, the changes behind the first.
    pub body: &'a [u8],
    /// The items of a heartbeat behind that piggyback ([`items::read`]).
    pub items: &'a [u8],
}

impl Packet<'_> {
    /// All its notices, in their order.
    pub fn notices(&self) -> impl Iterator<Item = Notice> {
        let further = if self.notice.is_some() { self.body } else { &[] };
        let sender = self.header.sender;
        let further = Change::read_all(further).filter_map(move |change| Notice::of(&change?, sender));
        self.notice.into_iter().chain(further)
    }
}

impl Notice {
    /// The same as a change of the table of `sender`.
    #[must_use]
    pub const fn change(&self, sender: u32) -> Change {
        let Self { notice, app, cause, grade, flags, code, event_ns } = *self;
        Change { origin: sender, row: app, version: notice as u64, state: State { cause, grade, flags, code, event_ns } }
    }

    /// The notice that a change of the table of `sender` is.
    fn of(change: &Change, sender: u32) -> Option<Self> {
        let State { cause, grade, flags, code, event_ns } = change.state;
        let notice = u32::try_from(change.version).ok().filter(|_| change.origin == sender)?;
        Some(Self { notice, app: change.row, cause, grade, flags, code, event_ns })
    }
}

fn be<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0u8; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Reads a packet and checks its tag. Everything but freshness (number, incarnation, path) is decided here.
///
/// # Errors
/// The [`Refusal`] to count. Never panics, whatever the bytes.
pub fn decode<'a>(bytes: &'a [u8], cluster: u32, keys: &Keyring) -> Result<Packet<'a>, Refusal> {
    let frame = frame::decode(bytes, cluster, keys)?;
    let h = frame.header;
    let mut kind = Kind::of(frame.kind).ok_or(Refusal::Kind)?;
    let mut notice = None;
    let (mut body, mut rest): (&[u8], &[u8]) = (frame.body, &[]);
    match kind {
        Kind::Heartbeat => (body, rest) = piggyback(body)?,
        // Another service's, which this version has not got.
        Kind::Message | Kind::Copy if h.channel != kind.channel() as u8 => return Err(Refusal::Kind),
        Kind::Notice | Kind::Leave => {
            let first = first_of(body, h.sender)?;
            kind = if first.app == 0 { Kind::Leave } else { Kind::Notice };
            (notice, body) = (Some(first), &body[Change::LEN..]);
        }
        _ => {}
    }
    let header = Header {
        kind,
        path: h.path,
        key_id: h.key_id,
        cluster: h.cluster,
        sender: h.sender,
        incarnation: h.incarnation,
        number: h.number,
        sent_ns: h.sent_ns,
        period_ns: h.period_ns,
        table_version: h.table_version,
        more: h.more,
    };
    Ok(Packet { header, notice, body, items: rest })
}

/// The piggyback in the body of a heartbeat, its first item if that is one, and the items behind it.
fn piggyback(body: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    match items::read(body).next() {
        None => Ok((&[], &[])),
        Some(Err(_)) => Err(Refusal::Short),
        Some(Ok(item)) if item.channel == Channel::Piggyback as u8 => {
            Ok((item.bytes, &body[items::HEAD_LEN + item.bytes.len()..]))
        }
        Some(Ok(_)) => Ok((&[], body)),
    }
}

/// The first of the notices in a body, if all of them are such that this version can read them. A leave is alone.
fn first_of(body: &[u8], sender: u32) -> Result<Notice, Refusal> {
    if body.is_empty() || !body.len().is_multiple_of(Change::LEN) {
        return Err(Refusal::Short);
    }
    let is_alone = body.len() == Change::LEN;
    let mut first = None;
    for change in Change::read_all(body) {
        let notice = change.and_then(|change| Notice::of(&change, sender)).ok_or(Refusal::Kind)?;
        if notice.app == 0 && !is_alone {
            return Err(Refusal::Kind);
        }
        first = first.or(Some(notice));
    }
    first.ok_or(Refusal::Short)
}

/// What cannot be written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EncodeError {
    /// FiDe §3.1: larger messages are refused, never split.
    #[error("{size} bytes do not fit: a packet carries at most {limit}")]
    TooLarge {
        /// Bytes asked for.
        size: usize,
        /// Bytes possible.
        limit: usize,
    },
}

/// Writes a packet, signed with the sending key of `keys`, and returns its length. `header.key_id` is ignored.
///
/// # Errors
/// [`EncodeError::TooLarge`] when the body exceeds [`BODY_MAX`].
///
/// # Panics
/// When a notice is given for a kind that has none, is missing where the kind has one, or comes with a body: a mistake of the caller.
pub fn encode(
    out: &mut [u8; PACKET_MAX],
    header: &Header,
    notice: Option<&Notice>,
    body: &[u8],
    keys: &Keyring,
) -> Result<usize, EncodeError> {
    assert_eq!(header.kind.has_notice(), notice.is_some(), "a notice belongs to Notice and Leave");
    assert!(notice.is_none() || body.is_empty(), "a notice has no body");
    if body.len() > BODY_MAX {
        return Err(EncodeError::TooLarge { size: body.len(), limit: BODY_MAX });
    }
    let h = header.frame();
    let written = match notice {
        Some(n) => frame::encode(out, &h, &n.change(header.sender).bytes(), keys),
        None if header.kind == Kind::Heartbeat && !body.is_empty() => {
            frame::encode_parts(out, &h, [&items::head(Channel::Piggyback, body.len() as u16), body], keys)
        }
        None => frame::encode(out, &h, body, keys),
    };
    written.map_err(|e| EncodeError::TooLarge { size: e.size, limit: e.limit })
}

/// Writes notices that came together, at most [`Change::PER_FRAME`], and returns the packet's length. Allocates nothing.
///
/// # Errors
/// [`EncodeError::TooLarge`] when there are more.
pub fn encode_notices(
    out: &mut [u8; PACKET_MAX],
    header: &Header,
    notices: &[Notice],
    keys: &Keyring,
) -> Result<usize, EncodeError> {
    let size = notices.len() * Change::LEN;
    let mut body = [0; Change::PER_FRAME * Change::LEN];
    let limit = body.len();
    let body = body.get_mut(..size).ok_or(EncodeError::TooLarge { size, limit })?;
    for (place, notice) in body.chunks_exact_mut(Change::LEN).zip(notices) {
        place.copy_from_slice(&notice.change(header.sender).bytes());
    }
    frame::encode(out, &header.frame(), body, keys).map_err(|e| EncodeError::TooLarge { size: e.size, limit: e.limit })
}

/// Writes a heartbeat with these items, of which none is a process's piggyback, and returns its length.
///
/// # Errors
/// [`EncodeError::TooLarge`] when they exceed [`frame::BODY_MAX`].
pub fn encode_items(out: &mut [u8; PACKET_MAX], header: &Header, items: &[u8], keys: &Keyring) -> Result<usize, EncodeError> {
    let h = Header { kind: Kind::Heartbeat, ..*header }.frame();
    frame::encode(out, &h, items, keys).map_err(|e| EncodeError::TooLarge { size: e.size, limit: e.limit })
}

impl Header {
    /// The same as frames have it.
    #[must_use]
    pub const fn frame(&self) -> frame::Header {
        frame::Header {
            kind: self.kind.frame() as u8,
            channel: self.kind.channel() as u8,
            path: self.path,
            key_id: self.key_id,
            cluster: self.cluster,
            sender: self.sender,
            incarnation: self.incarnation,
            number: self.number,
            sent_ns: self.sent_ns,
            period_ns: self.period_ns,
            table_version: self.table_version,
            more: self.more,
        }
    }
}

/// One entry of a [`Kind::PathReport`] body: what the sender of the report receives from `node` on `path`.
/// With `echo_sent_ns` and `hold_ns` its subject computes a round trip on its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportEntry {
    /// Who is reported on.
    pub node: u32,
    /// Which of its incarnations.
    pub incarnation: u32,
    /// On which path.
    pub path: u8,
    /// [`ReportEntry::SILENT`], [`ReportEntry::CONDEMNED`], [`ReportEntry::FORMER`], [`ReportEntry::ASKS`], [`ReportEntry::RELAYED`],
    /// [`ReportEntry::ANSWERS`], [`ReportEntry::BY_UNICAST`], [`ReportEntry::REFUTED`], [`ReportEntry::FENCED`].
    pub flags: u16,
    /// Whom else the reporter hears, folded ([`company`]): who hears the same may know as much.
    pub company: u16,
    /// The last number received.
    pub last_number: u64,
    /// The `sent_ns` of that packet, as its sender stamped it.
    pub echo_sent_ns: u64,
    /// How long the reporter held it before this report.
    pub hold_ns: u64,
    /// The largest jitter seen in the reporter's window.
    pub jitter_max_ns: u64,
}

impl ReportEntry {
    /// Bytes on the wire.
    pub const LEN: usize = 44;
    /// The reporter hears nothing on this path.
    pub const SILENT: u16 = 1;
    /// The reporter gave a verdict on this incarnation and refuses it from now on: its owner must start a new one.
    pub const CONDEMNED: u16 = 2;
    /// That verdict is of a life of the reporter that is over, with what ran beside it: its fence was closed since, or its host was started anew.
    pub const FORMER: u16 = 4;
    /// Everybody else is asked to report on this host at once.
    pub const ASKS: u16 = 8;
    /// The number is that of a heartbeat which others have reported, a later one than any that reached the reporter. Nothing else of the entry counts.
    pub const RELAYED: u16 = 16;
    /// Its kernel answers the reporter, which does not hear its agent.
    pub const ANSWERS: u16 = 32;
    /// The reporter hears it by unicast alone: what its owner sends by multicast on this path does not arrive.
    pub const BY_UNICAST: u16 = 64;
    /// Its owner has given the reporter up, wrongly: others confirm the reporter's heartbeats, enough of them without its owner.
    pub const REFUTED: u16 = 128;
    /// With [`ReportEntry::CONDEMNED`]: the reporter has said, too, that its fence is closed, so that somebody may act on that.
    pub const FENCED: u16 = 256;

    /// Flags from here on stand in the upper half of the byte of the path.
    const HIGH: u16 = 8;

    /// Appends the entry to a body.
    pub fn write(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.node.to_be_bytes());
        body.extend_from_slice(&self.incarnation.to_be_bytes());
        body.extend_from_slice(&[self.path & 15 | (self.flags >> Self::HIGH << 4) as u8, self.flags as u8]);
        body.extend_from_slice(&self.company.to_be_bytes());
        for word in [self.last_number, self.echo_sent_ns, self.hold_ns, self.jitter_max_ns] {
            body.extend_from_slice(&word.to_be_bytes());
        }
    }

    /// Reads all entries of a body; a last one cut short is left out.
    pub fn read_all(body: &[u8]) -> impl Iterator<Item = Self> + '_ {
        body.chunks_exact(Self::LEN).map(|b| Self {
            node: u32::from_be_bytes(be(b, 0)),
            incarnation: u32::from_be_bytes(be(b, 4)),
            path: b[8] & 15,
            flags: u16::from(b[9]) | u16::from(b[8] >> 4) << Self::HIGH,
            company: u16::from_be_bytes(be(b, 10)),
            last_number: u64::from_be_bytes(be(b, 12)),
            echo_sent_ns: u64::from_be_bytes(be(b, 20)),
            hold_ns: u64::from_be_bytes(be(b, 28)),
            jitter_max_ns: u64::from_be_bytes(be(b, 36)),
        })
    }
}

/// A set of hosts, folded: two sets have the same value if they are the same, and hardly ever else.
#[must_use]
pub fn company(hosts: impl Iterator<Item = u32>) -> u16 {
    // Ids are hashes of names already.
    let folded = hosts.fold(0, |all: u32, node| all ^ node.wrapping_mul(0x9e37_79b1));
    (folded ^ folded >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mac::Key;
    use proptest::prelude::*;

    fn ring() -> Keyring {
        Keyring::new((1, Key([9; 16])), Some((2, Key([8; 16])))).unwrap()
    }

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            path: 1,
            key_id: 1,
            cluster: 7,
            sender: 3,
            incarnation: 5,
            number: 42,
            sent_ns: 99,
            period_ns: 1_000_000,
            table_version: 7,
            more: false,
        }
    }

    fn notice() -> Notice {
        Notice { notice: 4, app: 6, cause: Cause::Killed, grade: Grade::Certain, flags: 1, code: -9, event_ns: 77 }
    }

    fn sample(kind: Kind, body: &[u8]) -> Vec<u8> {
        let mut out = [0; PACKET_MAX];
        let n = encode(&mut out, &header(kind), kind.has_notice().then(notice).as_ref(), body, &ring()).unwrap();
        out[..n].to_vec()
    }

    #[test]
    fn a_heartbeat_with_the_largest_piggyback_fits_an_ordinary_frame() {
        let bytes = sample(Kind::Heartbeat, &[1; BODY_MAX]);
        assert_eq!(bytes.len() + 8 + 20, 1499);
        assert_eq!(piggyback_max(1500, false), PIGGYBACK_MAX);
        assert_eq!(piggyback_max(1500, true), 1399);
        assert_eq!(piggyback_max(10, true), 0);
    }

    #[test]
    fn one_byte_more_is_refused_with_the_limit() {
        let mut out = [0; PACKET_MAX];
        let e = encode(&mut out, &header(Kind::Heartbeat), None, &[0; BODY_MAX + 1], &ring()).unwrap_err();
        assert_eq!(e.to_string(), "1421 bytes do not fit: a packet carries at most 1420");
    }

    #[test]
    fn every_single_bit_flip_is_refused() {
        for (kind, body) in [(Kind::Heartbeat, &b"hello"[..]), (Kind::Notice, b""), (Kind::Introduction, b"{}")] {
            let good = sample(kind, body);
            assert!(decode(&good, 7, &ring()).is_ok());
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&bad, 7, &ring()).is_err(), "bit {bit} of {kind:?}");
            }
        }
    }

    #[test]
    fn the_second_key_is_accepted_and_a_third_is_not() {
        let old = Keyring::new((2, Key([8; 16])), None).unwrap();
        let mut out = [0; PACKET_MAX];
        let n = encode(&mut out, &header(Kind::Heartbeat), None, b"", &old).unwrap();
        assert!(decode(&out[..n], 7, &ring()).is_ok());
        assert_eq!(decode(&out[..n], 7, &Keyring::default()).unwrap_err(), Refusal::Key);
        let other = Keyring::new((2, Key([7; 16])), None).unwrap();
        assert_eq!(decode(&out[..n], 7, &other).unwrap_err(), Refusal::Mac);
    }

    #[test]
    fn a_body_cannot_move_to_another_packet() {
        let a = sample(Kind::Heartbeat, b"for a");
        let mut h = header(Kind::Heartbeat);
        h.number += 1;
        let mut out = [0; PACKET_MAX];
        let n = encode(&mut out, &h, None, b"for b", &ring()).unwrap();
        for from in [frame::HEADER_LEN, BODY_AT] {
            let mixed = [&out[..from], &a[from..n]].concat();
            assert_eq!(decode(&mixed, 7, &ring()).unwrap_err(), Refusal::Mac);
        }
    }

    /// An authentic frame of the kind of [`header`], with this body.
    fn signed(kind: frame::Kind, body: &[u8]) -> Vec<u8> {
        let mut out = [0; PACKET_MAX];
        let h = frame::Header { kind: kind as u8, cluster: 7, sender: 3, ..Default::default() };
        let n = frame::encode(&mut out, &h, body, &ring()).unwrap();
        out[..n].to_vec()
    }

    #[test]
    fn authentic_frames_that_mean_nothing_here_are_refused() {
        let of = |kind, body: &[u8]| decode(&signed(kind, body), 7, &ring()).map(|p| p.body.to_vec());
        let change = notice().change(3);
        assert!(of(frame::Kind::Change, &change.bytes()).is_ok());
        assert_eq!(of(frame::Kind::Change, &Change { origin: 4, ..change }.bytes()), Err(Refusal::Kind), "a table passed on");
        assert_eq!(of(frame::Kind::Change, &Change { version: 1 << 32, ..change }.bytes()), Err(Refusal::Kind));
        let two = |second: Change| [change.bytes(), second.bytes()].concat();
        let later = Change { row: 7, version: change.version + 1, ..change };
        assert_eq!(of(frame::Kind::Change, &two(later)), Ok(later.bytes().to_vec()), "behind the first");
        assert_eq!(of(frame::Kind::Change, &two(Change { origin: 4, ..later })), Err(Refusal::Kind));
        assert_eq!(of(frame::Kind::Change, &two(Change { row: 0, ..later })), Err(Refusal::Kind), "a leave is alone");
        for cut in [0, 1, 31, 33, 63] {
            assert_eq!(of(frame::Kind::Change, &two(later)[..cut]), Err(Refusal::Short), "{cut} bytes");
        }
        assert_eq!(of(frame::Kind::Message, b""), Err(Refusal::Kind));
        let heartbeat = |body: &[u8]| of(frame::Kind::Heartbeat, body);
        assert_eq!(heartbeat(&[1, 0, 2, 7, 8]), Ok(vec![7, 8]));
        assert_eq!(heartbeat(&[1, 0, 2, 7, 8, 2, 0, 0]), Ok(vec![7, 8]), "another service's item behind it");
        assert_eq!(heartbeat(&[2, 0, 2, 7, 8]), Ok(vec![]), "another service's item");
        for cut in [&[1][..], &[1, 0], &[1, 0, 2, 7], &[2, 255, 255]] {
            assert_eq!(heartbeat(cut), Err(Refusal::Short));
        }
    }

    #[test]
    fn as_many_notices_as_fit_a_frame_are_written_and_read() {
        let mut out = [0; PACKET_MAX];
        let all: Vec<Notice> = (0..=Change::PER_FRAME as u32).map(|i| Notice { notice: 9 + i, app: 1 + i, ..notice() }).collect();
        for count in [1, 2, 35, Change::PER_FRAME] {
            let n = encode_notices(&mut out, &header(Kind::Notice), &all[..count], &ring()).unwrap();
            let packet = decode(&out[..n], 7, &ring()).unwrap();
            assert_eq!(packet.notices().collect::<Vec<_>>(), all[..count]);
        }
        let e = encode_notices(&mut out, &header(Kind::Notice), &all, &ring()).unwrap_err();
        assert_eq!(e, EncodeError::TooLarge { size: 45 * 32, limit: 44 * 32 });
    }

    #[test]
    fn refusals_are_numbered_as_listed() {
        for (i, r) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(r as usize, i);
        }
    }

    fn any_kind() -> impl Strategy<Value = Kind> {
        proptest::sample::select(Kind::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(kind in any_kind(), path in 0u8..16, cluster: u32, sender: u32, incarnation: u32,
                                   number in 0..=NUMBER_MAX, sent_ns: u64, period_ns: u32, n: u32, app in 1u32.., code: i32, event_ns: u64,
                                   body in proptest::collection::vec(any::<u8>(), 0..=BODY_MAX)) {
            let header = Header { kind, path, key_id: 1, cluster, sender, incarnation, number, sent_ns, period_ns, table_version: n, more: n % 2 == 1 };
            let app = if kind == Kind::Leave { 0 } else { app };
            let notice = kind.has_notice().then_some(Notice { notice: n, app, code, event_ns, ..notice() });
            let body = if notice.is_some() { &[][..] } else { &body };
            let mut out = [0; PACKET_MAX];
            let len = encode(&mut out, &header, notice.as_ref(), body, &ring()).unwrap();
            prop_assert_eq!(decode(&out[..len], cluster, &ring()), Ok(Packet { header, notice, body, items: &[] }));
            for cut in 0..len {
                prop_assert!(decode(&out[..cut], cluster, &ring()).is_err());
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = decode(&bytes, 7, &ring());
            let _ = ReportEntry::read_all(&bytes).count();
        }
    }
}
