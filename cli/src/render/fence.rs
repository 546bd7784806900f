//! The fence of this host.

use crate::style::{Paint, Style};
use crate::table::{Cell, Table};
use crate::units::ns;
use fide_wire::control::{FenceStatus, GateStatus};
use std::fmt::Write as _;

fn paint(state: &str) -> Paint {
    match state {
        "open" => Paint::Green,
        "fenced" | "recovering" | "shut" => Paint::Red,
        _ => Paint::Yellow,
    }
}

/// One line, for the status.
pub fn line(f: &FenceStatus, style: &Style) -> String {
    let state = style.paint(paint(&f.state), &f.state);
    match f.state.as_str() {
        "fenced" => format!("fence {state}: {}; fide fence recover", f.why),
        "open" => format!("fence {state}, {}: timeout {}, t_valid in {}", f.mode, ns(f.timeout_ns), ns(f.left_ns)),
        _ => format!("fence {state}, {}: nothing is promised yet", f.mode),
    }
}

/// Everybody who counts.
fn counted(f: &FenceStatus) -> String {
    let all = if f.observers.is_empty() { "none was heard yet".into() } else { f.observers.join(", ") };
    format!("needs confirmations of {} of these {} hosts: {all}", f.confirmations_needed, f.observers.len())
}

/// Whom it waits for, and what ends that.
fn awaited(f: &FenceStatus) -> Option<String> {
    let hint = "of a host that is gone for good: fide forget HOST";
    (!f.waits_for.is_empty()).then(|| format!("waits for {} ({hint})", f.waits_for.join(", ")))
}

/// The same for the status, where others must confirm: also hosts that its table does not show, as they were never heard in this agent's time.
pub fn who_counts(f: &FenceStatus) -> Vec<String> {
    if f.mode == "sent" { Vec::new() } else { std::iter::once(counted(f)).chain(awaited(f)).collect() }
}

/// One line for the gate of an application.
pub fn gate(g: &GateStatus, style: &Style) -> String {
    let state = style.paint(paint(&g.state), &g.state);
    format!("gate {} {state}: {} packets passed, {} blocked", g.name, g.passed, g.blocked)
}

/// All of it as text.
pub fn fence(f: &FenceStatus, style: &Style) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}", line(f, style));
    let copies = if f.mode == "sent" { format!("; copies on {} must have left", paths(f)) } else { String::new() };
    let _ = writeln!(
        out,
        "  others wait {}, this host stops {} earlier and what clocks may drift{copies}",
        ns(f.timeout_ns),
        ns(f.margin_ns)
    );
    if f.extensions > 0 {
        let _ = writeln!(out, "  extended {} times, with {} left at least", f.extensions, ns(f.left_min_ns));
    }
    if f.mode != "sent" {
        let by = if f.confirmed_by.is_empty() { "nobody yet".into() } else { f.confirmed_by.join(", ") };
        let _ = writeln!(out, "  {}; confirmed by {by}", counted(f));
        if let Some(awaited) = awaited(f) {
            let _ = writeln!(out, "  {awaited}");
        }
    }
    if !f.interfaces.is_empty() {
        let _ = writeln!(out, "  guards {}", f.interfaces.join(", "));
    }
    let mut table = Table::new(&["GATE", "STATE", ">PASSED", ">BLOCKED", "DOOMED"]);
    for g in &f.gates {
        table.row([
            Cell::painted(g.name.clone(), Paint::Cyan),
            Cell::painted(g.state.clone(), paint(&g.state)),
            g.passed.to_string().into(),
            g.blocked.to_string().into(),
            g.doomed.clone().into(),
        ]);
    }
    let _ = writeln!(out);
    out += &table.render(style, 2);
    out
}

fn paths(f: &FenceStatus) -> &'static str {
    if f.paths == "one" { "one path" } else { "both paths" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> FenceStatus {
        FenceStatus {
            state: "open".into(),
            mode: "sent".into(),
            paths: "both".into(),
            timeout_ns: 50_000_000,
            margin_ns: 5_000_000,
            valid_ns: 7_000_000_000,
            left_ns: 44_000_000,
            extensions: 4711,
            left_min_ns: 43_200_000,
            interfaces: vec!["net0".into(), "net1".into()],
            gates: vec![
                GateStatus { name: "host".into(), state: "open".into(), passed: 100, ..GateStatus::default() },
                GateStatus { name: "/sys/fs/cgroup/db".into(), state: "shut".into(), blocked: 3, doomed: "db".into(), passed: 9 },
            ],
            ..FenceStatus::default()
        }
    }

    #[test]
    fn an_open_fence_reads_like_this() {
        let expected = "\
fence open, sent: timeout 50 ms, t_valid in 44 ms
  others wait 50 ms, this host stops 5 ms earlier and what clocks may drift; copies on both paths must have left
  extended 4711 times, with 43.2 ms left at least
  guards net0, net1

  GATE               STATE  PASSED  BLOCKED  DOOMED
  host               open      100        0
  /sys/fs/cgroup/db  shut        9        3  db
";
        let text = fence(&open(), &Style::PLAIN);
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn a_gate_of_an_application_reads_like_this() {
        let g = GateStatus { name: "db".into(), state: "fenced".into(), passed: 17, blocked: 4, ..GateStatus::default() };
        assert_eq!(gate(&g, &Style::PLAIN), "gate db fenced: 17 packets passed, 4 blocked");
    }

    #[test]
    fn a_fenced_host_is_told_why_and_what_to_do() {
        let f = FenceStatus { state: "fenced".into(), why: "an operator shut it".into(), ..open() };
        assert!(fence(&f, &Style::PLAIN).starts_with("fence fenced: an operator shut it; fide fence recover\n"));
        let f = FenceStatus {
            mode: "acknowledged by majority".into(),
            confirmations_needed: 2,
            confirmed_by: vec!["h2".into(), "h3".into()],
            observers: ["h2", "h3", "h4"].map(String::from).to_vec(),
            waits_for: vec!["h4".into()],
            ..open()
        };
        let text = fence(&f, &Style::PLAIN);
        assert!(
            text.contains("needs confirmations of 2 of these 3 hosts: h2, h3, h4; confirmed by h2, h3\n  waits for h4 ("),
            "{text}"
        );
    }
}
