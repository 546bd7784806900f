//! Probing: whom to ask about a host that is doubted, by which path, receive queue and responder,
//! and what an answer proves.
//!
//! # In one head
//! The detector ([`crate::detector`]) wants a host's kernel asked, and waits for a barrier: any
//! answer that came by the receive queue of that host's heartbeats, and for a silence also one by
//! the queue of that host's own answers. This machine knows who may give one. The host itself is
//! asked first, and at once, since its answer ends the doubt. Other hosts follow, which are close
//! and answer fast. Where an interface has several receive queues, a TCP question from a port whose
//! answer takes the wanted queue does ([`steering`]). Where no other host is left, whatever else
//! answers on that network is asked ([`answerers`]), or this host asks itself from its other
//! interface.
//!
//! # How to drive it
//! The machine is a part of [`Node`](super::Node), which hands it what its detector wants asked.
//! The shell
//! 1. hands in answers ([`Node::take_answer`](super::Node::take_answer)) and what was noted in the
//!    receive queues ([`Node::take_noted`](super::Node::take_noted)), then judges;
//! 2. does each [`Action`] that comes out as an event, in order;
//! 3. puts the next question that can wait ([`Node::ask_next`](super::Node::ask_next)), until there
//!    is none: and looks for answers before each, for a barrier is back in less time than all
//!    questions take to be sent;
//! 4. sends at most [`STEERED_AT_ONCE`] TCP questions a turn
//!    ([`Node::poll_steered`](super::Node::poll_steered));
//! 5. comes back at [`Probing::poll_timeout`] at the latest.
//!
//! What a shell's mechanisms know comes in by its [`View`], which is asked only where something is
//! needed of it.

pub mod answerers;
pub mod steering;
#[cfg(test)]
mod tests;

pub use answerers::{ANSWERERS, Answerer, Answerers, ITSELF, is_reserved};
pub use steering::{Emptied, Steered, Steering};

use crate::detector::{Detector, ProbeResult, State};
use fide_wire::PATHS;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// Hosts that nobody doubts and that are asked in one second.
const TRIED_AT_ONCE: usize = 8;
/// After this long without a reply, other hosts alone no longer suffice as responders.
const UNANSWERED_NS: u64 = 10_000_000;
/// Cache lifetime of the responsive hosts.
const WELL_NS: u64 = 100_000;
/// For a verdict, responders that are no hosts are asked again after so long.
const ANSWERERS_NS: u64 = 200_000;
/// For a check of an application's heartbeats they are asked no more often than this: routers
/// answer few.
const ANSWERERS_EVERY_NS: u64 = 10_000_000;
/// For a check so many hosts are asked on each path. More would not be more certain, unless queues
/// are many.
const ASKED_FOR_CHECK: usize = 16;
/// Of so many others one answers a TCP question, if they may.
const STEERED_AMONG: usize = 16;
/// TCP questions that leave in one turn: each takes some 3 µs, and heartbeats do not wait for that.
pub const STEERED_AT_ONCE: usize = 8;
/// While more wait than this, no others are asked.
const STEERED_MAX: usize = 512;

/// Another host, as the shell knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its wire id.
    pub node: u32,
    /// It left, and is not asked any more.
    pub left: bool,
    /// Its incarnation was judged and is refused.
    pub condemned: bool,
    /// Its address on each path.
    pub addresses: [Option<IpAddr>; PATHS],
}

/// What the mechanisms of a shell know. A shell that does not say something has nothing of it.
pub trait View {
    /// Places for hosts: what is counted below.
    fn places(&self) -> usize {
        0
    }

    /// The host in a place.
    fn host(&self, place: usize) -> Option<Host> {
        let _ = place;
        None
    }

    /// The place of a host.
    fn place(&self, node: u32) -> Option<usize> {
        (0..self.places()).find(|place| self.host(*place).is_some_and(|host| host.node == node))
    }

    /// When the last heartbeat of the host in a place arrived on a path; 0: none did.
    fn arrived_ns(&self, place: usize, path: usize) -> u64 {
        let _ = (place, path);
        0
    }

    /// The receive queue by which it came, counted from 1; 0: that is not known.
    fn queue(&self, place: usize, path: usize) -> u32 {
        let _ = (place, path);
        0
    }

    /// Whether it is known which queue an answer came by: then there are barriers.
    fn offers_barriers(&self) -> bool {
        false
    }

    /// Whether TCP questions may be sent, and their answers are noted.
    fn steers(&self) -> bool {
        false
    }

    /// The numbers of TCP questions whose answers came last, by the queue that they came by.
    fn noted(&self, path: usize) -> Vec<(u32, u32)> {
        let _ = path;
        Vec::new()
    }

    /// The address of this host on a path, while it has an interface there.
    fn source(&self, path: usize) -> Option<IpAddr> {
        let _ = path;
        None
    }

    /// Whether this host's interface on a path has its carrier, as it is now.
    fn carrier(&self, path: usize) -> bool {
        let _ = path;
        false
    }

    /// Random bits, if there are any.
    fn random(&mut self) -> Option<u64> {
        None
    }
}

/// What the shell is to do. Where a question does not leave, it says so
/// ([`Node::not_asked`](super::Node::not_asked)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a host's kernel by an echo request: its answer is waited for.
    Echo {
        /// The host.
        node: u32,
        /// On which path.
        path: usize,
    },
    /// The same in a frame for everybody: it gets there wherever the switches think that the host
    /// is.
    EchoWide {
        /// The host.
        node: u32,
        /// On which path.
        path: usize,
    },
    /// The same for somebody else than the detector: a check of an application's heartbeats.
    EchoAside {
        /// The host.
        node: u32,
        /// On which path.
        path: usize,
    },
    /// The same of a host that nobody doubts, to see whether it answers at all.
    Try {
        /// The host.
        node: u32,
        /// On which path.
        path: usize,
    },
    /// Send a datagram to the lane's port of a host: does anybody hold it?
    Knock {
        /// The host.
        node: u32,
        /// On which path.
        path: usize,
    },
    /// Ask a responder that is no host of the cluster by an echo request.
    Answerer {
        /// What it is called in its answer.
        node: u32,
        /// On which path.
        path: usize,
        /// Its address.
        address: IpAddr,
    },
    /// Note answers by TCP to the questions of this round: all but the last byte of their number.
    Expect {
        /// On which path.
        path: usize,
        /// The number of the first of them.
        number: u32,
    },
    /// Ask by TCP.
    Steered {
        /// On which path.
        path: usize,
        /// Whom.
        address: IpAddr,
        /// From which port.
        port: u16,
        /// What the answer repeats.
        number: u32,
    },
    /// Send this host itself what an answer by TCP looks like, from another of its interfaces.
    Crossing {
        /// From which path.
        by: usize,
        /// To which path.
        path: usize,
        /// To which port.
        port: u16,
        /// What it repeats.
        number: u32,
    },
    /// Look whether this host's own cables are plugged, before others are doubted: while the first
    /// answers are on their way, and once for all who are asked now.
    LookAtCarriers,
    /// Tell that questions to a host, or its answers, go astray on a path.
    Diverted {
        /// The host.
        node: u32,
        /// On which path.
        path: usize,
    },
}

/// An answer to one of these questions, but for those by TCP, which are noted in their queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Who was asked.
    pub node: u32,
    /// On which path.
    pub path: usize,
    /// What it says.
    pub result: ProbeResult,
    /// When the question left (ns).
    pub asked_ns: u64,
    /// The receive queue that the answer came by, counted from 1; `None`: that is not known, or
    /// another came out of it since.
    pub queue: Option<u32>,
}

/// A question of the second rank.
#[derive(Clone, Copy, Debug)]
enum Question {
    /// To the lane's port of a host that was asked whether its kernel answers: does anybody hold
    /// it?
    Knock { node: u32, path: usize },
    /// To the kernel of another host, which shows whether an answer could have come.
    Witness { node: u32, path: usize },
    /// To others, so that an answer comes by the receive queue of this one's heartbeats.
    Steered { node: u32, path: usize },
    /// To who is no host of the cluster, when no other one is left to answer.
    Answerers { node: u32, path: usize },
}

/// What emptied the receive queue of a host's heartbeats last; with the address of who answered,
/// where it is no host of the cluster.
pub type Barrier = (Emptied, Option<IpAddr>);

/// What is known of a host on one path.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    barrier: Option<Barrier>,
    /// The receive queue by which its kernel's last answer came; 0: none did, or that is not known.
    answers_by: u32,
}

/// The machine. See the [module](self) for how it thinks and how to drive it.
#[derive(Clone, Debug)]
pub struct Probing {
    /// Who else may answer.
    answerers: Answerers,
    /// When they were asked last, and when they are to be again; never: [`u64::MAX`].
    answerers_asked_ns: [u64; PATHS],
    answerers_at_ns: [u64; PATHS],
    /// Since when others were asked on a path and nobody has answered; 0: somebody has.
    unanswered_ns: [u64; PATHS],
    /// Hosts that were responsive at this time.
    well_ns: u64,
    well: [[Option<u32>; 2]; PATHS],
    /// Which questions come back by which receive queue.
    steering: Steering,
    /// Such questions that have not left yet, by path.
    steered: VecDeque<(usize, Steered)>,
    /// Receive queues of the interfaces; 0: too many to be told apart, or none.
    queues: [usize; PATHS],
    /// Questions that wait until it was looked whether the first ones are answered.
    later: VecDeque<Question>,
    /// The place after that of the host that was asked last without a doubt.
    tried: usize,
    /// When it was last looked at the carriers.
    carriers_ns: u64,
    /// Of hosts that are judged, in their incarnation.
    known: BTreeMap<u32, [Known; PATHS]>,
    actions: VecDeque<Action>,
}

impl Default for Probing {
    fn default() -> Self {
        Self {
            answerers: Answerers::default(),
            answerers_asked_ns: [0; PATHS],
            answerers_at_ns: [u64::MAX; PATHS],
            unanswered_ns: [0; PATHS],
            well_ns: 0,
            well: Default::default(),
            steering: Steering::default(),
            steered: VecDeque::new(),
            queues: [1; PATHS],
            later: VecDeque::new(),
            tried: 0,
            carriers_ns: 0,
            known: BTreeMap::new(),
            actions: VecDeque::new(),
        }
    }
}

impl Probing {
    // ---- what is known
    // ---------------------------------------------------------------------------------------

    /// Who may answer and is no host of the cluster.
    #[must_use]
    pub const fn answerers(&self) -> &Answerers {
        &self.answerers
    }

    /// Responders of a path that are no hosts of the cluster, and no others. They are asked at
    /// once, and so each time, for it is known then who does answer.
    pub fn set_answerers(&mut self, path: usize, addresses: &[IpAddr], view: &impl View, now: u64) {
        let hosts = || (0..view.places()).filter_map(|place| view.host(place));
        let is_host = |address: &IpAddr| hosts().any(|host| host.addresses.contains(&Some(*address)));
        let others: Vec<IpAddr> = addresses.iter().filter(|a| !is_host(a)).copied().collect();
        if self.answerers.set(path, &others) {
            self.steering.forget(path);
        }
        let all = self.answerers.of(path).to_vec();
        self.ask_answerers(path, &all, now);
    }

    /// How many receive queues the interface of a path has; 0: too many to be told apart, or none.
    pub fn set_queues(&mut self, path: usize, queues: usize) {
        if let Some(known) = self.queues.get_mut(path)
            && std::mem::replace(known, queues) != queues
        {
            self.forget_interface(path);
        }
    }

    /// The interface of a path is another one: its queues are not those that were reached.
    pub fn forget_interface(&mut self, path: usize) {
        self.steering.forget(path);
        self.known.values_mut().filter_map(|paths| paths.get_mut(path)).for_each(|known| known.answers_by = 0);
    }

    /// What emptied the receive queues of a host's heartbeats last, by path, in its incarnation.
    #[must_use]
    pub fn barriers(&self, node: u32) -> [Option<Barrier>; PATHS] {
        self.known.get(&node).map_or_else(Default::default, |paths| paths.map(|known| known.barrier))
    }

    /// An incarnation of a host is judged from now on.
    pub(super) fn begins(&mut self, node: u32) {
        self.known.insert(node, Default::default());
    }

    /// A host is remembered no more.
    pub(super) fn forget(&mut self, node: u32) {
        self.known.remove(&node);
    }

    // ---- whom to ask
    // -----------------------------------------------------------------------------------------

    /// The detector wants a host asked. A host that is doubted (`knock`) is asked at once whether
    /// its kernel answers; the rest follows.
    pub fn probe(&mut self, node: u32, paths: [bool; PATHS], (knock, wide): (bool, bool), now: u64) {
        let paths = || (0..PATHS).filter(|path| paths[*path]);
        if !knock {
            self.later.extend(paths().map(|path| Question::Witness { node, path }));
            return;
        }
        self.actions.extend(paths().map(|path| Action::Echo { node, path }));
        if wide {
            self.actions.extend(paths().map(|path| Action::EchoWide { node, path }));
        }
        if std::mem::replace(&mut self.carriers_ns, now) != now {
            self.actions.push_back(Action::LookAtCarriers);
        }
        self.later.extend(paths().map(|path| Question::Answerers { node, path }));
        // Others, by the queue that its heartbeats take.
        self.later.extend(paths().map(|path| Question::Steered { node, path }));
        self.later.extend(paths().map(|path| Question::Knock { node, path }));
    }

    /// The detector wants to know whether a host's port is held.
    pub fn knock(&mut self, node: u32, paths: [bool; PATHS]) {
        self.actions.extend((0..PATHS).filter(|path| paths[*path]).map(|path| Action::Knock { node, path }));
    }

    /// Whether [`Probing::ask_next`] has something to ask.
    #[must_use]
    pub fn has_next(&self) -> bool {
        !self.later.is_empty()
    }

    /// Takes the next question that could wait.
    pub fn ask_next(&mut self, detector: &Detector, view: &mut impl View, now: u64) {
        let Some(question) = self.later.pop_front() else { return };
        match question {
            Question::Knock { node, path } => self.actions.push_back(Action::Knock { node, path }),
            Question::Witness { node, path } => {
                self.actions.push_back(Action::Echo { node, path });
                self.note_asked(path, now);
            }
            // Hosts first: their answers are nearer.
            Question::Answerers { .. } if self.later.iter().any(|q| matches!(q, Question::Witness { .. })) => {
                self.later.push_back(question);
            }
            Question::Answerers { node, path } => {
                let waits = view.offers_barriers() && may_wait_for_barrier(detector, node);
                if waits && !self.others_answer(path, Some(node), detector, view, now) {
                    self.want_answerers(path, ANSWERERS_NS);
                    self.ask_wanted_answerers(now);
                }
            }
            Question::Steered { node, path } => {
                if may_wait_for_barrier(detector, node) {
                    let heartbeats_by = view.place(node).map_or(0, |place| view.queue(place, path));
                    let answers_by = self.known.get(&node).map_or(0, |paths| paths[path].answers_by);
                    let wanted = [Some(heartbeats_by), Some(answers_by).filter(|queue| *queue != heartbeats_by)];
                    for queue in wanted.into_iter().flatten().filter(|queue| *queue != 0) {
                        self.steer(path, Some(queue), Some(node), detector, view, now);
                    }
                }
            }
        }
    }

    /// Whether another host than `but` is responsive and can be asked on this path, and others that
    /// were asked do answer.
    fn others_answer(&mut self, path: usize, but: Option<u32>, detector: &Detector, view: &impl View, now: u64) -> bool {
        self.find_well(detector, view, now);
        let unanswered_ns = self.unanswered_ns[path];
        let answers = unanswered_ns == 0 || now.saturating_sub(unanswered_ns) < UNANSWERED_NS;
        answers && self.well[path].iter().flatten().any(|node| Some(*node) != but)
    }

    /// Two hosts for each path that were heard there in time. Once for all who ask in one turn.
    fn find_well(&mut self, detector: &Detector, view: &impl View, now: u64) {
        if now.saturating_sub(self.well_ns) < WELL_NS {
            return;
        }
        (self.well_ns, self.well) = (now, Default::default());
        for place in 0..view.places() {
            let Some(host) = view.host(place).filter(|host| !host.left && !host.condemned) else { continue };
            if self.well.iter().flatten().all(Option::is_some) {
                break;
            }
            let timeout_ns = detector.timeout_ns(host.node).unwrap_or(0);
            for (path, well) in self.well.iter_mut().enumerate() {
                let is_well = host.addresses[path].is_some() && now.saturating_sub(view.arrived_ns(place, path)) <= timeout_ns;
                if let Some(free) = well.iter_mut().find(|free| free.is_none()).filter(|_| is_well) {
                    *free = Some(host.node);
                }
            }
        }
    }

    /// Others are asked on this path: if nobody answers, it is not they alone who will be.
    fn note_asked(&mut self, path: usize, now: u64) {
        if self.unanswered_ns[path] == 0 {
            self.unanswered_ns[path] = now;
        }
    }

    /// Who is no host of the cluster is asked for a barrier of a path, `pause_ns` after the last
    /// time at the earliest.
    fn want_answerers(&mut self, path: usize, pause_ns: u64) {
        if !self.answerers.of(path).is_empty() {
            let at_ns = self.answerers_asked_ns[path].saturating_add(pause_ns);
            self.answerers_at_ns[path] = self.answerers_at_ns[path].min(at_ns);
        }
    }

    /// Asks those that are due by now.
    pub fn ask_wanted_answerers(&mut self, now: u64) {
        for path in 0..PATHS {
            if now >= self.answerers_at_ns[path] {
                let whom = self.answerers.to_ask(path, now);
                self.ask_answerers(path, &whom, now);
            }
        }
    }

    fn ask_answerers(&mut self, path: usize, whom: &[Answerer], now: u64) {
        let (Some(at_ns), Some(asked_ns)) = (self.answerers_at_ns.get_mut(path), self.answerers_asked_ns.get_mut(path)) else {
            return;
        };
        (*at_ns, *asked_ns) = (u64::MAX, now);
        self.actions.extend(whom.iter().map(|a| Action::Answerer { node: a.node, path, address: a.address }));
    }

    /// Asks whoever may answer on these paths, so that their queues show that they are empty: for a
    /// check of an application's heartbeats.
    pub fn ask_for_barriers(&mut self, paths: [bool; PATHS], detector: &Detector, view: &mut impl View, now: u64) {
        let mut hosts: Vec<Host> = (0..view.places()).filter_map(|place| view.host(place)).filter(|host| !host.left).collect();
        hosts.sort_by_key(|host| host.condemned);
        for path in (0..PATHS).filter(|path| paths[*path]) {
            let reachable = hosts.iter().filter(|host| host.addresses[path].is_some()).take(ASKED_FOR_CHECK);
            self.actions.extend(reachable.map(|host| Action::EchoAside { node: host.node, path }));
        }
        for path in (0..PATHS).filter(|path| paths[*path]) {
            if !self.others_answer(path, None, detector, view, now) {
                self.want_answerers(path, ANSWERERS_EVERY_NS);
            }
            self.note_asked(path, now);
            self.steer(path, None, None, detector, view, now);
        }
    }

    /// Asks some hosts that nobody doubts, in turns: so it is known who answers, and whether
    /// answers go astray.
    pub fn try_some(&mut self, detector: &mut Detector, view: &impl View, now: u64) {
        let alive = |host: &Host| !host.condemned && !host.left;
        let places = view.places();
        let in_place = |place: usize| view.host(place).filter(alive);
        let hosts = (0..places).filter_map(in_place).count();
        for _ in 0..TRIED_AT_ONCE.min(hosts) {
            let from = self.tried.min(places);
            let Some((place, host)) = (from..places).chain(0..from).find_map(|place| Some((place, in_place(place)?))) else {
                return;
            };
            self.tried = place + 1;
            for path in 0..PATHS {
                if detector.has_carrier(path) && detector.tried(host.node, path, now) {
                    self.actions.push_back(Action::Diverted { node: host.node, path });
                }
                self.actions.push_back(Action::Try { node: host.node, path });
            }
        }
    }

    // ---- by which queue
    // --------------------------------------------------------------------------------------

    /// Whom to ask by TCP, the likeliest to answer first.
    fn steered_among(
        &mut self,
        path: usize,
        but: Option<u32>,
        source: IpAddr,
        detector: &Detector,
        view: &impl View,
        now: u64,
    ) -> Vec<u32> {
        if !self.others_answer(path, but, detector, view, now) {
            let is_able = |a: &&Answerer| a.answers(now) && a.address.is_ipv6() == source.is_ipv6();
            let answerers = self.answerers.of(path).iter().filter(is_able).map(|a| a.node);
            let mut alone: Vec<u32> = crossing(path, view).map(|_| ITSELF).into_iter().chain(answerers).collect();
            // The kernel of one that is late may answer, if only its agent is lost.
            alone.extend(but.filter(|node| detector.state(*node) == Some(State::Late)));
            if !alone.is_empty() {
                return alone;
            }
        }
        let mut hosts: Vec<(u64, u32)> = Vec::new();
        for place in 0..view.places() {
            let is_other = |host: &Host| !host.left && !host.condemned && Some(host.node) != but;
            let Some(host) = view.host(place).filter(is_other) else { continue };
            if host.addresses[path].is_some_and(|a| a.is_ipv6() == source.is_ipv6()) {
                hosts.push((view.arrived_ns(place, path), host.node)); // whoever was heard last
            }
        }
        hosts.sort_unstable_by(|a, b| b.cmp(a));
        hosts.into_iter().take(STEERED_AMONG).map(|(_, node)| node).collect()
    }

    /// Asks others than `but` so that answers come by this receive queue of a path (counted from
    /// 1), or by all: where it has several, and where no other host is left whose echo would come.
    fn steer(&mut self, path: usize, queue: Option<u32>, but: Option<u32>, detector: &Detector, view: &mut impl View, now: u64) {
        let queues = self.queues[path];
        let is_possible = view.steers() && queues != 0 && queue.is_none_or(|queue| queue as usize <= queues);
        if !is_possible || self.steered.len() > STEERED_MAX {
            return;
        }
        let Some(source) = view.source(path) else { return };
        let nodes = match queues {
            // An echo comes by the one that there is, unless there is nobody for it.
            1 if self.others_answer(path, but, detector, view, now) => return,
            1 => crossing(path, view).map(|_| ITSELF).into_iter().collect(),
            _ => self.steered_among(path, but, source, detector, view, now),
        };
        // A number that is noted already, of a question that is forgotten, would be taken for its
        // answer.
        let noted = view.noted(path);
        let is_new = |random: &u64| !noted.iter().any(|(_, number)| number >> 8 == *random as u32 >> 8);
        let Some(random) = (0..8).find_map(|_| view.random().filter(is_new)) else { return };
        let wanted = queue.map_or(1..=queues as u32, |queue| queue..=queue);
        let questions = self.steering.ask(path, queues, wanted, &nodes, now, random);
        if let Some(first) = questions.first() {
            self.actions.push_back(Action::Expect { path, number: first.number });
        }
        self.steered.extend(questions.into_iter().map(|question| (path, question)));
    }

    /// Whether TCP questions wait to be sent.
    #[must_use]
    pub fn has_steered(&self) -> bool {
        !self.steered.is_empty()
    }

    /// The next of them. A shell sends [`STEERED_AT_ONCE`] in one turn, no more: a search has
    /// hundreds of them.
    pub fn poll_steered(&mut self, view: &impl View) -> Option<Action> {
        while let Some((path, q)) = self.steered.pop_front() {
            if view.source(path).is_none() {
                self.steered.retain(|(of, _)| *of != path);
                continue;
            }
            let host = view.place(q.node).and_then(|place| view.host(place)?.addresses[path]);
            if let Some(address) = host.or_else(|| self.answerers.address(q.node, path)) {
                return Some(Action::Steered { path, address, port: q.port, number: q.number });
            }
            if let Some(by) = Some(q.node).filter(|node| *node == ITSELF).and_then(|_| crossing(path, view)) {
                return Some(Action::Crossing { by, path, port: q.port, number: q.number });
            }
        }
        None
    }

    /// This question did not leave. Of TCP questions on its path the others would not, either; that
    /// a host does not answer a question that was not sent says nothing.
    pub fn not_asked(&mut self, action: &Action, detector: &mut Detector) {
        match action {
            Action::Steered { path, .. } | Action::Crossing { path, .. } => self.steered.retain(|(of, _)| of != path),
            Action::Try { node, path } => detector.not_tried(*node, *path),
            _ => {}
        }
    }

    // ---- what comes back
    // -------------------------------------------------------------------------------------

    /// An answer came. `is_local`: whether this host itself has the address that it came from by
    /// now, so that it came by no interface; asked only where it matters. Returns whether it shows
    /// that what came to this path before its question is with the receiver.
    pub fn answered(
        &mut self,
        answer: &Answer,
        is_local: impl Fn() -> bool,
        detector: &mut Detector,
        view: &impl View,
        now: u64,
    ) -> bool {
        let Answer { node, path, result, asked_ns, queue } = *answer;
        if path >= PATHS {
            return false;
        }
        if !is_reserved(node) {
            detector.probe_result(node, path, result, asked_ns, now);
        }
        // Without the receive program nobody else can tell. What has not passed it came by no
        // interface.
        let came_in = if view.offers_barriers() { queue.is_some() } else { !is_local() };
        if !is_reserved(node) {
            self.unanswered_ns[path] = 0;
        } else if came_in || !is_local() {
            self.answerers.answered(node, path, now); // also when another answer came out of the queue by now
        }
        if let Some(queue) = queue {
            if let Some(paths) = self.known.get_mut(&node) {
                paths[path].answers_by = queue;
            }
            self.steering.other_came(path, queue);
            self.emptied(path, &[Emptied { queue, as_of_ns: asked_ns, by: node }], detector, view);
        }
        result == ProbeResult::KernelAnswered && came_in
    }

    /// Answers by TCP may have been noted in the queues of a path. Returns which of these were
    /// emptied by them.
    pub fn take_noted(&mut self, path: usize, detector: &mut Detector, view: &impl View, now: u64) -> Vec<Emptied> {
        if !self.steering.is_waiting(path) {
            return Vec::new();
        }
        let emptied = self.steering.came(path, &view.noted(path), now);
        self.emptied(path, &emptied, detector, view);
        emptied
    }

    /// What came into these queues before these times is in the tables.
    fn emptied(&mut self, path: usize, queues: &[Emptied], detector: &mut Detector, view: &impl View) {
        if queues.is_empty() {
            return;
        }
        for place in 0..view.places() {
            let Some(host) = view.host(place) else { continue };
            // It has a place since it was first judged: nothing is allocated on this way.
            let Some(known) = self.known.get_mut(&host.node).map(|paths| &mut paths[path]) else { continue };
            for emptied in queues.iter().filter(|emptied| emptied.queue == known.answers_by) {
                detector.answers_drained(host.node, path, emptied.as_of_ns);
            }
            let of_its = view.queue(place, path);
            for emptied in queues.iter().filter(|emptied| emptied.queue == of_its) {
                detector.drained(host.node, path, emptied.as_of_ns);
                let latest = &mut known.barrier;
                if latest.is_none_or(|(known, _)| known.as_of_ns <= emptied.as_of_ns) {
                    *latest = Some((*emptied, self.answerers.address(emptied.by, path)));
                }
            }
        }
    }

    // ---- outputs
    // ---------------------------------------------------------------------------------------------

    /// When to look again, if that is before the detector wants it: answers by TCP wake nobody.
    #[must_use]
    pub fn poll_timeout(&self, now: u64) -> Option<u64> {
        let answerers = self.answerers_at_ns.iter().copied().filter(|at_ns| *at_ns != u64::MAX);
        self.steering.look_at(now).into_iter().chain(answerers).min()
    }

    /// The next thing to do. Call until `None` after every input.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
}

/// Whether a verdict on this host waits for a barrier: that it is late, silent, or that its agent
/// is lost.
fn may_wait_for_barrier(detector: &Detector, node: u32) -> bool {
    detector.is_draining() || detector.state(node) == Some(State::Late)
}

/// From which path this host may ask itself on another one.
fn crossing(path: usize, view: &impl View) -> Option<usize> {
    let source = view.source(path)?;
    let is_of_family = |by: &usize| view.source(*by).is_some_and(|s| s.is_ipv6() == source.is_ipv6());
    (0..PATHS).filter(|by| *by != path && view.carrier(*by)).find(is_of_family)
}
