//! Questions to hosts that are doubted, to others that show whether an answer could have come, and through each receive queue.

use super::Core;
use crate::clock::now_ns;
use crate::peers::Peer;
use crate::shares::EventSource;
use crate::unwanted;
use fide_lane::{Prober, SendError};
use fide_proto::detector;
use fide_proto::node::probing::{self, Answerer, Answerers, Steered, Steering};
use fide_wire::PATHS;
use fide_wire::verdict::{Cause, Grade};
use fide_xdp::layout::QUEUES;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Hosts that nobody doubts and that are asked in one second.
const TRIED_AT_ONCE: usize = 8;
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
pub(super) enum Question {
    /// To the lane's port of a host that was asked whether its kernel answers: does anybody hold it?
    Knock { node: u32, path: usize },
    /// To the kernel of another host, which shows whether an answer could have come.
    Witness { node: u32, path: usize },
    /// To others, so that an answer comes by the receive queue of this one's heartbeats.
    Steered { node: u32, path: usize },
    /// To who is no host of the cluster, when no other one is left to answer.
    Answerers { node: u32, path: usize },
}

/// What is asked, and of whom.
pub(crate) struct Asking {
    /// Who else may answer.
    pub(crate) answerers: Answerers,
    /// When they were asked last, and when they are to be again; never: [`u64::MAX`].
    answerers_asked_ns: [u64; PATHS],
    pub(super) answerers_at: [u64; PATHS],
    /// Since when others were asked on a path and nobody has answered; 0: somebody has.
    pub(super) unanswered_ns: [u64; PATHS],
    /// Hosts that were responsive at this time.
    well_ns: u64,
    well: [[Option<u32>; 2]; PATHS],
    /// Which questions come back by which receive queue.
    pub(super) steering: Steering,
    /// Such questions that have not left yet, by path.
    pub(super) steered: VecDeque<(usize, Steered)>,
    /// Receive queues of the interfaces, as the control thread counted them.
    queues: [usize; PATHS],
    /// Questions that wait until it was looked whether the first ones are answered.
    pub(super) later: VecDeque<Question>,
    /// The slot after that of the host that was asked last without a doubt.
    tried: usize,
}

impl Default for Asking {
    fn default() -> Self {
        Self {
            answerers: Answerers::default(),
            answerers_asked_ns: [0; PATHS],
            answerers_at: [u64::MAX; PATHS],
            unanswered_ns: [0; PATHS],
            well_ns: 0,
            well: Default::default(),
            steering: Steering::default(),
            steered: VecDeque::new(),
            queues: [1; PATHS],
            later: VecDeque::new(),
            tried: 0,
        }
    }
}

impl Core {
    /// Whether another host than `but` is well and can be asked on this path, and others that were asked do answer.
    pub(crate) fn others_answer(&mut self, path: usize, but: Option<u32>) -> bool {
        let now = now_ns();
        self.find_well(now);
        let unanswered_ns = self.asking.unanswered_ns[path];
        let answers = unanswered_ns == 0 || now.saturating_sub(unanswered_ns) < UNANSWERED_NS;
        answers && self.asking.well[path].iter().flatten().any(|node| Some(*node) != but)
    }

    /// Two hosts for each path that were heard there in time. Once for all who ask in one turn.
    fn find_well(&mut self, now: u64) {
        if now.saturating_sub(self.asking.well_ns) < WELL_NS {
            return;
        }
        (self.asking.well_ns, self.asking.well) = (now, Default::default());
        for (slot, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer.as_ref().filter(|p| !p.left && !p.condemned) else { continue };
            if self.asking.well.iter().flatten().all(Option::is_some) {
                break;
            }
            let timeout_ns = self.node.detector().timeout_ns(peer.node).unwrap_or(0);
            let row = self.receiver.peer(slot);
            for (path, well) in self.asking.well.iter_mut().enumerate() {
                let is_well = peer.addresses[path].is_some() && now.saturating_sub(row.path[path].arrived_ns) <= timeout_ns;
                if let Some(place) = well.iter_mut().find(|place| place.is_none()).filter(|_| is_well) {
                    *place = Some(peer.node);
                }
            }
        }
    }

    /// Others are asked on this path: if nobody answers, it is not they alone who will be.
    pub(crate) fn note_asked(&mut self, path: usize) {
        if self.asking.unanswered_ns[path] == 0 {
            self.asking.unanswered_ns[path] = now_ns();
        }
    }

    /// Who is no host of the cluster is asked for a barrier of a path, `pause_ns` after the last time at the earliest.
    pub(crate) fn want_answerers(&mut self, path: usize, pause_ns: u64) {
        if !self.asking.answerers.of(path).is_empty() {
            let at_ns = self.asking.answerers_asked_ns[path].saturating_add(pause_ns);
            self.asking.answerers_at[path] = self.asking.answerers_at[path].min(at_ns);
        }
    }

    pub(super) fn ask_wanted_answerers(&mut self, now: u64) {
        for path in 0..PATHS {
            if now >= self.asking.answerers_at[path] {
                self.ask_answerers(path, &self.asking.answerers.to_ask(path, now), now);
            }
        }
    }

    fn ask_answerers(&mut self, path: usize, whom: &[Answerer], now: u64) {
        (self.asking.answerers_at[path], self.asking.answerers_asked_ns[path]) = (u64::MAX, now);
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
        if self.asking.answerers.set(path, &others) {
            self.asking.steering.forget(path);
        }
        let all = self.asking.answerers.of(path).to_vec();
        self.ask_answerers(path, &all, now_ns());
    }

    /// Whom to ask by TCP, the likeliest to answer first.
    fn steered_among(&mut self, path: usize, but: Option<u32>, source: IpAddr) -> Vec<u32> {
        if !self.others_answer(path, but) {
            let now = now_ns();
            let is_able = |a: &&Answerer| a.answers(now) && a.address.is_ipv6() == source.is_ipv6();
            let answerers = self.asking.answerers.of(path).iter().filter(is_able).map(|a| a.node);
            let mut alone: Vec<u32> = self.crossing(path).map(|_| probing::ITSELF).into_iter().chain(answerers).collect();
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
        let queues = self.asking.queues[path];
        let Some(source) = self.lane.source(path as u8).filter(|_| self.prober.is_some()) else { return };
        let can = self.start.tcp_questions && (1..=QUEUES).contains(&queues) && self.receiver.offers_barriers();
        if !can || queue.is_some_and(|queue| queue as usize > queues) || self.asking.steered.len() > STEERED_MAX {
            return;
        }
        let nodes = match queues {
            // An echo comes by the one that there is, unless there is nobody for it.
            1 if self.others_answer(path, but) => return,
            1 => self.crossing(path).map(|_| probing::ITSELF).into_iter().collect(),
            _ => self.steered_among(path, but, source),
        };
        // A number that is noted already, of a question that is forgotten, would be taken for its answer.
        let noted = self.receiver.steered(path);
        let is_new = |random: &u64| !noted.iter().any(|(_, number)| number >> 8 == *random as u32 >> 8);
        let Some(random) = (0..8).find_map(|_| fide_lane::random().ok().filter(is_new)) else { return };
        let wanted = queue.map_or(1..=queues as u32, |queue| queue..=queue);
        let questions = self.asking.steering.ask(path, queues, wanted, &nodes, now_ns(), random);
        if let Some(first) = questions.first() {
            self.receiver.expect_steered(path, first.number);
        }
        self.asking.steered.extend(questions.into_iter().map(|question| (path, question)));
    }

    /// Some of what [`Core::steer`] wants asked: a search has hundreds of them, and our heartbeats do not wait for that.
    pub(super) fn send_steered(&mut self) {
        for _ in 0..STEERED_AT_ONCE {
            let Some((path, q)) = self.asking.steered.pop_front() else { return };
            let Some(source) = self.lane.source(path as u8) else { continue };
            let host = self.slot(q.node).and_then(|slot| self.peers[slot].as_ref()?.addresses[path]);
            let address = host.or_else(|| self.asking.answerers.address(q.node, path));
            let crossing = if q.node == probing::ITSELF { self.crossing(path) } else { None };
            let Some(prober) = self.prober.as_mut() else { return };
            let sent = match (address, crossing) {
                (Some(address), _) => prober.steer(path as u8, source, address, q.port, q.number),
                (None, Some((by, from))) => prober.cross((by, path as u8), from, source, q.port, q.number),
                (None, None) => continue,
            };
            if let Err(e) = sent {
                tracing::debug!("a question by TCP on path {path}: {e}");
                self.asking.steered.retain(|(of, _)| *of != path);
            }
        }
    }

    /// How many receive queues the interface of a path has.
    pub fn set_queues(&mut self, path: usize, queues: usize) {
        if let Some(known) = self.asking.queues.get_mut(path)
            && std::mem::replace(known, queues) != queues
        {
            self.asking.steering.forget(path);
        }
    }

    /// A host that is doubted is asked at once whether its kernel answers; the rest follows.
    pub(super) fn probe(&mut self, node: u32, paths: [bool; PATHS], (knock, wide): (bool, bool), now: u64) {
        let paths = || (0..PATHS).filter(|path| paths[*path]);
        if !knock {
            self.asking.later.extend(paths().map(|path| Question::Witness { node, path }));
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
        self.asking.later.extend(paths().map(|path| Question::Answerers { node, path }));
        // Others, by the queue that its heartbeats take.
        self.asking.later.extend(paths().map(|path| Question::Steered { node, path }));
        self.asking.later.extend(paths().map(|path| Question::Knock { node, path }));
    }

    /// Whether a verdict on it waits for one: that it is late, silent, or that its agent is lost.
    fn may_wait_for_barrier(&self, node: u32) -> bool {
        self.node.detector().is_draining() || self.node.detector().state(node) == Some(detector::State::Late)
    }

    pub(super) fn put(&mut self, question: Question) {
        match question {
            Question::Knock { node, path } => _ = self.ask(node, path, Prober::knock),
            Question::Witness { node, path } => {
                self.ask(node, path, Prober::echo);
                self.note_asked(path);
            }
            // Hosts first: their answers are nearer.
            Question::Answerers { .. } if self.asking.later.iter().any(|q| matches!(q, Question::Witness { .. })) => {
                self.asking.later.push_back(question);
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
    pub(super) fn ask(&mut self, node: u32, path: usize, how: fn(&mut Prober, u32, u8, IpAddr) -> Result<(), SendError>) -> bool {
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
    pub(super) fn try_some(&mut self, now: u64) {
        let alive = |p: &Peer| !p.condemned && !p.left;
        for _ in 0..TRIED_AT_ONCE.min(self.peers.iter().flatten().filter(|p| alive(p)).count()) {
            let slots = (self.asking.tried..self.peers.len()).chain(0..self.asking.tried);
            let Some(slot) = slots.into_iter().find(|slot| self.peers[*slot].as_deref().is_some_and(alive)) else { return };
            self.asking.tried = slot + 1;
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
    pub(super) fn tell_diverted(&mut self, node: u32, path: usize, now: u64) {
        let (name, incarnation) = (self.node_name(node), self.node.detector().incarnation(node).unwrap_or_default());
        let text = format!(
            "what is for {name} on path {path}, or what it answers, goes astray: another station uses its MAC, or something filters its answers; while that lasts it is not taken for dead before its agent's timeout, unless it is silent on a path on which nothing goes astray"
        );
        let code = unwanted::CODE_DIVERTED;
        self.tell_text(Cause::ForeignTraffic, Grade::Inferred, (&name, incarnation), code, text, EventSource::OWN, now);
    }
}
