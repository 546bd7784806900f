//! What the agent knows now.

use super::foreign::foreign;
use super::state_paint;
use crate::style::{Paint, Style};
use crate::table::{Cell, Table};
use crate::units::{self, ns, signed_ns};
use fide_wire::control::{HostStatus, PathAnswerer, PathStatus, Status};
use fide_wire::maintenance::covers;
use fide_wire::verdict::Contract;
use std::fmt::Write as _;

/// The whole status as text.
pub fn status(s: &Status, style: &Style) -> String {
    let mut out = String::new();
    head(&mut out, s, style);
    fence(&mut out, s, style);
    maintenance(&mut out, s, style);
    paths(&mut out, s, style);
    hosts(&mut out, s, style);
    apps(&mut out, s, style);
    watched(&mut out, s, style);
    refused(&mut out, s, style);
    out
}

/// `HB 1 ms, λmin 12 µs, δmax 300 µs`
pub fn contract(c: &Contract) -> String {
    format!("HB {}, λmin {}, δmax {}", ns(c.period_ns), ns(c.lambda_min_ns), ns(c.delta_max_ns))
}

fn head(out: &mut String, s: &Status, style: &Style) {
    let zone = if s.zone.is_empty() { String::new() } else { format!(", zone {}", s.zone) };
    let _ = writeln!(
        out,
        "{}  cluster {}{zone}, agent {}, incarnation {}, up {}",
        style.bold(&s.node),
        s.cluster,
        s.version,
        s.incarnation,
        units::long(s.uptime_s)
    );
    let keys = if s.authenticated { "authenticated".into() } else { style.paint(Paint::Yellow, "NOT authenticated") };
    let _ = writeln!(out, "  receive {}, send {}, exits by {}, profile {}, {keys}", s.receive, s.send, s.exit_watch, s.profile);
    let _ = writeln!(
        out,
        "  contract {}: timeout {}; piggyback up to {} B; {} heartbeats sent",
        contract(&s.contract),
        ns(s.contract.timeout_ns()),
        s.contract.size_max,
        s.heartbeats_sent
    );
}

fn fence(out: &mut String, s: &Status, style: &Style) {
    if let Some(f) = &s.fence {
        let _ = writeln!(out, "  {}", super::fence::line(f, style));
        for line in super::fence::who_counts(f) {
            let _ = writeln!(out, "    {line}");
        }
    }
    for g in &s.gates {
        let _ = writeln!(out, "  {}", super::fence::gate(g, style));
    }
}

fn maintenance(out: &mut String, s: &Status, style: &Style) {
    for m in &s.maintenance {
        let _ = writeln!(out, "  {}", super::maintenance::line(m, style));
    }
}

/// A state, and whether it is of what is in maintenance.
fn state_cell(s: &Status, state: &str, app: Option<&str>, host: &str) -> Cell {
    let is_covered = s.maintenance.iter().any(|m| covers(&m.target, app, host));
    let text = if is_covered { format!("{state} (maintenance)") } else { state.to_owned() };
    Cell::painted(text, if is_covered { Paint::Yellow } else { state_paint(state) })
}

fn title(out: &mut String, style: &Style, text: &str) {
    let _ = writeln!(out, "\n{}", style.bold(text));
}

fn paths(out: &mut String, s: &Status, style: &Style) {
    title(out, style, "Paths of this host");
    let mut table = Table::new(&["PATH", "INTERFACE", "ADDRESS", "STATE"]);
    for p in &s.paths {
        let state = if p.up { "up" } else { "down" };
        table.row([
            p.path.to_string().into(),
            p.interface.clone().into(),
            p.address.clone().into(),
            Cell::painted(state, state_paint(state)),
        ]);
    }
    *out += &table.render(style, 2);
    for p in s.paths.iter().filter(|p| !p.answerers.is_empty()) {
        let one = |a: &PathAnswerer| {
            if a.answers { a.address.clone() } else { style.paint(Paint::Yellow, &format!("{} (does not answer)", a.address)) }
        };
        let all: Vec<String> = p.answerers.iter().map(one).collect();
        let _ = writeln!(out, "  path {}: barriers also by {}", p.path, all.join(", "));
    }
    if s.paths.len() == 1 {
        let _ =
            writeln!(out, "  {}", style.paint(Paint::Yellow, "only one path: a cut cable cannot be told from a crashed host"));
    }
}

/// Whether a window of measurement has ended on this path.
pub fn is_measured(path: &PathStatus) -> bool {
    path.last_number > 0 && (path.jitter_ns != [0; 4] || path.margin_ns < 0)
}

/// The margin's colour: broken, less than a tenth left, well.
pub fn margin_paint(path: &PathStatus) -> Paint {
    let delta = i64::try_from(path.contract.delta_max_ns).unwrap_or(i64::MAX);
    match path.margin_ns {
        ..0 => Paint::Red,
        m if m < delta / 10 => Paint::Yellow,
        _ => Paint::Green,
    }
}

fn hosts(out: &mut String, s: &Status, style: &Style) {
    title(out, style, "Hosts");
    if s.hosts.is_empty() {
        return nobody(out, s, style);
    }
    let mut table = Table::new(&[
        "HOST",
        "STATE",
        ">INC",
        "PATH",
        "",
        ">AGE",
        ">TIMEOUT",
        ">MARGIN",
        ">LOST",
        "JITTER p50 / p99 / p99.9 / max",
    ]);
    for h in &s.hosts {
        host_rows(&mut table, s, h);
    }
    *out += &table.render(style, 2);
    for h in s.hosts.iter().filter(|h| !h.heard_by.is_empty()) {
        let by = h.heard_by.join(", ");
        let _ = writeln!(out, "  {} is silent here and heard by {by}: a fault of the network between", h.name);
    }
}

fn host_rows(table: &mut Table, s: &Status, h: &HostStatus) {
    let lead = |first: bool| -> [Cell; 3] {
        if first {
            [Cell::painted(h.name.clone(), Paint::Bold), state_cell(s, &h.state, None, &h.name), h.incarnation.to_string().into()]
        } else {
            ["".into(), "".into(), "".into()]
        }
    };
    if h.paths.is_empty() {
        let rest = ["-", "", "", "", "", "", ""].map(Cell::from);
        table.row(lead(true).into_iter().chain(rest));
    }
    for (i, p) in h.paths.iter().enumerate() {
        let up = match p.up {
            true if p.by_unicast => "up, by unicast",
            true => "up",
            false => "down",
        };
        // The timeout towards a host is one; where a path has a contract of its own, its arithmetic is shown.
        let timeout = if p.contract == Contract::default() { h.timeout_ns } else { p.contract.timeout_ns() };
        let rest = [
            i.to_string().into(),
            Cell::painted(up, if p.up && p.by_unicast { Paint::Yellow } else { state_paint(up) }),
            age(p).into(),
            ns(timeout).into(),
            if is_measured(p) { Cell::painted(signed_ns(p.margin_ns), margin_paint(p)) } else { "-".into() },
            p.lost.to_string().into(),
            if is_measured(p) { p.jitter_ns.map(ns).join(" / ").into() } else { "-".into() },
        ];
        table.row(lead(i == 0).into_iter().chain(rest));
    }
}

/// How long ago a heartbeat came by this path. A number may be known of a path by which none came
/// in this incarnation; the age is the largest one then.
pub fn age(p: &PathStatus) -> String {
    if p.last_number > 0 && p.age_ns != u64::MAX { ns(p.age_ns) } else { "never".into() }
}

/// Why no other host is heard, as far as that can be known.
fn nobody(out: &mut String, s: &Status, style: &Style) {
    let foreign = foreign(s);
    if foreign.is_empty() {
        let cluster = &s.cluster;
        let _ = writeln!(
            out,
            "  none has been heard yet: are agents of cluster {cluster:?} running on other hosts of these networks?"
        );
        return;
    }
    let _ = writeln!(out, "  none is heard, but packets come:");
    for f in foreign {
        let _ = writeln!(out, "  {}\n    → {}", style.paint(Paint::Red, &f.what), f.advice);
    }
}

fn apps(out: &mut String, s: &Status, style: &Style) {
    let mut table = Table::new(&["PROCESS", "STATE", ">NUMBER"]);
    for h in &s.hosts {
        for a in &h.apps {
            table.row([
                Cell::painted(format!("{}@{}", a.name, h.name), Paint::Cyan),
                state_cell(s, &a.state, Some(&a.name), &h.name),
                a.app.to_string().into(),
            ]);
        }
    }
    if !table.is_empty() {
        title(out, style, "Processes of other hosts");
        *out += &table.render(style, 2);
    }
}

fn watched(out: &mut String, s: &Status, style: &Style) {
    title(out, style, "Watched on this host");
    if s.watched.is_empty() {
        let _ = writeln!(out, "  nothing: fide monitor NAME --port N (or --unit, --process, --container, --pid)");
        return;
    }
    let mut table = Table::new(&["PROCESS", "STATE", ">PID", ">USER", "BY", ">NUMBER", ">ENDED"]);
    for w in &s.watched {
        // What waits for its process has no number yet.
        let of_process = |value: u32| if w.app == 0 { "-".to_string() } else { value.to_string() };
        let by = if w.owner == 0 || w.owner == w.uid { w.origin.clone() } else { format!("{} ({})", w.origin, w.owner) };
        table.row([
            Cell::painted(w.name.clone(), Paint::Cyan),
            state_cell(s, &w.state, Some(&w.name), &s.node),
            of_process(w.pid).into(),
            of_process(w.uid).into(),
            by.into(),
            of_process(w.app).into(),
            if w.ended == 0 { "-".into() } else { w.ended.to_string().into() },
        ]);
    }
    *out += &table.render(style, 2);
    for w in s.watched.iter().filter(|w| !w.why.is_empty()) {
        let _ = writeln!(out, "  {} waits: {}", style.paint(Paint::Yellow, &w.name), w.why);
    }
}

fn refused(out: &mut String, s: &Status, style: &Style) {
    let some: Vec<String> = s.refused.iter().filter(|(_, n)| **n > 0).map(|(reason, n)| format!("{reason} {n}")).collect();
    if !some.is_empty() {
        title(out, style, "Refused packets");
        let _ = writeln!(out, "  {}", some.join(", "));
        for f in foreign(s).iter().filter(|f| f.recent && !s.hosts.is_empty()) {
            let _ = writeln!(out, "  {}\n    → {}", style.paint(Paint::Yellow, &f.what), f.advice);
        }
    }
    let others: Vec<_> = s.unwanted.iter().filter(|u| !s.refused.contains_key(&u.kind)).collect();
    if !others.is_empty() {
        title(out, style, "Packets that nobody wanted");
        for u in others {
            let from = [&u.from, &u.mac].into_iter().filter(|t| !t.is_empty()).cloned().collect::<Vec<_>>().join(", ");
            let _ = writeln!(out, "  {} {}, the last on path {} from {from}, {} ago", u.kind, u.count, u.path, ns(u.age_ns));
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use fide_wire::control::{AppStatus, LocalPath, UnwantedStatus, WatchStatus};

    use fide_explain::samples::CONTRACT;

    #[test]
    fn a_path_by_which_nothing_came_has_no_age() {
        let path = |last_number, age_ns| PathStatus { last_number, age_ns, ..PathStatus::default() };
        for (of, shown) in [(path(7, 2_000_000), "2 ms"), (path(7, u64::MAX), "never"), (path(0, u64::MAX), "never")] {
            assert_eq!(age(&of), shown);
        }
    }

    /// Host h1 that sees h2 (path 1 down, contract broken on it) and h3 (never heard on path 1).
    pub fn fixed() -> Status {
        let path = |up, age_ns, margin_ns| PathStatus {
            up,
            last_number: 4711,
            age_ns,
            lost: 2,
            contract: CONTRACT,
            margin_ns,
            jitter_ns: [3_000, 20_000, 45_000, 120_000],
            ..PathStatus::default()
        };
        Status {
            node: "h1".into(),
            node_id: 1,
            cluster: "lab".into(),
            zone: String::new(),
            groups: 0,
            groups_running: 0,
            version: "0.1.0".into(),
            incarnation: 3,
            uptime_s: 130,
            profile: "shared".into(),
            receive: "xdp-native".into(),
            send: "packet".into(),
            exit_watch: "tracepoint".into(),
            paths: vec![
                LocalPath { path: 0, interface: "net0".into(), address: "10.77.0.1".into(), up: true, ..LocalPath::default() },
                LocalPath { path: 1, interface: "net1".into(), address: "10.77.1.1".into(), ..LocalPath::default() },
            ],
            contract: CONTRACT,
            hosts: vec![
                HostStatus {
                    name: "h2".into(),
                    node_id: 2,
                    incarnation: 1,
                    state: "alive".into(),
                    heard_by: vec![],
                    timeout_ns: 1_612_000,
                    paths: vec![path(true, 400_000, 180_000), path(false, 9_000_000_000, -20_000)],
                    apps: vec![AppStatus { name: "redis".into(), app: 1, state: "alive".into() }],
                    fence: None,
                    ..HostStatus::default()
                },
                HostStatus {
                    name: "h3".into(),
                    node_id: 3,
                    incarnation: 2,
                    state: "silent-host".into(),
                    heard_by: vec![],
                    timeout_ns: 1_612_000,
                    paths: vec![path(true, 400_000, 20_000), PathStatus::default()],
                    apps: vec![],
                    fence: None,
                    ..HostStatus::default()
                },
            ],
            watched: vec![WatchStatus {
                name: "db".into(),
                app: 1,
                pid: 4242,
                uid: 1000,
                origin: "operator".into(),
                state: "alive".into(),
                owner: 1000,
                why: String::new(),
                ended: 3,
            }],
            refused: [("bad-tag".to_string(), 3), ("old".to_string(), 0)].into(),
            unwanted: vec![
                UnwantedStatus { kind: "bad-tag".into(), count: 3, ..UnwantedStatus::default() },
                UnwantedStatus {
                    kind: "echo-answer".into(),
                    count: 70_000,
                    from: "10.77.0.9".into(),
                    mac: "02:fd:00:00:00:09".into(),
                    path: 0,
                    age_ns: 9_000_000_000,
                },
            ],
            heartbeats_sent: 130_000,
            silences_spared: 3,
            silences_vetoed: 1,
            authenticated: false,
            fence: None,
            gates: Vec::new(),
            maintenance: Vec::new(),
            keys: Vec::new(),
        }
    }

    #[test]
    fn status_reads_like_this() {
        let expected = "\
h1  cluster lab, agent 0.1.0, incarnation 3, up 2m 10s
  receive xdp-native, send packet, exits by tracepoint, profile shared, NOT authenticated
  contract HB 1 ms, λmin 12 µs, δmax 300 µs: timeout 1.61 ms; piggyback up to 1418 B; 130000 heartbeats sent

Paths of this host
  PATH  INTERFACE  ADDRESS    STATE
  0     net0       10.77.0.1  up
  1     net1       10.77.1.1  down

Hosts
  HOST  STATE        INC  PATH           AGE  TIMEOUT  MARGIN  LOST  JITTER p50 / p99 / p99.9 / max
  h2    alive          1  0     up    400 µs  1.61 ms  180 µs     2  3 µs / 20 µs / 45 µs / 120 µs
                          1     down     9 s  1.61 ms  −20 µs     2  3 µs / 20 µs / 45 µs / 120 µs
  h3    silent-host    2  0     up    400 µs  1.61 ms   20 µs     2  3 µs / 20 µs / 45 µs / 120 µs
                          1     down   never  1.61 ms       -     0  -

Processes of other hosts
  PROCESS   STATE  NUMBER
  redis@h2  alive       1

Watched on this host
  PROCESS  STATE   PID  USER  BY        NUMBER  ENDED
  db       alive  4242  1000  operator       1      3

Refused packets
  bad-tag 3

Packets that nobody wanted
  echo-answer 70000, the last on path 0 from 10.77.0.9, 02:fd:00:00:00:09, 9 s ago
";
        let text = status(&fixed(), &Style::PLAIN);
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn a_watch_that_waits_says_for_what() {
        let waits = WatchStatus {
            name: "cache".into(),
            origin: "config".into(),
            state: "pending".into(),
            why: "the last one: killed; no process is named cached".into(),
            ended: 2,
            ..WatchStatus::default()
        };
        let by_other = WatchStatus { owner: 1001, ..fixed().watched[0].clone() };
        let text = status(&Status { watched: vec![waits, by_other], ..fixed() }, &Style::PLAIN);
        let expected = "\
  PROCESS  STATE     PID  USER  BY               NUMBER  ENDED
  cache    pending     -     -  config                -      2
  db       alive    4242  1000  operator (1001)       1      3
  cache waits: the last one: killed; no process is named cached
";
        assert!(text.contains(expected), "\n{text}");
    }

    #[test]
    fn everybody_who_counts_for_a_fence_is_named_also_who_is_not_among_the_hosts() {
        let fence = fide_wire::control::FenceStatus {
            state: "starting".into(),
            mode: "acknowledged by majority".into(),
            confirmations_needed: 2,
            observers: ["h2", "h3", "ghost"].map(String::from).to_vec(),
            waits_for: vec!["ghost".into()],
            ..fide_wire::control::FenceStatus::default()
        };
        let text = status(&Status { fence: Some(fence), ..fixed() }, &Style::PLAIN);
        let expected = "\
  fence starting, acknowledged by majority: nothing is promised yet
    needs confirmations of 2 of these 3 hosts: h2, h3, ghost
    waits for ghost (of a host that is gone for good: fide forget HOST)
";
        assert!(text.contains(expected), "\n{text}");
    }

    #[test]
    fn a_lonely_agent_is_told_what_to_do() {
        let s = Status { hosts: vec![], watched: vec![], paths: fixed().paths[..1].to_vec(), ..fixed() };
        let text = status(&s, &Style::PLAIN);
        for wanted in ["are agents of cluster \"lab\" running", "fide monitor NAME", "only one path"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }

    #[test]
    fn who_has_another_key_is_named_instead_of_asking_whether_agents_run() {
        let unwanted = UnwantedStatus {
            kind: "key".into(),
            count: 16_755,
            from: "10.77.0.2".into(),
            age_ns: 1_000_000,
            ..UnwantedStatus::default()
        };
        let refused = [("key".to_string(), 16_755)].into();
        let s = Status { unwanted: vec![unwanted], refused, authenticated: true, ..fixed() };
        let lonely = status(&Status { hosts: vec![], ..s.clone() }, &Style::PLAIN);
        let named =
            "16755 packets refused: made with another key, the last from 10.77.0.2 (net0) 1 ms ago\n    → on both hosts: ";
        assert!(lonely.contains(named) && !lonely.contains("running on other hosts"), "{lonely}");
        assert_eq!(lonely.matches("16755 packets").count(), 1, "{lonely}");
        assert!(status(&s, &Style::PLAIN).contains(named), "also where other hosts are heard");
    }

    #[test]
    fn a_margin_is_red_when_broken_and_yellow_when_nearly_used_up() {
        let with = |margin_ns| margin_paint(&PathStatus { margin_ns, contract: CONTRACT, ..PathStatus::default() });
        assert_eq!((with(-1), with(29_000), with(31_000)), (Paint::Red, Paint::Yellow, Paint::Green));
    }
}
