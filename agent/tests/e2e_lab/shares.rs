//! What one ordinary user can take from others over the control socket: his share.

use crate::common::member::Raw;
use crate::common::{Process, Setup, World, until};
use fide_client::Event;
use std::time::{Duration, Instant};

/// An ordinary user with so many connections to a host's agent.
fn member(w: &World, host: u16, connections: usize) -> Process {
    let mut member = w.actor(host, "member", &[]);
    assert_eq!(member.hear(), "ready");
    member.say(&format!("open {connections}"));
    assert_eq!(member.hear(), connections.to_string());
    member
}

/// How long root waits for a status.
fn status_takes(w: &World, host: u16) -> Duration {
    let began = Instant::now();
    w.status(host);
    began.elapsed()
}

const BY_PORT: &str = r#"{"op":"watch","name":"x","selector":{"port":1}}"#;

/// Sixteen thousand look-ups of a millisecond each once kept root waiting for a minute, and the watchdog with it.
#[test]
fn queued_look_ups_hold_up_neither_root_nor_other_look_ups() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut many = member(&w, 1, 60);
    many.say(&format!("queue - {BY_PORT}"));
    let queued: u32 = many.hear().parse().unwrap();
    assert!(queued > 5_000, "{queued}");
    for _ in 0..10 {
        let took = status_takes(&w, 1);
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
    // Root's own look-up comes before those that wait.
    let p = w.sleeper(1);
    let began = Instant::now();
    let asked = fide_wire::control::Request::watch("x", fide_wire::control::Selector::Port(2));
    assert!(w.ask(1, &asked).unwrap_err().to_string().contains("port 2"));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    // The work of a client that is gone goes with it.
    many.say("hang-up");
    assert_eq!(many.hear(), "ok");
    let began = Instant::now();
    until("all its connections are closed", || w.log(1).is_empty() || status_takes(&w, 1) < Duration::from_millis(500));
    w.watch_known(1, "db", p.pid());
    let mut there = w.monitor(2, "db@h1");
    p.kill();
    there.failure("db@h1");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// What a member's order came to: how many were not refused, and the last reply.
fn told(member: &mut Process, order: &str) -> (usize, String) {
    member.say(order);
    let line = member.hear();
    let (good, last) = line.split_once(' ').unwrap_or((&line, ""));
    (good.parse().unwrap(), last.to_owned())
}

#[test]
fn a_user_has_half_of_the_event_rings_and_root_gets_one() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut greedy = member(&w, 1, 40);
    let (good, last) = told(&mut greedy, r#"each - {"op":"subscribe"}"#);
    assert_eq!(good, 32, "{last}");
    assert!(last.contains("\"code\":\"full\"") && last.contains("one user may have 32"), "{last}");
    let mut root = w.monitor(1, "@h2");
    // What is closed comes back.
    greedy.say("hang-up");
    greedy.hear();
    greedy.say("open 32");
    until("all connections are open again", || {
        let connections: usize = greedy.hear().parse().unwrap();
        if connections < 32 {
            greedy.say(&format!("open {}", 32 - connections));
        }
        connections == 32
    });
    let mut made = 0;
    until("all rings are back", || {
        made += told(&mut greedy, r#"each - {"op":"subscribe","socket_only":true}"#).0;
        made == 32
    });
    let p = w.sleeper(2);
    w.watch_known(2, "db", p.pid());
    p.kill();
    root.failure("db@h2");
}

#[test]
fn a_user_with_subordinate_numbers_has_the_share_of_one() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut many = w.actor(1, "subordinates", &["4242", "5", "40"]);
    assert_eq!(many.hear(), "64", "connections");
    // Another user has its own.
    drop(member(&w, 1, 64));
}

#[test]
fn a_user_has_a_quarter_of_the_watches() {
    let Some(w) = Setup::hosts(2).alone().up() else { return };
    let mut greedy = member(&w, 1, 1);
    assert_eq!(told(&mut greedy, "sleepers 1026").0, 1026);
    let (good, last) = told(&mut greedy, "watch w");
    assert_eq!(good, 1024, "{last}");
    assert!(last.contains("\"code\":\"full\"") && last.contains("1024 watches"), "{last}");
    // Others have theirs.
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    let mut there = w.monitor(2, "db@h1");
    p.kill();
    there.failure("db@h1");
    // And what has ended is free again.
    greedy.say("end");
    assert_eq!(greedy.hear(), "ok");
    assert_eq!(told(&mut greedy, "sleepers 1").0, 1);
    until("one more may be watched", || told(&mut greedy, "watch again").0 == 1);
}

#[test]
fn a_user_has_an_eighth_of_the_monitored_targets() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut greedy = member(&w, 1, 2);
    assert_eq!(told(&mut greedy, r#"each - {"op":"subscribe"}"#).0, 2);
    let (good, last) = told(&mut greedy, r#"ask 1100 {"op":"monitor","target":"x{i}@h2"}"#);
    assert_eq!(good, 1024, "{last}");
    assert!(last.contains("\"code\":\"full\"") && last.contains("1024 monitored targets"), "{last}");
    // The same ones again are no more of them; and each that is given up makes room.
    assert_eq!(told(&mut greedy, r#"ask 10 {"op":"monitor","target":"x{i}@h2"}"#).0, 10);
    assert_eq!(told(&mut greedy, r#"ask 10 {"op":"unmonitor","target":"x{i}@h2"}"#).0, 10);
    assert_eq!(told(&mut greedy, r#"ask 11 {"op":"monitor","target":"y{i}@h2"}"#).0, 10);
    let took = status_takes(&w, 1);
    assert!(took < Duration::from_secs(1), "{took:?}");
    greedy.say("hang-up");
    greedy.hear();
    let mut again = member(&w, 1, 1);
    assert_eq!(told(&mut again, r#"each - {"op":"subscribe"}"#).0, 1);
    until("a closed connection's are free", || told(&mut again, r#"ask 1 {"op":"monitor","target":"z@h2"}"#).0 == 1);
}

#[test]
fn a_user_has_a_quarter_of_the_looks_at_progress_counters() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let [mut one, mut other] = [member(&w, 1, 1), member(&w, 1, 1)];
    for (i, process) in [&mut one, &mut other].into_iter().enumerate() {
        let (good, last) = told(process, &format!(r#"ask 1 {{"op":"join","name":"m{i}"}}"#));
        assert_eq!(good, 1, "{last}");
    }
    let counters = r#"ask 16 {"op":"progress","counter":{i},"limit_ns":10000000}"#;
    assert_eq!(told(&mut one, counters).0, 16, "800 looks a second each");
    let (good, last) = told(&mut other, counters);
    assert_eq!(good, 4, "{last}");
    assert!(last.contains("\"code\":\"full\"") && last.contains("longer limits"), "{last}");
    // Longer limits cost less, and what is no longer looked at nothing.
    assert_eq!(told(&mut other, r#"ask 16 {"op":"progress","counter":{i},"limit_ns":1000000000}"#).0, 16);
    assert_eq!(told(&mut one, r#"ask 16 {"op":"progress","counter":{i},"limit_ns":0}"#).0, 16);
    assert_eq!(told(&mut other, counters).0, 16);
}

/// Numbers of processes are used once. A member that had its own process watched and unwatched
/// again and again once used them all up, and then nobody could join until the agent was restarted.
/// Here root does it, whose requests do not wait.
#[test]
fn processes_join_and_piggyback_also_when_65535_have_been_watched() {
    let Some(w) = Setup::hosts(2).alone().up() else { return };
    let application = |name: &str| {
        let mut application = w.actor(1, "application", &[]);
        assert_eq!(application.hear(), "ready");
        application.say(&format!("join {name} 100"));
        assert!(application.hear().starts_with("ok"));
        w.known(1, name);
        application
    };
    let mut first = application("first");
    let sleeper = w.sleeper(1);
    let agent = Raw::open(&w.socket(1)).unwrap();
    let watch = format!(r#"{{"op":"watch","name":"x","selector":{{"pid":{}}}}}"#, sleeper.pid());
    for _ in 0..65_536 {
        let said = agent.ask(&watch).unwrap();
        assert!(said.contains(r#""re":"watched""#), "{said}");
        assert!(agent.ask(r#"{"op":"unwatch","name":"x"}"#).unwrap().contains(r#""re":"done""#));
    }
    let mut second = application("second");
    let mut there = w.subscriber(2, false);
    let want = fide_client::Resources { pbsize: 100, ..fide_client::Resources::default() };
    for name in ["first@h1", "second@h1"] {
        there.client.monitor(name, want).unwrap();
    }
    // Each message is from the process that sent it.
    for (application, name) in [(&mut second, "second@h1"), (&mut first, "first@h1")] {
        application.say("piggyback 4 7 1");
        assert_eq!(application.hear(), "ok 1");
        there.wait("its message", |e| matches!(e, Event::Piggyback(p) if p.from.name.as_deref() == Some(name)));
    }
    second.kill();
    there.failure("second@h1");
    first.kill();
    there.failure("first@h1");
}

/// Making a ring takes the kernel some 10 ms: on the loop's thread it had taken crashes with it.
#[test]
fn rings_that_are_made_and_given_back_do_not_hold_up_crashes() {
    let Some(w) = Setup::hosts(2).alone().up() else { return };
    let mut churner = member(&w, 1, 0);
    let mut there = w.monitor(2, "@h1");
    churner.say("churn 4000");
    let mut took = Vec::new();
    for round in 0..30 {
        let p = w.sleeper(1);
        let name = format!("p{round}");
        w.watch_known(1, &name, p.pid());
        there.drain();
        let began = Instant::now();
        p.kill();
        there.failure(&format!("{name}@h1"));
        took.push(began.elapsed());
    }
    let rings: usize = churner.hear().parse().unwrap();
    took.sort_unstable();
    println!("{rings} rings made; crashes told after {:?} (median), {:?} (longest)", took[15], took[29]);
    assert!(rings > 20, "{rings}");
    assert!(took[15] < Duration::from_millis(5), "{took:?}");
}
