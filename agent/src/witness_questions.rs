//! What the loop asks the witness (`witness.rs`), and the way there.

use crate::wake::{eventfd, ring};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who is asked, and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// A program (absolute) and its arguments; the host's name is one more.
    pub words: Vec<String>,
    /// From the question to the answer.
    pub timeout: Duration,
}

impl Command {
    /// The time limit, ns.
    #[must_use]
    pub fn timeout_ns(&self) -> u64 {
        u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// An incarnation of a host.
pub type Life = (u32, u32);

/// A question about a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Which host, and which incarnation of its agent.
    pub about: Life,
    /// The host's name.
    pub host: String,
    /// Its addresses, as far as this host knows them, in the order of the paths.
    pub addresses: Vec<IpAddr>,
    /// Who asks.
    pub observer: String,
}

/// What the thread is to do.
pub enum Order {
    /// Ask this, as of then.
    Ask(Box<Question>, Instant),
    /// This is the witness from now on.
    Set(Option<Command>),
    /// End.
    Stop,
}

/// The loop's way to the thread. Nothing waits.
#[derive(Clone)]
pub struct Asker {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
}

impl Asker {
    /// The way, where orders come out of it, and the eventfd that is rung for each.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn new() -> std::io::Result<(Self, Receiver<Order>, Arc<OwnedFd>)> {
        let (orders, ordered) = unbounded();
        let wake = Arc::new(eventfd()?);
        Ok((Self { orders, wake: wake.clone() }, ordered, wake))
    }

    /// Has the witness asked; the loop is told of the answer.
    pub fn ask(&self, question: Question) {
        self.order(Order::Ask(Box::new(question), Instant::now()));
    }

    /// This is the witness from now on. What is asked already keeps its command.
    pub fn set(&self, command: Option<Command>) {
        self.order(Order::Set(command));
    }

    /// Hands an order over.
    pub fn order(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            ring(&self.wake);
        }
    }
}
