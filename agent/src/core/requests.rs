//! What other threads ask of the loop. Each request calls one function of the loop, between what is urgent.
//!
//! A request brings the room for what is copied, and the loop answers through [`Answer`]; nothing is allocated on its thread to
//! carry one.

use super::snapshot::{AppRow, Head, HostRow};
use super::{Before, Core, Introduced, Opening};
use crate::access::{GroupPolicy, Peer};
use crate::check::{Answers, Whom};
use crate::group_plan::GroupPlan;
use crate::shares::EventSource;
use crate::subscribers::{Made, Target, Want};
use crate::watchlist::{Holder, Joining, Moves, Name, Origin, Replaced, Session, WatchRow, Watched};
use crossbeam_channel::Sender;
use fide_proto::node::calibration;
use fide_proto::services::groups::large::{Fetched, LargeId};
use fide_wire::PATHS;
use fide_wire::control::{CheckedPeer, FenceStatus, GroupOrder, Refused, Reply};
use fide_wire::frame::table::{Keys, Maintenance};
use fide_wire::mac::Keyring;
use fide_wire::verdict::{Cause, ProgressSource};
use fide_xdp::{Gate, Process};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// The way back to the thread that asks.
#[derive(Debug)]
pub struct Answer<T>(Option<Sender<T>>);

impl<T> Answer<T> {
    /// Through this channel, which has room for one.
    #[must_use]
    pub const fn through(channel: Sender<T>) -> Self {
        Self(Some(channel))
    }

    /// Nobody waits for it.
    #[must_use]
    pub const fn unwanted() -> Self {
        Self(None)
    }

    fn give(self, value: T) {
        if let Some(channel) = self.0 {
            let _ = channel.try_send(value); // the asker waits no more: a connection was closed
        }
    }
}

impl Answer<()> {
    fn after(self, done: impl FnOnce()) {
        done();
        self.give(());
    }
}

/// A request. Those without an answer are done in the order in which they are made.
#[expect(missing_docs, reason = "fields have the names of the parameters that they become")]
pub enum Request {
    // ---- this host
    /// Enters something in the history, with its code.
    Note(EventSource, i32, String),
    /// Leaves the cluster: for good (0), or to be back in so many ms.
    Leave(u32),
    /// Accepts these keys from now on.
    SetKeys(Box<Keyring>),
    /// Derives contracts by these rules from now on.
    SetCalibration(Box<calibration::Config>),
    /// Begins or joins these groups, as the configuration says.
    SetGroupPlans(Vec<GroupPlan>),
    /// Entries of a durable group through this one are on disk: name, generation, entry.
    GroupWritten(String, u64, u64),
    /// What became of a fetch of a large state: the group's generation, and which state.
    StateFetched(u64, LargeId, Fetched),
    /// The disk does not take the logs of durable groups, and why.
    GroupsUnwritten(String),
    /// This is the witness from now on.
    SetWitness(Option<crate::witness_questions::Command>),
    /// What the witness says about an incarnation of a host.
    WitnessAnswered { about: crate::witness_questions::Life, is_granted: bool },
    /// Says which keys this host holds.
    PutKeys(Keys),
    /// Says what is in maintenance, in a row of this host's table.
    PutMaintenance(u32, Box<Maintenance>),
    /// Removes a host that is gone from the membership.
    Forget(String, Answer<Result<(), Refused>>),

    // ---- paths
    /// The interface of a path as the control thread found it.
    PathSeen(u8, Option<fide_lane::Seen>),
    /// How many receive queues the interface of a path has.
    SetQueues { path: usize, queues: usize },
    /// Responders of a path that are no hosts of the cluster.
    SetAnswerers { path: usize, addresses: Vec<IpAddr> },

    // ---- the fence
    /// Shuts it.
    ShutFence(Answer<Result<(), Refused>>),
    /// What dead processes left is ended: it opens, if enough others still hear this host.
    ReopenFence,
    /// Begins a new incarnation, and opens it, or lets it open as soon as enough others have confirmed that.
    RecoverFence(Answer<Result<(), Refused>>),
    /// How it stands; `None` where there is none.
    FenceStatus(Answer<Option<FenceStatus>>),
    /// A cgroup has a gate now.
    AddGate(String, Gate),
    /// The sockets of a process are behind a gate. `lives`: the process that the gate has cut off was seen alive.
    FenceProcess { app: u32, gate: String, lives: bool },
    /// Processes behind gates that are shut for others.
    BesideCutOff(Answer<Vec<(u32, u32, String)>>),
    /// Cuts off a process that is hung since the notice of this number.
    FenceHung { name: String, number: u32, answer: Answer<Option<Result<String, String>>> },

    // ---- watched processes
    /// Watches a process.
    Watch(Box<Watched>, Answer<Result<u32, Refused>>),
    /// Ends a watch.
    Unwatch(u32, Answer<bool>),
    /// A process that joined leaves. Says which process that was.
    Quit(u32, Answer<Process>),
    /// A process ended between being found and being watched, in this way if that is known.
    DiedBeforeWatched(u32, Option<(Cause, i32)>, Answer<Before>),
    /// A clean end that was held back is one.
    EndedCleanly(u32),
    /// A child goes on in the place of a process.
    HandOn { app: u32, child: Process, uid: u32, answer: Answer<bool> },
    /// A watch has another owner.
    HandOver { app: u32, origin: Origin, owner: u32 },
    /// A watched process joins.
    Rejoin(u32, Box<Joining>),
    /// The live watches of this process under which it has joined.
    Sessions(Process, Answer<Vec<Session>>),
    /// A live process that has joined.
    Session(u32, Answer<Option<Session>>),
    /// A process that had joined runs another program, or joins again. Gives the watch that it had.
    Replaced(u32, Answer<Option<Replaced>>),
    /// A process of this name and identity is watched.
    WatchedAs { name: String, process: Process, answer: Answer<Option<u32>> },
    /// The live process of this name.
    Named(String, Answer<Option<(u32, Process)>>),
    /// The live process of this name and its owner, while it is hung since the notice of this number.
    Hung { name: String, number: Option<u32>, answer: Answer<Option<(Process, u32)>> },
    /// Live watches of this name or this process.
    Holders { name: String, pid: Option<u32>, answer: Answer<Vec<Holder>> },
    /// Which process has this number.
    Identity(u32, Answer<Process>),
    /// Those of these processes that have ended, and when if by a crash.
    Ended(Vec<u32>, Answer<Vec<(u32, Option<u64>)>>),
    /// Watches that are counted under a user, and all.
    HeldBy(u32, Answer<(u64, u64)>),

    // ---- progress
    /// A counter of a process must move within this time.
    WatchCounter { app: u32, counter: u8, limit_ns: u64, answer: Answer<Result<bool, String>> },
    /// A probe's movements of a process are looked at, or no more.
    WatchProbe(u32, Option<(ProgressSource, u64, Moves)>),
    /// Connections end with a process, or do not. `false`: it has ended, or is doomed.
    EndsConnections { app: u32, ends: bool, answer: Answer<bool> },
    /// A process is reported as hung, or as moving.
    ReportProgress { app: u32, hung: bool, answer: Answer<()> },

    // ---- rings
    /// A new subscriber.
    Subscribe(u32, Made, Answer<()>),
    /// A subscriber is gone.
    Unsubscribe(u32),
    /// Monitors a target.
    Monitor { ring: u32, target: Target, want: Want, answer: Answer<Reply> },
    /// Ends that.
    Unmonitor { ring: u32, target: Target, answer: Answer<bool> },
    /// Introduces so many of a target's hosts and processes, from this one on.
    Introduce { ring: u32, target: Target, from: Introduced, most: usize, answer: Answer<Option<Introduced>> },
    /// Tells what became of these instances.
    TellWhatBecame { ring: u32, instances: Vec<(u32, u32)>, answer: Answer<()> },
    /// The largest piggyback that is sent.
    PiggybackMax(Answer<u32>),
    /// Events that subscribers lost.
    EventsLost(Answer<u64>),

    // ---- groups
    /// An operator's order, and under whom it is counted.
    OrderGroup(Box<GroupOrder>, u32, Answer<Result<Reply, Refused>>),
    /// A session with a group, of a client that has used this number last, from this entry of this generation on.
    OpenGroup { name: String, client: (u64, u64), from: Opening, peer: Box<Peer>, answer: Answer<Result<OwnedFd, Refused>> },
    /// Ends sessions of users who had more rights in their group than these.
    SetGroupPolicy(Box<GroupPolicy>),

    // ---- checks of applications' heartbeats
    /// Asks responders on these paths, so that the queues show that they are empty.
    AskForBarriers([bool; PATHS]),
    /// What came out of the queues, and whether they are told apart.
    Answers(Answer<(Answers, bool)>),
    /// Heartbeats that never came, by host and path.
    LaneLosses(Vec<(Name, [u64; PATHS])>, Answer<Vec<(Name, [u64; PATHS])>>),
    /// What is known of a peer, and whether it is certain that the process has ended since.
    KnownOf { whom: Whom, since_ns: u64, answer: Answer<(Option<CheckedPeer>, bool)> },

    // ---- the status, in pieces: each as many rows as there is room for, and where to go on
    /// This host.
    StatusHead(Answer<Box<Head>>),
    /// Other hosts from this slot on.
    HostRows { from: usize, rows: Vec<HostRow>, answer: Answer<(Vec<HostRow>, Option<usize>)> },
    /// Processes of another host from this number on.
    AppRows { slot: usize, node: u32, from: u32, rows: Vec<AppRow>, answer: Answer<(Vec<AppRow>, Option<u32>)> },
    /// Processes of this host from this number on.
    WatchRows { from: u32, rows: Vec<WatchRow>, answer: Answer<(Vec<WatchRow>, Option<u32>)> },
}

// Requests wait in blocks of 31.
const _: () = assert!(size_of::<Request>() <= 96);

impl Core {
    /// Carries out a request.
    pub(super) fn handle_request(&mut self, request: Request) {
        use Request as R;
        match request {
            R::Note(source, code, text) => self.tell_local(source, code, text),
            R::Leave(back_ms) => self.leave(back_ms),
            R::SetKeys(keys) => self.set_keys(*keys),
            R::SetCalibration(config) => self.set_calibration(*config),
            R::SetGroupPlans(plans) => self.set_group_plans(plans),
            R::GroupWritten(name, generation, index) => self.group_written(&name, generation, index),
            R::GroupsUnwritten(why) => self.groups_unwritten(why),
            R::StateFetched(generation, what, fetched) => self.state_fetched(generation, what, fetched),
            R::SetWitness(command) => self.set_witness(command),
            R::WitnessAnswered { about, is_granted } => self.witness_answered(about, is_granted),
            R::PutKeys(keys) => self.put_keys(keys),
            R::PutMaintenance(slot, row) => self.put_maintenance(slot, *row),
            R::Forget(host, answer) => answer.give(self.operator_forgets(&host)),
            R::PathSeen(path, seen) => self.path_seen(path, seen),
            R::SetQueues { path, queues } => self.set_queues(path, queues),
            R::SetAnswerers { path, addresses } => self.set_answerers(path, &addresses),
            R::ShutFence(answer) => answer.give(self.operator_shuts_fence()),
            R::ReopenFence => self.reopen_fence(),
            R::RecoverFence(answer) => answer.give(self.operator_recovers_fence()),
            R::FenceStatus(answer) => answer.give(self.fence_status()),
            R::AddGate(name, gate) => self.add_gate(name, gate),
            R::FenceProcess { app, gate, lives } => self.fence_process(app, &gate, lives),
            R::BesideCutOff(answer) => answer.give(self.beside_cut_off()),
            R::FenceHung { name, number, answer } => answer.give(self.fence_hung(&name, number)),
            R::Watch(watched, answer) => answer.give(self.watch(*watched)),
            R::Unwatch(app, answer) => answer.give(self.unwatch(app)),
            R::Quit(app, answer) => answer.give(self.quit(app)),
            R::DiedBeforeWatched(app, end, answer) => answer.give(self.died_before_watched(app, end)),
            R::EndedCleanly(app) => self.ended_cleanly(app),
            R::HandOn { app, child, uid, answer } => answer.give(self.hand_on(app, child, uid)),
            R::HandOver { app, origin, owner } => self.hand_over(app, origin, owner),
            R::Rejoin(app, joining) => self.rejoin(app, *joining),
            R::Sessions(process, answer) => answer.give(self.sessions(process)),
            R::Session(app, answer) => answer.give(self.session(app)),
            R::Replaced(app, answer) => answer.give(self.replaced(app)),
            R::WatchedAs { name, process, answer } => answer.give(self.watched_as(&name, process)),
            R::Named(name, answer) => answer.give(self.process_named(&name)),
            R::Hung { name, number, answer } => answer.give(self.hung_since(&name, number)),
            R::Holders { name, pid, answer } => answer.give(self.watchlist.holders(&name, pid)),
            R::Identity(app, answer) => answer.give(self.watchlist.identity(app)),
            R::Ended(apps, answer) => answer.give(self.ended_of(&apps)),
            R::HeldBy(user, answer) => answer.give(self.watchlist.held_by(user)),
            R::WatchCounter { app, counter, limit_ns, answer } => answer.give(self.watch_counter(app, counter, limit_ns)),
            R::WatchProbe(app, probe) => self.watch_probe(app, probe),
            R::EndsConnections { app, ends, answer } => answer.give(self.set_ends_connections(app, ends)),
            R::ReportProgress { app, hung, answer } => answer.after(|| self.report_progress(app, hung)),
            R::Subscribe(ring, made, answer) => answer.after(|| self.subscribe(ring, made)),
            R::Unsubscribe(ring) => self.unsubscribe(ring),
            R::Monitor { ring, target, want, answer } => answer.give(self.monitor(ring, target, want)),
            R::Unmonitor { ring, target, answer } => answer.give(self.unmonitor(ring, &target)),
            R::Introduce { ring, target, from, most, answer } => answer.give(self.introduce(ring, &target, from, most)),
            R::TellWhatBecame { ring, instances, answer } => answer.after(|| self.tell_what_became(ring, &instances)),
            R::PiggybackMax(answer) => answer.give(self.piggyback_max()),
            R::EventsLost(answer) => answer.give(self.events_lost()),
            R::OrderGroup(order, account, answer) => answer.give(self.order_group(*order, account)),
            R::OpenGroup { name, client, from, peer, answer } => answer.give(self.open_group(&name, client, from, peer)),
            R::SetGroupPolicy(policy) => self.set_group_policy(&policy),
            R::AskForBarriers(paths) => self.ask_for_barriers(paths),
            R::Answers(answer) => answer.give(self.answers()),
            R::KnownOf { whom, since_ns, answer } => answer.give(self.known_of(&whom, since_ns)),
            R::StatusHead(answer) => answer.give(Box::new(self.status_head())),
            R::LaneLosses(rows, answer) => fill(rows, answer, |rows| self.lane_losses(rows), |rows, ()| rows),
            R::HostRows { from, rows, answer } => fill(rows, answer, |rows| self.status_hosts(from, rows), |r, next| (r, next)),
            R::AppRows { slot, node, from, rows, answer } => {
                fill(rows, answer, |rows| self.status_apps(slot, node, from, rows), |r, next| (r, next));
            }
            R::WatchRows { from, rows, answer } => {
                fill(rows, answer, |rows| self.watchlist.rows(from, rows), |r, next| (r, next))
            }
        }
    }
}

/// Copies rows into the room that was brought, and gives it back with what the copying says.
fn fill<R, N, A>(mut rows: Vec<R>, answer: Answer<A>, copy: impl FnOnce(&mut Vec<R>) -> N, both: fn(Vec<R>, N) -> A) {
    let next = copy(&mut rows);
    answer.give(both(rows, next));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_nobody_waits_for_holds_nobody_up() {
        let (channel, wait) = crossbeam_channel::bounded(1);
        Answer::through(channel.clone()).give(1);
        Answer::through(channel.clone()).give(2); // no room: dropped, not waited for
        assert_eq!((wait.try_recv(), wait.try_recv().ok()), (Ok(1), None));
        drop(wait);
        Answer::through(channel).give(3);
        Answer::unwanted().give(4);
    }

    #[test]
    fn rows_are_copied_into_the_room_that_was_brought() {
        let (channel, wait) = crossbeam_channel::bounded(1);
        let rows: Vec<u32> = Vec::with_capacity(2);
        let (place, room) = (rows.as_ptr(), rows.capacity());
        let copy = |rows: &mut Vec<u32>| {
            (0..9).find(|n| {
                rows.len() == rows.capacity() || {
                    rows.push(*n);
                    false
                }
            })
        };
        fill(rows, Answer::through(channel), copy, |rows, next| (rows, next));
        let (rows, next) = wait.try_recv().unwrap();
        assert_eq!((rows.as_ptr(), rows.capacity(), rows.len(), next), (place, room, room, Some(room as u32)));
    }
}
