//! Watched processes of this host, for the control thread.

use super::Core;
use crate::clock::now_ns;
use crate::subscribers::{Target, key};
use crate::watchlist::{Joining, Origin, Replaced, Session, Watched};
use fide_proto::detector;
use fide_wire::control::{ErrorCode, Refused};
use fide_wire::event::{Record, RecordKind};
use fide_wire::packet::{Kind, Notice};
use fide_wire::verdict::{Cause, Evidence, Grade, ProgressSource, VerdictId};

impl Core {
    /// Watches a process of this host.
    ///
    /// # Errors
    /// [`ErrorCode::Exists`] for a name or process that is taken; [`ErrorCode::Full`];
    /// [`ErrorCode::System`] when the kernel refuses.
    pub fn watch(&mut self, watched: Watched) -> Result<u32, Refused> {
        let refuse = |code, what| Err(Refused { code, what });
        if let Some(holder) = self.watchlist.holders(&watched.name, Some(watched.pid)).first() {
            return refuse(ErrorCode::Exists, holder.taken(&watched.name));
        }
        let (pid, ticks, settles_ns) = (watched.pid, watched.start_ticks, watched.settles_ns);
        if self.watchlist.is_doomed(pid, ticks) {
            return refuse(ErrorCode::Exists, format!("process {pid} is ending and cannot be saved"));
        }
        if self.watchlist.held_by(0).1 >= detector::MAX_APPS as u64 {
            return refuse(ErrorCode::Full, format!("at most {} processes are watched on one host", detector::MAX_APPS));
        }
        let version = self.own_table().complete();
        crate::kept::has_versions(version).map_err(|what| Refused { code: ErrorCode::Full, what })?;
        let app = self.watchlist.add(watched).map_err(|what| Refused { code: ErrorCode::Full, what })?;
        // Before the exit watch has it: its end is a later change.
        self.put_process(app, now_ns());
        if let Err(e) = self.receiver.watch(pid, app, ticks, settles_ns) {
            let now = now_ns();
            let notice = Notice { notice: self.receiver.next_notice(), cause: Cause::Left, ..Notice::of_process(app, now) };
            self.write_change(&notice, now);
            self.watchlist.forget(app);
            return refuse(ErrorCode::System, e.to_string());
        }
        if !self.receiver.kernel_watches_exits()
            && let Err(e) = self.wait_for_descriptors()
        {
            tracing::warn!("the end of process {pid} will be noticed with the next heartbeat only: {e}");
        }
        let name = self.start.name.clone();
        let watched_name = self.watchlist.get(app).map(|w| w.name.clone()).unwrap_or_default();
        let target = Target::Process(watched_name, name);
        let wants: Vec<(u32, u32)> = self.subscribers.wanting(&target).map(|(ring, want)| (ring, want.pbsize)).collect();
        let wanting = wants.iter().fold(0u64, |mask, (ring, _)| mask | 1 << ring);
        let now = now_ns();
        self.appeared(self.start.node, self.start.incarnation, app, wanting, now);
        for (ring, pbsize) in wants {
            self.subscribers.listen(key(self.start.node, app), ring, pbsize, self.receiver.mechanism());
        }
        Ok(app)
    }

    /// Tells of a process that is monitored from now on.
    pub(super) fn appeared(&mut self, node: u32, incarnation: u32, app: u32, wanting: u64, now: u64) {
        let (host, name) = (self.node_name(node), self.app_name(node, app));
        let record = self.host_record(Cause::Monitored, Grade::Certain, node, incarnation, now);
        let record = Record { kind: RecordKind::Process as u16, app, ..record };
        let rings = self.subscribers.rings(node, app) | wanting;
        self.subscribers.publish(rings, &record, name.as_bytes(), false, self.receiver.mechanism());
        self.tell(
            Cause::Monitored,
            Grade::Certain,
            &host,
            incarnation,
            Some(name),
            0,
            false,
            None,
            None,
            self.source(node, app),
            now,
        );
    }

    /// A watched process has gone into the background: from now on this child of it is the one that is watched, under the same number.
    pub fn hand_on(&mut self, app: u32, child: fide_xdp::Process, uid: u32) -> bool {
        let (pid, start_ticks) = (child.pid, child.start_ticks);
        self.keep_connections(app);
        let Some(w) = self.watchlist.get_mut(app).filter(|w| w.ended.is_none()) else { return false };
        (w.pid, w.start_ticks, w.uid, w.settles_ns) = (pid, start_ticks, uid, 0);
        if w.bridge.is_none() {
            self.watchlist.count_under(app, uid);
        }
        self.put_process(app, now_ns());
        if let Err(e) = self.receiver.watch(pid, app, start_ticks, 0) {
            tracing::warn!("process {pid} is not watched in the place of its parent: {e}");
            self.ended_cleanly(app);
            return false;
        }
        true
    }

    /// When a watched process ended, if that was a crash: by a signal, or with another status than 0.
    #[must_use]
    pub fn crashed_ns(&self, app: u32) -> Option<u64> {
        let w = self.watchlist.get(app)?;
        let is_crash = |(cause, code): (Cause, i32)| {
            cause.is_seen_end() && cause != Cause::Replaced && (cause != Cause::Exited || code != 0)
        };
        w.ended.filter(|ended| is_crash(*ended)).map(|_| w.ended_ns)
    }

    /// Those of these processes that have ended, and when if by a crash.
    pub(super) fn ended_of(&self, apps: &[u32]) -> Vec<(u32, Option<u64>)> {
        let is_over = |app: &u32| self.watchlist.get(*app).is_none_or(|w| w.ended.is_some());
        apps.iter().copied().filter(is_over).map(|app| (app, self.crashed_ns(app))).collect()
    }

    /// The live process of this name.
    pub(super) fn process_named(&self, name: &str) -> Option<(u32, fide_xdp::Process)> {
        self.watchlist.named(name).and_then(|app| self.watchlist.get(app).map(|w| (app, w.process())))
    }

    /// The live process of this name and its owner, while it is hung since the notice of this number.
    pub(super) fn hung_since(&self, name: &str, number: Option<u32>) -> Option<(fide_xdp::Process, u32)> {
        let w = self.watchlist.named(name).and_then(|app| self.watchlist.get(app))?;
        (w.hung == number).then_some((w.process(), w.owner))
    }

    /// A process that joined leaves. Says which process it was.
    pub(super) fn quit(&mut self, app: u32) -> fide_xdp::Process {
        let process = self.watchlist.identity(app);
        self.unwatch(app);
        process
    }

    /// The live watch of this process under this name, whoever made it.
    #[must_use]
    pub fn watched_as(&self, name: &str, process: fide_xdp::Process) -> Option<u32> {
        let app = self.watchlist.named(name)?;
        self.watchlist.get(app).filter(|w| w.process() == process).map(|_| app)
    }

    /// A watch is somebody else's from now on; the process goes on as it is.
    pub fn hand_over(&mut self, app: u32, origin: Origin, owner: u32) {
        if let Some(w) = self.watchlist.get_mut(app) {
            (w.origin, w.owner, w.charged, w.is_kept) = (origin, owner, owner, false);
            self.put_process(app, now_ns()); // other hosts share out by owner
        }
    }

    /// A process that is watched joins, or has a new connection: its old bridge is of no use any more.
    pub fn rejoin(&mut self, app: u32, joining: Joining) {
        let Joining { pbsize, bridge, ring, image, account } = joining;
        self.watchlist.count_under(app, account);
        if let Some(w) = self.watchlist.get_mut(app) {
            let former = w.bridge.replace(bridge);
            (w.pbsize, w.ring, w.image, w.is_kept) = (pbsize, ring, image, false);
            self.watchlist.dropped.extend(former);
            self.put_process(app, now_ns());
            // Its counters lie in the new one, and it will say which are to be looked at.
            for counter in 0..fide_wire::control::bridge::COUNTERS as u8 {
                self.watch_progress(app, ProgressSource::Counter(counter), 0);
            }
            self.watchlist.get_mut(app).into_iter().for_each(|w| w.looks = 0);
        }
    }

    /// Connections of a process end with it, or do not any more. `false`: it has ended, or is
    /// doomed.
    pub(super) fn set_ends_connections(&mut self, app: u32, ends: bool) -> bool {
        let Some(w) = self.watchlist.get_mut(app).filter(|w| w.ended.is_none()) else { return false };
        w.ends_connections = ends;
        true
    }

    fn keep_connections(&mut self, app: u32) {
        if self.watchlist.get_mut(app).is_some_and(|w| std::mem::take(&mut w.ends_connections)) {
            self.ends.connections.forget(app);
        }
    }

    /// The live watches of this process under which it has joined.
    #[must_use]
    pub fn sessions(&self, process: fide_xdp::Process) -> Vec<Session> {
        let of = self.watchlist.alive().filter(|(_, w)| w.process() == process && w.has_joined());
        of.map(|(app, _)| app).filter_map(|app| self.session(app)).collect()
    }

    /// A live process that has joined.
    #[must_use]
    pub fn session(&self, app: u32) -> Option<Session> {
        let w = self.watchlist.get(app).filter(|w| w.ended.is_none() && w.has_joined())?;
        Some(Session { app, name: w.name.clone(), process: w.process(), is_own: w.bridge.is_some(), image: w.image })
    }

    /// A process that had joined runs another program, or joins again: the instance that was watched has ended. Gives the watch
    /// that it had; `None` if it ended otherwise just before.
    pub fn replaced(&mut self, app: u32) -> Option<Replaced> {
        let w = self.watchlist.get(app).filter(|w| w.ended.is_none())?;
        let (name, process) = (w.name.clone(), w.process());
        let watch = Replaced { name, process, origin: w.origin, owner: w.owner, charged: w.charged };
        self.end_living(app, Cause::Replaced).then_some(watch)
    }

    /// A process leaves politely, or is no longer watched.
    pub fn unwatch(&mut self, app: u32) -> bool {
        self.end_living(app, Cause::Left)
    }

    /// What is watched ends so, although the process lives. `false`: that ended just before.
    fn end_living(&mut self, app: u32, cause: Cause) -> bool {
        let Some(w) = self.watchlist.get(app).filter(|w| w.ended.is_none()) else { return false };
        let (pid, name) = (w.pid, w.name.clone());
        self.receiver.unwatch(pid);
        // The exit watch may have been faster: then its record is in the urgent ring, and the process did not leave but die.
        self.drain_urgent_of(app);
        if self.watchlist.get(app).is_none_or(|w| w.ended.is_some()) {
            return false;
        }
        let now = now_ns();
        let notice =
            Notice { notice: self.receiver.next_notice(), app, cause, grade: Grade::Certain, flags: 0, code: 0, event_ns: now };
        let sent_ns = self.send_notice(Kind::Notice, &notice);
        self.keep_connections(app);
        self.watchlist.end(app, cause, 0, now);
        self.progress.forget(app);
        self.write_change(&notice, now);
        let id = VerdictId::new(self.start.node, notice.notice);
        let record = Record {
            kind: RecordKind::Process as u16,
            app,
            id: id.0,
            flags: Record::LOCAL,
            sent_ns,
            received_ns: now,
            ..self.host_record(cause, Grade::Certain, self.start.node, self.start.incarnation, now)
        };
        self.publish(self.start.node, app, &record, &[], false);
        self.ended(self.start.node, app, cause);
        let evidence = Evidence { event_ns: now, sent_ns, received_ns: now, ..Evidence::default() };
        let host = self.start.name.clone();
        self.tell(
            cause,
            Grade::Certain,
            &host,
            self.start.incarnation,
            Some(name),
            0,
            false,
            Some(id),
            Some(evidence),
            self.source(self.start.node, app),
            now,
        );
        true
    }
}
