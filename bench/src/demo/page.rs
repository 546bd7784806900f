//! The report of the demonstration.

use super::{Repeated, Scene, Tcp};
use crate::report::{Axes, Page, Row, cdf, chart, pdf, timeline};
use crate::stats::{human_ns, human_us, thousands};
use std::time::Duration;

/// The whole page.
pub(super) fn render(scenes: &[Scene], repeated: &mut Repeated, took: Duration) -> String {
    let ok = scenes.iter().all(Scene::ok) && repeated.missed == 0;
    let mut page = Page::new(
        "FiDe: who knew when",
        "Three hosts on two networks, an agent on each. Processes crash on h1; an application on h2 and one on h3 monitor them, and \
         each also holds an ordinary TCP connection to the same process.",
    );
    let verdict = if ok { "Every scene showed what it must" } else { "NOT every scene showed what it must" };
    page.remark(if ok { "good" } else { "bad" }, &format!("{verdict}; the demonstration took {:.0} s.", took.as_secs_f64()));
    page.remark("dim", "Timelines are logarithmic. The shades of blue are the steps: hook, agent, wire, application.");
    for scene in scenes {
        add_scene(&mut page, scene);
    }
    if !repeated.upcalls.is_empty() {
        add_distribution(&mut page, repeated);
    }
    page.finish()
}

fn add_scene(page: &mut Page, scene: &Scene) {
    page.heading(&format!("{}. {}", scene.number, scene.title));
    page.paragraph(&scene.sentence);
    let tcp_ns = |tcp| match tcp {
        Tcp::Closed { after_ns } => Some(after_ns),
        Tcp::Nothing { .. } | Tcp::StillOpen => None,
    };
    let row = |line: &super::Line| Row {
        name: line.observer.clone(),
        upcall_ns: line.after_ns,
        steps: line.steps,
        tcp_ns: tcp_ns(line.tcp),
        tcp_text: line.tcp.to_string(),
    };
    page.svg(&timeline(&scene.lines.iter().map(row).collect::<Vec<_>>()));
    let cells = |line: &super::Line| {
        let ratio = match (tcp_ns(line.tcp), line.after_ns) {
            (Some(tcp), Some(ours)) => format!("{} ×", thousands(tcp / ours.max(1))),
            _ => String::new(),
        };
        vec![
            line.observer.clone(),
            line.what.clone(),
            line.grade.map_or_else(String::new, |g| g.to_string()),
            line.after_ns.map_or_else(|| "—".into(), human_ns),
            line.tcp.to_string(),
            ratio,
        ]
    };
    page.table(
        &["observer", "was told", "grade", ">after", ">its TCP connection", ">ratio"],
        &scene.lines.iter().map(cells).collect::<Vec<_>>(),
    );
    page.remark("dim", &format!("Counted from {}.", scene.from));
    for note in &scene.notes {
        page.remark("dim", note);
    }
    for check in &scene.checks {
        page.remark(if check.ok { "good" } else { "bad" }, &format!("{} {}", if check.ok { "✓" } else { "✗" }, check.what));
    }
}

fn add_distribution(page: &mut Page, repeated: &mut Repeated) {
    page.heading("The same crash many times, with a small process");
    let rows = [("upcall", &mut repeated.upcalls), ("TCP connection", &mut repeated.tcp)].map(|(name, samples)| {
        let q = samples.quantiles();
        let all = [q.min, q.p50, q.p99, q.max].map(human_us);
        [name.to_string(), samples.len().to_string()].into_iter().chain(all).collect::<Vec<_>>()
    });
    page.table(&["", ">n", ">min", ">median", ">p99", ">max"], &rows);
    if repeated.missed > 0 {
        page.remark("bad", &format!("{} upcalls never came.", repeated.missed));
    }
    let charts = [
        (
            Axes { title: "Density", x: "µs after kill(2)", y: "part of all", log_x: true, log_y: false },
            pdf as fn(&str, &[u64]) -> _,
        ),
        (
            Axes { title: "Cumulative", x: "µs after kill(2)", y: "part of all", log_x: true, log_y: false },
            cdf as fn(&str, &[u64]) -> _,
        ),
    ];
    for (axes, make) in charts {
        let series = [make("upcall", repeated.upcalls.sorted()), make("TCP connection", repeated.tcp.sorted())];
        if let Ok(svg) = chart(&axes, &series) {
            page.svg(&svg);
        }
    }
}
