//! Judging silence: the receive table, answers and barriers go to the node, whose verdicts come out.

use super::Core;
use crate::clock::now_ns;
use fide_lane::{AnswerKind, Prober};
use fide_proto::detector::{PathArrival, ProbeResult};
use fide_proto::node::fence::HostFence;
use fide_proto::node::probing::{self, Answer, Emptied};
use fide_wire::PATHS;
use fide_wire::marks::Marks;
use fide_wire::verdict::{Barrier, BarrierBy, Evidence};
use std::net::IpAddr;

/// So long before a deadline that is about to be missed the loop is awake, and the way of a question is gone once, so that the question behind the deadline
/// finds everything in the caches: the first echo takes some 60 µs, one that follows soon 12 µs. To be woken takes up to 100 µs, and questions that the
/// caches have not up to 200: all that must be over by the deadline.
const WARM_NS: u64 = 400_000;
/// So long behind it the loop stays awake: to be woken takes as long as an answer does.
const AWAKE_NS: u64 = 60_000;
/// So long before such a deadline what can wait is put off, but not for longer than [`PUT_OFF_NS`].
const PRESSED_NS: u64 = 1_000_000;
const PUT_OFF_NS: u64 = 5_000_000;

impl Core {
    /// A host is overdue, and late soon: asks it once ahead of time, for the question's sake and not for the answer's. That says nothing (it was asked before
    /// the deadline), and nobody waits for it.
    pub(super) fn warm(&mut self, now: u64) {
        let Some((node, at_ns, late_ns)) = self.warm_at() else { return };
        if now < at_ns {
            return;
        }
        self.warmed_ns = late_ns;
        if now >= late_ns || self.node.detector().is_draining() {
            return; // too late for that, or warm already: and answers that are waited for go first
        }
        for path in 0..PATHS {
            self.ask(node, path, Prober::echo_aside);
        }
    }

    /// Whether a host is late in a moment, or was a moment ago and its barrier is waited for. Once for each deadline.
    pub(super) fn is_awake(&self, now: u64) -> bool {
        (self.warmed_ns.saturating_sub(WARM_NS)..self.warmed_ns + AWAKE_NS).contains(&now)
            && (self.node.detector().is_draining()
                || self.node.detector().next_late().is_some_and(|(.., late_ns)| late_ns == self.warmed_ns))
    }

    /// Whether work that was due at this time, takes some 0.5 ms and can wait may begin: not while a deadline is about to be missed, or its barrier is waited for.
    pub(super) fn can_begin(&self, due_ns: u64, now: u64) -> bool {
        let soon = |(_, due_ns, late_ns): (u32, u64, u64)| due_ns <= now && late_ns.saturating_sub(now) < PRESSED_NS;
        now >= due_ns
            && (now >= due_ns.saturating_add(PUT_OFF_NS)
                || !(self.node.detector().is_draining() || self.node.detector().next_late().is_some_and(soon)))
    }

    /// Whom to ask ahead of time, when, and until when.
    pub(super) fn warm_at(&self) -> Option<(u32, u64, u64)> {
        let (node, due_ns, late_ns) = self.node.detector().next_late()?;
        let at_ns = due_ns.max(late_ns.saturating_sub(WARM_NS));
        (late_ns > self.warmed_ns).then_some((node, at_ns, late_ns))
    }

    pub(super) fn judge(&mut self, now: u64) {
        self.take_answers(now);
        self.weigh(now);
        // A barrier is back in less time than all questions take to be sent, and a verdict may wait for it.
        while self.node.probing().has_next() {
            let now = now_ns();
            if self.take_answers(now) {
                self.weigh(now);
            }
            let (node, mut view) = self.node_and_view();
            node.ask_next(&mut view, now);
            self.act(None, now);
        }
    }

    /// Whether there were any.
    fn take_answers(&mut self, now: u64) -> bool {
        let mut any = false;
        self.node.detector_mut().offer_barriers(self.receiver.offers_barriers());
        while let Some(answer) = self.prober.as_mut().and_then(Prober::poll) {
            any = true;
            if answer.size != 0 {
                self.node.size_answered(answer.node, answer.path.into(), answer.size);
            }
            let result = match answer.kind {
                AnswerKind::KernelAnswered => ProbeResult::KernelAnswered,
                AnswerKind::AgentAbsent => ProbeResult::AgentAbsent,
            };
            let path = usize::from(answer.path);
            let queue = self.receiver.barrier(path, answer.nonce);
            let taken = Answer { node: answer.node, path, result, asked_ns: answer.probed_ns, queue };
            let (node, view) = self.node_and_view();
            if node.take_answer(&taken, || fide_lane::is_local(answer.from), &view, now) {
                self.answers.note(path, queue, answer.probed_ns);
            }
        }
        for path in 0..PATHS {
            let (node, view) = self.node_and_view();
            let emptied = node.take_noted(path, &view, now);
            emptied.iter().for_each(|e| self.answers.note(path, Some(e.queue), e.as_of_ns));
            any |= !emptied.is_empty();
        }
        any
    }

    /// The barriers behind a verdict on a silence.
    pub(super) fn barriers(&self, node: u32, evidence: &Evidence) -> Vec<Barrier> {
        if !evidence.drained {
            return Vec::new();
        }
        let last_ns = evidence.paths.iter().map(|path| path.last_arrival_ns).max().unwrap_or(0);
        let latest = self.node.probing().barriers(node).into_iter().enumerate();
        let latest = latest.filter_map(|(path, latest)| Some((path, latest?)));
        let named = |(path, (emptied, address)): (usize, (Emptied, Option<IpAddr>))| {
            let (by, from) = if let Some(address) = address {
                (BarrierBy::Answerer, address.to_string())
            } else if emptied.by == probing::ITSELF {
                let other = (0..PATHS as u8).find(|other| usize::from(*other) != path).unwrap_or_default();
                (BarrierBy::Itself, self.lane.interface(other).unwrap_or_default().to_owned())
            } else {
                (BarrierBy::Host, self.node_name(emptied.by))
            };
            Barrier { path: path as u8, from, by, asked_ns: emptied.as_of_ns }
        };
        latest.filter(|(_, (emptied, _))| emptied.as_of_ns > last_ns).map(named).collect()
    }

    /// Hands the table to the detector and does what it wants. Behind the barriers: what came before them is in it.
    fn weigh(&mut self, now: u64) {
        for slot in 0..self.peers.len() {
            let Some(peer) = self.peers[slot].as_mut() else { continue };
            let row = self.receiver.peer(slot);
            let is_heard = row.incarnation == peer.incarnation && !peer.condemned && !peer.left;
            if is_heard && std::mem::replace(&mut peer.named, row.table_version) != row.table_version {
                self.node.heartbeat(peer.node, peer.incarnation, row.table_version, now);
            }
            let arrivals = std::array::from_fn(|k| (row.path[k], Marks(row.mark[k]))).map(|(p, marks)| PathArrival {
                last_number: p.number,
                last_arrival_ns: p.arrived_ns,
                lost: p.lost,
                drops: p.refused.into(),
                since_group: p.since_group(),
                recent: marks.recent(p.arrived, p.lost, p.arrived_ns),
            });
            // Refusals (a life that is over) are the detector's to count.
            self.node.arrivals(peer.node, row.incarnation, &arrivals);
        }
        self.act(None, now);
        if self.node.detector().is_doubting(now) {
            self.note_drops(now);
        }
        self.node.handle_timeout(now);
        self.act(None, now);
        self.update_copies(now);
    }

    /// S2: what our own side lost may have been heartbeats.
    pub(super) fn note_drops(&mut self, now: u64) {
        // Our questions are among what our own gate drops: silence says nothing of anybody then.
        if self.node.fence().is_some_and(HostFence::is_mute) {
            (0..PATHS).for_each(|path| self.node.detector_mut().dropped(path, now));
        }
        let sockets = if self.receiver.needs_sockets() { self.lane.receive_fds() } else { Vec::new() };
        for path in 0..PATHS {
            let socket = sockets.iter().find(|(of, _)| usize::from(*of) == path).map(|(_, fd)| *fd);
            let counted = self.drops.read(path as u8, socket);
            if std::mem::replace(&mut self.drops_seen[path], counted) < counted {
                self.node.detector_mut().dropped(path, now);
            }
        }
    }

    /// The counters of the interface that this path uses now. What it lost before is nobody's silence.
    pub(super) fn open_drops(&mut self, path: u8) {
        self.drops.through_stack(!self.receiver.offers_barriers());
        let interface = self.lane.interface(path).unwrap_or_default().to_owned();
        if !self.drops.open(path, &interface, self.lane.ifindex(path)) && self.lane.ifindex(path).is_some() {
            tracing::info!("path {path}: /sys does not show what {interface} loses; only what the stack loses is a veto");
        }
        if let Some(seen) = self.drops_seen.get_mut(usize::from(path)) {
            *seen = self.drops.read(path, None);
        }
    }
}
