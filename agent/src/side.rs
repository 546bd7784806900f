//! What hangs on the control thread: hooks, metrics, and word of interfaces that come and go.

use crate::config::{Config, Live};
use crate::control::LoopHandle;
use crate::status::About;
use fide_wire::control::HistoryEvent;

/// All of it.
pub struct Side {}

impl Side {
    /// Starts what is configured. What cannot be started is told, and the agent goes on without.
    #[must_use]
    pub fn new(_config: &Config, _core: &LoopHandle, _about: &About) -> Self {
        Self {}
    }

    /// The descriptor that says that interfaces changed, or -1.
    #[must_use]
    pub fn links_fd(&self) -> i32 {
        -1
    }

    /// Interfaces that changed.
    pub fn changed_interfaces(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// An event, for the hooks and the counters.
    pub fn happened(&mut self, _event: &HistoryEvent) {}

    /// A new configuration.
    pub fn reload(&mut self, _new: &Config, _live: &Live, _core: &LoopHandle, _about: &About) {}

    /// Ends what was started.
    pub fn shutdown(&mut self) {}
}
