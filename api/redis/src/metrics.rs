//! What this server knows of its group, for Prometheus: `metrics HOST:PORT` of the module's settings. A thread of its own answers one connection
//! after the other, from what the other threads have left for INFO; it asks nobody.

use crate::shared::{Seen, Shared};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The longest request, bytes, and the longest time for a request and its answer.
const REQUEST_MAX: usize = 4096;
const TIME_MAX: Duration = Duration::from_secs(2);
/// Between two attempts where no connection can be taken.
const AGAIN: Duration = Duration::from_millis(100);

/// Replies that left, and those that wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replies {
    /// Without waiting.
    pub at_once: u64,
    /// Behind the write that they show.
    pub after_write: u64,
    /// Behind an entry.
    pub after_entry: u64,
    /// Not yet.
    pub waiting: u64,
}

/// A label's value.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// All of it, as Prometheus reads it.
#[must_use]
pub fn text(group: &str, seen: &Seen, leads: bool, refuses: bool, replies: Replies) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
        let _ = writeln!(out, "# HELP fide_redis_{name} {help}\n# TYPE fide_redis_{name} {kind}");
        for (labels, value) in samples {
            let comma = if labels.is_empty() { "" } else { "," };
            let _ = writeln!(out, "fide_redis_{name}{{group=\"{}\"{comma}{labels}}} {value}", quoted(group));
        }
    };
    let single = |value: f64| [(String::new(), value)];
    let is = |yes: bool| single(f64::from(u8::from(yes)));
    family("leads", "gauge", "Whether this server leads.", &is(leads));
    family("in_sync", "gauge", "Whether this server has all that is decided.", &is(leads || seen.in_sync));
    family(
        "copies",
        "gauge",
        "Servers that have all that is decided, or get it from their own agents.",
        &single(seen.copies as f64),
    );
    family("zones", "gauge", "In how many zones those are.", &single(seen.zones as f64));
    family("refuses_writes", "gauge", "Whether there are fewer than min-copies or min-zones.", &is(leads && refuses));
    family("in_group", "gauge", "Whether this host's agent is in the group.", &is(seen.runs));
    family("members", "gauge", "Members of the group that live.", &single(seen.members as f64));
    family("term", "counter", "How many servers have led.", &single(seen.term as f64));
    family("entries", "counter", "The last entry that was read.", &single(seen.index as f64));
    family("proposals_under_way", "gauge", "Proposals that are not decided yet.", &single(seen.pending as f64));
    family("replies_waiting", "gauge", "Replies that wait for the group.", &single(replies.waiting as f64));
    let how = [("at once", replies.at_once), ("after write", replies.after_write), ("after entry", replies.after_entry)];
    let how = how.map(|(how, count)| (format!("how=\"{how}\""), count as f64));
    family("replies_total", "counter", "Replies that left, by what they waited for.", &how);
    let of = |value: &dyn Fn(&crate::shared::Server) -> Option<f64>| -> Vec<(String, f64)> {
        let labels = |of: &crate::shared::Server| format!("server=\"{}\",zone=\"{}\"", quoted(&of.address), quoted(&of.zone));
        seen.servers.iter().filter_map(|of| Some((labels(of), value(of)?))).collect()
    };
    let help = "Whether a server beside the leader is in sync.";
    family("server_in_sync", "gauge", help, &of(&|of| Some(f64::from(u8::from(of.is_in_sync)))));
    let help = "Bytes that are decided and that it has not applied, as it said last.";
    family("server_lag_bytes", "gauge", help, &of(&|of| Some(of.lag_bytes as f64)));
    let help = "For how long it has not read what is there; the leader knows.";
    family("server_lag_seconds", "gauge", help, &of(&|of| of.lag_ms.map(|ms| ms as f64 / 1000.0)));
    let help = "Whether something keeps it from the leader's data: FIDE STATUS says what.";
    family("server_in_trouble", "gauge", help, &of(&|of| Some(f64::from(u8::from(!of.trouble.is_empty())))));
    out
}

/// What a request is answered with: code and reason, and the text.
fn answer(request: &[u8], text: impl FnOnce() -> String) -> (&'static str, String) {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut parsed = httparse::Request::new(&mut headers);
    if !parsed.parse(request).is_ok_and(|parsed| parsed.is_complete()) {
        return ("400 Bad Request", "no request\n".into());
    }
    let path = parsed.path.unwrap_or("").split('?').next().unwrap_or("");
    match (parsed.method, path) {
        (Some("GET"), "/metrics") => ("200 OK", text()),
        (Some("GET"), _) => ("404 Not Found", "there is /metrics\n".into()),
        _ => ("405 Method Not Allowed", "GET /metrics\n".into()),
    }
}

/// Reads a request, up to the end of its headers, and answers it.
fn serve(mut client: TcpStream, text: impl FnOnce() -> String) -> io::Result<()> {
    let until = Instant::now() + TIME_MAX;
    let mut request = Vec::new();
    client.set_write_timeout(Some(TIME_MAX))?;
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_MAX {
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        client.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        let mut bytes = [0; 1024];
        match client.read(&mut bytes)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&bytes[..n]),
        }
    }
    let (status, text) = answer(&request, text);
    let length = text.len();
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )?;
    client.shutdown(Shutdown::Write)
}

/// Answers for ever.
pub fn run(listener: &TcpListener, group: &str, shared: &Shared, of_server: impl Fn() -> (bool, bool)) {
    loop {
        let Ok((client, _)) = listener.accept() else {
            // Sleep: descriptors may be short for a while.
            std::thread::sleep(AGAIN);
            continue;
        };
        let text = || {
            let (counts, (leads, refuses)) = (&shared.gate.counts, of_server());
            let replies = Replies {
                at_once: counts.at_once.load(Ordering::Relaxed),
                after_write: counts.after_write.load(Ordering::Relaxed),
                after_entry: counts.after_entry.load(Ordering::Relaxed),
                waiting: shared.gate.waiting(),
            };
            text(group, &shared.seen(), leads, refuses, replies)
        };
        let _ = serve(client, text); // who has gone asks again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Server;
    use proptest::prelude::*;

    #[test]
    fn the_text_has_a_sample_of_everything_known() {
        let server = Server {
            address: "h2:6379".into(),
            zone: "r2".into(),
            is_in_sync: true,
            lag_bytes: 7,
            lag_ms: Some(1500),
            trouble: String::new(),
        };
        let other = Server { address: "h3:6379".into(), trouble: "NOAUTH \"x\"".into(), ..Server::default() };
        let seen = Seen { term: 3, copies: 2, zones: 2, servers: vec![server, other], ..Seen::default() };
        let text = text("or\"ders", &seen, true, true, Replies { after_write: 4, ..Replies::default() });
        for line in [
            "fide_redis_leads{group=\"or\\\"ders\"} 1",
            "fide_redis_copies{group=\"or\\\"ders\"} 2",
            "fide_redis_refuses_writes{group=\"or\\\"ders\"} 1",
            "fide_redis_replies_total{group=\"or\\\"ders\",how=\"after write\"} 4",
            "fide_redis_server_lag_seconds{group=\"or\\\"ders\",server=\"h2:6379\",zone=\"r2\"} 1.5",
            "fide_redis_server_in_trouble{group=\"or\\\"ders\",server=\"h3:6379\",zone=\"\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
        assert!(!text.contains("lag_seconds{group=\"or\\\"ders\",server=\"h3"), "the leader does not know");
    }

    #[test]
    fn a_client_that_says_nothing_keeps_nobody_out_for_long() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || run(&listener, "g", &Shared::new(std::sync::mpsc::channel().0).unwrap(), || (true, false)));
        let ask = |request: &[u8]| {
            let mut client = TcpStream::connect(at).unwrap();
            client.write_all(request).unwrap();
            let mut said = String::new();
            client.read_to_string(&mut said).map(|_| said)
        };
        let silent = TcpStream::connect(at).unwrap();
        let said = ask(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        assert!(said.starts_with("HTTP/1.1 200") && said.contains("fide_redis_leads{group=\"g\"} 1\n"), "{said}");
        drop(silent);
        assert!(ask(b"GET / HTTP/1.1\r\n\r\n").unwrap().starts_with("HTTP/1.1 404"));
        assert!(ask(b"PUT /metrics HTTP/1.1\r\n\r\n").unwrap().starts_with("HTTP/1.1 405"));
        assert!(ask(b"\x16\x03\x01\r\n\r\n").unwrap().starts_with("HTTP/1.1 400"));
        assert!(ask(&[b'x'; REQUEST_MAX]).unwrap().starts_with("HTTP/1.1 400"));
    }

    proptest! {
        #[test]
        fn hostile_requests_get_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(!answer(&bytes, || panic!("asks for /metrics")).1.is_empty());
        }
    }
}
