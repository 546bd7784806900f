//! The read-only interface over HTTP, asked by the well-meaning and by others.

use fide_agent::config::Token;
use fide_agent::feed::{Feed, PAGE, RECENT};
use fide_agent::history::History;
use fide_agent::http::{CONNECTIONS, Counts, HttpServer, KEEP_ALIVE, REQUEST_MAX, STREAMS};
use fide_agent::metrics::{Board, Heart, Snapshot};
use fide_agent::site::{Interface, Options};
use fide_explain::samples::killed;
use fide_wire::control::{AppStatus, HistoryEvent, HostStatus, PathStatus, Status, WatchStatus};
use fide_wire::verdict::Cause;
use proptest::prelude::*;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for what must come: it only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// An agent, as far as HTTP sees one: a status, a history, and a control thread that answers.
pub struct World {
    pub at: SocketAddr,
    board: Arc<Board>,
    feed: Arc<Feed>,
    history: Arc<Mutex<History>>,
    counts: Arc<Mutex<Counts>>,
    stop: Arc<AtomicBool>,
    /// The control thread answers nothing while this is set.
    busy: Arc<AtomicBool>,
    control: Option<std::thread::JoinHandle<()>>,
    server: Option<HttpServer>,
}

impl World {
    pub fn new(options: Options) -> Self {
        Self::standing_still_after(options, Duration::from_secs(1000))
    }

    /// Whose loop counts as standing still when its heart has not beaten for so long.
    fn standing_still_after(options: Options, limit: Duration) -> Self {
        let rung = fide_agent::wake::eventfd().unwrap();
        let history = Arc::new(Mutex::new(History::open(None, 1 << 20).0));
        let feed = Arc::new(Feed::new(1, rung.try_clone().unwrap()).unwrap());
        let (stop, busy) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let control = {
            let (feed, history, stop, busy) = (feed.clone(), history.clone(), stop.clone(), busy.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    let mut fd = libc::pollfd { fd: rung.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                    // SAFETY: one open descriptor.
                    unsafe { libc::poll(&raw mut fd, 1, 20) };
                    fide_agent::wake::drain(&rung);
                    while !busy.load(Ordering::Acquire) && feed.serve(&history.lock().unwrap()) {}
                }
            })
        };
        let (board, heart, counts) = (Arc::<Board>::default(), Arc::new(Heart::new(limit)), Arc::default());
        let site = Interface::new(options, board.clone(), heart.clone(), feed.clone(), Arc::clone(&counts));
        let server = HttpServer::start("127.0.0.1:0".parse().unwrap(), "fide-http", feed.readers(), site).unwrap();
        heart.tick(fide_agent::clock::now_ns());
        let at = server.address();
        Self { at, board, feed, history, counts, stop, busy, control: Some(control), server: Some(server) }
    }

    /// Shows this status.
    pub fn publish(&self, status: Status) {
        self.board.publish(Snapshot { status, ..Snapshot::default() });
    }

    /// What the control thread does with an event; its number.
    pub fn happen(&self, event: HistoryEvent) -> u64 {
        let mut history = self.history.lock().unwrap();
        let seq = history.append(event.clone());
        self.feed.push(HistoryEvent { seq, ..event });
        seq
    }

    fn counts(&self) -> Counts {
        self.counts.lock().unwrap().clone()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.server = None;
        let _ = self.control.take().map(std::thread::JoinHandle::join);
    }
}

pub fn open() -> Options {
    Options { token: None, page: true, one_machine: false }
}

fn guarded() -> Options {
    Options { token: Some(Token::parse(TOKEN).unwrap()), ..open() }
}

/// Host a, which sees b; one process of each.
pub fn status() -> Status {
    let path = PathStatus { up: true, margin_ns: 180_000, jitter_ns: [3_000, 20_000, 45_000, 120_000], ..PathStatus::default() };
    let path = PathStatus { contract: fide_explain::samples::CONTRACT, ..path };
    Status {
        node: "a".into(),
        cluster: "prod".into(),
        version: "0.1.0".into(),
        uptime_s: 4000,
        profile: "shared".into(),
        receive: "xdp-native".into(),
        authenticated: true,
        hosts: vec![HostStatus {
            name: "b".into(),
            state: "alive".into(),
            timeout_ns: 1_612_000,
            paths: vec![path.clone(), PathStatus { margin_ns: -20_000, ..path }],
            apps: vec![AppStatus { name: "redis".into(), app: 1, state: "killed".into() }],
            ..HostStatus::default()
        }],
        watched: vec![WatchStatus {
            name: "db".into(),
            pid: 4711,
            origin: "config".into(),
            state: "alive".into(),
            ..WatchStatus::default()
        }],
        ..Status::default()
    }
}

fn event(text: &str) -> HistoryEvent {
    HistoryEvent { text: text.into(), ..killed() }
}

fn timing() -> HistoryEvent {
    HistoryEvent { cause: Cause::ContractBroken, id: None, app: None, ..event("late") }
}

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Waits until the condition holds.
fn until(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what}: never");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ask(at: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(at);
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get_with(at: SocketAddr, path: &str, headers: &str) -> String {
    ask(at, format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n{headers}\r\n").as_bytes())
}

fn get(at: SocketAddr, path: &str) -> String {
    get_with(at, path, "")
}

fn json(at: SocketAddr, path: &str) -> Value {
    let answer = get(at, path);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Content-Type: application/json"), "{path}: {answer}");
    serde_json::from_str(body).unwrap()
}

fn texts(page: &Value) -> Vec<&str> {
    page["events"].as_array().unwrap().iter().map(|e| e["text"].as_str().unwrap()).collect()
}

/// A client that follows.
struct Following(BufReader<TcpStream>);

impl Following {
    fn new(at: SocketAddr, query: &str, headers: &str) -> Self {
        let mut stream = connect(at);
        stream.write_all(format!("GET /v1/events?follow{query} HTTP/1.1\r\nHost: {at}\r\n{headers}\r\n").as_bytes()).unwrap();
        let mut following = Self(BufReader::new(stream));
        let head = following.part();
        assert!(
            head[0] == "HTTP/1.1 200 OK" && head.iter().any(|l| l.starts_with("Content-Type: text/event-stream")),
            "{head:?}"
        );
        assert_eq!(following.part(), ["retry: 1000"]);
        following
    }

    /// The lines up to the next empty one.
    fn part(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream ended behind {lines:?}");
            match line.trim_end() {
                "" => return lines,
                line => lines.push(line.to_owned()),
            }
        }
    }

    /// The next event: its id and its text.
    fn event(&mut self) -> (String, String) {
        let part = self.part();
        let [id, data] = part.as_slice() else { panic!("{part:?}") };
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        (id.strip_prefix("id: ").unwrap().into(), data["text"].as_str().unwrap().into())
    }
}

#[test]
fn status_hosts_and_processes_are_those_of_the_status() {
    let w = World::new(open());
    assert!(get(w.at, "/v1/status").starts_with("HTTP/1.1 503"), "nothing is known yet");
    w.publish(status());
    assert_eq!(json(w.at, "/v1/status"), serde_json::to_value(status()).unwrap());
    let hosts = json(w.at, "/v1/hosts");
    assert_eq!((hosts["node"].as_str(), &hosts["hosts"]), (Some("a"), &serde_json::to_value(status().hosts).unwrap()));
    let processes = json(w.at, "/v1/processes");
    let of = |i: usize| ["host", "name", "state"].map(|key| processes["processes"][i][key].as_str().unwrap().to_owned());
    assert_eq!((of(0), of(1)), (["a", "db", "alive"].map(String::from), ["b", "redis", "killed"].map(String::from)));
    assert_eq!(processes["processes"][0]["pid"], 4711);
    for (path, code) in [("/v1/status?x=1", 400), ("/v1/", 404), ("/v1/statuses", 404), ("/v1/eventsx", 404), ("/metrics", 404)] {
        assert!(get(w.at, path).starts_with(&format!("HTTP/1.1 {code}")), "{path}");
    }
    let head = ask(w.at, b"HEAD /v1/status HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(w.counts().answers[&404], 4);
}

#[test]
fn a_loop_that_stands_still_is_no_status() {
    let w = World::standing_still_after(open(), Duration::from_nanos(1));
    w.publish(status());
    let answer = get(w.at, "/v1/status");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("loop has not run"), "{answer}");
    assert!(get(w.at, "/healthz").starts_with("HTTP/1.1 503"));
}

#[test]
fn only_who_shows_the_token_reads() {
    let w = World::new(guarded());
    w.publish(status());
    for path in ["/v1/status", "/v1/hosts", "/v1/processes", "/v1/events", "/v1/events?follow", "/v1/events/1", "/v1/nothing"] {
        let answer = get(w.at, path);
        assert!(
            answer.starts_with("HTTP/1.1 401 ") && answer.contains("\r\nWWW-Authenticate: Bearer realm=\"fide\"\r\n"),
            "{answer}"
        );
        assert!(!answer.contains("redis"), "{answer}");
    }
    let with = |authorization: &str| get_with(w.at, "/v1/status", &format!("Authorization: {authorization}\r\n"));
    for right in [format!("Bearer {TOKEN}"), format!("bearer  {TOKEN} ")] {
        assert!(with(&right).starts_with("HTTP/1.1 200 "), "{right}");
    }
    let (short, other) = (&TOKEN[..31], TOKEN.replace('f', "e"));
    for wrong in
        ["", "Bearer", "Bearer ", short, &format!("Bearer {short}"), &format!("Bearer {other}"), &format!("Bearer {TOKEN}0")]
    {
        assert!(with(wrong).starts_with("HTTP/1.1 401 "), "{wrong}");
    }
    assert!(with(&format!("Basic {TOKEN}")).starts_with("HTTP/1.1 401 "));
    // Any name of this host will do: whoever shows the token is no stranger's web site.
    let named = format!("GET /v1/status HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    assert!(ask(w.at, named.as_bytes()).starts_with("HTTP/1.1 200 "));
    // Neither has data.
    assert!(get(w.at, "/healthz").starts_with("HTTP/1.1 200 ") && get(w.at, "/").starts_with("HTTP/1.1 200 "));
}

#[test]
fn without_a_token_another_hosts_name_is_refused() {
    let w = World::new(open());
    w.publish(status());
    let by = |host: &str| ask(w.at, format!("GET /v1/status HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
    for own in ["127.0.0.1", "127.0.0.1:9434", "localhost", "LOCALHOST:1", "[::1]:9434"] {
        assert!(by(own).starts_with("HTTP/1.1 200 "), "{own}");
    }
    for foreign in ["evil.example", "evil.example:9434", "127.0.0.1.evil.example", "[evil]", ""] {
        assert!(by(foreign).starts_with("HTTP/1.1 421 "), "{foreign}");
    }
}

#[test]
fn kept_events_are_read_the_newest_first_or_from_a_number_on() {
    let w = World::new(open());
    for i in 0..PAGE as u64 + 50 {
        w.happen(event(&format!("e{i}")));
        w.happen(timing());
    }
    let newest = json(w.at, "/v1/events?last=3");
    assert_eq!(texts(&newest), ["e303", "e304", "e305"], "no timing unless asked for");
    assert_eq!((newest["next"].as_u64(), newest["more"].as_bool()), (Some(613), Some(false)));
    assert_eq!(json(w.at, "/v1/events")["events"].as_array().unwrap().len(), 100);
    assert_eq!(texts(&json(w.at, "/v1/events?last=2&level=timing")), ["e305", "late"]);
    assert_eq!(texts(&json(w.at, "/v1/events?last=1&cause=contract-broken")), ["late"]);
    assert!(texts(&json(w.at, "/v1/events?host=nobody")).is_empty());
    assert_eq!(texts(&json(w.at, "/v1/events?app=redis%40h2&last=1")), ["e305"]);
    // All of them, page by page.
    let (mut from, mut all) = (0, Vec::new());
    loop {
        let page = json(w.at, &format!("/v1/events?from={from}"));
        all.extend(texts(&page).into_iter().map(String::from));
        from = page["next"].as_u64().unwrap();
        if page["more"] == false {
            break;
        }
    }
    assert_eq!(all, (0..PAGE + 50).map(|i| format!("e{i}")).collect::<Vec<_>>());
    // The object is that of the history.
    let own = serde_json::to_value(HistoryEvent { seq: 1, ..event("e0") }).unwrap();
    assert_eq!(json(w.at, "/v1/events?from=1")["events"][0], own);
    assert!(get(w.at, "/v1/events?last=1001").starts_with("HTTP/1.1 400 "));
}

#[test]
fn an_event_is_explained_as_by_the_command_line() {
    let w = World::new(open());
    let seq = w.happen(event("redis@h2 was ended by SIGKILL"));
    let told = json(w.at, &format!("/v1/events/{seq}"));
    assert_eq!(told["verdict"]["seq"], 1);
    let of = HistoryEvent { seq, ..event("redis@h2 was ended by SIGKILL") };
    let explanation = fide_explain::explain::Explanation::of(&of, false);
    assert_eq!(told["explanation"], serde_json::to_value(&explanation).unwrap());
    assert_eq!(told["text"], fide_explain::explain::text(&of, &explanation, &fide_explain::style::Style::PLAIN));
    assert!(get(w.at, "/v1/events/2").starts_with("HTTP/1.1 404 "));
    assert!(get(w.at, "/v1/events/x").starts_with("HTTP/1.1 400 "));
    assert!(get(w.at, "/v1/events/1/2").starts_with("HTTP/1.1 400 "));
}

#[test]
fn a_busy_control_thread_is_waited_for_and_then_told_of() {
    let w = World::new(open());
    w.busy.store(true, Ordering::Release);
    let slow = std::thread::spawn({
        let at = w.at;
        move || get(at, "/v1/events")
    });
    w.publish(status());
    assert!(get(w.at, "/v1/status").starts_with("HTTP/1.1 200 "), "others are served meanwhile");
    assert!(!slow.is_finished());
    let answer = slow.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: 2"), "{answer}");
    w.busy.store(false, Ordering::Release);
    assert!(get(w.at, "/v1/events").starts_with("HTTP/1.1 200 "));
}

#[test]
fn who_follows_gets_each_event_once_also_after_coming_back() {
    let w = World::new(open());
    w.happen(event("before"));
    let mut live = Following::new(w.at, "", "");
    let mut all = Following::new(w.at, "&from=0", "");
    let mut newest = Following::new(w.at, "&last=1", "");
    assert_eq!(all.event().1, "before");
    assert_eq!(newest.event().1, "before");
    // Sleep: the followers' connections become idle, which nothing shows: the event has to wake
    // them.
    std::thread::sleep(Duration::from_millis(20));
    let began = Instant::now();
    w.happen(timing());
    w.happen(event("one"));
    let (id, text) = live.event();
    assert_eq!(text, "one", "no timing unless asked for, nothing of before");
    assert!(began.elapsed() < KEEP_ALIVE, "not only when the stream has to say that it lives: {:?}", began.elapsed());
    assert_eq!((all.event().1, newest.event().1), ("one".into(), "one".into()));
    drop(live);
    // More than is at hand, so that the history must help.
    let missed: Vec<String> = (0..RECENT + 10).map(|i| format!("m{i}")).collect();
    missed.iter().for_each(|text| {
        w.happen(event(text));
    });
    let mut back = Following::new(w.at, "", &format!("Last-Event-ID: {id}\r\n"));
    for text in &missed {
        assert_eq!(&back.event().1, text);
    }
    w.happen(event("last"));
    assert_eq!(back.event().1, "last");
}

#[test]
fn what_happened_while_nobody_was_served_follows_from_the_history() {
    let w = World::new(open());
    w.happen(event("one"));
    // Two that nobody had at hand.
    for text in ["two", "three"] {
        let seq = w.history.lock().unwrap().append(event(text));
        w.feed.pass(seq);
    }
    w.happen(event("four"));
    assert!(matches!(w.feed.after(2), fide_agent::feed::After::Older), "not the fourth, as if it were the next");
    let mut following = Following::new(w.at, "&from=0", "");
    for text in ["one", "two", "three", "four"] {
        assert_eq!(following.event().1, text);
    }
    w.happen(event("five"));
    assert_eq!(following.event().1, "five");
}

#[test]
fn an_id_of_another_history_is_answered_by_a_gap_and_never_by_a_hole() {
    let w = World::new(open());
    w.happen(event("e1"));
    w.happen(event("e2"));
    for id in ["1-999", "77-1794000000123456789"] {
        let mut stream = Following::new(w.at, "", &format!("Last-Event-ID: {id}\r\n"));
        let gap = stream.part();
        assert!(gap[0] == "event: gap" && gap[1].contains(&format!("\"after\":\"{id}\"")), "{gap:?}");
        w.happen(event("later"));
        assert_eq!(stream.event().1, "later");
    }
    assert!(get_with(w.at, "/v1/events?follow", "Last-Event-ID: x\r\n").starts_with("HTTP/1.1 400 "));
}

#[test]
fn followers_are_bounded_and_leave_room_for_others() {
    let w = World::new(open());
    w.publish(status());
    let mut following: Vec<Following> = (0..STREAMS).map(|_| Following::new(w.at, "", "")).collect();
    let full = get(w.at, "/v1/events?follow");
    assert!(full.starts_with("HTTP/1.1 503 ") && full.contains("Retry-After"), "{full}");
    // A flood of others does not take their places.
    let idle: Vec<TcpStream> = (0..3 * CONNECTIONS).map(|_| connect(w.at)).collect();
    assert!(get(w.at, "/v1/status").starts_with("HTTP/1.1 200 "));
    w.happen(event("one"));
    following.iter_mut().for_each(|f| assert_eq!(f.event().1, "one"));
    assert_eq!(w.counts().streams, STREAMS as u64);
    drop(idle);
    following.pop();
    until("one stream less", || w.counts().streams == STREAMS as u64 - 1);
    assert_eq!(w.counts().dropped, 0, "who leaves is no slow client");
    Following::new(w.at, "", "");
}

#[test]
fn a_follower_that_takes_nothing_is_dropped_and_counted_and_others_are_not() {
    let w = World::new(open());
    let lazy = Following::new(w.at, "", "");
    let mut good = Following::new(w.at, "", "");
    // 40 MB: more than the buffers of both sockets. The other one reads each event before the next.
    for i in 0..400 {
        w.happen(event(&format!("{}{i}", "x".repeat(100_000))));
        assert!(good.event().1.ends_with(&format!("x{i}")));
    }
    until("the lazy one is dropped", || w.counts().dropped > 0);
    assert_eq!(w.counts().dropped, 1);
    drop(lazy);
}

#[test]
fn a_quiet_stream_says_that_it_lives() {
    let w = World::new(open());
    let mut following = Following::new(w.at, "", "");
    let began = Instant::now();
    assert_eq!(following.part(), [":"]);
    assert!(began.elapsed() + Duration::from_secs(1) > KEEP_ALIVE && began.elapsed() < 2 * KEEP_ALIVE);
    w.happen(event("one"));
    assert_eq!(following.event().1, "one");
}

#[test]
fn bad_requests_are_refused() {
    let w = World::new(open());
    w.publish(status());
    let huge = [b"GET /v1/events?app=".as_slice(), &vec![b'a'; 2 * REQUEST_MAX], b" HTTP/1.1\r\n\r\n"].concat();
    assert!(ask(w.at, &huge).starts_with("HTTP/1.1 431 "));
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"] {
        let answer = ask(w.at, format!("{method} /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("Allow: GET, HEAD"), "{answer}");
    }
    for path in
        ["/../etc/passwd", "/v1/../../etc/passwd", "/v1/%2e%2e/x", "//etc/passwd", "/page.html", "http://x/v1/status", "*"]
    {
        assert!(get(w.at, path).starts_with("HTTP/1.1 404 "), "{path}");
    }
    assert!(ask(w.at, b"\x16\x03\x01\x02\x00\x01\x00\x01").starts_with("HTTP/1.1 400 "), "TLS");
    // Cut short: no answer, and nothing stays.
    let mut cut = connect(w.at);
    cut.write_all(b"GET /v1/status HT").unwrap();
    cut.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(cut.read_to_end(&mut Vec::new()).unwrap(), 0);
    // Who talks into a stream without end is cut off.
    let mut following = Following::new(w.at, "", "");
    let _ = following.0.get_mut().write_all(&vec![b'x'; 4 * REQUEST_MAX]);
    let _ = following.0.read_to_end(&mut Vec::new());
    assert!(get(w.at, "/v1/status").starts_with("HTTP/1.1 200 "));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_request_kills_the_interface(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        prefix in "(GET|HEAD|PUT|) ?/(v1/(status|events|events/[0-9]{0,25}|events\\?[a-z]{0,6}=[0-9%&]{0,9})|)? ?",
    ) {
        static WORLD: std::sync::OnceLock<World> = std::sync::OnceLock::new();
        let at = WORLD.get_or_init(|| World::new(open())).at;
        let mut stream = connect(at);
        let _ = stream.write_all(&[prefix.as_bytes(), &bytes, b"\r\n\r\n"].concat());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        prop_assert!(get(at, "/healthz").starts_with("HTTP/1.1 200"));
    }
}
