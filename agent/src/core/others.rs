//! Other hosts: what comes of them goes to the node, and what the node makes of it is done here.
//!
//! ```text
//! introduction, hello, rows, pull, change ─► Node ─► a host lives, a process runs ─► peers, receive program, rings
//!                                              └──► a verdict ─► rings, groups, history, hooks
//! ```

use super::{Core, Happened, PACKETS_BEFORE_NOTICE};
use crate::clock::now_ns;
use crate::peers::{Peer, RemoteApp};
use crate::shares::EventSource;
use crate::subscribers::{Target, key};
use fide_proto::detector::{self, Action, Verdict};
use fide_proto::node::directory::Ignored;
use fide_proto::node::machine::{Came, Event};
use fide_proto::node::probing;
use fide_wire::control::{ErrorCode, Refused};
use fide_wire::event::{Record, RecordKind};

use fide_wire::frame;
use fide_wire::frame::introduction::Introduction;
use fide_wire::frame::table::{Content, HOST_ROW, Process, State};
use fide_wire::level::FORGOTTEN_EVENT_CODE;
use fide_wire::names::NAME_MAX;
use fide_wire::packet::{Header, Notice};
use fide_wire::verdict::{Cause, Confirmers, Evidence, FenceMode, Grade};
use fide_wire::{PATHS, SLOTS};
use fide_xdp::Used;

fn came(record: &Record) -> Came {
    Came { path: record.path, received_ns: record.received_ns }
}

impl Core {
    // ---- what comes in ------------------------------------------------------------------------------------------------------

    /// A host says who it is. Unless it answers a fresh number of this host, or did so before, nothing of it is believed.
    pub(super) fn introduced(&mut self, head: &Record, header: &Header, body: &[u8], now: u64) {
        let Some(said) = Introduction::read(body) else {
            return tracing::warn!("introduction of {:08x} not understood", header.sender);
        };
        let name = &*said.host.name;
        let is_name = (1..=NAME_MAX).contains(&name.len()) && fide_wire::name_id(name) == header.sender;
        if !is_name || probing::is_reserved(header.sender) {
            return tracing::warn!("an introduction names {name:?}, which is not node {:08x}", header.sender);
        }
        if let Some(known) = self.start.known.get(name).filter(|known| header.incarnation < **known) {
            let is_last = header.incarnation + 1 == *known && self.slot(header.sender).is_none();
            let refutes = said.refuted.contains(&(self.start.node, self.start.incarnation));
            let is_by_majority =
                said.host.fence.is_some_and(|promise| promise.mode == FenceMode::Acknowledged(Confirmers::Majority));
            if is_last && (refutes || self.node.takes_back(now) && is_by_majority) {
                // A former agent of this host gave it up. What it says to that names this life: it lives now.
                self.node.refuted_by_introduction(header.sender, header.incarnation, now);
                return self.act(None, now);
            }
            // A replay of a life that was seen to end; or a host whose clock or memory went back, which the next report tells to begin anew.
            if self.slot(header.sender).is_none() {
                let former = self.former_ended && self.former_known.get(name) == Some(known);
                self.node.outdated(header.sender, known - 1, former, now);
            }
            return;
        }
        // Not believed yet: it is asked, and its answer will say the same again.
        let _ = self.node.handle_introduction(&header.frame(), said, came(head), now);
        self.act(None, now);
    }

    /// A hello, rows or a pull.
    pub(super) fn frame_came(&mut self, head: &Record, header: &Header, body: &[u8], now: u64) {
        match self.node.handle_frame(&header.frame(), header.kind.frame(), body, came(head), now) {
            Err(Ignored::Malformed) => tracing::warn!("{:?} of {:08x} not understood", header.kind, header.sender),
            // The copy of the other path.
            Ok(()) | Err(Ignored::OldNumber) => {}
            Err(e) => tracing::debug!("{:?} of {:08x}: {e:?}", header.kind, header.sender),
        }
        self.act(None, now);
    }

    /// A notice of another host. Whether it is news is the node's to say: a copy that the kernel calls a duplicate may be the first
    /// that found room in the ring.
    pub(super) fn remote_notice(&mut self, record: &Record, now: u64) {
        let (Some(cause), Some(grade)) = (record.cause(), record.grade()) else { return };
        // What was sent before the notice arrived before it: it is told before it (FiDe §4.1).
        self.drain_inbox(PACKETS_BEFORE_NOTICE);
        let flags = if record.flags & Record::CONFIRMS != 0 { Notice::CONFIRMS } else { 0 };
        let (notice, app, code) = (record.id as u32, record.app, record.code);
        let notice = Notice { notice, app, cause, grade, flags, code, event_ns: record.event_ns };
        let (sender, incarnation, sent_ns) = (record.node, record.incarnation, record.sent_ns);
        let header = frame::Header { sender, incarnation, sent_ns, ..frame::Header::default() };
        if let Err(e) = self.node.handle_change(&header, &notice.change(sender), came(record), now) {
            tracing::debug!("change {} of {sender:08x}: {e:?}", notice.notice);
        }
        self.act(Some(record), now);
    }

    // ---- what the node makes of it ------------------------------------------------------------------------------------------

    /// Does what the node wants done. `notice`: the kernel's record of the change that was handed in just now.
    pub(super) fn act(&mut self, notice: Option<&Record>, now: u64) {
        while let Some(event) = self.node.poll_event() {
            match event {
                Event::Act(action) => self.do_action(action, notice, now),
                Event::Ask(action) => self.put(action, now),
                Event::Host { node, incarnation, introduction } => self.host_lives(node, incarnation, &introduction, now),
                Event::Announced { node, introduction } => self.host_said(node, &introduction, now),
                Event::Runs { node, row, .. } => self.process_runs(node, row, now),
                Event::Updated { node, row } => self.process_updated(node, row),
                Event::Interest { node, interest } => self.monitored_by_other(node, &interest),
                Event::Keys { node, keys } => self.say(Happened::Keys { host: self.node_name(node), keys }),
                Event::Maintenance { node, maintenance, is_fresh } => {
                    self.say(Happened::Maintenance { host: self.node_name(node), maintenance, is_fresh });
                }
                Event::Whole { node, epoch, version } => self.say(Happened::Seen { node, epoch, version }),
                Event::Lost { node, incarnation, row, confirms, process } => {
                    self.lost_with_its_table((node, incarnation, row), confirms, &process, now);
                }
                Event::Forgotten { node } => self.slot(node).into_iter().for_each(|slot| self.empty_slot(slot)),
                Event::NameClash { .. } => self.complained.clash_count += 1,
                Event::Fence(step) => self.move_gates(step, now),
                Event::Fenced { node, incarnation } => self.fenced_later(node, incarnation, now),
                Event::GivenUp { by, incarnation } => {
                    tracing::warn!("{} has given incarnation {incarnation} up: starting a new one", self.node_name(by));
                    self.start_over(incarnation, now);
                }
                Event::Refuted { by, .. } => self.refuted(by),
                Event::Mistaken { node, incarnation, renews } => self.was_mistaken(node, incarnation, renews, now),
                Event::Multicast { path, hosts } => self.multicast_fails(path, &hosts, now),
                Event::Margin { node, incarnation, path, breach } => self.margin(node, incarnation, path, breach, now),
            }
        }
    }

    fn do_action(&mut self, action: Action, notice: Option<&Record>, now: u64) {
        match action {
            Action::Verdict(v) => self.verdict(&v, notice, now),
            // The node makes questions of these.
            Action::Probe { .. } | Action::Knock { .. } | Action::AskOthers { .. } => {}
            Action::Condemn { node, incarnation } => self.condemn(node, incarnation),
            // Its members of groups end with it.
            Action::Restarts { node, incarnation } => {
                self.groups.handle_verdict(now, node, incarnation, Cause::Left, Grade::Certain);
            }
            Action::TimeoutChanged { node, timeout_ns } => {
                let record = Record {
                    kind: RecordKind::TimeoutChanged as u16,
                    node,
                    number: timeout_ns,
                    event_ns: now,
                    ..Record::default()
                };
                let rings = self.subscribers.rings_of_host(&self.node_name(node));
                self.subscribers.publish(rings, &record, &[], false, self.receiver.mechanism());
            }
        }
    }

    /// An incarnation of a host has shown that it lives.
    fn host_lives(&mut self, node: u32, incarnation: u32, said: &Introduction, now: u64) {
        let name = &*said.host.name;
        let slot = self.slot(node).or_else(|| self.peers.iter().position(Option::is_none));
        let Some(slot) = slot else { return tracing::warn!("{name} is not taken on: all {SLOTS} places are taken") };
        // Before its row begins at zero.
        let lost = self.peers[slot].as_ref().map_or([0; PATHS], |old| old.lost(&self.receiver.peer(slot)));
        let used = Used { heartbeats: said.heartbeats, others: said.others };
        if let Err(e) = self.receiver.set_peer(slot, node, incarnation, used) {
            return tracing::error!("{name}: {e}");
        }
        let mut peer = Peer::new(node, name, incarnation);
        peer.lost_before = lost;
        if let Some(old) = self.peers[slot].replace(Box::new(peer)) {
            for app in old.apps.keys() {
                self.subscribers.clear(node, *app, self.receiver.mechanism());
            }
        }
        self.watch_node_targets(name, node);
        self.start.known.insert(name.to_owned(), incarnation);
        self.say(Happened::Met(name.to_owned(), incarnation));
        self.weigh_state(name, said);
        self.groups.handle_life(now, node, incarnation, said.host.renewed_from.unwrap_or(incarnation));
        self.host_said(node, said, now);
        self.announce_soon(now); // so that the newcomer knows us at once
    }

    /// Another host has seen an incarnation of this one that its state on disk did not know of: that is a backup, or a copy, of an earlier time. What it says of
    /// members and groups may have changed since. Before anything of a group is believed of that host.
    fn weigh_state(&mut self, by: &str, said: &Introduction) {
        let seen =
            said.answers.iter().filter(|answer| answer.node == self.start.node).map(|answer| answer.seen).max().unwrap_or(0);
        let Some(former) = self.start.former_incarnation else { return };
        // One more than it knew: the agent may have ended before that was on disk. One more than is begun: the other host has noted that this one is over.
        let is_known = seen <= former.saturating_add(1)
            || (self.first_incarnation..=self.start.incarnation.saturating_add(1)).contains(&seen);
        if is_known {
            return;
        }
        self.start.former_incarnation = None; // told once
        self.node.expect_nobody();
        let now = now_ns();
        // Those of the configuration it is to be in, whatever its disk says.
        let is_planned = |name: &String| self.group_plans.has(name);
        self.groups.forget_remembered();
        self.start.last_sets.clear();
        let groups: Vec<String> = std::mem::take(&mut self.start.groups).into_iter().filter(|name| !is_planned(name)).collect();
        for name in &groups {
            // Refused where it has failed or left meanwhile.
            let _ = self.groups.give_up(now, name);
        }
        let groups = if groups.is_empty() { "none".to_owned() } else { groups.join(", ") };
        let text = format!(
            "the state on this host's disk is an old one: it ends with incarnation {former}, and {by} has seen incarnation {seen}. It counts as none: no host \
             is waited for that was not heard since, and this host joins no group by it (it named {groups}); of a group that it is to be in: fide group join"
        );
        self.tell_local(EventSource::OWN, 0, text);
        let heard = self.peers.iter().flatten().map(|peer| peer.name.clone()).collect();
        self.say(Happened::OldState(heard));
    }

    /// A host that has another name now: its former one is nobody's. Told by its boot and its addresses, which no two hosts share.
    pub(super) fn forget_renamed(&mut self) {
        let row = |node: u32| match self.node.directory().replica(node)?.get(HOST_ROW)? {
            Content::Host(host) if host.boot != 0 && host.addresses.iter().any(Option::is_some) => {
                Some((host.boot, host.addresses))
            }
            _ => None,
        };
        let state = |node: u32| self.node.detector().state(node);
        // An agent that is stopped for the rename says that it leaves.
        let is_gone =
            |node: u32| matches!(state(node), Some(detector::State::AgentLost | detector::State::Silent | detector::State::Left));
        let is_heard = |node: u32| matches!(state(node), Some(detector::State::Alive | detector::State::Late));
        let all = || self.peers.iter().flatten();
        let renamed: Vec<(u32, String, String)> = all()
            .filter(|peer| is_gone(peer.node))
            .filter_map(|peer| {
                let former = row(peer.node)?;
                let now = all().find(|other| is_heard(other.node) && row(other.node) == Some(former))?;
                Some((peer.node, peer.name.clone(), now.name.clone()))
            })
            .collect();
        for (node, former, name) in renamed {
            if let Some(slot) = self.slot(node) {
                self.empty_slot(slot);
            }
            self.node.forget(node);
            let text = format!("host {former} is {name} now (the same boot and addresses): its former name is forgotten");
            self.tell_local(EventSource::OWN, FORGOTTEN_EVENT_CODE, text);
            self.say(Happened::Renamed(former));
        }
    }

    /// What a host that is believed says of itself.
    fn host_said(&mut self, node: u32, said: &Introduction, now: u64) {
        let Some(peer) = self.slot(node).and_then(|slot| self.peers[slot].as_mut()) else { return };
        peer.addresses = said.host.addresses;
        for path in (0..PATHS).filter(|path| said.diverted[*path]) {
            if self.node.detector_mut().diverted(node, path, now) {
                self.tell_diverted(node, path, now);
            }
        }
    }

    fn watch_node_targets(&mut self, name: &str, node: u32) {
        let rings: Vec<u32> = self.subscribers.wanting(&Target::Host(name.into())).map(|(i, _)| i).collect();
        for ring in rings {
            self.subscribers.listen(key(node, 0), ring, 0, self.receiver.mechanism());
        }
    }

    /// What the table of its host says of a process.
    fn process_in_table(&self, node: u32, row: u32) -> Option<&Process> {
        match self.node.directory().replica(node)?.get(row)? {
            Content::Process(process) => Some(process),
            _ => None,
        }
    }

    /// A process is known by its name from now on. Gives the rings that asked for it by that, and the sizes of piggybacks that they want.
    fn name_process(&mut self, node: u32, row: u32) -> Vec<(u32, u32)> {
        let Some(process) = self.process_in_table(node, row) else { return Vec::new() };
        let name = String::from(process.name.clone());
        let app = RemoteApp { name: name.clone(), pbsize: process.pbsize.into(), user: process.uid, ended: None };
        let Some(peer) = self.slot(node).and_then(|slot| self.peers[slot].as_mut()) else { return Vec::new() };
        let (host, incarnation) = (peer.name.clone(), peer.incarnation);
        peer.appeared(row, app);
        self.subscribers.number(node, incarnation, row, self.receiver.mechanism());
        self.subscribers.wanting(&Target::Process(name, host)).map(|(ring, want)| (ring, want.pbsize)).collect()
    }

    /// A process of another host runs.
    fn process_runs(&mut self, node: u32, row: u32, now: u64) {
        let Some(incarnation) = self.slot(node).and_then(|slot| self.peers[slot].as_ref()).map(|p| p.incarnation) else { return };
        let wants = self.name_process(node, row);
        let wanting = wants.iter().fold(0u64, |mask, (ring, _)| mask | 1 << ring);
        // Its name first: it may end as soon as somebody listens.
        self.appeared(node, incarnation, row, wanting, now);
        for (ring, pbsize) in wants {
            self.subscribers.listen(key(node, row), ring, pbsize, self.receiver.mechanism());
        }
        self.interests.changed(now);
    }

    /// A watch may have changed hands, or the process joined.
    fn process_updated(&mut self, node: u32, row: u32) {
        let Some((user, pbsize)) = self.process_in_table(node, row).map(|p| (p.uid, u32::from(p.pbsize))) else { return };
        let peer = self.slot(node).and_then(|slot| self.peers[slot].as_mut());
        if let Some(known) = peer.and_then(|peer| peer.apps.get_mut(&row)) {
            (known.user, known.pbsize) = (user, pbsize);
        }
    }

    /// A process of a table that its host has lost. In another boot it has ended, in the same boot nobody watches it any more: of
    /// the incarnation in which it ran, and once. What ended with its silent host, or was doomed, was told then.
    fn lost_with_its_table(&mut self, lost: (u32, u32, u32), confirms: bool, process: &Process, now: u64) {
        let (node, incarnation, row) = lost;
        let State { cause, grade, code, .. } = process.state;
        let (host, name) = (self.node_name(node), String::from(process.name.clone()));
        if confirms && cause != Cause::Left {
            return tracing::debug!("{name}@{host} ended with its host's former boot, as was told");
        }
        let target = Target::Process(name.clone(), host.clone());
        let wanting = self.subscribers.wanting(&target).fold(0u64, |mask, (ring, _)| mask | 1 << ring);
        let rings = wanting | self.subscribers.rings(node, row);
        let record = self.host_record(cause, grade, node, incarnation, now);
        let record = Record { kind: RecordKind::Process as u16, app: row, code, ..record };
        if rings != 0 {
            self.subscribers.publish(rings, &record, name.as_bytes(), false, self.receiver.mechanism());
        }
        self.mark_ended(node, row, cause);
        self.ended(node, row, cause);
        let source = EventSource { node: Some(node), user: process.uid };
        self.tell(cause, grade, &host, incarnation, Some(name), code, false, None, None, source, now);
    }

    // ---- verdicts -----------------------------------------------------------------------------------------------------------

    /// `notice`: the kernel's record of the notice that this verdict may come of.
    fn verdict(&mut self, v: &Verdict, notice: Option<&Record>, now: u64) {
        if v.app == 0 {
            // What it sent before came before (HUC rests on it), and is refused once it is condemned.
            self.drain_inbox(PACKETS_BEFORE_NOTICE);
            self.groups_judge(v, now);
        }
        let host = self.node_name(v.node);
        let is_fenced = v.evidence.fenced && v.evidence.fence.is_some_and(|promise| promise.host);
        let flags = if is_fenced { Record::FENCED } else { 0 };
        let record = Record { id: v.id.0, code: v.code, flags, ..self.host_record(v.cause, v.grade, v.node, v.incarnation, now) };
        // The kernel has served its own rings with that record already.
        let notice = notice.filter(|notice| notice.id == v.id.0 && notice.app == v.app);
        let delivered = notice.is_some() && self.receiver.kernel_delivers();
        let of_notice = |record: Record| notice.map_or(record, |n| Record { flags: n.flags & !Record::DUPLICATE, ..*n });
        if v.app != 0 {
            self.process_judged(v, &of_notice(self.process_record(v, record)), delivered);
        } else if v.cause == Cause::Left {
            self.host_left(v, &of_notice(record), delivered);
        } else {
            self.publish_host(v.node, &host, &record);
        }
        for ended in &v.ended_apps {
            let record = Record { kind: RecordKind::Process as u16, app: *ended, ..record };
            self.publish(v.node, *ended, &record, &[], false);
            self.mark_ended(v.node, *ended, v.cause);
            self.ended(v.node, *ended, v.cause);
        }
        let evidence = Evidence { barriers: self.barriers(v.node, &v.evidence), ..v.evidence.clone() };
        for ended in &v.ended_apps {
            let (name, source) = (self.app_name(v.node, *ended), self.source(v.node, *ended));
            let evidence = Some(evidence.clone());
            self.tell(v.cause, v.grade, &host, v.incarnation, Some(name), v.code, false, Some(v.id), evidence, source, now);
        }
        let (app, source) = ((v.app != 0).then(|| self.app_name(v.node, v.app)), self.source(v.node, v.app));
        self.tell(v.cause, v.grade, &host, v.incarnation, app, v.code, v.confirms, Some(v.id), Some(evidence), source, now);
    }

    /// A host that was told as silent is fenced now, by what the others say: what waits for that goes on.
    fn fenced_later(&mut self, node: u32, incarnation: u32, now: u64) {
        self.groups.handle_fenced(now, node, incarnation);
        let (host, source) = (self.node_name(node), self.source(node, 0));
        let text = format!("{host} is fenced: all who could keep its gates open have given it up");
        self.tell_text(Cause::Fenced, Grade::Inferred, (&host, incarnation), 0, text, source, now);
    }

    /// What rings get of a verdict about a process, as its notice would have it.
    fn process_record(&self, v: &Verdict, record: Record) -> Record {
        let Evidence { event_ns, sent_ns, received_ns, path, .. } = v.evidence;
        Record {
            kind: RecordKind::Process as u16,
            app: v.app,
            flags: if v.confirms { Record::CONFIRMS } else { 0 },
            path,
            event_ns: if event_ns == 0 { record.event_ns } else { event_ns },
            sent_ns,
            received_ns,
            ..record
        }
    }

    /// A process has ended, hangs, or makes progress again.
    fn process_judged(&mut self, v: &Verdict, record: &Record, delivered: bool) {
        let is_named = self.slot(v.node).and_then(|slot| self.peers[slot].as_ref()).is_some_and(|p| p.apps.contains_key(&v.app));
        if is_named {
            self.publish(v.node, v.app, record, &[], delivered);
        } else {
            // Its row came when it had ended: those who asked for it hear its name with its end.
            let wanting = self.name_process(v.node, v.app).into_iter().fold(0u64, |mask, (ring, _)| mask | 1 << ring);
            let (rings, name) = (wanting | self.subscribers.rings(v.node, v.app), self.app_name(v.node, v.app));
            self.subscribers.publish(rings, record, name.as_bytes(), false, self.receiver.mechanism());
        }
        self.publish_late(record, delivered);
        if !v.cause.is_progress() {
            self.mark_ended(v.node, v.app, v.cause);
            self.ended(v.node, v.app, v.cause);
        }
    }

    /// An agent said goodbye.
    fn host_left(&mut self, v: &Verdict, record: &Record, delivered: bool) {
        self.publish(v.node, 0, record, &[], delivered);
        self.publish_late(record, delivered);
        let Some(peer) = self.slot(v.node).and_then(|slot| self.peers[slot].as_mut()) else { return };
        peer.left = true;
        let name = peer.name.clone();
        // Who asked for a process of a host that leaves must know that nobody watches it any more; the kernel knows only those who asked
        // for the host.
        let rings = self.subscribers.rings_of_host(&name) & !self.subscribers.rings(v.node, 0);
        self.subscribers.publish(rings, record, &[], false, self.receiver.mechanism());
        self.over(name, v.incarnation);
    }

    /// After the last word on a process, nobody needs to be told of it.
    pub(super) fn ended(&mut self, node: u32, app: u32, cause: Cause) {
        if cause != Cause::Doomed {
            self.subscribers.clear(node, app, self.receiver.mechanism());
        }
    }

    fn mark_ended(&mut self, node: u32, app: u32, cause: Cause) {
        let slot = self.slot(node);
        if let Some(app) = slot.and_then(|s| self.peers[s].as_mut()).and_then(|p| p.apps.get_mut(&app)) {
            app.ended = Some((cause, now_ns()));
        }
    }

    // ---- hosts that are gone ------------------------------------------------------------------------------------------------

    /// A life of a host is over: not even after a restart of ours is it believed again.
    fn over(&mut self, name: String, incarnation: u32) {
        let next = incarnation.saturating_add(1);
        let known = self.start.known.entry(name.clone()).or_default();
        if next > *known {
            *known = next;
            self.say(Happened::PeerIncarnation(name, next));
        }
    }

    fn empty_slot(&mut self, slot: usize) {
        if let Some(gone) = self.give_slot_back(slot) {
            self.node.forget(gone);
        }
    }

    /// Nothing of the host in this place is received any more, nor is anything of it told. Which host it was.
    pub(super) fn give_slot_back(&mut self, slot: usize) -> Option<u32> {
        let gone = self.peers[slot].take()?;
        self.receiver.remove_peer(slot, gone.node);
        for app in gone.apps.keys().copied().chain([0]) {
            self.subscribers.clear(gone.node, app, self.receiver.mechanism());
        }
        Some(gone.node)
    }

    /// `fide forget`: a host that is gone for good is neither listed nor one of a majority any more. What ended of it stays refused, unless no incarnation is
    /// left behind that (a clock that was far ahead once): then the host begins anew with any. A replay cannot: it answers no fresh nonce.
    ///
    /// # Errors
    /// When it was never heard of, or may come back by itself: it is heard.
    pub fn operator_forgets(&mut self, host: &str) -> Result<(), Refused> {
        let node = fide_wire::name_id(host);
        let state = self.node.detector().state(node).filter(|_| self.node_name(node) == host);
        if host == self.start.name {
            let what = "an agent cannot forget its own host: stop it, and the others see it leave";
            return Err(Refused { code: ErrorCode::Invalid, what: what.into() });
        }
        if matches!(state, Some(detector::State::Alive | detector::State::Late)) {
            let what = format!("{host} is heard: stop its agent there, and it leaves");
            return Err(Refused { code: ErrorCode::Exists, what });
        }
        if state.is_none() && !self.start.known.contains_key(host) {
            let what = format!("no host {host} was ever heard here (fide status lists those that were)");
            return Err(Refused { code: ErrorCode::NotFound, what });
        }
        if let Some(slot) = self.slot(node) {
            self.empty_slot(slot);
        }
        self.node.forget(node);
        match self.start.known.get(host) {
            Some(known) if *known >= crate::state::INCARNATION_MAX => drop(self.start.known.remove(host)),
            Some(known) => self.node.note_seen(node, *known),
            None => {}
        }
        self.tell_local(EventSource::OWN, FORGOTTEN_EVENT_CODE, format!("host {host} was forgotten, as an operator asked"));
        Ok(())
    }

    fn condemn(&mut self, node: u32, incarnation: u32) {
        let Some(slot) = self.slot(node) else { return };
        if let Some(peer) = self.peers[slot].as_mut().filter(|p| p.incarnation == incarnation) {
            peer.condemned = true;
            self.receiver.condemn(slot);
            let name = peer.name.clone();
            self.over(name, incarnation);
        }
    }
}
