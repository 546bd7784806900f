//! The end of a test that hangs: it says what it waited for, and leaves its agents' logs. A wait of
//! its own ends earlier, with its reason.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// No test of a lab takes as long, on a busy machine either. The test runner's own limit is longer
/// (.config/nextest.toml); scripts/test says which of the two is meant.
fn limit() -> Duration {
    let told = std::env::var("FIDE_TEST_LIMIT_S").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(told.unwrap_or(280))
}

/// What is waited for now, and since when.
static WAITS: Mutex<Vec<(String, Instant)>> = Mutex::new(Vec::new());

/// Directories of hosts, with what they are called among the logs that are kept.
static HOSTS: Mutex<Vec<(PathBuf, String)>> = Mutex::new(Vec::new());

/// A wait, until it is dropped.
pub struct Waits(String);

/// Notes what a test waits for.
pub fn waits(what: &str) -> Waits {
    WAITS.lock().unwrap_or_else(PoisonError::into_inner).push((what.into(), Instant::now()));
    Waits(what.into())
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut waits = WAITS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = waits.iter().rposition(|(what, _)| *what == self.0) {
            waits.remove(at);
        }
    }
}

/// The name of this test, where the runner says it (one process for each test).
fn test() -> Option<String> {
    std::env::var("NEXTEST_TEST_NAME").ok()
}

/// Where logs of this test are kept, if it fails.
pub fn kept() -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("FIDE_TEST_LOGS")?).join(test()?.replace("::", ".")))
}

/// From now on the logs of this host are kept if the test fails or hangs.
pub fn has_logs(directory: PathBuf, host: u16) {
    HOSTS.lock().unwrap_or_else(PoisonError::into_inner).push((directory, format!("h{host}")));
}

/// Copies logs and histories to where the test runner wants them (scripts/test), while the labs are
/// there.
pub fn keep_logs() {
    let Some(kept) = kept() else { return };
    for (from, host) in HOSTS.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|(from, _)| from.is_dir()) {
        let to = kept.join(host);
        // A log less is no reason to fail in another way.
        let _ = fs::create_dir_all(&to);
        for name in ["log", "history.jsonl", "fide.toml"] {
            let _ = fs::copy(from.join(name), to.join(name));
        }
        let _ = fs::copy(from.join("redis/log"), to.join("redis.log"));
    }
    eprintln!("---- whole logs: {}", kept.display());
}

/// Begins to count, once in a process that has one test; several tests in one process end by their own waits only.
pub fn start() {
    static STARTED: Once = Once::new();
    if test().is_none() {
        return;
    }
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            let limit = limit();
            // Sleep: the limit of the whole test.
            std::thread::sleep(limit);
            let waits = WAITS.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("the test hangs: ended after {limit:?}");
            for (what, since) in waits.iter() {
                eprintln!("  it has waited {:?} for: {what}", since.elapsed());
            }
            if waits.is_empty() {
                eprintln!("  it waits for nothing that it has said");
            }
            keep_logs();
            // Labs and what is registered with them go with the process.
            std::process::abort();
        });
    });
}
