//! Documents that speak of what is simulated say what is.

use fide_sim::delays::{Delays, count};
use fide_sim::engines::AVAILABLE;
use fide_sim::invariants::TABLE;
use fide_sim::scenario::{ACTS, EXPECTS, REASONS, SETTINGS, Scenario};
use fide_sim::{Menu, Policy};

fn document(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn the_page_has_the_delays_that_are_counted() {
    let page = document("docs/coordination.md");
    for engine in AVAILABLE {
        let counted = count(*engine, 3).unwrap();
        let pair = |delays: Delays| format!("{} / {}", delays.first, delays.all);
        let row = format!(
            "| `{engine}` | {} | {} | {} |",
            pair(counted.by_leader),
            pair(counted.by_another),
            pair(counted.after_crash)
        );
        assert!(page.contains(&row), "{row}");
        // The table of engines: from the leader to the last one.
        let row = page.lines().find(|line| line.starts_with(&format!("| `{engine}` |"))).unwrap();
        let said = row.split('|').nth(3).unwrap().trim().split([' ', ':']).next().unwrap();
        assert_eq!(said, counted.by_leader.all.to_string(), "{row}");
    }
}

/// What stands between fences of this kind, with the line that it begins on.
fn fenced(page: &str, kind: &str) -> Vec<(usize, String)> {
    let (mut found, mut open) = (Vec::new(), None);
    for (at, line) in page.lines().enumerate() {
        match &mut open {
            None if line.starts_with("```") => open = Some((&line[3..] == kind, at + 2, String::new())),
            Some((wanted, begun, text)) if line == "```" => {
                if *wanted {
                    found.push((*begun, std::mem::take(text)));
                }
                open = None;
            }
            Some((.., text)) => *text += &format!("{line}\n"),
            None => {}
        }
    }
    assert!(open.is_none(), "a fence is not closed");
    found
}

#[test]
fn the_examples_of_the_page_of_scenarios_end_as_they_say() {
    let page = document("docs/scenarios.md");
    let examples = fenced(&page, "scenario");
    assert!(examples.len() >= 4, "{}", examples.len());
    for (at, text) in examples {
        let scenario = Scenario::parse(&text).unwrap_or_else(|why| panic!("docs/scenarios.md, example at line {at}: {why}"));
        assert!(!scenario.expects.is_empty(), "the example at line {at} expects nothing");
        let ended = scenario.run();
        assert!(ended.unmet.is_empty(), "{}docs/scenarios.md, example at line {at}: {:#?}", ended.timeline, ended.unmet);
    }
    // What is shown to be refused is refused so: the text, and behind `→` what is said.
    let refused = fenced(&page, "refused");
    assert!(!refused.is_empty());
    for (at, text) in refused {
        for line in text.lines() {
            let (said, wanted) = line.split_once('→').unwrap_or_else(|| panic!("line {at}: {line}"));
            assert_eq!(Scenario::parse(said.trim()).unwrap_err().what, wanted.trim());
        }
    }
}

#[test]
fn the_page_of_scenarios_has_everything_that_can_be_said() {
    let page = document("docs/scenarios.md");
    let forms = SETTINGS.iter().chain(&ACTS).chain(&EXPECTS).chain(&REASONS).copied();
    let names =
        AVAILABLE.iter().map(|engine| engine.name()).chain(Policy::ALL.map(Policy::name)).chain(Menu::ALL.map(Menu::name));
    for said in forms.chain(names).chain(TABLE.map(|row| row.name)) {
        assert!(page.contains(&format!("`{said}`")), "{said} is not explained");
    }
}
