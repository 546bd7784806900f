//! The detector: arrivals, notices, answers and `now` in; verdicts out.
//!
//! # In one head
//! Think of a night watch that listens to two church bells of the same town, on two hills. Each rings every minute.
//! * A bell that is silent while the other one rings is a broken bell, or the wind carries its sound away for a while. Nobody died. (FiDe §3.3: a
//!   monitoring process "detects a network failure […] when it receives a single heartbeat".) If it has not rung for a whole second: *path down*.
//! * When both are silent for longer than the sexton ever needs (TO = HB + λmin + 2·δmax), the watch first makes sure that it is not its own ear
//!   that is slow: it calls out, and when any answer has come the same way, whatever was rung before has been heard. If that was nothing, it
//!   says *contract broken* and goes on calling to the town. If the town answers that there is no sexton (*port unreachable*), or answers for a whole second
//!   but no bell rings, the sexton is gone: *agent lost*. Of the townspeople nothing is claimed.
//! * If nobody answers on any hill, several times, the town is gone: *silent host* — unless the watch hears no town at all any more; then it
//!   is probably deaf itself: *isolated*, and it holds its tongue.
//! * If the watch finds that it has slept, it says so (*observer paused*) and listens for a full timeout before it judges anybody, unless the strokes of
//!   another bell, which a clockwork has counted meanwhile, show that nothing was missed.
//! * And when a messenger from the town brings a name, that person's death is *certain*. No bell and no clock is involved.
//!
//! What was said is never taken back: who was declared gone is not listened to any more (*condemned*) until he comes under a new
//! number (*returned*, a new incarnation).
//!
//! # The states of a host
//! `->` within one incarnation, `=>` with a new one (drawn by [`state::draw`]; a test keeps the two equal):
//! ```text
//! alive       -> late         both paths older than their timeouts                          contract-broken
//! alive       -> left         leave notice                                                  left
//! alive       -> restarting   restart notice                                                none
//! late        -> alive        heartbeat                                                     contract-kept
//! late        -> left         leave notice                                                  left
//! late        -> restarting   restart notice                                                none
//! late        -> agent-lost   port unreachable, or kernel answers until the agent's timeout agent-lost
//! late        -> silent-host  no answer on any path                                         silent-host
//! agent-lost  -> silent-host  no answer any more                                            silent-host
//! restarting  -> late         not back in time                                              contract-broken
//! restarting  -> left         leave notice, or not back in time and never answered          left
//! alive       => alive        newer incarnation announced                                   agent-lost, returned
//! late        => alive        newer incarnation announced                                   agent-lost, returned
//! agent-lost  => alive        newer incarnation announced                                   returned
//! silent-host => alive        newer incarnation announced                                   returned
//! left        => alive        newer incarnation announced                                   returned
//! restarting  => alive        newer incarnation announced                                   returned
//! ```
//!
//! # How to drive it
//! Only [`Detector::tick`] judges silence; every other input notes facts (a notice becomes a verdict at once: the certain path
//! never waits). One turn of the shell's loop:
//! 1. read the clock, **then** the receive table, so that no heartbeat can lie between them unseen;
//! 2. [`Detector::arrivals`] for every host, and whatever answers and notices are there;
//! 3. [`Detector::tick`] with that clock;
//! 4. [`Detector::poll_action`] until `None`;
//! 5. sleep until [`Detector::poll_timeout`] at most.
//!
//! Everything before 3 is kernel-stamped, so a shell that was held up between two turns judges by when heartbeats came, not by
//! when it looked.
//!
//! Two duties of the shell follow from what is cut off here:
//! * a report that *we* are condemned must be heeded from whomever it comes, also from an incarnation that we condemned ourselves: two hosts
//!   cut off from each other condemn each other, and only that report makes both start over;
//! * who is there, and which processes ended before its time, a restarted observer learns by introductions and tables ([`crate::node`]).
//!
//! # The alternatives not taken
//! * *Judging in every input* (a late answer, say) would judge with a receive table read earlier than the clock.
//! * *An accrual detector* (φ): its suspicion has no moment at which a contract was broken, hence no verdict anybody could rely on.
//! * *A vote among observers*: it would need the quorum that FiDe exists to avoid. One other that hears the host is enough to veto a silence
//!   (`others`), and none is needed to see one.
//! * *A veto for every packet that was refused* (forgeries, other clusters): anybody could suspend detection. They are evidence; what an interface or a queue
//!   lost is a veto.
//!
//! # The barrier
//! Corosync #389: packets had arrived, the verdict was still "lost". Between the interface and us a heartbeat can wait for as long as our own
//! processors are busy. SafeTimer (§4.1, §5.1) therefore sends a packet through the receive queue before it believes a silence: queues are first in, first out, so
//! when that *barrier* has come out, every heartbeat that arrived before it is in the receive table. Its prototype sends the barrier to itself over a second
//! port of the same network. Our two networks are disjoint, so the barrier is any answer, of whomever, to a question asked after the timeout
//! was over: it cannot have arrived before ([`Detector::drained`]; that it came through the same queue is the shell's to know). The host stays *alive*
//! until then, for [`Config::drain_wait_ns`] at most (the questions run meanwhile, so nothing is found later); the verdict *contract broken* then
//! says that nothing is proved. *Silent host*, which has to have a witness anyway, waits for its barrier ten times as long as nobody may answer, unless there is
//! nobody else to give one: where ICMP is filtered, or the answers take another receive queue, no
//! barrier will come. It waits for a second one as well, of the queue by which that host's kernel
//! answered before ([`Detector::answers_drained`]): its answers may wait there while those of
//! others come.
//!
//! # The veto
//! A packet that our own side lost may have been the heartbeat (S2; SafeTimer §4.1, §5.1). When the shell's counters say so ([`Detector::dropped`]), the silence begins anew at
//! that moment, and so do the questions. A path on which nothing was lost is evidence all the same: it had its own copy. So silence counts
//! from the moment since when at least one path that carried the last heartbeats is clean (`peer::Peer::veto`). But what is silent on the clean path may be that path's
//! cable, and the answers may be what the other path loses: while any of them does, a hundred times as many must be missing before the host is *silent*
//! (`peer::Peer::answers_wait_ns`). Whoever loses packets for ever on all paths judges nobody; once it does not, a timeout and the questions are what is missing.
//!
//! # When a path is down
//! FiDe §3.3 takes one copy that came alone for a network failure. A copy can also be held up, or be lost in a queue that overflows, on the sender's or on our
//! own side, by a processor that is busy while that of the other path is not: half an hour of overload brought a false *path down*, also after questions
//! put on that path alone stayed unanswered. Nothing is in a hurry, since the other path carries. So a path is down
//! * when nothing has come on it for as long as a stuck agent is given, while the other one carried,
//! * or when numbers keep missing on it and not on the other one ([`Config::path_down_after`]).
//!
//! and up when it has carried for as long without a loss. A single lost copy is counted, not told.
//!
//! # What a pause costs
//! keepalived #2066: what an observer did not hear while it slept is its own fault, so silence counts anew from when it woke up. That is a
//! timeout more for the dead, and it is not always needed: the kernel stamps and numbers heartbeats while we sleep, if it runs itself, and keeps them in
//! its queues as long as there is room. Another host's heartbeats tell (`peer::Path::shows`): among its last hundred none is missing, and one came behind a
//! barrier that was asked for after we woke up. Then nothing was lost in that queue all the while, the silent host's heartbeats neither, and its silence counts as if we
//! had been awake, less what the time of these heartbeats exceeds their number of periods: for so long the machine below us may have stood still, and all hosts with it. The
//! questions begin when we wake up in any case. For two hosts all stays as it was: there is nobody else.
//!
//! Where silence must last for long, as long as a promised fence, an observer on a busy machine sleeps many times meanwhile. What it heard
//! before a pause stays what it heard: those who show that the pause took nothing need to be heard from a timeout before it on, not from
//! the beginning of the silence. A fence that needs this observer's confirmations needs none of that: it does not confirm what it did not hear.
//!
//! # A host that promised a fence
//! A host that announces a fence ([`Detector::fence`]) stops sending by itself when it cannot show in time that its heartbeats left (or arrived): at the latest
//! when its promised timeout has passed since the last one that reached us. *Silent host* waits for that, and then says in its evidence that the
//! host was fenced: whoever acts on it meets nobody who still acts. Everything else is as fast as without a fence. *Agent lost* does not wait: it claims
//! nothing of the host's processes, and those are cut off soon after, since nobody extends their time any more; when the whole host is
//! guarded, its kernel falls silent with them, and *silent host* follows.
//!
//! # A restart that is announced
//! An agent that is started again (an upgrade) says so in its leave notice, with the time in which it will be back. Until then its silence is expected:
//! nobody is told anything. What ends on its host meanwhile its next agent tells ([`crate::node`]), and *returned* says that it was started again. If it does not come
//! in time, it is late, and asked like anybody who is: its kernel says that the agent alone is missing (*agent lost*), or nothing answers (*silent host*), so that a host
//! that died meanwhile is told as dead. Only of a host that never answered a question its silence says nothing: it *left*, as if it had said so now.
//! Of its fence nothing is claimed: its agent took that away when it ended.
//!
//! # Answers that go astray
//! Switches learn from frames at which port a MAC is, and believe every frame. Whoever sends frames with a host's MAC has what is for it, questions too; its
//! heartbeats, which are for everybody, come as before. Its silence is then proof of a dead host as soon as its agent stands still for a moment. Therefore
//! * the second and the third question of every series are asked of everybody on the network ([`Action::Probe`]), and the host, which answers, shows the switches where it is;
//! * where it is known that something goes astray on every path that may carry its answers ([`Detector::diverted`]: the host hears its own MAC, or we ours;
//!   [`Detector::tried`]: it used to answer, no answer comes twice although its heartbeats do and this host neither paused nor lost anything), *silent host* waits for the agent's timeout;
//! * a host that is known to answer is a witness by its answers alone. Its heartbeats do not show that answers get here. If it never answered (ICMP is filtered), they are all there is.
//!
//! # What isolation costs
//! consul #916: a sick observer condemns healthy peers. Here a silent host is judged only if a question that it did not answer lies between two
//! moments at which another host reached us, the second of them after the answer was due, and on a path that the silent host used (`peer::Probing::is_witnessed`). Hearing somebody is
//! not enough: what was sent before our cables were cut one after the other may be stamped after the question, when this kernel is busy.
//! Therefore two hosts that are well are asked together with the silent one, and an answer counts as of its *question*; for as many questions as a verdict needs,
//! so that an outage of our own which is over again is not taken for theirs. Only where
//! they do not answer (ICMP filtered) what they send counts, as of a whole timeout before its stamp.
//!
//! # A host that others hear
//! Networks fail in part: a host that is silent here on all paths may be heard by another observer that is heard here. So the others are asked before
//! *silent host* is said, and before *agent lost* is concluded from a long silence (`others`). A host that they hear is *unreachable* from here: a
//! fault of the network, told once, on which nothing ends. It stays late, and its contract is kept when it is heard again.
//!
//! If nobody answers, the observer is *isolated*. Those who were judged silent a moment ago (`peer::Peer::fell_silent_with`) count as not answering. The
//! price is completeness: when **all** others really die within a few timeouts, the survivor says *isolated* and gives no verdict on (the last
//! of) them until it hears somebody again (a single newcomer is enough). When only one host was there for some time (two nodes, or the others were judged
//! long before) there is no witness to ask and the rule does not apply: silence is judged at once, and a cut observer is wrong.
//! Two nodes without a third cannot do better without a witness from outside.

mod action;
mod apps;
mod config;
mod others;
mod peer;
pub mod progress;
pub mod state;

#[cfg(test)]
mod tests;

pub use action::{Action, PathArrival, ProbeResult, Refused, Seen, Taken, Verdict};
pub use apps::{AppState, MAX_APPS};
pub use config::Config;
pub use others::How;
pub use progress::Progress;
pub use state::State;

use apps::News;
use fide_wire::PATHS;
use fide_wire::packet::{Notice, company};
use fide_wire::verdict::{Cause, Contract, Evidence, FencePromise, Grade, PathEvidence, VerdictId};
use others::{Observer, Word};
use peer::{NoticeCame, Peer, Restart};
use std::collections::{BTreeMap, VecDeque};

/// Most hosts tracked: the slots of the receive table.
pub const MAX_PEERS: usize = fide_wire::SLOTS;

/// This bit of a verdict's number marks what the node inferred; its notices count below it.
pub const INFERRED: u32 = VerdictId::INFERRED;

/// What is known of one host, for status and metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerView<'a> {
    /// Its node id.
    pub node: u32,
    /// Its name.
    pub name: &'a str,
    /// Its incarnation.
    pub incarnation: u32,
    /// Its state.
    pub state: State,
    /// The timeout for silence (ns), of the slower path.
    pub timeout_ns: u64,
    /// Its paths.
    pub paths: [PathView; PATHS],
}

/// What is known of one path from a host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathView {
    /// Whether it carries heartbeats, as far as verdicts said.
    pub up: bool,
    /// The last row of the receive table.
    pub last: PathArrival,
    /// The contract it is judged by.
    pub contract: Contract,
    /// Its kernel has answered, and by which receive queue is known.
    pub answers_known: bool,
}

/// Why and since when this observer suspects itself.
#[derive(Clone, Copy, Debug)]
struct Isolation {
    since_ns: u64,
    /// Our own interfaces have no carrier; else we merely hear nobody.
    by_carrier: bool,
}

/// Longest timeout of a fence that is believed (ns): silence is not to be judged for so long.
pub const FENCE_TIMEOUT_MAX_NS: u64 = 60_000_000_000;

/// Whether a fence can have this timeout.
#[must_use]
pub const fn can_be_promised(promise: &FencePromise) -> bool {
    promise.timeout_ns != 0 && promise.timeout_ns <= FENCE_TIMEOUT_MAX_NS
}

/// Running totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Ticks.
    pub ticks: u64,
    /// Pauses of this observer, reported or folded into the one before.
    pub pauses: u64,
    /// Notices that told nothing new.
    pub duplicates: u64,
    /// Rows of the receive table of condemned or older incarnations with new heartbeats in them, ignored.
    pub ignored_arrivals: u64,
    /// Inferred verdicts given.
    pub inferred: u64,
    /// Silences that ended while a barrier was waited for: the heartbeat had been waiting on our side, or was a little late.
    pub spared: u64,
    /// Silences that were measured anew because packets were lost on our side.
    pub vetoes: u64,
}

/// An agent that is started again is waited for at most this long, whatever it says.
pub const RESTART_MAX_MS: u64 = 60_000;
/// Codes of *returned*: [`Verdict::code`].
const CAME_BACK: i32 = 1;
const RENEWED: i32 = 2;
const RESTARTED: i32 = 3;
const MISTAKEN: i32 = 4;

/// So many times as long as nobody may answer, a silent host's barrier is waited for. Before the questions are put at leisure, when nobody's
/// words are as fresh as a witness's must be.
const BARRIER_WAITS: u64 = 10;

/// The machine. See the [module](self) for how it thinks and how to drive it.
#[derive(Clone, Debug)]
pub struct Detector {
    config: Config,
    /// Sorted by node.
    peers: Vec<Peer>,
    actions: VecDeque<Action>,
    /// The latest time heard of.
    now_ns: u64,
    last_tick_ns: Option<u64>,
    /// A tick later than this after the one before is a pause.
    pause_limit_ns: u64,
    awake_since_ns: u64,
    /// When packets were last found to have been lost on our side, by path.
    dropped_ns: [u64; PATHS],
    isolated: Option<Isolation>,
    carrier: [bool; PATHS],
    /// Dropped or refused packets on the receive side, cumulative.
    drops: u64,
    /// Hosts of which a verdict was wrong, and that were not met again yet; since when.
    lifted: BTreeMap<u32, u64>,
    /// Numbers of inferred verdicts.
    next_inferred: u32,
    /// Facts came that a tick must weigh now.
    dirty: bool,
    next_tick_ns: Option<u64>,
    refused: [u64; Refused::ALL.len()],
    stats: Stats,
}

fn view(peer: &Peer) -> PeerView<'_> {
    let path = |k: usize| PathView {
        up: !peer.paths[k].down,
        last: peer.paths[k].last,
        contract: peer.paths[k].contract,
        answers_known: peer.paths[k].answers_drained_ns != 0,
    };
    PeerView {
        node: peer.node,
        name: &peer.name,
        incarnation: peer.incarnation,
        state: peer.state,
        timeout_ns: peer.timeout_ns(),
        paths: std::array::from_fn(path),
    }
}

impl Detector {
    /// Knows nobody.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            peers: Vec::new(),
            actions: VecDeque::new(),
            now_ns: 0,
            last_tick_ns: None,
            pause_limit_ns: u64::MAX,
            awake_since_ns: 0,
            dropped_ns: [0; PATHS],
            isolated: None,
            lifted: BTreeMap::new(),
            carrier: [true; PATHS],
            drops: 0,
            next_inferred: 1,
            dirty: false,
            next_tick_ns: None,
            refused: [0; Refused::ALL.len()],
            stats: Stats::default(),
        }
    }

    // ---------------------------------------------------------------- inputs

    /// A host announced itself. Call it when its slot in the receive table is set up: its heartbeats are due from `now_ns` on.
    ///
    /// For an incarnation that is known already only the name is checked; contracts change by [`Detector::contract`]. A newer
    /// incarnation is a new life: if the old one was still live, its agent ended, which it says itself by coming again
    /// (*agent lost*, certain).
    ///
    /// # Errors
    /// [`Refused`], counted.
    pub fn peer_seen(
        &mut self,
        node: u32,
        name: &str,
        incarnation: u32,
        contracts: &[Contract; PATHS],
        now_ns: u64,
    ) -> Result<Seen, Refused> {
        self.seen(node, name, incarnation, contracts, false, now_ns)
    }

    /// This agent began a new incarnation: what it says of itself from now on carries it.
    pub fn set_self_incarnation(&mut self, incarnation: u32) {
        self.config.self_incarnation = incarnation;
    }

    /// As [`Detector::peer_seen`], of an agent that says that it never died: another host had given it up, so it began a new incarnation.
    /// The old one is over all the same, but nobody's agent was lost: code 2 of *returned*.
    ///
    /// # Errors
    /// As there.
    pub fn peer_renewed(
        &mut self,
        node: u32,
        name: &str,
        incarnation: u32,
        contracts: &[Contract; PATHS],
        now_ns: u64,
    ) -> Result<Seen, Refused> {
        self.seen(node, name, incarnation, contracts, true, now_ns)
    }

    fn seen(
        &mut self,
        node: u32,
        name: &str,
        incarnation: u32,
        contracts: &[Contract; PATHS],
        renewed: bool,
        now_ns: u64,
    ) -> Result<Seen, Refused> {
        let now = self.clock(now_ns);
        if node == self.config.self_node {
            return self.refuse(Refused::OwnNode);
        }
        if contracts.iter().any(|c| c.period_ns == 0) {
            return self.refuse(Refused::Malformed);
        }
        let seen = match self.peers.binary_search_by_key(&node, |p| p.node) {
            Err(_) if self.peers.len() >= MAX_PEERS => return self.refuse(Refused::TooManyPeers),
            Err(at) => {
                self.peers.insert(at, Peer::new(node, name, incarnation, contracts, self.drops, now));
                let how = if self.lifted.remove(&node).is_some() { MISTAKEN } else { 0 };
                self.judge_node(at, Cause::Returned, Grade::Certain, how, now);
                Seen::Joined
            }
            Ok(i) => {
                let peer = &mut self.peers[i];
                if peer.name != name {
                    return self.refuse(Refused::NameClash);
                }
                if incarnation < peer.incarnation {
                    return self.refuse(Refused::OldIncarnation);
                }
                if incarnation == peer.incarnation {
                    return match peer.state {
                        State::Alive | State::Late | State::Restarting => {
                            peer.heard_ns = peer.heard_ns.max(now);
                            Ok(Seen::Known)
                        }
                        State::Left => self.refuse(Refused::Left),
                        State::AgentLost | State::Silent => self.refuse(Refused::Condemned),
                    };
                }
                let (old, lived) = (peer.incarnation, peer.state.is_live());
                let restarted = peer.state == State::Restarting;
                if lived && !renewed && !restarted {
                    self.judge_node(i, Cause::AgentLost, Grade::Certain, 0, now);
                }
                if lived {
                    self.actions.push_back(Action::Condemn { node, incarnation: old });
                }
                self.peers[i] = Peer::new(node, name, incarnation, contracts, self.drops, now);
                let how = match (restarted, lived && renewed) {
                    (true, _) => RESTARTED,
                    (false, true) => RENEWED,
                    (false, false) => CAME_BACK,
                };
                self.judge_node(i, Cause::Returned, Grade::Certain, how, now);
                Seen::Returned
            }
        };
        self.dirty = true;
        self.invariants();
        Ok(seen)
    }

    /// A process is in the directory of its host.
    ///
    /// # Errors
    /// [`Refused`], counted.
    pub fn app_seen(&mut self, node: u32, incarnation: u32, app: u32) -> Result<(), Refused> {
        let i = self.listen_to(node, incarnation)?;
        match self.peers[i].apps.seen(app) {
            Ok(_) => Ok(()),
            Err(why) => self.refuse(why),
        }
    }

    /// A process is no longer in the directory of its host, without a notice (its host stopped monitoring it): no verdict, now or later.
    ///
    /// # Errors
    /// [`Refused`], counted.
    pub fn app_withdrawn(&mut self, node: u32, incarnation: u32, app: u32) -> Result<(), Refused> {
        let i = self.listen_to(node, incarnation)?;
        self.peers[i].apps.withdrawn(app);
        Ok(())
    }

    /// The rows of the receive table for one host, maybe the same as before. Stamps may even be later than the next tick's `now`.
    ///
    /// Heartbeats of a condemned or older incarnation are ignored and counted. Those of a newer one, not announced yet, say that the
    /// host's kernel is there, and nothing else.
    ///
    /// # Errors
    /// [`Refused`]; counted only when there was something new in the rows.
    pub fn arrivals(&mut self, node: u32, incarnation: u32, rows: &[PathArrival; PATHS]) -> Result<(), Refused> {
        let Some(i) = self.find(node) else { return self.refuse(Refused::UnknownPeer) };
        let drops = self.drops;
        let peer = &mut self.peers[i];
        if incarnation > peer.incarnation {
            for (path, row) in rows.iter().enumerate() {
                if row.last_arrival_ns > peer.sign_of_life_ns() {
                    peer.probing.answered(row.last_arrival_ns, self.config.agent_timeout_ns / 2);
                }
                peer.came_unasked(path, row.last_arrival_ns);
                peer.renewed_ns = peer.renewed_ns.max(row.last_arrival_ns);
            }
            return Err(Refused::NotAnnounced);
        }
        if incarnation < peer.incarnation {
            return Err(Refused::OldIncarnation);
        }
        if !peer.state.is_live() {
            let why = if peer.state == State::Left { Refused::Left } else { Refused::Condemned };
            if rows.iter().zip(&mut peer.paths).any(|(row, path)| row.last_number > path.last.last_number) {
                for (row, path) in rows.iter().zip(&mut peer.paths) {
                    path.last.last_number = path.last.last_number.max(row.last_number);
                }
                self.stats.ignored_arrivals += 1;
                return self.refuse(why);
            }
            return Err(why);
        }
        peer.arrivals(rows, drops);
        Ok(())
    }

    /// The contract of one path was recalibrated. A tighter one counts from now on: what arrived under the old one was in time.
    ///
    /// # Errors
    /// [`Refused`], counted.
    pub fn contract(&mut self, node: u32, path: usize, contract: Contract, now_ns: u64) -> Result<(), Refused> {
        let now = self.clock(now_ns);
        let Some(i) = self.find(node) else { return self.refuse(Refused::UnknownPeer) };
        if path >= PATHS || contract.period_ns == 0 {
            return self.refuse(Refused::Malformed);
        }
        let percent = self.config.timeout_change_percent;
        let peer = &mut self.peers[i];
        let judge_from = peer.judge_from_ns;
        let p = &mut peer.paths[path];
        let (old_deadline, timeout) = (p.deadline_ns(judge_from), contract.timeout_ns());
        if timeout < p.contract.timeout_ns() && peer.state == State::Alive {
            p.from_ns = p.from_ns.max(old_deadline.min(now.saturating_add(timeout)).saturating_sub(timeout));
        }
        p.contract = contract;
        let (told, timeout_ns) = (peer.told_timeout_ns, peer.timeout_ns());
        if u128::from(told.abs_diff(timeout_ns)) * 100 > u128::from(told) * u128::from(percent) {
            peer.told_timeout_ns = timeout_ns;
            self.actions.push_back(Action::TimeoutChanged { node, timeout_ns });
        }
        self.dirty = true;
        self.invariants();
        Ok(())
    }

    /// A host announced what it promises of its fence. Given once, a promise holds for that incarnation: an announcement without one may be older.
    ///
    /// # Errors
    /// [`Refused`], counted.
    pub fn fence(&mut self, node: u32, incarnation: u32, promise: Option<FencePromise>) -> Result<(), Refused> {
        let Some(promise) = promise else { return Ok(()) };
        let i = self.listen_to(node, incarnation)?;
        if !can_be_promised(&promise) {
            return self.refuse(Refused::Malformed);
        }
        // One that is older than the leave: the fence went with the agent.
        if self.peers[i].restart.is_none() {
            self.peers[i].fence = Some(promise);
        }
        Ok(())
    }

    /// What a host promised of its fence, in this life.
    #[must_use]
    pub fn promise(&self, node: u32) -> Option<FencePromise> {
        self.find(node).and_then(|i| self.peers[i].fence)
    }

    /// A notice came, one copy of maybe many, in any order.
    ///
    /// # Errors
    /// [`Refused`], counted. What a notice of an incarnation not announced yet said is pulled when it is ([`crate::node::Tables`]).
    #[allow(clippy::too_many_arguments)] // what a packet says, field by field
    pub fn notice(
        &mut self,
        node: u32,
        incarnation: u32,
        notice: &Notice,
        sent_ns: u64,
        received_ns: u64,
        path: u8,
        now_ns: u64,
    ) -> Result<Taken, Refused> {
        let now = self.clock(now_ns);
        let ends = notice.cause == Cause::Left || notice.cause.is_seen_end();
        let told = ends || (notice.cause.is_progress() && notice.app != 0);
        let number_fits = notice.notice != 0 && notice.notice & INFERRED == 0;
        if !told || !number_fits || usize::from(path) >= PATHS || (notice.app == 0 && notice.cause != Cause::Left) {
            return self.refuse(Refused::Malformed);
        }
        let Some(i) = self.find(node) else { return self.refuse(Refused::UnknownPeer) };
        let peer = &self.peers[i];
        match incarnation.cmp(&peer.incarnation) {
            std::cmp::Ordering::Less => return self.refuse(Refused::OldIncarnation),
            std::cmp::Ordering::Greater => return self.refuse(Refused::NotAnnounced),
            std::cmp::Ordering::Equal => {}
        }
        if peer.state.is_condemned() {
            return self.refuse(Refused::Condemned);
        }
        let id = VerdictId::new(node, notice.notice);
        let came = NoticeCame { sent_ns, received_ns, path };
        let news = if notice.app == 0 {
            match peer.state {
                State::Left => News::Nothing,
                _ if notice.code <= 0 => News::Failure,
                State::Restarting => News::Nothing,
                _ => {
                    self.restarts(i, notice, came, now);
                    return Ok(Taken::New);
                }
            }
        } else {
            match self.peers[i].apps.noticed(notice.app, notice.cause, notice.code, id) {
                Ok(news) => news,
                Err(why) => return self.refuse(why),
            }
        };
        let peer = &mut self.peers[i];
        peer.came_unasked(usize::from(path), received_ns.min(now));
        if news == News::Nothing {
            self.stats.duplicates += 1;
            return Ok(Taken::Duplicate);
        }
        if notice.app == 0 {
            self.step(i, State::Left);
            self.peers[i].end_silence();
        }
        self.push_noticed(i, notice, news == News::Confirmation, came, now);
        self.invariants();
        Ok(Taken::New)
    }

    /// The verdict that a notice is.
    fn push_noticed(&mut self, i: usize, notice: &Notice, confirms: bool, came: NoticeCame, now: u64) {
        let (node, incarnation) = (self.peers[i].node, self.peers[i].incarnation);
        let mut evidence = self.evidence(i, now);
        evidence.timeout_ns = 0;
        evidence.event_ns = notice.event_ns;
        (evidence.sent_ns, evidence.received_ns, evidence.path) = (came.sent_ns, came.received_ns, came.path);
        self.actions.push_back(Action::Verdict(Box::new(Verdict {
            id: VerdictId::new(node, notice.notice),
            cause: notice.cause,
            grade: notice.grade,
            node,
            incarnation,
            app: notice.app,
            code: notice.code,
            confirms,
            at_ns: now,
            ended_apps: Vec::new(),
            evidence,
        })));
    }

    /// An agent says that it is started again, in so many ms: see "A restart that is announced".
    fn restarts(&mut self, i: usize, notice: &Notice, came: NoticeCame, now: u64) {
        let within_ms = u64::try_from(notice.code).unwrap_or(0).min(RESTART_MAX_MS);
        self.step(i, State::Restarting);
        let peer = &mut self.peers[i];
        peer.came_unasked(usize::from(came.path), came.received_ns.min(now));
        peer.end_silence();
        peer.fence = None;
        let notice = Notice { code: 0, ..*notice };
        peer.restart = Some(Restart { notice, came, until_ns: now.saturating_add(within_ms * 1_000_000) });
        self.actions.push_back(Action::Restarts { node: peer.node, incarnation: peer.incarnation });
        // Whether it answers at all decides what its silence will say.
        let node = self.peers[i].node;
        self.actions.push_back(Action::Probe { node, paths: self.carrier, knock: false, wide: false });
        self.dirty = true;
        self.invariants();
    }

    /// Its time is over, and it is not back: is it the agent, or the host? Who never answered cannot be asked.
    fn judge_restarting(&mut self, i: usize, now: u64) {
        let Some(restart) = self.peers[i].restart.filter(|restart| now >= restart.until_ns) else { return };
        let peer = &mut self.peers[i];
        if peer.paths.iter().all(|p| p.answered_ns == 0) {
            self.step(i, State::Left);
            self.push_noticed(i, &restart.notice, false, restart.came, now);
            return;
        }
        peer.late_mark_ns = peer.last_arrival_ns();
        peer.probing.restart(now);
        self.step(i, State::Late);
        self.judge_node(i, Cause::ContractBroken, Grade::Inferred, 0, now);
    }

    /// Something answered a question that left at `asked_ns`. Weighed by the next tick, which is due at once.
    pub fn probe_result(&mut self, node: u32, path: usize, result: ProbeResult, asked_ns: u64, now_ns: u64) {
        let now = self.clock(now_ns);
        let Some(i) = self.find(node) else { return };
        let peer = &mut self.peers[i];
        if path >= PATHS {
            return;
        }
        peer.paths[path].came_ns = peer.paths[path].came_ns.max(now);
        if peer.state.may_answer() && asked_ns > peer.paths[path].answered_ns {
            peer.paths[path].answered_ns = asked_ns;
            self.dirty = true;
        }
        let peer = &mut self.peers[i];
        if !peer.is_questioned() {
            return; // an answer to a question that is settled
        }
        peer.probing.answered(now, self.config.agent_timeout_ns / 2);
        peer.paths[path].kernel_answered = true;
        if peer.state == State::AgentLost {
            peer.others = others::Others::default(); // its silence is over
        }
        match result {
            ProbeResult::AgentAbsent => {
                peer.paths[path].agent_absent = true;
                self.dirty = true;
            }
            ProbeResult::KernelAnswered => peer.probing.echoes = true,
        }
    }

    /// A host is asked on a path now although it is not doubted, so that it is known whether it answers. Whether the last such questions, or their answers, went
    /// astray while it was heard, and that was not known: then [`Detector::diverted`] has been taken note of.
    pub fn tried(&mut self, node: u32, path: usize, now_ns: u64) -> bool {
        let now = self.clock(now_ns);
        let Some(i) = self.find(node).filter(|_| path < PATHS) else { return false };
        let excused_ns = self.awake_since_ns.max(self.dropped_ns[path]);
        let (peer, config) = (&mut self.peers[i], &self.config);
        if peer.state != State::Alive || !peer.tried(path, excused_ns, now) {
            return false;
        }
        let known = peer.paths[path].is_diverted(config, now);
        peer.paths[path].diverted_ns = now;
        !known
    }

    /// That question could not be sent: it says nothing.
    pub fn not_tried(&mut self, node: u32, path: usize) {
        if let Some(path) = self.find(node).and_then(|i| self.peers[i].paths.get_mut(path)) {
            path.tried_ns = 0;
        }
    }

    /// What is for this host, or what it answers, may go astray on this path: somebody uses its MAC, as it says itself. Or ours (our own node id), and then that
    /// holds of everybody's answers. Whether that was not known.
    pub fn diverted(&mut self, node: u32, path: usize, now_ns: u64) -> bool {
        let now = self.clock(now_ns);
        let (config, own) = (&self.config, node == self.config.self_node);
        let mut news = false;
        for peer in self.peers.iter_mut().filter(|peer| own || peer.node == node) {
            let Some(path) = peer.paths.get_mut(path) else { return false };
            news |= !path.is_diverted(config, now);
            path.diverted_ns = now;
        }
        news
    }

    /// Our own interface on this path lost or found its carrier.
    pub fn carrier(&mut self, path: usize, up: bool, now_ns: u64) {
        let now = self.clock(now_ns);
        if path >= PATHS || self.carrier[path] == up {
            return;
        }
        self.carrier[path] = up;
        if up {
            // What was missed meanwhile was missed here.
            for peer in &mut self.peers {
                peer.paths[path].from_ns = peer.paths[path].from_ns.max(now);
                peer.paths[path].behind_since_ns = None;
            }
        }
        self.dirty = true;
    }

    /// Whether our own interface on this path has its carrier, as was said last.
    #[must_use]
    pub fn has_carrier(&self, path: usize) -> bool {
        self.carrier.get(path).is_some_and(|up| *up)
    }

    /// The latest time heard of.
    #[must_use]
    pub(crate) const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Whether the shell has barriers to offer; else silence is judged without them. Until it is told: what [`Config::drain_wait_ns`] says.
    pub fn offer_barriers(&mut self, offered: bool) {
        self.config.drain_wait_ns = if offered { None } else { Some(0) };
    }

    /// The same for the queue by which this host's kernel answers: an answer to a question that was
    /// put so long before would be known. Its heartbeats may take another one.
    pub fn answers_drained(&mut self, node: u32, path: usize, as_of_ns: u64) {
        let Some(i) = self.find(node) else { return };
        if let Some(path) = self.peers[i].paths.get_mut(path) {
            path.answers_drained_ns = path.answers_drained_ns.max(as_of_ns);
        }
    }

    /// A barrier: what came to our interface on this path, by the queue that the heartbeats of this host take, before `as_of_ns` is in the
    /// rows that are handed over from now on ([`Detector::arrivals`]).
    pub fn drained(&mut self, node: u32, path: usize, as_of_ns: u64) {
        let Some(i) = self.find(node) else { return };
        let peer = &mut self.peers[i];
        if let Some(path) = peer.paths.get_mut(path) {
            path.drained_ns = path.drained_ns.max(as_of_ns);
            if path.barrier_ns < self.awake_since_ns {
                path.barrier_ns = as_of_ns;
            }
            self.dirty |= peer.draining_since_ns.is_some();
        }
    }

    /// Up to `now_ns`, and since it was last asked, packets were lost between this path's wire and us: counted by our interface, by its ring, or by the
    /// stack where heartbeats go through it. Any of them may have been a heartbeat, or an answer (S2; SafeTimer §4.1, §5.1).
    pub fn dropped(&mut self, path: usize, now_ns: u64) {
        let now = self.clock(now_ns);
        let Some(dropped) = self.dropped_ns.get_mut(path) else { return };
        *dropped = now;
        for peer in &mut self.peers {
            if peer.veto(&self.carrier, &self.dropped_ns) && peer.is_questioned() {
                peer.probing.restart(now);
                self.stats.vetoes += 1;
            }
        }
        self.dirty = true;
    }

    /// Whether somebody's silence is looked into at this time: then [`Detector::dropped`] must be up to date before the tick.
    #[must_use]
    pub fn is_doubting(&self, now_ns: u64) -> bool {
        self.peers.iter().any(|p| p.is_questioned() || (p.state == State::Alive && p.is_doubtful(now_ns)))
    }

    /// How many packets the receive side has dropped or refused since it started.
    pub fn receive_drops(&mut self, count: u64) {
        self.drops = self.drops.max(count);
    }

    /// Another observer's path report names the same silence.
    pub fn also_reported(&mut self, node: u32, by_name: &str, now_ns: u64) {
        let now = self.clock(now_ns);
        if let Some(i) = self.find(node) {
            self.peers[i].reported_by(by_name, now);
        }
    }

    /// Another observer states the latest heartbeat of a host that it knows of: its incarnation and number.
    /// `company`: whom that observer hears ([`Detector::company`]).
    pub fn stated(&mut self, by: (u32, u16), node: u32, beat: (u32, u64), how: How, now_ns: u64) {
        let now = self.clock(now_ns);
        let Some(peer) = self.find(node).map(|i| &mut self.peers[i]).filter(|peer| peer.is_questioned()) else { return };
        let own = peer.last_beat();
        // That its kernel answers others is no news where it answers here.
        let how = if how == How::Answered && others::answers(peer) { How::Heard } else { how };
        peer.others.stated(by, beat, how, own, now);
        // Before its questions are over nothing waits for that.
        let own_loss = self.own_loss();
        self.dirty |= self.find(node).is_some_and(|i| self.peers[i].is_exhausted(&self.config, &own_loss, now));
    }

    /// The latest heartbeat of a host that others know of and that was not received here.
    #[must_use]
    pub fn relayed(&self, node: u32) -> Option<(u32, u64)> {
        let peer = self.find(node).map(|i| &self.peers[i])?;
        peer.others.best()
    }

    /// Whom this host hears, itself and all but `node`, folded.
    #[must_use]
    pub fn company(&self, node: u32) -> u16 {
        let heard = self.peers.iter().filter(|peer| peer.node != node && others::is_heard(peer)).map(|peer| peer.node);
        company(heard.chain([self.config.self_node]))
    }

    /// Whether a host's kernel answers, though its agent is not heard.
    #[must_use]
    pub fn answers(&self, node: u32) -> bool {
        self.find(node).map(|i| &self.peers[i]).is_some_and(|peer| peer.is_questioned() && others::answers(peer))
    }

    /// A heartbeat of an incarnation came that the host has not announced here yet, if it is a later one.
    pub fn renewed(&mut self, node: u32, incarnation: u32, now_ns: u64) {
        let now = self.clock(now_ns);
        if let Some(peer) = self.find(node).map(|i| &mut self.peers[i]).filter(|peer| incarnation > peer.incarnation) {
            peer.renewed_ns = peer.renewed_ns.max(now);
        }
    }

    /// Who hears a host that is unreachable from here, by name.
    #[must_use]
    pub fn heard_by(&self, node: u32) -> Option<&str> {
        let peer = self.find(node).map(|i| &self.peers[i]).filter(|peer| peer.others.is_told)?;
        let by = peer.others.heard_by()?;
        self.find(by).map(|i| &*self.peers[i].name)
    }

    /// A host reports whether it hears this one on a path.
    pub fn hears_us(&mut self, node: u32, path: usize, hears: bool) {
        if let Some(known) = self.find(node).and_then(|i| self.peers[i].hears_us.get_mut(path)) {
            *known = hears;
        }
    }

    /// Stops tracking a host and forgets which of its incarnations were condemned: on the operator's word only.
    pub fn forget(&mut self, node: u32) -> bool {
        let Some(i) = self.find(node) else { return false };
        self.peers.remove(i);
        self.dirty = true;
        true
    }

    /// What was said of a host was wrong: it is met as if it had never been heard, in the same incarnation, and told as *returned* with code 4.
    pub fn lift(&mut self, node: u32) {
        self.forget(node);
        self.lifted.insert(node, self.now_ns);
    }

    /// A host that refuted what was said of it has been heard a moment ago, and is asked who it is: this host is not isolated.
    fn is_meeting(&self, now: u64) -> bool {
        self.lifted.values().any(|since_ns| now.saturating_sub(*since_ns) < self.config.agent_timeout_ns)
    }

    // ---------------------------------------------------------------- judging

    /// Judges silence. `now_ns` must have been read before the receive table was.
    pub fn tick(&mut self, now_ns: u64) {
        let now = self.clock(now_ns);
        self.stats.ticks += 1;
        self.note_pause(now);
        self.note_carriers_and_rejoining(now);
        self.note_witnesses(now);
        self.note_what_was_missed(now);
        let mut exhausted = false;
        for i in 0..self.peers.len() {
            match self.peers[i].state {
                State::Alive => self.judge_alive(i, now),
                State::Late => exhausted |= self.judge_late(i, now),
                State::AgentLost => exhausted |= self.question(i, now),
                State::Restarting => self.judge_restarting(i, now),
                State::Silent | State::Left => {}
            }
        }
        if exhausted {
            self.judge_silence(now);
        }
        self.last_tick_ns = Some(now);
        self.dirty = false;
        self.plan(now);
        self.invariants();
    }

    /// If the tick before is longer ago than planned, we slept: nothing before now is held against others.
    ///
    /// keepalived #2066, corosync #389: not dead because *we* were not scheduled. Kernel stamps of what came meanwhile still count.
    fn note_pause(&mut self, now: u64) {
        let Some(last) = self.last_tick_ns else {
            self.awake_since_ns = now;
            self.judge_from(now);
            return;
        };
        let pause = now - last;
        if pause <= self.pause_limit_ns {
            return;
        }
        self.stats.pauses += 1;
        let was_awake = last.saturating_sub(self.awake_since_ns);
        let grace = self.peers.iter().filter(|p| p.state.may_answer()).map(Peer::timeout_ns).max().unwrap_or(0);
        let (first, limit) = (self.stats.pauses == 1, self.pause_limit_ns);
        self.awake_since_ns = now;
        self.peers.iter_mut().for_each(|p| p.slept(last, now));
        self.restart_probing(now);
        // A starved observer sleeps again and again: one verdict until it was awake for a full timeout.
        if first || was_awake > grace {
            let code = i32::try_from(pause / 1_000).unwrap_or(i32::MAX);
            let mut evidence = self.own_evidence(now);
            evidence.observer_awake_ns = was_awake;
            evidence.timeout_ns = limit;
            self.judge_self(Cause::ObserverPaused, Grade::Certain, code, evidence, now);
        }
    }

    /// Isolation by our own carriers, and the end of any isolation: by carrier when a carrier is back (if still nobody is heard, the
    /// questions will tell), by silence when somebody is heard.
    fn note_carriers_and_rejoining(&mut self, now: u64) {
        let connected = self.carrier.iter().any(|&up| up);
        let over = match self.isolated {
            None => {
                if !connected {
                    self.isolate(true, now);
                }
                return;
            }
            Some(Isolation { by_carrier: true, .. }) => connected,
            Some(Isolation { since_ns, .. }) => {
                let mut others = self.peers.iter().filter(|p| p.state.may_answer()).peekable();
                others.peek().is_none() || others.any(|p| p.sign_of_life_ns() > since_ns)
            }
        };
        if over && connected {
            self.isolated = None;
            self.judge_from(now);
            self.restart_probing(now);
            let evidence = self.own_evidence(now);
            self.judge_self(Cause::Rejoined, Grade::Certain, 0, evidence, now);
        }
    }

    /// Tells every host that is being asked when another one last reached us.
    fn note_witnesses(&mut self, now: u64) {
        if !self.peers.iter().any(Peer::is_questioned) {
            return;
        }
        // The two that did so last on each path: everybody has a witness other than itself among them.
        let config = &self.config;
        let latest: [_; PATHS] =
            std::array::from_fn(|path| self.two_latest(|p| p.state.may_answer().then(|| p.reached_ns(path, config, now))));
        let unasked: [_; PATHS] =
            std::array::from_fn(|path| self.two_latest(|p| p.state.may_answer().then(|| p.reached_unasked_ns(path))));
        let slowest = self.peers.iter().filter(|p| p.state.may_answer()).map(Peer::timeout_ns).max().unwrap_or(0);
        for peer in self.peers.iter_mut().filter(|p| p.is_questioned()) {
            let ways = peer.last_ways();
            // Whoever answers no more, as it used to, is heard all the same when this has lasted as long as a stuck agent may be silent.
            let latest = if peer.has_patience_ended(&self.config, now) { &unasked } else { &latest };
            let others = (0..PATHS).filter(|&k| ways[k]).flat_map(|k| latest[k]).flatten().filter(|(_, node)| *node != peer.node);
            let reached_ns = others.map(|(at, _)| at).max().unwrap_or(0);
            let limits = peer.witness_limits(&self.config, slowest, now);
            peer.probing.witness(reached_ns, &limits, now);
            if peer.asks_at_leisure(&self.config) {
                peer.probing.hurry(peer.probe_soon_ns(&self.config), limits.round_trip_ns);
            }
        }
    }

    /// The two hosts for which `when` is latest.
    fn two_latest(&self, when: impl Fn(&Peer) -> Option<u64>) -> [Option<(u64, u32)>; 2] {
        let mut latest = [None; 2];
        for peer in &self.peers {
            let this = when(peer).map(|at| (at, peer.node));
            if this > latest[0] {
                latest = [this, latest[0]];
            } else if this > latest[1] {
                latest[1] = this;
            }
        }
        latest
    }

    /// Nothing before this is held against anybody.
    fn judge_from(&mut self, now: u64) {
        for peer in &mut self.peers {
            (peer.judge_from_ns, peer.doubt_from_ns, peer.joined_ns) = (now, now, now);
        }
    }

    /// After a pause: silence that others show not to be our own counts as if we had been awake. See "What a pause costs" above.
    fn note_what_was_missed(&mut self, now: u64) {
        for i in 0..self.peers.len() {
            let peer = &self.peers[i];
            if peer.doubt_from_ns == peer.judge_from_ns {
                continue;
            }
            let in_use = (0..PATHS).filter(|&k| self.carrier[k] && !peer.paths[k].down);
            // On every path, for the silence is that of the last one.
            let shown = in_use.map(|k| self.shown_from_ns(peer, k)).reduce(|a, b| Some(a?.max(b?))).flatten();
            let is_heard = peer.last_arrival_ns() > self.awake_since_ns;
            let is_over = is_heard || now > peer.forgiven_ns(self.awake_since_ns);
            let peer = &mut self.peers[i];
            if let Some(from_ns) = shown {
                peer.judge_from_ns = peer.judge_from_ns.min(from_ns.max(peer.doubt_from_ns));
            }
            if is_over || shown.is_some() {
                peer.doubt_from_ns = peer.judge_from_ns;
            }
        }
    }

    /// From when on this host's silence on this path counts, because another one shows that nothing was lost there; `None` when none does. The same
    /// barrier served both, so they share a receive queue. What the other leaves open is added to the silence, wherever in it that was.
    fn shown_from_ns(&self, peer: &Peer, path: usize) -> Option<u64> {
        let barrier_ns = peer.paths[path].barrier_ns;
        let others = self
            .peers
            .iter()
            .filter(|other| other.node != peer.node && other.state == State::Alive && other.paths[path].barrier_ns == barrier_ns);
        let shown = others.filter_map(|other| other.paths[path].shows(self.awake_since_ns));
        shown.map(|(from_ns, open_ns)| peer.shown_from_ns(from_ns, open_ns)).min()
    }

    /// F5: late when both paths are older than TO = HB + λmin + 2·δmax. F4: one path alone is a fault of that path.
    fn judge_alive(&mut self, i: usize, now: u64) {
        let peer = &mut self.peers[i];
        peer.compare_paths();
        if self.isolated.is_some() {
            peer.end_silence();
            return;
        }
        if peer.is_doubtful(now) {
            if self.drain(i, now) {
                let peer = &mut self.peers[i];
                peer.draining_since_ns = None;
                // When it comes again, one of the copies comes first.
                peer.paths.iter_mut().for_each(|p| (p.fresh, p.behind_since_ns) = (0, None));
                self.step(i, State::Late);
                self.judge_node(i, Cause::ContractBroken, Grade::Inferred, 0, now);
            }
            return;
        }
        if peer.draining_since_ns.is_some() {
            self.stats.spared += u64::from(peer.last_arrival_ns() > peer.late_mark_ns);
            peer.end_silence();
        }
        for path in 0..PATHS {
            self.judge_path(i, path, now);
        }
    }

    /// Nothing came in time: is it waiting on our side? Asks, and is `true` when it is late and no heartbeat can be waiting, or no barrier is to be had.
    fn drain(&mut self, i: usize, now: u64) -> bool {
        let peer = &mut self.peers[i];
        match peer.draining_since_ns {
            None => {
                peer.end_silence();
                peer.draining_since_ns = Some(now);
                peer.late_mark_ns = peer.last_arrival_ns();
                peer.probing.restart(now);
                self.ask(i, now);
            }
            Some(_) => {
                self.question(i, now);
            }
        }
        let peer = &self.peers[i];
        let waited = peer.drained_by_ns(&self.config).is_some_and(|by| now >= by);
        peer.is_stale(now) && (waited || peer.is_drained(&self.carrier))
    }

    /// One path of a host that is alive. See "When a path is down" above.
    fn judge_path(&mut self, i: usize, path: usize, now: u64) {
        let (judge_from, carrier) = (self.peers[i].judge_from_ns, self.carrier[path]);
        let others_lose = (0..PATHS).any(|k| k != path && self.peers[i].paths[k].gaps > 0);
        let p = &mut self.peers[i].paths[path];
        let stale = now > p.deadline_ns(judge_from);
        let fresh = !stale && p.fresh >= self.config.path_up_after;
        if stale {
            p.fresh = 0;
        } else if fresh {
            p.gaps = 0;
        }
        if p.down {
            if fresh && p.last.last_arrival_ns - p.fresh_since_ns >= self.config.agent_timeout_ns {
                p.down = false;
                self.judge_node(i, Cause::PathUp, Grade::Certain, path as i32, now);
            }
            return;
        }
        let silent = stale && now >= p.down_at_ns(&self.config);
        let loses = p.gaps >= self.config.path_down_after && !others_lose;
        // Without our own carrier nothing can come: that is told once, as the fault of our interface.
        if (silent || loses) && carrier {
            p.down = true;
            self.judge_node(i, Cause::PathDown, Grade::Inferred, path as i32, now);
        }
    }

    /// A late host: it resumes, or its kernel tells on its agent, or nothing answers (then `true`).
    fn judge_late(&mut self, i: usize, now: u64) -> bool {
        let peer = &mut self.peers[i];
        let judge_from = peer.judge_from_ns;
        let newest = peer.last_arrival_ns();
        if newest > peer.late_mark_ns {
            let fresh = peer.paths.iter().any(|p| {
                p.last.last_arrival_ns > peer.late_mark_ns
                    && now <= p.last.last_arrival_ns.saturating_add(p.contract.timeout_ns()).max(p.deadline_ns(judge_from))
            });
            if fresh {
                self.step(i, State::Alive);
                self.judge_node(i, Cause::ContractKept, Grade::Certain, 0, now);
                self.peers[i].end_silence();
                return false;
            }
            // It came, and the next one is late again before we looked: a new silence.
            peer.late_mark_ns = newest;
            peer.end_silence();
            peer.probing.restart(now);
        }
        if self.isolated.is_none() && peer.is_stale(now) {
            // Inferred, although a kernel said so: ICMP is not authenticated, and a firewall can say the same.
            let absent = peer.paths.iter().any(|p| p.agent_absent);
            let silent_ns = now.saturating_sub(peer.silent_since_ns());
            let answers = peer.probing.answered_ns > 0 && peer.probing.unanswered == 0;
            // One answer when our own connection is back says nothing of the time before.
            let stuck_ns = silent_ns.min(now.saturating_sub(peer.probing.answering_since_ns));
            // Only a long silence is a question for others.
            let is_long = answers && stuck_ns >= self.config.agent_timeout_ns;
            let word = if is_long { self.word_of_others(i, now) } else { Word::Awaited };
            if word == Word::Heard {
                self.tell_unreachable(i, now);
            }
            let is_unheard = word == Word::NotHeard;
            if absent || is_unheard && self.peers[i].is_stuck(&self.config, &self.carrier, stuck_ns, now) {
                self.peers[i].others.is_over();
                self.agent_lost(i, now);
                return false;
            }
            self.knock(i, now);
        }
        self.question(i, now)
    }

    /// Is the port of its agent free by now?
    fn knock(&mut self, i: usize, now: u64) {
        let peer = &mut self.peers[i];
        if peer.probing.knock_at_ns().is_some_and(|at_ns| now >= at_ns) {
            peer.probing.knocked_ns = now;
            self.actions.push_back(Action::Knock { node: peer.node, paths: self.carrier });
        }
    }

    /// Puts the next question to a host's kernel when it is due. `true` when it answered none of them for long enough.
    fn question(&mut self, i: usize, now: u64) -> bool {
        let (isolated, own_loss) = (self.isolated.is_some(), self.own_loss());
        self.ask_others(i, now);
        let peer = &mut self.peers[i];
        if now >= peer.probing.next_ns {
            let interval = if isolated { self.config.agent_lost_probe_ns } else { peer.probe_interval_ns(&self.config) };
            peer.probing.close_round(now, interval, self.config.agent_timeout_ns);
            if !isolated && peer.is_exhausted(&self.config, &own_loss, now) {
                return true;
            }
            self.ask(i, now);
        }
        !isolated && self.peers[i].is_exhausted(&self.config, &own_loss, now)
    }

    /// Asks now, and plans the next question: soon while nothing answers, slowly while something does.
    fn ask(&mut self, i: usize, now: u64) {
        let peer = &mut self.peers[i];
        let is_lost = peer.state == State::AgentLost;
        let slow = if is_lost { self.config.agent_lost_probe_ns } else { self.config.late_probe_ns };
        let settled = peer.probing.is_settled();
        let wide = !settled && peer.probing.is_next_wide();
        let interval = if self.isolated.is_some() {
            self.config.agent_lost_probe_ns
        } else if settled {
            slow
        } else {
            peer.probe_interval_ns(&self.config)
        };
        peer.probing.sent(now, interval);
        let connected = self.carrier.iter().any(|&up| up);
        let paths = if connected { self.carrier } else { [true; PATHS] };
        peer.paths.iter_mut().zip(paths).for_each(|(p, asked)| p.asked |= asked);
        let knock = !(is_lost && settled && peer.probing.echoes);
        self.actions.push_back(Action::Probe { node: peer.node, paths, knock, wide });
        if settled || self.isolated.is_some() {
            return;
        }
        let ways = self.peers[i].last_ways();
        self.ask_witnesses(ways, paths, now);
    }

    /// The two who are well and were heard last on these ways are asked too: they tell whether an answer could have come. Once a tick is enough.
    fn ask_witnesses(&mut self, ways: [bool; PATHS], paths: [bool; PATHS], now: u64) {
        let heard = |p: &Peer| p.paths.iter().zip(ways).filter(|(_, way)| *way).map(|(path, _)| path.last.last_arrival_ns).max();
        let is_well = |p: &Peer| p.state == State::Restarting || p.state == State::Alive && p.draining_since_ns.is_none();
        let witnesses = self.two_latest(|p| heard(p).filter(|_| is_well(p)));
        for (_, node) in witnesses.into_iter().flatten() {
            let Some(peer) = self.find(node).map(|j| &mut self.peers[j]) else { continue };
            if peer.asked_as_witness_ns != now {
                peer.asked_as_witness_ns = now;
                self.actions.push_back(Action::Probe { node, paths, knock: false, wide: false });
            }
        }
    }

    /// The others are asked what they hear of a host, when that is due.
    fn ask_others(&mut self, i: usize, now: u64) {
        let is_any = self.peers.iter().enumerate().any(|(j, other)| j != i && others::is_heard(other));
        let company = self.company(self.peers[i].node);
        let peer = &mut self.peers[i];
        let is_due = peer.others.ask_at_ns(peer, &self.config, now).is_some_and(|at_ns| now >= at_ns);
        if is_any && is_due && self.isolated.is_none() {
            let between_ns = others::between_ns(peer, &self.config);
            peer.others.asked(company, between_ns, now);
            self.actions.push_back(Action::AskOthers { node: peer.node });
        }
    }

    /// What those who are heard here hear of a host.
    fn word_of_others(&self, i: usize, now: u64) -> Word {
        let may_wake = |other: &Peer| now < other.last_arrival_ns().saturating_add(self.config.agent_timeout_ns);
        let is_waited_for = |other: &Peer| {
            self.peers[i].others.was_named_by(other.node) && matches!(other.state, State::Alive | State::Late) && may_wake(other)
        };
        let others = self.peers.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, other)| other);
        let heard = others.filter_map(|other| {
            let is_late = !others::is_heard(other);
            let hears_us = other.hears_us.contains(&true);
            (!is_late || is_waited_for(other)).then_some(Observer { node: other.node, hears_us, is_late })
        });
        let around = others::Around {
            company: self.company(self.peers[i].node),
            slowest_ns: self.peers.iter().filter(|p| p.state.may_answer()).map(Peer::timeout_ns).max().unwrap_or(0),
        };
        self.peers[i].others.word(&self.peers[i], &self.config, around, heard, now)
    }

    /// A host is silent here and heard elsewhere: told once in this silence.
    fn tell_unreachable(&mut self, i: usize, now: u64) {
        let peer = &mut self.peers[i];
        if peer.renewed_ns > peer.last_arrival_ns() {
            return; // it is heard, and says who it is in a moment
        }
        let timeout_ns = peer.timeout_ns();
        if peer.others.tell(timeout_ns, &self.config) {
            self.judge_node(i, Cause::Unreachable, Grade::Inferred, 0, now);
        }
    }

    /// Some hosts answer nothing. Is it them, or us? See "What isolation costs" above.
    fn judge_silence(&mut self, now: u64) {
        let exhausted = |d: &Self, i: usize| d.peers[i].is_exhausted(&d.config, &d.own_loss(), now);
        for i in 0..self.peers.len() {
            if !exhausted(self, i) {
                continue;
            }
            let others = || (0..self.peers.len()).filter(|&j| j != i && self.peers[j].state.may_answer());
            let together = |p: &Peer| p.state == State::Silent && self.peers[i].fell_silent_with(p.silent_ns);
            let alone = others().next().is_none() && !self.peers.iter().any(together);
            let proved = alone || self.peers[i].probing.is_witnessed(&self.config) && self.is_drained_or_patience_is_over(i, now);
            if proved && (self.peers[i].fence_may_be_open(now) || self.may_be_diverted(i, now)) {
                self.wait_for_witness(i, now); // there must be one again when the fence is shut
            } else if proved {
                match self.word_of_others(i, now) {
                    // What its kernel did not answer while others heard it says nothing of now.
                    Word::NotHeard if self.peers[i].others.is_over() => self.peers[i].probing.restart(now),
                    Word::NotHeard => self.silent(i, now),
                    Word::Heard => {
                        self.tell_unreachable(i, now);
                        self.wait_for_witness(i, now);
                    }
                    Word::Awaited => self.wait_for_witness(i, now),
                }
            } else if others().all(|j| exhausted(self, j)) && !self.is_meeting(now) {
                self.isolate(false, now);
                return;
            } else {
                self.wait_for_witness(i, now);
            }
        }
    }

    /// Whether a host's kernel may answer although nothing comes.
    fn may_be_diverted(&self, i: usize, now: u64) -> bool {
        // A host whose fence is shut by its own promise sends nothing: what its kernel would answer does not matter.
        if self.peers[i].fence.is_some_and(|promise| promise.host) {
            return false;
        }
        self.peers[i].diverted_until_ns(&self.config, &self.carrier, now).is_some_and(|until| now <= until)
    }

    /// When packets were last lost on our side, on paths that have a carrier.
    fn own_loss(&self) -> [u64; PATHS] {
        std::array::from_fn(|k| if self.carrier[k] { self.dropped_ns[k] } else { 0 })
    }

    fn is_drained_or_patience_is_over(&self, i: usize, now: u64) -> bool {
        let peer = &self.peers[i];
        (peer.is_drained(&self.carrier) && peer.are_answers_drained(&self.carrier))
            || self.config.drain_wait_ns == Some(0)
            || now.saturating_sub(peer.probing.unanswered_since_ns)
                >= peer.probe_wait_ns(&self.config).saturating_mul(BARRIER_WAITS)
    }

    /// Nobody was heard since, but not everybody had to be: keep asking, and ask those at once that are only asked now and then.
    fn wait_for_witness(&mut self, i: usize, now: u64) {
        if now >= self.peers[i].probing.next_ns {
            self.ask(i, now);
        }
        let soon = now.saturating_add(self.peers[i].probe_interval_ns(&self.config));
        for (j, peer) in self.peers.iter_mut().enumerate() {
            if j != i && matches!(peer.state, State::Late | State::AgentLost) {
                peer.probing.next_ns = peer.probing.next_ns.min(soon);
            }
        }
    }

    fn silent(&mut self, i: usize, now: u64) {
        let condemned = self.peers[i].state.is_condemned();
        let id = self.next_inferred_id();
        let mut evidence = self.evidence(i, now);
        evidence.drained &= self.peers[i].are_answers_drained(&self.carrier);
        self.step(i, State::Silent);
        let peer = &mut self.peers[i];
        peer.silent_ns = now;
        let ended_apps = peer.apps.host_silent(id);
        let (node, incarnation) = (peer.node, peer.incarnation);
        self.push_verdict(id, Cause::SilentHost, Grade::Inferred, node, incarnation, 0, 0, ended_apps, evidence, now);
        if !condemned {
            self.actions.push_back(Action::Condemn { node, incarnation });
        }
    }

    fn agent_lost(&mut self, i: usize, now: u64) {
        self.step(i, State::AgentLost);
        self.judge_node(i, Cause::AgentLost, Grade::Inferred, 0, now);
        let peer = &mut self.peers[i];
        let (node, incarnation) = (peer.node, peer.incarnation);
        // From now on only its kernel is asked; the series goes on where it is, at the slow rate if it answers.
        let slow = now.saturating_add(self.config.agent_lost_probe_ns);
        peer.probing.next_ns = if peer.probing.unanswered == 0 { slow } else { peer.probing.next_ns };
        self.actions.push_back(Action::Condemn { node, incarnation });
    }

    fn isolate(&mut self, by_carrier: bool, now: u64) {
        self.isolated = Some(Isolation { since_ns: now, by_carrier });
        let grade = if by_carrier { Grade::Certain } else { Grade::Inferred };
        let evidence = self.own_evidence(now);
        self.judge_self(Cause::Isolated, grade, 0, evidence, now);
    }

    fn restart_probing(&mut self, now: u64) {
        for peer in &mut self.peers {
            if peer.is_questioned() {
                peer.probing.restart(now);
            }
        }
    }

    /// When the next tick is needed, and from when on it would be a pause.
    fn plan(&mut self, now: u64) {
        let (mut next, mut soon) = (u64::MAX, u64::MAX);
        let (mut period, mut timeout) = (u64::MAX, u64::MAX);
        let mut looks = false;
        for peer in self.peers.iter().filter(|p| p.state.may_answer()) {
            for path in &peer.paths {
                period = period.min(path.contract.period_ns);
                timeout = timeout.min(path.contract.timeout_ns());
            }
            if let Some(restart) = peer.restart.filter(|_| peer.state == State::Restarting) {
                next = next.min(restart.until_ns);
                continue;
            }
            if peer.state != State::Alive {
                let fence = peer.fence_until_ns().filter(|until| *until >= now);
                let diverted = peer.diverted_until_ns(&self.config, &self.carrier, now).filter(|until| *until >= now);
                let until = fence.into_iter().chain(diverted).min();
                next = next.min(peer.probing.next_ns).min(until.map_or(u64::MAX, |until| until.saturating_add(1)));
                let knock_at_ns = peer.probing.knock_at_ns().filter(|_| peer.state == State::Late && peer.is_stale(now));
                next = next.min(knock_at_ns.filter(|_| self.isolated.is_none()).unwrap_or(u64::MAX));
                let others_at_ns = peer.others.ask_at_ns(peer, &self.config, now).filter(|at_ns| *at_ns > now);
                next = next.min(others_at_ns.unwrap_or(u64::MAX));
                continue;
            }
            if let Some(by) = peer.drained_by_ns(&self.config) {
                next = next.min(peer.probing.next_ns).min(by);
                // What shows that nothing was missed comes with anybody's heartbeats, which call nobody.
                looks |= peer.doubt_from_ns != peer.judge_from_ns;
                continue;
            }
            soon = soon.min(peer.late_at_ns());
            for path in peer.paths.iter().filter(|p| !p.down) {
                let deadline = path.deadline_ns(peer.judge_from_ns);
                soon = soon.min(if deadline >= now { deadline } else { path.down_at_ns(&self.config) });
            }
        }
        if period == u64::MAX {
            (self.next_tick_ns, self.pause_limit_ns) = (None, u64::MAX);
            return;
        }
        self.pause_limit_ns = timeout.max(period.saturating_mul(u64::from(self.config.pause_periods)));
        // At the first deadline, to the nanosecond: who was due before it has come by then and has a new one, a period later, so that these looks lie as
        // far apart as a timeout has above its period, however many hosts there are. Where that is next to nothing, eight looks in a period must do.
        // And never so rarely that a pause could not be told from a long sleep.
        let quantum = now.saturating_add((period / 8).max(1));
        let at_least = now.saturating_add((self.pause_limit_ns / 2).max(1));
        let next = if looks { next.min(now.saturating_add((period / 4).max(1))) } else { next };
        self.next_tick_ns = Some(soon.saturating_add(1).max(quantum).min(next).min(at_least));
    }

    // ---------------------------------------------------------------- outputs

    /// When [`Detector::tick`] must be called at the latest; `None` while there is nobody to judge. A tick much later than this is a pause.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.dirty { Some(self.now_ns) } else { self.next_tick_ns }
    }

    /// The host that will be late first if nothing comes, when its heartbeat should have come, and when it is late. For a shell that gets ready.
    #[must_use]
    pub fn next_late(&self) -> Option<(u32, u64, u64)> {
        let alive = self.peers.iter().filter(|p| p.state == State::Alive && p.draining_since_ns.is_none());
        alive.map(|p| (p.node, p.due_at_ns(), p.late_at_ns())).min_by_key(|(_, _, late_ns)| *late_ns)
    }

    /// Whether a barrier is waited for before a host is called late.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.peers.iter().any(|p| p.draining_since_ns.is_some())
    }

    /// The next thing to do. Call until `None` after every input.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The state of a host.
    #[must_use]
    pub fn state(&self, node: u32) -> Option<State> {
        self.find(node).map(|i| self.peers[i].state)
    }

    /// The incarnation of a host that is judged.
    #[must_use]
    pub fn incarnation(&self, node: u32) -> Option<u32> {
        self.find(node).map(|i| self.peers[i].incarnation)
    }

    /// The timeout for silence towards a host (ns), of the slower path.
    #[must_use]
    pub fn timeout_ns(&self, node: u32) -> Option<u64> {
        self.find(node).map(|i| self.peers[i].timeout_ns())
    }

    /// Every host, in the order of node ids.
    pub fn peers(&self) -> impl Iterator<Item = PeerView<'_>> {
        self.peers.iter().map(view)
    }

    /// One of them.
    #[must_use]
    pub fn peer(&self, node: u32) -> Option<PeerView<'_>> {
        self.find(node).map(|i| view(&self.peers[i]))
    }

    /// The incarnations cut off by a verdict: what path reports flag as `CONDEMNED`.
    pub fn condemned(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.peers.iter().filter(|p| p.state.is_condemned()).map(|p| (p.node, p.incarnation))
    }

    /// The processes of a host, in the order of their numbers. While nobody watches them, those that did not end are
    /// [`AppState::Unobserved`].
    pub fn apps_of(&self, node: u32) -> impl Iterator<Item = (u32, AppState)> + '_ {
        self.find(node).into_iter().flat_map(move |i| {
            let state = self.peers[i].state;
            self.peers[i].apps.iter().map(move |(app, known)| (app, shown(known, state)))
        })
    }

    /// The state of one process.
    #[must_use]
    pub fn app_state(&self, node: u32, app: u32) -> Option<AppState> {
        let peer = &self.peers[self.find(node)?];
        Some(shown(peer.apps.get(app)?, peer.state))
    }

    /// Whether this observer reaches nobody, and since when (ns).
    #[must_use]
    pub fn isolated_since_ns(&self) -> Option<u64> {
        self.isolated.map(|i| i.since_ns)
    }

    /// How often something was refused for this reason.
    #[must_use]
    pub fn refused(&self, why: Refused) -> u64 {
        self.refused[why as usize]
    }

    /// Running totals.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    // ---------------------------------------------------------------- innards

    /// Time never goes back in here, whatever the shell says.
    fn clock(&mut self, now_ns: u64) -> u64 {
        self.now_ns = self.now_ns.max(now_ns);
        self.now_ns
    }

    fn find(&self, node: u32) -> Option<usize> {
        self.peers.binary_search_by_key(&node, |p| p.node).ok()
    }

    fn refuse<T>(&mut self, why: Refused) -> Result<T, Refused> {
        self.refused[why as usize] += 1;
        Err(why)
    }

    /// The host, if this is its incarnation and it is live.
    fn listen_to(&mut self, node: u32, incarnation: u32) -> Result<usize, Refused> {
        let Some(i) = self.find(node) else { return self.refuse(Refused::UnknownPeer) };
        let peer = &self.peers[i];
        if incarnation < peer.incarnation {
            return self.refuse(Refused::OldIncarnation);
        }
        if incarnation > peer.incarnation {
            return self.refuse(Refused::NotAnnounced);
        }
        match peer.state {
            State::Alive | State::Late | State::Restarting => Ok(i),
            State::AgentLost | State::Silent => self.refuse(Refused::Condemned),
            State::Left => self.refuse(Refused::Left),
        }
    }

    fn step(&mut self, i: usize, to: State) {
        let from = self.peers[i].state;
        debug_assert!(from.may_become(to), "{from} -> {to} is not in the table");
        self.peers[i].state = to;
    }

    fn next_inferred_id(&mut self) -> VerdictId {
        let number = self.next_inferred;
        self.next_inferred = (number + 1) & !INFERRED;
        self.stats.inferred += 1;
        VerdictId::new(self.config.self_node, INFERRED | number)
    }

    /// A verdict about a host or one of its paths, with the evidence as it stands.
    fn judge_node(&mut self, i: usize, cause: Cause, grade: Grade, code: i32, now: u64) {
        let id = self.next_inferred_id();
        let mut evidence = self.evidence(i, now);
        if let (Cause::PathDown | Cause::PathUp, Ok(path)) = (cause, usize::try_from(code)) {
            evidence.contract = self.peers[i].paths[path].contract;
            evidence.timeout_ns = evidence.contract.timeout_ns();
            evidence.path = path as u8;
        }
        if grade == Grade::Certain {
            evidence.timeout_ns = 0;
        }
        let (node, incarnation) = (self.peers[i].node, self.peers[i].incarnation);
        self.push_verdict(id, cause, grade, node, incarnation, 0, code, Vec::new(), evidence, now);
    }

    /// A verdict about this observer.
    fn judge_self(&mut self, cause: Cause, grade: Grade, code: i32, evidence: Evidence, now: u64) {
        let id = self.next_inferred_id();
        let (node, incarnation) = (self.config.self_node, self.config.self_incarnation);
        self.push_verdict(id, cause, grade, node, incarnation, 0, code, Vec::new(), evidence, now);
    }

    #[allow(clippy::too_many_arguments)] // the fields of a verdict
    fn push_verdict(
        &mut self,
        id: VerdictId,
        cause: Cause,
        grade: Grade,
        node: u32,
        incarnation: u32,
        app: u32,
        code: i32,
        ended_apps: Vec<u32>,
        evidence: Evidence,
        at_ns: u64,
    ) {
        let verdict = Verdict { id, cause, grade, node, incarnation, app, code, confirms: false, at_ns, ended_apps, evidence };
        self.actions.push_back(Action::Verdict(Box::new(verdict)));
    }

    /// What is known of a host now.
    fn evidence(&self, i: usize, now: u64) -> Evidence {
        let peer = &self.peers[i];
        let paths = peer.paths.iter().zip(self.carrier).zip(self.dropped_ns).map(|((p, carrier), own_loss_ns)| PathEvidence {
            last_number: p.last.last_number,
            last_arrival_ns: p.last.last_arrival_ns,
            silent_ns: now.saturating_sub(if p.last.last_arrival_ns == 0 { p.from_ns } else { p.last.last_arrival_ns }),
            lost: p.last.lost,
            asked: p.asked,
            kernel_answered: p.kernel_answered,
            agent_absent: p.agent_absent,
            carrier,
            own_loss_ns,
        });
        // The path whose timeout expired last is the one the verdict waited for.
        let waited_for = peer.paths.iter().max_by_key(|p| p.deadline_ns(peer.judge_from_ns));
        let contract = waited_for.map(|p| p.contract).unwrap_or_default();
        let own_drops = self.drops.saturating_sub(peer.drops_mark);
        let path_drops: u64 = peer.paths.iter().map(|p| p.last.drops.saturating_sub(p.drops_mark)).sum();
        let recent = now.saturating_sub(peer.timeout_ns().saturating_mul(10).max(1_000_000_000));
        Evidence {
            paths: paths.collect(),
            timeout_ns: contract.timeout_ns(),
            contract,
            observer_awake_ns: now.saturating_sub(self.awake_since_ns),
            drops: own_drops.saturating_add(path_drops),
            drained: peer.is_drained(&self.carrier),
            heard_by: self.heard_by(peer.node).map(str::to_owned).into_iter().collect(),
            also_reported_by: peer.reporters.iter().filter(|(_, at)| *at >= recent).map(|(n, _)| n.clone()).collect(),
            fence: peer.fence,
            // Whom others hear they may confirm.
            fenced: peer.fence.is_some() && !peer.fence_may_be_open(now) && !peer.others.is_told,
            ..Evidence::default()
        }
    }

    /// What is known of our own connection: the newest heartbeat of anybody, per path.
    fn own_evidence(&self, now: u64) -> Evidence {
        let path = |k: usize| {
            let newest = self.peers.iter().map(|p| p.paths[k].last.last_arrival_ns).max().unwrap_or(0);
            PathEvidence {
                last_arrival_ns: newest,
                silent_ns: now.saturating_sub(if newest == 0 { self.awake_since_ns } else { newest }),
                carrier: self.carrier[k],
                own_loss_ns: self.dropped_ns[k],
                ..PathEvidence::default()
            }
        };
        Evidence {
            paths: (0..PATHS).map(path).collect(),
            observer_awake_ns: now.saturating_sub(self.awake_since_ns),
            ..Evidence::default()
        }
    }

    fn invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert!(self.peers.len() <= MAX_PEERS);
        debug_assert!(self.peers.windows(2).all(|w| w[0].node < w[1].node), "sorted, each once");
        debug_assert!(self.peers.iter().all(|p| p.node != self.config.self_node));
        debug_assert!(self.peers.iter().all(|p| p.doubt_from_ns <= p.judge_from_ns));
        debug_assert!(self.last_tick_ns.is_none_or(|t| t <= self.now_ns));
        debug_assert_eq!(self.next_inferred & INFERRED, 0);
        self.peers.iter().for_each(Peer::invariants);
    }
}

/// A process of an unobserved host is unobserved, unless it ended before.
fn shown(known: AppState, host: State) -> AppState {
    match (known, host) {
        (AppState::Alive | AppState::Hung { .. }, State::AgentLost | State::Left | State::Restarting) => AppState::Unobserved,
        (state, _) => state,
    }
}
