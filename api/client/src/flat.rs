//! An event as one structure with the fields of `struct fide_event` in `fide.h`: for bindings to other languages.

use crate::event::{Event, Subject, Verdict};
use fide_wire::event::Record;
use std::sync::Arc;

/// An event. What its kind has no use for is 0, `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flat {
    /// Its kind: `enum fide_event_kind`.
    pub kind: u32,
    /// Its cause: [`fide_wire::verdict::Cause`], 0 for none.
    pub cause: u32,
    /// How sure: [`fide_wire::verdict::Grade`], 0 for none.
    pub grade: u32,
    /// The node's wire id.
    pub node: u32,
    /// The process's number there, 0 for the node itself.
    pub app: u32,
    /// The node's incarnation.
    pub incarnation: u32,
    /// Exit status, signal or path, as the cause says.
    pub code: i32,
    /// The path its first copy came by.
    pub path: u32,
    /// [`Record::CONFIRMS`], [`Record::LOCAL`], [`Record::FENCED`].
    pub flags: u32,
    /// The verdict's id, 0 without one.
    pub id: u64,
    /// When it happened, nanoseconds of the CLOCK_MONOTONIC of the host where it happened.
    pub event_ns: u64,
    /// When the notice left, by the same clock.
    pub sent_ns: u64,
    /// When this host's kernel received it, by this host's CLOCK_MONOTONIC.
    pub received_ns: u64,
    /// A heartbeat's number, nanoseconds, bytes or a count, as the kind says.
    pub number: u64,
    /// `name@host` or `@host` where it is known.
    pub name: Option<Arc<str>>,
    /// A piggybacked message.
    pub data: Vec<u8>,
}

impl Flat {
    fn about(kind: u32, subject: &Subject) -> Self {
        let Subject { node, app, incarnation, name } = subject.clone();
        Self { kind, node, app, incarnation, name, ..Self::default() }
    }

    fn verdict(kind: u32, v: &Verdict) -> Self {
        let flag = |is_set: bool, flag: u8| if is_set { u32::from(flag) } else { 0 };
        Self {
            cause: v.cause as u32,
            grade: v.grade as u32,
            code: v.code,
            path: v.path.into(),
            flags: flag(v.confirms, Record::CONFIRMS) | flag(v.local, Record::LOCAL) | flag(v.fenced, Record::FENCED),
            id: v.id.map_or(0, |id| id.0),
            event_ns: v.event_ns,
            sent_ns: v.sent_ns,
            received_ns: v.received_ns,
            ..Self::about(kind, &v.subject)
        }
    }
}

impl From<Event> for Flat {
    fn from(event: Event) -> Self {
        match event {
            Event::Failure(v) => Self::verdict(1, &v),
            Event::Confirmed(v) => Self::verdict(2, &v),
            Event::Monitored(v) => Self::verdict(3, &v),
            Event::Host(v) => Self::verdict(4, &v),
            Event::Piggyback(p) => Self {
                number: p.number,
                path: p.path.into(),
                sent_ns: p.sent_ns,
                received_ns: p.received_ns,
                data: p.message,
                ..Self::about(5, &p.from)
            },
            Event::TimeoutChanged { subject, timeout_ns } => Self { number: timeout_ns, ..Self::about(6, &subject) },
            Event::PiggybackSizeChanged { pbsize } => Self { kind: 7, number: pbsize.into(), ..Self::default() },
            Event::MonitorRequest { by, pbsize } => Self { number: pbsize.into(), ..Self::about(8, &by) },
            Event::Lost { count } => Self { kind: 9, number: count, ..Self::default() },
            Event::AgentGone => Self { kind: 10, ..Self::default() },
            Event::Other { record, body } => Self {
                kind: 11,
                cause: record.cause.into(),
                grade: record.grade.into(),
                node: record.node,
                app: record.app,
                incarnation: record.incarnation,
                code: record.code,
                path: record.path.into(),
                flags: record.flags.into(),
                id: record.id,
                event_ns: record.event_ns,
                sent_ns: record.sent_ns,
                received_ns: record.received_ns,
                number: record.number,
                name: None,
                data: body,
            },
            Event::Hung(v) => Self::verdict(12, &v),
            Event::Progressing(v) => Self::verdict(13, &v),
            Event::Fenced(v) => Self::verdict(14, &v),
            Event::Recovered(v) => Self::verdict(15, &v),
        }
    }
}
