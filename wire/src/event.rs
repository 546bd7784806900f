//! Event records: what a ring carries to an application or to the agent. Host byte order, never on the wire.
//!
//! The receive program and the exit watch write these straight into the ring of whoever subscribed; the agent writes the
//! ones it infers into the same rings. An event is [`Record`] (72 bytes) followed by `body_len` bytes.

use crate::verdict::{Cause, Grade, VerdictId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum RecordKind {
    /// A verdict about a process.
    Process = 1,
    /// A verdict about a host, a path or this observer.
    Host = 2,
    /// A piggybacked message; the body is the message.
    Piggyback = 3,
    /// Events were lost because the reader was too slow; `number` says how many.
    Lost = 4,
    /// The timeout towards a monitored process changed; `number` is the new one in ns.
    TimeoutChanged = 5,
    /// The piggyback size granted changed; `code` is the new one.
    PiggybackSizeChanged = 6,
    /// Somebody began to monitor this process; `code` is the piggyback size wanted.
    MonitorRequest = 7,
    /// To the agent only: a whole packet in the body, its tag over the fixed part already checked.
    Packet = 32,
    /// To the agent only: a watched process of this host (`cause` doomed, exited or killed).
    Exit = 33,
}

impl RecordKind {
    /// The kind with this number.
    #[must_use]
    pub const fn from_u16(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Process,
            2 => Self::Host,
            3 => Self::Piggyback,
            4 => Self::Lost,
            5 => Self::TimeoutChanged,
            6 => Self::PiggybackSizeChanged,
            7 => Self::MonitorRequest,
            32 => Self::Packet,
            33 => Self::Exit,
            _ => return None,
        })
    }
}

/// The fixed part of an event, as it lies in a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Record {
    /// [`RecordKind`].
    pub kind: u16,
    /// [`Cause`], or 0.
    pub cause: u8,
    /// [`Grade`], or 0.
    pub grade: u8,
    /// The node it is about.
    pub node: u32,
    /// The process on that node, 0 for the node itself.
    pub app: u32,
    /// That node's incarnation.
    pub incarnation: u32,
    /// Exit status or signal, or as the kind says.
    pub code: i32,
    /// The path it came by.
    pub path: u8,
    /// [`Record::CONFIRMS`], [`Record::LOCAL`], [`Record::DUPLICATE`], [`Record::FENCED`].
    pub flags: u8,
    /// Bytes that follow.
    pub body_len: u16,
    /// [`VerdictId`], 0 when there is none.
    pub id: u64,
    /// When it happened: for certain verdicts the stamp of the host where it happened (its CLOCK_MONOTONIC).
    pub event_ns: u64,
    /// When the packet was sent (its sender's CLOCK_MONOTONIC).
    pub sent_ns: u64,
    /// When the receive program saw it (this host's CLOCK_MONOTONIC).
    pub received_ns: u64,
    /// The packet's number, or as the kind says.
    pub number: u64,
    /// Process id on this host for [`RecordKind::Exit`], else 0.
    pub pid: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Record>() == 72);

impl Record {
    /// Flag: confirms an earlier *doomed* of the same process.
    pub const CONFIRMS: u8 = 1;
    /// Flag: happened on this host.
    pub const LOCAL: u8 = 2;
    /// Flag, to the agent only: a further copy of a notice; confirmed again, not delivered again.
    pub const DUPLICATE: u8 = 4;
    /// Flag: the host that it is about promised a fence of the whole host, and that is closed by
    /// now: nothing of it is heard any more, whatever it does.
    pub const FENCED: u8 = 8;

    /// Splits a ring entry into its record and body.
    ///
    /// # Errors
    /// `None` when the bytes are shorter than they claim.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<(Record, &[u8])> {
        let (record, rest) = Record::read_from_prefix(bytes).ok()?;
        let body = rest.get(..usize::from(record.body_len))?;
        Some((record, body))
    }

    /// The kind, if known.
    #[must_use]
    pub fn kind(&self) -> Option<RecordKind> {
        RecordKind::from_u16(self.kind)
    }

    /// The cause, if any.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        Cause::from_u8(self.cause)
    }

    /// The grade, if any.
    #[must_use]
    pub fn grade(&self) -> Option<Grade> {
        Grade::from_u8(self.grade)
    }

    /// The verdict's id, if any.
    #[must_use]
    pub fn verdict_id(&self) -> Option<VerdictId> {
        (self.id != 0).then_some(VerdictId(self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_cut_short_is_not_read() {
        let record = Record { kind: 3, body_len: 4, ..Record::default() };
        let mut bytes = record.as_bytes().to_vec();
        bytes.extend_from_slice(b"abc");
        assert_eq!(Record::read(&bytes), None);
        bytes.push(b'd');
        assert_eq!(Record::read(&bytes), Some((record, &b"abcd"[..])));
        assert_eq!(Record::read(&bytes[..71]), None);
    }

    #[test]
    fn kinds_survive() {
        for n in 0..=u16::MAX {
            if let Some(kind) = RecordKind::from_u16(n) {
                assert_eq!(kind as u16, n);
            }
        }
    }
}
