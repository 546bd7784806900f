//! Fences: the node has the rule, the host's kernel the gates, and an operator opens them again.

use super::Neglect;
use super::cluster::Happening;
use crate::detection::host::{Agent, Host, MS};
use crate::detection::world::{Event, World};
use crate::gates::Gates;
use fide_proto::fence::{self, Paths};
use fide_proto::node::fence::{HostFence, Step};
use fide_wire::PATHS;
use fide_wire::frame::table::{self, Content, HOST_ROW};
use fide_wire::verdict::{Confirmers, FenceMode, FencedWhy};

/// What hosts with fences promise: longer than it takes to call an agent lost, so that a stopped
/// one does not shut all others.
const FENCE_NS: u64 = 40 * MS;

/// Whether this incarnation of a host has a fence that is closed by now.
pub(super) fn is_cut_off(host: &Host, agent: &Agent, node: u32, incarnation: u32, now: u64) -> bool {
    let Some(slot) = host.table.get(&node) else { return false };
    if slot.incarnation != incarnation {
        return slot.incarnation > incarnation;
    }
    let Some(promise) = agent.node.detector().promise(node) else { return false };
    let is_counted = promise.mode == FenceMode::Acknowledged(Confirmers::Majority);
    if is_counted && !agent.node.is_fenced_by_now(node, now) {
        return false;
    }
    let last_ns = slot.rows.iter().map(|row| row.last_arrival_ns).max().unwrap_or(now);
    let closed_ns = last_ns + promise.timeout_ns + promise.timeout_ns / 1000 + MS;
    slot.condemned && now >= closed_ns
}

impl World {
    /// A new agent has a fence; if it finds its gates closed, it begins fenced.
    pub(crate) fn begin_fence(&mut self, host: usize, agent: &mut Agent) {
        let (now, known) = (self.now, self.hosts.iter().map(|h| h.node).collect::<Vec<_>>());
        let timeout_ns = self.fence_ns(host).unwrap_or(FENCE_NS);
        let h = &mut self.hosts[host];
        let config = fence::Config {
            timeout_ns,
            margin_ns: MS,
            drift_ppm: 0,
            mode: FenceMode::Acknowledged(Confirmers::Majority),
            paths: Paths::Both,
            configured: [true; PATHS],
        };
        h.gates.look(now);
        let mut fence = HostFence::new(config, true, h.incarnation);
        match h.gates {
            Gates::Closed => fence.close(FencedWhy::FormerLife, now),
            Gates::Open { valid_ns } => fence.inherit(valid_ns, now),
            Gates::NotArmed => {}
        }
        let is_closed = fence.closed().is_some();
        let own = h.node;
        agent.node.set_fence(fence);
        agent.node.expect_members(known.into_iter().filter(|node| *node != own));
        if is_closed {
            self.fenced(host, agent);
        } else if agent.node.fence().is_some_and(|fence| fence.promise().is_some()) {
            self.put_promise(agent);
        }
    }

    /// What the fence promises stands in the host's row.
    fn put_promise(&mut self, agent: &mut Agent) {
        let row = agent.node.directory().owner().get(HOST_ROW).map(|row| row.content.clone());
        let Some(Content::Host(known)) = row else { return };
        let fence = agent.node.fence().and_then(HostFence::promise);
        agent.version += 1;
        let content = Content::Host(table::Host { fence, ..known });
        agent.node.put(HOST_ROW, agent.version, content, self.now).expect("its own row");
        agent.node.announce();
    }

    /// A host that is fenced does not call itself alive.
    pub(crate) fn check_gates(&mut self, host: usize, agent: &mut Agent) {
        let now = self.now;
        self.hosts[host].gates.look(now);
        let Some(fence) = agent.node.fence_mut() else { return };
        if self.hosts[host].gates == Gates::Closed && fence.closed().is_none() {
            fence.close(FencedWhy::RanOut, now);
            self.fenced(host, agent);
        }
    }

    /// A heartbeat of this number was handed over.
    pub(crate) fn fence_beat(&mut self, host: usize, agent: &mut Agent, number: u64, read_ns: u64) {
        let now = self.now;
        let Some(fence) = agent.node.fence_mut() else { return };
        fence.sent(number, read_ns, number, [true; PATHS]);
        let step = fence.alone(now);
        self.move_gates(host, agent, step);
    }

    pub(crate) fn move_gates(&mut self, host: usize, agent: &mut Agent, step: Step) {
        match step {
            Step::Nothing => {}
            Step::MayReopen => self.reopen(host, agent),
            Step::Close(_) => {
                self.hosts[host].gates = Gates::Closed;
                self.fenced(host, agent);
            }
            Step::Extend { extension, first } => {
                let is_neglected = self.neglects() == Some(Neglect::Gates);
                let valid_ns = if is_neglected { u64::MAX } else { extension.valid_ns };
                if !self.hosts[host].gates.extend(extension.known_ns, valid_ns) {
                    return self.check_gates(host, agent);
                }
                if first {
                    self.put_promise(agent);
                }
            }
        }
    }

    /// Nothing leaves any more: its members stop. An operator opens the fence some time later.
    fn fenced(&mut self, host: usize, agent: &mut Agent) {
        if self.neglects() == Some(Neglect::Gates) {
            self.hosts[host].gates = Gates::NotArmed;
            return;
        }
        self.note(host, || "is fenced".into());
        if let Some(shell) = &mut agent.shell {
            shell.groups.stop(self.now);
        }
        let Some(cluster) = &mut self.groups else { return };
        cluster.totals.fenced += 1;
        let (at, boot) = (self.now + 5 * MS + self.rng.below(80 * MS), self.hosts[host].boot);
        self.at(at, Event::Groups(Happening::Recover { host, boot }));
    }

    /// What others confirm leaves by the gates, or past them.
    pub(super) fn choose_way(&mut self, host: usize, agent: &Agent) {
        let is_past = agent.node.fence().is_some_and(|fence| fence.passes(self.now));
        self.hosts[host].is_past_gates = is_past;
    }

    /// Others hear this host behind its closed gates.
    fn reopen(&mut self, host: usize, agent: &mut Agent) {
        let Some(fence) = agent.node.fence() else { return };
        if fence.may_reopen_until(self.now).is_some() && !fence.is_recovering() {
            let own = self.hosts[host].incarnation;
            self.begin_anew(host, agent, own);
        }
        if let Some(valid_ns) = agent.node.reopen_fence(self.now) {
            self.hosts[host].gates = Gates::Open { valid_ns };
            self.put_promise(agent);
            self.note(host, || "opens again".into());
        }
        self.choose_way(host, agent);
    }

    /// The operator opens it.
    pub(crate) fn recover(&mut self, host: usize, boot: u32) {
        if self.hosts[host].boot != boot || !self.hosts[host].up {
            return;
        }
        let asleep = self.hosts[host].frozen_until.max(self.hosts[host].stuck_until) > self.now;
        if asleep || self.hosts[host].agent.is_none() {
            if self.groups.is_none() {
                return;
            }
            let at = self.now + 4 * MS;
            return self.at(at, Event::Groups(Happening::Recover { host, boot }));
        }
        let Some(mut agent) = self.hosts[host].agent.take() else { return };
        if agent.node.fence().is_some_and(|fence| fence.closed().is_some()) {
            let own = self.hosts[host].incarnation;
            self.begin_anew(host, &mut agent, own);
            if let Some(valid_ns) = agent.node.recover_fence(self.now) {
                self.hosts[host].gates = Gates::Open { valid_ns };
            }
            self.note(host, || "is opened".into());
        }
        self.hosts[host].agent = Some(agent);
        self.wake(host, self.now + 1);
    }

    /// A clean stop takes the fence away, if it is open.
    pub(super) fn take_fence_away(&mut self, host: usize, agent: &Agent) {
        if agent.node.fence().is_some_and(|fence| fence.closed().is_none()) {
            self.hosts[host].gates = Gates::NotArmed;
        }
    }
}
