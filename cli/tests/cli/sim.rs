//! `fide sim`: no agent, no rights, no network.

use crate::fake::fide;
use std::path::Path;
use std::process::Output;

fn sim(words: &str) -> Output {
    let words: Vec<_> = ["sim"].into_iter().chain(words.split(' ')).collect();
    fide(Path::new("/nonexistent/fided.sock"), &words)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn seeds_are_run_and_reported_in_text_and_json() {
    let o = sim("run --engine hsuc --menu pauses --policy fence --seeds 200 --hosts 3 --jobs 2");
    assert_eq!(o.status.code(), Some(0), "{}", text(&o.stderr));
    assert!(text(&o.stdout).contains("200 worlds in") && text(&o.stdout).contains("nothing was violated"));
    let o = sim("run --engine hsuc --policy all --menu within-contract --seeds 50 --json");
    let rows: Vec<serde_json::Value> = text(&o.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!((row["engine"].as_str(), row["worlds"].as_u64(), row["failed"].as_u64()), (Some("hsuc"), Some(50), Some(0)));
    }
}

#[test]
fn what_does_not_go_together_is_refused_with_what_there_is() {
    let o = sim("run --engine lowi --policy fence");
    assert_eq!(o.status.code(), Some(2));
    assert!(text(&o.stderr).contains("policies of lowi: trust-contract"), "{}", text(&o.stderr));
    let o = sim("replay 3 --engine zab");
    assert!(o.status.code() == Some(2) && text(&o.stderr).contains("there are: hsuc, huc, lowi, paxos, raft"));
}

#[test]
fn a_replay_is_a_timeline_and_a_broken_one_is_shrunk() {
    let o = sim("replay 5 --engine huc");
    assert_eq!(o.status.code(), Some(0), "{}", text(&o.stderr));
    assert!(text(&o.stdout).contains("p1") && text(&o.stdout).contains("Nothing was violated"));
    let seed = (0..200).find_map(|seed| {
        let o = sim(&format!("replay {seed} --engine hsuc --menu beyond-contract --hosts 3 --property accuracy"));
        (o.status.code() == Some(1)).then(|| text(&o.stdout))
    });
    let told = seed.expect("who trusts a contract that does not hold is deceived now and then");
    assert!(told.contains("Shrunk from") && told.contains("Violated: accuracy"), "{told}");
}

#[test]
fn scenarios_and_delays() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/scenarios");
    let o = sim(&format!("scenario {folder}/leave.txt {folder}/wrong-suspicion-without-fence.txt"));
    assert_eq!((o.status.code(), text(&o.stdout).matches('✓').count()), (Some(0), 2), "{}", text(&o.stdout));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "3 hosts, engine hsuc\nat 1ms h1 proposes \"a\"\nexpect nobody applies \"a\"\n").unwrap();
    let o = sim(&format!("scenario {}", file.path().display()));
    assert!(o.status.code() == Some(1) && text(&o.stdout).contains("expect nobody applies \"a\": it is entry 1"));
    std::fs::write(file.path(), "3 hosts\nwhat?\n").unwrap();
    let o = sim(&format!("scenario {}", file.path().display()));
    assert!(o.status.code() == Some(2) && text(&o.stderr).contains(":2: not something"), "{}", text(&o.stderr));
    assert_eq!(sim("scenario /nonexistent.txt").status.code(), Some(4));
    let o = sim("delays --json");
    let rows: Vec<serde_json::Value> = text(&o.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), rows[2]["engine"].as_str(), rows[2]["by_leader_all"].as_u64()), (5, Some("lowi"), Some(1)));
}

#[test]
fn what_broke_is_listed_and_a_replayed_seed_is_a_story_that_ends_as_it_says() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let story = "2 hosts, engine hsuc, seed 2, clients stay\nat 1ms h1 is cut off for 3ms\nat 1.1ms h1 proposes \"a\"\nexpect disagreement\n";
    std::fs::write(file.path(), story).unwrap();
    let o = sim(&format!("scenario --json {}", file.path().display()));
    let told: serde_json::Value = serde_json::from_slice(&o.stdout).unwrap();
    let broken: Vec<_> = told["broken"].as_array().unwrap().iter().map(|one| one["property"].as_str().unwrap()).collect();
    assert!(o.status.code() == Some(1) && broken.contains(&"accuracy") && broken.contains(&"agreement"), "{told}");
    assert!(told["unmet"].to_string().contains("nobody said that accuracy breaks"), "{told}");
    let o = sim(&format!("scenario --timeline {}", file.path().display()));
    assert!(text(&o.stdout).contains("proposes p1.1=\"a\""), "{}", text(&o.stdout));
    for json in ["", " --json"] {
        let o = sim(&format!("replay 7 --engine hsuc --menu beyond-contract --scenario{json}"));
        let mut told = text(&o.stdout);
        if !json.is_empty() {
            told = serde_json::from_str::<serde_json::Value>(&told).unwrap()["scenario"].as_str().unwrap().to_owned();
        }
        std::fs::write(file.path(), &told).unwrap();
        let o = sim(&format!("scenario {}", file.path().display()));
        assert_eq!(o.status.code(), Some(0), "{told}{}", text(&o.stdout));
    }
}

#[test]
fn a_scenario_that_cannot_be_read_keeps_none_behind_it_from_being_run() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/scenarios");
    let wrong = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(wrong.path(), "3 hosts\nat 1ms h1 is kiled\n").unwrap();
    let files = format!("/nonexistent.txt {} {folder}/leave.txt", wrong.path().display());
    let o = sim(&format!("scenario {files}"));
    let (told, done) = (text(&o.stderr), text(&o.stdout));
    assert_eq!(o.status.code(), Some(4), "that of the first one that could not be read: {told}");
    assert!(done.contains("✓") && done.contains("leave.txt"), "{done}");
    assert!(told.contains("cannot read /nonexistent.txt"), "{told}");
    assert!(
        told.contains(&format!("{}:2: ", wrong.path().display())) && told.contains("did you mean \"h1 is killed\"?"),
        "{told}"
    );
    let o = sim(&format!("scenario --json {files}"));
    let rows: Vec<serde_json::Value> = text(&o.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["ok"].as_bool().unwrap()).collect::<Vec<_>>(), [false, false, true]);
    assert!(rows[1]["error"].as_str().unwrap().contains(":2: ") && rows[2]["error"].is_null());
    // What does not end as it says weighs more.
    std::fs::write(wrong.path(), "at 1ms h1 proposes \"a\"\nexpect nobody applies \"a\"\n").unwrap();
    assert_eq!(sim(&format!("scenario {files}")).status.code(), Some(1));
}

#[test]
fn limits_are_in_the_help_and_kept_with_words() {
    let help = text(&sim("run --help").stdout);
    for limit in ["2 to 9", "1 to 2^48", "0 to 2^62", "1 to 1024", "number of its events"] {
        assert!(help.contains(limit), "{limit}: {help}");
    }
    for (words, wanted) in [
        ("--engine hsuc --seeds -1", "a number from 1 to 281474976710656"),
        ("--engine hsuc --seeds 0", "a number from 1 to"),
        ("--engine hsuc --seeds many", "a number from 1 to"),
        ("--engine hsuc --from -1", "a number from 0 to"),
        ("--engine hsuc --hosts 10", "a number from 2 to 9"),
        ("--engine hsuc --hosts -3", "a number from 2 to 9"),
        ("--engine hsuc --jobs 0", "a number from 1 to 1024"),
        ("--engine hsuc --jobs 60000", "a number from 1 to 1024"),
        ("--engine hsucc", "did you mean hsuc?"),
        ("--engine hsuc --menu pauzes", "did you mean pauses?"),
    ] {
        let o = sim(&format!("run {words}"));
        assert!(o.status.code() == Some(2) && text(&o.stderr).contains(wanted), "{words}: {}", text(&o.stderr));
    }
    assert!(text(&sim("replay -1 --engine hsuc").stderr).contains("a number from 0 to"));
    assert!(text(&sim("scenario --help").stdout).contains("expect all alive apply \"NAME\""));
}

#[test]
fn pages_have_what_can_be_said_and_no_empty_section() {
    let page = |words: &[&str]| text(&fide(Path::new("/nonexistent/fided.sock"), words).stdout);
    let scenario = page(&["man", "sim", "scenario"]);
    assert!(scenario.contains(".SH NOTES\nSettings") && scenario.contains("hN loses power after COUNT outputs"), "{scenario}");
    assert!(!scenario.contains(".SH EXTRA"), "{scenario}");
    assert!(page(&["man", "sim", "run"]).contains("number of its events"));
}
