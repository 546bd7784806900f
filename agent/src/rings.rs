//! Event rings: who has which, and where they are made.
//!
//! The kernel makes a ring, and takes one out of use, within a grace period of some 10 ms. A worker does both; the loop gets finished rings and gives them
//! back when none of its tables names them any more. An index is free again when the kernel has let go of its ring.

use crate::shares::{Account, RINGS};
use crate::worker::{Found, Source, Whose, Worker};
use fide_wire::control::{ErrorCode, Refused};
use fide_xdp::{RingMaker, Subscriber};
use std::sync::Arc;

/// All rings of this agent.
pub struct Rings {
    maker: Option<Arc<RingMaker>>,
    /// Whose each is; nobody's are free.
    users: [Option<u32>; fide_xdp::layout::RINGS],
    account: Account,
    worker: Worker,
}

impl Rings {
    /// None in use. Without a maker the kernel has no rings, and events go by sockets.
    #[must_use]
    pub fn new(maker: Option<RingMaker>, worker: Worker) -> Self {
        let users = [None; fide_xdp::layout::RINGS];
        Self { maker: maker.map(Arc::new), users, account: Account::new(RINGS), worker }
    }

    /// Whether the kernel has rings.
    #[must_use]
    pub const fn has_kernels(&self) -> bool {
        self.maker.is_some()
    }

    /// Takes a free index for a user: the kernel's come from the bottom, sockets' from the top.
    ///
    /// # Errors
    /// [`ErrorCode::Full`].
    pub fn take(&mut self, uid: u32, socket: bool) -> Result<u32, Refused> {
        let full = |what| Refused { code: ErrorCode::Full, what };
        self.account.take(uid, 1).map_err(full)?;
        let mut indexes = 0..self.users.len();
        let is_free = |i: &usize| self.users[*i].is_none();
        let index = if socket { indexes.rfind(is_free) } else { indexes.find(is_free) };
        let Some(index) = index else {
            self.account.give_back(uid, 1);
            return Err(full("no event ring is free".into()));
        };
        self.users[index] = Some(uid);
        Ok(index as u32)
    }

    /// An index is free again.
    pub fn give_back(&mut self, index: u32) {
        if let Some(uid) = self.users.get_mut(index as usize).and_then(Option::take) {
            self.account.give_back(uid, 1);
        }
    }

    /// Has the ring of a taken index made; [`Rings::poll`] says when it is. `false`: it cannot be, now.
    #[must_use]
    pub fn make(&self, index: u32) -> bool {
        let (Some(maker), Some(uid)) = (self.maker.clone(), self.users[index as usize]) else { return false };
        self.worker.ask(Source::Asked(uid), Whose::Ring(index), move |_| Found::Made(maker.make(index)))
    }

    /// Has a ring taken out of use that nobody writes any more; its index is free when [`Rings::poll`] says so.
    pub fn unmake(&mut self, subscriber: Subscriber) {
        let index = subscriber.index;
        let (Some(maker), Some(uid)) = (self.maker.clone(), self.users[index as usize]) else { return };
        let work = move |_: &_| {
            maker.unmake(subscriber);
            Found::Unmade
        };
        if !self.worker.ask(Source::Asked(uid), Whose::Ring(index), work) {
            tracing::error!("event ring {index} is not used again: too many wait to be taken out of use");
        }
    }

    /// The next ring that was made, or the index of one that is out of use.
    pub fn poll(&mut self) -> Option<(u32, Found)> {
        let answer = self.worker.poll()?;
        let Whose::Ring(index) = answer.whose else { return None };
        if matches!(answer.found, Found::Unmade) {
            self.give_back(index);
        }
        Some((index, answer.found))
    }
}
