//! The loop: drain what the kernel saw, judge, send, publish. One thread, real-time where permitted, never waiting for anything but time and
//! descriptors. Reading [`Core::turn`] is reading the architecture.
//!
//! ```text
//! urgent ring ─► notices of this host's crashes, sent at once ─► both paths
//!             └► notices of other hosts ─► detector, replica of its table
//! inbox ring (or UDP sockets) ─► announcements, reports, rows, piggybacks
//! pacer ─► heartbeat on both paths          arrival table ─► detector ─► verdicts ─► rings, history
//! ```
//! Everything that may wait (files, clients, hooks, name look-ups) lives in the control thread, which reaches the loop by
//! [`Request`]s and hears from it by [`Happened`].

mod announce;
mod checks;
mod copies;
mod crash;
mod fencing;
mod foreign;
mod groups;
mod housekeeping;
mod judge;
mod losses;
mod mistaken;
mod others;
mod packets;
mod paths;
mod progress;
mod publish;
mod questions;
mod reports;
pub mod requests;
mod send;
pub(crate) mod sessions;
mod sizes;
pub mod snapshot;
mod subscriptions;
mod tables;
mod wait;
mod watches;

use crate::bridge::Bridge;
use crate::check::Answers;
use crate::clock::now_ns;
use crate::fence::Driver;
use crate::group_trace::traced;
use crate::history::ToldEnd;
use crate::kept::{Former, KeptWatch, Numbers};
use crate::metrics::Heart;
use crate::peers::Peer;
use crate::receive::Receiver;
use crate::shares::EventSource;
use crate::subscribers::{Made, Subscribers};
use crate::unwanted;
use crate::watchlist::Watchlist;
use announce::Own;
use crossbeam_channel::{Receiver as Channel, Sender};
use fide_lane::{DropCounters, Lane, Prober};
use fide_proto::detector::{self, AppState, Progress};
use fide_proto::node::fence::HostFence;
use fide_proto::node::losses::Losses;
use fide_proto::node::{Node, calibration};
use fide_proto::services::groups::Groups;
use fide_proto::services::groups::durable::Saved;
use fide_proto::services::groups::last_set::LastSet;
use fide_wire::control::{ErrorCode, HistoryEvent, Refused};
use fide_wire::frame::table::{Keys, Maintenance, Row};
use fide_wire::mac::Keyring;
use fide_wire::packet::{BODY_MAX, Notice};
use fide_wire::{PATHS, SLOTS};
use progress::Owed;
use requests::Request;
use send::Sent;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use tables::Interests;

pub use crash::Before;
pub use sessions::Opening;

/// What the control thread hears.
#[derive(Debug)]
pub enum Happened {
    /// An event for the history, the hooks and the log. `seq`, `wall_ns` and a text that is empty
    /// are the control thread's to fill in.
    Event(Box<HistoryEvent>, EventSource),
    /// A row of this host's table was written, to be kept; with what is not in it, for a process that is watched.
    Row(Box<Row>, Option<KeptWatch>),
    /// Another host's table is whole here, up to this version.
    Seen {
        /// Whose.
        node: u32,
        /// Which table.
        epoch: u64,
        /// Up to here.
        version: u64,
    },
    /// Another host says which keys it holds.
    Keys {
        /// Which host.
        host: String,
        /// By fingerprint.
        keys: Keys,
    },
    /// Another host says what is in maintenance.
    Maintenance {
        /// Which host.
        host: String,
        /// What it says.
        maintenance: Box<Maintenance>,
        /// It wrote that a moment ago.
        is_fresh: bool,
    },
    /// Enough others hear this host behind its closed gates. What dead processes left is ended, and then they open.
    MayReopen,
    /// This agent began a new incarnation, to be remembered.
    Incarnation(u32),
    /// A host is heard, in this incarnation: it is a member.
    Met(String, u32),
    /// What was before this incarnation of another host is over, to be remembered.
    PeerIncarnation(String, u32),
    /// A host is no member any more: it has another name now.
    Renamed(String),
    /// The state on disk with which this agent began was an old one; and all hosts that it has heard since.
    OldState(BTreeSet<String>),
    /// The groups that this host is a member of, and who is to run those that run here: to be
    /// remembered.
    Groups(BTreeSet<String>, BTreeMap<String, LastSet>),
    /// A ring that no table of the loop names any more, to be taken out of use.
    RingGone(u32, Made),
    /// A bridge of a process that ended, to be dropped: unmapping it may wait for other threads.
    BridgeGone(Bridge),
    /// What an application's session leaves, to be dropped.
    SessionEnded(sessions::Ended),
    /// The loop has ended.
    Stopped,
}

/// The loop's ends of what connects it with the control thread.
pub struct Ends {
    /// What to do.
    pub requests: Channel<Request>,
    /// What happened.
    pub happened: Sender<Happened>,
    /// Writes of durable groups.
    pub writes: Sender<crate::group_jobs::Job>,
    /// Large states of groups.
    pub states: Sender<crate::state_jobs::Job>,
    /// Questions to the witness.
    pub witness: crate::witness_questions::Asker,
    /// Connections that end with their process.
    pub connections: crate::end_connections::Ender,
    /// An eventfd: readable when there are requests.
    pub wake: OwnedFd,
    /// An eventfd: written when something happened.
    pub tell: OwnedFd,
}

/// What the loop starts from.
pub struct Start {
    /// Cluster id.
    pub cluster: u32,
    /// This host's name.
    pub name: String,
    /// Its wire id.
    pub node: u32,
    /// What fails together with this host.
    pub zone: String,
    /// This agent's incarnation.
    pub incarnation: u32,
    /// That of this host's former agent, by its file.
    pub former_incarnation: Option<u32>,
    /// HB.
    pub period_ns: u64,
    /// Keys.
    pub keys: Keyring,
    /// How the contract is derived.
    pub calibration: calibration::Config,
    /// The detector's settings.
    pub detector: detector::Config,
    /// Whether other hosts may be asked by TCP where an interface has several receive queues.
    pub tcp_questions: bool,
    /// Incarnations of other hosts that were seen before: older ones are replays.
    pub known: BTreeMap<String, u32>,
    /// Whether this host was started anew since its agent's former life.
    pub rebooted: bool,
    /// Hosts that former lives knew and that have not left, heard in this one or not.
    pub members: BTreeSet<u32>,
    /// The fence, if there is one.
    pub fence: Option<FenceStart>,
    /// The kernel's boot id.
    pub boot: u128,
    /// The table of this host's former agent in this boot.
    pub former: Option<Former>,
    /// What agents of this boot may have given out.
    pub used: Numbers,
    /// Ends of this host's processes that former agents have told in this boot, oldest first.
    pub told: Vec<ToldEnd>,
    /// The groups that this host's former agent was a member of.
    pub groups: BTreeSet<String>,
    /// Who was to run those of them that ran here.
    pub last_sets: BTreeMap<String, LastSet>,
    /// Logs of durable groups, from this host's disk; or why they cannot be read.
    pub group_logs: Result<BTreeMap<String, Saved>, String>,
    /// Groups that the configuration has it begin or join.
    pub group_plans: Vec<crate::group_plan::GroupPlan>,
    /// How long the witness may take to answer; `None`: there is none.
    pub witness_ns: Option<u64>,
}

/// How the fence begins.
pub struct FenceStart {
    /// Its rule, closed if a gate was found so.
    pub fence: HostFence,
    /// Its gates as they were found.
    pub driver: Driver,
    /// Open it if it was found closed.
    pub recover: bool,
}

/// Whole packets that one loop iteration takes, and that are taken before a notice so that what came before it is told before it.
const PACKETS_AT_ONCE: usize = 64;
const PACKETS_BEFORE_NOTICE: usize = 256;
/// Requests of the control thread take so much of a loop iteration, and the last of them to its end: then what is urgent comes again.
const REQUESTS_NS: u64 = 50_000;
/// From one look at what is monitored from here to the next, however much changes.
const MONITORS_PAUSE_NS: u64 = 50_000_000;
/// A leave is told so many times, and so long after the one before it.
const LEAVES: [u64; 4] = [0, 1_000_000, 5_000_000, 15_000_000];
/// An agent that ends waits so long at most for the decision that its members leave.
const DEPARTS_WITHIN_NS: u64 = 500_000_000;

/// How often announcements and path reports leave.
const HOUSEKEEPING_NS: u64 = 1_000_000_000;
/// Announcements after the start or a change, until everybody surely has them.
const ANNOUNCE_BURST: [u64; 4] = [0, 50_000_000, 150_000_000, 400_000_000];
/// A loop that did not turn for so long is ill.
const HEART: std::time::Duration = std::time::Duration::from_secs(2);

/// The loop's state.
pub struct Core {
    /// What it started from (incarnation, keys and period change).
    pub start: Start,
    pub(crate) receiver: Receiver,
    pub(crate) lane: Lane,
    pub(crate) prober: Option<Prober>,
    /// What came out of which queues: for applications that check.
    pub(crate) answers: Answers,
    /// The deadline for which the way of a question was gone ahead of time.
    warmed_ns: u64,
    drops: DropCounters,
    drops_seen: [u64; PATHS],
    /// This host's part in the cluster: who lives, what runs where, who is silent.
    pub(crate) node: Node,
    interests: Interests,
    /// When processes that a former agent watched for its configuration, and this one does not, are let go.
    unclaimed_at: u64,
    /// Of the processes of this host.
    pub(crate) progress: Progress,
    owed: Owed,
    // Boxed: the loop looks at every slot each turn, and 256 pointers are 2 KiB.
    pub(crate) peers: Vec<Option<Box<Peer>>>,
    /// Processes of this host.
    pub watchlist: Watchlist,
    pub(crate) subscribers: Subscribers,
    pub(crate) sent: Sent,
    crashes: crash::Crashes,
    own: Own,
    housekeeping_at: u64,
    complained: Complaints,
    multicast: copies::Multicast,
    losses: Losses,
    /// Hosts whose members the groups of this one have excluded because they were unreachable, and which incarnations of them.
    excluded: BTreeMap<u32, u32>,
    /// What came that nobody wanted.
    pub(crate) unwanted: unwanted::Watch,
    monitored_by: BTreeMap<(u32, u32), u32>,
    /// Behind the first and up to the second, numbers of this host's processes are in no file: those of a table that is lost.
    unknown_rows: (u32, u32),
    /// Nothing that ran in former lives goes on: this host was started anew, or its fence was found closed. And what those lives knew.
    former_ended: bool,
    /// The incarnation with which this agent began.
    first_incarnation: u32,
    former_known: BTreeMap<String, u32>,
    body: Vec<u8>,
    report_body: Vec<u8>,
    spin: bool,
    /// When this agent began to leave, the notice of it, and how often that was sent.
    stopping: Option<(u64, Notice, usize)>,
    /// It is to end, and its members leave groups: until when, and within how many ms it will be
    /// back.
    departing: Option<(u64, u32)>,
    stopped: bool,
    ends: Ends,
    epoll: OwnedFd,
    /// The same without the sockets of applications: see [`sessions`].
    epoll_but_sessions: OwnedFd,
    looked_ns: u64,
    rested_ns: u64,
    /// Beats when the loop turns, for `/healthz` and the watchdog.
    pub heart: std::sync::Arc<Heart>,
    fence: Option<Driver>,
    /// Whether each path has its carrier, as was last seen.
    carriers: [bool; PATHS],
    /// Replicated logs, and the applications of this host that have them open.
    groups: Groups,
    sessions: sessions::Sessions,
    group_plans: groups::Plans,
    /// Segments that had been sent again, and until when each leaves on all paths because of it.
    segments_resent: u64,
    segments_doubled_until_ns: u64,
    segments_doubled_ns: u64,
    /// Behind which heartbeat this host's silence was noticed, and whether the last one carried what groups had to say.
    held_behind_ns: u64,
    rode: bool,
    /// The last heartbeat that groups could ride on has not left.
    rides_stay: bool,
    /// This turn has said something to the control thread.
    says: std::cell::Cell<bool>,
}

#[derive(Default)]
struct Complaints {
    clashes: Complaint,
    /// How often another agent has shown that it has our name.
    clash_count: u64,
    foreign: Complaint,
    urgent_lost: u64,
    /// Others know incarnations of this host behind which none can be begun: how often they said so.
    used_up: Complaint,
    used_up_count: u64,
    /// Since when the fence should be armed; `u64::MAX`: that was told.
    fence: Option<u64>,
}

/// One counter that an operator should hear of, and when it was told.
#[derive(Default)]
struct Complaint {
    seen: u64,
    told_ns: Option<u64>,
}

impl Complaint {
    const AGAIN_NS: u64 = 600_000_000_000;

    fn due(&mut self, count: u64, now: u64) -> bool {
        let grew = std::mem::replace(&mut self.seen, count) < count;
        let due = grew && self.told_ns.is_none_or(|told| now.saturating_sub(told) >= Self::AGAIN_NS);
        if due {
            self.told_ns = Some(now);
        }
        due
    }
}

impl Core {
    /// Puts the parts together.
    ///
    /// # Errors
    /// When the descriptors cannot be waited for.
    pub fn new(
        mut start: Start,
        mut receiver: Receiver,
        lane: Lane,
        prober: Option<Prober>,
        ends: Ends,
    ) -> std::io::Result<Self> {
        let now = now_ns();
        let (epoll, epoll_but_sessions) = (epoll_create()?, epoll_create()?);
        let fence = start.fence.take();
        let former = start.former.take();
        let (node, restored) = tables::begin(&start, former, &mut receiver, &lane, now)?;
        let mut group_config = groups::config(start.node, start.incarnation, start.period_ns, start.witness_ns);
        group_config.make = traced(group_config.make);
        let mut core = Self {
            node,
            interests: Interests::new(restored.last_interest),
            unclaimed_at: u64::MAX,
            progress: Progress::new(),
            owed: Owed::default(),
            receiver,
            lane,
            prober,
            warmed_ns: 0,
            answers: Answers::default(),
            drops: DropCounters::default(),
            drops_seen: [0; PATHS],
            peers: (0..SLOTS).map(|_| None).collect(),
            watchlist: Watchlist::default(),
            subscribers: Subscribers::default(),
            sent: Sent::default(),
            crashes: crash::Crashes::default(),
            own: Own::new(now),
            housekeeping_at: now + HOUSEKEEPING_NS,
            complained: Complaints::default(),
            multicast: copies::Multicast::default(),
            losses: Losses::default(),
            excluded: BTreeMap::new(),
            unwanted: unwanted::Watch::default(),
            monitored_by: BTreeMap::new(),
            unknown_rows: (0, 0),
            former_ended: start.rebooted || fence.as_ref().is_some_and(|start| start.fence.closed().is_some()),
            first_incarnation: start.incarnation,
            former_known: start.known.clone(),
            body: Vec::with_capacity(BODY_MAX),
            report_body: Vec::with_capacity(BODY_MAX),
            spin: false,
            stopping: None,
            departing: None,
            stopped: false,
            ends,
            epoll,
            epoll_but_sessions,
            looked_ns: 0,
            rested_ns: 0,
            heart: std::sync::Arc::new(Heart::new(HEART)),
            fence: None,
            carriers: [false; PATHS],
            groups: Groups::new(group_config),
            sessions: sessions::Sessions::default(),
            group_plans: groups::Plans::default(),
            segments_resent: 0,
            segments_doubled_until_ns: 0,
            segments_doubled_ns: 0,
            held_behind_ns: 0,
            rode: false,
            rides_stay: false,
            says: std::cell::Cell::new(false),
            start,
        };
        core.wait_for_descriptors()?;
        core.restore(restored, now);
        core.join_former_groups(now);
        core.begin(fence, now);
        Ok(core)
    }

    /// Paths and fence as they are found.
    fn begin(&mut self, fence: Option<FenceStart>, now: u64) {
        if let Some(prober) = self.prober.as_mut() {
            self.receiver.filter_answers(prober);
        }
        for path in 0..PATHS {
            self.look_at_carrier(path, now);
            self.receiver.set_mac(path, self.lane.mac(path as u8));
            self.open_drops(path as u8);
        }
        self.node.expect_members(std::mem::take(&mut self.start.members));
        for (name, incarnation) in &self.start.known {
            self.node.note_seen(fide_wire::name_id(name), *incarnation);
        }
        if let Some(FenceStart { fence, driver, recover }) = fence {
            let closed = fence.closed().map(|closed| closed.why);
            self.fence = Some(driver);
            self.node.set_fence(fence);
            if let Some(why) = closed {
                self.tell_fenced(why, now);
                if recover {
                    // This life is new already: what the former one sent is not heard again.
                    self.recover_fence(now);
                }
            } else {
                self.host_changed(now);
            }
        }
    }

    /// Spins between turns instead of sleeping: only on a processor of its own.
    pub fn spin(&mut self, spin: bool) {
        self.spin = spin;
    }

    /// Turns until told to stop.
    pub fn run(mut self) {
        while !self.stopped {
            self.turn();
            self.wait();
        }
        if let Some((driver, fence)) = self.fence_parts() {
            driver.end(fence, now_ns()); // taking it away takes longer than its time may last
        }
        self.say(Happened::Stopped);
        self.wake_control();
    }

    /// One turn of the loop.
    pub fn turn(&mut self) {
        self.hold_groups(now_ns());
        self.poll_sockets();
        self.drain_urgent();
        let now = now_ns();
        self.heart.tick(now);
        self.beat(now);
        if self.has_urgent() {
            // Ends go before all else: rows that come behind a notice must not be told before it, nor a silence before an end.
            self.wake_control();
            return;
        }
        self.drain_inbox(PACKETS_AT_ONCE);
        self.exchange_groups(now_ns());
        self.run_requests();
        self.hand_back();
        self.judge(now_ns());
        self.send_steered(now_ns());
        self.ask_wanted_answerers(now_ns());
        self.warm(now_ns());
        self.judge_progress(now_ns());
        if self.can_begin(self.own.announce_at, now) {
            self.announce(now);
        }
        self.transmit_node(now_ns());
        if self.can_begin(self.housekeeping_at, now) {
            self.housekeeping(now);
        }
        self.send_reports(now_ns());
        self.go_on_leaving(now);
        self.wake_control();
    }

    /// The control thread may be gone already; then there is nobody to hear it.
    fn say(&self, happened: Happened) {
        self.says.set(self.ends.happened.send(happened).is_ok() || self.says.get());
    }

    /// Wakes the control thread, once for all that this turn has said.
    fn wake_control(&self) {
        if self.says.take() {
            crate::wake::ring(&self.ends.tell);
        }
    }

    fn run_requests(&mut self) {
        let began = now_ns();
        while let Ok(request) = self.ends.requests.try_recv() {
            self.handle_request(request);
            if now_ns().saturating_sub(began) >= REQUESTS_NS {
                return;
            }
        }
    }

    /// What takes long to be dropped, or waits for the kernel, is the control thread's to drop.
    fn hand_back(&mut self) {
        if self.subscribers.has_work() {
            if let Some((index, made)) = self.subscribers.work(self.receiver.mechanism()) {
                self.say(Happened::RingGone(index, made));
            }
            if !self.subscribers.is_retelling() {
                self.who_delivers_piggybacks();
            }
        }
        while let Some(bridge) = self.watchlist.dropped.pop() {
            self.say(Happened::BridgeGone(bridge));
        }
    }

    /// Accepts these keys from now on.
    pub fn set_keys(&mut self, keys: Keyring) {
        self.start.keys = keys;
        self.receiver.set_keys(&keys);
        let _ = self.ends.states.send(crate::state_jobs::Job::Keys(keys));
    }

    /// Derives the contract by these rules from now on.
    pub fn set_calibration(&mut self, config: calibration::Config) {
        self.node.set_calibration(config);
    }

    /// Events that subscribers lost because they were too slow.
    #[must_use]
    pub fn events_lost(&self) -> u64 {
        self.subscribers.lost
    }

    /// How packets are received.
    #[must_use]
    pub fn receive_name(&self) -> &'static str {
        self.receiver.receive_name()
    }

    /// How exits are seen.
    #[must_use]
    pub fn exit_name(&self) -> &'static str {
        self.receiver.exit_name()
    }

    /// The timeout for silence towards a node, if it is known.
    #[must_use]
    pub fn timeout_ns(&self, node: u32) -> Option<u64> {
        self.node.detector().timeout_ns(node)
    }

    /// What the detector counts.
    #[must_use]
    pub fn silences(&self) -> detector::Stats {
        self.node.detector().stats()
    }

    /// What a node promised of its fence.
    #[must_use]
    pub fn promise_of(&self, node: u32) -> Option<fide_wire::verdict::FencePromise> {
        self.node.detector().promise(node)
    }

    /// What the detector thinks of a node.
    #[must_use]
    pub fn state_of(&self, node: u32) -> Option<detector::State> {
        self.node.detector().state(node)
    }

    /// What the detector thinks of a process of another host.
    #[must_use]
    pub fn app_judged(&self, node: u32, app: u32) -> Option<AppState> {
        self.node.detector().app_state(node, app)
    }

    pub(crate) fn slot(&self, node: u32) -> Option<usize> {
        self.peers.iter().position(|p| p.as_ref().is_some_and(|p| p.node == node))
    }

    fn node_name(&self, node: u32) -> String {
        if node == self.start.node {
            return self.start.name.clone();
        }
        if let Some(peer) = self.slot(node).and_then(|s| self.peers[s].as_ref()) {
            return peer.name.clone();
        }
        // The verdict that it is there comes before it has a place here.
        let peer = self.node.detector().peers().find(|p| p.node == node);
        let known = || self.start.known.keys().find(|name| fide_wire::name_id(name) == node).cloned();
        peer.map(|p| p.name.to_owned()).or_else(known).unwrap_or_else(|| format!("{node:08x}"))
    }

    fn app_name(&self, node: u32, app: u32) -> String {
        if node == self.start.node {
            return self.watchlist.get(app).map_or_else(|| format!("process {app}"), |w| w.name.clone());
        }
        let peer = self.slot(node).and_then(|s| self.peers[s].as_ref());
        peer.and_then(|p| p.apps.get(&app)).map_or_else(|| format!("process {app}"), |a| a.name.clone())
    }
}

/// What is answered where there is no fence.
#[must_use]
pub fn no_fence() -> Refused {
    let what = "this host has no fence: set [fence] mode in its configuration, and restart the agent";
    Refused { code: ErrorCode::Unsupported, what: what.into() }
}

/// How far a new subscriber has been told who there is ([`Core::introduce`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Introduced {
    /// Up to this slot of the other hosts.
    Hosts(usize),
    /// All of them, and up to this process of this host.
    Own(u32),
    /// All of these, too, and up to this process of this host's slot.
    Others(usize, u32),
}

fn epoll_create() -> std::io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: no preconditions; the result is checked.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
