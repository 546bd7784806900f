//! `fide plan`: no agent, no rights, no network.

use crate::fake::fide;
use std::path::Path;
use std::process::Output;

fn plan(words: &str) -> Output {
    let words: Vec<_> = ["plan"].into_iter().chain(words.split_whitespace()).collect();
    fide(Path::new("/nonexistent/fided.sock"), &words)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The output, every run of spaces as one.
fn words_of(o: &Output) -> String {
    text(&o.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn json(words: &str) -> Vec<serde_json::Value> {
    let o = plan(&format!("{words} --json"));
    assert!(o.status.success(), "{words}: {}", text(&o.stderr));
    text(&o.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn only<'a>(rows: &'a [serde_json::Value], kind: &str) -> Vec<&'a serde_json::Value> {
    rows.iter().filter(|row| row["kind"] == kind).collect()
}

#[test]
fn two_networks_are_answered_for_within_80_columns() {
    for form in ["flat:5x2", "ring:6", "leaf-spine:8x4", "leaf-spine:4x1,hosts=6", "fat-tree:4", "flat:3x1", "jellyfish:16x4"] {
        let o = plan(form);
        assert!(o.status.success(), "{form}: {}", text(&o.stderr));
        let said = text(&o.stdout);
        for question in ["Are the networks disjoint?", "What can be promised?", "Which timeout at which bandwidth?"] {
            assert!(said.contains(question), "{form}: {said}");
        }
        let wide: Vec<&str> = said.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{form}: {wide:?}");
        // What is printed twice is the same twice.
        assert_eq!(said, text(&plan(form).stdout), "{form}");
    }
    let said = words_of(&plan("flat:5x2"));
    assert!(said.contains("Yes: any one failure of switches and cables leaves all hosts connected."), "{said}");
    assert!(said.contains("h1–h5 disjoint") && said.contains("s1 → h2–h5") && said.contains("% asked"), "{said}");
    assert!(said.contains("failures survived, whichever 1 2"), "{said}");
}

#[test]
fn json_has_the_arithmetic_of_the_text() {
    let rows = json("flat:5x2 --hb 100us --size 500");
    let network = only(&rows, "network")[0];
    assert_eq!((network["hosts"].as_u64(), network["survives"].as_u64()), (Some(5), Some(1)));
    assert_eq!(network["wire_bytes"].as_u64(), Some(538));
    let senders = only(&rows, "sender");
    assert_eq!(senders.len(), 5);
    for sender in senders {
        let ns = |key: &str| sender[key].as_u64().unwrap();
        assert_eq!(ns("timeout_ns"), 100_000 + ns("lambda_min_ns") + 2 * ns("delta_max_ns"));
        assert_eq!(sender["trees"].as_array().unwrap().len(), 2);
        let pair = sender["pair_ccf_per_year"].as_f64().unwrap();
        assert!((pair - 0.044).abs() < 0.0005, "FiDe Tab. 3, height 1: {pair}");
    }
    let asked = only(&rows, "offer").into_iter().find(|offer| offer["heartbeat_ns"] == 100_000).unwrap();
    assert_eq!(asked["sent_bps"].as_u64(), Some(538 * 8 * 10_000));
    assert_eq!(asked["host_link_bps"].as_u64(), Some(4 * 538 * 8 * 10_000));
    assert_eq!(only(&rows, "failure").len(), 2);
    assert_eq!(only(&rows, "added-switch")[0]["survives"].as_u64(), Some(2));
}

#[test]
fn a_file_is_planned_and_what_it_cannot_promise_is_said() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("plan.toml");
    let network = "name = \"two racks\"\n[[switch]]\nname = \"s[1-2]\"\nrisks = [\"pdu-a\"]\n\
                   [[host]]\nname = \"h[1-4]\"\nswitches = [\"s1\", \"s2\"]\n[[host]]\nname = \"h5\"\nswitches = [\"s1\"]\n";
    std::fs::write(&file, network).unwrap();
    let o = plan(file.to_str().unwrap());
    let said = words_of(&o);
    assert!(o.status.success(), "{}", text(&o.stderr));
    assert!(said.contains("two racks: 5 hosts") && said.contains("h5 is on one switch only"), "{said}");
    assert!(said.contains("switch s1 h5") && said.contains("risk pdu-a"), "{said}");
    assert!(said.contains("h5 single"), "{said}");
    // Without that host the networks are disjoint, but for what feeds both.
    let said = text(&plan(&format!("{} --hosts h[1-4]", file.display())).stdout);
    assert!(said.contains("Yes: any one failure") && said.contains("pdu-a"), "{said}");
    // A picture is one, and names the trees.
    let svg = place.path().join("plan.svg");
    assert!(plan(&format!("{} --svg {} --from h2", file.display(), svg.display())).status.success());
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n") && drawn.contains("two racks: the trees of h2"));
    assert!(drawn.contains(">tree 2<") && drawn.contains(">h5<"));
}

#[test]
fn refusals_say_what_why_and_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("plan.toml");
    for (network, code, why, what_to_do) in [
        ("[[switch]]\nname = \"s1\"\n[[link]]\nbetween = [\"s1\", \"s1\"]\n", 1, "self-loop", "other end"),
        ("[[switch]]\nname = \"s1\"\n[[switch]]\nname = \"s1\"\n", 1, "a switch named s1", "another name"),
        ("[[switch]]\nname = \"s1\"\n[[host]]\nname = \"h1\"\nswitches = [\"s2\"]\n", 1, "names s2", "define it"),
        ("[defaults]\nbandwidth = \"10\"\n", 1, "lacks the unit", "10Gbit/s"),
        ("[[switch]]\nname = \"s1", 1, "line 2", "cut short"),
        ("", 1, "no [[switch]]", "docs/plan.md"),
        ("\u{0}", 1, "line 1", "cut short"),
    ] {
        std::fs::write(&file, network).unwrap();
        let o = plan(file.to_str().unwrap());
        let said = text(&o.stderr);
        assert_eq!(o.status.code(), Some(code), "{network:?}: {said}");
        assert!(said.contains(why) && said.contains("→") && said.contains(what_to_do), "{network:?}: {said}");
        assert!(o.stdout.is_empty());
    }
    std::fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    assert!(text(&plan(file.to_str().unwrap()).stderr).contains("not UTF-8"));
    for (words, code, why) in [
        ("nosuchfile", 4, "No such file"),
        ("/", 1, "directory"),
        ("hypercube:8", 2, "no generator named hypercube"),
        ("fat-tree:5", 2, "even number"),
        ("flat:5x2 --hosts h9", 4, "no host h9"),
        ("flat:5x2 --hosts h1,s1", 4, "s1 is a switch"),
        ("flat:5x2 --hosts h1", 1, "nobody to send to"),
        ("flat:5x2 --from h7", 4, "no host h7"),
        ("flat:5x2 --hb 5", 2, "lacks the unit"),
        ("flat:5x2 --trees 9", 2, "from 1 to 4"),
        ("flat:5x2 --size 1", 2, "28..=9000"),
        ("flat:5x2 --share 0", 2, "1..=100"),
        ("flat:4000x2", 1, "has room for"),
        ("flat:5x2 --svg /nonexistent/a.svg", 1, "cannot write"),
    ] {
        let o = plan(words);
        let said = text(&o.stderr);
        assert_eq!(o.status.code(), Some(code), "{words}: {said}");
        assert!(said.contains(why), "{words}: {said}");
    }
    let o = plan("nosuchfile --json");
    let failure: serde_json::Value = serde_json::from_slice(&o.stderr).unwrap();
    assert_eq!((failure["kind"].as_str(), failure["exit"].as_u64()), (Some("not-found"), Some(4)));
}

#[test]
fn the_example_of_the_documents_is_planned_as_they_show_it() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/plan.md")).unwrap();
    let block = |after: &str| -> String {
        let rest = page.split(after).nth(1).unwrap_or_else(|| panic!("{after} is not in docs/plan.md"));
        let rest = rest.split_once('\n').unwrap().1;
        rest.split("```").next().unwrap().to_owned()
    };
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("racks.toml");
    std::fs::write(&file, block("```toml")).unwrap();
    let o = plan(file.to_str().unwrap());
    assert!(o.status.success(), "{}", text(&o.stderr));
    assert_eq!(block("$ fide plan racks.toml"), text(&o.stdout));
}
