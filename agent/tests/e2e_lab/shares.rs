//! What one ordinary user can take from others over the control socket: his share.

use crate::common::member::Raw;
use crate::common::{PATIENCE, Process, Setup, World, until};
use fide_agent::admission::{Class, NOT_KEPT_EVENT_CODE};
use fide_agent::control::REPORT_EVENT_CODE;
use fide_client::Event;
use fide_wire::control::{HistoryEvent, Reply, Request};
use fide_wire::verdict::Cause;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
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
    queued_look_ups([PATIENCE; 3]);
}

#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_queued_look_ups_hold_up_neither_root_nor_other_look_ups() {
    queued_look_ups([2, 4, 10].map(Duration::from_secs));
}

/// Within these times root has a status, a look-up of its own, and all that follows when they are
/// gone.
fn queued_look_ups(within: [Duration; 3]) {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut many = member(&w, 1, 60);
    many.say(&format!("queue - {BY_PORT}"));
    let queued: u32 = many.hear().parse().unwrap();
    assert!(queued > 5_000, "{queued}");
    for _ in 0..10 {
        let took = status_takes(&w, 1);
        assert!(took < within[0], "{took:?}");
    }
    // Root's own look-up comes before those that wait.
    let p = w.sleeper(1);
    let began = Instant::now();
    let asked = fide_wire::control::Request::watch("x", fide_wire::control::Selector::Port(2));
    assert!(w.ask(1, &asked).unwrap_err().to_string().contains("port 2"));
    assert!(began.elapsed() < within[1], "{:?}", began.elapsed());
    // The work of a client that is gone goes with it.
    many.say("hang-up");
    assert_eq!(many.hear(), "ok");
    let began = Instant::now();
    status_takes(&w, 1);
    w.watch_known(1, "db", p.pid());
    let mut there = w.monitor(2, "db@h1");
    p.kill();
    there.failure("db@h1");
    assert!(began.elapsed() < within[2], "{:?}", began.elapsed());
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
    let Some(w) = Setup::hosts(2).up() else { return };
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
    status_takes(&w, 1);
    greedy.say("hang-up");
    greedy.hear();
    let mut again = member(&w, 1, 1);
    assert_eq!(told(&mut again, r#"each - {"op":"subscribe"}"#).0, 1);
    until("a closed connection's are free", || told(&mut again, r#"ask 1 {"op":"monitor","target":"z@h2"}"#).0 == 1);
}

#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_a_status_takes_less_than_a_second_beside_all_targets_that_a_user_may_have() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let mut greedy = member(&w, 1, 2);
    assert_eq!(told(&mut greedy, r#"each - {"op":"subscribe"}"#).0, 2);
    assert_eq!(told(&mut greedy, r#"ask 1024 {"op":"monitor","target":"x{i}@h2"}"#).0, 1024);
    let took = status_takes(&w, 1);
    assert!(took < Duration::from_secs(1), "{took:?}");
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
#[ignore = "takes two minutes: make nightly"]
fn processes_join_and_piggyback_also_when_65535_have_been_watched() {
    let Some(w) = Setup::hosts(2).up() else { return };
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
fn crashes_are_told_while_rings_are_made_and_given_back() {
    let Some((rings, _)) = beside_rings(1_000, 10) else { return };
    assert!(rings > 0);
}

#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_rings_that_are_made_and_given_back_do_not_hold_up_crashes() {
    let Some((rings, mut took)) = beside_rings(4_000, 30) else { return };
    took.sort_unstable();
    println!("{rings} rings made; crashes told after {:?} (median), {:?} (longest)", took[15], took[29]);
    assert!(rings > 20, "{rings}");
    assert!(took[15] < Duration::from_millis(5), "{took:?}");
}

/// So many crashes while rings are made and given back, for so many ms: how many rings, and when
/// the crashes were told.
fn beside_rings(ms: u32, crashes: usize) -> Option<(usize, Vec<Duration>)> {
    let w = Setup::hosts(2).up()?;
    let mut churner = member(&w, 1, 0);
    let mut there = w.monitor(2, "@h1");
    churner.say(&format!("churn {ms}"));
    let mut took = Vec::new();
    for round in 0..crashes {
        let p = w.sleeper(1);
        let name = format!("p{round}");
        w.watch_known(1, &name, p.pid());
        there.drain();
        let began = Instant::now();
        p.kill();
        there.failure(&format!("{name}@h1"));
        took.push(began.elapsed());
    }
    Some((churner.hear().parse().unwrap(), took))
}

/// Reports that changed again and again rolled crashes out of other hosts' histories.
#[test]
fn reports_in_a_loop_leave_crashes_in_all_histories_and_are_told_once() {
    let began = Instant::now();
    let Some(w) = Setup::hosts(2).up() else { return };
    let p = w.sleeper(1);
    w.watch_known(1, "db", p.pid());
    p.kill();
    let crash = w.event(2, "the crash", |e| e.cause.ends_process() && e.app.as_deref() == Some("db"));
    let mut greedy = member(&w, 1, 1);
    let (good, last) = told(&mut greedy, r#"ask 1 {"op":"join","name":"flapping"}"#);
    assert_eq!(good, 1, "{last}");
    w.known(1, "flapping");
    assert_eq!(told(&mut greedy, "sleepers 1").0, 1);
    // As fast as the rate of requests permits: of other hosts' classes as much as one of them may put in.
    let not_kept = |host| {
        let is = |e: &HistoryEvent| e.cause == Cause::Local && e.code == NOT_KEPT_EVENT_CODE;
        w.history(host).into_iter().filter(is).map(|e| e.text).collect::<Vec<_>>()
    };
    until("both hosts tell that reports were not kept", || {
        for hung in [true, false] {
            let report = format!(r#"ask 16 {{"op":"report","name":"flapping","hung":{hung},"reason":"r{{i}}"}}"#);
            assert_eq!(told(&mut greedy, &report).0, 16);
        }
        let report = |hung| format!(r#"ask 1 {{"op":"report","name":"flapping","hung":{hung}}}"#);
        for i in 0..16 {
            assert_eq!(told(&mut greedy, &report(i % 2 == 0)).0, 1);
            assert_eq!(told(&mut greedy, "watch w").0, 1);
            assert_eq!(told(&mut greedy, r#"ask 1 {"op":"unwatch","name":"w0"}"#).0, 1);
        }
        !not_kept(1).is_empty() && !not_kept(2).is_empty()
    });
    let (here, there) = (not_kept(1), not_kept(2));
    assert!(here[0].contains("reports of user 65534 of this host, the last about"), "{here:?}");
    assert!(there[0].contains("reports of users of host h1, the last about"), "{there:?}");
    assert_eq!((here.len(), there.len()), (1, 1), "told once");
    let kept = |host| w.history(host).iter().filter(|e| e.cause.is_progress() || e.code == REPORT_EVENT_CODE).count() as u64;
    let limit = Class::Reports.limit();
    for host in [1, 2] {
        let most = limit.burst + began.elapsed().as_nanos() as u64 / limit.interval_ns + 1;
        assert!(kept(host) <= most, "h{host} keeps {}", kept(host));
    }
    // Root is not held up by that, here or there.
    let q = w.sleeper(1);
    w.watch_known(1, "db2", q.pid());
    q.kill();
    w.event(2, "the next crash", |e| e.cause.ends_process() && e.app.as_deref() == Some("db2"));
    let Ok(Reply::Explained(explained)) = w.ask(2, &Request::Explain { id: crash.id.unwrap(), incarnation: None }) else {
        panic!("not explained")
    };
    assert_eq!(explained.app, crash.app);
}

/// A hundred and fifty namesakes of a member filled the queue of everybody's hooks.
#[test]
fn namesakes_that_crash_leave_room_for_roots_hook_on_another_host() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("h");
    let hook = format!(
        "[[hook]]\non = [\"failure\"]\nmatch = \"redis*\"\ncommand = [\"/bin/sh\", \"-c\", \"echo $FIDE_APP >> {}$FIDE_OBSERVER; sleep 1\"]\n",
        out.display()
    );
    let Some(w) = Setup::hosts(2).extra(move |_| hook.clone()).up() else { return };
    let ran = || std::fs::read_to_string(format!("{}h2", out.display())).unwrap_or_default();
    let p = w.sleeper(1);
    w.watch_known(1, "redis", p.pid());
    let mut greedy = member(&w, 1, 1);
    assert_eq!(told(&mut greedy, "sleepers 150").0, 150);
    let (good, last) = told(&mut greedy, "watch redis-");
    assert_eq!(good, 150, "{last}");
    w.known(1, "redis-149");
    greedy.say("end");
    assert_eq!(greedy.hear(), "ok");
    until("hooks run for the namesakes", || ran().contains("redis-"));
    let before = ran().lines().count();
    p.kill();
    until("root's hook runs", || ran().lines().any(|line| line == "redis"));
    // Not by the clock: what was begun in between is at most what had its turn before.
    let at = ran().lines().position(|line| line == "redis").unwrap();
    assert!(at.saturating_sub(before) <= 8, "{} hooks came first", at - before);
    let is_told =
        |e: &HistoryEvent| e.code == NOT_KEPT_EVENT_CODE && e.text.contains("of hooks for user 65534 of host h1 were dropped");
    w.event(2, "that hooks were dropped", is_told);
}

// ---- the worst member ------------------------------------------------------------------------------------------------------------

/// Root asks for the status so often.
const STATUS_EVERY: Duration = Duration::from_millis(50);
/// Crashes come so often.
const CRASH_EVERY: Duration = Duration::from_millis(100);
/// The shipped unit's WatchdogSec.
const WATCHDOG: Duration = Duration::from_secs(10);

/// What one part of a measurement found.
#[derive(Default)]
struct Figures {
    /// From kill(2) to the application on another host, sorted, ns.
    crashes: Vec<u64>,
    /// Root's longest wait for a status.
    status: Duration,
    statuses: usize,
}

impl Figures {
    fn line(&self) -> String {
        let at = |q: f64| {
            let last = self.crashes.len().saturating_sub(1);
            self.crashes.get((last as f64 * q).ceil() as usize).map_or(0, |ns| ns / 1000)
        };
        format!(
            "{} crashes: median {} µs, p99 {} µs, p99.9 {} µs, max {} µs; {} statuses, max {:.1} ms",
            self.crashes.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            self.statuses,
            self.status.as_secs_f64() * 1000.0
        )
    }
}

/// Above ordinary programs, below agents; children are ordinary again.
fn become_urgent() {
    let param = libc::sched_param { sched_priority: 40 };
    // SAFETY: integers and a live argument; refused, it is as ordinary as others.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const param) };
}

/// How long the watchdog of an agent waits: the longest pause between two signs of life, and how many there were.
struct Signs {
    longest: Duration,
    count: usize,
    late: usize,
}

fn watch_signs(socket: std::os::unix::net::UnixDatagram, stop: Arc<AtomicBool>) -> JoinHandle<Signs> {
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    std::thread::spawn(move || {
        let mut signs = Signs { longest: Duration::ZERO, count: 0, late: 0 };
        let (mut last, mut buffer) = (None::<Instant>, [0; 4096]);
        while !stop.load(Ordering::Acquire) {
            let Ok(n) = socket.recv(&mut buffer) else { continue };
            if !String::from_utf8_lossy(&buffer[..n]).contains("WATCHDOG=1") {
                continue;
            }
            let pause = last.replace(Instant::now()).map_or(Duration::ZERO, |last| last.elapsed());
            signs.longest = signs.longest.max(pause);
            signs.late += usize::from(pause > WATCHDOG);
            signs.count += 1;
        }
        signs
    })
}

/// What members on h1 and h2 do for a part of the time.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// Nothing.
    Quiet,
    /// They keep the processors busy, and ask nothing: how much of the figures is the load.
    Busy,
    /// They are at their worst.
    Worst,
}

/// Crashes and status pages in each part, beside so many threads of each member.
fn worst_member(parts: &[Part], seconds: f64, threads: u32) {
    let kinds = std::env::var("FIDE_WORST_KINDS").unwrap_or_default();
    let Some(mut w) = Setup::hosts(3).empty().up() else { return };
    let dir = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut watchdogs = Vec::new();
    for host in 1..=3 {
        let path = dir.path().join(format!("notify{host}"));
        watchdogs.push(watch_signs(std::os::unix::net::UnixDatagram::bind(&path).unwrap(), stop.clone()));
        w.start_under(host, &["env", &format!("NOTIFY_SOCKET={}", path.display())]);
    }
    w.all_alive();
    // The application.
    let (tell, told) = std::sync::mpsc::channel();
    let (socket, done) = (w.socket(2), stop.clone());
    let ready = Arc::new(AtomicBool::new(false));
    let is_ready = ready.clone();
    let application = std::thread::spawn(move || {
        become_urgent();
        let client = fide_client::Client::open(Some(&socket)).unwrap();
        client.monitor("@h1", fide_client::Resources::default()).unwrap();
        is_ready.store(true, Ordering::Release);
        while !done.load(Ordering::Acquire) {
            if let Some(fide_client::Event::Failure(v)) = client.poll(Some(Duration::from_millis(100))).unwrap() {
                let stamps = [v.event_ns, v.sent_ns, v.received_ns, fide_client::monotonic_ns()];
                let _ = tell.send((v.subject.app, stamps)); // nobody counts any more
            }
        }
    });
    until("the application listens", || ready.load(Ordering::Acquire));
    let seconds = Duration::from_secs_f64(seconds);
    let each = seconds / parts.len() as u32;
    let arguments = [each.as_secs_f64().to_string(), kinds, threads.to_string()];
    let of = |host: u16| w.actor(host, "worst", &[&host.to_string(), &arguments[0], &arguments[1], &arguments[2]]);
    let mut members: Vec<Process> = [1, 2].map(of).into();
    members.iter_mut().for_each(|m| assert_eq!(m.hear(), "ready"));
    // Processes are watched long before they crash.
    let root = w.connect(1);
    let mut watched = VecDeque::new();
    let mut next = 0;
    let mut watch = |watched: &mut VecDeque<(u32, Process)>| {
        let p = w.sleeper(1);
        next += 1;
        let request = Request::watch(format!("victim{next}"), fide_wire::control::Selector::Pid(p.pid()));
        match root.request(&request).unwrap().reply {
            Reply::Watched { app, .. } => watched.push_back((app, p)),
            other => panic!("{other:?}"),
        }
    };
    (0..10).for_each(|_| watch(&mut watched));
    w.known(1, "victim10");
    become_urgent();
    let mut told_of: BTreeMap<u32, Vec<[u64; 4]>> = BTreeMap::new();
    let (mut killed_in_all, mut began_ns) = (Vec::new(), Vec::new());
    for part in parts {
        let (name, order) = match part {
            Part::Quiet => ("quiet", None),
            Part::Busy => ("busy", Some("spin")),
            Part::Worst => ("worst", Some("ask")),
        };
        order.iter().for_each(|order| members.iter_mut().for_each(|m| m.say(order)));
        began_ns.push((fide_client::monotonic_ns(), name));
        let is_over = Arc::new(AtomicBool::new(false));
        let (socket, over) = (w.socket(1), is_over.clone());
        let statuses = std::thread::spawn(move || {
            become_urgent(); // it is the agent that is measured, not what an ordinary program waits for a processor
            let (mut count, mut longest) = (0, Duration::ZERO);
            while !over.load(Ordering::Acquire) {
                let began = Instant::now();
                let connection = fide_client::Connection::open(Some(&socket)).unwrap();
                assert!(matches!(connection.request(&Request::Status).unwrap().reply, Reply::Status(_)));
                longest = longest.max(began.elapsed());
                count += 1;
                // Sleep: from one status to the next.
                std::thread::sleep(STATUS_EVERY);
            }
            (count, longest)
        });
        let began = Instant::now();
        let mut killed: BTreeMap<u32, u64> = BTreeMap::new();
        while began.elapsed() < each {
            let at = Instant::now();
            let (app, p) = watched.pop_front().unwrap();
            killed.insert(app, fide_client::monotonic_ns());
            p.kill();
            drop(p);
            watch(&mut watched);
            // Sleep: from one crash to the next.
            std::thread::sleep(CRASH_EVERY.saturating_sub(at.elapsed()));
        }
        until("every crash is told", || {
            told.try_iter().for_each(|(app, at): (u32, [u64; 4])| told_of.entry(app).or_default().push(at));
            killed.keys().all(|app| told_of.contains_key(app))
        });
        is_over.store(true, Ordering::Release);
        let (count, longest) = statuses.join().expect("root is answered");
        let mut crashes: Vec<u64> = killed.iter().map(|(app, at)| told_of[app][0][3].saturating_sub(*at)).collect();
        crashes.sort_unstable();
        // Hosts of a lab have one clock.
        if let Some((app, at)) = killed.iter().max_by_key(|(app, at)| told_of[app][0][3].saturating_sub(**at)) {
            let steps = told_of[app][0].map(|step| step.saturating_sub(*at) / 1000);
            println!("{name}: the slowest one was seen, sent, received, told after {steps:?} µs");
        }
        let figures = Figures { crashes, status: longest, statuses: count };
        println!("{name}: {}", figures.line());
        killed_in_all.extend(killed.into_keys());
        if order.is_some() {
            for (host, m) in [1, 2].into_iter().zip(&mut members) {
                println!("h{host}: the member asked, and was answered: {}", m.hear());
            }
        }
    }
    stop.store(true, Ordering::Release);
    application.join().unwrap();
    for (host, signs) in (1..).zip(watchdogs.into_iter().map(|t| t.join().unwrap())) {
        println!("h{host}: watchdog late {} times of {}, longest pause {:?}", signs.late, signs.count, signs.longest);
        assert!(signs.count > 0, "h{host} gives signs of life");
    }
    told.try_iter().for_each(|(app, at)| told_of.entry(app).or_default().push(at));
    for app in &killed_in_all {
        assert_eq!(told_of[app].len(), 1, "process {app} is told of once");
    }
    w.agents_run();
    w.status(2);
    for host in 1..=3 {
        let part_of = |at_ns| began_ns.iter().rev().find(|(began, _)| *began <= at_ns).map_or("before", |(_, name)| *name);
        let pauses: Vec<_> = w.events(host, Cause::ObserverPaused).iter().map(|e| (part_of(e.at_ns), e.code)).collect();
        println!("h{host}: its agent's pauses, µs: {pauses:?}");
    }
    // No host takes another one for gone.
    let hosts_fault = |(cause, _, app): &(Cause, String, Option<String>)| {
        app.is_none() && matches!(cause, Cause::SilentHost | Cause::AgentLost | Cause::Isolated)
    };
    w.no_faults_but(|_, fault| !hosts_fault(fault));
}

/// With one thread on each host, so that others have a processor, too.
#[test]
fn a_member_at_his_worst_for_a_moment_costs_no_crash() {
    worst_member(&[Part::Worst], 2.0, 1);
}

/// With as many threads as keep both processors busy.
#[test]
#[ignore = "needs a quiet machine: make timing"]
fn timing_a_member_at_his_worst_costs_no_crash_on_processors_that_are_busy() {
    worst_member(&[Part::Quiet, Part::Worst], 5.0, 4);
}

/// `FIDE_WORST_SECONDS` (60): how long; `FIDE_WORST_KINDS` (all): which requests, by number, as `common::worst::kind` has them.
#[test]
#[ignore = "a measurement: prints figures"]
fn the_worst_member_measured() {
    let seconds = std::env::var("FIDE_WORST_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(60.0);
    worst_member(&[Part::Quiet, Part::Busy, Part::Worst], seconds, 4);
}
