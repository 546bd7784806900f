//! What hangs on the control thread: hooks, metrics, and word of interfaces that come and go.

use crate::admission::HOOK_EVENT_CODE;
use crate::admission::NOT_KEPT_EVENT_CODE;
use crate::config::{Config, HookAction, Live};
use crate::fence::Guard;
use crate::gates::Gates;
use crate::handle::LoopHandle;
use crate::hooks::{HookOptions, HookOutcome, Hooks};
use crate::links::Links;
use crate::metrics::{Board, MetricsServer, Snapshot};
use crate::shares::EventSource;
use fide_wire::control::{HistoryEvent, MaintenanceStatus, WatchStatus};
use fide_wire::verdict::Cause;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

/// How long hooks may still run when the agent leaves.
const GRACE: Duration = Duration::from_secs(2);

/// All of it.
pub struct Side {
    hooks: Option<Hooks>,
    links: Option<Links>,
    board: Arc<Board>,
    metrics: Option<MetricsServer>,
    counters: Snapshot,
}

/// What the control thread adds to the counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Connected clients.
    pub clients: u64,
    /// Events in the history since it exists.
    pub history_events: u64,
    /// Its bytes on disk.
    pub history_bytes: u64,
    /// Events that never reached the disk.
    pub history_lost: u64,
    /// Failed writes.
    pub history_failures: u64,
    /// Events that were over their source's limit.
    pub history_not_kept: u64,
}

impl Side {
    /// Starts what is configured. What cannot be started is told, and the agent goes on without.
    #[must_use]
    pub fn new(config: &Config, core: &LoopHandle) -> Self {
        let mut side = Self { hooks: None, links: None, board: Arc::default(), metrics: None, counters: Snapshot::default() };
        match Hooks::start(config.hooks.clone(), HookOptions::default()) {
            Ok(hooks) => side.hooks = Some(hooks),
            Err(e) => complain(core, format!("hooks cannot be run: {e}")),
        }
        match Links::open() {
            Ok(links) => side.links = Some(links),
            Err(e) => complain(core, format!("interfaces are looked at once a second only: {e}")),
        }
        side.serve_metrics(config.metrics, core);
        side
    }

    /// Serves them there and nowhere else; why not, if that cannot be.
    fn serve_metrics(&mut self, address: Option<SocketAddr>, core: &LoopHandle) -> Option<String> {
        self.metrics = None; // the old one must free its port first
        match MetricsServer::start(address?, self.board.clone(), core.heart.clone()) {
            Ok(server) => {
                self.metrics = Some(server);
                None
            }
            Err(e) => {
                complain(core, e.to_string());
                Some(e.to_string())
            }
        }
    }

    /// The descriptor that says that interfaces changed, or -1.
    #[must_use]
    pub fn links_fd(&self) -> i32 {
        self.links.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Interfaces that changed.
    pub fn changed_interfaces(&mut self) -> BTreeSet<String> {
        let mut changed = BTreeSet::new();
        if let Some(links) = self.links.as_mut() {
            while let Some(change) = links.poll() {
                changed.insert(change.name);
            }
        }
        changed
    }

    /// An event, for the hooks and the counters.
    pub fn happened(&mut self, event: &HistoryEvent, source: EventSource) {
        self.counters.count(event.cause, event.grade);
        self.counters.in_maintenance += u64::from(event.maintenance.is_some());
        if let Some(hooks) = self.hooks.as_mut() {
            hooks.offer(event, source);
        }
    }

    /// Whether a hook says that this is to be done with the process of this event.
    #[must_use]
    pub fn says(&self, action: HookAction, event: &HistoryEvent) -> bool {
        self.hooks.as_ref().is_some_and(|hooks| hooks.says(action, event))
    }

    /// Hooks that failed since the last call, with whom they ran for, and word of those that were not run, for the history.
    pub fn failed_hooks(&mut self, now_ns: u64) -> Vec<(EventSource, i32, String)> {
        let Some(hooks) = self.hooks.as_mut() else { return Vec::new() };
        let dropped = hooks.dropped(now_ns).into_iter().map(|(_, text)| (EventSource::OWN, NOT_KEPT_EVENT_CODE, text));
        let mut told: Vec<_> = dropped.collect();
        let failed = hooks.outcomes().try_iter().filter(HookOutcome::is_failure);
        told.extend(failed.map(|outcome| (outcome.source, HOOK_EVENT_CODE, outcome.text())));
        told
    }

    /// Renews what `/metrics` shows; costs nothing when nobody serves it.
    pub fn publish(
        &mut self,
        core: &LoopHandle,
        about: &crate::status::About,
        counted: Counted,
        guard: Option<&Guard>,
        gates: Option<&Gates>,
        (pending, maintenance): (Vec<WatchStatus>, Vec<MaintenanceStatus>),
    ) {
        if self.metrics.is_none() {
            return;
        }
        let Some((mut status, lost)) = core.status(about).zip(core.ask(|core| core.events_lost())) else { return };
        if let (Some(guard), Some(fence)) = (guard, status.fence.as_mut()) {
            guard.complete(fence);
        }
        status.gates = gates.map_or_else(Vec::new, |gates| gates.status(crate::clock::now_ns()));
        crate::status::with_pending(&mut status, pending);
        status.maintenance = maintenance;
        self.counters.status = status;
        self.counters.client_events_lost = lost;
        self.counters.clients = counted.clients;
        self.counters.history_events = counted.history_events;
        self.counters.history_bytes = counted.history_bytes;
        self.counters.history_lost = counted.history_lost;
        self.counters.history_failures = counted.history_failures;
        self.counters.history_not_kept = counted.history_not_kept;
        if let Some(hooks) = &self.hooks {
            self.counters.hooks = hooks.counts();
        }
        self.board.publish(self.counters.clone());
    }

    /// A new configuration. What of it could not be done is returned, and reported.
    pub fn reload(&mut self, new: &Config, live: &Live, core: &LoopHandle) -> Option<String> {
        if live.hooks
            && let Some(hooks) = self.hooks.as_mut()
        {
            hooks.set_hooks(new.hooks.clone());
        }
        live.metrics.then(|| self.serve_metrics(new.metrics, core)).flatten()
    }

    /// Ends what was started.
    pub fn shutdown(&mut self) {
        self.metrics = None;
        if let Some(hooks) = self.hooks.as_mut() {
            hooks.shutdown(GRACE);
        }
    }
}

fn complain(core: &LoopHandle, text: String) {
    tracing::error!("{text}");
    core.tell(move |core| core.tell_local(Cause::Local, 0, text));
}
