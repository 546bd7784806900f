//! The fence: heartbeats move it, an operator shuts and recovers it, and it follows the cluster's members.

use super::{Core, Happened, no_fence};
use crate::clock::now_ns;
use crate::fence::{Driver, Known, Outcome};
use crate::shares::EventSource;
use fide_proto::node::fence::{HostFence, Step};
use fide_wire::control::{ErrorCode, Refused};
use fide_wire::event::Record;
use fide_wire::level::FENCE_EVENT_CODE;
use fide_wire::packet::Kind;
use fide_wire::verdict::{Cause, FenceMode, FencedWhy, Grade};

/// A fence is armed within this, or its operator hears why it is not.
const NOT_ARMED_NS: u64 = 2_000_000_000;
/// Codes of the event that it is open again.
const RECOVERED_BY_ORDER: i32 = 0;
const RECOVERED_BY_ITSELF: i32 = 1;

impl Core {
    /// Whether nothing may leave.
    pub(super) fn is_fenced(&self) -> bool {
        self.node.fence().is_some_and(|f| f.closed().is_some())
    }

    /// Whether frames of this kind may leave a fenced host: that others hear and confirm it is what opens its gates again.
    pub(super) fn passes(&self, kind: Kind) -> bool {
        let is_confirmed_by = matches!(kind, Kind::Heartbeat | Kind::PathReport);
        // Others begin new incarnations meanwhile, whom this host meets, or it does.
        let is_met_by = matches!(kind, Kind::Introduction | Kind::Hello | Kind::Pull | Kind::Rows);
        (is_confirmed_by || is_met_by) && self.node.fence().is_some_and(|fence| fence.passes(now_ns()))
    }

    /// Frames leave by the gates, or past them.
    pub(super) fn choose_way(&mut self, now: u64) {
        if let Some(fence) = self.node.fence() {
            self.lane.set_gated(fence.guards_host() && !fence.passes(now));
        }
    }

    /// Whether others rely on heartbeats of ours to come in time.
    pub(super) fn promises(&self) -> bool {
        self.node.fence().is_some_and(|f| f.closed().is_none() && f.promise().is_some())
    }

    /// The gates, and the fence of the node that they obey.
    pub(super) const fn fence_parts(&mut self) -> Option<(&mut Driver, &mut HostFence)> {
        match (self.fence.as_mut(), self.node.fence_mut()) {
            (Some(driver), Some(fence)) => Some((driver, fence)),
            _ => None,
        }
    }

    /// A heartbeat was handed over: does it count already, does an earlier one?
    pub(super) fn fence_beat(&mut self, read_ns: u64) {
        let Some(fence) = self.node.fence_mut() else { return };
        let taken = crate::fence::taken(&self.sent.outcomes, self.carriers);
        fence.sent(self.sent.number, read_ns, self.lane.sends(), taken);
        let step = if fence.mode() == FenceMode::Sent {
            let done = self.lane.completion();
            fence.completed(done.through, done.known_ns)
        } else {
            fence.alone(now_ns())
        };
        self.move_gates(step, read_ns);
    }

    /// Moves the gates as the fence says.
    pub(super) fn move_gates(&mut self, step: Step, now: u64) {
        let Some((driver, fence)) = self.fence_parts() else { return };
        match driver.obey(fence, step) {
            Outcome::Nothing => {}
            Outcome::Armed => self.host_changed(now),
            Outcome::Closed(why) => self.tell_fenced(why, now),
            Outcome::MayReopen => self.say(Happened::MayReopen),
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
        let Some((driver, fence)) = self.fence_parts().filter(|(_, fence)| fence.closed().is_none()) else { return };
        driver.close(fence, why, now);
        self.tell_fenced(why, now);
    }

    /// `fide fence shut`.
    ///
    /// # Errors
    /// When there is none, or it is closed already.
    pub fn operator_shuts_fence(&mut self) -> Result<(), Refused> {
        match self.node.fence().map(HostFence::closed) {
            None => Err(no_fence()),
            Some(Some(_)) if self.node.fence().is_some_and(|fence| fence.passes(now_ns())) => {
                // It would open by itself, or was about to recover.
                if let Some(fence) = self.node.fence_mut() {
                    fence.stay_closed(FencedWhy::Operator);
                }
                Ok(())
            }
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
        match self.node.fence().map(HostFence::closed) {
            None => Err(no_fence()),
            Some(None) => {
                Err(Refused { code: ErrorCode::Invalid, what: "this host is not fenced, so there is nothing to recover".into() })
            }
            Some(Some(_)) => {
                let now = now_ns();
                if !self.begin_incarnation(self.start.incarnation, now) {
                    let what = "there is no incarnation left to begin: stop this agent, fide forget this host on each of the others, start it".into();
                    return Err(Refused { code: ErrorCode::Full, what });
                }
                self.recover_fence(now);
                Ok(())
            }
        }
    }

    /// The gates open now, or when enough others have confirmed this incarnation.
    pub(super) fn recover_fence(&mut self, now: u64) {
        match self.node.recover_fence(now_ns()) {
            Some(valid_ns) => self.open_gates(valid_ns, RECOVERED_BY_ORDER, now),
            None => self.announce_soon(now),
        }
    }

    /// Others hear this host behind its closed gates, and what dead processes left is ended: they open. By themselves for a
    /// new incarnation, as its members of groups stopped when they closed.
    pub(super) fn reopen_fence(&mut self) {
        let now = now_ns();
        let Some(fence) = self.node.fence_mut() else { return };
        if fence.may_reopen_until(now).is_none() {
            return fence.ask_again();
        }
        let is_ordered = fence.is_recovering();
        if !is_ordered && !self.begin_incarnation(self.start.incarnation, now) {
            return;
        }
        if let Some(valid_ns) = self.node.reopen_fence(now) {
            self.open_gates(valid_ns, if is_ordered { RECOVERED_BY_ORDER } else { RECOVERED_BY_ITSELF }, now);
        }
    }

    /// How: the code of the event.
    fn open_gates(&mut self, valid_ns: u64, how: i32, now: u64) {
        let Some(driver) = self.fence.as_mut() else { return };
        driver.recover(valid_ns);
        self.choose_way(now);
        let (node, incarnation, name) = (self.start.node, self.start.incarnation, self.start.name.clone());
        let record = self.host_record(Cause::Recovered, Grade::Certain, node, incarnation, now);
        self.publish_host(node, &name, &Record { flags: Record::LOCAL, code: how, ..record });
        self.tell(Cause::Recovered, Grade::Certain, &name, incarnation, None, how, false, None, None, EventSource::OWN, now);
        self.host_changed(now);
    }

    /// A cgroup has a gate now.
    pub fn add_gate(&mut self, name: String, gate: fide_xdp::Gate) {
        if let Some((driver, fence)) = self.fence_parts() {
            driver.add_gate(fence, name, gate);
        }
    }

    /// The sockets of this process are behind this gate. `lives`: whom that has cut off was seen alive.
    pub fn fence_process(&mut self, app: u32, gate: &str, lives: bool) {
        let (Some(driver), Some(fence)) = (self.fence.as_mut(), self.node.fence()) else { return };
        let watchlist = &self.watchlist;
        let is_alive = |app| watchlist.is_alive(app);
        let known = |app| match watchlist.get(app).map(|w| w.ended) {
            Some(None) => Known::Alive,
            Some(Some((cause, _))) if cause != Cause::Left => Known::Ended,
            _ => Known::Not,
        };
        let app = (app, watchlist.identity(app));
        let others = driver.process(fence, app, gate, lives, known);
        if !others.is_empty() {
            tracing::warn!(
                "{gate} holds {} other watched processes: its gate is not shut when one of them is doomed",
                others.len()
            );
        }
        if !is_alive(app.0) {
            driver.doomed(fence, app, is_alive); // it was faster than the look-up
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
        let (Some(driver), Some(fence)) = (self.fence.as_mut(), self.node.fence()) else { return Some(Err(none())) };
        Some(driver.cut_off(fence, app, |app| watchlist.is_alive(app)))
    }

    /// A fence that is not armed some time after its agent has started protects nothing, and its cgroups may be shut: told once, with who is
    /// waited for.
    pub(super) fn complain_of_fence(&mut self, now: u64) {
        let is_starting = self.node.fence().is_some_and(|fence| fence.starting().is_some() || fence.is_recovering());
        if !is_starting {
            self.complained.fence = None;
            return;
        }
        let since_ns = *self.complained.fence.get_or_insert(now);
        if since_ns == u64::MAX || now.saturating_sub(since_ns) < NOT_ARMED_NS {
            return;
        }
        self.complained.fence = Some(u64::MAX); // told
        let Some(status) = self.fence_status() else { return };
        let who = |hosts: &[String]| if hosts.is_empty() { "nobody".to_owned() } else { hosts.join(", ") };
        let text = format!(
            "the fence is not {}: {} of these hosts must confirm heartbeats, {}, and {} do not. Of one that is gone for good: fide forget HOST",
            if self.is_fenced() { "open" } else { "armed" },
            status.confirmations_needed,
            who(&status.observers),
            who(&status.waits_for),
        );
        self.tell_local(EventSource::OWN, FENCE_EVENT_CODE, text);
    }

    /// For `fide fence status`; `None` without a fence.
    #[must_use]
    pub fn fence_status(&self) -> Option<fide_wire::control::FenceStatus> {
        let (driver, fence) = (self.fence.as_ref()?, self.node.fence()?);
        Some(driver.status(fence, now_ns(), |node| self.node_name(node), |app| self.app_name(self.start.node, app)))
    }
}
