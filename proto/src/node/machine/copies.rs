//! Copies by unicast, for hosts that multicast does not reach.
//!
//! # In one head
//! A caller on the square is not heard in a house with closed shutters. A neighbour that is not heard any more may have closed
//! his, so one knocks at his door. Who hears somebody at his own door alone says so: that one knocks on, until he is heard
//! from the square again.
//!
//! # Rule
//! Switches that snoop IGMP (or MLD) and have no querier stop to deliver multicast, all at once and to everybody. Unicast passes.
//! So from the moment at which a host breaks its contract here it gets a copy of every frame by unicast, and whoever is told
//! by a path report that he is not heard ([`ReportEntry::SILENT`]), or by unicast alone ([`ReportEntry::BY_UNICAST`]), sends
//! copies to that reporter. Each of these words is good for a time; copies end when none is.
//! A host that is really dead gets copies for as long as its silence is doubted; where multicast is known not to be delivered, also
//! behind that, now and then, since its next agent hears nobody by multicast.
//!
//! What comes by unicast is as good as what comes by multicast: nothing is late, nobody is silent, confirmations of fences arrive.
//! Who hears a host by unicast alone for `TOLD_NS` tells that multicast is not delivered ([`Event::Multicast`]).

use super::{Event, Node};
use crate::detector::{PathArrival, State};
use fide_wire::PATHS;
use fide_wire::packet::ReportEntry;
use std::collections::BTreeMap;

/// So many heartbeats behind the last one that came by multicast, those between have not been lost by chance.
pub const BY_UNICAST: u32 = 8;
/// A host that is late gets copies for so long of each [`AGAIN_NS`], as long as it is late. An announcement is among them.
const LATE_NS: u64 = 1_200_000_000;
const AGAIN_NS: u64 = 10_000_000_000;
/// Copies go on for so long behind a host that was late, or that said that it hears nothing.
const HEARD_NS: u64 = 300_000_000;
/// … and behind its word that it hears this host by unicast alone: it reports once a second.
const BY_UNICAST_NS: u64 = 3_500_000_000;
/// A path on which nothing comes for so long, while another one carries, is reported at once.
const PATH_NS: u64 = 200_000_000;
/// What comes by unicast alone for so long is told.
const TOLD_NS: u64 = 1_000_000_000;

/// What one host makes of multicast.
#[derive(Clone, Copy, Debug, Default)]
struct Lack {
    /// Since when it has been late here; `None`: it is not.
    late_ns: Option<u64>,
    /// Until when it gets copies, by path.
    until_ns: [u64; PATHS],
    /// Since when it has been heard here by unicast alone, by path.
    by_unicast_ns: [Option<u64>; PATHS],
    /// A path is silent, and that was reported.
    is_reported: bool,
}

impl Lack {
    fn gets_copies(&self, path: usize, now_ns: u64) -> bool {
        let is_tried = |since_ns: u64| now_ns.saturating_sub(since_ns) % AGAIN_NS < LATE_NS;
        now_ns < self.until_ns[path] || self.late_ns.is_some_and(is_tried)
    }

    fn is_over(&self, now_ns: u64) -> bool {
        let is_path_over = |path| !self.gets_copies(path, now_ns) && self.by_unicast_ns[path].is_none();
        self.late_ns.is_none() && !self.is_reported && (0..PATHS).all(is_path_over)
    }
}

#[derive(Clone, Copy, Debug)]
struct Told {
    at_ns: u64,
    comes: bool,
}

/// Who lacks multicast. Empty, where networks deliver it.
#[derive(Clone, Debug, Default)]
pub(super) struct Copies {
    lacks: BTreeMap<u32, Lack>,
    /// What was last handed out.
    handed: Vec<(u32, usize)>,
    /// By path: when it was told that multicast is not delivered, and whether some has come since.
    told: [Option<Told>; PATHS],
}

impl Node {
    /// Who gets copies by unicast of every frame, on which path, if that has changed. To be asked behind every
    /// [`Node::handle_timeout`].
    pub fn poll_copies(&mut self, now_ns: u64) -> Option<&[(u32, usize)]> {
        if self.copies.lacks.is_empty() && self.copies.handed.is_empty() {
            return None;
        }
        let Self { copies, detector, events, .. } = self;
        let is_undelivered = copies.told.iter().any(Option::is_some);
        copies.lacks.retain(|node, lack| {
            let state = detector.state(*node);
            let is_live = state.is_some_and(State::is_live);
            // An agent that comes back hears of this host by unicast alone.
            let may_return = is_undelivered && matches!(state, Some(State::AgentLost | State::Silent | State::Restarting));
            if may_return {
                lack.late_ns.get_or_insert(now_ns);
                lack.by_unicast_ns = [None; PATHS];
            }
            lack.late_ns = lack.late_ns.filter(|_| may_return || state == Some(State::Late));
            may_return || is_live && !lack.is_over(now_ns)
        });
        copies.tell(now_ns, events);
        let get = |(node, lack): (&u32, &Lack)| {
            let (node, lack) = (*node, *lack);
            (0..PATHS).filter(move |path| lack.gets_copies(*path, now_ns)).map(move |path| (node, path))
        };
        if copies.lacks.iter().flat_map(get).eq(copies.handed.iter().copied()) {
            return None;
        }
        copies.handed = copies.lacks.iter().flat_map(get).collect();
        Some(&copies.handed)
    }

    /// A host has broken its contract: it is told that it is not heard, by unicast as well.
    pub(super) fn lacks_all(&mut self, node: u32, now_ns: u64) {
        self.copies.lacks.entry(node).or_default().late_ns.get_or_insert(now_ns);
        self.reports.prompt(node, false);
    }

    /// … and has kept it again.
    pub(super) fn lacks_no_more(&mut self, node: u32, now_ns: u64) {
        if let Some(lack) = self.copies.lacks.get_mut(&node)
            && lack.late_ns.take().is_some()
        {
            lack.until_ns = lack.until_ns.map(|until_ns| until_ns.max(now_ns.saturating_add(HEARD_NS)));
        }
    }

    /// Another host reports on this one: whether it lacks what leaves here by multicast.
    pub(super) fn is_lacking(&mut self, reporter: u32, entry: &ReportEntry, now_ns: u64) {
        let for_ns = match entry.flags {
            flags if flags & ReportEntry::SILENT != 0 => HEARD_NS,
            flags if flags & ReportEntry::BY_UNICAST != 0 => BY_UNICAST_NS,
            _ => return,
        };
        if let Some(until_ns) = self.copies.lacks.entry(reporter).or_default().until_ns.get_mut(usize::from(entry.path)) {
            *until_ns = (*until_ns).max(now_ns.saturating_add(for_ns));
        }
    }

    /// How a host's heartbeats come.
    pub(super) fn came_by(&mut self, node: u32, rows: &[PathArrival; PATHS]) {
        let is_by_unicast = rows.map(|row| row.since_group >= BY_UNICAST && row.last_arrival_ns != 0);
        let latest_ns = rows.iter().map(|row| row.last_arrival_ns).max().unwrap_or(0);
        let is_silent =
            rows.iter().any(|row| latest_ns.saturating_sub(row.last_arrival_ns) > PATH_NS && row.last_arrival_ns != 0);
        for (told, row) in self.copies.told.iter_mut().zip(rows) {
            if let Some(told) = told {
                told.comes |= row.since_group == 0 && row.last_arrival_ns > told.at_ns;
            }
        }
        let known = self.copies.lacks.get_mut(&node);
        if known.is_none() && !is_silent && is_by_unicast == [false; PATHS] {
            return;
        }
        let now_ns = self.detector.now_ns();
        let lack = self.copies.lacks.entry(node).or_default();
        let mut is_news = is_silent && !lack.is_reported;
        lack.is_reported = is_silent;
        for (since_ns, is_so) in lack.by_unicast_ns.iter_mut().zip(is_by_unicast) {
            is_news |= is_so && since_ns.is_none();
            *since_ns = is_so.then(|| since_ns.unwrap_or(now_ns));
        }
        if is_news {
            self.reports.prompt(node, false);
        }
    }
}

impl Copies {
    /// Tells of a path whose multicast is not delivered, once, and that it is again.
    fn tell(&mut self, now_ns: u64, events: &mut std::collections::VecDeque<Event>) {
        for path in 0..PATHS {
            let since_ns = |lack: &Lack| lack.by_unicast_ns[path];
            let any = self.lacks.values().any(|lack| since_ns(lack).is_some());
            let is_long = |since_ns: u64| now_ns.saturating_sub(since_ns) >= TOLD_NS;
            let told = self.told[path];
            if told.is_none() && self.lacks.values().any(|lack| since_ns(lack).is_some_and(is_long)) {
                let lacking = self.lacks.iter().filter(|(_, lack)| since_ns(lack).is_some());
                let hosts = lacking.map(|(node, _)| *node).collect();
                events.push_back(Event::Multicast { path, hosts });
                self.told[path] = Some(Told { at_ns: now_ns, comes: false });
            } else if told.is_some_and(|told| told.comes) && !any {
                events.push_back(Event::Multicast { path, hosts: Vec::new() });
                self.told[path] = None;
            }
        }
    }
}
