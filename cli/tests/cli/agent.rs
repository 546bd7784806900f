//! Everything that asks an agent, or nobody.

use crate::fake::{FakeAgent, Knowledge, command, fide};
use fide_wire::control::{
    AppStatus, ErrorCode, FenceOrder, FenceStatus, HistoryEvent, HostStatus, MaintenanceOrder, MaintenanceStatus, Refused,
    Request, Selector, Status, WatchStatus,
};
use fide_wire::verdict::{Cause, Evidence, Grade, VerdictId};
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

fn knowledge() -> Knowledge {
    let event = |seq, cause, grade, node: &str, app: Option<&str>| HistoryEvent {
        seq,
        wall_ns: 1_794_000_000_000_000_000 + seq,
        at_ns: 50_000,
        observer: "h1".into(),
        observer_incarnation: 1,
        id: Some(VerdictId::new(0xab, seq as u32)),
        cause,
        grade,
        node: node.into(),
        incarnation: 3,
        app: app.map(String::from),
        code: 9,
        confirms: false,
        text: format!("event {seq}"),
        maintenance: None,
        evidence: Some(Box::new(Evidence { event_ns: 900, sent_ns: 1_000, received_ns: 20_000, ..Evidence::default() })),
    };
    Knowledge {
        status: Status {
            node: "h1".into(),
            cluster: "lab".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            hosts: vec![HostStatus {
                name: "h2".into(),
                state: "alive".into(),
                apps: vec![AppStatus { name: "redis".into(), app: 1, state: "alive".into() }],
                ..HostStatus::default()
            }],
            watched: vec![WatchStatus { name: "postgres".into(), ..WatchStatus::default() }],
            ..Status::default()
        },
        events: vec![
            event(1, Cause::Monitored, Grade::Certain, "h2", Some("redis")),
            event(2, Cause::PathDown, Grade::Inferred, "h3", None),
            event(3, Cause::Killed, Grade::Certain, "h2", Some("redis")),
        ],
        watched: Some((4242, 7)),
        ..Knowledge::default()
    }
}

fn out(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

fn err(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

fn code(o: &Output) -> i32 {
    o.status.code().unwrap()
}

fn json(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
}

#[test]
fn without_an_agent_the_code_is_3_and_the_way_to_start_one_is_told() {
    let nowhere = Path::new("/nonexistent/fided.sock");
    for line in [
        &["status"][..],
        &["events"],
        &["explain", "000000ab-1"],
        &["reload"],
        &["forget", "h2"],
        &["unmonitor", "x"],
        &["monitor", "x", "--pid", "1"],
    ] {
        let o = fide(nowhere, line);
        assert_eq!(code(&o), 3, "{line:?}");
        assert!(err(&o).contains("systemctl start fided") && out(&o).is_empty(), "{line:?}: {}", err(&o));
    }
    let o = fide(nowhere, &["status", "--json"]);
    let told = &json(&err(&o))[0];
    assert_eq!((code(&o), told["kind"].as_str(), told["exit"].as_u64()), (3, Some("no-agent"), Some(3)));
}

#[test]
fn nonsense_on_the_command_line_is_code_2() {
    let nowhere = Path::new("/nonexistent");
    for line in
        [&["fly"][..], &["events", "--cause", "died"], &["explain", "xyz"], &["monitor", "db"], &["lab", "cut", "h1", "7"], &[]]
    {
        assert_eq!(code(&fide(nowhere, line)), 2, "{line:?}");
    }
}

#[test]
fn status_is_text_for_people_and_one_object_for_programs() {
    let agent = FakeAgent::start(knowledge());
    let o = agent.fide(&["status"]);
    assert!(code(&o) == 0 && out(&o).contains("redis@h2") && !out(&o).contains('\x1b'), "{}", out(&o));
    let o = agent.fide(&["status", "--json"]);
    let status: Status = serde_json::from_str(&out(&o)).unwrap();
    assert_eq!(status, knowledge().status);
    let o = agent.fide(&["status", "--color", "always"]);
    assert!(out(&o).contains("\x1b[1mh1\x1b[0m"));
}

#[test]
fn the_option_wins_over_the_environment() {
    let agent = FakeAgent::start(knowledge());
    let o = fide(Path::new("/nonexistent"), &["status", "--socket", agent.socket().to_str().unwrap()]);
    assert_eq!(code(&o), 0, "{}", err(&o));
}

#[test]
fn events_are_filtered_and_the_last_ones_are_of_those_that_match() {
    let agent = FakeAgent::start(knowledge());
    let count = |line: &[&str]| out(&agent.fide(line)).lines().count();
    assert_eq!(count(&["events"]), 3);
    assert_eq!(count(&["events", "--last", "2"]), 2);
    assert_eq!(count(&["events", "--last", "0"]), 0);
    assert_eq!(count(&["events", "--from", "3"]), 1);
    assert_eq!(count(&["events", "--grade", "inferred"]), 1);
    let o = agent.fide(&["events", "--host", "h2", "--last", "1", "--json"]);
    let all = json(&out(&o));
    assert_eq!((all.len(), all[0]["cause"].as_str(), all[0]["id"].as_str()), (1, Some("killed"), Some("000000ab-3")));
}

#[test]
fn following_goes_on_after_the_kept_events_and_ends_with_the_agent() {
    let mut k = knowledge();
    k.later = vec![HistoryEvent { seq: 4, text: "a new one".into(), ..k.events[2].clone() }];
    let agent = FakeAgent::start(k);
    let o = agent.fide(&["events", "--follow", "--cause", "failure"]);
    assert_eq!(out(&o).lines().count(), 2, "{}", out(&o));
    assert!(out(&o).contains("a new one"));
    assert_eq!(code(&o), 3, "the agent hung up: {}", err(&o));
}

#[test]
fn an_unknown_host_or_process_is_code_4_with_the_likely_name() {
    let agent = FakeAgent::start(knowledge());
    for (line, likely) in [(["events", "--host", "h9"], "h2"), (["events", "--app", "rdeis"], "redis")] {
        let o = agent.fide(&line);
        assert!(code(&o) == 4 && err(&o).contains("did you mean") && err(&o).contains(likely), "{line:?}: {}", err(&o));
    }
    let unknown = [
        &["check", "@h9"][..],
        &["check", "redis@h9"],
        &["check", "rdeis@h2"],
        &["check", "h2"],
        &["check", "nohost"],
        &["check", "10.77.0.99"],
        &["events", "--app", "redis@h9"],
        &["events", "--app", "redis@h1"],
        &["events", "--host", "h2", "--host", "h9", "--cause", "left"],
        &["explain", "77"],
        &["maintenance", "on", "@h9"],
        &["maintenance", "on", "redis@h9"],
        &["maintenance", "on", "rdeis"],
        &["group", "propose", "nosuch", "x"],
        &["group", "trim", "nosuch"],
        &["group", "watch", "nosuch"],
        &["group", "resume", "nosuch"],
        &["key", "rotate", "2", "--file", "/nonexistent"],
    ];
    for line in unknown {
        let (text, o) = (agent.fide(line), agent.fide(&[line, &["--json"]].concat()));
        assert!(code(&text) == 4 && out(&text).is_empty(), "{line:?}: {} {}", out(&text), err(&text));
        let told = json(&err(&o));
        assert!(code(&o) == 4 && out(&o).is_empty() && told[0]["kind"] == "not-found" && told[0]["exit"] == 4, "{line:?}");
    }
    // A pattern covers what comes later, and so does a name by which that is asked for.
    for line in [&["maintenance", "on", "x*"][..], &["maintenance", "on", "rdeis", "--ahead"], &["check", "@h2"]] {
        assert_eq!(code(&agent.fide(line)), 0, "{line:?}");
    }
    // Known, only nothing happened to it.
    assert_eq!(code(&agent.fide(&["events", "--host", "h1"])), 0);
}

#[test]
fn a_malformed_argument_is_quoted_without_characters_that_cannot_be_seen() {
    let agent = FakeAgent::start(knowledge());
    let o = agent.fide(&["group", "switch", "orders", "--engine", "a\u{202e}b\u{200b}"]);
    assert!(code(&o) == 2 && err(&o).contains("a\\u{202e}b\\u{200b}") && err(&o).contains("huc"), "{}", err(&o));
    assert!(!err(&o).contains(['\u{202e}', '\u{200b}']), "{}", err(&o));
}

#[test]
fn a_verdict_is_explained_by_its_id_or_as_the_last_one() {
    let agent = FakeAgent::start(knowledge());
    for line in [&["explain", "000000ab-3"][..], &["explain", "last"], &["explain"]] {
        let o = agent.fide(line);
        assert!(
            code(&o) == 0 && out(&o).contains("SIGKILL") && out(&o).contains("another clock"),
            "{line:?}: {}{}",
            out(&o),
            err(&o)
        );
    }
    let o = agent.fide(&["explain", "000000ab-3", "--json"]);
    let x = &json(&out(&o))[0];
    assert_eq!(x["verdict"]["seq"], 3);
    assert_eq!(x["explanation"]["clocks"], "two");
    assert_eq!(x["explanation"]["stamps"][1]["since_previous_ns"], 100);
    assert!(x["explanation"]["stamps"][2].get("since_previous_ns").is_none());
    let o = agent.fide(&["explain", "000000ab-99"]);
    assert!(code(&o) == 4 && err(&o).contains("000000ab-00000003-3"), "{}", err(&o));
}

#[test]
fn each_way_of_naming_a_process_reaches_the_agent() {
    let agent = FakeAgent::start(knowledge());
    let ways = [
        ("--pid", "12", Selector::Pid(12)),
        ("--process", "redis-server", Selector::Name("redis-server".into())),
        ("--unit", "redis.service", Selector::Unit("redis.service".into())),
        ("--container", "3f9a", Selector::Cgroup("3f9a".into())),
        ("--cgroup", "/a/b", Selector::Cgroup("/a/b".into())),
        ("--port", "6379", Selector::Port(6379)),
    ];
    for (option, value, selector) in ways {
        let o = agent.fide(&["monitor", "db", option, value]);
        assert!(code(&o) == 0 && out(&o).contains("db@h1 is watched: process 4242"), "{}{}", out(&o), err(&o));
        let wanted = Request::watch("db", selector);
        assert!(agent.asked.lock().unwrap().contains(&wanted), "{option}");
    }
    let o = agent.fide(&["monitor", "db", "--process", "redis-server", "--user", "redis", "--containers"]);
    assert_eq!(code(&o), 0, "{}", err(&o));
    let selector = Selector::Name("redis-server".into());
    let wanted = Request::Watch { name: "db".into(), selector, user: Some("redis".into()), containers: true };
    assert!(agent.asked.lock().unwrap().contains(&wanted));
    let o = agent.fide(&["monitor", "db", "--pid", "12", "--json"]);
    assert_eq!(json(&out(&o))[0]["pid"], 4242);
}

#[test]
fn refusals_keep_the_agents_words_and_have_their_codes() {
    for (kind, exit) in [(ErrorCode::Exists, 1), (ErrorCode::Permission, 5), (ErrorCode::NotFound, 4), (ErrorCode::Ambiguous, 1)]
    {
        let refuse = Some(Refused { code: kind, what: "because of that".into() });
        let agent = FakeAgent::start(Knowledge { refuse, ..knowledge() });
        let o = agent.fide(&["monitor", "db", "--process", "redis"]);
        assert!(code(&o) == exit && err(&o).contains("because of that") && err(&o).contains('→'), "{kind:?}: {}", err(&o));
    }
    // The watch that is in the way is named by the agent; it is not the one that was asked for.
    let refuse = Some(Refused { code: ErrorCode::Exists, what: "process 7 is watched already, as cache".into() });
    let o = FakeAgent::start(Knowledge { refuse, ..knowledge() }).fide(&["monitor", "cg", "--pid", "7"]);
    assert!(!err(&o).contains("unmonitor cg") && err(&o).contains("fide status"), "{}", err(&o));
    // Each name once, however many of its processes there were.
    let refuse = Some(Refused { code: ErrorCode::NotFound, what: "no watch".into() });
    let mut k = Knowledge { refuse: refuse.clone(), ..knowledge() };
    k.status.watched = vec![WatchStatus { name: "redis".into(), ..WatchStatus::default() }; 3];
    let o = FakeAgent::start(k).fide(&["unmonitor", "elsewhere"]);
    assert!(code(&o) == 4 && err(&o).contains("watches: redis\n"), "{}", err(&o));
    let agent = FakeAgent::start(Knowledge { refuse, ..knowledge() });
    let o = agent.fide(&["unmonitor", "postgers"]);
    assert!(code(&o) == 4 && err(&o).contains("did you mean postgres?"), "{}", err(&o));
}

#[test]
fn the_fence_is_shown_and_its_orders_reach_the_agent() {
    let mut k = knowledge();
    let open = |extensions| FenceStatus {
        state: "open".into(),
        mode: "sent".into(),
        left_ns: 90_000_000,
        extensions,
        ..FenceStatus::default()
    };
    k.status.fence = Some(open(7));
    k.fences = Arc::new(Mutex::new([open(4), open(4), open(4)].into()));
    let agent = FakeAgent::start(k);
    for (order, asked) in [("status", FenceOrder::Status), ("shut", FenceOrder::Shut), ("recover", FenceOrder::Recover)] {
        let o = agent.fide(&["fence", order]);
        assert!(code(&o) == 0 && out(&o).starts_with("fence open, sent"), "{}{}", out(&o), err(&o));
        assert!(agent.asked.lock().unwrap().contains(&Request::Fence { order: asked }), "{order}");
    }
    assert_eq!(json(&out(&agent.fide(&["fence", "status", "--json"])))[0]["state"], "open");
    assert!(out(&agent.fide(&["status"])).contains("fence open, sent"));
    let refuse = Some(Refused { code: ErrorCode::Unsupported, what: "this host has no fence".into() });
    let o = FakeAgent::start(Knowledge { refuse, ..knowledge() }).fide(&["fence", "recover"]);
    assert!(code(&o) == 1 && err(&o).contains("no fence"), "{}", err(&o));
}

#[test]
fn a_fence_that_closes_right_behind_its_recovery_is_opened_again_or_said_to_close() {
    let fence = |state: &str, extensions| FenceStatus {
        state: state.into(),
        mode: "sent".into(),
        why: if state == "fenced" { "nobody confirms its heartbeats".into() } else { String::new() },
        valid_ns: 100_000_000,
        left_ns: 90_000_000,
        extensions,
        ..FenceStatus::default()
    };
    let mut k = knowledge();
    k.status.fence = Some(fence("open", 7));
    k.fences = Arc::new(Mutex::new([fence("open", 4), fence("fenced", 4), fence("open", 4)].into()));
    let agent = FakeAgent::start(k.clone());
    let o = agent.fide(&["fence", "recover"]);
    assert!(code(&o) == 0 && out(&o).starts_with("fence open, sent"), "{}{}", out(&o), err(&o));
    let asked = agent.asked.lock().unwrap();
    let orders = asked.iter().filter(|asked| matches!(asked, Request::Fence { .. })).cloned().collect::<Vec<_>>();
    let [recover, status] = [FenceOrder::Recover, FenceOrder::Status].map(|order| Request::Fence { order });
    assert_eq!(orders, [recover.clone(), status.clone(), recover, status]);

    k.status.fence = Some(fence("fenced", 4));
    let o = FakeAgent::start(k).fide(&["fence", "recover"]);
    assert!(code(&o) == 1 && err(&o).contains("closes again: nobody confirms its heartbeats"), "{}{}", out(&o), err(&o));

    // It is open, and its time is over already: nothing extends it.
    let not_extended = FenceStatus {
        left_ns: 0,
        mode: "acknowledged by majority".into(),
        confirmations_needed: 1,
        observers: vec!["h2".into(), "h3".into()],
        waits_for: vec!["h3".into()],
        ..fence("open", 4)
    };
    let mut k = knowledge();
    k.status.fence = Some(not_extended);
    let o = FakeAgent::start(k).fide(&["fence", "recover"]);
    assert!(code(&o) == 1 && err(&o).contains("the fence is not extended"), "{}{}", out(&o), err(&o));
    assert!(err(&o).contains("1 of h2, h3 must confirm them; h3 do not"), "{}", err(&o));
}

#[test]
fn a_maintenance_is_shown_and_a_host_that_does_not_know_it_is_named() {
    let mut k = knowledge();
    let known_by = vec!["h1".into(), "h2".into(), "h3".into()];
    let minutes = 60_000_000_000;
    k.status.maintenance = vec![MaintenanceStatus {
        target: "postgres".into(),
        left_ns: 10 * minutes,
        reason: "new disk".into(),
        by: "h1".into(),
        known_by: known_by.clone(),
        ..MaintenanceStatus::default()
    }];
    let agent = FakeAgent::start(k.clone());
    let o = agent.fide(&["maintenance", "on", "postgres", "--for", "10m", "--reason", "new disk"]);
    assert!(code(&o) == 0 && out(&o).starts_with("maintenance of postgres for 10m 00s more, set by root on h1: new disk\n"));
    assert!(out(&o).contains("\n  covers postgres@h1\n"), "{}", out(&o));
    let order = MaintenanceOrder::On { target: "postgres".into(), for_ns: 10 * minutes, reason: "new disk".into() };
    assert!(agent.asked.lock().unwrap().contains(&Request::Maintenance { order }));
    let shown = out(&agent.fide(&["status"]));
    assert!(shown.contains("maintenance of postgres for 10m") && shown.contains(" (maintenance)"), "{shown}");
    assert_eq!(json(&out(&agent.fide(&["maintenance", "status", "--json"])))[0]["maintenances"][0]["by"], "h1");
    let o = agent.fide(&["maintenance", "on", "postgres", "--for", "2d"]);
    assert!(code(&o) == 2 && err(&o).contains("from 1s to 1d"), "{}", err(&o));
    let o = agent.fide(&["maintenance", "on", "a b"]);
    assert!(code(&o) == 2 && err(&o).contains("NAME@HOST"), "{}", err(&o));
    // One of them does not know yet.
    let alive = k.status.hosts.iter().find(|h| h.state == "alive").unwrap().name.clone();
    k.status.maintenance[0].known_by = known_by.into_iter().filter(|host| *host != alive).collect();
    let o = FakeAgent::start(k).fide(&["maintenance", "off", "--json"]);
    assert_eq!((code(&o), json(&out(&o))[0]["unaware"][0].clone()), (1, alive.clone().into()));
    assert!(err(&o).contains(&format!("not known yet on {alive}")), "{}", err(&o));
}

#[test]
fn unmonitor_takes_the_name_that_others_use_as_well() {
    let agent = FakeAgent::start(knowledge());
    assert_eq!(code(&agent.fide(&["unmonitor", "postgres@h1"])), 0);
    assert_eq!(*agent.asked.lock().unwrap(), [Request::Status, Request::Unwatch { name: "postgres".into() }]);
    let o = agent.fide(&["reload"]);
    assert!(
        code(&o) == 0 && out(&o).contains("taken over: hook\n") && out(&o).contains("systemctl restart fided): port"),
        "{}",
        out(&o)
    );
    let told = &json(&out(&agent.fide(&["reload", "--json"])))[0];
    assert_eq!((told["reloaded"].as_bool(), told["needs_restart"][0].as_str()), (Some(true), Some("port")));
    assert_eq!(told["changed"][0], "hook");
}

#[test]
fn a_host_is_forgotten_by_name() {
    let agent = FakeAgent::start(knowledge());
    let o = agent.fide(&["forget", "h3"]);
    assert!(code(&o) == 0 && out(&o).contains("forgotten h3"), "{}{}", out(&o), err(&o));
    assert_eq!(json(&out(&agent.fide(&["forget", "h3", "--json"])))[0]["forgotten"], "h3");
    assert_eq!(*agent.asked.lock().unwrap(), [(); 2].map(|()| Request::Forget { host: "h3".into() }));
    assert_eq!(code(&agent.fide(&["forget"])), 2);
}

#[test]
fn the_end_of_a_watch_says_whether_its_process_was_there() {
    let watched = |state: &str| {
        let mut k = knowledge();
        k.status.watched = vec![WatchStatus { name: "postgres".into(), state: state.into(), ..WatchStatus::default() }];
        FakeAgent::start(k).fide(&["unmonitor", "postgres"])
    };
    let o = watched("alive");
    assert!(code(&o) == 0 && out(&o).contains("other hosts see that it left"), "{}", out(&o));
    let o = watched("killed");
    assert!(code(&o) == 0 && out(&o).contains("had ended already (killed)"), "{}", out(&o));
    let o = FakeAgent::start(knowledge()).fide(&["unmonitor", "redis"]);
    assert!(code(&o) == 0 && out(&o).contains("no process had been found"), "{}", out(&o));
    let pending = |origin: &str, ended| {
        let mut k = knowledge();
        let state = "pending".into();
        k.status.watched =
            vec![WatchStatus { name: "postgres".into(), state, origin: origin.into(), ended, ..WatchStatus::default() }];
        out(&FakeAgent::start(k).fide(&["unmonitor", "postgres"])).to_string()
    };
    assert!(pending("operator", 0).contains("no process had been found") && !pending("operator", 0).contains("reload"));
    let text = pending("config", 2);
    assert!(text.contains("had ended already; its next instance is not waited for") && text.contains("fide reload"), "{text}");
}

#[test]
fn missed_deadlines_are_hidden_unless_asked_for_and_last_means_the_last_failure() {
    let mut k = knowledge();
    let timing = |n: u64| {
        let cause = if n.is_multiple_of(2) { Cause::ContractKept } else { Cause::ContractBroken };
        HistoryEvent { seq: 3 + n, cause, grade: Grade::Inferred, app: None, ..k.events[2].clone() }
    };
    let late: Vec<HistoryEvent> = (1..=3000).map(timing).collect();
    k.events.extend(late);
    let agent = FakeAgent::start(k);
    let seqs = |line: &[&str]| -> Vec<u64> {
        json(&out(&agent.fide(&[line, &["--json"]].concat()))).iter().map(|e| e["seq"].as_u64().unwrap()).collect()
    };
    assert_eq!(seqs(&["events"]), [1, 2, 3]);
    assert_eq!(seqs(&["events", "--last", "2"]), [2, 3], "the newest two of those that are shown");
    assert_eq!(seqs(&["events", "--level", "failure"]), [3]);
    assert_eq!(seqs(&["events", "--level", "fault"]), [2, 3]);
    assert_eq!(seqs(&["events", "--all", "--last", "2"]), [3002, 3003]);
    assert_eq!(seqs(&["events", "--level", "timing"]).len(), 3003);
    assert_eq!(seqs(&["events", "--cause", "contract-kept", "--last", "1"]), [3003], "who names it means it");
    let all = json(&out(&agent.fide(&["events", "--all", "--last", "1", "--json"])));
    assert_eq!(all[0]["level"], "timing");
    for (line, seq) in [(&["explain", "last"][..], 3), (&["explain"], 3), (&["explain", "last", "--any"], 3003)] {
        let told = json(&out(&agent.fide(&[line, &["--json"]].concat())));
        assert_eq!(told[0]["verdict"]["seq"], seq, "{line:?}");
    }
    let calm = Knowledge { events: vec![], ..knowledge() };
    let o = FakeAgent::start(calm).fide(&["explain"]);
    assert!(code(&o) == 4 && err(&o).contains("no failure") && err(&o).contains("--any"), "{}", err(&o));
}

#[test]
fn an_event_is_explained_by_the_number_that_events_prints() {
    let agent = FakeAgent::start(knowledge());
    for line in [&["explain", "3"][..], &["explain", "#3"]] {
        let o = agent.fide(line);
        assert!(code(&o) == 0 && out(&o).contains("SIGKILL"), "{line:?}: {}{}", out(&o), err(&o));
    }
    let o = agent.fide(&["explain", "0"]);
    assert!(code(&o) == 4 && err(&o).contains("not kept any more") && err(&o).contains("the next one is 1"), "{}", err(&o));
    let o = agent.fide(&["explain", "77"]);
    assert!(code(&o) == 4 && err(&o).contains("no event 77 yet"), "{}", err(&o));
}

#[test]
fn an_id_that_several_lives_used_is_not_guessed_at() {
    let mut k = knowledge();
    k.events.push(HistoryEvent { seq: 4, incarnation: 4, app: Some("queue".into()), ..k.events[2].clone() });
    let agent = FakeAgent::start(k);
    let o = agent.fide(&["explain", "000000ab-3"]);
    assert!(code(&o) == 1 && out(&o).is_empty() && err(&o).contains("event 3, event 4"), "{}{}", out(&o), err(&o));
    assert!(err(&o).contains("fide explain NUMBER"), "{}", err(&o));
    // Its whole id leaves no doubt, and is what `fide events` prints.
    let printed = out(&agent.fide(&["events"]));
    for (id, app) in [("000000ab-00000003-3", "redis@h2"), ("000000ab-00000004-3", "queue@h2")] {
        assert!(printed.contains(id), "{printed}");
        let o = agent.fide(&["explain", id]);
        assert!(code(&o) == 0 && out(&o).contains(app) && out(&o).contains(id), "{id}: {}{}", out(&o), err(&o));
    }
    let o = agent.fide(&["explain", "000000ab-3", "--json"]);
    let told = &json(&err(&o))[0];
    assert!(code(&o) == 1 && told["error"].as_str().is_some_and(|e| e.contains("event 3, event 4")), "{told}");
    for (line, app) in [(&["explain", "3"][..], "redis@h2"), (&["explain", "4"], "queue@h2"), (&["explain", "last"], "queue@h2")]
    {
        let o = agent.fide(line);
        assert!(code(&o) == 0 && out(&o).contains(app), "{line:?}: {}{}", out(&o), err(&o));
    }
}

#[test]
fn pages_are_not_written_below_a_directory_that_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("no/man");
    let o = fide(Path::new("/nonexistent"), &["man", "--dir", deep.to_str().unwrap()]);
    assert!(code(&o) == 1 && err(&o).contains("there is no directory") && err(&o).contains("mkdir -p"), "{}", err(&o));
    assert!(!deep.parent().unwrap().exists());
    let new = directory.path().join("man");
    assert_eq!(code(&fide(Path::new("/nonexistent"), &["man", "--dir", new.to_str().unwrap()])), 0);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut k = knowledge();
    k.events = (1..2000).map(|seq| HistoryEvent { seq, ..k.events[0].clone() }).collect();
    let agent = FakeAgent::start(k);
    let mut child = command(&agent.socket(), &["events"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let o = child.wait_with_output().unwrap();
    assert_eq!((code(&o), err(&o)), (0, String::new()));
}

#[test]
fn the_live_view_needs_a_terminal_and_says_what_does_not() {
    let agent = FakeAgent::start(knowledge());
    let o = agent.fide(&["watch"]);
    assert!(code(&o) == 2 && err(&o).contains("fide events --follow"), "{}", err(&o));
}

#[test]
fn completions_and_pages_are_made_for_every_subcommand() {
    let nowhere = Path::new("/nonexistent");
    let dev = |line: &[&str]| std::process::Command::new(env!("CARGO_BIN_EXE_fide-dev")).args(line).output().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let o = fide(nowhere, &["completions", shell]);
        assert!(code(&o) == 0 && out(&o).contains("unmonitor") && out(&o).contains("no-key"), "{shell}: those of both");
        let o = dev(&["completions", shell]);
        assert!(code(&o) == 0 && !out(&o).contains("unmonitor") && out(&o).contains("no-key"), "{shell}");
    }
    let directory = tempfile::tempdir().unwrap();
    let o = fide(nowhere, &["man", "--dir", directory.path().to_str().unwrap()]);
    assert_eq!(code(&o), 0, "{}", err(&o));
    assert!(!directory.path().join("fide-lab.1").exists(), "its pages are written by who does it");
    let o = dev(&["man", "--dir", directory.path().to_str().unwrap()]);
    assert_eq!(code(&o), 0, "{}", err(&o));
    for page in ["fide.1", "fide-explain.1", "fide-dev.1", "fide-lab-cut.1"] {
        assert!(std::fs::read_to_string(directory.path().join(page)).unwrap().contains("EXIT STATUS"), "{page}");
    }
    for page in ["fided.8", "fide.toml.5"] {
        assert!(std::fs::read_to_string(directory.path().join(page)).unwrap().contains("SEE ALSO"), "{page}");
    }
    assert_eq!(code(&fide(nowhere, &["man", "explan"])), 4);
    for (name, title) in
        [("fided", ".TH fided 8"), ("fide.toml", ".TH fide.toml 5"), ("fide", ".TH fide 1"), ("agent", ".TH fide-agent 1")]
    {
        let o = fide(nowhere, &["man", name]);
        assert!(code(&o) == 0 && out(&o).contains(title), "{name}: {}", out(&o));
    }
    assert!(out(&fide(nowhere, &["man", "--help"])).contains("fide.toml(5)"));
    let o = fide(nowhere, &["man", "lab", "cut"]);
    assert!(out(&o).contains("fide-lab-cut"));
}

#[test]
fn the_doctor_gives_one_object_for_each_finding_and_a_summary() {
    let o = fide(Path::new("/nonexistent"), &["doctor", "--json"]);
    let all = json(&out(&o));
    let summary = all.last().unwrap();
    assert_eq!(summary["item"], "summary");
    assert_eq!(code(&o), i32::from(summary["works"] == false));
    for item in &all[..all.len() - 1] {
        assert!(item["found"].as_str().is_some_and(|f| !f.is_empty()), "{item}");
        let state = item["state"].as_str().unwrap();
        assert!(["ok", "unknown", "degraded", "missing"].contains(&state), "{item}");
    }
    for wanted in ["kernel", "btf", "bpf-load", "paths", "sched-fifo", "agent", "config"] {
        assert!(all.iter().any(|i| i["item"] == wanted), "{wanted}");
    }
}

#[test]
fn a_bad_configuration_makes_the_doctor_fail() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fide.toml");
    std::fs::write(&file, "heartbeat = \"1 fortnight\"\n").unwrap();
    let o = fide(Path::new("/nonexistent"), &["doctor", "--config", file.to_str().unwrap()]);
    assert!(code(&o) == 1 && out(&o).contains("line 1"), "{}", out(&o));
}

#[test]
fn labs_without_one_say_how_to_make_one() {
    // Read only: other labs of this machine are not touched, so it can only be asked for one that cannot be there.
    let o = fide(Path::new("/nonexistent"), &["lab", "down", "no-such-lab-for-sure"]);
    assert!([4, 5].contains(&code(&o)), "{}", err(&o));
    let o = fide(Path::new("/nonexistent"), &["lab", "list", "--json"]);
    assert_eq!(code(&o), 0, "{}", err(&o));
    json(&out(&o));
}
