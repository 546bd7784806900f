//! Copies by unicast, where multicast is not delivered: the node says who gets them, the lane sends
//! them.

use super::Core;
use crate::shares::EventSource;
use fide_wire::PATHS;
use fide_wire::level::MULTICAST_EVENT_CODE;

/// Copies of heartbeats in a second, of all hosts and paths, at most. Beyond it each host gets one of several.
const COPIES_MAX: u64 = 60_000;
/// Memberships are joined again so often, as long as multicast is not delivered.
const REJOIN_NS: u64 = 30_000_000_000;

/// What multicast does on this host's paths.
#[derive(Default)]
pub(super) struct Multicast {
    /// Each host that gets copies gets one of so many heartbeats; 0: there are none.
    turns: u32,
    /// By path: when memberships are joined again, while nothing is delivered.
    rejoin_ns: [Option<u64>; PATHS],
}

impl Core {
    /// Each host that gets copies of heartbeats gets one of so many.
    pub(super) fn copy_turns(&self) -> u32 {
        self.multicast.turns.max(1)
    }

    /// Whoever needs copies by unicast gets them from now on.
    pub(super) fn update_copies(&mut self, now: u64) {
        if let Some(wanted) = self.node.poll_copies(now) {
            let mut addresses: [Vec<_>; PATHS] = Default::default();
            for (node, path) in wanted {
                let peer = self.peers.iter().flatten().find(|peer| peer.node == *node);
                addresses[*path].extend(peer.and_then(|peer| peer.addresses[*path]));
            }
            let copies: usize = addresses.iter().map(Vec::len).sum();
            let a_second = (copies as u64).saturating_mul(1_000_000_000) / self.start.period_ns.max(1);
            self.multicast.turns = if copies == 0 { 0 } else { a_second.div_ceil(COPIES_MAX) as u32 };
            for (path, hosts) in addresses.iter().enumerate() {
                if let Err(e) = self.lane.set_copies(path as u8, hosts) {
                    tracing::warn!("path {path}: no copies by unicast: {e}");
                }
            }
        }
        for path in 0..PATHS {
            if self.multicast.rejoin_ns[path].is_some_and(|at_ns| at_ns <= now) {
                self.join_again(path, now);
            }
        }
    }

    /// What hosts send by multicast is not delivered here, while unicast is; of nobody: it is again.
    pub(super) fn multicast_fails(&mut self, path: usize, hosts: &[u32], now: u64) {
        if !self.lane.is_multicast(path as u8) {
            return; // unicast is what its configuration says
        }
        let interface = self.lane.interface(path as u8).unwrap_or_default().to_owned();
        let text = if hosts.is_empty() {
            self.multicast.rejoin_ns[path] = None;
            format!("path {path}: multicast is delivered again")
        } else {
            self.join_again(path, now);
            let mut names: Vec<String> = hosts.iter().map(|node| self.node_name(*node)).collect();
            names.sort();
            let names = names.join(", ");
            format!(
                "path {path}: multicast of {names} is not delivered to {interface}, unicast is \
                 (IGMP or MLD snooping without a querier?): they send by unicast as long as that lasts"
            )
        };
        self.tell_local(EventSource::OWN, MULTICAST_EVENT_CODE, text);
    }

    /// Says again that this host wants its group: some switches forget it, and hear that.
    fn join_again(&mut self, path: usize, now: u64) {
        self.multicast.rejoin_ns[path] = Some(now.saturating_add(REJOIN_NS));
        if let Err(e) = self.lane.rejoin(path as u8) {
            tracing::warn!("path {path}: {e}");
        }
    }
}
