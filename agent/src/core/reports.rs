//! Path reports: what arrives of whom, round trips, and the contract that is derived from both.

use super::Core;
use fide_lane::Breach;
use fide_wire::PATHS;
use fide_wire::event::Record;
use fide_wire::packet::{BODY_MAX, Header, Kind, ReportEntry};
use fide_wire::verdict::{Cause, FenceMode, FencedWhy, Grade};

/// A host whose fence depends on confirmations gets them so many times in its timeout.
const CONFIRMATIONS_PER_FENCE: u64 = 5;
const NO_REPORT: ReportEntry =
    ReportEntry { node: 0, incarnation: 0, path: 0, flags: 0, last_number: 0, echo_sent_ns: 0, hold_ns: 0, jitter_max_ns: 0 };

impl Core {
    pub(super) fn path_report(&mut self, h: &Header, body: &[u8], now: u64) {
        let Some(slot) = self.slot(h.sender) else { return };
        let (reporter, is_over) = match self.peers[slot].as_ref() {
            Some(p) if p.incarnation == h.incarnation => (p.name.clone(), p.condemned),
            _ => return,
        };
        // A later life of our name that nobody hears any more: another agent had it, or ours before it lost its memory.
        let mut ours = ReportEntry::read_all(body).filter(|e| e.node == self.start.node).peekable();
        let unheard = ours.peek().is_some() && ours.all(|e| e.flags & ReportEntry::SILENT != 0);
        for entry in ReportEntry::read_all(body) {
            if entry.node != self.start.node {
                if entry.flags & ReportEntry::SILENT != 0 && !is_over {
                    self.node.detector_mut().also_reported(entry.node, &reporter, now);
                }
                continue;
            }
            let over = entry.flags & ReportEntry::CONDEMNED != 0 || (entry.incarnation > self.start.incarnation && unheard);
            let closed = self.fence.as_ref().is_some_and(|f| f.closed().is_some());
            let former = entry.flags & ReportEntry::FORMER != 0;
            let promised = !former && self.fence.as_ref().is_some_and(|f| f.promise().is_some());
            // What runs behind an open fence has run since it was opened, whatever incarnation was begun for somebody's former life.
            let from = if promised { self.own.open_since } else { self.start.incarnation };
            if entry.incarnation >= from && over {
                if closed || promised {
                    // It may have acted on that, unless it was cut off itself since; and a fenced host is opened by its operator only.
                    if !closed {
                        tracing::warn!("{reporter} has given incarnation {} up", entry.incarnation);
                        self.shut_fence(FencedWhy::GivenUp);
                    }
                    return;
                }
                tracing::warn!("{reporter} has given incarnation {} up: starting a new one", entry.incarnation);
                self.start_over(entry.incarnation, now);
                if !former {
                    self.own.open_since = self.start.incarnation;
                }
                return;
            }
            // Of one whom we gave up nothing else is heard: two that were cut off from each other both begin anew.
            if entry.incarnation != self.start.incarnation || is_over {
                continue;
            }
            if let Some(fence) = self.fence.as_mut() {
                let outcome = fence.confirmed(h.sender, entry.last_number, now);
                self.fence_outcome(outcome, now);
            }
            let path = usize::from(entry.path);
            let round_trip = now.saturating_sub(entry.echo_sent_ns).saturating_sub(entry.hold_ns);
            if path < PATHS
                && entry.echo_sent_ns != 0
                && entry.echo_sent_ns <= now
                && let Some(peer) = self.peers[slot].as_mut()
            {
                peer.calibration[path].round_trip(round_trip);
            }
        }
    }

    /// Tells those who depend on it what arrived of them, often enough for their timeouts.
    pub(super) fn confirm_fences(&mut self, now: u64) {
        self.confirm_fences_at = u64::MAX;
        let mut body = Vec::new();
        for slot in 0..self.peers.len() {
            let Some(peer) = self.peers[slot].as_ref().filter(|p| !p.condemned) else { continue };
            let Some(promise) = self.node.detector().promise(peer.node) else { continue };
            if !matches!(promise.mode, FenceMode::Acknowledged(_)) {
                continue;
            }
            let every = (promise.timeout_ns / CONFIRMATIONS_PER_FENCE).max(self.start.period_ns);
            self.confirm_fences_at = self.confirm_fences_at.min(now.saturating_add(every));
            for path in 0..PATHS {
                if body.len() + ReportEntry::LEN <= BODY_MAX
                    && let Some(entry) = self.report_entry(slot, path, now)
                {
                    entry.write(&mut body);
                }
            }
        }
        if !body.is_empty() {
            self.send_event(Kind::PathReport, None, &body);
        }
    }

    pub(super) fn calibrate(&mut self, now: u64) {
        let size = self.lane.piggyback_max() as u32;
        let mut breaches = Vec::new();
        for slot in 0..self.peers.len() {
            let Some(peer) = self.peers[slot].as_mut().filter(|p| !p.condemned && !p.left) else { continue };
            let period = self.receiver.peer(slot).period_ns;
            let period = if period == 0 { peer.announced.period_ns } else { period.into() };
            for path in 0..PATHS {
                let max = self.receiver.take_jitter_max(slot, path);
                peer.calibration[path].set_period(period);
                let window = peer.calibration[path].feed(&self.receiver.jitter(slot, path), max);
                breaches.extend(window.breach.map(|b| (peer.node, peer.incarnation, path, b)));
                peer.window[path] = Some(window);
                let contract = peer.calibration[path].contract(size);
                if contract != peer.contract[path] {
                    peer.contract[path] = contract;
                    // A peer the detector has forgotten has no contract to keep.
                    let _ = self.node.detector_mut().contract(peer.node, path, contract, now);
                }
            }
        }
        for (node, incarnation, path, breach) in breaches {
            self.margin(node, incarnation, path, breach, now);
        }
    }

    /// The margin of one path's contract is used up, or there is some again (DESIGN: assumptions are measured while they are relied on).
    fn margin(&mut self, node: u32, incarnation: u32, path: usize, breach: Breach, now: u64) {
        let host = self.node_name(node);
        let ms = |ns: u64| ns as f64 / 1e6;
        let (cause, text) = match breach {
            Breach::Broken { worst_ns, allowed_ns } => (
                Cause::ContractBroken,
                format!(
                    "heartbeats of {host} on path {path} were up to {:.3} ms late; its contract allows {:.3} ms",
                    ms(worst_ns),
                    ms(allowed_ns)
                ),
            ),
            Breach::Kept => (Cause::ContractKept, format!("heartbeats of {host} on path {path} keep the contract again")),
        };
        let record = Record { code: path as i32, ..self.host_record(cause, Grade::Inferred, node, incarnation, now) };
        self.publish_host(node, &host, &record);
        self.tell_text(cause, Grade::Inferred, (&host, incarnation), path as i32, text, self.source(node, 0), now);
    }

    fn report_entry(&self, slot: usize, path: usize, now: u64) -> Option<ReportEntry> {
        let peer = self.peers[slot].as_ref()?;
        let row = self.receiver.peer(slot);
        let p = row.path.get(path)?;
        let timeout = peer.contract[path].timeout_ns();
        let silent = p.arrived_ns == 0 || now.saturating_sub(p.arrived_ns) > timeout;
        Some(ReportEntry {
            node: peer.node,
            incarnation: peer.incarnation,
            path: path as u8,
            flags: if silent { ReportEntry::SILENT } else { 0 }
                | if peer.condemned { ReportEntry::CONDEMNED } else { 0 }
                | if peer.former { ReportEntry::FORMER } else { 0 },
            last_number: p.number,
            echo_sent_ns: p.sent_ns,
            hold_ns: now.saturating_sub(p.arrived_ns),
            jitter_max_ns: p.jitter_max_ns,
        })
    }

    pub(super) fn report_paths(&mut self, now: u64) {
        let mut bodies = vec![Vec::new()];
        for slot in 0..self.peers.len() {
            for path in 0..PATHS {
                let Some(entry) = self.report_entry(slot, path, now) else { continue };
                if bodies.last().is_some_and(|b| b.len() + ReportEntry::LEN > BODY_MAX) {
                    bodies.push(Vec::new());
                }
                if let Some(body) = bodies.last_mut() {
                    entry.write(body);
                }
            }
        }
        for (node, (incarnation, _, former)) in &self.outdated {
            if bodies.last().is_some_and(|b| b.len() + ReportEntry::LEN > BODY_MAX) {
                bodies.push(Vec::new());
            }
            let flags = ReportEntry::SILENT | ReportEntry::CONDEMNED | if *former { ReportEntry::FORMER } else { 0 };
            let entry = ReportEntry { node: *node, incarnation: *incarnation, flags, ..NO_REPORT };
            if let Some(body) = bodies.last_mut() {
                entry.write(body);
            }
        }
        for body in bodies.iter().filter(|b| !b.is_empty()) {
            self.send_event(Kind::PathReport, None, body);
        }
    }
}
