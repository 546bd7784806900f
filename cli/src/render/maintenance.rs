//! What is in maintenance.

use crate::style::{Paint, Style};
use crate::units;
use fide_wire::control::MaintenanceStatus;
use std::fmt::Write as _;

/// Of what is covered, so much is named.
const NAMED: usize = 8;

fn left(m: &MaintenanceStatus) -> String {
    units::long(m.left_ns.div_ceil(1_000_000_000))
}

fn subject(m: &MaintenanceStatus) -> &str {
    if m.target == "*" { "everything" } else { &m.target }
}

/// One line, for the status.
pub fn line(m: &MaintenanceStatus, style: &Style) -> String {
    let what = style.paint(Paint::Yellow, &format!("maintenance of {}", subject(m)));
    let user = if m.user == 0 { "root".into() } else { format!("user {}", m.user) };
    let why = if m.reason.is_empty() { String::new() } else { format!(": {}", m.reason) };
    format!("{what} for {} more, set by {user} on {}{why}", left(m), m.by)
}

/// Each with what it covers now.
pub fn maintenances(all: &[(&MaintenanceStatus, Vec<String>)], style: &Style) -> String {
    let mut out = String::new();
    if all.is_empty() {
        return "nothing is in maintenance\n".into();
    }
    for (m, covered) in all {
        let _ = writeln!(out, "{}", line(m, style));
        let _ = writeln!(out, "  until {}; known on {}", units::wall(m.ends_wall_ns), m.known_by.join(", "));
        let more = covered.len().saturating_sub(NAMED);
        let mut names = covered.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        if more > 0 {
            names += &format!(" and {more} more");
        }
        let _ = match covered.len() {
            0 => writeln!(out, "  {}", style.paint(Paint::Yellow, "covers nothing that is known now: see fide status for names")),
            _ => writeln!(out, "  covers {names}"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maintenance_reads_like_this() {
        let m = MaintenanceStatus {
            target: "db".into(),
            left_ns: 599_200_000_000,
            reason: "new disk".into(),
            by: "h1".into(),
            user: 1000,
            known_by: vec!["h1".into(), "h2".into()],
            ..MaintenanceStatus::default()
        };
        let all = MaintenanceStatus { target: "*".into(), user: 0, reason: String::new(), ..m.clone() };
        let names = |n: u32| (1..=n).map(|n| format!("db@h{n}")).collect::<Vec<_>>();
        let text = maintenances(&[(&m, names(2)), (&all, names(10)), (&m, vec![])], &Style::PLAIN);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "maintenance of db for 10m 00s more, set by user 1000 on h1: new disk");
        assert!(lines[1].ends_with("; known on h1, h2"), "{text}");
        assert_eq!(lines[2], "  covers db@h1, db@h2");
        assert_eq!(lines[3], "maintenance of everything for 10m 00s more, set by root on h1");
        assert!(lines[5].ends_with("db@h8 and 2 more"), "{text}");
        assert_eq!(lines[8], "  covers nothing that is known now: see fide status for names");
        assert_eq!(maintenances(&[], &Style::PLAIN), "nothing is in maintenance\n");
    }
}
