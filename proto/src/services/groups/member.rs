//! A member of a group: its replica of the log, and the gate between verdicts and the log.
//!
//! Agents run it as a part of the service, worlds of the simulator by itself.

use super::Departure;
use crate::consensus::log::{self, Log, Message};
use crate::consensus::policy::{self, Ask, Gate, Policy};
use crate::consensus::{Halted, Kind, memory};
use crate::group::{EntryId, MemberId, MemberSet, Refused, Value};
use fide_wire::verdict::{Cause, Grade};
use std::collections::VecDeque;

/// Most verdicts that are kept for a gate that is still to come.
const UNHEARD_MAX: usize = 1024;

/// Most decisions of a gate that are kept for those who watch.
const DECIDED_MAX: usize = 64;

/// What a member asks of its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The log's.
    Log(log::Output),
    /// The gate's.
    Ask(Ask),
}

/// What the gate is made from; its engine is the log's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateConfig {
    /// The group's policy.
    pub policy: Policy,
    /// See [`policy::Config`].
    pub fence_repeat_ns: u64,
    /// See [`policy::Config`].
    pub witness_timeout_ns: u64,
    /// See [`policy::Config`].
    pub distrust_ns: u64,
    /// See [`policy::Config`].
    pub lowi_judges_itself: bool,
}

impl GateConfig {
    fn of(&self, engine: Kind) -> policy::Config {
        policy::Config {
            engine,
            policy: self.policy,
            fence_repeat_ns: self.fence_repeat_ns,
            witness_timeout_ns: self.witness_timeout_ns,
            distrust_ns: self.distrust_ns,
            lowi_judges_itself: self.lowi_judges_itself,
        }
    }
}

/// One member's part. After every call, drain [`Member::poll_output`].
pub struct Member {
    log: Log,
    config: GateConfig,
    /// With the members it knows; nothing before the log takes part.
    gate: Option<(Gate, MemberSet)>,
    /// What says that silence proves nothing, and came before there was a gate.
    unheard: Vec<(u64, MemberId, Cause, Grade)>,
    asks: VecDeque<Ask>,
    /// See [`Member::decided`].
    decided: Vec<policy::Action>,
}

impl Member {
    /// A member whose log begins now.
    #[must_use]
    pub fn new(now_ns: u64, log: Log, config: GateConfig) -> Self {
        let mut member = Self { log, config, gate: None, unheard: Vec::new(), asks: VecDeque::new(), decided: Vec::new() };
        member.settle(now_ns);
        member
    }

    /// The log, to be looked at.
    #[must_use]
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// What the gate decided since the outputs were last drained: for those who watch, it is done.
    #[must_use]
    pub fn decided(&self) -> &[policy::Action] {
        &self.decided
    }

    /// Panics if its state is one that it must never be in.
    pub fn invariants(&self) {
        self.log.invariants();
        if let Some((gate, _)) = &self.gate {
            gate.invariants();
        }
    }

    /// See [`Log::propose`].
    ///
    /// # Errors
    /// See there.
    pub fn propose(&mut self, now_ns: u64, value: Value) -> Result<EntryId, Refused> {
        self.step(now_ns, |log| log.propose(now_ns, value))
    }

    /// See [`Log::admit`].
    ///
    /// # Errors
    /// See there.
    pub fn admit(&mut self, now_ns: u64, member: MemberId) -> Result<EntryId, Refused> {
        self.step(now_ns, |log| log.admit(now_ns, member))
    }

    /// See [`Log::leave`].
    ///
    /// # Errors
    /// See there.
    pub fn leave(&mut self, now_ns: u64) -> Result<EntryId, Refused> {
        self.step(now_ns, |log| log.leave(now_ns))
    }

    /// See [`Log::switch`].
    ///
    /// # Errors
    /// See there.
    pub fn switch(&mut self, now_ns: u64, kind: Kind) -> Result<EntryId, Refused> {
        self.step(now_ns, |log| log.switch(now_ns, kind))
    }

    /// See [`Log::keep_snapshot`].
    ///
    /// # Errors
    /// See there.
    pub fn keep_snapshot(&mut self, position: log::Position, state: Value) -> Result<(), Refused> {
        self.log.keep_snapshot(position, state)
    }

    /// Over the reliable link.
    ///
    /// # Errors
    /// See [`Log::handle_message`].
    pub fn handle_message(&mut self, now_ns: u64, from: MemberId, message: Message) -> Result<(), Refused> {
        self.step(now_ns, |log| log.handle_message(now_ns, from, message))
    }

    /// A copy of a broadcast, with the time of its arrival.
    ///
    /// # Errors
    /// See [`Log::handle_copy`].
    pub fn handle_copy(&mut self, arrival_ns: u64, from: MemberId, path: usize, message: Message) -> Result<(), Refused> {
        self.step(arrival_ns, |log| log.handle_copy(arrival_ns, from, path, message))
    }

    /// What became of the copies of this epoch's last broadcast.
    pub fn handle_copies_sent(&mut self, now_ns: u64, epoch: log::Epoch, departure: Departure) {
        self.step(now_ns, |log| match departure {
            Departure::Whole => log.handle_copies_sent(now_ns, epoch),
            Departure::Void => log.handle_copies_void(now_ns, epoch),
            Departure::Partial => log.handle_network_fault(now_ns),
        });
    }

    /// The first copy of a piggyback. Of those who are known to have crashed nothing is taken (fail-consistency).
    ///
    /// # Errors
    /// See [`Log::handle_piggyback`].
    pub fn handle_piggyback(&mut self, now_ns: u64, from: MemberId, message: Message) -> Result<(), Refused> {
        if self.log.crashed().contains(from) {
            return Err(Refused::Crashed);
        }
        self.step(now_ns, |log| log.handle_piggyback(now_ns, from, message))
    }

    /// What rides on the heartbeat that is about to leave.
    pub fn poll_piggyback(&mut self, now_ns: u64) -> Option<Message> {
        let message = self.log.poll_piggyback(now_ns);
        self.settle(now_ns);
        message
    }

    /// The heartbeat with the last piggyback has left on all paths.
    pub fn handle_piggyback_sent(&mut self, now_ns: u64) {
        self.step(now_ns, |log| log.handle_piggyback_sent(now_ns));
    }

    /// A memory's answer.
    ///
    /// # Errors
    /// See [`Log::handle_memory`].
    pub fn handle_memory(
        &mut self,
        now_ns: u64,
        from: MemberId,
        epoch: log::Epoch,
        id: memory::RequestId,
        answer: memory::Answer,
    ) -> Result<(), Refused> {
        self.step(now_ns, |log| log.handle_memory(now_ns, from, epoch, id, answer))
    }

    /// The detector of this host says this of a member, or of itself.
    pub fn handle_verdict(&mut self, now_ns: u64, about: MemberId, cause: Cause, grade: Grade) {
        let hints = (self.log.is_running() || self.log.is_leaving()) && !self.log.kind().needs_accuracy();
        match &mut self.gate {
            Some((gate, _)) => _ = gate.handle_verdict(now_ns, about, cause, grade),
            None => {
                let proves_nothing = cause == Cause::ContractKept || cause.is_about_observer();
                if proves_nothing && self.unheard.len() < UNHEARD_MAX {
                    self.unheard.push((now_ns, about, cause, grade));
                }
            }
        }
        let ends = cause.ends_process() && grade == Grade::Certain;
        let is_unheard = self.gate.is_none();
        self.obey_gate(now_ns);
        // What is certain is more than a hint, for engines that take hints; and a log without a gate keeps it for later.
        if ends && (hints || is_unheard) {
            self.crashed(now_ns, about);
        }
        self.settle(now_ns);
    }

    /// `about` was heard in the life that was reported over.
    pub fn handle_alive(&mut self, now_ns: u64, about: MemberId) {
        if let Some((gate, _)) = &mut self.gate {
            let _ = gate.handle_alive(now_ns, about);
        }
        self.settle(now_ns);
    }

    /// `about` was cut off.
    pub fn handle_fenced(&mut self, now_ns: u64, about: MemberId) {
        if let Some((gate, _)) = &mut self.gate {
            let _ = gate.handle_fenced(now_ns, about);
        }
        self.settle(now_ns);
    }

    /// The witness answers.
    pub fn handle_witness(&mut self, now_ns: u64, about: MemberId, answer: policy::Answer) {
        if let Some((gate, _)) = &mut self.gate {
            let _ = gate.handle_witness(now_ns, about, answer);
        }
        self.settle(now_ns);
    }

    /// A witness that is asked from now on has refused if it has not answered after so long.
    pub fn set_witness_timeout(&mut self, timeout_ns: u64) {
        self.config.witness_timeout_ns = timeout_ns;
        if let Some((gate, _)) = &mut self.gate {
            gate.set_witness_timeout(timeout_ns);
        }
    }

    /// This member's life is over: others gave it up, or its shell stops.
    pub fn stop(&mut self, why: Halted) {
        self.log.stop(why);
    }

    /// When [`Member::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let of_gate = self.gate.as_ref().and_then(|(gate, _)| gate.poll_timeout());
        self.log.poll_timeout().into_iter().chain(of_gate).min()
    }

    /// The time has come.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if let Some((gate, _)) = &mut self.gate
            && gate.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns)
        {
            gate.handle_timeout(now_ns);
        }
        if self.log.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.log.handle_timeout(now_ns);
        }
        self.settle(now_ns);
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        let output = self.poll_ask().or_else(|| self.log.poll_output().map(Output::Log));
        if output.is_none() {
            self.decided.clear();
        }
        output
    }

    /// Whom the gate asks, also while nothing of the log may leave.
    pub fn poll_ask(&mut self) -> Option<Output> {
        self.asks.pop_front().map(Output::Ask)
    }

    fn step<T>(&mut self, now_ns: u64, act: impl FnOnce(&mut Log) -> T) -> T {
        let result = act(&mut self.log);
        self.settle(now_ns);
        result
    }

    /// The gate knows the engine and the members, and the log what the gate wants.
    fn settle(&mut self, now_ns: u64) {
        self.obey_gate(now_ns);
        self.keep_gate(now_ns);
        self.obey_gate(now_ns);
    }

    fn obey_gate(&mut self, now_ns: u64) {
        while let Some(action) = self.gate.as_mut().and_then(|(gate, _)| gate.poll_action()) {
            if self.decided.len() < DECIDED_MAX {
                self.decided.push(action);
            }
            match action {
                policy::Action::Crash(about) if self.log.kind().needs_accuracy() => self.crashed(now_ns, about),
                policy::Action::Crash(about) => self.log.handle_suspect(now_ns, about),
                policy::Action::Alive(about) => self.log.handle_alive(now_ns, about),
                policy::Action::NetworkFault => self.log.handle_network_fault(now_ns),
                policy::Action::Halt(why) => self.log.stop(why),
                policy::Action::Ask(ask) => self.asks.push_back(ask),
            }
        }
    }

    fn crashed(&mut self, now_ns: u64, about: MemberId) {
        if !self.log.crashed().contains(about) {
            let _ = self.log.handle_crash(now_ns, about);
        }
    }

    /// Also that of one that leaves, which may learn of a newcomer with its own leave.
    fn keep_gate(&mut self, now_ns: u64) {
        if !self.log.is_running() && !self.log.is_leaving() {
            return;
        }
        let (kind, members) = (self.log.kind(), self.log.concerned());
        match &mut self.gate {
            Some((gate, known)) if gate.config().engine == kind => {
                if *known != members {
                    gate.set_members(members.clone());
                    *known = members;
                }
            }
            Some((gate, known)) => match gate.change_engine(now_ns, kind, members.clone()) {
                Ok(()) => *known = members,
                // Such engines are not made.
                Err(_) => self.gate = None,
            },
            none => {
                let gate = Gate::new(self.log.me(), self.config.of(kind), members.clone());
                *none = gate.ok().map(|gate| (gate, members));
                // That somebody was late before this member had its state counts as much.
                if let Some((gate, _)) = none {
                    for (at_ns, about, cause, grade) in std::mem::take(&mut self.unheard) {
                        let _ = gate.handle_verdict(at_ns, about, cause, grade);
                    }
                }
            }
        }
    }
}
