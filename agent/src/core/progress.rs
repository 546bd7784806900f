//! Progress of this host's processes (B10): hung, and moving again.

use super::Core;
use crate::clock::now_ns;
use crate::shares::{LOOKS, PROGRESS_TOLD, Rate, looks};
use fide_proto::detector::AppState;
use fide_proto::detector::progress::Finding;
use fide_wire::event::{Record, RecordKind};
use fide_wire::packet::{Kind, Notice};
use fide_wire::verdict::{Cause, Evidence, Grade, ProgressSource, VerdictId};
use std::collections::BTreeMap;

/// Looks at progress counters in one loop iteration.
const LOOKS_AT_ONCE: usize = 64;
/// A change of a process's progress that its user has no rate left for is looked at again after so long.
const OWED_AGAIN_NS: u64 = 50_000_000;

/// What others are still to be told of processes' progress.
pub(super) struct Owed {
    findings: BTreeMap<u32, Finding>,
    /// When that is looked at again.
    pub(super) at_ns: u64,
    /// How fast the progress of each user's processes changes.
    pub(super) rates: BTreeMap<u32, Rate>,
}

impl Default for Owed {
    fn default() -> Self {
        Self { findings: BTreeMap::new(), at_ns: u64::MAX, rates: BTreeMap::new() }
    }
}

impl Core {
    /// Tells these rings that a process is hung, if it is: they may not have heard it.
    pub(super) fn introduce_hung(&mut self, rings: u64, node: u32, app: u32, now: u64) {
        let (id, code, incarnation) = if node == self.start.node {
            let hung = self.watchlist.get(app).and_then(|w| w.hung);
            let (Some(number), Some(source)) = (hung, self.progress.hung_by(app)) else { return };
            (VerdictId::new(node, number), source.code(), self.start.incarnation)
        } else {
            let Some(AppState::Hung { code, id }) = self.node.detector().app_state(node, app) else { return };
            let Some(incarnation) = self.node.detector().incarnation(node) else { return };
            (id, code, incarnation)
        };
        let record = self.host_record(Cause::Hung, Grade::Inferred, node, incarnation, now);
        let record = Record { kind: RecordKind::Process as u16, app, code, id: id.0, ..record };
        self.subscribers.publish(rings, &record, &[], false, self.receiver.mechanism());
    }

    pub(super) fn judge_progress(&mut self, now: u64) {
        for _ in 0..LOOKS_AT_ONCE {
            let Some((app, source)) = self.progress.poll_look(now) else { break };
            let Some(look) = self.watchlist.look(app, source) else {
                self.progress.forget(app); // it ended just now
                continue;
            };
            if let Some(finding) = self.progress.looked(app, source, look, now) {
                self.found_in_time(finding, now);
            }
        }
        if now >= self.owed.at_ns {
            self.owed.at_ns = u64::MAX;
            for (app, finding) in std::mem::take(&mut self.owed.findings) {
                let told = self.watchlist.get(app).is_some_and(|w| w.hung.is_some());
                // It may have changed back meanwhile: then there is nothing to tell.
                if told != self.progress.hung_by(app).is_some() {
                    self.found_in_time(finding, now);
                }
            }
        }
    }

    /// A process whose progress changes again and again is told of as often as its user may; of what happens in between, the last.
    fn found_in_time(&mut self, finding: Finding, now: u64) {
        let uid = self.watchlist.get(finding.app).map_or(0, |w| w.account);
        if uid == 0 || self.owed.rates.entry(uid).or_default().take(PROGRESS_TOLD, now) {
            self.owed.findings.remove(&finding.app);
            self.found(&finding, now);
        } else {
            self.owed.findings.insert(finding.app, finding);
            self.owed.at_ns = now + OWED_AGAIN_NS;
        }
    }

    /// A process of this host is hung, or moves again: told as a crash is, at once and until everybody confirmed it.
    fn found(&mut self, finding: &Finding, now: u64) {
        let Finding { app, cause, source, limit_ns, .. } = *finding;
        // If the exit watch was faster, its end is all there is to say.
        self.drain_urgent_of(app);
        if self.watchlist.get(app).is_none_or(|w| w.ended.is_some()) {
            self.progress.forget(app);
            return;
        }
        let grade = if cause == Cause::Hung { Grade::Inferred } else { Grade::Certain };
        let (id, sent_ns) = self.tell_others(app, cause, grade, source, now);
        self.watchlist.set_hung(app, (cause == Cause::Hung).then_some(id.0 as u32));
        let (me, mine, host) = (self.start.node, self.start.incarnation, self.start.name.clone());
        let record = Record {
            kind: RecordKind::Process as u16,
            app,
            id: id.0,
            code: source.code(),
            flags: Record::LOCAL,
            sent_ns,
            received_ns: now,
            ..self.host_record(cause, grade, me, mine, now)
        };
        self.publish(me, app, &record, &[], false);
        let evidence = Evidence { timeout_ns: limit_ns, event_ns: now, sent_ns, received_ns: now, ..Evidence::default() };
        let name = self.watchlist.get(app).map(|w| w.name.clone());
        self.tell(cause, grade, &host, mine, name, source.code(), false, Some(id), Some(evidence), self.source(me, app), now);
    }

    fn tell_others(&mut self, app: u32, cause: Cause, grade: Grade, source: ProgressSource, now: u64) -> (VerdictId, u64) {
        let number = self.receiver.next_notice();
        let notice = Notice { notice: number, app, cause, grade, flags: 0, code: source.code(), event_ns: now };
        let sent_ns = self.send_notice(Kind::Notice, &notice);
        self.write_change(&notice, now);
        (VerdictId::new(self.start.node, number), sent_ns)
    }

    /// Looks at a source of a process's progress from now on, by this limit; 0: no longer. `false` when the process ended.
    pub fn watch_progress(&mut self, app: u32, source: ProgressSource, limit_ns: u64) -> bool {
        if self.watchlist.get(app).is_none_or(|w| w.ended.is_some()) {
            return false;
        }
        let now = now_ns();
        if limit_ns > 0 {
            self.progress.watch(app, source, limit_ns, now);
        } else if let Some(finding) = self.progress.unwatch(app, source) {
            self.found_in_time(finding, now);
        }
        true
    }

    /// The same for a progress counter, within the share of the process's user.
    ///
    /// # Errors
    /// In words: the share is used up.
    pub fn watch_counter(&mut self, app: u32, counter: u8, limit_ns: u64) -> Result<bool, String> {
        let source = ProgressSource::Counter(counter);
        let Some((uid, before)) = self.watchlist.get(app).map(|w| (w.account, w.looks)) else { return Ok(false) };
        let (old, new) = (self.progress.limit_ns(app, source).map_or(0, looks), looks(limit_ns));
        let (own, used) = self.watchlist.looks_of(uid);
        if new > old {
            LOOKS.admit(uid, own, used, new - old)?;
        }
        let watched = self.watch_progress(app, source, limit_ns);
        if let Some(w) = self.watchlist.get_mut(app).filter(|_| watched) {
            w.looks = before.saturating_sub(old) + new;
        }
        Ok(watched)
    }

    /// Judges a process's progress by a probe from now on; `None`: no longer.
    pub fn watch_probe(&mut self, app: u32, probe: Option<(ProgressSource, u64, crate::watchlist::Moves)>) {
        for source in [ProgressSource::Command, ProgressSource::File, ProgressSource::Write] {
            self.watch_progress(app, source, 0);
        }
        let Some((source, limit_ns, moves)) = probe else { return };
        if let Some(w) = self.watchlist.get_mut(app).filter(|w| w.ended.is_none()) {
            w.probe = Some(moves);
            self.watch_progress(app, source, limit_ns);
        }
    }

    /// An application's own detector found that a process of this host is hung, or is not.
    pub fn report_progress(&mut self, app: u32, hung: bool) {
        let now = now_ns();
        if self.watchlist.get(app).is_some_and(|w| w.ended.is_none())
            && let Some(finding) = self.progress.reported(app, hung, now)
        {
            self.found_in_time(finding, now);
        }
    }
}
