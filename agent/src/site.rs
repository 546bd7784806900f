//! The read-only interface over HTTP: what the agent knows and what happened as JSON, events as a stream, and a web page.
//!
//! | path | what |
//! |---|---|
//! | `/` | the web page, if it is on: no data, it asks the others |
//! | `/healthz` | 200, or 503 when the loop does not turn |
//! | `/v1/status`, `/v1/hosts`, `/v1/processes` | of the last half second; the objects of `fide status --json` |
//! | `/v1/events` | the objects of `fide events --json`; `?follow`: server-sent events |
//! | `/v1/events/NUMBER` | one event and what it rests on, as `fide explain --json` |
//!
//! Whoever asks for `/v1` shows the token, if there is one. Without a token a request must name this host by an address or as
//! `localhost`: otherwise a web site anywhere could have its name point here and read through the browser of somebody on this
//! host. Nothing here reaches the loop: the control thread leaves snapshots on a [`Board`], and events in a [`Feed`].

use crate::config::Token;
use crate::feed::{After, Asked, Feed, Page, Question, TooMany, Wanted};
use crate::http::{Answer, Counts, Later, Next, Request, Response, Site, Stream};
use crate::metrics::{Board, Heart, Snapshot};
use fide_explain::explain::{self, Explanation};
use fide_explain::style::Style;
use fide_wire::control::HistoryEvent;
use fide_wire::level::Level;
use fide_wire::verdict::{Cause, Grade};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::Read;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The web page. `NONCE` in it is replaced, so that the browser runs what the agent sent and nothing else.
const PAGE: &str = include_str!("page.html");
/// Most events for `last`.
pub const LAST_MAX: usize = 1000;
/// Events of `/v1/events` without `last` and `from`.
const LAST_DEFAULT: usize = 100;
/// Bytes of a stream that are sent at once, about.
const CHUNK: usize = 32 << 10;

/// What is served, and to whom.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What clients must show.
    pub token: Option<Token>,
    /// Whether `/` is the web page.
    pub page: bool,
    /// Whether all hosts are one machine, with one clock: a lab.
    pub one_machine: bool,
}

/// See the module.
pub struct Interface {
    options: Options,
    board: Arc<Board>,
    heart: Arc<Heart>,
    feed: Arc<Feed>,
    counts: Arc<Mutex<Counts>>,
}

impl Interface {
    /// Serves what `board` and `feed` hold; `counts` is what it answered.
    #[must_use]
    pub fn new(options: Options, board: Arc<Board>, heart: Arc<Heart>, feed: Arc<Feed>, counts: Arc<Mutex<Counts>>) -> Self {
        Self { options, board, heart, feed, counts }
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether this request may read.
    fn admit(&self, request: &Request<'_>) -> Result<(), Response> {
        let Some(token) = &self.options.token else { return check_host(request) };
        let shown = request.header("authorization").and_then(|a| {
            let (scheme, shown) = a.trim().split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| shown.trim())
        });
        match shown {
            Some(shown) if token.is(shown) => Ok(()),
            Some(_) => Err(unauthorized(
                "the token is not that of this agent (http.token in its configuration)",
                ", error=\"invalid_token\"",
            )),
            None => Err(unauthorized("a token is needed: Authorization: Bearer …, as in the file of http.token", "")),
        }
    }

    fn v1(&self, what: &str, request: &Request<'_>) -> Result<Answer, Response> {
        self.admit(request)?;
        if let Some(rest) = what.strip_prefix("events") {
            let wanted = Query::parse(request.query)?;
            return match rest {
                "" if wanted.follow => self.follow(wanted, request),
                "" => Ok(self.events(wanted)),
                number => match number.strip_prefix('/').map(str::parse) {
                    Some(Ok(seq)) => Ok(self.explained(seq)),
                    Some(Err(_)) => Err(refusal("400 Bad Request", "an event's number stands behind /v1/events/, such as 17")),
                    None => Err(unknown()),
                },
            };
        }
        if !matches!(what, "status" | "hosts" | "processes") {
            return Err(unknown());
        }
        if !request.query.is_empty() {
            return Err(refusal("400 Bad Request", "only /v1/events has parameters"));
        }
        let snapshot = self.snapshot()?;
        let status = &snapshot.status;
        Ok(Answer::Whole(as_json(&match what {
            "status" => json!(status),
            "hosts" => json!({ "node": status.node, "hosts": status.hosts }),
            _ => json!({ "node": status.node, "processes": processes(&snapshot) }),
        })))
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, Response> {
        self.heart.check(crate::clock::now_ns()).map_err(|why| refusal("503 Service Unavailable", &why))?;
        let snapshot = self.board.newest();
        if snapshot.status.node.is_empty() {
            return Err(refusal("503 Service Unavailable", "the agent is still starting").with("Retry-After", "1"));
        }
        Ok(snapshot)
    }

    fn events(&self, query: Query) -> Answer {
        let question = match query.from {
            Some(from) => Question::From(from),
            None => Question::Newest(query.last.unwrap_or(LAST_DEFAULT), query.wanted.clone()),
        };
        let (last, wanted) = (query.last, query.wanted);
        let make = move |mut page: Page| {
            page.events.retain(|e| wanted.wants(e));
            if let Some(last) = last {
                page.events.drain(..page.events.len().saturating_sub(last));
            }
            as_json(&json!({ "events": page.events, "next": page.next, "more": page.more }))
        };
        Answer::Later(Box::new(FromHistory { asked: self.feed.ask(question), make: Box::new(make) }))
    }

    fn explained(&self, seq: u64) -> Answer {
        let one_machine = self.options.one_machine;
        let make = move |page: Page| {
            let Some(event) = page.events.first().filter(|e| e.seq == seq) else {
                return refusal("404 Not Found", &format!("event {seq} is not kept any more, or has not happened yet"));
            };
            let explanation = Explanation::of(event, one_machine);
            let text = explain::text(event, &explanation, &Style::PLAIN);
            as_json(&json!({ "verdict": event, "explanation": explanation, "text": text }))
        };
        Answer::Later(Box::new(FromHistory { asked: self.feed.ask(Question::From(seq)), make: Box::new(make) }))
    }

    fn follow(&self, query: Query, request: &Request<'_>) -> Result<Answer, Response> {
        let after = request.header("last-event-id").map(str::trim).filter(|id| !id.is_empty()).map(EventId::parse).transpose()?;
        let step = match (after, query.from, query.last) {
            (Some(after), ..) => Step::Asked(self.feed.ask(Question::From(after.seq)), Some(after)),
            (None, Some(from), _) => Step::Asked(self.feed.ask(Question::From(from)), None),
            (None, None, Some(last)) => Step::Asked(self.feed.ask(Question::Newest(last, query.wanted.clone())), None),
            (None, None, None) => Step::Live,
        };
        let next = self.feed.next();
        Ok(Answer::Stream(Box::new(Follower {
            feed: self.feed.clone(),
            wanted: query.wanted,
            next,
            step,
            was_live: false,
            ready: VecDeque::new(),
        })))
    }

    fn page(&self) -> Response {
        let mut random = [0u8; 16];
        let filled = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut random));
        if let Err(e) = filled {
            return Response::text("503 Service Unavailable", format!("/dev/urandom cannot be read: {e}\n"));
        }
        let nonce: String = random.iter().map(|b| format!("{b:02x}")).collect();
        let policy = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        );
        let kind = "text/html; charset=utf-8";
        Response { kind, ..Response::text("200 OK", PAGE.replace("NONCE", &nonce)) }
            .with("Content-Security-Policy", &policy)
            .with("Referrer-Policy", "no-referrer")
            .with("Cross-Origin-Opener-Policy", "same-origin")
    }
}

impl Site for Interface {
    fn answer(&mut self, request: &Request<'_>) -> Answer {
        if let Some(what) = request.path.strip_prefix("/v1/") {
            return self.v1(what, request).unwrap_or_else(Answer::Whole);
        }
        Answer::Whole(match request.path {
            "/" if self.options.page => self.page(),
            "/" => Response::text("200 OK", "FiDe agent: /v1/status, /v1/hosts, /v1/processes, /v1/events, /healthz\n"),
            "/healthz" => self.heart.response(),
            _ => unknown(),
        })
    }

    fn full(&self) -> Response {
        let what = format!("{} clients follow events already, and there is no room for more", crate::http::STREAMS);
        refusal("503 Service Unavailable", &what).with("Retry-After", "10")
    }

    fn answered(&mut self, code: u16) {
        self.count(|counts| *counts.answers.entry(code).or_default() += 1);
    }

    fn streams(&mut self, open: usize) {
        self.count(|counts| counts.streams = open as u64);
    }

    fn dropped(&mut self) {
        self.count(|counts| counts.dropped += 1);
    }
}

/// All processes that are known: this host's, then those of others, each with its host.
fn processes(snapshot: &Snapshot) -> Vec<Value> {
    let with_host = |host: &str, process: Value| {
        let mut object = json!({ "host": host });
        if let (Value::Object(object), Value::Object(process)) = (&mut object, process) {
            object.extend(process);
        }
        object
    };
    let status = &snapshot.status;
    let own = status.watched.iter().map(|w| with_host(&status.node, json!(w)));
    let others = status.hosts.iter().flat_map(|h| h.apps.iter().map(|a| with_host(&h.name, json!(a))));
    own.chain(others).collect()
}

fn as_json(value: &impl Serialize) -> Response {
    let body = serde_json::to_string(value).unwrap_or_default() + "\n";
    Response { kind: "application/json", ..Response::text("200 OK", body) }
}

fn refusal(status: &'static str, what: &str) -> Response {
    Response { status, ..as_json(&json!({ "error": what })) }
}

fn unauthorized(what: &str, more: &str) -> Response {
    refusal("401 Unauthorized", what).with("WWW-Authenticate", &format!("Bearer realm=\"fide\"{more}"))
}

fn unknown() -> Response {
    refusal("404 Not Found", "there are /v1/status, /v1/hosts, /v1/processes, /v1/events, /v1/events/NUMBER and /healthz")
}

/// Whether the request names this host by an address or as `localhost`.
fn check_host(request: &Request<'_>) -> Result<(), Response> {
    let Some(host) = request.header("host").map(str::trim) else { return Ok(()) };
    let name = match host.strip_prefix('[').and_then(|h| h.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or(host),
    };
    if name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let what = "without http.token, this is answered under an address or localhost only, lest web sites read it through a browser on this host";
    Err(refusal("421 Misdirected Request", what))
}

/// What a request for events asks for.
#[derive(Debug, Default, PartialEq)]
struct Query {
    follow: bool,
    from: Option<u64>,
    last: Option<usize>,
    wanted: Wanted,
}

impl Query {
    fn parse(query: &str) -> Result<Self, Response> {
        let bad = |what: String| refusal("400 Bad Request", &what);
        let mut parsed = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value).ok_or_else(|| bad(format!("`{key}` is not percent-encoded UTF-8")))?;
            let wrong = |must: &str| bad(format!("{key}={value}: must be {must}"));
            match key {
                "follow" => match value.as_str() {
                    "" | "1" | "true" => parsed.follow = true,
                    "0" | "false" => parsed.follow = false,
                    _ => return Err(wrong("1 or 0")),
                },
                "from" => parsed.from = Some(value.parse().map_err(|_| wrong("the number of an event"))?),
                "last" => {
                    let last = value.parse().ok().filter(|n| (1..=LAST_MAX).contains(n));
                    parsed.last = Some(last.ok_or_else(|| wrong(&format!("a number from 1 to {LAST_MAX}")))?);
                }
                "level" => {
                    let level = Level::ALL.into_iter().find(|l| l.name() == value);
                    parsed.wanted.level = Some(level.ok_or_else(|| wrong("failure, fault, notice or timing"))?);
                }
                "cause" => {
                    let found = causes(&value);
                    if found.is_empty() {
                        return Err(wrong("a cause such as killed, `failure` or `end`"));
                    }
                    parsed.wanted.causes.extend(found);
                }
                "host" => parsed.wanted.hosts.push(value),
                "app" => parsed.wanted.apps.push(value),
                "grade" => {
                    let grade = [("certain", Grade::Certain), ("inferred", Grade::Inferred)].into_iter().find(|g| g.0 == value);
                    parsed.wanted.grade = Some(grade.ok_or_else(|| wrong("certain or inferred"))?.1);
                }
                _ => {
                    return Err(bad(format!(
                        "`{key}` is not known; there are from, last, follow, level, cause, host, app, grade"
                    )));
                }
            }
        }
        Ok(parsed)
    }
}

/// The causes under a name, as `fide events --cause` has them.
fn causes(name: &str) -> Vec<Cause> {
    let all = Cause::ALL.into_iter();
    match name {
        "end" => all.filter(|c| c.ends_process()).collect(),
        "failure" => all.filter(|c| c.ends_process() && *c != Cause::Left).collect(),
        one => all.filter(|c| c.name() == one).collect(),
    }
}

/// A value of a query.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |b: Option<u8>| char::from(b?).to_digit(16);
                u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// An answer that the history gives.
struct FromHistory {
    asked: Asked,
    make: Box<dyn Fn(Page) -> Response + Send>,
}

impl Later for FromHistory {
    fn poll(&mut self) -> Option<Response> {
        match self.asked.poll() {
            Ok(page) => page.map(&self.make),
            Err(TooMany) => Some(self.late()),
        }
    }

    fn late(&self) -> Response {
        refusal("503 Service Unavailable", "the agent has too much to do to read its history").with("Retry-After", "2")
    }
}

/// The id of an event on a stream: its number, and its time, since numbers begin anew when a history is lost.
///
/// A verdict's id would not do: local events have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EventId {
    seq: u64,
    wall_ns: u64,
}

impl EventId {
    fn parse(text: &str) -> Result<Self, Response> {
        let parsed =
            text.split_once('-').and_then(|(seq, wall)| Some(Self { seq: seq.parse().ok()?, wall_ns: wall.parse().ok()? }));
        parsed.ok_or_else(|| refusal("400 Bad Request", &format!("Last-Event-ID {text:?} is not an id of this stream")))
    }
}

fn frame(event: &HistoryEvent) -> String {
    // JSON in one line: what would end a line is escaped in it.
    let json = serde_json::to_string(event).unwrap_or_default();
    format!("id: {}-{}\ndata: {json}\n\n", event.seq, event.wall_ns)
}

enum Step {
    /// Kept events come first; with the event that the client had last.
    Asked(Asked, Option<EventId>),
    /// Events as they happen.
    Live,
}

/// Somebody who follows.
struct Follower {
    feed: Arc<Feed>,
    wanted: Wanted,
    /// The number of the next event.
    next: u64,
    step: Step,
    /// It has had all that was kept.
    was_live: bool,
    ready: VecDeque<Arc<str>>,
}

impl Follower {
    fn take(&mut self, page: Page, had: Option<EventId>) {
        let Page { mut events, mut next, mut more } = page;
        if let Some(had) = had {
            let first = events.first();
            if first.is_some_and(|e| (e.seq, e.wall_ns) == (had.seq, had.wall_ns)) {
                events.remove(0);
            } else {
                // What the client had is not kept any more; or it is another history, of which only the rest is sent.
                if first.is_none_or(|e| e.seq == had.seq) {
                    (events, next, more) = (Vec::new(), self.feed.next(), false);
                }
                let after = format!("{}-{}", had.seq, had.wall_ns);
                self.ready.push_back(format!("event: gap\ndata: {}\n\n", json!({ "after": after, "next": next })).into());
            }
        }
        for event in events.iter().filter(|e| self.wanted.wants(e)) {
            self.ready.push_back(frame(event).into());
        }
        self.next = next;
        self.step = if more { Step::Asked(self.feed.ask(Question::From(next)), None) } else { Step::Live };
    }

    fn chunk(&mut self) -> Option<Arc<str>> {
        let mut chunk = self.ready.pop_front()?;
        if !self.ready.is_empty() {
            let mut text = chunk.to_string();
            while self.ready.front().is_some_and(|next| text.len() + next.len() <= CHUNK) {
                self.ready.pop_front().into_iter().for_each(|next| text.push_str(&next));
            }
            chunk = text.into();
        }
        Some(chunk)
    }
}

impl Stream for Follower {
    fn next(&mut self) -> Next {
        loop {
            if let Some(chunk) = self.chunk() {
                return Next::Bytes(chunk);
            }
            match &mut self.step {
                Step::Asked(asked, had) => match asked.poll() {
                    Ok(Some(page)) => {
                        let had = had.take();
                        self.take(page, had);
                    }
                    Ok(None) => return Next::Nothing,
                    Err(TooMany) => return Next::Gone,
                },
                Step::Live => match self.feed.after(self.next) {
                    After::Event(entry) => {
                        self.was_live = true;
                        self.next = entry.event.seq + 1;
                        if self.wanted.wants(&entry.event) {
                            return Next::Bytes(entry.frame(frame));
                        }
                    }
                    After::Nothing => {
                        self.was_live = true;
                        return Next::Nothing;
                    }
                    After::Older if self.was_live => return Next::Gone,
                    // While the page was on its way more happened than is at hand.
                    After::Older => self.step = Step::Asked(self.feed.ask(Question::From(self.next)), None),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_or_refused_with_a_reason() {
        let query = Query::parse("last=5&level=failure&app=a%40b&host=h1&host=h2&follow&cause=failure").unwrap();
        assert_eq!((query.last, query.follow, query.from), (Some(5), true, None));
        assert_eq!((query.wanted.apps, query.wanted.hosts), (vec!["a@b".to_string()], vec!["h1".to_string(), "h2".into()]));
        assert!(query.wanted.causes.contains(&Cause::Killed) && !query.wanted.causes.contains(&Cause::Left));
        for (bad, says) in [
            ("last=0", "1 to 1000"),
            ("last=x", "1 to 1000"),
            ("from=-1", "number of an event"),
            ("level=bad", "failure, fault"),
            ("cause=died", "a cause such as"),
            ("grade=sure", "certain or inferred"),
            ("app=%zz", "percent-encoded"),
            ("app=%ff", "percent-encoded"),
            ("limit=3", "is not known"),
            ("follow=maybe", "1 or 0"),
        ] {
            let refused = Query::parse(bad).unwrap_err();
            assert!(refused.code() == 400 && refused.body.contains(says), "{bad}: {}", refused.body);
        }
    }

    #[test]
    fn the_page_names_no_other_host_and_has_no_inline_handlers() {
        let outside = ["http://", "https://", "//cdn", "innerHTML", "document.write", " onclick=", " style=\""];
        for part in outside {
            // The name space of SVG is a name, nothing is fetched.
            assert!(!PAGE.replace("http://www.w3.org/2000/svg", "").contains(part), "{part}");
        }
        assert!(PAGE.contains("<script nonce=\"NONCE\">") && PAGE.contains("<style nonce=\"NONCE\">"));
        assert!(PAGE.len() < 64 << 10);
    }
}
