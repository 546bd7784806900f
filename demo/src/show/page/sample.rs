//! For tests of reports, here and where a browser looks at them (`bench/src/report_tests.rs`).

use super::super::{Line, Repeated, Scene, Tcp};
use super::render;
use crate::crash::Steps;
use fide_wire::verdict::Grade;
use std::time::Duration;

/// A demonstration that never was: marks at both ends of the scale and above each other, one failed check.
#[must_use]
pub fn page() -> String {
    let steps = |hook, application| Some(Steps { hook, agent: 30_000, wire: 20_000, application });
    let line = |observer: &str, after_ns, steps, tcp| Line {
        observer: observer.into(),
        what: "doomed by SIGKILL".into(),
        cause: None,
        grade: Some(Grade::Certain),
        after_ns,
        steps,
        tcp,
    };
    let mut first = Scene::new("redis-server on h1 is killed: kill -9", "Nothing can save it.", "just before kill(2)");
    first.lines = vec![
        line("h2", Some(84_000), steps(10_000, 24_000), Tcp::Closed { after_ns: 90_000 }),
        line("h3", Some(130_000), steps(20_000, 60_000), Tcp::Closed { after_ns: 213_000_000 }),
    ];
    first.must("both knew of it before their connections ended", true);
    first.must("nobody doubted anything else", true);
    first.number = 1;
    let mut second = Scene::new("both cables of h1 are cut", "Nobody is left to report.", "just before the cut");
    second.lines = vec![
        line("h2", Some(800), None, Tcp::Nothing { waited_ns: 5_000_000_000 }),
        line("h3", Some(9_900_000_000), None, Tcp::StillOpen),
        line("h1", None, None, Tcp::Closed { after_ns: 10_000_000_000 }),
    ];
    second.number = 2;
    second.must("it was shown", false);
    second.note("a note");
    let upcalls = || (50..150).map(|us| us * 1_000).collect();
    let mut repeated = Repeated { upcalls: upcalls(), tcp: upcalls(), missed: 1 };
    render(&[first, second], &mut repeated, Duration::from_secs(42))
}
