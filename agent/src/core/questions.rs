//! Questions leave here: to hosts that are doubted, to others that show whether an answer could
//! have come, and through each receive queue. Whom to ask, and by which way, the node says
//! ([`fide_proto::node::probing`]).

use super::Core;
use crate::clock::now_ns;
use crate::peers::Peer;
use crate::receive::Receiver;
use crate::shares::EventSource;
use crate::unwanted;
use fide_lane::{Lane, Prober, SendError};
use fide_proto::node::Node;
use fide_proto::node::probing::{Action, Host, STEERED_AT_ONCE, View};
use fide_wire::PATHS;
use fide_wire::verdict::{Cause, Grade};
use fide_xdp::layout::QUEUES;
use std::net::IpAddr;

/// What the receive table, the interfaces and the directory of hosts say.
pub(super) struct Mechanisms<'a> {
    peers: &'a [Option<Box<Peer>>],
    receiver: &'a Receiver,
    lane: &'a Lane,
    steers: bool,
}

impl View for Mechanisms<'_> {
    fn places(&self) -> usize {
        self.peers.len()
    }

    fn host(&self, place: usize) -> Option<Host> {
        let peer = self.peers.get(place)?.as_ref()?;
        Some(Host { node: peer.node, left: peer.left, condemned: peer.condemned, addresses: peer.addresses })
    }

    fn place(&self, node: u32) -> Option<usize> {
        self.peers.iter().position(|p| p.as_ref().is_some_and(|p| p.node == node))
    }

    fn arrived_ns(&self, place: usize, path: usize) -> u64 {
        self.receiver.peer(place).path[path].arrived_ns
    }

    fn queue(&self, place: usize, path: usize) -> u32 {
        self.receiver.peer(place).queue[path].into()
    }

    fn offers_barriers(&self) -> bool {
        self.receiver.offers_barriers()
    }

    fn steers(&self) -> bool {
        self.steers && self.receiver.offers_barriers()
    }

    fn noted(&self, path: usize) -> Vec<(u32, u32)> {
        self.receiver.steered(path)
    }

    fn source(&self, path: usize) -> Option<IpAddr> {
        self.lane.source(path as u8)
    }

    fn carrier(&self, path: usize) -> bool {
        self.lane.carrier(path as u8)
    }

    fn random(&mut self) -> Option<u64> {
        fide_lane::random().ok()
    }
}

impl Core {
    /// The node, and what it may look at when it decides whom to ask.
    pub(super) fn node_and_view(&mut self) -> (&mut Node, Mechanisms<'_>) {
        let steers = self.start.tcp_questions && self.prober.is_some();
        let view = Mechanisms { peers: &self.peers, receiver: &self.receiver, lane: &self.lane, steers };
        (&mut self.node, view)
    }

    /// Does what probing wants done. A question that does not leave is taken back.
    pub(super) fn put(&mut self, action: Action, now: u64) {
        let left = match action {
            Action::Echo { node, path } => self.ask(node, path, Prober::echo),
            Action::EchoAside { node, path } | Action::Try { node, path } => self.ask(node, path, Prober::echo_aside),
            Action::Knock { node, path } => self.ask(node, path, Prober::knock),
            Action::EchoWide { node, path } => self.ask_everybody(node, path),
            Action::Answerer { node, path, address } => self.asked(path, |prober| prober.echo_aside(node, path as u8, address)),
            Action::Steered { path, address, port, number } => {
                let source = self.lane.source(path as u8);
                source.is_some_and(|source| self.asked(path, |prober| prober.steer(path as u8, source, address, port, number)))
            }
            Action::Crossing { by, path, port, number } => {
                let ends = self.lane.source(by as u8).zip(self.lane.source(path as u8));
                let paths = (by as u8, path as u8);
                ends.is_some_and(|(from, to)| self.asked(path, |prober| prober.cross(paths, from, to, port, number)))
            }
            Action::Expect { path, number } => {
                self.receiver.expect_steered(path, number);
                true
            }
            Action::LookAtCarriers => {
                (0..PATHS).for_each(|path| self.look_at_carrier(path, now));
                true
            }
            Action::Diverted { node, path } => {
                self.tell_diverted(node, path, now);
                true
            }
        };
        if !left {
            self.node.not_asked(&action);
        }
    }

    /// Some of the TCP questions that wait.
    pub(super) fn send_steered(&mut self, now: u64) {
        for _ in 0..STEERED_AT_ONCE {
            let (node, view) = self.node_and_view();
            let Some(action) = node.poll_steered(&view) else { return };
            self.put(action, now);
        }
    }

    /// Asks those that are no hosts of the cluster, where that is due.
    pub(super) fn ask_wanted_answerers(&mut self, now: u64) {
        self.node.ask_wanted_answerers(now);
        self.act(None, now);
    }

    /// Asks some hosts that nobody doubts.
    pub(super) fn try_some(&mut self, now: u64) {
        let (node, view) = self.node_and_view();
        node.try_some(&view, now);
        self.act(None, now);
    }

    /// These may be asked, too, but for hosts of the cluster. They are asked now and then, so that
    /// it is known who does answer.
    pub fn set_answerers(&mut self, path: usize, addresses: &[IpAddr]) {
        let now = now_ns();
        let (node, view) = self.node_and_view();
        node.set_answerers(path, addresses, &view, now);
        self.act(None, now);
    }

    /// How many receive queues the interface of a path has. More than the receive program tells
    /// apart are none.
    pub fn set_queues(&mut self, path: usize, queues: usize) {
        self.node.probing_mut().set_queues(path, if queues <= QUEUES { queues } else { 0 });
    }

    /// Whether the question left.
    pub(super) fn ask(
        &mut self,
        node: u32,
        path: usize,
        how: impl FnOnce(&mut Prober, u32, u8, IpAddr) -> Result<(), SendError>,
    ) -> bool {
        let Some(slot) = self.slot(node) else { return false };
        let (Some(peer), Some(prober)) = (self.peers[slot].as_ref(), self.prober.as_mut()) else { return false };
        let Some(address) = peer.addresses[path] else { return false };
        let asked = how(prober, node, path as u8, address);
        if let Err(e) = &asked {
            tracing::debug!("probe of {} on path {path}: {e}", peer.name);
        }
        asked.is_ok()
    }

    /// The same of a question to an address.
    fn asked(&mut self, path: usize, how: impl FnOnce(&mut Prober) -> Result<(), SendError>) -> bool {
        let Some(prober) = self.prober.as_mut() else { return false };
        let asked = how(prober);
        if let Err(e) = &asked {
            tracing::debug!("a question on path {path}: {e}");
        }
        asked.is_ok()
    }

    /// Asks a host in a frame for everybody: it gets there wherever the switches think that the
    /// host is.
    fn ask_everybody(&mut self, node: u32, path: usize) -> bool {
        let address = self.slot(node).and_then(|slot| self.peers[slot].as_ref()?.addresses[path]);
        let ends = self.lane.source(path as u8).zip(address);
        ends.is_some_and(|(source, address)| self.asked(path, |prober| prober.echo_wide(node, path as u8, source, address)))
    }

    /// What is for another host goes astray, or its answers.
    pub(super) fn tell_diverted(&mut self, node: u32, path: usize, now: u64) {
        let (name, incarnation) = (self.node_name(node), self.node.detector().incarnation(node).unwrap_or_default());
        let text = format!(
            "what is for {name} on path {path}, or what it answers, goes astray: another station uses its MAC, or something filters its answers; while that lasts it is not taken for dead before its agent's timeout, unless it is silent on a path on which nothing goes astray"
        );
        let code = unwanted::CODE_DIVERTED;
        self.tell_text(Cause::ForeignTraffic, Grade::Inferred, (&name, incarnation), code, text, EventSource::OWN, now);
    }
}
