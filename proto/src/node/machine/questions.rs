//! Questions of this host in its node: what [`Probing`] decides, beside the detector that wants and
//! weighs it.

use super::{Event, Node};
use crate::detector::State;
use crate::node::probing::{Action, Answer, Emptied, Probing, View};
use crate::node::sizes::{self, Sizes};
use fide_wire::PATHS;
use std::net::IpAddr;

impl Node {
    /// Whom this host asks, and what came back.
    #[must_use]
    pub const fn probing(&self) -> &Probing {
        &self.probing
    }

    /// The same, for what is known of interfaces ([`Probing::set_queues`],
    /// [`Probing::forget_interface`]).
    pub const fn probing_mut(&mut self) -> &mut Probing {
        &mut self.probing
    }

    /// A second is over: whom to ask by how large packets, and what is news of what passes ([`Sizes::tick`]).
    pub fn ask_sizes(&mut self, full: [Option<u16>; PATHS]) -> (Vec<sizes::Ask>, Vec<sizes::Passes>) {
        // What is known of a host stands while its agent is away.
        let known = self.detector.peers().filter(|peer| peer.state != State::Left);
        self.sizes.tick(full, known.map(|peer| (peer.node, peer.paths.map(|path| path.up && peer.state == State::Alive))))
    }

    /// What is known of how large packets may be.
    #[must_use]
    pub const fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// A question of this size was answered.
    pub fn size_answered(&mut self, node: u32, path: usize, size: u16) {
        self.sizes.answered(node, path, size);
    }

    /// As [`Probing::set_answerers`].
    pub fn set_answerers(&mut self, path: usize, addresses: &[IpAddr], view: &impl View, now_ns: u64) {
        self.probing.set_answerers(path, addresses, view, now_ns);
        self.take_questions();
    }

    /// An answer came ([`Probing::answered`]).
    pub fn take_answer(&mut self, answer: &Answer, is_local: impl Fn() -> bool, view: &impl View, now_ns: u64) -> bool {
        self.probing.answered(answer, is_local, &mut self.detector, view, now_ns)
    }

    /// Answers by TCP may have been noted in the queues of a path ([`Probing::take_noted`]).
    pub fn take_noted(&mut self, path: usize, view: &impl View, now_ns: u64) -> Vec<Emptied> {
        self.probing.take_noted(path, &mut self.detector, view, now_ns)
    }

    /// Takes the next question that could wait, if [`Probing::has_next`].
    pub fn ask_next(&mut self, view: &mut impl View, now_ns: u64) {
        self.probing.ask_next(&self.detector, view, now_ns);
        self.take_questions();
    }

    /// As [`Probing::ask_wanted_answerers`].
    pub fn ask_wanted_answerers(&mut self, now_ns: u64) {
        self.probing.ask_wanted_answerers(now_ns);
        self.take_questions();
    }

    /// As [`Probing::ask_for_barriers`].
    pub fn ask_for_barriers(&mut self, paths: [bool; PATHS], view: &mut impl View, now_ns: u64) {
        self.probing.ask_for_barriers(paths, &self.detector, view, now_ns);
        self.take_questions();
    }

    /// As [`Probing::try_some`].
    pub fn try_some(&mut self, view: &impl View, now_ns: u64) {
        self.probing.try_some(&mut self.detector, view, now_ns);
        self.take_questions();
    }

    /// The next TCP question ([`Probing::poll_steered`]).
    pub fn poll_steered(&mut self, view: &impl View) -> Option<Action> {
        self.probing.poll_steered(view)
    }

    /// This question did not leave ([`Probing::not_asked`]).
    pub fn not_asked(&mut self, action: &Action) {
        self.probing.not_asked(action, &mut self.detector);
    }

    /// Questions are asked in the order in which verdicts are told, and others' wishes done.
    pub(super) fn take_questions(&mut self) {
        while let Some(action) = self.probing.poll_action() {
            self.events.push_back(Event::Ask(action));
        }
    }
}
