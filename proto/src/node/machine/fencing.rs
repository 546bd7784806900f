//! The fence of this host in its node: who confirms its heartbeats, and what a new incarnation is behind it.

use super::Node;
use crate::detector::{self, State};
use crate::node::fence::HostFence;
use fide_wire::verdict::{Confirmers, FenceMode};

impl Node {
    /// This host has a fence from now on.
    pub fn set_fence(&mut self, fence: HostFence) {
        self.fence = Some(fence);
        self.count_confirmers();
    }

    /// The fence, if there is one.
    #[must_use]
    pub const fn fence(&self) -> Option<&HostFence> {
        self.fence.as_ref()
    }

    /// The same, for heartbeats that left and gates that closed.
    pub const fn fence_mut(&mut self) -> Option<&mut HostFence> {
        self.fence.as_mut()
    }

    /// Hosts that former incarnations knew and that have not left: a restart does not shrink the cluster.
    pub fn expect_members(&mut self, nodes: impl IntoIterator<Item = u32>) {
        self.members.extend(nodes);
        self.count_confirmers();
    }

    /// None of them counts any more: what said so was an old state. Those that were heard do.
    pub fn expect_nobody(&mut self) {
        self.members.clear();
        self.count_confirmers();
    }

    /// The incarnation of a host that a former agent of this one has seen last: a host that asks is told.
    pub fn note_seen(&mut self, node: u32, incarnation: u32) {
        self.directory.note_seen(node, incarnation);
    }

    /// An operator recovers the fence, in this incarnation: begun for that ([`Node::begin_incarnation`]), or that of an
    /// agent that found the gates closed. Returns t_valid where they open now ([`HostFence::recover`]).
    pub fn recover_fence(&mut self, now_ns: u64) -> Option<u64> {
        let incarnation = self.detector.config().self_incarnation;
        self.let_former_verdicts_be();
        self.unbar_all();
        self.fence.as_mut()?.recover(incarnation, now_ns)
    }

    /// The gates open again, if enough others hear this host behind them: returns t_valid ([`HostFence::reopen`]).
    pub fn reopen_fence(&mut self, now_ns: u64) -> Option<u64> {
        let incarnation = self.detector.config().self_incarnation;
        let valid_ns = self.fence.as_mut()?.reopen(incarnation, now_ns)?;
        self.let_former_verdicts_be();
        Some(valid_ns)
    }

    /// What this host has said of others it has said as one that is over.
    fn let_former_verdicts_be(&mut self) {
        for known in self.hosts.values_mut() {
            known.former_verdict = known.condemned;
        }
    }

    /// Who must confirm this host's heartbeats. Suspicion shrinks no majority; among all it counts where the suspect is cut off, or watches nobody.
    pub(super) fn count_confirmers(&mut self) {
        let Some(fence) = self.fence.as_mut() else { return };
        let detector = &self.detector;
        let is_among_all = fence.mode() == FenceMode::Acknowledged(Confirmers::All);
        let confirms = |peer: &detector::PeerView<'_>| match peer.state {
            State::Left | State::Restarting => false,
            State::Silent if is_among_all => detector.promise(peer.node).is_none(),
            State::AgentLost if is_among_all => false,
            _ => true,
        };
        let not_heard = self.members.iter().copied().filter(|node| detector.state(*node).is_none());
        fence.members(detector.peers().filter(confirms).map(|peer| peer.node).chain(not_heard));
    }
}
