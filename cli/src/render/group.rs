//! Groups in words.

use crate::style::{Paint, Style};
use crate::table::{Cell, Table};
use fide_client::group::{Event, Stage, Standing};
use fide_wire::control::GroupStatus;
use std::fmt::Write as _;

/// All groups of a host.
pub fn groups(groups: &[GroupStatus], style: &Style) -> String {
    if groups.is_empty() {
        return "no groups on this host: fide group create NAME --hosts a,b,c begins one\n".into();
    }
    let mut out = String::new();
    for group in groups {
        let paint = match group.stage {
            Stage::Running => Paint::Green,
            Stage::Failed | Stage::Gone => Paint::Red,
            _ => Paint::Yellow,
        };
        let stage = style.paint(paint, group.stage.name());
        let durable = if group.written.is_some() { ", durable" } else { "" };
        // Of a group that is looked for only the name may be known.
        let how = if group.engine.is_empty() { String::new() } else { format!(", {}, {}", group.engine, group.policy) };
        let _ = writeln!(out, "{}  {stage}{how}{durable}", style.bold(&group.name));
        if !group.why.is_empty() {
            let _ = writeln!(out, "  {}", group.why);
        }
        let trusts = group.policy == "trust-contract" && group.engine != "raft";
        if !group.chosen.is_empty() && !trusts {
            let _ = writeln!(out, "  {}", style.paint(Paint::Dim, &group.chosen));
        }
        if trusts {
            let text = "silence is taken for a crash: where both networks are cut, both sides decide; policy fence or engine raft do not";
            let _ = writeln!(out, "  {}", style.paint(Paint::Dim, text));
        }
        if group.anew {
            let _ = writeln!(out, "  begun anew: no host ran the one before any more, and what was decided in it is gone");
        }
        if group.stage == Stage::Joining && group.engine.is_empty() {
            let _ = writeln!(out, "  asks the hosts that are heard whether they run it");
        } else if group.stage == Stage::Joining && group.written.is_some() {
            let _ = writeln!(
                out,
                "  asks the hosts that run it to be let in; if none does any more, it goes on once all its hosts are heard, or by fide group create --durable"
            );
        } else if group.stage == Stage::Joining && group.logs.is_empty() {
            let _ = writeln!(
                out,
                "  asks the hosts that run it to be let in; none that is heard keeps a log of it: [[group]] or fide group create begins it anew"
            );
        }
        out.push_str(&logs(group, style));
        if !group.halted.is_empty() {
            let _ = writeln!(out, "  this host's last member stopped: {}", group.halted);
        }
        let _ = writeln!(
            out,
            "  {}, {} waiting, {}, {} KiB kept",
            counted(group.index, "entry", "entries"),
            counted(group.pending as u64, "proposal", "proposals"),
            counted(group.sessions as u64, "application", "applications"),
            group.kept_bytes.div_ceil(1024)
        );
        if let Some(written) = group.written.filter(|written| group.stage == Stage::Running && *written < group.index) {
            let _ = writeln!(
                out,
                "  on this host's disk: {}; applications are told of no more",
                counted(written, "entry", "entries")
            );
        }
        let mut table = Table::new(&[">member", "host", ">incarnation", ""]);
        for member in &group.members {
            let mut notes = Vec::new();
            if group.leader == Some(member.id) {
                notes.push("leads");
            }
            if group.me == Some(member.id) {
                notes.push("this host");
            }
            if member.crashed {
                notes.push("crashed");
            }
            let notes = Cell::painted(notes.join(", "), if member.crashed { Paint::Red } else { Paint::Plain });
            table.row([member.id.to_string().into(), member.host.clone().into(), member.incarnation.to_string().into(), notes]);
        }
        if !table.is_empty() {
            out.push_str(&table.render(style, 2));
        }
    }
    out
}

/// Who keeps what of a group that nobody runs.
pub fn logs(group: &GroupStatus, style: &Style) -> String {
    let most = group.logs.iter().filter(|log| !log.superseded).map(|log| log.entries).max().unwrap_or(0);
    let mut table = Table::new(&["keeps a log", ">entries", "counted", ""]);
    for log in &group.logs {
        let note = match (log.superseded, most - log.entries.min(most)) {
            (true, _) => "others went on with another one since then".to_owned(),
            (false, 0) => String::new(),
            (false, fewer) => format!("{} fewer than the longest", counted(fewer, "entry", "entries")),
        };
        table.row([log.host.clone().into(), log.entries.to_string().into(), log.members.join(", ").into(), note.into()]);
    }
    if table.is_empty() { String::new() } else { table.render(style, 2) }
}

fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

fn standing(standing: &Standing) -> String {
    let leader = if standing.leader == 0 { "no leader".into() } else { format!("member {} leads", standing.leader) };
    let me = if standing.me == 0 { String::new() } else { format!(", this host is member {}", standing.me) };
    format!("{}, {leader}{me}, {}", standing.stage.name(), counted(standing.index, "entry", "entries"))
}

/// One event; nothing for those that say nothing to people.
pub fn event(event: &Event, style: &Style) -> Option<String> {
    Some(match event {
        Event::Entry(entry) => {
            format!("{:>8}  {}", entry.index, String::from_utf8_lossy(&entry.bytes).escape_debug())
        }
        Event::Snapshot { index, bytes } => {
            style.paint(Paint::Dim, &format!("{index:>8}  snapshot of {} bytes: entries before it are not kept", bytes.len()))
        }
        Event::Standing(of) => style.paint(Paint::Dim, &format!("          {}", standing(of))),
        Event::Members(ids) => {
            let ids: Vec<String> = ids.iter().map(u16::to_string).collect();
            style.paint(Paint::Dim, &format!("          members {}", ids.join(", ")))
        }
        Event::Refused { number, why, .. } => style.paint(Paint::Red, &format!("proposal {number} is refused: {why}")),
        Event::Overdue { number } => {
            style.paint(Paint::Red, &format!("proposal {number} was not decided by its deadline; it may be later"))
        }
        Event::Fate { number, fate } => style.paint(Paint::Dim, &format!("          proposal {number}: {}", fate.name())),
    })
}

/// The same as JSON.
pub fn event_json(event: &Event) -> serde_json::Value {
    match event {
        Event::Entry(entry) => serde_json::json!({
            "event": "entry", "index": entry.index, "member": entry.member,
            "client": format!("{:016x}", entry.client), "number": entry.number,
            "value": String::from_utf8_lossy(&entry.bytes),
        }),
        Event::Snapshot { index, bytes } => serde_json::json!({"event": "snapshot", "index": index, "bytes": bytes.len()}),
        Event::Standing(s) => serde_json::json!({
            "event": "standing", "stage": s.stage.name(), "me": s.me, "leader": s.leader, "leader_node": format!("{:08x}", s.leader_node),
            "generation": s.generation, "index": s.index,
        }),
        Event::Members(ids) => serde_json::json!({"event": "members", "members": ids}),
        Event::Refused { number, why, .. } => serde_json::json!({"event": "refused", "number": number, "why": why}),
        Event::Overdue { number } => serde_json::json!({"event": "overdue", "number": number}),
        Event::Fate { number, fate } => serde_json::json!({"event": "fate", "number": number, "fate": fate.name()}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::control::{GroupLog, GroupMember};

    fn group(stage: Stage) -> GroupStatus {
        let member =
            |id, host: &str, crashed| GroupMember { id, host: host.into(), incarnation: 7, crashed, addresses: Vec::new() };
        GroupStatus {
            name: "orders".into(),
            generation: 1,
            engine: "huc".into(),
            policy: "trust-contract".into(),
            stage,
            why: String::new(),
            chosen: String::new(),
            anew: false,
            me: Some(2),
            leader: Some(1),
            members: vec![member(1, "h1", false), member(2, "h2", false), member(3, "h3", true)],
            index: 5,
            written: None,
            pending: 0,
            halted: String::new(),
            logs: Vec::new(),
            kept_bytes: 1025,
            sessions: 1,
        }
    }

    #[test]
    fn a_group_is_told_with_who_leads_and_who_crashed() {
        let text = groups(&[group(Stage::Running)], &Style::PLAIN);
        assert!(
            text.starts_with(
                "orders  running, huc, trust-contract\n  silence is taken for a crash: where both networks are cut, both sides decide; policy fence or engine raft do not\n  5 entries, 0 proposals waiting, 1 application, 2 KiB kept\n"
            ),
            "{text}"
        );
        for line in ["1  h1              7  leads", "2  h2              7  this host", "3  h3              7  crashed"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(groups(&[], &Style::PLAIN).contains("fide group create"));
        assert!(groups(&[group(Stage::Joining)], &Style::PLAIN).contains("begins it anew"));
        let log = |host: &str, entries, superseded| GroupLog {
            host: host.into(),
            entries,
            members: vec!["h1".into(), "h2".into()],
            superseded,
        };
        let logs = vec![log("h1", 7, false), log("h2", 9, false), log("h3", 20, true)];
        let text = groups(&[GroupStatus { logs, ..group(Stage::Joining) }], &Style::PLAIN);
        for line in [
            "h1                 7  h1, h2   2 entries fewer than the longest",
            "h3                20  h1, h2   others went on with another one",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("anew"), "{text}");
        let named = GroupStatus { engine: String::new(), policy: String::new(), ..group(Stage::Joining) };
        let text = groups(&[named], &Style::PLAIN);
        assert!(text.starts_with("orders  joining\n") && text.contains("whether they run it"), "{text}");
        let durable = |stage| groups(&[GroupStatus { written: Some(3), ..group(stage) }], &Style::PLAIN);
        assert!(durable(Stage::Joining).contains("it goes on once") && !durable(Stage::Joining).contains("anew"));
        assert!(
            durable(Stage::Running).contains("trust-contract, durable\n")
                && durable(Stage::Running).contains("  on this host's disk: 3 entries;")
        );
    }
}
