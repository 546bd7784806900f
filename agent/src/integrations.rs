//! What the control thread runs beside answering its clients: hooks, metrics, HTTP, and word of interfaces that come and go.

use crate::admission::HOOK_EVENT_CODE;
use crate::admission::NOT_KEPT_EVENT_CODE;
use crate::config::{Config, HookAction, Live};
use crate::core::requests::Request;
use crate::feed::Feed;
use crate::fence::Guard;
use crate::gates::Gates;
use crate::handle::LoopHandle;
use crate::history::History;
use crate::hooks::{HookOptions, HookOutcome, Hooks};
use crate::http::{Counts, HttpServer, advice};
use crate::links::Links;
use crate::metrics::{Board, MetricsServer, Snapshot};
use crate::shares::EventSource;
use crate::site::{Interface, Options};
use fide_wire::control::{HistoryEvent, MaintenanceStatus, WatchStatus};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long hooks may still run when the agent leaves.
const GRACE: Duration = Duration::from_secs(2);

/// All of it.
pub struct Integrations {
    hooks: Option<Hooks>,
    links: Option<Links>,
    board: Arc<Board>,
    metrics: Option<MetricsServer>,
    http: Option<HttpServer>,
    /// Events for those who read over HTTP; `None` where the system had no descriptor for it.
    feed: Option<Arc<Feed>>,
    http_counts: Arc<Mutex<Counts>>,
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

impl Integrations {
    /// Starts what is configured. What cannot be started is told, and the agent goes on without.
    #[must_use]
    pub fn new(config: &Config, core: &LoopHandle, next_seq: u64, wake: std::io::Result<OwnedFd>) -> Self {
        let mut side = Self {
            hooks: None,
            links: None,
            board: Arc::default(),
            metrics: None,
            http: None,
            feed: None,
            http_counts: Arc::default(),
            counters: Snapshot::default(),
        };
        match wake.and_then(|wake| Feed::new(next_seq, wake)) {
            Ok(feed) => side.feed = Some(Arc::new(feed)),
            Err(e) => complain(core, format!("nothing can be served over HTTP: {e}")),
        }
        match Hooks::start(config.hooks.clone(), HookOptions::default()) {
            Ok(hooks) => side.hooks = Some(hooks),
            Err(e) => complain(core, format!("hooks cannot be run: {e}")),
        }
        match Links::open() {
            Ok(links) => side.links = Some(links),
            Err(e) => complain(core, format!("interfaces are looked at once a second only: {e}")),
        }
        side.serve_metrics(config.metrics, core);
        side.serve_http(config, core);
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

    /// Serves the read-only interface as configured and nowhere else; why not, if that cannot be.
    fn serve_http(&mut self, config: &Config, core: &LoopHandle) -> Option<String> {
        self.http = None; // as above
        let (address, feed) = config.http.listen.zip(self.feed.clone())?;
        let options = Options {
            token: config.http.token.clone(),
            page: config.http.page,
            one_machine: config.socket.path.starts_with("/run/fide/lab"),
        };
        let wake = feed.readers();
        let site = Interface::new(options, self.board.clone(), core.heart.clone(), feed, self.http_counts.clone());
        match HttpServer::start(address, "fide-http", wake, site) {
            Ok(server) => {
                self.http = Some(server);
                None
            }
            Err(e) => {
                let text = format!("nothing can be served over HTTP on {address}: {e}; {}", advice(&e, "http.listen"));
                complain(core, text.clone());
                Some(text)
            }
        }
    }

    /// Answers one question of those who read over HTTP; whether more wait.
    pub fn serve_history(&self, history: &History) -> bool {
        self.feed.as_ref().is_some_and(|feed| feed.serve(history))
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
        // What has no number is not in the history, and nobody follows it.
        if let Some(feed) = self.feed.as_ref().filter(|_| event.seq > 0) {
            match self.http {
                Some(_) => feed.push(event.clone()),
                None => feed.pass(event.seq),
            }
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

    /// Renews what `/metrics` and `/v1` show; costs nothing when nobody serves it.
    pub fn publish(
        &mut self,
        core: &LoopHandle,
        about: &crate::status::About,
        counted: Counted,
        guard: Option<&Guard>,
        gates: Option<&Gates>,
        (pending, maintenance): (Vec<WatchStatus>, Vec<MaintenanceStatus>),
    ) {
        if self.metrics.is_none() && self.http.is_none() {
            return;
        }
        let Some((mut status, lost)) = core.status(about).zip(core.ask(Request::EventsLost)) else { return };
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
        let counts = || self.http_counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.counters.http = self.http.as_ref().map(|_| counts());
        if let Some(hooks) = &self.hooks {
            self.counters.hooks = hooks.counts();
        }
        self.board.publish(self.counters.clone());
    }

    /// A new configuration. What of it could not be done is returned, and reported.
    pub fn reload(&mut self, new: &Config, live: &Live, core: &LoopHandle) -> Vec<String> {
        if live.hooks
            && let Some(hooks) = self.hooks.as_mut()
        {
            hooks.set_hooks(new.hooks.clone());
        }
        let metrics = live.metrics.then(|| self.serve_metrics(new.metrics, core)).flatten();
        let http = live.http.then(|| self.serve_http(new, core)).flatten();
        metrics.into_iter().chain(http).collect()
    }

    /// Ends what was started.
    pub fn shutdown(&mut self) {
        self.metrics = None;
        self.http = None;
        if let Some(hooks) = self.hooks.as_mut() {
            hooks.shutdown(GRACE);
        }
    }
}

fn complain(core: &LoopHandle, text: String) {
    tracing::error!("{text}");
    core.note(0, text);
}
