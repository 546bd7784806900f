//! Version 2 of the wire: one fixed header, one tag, bodies by kind and channel.
//!
//! ```text
//!  0  u16 magic 0xF1DE       16  u8  kind            32  u32 period_ns
//!  2  u4  version, u4 flags  17  u8  channel         36  u32 table version, low half
//!  3  u4  path, u4 key id    18  u48 number          40  u64 tag over bytes 0–39 and the body
//!  4  u32 cluster            24  u64 sent_ns         48  body, to the end of the datagram
//!  8  u32 sender
//! 12  u32 incarnation
//! ```
//!
//! All numbers are big-endian. Every offset is a constant, so an eBPF program reads the header without
//! a loop and a hardware parser reads it in one clock. Magic, version, key id, cluster and sender keep
//! their places in every version of this format: a host can tell who speaks another version.
//!
//! **One tag.** SipHash-2-4 over header and body together. A forged or cut body is refused before its
//! number is consumed. Bodies are at most [`BODY_MAX`] bytes, so the receive program can afford this.
//!
//! **Numbers.** A sender counts two sequences for each incarnation: heartbeats, and all other frames.
//! Both copies of a frame have the same number. A heartbeat is fresh on a path when its number exceeds
//! all before it there; other frames are checked against a sliding window, because unicast and
//! multicast frames may come out of different receive queues.
//!
//! **Sender and origin.** The header names the host that *sent* the frame. Table messages also name the
//! host whose table they carry ([`table`]): a gateway between cells passes on tables of others.
//!
//! **Unknown kinds and channels** are authenticated, counted and ignored, so that hosts of one version
//! may know different services.

pub mod bytes;
pub mod fragment;
pub mod group;
pub mod introduction;
pub mod items;
pub mod table;

use crate::mac::Keyring;
pub use crate::packet::Refusal;

/// First two bytes of every frame.
pub const MAGIC: u16 = 0xF1DE;
/// Version of this format.
pub const VERSION: u8 = 2;
/// A flag: frames that belong to this one follow at once, so that nobody need be woken for this one
/// alone. Whoever reads sees it with the next one; where that is lost, at its own next deadline.
pub const MORE: u8 = 1;
/// Bytes before the tag.
pub const HEADER_LEN: usize = 40;
/// Bytes of the tag.
pub const TAG_LEN: usize = 8;
/// Where the body begins.
pub const BODY_AT: usize = HEADER_LEN + TAG_LEN;
/// The largest frame: the UDP payload of a 1500-byte IPv4 packet.
pub const FRAME_MAX: usize = 1472;
/// The largest frame that every path carries, one for packets of 1,200 bytes, too; larger ones need a probe of the path first (RFC 9000, 14).
pub const FRAME_SAFE: usize = 1152;
/// The largest body.
pub const BODY_MAX: usize = FRAME_MAX - BODY_AT;
/// Numbers have 48 bits: at a million frames a second they last nine years.
pub const NUMBER_MAX: u64 = (1 << 48) - 1;

// A heartbeat carries the paper's piggyback (FiDe §3.1), which is never split.
const _: () = assert!(items::HEAD_LEN + items::APP_LEN + crate::PIGGYBACK_MAX <= BODY_MAX);
const _: () = assert!(FRAME_MAX + 8 + 20 == 1500);

/// What a frame is. Kinds 64–127 are reserved for services, 128–255 for experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Periodic, on every path; its body is a list of [`items`].
    Heartbeat = 1,
    /// Changes of rows of the sender's table, pushed as they happen ([`table::Change`]).
    Change = 2,
    /// The sender lags behind a table and asks for the difference ([`table::Pull`]).
    Pull = 3,
    /// Rows of a table: the answer to a pull, or new rows that are pushed ([`table::RowsHead`]).
    Rows = 4,
    /// The sender asks hosts to prove that they live now ([`introduction::Hello`]).
    Hello = 5,
    /// The answer to hellos: who the sender is ([`introduction::Introduction`]).
    Introduction = 6,
    /// What the sender receives of others on each path ([`crate::packet::ReportEntry`]).
    PathReport = 7,
    /// One message of a service, complete in this frame.
    Message = 8,
    /// Part of a message of a service that exceeds one frame ([`fragment::Fragment`]).
    Fragment = 9,
    /// One copy of a broadcast of which every path carries one, each delivered by itself (RSBCAST).
    Copy = 10,
    /// A one-sided operation on a region of the receiver's memory.
    Memory = 11,
    /// The answer to a [`Kind::Memory`].
    MemoryAnswer = 12,
    /// Padding that finds out which frame size a path carries; answered by [`Kind::SizeAnswer`].
    SizeProbe = 13,
    /// The answer to a [`Kind::SizeProbe`]: the size that arrived.
    SizeAnswer = 14,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 14] = [
        Kind::Heartbeat,
        Kind::Change,
        Kind::Pull,
        Kind::Rows,
        Kind::Hello,
        Kind::Introduction,
        Kind::PathReport,
        Kind::Message,
        Kind::Fragment,
        Kind::Copy,
        Kind::Memory,
        Kind::MemoryAnswer,
        Kind::SizeProbe,
        Kind::SizeAnswer,
    ];

    /// The kind with this number.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        if number == 0 || number as usize > Self::ALL.len() { None } else { Some(Self::ALL[number as usize - 1]) }
    }

    /// The name used in metrics and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Heartbeat => "heartbeat",
            Kind::Change => "change",
            Kind::Pull => "pull",
            Kind::Rows => "rows",
            Kind::Hello => "hello",
            Kind::Introduction => "introduction",
            Kind::PathReport => "path-report",
            Kind::Message => "message",
            Kind::Fragment => "fragment",
            Kind::Copy => "copy",
            Kind::Memory => "memory",
            Kind::MemoryAnswer => "memory-answer",
            Kind::SizeProbe => "size-probe",
            Kind::SizeAnswer => "size-answer",
        }
    }
}

/// Which service a frame or a heartbeat's item belongs to. Channel 0 is the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Channel {
    /// Heartbeats, tables, introductions, reports.
    Node = 0,
    /// Data that monitored processes piggyback on heartbeats (FiDe Listing 1).
    Piggyback = 1,
    /// Replicated logs ([`group`]).
    Groups = 2,
    /// One-sided operations.
    Verbs = 3,
}

impl Channel {
    /// Every channel.
    pub const ALL: [Channel; 4] = [Channel::Node, Channel::Piggyback, Channel::Groups, Channel::Verbs];

    /// The channel with this number.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        if (number as usize) < Self::ALL.len() { Some(Self::ALL[number as usize]) } else { None }
    }

    /// The name used in metrics and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Channel::Node => "node",
            Channel::Piggyback => "piggyback",
            Channel::Groups => "groups",
            Channel::Verbs => "verbs",
        }
    }
}

/// The fixed header, as it is on the wire. `kind` and `channel` are numbers: a receiver need not know them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`Kind`], or one that this version does not know.
    pub kind: u8,
    /// [`Channel`], or one that this version does not know.
    pub channel: u8,
    /// The path (multicast tree) that this copy was sent on, below 16.
    pub path: u8,
    /// The key that signs it; 0 is the public one. [`encode`] sets it.
    pub key_id: u8,
    /// The cluster it belongs to.
    pub cluster: u32,
    /// The sending node, [`crate::name_id`] of its name.
    pub sender: u32,
    /// Grows whenever the sender starts over.
    pub incarnation: u32,
    /// Grows with every frame of its sequence; at most [`NUMBER_MAX`].
    pub number: u64,
    /// When it was handed to the network (sender's CLOCK_MONOTONIC).
    pub sent_ns: u64,
    /// The sender's heartbeat period HB.
    pub period_ns: u32,
    /// The low half of the version through which the sender's table is complete.
    pub table_version: u32,
    /// Frames that belong to this one follow at once ([`MORE`]).
    pub more: bool,
}

impl Header {
    /// Reads the header of a frame, judging nothing but its length.
    #[must_use]
    pub fn read(frame: &[u8]) -> Option<(u16, u8, Self)> {
        let mut r = bytes::Reader::new(frame);
        let magic = r.u16()?;
        let version_flags = r.u8()?;
        let path_key = r.u8()?;
        let (cluster, sender, incarnation, word) = (r.u32()?, r.u32()?, r.u32()?, r.u64()?);
        let header = Self {
            kind: (word >> 56) as u8,
            channel: (word >> 48) as u8,
            path: path_key >> 4,
            key_id: path_key & 15,
            cluster,
            sender,
            incarnation,
            number: word & NUMBER_MAX,
            sent_ns: r.u64()?,
            period_ns: r.u32()?,
            table_version: r.u32()?,
            more: version_flags & MORE != 0,
        };
        Some((magic, version_flags >> 4, header))
    }

    fn write(&self, out: &mut [u8; FRAME_MAX], key_id: u8) {
        let word = u64::from(self.kind) << 56 | u64::from(self.channel) << 48 | self.number.min(NUMBER_MAX);
        out[0..2].copy_from_slice(&MAGIC.to_be_bytes());
        out[2] = VERSION << 4 | if self.more { MORE } else { 0 };
        out[3] = self.path << 4 | key_id;
        out[4..8].copy_from_slice(&self.cluster.to_be_bytes());
        out[8..12].copy_from_slice(&self.sender.to_be_bytes());
        out[12..16].copy_from_slice(&self.incarnation.to_be_bytes());
        out[16..24].copy_from_slice(&word.to_be_bytes());
        out[24..32].copy_from_slice(&self.sent_ns.to_be_bytes());
        out[32..36].copy_from_slice(&self.period_ns.to_be_bytes());
        out[36..40].copy_from_slice(&self.table_version.to_be_bytes());
    }
}

/// An authenticated frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The fixed header.
    pub header: Header,
    /// What it is; [`decode`] refuses kinds that this version does not know.
    pub kind: Kind,
    /// Everything behind the tag.
    pub body: &'a [u8],
}

/// Reads a frame and checks its tag. Freshness (number, incarnation, path) is the receiver's to judge.
///
/// # Errors
/// The [`Refusal`] to count. [`Refusal::Kind`] says that an authentic frame is of an unknown kind.
/// Never panics, whatever the bytes.
pub fn decode<'a>(frame: &'a [u8], cluster: u32, keys: &Keyring) -> Result<Frame<'a>, Refusal> {
    if frame.len() < BODY_AT {
        return Err(Refusal::Short);
    }
    if frame.len() > FRAME_MAX {
        return Err(Refusal::Oversize);
    }
    let (magic, version, header) = Header::read(frame).ok_or(Refusal::Short)?;
    if magic != MAGIC {
        return Err(Refusal::Magic);
    }
    if version != VERSION {
        return Err(Refusal::Version);
    }
    if header.cluster != cluster {
        return Err(Refusal::Cluster);
    }
    let key = keys.get(header.key_id).ok_or(Refusal::Key)?;
    let (head, rest) = frame.split_at(HEADER_LEN);
    let (tag, body) = rest.split_at(TAG_LEN);
    if key.frame_tag(head, body).to_be_bytes() != *tag {
        return Err(Refusal::Mac);
    }
    let kind = Kind::from_u8(header.kind).ok_or(Refusal::Kind)?;
    Ok(Frame { header, kind, body })
}

/// A body that does not fit.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a body of {size} bytes does not fit: a frame carries at most {limit}")]
pub struct TooLarge {
    /// Bytes asked for.
    pub size: usize,
    /// Bytes possible.
    pub limit: usize,
}

/// Writes a frame, signed with the sending key, and returns its length. Allocates nothing.
///
/// # Errors
/// [`TooLarge`] when the body exceeds [`BODY_MAX`]; nothing is written then.
pub fn encode(out: &mut [u8; FRAME_MAX], header: &Header, body: &[u8], keys: &Keyring) -> Result<usize, TooLarge> {
    encode_parts(out, header, [body], keys)
}

/// The same with a body in several parts.
///
/// # Errors
/// As [`encode`].
pub fn encode_parts<const N: usize>(
    out: &mut [u8; FRAME_MAX],
    header: &Header,
    body: [&[u8]; N],
    keys: &Keyring,
) -> Result<usize, TooLarge> {
    let size = body.iter().map(|part| part.len()).sum();
    if size > BODY_MAX {
        return Err(TooLarge { size, limit: BODY_MAX });
    }
    let (key_id, key) = keys.sending();
    header.write(out, key_id);
    let mut at = BODY_AT;
    for part in body {
        out[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let tag = key.frame_tag(&out[..HEADER_LEN], &out[BODY_AT..at]);
    out[HEADER_LEN..BODY_AT].copy_from_slice(&tag.to_be_bytes());
    Ok(at)
}

#[cfg(test)]
mod tests;
