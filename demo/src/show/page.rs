//! The report of the demonstration.

#[doc(hidden)]
pub mod sample;

use super::{Repeated, Scene, Tcp};
use crate::crash::Steps;
use crate::drawing::{Axes, Axis, Row, cdf, chart, parts, pdf, timeline};
use crate::report::Page;
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
    page.fact("result", &format!("{verdict}; the demonstration took {:.0} s", took.as_secs_f64()));
    if !ok {
        page.remark("bad", verdict);
    }
    if !repeated.upcalls.is_empty() {
        let (ours, n) = (repeated.upcalls.quantiles(), repeated.upcalls.len());
        page.fact(
            "crash to upcall",
            &format!("median {} of {n} on other hosts, {} at most", human_us(ours.p50), human_us(ours.max)),
        );
        if !repeated.tcp.is_empty() {
            page.fact("TCP beside it", &format!("median {}, with a small process", human_us(repeated.tcp.quantiles().p50)));
        }
    }
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
    let rows: Vec<Row> = scene.lines.iter().map(row).collect();
    match (timeline(&rows), parts(&rows)) {
        (Ok(timeline), Ok(parts)) => {
            page.figure(&timeline);
            if let Some(parts) = parts {
                page.figure(&parts);
                add_parts(page, scene);
            }
        }
        (Err(e), _) | (_, Err(e)) => page.remark("bad", &e.to_string()),
    }
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
    page.checks(scene.checks.iter().map(|check| (check.ok, check.what.as_str())));
}

/// The same as the figure of parts, in numbers.
fn add_parts(page: &mut Page, scene: &Scene) {
    let steps = |line: &super::Line| Some((line.observer.clone(), line.steps.as_ref()?.all()));
    let cells = |(observer, steps): (String, [u64; 4])| {
        [observer].into_iter().chain(steps.map(human_ns)).chain([human_ns(steps.iter().sum())]).collect()
    };
    let headers: Vec<String> =
        ["observer".into()].into_iter().chain(Steps::NAMES.map(|n| format!(">{n}"))).chain([">whole".into()]).collect();
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    page.table(&headers, &scene.lines.iter().filter_map(steps).map(cells).collect::<Vec<_>>());
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
    for (title, make) in [("Density", pdf as fn(&str, &[u64]) -> _), ("Cumulative", cdf as fn(&str, &[u64]) -> _)] {
        let axes = Axes { title, x: Axis::times("after kill(2)"), y: Axis::numbers("part of all") };
        let series = [make("upcall", repeated.upcalls.sorted()), make("TCP connection", repeated.tcp.sorted())];
        if let Ok(figure) = chart(&axes, &series) {
            page.figure(&figure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sample;

    #[test]
    fn what_was_not_shown_is_in_sight_and_the_rest_folded() {
        let page = sample::page();
        let summary = &page[..page.find("<h2>").unwrap()];
        assert!(summary.contains("NOT every scene") && summary.contains("median 99 µs of 100"), "{summary}");
        let folded = |text: &str| {
            let before = &page[..page.find(text).unwrap()];
            before.matches("<details>").count() > before.matches("</details>").count()
        };
        assert!(folded("nobody doubted") && !folded("it was shown"));
        assert!(page.contains("2 of 2 checks passed"));
    }
}
