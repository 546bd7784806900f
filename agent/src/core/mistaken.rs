//! Hosts that were given up wrongly: what becomes of that on both sides ([`fide_proto::node::machine`], `mistaken`).

use super::Core;
use crate::shares::EventSource;
use fide_proto::node::fence::HostFence;
use fide_wire::level::MISTAKEN_EVENT_CODE;

impl Core {
    /// Another host has given this one up, and is outvoted: this host goes on.
    pub(super) fn refuted(&mut self, by: u32) {
        let confirmers = self.node.fence().into_iter().flat_map(|fence: &HostFence| fence.rule().confirmers());
        let others: Vec<String> = confirmers.filter(|node| *node != by).map(|node| self.node_name(node)).collect();
        let (by, others) = (self.node_name(by), others.join(", "));
        let text = format!(
            "{by} has given this host up, and does not hear it: {others} confirm its heartbeats, and its fence stays open. The fault lies with {by}, or \
             between the two"
        );
        self.tell_local(EventSource::OWN, MISTAKEN_EVENT_CODE, text);
    }

    /// This host has given up one that lives. Members of groups, which may rest on that, end with this incarnation (`renews`); whoever asked for that
    /// host or its processes hears of them again when it is met.
    pub(super) fn was_mistaken(&mut self, node: u32, incarnation: u32, renews: bool, now: u64) {
        let name = self.node_name(node);
        if let Some(slot) = self.slot(node) {
            self.give_slot_back(slot);
        }
        self.start.known.insert(name.clone(), incarnation);
        self.excluded.remove(&node);
        let goes_on = if renews && self.begin_incarnation(self.start.incarnation, now) {
            format!("begins incarnation {}", self.start.incarnation)
        } else {
            "goes on, since nothing rests on that any more".to_owned()
        };
        let text = format!(
            "{name} was given up here, wrongly: it lives, and enough others have confirmed its heartbeats all the time. This host did not hear it, and {goes_on}"
        );
        self.tell_local(EventSource::OWN, MISTAKEN_EVENT_CODE, text);
    }
}
