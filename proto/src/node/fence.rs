//! The fence of this host, as its node sees it: the rule that moves t_valid ([`crate::fence`]), what was promised, and what closed it.
//!
//! The shell has the gates. A [`Step`] says what to do with them; a shell whose gate does not obey closes the fence
//! ([`HostFence::close`]), and so all gates of it.
//!
//! ```text
//! heartbeat left ─► sent, completed | alone ─┐
//! report of another host ─► confirmed ───────┴► Rule ─► Step ─► gates
//! report that gives this host up ─► Judgement: shut, begin anew, or neither
//! ```
//!
//! A report of one against a majority that confirms is the reporter's fault ([`Judgement::Mistaken`]): `docs/fence.md`, *Whoever is
//! outvoted*.

use crate::fence::{Config, Extension, Rule};
use fide_wire::PATHS;
use fide_wire::verdict::{FenceMode, FencePromise, FencedWhy};

/// What is to be done with the gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// They are opened up to a later t_valid. `first`: nothing was promised before.
    Extend {
        /// Up to when.
        extension: Extension,
        /// From now on there is a promise.
        first: bool,
    },
    /// They are closed.
    Close(FencedWhy),
}

/// What a report that gives this host up means for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Of an incarnation that is over here, too.
    Nothing,
    /// This incarnation is over: a new one begins.
    BeginAnew,
    /// Others may have acted on what was promised to them: the fence shuts.
    Shut,
    /// It is shut already, and an operator opens it.
    IsShut,
    /// The reporter is outvoted: enough others confirm this host without it. It hears that, and this host goes on.
    Mistaken,
}

/// A report that gives this host up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accusation {
    /// Who has given it up.
    pub by: u32,
    /// Which incarnation.
    pub incarnation: u32,
    /// The reporter rests on nothing that was promised, since its own fence ended its part in that.
    pub former: bool,
    /// The reporter has said that this host is fenced, too: somebody may have acted on that.
    pub is_fenced: bool,
}

/// When and why it closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Since when.
    pub since_ns: u64,
    /// Why.
    pub why: FencedWhy,
}

/// The fence of this host.
#[derive(Clone, Debug)]
pub struct HostFence {
    rule: Rule,
    promise: FencePromise,
    closed: Option<Closed>,
    /// The first incarnation behind the gates as they are open now.
    open_since: u32,
    /// Gates that a former life armed close when the promise says, whatever becomes of this one
    /// ([`HostFence::inherit`]).
    inherited: bool,
}

impl HostFence {
    /// Not armed: nothing was promised. `host`: the promise is about the whole host.
    #[must_use]
    pub fn new(config: Config, host: bool, incarnation: u32) -> Self {
        let promise = FencePromise { timeout_ns: config.timeout_ns, mode: config.mode, host };
        Self { rule: Rule::new(config), promise, closed: None, open_since: incarnation, inherited: false }
    }

    // ---- inputs ---------------------------------------------------------------------------------------------

    /// A former life left every gate open until `valid_ns`, which nobody moves but by the rule. If
    /// that is no later than a heartbeat that is sent from now on would allow, others may rely on
    /// this life's promise before any of its heartbeats counts: a host that falls silent just behind
    /// a restart of its agent is fenced when they think so.
    pub fn inherit(&mut self, valid_ns: u64, now_ns: u64) {
        self.inherited = valid_ns <= now_ns.saturating_add(self.rule.config().valid_for_ns());
    }

    /// A heartbeat was handed over ([`Rule::sent`]).
    pub fn sent(&mut self, number: u64, read_ns: u64, call: u64, taken: [bool; PATHS]) {
        self.rule.sent(number, read_ns, call, taken);
    }

    /// The interfaces are done with everything up to these calls, as of `known_ns`.
    #[must_use]
    pub fn completed(&mut self, through: [u64; PATHS], known_ns: u64) -> Step {
        let extension = self.rule.completed(through, known_ns);
        self.step(extension, known_ns)
    }

    /// Another host confirms a heartbeat of this one.
    #[must_use]
    pub fn confirmed(&mut self, node: u32, number: u64, now_ns: u64) -> Step {
        let extension = self.rule.confirmed(node, number, now_ns);
        self.step(extension, now_ns)
    }

    /// Nobody has to confirm anything, if it is so.
    #[must_use]
    pub fn alone(&mut self, now_ns: u64) -> Step {
        let extension = self.rule.alone(now_ns);
        self.step(extension, now_ns)
    }

    fn step(&mut self, extension: Option<Extension>, now_ns: u64) -> Step {
        match extension {
            _ if self.closed.is_some() => Step::Nothing,
            Some(extension) => Step::Extend { extension, first: self.rule.extensions().0 == 1 },
            None if self.rule.is_closed() => {
                self.close(FencedWhy::RanOut, now_ns);
                Step::Close(FencedWhy::RanOut)
            }
            None => Step::Nothing,
        }
    }

    /// Who observes this host ([`Rule::members`]).
    pub fn members(&mut self, nodes: impl IntoIterator<Item = u32>) {
        self.rule.members(nodes);
    }

    /// The gates are closed, for good.
    pub fn close(&mut self, why: FencedWhy, since_ns: u64) {
        self.rule.close();
        self.closed = Some(Closed { since_ns, why });
    }

    /// The gates open again for an incarnation that nobody has heard of yet. Returns t_valid.
    pub fn recover(&mut self, incarnation: u32, now_ns: u64) -> u64 {
        (self.closed, self.open_since) = (None, incarnation);
        self.rule.recover(now_ns)
    }

    /// This host began a new incarnation while the gates are as they were.
    pub fn renew(&mut self, incarnation: u32) {
        self.rule.renew();
        if self.promise().is_none() {
            self.open_since = incarnation;
        }
    }

    /// Another host has given `incarnation` up. This one is `own`. `former`: that host rests on nothing that was promised, since its own
    /// fence ended its part in that.
    #[must_use]
    pub fn given_up(&self, incarnation: u32, own: u32, former: bool) -> Judgement {
        let promised = !former && self.promise().is_some();
        // What runs behind an open fence has run since it was opened, whatever incarnation was begun for somebody's former one.
        let from = if promised { self.open_since } else { own };
        match () {
            () if incarnation < from => Judgement::Nothing,
            () if self.closed.is_some() => Judgement::IsShut,
            () if promised => Judgement::Shut,
            () => Judgement::BeginAnew,
        }
    }

    /// As [`HostFence::given_up`], unless the reporter is outvoted. Its word binds it from now on: what it confirms counts for nothing
    /// until [`HostFence::unbar`].
    pub fn weigh(&mut self, accusation: &Accusation, own: u32, now_ns: u64) -> Judgement {
        let Accusation { by, incarnation, former, is_fenced } = *accusation;
        let judgement = self.given_up(incarnation, own, former);
        if !matches!(judgement, Judgement::Shut | Judgement::BeginAnew) || incarnation != own {
            return judgement;
        }
        if self.promise().is_some() {
            self.rule.bar(by, true);
        }
        if !is_fenced && self.rule.is_kept_open_without(by, now_ns) { Judgement::Mistaken } else { judgement }
    }

    /// Nobody counts the word of this host any more with which it gave this one up.
    pub fn unbar(&mut self, node: u32) {
        self.rule.bar(node, false);
    }

    // ---- outputs --------------------------------------------------------------------------------------------

    /// When and why it closed, if it is.
    #[must_use]
    pub const fn closed(&self) -> Option<Closed> {
        self.closed
    }

    /// Whether nothing that this host asks leaves it.
    #[must_use]
    pub const fn is_mute(&self) -> bool {
        self.closed.is_some() && self.promise.host
    }

    /// What others may rely on, once it is so.
    #[must_use]
    pub fn promise(&self) -> Option<FencePromise> {
        (self.inherited || self.rule.valid_ns().is_some()).then_some(self.promise)
    }

    /// What it will promise once it is armed, if others must confirm heartbeats for that.
    #[must_use]
    pub fn starting(&self) -> Option<FencePromise> {
        let is_starting = self.closed.is_none() && self.promise().is_none() && self.promise.mode != FenceMode::Sent;
        is_starting.then_some(self.promise)
    }

    /// What counts.
    #[must_use]
    pub const fn mode(&self) -> FenceMode {
        self.promise.mode
    }

    /// The rule, for reports.
    #[must_use]
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::Paths;
    use fide_wire::verdict::Confirmers;

    const TIMEOUT: u64 = 1_000_000;

    fn fence() -> HostFence {
        let mode = FenceMode::Acknowledged(Confirmers::All);
        let config =
            Config { timeout_ns: TIMEOUT, margin_ns: 100, drift_ppm: 0, mode, paths: Paths::Both, configured: [true; PATHS] };
        let mut fence = HostFence::new(config, true, 5);
        fence.members([7]);
        fence
    }

    fn armed() -> HostFence {
        let mut fence = fence();
        fence.sent(1, 1_000, 1, [true; PATHS]);
        let extension = Extension { known_ns: 2_000, valid_ns: 1_000 + TIMEOUT - 100 };
        assert_eq!(fence.confirmed(7, 1, 2_000), Step::Extend { extension, first: true });
        fence
    }

    #[test]
    fn nothing_is_promised_before_a_heartbeat_counted() {
        assert_eq!(fence().promise(), None);
        assert_eq!(armed().promise().map(|promise| promise.timeout_ns), Some(TIMEOUT));
    }

    #[test]
    fn what_a_former_life_left_open_is_promised_at_once_unless_it_is_open_for_longer() {
        let until = |valid_ns: u64| {
            let mut fence = fence();
            fence.inherit(valid_ns, 5_000);
            fence.promise()
        };
        assert_eq!(until(5_000 + TIMEOUT - 100).map(|promise| promise.timeout_ns), Some(TIMEOUT));
        assert_eq!(until(5_000 + TIMEOUT - 99), None, "a longer timeout was in the configuration then");
        // Its own word is not enough before others have confirmed anything.
        let mut fence = fence();
        fence.inherit(6_000, 5_000);
        fence.members([]);
        fence.sent(1, 5_500, 1, [true; PATHS]);
        assert_eq!(fence.alone(5_600), Step::Nothing);
    }

    #[test]
    fn what_was_confirmed_of_a_former_incarnation_does_not_count() {
        let mut fence = armed();
        fence.members([7, 8]);
        fence.sent(2, 3_000, 2, [true; PATHS]);
        assert_eq!(fence.confirmed(8, 1, 4_000), Step::Nothing);
        assert_eq!(fence.confirmed(7, 2, 5_000), Step::Nothing, "8 must confirm it, too");
        fence.renew(6);
        fence.sent(3, 6_000, 3, [true; PATHS]);
        assert_eq!(fence.confirmed(8, 3, 7_000), Step::Nothing, "7 may have given the former one up");
        assert!(matches!(fence.confirmed(7, 3, 8_000), Step::Extend { .. }));
    }

    #[test]
    fn what_is_confirmed_too_late_closes_it_once() {
        let mut fence = armed();
        fence.sent(2, 500_000, 2, [true; PATHS]);
        assert_eq!(fence.confirmed(7, 2, TIMEOUT + 1_000), Step::Close(FencedWhy::RanOut));
        assert_eq!(fence.closed(), Some(Closed { since_ns: TIMEOUT + 1_000, why: FencedWhy::RanOut }));
        assert_eq!(fence.confirmed(7, 2, TIMEOUT + 2_000), Step::Nothing, "it is told once");
        assert!(fence.is_mute());
    }

    #[test]
    fn who_was_given_up_behind_a_promise_shuts_and_without_one_begins_anew() {
        let bare = fence();
        assert_eq!(bare.given_up(5, 5, false), Judgement::BeginAnew);
        assert_eq!(bare.given_up(4, 5, false), Judgement::Nothing);
        let mut fence = armed();
        assert_eq!(fence.given_up(5, 5, false), Judgement::Shut);
        assert_eq!(fence.given_up(5, 5, true), Judgement::BeginAnew, "by somebody whose own fence ended its part");
        fence.renew(6);
        assert_eq!(fence.given_up(5, 6, false), Judgement::Shut, "the gates have been open since incarnation 5");
        assert_eq!(fence.given_up(5, 6, true), Judgement::Nothing);
        fence.close(FencedWhy::GivenUp, 3_000);
        assert_eq!(fence.given_up(6, 6, false), Judgement::IsShut);
        fence.recover(7, 4_000);
        assert_eq!(fence.given_up(6, 7, false), Judgement::Nothing, "an operator has opened it since");
        assert_eq!(fence.given_up(7, 7, false), Judgement::Shut);
    }

    #[test]
    fn a_new_incarnation_before_any_promise_is_the_first_behind_the_gates() {
        let mut fence = fence();
        fence.renew(9);
        fence.sent(1, 1_000, 1, [true; PATHS]);
        assert!(matches!(fence.confirmed(7, 1, 2_000), Step::Extend { first: true, .. }));
        assert_eq!(fence.given_up(5, 9, false), Judgement::Nothing);
        assert_eq!(fence.given_up(9, 9, false), Judgement::Shut);
    }
}
