//! What happens when the agent is absent, of another version, broken, or dies in the middle of an answer.

use crate::fake_agent;

use fake_agent::{Answer, FakeAgent, memfd, packet_pair, record, refused};
use fide_client::wire::control::{ErrorCode, MESSAGE_MAX, Reply, Request, RingKind, bridge};
use fide_client::wire::event::RecordKind;
use fide_client::wire::verdict::Cause;
use fide_client::{Client, Connection, Error, Event, Options, Resources, parse_reply};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const SOON: Option<Duration> = Some(Duration::from_secs(60));

fn open(agent: &FakeAgent) -> Result<Client, Error> {
    Client::open(Some(&agent.path))
}

fn monitor(client: &Client) -> Result<(), Error> {
    client.monitor("db@a", Resources::default()).map(drop)
}

#[test]
fn without_an_agent_the_error_says_what_to_do() {
    let path = std::env::temp_dir().join("fide-no-such-socket");
    let error = Connection::open(Some(&path)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Disconnected);
    assert_eq!(
        error.to_string(),
        format!(
            "no agent is listening on {}: start it with systemctl start fided, or name its socket with FIDE_SOCKET",
            path.display()
        )
    );
    // Its socket may have been left behind by a crash.
    let agent = FakeAgent::start();
    let stale = agent.path.with_extension("stale");
    std::fs::hard_link(&agent.path, &stale).unwrap();
    agent.kill();
    assert!(matches!(Connection::open(Some(&stale)), Err(Error::NoAgent { .. })));
    let long = std::path::PathBuf::from("x".repeat(200));
    assert!(matches!(Connection::open(Some(&long)), Err(Error::Invalid(_))));
    assert!(matches!(Connection::open(Some("".as_ref())), Err(Error::Invalid(_))));
}

#[test]
fn without_permission_the_error_says_so() {
    use std::os::unix::fs::PermissionsExt;
    let agent = FakeAgent::start();
    std::fs::set_permissions(&agent.path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The bare system call changes this thread only; where it is not permitted, this is not root and owns the socket.
            // SAFETY: no pointers.
            if unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) } == 0 {
                let error = Connection::open(Some(&agent.path)).unwrap_err();
                assert!(matches!(error, Error::Permission { .. }), "{error}");
                assert_eq!(error.code(), ErrorCode::Permission);
            }
        });
    });
    agent.next("hello", Answer::Reply(refused(ErrorCode::Permission, "uid 1000 may not talk to this agent"), Vec::new()));
    let error = Connection::open(Some(&agent.path)).unwrap_err();
    assert_eq!((error.code(), error.to_string().as_str()), (ErrorCode::Permission, "uid 1000 may not talk to this agent"));
}

#[test]
fn another_version_is_refused_by_its_number() {
    let agent = FakeAgent::start();
    agent.next(
        "hello",
        Answer::Raw(br#"{"re":"hello","protocol":9,"node":"a","node_id":1,"cluster":"c","version":"2"}"#.to_vec()),
    );
    let error = open(&agent).unwrap_err();
    assert!(matches!(error, Error::Version { agent: 9, client: 1 }), "{error}");
    // Fields that a later release adds do not matter.
    agent.next(
        "hello",
        Answer::Raw(br#"{"re":"hello","protocol":1,"node":"a","node_id":1,"cluster":"c","version":"2","mood":"fine"}"#.to_vec()),
    );
    open(&agent).unwrap();
}

#[test]
fn garbage_ends_the_connection_and_not_the_process() {
    let deep = [b"[".repeat(60_000), b"]".repeat(60_000)].concat();
    for garbage in [
        b"nonsense".to_vec(),
        b"{}".to_vec(),
        b"{\"re\":\"monit".to_vec(),
        b"{\"re\":\"monitored\"}".to_vec(),
        b"{\"re\":\"monitored\",\"node\":1,\"app\":1,\"pbsize\":-1,\"timeout_ns\":1,\"alive\":true}".to_vec(),
        b"{\"re\":\"done\"}{\"re\":\"done\"}".to_vec(),
        vec![0xff; 1000],
        vec![0],
        deep,
        vec![b' '; MESSAGE_MAX + 1],
        [br#"{"re":"done"}"#.to_vec(), vec![b' '; MESSAGE_MAX]].concat(),
    ] {
        let agent = FakeAgent::start();
        let client = open(&agent).unwrap();
        agent.next("monitor", Answer::Raw(garbage.clone()));
        let error = monitor(&client).unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{error}: {:?}", &garbage[..garbage.len().min(20)]);
        assert!(matches!(monitor(&client), Err(Error::Disconnected)));
        // The end of the connection is told where events are told, once.
        assert_eq!(client.poll(SOON).unwrap(), Some(Event::AgentGone));
        assert!(matches!(client.poll(SOON), Err(Error::Disconnected)));
        client.reconnect().unwrap();
        monitor(&client).unwrap();
    }
}

#[test]
fn the_wrong_reply_ends_the_connection() {
    let agent = FakeAgent::start();
    for op in ["monitor", "unmonitor", "join", "quit", "status", "explain"] {
        let client = open(&agent).unwrap();
        agent.next(op, Answer::Reply(Reply::EventsEnd { next: 3 }, Vec::new()));
        let error = match op {
            "monitor" => monitor(&client).unwrap_err(),
            "unmonitor" => client.unmonitor("db@a").unwrap_err(),
            "join" => client.join("me", 1).map(drop).unwrap_err(),
            "quit" => client.quit().unwrap_err(),
            "status" => client.status().map(drop).unwrap_err(),
            _ => client.explain("00000001-1".parse().unwrap()).map(drop).unwrap_err(),
        };
        assert!(error.to_string().contains("EventsEnd came"), "{error}");
        assert!(matches!(monitor(&client), Err(Error::Disconnected)));
    }
    for op in ["hello", "subscribe"] {
        agent.next(op, Answer::Reply(Reply::Done, Vec::new()));
        assert!(matches!(open(&agent), Err(Error::Protocol(_))), "{op}");
    }
}

#[test]
fn descriptors_that_are_missing_or_too_many_end_the_connection() {
    let agent = FakeAgent::start();
    let ring = || Reply::Ring { kind: RingKind::Socket, size: 0 };
    let joined = || Reply::Joined { app: 1, pbsize: 10, bridge_len: bridge::LEN as u32 };
    for count in [0, 2, 4, 5, 20] {
        let fds = || -> Vec<OwnedFd> { (0..count).map(|_| packet_pair().0).collect() };
        agent.next("subscribe", Answer::Reply(ring(), fds()));
        assert!(matches!(open(&agent), Err(Error::Protocol(_))), "{count}");
        let client = open(&agent).unwrap();
        agent.next("join", Answer::Reply(joined(), fds()));
        assert!(matches!(client.join("me", 10), Err(Error::Protocol(_))), "{count}");
        assert!(matches!(client.piggyback(b"x"), Err(Error::Invalid(_))));
        assert!(matches!(client.quit(), Err(Error::Disconnected)));
    }
}

#[test]
fn memory_that_is_not_what_it_should_be_is_not_touched() {
    let agent = FakeAgent::start();
    let join = |len: usize, promised: u32| {
        let client = open(&agent).unwrap();
        let reply = Reply::Joined { app: 1, pbsize: 10, bridge_len: promised };
        agent.next("join", Answer::Reply(reply, vec![memfd(len).into()]));
        client.join("me", 10).map(drop)
    };
    assert!(join(bridge::LEN, bridge::LEN as u32).is_ok());
    assert!(matches!(join(bridge::LEN, 4096), Err(Error::Protocol(_))));
    assert!(matches!(join(4096, bridge::LEN as u32), Err(Error::Protocol(_))), "writing to it would raise SIGBUS");
    // A socket where a bridge should be.
    let client = open(&agent).unwrap();
    let reply = Reply::Joined { app: 1, pbsize: 10, bridge_len: bridge::LEN as u32 };
    agent.next("join", Answer::Reply(reply, vec![packet_pair().0]));
    assert!(matches!(client.join("me", 10), Err(Error::System { .. })));
    // Rings of impossible sizes.
    for size in [0, 1, 5000, u32::MAX] {
        let reply = Reply::Ring { kind: RingKind::Bpf, size };
        agent.next("subscribe", Answer::Reply(reply, vec![memfd(1 << 20).into()]));
        assert!(matches!(open(&agent), Err(Error::Protocol(_))), "{size}");
    }
}

#[test]
fn a_ring_that_cannot_be_mapped_or_waited_on_is_replaced_by_the_socket() {
    let agent = FakeAgent::start();
    // What cannot be mapped, and what can be mapped but not waited on.
    for fd in [packet_pair().0, memfd(1 << 20).into()] {
        agent.next("subscribe", Answer::Reply(Reply::Ring { kind: RingKind::Bpf, size: 4096 }, vec![fd]));
        let client = open(&agent).unwrap();
        assert_eq!(agent.requests().last(), Some(&Request::Subscribe { socket_only: true }));
        agent.emit(record(RecordKind::Process, Cause::Killed), b"");
        assert!(matches!(client.poll(SOON).unwrap(), Some(Event::Failure(_))));
    }
}

#[test]
fn an_agent_that_dies_while_answering_is_a_disconnection() {
    for op in ["hello", "subscribe"] {
        let agent = FakeAgent::start();
        agent.next(op, Answer::HangUp);
        assert!(matches!(open(&agent), Err(Error::Disconnected)), "{op}");
    }
    let agent = FakeAgent::start();
    let client = open(&agent).unwrap();
    agent.next("monitor", Answer::HangUp);
    assert!(matches!(monitor(&client), Err(Error::Disconnected)));
    assert_eq!(client.poll(SOON).unwrap(), Some(Event::AgentGone));
    // Killed while a request is waiting.
    client.reconnect().unwrap();
    agent.next("monitor", Answer::Silence);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| monitor(&client));
        fake_agent::eventually("asked", || agent.requests().iter().filter(|r| matches!(r, Request::Monitor { .. })).count() == 2);
        agent.kill();
        assert!(matches!(asking.join().unwrap(), Err(Error::Disconnected)));
    });
    assert_eq!(client.poll(SOON).unwrap(), Some(Event::AgentGone));
}

#[test]
fn who_is_turned_away_is_told_why() {
    let agent = FakeAgent::start();
    // As the agent does it: a refusal without reading anything, then the end. The greeting may come before or after that.
    for wait in [Duration::ZERO, Duration::from_millis(20)] {
        agent.turn_away(Some((refused(ErrorCode::Full, "user 7 has 64 connections"), wait)));
        let error = Connection::open(Some(&agent.path)).unwrap_err();
        assert_eq!((error.code(), error.to_string().contains("64 connections")), (ErrorCode::Full, true), "{wait:?}: {error}");
    }
    agent.turn_away(None);
    Connection::open(Some(&agent.path)).unwrap();
}

#[test]
fn an_agent_that_is_stuck_is_not_waited_for_for_ever() {
    let agent = FakeAgent::start();
    // Long enough for the other requests, which are answered at once, also on a busy machine.
    let answer_timeout = Duration::from_millis(500);
    let options = Options { path: Some(agent.path.clone()), answer_timeout, ..Options::default() };
    let client = Client::open_with(options).unwrap();
    agent.next("monitor", Answer::Late(answer_timeout + Duration::from_millis(100)));
    let start = Instant::now();
    let error = monitor(&client).unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error}");
    assert!(start.elapsed() >= answer_timeout);
    // Sleep: time for the late answer to come. The client has closed its connection, and nothing
    // shows it.
    std::thread::sleep(Duration::from_millis(200));
    // The late answer is not taken for that to the next request.
    assert!(matches!(client.unmonitor("db@a"), Err(Error::Disconnected)));
    client.reconnect().unwrap();
    client.unmonitor("db@a").unwrap();
}

#[test]
fn a_request_too_long_to_send_is_refused_here() {
    let agent = FakeAgent::start();
    let client = open(&agent).unwrap();
    let error = client.join(&"x".repeat(MESSAGE_MAX), 0).unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: MESSAGE_MAX, .. }));
    monitor(&client).unwrap();
}

#[test]
fn records_that_cannot_be_read_count_as_lost() {
    let agent = FakeAgent::start();
    let client = open(&agent).unwrap();
    agent.emit_raw(&[1; 71]);
    agent.emit_raw(&[255; 72]);
    agent.emit_raw(&vec![0; 72 + 70_000]);
    for _ in 0..3 {
        assert_eq!(client.poll(SOON).unwrap(), Some(Event::Lost { count: 1 }));
    }
    agent.emit(record(RecordKind::Process, Cause::Killed), b"");
    assert!(matches!(client.poll(SOON).unwrap(), Some(Event::Failure(_))));
}

#[test]
fn replies_of_any_bytes_are_read_without_harm() {
    let good = serde_json::to_vec(&Reply::EventsEnd { next: 17 }).unwrap();
    assert_eq!(parse_reply(&good).unwrap(), Reply::EventsEnd { next: 17 });
    for cut in 0..good.len() {
        assert!(matches!(parse_reply(&good[..cut]), Err(Error::Protocol(_))));
    }
    for at in 0..good.len() {
        for byte in 0..=255 {
            let mut bytes = good.clone();
            bytes[at] = byte;
            let _ = parse_reply(&bytes);
        }
    }
    assert!(parse_reply(&vec![b' '; MESSAGE_MAX + 1]).is_err());
}
