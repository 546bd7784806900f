//! The simulation: hosts that run groups, what befalls them, and how it ends.

use super::clients::Client;
use super::faults::{self, Act};
use super::judge::{self, Judge};
use super::orders::Order;
use super::shell::{self, Point, Shell, shell};
use super::witness::Witness;
use super::{Neglect, Profile, Setting, Totals};
use crate::detection::faults::{Fault, bad_path};
use crate::detection::host::{Agent, MS};
use crate::detection::world::{Event, Trouble, World};
use crate::invariants::Violation;
use crate::rng::Rng;
use crate::time::US;
use fide_proto::consensus::policy::{Answer, Policy};
use fide_proto::consensus::{Halted, Kind};
use fide_proto::services::groups::durable::{Saved, Write};
use fide_proto::services::groups::large::{Fetched, LargeRef};
use fide_proto::services::groups::resume::{self, Kept, Stays};
use fide_proto::services::groups::state::Binding;
use fide_proto::services::groups::{Groups, Stage, Status};
use fide_wire::PATHS;
use std::collections::{BTreeMap, BTreeSet};

/// After the faults everything runs again and decides within so long: members join again after at
/// most some seconds, and a group that is being begun waits ten for its coordinator.
const HEAL_NS: u64 = 25_000 * MS;
const LOOK_NS: u64 = 10 * MS;
/// Memberships of a group that are remembered.
const MEMBERSHIPS: usize = 4;

/// What happens to groups.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happening {
    /// A client's turn.
    Client(usize),
    Act(Act),
    /// An operator opens a fence.
    Recover {
        host: usize,
        boot: u32,
    },
    /// An operator begins a group, if it was not begun.
    Setup {
        host: usize,
        group: usize,
    },
    /// What waits for the disk of a host is there, if its agent is the one that wanted it.
    Written {
        host: usize,
        agent: u64,
    },
    /// A state has come to an agent, or does not.
    Fetched {
        host: usize,
        agent: u64,
        generation: u64,
        what: LargeRef,
        from: usize,
    },
    /// The witness looks at what an agent asked about, and answers.
    WitnessLooks {
        host: usize,
        agent: u64,
        about: (u32, u32),
    },
    WitnessAnswers {
        host: usize,
        agent: u64,
        about: (u32, u32),
        answer: Answer,
    },
    /// All faults are over.
    Heal,
    /// Does everything run again?
    Look,
}

/// A group as it is meant to be.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub name: String,
    pub engine: Kind,
    pub policy: Policy,
    pub hosts: Vec<usize>,
    /// The configuration has it.
    pub is_expected: bool,
    pub durable: bool,
}

/// What all hosts' groups have in common.
pub(crate) struct Cluster {
    setting: Setting,
    pub(super) neglect: Option<Neglect>,
    verbose: bool,
    pub specs: Vec<Spec>,
    pub has_fences: bool,
    pub(super) witness: Witness,
    pub(super) clients: Vec<Client>,
    pub(super) judge: Judge,
    pub totals: Totals,
    /// Agents of each host so far.
    pub agents: Vec<u64>,
    /// On each host's disk: the groups of its agent.
    pub kept: Vec<BTreeSet<String>>,
    /// And the logs of its durable groups; what is on its way there.
    pub disks: Vec<BTreeMap<String, Saved>>,
    pub(super) writes: Vec<Vec<Write>>,
    /// What each host's agent has seen run.
    pub known: Vec<BTreeSet<String>>,
    /// Where each host's agent is stopped, for how long, and when it is back if it is killed there.
    stops: Vec<Option<(Point, u64, Option<u64>)>>,
    /// Which generation of each group runs on each host, and why its member there halted last.
    running: Vec<BTreeMap<usize, u64>>,
    halted: Vec<BTreeMap<usize, Option<Halted>>>,
    generations: BTreeSet<(usize, u64)>,
    /// The last members of each group, as hosts knew them.
    memberships: BTreeMap<(usize, u64), Vec<Vec<Binding>>>,
    /// When each host took itself for isolated.
    isolated_ns: Vec<u64>,
    are_all_back: bool,
    healed_ns: u64,
    is_done: bool,
}

/// See [`super::run`].
pub(super) fn run(seed: u64, setting: Setting, neglect: Option<Neglect>, verbose: bool) -> Result<Totals, Violation> {
    let mut world = begin(seed, setting, neglect, verbose);
    while let Some((at, event)) = world.queue.pop() {
        world.now = world.now.max(at);
        world.handle(event);
        let cluster = world.cluster();
        if let Some(violation) = cluster.judge.violation() {
            return Err(violation);
        }
        if cluster.is_done {
            break;
        }
    }
    let (packets, ended_ns) = (world.packets, world.now);
    let cluster = world.cluster();
    let (entries, diverged) = (cluster.judge.all_entries(), cluster.judge.diverged());
    Ok(Totals { packets, ended_ns, entries, diverged, ..cluster.totals.clone() })
}

fn begin(seed: u64, setting: Setting, neglect: Option<Neglect>, verbose: bool) -> World {
    let mut rng = Rng::new(seed ^ (setting.profile as u64 + 100) << 56);
    let n = setting.hosts.unwrap_or(*rng.pick(&[2, 3, 3, 3, 3, 4, 4, 5]));
    let mut witness = Witness::new(seed);
    let specs: Vec<Spec> = (0..1 + rng.below(2) as usize).map(|at| spec(&mut rng, &mut witness, setting, at, n)).collect();
    let promises = specs.iter().map(|spec| judge::promises(setting, spec.engine, spec.policy)).collect();
    let plan = faults::plan(&mut rng, setting.profile, n, specs.len());
    let has_fences = specs.iter().any(|spec| spec.policy == Policy::Fence) || rng.chance(20);
    let bad_path = bad_path(&mut rng);
    if verbose {
        println!("{n} hosts, bad path {bad_path}, fences {has_fences}, {specs:#?}, {plan:#?}");
    }
    let clients = clients(&mut rng, &specs, n);
    let healed_ns = plan.iter().map(|(at, act)| at + act.ends_after()).max().unwrap_or(0).max(400 * MS);
    let cluster = Cluster {
        setting,
        neglect,
        verbose,
        has_fences,
        witness,
        clients,
        judge: Judge::new(promises),
        totals: Totals::default(),
        agents: vec![0; n],
        kept: vec![BTreeSet::new(); n],
        disks: vec![BTreeMap::new(); n],
        writes: vec![Vec::new(); n],
        known: vec![BTreeSet::new(); n],
        stops: vec![None; n],
        running: vec![BTreeMap::new(); n],
        halted: vec![BTreeMap::new(); n],
        generations: BTreeSet::new(),
        memberships: BTreeMap::new(),
        isolated_ns: vec![0; n],
        are_all_back: rng.chance(60),
        healed_ns,
        is_done: false,
        specs,
    };
    let mut world = World::bare(rng, n, bad_path, None, false);
    world.groups = Some(Box::new(cluster));
    world.plan(plan);
    world
}

fn spec(rng: &mut Rng, witness: &mut Witness, setting: Setting, at: usize, n: usize) -> Spec {
    let engine = setting.engine.unwrap_or(*rng.pick(&[Kind::Huc, Kind::Huc, Kind::Hsuc, Kind::Lowi, Kind::Raft]));
    let policy = setting.policy.unwrap_or(*rng.pick(&[Policy::TrustContract, Policy::Fence]));
    let is_open = setting.policy.is_none() && policy == Policy::Fence;
    let policy = if is_open && witness.takes_over() { Policy::Witness } else { policy };
    let policy = if policy.suits(engine) { policy } else { Policy::TrustContract };
    let mut hosts: Vec<usize> = (0..n).collect();
    while hosts.len() > 2 && rng.chance(20) {
        hosts.remove(rng.below(hosts.len() as u64) as usize);
    }
    let durable = setting.profile == Profile::Outages;
    Spec { name: format!("g{at}"), engine, policy, hosts, is_expected: rng.chance(50) || durable, durable }
}

/// One on each host, which reads all, and one that goes from host to host.
fn clients(rng: &mut Rng, specs: &[Spec], n: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for group in 0..specs.len() {
        for home in (0..n).map(Some).chain([None]) {
            let id = 1 + clients.len() as u64;
            clients.push(Client::new(group, home, id, 20 + rng.below(150) as u32));
        }
    }
    clients
}

impl Act {
    /// When what it does is over.
    fn ends_after(&self) -> u64 {
        match self {
            Act::Fault(
                Fault::CutPath { ns, .. }
                | Fault::LosePath { ns, .. }
                | Fault::CutHost { ns, .. }
                | Fault::SeverHost { ns, .. }
                | Fault::FreezeHost { ns, .. }
                | Fault::StickAgent { ns, .. },
            )
            | Act::StopAt { ns, .. }
            | Act::Split { ns, .. }
            | Act::Trouble { ns, .. } => *ns,
            Act::KillAll { within } => within + 60 * MS,
            Act::KillAt { back_after, .. } | Act::Fault(Fault::LeaveAgent { back_after, .. }) => *back_after,
            Act::Fault(Fault::KillAgent { back_after, .. } | Fault::CrashHost { back_after, .. }) => {
                back_after.unwrap_or_default()
            }
            Act::Fault(_) | Act::Order { .. } => 0,
        }
    }
}

impl World {
    pub(super) fn cluster(&mut self) -> &mut Cluster {
        self.groups.as_mut().expect("a simulation with groups")
    }

    pub(super) fn neglects(&self) -> Option<Neglect> {
        self.groups.as_ref().and_then(|cluster| cluster.neglect)
    }

    pub(super) fn note(&self, host: usize, what: impl FnOnce() -> String) {
        if self.groups.as_ref().is_some_and(|cluster| cluster.verbose) {
            println!("{:>9} µs  host-{host} {}", self.now / US, what());
        }
    }

    pub(super) fn happens(&mut self, at: u64, happening: Happening) {
        self.at(at, Event::Groups(happening));
    }

    fn plan(&mut self, plan: Vec<(u64, Act)>) {
        for host in 0..self.hosts.len() {
            self.boot(host, 0);
        }
        for (at, act) in plan {
            self.happens(at, Happening::Act(act));
        }
        for client in 0..self.cluster().clients.len() {
            let at = 20 * MS + self.rng.below(20 * MS);
            self.happens(at, Happening::Client(client));
        }
        for group in 0..self.cluster().specs.len() {
            let spec = self.cluster().specs[group].clone();
            let (at, several) = (20 * MS + self.rng.below(60 * MS), self.rng.chance(40));
            let by = if several { spec.hosts.len() } else { 1 };
            for host in spec.hosts.into_iter().take(by).filter(|_| !spec.is_expected) {
                let at = at + self.rng.below(2 * MS);
                self.happens(at, Happening::Setup { host, group });
            }
        }
        let healed_ns = self.cluster().healed_ns;
        self.happens(healed_ns, Happening::Heal);
    }

    pub(crate) fn groups_happen(&mut self, happening: Happening) {
        match happening {
            Happening::Client(at) => self.client_turn(at),
            Happening::Act(act) => self.act_out(act),
            Happening::Recover { host, boot } => self.recover(host, boot),
            Happening::Setup { host, group } => {
                let was_begun = self.cluster().generations.iter().any(|(of, _)| *of == group);
                if !was_begun {
                    self.order(host, group, Order::Create);
                    let at = self.now + 100 * MS + self.rng.below(500 * MS);
                    self.happens(at, Happening::Setup { host, group });
                }
            }
            Happening::Written { host, agent } => self.written(host, agent),
            Happening::Fetched { host, agent, generation, what, from } => self.fetched(host, agent, generation, what, from),
            Happening::WitnessLooks { host, agent, about } => self.witness_looks(host, agent, about),
            Happening::WitnessAnswers { host, agent, about, answer } => self.witness_answers(host, agent, about, answer),
            Happening::Heal => self.heal(),
            Happening::Look => self.look(),
        }
    }

    /// A host sees nobody any more.
    pub(super) fn is_isolated(&mut self, host: usize) {
        let now = self.now;
        self.cluster().isolated_ns[host] = now;
    }

    fn act_out(&mut self, act: Act) {
        self.note(0, || format!("and all others: {act:?}"));
        match act {
            Act::Fault(fault) => self.fault(fault),
            Act::StopAt { host, at, ns } => self.cluster().stops[host] = Some((at, ns, None)),
            Act::KillAt { host, at, back_after } => self.cluster().stops[host] = Some((at, 0, Some(back_after))),
            Act::Trouble { doubled, late, lost, ns } => {
                self.trouble = Trouble { until: self.now + ns, doubled, lost, late };
            }
            Act::Split { hosts, ns } => {
                self.apart = (self.now + ns, (0..self.hosts.len()).map(|host| hosts >> host & 1 == 1).collect());
            }
            Act::KillAll { within } => {
                for host in 0..self.hosts.len() {
                    let kill = Fault::KillAgent { host, back_after: Some(self.rng.below(60 * MS)) };
                    let at = self.now + self.rng.below(within);
                    self.at(at, Event::Fault(kill));
                }
            }
            Act::Order { host, group, order } => _ = self.order(host, group, order),
        }
    }

    /// Until when an agent is stopped that comes to this point.
    pub(super) fn stands_still(&mut self, host: usize, at: Point) -> Option<u64> {
        let now = self.now;
        let (_, ns, killed) = self.cluster().stops[host].take_if(|(point, ..)| *point == at)?;
        self.note(host, || format!("is stopped before {at:?} for {} µs, killed: {killed:?}", ns / US));
        if let Some(back_after) = killed {
            let kill = Fault::KillAgent { host, back_after: Some(back_after) };
            self.at(now + 10 * US, Event::Fault(kill));
        }
        let until = now + ns.max(20 * US);
        self.hosts[host].stuck_until = self.hosts[host].stuck_until.max(until);
        Some(until)
    }

    // ---- agents ---------------------------------------------------------------------------------

    /// A new agent begins, with what the disk has.
    pub(crate) fn begin_groups(&mut self, host: usize) {
        let Some(cluster) = &mut self.groups else { return };
        cluster.agents[host] += 1;
        cluster.known[host] = cluster.kept[host].clone();
        cluster.stops[host] = None;
        // What its former agent had not written, nobody writes.
        cluster.writes[host].clear();
        let has_fences = cluster.has_fences;
        let h = &mut self.hosts[host];
        let groups = Groups::new(shell::config(h.node, h.incarnation));
        let Some(mut agent) = h.agent.take() else { return };
        agent.shell = Some(Box::new(Shell::new(groups, cluster.neglect == Some(Neglect::Gates))));
        let incarnation = h.incarnation;
        self.note(host, || format!("its agent begins, incarnation {incarnation}"));
        if has_fences {
            self.begin_fence(host, &mut agent);
        }
        self.join_former(host, &mut agent);
        self.hosts[host].agent = Some(agent);
    }

    /// Its agent is gone.
    pub(crate) fn groups_end(&mut self, host: usize) {
        self.note(host, || "its agent ends".into());
        if let Some(cluster) = &mut self.groups {
            cluster.running[host].clear();
            cluster.halted[host].clear();
        }
    }

    /// A durable group's write: what waits together is on disk together, some time later.
    pub(super) fn write_to_disk(&mut self, host: usize, agent: &mut Agent, write: Write) {
        let at = self.now + 100 * US + self.rng.below(4 * MS);
        let cluster = self.groups.as_mut().expect("groups");
        if cluster.neglect == Some(Neglect::Written) {
            shell(agent).groups.handle_written(&write.name, write.generation, write.index);
        }
        cluster.writes[host].push(write);
        let number = cluster.agents[host];
        if cluster.writes[host].len() == 1 {
            self.happens(at, Happening::Written { host, agent: number });
        }
    }

    fn written(&mut self, host: usize, number: u64) {
        let Some(mut agent) = self.hosts[host].agent.take() else { return };
        let cluster = self.groups.as_mut().expect("groups");
        if cluster.agents[host] == number {
            for write in std::mem::take(&mut cluster.writes[host]) {
                let disk = cluster.disks[host].entry(write.name.clone()).or_default();
                disk.write(write.what);
                shell(&mut agent).groups.handle_written(&write.name, write.generation, write.index);
            }
        }
        self.hosts[host].agent = Some(agent);
        let now = self.now;
        self.wake(host, now + 1);
    }

    /// By a connection of its own, which takes its time.
    pub(super) fn fetch_state(&mut self, host: usize, generation: u64, what: LargeRef, from: u32) {
        let most_ns = if self.rng.chance(10) { 2_000 * MS } else { 20 * MS };
        let at = self.now + 200 * US + self.rng.below(most_ns);
        let from = self.hosts.iter().position(|host| host.node == from).expect("a host");
        let agent = self.cluster().agents[host];
        self.happens(at, Happening::Fetched { host, agent, generation, what, from });
    }

    fn fetched(&mut self, host: usize, number: u64, generation: u64, what: LargeRef, from: usize) {
        if let Some(until) = self.frozen(host).max(self.frozen(from)) {
            self.happens(until, Happening::Fetched { host, agent: number, generation, what, from });
            return;
        }
        let is_reached = (0..PATHS).any(|path| !self.hosts[host].cut[path] && !self.hosts[from].cut[path]);
        let giver = self.hosts[from].agent.as_ref().and_then(|agent| agent.shell.as_ref()).filter(|_| is_reached);
        let fetched = match giver.map(|shell| shell.groups.large(what.id)) {
            None => Fetched::Failed,
            Some(None) => Fetched::Missing,
            Some(Some(large)) => Fetched::Whole(large.clone()),
        };
        let Some(mut agent) = self.hosts[host].agent.take() else { return };
        let now = self.now;
        if self.cluster().agents[host] == number {
            shell(&mut agent).groups.handle_fetched(now, generation, what.id, fetched);
        }
        self.hosts[host].agent = Some(agent);
        self.wake(host, now + 1);
    }

    /// How the groups of a host stand has changed.
    pub(super) fn observe(&mut self, host: usize, agent: &mut Agent) {
        let statuses: Vec<Status> = shell(agent).groups.status().collect();
        let cluster = self.groups.as_mut().expect("groups");
        for status in statuses {
            let Some(group) = cluster.specs.iter().position(|spec| spec.name == status.name) else { continue };
            let place = (group, status.generation);
            let runs = status.stage == Stage::Running && status.me.is_some();
            if runs {
                let members: Vec<Binding> = status.members.iter().map(|(binding, _)| *binding).collect();
                members.iter().for_each(|binding| cluster.judge.believes(host, place, *binding));
                let known = cluster.memberships.entry(place).or_default();
                if !known.contains(&members) {
                    known.truncate(MEMBERSHIPS - 1);
                    known.insert(0, members);
                }
                if cluster.running[host].insert(group, status.generation) != Some(status.generation) {
                    let is_new = cluster.generations.insert(place);
                    let count = cluster.generations.iter().filter(|(of, _)| *of == group).count();
                    cluster.totals.anew += u64::from(is_new && count > 1);
                    cluster.totals.joined += u64::from(!status.is_begun);
                }
            } else {
                cluster.running[host].remove(&group);
            }
            let before = cluster.halted[host].insert(group, status.halted).flatten();
            if let Some(why) = status.halted.filter(|why| before != Some(*why) && *why != Halted::Left) {
                cluster.totals.halted += 1;
                // When all others fall silent at once, that is this host's own sight at first.
                let was_isolated = cluster.isolated_ns[host] > 0 && matches!(why, Halted::Unconfirmed(_));
                // LOWI's contract is that of both paths.
                let missed = status.engine == Kind::Lowi && matches!(why, Halted::NetworkFault | Halted::MissingBroadcast);
                let is_refused = status.policy == Policy::Witness && matches!(why, Halted::Unconfirmed(_));
                let excused = why == Halted::Expelled || was_isolated || missed || is_refused;
                let is_let = !cluster.setting.profile.keeps_contract() || excused;
                let what = || format!("host-{host}, group {group} of {}: {why:?}", status.generation);
                cluster.judge.must("safe-exit", is_let, what);
            }
            // Who stands still behind closed gates has only not heard of it.
            let (now, hosts) = (self.now, &self.hosts);
            let is_cut_off = |of: usize| {
                let is_asleep = of != host && hosts[of].frozen_until.max(hosts[of].stuck_until) > now;
                is_asleep && !hosts[of].gates.pass(now)
            };
            let running = cluster.running.iter().enumerate().filter(|(of, _)| !is_cut_off(*of));
            let generations = running.filter_map(|(_, on)| on.get(&group).copied()).collect();
            cluster.judge.run_together(group, &generations);
            if cluster.verbose {
                let Status { stage, me, leader, index, halted, members, pending, engine, .. } = &status;
                let members: Vec<_> = members.iter().map(|(b, crashed)| (b.member.0, b.incarnation, *crashed)).collect();
                let of = status.generation;
                println!(
                    "{:>9} µs  host-{host} {} of {of}: {} as {me:?}, led by {leader:?}, {index} + {pending}, {engine}, {members:?} {halted:?}",
                    self.now / US,
                    status.name,
                    stage.name()
                );
            }
        }
    }

    // ---- the end --------------------------------------------------------------------------------

    /// The faults are over. Everybody proposes once more.
    fn heal(&mut self) {
        let now = self.now;
        self.note(0, || "and all others: the faults are over".into());
        (self.trouble, self.apart.0) = (Trouble::default(), 0);
        self.cluster().stops.fill(None);
        self.cluster().witness.heal();
        if self.cluster().are_all_back {
            for host in 0..self.hosts.len() {
                let boot = self.hosts[host].boot;
                let back = if self.hosts[host].up { Event::StartAgent { host, boot } } else { Event::Boot { host } };
                let at = now + self.rng.below(20 * MS);
                self.at(at, back);
            }
        }
        for client in &mut self.cluster().clients {
            client.left = 0;
            client.propose(64);
        }
        self.happens(now + LOOK_NS, Happening::Look);
    }

    fn look(&mut self) {
        let late = self.now > self.cluster().healed_ns + HEAL_NS;
        let groups = self.cluster().specs.len();
        let waits: Vec<(usize, String)> = (0..groups).filter_map(|g| self.waits_for(g).map(|what| (g, what))).collect();
        // What nothing brings back need not be waited for.
        let is_hopeless =
            self.now > self.cluster().healed_ns + 3_000 * MS && waits.iter().all(|(group, _)| self.excuse(*group).is_some());
        if !waits.is_empty() && !late && !is_hopeless {
            let at = self.now + LOOK_NS;
            return self.happens(at, Happening::Look);
        }
        for (group, what) in waits {
            match self.excuse(group) {
                Some(why) => *self.cluster().totals.excused.entry(why).or_default() += 1,
                None => self.cluster().judge.must("termination", false, || format!("group {group}: {what}")),
            }
        }
        let now = self.now;
        let cluster = self.cluster();
        cluster.totals.healed_ns = if late || is_hopeless { 0 } else { now - cluster.healed_ns };
        cluster.is_done = true;
    }

    fn status(&self, host: usize, name: &str) -> Option<Status> {
        let shell = self.hosts[host].agent.as_ref()?.shell.as_ref()?;
        shell.groups.status_named(name)
    }

    /// Whether a host is to run this group.
    fn wants(&self, host: usize, group: usize) -> bool {
        let Some(cluster) = &self.groups else { return false };
        let spec = &cluster.specs[group];
        let is_planned = spec.is_expected && spec.hosts.contains(&host);
        let has_left = self.status(host, &spec.name).is_some_and(|status| status.stage == Stage::Left);
        self.hosts[host].agent.is_some() && !has_left && (is_planned || cluster.kept[host].contains(&spec.name))
    }

    /// What is missing until a group runs everywhere and everybody has read everything.
    fn waits_for(&self, group: usize) -> Option<String> {
        let cluster = self.groups.as_ref()?;
        let name = &cluster.specs[group].name;
        let hosts: Vec<usize> = (0..self.hosts.len()).filter(|host| self.wants(*host, group)).collect();
        let (mut generation, mut lineage) = (None, 0);
        for host in &hosts {
            let status = self.status(*host, name);
            let Some(status) = status.filter(|status| status.stage == Stage::Running && status.me.is_some()) else {
                return Some(format!("host-{host} does not run it"));
            };
            if *generation.get_or_insert(status.generation) != status.generation {
                return Some(format!("host-{host} runs another one"));
            }
            lineage = status.lineage;
        }
        generation?;
        let place = (group, lineage);
        let entries = cluster.judge.entries(place);
        for (at, client) in cluster.clients.iter().enumerate().filter(|(_, client)| client.group == group) {
            let can = client.home.is_none_or(|home| hosts.contains(&home));
            let has_read = client.generation == place.1 && client.index == entries;
            if can && !(client.is_served() && (has_read || cluster.judge.has_diverged(place))) {
                let what = client.what_is_open();
                let stands = hosts.iter().filter_map(|host| self.status(*host, name)).map(|s| (s.me, s.index, s.pending));
                return Some(format!("client {at} of {entries} entries: {what}; {:?}", stands.collect::<Vec<_>>()));
            }
        }
        None
    }

    /// Why a group need not run again, if so.
    fn excuse(&self, group: usize) -> Option<&'static str> {
        let cluster = self.groups.as_ref()?;
        let spec = &cluster.specs[group];
        // Those that are dead are members until an operator has them forgotten.
        let alive = self.hosts.iter().filter(|host| host.agent.is_some()).count();
        if cluster.has_fences && alive * 2 <= self.hosts.len() {
            return Some("no majority is left that confirms the fences");
        }
        let statuses: Vec<Status> = (0..self.hosts.len()).filter_map(|host| self.status(host, &spec.name)).collect();
        let running: Vec<&Status> = statuses.iter().filter(|status| status.stage == Stage::Running).collect();
        if running.iter().any(|status| cluster.judge.has_diverged((group, status.lineage))) {
            return Some("nothing was promised, and members contradict each other");
        }
        let are_there = spec.hosts.iter().all(|host| self.wants(*host, group));
        if running.is_empty() && !(spec.is_expected && are_there) {
            return Some("nobody is left");
        }
        let kept: BTreeMap<u32, Kept> = self
            .hosts
            .iter()
            .filter_map(|host| {
                let shell = host.agent.as_ref()?.shell.as_ref()?;
                Some((host.node, shell.groups.kept_of(&spec.name)))
            })
            .collect();
        if running.is_empty() && matches!(resume::rule(&kept), Err(Stays::Missing(_) | Stays::Differ(..))) {
            return Some("a host that may have more of the log has lost it, so that somebody decides");
        }
        // Raft changes its voters after the members of the log, and needs a majority of those
        // before.
        let lives = |place: (usize, u64), binding: &Binding| {
            (0..self.hosts.len()).filter(|host| self.hosts[*host].node == binding.node).any(|host| {
                let own = self.status(host, &spec.name).filter(|own| own.generation == place.1);
                own.is_some_and(|own| own.me == Some(binding.member))
            })
        };
        let lacks_majority = running.iter().filter(|status| status.engine == Kind::Raft).any(|status| {
            let place = (group, status.generation);
            let lacks = |members: &Vec<Binding>| members.iter().filter(|b| lives(place, b)).count() * 2 <= members.len();
            cluster.memberships.get(&place).is_some_and(|known| known.iter().any(lacks))
        });
        lacks_majority.then_some("a majority is gone")
    }
}
