//! This host's table: what the loop writes into it, what leaves for others, and what applications ask of all tables.
//!
//! ```text
//! watch, join, leave ─► Owner ─► rows, pushed            a crash ─► Core::send_crashes: pushed before it is written
//! ```

use super::{Core, Happened, MONITORS_PAUSE_NS, Start};
use crate::clock::now_ns;
use crate::history::ToldEnd;
use crate::kept::{Former, KeptWatch};
use crate::receive::Receiver;
use crate::shares::EventSource;
use crate::subscribers::Target;
use crate::watchlist::{INTERESTS_FROM, Origin, Watched};
use fide_lane::{Lane, PathMode};
use fide_proto::detector;
use fide_proto::node::Node;
use fide_proto::node::directory::Numbers;
use fide_proto::node::table::Owner;
use fide_proto::node::table::owner::To;
use fide_wire::PATHS;
use fide_wire::control::TargetState;
use fide_wire::event::{Record, RecordKind};
use fide_wire::frame::table::{Agent, Content, HOST_ROW, Host, Instance, Interest, Keys, Maintenance, Process, Row, State};
use fide_wire::packet::{Kind, Notice};
use fide_wire::verdict::{Cause, Contract, FencePromise, Grade, VerdictId};
use std::collections::BTreeMap;
use std::path::Path;

/// Frames of the node that leave in one loop iteration: each takes some 20 µs.
const FRAMES_AT_ONCE: usize = 4;
/// Rows of maintenances have numbers from here on; those of interests lie below.
const MAINTENANCE_FROM: u32 = 0xf000_0000;
/// The row that says which keys this host holds.
const KEYS_ROW: u32 = 0xf100_0000;
/// The row about this agent itself.
const AGENT_ROW: u32 = KEYS_ROW + 1;
/// A process that a former agent watched for its configuration is let go if this one has not asked for it in so long.
const UNCLAIMED_NS: u64 = 10_000_000_000;

/// What applications of this host want of processes of others, as it stands in the table.
#[derive(Debug, Default)]
pub(super) struct Interests {
    /// By (node, row there): the row here, and the piggyback size.
    held: BTreeMap<(u32, u32), (u32, u32)>,
    last_row: u32,
    /// When it is to be looked at again; never: `u64::MAX`.
    pub(super) due_ns: u64,
    looked_ns: u64,
}

impl Interests {
    /// The numbers up to `last_row` were used.
    pub(super) fn new(last_row: u32) -> Self {
        Self { last_row: last_row.max(INTERESTS_FROM), due_ns: u64::MAX, ..Self::default() }
    }

    /// Something changed; others need not know at once.
    pub(super) fn changed(&mut self, now_ns: u64) {
        self.due_ns = self.due_ns.min(now_ns.max(self.looked_ns.saturating_add(MONITORS_PAUSE_NS)));
    }
}

/// The row behind this one; `None`: the next one is a maintenance's.
const fn next_interest(last: u32) -> Option<u32> {
    let next = last.saturating_add(1);
    if next < MAINTENANCE_FROM { Some(next) } else { None }
}

/// What is left of a former agent's table when this one begins.
#[derive(Debug, Default)]
pub(super) struct Restored {
    rows: Vec<Row>,
    watches: BTreeMap<u32, KeptWatch>,
    known_process: u32,
    last_process: u32,
    pub(super) last_interest: u32,
    has_former: bool,
}

/// The node as it begins: with this host's row, and the table of the agent before, if that was kept.
pub(super) fn begin(
    start: &Start,
    former: Option<Former>,
    receiver: &mut Receiver,
    lane: &Lane,
    now: u64,
) -> std::io::Result<(Node, Restored)> {
    let mut owner = Owner::new(start.node, start.incarnation.into());
    let fresh = Restored { last_process: start.used.process, last_interest: start.used.interest, ..Restored::default() };
    let (mut restored, mut seen) = (fresh, BTreeMap::new());
    if let Some(former) = former {
        // Rows that are not kept are no loss to who knows of their ends: so the whole of it is listed, once.
        let versions = (former.version, former.version, true);
        match Owner::restore(start.node, former.epoch, versions, former.rows, now) {
            Ok(kept) => {
                owner = kept;
                receiver.set_version(former.version as u32);
                let Former { watches, known_process, last_process, last_interest, .. } = former;
                let rows = owner.rows().cloned().collect();
                restored = Restored { rows, watches, known_process, last_process, last_interest, has_former: true };
            }
            Err(e) => tracing::warn!("the table of the former agent is of no use: {e:?}"),
        }
        seen = former.seen;
    }
    let refused = |e| std::io::Error::other(format!("this host's table does not begin: {e:?}"));
    let version = receiver.next_notice().into();
    owner.put(HOST_ROW, version, Content::Host(host_row(start, lane, (None, None), now)), now).map_err(refused)?;
    let contract = Contract { period_ns: start.period_ns, size_max: lane.piggyback_max() as u32, ..Contract::default() };
    let mut node = Node::new(start.detector.clone(), owner, contract, seen, now).map_err(refused)?;
    node.set_calibration(start.calibration);
    Ok((node, restored))
}

/// What a host promises of its fence, or will promise.
type Promises = (Option<FencePromise>, Option<FencePromise>);

/// This host's own row, as it runs from now on.
fn host_row(start: &Start, lane: &Lane, (fence, starting): Promises, now: u64) -> Host {
    Host {
        state: State::running(now),
        boot: start.boot,
        size_max: lane.piggyback_max() as u32,
        renewed_from: None,
        fence,
        starting,
        addresses: std::array::from_fn(|path| lane.source(path as u8)),
        name: start.name.as_str().into(),
    }
}

impl Core {
    // ---- this host's table --------------------------------------------------------------------------------------------------

    /// This host's table.
    pub(super) const fn own_table(&self) -> &Owner {
        self.node.directory().owner()
    }

    /// The addresses of this host, its fence or the size of frames may have changed: its row says so, and everybody is told.
    pub(super) fn host_changed(&mut self, now: u64) {
        if let Some(Content::Host(known)) = self.own_table().get(HOST_ROW).map(|row| &row.content)
            && self.stopping.is_none()
        {
            let promise = self.node.fence().map_or((None, None), |fence| (fence.promise(), fence.starting()));
            let (state, renewed_from) = (known.state, known.renewed_from);
            let host = Host { state, renewed_from, ..host_row(&self.start, &self.lane, promise, now) };
            if host != *known {
                self.put_row(HOST_ROW, Content::Host(host), now);
            }
        }
        self.announce_soon(now);
    }

    fn put_row(&mut self, row: u32, content: Content, now: u64) {
        let version = self.receiver.next_notice().into();
        match self.node.put(row, version, content, now) {
            Ok(()) => self.keep_row(row),
            Err(e) => tracing::warn!("row {row} of this host's table is not written: {e:?}"),
        }
    }

    /// This host knows of a maintenance, and tells all others: one row for each, whose numbers do not change.
    pub(crate) fn put_maintenance(&mut self, slot: u32, maintenance: Maintenance) {
        self.put_row(MAINTENANCE_FROM + slot, Content::Maintenance(maintenance), now_ns());
    }

    /// All others are told which keys this host holds.
    pub(crate) fn put_keys(&mut self, keys: Keys) {
        self.put_row(KEYS_ROW, Content::Keys(keys), now_ns());
    }

    /// All others are told what this agent is, where that has changed.
    pub(super) fn put_agent(&mut self, now: u64) {
        let (groups, running) = self.groups.how_many();
        let (version, zone) = (env!("CARGO_PKG_VERSION").into(), self.start.zone.as_str().into());
        let agent = Agent { version, zone, groups: groups as u16, running: running as u16 };
        if self.agent_row(self.start.node).is_none_or(|known| *known != agent) && self.stopping.is_none() {
            self.put_row(AGENT_ROW, Content::Agent(agent), now);
        }
    }

    /// What a host's agent says of itself; `None`: nothing yet, or it is of a version that does not.
    pub(super) fn agent_row(&self, node: u32) -> Option<&Agent> {
        let content = if node == self.start.node {
            &self.own_table().get(AGENT_ROW)?.content
        } else {
            self.node.directory().replica(node)?.get(AGENT_ROW)?
        };
        if let Content::Agent(agent) = content { Some(agent) } else { None }
    }

    /// Has the row written to the file, for the next agent.
    pub(super) fn keep_row(&self, row: u32) {
        let Some(row) = self.own_table().get(row) else { return };
        let kept = |w: &Watched| KeptWatch {
            uid: w.uid,
            origin: w.origin,
            owner: w.owner,
            charged: w.charged,
            account: w.account,
            image: w.image,
        };
        let watch = self.watchlist.get(row.row).filter(|_| row.row != HOST_ROW).map(kept);
        self.say(Happened::Row(Box::new(row.clone()), watch));
    }

    /// Goes on with the table of this host's former agent. What ended meanwhile is told: that it did is certain, how is known if the kernel kept it.
    pub(super) fn restore(&mut self, restored: Restored, now: u64) {
        self.keep_row(HOST_ROW);
        let Restored { rows, watches, known_process, last_process, has_former, .. } = restored;
        self.watchlist.used_up_to(last_process);
        self.unknown_rows = (known_process, last_process);
        if !has_former {
            return;
        }
        self.unclaimed_at = now + UNCLAIMED_NS;
        for Row { row, content, .. } in rows.into_iter().filter(|row| !row.content.is_over()) {
            match content {
                Content::Interest(interest) => self.put_row(row, Content::Interest(Interest { is_held: false, ..interest }), now),
                Content::Process(process) => self.restore_process(row, &process, watches.get(&row), now),
                Content::Host(_) | Content::Maintenance(_) | Content::Keys(_) | Content::Agent(_) | Content::Unknown(_) => {}
            }
        }
    }

    fn restore_process(&mut self, row: u32, process: &Process, watch: Option<&KeptWatch>, now: u64) {
        let Instance { pid, start_ticks } = process.instance;
        let lives = || crate::select::lives(Path::new("/proc"), pid, start_ticks);
        if !lives() {
            return self.ended_unseen(row, process, now);
        }
        let Some(watch) = watch else {
            // Whose watch it was is not in the file, so nobody has it: that is no end.
            let state = State { cause: Cause::Left, ..State::running(now) };
            return self.put_row(row, Content::Process(Process { state, ..process.clone() }), now);
        };
        let watched = Watched {
            name: process.name.to_string(),
            pid,
            start_ticks,
            uid: watch.uid,
            origin: watch.origin,
            owner: watch.owner,
            settles_ns: 0,
            charged: watch.charged,
            account: watch.account,
            looks: 0,
            former: 0,
            pbsize: process.pbsize.into(),
            bridge: None,
            probe: None,
            hung: None,
            ends_connections: false,
            ring: None,
            image: watch.image,
            ended: None,
            ended_ns: 0,
            taken_at: 0,
            is_kept: true,
        };
        self.watchlist.restore(row, watched);
        if let Err(e) = self.receiver.watch(pid, row, start_ticks, 0) {
            tracing::warn!("process {pid} is not watched any more: {e}");
            self.unwatch(row);
            return;
        }
        // It may have ended just before it was watched.
        if !lives() {
            self.receiver.unwatch(pid);
            self.drain_urgent_of(row);
            if self.watchlist.get(row).is_some_and(|w| w.ended.is_none()) {
                self.ended_unseen(row, process, now);
            }
        } else if process.state.cause.is_progress() {
            // Its progress is judged anew.
            self.put_row(row, Content::Process(Process { state: State::running(now), ..process.clone() }), now);
        }
        let runs = || crate::select::image(Path::new("/proc"), pid, start_ticks);
        if watch.image.is_some_and(|image| runs().is_some_and(|runs| runs != image)) {
            // It had joined, and began another program while no agent ran.
            self.replaced(row);
        }
    }

    /// A process of the former agent's table runs no more. How it ended is known if the kernel kept that, or if the former agent has told it: one that is killed
    /// may have done so and not have written its table.
    fn ended_unseen(&mut self, row: u32, process: &Process, now: u64) {
        let Instance { pid, start_ticks } = process.instance;
        let is_its_end = |told: &&ToldEnd| *told.name == *process.name && told.at_ns >= process.state.event_ns;
        let told = self.start.told.iter().find(is_its_end).map(|told| (told.cause, told.code, 0, told.event_ns));
        let (cause, code, flags, event_ns) = match self.receiver.kept_end(pid, start_ticks) {
            _ if let Some(told) = told => told,
            Some(end) if end.is_out_of_memory => (Cause::OutOfMemory, end.code, 0, end.event_ns),
            Some(end) if end.is_killed => (Cause::Killed, end.code, 0, end.event_ns),
            Some(end) => (Cause::Exited, end.code, 0, end.event_ns),
            None => (Cause::Exited, -1, State::CAUSE_UNKNOWN, now),
        };
        let version = self.receiver.next_notice();
        let notice = Notice { notice: version, app: row, cause, grade: Grade::Certain, flags, code, event_ns };
        self.write_change(&notice, now);
        self.watchlist.end(row, cause, code, event_ns);
        if told.is_some() {
            return;
        }
        let (host, incarnation, name) = (self.start.name.clone(), self.start.incarnation, String::from(process.name.clone()));
        let id = Some(VerdictId::new(self.start.node, version));
        let source = EventSource { node: None, user: process.uid };
        self.tell(cause, Grade::Certain, &host, incarnation, Some(name), code, false, id, None, source, now);
    }

    /// What the configuration has not asked for again is watched no more.
    pub(super) fn let_unclaimed_go(&mut self, now: u64) {
        if now < self.unclaimed_at {
            return;
        }
        self.unclaimed_at = u64::MAX;
        let is_unclaimed = |w: &Watched| w.is_kept && w.origin == Origin::Config;
        let gone: Vec<u32> = self.watchlist.alive().filter(|(_, w)| is_unclaimed(w)).map(|(app, _)| app).collect();
        for app in gone {
            self.unwatch(app);
        }
    }

    /// A watched process of this host is new, or something of it but its state has changed.
    pub(super) fn put_process(&mut self, app: u32, now: u64) {
        let Some(w) = self.watchlist.get(app) else { return };
        let state = self.own_table().get(app).and_then(|row| row.content.state()).unwrap_or(State::running(now));
        let process = Process {
            state,
            instance: Instance { pid: w.pid, start_ticks: w.start_ticks },
            uid: w.charged,
            pbsize: u16::try_from(w.pbsize).unwrap_or(u16::MAX),
            name: w.name.as_str().into(),
        };
        self.put_row(app, Content::Process(process), now);
    }

    /// A change that was pushed.
    pub(super) fn write_change(&mut self, notice: &Notice, now: u64) {
        let change = notice.change(self.start.node);
        match self.node.change(&change, now) {
            Ok(()) => self.keep_row(notice.app),
            Err(e) => tracing::debug!("version {} of this host's table changes nothing: {e:?}", notice.notice),
        }
    }

    /// Sends what the node wants sent: hellos, introductions, rows, pulls.
    pub(super) fn transmit_node(&mut self, now: u64) {
        if now >= self.interests.due_ns {
            self.update_interests(now);
        }
        if self.node.directory().poll_timeout().is_none_or(|at_ns| now < at_ns) {
            return;
        }
        let mut body = std::mem::take(&mut self.body);
        for _ in 0..FRAMES_AT_ONCE {
            // A hello whose number somebody can guess proves nothing: it waits for a random one.
            let random = if self.node.directory().is_asking(now) { fide_lane::random() } else { Ok(0) };
            let Ok(random) = random else { break };
            let numbers = Numbers { heartbeats: self.sent.number, others: self.sent.event_number + 1 };
            let Some(transmit) = self.node.poll_transmit(now, numbers, || random, &mut body) else { break };
            let Some(kind) = Kind::of(transmit.kind) else { break };
            match transmit.to {
                To::Everybody => _ = self.send_event(kind, None, &body),
                To::Node(node) => self.send_to(node, kind, &body, true),
            }
        }
        self.body = body;
    }

    /// Sends to one host, on every path by which it can be reached, or on the first in turn that
    /// takes it.
    pub(super) fn send_to(&mut self, node: u32, kind: Kind, body: &[u8], on_all: bool) {
        let known = self.slot(node).and_then(|slot| self.peers[slot].as_ref()).map(|p| p.addresses);
        let addresses = known.or_else(|| self.node.directory().addresses(node)).unwrap_or([None; PATHS]);
        if addresses.iter().all(Option::is_none) {
            self.send_event(kind, None, body);
            return;
        }
        if self.is_fenced() {
            // By a frame for everybody, which alone leaves past the gates, if this is one that may.
            self.send_event(kind, None, body);
            return;
        }
        self.sent.event_number += 1;
        self.receiver.note_sent(false, self.sent.event_number);
        let first = if on_all { 0 } else { (self.sent.event_number % PATHS as u64) as usize };
        for path in (0..PATHS).map(|at| (first + at) % PATHS) {
            let Some(address) = addresses[path] else { continue };
            let header = self.header(kind, path as u8, self.sent.event_number);
            match fide_wire::packet::encode(&mut self.sent.packets.0[path], &header, None, body, &self.start.keys) {
                Ok(len) => match self.lane.send_to(path as u8, address, &self.sent.packets.0[path][..len]) {
                    Ok(()) if !on_all && self.lane.mode(path as u8) != PathMode::Down => return,
                    Ok(()) => {}
                    Err(e) => tracing::debug!("{kind:?} to {address} on path {path}: {e}"),
                },
                Err(e) => tracing::error!("{kind:?} not sent: {e}"),
            }
        }
    }

    fn update_interests(&mut self, now: u64) {
        (self.interests.due_ns, self.interests.looked_ns) = (u64::MAX, now);
        let wanted: BTreeMap<(u32, u32), u32> =
            self.subscribers.monitored(self.start.node).map(|(node, app, pbsize)| ((node, app), pbsize)).collect();
        let interest = |(node, row): (u32, u32), pbsize: u32, is_held| {
            Content::Interest(Interest { node, row, pbsize: u16::try_from(pbsize).unwrap_or(u16::MAX), is_held })
        };
        let lost: Vec<_> =
            self.interests.held.iter().filter(|(of, _)| !wanted.contains_key(of)).map(|(of, at)| (*of, *at)).collect();
        for (of, (row, pbsize)) in lost {
            self.interests.held.remove(&of);
            self.put_row(row, interest(of, pbsize, false), now);
        }
        for (of, pbsize) in wanted {
            let row = match self.interests.held.get(&of) {
                Some((_, known)) if *known == pbsize => continue,
                Some((row, _)) => *row,
                None => {
                    let Some(row) = next_interest(self.interests.last_row) else {
                        tracing::error!(
                            "no number is left for what is monitored from here: restart this agent, which begins again"
                        );
                        break;
                    };
                    self.interests.last_row = row;
                    row
                }
            };
            self.interests.held.insert(of, (row, pbsize));
            self.put_row(row, interest(of, pbsize, true), now);
        }
    }

    // ---- what applications ask --------------------------------------------------------------------------------------------

    /// What is known of a target, and how the last process of its name ended.
    pub(super) fn target_state(&self, target: &Target) -> (TargetState, Option<(Cause, i32)>) {
        let (name, host) = match target {
            Target::Everything => return (TargetState::Alive, None),
            Target::Host(host) => (None, host),
            Target::Process(name, host) => (Some(name.as_str()), host),
        };
        let is_own = *host == self.start.name;
        let node = fide_wire::name_id(host);
        let peer = self.slot(node).and_then(|slot| self.peers[slot].as_ref()).filter(|p| p.name == *host);
        if !is_own && peer.is_none() {
            let was_heard = self.start.known.contains_key(host);
            return (if was_heard { TargetState::Unobserved } else { TargetState::NoHost }, None);
        }
        let restarts = self.state_of(node) == Some(detector::State::Restarting);
        let is_heard = !restarts && peer.is_none_or(|p| !p.condemned && !p.left);
        let Some(name) = name else {
            return (if is_heard { TargetState::Alive } else { TargetState::Unobserved }, None);
        };
        let rows: Box<dyn Iterator<Item = (u64, &Content)>> = if is_own {
            Box::new(self.own_table().rows().map(|row| (row.version, &row.content)))
        } else {
            let Some(replica) = self.node.directory().replica(node) else { return (TargetState::NoProcess, None) };
            Box::new(replica.rows().map(|(row, content)| (replica.version(row).unwrap_or_default(), content)))
        };
        let of_name = rows.filter_map(|(version, content)| match content {
            Content::Process(p) if *p.name == *name => Some((version, p.state)),
            _ => None,
        });
        // One that runs, else the last one that ended.
        let Some((_, state)) = of_name.max_by_key(|(version, state)| (!state.cause.ends_process(), *version)) else {
            return (TargetState::NoProcess, None);
        };
        match state.cause {
            cause if cause.ends_process() => (TargetState::Ended, Some((cause, state.code))),
            _ if !is_heard => (TargetState::Unobserved, None),
            Cause::Hung => (TargetState::Hung, None),
            _ => (TargetState::Alive, None),
        }
    }

    /// Tells a ring of those of these processes that have ended. Of a table that is not whole here the rest follows by itself.
    pub(crate) fn tell_what_became(&mut self, ring: u32, instances: &[(u32, u32)]) {
        let now = now_ns();
        for (node, app) in instances.iter().copied().filter(|(_, app)| *app < INTERESTS_FROM) {
            let (content, version, incarnation) = if node == self.start.node {
                let row = self.own_table().get(app);
                (row.map(|row| &row.content), row.map_or(0, |row| row.version), self.start.incarnation)
            } else {
                let Some(peer) = self.slot(node).and_then(|slot| self.peers[slot].as_ref()) else { continue };
                let Some(replica) = self.node.directory().replica(node).filter(|_| self.node.is_handed_in(node)) else {
                    continue;
                };
                (replica.get(app), replica.version(app).unwrap_or_default(), peer.incarnation)
            };
            let (name, state) = match content {
                Some(Content::Process(p)) => (p.name.to_string(), p.state),
                // It was of a table that is lost, in whole or behind what was written of it: nobody watches it, and what became of it is not known.
                None if node == self.start.node && app > self.unknown_rows.0 && app <= self.unknown_rows.1 => {
                    (String::new(), State { cause: Cause::Left, ..State::running(now) })
                }
                // Its row was removed long after its end.
                None => {
                    (String::new(), State { cause: Cause::Exited, flags: State::CAUSE_UNKNOWN, code: -1, ..State::running(now) })
                }
                Some(_) => continue,
            };
            if !state.cause.ends_process() {
                continue;
            }
            let record = self.host_record(state.cause, state.grade, node, incarnation, now);
            let record = Record {
                kind: RecordKind::Process as u16,
                app,
                code: state.code,
                id: VerdictId::new(node, version as u32).0,
                flags: if state.flags & State::CONFIRMS != 0 { Record::CONFIRMS } else { 0 },
                event_ns: state.event_ns,
                received_ns: now,
                ..record
            };
            self.subscribers.publish(1 << ring, &record, name.as_bytes(), false, self.receiver.mechanism());
        }
    }

    pub(super) fn monitored_by_other(&mut self, from: u32, interest: &Interest) {
        if interest.node != self.start.node {
            return;
        }
        let (app, pbsize) = (interest.row, u32::from(interest.pbsize));
        if !interest.is_held {
            self.monitored_by.remove(&(from, app));
            return;
        }
        if self.monitored_by.insert((from, app), pbsize) == Some(pbsize) {
            return;
        }
        if let Some(ring) = self.watchlist.get(app).filter(|w| w.ended.is_none()).and_then(|w| w.ring) {
            let record = Record {
                kind: RecordKind::MonitorRequest as u16,
                node: from,
                app,
                code: pbsize as i32,
                event_ns: now_ns(),
                ..Record::default()
            };
            self.subscribers.publish(1 << ring, &record, &[], false, self.receiver.mechanism());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_interests_end_before_those_of_maintenances() {
        assert_eq!(next_interest(INTERESTS_FROM), Some(INTERESTS_FROM + 1));
        assert_eq!(next_interest(MAINTENANCE_FROM - 2), Some(MAINTENANCE_FROM - 1));
        assert_eq!([MAINTENANCE_FROM - 1, u32::MAX].map(next_interest), [None, None]);
    }
}
