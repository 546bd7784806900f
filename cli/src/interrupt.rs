//! Ctrl-C: what was begun is undone first. A second one ends the process at once.

use crate::failure::{Failure, Kind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether someone wants this to end.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on SIGINT, SIGTERM and SIGHUP are noted instead of ending the process.
    pub fn install() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let second = Arc::clone(&flag);
            signal_hook::flag::register_conditional_shutdown(signal, i32::from(Kind::Interrupted as u8), second)
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .map_err(|e| Failure::failed(format!("cannot listen to signals: {e}")))?;
        }
        Ok(Interrupt(flag))
    }

    /// Whether it came.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Fails if it came.
    pub fn check(&self) -> Result<(), Failure> {
        if self.requested() { Err(Failure::new(Kind::Interrupted, "interrupted")) } else { Ok(()) }
    }
}
