//! Two hosts made of network namespaces, joined by two veth pairs, gone when dropped.
//!
//! `e0` and `e1` are the two paths; host A has 10.77.P.1 and fd77:P::1 on path P, host B .2 and ::2.
#![allow(dead_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The two hosts.
pub struct Net {
    /// Name of the namespace that is host A.
    pub a: String,
    /// Name of the namespace that is host B.
    pub b: String,
}

/// Runs `ip` with these words; its complaint on failure.
pub fn ip(words: &str) -> Result<(), String> {
    let out = Command::new("ip").args(words.split_whitespace()).output().map_err(|e| format!("cannot run ip: {e}"))?;
    if out.status.success() { Ok(()) } else { Err(format!("ip {words}: {}", String::from_utf8_lossy(&out.stderr).trim())) }
}

impl Net {
    /// Makes the network, or says why this test cannot run here and returns `None`.
    pub fn make(test: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let stem = format!("fidelane{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let net = Self { a: format!("{stem}a"), b: format!("{stem}b") };
        // SAFETY: no arguments, cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            println!("SKIPPED {test}: needs root to make network namespaces");
            return None;
        }
        for name in [&net.a, &net.b] {
            fide_lab::Leftover::Namespace(name.clone()).goes_with_caller().unwrap();
        }
        if let Err(e) = ip(&format!("netns add {}", net.a)).and_then(|()| ip(&format!("netns add {}", net.b))) {
            println!("SKIPPED {test}: no network namespaces here: {e}");
            return None;
        }
        for host in [&net.a, &net.b] {
            ip(&format!("-n {host} link set lo up")).unwrap();
        }
        net.connect(0);
        net.connect(1);
        net.settle(0);
        net.settle(1);
        Some(net)
    }

    /// (Re)makes the cable of path `p`.
    pub fn connect(&self, p: u8) {
        let Self { a, b } = self;
        ip(&format!("link add e{p} netns {a} type veth peer name e{p} netns {b}")).unwrap();
        for (host, n) in [(a, 1), (b, 2)] {
            ip(&format!("-n {host} link set e{p} addrgenmode none")).unwrap();
            ip(&format!("-n {host} addr add 10.77.{p}.{n}/24 dev e{p}")).unwrap();
            let _ = ip(&format!("-n {host} addr add fd77:{p}::{n}/64 dev e{p} nodad"));
            ip(&format!("-n {host} link set e{p} up")).unwrap();
        }
    }

    /// Waits until both ends of path `p` know that they are connected: the kernel sees to that up to a second later, and
    /// routes no IPv6 multicast before.
    pub fn settle(&self, p: u8) {
        for host in [&self.a, &self.b] {
            let ready = || {
                let ask = |words: &[&str]| Command::new("ip").args(["-n", host]).args(words).output().unwrap().stdout;
                let dev = format!("e{p}");
                let up = String::from_utf8_lossy(&ask(&["link", "show", &dev])).contains("state UP");
                let ipv6 = std::path::Path::new("/proc/net/if_inet6").exists();
                up && (!ipv6 || !ask(&["-6", "route", "show", "table", "local", "ff00::/8", "dev", &dev]).is_empty())
            };
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while !ready() {
                assert!(std::time::Instant::now() < deadline, "{host} e{p} does not come up");
                // Sleep: interval of the poll.
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }

    /// Pulls the cable of path `p` out together with both NICs.
    pub fn remove(&self, p: u8) {
        ip(&format!("-n {} link del e{p}", self.a)).unwrap();
    }

    /// Runs `f` on a thread of its own that lives in the namespace.
    pub fn within<T: Send>(host: &str, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|s| {
            s.spawn(|| {
                let ns = File::open(format!("/run/netns/{host}")).unwrap();
                // SAFETY: a valid descriptor of a network namespace; concerns this thread only.
                assert_eq!(unsafe { libc::setns(ns.as_raw_fd(), libc::CLONE_NEWNET) }, 0, "setns");
                f()
            })
            .join()
            .unwrap_or_else(|e| std::panic::resume_unwind(e))
        })
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for host in [&self.a, &self.b] {
            let _ = ip(&format!("netns del {host}"));
        }
    }
}
