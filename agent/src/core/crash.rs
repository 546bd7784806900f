//! Ends on this host: crashes that the exit watch saw, what its ring had no room for, and this agent's own leave.
//!
//! ```text
//! urgent ring ─► add_crash ─► send_crashes: one frame for all that wait ─► write_crash: table, history, rings
//! ```

use super::{Core, DEPARTS_WITHIN_NS, LEAVES};
use crate::clock::now_ns;
use fide_wire::event::{Record, RecordKind};
use fide_wire::frame::table::Change;
use fide_wire::packet::{Kind, Notice};
use fide_wire::verdict::{Cause, Evidence, Grade, VerdictId};
use std::collections::{HashMap, VecDeque};

/// So long at most before heartbeats and all else have their turn.
const URGENT_NS: u64 = 500_000;

/// Ends of processes of this host that come together: their notices leave in one frame, all of them before
/// any is written to the table and told.
#[derive(Debug)]
pub(super) struct Crashes {
    /// Of the next frame.
    notices: Vec<Notice>,
    leaving: Vec<Crash>,
    /// Have left, and are not written yet.
    left: VecDeque<Crash>,
    /// By process, the version of the last of all these.
    latest: HashMap<u32, u32>,
}

/// What came of the end of a process that ended while it began to be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// It was told.
    Told,
    /// It was clean, and the start watch tells that a child may go on in its place.
    HandedOver,
    /// It was clean, and nobody tells of it.
    Cleanly,
}

#[derive(Clone, Copy, Debug)]
struct Crash {
    record: Record,
    /// The exit watch has served the kernel's rings itself.
    delivered: bool,
    /// The stamp of its frame.
    sent_ns: u64,
}

impl Crash {
    fn notice(&self, cause: Cause) -> Notice {
        let Record { id, app, flags, code, event_ns, .. } = self.record;
        let flags = if flags & Record::CONFIRMS != 0 { Notice::CONFIRMS } else { 0 };
        Notice { notice: id as u32, app, cause, grade: Grade::Certain, flags, code, event_ns }
    }
}

impl Default for Crashes {
    fn default() -> Self {
        Self {
            notices: Vec::with_capacity(Change::AT_ONCE),
            leaving: Vec::with_capacity(Change::AT_ONCE),
            left: VecDeque::with_capacity(1024),
            latest: HashMap::with_capacity(1024),
        }
    }
}

impl Core {
    /// Sends what ended here, and takes what others say of theirs; then writes and tells it, for a time.
    pub(super) fn drain_urgent(&mut self) {
        let until_ns = now_ns() + URGENT_NS;
        self.send_urgent(until_ns);
        while !self.crashes.left.is_empty() && now_ns() < until_ns {
            self.write_crash();
        }
    }

    /// Whether some of that waits for the next turn.
    pub(super) fn has_urgent(&self) -> bool {
        self.receiver.urgent_waiting() > 0 || !self.crashes.left.is_empty()
    }

    /// All that the exit watch has said of a process up to now is written and told.
    pub(super) fn drain_urgent_of(&mut self, app: u32) {
        self.send_urgent(u64::MAX);
        while self.crashes.latest.contains_key(&app) && !self.crashes.left.is_empty() {
            self.write_crash();
        }
    }

    pub(super) fn send_urgent(&mut self, until_ns: u64) {
        while let Some(record) = self.receiver.next_urgent() {
            if record.kind() == Some(RecordKind::Exit) {
                self.add_crash(&record, self.receiver.kernel_watches_exits());
            } else {
                self.send_crashes();
                self.remote_notice(&record, now_ns());
            }
            if now_ns() >= until_ns {
                break;
            }
        }
        self.send_crashes();
    }

    /// A process of this host is doomed or dead: its notice leaves with the next frame, which is now unless more come.
    fn add_crash(&mut self, record: &Record, delivered: bool) {
        let Some(cause) = record.cause() else { return };
        if let (Some(driver), Some(fence)) = (self.fence.as_mut(), self.node.fence()) {
            let watchlist = &self.watchlist;
            driver.doomed(fence, (record.app, watchlist.identity(record.app)), |app| watchlist.is_alive(app));
        }
        // The exit watch may have seen it just before this agent began a new incarnation, or before another change of the process was written.
        let mut record = Record { incarnation: self.start.incarnation, ..*record };
        let version = record.id as u32;
        let written = self.own_table().get(record.app).map_or(0, |row| row.version);
        let latest = self.crashes.latest.get(&record.app).copied().unwrap_or(0);
        if written.max(latest.into()) > u64::from(version) {
            self.node.skip(u64::from(version));
            record.id = VerdictId::new(self.start.node, self.receiver.next_notice()).0;
        }
        let crash = Crash { record, delivered, sent_ns: 0 };
        self.crashes.notices.push(crash.notice(cause));
        self.crashes.leaving.push(crash);
        self.crashes.latest.insert(record.app, record.id as u32);
        if self.crashes.notices.len() == Change::AT_ONCE {
            self.send_crashes();
        }
    }

    /// One frame for all that came together.
    fn send_crashes(&mut self) {
        if self.crashes.notices.is_empty() {
            return;
        }
        let mut notices = std::mem::take(&mut self.crashes.notices);
        let sent_ns = self.send_notices(&notices);
        notices.clear();
        self.crashes.notices = notices;
        let (leaving, watchlist, ends) = (self.crashes.leaving.drain(..), &mut self.watchlist, &self.ends);
        self.crashes.left.extend(leaving.map(|crash| {
            let Record { app, event_ns, code, .. } = crash.record;
            let exits = code == 0 && crash.record.cause() == Some(Cause::Doomed); // its status follows
            if !exits && watchlist.get_mut(app).is_some_and(|w| std::mem::take(&mut w.ends_connections)) {
                // Who ends by itself, and cleanly, may have said goodbye: that is delivered.
                match crash.record.cause() {
                    Some(Cause::Exited) if code == 0 => ends.connections.forget(app),
                    _ => ends.connections.ended(app, event_ns),
                }
            }
            Crash { sent_ns, ..crash }
        }));
    }

    /// Writes the first of those that have left to the table, and tells it.
    fn write_crash(&mut self) {
        let Some(crash) = self.crashes.left.pop_front() else { return };
        if self.crashes.latest.get(&crash.record.app) == Some(&(crash.record.id as u32)) {
            self.crashes.latest.remove(&crash.record.app);
        }
        self.tell_crash(&crash, now_ns());
    }

    /// An end of which the exit watch has not told: it leaves, is written and told.
    fn found_crash(&mut self, record: &Record) {
        self.add_crash(record, false);
        self.send_crashes();
        self.drain_urgent_of(record.app);
    }

    fn tell_crash(&mut self, crash: &Crash, now: u64) {
        let Crash { record, delivered, sent_ns } = crash;
        let Some(cause) = record.cause() else { return };
        let notice = crash.notice(cause);
        self.write_change(&notice, now);
        if self.watchlist.get(record.app).is_none_or(|w| w.ended.is_some_and(|(c, _)| c != Cause::Doomed)) {
            return; // it left while the exit watch was at work: the number had to be used, the story is over
        }
        self.watchlist.end(record.app, cause, record.code, now);
        self.progress.forget(record.app);
        let evidence =
            Evidence { event_ns: record.event_ns, sent_ns: *sent_ns, received_ns: record.received_ns, ..Evidence::default() };
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
        self.publish(record.node, record.app, &published, &[], *delivered);
        self.publish_late(&published, *delivered);
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
            self.found_crash(&record);
            if end.watch.state == 2 {
                self.receiver.unwatch(end.pid);
            }
        }
    }

    /// Ends the loop: with a word that this agent will be back within so many ms (not 0), or for
    /// good. Before that, its members leave groups that could decide nothing without them.
    pub fn leave(&mut self, back_within_ms: u32) {
        if self.stopping.is_some() || self.departing.is_some() {
            return;
        }
        let now = now_ns();
        if self.groups.depart(now) {
            self.departing = Some((now + DEPARTS_WITHIN_NS, back_within_ms));
        } else {
            self.say_goodbye(back_within_ms);
        }
    }

    /// Its members have left, or cannot.
    pub(super) fn go_on_leaving(&mut self, now: u64) {
        if let Some((_, back_within_ms)) = self.departing.take_if(|(until, _)| now >= *until || !self.groups.is_departing()) {
            self.say_goodbye(back_within_ms);
        }
        self.leave_again(now);
    }

    /// A few times.
    fn say_goodbye(&mut self, back_within_ms: u32) {
        let now = now_ns();
        let number = self.receiver.next_notice();
        let code = i32::try_from(back_within_ms).unwrap_or(i32::MAX);
        let notice = Notice { notice: number, app: 0, cause: Cause::Left, grade: Grade::Certain, flags: 0, code, event_ns: now };
        // Others hear that it left, and go on without its members.
        self.groups.stop(now);
        self.stopping = Some((now, notice, 0));
        self.leave_again(now);
        self.write_change(&notice, now);
    }

    pub(super) fn leave_at(&self) -> Option<u64> {
        if let Some((until, _)) = self.departing {
            return Some(until);
        }
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

    /// A process that was watched too late: it had died before, and the exit watch says nothing.
    /// `end`: what is known of its end. The clean end of one that was started just now is not told:
    /// a child may go on in its place.
    pub fn died_before_watched(&mut self, app: u32, end: Option<(Cause, i32)>) -> Before {
        let Some(w) = self.watchlist.get(app).filter(|w| w.ended.is_none()) else { return Before::Told };
        let (pid, settles) = (w.pid, w.settles_ns != 0);
        let was_seen = self.receiver.unwatch(pid);
        // The exit watch may have seen it yet: then its record is in the urgent ring.
        self.drain_urgent_of(app);
        if self.watchlist.get(app).is_none_or(|w| w.ended.is_some()) {
            return Before::Told;
        }
        // Seen, and not told as an end: it was clean, and the start watch tells of it.
        if settles && was_seen && matches!(end, None | Some((Cause::Exited, 0))) {
            return Before::HandedOver;
        }
        if settles && end == Some((Cause::Exited, 0)) {
            return Before::Cleanly;
        }
        let now = now_ns();
        let (cause, code) = end.unwrap_or((Cause::Exited, -1));
        let record = Record {
            kind: RecordKind::Exit as u16,
            cause: cause as u8,
            grade: Grade::Certain as u8,
            flags: Record::LOCAL,
            node: self.start.node,
            incarnation: self.start.incarnation,
            app,
            code,
            pid,
            id: VerdictId::new(self.start.node, self.receiver.next_notice()).0,
            event_ns: now,
            received_ns: now,
            ..Record::default()
        };
        self.found_crash(&record);
        Before::Told
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
        self.found_crash(&record);
    }
}
