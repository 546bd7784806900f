//! What becomes known, for rings of applications and for the control thread.

use super::{Core, Happened};
use crate::clock::now_ns;
use crate::shares::{EventSource, UNKNOWN_USER};
use fide_wire::control::HistoryEvent;
use fide_wire::event::{Record, RecordKind};
use fide_wire::verdict::{Cause, Evidence, Grade, VerdictId};

impl Core {
    pub(super) fn host_record(&self, cause: Cause, grade: Grade, node: u32, incarnation: u32, now: u64) -> Record {
        Record {
            kind: RecordKind::Host as u16,
            cause: cause as u8,
            grade: grade as u8,
            node,
            incarnation,
            event_ns: now,
            ..Record::default()
        }
    }

    /// To those who asked while the kernel was delivering, and whom it may have missed. (Twice is better than never: an application is told
    /// once of each end.)
    pub(super) fn publish_late(&mut self, record: &Record, delivered: bool) {
        let rings = self.subscribers.too_late(record.node, record.app, record.received_ns);
        if delivered && rings != 0 {
            self.subscribers.publish(rings, record, &[], false, self.receiver.mechanism());
        }
    }

    /// To those who asked for this process, its host, or everything.
    pub(super) fn publish(&mut self, node: u32, app: u32, record: &Record, body: &[u8], delivered: bool) {
        let rings = self.subscribers.rings(node, app);
        if rings != 0 {
            self.subscribers.publish(rings, record, body, delivered, self.receiver.mechanism());
        }
    }

    /// To everybody who asked for anything of this host.
    pub(super) fn publish_host(&mut self, node: u32, name: &str, record: &Record) {
        let rings = if node == self.start.node { self.subscribers.in_use() } else { self.subscribers.rings_of_host(name) };
        if rings != 0 {
            self.subscribers.publish(rings, record, name.as_bytes(), false, self.receiver.mechanism());
        }
    }

    #[expect(clippy::too_many_arguments, reason = "an event has this many parts, and each caller has them at hand")]
    pub(super) fn tell(
        &self,
        cause: Cause,
        grade: Grade,
        node: &str,
        incarnation: u32,
        app: Option<String>,
        code: i32,
        confirms: bool,
        id: Option<VerdictId>,
        evidence: Option<Evidence>,
        source: EventSource,
        at_ns: u64,
    ) {
        let event = HistoryEvent {
            seq: 0,
            wall_ns: 0,
            at_ns,
            observer: self.start.name.clone(),
            observer_incarnation: self.start.incarnation,
            id,
            cause,
            grade,
            node: node.into(),
            incarnation,
            app,
            code,
            confirms,
            // Words are the control thread's to find.
            text: String::new(),
            maintenance: None,
            evidence: evidence.map(Box::new),
        };
        self.say(Happened::Event(Box::new(event), source));
    }

    /// Enters something of this host in the history, from the control thread's side (an interface, a full disk), and because of whom it is so.
    pub(super) fn tell_local(&mut self, source: EventSource, code: i32, text: String) {
        let host = self.start.name.clone();
        self.tell_text(Cause::Local, Grade::Certain, (&host, self.start.incarnation), code, text, source, now_ns());
    }

    /// Whose doing it is what happens to a process.
    pub(super) fn source(&self, node: u32, app: u32) -> EventSource {
        let user = match app {
            0 => Some(0),
            _ if node == self.start.node => self.watchlist.get(app).map(|w| w.charged),
            _ => self.slot(node).and_then(|slot| self.peers[slot].as_ref()).and_then(|p| p.apps.get(&app)).map(|a| a.user),
        };
        EventSource { node: (node != self.start.node).then_some(node), user: user.unwrap_or(UNKNOWN_USER) }
    }

    #[expect(clippy::too_many_arguments, reason = "as tell()")]
    pub(crate) fn tell_text(
        &self,
        cause: Cause,
        grade: Grade,
        (node, incarnation): (&str, u32),
        code: i32,
        text: String,
        source: EventSource,
        at_ns: u64,
    ) {
        let event = HistoryEvent {
            seq: 0,
            wall_ns: 0,
            at_ns,
            observer: self.start.name.clone(),
            observer_incarnation: self.start.incarnation,
            id: None,
            cause,
            grade,
            node: node.into(),
            incarnation,
            app: None,
            code,
            confirms: false,
            text,
            maintenance: None,
            evidence: None,
        };
        self.say(Happened::Event(Box::new(event), source));
    }
}
