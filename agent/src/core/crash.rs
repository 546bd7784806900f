//! Ends on this host: a crash that the exit watch saw, what its ring had no room for, and this agent's own leave.

use super::{Core, LEAVES};
use crate::clock::now_ns;
use fide_wire::event::{Record, RecordKind};
use fide_wire::packet::{Kind, Notice};
use fide_wire::verdict::{Cause, Evidence, Grade, VerdictId};

/// So long at most before heartbeats and all else have their turn.
const URGENT_NS: u64 = 500_000;

impl Core {
    pub(super) fn drain_urgent(&mut self) {
        let began = now_ns();
        while let Some(record) = self.receiver.next_urgent() {
            let now = now_ns();
            if record.kind() == Some(RecordKind::Exit) {
                self.local_end(&record, self.receiver.kernel_watches_exits(), now);
            } else {
                self.remote_notice(&record, now);
            }
            if now.saturating_sub(began) >= URGENT_NS {
                return;
            }
        }
    }

    /// A process of this host is doomed or dead. First of all the notice leaves; the rest can wait.
    ///
    /// `delivered`: the exit watch has served the kernel's rings itself.
    pub(super) fn local_end(&mut self, record: &Record, delivered: bool, now: u64) {
        let Some(cause) = record.cause() else { return };
        if let Some(fence) = self.fence.as_mut() {
            let watchlist = &self.watchlist;
            fence.doomed((record.app, watchlist.identity(record.app)), |app| watchlist.is_alive(app));
        }
        // The exit watch may have seen it just before this agent began a new incarnation, or before another change of the process was written.
        let mut record = Record { incarnation: self.start.incarnation, ..*record };
        if self.own_table().get(record.app).is_some_and(|row| row.version > u64::from(record.id as u32)) {
            self.node.skip(u64::from(record.id as u32));
            record.id = VerdictId::new(self.start.node, self.receiver.next_notice()).0;
        }
        let record = &record;
        let notice = Notice {
            notice: record.id as u32,
            app: record.app,
            cause,
            grade: Grade::Certain,
            flags: if record.flags & Record::CONFIRMS != 0 { Notice::CONFIRMS } else { 0 },
            code: record.code,
            event_ns: record.event_ns,
        };
        let sent_ns = self.send_notice(Kind::Notice, &notice);
        self.write_change(&notice, now);
        if self.watchlist.get(record.app).is_none_or(|w| w.ended.is_some_and(|(c, _)| c != Cause::Doomed)) {
            return; // it left while the exit watch was at work: the number had to be used, the story is over
        }
        self.watchlist.end(record.app, cause, record.code, now);
        self.progress.forget(record.app);
        let evidence = Evidence { event_ns: record.event_ns, sent_ns, received_ns: record.received_ns, ..Evidence::default() };
        let name = self.watchlist.get(record.app).map(|w| w.name.clone());
        self.tell(
            cause,
            Grade::Certain,
            &self.start.name.clone(),
            self.start.incarnation,
            name,
            record.code,
            notice.flags != 0,
            Some(VerdictId(record.id)),
            Some(evidence),
            self.source(self.start.node, record.app),
            now,
        );
        let published = Record { kind: RecordKind::Process as u16, ..*record };
        self.publish(record.node, record.app, &published, &[], delivered);
        self.publish_late(&published, delivered);
        self.ended(record.node, record.app, cause);
    }

    /// Deaths whose records found the urgent ring full are still in the watch table.
    pub(super) fn recover_stranded(&mut self, now: u64) {
        let (_, lost) = self.receiver.complaints();
        if lost == self.complained.urgent_lost {
            return;
        }
        self.complained.urgent_lost = lost;
        for end in self.receiver.stranded() {
            let signal = end.watch.status & 0x7f;
            let cause = match (end.watch.state, signal) {
                (1, _) => Cause::Doomed,
                (_, 0) => Cause::Exited,
                _ if end.watch.is_out_of_memory() => Cause::OutOfMemory,
                _ => Cause::Killed,
            };
            let known = self.watchlist.get(end.watch.app).and_then(|w| w.ended);
            if known.is_some_and(|(c, _)| c != Cause::Doomed || cause == Cause::Doomed) {
                continue;
            }
            let code = if signal == 0 { end.watch.status >> 8 & 0xff } else { signal };
            let record = Record {
                kind: RecordKind::Exit as u16,
                cause: cause as u8,
                grade: Grade::Certain as u8,
                node: self.start.node,
                app: end.watch.app,
                incarnation: self.start.incarnation,
                code,
                flags: Record::LOCAL | if known.is_some() { Record::CONFIRMS } else { 0 },
                id: VerdictId::new(self.start.node, self.receiver.next_notice()).0,
                event_ns: now,
                received_ns: now,
                pid: end.pid,
                ..Record::default()
            };
            self.local_end(&record, false, now);
            if end.watch.state == 2 {
                self.receiver.unwatch(end.pid);
            }
        }
    }

    /// Says goodbye, a few times, then ends the loop.
    pub fn leave(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        let now = now_ns();
        let number = self.receiver.next_notice();
        let notice =
            Notice { notice: number, app: 0, cause: Cause::Left, grade: Grade::Certain, flags: 0, code: 0, event_ns: now };
        // Others hear that it left, and go on without its members.
        self.groups.stop(now);
        self.stopping = Some((now, notice, 0));
        self.leave_again(now);
        self.write_change(&notice, now);
    }

    pub(super) fn leave_at(&self) -> Option<u64> {
        let (began_ns, _, told) = self.stopping?;
        Some(began_ns + LEAVES.get(told).unwrap_or(&LEAVES[LEAVES.len() - 1]))
    }

    pub(super) fn leave_again(&mut self, now: u64) {
        let due = self.leave_at().is_some_and(|at_ns| now >= at_ns);
        let Some((_, notice, told)) = self.stopping.as_mut().filter(|_| due) else { return };
        if *told == LEAVES.len() {
            self.stopped = true;
            return;
        }
        *told += 1;
        let notice = *notice;
        self.send_notice(Kind::Leave, &notice);
    }

    /// A watched process ended with status 0 before it had settled, and nothing goes on in its place: now that is told.
    pub fn ended_cleanly(&mut self, app: u32) {
        let Some(w) = self.watchlist.get(app).filter(|w| w.ended.is_none()) else { return };
        let now = now_ns();
        let record = Record {
            kind: RecordKind::Exit as u16,
            cause: Cause::Exited as u8,
            grade: Grade::Certain as u8,
            flags: Record::LOCAL,
            node: self.start.node,
            incarnation: self.start.incarnation,
            app,
            pid: w.pid,
            id: VerdictId::new(self.start.node, self.receiver.next_notice()).0,
            event_ns: now,
            received_ns: now,
            ..Record::default()
        };
        self.local_end(&record, false, now);
    }
}
