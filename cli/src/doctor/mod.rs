//! Examination of a host: what it can and cannot do, what each missing thing costs, what to do about it.
//!
//! Each part asks the host for facts and has them judged by pure functions, which is what the tests test:
//! [`kernel`] (version, BTF, lockdown, privileges, clocks), [`bpf`] (programs really loaded and attached), [`network`]
//! (interfaces, paths, multicast), [`timing`] (priorities, sleep states, stolen time), [`jitter`] (what the lane finds to disturb
//! it, and a measurement), [`fence`] (gates really made, what the agent guards), [`agent`] (program, configuration, whether it runs). [`Report::of`] sums up.

pub mod agent;
pub mod bpf;
pub mod fence;
pub mod files;
pub mod jitter;
pub mod kernel;
pub mod network;
pub mod render;
pub mod timing;

use serde::Serialize;

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// As it should be.
    Ok,
    /// Could not be tried.
    Unknown,
    /// Works, but slower or with less certainty.
    Degraded,
    /// Not there.
    Missing,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// For programs: always the same for the same question.
    pub item: &'static str,
    /// The interface or the jitter source, where a question is asked of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// For people.
    pub title: String,
    /// How it stands.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What it costs that it is not better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub costs: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The agent cannot do its work without it.
    pub essential: bool,
}

impl Item {
    /// As it should be.
    pub fn ok(item: &'static str, title: &str, found: impl Into<String>) -> Self {
        Item {
            item,
            of: None,
            title: title.into(),
            state: State::Ok,
            found: found.into(),
            costs: None,
            advice: None,
            essential: false,
        }
    }

    /// Not as it should be.
    pub fn worse(item: &'static str, title: &str, state: State, found: impl Into<String>, costs: &str, advice: &str) -> Self {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_string());
        Item { state, costs: some(costs), advice: some(advice), ..Item::ok(item, title, found) }
    }

    /// Of this interface or source.
    #[must_use]
    pub fn of(mut self, of: &str) -> Self {
        self.of = Some(of.into());
        self
    }

    /// The agent cannot do without.
    #[must_use]
    pub fn essential(mut self) -> Self {
        self.essential = true;
        self
    }
}

/// A heading and what belongs under it.
#[derive(Clone, Debug)]
pub struct Group {
    /// The heading.
    pub title: &'static str,
    /// The findings.
    pub items: Vec<Item>,
}

/// What it comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Always `summary`.
    pub item: &'static str,
    /// Whether the agent can work here.
    pub works: bool,
    /// `xdp-native`, `xdp-generic`, `udp`, or `unknown` when it could not be tried.
    pub receive: String,
    /// `packet` or `udp`.
    pub send: String,
    /// `tracepoint`, `pidfd`, or `unknown`.
    pub exit_watch: String,
    /// `shared` or `shared without real-time priority`.
    pub profile: String,
    /// How many paths there are to use.
    pub paths: usize,
    /// How many findings are of each kind.
    pub ok: usize,
    /// Could not be tried.
    pub unknown: usize,
    /// Work less well.
    pub degraded: usize,
    /// Not there.
    pub missing: usize,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// By heading.
    pub groups: Vec<Group>,
    /// What it comes to.
    pub summary: Summary,
}

impl Report {
    /// Sums up. `paths`: how many interfaces would be used.
    pub fn of(groups: Vec<Group>, paths: usize) -> Self {
        let all = || groups.iter().flat_map(|g| &g.items);
        let state = |item: &str| all().find(|i| i.item == item).map(|i| i.state);
        let number = |state: State| all().filter(|i| i.state == state).count();
        // The worst interface decides: one contract holds for all paths.
        let receive = match state("bpf-load") {
            Some(State::Missing | State::Degraded) => "udp",
            Some(State::Ok) => match all().filter(|i| i.item == "xdp").map(|i| i.state).max() {
                Some(State::Ok) => "xdp-native",
                Some(State::Degraded) => "xdp-generic",
                Some(State::Missing) => "udp",
                Some(State::Unknown) | None => "unknown",
            },
            _ => "unknown",
        };
        let exit_watch = match state("exit-watch") {
            Some(State::Ok) => "tracepoint",
            Some(State::Missing | State::Degraded) => "pidfd",
            _ => "unknown",
        };
        let send = if state("qdisc-bypass") == Some(State::Ok) { "packet" } else { "udp" };
        let profile = if state("sched-fifo") == Some(State::Ok) { "shared" } else { "shared without real-time priority" };
        let summary = Summary {
            item: "summary",
            works: !all().any(|i| i.essential && i.state == State::Missing),
            receive: receive.into(),
            send: send.into(),
            exit_watch: exit_watch.into(),
            profile: profile.into(),
            paths,
            ok: number(State::Ok),
            unknown: number(State::Unknown),
            degraded: number(State::Degraded),
            missing: number(State::Missing),
        };
        Report { groups, summary }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A report with these findings.
    pub fn report(items: Vec<Item>) -> Report {
        Report::of(vec![Group { title: "All", items }], 2)
    }

    #[test]
    fn the_worst_interface_decides_how_packets_are_received() {
        let load = Item::ok("bpf-load", "", "");
        let xdp = |state| Item { state, ..Item::ok("xdp", "", "") };
        let receive = |items| report(items).summary.receive;
        assert_eq!(receive(vec![load.clone(), xdp(State::Ok), xdp(State::Ok)]), "xdp-native");
        assert_eq!(receive(vec![load.clone(), xdp(State::Ok), xdp(State::Degraded)]), "xdp-generic");
        assert_eq!(receive(vec![load.clone(), xdp(State::Unknown)]), "unknown");
        let refused = Item { state: State::Missing, ..load };
        assert_eq!(receive(vec![refused, xdp(State::Ok)]), "udp");
    }

    #[test]
    fn only_what_is_essential_keeps_the_agent_from_working() {
        let missing = |essential| Item { essential, state: State::Missing, ..Item::ok("x", "", "") };
        assert!(report(vec![missing(false)]).summary.works);
        assert!(!report(vec![missing(true)]).summary.works);
    }
}
