//! Packets: UDP payloads, big-endian, at most 54 bytes of header so that 1418 bytes of piggyback fit a 1500-byte frame.
//!
//! ```text
//!  0  u16 magic 0xF1DE        12  u32 incarnation       32  u32 period_ns
//!  2  u4  version, u1 body,    16  u64 number            36  [24 bytes of notice, kinds 2 and 3 only]
//!     u3  kind
//!  3  u4  path,    u4 key id  24  u64 sent_ns           36 or 60  u64 mac over all before it
//!  4  u32 cluster                                       44 or 68  [u64 body mac, body] when there is a body
//!  8  u32 sender
//! ```
//! The receive program authenticates everything up to and including `mac`, then sees whether the number is new, and authenticates the body before the
//! number is used up (a notice has none). A notice's own numbers:
//! ```text
//! 36  u32 notice   40  u32 app   44  u8 cause   45  u8 grade   46  u16 flags   48  i32 code   52  u64 event_ns
//! ```
//! `number` grows within (sender, incarnation, path, class), the classes being heartbeats and everything else; what does not grow is
//! refused as a replay.

use crate::PIGGYBACK_MAX;
use crate::mac::Keyring;
use crate::verdict::{Cause, Contract, FencePromise, Grade};
use serde::{Deserialize, Serialize};

/// First two bytes of every packet.
pub const MAGIC: u16 = 0xF1DE;
/// Version of the format.
pub const VERSION: u8 = 1;
/// Bit of byte 2: a body follows. It is under the tag, so that a body cannot be cut off unnoticed.
pub const HAS_BODY: u8 = 8;
/// Bytes before the notice or the tag.
pub const FIXED_LEN: usize = 36;
/// Bytes of a notice.
pub const NOTICE_LEN: usize = 24;
/// Bytes of a tag.
pub const TAG_LEN: usize = 8;
/// Bytes before a piggybacked message in a heartbeat's body: the low half of the number of the process it is from.
pub const PIGGYBACK_HEAD: usize = 2;
/// Largest body.
pub const BODY_MAX: usize = PIGGYBACK_HEAD + PIGGYBACK_MAX;
/// Largest packet.
pub const PACKET_MAX: usize = FIXED_LEN + NOTICE_LEN + 2 * TAG_LEN + BODY_MAX;
/// Bytes of a heartbeat's headers above IP: UDP, fixed part, two tags, and the head of the piggyback.
pub const HEARTBEAT_OVERHEAD: usize = 8 + FIXED_LEN + 2 * TAG_LEN + PIGGYBACK_HEAD;

// FiDe §3.1: 1418 bytes of piggyback in an ordinary 1500-byte IPv4 frame.
const _: () = assert!(20 + HEARTBEAT_OVERHEAD + PIGGYBACK_MAX <= 1500);

/// The largest piggyback on an interface with this MTU.
#[must_use]
pub const fn piggyback_max(mtu: usize, ipv6: bool) -> usize {
    let ip = if ipv6 { 40 } else { 20 };
    let room = mtu.saturating_sub(ip + HEARTBEAT_OVERHEAD);
    if room < PIGGYBACK_MAX { room } else { PIGGYBACK_MAX }
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Periodic; its body is the piggyback.
    Heartbeat = 1,
    /// A verdict about a process of the sender.
    Notice = 2,
    /// The sender's agent leaves; carries a notice with app 0.
    Leave = 3,
    /// Which notices the sender has received.
    Confirm = 4,
    /// What the sender receives from others, per path.
    PathReport = 5,
    /// Name, contract and monitored processes of the sender.
    Announce = 6,
    /// The sender asks others to show that they live now ([`crate::frame::introduction::Hello`]). They answer in an
    /// [`Announce`].
    Hello = 7,
}

impl Kind {
    /// The kind with this number.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Kind::Heartbeat,
            2 => Kind::Notice,
            3 => Kind::Leave,
            4 => Kind::Confirm,
            5 => Kind::PathReport,
            6 => Kind::Announce,
            7 => Kind::Hello,
            _ => return None,
        })
    }

    /// Whether a notice follows the fixed part.
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
    /// Unknown kind, cause or grade.
    Kind = 3,
    /// Another cluster's id.
    Cluster = 4,
    /// Signed with a key id that is not accepted.
    Key = 5,
    /// The tag over the fixed part is wrong: corrupted, forged, or another key under the same id.
    Mac = 6,
    /// The tag over the body is wrong.
    BodyMac = 7,
    /// A number seen before on this path: a replay or a duplicate.
    OldNumber = 8,
    /// An incarnation that is over.
    OldIncarnation = 9,
    /// Sent on another path than the one it arrived on: cables or switches are mixed up.
    WrongPath = 10,
    /// Larger than any packet.
    Oversize = 11,
    /// From this very agent: looped back by the network.
    Own = 12,
    /// From a node not heard of before (its announcement is awaited).
    UnknownSender = 13,
    /// A ring had no room.
    RingFull = 14,
    /// An IP fragment; packets fit one frame.
    Fragment = 15,
    /// More announcements of a host that is not known (or of an incarnation of it) than one makes.
    RateLimited = 16,
}

impl Refusal {
    /// Number of reasons.
    pub const COUNT: usize = 17;
    /// Every reason in the order of the counters.
    pub const ALL: [Refusal; Self::COUNT] = [
        Refusal::Short,
        Refusal::Magic,
        Refusal::Version,
        Refusal::Kind,
        Refusal::Cluster,
        Refusal::Key,
        Refusal::Mac,
        Refusal::BodyMac,
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
            Refusal::BodyMac => "body-mac",
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
}

/// A notice: one verdict about one process (or, with app 0, about the sending agent).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Running number of the sender's notices, from 1, without a gap.
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
}

/// A received and authenticated packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The fixed part.
    pub header: Header,
    /// Present for [`Kind::Notice`] and [`Kind::Leave`].
    pub notice: Option<Notice>,
    /// The body, authenticated; empty when there is none.
    pub body: &'a [u8],
}

fn be<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0u8; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Reads a packet and checks its tags. Everything but freshness (number, incarnation, path) is decided here.
///
/// # Errors
/// The [`Refusal`] to count. Never panics, whatever the bytes.
pub fn decode<'a>(bytes: &'a [u8], cluster: u32, keys: &Keyring) -> Result<Packet<'a>, Refusal> {
    if bytes.len() < FIXED_LEN + TAG_LEN {
        return Err(Refusal::Short);
    }
    if u16::from_be_bytes(be(bytes, 0)) != MAGIC {
        return Err(Refusal::Magic);
    }
    if bytes[2] >> 4 != VERSION {
        return Err(Refusal::Version);
    }
    let kind = Kind::from_u8(bytes[2] & 7).ok_or(Refusal::Kind)?;
    let header = Header {
        kind,
        path: bytes[3] >> 4,
        key_id: bytes[3] & 15,
        cluster: u32::from_be_bytes(be(bytes, 4)),
        sender: u32::from_be_bytes(be(bytes, 8)),
        incarnation: u32::from_be_bytes(be(bytes, 12)),
        number: u64::from_be_bytes(be(bytes, 16)),
        sent_ns: u64::from_be_bytes(be(bytes, 24)),
        period_ns: u32::from_be_bytes(be(bytes, 32)),
    };
    if header.cluster != cluster {
        return Err(Refusal::Cluster);
    }
    let tag_at = FIXED_LEN + if kind.has_notice() { NOTICE_LEN } else { 0 };
    let body_at = tag_at + TAG_LEN;
    if bytes.len() < body_at {
        return Err(Refusal::Short);
    }
    if bytes.len() > body_at + TAG_LEN + BODY_MAX {
        return Err(Refusal::Oversize);
    }
    let key = keys.get(header.key_id).ok_or(Refusal::Key)?;
    let tag = u64::from_be_bytes(be(bytes, tag_at));
    if key.tag(&bytes[..tag_at]) != tag {
        return Err(Refusal::Mac);
    }
    let notice = if kind.has_notice() {
        Some(Notice {
            notice: u32::from_be_bytes(be(bytes, 36)),
            app: u32::from_be_bytes(be(bytes, 40)),
            cause: Cause::from_u8(bytes[44]).ok_or(Refusal::Kind)?,
            grade: Grade::from_u8(bytes[45]).ok_or(Refusal::Kind)?,
            flags: u16::from_be_bytes(be(bytes, 46)),
            code: i32::from_be_bytes(be(bytes, 48)),
            event_ns: u64::from_be_bytes(be(bytes, 52)),
        })
    } else {
        None
    };
    let body = match (bytes[2] & HAS_BODY != 0, bytes.len() - body_at) {
        (false, 0) => &[][..],
        (false, _) => return Err(Refusal::Oversize),
        (true, n) if n <= TAG_LEN => return Err(Refusal::Short),
        (true, _) => {
            let body = &bytes[body_at + TAG_LEN..];
            if key.body_tag(tag, body) != u64::from_be_bytes(be(bytes, body_at)) {
                return Err(Refusal::BodyMac);
            }
            body
        }
    };
    Ok(Packet { header, notice, body })
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
/// When a notice is given for a kind that has none, or is missing where the kind has one: a mistake of the caller.
pub fn encode(
    out: &mut [u8; PACKET_MAX],
    header: &Header,
    notice: Option<&Notice>,
    body: &[u8],
    keys: &Keyring,
) -> Result<usize, EncodeError> {
    assert_eq!(header.kind.has_notice(), notice.is_some(), "a notice belongs to Notice and Leave");
    if body.len() > BODY_MAX {
        return Err(EncodeError::TooLarge { size: body.len(), limit: BODY_MAX });
    }
    let (key_id, key) = keys.sending();
    out[0..2].copy_from_slice(&MAGIC.to_be_bytes());
    out[2] = VERSION << 4 | header.kind as u8 | if body.is_empty() { 0 } else { HAS_BODY };
    out[3] = header.path << 4 | key_id;
    out[4..8].copy_from_slice(&header.cluster.to_be_bytes());
    out[8..12].copy_from_slice(&header.sender.to_be_bytes());
    out[12..16].copy_from_slice(&header.incarnation.to_be_bytes());
    out[16..24].copy_from_slice(&header.number.to_be_bytes());
    out[24..32].copy_from_slice(&header.sent_ns.to_be_bytes());
    out[32..36].copy_from_slice(&header.period_ns.to_be_bytes());
    let mut at = FIXED_LEN;
    if let Some(n) = notice {
        out[36..40].copy_from_slice(&n.notice.to_be_bytes());
        out[40..44].copy_from_slice(&n.app.to_be_bytes());
        out[44] = n.cause as u8;
        out[45] = n.grade as u8;
        out[46..48].copy_from_slice(&n.flags.to_be_bytes());
        out[48..52].copy_from_slice(&n.code.to_be_bytes());
        out[52..60].copy_from_slice(&n.event_ns.to_be_bytes());
        at += NOTICE_LEN;
    }
    let tag = key.tag(&out[..at]);
    out[at..at + TAG_LEN].copy_from_slice(&tag.to_be_bytes());
    at += TAG_LEN;
    if !body.is_empty() {
        out[at..at + TAG_LEN].copy_from_slice(&key.body_tag(tag, body).to_be_bytes());
        at += TAG_LEN;
        out[at..at + body.len()].copy_from_slice(body);
        at += body.len();
    }
    Ok(at)
}

/// One entry of a [`Kind::Confirm`] body: all notices of `node`'s `incarnation` up to and including `upto`, and
/// those above it whose bit is set (bit 0 is `upto + 1`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmEntry {
    /// Whose notices.
    pub node: u32,
    /// Which of its incarnations.
    pub incarnation: u32,
    /// All up to here.
    pub upto: u32,
    /// And these beyond.
    pub beyond: u32,
}

impl ConfirmEntry {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Whether this confirms notice `n`.
    #[must_use]
    pub fn covers(&self, n: u32) -> bool {
        n <= self.upto || (n - self.upto <= 32 && self.beyond >> (n - self.upto - 1) & 1 == 1)
    }

    /// Appends the entry to a body.
    pub fn write(&self, body: &mut Vec<u8>) {
        for word in [self.node, self.incarnation, self.upto, self.beyond] {
            body.extend_from_slice(&word.to_be_bytes());
        }
    }

    /// Reads all entries of a body; a last one cut short is left out.
    pub fn read_all(body: &[u8]) -> impl Iterator<Item = Self> + '_ {
        body.chunks_exact(Self::LEN).map(|b| Self {
            node: u32::from_be_bytes(be(b, 0)),
            incarnation: u32::from_be_bytes(be(b, 4)),
            upto: u32::from_be_bytes(be(b, 8)),
            beyond: u32::from_be_bytes(be(b, 12)),
        })
    }
}

/// One entry of a [`Kind::PathReport`] body: what the sender of the report receives from `node` on `path`.
/// With `echo_sent_ns` and `hold_ns` its subject computes a round trip on its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportEntry {
    /// Who is reported on.
    pub node: u32,
    /// Which of its incarnations.
    pub incarnation: u32,
    /// On which path.
    pub path: u8,
    /// [`ReportEntry::SILENT`], [`ReportEntry::CONDEMNED`], [`ReportEntry::FORMER`].
    pub flags: u8,
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
    pub const SILENT: u8 = 1;
    /// The reporter gave a verdict on this incarnation and refuses it from now on: its owner must start a new one.
    pub const CONDEMNED: u8 = 2;
    /// That verdict is of a life of the reporter that is over, with what ran beside it: its fence was closed since, or its host was started anew.
    pub const FORMER: u8 = 4;

    /// Appends the entry to a body.
    pub fn write(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.node.to_be_bytes());
        body.extend_from_slice(&self.incarnation.to_be_bytes());
        body.extend_from_slice(&[self.path, self.flags, 0, 0]);
        for word in [self.last_number, self.echo_sent_ns, self.hold_ns, self.jitter_max_ns] {
            body.extend_from_slice(&word.to_be_bytes());
        }
    }

    /// Reads all entries of a body; a last one cut short is left out.
    pub fn read_all(body: &[u8]) -> impl Iterator<Item = Self> + '_ {
        body.chunks_exact(Self::LEN).map(|b| Self {
            node: u32::from_be_bytes(be(b, 0)),
            incarnation: u32::from_be_bytes(be(b, 4)),
            path: b[8],
            flags: b[9],
            last_number: u64::from_be_bytes(be(b, 12)),
            echo_sent_ns: u64::from_be_bytes(be(b, 20)),
            hold_ns: u64::from_be_bytes(be(b, 28)),
            jitter_max_ns: u64::from_be_bytes(be(b, 36)),
        })
    }
}

/// The body of a [`Kind::Announce`]: JSON, because it is rare, grows with versions, and must be readable in a capture.
/// A directory larger than one packet is sent in parts of the same `version`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announce {
    /// The node's name.
    pub name: String,
    /// Unicast address per path, as text; empty where unknown.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// What the sender promises per path.
    #[serde(default)]
    pub contract: Contract,
    /// Grows whenever the directory changes.
    pub version: u64,
    /// This incarnation follows one that another host had given up although its agent ran on: nothing died.
    #[serde(default)]
    pub renewed: bool,
    /// What the sender promises of its fence, once it is armed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<FencePromise>,
    /// Hellos that this announcement answers, and the numbers that the sender had used by then in both classes:
    /// packets with lower ones are recordings. Announcements with answers have no parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<AnnouncedAnswer>,
    /// The number of the last heartbeat; 0 but for an answer.
    #[serde(default, skip_serializing_if = "is_none")]
    pub heartbeats: u64,
    /// Packets of the sender's own name were heard: another agent that has it repeats this number in its next announcement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge: Option<u64>,
    /// The number that another agent of this name asked with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<u64>,
    /// Paths on which frames with the sender's own MAC came to it a moment ago: what is for it there may go astray.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diverted: Vec<u8>,
    /// Which part this is, from 0.
    #[serde(default)]
    pub part: u16,
    /// How many parts there are; 0: this says nothing of processes.
    #[serde(default = "one")]
    pub parts: u16,
    /// Monitored processes in this part.
    #[serde(default)]
    pub apps: Vec<AnnouncedApp>,
    /// Processes of others that are monitored from here, in this part.
    #[serde(default)]
    pub monitors: Vec<AnnouncedMonitor>,
}

fn one() -> u16 {
    1
}

/// One monitored process in an [`Announce`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnouncedApp {
    /// Its number in notices: never used twice in an incarnation.
    #[serde(rename = "i")]
    pub app: u32,
    /// Its name, unique on its host.
    #[serde(rename = "n")]
    pub name: String,
    /// The largest piggyback it sends.
    #[serde(rename = "b", default)]
    pub pbsize: u32,
    /// The number of the notice that says that it is hung, 0 when it is not: for those who came too late to hear it.
    #[serde(rename = "h", default, skip_serializing_if = "is_zero")]
    pub hung: u32,
    /// The user of its watch on its host, 0 for root and the configuration: what one user has is shared out on other hosts, too.
    #[serde(rename = "u", default, skip_serializing_if = "is_zero")]
    pub user: u32,
}

/// The answer to a hello, in an [`Announce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnouncedAnswer {
    /// The node that asked.
    #[serde(rename = "d")]
    pub node: u32,
    /// The nonce of its hello, in hexadecimal digits: JSON readers differ on large numbers.
    #[serde(rename = "x", with = "hex")]
    pub nonce: u64,
}

mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
    pub fn serialize<S: Serializer>(nonce: &u64, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{nonce:x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
const fn is_none(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// One interest of the sender's applications, in an [`Announce`]: what `on_monitor_req` tells the monitored process (Listing 1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnouncedMonitor {
    /// The node of the process.
    #[serde(rename = "d")]
    pub node: u32,
    /// Its number there.
    #[serde(rename = "i")]
    pub app: u32,
    /// The piggyback size wanted.
    #[serde(rename = "b", default)]
    pub pbsize: u32,
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
        Header { kind, path: 1, key_id: 1, cluster: 7, sender: 3, incarnation: 5, number: 42, sent_ns: 99, period_ns: 1_000_000 }
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
        assert_eq!(bytes.len() + 8 + 20, 1500);
        assert_eq!(piggyback_max(1500, false), PIGGYBACK_MAX);
        assert_eq!(piggyback_max(1500, true), 1398);
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
        for (kind, body) in [(Kind::Heartbeat, &b"hello"[..]), (Kind::Notice, b""), (Kind::Announce, b"{}")] {
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
        let mut mixed = out[..n].to_vec();
        mixed[44..].copy_from_slice(&a[44..]); // body tag and body
        assert_eq!(decode(&mixed, 7, &ring()).unwrap_err(), Refusal::BodyMac);
    }

    #[test]
    fn confirmations_cover_what_they_say() {
        let c = ConfirmEntry { node: 1, incarnation: 2, upto: 10, beyond: 0b101 };
        assert!(c.covers(1) && c.covers(10) && c.covers(11) && !c.covers(12) && c.covers(13));
        assert!(!c.covers(u32::MAX));
        let mut body = Vec::new();
        c.write(&mut body);
        body.push(0);
        assert_eq!(ConfirmEntry::read_all(&body).collect::<Vec<_>>(), [c]);
    }

    #[test]
    fn refusals_are_numbered_as_listed() {
        for (i, r) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(r as usize, i);
        }
    }

    fn any_kind() -> impl Strategy<Value = Kind> {
        (1u8..=7).prop_map(|k| Kind::from_u8(k).unwrap())
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(kind in any_kind(), path in 0u8..16, cluster: u32, sender: u32, incarnation: u32,
                                   number: u64, sent_ns: u64, period_ns: u32, n: u32, app: u32, code: i32, event_ns: u64,
                                   body in proptest::collection::vec(any::<u8>(), 0..=BODY_MAX)) {
            let header = Header { kind, path, key_id: 1, cluster, sender, incarnation, number, sent_ns, period_ns };
            let notice = kind.has_notice().then_some(Notice { notice: n, app, code, event_ns, ..notice() });
            let mut out = [0; PACKET_MAX];
            let len = encode(&mut out, &header, notice.as_ref(), &body, &ring()).unwrap();
            prop_assert_eq!(decode(&out[..len], cluster, &ring()), Ok(Packet { header, notice, body: &body }));
            for cut in 0..len {
                prop_assert!(decode(&out[..cut], cluster, &ring()).is_err());
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = decode(&bytes, 7, &ring());
            let _ = ConfirmEntry::read_all(&bytes).count();
            let _ = ReportEntry::read_all(&bytes).count();
        }
    }
}
