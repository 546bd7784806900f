//! Every scenario of the folder, as a test.

use fide_sim::scenario::Scenario;

#[test]
fn scenarios_end_as_they_say() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 8, "{files:?}");
    let mut wrong = Vec::new();
    for file in files {
        let scenario = Scenario::parse(&std::fs::read_to_string(&file).unwrap()).unwrap_or_else(|why| panic!("{file:?}: {why}"));
        assert!(!scenario.expects.is_empty(), "{file:?} expects nothing");
        let ended = scenario.run();
        if !ended.unmet.is_empty() {
            wrong.push(format!("{}{}: {:#?}", ended.timeline, file.display(), ended.unmet));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
