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
//!
//! # How a closed fence opens again
//! In mode *acknowledged* what others confirm and meet a host by (heartbeats without content, path reports,
//! introductions, tables) passes closed gates for a while, and nothing of applications does
//! ([`HostFence::passes`]). The gates open once as many hosts as the rule asks for have confirmed a heartbeat that was
//! *sent after the gates had closed*, and t_valid counts from the clock before that one:
//! * by itself where it closed because confirmations were late (all hosts stood still for a moment), and until somebody
//!   says that it has given this incarnation up;
//! * in a new incarnation, for as long as it takes, where an operator recovers it.
//!
//! **Invariant.** Who confirms heartbeat k has not given this incarnation up, and waits for a whole timeout from its
//! arrival, which is after the clock read before it was sent. So the promise holds as behind any extension
//! ([`crate::fence`]). The first half of the rule, *known before the former t_valid was over*, is there because others
//! may have given up by then: here they have said, later, that they have not.

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
    /// Enough others hear this host behind its closed gates: they may open ([`HostFence::reopen`]).
    MayReopen,
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

/// Heartbeats pass closed gates for a timeout, but at least and at most for so long: others take this host for alive
/// meanwhile, although nothing else leaves it. If the host stands still once more in that time, it begins again.
const PASSES_NS: std::ops::RangeInclusive<u64> = 500_000_000..=1_000_000_000;

/// For how long they pass once enough others have confirmed one. Before the gates open, the shell
/// ends what dead processes left, and asks the kernel for that: seconds, where another program holds
/// the kernel's lock. A fence that waited no longer than [`PASSES_NS`] would wait for a person then.
const OPENS_WITHIN_NS: u64 = 10_000_000_000;

/// What a closed fence waits for.
#[derive(Clone, Debug)]
struct Reopening {
    /// Of what was sent since.
    rule: Rule,
    /// Heartbeats pass the gates until then. `None`: none has yet.
    until_ns: Option<u64>,
    /// The clock before the last one.
    sent_ns: u64,
    /// An operator recovers it.
    is_ordered: bool,
    /// [`Step::MayReopen`] was said.
    is_told: bool,
    /// Enough others have ever confirmed a heartbeat.
    is_confirmed: bool,
}

impl Reopening {
    fn of(rule: &Rule, is_ordered: bool) -> Self {
        let until_ns = is_ordered.then_some(u64::MAX);
        Self { rule: rule.anew(), until_ns, sent_ns: 0, is_ordered, is_told: false, is_confirmed: false }
    }

    /// A heartbeat is handed over. `lasts_ns`: for how long they pass from the first one on.
    fn sent(&mut self, read_ns: u64, lasts_ns: u64) {
        let from_now_ns = read_ns.saturating_add(lasts_ns);
        let until_ns = self.until_ns.get_or_insert(from_now_ns);
        let stood_still = read_ns.saturating_sub(self.sent_ns) > lasts_ns / 2;
        if self.sent_ns < *until_ns && stood_still {
            *until_ns = from_now_ns.max(*until_ns);
        }
        self.sent_ns = read_ns;
    }

    /// Enough others have confirmed a heartbeat. Whether that is to be told.
    fn confirmed(&mut self, now_ns: u64) -> bool {
        if !std::mem::replace(&mut self.is_confirmed, true) {
            let until_ns = now_ns.saturating_add(OPENS_WITHIN_NS);
            self.until_ns = self.until_ns.map(|before_ns| before_ns.max(until_ns));
        }
        !std::mem::replace(&mut self.is_told, true)
    }

    fn passes(&self, now_ns: u64) -> bool {
        self.until_ns.is_none_or(|until_ns| now_ns < until_ns)
    }

    fn begin_again(&mut self) {
        (self.rule, self.is_told) = (self.rule.anew(), false);
    }
}

/// The fence of this host.
#[derive(Clone, Debug)]
pub struct HostFence {
    rule: Rule,
    reopening: Option<Reopening>,
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
        let rule = Rule::new(config);
        Self { rule, reopening: None, promise, closed: None, open_since: incarnation, inherited: false }
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
        if self.closed.is_none() {
            return self.rule.sent(number, read_ns, call, taken);
        }
        let lasts_ns = self.promise.timeout_ns.clamp(*PASSES_NS.start(), *PASSES_NS.end());
        let Some(reopening) = &mut self.reopening else { return };
        reopening.sent(read_ns, lasts_ns);
        if reopening.passes(read_ns) {
            reopening.rule.sent(number, read_ns, call, taken);
        }
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
        if let Some(reopening) = &mut self.reopening {
            let counts = reopening.rule.confirmed(node, number, now_ns).is_some();
            if reopening.rule.is_closed() {
                reopening.begin_again();
            }
            return if counts && reopening.confirmed(now_ns) { Step::MayReopen } else { Step::Nothing };
        }
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
        let nodes: Vec<u32> = nodes.into_iter().collect();
        if let Some(reopening) = &mut self.reopening {
            reopening.rule.members(nodes.iter().copied());
        }
        self.rule.members(nodes);
    }

    /// The gates are closed. Where others were only late they may open again by themselves.
    pub fn close(&mut self, why: FencedWhy, since_ns: u64) {
        self.rule.close();
        self.closed = Some(Closed { since_ns, why });
        self.reopening = (why == FencedWhy::RanOut && self.mode() != FenceMode::Sent).then(|| Reopening::of(&self.rule, false));
    }

    /// A closed fence does not open by itself any more.
    pub fn stay_closed(&mut self, why: FencedWhy) {
        if self.reopening.take().is_some()
            && let Some(closed) = &mut self.closed
        {
            closed.why = why;
        }
    }

    /// An operator recovers a closed fence, for `incarnation`, which nobody has heard of yet. Where nobody has to
    /// confirm anything, the gates open now: returns t_valid. Otherwise they open when others have ([`HostFence::reopen`]).
    pub fn recover(&mut self, incarnation: u32, now_ns: u64) -> Option<u64> {
        self.open_since = incarnation;
        if self.mode() != FenceMode::Sent && self.rule.observers().next().is_some() {
            let reopening = self.reopening.insert(Reopening::of(&self.rule, true));
            reopening.rule.unbar_all();
            return None;
        }
        (self.closed, self.reopening) = (None, None);
        Some(self.rule.recover(now_ns))
    }

    /// The gates open again for this incarnation, if enough others still hear this host: returns t_valid.
    pub fn reopen(&mut self, incarnation: u32, now_ns: u64) -> Option<u64> {
        let valid_ns = self.may_reopen_until(now_ns)?;
        self.rule = self.reopening.take()?.rule;
        (self.closed, self.open_since) = (None, incarnation);
        Some(valid_ns)
    }

    /// They did not open: the next confirmation says again that they may.
    pub fn ask_again(&mut self) {
        if let Some(reopening) = &mut self.reopening {
            reopening.is_told = false;
        }
    }

    /// Up to when the gates would be open, if they were opened now.
    #[must_use]
    pub fn may_reopen_until(&self, now_ns: u64) -> Option<u64> {
        self.reopening.as_ref()?.rule.valid_ns().filter(|valid_ns| now_ns < *valid_ns)
    }

    /// This host began a new incarnation while the gates are as they were.
    pub fn renew(&mut self, incarnation: u32) {
        self.rule.renew();
        match &mut self.reopening {
            Some(reopening) if reopening.is_ordered => {
                reopening.begin_again();
                self.open_since = incarnation;
            }
            Some(reopening) => reopening.rule.renew(),
            None => {}
        }
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
            () if self.is_recovering() => Judgement::BeginAnew,
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
        if let Some(reopening) = &mut self.reopening {
            reopening.rule.bar(node, false);
        }
    }

    // ---- outputs --------------------------------------------------------------------------------------------

    /// When and why it closed, if it is.
    #[must_use]
    pub const fn closed(&self) -> Option<Closed> {
        self.closed
    }

    /// Whether heartbeats and path reports are to pass the closed gates.
    #[must_use]
    pub fn passes(&self, now_ns: u64) -> bool {
        self.reopening.as_ref().is_some_and(|reopening| reopening.passes(now_ns))
    }

    /// Whether an operator has ordered a closed fence to open, and others have not yet confirmed enough.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        self.reopening.as_ref().is_some_and(|reopening| reopening.is_ordered)
    }

    /// Whether the promise is about the whole host.
    #[must_use]
    pub const fn guards_host(&self) -> bool {
        self.promise.host
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

    /// The same, of who must confirm now: of a closed fence that may open again, what was sent since.
    #[must_use]
    pub fn waiting_rule(&self) -> &Rule {
        self.reopening.as_ref().map_or(&self.rule, |reopening| &reopening.rule)
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
        assert_eq!(fence.recover(7, 4_000), None, "7 must confirm it first");
        assert_eq!(fence.given_up(6, 7, false), Judgement::Nothing, "of the one before");
        assert_eq!(fence.given_up(7, 7, false), Judgement::BeginAnew, "nothing has left it yet");
        fence.sent(3, 5_000, 3, [true; PATHS]);
        assert_eq!(fence.confirmed(7, 3, 6_000), Step::MayReopen);
        assert_eq!(fence.reopen(7, 7_000), Some(5_000 + TIMEOUT - 100));
        assert_eq!(fence.given_up(6, 7, false), Judgement::Nothing, "an operator has opened it since");
        assert_eq!(fence.given_up(7, 7, false), Judgement::Shut);
    }

    /// An armed fence that closed because nothing was confirmed in time.
    fn late() -> HostFence {
        let mut fence = armed();
        fence.sent(2, 500_000, 2, [true; PATHS]);
        assert_eq!(fence.confirmed(7, 2, TIMEOUT + 1_000), Step::Close(FencedWhy::RanOut));
        fence
    }

    #[test]
    fn a_fence_that_closed_late_may_open_again_when_enough_confirm_what_was_sent_since() {
        let mut fence = late();
        fence.members([7, 8, 9]);
        let closed_ns = TIMEOUT + 1_000;
        assert!(fence.passes(closed_ns));
        assert_eq!(fence.confirmed(7, 2, closed_ns + 1), Step::Nothing, "that was sent before");
        let read_ns = closed_ns + 2;
        fence.sent(3, read_ns, 3, [true; PATHS]);
        assert_eq!(fence.reopen(6, read_ns), None);
        assert_eq!(fence.confirmed(7, 3, read_ns + 10), Step::MayReopen);
        assert_eq!(fence.confirmed(7, 3, read_ns + 11), Step::Nothing, "it is told once");
        fence.ask_again();
        fence.sent(4, read_ns + TIMEOUT / 2, 4, [true; PATHS]);
        assert_eq!(fence.confirmed(7, 4, read_ns + TIMEOUT / 2 + 1), Step::MayReopen);
        let valid_ns = read_ns + TIMEOUT / 2 + TIMEOUT - 100;
        assert_eq!(fence.may_reopen_until(valid_ns), None);
        assert_eq!(fence.reopen(6, valid_ns - 1), Some(valid_ns));
        assert_eq!((fence.closed(), fence.passes(valid_ns)), (None, false));
        assert_eq!(fence.rule().valid_ns(), Some(valid_ns));
    }

    #[test]
    fn heartbeats_pass_the_closed_gates_of_a_late_host_for_a_while() {
        let mut fence = late();
        fence.sent(3, 7_000_000, 3, [true; PATHS]);
        assert!(fence.passes(7_000_000 + PASSES_NS.start() - 1));
        assert!(!fence.passes(7_000_000 + PASSES_NS.start()));
        for why in [FencedWhy::Operator, FencedWhy::GivenUp, FencedWhy::FormerLife] {
            let mut fence = armed();
            fence.close(why, 5_000);
            assert!(!fence.passes(5_000), "{why:?}");
        }
    }

    #[test]
    fn a_late_host_that_stands_still_once_more_is_given_its_time_again() {
        let lasts_ns = PASSES_NS.start();
        let mut fence = late();
        fence.sent(3, 7_000_000, 3, [true; PATHS]);
        // Longer than its time.
        let read_ns = 7_000_000 + 3 * lasts_ns;
        assert!(!fence.passes(read_ns));
        fence.sent(4, read_ns, 4, [true; PATHS]);
        assert!(fence.passes(read_ns + lasts_ns - 1) && !fence.passes(read_ns + lasts_ns));
        fence.sent(5, read_ns + 1_000, 5, [true; PATHS]);
        assert_eq!(fence.confirmed(7, 5, read_ns + 2_000), Step::MayReopen);
        // Not if its time was over while it ran.
        let mut fence = late();
        for (number, read_ns) in (3..).zip((7_000_000..8_000_000 + lasts_ns).step_by(10_000_000)) {
            fence.sent(number, read_ns, number, [true; PATHS]);
        }
        let over_ns = 7_000_000 + 3 * lasts_ns;
        fence.sent(1_000, over_ns, 1_000, [true; PATHS]);
        assert!(!fence.passes(over_ns));
    }

    #[test]
    fn a_late_host_that_is_confirmed_waits_for_its_shell_and_not_for_ever() {
        let mut fence = late();
        let read_ns = 7_000_000;
        fence.sent(3, read_ns, 3, [true; PATHS]);
        assert_eq!(fence.confirmed(7, 3, read_ns + 10), Step::MayReopen);
        // The shell waits for the kernel meanwhile, for seconds.
        let mut sent = 3;
        for at_ns in (read_ns + 20..read_ns + 9_000_000_000).step_by(TIMEOUT as usize / 4) {
            sent += 1;
            fence.sent(sent, at_ns, sent, [true; PATHS]);
            assert_eq!(fence.confirmed(7, sent, at_ns + 10), Step::Nothing, "it is told once");
        }
        assert!(fence.may_reopen_until(read_ns + 9_000_000_000).is_some());
        fence.ask_again();
        assert!(!fence.passes(read_ns + 10 + OPENS_WITHIN_NS));
        assert!(fence.reopen(6, read_ns + 9_000_000_000).is_some());
    }

    #[test]
    fn a_late_host_that_somebody_gave_up_stays_closed() {
        let mut fence = late();
        assert_eq!(fence.given_up(5, 5, false), Judgement::IsShut);
        fence.stay_closed(FencedWhy::GivenUp);
        fence.sent(3, 2_000_000, 3, [true; PATHS]);
        assert_eq!(fence.confirmed(7, 3, 2_000_001), Step::Nothing);
        assert_eq!(fence.closed().map(|closed| closed.why), Some(FencedWhy::GivenUp));
        assert!(!fence.passes(2_000_001));
    }

    #[test]
    fn a_fence_that_recovers_counts_what_its_own_incarnation_sent() {
        let mut fence = late();
        fence.stay_closed(FencedWhy::GivenUp);
        assert_eq!(fence.recover(6, 3_000_000), None);
        assert!(fence.is_recovering() && fence.passes(u64::MAX - 1));
        fence.sent(9, 3_000_001, 9, [true; PATHS]);
        fence.renew(7);
        assert_eq!(fence.confirmed(7, 9, 3_000_002), Step::Nothing, "of the incarnation before");
        fence.sent(10, 3_000_003, 10, [true; PATHS]);
        assert_eq!(fence.confirmed(7, 10, 3_000_004), Step::MayReopen);
        let mut alone = late();
        alone.members([]);
        assert_eq!(alone.recover(6, 3_000_000), Some(3_000_000 + TIMEOUT - 100), "nobody has to confirm anything");
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
