//! The end of a test that hangs: it says what it waited for. A wait of its own ends earlier, with its reason.

use std::path::PathBuf;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// No test of a lab takes as long, on a busy machine either. The test runner's own limit is longer (.config/nextest.toml).
const LIMIT: Duration = Duration::from_secs(280);

/// What is waited for now, and since when.
static WAITS: Mutex<Vec<(String, Instant)>> = Mutex::new(Vec::new());

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

/// Begins to count, once in a process that has one test; several tests in one process end by their own waits only.
pub fn start() {
    static STARTED: Once = Once::new();
    if test().is_none() {
        return;
    }
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            // Sleep: the limit of the whole test.
            std::thread::sleep(LIMIT);
            let waits = WAITS.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("the test hangs: ended after {LIMIT:?}");
            for (what, since) in waits.iter() {
                eprintln!("  it has waited {:?} for: {what}", since.elapsed());
            }
            if waits.is_empty() {
                eprintln!("  it waits for nothing that it has said");
            }
            // Labs and what is registered with them go with the process.
            std::process::abort();
        });
    });
}
