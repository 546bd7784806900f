//! Groups on the wire: what the loop hands to the service of groups, and what becomes of what that wants.
//!
//! ```text
//! segments, rides of heartbeats, verdicts, lives ─► Groups ─► segments (unicast, both paths), rides, events
//! sessions.rs ─► propose ────────────────────────────────┘   └─► entries ─► sessions.rs
//! ```

use super::sessions::stage;
use super::{Core, Happened};
use crate::clock::now_ns;
use crate::group_jobs::{Job as DiskJob, Lost};
use crate::group_plan::{Choice, GroupPlan, choose, engine, policy};
use crate::shares::GROUPS;
use crate::state_jobs::Job;
use crate::witness_questions::{Command, Life, Question as WitnessQuestion};
use fide_lane::PathMode;
use fide_proto::consensus::huc::DECISION_MAX;
use fide_proto::consensus::log::{EngineMessage, Setup};
use fide_proto::consensus::policy::{Answer, Policy};
use fide_proto::consensus::{Engine, Halted, Kind as EngineKind, log};
use fide_proto::detector::{State, Verdict};
use fide_proto::group::MemberId;
use fide_proto::services::groups::large::{Fetched, LargeId, LargeRef};
use fide_proto::services::groups::last_set::LastSet;
use fide_proto::services::groups::message::{Plan, Timing};
use fide_proto::services::groups::resume::KeptLog;
use fide_proto::services::groups::state::Binding;
use fide_proto::services::groups::{self, Config, Difference, Error, Event, Expected, Frame, Groups, Resume, Stage, Standing};
use fide_proto::services::links;
use fide_raft::Raft;
use fide_wire::PATHS;
use fide_wire::control::{ErrorCode, GroupLog, GroupMember, GroupOrder, GroupStatus, Refused, Reply};
use fide_wire::event::Record;
use fide_wire::frame::items::{self, Item};
use fide_wire::frame::{BODY_AT, BODY_MAX, Channel};
use fide_wire::packet::{Header, Kind, Packet};
use fide_wire::verdict::{Cause, Confirmers, FenceMode, Grade};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// Segments that leave in one loop iteration: each takes some 20 µs on two paths.
const SEGMENTS_AT_ONCE: usize = 8;
/// A heartbeat that carries a decision leaves early, but not so soon behind the one before it.
const EARLY_NS: u64 = 50_000;
/// Behind a decision of many bytes, so long for each, and at most so long: each costs every member
/// the same, whatever it carries, so that fewer and larger ones let more through. A client that
/// waits for one small value before it proposes the next never waits for this.
const REST_NS_PER_BYTE: u64 = 200;
const REST_MAX_NS: u64 = 500_000;
/// Heartbeats that leave one behind the other with one decision, in one loop iteration.
const RIDES_AT_ONCE: usize = 12;
/// After a loss, so long every segment leaves on both paths; twice as long each time if the next loss comes within a second behind that: a path may be gone.
const DOUBLED_NS: u64 = 100_000_000;
const DOUBLED_MAX_NS: u64 = 10_000_000_000;
/// A segment that is not acknowledged is sent again after this or three periods, whichever is longer.
const RESEND_NS: u64 = 3_000_000;

/// A larger state of an application goes by TCP: so much is in the way of nothing on a link.
const INLINE_MAX: usize = 64 << 10;

/// Raft's time step, at least: each costs a segment to every member.
const RAFT_TICK_NS: u64 = 10_000_000;

/// The settings of this host's groups.
pub(super) fn config(node: u32, incarnation: u32, period_ns: u64, witness_ns: Option<u64>) -> Config {
    let seed = u64::from(node) << 32 | u64::from(incarnation);
    Config {
        node,
        incarnation,
        links: links::Config { resend_ns: RESEND_NS.max(3 * period_ns), ack_wait_ns: period_ns.min(1_000_000) },
        log: log::Config { ask_interval_ns: 100_000_000, ..log::Config::default() },
        fence_repeat_ns: 10 * period_ns,
        witness_ns,
        distrust_ns: 50 * period_ns,
        inline_max: INLINE_MAX,
        make: Arc::new(move |setup, how, timing| make(setup, how, timing, seed, period_ns)),
    }
}

/// When a packet came, by its stamp.
fn arrival_ns(head: &Record, now: u64) -> u64 {
    if head.received_ns == 0 { now } else { head.received_ns.min(now) }
}

fn invalid(what: String) -> Refused {
    Refused { code: ErrorCode::Invalid, what }
}

/// An engine of a group. Raft is not of this crate's cores: a library has it.
fn make(setup: &Setup, how: Policy, timing: &Timing, seed: u64, period_ns: u64) -> Option<Box<dyn Engine<EngineMessage> + Send>> {
    if setup.kind != EngineKind::Raft {
        return groups::make(setup, how, timing);
    }
    // A crash that is certain begins an election at once, so time need not be short.
    let tick_ns = RAFT_TICK_NS.max(2 * period_ns);
    let word_wait_ns = fide_raft::WORD_WAIT_NS;
    let config = fide_raft::Config { tick_ns, seed, word_wait_ns, ..fide_raft::Config::new(setup.me) };
    let mut raft = Raft::new(config, setup.now_ns, setup.first, &setup.members, setup.start.as_deref()).ok()?;
    if !setup.joins && setup.members.min() == Some(setup.me) {
        raft.campaign();
    }
    for member in setup.crashed.iter() {
        let _ = raft.handle_crash(setup.now_ns, member);
    }
    Some(Box::new(raft))
}

/// What the configuration says of groups, and what was known of them before.
#[derive(Default)]
pub(super) struct Plans {
    plans: Vec<GroupPlan>,
    /// Groups of this host, and which one of that name was the last; 0: a former agent's.
    known: BTreeMap<String, u64>,
    /// Begun after all members of the one before had ended.
    anew: BTreeSet<String>,
    /// Clients of each group that were told more than there is now, until they have heard of that.
    lost: BTreeMap<String, BTreeSet<u64>>,
    /// Why groups that this host began have their engine and policy, where these were not named.
    chosen: BTreeMap<String, String>,
    /// With which log on which hosts groups are to go on.
    resuming: BTreeMap<String, String>,
    /// Why the disk does not take durable groups; empty: it does.
    unwritten: String,
    /// Incarnations of hosts about which the witness is asked now.
    witnessed: BTreeSet<Life>,
    /// Under whom groups are counted that users have this host begin or join.
    charged: BTreeMap<String, u32>,
}

impl Plans {
    /// Whether this client was told more than there is now, and has not heard of that: once.
    pub(super) fn was_told_more(&mut self, name: &str, client: u64) -> bool {
        self.lost.get_mut(name).is_some_and(|clients| clients.remove(&client))
    }

    /// Whether the configuration has a group of this name on this host.
    pub(super) fn has(&self, name: &str) -> bool {
        self.plans.iter().any(|plan| plan.name == name)
    }
}

fn refused(error: Error) -> Refused {
    let (code, what) = match error {
        Error::Exists(what) => (ErrorCode::Exists, what),
        Error::NotFound(what) => (ErrorCode::NotFound, what),
        Error::Invalid(what) => (ErrorCode::Invalid, what),
        Error::Busy(what) => (ErrorCode::Full, what),
    };
    Refused { code, what }
}

impl Core {
    // ---- what comes in --------------------------------------------------------------------------------------------------

    fn is_believed(&self, header: &Header) -> bool {
        let is_believed = |p: &crate::peers::Peer| p.incarnation == header.incarnation && !p.condemned && !p.left;
        self.slot(header.sender).is_some_and(|slot| self.peers[slot].as_deref().is_some_and(is_believed))
    }

    /// A segment of another host's groups. It counts as of its arrival: a copy that came later, and
    /// is still to be read, is not late because this one was read late.
    pub(super) fn segment_came(&mut self, head: &Record, header: &Header, body: &[u8], now: u64) {
        if !self.is_believed(header) {
            return;
        }
        let arrival_ns = arrival_ns(head, now);
        if let Err(why) = self.groups.handle_segment(arrival_ns, header.sender, header.incarnation, body) {
            tracing::debug!("a segment of {:08x} is not taken: {why:?}", header.sender);
        }
    }

    /// A copy of a round of another host's group.
    pub(super) fn copy_came(&mut self, head: &Record, header: &Header, body: &[u8], now: u64) {
        if self.is_believed(header) {
            let path = usize::from(header.path);
            self.groups.handle_copy(arrival_ns(head, now), header.sender, path, header.sent_ns, body);
        }
    }

    /// What groups piggybacked on a heartbeat: the first copy of it.
    pub(super) fn rides_came(&mut self, packet: &Packet<'_>, now: u64) {
        for item in items::read(packet.items) {
            let Ok(Item { channel, bytes }) = item else { return };
            if channel == Channel::Groups as u8 {
                self.groups.handle_ride(now, packet.header.sender, bytes);
            }
        }
        self.groups.handle_heartbeat(now, packet.header.sender, packet.header.number);
    }

    /// A verdict about a host, or about this one's own sight of the others.
    pub(super) fn groups_judge(&mut self, v: &Verdict, now: u64) {
        // A kernel that says that nobody holds the agent's port says that its agent's process is gone, and with it the member.
        let is_gone = v.cause == Cause::AgentLost && v.evidence.paths.iter().any(|path| path.agent_absent);
        let (cause, grade) = match v.cause {
            _ if is_gone => (Cause::Exited, Grade::Certain),
            // Members that do not hear each other decide nothing together: one excludes the other, as one that is silent.
            Cause::Unreachable if !self.groups.is_empty() => {
                self.excluded.insert(v.node, v.incarnation);
                (Cause::SilentHost, Grade::Inferred)
            }
            cause => (cause, v.grade),
        };
        self.groups.handle_verdict(now, v.node, v.incarnation, cause, grade);
        // Whom this host's members excluded although it lived they never hear again: they begin anew when it is heard.
        let is_back = v.cause == Cause::ContractKept && self.excluded.get(&v.node) == Some(&v.incarnation);
        if v.cause != Cause::Unreachable && self.excluded.remove(&v.node).is_some() && is_back {
            tracing::warn!(
                "{} is heard again, whose members were excluded here because it was unreachable: starting a new incarnation",
                self.node_name(v.node)
            );
            self.start_over(self.start.incarnation, now);
            self.groups.handle_heard_again(now, v.node, v.incarnation);
        }
        if v.evidence.fenced {
            self.groups.handle_fenced(now, v.node, v.incarnation);
        }
    }

    /// What is known of a host now.
    fn standing(&self, node: u32) -> Standing {
        let life = self.slot(node).and_then(|slot| self.peers[slot].as_ref()).map_or(0, |p| p.incarnation);
        match self.node.detector().state(node) {
            None => Standing::Unknown,
            Some(State::Alive) => Standing::Alive(life),
            Some(State::Late) => Standing::Late(life),
            Some(State::AgentLost | State::Silent) => Standing::Silent(life),
            Some(State::Left | State::Restarting) => Standing::Left(life),
        }
    }

    // ---- what goes out --------------------------------------------------------------------------------------------------

    /// Everything that groups want now.
    pub(super) fn exchange_groups(&mut self, now: u64) {
        // What is left undone here is due at once: the loop would not rest.
        if self.groups.is_idle() && self.sessions.is_empty() {
            return;
        }
        self.read_sessions(now);
        // What has come is read first: a copy of a round may be among it.
        if !self.receiver.has_packet() && self.groups.poll_timeout().is_some_and(|at_ns| at_ns <= now) {
            let mut groups = std::mem::replace(&mut self.groups, Groups::new(config(0, 0, 0, None)));
            groups.handle_timeout(now, |node| self.standing(node));
            self.groups = groups;
        }
        // What others have confirmed is told here before it is told to them.
        if !self.groups.has_deadlines() {
            self.write_sessions();
        }
        self.send_segments(now);
        // A decision need not wait for its slot, and one that takes several heartbeats has them at
        // once.
        let is_early = now >= self.sent.early_ns;
        if self.is_midway() || is_early && self.groups.has_ride(now) {
            self.send_rides(now);
            self.send_segments(now);
        }
        self.groups_happened(now);
        self.write_sessions();
        if !self.sessions.is_empty() {
            self.sessions.note_spent(now, now_ns());
        }
    }

    /// A heartbeat with what groups have to say, and those behind it that carry the rest.
    fn send_rides(&mut self, now: u64) {
        for _ in 0..RIDES_AT_ONCE {
            let before = self.groups.midway();
            self.send_heartbeat(now);
            let rest = self.groups.midway();
            if rest == 0 || rest == before {
                break; // all of it has left, or nothing leaves now
            }
        }
    }

    /// Whether the rest of something should follow at once. Where nothing leaves, it waits for the
    /// next slot.
    fn is_midway(&self) -> bool {
        !self.rides_stay && self.groups.midway() > 0
    }

    /// When a heartbeat may leave early, if something waits for that.
    pub(super) fn early_at(&self) -> Option<u64> {
        if self.is_midway() { Some(0) } else { self.groups.is_stirred().then_some(self.sent.early_ns) }
    }

    fn send_segments(&mut self, now: u64) {
        let mut body = std::mem::take(&mut self.body);
        let mut segments = 0;
        while segments < SEGMENTS_AT_ONCE {
            segments += 1;
            match self.groups.poll_frame(now, &mut body) {
                Some(Frame::Copies { sent_ns }) => {
                    segments -= 1;
                    let departure = self.send_copies(sent_ns, &body);
                    self.groups.handle_copies_sent(now_ns(), departure);
                }
                Some(Frame::Segment { node, is_again }) => {
                    let on_all = self.loses_segments(now) || is_again;
                    self.send_to(node, Kind::Message, &body, on_all);
                }
                Some(Frame::Shared { is_one_of_many }) => self.send_shared(&body, is_one_of_many, now),
                None => break,
            }
        }
        self.body = body;
    }

    /// A segment for several. Of many, each leaves on one path in turn, unless something was lost lately: then two losses are needed, as for what is alone.
    fn send_shared(&mut self, body: &[u8], is_one_of_many: bool, now: u64) {
        if is_one_of_many && !self.loses_segments(now) {
            self.send_on_one_path(Kind::Message, body);
        } else {
            self.send_event(Kind::Message, None, body);
        }
    }

    /// Whether a segment had to be sent again lately. A copy on one path costs half of two, and a
    /// loss the time until it is sent again.
    fn loses_segments(&mut self, now: u64) -> bool {
        let resent = self.groups.resent();
        if std::mem::replace(&mut self.segments_resent, resent) != resent {
            let is_again = now < self.segments_doubled_until_ns.saturating_add(1_000_000_000);
            let longer_ns = (2 * self.segments_doubled_ns).min(DOUBLED_MAX_NS);
            if now >= self.segments_doubled_until_ns {
                self.segments_doubled_ns = if is_again { longer_ns } else { DOUBLED_NS };
            }
            self.segments_doubled_until_ns = now.saturating_add(self.segments_doubled_ns);
        }
        now < self.segments_doubled_until_ns
    }

    /// The items of groups for the heartbeat that is about to leave.
    pub(super) fn take_rides(&mut self, body: &mut Vec<u8>, now: u64) {
        body.clear();
        self.hold_groups(now);
        let room = self.piggyback_room();
        self.groups.poll_rides(now, room, body);
    }

    fn piggyback_room(&self) -> usize {
        self.lane.payload_max().saturating_sub(BODY_AT).min(BODY_MAX)
    }

    /// The heartbeat with those items was handed over at `before`; does what it says count?
    pub(super) fn rides_left(&mut self, before: u64) {
        let now = now_ns();
        let has_left = self.sent.outcomes.iter().any(|outcome| outcome.copies > 0);
        self.rides_stay = self.is_fenced() || !has_left;
        if self.rides_stay {
            // It rides on the next one, or on none.
        } else if self.was_silent(before, now) {
            self.groups.hold(now, self.sent.number);
        } else {
            if self.rode && !self.groups.has_more() {
                self.sent.early_ns = now.saturating_add(self.rest_ns());
            }
            self.groups.handle_sent(now);
        }
    }

    /// How long the next decision waits behind the one that has left, if its slot does not come
    /// before: the more that one carried, the more will come meanwhile.
    fn rest_ns(&self) -> u64 {
        let bytes = self.groups.ride_bytes();
        if bytes > DECISION_MAX / 4 * 3 {
            return EARLY_NS; // what did not fit waits already
        }
        let most_ns = REST_MAX_NS.min(self.start.period_ns / 2).max(EARLY_NS);
        (bytes as u64 * REST_NS_PER_BYTE).clamp(EARLY_NS, most_ns)
    }

    /// Behind a silence of this host nothing of its groups leaves before the others have said that they have not given it up.
    pub(super) fn hold_groups(&mut self, now: u64) {
        if !self.groups.is_empty() && self.held_behind_ns != self.sent.beaten_ns && self.was_silent(self.sent.beaten_ns, now) {
            self.held_behind_ns = self.sent.beaten_ns;
            self.groups.hold(now, 0);
        }
    }

    /// Whether no heartbeat left since `before` for so long that others may have given this host up, or will soon.
    fn was_silent(&self, before: u64, now: u64) -> bool {
        let contract = self.own_contract();
        let allowed_ns = contract.period_ns + contract.timeout_ns().saturating_sub(contract.period_ns) / 2;
        before != 0 && now.saturating_sub(before) > allowed_ns
    }

    /// This host's former agent was a member of these, and others may go on with them.
    pub(super) fn join_former_groups(&mut self, now: u64) {
        self.group_plans.known = self.start.groups.iter().map(|name| (name.clone(), 0)).collect();
        match std::mem::replace(&mut self.start.group_logs, Ok(BTreeMap::new())) {
            Ok(logs) => logs.into_iter().for_each(|(name, saved)| self.groups.handle_saved(&name, saved)),
            Err(why) => {
                tracing::error!("{why}");
                self.groups.handle_unreadable(why);
            }
        }
        let plans = std::mem::take(&mut self.start.group_plans);
        self.set_group_plans(plans);
        self.start.last_sets.iter().for_each(|(name, set)| self.groups.remember(name, set.clone()));
        for name in &self.start.groups {
            if let Err(error) = self.groups.rejoin(now, name) {
                tracing::warn!("group {name}: {error:?}");
            }
        }
    }

    /// What the configuration says of groups, from now on.
    pub fn set_group_plans(&mut self, plans: Vec<GroupPlan>) {
        self.group_plans.plans = plans.into_iter().filter(|plan| plan.hosts.contains(&self.start.name)).collect();
        let expected = self.group_plans.plans.iter().map(|plan| Expected {
            name: plan.name.clone(),
            engine: plan.engine,
            policy: plan.policy,
            nodes: plan.hosts.iter().map(|host| fide_wire::name_id(host)).collect(),
            durable: plan.durable,
        });
        self.groups.expect(now_ns(), expected);
    }

    /// All hosts of that group are there, none of them runs it, and this one is to begin it.
    fn begin_planned(&mut self, name: &str, now: u64) {
        let Some(plan) = self.group_plans.plans.iter().find(|plan| plan.name == name).cloned() else {
            if let Err(why) = self.begin_remembered(name, now) {
                self.groups.begin_failed(now, name, why.what);
            }
            return;
        };
        let GroupPlan { hosts, engine, policy, durable, .. } = plan;
        let generation = self.group_generation();
        let chosen = self.choose_group(name, &hosts, engine, policy);
        let begun = chosen.and_then(|of| Ok((of, self.group_members(&hosts, of.1)?))).and_then(|((engine, policy), members)| {
            let timing = self.group_timing();
            let plan = Plan { name: name.into(), generation, engine, policy, members, durable, lineage: 0, timing };
            self.groups.create(now, plan, false).map_err(refused)
        });
        if let Err(why) = begun {
            self.groups.begin_failed(now, name, why.what);
        }
    }

    /// The same of a group that a command had begun: with the hosts that were its members last.
    fn begin_remembered(&mut self, name: &str, now: u64) -> Result<(), Refused> {
        let Ok(set) = self.groups.last_set(name).cloned() else { return Ok(()) };
        self.can_send_rounds(set.engine)?;
        let hosts: Vec<String> = set.nodes.iter().map(|node| self.node_name(*node)).collect();
        let LastSet { engine, policy, durable, .. } = set;
        let members = self.group_members(&hosts, policy)?;
        let (generation, timing) = (self.group_generation(), self.group_timing());
        let plan = Plan { name: name.into(), generation, engine, policy, members, durable, lineage: 0, timing };
        self.groups.begin_again(now, plan).map_err(refused)
    }

    /// What of engine and policy was not named, by the fences of these hosts.
    fn choose_group(
        &mut self,
        name: &str,
        hosts: &[String],
        engine: Option<EngineKind>,
        policy: Option<Policy>,
    ) -> Result<(EngineKind, Policy), Refused> {
        let counts = |mode| matches!(mode, FenceMode::Acknowledged(Confirmers::Majority | Confirmers::All));
        let fences: Vec<(String, bool)> = hosts
            .iter()
            .map(|host| {
                let mode = if *host == self.start.name {
                    // One that is configured here is soon armed, and waited for.
                    self.node.fence().map(fide_proto::node::fence::HostFence::mode)
                } else {
                    self.node.detector().promise(fide_wire::name_id(host)).map(|promise| promise.mode)
                };
                (host.clone(), mode.is_some_and(counts))
            })
            .collect();
        let Choice { engine, policy, why } = choose(engine, policy, &fences).map_err(invalid)?;
        if why.is_empty() {
            self.group_plans.chosen.remove(name);
        } else {
            tracing::info!("group {name}: {why}");
            self.group_plans.chosen.insert(name.into(), why);
        }
        Ok((engine, policy))
    }

    /// All members of that group have stopped, and this host is to go on with its log.
    fn resume_group(&mut self, name: &str, nodes: &BTreeSet<u32>, anyway: bool, now: u64) -> Result<(), Refused> {
        let Some(status) = self.groups.status_named(name) else {
            let what = format!("this host has no group {name}");
            return Err(Refused { code: ErrorCode::NotFound, what });
        };
        self.can_send_rounds(status.engine)?;
        // The first one leads.
        let others = nodes.iter().filter(|node| **node != self.start.node).map(|node| self.node_name(*node));
        let hosts: Vec<String> = std::iter::once(self.start.name.clone()).chain(others).collect();
        let members = self.group_members(&hosts, status.policy)?;
        let (generation, timing) = (self.group_generation(), self.group_timing());
        self.groups.resume(now, name, Resume { generation, members, timing, anyway }).map_err(refused)?;
        self.group_plans.resuming.insert(name.into(), format!("{} entries on {}", status.index, hosts.join(", ")));
        Ok(())
    }

    /// As somebody decided: with all that are heard and keep a log of it.
    fn resume_anyway(&mut self, name: &str, now: u64) -> Result<(), Refused> {
        let own = self.start.node;
        if self.groups.is_without_majority(name) {
            self.groups.set_aside(now, name).map_err(refused)?;
        }
        let logs = self.groups.logs(name);
        if !logs.iter().any(|(node, _)| *node == own) {
            let hold: Vec<String> = logs.iter().map(|(node, _)| self.node_name(*node)).collect();
            let what = match (self.groups.status_named(name), hold.is_empty()) {
                (Some(status), _) if status.stage == Stage::Running => format!("{name} runs here"),
                (_, true) => format!("this host keeps no log of {name}"),
                (_, false) => format!("this host keeps no log of {name}: do it on {}", hold.join(" or ")),
            };
            return Err(Refused { code: ErrorCode::NotFound, what });
        }
        let nodes = logs.iter().map(|(node, _)| *node).collect();
        self.resume_group(name, &nodes, true, now)
    }

    /// Another part of the network decided other things, or this host's log was passed over by
    /// somebody's decision. What was told here stays on this host's disk.
    fn group_differs(&mut self, generation: u64, what: Difference) {
        let Some(status) = self.groups.status().find(|status| status.generation == generation) else { return };
        let Difference { index, count, before: (generation, _), entries } = what;
        let name = status.name;
        // Whoever was told them begins anew: what comes now does not follow what it has read.
        let clients = self.sessions.end_those_that_read(&name, index);
        if !clients.is_empty() {
            self.group_plans.lost.entry(name.clone()).or_default().extend(clients);
        }
        tracing::error!(
            "group {name}: {count} entries that applications of this host were told, from {index} on, are not in the log that it goes on \
             with: two parts of the network both decided, or somebody ordered it; the entries are kept in {}",
            Lost::file(Path::new("*.groups"), &name, generation).display()
        );
        let _ = self.ends.writes.send(DiskJob::Keep(Lost { name, generation, entries }));
    }

    /// The disk has a durable group's entries through this one.
    pub(super) fn group_written(&mut self, name: &str, generation: u64, index: u64) {
        if !self.group_plans.unwritten.is_empty() {
            tracing::warn!("logs of durable groups are written again");
            self.group_plans.unwritten.clear();
        }
        self.groups.handle_written(name, generation, index);
        self.groups_happened(now_ns());
        self.write_sessions();
    }

    /// An operator may wonder why a member came and went.
    fn say_halted(&self, generation: u64, why: Halted) {
        let Some(status) = self.groups.status().find(|status| status.generation == generation) else { return };
        let (name, is_asked) = (&status.name, why == Halted::Left);
        let text = self.with_names(&halted(status.engine, status.policy, why));
        match status.stage {
            _ if is_asked => tracing::info!("group {name}: this host left"),
            Stage::Left => tracing::warn!("group {name}: this host's member stopped: {text}"),
            _ => tracing::warn!("group {name}: this host's member stopped: {text}; a new one joins"),
        }
    }

    fn fetch_state(&self, generation: u64, what: LargeRef, node: u32) {
        let from = self.addresses_of(node);
        let _ = self.ends.states.send(Job::Fetch { generation, what, from });
    }

    /// What became of a fetch.
    pub(super) fn state_fetched(&mut self, generation: u64, what: LargeId, fetched: Fetched) {
        self.groups.handle_fetched(now_ns(), generation, what, fetched);
        self.groups_happened(now_ns());
        self.write_sessions();
    }

    /// The disk takes nothing: no entry of a durable group is told of here until it does.
    pub(super) fn groups_unwritten(&mut self, why: String) {
        if self.group_plans.unwritten != why {
            tracing::error!("{why}: applications of this host hear nothing new of durable groups until it can");
            self.group_plans.unwritten = why;
        }
        self.groups.handle_unwritten(now_ns());
        self.groups_happened(now_ns());
    }

    /// Whether a group that runs here now is another one than before.
    fn note_group(&mut self, name: &str) {
        let Some(status) = self.groups.status_named(name).filter(|status| status.stage == Stage::Running) else { return };
        if let Some(with) = self.group_plans.resuming.remove(name) {
            tracing::warn!("group {name}: all its members had stopped; it goes on with this host's log of {with}");
        }
        let lineage = status.lineage;
        let before = self.group_plans.known.insert(name.into(), lineage);
        if before == Some(lineage) || lineage != status.generation {
            return;
        }
        if before.is_some() && status.is_begun {
            tracing::warn!("group {name} begins anew: no host runs the one before any more, and what was decided in it is gone");
            self.group_plans.anew.insert(name.into());
        } else {
            self.group_plans.anew.remove(name);
        }
    }

    fn groups_happened(&mut self, now: u64) {
        while let Some(event) = self.groups.poll_event() {
            match event {
                Event::Applied { .. } => {}
                Event::Halted { generation, why } => self.say_halted(generation, why),
                // Without its thread the loop ends, too.
                Event::Write(write) => _ = self.ends.writes.send(DiskJob::Write(write)),
                Event::Begin { name } => self.begin_planned(&name, now),
                Event::Resume { name, nodes } => {
                    if let Err(why) = self.resume_group(&name, &nodes, false, now) {
                        self.groups.resume_failed(&name, &why.what);
                    }
                }
                Event::Closed { node } => tracing::error!(
                    "{} sent what no agent sends to groups: nothing of its groups is taken before its agent has restarted",
                    self.node_name(node)
                ),
                Event::Differs { generation, what } => self.group_differs(generation, what),
                Event::Changed { generation } => {
                    let name = self.groups.status().find(|status| status.generation == generation).map(|status| status.name);
                    if let Some(name) = name {
                        self.note_group(&name);
                    }
                    // One of the configuration that never ran here has nothing to come back to: it does not begin *anew* some day.
                    let never_ran = |name: &str| {
                        let Plans { plans, known, .. } = &self.group_plans;
                        !known.contains_key(name) && plans.iter().any(|plan| plan.name == name)
                    };
                    let names: BTreeSet<String> = self.groups.kept().filter(|name| !never_ran(name)).map(str::to_owned).collect();
                    let last_sets: BTreeMap<String, LastSet> =
                        self.groups.remembered().map(|(name, set)| (name.to_owned(), set.clone())).collect();
                    if names != self.start.groups || last_sets != self.start.last_sets {
                        self.start.groups.clone_from(&names);
                        self.start.last_sets.clone_from(&last_sets);
                        self.say(Happened::Groups(names, last_sets));
                    }
                }
                // Without its thread nobody fetches: the group says that its state is on its way.
                Event::Hold(large) => _ = self.ends.states.send(Job::Hold(large)),
                Event::Release(large) => _ = self.ends.states.send(Job::Release(large)),
                Event::Fetch { generation, what, from } => self.fetch_state(generation, what, from),
                Event::AskFence { node, incarnation } => {
                    if self.is_cut_off(node, incarnation, now) {
                        self.groups.handle_fenced(now, node, incarnation);
                    }
                }
                Event::AskWitness { node, incarnation } => self.ask_witness((node, incarnation), now),
            }
        }
    }

    /// Whom its fence has cut off, or who is back in a new incarnation, the witness is not asked
    /// about: its command may switch the host off.
    fn ask_witness(&mut self, about: Life, now: u64) {
        let (node, incarnation) = about;
        if self.is_cut_off(node, incarnation, now) {
            return self.groups.handle_fenced(now, node, incarnation);
        }
        // The answer is for all groups.
        if self.group_plans.witnessed.insert(about) {
            let addresses = self.slot(node).and_then(|slot| self.peers[slot].as_ref()).map(|peer| peer.addresses);
            self.ends.witness.ask(WitnessQuestion {
                about,
                host: self.node_name(node),
                addresses: addresses.into_iter().flatten().flatten().collect(),
                observer: self.start.name.clone(),
            });
        }
    }

    /// What the witness says.
    pub(super) fn witness_answered(&mut self, about: Life, is_granted: bool) {
        self.group_plans.witnessed.remove(&about);
        let answer = if is_granted { Answer::Granted } else { Answer::Refused };
        self.groups.handle_witness(now_ns(), about.0, about.1, answer);
        self.exchange_groups(now_ns());
    }

    /// Who is asked from now on.
    pub(super) fn set_witness(&mut self, command: Option<Command>) {
        self.start.witness_ns = command.as_ref().map(Command::timeout_ns);
        self.groups.set_witness(self.start.witness_ns);
        self.ends.witness.set(command);
    }

    /// Whether this life of a host has a fence that is closed by now.
    fn is_cut_off(&self, node: u32, incarnation: u32, now: u64) -> bool {
        let Some(slot) = self.slot(node) else { return false };
        let Some(peer) = self.peers[slot].as_ref() else { return false };
        if peer.incarnation != incarnation {
            return peer.incarnation > incarnation;
        }
        let Some(promise) = self.node.detector().promise(node) else { return false };
        // What a majority keeps open no single clock closes.
        let is_counted = promise.mode == FenceMode::Acknowledged(Confirmers::Majority);
        if is_counted && !self.node.is_fenced_by_now(node, now) {
            return false;
        }
        let row = self.receiver.peer(slot);
        let last_ns = row.path.iter().map(|path| path.arrived_ns).max().unwrap_or(now);
        // Its clock may lose a little against ours; what it sent last has arrived long ago.
        let closed_ns =
            last_ns.saturating_add(promise.timeout_ns).saturating_add(promise.timeout_ns / 1000).saturating_add(1_000_000);
        peer.condemned && now >= closed_ns
    }

    // ---- for the control thread -----------------------------------------------------------------------------------------

    /// Whether a user may have this host begin or join a group. One of the configuration has a
    /// place of its own.
    fn admit_group(&mut self, name: &str, account: u32) -> Result<(), Refused> {
        if self.group_plans.has(name) {
            return Ok(());
        }
        let (groups, charged) = (&self.groups, &mut self.group_plans.charged);
        charged.retain(|name, _| groups.brief(name).is_some());
        let own = charged.iter().filter(|(of, by)| *of != name && **by == account).count();
        let admitted = GROUPS.admit(account, own as u64, groups.places_beside(name) as u64, 1);
        admitted.map_err(|what| Refused { code: ErrorCode::Full, what })
    }

    fn charge_group(&mut self, name: String, account: u32) {
        if !self.group_plans.has(&name) {
            self.group_plans.charged.insert(name, account);
        }
    }

    /// `fide group`, as it is ordered by whoever is counted under `account`.
    ///
    /// # Errors
    /// What it says.
    pub fn order_group(&mut self, order: GroupOrder, account: u32) -> Result<Reply, Refused> {
        let now = now_ns();
        match order {
            GroupOrder::Status => return Ok(Reply::Groups { groups: self.group_status() }),
            GroupOrder::Create { name, engine: kind, policy: how, hosts, durable, fresh } => {
                let named = |text: String| Some(text).filter(|text| !text.is_empty());
                self.admit_group(&name, account)?;
                let kind = named(kind).map(|kind| engine(&kind)).transpose().map_err(invalid)?;
                let how = named(how).map(|how| policy(&how)).transpose().map_err(invalid)?;
                let (kind, how) = self.choose_group(&name, &hosts, kind, how)?;
                self.can_send_rounds(kind)?;
                let members = self.group_members(&hosts, how)?;
                let generation = self.group_generation();
                let timing = self.group_timing();
                let charged = name.clone();
                let plan = Plan { name, generation, engine: kind, policy: how, members, durable, lineage: 0, timing };
                self.groups.create(now, plan, fresh).map_err(refused)?;
                self.charge_group(charged, account);
            }
            GroupOrder::Join { name } => {
                self.admit_group(&name, account)?;
                self.groups.join(now, &name).map_err(refused)?;
                self.charge_group(name, account);
            }
            GroupOrder::Leave { name, force: false } => self.groups.leave(now, &name).map_err(refused)?,
            GroupOrder::Leave { name, force: true } => self.groups.give_up(now, &name).map_err(refused)?,
            GroupOrder::Resume { name } => self.resume_anyway(&name, now)?,
            GroupOrder::Switch { name, engine: kind } => {
                let kind = engine(&kind).map_err(invalid)?;
                self.can_send_rounds(kind)?;
                self.groups.switch(now, &name, kind).map_err(refused)?;
            }
        }
        self.exchange_groups(now);
        Ok(Reply::Done)
    }

    /// Whether this host can lead a group of this engine, as its interfaces are now.
    fn can_send_rounds(&self, engine: EngineKind) -> Result<(), Refused> {
        let down = (0..PATHS as u8).find(|path| self.lane.mode(*path) == PathMode::Down);
        match down.filter(|_| engine == EngineKind::Lowi) {
            None => Ok(()),
            Some(path) => Err(invalid(format!(
                "lowi sends every round on all paths, and path {path} is down here, or not configured: use huc, hsuc or raft"
            ))),
        }
    }

    /// Later groups have higher numbers, whoever begins them.
    fn group_generation(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        // A clock that is far ahead leaves room for those behind it.
        since.map_or(1, |since| since.as_nanos().min(1 << 62) as u64).max(1)
    }

    /// What LOWI waits for, in a group that this host begins: as the contract says of all that it
    /// hears.
    fn group_timing(&self) -> Timing {
        let contract = self.own_contract();
        Timing::of_contract(contract.period_ns, contract.timeout_ns().saturating_sub(contract.period_ns))
    }

    fn group_members(&self, hosts: &[String], policy: Policy) -> Result<Vec<Binding>, Refused> {
        let mut members = Vec::new();
        for (at, host) in hosts.iter().enumerate() {
            let node = fide_wire::name_id(host);
            let is_own = *host == self.start.name;
            let slot = self.slot(node).filter(|slot| self.peers[*slot].as_ref().is_some_and(|p| p.name == *host));
            let peer = slot.and_then(|slot| self.peers[slot].as_ref()).filter(|p| !p.condemned && !p.left);
            let incarnation = if is_own { Some(self.start.incarnation) } else { peer.map(|p| p.incarnation) };
            let Some(incarnation) = incarnation else {
                let what = format!("{host} is not heard now: all hosts of a new group must be (fide status lists them)");
                return Err(Refused { code: ErrorCode::NotFound, what });
            };
            let has_fence = if is_own { self.promises() } else { self.node.detector().promise(node).is_some() };
            if policy == Policy::Fence && !has_fence {
                let what = format!(
                    "{host} has no fence, which the policy fence relies on: set [fence] mode there, or take --policy trust-contract"
                );
                return Err(Refused { code: ErrorCode::Invalid, what });
            }
            members.push(Binding { member: MemberId(at as u16 + 1), node, incarnation });
        }
        if policy == Policy::Witness && self.start.witness_ns.is_none() {
            let what = "this host has no witness, which the policy witness relies on: set command in [witness] on each of its hosts, or \
                        take --policy trust-contract";
            return Err(invalid(what.into()));
        }
        Ok(members)
    }

    fn group_status(&self) -> Vec<GroupStatus> {
        let of = |status: groups::Status| GroupStatus {
            sessions: self.sessions.of(&status.name),
            generation: status.lineage,
            written: status.written,
            engine: if status.is_known { status.engine.name().into() } else { String::new() },
            policy: if status.is_known { status.policy.name().into() } else { String::new() },
            stage: stage(&status.stage),
            why: match &status.stage {
                Stage::Failed(why) => self.with_names(why),
                Stage::Running if status.written.is_some() && !self.group_plans.unwritten.is_empty() => {
                    self.group_plans.unwritten.clone()
                }
                _ => self.with_names(&status.trouble),
            },
            chosen: self.group_plans.chosen.get(&status.name).cloned().unwrap_or_default(),
            anew: self.group_plans.anew.contains(&status.name),
            me: status.me.map(|me| me.0),
            leader: status.leader.map(|leader| leader.0),
            members: status
                .members
                .iter()
                .map(|(binding, crashed)| GroupMember {
                    id: binding.member.0,
                    host: self.node_name(binding.node),
                    incarnation: binding.incarnation,
                    crashed: *crashed,
                    addresses: self.addresses_of(binding.node),
                })
                .collect(),
            index: status.index,
            pending: status.pending,
            halted: status.halted.map_or_else(String::new, |why| halted(status.engine, status.policy, why)),
            logs: self.group_logs(&status.name),
            kept_bytes: status.kept_bytes,
            name: status.name,
        };
        self.groups.status().map(of).collect()
    }

    fn addresses_of(&self, node: u32) -> Vec<IpAddr> {
        let peer = self.slot(node).and_then(|slot| self.peers[slot].as_deref());
        peer.map_or(Vec::new(), |peer| peer.addresses.into_iter().flatten().collect())
    }

    /// Who keeps what of a group that does not run here.
    fn group_logs(&self, name: &str) -> Vec<GroupLog> {
        let logs = self.groups.logs(name);
        let last = logs.iter().map(|(_, log)| log.generation).max();
        let of = |(node, log): (u32, &KeptLog)| GroupLog {
            host: self.node_name(node),
            entries: log.index,
            members: log.members.values().map(|node| self.node_name(*node)).collect(),
            superseded: Some(log.generation) != last,
        };
        logs.into_iter().map(of).collect()
    }

    /// Names of hosts in the place of their numbers.
    fn with_names(&self, text: &str) -> String {
        let mut text = text.to_string();
        text = text.replace(&format!("node {:08x}", self.start.node), &self.start.name);
        for peer in self.peers.iter().flatten() {
            text = text.replace(&format!("node {:08x}", peer.node), &peer.name);
        }
        // Those that are not heard since this agent began.
        for name in self.start.known.keys() {
            if !text.contains("node ") {
                break;
            }
            text = text.replace(&format!("node {:08x}", fide_wire::name_id(name)), name);
        }
        text
    }
}

/// Why a member stopped, for people.
fn halted(engine: EngineKind, policy: Policy, why: Halted) -> String {
    match why {
        Halted::NetworkFault if engine == EngineKind::Lowi => {
            "a frame of a round was missing on one path, or late, or did not leave on every path".into()
        }
        Halted::MissingBroadcast if engine == EngineKind::Lowi => "a round was missing on all paths".into(),
        Halted::Expelled if engine == EngineKind::Lowi => {
            "the others went on without it, or its thread was held up for longer than the group allows".into()
        }
        Halted::NetworkFault => "packets were lost on all paths, or a link had to hold too much".into(),
        Halted::MissingBroadcast => "a heartbeat with a decision never came".into(),
        Halted::Unconfirmed(member) if policy == Policy::Witness => {
            format!("the witness did not let it go on without member {member}")
        }
        Halted::Unconfirmed(member) => {
            format!("the crash of member {member} cannot be relied on: a living host was late just before")
        }
        Halted::Expelled => "the others went on without it".into(),
        Halted::Left => "it left".into(),
        Halted::Contradiction => "members contradict what is known for certain".into(),
    }
}
