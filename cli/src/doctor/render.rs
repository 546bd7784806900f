//! The examination as text.

use super::{Item, Report, State};
use crate::style::{Paint, Style};
use std::fmt::Write as _;

/// The whole report. `verbose`: also what costs nothing.
pub fn report(report: &Report, style: &Style) -> String {
    let mut out = String::new();
    for group in &report.groups {
        if group.items.is_empty() {
            continue;
        }
        let _ = writeln!(out, "{}", style.bold(group.title));
        for item in &group.items {
            out += &line(item, style);
        }
        out.push('\n');
    }
    let s = &report.summary;
    let _ = writeln!(out, "{} ok, {} degraded, {} missing, {} not tried", s.ok, s.degraded, s.missing, s.unknown);
    let verdict =
        if s.works { style.paint(Paint::Green, "This host can take part") } else { style.red("This host cannot take part yet") };
    let _ = writeln!(
        out,
        "{verdict}: receive {}, send {}, exits by {}, profile {}, {}.",
        s.receive,
        s.send,
        s.exit_watch,
        s.profile,
        crate::units::count(s.paths, "path")
    );
    out
}

fn line(item: &Item, style: &Style) -> String {
    let (mark, paint) = match item.state {
        State::Ok => ("ok      ", Paint::Green),
        State::Unknown => ("unknown ", Paint::Dim),
        State::Degraded => ("degraded", Paint::Yellow),
        State::Missing => ("missing ", Paint::Red),
    };
    let of = item.of.as_deref().map_or(String::new(), |of| format!(" {of}"));
    let name = format!("{}{of}", item.title);
    let mut out = format!("  {}  {}: {}\n", style.paint(paint, mark), name.trim_start(), item.found);
    if item.state != State::Ok {
        for (label, text) in [("costs", &item.costs), ("do", &item.advice)] {
            if let Some(text) = text {
                let _ = writeln!(out, "            {} {text}", style.dim(&format!("{label}:")));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tests::report as made;

    #[test]
    fn a_finding_says_what_it_costs_and_what_to_do() {
        let items = vec![
            Item::ok("kernel", "kernel 5.15 or later", "6.1.0"),
            Item::worse("xdp", "XDP", State::Degraded, "generic", "a copy", "another NIC").of("eth1"),
        ];
        let expected = "\
All
  ok        kernel 5.15 or later: 6.1.0
  degraded  XDP eth1: generic
            costs: a copy
            do: another NIC

1 ok, 1 degraded, 0 missing, 0 not tried
This host can take part: receive unknown, send udp, exits by unknown, profile shared without real-time priority, 2 paths.
";
        assert_eq!(report(&made(items), &Style::PLAIN), expected);
    }
}
