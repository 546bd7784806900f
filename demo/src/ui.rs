//! What is said while something runs: results on standard output, progress on standard error, colours on a terminal only.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How to talk, and whether to stop.
#[derive(Clone, Debug)]
pub struct Ui {
    /// JSON lines instead of text.
    pub json: bool,
    /// Colours on standard output.
    pub colour: bool,
    /// Set by Ctrl-C.
    interrupted: Arc<AtomicBool>,
    progress: bool,
}

/// Somebody pressed Ctrl-C.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted; the lab was taken down")
    }
}

impl std::error::Error for Interrupted {}

/// A colour.
#[derive(Clone, Copy, Debug)]
pub enum Paint {
    /// Bold.
    Bold,
    /// Faint.
    Dim,
    /// Green.
    Green,
    /// Red.
    Red,
    /// Cyan.
    Cyan,
}

impl Ui {
    /// `interrupted` is set by whoever listens to signals.
    #[must_use]
    pub fn new(json: bool, colour: bool, interrupted: Arc<AtomicBool>) -> Self {
        Ui { json, colour, interrupted, progress: io::stderr().is_terminal() && !json }
    }

    /// Listens to SIGINT, SIGTERM and SIGHUP itself. A second signal ends the process at once (its lab goes with it).
    ///
    /// # Errors
    /// When signals cannot be listened to.
    pub fn listening(json: bool, colour: bool) -> io::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self::new(json, colour, flag))
    }

    /// A line of results.
    pub fn line(&self, text: impl AsRef<str>) {
        self.clear();
        // A closed pipe: nobody wants to know any more.
        let _ = writeln!(io::stdout(), "{}", text.as_ref());
    }

    /// A line for people only.
    pub fn say(&self, text: impl AsRef<str>) {
        if !self.json {
            self.line(text);
        }
    }

    /// What is being done now: on a terminal one line that is overwritten; else nothing.
    pub fn progress(&self, text: impl AsRef<str>) {
        if self.progress {
            let _ = write!(io::stderr(), "\r\x1b[K· {}", text.as_ref());
        }
    }

    /// Takes the progress line away.
    pub fn clear(&self) {
        if self.progress {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Something that the reader should know, on standard error.
    pub fn warn(&self, text: impl AsRef<str>) {
        self.clear();
        let _ = writeln!(io::stderr(), "fide: {}", text.as_ref());
    }

    /// The text in a colour, if there are colours.
    #[must_use]
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Bold => "1",
            Paint::Dim => "2",
            Paint::Green => "32",
            Paint::Red => "31",
            Paint::Cyan => "36",
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    /// Waits, unless interrupted.
    ///
    /// # Errors
    /// [`Interrupted`], if so.
    pub fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }

    /// How something ended: whatever fails once it was interrupted failed for that. The processes in the terminal's foreground and those of
    /// the lab end as well, and what is half done has nothing to show.
    ///
    /// # Errors
    /// [`Interrupted`] if so, else what the outcome says.
    pub fn or_interrupted<T>(&self, outcome: anyhow::Result<T>) -> anyhow::Result<T> {
        outcome.map_err(|error| self.check().err().map_or(error, anyhow::Error::from))
    }

    /// Whether to stop.
    ///
    /// # Errors
    /// [`Interrupted`], if so.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.interrupted.load(Ordering::Acquire) { Err(Interrupted) } else { Ok(()) }
    }

    /// Waits until it holds.
    ///
    /// # Errors
    /// When it does not within 90 s, or somebody interrupts.
    pub fn until(&self, what: &str, mut holds: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        const PATIENCE: Duration = Duration::from_secs(90);
        let since = Instant::now();
        while !holds()? {
            self.check()?;
            anyhow::ensure!(since.elapsed() < PATIENCE, "{what}: not within {} s", PATIENCE.as_secs());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_once_it_was_interrupted_is_interrupted() {
        let flag = Arc::new(AtomicBool::new(false));
        let ui = Ui::new(true, false, Arc::clone(&flag));
        let failed = || Err::<(), _>(anyhow::anyhow!("no answer from redis").context("scene 3 could not be played"));
        assert_eq!(ui.or_interrupted(failed()).unwrap_err().to_string(), "scene 3 could not be played");
        flag.store(true, Ordering::Release);
        let error = ui.or_interrupted(failed()).unwrap_err();
        assert!(error.is::<Interrupted>() && format!("{error:#}") == "interrupted; the lab was taken down", "{error:#}");
        assert_eq!(ui.or_interrupted(Ok(7)).unwrap(), 7, "it was done already");
    }
}
