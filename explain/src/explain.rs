//! What a verdict rests on, in words and with its arithmetic (B3).
//!
//! [`Explanation::of`] draws the conclusions, [`text`] sets them; `--json` prints the former. The stamps of two hosts' clocks are
//! never subtracted from each other: each CLOCK_MONOTONIC begins when its host booted. Only in a lab, where all hosts are one
//! machine, do they share a clock.

use crate::event::{code, paint, subject};
use crate::style::{Paint, Style};
use crate::table::{Cell, Table};
use crate::units::{self, exact_ns, ns, signed_ns};
use fide_wire::control::HistoryEvent;
use fide_wire::verdict::{
    Barrier, BarrierBy, Cause, Confirmers, Contract, Evidence, FenceMode, FencePromise, FencedWhy, Grade, PathEvidence,
    ProgressSource,
};
use serde::Serialize;
use std::fmt::Write as _;

/// Whose clocks a verdict's stamps come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clocks {
    /// The verdict is about the observer's own host.
    OneHost,
    /// Several hosts of a lab, which are one machine.
    OneMachine,
    /// Two machines.
    Two,
}

/// A stamp.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stamp {
    /// `event`, `sent`, `received`, `noted`.
    pub step: &'static str,
    /// Whose CLOCK_MONOTONIC.
    pub clock: String,
    /// Its value.
    pub at_ns: u64,
    /// Since the stamp before; absent for the first and where two clocks meet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_previous_ns: Option<i64>,
}

/// TO = HB + λmin + 2·δmax.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Timeout {
    /// The contract it comes from.
    pub contract: Contract,
    /// What the contract gives.
    pub computed_ns: u64,
    /// What the agent used.
    pub used_ns: u64,
}

/// One path's silence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Silence {
    /// Path number.
    pub path: usize,
    /// As the verdict has it.
    #[serde(flatten)]
    pub evidence: PathEvidence,
    /// How much longer than the timeout; negative: not yet.
    pub over_timeout_ns: i64,
}

/// The conclusions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// What was concluded.
    pub conclusion: String,
    /// What it means, and what not.
    pub meaning: Vec<String>,
    /// Whose clocks the stamps are from.
    pub clocks: Clocks,
    /// From the event to the note of it; certain verdicts.
    pub stamps: Vec<Stamp>,
    /// From the event to the observer's note, where one clock saw both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_ns: Option<i64>,
    /// The path that the first copy of the notice took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_copy_path: Option<u8>,
    /// The timeout's arithmetic; inferred verdicts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Timeout>,
    /// The evidence path by path.
    pub paths: Vec<Silence>,
    /// What supports it.
    pub strong: Vec<String>,
    /// What weakens it.
    pub weak: Vec<String>,
}

impl Explanation {
    /// Draws them. `one_machine`: the agent asked is a lab's.
    pub fn of(event: &HistoryEvent, one_machine: bool) -> Self {
        let clocks = match (event.observer == event.node, one_machine) {
            (true, _) => Clocks::OneHost,
            (false, true) => Clocks::OneMachine,
            (false, false) => Clocks::Two,
        };
        let mut explanation = Explanation {
            conclusion: conclusion(event),
            meaning: meaning(event),
            clocks,
            stamps: Vec::new(),
            total_ns: None,
            first_copy_path: None,
            timeout: None,
            paths: Vec::new(),
            strong: Vec::new(),
            weak: Vec::new(),
        };
        let Some(evidence) = event.evidence.as_deref() else {
            explanation.weak.push("the history keeps no evidence with this event".into());
            return explanation;
        };
        match event.grade {
            Grade::Certain => explanation.travel(event, evidence),
            Grade::Inferred if event.cause == Cause::Hung => explanation.standstill(event, evidence),
            Grade::Inferred => explanation.silence(event, evidence),
        }
        explanation
    }

    /// A process without progress: seen on its own host, told like a crash.
    fn standstill(&mut self, event: &HistoryEvent, e: &Evidence) {
        self.travel(event, e);
        if e.timeout_ns > 0 {
            self.strong.push(format!(
                "looked at eight times within its limit of {}, by an agent that was itself on time, nothing had moved",
                ns(e.timeout_ns)
            ));
        }
        if event.observer != event.node {
            self.weak.push(format!("the limit, and what else is known of it, is in the history of {}", event.node));
        }
    }

    fn travel(&mut self, event: &HistoryEvent, e: &Evidence) {
        if e.event_ns == 0 && e.sent_ns == 0 && e.received_ns == 0 {
            return; // a matter of the observer itself, nothing travelled
        }
        let there = &event.node;
        let here = &event.observer;
        let all = [
            ("event", there, e.event_ns),
            ("sent", there, e.sent_ns),
            ("received", here, e.received_ns),
            ("noted", here, event.at_ns),
        ];
        let mut all: Vec<_> = all.into_iter().filter(|(_, _, at)| *at > 0).collect();
        if self.clocks == Clocks::OneHost {
            // The agent notes the end of a process of its own before the notice is out: in the order of what happened.
            all.sort_by_key(|(_, _, at)| *at);
        }
        for (step, clock, at_ns) in all {
            let same = |s: &Stamp| self.clocks != Clocks::Two || &s.clock == clock;
            let since_previous_ns = self.stamps.last().filter(|s| same(s)).map(|s| difference(at_ns, s.at_ns));
            self.stamps.push(Stamp { step, clock: clock.clone(), at_ns, since_previous_ns });
        }
        if self.clocks != Clocks::Two && e.event_ns > 0 {
            self.total_ns = Some(difference(event.at_ns, e.event_ns));
        }
        if self.clocks != Clocks::OneHost && e.received_ns > 0 {
            self.first_copy_path = Some(e.path);
        }
        let heard: Vec<_> = e.paths.iter().filter(|p| p.last_number > 0).collect();
        if !heard.is_empty() && self.clocks != Clocks::OneHost {
            self.strong.push(format!(
                "heartbeats of {there} were arriving on {} when the notice came",
                units::count(heard.len(), "path")
            ));
        }
    }

    fn silence(&mut self, event: &HistoryEvent, e: &Evidence) {
        if e.timeout_ns > 0 {
            self.timeout = Some(Timeout { contract: e.contract, computed_ns: e.contract.timeout_ns(), used_ns: e.timeout_ns });
        }
        self.paths = (e.paths.iter().enumerate())
            .map(|(path, p)| Silence { path, evidence: *p, over_timeout_ns: difference(p.silent_ns, e.timeout_ns) })
            .collect();

        if e.observer_awake_ns > e.timeout_ns {
            let awake = ns(e.observer_awake_ns);
            self.strong
                .push(format!("{} itself had been running without a pause for {awake}, longer than the timeout", event.observer));
        } else {
            let awake = ns(e.observer_awake_ns);
            self.weak.push(format!(
                "{} itself had been running without a pause for only {awake}, less than the timeout: its own pause may be what it saw",
                event.observer
            ));
        }
        if e.drained {
            self.strong.push(format!("the receive rings were proved empty{}: nothing had arrived and was waiting", barriers(e)));
        } else {
            self.weak.push("the receive rings were not proved empty; something may have arrived and been waiting".into());
        }
        let lossy = e.paths.iter().filter(|p| p.own_loss_ns > p.last_arrival_ns).count();
        if lossy > 0 && lossy == e.paths.len() {
            self.weak.push(format!(
                "{} itself lost packets on {} after the last arrival; the silence counts from when one of them was clean",
                event.observer,
                if lossy == 1 { "its path" } else { "all its paths" }
            ));
        } else if lossy > 0 {
            self.weak
                .push(format!("{} itself lost packets on a path after the last arrival; another path was clean", event.observer));
        } else {
            self.strong.push("no interface, backlog or socket here is known to have lost anything since the last arrival".into());
        }
        match e.drops {
            0 => self.strong.push("no packet was dropped or refused on receipt since the last arrival".into()),
            n => self.weak.push(format!(
                "dropped or refused since the last arrival: {}, which may have been heartbeats",
                units::count(usize::try_from(n).unwrap_or(usize::MAX), "packet")
            )),
        }
        if let Some(promise) = &e.fence {
            self.fence(event, e, promise);
        }
        if e.also_reported_by.is_empty() {
            self.weak.push("no other observer has reported the same silence".into());
        } else {
            self.strong.push(format!("also reported by {}", e.also_reported_by.join(", ")));
        }
        let dark = e.paths.iter().filter(|p| !p.carrier).count();
        if dark > 0 && event.cause != Cause::Interface {
            self.weak.push(format!(
                "{} of {} without carrier: nothing could have arrived there",
                units::count(dark, "interface"),
                event.observer
            ));
        }
        if e.paths.len() == 1 && event.cause == Cause::SilentHost {
            self.weak.push("there is only one path: a cut cable or a dead switch looks the same".into());
        }
    }
}

impl Explanation {
    /// What a promised fence adds, and on which assumption.
    fn fence(&mut self, event: &HistoryEvent, e: &Evidence, promise: &FencePromise) {
        if !matches!(event.cause, Cause::SilentHost | Cause::AgentLost) {
            return;
        }
        let (node, timeout) = (&event.node, ns(promise.timeout_ns));
        let what = if promise.host { node.clone() } else { format!("the guarded processes of {node}") };
        if !e.fenced {
            self.weak.push(format!("{node} promised a fence within {timeout} of its last heartbeat, and that was not over yet"));
            return;
        }
        let assumption = match promise.mode {
            FenceMode::Sent => "if every heartbeat that left it arrived here; a partition breaks that",
            FenceMode::Acknowledged(Confirmers::All) => "whatever the network did, since it needs this observer's confirmations",
            FenceMode::Acknowledged(Confirmers::Majority) => {
                "unless a majority of hosts still confirms its heartbeats and this observer is not among them"
            }
            FenceMode::Acknowledged(Confirmers::AtLeast(_)) => {
                "unless enough other hosts still confirm its heartbeats and this observer is not among them"
            }
        };
        self.strong.push(format!(
            "{what} was fenced by then ({timeout}, {}): nothing of it leaves any more, {assumption}",
            promise.mode
        ));
    }
}

/// Whose answers came out of them.
fn barriers(e: &Evidence) -> String {
    let by = |b: &Barrier| match b.by {
        BarrierBy::Host => format!("of {} (path {})", b.from, b.path),
        BarrierBy::Answerer => format!("of {}, which is no host of the cluster (path {})", b.from, b.path),
        BarrierBy::Itself => format!("to its own question by {} (path {})", b.from, b.path),
    };
    let all: Vec<String> = e.barriers.iter().map(by).collect();
    if all.is_empty() { String::new() } else { format!(" by the answers {}", all.join(" and ")) }
}

fn difference(later: u64, earlier: u64) -> i64 {
    i64::try_from(i128::from(later) - i128::from(earlier)).unwrap_or(i64::MAX)
}

/// What was concluded, in a sentence.
fn conclusion(event: &HistoryEvent) -> String {
    let who = subject(event);
    let node = &event.node;
    match event.cause {
        Cause::Exited if event.code < 0 => {
            format!("{who} ended while nobody watched it: that it ended is certain, how is not known.")
        }
        Cause::Exited => format!("{who} ended by itself with exit status {}.", event.code),
        Cause::Killed => format!("{who} was ended by {}.", units::signal(event.code)),
        Cause::OutOfMemory => {
            format!("The kernel of {node} ended {who} because memory had run out: its cgroup's, or the host's.")
        }
        Cause::Replaced => format!(
            "The process {who} had joined, and began another program (exec) or joined again: the instance that was watched ended, \
             and what it held ended with it."
        ),
        Cause::Doomed => {
            format!("{who} can no longer be saved, although it still existed when this was seen (code {}).", event.code)
        }
        Cause::Left => format!("{who} said that it leaves."),
        Cause::AgentLost => format!("The agent of {node} is gone or stuck, while the kernel of {node} still answers."),
        Cause::SilentHost => format!("There was no sign of {node} on any path for longer than its timeout."),
        Cause::PathDown => format!("Path {} loses what {node} sends, while another path carries it.", event.code),
        Cause::Unreachable => format!(
            "{node} is silent here on every path, and {} hears it: the network between {node} and {} is at fault.",
            event.evidence.as_ref().map_or_else(|| "another host".to_owned(), |e| e.heard_by.join(", ")),
            event.observer
        ),
        Cause::PathUp => format!("Path {} carries heartbeats from {node} again.", event.code),
        Cause::ContractBroken => format!("Heartbeats of {node} came later than the contract allows."),
        Cause::ContractKept => format!("Heartbeats of {node} keep the contract again."),
        Cause::Isolated => format!("{} can reach nobody.", event.observer),
        Cause::Rejoined => format!("{} reaches others again.", event.observer),
        Cause::Returned if event.code == 4 => {
            format!("{node} lives in incarnation {}: {} had given it up, wrongly.", event.incarnation, event.observer)
        }
        Cause::Returned => format!("{node} came (back) with incarnation {}.", event.incarnation),
        Cause::ObserverPaused => format!("{} did not run for longer than a timeout.", event.observer),
        Cause::NameClash => format!("Another agent calls itself {node}."),
        Cause::ForeignTraffic if event.code != 0 => format!("{}.", event.text),
        Cause::ForeignTraffic => {
            "Packets of another cluster with this cluster's id, or of this cluster with another key, arrive.".into()
        }
        Cause::Hung => match ProgressSource::from_code(event.code) {
            Some(ProgressSource::Report) => format!("An application of {node} found that {who} is hung."),
            Some(source) => format!("{who} is there and makes no progress: {source} has not moved for its limit."),
            None => format!("{who} is there and makes no progress."),
        },
        Cause::Progressing => format!("{who}, which was hung, makes progress again."),
        Cause::Monitored => format!("{who} is monitored from now on."),
        // Its text names the interface.
        Cause::Interface if !event.text.is_empty() => format!("On {node}: {}.", event.text),
        Cause::Interface => format!("A network interface of {node} {}.", code(event).unwrap_or_default()),
        Cause::Local => format!("Something on {node} needs its operator."),
        Cause::Fenced => format!("{node} is fenced: {}.", FencedWhy::from_code(event.code)),
        Cause::Recovered => {
            format!("The fence of {node} was opened again on an operator's word; its incarnation is {} now.", event.incarnation)
        }
    }
}

/// What grade and cause mean, and what they do not.
fn meaning(event: &HistoryEvent) -> Vec<String> {
    let node = &event.node;
    let mut all = Vec::new();
    all.push(match (event.grade, event.cause) {
        (Grade::Certain, Cause::Left) => "certain: it was announced, not guessed from silence.".to_string(),
        (Grade::Certain, c) if c.ends_process() => format!("certain: the kernel of {node} saw it; no timer was involved."),
        (Grade::Certain, _) => "certain: it was seen, not guessed from silence.".into(),
        (Grade::Inferred, Cause::Hung) => {
            format!(
                "inferred: that nothing moved was seen on {node}; that the process is stuck follows from the limit it was given."
            )
        }
        (Grade::Inferred, _) => {
            "inferred: a conclusion from silence. It is right as long as the contract below holds, and wrong otherwise.".into()
        }
    });
    let more = match event.cause {
        Cause::Doomed => Some(
            "Nothing of it is piggybacked any more. Another event confirms it with the final code once the kernel has taken it apart, \
             which can take long for a large process.",
        ),
        Cause::Hung => Some(
            "It did not end, and its host is reachable: it may move again (progressing) or not. Whether to go on without it is for hooks and \
             applications to decide; killing it makes a certain crash of it.",
        ),
        Cause::Left => Some("This is a departure, not a crash: nothing needs to fail over because of it alone."),
        Cause::AgentLost => Some(
            "This says nothing about the processes of that host: they may be running well. But until its agent is back, a crash \
             there is noticed only when the whole host falls silent.",
        ),
        Cause::SilentHost => Some(
            "The host crashed, lost power, or is cut off on all its paths. What it sends from now on under this incarnation is refused; \
             when it returns, it does so as a new incarnation.",
        ),
        Cause::PathDown => {
            Some("This is a fault of the network (a cable, a port, a switch), never a crash: see that path's NICs and switch.")
        }
        Cause::ContractBroken => Some(
            "Timeouts derived from that contract cannot be relied on meanwhile; engines without a quorum stop. Look for what delays \
             heartbeats: fide doctor --jitter 10 on both hosts.",
        ),
        Cause::Isolated => Some("The fault is likely here: verdicts on others are withheld until something is heard again."),
        Cause::ObserverPaused => Some("What was missed during the pause is not held against others."),
        Cause::NameClash => {
            Some("Give one of them another name (node = … in its configuration): neither can be trusted meanwhile.")
        }
        Cause::ForeignTraffic if matches!(event.code, 4 | 6) => Some(
            "Look for the station that uses that MAC (the switch's address table says at which port), for a loop of the network, or for a filter of ICMP.",
        ),
        Cause::ForeignTraffic if event.code != 0 => {
            Some("They cost this host next to nothing. Find the sender by its MAC at the switch; fide status counts on.")
        }
        Cause::ForeignTraffic => {
            Some("Give the clusters different names or separate networks, and see that all hosts have the same keys.")
        }
        Cause::Fenced => Some(
            "What its processes send does not leave where it is guarded, since others may have acted on their absence. When the applications there can \
             start anew: fide fence recover.",
        ),
        Cause::Recovered => Some("Others see it return as a new incarnation; what it was before stays refused."),
        _ => None,
    };
    all.extend(more.map(String::from));
    if event.confirms {
        all.push("It confirms an earlier event (doomed) about the same process: one crash, not two.".into());
    }
    all
}

/// The explanation for people.
pub fn text(event: &HistoryEvent, explanation: &Explanation, style: &Style) -> String {
    let mut out = String::new();
    let id = event.unique_id().map_or_else(|| format!("event {}", event.seq), |id| format!("verdict {id}"));
    let _ = writeln!(out, "{}  {}, {}", style.bold(&id), style.paint(paint(event.cause), event.cause.name()), event.grade);
    let _ = writeln!(out, "{}", explanation.conclusion);
    if !event.text.is_empty() {
        let _ = writeln!(out, "  {} {}", style.dim("in the history:"), event.text);
    }
    let _ = writeln!(
        out,
        "  observed by {} at {}; incarnation {} of {}; line {} of the history",
        event.observer,
        units::wall(event.wall_ns),
        event.incarnation,
        event.node,
        event.seq
    );
    section(&mut out, style, "What it means", &explanation.meaning);
    travel(&mut out, explanation, style);
    silence(&mut out, explanation, style);
    section(&mut out, style, "What supports it", &explanation.strong);
    section(&mut out, style, "What weakens it", &explanation.weak);
    out
}

fn section(out: &mut String, style: &Style, title: &str, lines: &[String]) {
    if !lines.is_empty() {
        let _ = writeln!(out, "\n{}", style.bold(title));
        for line in lines {
            let _ = writeln!(out, "  {line}");
        }
    }
}

fn travel(out: &mut String, x: &Explanation, style: &Style) {
    if x.stamps.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.bold("How the news travelled"));
    let mut table = Table::new(&["STEP", "CLOCK OF", ">STAMP (s)", ">SINCE THE STEP BEFORE"]);
    for (i, s) in x.stamps.iter().enumerate() {
        let since = match s.since_previous_ns {
            Some(d) => Cell::painted(signed_ns(d), if d < 0 { Paint::Red } else { Paint::Plain }),
            None if i == 0 => "".into(),
            None => Cell::painted("another clock", Paint::Dim),
        };
        let stamp = format!("{}.{:09}", s.at_ns / 1_000_000_000, s.at_ns % 1_000_000_000);
        let step = match s.step {
            "event" => "event, in the kernel",
            "sent" => "notice sent",
            "received" => "received by the kernel",
            _ => "noted by the agent",
        };
        table.row([step.into(), s.clock.clone().into(), stamp.into(), since]);
    }
    *out += &table.render(style, 2);
    if let Some(total) = x.total_ns {
        let _ = writeln!(out, "  from the event to the observer's note: {}", style.bold(&signed_ns(total)));
    }
    let why = match x.clocks {
        Clocks::OneHost => "All stamps are of one host's clock.",
        Clocks::OneMachine => "The hosts of a lab are one machine with one clock, so all stamps can be compared.",
        Clocks::Two => {
            "Stamps of two hosts' clocks are not subtracted from each other: they are not synchronised, so the time on the wire is unknown here."
        }
    };
    let _ = writeln!(out, "  {}", style.dim(why));
    if let Some(path) = x.first_copy_path {
        let _ = writeln!(out, "  the first copy of the notice came on path {path}");
    }
}

fn silence(out: &mut String, x: &Explanation, style: &Style) {
    if let Some(t) = &x.timeout {
        let c = &t.contract;
        let _ = writeln!(out, "\n{}", style.bold("The timeout"));
        let _ = writeln!(
            out,
            "  contract: HB {}, λmin {}, δmax {}",
            exact_ns(c.period_ns),
            exact_ns(c.lambda_min_ns),
            exact_ns(c.delta_max_ns)
        );
        let _ = writeln!(
            out,
            "  TO = HB + λmin + 2·δmax = {} + {} + 2 × {} = {}",
            exact_ns(c.period_ns),
            exact_ns(c.lambda_min_ns),
            exact_ns(c.delta_max_ns),
            style.bold(&exact_ns(t.computed_ns))
        );
        if t.used_ns != t.computed_ns {
            let _ =
                writeln!(out, "  the agent used {} (the longest of all paths, or a setting)", style.bold(&exact_ns(t.used_ns)));
        }
    }
    if x.paths.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.bold("The evidence, path by path"));
    let mut table =
        Table::new(&["PATH", ">LAST NUMBER", ">SILENT FOR", ">OVER TIMEOUT", ">LOST", "CARRIER HERE", "ITS KERNEL", "ITS AGENT"]);
    for s in &x.paths {
        let p = &s.evidence;
        let heard = p.last_arrival_ns > 0;
        let over = match (&x.timeout, s.over_timeout_ns) {
            (None, _) => "-".into(),
            (Some(_), o) if o > 0 => Cell::painted(format!("+{}", ns(o.unsigned_abs())), Paint::Red),
            (Some(_), o) => Cell::painted(signed_ns(o), Paint::Green),
        };
        table.row([
            s.path.to_string().into(),
            if heard { p.last_number.to_string().into() } else { "-".into() },
            if heard { ns(p.silent_ns).into() } else { Cell::painted("never heard", Paint::Yellow) },
            over,
            p.lost.to_string().into(),
            if p.carrier { Cell::painted("yes", Paint::Green) } else { Cell::painted("no", Paint::Red) },
            its_kernel(p).into(),
            if p.agent_absent { "absent".into() } else { "not known".into() },
        ]);
    }
    *out += &table.render(style, 2);
}

/// What a host's kernel said on one path. No answer says something only where it was asked.
fn its_kernel(path: &PathEvidence) -> &'static str {
    match (path.kernel_answered, path.asked) {
        (true, _) => "answered",
        (false, true) => "no answer",
        (false, false) => "not asked",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{CONTRACT, killed};

    fn certain() -> HistoryEvent {
        let evidence = Evidence {
            event_ns: 900_000_000_000,
            sent_ns: 900_000_014_200,
            received_ns: 5_000_000_000,
            path: 1,
            ..Evidence::default()
        };
        HistoryEvent { evidence: Some(Box::new(evidence)), ..killed() }
    }

    fn silent() -> HistoryEvent {
        let path = |silent_ns, carrier| PathEvidence {
            last_number: 4711,
            last_arrival_ns: 4_000_000_000,
            silent_ns,
            lost: 2,
            asked: true,
            carrier,
            ..PathEvidence::default()
        };
        let evidence = Evidence {
            paths: vec![path(1_700_000, true), path(2_000_000, true)],
            timeout_ns: 1_612_000,
            contract: CONTRACT,
            observer_awake_ns: 12_000_000_000,
            drained: true,
            also_reported_by: vec!["h3".into()],
            ..Evidence::default()
        };
        HistoryEvent {
            cause: Cause::SilentHost,
            grade: Grade::Inferred,
            app: None,
            code: 0,
            text: String::new(),
            maintenance: None,
            evidence: Some(Box::new(evidence)),
            ..killed()
        }
    }

    #[test]
    fn a_promised_fence_supports_a_verdict_as_far_as_its_mode_goes() {
        let with = |mode, fenced| {
            let mut event = silent();
            let e = event.evidence.as_mut().unwrap();
            e.fence = Some(FencePromise { timeout_ns: 50_000_000, mode, host: true });
            e.fenced = fenced;
            let x = Explanation::of(&event, false);
            text(&event, &x, &Style::PLAIN)
        };
        let said = with(FenceMode::Sent, true);
        assert!(said.contains("h2 was fenced by then (50 ms, sent)") && said.contains("a partition breaks that"), "{said}");
        let said = with(FenceMode::Acknowledged(Confirmers::All), true);
        assert!(said.contains("acknowledged by all") && said.contains("whatever the network did"), "{said}");
        let said = with(FenceMode::Acknowledged(Confirmers::Majority), true);
        assert!(said.contains("unless a majority of hosts still confirms"), "{said}");
        assert!(with(FenceMode::Sent, false).contains("was not over yet"));
        let plain = silent();
        assert!(!text(&plain, &Explanation::of(&plain, false), &Style::PLAIN).contains("fence"));
    }

    #[test]
    fn steps_on_ones_own_host_are_told_in_the_order_they_happened() {
        let event = certain();
        let mut e = *event.evidence.clone().unwrap();
        (e.sent_ns, e.received_ns) = (e.event_ns + 14_200, e.event_ns + 2_000); // the ring is written before the notice is sent
        let own = HistoryEvent { observer: event.node.clone(), at_ns: e.event_ns + 9_000, evidence: Some(Box::new(e)), ..event };
        let x = Explanation::of(&own, false);
        let steps: Vec<_> = x.stamps.iter().map(|s| (s.step, s.since_previous_ns)).collect();
        assert_eq!(steps, [("event", None), ("received", Some(2_000)), ("noted", Some(7_000)), ("sent", Some(5_200))]);
    }

    #[test]
    fn stamps_of_two_clocks_are_never_subtracted() {
        let x = Explanation::of(&certain(), false);
        let since: Vec<_> = x.stamps.iter().map(|s| s.since_previous_ns).collect();
        assert_eq!(since, [None, Some(14_200), None, Some(30_000)]);
        assert_eq!(x.total_ns, None);
        let text = text(&certain(), &x, &Style::PLAIN);
        assert!(text.contains("another clock") && text.contains("not synchronised"), "{text}");
        assert!(text.contains("14.2 µs") && text.contains("30 µs"), "{text}");
    }

    #[test]
    fn in_a_lab_all_hosts_share_a_clock() {
        let mut event = certain();
        event.at_ns = 900_000_050_000;
        event.evidence.as_mut().unwrap().received_ns = 900_000_019_200;
        let x = Explanation::of(&event, true);
        let since: Vec<_> = x.stamps.iter().filter_map(|s| s.since_previous_ns).collect();
        assert_eq!(since, [14_200, 5_000, 30_800]);
        assert_eq!(x.total_ns, Some(50_000));
        let text = text(&event, &x, &Style::PLAIN);
        assert!(text.contains("from the event to the observer's note: 50 µs") && text.contains("one machine"), "{text}");
    }

    #[test]
    fn an_event_of_the_observers_own_host_needs_no_second_clock() {
        let mut event = certain();
        event.observer = "h2".into();
        event.at_ns = 900_000_020_000;
        let e = event.evidence.as_mut().unwrap();
        (e.sent_ns, e.received_ns) = (0, 0);
        let x = Explanation::of(&event, false);
        assert_eq!((x.clocks, x.total_ns, x.first_copy_path), (Clocks::OneHost, Some(20_000), None));
    }

    #[test]
    fn fide_3_3_a_silence_is_explained_with_the_numbers_of_its_timeout() {
        let event = silent();
        let x = Explanation::of(&event, false);
        let text = text(&event, &x, &Style::PLAIN);
        let wanted = "TO = HB + λmin + 2·δmax = 1 ms + 12 µs + 2 × 300 µs = 1.612 ms";
        assert!(text.contains(wanted), "{text}");
        assert!(text.contains("+88 µs") && text.contains("+388 µs"), "{text}");
        assert!(text.contains("also reported by h3") && x.weak.is_empty(), "{text}");
        assert!(!text.contains("How the news travelled"), "{text}");
    }

    #[test]
    fn who_gave_the_barriers_is_said() {
        let mut event = silent();
        let said = |event: &HistoryEvent| text(event, &Explanation::of(event, false), &Style::PLAIN);
        assert!(said(&event).contains("proved empty: nothing"), "{}", said(&event));
        let barrier = |path, from: &str, by| Barrier { path, from: from.into(), by, asked_ns: 5 };
        event.evidence.as_mut().unwrap().barriers =
            vec![barrier(0, "10.0.0.1", BarrierBy::Answerer), barrier(1, "eth0", BarrierBy::Itself)];
        let wanted = "proved empty by the answers of 10.0.0.1, which is no host of the cluster (path 0) and to its own question by eth0 (path 1): nothing";
        assert!(said(&event).contains(wanted), "{}", said(&event));
        event.evidence.as_mut().unwrap().barriers = vec![barrier(1, "h3", BarrierBy::Host)];
        assert!(said(&event).contains("by the answers of h3 (path 1): nothing"), "{}", said(&event));
    }

    #[test]
    fn no_answer_is_said_only_of_a_path_that_was_asked() {
        let kernels = |event: &HistoryEvent| {
            let text = text(event, &Explanation::of(event, false), &Style::PLAIN);
            ["no answer", "not asked", "answered"].map(|said| text.matches(said).count())
        };
        let mut event = silent();
        assert_eq!(kernels(&event), [2, 0, 0]);
        (event.cause, event.code) = (Cause::PathDown, 1);
        event.evidence.as_mut().unwrap().paths[0].asked = false;
        assert_eq!(kernels(&event), [1, 1, 0]);
        event.evidence.as_mut().unwrap().paths[1].kernel_answered = true;
        assert_eq!(kernels(&event), [0, 1, 1]);
    }

    #[test]
    fn what_weakens_a_verdict_is_said() {
        let mut event = silent();
        let e = event.evidence.as_mut().unwrap();
        e.drained = false;
        e.drops = 1;
        e.also_reported_by.clear();
        e.observer_awake_ns = 10;
        e.paths[0].carrier = false;
        e.paths[0].own_loss_ns = e.paths[0].last_arrival_ns + 1;
        let x = Explanation::of(&event, false);
        assert_eq!((x.weak.len(), x.strong.len()), (6, 0), "{:?}", x.weak);
        assert!(x.weak.iter().any(|w| w.contains("1 packet,")), "{:?}", x.weak);
    }

    #[test]
    fn an_event_without_evidence_is_explained_as_far_as_it_goes() {
        for cause in Cause::ALL {
            let event = HistoryEvent { cause, ..killed() };
            let x = Explanation::of(&event, false);
            assert!(x.conclusion.ends_with('.') && !x.meaning.is_empty(), "{cause}");
            assert!(text(&event, &x, &Style::PLAIN).contains(cause.name()));
        }
    }
}
