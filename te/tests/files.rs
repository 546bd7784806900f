//! Files and words of strangers: refused in plain words, or planned for; never a panic.

use fide_te::fabric::Limits;
use fide_te::generate::Generator;
use fide_te::plan::{Plan, Request};
use fide_te::topology::{NodeId, Topology, TopologyError};
use fide_te::{file, survey, svg};
use proptest::prelude::*;

fn check_refusal(refused: &TopologyError) {
    assert!(!refused.what.is_empty() && !refused.hint.is_empty());
    assert!(!refused.what.chars().any(char::is_control), "{refused:?}");
}

/// Plans and draws whatever was read.
fn use_it(topology: &Topology) {
    let hosts: Vec<NodeId> = topology.hosts().take(40).collect();
    let request = Request { sigma_bytes: 120, period_ns: 1_000_000, trees: 2 };
    let _ = survey::survey(topology, &hosts, Limits::default());
    match Plan::new(topology, &hosts, request, Limits::default()) {
        Ok(plan) => {
            let picture = svg::render(topology, &plan, &plan.sets()[0]);
            assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
            assert!(plan.contracts().iter().all(|contract| contract.latency_max_ns() < 1 << 62));
        }
        Err(refused) => assert!(!refused.what.is_empty() && !refused.hint.is_empty()),
    }
}

/// Lines that belong into such a file, some of them wrong.
fn line() -> impl Strategy<Value = String> {
    let node = prop_oneof![
        Just("s1"),
        Just("s2"),
        Just("s3"),
        Just("h1"),
        Just("h2"),
        Just("h3:eth0"),
        Just("x"),
        Just("s1:p"),
        Just("")
    ];
    let quantity = prop_oneof![
        Just("bandwidth = \"1Gbit/s\""),
        Just("bandwidth = \"100kbit/s\""),
        Just("bandwidth = 3"),
        Just("queue = \"0B\""),
        Just("queue = \"1024MiB\""),
        Just("lambda_min = \"1s\""),
        Just("delta_max = \"1000ms\""),
        Just("shared = \"1024MiB\""),
        Just("certain = false"),
        Just("core = true"),
        Just("risks = [\"a\", \"b\"]")
    ];
    prop_oneof![
        (1..5u32).prop_map(|n| format!("[[switch]]\nname = \"s{n}\"")),
        (1..5u32).prop_map(|n| format!("[[host]]\nname = \"h{n}\"")),
        proptest::collection::vec(node.clone(), 0..4).prop_map(|on| format!("switches = {on:?}")),
        (node.clone(), node).prop_map(|(a, b)| format!("[[link]]\nbetween = [\"{a}\", \"{b}\"]")),
        quantity.prop_map(str::to_owned),
        Just("[defaults]".to_owned()),
        Just("[defaults.host]".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

    #[test]
    fn any_text_is_refused_in_plain_words(text in "\\PC{0,200}|(\\[\\[?[a-z.]{0,9}\\]?\\]?\n?[a-z_]{0,9} ?= ?.{0,20}\n){0,6}") {
        match file::parse(&text) {
            Ok(topology) => use_it(&topology),
            Err(refused) => check_refusal(&refused),
        }
        if let Err(refused) = text.parse::<Generator>().and_then(|g| g.build()) {
            assert!(!refused.hint.is_empty());
        }
    }

    #[test]
    fn files_of_right_and_wrong_lines_are_planned_or_refused(
        lines in proptest::collection::vec(line(), 0..24),
    ) {
        let text = format!("[[switch]]\nname = \"s9\"\n[[host]]\nname = \"h9\"\nswitches = [\"s9\"]\n{}", lines.join("\n"));
        match file::parse(&text) {
            Ok(topology) => use_it(&topology),
            Err(refused) => check_refusal(&refused),
        }
    }
}

#[test]
fn the_slowest_links_in_a_long_row_do_not_overflow() {
    let mut text = String::from(
        "[defaults]\nbandwidth = \"100kbit/s\"\nqueue = \"1024MiB\"\nlambda_min = \"1s\"\n\
        delta_max = \"1s\"\nblocking = \"1024MiB\"\n[[switch]]\nname = \"s[1-400]\"\n",
    );
    text += "[[host]]\nname = \"h1\"\nswitches = [\"s1\"]\n[[host]]\nname = \"h2\"\nswitches = [\"s400\"]\n";
    for i in 1..400 {
        text += &format!("[[link]]\nbetween = [\"s{i}\", \"s{}\"]\n", i + 1);
    }
    use_it(&file::parse(&text).unwrap());
}
