//! The contract with each host on each path: calibrated from what arrives, and in force in the detector.
//!
//! Without a [configuration](calibration::Config) the contracts that hosts announce of themselves are in force as they are.

use super::{Event, Node};
use crate::node::calibration::{self, Calibration, Window};
use crate::node::pacer::Tick;
use fide_wire::PATHS;
use fide_wire::jitter::BUCKETS;
use fide_wire::verdict::Contract;

/// One path from one host.
#[derive(Clone, Debug)]
pub(super) struct PathContract {
    calibration: Calibration,
    /// The last window.
    window: Window,
    in_force: Contract,
}

/// What the receive table counted of a host on one path.
#[derive(Clone, Copy, Debug)]
pub struct Jitter<'a> {
    /// In this incarnation, by bucket of [`fide_wire::jitter`].
    pub counters: &'a [u32; BUCKETS],
    /// The largest since the last window, ns; 0 where that is not known.
    pub max_ns: u64,
    /// The period that its heartbeats name; 0: none has come.
    pub period_ns: u64,
}

impl Node {
    // ---- contracts ------------------------------------------------------------------------------------------

    /// Contracts are measured by these rules: those with incarnations that are believed from now on, and those that were measured already.
    pub fn set_calibration(&mut self, config: calibration::Config) {
        self.calibration = Some(config);
        for path in self.hosts.values_mut().filter_map(|known| known.paths.as_mut()).flat_map(|paths| paths.iter_mut()) {
            path.calibration.set_config(config);
        }
    }

    /// The contract in force with a host on a path, once that host is judged.
    #[must_use]
    pub fn path_contract(&self, node: u32, path: usize) -> Option<Contract> {
        self.path_of(node, path).map(|path| path.in_force)
    }

    /// What the last window on that path was like.
    #[must_use]
    pub fn path_window(&self, node: u32, path: usize) -> Option<Window> {
        self.path_of(node, path).map(|path| path.window)
    }

    /// What this host offers others: the worst that it has in force of its own paths.
    #[must_use]
    pub fn offered_contract(&self, period_ns: u64, size_max: u32) -> Contract {
        let paths = || self.hosts.values().filter_map(|known| known.paths.as_ref()).flat_map(|paths| paths.iter());
        let worst = |of: fn(&Contract) -> u64| paths().map(|path| of(&path.in_force)).max().unwrap_or(0);
        let (lambda_min_ns, delta_max_ns) = (worst(|c| c.lambda_min_ns), worst(|c| c.delta_max_ns));
        Contract { period_ns, size_max, lambda_min_ns, delta_max_ns }
    }

    fn path_of(&self, node: u32, path: usize) -> Option<&PathContract> {
        self.hosts.get(&node)?.paths.as_ref()?.get(path)
    }

    /// A window is over (a second, in the agent): what it brought on this path is measured, and the contract adapts. Nothing is
    /// measured of a host that is given up or has left.
    pub fn handle_window(&mut self, node: u32, path: usize, jitter: &Jitter<'_>, now_ns: u64) {
        if !self.detector.state(node).is_some_and(|state| state.is_live()) {
            return;
        }
        let Some(known) = self.hosts.get_mut(&node) else { return };
        let incarnation = known.incarnation;
        let Some(path_contract) = known.paths.as_mut().and_then(|paths| paths.get_mut(path)) else { return };
        let Contract { period_ns, size_max, .. } = known.announced;
        let period_ns = if jitter.period_ns == 0 { period_ns } else { jitter.period_ns };
        path_contract.calibration.set_period(period_ns);
        path_contract.window = path_contract.calibration.feed(jitter.counters, jitter.max_ns);
        let (breach, contract) = (path_contract.window.breach, path_contract.calibration.contract(size_max));
        if contract != path_contract.in_force {
            path_contract.in_force = contract;
            let _ = self.detector.contract(node, path, contract, now_ns); // counted there
        }
        if let Some(breach) = breach {
            self.events.push_back(Event::Margin { node, incarnation, path, breach });
        }
        self.take_actions();
    }

    /// A heartbeat's way to a host and its report's way back took so long, without the time at that host.
    pub(super) fn round_trip(&mut self, node: u32, path: usize, ns: u64) {
        let paths = self.hosts.get_mut(&node).and_then(|known| known.paths.as_mut());
        if let Some(path) = paths.and_then(|paths| paths.get_mut(path)) {
            path.calibration.round_trip(ns);
        }
    }

    /// Nothing is measured yet of this incarnation of a host: the floor is in force.
    pub(super) fn begin_contracts(&mut self, node: u32, now_ns: u64) {
        let (Some(config), Some(known)) = (self.calibration, self.hosts.get_mut(&node)) else { return };
        let Contract { period_ns, size_max, .. } = known.announced;
        let calibration = Calibration::new(config, period_ns);
        let in_force = calibration.contract(size_max);
        let path = PathContract { calibration, window: Window::default(), in_force };
        known.paths = Some(Box::new(std::array::from_fn(|_| path.clone())));
        for path in 0..PATHS {
            let _ = self.detector.contract(node, path, in_force, now_ns); // counted there
        }
    }

    // ---- heartbeats -----------------------------------------------------------------------------------------

    /// The slot of a heartbeat that is due now, if any: one is to leave. Slots that were missed are skipped.
    pub const fn poll_heartbeat(&mut self, now_ns: u64) -> Option<Tick> {
        self.pacer.tick(now_ns)
    }

    /// When the next one is due; [`Node::poll_timeout`] says when everything else is.
    #[must_use]
    pub const fn next_heartbeat_ns(&self) -> u64 {
        self.pacer.next_ns()
    }
}
