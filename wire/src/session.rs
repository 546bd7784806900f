//! What an application and its agent say of one group, on a SOCK_SEQPACKET socket of their own
//! ([`crate::control::Request::OpenGroup`]): one message a datagram, at most [`MESSAGE_MAX`] bytes, numbers little-endian.
//!
//! ```text
//! to the agent    propose   u8 1  u8[3]     u32 skipped u64 number                       bytes
//!                 snapshot  u8 2  u8[7]                 u64 index  u64 total  u64 at     bytes
//!                 ask       u8 3  u8[7]                 u64 client u64 number
//!                 bundle    u8 7  u8[7]     u32 length, message, as often as there are any
//! to the client   entry     u8 1  u8[5]     u16 member  u64 index  u64 client u64 number bytes
//!                 refused   u8 2  u8 why    u8[6]       u64 number                       text
//!                 standing  u8 3  u8 stage  u16 me  u16 leader  u8[2]  u32 leader's node  u32 zero
//!                           u64 generation  u64 index   u64 last number of this client
//!                 snapshot  u8 4  u8[7]                 u64 index  u64 total  u64 at     bytes
//!                 members   u8 5  u8[7]                 u16 member, as often as there are any
//!                 fate      u8 6  u8 fate   u8[6]       u64 client u64 number
//!                 bundle    u8 7  u8[7]     u32 length, message, as often as there are any
//! ```
//! Entries come in order, each once and without a gap, from behind the index that the client named
//! when it opened the group. If the agent has not kept so much, a snapshot comes first, in pieces.
//! An entry with the client's own id and number says that its proposal is decided. The answer to a
//! question comes after all entries that it rests on. A bundle is what its messages are, one after
//! the other: a datagram costs a system call on either side.

use crate::control::{ErrorCode, Refused};
use crate::frame::bytes::{Reader, put_text};
use serde::{Deserialize, Serialize};

/// The largest message.
pub const MESSAGE_MAX: usize = 72 * 1024;
/// A bundle takes no more messages once it has so many bytes.
pub const BUNDLE_ENOUGH: usize = 32 * 1024;
/// Messages in a bundle, at most: they are handled in one go.
pub const BUNDLE_MESSAGES: usize = 256;
/// The first byte of a bundle.
const BUNDLE: u8 = 7;
/// The largest value that an application proposes.
pub const VALUE_MAX: usize = 64 * 1024;
/// Bytes of a snapshot in one message.
pub const PIECE_MAX: usize = 64 * 1024;
/// The largest snapshot.
pub const SNAPSHOT_MAX: u64 = 64 << 20;

/// How far the group is on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Stage {
    /// All hosts are asked whether they take part.
    Preparing = 1,
    /// This host takes part when all others do.
    Prepared = 2,
    /// This host asks to be let in; proposals are refused until it is.
    Joining = 3,
    /// It takes part.
    Running = 4,
    /// This host left it.
    Left = 5,
    /// It has not begun here.
    Failed = 6,
    /// There is no such group here any more.
    Gone = 7,
}

impl Stage {
    /// Every stage.
    pub const ALL: [Stage; 7] =
        [Stage::Preparing, Stage::Prepared, Stage::Joining, Stage::Running, Stage::Left, Stage::Failed, Stage::Gone];

    /// The stage with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| *stage as u8 == number)
    }

    /// The name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Preparing => "preparing",
            Stage::Prepared => "prepared",
            Stage::Joining => "joining",
            Stage::Running => "running",
            Stage::Left => "left",
            Stage::Failed => "failed",
            Stage::Gone => "gone",
        }
    }
}

/// Why a proposal was not taken. It may be proposed again, with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Why {
    /// As much waits as may: again, after the next entry.
    Busy = 1,
    /// The group does not run on this host now: again, when a standing says that it does.
    NotRunning = 2,
    /// It can never be taken, or not from this user, who may only open the group.
    Invalid = 3,
}

/// What became of a proposal, as far as this host's member has applied entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Fate {
    /// It is decided: its entry is applied.
    Decided = 1,
    /// It is not decided so far, and may be.
    Open = 2,
    /// It is not decided and never will be: a later proposal of its client was applied.
    Never = 3,
    /// Nobody remembers: too many clients, or too many proposals that were passed over, came after it.
    Forgotten = 4,
}

impl Fate {
    /// Every fate.
    pub const ALL: [Fate; 4] = [Fate::Decided, Fate::Open, Fate::Never, Fate::Forgotten];

    /// The fate with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|fate| *fate as u8 == number)
    }

    /// The name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Fate::Decided => "decided",
            Fate::Open => "open",
            Fate::Never => "never",
            Fate::Forgotten => "forgotten",
        }
    }
}

/// From the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToAgent<'a> {
    /// Decide this.
    Propose {
        /// The numbers right before it that the client has given up: they are not waited for.
        skipped: u32,
        /// The client's number of it, growing from 1.
        number: u64,
        /// What.
        bytes: &'a [u8],
    },
    /// A piece of the application's state behind an entry: the agent need not keep what is before.
    Snapshot(Piece<'a>),
    /// What became of this proposal?
    Ask {
        /// Whose.
        client: u64,
        /// That client's number.
        number: u64,
    },
}

/// A piece of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The last entry that is in it.
    pub index: u64,
    /// Bytes of the whole.
    pub total: u64,
    /// Where this piece begins.
    pub at: u64,
    /// What.
    pub bytes: &'a [u8],
}

/// How the group stands here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How far it is.
    pub stage: Stage,
    /// This host's member; 0: none.
    pub me: u16,
    /// The leading member; 0: none is known.
    pub leader: u16,
    /// The node of the leading member; 0: none is known.
    pub leader_node: u32,
    /// Which group of that name.
    pub generation: u64,
    /// Entries applied here.
    pub index: u64,
    /// The client's last number that was applied.
    pub last_number: u64,
}

/// To the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToClient<'a> {
    /// The next entry.
    Entry {
        /// The member that proposed it.
        member: u16,
        /// Its place, from 1.
        index: u64,
        /// The client that proposed it.
        client: u64,
        /// That client's number.
        number: u64,
        /// What.
        bytes: &'a [u8],
    },
    /// A proposal was not taken.
    Refused {
        /// Which.
        number: u64,
        /// Why.
        why: Why,
        /// For people.
        text: &'a str,
    },
    /// How it stands, at first and after a change.
    Standing(Standing),
    /// A piece of the state to begin from.
    Snapshot(Piece<'a>),
    /// The members that are not known to have crashed, at first and after a change.
    Members(Ids<'a>),
    /// What became of a proposal that was asked for.
    Fate {
        /// What.
        fate: Fate,
        /// Whose.
        client: u64,
        /// That client's number.
        number: u64,
    },
}

/// Ids of members, as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids<'a>(&'a [u8]);

impl<'a> Ids<'a> {
    /// These ids, little-endian; nothing if a byte is missing.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.len().is_multiple_of(2).then_some(Self(bytes))
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = u16> + 'a {
        self.0.chunks_exact(2).map(|id| u16::from_le_bytes([id[0], id[1]]))
    }
}

/// To a client that goes on in a group that is not there any more.
#[must_use]
pub fn began_anew(name: &str) -> Refused {
    let what = format!("the group {name} was begun anew: its entries are counted from 1 again; open it anew, from its begin");
    Refused { code: ErrorCode::NotFound, what }
}

fn piece<'a>(r: &mut Reader<'a>) -> Option<Piece<'a>> {
    let (index, total, at) = (le(r)?, le(r)?, le(r)?);
    let bytes = r.rest();
    let end = at.checked_add(bytes.len() as u64)?;
    (total <= SNAPSHOT_MAX && end <= total && bytes.len() <= PIECE_MAX).then_some(Piece { index, total, at, bytes })
}

fn le(r: &mut Reader<'_>) -> Option<u64> {
    r.u64().map(u64::swap_bytes)
}

fn write_piece(out: &mut Vec<u8>, kind: u8, piece: &Piece<'_>) {
    out.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
    for n in [piece.index, piece.total, piece.at] {
        out.extend_from_slice(&n.to_le_bytes());
    }
    out.extend_from_slice(piece.bytes);
}

/// Messages for one datagram.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    bytes: Vec<u8>,
    count: usize,
}

impl Bundle {
    const HEAD: usize = 8;
    const LENGTH: usize = size_of::<u32>();

    /// One more message: what `append` writes behind the bytes that are there.
    pub fn push(&mut self, append: impl FnOnce(&mut Vec<u8>)) {
        if self.count == 0 {
            self.bytes.clear();
            self.bytes.extend_from_slice(&[BUNDLE, 0, 0, 0, 0, 0, 0, 0]);
        }
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; Self::LENGTH]);
        append(&mut self.bytes);
        let length = (self.bytes.len() - at - Self::LENGTH) as u32;
        self.bytes[at..at + Self::LENGTH].copy_from_slice(&length.to_le_bytes());
        self.count += 1;
    }

    /// Whether nothing is in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether one more message, of so many bytes, goes into the next datagram.
    #[must_use]
    pub const fn is_enough(&self, length: usize) -> bool {
        self.count >= BUNDLE_MESSAGES || self.count > 0 && self.bytes.len() + Self::LENGTH + length > BUNDLE_ENOUGH
    }

    /// What is sent; a message that is alone goes as it is.
    #[must_use]
    pub fn datagram(&self) -> &[u8] {
        let from = match self.count {
            0 => self.bytes.len(),
            1 => Self::HEAD + Self::LENGTH,
            _ => 0,
        };
        &self.bytes[from..]
    }

    /// It was sent.
    pub fn clear(&mut self) {
        self.count = 0;
        self.bytes.clear();
    }
}

/// Where the first message behind `at` lies in a datagram; `at` is 0 at first, and then the end of
/// the one before. Nothing behind the last one.
///
/// # Errors
/// What no message can be is in there.
pub fn next_message(datagram: &[u8], at: usize) -> Result<Option<std::ops::Range<usize>>, Malformed> {
    let is_bundle = datagram.first() == Some(&BUNDLE);
    if !is_bundle {
        return Ok((at == 0).then_some(0..datagram.len()));
    }
    let at = at.max(Bundle::HEAD);
    if at == datagram.len() {
        return Ok(None);
    }
    let head = datagram.get(at..at + Bundle::LENGTH).and_then(|bytes| bytes.try_into().ok()).ok_or(Malformed)?;
    let from = at + Bundle::LENGTH;
    let to = from.checked_add(u32::from_le_bytes(head) as usize).filter(|to| *to <= datagram.len()).ok_or(Malformed)?;
    Ok(Some(from..to))
}

/// Bytes that are no bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl<'a> ToAgent<'a> {
    /// Reads it; nothing that a client of this version can have said.
    #[must_use]
    pub fn read(message: &'a [u8]) -> Option<Self> {
        let mut r = Reader::new(message);
        let kind = r.u8()?;
        r.take(3)?;
        let skipped = r.u32()?.swap_bytes();
        match kind {
            1 => {
                let number = le(&mut r)?;
                let bytes = r.rest();
                (bytes.len() <= VALUE_MAX).then_some(ToAgent::Propose { skipped, number, bytes })
            }
            2 => piece(&mut r).map(ToAgent::Snapshot),
            3 => Some(ToAgent::Ask { client: le(&mut r)?, number: le(&mut r)? }),
            _ => None,
        }
    }

    /// Writes it into `out`, whatever was in there.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        self.append(out);
    }

    /// Writes it behind what is in `out`.
    pub fn append(&self, out: &mut Vec<u8>) {
        match self {
            ToAgent::Propose { skipped, number, bytes } => {
                out.extend_from_slice(&[1, 0, 0, 0]);
                out.extend_from_slice(&skipped.to_le_bytes());
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(bytes);
            }
            ToAgent::Snapshot(piece) => write_piece(out, 2, piece),
            ToAgent::Ask { client, number } => {
                out.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0]);
                out.extend_from_slice(&client.to_le_bytes());
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
}

impl<'a> ToClient<'a> {
    /// Reads it; nothing that an agent of this version can have said.
    #[must_use]
    pub fn read(message: &'a [u8]) -> Option<Self> {
        let mut r = Reader::new(message);
        let (kind, small) = (r.u8()?, r.u8()?);
        match kind {
            1 => {
                r.take(4)?;
                let member = r.u16()?.swap_bytes();
                let (index, client, number) = (le(&mut r)?, le(&mut r)?, le(&mut r)?);
                Some(ToClient::Entry { member, index, client, number, bytes: r.rest() })
            }
            2 => {
                r.take(6)?;
                let why = match small {
                    1 => Why::Busy,
                    2 => Why::NotRunning,
                    3 => Why::Invalid,
                    _ => return None,
                };
                Some(ToClient::Refused { number: le(&mut r)?, why, text: r.text()? })
            }
            3 => {
                let stage = Stage::from_u8(small)?;
                let (me, leader) = (r.u16()?.swap_bytes(), r.u16()?.swap_bytes());
                r.take(2)?;
                let leader_node = r.u32()?.swap_bytes();
                r.take(4)?;
                let (generation, index, last_number) = (le(&mut r)?, le(&mut r)?, le(&mut r)?);
                Some(ToClient::Standing(Standing { stage, me, leader, leader_node, generation, index, last_number }))
            }
            4 => {
                r.take(6)?;
                piece(&mut r).map(ToClient::Snapshot)
            }
            5 => {
                r.take(6)?;
                Ids::new(r.rest()).map(ToClient::Members)
            }
            6 => {
                r.take(6)?;
                Some(ToClient::Fate { fate: Fate::from_u8(small)?, client: le(&mut r)?, number: le(&mut r)? })
            }
            _ => None,
        }
    }

    /// Writes it into `out`, whatever was in there.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        self.append(out);
    }

    /// Writes it behind what is in `out`.
    pub fn append(&self, out: &mut Vec<u8>) {
        match self {
            ToClient::Entry { member, index, client, number, bytes } => {
                out.extend_from_slice(&[1, 0, 0, 0, 0, 0]);
                out.extend_from_slice(&member.to_le_bytes());
                for n in [index, client, number] {
                    out.extend_from_slice(&n.to_le_bytes());
                }
                out.extend_from_slice(bytes);
            }
            ToClient::Refused { number, why, text } => {
                out.extend_from_slice(&[2, *why as u8, 0, 0, 0, 0, 0, 0]);
                out.extend_from_slice(&number.to_le_bytes());
                put_text(out, text);
            }
            ToClient::Standing(s) => {
                out.extend_from_slice(&[3, s.stage as u8]);
                out.extend_from_slice(&s.me.to_le_bytes());
                out.extend_from_slice(&s.leader.to_le_bytes());
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(&s.leader_node.to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                for n in [s.generation, s.index, s.last_number] {
                    out.extend_from_slice(&n.to_le_bytes());
                }
            }
            ToClient::Snapshot(piece) => write_piece(out, 4, piece),
            ToClient::Members(ids) => {
                out.extend_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0]);
                out.extend_from_slice(ids.0);
            }
            ToClient::Fate { fate, client, number } => {
                out.extend_from_slice(&[6, *fate as u8, 0, 0, 0, 0, 0, 0]);
                out.extend_from_slice(&client.to_le_bytes());
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let mut out = Vec::new();
        let piece = Piece { index: 7, total: 300, at: 200, bytes: b"piece" };
        let ask = ToAgent::Ask { client: u64::MAX - 1, number: 4 };
        for message in [ToAgent::Propose { skipped: 0x0102, number: 3, bytes: b"value" }, ToAgent::Snapshot(piece), ask] {
            message.write(&mut out);
            assert_eq!(ToAgent::read(&out), Some(message));
        }
        let standing = Standing {
            stage: Stage::Running,
            me: 2,
            leader: 1,
            leader_node: 0x0102_0304,
            generation: 5,
            index: 6,
            last_number: 7,
        };
        for message in [
            ToClient::Entry { member: 259, index: 1, client: u64::MAX, number: 3, bytes: b"value" },
            ToClient::Refused { number: 9, why: Why::Busy, text: "later" },
            ToClient::Standing(standing),
            ToClient::Snapshot(piece),
            ToClient::Members(Ids::new(&[1, 0, 3, 1]).unwrap()),
            ToClient::Fate { fate: Fate::Never, client: 7, number: u64::MAX },
        ] {
            message.write(&mut out);
            assert_eq!(ToClient::read(&out), Some(message));
            assert_eq!(ToClient::read(&out[..1]), None);
        }
    }

    #[test]
    fn a_piece_lies_within_its_snapshot() {
        let mut out = Vec::new();
        for (total, at) in [(4, 0), (5, 1), (SNAPSHOT_MAX + 1, 0), (u64::MAX, u64::MAX)] {
            ToAgent::Snapshot(Piece { index: 1, total, at, bytes: b"piece" }).write(&mut out);
            assert_eq!(ToAgent::read(&out), None, "{total} {at}");
        }
    }

    fn all(datagram: &[u8]) -> Result<Vec<&[u8]>, Malformed> {
        let (mut at, mut all) = (0, Vec::new());
        while let Some(range) = next_message(datagram, at)? {
            at = range.end;
            all.push(&datagram[range]);
        }
        Ok(all)
    }

    #[test]
    fn a_bundle_is_its_messages_and_one_that_is_alone_goes_as_it_is() {
        let mut bundle = Bundle::default();
        assert!(bundle.is_empty() && bundle.datagram().is_empty() && !bundle.is_enough(MESSAGE_MAX));
        let ask = |number| ToAgent::Ask { client: 1, number };
        bundle.push(|out| ask(1).append(out));
        assert_eq!(ToAgent::read(bundle.datagram()), Some(ask(1)));
        assert_eq!(all(bundle.datagram()), Ok(vec![bundle.datagram()]));
        bundle.push(|out| ask(2).append(out));
        bundle.push(|_| ());
        let read: Vec<_> = all(bundle.datagram()).unwrap().into_iter().map(ToAgent::read).collect();
        assert_eq!(read, [Some(ask(1)), Some(ask(2)), None], "what means nothing is the reader's to refuse");
        assert!(bundle.is_enough(BUNDLE_ENOUGH) && !bundle.is_enough(100));
        for cut in 9..bundle.datagram().len() {
            assert!(all(&bundle.datagram()[..cut]).is_err() || all(&bundle.datagram()[..cut]).unwrap().len() < 3, "{cut}");
        }
        (0..BUNDLE_MESSAGES).for_each(|_| bundle.push(|_| ()));
        assert!(bundle.is_enough(0));
        bundle.clear();
        bundle.push(|out| ask(3).append(out));
        assert_eq!(ToAgent::read(bundle.datagram()), Some(ask(3)));
        assert_eq!(all(&[BUNDLE]), Err(Malformed));
        assert_eq!(all(&[BUNDLE, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]), Err(Malformed));
    }

    proptest! {
        #[test]
        fn hostile_bundles_end(bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..80)) {
            let mut bytes = bytes;
            bytes.insert(0, BUNDLE);
            if let Ok(messages) = all(&bytes) {
                prop_assert!(messages.iter().map(|message| message.len() + 4).sum::<usize>() + 8 <= bytes.len().max(8));
            }
        }

        #[test]
        fn hostile_bytes_are_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0u8..7) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let mut out = Vec::new();
            if let Some(message) = ToAgent::read(&bytes) {
                message.write(&mut out);
                prop_assert_eq!(ToAgent::read(&out), Some(message));
            }
            if let Some(message) = ToClient::read(&bytes) {
                message.write(&mut out);
                prop_assert_eq!(ToClient::read(&out), Some(message));
            }
        }
    }
}
