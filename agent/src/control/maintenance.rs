//! Maintenances: what operators say here, what other hosts say, and what is marked by it.

use super::{Answer, Control, LoopRequest};
use crate::maintenance::Now;
use fide_wire::control::{HistoryEvent, MaintenanceOrder, Refused, Reply};
use fide_wire::frame::table::Maintenance;
use fide_wire::level::MAINTENANCE_EVENT_CODE;
use fide_wire::verdict::Cause;

impl Control {
    /// What a client asks of maintenances.
    pub(super) fn order_maintenance(&mut self, i: usize, order: MaintenanceOrder) -> Result<Answer, Refused> {
        let (peer, now) = (&self.connections[i].peer, Now::read());
        let uid = peer.uid;
        let told = match order {
            MaintenanceOrder::Status => {
                self.policy.may_read(peer)?;
                Vec::new()
            }
            MaintenanceOrder::On { target, for_ns, reason } => {
                self.policy.may_maintain(peer)?;
                vec![self.maintenance.set(&target, for_ns, &reason, uid, now)?]
            }
            MaintenanceOrder::Off { target } => {
                self.policy.may_maintain(peer)?;
                self.maintenance.end(target.as_deref(), uid, now)?
            }
        };
        told.into_iter().for_each(|text| self.tell_of_maintenance(text));
        self.spread_maintenance();
        Ok((Reply::Maintenance { maintenances: self.maintenance.status(now) }, None))
    }

    /// Another host wrote one down.
    pub(super) fn maintenance_learned(&mut self, host: &str, said: &Maintenance, is_fresh: bool) {
        let told = self.maintenance.learned(host, said, is_fresh, Now::read());
        told.into_iter().for_each(|text| self.tell_of_maintenance(text));
        self.spread_maintenance();
    }

    /// Time went by.
    pub(super) fn tend_maintenance(&mut self) {
        let told = self.maintenance.tick(Now::read());
        told.into_iter().for_each(|text| self.tell_of_maintenance(text));
        self.spread_maintenance();
    }

    /// Marks what is told of a host or process in maintenance.
    pub(super) fn mark_maintenance(&self, event: &mut HistoryEvent) {
        // What the agent says of itself is no verdict.
        if event.cause == Cause::Local {
            return;
        }
        event.maintenance = self.maintenance.covering(event.app.as_deref(), &event.node).map(str::to_owned);
        if event.maintenance.is_some() {
            event.text.push_str(" (in maintenance)");
        }
    }

    /// Writes rows for other hosts, and the file for the next agent.
    fn spread_maintenance(&mut self) {
        let now = Now::read();
        for (slot, row) in self.maintenance.rows(now) {
            self.core.tell(LoopRequest::PutMaintenance(slot, Box::new(row)));
        }
        if let Some(kept) = self.maintenance.unsaved(now) {
            self.state.set_maintenance(kept);
            // At once: an agent that is restarted now goes on with it.
            self.save_state();
        }
    }

    fn tell_of_maintenance(&self, text: String) {
        self.core.note(MAINTENANCE_EVENT_CODE, text);
    }
}
