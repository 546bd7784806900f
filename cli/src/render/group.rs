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
        let _ = writeln!(out, "{}  {stage}, {}, {}", style.bold(&group.name), group.engine, group.policy);
        if !group.why.is_empty() {
            let _ = writeln!(out, "  {}", group.why);
        }
        if !group.halted.is_empty() {
            let _ = writeln!(out, "  this host's last member stopped: {}", group.halted);
        }
        let _ = writeln!(
            out,
            "  {} entries, {} proposals wait, {} applications, {} KiB kept",
            group.index,
            group.pending,
            group.sessions,
            group.kept_bytes.div_ceil(1024)
        );
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

fn standing(standing: &Standing) -> String {
    let leader = if standing.leader == 0 { "no leader".into() } else { format!("member {} leads", standing.leader) };
    let me = if standing.me == 0 { String::new() } else { format!(", this host is member {}", standing.me) };
    format!("{}, {leader}{me}, {} entries", standing.stage.name(), standing.index)
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
        Event::Refused { number, why } => style.paint(Paint::Red, &format!("proposal {number} is refused: {why}")),
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
        Event::Refused { number, why } => serde_json::json!({"event": "refused", "number": number, "why": why}),
    }
}
