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
//! [`Command`]s and hears from it by [`Happened`].

mod groups;
mod others;
mod tables;

use crate::answerers::{self, Answerer, Answerers};
use crate::bridge::Bridge;
use crate::check::Answers;
use crate::fence::{Driver, Known, Outcome};
use crate::kept::{Former, KeptWatch};
use crate::metrics::Heart;
use crate::namesake::Namesakes;
use crate::peers::Peer;
use crate::receive::Receiver;
use crate::shares::{EventSource, LOOKS, PROGRESS_TOLD, Rate, UNKNOWN_USER, looks};
use crate::steer::{Emptied, Steered, Steering};
use crate::subscribers::{Made, Subscribers, Target, Want, key};
use crate::unwanted;
use crate::watchlist::{Joining, Origin, Watched, Watchlist};
use crate::words;
use crossbeam_channel::{Receiver as Channel, Sender};
use fide_lane::{
    AnswerKind, Breach, Config as CalibrationConfig, DropCounters, Lane, Pacer, PathMode, Prober, SendError, SendOutcome,
};
use fide_proto::detector::{self, AppState, PathArrival, ProbeResult, Progress, progress::Finding};
use fide_proto::node::Node;
use fide_proto::node::directory::Facts;
use fide_proto::services::groups::Groups;
use fide_wire::control::{ErrorCode, HistoryEvent, Refused, Reply, TargetState};
use fide_wire::event::{Record, RecordKind};
use fide_wire::frame::introduction::Introduction;
use fide_wire::frame::table::{HOST_ROW, Row};
use fide_wire::level::FORGOTTEN_EVENT_CODE;
use fide_wire::mac::Keyring;
use fide_wire::marks::Marks;
use fide_wire::packet::{BODY_MAX, Header, Kind, Notice, PACKET_MAX, Packet, ReportEntry};
use fide_wire::verdict::{
    Barrier, BarrierBy, Cause, Confirmers, Contract, Evidence, FenceMode, FencedWhy, Grade, ProgressSource, VerdictId,
};
use fide_wire::{PATHS, SLOTS};
use fide_xdp::layout::QUEUES;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};
use tables::Interests;

pub(crate) use tables::INTERESTS_FROM;

/// Something for the loop to do, from the control thread.
pub type Command = Box<dyn FnOnce(&mut Core) + Send>;

/// What the control thread hears.
#[derive(Debug)]
pub enum Happened {
    /// An event for the history, the hooks and the log. `seq` and `wall_ns` are the control thread's to fill in.
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
    /// This agent began a new incarnation, to be remembered.
    Incarnation(u32),
    /// Another host's incarnation, to be remembered.
    PeerIncarnation(String, u32),
    /// The groups that this host is a member of, to be remembered.
    Groups(BTreeSet<String>),
    /// A ring that no table of the loop names any more, to be taken out of use.
    RingGone(u32, Made),
    /// A bridge of a process that ended, to be dropped: unmapping it may wait for other threads.
    BridgeGone(Bridge),
    /// The loop has ended.
    Stopped,
}

/// The loop's ends of what connects it with the control thread.
pub struct Ends {
    /// What to do.
    pub commands: Channel<Command>,
    /// What happened.
    pub happened: Sender<Happened>,
    /// An eventfd: readable when there are commands.
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
    /// This agent's incarnation.
    pub incarnation: u32,
    /// HB.
    pub period_ns: u64,
    /// Keys.
    pub keys: Keyring,
    /// How the contract is derived.
    pub calibration: CalibrationConfig,
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
    /// The groups that this host's former agent was a member of.
    pub groups: BTreeSet<String>,
}

/// How the fence begins.
pub struct FenceStart {
    /// Its gates as they were found.
    pub driver: Driver,
    /// Open it if it was found closed.
    pub recover: bool,
}

/// So long before a deadline that is about to be missed the loop is awake, and the way of a question is gone once, so that the question behind the deadline
/// finds everything in the caches: the first echo takes some 60 µs, one that follows soon 12 µs. To be woken takes up to 100 µs, and questions that the
/// caches have not up to 200: all that must be over by the deadline.
const WARM_NS: u64 = 400_000;

/// So long behind it the loop stays awake: to be woken takes as long as an answer does.
const AWAKE_NS: u64 = 60_000;

/// So long before such a deadline what can wait is put off, but not for longer than [`PUT_OFF_NS`].
const PRESSED_NS: u64 = 1_000_000;
const PUT_OFF_NS: u64 = 5_000_000;

/// Whole packets that one loop iteration takes, and that are taken before a notice so that what came before it is told before it.
const PACKETS_AT_ONCE: usize = 64;
const PACKETS_BEFORE_NOTICE: usize = 256;
/// Commands of the control thread take so much of a loop iteration, and the last of them to its end: then what is urgent comes again.
const COMMANDS_NS: u64 = 50_000;
/// Looks at progress counters in one loop iteration.
const LOOKS_AT_ONCE: usize = 64;
/// From one look at what is monitored from here to the next, however much changes.
const MONITORS_PAUSE_NS: u64 = 50_000_000;
/// A leave is told so many times, and so long after the one before it.
const LEAVES: [u64; 4] = [0, 1_000_000, 5_000_000, 15_000_000];
/// A change of a process's progress that its user has no rate left for is looked at again after so long.
const OWED_AGAIN_NS: u64 = 50_000_000;

/// How often announcements and path reports leave.
const HOUSEKEEPING_NS: u64 = 1_000_000_000;
/// Hosts that nobody doubts and that are asked in one second.
const TRIED_AT_ONCE: usize = 8;
/// For so long after a frame with our MAC has come others are told of it.
const DIVERTED_NS: u64 = 3_000_000_000;
/// A host whose fence depends on confirmations gets them so many times in its timeout.
const CONFIRMATIONS_PER_FENCE: u64 = 5;
/// Announcements after the start or a change, until everybody surely has them.
const ANNOUNCE_BURST: [u64; 4] = [0, 50_000_000, 150_000_000, 400_000_000];
/// A loop that did not turn for so long is ill.
const HEART: std::time::Duration = std::time::Duration::from_secs(2);
const NO_REPORT: ReportEntry =
    ReportEntry { node: 0, incarnation: 0, path: 0, flags: 0, last_number: 0, echo_sent_ns: 0, hold_ns: 0, jitter_max_ns: 0 };
/// Stay in the loop's busy part this long between looks at the descriptors, in the dedicated profile.
const SPIN_NS: u64 = 50_000;
/// A real-time thread that never sleeps is stopped by the kernel for 50 ms of every second, all at once, in favour of ordinary
/// threads of that processor (real-time throttling; the fair server on newer kernels). So a spinning loop lets them have their 5 %
/// in slices that hurt nobody: after a heartbeat, waiting for its descriptors, which wake it at once. It cannot at heartbeat
/// intervals of about [`REST_NS`]: those need the processor isolated or the throttling off.
const REST_NS: u64 = 80_000;
/// How often it rests.
const REST_EVERY_NS: u64 = 1_000_000;

/// Others that were asked and did not answer for so long are not counted on alone.
const UNANSWERED_NS: u64 = 10_000_000;
/// Who is well is looked up again after so long.
const WELL_NS: u64 = 100_000;
/// For a verdict, who is no host is asked again after so long; a check waits longer ([`crate::check`]).
const ANSWERERS_NS: u64 = 200_000;
/// Of so many others one answers a question by TCP, if they may.
const STEERED_AMONG: usize = 16;
/// Such questions that leave in one turn: each takes some 3 µs.
const STEERED_AT_ONCE: usize = 8;
/// While more wait than this, no others are asked.
const STEERED_MAX: usize = 512;

/// A question of the second rank.
#[derive(Clone, Copy, Debug)]
enum Question {
    /// To the lane's port of a host that was asked whether its kernel answers: does anybody hold it?
    Knock { node: u32, path: usize },
    /// To the kernel of another host, which shows whether an answer could have come.
    Witness { node: u32, path: usize },
    /// To others, so that an answer comes by the receive queue of this one's heartbeats.
    Steered { node: u32, path: usize },
    /// To who is no host of the cluster, when no other one is left to answer.
    Answerers { node: u32, path: usize },
}

/// The loop's state.
pub struct Core {
    /// What it started from (incarnation, keys and period change).
    pub start: Start,
    pub(crate) receiver: Receiver,
    pub(crate) lane: Lane,
    pub(crate) prober: Option<Prober>,
    /// What came out of which queues: for applications that check.
    pub(crate) answers: Answers,
    /// Who else may answer.
    pub(crate) answerers: Answerers,
    /// When they were asked last, and when they are to be again; never: [`u64::MAX`].
    answerers_asked_ns: [u64; PATHS],
    answerers_at: [u64; PATHS],
    /// Since when others were asked on a path and nobody has answered; 0: somebody has.
    unanswered_ns: [u64; PATHS],
    /// Hosts that were well at this time.
    well_ns: u64,
    well: [[Option<u32>; 2]; PATHS],
    /// Which questions come back by which receive queue.
    steering: Steering,
    /// Such questions that have not left yet, by path.
    steered: VecDeque<(usize, Steered)>,
    /// Receive queues of the interfaces, as the control thread counted them.
    queues: [usize; PATHS],
    /// Questions that wait until it was looked whether the first ones are answered.
    later: VecDeque<Question>,
    /// When it was last looked whether our cables are plugged.
    carriers_ns: u64,
    /// The deadline for which the way of a question was gone ahead of time.
    warmed_ns: u64,
    drops: DropCounters,
    drops_seen: [u64; PATHS],
    pacer: Pacer,
    /// This host's part in the cluster: who lives, what runs where, who is silent.
    pub(crate) node: Node,
    interests: Interests,
    /// When processes that a former agent watched for its configuration, and this one does not, are let go.
    unclaimed_at: u64,
    /// Of the processes of this host.
    pub(crate) progress: Progress,
    /// How fast the progress of each user's processes changes.
    progress_rates: BTreeMap<u32, Rate>,
    /// What others are still to be told of a process's progress, and when that is looked at again.
    progress_owed: BTreeMap<u32, Finding>,
    progress_owed_at: u64,
    // Boxed: the loop looks at every slot each turn, and 256 pointers are 2 KiB.
    pub(crate) peers: Vec<Option<Box<Peer>>>,
    /// Processes of this host.
    pub watchlist: Watchlist,
    pub(crate) subscribers: Subscribers,
    number: u64,
    event_number: u64,
    pub(crate) heartbeats: u64,
    announce_at: u64,
    announce_step: usize,
    housekeeping_at: u64,
    complained: Complaints,
    /// Others of this name, and what came that nobody wanted.
    namesakes: Namesakes,
    answered_name_ns: u64,
    /// The slot after that of the host that was asked last without a doubt.
    tried: usize,
    /// When frames with our own MAC came last, by path, as was last seen.
    own_mac_ns: [u64; PATHS],
    pub(crate) unwanted: unwanted::Watch,
    monitored_by: BTreeMap<(u32, u32), u32>,
    /// Hosts that announced a life older than one that was seen: the newest life that is over, and when they were heard.
    outdated: BTreeMap<u32, (u32, u64, bool)>,
    /// Nothing that ran in former lives goes on: this host was started anew, or its fence was found closed. And what those lives knew.
    former_ended: bool,
    former_known: BTreeMap<String, u32>,
    /// The first incarnation behind the fence as it is open now.
    open_since: u32,
    packets: Box<[[u8; PACKET_MAX]; PATHS]>,
    body: Vec<u8>,
    spin: bool,
    /// When this agent began to leave, the notice of it, and how often that was sent.
    stopping: Option<(u64, Notice, usize)>,
    stopped: bool,
    ends: Ends,
    epoll: OwnedFd,
    looked_ns: u64,
    rested_ns: u64,
    /// Beats when the loop turns, for `/healthz` and the watchdog.
    pub heart: std::sync::Arc<Heart>,
    fence: Option<Driver>,
    /// Whether each path has its carrier, as was last seen.
    carriers: [bool; PATHS],
    /// What became of the last packet's copies.
    outcomes: [SendOutcome; PATHS],
    /// When others that depend on it are told next what arrived of them.
    confirm_fences_at: u64,
    /// Replicated logs, and the applications of this host that have them open.
    groups: Groups,
    sessions: Vec<groups::Session>,
    sessions_ready: bool,
    session_buffer: Vec<u8>,
    session_out: Vec<u8>,
    session_members: Vec<u8>,
    /// Segments that had been sent again, and until when each leaves on all paths because of it.
    segments_resent: u64,
    segments_doubled_until_ns: u64,
    segments_doubled_ns: u64,
    /// When the last heartbeat left, behind which one this host's silence was noticed, and whether it carried what groups had to say.
    beaten_ns: u64,
    held_behind_ns: u64,
    rode: bool,
}

#[derive(Default)]
struct Complaints {
    clashes: Complaint,
    /// How often another agent has shown that it has our name.
    clash_count: u64,
    foreign: Complaint,
    urgent_lost: u64,
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

/// This host's CLOCK_MONOTONIC, the clock of every stamp in this agent.
#[must_use]
pub fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a timespec to fill; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
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
        let epoll = epoll_create()?;
        let fence = start.fence.take();
        let former = start.former.take();
        let (node, restored) = tables::begin(&start, former, &mut receiver, &lane, now)?;
        let mut core = Self {
            pacer: Pacer::new(start.period_ns, now),
            node,
            interests: Interests::new(restored.last_interest),
            unclaimed_at: u64::MAX,
            progress: Progress::new(),
            progress_rates: BTreeMap::new(),
            progress_owed: BTreeMap::new(),
            progress_owed_at: u64::MAX,
            receiver,
            lane,
            prober,
            later: VecDeque::new(),
            carriers_ns: 0,
            warmed_ns: 0,
            answers: Answers::default(),
            answerers: Answerers::default(),
            answerers_asked_ns: [0; PATHS],
            answerers_at: [u64::MAX; PATHS],
            unanswered_ns: [0; PATHS],
            well_ns: 0,
            well: Default::default(),
            steering: Steering::default(),
            steered: VecDeque::new(),
            queues: [1; PATHS],
            drops: DropCounters::default(),
            drops_seen: [0; PATHS],
            peers: (0..SLOTS).map(|_| None).collect(),
            watchlist: Watchlist::default(),
            subscribers: Subscribers::default(),
            number: 0,
            event_number: 0,
            heartbeats: 0,
            announce_at: now,
            announce_step: 0,
            housekeeping_at: now + HOUSEKEEPING_NS,
            complained: Complaints::default(),
            namesakes: Namesakes::default(),
            answered_name_ns: 0,
            tried: 0,
            own_mac_ns: [0; PATHS],
            unwanted: unwanted::Watch::default(),
            monitored_by: BTreeMap::new(),
            outdated: BTreeMap::new(),
            former_ended: start.rebooted || fence.as_ref().is_some_and(|fence| fence.driver.closed().is_some()),
            former_known: start.known.clone(),
            open_since: start.incarnation,
            packets: Box::new([[0; PACKET_MAX]; PATHS]),
            body: Vec::with_capacity(BODY_MAX),
            spin: false,
            stopping: None,
            stopped: false,
            ends,
            epoll,
            looked_ns: 0,
            rested_ns: 0,
            heart: std::sync::Arc::new(Heart::new(HEART)),
            fence: None,
            carriers: [false; PATHS],
            outcomes: [SendOutcome::default(); PATHS],
            confirm_fences_at: u64::MAX,
            groups: Groups::new(groups::config(start.node, start.incarnation, start.period_ns)),
            sessions: Vec::new(),
            sessions_ready: false,
            session_buffer: Vec::new(),
            session_out: Vec::new(),
            session_members: Vec::new(),
            segments_resent: 0,
            segments_doubled_until_ns: 0,
            segments_doubled_ns: 0,
            beaten_ns: 0,
            held_behind_ns: 0,
            rode: false,
            start,
        };
        core.wait_for_descriptors()?;
        core.restore(restored, now);
        core.join_former_groups(now);
        if let Some(prober) = core.prober.as_mut() {
            core.receiver.filter_answers(prober);
        }
        for path in 0..PATHS {
            core.look_at_carrier(path, now);
            core.receiver.set_mac(path, core.lane.mac(path as u8));
            core.open_drops(path as u8);
        }
        if let Some(FenceStart { driver, recover }) = fence {
            let closed = driver.closed();
            core.fence = Some(driver);
            core.fence_members();
            if let Some(why) = closed {
                core.tell_fenced(why, now);
                if recover {
                    // This life is new already: what the former one sent is not heard again.
                    core.open_fence(now);
                }
            }
        }
        Ok(core)
    }

    /// A host is overdue, and late soon: asks it once ahead of time, for the question's sake and not for the answer's. That says nothing (it was asked before
    /// the deadline), and nobody waits for it.
    fn warm(&mut self, now: u64) {
        let Some((node, at_ns, late_ns)) = self.warm_at() else { return };
        if now < at_ns {
            return;
        }
        self.warmed_ns = late_ns;
        if now >= late_ns || self.node.detector().is_draining() {
            return; // too late for that, or warm already: and answers that are waited for go first
        }
        for path in 0..PATHS {
            self.ask(node, path, Prober::echo_aside);
        }
    }

    /// Whether a host is late in a moment, or was a moment ago and its barrier is waited for. Once for each deadline.
    fn is_awake(&self, now: u64) -> bool {
        (self.warmed_ns.saturating_sub(WARM_NS)..self.warmed_ns + AWAKE_NS).contains(&now)
            && (self.node.detector().is_draining()
                || self.node.detector().next_late().is_some_and(|(.., late_ns)| late_ns == self.warmed_ns))
    }

    /// Whether work that was due at this time, takes some 0.5 ms and can wait may begin: not while a deadline is about to be missed, or its barrier is waited for.
    fn can_begin(&self, due_ns: u64, now: u64) -> bool {
        let soon = |(_, due_ns, late_ns): (u32, u64, u64)| due_ns <= now && late_ns.saturating_sub(now) < PRESSED_NS;
        now >= due_ns
            && (now >= due_ns.saturating_add(PUT_OFF_NS)
                || !(self.node.detector().is_draining() || self.node.detector().next_late().is_some_and(soon)))
    }

    /// Whom to ask ahead of time, when, and until when.
    fn warm_at(&self) -> Option<(u32, u64, u64)> {
        let (node, due_ns, late_ns) = self.node.detector().next_late()?;
        let at_ns = due_ns.max(late_ns.saturating_sub(WARM_NS));
        (late_ns > self.warmed_ns).then_some((node, at_ns, late_ns))
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
        if let Some(fence) = self.fence.as_mut() {
            fence.end(now_ns()); // taking it away takes longer than its time may last
        }
        self.say(Happened::Stopped);
    }

    /// One turn of the loop.
    pub fn turn(&mut self) {
        self.hold_groups(now_ns());
        self.poll_sockets();
        self.drain_urgent();
        let now = now_ns();
        self.heart.tick(now);
        self.beat(now);
        self.drain_inbox(PACKETS_AT_ONCE);
        self.exchange_groups(now_ns());
        self.run_commands();
        self.hand_back();
        self.judge(now_ns());
        self.send_steered();
        self.ask_wanted_answerers(now_ns());
        self.warm(now_ns());
        self.judge_progress(now_ns());
        if self.can_begin(self.announce_at, now) {
            self.announce(now);
        }
        self.transmit_node(now_ns());
        if now >= self.confirm_fences_at {
            self.confirm_fences(now_ns());
        }
        if self.can_begin(self.housekeeping_at, now) {
            self.housekeeping(now);
        }
        self.leave_again(now);
    }

    // ---- waiting ------------------------------------------------------------------------------------------------------------

    fn next_deadline(&self) -> u64 {
        [self.node.poll_timeout(), self.progress.poll_timeout(), self.leave_at(), self.groups.poll_timeout(), self.early_at()]
            .into_iter()
            .flatten()
            .chain([self.pacer.next_ns(), self.housekeeping_at, self.confirm_fences_at, self.progress_owed_at])
            .chain([self.announce_at, self.interests.due_ns])
            .chain(self.warm_at().map(|(_, at_ns, _)| at_ns))
            .chain(self.steering.look_at(now_ns()))
            .chain(self.answerers_at)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Whether something was left over for the next loop iteration.
    fn has_more(&self) -> bool {
        let waiting = self.subscribers.has_work() || !self.ends.commands.is_empty();
        waiting || !self.steered.is_empty() || self.receiver.has_packet()
    }

    fn wait(&mut self) {
        let now = now_ns();
        if self.is_awake(now) || self.has_more() {
            std::hint::spin_loop();
            return;
        }
        let mut timeout_ns = self.next_deadline().saturating_sub(now);
        if self.spin {
            let rest = now.saturating_sub(self.rested_ns) >= REST_EVERY_NS && timeout_ns > 2 * REST_NS;
            if !rest && now.saturating_sub(self.looked_ns) < SPIN_NS {
                std::hint::spin_loop();
                return;
            }
            self.looked_ns = now;
            timeout_ns = if rest { REST_NS } else { 0 };
            if rest {
                self.rested_ns = now;
            }
        }
        let timeout =
            libc::timespec { tv_sec: (timeout_ns / 1_000_000_000) as i64, tv_nsec: (timeout_ns % 1_000_000_000) as i64 };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: an open epoll descriptor, an array of the stated length, a timespec that lives across the call, no signal mask.
        let n = unsafe {
            libc::epoll_pwait2(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                &raw const timeout,
                std::ptr::null(),
            )
        };
        let woken = || events.iter().take(n.max(0) as usize);
        self.sessions_ready |= !self.sessions.is_empty() && woken().any(|e| self.is_session(e.u64 as std::os::fd::RawFd));
        if woken().any(|e| e.u64 == self.ends.wake.as_raw_fd() as u64) {
            let mut count = 0u64;
            // SAFETY: an open eventfd and eight bytes to fill. Non-blocking; nothing to read is no error here.
            unsafe { libc::read(self.ends.wake.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
    }

    fn wait_for_descriptors(&mut self) -> std::io::Result<()> {
        let mut fds = self.receiver.fds(&self.lane);
        fds.extend(self.prober.iter().flat_map(Prober::fds));
        fds.push(self.ends.wake.as_raw_fd());
        for fd in fds {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
            // SAFETY: open descriptors and an event that lives across the call.
            let r = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
            if r < 0 {
                let e = std::io::Error::last_os_error();
                if e.raw_os_error() != Some(libc::EEXIST) {
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn wait_for(&self, fd: &OwnedFd, events: u32, how: libc::c_int) -> std::io::Result<()> {
        let mut event = libc::epoll_event { events, u64: fd.as_raw_fd() as u64 };
        // SAFETY: open descriptors and an event that lives across the call.
        let r = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), how, fd.as_raw_fd(), &raw mut event) };
        if r < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The control thread may be gone already; then there is nobody to hear it.
    fn say(&self, happened: Happened) {
        if self.ends.happened.send(happened).is_ok() {
            crate::control::ring(&self.ends.tell);
        }
    }

    fn run_commands(&mut self) {
        let began = now_ns();
        while let Ok(command) = self.ends.commands.try_recv() {
            command(self);
            if now_ns().saturating_sub(began) >= COMMANDS_NS {
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

    // ---- a crash on this host, and what others tell of theirs ---------------------------------------------------------------

    fn drain_urgent(&mut self) {
        while let Some(record) = self.receiver.next_urgent() {
            let now = now_ns();
            if record.kind() == Some(RecordKind::Exit) {
                self.local_end(&record, self.receiver.kernel_watches_exits(), now);
            } else {
                self.remote_notice(&record, now);
            }
        }
    }

    /// A process of this host is doomed or dead. First of all the notice leaves; the rest can wait.
    ///
    /// `delivered`: the exit watch has served the kernel's rings itself.
    fn local_end(&mut self, record: &Record, delivered: bool, now: u64) {
        let Some(cause) = record.cause() else { return };
        if let Some(fence) = self.fence.as_mut() {
            let watchlist = &self.watchlist;
            fence.doomed((record.app, watchlist.identity(record.app)), |app| watchlist.is_alive(app));
        }
        // The exit watch may have seen it just before this agent began a new incarnation, or before another change of the process was written.
        let mut record = Record { incarnation: self.start.incarnation, ..*record };
        if self.own_table().get(record.app).is_some_and(|row| row.version > u64::from(record.id as u32)) {
            self.node.skip(u64::from(record.id as u32));
            record.id = VerdictId::new(self.start.node, self.receiver.next_notice()).0;
        }
        let record = &record;
        let notice = Notice {
            notice: record.id as u32,
            app: record.app,
            cause,
            grade: Grade::Certain,
            flags: if record.flags & Record::CONFIRMS != 0 { Notice::CONFIRMS } else { 0 },
            code: record.code,
            event_ns: record.event_ns,
        };
        let sent_ns = self.send_notice(Kind::Notice, &notice);
        self.write_change(&notice, now);
        if self.watchlist.get(record.app).is_none_or(|w| w.ended.is_some_and(|(c, _)| c != Cause::Doomed)) {
            return; // it left while the exit watch was at work: the number had to be used, the story is over
        }
        self.watchlist.end(record.app, cause, record.code, now);
        self.progress.forget(record.app);
        let evidence = Evidence { event_ns: record.event_ns, sent_ns, received_ns: record.received_ns, ..Evidence::default() };
        let name = self.watchlist.get(record.app).map(|w| w.name.clone());
        self.tell(
            cause,
            Grade::Certain,
            &self.start.name.clone(),
            self.start.incarnation,
            name,
            record.code,
            notice.flags != 0,
            Some(VerdictId(record.id)),
            Some(evidence),
            self.source(self.start.node, record.app),
            now,
        );
        let published = Record { kind: RecordKind::Process as u16, ..*record };
        self.publish(record.node, record.app, &published, &[], delivered);
        self.publish_late(&published, delivered);
        self.ended(record.node, record.app, cause);
    }

    /// A life of a host is over: not even after a restart of ours is it believed again.
    fn over(&mut self, name: String, incarnation: u32) {
        let next = incarnation.saturating_add(1);
        let known = self.start.known.entry(name.clone()).or_default();
        if next > *known {
            *known = next;
            self.say(Happened::PeerIncarnation(name, next));
        }
    }

    // ---- packets that can wait a little -------------------------------------------------------------------------------------

    /// Where sockets receive, what they hold comes first: notices among it must not wait for the next turn.
    fn poll_sockets(&mut self) {
        if self.receiver.needs_sockets() {
            let sent = (self.number, self.event_number);
            let (node, incarnation) = (self.start.node, self.start.incarnation);
            let me = crate::soft::Me { cluster: self.start.cluster, node, incarnation, sent };
            self.receiver.poll_sockets(&self.lane, &me, &self.start.keys);
        }
    }

    fn drain_inbox(&mut self, most: usize) {
        let keys = self.start.keys;
        for _ in 0..most {
            let Some((head, bytes)) = self.receiver.next_packet() else { return };
            match fide_wire::packet::decode(&bytes, self.start.cluster, &keys) {
                Ok(packet) => self.packet(&head, &packet, now_ns()),
                Err(reason) => self.receiver.count_refused(reason),
            }
        }
    }

    fn packet(&mut self, head: &Record, packet: &Packet<'_>, now: u64) {
        if packet.header.sender == self.start.node {
            return self.own_name(packet, now);
        }
        match packet.header.kind {
            Kind::Heartbeat => self.piggyback(head, packet, now),
            Kind::Message => self.segment_came(&packet.header, packet.body, now),
            Kind::Introduction => self.introduced(head, &packet.header, packet.body, now),
            Kind::Hello | Kind::Pull | Kind::Rows => self.frame_came(head, &packet.header, packet.body, now),
            Kind::PathReport => self.path_report(&packet.header, packet.body, now),
            Kind::Notice | Kind::Leave => {} // the urgent ring's
        }
    }

    /// An announcement of our own name. If it answers what we asked, somebody else has sent it.
    fn own_name(&mut self, packet: &Packet<'_>, now: u64) {
        if packet.header.kind != Kind::Introduction {
            return;
        }
        let Some(said) = Introduction::read(packet.body) else { return };
        if *said.host.name != *self.start.name {
            return;
        }
        let number = |number: Option<NonZeroU64>| number.map(NonZeroU64::get);
        if self.namesakes.announced(number(said.challenge), number(said.response)) {
            self.complained.clash_count += 1;
            // In one and the same incarnation others could not tell us apart.
            if packet.header.incarnation == self.start.incarnation {
                tracing::warn!("another agent has this name and this incarnation: starting a new one");
                self.start_over(self.start.incarnation.saturating_add((now % 61) as u32), now);
            }
        }
        if self.namesakes.owes_answer() && now >= self.answered_name_ns.saturating_add(HOUSEKEEPING_NS) {
            self.answered_name_ns = now;
            self.announce_at = self.announce_at.min(now);
        }
    }

    fn piggyback(&mut self, head: &Record, packet: &Packet<'_>, now: u64) {
        let Some(slot) = self.slot(packet.header.sender) else { return };
        let Some(peer) = self.peers[slot].as_mut() else { return };
        if !packet.items.is_empty() {
            let is_believed = peer.incarnation == packet.header.incarnation && !peer.condemned && !peer.left;
            if is_believed && peer.first_piggyback(packet.header.number) {
                self.rides_came(packet, now);
            }
            return;
        }
        let Some((app, message)) = packet.body.split_at_checked(2) else { return };
        let low = u16::from_be_bytes([app[0], app[1]]);
        let Some(app) = peer.apps.iter().rev().find(|(n, a)| **n as u16 == low && a.ended.is_none()).map(|(n, _)| *n) else {
            return;
        };
        if !peer.first_piggyback(packet.header.number) {
            return;
        }
        let record = Record { kind: RecordKind::Piggyback as u16, app, ..*head };
        let rings = self.subscribers.rings(packet.header.sender, app) & self.subscribers.listeners();
        if rings != 0 {
            self.subscribers.publish(rings, &record, message, false, self.receiver.mechanism());
        }
    }

    fn empty_slot(&mut self, slot: usize) {
        let Some(gone) = self.peers[slot].take() else { return };
        self.node.forget(gone.node);
        self.receiver.remove_peer(slot, gone.node);
        for app in gone.apps.keys().copied().chain([0]) {
            self.subscribers.clear(gone.node, app, self.receiver.mechanism());
        }
    }

    /// `fide forget`: a host that is gone for good is neither listed nor one of a majority any more. What ended of it stays refused.
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
        self.start.members.remove(&node);
        self.fence_members();
        self.tell_local(Cause::Local, FORGOTTEN_EVENT_CODE, format!("host {host} was forgotten, as an operator asked"));
        Ok(())
    }

    /// Tells these rings that a process is hung, if it is: they may not have heard it.
    fn introduce_hung(&mut self, rings: u64, node: u32, app: u32, now: u64) {
        let (id, code, incarnation) = if node == self.start.node {
            let hung = self.watchlist.get(app).and_then(|w| w.hung);
            let (Some(number), Some(source)) = (hung, self.progress.hung_by(app)) else { return };
            (VerdictId::new(node, number), source.code(), self.start.incarnation)
        } else {
            let Some(AppState::Hung { code, id }) = self.node.detector().app_state(node, app) else { return };
            let Some(incarnation) = self.node.detector().incarnation(node) else { return };
            (id, code, incarnation)
        };
        let record = self.host_record(Cause::Hung, Grade::Inferred, node, incarnation, now);
        let record = Record { kind: RecordKind::Process as u16, app, code, id: id.0, ..record };
        self.subscribers.publish(rings, &record, &[], false, self.receiver.mechanism());
    }

    /// Interests in processes that are gone, and those of hosts that are gone.
    fn forget_monitors(&mut self) {
        let listening = |node: u32| self.slot(node).and_then(|s| self.peers[s].as_ref()).is_some_and(|p| !p.condemned && !p.left);
        let keep = |(from, app): &(u32, u32)| self.watchlist.get(*app).is_some_and(|w| w.ended.is_none()) && listening(*from);
        let gone: Vec<_> = self.monitored_by.keys().filter(|k| !keep(k)).copied().collect();
        for key in gone {
            self.monitored_by.remove(&key);
        }
    }

    fn path_report(&mut self, h: &Header, body: &[u8], now: u64) {
        let Some(slot) = self.slot(h.sender) else { return };
        let (reporter, is_over) = match self.peers[slot].as_ref() {
            Some(p) if p.incarnation == h.incarnation => (p.name.clone(), p.condemned),
            _ => return,
        };
        // A later life of our name that nobody hears any more: another agent had it, or ours before it lost its memory.
        let mut ours = ReportEntry::read_all(body).filter(|e| e.node == self.start.node).peekable();
        let unheard = ours.peek().is_some() && ours.all(|e| e.flags & ReportEntry::SILENT != 0);
        for entry in ReportEntry::read_all(body) {
            if entry.node != self.start.node {
                if entry.flags & ReportEntry::SILENT != 0 && !is_over {
                    self.node.detector_mut().also_reported(entry.node, &reporter, now);
                }
                continue;
            }
            let over = entry.flags & ReportEntry::CONDEMNED != 0 || (entry.incarnation > self.start.incarnation && unheard);
            let closed = self.fence.as_ref().is_some_and(|f| f.closed().is_some());
            let former = entry.flags & ReportEntry::FORMER != 0;
            let promised = !former && self.fence.as_ref().is_some_and(|f| f.promise().is_some());
            // What runs behind an open fence has run since it was opened, whatever incarnation was begun for somebody's former life.
            let from = if promised { self.open_since } else { self.start.incarnation };
            if entry.incarnation >= from && over {
                if closed || promised {
                    // It may have acted on that, unless it was cut off itself since; and a fenced host is opened by its operator only.
                    if !closed {
                        tracing::warn!("{reporter} has given incarnation {} up", entry.incarnation);
                        self.shut_fence(FencedWhy::GivenUp);
                    }
                    return;
                }
                tracing::warn!("{reporter} has given incarnation {} up: starting a new one", entry.incarnation);
                self.start_over(entry.incarnation, now);
                if !former {
                    self.open_since = self.start.incarnation;
                }
                return;
            }
            // Of one whom we gave up nothing else is heard: two that were cut off from each other both begin anew.
            if entry.incarnation != self.start.incarnation || is_over {
                continue;
            }
            if let Some(fence) = self.fence.as_mut() {
                let outcome = fence.confirmed(h.sender, entry.last_number, now);
                self.fence_outcome(outcome, now);
            }
            let path = usize::from(entry.path);
            let round_trip = now.saturating_sub(entry.echo_sent_ns).saturating_sub(entry.hold_ns);
            if path < PATHS
                && entry.echo_sent_ns != 0
                && entry.echo_sent_ns <= now
                && let Some(peer) = self.peers[slot].as_mut()
            {
                peer.calibration[path].round_trip(round_trip);
            }
        }
    }

    /// Others gave this agent up (wrongly, as it still runs): it comes back as somebody new, so that nobody mistakes one life for another.
    fn start_over(&mut self, after: u32, now: u64) {
        self.begin_incarnation(after, now);
        let name = self.start.name.clone();
        self.tell(
            Cause::Returned,
            Grade::Certain,
            &name,
            self.start.incarnation,
            None,
            2,
            false,
            None,
            None,
            EventSource::OWN,
            now,
        );
    }

    fn begin_incarnation(&mut self, after: u32, now: u64) {
        self.start.incarnation = self.start.incarnation.max(after).saturating_add(1);
        self.groups.begin_incarnation(now, self.start.incarnation);
        self.receiver.set_incarnation(self.start.incarnation);
        let version = self.receiver.next_notice().into();
        self.node.begin_incarnation(self.start.incarnation, version, now);
        self.keep_row(HOST_ROW);
        self.say(Happened::Incarnation(self.start.incarnation));
        if let Some(fence) = self.fence.as_mut() {
            fence.renew();
        }
        self.announce_soon(now);
    }

    // ---- the fence ----------------------------------------------------------------------------------------------------------

    /// Whether nothing may leave.
    fn is_fenced(&self) -> bool {
        self.fence.as_ref().is_some_and(|f| f.closed().is_some())
    }

    /// Whether others rely on heartbeats of ours to come in time.
    fn promises(&self) -> bool {
        self.fence.as_ref().is_some_and(|f| f.closed().is_none() && f.promise().is_some())
    }

    /// A heartbeat was handed over: does it count already, does an earlier one?
    fn fence_beat(&mut self, read_ns: u64) {
        let Some(fence) = self.fence.as_mut() else { return };
        fence.sent(self.number, read_ns, self.lane.sends(), &self.outcomes, self.carriers);
        let outcome = if fence.wants_completions() { fence.completed(&self.lane.completion()) } else { fence.alone(now_ns()) };
        self.fence_outcome(outcome, read_ns);
    }

    fn fence_outcome(&mut self, outcome: Outcome, now: u64) {
        match outcome {
            Outcome::Nothing => {}
            Outcome::Armed => self.host_changed(now),
            Outcome::Closed(why) => self.tell_fenced(why, now),
        }
    }

    /// This host is fenced: its applications hear it first, since they must stop.
    fn tell_fenced(&mut self, why: FencedWhy, now: u64) {
        self.groups.stop(now);
        let (node, incarnation, name) = (self.start.node, self.start.incarnation, self.start.name.clone());
        let record = self.host_record(Cause::Fenced, Grade::Certain, node, incarnation, now);
        self.publish_host(node, &name, &Record { flags: Record::LOCAL, code: why as i32, ..record });
        self.tell(Cause::Fenced, Grade::Certain, &name, incarnation, None, why as i32, false, None, None, EventSource::OWN, now);
    }

    /// Shuts the fence, as far as it is open.
    fn shut_fence(&mut self, why: FencedWhy) {
        let now = now_ns();
        let Some(fence) = self.fence.as_mut().filter(|f| f.closed().is_none()) else { return };
        fence.close(why, now);
        self.tell_fenced(why, now);
    }

    /// `fide fence shut`.
    ///
    /// # Errors
    /// When there is none, or it is closed already.
    pub fn operator_shuts_fence(&mut self) -> Result<(), Refused> {
        match self.fence.as_ref().map(Driver::closed) {
            None => Err(no_fence()),
            Some(Some(_)) => Err(Refused { code: ErrorCode::Exists, what: "this host is fenced already".into() }),
            Some(None) => {
                self.shut_fence(FencedWhy::Operator);
                Ok(())
            }
        }
    }

    /// `fide fence recover`: a new incarnation, and then open gates. Others meet somebody new, whom they have not condemned.
    ///
    /// # Errors
    /// When there is none, or it is not closed.
    pub fn operator_recovers_fence(&mut self) -> Result<(), Refused> {
        match self.fence.as_ref().map(Driver::closed) {
            None => Err(no_fence()),
            Some(None) => {
                Err(Refused { code: ErrorCode::Invalid, what: "this host is not fenced, so there is nothing to recover".into() })
            }
            Some(Some(_)) => {
                let now = now_ns();
                self.begin_incarnation(self.start.incarnation, now);
                self.open_since = self.start.incarnation;
                for peer in self.peers.iter_mut().flatten() {
                    peer.former = peer.condemned;
                }
                self.open_fence(now);
                Ok(())
            }
        }
    }

    fn open_fence(&mut self, now: u64) {
        let Some(fence) = self.fence.as_mut() else { return };
        fence.recover(now_ns());
        let (node, incarnation, name) = (self.start.node, self.start.incarnation, self.start.name.clone());
        let record = self.host_record(Cause::Recovered, Grade::Certain, node, incarnation, now);
        self.publish_host(node, &name, &Record { flags: Record::LOCAL, ..record });
        self.tell(Cause::Recovered, Grade::Certain, &name, incarnation, None, 0, false, None, None, EventSource::OWN, now);
        self.announce_soon(now);
    }

    /// A cgroup has a gate now.
    pub fn add_gate(&mut self, name: String, gate: fide_xdp::Gate) {
        if let Some(fence) = self.fence.as_mut() {
            fence.add_gate(name, gate);
        }
    }

    /// The sockets of this process are behind this gate. `lives`: whom that has cut off was seen alive.
    pub fn fence_process(&mut self, app: u32, gate: &str, lives: bool) {
        let Some(fence) = self.fence.as_mut() else { return };
        let watchlist = &self.watchlist;
        let is_alive = |app| watchlist.is_alive(app);
        let known = |app| match watchlist.get(app).map(|w| w.ended) {
            Some(None) => Known::Alive,
            Some(Some((cause, _))) if cause != Cause::Left => Known::Ended,
            _ => Known::Not,
        };
        let app = (app, watchlist.identity(app));
        let others = fence.process(app, gate, lives, known);
        if !others.is_empty() {
            tracing::warn!(
                "{gate} holds {} other watched processes: its gate is not shut when one of them is doomed",
                others.len()
            );
        }
        if !is_alive(app.0) {
            fence.doomed(app, is_alive); // it was faster than the look-up
        }
    }

    /// Watched processes, with their numbers, behind gates that are shut for others ([`Driver::beside_cut_off`]).
    #[must_use]
    pub fn beside_cut_off(&self) -> Vec<(u32, u32, String)> {
        let beside = self.fence.as_ref().map_or_else(Vec::new, |f| f.beside_cut_off(|app| self.watchlist.is_alive(app)));
        beside.into_iter().map(|(app, gate)| (app, self.watchlist.identity(app).pid, gate)).collect()
    }

    /// Cuts off a process that is hung since the notice of this number, as far as it is behind a gate of its own: which, or why not. `None`: it moves again.
    pub fn fence_hung(&mut self, name: &str, number: u32) -> Option<Result<String, String>> {
        let watchlist = &self.watchlist;
        let app = watchlist.named(name).filter(|app| watchlist.get(*app).is_some_and(|w| w.hung == Some(number)))?;
        let none = || "this host has no fence".to_string();
        let app = (app, watchlist.identity(app));
        Some(self.fence.as_mut().ok_or_else(none).and_then(|fence| fence.cut_off(app, |app| watchlist.is_alive(app))))
    }

    /// Who must confirm our heartbeats. Suspicion shrinks no majority; among all it counts where the suspect is cut off, or watches nobody.
    fn fence_members(&mut self) {
        let Some(fence) = self.fence.as_mut() else { return };
        let detector = self.node.detector();
        let observes = |p: &detector::PeerView<'_>| match (fence.mode(), p.state) {
            (_, detector::State::Left) => false,
            (FenceMode::Acknowledged(Confirmers::All), detector::State::Silent) => detector.promise(p.node).is_none(),
            (FenceMode::Acknowledged(Confirmers::All), detector::State::AgentLost) => false,
            _ => true,
        };
        // Nor does a restart: who was known before it is one of them, heard again or not.
        let not_heard = self.start.members.iter().copied().filter(|node| detector.peers().all(|p| p.node != *node));
        let nodes: Vec<u32> = detector.peers().filter(observes).map(|p| p.node).chain(not_heard).collect();
        fence.members(nodes);
    }

    /// Tells those who depend on it what arrived of them, often enough for their timeouts.
    fn confirm_fences(&mut self, now: u64) {
        self.confirm_fences_at = u64::MAX;
        let mut body = Vec::new();
        for slot in 0..self.peers.len() {
            let Some(peer) = self.peers[slot].as_ref().filter(|p| !p.condemned) else { continue };
            let Some(promise) = self.node.detector().promise(peer.node) else { continue };
            if !matches!(promise.mode, FenceMode::Acknowledged(_)) {
                continue;
            }
            let every = (promise.timeout_ns / CONFIRMATIONS_PER_FENCE).max(self.start.period_ns);
            self.confirm_fences_at = self.confirm_fences_at.min(now.saturating_add(every));
            for path in 0..PATHS {
                if body.len() + ReportEntry::LEN <= BODY_MAX
                    && let Some(entry) = self.report_entry(slot, path, now)
                {
                    entry.write(&mut body);
                }
            }
        }
        if !body.is_empty() {
            self.send_event(Kind::PathReport, None, &body);
        }
    }

    /// For `fide fence status`; `None` without a fence.
    #[must_use]
    pub fn fence_status(&self) -> Option<fide_wire::control::FenceStatus> {
        let fence = self.fence.as_ref()?;
        Some(fence.status(now_ns(), |node| self.node_name(node), |app| self.app_name(self.start.node, app)))
    }

    // ---- sending ------------------------------------------------------------------------------------------------------------

    fn header(&self, kind: Kind, path: u8, number: u64) -> Header {
        Header {
            kind,
            path,
            key_id: 0,
            cluster: self.start.cluster,
            sender: self.start.node,
            incarnation: self.start.incarnation,
            number,
            sent_ns: now_ns(),
            period_ns: u32::try_from(self.start.period_ns).unwrap_or(u32::MAX),
            table_version: self.own_table().complete() as u32,
        }
    }

    /// The next heartbeat, with the items of groups or a piggyback.
    fn transmit_heartbeat(&mut self, body: &[u8]) -> u64 {
        let rode = self.rode;
        self.transmit_as(Kind::Heartbeat, self.number, |out, header, keys| match rode {
            true => fide_wire::packet::encode_items(out, header, body, keys),
            false => fide_wire::packet::encode(out, header, None, body, keys),
        })
    }

    fn transmit(&mut self, kind: Kind, number: u64, notice: Option<&Notice>, body: &[u8]) -> u64 {
        self.transmit_as(kind, number, |out, header, keys| fide_wire::packet::encode(out, header, notice, body, keys))
    }

    /// Encodes for every path and sends with one call. Returns the stamp.
    fn transmit_as(
        &mut self,
        kind: Kind,
        number: u64,
        encode: impl Fn(&mut [u8; PACKET_MAX], &Header, &Keyring) -> Result<usize, fide_wire::packet::EncodeError>,
    ) -> u64 {
        self.outcomes = [SendOutcome::default(); PATHS];
        if self.is_fenced() {
            return now_ns(); // as far as the gates reach, they would block it; a fenced host is not alive on the others either
        }
        let mut lens = [0; PATHS];
        let mut stamp = 0;
        for (path, length) in lens.iter_mut().enumerate() {
            let header = self.header(kind, path as u8, number);
            stamp = header.sent_ns;
            match encode(&mut self.packets[path], &header, &self.start.keys) {
                Ok(len) => *length = len,
                Err(e) => tracing::error!("{kind:?} not sent: {e}"),
            }
        }
        let payloads = std::array::from_fn(|p| (lens[p] > 0).then(|| &self.packets[p][..lens[p]]));
        self.receiver.note_sent(kind == Kind::Heartbeat, number);
        self.outcomes = self.lane.send(payloads);
        stamp
    }

    /// To everybody, on the paths in turn; on all of them where there is one only, or this one does not take it.
    fn send_on_one_path(&mut self, kind: Kind, body: &[u8]) {
        let path = (self.event_number % PATHS as u64) as usize;
        if (0..PATHS).any(|path| self.lane.mode(path as u8) == PathMode::Down) {
            self.send_event(kind, None, body);
            return;
        }
        if self.is_fenced() {
            return;
        }
        self.event_number += 1;
        let header = self.header(kind, path as u8, self.event_number);
        match fide_wire::packet::encode(&mut self.packets[path], &header, None, body, &self.start.keys) {
            Ok(len) => {
                let payloads = std::array::from_fn(|p| (p == path).then(|| &self.packets[path][..len]));
                self.receiver.note_sent(false, self.event_number);
                let outcomes = self.lane.send(payloads);
                if !outcomes[path].is_ok() {
                    self.send_event(kind, None, body);
                }
            }
            Err(e) => tracing::error!("{kind:?} not sent: {e}"),
        }
    }

    fn send_event(&mut self, kind: Kind, notice: Option<&Notice>, body: &[u8]) -> u64 {
        self.event_number += 1;
        self.transmit(kind, self.event_number, notice, body)
    }

    fn send_notice(&mut self, kind: Kind, notice: &Notice) -> u64 {
        self.send_event(kind, Some(notice), &[])
    }

    fn beat(&mut self, now: u64) {
        // Who leaves is silent, unless others rely on it not to be.
        if self.pacer.tick(now).is_none() || (self.stopping.is_some() && !self.promises()) {
            return;
        }
        if let Some(why) = self.fence.as_mut().and_then(|f| f.check(now)) {
            self.tell_fenced(why, now);
        }
        self.send_heartbeat(now);
    }

    /// A heartbeat leaves, with what a process piggybacks, or what groups do: in turns, if both wait.
    fn send_heartbeat(&mut self, now: u64) {
        let mut body = std::mem::take(&mut self.body);
        let before = self.beaten_ns;
        body.clear();
        let rides = !self.groups.is_empty() && (!self.rode || !self.watchlist.is_piggyback_waiting());
        if rides {
            self.take_rides(&mut body, now);
        }
        self.rode = !body.is_empty();
        let from = if self.rode { None } else { self.watchlist.take_piggyback(&mut body) };
        self.number += 1;
        let sent_ns = self.transmit_heartbeat(&body);
        self.beaten_ns = now_ns();
        self.fence_beat(now);
        if rides {
            self.rides_left(before);
        }
        if let Some(app) = from {
            // Who monitors it on this host hears the same.
            let record = Record {
                kind: RecordKind::Piggyback as u16,
                node: self.start.node,
                app,
                incarnation: self.start.incarnation,
                flags: Record::LOCAL,
                sent_ns,
                received_ns: sent_ns,
                number: self.number,
                ..Record::default()
            };
            self.publish(self.start.node, app, &record, &body[fide_wire::packet::PIGGYBACK_HEAD..], false);
        }
        self.heartbeats += 1;
        self.body = body;
    }

    fn announce_soon(&mut self, now: u64) {
        self.announce_step = 0;
        self.announce_at = now;
    }

    fn announce(&mut self, now: u64) {
        self.announce_step += 1;
        let step = self.announce_step;
        self.announce_at = match ANNOUNCE_BURST.get(step) {
            Some(after) => now + (after - ANNOUNCE_BURST[step - 1]),
            None => now + HOUSEKEEPING_NS,
        };
        let (challenge, response) = self.namesakes.announce();
        let number = |number: Option<u64>| number.and_then(NonZeroU64::new);
        let (challenge, response, diverted) = (number(challenge), number(response), self.diverted_paths(now));
        self.node.set_facts(Facts { contract: self.own_contract(), challenge, response, diverted });
        self.node.announce();
    }

    /// The contract this agent offers: its period, what fits, and the worst it has seen of its own paths.
    #[must_use]
    pub fn own_contract(&self) -> Contract {
        let worst = |f: fn(&Contract) -> u64| self.peers.iter().flatten().flat_map(|p| &p.contract).map(f).max().unwrap_or(0);
        Contract {
            period_ns: self.start.period_ns,
            size_max: self.lane.piggyback_max() as u32,
            lambda_min_ns: worst(|c| c.lambda_min_ns),
            delta_max_ns: worst(|c| c.delta_max_ns),
        }
    }

    // ---- judging ------------------------------------------------------------------------------------------------------------

    fn judge(&mut self, now: u64) {
        self.take_answers(now);
        self.weigh(now);
        // A barrier is back in less time than all questions take to be sent, and a verdict may wait for it.
        while let Some(question) = self.later.pop_front() {
            let now = now_ns();
            if self.take_answers(now) {
                self.weigh(now);
            }
            self.put(question);
        }
    }

    /// Whether there were any.
    fn take_answers(&mut self, now: u64) -> bool {
        let mut any = false;
        self.node.detector_mut().offer_barriers(self.receiver.offers_barriers());
        while let Some(answer) = self.prober.as_mut().and_then(Prober::poll) {
            any = true;
            let result = match answer.kind {
                AnswerKind::KernelAnswered => ProbeResult::KernelAnswered,
                AnswerKind::AgentAbsent => ProbeResult::AgentAbsent,
            };
            let path = usize::from(answer.path);
            if !answerers::is_reserved(answer.node) {
                self.node.detector_mut().probe_result(answer.node, path, result, answer.probed_ns, now);
            }
            let queue = self.receiver.barrier(path, answer.nonce);
            // An answer of an address that is this host's by now came by no interface: the receive program has not seen it. Without that program nobody else can tell.
            let came_in = if self.receiver.offers_barriers() { queue.is_some() } else { !fide_lane::is_local(answer.from) };
            if answer.kind == AnswerKind::KernelAnswered && came_in {
                self.answers.note(path, queue, answer.probed_ns);
            }
            if !answerers::is_reserved(answer.node) {
                self.unanswered_ns[path] = 0;
            } else if came_in || !fide_lane::is_local(answer.from) {
                self.answerers.answered(answer.node, path, now); // also when another answer came out of the queue by now
            }
            if let Some(queue) = queue {
                self.steering.other_came(path, queue);
                self.emptied(path, &[Emptied { queue, as_of_ns: answer.probed_ns, by: answer.node }]);
            }
        }
        for path in (0..PATHS).filter(|path| self.steering.is_waiting(*path)).collect::<Vec<_>>() {
            let emptied = self.steering.came(path, &self.receiver.steered(path), now);
            emptied.iter().for_each(|e| self.answers.note(path, Some(e.queue), e.as_of_ns));
            self.emptied(path, &emptied);
            any |= !emptied.is_empty();
        }
        any
    }

    /// What came into these queues before these times is in the tables.
    fn emptied(&mut self, path: usize, queues: &[Emptied]) {
        if queues.is_empty() {
            return;
        }
        for (slot, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let of_its = u32::from(self.receiver.peer(slot).queue[path]);
            for emptied in queues.iter().filter(|emptied| emptied.queue == of_its) {
                self.node.detector_mut().drained(peer.node, path, emptied.as_of_ns);
                let latest = &mut peer.barrier[path];
                if latest.is_none_or(|(known, _)| known.as_of_ns <= emptied.as_of_ns) {
                    *latest = Some((*emptied, self.answerers.address(emptied.by, path)));
                }
            }
        }
    }

    /// The barriers behind a verdict on a silence.
    fn barriers(&self, node: u32, evidence: &Evidence) -> Vec<Barrier> {
        let Some(peer) = self.slot(node).and_then(|slot| self.peers[slot].as_ref()).filter(|_| evidence.drained) else {
            return Vec::new();
        };
        let last_ns = evidence.paths.iter().map(|path| path.last_arrival_ns).max().unwrap_or(0);
        let latest = peer.barrier.iter().enumerate().filter_map(|(path, latest)| Some((path, (*latest)?)));
        let named = |(path, (emptied, address)): (usize, (Emptied, Option<IpAddr>))| {
            let (by, from) = if let Some(address) = address {
                (BarrierBy::Answerer, address.to_string())
            } else if emptied.by == answerers::ITSELF {
                let other = (0..PATHS as u8).find(|other| usize::from(*other) != path).unwrap_or_default();
                (BarrierBy::Itself, self.lane.interface(other).unwrap_or_default().to_owned())
            } else {
                (BarrierBy::Host, self.node_name(emptied.by))
            };
            Barrier { path: path as u8, from, by, asked_ns: emptied.as_of_ns }
        };
        latest.filter(|(_, (emptied, _))| emptied.as_of_ns > last_ns).map(named).collect()
    }

    /// Whether another host than `but` is well and can be asked on this path, and others that were asked do answer.
    pub(crate) fn others_answer(&mut self, path: usize, but: Option<u32>) -> bool {
        let now = now_ns();
        self.find_well(now);
        let unanswered_ns = self.unanswered_ns[path];
        let answers = unanswered_ns == 0 || now.saturating_sub(unanswered_ns) < UNANSWERED_NS;
        answers && self.well[path].iter().flatten().any(|node| Some(*node) != but)
    }

    /// Two hosts for each path that were heard there in time. Once for all who ask in one turn.
    fn find_well(&mut self, now: u64) {
        if now.saturating_sub(self.well_ns) < WELL_NS {
            return;
        }
        (self.well_ns, self.well) = (now, Default::default());
        for (slot, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer.as_ref().filter(|p| !p.left && !p.condemned) else { continue };
            if self.well.iter().flatten().all(Option::is_some) {
                break;
            }
            let timeout_ns = self.node.detector().timeout_ns(peer.node).unwrap_or(0);
            let row = self.receiver.peer(slot);
            for (path, well) in self.well.iter_mut().enumerate() {
                let is_well = peer.addresses[path].is_some() && now.saturating_sub(row.path[path].arrived_ns) <= timeout_ns;
                if let Some(place) = well.iter_mut().find(|place| place.is_none()).filter(|_| is_well) {
                    *place = Some(peer.node);
                }
            }
        }
    }

    /// Others are asked on this path: if nobody answers, it is not they alone who will be.
    pub(crate) fn note_asked(&mut self, path: usize) {
        if self.unanswered_ns[path] == 0 {
            self.unanswered_ns[path] = now_ns();
        }
    }

    /// Who is no host of the cluster is asked for a barrier of a path, `pause_ns` after the last time at the earliest.
    pub(crate) fn want_answerers(&mut self, path: usize, pause_ns: u64) {
        if !self.answerers.of(path).is_empty() {
            let at_ns = self.answerers_asked_ns[path].saturating_add(pause_ns);
            self.answerers_at[path] = self.answerers_at[path].min(at_ns);
        }
    }

    fn ask_wanted_answerers(&mut self, now: u64) {
        for path in 0..PATHS {
            if now >= self.answerers_at[path] {
                self.ask_answerers(path, &self.answerers.to_ask(path, now), now);
            }
        }
    }

    fn ask_answerers(&mut self, path: usize, whom: &[Answerer], now: u64) {
        (self.answerers_at[path], self.answerers_asked_ns[path]) = (u64::MAX, now);
        let Some(prober) = self.prober.as_mut() else { return };
        for answerer in whom {
            if let Err(e) = prober.echo_aside(answerer.node, path as u8, answerer.address) {
                tracing::debug!("a barrier of path {path} by {}: {e}", answerer.address);
            }
        }
    }

    /// These may be asked, too, but for hosts of the cluster. They are asked now and then, so that it is known who does answer.
    pub fn set_answerers(&mut self, path: usize, addresses: &[IpAddr]) {
        let is_host = |address: &IpAddr| self.peers.iter().flatten().any(|p| p.addresses.contains(&Some(*address)));
        let others: Vec<IpAddr> = addresses.iter().filter(|a| !is_host(a)).copied().collect();
        if self.answerers.set(path, &others) {
            self.steering.forget(path);
        }
        let all = self.answerers.of(path).to_vec();
        self.ask_answerers(path, &all, now_ns());
    }

    /// Whom to ask by TCP, the likeliest to answer first.
    fn steered_among(&mut self, path: usize, but: Option<u32>, source: IpAddr) -> Vec<u32> {
        if !self.others_answer(path, but) {
            let now = now_ns();
            let is_able = |a: &&Answerer| a.answers(now) && a.address.is_ipv6() == source.is_ipv6();
            let answerers = self.answerers.of(path).iter().filter(is_able).map(|a| a.node);
            let mut alone: Vec<u32> = self.crossing(path).map(|_| answerers::ITSELF).into_iter().chain(answerers).collect();
            // The kernel of one that is late may answer, if only its agent is lost.
            alone.extend(but.filter(|node| self.node.detector().state(*node) == Some(detector::State::Late)));
            if !alone.is_empty() {
                return alone;
            }
        }
        let mut hosts: Vec<(u64, u32)> = Vec::new();
        for (slot, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer.as_ref().filter(|p| !p.left && !p.condemned && Some(p.node) != but) else { continue };
            if peer.addresses[path].is_some_and(|a| a.is_ipv6() == source.is_ipv6()) {
                hosts.push((self.receiver.peer(slot).path[path].arrived_ns, peer.node)); // whoever was heard last
            }
        }
        hosts.sort_unstable_by(|a, b| b.cmp(a));
        hosts.into_iter().take(STEERED_AMONG).map(|(_, node)| node).collect()
    }

    /// From which path this host may ask itself on another one, and from which address.
    fn crossing(&self, path: usize) -> Option<(u8, IpAddr)> {
        let source = self.lane.source(path as u8)?;
        let other = |by: &u8| usize::from(*by) != path && self.lane.carrier(*by);
        (0..PATHS as u8)
            .filter(other)
            .find_map(|by| Some((by, self.lane.source(by).filter(|s| s.is_ipv6() == source.is_ipv6())?)))
    }

    /// Asks others than `but` so that answers come by this receive queue of a path (counted from 1), or by all: where it has several, and where no other host is
    /// left whose echo would come.
    pub(crate) fn steer(&mut self, path: usize, queue: Option<u32>, but: Option<u32>) {
        let queues = self.queues[path];
        let Some(source) = self.lane.source(path as u8).filter(|_| self.prober.is_some()) else { return };
        let can = self.start.tcp_questions && (1..=QUEUES).contains(&queues) && self.receiver.offers_barriers();
        if !can || queue.is_some_and(|queue| queue as usize > queues) || self.steered.len() > STEERED_MAX {
            return;
        }
        let nodes = match queues {
            // An echo comes by the one that there is, unless there is nobody for it.
            1 if self.others_answer(path, but) => return,
            1 => self.crossing(path).map(|_| answerers::ITSELF).into_iter().collect(),
            _ => self.steered_among(path, but, source),
        };
        // A number that is noted already, of a question that is forgotten, would be taken for its answer.
        let noted = self.receiver.steered(path);
        let is_new = |random: &u64| !noted.iter().any(|(_, number)| number >> 8 == *random as u32 >> 8);
        let Some(random) = (0..8).find_map(|_| fide_lane::random().ok().filter(is_new)) else { return };
        let wanted = queue.map_or(1..=queues as u32, |queue| queue..=queue);
        let questions = self.steering.ask(path, queues, wanted, &nodes, now_ns(), random);
        if let Some(first) = questions.first() {
            self.receiver.expect_steered(path, first.number);
        }
        self.steered.extend(questions.into_iter().map(|question| (path, question)));
    }

    /// Some of what [`Core::steer`] wants asked: a search has hundreds of them, and our heartbeats do not wait for that.
    fn send_steered(&mut self) {
        for _ in 0..STEERED_AT_ONCE {
            let Some((path, q)) = self.steered.pop_front() else { return };
            let Some(source) = self.lane.source(path as u8) else { continue };
            let host = self.slot(q.node).and_then(|slot| self.peers[slot].as_ref()?.addresses[path]);
            let address = host.or_else(|| self.answerers.address(q.node, path));
            let crossing = if q.node == answerers::ITSELF { self.crossing(path) } else { None };
            let Some(prober) = self.prober.as_mut() else { return };
            let sent = match (address, crossing) {
                (Some(address), _) => prober.steer(path as u8, source, address, q.port, q.number),
                (None, Some((by, from))) => prober.cross((by, path as u8), from, source, q.port, q.number),
                (None, None) => continue,
            };
            if let Err(e) = sent {
                tracing::debug!("a question by TCP on path {path}: {e}");
                self.steered.retain(|(of, _)| *of != path);
            }
        }
    }

    /// How many receive queues the interface of a path has.
    pub fn set_queues(&mut self, path: usize, queues: usize) {
        if let Some(known) = self.queues.get_mut(path)
            && std::mem::replace(known, queues) != queues
        {
            self.steering.forget(path);
        }
    }

    /// Hands the table to the detector and does what it wants. Behind the barriers: what came before them is in it.
    fn weigh(&mut self, now: u64) {
        for slot in 0..self.peers.len() {
            let Some(peer) = self.peers[slot].as_mut() else { continue };
            let row = self.receiver.peer(slot);
            let is_heard = row.incarnation == peer.incarnation && !peer.condemned && !peer.left;
            if is_heard && std::mem::replace(&mut peer.named, row.table_version) != row.table_version {
                self.node.heartbeat(peer.node, peer.incarnation, row.table_version, now);
            }
            let arrivals = std::array::from_fn(|k| (row.path[k], Marks(row.mark[k]))).map(|(p, marks)| PathArrival {
                last_number: p.number,
                last_arrival_ns: p.arrived_ns,
                lost: p.lost,
                drops: p.refused,
                recent: marks.recent(p.arrived, p.lost, p.arrived_ns),
            });
            // Refusals (a life that is over) are the detector's to count.
            self.node.arrivals(peer.node, row.incarnation, &arrivals);
        }
        self.act(None, now);
        if self.node.detector().is_doubting(now) {
            self.note_drops(now);
        }
        self.node.handle_timeout(now);
        self.act(None, now);
    }

    /// S2: what our own side lost may have been heartbeats.
    fn note_drops(&mut self, now: u64) {
        // Our questions are among what our own gate drops: silence says nothing of anybody then.
        if self.fence.as_ref().is_some_and(Driver::is_mute) {
            (0..PATHS).for_each(|path| self.node.detector_mut().dropped(path, now));
        }
        let sockets = if self.receiver.needs_sockets() { self.lane.receive_fds() } else { Vec::new() };
        for path in 0..PATHS {
            let socket = sockets.iter().find(|(of, _)| usize::from(*of) == path).map(|(_, fd)| *fd);
            let counted = self.drops.read(path as u8, socket);
            if std::mem::replace(&mut self.drops_seen[path], counted) < counted {
                self.node.detector_mut().dropped(path, now);
            }
        }
    }

    /// The counters of the interface that this path uses now. What it lost before is nobody's silence.
    fn open_drops(&mut self, path: u8) {
        self.drops.through_stack(!self.receiver.offers_barriers());
        let interface = self.lane.interface(path).unwrap_or_default().to_owned();
        if !self.drops.open(path, &interface, self.lane.ifindex(path)) && self.lane.ifindex(path).is_some() {
            tracing::info!("path {path}: /sys does not show what {interface} loses; only what the stack loses is a veto");
        }
        if let Some(seen) = self.drops_seen.get_mut(usize::from(path)) {
            *seen = self.drops.read(path, None);
        }
    }

    // ---- progress of this host's processes (B10) ------------------------------------------------------------------------------

    fn judge_progress(&mut self, now: u64) {
        for _ in 0..LOOKS_AT_ONCE {
            let Some((app, source)) = self.progress.poll_look(now) else { break };
            let Some(look) = self.watchlist.look(app, source) else {
                self.progress.forget(app); // it ended just now
                continue;
            };
            if let Some(finding) = self.progress.looked(app, source, look, now) {
                self.found_in_time(finding, now);
            }
        }
        if now >= self.progress_owed_at {
            self.progress_owed_at = u64::MAX;
            for (app, finding) in std::mem::take(&mut self.progress_owed) {
                let told = self.watchlist.get(app).is_some_and(|w| w.hung.is_some());
                // It may have changed back meanwhile: then there is nothing to tell.
                if told != self.progress.hung_by(app).is_some() {
                    self.found_in_time(finding, now);
                }
            }
        }
    }

    /// A process whose progress changes again and again is told of as often as its user may; of what happens in between, the last.
    fn found_in_time(&mut self, finding: Finding, now: u64) {
        let uid = self.watchlist.get(finding.app).map_or(0, |w| w.account);
        if uid == 0 || self.progress_rates.entry(uid).or_default().take(PROGRESS_TOLD, now) {
            self.progress_owed.remove(&finding.app);
            self.found(&finding, now);
        } else {
            self.progress_owed.insert(finding.app, finding);
            self.progress_owed_at = now + OWED_AGAIN_NS;
        }
    }

    /// A process of this host is hung, or moves again: told as a crash is, at once and until everybody confirmed it.
    fn found(&mut self, finding: &Finding, now: u64) {
        let Finding { app, cause, source, limit_ns, .. } = *finding;
        // If the exit watch was faster, its end is all there is to say.
        self.drain_urgent();
        if self.watchlist.get(app).is_none_or(|w| w.ended.is_some()) {
            self.progress.forget(app);
            return;
        }
        let grade = if cause == Cause::Hung { Grade::Inferred } else { Grade::Certain };
        let (id, sent_ns) = self.tell_others(app, cause, grade, source, now);
        self.watchlist.set_hung(app, (cause == Cause::Hung).then_some(id.0 as u32));
        let (me, mine, host) = (self.start.node, self.start.incarnation, self.start.name.clone());
        let record = Record {
            kind: RecordKind::Process as u16,
            app,
            id: id.0,
            code: source.code(),
            flags: Record::LOCAL,
            sent_ns,
            received_ns: now,
            ..self.host_record(cause, grade, me, mine, now)
        };
        self.publish(me, app, &record, &[], false);
        let evidence = Evidence { timeout_ns: limit_ns, event_ns: now, sent_ns, received_ns: now, ..Evidence::default() };
        let name = self.watchlist.get(app).map(|w| w.name.clone());
        self.tell(cause, grade, &host, mine, name, source.code(), false, Some(id), Some(evidence), self.source(me, app), now);
    }

    fn tell_others(&mut self, app: u32, cause: Cause, grade: Grade, source: ProgressSource, now: u64) -> (VerdictId, u64) {
        let number = self.receiver.next_notice();
        let notice = Notice { notice: number, app, cause, grade, flags: 0, code: source.code(), event_ns: now };
        let sent_ns = self.send_notice(Kind::Notice, &notice);
        self.write_change(&notice, now);
        (VerdictId::new(self.start.node, number), sent_ns)
    }

    /// Looks at a source of a process's progress from now on, by this limit; 0: no longer. `false` when the process ended.
    pub fn watch_progress(&mut self, app: u32, source: ProgressSource, limit_ns: u64) -> bool {
        if self.watchlist.get(app).is_none_or(|w| w.ended.is_some()) {
            return false;
        }
        let now = now_ns();
        if limit_ns > 0 {
            self.progress.watch(app, source, limit_ns, now);
        } else if let Some(finding) = self.progress.unwatch(app, source) {
            self.found_in_time(finding, now);
        }
        true
    }

    /// The same for a progress counter, within the share of the process's user.
    ///
    /// # Errors
    /// In words: the share is used up.
    pub fn watch_counter(&mut self, app: u32, counter: u8, limit_ns: u64) -> Result<bool, String> {
        let source = ProgressSource::Counter(counter);
        let Some((uid, before)) = self.watchlist.get(app).map(|w| (w.account, w.looks)) else { return Ok(false) };
        let (old, new) = (self.progress.limit_ns(app, source).map_or(0, looks), looks(limit_ns));
        let (own, used) = self.watchlist.looks_of(uid);
        if new > old {
            LOOKS.admit(uid, own, used, new - old)?;
        }
        let watched = self.watch_progress(app, source, limit_ns);
        if let Some(w) = self.watchlist.get_mut(app).filter(|_| watched) {
            w.looks = before.saturating_sub(old) + new;
        }
        Ok(watched)
    }

    /// Judges a process's progress by a probe from now on; `None`: no longer.
    pub fn watch_probe(&mut self, app: u32, probe: Option<(ProgressSource, u64, crate::watchlist::Moves)>) {
        for source in [ProgressSource::Command, ProgressSource::File, ProgressSource::Write] {
            self.watch_progress(app, source, 0);
        }
        let Some((source, limit_ns, moves)) = probe else { return };
        if let Some(w) = self.watchlist.get_mut(app).filter(|w| w.ended.is_none()) {
            w.probe = Some(moves);
            self.watch_progress(app, source, limit_ns);
        }
    }

    /// An application's own detector found that a process of this host is hung, or is not.
    pub fn report_progress(&mut self, app: u32, hung: bool) {
        let now = now_ns();
        if self.watchlist.get(app).is_some_and(|w| w.ended.is_none())
            && let Some(finding) = self.progress.reported(app, hung, now)
        {
            self.found_in_time(finding, now);
        }
    }

    /// A host that is doubted is asked at once whether its kernel answers; the rest follows.
    fn probe(&mut self, node: u32, paths: [bool; PATHS], (knock, wide): (bool, bool), now: u64) {
        let paths = || (0..PATHS).filter(|path| paths[*path]);
        if !knock {
            self.later.extend(paths().map(|path| Question::Witness { node, path }));
            return;
        }
        paths().for_each(|path| _ = self.ask(node, path, Prober::echo));
        if wide {
            paths().for_each(|path| self.ask_everybody(node, path));
        }
        // Before others are doubted: is it our own cable? While the answers are on their way, and once for all who are asked now.
        if std::mem::replace(&mut self.carriers_ns, now) != now {
            for path in 0..PATHS {
                self.look_at_carrier(path, now);
            }
        }
        self.later.extend(paths().map(|path| Question::Answerers { node, path }));
        // Others, by the queue that its heartbeats take.
        self.later.extend(paths().map(|path| Question::Steered { node, path }));
        self.later.extend(paths().map(|path| Question::Knock { node, path }));
    }

    /// Whether a verdict on it waits for one: that it is late, silent, or that its agent is lost.
    fn may_wait_for_barrier(&self, node: u32) -> bool {
        self.node.detector().is_draining() || self.node.detector().state(node) == Some(detector::State::Late)
    }

    fn put(&mut self, question: Question) {
        match question {
            Question::Knock { node, path } => _ = self.ask(node, path, Prober::knock),
            Question::Witness { node, path } => {
                self.ask(node, path, Prober::echo);
                self.note_asked(path);
            }
            // Hosts first: their answers are nearer.
            Question::Answerers { .. } if self.later.iter().any(|q| matches!(q, Question::Witness { .. })) => {
                self.later.push_back(question);
            }
            Question::Answerers { node, path } => {
                if self.receiver.offers_barriers() && self.may_wait_for_barrier(node) && !self.others_answer(path, Some(node)) {
                    self.want_answerers(path, ANSWERERS_NS);
                    self.ask_wanted_answerers(now_ns());
                }
            }
            Question::Steered { node, path } => {
                let queue = self.slot(node).map_or(0, |slot| u32::from(self.receiver.peer(slot).queue[path]));
                if queue != 0 && self.may_wait_for_barrier(node) {
                    self.steer(path, Some(queue), Some(node));
                }
            }
        }
    }

    /// Whether the question left.
    fn ask(&mut self, node: u32, path: usize, how: fn(&mut Prober, u32, u8, IpAddr) -> Result<(), SendError>) -> bool {
        let Some(slot) = self.slot(node) else { return false };
        let (Some(peer), Some(prober)) = (self.peers[slot].as_ref(), self.prober.as_mut()) else { return false };
        let Some(address) = peer.addresses[path] else { return false };
        let asked = how(prober, node, path as u8, address);
        if let Err(e) = &asked {
            tracing::debug!("probe of {} on path {path}: {e}", peer.name);
        }
        asked.is_ok()
    }

    /// Asks a host in a frame for everybody: it gets there wherever the switches think that the host is.
    fn ask_everybody(&mut self, node: u32, path: usize) {
        let source = self.lane.source(path as u8);
        let Some(address) = self.slot(node).and_then(|slot| self.peers[slot].as_ref()?.addresses[path]) else { return };
        if let (Some(source), Some(prober)) = (source, self.prober.as_mut())
            && let Err(e) = prober.echo_wide(node, path as u8, source, address)
        {
            tracing::debug!("a question for everybody on path {path}: {e}");
        }
    }

    /// Asks some hosts that nobody doubts, in turns: so it is known who answers, and whether answers go astray.
    fn try_some(&mut self, now: u64) {
        let alive = |p: &Peer| !p.condemned && !p.left;
        for _ in 0..TRIED_AT_ONCE.min(self.peers.iter().flatten().filter(|p| alive(p)).count()) {
            let slots = (self.tried..self.peers.len()).chain(0..self.tried);
            let Some(slot) = slots.into_iter().find(|slot| self.peers[*slot].as_deref().is_some_and(alive)) else { return };
            self.tried = slot + 1;
            let Some(node) = self.peers[slot].as_ref().map(|p| p.node) else { return };
            for path in 0..PATHS {
                if self.carriers[path] && self.node.detector_mut().tried(node, path, now) {
                    self.tell_diverted(node, path, now);
                }
                // Behind our own fence, while it is shut, no question leaves.
                if !self.ask(node, path, Prober::echo_aside) {
                    self.node.detector_mut().not_tried(node, path);
                }
            }
        }
    }

    /// What is for another host goes astray, or its answers.
    fn tell_diverted(&mut self, node: u32, path: usize, now: u64) {
        let (name, incarnation) = (self.node_name(node), self.node.detector().incarnation(node).unwrap_or_default());
        let text = format!(
            "what is for {name} on path {path}, or what it answers, goes astray: another station uses its MAC, or something filters its answers; while that lasts it is not taken for dead before its agent's timeout, unless it is silent on a path on which nothing goes astray"
        );
        let code = unwanted::CODE_DIVERTED;
        self.tell_text(Cause::ForeignTraffic, Grade::Inferred, (&name, incarnation), code, text, EventSource::OWN, now);
    }

    /// Frames with our own MAC came in: others are told, and what is answered to us may go astray.
    fn note_own_mac(&mut self, now: u64) {
        let mut news = false;
        for path in 0..PATHS {
            let last_ns = self.receiver.own_mac_ns(path);
            if last_ns > std::mem::replace(&mut self.own_mac_ns[path], last_ns) {
                news |= self.node.detector_mut().diverted(self.start.node, path, now);
            }
        }
        if news {
            self.announce_soon(now);
        }
    }

    /// The paths on which our MAC was heard a moment ago.
    fn diverted_paths(&self, now: u64) -> [bool; PATHS] {
        self.own_mac_ns.map(|last_ns| last_ns != 0 && now.saturating_sub(last_ns) < DIVERTED_NS)
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

    fn host_record(&self, cause: Cause, grade: Grade, node: u32, incarnation: u32, now: u64) -> Record {
        Record {
            kind: RecordKind::Host as u16,
            cause: cause as u8,
            grade: grade as u8,
            node,
            incarnation,
            event_ns: now,
            ..Record::default()
        }
    }

    /// To those who asked while the kernel was delivering, and whom it may have missed. (Twice is better than never: an application is told
    /// once of each end.)
    fn publish_late(&mut self, record: &Record, delivered: bool) {
        let rings = self.subscribers.too_late(record.node, record.app, record.received_ns);
        if delivered && rings != 0 {
            self.subscribers.publish(rings, record, &[], false, self.receiver.mechanism());
        }
    }

    /// To those who asked for this process, its host, or everything.
    fn publish(&mut self, node: u32, app: u32, record: &Record, body: &[u8], delivered: bool) {
        let rings = self.subscribers.rings(node, app);
        if rings != 0 {
            self.subscribers.publish(rings, record, body, delivered, self.receiver.mechanism());
        }
    }

    /// To everybody who asked for anything of this host.
    fn publish_host(&mut self, node: u32, name: &str, record: &Record) {
        let rings = if node == self.start.node { self.subscribers.in_use() } else { self.subscribers.rings_of_host(name) };
        if rings != 0 {
            self.subscribers.publish(rings, record, name.as_bytes(), false, self.receiver.mechanism());
        }
    }

    #[expect(clippy::too_many_arguments, reason = "an event has this many parts, and each caller has them at hand")]
    fn tell(
        &self,
        cause: Cause,
        grade: Grade,
        node: &str,
        incarnation: u32,
        app: Option<String>,
        code: i32,
        confirms: bool,
        id: Option<VerdictId>,
        evidence: Option<Evidence>,
        source: EventSource,
        at_ns: u64,
    ) {
        let text = words::sentence(cause, node, app.as_deref(), code, confirms);
        let event = HistoryEvent {
            seq: 0,
            wall_ns: 0,
            at_ns,
            observer: self.start.name.clone(),
            observer_incarnation: self.start.incarnation,
            id,
            cause,
            grade,
            node: node.into(),
            incarnation,
            app,
            code,
            confirms,
            text,
            evidence: evidence.map(Box::new),
        };
        self.say(Happened::Event(Box::new(event), source));
    }

    /// Tells of something on this host, from the control thread's side (an interface, a full disk).
    pub fn tell_local(&mut self, cause: Cause, code: i32, text: String) {
        self.tell_local_of(EventSource::OWN, cause, code, text);
    }

    /// The same, when it is because of what somebody does.
    pub fn tell_local_of(&mut self, source: EventSource, cause: Cause, code: i32, text: String) {
        let host = self.start.name.clone();
        self.tell_text(cause, Grade::Certain, (&host, self.start.incarnation), code, text, source, now_ns());
    }

    /// Whose doing it is what happens to a process.
    fn source(&self, node: u32, app: u32) -> EventSource {
        let user = match app {
            0 => Some(0),
            _ if node == self.start.node => self.watchlist.get(app).map(|w| w.charged),
            _ => self.slot(node).and_then(|slot| self.peers[slot].as_ref()).and_then(|p| p.apps.get(&app)).map(|a| a.user),
        };
        EventSource { node: (node != self.start.node).then_some(node), user: user.unwrap_or(UNKNOWN_USER) }
    }

    #[expect(clippy::too_many_arguments, reason = "as tell()")]
    pub(crate) fn tell_text(
        &self,
        cause: Cause,
        grade: Grade,
        (node, incarnation): (&str, u32),
        code: i32,
        text: String,
        source: EventSource,
        at_ns: u64,
    ) {
        let event = HistoryEvent {
            seq: 0,
            wall_ns: 0,
            at_ns,
            observer: self.start.name.clone(),
            observer_incarnation: self.start.incarnation,
            id: None,
            cause,
            grade,
            node: node.into(),
            incarnation,
            app: None,
            code,
            confirms: false,
            text,
            evidence: None,
        };
        self.say(Happened::Event(Box::new(event), source));
    }

    // ---- once a second ------------------------------------------------------------------------------------------------------

    fn housekeeping(&mut self, now: u64) {
        self.housekeeping_at = now + HOUSEKEEPING_NS;
        self.calibrate(now);
        self.report_paths(now);
        self.try_some(now);
        self.complain(now);
        self.recover_stranded(now);
        self.receiver.check_pidfds();
        self.subscribers.tell_losses(self.receiver.mechanism());
        self.let_unclaimed_go(now);
        self.progress_rates.retain(|_, rate| !rate.is_idle(now));
        self.forget_monitors();
        self.outdated.retain(|_, (_, heard, _)| now.saturating_sub(*heard) < 3 * HOUSEKEEPING_NS);
        // Word of interfaces comes from the control thread: to look at them takes longer the more this host has.
        for path in 0..PATHS {
            self.look_at_carrier(path, now);
        }
    }

    fn calibrate(&mut self, now: u64) {
        let size = self.lane.piggyback_max() as u32;
        let mut breaches = Vec::new();
        for slot in 0..self.peers.len() {
            let Some(peer) = self.peers[slot].as_mut().filter(|p| !p.condemned && !p.left) else { continue };
            let period = self.receiver.peer(slot).period_ns;
            let period = if period == 0 { peer.announced.period_ns } else { period.into() };
            for path in 0..PATHS {
                let max = self.receiver.take_jitter_max(slot, path);
                peer.calibration[path].set_period(period);
                let window = peer.calibration[path].feed(&self.receiver.jitter(slot, path), max);
                breaches.extend(window.breach.map(|b| (peer.node, peer.incarnation, path, b)));
                peer.window[path] = Some(window);
                let contract = peer.calibration[path].contract(size);
                if contract != peer.contract[path] {
                    peer.contract[path] = contract;
                    // A peer the detector has forgotten has no contract to keep.
                    let _ = self.node.detector_mut().contract(peer.node, path, contract, now);
                }
            }
        }
        for (node, incarnation, path, breach) in breaches {
            self.margin(node, incarnation, path, breach, now);
        }
    }

    /// The margin of one path's contract is used up, or there is some again (DESIGN: assumptions are measured while they are relied on).
    fn margin(&mut self, node: u32, incarnation: u32, path: usize, breach: Breach, now: u64) {
        let host = self.node_name(node);
        let ms = |ns: u64| ns as f64 / 1e6;
        let (cause, text) = match breach {
            Breach::Broken { worst_ns, allowed_ns } => (
                Cause::ContractBroken,
                format!(
                    "heartbeats of {host} on path {path} were up to {:.3} ms late; its contract allows {:.3} ms",
                    ms(worst_ns),
                    ms(allowed_ns)
                ),
            ),
            Breach::Kept => (Cause::ContractKept, format!("heartbeats of {host} on path {path} keep the contract again")),
        };
        let record = Record { code: path as i32, ..self.host_record(cause, Grade::Inferred, node, incarnation, now) };
        self.publish_host(node, &host, &record);
        self.tell_text(cause, Grade::Inferred, (&host, incarnation), path as i32, text, self.source(node, 0), now);
    }

    fn report_entry(&self, slot: usize, path: usize, now: u64) -> Option<ReportEntry> {
        let peer = self.peers[slot].as_ref()?;
        let row = self.receiver.peer(slot);
        let p = row.path.get(path)?;
        let timeout = peer.contract[path].timeout_ns();
        let silent = p.arrived_ns == 0 || now.saturating_sub(p.arrived_ns) > timeout;
        Some(ReportEntry {
            node: peer.node,
            incarnation: peer.incarnation,
            path: path as u8,
            flags: if silent { ReportEntry::SILENT } else { 0 }
                | if peer.condemned { ReportEntry::CONDEMNED } else { 0 }
                | if peer.former { ReportEntry::FORMER } else { 0 },
            last_number: p.number,
            echo_sent_ns: p.sent_ns,
            hold_ns: now.saturating_sub(p.arrived_ns),
            jitter_max_ns: p.jitter_max_ns,
        })
    }

    fn report_paths(&mut self, now: u64) {
        let mut bodies = vec![Vec::new()];
        for slot in 0..self.peers.len() {
            for path in 0..PATHS {
                let Some(entry) = self.report_entry(slot, path, now) else { continue };
                if bodies.last().is_some_and(|b| b.len() + ReportEntry::LEN > BODY_MAX) {
                    bodies.push(Vec::new());
                }
                if let Some(body) = bodies.last_mut() {
                    entry.write(body);
                }
            }
        }
        for (node, (incarnation, _, former)) in &self.outdated {
            if bodies.last().is_some_and(|b| b.len() + ReportEntry::LEN > BODY_MAX) {
                bodies.push(Vec::new());
            }
            let flags = ReportEntry::SILENT | ReportEntry::CONDEMNED | if *former { ReportEntry::FORMER } else { 0 };
            let entry = ReportEntry { node: *node, incarnation: *incarnation, flags, ..NO_REPORT };
            if let Some(body) = bodies.last_mut() {
                entry.write(body);
            }
        }
        for body in bodies.iter().filter(|b| !b.is_empty()) {
            self.send_event(Kind::PathReport, None, body);
        }
    }

    /// What the counters say that an operator should hear: at once, and as long as it goes on again every ten minutes.
    fn complain(&mut self, now: u64) {
        let refused = self.receiver.refused();
        use fide_wire::packet::Refusal;
        // What was dropped here could have been heartbeats: evidence for verdicts on silence.
        self.node.detector_mut().receive_drops(refused[Refusal::RingFull as usize]);
        // Now and then, so that what was lost long ago is no veto later.
        self.note_drops(now);
        const FOREIGN: [Refusal; 4] = [Refusal::Cluster, Refusal::Key, Refusal::Mac, Refusal::Version];
        let foreign: u64 = FOREIGN.iter().map(|r| refused[*r as usize]).sum();
        // Our own name comes back when the network loops or somebody sends recordings; or another agent has it, and then it answers.
        if let Ok(random) = fide_lane::random() {
            // Numbers that every reader of JSON reads exactly.
            self.namesakes.look(refused[Refusal::Own as usize], random >> 11);
        }
        self.tell_unwanted(now);
        self.note_own_mac(now);
        let clashes = self.complained.clash_count;
        let due = [self.complained.clashes.due(clashes, now), self.complained.foreign.due(foreign, now)];
        let (name, incarnation) = (self.start.name.clone(), self.start.incarnation);
        if due[0] {
            self.tell(Cause::NameClash, Grade::Certain, &name, incarnation, None, 0, false, None, None, EventSource::OWN, now);
        }
        if due[1] {
            let text = self.foreign_text();
            self.tell_text(Cause::ForeignTraffic, Grade::Certain, (&name, incarnation), 0, text, EventSource::OWN, now);
        }
    }

    /// Deaths whose records found the urgent ring full are still in the watch table.
    fn recover_stranded(&mut self, now: u64) {
        let (_, lost) = self.receiver.complaints();
        if lost == self.complained.urgent_lost {
            return;
        }
        self.complained.urgent_lost = lost;
        for end in self.receiver.stranded() {
            let signal = end.watch.status & 0x7f;
            let cause = match (end.watch.state, signal) {
                (1, _) => Cause::Doomed,
                (_, 0) => Cause::Exited,
                _ if end.watch.is_out_of_memory() => Cause::OutOfMemory,
                _ => Cause::Killed,
            };
            let known = self.watchlist.get(end.watch.app).and_then(|w| w.ended);
            if known.is_some_and(|(c, _)| c != Cause::Doomed || cause == Cause::Doomed) {
                continue;
            }
            let code = if signal == 0 { end.watch.status >> 8 & 0xff } else { signal };
            let record = Record {
                kind: RecordKind::Exit as u16,
                cause: cause as u8,
                grade: Grade::Certain as u8,
                node: self.start.node,
                app: end.watch.app,
                incarnation: self.start.incarnation,
                code,
                flags: Record::LOCAL | if known.is_some() { Record::CONFIRMS } else { 0 },
                id: VerdictId::new(self.start.node, self.receiver.next_notice()).0,
                event_ns: now,
                received_ns: now,
                pid: end.pid,
                ..Record::default()
            };
            self.local_end(&record, false, now);
            if end.watch.state == 2 {
                self.receiver.unwatch(end.pid);
            }
        }
    }

    // ---- leaving ------------------------------------------------------------------------------------------------------------

    /// Says goodbye, a few times, then ends the loop.
    pub fn leave(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        let now = now_ns();
        let number = self.receiver.next_notice();
        let notice =
            Notice { notice: number, app: 0, cause: Cause::Left, grade: Grade::Certain, flags: 0, code: 0, event_ns: now };
        // Others hear that it left, and go on without its members.
        self.groups.stop(now);
        self.stopping = Some((now, notice, 0));
        self.leave_again(now);
        self.write_change(&notice, now);
    }

    fn leave_at(&self) -> Option<u64> {
        let (began_ns, _, told) = self.stopping?;
        Some(began_ns + LEAVES.get(told).unwrap_or(&LEAVES[LEAVES.len() - 1]))
    }

    fn leave_again(&mut self, now: u64) {
        let due = self.leave_at().is_some_and(|at_ns| now >= at_ns);
        let Some((_, notice, told)) = self.stopping.as_mut().filter(|_| due) else { return };
        if *told == LEAVES.len() {
            self.stopped = true;
            return;
        }
        *told += 1;
        let notice = *notice;
        self.send_notice(Kind::Leave, &notice);
    }

    // ---- for the control thread ---------------------------------------------------------------------------------------------

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
    fn appeared(&mut self, node: u32, incarnation: u32, app: u32, wanting: u64, now: u64) {
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
    pub fn hand_on(&mut self, app: u32, pid: u32, start_ticks: u64, uid: u32) -> bool {
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
        let is_crash = |(cause, code): (Cause, i32)| cause.is_seen_end() && (cause != Cause::Exited || code != 0);
        w.ended.filter(|ended| is_crash(*ended)).map(|_| w.ended_ns)
    }

    /// A watched process ended with status 0 before it had settled, and nothing goes on in its place: now that is told.
    pub fn ended_cleanly(&mut self, app: u32) {
        let Some(w) = self.watchlist.get(app).filter(|w| w.ended.is_none()) else { return };
        let now = now_ns();
        let record = Record {
            kind: RecordKind::Exit as u16,
            cause: Cause::Exited as u8,
            grade: Grade::Certain as u8,
            flags: Record::LOCAL,
            node: self.start.node,
            incarnation: self.start.incarnation,
            app,
            pid: w.pid,
            id: VerdictId::new(self.start.node, self.receiver.next_notice()).0,
            event_ns: now,
            received_ns: now,
            ..Record::default()
        };
        self.local_end(&record, false, now);
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
        let Joining { pbsize, bridge, ring, account } = joining;
        self.watchlist.count_under(app, account);
        if let Some(w) = self.watchlist.get_mut(app) {
            let former = w.bridge.replace(bridge);
            (w.pbsize, w.ring, w.is_kept) = (pbsize, ring, false);
            self.watchlist.dropped.extend(former);
            self.put_process(app, now_ns());
            // Its counters lie in the new one, and it will say which are to be looked at.
            for counter in 0..fide_wire::control::bridge::COUNTERS as u8 {
                self.watch_progress(app, ProgressSource::Counter(counter), 0);
            }
            self.watchlist.get_mut(app).into_iter().for_each(|w| w.looks = 0);
        }
    }

    /// A process leaves politely, or is no longer watched.
    pub fn unwatch(&mut self, app: u32) -> bool {
        let Some(w) = self.watchlist.get(app).filter(|w| w.ended.is_none()) else { return false };
        let (pid, name) = (w.pid, w.name.clone());
        self.receiver.unwatch(pid);
        // The exit watch may have been faster: then its record is in the urgent ring, and the process did not leave but die.
        self.drain_urgent();
        if self.watchlist.get(app).is_none_or(|w| w.ended.is_some()) {
            return false;
        }
        let now = now_ns();
        let notice = Notice {
            notice: self.receiver.next_notice(),
            app,
            cause: Cause::Left,
            grade: Grade::Certain,
            flags: 0,
            code: 0,
            event_ns: now,
        };
        let sent_ns = self.send_notice(Kind::Notice, &notice);
        self.watchlist.end(app, Cause::Left, 0, now);
        self.progress.forget(app);
        self.write_change(&notice, now);
        let id = VerdictId::new(self.start.node, notice.notice);
        let record = Record {
            kind: RecordKind::Process as u16,
            app,
            id: id.0,
            flags: Record::LOCAL,
            ..self.host_record(Cause::Left, Grade::Certain, self.start.node, self.start.incarnation, now)
        };
        self.publish(self.start.node, app, &record, &[], false);
        self.ended(self.start.node, app, Cause::Left);
        let evidence = Evidence { event_ns: now, sent_ns, received_ns: now, ..Evidence::default() };
        let host = self.start.name.clone();
        self.tell(
            Cause::Left,
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

    /// A new subscriber's ring.
    pub fn subscribe(&mut self, index: u32, made: Made) {
        if let (Made::Socket(_), Some(m)) = (&made, self.receiver.mechanism()) {
            m.leave_piggybacks(true); // before the kernel stops serving those who asked for them
        }
        self.subscribers.add(index, made);
    }

    /// The kernel, straight from the packet, unless somebody's ring is a socket: then all are served from here, in order.
    fn who_delivers_piggybacks(&self) {
        if let Some(m) = self.receiver.mechanism() {
            m.leave_piggybacks(self.subscribers.has_sockets());
        }
    }

    /// A subscriber is gone.
    pub fn unsubscribe(&mut self, ring: u32) {
        self.watchlist.ring_gone(ring);
        self.subscribers.remove(ring);
        self.interests.changed(now_ns());
    }

    /// Starts monitoring, and says what is known of the target.
    ///
    /// A host's processes, or all, are introduced before ([`Core::introduce`]): whom names belong to may end as soon as somebody listens.
    pub fn monitor(&mut self, ring: u32, target: Target, want: Want) -> Reply {
        let found = self.resolve(&target);
        self.subscribers.want(ring, target.clone(), want);
        self.interests.changed(now_ns());
        if let Some((node, app)) = found {
            self.subscribers.listen(key(node, app), ring, want.pbsize, self.receiver.mechanism());
            self.introduce_hung(1 << ring, node, app, now_ns());
        }
        let (node, app) = found.unwrap_or_else(|| match &target {
            Target::Host(host) | Target::Process(_, host) => (fide_wire::name_id(host), 0),
            Target::Everything => (0, 0),
        });
        let pbsize = self.piggyback_size(node, app);
        let timeout_ns = self.node.detector().timeout_ns(node).unwrap_or_else(|| self.own_contract().timeout_ns());
        let (state, end) = self.target_state(&target);
        let alive = matches!(state, TargetState::Alive | TargetState::Hung);
        Reply::Monitored { node, app, pbsize, timeout_ns, alive, state: Some(state), end }
    }

    /// Tells a new subscriber to a host or to everything which hosts and processes there are, from this one on and at most so many: from then on it
    /// knows them by name. Gives the place where to go on; none at the end.
    pub fn introduce(&mut self, ring: u32, target: &Target, from: Introduced, most: usize) -> Option<Introduced> {
        let wanted = |host: &str| match target {
            Target::Everything => true,
            Target::Host(h) => h == host,
            Target::Process(..) => false,
        };
        let now = now_ns();
        let mut at = from;
        let mut left = most;
        while left > 0 {
            // Hosts, then the processes of this one, then those of the others.
            let (node, incarnation, app, name) = match at {
                Introduced::Hosts(slot) => {
                    let mut peers = self.peers.iter().enumerate().skip(slot);
                    let known = |p: &&Peer| wanted(&p.name) && !p.condemned && !p.left;
                    let Some((slot, peer)) = peers.find_map(|(slot, p)| Some((slot, p.as_deref().filter(known)?))) else {
                        at = Introduced::Own(1);
                        continue;
                    };
                    at = Introduced::Hosts(slot + 1);
                    (peer.node, peer.incarnation, 0, peer.name.clone())
                }
                Introduced::Own(from) => {
                    let own = self.watchlist.alive_from(from).next().filter(|_| wanted(&self.start.name));
                    let Some((app, w)) = own else {
                        at = Introduced::Others(0, 1);
                        continue;
                    };
                    at = Introduced::Own(app + 1);
                    (self.start.node, self.start.incarnation, app, w.name.clone())
                }
                Introduced::Others(slot, from) => {
                    let peer = match self.peers.get(slot) {
                        None => return None,
                        Some(peer) => peer.as_deref().filter(|p| wanted(&p.name) && !p.condemned && !p.left),
                    };
                    let next = peer.and_then(|p| Some((p, p.apps.range(from..).find(|(_, a)| a.ended.is_none())?)));
                    let Some((peer, (app, a))) = next else {
                        at = Introduced::Others(slot + 1, 1);
                        continue;
                    };
                    at = Introduced::Others(slot, app + 1);
                    (peer.node, peer.incarnation, *app, a.name.clone())
                }
            };
            let record = self.host_record(Cause::Monitored, Grade::Certain, node, incarnation, now);
            let kind = if app == 0 { RecordKind::Host } else { RecordKind::Process };
            let record = Record { kind: kind as u16, app, ..record };
            self.subscribers.publish(1 << ring, &record, name.as_bytes(), false, self.receiver.mechanism());
            self.introduce_hung(1 << ring, node, app, now);
            left -= 1;
        }
        Some(at)
    }

    /// The largest piggyback that a process sends.
    fn piggyback_size(&self, node: u32, app: u32) -> u32 {
        if node == self.start.node {
            return self.watchlist.get(app).map_or(0, |w| w.pbsize);
        }
        let peer = self.slot(node).and_then(|s| self.peers[s].as_ref());
        peer.and_then(|p| p.apps.get(&app)).map_or(0, |a| a.pbsize)
    }

    /// Ends monitoring; `false` when the target was not monitored.
    pub fn unmonitor(&mut self, ring: u32, target: &Target) -> bool {
        let was = self.subscribers.unwant(ring, target);
        if let Some((node, app)) = self.resolve(target) {
            self.subscribers.unlisten(key(node, app), ring, self.receiver.mechanism());
        }
        self.interests.changed(now_ns());
        was
    }

    fn resolve(&self, target: &Target) -> Option<(u32, u32)> {
        match target {
            Target::Everything => Some((0, 0)),
            Target::Host(host) if *host == self.start.name => Some((self.start.node, 0)),
            Target::Host(host) => {
                let node = fide_wire::name_id(host);
                self.slot(node).map(|_| (node, 0))
            }
            Target::Process(name, host) if *host == self.start.name => {
                self.watchlist.named(name).map(|app| (self.start.node, app))
            }
            Target::Process(name, host) => {
                let node = fide_wire::name_id(host);
                let app = self.slot(node).and_then(|s| self.peers[s].as_ref())?.named(name)?;
                Some((node, app))
            }
        }
    }

    /// Accepts these keys from now on.
    pub fn set_keys(&mut self, keys: Keyring) {
        self.start.keys = keys;
        self.receiver.set_keys(&keys);
    }

    /// Derives the contract by these rules from now on.
    pub fn set_calibration(&mut self, config: CalibrationConfig) {
        self.start.calibration = config;
        for c in self.peers.iter_mut().flatten().flat_map(|p| &mut p.calibration) {
            c.set_config(config);
        }
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

    /// The interface of a path was looked at: it is used anew if it is another than the one in use.
    pub fn path_seen(&mut self, path: u8, seen: Option<fide_lane::Seen>) {
        let is_missed = self.lane.ifindex(path).is_some() && !self.receiver.attached(path);
        if self.lane.differs(path, seen) || is_missed {
            self.refresh_path(path);
        } else {
            self.look_at_carrier(path.into(), now_ns());
        }
    }

    fn refresh_path(&mut self, path: u8) {
        let now = now_ns();
        let before = self.lane.ifindex(path);
        let up_before = self.lane.mode(path) != PathMode::Down;
        if let Err(e) = self.lane.refresh(path) {
            tracing::info!("path {path}: {e}");
        }
        if let Some(prober) = self.prober.as_mut()
            && let Err(e) = prober.refresh(path)
        {
            tracing::debug!("probes on path {path}: {e}");
        }
        let after = self.lane.ifindex(path);
        self.receiver.set_mac(usize::from(path), self.lane.mac(path));
        if after != before || (after.is_some() && !self.receiver.attached(path)) {
            self.receiver.reattach(path, after);
            self.open_drops(path);
            self.steering.forget(usize::from(path));
        }
        if let Err(e) = self.wait_for_descriptors() {
            tracing::error!("path {path}: {e}");
        }
        let up = self.lane.mode(path) != PathMode::Down;
        if up != up_before || after != before {
            let name = self.start.name.clone();
            self.tell(
                Cause::Interface,
                Grade::Certain,
                &name,
                self.start.incarnation,
                None,
                i32::from(up),
                false,
                None,
                None,
                EventSource::OWN,
                now,
            );
        }
        self.look_at_carrier(usize::from(path), now);
        self.regrant();
        self.host_changed(now);
    }

    fn look_at_carrier(&mut self, path: usize, now: u64) {
        self.carriers[path] = self.lane.carrier(path as u8);
        self.node.detector_mut().carrier(path, self.carriers[path], now);
    }

    /// The interfaces' smallest MTU may have changed: processes that were granted more are told (Listing 1, `on_pbsize_changed`).
    fn regrant(&mut self) {
        let most = self.piggyback_max();
        for (app, ring) in self.watchlist.shrink_grants(most) {
            let record = Record {
                kind: RecordKind::PiggybackSizeChanged as u16,
                node: self.start.node,
                app,
                code: most as i32,
                event_ns: now_ns(),
                ..Record::default()
            };
            self.subscribers.publish(1 << ring, &record, &[], false, self.receiver.mechanism());
        }
    }

    /// The piggyback size this agent can grant.
    #[must_use]
    pub fn piggyback_max(&self) -> u32 {
        self.lane.piggyback_max() as u32
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
        let peer = self.slot(node).and_then(|s| self.peers[s].as_ref());
        peer.map_or_else(|| format!("{node:08x}"), |p| p.name.clone())
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
