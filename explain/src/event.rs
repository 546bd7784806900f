//! A line of the event history.

use crate::style::{Paint, Style};
use crate::units;
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{Cause, Grade, ProgressSource};

/// Whom an event is about: `name@host`, or the host.
pub fn subject(event: &HistoryEvent) -> String {
    match &event.app {
        Some(app) => format!("{app}@{}", event.node),
        None => event.node.clone(),
    }
}

/// What `code` says, if it says anything for this cause.
pub fn code(event: &HistoryEvent) -> Option<String> {
    match event.cause {
        Cause::Killed | Cause::OutOfMemory => Some(units::signal(event.code)),
        Cause::Exited if event.code < 0 => Some("how is not known".into()),
        Cause::Exited => Some(format!("exit status {}", event.code)),
        Cause::PathDown | Cause::PathUp => Some(format!("path {}", event.code)),
        Cause::Hung | Cause::Progressing => ProgressSource::from_code(event.code).map(|s| s.to_string()),
        Cause::Interface => Some(if event.code == 0 { "went away".into() } else { "came back".into() }),
        _ => None,
    }
}

/// The colour of a cause: an end is red, a fault yellow, what mends green.
pub fn paint(cause: Cause) -> Paint {
    match cause {
        Cause::Exited
        | Cause::Killed
        | Cause::OutOfMemory
        | Cause::Doomed
        | Cause::Replaced
        | Cause::SilentHost
        | Cause::Fenced => Paint::Red,
        Cause::AgentLost
        | Cause::Hung
        | Cause::PathDown
        | Cause::Unreachable
        | Cause::ContractBroken
        | Cause::Isolated
        | Cause::ObserverPaused
        | Cause::NameClash
        | Cause::ForeignTraffic
        | Cause::Interface
        | Cause::Local => Paint::Yellow,
        Cause::PathUp
        | Cause::Returned
        | Cause::ContractKept
        | Cause::Rejoined
        | Cause::Monitored
        | Cause::Progressing
        | Cause::Recovered => Paint::Green,
        Cause::Left => Paint::Dim,
    }
}

/// How sure, in a fixed width.
fn grade(event: &HistoryEvent) -> (&'static str, Paint) {
    match event.grade {
        Grade::Certain => ("certain ", Paint::Bold),
        Grade::Inferred => ("inferred", Paint::Plain),
    }
}

/// One line for people.
pub fn line(event: &HistoryEvent, style: &Style) -> String {
    let (grade, grade_paint) = grade(event);
    let cause = format!("{:<15}", event.cause.name());
    let mut detail = event.text.clone();
    if detail.is_empty() {
        detail = code(event).unwrap_or_default();
    }
    if event.confirms && !detail.contains("reported before as doomed") {
        detail += " (reported before as doomed)";
    }
    let id = event.unique_id().map_or_else(|| "-".to_string(), |id| id.to_string());
    let parts = [
        style.dim(&format!("{:<6}", format!("#{}", event.seq))),
        style.dim(&units::wall(event.wall_ns)),
        style.paint(grade_paint, grade),
        style.paint(paint(event.cause), &cause),
        style.paint(Paint::Cyan, &format!("{:<16}", subject(event))),
        style.dim(&format!("{id:<22}")),
        detail.trim().to_string(),
    ];
    parts.join("  ").trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::killed;

    #[test]
    fn a_line_says_when_how_sure_what_whom_and_which_verdict() {
        let text = line(&killed(), &Style::PLAIN);
        assert!(text.starts_with("#7      2026-"), "{text}");
        assert!(
            text.ends_with("certain   killed           redis@h2          00abcdef-00000003-17    redis@h2 was ended by SIGKILL"),
            "{text}"
        );
        let event = HistoryEvent { id: None, app: None, cause: Cause::PathDown, code: 1, text: String::new(), ..killed() };
        let text = line(&event, &Style::PLAIN);
        assert!(text.ends_with("path-down        h2                -                       path 1"), "{text}");
    }

    #[test]
    fn a_confirmation_says_so_once() {
        let event = HistoryEvent { confirms: true, ..killed() };
        assert!(line(&event, &Style::PLAIN).ends_with("(reported before as doomed)"));
        let text = "db was ended by SIGKILL (reported before as doomed)";
        let event = HistoryEvent { text: text.into(), ..event };
        assert!(line(&event, &Style::PLAIN).ends_with(text));
    }
}
