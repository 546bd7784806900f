//! Tables on the wire: what the loop writes into this host's, and what it makes of changes in others'.
//!
//! ```text
//! watch, join, leave ─► Owner ─► rows, pushed            a crash ─► Core::local_end: pushed before it is written
//! others' rows, changes ─► Replica ─► Core::row_event ─► detector ─► history, hooks, rings
//! version in heartbeats ─► a pull, where something is missing
//! ```

use super::{Core, Happened, MONITORS_PAUSE_NS, now_ns};
use crate::kept::{Former, KeptWatch};
use crate::peers::RemoteApp;
use crate::shares::EventSource;
use crate::subscribers::{Target, key};
use crate::watchlist::{Origin, Watched};
use fide_proto::detector::{AppState, Taken};
use fide_proto::node::Tables;
use fide_proto::node::table::Event;
use fide_proto::node::table::Owner;
use fide_proto::node::table::owner::To;
use fide_proto::node::tables::{Ignored, Said};
use fide_wire::control::TargetState;
use fide_wire::event::{Record, RecordKind};
use fide_wire::frame::table::{Content, HOST_ROW, Host, Instance, Interest, Process, Row, State};
use fide_wire::packet::{Announce, Header, Kind, Notice};
use fide_wire::verdict::{Cause, Grade, VerdictId};
use fide_wire::{PATHS, SLOTS};
use std::collections::BTreeMap;
use std::path::Path;

/// Frames of rows and pulls that leave in one loop iteration: each takes some 20 µs.
const FRAMES_AT_ONCE: usize = 2;
/// A process that a former agent watched for its configuration is let go if this one has not asked for it in so long.
const UNCLAIMED_NS: u64 = 10_000_000_000;
/// Rows of interests have numbers from here on; those of processes lie below.
pub(crate) const INTERESTS_FROM: u32 = 0xc000_0000;

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

/// When and how what a row says came in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    path: u8,
    sent_ns: u64,
    received_ns: u64,
}

impl Came {
    pub(super) fn by(record: &Record) -> Self {
        Self { path: record.path, sent_ns: record.sent_ns, received_ns: record.received_ns }
    }

    /// What was known before, and is looked at again.
    pub(super) const fn now(now_ns: u64) -> Self {
        Self { path: 0, sent_ns: 0, received_ns: now_ns }
    }
}

impl Core {
    // ---- this host's table --------------------------------------------------------------------------------------------------

    /// This host's own row, as it runs from now on.
    pub(super) fn put_host(&mut self, now: u64) {
        let host = Host {
            state: State::running(now),
            boot: self.start.boot,
            size_max: self.lane.piggyback_max() as u32,
            renewed: self.renewed,
            fence: None,
            addresses: std::array::from_fn(|path| self.lane.source(path as u8)),
            name: self.start.name.as_str().into(),
        };
        self.put_row(HOST_ROW, Content::Host(host), now);
    }

    fn put_row(&mut self, row: u32, content: Content, now: u64) {
        let version = self.receiver.next_notice().into();
        match self.tables.put(row, version, content, now) {
            Ok(()) => self.keep_row(row),
            Err(e) => tracing::warn!("row {row} of this host's table is not written: {e:?}"),
        }
    }

    /// Has the row written to the file, for the next agent.
    fn keep_row(&self, row: u32) {
        let Some(row) = self.tables.owner().get(row) else { return };
        let kept =
            |w: &Watched| KeptWatch { uid: w.uid, origin: w.origin, owner: w.owner, charged: w.charged, account: w.account };
        let watch = self.watchlist.get(row.row).filter(|_| row.row != HOST_ROW).map(kept);
        self.say(Happened::Row(Box::new(row.clone()), watch));
    }

    /// Goes on with the table of this host's former agent. What ended meanwhile is told: that it did is certain, how is not known.
    pub(super) fn restore(&mut self, former: Former, now: u64) {
        let Former { epoch, version, is_exact, last_process, last_interest, rows, watches, seen } = former;
        self.seen_before = seen;
        // Rows that are not kept are no loss to who knows of their ends: so the whole of it is listed, once.
        let owner = match Owner::restore(self.start.node, epoch, (version, version, !is_exact), rows, now) {
            Ok(owner) => owner,
            Err(e) => return tracing::warn!("the table of the former agent is of no use: {e:?}"),
        };
        let rows: Vec<Row> = owner.rows().cloned().collect();
        self.tables = Tables::new(owner, SLOTS);
        self.receiver.set_version(version as u32);
        self.watchlist.used_up_to(last_process);
        self.interests = Interests::new(last_interest);
        self.unclaimed_at = now + UNCLAIMED_NS;
        for Row { row, content, .. } in rows.into_iter().filter(|row| !row.content.is_over()) {
            match content {
                Content::Interest(interest) => self.put_row(row, Content::Interest(Interest { is_held: false, ..interest }), now),
                Content::Process(process) => self.restore_process(row, &process, watches.get(&row), now),
                Content::Host(_) | Content::Unknown(_) => {}
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
            ring: None,
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
            self.drain_urgent();
            if self.watchlist.get(row).is_some_and(|w| w.ended.is_none()) {
                self.ended_unseen(row, process, now);
            }
        } else if process.state.cause.is_progress() {
            // Its progress is judged anew.
            self.put_row(row, Content::Process(Process { state: State::running(now), ..process.clone() }), now);
        }
    }

    /// A process of the former agent's table runs no more.
    fn ended_unseen(&mut self, row: u32, process: &Process, now: u64) {
        let version = self.receiver.next_notice();
        let flags = State::CAUSE_UNKNOWN;
        let notice =
            Notice { notice: version, app: row, cause: Cause::Exited, grade: Grade::Certain, flags, code: -1, event_ns: now };
        self.write_change(&notice, now);
        self.watchlist.end(row, Cause::Exited, -1, now);
        let (host, incarnation, name) = (self.start.name.clone(), self.start.incarnation, String::from(process.name.clone()));
        let id = Some(VerdictId::new(self.start.node, version));
        let source = EventSource { node: None, user: process.uid };
        self.tell(Cause::Exited, Grade::Certain, &host, incarnation, Some(name), -1, false, id, None, source, now);
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
        let state = self.tables.owner().get(app).and_then(|row| row.content.state()).unwrap_or(State::running(now));
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
        match self.tables.change(&change, now) {
            Ok(()) => self.keep_row(notice.app),
            Err(e) => tracing::debug!("version {} of this host's table changes nothing: {e:?}", notice.notice),
        }
    }

    /// Pushes rows, pulls what is missing here, answers others' pulls.
    pub(super) fn exchange_rows(&mut self, now: u64) {
        if now >= self.interests.due_ns {
            self.update_interests(now);
        }
        if self.tables.poll_timeout().is_none_or(|at_ns| now < at_ns) {
            return;
        }
        self.tables.handle_timeout(now);
        let mut body = std::mem::take(&mut self.body);
        for _ in 0..FRAMES_AT_ONCE {
            let Some(transmit) = self.tables.poll_transmit(&mut body, now) else { break };
            let Some(kind) = Kind::of(transmit.kind) else { break };
            match transmit.to {
                To::Everybody => _ = self.send_event(kind, None, &body),
                To::Node(node) => self.send_to(node, kind, &body),
            }
        }
        self.body = body;
    }

    /// Sends to one host, on every path by which it can be reached.
    pub(super) fn send_to(&mut self, node: u32, kind: Kind, body: &[u8]) {
        let addresses = self.slot(node).and_then(|slot| self.peers[slot].as_ref()).map_or([None; PATHS], |p| p.addresses);
        if addresses.iter().all(Option::is_none) {
            self.send_event(kind, None, body);
            return;
        }
        if self.is_fenced() {
            return;
        }
        self.event_number += 1;
        self.receiver.note_sent(false, self.event_number);
        for (path, address) in addresses.into_iter().enumerate() {
            let Some(address) = address else { continue };
            let header = self.header(kind, path as u8, self.event_number);
            match fide_wire::packet::encode(&mut self.packets[path], &header, None, body, &self.start.keys) {
                Ok(len) => {
                    if let Err(e) = self.lane.send_to(path as u8, address, &self.packets[path][..len]) {
                        tracing::debug!("{kind:?} to {address} on path {path}: {e}");
                    }
                }
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
                    self.interests.last_row = self.interests.last_row.saturating_add(1);
                    self.interests.last_row
                }
            };
            self.interests.held.insert(of, (row, pbsize));
            self.put_row(row, interest(of, pbsize, true), now);
        }
    }

    // ---- the tables of others -----------------------------------------------------------------------------------------------

    /// A host that is believed says which table it writes.
    pub(super) fn table_said(&mut self, node: u32, a: &Announce, now: u64) {
        if a.epoch == 0 {
            return;
        }
        let said = Said { epoch: a.epoch, complete: a.complete, boot: a.boot };
        if let Err(e) = self.tables.introduced(node, &said, now) {
            tracing::warn!("the table of {} is not followed: {e:?}", a.name);
        }
        self.take_rows(Came::now(now), now);
        self.hand_in_rows(node, now);
    }

    /// Rows, or a pull.
    pub(super) fn rows_came(&mut self, head: &Record, header: &Header, body: &[u8], now: u64) {
        let is_believed = |p: &crate::peers::Peer| p.incarnation == header.incarnation && !p.condemned && !p.left;
        if self.slot(header.sender).and_then(|slot| self.peers[slot].as_deref()).is_none_or(|p| !is_believed(p)) {
            return;
        }
        match self.tables.handle_frame(header.sender, header.kind.frame(), body, now) {
            Err(Ignored::Malformed) => tracing::warn!("{:?} of {:08x} not understood", header.kind, header.sender),
            Err(e) => tracing::debug!("{:?} of {:08x}: {e:?}", header.kind, header.sender),
            Ok(()) => {}
        }
        self.take_rows(Came::by(head), now);
        self.hand_in_rows(header.sender, now);
    }

    /// A notice, which the detector has taken: it is a change of its sender's table.
    pub(super) fn change_came(&mut self, node: u32, notice: &Notice, came: Came, now: u64) {
        // A copy, or one that was pulled before.
        let _ = self.tables.changed(node, &notice.change(node), now);
        self.take_rows(came, now);
    }

    /// What became known of others' tables.
    pub(super) fn take_rows(&mut self, came: Came, now: u64) {
        while let Some((node, event)) = self.tables.poll_event() {
            let Some(slot) = self.slot(node) else { continue };
            if self.peers[slot].as_ref().is_none_or(|p| p.condemned || p.left) {
                continue; // its rows are handed in again when it comes back
            }
            match event {
                Event::Appeared { row, .. } | Event::Renumbered { row, .. } => self.row_appeared(slot, row, came, now),
                Event::Changed { row: HOST_ROW, .. } | Event::Updated { row: HOST_ROW } => {}
                Event::Changed { row, version, after, .. } => self.row_changed(slot, row, version as u32, &after, came, now),
                Event::Updated { row } => self.row_updated(slot, row),
                Event::Complete => {
                    self.whole.insert(node);
                    self.hand_in_rows(node, now);
                }
                Event::Lost { content, .. } => self.lost_unseen(slot, &content, now),
            }
        }
        self.act(now);
    }

    /// In a new incarnation of a host everything that goes on there is told to the detector anew, once its table is known.
    pub(super) fn hand_in_rows(&mut self, node: u32, now: u64) {
        let Some(slot) = self.slot(node) else { return };
        let Some(peer) = self.peers[slot].as_mut().filter(|p| !p.condemned && !p.left && !p.handed_in) else { return };
        let Some(replica) = self.tables.replica(node).filter(|replica| replica.is_complete()) else { return };
        peer.handed_in = true;
        let (epoch, version) = (replica.epoch(), replica.complete());
        let goes_on = |content: &Content| !content.is_over();
        let rows: Vec<u32> = replica.rows().filter(|(row, c)| *row != HOST_ROW && goes_on(c)).map(|(row, _)| row).collect();
        for row in rows {
            self.row_appeared(slot, row, Came::now(now), now);
        }
        self.act(now);
        self.say(Happened::Seen { node, epoch, version });
    }

    fn row_updated(&mut self, slot: usize, row: u32) {
        let Some(peer) = self.peers[slot].as_mut() else { return };
        match self.tables.replica(peer.node).and_then(|replica| replica.get(row)) {
            Some(Content::Process(p)) => {
                if let Some(known) = peer.apps.get_mut(&row) {
                    (known.user, known.pbsize) = (p.uid, p.pbsize.into()); // a watch may have changed hands
                }
            }
            Some(Content::Interest(interest)) => {
                let (node, interest) = (peer.node, *interest);
                self.monitored_by_other(node, &interest);
            }
            _ => {}
        }
    }

    fn row_appeared(&mut self, slot: usize, row: u32, came: Came, now: u64) {
        let Some(peer) = self.peers[slot].as_ref() else { return };
        let (node, incarnation) = (peer.node, peer.incarnation);
        let process = match self.tables.replica(node).and_then(|replica| replica.get(row)) {
            Some(Content::Process(p)) => p.clone(),
            Some(Content::Interest(interest)) => {
                let interest = *interest;
                return self.monitored_by_other(node, &interest);
            }
            _ => return,
        };
        let known = self.detector.app_state(node, row);
        let Some(peer) = self.peers[slot].as_mut() else { return };
        if peer.apps.contains_key(&row) && known.is_some() {
            return; // handed in already
        }
        let (name, host, state) = (String::from(process.name), peer.name.clone(), process.state);
        let app = RemoteApp { name: name.clone(), pbsize: process.pbsize.into(), user: process.uid, ended: None };
        peer.appeared(row, app);
        self.subscribers.number(node, incarnation, row, self.receiver.mechanism());
        let heard = self.subscribers.rings(node, row);
        let target = Target::Process(name, host);
        let wants: Vec<(u32, u32)> = self.subscribers.wanting(&target).map(|(ring, want)| (ring, want.pbsize)).collect();
        let wanting = wants.iter().fold(0u64, |mask, (ring, _)| mask | 1 << ring);
        match known {
            // Its notice was quicker than its name: those who asked for it by name have not heard of it.
            Some(AppState::Doomed { code, id }) => self.heard_late(slot, row, Cause::Doomed, code, id, wanting & !heard, now),
            Some(AppState::Ended { cause, code, id }) => self.heard_late(slot, row, cause, code, id, wanting & !heard, now),
            _ if state.cause.ends_process() => self.ended_unheard(slot, row, &state, wanting | heard, came, now),
            _ => {
                if let Err(e) = self.detector.app_seen(node, incarnation, row) {
                    tracing::warn!("process {row} on {node:08x} is not followed: {e}");
                    return;
                }
                // Its name first: it may end as soon as somebody listens.
                self.appeared(node, incarnation, row, wanting, now);
                for (ring, pbsize) in wants {
                    self.subscribers.listen(key(node, row), ring, pbsize, self.receiver.mechanism());
                }
                self.interests.changed(now);
                if state.cause == Cause::Hung {
                    let version = self.version_of(node, row);
                    self.row_changed(slot, row, version, &state, came, now);
                    self.introduce_hung(wanting, node, row, now);
                }
            }
        }
    }

    fn version_of(&self, node: u32, row: u32) -> u32 {
        self.tables.replica(node).and_then(|replica| replica.version(row)).unwrap_or_default() as u32
    }

    /// A process that nobody here has heard of had ended when its row came.
    fn ended_unheard(&mut self, slot: usize, row: u32, state: &State, rings: u64, came: Came, now: u64) {
        let Some(node) = self.peers[slot].as_ref().map(|p| p.node) else { return };
        let version = self.version_of(node, row);
        let epoch = self.tables.replica(node).map_or(0, |replica| replica.epoch());
        let since_former = self.seen_before.get(&node).is_some_and(|(of, told)| *of == epoch && u64::from(version) > *told);
        let is_news = (self.whole.contains(&node) || since_former) && state.cause != Cause::Left;
        if !is_news {
            // It ended before this agent's time.
            self.mark_ended(node, row, state.cause);
            return;
        }
        if self.take_state(slot, row, version, state, came, now) {
            let id = VerdictId::new(node, version);
            self.heard_late(slot, row, state.cause, state.code, id, rings, now);
        }
    }

    /// Whether this state of a process is news to the detector.
    fn take_state(&mut self, slot: usize, row: u32, version: u32, state: &State, came: Came, now: u64) -> bool {
        let Some((node, incarnation)) = self.peers[slot].as_ref().map(|p| (p.node, p.incarnation)) else { return false };
        let notice = notice_of(row, version, state);
        let Came { path, sent_ns, received_ns } = came;
        let taken = self.detector.notice(node, incarnation, &notice, sent_ns.max(1), received_ns, path, now);
        match taken {
            Ok(Taken::New) => true,
            Ok(Taken::Duplicate) => false,
            Err(e) => {
                tracing::debug!("row {row} of {node:08x}: {e}");
                false
            }
        }
    }

    /// A process has another state than was known here. Its notice may have come before.
    fn row_changed(&mut self, slot: usize, row: u32, version: u32, state: &State, came: Came, now: u64) {
        let Some(peer) = self.peers[slot].as_ref() else { return };
        let (node, incarnation) = (peer.node, peer.incarnation);
        // In a new incarnation of its host, nobody knows it yet by its name.
        if !peer.apps.contains_key(&row) {
            if state.cause.ends_process() {
                self.row_appeared(slot, row, came, now);
            }
            return; // what goes on is handed in when the whole table is known
        }
        if !self.take_state(slot, row, version, state, came, now) {
            return;
        }
        let record = self.host_record(state.cause, state.grade, node, incarnation, now);
        let record = Record {
            kind: RecordKind::Process as u16,
            app: row,
            code: state.code,
            id: VerdictId::new(node, version).0,
            flags: if state.flags & State::CONFIRMS != 0 { Record::CONFIRMS } else { 0 },
            path: came.path,
            event_ns: state.event_ns,
            sent_ns: came.sent_ns,
            received_ns: came.received_ns,
            ..record
        };
        self.noticed(slot, &record, state.cause, false);
    }

    /// A process of a table that its host has lost ended while nobody watched it. Its number may be another one's by now, so it is told by name alone.
    fn lost_unseen(&mut self, slot: usize, content: &Content, now: u64) {
        let (Some(peer), Content::Process(process)) = (self.peers[slot].as_ref(), content) else { return };
        let (node, incarnation, host) = (peer.node, peer.incarnation, peer.name.clone());
        let name = String::from(process.name.clone());
        let source = self.source(node, 0);
        self.tell(Cause::Exited, Grade::Certain, &host, incarnation, Some(name), -1, false, None, None, source, now);
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
        let is_heard = peer.is_none_or(|p| !p.condemned && !p.left);
        let Some(name) = name else {
            return (if is_heard { TargetState::Alive } else { TargetState::Unobserved }, None);
        };
        let rows: Box<dyn Iterator<Item = (u64, &Content)>> = if is_own {
            Box::new(self.tables.owner().rows().map(|row| (row.version, &row.content)))
        } else {
            let Some(replica) = self.tables.replica(node) else { return (TargetState::NoProcess, None) };
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
                let row = self.tables.owner().get(app);
                (row.map(|row| &row.content), row.map_or(0, |row| row.version), self.start.incarnation)
            } else {
                let Some(peer) = self.slot(node).and_then(|slot| self.peers[slot].as_ref()) else { continue };
                let Some(replica) = self.tables.replica(node).filter(|_| peer.handed_in) else { continue };
                (replica.get(app), replica.version(app).unwrap_or_default(), peer.incarnation)
            };
            let (name, state) = match content {
                Some(Content::Process(p)) => (p.name.to_string(), p.state),
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

    fn monitored_by_other(&mut self, from: u32, interest: &Interest) {
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

/// A state as the notice that told of it.
fn notice_of(row: u32, version: u32, state: &State) -> Notice {
    let State { cause, grade, flags, code, event_ns } = *state;
    Notice { notice: version, app: row, cause, grade, flags, code, event_ns }
}
