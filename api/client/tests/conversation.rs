//! Every call and every upcall of Listing 1 against an agent that behaves.

use crate::fake_agent;

use fake_agent::{Answer, FakeAgent, GRANTED, TIMEOUT_NS, eventually, record};
use fide_client::group::{self, Group};
use fide_client::wire::PIGGYBACK_MAX;
use fide_client::wire::control::{ErrorCode, Reply, Request, RingKind, bridge};
use fide_client::wire::event::{Record, RecordKind};
use fide_client::wire::name_id;
use fide_client::wire::session::{self, Bundle, MESSAGE_MAX, ToAgent, ToClient};
use fide_client::wire::verdict::{Cause, Grade};
use fide_client::{Callbacks, Client, Connection, Error, Event, Options, Piggyback, Resources, Subject, Verdict};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const SOON: Option<Duration> = Some(Duration::from_secs(60));
const NOW: Option<Duration> = Some(Duration::ZERO);

fn client(agent: &FakeAgent) -> Client {
    Client::open(Some(&agent.path)).unwrap()
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, alive through the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

#[test]
fn listing_1_monitor_grants_resources_and_failures_arrive_once() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    assert_eq!(client.agent().node, "here");
    let wanted = Resources { pbsize: 5000, timeout: Duration::from_millis(3) };
    let monitored = client.monitor("db@a", wanted).unwrap();
    assert!(monitored.alive);
    assert_eq!((monitored.subject.node, monitored.subject.app), (name_id("a"), 7));
    assert_eq!(monitored.granted, Resources { pbsize: GRANTED, timeout: Duration::from_nanos(TIMEOUT_NS) });
    let asked = Request::Monitor { target: "db@a".into(), pbsize: 5000, timeout_ns: 3_000_000 };
    assert_eq!(agent.requests().last(), Some(&asked));

    assert_eq!(client.poll(NOW).unwrap(), None);
    assert!(!readable(client.as_fd()));
    agent.emit(record(RecordKind::Process, Cause::Doomed), b"");
    agent.emit(record(RecordKind::Process, Cause::Doomed), b"");
    agent.emit(Record { flags: Record::CONFIRMS, ..record(RecordKind::Process, Cause::Killed) }, b"");
    eventually("the descriptor is readable", || readable(client.as_fd()));
    let Some(Event::Failure(failure)) = client.poll(SOON).unwrap() else { panic!() };
    assert_eq!(failure.subject.to_string(), "db@a");
    assert_eq!((failure.cause, failure.grade, failure.code), (Cause::Doomed, Grade::Certain, 9));
    assert_eq!(failure.event_to_sent_ns(), Some(12_000));
    assert_eq!(failure.id.unwrap().to_string(), format!("{:08x}-1", name_id("a")));
    assert!(matches!(client.poll(SOON).unwrap(), Some(Event::Confirmed(v)) if v.cause == Cause::Killed));
    assert_eq!(client.poll(NOW).unwrap(), None);
    assert!(!readable(client.as_fd()));
}

#[test]
fn hosts_and_everything_can_be_monitored() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    assert_eq!(client.monitor("@a", Resources::default()).unwrap().subject.app, 0);
    assert_eq!(client.monitor("*", Resources::default()).unwrap().subject.node, 0);
    let web = client.monitor("web@b", Resources::default()).unwrap();
    assert!(!web.alive);
    agent.emit(Record { app: 0, ..record(RecordKind::Host, Cause::PathDown) }, b"");
    let Some(Event::Host(verdict)) = client.poll(SOON).unwrap() else { panic!() };
    assert_eq!((verdict.subject.to_string().as_str(), verdict.cause), ("@a", Cause::PathDown));
}

#[test]
fn refusals_name_their_reason_and_leave_the_client_usable() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    let refused = client.monitor("nobody@a", Resources::default()).unwrap_err();
    assert_eq!((refused.code(), refused.to_string().as_str()), (ErrorCode::NotFound, "no process nobody@a is known here"));
    assert_eq!(client.unmonitor("web@b").unwrap_err().code(), ErrorCode::NotFound);
    assert_eq!(client.quit().unwrap_err().code(), ErrorCode::Invalid);
    for bad in ["", "db", "a@b@c", "db@a\n", "d b@a", "db@", &format!("@{}", "h".repeat(200))] {
        let error = client.monitor(bad, Resources::default()).unwrap_err();
        assert!(matches!(&error, Error::Invalid(what) if what.contains(" name")), "{bad:?}: {error:?}");
    }
    assert_eq!(client.join("", 0).unwrap_err().code(), ErrorCode::Invalid);
    client.join("me", 0).unwrap();
    assert_eq!(client.join("me", 0).unwrap_err().code(), ErrorCode::Exists);
    client.monitor("db@a", Resources::default()).unwrap();
    client.unmonitor("db@a").unwrap();
    client.status().unwrap();
    let left_s = |target: &str| client.maintenance(target).unwrap().map(|m| m.left_ns / 1_000_000_000);
    assert_eq!((left_s("db2@a"), left_s("web@a"), left_s("@a")), (Some(120), None, None));
    assert_eq!((left_s("db@b"), left_s("web@b"), left_s("@b")), (Some(120), Some(60), Some(60)));
    for wrong in ["db", "", "db@", "a@b@c"] {
        assert_eq!(client.maintenance(wrong).unwrap_err().code(), ErrorCode::Invalid, "{wrong}");
    }
    assert_eq!(client.explain("00000001-1".parse().unwrap()).unwrap_err().code(), ErrorCode::Unsupported);
}

#[test]
fn listing_1_piggyback_is_copied_to_the_bridge_up_to_the_granted_size() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    assert_eq!(client.piggyback(b"early").unwrap_err().code(), ErrorCode::Invalid);
    assert_eq!(client.join("me", 5000).unwrap(), (11, GRANTED));
    assert_eq!(client.pbsize(), GRANTED as usize);
    let messages: Vec<Vec<u8>> = [1, 2, 3, 4, 5, 999, 1000].iter().map(|n| (0..*n).map(|i| i as u8).collect()).collect();
    for message in &messages {
        client.piggyback(message).unwrap();
    }
    assert_eq!(agent.taken(), messages);
    assert!(matches!(client.piggyback(&[0; 1001]), Err(Error::TooLarge { size: 1001, limit: 1000 })));
    assert_eq!(client.piggyback(&[]).unwrap_err().code(), ErrorCode::Invalid);

    // on_pbsize_changed binds what follows.
    agent.emit(Record { code: 4, ..record(RecordKind::PiggybackSizeChanged, Cause::Local) }, b"");
    assert_eq!(client.poll(SOON).unwrap(), Some(Event::PiggybackSizeChanged { pbsize: 4 }));
    assert!(matches!(client.piggyback(b"12345"), Err(Error::TooLarge { size: 5, limit: 4 })));
    agent.emit(Record { code: i32::MAX, ..record(RecordKind::PiggybackSizeChanged, Cause::Local) }, b"");
    client.poll(SOON).unwrap();
    assert_eq!(client.pbsize(), PIGGYBACK_MAX, "whatever is granted, a frame carries no more");

    client.quit().unwrap();
    assert_eq!(client.piggyback(b"late").unwrap_err().code(), ErrorCode::Invalid);
    assert_eq!(client.pbsize(), 0);
}

#[test]
fn b10_progress_counters_lie_in_the_bridge_and_move_with_it() {
    let agent = FakeAgent::start();
    let client = std::sync::Arc::new(client(&agent));
    let second = std::time::Duration::from_secs(1);
    assert_eq!(client.progress(second).unwrap_err().code(), ErrorCode::Invalid, "join first");
    client.join("me", 8).unwrap();
    let shown = |counter: u8| {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            agent
                .bridge()
                .read_exact_at(&mut bytes, (bridge::PROGRESS + usize::from(counter) * bridge::COUNTER + at) as u64)
                .unwrap();
            u64::from_ne_bytes(bytes)
        };
        (word(0), word(bridge::BUSY))
    };
    let a = client.progress(second).unwrap();
    let b = client.progress(second).unwrap();
    assert_eq!((a.number(), b.number(), shown(0).1, shown(1).1, shown(2).1), (0, 1, 1, 1, 0), "busy from the start");
    let before = shown(0).0;
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..1000 {
                    a.begin();
                    a.tick();
                    a.end();
                }
            });
        }
        s.spawn(|| client.reconnect().unwrap());
    });
    assert_eq!(shown(0).1, 1, "all that began has ended, on the new bridge too");
    let moved = shown(0).0;
    a.tick();
    assert!(shown(0).0 == moved + 1 && before > 0);
    a.end();
    a.end();
    assert_eq!(shown(0).1, 0);
    a.begin();
    assert_eq!(shown(0).1, 1, "one end too many is none");
    drop(a);
    assert_eq!(shown(0).1, 0);
    assert_eq!(client.progress(second).unwrap().number(), 0, "its number is free again");
    let all: Vec<_> = (0..bridge::COUNTERS - 1).map(|_| client.progress(second).unwrap()).collect();
    assert!(matches!(client.progress(second), Err(Error::Full)));
    drop(all);
    let other_agent = FakeAgent::start();
    let other = Client::open(Some(&other_agent.path)).unwrap();
    assert_eq!(other.set_progress_limit(&b, second).unwrap_err().code(), ErrorCode::Invalid, "another client's");
    // After the client is gone, ticks still go somewhere.
    let moved = shown(1).0;
    drop(client);
    b.tick();
    assert_eq!(shown(1).0, moved + 1);
}

#[test]
fn a_full_bridge_refuses_until_the_lane_has_taken_something() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    client.join("me", 8).unwrap();
    for round in 0..5_u32 {
        for i in 0..bridge::SLOTS {
            client.piggyback(&(round * 1000 + i).to_ne_bytes()).unwrap();
        }
        assert!(matches!(client.piggyback(b"more"), Err(Error::Full)));
        let taken = agent.taken();
        assert_eq!(taken.len(), bridge::SLOTS as usize);
        assert_eq!(taken[9], (round * 1000 + 9).to_ne_bytes());
    }
    // A tail that runs ahead of the head is nonsense; nothing is written then.
    agent.bridge().write_all_at(&u32::MAX.to_ne_bytes(), bridge::TAIL as u64).unwrap();
    agent.bridge().write_all_at(&(bridge::SLOTS * 5 + 1).to_ne_bytes(), bridge::TAIL as u64).unwrap();
    assert!(matches!(client.piggyback(b"more"), Err(Error::Full)));
}

#[test]
fn piggybacking_threads_lose_nothing() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    client.join("me", 8).unwrap();
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..3_u32 {
            let client = &client;
            scope.spawn(move || {
                for i in 0..300_u32 {
                    let message = [thread.to_ne_bytes(), i.to_ne_bytes()].concat();
                    while let Err(e) = client.piggyback(&message) {
                        assert!(matches!(e, Error::Full), "{e}");
                        std::thread::yield_now();
                    }
                }
            });
        }
        eventually("all messages", || {
            seen.extend(agent.taken());
            seen.len() == 900
        });
    });
    for thread in 0..3_u32 {
        let of_thread: Vec<_> = seen.iter().filter(|m| m[..4] == thread.to_ne_bytes()).collect();
        assert!(of_thread.iter().enumerate().all(|(i, m)| m[4..] == (i as u32).to_ne_bytes()), "in order");
    }
}

#[derive(Default)]
struct Heard(Vec<String>);

impl Callbacks for Heard {
    fn on_failure(&mut self, failure: &Verdict) {
        self.0.push(format!("failure {} {}", failure.subject, failure.cause));
    }
    fn on_confirmed(&mut self, confirmed: &Verdict) {
        self.0.push(format!("confirmed {}", confirmed.subject));
    }
    fn on_piggyback_rcv(&mut self, piggyback: &Piggyback) {
        self.0.push(format!("piggyback {} {:?}", piggyback.from, piggyback.message));
    }
    fn on_timeout_changed(&mut self, subject: &Subject, timeout_ns: u64) {
        self.0.push(format!("timeout {subject} {timeout_ns}"));
    }
    fn on_monitor_req(&mut self, by: &Subject, pbsize: u32) {
        self.0.push(format!("monitor request {by} {pbsize}"));
    }
    fn on_pbsize_changed(&mut self, pbsize: u32) {
        self.0.push(format!("pbsize {pbsize}"));
    }
    fn on_other(&mut self, event: &Event) {
        self.0.push(format!("other {event:?}").chars().take(15).collect());
    }
}

#[test]
fn listing_1_upcalls_are_called() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    client.monitor("db@a", Resources::default()).unwrap();
    agent.emit(record(RecordKind::Process, Cause::Monitored), b"");
    agent.emit(record(RecordKind::Piggyback, Cause::Local), b"\x01\x02");
    agent.emit(Record { number: 5, ..record(RecordKind::TimeoutChanged, Cause::Local) }, b"");
    agent.emit(Record { code: 64, app: 0, ..record(RecordKind::MonitorRequest, Cause::Local) }, b"");
    agent.emit(Record { code: 65, ..record(RecordKind::PiggybackSizeChanged, Cause::Local) }, b"");
    agent.emit(Record { number: 3, ..record(RecordKind::Lost, Cause::Local) }, b"");
    agent.emit_raw(b"no record");
    agent.emit(record(RecordKind::Process, Cause::Killed), b"");
    agent.emit(Record { flags: Record::CONFIRMS, ..record(RecordKind::Process, Cause::Killed) }, b"");
    let mut heard = Heard::default();
    while heard.0.len() < 9 {
        assert!(client.dispatch(&mut heard, SOON).unwrap() > 0);
    }
    assert_eq!(
        heard.0,
        [
            "other Monitored",
            "piggyback db@a [1, 2]",
            "timeout db@a 5",
            "monitor request @a 64",
            "pbsize 65",
            "other Lost { co",
            "other Lost { co",
            "failure db@a killed",
            "confirmed db@a",
        ]
    );
    assert_eq!(client.dispatch(&mut heard, NOW).unwrap(), 0);
}

#[test]
fn callbacks_may_call_the_client() {
    struct Again<'a>(&'a Client, usize);
    impl Callbacks for Again<'_> {
        fn on_failure(&mut self, _: &Verdict) {
            self.0.unmonitor("db@a").unwrap();
            self.0.monitor("db@a", Resources::default()).unwrap();
            assert_eq!(self.0.try_next().unwrap(), None);
            self.1 += 1;
        }
    }
    let agent = FakeAgent::start();
    let client = client(&agent);
    agent.emit(record(RecordKind::Process, Cause::Killed), b"");
    let mut again = Again(&client, 0);
    client.dispatch(&mut again, SOON).unwrap();
    assert_eq!(again.1, 1);
}

#[test]
fn spinning_finds_events_and_in_the_end_that_the_agent_is_gone() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    agent.emit(record(RecordKind::Process, Cause::Killed), b"");
    let spin = || {
        let start = Instant::now();
        loop {
            if let Some(event) = client.try_next().unwrap() {
                return event;
            }
            assert!(start.elapsed() < Duration::from_secs(60));
        }
    };
    assert!(matches!(spin(), Event::Failure(_)));
    agent.kill();
    assert_eq!(spin(), Event::AgentGone);
    assert!(matches!(client.try_next(), Err(Error::Disconnected)));
}

#[test]
fn a_thread_that_waits_does_not_hold_up_one_that_asks() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.poll(SOON).unwrap());
        // Sleep: the other thread begins to wait, which nothing shows.
        std::thread::sleep(Duration::from_millis(20));
        client.monitor("db@a", Resources::default()).unwrap();
        assert_eq!(client.try_next().unwrap(), None);
        agent.emit(record(RecordKind::Process, Cause::Killed), b"");
        assert!(matches!(waiting.join().unwrap(), Some(Event::Failure(_))));
    });
}

#[test]
fn a_request_without_an_answer_does_not_hold_up_events() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    agent.next("monitor", Answer::Silence);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| client.monitor("db@a", Resources::default()));
        eventually("the request is there", || matches!(agent.requests().last(), Some(Request::Monitor { .. })));
        agent.emit(record(RecordKind::Process, Cause::Killed), b"");
        let Some(Event::Failure(failure)) = client.poll(SOON).unwrap() else { panic!() };
        assert_eq!(failure.subject.to_string(), format!("7@{:08x}", name_id("a")), "its number was not known yet");
        assert_eq!(client.try_next().unwrap(), None);
        assert!(!asking.is_finished());
        agent.kill();
        assert!(matches!(asking.join().unwrap(), Err(Error::Disconnected)));
    });
}

#[test]
fn poll_returns_when_its_time_is_over() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    let start = Instant::now();
    assert_eq!(client.poll(Some(Duration::from_millis(30))).unwrap(), None);
    assert!(start.elapsed() >= Duration::from_millis(30));
    // Nor do events that tell nothing new prolong it, or cut it short.
    client.monitor("db@a", Resources::default()).unwrap();
    agent.emit(record(RecordKind::Process, Cause::Killed), b"");
    client.poll(SOON).unwrap();
    agent.emit(record(RecordKind::Process, Cause::Killed), b"");
    let start = Instant::now();
    assert_eq!(client.poll(Some(Duration::from_millis(30))).unwrap(), None);
    assert!(start.elapsed() >= Duration::from_millis(30));
}

#[test]
fn a_dead_agent_is_told_once_and_after_everything_it_said() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    client.monitor("db@a", Resources::default()).unwrap();
    client.join("me", 100).unwrap();
    agent.emit(record(RecordKind::Process, Cause::Killed), b"");
    agent.kill();
    assert!(readable(client.as_fd()));
    assert!(matches!(client.poll(SOON).unwrap(), Some(Event::Failure(_))));
    assert_eq!(client.poll(SOON).unwrap(), Some(Event::AgentGone));
    assert!(!readable(client.as_fd()), "an event loop must not spin on it");
    assert!(matches!(client.poll(SOON), Err(Error::Disconnected)));
    assert!(matches!(client.try_next(), Err(Error::Disconnected)));
    assert!(matches!(client.piggyback(b"x"), Err(Error::Disconnected)));
    assert!(matches!(client.monitor("db@a", Resources::default()), Err(Error::Disconnected)));
    assert!(matches!(client.reconnect(), Err(Error::NoAgent { .. })));
}

#[test]
fn reconnecting_restores_what_was_asked_for() {
    let mut agent = FakeAgent::start();
    let client = client(&agent);
    let fd = client.as_fd().as_raw_fd();
    client.monitor("db@a", Resources { pbsize: 10, ..Resources::default() }).unwrap();
    client.monitor("web@b", Resources::default()).unwrap();
    client.monitor("@a", Resources::default()).unwrap();
    assert!(matches!(client.end_connections(&[6379]), Err(Error::Invalid(_))), "it has not joined");
    client.join("me", 77).unwrap();
    client.end_connections(&[6379]).unwrap();
    agent.restart();
    assert_eq!(client.poll(SOON).unwrap(), Some(Event::AgentGone));
    let agent = agent;
    agent.next("monitor", Answer::Reply(fake_agent::refused(ErrorCode::Permission, "not any more"), Vec::new()));
    agent.next("end-connections", Answer::Reply(fake_agent::refused(ErrorCode::Invalid, "unknown"), Vec::new()));
    let resumed = client.reconnect().unwrap();
    assert_eq!(resumed.joined.unwrap().unwrap(), (11, 77));
    let summary: Vec<_> = resumed.targets.iter().map(|(t, a)| (t.as_str(), a.as_ref().ok().map(|m| m.alive))).collect();
    assert_eq!(summary, [("@a", None), ("db@a", Some(true)), ("web@b", Some(false))]);
    let asked = agent.requests();
    assert!(asked.contains(&Request::Join { name: "me".into(), pbsize: 77, resumes: Some(11) }));
    assert!(asked.contains(&Request::EndConnections { name: "me".into(), ports: vec![6379] }));
    assert!(asked.contains(&Request::Monitor { target: "db@a".into(), pbsize: 10, timeout_ns: 0 }));
    client.piggyback(b"again").unwrap();
    assert_eq!(agent.taken(), [b"again"]);
    assert_eq!(client.as_fd().as_raw_fd(), fd);
    agent.emit(record(RecordKind::Process, Cause::Killed), b"");
    eventually("the same descriptor is readable", || readable(client.as_fd()));
    assert!(matches!(client.poll(SOON).unwrap(), Some(Event::Failure(_))));
    // At any time, also with an agent that lives and for which the name is taken. What was refused is not asked for again.
    let resumed = client.reconnect().unwrap();
    assert_eq!(resumed.targets.len(), 2);
    assert_eq!(resumed.joined.unwrap().unwrap_err().code(), ErrorCode::Exists);
    assert_eq!(client.poll(NOW).unwrap(), None, "the end of the old connection is no event of the new one");
    client.piggyback(b"still read").unwrap();
    assert_eq!(agent.taken(), [b"still read"]);
    assert!(client.reconnect().unwrap().joined.is_none());
}

#[test]
fn events_can_be_followed_on_a_connection_of_their_own() {
    let agent = FakeAgent::start();
    let connection = Connection::open(Some(&agent.path)).unwrap();
    assert_eq!(connection.agent().cluster, "test");
    assert!(connection.next_reply_within(Some(Duration::from_millis(10))).unwrap().is_none());
    let asked = connection.request(&Request::Events { from: 0, last: 0, follow: true });
    assert_eq!(asked.unwrap_err().code(), ErrorCode::Unsupported);
    assert!(!connection.is_over(), "a wait that found nothing, and a refusal, leave it usable");
    connection.close();
    assert!(matches!(connection.request(&Request::Status), Err(Error::Disconnected)));
}

#[test]
fn the_socket_is_chosen_by_argument_then_environment_then_default() {
    use fide_client::{socket_path, wire::control::DEFAULT_SOCKET};
    assert_eq!(socket_path(Some("/x/y".as_ref())).as_os_str(), "/x/y");
    if std::env::var_os("FIDE_SOCKET").is_none() {
        assert_eq!(socket_path(None).as_os_str(), DEFAULT_SOCKET);
    }
}

/// Runs `work` in a child that the kernel kills at its first system call (but read, write and exit); whether it survived.
fn without_system_calls(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only touches memory, as this function makes sure, and leaves by the bare system call.
    unsafe {
        match libc::fork() {
            0 => {
                const STRICT: libc::c_int = 1;
                let strict = libc::prctl(libc::PR_SET_SECCOMP, STRICT) == 0;
                libc::syscall(libc::SYS_exit, libc::c_int::from(!(strict && work())));
                unreachable!()
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }
}

#[test]
fn piggybacking_makes_no_system_call() {
    let agent = FakeAgent::start();
    let client = client(&agent);
    client.join("me", 100).unwrap();
    assert!(without_system_calls(|| client.piggyback(b"from a child").is_ok()));
    assert_eq!(agent.taken(), [b"from a child"]);
    let socket = agent.path.clone();
    assert!(!without_system_calls(|| socket.exists()), "a system call would have been noticed");
}

/// The fast path: the kernel writes, this process reads its own memory.
mod in_memory {
    use super::*;
    use fake_agent::bpf;
    use zerocopy::IntoBytes;

    fn permitted() -> bool {
        let permitted = bpf::permitted();
        if !permitted {
            println!("SKIPPED: making a BPF ring needs root");
        }
        permitted
    }

    #[test]
    fn events_come_from_the_kernel_without_the_agent() {
        if !permitted() {
            return;
        }
        let agent = FakeAgent::start_with(true);
        let client = client(&agent);
        client.monitor("db@a", Resources::default()).unwrap();
        assert_eq!(client.try_next().unwrap(), None);
        assert!(!readable(client.as_fd()));
        agent.emit(record(RecordKind::Process, Cause::Doomed), b"");
        eventually("the descriptor is readable", || readable(client.as_fd()));
        assert!(matches!(client.try_next().unwrap(), Some(Event::Failure(v)) if v.subject.to_string() == "db@a"));
        assert!(!readable(client.as_fd()));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| client.poll(SOON).unwrap());
            // Sleep: the other thread begins to wait, which nothing shows.
            std::thread::sleep(Duration::from_millis(20));
            agent.emit(record(RecordKind::Piggyback, Cause::Local), b"hello");
            assert!(matches!(waiting.join().unwrap(), Some(Event::Piggyback(p)) if p.message == b"hello"));
        });
        // Many times around the ring.
        for number in 0..3000 {
            agent.emit(Record { number, ..record(RecordKind::TimeoutChanged, Cause::Local) }, b"");
            let Some(Event::TimeoutChanged { timeout_ns, .. }) = client.poll(SOON).unwrap() else { panic!() };
            assert_eq!(timeout_ns, number);
        }
        agent.kill();
        assert_eq!(client.poll(SOON).unwrap(), Some(Event::AgentGone));
    }

    #[test]
    fn looking_for_events_makes_no_system_call() {
        if !permitted() {
            return;
        }
        let agent = FakeAgent::start_with(true);
        let client = client(&agent);
        // The first look makes room for entries; that of a child must not need any.
        agent.emit(record(RecordKind::TimeoutChanged, Cause::Local), b"");
        client.poll(SOON).unwrap();
        for number in 0..100 {
            agent.emit(Record { number, ..record(RecordKind::TimeoutChanged, Cause::Local) }, b"");
        }
        assert!(without_system_calls(|| {
            let found = (0..10_000).filter(|_| matches!(client.try_next(), Ok(Some(Event::TimeoutChanged { .. })))).count();
            found == 100
        }));
    }

    #[test]
    fn a_full_ring_keeps_the_oldest_events_in_order() {
        if !permitted() {
            return;
        }
        let ring = bpf::Ring::new();
        let agent = FakeAgent::start();
        let reply = fide_client::wire::control::Reply::Ring { kind: fide_client::wire::control::RingKind::Bpf, size: ring.size };
        agent.next("subscribe", Answer::Reply(reply, vec![ring.map.try_clone().unwrap()]));
        let client = client(&agent);
        let mut written = 0;
        while ring.try_output(Record { number: written, ..record(RecordKind::TimeoutChanged, Cause::Local) }.as_bytes()) {
            written += 1;
        }
        assert_eq!(written, u64::from(ring.size) / (8 + bpf::ENTRY as u64));
        for number in 0..written {
            let Some(Event::TimeoutChanged { timeout_ns, .. }) = client.try_next().unwrap() else { panic!() };
            assert_eq!(timeout_ns, number);
        }
        assert_eq!(client.try_next().unwrap(), None);
    }

    #[test]
    fn no_wake_up_is_missed_while_the_kernel_writes() {
        if !permitted() {
            return;
        }
        const COUNT: u64 = 30_000;
        let ring = bpf::Ring::new();
        let agent = FakeAgent::start();
        let reply = Reply::Ring { kind: RingKind::Bpf, size: ring.size };
        agent.next("subscribe", Answer::Reply(reply, vec![ring.map.try_clone().unwrap()]));
        let client = client(&agent);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..COUNT {
                    let record = Record { number, ..record(RecordKind::TimeoutChanged, Cause::Local) };
                    while !ring.try_output(record.as_bytes()) {
                        std::thread::yield_now();
                    }
                }
            });
            for number in 0..COUNT {
                let Some(Event::TimeoutChanged { timeout_ns, .. }) = client.poll(SOON).unwrap() else { panic!("{number}") };
                assert_eq!(timeout_ns, number);
            }
        });
    }

    /// DESIGN: no privilege for applications. The descriptor alone suffices to map, read and wait for the ring.
    #[test]
    fn no_privilege_is_needed() {
        if !permitted() {
            return;
        }
        let agent = FakeAgent::start_with(true);
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&agent.path, std::fs::Permissions::from_mode(0o666)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The bare system call changes this thread only.
                // SAFETY: no pointers.
                let dropped = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
                assert_eq!(dropped, 0);
                assert!(!bpf::permitted(), "this thread may do nothing special");
                let client = client(&agent);
                agent.emit(record(RecordKind::Process, Cause::Killed), b"");
                assert!(matches!(client.poll(SOON).unwrap(), Some(Event::Failure(_))));
                assert!(!agent.requests().contains(&Request::Subscribe { socket_only: true }), "it was the ring in memory");
            });
        });
    }

    #[test]
    fn the_socket_can_be_asked_for() {
        if !permitted() {
            return;
        }
        let agent = FakeAgent::start_with(true);
        let options = Options { path: Some(agent.path.clone()), socket_only: true, ..Options::default() };
        let client = Client::open_with(options).unwrap();
        agent.emit(record(RecordKind::Process, Cause::Killed), b"");
        assert!(matches!(client.poll(SOON).unwrap(), Some(Event::Failure(_))));
        assert!(agent.requests().contains(&Request::Subscribe { socket_only: true }));
    }
}

// ---- groups
// ---------------------------------------------------------------------------------------------------------------------

/// A group that is open, and the agent's end of its socket.
fn group(agent: &FakeAgent, bundles: bool) -> (Group, OwnedFd) {
    let (ours, theirs) = fake_agent::packet_pair();
    agent.next("open-group", Answer::Reply(Reply::GroupOpened { client: 7, bundles, refuses: String::new() }, vec![theirs]));
    let options = group::Options { path: Some(agent.path.clone()), ..group::Options::default() };
    (Group::open_with("orders", options).unwrap(), ours)
}

/// What each of the datagrams that came says, by proposal number and value.
fn proposed(agent: BorrowedFd<'_>, datagrams: usize) -> Vec<Vec<(u64, Vec<u8>)>> {
    let mut buffer = vec![0; MESSAGE_MAX];
    let mut read = || {
        let length = fake_agent::receive(agent, &mut buffer);
        let (mut at, mut all) = (0, Vec::new());
        while let Some(range) = session::next_message(&buffer[..length], at).unwrap() {
            at = range.end;
            let Some(ToAgent::Propose { number, bytes, .. }) = ToAgent::read(&buffer[range]) else { panic!("no proposal") };
            all.push((number, bytes.to_vec()));
        }
        all
    };
    (0..datagrams).map(|_| read()).collect()
}

fn entry(index: u64, number: u64) -> ToClient<'static> {
    ToClient::Entry { member: 1, index, client: 7, number, bytes: b"value" }
}

#[test]
fn values_that_are_proposed_together_go_together_to_an_agent_that_reads_bundles() {
    let agent = FakeAgent::start();
    let values: [&[u8]; 3] = [b"one", b"two", b""];
    let all: Vec<(u64, Vec<u8>)> = (1..).zip(values.map(<[u8]>::to_vec)).collect();
    let (mut group, theirs) = group(&agent, true);
    assert_eq!(group.propose_all(&values).unwrap(), 1);
    assert_eq!(proposed(theirs.as_fd(), 1), std::slice::from_ref(&all));
    let large = vec![7; session::BUNDLE_ENOUGH];
    assert_eq!(group.propose_all(&[b"four", &large, b"six"]).unwrap(), 4);
    let numbers: Vec<Vec<u64>> = proposed(theirs.as_fd(), 3).iter().map(|one| one.iter().map(|(n, _)| *n).collect()).collect();
    assert_eq!(numbers, [[4], [5], [6]], "no more than is enough in one");
    assert_eq!(group.propose(b"alone").unwrap(), 7);
    assert_eq!(proposed(theirs.as_fd(), 1), [[(7, b"alone".to_vec())]]);

    let (mut group, theirs) = self::group(&agent, false);
    group.propose_all(&values).unwrap();
    let each: Vec<_> = all.into_iter().map(|one| vec![one]).collect();
    assert_eq!(proposed(theirs.as_fd(), 3), each, "one that does not gets each by itself");
    assert!(agent.requests().iter().any(|request| matches!(request, Request::OpenGroup { bundles: true, .. })));
}

#[test]
fn of_values_that_cannot_all_be_proposed_none_is() {
    let agent = FakeAgent::start();
    let (mut group, theirs) = group(&agent, true);
    let many = vec![b"".as_slice(); group::PENDING_MAX];
    let large = vec![7; session::VALUE_MAX + 1];
    assert!(matches!(group.propose_all(&[b"", &large]), Err(Error::TooLarge { .. })));
    assert_eq!(group.propose_all(&many).unwrap(), 1);
    assert!(matches!(group.propose_all(&[b""]), Err(Error::Busy)));
    assert_eq!(group.propose_all(&[]).unwrap(), group::PENDING_MAX as u64 + 1, "none fits always");
    let numbers: Vec<u64> = proposed(theirs.as_fd(), 4).into_iter().flatten().map(|(number, _)| number).collect();
    assert_eq!(numbers, (1..=group::PENDING_MAX as u64).collect::<Vec<_>>());
}

#[test]
fn a_descriptor_stays_readable_until_every_message_of_a_bundle_is_read() {
    let agent = FakeAgent::start();
    let (mut group, theirs) = group(&agent, true);
    group.propose_all(&[b"value", b"value", b"value"]).unwrap();
    assert!(!readable(group.as_fd()));
    let mut bundle = Bundle::default();
    for n in 1..=3 {
        bundle.push(|out| entry(n, n).append(out));
    }
    fake_agent::send(theirs.as_fd(), bundle.datagram(), &[]).unwrap();
    for n in 1..=3 {
        eventually("an event loop is woken", || readable(group.as_fd()));
        let Some(group::Event::Entry(entry)) = group.poll(NOW).unwrap() else { panic!() };
        assert_eq!((entry.index, entry.number, group.pending()), (n, n, 3 - n as usize));
    }
    assert!(!readable(group.as_fd()));
    assert_eq!(group.poll(NOW).unwrap(), None);
    // And by itself, when what is in it is no bundle.
    let cut = &bundle.datagram()[..bundle.datagram().len() - 1];
    fake_agent::send(theirs.as_fd(), cut, &[]).unwrap();
    let refused = (0..3).find_map(|_| group.poll(NOW).err());
    assert!(matches!(refused, Some(Error::Protocol(_))), "{refused:?}");
}
