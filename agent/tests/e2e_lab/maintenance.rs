//! What is in maintenance: known on every host, marked in every verdict, left alone by hooks that say so, and over by itself.

use crate::common::{Setup, World, until};
use fide_wire::control::{ErrorCode, HistoryEvent, MaintenanceOrder, MaintenanceStatus, Reply, Request};
use fide_wire::level::{Level, MAINTENANCE_EVENT_CODE};
use fide_wire::verdict::Cause;
use std::fs;

fn order(w: &World, host: u16, order: MaintenanceOrder) -> Result<Vec<MaintenanceStatus>, fide_client::Error> {
    w.ask(host, &Request::Maintenance { order }).map(|reply| match reply {
        Reply::Maintenance { maintenances } => maintenances,
        other => panic!("{other:?}"),
    })
}

fn on(w: &World, host: u16, target: &str, seconds: u64) -> MaintenanceStatus {
    let for_ns = seconds * 1_000_000_000;
    let all = order(w, host, MaintenanceOrder::On { target: target.into(), for_ns, reason: "new disk".into() }).unwrap();
    all.into_iter().find(|m| m.target == target).expect("it has begun")
}

fn known(w: &World, host: u16, target: &str) -> Option<MaintenanceStatus> {
    w.status(host).maintenance.into_iter().find(|m| m.target == target)
}

/// What this host's history tells of maintenances.
fn told(w: &World, host: u16) -> Vec<String> {
    let is_told = |e: &HistoryEvent| e.cause == Cause::Local && e.code == MAINTENANCE_EVENT_CODE;
    let events = w.history(host).into_iter().filter(is_told);
    events.inspect(|e| assert_eq!(e.level(), Level::Notice)).map(|e| e.text).collect()
}

/// A host on which one hook leaves alone what is in maintenance, and another one does not.
fn hooks(dir: &str) -> String {
    let hook = |name: &str, filter: &str| {
        format!(
            "[[hook]]\non = [\"failure\"]\n{filter}command = [\"/bin/sh\", \"-c\", \
             \"echo $FIDE_APP $FIDE_CODE ${{FIDE_MAINTENANCE:-none}} >> {dir}/{name}\"]\n"
        )
    };
    hook("all", "") + &hook("careful", "maintenance = false\n")
}

/// A process on host 2 that was known everywhere and is killed: its event.
fn killed(w: &World, name: &'static str) -> impl Fn(&HistoryEvent) -> bool + use<> {
    let process = w.sleeper(2);
    w.watch_known(2, name, process.pid());
    process.kill();
    move |e| e.cause == Cause::Killed && e.app.as_deref() == Some(name)
}

#[test]
fn it_is_known_everywhere_and_marks_verdicts_until_somebody_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let text = hooks(dir.path().to_str().unwrap());
    let Some(w) = Setup::hosts(3).extra(move |host| if host == 3 { text.clone() } else { String::new() }).up() else { return };
    let set = on(&w, 1, "db", 600);
    assert!(set.by == "h1" && set.reason == "new disk" && set.left_ns <= 600_000_000_000, "{set:?}");
    for host in 1..=3 {
        until("every host knows, and who knows it", || known(&w, host, "db").is_some_and(|m| m.known_by == ["h1", "h2", "h3"]));
        assert!(known(&w, host, "db").unwrap().left_ns > 500_000_000_000);
        assert_eq!(told(&w, host), ["maintenance of db for 10 min, set by root on h1: new disk"]);
    }
    let (db, web) = (killed(&w, "db"), killed(&w, "web"));
    for host in 1..=3 {
        let event = w.event(host, "db was killed", &db);
        assert_eq!(event.maintenance.as_deref(), Some("db"), "{event:?}");
        assert!(event.text.contains("was ended by SIGKILL") && event.text.ends_with(" (in maintenance)"), "{}", event.text);
        let other = w.event(host, "web was killed", &web);
        assert!(other.maintenance.is_none() && !other.text.contains("maintenance"), "{other:?}");
    }
    let ran = |hook: &str| fs::read_to_string(dir.path().join(hook)).unwrap_or_default();
    until("hooks ran", || ran("all").contains("web 9 none") && ran("careful").contains("web 9 none"));
    assert!(ran("all").contains("db 9 db") && !ran("careful").contains("db"), "{} / {}", ran("all"), ran("careful"));

    let refused = order(&w, 3, MaintenanceOrder::Off { target: Some("web".into()) }).unwrap_err();
    assert!(refused.to_string().contains("ended by its own: db"), "{refused}");
    assert_eq!(order(&w, 3, MaintenanceOrder::Off { target: None }).unwrap(), []);
    for host in 1..=3 {
        until("it is over everywhere", || known(&w, host, "db").is_none());
        until("which is told", || told(&w, host).last().unwrap() == "maintenance of db is over: ended by root on h3");
    }
    let again = killed(&w, "db");
    until("db was killed again", || w.history(1).iter().filter(|e| again(e)).count() == 2);
    assert_eq!(w.history(1).iter().rfind(|e| again(e)).unwrap().maintenance, None);
}

#[test]
fn it_outlives_agents_reaches_newcomers_and_ends_by_itself() {
    let Some(mut w) = Setup::hosts(3).empty().up() else { return };
    (1..=2).for_each(|host| w.start(host));
    w.all_alive();
    on(&w, 1, "@h1", 600);
    on(&w, 1, "short", 15); // longer than its agent is away on a busy machine
    until("h2 knows both", || w.status(2).maintenance.len() == 2);
    // The host that was told is away: the newcomer hears it from the other one.
    w.kill_agent(1);
    w.start(3);
    until("the newcomer knows both", || w.status(3).maintenance.len() == 2);
    until("which of them know is known there", || known(&w, 3, "@h1").unwrap().known_by == ["h2", "h3"]);
    let lost = w.event(2, "h1's agent is away", |e| e.node == "h1" && e.cause == Cause::AgentLost);
    assert_eq!(lost.maintenance.as_deref(), Some("@h1"), "{lost:?}");
    w.start(1);
    let back = known(&w, 1, "@h1").expect("kept on its disk");
    assert!(back.reason == "new disk" && back.left_ns < 600_000_000_000, "{back:?}");
    until("all know that all know", || (1..=3).all(|host| known(&w, host, "@h1").unwrap().known_by.len() == 3));
    for host in 1..=3 {
        until("the short one is over", || known(&w, host, "short").is_none());
        until("because of its time", || told(&w, host).contains(&"maintenance of short is over: its time is up".to_owned()));
        assert!(known(&w, host, "@h1").is_some());
    }
    // Nobody hears of it again from a table in which it once stood.
    w.kill_agent(2);
    w.start(2);
    w.all_alive();
    for host in 1..=3 {
        until("rows were exchanged", || known(&w, host, "@h1").is_some_and(|m| m.known_by.len() == 3));
        assert!(known(&w, host, "short").is_none(), "h{host}");
    }
}

#[test]
fn only_who_may_change_the_agent_begins_one() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut user = w.actor(1, "user", &["65534"]);
    assert!(user.hear().starts_with("ok"));
    let mut ask = |order: &str| {
        user.say(&format!(r#"ask {{"op":"maintenance","order":{order}}}"#));
        user.hear()
    };
    for change in [r#"{"maintenance":"on","target":"*","for_ns":60000000000}"#, r#"{"maintenance":"off"}"#] {
        let refused = ask(change);
        assert!(refused.contains("may not begin or end a maintenance") && refused.contains("`reload`"), "{refused}");
    }
    assert!(ask(r#"{"maintenance":"status"}"#).starts_with("ok Maintenance { maintenances: [] }"));
    for (target, for_ns) in [("a b", 60_000_000_000), ("db", 0), ("db", u64::MAX)] {
        let bad = order(&w, 1, MaintenanceOrder::On { target: target.into(), for_ns, reason: String::new() });
        let Err(fide_client::Error::Refused(refused)) = bad else { panic!("{bad:?}") };
        assert_eq!(refused.code, ErrorCode::Invalid, "{target} {for_ns}");
    }
    assert!(w.status(2).maintenance.is_empty());
}
