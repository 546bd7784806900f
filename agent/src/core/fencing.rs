//! The fence: heartbeats move it, an operator shuts and recovers it, and it follows the cluster's members.

use super::{Core, no_fence};
use crate::clock::now_ns;
use crate::fence::{Driver, Known, Outcome};
use crate::shares::EventSource;
use fide_proto::detector;
use fide_wire::control::{ErrorCode, Refused};
use fide_wire::event::Record;
use fide_wire::verdict::{Cause, Confirmers, FenceMode, FencedWhy, Grade};

impl Core {
    /// Whether nothing may leave.
    pub(super) fn is_fenced(&self) -> bool {
        self.fence.as_ref().is_some_and(|f| f.closed().is_some())
    }

    /// Whether others rely on heartbeats of ours to come in time.
    pub(super) fn promises(&self) -> bool {
        self.fence.as_ref().is_some_and(|f| f.closed().is_none() && f.promise().is_some())
    }

    /// A heartbeat was handed over: does it count already, does an earlier one?
    pub(super) fn fence_beat(&mut self, read_ns: u64) {
        let Some(fence) = self.fence.as_mut() else { return };
        fence.sent(self.sent.number, read_ns, self.lane.sends(), &self.sent.outcomes, self.carriers);
        let outcome = if fence.wants_completions() { fence.completed(&self.lane.completion()) } else { fence.alone(now_ns()) };
        self.fence_outcome(outcome, read_ns);
    }

    pub(super) fn fence_outcome(&mut self, outcome: Outcome, now: u64) {
        match outcome {
            Outcome::Nothing => {}
            Outcome::Armed => self.host_changed(now),
            Outcome::Closed(why) => self.tell_fenced(why, now),
        }
    }

    /// This host is fenced: its applications hear it first, since they must stop.
    pub(super) fn tell_fenced(&mut self, why: FencedWhy, now: u64) {
        self.groups.stop(now);
        let (node, incarnation, name) = (self.start.node, self.start.incarnation, self.start.name.clone());
        let record = self.host_record(Cause::Fenced, Grade::Certain, node, incarnation, now);
        self.publish_host(node, &name, &Record { flags: Record::LOCAL, code: why as i32, ..record });
        self.tell(Cause::Fenced, Grade::Certain, &name, incarnation, None, why as i32, false, None, None, EventSource::OWN, now);
    }

    /// Shuts the fence, as far as it is open.
    pub(super) fn shut_fence(&mut self, why: FencedWhy) {
        let now = now_ns();
        let Some(fence) = self.fence.as_mut().filter(|f| f.closed().is_none()) else { return };
        fence.close(why, now);
        self.tell_fenced(why, now);
    }

    /// `fide fence shut`.
    ///
    /// # Errors
    /// When there is none, or it is closed already.
    pub fn operator_shuts_fence(&mut self) -> Result<(), Refused> {
        match self.fence.as_ref().map(Driver::closed) {
            None => Err(no_fence()),
            Some(Some(_)) => Err(Refused { code: ErrorCode::Exists, what: "this host is fenced already".into() }),
            Some(None) => {
                self.shut_fence(FencedWhy::Operator);
                Ok(())
            }
        }
    }

    /// `fide fence recover`: a new incarnation, and then open gates. Others meet somebody new, whom they have not condemned.
    ///
    /// # Errors
    /// When there is none, or it is not closed.
    pub fn operator_recovers_fence(&mut self) -> Result<(), Refused> {
        match self.fence.as_ref().map(Driver::closed) {
            None => Err(no_fence()),
            Some(None) => {
                Err(Refused { code: ErrorCode::Invalid, what: "this host is not fenced, so there is nothing to recover".into() })
            }
            Some(Some(_)) => {
                let now = now_ns();
                self.begin_incarnation(self.start.incarnation, now);
                self.own.open_since = self.start.incarnation;
                for peer in self.peers.iter_mut().flatten() {
                    peer.former = peer.condemned;
                }
                self.open_fence(now);
                Ok(())
            }
        }
    }

    pub(super) fn open_fence(&mut self, now: u64) {
        let Some(fence) = self.fence.as_mut() else { return };
        fence.recover(now_ns());
        let (node, incarnation, name) = (self.start.node, self.start.incarnation, self.start.name.clone());
        let record = self.host_record(Cause::Recovered, Grade::Certain, node, incarnation, now);
        self.publish_host(node, &name, &Record { flags: Record::LOCAL, ..record });
        self.tell(Cause::Recovered, Grade::Certain, &name, incarnation, None, 0, false, None, None, EventSource::OWN, now);
        self.announce_soon(now);
    }

    /// A cgroup has a gate now.
    pub fn add_gate(&mut self, name: String, gate: fide_xdp::Gate) {
        if let Some(fence) = self.fence.as_mut() {
            fence.add_gate(name, gate);
        }
    }

    /// The sockets of this process are behind this gate. `lives`: whom that has cut off was seen alive.
    pub fn fence_process(&mut self, app: u32, gate: &str, lives: bool) {
        let Some(fence) = self.fence.as_mut() else { return };
        let watchlist = &self.watchlist;
        let is_alive = |app| watchlist.is_alive(app);
        let known = |app| match watchlist.get(app).map(|w| w.ended) {
            Some(None) => Known::Alive,
            Some(Some((cause, _))) if cause != Cause::Left => Known::Ended,
            _ => Known::Not,
        };
        let app = (app, watchlist.identity(app));
        let others = fence.process(app, gate, lives, known);
        if !others.is_empty() {
            tracing::warn!(
                "{gate} holds {} other watched processes: its gate is not shut when one of them is doomed",
                others.len()
            );
        }
        if !is_alive(app.0) {
            fence.doomed(app, is_alive); // it was faster than the look-up
        }
    }

    /// Watched processes, with their numbers, behind gates that are shut for others ([`Driver::beside_cut_off`]).
    #[must_use]
    pub fn beside_cut_off(&self) -> Vec<(u32, u32, String)> {
        let beside = self.fence.as_ref().map_or_else(Vec::new, |f| f.beside_cut_off(|app| self.watchlist.is_alive(app)));
        beside.into_iter().map(|(app, gate)| (app, self.watchlist.identity(app).pid, gate)).collect()
    }

    /// Cuts off a process that is hung since the notice of this number, as far as it is behind a gate of its own: which, or why not. `None`: it moves again.
    pub fn fence_hung(&mut self, name: &str, number: u32) -> Option<Result<String, String>> {
        let watchlist = &self.watchlist;
        let app = watchlist.named(name).filter(|app| watchlist.get(*app).is_some_and(|w| w.hung == Some(number)))?;
        let none = || "this host has no fence".to_string();
        let app = (app, watchlist.identity(app));
        Some(self.fence.as_mut().ok_or_else(none).and_then(|fence| fence.cut_off(app, |app| watchlist.is_alive(app))))
    }

    /// Who must confirm our heartbeats. Suspicion shrinks no majority; among all it counts where the suspect is cut off, or watches nobody.
    pub(super) fn fence_members(&mut self) {
        let Some(fence) = self.fence.as_mut() else { return };
        let detector = self.node.detector();
        let observes = |p: &detector::PeerView<'_>| match (fence.mode(), p.state) {
            (_, detector::State::Left | detector::State::Restarting) => false,
            (FenceMode::Acknowledged(Confirmers::All), detector::State::Silent) => detector.promise(p.node).is_none(),
            (FenceMode::Acknowledged(Confirmers::All), detector::State::AgentLost) => false,
            _ => true,
        };
        // Nor does a restart: who was known before it is one of them, heard again or not.
        let not_heard = self.start.members.iter().copied().filter(|node| detector.peers().all(|p| p.node != *node));
        let nodes: Vec<u32> = detector.peers().filter(observes).map(|p| p.node).chain(not_heard).collect();
        fence.members(nodes);
    }

    /// For `fide fence status`; `None` without a fence.
    #[must_use]
    pub fn fence_status(&self) -> Option<fide_wire::control::FenceStatus> {
        let fence = self.fence.as_ref()?;
        Some(fence.status(now_ns(), |node| self.node_name(node), |app| self.app_name(self.start.node, app)))
    }
}
