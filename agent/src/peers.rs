//! What the agent knows of another host beside what the detector judges: its name, addresses and
//! directory of processes.

use fide_wire::PATHS;
use fide_wire::verdict::Cause;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A process of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteApp {
    /// Its name.
    pub name: String,
    /// The largest piggyback it sends.
    pub pbsize: u32,
    /// The user of its watch there.
    pub user: u32,
    /// Its end, once known.
    /// Why it ended, and when this agent learned it (CLOCK_MONOTONIC).
    pub ended: Option<(Cause, u64)>,
}

/// Another host.
pub struct Peer {
    /// Its wire id.
    pub node: u32,
    /// Its name.
    pub name: String,
    /// Its incarnation.
    pub incarnation: u32,
    /// Its address on each path, for probes.
    pub addresses: [Option<IpAddr>; PATHS],
    /// Its processes by number.
    pub apps: BTreeMap<u32, RemoteApp>,
    /// This incarnation was judged and is refused.
    pub condemned: bool,
    /// It said goodbye.
    pub left: bool,
    /// Heartbeats of its earlier lives that never came, per path.
    pub lost_before: [u64; PATHS],
    /// Piggybacks delivered: highest number and a window of 64 below it.
    piggybacks: (u64, u64),
    /// The version of its table that its heartbeats named last, the low half.
    pub named: u32,
}

/// Processes that ended and are remembered by name.
const ENDED_KEPT: usize = 256;

impl Peer {
    /// A host heard of for the first time, or in a new life.
    #[must_use]
    pub fn new(node: u32, name: &str, incarnation: u32) -> Self {
        Self {
            node,
            name: name.into(),
            incarnation,
            addresses: [None; PATHS],
            apps: BTreeMap::new(),
            condemned: false,
            left: false,
            lost_before: [0; PATHS],
            piggybacks: (0, 0),
            named: 0,
        }
    }

    /// Heartbeats of all its lives that never came, per path; its row counts those of this one.
    #[must_use]
    pub fn lost(&self, row: &fide_xdp::layout::Peer) -> [u64; PATHS] {
        std::array::from_fn(|path| self.lost_before[path].wrapping_add(row.path[path].lost))
    }

    /// A process of it is known by name. Long gone ones need not be remembered.
    pub fn appeared(&mut self, row: u32, app: RemoteApp) {
        self.apps.insert(row, app);
        let gone: Vec<u32> = self.apps.iter().filter(|(_, a)| a.ended.is_some()).map(|(n, _)| *n).collect();
        for app in gone.iter().take(gone.len().saturating_sub(ENDED_KEPT)) {
            self.apps.remove(app);
        }
    }

    /// Whether the piggyback of heartbeat `number` is seen for the first time (two paths carry each).
    pub fn first_piggyback(&mut self, number: u64) -> bool {
        let (highest, window) = self.piggybacks;
        if number > highest {
            let step = number - highest;
            self.piggybacks = (number, if step > 63 { 1 } else { window << step | 1 });
            return true;
        }
        let back = highest - number;
        let first = back < 64 && window >> back & 1 == 0;
        if first {
            self.piggybacks.1 |= 1 << back;
        }
        first
    }

    /// The live process of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<u32> {
        self.apps.iter().rev().find(|(_, a)| a.name == name && a.ended.is_none()).map(|(n, _)| *n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        Peer::new(1, "a", 1)
    }

    #[test]
    fn processes_that_ended_are_forgotten_in_order() {
        let mut p = peer();
        for row in 1..=600 {
            let ended = (row % 2 == 0).then_some((Cause::Killed, 1));
            p.appeared(row, RemoteApp { name: format!("p{row}"), pbsize: 0, user: 0, ended });
        }
        assert_eq!(p.apps.values().filter(|a| a.ended.is_some()).count(), ENDED_KEPT);
        assert!(p.apps.contains_key(&600) && !p.apps.contains_key(&2) && p.named("p1") == Some(1));
    }

    #[test]
    fn what_was_lost_in_one_life_is_not_forgotten_in_the_next() {
        let mut row = fide_xdp::layout::Peer::default();
        row.path[1].lost = 7;
        let mut p = peer();
        assert_eq!(p.lost(&row), [0, 7]);
        p.lost_before = p.lost(&row);
        row.path[1].lost = 0;
        assert_eq!(p.lost(&row), [0, 7], "a new life");
        row.path[1].lost = 7;
        assert_eq!(p.lost(&row), [0, 14], "as many once more");
    }

    #[test]
    fn a_piggyback_is_delivered_once_in_any_order() {
        let mut p = peer();
        let firsts: Vec<bool> = [1, 1, 3, 2, 3, 2, 100, 40, 30].into_iter().map(|n| p.first_piggyback(n)).collect();
        assert_eq!(firsts, [true, false, true, true, false, false, true, true, false]);
    }
}
