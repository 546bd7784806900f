//! Questions that nodes ask, and the kernels that answer them.

use super::Neglect;
use super::host::{Agent, MS, RingItem, SENDER_LATE_NS};
use super::nic::{self, Flow, Mechanisms, Nic};
use super::world::{Event, World};
use crate::rng::Rng;
use crate::time::US;
use fide_proto::detector::ProbeResult;
use fide_proto::node::probing::{self, Action, Answer, STEERED_AT_ONCE};
use fide_wire::PATHS;
use std::net::IpAddr;

/// What is asked, and what a kernel answers to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// An echo request, by its number of all: the kernel answers.
    Echo(u64),
    /// A datagram to the lane's port: the kernel says so where nobody holds it.
    Knock,
    /// A TCP segment from a port, with a number that the answer repeats.
    Tcp(u16, u32),
}

/// Who is asked, and who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    Host(usize),
    /// One that is no host of the cluster, by its place and what the asker calls it.
    Responder(usize, u32),
}

/// A question on its way, and its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The asker, in this boot of its kernel.
    pub from: usize,
    pub boot: u32,
    pub whom: Whom,
    pub path: usize,
    pub what: What,
    pub asked_ns: u64,
}

/// The networks, beside the hosts: who else answers there, and whether both are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    /// Whether each responder that is no host answers.
    pub responders: [Vec<bool>; PATHS],
    pub is_one_network: bool,
    /// Nodes may ask by TCP.
    pub steers: bool,
    /// Echo requests so far.
    pub echoes: u64,
}

impl Surroundings {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let of_path = |rng: &mut Rng| (0..rng.below(3)).map(|_| rng.chance(70)).collect();
        Self {
            responders: std::array::from_fn(|_| of_path(rng)),
            is_one_network: rng.chance(20),
            steers: rng.chance(75),
            echoes: 0,
        }
    }
}

/// From one look at who answers to the next: in an agent a second.
const TRY_NS: u64 = 20 * MS;

impl World {
    /// Interfaces with several queues, and others that answer.
    pub(super) fn surround(&mut self, rng: &mut Rng) {
        self.around = Surroundings::new(rng);
        for host in &mut self.hosts {
            host.nics = std::array::from_fn(|_| Nic::new(1 + rng.below(4) as u32, rng));
        }
    }

    fn view(&mut self, host: usize) -> Mechanisms<'_> {
        let is_blind = self.neglect == Some(Neglect::Queues);
        Mechanisms { hosts: &self.hosts, host, steers: self.around.steers, is_blind, rng: &mut self.rng }
    }

    /// A new agent learns of its interfaces.
    pub(super) fn look_around(&mut self, host: usize, agent: &mut Agent) {
        for path in 0..PATHS {
            self.hosts[host].nics[path].forget();
            let queues = self.hosts[host].nics[path].queues() as usize;
            agent.node.probing_mut().set_queues(path, queues);
            let others: Vec<IpAddr> = (0..self.around.responders[path].len()).map(|at| nic::responder(at, path)).collect();
            let now = self.now;
            agent.node.set_answerers(path, &others, &self.view(host), now);
        }
    }

    /// What was noted in the queues since, before silence is judged.
    pub(super) fn take_noted(&mut self, host: usize, agent: &mut Agent) {
        let now = self.now;
        if self.neglect == Some(Neglect::Answers) {
            return;
        }
        for path in 0..PATHS {
            for emptied in agent.node.take_noted(path, &self.view(host), now) {
                match emptied.by {
                    probing::ITSELF => self.barriers.itself += 1,
                    by if probing::is_reserved(by) => self.barriers.responders += 1,
                    _ => self.barriers.segments += 1,
                }
            }
        }
    }

    /// Questions that could wait until it was judged.
    pub(super) fn ask_the_rest(&mut self, host: usize, agent: &mut Agent) {
        let now = self.now;
        // No time passes meanwhile: no answer could come between two of them.
        while agent.node.probing().has_next() {
            agent.node.ask_next(&mut self.view(host), now);
        }
        agent.node.ask_wanted_answerers(now);
        if now >= agent.next_try_ns {
            agent.next_try_ns = now + TRY_NS;
            agent.node.try_some(&self.view(host), now);
        }
        self.act(host, agent);
        for _ in 0..STEERED_AT_ONCE {
            let Some(action) = agent.node.poll_steered(&self.view(host)) else { break };
            self.ask(host, agent, action);
        }
    }

    /// Does what probing wants done.
    pub(super) fn ask(&mut self, host: usize, agent: &mut Agent, action: Action) {
        let now = self.now;
        self.around.echoes += 1;
        let echo = What::Echo(self.around.echoes);
        let of = |path: usize, node: u32, what: What| (path, Whom::Host(self.index(node)), what);
        let (path, whom, what) = match action {
            Action::Echo { node, path }
            | Action::EchoWide { node, path }
            | Action::EchoAside { node, path }
            | Action::Try { node, path } => of(path, node, echo),
            Action::Knock { node, path } => of(path, node, What::Knock),
            Action::Answerer { node, path, address } => {
                let at = nic::owner(address).expect_err("no host is among them");
                (path, Whom::Responder(at, node), echo)
            }
            Action::Steered { path, address, port, number } => {
                let whom = nic::owner(address).map_or_else(|at| Whom::Responder(at, 0), Whom::Host);
                (path, whom, What::Tcp(port, number))
            }
            Action::Crossing { by, path, port, number } => {
                self.cross(host, (by, path), port, number);
                return;
            }
            Action::Expect { path, number } => return self.hosts[host].nics[path].expect(number),
            Action::LookAtCarriers => {
                let is_unplugged = self.hosts[host].is_unplugged;
                (0..PATHS).for_each(|path| agent.node.detector_mut().carrier(path, !is_unplugged[path], now));
                return;
            }
            // Nobody is told here.
            Action::Diverted { .. } => return,
        };
        if self.hosts[host].is_unplugged[path] {
            return agent.node.not_asked(&action);
        }
        let asked = Asked { from: host, boot: self.hosts[host].boot, whom, path, what, asked_ns: now };
        let leaves = match whom {
            Whom::Host(to) => self.passes(host, to, path),
            Whom::Responder(..) => self.passes(host, host, path),
        };
        if leaves {
            let at = now + self.delay();
            self.at(at, Event::Question(asked));
        }
    }

    /// A host asks itself: what it sends looks like an answer.
    fn cross(&mut self, host: usize, (by, path): (usize, usize), port: u16, number: u32) {
        let what = What::Tcp(port, number);
        let asked = Asked { from: host, boot: self.hosts[host].boot, whom: Whom::Host(host), path, what, asked_ns: self.now };
        let leaves = self.passes(host, host, by) && self.passes(host, host, path);
        if self.around.is_one_network && leaves {
            self.answer(asked);
        }
    }

    /// A question arrives.
    pub(super) fn question_came(&mut self, asked: Asked) {
        let Asked { from, path, .. } = asked;
        let to = match asked.whom {
            Whom::Responder(at, _) => {
                // Its kernel answers no more than that.
                let answers = self.around.responders[path][at];
                if answers && self.passes(from, from, path) {
                    self.answer(asked);
                }
                return;
            }
            Whom::Host(to) => to,
        };
        let node = self.hosts[from].node;
        let flow = if let What::Tcp(port, _) = asked.what { Flow::Tcp(node, port) } else { Flow::Icmp(node) };
        let queue = self.hosts[to].nics[path].queue_of(flow);
        if let Some(until) = self.frozen(to).or_else(|| self.held(to, path, queue)) {
            if self.hosts[to].nics[path].held_until(queue) > self.now {
                self.judge.question_waits((from, self.hosts[to].node), self.now, until);
            }
            self.at(until, Event::Question(asked));
        } else if self.hosts[to].up && !self.hosts[to].cut[path] {
            // An agent that is there answers nothing to a knock.
            let answers = asked.what != What::Knock || self.hosts[to].agent.is_none();
            if answers && self.passes(to, from, path) {
                self.answer(asked);
            }
        }
    }

    /// The answer is on its way.
    fn answer(&mut self, asked: Asked) {
        let at = self.now + self.delay();
        let at = self.past_the_backlog(asked.from, at);
        self.at(at, Event::Answer(asked));
    }

    /// An answer arrives at the asker's interface.
    pub(super) fn answer_came(&mut self, asked: Asked) {
        let Asked { from: to, path, what, asked_ns, .. } = asked;
        let (node, of_responder) = match asked.whom {
            Whom::Host(host) => (self.hosts[host].node, self.hosts[host].node),
            Whom::Responder(at, node) => (node, u32::MAX - 100 - at as u32),
        };
        let flow = if let What::Tcp(port, _) = what { Flow::Tcp(of_responder, port) } else { Flow::Icmp(of_responder) };
        let queue = self.hosts[to].nics[path].queue_of(flow);
        if let Some(until) = self.frozen(to).or_else(|| self.held(to, path, queue)) {
            if self.hosts[to].nics[path].held_until(queue) > self.now {
                self.judge.answer_waits((to, node), self.now, until);
            }
            return self.at(until, Event::Answer(asked));
        }
        if self.overruns(to, path) || self.hosts[to].boot != asked.boot || self.hosts[to].agent.is_none() {
            return;
        }
        let nic = &mut self.hosts[to].nics[path];
        let (result, number) = match what {
            // It is noted, and wakes nobody.
            What::Tcp(_, number) => return nic.note(queue, number),
            What::Echo(number) => (ProbeResult::KernelAnswered, number),
            What::Knock => (ProbeResult::AgentAbsent, u64::MAX),
        };
        if result == ProbeResult::KernelAnswered {
            nic.note_echo(queue, number);
        }
        let answer = Answer { node, path, result, asked_ns, queue: Some(queue) };
        self.hosts[to].ring.push_back(RingItem::Answer(answer, number));
        let soon = self.now + 5 * US + self.rng.below(SENDER_LATE_NS);
        self.wake(to, soon);
    }

    /// The agent takes it.
    pub(super) fn take_answer(&mut self, host: usize, agent: &mut Agent, answer: Answer, number: u64) {
        let now = self.now;
        match self.neglect {
            Some(Neglect::Answers) => return,
            Some(Neglect::Queues) => {
                let all = Answer { queue: Some(1), ..answer };
                agent.node.take_answer(&all, || false, &self.view(host), now);
                return;
            }
            _ => {}
        }
        let queue = answer.queue.and_then(|queue| self.hosts[host].nics[answer.path].barrier(queue, number));
        match queue {
            Some(_) if probing::is_reserved(answer.node) => self.barriers.responders += 1,
            Some(_) => self.barriers.echoes += 1,
            None => {}
        }
        agent.node.take_answer(&Answer { queue, ..answer }, || false, &self.view(host), now);
    }

    pub(super) fn index(&self, node: u32) -> usize {
        self.hosts.iter().position(|h| h.node == node).expect("one of them")
    }
}
