//! In how many worlds the end is judged: a world that is excused from it says nothing of liveness.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use fide_sim::{Menu, Options, Policy, engines, run};

/// Of a hundred worlds of an engine and policy, spread over the menus under which it promises to be live; and of each of these menus.
const OF_PAIR: u64 = 85;
const OF_MENU: u64 = 70;

#[test]
fn the_end_of_most_worlds_is_judged() {
    let mut too_few = Vec::new();
    for engine in engines::AVAILABLE {
        for policy in Policy::ALL.into_iter().filter(|policy| policy.suits(*engine)) {
            let (mut judged, mut seeds, mut why) = (0, 0, BTreeMap::new());
            for menu in Menu::ALL {
                let options = Options { engine: *engine, policy, menu, hosts: None };
                if !options.promise().live {
                    continue;
                }
                let totals = run::explore(options, 0..200, 2, &AtomicBool::new(false), &run::Progress::default());
                println!("{options}: {} of {} judged", totals.judged(), totals.seeds);
                if totals.judged() * 100 < OF_MENU * totals.seeds {
                    too_few.push(format!("{options}: {} of {}, {:?}", totals.judged(), totals.seeds, totals.excused));
                }
                judged += totals.judged();
                seeds += totals.seeds;
                for (reason, count) in totals.excused {
                    *why.entry(reason).or_insert(0) += count;
                }
            }
            println!("{engine}, {policy}: {judged} of {seeds} judged, not judged: {why:?}");
            if judged * 100 < OF_PAIR * seeds {
                too_few.push(format!("{engine}, {policy}: {judged} of {seeds}, {why:?}"));
            }
        }
    }
    assert!(too_few.is_empty(), "too few worlds are judged to their end:\n{}", too_few.join("\n"));
}
