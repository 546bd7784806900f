//! What agents do in a group of HUC or HSUC on real packets is judged by the TLA+ specifications
//! (`specs/trace`, `scripts/specs --trace`), and so are copies of it with one thing changed, which
//! must be refused.
//!
//! `FIDE_E2E_TRACES`: a directory in which the traces are kept, too.

use crate::common::{Setup, World, until};
use crate::e2e_lab::groups::{create, open, read, read_all, runs, status, values};
use fide_agent::group_trace::DIRECTORY;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A line of a trace: time (ns), member, and what it did.
#[derive(Clone)]
struct Line {
    at_ns: u64,
    member: String,
    what: String,
}

impl Line {
    fn words(&self) -> Vec<&str> {
        self.what.split(' ').collect()
    }

    fn event(&self) -> &str {
        self.words()[0]
    }

    /// Of `decide`, `send` and `recv`.
    fn instance(&self) -> Option<&str> {
        let at = if self.event() == "decide" { 1 } else { 2 };
        self.words().get(at).copied()
    }
}

/// The lines of one member. A last one that is half written is left out.
fn lines_of(text: &str) -> Vec<Line> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let read = |line: &str| {
        let mut parts = line.splitn(3, ' ').map(str::to_string);
        let (at, member, what) = (parts.next(), parts.next(), parts.next());
        Line { at_ns: at.unwrap().parse().unwrap(), member: member.unwrap(), what: what.unwrap() }
    };
    whole.lines().map(read).collect()
}

/// One trace of those of a group's members, in the order of time.
fn merge(files: &[Vec<Line>]) -> Vec<Line> {
    let all = files.concat();
    let was_received = |sent: &Line| {
        let words = sent.words();
        let same = |line: &Line| line.event() == "recv" && line.words()[1..4] == words[1..4];
        all.iter().any(same)
    };
    let mut lines = Vec::new();
    for file in files {
        for (at, line) in file.iter().enumerate() {
            let is_ride = line.event() == "send" && line.words()[4] == "*";
            let has_left = file[at..].iter().any(|line| line.event() == "left");
            // A decision of a member that was killed before its heartbeat left: nobody has it.
            if line.event() != "left" && !(is_ride && !has_left && !was_received(line)) {
                lines.push(line.clone());
            }
        }
    }
    lines.sort_by_key(|line| line.at_ns);
    // Nothing is written of a kill. It came behind all that its member wrote, and before any report
    // of it.
    let reported: Vec<String> =
        lines.iter().filter(|line| line.event() == "report").map(|line| line.words()[1].to_string()).collect();
    for member in reported {
        let is_crash = |line: &Line| line.member == member && line.event() == "crash";
        if !lines.iter().any(is_crash) {
            let last = lines.iter().rposition(|line| line.member == member).map_or(0, |at| at + 1);
            let report = lines.iter().position(|line| line.what == format!("report {member}")).unwrap();
            let at = last.max(report);
            let at_ns = lines[at.min(lines.len() - 1)].at_ns;
            lines.insert(at, Line { at_ns, member, what: "crash".into() });
        }
    }
    lines
}

/// With one decision of another value: that of the decision before it.
fn other_decision(lines: &mut [Line]) {
    let decides = |line: &&mut Line| line.member == "p2" && line.event() == "decide";
    let mut last: Vec<&mut Line> = lines.iter_mut().rev().filter(decides).take(2).collect();
    let before = last[1].words()[2].to_string();
    last[0].what = format!("decide {} {before}", last[0].words()[1]);
}

/// Without what p1, which leads, received of p3 in the last instance that it decided: a proposal of
/// HUC, an acknowledgement of HSUC.
fn one_is_not_waited_for(lines: &mut Vec<Line>) {
    let decided = lines.iter().rev().find(|line| line.member == "p1" && line.event() == "decide").unwrap();
    let instance = decided.instance().unwrap().to_string();
    let is_it = |line: &Line| {
        line.member == "p1" && line.event() == "recv" && line.instance() == Some(&instance) && line.words()[3] == "p3"
    };
    lines.retain(|line| !is_it(line));
}

fn write(path: &Path, head: &str, lines: &[Line]) {
    let begun_ns = lines[0].at_ns;
    let text: String =
        lines.iter().map(|line| format!("{} {} {}\n", (line.at_ns - begun_ns) / 1_000, line.member, line.what)).collect();
    std::fs::write(path, format!("# {head}\n{text}")).unwrap();
}

/// The model checker accepts those traces that it should, and no others.
fn judged(traces: &[PathBuf]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/specs");
    let output = Command::new(script).arg("--trace").args(traces).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77) {
        println!("SKIPPED: {said}");
        return;
    }
    print!("{said}");
    assert!(output.status.success(), "{said}");
}

/// Three hosts whose agents write traces, and a group of them.
fn traced(engine: &str) -> Option<(World, PathBuf)> {
    let mut w = Setup::hosts(3).empty().up()?;
    let directory = w.lab.host_dir(1).join("traces");
    std::fs::create_dir(&directory).unwrap();
    for host in 1..=3 {
        w.start_under(host, &["env", &format!("{DIRECTORY}={}", directory.display())]);
    }
    w.all_alive();
    create(&w, 1, "orders", engine, &["h1", "h2", "h3"]).unwrap();
    (1..=3).for_each(|host| runs(&w, host, "orders"));
    Some((w, directory))
}

fn a_run_is_judged(engine: &str) {
    let Some((mut w, directory)) = traced(engine) else { return };
    let mut groups: Vec<_> = (1..=3).map(|host| open(&w, host, u64::from(host), 0, 0)).collect();
    let mut logs = vec![Vec::new(); 3];
    for (at, group) in groups.iter_mut().enumerate() {
        group.propose(format!("h{}", at + 1).as_bytes()).unwrap();
    }
    read_all(&mut groups, &mut logs, 3);
    // Decided or not when the leader dies.
    for n in 0..4 {
        groups[1 + n % 2].propose(format!("{n}").as_bytes()).unwrap();
    }
    w.kill_agent(1);
    groups[2].propose(b"behind").unwrap();
    for at in [1, 2] {
        read(&mut groups[at], &mut logs[at], 8);
    }
    assert_eq!(values(&logs[1]), values(&logs[2]));
    until("it is evicted by both", || {
        [2, 3].iter().all(|host| status(&w, *host, "orders").is_some_and(|group| group.members.len() == 2))
    });
    groups[1].propose(b"by two").unwrap();
    for at in [1, 2] {
        read(&mut groups[at], &mut logs[at], 9);
    }

    let mut files: Vec<PathBuf> = std::fs::read_dir(&directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let files: Vec<Vec<Line>> = files.iter().map(|file| lines_of(&std::fs::read_to_string(file).unwrap())).collect();
    let members: Vec<&str> = files.iter().map(|file| file[0].member.as_str()).collect();
    assert_eq!(members, ["p1", "p2", "p3"], "no member came again");
    let lines = merge(&files);
    for event in ["propose", "send", "recv", "decide", "report", "crash"] {
        assert!(lines.iter().any(|line| line.event() == event), "no line with {event}");
    }

    let mut traces = Vec::new();
    let mut put = |name: String, head: String, lines: &[Line]| {
        let path = directory.join(format!("{name}.trace"));
        write(&path, &head, lines);
        if let Some(kept) = std::env::var_os("FIDE_E2E_TRACES") {
            std::fs::copy(&path, Path::new(&kept).join(format!("{name}.trace"))).unwrap();
        }
        traces.push(path);
    };
    let whole = format!("{engine}_real_packets");
    put(whole.clone(), format!("{engine} 3 agents on real packets; the leader's is killed"), &lines);
    let mut changed = lines.clone();
    other_decision(&mut changed);
    put(
        format!("{engine}_real_other"),
        format!("{engine} 3 REJECT: {whole}, but p2's last decision is that before it"),
        &changed,
    );
    let mut changed = lines.clone();
    one_is_not_waited_for(&mut changed);
    assert!(changed.len() < lines.len(), "p1 received nothing of p3");
    let head = format!("{engine} 3 REJECT: {whole}, but p1 has received nothing of p3 in its last instance");
    put(format!("{engine}_real_missing"), head, &changed);
    judged(&traces);
}

#[test]
fn a_run_of_huc_is_a_behaviour_of_its_specification() {
    a_run_is_judged("huc");
}

#[test]
fn a_run_of_hsuc_is_a_behaviour_of_its_specification() {
    a_run_is_judged("hsuc");
}

/// A leader may be killed between the line of a decision and the heartbeat that carries it.
#[test]
fn a_decision_whose_heartbeat_never_left_is_in_no_trace() {
    let one = "10 p1 send decide 1 p1 * p1.1\n20 p1 left\n30 p1 decide 1 p1.1\n40 p1 send decide 2 p1 * p1.2\n50 p1 dec";
    let two = "25 p2 recv decide 1 p1 p2 p1.1\n60 p2 report p1\n";
    let told = |two: &str| {
        let lines = merge(&[lines_of(one), lines_of(two)]);
        lines.iter().map(|line| format!("{} {}", line.member, line.what)).collect::<Vec<_>>()
    };
    let first = ["p1 send decide 1 p1 * p1.1", "p2 recv decide 1 p1 p2 p1.1", "p1 decide 1 p1.1"];
    assert_eq!(told(two), [&first[..], &["p1 crash", "p2 report p1"]].concat());
    // It has left if somebody received it, although its sender did not get to say so.
    let received = two.replace("60", "45 p2 recv decide 2 p1 p2 p1.2\n60");
    let second = ["p1 send decide 2 p1 * p1.2", "p2 recv decide 2 p1 p2 p1.2"];
    assert_eq!(told(&received), [&first[..], &second[..], &["p1 crash", "p2 report p1"]].concat());
}
