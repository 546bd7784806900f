//! The grade decides: what a group makes of a verdict (B4, B5).
//!
//! The detector gives verdicts with a grade: *certain* (a kernel saw the end, or it was announced) or *inferred* (silence, judged against a contract). Engines
//! want to be told of crashes. [`Gate`] stands between them: a certain verdict passes at once; an inferred one passes as the group's [`Policy`] says, or the
//! gate stops the member safely. An engine that [takes hints](Kind::needs_accuracy) gets everything at once, and gets it taken back.
//!
//! # What is assumed, and what happens when it is false
//! Rows that hold for every policy:
//!
//! | engine | verdict | assumed | when it is false |
//! |---|---|---|---|
//! | HSUC, HUC, LOWI | certain | the kernel that saw the end did see it; nothing of the process leaves after its notice (a doomed one is cut off by its agent) | two values may be decided; if the dead one shows up under the same id, the gate halts ([`Halted::Unconfirmed`]), which is too late for what was decided |
//! | Paxos, Raft | any | nothing | an election or a fallback too many; no two values |
//!
//! Inferred verdicts, for engines that need accuracy:
//!
//! | engine | policy | assumed | when it is false |
//! |---|---|---|---|
//! | HSUC | trust-contract | who is silent for TO = HB + λmin + 2·δmax has crashed, while no living member was seen to be late | the silent one lives and two values may be decided. If the breach is seen first: [`Halted::Unconfirmed`], nothing is decided |
//! | HSUC | fence | a confirmed fence means that the member neither runs nor sends any more | as above. A fence that is never confirmed: nothing is decided until it is, or until the verdict becomes certain |
//! | HSUC | witness | the witness lets others go on without a member only when it knows, by another way, that this one neither runs nor sends, or has seen to it. Taking sides is not enough: who was left behind may never ask, and is told of certain crashes (`sim/scenarios/witness-takes-sides.txt`) | as above. Refused, expelled or no answer in time: halt. The witness gone: nobody survives an inferred crash |
//! | HUC | trust-contract | as HSUC, and everything that was piggybacked arrived before (silence for TO implies it, if the contract held) | a heartbeat that is later still breaks fail-consistency: two values may be decided |
//! | HUC | fence | as HSUC, and what was in flight at the fence has arrived when it is confirmed (it takes longer than Δ) | as above |
//! | HUC | witness | as HSUC; the asking takes longer than Δ | as above |
//! | LOWI | trust-contract | its own: every copy within Δ_I, clocks within the drift bound (`lowi`, "What safety rests on") | noticed: safe exit. Not noticed in time: one instance may be decided twice |
//! | LOWI | fence, witness | – | **refused** by [`Gate::new`]: LOWI elects by silence, without asking anybody, so it cannot keep these policies |
//!
//! # Why a late member closes the gate
//! A silent host is reported *contract broken* first, and *silent host* after it could not be
//! reached. The former says nothing yet; but when *contract kept* follows, a living member was
//! silent for longer than the contract allows. Then silence proves nothing, for as long as
//! [`Config::distrust_ns`] says. The same holds when this observer itself was paused or isolated.
//! An inferred verdict in that time halts a member under trust-contract; LOWI, which would act on
//! silence by itself, is told of a network fault right away, unless it waits for longer than the
//! detector ([`Config::lowi_judges_itself`]).
//!
//! A change of the engine does not end this ([`Gate::change_engine`]): silence does not prove more to the next one. Nor does it begin with the gate: a member that has none
//! before it has its state is handed then what it heard of this kind, with the times at which it did.
//!
//! # What is not here
//! Who fences and how, and the witness. The gate says [`Ask`] and is told the outcome. On hosts the
//! witness is a command of the operator's (`agent/src/witness.rs`, docs/groups.md).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use fide_wire::verdict::{Cause, Grade};
use serde::{Deserialize, Serialize};

use super::{Halted, Kind};
use crate::group::{MemberId, MemberSet, Refusals, Refused};

/// What a group makes of inferred crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Act on them while the timing contract is kept; halt when it is not.
    TrustContract,
    /// Act on them when the member was fenced; wait until then.
    Fence,
    /// Act on them when the witness grants it; halt when it does not.
    Witness,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 3] = [Policy::TrustContract, Policy::Fence, Policy::Witness];

    /// The name used on command lines, in metrics and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Policy::TrustContract => "trust-contract",
            Policy::Fence => "fence",
            Policy::Witness => "witness",
        }
    }

    /// Whether groups go on where the network is cut between members that live, because those that
    /// are given up are seen to first.
    #[must_use]
    pub const fn outlives_partitions(self) -> bool {
        matches!(self, Policy::Fence | Policy::Witness)
    }

    /// Whether `engine` can keep it.
    #[must_use]
    pub const fn suits(self, engine: Kind) -> bool {
        !matches!((engine, self), (Kind::Lowi, Policy::Fence | Policy::Witness))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Settings of a [`Gate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// For which engine.
    pub engine: Kind,
    /// The group's policy.
    pub policy: Policy,
    /// A fence that is not confirmed after this time is asked for again (ns).
    pub fence_repeat_ns: u64,
    /// A witness that has not answered after this time has refused (ns).
    pub witness_timeout_ns: u64,
    /// How long silence proves nothing after a living member was late (ns).
    pub distrust_ns: u64,
    /// LOWI waits for longer than the detector: that a living member was late, or that this one was
    /// paused, stops it only if its own copies are late, which it sees by their stamps, or its own
    /// slot has passed. An inferred crash soon after is not acted on, and is to be reported again.
    /// Isolation stops it in any case.
    pub lowi_judges_itself: bool,
}

impl Config {
    /// A fence is repeated and a witness given up after one second; distrust lasts ten.
    #[must_use]
    pub const fn new(engine: Kind, policy: Policy) -> Self {
        let second_ns = 1_000_000_000;
        Self {
            engine,
            policy,
            fence_repeat_ns: second_ns,
            witness_timeout_ns: second_ns,
            distrust_ns: 10 * second_ns,
            lowi_judges_itself: false,
        }
    }
}

/// What the gate wants to know from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// Make sure that `member` neither runs nor sends; answer with [`Gate::handle_fenced`]. May be asked again.
    Fence {
        /// Whom.
        member: MemberId,
    },
    /// May this side go on without `member`? Answer with [`Gate::handle_witness`].
    Witness {
        /// Without whom.
        member: MemberId,
    },
}

/// The answer of a witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Go on without it: it will not be granted anything.
    Granted,
    /// No.
    Refused,
    /// Others go on without *us*.
    Expelled,
}

/// What the gate wants done with the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// [`super::Engine::handle_crash`].
    Crash(MemberId),
    /// [`super::Engine::handle_alive`]: only for engines that take hints.
    Alive(MemberId),
    /// [`super::Engine::handle_network_fault`]: only for LOWI.
    NetworkFault,
    /// Ask somebody outside.
    Ask(Ask),
    /// Stop this member.
    Halt(Halted),
}

/// What is known of a member that was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Report {
    /// Asked for; again, or given up, at this time.
    Asked(u64),
    /// The engine knows.
    Passed,
}

const UNSUITED: &str = "LOWI elects by silence without asking anybody: its only policy is trust-contract";

/// One member's gate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    me: MemberId,
    config: Config,
    members: MemberSet,
    reports: BTreeMap<MemberId, Report>,
    /// Silence proves nothing until then; until further notice at the end of time.
    distrust_until_ns: Option<u64>,
    /// The same of who joins next: somebody was late who is no member yet.
    distrust_newcomers_until_ns: Option<u64>,
    halted: Option<Halted>,
    actions: VecDeque<Action>,
    refusals: Refusals,
}

impl Gate {
    /// Nobody is reported, and the contract is kept.
    ///
    /// # Errors
    /// If this engine cannot keep this policy, as a sentence.
    pub fn new(me: MemberId, config: Config, members: MemberSet) -> Result<Self, &'static str> {
        if !config.policy.suits(config.engine) {
            return Err(UNSUITED);
        }
        Ok(Self {
            me,
            config,
            members,
            reports: BTreeMap::new(),
            distrust_until_ns: None,
            distrust_newcomers_until_ns: None,
            halted: None,
            actions: VecDeque::new(),
            refusals: Refusals::default(),
        })
    }

    /// The group has changed its engine, and these are the members from then on. That silence proves nothing holds on: LOWI is told of a network fault then. Of
    /// members that were reported, what an engine that needs accuracy was told or is to be told stands for the next one, too; a hint is forgotten, and whoever is
    /// still gone must be reported again.
    ///
    /// # Errors
    /// If that engine cannot keep the policy, as a sentence: nothing was changed.
    pub fn change_engine(&mut self, now_ns: u64, engine: Kind, members: MemberSet) -> Result<(), &'static str> {
        if !self.config.policy.suits(engine) {
            return Err(UNSUITED);
        }
        let hints = !self.config.engine.needs_accuracy();
        self.config.engine = engine;
        if hints && engine.needs_accuracy() {
            // Also what was not taken yet.
            self.reports.clear();
            self.actions.retain(|action| !matches!(action, Action::Crash(_) | Action::Alive(_)));
        }
        self.set_members(members);
        // Who takes hints is told everything at once.
        let told = if engine.needs_accuracy() { BTreeMap::new() } else { std::mem::take(&mut self.reports) };
        if self.halted.is_some() {
            return Ok(());
        }
        for member in told.into_keys() {
            let _ = self.pass(member);
        }
        if engine == Kind::Lowi && !self.trusts_silence(now_ns) {
            self.distrust(now_ns, 0);
        }
        Ok(())
    }

    /// A verdict of the detector about a member (about any, if it concerns the observer). Causes that end nobody and say nothing of the contract are taken without effect.
    ///
    /// # Errors
    /// [`Refused::UnknownMember`], unless it was late: that counts if it joins soon; [`Refused::Duplicate`] when this end was reported before;
    /// [`Refused::Halted`].
    pub fn handle_verdict(&mut self, now_ns: u64, member: MemberId, cause: Cause, grade: Grade) -> Result<(), Refused> {
        if cause.is_about_observer() {
            if self.halted.is_some() {
                return Err(self.refusals.count(Refused::Halted));
            }
            if cause != Cause::Rejoined {
                self.distrust(now_ns, self.config.distrust_ns);
            }
            if cause == Cause::Isolated && self.config.engine == Kind::Lowi {
                self.stop_lowi();
            }
            return Ok(());
        }
        if cause == Cause::ContractKept && self.halted.is_none() && !self.members.contains(member) {
            self.distrust_newcomers_until_ns =
                self.distrust_newcomers_until_ns.max(Some(now_ns.saturating_add(self.config.distrust_ns)));
            return Ok(());
        }
        self.known(member)?;
        let hints = !self.config.engine.needs_accuracy();
        match cause {
            _ if cause.ends_process() => self.ended(now_ns, member, grade),
            // Says nothing of the host's processes.
            Cause::AgentLost if hints => self.ended(now_ns, member, Grade::Inferred),
            Cause::ContractKept if hints => self.handle_alive(now_ns, member),
            Cause::ContractKept => {
                self.distrust(now_ns, self.config.distrust_ns);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The timing contract as a whole is broken (until further notice) or kept again.
    pub fn handle_contract(&mut self, now_ns: u64, kept: bool) {
        if kept {
            // That a member was late just now counts for as long as it did.
            self.distrust_until_ns.take_if(|until_ns| *until_ns == u64::MAX);
        } else {
            self.distrust(now_ns, u64::MAX);
        }
    }

    /// `member` was heard in the life that was reported over: the report was wrong.
    ///
    /// An engine that takes hints is told. For the others a report that has passed cannot be taken back: halt. What is asked for stays asked: a fence may come at any time.
    ///
    /// # Errors
    /// [`Refused::UnknownMember`], [`Refused::Halted`].
    pub fn handle_alive(&mut self, now_ns: u64, member: MemberId) -> Result<(), Refused> {
        self.known(member)?;
        if !self.config.engine.needs_accuracy() {
            // Also when this gate was made behind the report, at a change of the engine: whom it was told to may hold on to the hint.
            self.reports.remove(&member);
            self.actions.push_back(Action::Alive(member));
            // It does not concern this engine, but perhaps the next one.
            self.distrust(now_ns, self.config.distrust_ns);
        } else if self.reports.get(&member) == Some(&Report::Passed) {
            self.halt(Halted::Unconfirmed(member));
        } else {
            self.distrust(now_ns, self.config.distrust_ns);
        }
        Ok(())
    }

    /// The fence is confirmed: `member` neither runs nor sends.
    ///
    /// # Errors
    /// [`Refused::UnknownMember`]; [`Refused::Duplicate`] if the engine knows; [`Refused::Halted`]. A fence that nobody asked for is as good.
    pub fn handle_fenced(&mut self, _now_ns: u64, member: MemberId) -> Result<(), Refused> {
        self.known(member)?;
        self.pass(member)
    }

    /// The witness answers about `member`.
    ///
    /// # Errors
    /// [`Refused::UnknownMember`]; [`Refused::Malformed`] if it was not asked, [`Refused::Duplicate`] if the engine knows; [`Refused::Halted`].
    pub fn handle_witness(&mut self, _now_ns: u64, member: MemberId, answer: Answer) -> Result<(), Refused> {
        self.known(member)?;
        let asked = self.config.policy == Policy::Witness && self.config.engine.needs_accuracy();
        match (self.reports.get(&member), answer) {
            (Some(Report::Passed), Answer::Granted | Answer::Refused) => Err(self.refusals.count(Refused::Duplicate)),
            (Some(_), Answer::Expelled) if asked => {
                self.halt(Halted::Expelled);
                Ok(())
            }
            (Some(_), Answer::Granted) if asked => self.pass(member),
            (Some(_), Answer::Refused) if asked => {
                self.halt(Halted::Unconfirmed(member));
                Ok(())
            }
            _ => Err(self.refusals.count(Refused::Malformed)),
        }
    }

    /// From now on, these are the members.
    pub fn set_members(&mut self, members: MemberSet) {
        self.reports.retain(|member, _| members.contains(*member));
        // LOWI goes by the newcomer's own copies.
        if self.config.engine != Kind::Lowi && !self.members.covers(&members) {
            self.distrust_until_ns = self.distrust_until_ns.max(self.distrust_newcomers_until_ns.take());
        }
        self.members = members;
    }

    /// When [`Gate::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.halted.is_some() {
            return None;
        }
        let due = self.reports.values().filter_map(|report| match report {
            Report::Asked(at_ns) => Some(*at_ns),
            Report::Passed => None,
        });
        due.min()
    }

    /// The time has come: a fence is asked for again, a witness that did not answer has refused.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.halted.is_some() {
            return;
        }
        let due = self.reports.iter().filter(|(_, report)| matches!(report, Report::Asked(at_ns) if *at_ns <= now_ns));
        for member in due.map(|(&member, _)| member).collect::<Vec<_>>() {
            match self.config.policy {
                Policy::Witness => return self.halt(Halted::Unconfirmed(member)),
                Policy::Fence | Policy::TrustContract => self.ask_fence(now_ns, member),
            }
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A witness that is asked from now on has refused if it has not answered after so long.
    pub const fn set_witness_timeout(&mut self, timeout_ns: u64) {
        self.config.witness_timeout_ns = timeout_ns;
    }

    /// Its settings.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Whether silence proves something now.
    #[must_use]
    pub fn trusts_silence(&self, now_ns: u64) -> bool {
        self.distrust_until_ns.is_none_or(|until_ns| until_ns != u64::MAX && now_ns >= until_ns)
    }

    /// Why it stopped, if it did.
    #[must_use]
    pub const fn halted(&self) -> Option<Halted> {
        self.halted
    }

    /// What was refused.
    #[must_use]
    pub const fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Panics if its state is one that it must never be in.
    pub fn invariants(&self) {
        assert!(self.reports.keys().all(|member| self.members.contains(*member)), "only members are reported");
        let asks = self.reports.values().any(|report| matches!(report, Report::Asked(_)));
        assert!(!asks || (self.config.policy != Policy::TrustContract && self.config.engine.needs_accuracy()));
        assert!(self.halted.is_none() || matches!(self.actions.back(), None | Some(Action::Halt(_))), "nothing after the halt");
    }

    fn known(&mut self, member: MemberId) -> Result<(), Refused> {
        match self.halted {
            Some(_) => Err(self.refusals.count(Refused::Halted)),
            None if !self.members.contains(member) => Err(self.refusals.count(Refused::UnknownMember)),
            None => Ok(()),
        }
    }

    fn ended(&mut self, now_ns: u64, member: MemberId, grade: Grade) -> Result<(), Refused> {
        if member == self.me {
            self.halt(Halted::Expelled);
            return Ok(());
        }
        if grade == Grade::Certain || !self.config.engine.needs_accuracy() {
            return self.pass(member);
        }
        if self.reports.contains_key(&member) {
            return Err(self.refusals.count(Refused::Duplicate));
        }
        match self.config.policy {
            Policy::TrustContract if self.trusts_silence(now_ns) => return self.pass(member),
            // Its slots say who speaks; the shell says it again.
            Policy::TrustContract if self.config.engine == Kind::Lowi && self.config.lowi_judges_itself => {}
            Policy::TrustContract => self.halt(Halted::Unconfirmed(member)),
            Policy::Fence => self.ask_fence(now_ns, member),
            Policy::Witness => {
                self.reports.insert(member, Report::Asked(now_ns.saturating_add(self.config.witness_timeout_ns)));
                self.actions.push_back(Action::Ask(Ask::Witness { member }));
            }
        }
        Ok(())
    }

    fn ask_fence(&mut self, now_ns: u64, member: MemberId) {
        let again_ns = now_ns.saturating_add(self.config.fence_repeat_ns.max(1));
        self.reports.insert(member, Report::Asked(again_ns));
        self.actions.push_back(Action::Ask(Ask::Fence { member }));
    }

    fn pass(&mut self, member: MemberId) -> Result<(), Refused> {
        if member == self.me {
            self.halt(Halted::Expelled);
            return Ok(());
        }
        if self.reports.insert(member, Report::Passed) == Some(Report::Passed) {
            return Err(self.refusals.count(Refused::Duplicate));
        }
        // Whoever is known to be dead need not be asked about any more.
        self.actions.retain(
            |action| !matches!(action, Action::Ask(Ask::Fence { member: of } | Ask::Witness { member: of }) if *of == member),
        );
        self.actions.push_back(Action::Crash(member));
        Ok(())
    }

    fn distrust(&mut self, now_ns: u64, for_ns: u64) {
        if self.halted.is_some() {
            return;
        }
        let until_ns = now_ns.saturating_add(for_ns);
        self.distrust_until_ns = self.distrust_until_ns.max(Some(until_ns));
        if self.config.engine == Kind::Lowi && !self.config.lowi_judges_itself {
            self.stop_lowi();
        }
    }

    fn stop_lowi(&mut self) {
        if self.halted.is_none() {
            self.actions.push_back(Action::NetworkFault);
            self.halt(Halted::NetworkFault);
        }
    }

    fn halt(&mut self, why: Halted) {
        if self.halted.is_none() {
            self.halted = Some(why);
            self.actions.retain(|action| matches!(action, Action::Crash(_) | Action::NetworkFault));
            self.actions.push_back(Action::Halt(why));
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
