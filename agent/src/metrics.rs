//! Prometheus metrics and a health check over HTTP: `/metrics` and `/healthz`.
//!
//! Served by a thread of its own ([`crate::http`]). The text is made anew at most every [`CACHE`], however often it is asked for.
//!
//! The agent's loop gives what it knows in a [`Board`] now and then and ticks a [`Heart`]; it never waits for this thread
//! longer than it takes to swap a pointer.

use crate::clock::now_ns;
use crate::hooks::HookResult;
use crate::http::{Answer, Counts, HttpServer, Request, Response, Site, advice};
use fide_proto::detector;
use fide_wire::control::Status;
use fide_wire::level::Level;
use fide_wire::maintenance::covers;
use fide_wire::packet::Refusal;
use fide_wire::verdict::{Cause, Grade};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the text of `/metrics` serves.
pub const CACHE: Duration = Duration::from_millis(100);
/// What the metrics are made from: the status, and counters that it does not have.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// As clients see it.
    pub status: Status,
    /// Verdicts given or received since the start.
    pub verdicts: BTreeMap<(Cause, GradeKey), u64>,
    /// Events of what was in maintenance.
    pub in_maintenance: u64,
    /// Of the interface over HTTP, where it is served.
    pub http: Option<Counts>,
    /// [`Hooks::counts`](crate::hooks::Hooks::counts).
    pub hooks: [u64; HookResult::NAMES.len()],
    /// Connected clients.
    pub clients: u64,
    /// Events that clients lost because they were too slow.
    pub client_events_lost: u64,
    /// Events in the history since it exists.
    pub history_events: u64,
    /// Bytes of the history on disk.
    pub history_bytes: u64,
    /// Events that never reached the disk.
    pub history_lost: u64,
    /// Failed writes.
    pub history_failures: u64,
    /// Events over the limit of who made them happen.
    pub history_not_kept: u64,
}

impl Snapshot {
    /// Counts a verdict.
    pub fn count(&mut self, cause: Cause, grade: Grade) {
        *self.verdicts.entry((cause, grade.into())).or_default() += 1;
    }
}

/// A [`Grade`] that can be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GradeKey(u8);

impl From<Grade> for GradeKey {
    fn from(grade: Grade) -> Self {
        Self(grade as u8)
    }
}

/// Where the loop leaves its newest [`Snapshot`].
#[derive(Debug, Default)]
pub struct Board(Mutex<Arc<Snapshot>>);

impl Board {
    /// Replaces it.
    pub fn publish(&self, snapshot: Snapshot) {
        let new = Arc::new(snapshot);
        // The old one is freed outside the lock.
        let _old = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), new);
    }

    /// The newest.
    #[must_use]
    pub fn newest(&self) -> Arc<Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether the loop runs: it ticks, others look.
#[derive(Debug)]
pub struct Heart {
    /// CLOCK_MONOTONIC of the last tick, ns; 0 before the first.
    last_ns: AtomicU64,
    limit_ns: u64,
}

impl Heart {
    /// One that is healthy as long as it ticks at least every `limit`.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { last_ns: AtomicU64::new(0), limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// The loop came by at `now_ns` (CLOCK_MONOTONIC).
    pub fn tick(&self, now_ns: u64) {
        self.last_ns.store(now_ns, Ordering::Relaxed);
    }

    /// How long ago the last tick was, ns; `None` before the first.
    #[must_use]
    pub fn age_ns(&self, now_ns: u64) -> Option<u64> {
        match self.last_ns.load(Ordering::Relaxed) {
            0 => None,
            last => Some(now_ns.saturating_sub(last)),
        }
    }

    /// Whether all is well at `now_ns`.
    ///
    /// # Errors
    /// What is not, in words.
    pub fn check(&self, now_ns: u64) -> Result<(), String> {
        let ms = |ns: u64| ns / 1_000_000;
        match self.age_ns(now_ns) {
            None => Err("the agent is still starting".into()),
            Some(age) if age > self.limit_ns => {
                Err(format!("the agent's loop has not run for {} ms (its limit is {} ms)", ms(age), ms(self.limit_ns)))
            }
            Some(_) => Ok(()),
        }
    }

    /// `/healthz`.
    #[must_use]
    pub fn response(&self) -> Response {
        match self.check(now_ns()) {
            Ok(()) => Response::text("200 OK", "ok\n"),
            Err(why) => Response::text("503 Service Unavailable", format!("{why}\n")),
        }
    }
}

// ---- the text ----

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (i, (key, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{key}=\"", if i == 0 { '{' } else { ',' });
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }
}

/// Nanoseconds as seconds, exactly.
fn seconds(ns: impl Into<i128>) -> String {
    let ns: i128 = ns.into();
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    format!("{sign}{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Whether the state of a process says that it runs.
fn is_running(state: &str) -> bool {
    state == "alive" || state == Cause::Hung.name()
}

/// Answers over HTTP that have their series from the start.
const HTTP_CODES: [u16; 3] = [200, 401, 503];

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// The text of `/metrics`.
#[must_use]
pub fn render(snapshot: &Snapshot, tick_age_ns: Option<u64>) -> String {
    let s = &snapshot.status;
    let mut t = Text(String::with_capacity(16 * 1024));
    agent(&mut t, s, tick_age_ns);
    fences(&mut t, s);
    packets(&mut t, s);
    hosts(&mut t, s);
    processes(&mut t, s);
    verdicts(&mut t, snapshot);
    maintenance(&mut t, snapshot);
    readers(&mut t, snapshot);
    t.0
}

/// The agent itself.
fn agent(t: &mut Text, s: &Status, tick_age_ns: Option<u64>) {
    t.family("fide_info", GAUGE, "What runs here; always 1.");
    t.sample(
        "fide_info",
        &[
            ("version", &s.version),
            ("node", &s.node),
            ("cluster", &s.cluster),
            ("profile", &s.profile),
            ("receive", &s.receive),
            ("send", &s.send),
            ("exit_watch", &s.exit_watch),
        ],
        1,
    );
    t.single("fide_uptime_seconds", GAUGE, "Since the agent started.", s.uptime_s);
    t.single("fide_incarnation", GAUGE, "The agent's incarnation.", s.incarnation);
    t.single("fide_authenticated", GAUGE, "Whether packets carry a secret key's tag.", u8::from(s.authenticated));
    if let Some(age) = tick_age_ns {
        t.single("fide_loop_tick_age_seconds", GAUGE, "Since the agent's loop last ran.", seconds(age));
    }
    t.single("fide_heartbeats_sent_total", COUNTER, "Heartbeats sent, all paths of one counted once.", s.heartbeats_sent);
    t.single(
        "fide_silences_spared_total",
        COUNTER,
        "Silences that ended while a barrier was waited for: the heartbeat had been waiting on this host.",
        s.silences_spared,
    );
    t.single(
        "fide_silences_vetoed_total",
        COUNTER,
        "Silences measured anew because this host itself had lost packets.",
        s.silences_vetoed,
    );
}

/// Its fence, and the gates of applications.
fn fences(t: &mut Text, s: &Status) {
    if let Some(f) = &s.fence {
        t.single("fide_fenced", GAUGE, "Whether this host is fenced.", u8::from(f.is_closed()));
        t.single("fide_fence_left_seconds", GAUGE, "Time left until t_valid.", seconds(f.left_ns));
        t.single(
            "fide_fence_left_min_seconds",
            GAUGE,
            "Least time that was left when t_valid was extended, since the fence was opened.",
            seconds(f.left_min_ns),
        );
        t.single("fide_fence_timeout_seconds", GAUGE, "What others wait for.", seconds(f.timeout_ns));
        t.single("fide_fence_extensions_total", COUNTER, "Extensions of t_valid.", f.extensions);
        t.family("fide_gate_open", GAUGE, "Whether a gate lets packets pass.");
        f.gates.iter().for_each(|g| {
            t.sample("fide_gate_open", &[("gate", &g.name)], u8::from(matches!(g.state.as_str(), "open" | "not-armed")))
        });
        t.family("fide_gate_passed_total", COUNTER, "Packets that passed a gate.");
        f.gates.iter().for_each(|g| t.sample("fide_gate_passed_total", &[("gate", &g.name)], g.passed));
        t.family("fide_gate_blocked_total", COUNTER, "Packets that a gate blocked.");
        f.gates.iter().for_each(|g| t.sample("fide_gate_blocked_total", &[("gate", &g.name)], g.blocked));
    }

    if !s.gates.is_empty() {
        t.family("fide_application_gate_open", GAUGE, "Whether the gate of an application lets packets pass.");
        let open = |state: &str| u8::from(matches!(state, "open" | "not-armed"));
        s.gates.iter().for_each(|g| t.sample("fide_application_gate_open", &[("gate", &g.name)], open(&g.state)));
        t.family("fide_application_gate_passed_total", COUNTER, "Packets that passed the gate of an application.");
        s.gates.iter().for_each(|g| t.sample("fide_application_gate_passed_total", &[("gate", &g.name)], g.passed));
        t.family("fide_application_gate_blocked_total", COUNTER, "Packets that the gate of an application blocked.");
        s.gates.iter().for_each(|g| t.sample("fide_application_gate_blocked_total", &[("gate", &g.name)], g.blocked));
    }
}

/// What came in and was not taken, and what this host promises.
fn packets(t: &mut Text, s: &Status) {
    t.family("fide_packets_refused_total", COUNTER, "Packets not accepted, by reason.");
    let known = Refusal::ALL.map(Refusal::name);
    for reason in known {
        t.sample("fide_packets_refused_total", &[("reason", reason)], s.refused.get(reason).copied().unwrap_or(0));
    }
    for (reason, n) in s.refused.iter().filter(|(r, _)| !known.contains(&r.as_str())) {
        t.sample("fide_packets_refused_total", &[("reason", reason)], n);
    }

    let unwanted = |kind: &str| s.unwanted.iter().find(|u| u.kind == kind).map_or(0, |u| u.count);
    t.family("fide_packets_unwanted_total", COUNTER, "Packets beside refused ones that nobody wanted, by kind.");
    for kind in fide_xdp::layout::Unwanted::ALL.map(fide_xdp::layout::Unwanted::name) {
        t.sample("fide_packets_unwanted_total", &[("kind", kind)], unwanted(kind));
    }

    t.single("fide_contract_period_seconds", GAUGE, "Heartbeat interval this agent promises.", seconds(s.contract.period_ns));
    t.single("fide_contract_delta_max_seconds", GAUGE, "Largest jitter this agent promises.", seconds(s.contract.delta_max_ns));
    t.family("fide_interface_up", GAUGE, "Whether this host's interface exists and has its carrier.");
    for p in &s.paths {
        t.sample("fide_interface_up", &[("path", &p.path.to_string()), ("interface", &p.interface)], u8::from(p.up));
    }
}

/// Other hosts and the paths to them.
fn hosts(t: &mut Text, s: &Status) {
    t.family("fide_host_state", GAUGE, "1 for the state a host is in.");
    for h in &s.hosts {
        let judged = detector::State::ALL.map(detector::State::name);
        let states: Vec<&str> = judged.into_iter().chain([Cause::Unreachable.name()]).collect();
        for state in states.iter().copied() {
            t.sample("fide_host_state", &[("host", &h.name), ("state", state)], u8::from(h.state == state));
        }
        if !states.contains(&h.state.as_str()) {
            t.sample("fide_host_state", &[("host", &h.name), ("state", &h.state)], 1);
        }
    }
    t.family("fide_host_unheard_hosts", GAUGE, "How many hosts a host does not hear on any path, as it last reported.");
    for h in s.hosts.iter().filter(|h| h.reported_age_ns.is_some()) {
        let is_deaf_to = |unheard: &&fide_wire::control::Unheard| unheard.paths.len() == s.paths.len();
        t.sample("fide_host_unheard_hosts", &[("host", &h.name)], h.unheard.iter().filter(is_deaf_to).count());
    }
    t.family("fide_host_incarnation", GAUGE, "A host's incarnation.");
    s.hosts.iter().for_each(|h| t.sample("fide_host_incarnation", &[("host", &h.name)], h.incarnation));
    t.family("fide_host_timeout_seconds", GAUGE, "Silence after which a host is judged silent.");
    s.hosts.iter().for_each(|h| t.sample("fide_host_timeout_seconds", &[("host", &h.name)], seconds(h.timeout_ns)));

    type Of = fn(&fide_wire::control::PathStatus) -> String;
    let per_path: [(&str, &str, &str, Of); 7] = [
        ("fide_path_up", GAUGE, "Whether heartbeats of a host arrive on a path.", |p| u8::from(p.up).to_string()),
        ("fide_path_by_unicast", GAUGE, "Whether heartbeats come by unicast alone.", |p| u8::from(p.by_unicast).to_string()),
        ("fide_path_last_arrival_age_seconds", GAUGE, "Since a heartbeat arrived; NaN: none has.", |p| match p.age_ns {
            u64::MAX => "NaN".into(),
            age_ns => seconds(age_ns),
        }),
        ("fide_path_heartbeats_lost_total", COUNTER, "Heartbeats that never arrived.", |p| p.lost.to_string()),
        (
            "fide_path_margin_seconds",
            GAUGE,
            "Jitter left to the contract in the worst case of the last window; negative: broken.",
            |p| seconds(p.margin_ns),
        ),
        ("fide_path_lambda_min_seconds", GAUGE, "Smallest latency of the contract.", |p| seconds(p.contract.lambda_min_ns)),
        ("fide_path_delta_max_seconds", GAUGE, "Largest jitter of the contract.", |p| seconds(p.contract.delta_max_ns)),
    ];
    for (name, kind, help, value) in per_path {
        t.family(name, kind, help);
        for h in &s.hosts {
            for (i, p) in h.paths.iter().enumerate() {
                t.sample(name, &[("host", &h.name), ("path", &i.to_string())], value(p));
            }
        }
    }
    // A summary, because only those have quantiles: of the last window, so that it has no sum and
    // no count.
    t.family("fide_path_jitter_seconds", "summary", "Jitter in the last window.");
    for h in &s.hosts {
        for (i, p) in h.paths.iter().enumerate() {
            for (quantile, ns) in ["0.5", "0.99", "0.999", "1"].into_iter().zip(p.jitter_ns) {
                let labels = [("host", h.name.as_str()), ("path", &i.to_string()), ("quantile", quantile)];
                t.sample("fide_path_jitter_seconds", &labels, seconds(ns));
            }
        }
    }
}

/// Watched and monitored processes.
fn processes(t: &mut Text, s: &Status) {
    t.family("fide_app_alive", GAUGE, "Whether a monitored process of another host is alive.");
    for h in &s.hosts {
        let alive = |a: &fide_wire::control::AppStatus| u8::from(is_running(&a.state));
        h.apps.iter().for_each(|a| t.sample("fide_app_alive", &[("host", &h.name), ("app", &a.name)], alive(a)));
    }
    t.family("fide_watched_alive", GAUGE, "Whether a watched process of this host is alive.");
    for w in &s.watched {
        t.sample("fide_watched_alive", &[("app", &w.name), ("origin", &w.origin)], u8::from(is_running(&w.state)));
    }
    t.family("fide_app_hung", GAUGE, "Whether a process of another host is known to be hung: there, and without progress.");
    for h in &s.hosts {
        for a in &h.apps {
            t.sample("fide_app_hung", &[("host", &h.name), ("app", &a.name)], u8::from(a.state == Cause::Hung.name()));
        }
    }
    t.family("fide_watched_hung", GAUGE, "Whether a watched process of this host is hung: there, and without progress.");
    for w in &s.watched {
        t.sample("fide_watched_hung", &[("app", &w.name), ("origin", &w.origin)], u8::from(w.state == Cause::Hung.name()));
    }
}

/// What was told.
fn verdicts(t: &mut Text, snapshot: &Snapshot) {
    t.family("fide_verdicts_total", COUNTER, "Verdicts since the start.");
    // Failures have their series from the start: an increase from nothing to 1 is none to Prometheus.
    let failures = Cause::ALL.into_iter().filter(|cause| Level::of(*cause, 0) == Level::Failure);
    let usual = |cause| {
        if matches!(cause, Cause::SilentHost | Cause::AgentLost | Cause::Hung) { Grade::Inferred } else { Grade::Certain }
    };
    let mut verdicts: BTreeMap<_, u64> = failures.map(|cause| ((cause, GradeKey::from(usual(cause))), 0)).collect();
    verdicts.extend(&snapshot.verdicts);
    for ((cause, grade), n) in verdicts {
        let grade = Grade::from_u8(grade.0).map_or("", |g| if g == Grade::Certain { "certain" } else { "inferred" });
        t.sample("fide_verdicts_total", &[("cause", cause.name()), ("grade", grade)], n);
    }
}

/// Who reads and keeps it: hooks, HTTP, clients, the history.
fn readers(t: &mut Text, snapshot: &Snapshot) {
    t.family("fide_hook_runs_total", COUNTER, "Hooks by how they ended.");
    for (result, n) in HookResult::NAMES.iter().zip(snapshot.hooks) {
        t.sample("fide_hook_runs_total", &[("result", result)], n);
    }
    if let Some(http) = &snapshot.http {
        t.family("fide_http_requests_total", COUNTER, "Requests over HTTP, by the code that they were answered with.");
        for code in HTTP_CODES.iter().chain(http.answers.keys().filter(|code| !HTTP_CODES.contains(code))) {
            let n = http.answers.get(code).copied().unwrap_or(0);
            t.sample("fide_http_requests_total", &[("code", &code.to_string())], n);
        }
        t.single("fide_http_followers", GAUGE, "Clients that follow events over HTTP.", http.streams);
        let help = "Clients that followed events over HTTP and were cut off because they did not take them.";
        t.single("fide_http_followers_dropped_total", COUNTER, help, http.dropped);
    }
    t.single("fide_clients", GAUGE, "Connected clients.", snapshot.clients);
    t.single("fide_client_events_lost_total", COUNTER, "Events that slow clients lost.", snapshot.client_events_lost);
    t.single("fide_history_events_total", COUNTER, "Events in the history since it exists.", snapshot.history_events);
    t.single("fide_history_bytes", GAUGE, "Size of the history on disk.", snapshot.history_bytes);
    t.single("fide_history_lost_total", COUNTER, "Events that never reached the disk.", snapshot.history_lost);
    let not_kept = snapshot.history_not_kept;
    t.single(
        "fide_history_not_kept_total",
        COUNTER,
        "Events over the limit of one source, which the history does not keep.",
        not_kept,
    );
    t.single("fide_history_write_failures_total", COUNTER, "Failed writes of the history.", snapshot.history_failures);
}

/// What is in maintenance, so that alerts can leave it alone.
fn maintenance(t: &mut Text, snapshot: &Snapshot) {
    const GAUGE: &str = "gauge";
    let s = &snapshot.status;
    t.family("fide_maintenance_left_seconds", GAUGE, "How long a maintenance still lasts; gone when it is over.");
    for m in &s.maintenance {
        t.sample("fide_maintenance_left_seconds", &[("target", &m.target)], seconds(m.left_ns));
    }
    let covered = |app: Option<&str>, host: &str| u8::from(s.maintenance.iter().any(|m| covers(&m.target, app, host)));
    t.family("fide_host_in_maintenance", GAUGE, "Whether a maintenance covers a host.");
    s.hosts.iter().for_each(|h| t.sample("fide_host_in_maintenance", &[("host", &h.name)], covered(None, &h.name)));
    t.family("fide_app_in_maintenance", GAUGE, "Whether a maintenance covers a monitored process of another host.");
    for h in &s.hosts {
        for a in &h.apps {
            let labels = [("host", h.name.as_str()), ("app", &a.name)];
            t.sample("fide_app_in_maintenance", &labels, covered(Some(&a.name), &h.name));
        }
    }
    t.family("fide_watched_in_maintenance", GAUGE, "Whether a maintenance covers a watched process of this host.");
    for w in &s.watched {
        let labels = [("app", w.name.as_str()), ("origin", &w.origin)];
        t.sample("fide_watched_in_maintenance", &labels, covered(Some(&w.name), &s.node));
    }
    t.single("fide_maintenance_events_total", "counter", "Events of what was in maintenance.", snapshot.in_maintenance);
}

// ---- the server ----

/// Why metrics are not served.
#[derive(Debug, thiserror::Error)]
#[error("metrics cannot be served on {address}: {error}; {advice}")]
pub struct MetricsError {
    /// Where it was tried.
    pub address: SocketAddr,
    /// What the system said.
    pub error: io::Error,
    advice: String,
}

impl MetricsError {
    fn new(address: SocketAddr, error: io::Error) -> Self {
        let advice = advice(&error, "metrics.listen");
        Self { address, error, advice }
    }
}

/// Serves metrics until it is dropped.
pub struct MetricsServer(HttpServer);

impl MetricsServer {
    /// Starts serving on `address`.
    ///
    /// # Errors
    /// When nothing can listen there: to be reported, the agent works without.
    pub fn start(address: SocketAddr, board: Arc<Board>, heart: Arc<Heart>) -> Result<Self, MetricsError> {
        let error = |e| MetricsError::new(address, e);
        let wake = Arc::new(crate::wake::eventfd().map_err(error)?);
        HttpServer::start(address, "fide-metrics", wake, Pages { board, heart, cache: None }).map(Self).map_err(error)
    }

    /// Where it listens (the port chosen when 0 was asked for).
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

/// `/metrics` and `/healthz`.
struct Pages {
    board: Arc<Board>,
    heart: Arc<Heart>,
    cache: Option<(Instant, Arc<str>)>,
}

impl Site for Pages {
    fn answer(&mut self, request: &Request<'_>) -> Answer {
        Answer::Whole(match request.path {
            "/metrics" => {
                let kind = "text/plain; version=0.0.4; charset=utf-8";
                Response { kind, ..Response::text("200 OK", &*self.metrics(Instant::now())) }
            }
            "/healthz" => self.heart.response(),
            "/" => Response::text("200 OK", "FiDe agent: /metrics and /healthz\n"),
            _ => Response::text("404 Not Found", "there are /metrics and /healthz\n"),
        })
    }

    fn full(&self) -> Response {
        Response::text("503 Service Unavailable", "too many streams\n")
    }
}

impl Pages {
    fn metrics(&mut self, now: Instant) -> Arc<str> {
        match &self.cache {
            Some((made, text)) if now.saturating_duration_since(*made) < CACHE => text.clone(),
            _ => {
                let text: Arc<str> = render(&self.board.newest(), self.heart.age_ns(now_ns())).into();
                self.cache = Some((now, text.clone()));
                text
            }
        }
    }
}
