//! Labs, hosts, links.

use crate::style::{Paint, Style};
use crate::table::{Cell, Table};
use fide_lab::{FreezeBy, LabStatus, LabSummary, LinkFaults, NicStatus, Phase, ProcessStatus, SwitchFault};
use std::fmt::Write as _;

/// All labs of this machine.
pub fn list(labs: &[LabSummary], style: &Style) -> String {
    if labs.is_empty() {
        return "no labs on this machine; make one with: fide lab up\n".into();
    }
    let mut table = Table::new(&["LAB", ">HOSTS", "STATE"]);
    for lab in labs {
        let (state, paint) = match (lab.stale, lab.phase) {
            (true, _) => ("stale: remove it with fide lab down --stale", Paint::Red),
            (false, Phase::Up) if lab.ephemeral => ("up, goes with its maker", Paint::Green),
            (false, Phase::Up) => ("up", Paint::Green),
            (false, Phase::Building) => ("being made", Paint::Yellow),
            (false, Phase::Removing { .. }) => ("being removed", Paint::Yellow),
        };
        table.row([Cell::painted(lab.name.clone(), Paint::Bold), lab.hosts.to_string().into(), Cell::painted(state, paint)]);
    }
    table.render(style, 0)
}

/// One lab.
pub fn status(lab: &LabStatus, style: &Style) -> String {
    let mut out = format!("{}  {} hosts, {}\n", style.bold(&lab.summary.name), lab.summary.hosts, lab.directory.display());
    for switch in &lab.switches {
        let (text, paint) = match switch.fault {
            None => ("well", Paint::Green),
            Some(SwitchFault::Off) => ("without power", Paint::Red),
            Some(SwitchFault::Hung) => ("hung: forwards nothing", Paint::Red),
        };
        let _ = writeln!(out, "  network {}: switch {} ({})", switch.net, style.paint(paint, text), switch.namespace);
    }
    out.push('\n');
    let mut table = Table::new(&["HOST", "NIC", "ADDRESS", "CARRIER", "LINK", "PROCESSES"]);
    for host in &lab.hosts {
        for (i, nic) in host.nics.iter().enumerate() {
            let processes =
                if i == 0 { host.processes.iter().map(process).collect::<Vec<_>>().join(", ") } else { String::new() };
            let carrier = match nic.carrier {
                Some(true) => Cell::painted("yes", Paint::Green),
                Some(false) => Cell::painted("no", Paint::Red),
                None => Cell::painted("-", Paint::Red),
            };
            let faults = faults(&nic.faults);
            table.row([
                if i == 0 { Cell::painted(host.name.clone(), Paint::Bold) } else { "".into() },
                nic.name.clone().into(),
                address(nic).into(),
                carrier,
                if faults.is_empty() { Cell::painted("well", Paint::Green) } else { Cell::painted(faults, Paint::Red) },
                processes.into(),
            ]);
        }
    }
    out += &table.render(style, 2);
    if !lab.other_processes.is_empty() {
        let all: Vec<String> = lab.other_processes.iter().map(process).collect();
        let _ = writeln!(out, "\n  elsewhere: {}", all.join(", "));
    }
    out
}

fn address(nic: &NicStatus) -> String {
    match nic.ipv6 {
        Some(v6) => format!("{} {v6}", nic.ipv4),
        None => nic.ipv4.to_string(),
    }
}

fn process(p: &ProcessStatus) -> String {
    let frozen = match p.frozen {
        Some(FreezeBy::Signal) => " stopped",
        Some(FreezeBy::Cgroup) => " frozen",
        None => "",
    };
    format!("{} {}{frozen}", p.command, p.id.pid)
}

/// What was done to a link, in words; empty when nothing was.
pub fn faults(f: &LinkFaults) -> String {
    let mut all: Vec<String> = Vec::new();
    if f.removed {
        all.push("NIC removed".into());
    }
    if f.carrier_cut {
        all.push("cut".into());
    }
    match (f.drop_from_host, f.drop_to_host) {
        (true, true) => all.push("cut silently".into()),
        (true, false) => all.push("loses what the host sends".into()),
        (false, true) => all.push("loses what the host should receive".into()),
        (false, false) => {}
    }
    for (rate, way) in [(f.slow_from_host_bps, "from"), (f.slow_to_host_bps, "to")] {
        if let Some(rate) = rate {
            all.push(format!("{rate} bit/s {way} the host"));
        }
    }
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_told_in_words() {
        let none = LinkFaults::default();
        assert_eq!(faults(&none), "");
        assert_eq!(faults(&LinkFaults { drop_from_host: true, drop_to_host: true, ..none }), "cut silently");
        let both = LinkFaults { carrier_cut: true, slow_to_host_bps: Some(800), ..none };
        assert_eq!(faults(&both), "cut, 800 bit/s to the host");
    }

    #[test]
    fn an_empty_list_says_how_to_begin() {
        assert!(list(&[], &Style::PLAIN).contains("fide lab up"));
    }
}
