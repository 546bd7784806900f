//! The way from the control thread to the loop.

use crate::core::requests::{Answer, Request};
use crate::metrics::Heart;
use crate::shares::EventSource;
use crate::wake::ring;
use crossbeam_channel::{Sender, bounded};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A loop that has not answered after this long is stuck.
const STUCK: Duration = Duration::from_secs(5);

/// The way to the loop. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct LoopHandle {
    requests: Sender<Request>,
    wake: Arc<OwnedFd>,
    /// Beats when the loop turns.
    pub heart: Arc<Heart>,
}

impl LoopHandle {
    /// A handle over a channel of requests and the eventfd that wakes the loop.
    #[must_use]
    pub fn new(requests: Sender<Request>, wake: OwnedFd, heart: Arc<Heart>) -> Self {
        Self { requests, wake: Arc::new(wake), heart }
    }

    /// Has the loop do something, without waiting.
    pub fn tell(&self, request: Request) {
        if self.requests.send(request).is_ok() {
            ring(&self.wake);
        }
    }

    /// Has the loop enter something of this host in the history.
    pub fn note(&self, code: i32, text: impl Into<String>) {
        self.tell(Request::Note(EventSource::OWN, code, text.into()));
    }

    /// Has the loop do something, and waits for the answer. `None` when the loop has ended or is stuck.
    pub fn ask<R>(&self, request: impl FnOnce(Answer<R>) -> Request) -> Option<R> {
        let (answer, wait) = bounded(1);
        self.tell(request(Answer::through(answer)));
        wait.recv_timeout(STUCK).ok()
    }
}
