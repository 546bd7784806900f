//! The way from the control thread to the loop.

use crate::core::{Command, Core};
use crate::metrics::Heart;
use crate::wake::ring;
use crossbeam_channel::{Sender, bounded};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The way to the loop. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct LoopHandle {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    /// Beats when the loop turns.
    pub heart: Arc<Heart>,
}

impl LoopHandle {
    /// A handle over a command channel and the eventfd that wakes the loop.
    #[must_use]
    pub fn new(commands: Sender<Command>, wake: OwnedFd, heart: Arc<Heart>) -> Self {
        Self { commands, wake: Arc::new(wake), heart }
    }

    /// Has the loop do something, without waiting.
    pub fn tell(&self, command: impl FnOnce(&mut Core) + Send + 'static) {
        if self.commands.send(Box::new(command)).is_ok() {
            ring(&self.wake);
        }
    }

    /// Has the loop do something, and waits for the answer. `None` when the loop has ended or is stuck.
    pub fn ask<R: Send + 'static>(&self, question: impl FnOnce(&mut Core) -> R + Send + 'static) -> Option<R> {
        let (answer, wait) = bounded(1);
        self.tell(move |core| {
            let _ = answer.send(question(core)); // nobody waits any more: a connection was closed
        });
        wait.recv_timeout(std::time::Duration::from_secs(5)).ok()
    }
}
