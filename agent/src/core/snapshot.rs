//! What the status page shows of the loop: rows of fixed size, a bounded number at a time, copied into room that the asker brings.

use super::Core;
use crate::clock::now_ns;
use crate::watchlist::Name;
use fide_proto::detector::{AppState, State, Stats};
use fide_proto::node::machine::copies::BY_UNICAST;
use fide_wire::control::{FenceStatus, PathStatus, UnwantedStatus};
use fide_wire::frame::table::Agent;
use fide_wire::packet::Refusal;
use fide_wire::verdict::{Cause, Contract, FencePromise};
use fide_wire::{PATHS, SLOTS};
use std::net::IpAddr;

/// What is copied of this host but for its processes.
#[derive(Clone, Debug)]
pub struct Head {
    /// Its name.
    pub name: String,
    /// Its wire id.
    pub node: u32,
    /// Its incarnation.
    pub incarnation: u32,
    /// How packets are received.
    pub receive: &'static str,
    /// How they are sent.
    pub send: fide_lane::PathMode,
    /// How exits are seen.
    pub exit_watch: &'static str,
    /// Its paths.
    pub paths: [PathRow; PATHS],
    /// The contract that it offers.
    pub contract: Contract,
    /// Packets that were refused, by reason.
    pub refused: [u64; Refusal::COUNT],
    /// What came that nobody wanted.
    pub unwanted: Vec<UnwantedStatus>,
    /// Heartbeats sent.
    pub heartbeats_sent: u64,
    /// Silences that were no verdicts.
    pub silences: Stats,
    /// Whether packets are signed with a secret.
    pub authenticated: bool,
    /// The fence, if there is one.
    pub fence: Option<FenceStatus>,
    /// Groups that are known here.
    pub groups: usize,
    /// Those of them that run here.
    pub running: usize,
}

/// What is copied of a path of this host.
#[derive(Clone, Debug, Default)]
pub struct PathRow {
    /// Its address, while it is up.
    pub source: Option<IpAddr>,
    /// Whether its interface has its carrier.
    pub up: bool,
    /// Responders that are no hosts of the cluster, and whether they answer.
    pub answerers: Vec<(IpAddr, bool)>,
}

/// What is copied of another host.
#[derive(Clone, Debug)]
pub struct HostRow {
    /// Its slot in the receive table.
    pub slot: usize,
    /// Its name.
    pub name: Name,
    /// Its wire id.
    pub node: u32,
    /// Its incarnation.
    pub incarnation: u32,
    /// What is judged of it, in a word.
    pub state: &'static str,
    /// After how long a silence is late.
    pub timeout_ns: u64,
    /// What comes of it.
    pub paths: [PathStatus; PATHS],
    /// Who hears it although this host does not.
    pub heard_by: Option<Name>,
    /// What it promised of its fence.
    pub fence: Option<FencePromise>,
    /// When it last reported whom it hears; 0: never.
    pub reported_ns: u64,
    /// Hosts that it does not hear, by path: a bit for each slot.
    pub unheard: [Slots; PATHS],
    /// Whether it does not hear this host, by path.
    pub is_deaf_to_us: [bool; PATHS],
    /// What its agent says of itself.
    pub agent: Option<AgentRow>,
}

/// What is copied of another host's agent.
#[derive(Clone, Copy, Debug)]
pub struct AgentRow {
    /// Its version.
    pub version: Name,
    /// What fails together with its host.
    pub zone: Name,
    /// Groups that it knows.
    pub groups: u16,
    /// Those of them that run there.
    pub running: u16,
}

impl AgentRow {
    fn new(agent: &Agent) -> Self {
        let (groups, running) = (agent.groups, agent.running);
        Self { version: (&*agent.version).into(), zone: (&*agent.zone).into(), groups, running }
    }
}

/// A bit for each slot of the receive table.
pub type Slots = [u64; SLOTS / 64];

/// What is copied of a process of another host.
#[derive(Clone, Copy, Debug)]
pub struct AppRow {
    /// Its number.
    pub app: u32,
    /// Its name.
    pub name: Name,
    /// How it is, in a word.
    pub state: &'static str,
    /// When this agent learned of its end.
    pub ended_ns: Option<u64>,
}

impl Core {
    /// Copies what is known of this host but for its processes.
    pub(super) fn status_head(&self) -> Head {
        let now = now_ns();
        let path = |path: usize| PathRow {
            source: self.lane.source(path as u8),
            up: self.lane.carrier(path as u8) && self.receiver.attached(path as u8),
            answerers: self.node.probing().answerers().of(path).iter().map(|a| (a.address, a.answers(now))).collect(),
        };
        let (groups, running) = self.groups.how_many();
        Head {
            name: self.start.name.clone(),
            node: self.start.node,
            incarnation: self.start.incarnation,
            receive: self.receiver.receive_name(),
            send: self.lane.mode(0),
            exit_watch: self.receiver.exit_name(),
            paths: std::array::from_fn(path),
            contract: self.own_contract(),
            refused: self.receiver.refused(),
            unwanted: self.unwanted_status(now),
            heartbeats_sent: self.sent.heartbeats,
            silences: self.silences(),
            authenticated: self.start.keys.is_secret(),
            fence: self.fence_status(),
            groups,
            running,
        }
    }

    /// Copies hosts from this slot on, as many as there is room for. Gives the slot to go on with.
    pub(super) fn status_hosts(&self, from: usize, rows: &mut Vec<HostRow>) -> Option<usize> {
        for slot in from..self.peers.len() {
            if rows.len() == rows.capacity() {
                return Some(slot);
            }
            rows.extend(self.host_row(slot));
        }
        None
    }

    fn host_row(&self, slot: usize) -> Option<HostRow> {
        let peer = self.peers.get(slot)?.as_ref()?;
        let now = now_ns();
        let row = self.receiver.peer(slot);
        let path_status = |path: usize| {
            let p = &row.path[path];
            let contract = self.node.path_contract(peer.node, path).unwrap_or_default();
            let age_ns = if p.arrived_ns == 0 { u64::MAX } else { now.saturating_sub(p.arrived_ns) };
            let window = self.node.path_window(peer.node, path).unwrap_or_default();
            PathStatus {
                up: age_ns <= contract.timeout_ns() && !peer.condemned,
                last_number: p.number,
                age_ns,
                lost: p.lost,
                contract,
                margin_ns: window.margin_ns,
                jitter_ns: [window.jitter.p50_ns, window.jitter.p99_ns, window.jitter.p999_ns, window.jitter.max_ns],
                by_unicast: p.arrived_ns != 0 && p.since_group() >= BY_UNICAST,
            }
        };
        let (mut unheard, mut is_deaf_to_us, mut reported_ns) = ([Slots::default(); PATHS], [false; PATHS], 0);
        if let Some((hosts, at_ns)) = self.node.unheard_by(peer.node) {
            reported_ns = at_ns;
            for (node, bits) in hosts {
                for path in (0..PATHS).filter(|path| bits & 1 << path != 0) {
                    match self.slot(node) {
                        Some(of) => unheard[path][of / 64] |= 1 << (of % 64),
                        None => is_deaf_to_us[path] |= node == self.start.node,
                    }
                }
            }
        }
        Some(HostRow {
            slot,
            name: peer.name.as_str().into(),
            node: peer.node,
            incarnation: peer.incarnation,
            state: match self.state_of(peer.node) {
                None => "unknown",
                Some(_) if self.node.detector().heard_by(peer.node).is_some() => Cause::Unreachable.name(),
                Some(state) => state.name(),
            },
            heard_by: self.node.detector().heard_by(peer.node).map(Name::from),
            timeout_ns: self.timeout_ns(peer.node).unwrap_or_default(),
            paths: std::array::from_fn(path_status),
            fence: self.promise_of(peer.node),
            reported_ns,
            unheard,
            is_deaf_to_us,
            agent: self.agent_row(peer.node).map(AgentRow::new),
        })
    }

    /// Copies the processes of a host from this one on, as many as there is room for. Gives the one to go on with.
    pub(super) fn status_apps(&self, slot: usize, node: u32, from: u32, rows: &mut Vec<AppRow>) -> Option<u32> {
        let peer = self.peers.get(slot)?.as_ref().filter(|p| p.node == node)?;
        let is_restarting = self.state_of(node) == Some(State::Restarting);
        for (app, a) in peer.apps.range(from..) {
            if rows.len() == rows.capacity() {
                return Some(*app);
            }
            let state = match a.ended {
                Some((cause, _)) => cause.name(),
                None if peer.condemned || peer.left || is_restarting => "unobserved",
                None if matches!(self.app_judged(node, *app), Some(AppState::Hung { .. })) => Cause::Hung.name(),
                None => "alive",
            };
            rows.push(AppRow { app: *app, name: a.name.as_str().into(), state, ended_ns: a.ended.map(|(_, at_ns)| at_ns) });
        }
        None
    }
}
