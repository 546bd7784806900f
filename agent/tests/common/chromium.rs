//! A real browser (Debian's chromium), driven by its DevTools protocol over a pipe. Tests of several packages share it.

use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A browser with one page, and what it asked for.
pub struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    id: u64,
    session: String,
    /// Addresses it asked for.
    pub requests: Vec<String>,
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
    /// Starts one, to try `what`; `None`, with a word why, where there is none.
    pub fn start(what: &str) -> Option<Self> {
        let program = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].into_iter().find(|p| Path::new(p).exists());
        let Some(program) = program else {
            println!("SKIPPED: chromium is not installed (package chromium), so {what} was not tried");
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

    pub fn call(&mut self, method: &str, params: Value) -> Value {
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

    pub fn eval(&mut self, script: &str) -> Value {
        let given = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", given);
        assert!(result["exceptionDetails"].is_null(), "{script}: {result}");
        result["result"]["value"].clone()
    }

    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// Waits until this is true there.
    pub fn until(&mut self, condition: &str) {
        let began = Instant::now();
        while self.eval(&format!("!!({condition})")) != true {
            let body = if began.elapsed() > Duration::from_secs(30) { Some(self.eval("document.body.innerText")) } else { None };
            assert!(body.is_none(), "never: {condition}\n{body:?}");
            // Sleep: interval of the poll.
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn look(&mut self, width: u32, scheme: &str) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 }),
        );
        self.call("Emulation.setEmulatedMedia", json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] }));
    }

    pub fn key(&mut self, key: &str, code: u32) {
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
    pub fn picture(&mut self, name: &str) {
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
