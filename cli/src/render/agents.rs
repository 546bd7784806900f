//! `fide status --agents`: every agent, as one of them knows it.

use super::state_paint;
use crate::style::{Paint, Style};
use crate::table::{Cell, Table};
use fide_wire::control::{HostKeys, HostStatus, Status};
use serde::Serialize;
use std::fmt::Write as _;

/// One agent, for `--json` and for a terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Agent {
    /// Its host.
    pub host: String,
    /// How that is, as the agent that was asked judges it; `this host`: that one.
    pub state: String,
    /// Its version; absent: it has not said so, or is of a version that does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What fails together with its host; absent: not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its fence: what it has promised, or for the agent that was asked, how it is; absent: none that is armed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<String>,
    /// Its keys by id and fingerprint; it sends with the first one.
    pub keys: Vec<String>,
    /// Groups that it knows; absent: it has not said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<u32>,
    /// Those of them that run there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups_running: Option<u32>,
}

impl Agent {
    /// All of them, the one that was asked first.
    pub fn all(s: &Status) -> Vec<Self> {
        let keys = |host: &str| {
            let of_host = |held: &HostKeys| held.keys.iter().map(|key| format!("{}:{}", key.id, key.fingerprint)).collect();
            s.keys.iter().find(|held| held.host == host).map_or_else(Vec::new, of_host)
        };
        let own = Self {
            host: s.node.clone(),
            state: "this host".into(),
            version: Some(s.version.clone()),
            zone: said(&s.zone),
            fence: s.fence.as_ref().map(|fence| format!("{}, {}", fence.state, fence.mode)),
            keys: keys(&s.node),
            groups: Some(s.groups),
            groups_running: Some(s.groups_running),
        };
        let other = |h: &HostStatus| Self {
            host: h.name.clone(),
            state: h.state.clone(),
            version: h.agent.as_ref().map(|agent| agent.version.clone()),
            zone: h.agent.as_ref().and_then(|agent| said(&agent.zone)),
            fence: h.fence.map(|promise| {
                let whom = if promise.host { "" } else { ", some processes" };
                format!("armed, {}{whom}", promise.mode)
            }),
            keys: keys(&h.name),
            groups: h.agent.as_ref().map(|agent| agent.groups),
            groups_running: h.agent.as_ref().map(|agent| agent.groups_running),
        };
        let mut others: Vec<Self> = s.hosts.iter().map(other).collect();
        others.sort_by(|one, other| one.host.cmp(&other.host));
        [own].into_iter().chain(others).collect()
    }

    /// What is unlike the agent that was asked is yellow.
    fn row(&self, own: &Self) -> [Cell; 7] {
        let unlike = |text: Option<&String>, is_like: bool, none: &str| match text {
            Some(text) if is_like => text.clone().into(),
            Some(text) => Cell::painted(text.clone(), Paint::Yellow),
            None => none.into(),
        };
        // Enough of a fingerprint to tell keys apart; `fide key list` has all of it.
        let short = |key: &String| key.chars().take(key.find(':').map_or(0, |at| at + 5)).collect::<String>();
        let keys = match &self.keys[..] {
            [] => "-".into(),
            keys => keys.iter().map(short).collect::<Vec<_>>().join(" "),
        };
        let groups = match (self.groups_running, self.groups) {
            (Some(running), Some(all)) if running == all => all.to_string().into(),
            (Some(running), Some(all)) => Cell::painted(format!("{running} of {all} run"), Paint::Yellow),
            _ => "?".into(),
        };
        [
            self.host.clone().into(),
            if self == own { self.state.clone().into() } else { Cell::painted(self.state.clone(), state_paint(&self.state)) },
            unlike(self.version.as_ref(), self.version == own.version, "?"),
            self.zone.clone().unwrap_or_else(|| "-".into()).into(),
            self.fence.clone().unwrap_or_else(|| "-".into()).into(),
            if self.keys == own.keys { keys.into() } else { Cell::painted(keys, Paint::Yellow) },
            groups,
        ]
    }

    /// One line for each.
    pub fn render(agents: &[Self], style: &Style) -> String {
        let mut table = Table::new(&["HOST", "STATE", "AGENT", "ZONE", "FENCE", "KEYS", "GROUPS"]);
        let Some(own) = agents.first() else { return String::new() };
        agents.iter().for_each(|agent| table.row(agent.row(own)));
        let mut out = table.render(style, 0);
        let count = |is: &dyn Fn(&Self) -> bool| agents.iter().filter(|agent| is(agent)).count();
        let lines = [
            (count(&|agent| agent.version.is_some() && agent.version != own.version), "run another version than this host's"),
            (count(&|agent| agent.keys != own.keys), "hold other keys than this host: fide key list"),
            (
                count(&|agent| agent.groups != agent.groups_running),
                "have groups that do not run there: fide group status on that host",
            ),
        ];
        for (number, what) in lines.iter().filter(|(number, _)| *number > 0) {
            let _ = writeln!(out, "{} {what}", style.paint(Paint::Yellow, &format!("{number} of {}", agents.len())));
        }
        out
    }
}

fn said(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::control::{AgentStatus, HeldKey};

    fn status() -> Status {
        let host = |name: &str, agent| HostStatus { name: name.into(), state: "alive".into(), agent, ..HostStatus::default() };
        let held = |host: &str, keys: &[(u8, &str)]| HostKeys {
            host: host.into(),
            keys: keys.iter().map(|(id, fingerprint)| HeldKey { id: *id, fingerprint: (*fingerprint).into() }).collect(),
        };
        let of = |version: &str, groups_running| AgentStatus {
            version: version.into(),
            zone: "rack2".into(),
            groups: 2,
            groups_running,
        };
        Status {
            node: "h1".into(),
            version: "0.2.0".into(),
            hosts: vec![host("h3", None), host("h2", Some(of("0.1.0", 1))), host("h4", Some(of("0.2.0", 2)))],
            keys: vec![held("h1", &[(1, "1234567890abcdef")]), held("h2", &[(2, "fedcba0987654321"), (1, "1234567890abcdef")])],
            ..Status::default()
        }
    }

    #[test]
    fn agents_that_are_unlike_this_one_are_counted() {
        let text = Agent::render(&Agent::all(&status()), &Style::PLAIN);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["h1", "this", "host", "0.2.0", "-", "-", "1:1234", "0"]);
        assert_eq!(lines[2], ["h2", "alive", "0.1.0", "rack2", "-", "2:fedc", "1:1234", "1", "of", "2", "run"]);
        assert_eq!(lines[3], ["h3", "alive", "?", "-", "-", "-", "?"], "it has not said anything, or is older");
        let told = lines[5..].iter().map(|line| line.join(" ")).collect::<Vec<_>>();
        assert_eq!(told.len(), 3);
        assert!(told[0].starts_with("1 of 4 run another version") && told[1].starts_with("3 of 4 hold other keys"), "{told:?}");
        assert!(told[2].starts_with("1 of 4 have groups that do not run there"), "{told:?}");
    }
}
