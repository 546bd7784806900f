//! Something to look at while a long command works: on standard error, on a terminal only.

use crate::context::Context;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const FRAMES: [&str; 4] = ["⠋", "⠙", "⠸", "⠴"];

#[derive(Debug, Default)]
struct Shown {
    text: String,
    over: bool,
}

/// A line that moves. It goes away when dropped.
#[derive(Debug)]
pub struct Progress {
    shared: Arc<(Mutex<Shown>, Condvar)>,
    ticker: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins. Nothing is shown off a terminal, with `--json`, or in the first moment.
    pub fn start(context: &Context, text: impl Into<String>) -> Self {
        let shared = Arc::new((Mutex::new(Shown { text: text.into(), over: false }), Condvar::new()));
        let visible = io::stderr().is_terminal() && !context.json;
        let ticker = visible.then(|| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || tick(&shared))
        });
        Progress { shared, ticker }
    }

    /// Says what is being done now.
    pub fn set(&self, text: impl Into<String>) {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).text = text.into();
    }
}

/// `▕████░░░░▏ 12/24`
pub fn bar(done: usize, total: usize) -> String {
    const WIDTH: usize = 16;
    let filled = (done * WIDTH).checked_div(total).unwrap_or(WIDTH).min(WIDTH);
    format!("▕{}{}▏ {done}/{total}", "█".repeat(filled), "░".repeat(WIDTH - filled))
}

fn tick(shared: &(Mutex<Shown>, Condvar)) {
    let begun = Instant::now();
    let mut drawn = false;
    let mut guard = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
    for frame in FRAMES.iter().cycle() {
        let step = Duration::from_millis(120);
        guard = shared.1.wait_timeout(guard, step).unwrap_or_else(PoisonError::into_inner).0;
        if guard.over {
            break;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let _ = write!(io::stderr(), "\r\x1b[K{frame} {} ({seconds:.1} s)", guard.text);
        drawn = true;
    }
    if drawn {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        self.shared.1.notify_all();
        if let Some(ticker) = self.ticker.take() {
            // It only draws.
            let _ = ticker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_bar_fills_and_never_overflows() {
        assert_eq!(super::bar(0, 4), "▕░░░░░░░░░░░░░░░░▏ 0/4");
        assert_eq!(super::bar(2, 4), "▕████████░░░░░░░░▏ 2/4");
        assert_eq!(super::bar(9, 4), "▕████████████████▏ 9/4");
        assert_eq!(super::bar(0, 0), "▕████████████████▏ 0/0");
    }
}
