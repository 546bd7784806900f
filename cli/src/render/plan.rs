//! A plan as text, in the order of an operator's questions.

use crate::cmd::plan::{Added, After, HopOf, Network, Offer, Point, Report, Sender, TreeOf};
use crate::style::{Paint, Style};
use crate::table::{Cell, Table};
use crate::units;
use std::fmt::Write as _;

/// Rows of a table, and lines of a tree, before the rest is only counted.
const ROWS: usize = 10;
/// Lines of a tree.
const LINES: usize = 12;
/// How wide a list of names may be.
const NAMES: usize = 36;

/// All of it. `shown`: whose trees; `all`: no matter how long.
pub fn text(report: &Report, shown: &str, all: bool, style: &Style) -> String {
    let mut out = String::new();
    let network = &report.network;
    let _ = writeln!(
        out,
        "{}: {}, {}, {}",
        style.paint(Paint::Bold, &network.name),
        units::count(network.hosts, "host"),
        count_switches(network.switches),
        units::count(network.links, "link"),
    );
    let _ = writeln!(out, "A heartbeat of {} B on the wire each {}", network.wire_bytes, units::ns(network.heartbeat_ns));
    redundancy(&mut out, network, all, style);
    promises(&mut out, report, all, style);
    if let Some(sender) = report.senders.iter().find(|sender| sender.host == shown) {
        trees(&mut out, sender, all, style);
    }
    offers(&mut out, &report.offers, network.heartbeat_ns, style);
    failures(&mut out, report, all, style);
    if let Some(added) = &report.added {
        one_more(&mut out, report, added, style);
    }
    out
}

fn heading(out: &mut String, text: &str, style: &Style) {
    let _ = writeln!(out, "\n{}", style.paint(Paint::Bold, text));
}

fn redundancy(out: &mut String, network: &Network, all: bool, style: &Style) {
    heading(out, "Are the networks disjoint?", style);
    if network.parted_pairs > 0 {
        let pairs = units::count(network.parted_pairs, "pair");
        let _ = writeln!(out, "  {} {pairs} of hosts have no way to each other at all.", style.red("No:"));
    } else if network.survives > 0 {
        let failures = if network.survives == 1 { "one failure".into() } else { format!("{} failures", network.survives) };
        let _ = writeln!(
            out,
            "  {} any {failures} of switches and cables leaves all hosts connected.",
            style.paint(Paint::Green, "Yes:")
        );
    } else if network.hosts > 1 {
        let _ = writeln!(out, "  {} there are things that part hosts when they fail alone.", style.red("No:"));
    }
    if !network.single_points.is_empty() {
        if network.survives > 0 {
            let _ = writeln!(out, "  But some of them share a risk, and fail together:");
        }
        single_points(out, network, all, style);
    }
    let lonely: Vec<String> = network.hosts_on_one_switch.iter().map(|(host, _)| host.clone()).collect();
    if !lonely.is_empty() && network.switches > 1 {
        let verb = if lonely.len() == 1 { "is" } else { "are" };
        let _ = writeln!(out, "  {} {verb} on one switch only: no second path can be", names(&lonely, NAMES));
        let _ = writeln!(out, "  promised to or from there, whatever lies behind that switch.");
    }
    if network.uncertain_links > 0 {
        let links = units::count(network.uncertain_links, "link");
        let _ = writeln!(out, "  Left out: {links} without certain bounds (--uncertain uses them).");
    }
}

fn single_points(out: &mut String, network: &Network, all: bool, style: &Style) {
    // Things that cut off the same share a row.
    let mut groups: Vec<(&Point, usize)> = Vec::new();
    for point in &network.single_points {
        let what = |point: &Point| (point.element, point.cut_off.clone(), point.pairs);
        match groups.iter_mut().find(|(known, _)| what(known) == what(point)) {
            Some(group) => group.1 += 1,
            None => groups.push((point, 1)),
        }
    }
    let mut table = Table::new(&["ONE FAILURE OF", "", "CUTS OFF", ">PAIRS"]);
    let rows = if all { usize::MAX } else { ROWS };
    for (point, alike) in groups.iter().take(rows) {
        let (outside, rest) = (point.cut_off.len(), network.hosts - point.cut_off.len());
        let cut_off = match &point.cut_off[..] {
            [] => "some from some".into(),
            all if point.pairs < outside * rest => format!("{} from some", names(all, 14)),
            all => names(all, 24),
        };
        let others = if *alike > 1 { format!(" +{}", alike - 1) } else { String::new() };
        let name = short(&point.name, 20) + &others;
        table.row([point.element.into(), name.into(), cut_off.into(), point.pairs.to_string().into()]);
    }
    out.push_str(&table.render(style, 2));
    more(out, groups.len(), rows, "row");
}

fn count_switches(n: usize) -> String {
    if n == 1 { "1 switch".into() } else { format!("{n} switches") }
}

/// Hosts that promise the same share a row.
fn promises(out: &mut String, report: &Report, all: bool, style: &Style) {
    heading(out, "What can be promised?", style);
    let mut groups: Vec<(&Sender, Vec<String>)> = Vec::new();
    for sender in &report.senders {
        let same = |known: &&mut (&Sender, Vec<String>)| alike(known.0) == alike(sender);
        match groups.iter_mut().find(same) {
            Some(group) => group.1.push(sender.host.clone()),
            None => groups.push((sender, vec![sender.host.clone()])),
        }
    }
    groups.sort_by_key(|(sender, _)| std::cmp::Reverse((sender.redundancy == "single", sender.timeout_ns)));
    let mut table = Table::new(&["FROM", "TREES", ">PERIOD", ">LEAST", ">JITTER", ">TIMEOUT", ">PAIR LOST IN"]);
    let rows = if all { usize::MAX } else { ROWS };
    for (sender, hosts) in groups.iter().take(rows) {
        let (trees, paint) = match sender.redundancy {
            _ if !sender.reached_once.is_empty() && sender.trees.len() > 1 => ("in part", Paint::Yellow),
            "disjoint" => ("disjoint", Paint::Green),
            "independent" => ("independent", Paint::Plain),
            other => (other, Paint::Yellow),
        };
        table.row([
            names(hosts, 14).into(),
            Cell::painted(trees, paint),
            units::ns(sender.period_ns).into(),
            units::ns(sender.lambda_min_ns).into(),
            units::ns(sender.delta_max_ns).into(),
            units::ns(sender.timeout_ns).into(),
            once(sender.pair_ccf_per_year).into(),
        ]);
    }
    out.push_str(&table.render(style, 2));
    more(out, groups.len(), rows, "row");
    explain_promises(out, report);
}

fn alike(sender: &Sender) -> (&str, bool, u64, u64, u64, u64) {
    let whole = sender.reached_once.is_empty();
    let ccf = sender.pair_ccf_per_year.to_bits();
    (sender.redundancy, whole, sender.period_ns, sender.lambda_min_ns, sender.delta_max_ns, ccf)
}

fn explain_promises(out: &mut String, report: &Report) {
    let _ = writeln!(out, "  PERIOD: no interval may be shorter. TIMEOUT: the interval + LEAST (latency)");
    let _ = writeln!(out, "  + 2 × JITTER. PAIR LOST: failures of links take all paths from there to some");
    let _ = writeln!(out, "  one host at once, no more often than that; any pair: {}.", once(report.ccf_per_year));
    if report.senders.iter().any(|sender| sender.redundancy == "independent") {
        let _ = writeln!(out, "  independent: trees share switches, but the paths to any one host do not.");
    }
    if report.senders.iter().any(|sender| sender.redundancy == "single") {
        let _ = writeln!(out, "  single: one tree. There a failure of a link looks like a crash of the sender.");
    }
    let slow = report.senders.iter().map(|sender| sender.period_ns).max().unwrap_or(0);
    if slow > report.network.heartbeat_ns {
        let _ = writeln!(out, "  The interval asked for is too short: packets of one host would meet in queues.");
        let _ = writeln!(out, "  Timeouts above are those of the shortest interval, {}.", units::ns(slow));
    }
    let once: Vec<String> = report.senders.iter().flat_map(|sender| sender.reached_once.iter().cloned()).collect();
    let mut once = once;
    once.sort();
    once.dedup();
    if !once.is_empty() {
        let _ = writeln!(out, "  in part, single: reached by one path only, from some or all others, are");
        let _ = writeln!(out, "  {}.", names(&once, 70));
    }
}

/// `22.6 years`, from one to the next.
fn once(per_year: f64) -> String {
    match 1.0 / per_year {
        _ if per_year <= 0.0 => "never".into(),
        // The bound is a sum, and says nothing once that is 1.
        years if years < 1.005 => "no bound".into(),
        years if years < 100.0 => format!("{years:.1} years"),
        years => format!("{years:.0} years"),
    }
}

fn trees(out: &mut String, sender: &Sender, all: bool, style: &Style) {
    heading(out, &format!("The trees of {}", sender.host), style);
    for (at, tree) in sender.trees.iter().enumerate() {
        let _ = writeln!(
            out,
            "  {}: {}, {} to {}, {}",
            style.paint(Paint::Bold, &format!("tree {}", at + 1)),
            count_switches(tree.hops.len()),
            units::ns(tree.lambda_min_ns),
            units::ns(tree.lambda_min_ns + tree.delta_max_ns),
            units::count(tree.trunk_links + tree.core_links, "link"),
        );
        let lines = if all { usize::MAX } else { LINES };
        let order = in_order(tree);
        for hop in order.iter().take(lines) {
            let indent = 4 + 2 * hop.depth.min(10);
            let hosts = if hop.hosts.is_empty() { String::new() } else { format!(" → {}", names(&hop.hosts, NAMES)) };
            let _ = writeln!(out, "{:indent$}{}{hosts}", "", short(&hop.switch, 24));
        }
        more(out, order.len(), lines, "switch");
    }
    if sender.trees.is_empty() {
        let _ = writeln!(out, "  none: nobody else takes part");
    }
}

/// Each switch behind the one before it in the tree, not in the order in which they were found.
fn in_order(tree: &TreeOf) -> Vec<&HopOf> {
    let mut order: Vec<&HopOf> = Vec::new();
    let mut open: Vec<&HopOf> = tree.hops.iter().filter(|hop| hop.after.is_none()).rev().collect();
    while let Some(hop) = open.pop() {
        order.push(hop);
        open.extend(tree.hops.iter().filter(|next| next.after.as_ref() == Some(&hop.switch)).rev());
    }
    order
}

fn offers(out: &mut String, offers: &[Offer], asked_ns: u64, style: &Style) {
    heading(out, "Which timeout at which bandwidth?", style);
    let mut table = Table::new(&[">INTERVAL", ">TIMEOUT", ">SENT", ">TO A HOST", ">INSIDE", ">OF A LINK", ""]);
    for offer in offers {
        table.row([
            units::ns(offer.heartbeat_ns).into(),
            units::ns(offer.timeout_ns).into(),
            rate(offer.sent_bps).into(),
            rate(offer.host_link_bps).into(),
            if offer.switch_link_bps == 0 { "–".into() } else { rate(offer.switch_link_bps) }.into(),
            percent(offer.busiest_percent).into(),
            match offer.heartbeat_ns {
                ns if ns == asked_ns => "asked",
                ns if ns == offers[0].heartbeat_ns => "least",
                _ => "",
            }
            .into(),
        ]);
    }
    out.push_str(&table.render(style, 2));
    let _ = writeln!(
        out,
        "  SENT: by a host on one link. TO A HOST, INSIDE (between switches), OF A LINK\n  (its part of the bandwidth): the busiest link."
    );
}

fn percent(of: f64) -> String {
    if of < 0.01 { "< 0.01 %".into() } else { format!("{of:.2} %") }
}

fn rate(bps: u64) -> String {
    let bps = bps as f64;
    let (value, unit) = match bps {
        b if b >= 1e9 => (b / 1e9, "Gbit/s"),
        b if b >= 1e6 => (b / 1e6, "Mbit/s"),
        b => (b / 1e3, "kbit/s"),
    };
    if value >= 100.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

fn failures(out: &mut String, report: &Report, all: bool, style: &Style) {
    if report.failures.is_empty() {
        return;
    }
    heading(out, "What does a failure leave, after planning again?", style);
    // Failures that leave the same share a row.
    let mut groups: Vec<(&After, Vec<String>)> = Vec::new();
    for after in &report.failures {
        let what = |after: &After| (after.disjoint, after.independent, after.single, after.timeout_ns, after.refused.clone());
        match groups.iter_mut().find(|(known, _)| what(known) == what(after)) {
            Some(group) => group.1.push(after.switch.clone()),
            None => groups.push((after, vec![after.switch.clone()])),
        }
    }
    let rows = if all { usize::MAX } else { 5 };
    let mut table = Table::new(&["WITHOUT", ">DISJOINT", ">INDEPENDENT", ">SINGLE", ">TIMEOUT"]);
    for (after, switches) in groups.iter().take(rows) {
        let timeout = after.timeout_ns.map_or_else(|| Cell::painted("cut off", Paint::Red), |ns| units::ns(ns).into());
        table.row([
            names(switches, 30).into(),
            after.disjoint.to_string().into(),
            after.independent.to_string().into(),
            after.single.to_string().into(),
            timeout,
        ]);
    }
    out.push_str(&table.render(style, 2));
    more(out, groups.len(), rows, "row");
    for (after, _) in groups.iter().take(rows) {
        if let Some(refused) = &after.refused {
            let _ = writeln!(out, "  without {}: {refused}", after.switch);
        }
    }
    let _ = writeln!(out, "  Hosts with trees of each kind; the longest timeout of any.");
    if !report.all_tried {
        let _ = writeln!(out, "  {} tried, those that most trees pass.", count_switches(report.failures.len()));
    }
}

fn one_more(out: &mut String, report: &Report, added: &Added, style: &Style) {
    heading(out, "What would one more switch buy, with every host on it?", style);
    let now_timeout_ns = report.senders.iter().map(|sender| sender.timeout_ns).max().unwrap_or(0);
    let trees = report.senders.iter().map(|sender| sender.trees.len()).min().unwrap_or(0);
    let mut table = Table::new(&["", ">NOW", ">WITH IT"]);
    let (now_trees, then) = (format!("{trees} {}", report.redundancy), format!("{} {}", added.trees, added.redundancy));
    table.row(["trees of each host, at least".into(), now_trees.into(), then.into()]);
    table.row([
        "failures survived, whichever".into(),
        report.network.survives.to_string().into(),
        added.survives.to_string().into(),
    ]);
    table.row(["longest timeout".into(), units::ns(now_timeout_ns).into(), units::ns(added.timeout_ns).into()]);
    table.row(["each host sends, at most".into(), rate(report.sent_bps).into(), rate(added.sent_bps).into()]);
    out.push_str(&table.render(style, 2));
    if added.survives > report.network.survives {
        let _ = writeln!(out, "  A repair may wait: while it is under way, two paths are left.");
    }
}

fn more(out: &mut String, there: usize, shown: usize, what: &str) {
    if there > shown {
        let rest = if what == "switch" { count_switches(there - shown) } else { units::count(there - shown, what) };
        let _ = writeln!(out, "  … and {rest} more (--all)");
    }
}

fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.into();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Names, those in a row as one: `h1–h4, h7`; what does not fit is counted.
fn names(all: &[String], most: usize) -> String {
    let number = |name: &str| -> Option<(String, u64)> {
        let at =
            name.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + name[at..].chars().next().map_or(0, char::len_utf8));
        Some((name[..at].to_owned(), name[at..].parse().ok()?))
    };
    let mut all = all.to_vec();
    all.sort_by_cached_key(|name| number(name).unwrap_or((name.clone(), 0)));
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (at, name) in all.iter().enumerate() {
        let follows = |last: &str| match (number(last), number(name)) {
            (Some((a, m)), Some((b, n))) => a == b && m + 1 == n,
            _ => false,
        };
        match runs.last_mut() {
            Some(run) if follows(&all[run.1]) => run.1 = at,
            _ => runs.push((at, at)),
        }
    }
    let wide = |(first, last): (usize, usize)| match last - first {
        0 => all[first].clone(),
        1 => format!("{}, {}", all[first], all[last]),
        _ => format!("{}–{}", all[first], all[last]),
    };
    let whole = runs.iter().map(|run| wide(*run)).collect::<Vec<_>>().join(", ");
    if whole.chars().count() <= most {
        return whole;
    }
    let mut text = String::new();
    let mut shown = 0;
    for run in runs {
        let comma = if text.is_empty() { "" } else { ", " };
        let (last, run) = (run.1, wide(run));
        // Six characters are for the number of the rest.
        if !text.is_empty() && text.chars().count() + comma.len() + run.chars().count() + 6 > most {
            break;
        }
        text = text + comma + &short(&run, most.max(8));
        shown = last + 1;
    }
    if shown < all.len() { format!("{text} +{}", all.len() - shown) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_row_are_one_and_what_does_not_fit_is_counted() {
        let list = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(names(&list("h1 h2 h3 h5"), 40), "h1–h3, h5");
        assert_eq!(names(&list("a b"), 40), "a, b");
        assert_eq!(names(&list("p1-edge1 p1-edge2 p2-edge1"), 40), "p1-edge1, p1-edge2, p2-edge1");
        let many: Vec<String> = (0..50).map(|n| format!("host{}", 2 * n)).collect();
        assert_eq!(names(&many, 24), "host0, host2 +48");
        assert_eq!(names(&list("s2 s10 s1"), 20), "s1, s2, s10");
        assert_eq!(names(&[], 9), "");
    }

    #[test]
    fn rates_and_frequencies_have_fitting_units() {
        assert_eq!([rate(960_000), rate(50_000_000), rate(12_345_000_000)], ["960 kbit/s", "50.0 Mbit/s", "12.3 Gbit/s"]);
        assert_eq!([once(0.04428), once(0.0), once(1.0), once(0.001)], ["22.6 years", "never", "no bound", "1000 years"]);
    }
}
