//! What operators and the configuration say of groups: as `agent/src/core/groups.rs` carries it
//! out.

use super::cluster::Spec;
use super::shell::shell;
use crate::detection::host::{Agent, CONTRACT};
use crate::detection::world::World;
use fide_proto::consensus::Kind;
use fide_proto::consensus::policy::Policy;
use fide_proto::detector::State;
use fide_proto::group::MemberId;
use fide_proto::services::groups::message::{Plan, Timing};
use fide_proto::services::groups::state::Binding;
use fide_proto::services::groups::{Difference, Expected, Resume};
use std::collections::BTreeSet;

/// `fide group`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    Create,
    Join,
    Leave,
    Switch(Kind),
}

impl World {
    /// An operator's order, if the agent is there to take it. Whether it was taken.
    pub(super) fn order(&mut self, host: usize, group: usize, order: Order) -> bool {
        let now = self.now;
        let asleep = self.hosts[host].frozen_until.max(self.hosts[host].stuck_until) > now;
        if asleep {
            return false;
        }
        let Some(mut agent) = self.hosts[host].agent.take() else { return false };
        let spec = self.cluster().specs[group].clone();
        let name = &spec.name;
        let outcome = match order {
            Order::Create => match self.members(host, &agent, &spec) {
                Ok(members) => {
                    let plan = self.group_plan(host, &spec, members);
                    shell(&mut agent).groups.create(now, plan, false).map_err(|error| format!("{error:?}"))
                }
                Err(why) => Err(why),
            },
            Order::Join => shell(&mut agent).groups.join(now, name).map_err(|error| format!("{error:?}")),
            Order::Leave => shell(&mut agent).groups.leave(now, name).map_err(|error| format!("{error:?}")),
            Order::Switch(kind) => shell(&mut agent).groups.switch(now, name, kind).map_err(|error| format!("{error:?}")),
        };
        self.note(host, || format!("is ordered: {order:?} {name}: {outcome:?}"));
        self.hosts[host].agent = Some(agent);
        self.wake(host, now + 1);
        outcome.is_ok()
    }

    /// Later groups have higher numbers, whoever begins them.
    fn group_plan(&self, host: usize, spec: &Spec, members: Vec<Binding>) -> Plan {
        let generation = self.now * 16 + host as u64;
        Plan {
            name: spec.name.clone(),
            generation,
            engine: spec.engine,
            policy: spec.policy,
            members,
            durable: spec.durable,
            lineage: 0,
            timing: Timing::of_contract(CONTRACT.period_ns, CONTRACT.timeout_ns() - CONTRACT.period_ns),
        }
    }

    /// The members of a new group: all hosts must be heard, and have a fence if the policy says so.
    fn members(&self, host: usize, agent: &Agent, spec: &Spec) -> Result<Vec<Binding>, String> {
        let mut members = Vec::new();
        for (at, of) in spec.hosts.iter().enumerate() {
            let node = self.hosts[*of].node;
            let detector = agent.node.detector();
            let slot = self.hosts[host].table.get(&node).filter(|slot| !slot.condemned);
            let is_here = detector.state(node).is_some_and(|state| !matches!(state, State::Left | State::Restarting));
            let incarnation = match slot {
                _ if *of == host => self.hosts[host].incarnation,
                Some(slot) if is_here => slot.incarnation,
                _ => return Err(format!("host-{of} is not heard now")),
            };
            let own = || agent.node.fence().is_some_and(|f| f.closed().is_none() && f.promise().is_some());
            let has_fence = if *of == host { own() } else { detector.promise(node).is_some() };
            if spec.policy == Policy::Fence && !has_fence {
                return Err(format!("host-{of} has no fence"));
            }
            members.push(Binding { member: MemberId(at as u16 + 1), node, incarnation });
        }
        Ok(members)
    }

    /// What the configuration says of groups, and what a former agent was a member of.
    pub(super) fn join_former(&mut self, host: usize, agent: &mut Agent) {
        let now = self.now;
        let nodes: Vec<u32> = self.hosts.iter().map(|host| host.node).collect();
        let cluster = self.groups.as_ref().expect("groups");
        let of = |spec: &Spec| Expected {
            name: spec.name.clone(),
            engine: Some(spec.engine),
            policy: Some(spec.policy),
            nodes: spec.hosts.iter().map(|host| nodes[*host]).collect(),
            durable: spec.durable,
        };
        let expected = cluster.specs.iter().filter(|spec| spec.is_expected && spec.hosts.contains(&host)).map(of);
        let groups = &mut shell(agent).groups;
        for (name, saved) in &cluster.disks[host] {
            groups.handle_saved(name, saved.clone());
        }
        groups.expect(now, expected);
        for name in &cluster.kept[host] {
            groups.rejoin(now, name).expect("it is not there yet");
        }
    }

    /// All hosts of a group of the configuration are there, none runs it, and this one begins it.
    pub(super) fn begin_planned(&mut self, host: usize, agent: &mut Agent, name: &str) {
        let now = self.now;
        let Some(spec) = self.cluster().specs.iter().find(|spec| spec.name == *name).cloned() else { return };
        let begun = self.members(host, agent, &spec).and_then(|members| {
            let plan = self.group_plan(host, &spec, members);
            shell(agent).groups.create(now, plan, false).map_err(|error| format!("{error:?}"))
        });
        self.note(host, || format!("begins {name}: {begun:?}"));
        if let Err(why) = begun {
            shell(agent).groups.begin_failed(now, name, why);
        }
    }

    /// All members of a group have stopped, and this host goes on with its log.
    pub(super) fn resume(&mut self, host: usize, agent: &mut Agent, name: &str, nodes: &BTreeSet<u32>) {
        let now = self.now;
        let Some(spec) = self.cluster().specs.iter().find(|spec| spec.name == *name).cloned() else { return };
        let own = self.hosts[host].node;
        let is_one = |of: &usize| nodes.contains(&self.hosts[*of].node) && self.hosts[*of].node != own;
        let others: Vec<usize> = (0..self.hosts.len()).filter(is_one).collect();
        let of = Spec { hosts: std::iter::once(host).chain(others).collect(), ..spec };
        let resumed = self.members(host, agent, &of).and_then(|members| {
            let Plan { generation, members, timing, .. } = self.group_plan(host, &of, members);
            let to = Resume { generation, members, timing, anyway: false };
            shell(agent).groups.resume(now, name, to).map_err(|error| format!("{error:?}"))
        });
        self.note(host, || format!("goes on with {name}: {resumed:?}"));
        match resumed {
            Ok(()) => self.cluster().totals.resumed += 1,
            Err(why) => shell(agent).groups.resume_failed(name, &why),
        }
    }

    /// Entries that this host's applications were told are not in the log of the others.
    pub(super) fn differs(&mut self, host: usize, agent: &Agent, generation: u64, what: &Difference) {
        let status = agent.shell.as_ref().and_then(|shell| shell.groups.status().find(|status| status.generation == generation));
        let Some(status) = status else { return };
        let group = self.cluster().specs.iter().position(|spec| spec.name == status.name);
        let (index, count) = (what.index, what.count);
        self.note(host, || format!("{count} entries of {} that were told, from {index} on, are not there any more", status.name));
        if let Some(group) = group {
            self.cluster().judge.differs((group, what.before.1), host, (index, count));
        }
    }

    /// The names of the groups that the next agent joins again.
    pub(super) fn keep_names(&mut self, host: usize, agent: &mut Agent) {
        let cluster = self.groups.as_mut().expect("groups");
        let shell = shell(agent);
        for status in shell.groups.status() {
            if status.stage == fide_proto::services::groups::Stage::Running {
                cluster.known[host].insert(status.name.clone());
            }
        }
        // One of the configuration that never ran here has nothing to come back to.
        let known = &cluster.known[host];
        let is_planned =
            |name: &str| cluster.specs.iter().any(|spec| spec.is_expected && spec.name == name && spec.hosts.contains(&host));
        let keeps = |name: &&str| known.contains(*name) || !is_planned(name);
        let names: BTreeSet<String> = shell.groups.kept().filter(keeps).map(str::to_owned).collect();
        cluster.kept[host] = names;
    }
}
