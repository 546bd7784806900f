//! Every scenario of the folder, as a test.

use fide_sim::run;
use fide_sim::scenario::Scenario;

#[test]
fn scenarios_end_as_they_say() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let scenario = Scenario::parse(&std::fs::read_to_string(&file).unwrap()).unwrap_or_else(|why| panic!("{file:?}: {why}"));
        assert!(!scenario.expects.is_empty(), "{file:?} expects nothing");
        let (outcome, world) = run::watch_world(&scenario.plan);
        let unmet = scenario.judge(&outcome, world.as_ref());
        let timeline = world.as_ref().and_then(|world| world.timeline()).map(ToString::to_string).unwrap_or_default();
        assert!(unmet.is_empty(), "{timeline}{file:?}: {unmet:#?}");
    }
}
