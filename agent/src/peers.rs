//! What the agent knows of another host beside what the detector judges: its name, addresses, directory of processes, and calibration.

use crate::steer::Emptied;
use fide_lane::{Calibration, Window};
use fide_proto::detector::Inbox;
use fide_wire::PATHS;
use fide_wire::packet::{Announce, AnnouncedApp};
use fide_wire::verdict::{Cause, Contract};
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
    /// Which of its notices arrived.
    pub inbox: Inbox,
    /// A confirmation is owed.
    pub confirm: bool,
    /// What its paths are like.
    pub calibration: [Calibration; PATHS],
    /// What its last second was like, per path.
    pub window: [Option<Window>; PATHS],
    /// The contract in force on each path.
    pub contract: [Contract; PATHS],
    /// What it said of itself.
    pub announced: Contract,
    /// This incarnation was judged and is refused.
    pub condemned: bool,
    /// By a life of this host that its fence ended since.
    pub former: bool,
    /// What emptied the receive queue of its heartbeats last, by path.
    /// With the address, where it is no host of the cluster.
    pub barrier: [Option<(Emptied, Option<IpAddr>)>; PATHS],
    /// It said goodbye.
    pub left: bool,
    /// Heartbeats of its earlier lives that never came, per path.
    pub lost_before: [u64; PATHS],
    /// Piggybacks delivered: highest number and a window of 64 below it.
    piggybacks: (u64, u64),
    parts: Option<Parts>,
    /// The newest directory that is complete, and its version.
    pub listed: Vec<u32>,
    /// See [`Peer::listed`].
    pub version: u64,
}

struct Parts {
    version: u64,
    got: BTreeMap<u16, Vec<AnnouncedApp>>,
    of: u16,
}

/// What a complete directory changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DirectoryChange {
    /// Processes not known before.
    pub appeared: Vec<u32>,
    /// Those that it lists as hung, with the numbers of the notices that said so.
    pub hung: Vec<(u32, u32)>,
}

/// Most parts of a directory that are put together.
const PARTS_MAX: u16 = 512;

impl Peer {
    /// A host heard of for the first time, or in a new life.
    #[must_use]
    pub fn new(node: u32, name: &str, incarnation: u32, calibration: [Calibration; PATHS]) -> Self {
        Self {
            node,
            name: name.into(),
            incarnation,
            addresses: [None; PATHS],
            apps: BTreeMap::new(),
            inbox: Inbox::new(),
            confirm: false,
            calibration,
            window: [None; PATHS],
            contract: [Contract::default(); PATHS],
            announced: Contract::default(),
            condemned: false,
            former: false,
            barrier: [None; PATHS],
            left: false,
            lost_before: [0; PATHS],
            piggybacks: (0, 0),
            parts: None,
            listed: Vec::new(),
            version: 0,
        }
    }

    /// Heartbeats of all its lives that never came, per path; its row counts those of this one.
    #[must_use]
    pub fn lost(&self, row: &fide_xdp::layout::Peer) -> [u64; PATHS] {
        std::array::from_fn(|path| self.lost_before[path].wrapping_add(row.path[path].lost))
    }

    /// Takes one part of its directory; says what changed once all parts of a newer version are there, and that nothing did when the one that is
    /// known is announced again. What is no longer listed is the detector's to judge.
    pub fn directory(&mut self, a: &Announce) -> Option<DirectoryChange> {
        if a.version == self.version && a.part == 0 && self.version != 0 {
            return Some(DirectoryChange::default());
        }
        if a.version <= self.version || a.parts == 0 || a.parts > PARTS_MAX || a.part >= a.parts {
            return None;
        }
        let parts = match &mut self.parts {
            Some(p) if p.version == a.version && p.of == a.parts => p,
            slot => slot.insert(Parts { version: a.version, got: BTreeMap::new(), of: a.parts }),
        };
        parts.got.insert(a.part, a.apps.clone());
        if parts.got.len() < usize::from(parts.of) {
            return None;
        }
        let apps: BTreeMap<u32, AnnouncedApp> = self.parts.take()?.got.into_values().flatten().map(|x| (x.app, x)).collect();
        self.version = a.version;
        self.listed = apps.keys().copied().collect();
        let mut change = DirectoryChange::default();
        for (app, announced) in apps {
            change.hung.extend((announced.hung != 0).then_some((app, announced.hung)));
            if let Some(known) = self.apps.get_mut(&app) {
                known.user = announced.user; // a watch may have changed hands
                continue;
            }
            if app == 0 {
                continue;
            }
            let AnnouncedApp { name, pbsize, user, .. } = announced;
            self.apps.insert(app, RemoteApp { name, pbsize, user, ended: None });
            change.appeared.push(app);
        }
        // Long gone processes need not be remembered.
        let gone: Vec<u32> = self.apps.iter().filter(|(_, a)| a.ended.is_some()).map(|(n, _)| *n).collect();
        for app in gone.iter().take(gone.len().saturating_sub(256)) {
            self.apps.remove(app);
        }
        Some(change)
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
        Peer::new(1, "a", 1, std::array::from_fn(|_| Calibration::new(fide_lane::Config::shared(), 1_000_000)))
    }

    fn part(version: u64, part: u16, parts: u16, apps: &[u32]) -> Announce {
        let apps = apps.iter().map(|a| AnnouncedApp { app: *a, name: format!("p{a}"), pbsize: 0, hung: 0, user: 0 }).collect();
        Announce { version, part, parts, apps, ..Announce::default() }
    }

    #[test]
    fn a_directory_counts_when_all_its_parts_are_there() {
        let mut p = peer();
        assert_eq!(p.directory(&part(1, 0, 2, &[1])), None);
        assert_eq!(p.directory(&part(1, 0, 2, &[1])), None, "the same part twice");
        let change = p.directory(&part(1, 1, 2, &[2])).unwrap();
        assert_eq!(change, DirectoryChange { appeared: vec![1, 2], hung: vec![] });
        assert_eq!(p.directory(&part(1, 1, 2, &[3])), None, "known");
        assert_eq!(p.directory(&part(1, 0, 2, &[3])), Some(DirectoryChange::default()), "announced again");
        let change = p.directory(&part(3, 0, 1, &[2, 5])).unwrap();
        assert_eq!(change, DirectoryChange { appeared: vec![5], hung: vec![] });
        assert_eq!(p.listed, [2, 5]);
        assert_eq!(p.directory(&part(2, 0, 1, &[7])), None, "an old version");
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
    fn impossible_parts_are_ignored() {
        let mut p = peer();
        for (n, of) in [(0, 0), (1, 1), (9, 3), (0, PARTS_MAX + 1)] {
            assert_eq!(p.directory(&part(1, n, of, &[1])), None);
        }
        assert!(p.apps.is_empty());
    }

    #[test]
    fn a_piggyback_is_delivered_once_in_any_order() {
        let mut p = peer();
        let firsts: Vec<bool> = [1, 1, 3, 2, 3, 2, 100, 40, 30].into_iter().map(|n| p.first_piggyback(n)).collect();
        assert_eq!(firsts, [true, false, true, true, false, false, true, true, false]);
    }
}
