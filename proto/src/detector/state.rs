//! The states of a host as one observer sees it, and the only ways between them.

use std::fmt;

/// What an observer holds of a host, always of one incarnation of its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Heartbeats come as the contract says, on one path at least.
    Alive,
    /// Both paths are older than their timeouts; its kernel is being asked. Not condemned: it may simply resume.
    Late,
    /// Its agent is gone or stuck, its kernel answers. Nothing is claimed of its processes.
    AgentLost,
    /// Nothing answers on any path.
    Silent,
    /// Its agent said that it leaves; silence is expected.
    Left,
    /// Its agent said that it is started again: silence is expected until it is back, or the time that it named is over.
    Restarting,
}

impl State {
    /// Every state.
    pub const ALL: [State; 6] = [State::Alive, State::Late, State::AgentLost, State::Silent, State::Left, State::Restarting];

    /// The name used in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            State::Alive => "alive",
            State::Late => "late",
            State::AgentLost => "agent-lost",
            State::Silent => "silent-host",
            State::Left => "left",
            State::Restarting => "restarting",
        }
    }

    /// Whether this incarnation can still be heard: its heartbeats and notices count.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, State::Alive | State::Late | State::Restarting)
    }

    /// Whether an agent watches its processes now, as far as is known.
    #[must_use]
    pub const fn is_observed(self) -> bool {
        matches!(self, State::Alive | State::Late)
    }

    /// Whether a verdict cut this incarnation off: whatever it still sends is refused.
    #[must_use]
    pub const fn is_condemned(self) -> bool {
        matches!(self, State::AgentLost | State::Silent)
    }

    /// Whether its host may still be reachable as far as is known: it is a possible witness of our own connection.
    #[must_use]
    pub(super) const fn may_answer(self) -> bool {
        matches!(self, State::Alive | State::Late | State::AgentLost | State::Restarting)
    }

    /// Whether a host may go from here to `to` within one incarnation.
    #[must_use]
    pub fn may_become(self, to: State) -> bool {
        TRANSITIONS.iter().any(|t| t.from == self && t.to == to && !t.new_life)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One allowed step of a host's state.
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    /// From.
    pub from: State,
    /// To.
    pub to: State,
    /// Whether the step starts a new incarnation.
    pub new_life: bool,
    /// What makes it happen.
    pub why: &'static str,
    /// The verdict that says so.
    pub verdict: &'static str,
}

const fn step(from: State, to: State, why: &'static str, verdict: &'static str) -> Transition {
    Transition { from, to, new_life: false, why, verdict }
}

const fn life(from: State, why: &'static str, verdict: &'static str) -> Transition {
    Transition { from, to: State::Alive, new_life: true, why, verdict }
}

/// Every allowed step. A host not seen before starts in [`State::Alive`] with the verdict `returned`.
pub const TRANSITIONS: [Transition; 17] = [
    step(State::Alive, State::Late, "both paths older than their timeouts", "contract-broken"),
    step(State::Alive, State::Left, "leave notice", "left"),
    step(State::Alive, State::Restarting, "restart notice", "none"),
    step(State::Late, State::Alive, "heartbeat", "contract-kept"),
    step(State::Late, State::Left, "leave notice", "left"),
    step(State::Late, State::Restarting, "restart notice", "none"),
    step(State::Late, State::AgentLost, "port unreachable, or kernel answers until the agent's timeout", "agent-lost"),
    step(State::Late, State::Silent, "no answer on any path", "silent-host"),
    step(State::AgentLost, State::Silent, "no answer any more", "silent-host"),
    step(State::Restarting, State::Late, "not back in time", "contract-broken"),
    step(State::Restarting, State::Left, "leave notice, or not back in time and never answered", "left"),
    life(State::Alive, "newer incarnation announced", "agent-lost, returned"),
    life(State::Late, "newer incarnation announced", "agent-lost, returned"),
    life(State::AgentLost, "newer incarnation announced", "returned"),
    life(State::Silent, "newer incarnation announced", "returned"),
    life(State::Left, "newer incarnation announced", "returned"),
    life(State::Restarting, "newer incarnation announced", "returned"),
];

/// The table above as text: what the documentation of [`super`] shows, kept equal by a test.
#[must_use]
pub fn draw() -> String {
    TRANSITIONS
        .iter()
        .map(|t| {
            let arrow = if t.new_life { "=>" } else { "->" };
            format!("{:<11} {arrow} {:<11}  {:<61} {}\n", t.from.name(), t.to.name(), t.why, t.verdict)
        })
        .collect()
}
