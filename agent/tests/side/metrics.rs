//! Metrics and health over HTTP, asked by the well-meaning and by others.

use fide_agent::http::CONNECTIONS;
use fide_agent::metrics::{Board, Heart, MetricsServer, Snapshot, render};
use fide_wire::control::{AppStatus, HostStatus, LocalPath, MaintenanceStatus, PathStatus, Status, WatchStatus};
use fide_wire::verdict::{Cause, Grade};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for what must come: it only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is live.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn snapshot() -> Snapshot {
    let path = PathStatus { up: true, margin_ns: -1_500, jitter_ns: [1, 2, 3, 4_000_000_000], lost: 3, ..PathStatus::default() };
    let host = |name: &str, state: &str| HostStatus {
        name: name.into(),
        state: state.into(),
        paths: vec![path.clone(), PathStatus::default()],
        apps: vec![AppStatus { name: "redis".into(), app: 1, state: "killed".into() }],
        ..HostStatus::default()
    };
    let mut s = Snapshot {
        status: Status {
            node: "a".into(),
            hosts: vec![host("b", "alive"), host("c\"\\\n", "odd")],
            paths: vec![LocalPath { interface: "eth1".into(), up: true, ..LocalPath::default() }],
            watched: vec![WatchStatus { name: "db".into(), state: "alive".into(), ..WatchStatus::default() }],
            refused: [("mac".into(), 5), ("new-reason".into(), 6)].into(),
            heartbeats_sent: 42,
            maintenance: vec![MaintenanceStatus {
                target: "redis@b".into(),
                left_ns: 90_000_000_000,
                ..MaintenanceStatus::default()
            }],
            ..Status::default()
        },
        hooks: [1, 2, 0, 0, 0, 0, 0],
        ..Snapshot::default()
    };
    s.count(Cause::Killed, Grade::Certain);
    s.count(Cause::Killed, Grade::Certain);
    s
}

struct Setup {
    server: MetricsServer,
    board: Arc<Board>,
    heart: Arc<Heart>,
}

fn setup() -> Setup {
    let (board, heart) = (Arc::new(Board::default()), Arc::new(Heart::new(Duration::from_secs(1000))));
    board.publish(snapshot());
    let server = MetricsServer::start("127.0.0.1:0".parse().unwrap(), board.clone(), heart.clone()).unwrap();
    Setup { server, board, heart }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Waits until the condition holds.
fn until(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what}: never");
        // Sleep: interval of the poll.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether this process still holds the server's end of a connection.
fn is_held(server: SocketAddr, client: SocketAddr) -> bool {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let (server, client) = (format!(":{:04X}", server.port()), format!(":{:04X}", client.port()));
    table.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[1].ends_with(&server) && words[2].ends_with(&client) && words[9] != "0"
    })
}

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
}

#[test]
fn the_text_is_well_formed_and_says_what_the_status_says() {
    let text = render(&snapshot(), Some(1_500_000));
    for line in [
        "fide_heartbeats_sent_total 42",
        "fide_host_state{host=\"b\",state=\"alive\"} 1",
        "fide_host_state{host=\"b\",state=\"silent-host\"} 0",
        "fide_host_state{host=\"b\",state=\"restarting\"} 0",
        "fide_host_state{host=\"c\\\"\\\\\\n\",state=\"odd\"} 1",
        "fide_path_margin_seconds{host=\"b\",path=\"0\"} -0.000001500",
        "fide_path_jitter_seconds{host=\"b\",path=\"0\",quantile=\"1\"} 4.000000000",
        "fide_packets_refused_total{reason=\"mac\"} 5",
        "fide_packets_refused_total{reason=\"key\"} 0",
        "fide_packets_refused_total{reason=\"new-reason\"} 6",
        "fide_verdicts_total{cause=\"killed\",grade=\"certain\"} 2",
        "fide_verdicts_total{cause=\"out-of-memory\",grade=\"certain\"} 0",
        "fide_verdicts_total{cause=\"silent-host\",grade=\"inferred\"} 0",
        "fide_hook_runs_total{result=\"failed\"} 2",
        "fide_interface_up{path=\"0\",interface=\"eth1\"} 1",
        "fide_app_alive{host=\"b\",app=\"redis\"} 0",
        "fide_watched_alive{app=\"db\",origin=\"\"} 1",
        "fide_loop_tick_age_seconds 0.001500000",
        "fide_maintenance_left_seconds{target=\"redis@b\"} 90.000000000",
        "fide_app_in_maintenance{host=\"b\",app=\"redis\"} 1",
        "fide_host_in_maintenance{host=\"b\"} 0",
        "fide_watched_in_maintenance{app=\"db\",origin=\"\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
    }
    let mut families = BTreeSet::new();
    let mut series = BTreeSet::new();
    let mut kind = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            assert!(families.insert(help.split(' ').next().unwrap().to_owned()), "{line} twice");
        } else if let Some(of) = line.strip_prefix("# TYPE ") {
            kind = of.to_owned();
        } else {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let family = name.split('{').next().unwrap();
            assert_eq!(kind.split(' ').next(), Some(family), "{line}");
            assert_eq!(kind.ends_with("counter"), family.ends_with("_total"), "{line}");
            value.parse::<f64>().unwrap();
            assert!(series.insert(name.to_owned()), "{line} twice");
        }
    }
    assert!(families.len() > 25);
}

#[test]
fn both_pages_are_served() {
    let s = setup();
    let answer = get(s.server.address(), "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}", body.len())));
    assert!(body.contains("fide_heartbeats_sent_total 42"));
    let mut more = snapshot();
    more.status.heartbeats_sent = 43;
    s.board.publish(more);
    until("the page is made again", || get(s.server.address(), "/metrics?x=1").contains("fide_heartbeats_sent_total 43"));
    assert!(get(s.server.address(), "/").contains("/metrics"));
    assert!(get(s.server.address(), "/etc/passwd").starts_with("HTTP/1.1 404"));
    let head = ask(s.server.address(), b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"));
}

#[test]
fn health_is_the_loops_heart() {
    let heart = Heart::new(Duration::from_millis(100));
    assert_eq!(heart.check(1), Err("the agent is still starting".into()));
    heart.tick(1_000);
    assert_eq!(heart.check(100_001_000), Ok(()));
    assert_eq!(heart.check(250_000_000), Err("the agent's loop has not run for 249 ms (its limit is 100 ms)".into()));
    assert_eq!(heart.check(1), Ok(()), "a clock read before the tick");

    let s = setup();
    assert!(get(s.server.address(), "/healthz").starts_with("HTTP/1.1 503"));
    s.heart.tick(now_ns());
    assert!(get(s.server.address(), "/healthz").ends_with("\r\n\r\nok\n"));
}

#[test]
fn a_taken_address_is_an_error_that_helps() {
    let s = setup();
    let e = MetricsServer::start(s.server.address(), s.board.clone(), s.heart.clone()).err().unwrap().to_string();
    assert!(e.contains("ss -ltnp") && e.contains("metrics.listen"), "{e}");
    let e = MetricsServer::start("192.0.2.1:9433".parse().unwrap(), s.board.clone(), s.heart.clone()).err().unwrap().to_string();
    assert!(e.contains("no such address"), "{e}");
    // Once it is dropped, the place is free again.
    let address = s.server.address();
    drop(s.server);
    MetricsServer::start(address, s.board, s.heart).unwrap();
}

#[test]
fn huge_broken_and_foreign_requests_are_refused() {
    let s = setup();
    let at = s.server.address();
    let huge = [b"GET /".as_slice(), &[b'a'; 100_000], b" HTTP/1.1\r\n\r\n"].concat();
    assert!(ask(at, &huge).starts_with("HTTP/1.1 431"));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(200));
    assert!(ask(at, many.as_bytes()).starts_with("HTTP/1.1 431"));
    assert!(ask(at, b"\x16\x03\x01\x02\x00\x01\x00\x01").starts_with("HTTP/1.1 400"), "TLS");
    assert!(ask(at, b"SSH-2.0-x\r\n").starts_with("HTTP/1.1 400"));
    let post = ask(at, b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
    assert!(post.starts_with("HTTP/1.1 405") && post.contains("Allow: GET, HEAD"), "{post}");
    // Pipelined: one answer, then the end.
    let both = ask(at, &b"GET / HTTP/1.1\r\n\r\n".repeat(1000));
    assert_eq!(both.matches("HTTP/1.1 ").count(), 1);
}

#[test]
fn slow_clients_do_not_keep_others_out() {
    let s = setup();
    let at = s.server.address();
    let mut slow: Vec<TcpStream> = (0..3 * CONNECTIONS).map(|_| connect(at)).collect();
    slow.iter_mut().for_each(|c| {
        let _ = c.write_all(b"GET /metr");
    });
    assert!(get(at, "/healthz").starts_with("HTTP/1.1 503"));
    // The newest of them is there still: nobody had to wait until it was cut off.
    let newest = slow.last().unwrap();
    newest.set_nonblocking(true).unwrap();
    assert_eq!(newest.peek(&mut [0; 10]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    newest.set_nonblocking(false).unwrap();
    // All of them are cut off in the end.
    for mut c in slow {
        let ended = c.read(&mut [0; 10]);
        assert!(!ended.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock), "one is not cut off");
    }
}

#[test]
fn a_client_that_takes_nothing_is_cut_off() {
    let s = setup();
    let mut big = snapshot();
    let host = big.status.hosts[0].clone();
    big.status.hosts = (0..4_000).map(|i| HostStatus { name: format!("h{i}"), ..host.clone() }).collect();
    s.board.publish(big);
    until("the large page", || get(s.server.address(), "/metrics").len() > 6_000_000);
    let mut lazy = connect(s.server.address());
    lazy.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    assert!(get(s.server.address(), "/healthz").starts_with("HTTP/1.1 503"), "others are served meanwhile");
    let client = lazy.local_addr().unwrap();
    until("the server's end of the connection is closed", || !is_held(s.server.address(), client));
    let mut got = Vec::new();
    let _ = lazy.read_to_end(&mut got);
    let all = get(s.server.address(), "/metrics").len();
    assert!(got.len() < all, "cut off after what fits the buffers: {} of {all}", got.len());
    assert!(all > 6_000_000, "and who takes it gets all of it: {all}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_request_kills_the_server(bytes in proptest::collection::vec(any::<u8>(), 0..300), prefix in "(GET|HEAD|PUT|) ?(/metrics|/|)? ?") {
        static SETUP: std::sync::OnceLock<Setup> = std::sync::OnceLock::new();
        let at = SETUP.get_or_init(setup).server.address();
        let mut stream = connect(at);
        let _ = stream.write_all(&[prefix.as_bytes(), &bytes, b"\r\n\r\n"].concat());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        prop_assert!(get(at, "/").starts_with("HTTP/1.1 200"));
    }
}
