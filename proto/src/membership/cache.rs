//! Lease caches (U8; uKharon §6.3): hundreds of nodes ask one cache each, and only the caches read a majority of coordinators.
//!
//! A cache holds leases of Δ, by the same machine as anybody ([`Role::Cache`]); it says *yes* to a node while its own lease lasts. A node ([`Role::BehindCache`])
//! takes a lease of δ from before it asked. So somebody may act on M for Δ + δ after its successor was decided.
//!
//! # Where the paper's recipe breaks
//! "A modified version of Active […] differs from the one presented in Algorithm 2 in the `majority_check` calls, which are replaced with RPCs". Alg. 2 line 7 then
//! begins the wait for M' at `t`, *before* the RPC. But now it is not D' that bounds the leases on M, it is the caches' leases, which end Δ later: a node asks at D',
//! its question is under way (or is held by the cache) until the cache may say yes, at D' + Δ, and the node starts at `t + δ = D' + δ`,
//! while another holds M until D' + Δ + δ. So behind caches the wait begins when the first *yes* has **come**. The end of a lease still counts from before the question.
//!
//! For the same reason nodes must not mix: one that reads coordinators itself must wait for Δ + δ where there are caches ([`Membership::tenure_ns`]).
//!
//! [`Membership::tenure_ns`]: super::Membership::tenure_ns

use super::lease::{Action, Holder, Role, Timing};
use super::view::{Membership, MembershipId};
use crate::consensus::paxos::Word;
use crate::group::{MemberId, Refused};
use std::sync::Arc;

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cache {
    holder: Holder,
}

impl Cache {
    /// One that hears of `membership` as decided, now.
    #[must_use]
    pub fn new(timing: Timing, membership: Arc<Membership>, now_ns: u64) -> Self {
        Self { holder: Holder::new(timing, Role::Cache, membership, now_ns) }
    }

    /// A node asks whether `membership` is active. `now_ns` must have been read after the question came. A cache that is not sure says no.
    #[must_use]
    pub fn answer(&self, now_ns: u64, membership: MembershipId) -> bool {
        self.holder.active(now_ns, membership) == Some(true)
    }

    /// A decided membership, in its order.
    ///
    /// # Errors
    /// As [`Holder::handle_membership`].
    pub fn handle_membership(&mut self, now_ns: u64, membership: Arc<Membership>) -> Result<(), Refused> {
        self.holder.handle_membership(now_ns, membership)
    }

    /// A coordinator's word.
    ///
    /// # Errors
    /// As [`Holder::handle_read`].
    pub fn handle_read(&mut self, now_ns: u64, from: MemberId, check: u64, word: Word) -> Result<(), Refused> {
        self.holder.handle_read(now_ns, from, check, word)
    }

    /// When [`Cache::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.holder.poll_timeout()
    }

    /// Time to renew.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.holder.handle_timeout(now_ns);
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.holder.poll_action()
    }

    /// Its own lease.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        &self.holder
    }
}
