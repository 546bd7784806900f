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
    assert!(o.status.code() == Some(2) && text(&o.stderr).contains("line 2: "), "{}", text(&o.stderr));
    assert_eq!(sim("scenario /nonexistent.txt").status.code(), Some(4));
    let o = sim("delays --json");
    let rows: Vec<serde_json::Value> = text(&o.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), rows[2]["engine"].as_str(), rows[2]["by_leader_all"].as_u64()), (5, Some("lowi"), Some(1)));
}
