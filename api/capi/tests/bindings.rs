//! The bindings have every number that the header has: their sources are compared with it, without their tools (those run by `make bindings`).

use fide::Kind;
use fide_client::Flat;
use fide_client::wire::control::{ErrorCode, TargetState};
use fide_client::wire::event::Record;
use fide_client::wire::verdict::{Cause, Grade};
use fide_client::{Event, Subject, Verdict};
use std::path::Path;

fn source(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The enumerators of `enum NAME` in the header, without their prefix.
fn header(name: &str, prefix: &str) -> Vec<(String, i64)> {
    let header = source("capi/include/fide.h");
    let body = header.split(&format!("enum {name} {{")).nth(1).unwrap().split("};").next().unwrap();
    let parse = |line: &str| {
        let (name, rest) = line.trim().strip_prefix(prefix)?.split_once(" = ")?;
        let digits: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '-').collect();
        Some((name.to_owned(), digits.parse().ok()?))
    };
    body.lines().filter_map(parse).collect()
}

/// `SILENT_HOST` as Go writes it.
fn camel(name: &str) -> String {
    let word = |w: &str| w[..1].to_owned() + &w[1..].to_lowercase();
    name.split('_').map(word).collect()
}

#[test]
fn every_cause_and_kind_of_event_is_in_every_language() {
    let (causes, kinds) = (header("fide_cause", "FIDE_CAUSE_"), header("fide_event_kind", "FIDE_EVENT_"));
    assert_eq!((causes.len(), kinds.len()), (Cause::ALL.len() + 1, 15));
    let python = source("python/python/fide/_types.py");
    let go = source("go/types.go").split_whitespace().collect::<Vec<_>>().join(" ");
    for (class, prefix, all) in [("Cause", "CAUSE", &causes), ("EventKind", "EVENT", &kinds)] {
        let python = python.split(&format!("class {class}(")).nth(1).unwrap().split("\nclass ").next().unwrap();
        let java = source(&format!("java/src/main/java/io/github/fideproject/fide/{class}.java"));
        for (name, number) in all {
            assert!(python.contains(&format!("    {name} = {number}\n")) || name == "NONE", "Python's {class}.{name} = {number}");
            assert!(java.contains(&format!("    {name}({number})")), "Java's {class}.{name}({number})");
            let go_prefix = if class == "Cause" { "Cause" } else { "Event" };
            let wanted = format!("{go_prefix}{} {class} = C.FIDE_{prefix}_{name}", camel(name));
            assert!(go.contains(&wanted), "Go: {wanted}");
        }
    }
}

#[test]
fn every_error_and_state_of_a_target_is_in_every_language() {
    let errors = header("fide_error", "FIDE_");
    let (python, go) = (source("python/python/fide/_types.py"), source("go/errors.go"));
    let java = source("java/src/main/java/io/github/fideproject/fide/ErrorCode.java");
    for (name, number) in errors.iter().filter(|(_, number)| *number != 0) {
        assert!(go.contains(&format!("C.FIDE_{name})")), "Go's {name}");
        assert!(java.contains(&format!("({})", -number)), "Java's {name}");
        // The client has no bugs of the C library.
        assert!(python.contains(&format!(" = {}\n", -number)) || name == "EINTERNAL", "Python's {name}");
    }
    assert_eq!(ErrorCode::NotSent as i64, 13, "the last one that they know");
    let go = source("go/types.go").split_whitespace().collect::<Vec<_>>().join(" ");
    let java = source("java/src/main/java/io/github/fideproject/fide/TargetState.java");
    let states = header("fide_target_state", "FIDE_TARGET_");
    assert_eq!(states.len(), TargetState::NoHost as usize);
    for (name, number) in states {
        assert!(python.contains(&format!("    {name} = {number}\n")), "Python's {name}");
        assert!(java.contains(&format!("    {name}({number})")), "Java's {name}");
        assert!(go.contains(&format!("Target{} TargetState = C.FIDE_TARGET_{name}", camel(&name))), "Go's {name}");
    }
}

#[test]
fn an_event_for_bindings_has_the_numbers_and_fields_of_the_header() {
    let verdict = || Verdict {
        subject: Subject { node: 7, app: 3, incarnation: 2, name: Some("db@a".into()) },
        cause: Cause::Killed,
        grade: Grade::Certain,
        code: 9,
        id: None,
        path: 1,
        local: true,
        fenced: true,
        confirms: true,
        event_ns: 10,
        sent_ns: 11,
        received_ns: 12,
    };
    let flat = Flat::from(Event::Confirmed(verdict()));
    assert_eq!((flat.node, flat.app, flat.incarnation, flat.name.as_deref()), (7, 3, 2, Some("db@a")));
    assert_eq!((flat.cause, flat.grade, flat.code, flat.path), (Cause::Killed as u32, Grade::Certain as u32, 9, 1));
    assert_eq!(flat.flags, u32::from(Record::CONFIRMS | Record::LOCAL | Record::FENCED));
    assert_eq!((flat.event_ns, flat.sent_ns, flat.received_ns, flat.id), (10, 11, 12, 0));
    for (event, kind) in [
        (Event::Failure(verdict()), Kind::Failure),
        (Event::Confirmed(verdict()), Kind::Confirmed),
        (Event::Monitored(verdict()), Kind::Monitored),
        (Event::Host(verdict()), Kind::Host),
        (Event::Hung(verdict()), Kind::Hung),
        (Event::Progressing(verdict()), Kind::Progressing),
        (Event::Fenced(verdict()), Kind::Fenced),
        (Event::Recovered(verdict()), Kind::Recovered),
        (Event::TimeoutChanged { subject: Subject::default(), timeout_ns: 5 }, Kind::TimeoutChanged),
        (Event::PiggybackSizeChanged { pbsize: 5 }, Kind::PbsizeChanged),
        (Event::MonitorRequest { by: Subject::default(), pbsize: 5 }, Kind::MonitorReq),
        (Event::Lost { count: 5 }, Kind::Lost),
        (Event::AgentGone, Kind::AgentGone),
    ] {
        let flat = Flat::from(event);
        assert_eq!(flat.kind, kind as u32);
        if matches!(kind, Kind::TimeoutChanged | Kind::PbsizeChanged | Kind::MonitorReq | Kind::Lost) {
            assert_eq!(flat.number, 5, "{kind:?}");
        }
    }
}
