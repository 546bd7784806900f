//! The web page in a real browser (Debian's chromium), driven by its DevTools protocol over a pipe.

use crate::http::{TOKEN, World, open, status};
use fide_agent::config::Token;
use fide_agent::site::Options;
use fide_explain::samples::killed;
use fide_wire::control::{AppStatus, HistoryEvent, MaintenanceStatus, WatchStatus};
use fide_wire::verdict::{Cause, Evidence, Grade, PathEvidence};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A browser with one page, and what it asked for.
struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    id: u64,
    session: String,
    requests: Vec<String>,
    _profile: tempfile::TempDir,
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors, which belong to nobody else then.
    unsafe {
        assert_eq!(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))
    }
}

impl Browser {
    /// Starts one; `None`, with the reason on standard error, where there is none.
    fn start() -> Option<Self> {
        let program = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].into_iter().find(|p| Path::new(p).exists());
        let Some(program) = program else {
            eprintln!("SKIPPED: chromium is not installed (package chromium), so the web page was not tried");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let ((reads, to), (from, writes)) = (pipe(), pipe());
        let mut command = Command::new(program);
        command
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .env("HOME", profile.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let (reads_fd, writes_fd) = (reads.as_raw_fd(), writes.as_raw_fd());
        // SAFETY: only dup and dup2 between fork and exec. The protocol wants descriptors 3 and 4; the two are moved out of their way first.
        unsafe {
            command.pre_exec(move || {
                let (a, b) = (libc::fcntl(reads_fd, libc::F_DUPFD, 10), libc::fcntl(writes_fd, libc::F_DUPFD, 10));
                if a < 0 || b < 0 || libc::dup2(a, 3) < 0 || libc::dup2(b, 4) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                libc::close(a);
                libc::close(b);
                Ok(())
            });
        }
        let child = command.process_group(0).spawn().unwrap();
        let mut browser = Self {
            child,
            to: to.into(),
            from: BufReader::new(from.into()),
            id: 0,
            session: String::new(),
            requests: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        browser.session = attached["sessionId"].as_str().unwrap().into();
        browser.call("Page.enable", json!({}));
        browser.call("Network.enable", json!({}));
        let watch = "window.violations = []; document.addEventListener('securitypolicyviolation', e => violations.push(e.violatedDirective + ' ' + e.blockedURI));
            window.failures = []; addEventListener('error', e => failures.push(e.message)); addEventListener('unhandledrejection', e => failures.push(String(e.reason)));";
        browser.call("Page.addScriptToEvaluateOnNewDocument", json!({ "source": watch }));
        Some(browser)
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        let mut message = json!({ "id": self.id, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            assert!(self.from.read_until(0, &mut bytes).unwrap() > 0, "the browser ended during {method}");
            bytes.pop();
            let reply: Value = serde_json::from_slice(&bytes).unwrap();
            if reply["method"] == "Network.requestWillBeSent" {
                self.requests.push(reply["params"]["request"]["url"].as_str().unwrap().into());
            }
            if reply["id"] == self.id {
                assert!(reply["error"].is_null(), "{method}: {reply}");
                return reply["result"].clone();
            }
        }
    }

    fn eval(&mut self, script: &str) -> Value {
        let given = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", given);
        assert!(result["exceptionDetails"].is_null(), "{script}: {result}");
        result["result"]["value"].clone()
    }

    fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// Waits until this is true there.
    fn until(&mut self, condition: &str) {
        let began = Instant::now();
        while self.eval(&format!("!!({condition})")) != true {
            let body = if began.elapsed() > Duration::from_secs(30) { Some(self.eval("document.body.innerText")) } else { None };
            assert!(body.is_none(), "never: {condition}\n{body:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn look(&mut self, width: u32, scheme: &str) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 }),
        );
        self.call("Emulation.setEmulatedMedia", json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] }));
    }

    fn key(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let text = if key == "Enter" {
                "\r"
            } else if key.len() == 1 {
                key
            } else {
                ""
            };
            let mut event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Keeps a picture, where somebody wants to see it.
    fn picture(&mut self, name: &str) {
        let Some(dir) = std::env::var_os("FIDE_PICTURES") else { return };
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": true }));
        std::fs::write(Path::new(&dir).join(name), base64(shot["data"].as_str().unwrap())).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // SAFETY: the group was made for this child, which was not waited for.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

fn base64(text: &str) -> Vec<u8> {
    let value = |b: u8| b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".iter().position(|c| *c == b);
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0u32, 0u32);
    for six in text.bytes().filter_map(value) {
        (held, bits) = (held << 6 | six as u32, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    bytes
}

const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\">";

fn events(w: &World) {
    let path = |silent_ns| PathEvidence { last_number: 4711, silent_ns, asked: true, carrier: true, ..PathEvidence::default() };
    let evidence = Evidence {
        paths: vec![path(1_700_000), path(2_000_000)],
        timeout_ns: 1_612_000,
        contract: fide_explain::samples::CONTRACT,
        observer_awake_ns: 12_000_000_000,
        drained: true,
        ..Evidence::default()
    };
    let of =
        |cause, app: Option<&str>, text: &str| HistoryEvent { cause, app: app.map(String::from), text: text.into(), ..killed() };
    w.happen(of(Cause::PathDown, None, "nothing of h2 arrives on path 1"));
    w.happen(of(Cause::Monitored, Some("redis"), "redis@h2 is watched"));
    w.happen(of(Cause::ContractBroken, None, "h2 was late"));
    w.happen(of(Cause::Killed, Some("redis"), "redis@h2 was ended by SIGKILL"));
    let silent = HistoryEvent {
        grade: Grade::Inferred,
        evidence: Some(Box::new(evidence)),
        ..of(Cause::SilentHost, None, "h2 is silent")
    };
    w.happen(silent);
    w.happen(of(Cause::Killed, Some(HOSTILE), &format!("{HOSTILE}@h2 was ended by SIGKILL")));
}

#[test]
fn the_page_shows_hosts_processes_and_events_as_they_happen_and_runs_nothing_of_theirs() {
    let Some(mut b) = Browser::start() else { return };
    let w = World::new(Options { token: Some(Token::parse(TOKEN).unwrap()), ..open() });
    let mut shown = status();
    shown.hosts[0].apps.push(AppStatus { name: HOSTILE.into(), app: 2, state: "alive".into() });
    shown.watched.push(WatchStatus {
        name: "x".repeat(64),
        state: "pending".into(),
        why: "no process listens there".into(),
        ..WatchStatus::default()
    });
    shown.maintenance.push(MaintenanceStatus { target: "db@a".into(), left_ns: 600_000_000_000, ..MaintenanceStatus::default() });
    w.publish(shown.clone());
    events(&w);
    let url = format!("http://{}/", w.at);
    b.look(1280, "light");

    // The token: asked for, refused, taken.
    b.open(&url);
    b.until("document.getElementById('ask') && !document.getElementById('ask').hidden && document.activeElement.id === 'token'");
    assert!(!b.eval("document.body.innerText").as_str().unwrap().contains("redis"));
    b.call("Input.insertText", json!({ "text": "wrong-wrong-wrong-wrong" }));
    b.key("Enter", 13);
    b.until("document.getElementById('why').textContent === \"It is not the agent's.\"");
    b.open(&format!("{url}#token={TOKEN}"));
    b.until("document.querySelector('#live')?.textContent === 'live' && document.querySelectorAll('#hosts tr').length === 1 && document.title.startsWith('a')");
    assert_eq!(b.eval("location.hash"), "", "the token does not stay in the address");

    // What is there.
    b.until("document.querySelectorAll('#events > li').length === 5");
    let body = b.eval("document.body.innerText").as_str().unwrap().to_owned();
    for text in [
        "a in prod",
        "margin 180 µs of 600 µs",
        "contract broken by 20 µs",
        "silent-host",
        "In maintenance: db@a",
        "pid 4711",
        HOSTILE,
    ] {
        assert!(body.contains(text), "{text}\nis not in\n{body}");
    }
    assert!(!body.contains("h2 was late"), "timing is hidden");
    assert_eq!(b.eval("document.querySelectorAll('img').length"), 0);

    // As it happens.
    let began = Instant::now();
    w.happen(HistoryEvent { text: "it came live".into(), ..killed() });
    b.until("document.querySelector('#events > li').textContent.includes('it came live')");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    shown.hosts[0].state = "silent-host".into();
    w.publish(shown);
    b.until("document.querySelector('#hosts .badge').textContent === 'silent-host'");

    // By keyboard alone: the filter, then an event and what it rests on.
    b.eval("document.activeElement.blur()");
    b.key("/", 191);
    b.call("Input.insertText", json!({ "text": "silent h2" }));
    b.until("document.querySelectorAll('#events > li').length === 1");
    b.key("Tab", 9);
    b.until("document.activeElement.tagName === 'SUMMARY'");
    b.key("Enter", 13);
    b.until("document.querySelector('#events pre')?.textContent.includes('TO = HB')");
    b.picture("explained-light.png");
    b.eval("document.getElementById('filter').value = ''; document.getElementById('filter').dispatchEvent(new Event('input'))");
    b.eval(
        "document.getElementById('level').value = 'timing'; document.getElementById('level').dispatchEvent(new Event('change'))",
    );
    b.until("document.body.innerText.includes('h2 was late')");

    // Nothing overlaps or runs out of the window, in either colour scheme.
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")] {
        b.look(width, scheme);
        b.eval("for (const d of document.querySelectorAll('details')) d.open = true");
        b.until("[...document.querySelectorAll('details')].every(d => d.querySelector('pre') && d.querySelector('pre').textContent !== '…')");
        let outside = b.eval(
            "[...document.querySelectorAll('body *')].filter(e => !e.closest('pre, .skip') && e.getBoundingClientRect().right > innerWidth + 1)
                .map(e => e.tagName + ' ' + e.className + ' ' + e.textContent.slice(0, 40))",
        );
        assert_eq!(outside, json!([]), "{width} {scheme}");
        let over = b.eval(
            "[...document.querySelectorAll('summary, tr, .tools, header')].flatMap(e => { const c = [...e.children].map(c => [c, c.getBoundingClientRect()]); return c.flatMap(([x, a], i) => c.slice(i + 1)
                .filter(([y, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1).map(([y]) => x.textContent + ' over ' + y.textContent)); })
                .concat([...document.querySelectorAll('.number, .badge')].filter(e => e.parentElement.tagName !== 'HEADER' && e.scrollWidth > e.clientWidth + 1 && e.clientWidth).map(e => 'cut: ' + e.textContent))",
        );
        assert_eq!(over, json!([]), "{width} {scheme}");
        assert!(b.eval("document.documentElement.scrollWidth").as_u64().unwrap() <= u64::from(width), "{width} {scheme}");
        b.eval("for (const d of document.querySelectorAll('details')) d.open = false");
        let back = b.eval("getComputedStyle(document.body).backgroundColor").as_str().unwrap().to_owned();
        assert_eq!(back == "rgb(17, 20, 23)", scheme == "dark", "{back}");
        b.picture(&format!("page-{width}-{scheme}.png"));
    }

    // The agent goes away: the page says so.
    let requests = std::mem::take(&mut b.requests);
    assert!(requests.iter().all(|r| r.starts_with(&url)), "{requests:?}");
    assert_eq!((b.eval("violations"), b.eval("failures"), b.eval("document.title")), (json!([]), json!([]), json!("a – FiDe")));
    drop(w);
    b.until("document.getElementById('live').textContent.startsWith('not connected')");
}

#[test]
fn contrasts_are_readable_in_both_schemes() {
    let Some(mut b) = Browser::start() else { return };
    let w = World::new(open());
    w.publish(status());
    events(&w);
    for scheme in ["light", "dark"] {
        b.look(1280, scheme);
        b.open(&format!("http://{}/", w.at));
        b.until("document.querySelectorAll('#events > li').length === 5 && document.querySelectorAll('#hosts tr').length === 1");
        // WCAG 2.1, 1.4.3: 4.5 : 1.
        let weak = b.eval(
            "(() => {
                const rgb = c => c.match(/[\\d.]+/g).map(Number);
                const lum = c => { const [r, g, b] = rgb(c).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
                const back = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgb(c).length < 4 || rgb(c)[3] > 0) return c; } return 'rgb(255,255,255)'; };
                const texts = [...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && e.getClientRects().length && !['SCRIPT', 'STYLE', 'OPTION'].includes(e.tagName));
                return texts.map(e => { const [a, b] = [lum(getComputedStyle(e).color), lum(back(e))].sort((x, y) => y - x); return [(a + 0.05) / (b + 0.05), e.className + ' ' + e.textContent.slice(0, 30)]; }).filter(([ratio]) => ratio < 4.5);
            })()",
        );
        assert_eq!(weak, json!([]), "{scheme}");
    }
}
